/*
 * Writing DeepSpeed's universal checkpoints.
 */
#ifndef FSDP_UNIVERSAL_H
#define FSDP_UNIVERSAL_H

#include "ckpt/catalog.h"

/* Files of the tag's directory: what DeepSpeed and its client keep, with the
 * weights for stages 1 and 2. */
#define UNIVERSAL_STAGE12   "mp_rank_00_model_states.pt"
#define UNIVERSAL_STAGE3    "zero_pp_rank_0_mp_rank_00_model_states.pt"
#define UNIVERSAL_OPTIMIZER "zero/optimizer_state.pt"

/* In that of the optimizer, of our files only: the keys that were added for
 * DeepSpeed, which are not the source's. */
#define UNIVERSAL_ADDED "added_by_libfsdp"

/* Directories of a parameter's name, which has slashes. */
#define UNIVERSAL_DEPTH_MAX 64

/**
 * Give a target that has its tensors, values and step, and is not yet sealed,
 * its files and pieces.
 *
 * @return FSDP_ERR_UNSUPPORTED, naming what this format has no place for.
 */
fsdp_status_t universal_shape(catalog_t *cat, fsdp_error_t *err);

/* As format.h says. */
fsdp_status_t universal_create(catalog_t *cat, uint32_t file,
                               const uint64_t *pieces, uint64_t num,
                               const char *path, fsdp_error_t *err);
fsdp_status_t universal_finish(const catalog_t *cat, const char *dir,
                               fsdp_error_t *err);

#endif
