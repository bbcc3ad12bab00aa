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
#include "lib/job/launch.h"

typedef struct {
    bool json;
    bool quiet;    /* also on all ranks but the first */
    bool progress; /* also where stderr is no terminal */
    fsdp_ckpt_engine_t engine;
    launch_t launch; /* which of several ranks this one is */
    bool alone;
    double deadline; /* 0: the default */
} tool_t;

/* Options --jobs, --max-mem, --json, --progress and --quiet, to be a child of
 * the program's parser, which gives it a tool_t in ARGP_KEY_INIT. */
extern const struct argp tool_argp;
extern const struct argp_child tool_children[]; /* that child alone */

/* Options --alone and --deadline of programs that divide their work among
 * ranks; the same. */
extern const struct argp tool_ranks_argp;

/* Parse the command line of such a program, and find out which rank it is. */
void tool_parse_ranks(tool_t *tool, const char *program,
                      const struct argp *argp, int argc, char **argv,
                      void *settings);

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

/* The one argument of a program: @a what names it if there is another. */
void tool_parse_argument(const struct argp_state *state, const char *what,
                         const char *text, const char **argument_p);

/* {key: path, "why": text}; without the second where that is empty. */
json_t *tool_json_entry(const char *key, const char *path, const char *text);

/* A result as it comes: an item of a list of the JSON object, which is taken
 * over, or a line on standard output, which the user may not want. */
__attribute__((format(printf, 4, 5))) void tool_line(const tool_t *tool,
                                                     json_t *list, json_t *item,
                                                     const char *fmt, ...);

/* An error's text and exit code, as JSON if the user wants that.  What all
 * ranks know is said by the first. */
int tool_fail(const tool_t *tool, const fsdp_error_t *err);

/* Say that the recipe that was given had no use. */
void tool_warn_recipe(bool unused);

/* The error that no tensor's name fits a pattern, with the nearest one. */
fsdp_status_t tool_no_tensor(const fsdp_ckpt_t *ckpt, const char *pattern,
                             fsdp_error_t *err);

#endif
