/*
 * How fast the model kit trains on one rank: tokens/s and GFLOP/s of forward
 * and backward passes, beside what oneDNN reaches on the model's own first
 * product of the MLP.  Of the best round; with one thread by its CPU time,
 * which others on the machine disturb less.  Built on demand: make
 * t/bench-gpt2
 *
 * usage: bench-gpt2 [124M|384|384-long] [fp32|bf16] [threads] [rounds]
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/nn/gpt2.h"
#include "lib/nn/matmul.h"
#include "lib/nn/vec.h"

typedef struct {
    const char *name;
    uint32_t vocab, width, layers, heads, batch, seq;
} bench_shape_t;

static const bench_shape_t shapes[] = {
    {"124M",     50257, 768, 12, 12, 4, 256 },
    {"384",      8192,  384, 6,  6,  8, 256 },
    {"384-long", 8192,  384, 6,  6,  2, 1024},
};

static double seconds(uint32_t threads)
{
    struct timespec now;

    clock_gettime((threads == 1) ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC,
                  &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void must(fsdp_status_t status, const fsdp_error_t *err)
{
    if (status != FSDP_OK) {
        fprintf(stderr, "bench-gpt2: %s\n", err->text);
        exit(1);
    }
}

/* Operations of a micro-batch: 6 a weight and token, and causal attention's two
 * products forward and four backward, of which half is needed. */
static double operations(const bench_shape_t *s)
{
    double width = s->width, tokens = (double)s->batch * s->seq;
    double weights = 12 * width * width * s->layers + width * s->vocab;

    return tokens * (6 * weights + 6.0 * width * s->seq * s->layers);
}

/* GFLOP/s of the first product of the MLP. */
static double product_speed(const bench_shape_t *s, fsdp_precision_t type,
                            uint32_t threads)
{
    matmul_shape_t shape = {
        .m = (uint64_t)s->batch * s->seq,
        .n = 4 * s->width,
        .k = s->width,
        .lda = s->width,
        .ldb = 4 * s->width,
        .ldc = 4 * s->width,
        .in = type,
        .out = type,
    };
    double best = 1e30, begin = seconds(threads);
    fsdp_error_t err = {0};
    matmul_t *matmul;
    float *a = calloc(shape.m * shape.k, 4), *b = calloc(shape.k * shape.n, 4);
    float *c = calloc(shape.m * shape.n, 4);

    must(matmul_create(threads, false, &matmul, &err), &err);
    while (seconds(threads) - begin < 0.5) {
        double t = seconds(threads);

        must(matmul_run(matmul, &shape, a, b, NULL, c, &err), &err);
        t = seconds(threads) - t;
        best = (t < best) ? t : best;
    }
    matmul_destroy(matmul);
    free(a);
    free(b);
    free(c);
    return 2e-9 * (double)shape.m * (double)shape.n * (double)shape.k / best;
}

static void bench(const bench_shape_t *s, fsdp_precision_t type,
                  uint32_t threads, uint32_t rounds)
{
    fsdp_job_config_t job_config = FSDP_JOB_CONFIG_INIT;
    fsdp_config_t config = FSDP_CONFIG_INIT;
    gpt2_config_t model_config = GPT2_CONFIG_INIT;
    size_t num = (size_t)s->batch * (s->seq + 1);
    int32_t *tokens = malloc(num * sizeof(*tokens));
    double tokens_num = (double)s->batch * s->seq, best = 1e30;
    double limit = product_speed(s, type, threads), loss;
    fsdp_error_t err = {0};
    fsdp_memory_t memory;
    fsdp_job_t *job;
    gpt2_t *model;
    fsdp_t *fsdp;

    job_config.alone = true;
    config.param_dtype = config.reduce_dtype = type;
    config.micro_batches = rounds;
    model_config.vocab = s->vocab;
    model_config.positions = s->seq;
    model_config.width = s->width;
    model_config.layers = s->layers;
    model_config.heads = s->heads;
    must(fsdp_job_open(&job_config, &job, &err), &err);
    must(fsdp_create(job, &config, &fsdp, &err), &err);
    must(gpt2_create(fsdp, type, &model_config, s->batch, s->seq, true, threads,
                     &model, &err),
         &err);
    must(fsdp_seal(fsdp, &err), &err);
    for (size_t i = 0; i < num; i++) {
        tokens[i] = (int32_t)(i * 7919 % s->vocab);
    }

    for (uint32_t round = 0; round < rounds; round++) {
        uint32_t micro;
        double t;

        must(fsdp_micro_begin(fsdp, FSDP_TRAIN, round, 0, &micro, &err), &err);
        t = seconds(threads);
        must(gpt2_train(model, tokens, s->batch, s->seq, &loss, &err), &err);
        t = seconds(threads) - t;
        must(fsdp_micro_end(fsdp, &err), &err);
        printf("  loss %.4f, %.3f s\n", loss, t);
        best = (t < best) ? t : best;
    }

    fsdp_get_memory(fsdp, &memory);
    printf("%s %s, %u threads: %.0f tokens/s, %.1f GFLOP/s; its product alone "
           "%.1f; activations %.0f MiB\n",
           s->name, (type == FSDP_BF16) ? "bf16" : "fp32", threads,
           tokens_num / best, 1e-9 * operations(s) / best, limit,
           (double)memory.peak[FSDP_MEM_ACTIVATION] / 1048576);
    gpt2_destroy(model);
    fsdp_destroy(fsdp);
    fsdp_job_close(job);
    free(tokens);
}

int main(int argc, char **argv)
{
    const char *name = (argc > 1) ? argv[1] : "384";
    bool narrow = argc > 2 && strcmp(argv[2], "bf16") == 0;
    uint32_t threads = (argc > 3) ? (uint32_t)atoi(argv[3]) : 1;
    uint32_t rounds = (argc > 4) ? (uint32_t)atoi(argv[4]) : 3;

    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
        if (strcmp(shapes[i].name, name) == 0) {
            bench(&shapes[i], narrow ? FSDP_BF16 : FSDP_F32,
                  (threads > 0) ? threads : 1, (rounds > 0) ? rounds : 1);
            return 0;
        }
    }
    fprintf(stderr, "usage: bench-gpt2 [124M|384|384-long] [fp32|bf16] "
                    "[threads] [rounds]\n");
    return 64;
}
