/*
 * Files that share blocks on disk, where the file system has reflinks: nothing
 * is written, no space is taken, and what later changes one of the files does
 * not show in the other.
 */
#ifndef FSDP_LINK_H
#define FSDP_LINK_H

#include <stdint.h>

/**
 * Give file @a dst the bytes of file @a src by sharing them: whole blocks
 * only, of @a bytes bytes that begin at @a src_at and @a dst_at.
 *
 * @param from_p  Offset in @a dst of the first byte that is shared,
 * @param to_p    and behind the last one.
 *
 * @return 0, or why nothing is shared, in the terms of errno: EINVAL if the
 *         two do not lie alike in their blocks, or are too few.  Then @a dst
 *         has what it had, or parts of what it should have.
 */
int link_blocks(int src, uint64_t src_at, int dst, uint64_t dst_at,
                uint64_t bytes, uint64_t *from_p, uint64_t *to_p);

/* What such an error means; borrowed. */
const char *link_why(int error);

#endif
