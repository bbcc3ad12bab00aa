/*
 * Gradients: slots, and their reduction along the fixed tree.
 *
 * The reduction of a unit is one job of the worker.  It has one or two stages
 * of the same kind: each rank of a group is responsible for one slice, gets
 * that slice of the inputs of all others, and adds them up in the order of the
 * tree.  Inputs are micro-batch gradients, or sums of whole subtrees (nodes).
 *
 *     one rank, F = W   final stage in the shard group; a slice is a shard
 *     F = 1             final stage over the replicas; a slice is the rank's
 *                       part of the whole unit
 *     1 < F < W         group stage in the shard group, which leaves nodes;
 *                       final stage over the replicas, a slice is a part of
 *                       the shard
 *
 * Slices cross in chunks: while one is added up, the next is on its way.
 * After the last round of a step the parts of the replicas are gathered.
 */
#include "config.h"

#include "lib/shard/shard.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "lib/util/check.h"

#define STAGING_BYTES (2u << 20) /* received at once, about: two of these */
#define CHUNK_MIN     4096       /* elements, so that messages are not tiny */

static uint64_t round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* --- Plan ----------------------------------------------------------------- */

/* Inputs that a member of the stage's group has in a round. */
static uint32_t member_inputs(const fsdp_t *fsdp, const stage_t *stage,
                              uint32_t round, uint32_t member)
{
    const sum_tree_t *tree = fsdp->reduction.tree;

    if (stage->micro) {
        uint64_t micro =
            stage->group->ranks[member] + (uint64_t)fsdp->mesh.world * round;

        return micro < fsdp->config.micro_batches;
    }

    return tree->group[round * fsdp->mesh.replicas + member].num_nodes;
}

/* @return the inputs of all members. */
static uint32_t count_inputs(const fsdp_t *fsdp, const stage_t *stage,
                             uint32_t round)
{
    uint32_t num = 0;

    for (uint32_t member = 0; member < stage->group->size; member++) {
        stage->input_at[member] = num;
        num += member_inputs(fsdp, stage, round, member);
    }
    stage->input_at[stage->group->size] = num;

    return num;
}

static size_t stage_element(const stage_t *stage)
{
    return stage->bf16 ? 2 : 4;
}

static fsdp_status_t plan_stage(fsdp_t *fsdp, stage_t *stage, uint64_t slice,
                                size_t *staging_p, fsdp_error_t *err)
{
    uint32_t size = stage->group->size, most = 1, sends = 1;
    uint64_t chunk;

    stage->input_at = calloc(size + 1, sizeof(*stage->input_at));
    if (stage->input_at == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for a group of %u ranks", size);
    }
    for (uint32_t round = 0; round < fsdp->rounds; round++) {
        uint32_t num = count_inputs(fsdp, stage, round);
        uint32_t mine = member_inputs(fsdp, stage, round, stage->group->index);

        most = (num > most) ? num : most;
        sends = (mine > sends) ? mine : sends;
    }

    chunk = STAGING_BYTES / (most * stage_element(stage));
    chunk =
        round_up((chunk > CHUNK_MIN) ? chunk : CHUNK_MIN, FSDP_LAYOUT_ALIGN);
    stage->chunk = (chunk < slice) ? chunk : slice;
    if (size > 1 && *staging_p < most * stage->chunk * stage_element(stage)) {
        *staging_p = most * stage->chunk * stage_element(stage);
    }

    stage->inputs = calloc(most, sizeof(*stage->inputs));
    stage->recvs = calloc(most, sizeof(*stage->recvs));
    stage->sends = calloc((size_t)sends * size, sizeof(*stage->sends));
    if (stage->inputs == NULL || stage->recvs == NULL || stage->sends == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for %u messages", most);
    }

    return FSDP_OK;
}

/* The sum of a unit, and what waits for its siblings between rounds. */
static fsdp_status_t plan_sums(fsdp_unit_t *unit, fsdp_error_t *err)
{
    fsdp_t *fsdp = unit->fsdp;
    uint32_t num = fsdp->reduction.tree->final_registers;
    uint64_t length = unit->regions[REGION_TRAINED].length;

    unit->sums = calloc(num, sizeof(*unit->sums));
    if (unit->sums == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for %u partial sums", num);
    }

    unit->part_length = length;
    if (fsdp->mesh.replicas > 1) {
        unit->part_length =
            round_up(length, FSDP_LAYOUT_ALIGN * fsdp->mesh.replicas) /
            fsdp->mesh.replicas;
    }
    FSDP_TRY(
        memory_plan(fsdp, FSDP_MEM_GRAD_SHARD, true,
                    unit->part_length * fsdp->mesh.replicas * sizeof(float),
                    &unit->grad, err));
    for (uint32_t k = 1; k < num; k++) {
        FSDP_TRY(memory_plan(fsdp, FSDP_MEM_GRAD_SHARD, false,
                             unit->part_length * sizeof(float), &unit->sums[k],
                             err));
    }

    return FSDP_OK;
}

/* Elements that a gradient slot needs for the unit: slices of equal length for
 * all ranks of the stage that takes them. */
static uint64_t slot_elements(const fsdp_unit_t *unit)
{
    const fsdp_t *fsdp = unit->fsdp;

    return (fsdp->mesh.shard == 1)
               ? unit->part_length * fsdp->mesh.replicas
               : unit->regions[REGION_TRAINED].length * fsdp->mesh.shard;
}

static fsdp_status_t plan_slots(fsdp_t *fsdp, fsdp_error_t *err)
{
    size_t size = dtype_size(fsdp->config.reduce_dtype);
    uint64_t largest = 0;
    uint32_t sharing = 0;

    for (uint32_t i = 0; i < fsdp->num_units; i++) {
        fsdp_unit_t *unit = fsdp->units[i];
        uint64_t elements = slot_elements(unit);

        if (unit->flags & (FSDP_UNIT_ROOT | FSDP_UNIT_REUSED)) {
            FSDP_TRY(memory_plan(fsdp, FSDP_MEM_GRAD_SLOT, true,
                                 elements * size, &unit->own_grad.data, err));
        } else if (unit_trains(unit)) {
            sharing++;
            largest = (elements > largest) ? elements : largest;
        }
    }

    fsdp->num_grad_slots = (sharing < 2) ? sharing : 2;
    for (uint32_t i = 0; i < fsdp->num_grad_slots; i++) {
        FSDP_TRY(memory_plan(fsdp, FSDP_MEM_GRAD_SLOT, true, largest * size,
                             &fsdp->grad_slots[i].data, err));
    }

    return FSDP_OK;
}

/* What the group stage leaves for the final one. */
static fsdp_status_t plan_nodes(fsdp_t *fsdp, uint64_t longest,
                                fsdp_error_t *err)
{
    reduction_t *reduction = &fsdp->reduction;
    uint32_t num = reduction->tree->group_registers;

    reduction->nodes = calloc(num, sizeof(*reduction->nodes));
    if (reduction->nodes == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for %u node sums", num);
    }
    for (uint32_t k = 0; k < num; k++) {
        FSDP_TRY(memory_plan(fsdp, FSDP_MEM_GRAD_SHARD, true,
                             longest * fsdp->mesh.replicas * sizeof(float),
                             &reduction->nodes[k], err));
    }

    return FSDP_OK;
}

fsdp_status_t reduce_plan_memory(fsdp_t *fsdp, fsdp_error_t *err)
{
    reduction_t *reduction = &fsdp->reduction;
    bool replicas = fsdp->mesh.replicas > 1;
    bool bf16 = fsdp->config.reduce_dtype == FSDP_BF16;
    uint64_t shard = 0, part = 0; /* the longest ones */
    size_t staging = 0;

    FSDP_TRY(sum_tree_create(fsdp->config.micro_batches, fsdp->mesh.world,
                             fsdp->mesh.shard, &reduction->tree, err));
    for (uint32_t i = 0; i < fsdp->num_units; i++) {
        fsdp_unit_t *unit = fsdp->units[i];
        uint64_t length = unit->regions[REGION_TRAINED].length;

        FSDP_TRY(plan_sums(unit, err));
        shard = (length > shard) ? length : shard;
        part = (unit->part_length > part) ? unit->part_length : part;
    }

    reduction->two_stages = replicas && fsdp->mesh.shard > 1;
    reduction->final = (stage_t){
        .group = replicas ? &fsdp->replica_group : &fsdp->shard_group,
        .class = replicas ? COMM_REPLICA : COMM_REDUCE,
        .micro = !reduction->two_stages,
        .bf16 = bf16 && !reduction->two_stages,
    };
    FSDP_TRY(plan_stage(fsdp, &reduction->final, part, &staging, err));
    if (reduction->two_stages) {
        reduction->group = (stage_t){.group = &fsdp->shard_group,
                                     .class = COMM_REDUCE,
                                     .micro = true,
                                     .bf16 = bf16};
        FSDP_TRY(plan_stage(fsdp, &reduction->group, shard, &staging, err));
        FSDP_TRY(plan_nodes(fsdp, part, err));
    }
    for (unsigned i = 0; i < 2; i++) {
        FSDP_TRY(memory_plan(fsdp, FSDP_MEM_COMM, true, staging,
                             &reduction->staging[i], err));
    }

    return plan_slots(fsdp, err);
}

void reduce_place_sums(fsdp_t *fsdp)
{
    for (uint32_t i = 0; i < fsdp->num_units; i++) {
        fsdp_unit_t *unit = fsdp->units[i];

        if (unit->grad != NULL) {
            unit->sums[0] =
                unit->grad + fsdp->replica_index * unit->part_length;
        }
    }
}

static void free_stage(stage_t *stage)
{
    free(stage->input_at);
    free(stage->inputs);
    free(stage->sends);
    free(stage->recvs);
}

void reduce_free(fsdp_t *fsdp)
{
    reduction_t *reduction = &fsdp->reduction;

    free_stage(&reduction->group);
    free_stage(&reduction->final);
    free(reduction->nodes);
    sum_tree_free(reduction->tree);
}

/* --- The worker's part ---------------------------------------------------- */

/* One stage of one unit's reduction. */
typedef struct {
    fsdp_t *fsdp;
    const stage_t *stage;
    const sum_plan_t *plan;
    void *const *sources; /* this rank's inputs, whole */
    float *const *sums;   /* registers of the plan, of a slice */
    uint64_t slice;
} pass_t;

static char *strip(const pass_t *pass, uint32_t source, uint32_t member,
                   uint64_t first)
{
    return (char *)pass->sources[source] +
           (member * pass->slice + first) * stage_element(pass->stage);
}

/* Where input @a input of a chunk is received. */
static char *received(const pass_t *pass, unsigned buffer, uint32_t input)
{
    return (char *)pass->fsdp->reduction.staging[buffer] +
           input * pass->stage->chunk * stage_element(pass->stage);
}

static uint64_t chunk_length(const pass_t *pass, uint64_t first)
{
    uint64_t left = pass->slice - first;

    return (left < pass->stage->chunk) ? left : pass->stage->chunk;
}

static uint32_t inputs_of(const stage_t *stage, uint32_t member)
{
    return stage->input_at[member + 1] - stage->input_at[member];
}

/* Start to exchange elements from @a first on of every slice. */
static fsdp_status_t start_chunk(comm_t *comm, const pass_t *pass,
                                 unsigned buffer, uint64_t first,
                                 fsdp_error_t *err)
{
    const stage_t *stage = pass->stage;
    const comm_group_t *group = stage->group;
    size_t bytes = chunk_length(pass, first) * stage_element(stage);
    size_t nsends = 0, nrecvs = 0;

    for (uint32_t step = 1; step < group->size; step++) {
        uint32_t to = (group->index + step) % group->size;
        uint32_t from = (group->index + group->size - step) % group->size;

        for (uint32_t k = 0; k < inputs_of(stage, group->index); k++) {
            stage->sends[nsends++] = (comm_message_t){
                group->ranks[to], strip(pass, k, to, first), bytes};
        }
        for (uint32_t k = 0; k < inputs_of(stage, from); k++) {
            stage->recvs[nrecvs++] = (comm_message_t){
                group->ranks[from],
                received(pass, buffer, stage->input_at[from] + k), bytes};
        }
    }

    return comm_exchange_start(comm, buffer, stage->class, stage->sends, nsends,
                               stage->recvs, nrecvs, err);
}

static void sum_chunk(const pass_t *pass, unsigned buffer, uint64_t first)
{
    const stage_t *stage = pass->stage;
    uint32_t me = stage->group->index;

    for (uint32_t i = 0; i < pass->plan->num_inputs; i++) {
        stage->inputs[i] = received(pass, buffer, i);
    }
    for (uint32_t k = 0; k < inputs_of(stage, me); k++) {
        stage->inputs[stage->input_at[me] + k] = strip(pass, k, me, first);
    }

    sum_plan_run(pass->plan, stage->inputs, stage->bf16, pass->sums, first,
                 chunk_length(pass, first));
}

static fsdp_status_t run_pass(comm_t *comm, const pass_t *pass,
                              fsdp_error_t *err)
{
    uint64_t chunk = pass->stage->chunk;
    bool alone = pass->stage->group->size == 1;
    unsigned buffer = 0;

    if (!alone) {
        FSDP_TRY(start_chunk(comm, pass, buffer, 0, err));
    }
    for (uint64_t first = 0; first < pass->slice; first += chunk) {
        if (!alone && first + chunk < pass->slice) {
            FSDP_TRY(start_chunk(comm, pass, !buffer, first + chunk, err));
        }
        if (!alone) {
            FSDP_TRY(comm_exchange_wait(comm, buffer, err));
        }
        sum_chunk(pass, buffer, first);
        buffer = !buffer;
    }

    return FSDP_OK;
}

static fsdp_status_t run_stage(comm_t *comm, pass_t *pass, uint32_t round,
                               fsdp_error_t *err)
{
    uint32_t inputs = count_inputs(pass->fsdp, pass->stage, round);

    assert(inputs == pass->plan->num_inputs);
    (void)inputs;
    return run_pass(comm, pass, err);
}

static fsdp_status_t reduce_job(comm_t *comm, void *arg, fsdp_error_t *err)
{
    const grad_slot_t *slot = arg;
    fsdp_unit_t *unit = slot->unit;
    fsdp_t *fsdp = unit->fsdp;
    reduction_t *reduction = &fsdp->reduction;
    void *const gradient[] = {slot->data};
    pass_t pass = {.fsdp = fsdp, .sources = gradient};

    if (reduction->two_stages) {
        pass.stage = &reduction->group;
        pass.plan = &reduction->tree->group[slot->round * fsdp->mesh.replicas +
                                            fsdp->replica_index];
        pass.sums = reduction->nodes;
        pass.slice = unit->regions[REGION_TRAINED].length;
        FSDP_TRY(run_stage(comm, &pass, slot->round, err));
        pass.sources = (void *const *)reduction->nodes;
    }

    pass.stage = &reduction->final;
    pass.plan = &reduction->tree->final[slot->round];
    pass.sums = unit->sums;
    pass.slice = unit->part_length;
    FSDP_TRY(run_stage(comm, &pass, slot->round, err));

    if (slot->round + 1 == fsdp->rounds) {
        FSDP_TRY(comm_all_gather(comm, &fsdp->replica_group, COMM_REPLICA,
                                 unit->grad, unit->part_length * sizeof(float),
                                 err));
    }

    return FSDP_OK;
}

/* --- Slots ---------------------------------------------------------------- */

/* The slot for the next gradients of a unit, which may still be read by a
 * reduction; NULL if all are with open units. */
static grad_slot_t *next_slot(fsdp_unit_t *unit)
{
    fsdp_t *fsdp = unit->fsdp;

    if (unit->own_grad.data != NULL) {
        return &unit->own_grad;
    }
    for (uint32_t i = 1; i <= fsdp->num_grad_slots; i++) {
        uint32_t k = (fsdp->last_grad_slot + i) % fsdp->num_grad_slots;

        if (!fsdp->grad_slots[k].held) {
            fsdp->last_grad_slot = k;
            return &fsdp->grad_slots[k];
        }
    }

    return NULL;
}

fsdp_status_t reduce_begin(fsdp_unit_t *unit, fsdp_error_t *err)
{
    fsdp_t *fsdp = unit->fsdp;
    size_t size = dtype_size(fsdp->config.reduce_dtype);
    grad_slot_t *slot;

    if (!unit_trains(unit)) {
        return FSDP_OK;
    }
    slot = next_slot(unit);
    if (slot == NULL) {
        return fsdp_error_set(
            err, FSDP_ERR_BAD_STATE,
            "unit '%s' begins backward while %u others have not ended it: end "
            "units first, or add it with FSDP_UNIT_REUSED",
            unit->name, fsdp->num_grad_slots);
    }

    FSDP_TRY(comm_wait(fsdp->comm, slot->ticket, err));
    slot->unit = unit;
    slot->held = true;
    slot->round = fsdp->round;
    if (fsdp->micro != FSDP_IDLE) {
        memset(slot->data, 0, slot_elements(unit) * size);
    }

    unit->grad_slot = slot;
    return FSDP_OK;
}

fsdp_status_t reduce_submit(fsdp_unit_t *unit, fsdp_error_t *err)
{
    fsdp_t *fsdp = unit->fsdp;
    grad_slot_t *slot = unit->grad_slot;

    if (slot == NULL) {
        return FSDP_OK;
    }

    unit->grad_slot = NULL;
    slot->held = false;
    FSDP_TRY(comm_submit(fsdp->comm, reduce_job, slot, "reduction", unit->name,
                         &slot->ticket, err));
    fsdp->last_ticket = slot->ticket;
    return FSDP_OK;
}

void *fsdp_param_grad(const fsdp_param_t *param)
{
    const fsdp_unit_t *unit = param->unit;

    if (param->region == REGION_FROZEN || unit->grad_slot == NULL) {
        return NULL;
    }

    return (char *)unit->grad_slot->data +
           param->start * dtype_size(unit->fsdp->config.reduce_dtype);
}
