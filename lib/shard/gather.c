/*
 * Whole parameters: slots, all-gathers and their prefetch.
 *
 * A unit that is gathered for one call takes one of the common slots, unless
 * it has a buffer of its own; a unit that is kept for the round always has
 * one.  Which gathers are issued when depends on the program's calls alone,
 * never on time: all ranks issue the same ones in the same order.
 */
#include "config.h"

#include "lib/shard/shard.h"

#include <stdlib.h>
#include <string.h>

#include "lib/util/check.h"

/* --- Memory --------------------------------------------------------------- */

static keep_t unit_keep(const fsdp_unit_t *unit)
{
    const fsdp_config_t *config = &unit->fsdp->config;

    if (unit->fsdp->mesh.shard == 1 || unit_elements(unit) == 0) {
        return KEEP_ALWAYS;
    }
    if (unit->flags & FSDP_UNIT_ROOT) {
        return config->reshard_root ? KEEP_CALL : KEEP_ROUND;
    }

    return (config->strategy == FSDP_STRATEGY_GRAD_OP) ? KEEP_ROUND : KEEP_CALL;
}

/* Does a buffer of the unit's own hold its gathered parameters? */
static bool unit_has_buffer(const fsdp_unit_t *unit)
{
    if (unit->keep == KEEP_ALWAYS) {
        return unit->fsdp->config.param_dtype != FSDP_F32;
    }

    return unit->keep == KEEP_ROUND || (unit->flags & FSDP_UNIT_ROOT);
}

/* A buffer that no other unit uses can hold the fp32 master shard in its
 * place: other ranks' shards are received around it. */
static bool master_in_buffer(const fsdp_unit_t *unit)
{
    return unit->own_param.data != NULL &&
           unit->fsdp->config.param_dtype == FSDP_F32;
}

static fsdp_status_t plan_unit(fsdp_unit_t *unit, uint64_t *largest_p,
                               fsdp_error_t *err)
{
    fsdp_t *fsdp = unit->fsdp;
    size_t size = dtype_size(fsdp->config.param_dtype);

    unit->keep = unit_keep(unit);
    unit->stale = true;
    if (unit_has_buffer(unit)) {
        FSDP_TRY(memory_plan(fsdp, FSDP_MEM_PARAM_SLOT, true,
                             unit_elements(unit) * size, &unit->own_param.data,
                             err));
        if (fsdp->config.param_dtype == FSDP_F32) {
            return FSDP_OK; /* gather_place_masters() */
        }
    } else if (unit->keep == KEEP_CALL && unit_elements(unit) > *largest_p) {
        *largest_p = unit_elements(unit);
    }

    for (unsigned r = 0; r < NUM_REGIONS; r++) {
        FSDP_TRY(memory_plan(fsdp, FSDP_MEM_MASTER, false,
                             unit->regions[r].length * sizeof(float),
                             &unit->regions[r].value, err));
    }

    return FSDP_OK;
}

fsdp_status_t gather_plan(fsdp_t *fsdp, fsdp_error_t *err)
{
    size_t size = dtype_size(fsdp->config.param_dtype);
    uint64_t largest = 0;

    for (uint32_t i = 0; i < fsdp->num_units; i++) {
        FSDP_TRY(plan_unit(fsdp->units[i], &largest, err));
    }

    fsdp->num_param_slots = (largest > 0) ? fsdp->config.prefetch + 1 : 0;
    for (uint32_t i = 0; i < fsdp->num_param_slots; i++) {
        FSDP_TRY(memory_plan(fsdp, FSDP_MEM_PARAM_SLOT, true, largest * size,
                             &fsdp->param_slots[i].data, err));
    }

    return FSDP_OK;
}

/* Where the shard of a region lies in the gathered unit. */
static void *own_place(const fsdp_unit_t *unit, const region_t *region,
                       void *whole)
{
    const fsdp_t *fsdp = unit->fsdp;
    uint64_t at = region->first + fsdp->shard_index * region->length;

    return (char *)whole + at * dtype_size(fsdp->config.param_dtype);
}

void gather_place_masters(fsdp_t *fsdp)
{
    for (uint32_t i = 0; i < fsdp->num_units; i++) {
        fsdp_unit_t *unit = fsdp->units[i];

        for (unsigned r = 0; r < NUM_REGIONS && master_in_buffer(unit); r++) {
            unit->regions[r].value =
                own_place(unit, &unit->regions[r], unit->own_param.data);
        }
    }
}

/* --- The worker's part ---------------------------------------------------- */

static void fill_own_place(const fsdp_unit_t *unit, const region_t *region,
                           void *whole)
{
    void *place = own_place(unit, region, whole);

    if (place == (void *)region->value) {
        return;
    }
    if (unit->fsdp->config.param_dtype == FSDP_BF16) {
        kernel_to_bf16(place, region->value, region->length);
    } else {
        memcpy(place, region->value, region->length * sizeof(float));
    }
}

static fsdp_status_t gather_job(comm_t *comm, void *arg, fsdp_error_t *err)
{
    const gather_t *gather = arg;
    const fsdp_unit_t *unit = gather->unit;
    fsdp_t *fsdp = unit->fsdp;
    size_t size = dtype_size(fsdp->config.param_dtype);

    for (unsigned r = 0; r < NUM_REGIONS; r++) {
        const region_t *region = &unit->regions[r];

        if (region->length > 0) {
            fill_own_place(unit, region, gather->slot->data);
            FSDP_TRY(comm_all_gather(comm, &fsdp->shard_group, COMM_GATHER,
                                     (char *)gather->slot->data +
                                         region->first * size,
                                     region->length * size, err));
        }
    }

    return FSDP_OK;
}

/* --- Issue ---------------------------------------------------------------- */

static param_slot_t *find_slot(fsdp_unit_t *unit)
{
    fsdp_t *fsdp = unit->fsdp;

    if (unit->own_param.data != NULL) {
        return unit->own_param.busy ? NULL : &unit->own_param;
    }
    for (uint32_t i = 0; i < fsdp->num_param_slots; i++) {
        if (!fsdp->param_slots[i].busy) {
            return &fsdp->param_slots[i];
        }
    }

    return NULL;
}

/* Issue the next gather of the schedule; *issued_p false if no slot is free. */
static fsdp_status_t issue_next(fsdp_t *fsdp, bool *issued_p, fsdp_error_t *err)
{
    schedule_t *schedule = schedule_now(fsdp);
    gather_t *gather = &schedule->gathers[schedule->issued];
    param_slot_t *slot = find_slot(gather->unit);

    *issued_p = false;
    if (slot == NULL) {
        return FSDP_OK;
    }

    slot->busy = true;
    gather->slot = slot;
    FSDP_TRY(comm_submit(fsdp->comm, gather_job, gather, "all-gather",
                         gather->unit->name, &gather->ticket, err));
    fsdp->last_ticket = gather->ticket;
    schedule->issued++;
    *issued_p = true;
    return FSDP_OK;
}

/* Issue gathers ahead, up to number @a end of the schedule. */
static fsdp_status_t issue_ahead(fsdp_t *fsdp, uint32_t end, fsdp_error_t *err)
{
    schedule_t *schedule = schedule_now(fsdp);
    bool issued = true;

    while (issued && schedule->issued < end &&
           schedule->issued < schedule->num_gathers) {
        FSDP_TRY(issue_next(fsdp, &issued, err));
    }

    return FSDP_OK;
}

fsdp_status_t gather_round_begin(fsdp_t *fsdp, fsdp_error_t *err)
{
    schedule_t *schedule = schedule_now(fsdp);

    schedule->issued = 0;
    schedule->begun = 0;
    return schedule->recorded ? issue_ahead(fsdp, fsdp->config.prefetch, err)
                              : FSDP_OK;
}

/* In the round that is recorded: one more gather. */
static fsdp_status_t append_gather(fsdp_unit_t *unit, fsdp_error_t *err)
{
    schedule_t *schedule = schedule_now(unit->fsdp);

    if (schedule->num_gathers == schedule->max_gathers) {
        uint32_t max = schedule->max_gathers ? 2 * schedule->max_gathers : 64;
        gather_t *gathers = realloc(schedule->gathers, max * sizeof(*gathers));

        if (gathers == NULL) {
            return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                  "no memory for a record of %u gathers", max);
        }
        schedule->gathers = gathers;
        schedule->max_gathers = max;
    }

    schedule->gathers[schedule->num_gathers++] = (gather_t){.unit = unit};
    return FSDP_OK;
}

static fsdp_status_t no_slot(const fsdp_unit_t *unit, fsdp_error_t *err)
{
    const fsdp_t *fsdp = unit->fsdp;

    return fsdp_error_set(
        err, FSDP_ERR_BAD_STATE,
        "unit '%s' begins while %u others are open: there are prefetch + 1 = "
        "%u slots; end units first, or raise prefetch",
        unit->name, fsdp->num_open, fsdp->num_param_slots);
}

/* F = 1: nothing is exchanged. */
static void begin_local(fsdp_unit_t *unit)
{
    if (unit->own_param.data != NULL && unit->stale) {
        for (unsigned r = 0; r < NUM_REGIONS; r++) {
            fill_own_place(unit, &unit->regions[r], unit->own_param.data);
        }
        unit->stale = false;
    }
    unit->param_slot = &unit->own_param;
}

fsdp_status_t gather_begin(fsdp_unit_t *unit, fsdp_error_t *err)
{
    fsdp_t *fsdp = unit->fsdp;
    schedule_t *schedule = schedule_now(fsdp);
    gather_t *gather;

    if (unit->keep == KEEP_ALWAYS) {
        begin_local(unit);
        return FSDP_OK;
    }
    if (unit->param_slot != NULL) {
        return FSDP_OK; /* kept since earlier in the round */
    }

    if (!schedule->recorded) {
        FSDP_TRY(append_gather(unit, err));
    }
    FSDP_TRY(issue_ahead(fsdp, schedule->begun + 1, err));
    if (schedule->issued <= schedule->begun) {
        return no_slot(unit, err);
    }
    gather = &schedule->gathers[schedule->begun++];
    FSDP_TRY(issue_ahead(fsdp, schedule->begun + fsdp->config.prefetch, err));
    FSDP_TRY(comm_wait(fsdp->comm, gather->ticket, err));

    unit->param_slot = gather->slot;
    return FSDP_OK;
}

void gather_end(fsdp_unit_t *unit)
{
    if (unit->keep == KEEP_CALL) {
        unit->param_slot->busy = false;
        unit->param_slot = NULL;
    }
}

fsdp_status_t gather_round_end(fsdp_t *fsdp, fsdp_error_t *err)
{
    schedule_t *schedule = schedule_now(fsdp);
    fsdp_status_t status = FSDP_OK;

    if (schedule->issued > schedule->begun) {
        status = comm_wait(fsdp->comm,
                           schedule->gathers[schedule->issued - 1].ticket, err);
    }
    for (uint32_t i = 0; i < fsdp->num_units; i++) {
        fsdp->units[i]->param_slot = NULL;
        fsdp->units[i]->own_param.busy = false;
    }
    for (uint32_t i = 0; i < fsdp->num_param_slots; i++) {
        fsdp->param_slots[i].busy = false;
    }

    return status;
}

const void *fsdp_param_data(const fsdp_param_t *param)
{
    const fsdp_unit_t *unit = param->unit;
    const fsdp_t *fsdp = unit->fsdp;
    const region_t *region = &unit->regions[param->region];
    const char *whole;

    if (unit->open == NULL) {
        return NULL;
    }
    if (unit->keep == KEEP_ALWAYS && unit->own_param.data == NULL) {
        return region->value + param->start; /* the master itself */
    }

    whole = unit->param_slot->data;
    return whole + (region->first + param->start) *
                       dtype_size(fsdp->config.param_dtype);
}
