/*
 * The archive of one chunk or value, as torch.save writes it: a stored zip
 * whose tensor data begins at a multiple of 64 bytes.
 */
#ifndef FSDP_DCP_ARCHIVE_H
#define FSDP_DCP_ARCHIVE_H

#include <jansson.h>

#include "ckpt/fsdp_ckpt.h"

/* What lies before the data and behind it. */
typedef struct {
    char *head, *tail;
    size_t head_size, tail_size;
} dcp_archive_t;

/**
 * Of a tensor that is stored row-major.
 *
 * @param bytes  Of its data, which lies between head and tail.
 * @param crc32  Of its data; the sizes do not depend on it.
 *
 * @return FSDP_ERR_UNSUPPORTED: PyTorch has no such type.
 */
fsdp_status_t dcp_archive_tensor(fsdp_dtype_t dtype, unsigned ndim,
                                 const uint64_t *dims, uint64_t bytes,
                                 uint32_t crc32, dcp_archive_t *archive_p,
                                 fsdp_error_t *err);

/**
 * Of a value, as value.h describes it: all of it is in the head.
 *
 * @param known_p  false, and no archive, if it holds a tensor or an object of
 *                 another class.
 */
fsdp_status_t dcp_archive_value(const json_t *value, bool *known_p,
                                dcp_archive_t *archive_p, fsdp_error_t *err);

void dcp_archive_free(dcp_archive_t *archive);

/* "float32", the name in torch; NULL: PyTorch has no such type. */
const char *dcp_dtype_name(fsdp_dtype_t dtype);

#endif
