/*
 * The compact tables of index.h5 and of each shard file, as they lie on disk:
 * packed and little-endian (doc/checkpoint-format.md).
 */
#ifndef FSDP_HDF5_TABLE_H
#define FSDP_HDF5_TABLE_H

#include <stdint.h>

#include "ckpt/catalog.h"
#include "ckpt/format/hdf5_file.h"
#include "ckpt/format/manifest.h"

/* /tensors: sorted by name. */
typedef struct {
    uint64_t nelem;
    uint64_t name_off;    /* of its name in /names; names have no '\0' */
    uint64_t dim_off;     /* of its first dimension in /dims */
    uint64_t piece_first; /* of its pieces in /pieces */
    uint32_t piece_count;
    uint16_t name_len; /* bytes */
    uint8_t rank;      /* number of dimensions */
    uint8_t dtype;     /* fsdp_dtype_t */
} hdf5_tensor_row_t;

/* /pieces: those of a tensor by start. */
typedef struct {
    uint64_t start; /* elements of the tensor */
    uint64_t count;
    uint64_t offset;    /* bytes in its file */
    uint32_t tensor;    /* row of /tensors */
    uint32_t file;      /* shard-FILE.h5 */
    uint32_t crc_first; /* its first block in the file's /crc32c */
    uint32_t path;      /* it lies in the group /rank-PATH */
} hdf5_piece_row_t;

_Static_assert(sizeof(hdf5_tensor_row_t) == 40, "as on disk");
_Static_assert(sizeof(hdf5_piece_row_t) == 40, "as on disk");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "files are little-endian; big-endian hosts need swaps here");

/* All four tables of a file. */
typedef struct {
    hdf5_tensor_row_t *tensors;
    hdf5_piece_row_t *pieces;
    char *names;
    uint64_t *dims;
    uint64_t num_tensors, num_pieces, num_names, num_dims;
} hdf5_rows_t;

/**
 * Make the tables of one shard file or of the index.
 *
 * @param cat    Sealed.
 * @param file   Only what lies in this file, and in file 0 the tensors without
 *               elements too; CATALOG_NONE: everything.
 * @param rows_p The caller frees it with hdf5_rows_free().
 */
fsdp_status_t hdf5_rows_make(const catalog_t *cat, uint32_t file,
                             hdf5_rows_t *rows_p, fsdp_error_t *err);

/* Does a row of a tensor name what is in the tables, its pieces beginning at
 * number @a next_piece? */
bool hdf5_row_fits(const hdf5_rows_t *rows, const hdf5_tensor_row_t *row,
                   uint64_t next_piece);

void hdf5_rows_free(hdf5_rows_t *rows);

/* Add the tables to an HDF5 file.
 * @param index_p  Where they are; may be NULL. */
fsdp_status_t hdf5_rows_add(const hdf5_rows_t *rows, hdf5_file_t *file,
                            manifest_index_t *index_p, fsdp_error_t *err);

/**
 * Read the tables that a manifest describes.
 *
 * @param path  Of index.h5, for which size and checksum are checked.
 *
 * @return FSDP_ERR_CORRUPT if they do not fit.
 */
fsdp_status_t hdf5_rows_read(const char *path, const manifest_index_t *index,
                             hdf5_rows_t *rows_p, fsdp_error_t *err);

#endif
