/*
 * Whole on demand: parameters, scalars of micro-batches, digests.
 */
#include "config.h"

#include "lib/shard/shard.h"

#include <string.h>

#include "lib/util/check.h"

/* --- Parameters ----------------------------------------------------------- */

typedef struct {
    fsdp_param_t *param;
    const float *shard; /* of its region */
    float *whole;
} whole_t;

/* Each rank of the shard group sends what it has to each other one. */
static fsdp_status_t whole_job(comm_t *comm, void *arg, fsdp_error_t *err)
{
    const whole_t *job = arg;
    const fsdp_t *fsdp = job->param->unit->fsdp;
    const comm_group_t *group = &fsdp->shard_group;
    comm_message_t *sends = fsdp->messages;
    comm_message_t *recvs = sends + group->size;
    size_t nsends = 0, nrecvs = 0;
    uint64_t first, at, count;

    count = param_in_shard(job->param, group->index, &first, &at);
    if (count > 0) {
        memcpy(job->whole + first, job->shard + at, count * sizeof(float));
    }
    for (uint32_t step = 1; step < group->size; step++) {
        uint32_t to = (group->index + step) % group->size;
        uint32_t from = (group->index + group->size - step) % group->size;
        uint64_t peer_first, peer_at, peer_count;

        if (count > 0) {
            sends[nsends++] = (comm_message_t){
                group->ranks[to], job->whole + first, count * sizeof(float)};
        }
        peer_count = param_in_shard(job->param, from, &peer_first, &peer_at);
        if (peer_count > 0) {
            recvs[nrecvs++] =
                (comm_message_t){group->ranks[from], job->whole + peer_first,
                                 peer_count * sizeof(float)};
        }
    }
    if (nsends + nrecvs == 0) {
        return FSDP_OK;
    }

    FSDP_TRY(comm_exchange_start(comm, 0, COMM_CONTROL, sends, nsends, recvs,
                                 nrecvs, err));
    return comm_exchange_wait(comm, 0, err);
}

static const char *const what_texts[] = {
    [FSDP_VALUE] = "the value",
    [FSDP_GRAD] = "the gradient",
    [FSDP_EXP_AVG] = "exp_avg",
    [FSDP_EXP_AVG_SQ] = "exp_avg_sq",
};

static fsdp_status_t check_what(const fsdp_param_t *param, fsdp_what_t what,
                                fsdp_error_t *err)
{
    if ((unsigned)what > FSDP_EXP_AVG_SQ) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "parameter '%s' has nothing of kind %d",
                              param->name, (int)what);
    }
    if (what != FSDP_VALUE && param->region == REGION_FROZEN) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "parameter '%s' is frozen: it has no gradient "
                              "and no optimizer state",
                              param->name);
    }

    return FSDP_OK;
}

fsdp_status_t fsdp_param_get(fsdp_param_t *param, fsdp_what_t what,
                             float *whole, fsdp_error_t *err)
{
    fsdp_t *fsdp = param->unit->fsdp;
    whole_t job = {.param = param, .whole = whole};

    FSDP_TRY(shard_check_outside(fsdp, "fsdp_param_get()", err));
    FSDP_TRY(check_what(param, what, err));
    if (what == FSDP_GRAD && !fsdp->clipped) {
        return fsdp_error_set(err, FSDP_ERR_BAD_STATE,
                              "gradients can be read after fsdp_clip() and "
                              "before the next round");
    }

    job.shard = param_shard(param, what);
    FSDP_TRY(comm_run(fsdp->comm, whole_job, &job, "gather of a parameter",
                      param->name, err));
    if (what == FSDP_GRAD && fsdp->grad_scale != 1.0) {
        kernel_scale(whole, (float)fsdp->grad_scale, param->numel);
    }

    return FSDP_OK;
}

fsdp_status_t fsdp_param_set(fsdp_param_t *param, fsdp_what_t what,
                             const float *whole, fsdp_error_t *err)
{
    fsdp_t *fsdp = param->unit->fsdp;
    uint64_t first, at, count;

    FSDP_TRY(shard_check_outside(fsdp, "fsdp_param_set()", err));
    FSDP_TRY(check_what(param, what, err));
    if (what == FSDP_GRAD) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "%s of parameter '%s' cannot be set",
                              what_texts[what], param->name);
    }

    count = param_in_shard(param, fsdp->shard_index, &first, &at);
    if (count > 0) {
        memcpy(param_shard(param, what) + at, whole + first,
               count * sizeof(float));
    }
    shard_values_changed(fsdp);
    return FSDP_OK;
}

/* --- Scalars -------------------------------------------------------------- */

static fsdp_status_t scalars_job(comm_t *comm, void *arg, fsdp_error_t *err)
{
    fsdp_t *fsdp = arg;

    return comm_all_gather(comm, comm_all(comm), COMM_CONTROL, fsdp->scalars,
                           fsdp->scalars_each * sizeof(*fsdp->scalars), err);
}

/* Rounds [first, first + scalars_each). */
static fsdp_status_t gather_some(fsdp_t *fsdp, const double *mine,
                                 uint32_t first, uint32_t count, double *all,
                                 fsdp_error_t *err)
{
    uint64_t world = fsdp->mesh.world;
    uint32_t each = fsdp->scalars_each;
    double *own = fsdp->scalars + (size_t)fsdp->rank * each;

    for (uint32_t i = 0; i < each; i++) {
        bool there = fsdp->rank + world * (first + (uint64_t)i) < count;

        own[i] = there ? mine[first + i] : 0.0;
    }
    FSDP_TRY(comm_run(fsdp->comm, scalars_job, fsdp, "gather of scalars", NULL,
                      err));
    for (uint32_t i = 0; i < each; i++) {
        for (uint32_t rank = 0; rank < world; rank++) {
            uint64_t micro = rank + world * (first + (uint64_t)i);

            if (micro < count) {
                all[micro] = fsdp->scalars[(size_t)rank * each + i];
            }
        }
    }

    return FSDP_OK;
}

fsdp_status_t fsdp_gather_scalars(fsdp_t *fsdp, const double *mine,
                                  uint32_t count, double *all,
                                  fsdp_error_t *err)
{
    FSDP_TRY(shard_check_outside(fsdp, "fsdp_gather_scalars()", err));
    for (uint64_t first = 0; first * fsdp->mesh.world < count;
         first += fsdp->scalars_each) {
        FSDP_TRY(gather_some(fsdp, mine, (uint32_t)first, count, all, err));
    }

    return FSDP_OK;
}

/* --- Digests -------------------------------------------------------------- */

void shard_digest(digest_t *digest, uint64_t key, uint64_t numel,
                  const float *data, uint64_t first, uint64_t count)
{
    digest_add(digest, key, (const uint32_t *)data, first, count);
    if (first == 0 && count > 0) {
        digest_add_tensor(digest, key, numel);
    }
}

static void add_param(digest_t *digest, const fsdp_param_t *param,
                      fsdp_what_t what)
{
    const fsdp_t *fsdp = param->unit->fsdp;
    const float *shard = param_shard(param, what);
    uint64_t key = digest_key(shard_kind(what), param->name);
    uint64_t first, at, count;

    count = param_in_shard(param, fsdp->shard_index, &first, &at);
    if (count > 0) {
        shard_digest(digest, key, param->numel, shard + at, first, count);
    }
    if (param->numel == 0 && fsdp->shard_index == 0) {
        digest_add_tensor(digest, key, 0);
    }
}

typedef struct {
    fsdp_t *fsdp;
    fsdp_digest_t *digest;
} digest_job_t;

static fsdp_status_t digest_job(comm_t *comm, void *arg, fsdp_error_t *err)
{
    digest_job_t *job = arg;

    return comm_all_sum(comm, &job->fsdp->shard_group, job->digest->model, 4,
                        job->fsdp->words, err);
}

fsdp_status_t fsdp_digest(fsdp_t *fsdp, fsdp_digest_t *digest_p,
                          fsdp_error_t *err)
{
    digest_t model = {{0}}, optim = {{0}};
    fsdp_digest_t digest;
    digest_job_t job = {fsdp, &digest};

    FSDP_TRY(shard_check_outside(fsdp, "fsdp_digest()", err));
    for (uint32_t u = 0; u < fsdp->num_units; u++) {
        for (uint32_t i = 0; i < fsdp->units[u]->num_params; i++) {
            const fsdp_param_t *param = fsdp->units[u]->params[i];

            add_param(&model, param, FSDP_VALUE);
            if (param->region == REGION_TRAINED) {
                add_param(&optim, param, FSDP_EXP_AVG);
                add_param(&optim, param, FSDP_EXP_AVG_SQ);
            }
        }
    }

    memcpy(digest.model, model.word, sizeof(digest.model));
    memcpy(digest.optim, optim.word, sizeof(digest.optim));
    FSDP_TRY(
        comm_run(fsdp->comm, digest_job, &job, "sum of digests", NULL, err));

    *digest_p = digest;
    return FSDP_OK;
}
