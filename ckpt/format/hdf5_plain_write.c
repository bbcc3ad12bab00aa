#include "config.h"

#include <inttypes.h>
#include <stdlib.h>

#include "ckpt/format/hdf5_file.h"
#include "ckpt/format/hdf5_name.h"
#include "ckpt/format/hdf5_trailer.h"
#include "ckpt/format/hdf5_write.h"
#include "ckpt/format/manifest.h"
#include "lib/util/check.h"

static fsdp_status_t write_tensor(catalog_t *cat, catalog_tensor_t *tensor,
                                  hdf5_file_t *file, fsdp_error_t *err)
{
    hdf5_dataset_t dataset = {
        .dtype = (fsdp_dtype_t)tensor->dtype,
        .ndim = tensor->ndim,
        .dims = cat->dims + tensor->dims_first,
        .name = tensor->name,
        .unit =
            (tensor->unit == CATALOG_NONE) ? NULL : cat->units[tensor->unit],
        .has_order = true,
        .order = tensor->order,
    };
    uint64_t offset;
    fsdp_status_t status;
    char *path;

    if (tensor->numel > 0 && tensor->piece_count != 1) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "tensor %s: %" PRIu32
                              " pieces do not go into one dataset",
                              tensor->name, tensor->piece_count);
    }

    FSDP_TRY(hdf5_path_make(cat, tensor->name, HDF5_IN_FILE, &path, err));
    dataset.path = path;
    status = hdf5_file_add(file, &dataset, &offset, err);
    free(path);
    if (status == FSDP_OK && tensor->numel > 0) {
        cat->pieces[tensor->piece_first].offset = offset;
    }

    return status;
}

static fsdp_status_t write_alias(const catalog_t *cat,
                                 const catalog_alias_t *alias,
                                 hdf5_file_t *file, fsdp_error_t *err)
{
    const char *owner = cat->tensors[alias->tensor].name;
    fsdp_status_t status;
    char *path, *target;

    FSDP_TRY(hdf5_path_make(cat, alias->name, HDF5_IN_FILE, &path, err));
    status = hdf5_path_make(cat, owner, HDF5_IN_FILE, &target, err);
    if (status == FSDP_OK) {
        status = hdf5_file_add_link(file, path, target, err);
        free(target);
    }
    free(path);

    return status;
}

static fsdp_status_t write_root(const catalog_t *cat, hdf5_file_t *file,
                                fsdp_error_t *err)
{
    char text[MANIFEST_DIGEST_SIZE];

    FSDP_TRY(hdf5_file_set_text(file, "format", HDF5_PLAIN_FORMAT, err));
    FSDP_TRY(hdf5_file_set_number(file, "version", MANIFEST_VERSION, err));
    FSDP_TRY(
        hdf5_file_set_number(file, "min_reader", MANIFEST_MIN_READER, err));
    FSDP_TRY(hdf5_file_set_text(file, "writer", PACKAGE_STRING, err));
    FSDP_TRY(hdf5_file_set_text(file, "metadata", cat->meta, err));
    if (cat->step >= 0) {
        FSDP_TRY(hdf5_file_set_number(file, "step", (uint64_t)cat->step, err));
    }
    if (cat->has_digest_model) {
        manifest_put_digest(cat->digest_model, text);
        FSDP_TRY(hdf5_file_set_text(file, "digest_model", text, err));
    }
    if (cat->has_digest_optim) {
        manifest_put_digest(cat->digest_optim, text);
        FSDP_TRY(hdf5_file_set_text(file, "digest_optim", text, err));
    }

    return FSDP_OK;
}

static fsdp_status_t write_all(catalog_t *cat, hdf5_file_t *file,
                               fsdp_error_t *err)
{
    uint64_t *by_order = calloc(cat->num_tensors + 1, sizeof(*by_order));
    fsdp_status_t status;

    if (by_order == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              cat->path);
    }

    for (uint64_t i = 0; i < cat->num_tensors; i++) {
        by_order[cat->tensors[i].order] = i;
    }
    status = write_root(cat, file, err);
    for (uint64_t i = 0; status == FSDP_OK && i < cat->num_tensors; i++) {
        status = write_tensor(cat, &cat->tensors[by_order[i]], file, err);
    }
    for (uint64_t i = 0; status == FSDP_OK && i < cat->num_aliases; i++) {
        status = write_alias(cat, &cat->aliases[i], file, err);
    }
    free(by_order);

    return status;
}

/* All pieces are in this file, so that the catalog says all there is. */
fsdp_status_t hdf5_plain_create(catalog_t *cat, uint32_t number,
                                const uint64_t *pieces, uint64_t num,
                                const char *path, fsdp_error_t *err)
{
    uint32_t gaps_crc32c = 0;
    hdf5_file_t *file;
    fsdp_status_t status;

    (void)pieces;
    (void)num;
    FSDP_TRY(hdf5_file_begin(path, false, cat->num_tensors, &file, err));
    status = write_all(cat, file, err);
    if (status == FSDP_OK) {
        status =
            hdf5_file_place(file, &cat->files[number].size, &gaps_crc32c, err);
    }
    hdf5_file_free(file);
    if (status == FSDP_OK) {
        status = hdf5_trailer_append(cat, number, path, gaps_crc32c, err);
    }

    return status;
}
