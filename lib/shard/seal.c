/*
 * fsdp_seal(): one layout on all ranks, all memory, initial values.
 */
#include "config.h"

#include "lib/shard/shard.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/util/check.h"

/* Elements of one turn: 1 MiB of parameter, gradient and state. */
#define SPAN_MAX 65536
#define SCALARS_MIN 16 /* values of a rank in one exchange of scalars */
#define LINE_MAX_TEXT 192

/* --- Layout --------------------------------------------------------------- */

static fsdp_status_t lay_out_region(fsdp_unit_t *unit, region_id_t id,
                                    uint64_t *numels, uint64_t *starts,
                                    fsdp_error_t *err)
{
    region_t *region = &unit->regions[id];
    uint32_t num = 0;

    for (uint32_t i = 0; i < unit->num_params; i++) {
        if (unit->params[i]->region == id) {
            numels[num++] = unit->params[i]->numel;
        }
    }
    if (num == 0) {
        return FSDP_OK;
    }

    FSDP_TRY(fsdp_layout_unit(numels, num, unit->fsdp->mesh.shard, starts,
                              &region->length, err));
    num = 0;
    for (uint32_t i = 0; i < unit->num_params; i++) {
        if (unit->params[i]->region == id) {
            unit->params[i]->start = starts[num++];
        }
    }

    return FSDP_OK;
}

static fsdp_status_t lay_out_unit(fsdp_unit_t *unit, fsdp_error_t *err)
{
    uint64_t *tables =
        calloc(2 * (size_t)unit->num_params + 1, sizeof(*tables));
    fsdp_status_t status = FSDP_OK;

    if (tables == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for the layout of unit '%s'",
                              unit->name);
    }

    for (unsigned r = 0; r < NUM_REGIONS && status == FSDP_OK; r++) {
        status =
            lay_out_region(unit, r, tables, tables + unit->num_params, err);
    }
    unit->regions[REGION_FROZEN].first =
        unit->fsdp->mesh.shard * unit->regions[REGION_TRAINED].length;

    free(tables);
    return status;
}

/* --- The same on all ranks? ----------------------------------------------- */

/* All that must be equal, a line for each thing. */
static char *describe(const fsdp_t *fsdp)
{
    const fsdp_config_t *c = &fsdp->config;
    size_t size;
    char *text = NULL;
    FILE *out = open_memstream(&text, &size);

    if (out == NULL) {
        return NULL;
    }

    fprintf(out, "strategy %s, %u ranks a shard group\n",
            fsdp_strategy_name(c->strategy), fsdp->mesh.shard);
    fprintf(out,
            "%u micro-batches, prefetch %u, param dtype %d, reduce dtype "
            "%d, reshard root %d\n",
            c->micro_batches, c->prefetch, (int)c->param_dtype,
            (int)c->reduce_dtype, c->reshard_root);
    fprintf(out, "seed %" PRIu64 ", async save %d\n", c->seed, c->async_save);
    fprintf(out,
            "AdamW beta1 %.17g, beta2 %.17g, eps %.17g, weight decay %.17g\n",
            c->beta1, c->beta2, c->eps, c->weight_decay);
    for (uint32_t u = 0; u < fsdp->num_units; u++) {
        const fsdp_unit_t *unit = fsdp->units[u];

        fprintf(out, "unit '%s', flags %u\n", unit->name, unit->flags);
        for (uint32_t i = 0; i < unit->num_params; i++) {
            const fsdp_param_t *param = unit->params[i];

            fprintf(out, "parameter '%s'%s, init %d, std %.9g, shape",
                    param->name,
                    (param->region == REGION_FROZEN) ? ", frozen" : "",
                    (int)param->init, (double)param->std);
            for (uint32_t d = 0; d < param->ndim; d++) {
                fprintf(out, " %" PRIu64, param->dims[d]);
            }
            for (uint32_t a = 0; a < param->num_aliases; a++) {
                fprintf(out, ", also '%s'", param->aliases[a]);
            }
            fputc('\n', out);
        }
    }

    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

static uint64_t hash_text(const char *text, size_t size)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3u;
    }

    return hash;
}

/* What the ranks show each other. */
typedef struct {
    uint64_t hash;
    char text[LINE_MAX_TEXT];
} line_t;

typedef struct {
    fsdp_t *fsdp;
    const char *text; /* of this rank */
    line_t *lines;    /* one of each rank */
} compare_t;

static fsdp_status_t show(comm_t *comm, compare_t *compare, const char *text,
                          size_t size, fsdp_error_t *err)
{
    line_t *mine = &compare->lines[comm_rank(comm)];

    mine->hash = hash_text(text, size);
    snprintf(mine->text, sizeof(mine->text), "%.*s", (int)size, text);
    return comm_all_gather(comm, comm_all(comm), COMM_CONTROL, compare->lines,
                           sizeof(*compare->lines), err);
}

/* The first rank that shows something else than rank 0; 0: none. */
static uint32_t odd_one(comm_t *comm, const compare_t *compare)
{
    for (uint32_t rank = 1; rank < comm_world(comm); rank++) {
        if (compare->lines[rank].hash != compare->lines[0].hash) {
            return rank;
        }
    }

    return 0;
}

static fsdp_status_t compare_job(comm_t *comm, void *arg, fsdp_error_t *err)
{
    compare_t *compare = arg;
    const char *at = compare->text;
    fsdp_status_t status;
    uint32_t odd;

    FSDP_TRY(show(comm, compare, at, strlen(at), err));
    if (odd_one(comm, compare) == 0) {
        return FSDP_OK;
    }

    /* Something differs: find the line.  A rank whose text is over shows
     * empty ones. */
    do {
        size_t size = strcspn(at, "\n");

        FSDP_TRY(show(comm, compare, at, size, err));
        odd = odd_one(comm, compare);
        at += size + (at[size] == '\n');
    } while (odd == 0);

    status = fsdp_error_set(
        err, FSDP_ERR_MISMATCH,
        "the ranks have different layouts: rank 0 (%s) has %s, rank %u (%s) "
        "has %s",
        fsdp_job_host(compare->fsdp->job, 0),
        compare->lines[0].text[0] ? compare->lines[0].text : "no more", odd,
        fsdp_job_host(compare->fsdp->job, odd),
        compare->lines[odd].text[0] ? compare->lines[odd].text : "no more");
    if (err != NULL) {
        err->rank = (int)odd;
    }
    return status;
}

static fsdp_status_t compare_layouts(fsdp_t *fsdp, fsdp_error_t *err)
{
    char *text = describe(fsdp);
    compare_t compare = {
        .fsdp = fsdp,
        .text = text,
        .lines = calloc(fsdp->mesh.world, sizeof(line_t)),
    };
    fsdp_status_t status;

    if (text == NULL || compare.lines == NULL) {
        status = fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                "no memory to compare layouts");
    } else {
        status = comm_run(fsdp->comm, compare_job, &compare,
                          "comparison of layouts", NULL, err);
    }

    free(compare.lines);
    free(text);
    return status;
}

/* --- Memory --------------------------------------------------------------- */

static fsdp_status_t plan_optimizer(fsdp_t *fsdp, fsdp_error_t *err)
{
    for (uint32_t i = 0; i < fsdp->num_units; i++) {
        fsdp_unit_t *unit = fsdp->units[i];
        size_t bytes = unit->regions[REGION_TRAINED].length * sizeof(float);

        FSDP_TRY(memory_plan(fsdp, FSDP_MEM_OPTIMIZER, false, bytes,
                             &unit->exp_avg, err));
        FSDP_TRY(memory_plan(fsdp, FSDP_MEM_OPTIMIZER, false, bytes,
                             &unit->exp_avg_sq, err));
    }

    return FSDP_OK;
}

/* Buffers of what the ranks tell each other besides parameters and
 * gradients. */
static fsdp_status_t plan_control(fsdp_t *fsdp, fsdp_error_t *err)
{
    size_t world = fsdp->mesh.world;

    /* One more than a step's losses: what a program wants to agree on. */
    fsdp->scalars_each =
        (fsdp->rounds >= SCALARS_MIN) ? fsdp->rounds + 1 : SCALARS_MIN;
    FSDP_TRY(memory_plan(fsdp, FSDP_MEM_COMM, true,
                         world * sizeof(*fsdp->calls), &fsdp->calls, err));
    FSDP_TRY(memory_plan(fsdp, FSDP_MEM_COMM, true,
                         world * fsdp->scalars_each * sizeof(*fsdp->scalars),
                         &fsdp->scalars, err));
    FSDP_TRY(memory_plan(fsdp, FSDP_MEM_COMM, true,
                         world * EXACT_WORDS * sizeof(*fsdp->words),
                         &fsdp->words, err));

    fsdp->messages =
        calloc(2 * (size_t)fsdp->mesh.shard, sizeof(*fsdp->messages));
    if (fsdp->messages == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for messages to %u ranks",
                              fsdp->mesh.shard);
    }

    return FSDP_OK;
}

static fsdp_status_t plan_all(fsdp_t *fsdp, fsdp_error_t *err)
{
    FSDP_TRY(gather_plan(fsdp, err));
    FSDP_TRY(plan_optimizer(fsdp, err));
    FSDP_TRY(reduce_plan_memory(fsdp, err));
    FSDP_TRY(plan_control(fsdp, err));
    FSDP_TRY(save_plan(fsdp, err));
    return memory_allocate(fsdp, err);
}

/* --- Spans ---------------------------------------------------------------- */

static fsdp_status_t add_span(fsdp_t *fsdp, const span_t *span,
                              fsdp_error_t *err)
{
    span_t *spans = fsdp->spans;

    if ((fsdp->num_spans & (fsdp->num_spans - 1)) == 0) {
        spans =
            realloc(spans, 2 * ((size_t)fsdp->num_spans + 1) * sizeof(*spans));
        if (spans == NULL) {
            return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                  "no memory for the optimizer's spans");
        }
        fsdp->spans = spans;
    }

    spans[fsdp->num_spans++] = *span;
    return FSDP_OK;
}

/* Elements [first, end) of a shard, in spans of SPAN_MAX. */
static fsdp_status_t add_run(fsdp_unit_t *unit, uint64_t first, uint64_t end,
                             bool decay, fsdp_error_t *err)
{
    while (first < end) {
        uint64_t count = (end - first < SPAN_MAX) ? end - first : SPAN_MAX;
        span_t span = {unit, first, count, decay};

        FSDP_TRY(add_span(unit->fsdp, &span, err));
        first += count;
    }

    return FSDP_OK;
}

/* Cut the trained shard where weight decay changes.  Padding goes with what is
 * before it: it is zero and stays zero. */
static fsdp_status_t add_unit_spans(fsdp_unit_t *unit, fsdp_error_t *err)
{
    uint64_t begin = 0;
    bool decay = false;

    for (uint32_t i = 0; i < unit->num_params; i++) {
        const fsdp_param_t *param = unit->params[i];
        uint64_t first, at;

        if (param->region != REGION_TRAINED ||
            param_in_shard(param, unit->fsdp->shard_index, &first, &at) == 0) {
            continue;
        }
        if (decay != (param->ndim >= 2)) {
            FSDP_TRY(add_run(unit, begin, at, decay, err));
            begin = at;
            decay = param->ndim >= 2;
        }
    }

    return add_run(unit, begin, unit->regions[REGION_TRAINED].length, decay,
                   err);
}

static fsdp_status_t prepare_optimizer(fsdp_t *fsdp, fsdp_error_t *err)
{
    uint32_t threads = (fsdp->config.threads > 0) ? fsdp->config.threads : 1;

    for (uint32_t i = 0; i < fsdp->num_units; i++) {
        FSDP_TRY(add_unit_spans(fsdp->units[i], err));
    }
    fsdp->thread_sums = calloc(threads, sizeof(*fsdp->thread_sums));
    if (fsdp->thread_sums == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for %u threads", threads);
    }

    return pool_create(threads, &fsdp->pool, err);
}

/* --- Values --------------------------------------------------------------- */

static void init_param(const fsdp_param_t *param)
{
    const fsdp_t *fsdp = param->unit->fsdp;
    float *shard = param_shard(param, FSDP_VALUE);
    uint64_t first, at, count;

    count = param_in_shard(param, fsdp->shard_index, &first, &at);
    if (count > 0 && param->init == FSDP_INIT_NORMAL) {
        kernel_normal(shard + at,
                      kernel_init_key(fsdp->config.seed, param->name), first,
                      count, param->std);
    }
    if (count > 0 && param->init == FSDP_INIT_ONE) {
        for (uint64_t i = 0; i < count; i++) {
            shard[at + i] = 1.0f;
        }
    }
}

static fsdp_status_t seal_local(fsdp_t *fsdp, fsdp_error_t *err)
{
    FSDP_TRY(plan_all(fsdp, err));
    gather_place_masters(fsdp);
    reduce_place_sums(fsdp);
    FSDP_TRY(prepare_optimizer(fsdp, err));

    for (uint32_t u = 0; u < fsdp->num_units; u++) {
        for (uint32_t i = 0; i < fsdp->units[u]->num_params; i++) {
            init_param(fsdp->units[u]->params[i]);
        }
    }

    return FSDP_OK;
}

fsdp_status_t fsdp_seal(fsdp_t *fsdp, fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;
    fsdp_error_t mine;

    if (fsdp->sealed || fsdp->num_units == 0) {
        return fsdp_error_set(err, FSDP_ERR_BAD_STATE, "%s",
                              fsdp->sealed ? "the layout is sealed already"
                                           : "there is no unit to seal");
    }

    FSDP_TRY(compare_layouts(fsdp, err));
    for (uint32_t i = 0; i < fsdp->num_units && status == FSDP_OK; i++) {
        status = lay_out_unit(fsdp->units[i], &mine);
    }
    if (status == FSDP_OK) {
        status = seal_local(fsdp, &mine);
    }
    FSDP_TRY(fsdp_job_agree(fsdp->job, status, &mine, err));

    fsdp->sealed = true;
    comm_get_counters(fsdp->comm, &fsdp->comm_base);
    return FSDP_OK;
}
