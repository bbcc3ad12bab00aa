/*
 * Arithmetic on arrays whose result is fixed to the last bit (doc/numerics.md):
 * initial values, conversion, division, the exact norm, AdamW.
 *
 * Pure functions without state, safe from any thread.  Arrays need the
 * alignment of their elements only, and have any length.  The order of every
 * operation is written out, so that results depend neither on the vector width
 * nor on how a caller cuts an array into pieces (of whole blocks of
 * KERNEL_BLOCK elements for the norm, of any length elsewhere).
 */
#ifndef FSDP_KERNELS_H
#define FSDP_KERNELS_H

#include <stdint.h>

#define KERNEL_BLOCK 64 /* elements whose squares are summed in double */

/* --- Initial values ------------------------------------------------------- */

/* Philox 4x32-10 (Salmon et al. 2011): 128 random bits for a counter. */
void philox4x32(const uint32_t counter[4], const uint32_t key[2],
                uint32_t random_p[4]);

/* The key of a parameter's initial values. */
uint64_t kernel_init_key(uint64_t seed, const char *name);

/**
 * Normal values of mean 0 for elements [first, first + count) of the parameter
 * with this key.  Element i is a function of (key, i, std) alone.
 *
 * Philox of counter i gives u in (0, 1) and z in (-1/2, 1/2), each an odd
 * multiple of 2^-53; the value is std * sqrt(-2 ln u) * sin(pi z), computed in
 * double and rounded once (Box and Muller's method: sin(pi z) and cos(2 pi v)
 * have the same distribution).  ln and sin are fixed polynomials, correct to a
 * few units in the last place of a double; tails reach 8.57 std.
 */
void kernel_normal(float *out, uint64_t key, uint64_t first, uint64_t count,
                   float std);

/* --- Elements ------------------------------------------------------------- */

/* Round to the nearest, ties to even; a NaN stays one. */
void kernel_to_bf16(uint16_t *out, const float *in, uint64_t count);
void kernel_from_bf16(float *out, const uint16_t *in, uint64_t count);

/* out = a + b; @a out may be one of them. */
void kernel_add(float *out, const float *a, const float *b, uint64_t count);

/* x = x / divisor: one division an element, never a multiplication by the
 * inverse. */
void kernel_divide(float *x, float divisor, uint64_t count);

void kernel_scale(float *x, float factor, uint64_t count);

/* --- The exact sum of squares --------------------------------------------- */

#define EXACT_LIMBS 20

/*
 * A sum of doubles, exact whatever their order.  Limb k weighs
 * 2^(32 k - 352).  All of it may be added word by word, as integers modulo
 * 2^64, over up to 2^31 sums that are normalised; zeros are the sum of nothing.
 */
typedef struct {
    int64_t limb[EXACT_LIMBS];
    int64_t infinities; /* how many such terms */
    int64_t nans;
} exact_sum_t;

#define EXACT_WORDS (sizeof(exact_sum_t) / sizeof(uint64_t))

/**
 * Add the squares of @a count elements.  Each block of KERNEL_BLOCK elements
 * from @a x on is summed in double, eight lanes by element modulo 8 in rising
 * order, then ((0+4)+(2+6)) + ((1+5)+(3+7)); a shorter last block counts as
 * filled up with +0.  Block sums are added exactly.  @a sum, which was
 * normalised or zero, is normalised afterwards.
 */
void kernel_add_squares(exact_sum_t *sum, const float *x, uint64_t count);

/* x = x / divisor, and add the squares of the results, in one pass. */
void kernel_divide_squares(exact_sum_t *sum, float *x, float divisor,
                           uint64_t count);

/* Add one term that is not negative, a multiple of 2^-352 and below 2^272 (or
 * else counts as infinite): at most 2^30 such calls between two
 * exact_normalise(). */
void exact_add(exact_sum_t *sum, double term);

/* Bring limbs 0 … 18 into 0 … 2^32 - 1 by carrying up. */
void exact_normalise(exact_sum_t *sum);

/* The sum, rounded once (to the nearest, ties to even).  It need not be
 * normalised.  NaN if there was one, else infinity if there was one. */
double exact_round(const exact_sum_t *sum);

/* --- AdamW ---------------------------------------------------------------- */

/* What is the same for all elements of a step, rounded from double as PyTorch
 * rounds it. */
typedef struct {
    float keep; /* 1 - lr * weight_decay */
    float beta2;
    float new1, new2; /* 1 - beta1, 1 - beta2 */
    float root2;      /* sqrt(1 - beta2^t) */
    float eps;
    float step_size; /* lr / (1 - beta1^t) */
    float scale;     /* of gradients: below 1 where they are clipped */
} adamw_t;

/* @a step is t: 1 for the first step. */
void adamw_prepare(adamw_t *adamw, double lr, double beta1, double beta2,
                   double eps, double weight_decay, int64_t step, double scale);

/**
 * One step of AdamW with decoupled weight decay, in PyTorch's order:
 *
 *     g = g * scale                          (the array keeps its values)
 *     p = p * (1 - lr * weight_decay)        if decay
 *     m = m + (g - m) * (1 - beta1)
 *     v = v * beta2 + ((1 - beta2) * g) * g
 *     p = p - (step_size * m) / (sqrt(v) / root2 + eps)
 */
void kernel_adamw(float *p, float *m, float *v, const float *g, uint64_t count,
                  const adamw_t *adamw, int decay);

#endif
