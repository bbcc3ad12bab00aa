/*
 * Inside a conversion: its state, and the steps that have files of their own.
 */
#ifndef FSDP_CONVERT_H
#define FSDP_CONVERT_H

#include "ckpt/commit.h"
#include "ckpt/cut.h"
#include "ckpt/engine.h"
#include "ckpt/plan.h"
#include "ckpt/rules.h"
#include "ckpt/target.h"

/* A tensor that is wanted. */
typedef struct {
    uint64_t source; /* index into the source */
    char *name;      /* in the target */
    fsdp_dtype_t dtype;
} wanted_t;

typedef struct {
    const fsdp_ckpt_convert_config_t *config;
    const format_t *format;
    rules_stages_t stages;
    cut_t cut; /* config->include taken apart */
    uint32_t rank, world;
    catalog_t src, dst;
    wanted_t *wanted; /* in the order of the source's writer */
    uint64_t num_wanted;
    uint64_t *map; /* source tensor of each target tensor */
    target_lists_t lists;
    plan_t plan;
    commit_t *commit;
    char *dir;       /* where the files are while they are written */
    char *parent;    /* of the target */
    engine_sums_t sums; /* with several ranks, what of the source has passed */
    engine_sums_t spans; /* and what of its spans this one has copied */
    uint64_t total;     /* bytes that all ranks are to copy */
    uint64_t shared;    /* bytes that did not have to be written */
    bool is_dir;
} convert_t;

fsdp_status_t convert_no_memory(const convert_t *convert, fsdp_error_t *err);

/* Choose and name the tensors of the open source: sets wanted. */
fsdp_status_t convert_choose(convert_t *convert, fsdp_error_t *err);

/* Write a target that shows what lies in the source's files. */
fsdp_status_t convert_show(convert_t *convert, fsdp_error_t *err);

/* Give the target the metadata, digests, values and other names that go with
 * the tensors it has. */
fsdp_status_t convert_keep_rest(convert_t *convert, fsdp_error_t *err);

/**
 * Lay out the target and plan the copies: sets dst, lists, map and plan.
 *
 * @param single  Name of the file while it is written, if there is one only.
 */
fsdp_status_t convert_shape(convert_t *convert, const char *single,
                            fsdp_error_t *err);

/* Make the files of the target; with several ranks, each some of them. */
fsdp_status_t convert_create_files(convert_t *convert, fsdp_error_t *err);

/* The bytes of this rank are copied: sync them and tell rank 0, which waits
 * for all and joins and compares their checksums.  One rank does nothing. */
fsdp_status_t convert_share_part(convert_t *convert, fsdp_error_t *err);

#endif
