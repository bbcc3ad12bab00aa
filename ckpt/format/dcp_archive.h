/*
 * The archive of one chunk or value, as torch.save writes it: a stored zip
 * whose tensor data begins at a multiple of 64 bytes.
 */
#ifndef FSDP_DCP_ARCHIVE_H
#define FSDP_DCP_ARCHIVE_H

#include "ckpt/catalog.h"

/* What lies before the data and behind it. */
typedef struct {
    char *head, *tail;
    size_t head_size, tail_size;
} dcp_archive_t;

/**
 * Of a chunk of a tensor, stored row-major.
 *
 * @param dims   Of the chunk.
 * @param bytes  Of its data, which lies between head and tail.
 * @param crc32  Of its data; the sizes do not depend on it.
 *
 * @return FSDP_ERR_UNSUPPORTED: PyTorch has no such type.
 */
fsdp_status_t dcp_archive_tensor(const catalog_tensor_t *tensor,
                                 const uint64_t *dims, uint64_t bytes,
                                 uint32_t crc32, dcp_archive_t *archive_p,
                                 fsdp_error_t *err);

/* Bytes of an archive, and the tensor whose data follows. */
typedef struct {
    char *data;
    size_t size;
    uint32_t tensor; /* in the catalog; CATALOG_NONE: the archive ends */
} dcp_part_t;

/* The archive of a value, with the tensors in it. */
typedef struct {
    dcp_part_t *parts;
    size_t num;
    uint64_t size; /* with the data of tensors */
} dcp_value_t;

/**
 * Of a value.  The checksums of the data of its tensors are those of their
 * pieces, of which each has one at most; the sizes do not depend on them.
 *
 * @param cat  Sealed.
 *
 * @return FSDP_ERR_UNSUPPORTED if it holds what cannot be written: the message
 *         names it.
 */
fsdp_status_t dcp_archive_value(const catalog_t *cat, uint64_t value,
                                dcp_value_t *archive_p, fsdp_error_t *err);

void dcp_value_free(dcp_value_t *archive);

void dcp_archive_free(dcp_archive_t *archive);

/* "float32", the name in torch; NULL: PyTorch has no such type. */
const char *dcp_dtype_name(fsdp_dtype_t dtype);

#endif
