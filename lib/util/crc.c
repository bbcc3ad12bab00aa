#include "config.h"

#include "lib/util/crc.h"

#include <isa-l.h>

uint32_t crc32c(uint32_t crc, const void *data, size_t size)
{
    const size_t most = 1u << 30; /* crc32_iscsi takes an int */
    unsigned char *p = (unsigned char *)data;

    crc = ~crc; /* crc32_iscsi inverts neither before nor after */
    while (size > 0) {
        size_t n = (size < most) ? size : most;

        crc = crc32_iscsi(p, (int)n, crc);
        p += n;
        size -= n;
    }

    return ~crc;
}

uint32_t crc32_zip(uint32_t crc, const void *data, size_t size)
{
    return crc32_gzip_refl(crc, data, size);
}

#define CASTAGNOLI 0x82f63b78u
#define ZIP        0xedb88320u

/* a(x) * b(x) modulo a polynomial, bits reflected: x^0 is bit 31. */
static uint32_t multiply(uint32_t a, uint32_t b, uint32_t polynomial)
{
    uint32_t product = 0;

    for (; a != 0; a <<= 1) {
        if (a & 0x80000000u) {
            product ^= b;
        }
        b = (b >> 1) ^ ((b & 1) ? polynomial : 0);
    }

    return product;
}

static uint32_t join(uint32_t crc_a, uint32_t crc_b, uint64_t size_b,
                     uint32_t polynomial)
{
    uint32_t shift = 0x80000000u;  /* x^0 */
    uint32_t square = 0x00800000u; /* x^8: one byte */

    for (; size_b != 0; size_b >>= 1) {
        if (size_b & 1) {
            shift = multiply(shift, square, polynomial);
        }
        square = multiply(square, square, polynomial);
    }

    return multiply(shift, crc_a, polynomial) ^ crc_b;
}

uint32_t crc32c_join(uint32_t crc_a, uint32_t crc_b, uint64_t size_b)
{
    return join(crc_a, crc_b, size_b, CASTAGNOLI);
}

uint32_t crc32_zip_join(uint32_t crc_a, uint32_t crc_b, uint64_t size_b)
{
    return join(crc_a, crc_b, size_b, ZIP);
}
