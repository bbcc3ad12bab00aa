/*
 * A training loop of one's own on libfsdp: two layers learn a product of sines.
 *
 *     cc -O2 fit.c -o fit $(pkg-config --cflags --libs libfsdp) -lm
 *     ./fit                               alone
 *     srun --mpi=pmix -K1 -n 4 ./fit      sharded over four ranks
 *
 * The losses are the same bits at any number of ranks.
 */
#include <fsdp.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { IN = 2, HIDDEN = 48, BATCH = 32, MICRO_BATCHES = 4, STEPS = 300 };

/* y = w2 · tanh(w1 x + b1); x[IN] is 1 and stands for the bias. */
typedef struct {
    fsdp_unit_t *units[2];
    fsdp_param_t *w1, *w2;
    float x[BATCH][IN + 1], h[BATCH][HIDDEN], dy[BATCH];
} net_t;

static fsdp_error_t err;

/* After this error the job cannot be closed in order: end at once. */
static void check(fsdp_status_t status)
{
    if (status != FSDP_OK) {
        fprintf(stderr, "fit: %s\n", err.text);
        _exit((int)fsdp_status_exit(status));
    }
}

static void net_add(fsdp_t *fsdp, net_t *net)
{
    fsdp_param_config_t param = FSDP_PARAM_CONFIG_INIT;

    param.init = FSDP_INIT_NORMAL;
    param.ndim = 2;
    param.name = "w1";
    param.dims = (const uint64_t[]){HIDDEN, IN + 1};
    param.std = 1.0f;
    check(fsdp_unit_add(fsdp, "first", FSDP_UNIT_NONE, &net->units[0], &err));
    check(fsdp_param_add(net->units[0], &param, &net->w1, &err));

    param.name = "w2";
    param.dims = (const uint64_t[]){1, HIDDEN};
    param.std = 0.1f;
    check(fsdp_unit_add(fsdp, "second", FSDP_UNIT_NONE, &net->units[1], &err));
    check(fsdp_param_add(net->units[1], &param, &net->w2, &err));
}

/* What micro-batch m of a step holds depends on these two numbers alone. */
static void read_batch(net_t *net, int64_t step, uint32_t m, float *target)
{
    uint64_t state = (uint64_t)step * MICRO_BATCHES + m + 1;

    for (int b = 0; b < BATCH; b++) {
        for (int i = 0; i < IN; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            net->x[b][i] = (float)(state >> 40) / 8388608.0f - 1.0f;
        }
        net->x[b][IN] = 1.0f;
        target[b] = sinf(3.0f * net->x[b][0]) * sinf(2.0f * net->x[b][1]);
    }
}

static double forward(net_t *net, const float *target)
{
    double loss = 0;

    check(fsdp_forward_begin(net->units[0], &err));
    const float *w1 = fsdp_param_data(net->w1);
    for (int b = 0; b < BATCH; b++) {
        for (int j = 0; j < HIDDEN; j++) {
            float sum = 0;
            for (int i = 0; i <= IN; i++) {
                sum += w1[j * (IN + 1) + i] * net->x[b][i];
            }
            net->h[b][j] = tanhf(sum);
        }
    }
    check(fsdp_forward_end(net->units[0], &err));

    check(fsdp_forward_begin(net->units[1], &err));
    const float *w2 = fsdp_param_data(net->w2);
    for (int b = 0; b < BATCH; b++) {
        float y = 0;
        for (int j = 0; j < HIDDEN; j++) {
            y += w2[j] * net->h[b][j];
        }
        loss += (y - target[b]) * (y - target[b]) / BATCH;
        net->dy[b] = 2.0f * (y - target[b]) / BATCH;
    }
    check(fsdp_forward_end(net->units[1], &err));
    return loss;
}

static void backward(net_t *net)
{
    static float dh[BATCH][HIDDEN];

    check(fsdp_backward_begin(net->units[1], &err));
    const float *w2 = fsdp_param_data(net->w2);
    float *g2 = fsdp_param_grad(net->w2);
    for (int b = 0; b < BATCH; b++) {
        for (int j = 0; j < HIDDEN; j++) {
            float h = net->h[b][j];
            g2[j] += net->dy[b] * h;
            dh[b][j] = net->dy[b] * w2[j] * (1.0f - h * h);
        }
    }
    check(fsdp_backward_end(net->units[1], &err));

    check(fsdp_backward_begin(net->units[0], &err));
    float *g1 = fsdp_param_grad(net->w1);
    for (int b = 0; b < BATCH; b++) {
        for (int j = 0; j < HIDDEN; j++) {
            for (int i = 0; i <= IN; i++) {
                g1[j * (IN + 1) + i] += dh[b][j] * net->x[b][i];
            }
        }
    }
    check(fsdp_backward_end(net->units[0], &err));
}

/* The mean loss of the step's micro-batches, over all ranks. */
static double train_step(fsdp_t *fsdp, net_t *net, uint32_t rounds)
{
    double mine[MICRO_BATCHES] = {0}, all[MICRO_BATCHES], sum = 0, norm;
    float target[BATCH] = {0};
    uint32_t micro;

    for (uint32_t round = 0; round < rounds; round++) {
        check(fsdp_micro_begin(fsdp, FSDP_TRAIN, round, 0, &micro, &err));
        /* An idle rank has no share of this round, but makes the same calls;
         * what it computes on old data is not used. */
        if (micro != FSDP_IDLE) {
            read_batch(net, fsdp_get_step(fsdp), micro, target);
        }
        mine[round] = forward(net, target);
        backward(net);
        check(fsdp_micro_end(fsdp, &err));
    }
    check(fsdp_gather_scalars(fsdp, mine, MICRO_BATCHES, all, &err));
    for (int m = 0; m < MICRO_BATCHES; m++) {
        sum += all[m];
    }
    check(fsdp_clip(fsdp, 1.0, &norm, &err));
    check(fsdp_optimizer_step(fsdp, 0.01, &err));
    return sum / MICRO_BATCHES;
}

int main(void)
{
    fsdp_job_config_t job_config = FSDP_JOB_CONFIG_INIT;
    fsdp_config_t config = FSDP_CONFIG_INIT;
    fsdp_job_t *job;
    fsdp_job_info_t info;
    fsdp_layout_info_t layout;
    fsdp_t *fsdp;
    net_t net = {0};

    check(fsdp_job_open(&job_config, &job, &err));
    fsdp_job_get_info(job, &info);
    config.strategy = FSDP_STRATEGY_FULL;
    config.micro_batches = MICRO_BATCHES;
    config.weight_decay = 0.0f;
    check(fsdp_create(job, &config, &fsdp, &err));
    net_add(fsdp, &net);
    check(fsdp_seal(fsdp, &err));
    fsdp_get_layout(fsdp, &layout);

    for (int step = 0; step < STEPS; step++) {
        double loss = train_step(fsdp, &net, layout.rounds);
        if (info.rank == 0 && (step % 100 == 0 || step == STEPS - 1)) {
            printf("step %d loss %.17g\n", step, loss);
        }
    }
    fsdp_destroy(fsdp);
    fsdp_job_close(job);
    return 0;
}
