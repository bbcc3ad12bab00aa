#include "config.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "fsdp.h"
#include "lib/shard/kernels.h"
#include "lib/shard/pool.h"
#include "lib/util/digest.h"
#include "t/tap/tap.h"

/* --- A model of two units ------------------------------------------------- */

typedef struct {
    fsdp_job_t *job;
    fsdp_t *fsdp;
    fsdp_unit_t *root, *layer;
    fsdp_param_t *table, *weight, *bias, *frozen;
    fsdp_error_t err;
} model_t;

enum { TABLE = 5 * 7, WEIGHT = 3 * 50, BIAS = 3, FROZEN = 9 };

static fsdp_param_t *add(model_t *m, fsdp_unit_t *unit, const char *name,
                         uint32_t ndim, uint64_t d0, uint64_t d1, bool frozen)
{
    uint64_t dims[2] = {d0, d1};
    fsdp_param_config_t config = FSDP_PARAM_CONFIG_INIT;
    fsdp_param_t *param = NULL;

    config.name = name;
    config.ndim = ndim;
    config.dims = dims;
    config.init = FSDP_INIT_NORMAL;
    config.std = 0.5f;
    config.frozen = frozen;
    fsdp_param_add(unit, &config, &param, &m->err);

    return param;
}

/* Everything but fsdp_seal(). */
static void open_model(model_t *m, const fsdp_config_t *config)
{
    fsdp_job_config_t job_config = FSDP_JOB_CONFIG_INIT;

    memset(m, 0, sizeof(*m));
    job_config.alone = true;
    fsdp_job_open(&job_config, &m->job, &m->err);
    fsdp_create(m->job, config, &m->fsdp, &m->err);
    fsdp_unit_add(m->fsdp, "root", FSDP_UNIT_ROOT, &m->root, &m->err);
    fsdp_unit_add(m->fsdp, "layer", FSDP_UNIT_NONE, &m->layer, &m->err);
    m->table = add(m, m->root, "table", 2, 5, 7, false);
    m->weight = add(m, m->layer, "weight", 2, 3, 50, false);
    m->frozen = add(m, m->layer, "frozen", 1, FROZEN, 0, true);
    m->bias = add(m, m->layer, "bias", 1, BIAS, 0, false);
}

static void close_model(model_t *m)
{
    fsdp_destroy(m->fsdp);
    fsdp_job_close(m->job);
}

static fsdp_config_t plain(void)
{
    return (fsdp_config_t)FSDP_CONFIG_INIT;
}

/* What backward writes. */
static float gradient(uint32_t micro, uint64_t i)
{
    return (float)(micro + 1) * (float)(i % 13) - 2.5f;
}

static fsdp_status_t run_unit(model_t *m, fsdp_unit_t *unit, bool back)
{
    if (back) {
        fsdp_status_t status = fsdp_backward_begin(unit, &m->err);

        return (status != FSDP_OK) ? status : fsdp_backward_end(unit, &m->err);
    }

    return (fsdp_forward_begin(unit, &m->err) != FSDP_OK)
               ? m->err.status
               : fsdp_forward_end(unit, &m->err);
}

static void write_gradients(const fsdp_param_t *param, uint64_t numel,
                            uint32_t micro)
{
    float *grad = fsdp_param_grad(param);

    for (uint64_t i = 0; i < numel; i++) {
        grad[i] += gradient(micro, i);
    }
}

static fsdp_status_t run_round(model_t *m, uint32_t round)
{
    uint32_t micro;

    if (fsdp_micro_begin(m->fsdp, FSDP_TRAIN, round, 0, &micro, &m->err) ||
        run_unit(m, m->root, false) || run_unit(m, m->layer, false) ||
        fsdp_backward_begin(m->layer, &m->err)) {
        return m->err.status;
    }
    write_gradients(m->weight, WEIGHT, micro);
    write_gradients(m->bias, BIAS, micro);
    if (fsdp_backward_end(m->layer, &m->err) ||
        fsdp_backward_begin(m->root, &m->err)) {
        return m->err.status;
    }
    write_gradients(m->table, TABLE, micro);
    if (fsdp_backward_end(m->root, &m->err)) {
        return m->err.status;
    }

    return fsdp_micro_end(m->fsdp, &m->err);
}

/* --- Settings ------------------------------------------------------------- */

static void test_bad_settings(void)
{
    fsdp_job_config_t job_config = FSDP_JOB_CONFIG_INIT;
    fsdp_config_t good = plain(), bad;
    fsdp_error_t err;
    fsdp_job_t *job;
    fsdp_t *fsdp;

    job_config.alone = true;
    fsdp_job_open(&job_config, &job, &err);

    bad = good, bad.micro_batches = 0;
    ok(fsdp_create(job, &bad, &fsdp, &err) == FSDP_ERR_CONFIG,
       "no micro-batch: %s", err.text);
    bad = good, bad.prefetch = 5;
    ok(fsdp_create(job, &bad, &fsdp, &err) == FSDP_ERR_CONFIG, "prefetch 5: %s",
       err.text);
    bad = good, bad.beta2 = 1.0;
    ok(fsdp_create(job, &bad, &fsdp, &err) == FSDP_ERR_CONFIG, "beta2 1: %s",
       err.text);
    bad = good, bad.eps = NAN;
    ok(fsdp_create(job, &bad, &fsdp, &err) == FSDP_ERR_CONFIG, "eps NaN: %s",
       err.text);
    bad = good, bad.param_dtype = (fsdp_precision_t)7;
    ok(fsdp_create(job, &bad, &fsdp, &err) == FSDP_ERR_CONFIG, "dtype 7: %s",
       err.text);
    bad = good, bad.strategy = FSDP_STRATEGY_HYBRID, bad.shard = 2;
    ok(fsdp_create(job, &bad, &fsdp, &err) == FSDP_ERR_CONFIG,
       "F = 2 on one rank: %s", err.text);
    bad = good, bad.size = sizeof(bad) + 8;
    ok(fsdp_create(job, &bad, &fsdp, &err) == FSDP_ERR_INVALID_PARAM,
       "a newer struct: %s", err.text);
    fsdp_job_close(job);
}

static void test_bad_layouts(void)
{
    fsdp_config_t config = plain();
    uint64_t huge[2] = {1ull << 40, 1ull << 40};
    fsdp_param_config_t param = FSDP_PARAM_CONFIG_INIT;
    fsdp_param_t *param_p;
    fsdp_unit_t *unit;
    model_t m;

    open_model(&m, &config);
    ok(fsdp_unit_add(m.fsdp, "layer", 0, &unit, &m.err) ==
           FSDP_ERR_INVALID_PARAM,
       "a unit twice: %s", m.err.text);
    ok(fsdp_unit_add(m.fsdp, "top", FSDP_UNIT_ROOT, &unit, &m.err) ==
           FSDP_ERR_INVALID_PARAM,
       "two roots: %s", m.err.text);
    ok(fsdp_unit_add(m.fsdp, "", 0, &unit, &m.err) == FSDP_ERR_INVALID_PARAM,
       "no name");
    ok(add(&m, m.root, "bias", 1, 3, 0, false) == NULL, "a parameter twice: %s",
       m.err.text);
    ok(fsdp_param_tie(m.table, "weight", &m.err) == FSDP_ERR_INVALID_PARAM,
       "tied to a name that is taken");
    ok(fsdp_param_tie(m.table, "head", &m.err) == FSDP_OK, "tied");
    ok(add(&m, m.root, "head", 1, 3, 0, false) == NULL,
       "a parameter with the name of an alias: %s", m.err.text);
    param.name = "huge";
    param.ndim = 2;
    param.dims = huge;
    ok(fsdp_param_add(m.root, &param, &param_p, &m.err) == FSDP_ERR_OVERFLOW,
       "too many elements: %s", m.err.text);
    param.ndim = 33;
    ok(fsdp_param_add(m.root, &param, &param_p, &m.err) ==
           FSDP_ERR_INVALID_PARAM,
       "33 dimensions");
    ok(fsdp_seal(m.fsdp, &m.err) == FSDP_OK, "sealed all the same");
    ok(fsdp_seal(m.fsdp, &m.err) == FSDP_ERR_BAD_STATE, "sealed twice");
    ok(fsdp_unit_add(m.fsdp, "late", 0, &unit, &m.err) == FSDP_ERR_BAD_STATE &&
           add(&m, m.root, "late", 1, 3, 0, false) == NULL,
       "nothing can be added to a sealed layout");
    close_model(&m);
}

/* --- Order of calls ------------------------------------------------------- */

static void test_calls_out_of_order(void)
{
    fsdp_config_t config = plain();
    uint32_t micro;
    double norm;
    model_t m;

    config.micro_batches = 2;
    open_model(&m, &config);
    ok(fsdp_micro_begin(m.fsdp, FSDP_TRAIN, 0, 0, &micro, &m.err) ==
           FSDP_ERR_BAD_STATE,
       "a round before the seal: %s", m.err.text);
    fsdp_seal(m.fsdp, &m.err);
    ok(fsdp_forward_begin(m.root, &m.err) == FSDP_ERR_BAD_STATE,
       "a unit outside a round: %s", m.err.text);
    ok(fsdp_micro_end(m.fsdp, &m.err) == FSDP_ERR_BAD_STATE,
       "the end of no round");
    ok(fsdp_micro_begin(m.fsdp, FSDP_TRAIN, 1, 0, &micro, &m.err) ==
           FSDP_ERR_BAD_STATE,
       "round 1 first: %s", m.err.text);
    ok(fsdp_clip(m.fsdp, 1.0, &norm, &m.err) == FSDP_ERR_BAD_STATE,
       "clip without gradients: %s", m.err.text);
    ok(fsdp_optimizer_step(m.fsdp, 0.1, &m.err) == FSDP_ERR_BAD_STATE,
       "step without gradients: %s", m.err.text);

    ok(fsdp_micro_begin(m.fsdp, FSDP_TRAIN, 0, 0, &micro, &m.err) == FSDP_OK &&
           micro == 0,
       "round 0");
    ok(fsdp_clip(m.fsdp, 1.0, &norm, &m.err) == FSDP_ERR_BAD_STATE,
       "clip within a round: %s", m.err.text);
    ok(fsdp_forward_end(m.root, &m.err) == FSDP_ERR_BAD_STATE,
       "an end without a begin: %s", m.err.text);
    ok(fsdp_backward_begin(m.root, &m.err) == FSDP_ERR_BAD_STATE,
       "backward without forward: %s", m.err.text);
    ok(fsdp_param_data(m.table) == NULL, "nothing is whole yet");
    fsdp_forward_begin(m.layer, &m.err);
    ok(fsdp_forward_begin(m.layer, &m.err) == FSDP_ERR_BAD_STATE,
       "begun twice: %s", m.err.text);
    ok(fsdp_backward_end(m.layer, &m.err) == FSDP_ERR_BAD_STATE,
       "ended otherwise than begun: %s", m.err.text);
    fsdp_forward_end(m.layer, &m.err);
    ok(fsdp_forward_begin(m.layer, &m.err) == FSDP_ERR_BAD_STATE,
       "used twice without the flag: %s", m.err.text);
    ok(fsdp_micro_end(m.fsdp, &m.err) == FSDP_ERR_BAD_STATE,
       "a unit that has not run backward: %s", m.err.text);
    close_model(&m);
}

static void test_evaluation(void)
{
    double mine[100], all[100];
    fsdp_config_t config = plain();
    bool same = true;
    uint32_t micro;
    model_t m;

    open_model(&m, &config);
    fsdp_seal(m.fsdp, &m.err);
    for (uint32_t round = 0; round < 100; round++) {
        same &= fsdp_micro_begin(m.fsdp, FSDP_EVAL, round, 100, &micro,
                                 &m.err) == FSDP_OK;
        same &= micro == round && run_unit(&m, m.layer, false) == FSDP_OK &&
                fsdp_micro_end(m.fsdp, &m.err) == FSDP_OK;
        mine[round] = sqrt(round);
    }
    ok(same, "100 rounds of evaluation");
    ok(fsdp_gather_scalars(m.fsdp, mine, 100, all, &m.err) == FSDP_OK &&
           memcmp(mine, all, sizeof(mine)) == 0,
       "and their scalars");
    fsdp_micro_begin(m.fsdp, FSDP_EVAL, 7, 7, &micro, &m.err);
    ok(micro == FSDP_IDLE, "a round beyond the last is idle");
    run_unit(&m, m.layer, false);
    ok(fsdp_backward_begin(m.layer, &m.err) == FSDP_ERR_BAD_STATE,
       "backward in an evaluation: %s", m.err.text);
    close_model(&m);
}

static void test_broken_order_stays_broken(void)
{
    fsdp_config_t config = plain();
    uint32_t micro;
    model_t m;

    open_model(&m, &config);
    fsdp_seal(m.fsdp, &m.err);
    run_round(&m, 0);
    fsdp_clip(m.fsdp, 0, &(double){0}, &m.err);
    fsdp_micro_begin(m.fsdp, FSDP_TRAIN, 0, 0, &micro, &m.err);
    ok(fsdp_forward_begin(m.layer, &m.err) == FSDP_ERR_MISMATCH &&
           strstr(m.err.text, "'layer'") && strstr(m.err.text, "'root'"),
       "another order than in the first round: %s", m.err.text);
    ok(fsdp_param_get(m.table, FSDP_VALUE, (float[TABLE]){0}, &m.err) ==
           FSDP_ERR_MISMATCH,
       "later calls return the same");
    close_model(&m);
}

/* --- Values --------------------------------------------------------------- */

static void test_initial_values(void)
{
    float want[WEIGHT], got[WEIGHT];
    fsdp_config_t config = plain();
    model_t m;

    config.seed = 77;
    open_model(&m, &config);
    fsdp_seal(m.fsdp, &m.err);
    kernel_normal(want, kernel_init_key(77, "weight"), 0, WEIGHT, 0.5f);
    fsdp_param_get(m.weight, FSDP_VALUE, got, &m.err);
    ok(memcmp(want, got, sizeof(want)) == 0,
       "initial values depend on seed, name and element");
    fsdp_param_get(m.weight, FSDP_EXP_AVG, got, &m.err);
    memset(want, 0, sizeof(want));
    ok(memcmp(want, got, sizeof(want)) == 0, "moments begin at zero");
    close_model(&m);
}

static void test_get_and_set(void)
{
    static const fsdp_what_t whats[] = {FSDP_VALUE, FSDP_EXP_AVG,
                                        FSDP_EXP_AVG_SQ};
    float want[WEIGHT], got[WEIGHT];
    fsdp_config_t config = plain();
    const uint16_t *data;
    uint32_t micro;
    model_t m;

    config.param_dtype = FSDP_BF16;
    open_model(&m, &config);
    fsdp_seal(m.fsdp, &m.err);
    for (unsigned w = 0; w < 3; w++) {
        for (int i = 0; i < WEIGHT; i++) {
            want[i] = (float)(i * i + (int)w) / 3.0f;
        }
        ok(fsdp_param_set(m.weight, whats[w], want, &m.err) == FSDP_OK &&
               fsdp_param_get(m.weight, whats[w], got, &m.err) == FSDP_OK &&
               memcmp(want, got, sizeof(want)) == 0,
           "set and got again: %u", w);
    }
    ok(fsdp_param_set(m.weight, FSDP_GRAD, want, &m.err) ==
           FSDP_ERR_INVALID_PARAM,
       "a gradient cannot be set: %s", m.err.text);
    ok(fsdp_param_get(m.weight, FSDP_GRAD, want, &m.err) == FSDP_ERR_BAD_STATE,
       "nor got before a step: %s", m.err.text);
    ok(fsdp_param_get(m.frozen, FSDP_EXP_AVG, want, &m.err) ==
           FSDP_ERR_INVALID_PARAM,
       "a frozen parameter has no state: %s", m.err.text);

    fsdp_param_get(m.weight, FSDP_VALUE, want, &m.err);
    fsdp_micro_begin(m.fsdp, FSDP_EVAL, 0, 1, &micro, &m.err);
    fsdp_forward_begin(m.layer, &m.err);
    data = fsdp_param_data(m.weight);
    kernel_from_bf16(got, data, WEIGHT);
    kernel_to_bf16((uint16_t *)want, want, WEIGHT);
    ok(memcmp(want, data, WEIGHT * sizeof(*data)) == 0,
       "in a round it is there in bf16");
    ok((uintptr_t)data % 128 == 0, "aligned");
    ok(fsdp_param_set(m.weight, FSDP_VALUE, got, &m.err) == FSDP_ERR_BAD_STATE,
       "not to be set in a round: %s", m.err.text);
    close_model(&m);
}

static void test_digest(void)
{
    struct {
        const char *name;
        uint64_t numel;
    } params[] = {
        {"table",  TABLE },
        {"weight", WEIGHT},
        {"bias",   BIAS  },
        {"frozen", FROZEN}
    };
    fsdp_config_t config = plain();
    fsdp_param_t *handles[4];
    digest_t model = {{0}};
    fsdp_digest_t digest;
    float values[WEIGHT];
    model_t m;

    open_model(&m, &config);
    fsdp_seal(m.fsdp, &m.err);
    handles[0] = m.table, handles[1] = m.weight;
    handles[2] = m.bias, handles[3] = m.frozen;
    for (unsigned p = 0; p < 4; p++) {
        uint64_t key = digest_key("model", params[p].name);

        fsdp_param_get(handles[p], FSDP_VALUE, values, &m.err);
        digest_add(&model, key, (const uint32_t *)values, 0, params[p].numel);
        digest_add_tensor(&model, key, params[p].numel);
    }
    ok(fsdp_digest(m.fsdp, &digest, &m.err) == FSDP_OK &&
           memcmp(digest.model, model.word, sizeof(model)) == 0,
       "the digest is the one of all tensors");
    close_model(&m);
}

/* --- A step --------------------------------------------------------------- */

/* What all rounds leave: the tree over three micro-batches, divided. */
static float mean_of_three(uint64_t i)
{
    float left = gradient(0, i) + gradient(1, i);

    return (left + gradient(2, i)) / 3.0f;
}

static double norm_of_three(void)
{
    const uint64_t numels[] = {TABLE, WEIGHT, BIAS};
    double sum = 0.0;

    for (unsigned p = 0; p < 3; p++) {
        for (uint64_t i = 0; i < numels[p]; i++) {
            sum += (double)mean_of_three(i) * (double)mean_of_three(i);
        }
    }

    return sqrt(sum);
}

/* PyTorch's AdamW, in double. */
static double stepped(double p, double g, double lr, bool decay)
{
    double m = 0.1 * g, v = 0.05 * g * g;

    p *= decay ? 1.0 - lr * 0.1 : 1.0;
    return p - lr / (1.0 - 0.9) * m / (sqrt(v) / sqrt(1.0 - 0.95) + 1e-8);
}

static void test_step(double max_norm, const char *what)
{
    float before[WEIGHT], bias[BIAS], grad[WEIGHT], after[WEIGHT];
    fsdp_config_t config = plain();
    double norm, want = norm_of_three(), scale;
    bool same = true, near = true;
    float got[BIAS];
    model_t m;

    config.micro_batches = 3;
    open_model(&m, &config);
    fsdp_seal(m.fsdp, &m.err);
    fsdp_param_get(m.weight, FSDP_VALUE, before, &m.err);
    fsdp_param_get(m.bias, FSDP_VALUE, bias, &m.err);
    ok(run_round(&m, 0) == FSDP_OK && run_round(&m, 1) == FSDP_OK &&
           run_round(&m, 2) == FSDP_OK,
       "three rounds %s", what);
    ok(fsdp_clip(m.fsdp, max_norm, &norm, &m.err) == FSDP_OK &&
           fabs(norm - want) < 1e-6 * want,
       "the norm is that before scaling: %g", norm);
    scale = (max_norm > 0.0) ? fmin(1.0, max_norm / (norm + 1e-6)) : 1.0;
    fsdp_param_get(m.weight, FSDP_GRAD, grad, &m.err);
    for (int i = 0; i < WEIGHT; i++) {
        float g = mean_of_three((uint64_t)i);

        same &= grad[i] == ((scale < 1.0) ? g * (float)scale : g);
    }
    ok(same, "gradients are divided once and scaled once");

    ok(fsdp_optimizer_step(m.fsdp, 0.01, &m.err) == FSDP_OK &&
           fsdp_get_step(m.fsdp) == 1,
       "a step");
    fsdp_param_get(m.weight, FSDP_VALUE, after, &m.err);
    for (int i = 0; i < WEIGHT; i++) {
        near &= fabs((double)after[i] -
                     stepped((double)before[i], (double)grad[i], 0.01, true)) <
                1e-6;
    }
    ok(near, "a matrix is decayed");
    fsdp_param_get(m.bias, FSDP_VALUE, got, &m.err);
    for (int i = 0; i < BIAS; i++) {
        near &= fabs((double)got[i] -
                     stepped((double)bias[i],
                             (double)mean_of_three((uint64_t)i) * scale, 0.01,
                             false)) < 1e-6;
    }
    ok(near, "a vector is not");
    ok(fsdp_optimizer_step(m.fsdp, 0.01, &m.err) == FSDP_ERR_BAD_STATE,
       "no second step with the same gradients");
    close_model(&m);
}

/* --- Memory --------------------------------------------------------------- */

static void test_memory(void)
{
    fsdp_config_t config = plain();
    fsdp_layout_info_t info;
    fsdp_memory_t memory;
    bool equal = true;
    void *data = NULL;
    model_t m;

    open_model(&m, &config);
    ok(fsdp_mem_alloc(m.fsdp, FSDP_MEM_ACTIVATION, 1000, &data, &m.err) ==
               FSDP_OK &&
           (uintptr_t)data % 64 == 0 && ((char *)data)[999] == 0,
       "memory for the program");
    fsdp_seal(m.fsdp, &m.err);
    ok(fsdp_mem_alloc(m.fsdp, FSDP_MEM_OTHER, 1, &data, &m.err) ==
           FSDP_ERR_BAD_STATE,
       "not once it is sealed: %s", m.err.text);

    fsdp_get_layout(m.fsdp, &info);
    ok(info.parameters == TABLE + WEIGHT + BIAS + FROZEN && info.units == 2 &&
           info.rounds == 1 && info.mesh.world == 1,
       "the layout");
    /* table 64, weight 192 with its padding, bias 64; frozen 64. */
    ok(info.padded == 64 + 192 + 64 + 64, "with padding: %d", (int)info.padded);

    fsdp_get_memory(m.fsdp, &memory);
    for (int kind = 0; kind < FSDP_MEM_NUM_KINDS; kind++) {
        equal &= memory.planned[kind] == memory.peak[kind];
    }
    ok(equal && memory.planned_total == memory.peak_total,
       "what was planned is what was allocated");
    ok(memory.peak[FSDP_MEM_MASTER] == 4 * info.padded, "masters");
    ok(memory.peak[FSDP_MEM_OPTIMIZER] == 8 * (info.padded - 64),
       "two moments, none of what is frozen");
    ok(memory.peak[FSDP_MEM_PARAM_SLOT] == 0,
       "one rank has its parameters whole already");
    ok(memory.peak[FSDP_MEM_GRAD_SLOT] == 4 * (info.padded - 64) &&
           memory.peak[FSDP_MEM_GRAD_SHARD] == 4 * (info.padded - 64),
       "gradients");
    ok(memory.peak[FSDP_MEM_ACTIVATION] == 1000 &&
           memory.peak[FSDP_MEM_SAVE] == 0,
       "the program's, and no staged copy");
    close_model(&m);
}

/* --- Threads -------------------------------------------------------------- */

static atomic_ulong items, threads_seen;

static void count_item(void *arg, uint32_t item, uint32_t thread)
{
    (void)arg;
    atomic_fetch_add(&items, item);
    atomic_fetch_or(&threads_seen, 1ul << thread);
}

static void test_pool(void)
{
    bool good = true;
    fsdp_error_t err;
    pool_t *pool;

    for (uint32_t threads = 1; threads <= 4; threads++) {
        good &= pool_create(threads, &pool, &err) == FSDP_OK;
        for (uint32_t num = 0; num < 50; num++) {
            atomic_store(&items, 0);
            pool_run(pool, count_item, NULL, num);
            good &= atomic_load(&items) == num * (num - (num > 0)) / 2;
        }
        good &= atomic_load(&threads_seen) >> threads == 0;
        pool_destroy(pool);
    }
    ok(good, "each turn of a loop is done once, by 1 to 4 threads");
}

int main(void)
{
    test_bad_settings();
    test_bad_layouts();
    test_calls_out_of_order();
    test_evaluation();
    test_broken_order_stays_broken();
    test_initial_values();
    test_get_and_set();
    test_digest();
    test_step(0.0, "without clipping");
    test_step(1.5, "with clipping");
    test_step(1e9, "that need no clipping");
    test_memory();
    test_pool();
    return tap_done();
}
