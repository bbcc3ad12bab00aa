/*
 * DeepSpeed ZeRO: what its reader's parts share.
 *
 *     DIR/latest                                   the tag
 *     DIR/TAG/mp_rank_00_model_states.pt           weights (stages 0 to 2)
 *     DIR/TAG/zero_pp_rank_R_mp_rank_00_model_states.pt       (stage 3)
 *     DIR/TAG/[bf16_|fp16_]zero_pp_rank_R_mp_rank_00_optim_states.pt
 *
 * Stages 1 and 2: the parameters of a group end to end are cut into equal
 * partitions, the last one padded.  Stage 3: each parameter is cut into equal
 * parts, the last ones padded; the parts of a rank lie end to end.
 */
#ifndef FSDP_ZERO_H
#define FSDP_ZERO_H

#include "ckpt/catalog.h"
#include "ckpt/format/zero_file.h"

/* A parameter that is trained. */
typedef struct {
    const char *name; /* in the catalog's arena */
    uint64_t numel;
    uint64_t start; /* in the flat array of its group */
    uint32_t group; /* of param_shapes */
    uint32_t ndim;
    uint64_t dims[FSDP_CKPT_MAX_NDIM];
} zero_param_t;

#define ZERO_MAX_KINDS 16

/* fp32, exp_avg, …: what is kept of each parameter. */
typedef struct {
    const char *name;
    uint64_t first;     /* index of the first parameter's tensor */
    fsdp_dtype_t dtype; /* of partitions */
    bool scalar;        /* one number a group: step */
} zero_kind_t;

typedef struct {
    catalog_t *cat;
    const char *prefix; /* of the optimizer's files: "", "bf16_", "fp16_" */
    uint32_t world;
    uint32_t num_groups;
    zero_param_t *params; /* by group, in the order of param_shapes */
    uint64_t num_params;
    zero_kind_t kinds[ZERO_MAX_KINDS];
    uint32_t num_kinds;
} zero_t;

/* The optimizer's state of one partition, as one rank has it. */
typedef struct {
    zero_flat_t flats[ZERO_MAX_KINDS]; /* numel 0: none */
} zero_part_t;

/* Read param_shapes. */
fsdp_status_t zero_read_params(zero_t *zero, const zero_file_t *model,
                               fsdp_error_t *err);

/* Open the optimizer's file of a rank and check that it is one of `world`. */
fsdp_status_t zero_open_optim(zero_t *zero, uint32_t rank, zero_file_t *file,
                              fsdp_error_t *err);

/**
 * Find the partitions of one group or sub-group.
 *
 * @param state  The optimizer's state of it (a dict), or 0.
 * @param fp32   The master weights of it.
 *
 * The first call decides which kinds there are, and adds their tensors; the
 * others must have the same.
 */
fsdp_status_t zero_find_part(zero_t *zero, const zero_file_t *file,
                             pickle_ref_t state, pickle_ref_t fp32,
                             zero_part_t *part, fsdp_error_t *err);

/* Elements [first, first + count) of a parameter lie in a flat, from element
 * @a at on. */
fsdp_status_t zero_add_piece(zero_t *zero, const zero_file_t *file,
                             uint32_t rank, uint32_t kind, uint64_t param,
                             uint64_t first, uint64_t count,
                             const zero_flat_t *flat, uint64_t at,
                             fsdp_error_t *err);

/* Add what the optimizer of a rank keeps that is no partition, as
 * optimizer.KEY. */
fsdp_status_t zero_add_optim_values(zero_file_t *file, fsdp_error_t *err);

/* The pieces of all ranks, and those values of rank 0. */
fsdp_status_t zero_add_stage12(zero_t *zero, const zero_file_t *model,
                               fsdp_error_t *err);
fsdp_status_t zero_add_stage3(zero_t *zero, zero_file_t *model,
                              fsdp_error_t *err);

#endif
