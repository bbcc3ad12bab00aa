/*
 * Checksums behind the end of an HDF5 file.
 *
 * HDF5 ignores what lies behind its own end, and cuts it off when it changes
 * the file.  Our single files keep there a table of the block checksums of
 * their data, and the checksum of HDF5's own bytes: an altered file is refused
 * before the HDF5 library, which may crash over it, sees it.
 */
#ifndef FSDP_HDF5_TRAILER_H
#define FSDP_HDF5_TRAILER_H

#include "ckpt/catalog.h"

/* The data of one dataset; on disk as it is, little-endian, by offset. */
typedef struct {
    uint64_t offset; /* bytes in the file */
    uint64_t size;
    uint64_t crc_first; /* its first block in the table */
} hdf5_trailer_row_t;

typedef struct {
    uint64_t table; /* where the u32 table lies in the file */
    uint64_t num_crcs;
    hdf5_trailer_row_t *rows;
    uint64_t num_rows; /* 0, and rows NULL: the file has no trailer */
} hdf5_trailer_t;

/**
 * Append a trailer to the only file of a catalog, with room for the checksums
 * of its pieces; sets the file's size and table.
 *
 * @param gaps_crc32c  Of what is no data, end to end.
 */
fsdp_status_t hdf5_trailer_append(catalog_t *cat, uint32_t file,
                                  const char *path, uint32_t gaps_crc32c,
                                  fsdp_error_t *err);

/**
 * Read a file's trailer, if it has one, and check HDF5's own bytes by it.
 *
 * @param trailer_p  The caller frees trailer_p->rows.
 *
 * @return FSDP_ERR_CORRUPT if they were altered.
 */
fsdp_status_t hdf5_trailer_read(const char *path, uint64_t size,
                                hdf5_trailer_t *trailer_p, fsdp_error_t *err);

/* The row of the data at @a offset, or NULL. */
const hdf5_trailer_row_t *hdf5_trailer_find(const hdf5_trailer_t *trailer,
                                            uint64_t offset);

#endif
