#include "config.h"

#include "ckpt/catalog_box.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lib/util/check.h"

/* Pairs of boxes that are compared at most, for all of one tensor: no sharding
 * of a training program comes near. */
#define PAIRS_MOST (1ull << 28)
#define DEPTH_MOST (4 * FSDP_CKPT_MAX_NDIM)

bool catalog_box(const catalog_t *cat, const catalog_piece_t *piece,
                 catalog_box_t *box_p)
{
    uint64_t dense = 1;
    unsigned ndim;

    if (piece->box == CATALOG_NONE) {
        return false;
    }

    ndim = cat->tensors[piece->tensor].ndim;
    *box_p = (catalog_box_t){
        .ndim = ndim,
        .start = cat->boxes + piece->box,
        .count = cat->boxes + piece->box + ndim,
        .strides = cat->boxes + piece->box + 2ull * ndim,
        .change = (unsigned)cat->boxes[piece->box + 3ull * ndim],
        .dense = true,
    };
    for (unsigned d = ndim; d > 0; d--) {
        box_p->dense &= box_p->strides[d - 1] == dense;
        dense *= box_p->count[d - 1];
    }
    return true;
}

void box_strides(unsigned ndim, const uint64_t *count, const uint64_t *strides,
                 uint64_t *to)
{
    uint64_t dense = 1;

    for (unsigned d = ndim; d > 0; d--) {
        to[d - 1] =
            (strides == NULL || count[d - 1] == 1) ? dense : strides[d - 1];
        dense *= count[d - 1];
    }
}

uint64_t box_span(const catalog_box_t *box)
{
    uint64_t span = 1;

    for (unsigned d = 0; d < box->ndim; d++) {
        span += (box->count[d] - 1) * box->strides[d];
    }

    return span;
}

/* --- Adding --------------------------------------------------------------- */

static fsdp_status_t bad_box(const catalog_t *cat, const catalog_piece_t *piece,
                             const char *what, fsdp_error_t *err)
{
    return fsdp_error_set(
        err, FSDP_ERR_CORRUPT, "%s: file %s: a shard of tensor %s %s",
        cat->path,
        (piece->file < cat->num_files) ? cat->files[piece->file].path : "?",
        cat->tensors[piece->tensor].name, what);
}

/* The bytes that a strided box spans are a number that fits. */
static bool span_fits(const catalog_tensor_t *tensor, const uint64_t *count,
                      const uint64_t *strides)
{
    uint64_t span = 1, more, bytes;

    for (unsigned d = 0; d < tensor->ndim; d++) {
        if (count[d] > 1 &&
            (__builtin_mul_overflow(count[d] - 1, strides[d], &more) ||
             __builtin_add_overflow(span, more, &span))) {
            return false;
        }
    }

    return dtype_bytes((fsdp_dtype_t)tensor->dtype, span, &bytes) &&
           bytes <= INT64_MAX;
}

fsdp_status_t box_measure(const catalog_t *cat, catalog_piece_t *piece,
                          const uint64_t *start, const uint64_t *count,
                          const uint64_t *strides, bool *is_range_p,
                          fsdp_error_t *err)
{
    const catalog_tensor_t *tensor = &cat->tensors[piece->tensor];
    const uint64_t *dims = cat->dims + tensor->dims_first;
    uint64_t dense = 1;
    bool whole = true;

    piece->first = 0;
    piece->count = 1;
    for (unsigned d = 0; d < tensor->ndim; d++) {
        if (start[d] > dims[d] || count[d] > dims[d] - start[d]) {
            return bad_box(cat, piece, "leaves the tensor", err);
        }
    }
    for (unsigned d = 0; d < tensor->ndim; d++) {
        if (count[d] == 0) {
            piece->count = 0;
            *is_range_p = true;
            return FSDP_OK;
        }
        piece->first = piece->first * dims[d] + start[d];
        piece->count *= count[d]; /* at most the tensor's numel */
    }
    if (strides != NULL && !span_fits(tensor, count, strides)) {
        return bad_box(cat, piece, "has strides that make no sense", err);
    }

    /* A range: stored densely; and where a dimension is cut, those before it
     * have one element. */
    *is_range_p = true;
    for (unsigned d = tensor->ndim; d > 0; d--) {
        uint64_t n = count[d - 1];

        if (strides != NULL && n > 1 && strides[d - 1] != dense) {
            *is_range_p = false;
        }
        if (!whole && n > 1) {
            *is_range_p = false;
        }
        whole &= n == dims[d - 1];
        dense *= n;
    }
    if (!*is_range_p && fsdp_dtype_bits((fsdp_dtype_t)tensor->dtype) % 8 != 0) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s: tensor %s: boxes of %s, a packed type, "
                              "cannot be read",
                              cat->path, tensor->name,
                              fsdp_dtype_name((fsdp_dtype_t)tensor->dtype));
    }

    return FSDP_OK;
}

/* --- Coverage ------------------------------------------------------------- */

unsigned box_of_piece(const catalog_t *cat, const catalog_piece_t *piece,
                      box_t *boxes)
{
    const catalog_tensor_t *tensor = &cat->tensors[piece->tensor];
    catalog_box_t box;
    unsigned num = 0;

    if (!catalog_box(cat, piece, &box)) {
        (void)box_from_range(tensor->ndim, cat->dims + tensor->dims_first,
                             piece->first, piece->count, boxes, &num);
        return num;
    }

    boxes->ndim = box.ndim;
    memcpy(boxes->start, box.start, box.ndim * sizeof(*box.start));
    memcpy(boxes->count, box.count, box.ndim * sizeof(*box.count));
    return 1;
}

fsdp_status_t box_visit(const catalog_t *cat, const catalog_piece_t *piece,
                        box_visit_f visit, void *arg, fsdp_error_t *err)
{
    const catalog_tensor_t *tensor = &cat->tensors[piece->tensor];
    uint64_t strides[FSDP_CKPT_MAX_NDIM];
    box_t boxes[2 * FSDP_CKPT_MAX_NDIM];
    unsigned num = box_of_piece(cat, piece, boxes);
    catalog_box_t box;

    if (catalog_box(cat, piece, &box)) {
        return visit(boxes, box.strides, 0, box.change, arg, err);
    }

    box_strides(tensor->ndim, cat->dims + tensor->dims_first, NULL, strides);
    for (unsigned i = 0; i < num; i++) {
        uint64_t at = 0;

        for (unsigned d = 0; d < tensor->ndim; d++) {
            at += boxes[i].start[d] * strides[d];
        }
        FSDP_TRY(visit(&boxes[i], strides, at - piece->first, 0, arg, err));
    }

    return FSDP_OK;
}

static uint64_t volume(const box_t *box)
{
    uint64_t numel = 1;

    for (unsigned d = 0; d < box->ndim; d++) {
        numel *= box->count[d];
    }

    return numel;
}

/* The index of the last element of a box in its tensor. */
static uint64_t last_of(const box_t *box, const uint64_t *dims)
{
    uint64_t last = 0;

    for (unsigned d = 0; d < box->ndim; d++) {
        last = last * dims[d] + box->start[d] + box->count[d] - 1;
    }

    return last;
}

uint64_t box_common(const catalog_t *cat, const catalog_piece_t *piece,
                    uint64_t first, uint64_t count)
{
    const catalog_tensor_t *tensor = &cat->tensors[piece->tensor];
    const uint64_t *dims = cat->dims + tensor->dims_first;
    box_t boxes[2 * FSDP_CKPT_MAX_NDIM], whole, common;
    uint64_t end = first + count, total = 0;
    unsigned num;

    if (piece->box == CATALOG_NONE) {
        uint64_t stop = piece->first + piece->count;

        first = (piece->first > first) ? piece->first : first;
        end = (stop < end) ? stop : end;
        return (first < end) ? end - first : 0;
    }

    (void)box_of_piece(cat, piece, &whole);
    if (piece->first >= end || last_of(&whole, dims) < first) {
        return 0;
    }
    if (piece->first >= first && last_of(&whole, dims) < end) {
        return piece->count;
    }
    (void)box_from_range(tensor->ndim, dims, first, count, boxes, &num);
    for (unsigned i = 0; i < num; i++) {
        if (box_intersect(&boxes[i], &whole, &common)) {
            total += volume(&common);
        }
    }
    return total;
}

uint64_t box_common_box(const catalog_t *cat, const catalog_piece_t *piece,
                        const box_t *with)
{
    box_t boxes[2 * FSDP_CKPT_MAX_NDIM], common;
    unsigned num = box_of_piece(cat, piece, boxes);
    uint64_t total = 0;

    for (unsigned i = 0; i < num; i++) {
        if (box_intersect(&boxes[i], with, &common)) {
            total += volume(&common);
        }
    }
    return total;
}

/* Boxes of one tensor, compact: start[ndim], count[ndim] of each, and the
 * order in which they are looked at. */
typedef struct {
    const catalog_t *cat;
    uint64_t tensor;
    unsigned ndim;
    uint64_t *words;
    uint64_t *order;
    uint64_t num, max;
    uint64_t pairs; /* compared */
} cover_t;

typedef struct {
    const cover_t *cover;
    unsigned d;
} by_t;

static const uint64_t *start_of(const cover_t *cover, uint64_t box)
{
    return cover->words + 2ull * cover->ndim * box;
}

static uint64_t end_of(const cover_t *cover, uint64_t box, unsigned d)
{
    const uint64_t *start = start_of(cover, box);

    return start[d] + start[cover->ndim + d];
}

static int by_start(const void *a, const void *b, void *arg)
{
    const by_t *by = arg;
    uint64_t left = start_of(by->cover, *(const uint64_t *)a)[by->d];
    uint64_t right = start_of(by->cover, *(const uint64_t *)b)[by->d];

    return (left > right) - (left < right);
}

static fsdp_status_t add_boxes(cover_t *cover, const catalog_piece_t *piece,
                               fsdp_error_t *err)
{
    box_t boxes[2 * FSDP_CKPT_MAX_NDIM];
    unsigned num = box_of_piece(cover->cat, piece, boxes);
    size_t size = cover->ndim * sizeof(uint64_t);

    if (cover->num + num > cover->max) {
        uint64_t max = 2 * cover->max + 2 * FSDP_CKPT_MAX_NDIM;
        void *words = realloc(cover->words, max * 2 * size);
        void *order = NULL;

        if (words != NULL) {
            cover->words = words;
            order = realloc(cover->order, max * sizeof(*cover->order));
        }
        if (order == NULL) {
            return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                  "%s: no memory for a list of boxes",
                                  cover->cat->path);
        }
        cover->order = order;
        cover->max = max;
    }

    for (unsigned i = 0; i < num; i++) {
        uint64_t *to = cover->words + 2ull * cover->ndim * cover->num;

        memcpy(to, boxes[i].start, size);
        memcpy(to + cover->ndim, boxes[i].count, size);
        cover->order[cover->num] = cover->num;
        cover->num++;
    }
    return FSDP_OK;
}

static bool overlap(const cover_t *cover, uint64_t a, uint64_t b)
{
    for (unsigned d = 0; d < cover->ndim; d++) {
        if (start_of(cover, a)[d] >= end_of(cover, b, d) ||
            start_of(cover, b)[d] >= end_of(cover, a, d)) {
            return false;
        }
    }

    return true;
}

static fsdp_status_t tell_overlap(const cover_t *cover, uint64_t box,
                                  fsdp_error_t *err)
{
    const catalog_tensor_t *tensor = &cover->cat->tensors[cover->tensor];
    const uint64_t *dims = cover->cat->dims + tensor->dims_first;
    uint64_t element = 0;

    for (unsigned d = 0; d < cover->ndim; d++) {
        element = element * dims[d] + start_of(cover, box)[d];
    }
    return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                          "%s: tensor %s: elements of the shard that begins "
                          "at element %" PRIu64 " are in another one too",
                          cover->cat->path, tensor->name, element);
}

/* Boxes that no dimension separates: compare those that meet in @a d.  They
 * are sorted by their start in it. */
static fsdp_status_t compare_all(cover_t *cover, const uint64_t *order,
                                 uint64_t num, unsigned d, fsdp_error_t *err)
{
    for (uint64_t i = 0; i < num; i++) {
        uint64_t end = end_of(cover, order[i], d);

        for (uint64_t j = i + 1; j < num && start_of(cover, order[j])[d] < end;
             j++) {
            if (overlap(cover, order[i], order[j])) {
                return tell_overlap(cover, order[j], err);
            }
            if (++cover->pairs > PAIRS_MOST) {
                return fsdp_error_set(
                    err, FSDP_ERR_UNSUPPORTED,
                    "%s: tensor %s: its shards are too tangled to prove that "
                    "none overlap",
                    cover->cat->path, cover->cat->tensors[cover->tensor].name);
            }
        }
    }

    return FSDP_OK;
}

/*
 * Sort by a dimension, and cut where no box reaches over: groups between cuts
 * cannot overlap each other, and are cut in the other dimensions in turn.
 * Grids, which is what training programs make, fall into single boxes.
 *
 * @param failed  Dimensions in a row that did not cut this group.
 */
static fsdp_status_t separate(cover_t *cover, uint64_t *order, uint64_t num,
                              unsigned d, unsigned failed, unsigned depth,
                              fsdp_error_t *err)
{
    by_t by = {.cover = cover, .d = d};
    unsigned next = (d + 1) % cover->ndim;
    uint64_t first = 0, end, i;

    qsort_r(order, num, sizeof(*order), by_start, &by);
    if (failed == cover->ndim || depth > DEPTH_MOST) {
        return compare_all(cover, order, num, d, err);
    }

    end = end_of(cover, order[0], d);
    for (i = 1; i < num; i++) {
        if (start_of(cover, order[i])[d] >= end) {
            if (i - first > 1) {
                FSDP_TRY(separate(cover, order + first, i - first, next, 0,
                                  depth + 1, err));
            }
            first = i;
        }
        if (end_of(cover, order[i], d) > end) {
            end = end_of(cover, order[i], d);
        }
    }

    return (num - first > 1)
               ? separate(cover, order + first, num - first, next,
                          (first == 0) ? failed + 1 : 0, depth + 1, err)
               : FSDP_OK;
}

fsdp_status_t box_check_cover(const catalog_t *cat, uint64_t index,
                              fsdp_error_t *err)
{
    const catalog_tensor_t *tensor = &cat->tensors[index];
    cover_t cover = {.cat = cat, .tensor = index, .ndim = tensor->ndim};
    fsdp_status_t status = FSDP_OK;
    uint64_t total = 0;
    bool too_many = false;

    for (uint32_t i = 0; i < tensor->piece_count; i++) {
        const catalog_piece_t *piece = &cat->pieces[tensor->piece_first + i];

        too_many |= __builtin_add_overflow(total, piece->count, &total);
        FSDP_TRY_GOTO(add_boxes(&cover, piece, err), err_free);
    }
    if (cover.num > 1) {
        FSDP_TRY_GOTO(separate(&cover, cover.order, cover.num, 0, 0, 0, err),
                      err_free);
    }

    /* None overlap and none leaves the tensor: the volumes decide. */
    if (too_many || total != tensor->numel) {
        status = fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                "%s: tensor %s: %" PRIu64 " of its %" PRIu64
                                " elements are in no file",
                                cat->path, tensor->name, tensor->numel - total,
                                tensor->numel);
    }
err_free:
    free(cover.words);
    free(cover.order);
    return status;
}

/* --- Parts ---------------------------------------------------------------- */

void part_checksums(catalog_piece_t *piece, uint64_t count, bool *lost)
{
    if (count != piece->count && piece->crc_first != CATALOG_NONE) {
        *lost = true;
        piece->crc_first = CATALOG_NONE;
    }
}

bool part_range(catalog_piece_t *piece, unsigned bits, uint64_t lo, uint64_t hi,
                bool *lost)
{
    uint64_t skipped = lo - piece->first;

    if (skipped % 8 * bits % 8 != 0) {
        return false;
    }

    part_checksums(piece, hi - lo, lost);
    piece->offset += skipped / 8 * bits + skipped % 8 * bits / 8;
    piece->first = lo;
    piece->count = hi - lo;
    return true;
}
