/*
 * The checksums of a source's blocks, while their bytes pass in any order and
 * by several threads or ranks.
 */
#ifndef FSDP_ENGINE_SUMS_H
#define FSDP_ENGINE_SUMS_H

#include <stdatomic.h>

#include "ckpt/catalog.h"

/* What has passed of each checksum of a source, of its blocks or its spans: the
 * xor of what the stretches give, and bytes. */
typedef struct {
    _Atomic uint32_t *xors;
    _Atomic uint64_t *passed;
} engine_sums_t;

/* Zeros, for @a num checksums. */
fsdp_status_t engine_sums_init(engine_sums_t *sums, uint64_t num,
                               fsdp_error_t *err);
void engine_sums_free(engine_sums_t *sums);

/* All parts of a plan have run: compare the blocks that have passed, none of
 * them may have in part. */
fsdp_status_t engine_check_sums(const catalog_t *src, const engine_sums_t *sums,
                                fsdp_error_t *err);

/* The checksums of a piece, and how many bytes each is of. */
uint64_t engine_num_sums(const catalog_t *src, const catalog_piece_t *piece);
uint64_t engine_sum_bytes(const catalog_t *src, const catalog_piece_t *piece,
                          uint64_t block);

/* No block may have passed in part, although the plan was made so that none
 * does: then pieces overlap.  Not asked of zip archives, parts of whose pieces
 * are read without their checksum. */
fsdp_status_t engine_check_passed(const catalog_t *src,
                                  const engine_sums_t *sums, fsdp_error_t *err);

/* FSDP_ERR_CORRUPT for a block, naming file, tensor and elements. */
fsdp_status_t engine_damaged(const catalog_t *src, uint64_t index,
                             uint64_t block, fsdp_error_t *err);

#endif
