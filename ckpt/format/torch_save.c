#include "config.h"

#include "ckpt/format/torch_save.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/format/torch.h"
#include "ckpt/torch_object.h"
#include "ckpt/torch_write.h"
#include "ckpt/value.h"
#include "lib/util/check.h"
#include "lib/util/io.h"

static fsdp_status_t no_memory(const torch_out_t *out, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", out->path);
}

/* --- The pickle ----------------------------------------------------------- */

/* The number of a tensor's storage, which is given at the first mention. */
static bool get_storage(torch_out_t *out, uint64_t tensor, uint64_t *number_p)
{
    uint64_t *larger;

    if (map_get(&out->keys, &tensor, sizeof(tensor), number_p)) {
        return true;
    }
    if (out->num == out->max) {
        uint64_t max = 2 * out->max + 16;

        larger = reallocarray(out->tensors, max, sizeof(*larger));
        if (larger == NULL) {
            return false;
        }
        out->tensors = larger;
        out->max = max;
    }

    *number_p = out->num;
    out->tensors[out->num++] = tensor;
    return map_put(&out->keys, &tensor, sizeof(tensor), *number_p);
}

/* @return false if PyTorch has no such type. */
static bool put_tensor(torch_out_t *out, uint64_t index)
{
    const catalog_tensor_t *tensor = &out->cat->tensors[index];
    const torch_type_t *type = torch_type((fsdp_dtype_t)tensor->dtype);
    uint64_t storage;

    if (type == NULL) {
        return false;
    }
    if (!get_storage(out, index, &storage)) {
        out->pickle.out.failed = true;
        return true;
    }
    torch_write_tensor(&out->pickle, type, storage, tensor->ndim,
                       out->cat->dims + tensor->dims_first, tensor->bytes);
    return true;
}

/* One that is in a value. */
static bool put_inner(pickle_writer_t *pickle, const char *name, void *arg)
{
    torch_out_t *out = arg;
    uint64_t index;

    (void)pickle; /* that of out */
    return catalog_find(out->cat, name, &index) && put_tensor(out, index);
}

fsdp_status_t torch_out_tensor(torch_out_t *out, uint64_t tensor,
                               fsdp_error_t *err)
{
    const catalog_tensor_t *entry = &out->cat->tensors[tensor];

    return put_tensor(out, tensor)
               ? FSDP_OK
               : fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                                "tensor %s: PyTorch has no tensors of type "
                                "%s: leave it out with --exclude '%s'",
                                entry->name,
                                fsdp_dtype_name((fsdp_dtype_t)entry->dtype),
                                entry->name);
}

/* Nothing is left out without a word. */
fsdp_status_t torch_out_value(torch_out_t *out, uint64_t index,
                              fsdp_error_t *err)
{
    const catalog_value_t *value = &out->cat->values[index];
    json_t *json;
    bool known;

    FSDP_TRY(
        value_parse(value->name, value->json, strlen(value->json), &json, err));
    known = pickle_write_value(&out->pickle, json, put_inner, out);
    json_decref(json);
    return known ? FSDP_OK
                 : fsdp_error_set(
                       err, FSDP_ERR_UNSUPPORTED,
                       "value '%s' holds tensors or objects that cannot be "
                       "written to this format: leave it out with --exclude "
                       "'%s'",
                       value->name, value->name);
}

static void write_key(torch_out_t *out, const nest_node_t *node)
{
    if (node->key_is_int) { /* what follows it in the name is no digit */
        pickle_write_int(&out->pickle, strtoll(node->key, NULL, 10));
    } else {
        pickle_write_string(&out->pickle, node->key, node->key_size);
    }
}

/* The attribute of a module's state dict. */
static fsdp_status_t write_attribute(torch_out_t *out, const nest_node_t *node,
                                     fsdp_error_t *err)
{
    pickle_writer_t *pickle = &out->pickle;

    pickle_write_op(pickle, '}');
    pickle_write_op(pickle, '(');
    pickle_write_text(pickle, "_metadata");
    if (!pickle_write_value(pickle, node->metadata, NULL, NULL)) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s: the _metadata of its state dict holds "
                              "objects that cannot be written to this format",
                              out->path);
    }
    pickle_write_op(pickle, 'u');
    pickle_write_op(pickle, 'b');
    return FSDP_OK;
}

static fsdp_status_t write_container(torch_out_t *out, const nest_t *nest,
                                     const nest_node_t *node, fsdp_error_t *err)
{
    pickle_writer_t *pickle = &out->pickle;
    bool is_list = node->is == NEST_LIST;

    if (node->is == NEST_ORDERED) {
        pickle_write_class(pickle, "collections", "OrderedDict");
        pickle_write_op(pickle, ')');
        pickle_write_op(pickle, 'R');
    } else {
        pickle_write_op(pickle, is_list ? ']' : '}');
    }
    pickle_write_op(pickle, '(');
    for (uint32_t i = node->first; i != NEST_NONE; i = nest->nodes[i].next) {
        if (!is_list) {
            write_key(out, &nest->nodes[i]);
        }
        FSDP_TRY(torch_out_node(out, nest, &nest->nodes[i], err));
    }
    pickle_write_op(pickle, is_list ? 'e' : 'u');
    return (node->metadata != NULL && node->is == NEST_ORDERED)
               ? write_attribute(out, node, err)
               : FSDP_OK;
}

fsdp_status_t torch_out_node(torch_out_t *out, const nest_t *nest,
                             const nest_node_t *node, fsdp_error_t *err)
{
    if (node->is != NEST_LEAF) {
        return write_container(out, nest, node, err);
    }
    if (node->leaf == NEST_VALUE) {
        return torch_out_value(out, node->index, err);
    }
    return torch_out_tensor(out,
                            (node->leaf == NEST_ALIAS)
                                ? out->cat->aliases[node->index].tensor
                                : node->index,
                            err);
}

/* --- The archive ---------------------------------------------------------- */

/* Write what is new, or only count it; @a pass bytes of data follow. */
static fsdp_status_t flush(torch_out_t *out, uint64_t pass, fsdp_error_t *err)
{
    uint64_t at = out->zip.at;
    fsdp_status_t status = FSDP_OK;
    size_t size;
    char *data;

    if (!zip_write_take(&out->zip, pass, &data, &size)) {
        return no_memory(out, err);
    }
    if (out->fd >= 0) {
        status = io_pwrite(out->fd, data, size, at, out->path, err);
    }
    free(data);
    return status;
}

static fsdp_status_t write_storages(torch_out_t *out, fsdp_error_t *err)
{
    const catalog_t *cat = out->cat;
    char name[32];

    out->offsets = calloc(out->num + 1, sizeof(*out->offsets));
    if (out->offsets == NULL) {
        return no_memory(out, err);
    }

    for (uint64_t i = 0; i < out->num; i++) {
        const catalog_tensor_t *tensor = &cat->tensors[out->tensors[i]];
        const catalog_piece_t *piece = &cat->pieces[tensor->piece_first];
        bool has_crc =
            tensor->piece_count > 0 && piece->crc_first != CATALOG_NONE;

        snprintf(name, sizeof(name), "data/%" PRIu64, i);
        zip_write_header(&out->zip, name, tensor->bytes,
                         has_crc ? cat->crcs[piece->crc_first] : 0);
        FSDP_TRY(flush(out, tensor->bytes, err));
        out->offsets[i] = out->zip.at - tensor->bytes;
    }

    return FSDP_OK;
}

/* Lay the file out, and write all but the data where there is a file. */
static fsdp_status_t write_all(torch_out_t *out, torch_fill_f fill, void *arg,
                               fsdp_error_t *err)
{
    zip_writer_t *zip = &out->zip;

    pickle_write_begin(&out->pickle, 2);
    FSDP_TRY(fill(out, arg, err));
    if (!pickle_write_end(&out->pickle)) {
        return no_memory(out, err);
    }
    zip_write_entry(zip, "data.pkl", out->pickle.out.data,
                    out->pickle.out.size);
    zip_write_entry(zip, ".format_version", "1", 1);
    zip_write_entry(zip, ".storage_alignment", "64", 2);
    zip_write_entry(zip, "byteorder", "little", 6);
    FSDP_TRY(write_storages(out, err));
    zip_write_end(zip);
    FSDP_TRY(flush(out, 0, err));
    out->size = zip->at;
    return FSDP_OK;
}

static void out_free(torch_out_t *out)
{
    pickle_write_free(&out->pickle);
    zip_write_free(&out->zip);
    map_free(&out->keys);
    free(out->tensors);
    free(out->offsets);
}

fsdp_status_t torch_out_create(catalog_t *cat, uint32_t file,
                               const uint64_t *pieces, uint64_t num,
                               const char *path, torch_fill_f fill, void *arg,
                               fsdp_error_t *err)
{
    torch_out_t out = {.cat = cat, .path = path, .fd = -1};
    fsdp_status_t status = write_all(&out, fill, arg, err);
    uint64_t storage;

    for (uint64_t i = 0; i < num && status == FSDP_OK; i++) {
        catalog_piece_t *piece = &cat->pieces[pieces[i]];
        uint64_t tensor = piece->tensor;

        if (map_get(&out.keys, &tensor, sizeof(tensor), &storage)) {
            piece->offset = out.offsets[storage];
        } else {
            status = fsdp_error_set(err, FSDP_ERR_BAD_STATE,
                                    "%s: tensor %s is not in it", path,
                                    cat->tensors[tensor].name);
        }
    }
    cat->files[file].size = out.size;
    cat->files[file].table = 0;
    out_free(&out);
    return (status == FSDP_OK) ? io_make_file(path, cat->files[file].size, err)
                               : status;
}

fsdp_status_t torch_out_finish(const catalog_t *cat, uint32_t file,
                               const char *dir, torch_fill_f fill, void *arg,
                               fsdp_error_t *err)
{
    char *path = io_path("%s/%s", dir, cat->files[file].path);
    torch_out_t out = {.cat = cat, .path = path, .fd = -1};
    fsdp_status_t status;

    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", dir);
    }

    status = io_open(path, O_RDWR, 0, &out.fd, err);
    if (status == FSDP_OK) {
        status = write_all(&out, fill, arg, err);
        close(out.fd);
    }
    out_free(&out);
    free(path);
    return status;
}

/* --- The whole checkpoint in one file ------------------------------------- */

static fsdp_status_t check_size(const char *name, fsdp_error_t *err)
{
    size_t size = strlen(name);

    return (size < TORCH_NAME_MAX)
               ? FSDP_OK
               : fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                                "'%.80s...': a name of %zu bytes is longer "
                                "than is read from files of torch.save: "
                                "rename it, or leave it out with --exclude "
                                "'%.80s*'",
                                name, size, name);
}

/* Names that would not be read back. */
static fsdp_status_t check_names(const catalog_t *cat, fsdp_error_t *err)
{
    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        FSDP_TRY(check_size(cat->tensors[t].name, err));
    }
    for (uint64_t a = 0; a < cat->num_aliases; a++) {
        FSDP_TRY(check_size(cat->aliases[a].name, err));
    }
    for (uint64_t v = 0; v < cat->num_values; v++) {
        FSDP_TRY(check_size(cat->values[v].name, err));
    }

    return FSDP_OK;
}

static fsdp_status_t fill_whole(torch_out_t *out, void *arg, fsdp_error_t *err)
{
    fsdp_status_t status;
    nest_t nest;

    (void)arg;
    FSDP_TRY(check_names(out->cat, err));
    FSDP_TRY(nest_make(out->cat, &nest, err));
    status = torch_out_node(out, &nest, &nest.nodes[0], err);
    nest_free(&nest);
    return status;
}

fsdp_status_t torch_create(catalog_t *cat, uint32_t file,
                           const uint64_t *pieces, uint64_t num,
                           const char *path, fsdp_error_t *err)
{
    return torch_out_create(cat, file, pieces, num, path, fill_whole, NULL,
                            err);
}

fsdp_status_t torch_finish(const catalog_t *cat, const char *dir,
                           fsdp_error_t *err)
{
    return torch_out_finish(cat, 0, dir, fill_whole, NULL, err);
}
