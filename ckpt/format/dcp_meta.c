#include "config.h"

#include "ckpt/format/dcp_meta.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/torch_object.h"
#include "lib/util/check.h"

/* --- Names ---------------------------------------------------------------- */

/* Texts to numbers, by open addressing. */
struct dcp_names {
    const char **keys;
    uint32_t *values;
    uint64_t size; /* a power of two */
};

static uint64_t hash_text(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325ull;

    for (; *text != '\0'; text++) {
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3ull;
    }

    return hash ^ (hash >> 29);
}

static bool names_init(dcp_names_t *names, uint64_t num)
{
    names->size = 16;
    while (names->size < 2 * num) {
        names->size *= 2;
    }
    names->keys = calloc(names->size, sizeof(*names->keys));
    names->values = calloc(names->size, sizeof(*names->values));
    return names->keys != NULL && names->values != NULL;
}

static void names_free(dcp_names_t *names)
{
    free(names->keys);
    free(names->values);
}

/* The place of a key, or the free one where it belongs. */
static uint64_t names_at(const dcp_names_t *names, const char *key)
{
    uint64_t at = hash_text(key) & (names->size - 1);

    while (names->keys[at] != NULL && strcmp(names->keys[at], key) != 0) {
        at = (at + 1) & (names->size - 1);
    }

    return at;
}

/* --- Reading -------------------------------------------------------------- */

typedef struct {
    dcp_meta_t *meta;
    const pickle_t *pickle;
    dcp_names_t names; /* of entries */
    dcp_names_t files;
} reader_t;

static fsdp_status_t bad(const reader_t *reader, const char *name,
                         const char *what, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_CORRUPT, "%s: %s%s%s",
                          reader->meta->path, (name != NULL) ? name : "",
                          (name != NULL) ? ": " : "", what);
}

static fsdp_status_t no_memory(const reader_t *reader, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                          reader->meta->path);
}

/* Index of an element of a tensor, and whether it lies in it; offsets at the
 * end of a dimension are those of empty chunks. */
static bool flat_index(const uint64_t *dims, const uint64_t *at, uint32_t ndim,
                       uint64_t *first_p)
{
    uint64_t first = 0;

    for (uint32_t d = 0; d < ndim; d++) {
        if (at[d] > dims[d]) {
            return false;
        }
        first = first * dims[d] + at[d];
    }

    *first_p = first;
    return true;
}

static bool element_count(const uint64_t *dims, uint32_t ndim,
                          uint64_t *numel_p)
{
    uint64_t numel = 1;

    for (uint32_t d = 0; d < ndim; d++) {
        if (dims[d] == 0) {
            *numel_p = 0;
            return true;
        }
    }
    for (uint32_t d = 0; d < ndim; d++) {
        if (__builtin_mul_overflow(numel, dims[d], &numel) ||
            numel > INT64_MAX) {
            return false;
        }
    }

    *numel_p = numel;
    return true;
}

/* --- Tensors and their chunks --------------------------------------------- */

static fsdp_status_t add_chunk(reader_t *reader, uint32_t index,
                               pickle_ref_t ref, fsdp_error_t *err)
{
    dcp_meta_t *meta = reader->meta;
    const dcp_entry_t *entry = &meta->entries[index];
    const uint64_t *dims = meta->dims + entry->dims_first;
    uint64_t at[FSDP_CKPT_MAX_NDIM], counts[FSDP_CKPT_MAX_NDIM], numel;
    dcp_chunk_t chunk = {.entry = index};
    uint32_t ndim_at, ndim;

    chunk.offsets = pickle_attr(reader->pickle, ref, "offsets");
    chunk.sizes = pickle_attr(reader->pickle, ref, "sizes");
    if (!pickle_u64s(reader->pickle, chunk.offsets, at, FSDP_CKPT_MAX_NDIM,
                     &ndim_at) ||
        !pickle_u64s(reader->pickle, chunk.sizes, counts, FSDP_CKPT_MAX_NDIM,
                     &ndim) ||
        ndim_at != entry->ndim || ndim != entry->ndim ||
        !element_count(counts, ndim, &numel) ||
        !flat_index(dims, at, ndim, &chunk.first)) {
        return bad(reader, entry->name, "a chunk of it makes no sense", err);
    }
    if (numel == 0) {
        return FSDP_OK;
    }

    if (meta->num_chunks == meta->max_chunks) {
        uint64_t max = meta->max_chunks + meta->max_chunks / 2 + 64;
        dcp_chunk_t *larger = reallocarray(meta->chunks, max, sizeof(*larger));

        if (larger == NULL) {
            return no_memory(reader, err);
        }
        meta->chunks = larger;
        meta->max_chunks = max;
    }
    meta->chunks[meta->num_chunks++] = chunk;
    return FSDP_OK;
}

/* The element type: an attribute of the properties in the first versions, the
 * first item of their state since. */
static const char *dtype_name(const pickle_t *pickle, pickle_ref_t properties)
{
    pickle_ref_t dtype = pickle_attr(pickle, properties, "dtype");

    if (dtype == 0) {
        dtype = pickle_item(pickle, pickle_state(pickle, properties), 0);
    }
    return pickle_last_name(pickle, dtype);
}

static fsdp_status_t read_shape(reader_t *reader, dcp_entry_t *entry,
                                pickle_ref_t size, fsdp_error_t *err)
{
    uint64_t dims[FSDP_CKPT_MAX_NDIM];
    dcp_meta_t *meta = reader->meta;

    if (!pickle_u64s(reader->pickle, size, dims, FSDP_CKPT_MAX_NDIM,
                     &entry->ndim) ||
        !element_count(dims, entry->ndim, &entry->numel)) {
        return bad(reader, entry->name, "its shape makes no sense", err);
    }

    if (meta->num_dims + entry->ndim >= meta->max_dims) {
        uint64_t max = 2 * meta->max_dims + 2 * FSDP_CKPT_MAX_NDIM;
        uint64_t *larger = reallocarray(meta->dims, max, sizeof(*larger));

        if (larger == NULL) {
            return no_memory(reader, err);
        }
        meta->dims = larger;
        meta->max_dims = max;
    }
    entry->dims_first = meta->num_dims;
    memcpy(meta->dims + meta->num_dims, dims, entry->ndim * sizeof(*dims));
    meta->num_dims += entry->ndim;
    return FSDP_OK;
}

static fsdp_status_t read_entry(reader_t *reader, uint32_t index,
                                pickle_ref_t key, pickle_ref_t value,
                                fsdp_error_t *err)
{
    const pickle_t *pickle = reader->pickle;
    dcp_entry_t *entry = &reader->meta->entries[index];
    pickle_ref_t chunks = pickle_attr(pickle, value, "chunks");
    const char *dtype;
    size_t size;
    uint64_t at;

    entry->owner = DCP_NONE;
    entry->name = pickle_str(pickle, key, &size);
    if (entry->name == NULL || strlen(entry->name) != size) {
        return bad(reader, NULL, "a tensor has a name that is no text", err);
    }
    at = names_at(&reader->names, entry->name);
    if (reader->names.keys[at] != NULL) {
        return bad(reader, entry->name, "is there twice", err);
    }
    reader->names.keys[at] = entry->name;
    reader->names.values[at] = index;

    if (pickle_is(pickle, value, "BytesStorageMetadata")) {
        entry->is_bytes = true;
        return FSDP_OK;
    }
    if (chunks == 0) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s: %s: %s is no kind of entry that is known",
                              reader->meta->path, entry->name,
                              pickle_last_name(pickle, value));
    }

    dtype = dtype_name(pickle, pickle_attr(pickle, value, "properties"));
    if (!torch_dtype(dtype, &entry->dtype)) {
        entry->is_bytes = entry->is_unread = true;
        return FSDP_OK;
    }
    FSDP_TRY(
        read_shape(reader, entry, pickle_attr(pickle, value, "size"), err));
    for (uint64_t i = 0; i < pickle_count(pickle, chunks); i++) {
        FSDP_TRY(add_chunk(reader, index, pickle_item(pickle, chunks, i), err));
    }

    return FSDP_OK;
}

static int by_entry(const void *a, const void *b)
{
    const dcp_chunk_t *left = a, *right = b;

    return (left->entry != right->entry)
               ? (left->entry > right->entry) - (left->entry < right->entry)
               : (left->first > right->first) - (left->first < right->first);
}

static fsdp_status_t read_entries(reader_t *reader, fsdp_error_t *err)
{
    const pickle_t *pickle = reader->pickle;
    dcp_meta_t *meta = reader->meta;
    pickle_ref_t dict =
        pickle_as_dict(pickle, pickle_attr(pickle, pickle_root(pickle),
                                           "state_dict_metadata"));
    uint64_t num = pickle_count(pickle, dict);

    if (dict == 0 || num >= DCP_NONE) {
        return bad(reader, NULL,
                   "has no state_dict_metadata: it is no metadata of a "
                   "distributed checkpoint",
                   err);
    }

    meta->entries = calloc(num + 1, sizeof(*meta->entries));
    if (meta->entries == NULL || !names_init(&reader->names, num)) {
        return no_memory(reader, err);
    }
    for (uint64_t i = 0; i < num; i++) {
        meta->num_entries = i + 1;
        FSDP_TRY(read_entry(reader, (uint32_t)i, pickle_key(pickle, dict, i),
                            pickle_item(pickle, dict, i), err));
    }

    for (uint64_t i = 1; i < meta->num_chunks; i++) {
        if (by_entry(&meta->chunks[i - 1], &meta->chunks[i]) > 0) {
            qsort(meta->chunks, meta->num_chunks, sizeof(*meta->chunks),
                  by_entry);
            break;
        }
    }
    return FSDP_OK;
}

/* --- Records -------------------------------------------------------------- */

/* A path below the directory: no other is opened. */
static bool is_inside(const char *path)
{
    const char *part = path;

    if (path[0] == '/' || path[0] == '\0') {
        return false;
    }
    for (;;) {
        size_t size = strcspn(part, "/");

        if (size == 2 && part[0] == '.' && part[1] == '.') {
            return false;
        }
        if (part[size] == '\0') {
            return true;
        }
        part += size + 1;
    }
}

static fsdp_status_t find_file(reader_t *reader, const char *path,
                               uint32_t *file_p, fsdp_error_t *err)
{
    dcp_meta_t *meta = reader->meta;
    uint64_t at = names_at(&reader->files, path);

    if (reader->files.keys[at] == NULL) {
        if (!is_inside(path)) {
            return bad(reader, path, "a file outside of the directory", err);
        }
        if (meta->num_files == meta->max_files) {
            uint32_t max = 2 * meta->max_files + 16;
            const char **larger =
                reallocarray(meta->files, max, sizeof(*larger));

            if (larger == NULL) {
                return no_memory(reader, err);
            }
            meta->files = larger;
            meta->max_files = max;
        }
        reader->files.keys[at] = path;
        reader->files.values[at] = meta->num_files;
        meta->files[meta->num_files++] = path;
    }

    *file_p = reader->files.values[at];
    return FSDP_OK;
}

/* The chunk that a record says it is; DCP_NONE for an empty one. */
static fsdp_status_t find_chunk(reader_t *reader, dcp_record_t *record,
                                pickle_ref_t offset, fsdp_error_t *err)
{
    const dcp_meta_t *meta = reader->meta;
    const dcp_entry_t *entry = &meta->entries[record->entry];
    uint64_t at[FSDP_CKPT_MAX_NDIM] = {0};
    uint32_t ndim = entry->ndim;
    dcp_chunk_t key = {.entry = record->entry};
    const dcp_chunk_t *found;

    /* Without an offset it is the whole tensor. */
    if (offset != 0 && pickle_kind(reader->pickle, offset) != PICKLE_NONE &&
        !pickle_u64s(reader->pickle, offset, at, FSDP_CKPT_MAX_NDIM, &ndim)) {
        return bad(reader, entry->name, "a record's offset is none", err);
    }
    if (ndim != entry->ndim ||
        !flat_index(meta->dims + entry->dims_first, at, ndim, &key.first)) {
        return bad(reader, entry->name, "a record lies outside of it", err);
    }

    /* Empty chunks may have the index of others, not their offset. */
    found = (meta->num_chunks > 0)
                ? bsearch(&key, meta->chunks, meta->num_chunks, sizeof(key),
                          by_entry)
                : NULL;
    if (found != NULL) {
        uint64_t start[FSDP_CKPT_MAX_NDIM];

        (void)pickle_u64s(reader->pickle, found->offsets, start,
                          FSDP_CKPT_MAX_NDIM, &ndim);
        if (memcmp(start, at, ndim * sizeof(*at)) == 0) {
            record->chunk = (uint32_t)(found - meta->chunks);
        }
    }
    return FSDP_OK;
}

/* What the record went through when it was written: "stream.zstd/1". */
static fsdp_status_t read_transforms(const reader_t *reader, const char *name,
                                     pickle_ref_t transforms,
                                     dcp_record_t *record, fsdp_error_t *err)
{
    static const char zstd[] = "stream.zstd/1";
    const pickle_t *pickle = reader->pickle;
    uint32_t num = pickle_count(pickle, transforms);

    for (uint32_t i = 0; i < num; i++) {
        const char *how =
            pickle_str(pickle, pickle_item(pickle, transforms, i), NULL);
        size_t size = sizeof(zstd) - 1;

        if (how == NULL || strncmp(how, zstd, size) != 0 ||
            (how[size] != '\0' && how[size] != '.') || i == CODEC_MOST) {
            return fsdp_error_set(
                err, FSDP_ERR_UNSUPPORTED,
                "%s: %s: its record went through the transform '%.100s', "
                "which is not known here (%s is): save it without",
                reader->meta->path, name, (how != NULL) ? how : "?", zstd);
        }
        record->zstd++;
    }

    return FSDP_OK;
}

static fsdp_status_t read_record(reader_t *reader, pickle_ref_t key,
                                 pickle_ref_t value, fsdp_error_t *err)
{
    const pickle_t *pickle = reader->pickle;
    dcp_meta_t *meta = reader->meta;
    const char *name =
        pickle_str(pickle, pickle_attr(pickle, key, "fqn"), NULL);
    const char *path =
        pickle_str(pickle, pickle_attr(pickle, value, "relative_path"), NULL);
    pickle_ref_t transforms =
        pickle_attr(pickle, value, "transform_descriptors");
    dcp_record_t record = {.chunk = DCP_NONE};
    uint64_t at;

    if (name == NULL || path == NULL ||
        !pickle_u64(pickle, pickle_attr(pickle, value, "offset"),
                    &record.offset) ||
        !pickle_u64(pickle, pickle_attr(pickle, value, "length"),
                    &record.length)) {
        return bad(reader, name, "an entry of storage_data makes no sense",
                   err);
    }
    FSDP_TRY(read_transforms(reader, name, transforms, &record, err));

    at = names_at(&reader->names, name);
    if (reader->names.keys[at] == NULL) {
        return bad(reader, name, "has a record but no entry", err);
    }
    record.entry = reader->names.values[at];
    if (!meta->entries[record.entry].is_bytes) {
        FSDP_TRY(find_chunk(reader, &record, pickle_attr(pickle, key, "offset"),
                            err));
        if (record.chunk == DCP_NONE) {
            return FSDP_OK; /* of an empty chunk */
        }
    }

    FSDP_TRY(find_file(reader, path, &record.file, err));
    meta->records[meta->num_records++] = record;
    return FSDP_OK;
}

static int by_place(const void *a, const void *b)
{
    const dcp_record_t *left = a, *right = b;

    return (left->file != right->file)
               ? (left->file > right->file) - (left->file < right->file)
               : (left->offset > right->offset) -
                     (left->offset < right->offset);
}

/* Of two with the same record the one that comes first owns it. */
static int by_place_and_entry(const void *a, const void *b)
{
    const dcp_record_t *left = a, *right = b;
    int order = by_place(a, b);

    return (order != 0)
               ? order
               : (left->entry > right->entry) - (left->entry < right->entry);
}

/* Tensors of one storage may share their records, all of them: then the
 * second one is another name of the first. */
static fsdp_status_t share_records(reader_t *reader, fsdp_error_t *err)
{
    dcp_meta_t *meta = reader->meta;
    uint64_t kept = 0;

    for (uint64_t i = 0; i < meta->num_records; i++) {
        const dcp_record_t *record = &meta->records[i];
        const dcp_record_t *before =
            (kept > 0) ? &meta->records[kept - 1] : NULL;
        dcp_entry_t *entry = &meta->entries[record->entry];

        if (before != NULL && before->file == record->file &&
            before->offset == record->offset &&
            before->length == record->length &&
            before->entry != record->entry && !entry->is_bytes &&
            (entry->owner == DCP_NONE || entry->owner == before->entry)) {
            entry->owner = before->entry;
            continue;
        }
        if (before != NULL && before->file == record->file &&
            record->offset - before->offset < before->length) {
            return bad(reader, entry->name,
                       "its record lies in that of another one", err);
        }
        entry->owned++;
        meta->records[kept++] = *record;
    }
    meta->num_records = kept;

    for (uint64_t e = 0; e < meta->num_entries; e++) {
        const dcp_entry_t *entry = &meta->entries[e], *owner;

        if (entry->owner == DCP_NONE) {
            continue;
        }
        owner = &meta->entries[entry->owner];
        if (entry->owned > 0 || owner->owner != DCP_NONE || owner->is_bytes ||
            entry->dtype != owner->dtype || entry->ndim != owner->ndim ||
            memcmp(meta->dims + entry->dims_first,
                   meta->dims + owner->dims_first,
                   entry->ndim * sizeof(*meta->dims)) != 0) {
            return bad(reader, entry->name,
                       "shares records with a tensor that is another one", err);
        }
    }
    return FSDP_OK;
}

static fsdp_status_t read_records(reader_t *reader, fsdp_error_t *err)
{
    const pickle_t *pickle = reader->pickle;
    dcp_meta_t *meta = reader->meta;
    pickle_ref_t dict = pickle_as_dict(
        pickle, pickle_attr(pickle, pickle_root(pickle), "storage_data"));
    uint64_t num = pickle_count(pickle, dict);

    if (dict == 0) {
        return bad(reader, NULL, "has no storage_data", err);
    }

    meta->records = calloc(num + 1, sizeof(*meta->records));
    if (meta->records == NULL || !names_init(&reader->files, num)) {
        return no_memory(reader, err);
    }
    for (uint64_t i = 0; i < num; i++) {
        FSDP_TRY(read_record(reader, pickle_key(pickle, dict, i),
                             pickle_item(pickle, dict, i), err));
    }

    if (meta->num_records > 1) {
        qsort(meta->records, meta->num_records, sizeof(*meta->records),
              by_place_and_entry);
    }
    return share_records(reader, err);
}

fsdp_status_t dcp_meta_read(int fd, uint64_t size, const char *path,
                            dcp_meta_t *meta, fsdp_error_t *err)
{
    reader_t reader = {.meta = meta};
    fsdp_status_t status;
    uint64_t used;

    *meta = (dcp_meta_t){.path = path};
    FSDP_TRY(pickle_parse_file(fd, 0, size, path, &meta->pickle, &used, err));
    reader.pickle = meta->pickle;
    if (used != size) {
        return bad(&reader, NULL, "bytes lie behind the end of its pickle",
                   err);
    }

    FSDP_TRY_GOTO(read_entries(&reader, err), err_free);
    FSDP_TRY_GOTO(read_records(&reader, err), err_free);
    meta->paths = pickle_as_dict(
        meta->pickle,
        pickle_attr(meta->pickle, pickle_root(meta->pickle), "planner_data"));
err_free:
    names_free(&reader.names);
    names_free(&reader.files);
    return status;
}

void dcp_record_steps(const dcp_record_t *record, codec_step_t *steps)
{
    for (uint32_t i = 0; i < record->zstd; i++) {
        steps[i] = (codec_step_t){.kind = CODEC_ZSTD};
    }
}

void dcp_meta_free(dcp_meta_t *meta)
{
    pickle_free(meta->pickle);
    free(meta->entries);
    free(meta->dims);
    free(meta->chunks);
    free(meta->records);
    free(meta->files);
    *meta = (dcp_meta_t){0};
}
