/*
 * Sizes as people write them: 512, 64K, 5GB (10^9), 1.5GiB (1.5 * 2^30).
 */
#ifndef FSDP_SIZE_H
#define FSDP_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIZE_TEXT_MAX 16

/**
 * Read a size.  K, M, G, T and KiB, MiB, GiB, TiB are powers of 1024;
 * KB, MB, GB, TB are powers of 1000; in letters of either case.  With one of
 * them there may be a point and up to six digits; what is less than a byte is
 * cut off.
 *
 * @return false, and *bytes_p untouched, if the text is no size that fits.
 */
bool size_parse(const char *text, uint64_t *bytes_p);

/**
 * Write a size with three digits, such as "1.50 GiB", into @a text.
 *
 * @return @a text.
 */
const char *size_format(uint64_t bytes, char text[SIZE_TEXT_MAX]);

/* Write a shape as "[768, 64]", "[]" for a scalar, cut where @a text ends.
 *
 * @return @a text. */
const char *size_shape(unsigned ndim, const uint64_t *dims, char *text,
                       size_t size);

#endif
