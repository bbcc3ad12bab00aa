/*
 * safetensors: one file, or shards with an index beside them.
 *
 *     u64 size of the header, little-endian | header, JSON | data
 *
 * The header maps each name to dtype, shape and its range of the data; the
 * ranges follow each other without a hole from 0 to the end of the file.
 * There are no checksums.  What is read here is checked as strictly as the
 * reference implementation does.
 */
#include "config.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/format.h"
#include "ckpt/format/safetensors.h"
#include "ckpt/format/torch.h"
#include "ckpt/value.h"
#include "lib/util/check.h"
#include "lib/util/dir.h"
#include "lib/util/io.h"
#include "lib/util/json_text.h"
#include "lib/util/text.h"

#define INDEX_MAX (1u << 30)

const safetensors_dtype_t safetensors_dtypes[] = {
    {"BOOL",        FSDP_DTYPE_BOOL       },
    {"F4",          FSDP_DTYPE_F4         },
    {"F6_E2M3",     FSDP_DTYPE_F6_E2M3    },
    {"F6_E3M2",     FSDP_DTYPE_F6_E3M2    },
    {"U8",          FSDP_DTYPE_U8         },
    {"I8",          FSDP_DTYPE_I8         },
    {"F8_E5M2",     FSDP_DTYPE_F8_E5M2    },
    {"F8_E4M3",     FSDP_DTYPE_F8_E4M3    },
    {"F8_E8M0",     FSDP_DTYPE_F8_E8M0    },
    {"F8_E4M3FNUZ", FSDP_DTYPE_F8_E4M3FNUZ},
    {"F8_E5M2FNUZ", FSDP_DTYPE_F8_E5M2FNUZ},
    {"I16",         FSDP_DTYPE_I16        },
    {"U16",         FSDP_DTYPE_U16        },
    {"F16",         FSDP_DTYPE_F16        },
    {"BF16",        FSDP_DTYPE_BF16       },
    {"I32",         FSDP_DTYPE_I32        },
    {"U32",         FSDP_DTYPE_U32        },
    {"F32",         FSDP_DTYPE_F32        },
    {"C64",         FSDP_DTYPE_C64        },
    {"F64",         FSDP_DTYPE_F64        },
    {"I64",         FSDP_DTYPE_I64        },
    {"U64",         FSDP_DTYPE_U64        },
};

/* --- Recognising ---------------------------------------------------------- */

static int is_member(const struct dirent *entry)
{
    return entry->d_name[0] != '.' &&
           (text_ends_with(entry->d_name, SAFETENSORS_END) ||
            text_ends_with(entry->d_name, SAFETENSORS_INDEX));
}

static bool probe(const format_look_t *look)
{
    uint64_t size;

    if (look->is_dir) {
        return dir_count(look->path, is_member) > 0 &&
               !torch_dir_has_models(look->path);
    }

    memcpy(&size, look->head, sizeof(size));
    size = le64toh(size);
    return text_ends_with(look->path, SAFETENSORS_END) ||
           text_ends_with(look->path, SAFETENSORS_INDEX) ||
           (look->size >= 8 && size <= look->size - 8 &&
            size <= SAFETENSORS_HEADER_MAX && look->head[8] == '{');
}

/* --- Reading one file ----------------------------------------------------- */

static fsdp_status_t bad(const safetensors_file_t *file, const char *name,
                         const char *what, fsdp_error_t *err)
{
    errno = 0;
    return (name != NULL)
               ? fsdp_error_set(err, FSDP_ERR_CORRUPT, "%s: tensor %s: %s",
                                file->path, name, what)
               : fsdp_error_set(err, FSDP_ERR_CORRUPT, "%s: %s", file->path,
                                what);
}

static fsdp_status_t parse_entry(const safetensors_file_t *file,
                                 const char *name, const json_t *value,
                                 safetensors_entry_t *entry, fsdp_error_t *err)
{
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    const json_t *offsets = json_object_get(value, "data_offsets");
    int rank;

    *entry = (safetensors_entry_t){.name = name,
                                   .shape = json_object_get(value, "shape")};
    for (rank = 0; dtype != NULL && rank < SAFETENSORS_NUM_DTYPES; rank++) {
        if (strcmp(dtype, safetensors_dtypes[rank].name) == 0) {
            break;
        }
    }
    if (dtype == NULL || rank == SAFETENSORS_NUM_DTYPES) {
        return bad(file, name, "its dtype is none that is known", err);
    }
    entry->dtype = safetensors_dtypes[rank].dtype;

    if (json_array_size(offsets) != 2 ||
        !json_text_u64(json_array_get(offsets, 0), &entry->begin) ||
        !json_text_u64(json_array_get(offsets, 1), &entry->end) ||
        entry->begin > entry->end) {
        return bad(file, name, "its data_offsets are no range", err);
    }
    if (!json_is_array(entry->shape) ||
        json_array_size(entry->shape) > FSDP_CKPT_MAX_NDIM) {
        return bad(file, name, "its shape is none", err);
    }

    return FSDP_OK;
}

static fsdp_status_t check_metadata(const safetensors_file_t *file,
                                    json_t *metadata, fsdp_error_t *err)
{
    const char *key;
    json_t *value;

    if (!json_is_object(metadata)) {
        return bad(file, NULL, SAFETENSORS_METADATA " is no object", err);
    }
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value)) {
            return bad(file, key,
                       "a value of " SAFETENSORS_METADATA " is no string", err);
        }
    }

    return FSDP_OK;
}

static int by_range(const void *a, const void *b)
{
    const safetensors_entry_t *left = a, *right = b;

    if (left->begin != right->begin) {
        return (left->begin > right->begin) - (left->begin < right->begin);
    }
    return (left->end > right->end) - (left->end < right->end);
}

/* The ranges must follow each other from 0 to the end of the file. */
static fsdp_status_t check_ranges(const safetensors_file_t *file,
                                  fsdp_error_t *err)
{
    uint64_t next = 0;

    for (size_t i = 0; i < file->num; i++) {
        const safetensors_entry_t *entry = &file->entries[i];

        if (entry->begin != next) {
            return bad(file, entry->name,
                       (entry->begin > next)
                           ? "bytes before its data belong to no tensor"
                           : "its data overlaps that of another tensor",
                       err);
        }
        next = entry->end;
    }

    if (next > file->data_size) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: has %" PRIu64 " bytes of data, should have "
                              "%" PRIu64 ": it was cut short",
                              file->path, file->data_size, next);
    }
    if (next < file->data_size) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: %" PRIu64 " bytes at its end belong to no "
                              "tensor",
                              file->path, file->data_size - next);
    }

    return FSDP_OK;
}

static fsdp_status_t parse_header(safetensors_file_t *file, const char *text,
                                  size_t size, fsdp_error_t *err)
{
    json_error_t why;
    const char *name;
    json_t *value;

    if (size == 0 || text[0] != '{') {
        return bad(file, NULL, "its header does not begin with '{'", err);
    }

    file->header =
        json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (file->header == NULL) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: its header is no JSON: %s", file->path,
                              why.text);
    }

    file->entries =
        calloc(json_object_size(file->header) + 1, sizeof(*file->entries));
    if (file->entries == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              file->path);
    }

    json_object_foreach(file->header, name, value)
    {
        if (strcmp(name, SAFETENSORS_METADATA) == 0) {
            FSDP_TRY(check_metadata(file, value, err));
        } else {
            FSDP_TRY(
                parse_entry(file, name, value, &file->entries[file->num], err));
            file->num++;
        }
    }
    if (file->num > 1) {
        qsort(file->entries, file->num, sizeof(*file->entries), by_range);
    }

    return check_ranges(file, err);
}

void safetensors_file_close(safetensors_file_t *file)
{
    json_decref(file->header);
    free(file->entries);
}

fsdp_status_t safetensors_file_open(const char *path, safetensors_file_t *file,
                                    fsdp_error_t *err)
{
    unsigned char head[8] = {0};
    fsdp_status_t status;
    char *text = NULL;
    uint64_t size;
    off_t end;
    int fd;

    *file = (safetensors_file_t){.path = path};
    FSDP_TRY(io_open(path, O_RDONLY, 0, &fd, err));
    end = lseek(fd, 0, SEEK_END);
    if (end < 0) {
        status = fsdp_error_set(err, FSDP_ERR_IO, "%s: %m", path);
        goto err_close;
    }
    if (end < 8) {
        status =
            bad(file, NULL, "shorter than 8 bytes: no safetensors file", err);
        goto err_close;
    }

    FSDP_TRY_GOTO(io_pread(fd, head, sizeof(head), 0, path, err), err_close);
    memcpy(&size, head, sizeof(size));
    size = le64toh(size);
    if (size > SAFETENSORS_HEADER_MAX || size > (uint64_t)end - 8) {
        status = fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                "%s: a header of %" PRIu64 " bytes is more "
                                "than the file or the format allow",
                                path, size);
        goto err_close;
    }

    text = malloc((size_t)size + 1);
    if (text == NULL) {
        status = fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);
        goto err_close;
    }

    FSDP_TRY_GOTO(io_pread(fd, text, (size_t)size, 8, path, err), err_close);
    file->data = 8 + size;
    file->data_size = (uint64_t)end - file->data;
    status = parse_header(file, text, (size_t)size, err);
    if (status != FSDP_OK) {
        safetensors_file_close(file);
    }
err_close:
    free(text);
    close(fd);
    return status;
}

/* --- Into the catalog ----------------------------------------------------- */

static fsdp_status_t add_entry(catalog_t *cat, const safetensors_file_t *file,
                               uint32_t file_index,
                               const safetensors_entry_t *entry,
                               fsdp_error_t *err)
{
    catalog_piece_t piece = {.file = file_index,
                             .offset = file->data + entry->begin,
                             .crc_first = CATALOG_NONE,
                             .box = CATALOG_NONE};
    uint64_t dims[FSDP_CKPT_MAX_NDIM], tensor;
    uint32_t ndim = (uint32_t)json_array_size(entry->shape);
    unsigned bits = fsdp_dtype_bits(entry->dtype);

    for (uint32_t d = 0; d < ndim; d++) {
        if (!json_text_u64(json_array_get(entry->shape, d), &dims[d])) {
            return bad(file, entry->name, "its shape is none", err);
        }
    }

    FSDP_TRY(catalog_add_tensor(cat, entry->name, entry->dtype, ndim, dims,
                                NULL, &tensor, err));
    if (bits % 8 != 0 && cat->tensors[tensor].numel % 8 * bits % 8 != 0) {
        return bad(file, entry->name, "its elements are no whole bytes", err);
    }
    if (cat->tensors[tensor].bytes != entry->end - entry->begin) {
        return bad(file, entry->name,
                   "its shape and its data_offsets do not agree", err);
    }

    piece.tensor = (uint32_t)tensor;
    piece.count = cat->tensors[tensor].numel;
    return catalog_add_piece(cat, &piece, err);
}

/* Add a file's tensors, and keep its metadata in @a meta. */
static fsdp_status_t add_file(catalog_t *cat, const char *name,
                              const safetensors_file_t *file, json_t *meta,
                              fsdp_error_t *err)
{
    json_t *metadata = json_object_get(file->header, SAFETENSORS_METADATA);
    json_t *kept = json_object_get(meta, SAFETENSORS_METADATA);
    uint32_t index;

    FSDP_TRY(
        catalog_add_file(cat, name, file->data + file->data_size, &index, err));
    for (size_t i = 0; i < file->num; i++) {
        FSDP_TRY(add_entry(cat, file, index, &file->entries[i], err));
    }

    if (metadata != NULL &&
        (kept != NULL
             ? json_object_update_missing(kept, metadata)
             : json_object_set(meta, SAFETENSORS_METADATA, metadata)) != 0) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              file->path);
    }
    return FSDP_OK;
}

/* Are the tensors of the file, by the index, all of those of another one? */
static bool is_other(const safetensors_file_t *file, const char *other,
                     const json_t *map)
{
    const char *name;
    size_t num = 0;
    json_t *value;

    for (size_t i = 0; i < file->num; i++) {
        value = json_object_get(map, file->entries[i].name);
        if (value == NULL || strcmp(json_string_value(value), other) != 0) {
            return false;
        }
    }
    json_object_foreach((json_t *)map, name, value)
    {
        num += strcmp(json_string_value(value), other) == 0;
    }

    return num == file->num;
}

/* The index and this file must name the same tensors in it. */
static fsdp_status_t check_index(const safetensors_file_t *file,
                                 const char *name, const json_t *map,
                                 fsdp_error_t *err)
{
    for (size_t i = 0; i < file->num; i++) {
        const char *there =
            json_string_value(json_object_get(map, file->entries[i].name));

        if (there != NULL && strcmp(there, name) != 0 &&
            is_other(file, there, map)) {
            return fsdp_error_set(err, FSDP_ERR_CORRUPT, FORMAT_EXCHANGED,
                                  file->path, there);
        }
        if (there == NULL || strcmp(there, name) != 0) {
            return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                  "%s: tensor %s is in this file, but the "
                                  "index says %s",
                                  file->path, file->entries[i].name,
                                  (there != NULL) ? there : "nothing of it");
        }
    }

    return FSDP_OK;
}

static fsdp_status_t add_shard(catalog_t *cat, const char *dir,
                               const char *name, const json_t *map,
                               json_t *meta, fsdp_error_t *err)
{
    char *path = io_path("%s/%s", dir, name);
    fsdp_status_t status;
    safetensors_file_t file;

    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", dir);
    }

    status = safetensors_file_open(path, &file, err);
    if (status == FSDP_ERR_NOT_FOUND) {
        status = fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                "%s: the index names this file, but it is "
                                "missing",
                                path);
    }
    if (status == FSDP_OK) {
        status = (map != NULL) ? check_index(&file, name, map, err) : FSDP_OK;
        if (status == FSDP_OK) {
            status = add_file(cat, name, &file, meta, err);
        }
        safetensors_file_close(&file);
    }
    free(path);
    return status;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* All tensors of the index must have been in the files it names. */
static fsdp_status_t check_found(const catalog_t *cat, const char *path,
                                 const json_t *map, fsdp_error_t *err)
{
    const char *name;
    uint64_t tensor;
    json_t *value;

    json_object_foreach((json_t *)map, name, value)
    {
        if (!catalog_find(cat, name, &tensor)) {
            return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                  "%s: tensor %s should be in %s, but is not",
                                  path, name, json_string_value(value));
        }
    }

    return FSDP_OK;
}

/* File names of a weight map, each once, sorted.  The array is the caller's,
 * the names belong to the map. */
static fsdp_status_t shard_names(const char *path, json_t *map,
                                 const char ***names_p, size_t *num_p,
                                 fsdp_error_t *err)
{
    const char **names = calloc(json_object_size(map) + 1, sizeof(*names));
    size_t num = 0, unique = 0;
    const char *tensor;
    json_t *value;

    if (names == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);
    }

    json_object_foreach(map, tensor, value)
    {
        const char *name = json_string_value(value);

        if (name == NULL || name[0] == '\0' || name[0] == '.' ||
            strchr(name, '/') != NULL) {
            free(names);
            return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                  "%s: tensor %s: no file name in the index",
                                  path, tensor);
        }
        names[num++] = name;
    }
    if (num > 1) {
        qsort(names, num, sizeof(*names), by_text);
    }
    for (size_t i = 0; i < num; i++) {
        if (unique == 0 || strcmp(names[unique - 1], names[i]) != 0) {
            names[unique++] = names[i];
        }
    }

    *names_p = names;
    *num_p = unique;
    return FSDP_OK;
}

static fsdp_status_t load_index(const char *path, json_t **index_p,
                                fsdp_error_t *err)
{
    json_error_t why;
    json_t *index;
    char *text;
    size_t size;

    FSDP_TRY(io_read_file(path, INDEX_MAX, &text, &size, err));
    index = json_loadb(text, size, JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (index == NULL) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT, "%s: line %d: %s", path,
                              why.line, why.text);
    }
    if (!json_is_object(json_object_get(index, "weight_map"))) {
        json_decref(index);
        return fsdp_error_set(err, FSDP_ERR_CORRUPT, "%s: has no weight_map",
                              path);
    }

    *index_p = index;
    return FSDP_OK;
}

/* --- What our writer keeps beside the tensors ----------------------------- */

static json_t *names_of(const catalog_t *cat)
{
    json_t *names = json_object();

    for (uint64_t t = 0; names != NULL && t < cat->num_tensors; t++) {
        if (json_object_set_new(names, cat->tensors[t].name, json_true()) !=
            0) {
            json_decref(names);
            names = NULL;
        }
    }

    return names;
}

static fsdp_status_t take_values(catalog_t *cat, json_t *metadata,
                                 fsdp_error_t *err)
{
    json_t *text = json_object_get(metadata, SAFETENSORS_VALUES), *values;
    fsdp_status_t status;

    if (text == NULL) {
        return FSDP_OK;
    }

    FSDP_TRY(value_parse(cat->path, json_string_value(text),
                         json_string_length(text), &values, err));
    status = value_add_all(cat, values, err);
    json_decref(values);
    json_object_del(metadata, SAFETENSORS_VALUES);
    return status;
}

/* A tied name is one that is no tensor, with the name of one. */
fsdp_status_t safetensors_take_extra(catalog_t *cat, json_t *meta,
                                     fsdp_error_t *err)
{
    json_t *metadata = json_object_get(meta, SAFETENSORS_METADATA), *value;
    fsdp_status_t status = FSDP_OK;
    json_t *names;
    const char *key;
    void *next;

    if (json_object_size(metadata) == 0) {
        return FSDP_OK;
    }

    FSDP_TRY(take_values(cat, metadata, err));
    names = names_of(cat);
    if (names == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              cat->path);
    }
    json_object_foreach_safe(metadata, next, key, value)
    {
        const char *owner = json_string_value(value);

        if (json_object_get(names, owner) != NULL &&
            json_object_get(names, key) == NULL) {
            FSDP_TRY_GOTO(catalog_add_alias(cat, key, owner, err), err_names);
            json_object_del(metadata, key);
        }
    }
err_names:
    json_decref(names);
    return status;
}

static fsdp_status_t open_sharded(const char *dir, const char *name,
                                  catalog_t *cat, json_t *meta,
                                  fsdp_error_t *err)
{
    char *path = io_path("%s/%s", dir, name);
    const char **names = NULL;
    json_t *index = NULL, *map;
    fsdp_status_t status;
    size_t num = 0;

    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", dir);
    }

    FSDP_TRY_GOTO(load_index(path, &index, err), err_free);
    map = json_object_get(index, "weight_map");
    FSDP_TRY_GOTO(shard_names(path, map, &names, &num, err), err_free);
    for (size_t i = 0; i < num; i++) {
        FSDP_TRY_GOTO(add_shard(cat, dir, names[i], map, meta, err), err_free);
    }
    FSDP_TRY_GOTO(safetensors_take_extra(cat, meta, err), err_free);
    FSDP_TRY_GOTO(catalog_seal(cat, CATALOG_CHECK_ALL, err), err_free);
    status = check_found(cat, path, map, err);
err_free:
    free(names);
    json_decref(index);
    free(path);
    return status;
}

/* --- Opening -------------------------------------------------------------- */

size_t safetensors_shard(const char *name, unsigned *number_p,
                         unsigned *total_p)
{
    static const char form[] = "-00001-of-00001.safetensors";
    size_t size = strlen(name), tail = sizeof(form) - 1;
    char again[sizeof(form)];

    if (size <= tail ||
        sscanf(name + size - tail, "-%5u-of-%5u.", number_p, total_p) != 2) {
        return 0;
    }
    snprintf(again, sizeof(again), "-%05u-of-%05u.safetensors", *number_p,
             *total_p);
    return (strcmp(again, name + size - tail) == 0) ? size - tail : 0;
}

static bool is_one_of_many(const char *name)
{
    unsigned number, total;

    return safetensors_shard(name, &number, &total) > 0 && total > 1;
}

/*
 * Which file of a directory to begin with: as transformers does, one file
 * before an index, and the usual names before others.
 */
static fsdp_status_t choose_member(const char *dir, char **name_p,
                                   fsdp_error_t *err)
{
    static const char *const usual[] = {"model.safetensors",
                                        "model" SAFETENSORS_INDEX};
    int num, indexes = 0, chosen = -1;
    struct dirent **names;

    num = scandir(dir, &names, is_member, alphasort);
    if (num < 0) {
        return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot read: %m", dir);
    }

    for (size_t u = 0; u < 2 && chosen < 0; u++) {
        for (int i = 0; i < num && chosen < 0; i++) {
            chosen = (strcmp(names[i]->d_name, usual[u]) == 0) ? i : -1;
        }
    }
    for (int i = 0; i < num && chosen < 0; i++) {
        indexes += text_ends_with(names[i]->d_name, SAFETENSORS_INDEX);
    }
    for (int i = 0; i < num && chosen < 0; i++) {
        if ((num == 1 && !is_one_of_many(names[i]->d_name)) ||
            (indexes == 1 &&
             text_ends_with(names[i]->d_name, SAFETENSORS_INDEX))) {
            chosen = i;
        }
    }

    *name_p = (chosen >= 0) ? strdup(names[chosen]->d_name) : NULL;
    dir_free(names, num);

    if (chosen < 0) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: %d safetensors file%s and no index that "
                              "says how they belong together: fsdp-verify "
                              "--repair builds one, or name one of them",
                              dir, num, (num == 1) ? "" : "s");
    }
    if (*name_p == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", dir);
    }
    return FSDP_OK;
}

/* A model's config.json beside it belongs to what is kept. */
static fsdp_status_t add_config(const char *dir, json_t *meta,
                                fsdp_error_t *err)
{
    char *path = io_path("%s/config.json", dir), *text;
    fsdp_status_t status = FSDP_OK;
    json_error_t why;
    json_t *config;
    size_t size;

    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", dir);
    }
    if (access(path, F_OK) != 0) {
        goto err_free;
    }

    FSDP_TRY_GOTO(io_read_file(path, SAFETENSORS_HEADER_MAX, &text, &size, err),
                  err_free);
    config = json_loadb(text, size, 0, &why);
    free(text);
    if (config == NULL) {
        status = fsdp_error_set(err, FSDP_ERR_CORRUPT, "%s: line %d: %s", path,
                                why.line, why.text);
    } else if (json_object_set_new(meta, "user",
                                   json_pack("{s:o}", "config", config)) != 0) {
        status = fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);
    }
err_free:
    free(path);
    return status;
}

fsdp_status_t safetensors_keep_meta(catalog_t *cat, const json_t *meta,
                                    fsdp_error_t *err)
{
    char *text = json_dumps(meta, JSON_COMPACT);

    cat->meta = (text != NULL) ? catalog_strdup(cat, text) : NULL;
    free(text);
    if (cat->meta == NULL) {
        cat->meta = "{}";
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              cat->path);
    }

    return FSDP_OK;
}

static fsdp_status_t open_member(const char *dir, const char *name,
                                 catalog_t *cat, fsdp_error_t *err)
{
    json_t *meta = json_object();
    fsdp_status_t status;

    cat->root = catalog_strdup(cat, dir);
    if (meta == NULL || cat->root == NULL) {
        status = fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", dir);
        goto err_free;
    }

    FSDP_TRY_GOTO(add_config(dir, meta, err), err_free);
    if (text_ends_with(name, SAFETENSORS_INDEX)) {
        FSDP_TRY_GOTO(open_sharded(dir, name, cat, meta, err), err_free);
    } else {
        FSDP_TRY_GOTO(add_shard(cat, dir, name, NULL, meta, err), err_free);
        FSDP_TRY_GOTO(safetensors_take_extra(cat, meta, err), err_free);
        FSDP_TRY_GOTO(catalog_seal(cat, CATALOG_CHECK_ALL, err), err_free);
    }
    status = safetensors_keep_meta(cat, meta, err);
err_free:
    json_decref(meta);
    return status;
}

static fsdp_status_t open_any(const char *path, catalog_t *cat,
                              fsdp_error_t *err)
{
    fsdp_status_t status;
    format_look_t look;
    char *dir, *name = NULL;

    FSDP_TRY(format_look(path, &look, err));
    if (look.is_dir) {
        FSDP_TRY(choose_member(path, &name, err));
        status = open_member(path, name, cat, err);
        free(name);
        return status;
    }

    dir = io_parent(path);
    if (dir == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);
    }
    status = open_member(dir, io_base(path), cat, err);
    free(dir);
    return status;
}

/* One of several files, as of another set of that name that was written there
 * before. */
static format_extra_t extra(const catalog_t *cat, const char *path,
                            uint64_t size)
{
    unsigned number, total;
    size_t stem = safetensors_shard(path, &number, &total);

    (void)size;
    for (uint32_t i = 0; i < cat->num_files && stem > 0; i++) {
        if (safetensors_shard(cat->files[i].path, &number, &total) == stem &&
            strncmp(cat->files[i].path, path, stem) == 0) {
            return FORMAT_EXTRA;
        }
    }

    return FORMAT_FOREIGN;
}

const format_t format_safetensors = {
    .id = FSDP_CKPT_SAFETENSORS,
    .name = "safetensors",
    .what = "safetensors",
    .probe = probe,
    .open = open_any,
    .extra = extra,
    .create = safetensors_create,
    .finish = safetensors_finish,
};
