/*
 * Sixteen floats at a time in GCC's portable vectors, and functions compiled
 * once for each instruction set that pays (NN_CLONES), chosen when the program
 * is loaded.
 *
 * Sums are taken lane by lane and folded in one fixed order, so that a result
 * depends on the instruction set at most, never on threads.
 */
#ifndef FSDP_NN_VEC_H
#define FSDP_NN_VEC_H

#include <stdint.h>
#include <string.h>

#include "fsdp.h"

/* Clang's clones do not take what is inlined into them along. */
#if defined(__x86_64__) && !defined(FSDP_SANITIZED) && !defined(__clang__)
#define NN_CLONES   \
    __attribute__(( \
        target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define NN_CLONES
#endif

/* Before a loop: its turns are shared out among threads. */
#ifdef _OPENMP
#define NN_PRAGMA(_text) _Pragma(#_text)
#define NN_PARALLEL(_threads, ...) \
    NN_PRAGMA(omp parallel for num_threads(_threads) __VA_ARGS__)
#else
#define NN_PARALLEL(_threads, ...) (void)(_threads);
#endif

#define NN_INLINE static inline __attribute__((always_inline, unused))

#define VEC 16

typedef float vf_t __attribute__((vector_size(64)));
typedef int32_t vi_t __attribute__((vector_size(64)));
typedef uint32_t vu_t __attribute__((vector_size(64)));
typedef uint16_t vh_t __attribute__((vector_size(32)));

/* The same at any address. */
typedef float vf_any_t __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t vh_any_t
    __attribute__((vector_size(32), aligned(2), may_alias));

NN_INLINE size_t precision_size(fsdp_precision_t type)
{
    return (type == FSDP_BF16) ? 2 : 4;
}

NN_INLINE vf_t vec_set(float x)
{
    return x - (vf_t){0};
}

/* Lanes of a where the mask is set, of b elsewhere. */
NN_INLINE vf_t vec_select(vi_t mask, vf_t a, vf_t b)
{
    return (vf_t)((mask & (vi_t)a) | (~mask & (vi_t)b));
}

NN_INLINE vf_t vec_max(vf_t a, vf_t b)
{
    return vec_select(a > b, a, b);
}

NN_INLINE vf_t vec_from_bf16(vh_t half)
{
    return (vf_t)(__builtin_convertvector(half, vu_t) << 16);
}

/* To nearest, ties to even; a NaN stays one. */
NN_INLINE vh_t vec_to_bf16(vf_t x)
{
    vu_t bits = (vu_t)x;
    vu_t near = bits + 0x7fff + (bits >> 16 & 1);
    vu_t nan = bits | 0x400000;
    vi_t is_nan = x != x;

    near = ((vu_t)is_nan & nan) | (~(vu_t)is_nan & near);
    return __builtin_convertvector(near >> 16, vh_t);
}

NN_INLINE float bf16_to_float(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

NN_INLINE uint16_t bf16_from_float(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    if (x != x) {
        return (uint16_t)((bits | 0x400000) >> 16);
    }
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Elements i … i + 15 of an array of either type. */
NN_INLINE vf_t vec_load(const void *p, fsdp_precision_t type, size_t i)
{
    if (type == FSDP_BF16) {
        return vec_from_bf16(*(const vh_any_t *)((const uint16_t *)p + i));
    }
    return *(const vf_any_t *)((const float *)p + i);
}

NN_INLINE void vec_store(void *p, fsdp_precision_t type, size_t i, vf_t x)
{
    if (type == FSDP_BF16) {
        *(vh_any_t *)((uint16_t *)p + i) = vec_to_bf16(x);
    } else {
        *(vf_any_t *)((float *)p + i) = x;
    }
}

/* The first num < 16 of them; the other lanes are 0, and stay as they are in
 * memory. */
NN_INLINE vf_t vec_load_tail(const void *p, fsdp_precision_t type, size_t i,
                             size_t num)
{
    vf_t x = {0};
    vh_t half = {0};

    if (type == FSDP_BF16) {
        memcpy(&half, (const uint16_t *)p + i, 2 * num);
        return vec_from_bf16(half);
    }
    memcpy(&x, (const float *)p + i, 4 * num);
    return x;
}

NN_INLINE void vec_store_tail(void *p, fsdp_precision_t type, size_t i, vf_t x,
                              size_t num)
{
    vh_t half;

    if (type == FSDP_BF16) {
        half = vec_to_bf16(x);
        memcpy((uint16_t *)p + i, &half, 2 * num);
    } else {
        memcpy((float *)p + i, &x, 4 * num);
    }
}

/* As many of 16 as there are before @a end. */
NN_INLINE vf_t vec_get(const void *p, fsdp_precision_t type, size_t i,
                       size_t end)
{
    return (i + VEC <= end) ? vec_load(p, type, i)
                            : vec_load_tail(p, type, i, end - i);
}

NN_INLINE void vec_put(void *p, fsdp_precision_t type, size_t i, vf_t x,
                       size_t end)
{
    if (i + VEC <= end) {
        vec_store(p, type, i, x);
    } else {
        vec_store_tail(p, type, i, x, end - i);
    }
}

NN_INLINE float vec_sum(vf_t x)
{
    float lane[VEC];

    memcpy(lane, &x, sizeof(lane));
    for (unsigned width = VEC / 2; width > 0; width /= 2) {
        for (unsigned j = 0; j < width; j++) {
            lane[j] += lane[j + width];
        }
    }
    return lane[0];
}

NN_INLINE float vec_largest(vf_t x)
{
    float lane[VEC];

    memcpy(lane, &x, sizeof(lane));
    for (unsigned width = VEC / 2; width > 0; width /= 2) {
        for (unsigned j = 0; j < width; j++) {
            lane[j] = (lane[j] > lane[j + width]) ? lane[j] : lane[j + width];
        }
    }
    return lane[0];
}

/*
 * e^x within 2 ulp; 0 below the smallest normal number; at most e^88.37.
 * x = n ln 2 + r, |r| <= ln 2 / 2, with ln 2 in two parts.
 */
NN_INLINE vf_t vec_exp(vf_t x)
{
    const float round = 12582912.0f; /* 1.5 * 2^23: adding it rounds */
    vi_t small = x < vec_set(-87.33654f);
    vf_t shifted, n, r, y;
    vi_t scale;

    x = vec_select(x > vec_set(88.37f), vec_set(88.37f), x);
    shifted = x * 1.44269504f + round;
    n = shifted - round;
    r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;

    y = r * 1.9875691500e-4f + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + r + 1.0f;

    scale = ((vi_t)shifted - 0x4b400000 + 127) << 23;
    y = y * (vf_t)scale;
    return (vf_t)(~small & (vi_t)y);
}

#endif
