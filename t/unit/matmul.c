#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/nn/matmul_private.h"
#include "lib/nn/vec.h"
#include "t/tap/tap.h"

#define GUARD 12345.0f

static const char *type_name(fsdp_precision_t type)
{
    return (type == FSDP_BF16) ? "bf16" : "fp32";
}

static float get(const void *p, fsdp_precision_t type, size_t i)
{
    return (type == FSDP_BF16) ? bf16_to_float(((const uint16_t *)p)[i])
                               : ((const float *)p)[i];
}

static void set(void *p, fsdp_precision_t type, size_t i, float x)
{
    if (type == FSDP_BF16) {
        ((uint16_t *)p)[i] = bf16_from_float(x);
    } else {
        ((float *)p)[i] = x;
    }
}

static void *filled(fsdp_precision_t type, size_t num, unsigned seed)
{
    size_t bytes = (num * precision_size(type) + 63) / 64 * 64;
    void *p = aligned_alloc(64, bytes);
    uint32_t state = seed * 2654435761u + 1;

    for (size_t i = 0; i < num; i++) {
        state = state * 1664525u + 1013904223u;
        set(p, type, i, (float)(state >> 8) / 8388608.0f - 1.0f);
    }
    return p;
}

typedef struct {
    matmul_shape_t s;
    void *a, *b, *bias, *c;
    size_t c_num;
} problem_t;

static void problem_make(problem_t *p, const matmul_shape_t *shape)
{
    const matmul_shape_t *s = &p->s;

    p->s = *shape;
    p->c_num = s->m * s->ldc;
    p->a = filled(s->in, (s->trans_a ? s->k : s->m) * s->lda, 1);
    p->b = filled(s->in, (s->trans_b ? s->n : s->k) * s->ldb, 2);
    p->bias = s->bias ? filled(s->bias_type, s->n, 3) : NULL;
    p->c = filled(s->out, p->c_num, 4);
    for (size_t i = 0; i < s->m; i++) {
        for (size_t j = s->n; j < s->ldc; j++) {
            set(p->c, s->out, i * s->ldc + j, GUARD);
        }
    }
}

static void problem_free(problem_t *p)
{
    free(p->a);
    free(p->b);
    free(p->bias);
    free(p->c);
}

/* The largest distance from double sums, relative to the sum of absolute
 * values; infinite if anything beside the result was written. */
static double problem_error(const problem_t *p, const void *before)
{
    const matmul_shape_t *s = &p->s;
    uint64_t step = s->m * s->n * s->k >> 24 | 1; /* some rows of large ones */
    double worst = 0;

    for (size_t i = 0; i < s->m; i += step) {
        for (size_t j = 0; j < s->ldc; j++) {
            size_t at = i * s->ldc + j;
            double sum = 0, size = 0;

            if (j >= s->n) {
                worst = (get(p->c, s->out, at) == get(before, s->out, at))
                            ? worst
                            : INFINITY;
                continue;
            }
            for (size_t q = 0; q < s->k; q++) {
                double x = get(p->a, s->in,
                               s->trans_a ? q * s->lda + i : i * s->lda + q);
                double y = get(p->b, s->in,
                               s->trans_b ? j * s->ldb + q : q * s->ldb + j);

                sum += x * y;
                size += fabs(x * y);
            }
            if (s->bias) {
                sum += get(p->bias, s->bias_type, j);
            }
            if (s->add) {
                sum += get(before, s->out, at);
            }
            worst = fmax(worst, fabs(get(p->c, s->out, at) - sum) / (size + 1));
        }
    }
    return worst;
}

/* Lend scratch, as the model does. */
static matmul_t *prepared(const matmul_shape_t *shape, uint32_t threads,
                          bool plain, void **scratch_p)
{
    matmul_t *matmul;

    if (matmul_create(threads, plain, &matmul, NULL) != FSDP_OK) {
        return NULL;
    }
    if (matmul_prepare(matmul, shape, NULL) != FSDP_OK) {
        matmul_destroy(matmul);
        return NULL;
    }
    *scratch_p = aligned_alloc(64, matmul_scratch_size(matmul) + 64);
    matmul_set_scratch(matmul, *scratch_p);
    return matmul;
}

static void test_shape(const matmul_shape_t *shape, bool plain)
{
    double tolerance = (shape->out == FSDP_BF16) ? 8e-3 : 2e-6;
    fsdp_error_t err = {0};
    void *scratch = NULL, *before;
    matmul_t *matmul = prepared(shape, 1, plain, &scratch);
    problem_t p;
    double off;

    problem_make(&p, shape);
    before = malloc(p.c_num * precision_size(shape->out));
    memcpy(before, p.c, p.c_num * precision_size(shape->out));
    off = (matmul != NULL &&
           matmul_run(matmul, shape, p.a, p.b, p.bias, p.c, &err) == FSDP_OK)
              ? problem_error(&p, before)
              : INFINITY;
    ok(off <= tolerance, "%s %s%s%s%s%s %zux%zux%zu to %s: off by %.2g %s",
       plain ? "plain" : "oneDNN", type_name(shape->in),
       shape->trans_a ? " aT" : "", shape->trans_b ? " bT" : "",
       shape->bias ? " bias" : "", shape->add ? " add" : "", shape->m, shape->n,
       shape->k, type_name(shape->out), off, err.text);

    free(before);
    problem_free(&p);
    matmul_destroy(matmul);
    free(scratch);
}

static const matmul_shape_t shapes[] = {
    {.m = 1, .n = 1, .k = 1, .lda = 1, .ldb = 1, .ldc = 1},
    {.m = 7, .n = 60, .k = 33, .lda = 33, .ldb = 60, .ldc = 64},
    {.m = 65, .n = 97, .k = 20, .lda = 24, .ldb = 97, .ldc = 97, .bias = true},
    {.m = 60,
     .n = 180,
     .k = 14,
     .lda = 60,
     .ldb = 180,
     .ldc = 180,
     .trans_a = true},
    {.m = 97,
     .n = 60,
     .k = 65,
     .lda = 112,
     .ldb = 60,
     .ldc = 60,
     .trans_a = true,
     .add = true},
    {.m = 33,
     .n = 97,
     .k = 60,
     .lda = 60,
     .ldb = 60,
     .ldc = 112,
     .trans_b = true},
    {.m = 1,
     .n = 257,
     .k = 64,
     .lda = 64,
     .ldb = 64,
     .ldc = 257,
     .trans_b = true},
    {.m = 512,
     .n = 300,
     .k = 1000,
     .lda = 1000,
     .ldb = 300,
     .ldc = 300,
     .bias = true},
    {.m = 300,
     .n = 520,
     .k = 1000,
     .lda = 300,
     .ldb = 520,
     .ldc = 528,
     .trans_a = true,
     .add = true},
};

static void test_shapes(bool plain)
{
    static const fsdp_precision_t types[3][2] = {
        {FSDP_F32, FSDP_F32}, {FSDP_BF16, FSDP_F32}, {FSDP_BF16, FSDP_BF16}};

    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
        for (int t = 0; t < 3; t++) {
            matmul_shape_t shape = shapes[i];

            shape.in = shape.bias_type = types[t][0];
            shape.out = types[t][1];
            test_shape(&shape, plain);
        }
    }
}

static void test_threads(const matmul_shape_t *shape, bool plain)
{
    size_t bytes;
    problem_t p[2];
    matmul_split_t split;

    matmul_split(shape, &split);
    for (uint32_t i = 0; i < 2; i++) {
        void *scratch = NULL;
        matmul_t *matmul = prepared(shape, 1 + i, plain, &scratch);

        problem_make(&p[i], shape);
        ok(matmul != NULL && matmul_run(matmul, shape, p[i].a, p[i].b,
                                        p[i].bias, p[i].c, NULL) == FSDP_OK,
           "a product in %zu parts with %u threads", (size_t)split.num, 1 + i);
        matmul_destroy(matmul);
        free(scratch);
    }
    bytes = p[0].c_num * precision_size(shape->out);
    ok(split.num > 1 && memcmp(p[0].c, p[1].c, bytes) == 0,
       "%s %s: the same bits with 1 and 2 threads", plain ? "plain" : "oneDNN",
       type_name(shape->in));
    problem_free(&p[0]);
    problem_free(&p[1]);
}

static void test_split(void)
{
    bool good = true;

    for (uint64_t m = 1; m < 5000; m += 37) {
        matmul_shape_t shape = {.m = m, .n = 768, .k = 3072};
        matmul_split_t split;

        matmul_split(&shape, &split);
        good = good && split.num >= 1 && split.last >= 1 &&
               split.last <= split.length &&
               (split.num - 1) * split.length + split.last ==
                   (split.by_rows ? m : 768) &&
               (split.num == 1 || split.length % 64 == 0);
    }
    ok(good, "parts cover a product once");
}

/* More shapes than the table holds, of different sizes, with scratch for the
 * first one only. */
static void test_many(void)
{
    matmul_shape_t first = {.m = 3,
                            .n = 8,
                            .k = 8,
                            .lda = 8,
                            .ldb = 8,
                            .ldc = 8,
                            .in = FSDP_BF16,
                            .out = FSDP_F32};
    void *scratch = NULL;
    matmul_t *matmul = prepared(&first, 1, false, &scratch);
    double worst = 0;

    for (uint64_t m = 1; matmul != NULL && m <= 600; m++) {
        matmul_shape_t shape = {.m = 1 + m % 300,
                                .n = 16,
                                .k = 90,
                                .lda = 96,
                                .ldb = 90,
                                .ldc = 16,
                                .trans_b = true,
                                .in = FSDP_BF16,
                                .out = FSDP_F32};
        problem_t p;

        problem_make(&p, &shape);
        worst = fmax(worst, (matmul_run(matmul, &shape, p.a, p.b, NULL, p.c,
                                        NULL) == FSDP_OK)
                                ? problem_error(&p, p.c)
                                : INFINITY);
        problem_free(&p);
    }
    ok(matmul != NULL && worst < 2e-6, "300 shapes twice: off by %.2g", worst);
    matmul_destroy(matmul);
    free(scratch);
}

int main(void)
{
    matmul_shape_t tall = {.m = 700,
                           .n = 400,
                           .k = 500,
                           .lda = 500,
                           .ldb = 400,
                           .ldc = 400,
                           .bias = true};
    matmul_shape_t wide = {.m = 260,
                           .n = 900,
                           .k = 700,
                           .lda = 260,
                           .ldb = 900,
                           .ldc = 900,
                           .trans_a = true,
                           .add = true};

    test_split();
    test_shapes(true);
    test_threads(&tall, true);
#if HAVE_DNNL
    test_shapes(false);
    test_many();
    test_threads(&tall, false);
    test_threads(&wide, false);
    tall.in = tall.out = tall.bias_type = FSDP_BF16;
    wide.in = FSDP_BF16;
    test_threads(&tall, false);
    test_threads(&wide, false);
#else
    (void)wide;
#endif
    return tap_done();
}
