/*
 * Reading elements of a tensor where pieces are boxes, or a box is wanted.
 *
 * What a stretch of the tensor shares with a box is read in spans of the file
 * that fit into a small buffer, and put where it belongs from there.
 */
#ifndef FSDP_GATHER_H
#define FSDP_GATHER_H

#include "ckpt/catalog.h"

/* Read @a bytes bytes of a piece from byte @a at on.  Of a piece that is not
 * strided every byte that is needed is asked for once. */
typedef fsdp_status_t (*gather_read_f)(void *arg, uint64_t piece, uint64_t at,
                                       void *data, size_t bytes,
                                       fsdp_error_t *err);

typedef struct {
    const catalog_t *cat;
    gather_read_f read;
    void *arg;
    char *stage;        /* the buffer */
    size_t stage_bytes; /* an element at least */
} gather_t;

/**
 * Elements [first, first + count) of a tensor, or of a dense box of it, in
 * row-major order into @a data.
 *
 * @param within  The box; NULL: the tensor.  Pieces may then be asked for more
 *                than once.
 *
 * @return what @a read returned, or FSDP_ERR_CORRUPT if one is in no piece.
 */
fsdp_status_t gather_elements(const gather_t *gather, uint64_t tensor,
                              const catalog_box_t *within, uint64_t first,
                              uint64_t count, char *data, fsdp_error_t *err);

/* Do to elements what CATALOG_NEG and CATALOG_CONJ say. */
void gather_change(fsdp_dtype_t dtype, unsigned change, char *data,
                   uint64_t count);

#endif
