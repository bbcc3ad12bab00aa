#include "config.h"

#include <string.h>

#include "ckpt/catalog.h"

static const struct {
    const char *name;
    unsigned bits;
} dtypes[] = {
    [FSDP_DTYPE_F32] = {"f32",         32 },
    [FSDP_DTYPE_BF16] = {"bf16",        16 },
    [FSDP_DTYPE_F16] = {"f16",         16 },
    [FSDP_DTYPE_F64] = {"f64",         64 },
    [FSDP_DTYPE_I8] = {"i8",          8  },
    [FSDP_DTYPE_I16] = {"i16",         16 },
    [FSDP_DTYPE_I32] = {"i32",         32 },
    [FSDP_DTYPE_I64] = {"i64",         64 },
    [FSDP_DTYPE_U8] = {"u8",          8  },
    [FSDP_DTYPE_U16] = {"u16",         16 },
    [FSDP_DTYPE_U32] = {"u32",         32 },
    [FSDP_DTYPE_U64] = {"u64",         64 },
    [FSDP_DTYPE_BOOL] = {"bool",        8  },
    [FSDP_DTYPE_C64] = {"c64",         64 },
    [FSDP_DTYPE_C128] = {"c128",        128},
    [FSDP_DTYPE_F8_E4M3] = {"f8_e4m3",     8  },
    [FSDP_DTYPE_F8_E5M2] = {"f8_e5m2",     8  },
    [FSDP_DTYPE_F8_E8M0] = {"f8_e8m0",     8  },
    [FSDP_DTYPE_F8_E4M3FNUZ] = {"f8_e4m3fnuz", 8  },
    [FSDP_DTYPE_F8_E5M2FNUZ] = {"f8_e5m2fnuz", 8  },
    [FSDP_DTYPE_F6_E2M3] = {"f6_e2m3",     6  },
    [FSDP_DTYPE_F6_E3M2] = {"f6_e3m2",     6  },
    [FSDP_DTYPE_F4] = {"f4",          4  },
};

#define NUM_DTYPES (sizeof(dtypes) / sizeof(*dtypes))

bool dtype_valid(unsigned dtype)
{
    return dtype < NUM_DTYPES;
}

const char *fsdp_dtype_name(fsdp_dtype_t dtype)
{
    return dtype_valid(dtype) ? dtypes[dtype].name : "unknown";
}

bool fsdp_dtype_parse(const char *text, fsdp_dtype_t *dtype_p)
{
    for (unsigned i = 0; i < NUM_DTYPES; i++) {
        if (strcmp(text, dtypes[i].name) == 0) {
            *dtype_p = (fsdp_dtype_t)i;
            return true;
        }
    }

    return false;
}

unsigned fsdp_dtype_bits(fsdp_dtype_t dtype)
{
    return dtype_valid(dtype) ? dtypes[dtype].bits : 0;
}

bool dtype_bytes(fsdp_dtype_t dtype, uint64_t count, uint64_t *bytes_p)
{
    unsigned bits = fsdp_dtype_bits(dtype);

    if (bits % 8 == 0) {
        return !__builtin_mul_overflow(count, bits / 8, bytes_p);
    }

    /* Eight elements take `bits` bytes. */
    if (__builtin_mul_overflow(count / 8, bits, bytes_p)) {
        return false;
    }
    return !__builtin_add_overflow(*bytes_p, (count % 8 * bits + 7) / 8,
                                   bytes_p);
}

bool dtype_is_float(fsdp_dtype_t dtype)
{
    return dtype == FSDP_DTYPE_F32 || dtype == FSDP_DTYPE_BF16 ||
           dtype == FSDP_DTYPE_F16 || dtype == FSDP_DTYPE_F64;
}

/* --- Conversion: widened to f64, which is exact, then rounded once -------- */

enum { CONVERT_BLOCK = 256 };

/* Round an f64 to a 16-bit float with @a fraction bits of fraction. */
static uint16_t narrow16(double number, unsigned fraction)
{
    const int bias = (1 << (14 - fraction)) - 1;
    const uint16_t infinity = (uint16_t)(0x7fff >> fraction << fraction);
    uint64_t bits, part, half, rest;
    uint16_t sign, value;
    int exponent;
    unsigned drop = 52 - fraction;

    memcpy(&bits, &number, sizeof(bits));
    sign = (uint16_t)(bits >> 63 << 15);
    exponent = (int)(bits >> 52 & 2047) - 1023;
    part = bits & ((1ull << 52) - 1);

    if (exponent == 1024) {
        value = (uint16_t)(part >> drop);
        if (part != 0) {
            value |= (uint16_t)(1u << (fraction - 1)); /* stays NaN */
        }
        return (uint16_t)(sign | infinity | value);
    }

    if (exponent < 1 - bias) { /* a subnormal one, or 0 */
        int more = 1 - bias - exponent;

        if (more > (int)fraction + 1) {
            return sign; /* less than half of the smallest */
        }
        part |= 1ull << 52;
        drop += (unsigned)more;
        value = 0;
    } else if (exponent > bias) {
        return (uint16_t)(sign | infinity);
    } else {
        value = (uint16_t)((unsigned)(exponent + bias) << fraction);
    }

    /* A carry out of the fraction goes into the exponent, as it should. */
    half = 1ull << (drop - 1);
    rest = part & ((1ull << drop) - 1);
    value = (uint16_t)(value + (part >> drop));
    if (rest > half || (rest == half && (value & 1))) {
        value++;
    }
    return (uint16_t)(sign | value);
}

static void narrow(const double *src, fsdp_dtype_t to, char *dst, size_t num)
{
    for (size_t i = 0; i < num; i++) {
        uint16_t half;
        float single;

        if (to == FSDP_DTYPE_F64) {
            memcpy(dst + 8 * i, &src[i], 8);
        } else if (to == FSDP_DTYPE_F32) {
            single = (float)src[i];
            memcpy(dst + 4 * i, &single, 4);
        } else {
            half = narrow16(src[i], (to == FSDP_DTYPE_BF16) ? 7 : 10);
            memcpy(dst + 2 * i, &half, 2);
        }
    }
}

bool dtype_convert(fsdp_dtype_t from, const void *src, fsdp_dtype_t to,
                   void *dst, uint64_t count)
{
    double block[CONVERT_BLOCK];
    const char *in = src;
    char *out = dst;

    if (!dtype_is_float(from) || !dtype_is_float(to)) {
        return false;
    }

    for (uint64_t done = 0; done < count;) {
        size_t num = (count - done < CONVERT_BLOCK) ? (size_t)(count - done)
                                                    : CONVERT_BLOCK;

        fsdp_dtype_to_double(from, in, 0, num, block);
        narrow(block, to, out, num);
        in += num * (dtypes[from].bits / 8);
        out += num * (dtypes[to].bits / 8);
        done += num;
    }

    return true;
}
