#define _GNU_SOURCE
#include "config.h"

#include "ckpt/catalog.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/catalog_box.h"
#include "ckpt/span.h"
#include "lib/util/check.h"
#include "lib/util/io.h"
#include "lib/util/nearest.h"

/* --- Memory --------------------------------------------------------------- */

enum { CHUNK_SIZE = 64 << 10 };

struct catalog_chunk {
    catalog_chunk_t *next;
    size_t used, size;
    char data[];
};

static fsdp_status_t no_memory(const catalog_t *cat, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                          "%s: no memory for the table of tensors", cat->path);
}

static char *arena_alloc(catalog_t *cat, size_t size)
{
    catalog_chunk_t *chunk = cat->arena;
    char *data;

    if (chunk == NULL || chunk->size - chunk->used < size) {
        size_t room = (size > CHUNK_SIZE) ? size : CHUNK_SIZE;

        chunk = malloc(sizeof(*chunk) + room);
        if (chunk == NULL) {
            return NULL;
        }
        *chunk = (catalog_chunk_t){.next = cat->arena, .size = room};
        cat->arena = chunk;
    }

    data = chunk->data + chunk->used;
    chunk->used += size;
    return data;
}

const char *catalog_strdup(catalog_t *cat, const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = arena_alloc(cat, size);

    return (copy != NULL) ? memcpy(copy, text, size) : NULL;
}

/* Make room for @a more entries; @return the array, NULL without memory. */
static void *grow(void *array, uint64_t num, uint64_t more, uint64_t *max,
                  size_t size)
{
    uint64_t want, bytes;
    void *larger;

    if (more <= *max - num) {
        return array;
    }

    if (__builtin_add_overflow(num, more, &want)) {
        return NULL;
    }
    if (want < 2 * *max) {
        want = 2 * *max;
    } else if (want < 16) {
        want = 16;
    }
    if (__builtin_mul_overflow(want, size, &bytes)) {
        return NULL;
    }

    larger = realloc(array, (size_t)bytes);
    if (larger != NULL) {
        *max = want;
    }
    return larger;
}

#define GROW(_cat, _array, _num, _max, _more)                           \
    ({                                                                  \
        uint64_t _grown = (_cat)->_max;                                 \
        void *_p = grow((_cat)->_array, (_cat)->_num, (_more), &_grown, \
                        sizeof(*(_cat)->_array));                       \
        if (_p != NULL) {                                               \
            (_cat)->_array = _p;                                        \
            (_cat)->_max = (__typeof__((_cat)->_max))_grown;            \
        }                                                               \
        _p != NULL;                                                     \
    })

void catalog_init(catalog_t *cat)
{
    *cat = (catalog_t){.step = -1, .meta = "{}", .path = "", .root = "."};
}

void catalog_free(catalog_t *cat)
{
    catalog_chunk_t *next;

    for (catalog_chunk_t *chunk = cat->arena; chunk != NULL; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    free(cat->tensors);
    free(cat->pieces);
    free(cat->files);
    free(cat->aliases);
    free(cat->values);
    free(cat->spans);
    free(cat->notes);
    free(cat->units);
    free(cat->dims);
    free(cat->crcs);
    free(cat->boxes);
    free(cat->codes);
    free(cat->steps);
    free(cat->inlined);
    catalog_init(cat);
}

/* --- Filling -------------------------------------------------------------- */

fsdp_status_t catalog_add_file(catalog_t *cat, const char *path, uint64_t size,
                               uint32_t *file_p, fsdp_error_t *err)
{
    catalog_file_t file = {.size = size};

    if (cat->num_files == CATALOG_NONE) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT, "%s: too many files",
                              cat->path);
    }

    file.path = catalog_strdup(cat, path);
    if (file.path == NULL || !GROW(cat, files, num_files, max_files, 1)) {
        return no_memory(cat, err);
    }

    *file_p = cat->num_files;
    cat->files[cat->num_files++] = file;
    return FSDP_OK;
}

/* Units are mentioned in runs: look at the last one first. */
static bool add_unit(catalog_t *cat, const char *name, uint32_t *unit_p)
{
    uint32_t last = CATALOG_NONE;

    if (name == NULL) {
        *unit_p = CATALOG_NONE;
        return true;
    }

    if (cat->num_tensors > 0) {
        last = cat->tensors[cat->num_tensors - 1].unit;
    }
    if (last != CATALOG_NONE && strcmp(cat->units[last], name) == 0) {
        *unit_p = last;
        return true;
    }
    for (uint32_t i = 0; i < cat->num_units; i++) {
        if (strcmp(cat->units[i], name) == 0) {
            *unit_p = i;
            return true;
        }
    }

    if (!GROW(cat, units, num_units, max_units, 1)) {
        return false;
    }
    cat->units[cat->num_units] = catalog_strdup(cat, name);
    if (cat->units[cat->num_units] == NULL) {
        return false;
    }
    *unit_p = cat->num_units++;
    return true;
}

/* Elements and bytes of a shape. */
static fsdp_status_t measure(const catalog_t *cat, const char *name,
                             catalog_tensor_t *tensor, const uint64_t *dims,
                             fsdp_error_t *err)
{
    bool fits = true;

    tensor->numel = 1;
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        if (dims[d] == 0) {
            tensor->numel = 0;
            break;
        }
    }
    for (uint32_t d = 0; d < tensor->ndim && tensor->numel > 0 && fits; d++) {
        fits = !__builtin_mul_overflow(tensor->numel, dims[d], &tensor->numel);
    }

    if (!fits ||
        !dtype_bytes((fsdp_dtype_t)tensor->dtype, tensor->numel,
                     &tensor->bytes) ||
        tensor->bytes > INT64_MAX) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: tensor %s: its shape has more than 2^63 "
                              "bytes",
                              cat->path, name);
    }

    return FSDP_OK;
}

fsdp_status_t catalog_add_tensor(catalog_t *cat, const char *name,
                                 fsdp_dtype_t dtype, uint32_t ndim,
                                 const uint64_t *dims, const char *unit,
                                 uint64_t *tensor_p, fsdp_error_t *err)
{
    catalog_tensor_t tensor = {.dtype = (uint8_t)dtype,
                               .stored = (uint8_t)dtype,
                               .ndim = (uint8_t)ndim};

    if (!dtype_valid((unsigned)dtype) || ndim > FSDP_CKPT_MAX_NDIM ||
        cat->num_tensors == CATALOG_NONE) {
        return fsdp_error_set(
            err, FSDP_ERR_CORRUPT,
            "%s: tensor %s: element type %u and %u dimensions "
            "are not known here",
            cat->path, name, (unsigned)dtype, ndim);
    }

    FSDP_TRY(measure(cat, name, &tensor, dims, err));
    tensor.name = catalog_strdup(cat, name);
    tensor.order = (uint32_t)cat->num_tensors;
    tensor.dims_first = cat->num_dims;
    if (tensor.name == NULL || !add_unit(cat, unit, &tensor.unit) ||
        !GROW(cat, dims, num_dims, max_dims, ndim + 1) ||
        !GROW(cat, tensors, num_tensors, max_tensors, 1)) {
        return no_memory(cat, err);
    }

    if (ndim > 0) {
        memcpy(cat->dims + cat->num_dims, dims, ndim * sizeof(*dims));
    }
    cat->num_dims += ndim;
    if (tensor_p != NULL) {
        *tensor_p = cat->num_tensors;
    }
    cat->tensors[cat->num_tensors++] = tensor;
    return FSDP_OK;
}

static fsdp_status_t append_piece(catalog_t *cat, const catalog_piece_t *piece,
                                  fsdp_error_t *err)
{
    if (piece->count == 0) {
        return FSDP_OK;
    }

    if (piece->tensor >= cat->num_tensors || piece->file >= cat->num_files ||
        cat->num_pieces == CATALOG_NONE) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: piece %" PRIu64 " is of tensor %u in file "
                              "%u, which do not exist",
                              cat->path, cat->num_pieces, piece->tensor,
                              piece->file);
    }

    if (!GROW(cat, pieces, num_pieces, max_pieces, 1)) {
        return no_memory(cat, err);
    }

    cat->pieces[cat->num_pieces++] = *piece;
    return FSDP_OK;
}

fsdp_status_t catalog_set_stored(catalog_t *cat, uint64_t index,
                                 fsdp_dtype_t stored, fsdp_error_t *err)
{
    catalog_tensor_t *tensor = &cat->tensors[index];
    uint64_t bytes;

    if (!dtype_is_float(stored) ||
        !dtype_is_float((fsdp_dtype_t)tensor->dtype)) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s: tensor %s: no conversion from %s to %s",
                              cat->path, tensor->name, fsdp_dtype_name(stored),
                              fsdp_dtype_name((fsdp_dtype_t)tensor->dtype));
    }
    if (!dtype_bytes(stored, tensor->numel, &bytes) || bytes > INT64_MAX) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: tensor %s: its shape has more than 2^63 "
                              "bytes",
                              cat->path, tensor->name);
    }

    tensor->stored = (uint8_t)stored;
    return FSDP_OK;
}

fsdp_status_t catalog_add_piece(catalog_t *cat, const catalog_piece_t *piece,
                                fsdp_error_t *err)
{
    catalog_piece_t added = *piece;

    added.box = CATALOG_NONE;
    return append_piece(cat, &added, err);
}

fsdp_status_t catalog_add_box(catalog_t *cat, const catalog_piece_t *piece,
                              const uint64_t *start, const uint64_t *count,
                              const uint64_t *strides, fsdp_error_t *err)
{
    return catalog_add_changed(cat, piece, start, count, strides, 0, err);
}

fsdp_status_t catalog_add_changed(catalog_t *cat, const catalog_piece_t *piece,
                                  const uint64_t *start, const uint64_t *count,
                                  const uint64_t *strides, unsigned change,
                                  fsdp_error_t *err)
{
    catalog_piece_t added = *piece;
    const catalog_tensor_t *tensor;
    uint64_t *words;
    bool is_range;

    if (piece->tensor >= cat->num_tensors) {
        return catalog_add_piece(cat, piece, err); /* that says why not */
    }

    tensor = &cat->tensors[piece->tensor];
    FSDP_TRY(box_measure(cat, &added, start, count, strides, &is_range, err));
    if ((is_range && change == 0) || added.count == 0) {
        return catalog_add_piece(cat, &added, err);
    }

    if (cat->num_boxes > CATALOG_NONE - 3ull * FSDP_CKPT_MAX_NDIM - 1 ||
        !GROW(cat, boxes, num_boxes, max_boxes, 3ull * tensor->ndim + 1)) {
        return no_memory(cat, err);
    }
    added.box = (uint32_t)cat->num_boxes;
    FSDP_TRY(append_piece(cat, &added, err));

    words = cat->boxes + cat->num_boxes;
    memcpy(words, start, tensor->ndim * sizeof(*words));
    memcpy(words + tensor->ndim, count, tensor->ndim * sizeof(*words));
    box_strides(tensor->ndim, count, strides, words + 2u * tensor->ndim);
    words[3u * tensor->ndim] = change;
    cat->num_boxes += 3ull * tensor->ndim + 1;
    return FSDP_OK;
}

fsdp_status_t catalog_add_crcs(catalog_t *cat, uint32_t file, uint64_t num,
                               fsdp_error_t *err)
{
    catalog_file_t *entry = &cat->files[file];

    if (num >= CATALOG_NONE - cat->num_crcs) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT, "%s: too many checksums",
                              entry->path);
    }
    /* One more: there is an array, to which places are relative, for none. */
    if (!GROW(cat, crcs, num_crcs, max_crcs, num + 1)) {
        return no_memory(cat, err);
    }

    memset(cat->crcs + cat->num_crcs, 0, num * sizeof(*cat->crcs));
    entry->crc_first = (uint32_t)cat->num_crcs;
    entry->crc_count = (uint32_t)num;
    cat->num_crcs += num;
    return FSDP_OK;
}

fsdp_status_t catalog_add_alias(catalog_t *cat, const char *name,
                                const char *owner, fsdp_error_t *err)
{
    catalog_alias_t alias = {.name = catalog_strdup(cat, name),
                             .owner = catalog_strdup(cat, owner)};

    if (alias.name == NULL || alias.owner == NULL ||
        !GROW(cat, aliases, num_aliases, max_aliases, 1)) {
        return no_memory(cat, err);
    }

    cat->aliases[cat->num_aliases++] = alias;
    return FSDP_OK;
}

fsdp_status_t catalog_add_note(catalog_t *cat, fsdp_error_t *err,
                               const char *fmt, ...)
{
    const char *note = NULL;
    char *text = NULL;
    va_list ap;

    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) >= 0) {
        note = catalog_strdup(cat, text);
        free(text);
    }
    va_end(ap);
    if (note == NULL || !GROW(cat, notes, num_notes, max_notes, 1)) {
        return no_memory(cat, err);
    }

    cat->notes[cat->num_notes++] = note;
    return FSDP_OK;
}

fsdp_status_t catalog_add_span(catalog_t *cat, const catalog_span_t *span,
                               fsdp_error_t *err)
{
    if (!GROW(cat, spans, num_spans, max_spans, 1)) {
        return no_memory(cat, err);
    }

    cat->spans[cat->num_spans++] = *span;
    return FSDP_OK;
}

fsdp_status_t catalog_add_code(catalog_t *cat, const catalog_code_t *code,
                               const codec_step_t *steps, unsigned num_steps,
                               uint32_t *code_p, fsdp_error_t *err)
{
    catalog_code_t added = *code;
    const catalog_code_t *last;

    if (code->file >= cat->num_files || cat->num_codes >= CATALOG_NONE - 1) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: too many encoded parts, or in no file",
                              cat->path);
    }
    if (!GROW(cat, codes, num_codes, max_codes, 1) ||
        (num_steps > 0 && !GROW(cat, steps, num_steps, max_steps, num_steps))) {
        return no_memory(cat, err);
    }

    /* Most have the steps of the one before. */
    last = (cat->num_codes > 0) ? &cat->codes[cat->num_codes - 1] : NULL;
    added.num_steps = num_steps;
    if (num_steps == 0) {
        added.step_first = 0;
    } else if (last != NULL && last->num_steps == num_steps &&
               memcmp(cat->steps + last->step_first, steps,
                      num_steps * sizeof(*steps)) == 0) {
        added.step_first = last->step_first;
    } else {
        added.step_first = (uint32_t)cat->num_steps;
        memcpy(cat->steps + cat->num_steps, steps, num_steps * sizeof(*steps));
        cat->num_steps += num_steps;
    }
    cat->codes[cat->num_codes++] = added;
    *code_p = (uint32_t)cat->num_codes;
    return FSDP_OK;
}

fsdp_status_t catalog_add_inlined(catalog_t *cat, const void *data,
                                  uint64_t length, uint64_t bytes,
                                  uint32_t *code_p, fsdp_error_t *err)
{
    const catalog_code_t code = {.offset = cat->num_inlined,
                                 .length = length,
                                 .bytes = bytes,
                                 .inlined = true};

    if (length == 0 || !GROW(cat, inlined, num_inlined, max_inlined, length)) {
        return no_memory(cat, err);
    }

    memcpy(cat->inlined + cat->num_inlined, data, length);
    cat->num_inlined += length;
    return catalog_add_code(cat, &code, NULL, 0, code_p, err);
}

fsdp_status_t catalog_add_value(catalog_t *cat, const char *name,
                                const char *json, fsdp_error_t *err)
{
    catalog_value_t value = {.name = catalog_strdup(cat, name),
                             .json = catalog_strdup(cat, json)};

    if (value.name == NULL || value.json == NULL ||
        !GROW(cat, values, num_values, max_values, 1)) {
        return no_memory(cat, err);
    }

    cat->values[cat->num_values++] = value;
    return FSDP_OK;
}

/* --- Lookups -------------------------------------------------------------- */

bool catalog_find(const catalog_t *cat, const char *name, uint64_t *tensor_p)
{
    uint64_t lo = 0, hi = cat->num_tensors, mid;
    int order;

    while (lo < hi) {
        mid = lo + (hi - lo) / 2;
        order = strcmp(cat->tensors[mid].name, name);
        if (order == 0) {
            *tensor_p = mid;
            return true;
        }
        if (order < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }

    for (lo = 0, hi = cat->num_aliases; lo < hi;) {
        mid = lo + (hi - lo) / 2;
        order = strcmp(cat->aliases[mid].name, name);
        if (order == 0) {
            *tensor_p = cat->aliases[mid].tensor;
            return true;
        }
        if (order < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }

    return false;
}

fsdp_status_t catalog_no_tensor(const catalog_t *cat, const char *pattern,
                                const char *text, fsdp_error_t *err)
{
    nearest_t nearest = {.pattern = pattern};
    char meant[NEAREST_TEXT_MAX];

    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        nearest_try(&nearest, cat->tensors[t].name);
    }

    return fsdp_error_set(err, FSDP_ERR_NOT_FOUND,
                          "%s: no tensor's name fits '%s'%s", cat->path, text,
                          nearest_text(&nearest, meant));
}

bool catalog_find_value(const catalog_t *cat, const char *name,
                        uint64_t *value_p)
{
    uint64_t lo = 0, hi = cat->num_values;

    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        int order = strcmp(cat->values[mid].name, name);

        if (order == 0) {
            *value_p = mid;
            return true;
        }
        if (order < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }

    return false;
}

uint64_t catalog_find_piece(const catalog_t *cat, uint64_t tensor,
                            uint64_t element)
{
    uint64_t lo = cat->tensors[tensor].piece_first;
    uint64_t hi = lo + cat->tensors[tensor].piece_count;

    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        const catalog_piece_t *piece = &cat->pieces[mid];

        if (piece->first + piece->count <= element) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }

    return lo;
}

uint64_t catalog_piece_bytes(const catalog_t *cat, const catalog_piece_t *piece)
{
    unsigned dtype = cat->tensors[piece->tensor].stored;
    uint64_t count = piece->count, bytes = 0;
    catalog_box_t box;

    if (catalog_box(cat, piece, &box)) {
        count = box_span(&box);
    }
    (void)dtype_bytes((fsdp_dtype_t)dtype, count, &bytes); /* was measured */
    return bytes;
}

uint64_t catalog_blocks(uint64_t bytes)
{
    return bytes / CATALOG_BLOCK + (bytes % CATALOG_BLOCK != 0);
}

uint64_t *catalog_in_order(const catalog_t *cat)
{
    uint64_t *ordered = calloc(cat->num_tensors + 1, sizeof(*ordered));

    for (uint64_t t = 0; ordered != NULL && t < cat->num_tensors; t++) {
        ordered[cat->tensors[t].order] = t;
    }

    return ordered;
}

const catalog_code_t *catalog_code(const catalog_t *cat,
                                   const catalog_piece_t *piece)
{
    return (piece->code != 0) ? &cat->codes[piece->code - 1] : NULL;
}

char *catalog_file_path(const catalog_t *cat, uint32_t file)
{
    return io_path("%s/%s", cat->root, cat->files[file].path);
}

/* --- Sealing -------------------------------------------------------------- */

static int compare_tensors(const void *a, const void *b)
{
    const catalog_tensor_t *left = a, *right = b;

    return strcmp(left->name, right->name);
}

static int compare_pieces(const void *a, const void *b)
{
    const catalog_piece_t *left = a, *right = b;

    return (left->first > right->first) - (left->first < right->first);
}

static int compare_aliases(const void *a, const void *b)
{
    const catalog_alias_t *left = a, *right = b;

    return strcmp(left->name, right->name);
}

static fsdp_status_t sort_tensors(catalog_t *cat, fsdp_error_t *err)
{
    bool sorted = true;

    for (uint64_t i = 1; i < cat->num_tensors && sorted; i++) {
        sorted = compare_tensors(&cat->tensors[i - 1], &cat->tensors[i]) <= 0;
    }
    if (!sorted) {
        qsort(cat->tensors, cat->num_tensors, sizeof(*cat->tensors),
              compare_tensors);
    }

    for (uint64_t i = 1; i < cat->num_tensors; i++) {
        if (compare_tensors(&cat->tensors[i - 1], &cat->tensors[i]) == 0) {
            return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                  "%s: tensor %s is there twice", cat->path,
                                  cat->tensors[i].name);
        }
    }

    return FSDP_OK;
}

/* Group the pieces by tensor: a counting sort, for there may be millions. */
static fsdp_status_t sort_pieces(catalog_t *cat, fsdp_error_t *err)
{
    uint32_t *at = malloc((cat->num_tensors + 1) * sizeof(*at));
    catalog_piece_t *sorted = malloc((cat->num_pieces + 1) * sizeof(*sorted));
    uint64_t next = 0;

    if (at == NULL || sorted == NULL) {
        free(at);
        free(sorted);
        return no_memory(cat, err);
    }

    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        at[cat->tensors[t].order] = (uint32_t)t;
        cat->tensors[t].piece_count = 0;
    }
    for (uint64_t p = 0; p < cat->num_pieces; p++) {
        cat->pieces[p].tensor = at[cat->pieces[p].tensor];
        cat->tensors[cat->pieces[p].tensor].piece_count++;
        cat->tensors[cat->pieces[p].tensor].boxed |=
            cat->pieces[p].box != CATALOG_NONE;
        cat->tensors[cat->pieces[p].tensor].coded |= cat->pieces[p].code != 0;
    }
    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        cat->tensors[t].piece_first = next;
        at[t] = (uint32_t)next;
        next += cat->tensors[t].piece_count;
    }
    for (uint64_t p = 0; p < cat->num_pieces; p++) {
        sorted[at[cat->pieces[p].tensor]++] = cat->pieces[p];
    }

    free(at);
    free(cat->pieces);
    cat->pieces = sorted;
    cat->max_pieces = cat->num_pieces + 1;
    return FSDP_OK;
}

static void sort_by_first(catalog_piece_t *pieces, uint32_t num)
{
    for (uint32_t i = 1; i < num; i++) {
        if (pieces[i - 1].first > pieces[i].first) {
            qsort(pieces, num, sizeof(*pieces), compare_pieces);
            return;
        }
    }
}

static fsdp_status_t bad_piece(const catalog_t *cat,
                               const catalog_piece_t *piece, const char *what,
                               fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                          "%s: file %s: tensor %s elements [%" PRIu64
                          ", %" PRIu64 "): %s",
                          cat->path, cat->files[piece->file].path,
                          cat->tensors[piece->tensor].name, piece->first,
                          piece->first + piece->count, what);
}

static fsdp_status_t check_code(const catalog_t *cat,
                                const catalog_piece_t *piece,
                                const catalog_code_t *code, uint64_t bytes,
                                unsigned checks, fsdp_error_t *err)
{
    uint64_t size =
        code->inlined ? cat->num_inlined : cat->files[code->file].size;

    if (piece->offset > code->bytes || bytes > code->bytes - piece->offset) {
        return bad_piece(cat, piece, "its encoded bytes become fewer", err);
    }
    if ((checks & CATALOG_CHECK_FILES) != 0 &&
        (code->offset > size || code->length > size - code->offset)) {
        return bad_piece(cat, piece, "lies behind the end of the file", err);
    }

    return FSDP_OK;
}

static fsdp_status_t check_piece(const catalog_t *cat,
                                 const catalog_piece_t *piece, unsigned checks,
                                 fsdp_error_t *err)
{
    const catalog_tensor_t *tensor = &cat->tensors[piece->tensor];
    const catalog_file_t *file = &cat->files[piece->file];
    const catalog_code_t *code = catalog_code(cat, piece);
    unsigned bits = fsdp_dtype_bits((fsdp_dtype_t)tensor->stored);
    uint64_t bytes;

    if (tensor->stored != tensor->dtype &&
        (piece->box != CATALOG_NONE || piece->crc_first != CATALOG_NONE)) {
        return bad_piece(cat, piece, "cannot be converted when it is read",
                         err);
    }
    if (piece->box == CATALOG_NONE &&
        (piece->first > tensor->numel ||
         piece->count > tensor->numel - piece->first)) {
        return bad_piece(cat, piece, "the tensor has fewer", err);
    }
    if (bits % 8 != 0 && (piece->first % 8 * bits % 8 != 0 ||
                          (piece->first + piece->count != tensor->numel &&
                           piece->count % 8 * bits % 8 != 0))) {
        return bad_piece(cat, piece, "does not start and end at whole bytes",
                         err);
    }

    bytes = catalog_piece_bytes(cat, piece);
    if (piece->crc_first != CATALOG_NONE &&
        (piece->crc_first > cat->num_crcs ||
         (cat->crc_zip ? 1 : catalog_blocks(bytes)) >
             cat->num_crcs - piece->crc_first)) {
        return bad_piece(cat, piece, "there are fewer checksums", err);
    }
    if (code != NULL) {
        return check_code(cat, piece, code, bytes, checks, err);
    }
    if ((checks & CATALOG_CHECK_FILES) != 0 &&
        (piece->offset > file->size || bytes > file->size - piece->offset)) {
        return bad_piece(cat, piece, "lies behind the end of the file", err);
    }

    return FSDP_OK;
}

static fsdp_status_t check_cover(const catalog_t *cat, uint64_t index,
                                 fsdp_error_t *err)
{
    const catalog_tensor_t *tensor = &cat->tensors[index];
    const catalog_piece_t *piece = cat->pieces + tensor->piece_first;
    uint64_t next = 0;

    if (tensor->boxed) {
        return box_check_cover(cat, index, err);
    }
    for (uint32_t i = 0; i < tensor->piece_count; i++, piece++) {
        if (piece->first < next) {
            return bad_piece(cat, piece,
                             "some of them are in another piece too", err);
        }
        if (piece->first > next) {
            break;
        }
        next = piece->first + piece->count;
    }

    if (next != tensor->numel) {
        return fsdp_error_set(
            err, FSDP_ERR_CORRUPT,
            "%s: tensor %s: elements [%" PRIu64 ", %" PRIu64 ") are in no file",
            cat->path, tensor->name, next,
            (next < tensor->numel &&
             piece < cat->pieces + tensor->piece_first + tensor->piece_count)
                ? piece->first
                : tensor->numel);
    }

    return FSDP_OK;
}

static fsdp_status_t check_file(const catalog_t *cat, uint32_t index,
                                fsdp_error_t *err)
{
    const catalog_file_t *file = &cat->files[index];
    char *path = catalog_file_path(cat, index);
    fsdp_status_t status = FSDP_OK;
    struct stat st;

    if (path == NULL) {
        return no_memory(cat, err);
    }

    if (stat(path, &st) != 0) {
        status = fsdp_error_set(
            err, (errno == ENOENT) ? FSDP_ERR_CORRUPT : FSDP_ERR_IO,
            "%s: a file of the checkpoint is missing: %m", path);
    } else if (!S_ISREG(st.st_mode)) {
        status = fsdp_error_set(err, FSDP_ERR_CORRUPT, "%s: not a file", path);
    } else if ((uint64_t)st.st_size != file->size) {
        status = fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                "%s: has %lld bytes, should have %" PRIu64
                                ": it was cut short or changed",
                                path, (long long)st.st_size, file->size);
    }
    free(path);

    return status;
}

static fsdp_status_t seal_aliases(catalog_t *cat, fsdp_error_t *err)
{
    uint64_t tensor, num = cat->num_aliases;

    if (num > 1) {
        qsort(cat->aliases, num, sizeof(*cat->aliases), compare_aliases);
    }

    cat->num_aliases = 0; /* names are looked up among the tensors only */
    for (uint64_t i = 0; i < num; i++) {
        catalog_alias_t *alias = &cat->aliases[i];

        if (catalog_find(cat, alias->name, &tensor) ||
            (i > 0 && strcmp(alias->name, alias[-1].name) == 0)) {
            return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                  "%s: tensor %s is there twice", cat->path,
                                  alias->name);
        }
        if (!catalog_find(cat, alias->owner, &alias->tensor)) {
            return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                  "%s: tensor %s is another name of %s, which "
                                  "is not there",
                                  cat->path, alias->name, alias->owner);
        }
    }
    cat->num_aliases = num;

    return FSDP_OK;
}

static int compare_spans(const void *a, const void *b)
{
    const catalog_span_t *left = a, *right = b;

    if (left->file != right->file) {
        return (left->file > right->file) - (left->file < right->file);
    }
    return (left->offset > right->offset) - (left->offset < right->offset);
}

/* Leave out spans whose pieces have that checksum as their own. */
static fsdp_status_t drop_spans(catalog_t *cat, fsdp_error_t *err)
{
    enum { FREE, OWN, NEEDED };
    uint8_t *uses = calloc(cat->num_spans + 1, sizeof(*uses));
    uint64_t num = 0;

    if (uses == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              cat->path);
    }

    for (uint64_t p = 0; p < cat->num_pieces && cat->num_spans > 0; p++) {
        const catalog_piece_t *piece = &cat->pieces[p];
        const catalog_span_t *span = span_of_piece(cat, piece);

        if (span != NULL) {
            uses[span - cat->spans] |=
                (piece->crc_first != CATALOG_NONE) ? OWN : NEEDED;
        }
    }
    for (uint64_t s = 0; s < cat->num_spans; s++) {
        if (uses[s] != OWN) {
            cat->spans[num++] = cat->spans[s];
        }
    }
    cat->num_spans = num;
    free(uses);
    return FSDP_OK;
}

static fsdp_status_t seal_spans(catalog_t *cat, fsdp_error_t *err)
{
    uint64_t num = 0;

    for (uint64_t s = 0; s < cat->num_spans; s++) {
        const catalog_span_t *span = &cat->spans[s];
        const catalog_file_t *file = &cat->files[span->file];

        if (span->offset > file->size ||
            span->bytes > file->size - span->offset) {
            return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                  "%s: %s: a checksum is of bytes behind its "
                                  "end",
                                  cat->path, file->path);
        }
        if (span->bytes > 0) {
            cat->spans[num++] = *span;
        }
    }

    cat->num_spans = num;
    if (num > 1) {
        qsort(cat->spans, num, sizeof(*cat->spans), compare_spans);
    }
    return drop_spans(cat, err);
}

static int compare_values(const void *a, const void *b)
{
    const catalog_value_t *left = a, *right = b;

    return strcmp(left->name, right->name);
}

static fsdp_status_t seal_values(catalog_t *cat, fsdp_error_t *err)
{
    if (cat->num_values > 0) {
        qsort(cat->values, cat->num_values, sizeof(*cat->values),
              compare_values);
    }
    for (uint64_t i = 1; i < cat->num_values; i++) {
        if (strcmp(cat->values[i].name, cat->values[i - 1].name) == 0) {
            return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                  "%s: value %s is there twice", cat->path,
                                  cat->values[i].name);
        }
    }

    return FSDP_OK;
}

fsdp_status_t catalog_seal(catalog_t *cat, unsigned checks, fsdp_error_t *err)
{
    FSDP_TRY(sort_tensors(cat, err));
    FSDP_TRY(sort_pieces(cat, err));

    for (uint32_t f = 0; f < cat->num_files; f++) {
        if ((checks & CATALOG_CHECK_FILES) != 0) {
            FSDP_TRY(check_file(cat, f, err));
        }
    }
    for (uint64_t p = 0; p < cat->num_pieces; p++) {
        FSDP_TRY(check_piece(cat, &cat->pieces[p], checks, err));
    }
    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        const catalog_tensor_t *tensor = &cat->tensors[t];

        sort_by_first(cat->pieces + tensor->piece_first, tensor->piece_count);
        if ((checks & CATALOG_CHECK_COVER) != 0) {
            FSDP_TRY(check_cover(cat, t, err));
        }
    }
    FSDP_TRY(seal_aliases(cat, err));
    FSDP_TRY(seal_values(cat, err));
    FSDP_TRY(seal_spans(cat, err));

    cat->sealed = true;
    return FSDP_OK;
}

fsdp_status_t catalog_set_value(catalog_t *cat, const char *name,
                                const char *json, fsdp_error_t *err)
{
    uint64_t value;
    const char *copy;

    if (!catalog_find_value(cat, name, &value)) {
        FSDP_TRY(catalog_add_value(cat, name, json, err));
        return seal_values(cat, err);
    }

    copy = catalog_strdup(cat, json);
    if (copy == NULL) {
        return no_memory(cat, err);
    }
    cat->values[value].json = copy;
    return FSDP_OK;
}

static fsdp_status_t copy_files(catalog_t *to, const catalog_t *from,
                                fsdp_error_t *err)
{
    uint32_t index;

    for (uint32_t f = 0; f < from->num_files; f++) {
        const char *path;

        FSDP_TRY(catalog_add_file(to, from->files[f].path, from->files[f].size,
                                  &index, err));
        path = to->files[f].path;
        to->files[f] = from->files[f];
        to->files[f].path = path;
    }
    for (uint64_t s = 0; s < from->num_spans; s++) {
        FSDP_TRY(catalog_add_span(to, &from->spans[s], err));
    }
    for (uint64_t c = 0; c < from->num_codes; c++) {
        const catalog_code_t *code = &from->codes[c];

        /* One after the other: pieces keep the numbers of their codes. */
        FSDP_TRY(catalog_add_code(to, code, from->steps + code->step_first,
                                  code->num_steps, &index, err));
    }

    return FSDP_OK;
}

fsdp_status_t catalog_copy_storage(catalog_t *to, const catalog_t *from,
                                   fsdp_error_t *err)
{
    const char *path = catalog_strdup(to, from->path);
    const char *root = catalog_strdup(to, from->root);
    const char *meta = catalog_strdup(to, from->meta);

    if (path == NULL || root == NULL || meta == NULL ||
        (from->num_crcs > 0 &&
         !GROW(to, crcs, num_crcs, max_crcs, from->num_crcs)) ||
        (from->num_inlined > 0 &&
         !GROW(to, inlined, num_inlined, max_inlined, from->num_inlined))) {
        return no_memory(from, err);
    }

    to->format = from->format;
    to->path = path;
    to->root = root;
    to->meta = meta;
    to->step = from->step;
    to->mesh = from->mesh;
    to->crc_zip = from->crc_zip;
    to->shows = from->shows;
    to->shared = from->shared;
    if (from->num_crcs > 0) {
        memcpy(to->crcs, from->crcs, from->num_crcs * sizeof(*to->crcs));
        to->num_crcs = from->num_crcs;
    }
    if (from->num_inlined > 0) {
        memcpy(to->inlined, from->inlined, from->num_inlined);
        to->num_inlined = from->num_inlined;
    }
    for (uint64_t n = 0; n < from->num_notes; n++) {
        FSDP_TRY(catalog_add_note(to, err, "%s", from->notes[n]));
    }
    return copy_files(to, from, err);
}
