/*
 * Targets in which each rank has a box of each tensor: rows, as PyTorch's
 * FSDP2 deals them, and with a second dimension of ranks the slices of tensor
 * parallelism, of which FSDP2 then deals the rows.
 */
#include "config.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/target.h"
#include "lib/util/check.h"
#include "lib/util/select.h"

/* Not split: all ranks beside each other would hold the same, one does. */
#define NOT_SPLIT UINT32_MAX

/* Apply one rule to the tensors that no rule before it fits. */
static fsdp_status_t apply_split(const catalog_t *cat, const char *rule,
                                 uint32_t *dims, fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;
    bool fits = false;
    char *pattern;
    size_t size;
    long dim;

    FSDP_TRY(select_parse_split(rule, &size, &dim, err));
    pattern = strndup(rule, size);
    if (pattern == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              cat->path);
    }

    for (uint64_t t = 0; t < cat->num_tensors && status == FSDP_OK; t++) {
        const catalog_tensor_t *tensor = &cat->tensors[t];
        long ndim = tensor->ndim, d = (dim < 0) ? dim + ndim : dim;

        if (!select_pattern_match(pattern, tensor->name)) {
            continue;
        }
        fits = true;
        if (d < 0 || d >= ndim) {
            status = fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                                    "tensor %s has %ld dimensions: '%s' "
                                    "cannot split it",
                                    tensor->name, ndim, rule);
        } else if (dims[t] == NOT_SPLIT) {
            dims[t] = (uint32_t)d;
        }
    }
    if (status == FSDP_OK && !fits) {
        status = catalog_no_tensor(cat, pattern, rule, err);
    }
    free(pattern);
    return status;
}

/* Part @a index of @a parts of a dimension, as torch.chunk cuts.
 * @return false if it is empty. */
static bool chunk(uint64_t *start, uint64_t *count, uint32_t parts,
                  uint32_t index)
{
    uint64_t most = *count / parts + (*count % parts != 0);
    uint64_t from;

    if (__builtin_mul_overflow(most, index, &from) || from >= *count) {
        return false;
    }

    *start += from;
    *count = (*count - from < most) ? *count - from : most;
    return true;
}

/* Packed elements are stored in whole bytes only. */
static fsdp_status_t check_bytes(const catalog_tensor_t *tensor,
                                 const uint64_t *dims, fsdp_error_t *err)
{
    uint64_t row = (dims[0] > 0) ? tensor->numel / dims[0] : 0;

    if (row % 8 * fsdp_dtype_bits((fsdp_dtype_t)tensor->dtype) % 8 == 0) {
        return FSDP_OK;
    }
    return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                          "tensor %s: its rows of %" PRIu64
                          " %s are no whole bytes, so that it cannot be cut "
                          "into chunks: choose another --strategy",
                          tensor->name, row,
                          fsdp_dtype_name((fsdp_dtype_t)tensor->dtype));
}

/* The box of each rank of a tensor.  @a split: the dimension, or NOT_SPLIT. */
static fsdp_status_t add_boxes(catalog_t *cat, uint32_t index, uint32_t split,
                               uint32_t across, uint32_t files,
                               fsdp_error_t *err)
{
    const catalog_tensor_t *tensor = &cat->tensors[index];
    uint64_t dims[FSDP_CKPT_MAX_NDIM] = {1}; /* a scalar is one row */
    uint32_t world = cat->mesh.world, down = world / across;
    size_t size = tensor->ndim * sizeof(*dims);

    memcpy(dims, cat->dims + tensor->dims_first, size);
    if (dims[0] > 1 && (down > 1 || split == 0)) {
        FSDP_TRY(check_bytes(tensor, dims, err));
    }
    for (uint32_t a = 0; a < ((split == NOT_SPLIT) ? 1 : across); a++) {
        uint64_t start[FSDP_CKPT_MAX_NDIM] = {0}, first;
        uint64_t count[FSDP_CKPT_MAX_NDIM], rows;

        memcpy(count, dims, sizeof(count));
        if (split != NOT_SPLIT &&
            !chunk(&start[split], &count[split], across, a)) {
            continue;
        }
        first = start[0];
        rows = count[0];
        for (uint32_t i = 0; i < down && chunk(&start[0], &count[0], down, i);
             i++) {
            uint32_t rank = i * across + a;
            const catalog_piece_t piece = {
                .tensor = index,
                .file = target_file_of(rank, world, files),
                .rank = rank,
                .crc_first = CATALOG_NONE};

            FSDP_TRY(catalog_add_box(cat, &piece, start, count, NULL, err));
            start[0] = first;
            count[0] = rows;
        }
    }

    return FSDP_OK;
}

fsdp_status_t target_grid(catalog_t *cat, const target_grid_t *grid,
                          uint32_t files, fsdp_error_t *err)
{
    uint32_t *dims = calloc(cat->num_tensors + 1, sizeof(*dims));
    uint32_t across = (grid->across > 0) ? grid->across : 1;
    fsdp_status_t status = FSDP_OK;

    if (dims == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for the layout of tensors");
    }
    if (cat->mesh.world % across != 0) {
        status = fsdp_error_set(err, FSDP_ERR_CONFIG,
                                "%u ranks are not in rows of %u",
                                cat->mesh.world, across);
        goto err_free;
    }

    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        dims[t] = NOT_SPLIT;
    }
    for (size_t i = 0; i < grid->num_split; i++) {
        FSDP_TRY_GOTO(apply_split(cat, grid->split[i], dims, err), err_free);
    }
    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        FSDP_TRY_GOTO(
            add_boxes(cat, (uint32_t)t, dims[t], across, files, err), err_free);
    }
err_free:
    free(dims);
    return status;
}
