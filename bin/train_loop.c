#include "config.h"

#include "bin/train.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/util/check.h"
#include "lib/util/clock.h"
#include "lib/util/io.h"

/* What a rank says instead of a loss when its data failed: all learn of it by
 * the exchange of losses, without another one. */
#define LOSS_FAILED (-INFINITY)

/* Room for the losses of a step or a validation. */
typedef struct {
    double *mine, *all;
    uint32_t count, rounds, num; /* num: all[], with a flag of each rank */
} losses_t;

static fsdp_status_t losses_create(const train_t *train, uint32_t count,
                                   losses_t *losses_p, fsdp_error_t *err)
{
    uint32_t world = train->info.world;
    losses_t losses = {.count = count};

    losses.rounds = count / world + (count % world != 0);
    /* And one more round of numbers: which ranks were told to end. */
    losses.num = (losses.rounds + 1) * world;
    losses.mine = calloc(losses.rounds + 1, sizeof(*losses.mine));
    losses.all = calloc(losses.num, sizeof(*losses.all));
    if (losses.mine == NULL || losses.all == NULL) {
        free(losses.mine);
        free(losses.all);
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for the losses of %u micro-batches",
                              count);
    }

    *losses_p = losses;
    return FSDP_OK;
}

static void losses_free(losses_t *losses)
{
    free(losses->mine);
    free(losses->all);
}

/* One round: this rank's micro-batch, if it has one.  A rank whose data fail
 * goes on with the calls of an idle one, so that nobody waits. */
static fsdp_status_t run_round(train_t *train, fsdp_mode_t mode, int64_t step,
                               uint32_t round, losses_t *losses,
                               double *data_seconds, fsdp_error_t *data_err,
                               fsdp_error_t *err)
{
    const settings_t *set = train->set;
    uint32_t batch = hyper_u32(set, HYPER_BATCH);
    uint32_t seq = hyper_u32(set, HYPER_SEQ), micro;
    const int32_t *tokens = NULL;
    fsdp_status_t data_status = FSDP_OK;
    double loss = 0, start;

    FSDP_TRY(
        fsdp_micro_begin(train->fsdp, mode, round, losses->count, &micro, err));
    if (micro != FSDP_IDLE) {
        start = clock_now();
        data_status = data_batch(train->data,
                                 mode == FSDP_TRAIN ? DATA_TRAIN : DATA_VALID,
                                 (uint64_t)set->hyper[HYPER_SEED], step, micro,
                                 batch, train->tokens, data_err);
        *data_seconds += clock_now() - start;
        tokens = (data_status == FSDP_OK) ? train->tokens : NULL;
    }
    if (mode == FSDP_TRAIN) {
        FSDP_TRY(gpt2_train(train->gpt2, tokens, batch, seq, &loss, err));
    } else {
        FSDP_TRY(gpt2_eval(train->gpt2, tokens, batch, seq, &loss, err));
    }
    losses->mine[round] = (data_status == FSDP_OK) ? loss : LOSS_FAILED;

    return fsdp_micro_end(train->fsdp, err);
}

/* All rounds, and the mean loss over the micro-batches in their order. */
static fsdp_status_t run_rounds(train_t *train, fsdp_mode_t mode, int64_t step,
                                losses_t *losses, double *loss_p,
                                double *data_seconds, fsdp_error_t *err)
{
    fsdp_error_t data_err = {0};
    double sum = 0;
    bool failed = false;

    for (uint32_t round = 0; round < losses->rounds; round++) {
        /* Validation may be long, and alone nobody waits for this rank. */
        if (mode == FSDP_EVAL && train->info.world == 1 && setup_stopped()) {
            return fsdp_error_set(err, FSDP_ERR_SIGNALLED,
                                  "stopped by SIGTERM during validation");
        }
        FSDP_TRY(run_round(train, mode, step, round, losses, data_seconds,
                           &data_err, err));
    }
    losses->mine[losses->rounds] = setup_stopped();
    FSDP_TRY(fsdp_gather_scalars(train->fsdp, losses->mine, losses->num,
                                 losses->all, err));
    for (uint32_t i = losses->num - train->info.world; i < losses->num; i++) {
        train->stop |= losses->all[i] != 0;
    }
    for (uint32_t m = 0; m < losses->count; m++) {
        failed |= losses->all[m] == LOSS_FAILED;
        sum += losses->all[m];
    }
    if (failed) {
        *err = data_err;
        return setup_agree(train, data_err.status, err);
    }

    *loss_p = sum / losses->count;
    return FSDP_OK;
}

/* --- Costs ---------------------------------------------------------------- */

static void counters_add(fsdp_counters_t *sum, const fsdp_counters_t *after,
                         const fsdp_counters_t *before)
{
    sum->gather_bytes += after->gather_bytes - before->gather_bytes;
    sum->reduce_bytes += after->reduce_bytes - before->reduce_bytes;
    sum->replica_bytes += after->replica_bytes - before->replica_bytes;
    sum->control_bytes += after->control_bytes - before->control_bytes;
    sum->link_bytes += after->link_bytes - before->link_bytes;
    sum->collectives += after->collectives - before->collectives;
    sum->compute_seconds += after->compute_seconds - before->compute_seconds;
    sum->comm_seconds += after->comm_seconds - before->comm_seconds;
    sum->exposed_seconds += after->exposed_seconds - before->exposed_seconds;
    sum->optimizer_seconds +=
        after->optimizer_seconds - before->optimizer_seconds;
    sum->save_seconds += after->save_seconds - before->save_seconds;
}

static void cost_add(train_cost_t *sum, const train_cost_t *cost)
{
    const fsdp_counters_t zero = {0};

    sum->seconds += cost->seconds;
    sum->data_seconds += cost->data_seconds;
    sum->tokens += cost->tokens;
    counters_add(&sum->counters, &cost->counters, &zero);
}

/* --- Training ------------------------------------------------------------- */

static fsdp_status_t run_step(train_t *train, losses_t *losses,
                              train_step_t *result_p, fsdp_error_t *err)
{
    const settings_t *set = train->set;
    int64_t step = fsdp_get_step(train->fsdp);
    train_step_t result = {.step = step + 1, .lr = config_lr(set, step)};
    fsdp_counters_t before, after;
    double start = clock_now();

    fsdp_job_set_phase(train->job, "train", step + 1);
    fsdp_get_counters(train->fsdp, &before);
    FSDP_TRY(run_rounds(train, FSDP_TRAIN, step, losses, &result.loss,
                        &result.cost.data_seconds, err));
    FSDP_TRY(fsdp_clip(train->fsdp, set->hyper[HYPER_CLIP], &result.norm, err));
    if (!isfinite(result.loss) || !isfinite(result.norm)) {
        /* The same on all ranks. */
        return fsdp_error_set(err, FSDP_ERR_BAD_STATE,
                              "step %" PRId64 ": the loss is %g and the norm "
                              "of its gradient %g: lower --lr",
                              step + 1, result.loss, result.norm);
    }

    FSDP_TRY(fsdp_optimizer_step(train->fsdp, result.lr, err));
    fsdp_get_counters(train->fsdp, &after);
    counters_add(&result.cost.counters, &after, &before);
    result.cost.seconds = clock_now() - start;
    result.cost.tokens = (uint64_t)losses->count * hyper_u32(set, HYPER_BATCH) *
                         hyper_u32(set, HYPER_SEQ);
    result.micro_loss = losses->all;

    *result_p = result;
    return FSDP_OK;
}

/* Always over the same micro-batches. */
static fsdp_status_t validate(train_t *train, losses_t *losses,
                              fsdp_error_t *err)
{
    double start = clock_now(), loss, data_seconds = 0;

    fsdp_job_set_phase(train->job, "validate", fsdp_get_step(train->fsdp));
    FSDP_TRY(
        run_rounds(train, FSDP_EVAL, 0, losses, &loss, &data_seconds, err));
    report_valid(train, fsdp_get_step(train->fsdp), loss, losses->count,
                 clock_now() - start);

    return FSDP_OK;
}

/* Say so once when a save has become durable. */
static void watch_saves(const train_t *train, uint64_t *seen)
{
    fsdp_save_status_t status;

    fsdp_get_save_status(train->fsdp, &status);
    if (status.saves != *seen) {
        *seen = status.saves;
        report_saved(train, &status);
    }
}

static fsdp_status_t save(train_t *train, uint64_t *seen, fsdp_error_t *err)
{
    fsdp_save_config_t config = FSDP_SAVE_CONFIG_INIT;
    int64_t step = fsdp_get_step(train->fsdp);
    fsdp_digest_t digest;
    fsdp_status_t status;
    double start;
    char *json;

    fsdp_job_set_phase(train->job, "save", step);
    FSDP_TRY(fsdp_digest(train->fsdp, &digest, err));
    json = config_to_json(train);
    config.dir = train->set->save_dir;
    config.files = train->set->save_files;
    config.user_json = json;
    start = clock_now();
    status = fsdp_save_start(train->fsdp, &config, err);
    free(json);
    watch_saves(train, seen);
    FSDP_TRY(status);
    report_save_begin(train, step, &digest, clock_now() - start);

    return FSDP_OK;
}

/* Which checkpoint is good after saving has failed. */
static fsdp_status_t save_failed(const train_t *train, fsdp_status_t status)
{
    fsdp_save_status_t saves;

    fsdp_get_save_status(train->fsdp, &saves);
    if (train->info.rank != 0) {
        return status;
    }
    if (saves.step >= 0) {
        cli_message("the newest checkpoint in %s is that of step %" PRId64,
                    train->set->save_dir, saves.step);
    } else if (train->resumed) {
        cli_message("the newest checkpoint is %s", train->source);
    } else {
        cli_message("this run has saved no checkpoint");
    }

    return status;
}

/* After each step: validation and saving where they are due. */
static fsdp_status_t after_step(train_t *train, losses_t *valid, uint64_t *seen,
                                fsdp_error_t *err)
{
    const settings_t *set = train->set;
    int64_t step = fsdp_get_step(train->fsdp);
    bool last = step >= set->steps;
    fsdp_status_t status;

    watch_saves(train, seen);
    if (set->valid_every > 0 && (last || step % set->valid_every == 0)) {
        FSDP_TRY(validate(train, valid, err));
    }
    if (set->save_dir != NULL &&
        (last || (set->save_every > 0 && step % set->save_every == 0))) {
        status = save(train, seen, err);
        if (status != FSDP_OK) {
            return save_failed(train, status);
        }
    }
    /* Agreed, since while all are there no wait notices it. */
    if (train->stop && !last) {
        status = fsdp_save_wait(train->fsdp, err);
        watch_saves(train, seen);
        if (status != FSDP_OK) {
            return save_failed(train, status);
        }
        return fsdp_error_set(err, FSDP_ERR_SIGNALLED,
                              "stopped by SIGTERM after step %" PRId64, step);
    }

    return FSDP_OK;
}

static fsdp_status_t run_steps(train_t *train, losses_t *losses,
                               losses_t *valid, fsdp_error_t *err)
{
    int64_t first = fsdp_get_step(train->fsdp);
    train_cost_t total = {0};
    fsdp_digest_t digest;
    fsdp_counters_t counters;
    fsdp_status_t status;
    train_step_t step;
    uint64_t seen = 0;

    while (fsdp_get_step(train->fsdp) < train->set->steps) {
        FSDP_TRY(run_step(train, losses, &step, err));
        cost_add(&total, &step.cost);
        report_step(train, &step);
        FSDP_TRY(after_step(train, valid, &seen, err));
    }

    fsdp_job_set_phase(train->job, "end", fsdp_get_step(train->fsdp));
    status = fsdp_save_wait(train->fsdp, err);
    watch_saves(train, &seen);
    if (status != FSDP_OK) {
        return save_failed(train, status);
    }

    FSDP_TRY(fsdp_digest(train->fsdp, &digest, err));
    fsdp_get_counters(train->fsdp, &counters);
    report_end(train, fsdp_get_step(train->fsdp) - first, &total,
               counters.save_seconds, &digest);

    return FSDP_OK;
}

/* Before hours of training: can checkpoints be written there? */
static fsdp_status_t check_save_dir(const train_t *train, fsdp_error_t *err)
{
    const char *dir = train->set->save_dir;
    fsdp_status_t status;
    char *path;

    if (dir == NULL || train->info.rank != 0) {
        return FSDP_OK;
    }

    FSDP_TRY(io_make_dirs(dir, err));
    path = cli_printf("%s/.write-test-%s", dir, train->info.id);
    status = io_replace_file(path, "", 0, err);
    unlink(path);
    free(path);

    return status;
}

/* Everything local up to the model. */
static fsdp_status_t prepare(train_t *train, fsdp_error_t *err)
{
    FSDP_TRY(config_complete(train, err));
    FSDP_TRY(setup_data(train, err));

    return check_save_dir(train, err);
}

fsdp_status_t loop_train(train_t *train, fsdp_error_t *err)
{
    const settings_t *set = train->set;
    losses_t losses = {0}, valid = {0};
    fsdp_status_t status = prepare(train, err);

    FSDP_TRY(setup_agree(train, status, err));
    FSDP_TRY(setup_model(train, hyper_u32(set, HYPER_BATCH),
                         hyper_u32(set, HYPER_SEQ), true, err));
    status =
        losses_create(train, hyper_u32(set, HYPER_MICRO_BATCHES), &losses, err);
    if (status == FSDP_OK) {
        status = losses_create(train, set->valid_count, &valid, err);
    }
    FSDP_TRY_GOTO(setup_agree(train, status, err), err_losses);
    report_start(train);
    FSDP_TRY_GOTO(setup_load(train, err), err_losses);
    status = run_steps(train, &losses, &valid, err);

err_losses:
    losses_free(&losses);
    losses_free(&valid);
    return status;
}

fsdp_status_t loop_eval(train_t *train, fsdp_error_t *err)
{
    const settings_t *set = train->set;
    losses_t losses = {0};
    fsdp_status_t status = prepare(train, err);

    FSDP_TRY(setup_agree(train, status, err));
    FSDP_TRY(setup_model(train, hyper_u32(set, HYPER_BATCH),
                         hyper_u32(set, HYPER_SEQ), false, err));
    status = losses_create(train, set->valid_count, &losses, err);
    FSDP_TRY_GOTO(setup_agree(train, status, err), err_losses);
    report_start(train);
    FSDP_TRY_GOTO(setup_load(train, err), err_losses);
    status = validate(train, &losses, err);

err_losses:
    losses_free(&losses);
    return status;
}
