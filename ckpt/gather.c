#include "config.h"

#include "ckpt/gather.h"

#include <inttypes.h>
#include <string.h>

#include "ckpt/box.h"
#include "ckpt/catalog_box.h"
#include "lib/util/check.h"

/* Bytes of a file that are read over rather than left out: a read call costs
 * as much. */
#define GAP_MOST (16u << 10)

/* Nested loops over elements that a box and the target share, those of the
 * largest stride in the file outermost.  Strides are elements. */
typedef struct {
    const gather_t *gather;
    uint64_t piece;
    fsdp_dtype_t dtype;
    size_t size;     /* bytes of an element */
    unsigned change; /* of the piece */
    unsigned n;
    uint64_t count[BOX_MAX_NDIM];
    uint64_t from[BOX_MAX_NDIM];     /* strides in the file */
    uint64_t to[BOX_MAX_NDIM];       /* and in the target */
    uint64_t span[BOX_MAX_NDIM + 1]; /* elements of the file that the loops
                                        from here on reach over */
} loops_t;

static void add_loop(loops_t *loops, uint64_t count, uint64_t from, uint64_t to)
{
    unsigned i = loops->n++;

    for (; i > 0 && loops->from[i - 1] < from; i--) {
        loops->count[i] = loops->count[i - 1];
        loops->from[i] = loops->from[i - 1];
        loops->to[i] = loops->to[i - 1];
    }
    loops->count[i] = count;
    loops->from[i] = from;
    loops->to[i] = to;
}

/* Make one loop of two that go on from each other on both sides. */
static void join_loops(loops_t *loops)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < loops->n; i++) {
        if (kept > 0 &&
            loops->from[kept - 1] == loops->from[i] * loops->count[i] &&
            loops->to[kept - 1] == loops->to[i] * loops->count[i]) {
            loops->count[kept - 1] *= loops->count[i];
        } else {
            loops->count[kept++] = loops->count[i];
        }
        loops->from[kept - 1] = loops->from[i];
        loops->to[kept - 1] = loops->to[i];
    }
    loops->n = kept;

    loops->span[kept] = 1;
    for (unsigned i = kept; i > 0; i--) {
        loops->span[i - 1] =
            loops->span[i] + (loops->count[i - 1] - 1) * loops->from[i - 1];
    }
}

/* --- Copying in memory ---------------------------------------------------- */

#define COPY_ELEMENTS(_type)                                           \
    for (uint64_t i = 0; i < count; i++) {                             \
        memcpy(to + i * to_step, from + i * from_step, sizeof(_type)); \
    }

static void copy_row(const char *from, uint64_t from_step, char *to,
                     uint64_t to_step, uint64_t count, size_t size)
{
    if (from_step == size && to_step == size) {
        memcpy(to, from, count * size);
        return;
    }

    switch (size) {
    case 1:
        COPY_ELEMENTS(uint8_t)
        break;
    case 2:
        COPY_ELEMENTS(uint16_t)
        break;
    case 4:
        COPY_ELEMENTS(uint32_t)
        break;
    case 8:
        COPY_ELEMENTS(uint64_t)
        break;
    default:
        for (uint64_t i = 0; i < count; i++) {
            memcpy(to + i * to_step, from + i * from_step, size);
        }
    }
}

/* @a rows of loop @a d, and all of those inside it. */
static void scatter(const loops_t *loops, unsigned d, uint64_t rows,
                    const char *from, char *to)
{
    size_t size = loops->size;

    if (d == loops->n) {
        memcpy(to, from, size);
    } else if (d + 1 == loops->n) {
        copy_row(from, loops->from[d] * size, to, loops->to[d] * size, rows,
                 size);
    } else {
        for (uint64_t i = 0; i < rows; i++) {
            scatter(loops, d + 1, loops->count[d + 1],
                    from + i * loops->from[d] * size,
                    to + i * loops->to[d] * size);
        }
    }
}

/* --- Reading -------------------------------------------------------------- */

/* Negate @a count numbers of @a size bytes, @a step bytes apart: by their sign
 * bit, or in two's complement. */
static void negate(char *data, size_t size, size_t step, uint64_t count,
                   bool by_sign)
{
    for (; count > 0; count--, data += step) {
        unsigned carry = 1;

        if (by_sign) {
            data[size - 1] = (char)(data[size - 1] ^ '\x80');
            continue;
        }
        for (size_t i = 0; i < size; i++) {
            carry += (unsigned char)~data[i];
            data[i] = (char)carry;
            carry >>= 8;
        }
    }
}

void gather_change(fsdp_dtype_t dtype, unsigned change, char *data,
                   uint64_t count)
{
    size_t size = fsdp_dtype_bits(dtype) / 8, half = size / 2;
    bool is_complex = dtype == FSDP_DTYPE_C64 || dtype == FSDP_DTYPE_C128;

    if (is_complex) {
        if ((change & CATALOG_NEG) != 0) {
            negate(data, half, half, 2 * count, true);
        }
        if ((change & CATALOG_CONJ) != 0) {
            negate(data + half, half, size, count, true);
        }
    } else if ((change & CATALOG_NEG) != 0) {
        negate(data, size, size, count, dtype_is_float(dtype));
    }
}

static fsdp_status_t load(const loops_t *loops, uint64_t at, uint64_t count,
                          char *data, fsdp_error_t *err)
{
    const gather_t *gather = loops->gather;

    FSDP_TRY(gather->read(gather->arg, loops->piece, at * loops->size, data,
                          count * loops->size, err));
    gather_change(loops->dtype, loops->change, data, count);
    return FSDP_OK;
}

/* How many rows of loop @a d are read at once, at least 1; 0: not even one. */
static uint64_t rows_at_once(const loops_t *loops, unsigned d)
{
    uint64_t room = loops->gather->stage_bytes / loops->size;
    uint64_t row = loops->span[d + 1], from = loops->from[d], rows;

    if (row > room) {
        return 0;
    }
    if (from == 0) {
        return loops->count[d];
    }
    if (from > row && (from - row) * loops->size > GAP_MOST) {
        return 1;
    }

    rows = 1 + (room - row) / from;
    return (rows < loops->count[d]) ? rows : loops->count[d];
}

/* The elements of the loops from @a d on: those in the file begin @a at. */
static fsdp_status_t run_loops(const loops_t *loops, unsigned d, uint64_t at,
                               char *to, fsdp_error_t *err)
{
    char *stage = loops->gather->stage;
    size_t size = loops->size;
    uint64_t rows, n;

    if (d == loops->n) {
        return load(loops, at, 1, to, err);
    }
    if (d + 1 == loops->n && loops->from[d] == 1 && loops->to[d] == 1) {
        return load(loops, at, loops->count[d], to, err);
    }

    rows = rows_at_once(loops, d);
    if (rows <= 1) {
        for (uint64_t i = 0; i < loops->count[d]; i++) {
            FSDP_TRY(run_loops(loops, d + 1, at + i * loops->from[d],
                               to + i * loops->to[d] * size, err));
        }
        return FSDP_OK;
    }

    for (uint64_t i = 0; i < loops->count[d]; i += n) {
        n = (loops->count[d] - i < rows) ? loops->count[d] - i : rows;
        FSDP_TRY(load(loops, at + i * loops->from[d],
                      (n - 1) * loops->from[d] + loops->span[d + 1], stage,
                      err));
        scatter(loops, d, n, stage, to + i * loops->to[d] * size);
    }

    return FSDP_OK;
}

/* --- Finding -------------------------------------------------------------- */

/* What is asked for, and how much of it was there. */
typedef struct {
    const gather_t *gather;
    const catalog_tensor_t *tensor;
    const uint64_t *dims; /* of the tensor */
    uint64_t tensor_strides[BOX_MAX_NDIM];
    const catalog_box_t *within;    /* NULL: the tensor itself */
    uint64_t strides[BOX_MAX_NDIM]; /* of the box, where data lies */
    uint64_t first;                 /* element of the box in data */
    uint64_t low, high; /* the first and last element of the tensor */
    char *data;
    size_t size;
    uint64_t found;
    unsigned num_boxes;
    box_t boxes[2 * BOX_MAX_NDIM]; /* the range asked for, in the tensor */
} asked_t;

/* The tensor's element at a position. */
static uint64_t element_at(const asked_t *asked, const uint64_t *position)
{
    uint64_t element = 0;

    for (unsigned d = 0; d < asked->tensor->ndim; d++) {
        element += position[d] * asked->tensor_strides[d];
    }

    return element;
}

static fsdp_status_t take_range(asked_t *asked, uint64_t piece_index,
                                fsdp_error_t *err)
{
    const gather_t *gather = asked->gather;
    const catalog_piece_t *piece = &gather->cat->pieces[piece_index];
    uint64_t end = piece->first + piece->count, first = piece->first;

    if (end > asked->high + 1) {
        end = asked->high + 1;
    }
    if (first < asked->low) {
        first = asked->low;
    }
    if (first >= end) {
        return FSDP_OK;
    }

    asked->found += end - first;
    return gather->read(gather->arg, piece_index,
                        (first - piece->first) * asked->size,
                        asked->data + (first - asked->low) * asked->size,
                        (end - first) * asked->size, err);
}

/* @param at  The element of the piece that is the first one of the box. */
static fsdp_status_t take_common(asked_t *asked, uint64_t piece_index,
                                 const catalog_box_t *box, uint64_t at,
                                 const box_t *common, fsdp_error_t *err)
{
    loops_t loops = {.gather = asked->gather,
                     .piece = piece_index,
                     .dtype = (fsdp_dtype_t)asked->tensor->stored,
                     .size = asked->size,
                     .change = box->change};
    uint64_t to = 0, numel = 1;

    for (unsigned d = 0; d < common->ndim; d++) {
        uint64_t start = (asked->within != NULL) ? asked->within->start[d] : 0;

        at += (common->start[d] - box->start[d]) * box->strides[d];
        to += (common->start[d] - start) * asked->strides[d];
        numel *= common->count[d];
        if (common->count[d] > 1) {
            add_loop(&loops, common->count[d], box->strides[d],
                     asked->strides[d]);
        }
    }
    join_loops(&loops);
    asked->found += numel;
    return run_loops(&loops, 0, at,
                     asked->data + (to - asked->first) * asked->size, err);
}

static fsdp_status_t take_box(asked_t *asked, uint64_t piece_index,
                              const catalog_box_t *box, uint64_t at,
                              fsdp_error_t *err)
{
    box_t whole = {.ndim = box->ndim}, common;

    memcpy(whole.start, box->start, box->ndim * sizeof(*box->start));
    memcpy(whole.count, box->count, box->ndim * sizeof(*box->count));
    for (unsigned i = 0; i < asked->num_boxes; i++) {
        if (box_intersect(&asked->boxes[i], &whole, &common)) {
            FSDP_TRY(take_common(asked, piece_index, box, at, &common, err));
        }
    }

    return FSDP_OK;
}

/* A piece that is a range, for a box: it is some boxes itself. */
static fsdp_status_t take_range_as_boxes(asked_t *asked, uint64_t piece_index,
                                         fsdp_error_t *err)
{
    const catalog_t *cat = asked->gather->cat;
    const catalog_piece_t *piece = &cat->pieces[piece_index];
    box_t boxes[2 * BOX_MAX_NDIM];
    unsigned num = box_of_piece(cat, piece, boxes);

    for (unsigned i = 0; i < num; i++) {
        const catalog_box_t box = {.ndim = boxes[i].ndim,
                                   .start = boxes[i].start,
                                   .count = boxes[i].count,
                                   .strides = asked->tensor_strides};
        uint64_t at = element_at(asked, box.start) - piece->first;

        FSDP_TRY(take_box(asked, piece_index, &box, at, err));
    }

    return FSDP_OK;
}

/* The tensor's element that is the last one of a piece. */
static uint64_t last_of(const asked_t *asked, const catalog_piece_t *piece)
{
    uint64_t last = piece->first;
    catalog_box_t box;

    if (!catalog_box(asked->gather->cat, piece, &box)) {
        return last + piece->count - 1;
    }
    for (unsigned d = 0; d < box.ndim; d++) {
        last += (box.count[d] - 1) * asked->tensor_strides[d];
    }

    return last;
}

static fsdp_status_t take_pieces(asked_t *asked, fsdp_error_t *err)
{
    const catalog_t *cat = asked->gather->cat;
    uint64_t p = asked->tensor->piece_first;
    uint64_t end = p + asked->tensor->piece_count;
    catalog_box_t box;

    for (; p < end && cat->pieces[p].first <= asked->high; p++) {
        if (last_of(asked, &cat->pieces[p]) < asked->low) {
            continue;
        }
        if (catalog_box(cat, &cat->pieces[p], &box)) {
            FSDP_TRY(take_box(asked, p, &box, 0, err));
        } else if (asked->within == NULL) {
            FSDP_TRY(take_range(asked, p, err));
        } else {
            FSDP_TRY(take_range_as_boxes(asked, p, err));
        }
    }

    return FSDP_OK;
}

/* Where what is asked for lies in the tensor.
 * @return false if it is not there. */
static bool find(asked_t *asked, uint64_t count)
{
    const catalog_box_t *within = asked->within;
    unsigned ndim = asked->tensor->ndim, last;
    const uint64_t *dims = (within != NULL) ? within->count : asked->dims;
    uint64_t end[BOX_MAX_NDIM];

    box_strides(ndim, asked->dims, NULL, asked->tensor_strides);
    box_strides(ndim, dims, NULL, asked->strides);
    if (box_from_range(ndim, dims, asked->first, count, asked->boxes,
                       &asked->num_boxes) != FSDP_OK ||
        asked->num_boxes == 0) {
        return false;
    }

    for (unsigned i = 0; within != NULL && i < asked->num_boxes; i++) {
        for (unsigned d = 0; d < ndim; d++) {
            asked->boxes[i].start[d] += within->start[d];
        }
    }
    last = asked->num_boxes - 1;
    for (unsigned d = 0; d < ndim; d++) {
        end[d] = asked->boxes[last].start[d] + asked->boxes[last].count[d] - 1;
    }
    asked->low = element_at(asked, asked->boxes[0].start);
    asked->high = element_at(asked, end);
    return true;
}

fsdp_status_t gather_elements(const gather_t *gather, uint64_t index,
                              const catalog_box_t *within, uint64_t first,
                              uint64_t count, char *data, fsdp_error_t *err)
{
    const catalog_t *cat = gather->cat;
    const catalog_tensor_t *tensor = &cat->tensors[index];
    asked_t asked;

    asked.gather = gather;
    asked.tensor = tensor;
    asked.dims = cat->dims + tensor->dims_first;
    asked.within = within;
    asked.first = first;
    asked.data = data;
    asked.size = fsdp_dtype_bits((fsdp_dtype_t)tensor->stored) / 8;
    asked.found = 0;
    if (!find(&asked, count)) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "%s: tensor %s has no elements [%" PRIu64
                              ", %" PRIu64 ")",
                              cat->path, tensor->name, first, first + count);
    }

    FSDP_TRY(take_pieces(&asked, err));
    if (asked.found != count) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: tensor %s: %" PRIu64 " of the elements "
                              "[%" PRIu64 ", %" PRIu64 ") are in the files",
                              cat->path, tensor->name, asked.found, asked.low,
                              asked.high + 1);
    }

    return FSDP_OK;
}
