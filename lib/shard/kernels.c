#include "config.h"

#include "lib/shard/kernels.h"

#include <math.h>
#include <string.h>

#include "lib/util/simd.h"

#define BLOCK KERNEL_BLOCK

/* --- Initial values ------------------------------------------------------- */

#define PHILOX_ROUNDS 10
#define PHILOX_M0     0xd2511f53u
#define PHILOX_M1     0xcd9e8d57u
#define PHILOX_W0     0x9e3779b9u
#define PHILOX_W1     0xbb67ae85u

/* Words are kept in 64 bits, where the products are needed. */
SIMD_BODY void philox_rounds(uint64_t c[4], uint32_t k0, uint32_t k1)
{
#pragma GCC unroll 10
    for (unsigned round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t p0 = (c[0] & UINT32_MAX) * PHILOX_M0;
        uint64_t p1 = (c[2] & UINT32_MAX) * PHILOX_M1;

        c[0] = p1 >> 32 ^ c[1] ^ k0;
        c[1] = p1 & UINT32_MAX;
        c[2] = p0 >> 32 ^ c[3] ^ k1;
        c[3] = p0 & UINT32_MAX;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
}

void philox4x32(const uint32_t counter[4], const uint32_t key[2],
                uint32_t random_p[4])
{
    uint64_t c[4] = {counter[0], counter[1], counter[2], counter[3]};

    philox_rounds(c, key[0], key[1]);
    for (unsigned i = 0; i < 4; i++) {
        random_p[i] = (uint32_t)c[i];
    }
}

/* The finalizer of splitmix64. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t kernel_init_key(uint64_t seed, const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */

    for (; *name != '\0'; name++) {
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    }

    return mix(hash ^ mix(seed + 0x9e3779b97f4a7c15u));
}

SIMD_BODY double bits_double(uint64_t bits)
{
    double x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

SIMD_BODY uint64_t double_bits(double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

/* The top 52 bits as a number in [1, 2). */
SIMD_BODY double bits_unit(uint64_t bits)
{
    return bits_double(bits >> 12 | 0x3ff0000000000000u);
}

/* ln u of a normal u in (0, 1): u = 2^e m with m in (sqrt(1/2), sqrt(2)], and
 * ln m = 2 artanh((m - 1) / (m + 1)) by its series. */
SIMD_BODY double poly_ln(double u)
{
    uint64_t bits = double_bits(u);
    /* Where the mantissa is above sqrt(2), this carries into the exponent. */
    uint64_t up = bits + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    /* e + 1023, as a double by way of the mantissa of 2^52. */
    double e = bits_double(up >> 52 | 0x4330000000000000u) -
               (4503599627370496.0 + 1023.0);
    double m = bits_double((up & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu);
    double s = (m - 1.0) / (m + 1.0), q = s * s, t;

    t = 2.0 / 21.0;
    t = t * q + 2.0 / 19.0;
    t = t * q + 2.0 / 17.0;
    t = t * q + 2.0 / 15.0;
    t = t * q + 2.0 / 13.0;
    t = t * q + 2.0 / 11.0;
    t = t * q + 2.0 / 9.0;
    t = t * q + 2.0 / 7.0;
    t = t * q + 2.0 / 5.0;
    t = t * q + 2.0 / 3.0;
    t = t * q * s + 2.0 * s;

    return e * 0.69314718055994530942 + t;
}

/* sin(pi z) for z in (-1/2, 1/2), by its series. */
SIMD_BODY double poly_sin_pi(double z)
{
    double q = z * z, t;

    t = 5.3926646626081284894e-10;
    t = t * q - 2.294842899726987311e-8;
    t = t * q + 7.9520540014755127848e-7;
    t = t * q - 0.000021915353447830215827;
    t = t * q + 0.00046630280576761256442;
    t = t * q - 0.0073704309457143507773;
    t = t * q + 0.082145886611128228799;
    t = t * q - 0.59926452932079207689;
    t = t * q + 2.5501640398773454439;
    t = t * q - 5.1677127800499700292;

    return t * q * z + 3.1415926535897932385 * z;
}

/* One block, whole, so that every element is computed in the same way. */
SIMD_BODY void normal_block_body(float *restrict out, uint64_t key,
                                 uint64_t first, double std)
{
    const double half_ulp = 0x1p-53;

    for (unsigned i = 0; i < BLOCK; i++) {
        uint64_t element = first + i;
        uint64_t c[4] = {element & UINT32_MAX, element >> 32, 0, 0};
        double u, z;

        philox_rounds(c, (uint32_t)key, (uint32_t)(key >> 32));
        u = (bits_unit(c[0] | c[1] << 32) - 1.0) + half_ulp;
        z = (bits_unit(c[2] | c[3] << 32) - 1.5) + half_ulp;
        out[i] =
            (float)(std * (__builtin_sqrt(-2.0 * poly_ln(u)) * poly_sin_pi(z)));
    }
}

SIMD_FUNCTION(static, normal_block,
              (float *restrict out, uint64_t key, uint64_t first, double std),
              (out, key, first, std))

void kernel_normal(float *out, uint64_t key, uint64_t first, uint64_t count,
                   float std)
{
    float rest[BLOCK];
    uint64_t i;

    for (i = 0; i + BLOCK <= count; i += BLOCK) {
        normal_block(out + i, key, first + i, (double)std);
    }
    if (i < count) {
        normal_block(rest, key, first + i, (double)std);
        memcpy(out + i, rest, (count - i) * sizeof(*out));
    }
}

/* --- Elements ------------------------------------------------------------- */

/* Run a statement for i = 0 … count - 1, in vectorised turns of BLOCK. */
#define EACH_ELEMENT(_count, _i, _statement)                \
    do {                                                    \
        uint64_t _done = 0;                                 \
        for (; _done + BLOCK <= (_count); _done += BLOCK) { \
            for (uint64_t _k = 0; _k < BLOCK; _k++) {       \
                const uint64_t _i = _done + _k;             \
                _statement;                                 \
            }                                               \
        }                                                   \
        for (uint64_t _i = _done; _i < (_count); _i++) {    \
            _statement;                                     \
        }                                                   \
    } while (0)

SIMD_BODY uint16_t bf16_of(float x)
{
    uint32_t bits, round;

    memcpy(&bits, &x, sizeof(bits));
    round = bits + 0x7fff + (bits >> 16 & 1);
    /* The payload of a NaN may lie in what is cut off: keep it a quiet one. */
    round = (bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : round;

    return (uint16_t)(round >> 16);
}

SIMD_BODY float bf16_float(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

SIMD_BODY void kernel_to_bf16_body(uint16_t *restrict out,
                                   const float *restrict in, uint64_t count)
{
    EACH_ELEMENT(count, i, out[i] = bf16_of(in[i]));
}

SIMD_FUNCTION(extern, kernel_to_bf16,
              (uint16_t *restrict out, const float *restrict in,
               uint64_t count),
              (out, in, count))

SIMD_BODY void kernel_from_bf16_body(float *restrict out,
                                     const uint16_t *restrict in,
                                     uint64_t count)
{
    EACH_ELEMENT(count, i, out[i] = bf16_float(in[i]));
}

SIMD_FUNCTION(extern, kernel_from_bf16,
              (float *restrict out, const uint16_t *restrict in,
               uint64_t count),
              (out, in, count))

/* Each turn reads its elements before it writes them: ivdep says that `out`
 * may be a or b, but not a part of them shifted. */
SIMD_BODY void kernel_add_body(float *out, const float *a, const float *b,
                               uint64_t count)
{
    uint64_t done = 0;

    for (; done + BLOCK <= count; done += BLOCK) {
#pragma GCC ivdep
        for (uint64_t k = 0; k < BLOCK; k++) {
            out[done + k] = a[done + k] + b[done + k];
        }
    }
    for (; done < count; done++) {
        out[done] = a[done] + b[done];
    }
}

SIMD_FUNCTION(extern, kernel_add,
              (float *out, const float *a, const float *b, uint64_t count),
              (out, a, b, count))

SIMD_BODY void kernel_divide_body(float *x, float divisor, uint64_t count)
{
    EACH_ELEMENT(count, i, x[i] = x[i] / divisor);
}

SIMD_FUNCTION(extern, kernel_divide, (float *x, float divisor, uint64_t count),
              (x, divisor, count))

SIMD_BODY void kernel_scale_body(float *x, float factor, uint64_t count)
{
    EACH_ELEMENT(count, i, x[i] = x[i] * factor);
}

SIMD_FUNCTION(extern, kernel_scale, (float *x, float factor, uint64_t count),
              (x, factor, count))

/* --- The exact sum of squares --------------------------------------------- */

#define EXACT_LOWEST (-352) /* the weight of bit 0 of limb 0 is 2^-352 */

/* Blocks that a sum may take before its limbs are normalised: each adds less
 * than 2^32 to a limb of 63 bits. */
#define EXACT_MOST (1u << 24)

void exact_add(exact_sum_t *sum, double term)
{
    uint64_t bits = double_bits(term), mantissa, low;
    unsigned exponent = (unsigned)(bits >> 52), place, limb, shift;

    if (exponent >= 0x7ff) {
        sum->infinities += (bits == 0x7ff0000000000000u);
        sum->nans += (bits != 0x7ff0000000000000u);
        return;
    }

    if (exponent == 0) {
        return; /* zero: other multiples of 2^-352 are normal */
    }

    /* term = mantissa * 2^(exponent - 1075); what lies below 2^-352 is 0. */
    mantissa = (bits & 0x000fffffffffffffu) | 0x0010000000000000u;
    place = exponent - 1075 - EXACT_LOWEST;
    if ((int)place < 0) {
        mantissa >>= -(int)place;
        place = 0;
    }
    limb = place / 32;
    shift = place % 32;
    if (limb + 2 >= EXACT_LIMBS) {
        sum->infinities++; /* no sum of squares of floats is that large */
        return;
    }

    low = mantissa << shift;
    sum->limb[limb] += (int64_t)(low & UINT32_MAX);
    sum->limb[limb + 1] += (int64_t)(low >> 32);
    /* The bits that left at the top: at most 53 + 31 - 64. */
    sum->limb[limb + 2] += (int64_t)(mantissa >> 32 >> (32 - shift));
}

void exact_normalise(exact_sum_t *sum)
{
    for (unsigned k = 0; k + 1 < EXACT_LIMBS; k++) {
        sum->limb[k + 1] += sum->limb[k] >> 32;
        sum->limb[k] &= UINT32_MAX;
    }
}

double exact_round(const exact_sum_t *sum)
{
    exact_sum_t copy = *sum;
    unsigned __int128 top = 0, half, rest;
    int limb = EXACT_LIMBS - 1, bits, cut;

    if (sum->nans != 0) {
        return (double)NAN;
    }

    if (sum->infinities != 0) {
        return (double)INFINITY;
    }

    exact_normalise(&copy);
    while (limb > 0 && copy.limb[limb] == 0) {
        limb--;
    }

    /* The three highest limbs have at least 65 bits; below them, only whether
     * there is anything matters. */
    for (int k = limb; k > limb - 3; k--) {
        top = top << 32 | (k >= 0 ? (uint64_t)copy.limb[k] : 0);
    }
    for (int k = limb - 3; k >= 0; k--) {
        top |= (copy.limb[k] != 0);
    }
    if (top == 0) {
        return 0.0;
    }

    bits = (uint64_t)(top >> 64) != 0
               ? 128 - __builtin_clzll((uint64_t)(top >> 64))
               : 64 - __builtin_clzll((uint64_t)top);
    cut = bits - 53;
    if (cut > 0) {
        half = (unsigned __int128)1 << (cut - 1);
        rest = top & (2 * half - 1);
        top >>= cut;
        top += (rest > half || (rest == half && (top & 1)));
    } else {
        cut = 0;
    }

    return ldexp((double)(uint64_t)top, cut + 32 * (limb - 2) + EXACT_LOWEST);
}

/* The sum of a block's squares, in the order that doc/numerics.md gives. */
SIMD_BODY double block_squares(const float *restrict x)
{
    double lane[8];

    for (unsigned j = 0; j < 8; j++) {
        double s, t;

        t = (double)x[j], s = t * t;
        t = (double)x[8 + j], s += t * t;
        t = (double)x[16 + j], s += t * t;
        t = (double)x[24 + j], s += t * t;
        t = (double)x[32 + j], s += t * t;
        t = (double)x[40 + j], s += t * t;
        t = (double)x[48 + j], s += t * t;
        t = (double)x[56 + j], s += t * t;
        lane[j] = s;
    }

    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

SIMD_BODY void sum_blocks_body(double *restrict sums, const float *restrict x,
                               uint64_t blocks)
{
    for (uint64_t i = 0; i < blocks; i++) {
        sums[i] = block_squares(x + BLOCK * i);
    }
}

SIMD_FUNCTION(static, sum_blocks,
              (double *restrict sums, const float *restrict x, uint64_t blocks),
              (sums, x, blocks))

SIMD_BODY void divide_sum_blocks_body(double *restrict sums, float *restrict x,
                                      float divisor, uint64_t blocks)
{
    for (uint64_t i = 0; i < blocks; i++) {
        for (unsigned k = 0; k < BLOCK; k++) {
            x[BLOCK * i + k] /= divisor;
        }
        sums[i] = block_squares(x + BLOCK * i);
    }
}

SIMD_FUNCTION(static, divide_sum_blocks,
              (double *restrict sums, float *restrict x, float divisor,
               uint64_t blocks),
              (sums, x, divisor, blocks))

#define SUMS 128 /* block sums that are added together */

static void exact_add_all(exact_sum_t *sum, const double *terms, uint64_t num)
{
    for (uint64_t i = 0; i < num; i++) {
        exact_add(sum, terms[i]);
    }
}

void kernel_add_squares(exact_sum_t *sum, const float *x, uint64_t count)
{
    uint64_t blocks = count / BLOCK, rest = count % BLOCK;
    float last[BLOCK] = {0.0f};
    double sums[SUMS];

    for (uint64_t i = 0; i < blocks; i += SUMS) {
        uint64_t num = (blocks - i < SUMS) ? blocks - i : SUMS;

        sum_blocks(sums, x + BLOCK * i, num);
        exact_add_all(sum, sums, num);
        if (i % EXACT_MOST == 0) {
            exact_normalise(sum);
        }
    }
    if (rest > 0) {
        memcpy(last, x + BLOCK * blocks, rest * sizeof(*x));
        sum_blocks(sums, last, 1);
        exact_add(sum, sums[0]);
    }
    exact_normalise(sum);
}

void kernel_divide_squares(exact_sum_t *sum, float *x, float divisor,
                           uint64_t count)
{
    uint64_t blocks = count / BLOCK, rest = count % BLOCK;
    double sums[SUMS];

    for (uint64_t i = 0; i < blocks; i += SUMS) {
        uint64_t num = (blocks - i < SUMS) ? blocks - i : SUMS;

        divide_sum_blocks(sums, x + BLOCK * i, divisor, num);
        exact_add_all(sum, sums, num);
        if (i % EXACT_MOST == 0) {
            exact_normalise(sum);
        }
    }
    kernel_divide(x + BLOCK * blocks, divisor, rest);
    kernel_add_squares(sum, x + BLOCK * blocks, rest);
}

/* --- AdamW ---------------------------------------------------------------- */

/* Without libm, whose last bit may differ. */
static double power(double x, int64_t n)
{
    double result = 1.0;

    for (; n > 0; n >>= 1) {
        if (n & 1) {
            result *= x;
        }
        x *= x;
    }

    return result;
}

void adamw_prepare(adamw_t *adamw, double lr, double beta1, double beta2,
                   double eps, double weight_decay, int64_t step, double scale)
{
    *adamw = (adamw_t){
        .keep = (float)(1.0 - lr * weight_decay),
        .beta2 = (float)beta2,
        .new1 = (float)(1.0 - beta1),
        .new2 = (float)(1.0 - beta2),
        .root2 = (float)__builtin_sqrt(1.0 - power(beta2, step)),
        .eps = (float)eps,
        .step_size = (float)(lr / (1.0 - power(beta1, step))),
        .scale = (float)scale,
    };
}

SIMD_BODY void adamw_body(float *restrict p, float *restrict m,
                          float *restrict v, const float *restrict g,
                          uint64_t count, const adamw_t *restrict adamw,
                          float keep)
{
    const adamw_t a = *adamw;

    EACH_ELEMENT(count, i, {
        float gi = g[i] * a.scale;
        float mi = m[i] + (gi - m[i]) * a.new1;
        float vi = v[i] * a.beta2 + (a.new2 * gi) * gi;
        float denom = __builtin_sqrtf(vi) / a.root2 + a.eps;

        m[i] = mi;
        v[i] = vi;
        p[i] = p[i] * keep - (a.step_size * mi) / denom;
    });
}

SIMD_FUNCTION(static, adamw,
              (float *restrict p, float *restrict m, float *restrict v,
               const float *restrict g, uint64_t count,
               const adamw_t *restrict prepared, float keep),
              (p, m, v, g, count, prepared, keep))

void kernel_adamw(float *p, float *m, float *v, const float *g, uint64_t count,
                  const adamw_t *prepared, int decay)
{
    /* Multiplying by 1 changes no bit. */
    adamw(p, m, v, g, count, prepared, decay ? prepared->keep : 1.0f);
}
