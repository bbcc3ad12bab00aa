/*
 * Parts of tensors as people write them: NAME, NAME[2], NAME[:, 0:8].
 */
#ifndef FSDP_SLICE_H
#define FSDP_SLICE_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/fsdp_ckpt.h"

/* Elements lo … hi - 1 in each dimension. */
typedef struct {
    uint32_t ndim;
    uint64_t lo[FSDP_CKPT_MAX_NDIM];
    uint64_t hi[FSDP_CKPT_MAX_NDIM];
} slice_t;

/**
 * Split "NAME[...]" into NAME and what stands in the brackets.  Names that end
 * in brackets themselves are found whole by the caller first.
 *
 * @param name_p   The caller frees it.
 * @param inner_p  Points into @a text, ends before the last ']'; NULL if there
 *                 are no brackets.
 */
void slice_split(const char *text, char **name_p, const char **inner_p);

/**
 * Read what stands in the brackets: for each dimension an index or LO:HI, each
 * may be left out or count from the end (negative); dimensions left out at the
 * end are whole.
 *
 * @param inner  NULL: the leading elements, a few of each dimension.
 * @param why_p  What is wrong with it, a constant text.
 *
 * @return false if it is wrong.
 */
bool slice_parse(const char *inner, const fsdp_ckpt_tensor_t *tensor,
                 slice_t *slice_p, const char **why_p);

/* Number of elements. */
uint64_t slice_numel(const slice_t *slice);

/* "[0:2, 5:6]", the caller frees it. */
char *slice_format(const slice_t *slice);

#endif
