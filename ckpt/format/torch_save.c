/*
 * Writing a file of torch.save: a stored zip of one pickle, which is the state
 * dict as it was nested, and of a storage for each tensor; other names of a
 * tensor share its storage.
 */
#include "config.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/format/torch.h"
#include "ckpt/nest.h"
#include "ckpt/torch_write.h"
#include "ckpt/value.h"
#include "ckpt/zip_write.h"
#include "lib/util/check.h"
#include "lib/util/io.h"

typedef struct {
    const catalog_t *cat;
    const char *path;  /* of the file */
    int fd;            /* -1: it is only asked where things lie */
    uint64_t *offsets; /* of the tensors' data */
    uint64_t size;     /* of the file */
    nest_t nest;
    pickle_writer_t pickle;
    zip_writer_t zip;
} writer_t;

static fsdp_status_t no_memory(const writer_t *writer, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                          writer->path);
}

/* --- The pickle ------------------------------------------------------------------ */

static fsdp_status_t write_node(writer_t *writer, const nest_node_t *node,
                                fsdp_error_t *err);

/* @return false if PyTorch has no such type. */
static bool put_tensor(writer_t *writer, const catalog_tensor_t *tensor)
{
    const torch_type_t *type = torch_type((fsdp_dtype_t)tensor->dtype);

    if (type == NULL) {
        return false;
    }
    torch_write_tensor(&writer->pickle, type, tensor->order, tensor->ndim,
                       writer->cat->dims + tensor->dims_first, tensor->bytes);
    return true;
}

/* One that is in a value. */
static bool put_inner(pickle_writer_t *pickle, const char *name, void *arg)
{
    writer_t *writer = arg;
    uint64_t index;

    (void)pickle; /* the writer's own */
    return catalog_find(writer->cat, name, &index) &&
           put_tensor(writer, &writer->cat->tensors[index]);
}

static fsdp_status_t write_tensor(writer_t *writer, uint64_t index,
                                  fsdp_error_t *err)
{
    const catalog_tensor_t *tensor = &writer->cat->tensors[index];

    if (!put_tensor(writer, tensor)) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "tensor %s: PyTorch has no tensors of type %s: "
                              "leave it out with --exclude '%s'",
                              tensor->name,
                              fsdp_dtype_name((fsdp_dtype_t)tensor->dtype),
                              tensor->name);
    }
    return FSDP_OK;
}

/* Nothing is left out without a word. */
static fsdp_status_t write_value(writer_t *writer, uint64_t index,
                                 fsdp_error_t *err)
{
    const catalog_value_t *value = &writer->cat->values[index];
    json_t *json;
    bool known;

    FSDP_TRY(
        value_parse(value->name, value->json, strlen(value->json), &json, err));
    known = pickle_write_value(&writer->pickle, json, put_inner, writer);
    json_decref(json);
    return known ? FSDP_OK
                 : fsdp_error_set(
                       err, FSDP_ERR_UNSUPPORTED,
                       "value '%s' holds tensors or objects that cannot be "
                       "written to this format: leave it out with --exclude "
                       "'%s'",
                       value->name, value->name);
}

static fsdp_status_t write_key(writer_t *writer, const nest_node_t *node,
                               fsdp_error_t *err)
{
    char *text = strndup(node->key, node->key_size);

    if (text == NULL) {
        return no_memory(writer, err);
    }
    if (node->key_is_int) {
        pickle_write_int(&writer->pickle, strtoll(text, NULL, 10));
    } else {
        pickle_write_text(&writer->pickle, text);
    }
    free(text);
    return FSDP_OK;
}

/* The attribute of a module's state dict. */
static fsdp_status_t write_attribute(writer_t *writer, const nest_node_t *node,
                                     fsdp_error_t *err)
{
    pickle_writer_t *pickle = &writer->pickle;

    pickle_write_op(pickle, '}');
    pickle_write_op(pickle, '(');
    pickle_write_text(pickle, "_metadata");
    if (!pickle_write_value(pickle, node->metadata, NULL, NULL)) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s: the _metadata of its state dict holds "
                              "objects that cannot be written to this format",
                              writer->path);
    }
    pickle_write_op(pickle, 'u');
    pickle_write_op(pickle, 'b');
    return FSDP_OK;
}

static fsdp_status_t write_container(writer_t *writer, const nest_node_t *node,
                                     fsdp_error_t *err)
{
    pickle_writer_t *pickle = &writer->pickle;
    bool is_list = node->is == NEST_LIST;

    if (node->is == NEST_ORDERED) {
        pickle_write_class(pickle, "collections", "OrderedDict");
        pickle_write_op(pickle, ')');
        pickle_write_op(pickle, 'R');
    } else {
        pickle_write_op(pickle, is_list ? ']' : '}');
    }
    pickle_write_op(pickle, '(');
    for (uint32_t i = node->first; i != NEST_NONE;
         i = writer->nest.nodes[i].next) {
        if (!is_list) {
            FSDP_TRY(write_key(writer, &writer->nest.nodes[i], err));
        }
        FSDP_TRY(write_node(writer, &writer->nest.nodes[i], err));
    }
    pickle_write_op(pickle, is_list ? 'e' : 'u');
    return (node->metadata != NULL && node->is == NEST_ORDERED)
               ? write_attribute(writer, node, err)
               : FSDP_OK;
}

static fsdp_status_t write_node(writer_t *writer, const nest_node_t *node,
                                fsdp_error_t *err)
{
    const catalog_t *cat = writer->cat;

    if (node->is != NEST_LEAF) {
        return write_container(writer, node, err);
    }
    if (node->leaf == NEST_VALUE) {
        return write_value(writer, node->index, err);
    }
    return write_tensor(writer,
                        (node->leaf == NEST_ALIAS)
                            ? cat->aliases[node->index].tensor
                            : node->index,
                        err);
}

static fsdp_status_t write_pickle(writer_t *writer, fsdp_error_t *err)
{
    FSDP_TRY(nest_make(writer->cat, &writer->nest, err));
    pickle_write_begin(&writer->pickle, 2);
    FSDP_TRY(write_node(writer, &writer->nest.nodes[0], err));
    return pickle_write_end(&writer->pickle) ? FSDP_OK : no_memory(writer, err);
}

/* --- The archive ------------------------------------------------------------------- */

/* Write what is new, or only count it; @a pass bytes of data follow. */
static fsdp_status_t flush(writer_t *writer, uint64_t pass, fsdp_error_t *err)
{
    uint64_t at = writer->zip.at;
    fsdp_status_t status = FSDP_OK;
    size_t size;
    char *data;

    if (!zip_write_take(&writer->zip, pass, &data, &size)) {
        return no_memory(writer, err);
    }
    if (writer->fd >= 0) {
        status = io_pwrite(writer->fd, data, size, at, writer->path, err);
    }
    free(data);
    return status;
}

static fsdp_status_t write_storages(writer_t *writer, fsdp_error_t *err)
{
    const catalog_t *cat = writer->cat;
    uint64_t *ordered = calloc(cat->num_tensors + 1, sizeof(*ordered));
    fsdp_status_t status = FSDP_OK;
    char name[32];

    if (ordered == NULL) {
        return no_memory(writer, err);
    }

    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        ordered[cat->tensors[t].order] = t;
    }
    for (uint64_t i = 0; i < cat->num_tensors && status == FSDP_OK; i++) {
        const catalog_tensor_t *tensor = &cat->tensors[ordered[i]];
        const catalog_piece_t *piece = &cat->pieces[tensor->piece_first];
        bool has_crc =
            tensor->piece_count > 0 && piece->crc_first != CATALOG_NONE;

        snprintf(name, sizeof(name), "data/%" PRIu64, i);
        zip_write_header(&writer->zip, name, tensor->bytes,
                         has_crc ? cat->crcs[piece->crc_first] : 0);
        status = flush(writer, tensor->bytes, err);
        writer->offsets[ordered[i]] = writer->zip.at - tensor->bytes;
    }
    free(ordered);
    return status;
}

static fsdp_status_t write_all(writer_t *writer, fsdp_error_t *err)
{
    zip_writer_t *zip = &writer->zip;

    FSDP_TRY(write_pickle(writer, err));
    zip_write_entry(zip, "data.pkl", writer->pickle.data, writer->pickle.size);
    zip_write_entry(zip, ".format_version", "1", 1);
    zip_write_entry(zip, ".storage_alignment", "64", 2);
    zip_write_entry(zip, "byteorder", "little", 6);
    FSDP_TRY(write_storages(writer, err));
    zip_write_end(zip);
    FSDP_TRY(flush(writer, 0, err));
    writer->size = zip->at;
    return FSDP_OK;
}

/* Lay the file out, and write all but the data where there is a file. */
static fsdp_status_t lay_out(writer_t *writer, fsdp_error_t *err)
{
    fsdp_status_t status;

    writer->offsets =
        calloc(writer->cat->num_tensors + 1, sizeof(*writer->offsets));
    status = (writer->offsets != NULL) ? write_all(writer, err)
                                       : no_memory(writer, err);
    nest_free(&writer->nest);
    pickle_write_free(&writer->pickle);
    zip_write_free(&writer->zip);
    return status;
}

fsdp_status_t torch_create(catalog_t *cat, uint32_t file,
                           const uint64_t *pieces, uint64_t num,
                           const char *path, fsdp_error_t *err)
{
    writer_t writer = {.cat = cat, .path = path, .fd = -1};
    fsdp_status_t status = lay_out(&writer, err);

    for (uint64_t i = 0; i < num && status == FSDP_OK; i++) {
        catalog_piece_t *piece = &cat->pieces[pieces[i]];

        piece->offset = writer.offsets[piece->tensor];
    }
    free(writer.offsets);
    FSDP_TRY(status);

    cat->files[file].size = writer.size;
    cat->files[file].table = 0;
    return io_make_file(path, writer.size, err);
}

fsdp_status_t torch_finish(const catalog_t *cat, const char *dir,
                           fsdp_error_t *err)
{
    char *path = io_path("%s/%s", dir, cat->files[0].path);
    writer_t writer = {.cat = cat, .path = path, .fd = -1};
    fsdp_status_t status;

    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", dir);
    }

    status = io_open(path, O_RDWR, 0, &writer.fd, err);
    if (status == FSDP_OK) {
        status = lay_out(&writer, err);
        if (status == FSDP_OK) {
            status = io_fsync(writer.fd, path, err);
        }
        close(writer.fd);
    }
    free(writer.offsets);
    free(path);
    return status;
}
