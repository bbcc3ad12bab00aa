#include "config.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/format/hdf5_file.h"
#include "ckpt/format/hdf5_name.h"
#include "ckpt/format/hdf5_trailer.h"
#include "ckpt/format/hdf5_write.h"
#include "ckpt/format/manifest.h"
#include "ckpt/value.h"
#include "lib/util/check.h"

/* The stretches of files that a source's tensor is in, neighbours joined.
 * @return their number; 0, and an error, if that is not all there is to it. */
static size_t find_extents(const hdf5_sources_t *sources, uint64_t index,
                           hdf5_extent_t *extents, fsdp_error_t *err)
{
    const catalog_t *src = sources->cat;
    const catalog_tensor_t *tensor = &src->tensors[index];
    size_t num = 0;

    if (tensor->boxed || tensor->coded || tensor->stored != tensor->dtype) {
        fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                       "tensor %s: its elements do not lie in %s as they are, "
                       "so that it cannot be shown: leave --virtual out",
                       tensor->name, src->path);
        return 0;
    }

    for (uint32_t p = 0; p < tensor->piece_count; p++) {
        const catalog_piece_t *piece = &src->pieces[tensor->piece_first + p];
        const hdf5_extent_t next = {sources->paths[piece->file], piece->offset,
                                    catalog_piece_bytes(src, piece)};
        hdf5_extent_t *last = (num > 0) ? &extents[num - 1] : NULL;

        if (last != NULL && last->file == next.file &&
            last->offset + last->size == next.offset) {
            last->size += next.size;
        } else {
            extents[num++] = next;
        }
    }
    if (num > HDF5_EXTENTS_MOST) {
        fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                       "tensor %s: is in %zu parts, HDF5 can show %d: leave "
                       "--virtual out",
                       tensor->name, num, HDF5_EXTENTS_MOST);
        return 0;
    }

    return num;
}

static fsdp_status_t show_tensor(const hdf5_sources_t *sources, uint64_t index,
                                 const hdf5_dataset_t *dataset,
                                 hdf5_file_t *file, fsdp_error_t *err)
{
    const catalog_tensor_t *tensor = &sources->cat->tensors[index];
    hdf5_extent_t *extents = calloc(tensor->piece_count, sizeof(*extents));
    fsdp_status_t status;
    size_t num;

    if (extents == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "tensor %s: no memory",
                              tensor->name);
    }

    num = find_extents(sources, index, extents, err);
    status = (num > 0)
                 ? hdf5_file_add_external(file, dataset, extents, num, err)
                 : FSDP_ERR_UNSUPPORTED;
    free(extents);
    return status;
}

/* @param sources  Where the data stays, or NULL: room is made for it. */
static fsdp_status_t write_tensor(catalog_t *cat, catalog_tensor_t *tensor,
                                  const hdf5_sources_t *sources,
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
    uint64_t offset = 0;
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
    status = (sources != NULL && tensor->numel > 0)
                 ? show_tensor(sources, sources->map[tensor - cat->tensors],
                               &dataset, file, err)
                 : hdf5_file_add(file, &dataset, &offset, err);
    free(path);
    if (status == FSDP_OK && tensor->numel > 0) {
        cat->pieces[tensor->piece_first].offset = offset;
    }

    return status;
}

/* HDF5 has no attributes above 64 KiB: parts, each of whole characters. */
static fsdp_status_t write_values(const catalog_t *cat, hdf5_file_t *file,
                                  fsdp_error_t *err)
{
    json_t *values = value_all(cat);
    char *text = (values != NULL) ? value_text(values) : NULL;
    char name[32] = "values";
    fsdp_status_t status = FSDP_OK;
    size_t size = (text != NULL) ? strlen(text) : 0, begin = 0;

    json_decref(values);
    if (text == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              cat->path);
    }

    for (unsigned i = 1; status == FSDP_OK && begin < size; i++) {
        size_t end = size;
        char *part;

        if (end - begin > HDF5_PLAIN_VALUES_PART) {
            end = begin + HDF5_PLAIN_VALUES_PART;
            while ((text[end] & 0xc0) == 0x80) {
                end--;
            }
        }
        part = strndup(text + begin, end - begin);
        status = (part != NULL) ? hdf5_file_set_text(file, name, part, err)
                                : fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                                 "%s: no memory", cat->path);
        free(part);
        begin = end;
        snprintf(name, sizeof(name), "values_%u", i);
    }
    free(text);
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
    if (cat->num_values > 0) {
        FSDP_TRY(write_values(cat, file, err));
    }
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

/* One line of JSON for each source: what it was when it was looked at. */
static fsdp_status_t write_sources(const hdf5_sources_t *sources,
                                   hdf5_file_t *file, fsdp_error_t *err)
{
    uint64_t num = 0;

    for (uint32_t f = 0; f < sources->cat->num_files; f++) {
        char name[32], *text;
        fsdp_status_t status;
        json_t *json;

        if (sources->paths[f] == NULL) {
            continue;
        }
        json = json_pack("{s:s, s:I, s:I}", "path", sources->paths[f], "size",
                         (json_int_t)sources->cat->files[f].size, "mtime",
                         (json_int_t)sources->mtimes[f]);
        text = json_dumps(json, JSON_COMPACT);
        json_decref(json);
        if (text == NULL) {
            return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                                  "%s: its path is not UTF-8",
                                  sources->paths[f]);
        }
        snprintf(name, sizeof(name), "source_%" PRIu64, num++);
        status = hdf5_file_set_text(file, name, text, err);
        free(text);
        FSDP_TRY(status);
    }

    return hdf5_file_set_number(file, "virtual", num, err);
}

static fsdp_status_t write_all(catalog_t *cat, const hdf5_sources_t *sources,
                               hdf5_file_t *file, fsdp_error_t *err)
{
    uint64_t *by_order = catalog_in_order(cat);
    fsdp_status_t status;

    if (by_order == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              cat->path);
    }

    status = write_root(cat, file, err);
    if (status == FSDP_OK && sources != NULL) {
        status = write_sources(sources, file, err);
    }
    for (uint64_t i = 0; status == FSDP_OK && i < cat->num_tensors; i++) {
        status =
            write_tensor(cat, &cat->tensors[by_order[i]], sources, file, err);
    }
    for (uint64_t i = 0; status == FSDP_OK && i < cat->num_aliases; i++) {
        status =
            hdf5_file_add_alias(file, cat, &cat->aliases[i], HDF5_IN_FILE, err);
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
    status = write_all(cat, NULL, file, err);
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

fsdp_status_t hdf5_plain_show(catalog_t *cat, const hdf5_sources_t *sources,
                              const char *path, fsdp_error_t *err)
{
    hdf5_file_t *file;
    fsdp_status_t status;

    FSDP_TRY(hdf5_file_begin(path, false, cat->num_tensors, &file, err));
    status = write_all(cat, sources, file, err);
    if (status == FSDP_OK) {
        status = hdf5_file_place(file, &cat->files[0].size, NULL, err);
    }
    hdf5_file_free(file);
    return status;
}
