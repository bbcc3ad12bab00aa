#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/nn/attention.h"
#include "lib/nn/vec.h"
#include "t/tap/tap.h"

static float get(const void *p, fsdp_precision_t type, size_t i)
{
    return (type == FSDP_BF16) ? bf16_to_float(((const uint16_t *)p)[i])
                               : ((const float *)p)[i];
}

static void *filled(fsdp_precision_t type, size_t num, unsigned seed,
                    float size)
{
    void *p = aligned_alloc(64, (num * 4 + 63) / 64 * 64);
    uint32_t state = seed * 2654435761u + 1;

    for (size_t i = 0; i < num; i++) {
        float x;

        state = state * 1664525u + 1013904223u;
        x = size * ((float)(state >> 8) / 8388608.0f - 1.0f);
        if (type == FSDP_BF16) {
            ((uint16_t *)p)[i] = bf16_from_float(x);
        } else {
            ((float *)p)[i] = x;
        }
    }
    return p;
}

typedef struct {
    void *qkv, *out, *dout, *dqkv;
    float *lse;
    size_t rows, width;
} run_t;

static void run_attention(run_t *r, const attention_shape_t *s,
                          uint32_t threads)
{
    size_t bytes = attention_scratch_size(s, threads);
    void *scratch = aligned_alloc(64, (bytes + 63) / 64 * 64);

    r->rows = s->batch * s->seq;
    r->width = s->heads * s->head_size;
    r->qkv = filled(s->type, r->rows * 3 * r->width, 1, 2.0f);
    r->dout = filled(s->type, r->rows * r->width, 2, 1.0f);
    r->out = filled(s->type, r->rows * r->width, 3, 1.0f);
    r->dqkv = filled(s->type, r->rows * 3 * r->width, 4, 1.0f);
    r->lse = calloc(s->batch * s->heads * s->seq, sizeof(float));

    /* Nothing may depend on what the scratch holds. */
    memset(scratch, 0x7f, bytes);
    attention(s, threads, r->qkv, r->out, r->lse, scratch);
    memset(scratch, 0x7f, bytes);
    attention_back(s, threads, r->qkv, r->out, r->lse, r->dout, r->dqkv,
                   scratch);
    free(scratch);
}

static void free_run(run_t *r)
{
    free(r->qkv);
    free(r->out);
    free(r->dout);
    free(r->dqkv);
    free(r->lse);
}

/* One head in doubles, from the textbook; largest distances of results. */
static void check_head(const attention_shape_t *s, const run_t *r, size_t b,
                       size_t head, double *out_off, double *grad_off)
{
    size_t t = s->seq, d = s->head_size, w = r->width;
    double *p = calloc(t * t, sizeof(*p)), *dp = calloc(t * t, sizeof(*dp));
    double *grad = calloc(3 * t * d, sizeof(*grad));
    double scale = 1 / sqrt((double)d);

#define QKV(_row, _which, _i)    \
    (double)get(r->qkv, s->type, \
                (b * t + (_row)) * 3 * w + (_which)*w + head * d + (_i))
#define DOUT(_row, _i) \
    (double)get(r->dout, s->type, (b * t + (_row)) * w + head * d + (_i))

    for (size_t i = 0; i < t; i++) {
        double sum = 0, dot = 0;

        for (size_t j = 0; j <= i; j++) {
            for (size_t x = 0; x < d; x++) {
                p[i * t + j] += QKV(i, 0, x) * QKV(j, 1, x) * scale;
                dp[i * t + j] += DOUT(i, x) * QKV(j, 2, x);
            }
            p[i * t + j] = exp(p[i * t + j]);
            sum += p[i * t + j];
        }
        for (size_t j = 0; j <= i; j++) {
            p[i * t + j] /= sum;
            dot += p[i * t + j] * dp[i * t + j];
        }
        for (size_t x = 0; x < d; x++) {
            double out = 0;

            for (size_t j = 0; j <= i; j++) {
                out += p[i * t + j] * QKV(j, 2, x);
            }
            *out_off =
                fmax(*out_off, fabs(out - get(r->out, s->type,
                                              (b * t + i) * w + head * d + x)));
        }
        for (size_t j = 0; j <= i; j++) {
            double ds = p[i * t + j] * (dp[i * t + j] - dot) * scale;

            for (size_t x = 0; x < d; x++) {
                grad[i * d + x] += ds * QKV(j, 1, x);
                grad[(t + j) * d + x] += ds * QKV(i, 0, x);
                grad[(2 * t + j) * d + x] += p[i * t + j] * DOUT(i, x);
            }
        }
    }
    for (size_t which = 0; which < 3; which++) {
        for (size_t i = 0; i < t; i++) {
            for (size_t x = 0; x < d; x++) {
                double got =
                    get(r->dqkv, s->type,
                        (b * t + i) * 3 * w + which * w + head * d + x);

                *grad_off =
                    fmax(*grad_off, fabs(got - grad[(which * t + i) * d + x]));
            }
        }
    }
    free(p);
    free(dp);
    free(grad);
}

static void test_shape(const attention_shape_t *s)
{
    bool narrow = s->type == FSDP_BF16;
    double out_off = 0, grad_off = 0;
    run_t r;

    run_attention(&r, s, 1);
    for (size_t b = 0; b < s->batch; b++) {
        for (size_t head = 0; head < s->heads; head++) {
            check_head(s, &r, b, head, &out_off, &grad_off);
        }
    }
    ok(out_off <= (narrow ? 8e-3 : 2e-6),
       "%s batch %zu seq %zu heads %zu of %zu: output off by %.2g",
       narrow ? "bf16" : "fp32", s->batch, s->seq, s->heads, s->head_size,
       out_off);
    ok(grad_off <= (narrow ? 1.5e-2 : 5e-6), "gradients off by %.2g", grad_off);
    free_run(&r);
}

static void test_threads(fsdp_precision_t type)
{
    attention_shape_t s = {2, 130, 3, 20, type};
    size_t size = precision_size(type);
    run_t r[2];

    run_attention(&r[0], &s, 1);
    run_attention(&r[1], &s, 2);
    ok(memcmp(r[0].out, r[1].out, r[0].rows * r[0].width * size) == 0 &&
           memcmp(r[0].dqkv, r[1].dqkv, 3 * r[0].rows * r[0].width * size) == 0,
       "the same bits with 1 and 2 threads");
    free_run(&r[0]);
    free_run(&r[1]);
}

/* What a token sees does not depend on those behind it, to the last bit. */
static void test_causal(void)
{
    attention_shape_t s = {1, 100, 2, 24, FSDP_F32};
    size_t bytes = attention_scratch_size(&s, 1);
    void *scratch = aligned_alloc(64, bytes);
    float *late;
    run_t r;
    size_t first = 70 * 48;

    run_attention(&r, &s, 1);
    late = malloc(100 * 48 * sizeof(*late));
    for (size_t i = 70 * 144; i < 100 * 144; i++) {
        ((float *)r.qkv)[i] *= 3;
    }
    attention(&s, 1, r.qkv, late, r.lse, scratch);
    ok(memcmp(late, r.out, first * sizeof(*late)) == 0 &&
           memcmp(late + first, (float *)r.out + first,
                  30 * 48 * sizeof(*late)) != 0,
       "no token sees those behind it");
    free(late);
    free(scratch);
    free_run(&r);
}

/* Scores of some thousands must not overflow. */
static void test_large_scores(void)
{
    attention_shape_t s = {1, 70, 1, 16, FSDP_F32};
    void *scratch = aligned_alloc(64, attention_scratch_size(&s, 1));
    bool finite = true;
    run_t r;

    run_attention(&r, &s, 1);
    for (size_t i = 0; i < r.rows * 3 * r.width; i++) {
        ((float *)r.qkv)[i] *= 60;
    }
    attention(&s, 1, r.qkv, r.out, r.lse, scratch);
    attention_back(&s, 1, r.qkv, r.out, r.lse, r.dout, r.dqkv, scratch);
    for (size_t i = 0; i < r.rows * 3 * r.width; i++) {
        finite = finite && isfinite(((float *)r.dqkv)[i]) &&
                 isfinite(((float *)r.out)[i % (r.rows * r.width)]);
    }
    ok(finite, "large scores give finite results");
    free(scratch);
    free_run(&r);
}

/* A token that sees itself alone has a weight of 1 whatever its score is: q and
 * k have no gradient, not even one of rounding, which AdamW would blow up. */
static void test_alone(fsdp_precision_t type)
{
    attention_shape_t s = {6, 1, 3, 37, type};
    bool zero = true;
    run_t r;

    run_attention(&r, &s, 1);
    for (size_t row = 0; row < r.rows; row++) {
        for (size_t i = 0; i < 2 * r.width; i++) {
            zero = zero && get(r.dqkv, type, row * 3 * r.width + i) == 0;
        }
    }
    ok(zero, "a token alone: no gradient of q and k at all");
    free_run(&r);
}

int main(void)
{
    static const struct {
        size_t batch, seq, heads, head_size;
    } shapes[] = {
        {1, 1,   1, 1 },
        {2, 7,   3, 20},
        {1, 64,  2, 16},
        {1, 65,  1, 64},
        {2, 33,  4, 16},
        {1, 130, 2, 80},
        {1, 9,   1, 5 },
        {1, 200, 1, 37},
        {3, 16,  2, 32},
    };

    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
        attention_shape_t s = {shapes[i].batch, shapes[i].seq, shapes[i].heads,
                               shapes[i].head_size, FSDP_F32};

        test_shape(&s);
        s.type = FSDP_BF16;
        test_shape(&s);
    }
    test_threads(FSDP_F32);
    test_threads(FSDP_BF16);
    test_alone(FSDP_F32);
    test_alone(FSDP_BF16);
    test_causal();
    test_large_scores();
    return tap_done();
}
