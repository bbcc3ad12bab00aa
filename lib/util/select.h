/*
 * Choosing tensors by patterns, and renaming them: what --include, --exclude
 * and --rename mean, for all tools.
 */
#ifndef FSDP_SELECT_H
#define FSDP_SELECT_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/util/fsdp_status.h"

/* Of which kind, by whatever name: optimizer state is what starts with
 * "optim/", or with "optim.", "optimizer.", "opt.state.", "exp_avg." or
 * "exp_avg_sq." as other programs call it. */
typedef enum {
    SELECT_ALL = 0,
    SELECT_MODEL = 1, /* all but optimizer state */
    SELECT_OPTIM = 2
} select_only_t;

typedef struct {
    const char *const *include; /* patterns; none: all */
    size_t num_include;
    const char *const *exclude;
    size_t num_exclude;
    select_only_t only;
} select_t;

/* Included and not excluded. */
bool select_match(const select_t *select, const char *name);

/**
 * Whether a pattern of fnmatch() fits a whole name; '*' crosses '/' and '.'.
 * "model/NAME" is also matched as NAME, so that the same pattern works for a
 * checkpoint with kinds and for its consolidated weights.
 *
 * A pattern that matches none of the names is most likely a mistake: used to
 * say so.
 */
bool select_pattern_match(const char *pattern, const char *name);

/* @return FSDP_ERR_INVALID_PARAM with the rule if it is none: "FROM=TO", both
 *         with a '*' at the end or both without. */
fsdp_status_t select_check_rule(const char *rule, fsdp_error_t *err);

/* Apply rules in order; each sees the result of those before it.
 * @return the new name, to be freed by the caller; NULL: no memory. */
char *select_rename(const char *const *rules, size_t num, const char *name);

/**
 * Read "PATTERN=DIM", a dimension that tensors are split along: below 0, from
 * the last one on.
 *
 * @param size_p  Bytes of the pattern.
 *
 * @return FSDP_ERR_INVALID_PARAM with the rule if it is none.
 */
fsdp_status_t select_parse_split(const char *rule, size_t *size_p, long *dim_p,
                                 fsdp_error_t *err);

/* The name without its kind: "model/x" and "optim/exp_avg/x" give "x"; others
 * stay as they are.  Points into @a name. */
const char *select_base(const char *name);

/* Does it start with "model/"; with "optim/"? */
bool select_is_model(const char *name);
bool select_is_optim(const char *name);

#endif
