/*
 * Pieces that go where rules move their tensors: flat ranges stay flat ranges
 * where nothing is transposed, all others become boxes with the strides that
 * their elements have in the file.
 */
#include "config.h"

#include <string.h>

#include "ckpt/catalog_box.h"
#include "ckpt/rules_moves.h"
#include "lib/util/check.h"

typedef struct {
    const apply_t *apply;
    const move_t *move;
    catalog_t *to;
    bool *lost;
    uint32_t target;
    uint64_t index; /* of the piece on its way */
} moving_t;

/* A box of a tensor on its way, and where its first element lies. */
typedef struct {
    unsigned ndim;
    uint64_t start[FSDP_CKPT_MAX_NDIM + 1];
    uint64_t count[FSDP_CKPT_MAX_NDIM + 1];
    uint64_t strides[FSDP_CKPT_MAX_NDIM + 1];
    uint64_t skipped; /* elements of the file */
} part_t;

static uint64_t numel_behind(const uint64_t *dims, unsigned ndim, unsigned d)
{
    uint64_t numel = 1;

    for (; d < ndim; d++) {
        numel *= dims[d];
    }

    return numel;
}

static fsdp_status_t bad_type(const moving_t *moving, fsdp_error_t *err)
{
    const catalog_t *from = moving->apply->from;
    const catalog_tensor_t *tensor = &from->tensors[moving->move->tensor];

    return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                          "%s: tensor %s: its type can be renamed by rules, "
                          "but not be cut there or transposed",
                          from->path, tensor->name);
}

/* --- Ranges --------------------------------------------------------------- */

/* Elements [*lo_p, *hi_p) of the old tensor move to *to_p on of the new one. */
static void measure(const moving_t *moving, uint64_t *lo_p, uint64_t *hi_p,
                    uint64_t *to_p)
{
    const move_t *move = moving->move;
    const catalog_t *from = moving->apply->from;
    const made_t *made = &moving->apply->mades[move->made];
    const catalog_tensor_t *tensor = &from->tensors[move->tensor];
    const uint64_t *dims = from->dims + tensor->dims_first;
    unsigned from_skip = move->from_index != RULES_NONE;
    unsigned to_skip = move->to_index != RULES_NONE;
    uint64_t view = numel_behind(dims, tensor->ndim, from_skip), row;

    *lo_p = from_skip ? move->from_index * view : 0;
    *hi_p = *lo_p + view;
    *to_p =
        to_skip ? move->to_index * numel_behind(made->dims, made->ndim, 1) : 0;
    if (!move->whole) {
        row = numel_behind(dims, tensor->ndim, from_skip + 1);
        *lo_p += move->from_row * row;
        *hi_p = *lo_p + move->rows * row;
        *to_p += move->to_row * row;
    }
}

static fsdp_status_t move_range(const moving_t *moving, fsdp_error_t *err)
{
    const catalog_t *from = moving->apply->from;
    catalog_piece_t added = from->pieces[moving->index];
    const catalog_tensor_t *tensor = &from->tensors[added.tensor];
    unsigned bits = fsdp_dtype_bits((fsdp_dtype_t)tensor->stored);
    uint64_t first = added.first, end = first + added.count, lo, hi, to;

    measure(moving, &lo, &hi, &to);
    first = (first > lo) ? first : lo;
    end = (end < hi) ? end : hi;
    if (first >= end) {
        return FSDP_OK;
    }
    if (!part_range(&added, bits, first, end, &moving->lost[moving->index])) {
        return bad_type(moving, err);
    }

    added.tensor = moving->target;
    added.first = to + (first - lo);
    return catalog_add_piece(moving->to, &added, err);
}

/* --- Boxes ---------------------------------------------------------------- */

/* Cut dimension 0 to [first, first + count); @return false: nothing is left. */
static bool clip(part_t *part, uint64_t first, uint64_t count)
{
    uint64_t lo = part->start[0], hi = lo + part->count[0];
    uint64_t end = first + count;

    if (lo < first) {
        part->skipped += (first - lo) * part->strides[0];
        lo = first;
    }
    hi = (hi < end) ? hi : end;
    part->start[0] = lo;
    part->count[0] = hi - lo;
    return lo < hi;
}

static void swap(uint64_t *values, unsigned ndim)
{
    uint64_t last = values[ndim - 1];

    values[ndim - 1] = values[ndim - 2];
    values[ndim - 2] = last;
}

static void transpose(part_t *part)
{
    swap(part->start, part->ndim);
    swap(part->count, part->ndim);
    swap(part->strides, part->ndim);
}

/* Leave out dimension 0, or put one of one element there. */
static void shift(part_t *part, bool out, uint64_t start)
{
    uint64_t *const lists[] = {part->start, part->count, part->strides};
    const uint64_t values[] = {start, 1, 1};

    part->ndim -= out;
    for (int i = 0; i < 3; i++) {
        if (out) {
            memmove(lists[i], lists[i] + 1, part->ndim * sizeof(**lists));
        } else {
            memmove(lists[i] + 1, lists[i], part->ndim * sizeof(**lists));
            lists[i][0] = values[i];
        }
    }
    part->ndim += !out;
}

/* From the old tensor to what a rule means of it. */
static bool leave(const move_t *move, part_t *part)
{
    if (move->from_index != RULES_NONE) {
        if (!clip(part, move->from_index, 1)) {
            return false;
        }
        shift(part, true, 0);
    }
    if (move->from_transposed) {
        transpose(part);
    }
    if (move->whole) {
        return true;
    }
    if (!clip(part, move->from_row, move->rows)) {
        return false;
    }
    part->start[0] = part->start[0] - move->from_row + move->to_row;
    return true;
}

/* And on to the new one. */
static void arrive(const move_t *move, part_t *part)
{
    if (move->to_transposed) {
        transpose(part);
    }
    if (move->to_index != RULES_NONE) {
        shift(part, false, move->to_index);
    }
}

/* One box of a piece. */
static fsdp_status_t move_box(const box_t *box, const uint64_t *strides,
                              uint64_t skipped, unsigned change, void *arg,
                              fsdp_error_t *err)
{
    const moving_t *moving = arg;
    const catalog_t *from = moving->apply->from;
    catalog_piece_t added = from->pieces[moving->index];
    const catalog_tensor_t *tensor = &from->tensors[added.tensor];
    part_t part = {.ndim = box->ndim, .skipped = skipped};

    memcpy(part.start, box->start, box->ndim * sizeof(*box->start));
    memcpy(part.count, box->count, box->ndim * sizeof(*box->count));
    memcpy(part.strides, strides, box->ndim * sizeof(*strides));
    if (!leave(moving->move, &part)) {
        return FSDP_OK;
    }

    arrive(moving->move, &part);
    added.tensor = moving->target;
    added.offset +=
        part.skipped * (fsdp_dtype_bits((fsdp_dtype_t)tensor->dtype) / 8);
    part_checksums(&added, numel_behind(part.count, part.ndim, 0),
                   &moving->lost[moving->index]);
    return catalog_add_changed(moving->to, &added, part.start, part.count,
                               part.strides, change, err);
}

static fsdp_status_t move_boxes(moving_t *moving, fsdp_error_t *err)
{
    const catalog_t *from = moving->apply->from;
    const catalog_piece_t *piece = &from->pieces[moving->index];
    const catalog_tensor_t *tensor = &from->tensors[piece->tensor];

    if (tensor->stored != tensor->dtype ||
        fsdp_dtype_bits((fsdp_dtype_t)tensor->dtype) % 8 != 0) {
        return bad_type(moving, err);
    }

    return box_visit(from, piece, move_box, moving, err);
}

/* Rows of zeros, which are read from a file of nothing else. */
static fsdp_status_t add_zeros(const moving_t *moving, uint32_t file,
                               fsdp_error_t *err)
{
    const move_t *move = moving->move;
    const made_t *made = &moving->apply->mades[move->made];
    catalog_piece_t piece = {
        .tensor = moving->target, .file = file, .crc_first = CATALOG_NONE};
    part_t part = {.ndim = made->ndim};

    memcpy(part.count, made->dims, made->ndim * sizeof(*made->dims));
    if (move->to_index != RULES_NONE) {
        shift(&part, true, 0);
    }
    if (move->to_transposed) {
        transpose(&part);
    }
    part.start[0] = move->to_row;
    part.count[0] = move->rows;
    box_strides(part.ndim, part.count, NULL, part.strides);
    arrive(move, &part);
    return catalog_add_box(moving->to, &piece, part.start, part.count,
                           part.strides, err);
}

fsdp_status_t rules_move(const apply_t *apply, const move_t *move,
                         catalog_t *to, uint64_t target, uint32_t zeros,
                         bool *lost, fsdp_error_t *err)
{
    const catalog_tensor_t *tensor = &apply->from->tensors[move->tensor];
    moving_t moving = {.apply = apply,
                       .move = move,
                       .to = to,
                       .lost = lost,
                       .target = (uint32_t)target};

    if (move->zeros) {
        return add_zeros(&moving, zeros, err);
    }

    for (uint64_t p = 0; p < tensor->piece_count; p++) {
        bool flat;

        moving.index = tensor->piece_first + p;
        flat = apply->from->pieces[moving.index].box == CATALOG_NONE &&
               !move->from_transposed && !move->to_transposed;
        FSDP_TRY(flat ? move_range(&moving, err) : move_boxes(&moving, err));
    }
    return FSDP_OK;
}
