/*
 * What the parts of fsdp_ckpt_diff() share.
 *
 * Tensors are paired by name (diff_pair.c), then both sides are read in
 * batches and compared (diff_values.c); differences are told in the order of
 * names (diff.c).
 */
#ifndef FSDP_DIFF_H
#define FSDP_DIFF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/fsdp_ckpt.h"
#include "lib/util/select.h"

#define DIFF_NONE  UINT64_MAX
#define DIFF_SIDES 2

/* A name, and what has been seen of it so far. */
typedef struct {
    const char *name;            /* borrowed from the checkpoint */
    uint64_t tensor[DIFF_SIDES]; /* DIFF_NONE: not there */
    uint64_t numel, compared;    /* elements; compared only if `reads` */
    bool reads, differs;
    fsdp_ckpt_how_t how;
    uint64_t differing, first;
    double value[DIFF_SIDES]; /* of the first that differs */
    double max_abs, max_rel;
} diff_pair_t;

typedef struct diff_batch diff_batch_t;

typedef struct {
    const fsdp_ckpt_diff_config_t *config;
    select_t select;
    const char **patterns; /* config->include without slices */
    fsdp_ckpt_difference_f difference;
    void *arg;
    const char *paths[DIFF_SIDES];
    fsdp_ckpt_t *ckpts[DIFF_SIDES];
    fsdp_ckpt_info_t infos[DIFF_SIDES];
    bool kinds[DIFF_SIDES]; /* names begin with "model/" or "optim/" */
    diff_pair_t *pairs;     /* by name */
    size_t num_pairs, pairs_room;
    size_t next_pair;    /* the next to be put into a batch … */
    uint64_t next_first; /* … from this element on */
    size_t reported;     /* pairs before this one are done with */
    diff_batch_t *batches[2];
    size_t batch_room;         /* bytes a side */
    fsdp_ckpt_engine_t engine; /* of each reader */
    uint64_t done, total;      /* bytes of tensors, both sides */
    fsdp_ckpt_diff_result_t result;
} diff_t;

/* Fill diff->pairs; the caller frees them. */
fsdp_status_t diff_pair_tensors(diff_t *diff, fsdp_error_t *err);

/* Read and compare the values of all pairs, and report them. */
fsdp_status_t diff_compare_values(diff_t *diff, fsdp_error_t *err);

/* Report, in order, the pairs that are done. */
fsdp_status_t diff_report(diff_t *diff, fsdp_error_t *err);

#endif
