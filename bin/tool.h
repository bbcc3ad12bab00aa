/*
 * What the checkpoint tools share: the options that say how to use the
 * machine and how to print, and ways to show a checkpoint.
 */
#ifndef FSDP_TOOL_H
#define FSDP_TOOL_H

#include <argp.h>
#include <stdbool.h>

#include "bin/cli.h"
#include "ckpt/fsdp_ckpt.h"

typedef struct {
    bool json;
    bool quiet;
    fsdp_ckpt_engine_t engine;
} tool_t;

/* Options --jobs, --max-mem, --json and --quiet, to be a child of the
 * program's parser, which gives it a tool_t in ARGP_KEY_INIT. */
extern const struct argp tool_argp;
extern const struct argp_child tool_children[]; /* that child alone */

/* Groups of options in --help: those of the program come before. */
enum { TOOL_GROUP = 1 };

/* "model" or "optim": sets one of the two. */
void tool_parse_only(const struct argp_state *state, const char *text,
                     bool *model_p, bool *optim_p);

/* Begin long work: progress and a clean stop on signals.  progress_end()
 * belongs to it. */
void tool_begin(tool_t *tool, const char *what);

/* "[768, 64]", "[]" for a scalar; the caller frees it. */
char *tool_shape(uint32_t ndim, const uint64_t *dims);

/* "hdf5, step 100, 4 ranks, hybrid:2": what is known; the caller frees it. */
char *tool_summary(const fsdp_ckpt_info_t *info);

/* Bytes a second as "1.25 GiB/s", "-" in no time. */
char *tool_rate(uint64_t bytes, double seconds);

/* An error's text and exit code, as JSON if the user wants that. */
int tool_fail(const tool_t *tool, const fsdp_error_t *err);

#endif
