/*
 * PyTorch Distributed Checkpoint: a directory with `.metadata`, one pickle
 * that says where each chunk of each tensor lies, and `.distcp` files, rows of
 * archives as torch.save writes them, one for each chunk or value.
 */
#ifndef FSDP_DCP_H
#define FSDP_DCP_H

#include <stdbool.h>

#include "ckpt/format.h"
#include "ckpt/format/dcp_meta.h"

#define DCP_METADATA ".metadata"

/**
 * Add the tensors and values of one such directory to a catalog that is not
 * sealed.
 *
 * @param sub  The directory below the catalog's root, "" for the root.
 *
 * @return FSDP_ERR_CORRUPT, naming file, tensor or record;
 *         FSDP_ERR_UNSUPPORTED: compressed records, big-endian data.
 */
fsdp_status_t dcp_load(catalog_t *cat, const char *sub, fsdp_error_t *err);

/* A piece as a box of its tensor, ndim entries each.
 * @return false if it is neither one nor rows. */
bool dcp_chunk(const catalog_t *cat, const catalog_piece_t *piece,
               uint64_t *start, uint64_t *count);

/**
 * Which tensors of a sealed catalog are in values, so that they are no entries
 * of their own.
 *
 * @param inner_p  For each tensor; the caller frees it.
 */
fsdp_status_t dcp_find_inner(const catalog_t *cat, bool **inner_p,
                             fsdp_error_t *err);

/**
 * Of a target that is not sealed: put the tensors in values, whole, where the
 * values will be, and add what PyTorch's optimizers keep beside their tensors.
 */
fsdp_status_t dcp_prepare(catalog_t *cat, fsdp_error_t *err);

/**
 * Which file of the metadata should a file be, by the places of its archives?
 *
 * @param file  Of the metadata, open as @a fd, @a size bytes long.
 *
 * @return its path; NULL: itself, or none of them.
 */
const char *dcp_twin(const dcp_meta_t *meta, uint32_t file, int fd,
                     uint64_t size);

/* For the table of formats, with the writer. */
format_extra_t dcp_extra(const catalog_t *cat, const char *path, uint64_t size);
fsdp_status_t dcp_create(catalog_t *cat, uint32_t file, const uint64_t *pieces,
                         uint64_t num, const char *path, fsdp_error_t *err);
fsdp_status_t dcp_finish(const catalog_t *cat, const char *dir,
                         fsdp_error_t *err);

#endif
