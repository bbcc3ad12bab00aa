/*
 * Sharded HDF5 checkpoints: how they are recognised and read.
 *
 * The manifest says where the index's tables lie, so that reading needs no
 * HDF5: each byte that is used is under a checksum, and nothing that a damaged
 * file could say reaches the HDF5 library.
 */
#include "config.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/format.h"
#include "ckpt/format/hdf5_name.h"
#include "ckpt/format/hdf5_table.h"
#include "ckpt/format/hdf5_write.h"
#include "ckpt/format/manifest.h"
#include "lib/util/check.h"
#include "lib/util/io.h"

static bool has_file(const char *dir, const char *name)
{
    char *path = io_path("%s/%s", dir, name);
    bool there = path != NULL && access(path, F_OK) == 0;

    free(path);
    return there;
}

/* Others call a file so too. */
static bool has_our_manifest(const char *dir)
{
    char *path = io_path("%s/" MANIFEST_NAME, dir);
    char head[256] = "";
    bool ours = path != NULL &&
                io_read_head(path, head, sizeof(head) - 1) > 0 &&
                strstr(head, MANIFEST_FORMAT) != NULL;

    free(path);
    return ours;
}

static bool probe(const format_look_t *look)
{
    return look->is_dir && (has_file(look->path, HDF5_INDEX_NAME) ||
                            has_file(look->path, "shard-00000.h5") ||
                            has_our_manifest(look->path));
}

/* Read a file's table of block checksums into the catalog. */
static fsdp_status_t read_blocks(catalog_t *cat, uint32_t number,
                                 fsdp_error_t *err)
{
    const catalog_file_t *file = &cat->files[number];
    char *path = catalog_file_path(cat, number);
    fsdp_status_t status;
    int fd;

    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              file->path);
    }

    status = io_open(path, O_RDONLY, 0, &fd, err);
    if (status == FSDP_ERR_NOT_FOUND) {
        status =
            fsdp_error_set(err, FSDP_ERR_CORRUPT,
                           "%s: missing, though the manifest lists it", path);
    } else if (status == FSDP_OK) {
        if (file->crc_count > 0) {
            status = io_pread(fd, cat->crcs + file->crc_first,
                              file->crc_count * sizeof(*cat->crcs), file->table,
                              path, err);
        }
        close(fd);
    }
    free(path);

    return status;
}

/* What catalog_add_piece() and catalog_seal() cannot know. */
static bool piece_fits(const catalog_t *cat, const hdf5_piece_row_t *row,
                       uint64_t tensor, fsdp_dtype_t dtype)
{
    uint64_t bytes, blocks;

    if (row->tensor != tensor || row->file >= cat->num_files ||
        row->path >= (cat->mesh.world > 0 ? cat->mesh.world : UINT32_MAX) ||
        !dtype_bytes(dtype, row->count, &bytes)) {
        return false;
    }

    blocks = catalog_blocks(bytes);
    return row->crc_first <= cat->files[row->file].crc_count &&
           blocks <= cat->files[row->file].crc_count - row->crc_first;
}

static fsdp_status_t add_pieces(catalog_t *cat, const hdf5_rows_t *rows,
                                uint64_t number, uint64_t tensor,
                                const char *name, fsdp_error_t *err)
{
    const hdf5_tensor_row_t *row = &rows->tensors[number];

    for (uint64_t i = 0; i < row->piece_count; i++) {
        const hdf5_piece_row_t *from = &rows->pieces[row->piece_first + i];
        catalog_piece_t piece = {
            .first = from->start,
            .count = from->count,
            .offset = from->offset,
            .tensor = (uint32_t)tensor,
            .file = from->file,
            .rank = from->path,
            .box = CATALOG_NONE,
        };

        if (!piece_fits(cat, from, number, (fsdp_dtype_t)row->dtype)) {
            return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                  "%s/%s: piece %" PRIu64
                                  " of tensor %.200s makes no sense",
                                  cat->root, HDF5_INDEX_NAME, i, name);
        }
        piece.crc_first = cat->files[from->file].crc_first + from->crc_first;
        FSDP_TRY(catalog_add_piece(cat, &piece, err));
    }

    return FSDP_OK;
}

static fsdp_status_t add_tensors(catalog_t *cat, const manifest_t *manifest,
                                 const hdf5_rows_t *rows, char *name,
                                 fsdp_error_t *err)
{
    uint64_t next_piece = 0, tensor;

    for (uint64_t i = 0; i < rows->num_tensors; i++) {
        const hdf5_tensor_row_t *row = &rows->tensors[i];

        if (!hdf5_row_fits(rows, row, next_piece)) {
            return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                  "%s/%s: row %" PRIu64
                                  " of /tensors points outside the tables",
                                  cat->root, HDF5_INDEX_NAME, i);
        }
        memcpy(name, rows->names + row->name_off, row->name_len);
        name[row->name_len] = '\0';
        FSDP_TRY(catalog_add_tensor(cat, name, (fsdp_dtype_t)row->dtype,
                                    row->rank, rows->dims + row->dim_off,
                                    manifest_unit(manifest, name), &tensor,
                                    err));
        if (cat->tensors[tensor].numel != row->nelem) {
            return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                  "%s/%s: tensor %.200s has another number of "
                                  "elements than its shape says",
                                  cat->root, HDF5_INDEX_NAME, name);
        }
        FSDP_TRY(add_pieces(cat, rows, i, tensor, name, err));
        next_piece += row->piece_count;
    }
    if (next_piece != rows->num_pieces) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s/%s: %" PRIu64 " pieces belong to no tensor",
                              cat->root, HDF5_INDEX_NAME,
                              rows->num_pieces - next_piece);
    }

    return FSDP_OK;
}

static fsdp_status_t read_index(catalog_t *cat, const manifest_t *manifest,
                                fsdp_error_t *err)
{
    char *path = io_path("%s/%s", cat->root, HDF5_INDEX_NAME);
    char *name = malloc(HDF5_NAME_MAX + 1);
    manifest_index_t index;
    hdf5_rows_t rows = {0};
    fsdp_status_t status;

    if (path == NULL || name == NULL) {
        status =
            fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", cat->root);
        goto done;
    }

    manifest_get_index(manifest, &index);
    FSDP_TRY_GOTO(hdf5_rows_read(path, &index, &rows, err), done);
    status = add_tensors(cat, manifest, &rows, name, err);
    hdf5_rows_free(&rows);
done:
    free(name);
    free(path);
    return status;
}

static fsdp_status_t fill(catalog_t *cat, const manifest_t *manifest,
                          fsdp_error_t *err)
{
    FSDP_TRY(manifest_fill(manifest, cat, err));
    for (uint32_t i = 0; i < cat->num_files; i++) {
        FSDP_TRY(read_blocks(cat, i, err));
    }
    FSDP_TRY(read_index(cat, manifest, err));

    return catalog_seal(cat, CATALOG_CHECK_ALL, err);
}

static fsdp_status_t open_checkpoint(const char *path, catalog_t *cat,
                                     fsdp_error_t *err)
{
    manifest_t *manifest;
    fsdp_status_t status;

    cat->format = FSDP_CKPT_HDF5;
    cat->path = cat->root = catalog_strdup(cat, path);
    if (cat->root == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);
    }

    FSDP_TRY(manifest_read(path, &manifest, err));
    status = fill(cat, manifest, err);
    manifest_free(manifest);

    return status;
}

/* Nothing but its own files is ever in a checkpoint of ours. */
static format_extra_t extra(const catalog_t *cat, const char *path,
                            uint64_t size)
{
    (void)cat;
    (void)path;
    (void)size;
    return FORMAT_EXTRA;
}

const format_t format_hdf5 = {
    .id = FSDP_CKPT_HDF5,
    .name = "hdf5",
    .what = "a sharded HDF5 checkpoint",
    .probe = probe,
    .open = open_checkpoint,
    .extra = extra,
    .is_dir = true,
    .has_crcs = true,
    .has_kinds = true,
    .keeps = FSDP_CKPT_KEEPS_STEP | FSDP_CKPT_KEEPS_META | FSDP_CKPT_KEEPS_RANKS |
             FSDP_CKPT_KEEPS_FILES,
    .create = hdf5_shard_create,
    .finish = hdf5_index_finish,
};
