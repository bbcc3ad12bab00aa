/*
 * Writing safetensors: in the order and with the padding of the official
 * writer, so that the same tensors are the same bytes.
 */
#include "config.h"

#include <endian.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/format/dcp.h"
#include "ckpt/format/safetensors.h"
#include "ckpt/value.h"
#include "lib/util/buffer.h"
#include "lib/util/check.h"
#include "lib/util/io.h"
#include "lib/util/json_text.h"

/* --- Text ----------------------------------------------------------------- */

/* A string that grows. */
__attribute__((format(printf, 2, 3))) static void text_printf(buffer_t *text,
                                                              const char *fmt,
                                                              ...)
{
    char *line;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vasprintf(&line, fmt, ap);
    va_end(ap);
    if (n < 0) {
        text->failed = true;
        return;
    }
    buffer_add(text, line, (size_t)n);
    free(line);
}

/* A JSON string with the escapes that the official writer chooses; a NUL may
 * be in it. */
static void text_bytes(buffer_t *text, const char *string, size_t size)
{
    static const char letters[] = "btn\0fr"; /* from 8 on */
    const unsigned char *p = (const unsigned char *)string;

    buffer_add(text, "\"", 1);
    for (const unsigned char *end = p + size; p < end; p++) {
        if (*p == '"' || *p == '\\') {
            text_printf(text, "\\%c", *p);
        } else if (*p >= 8 && *p <= 13 && letters[*p - 8] != '\0') {
            text_printf(text, "\\%c", letters[*p - 8]);
        } else if (*p < 32) {
            text_printf(text, "\\u%04x", *p);
        } else {
            buffer_add(text, (const char *)p, 1);
        }
    }
    buffer_add(text, "\"", 1);
}

static void text_string(buffer_t *text, const char *string)
{
    text_bytes(text, string, strlen(string));
}

static void text_numbers(buffer_t *text, const uint64_t *numbers, uint32_t num)
{
    buffer_add(text, "[", 1);
    for (uint32_t i = 0; i < num; i++) {
        text_printf(text, "%s%" PRIu64, (i > 0) ? "," : "", numbers[i]);
    }
    buffer_add(text, "]", 1);
}

static void text_key(buffer_t *text, const char *key, bool *first)
{
    buffer_add(text, ",", *first ? 0 : 1);
    text_string(text, key);
    buffer_add(text, ":", 1);
    *first = false;
}

static void text_pair(buffer_t *text, const char *key, const char *value,
                      bool *first)
{
    text_key(text, key, first);
    text_string(text, value);
}

/* Whether what is kept under this key of a source is written anew. */
static bool is_replaced(const catalog_t *cat, const char *key)
{
    bool replaced = strcmp(key, SAFETENSORS_VALUES) == 0 ||
                    strcmp(key, SAFETENSORS_SHARDING) == 0 ||
                    strcmp(key, SAFETENSORS_VERSION) == 0;

    for (uint64_t i = 0; i < cat->num_aliases && !replaced; i++) {
        replaced = strcmp(key, cat->aliases[i].name) == 0;
    }

    return replaced;
}

/* All values as one JSON text. */
static void text_values(buffer_t *text, const catalog_t *cat, bool *first)
{
    json_t *values = value_all(cat);
    char *line = (values != NULL) ? value_text(values) : NULL;

    if (line != NULL) {
        text_pair(text, SAFETENSORS_VALUES, line, first);
    } else {
        text->failed = true;
    }
    free(line);
    json_decref(values);
}

/* Place of a type in that order, or -1. */
static int dtype_rank(fsdp_dtype_t dtype)
{
    for (int i = 0; i < SAFETENSORS_NUM_DTYPES; i++) {
        if (safetensors_dtypes[i].dtype == dtype) {
            return i;
        }
    }

    return -1;
}

/* What the file has of a tensor: all of it, but in a shard. */
typedef struct {
    const catalog_tensor_t *tensor;
    int rank;
    uint64_t piece; /* where to tell its offset; CATALOG_NONE: it is empty */
    uint64_t start[FSDP_CKPT_MAX_NDIM], count[FSDP_CKPT_MAX_NDIM];
    uint64_t bytes;
} item_t;

/* Where the shards of a file begin in their tensors. */
static void text_sharding(buffer_t *text, const item_t *items, size_t num,
                          bool *first)
{
    buffer_t inner = {0};

    buffer_add(&inner, "{", 1);
    for (size_t i = 0; i < num; i++) {
        buffer_add(&inner, ", ", (i > 0) ? 2 : 0);
        text_string(&inner, items[i].tensor->name);
        text_printf(&inner, ": {\"" SAFETENSORS_OFFSETS "\": ");
        text_numbers(&inner, items[i].start, items[i].tensor->ndim);
        buffer_add(&inner, "}", 1);
    }
    buffer_add(&inner, "}", 2); /* and its '\0' */
    if (inner.failed) {
        text->failed = true;
    } else {
        text_pair(text, SAFETENSORS_SHARDING, inner.data, first);
        text_pair(text, SAFETENSORS_VERSION, "1.0", first);
    }
    buffer_free(&inner);
}

/* Tied names with the name of the tensor that is there, as
 * safetensors.torch.save_model() writes them; values. */
static void text_extra(buffer_t *text, const catalog_t *cat, bool *first)
{
    for (uint64_t i = 0; i < cat->num_aliases; i++) {
        const catalog_alias_t *alias = &cat->aliases[i];

        text_pair(text, alias->name, cat->tensors[alias->tensor].name, first);
    }
    if (cat->num_values > 0) {
        text_values(text, cat, first);
    }
}

/* "__metadata__": that of a source, if what was kept has one, and more. */
static void text_metadata(buffer_t *text, const catalog_t *cat, uint32_t file,
                          const item_t *items, size_t num)
{
    json_t *meta = json_text_parse(cat->meta), *value;
    json_t *metadata = json_object_get(meta, SAFETENSORS_METADATA);
    bool is_shard = cat->format == FSDP_CKPT_DCP_HF, first = true;
    const char *key;

    text_printf(text, "\"%s\":{", SAFETENSORS_METADATA);
    if (is_shard) {
        text_sharding(text, items, num, &first);
    }
    if (json_object_size(metadata) == 0) {
        text_pair(text, "format", "pt", &first);
    }
    json_object_foreach(metadata, key, value)
    {
        if (json_is_string(value) && !is_replaced(cat, key)) {
            text_key(text, key, &first);
            text_bytes(text, json_string_value(value),
                       json_string_length(value));
        }
    }
    if (!is_shard || file == 0) {
        text_extra(text, cat, &first);
    }
    buffer_add(text, "}", 1);
    json_decref(meta);
}

static int by_dtype_and_name(const void *a, const void *b)
{
    const item_t *left = a, *right = b;

    return (left->rank != right->rank)
               ? right->rank - left->rank
               : strcmp(left->tensor->name, right->tensor->name);
}

/* @return false if the file cannot hold it. */
static bool measure(const catalog_t *cat, item_t *item)
{
    const catalog_piece_t *piece = NULL;

    if (item->piece != CATALOG_NONE) {
        piece = &cat->pieces[item->piece];
        item->tensor = &cat->tensors[piece->tensor];
        item->bytes = catalog_piece_bytes(cat, piece);
    }

    memcpy(item->count, cat->dims + item->tensor->dims_first,
           item->tensor->ndim * sizeof(*item->count));
    item->rank = dtype_rank((fsdp_dtype_t)item->tensor->dtype);
    if (item->rank < 0 ||
        strcmp(item->tensor->name, SAFETENSORS_METADATA) == 0) {
        return false;
    }

    return piece == NULL || piece->count == item->tensor->numel ||
           (cat->format == FSDP_CKPT_DCP_HF &&
            dcp_chunk(cat, piece, item->start, item->count));
}

/* The tensors of a file in the writer's order.  Those without elements have no
 * piece that says where they belong: the first file has them. */
static fsdp_status_t collect(const catalog_t *cat, uint32_t file,
                             const uint64_t *pieces, uint64_t num,
                             item_t **items_p, size_t *num_p, fsdp_error_t *err)
{
    size_t room = (size_t)num + 1, count = 0;
    item_t *items;

    for (uint64_t t = 0; file == 0 && t < cat->num_tensors; t++) {
        room += cat->tensors[t].numel == 0;
    }
    items = calloc(room, sizeof(*items));
    if (items == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              cat->files[file].path);
    }

    for (uint64_t i = 0; i < num; i++) {
        items[count++].piece = pieces[i];
    }
    for (uint64_t t = 0; file == 0 && t < cat->num_tensors; t++) {
        if (cat->tensors[t].numel == 0) {
            items[count].tensor = &cat->tensors[t];
            items[count++].piece = CATALOG_NONE;
        }
    }

    for (size_t i = 0; i < count; i++) {
        const catalog_tensor_t *tensor;

        if (!measure(cat, &items[i])) {
            tensor = items[i].tensor;
            free(items);
            return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                                  "tensor %s (%s) cannot be written to "
                                  "safetensors: leave it out with --exclude "
                                  "'%s'",
                                  tensor->name,
                                  fsdp_dtype_name((fsdp_dtype_t)tensor->dtype),
                                  tensor->name);
        }
    }
    qsort(items, count, sizeof(*items), by_dtype_and_name);

    *items_p = items;
    *num_p = count;
    return FSDP_OK;
}

static void text_item(buffer_t *text, const item_t *item, uint64_t begin)
{
    buffer_add(text, ",", 1);
    text_string(text, item->tensor->name);
    text_printf(text, ":{\"dtype\":\"%s\",\"shape\":",
                safetensors_dtypes[item->rank].name);
    text_numbers(text, item->count, item->tensor->ndim);
    text_printf(text, ",\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin,
                begin + item->bytes);
}

static fsdp_status_t write_header(const char *path, const buffer_t *text,
                                  uint64_t size, fsdp_error_t *err)
{
    uint64_t head = htole64(text->size);
    fsdp_status_t status;
    int fd;

    FSDP_TRY(io_open(path, O_WRONLY | O_CREAT | O_EXCL, 0666, &fd, err));
    status = io_pwrite(fd, &head, sizeof(head), 0, path, err);
    if (status == FSDP_OK) {
        status = io_pwrite(fd, text->data, text->size, 8, path, err);
    }
    if (status == FSDP_OK) {
        status = io_truncate(fd, size, path, err);
    }
    return io_close(fd, status, path, err);
}

fsdp_status_t safetensors_create(catalog_t *cat, uint32_t file,
                                 const uint64_t *pieces, uint64_t num,
                                 const char *path, fsdp_error_t *err)
{
    buffer_t text = {0};
    fsdp_status_t status;
    uint64_t size = 0;
    item_t *items = NULL;
    size_t count = 0;

    FSDP_TRY(collect(cat, file, pieces, num, &items, &count, err));
    buffer_add(&text, "{", 1);
    text_metadata(&text, cat, file, items, count);
    for (size_t i = 0; i < count; i++) {
        text_item(&text, &items[i], size);
        size += items[i].bytes;
    }
    buffer_add(&text, "}", 1);
    buffer_add(&text, "       ", -text.size % 8);
    if (text.failed) {
        status = fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);
        goto err_free;
    }
    if (text.size > SAFETENSORS_HEADER_MAX) {
        status = fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                                "%s: a header of %zu bytes is more than "
                                "safetensors allows; write smaller shards",
                                path, text.size);
        goto err_free;
    }

    size = 8 + text.size;
    for (size_t i = 0; i < count; i++) {
        if (items[i].piece != CATALOG_NONE) {
            cat->pieces[items[i].piece].offset = size;
        }
        size += items[i].bytes;
    }
    cat->files[file].size = size;
    status = write_header(path, &text, size, err);
err_free:
    buffer_free(&text);
    free(items);
    return status;
}

/* model.safetensors.index.json, if there are several files. */
fsdp_status_t safetensors_finish(const catalog_t *cat, const char *dir,
                                 fsdp_error_t *err)
{
    json_t *map = json_object(), *index;
    char *path = io_path("%s/model" SAFETENSORS_INDEX, dir), *text = NULL,
         *whole;
    fsdp_status_t status = FSDP_OK;
    uint64_t total = 0;
    bool good = map != NULL && path != NULL;

    for (uint64_t t = 0; t < cat->num_tensors && good; t++) {
        const catalog_tensor_t *tensor = &cat->tensors[t];
        uint32_t file = (tensor->piece_count > 0)
                            ? cat->pieces[tensor->piece_first].file
                            : 0;

        total += tensor->bytes;
        good = json_object_set_new(map, tensor->name,
                                   json_string(cat->files[file].path)) == 0;
    }
    index = json_pack("{s:{s:I}, s:o}", "metadata", "total_size",
                      (json_int_t)total, "weight_map", map);
    if (good && index != NULL) {
        text = json_dumps(index, JSON_INDENT(2) | JSON_SORT_KEYS);
    }
    whole = (text != NULL) ? io_path("%s\n", text) : NULL;
    if (whole == NULL) {
        status = fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", dir);
    } else if (cat->num_files > 1) {
        status = io_replace_file(path, whole, strlen(whole), err);
    }

    free(whole);
    free(text);
    free(path);
    json_decref(index);
    return status;
}
