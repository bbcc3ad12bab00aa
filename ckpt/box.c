#include "config.h"

#include "ckpt/box.h"

#include <string.h>

fsdp_status_t box_numel(const box_t *box, uint64_t *numel_p)
{
    uint64_t numel = 1;

    for (unsigned d = 0; d < box->ndim; d++) {
        if (__builtin_mul_overflow(numel, box->count[d], &numel)) {
            return FSDP_ERR_OVERFLOW;
        }
    }

    *numel_p = numel;
    return FSDP_OK;
}

/*
 * The box that holds @a rows rows of dimension @a d from position @a first,
 * fixed at the position's coordinates in the dimensions before d, whole in
 * those after it.
 */
static void box_at(unsigned ndim, const uint64_t *dims, const uint64_t *strides,
                   unsigned d, uint64_t first, uint64_t rows, box_t *box)
{
    box->ndim = ndim;
    for (unsigned i = 0; i < ndim; i++) {
        box->start[i] = (i <= d) ? first / strides[i] % dims[i] : 0;
        box->count[i] = (i < d) ? 1 : (i == d) ? rows : dims[i];
    }
}

fsdp_status_t box_from_range(unsigned ndim, const uint64_t *dims,
                             uint64_t first, uint64_t length, box_t *boxes,
                             unsigned *num_p)
{
    box_t whole = {.ndim = ndim};
    uint64_t strides[BOX_MAX_NDIM];
    uint64_t numel, end, room, rows;
    fsdp_status_t status;
    unsigned d;

    if (ndim > BOX_MAX_NDIM) {
        return FSDP_ERR_INVALID_PARAM;
    }

    memcpy(whole.count, dims, ndim * sizeof(*dims));
    status = box_numel(&whole, &numel);
    if (status != FSDP_OK) {
        return status;
    }

    if (first > numel || length > numel - first) {
        return FSDP_ERR_INVALID_PARAM;
    }

    *num_p = 0;
    if (length == 0) {
        return FSDP_OK;
    }

    if (ndim == 0) {
        boxes[(*num_p)++] = whole;
        return FSDP_OK;
    }

    strides[ndim - 1] = 1;
    for (d = ndim - 1; d > 0; d--) {
        strides[d - 1] = strides[d] * dims[d];
    }

    /* Go up from single elements to whole rows of the outermost dimension
     * until the end is too near, then down again: each step takes all that
     * its dimension allows. */
    end = first + length;
    for (d = ndim - 1; first < end;) {
        room = (d > 0) ? dims[d] - first / strides[d] % dims[d] : UINT64_MAX;
        rows = (end - first) / strides[d];
        rows = (rows < room) ? rows : room;
        if (d > 0 && first % strides[d - 1] == 0 &&
            end - first >= strides[d - 1]) {
            d--;
        } else if (rows == 0) {
            d++;
        } else {
            box_at(ndim, dims, strides, d, first, rows, &boxes[(*num_p)++]);
            first += rows * strides[d];
        }
    }

    return FSDP_OK;
}

bool box_intersect(const box_t *a, const box_t *b, box_t *common_p)
{
    box_t common = {.ndim = a->ndim};
    uint64_t end_a, end_b, end;

    for (unsigned d = 0; d < a->ndim; d++) {
        end_a = a->start[d] + a->count[d];
        end_b = b->start[d] + b->count[d];
        end = (end_a < end_b) ? end_a : end_b;
        common.start[d] =
            (a->start[d] > b->start[d]) ? a->start[d] : b->start[d];
        if (common.start[d] >= end) {
            return false;
        }
        common.count[d] = end - common.start[d];
    }

    *common_p = common;
    return true;
}

/* Offset of the element at @a index, in elements from the box's first one. */
static uint64_t box_offset(const box_t *box, const uint64_t *index)
{
    uint64_t offset = 0;

    for (unsigned d = 0; d < box->ndim; d++) {
        offset = offset * box->count[d] + (index[d] - box->start[d]);
    }

    return offset;
}

fsdp_status_t box_walk_runs(const box_t *a, const box_t *b, box_run_f run_f,
                            void *arg)
{
    uint64_t index[BOX_MAX_NDIM];
    fsdp_status_t status;
    box_run_t run;
    box_t common;
    unsigned inner, d;

    if (!box_intersect(a, b, &common)) {
        return FSDP_OK;
    }

    /* Dimensions from `inner` on form one run: below the outermost of them,
     * the common part fills both boxes. */
    run.length = 1;
    for (inner = common.ndim; inner > 0; inner--) {
        run.length *= common.count[inner - 1];
        if (common.count[inner - 1] != a->count[inner - 1] ||
            common.count[inner - 1] != b->count[inner - 1]) {
            inner--;
            break;
        }
    }

    memcpy(index, common.start, common.ndim * sizeof(*index));
    for (;;) {
        run.offset_a = box_offset(a, index);
        run.offset_b = box_offset(b, index);
        status = run_f(&run, arg);
        if (status != FSDP_OK) {
            return status;
        }

        for (d = inner; d > 0; d--) {
            if (++index[d - 1] < common.start[d - 1] + common.count[d - 1]) {
                break;
            }
            index[d - 1] = common.start[d - 1];
        }
        if (d == 0) {
            return FSDP_OK;
        }
    }
}
