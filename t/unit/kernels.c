#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/shard/kernels.h"
#include "lib/util/clock.h"
#include "lib/util/simd.h"
#include "t/tap/tap.h"

#define NUM (1 << 20)

static float values[NUM];

static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53;
}

/* --- Initial values ------------------------------------------------------- */

static void test_philox(void)
{
    /* The published test vectors of Philox 4x32-10. */
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } vectors[] = {
        {{0, 0, 0, 0},
         {0, 0},
         {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    uint32_t got[4];

    for (size_t i = 0; i < sizeof(vectors) / sizeof(*vectors); i++) {
        philox4x32(vectors[i].counter, vectors[i].key, got);
        ok(memcmp(got, vectors[i].want, sizeof(got)) == 0, "Philox vector %zu",
           i);
    }
}

/* A value by libm, from the definition in kernels.h. */
static double slow_normal(uint64_t key, uint64_t element)
{
    uint32_t counter[4] = {(uint32_t)element, (uint32_t)(element >> 32), 0, 0};
    uint32_t k[2] = {(uint32_t)key, (uint32_t)(key >> 32)}, r[4];
    double u, z;

    philox4x32(counter, k, r);
    u = (double)(((uint64_t)r[1] << 32 | r[0]) >> 12) * 0x1p-52 + 0x1p-53;
    z = (double)(((uint64_t)r[3] << 32 | r[2]) >> 12) * 0x1p-52 - 0.5 + 0x1p-53;
    return sqrt(-2.0 * log(u)) * sin(M_PI * z);
}

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static void test_normal(void)
{
    uint64_t key = kernel_init_key(42, "transformer.wte.weight");
    double sum[5] = {0}, largest = 0, ks = 0, far = 0, mean, var;
    bool alone = true;
    float one;

    kernel_normal(values, key, 0, NUM, 1.0f);
    for (uint64_t i = 0; i < NUM; i++) {
        double x = (double)values[i];

        for (unsigned k = 1; k < 5; k++) {
            sum[k] += pow(x, k) / NUM;
        }
        far += fabs(x) > 4.0;
        if (i % 97 == 0) {
            double want = slow_normal(key, i);
            double error = fabs(x - want) / fabs(want);

            largest = (error > largest) ? error : largest;
            kernel_normal(&one, key, i, 1, 1.0f);
            alone &= memcmp(&one, &values[i], sizeof(one)) == 0;
        }
    }
    mean = sum[1];
    var = sum[2] - mean * mean;
    ok(largest < 0x1p-23, "as libm gives it, to %.2g", largest);
    ok(alone, "each element alone gives the same bits");
    ok(fabs(mean) < 4.0 / 1024, "mean %.5f", mean);
    ok(fabs(var - 1.0) < 4.0 * sqrt(2.0) / 1024, "variance %.5f", var);
    ok(fabs(sum[3]) < 4.0 * sqrt(15.0) / 1024, "third moment %.5f", sum[3]);
    ok(fabs(sum[4] - 3.0) < 4.0 * sqrt(96.0) / 1024, "fourth moment %.4f",
       sum[4]);
    ok(fabs(far - 66.4) < 4.0 * sqrt(66.4), "%.0f beyond four sigma", far);

    qsort(values, NUM, sizeof(*values), compare_floats);
    for (uint64_t i = 0; i < NUM; i++) {
        double p = 0.5 * erfc(-(double)values[i] * M_SQRT1_2);
        double below = fabs(p - (double)i / NUM);
        double above = fabs((double)(i + 1) / NUM - p);

        ks = fmax(ks, fmax(below, above));
    }
    /* 1.95 / sqrt(n) is passed by 999 of 1000 samples. */
    ok(ks < 1.95 / 1024, "Kolmogorov and Smirnov's distance %.6f", ks);

    ok(key != kernel_init_key(43, "transformer.wte.weight") &&
           key != kernel_init_key(42, "transformer.wpe.weight"),
       "seed and name make the key");
}

/* --- Vector widths -------------------------------------------------------- */

#define LENGTH 1000

typedef struct {
    float normal[LENGTH], sum[LENGTH], quotient[LENGTH], scaled[LENGTH];
    float wide[LENGTH], p[LENGTH], m[LENGTH], v[LENGTH];
    uint16_t half[LENGTH];
    exact_sum_t squares, quotients;
} results_t;

static void compute_all(results_t *r, unsigned shift)
{
    static float a[LENGTH + 3], g[LENGTH + 3];
    adamw_t adamw;

    memset(r, 0, sizeof(*r));
    kernel_normal(r->normal, 7, 1000003, LENGTH, 0.02f);
    kernel_normal(a + shift, 8, 0, LENGTH, 1.0f);
    kernel_normal(g + shift, 9, 0, LENGTH, 3.0f);
    kernel_add(r->sum, a + shift, g + shift, LENGTH);
    memcpy(r->quotient, a + shift, sizeof(r->quotient));
    kernel_divide(r->quotient, 12.0f, LENGTH);
    memcpy(r->scaled, a + shift, sizeof(r->scaled));
    kernel_scale(r->scaled, 0.3f, LENGTH);
    kernel_to_bf16(r->half, a + shift, LENGTH);
    kernel_from_bf16(r->wide, r->half, LENGTH);
    kernel_add_squares(&r->squares, g + shift, LENGTH);
    kernel_divide_squares(&r->quotients, g + shift, 12.0f, LENGTH);
    memcpy(r->p, a + shift, sizeof(r->p));
    for (int64_t t = 1; t < 4; t++) {
        adamw_prepare(&adamw, 1e-3, 0.9, 0.95, 1e-8, 0.1, t, 0.7);
        kernel_adamw(r->p, r->m, r->v, g + shift, LENGTH, &adamw, t & 1);
    }
}

static void test_vector_widths(void)
{
    static results_t base, other;

    simd_limit(SIMD_BASE);
    compute_all(&base, 0);
    for (simd_level_t most = SIMD_BASE; most <= SIMD_AVX512; most++) {
        simd_limit(most);
        for (unsigned shift = 0; shift < 4; shift += 3) {
            compute_all(&other, shift);
            ok(memcmp(&base, &other, sizeof(base)) == 0,
               "same bits at vector level %d, alignment %u", (int)simd_level(),
               shift);
        }
    }
    simd_limit(SIMD_AVX512);
}

/* --- bf16 ----------------------------------------------------------------- */

static float from_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static void test_bf16(void)
{
    static const struct {
        uint32_t bits;
        uint16_t half;
        const char *what;
    } cases[] = {
        {0x00000000, 0x0000, "+0"                                  },
        {0x80000000, 0x8000, "-0"                                  },
        {0x3f808000, 0x3f80, "a tie goes to the even one below"    },
        {0x3f818000, 0x3f82, "a tie goes to the even one above"    },
        {0x3f808001, 0x3f81, "above a tie"                         },
        {0x7f7fffff, 0x7f80, "the largest becomes infinity"        },
        {0x7f800000, 0x7f80, "infinity"                            },
        {0xff800000, 0xff80, "-infinity"                           },
        {0x7f800001, 0x7fc0, "a NaN with a low payload stays a NaN"},
        {0xffffffff, 0xffff, "a NaN does not wrap to zero"         },
        {0x00008000, 0x0000, "a denormal tie"                      },
        {0x00018000, 0x0002, "another"                             },
    };
    uint64_t wrong = 0;
    float in[64], back;
    uint16_t out[64];

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        for (unsigned k = 0; k < 64; k++) {
            in[k] = from_bits(cases[i].bits);
        }
        kernel_to_bf16(out, in, 64);
        ok(out[63] == cases[i].half, "%s: %04x", cases[i].what, out[63]);
        kernel_to_bf16(out, in, 1);
        wrong += out[0] != cases[i].half;
    }
    ok(wrong == 0, "the same one by one");

    wrong = 0;
    for (uint32_t h = 0; h < 65536; h++) {
        uint16_t half = (uint16_t)h, again;

        kernel_from_bf16(&back, &half, 1);
        kernel_to_bf16(&again, &back, 1);
        /* Signalling NaNs become quiet. */
        wrong += again != half && again != (half | 0x40);
    }
    ok(wrong == 0, "all 65536 come back");
}

/* --- The exact sum -------------------------------------------------------- */

/* Random floats of all magnitudes. */
static float wild_float(uint64_t *state)
{
    uint32_t bits = (uint32_t)(uniform(state) * 4294967296.0);

    bits = ((bits >> 23 & 0xff) == 0xff) ? bits & 0x3fffffff : bits;
    return from_bits(bits);
}

static void test_exact_order(void)
{
    static float x[64 * 40], y[64 * 40];
    exact_sum_t whole = {{0}}, parts = {{0}};
    uint64_t state = 5;

    for (unsigned i = 0; i < 64 * 40; i++) {
        x[i] = wild_float(&state);
    }
    for (unsigned b = 0; b < 40; b++) {
        memcpy(y + 64 * ((b * 17 + 5) % 40), x + 64 * b, 64 * sizeof(*x));
    }
    kernel_add_squares(&whole, x, 64 * 40);
    for (unsigned b = 0; b < 40; b++) {
        exact_sum_t part = {{0}};

        kernel_add_squares(&part, y + 64 * b, 64);
        for (unsigned k = 0; k < EXACT_LIMBS; k++) {
            parts.limb[k] += part.limb[k];
        }
    }
    ok(exact_round(&whole) == exact_round(&parts), "any order of blocks: %g",
       exact_round(&whole));
    exact_normalise(&parts);
    ok(memcmp(&whole, &parts, sizeof(whole)) == 0, "and all limbs");
}

static void test_exact_values(void)
{
    float x[64] = {0}, tiny = from_bits(1), huge = from_bits(0x7f7fffff);
    double tiny2 = (double)tiny * (double)tiny;
    double huge2 = (double)huge * (double)huge;
    exact_sum_t sum = {{0}};
    uint64_t state = 9, wrong = 0;

    ok(exact_round(&sum) == 0.0, "nothing is zero");
    x[3] = tiny;
    kernel_add_squares(&sum, x, 64);
    ok(exact_round(&sum) == tiny2, "the smallest square: %g", tiny2);

    x[3] = huge;
    for (unsigned i = 0; i < 1000; i++) {
        kernel_add_squares(&sum, x, 4);
    }
    ok(exact_round(&sum) == 1000.0 * huge2, "the largest squares: %g",
       exact_round(&sum));

    /* 1 + 2^-53 is a tie that goes to 1; any bit further down decides it. */
    sum = (exact_sum_t){{0}};
    exact_add(&sum, 1.0);
    exact_add(&sum, 0x1p-53);
    ok(exact_round(&sum) == 1.0, "a tie goes to the even one");
    exact_add(&sum, 0x1p-300);
    ok(exact_round(&sum) == 1.0 + 0x1p-52, "the last bit breaks it");
    exact_add(&sum, 0x1p-52);
    ok(exact_round(&sum) == 1.0 + 0x1p-51, "and so on");

    /* Integers below 2^53 are summed exactly by anything. */
    for (unsigned round = 0; round < 200; round++) {
        double plain = 0;

        sum = (exact_sum_t){{0}};
        for (unsigned i = 0; i < 50; i++) {
            double term = floor(uniform(&state) * 0x1p46);
            int scale = (int)(round % 90) * 2;

            plain += term;
            exact_add(&sum, ldexp(term, scale - 150));
            if (i == 49) {
                wrong += exact_round(&sum) != ldexp(plain, scale - 150);
            }
        }
    }
    ok(wrong == 0, "sums that need no rounding");

    x[3] = INFINITY;
    kernel_add_squares(&sum, x, 64);
    ok(isinf(exact_round(&sum)) && sum.infinities == 1, "infinity shows");
    x[9] = NAN;
    kernel_add_squares(&sum, x, 64);
    ok(isnan(exact_round(&sum)) && sum.nans == 1, "a NaN more so");
}

static void test_block_order(void)
{
    float x[64];
    double lane[8] = {0}, want;
    exact_sum_t sum = {{0}};
    uint64_t state = 3;

    for (unsigned i = 0; i < 64; i++) {
        x[i] = (float)(uniform(&state) * 1e3);
        lane[i % 8] += (double)x[i] * (double)x[i];
    }
    want = ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
    kernel_add_squares(&sum, x, 64);
    ok(exact_round(&sum) == want, "lanes in the written order");
}

/* --- AdamW ---------------------------------------------------------------- */

static void test_adamw(void)
{
    const double lr = 1e-2, b1 = 0.9, b2 = 0.999, eps = 1e-8, wd = 0.1;
    float p[100], m[100] = {0}, v[100] = {0}, g[100], p0[100], still[100];
    double dp[100], dm[100] = {0}, dv[100] = {0}, worst = 0;
    adamw_t adamw;

    kernel_normal(p, 1, 0, 100, 1.0f);
    memcpy(p0, p, sizeof(p));
    memcpy(still, p, sizeof(p));
    for (unsigned i = 0; i < 100; i++) {
        dp[i] = (double)p[i];
    }
    for (int t = 1; t <= 20; t++) {
        kernel_normal(g, 2, (uint64_t)t * 100, 100, 0.5f);
        adamw_prepare(&adamw, lr, b1, b2, eps, wd, t, 0.5);
        kernel_adamw(p, m, v, g, 100, &adamw, 1);
        for (unsigned i = 0; i < 100; i++) {
            double gi = 0.5 * (double)g[i];

            dp[i] *= 1 - lr * wd;
            dm[i] = b1 * dm[i] + (1 - b1) * gi;
            dv[i] = b2 * dv[i] + (1 - b2) * gi * gi;
            dp[i] -= lr * (dm[i] / (1 - pow(b1, t))) /
                     (sqrt(dv[i] / (1 - pow(b2, t))) + eps);
        }
    }
    for (unsigned i = 0; i < 100; i++) {
        worst = fmax(worst, fabs((double)p[i] - dp[i]));
        worst = fmax(worst, fabs((double)m[i] - dm[i]));
        worst = fmax(worst, fabs((double)v[i] - dv[i]));
    }
    ok(worst < 2e-6, "as the textbook in double, to %.2g", worst);

    memset(m, 0, sizeof(m));
    memset(v, 0, sizeof(v));
    memset(g, 0, sizeof(g));
    kernel_adamw(still, m, v, g, 100, &adamw, 0);
    ok(memcmp(still, p0, sizeof(p0)) == 0, "no gradient, no decay, no change");
    kernel_adamw(still, m, v, g, 100, &adamw, 1);
    ok(still[0] == p0[0] * (float)(1 - lr * wd), "decay alone");
}

/* --- Figures for the log; not tests --------------------------------------- */

static void show_speed(void)
{
    exact_sum_t sum = {{0}};
    double start = clock_now();

    kernel_normal(values, 1, 0, NUM, 1.0f);
    printf("# normal values %.0f M/s\n", 1e-6 * NUM / (clock_now() - start));
    start = clock_now();
    for (unsigned i = 0; i < 16; i++) {
        kernel_add_squares(&sum, values, NUM / 4);
    }
    printf("# squares %.1f GB/s\n", 16e-9 * NUM / (clock_now() - start));
}

int main(void)
{
    test_philox();
    test_normal();
    test_vector_widths();
    test_bf16();
    test_exact_order();
    test_exact_values();
    test_block_order();
    test_adamw();
    show_speed();
    return tap_done();
}
