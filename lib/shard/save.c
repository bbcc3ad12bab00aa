/*
 * Saving: what this rank writes is fixed at seal; a save copies it aside and
 * hands the copy to fsdp_ckpt_save() in a thread.
 */
#include "config.h"

#include "lib/shard/shard.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fsdp_ckpt.h"
#include "lib/job/job.h"
#include "lib/util/check.h"
#include "lib/util/clock.h"
#include "lib/util/io.h"

#define PIECE_MAX 32768 /* elements copied and digested while in cache */
#define NUM_KINDS 3
#define JOIN_NAP  50000000 /* nanoseconds between looks at the job */

static const fsdp_what_t kinds[NUM_KINDS] = {FSDP_VALUE, FSDP_EXP_AVG,
                                             FSDP_EXP_AVG_SQ};

/* Where a part comes from. */
typedef struct {
    const fsdp_param_t *param;
    fsdp_what_t what;
    uint64_t key;   /* for digests */
    uint64_t at;    /* in the shard */
    uint64_t stage; /* in the staged copy */
} source_t;

/* A stretch of a part, for one turn of the threads. */
typedef struct {
    uint32_t part;
    uint64_t first, count; /* elements of the part */
} piece_t;

typedef struct {
    digest_t model, optim;
} digests_t;

struct save {
    /* Fixed at seal. */
    fsdp_ckpt_desc_t *tensors; /* the same on all ranks */
    uint32_t num_tensors;
    const char **alias_names;
    uint32_t *alias_owners;
    uint32_t num_aliases;
    char **frozen_units;     /* names of units' frozen regions */
    fsdp_ckpt_part_t *parts; /* of this rank, at most one a tensor */
    source_t *sources;       /* of each part */
    uint32_t num_parts;
    piece_t *pieces;
    uint32_t num_pieces;
    float *staged; /* NULL: parts are written from the shards themselves */
    uint64_t staged_elements;
    digests_t *digests; /* of each thread */

    /* A save, from its start until its result is collected. */
    bool pending;
    bool threaded; /* the thread must be joined */
    pthread_t thread;
    fsdp_ckpt_save_config_t config;
    char *dir, *meta;
    double started;
    fsdp_status_t result;
    fsdp_error_t error;

    pthread_mutex_t lock; /* of status, which the thread completes */
    fsdp_save_status_t status;
};

/* --- Plan ----------------------------------------------------------------- */

static fsdp_status_t no_memory(fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                          "no memory for the tables of a save");
}

static uint32_t num_threads(const fsdp_t *fsdp)
{
    return (fsdp->config.threads > 0) ? fsdp->config.threads : 1;
}

static fsdp_status_t make_tables(fsdp_t *fsdp, fsdp_error_t *err)
{
    save_t *save = calloc(1, sizeof(*save));
    size_t params = 0, aliases = 0;

    if (save == NULL) {
        return no_memory(err);
    }
    pthread_mutex_init(&save->lock, NULL);
    save->status.step = -1;
    fsdp->save = save;

    for (uint32_t u = 0; u < fsdp->num_units; u++) {
        params += fsdp->units[u]->num_params;
        for (uint32_t i = 0; i < fsdp->units[u]->num_params; i++) {
            aliases += fsdp->units[u]->params[i]->num_aliases;
        }
    }
    save->tensors = calloc(NUM_KINDS * params + 1, sizeof(*save->tensors));
    save->parts = calloc(NUM_KINDS * params + 1, sizeof(*save->parts));
    save->sources = calloc(NUM_KINDS * params + 1, sizeof(*save->sources));
    save->alias_names = calloc(aliases + 1, sizeof(*save->alias_names));
    save->alias_owners = calloc(aliases + 1, sizeof(*save->alias_owners));
    save->frozen_units = calloc(fsdp->num_units, sizeof(*save->frozen_units));
    save->digests = calloc(num_threads(fsdp), sizeof(*save->digests));
    if (save->tensors == NULL || save->parts == NULL || save->sources == NULL ||
        save->alias_names == NULL || save->alias_owners == NULL ||
        save->frozen_units == NULL || save->digests == NULL) {
        return no_memory(err);
    }

    return FSDP_OK;
}

/* What this rank writes of the newest tensor: the parameter's share of the
 * part of the shard that falls to this replica. */
static void add_part(fsdp_t *fsdp, const fsdp_param_t *param, fsdp_what_t what)
{
    save_t *save = fsdp->save;
    uint64_t length = param->unit->regions[param->region].length;
    uint64_t base = fsdp->shard_index * length;
    uint32_t replicas = fsdp->mesh.replicas, mine = fsdp->replica_index;
    uint64_t lo = base + fsdp_layout_part_start(length, replicas, mine);
    uint64_t hi = base + fsdp_layout_part_start(length, replicas, mine + 1);
    fsdp_ckpt_part_t *part = &save->parts[save->num_parts];

    part->tensor = save->num_tensors - 1;
    fsdp_layout_clip(param->start, param->numel, lo, hi, &part->first,
                     &part->count);
    if (part->count > 0) {
        save->sources[save->num_parts++] = (source_t){
            .param = param,
            .what = what,
            .key = digest_key(shard_kind(what), param->name),
            .at = param->start + part->first - base,
            .stage = save->staged_elements,
        };
        save->staged_elements += part->count;
    }
}

static fsdp_status_t add_alias(save_t *save, const char *alias,
                               fsdp_error_t *err)
{
    char *name = io_path("%s/%s", shard_kind(FSDP_VALUE), alias);

    if (name == NULL) {
        return no_memory(err);
    }

    save->alias_owners[save->num_aliases] = save->num_tensors - 1;
    save->alias_names[save->num_aliases++] = name;
    return FSDP_OK;
}

static fsdp_status_t add_tensor(fsdp_t *fsdp, const fsdp_param_t *param,
                                fsdp_what_t what, fsdp_error_t *err)
{
    const fsdp_unit_t *unit = param->unit;
    save_t *save = fsdp->save;
    char *name = io_path("%s/%s", shard_kind(what), param->name);

    if (name == NULL) {
        return no_memory(err);
    }

    save->tensors[save->num_tensors++] = (fsdp_ckpt_desc_t){
        .name = name,
        .dtype = FSDP_DTYPE_F32,
        .ndim = param->ndim,
        .dims = param->dims,
        .unit = (param->region == REGION_TRAINED)
                    ? unit->name
                    : save->frozen_units[unit->index],
    };
    for (uint32_t a = 0; a < param->num_aliases && what == FSDP_VALUE; a++) {
        FSDP_TRY(add_alias(save, param->aliases[a], err));
    }
    add_part(fsdp, param, what);

    return FSDP_OK;
}

/* Kind by kind, unit by unit, in the order of the flat arrays. */
static fsdp_status_t add_region(fsdp_t *fsdp, const fsdp_unit_t *unit,
                                region_id_t region, fsdp_what_t what,
                                fsdp_error_t *err)
{
    for (uint32_t i = 0; i < unit->num_params; i++) {
        if (unit->params[i]->region == region) {
            FSDP_TRY(add_tensor(fsdp, unit->params[i], what, err));
        }
    }

    return FSDP_OK;
}

static fsdp_status_t add_tensors(fsdp_t *fsdp, fsdp_error_t *err)
{
    for (uint32_t u = 0; u < fsdp->num_units; u++) {
        fsdp->save->frozen_units[u] =
            io_path("%s.frozen", fsdp->units[u]->name);
        if (fsdp->save->frozen_units[u] == NULL) {
            return no_memory(err);
        }
    }
    for (unsigned k = 0; k < NUM_KINDS; k++) {
        for (uint32_t u = 0; u < fsdp->num_units; u++) {
            FSDP_TRY(add_region(fsdp, fsdp->units[u], REGION_TRAINED, kinds[k],
                                err));
            if (kinds[k] == FSDP_VALUE) {
                FSDP_TRY(add_region(fsdp, fsdp->units[u], REGION_FROZEN,
                                    kinds[k], err));
            }
        }
    }

    return FSDP_OK;
}

static fsdp_status_t cut_pieces(save_t *save, fsdp_error_t *err)
{
    uint32_t num = 0;

    for (uint32_t p = 0; p < save->num_parts; p++) {
        num += (uint32_t)((save->parts[p].count - 1) / PIECE_MAX + 1);
    }
    save->pieces = calloc(num + 1, sizeof(*save->pieces));
    if (save->pieces == NULL) {
        return no_memory(err);
    }

    for (uint32_t p = 0; p < save->num_parts; p++) {
        uint64_t count = save->parts[p].count;

        for (uint64_t first = 0; first < count; first += PIECE_MAX) {
            uint64_t left = count - first;

            save->pieces[save->num_pieces++] =
                (piece_t){p, first, (left < PIECE_MAX) ? left : PIECE_MAX};
        }
    }

    return FSDP_OK;
}

fsdp_status_t save_plan(fsdp_t *fsdp, fsdp_error_t *err)
{
    FSDP_TRY(make_tables(fsdp, err));
    FSDP_TRY(add_tensors(fsdp, err));
    FSDP_TRY(cut_pieces(fsdp->save, err));
    if (fsdp->config.async_save) {
        FSDP_TRY(memory_plan(fsdp, FSDP_MEM_SAVE, false,
                             fsdp->save->staged_elements * sizeof(float),
                             &fsdp->save->staged, err));
    }

    return FSDP_OK;
}

/* Wait for the thread, which waits for those of the other ranks; a broken job
 * ends that. */
static fsdp_status_t join_thread(fsdp_t *fsdp, fsdp_error_t *err)
{
    save_t *save = fsdp->save;
    double start = clock_now();
    struct timespec until;

    while (save->threaded) {
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += JOIN_NAP;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (pthread_timedjoin_np(save->thread, NULL, &until) == 0) {
            save->threaded = false;
        } else {
            FSDP_TRY(
                job_check_wait(fsdp->job, "save", clock_now() - start, err));
        }
    }

    return FSDP_OK;
}

bool save_free(fsdp_t *fsdp)
{
    save_t *save = fsdp->save;

    if (save == NULL) {
        return true;
    }

    if (join_thread(fsdp, NULL) != FSDP_OK) {
        pthread_detach(save->thread);
        return false;
    }
    for (uint32_t i = 0; i < save->num_tensors; i++) {
        free((char *)save->tensors[i].name);
    }
    for (uint32_t i = 0; i < save->num_aliases; i++) {
        free((char *)save->alias_names[i]);
    }
    for (uint32_t u = 0; u < fsdp->num_units && save->frozen_units; u++) {
        free(save->frozen_units[u]);
    }
    free(save->tensors);
    free(save->alias_names);
    free(save->alias_owners);
    free(save->frozen_units);
    free(save->parts);
    free(save->sources);
    free(save->pieces);
    free(save->digests);
    free(save->dir);
    free(save->meta);
    pthread_mutex_destroy(&save->lock);
    free(save);
    fsdp->save = NULL;

    return true;
}

/* --- Metadata ------------------------------------------------------------- */

static const char *precision_name(fsdp_precision_t dtype)
{
    return (dtype == FSDP_BF16) ? "bf16" : "f32";
}

static json_t *config_json(const fsdp_t *fsdp)
{
    const fsdp_config_t *c = &fsdp->config;

    return json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:s, s:s, s:I}", "strategy",
        fsdp_strategy_name(c->strategy), "world", (json_int_t)fsdp->mesh.world,
        "shard", (json_int_t)fsdp->mesh.shard, "micro_batches",
        (json_int_t)c->micro_batches, "prefetch", (json_int_t)c->prefetch,
        "param_dtype", precision_name(c->param_dtype), "reduce_dtype",
        precision_name(c->reduce_dtype), "seed", (json_int_t)c->seed);
}

/* Names of the trained parameters that are decayed, or are not. */
static json_t *group_json(const fsdp_t *fsdp, bool decay)
{
    json_t *names = json_array();

    for (uint32_t u = 0; u < fsdp->num_units; u++) {
        const fsdp_unit_t *unit = fsdp->units[u];

        for (uint32_t i = 0; i < unit->num_params; i++) {
            const fsdp_param_t *param = unit->params[i];

            if (param->region == REGION_TRAINED &&
                decay == (param->ndim >= 2)) {
                json_array_append_new(names, json_string(param->name));
            }
        }
    }

    return json_pack("{s:f, s:o}", "weight_decay",
                     decay ? fsdp->config.weight_decay : 0.0, "params", names);
}

/* What is kept beside the tensors; made by rank 0. */
static fsdp_status_t make_meta(const fsdp_t *fsdp, const char *user_json,
                               char **meta_p, fsdp_error_t *err)
{
    const fsdp_config_t *c = &fsdp->config;
    json_t *root, *user = NULL;
    json_error_t error;

    if (user_json != NULL) {
        user = json_loads(user_json, JSON_ALLOW_NUL, &error);
        if (user == NULL || !json_is_object(user)) {
            json_decref(user);
            return fsdp_error_set(
                err, FSDP_ERR_INVALID_PARAM,
                "user_json of a save is not a JSON object%s%s",
                user == NULL ? ": " : "", user == NULL ? error.text : "");
        }
    }

    root =
        json_pack("{s:o, s:{s:s, s:f, s:f, s:f, s:f, s:I}, s:[o, o]}", "config",
                  config_json(fsdp), "optimizer", "name", "adamw", "lr",
                  fsdp->lr, "beta1", c->beta1, "beta2", c->beta2, "eps", c->eps,
                  "step", (json_int_t)fsdp->step, "param_groups",
                  group_json(fsdp, true), group_json(fsdp, false));
    if (user != NULL) {
        json_object_set_new(root, "user", user);
    }
    *meta_p = (root != NULL) ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);

    return (*meta_p != NULL) ? FSDP_OK : no_memory(err);
}

/* --- Copy ----------------------------------------------------------------- */

static void copy_piece(void *arg, uint32_t item, uint32_t thread)
{
    save_t *save = arg;
    const piece_t *piece = &save->pieces[item];
    const source_t *source = &save->sources[piece->part];
    digests_t *digests = &save->digests[thread];
    const float *data =
        param_shard(source->param, source->what) + source->at + piece->first;

    if (save->staged != NULL) {
        float *copy = save->staged + source->stage + piece->first;

        memcpy(copy, data, piece->count * sizeof(*copy));
        data = copy;
    }
    shard_digest((source->what == FSDP_VALUE) ? &digests->model
                                              : &digests->optim,
                 source->key, source->param->numel, data,
                 save->parts[piece->part].first + piece->first, piece->count);
}

/* Constants of empty tensors, which nobody holds: rank 0 adds them. */
static void digest_empty(const fsdp_t *fsdp, digests_t *digests)
{
    for (uint32_t u = 0; u < fsdp->num_units; u++) {
        for (uint32_t i = 0; i < fsdp->units[u]->num_params; i++) {
            const fsdp_param_t *param = fsdp->units[u]->params[i];

            for (unsigned k = 0; k < NUM_KINDS && param->numel == 0; k++) {
                if (kinds[k] == FSDP_VALUE || param->region == REGION_TRAINED) {
                    digest_add_tensor(
                        (kinds[k] == FSDP_VALUE) ? &digests->model
                                                 : &digests->optim,
                        digest_key(shard_kind(kinds[k]), param->name), 0);
                }
            }
        }
    }
}

typedef struct {
    fsdp_t *fsdp;
    uint64_t words[4];
} sum_t;

static fsdp_status_t sum_job(comm_t *comm, void *arg, fsdp_error_t *err)
{
    sum_t *sum = arg;

    return comm_all_sum(comm, comm_all(comm), sum->words, 4, sum->fsdp->words,
                        err);
}

/* Copy aside, if there is room, and digest; each element on one rank. */
static fsdp_status_t copy_and_digest(fsdp_t *fsdp, fsdp_error_t *err)
{
    save_t *save = fsdp->save;
    sum_t sum = {.fsdp = fsdp};

    memset(save->digests, 0, num_threads(fsdp) * sizeof(*save->digests));
    pool_run(fsdp->pool, copy_piece, save, save->num_pieces);
    if (fsdp->rank == 0) {
        digest_empty(fsdp, &save->digests[0]);
    }
    for (uint32_t t = 0; t < num_threads(fsdp); t++) {
        for (unsigned w = 0; w < 2; w++) {
            sum.words[w] += save->digests[t].model.word[w];
            sum.words[2 + w] += save->digests[t].optim.word[w];
        }
    }
    FSDP_TRY(comm_run(fsdp->comm, sum_job, &sum, "sum of digests", NULL, err));

    memcpy(save->config.digest_model, sum.words, sizeof(uint64_t[2]));
    memcpy(save->config.digest_optim, sum.words + 2, sizeof(uint64_t[2]));
    for (uint32_t p = 0; p < save->num_parts; p++) {
        const source_t *source = &save->sources[p];

        save->parts[p].data =
            (save->staged != NULL)
                ? save->staged + source->stage
                : param_shard(source->param, source->what) + source->at;
    }

    return FSDP_OK;
}

/* --- Write ---------------------------------------------------------------- */

static void *write_main(void *arg)
{
    save_t *save = arg;
    fsdp_ckpt_save_result_t result;

    save->result = fsdp_ckpt_save(&save->config, &result, &save->error);

    pthread_mutex_lock(&save->lock);
    save->status.busy = false;
    if (save->result == FSDP_OK) {
        save->status.saves++;
        save->status.step = save->config.step;
        save->status.bytes = result.bytes;
        save->status.total_seconds = clock_now() - save->started;
    }
    pthread_mutex_unlock(&save->lock);

    return NULL;
}

static fsdp_status_t prepare(fsdp_t *fsdp, const fsdp_save_config_t *config,
                             fsdp_error_t *err)
{
    save_t *save = fsdp->save;
    fsdp_job_info_t info;

    if (config->dir == NULL || config->dir[0] == '\0') {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "a save needs a directory");
    }
    free(save->dir);
    free(save->meta);
    save->meta = NULL;
    save->dir = strdup(config->dir);
    if (save->dir == NULL) {
        return no_memory(err);
    }
    if (fsdp->rank == 0) {
        FSDP_TRY(make_meta(fsdp, config->user_json, &save->meta, err));
        /* All ranks learn it at once if there can be no directory. */
        FSDP_TRY(io_make_dirs(save->dir, err));
    }

    fsdp_job_get_info(fsdp->job, &info);
    save->config = (fsdp_ckpt_save_config_t)FSDP_CKPT_SAVE_INIT;
    save->config.dir = save->dir;
    save->config.step = fsdp->step;
    save->config.job_id = info.id;
    save->config.rank = fsdp->rank;
    save->config.mesh = fsdp->mesh;
    save->config.files = config->files;
    save->config.tensors = save->tensors;
    save->config.num_tensors = save->num_tensors;
    save->config.parts = save->parts;
    save->config.num_parts = save->num_parts;
    save->config.alias_names = save->alias_names;
    save->config.alias_owners = save->alias_owners;
    save->config.num_aliases = save->num_aliases;
    save->config.meta_json = save->meta;
    save->config.deadline = job_deadline(fsdp->job);

    return FSDP_OK;
}

fsdp_status_t fsdp_save_start(fsdp_t *fsdp, const fsdp_save_config_t *config,
                              fsdp_error_t *err)
{
    fsdp_save_config_t full = FSDP_SAVE_CONFIG_INIT;
    double start = clock_now();
    fsdp_status_t status;
    fsdp_error_t mine;
    save_t *save;

    FSDP_TRY(shard_check_outside(fsdp, "fsdp_save_start()", err));
    if (config->size > sizeof(full)) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "fsdp_save_config_t of %zu bytes is newer than "
                              "this library",
                              config->size);
    }
    memcpy(&full, config, config->size);
    FSDP_TRY(fsdp_save_wait(fsdp, err));

    save = fsdp->save;
    status = prepare(fsdp, &full, &mine);
    FSDP_TRY(fsdp_job_agree(fsdp->job, status, &mine, err));
    fsdp_job_set_phase(fsdp->job, "save", fsdp->step);
    save->started = start;
    FSDP_TRY(copy_and_digest(fsdp, err));

    pthread_mutex_lock(&save->lock);
    save->status.busy = true;
    pthread_mutex_unlock(&save->lock);
    save->pending = true;
    /* The peers wait for this rank's part: where no thread is to be had, it is
     * written here and now. */
    save->threaded = pthread_create(&save->thread, NULL, write_main, save) == 0;
    if (!save->threaded) {
        write_main(save);
    }

    fsdp->save_seconds += clock_now() - start;
    status = (save->staged != NULL) ? FSDP_OK : fsdp_save_wait(fsdp, err);

    pthread_mutex_lock(&save->lock);
    save->status.copy_seconds = clock_now() - start;
    pthread_mutex_unlock(&save->lock);

    return status;
}

fsdp_status_t fsdp_save_wait(fsdp_t *fsdp, fsdp_error_t *err)
{
    double start = clock_now();
    save_t *save;

    FSDP_TRY(shard_check_outside(fsdp, "fsdp_save_wait()", err));
    save = fsdp->save;
    if (!save->pending) {
        return FSDP_OK;
    }

    FSDP_TRY(join_thread(fsdp, err));
    save->pending = false;
    fsdp->save_seconds += clock_now() - start;
    return fsdp_job_agree(fsdp->job, save->result, &save->error, err);
}

void fsdp_get_save_status(const fsdp_t *fsdp, fsdp_save_status_t *status_p)
{
    save_t *save = fsdp->save;

    if (save == NULL) {
        *status_p = (fsdp_save_status_t){.step = -1};
        return;
    }

    pthread_mutex_lock(&save->lock);
    *status_p = save->status;
    pthread_mutex_unlock(&save->lock);
}
