/*
 * Checksums that cover more than what is read: the CRC-32 of a whole storage
 * of a zip archive, and those of boxes.
 */
#ifndef FSDP_READ_CHECK_H
#define FSDP_READ_CHECK_H

#include "ckpt/catalog.h"

/* Which checksums were compared, so that none is twice.  Zeros are none. */
typedef struct {
    bool *pieces; /* one for each piece of the catalog */
    bool *spans;
} read_check_t;

/**
 * Read all of each piece of which ranges touch a part, if its checksum is not
 * compared by reading the ranges alone, and all of the span that it lies in.
 *
 * @param engine   NULL: the defaults.
 * @param bytes_p  Bytes read from files are added.
 *
 * @return FSDP_ERR_CORRUPT, naming the file, if a checksum does not fit.
 */
fsdp_status_t read_check(read_check_t *check, const catalog_t *cat,
                         const fsdp_ckpt_range_t *ranges, size_t num,
                         const fsdp_ckpt_engine_t *engine, uint64_t *bytes_p,
                         fsdp_error_t *err);

void read_check_free(read_check_t *check);

#endif
