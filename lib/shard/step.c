/*
 * The state machine of a round: begin and end calls of units.
 */
#include "config.h"

#include "lib/shard/shard.h"

#include "lib/job/job.h"
#include "lib/util/check.h"
#include "lib/util/clock.h"

/* --- Time ----------------------------------------------------------------- */

/* The program computed until now, if a unit is open. */
static void clock_enter(fsdp_t *fsdp)
{
    if (fsdp->compute_since > 0.0) {
        fsdp->compute_seconds += clock_now() - fsdp->compute_since;
        fsdp->compute_since = 0.0;
    }
}

static void clock_leave(fsdp_t *fsdp)
{
    if (fsdp->num_open > 0) {
        fsdp->compute_since = clock_now();
    }
}

/* --- Rounds --------------------------------------------------------------- */

static fsdp_status_t check_round(const fsdp_t *fsdp, fsdp_mode_t mode,
                                 uint32_t round, fsdp_error_t *err)
{
    uint32_t next = fsdp->clipped ? 0 : fsdp->rounds_done;

    if ((unsigned)mode > FSDP_EVAL) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "a round is for training or evaluation, not %d",
                              (int)mode);
    }
    if (mode == FSDP_EVAL || round == next) {
        return FSDP_OK;
    }
    if (next == fsdp->rounds) {
        return fsdp_error_set(err, FSDP_ERR_BAD_STATE,
                              "round %u begins, but all %u rounds of the step "
                              "are done: call fsdp_clip()",
                              round, fsdp->rounds);
    }

    return fsdp_error_set(err, FSDP_ERR_BAD_STATE,
                          "round %u of a step begins where round %u of %u is "
                          "due",
                          round, next, fsdp->rounds);
}

fsdp_status_t fsdp_micro_begin(fsdp_t *fsdp, fsdp_mode_t mode, uint32_t round,
                               uint32_t count, uint32_t *micro_p,
                               fsdp_error_t *err)
{
    uint64_t micro = fsdp->rank + (uint64_t)fsdp->mesh.world * round;

    FSDP_TRY(shard_check_outside(fsdp, "a round begins", err));
    FSDP_TRY(check_round(fsdp, mode, round, err));

    fsdp->mode = mode;
    fsdp->round = round;
    if (mode == FSDP_TRAIN) {
        count = fsdp->config.micro_batches;
        fsdp->rounds_done = round;
        fsdp->clipped = false;
    }
    fsdp->micro = (micro < count) ? (uint32_t)micro : FSDP_IDLE;
    for (uint32_t i = 0; i < fsdp->num_units; i++) {
        fsdp->units[i]->forwards = 0;
        fsdp->units[i]->backwards = 0;
    }

    schedule_now(fsdp)->next_call = 0;
    FSDP_TRY(schedule_call(fsdp, CALL_ROUND_BEGIN, NULL, err));
    FSDP_TRY(gather_round_begin(fsdp, err));
    fsdp->in_round = true;

    *micro_p = fsdp->micro;
    return FSDP_OK;
}

static fsdp_status_t check_unit_done(const fsdp_unit_t *unit, fsdp_error_t *err)
{
    if (unit->open != NULL) {
        return fsdp_error_set(err, FSDP_ERR_BAD_STATE,
                              "the round ends while unit '%s' is open (%s)",
                              unit->name, unit->open);
    }
    if (unit->fsdp->mode != FSDP_TRAIN || !unit_trains(unit)) {
        return FSDP_OK;
    }
    if (unit->forwards == 0 || unit->forwards != unit->backwards) {
        return fsdp_error_set(
            err, FSDP_ERR_BAD_STATE,
            "the round ends, and unit '%s' has run forward %u times and "
            "backward %u times: each unit with trained parameters must run, "
            "backward as often as forward",
            unit->name, unit->forwards, unit->backwards);
    }

    return FSDP_OK;
}

fsdp_status_t fsdp_micro_end(fsdp_t *fsdp, fsdp_error_t *err)
{
    if (!fsdp->in_round) {
        return fsdp_error_set(err, FSDP_ERR_BAD_STATE,
                              "no round is there to end");
    }

    FSDP_TRY(schedule_call(fsdp, CALL_ROUND_END, NULL, err));
    for (uint32_t i = 0; i < fsdp->num_units; i++) {
        FSDP_TRY(check_unit_done(fsdp->units[i], err));
    }
    FSDP_TRY(gather_round_end(fsdp, err));

    fsdp->in_round = false;
    for (uint32_t i = 0; i < fsdp->num_units && fsdp->mode == FSDP_TRAIN; i++) {
        fsdp_unit_t *unit = fsdp->units[i];

        unit->begins = unit->forwards + unit->backwards;
    }
    if (fsdp->mode == FSDP_TRAIN) {
        fsdp->rounds_done++;
    }
    return FSDP_OK;
}

/* --- Units ---------------------------------------------------------------- */

static fsdp_status_t check_begin(const fsdp_unit_t *unit, const char *phase,
                                 fsdp_error_t *err)
{
    if (!unit->fsdp->in_round) {
        return fsdp_error_set(err, FSDP_ERR_BAD_STATE,
                              "unit '%s' begins %s outside a round: call "
                              "fsdp_micro_begin() first",
                              unit->name, phase);
    }
    if (unit->open != NULL) {
        return fsdp_error_set(err, FSDP_ERR_BAD_STATE,
                              "unit '%s' begins %s, but has not ended %s",
                              unit->name, phase, unit->open);
    }

    return FSDP_OK;
}

static fsdp_status_t check_end(const fsdp_unit_t *unit, const char *phase,
                               fsdp_error_t *err)
{
    if (unit->open != phase) {
        return fsdp_error_set(err, FSDP_ERR_BAD_STATE,
                              "unit '%s' ends %s, but %s%s", unit->name, phase,
                              unit->open ? "has begun " : "has not begun",
                              unit->open ? unit->open : "");
    }

    return FSDP_OK;
}

static const char forward[] = "forward", backward[] = "backward";

static fsdp_status_t begin_unit(fsdp_unit_t *unit, const char *phase,
                                call_op_t op, fsdp_error_t *err)
{
    fsdp_t *fsdp = unit->fsdp;

    FSDP_TRY(schedule_call(fsdp, op, unit, err));
    fsdp_job_set_phase(fsdp->job, phase, fsdp->step);
    FSDP_TRY(gather_begin(unit, err));
    unit->open = phase;
    fsdp->num_open++;
    return FSDP_OK;
}

static fsdp_status_t end_unit(fsdp_unit_t *unit, call_op_t op,
                              fsdp_error_t *err)
{
    fsdp_t *fsdp = unit->fsdp;

    FSDP_TRY(schedule_call(fsdp, op, unit, err));
    gather_end(unit);
    unit->open = NULL;
    fsdp->num_open--;
    return FSDP_OK;
}

fsdp_status_t fsdp_forward_begin(fsdp_unit_t *unit, fsdp_error_t *err)
{
    clock_enter(unit->fsdp);
    FSDP_TRY(check_begin(unit, forward, err));
    if (unit->forwards > 0 &&
        !(unit->flags & (FSDP_UNIT_ROOT | FSDP_UNIT_REUSED))) {
        return fsdp_error_set(err, FSDP_ERR_BAD_STATE,
                              "unit '%s' begins forward twice in a round: add "
                              "it with FSDP_UNIT_REUSED",
                              unit->name);
    }

    FSDP_TRY(begin_unit(unit, forward, CALL_FORWARD_BEGIN, err));
    unit->forwards++;
    clock_leave(unit->fsdp);
    return FSDP_OK;
}

fsdp_status_t fsdp_forward_end(fsdp_unit_t *unit, fsdp_error_t *err)
{
    clock_enter(unit->fsdp);
    FSDP_TRY(check_end(unit, forward, err));
    FSDP_TRY(end_unit(unit, CALL_FORWARD_END, err));
    clock_leave(unit->fsdp);
    return FSDP_OK;
}

fsdp_status_t fsdp_backward_begin(fsdp_unit_t *unit, fsdp_error_t *err)
{
    clock_enter(unit->fsdp);
    FSDP_TRY(check_begin(unit, backward, err));
    if (unit->fsdp->mode != FSDP_TRAIN || unit->backwards == unit->forwards) {
        return fsdp_error_set(
            err, FSDP_ERR_BAD_STATE,
            (unit->fsdp->mode != FSDP_TRAIN)
                ? "unit '%s' begins backward in an evaluation"
                : "unit '%s' begins backward more often than forward",
            unit->name);
    }

    FSDP_TRY(begin_unit(unit, backward, CALL_BACKWARD_BEGIN, err));
    if (unit->backwards++ == 0) {
        FSDP_TRY(reduce_begin(unit, err));
    }
    clock_leave(unit->fsdp);
    return FSDP_OK;
}

fsdp_status_t fsdp_backward_end(fsdp_unit_t *unit, fsdp_error_t *err)
{
    clock_enter(unit->fsdp);
    FSDP_TRY(check_end(unit, backward, err));
    FSDP_TRY(end_unit(unit, CALL_BACKWARD_END, err));
    if (unit->backwards == unit->forwards) {
        FSDP_TRY(reduce_submit(unit, err));
    }
    clock_leave(unit->fsdp);
    return FSDP_OK;
}
