/*
 * Parts of tensors as people write them: NAME, NAME[2], NAME[:, 0:8].
 */
#ifndef FSDP_SLICE_H
#define FSDP_SLICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SLICE_MAX_NDIM 32
#define SLICE_TEXT_MAX (SLICE_MAX_NDIM * 2 * 22 + 4)

/* Elements lo … hi - 1 in each dimension. */
typedef struct {
    uint32_t ndim;
    uint64_t lo[SLICE_MAX_NDIM];
    uint64_t hi[SLICE_MAX_NDIM];
} slice_t;

/**
 * Split "NAME[...]" into NAME and what stands in the brackets.  Names that end
 * in brackets themselves are found whole by the caller first.
 *
 * @param size_p  Bytes of NAME.
 *
 * @return what stands in the brackets, with the last one, in @a text; NULL if
 *         there are none.
 */
const char *slice_split(const char *text, size_t *size_p);

/* Might it be a slice, of a tensor of the right shape? */
bool slice_is(const char *inner);

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
bool slice_parse(const char *inner, uint32_t ndim, const uint64_t *dims,
                 slice_t *slice_p, const char **why_p);

/* Number of elements. */
uint64_t slice_numel(const slice_t *slice);

/* "[0:2, 5:6]".  @return @a text. */
const char *slice_format(const slice_t *slice, char text[SLICE_TEXT_MAX]);

#endif
