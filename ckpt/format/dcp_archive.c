#include "config.h"

#include "ckpt/format/dcp_archive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/torch_write.h"
#include "ckpt/value.h"
#include "ckpt/zip_write.h"
#include "lib/util/check.h"

const char *dcp_dtype_name(fsdp_dtype_t dtype)
{
    const torch_type_t *name = torch_type(dtype);

    return (name != NULL) ? name->name : NULL;
}

static fsdp_status_t no_memory(fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "no memory for an archive");
}

/* What lies before data of so many bytes, and behind it. */
static fsdp_status_t finish(zip_writer_t *zip, uint64_t bytes,
                            dcp_archive_t *archive_p, fsdp_error_t *err)
{
    dcp_archive_t archive = {0};
    bool good = zip_write_take(zip, bytes, &archive.head, &archive.head_size);

    zip_write_end(zip);
    good = good && zip_write_take(zip, 0, &archive.tail, &archive.tail_size);
    zip_write_free(zip);
    if (!good) {
        dcp_archive_free(&archive);
        return no_memory(err);
    }

    *archive_p = archive;
    return FSDP_OK;
}

void dcp_archive_free(dcp_archive_t *archive)
{
    free(archive->head);
    free(archive->tail);
    *archive = (dcp_archive_t){0};
}

/* The pickle, which is freed, as the first entry. */
static fsdp_status_t begin(zip_writer_t *zip, pickle_writer_t *writer,
                           fsdp_error_t *err)
{
    bool good = pickle_write_end(writer);

    if (good) {
        zip_write_entry(zip, "data.pkl", writer->out.data, writer->out.size);
        zip_write_entry(zip, "byteorder", "little", 6);
    }
    pickle_write_free(writer);
    return good ? FSDP_OK : no_memory(err);
}

fsdp_status_t dcp_archive_tensor(const catalog_tensor_t *tensor,
                                 const uint64_t *dims, uint64_t bytes,
                                 uint32_t crc32, dcp_archive_t *archive_p,
                                 fsdp_error_t *err)
{
    fsdp_dtype_t dtype = (fsdp_dtype_t)tensor->dtype;
    const torch_type_t *type = torch_type(dtype);
    zip_writer_t zip = {0};
    pickle_writer_t writer;

    if (type == NULL) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "tensor %s: PyTorch has no tensors of type %s: "
                              "leave it out with --exclude '%s'",
                              tensor->name, fsdp_dtype_name(dtype),
                              tensor->name);
    }

    pickle_write_begin(&writer, 2);
    torch_write_tensor(&writer, type, 0, tensor->ndim, dims, bytes);
    FSDP_TRY(begin(&zip, &writer, err));
    zip_write_header(&zip, "data/0", bytes, crc32);
    return finish(&zip, bytes, archive_p, err);
}

/* --- Values --------------------------------------------------------------- */

/* The tensors of a value, in the order of their keys. */
typedef struct {
    const catalog_t *cat;
    uint32_t *tensors;
    size_t num, max;
    bool failed;
} inner_t;

static bool write_inner(pickle_writer_t *writer, const char *name, void *arg)
{
    inner_t *inner = arg;
    const catalog_tensor_t *tensor;
    const torch_type_t *type;
    uint64_t index;

    if (!catalog_find(inner->cat, name, &index)) {
        return false;
    }
    tensor = &inner->cat->tensors[index];
    type = torch_type((fsdp_dtype_t)tensor->dtype);
    if (type == NULL || tensor->piece_count > 1) {
        return false;
    }

    if (inner->num == inner->max) {
        size_t max = 2 * inner->max + 8;
        uint32_t *larger = reallocarray(inner->tensors, max, sizeof(*larger));

        if (larger == NULL) {
            inner->failed = true;
            return true;
        }
        inner->tensors = larger;
        inner->max = max;
    }
    torch_write_tensor(writer, type, inner->num, tensor->ndim,
                       inner->cat->dims + tensor->dims_first, tensor->bytes);
    inner->tensors[inner->num++] = (uint32_t)index;
    return true;
}

static uint32_t crc32_of(const catalog_t *cat, const catalog_tensor_t *tensor)
{
    const catalog_piece_t *piece = &cat->pieces[tensor->piece_first];

    return (tensor->piece_count > 0 && piece->crc_first != CATALOG_NONE)
               ? cat->crcs[piece->crc_first]
               : 0;
}

/* All entries behind the pickle. */
static bool add_inner(const inner_t *inner, zip_writer_t *zip,
                      dcp_value_t *archive)
{
    char name[ZIP_WRITE_NAME_MAX];
    bool good = true;

    for (size_t i = 0; i <= inner->num && good; i++) {
        dcp_part_t *part = &archive->parts[i];
        const catalog_tensor_t *tensor = NULL;
        uint64_t bytes = 0;

        part->tensor = CATALOG_NONE;
        if (i < inner->num) {
            part->tensor = inner->tensors[i];
            tensor = &inner->cat->tensors[part->tensor];
            bytes = tensor->bytes;
            snprintf(name, sizeof(name), "data/%zu", i);
            zip_write_header(zip, name, bytes, crc32_of(inner->cat, tensor));
        } else {
            zip_write_end(zip);
        }
        good = zip_write_take(zip, bytes, &part->data, &part->size);
        archive->num = i + 1;
        archive->size += part->size + bytes;
    }

    return good;
}

void dcp_value_free(dcp_value_t *archive)
{
    for (size_t i = 0; i < archive->num; i++) {
        free(archive->parts[i].data);
    }
    free(archive->parts);
    *archive = (dcp_value_t){0};
}

/* What is in the pickle that cannot be there ends the conversion: nothing is
 * left out without a word. */
static fsdp_status_t write_pickle(const catalog_value_t *value, inner_t *inner,
                                  pickle_writer_t *writer, fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;
    json_t *json;

    FSDP_TRY(
        value_parse(value->name, value->json, strlen(value->json), &json, err));
    pickle_write_begin(writer, 2);
    if (!pickle_write_value(writer, json, write_inner, inner)) {
        pickle_write_free(writer);
        status = fsdp_error_set(
            err, FSDP_ERR_UNSUPPORTED,
            "value '%s' holds tensors or objects that cannot be written to "
            "this format: leave it out with --exclude '%s'",
            value->name, value->name);
    }
    json_decref(json);
    return status;
}

fsdp_status_t dcp_archive_value(const catalog_t *cat, uint64_t value,
                                dcp_value_t *archive_p, fsdp_error_t *err)
{
    inner_t inner = {.cat = cat};
    dcp_value_t archive = {0};
    zip_writer_t zip = {0};
    pickle_writer_t writer;
    fsdp_status_t status;

    status = write_pickle(&cat->values[value], &inner, &writer, err);
    if (status == FSDP_OK) {
        status = begin(&zip, &writer, err);
        archive.parts = calloc(inner.num + 1, sizeof(*archive.parts));
    }
    if (status == FSDP_OK && (inner.failed || archive.parts == NULL ||
                              !add_inner(&inner, &zip, &archive))) {
        status = no_memory(err);
    }
    zip_write_free(&zip);
    free(inner.tensors);
    if (status != FSDP_OK) {
        dcp_value_free(&archive);
        return status;
    }

    *archive_p = archive;
    return FSDP_OK;
}
