/*
 * Which tensors the user means: patterns over names, the same in all programs.
 */
#ifndef FSDP_SELECT_H
#define FSDP_SELECT_H

#include <stdbool.h>
#include <stddef.h>

/* Names of optimizer state begin with this, those of parameters, where names
 * have kinds at all, with "model/". */
#define SELECT_MODEL "model/"
#define SELECT_OPTIM "optim/"

typedef struct {
    const char *const *include; /* none: all */
    size_t num_include;
    const char *const *exclude;
    size_t num_exclude;
    bool only_model; /* no optimizer state */
} select_t;

/**
 * Whether a pattern of fnmatch() fits a whole name; '*' crosses '/' and '.'.
 * "model/NAME" is also matched as NAME, so that the same pattern works for a
 * checkpoint with kinds and for its consolidated weights.
 */
bool select_matches(const char *pattern, const char *name);

/* Included and not excluded. */
bool select_wants(const select_t *select, const char *name);

#endif
