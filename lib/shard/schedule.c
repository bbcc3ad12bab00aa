/*
 * The record of a round's calls, and the ranks' agreement on it.
 *
 * In the first round of each mode every call is compared over all ranks before
 * anything is exchanged for it, so that ranks which do different things learn
 * it from each other instead of waiting for ever.  Later rounds are compared
 * with the record, which costs nothing.
 */
#include "config.h"

#include "lib/shard/shard.h"

#include <stdio.h>
#include <stdlib.h>

#include "lib/util/check.h"

#define CALL_TEXT_MAX 160

static const char *const op_texts[] = {
    [CALL_ROUND_BEGIN] = "a round begins",
    [CALL_FORWARD_BEGIN] = "begins forward",
    [CALL_FORWARD_END] = "ends forward",
    [CALL_BACKWARD_BEGIN] = "begins backward",
    [CALL_BACKWARD_END] = "ends backward",
    [CALL_ROUND_END] = "the round ends",
};

static const char *const mode_texts[] = {
    [FSDP_TRAIN] = "training",
    [FSDP_EVAL] = "evaluation",
};

static const char *call_text(const fsdp_t *fsdp, const call_t *call,
                             char text[CALL_TEXT_MAX])
{
    if (call->unit < fsdp->num_units) {
        snprintf(text, CALL_TEXT_MAX, "unit '%.100s' %s",
                 fsdp->units[call->unit]->name, op_texts[call->op]);
    } else {
        snprintf(text, CALL_TEXT_MAX, "%s (%s)", op_texts[call->op],
                 mode_texts[call->mode]);
    }

    return text;
}

static bool calls_equal(const call_t *a, const call_t *b)
{
    return a->number == b->number && a->mode == b->mode && a->op == b->op &&
           a->unit == b->unit;
}

/* FNV-1a over the record so far. */
static uint64_t record_hash(const schedule_t *schedule)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (uint32_t i = 0; i < schedule->num_calls; i++) {
        const call_t *call = &schedule->calls[i];
        uint32_t words[] = {call->op, call->unit};

        for (size_t w = 0; w < sizeof(words) / sizeof(*words); w++) {
            for (unsigned byte = 0; byte < 4; byte++) {
                hash ^= words[w] >> (8 * byte) & 0xff;
                hash *= 0x100000001b3u;
            }
        }
    }

    return hash;
}

/* --- Agreement ------------------------------------------------------------ */

static fsdp_status_t call_differs(const fsdp_t *fsdp, uint32_t rank_a,
                                  uint32_t rank_b, fsdp_error_t *err)
{
    const call_t *a = &fsdp->calls[rank_a], *b = &fsdp->calls[rank_b];
    char text_a[CALL_TEXT_MAX], text_b[CALL_TEXT_MAX];
    fsdp_status_t status;

    if (calls_equal(a, b)) {
        status = fsdp_error_set(
            err, FSDP_ERR_MISMATCH,
            "ranks %u and %u have made different calls in this round of %s: "
            "all ranks must begin and end the same units in the same order",
            rank_a, rank_b, mode_texts[a->mode]);
    } else {
        status = fsdp_error_set(
            err, FSDP_ERR_MISMATCH,
            "call %u of the round is not the same on all ranks: on rank %u "
            "(%s) %s, on rank %u (%s) %s; all ranks must begin and end the "
            "same units in the same order",
            a->number, rank_a, fsdp_job_host(fsdp->job, rank_a),
            call_text(fsdp, a, text_a), rank_b,
            fsdp_job_host(fsdp->job, rank_b), call_text(fsdp, b, text_b));
    }
    if (err != NULL) {
        err->rank = (int)rank_b;
    }

    return status;
}

/* Worker: bring together what each rank calls now. */
static fsdp_status_t agree_job(comm_t *comm, void *arg, fsdp_error_t *err)
{
    fsdp_t *fsdp = arg;
    const call_t *calls = fsdp->calls;

    FSDP_TRY(comm_all_gather(comm, comm_all(comm), COMM_CONTROL, fsdp->calls,
                             sizeof(*fsdp->calls), err));
    for (uint32_t rank = 1; rank < comm_world(comm); rank++) {
        if (!calls_equal(&calls[0], &calls[rank]) ||
            calls[0].hash != calls[rank].hash) {
            return call_differs(fsdp, 0, rank, err);
        }
    }

    return FSDP_OK;
}

static fsdp_status_t schedule_agree(fsdp_t *fsdp, const call_t *call,
                                    fsdp_error_t *err)
{
    if (fsdp->mesh.world == 1) {
        return FSDP_OK;
    }

    fsdp->calls[fsdp->rank] = *call;
    return comm_run(fsdp->comm, agree_job, fsdp, "agreement on the order",
                    (call->unit != CALL_NO_UNIT) ? fsdp->units[call->unit]->name
                                                 : "the round",
                    err);
}

/* --- The record ----------------------------------------------------------- */

static fsdp_status_t schedule_record(fsdp_t *fsdp, const call_t *call,
                                     fsdp_error_t *err)
{
    schedule_t *schedule = schedule_now(fsdp);

    if (schedule->num_calls == schedule->max_calls) {
        uint32_t max = schedule->max_calls ? 2 * schedule->max_calls : 64;
        call_t *calls = realloc(schedule->calls, max * sizeof(*calls));

        if (calls == NULL) {
            return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                  "no memory for a record of %u calls", max);
        }
        schedule->calls = calls;
        schedule->max_calls = max;
    }

    schedule->calls[schedule->num_calls++] = *call;
    return FSDP_OK;
}

static fsdp_status_t schedule_compare(fsdp_t *fsdp, const call_t *call,
                                      fsdp_error_t *err)
{
    const schedule_t *schedule = schedule_now(fsdp);
    const call_t *want = &schedule->calls[call->number];
    char text_want[CALL_TEXT_MAX], text_got[CALL_TEXT_MAX];

    /* The last recorded call ends the round, so there is always one. */
    if (calls_equal(want, call)) {
        return FSDP_OK;
    }

    return fsdp_error_set(
        err, FSDP_ERR_MISMATCH,
        "call %u of the round is not the one of the first round: %s where %s "
        "was expected; each round must begin and end the same units in the "
        "same order",
        call->number, call_text(fsdp, call, text_got),
        call_text(fsdp, want, text_want));
}

/* A rank that leaves the schedule makes the others wait in vain: all later
 * calls of this one return the same error. */
static fsdp_status_t break_job(comm_t *comm, void *arg, fsdp_error_t *err)
{
    const fsdp_error_t *error = arg;

    (void)comm;
    if (err != NULL) {
        *err = *error;
    }
    return error->status;
}

fsdp_status_t schedule_call(fsdp_t *fsdp, call_op_t op, const fsdp_unit_t *unit,
                            fsdp_error_t *err)
{
    schedule_t *schedule = schedule_now(fsdp);
    fsdp_error_t error;
    call_t call = {
        .number = schedule->next_call,
        .mode = fsdp->mode,
        .op = op,
        .unit = (unit != NULL) ? unit->index : CALL_NO_UNIT,
    };

    if (schedule->recorded) {
        if (schedule_compare(fsdp, &call, &error) != FSDP_OK) {
            return comm_run(fsdp->comm, break_job, &error, "order of calls",
                            "the round", err);
        }
    } else {
        FSDP_TRY(schedule_record(fsdp, &call, err));
        if (op == CALL_ROUND_END) {
            call.hash = record_hash(schedule);
        }
        FSDP_TRY(schedule_agree(fsdp, &call, err));
        schedule->recorded = op == CALL_ROUND_END;
    }

    schedule->next_call++;
    return FSDP_OK;
}

void schedule_free(schedule_t *schedule)
{
    free(schedule->calls);
    free(schedule->gathers);
    *schedule = (schedule_t){0};
}
