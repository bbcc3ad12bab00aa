/*
 * Writing DeepSpeed's universal checkpoints.
 */
#ifndef FSDP_UNIVERSAL_H
#define FSDP_UNIVERSAL_H

#include "ckpt/catalog.h"

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
