/*
 * Elements of any type as numbers.
 */
#include "config.h"

#include "ckpt/fsdp_ckpt.h"

#include <math.h>
#include <string.h>

/* How a small floating-point type uses its bits. */
typedef struct {
    unsigned exponent, mantissa; /* bits; the sign is one more */
    int bias;
    enum { IEEE, ONLY_NAN, UNSIGNED_ZERO, FINITE } special;
} small_t;

/* The largest exponent means Inf and NaN in IEEE types; all ones is the only
 * NaN in ONLY_NAN; minus zero is the only one in UNSIGNED_ZERO. */
static double small_value(const small_t *type, unsigned bits)
{
    unsigned sign = bits >> (type->exponent + type->mantissa) & 1;
    unsigned most = (1u << type->exponent) - 1;
    unsigned exponent = bits >> type->mantissa & most;
    unsigned mantissa = bits & ((1u << type->mantissa) - 1);
    double value;

    if (type->special == IEEE && exponent == most) {
        value = (mantissa != 0) ? NAN : INFINITY;
    } else if ((type->special == ONLY_NAN && exponent == most &&
                mantissa == (1u << type->mantissa) - 1) ||
               (type->special == UNSIGNED_ZERO && sign == 1 && exponent == 0 &&
                mantissa == 0)) {
        value = NAN;
    } else if (exponent == 0) {
        value = ldexp(mantissa, 1 - type->bias - (int)type->mantissa);
    } else {
        value = ldexp(mantissa + (1u << type->mantissa),
                      (int)exponent - type->bias - (int)type->mantissa);
    }

    return (sign == 1) ? -value : value;
}

/* Bits [at, at + num) of a little-endian stream; num is at most 16. */
static unsigned bits_at(const unsigned char *data, uint64_t at, unsigned num)
{
    const unsigned char *p = data + at / 8;
    unsigned shift = at % 8, have = 8;
    unsigned value = p[0];

    for (; have < shift + num; have += 8) {
        value |= (unsigned)p[have / 8] << have;
    }

    return value >> shift & ((1u << num) - 1);
}

static void small_values(const small_t *type, const void *data, uint64_t first,
                         uint64_t count, double *values)
{
    unsigned width = 1 + type->exponent + type->mantissa;

    for (uint64_t i = 0; i < count; i++) {
        values[i] =
            small_value(type, bits_at(data, (first + i) * width, width));
    }
}

static void bf16_values(const unsigned char *data, uint64_t count,
                        double *values)
{
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)data[2 * i + 1] << 24 | (uint32_t)data[2 * i]
                                                              << 16;
        float value;

        memcpy(&value, &bits, sizeof(value));
        values[i] = value;
    }
}

/* Powers of two without sign; all ones is NaN. */
static void scale_values(const unsigned char *data, uint64_t count,
                         double *values)
{
    for (uint64_t i = 0; i < count; i++) {
        values[i] = (data[i] == 255) ? NAN : ldexp(1, data[i] - 127);
    }
}

#define PLAIN_VALUES(_type)                                          \
    do {                                                             \
        const unsigned char *_p =                                    \
            (const unsigned char *)data + first * sizeof(_type);     \
        for (uint64_t _i = 0; _i < count; _i++) {                    \
            _type _value;                                            \
            memcpy(&_value, _p + _i * sizeof(_type), sizeof(_type)); \
            values[_i] = (double)_value;                             \
        }                                                            \
    } while (0)

void fsdp_dtype_to_double(fsdp_dtype_t dtype, const void *data, uint64_t first,
                          uint64_t count, double *values)
{
    static const small_t f16 = {5, 10, 15, IEEE};
    static const small_t e4m3 = {4, 3, 7, ONLY_NAN}, e5m2 = {5, 2, 15, IEEE};
    static const small_t e4m3fnuz = {4, 3, 8, UNSIGNED_ZERO};
    static const small_t e5m2fnuz = {5, 2, 16, UNSIGNED_ZERO};
    static const small_t e2m3 = {2, 3, 1, FINITE}, e3m2 = {3, 2, 3, FINITE};
    static const small_t e2m1 = {2, 1, 1, FINITE};
    const unsigned char *bytes = data;

    if (dtype == FSDP_DTYPE_C64 || dtype == FSDP_DTYPE_C128) {
        first *= 2;
        count *= 2;
    }

    switch (dtype) {
    case FSDP_DTYPE_C64:
    case FSDP_DTYPE_F32:
        PLAIN_VALUES(float);
        break;
    case FSDP_DTYPE_C128:
    case FSDP_DTYPE_F64:
        PLAIN_VALUES(double);
        break;
    case FSDP_DTYPE_BF16:
        bf16_values(bytes + 2 * first, count, values);
        break;
    case FSDP_DTYPE_F16:
        small_values(&f16, data, first, count, values);
        break;
    case FSDP_DTYPE_I8:
        PLAIN_VALUES(int8_t);
        break;
    case FSDP_DTYPE_I16:
        PLAIN_VALUES(int16_t);
        break;
    case FSDP_DTYPE_I32:
        PLAIN_VALUES(int32_t);
        break;
    case FSDP_DTYPE_I64:
        PLAIN_VALUES(int64_t);
        break;
    case FSDP_DTYPE_U8:
    case FSDP_DTYPE_BOOL:
        PLAIN_VALUES(uint8_t);
        break;
    case FSDP_DTYPE_U16:
        PLAIN_VALUES(uint16_t);
        break;
    case FSDP_DTYPE_U32:
        PLAIN_VALUES(uint32_t);
        break;
    case FSDP_DTYPE_U64:
        PLAIN_VALUES(uint64_t);
        break;
    case FSDP_DTYPE_F8_E4M3:
        small_values(&e4m3, data, first, count, values);
        break;
    case FSDP_DTYPE_F8_E5M2:
        small_values(&e5m2, data, first, count, values);
        break;
    case FSDP_DTYPE_F8_E8M0:
        scale_values(bytes + first, count, values);
        break;
    case FSDP_DTYPE_F8_E4M3FNUZ:
        small_values(&e4m3fnuz, data, first, count, values);
        break;
    case FSDP_DTYPE_F8_E5M2FNUZ:
        small_values(&e5m2fnuz, data, first, count, values);
        break;
    case FSDP_DTYPE_F6_E2M3:
        small_values(&e2m3, data, first, count, values);
        break;
    case FSDP_DTYPE_F6_E3M2:
        small_values(&e3m2, data, first, count, values);
        break;
    case FSDP_DTYPE_F4:
        small_values(&e2m1, data, first, count, values);
        break;
    }
}
