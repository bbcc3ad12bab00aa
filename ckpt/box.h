/*
 * Boxes of a row-major tensor.
 *
 * Every way to shard a tensor comes down to boxes: a dim-0 chunk and a tensor
 * parallel slice are one box, a flat range is at most 2 * ndim - 1 of them.
 * What two shardings have in common is the intersection of their boxes, and
 * what has to be copied is the list of its contiguous runs.
 */
#ifndef FSDP_BOX_H
#define FSDP_BOX_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/util/fsdp_status.h"

#define BOX_MAX_NDIM 32 /* as many as HDF5 has */

/* Elements start[d] to start[d] + count[d] - 1 in every dimension d. */
typedef struct {
    unsigned ndim; /* 0 is a scalar: one element, no dimension */
    uint64_t start[BOX_MAX_NDIM];
    uint64_t count[BOX_MAX_NDIM];
} box_t;

/* One contiguous stretch that two boxes share. */
typedef struct {
    uint64_t offset_a; /* elements from the first element of box a */
    uint64_t offset_b; /* elements from the first element of box b */
    uint64_t length;   /* elements */
} box_run_t;

/* Called for each run, in row-major order; a status other than FSDP_OK ends
 * the walk and is returned by it. */
typedef fsdp_status_t (*box_run_f)(const box_run_t *run, void *arg);

/**
 * Number of elements.
 *
 * @return FSDP_ERR_OVERFLOW if it does not fit in 64 bits.
 */
fsdp_status_t box_numel(const box_t *box, uint64_t *numel_p);

/**
 * Split elements [first, first + length) of a row-major tensor into boxes.
 *
 * @param dims    Shape of the tensor, @a ndim entries.
 * @param boxes   Room for 2 * ndim - 1 boxes (1 for a scalar).  They are in
 *                row-major order, do not overlap, and cover the range.
 * @param num_p   Number of boxes; 0 for an empty range.
 *
 * @return FSDP_ERR_INVALID_PARAM if the range leaves the tensor.
 */
fsdp_status_t box_from_range(unsigned ndim, const uint64_t *dims,
                             uint64_t first, uint64_t length, box_t *boxes,
                             unsigned *num_p);

/**
 * Intersect two boxes of the same tensor.
 *
 * @return true if they share an element; only then is @a *common_p written.
 */
bool box_intersect(const box_t *a, const box_t *b, box_t *common_p);

/**
 * Walk the contiguous runs that boxes @a a and @a b share, each box being
 * stored densely in row-major order.  Runs are as long as both layouts allow.
 */
fsdp_status_t box_walk_runs(const box_t *a, const box_t *b, box_run_f run_f,
                            void *arg);

#endif
