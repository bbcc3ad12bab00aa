/*
 * What the parts of fsdp-train share: settings, the running job, and the steps
 * that training, evaluation, sampling and replay have in common.
 *
 *     fsdp-train.c    options, main
 *     train_config.c  settings completed from a checkpoint or a model, saved
 *     train_setup.c   the job, data and model; errors; the end
 *     train_loop.c    training and evaluation
 *     train_report.c  what is printed
 *     train_sample.c  writing text
 *     train_replay.c  comparing with a recorded run
 */
#ifndef FSDP_TRAIN_H
#define FSDP_TRAIN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include "bin/cli.h"
#include "fsdp.h"
#include "lib/nn/data.h"
#include "lib/nn/gpt2.h"

/* --- Settings ------------------------------------------------------------- */

typedef enum {
    MODE_TRAIN = 0,
    MODE_EVAL = 1,
    MODE_SAMPLE = 2,
    MODE_REPLAY = 3
} train_mode_t;

/* Numbers on which losses depend: saved with a checkpoint, taken from it when
 * a run is resumed without them. */
typedef enum {
    HYPER_LR = 0,
    HYPER_MIN_LR,
    HYPER_WARMUP,
    HYPER_DECAY_STEPS,
    HYPER_BETA1,
    HYPER_BETA2,
    HYPER_EPS,
    HYPER_WEIGHT_DECAY,
    HYPER_CLIP,
    HYPER_BATCH,
    HYPER_SEQ,
    HYPER_MICRO_BATCHES,
    HYPER_SEED,
    NUM_HYPERS
} hyper_t;

typedef struct {
    const char *key;  /* as saved, and as an option of that name */
    const char *what; /* a noun phrase */
    double initial;   /* NaN: follows from others */
    double least, most;
    bool whole; /* an integer */
} hyper_info_t;

extern const hyper_info_t hyper_info[NUM_HYPERS];

typedef struct {
    train_mode_t mode;
    cli_list_t data; /* files */

    /* The model; 0: not given. */
    const char *model; /* a preset, or a config.json */
    uint32_t layers, width, heads, positions, vocab;

    double hyper[NUM_HYPERS]; /* NaN: not given */
    int64_t steps;

    fsdp_strategy_t strategy;
    uint32_t shard; /* F, for hybrid */
    uint32_t prefetch;
    bool reshard_root;
    int param_dtype, reduce_dtype; /* fsdp_precision_t; -1: not given */
    uint32_t threads;

    const char *save_dir;
    int64_t save_every; /* 0: at the end only */
    uint32_t save_files;
    bool sync_save;
    const char *resume, *init_from;

    int64_t valid_every; /* 0: never */
    uint32_t valid_count;

    const char *prompt;
    uint32_t sample_tokens;
    double temperature;

    const char *replay;

    double deadline;
    bool json, quiet;
    const char *log;
} settings_t;

/* Batch, sequence length and the like. */
static inline uint32_t hyper_u32(const settings_t *set, hyper_t hyper)
{
    return (uint32_t)set->hyper[hyper];
}

/* --- The running job ------------------------------------------------------ */

typedef struct {
    settings_t *set;
    fsdp_job_t *job;
    fsdp_job_info_t info;
    gpt2_config_t model;
    fsdp_precision_t param_dtype, reduce_dtype;
    data_t *data;   /* NULL without files */
    double entropy; /* order 0, of the text; NaN if unknown */
    fsdp_t *fsdp;
    gpt2_t *gpt2;
    int32_t *tokens; /* of a micro-batch */
    FILE *log;       /* rank 0's, or NULL */
    char *source;    /* the checkpoint that parameters come from, or NULL */
    bool stop;       /* a rank got SIGTERM; the same on all ranks */
    bool resumed;    /* with optimizer state and step */
    json_t *saved;   /* what was saved beside its tensors, or NULL */
} train_t;

/* Of one step, or of all. */
typedef struct {
    double seconds, data_seconds;
    fsdp_counters_t counters; /* the differences */
    uint64_t tokens;
} train_cost_t;

typedef struct {
    int64_t step; /* counted from 1 */
    double loss, norm, lr;
    const double *micro_loss; /* G of them, borrowed until the next step */
    train_cost_t cost;
} train_step_t;

/* --- train_config.c ------------------------------------------------------- */

/* Defaults of what is not given. */
void settings_init(settings_t *set);

/**
 * Complete the settings: what is not given comes from the checkpoint that is
 * resumed, then from defaults.  Finds the model's configuration; a vocabulary
 * of 0 is that of the text.  Rank 0 warns of what differs from the checkpoint.
 * Local.
 */
fsdp_status_t config_complete(train_t *train, fsdp_error_t *err);

/* Once the text is open: warn if it is another one than the checkpoint's. */
void config_compare_data(const train_t *train);

/* What is saved beside the tensors; the caller frees it. */
char *config_to_json(const train_t *train);

/* Learning rate of a step, counted from 0: linear warm-up, then a cosine. */
double config_lr(const settings_t *set, int64_t step);

/* --- train_setup.c -------------------------------------------------------- */

/* Join the job and catch SIGTERM.  On error nothing is left behind. */
fsdp_status_t setup_job(train_t *train, fsdp_error_t *err);

/* All ranks get the error of the lowest rank that has one.  Collective. */
fsdp_status_t setup_agree(train_t *train, fsdp_status_t status,
                          fsdp_error_t *err);

/* Open the text.  Local. */
fsdp_status_t setup_data(train_t *train, fsdp_error_t *err);

/* The sharded model with initial values: for batch x seq tokens, and backward
 * passes if @a backward.  Collective. */
fsdp_status_t setup_model(train_t *train, uint32_t batch, uint32_t seq,
                          bool backward, fsdp_error_t *err);

/* Load what --resume or --init-from name, if anything.  Collective. */
fsdp_status_t setup_load(train_t *train, fsdp_error_t *err);

/* Did SIGTERM come? */
bool setup_stopped(void);

/**
 * The end: say the error, release everything, return the exit code.  If the
 * job is broken, each rank says so itself and ends here by _exit().
 *
 * @param code  Where there is no error.
 */
int setup_end(train_t *train, fsdp_status_t status, int code,
              const fsdp_error_t *err);

/* --- Modes ---------------------------------------------------------------- */

/* Each sets the model up and does all its work.  Collective. */
fsdp_status_t loop_train(train_t *train, fsdp_error_t *err);
fsdp_status_t loop_eval(train_t *train, fsdp_error_t *err);
fsdp_status_t sample_run(train_t *train, fsdp_error_t *err);
/* @param within_p  Whether all quantities are within their tolerances. */
fsdp_status_t replay_run(train_t *train, bool *within_p, fsdp_error_t *err);

/* --- train_report.c: rank 0 prints, others do nothing --------------------- */

void report_start(const train_t *train);
void report_step(const train_t *train, const train_step_t *step);
/* @param count  Micro-batches. */
void report_valid(const train_t *train, int64_t step, double loss,
                  uint32_t count, double seconds);
void report_save_begin(const train_t *train, int64_t step,
                       const fsdp_digest_t *digest, double seconds);
void report_saved(const train_t *train, const fsdp_save_status_t *status);
/* @param steps  How many were made by this run, in @a total. */
void report_end(const train_t *train, int64_t steps, const train_cost_t *total,
                double save_seconds, const fsdp_digest_t *digest);

/* An event for --json and --log; the reference is taken over. */
void report_event(const train_t *train, json_t *event);

/* A line for people: nothing with --json or -q. */
__attribute__((format(printf, 2, 3))) void report_line(const train_t *train,
                                                       const char *fmt, ...);

#endif
