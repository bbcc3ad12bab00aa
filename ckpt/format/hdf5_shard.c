#include "config.h"

#include <inttypes.h>
#include <stdlib.h>

#include "ckpt/format/hdf5_file.h"
#include "ckpt/format/hdf5_name.h"
#include "ckpt/format/hdf5_table.h"
#include "ckpt/format/hdf5_write.h"
#include "lib/util/check.h"
#include "lib/util/io.h"

/* Pieces of at least this many bytes come first, each aligned. */
#define LARGE_PIECE 65536

/* The dataset of one piece: rows of elements, a scalar for a 0-d tensor. */
static fsdp_status_t add_piece(catalog_t *cat, catalog_piece_t *piece,
                               hdf5_file_t *file, fsdp_error_t *err)
{
    const catalog_tensor_t *tensor = &cat->tensors[piece->tensor];
    hdf5_dataset_t dataset = {
        .dtype = (fsdp_dtype_t)tensor->dtype,
        .ndim = (tensor->ndim == 0) ? 0 : 1,
        .dims = &piece->count,
        .name = tensor->name,
        .is_piece = true,
        .shape_ndim = tensor->ndim,
        .shape = cat->dims + tensor->dims_first,
        .first = piece->first,
    };
    fsdp_status_t status;
    char *inside, *path;

    if (piece->first * (fsdp_dtype_bits(dataset.dtype) % 8) % 8 != 0) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "tensor %s: a piece that starts at element "
                              "%" PRIu64 " splits a byte",
                              tensor->name, piece->first);
    }

    FSDP_TRY(hdf5_path_make(cat, tensor->name, HDF5_IN_SHARD, &inside, err));
    path = io_path("rank-%05" PRIu32 "/%s", piece->rank, inside);
    free(inside);
    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "tensor %s: no memory",
                              tensor->name);
    }

    dataset.path = path;
    status = hdf5_file_add(file, &dataset, &piece->offset, err);
    free(path);

    return status;
}

static fsdp_status_t add_pieces(catalog_t *cat, const uint64_t *pieces,
                                uint64_t num, bool large, hdf5_file_t *file,
                                fsdp_error_t *err)
{
    for (uint64_t i = 0; i < num; i++) {
        catalog_piece_t *piece = &cat->pieces[pieces[i]];

        if ((catalog_piece_bytes(cat, piece) >= LARGE_PIECE) == large) {
            FSDP_TRY(add_piece(cat, piece, file, err));
        }
    }

    return FSDP_OK;
}

static fsdp_status_t fill_shard(catalog_t *cat, uint32_t number,
                                const uint64_t *pieces, uint64_t num,
                                hdf5_file_t *file, fsdp_error_t *err)
{
    catalog_file_t *entry = &cat->files[number];
    fsdp_status_t status;
    hdf5_rows_t rows;

    FSDP_TRY(hdf5_file_set_text(file, "format", "fsdp-shard", err));
    FSDP_TRY(hdf5_file_set_number(file, "version", MANIFEST_VERSION, err));
    FSDP_TRY(hdf5_file_set_number(file, "file", number, err));

    FSDP_TRY(add_pieces(cat, pieces, num, true, file, err));
    FSDP_TRY(add_pieces(cat, pieces, num, false, file, err));
    FSDP_TRY(hdf5_file_add_table(file, "crc32c", HDF5_TABLE_U32,
                                 entry->crc_count, NULL, &entry->table, err));

    FSDP_TRY(hdf5_rows_make(cat, number, &rows, err));
    status = hdf5_rows_add(&rows, file, NULL, err);
    hdf5_rows_free(&rows);

    return status;
}

fsdp_status_t hdf5_shard_create(catalog_t *cat, uint32_t file,
                                const uint64_t *pieces, uint64_t num,
                                const char *path, fsdp_error_t *err)
{
    hdf5_file_t *shard;
    fsdp_status_t status;

    FSDP_TRY(hdf5_file_begin(path, false, num, &shard, err));
    status = fill_shard(cat, file, pieces, num, shard, err);
    if (status == FSDP_OK) {
        status = hdf5_file_place(shard, &cat->files[file].size, NULL, err);
    }
    hdf5_file_free(shard);

    return status;
}
