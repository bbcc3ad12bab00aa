#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/nn/layers.h"
#include "lib/nn/vec.h"
#include "t/tap/tap.h"

#define GELU_A 0.79788456080286535588
#define GELU_B 0.044715

static uint32_t state = 1;

static float uniform(float size)
{
    state = state * 1664525u + 1013904223u;
    return size * ((float)(state >> 8) / 8388608.0f - 1.0f);
}

static float *filled(size_t num, float size)
{
    float *p = aligned_alloc(64, (num * sizeof(*p) + 63) / 64 * 64);

    for (size_t i = 0; i < num; i++) {
        p[i] = uniform(size);
    }
    return p;
}

static void *narrowed(const float *from, size_t num)
{
    uint16_t *p = aligned_alloc(64, (num * sizeof(*p) + 63) / 64 * 64);

    for (size_t i = 0; i < num; i++) {
        p[i] = bf16_from_float(from[i]);
    }
    return p;
}

/* Distance of two numbers, in units in the last place of the second. */
static double ulps(float got, double want)
{
    int exponent;

    frexp(want, &exponent);
    return fabs(got - want) / ldexp(1, exponent - 24);
}

/* --- Numbers -------------------------------------------------------------- */

static void test_exp(void)
{
    double worst = 0;
    float at = 0;
    vf_t x, y;

    for (float f = -87.3f; f < 88.3f; f += 0.00173f) {
        y = vec_exp(vec_set(f));
        if (ulps(y[3], exp(f)) > worst) {
            worst = ulps(y[3], exp(f));
            at = f;
        }
    }
    ok(worst <= 2, "exp: within %.2f ulp (at %g)", worst, (double)at);

    x = (vf_t){0.0f, -1e30f, -INFINITY, NAN, 1000.0f, -88.0f};
    y = vec_exp(x);
    ok(y[0] == 1 && y[1] == 0 && y[2] == 0 && isnan(y[3]) && y[4] > 2e38f &&
           y[5] == 0,
       "exp of 0, far down, NaN and far up: %g %g %g %g %g %g", (double)y[0],
       (double)y[1], (double)y[2], (double)y[3], (double)y[4], (double)y[5]);
}

static void test_bf16(void)
{
    static const struct {
        uint32_t bits;
        uint16_t half;
    } cases[] = {
        {0x3f800000, 0x3f80},
        {0x3f808000, 0x3f80}, /* tie, even below */
        {0x3f818000, 0x3f82}, /* tie, even above */
        {0x3f808001, 0x3f81},
        {0x3f807fff, 0x3f80},
        {0xbf808001, 0xbf81},
        {0x7f7fffff, 0x7f80}, /* the largest becomes Inf */
        {0x7f800000, 0x7f80},
        {0x7f800001, 0x7fc0}, /* NaN stays NaN */
        {0x80000000, 0x8000},
        {0x00000001, 0x0000},
    };
    bool same = true;
    uint32_t wide[VEC] = {0};
    uint16_t narrow[VEC];

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        float x;

        memcpy(&x, &cases[i].bits, sizeof(x));
        wide[0] = cases[i].bits;
        layer_convert(1, narrow, FSDP_BF16, wide, FSDP_F32, 1);
        ok(bf16_from_float(x) == cases[i].half && narrow[0] == cases[i].half,
           "%08x becomes %04x", cases[i].bits, narrow[0]);
    }
    for (uint32_t half = 0; half < 0x10000; half += VEC) {
        for (uint32_t i = 0; i < VEC; i++) {
            narrow[i] = (uint16_t)(half + i);
        }
        layer_convert(1, wide, FSDP_F32, narrow, FSDP_BF16, VEC);
        for (uint32_t i = 0; i < VEC; i++) {
            same = same && wide[i] == (half + i) << 16;
        }
    }
    ok(same, "all bf16 widen exactly");
}

/* --- GELU ----------------------------------------------------------------- */

static double gelu(bool exact, double x)
{
    return exact ? 0.5 * x * erfc(-x / sqrt(2))
                 : 0.5 * x * (1 + tanh(GELU_A * (x + GELU_B * x * x * x)));
}

static double gelu_slope(bool exact, double x)
{
    double t = tanh(GELU_A * (x + GELU_B * x * x * x));

    if (exact) {
        return 0.5 * erfc(-x / sqrt(2)) +
               x * exp(-0.5 * x * x) / sqrt(2 * acos(-1));
    }
    return 0.5 * (1 + t) +
           0.5 * x * (1 - t * t) * GELU_A * (1 + 3 * GELU_B * x * x);
}

static void test_gelu(bool exact)
{
    size_t rows = 130, width = 37, num = rows * width;
    float *x = filled(num, 6.0f), *y = filled(num, 1.0f);
    float *dy = filled(num, 1.0f), *g = filled(num, 1.0f);
    float *bias = filled(width, 1.0f);
    float *partials = filled(layer_partials(rows, width), 1.0f);
    double off = 0, slope_off = 0, bias_off = 0;

    memcpy(g, dy, num * sizeof(*g));
    layer_gelu(2, exact, y, x, FSDP_F32, rows, width);
    for (size_t i = 0; i < num; i++) {
        off = fmax(off, fabs(y[i] - gelu(exact, x[i])) /
                            (fabs(gelu(exact, x[i])) + 1e-3));
    }
    layer_gelu_back(2, exact, y, g, x, FSDP_F32, rows, width, bias, FSDP_F32,
                    partials);
    for (size_t j = 0; j < width; j++) {
        double sum = 0;

        for (size_t r = 0; r < rows; r++) {
            size_t i = r * width + j;

            slope_off =
                fmax(slope_off, fabs(g[i] - dy[i] * gelu_slope(exact, x[i])));
            off = fmax(off, fabs(y[i] - gelu(exact, x[i])) /
                                (fabs(gelu(exact, x[i])) + 1e-3));
            sum += g[i];
        }
        bias_off = fmax(bias_off, fabs(bias[j] - sum));
    }
    ok(off <= 2e-6, "GELU by %s: %.2g relative", exact ? "erf" : "tanh", off);
    ok(slope_off <= 1e-6, "its gradient: off by %.2g", slope_off);
    ok(bias_off <= 1e-5, "the bias's gradient: off by %.2g", bias_off);

    free(x);
    free(y);
    free(dy);
    free(g);
    free(bias);
    free(partials);
}

/* --- Bias ----------------------------------------------------------------- */

static void test_bias(size_t rows, size_t width, fsdp_precision_t type)
{
    float *x = filled(rows * width, 1.0f), *bias = filled(width, 1.0f);
    float *partials = filled(layer_partials(rows, width), 1.0f);
    uint16_t *narrow = narrowed(x, rows * width);
    uint16_t *copy = narrowed(bias, 1);
    bool wide = type == FSDP_F32;
    double off = 0;

    copy = realloc(copy, rows * width * sizeof(*copy));
    layer_bias_back(2, wide ? (void *)x : (void *)narrow, type,
                    wide ? copy : NULL, rows, width, bias, FSDP_F32, partials);
    for (size_t j = 0; j < width; j++) {
        double sum = 0;

        for (size_t r = 0; r < rows; r++) {
            sum +=
                wide ? x[r * width + j] : bf16_to_float(narrow[r * width + j]);
        }
        off = fmax(off, fabs(sum - bias[j]));
    }
    ok(off <= 2e-5, "column sums of %zu x %zu: off by %.2g", rows, width, off);
    ok(!wide || memcmp(copy, narrow, rows * width * 2) == 0,
       "and the narrow copy");
    free(x);
    free(bias);
    free(partials);
    free(narrow);
    free(copy);
}

/* --- Layer norm ----------------------------------------------------------- */

static void test_norm(size_t rows, size_t width, fsdp_precision_t type)
{
    size_t num = rows * width;
    float *x = filled(num, 3.0f), *residual = filled(num, 1.0f);
    float *out = filled(num, 1.0f), *again = filled(num, 1.0f);
    float *w = filled(width, 1.0f), *b = filled(width, 1.0f);
    void *narrow_w = narrowed(w, width), *narrow_b = narrowed(b, width);
    float *dout = filled(num, 1.0f), *dx = filled(num, 1.0f);
    float *dx0 = filled(num, 1.0f);
    float *dw = filled(width, 1.0f), *db = filled(width, 1.0f);
    float *partials = filled(layer_partials(rows, 2 * width), 1.0f);
    double *sum = calloc(num, sizeof(*sum));
    double *dw_want = calloc(2 * width, sizeof(*dw_want));
    double out_off = 0, dx_off = 0, dw_off = 0;
    layer_norm_t n = {
        .weight = (type == FSDP_BF16) ? narrow_w : w,
        .bias = (type == FSDP_BF16) ? narrow_b : b,
        .type = type,
        .eps = 1e-5f,
        .mean = filled(rows, 1.0f),
        .rstd = filled(rows, 1.0f),
    };

    for (size_t i = 0; i < num; i++) {
        sum[i] = (double)x[i] + residual[i];
    }
    for (size_t j = 0; type == FSDP_BF16 && j < width; j++) {
        w[j] = bf16_to_float(bf16_from_float(w[j]));
        b[j] = bf16_to_float(bf16_from_float(b[j]));
    }
    memcpy(dx0, dx, num * sizeof(*dx));
    layer_norm(2, &n, x, residual, out, FSDP_F32, false, rows, width);
    layer_norm(1, &n, x, NULL, again, FSDP_F32, true, rows, width);
    layer_norm_back(2, &n, x, dout, dx, true, rows, width, dw, db, FSDP_F32,
                    partials);

    for (size_t r = 0; r < rows; r++) {
        const double *v = sum + r * width;
        double mean = 0, var = 0, mg = 0, mgx = 0;

        for (size_t j = 0; j < width; j++) {
            mean += v[j] / (double)width;
        }
        for (size_t j = 0; j < width; j++) {
            var += (v[j] - mean) * (v[j] - mean) / (double)width;
        }
        for (size_t j = 0; j < width; j++) {
            double hat = (v[j] - mean) / sqrt(var + 1e-5);
            double g = (double)dout[r * width + j] * w[j];

            out_off =
                fmax(out_off, fabs(out[r * width + j] - (hat * w[j] + b[j])));
            mg += g / (double)width;
            mgx += g * hat / (double)width;
            dw_want[j] += dout[r * width + j] * hat;
            dw_want[width + j] += dout[r * width + j];
        }
        for (size_t j = 0; j < width; j++) {
            double hat = (v[j] - mean) / sqrt(var + 1e-5);
            double g = (double)dout[r * width + j] * w[j];
            double want =
                dx0[r * width + j] + (g - mg - hat * mgx) / sqrt(var + 1e-5);

            dx_off = fmax(dx_off, fabs(dx[r * width + j] - want) /
                                      (1 + 1 / sqrt(var + 1e-5)));
        }
    }
    for (size_t j = 0; j < width; j++) {
        dw_off = fmax(dw_off, fabs(dw[j] - dw_want[j]));
        dw_off = fmax(dw_off, fabs(db[j] - dw_want[width + j]));
    }
    ok(out_off <= 5e-6, "norm of %zu x %zu: off by %.2g", rows, width, out_off);
    ok(memcmp(out, again, num * sizeof(*out)) == 0, "and again, the same");
    ok(dx_off <= 2e-6, "its gradient: off by %.2g", dx_off);
    ok(dw_off <= 5e-5, "its parameters': off by %.2g", dw_off);

    free(x), free(residual), free(out), free(again), free(w), free(b);
    free(narrow_w), free(narrow_b), free(dout), free(dx), free(dx0);
    free(dw), free(db), free(partials), free(sum), free(dw_want);
    free(n.mean), free(n.rstd);
}

/* --- Embeddings ----------------------------------------------------------- */

static void test_embed(uint32_t threads)
{
    enum { BATCH = 3, SEQ = 5, WIDTH_ = 77, VOCAB = 4 };
    float *wte = filled(VOCAB * WIDTH_, 1.0f),
          *wpe = filled(SEQ * WIDTH_, 1.0f);
    float *x = filled(BATCH * SEQ * WIDTH_, 1.0f);
    float *dwte = filled(VOCAB * WIDTH_, 1.0f);
    float *dwpe = filled(SEQ * WIDTH_, 1.0f);
    float *want_t = malloc(VOCAB * WIDTH_ * sizeof(*want_t));
    float *want_p = calloc(SEQ * WIDTH_, sizeof(*want_p));
    int32_t tokens[BATCH * (SEQ + 1)];
    bool good = true;

    for (size_t i = 0; i < BATCH * (SEQ + 1); i++) {
        tokens[i] = (int32_t)(i * 7 % 3);
    }
    memcpy(want_t, dwte, VOCAB * WIDTH_ * sizeof(*want_t));
    layer_embed(threads, x, wte, wpe, FSDP_F32, tokens, SEQ + 1, BATCH, SEQ,
                WIDTH_);
    layer_embed_back(threads, dwte, dwpe, FSDP_F32, x, tokens, SEQ + 1, BATCH,
                     SEQ, WIDTH_);
    for (size_t i = 0; i < BATCH * SEQ; i++) {
        size_t token = (size_t)tokens[i / SEQ * (SEQ + 1) + i % SEQ];

        for (size_t j = 0; j < WIDTH_; j++) {
            float sum = wte[token * WIDTH_ + j] + wpe[i % SEQ * WIDTH_ + j];

            good = good && x[i * WIDTH_ + j] == sum;
            want_t[token * WIDTH_ + j] += sum;
            want_p[i % SEQ * WIDTH_ + j] += sum;
        }
    }
    ok(good, "embeddings, %u threads", threads);
    ok(memcmp(want_t, dwte, VOCAB * WIDTH_ * sizeof(*want_t)) == 0 &&
           memcmp(want_p, dwpe, SEQ * WIDTH_ * sizeof(*want_p)) == 0,
       "their gradients, in order of the tokens");
    free(wte), free(wpe), free(x), free(dwte), free(dwpe);
    free(want_t), free(want_p);
}

/* --- Cross-entropy -------------------------------------------------------- */

static void test_cross_entropy(size_t vocab, fsdp_precision_t type)
{
    enum { ROWS = 5 };
    size_t ld = (vocab + 15) / 16 * 16;
    float *logits = filled(ROWS * ld, 20.0f);
    float *before = malloc(ROWS * ld * sizeof(*before));
    int32_t targets[ROWS];
    double loss[ROWS], twice[ROWS], off = 0, grad_off = 0;

    for (size_t r = 0; r < ROWS; r++) {
        targets[r] = (int32_t)((r * 31 + vocab - 1) % vocab);
        for (size_t j = vocab; j < ld; j++) {
            logits[r * ld + j] = 1e9f; /* must not be looked at */
        }
    }
    memcpy(before, logits, ROWS * ld * sizeof(*before));
    layer_cross_entropy(1, logits, ld, ROWS, vocab, targets, false, 0.25f, type,
                        twice);
    ok(memcmp(before, logits, ROWS * ld * sizeof(*before)) == 0,
       "losses alone leave the logits");
    layer_cross_entropy(2, logits, ld, ROWS, vocab, targets, true, 0.25f, type,
                        loss);

    for (size_t r = 0; r < ROWS; r++) {
        const float *v = before + r * ld;
        double sum = 0;

        for (size_t j = 0; j < vocab; j++) {
            sum += exp(v[j]);
        }
        off = fmax(off, fabs(loss[r] - (log(sum) - v[targets[r]])) /
                            (1 + fabs(loss[r])));
        for (size_t j = 0; j < vocab; j++) {
            double want = 0.25 * (exp(v[j]) / sum - (j == (size_t)targets[r]));
            double got =
                (type == FSDP_BF16)
                    ? bf16_to_float(((uint16_t *)(void *)(logits + r * ld))[j])
                    : logits[r * ld + j];

            grad_off = fmax(grad_off, fabs(got - want));
        }
    }
    ok(off <= 1e-7 && memcmp(loss, twice, sizeof(loss)) == 0,
       "losses over %zu logits: %.2g relative", vocab, off);
    ok(grad_off <= ((type == FSDP_BF16) ? 1e-3 : 1e-6),
       "gradients: off by %.2g", grad_off);
    free(logits), free(before);
}

int main(void)
{
    test_exp();
    test_bf16();
    test_gelu(false);
    test_gelu(true);
    test_bias(1, 1, FSDP_F32);
    test_bias(200, 60, FSDP_F32);
    test_bias(64, 97, FSDP_BF16);
    test_norm(1, 1, FSDP_F32);
    test_norm(130, 60, FSDP_F32);
    test_norm(65, 384, FSDP_BF16);
    test_embed(1);
    test_embed(2);
    test_cross_entropy(1, FSDP_F32);
    test_cross_entropy(97, FSDP_F32);
    test_cross_entropy(2500, FSDP_F32);
    test_cross_entropy(2501, FSDP_BF16);
    return tap_done();
}
