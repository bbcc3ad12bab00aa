/*
 * Building the layout: create, add units and parameters, destroy.
 */
#include "config.h"

#include "lib/shard/shard.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/job/job.h"
#include "lib/util/check.h"

#define MAX_NDIM 32

static fsdp_status_t no_memory(const char *what, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "no memory for %s", what);
}

/* --- Create --------------------------------------------------------------- */

static bool fraction(double x)
{
    return x >= 0.0 && x < 1.0;
}

static fsdp_status_t check_config(const fsdp_config_t *config,
                                  fsdp_error_t *err)
{
    if (config->strategy == FSDP_STRATEGY_CHUNK) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "chunk is a strategy of checkpoints only: train "
                              "with full, grad-op, hybrid:F or none");
    }
    if (config->micro_batches == 0) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "a step needs at least one micro-batch");
    }
    if (config->prefetch > SHARD_MAX_PREFETCH) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "prefetch is %u, but may be at most %d",
                              config->prefetch, SHARD_MAX_PREFETCH);
    }
    if ((unsigned)config->param_dtype > FSDP_BF16 ||
        (unsigned)config->reduce_dtype > FSDP_BF16) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "param and reduce dtype must be FSDP_F32 or "
                              "FSDP_BF16");
    }
    if (!fraction(config->beta1) || !fraction(config->beta2) ||
        !(config->eps >= 0.0) || !isfinite(config->eps) ||
        !isfinite(config->weight_decay)) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "AdamW with beta1 %g, beta2 %g, eps %g and "
                              "weight decay %g makes no sense",
                              config->beta1, config->beta2, config->eps,
                              config->weight_decay);
    }

    return FSDP_OK;
}

/* This rank's place in the mesh, and the ranks of its two groups. */
static fsdp_status_t place_rank(fsdp_t *fsdp, fsdp_error_t *err)
{
    uint32_t shard = fsdp->mesh.shard, replicas = fsdp->mesh.replicas;

    fsdp->shard_index = fsdp->rank % shard;
    fsdp->replica_index = fsdp->rank / shard;
    fsdp->group_ranks =
        calloc((size_t)shard + replicas, sizeof(*fsdp->group_ranks));
    if (fsdp->group_ranks == NULL) {
        return no_memory("the groups of ranks", err);
    }

    for (uint32_t i = 0; i < shard; i++) {
        fsdp->group_ranks[i] = fsdp->replica_index * shard + i;
    }
    for (uint32_t i = 0; i < replicas; i++) {
        fsdp->group_ranks[shard + i] = i * shard + fsdp->shard_index;
    }
    fsdp->shard_group =
        (comm_group_t){shard, fsdp->shard_index, fsdp->group_ranks};
    fsdp->replica_group = (comm_group_t){replicas, fsdp->replica_index,
                                         fsdp->group_ranks + shard};

    return FSDP_OK;
}

fsdp_status_t fsdp_create(fsdp_job_t *job, const fsdp_config_t *config,
                          fsdp_t **fsdp_p, fsdp_error_t *err)
{
    fsdp_config_t full = FSDP_CONFIG_INIT;
    fsdp_status_t status;
    fsdp_t *fsdp;

    if (config->size > sizeof(full)) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "fsdp_config_t of %zu bytes is newer than this "
                              "library",
                              config->size);
    }
    memcpy(&full, config, config->size);
    full.size = sizeof(full);
    FSDP_TRY(check_config(&full, err));

    fsdp = calloc(1, sizeof(*fsdp));
    if (fsdp == NULL) {
        return no_memory("fsdp_t", err);
    }
    fsdp->job = job;
    fsdp->comm = job_comm(job);
    fsdp->device = &device_cpu_ops;
    fsdp->config = full;
    fsdp->rank = comm_rank(fsdp->comm);
    fsdp->grad_scale = 1.0;

    FSDP_TRY_GOTO(fsdp_mesh_init(&fsdp->mesh, full.strategy,
                                 comm_world(fsdp->comm), full.shard, err),
                  err_fsdp);
    fsdp->rounds = (full.micro_batches - 1) / fsdp->mesh.world + 1;
    FSDP_TRY_GOTO(place_rank(fsdp, err), err_fsdp);

    *fsdp_p = fsdp;
    return FSDP_OK;

err_fsdp:
    fsdp_destroy(fsdp);
    return status;
}

/* --- Destroy -------------------------------------------------------------- */

static void free_param(fsdp_param_t *param)
{
    for (uint32_t i = 0; i < param->num_aliases; i++) {
        free(param->aliases[i]);
    }
    free(param->aliases);
    free(param->dims);
    free(param->name);
    free(param);
}

static void free_unit(fsdp_unit_t *unit)
{
    for (uint32_t i = 0; i < unit->num_params; i++) {
        free_param(unit->params[i]);
    }
    free(unit->params);
    free(unit->sums);
    free(unit->name);
    free(unit);
}

void fsdp_destroy(fsdp_t *fsdp)
{
    if (fsdp == NULL) {
        return;
    }

    if (!save_free(fsdp)) {
        return;
    }
    /* Nothing may be under way in the memory that goes now. */
    (void)comm_wait(fsdp->comm, fsdp->last_ticket, NULL);
    pool_destroy(fsdp->pool);
    reduce_free(fsdp);
    for (unsigned mode = 0; mode < 2; mode++) {
        schedule_free(&fsdp->schedules[mode]);
    }
    memory_free(fsdp);
    for (uint32_t i = 0; i < fsdp->num_units; i++) {
        free_unit(fsdp->units[i]);
    }
    free(fsdp->units);
    map_free(&fsdp->names);
    free(fsdp->spans);
    free(fsdp->thread_sums);
    free(fsdp->messages);
    free(fsdp->group_ranks);
    free(fsdp);
}

/* --- Units and parameters ------------------------------------------------- */

/* Room for one more pointer in an array that grows by doubling. */
static fsdp_status_t grow(void *array_p, uint32_t num, fsdp_error_t *err)
{
    void **array = *(void ***)array_p;

    if (num != 0 && (num & (num - 1)) != 0) {
        return FSDP_OK;
    }
    array = realloc(array, 2 * ((size_t)num + 1) * sizeof(*array));
    if (array == NULL) {
        return no_memory("the layout", err);
    }

    *(void ***)array_p = array;
    return FSDP_OK;
}

static fsdp_status_t check_open(const fsdp_t *fsdp, fsdp_error_t *err)
{
    if (fsdp->sealed) {
        return fsdp_error_set(err, FSDP_ERR_BAD_STATE,
                              "the layout is sealed: nothing can be added");
    }

    return FSDP_OK;
}

static fsdp_status_t check_unit(const fsdp_t *fsdp, const char *name,
                                unsigned flags, fsdp_error_t *err)
{
    FSDP_TRY(check_open(fsdp, err));
    if (name == NULL || name[0] == '\0') {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "a unit needs a name");
    }
    if (flags & ~(unsigned)(FSDP_UNIT_ROOT | FSDP_UNIT_REUSED)) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "unit '%s' has unknown flags: %#x", name, flags);
    }
    if ((flags & FSDP_UNIT_ROOT) && fsdp->root != NULL) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "unit '%s' cannot be the root: '%s' is it", name,
                              fsdp->root->name);
    }
    for (uint32_t i = 0; i < fsdp->num_units; i++) {
        if (strcmp(fsdp->units[i]->name, name) == 0) {
            return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                                  "there are two units '%s'", name);
        }
    }

    return FSDP_OK;
}

fsdp_status_t fsdp_unit_add(fsdp_t *fsdp, const char *name, unsigned flags,
                            fsdp_unit_t **unit_p, fsdp_error_t *err)
{
    fsdp_unit_t *unit;

    FSDP_TRY(check_unit(fsdp, name, flags, err));
    FSDP_TRY(grow(&fsdp->units, fsdp->num_units, err));
    unit = calloc(1, sizeof(*unit));
    if (unit == NULL || (unit->name = strdup(name)) == NULL) {
        free(unit);
        return no_memory("a unit", err);
    }

    unit->fsdp = fsdp;
    unit->flags = flags;
    unit->index = fsdp->num_units;
    fsdp->units[fsdp->num_units++] = unit;
    if (flags & FSDP_UNIT_ROOT) {
        fsdp->root = unit;
    }

    *unit_p = unit;
    return FSDP_OK;
}

static fsdp_status_t check_name(const fsdp_t *fsdp, const char *name,
                                fsdp_error_t *err)
{
    const fsdp_param_t *param;

    if (name == NULL || name[0] == '\0') {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "a parameter needs a name");
    }
    param = fsdp_param_find(fsdp, name);
    if (param != NULL) {
        return fsdp_error_set(
            err, FSDP_ERR_INVALID_PARAM,
            "parameter '%s' is there already, in unit '%s': tie names of one "
            "parameter with fsdp_param_tie()",
            name, param->unit->name);
    }

    return FSDP_OK;
}

static fsdp_status_t check_param(const fsdp_param_config_t *config,
                                 uint64_t *numel_p, fsdp_error_t *err)
{
    uint64_t numel = 1;

    if (config->ndim > MAX_NDIM) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "parameter '%s' has %u dimensions, more than %d",
                              config->name, config->ndim, MAX_NDIM);
    }
    if ((unsigned)config->init > FSDP_INIT_NORMAL) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "parameter '%s': no such kind of initial values",
                              config->name);
    }
    for (uint32_t d = 0; d < config->ndim; d++) {
        if (__builtin_mul_overflow(numel, config->dims[d], &numel) ||
            numel > (uint64_t)1 << 60) {
            return fsdp_error_set(err, FSDP_ERR_OVERFLOW,
                                  "parameter '%s' has too many elements",
                                  config->name);
        }
    }

    *numel_p = numel;
    return FSDP_OK;
}

fsdp_status_t fsdp_param_add(fsdp_unit_t *unit,
                             const fsdp_param_config_t *config,
                             fsdp_param_t **param_p, fsdp_error_t *err)
{
    fsdp_param_config_t full = FSDP_PARAM_CONFIG_INIT;
    fsdp_param_t *param;
    uint64_t numel = 0;

    if (config->size > sizeof(full)) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "fsdp_param_config_t of %zu bytes is newer than "
                              "this library",
                              config->size);
    }
    memcpy(&full, config, config->size);
    FSDP_TRY(check_open(unit->fsdp, err));
    FSDP_TRY(check_name(unit->fsdp, full.name, err));
    FSDP_TRY(check_param(&full, &numel, err));
    FSDP_TRY(grow(&unit->params, unit->num_params, err));

    param = calloc(1, sizeof(*param));
    if (param == NULL) {
        return no_memory("a parameter", err);
    }
    param->name = strdup(full.name);
    param->dims = calloc(full.ndim + 1, sizeof(*param->dims));
    if (param->name == NULL || param->dims == NULL ||
        !find_add(unit->fsdp, param->name, param)) {
        free_param(param);
        return no_memory("a parameter", err);
    }

    param->unit = unit;
    param->ndim = full.ndim;
    if (full.ndim > 0) {
        memcpy(param->dims, full.dims, full.ndim * sizeof(*param->dims));
    }
    param->numel = numel;
    param->region = full.frozen ? REGION_FROZEN : REGION_TRAINED;
    param->init = full.init;
    param->std = full.std;
    unit->params[unit->num_params++] = param;

    *param_p = param;
    return FSDP_OK;
}

fsdp_status_t fsdp_param_tie(fsdp_param_t *owner, const char *alias,
                             fsdp_error_t *err)
{
    char *copy;

    FSDP_TRY(check_open(owner->unit->fsdp, err));
    FSDP_TRY(check_name(owner->unit->fsdp, alias, err));
    FSDP_TRY(grow(&owner->aliases, owner->num_aliases, err));
    copy = strdup(alias);
    if (copy == NULL || !find_add(owner->unit->fsdp, alias, owner)) {
        free(copy);
        return no_memory("an alias", err);
    }

    owner->aliases[owner->num_aliases++] = copy;
    return FSDP_OK;
}

/* --- Where things lie ----------------------------------------------------- */

uint64_t param_in_shard(const fsdp_param_t *param, uint32_t shard,
                        uint64_t *first_p, uint64_t *at_p)
{
    uint64_t length = param->unit->regions[param->region].length;
    uint64_t lo = shard * length;
    uint64_t first, count;

    fsdp_layout_clip(param->start, param->numel, lo, lo + length, &first,
                     &count);
    if (count > 0) {
        *first_p = first;
        *at_p = param->start + first - lo;
    }

    return count;
}

float *param_shard(const fsdp_param_t *param, fsdp_what_t what)
{
    const fsdp_unit_t *unit = param->unit;

    if (what == FSDP_VALUE) {
        return unit->regions[param->region].value;
    }
    if (param->region == REGION_FROZEN) {
        return NULL;
    }

    return (what == FSDP_GRAD)      ? unit->grad
           : (what == FSDP_EXP_AVG) ? unit->exp_avg
                                    : unit->exp_avg_sq;
}

const char *shard_kind(fsdp_what_t what)
{
    return (what == FSDP_VALUE)     ? "model"
           : (what == FSDP_EXP_AVG) ? "optim/exp_avg"
                                    : "optim/exp_avg_sq";
}

fsdp_status_t shard_check_outside(const fsdp_t *fsdp, const char *what,
                                  fsdp_error_t *err)
{
    FSDP_TRY(job_broken(fsdp->job, err));
    if (!fsdp->sealed) {
        return fsdp_error_set(err, FSDP_ERR_BAD_STATE, "%s before fsdp_seal()",
                              what);
    }
    if (fsdp->in_round) {
        return fsdp_error_set(err, FSDP_ERR_BAD_STATE,
                              "%s within a round: call fsdp_micro_end() first",
                              what);
    }

    return FSDP_OK;
}

void shard_values_changed(fsdp_t *fsdp)
{
    for (uint32_t i = 0; i < fsdp->num_units; i++) {
        fsdp->units[i]->stale = true;
    }
}

void fsdp_get_precision(const fsdp_t *fsdp, fsdp_precision_t *param_p,
                        fsdp_precision_t *reduce_p)
{
    *param_p = fsdp->config.param_dtype;
    *reduce_p = fsdp->config.reduce_dtype;
}

void fsdp_get_layout(const fsdp_t *fsdp, fsdp_layout_info_t *info_p)
{
    fsdp_layout_info_t info = {
        .units = fsdp->num_units,
        .rounds = fsdp->rounds,
        .mesh = fsdp->mesh,
    };

    for (uint32_t u = 0; u < fsdp->num_units; u++) {
        const fsdp_unit_t *unit = fsdp->units[u];

        info.padded += unit_elements(unit);
        for (uint32_t i = 0; i < unit->num_params; i++) {
            info.parameters += unit->params[i]->numel;
        }
    }

    *info_p = info;
}
