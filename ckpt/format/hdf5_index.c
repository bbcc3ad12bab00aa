#include "config.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "ckpt/format/hdf5_file.h"
#include "ckpt/format/hdf5_name.h"
#include "ckpt/format/hdf5_table.h"
#include "ckpt/format/hdf5_write.h"
#include "lib/util/check.h"
#include "lib/util/io.h"

typedef struct {
    const catalog_t *cat;
    const char *dir; /* where the shard files are */
    hdf5_file_t *file;
    hdf5_source_t *sources; /* room for the tensor with the most pieces */
    char **source_paths;
} builder_t;

/* Read a tensor of one element from its shard file. */
static fsdp_status_t read_scalar(const builder_t *builder,
                                 const catalog_tensor_t *tensor, void *value,
                                 fsdp_error_t *err)
{
    const catalog_piece_t *piece = &builder->cat->pieces[tensor->piece_first];
    char *path =
        io_path("%s/%s", builder->dir, builder->cat->files[piece->file].path);
    fsdp_status_t status;
    int fd;

    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "tensor %s: no memory",
                              tensor->name);
    }

    status = io_open(path, O_RDONLY, 0, &fd, err);
    if (status == FSDP_OK) {
        status = io_pread(fd, value, tensor->bytes, piece->offset, path, err);
        close(fd);
    }
    free(path);

    return status;
}

/* Scalars and tensors without elements are copies: HDF5 cannot show them as
 * virtual datasets. */
static fsdp_status_t add_copy(const builder_t *builder,
                              const catalog_tensor_t *tensor,
                              hdf5_dataset_t *dataset, fsdp_error_t *err)
{
    char value[16] = {0};

    if (tensor->ndim == 0) {
        FSDP_TRY(read_scalar(builder, tensor, value, err));
    }
    dataset->data = value;

    return hdf5_file_add(builder->file, dataset, NULL, err);
}

static fsdp_status_t add_virtual(const builder_t *builder,
                                 const catalog_tensor_t *tensor,
                                 const hdf5_dataset_t *dataset,
                                 fsdp_error_t *err)
{
    const catalog_t *cat = builder->cat;
    fsdp_status_t status;
    uint32_t num = 0;
    char *inside;

    FSDP_TRY(hdf5_path_make(cat, tensor->name, HDF5_IN_SHARD, &inside, err));
    for (; num < tensor->piece_count; num++) {
        const catalog_piece_t *piece = &cat->pieces[tensor->piece_first + num];
        char *path = io_path("/rank-%05" PRIu32 "/%s", piece->rank, inside);

        if (path == NULL) {
            status = fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                    "tensor %s: no memory", tensor->name);
            goto done;
        }
        builder->source_paths[num] = path;
        builder->sources[num] = (hdf5_source_t){
            .file = cat->files[piece->file].path,
            .path = path,
            .first = piece->first,
            .count = piece->count,
        };
    }
    status = hdf5_file_add_virtual(builder->file, dataset, builder->sources,
                                   num, err);
done:
    while (num > 0) {
        free(builder->source_paths[--num]);
    }
    free(inside);
    return status;
}

static fsdp_status_t add_tensor(const builder_t *builder,
                                const catalog_tensor_t *tensor,
                                fsdp_error_t *err)
{
    hdf5_dataset_t dataset = {
        .dtype = (fsdp_dtype_t)tensor->dtype,
        .ndim = tensor->ndim,
        .dims = builder->cat->dims + tensor->dims_first,
        .name = tensor->name,
    };
    fsdp_status_t status;
    char *path;

    FSDP_TRY(
        hdf5_path_make(builder->cat, tensor->name, HDF5_IN_INDEX, &path, err));
    dataset.path = path;
    status = (tensor->ndim == 0 || tensor->numel == 0)
                 ? add_copy(builder, tensor, &dataset, err)
                 : add_virtual(builder, tensor, &dataset, err);
    free(path);

    return status;
}

/* Every tensor whole, under its own name. */
static fsdp_status_t add_tensors(builder_t *builder, fsdp_error_t *err)
{
    const catalog_t *cat = builder->cat;
    fsdp_status_t status = FSDP_OK;
    uint32_t most = 0;

    for (uint64_t i = 0; i < cat->num_tensors; i++) {
        uint32_t count = cat->tensors[i].piece_count;

        most = (count > most) ? count : most;
    }
    builder->sources = calloc(most + 1ul, sizeof(*builder->sources));
    builder->source_paths = calloc(most + 1ul, sizeof(*builder->source_paths));
    if (builder->sources == NULL || builder->source_paths == NULL) {
        status = fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                                builder->dir);
    }

    for (uint64_t i = 0; status == FSDP_OK && i < cat->num_tensors; i++) {
        status = add_tensor(builder, &cat->tensors[i], err);
    }
    for (uint64_t i = 0; status == FSDP_OK && i < cat->num_aliases; i++) {
        status = hdf5_file_add_alias(builder->file, cat, &cat->aliases[i],
                                     HDF5_IN_INDEX, err);
    }
    free(builder->sources);
    free(builder->source_paths);

    return status;
}

static fsdp_status_t fill_index(builder_t *builder, manifest_index_t *index,
                                fsdp_error_t *err)
{
    fsdp_status_t status;
    hdf5_rows_t rows;

    FSDP_TRY(hdf5_file_set_text(builder->file, "format", "fsdp-index", err));
    FSDP_TRY(
        hdf5_file_set_number(builder->file, "version", MANIFEST_VERSION, err));
    if (builder->cat->num_pieces <= HDF5_VIRTUAL_MOST) {
        FSDP_TRY(add_tensors(builder, err));
    }

    FSDP_TRY(hdf5_rows_make(builder->cat, CATALOG_NONE, &rows, err));
    status = hdf5_rows_add(&rows, builder->file, index, err);
    hdf5_rows_free(&rows);

    return status;
}

static fsdp_status_t write_index(const catalog_t *cat, const char *shard_dir,
                                 const char *path, manifest_index_t *index_p,
                                 fsdp_error_t *err)
{
    builder_t builder = {.cat = cat, .dir = shard_dir};
    fsdp_status_t status;

    FSDP_TRY(hdf5_file_begin(path, true, cat->num_pieces, &builder.file, err));
    status = fill_index(&builder, index_p, err);
    if (status == FSDP_OK) {
        status = hdf5_file_place(builder.file, &index_p->size, &index_p->crc32c,
                                 err);
    }
    hdf5_file_free(builder.file);
    FSDP_TRY(status);

    return io_fsync_path(path, err);
}

fsdp_status_t hdf5_index_write(const catalog_t *cat, const char *shard_dir,
                               const char *dir, fsdp_error_t *err)
{
    char *path = io_path("%s/%s", dir, HDF5_INDEX_NAME);
    manifest_index_t index = {0};
    fsdp_status_t status;

    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", dir);
    }

    status = write_index(cat, shard_dir, path, &index, err);
    free(path);
    FSDP_TRY(status);

    return manifest_write(cat, &index, dir, err);
}

fsdp_status_t hdf5_index_finish(const catalog_t *cat, const char *dir,
                                fsdp_error_t *err)
{
    return hdf5_index_write(cat, dir, dir, err);
}
