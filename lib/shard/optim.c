/*
 * After the last round: one division by G, the exact norm, clipping, AdamW.
 */
#include "config.h"

#include "lib/shard/shard.h"

#include <math.h>
#include <string.h>

#include "lib/util/check.h"
#include "lib/util/clock.h"

#define CLIP_EPS 1e-6

/* --- Clip ----------------------------------------------------------------- */

static void divide_span(void *arg, uint32_t item, uint32_t thread)
{
    fsdp_t *fsdp = arg;
    const span_t *span = &fsdp->spans[item];

    kernel_divide_squares(&fsdp->thread_sums[thread],
                          span->unit->grad + span->first,
                          (float)fsdp->config.micro_batches, span->count);
}

/* Add up what the ranks of one shard group have: each shard once. */
static fsdp_status_t sum_job(comm_t *comm, void *arg, fsdp_error_t *err)
{
    fsdp_t *fsdp = arg;

    return comm_all_sum(comm, &fsdp->shard_group,
                        (uint64_t *)&fsdp->thread_sums[0], EXACT_WORDS,
                        fsdp->words, err);
}

static uint32_t num_threads(const fsdp_t *fsdp)
{
    return (fsdp->config.threads > 0) ? fsdp->config.threads : 1;
}

/* Divide the gradients by G, and add their squares. */
static fsdp_status_t measure(fsdp_t *fsdp, double *norm_p, fsdp_error_t *err)
{
    exact_sum_t *sums = fsdp->thread_sums;
    uint64_t *total = (uint64_t *)&sums[0];

    memset(sums, 0, num_threads(fsdp) * sizeof(*sums));
    pool_run(fsdp->pool, divide_span, fsdp, fsdp->num_spans);
    for (uint32_t t = 1; t < num_threads(fsdp); t++) {
        const uint64_t *more = (const uint64_t *)&sums[t];

        for (size_t i = 0; i < EXACT_WORDS; i++) {
            total[i] += more[i];
        }
    }
    exact_normalise(&sums[0]);
    FSDP_TRY(comm_run(fsdp->comm, sum_job, fsdp, "sum of the gradient norm",
                      NULL, err));

    *norm_p = sqrt(exact_round(&sums[0]));
    return FSDP_OK;
}

fsdp_status_t fsdp_clip(fsdp_t *fsdp, double max_norm, double *norm_p,
                        fsdp_error_t *err)
{
    double norm;

    FSDP_TRY(shard_check_outside(fsdp, "fsdp_clip()", err));
    if (fsdp->clipped || fsdp->rounds_done != fsdp->rounds) {
        return fsdp_error_set(err, FSDP_ERR_BAD_STATE,
                              "fsdp_clip() after %u of %u rounds%s",
                              fsdp->rounds_done, fsdp->rounds,
                              fsdp->clipped ? ", for the second time" : "");
    }

    fsdp_job_set_phase(fsdp->job, "clip", fsdp->step);
    FSDP_TRY(comm_wait(fsdp->comm, fsdp->last_ticket, err));
    FSDP_TRY(measure(fsdp, &norm, err));

    fsdp->clipped = true;
    fsdp->finite = isfinite(norm);
    fsdp->grad_scale = 1.0;
    if (max_norm > 0.0) {
        /* As PyTorch has it; the same value on all ranks. */
        fsdp->grad_scale = fmin(1.0, max_norm / (norm + CLIP_EPS));
    }

    *norm_p = norm;
    return FSDP_OK;
}

/* --- AdamW ---------------------------------------------------------------- */

typedef struct {
    const fsdp_t *fsdp;
    adamw_t adamw;
} update_t;

static void update_span(void *arg, uint32_t item, uint32_t thread)
{
    const update_t *update = arg;
    const span_t *span = &update->fsdp->spans[item];
    const fsdp_unit_t *unit = span->unit;

    (void)thread;
    kernel_adamw(unit->regions[REGION_TRAINED].value + span->first,
                 unit->exp_avg + span->first, unit->exp_avg_sq + span->first,
                 unit->grad + span->first, span->count, &update->adamw,
                 span->decay);
}

fsdp_status_t fsdp_optimizer_step(fsdp_t *fsdp, double lr, fsdp_error_t *err)
{
    const fsdp_config_t *config = &fsdp->config;
    update_t update = {.fsdp = fsdp};
    double start = clock_now();

    FSDP_TRY(shard_check_outside(fsdp, "fsdp_optimizer_step()", err));
    if (!fsdp->clipped || fsdp->rounds_done != fsdp->rounds) {
        return fsdp_error_set(err, FSDP_ERR_BAD_STATE,
                              "fsdp_optimizer_step() needs new gradients and "
                              "fsdp_clip() before it");
    }
    if (!fsdp->finite) {
        return fsdp_error_set(err, FSDP_ERR_BAD_STATE,
                              "the gradients of step %lld have a norm that is "
                              "not a number: nothing was changed; begin round "
                              "0 again to skip them",
                              (long long)fsdp->step + 1);
    }

    fsdp_job_set_phase(fsdp->job, "optimizer", fsdp->step);
    adamw_prepare(&update.adamw, lr, config->beta1, config->beta2, config->eps,
                  config->weight_decay, fsdp->step + 1, fsdp->grad_scale);
    pool_run(fsdp->pool, update_span, &update, fsdp->num_spans);

    fsdp->step++;
    fsdp->lr = lr;
    fsdp->rounds_done = 0;
    shard_values_changed(fsdp);
    fsdp->optimizer_seconds += clock_now() - start;
    return FSDP_OK;
}

int64_t fsdp_get_step(const fsdp_t *fsdp)
{
    return fsdp->step;
}
