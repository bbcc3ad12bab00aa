/*
 * shard-toy - a model of a few awkward units, for tests of the runtime
 *
 * Its gradients are a fixed function of (step, micro-batch, parameter,
 * element) and of the gathered value, of magnitudes from 1e-8 to 1e8, so that
 * any other order of summation and any wrong element shows.  With --check each
 * rank compares every reduced gradient with a plain recursive sum along the
 * tree.  Rank 0 prints what must be the same at every number of ranks; each
 * rank compares volumes, memory and allocations with what they must be.
 */
#include "config.h"

#include <argp.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fsdp.h"

enum { MAX_MICRO = 64, NO_RANK = -1, ALL_RANKS = -2 };

/* --- What malloc() does --------------------------------------------------- */

static atomic_ulong mallocs;

#if FSDP_SANITIZED
static const bool counts_mallocs = false;
#else
static const bool counts_mallocs = true;

/* glibc's own, under names that a program may use. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t num, size_t size);
void *__libc_realloc(void *data, size_t size);

void *malloc(size_t size)
{
    atomic_fetch_add(&mallocs, 1);
    return __libc_malloc(size);
}

void *calloc(size_t num, size_t size)
{
    atomic_fetch_add(&mallocs, 1);
    return __libc_calloc(num, size);
}

void *realloc(void *data, size_t size)
{
    atomic_fetch_add(&mallocs, 1);
    return __libc_realloc(data, size);
}
#endif

/* --- Settings ------------------------------------------------------------- */

typedef struct {
    fsdp_config_t config;
    uint32_t steps, eval;
    double max_norm;
    bool check;      /* gradients against a plain sum */
    int swap_rank;   /* this rank swaps two units, from round swap_round on */
    uint32_t swap_round;
    int odd_rank;    /* this rank has another shape */
    uint64_t poison; /* step with a NaN */
    const char *save, *load, *user;
    bool weights_only;
} settings_t;

enum { OPT_SWAP = 256, OPT_SWAP_ROUND, OPT_ODD, OPT_POISON, OPT_MAX_NORM,
       OPT_RESHARD_ROOT, OPT_SYNC_SAVE, OPT_USER, OPT_WEIGHTS };

static const struct argp_option options[] = {
    {"strategy",      's',              "NAME", 0, "none, grad-op, full, hybrid:F", 0},
    {"micro-batches", 'g',              "N",    0, "Micro-batches a step",          0},
    {"prefetch",      'p',              "N",    0, "Units gathered ahead",          0},
    {"param-bf16",    'b',              0,      0, "Gather in bf16",                0},
    {"reduce-bf16",   'r',              0,      0, "Gradients in bf16",             0},
    {"reshard-root",  OPT_RESHARD_ROOT, 0,      0, "Do not keep the root whole",    0},
    {"threads",       't',              "N",    0, "Of the optimizer",              0},
    {"steps",         'n',              "N",    0, "Steps to make",                 0},
    {"eval",          'e',              "N",    0, "Micro-batches to evaluate",     0},
    {"max-norm",      OPT_MAX_NORM,     "X",    0, "Clip",                          0},
    {"check",         'c',              0,      0, "Compare with a plain sum",      0},
    {"swap",          OPT_SWAP,         "RANK", 0, "It swaps two units",            0},
    {"swap-round",    OPT_SWAP_ROUND,   "N",    0, "From this round on",            0},
    {"odd",           OPT_ODD,          "RANK", 0, "It (-2: each) has another shape", 0},
    {"poison",        OPT_POISON,       "STEP", 0, "Has a NaN",                     0},
    {"save",          'S',              "DIR",  0, "Save at the end of each step",  0},
    {"sync-save",     OPT_SYNC_SAVE,    0,      0, "Without a staged copy",         0},
    {"user",          OPT_USER,         "JSON", 0, "Keep it with each save",        0},
    {"load",          'L',              "PATH", 0, "Load first",                    0},
    {"weights-only",  OPT_WEIGHTS,      0,      0, "Load no optimizer state",       0},
    {0}
};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    settings_t *set = state->input;
    fsdp_error_t err;

    switch (key) {
    case 's':
        if (fsdp_strategy_parse(text, &set->config.strategy,
                                &set->config.shard, &err) != FSDP_OK) {
            argp_error(state, "%s", err.text);
        }
        return 0;
    case 'g':
        set->config.micro_batches = (uint32_t)strtoul(text, NULL, 10);
        return 0;
    case 'p':
        set->config.prefetch = (uint32_t)strtoul(text, NULL, 10);
        return 0;
    case 'b':
        set->config.param_dtype = FSDP_BF16;
        return 0;
    case 'r':
        set->config.reduce_dtype = FSDP_BF16;
        return 0;
    case OPT_RESHARD_ROOT:
        set->config.reshard_root = true;
        return 0;
    case 't':
        set->config.threads = (uint32_t)strtoul(text, NULL, 10);
        return 0;
    case 'n':
        set->steps = (uint32_t)strtoul(text, NULL, 10);
        return 0;
    case 'e':
        set->eval = (uint32_t)strtoul(text, NULL, 10);
        return 0;
    case OPT_MAX_NORM:
        set->max_norm = strtod(text, NULL);
        return 0;
    case 'c':
        set->check = true;
        return 0;
    case OPT_SWAP:
        set->swap_rank = atoi(text);
        return 0;
    case OPT_SWAP_ROUND:
        set->swap_round = (uint32_t)strtoul(text, NULL, 10);
        return 0;
    case OPT_ODD:
        set->odd_rank = atoi(text);
        return 0;
    case OPT_POISON:
        set->poison = strtoull(text, NULL, 10);
        return 0;
    case 'S':
        set->save = text;
        return 0;
    case OPT_SYNC_SAVE:
        set->config.async_save = false;
        return 0;
    case OPT_USER:
        set->user = text;
        return 0;
    case 'L':
        set->load = text;
        return 0;
    case OPT_WEIGHTS:
        set->weights_only = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* --- The model ------------------------------------------------------------ */

typedef struct {
    const char *name;
    unsigned flags;
} unit_def_t;

static const unit_def_t unit_defs[] = {
    {"root",   FSDP_UNIT_ROOT  },
    {"h.0",    FSDP_UNIT_NONE  },
    {"h.1",    FSDP_UNIT_NONE  },
    {"shared", FSDP_UNIT_REUSED},
    {"h.2",    FSDP_UNIT_NONE  },
    {"still",  FSDP_UNIT_NONE  },
};

enum { ROOT, H0, H1, SHARED, H2, STILL, NUM_UNITS };

typedef struct {
    int unit;
    fsdp_param_config_t config;
    uint64_t dims[3];
} param_def_t;

static const param_def_t param_defs[] = {
    {ROOT,   {.name = "transformer.wte.weight", .ndim = 2, .init = FSDP_INIT_NORMAL, .std = 0.02f}, {37, 13}},
    {ROOT,   {.name = "transformer.ln_f.weight", .ndim = 1, .init = FSDP_INIT_ONE},                 {13}},
    {H0,     {.name = "h.0.weight", .ndim = 2, .init = FSDP_INIT_NORMAL, .std = 0.02f},             {7, 129}},
    {H0,     {.name = "h.0.rotary", .ndim = 1, .init = FSDP_INIT_NORMAL, .std = 1.0f, .frozen = true}, {33}},
    {H0,     {.name = "h.0.bias", .ndim = 1},                                                       {5}},
    {H0,     {.name = "h.0.scale", .ndim = 0, .init = FSDP_INIT_ONE},                               {0}},
    {H1,     {.name = "h.1.tiny", .ndim = 1, .init = FSDP_INIT_NORMAL, .std = 0.5f},                {3}},
    {H1,     {.name = "h.1.none", .ndim = 2},                                                       {0, 4}},
    {SHARED, {.name = "shared.weight", .ndim = 3, .init = FSDP_INIT_NORMAL, .std = 0.1f},           {11, 17, 2}},
    {H2,     {.name = "h.2.weight", .ndim = 2, .init = FSDP_INIT_NORMAL, .std = 0.02f},             {93, 211}},
    {STILL,  {.name = "still.table", .ndim = 1, .init = FSDP_INIT_NORMAL, .std = 1.0f, .frozen = true}, {19}},
};

enum { NUM_PARAMS = sizeof(param_defs) / sizeof(*param_defs) };

typedef struct {
    settings_t *set;
    fsdp_job_t *job;
    fsdp_job_info_t info;
    fsdp_t *fsdp;
    fsdp_unit_t *units[NUM_UNITS];
    fsdp_param_t *params[NUM_PARAMS];
    uint64_t numel[NUM_PARAMS];
    fsdp_error_t err;
    uint32_t rounds_run;
    unsigned long wrong; /* findings */
} toy_t;

/* The error decides the exit code. */
static _Noreturn void fail(toy_t *toy)
{
    fprintf(stderr, "shard-toy: rank %u: %s: %s\n", toy->info.rank,
            fsdp_status_name(toy->err.status), toy->err.text);
    fflush(NULL);
    _exit((int)fsdp_status_exit(toy->err.status));
}

#define TRY(_toy, _expr)          \
    do {                          \
        if ((_expr) != FSDP_OK) { \
            fail(_toy);           \
        }                         \
    } while (0)

static void find(toy_t *toy, bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "shard-toy: rank %u: %s\n", toy->info.rank, what);
        toy->wrong++;
    }
}

static void add_params(toy_t *toy)
{
    for (int i = 0; i < NUM_PARAMS; i++) {
        fsdp_param_config_t config = param_defs[i].config;
        uint64_t dims[3];

        memcpy(dims, param_defs[i].dims, sizeof(dims));
        if ((toy->set->odd_rank == (int)toy->info.rank ||
             toy->set->odd_rank == ALL_RANKS) &&
            i == 4) {
            dims[0]++;
        }
        config.size = sizeof(config);
        config.dims = dims;
        toy->numel[i] = 1;
        for (uint32_t d = 0; d < config.ndim; d++) {
            toy->numel[i] *= dims[d];
        }
        TRY(toy, fsdp_param_add(toy->units[param_defs[i].unit], &config,
                                &toy->params[i], &toy->err));
    }
    TRY(toy, fsdp_param_tie(toy->params[0], "lm_head.weight", &toy->err));
}

static void build(toy_t *toy)
{
    void *activations;

    TRY(toy, fsdp_create(toy->job, &toy->set->config, &toy->fsdp, &toy->err));
    for (int u = 0; u < NUM_UNITS; u++) {
        TRY(toy, fsdp_unit_add(toy->fsdp, unit_defs[u].name,
                               unit_defs[u].flags, &toy->units[u],
                               &toy->err));
    }
    add_params(toy);
    TRY(toy, fsdp_mem_alloc(toy->fsdp, FSDP_MEM_ACTIVATION, 12345,
                            &activations, &toy->err));
    TRY(toy, fsdp_seal(toy->fsdp, &toy->err));
}

/* --- Gradients ------------------------------------------------------------ */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* (-1, 1) times 10^-8 … 10^8. */
static float noise(int64_t step, uint32_t micro, int param, uint64_t i)
{
    static const float powers[17] = {1e-8f, 1e-7f, 1e-6f, 1e-5f, 1e-4f, 1e-3f,
                                     1e-2f, 1e-1f, 1e0f,  1e1f,  1e2f,  1e3f,
                                     1e4f,  1e5f,  1e6f,  1e7f,  1e8f};
    uint64_t bits = mix(mix((uint64_t)step * 977 + micro) +
                        mix((uint64_t)param * 1000003 + i) + 1);
    float value = (float)((int64_t)(bits & 0xffffff) - 0x800000) / 8388608.0f;

    return value * powers[(bits >> 40) % 17];
}

static float from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;

    memcpy(&value, &wide, sizeof(value));
    return value;
}

static uint16_t to_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    bits += 0x7fff + (bits >> 16 & 1); /* there are no NaNs here */
    return (uint16_t)(bits >> 16);
}

static float value_at(const toy_t *toy, const void *data, uint64_t i)
{
    return (toy->set->config.param_dtype == FSDP_BF16)
               ? from_bf16(((const uint16_t *)data)[i])
               : ((const float *)data)[i];
}

/* What use number @a use of a parameter adds to its gradient. */
static float gradient(int64_t step, uint32_t micro, int param, uint64_t i,
                      float value, uint32_t use)
{
    return noise(step, micro, param, i) * (1.0f + value) * (float)(use + 1);
}

static void add_gradient(toy_t *toy, void *grad, uint64_t i, float more)
{
    if (toy->set->config.reduce_dtype == FSDP_BF16) {
        uint16_t *at = (uint16_t *)grad + i;

        *at = to_bf16(from_bf16(*at) + more);
    } else {
        ((float *)grad)[i] += more;
    }
}

/* --- A round -------------------------------------------------------------- */

typedef struct {
    int unit;
    uint32_t use;
} call_t;

static const call_t order[] = {
    {ROOT, 0}, {H0, 0}, {SHARED, 0}, {H1, 0},   {H2, 0},
    {SHARED, 1}, {STILL, 0}, {ROOT, 1},
};

enum { NUM_CALLS = sizeof(order) / sizeof(*order) };

static call_t call_at(const toy_t *toy, int i)
{
    bool swapped = toy->set->swap_rank == (int)toy->info.rank &&
                   toy->rounds_run >= toy->set->swap_round;

    /* h.1 and h.2, which follow each other. */
    return order[(swapped && (i == 3 || i == 4)) ? 7 - i : i];
}

/* A number that depends on every element of the unit. */
static double look(const toy_t *toy, int unit, uint32_t micro)
{
    double sum = 0.0;

    for (int p = 0; p < NUM_PARAMS; p++) {
        const void *data = fsdp_param_data(toy->params[p]);

        for (uint64_t i = 0; param_defs[p].unit == unit && i < toy->numel[p];
             i++) {
            sum += (double)value_at(toy, data, i) *
                   (double)(1 + (i * 7 + micro) % 11);
        }
    }

    return sum;
}

static double forward(toy_t *toy, uint32_t micro)
{
    double loss = 0.0;

    for (int i = 0; i < NUM_CALLS; i++) {
        call_t call = call_at(toy, i);

        TRY(toy, fsdp_forward_begin(toy->units[call.unit], &toy->err));
        if (micro != FSDP_IDLE) {
            loss = loss * 0.5 + look(toy, call.unit, micro);
        }
        TRY(toy, fsdp_forward_end(toy->units[call.unit], &toy->err));
    }

    return loss;
}

static void differentiate(toy_t *toy, call_t call, uint32_t micro)
{
    int64_t step = fsdp_get_step(toy->fsdp);

    for (int p = 0; p < NUM_PARAMS; p++) {
        const void *data = fsdp_param_data(toy->params[p]);
        void *grad = fsdp_param_grad(toy->params[p]);

        if (param_defs[p].unit != call.unit || param_defs[p].config.frozen) {
            continue;
        }
        for (uint64_t i = 0; i < toy->numel[p]; i++) {
            add_gradient(toy, grad, i,
                         gradient(step, micro, p, i, value_at(toy, data, i),
                                  call.use));
        }
        if (toy->set->poison == (uint64_t)step + 1 && micro == 3 && p == 2) {
            add_gradient(toy, grad, 5, INFINITY);
        }
    }
}

static void backward(toy_t *toy, uint32_t micro)
{
    for (int i = NUM_CALLS - 1; i >= 0; i--) {
        call_t call = call_at(toy, i);

        if (call.unit == STILL) {
            continue;
        }
        TRY(toy, fsdp_backward_begin(toy->units[call.unit], &toy->err));
        if (micro != FSDP_IDLE) {
            differentiate(toy, call, micro);
        }
        TRY(toy, fsdp_backward_end(toy->units[call.unit], &toy->err));
    }
}

/* --- The oracle ----------------------------------------------------------- */

typedef struct {
    toy_t *toy;
    int64_t step;
    int param;
    uint64_t i;
    float value;
} leaf_t;

static float leaf(const leaf_t *at, uint32_t micro)
{
    bool bf16 = at->toy->set->config.reduce_dtype == FSDP_BF16;
    float sum = 0.0f;

    for (int i = NUM_CALLS - 1; i >= 0; i--) {
        if (order[i].unit == param_defs[at->param].unit) {
            sum += gradient(at->step, micro, at->param, at->i, at->value,
                            order[i].use);
            sum = bf16 ? from_bf16(to_bf16(sum)) : sum;
        }
    }

    return sum;
}

/* node(l, i) of the tree over @a count micro-batches. */
static float node(const leaf_t *at, uint32_t level, uint32_t index,
                  uint32_t count)
{
    float left;

    if (level == 0) {
        return leaf(at, index);
    }
    left = node(at, level - 1, 2 * index, count);
    if ((2 * index + 1) << (level - 1) >= count) {
        return left;
    }

    return left + node(at, level - 1, 2 * index + 1, count);
}

static void check_gradients(toy_t *toy, double norm)
{
    uint32_t count = toy->set->config.micro_batches, top = 0;
    double most = toy->set->max_norm;
    float scale =
        (most > 0.0) ? (float)fmin(1.0, most / (norm + 1e-6)) : 1.0f;
    long double squares = 0.0L;
    unsigned long differ = 0;

    while ((1u << top) < count) {
        top++;
    }
    for (int p = 0; p < NUM_PARAMS; p++) {
        float *value, *grad;

        if (param_defs[p].config.frozen) {
            continue;
        }
        value = malloc((toy->numel[p] + 1) * sizeof(*value));
        grad = malloc((toy->numel[p] + 1) * sizeof(*grad));
        TRY(toy, fsdp_param_get(toy->params[p], FSDP_VALUE, value, &toy->err));
        TRY(toy, fsdp_param_get(toy->params[p], FSDP_GRAD, grad, &toy->err));
        for (uint64_t i = 0; i < toy->numel[p]; i++) {
            leaf_t at = {toy, fsdp_get_step(toy->fsdp), p, i, value[i]};
            float want;

            if (toy->set->config.param_dtype == FSDP_BF16) {
                at.value = from_bf16(to_bf16(value[i]));
            }
            want = node(&at, top, 0, count) / (float)count;
            squares += (long double)want * (long double)want;
            want *= scale;
            differ += memcmp(&want, &grad[i], sizeof(want)) != 0;
        }
        free(value);
        free(grad);
    }

    find(toy, differ == 0, "gradients differ from the plain sum");
    find(toy, fabsl(sqrtl(squares) - (long double)norm) <=
                  1e-7L * sqrtl(squares),
         "the norm is wrong");
}

/* --- Steps ---------------------------------------------------------------- */

static void run_rounds(toy_t *toy, fsdp_mode_t mode, uint32_t count,
                       double *all)
{
    double mine[MAX_MICRO] = {0};
    uint32_t rounds = (count - 1) / toy->info.world + 1;

    for (uint32_t round = 0; round < rounds; round++) {
        uint32_t micro;

        TRY(toy, fsdp_micro_begin(toy->fsdp, mode, round, count, &micro,
                                  &toy->err));
        mine[round] = forward(toy, micro);
        if (mode == FSDP_TRAIN) {
            backward(toy, micro);
        }
        TRY(toy, fsdp_micro_end(toy->fsdp, &toy->err));
        toy->rounds_run++;
    }
    TRY(toy, fsdp_gather_scalars(toy->fsdp, mine, count, all, &toy->err));
}

static double sum(const double *values, uint32_t num)
{
    double total = 0.0;

    for (uint32_t i = 0; i < num; i++) {
        total += values[i];
    }

    return total;
}

/* Volumes of a step against the formulas. */
static void check_volume(toy_t *toy, const fsdp_counters_t *before)
{
    fsdp_counters_t now;
    uint64_t gather, reduce, replica;
    char text[200];

    fsdp_get_counters(toy->fsdp, &now);
    now.gather_bytes -= before->gather_bytes;
    now.reduce_bytes -= before->reduce_bytes;
    now.replica_bytes -= before->replica_bytes;
    fsdp_expected_volume(toy->fsdp, &gather, &reduce, &replica);
    snprintf(text, sizeof(text),
             "sent %" PRIu64 " %" PRIu64 " %" PRIu64 " bytes, not %" PRIu64
             " %" PRIu64 " %" PRIu64,
             now.gather_bytes, now.reduce_bytes, now.replica_bytes, gather,
             reduce, replica);
    find(toy, now.gather_bytes == gather && now.reduce_bytes == reduce &&
                  now.replica_bytes == replica,
         text);
}

static void save(toy_t *toy)
{
    fsdp_save_config_t config = FSDP_SAVE_CONFIG_INIT;

    config.dir = toy->set->save;
    config.user_json = toy->set->user;
    TRY(toy, fsdp_save_start(toy->fsdp, &config, &toy->err));
}

static void train_step(toy_t *toy)
{
    double losses[MAX_MICRO], norm;
    fsdp_counters_t before;
    fsdp_status_t status;

    fsdp_get_counters(toy->fsdp, &before);
    run_rounds(toy, FSDP_TRAIN, toy->set->config.micro_batches, losses);
    TRY(toy, fsdp_clip(toy->fsdp, toy->set->max_norm, &norm, &toy->err));
    check_volume(toy, &before);
    if (toy->set->check) {
        check_gradients(toy, norm);
    }
    if (toy->info.rank == 0) {
        printf("step %" PRId64 " loss %a norm %a\n",
               fsdp_get_step(toy->fsdp) + 1,
               sum(losses, toy->set->config.micro_batches), norm);
    }

    status = fsdp_optimizer_step(toy->fsdp, 1e-3, &toy->err);
    if (!isfinite(norm)) {
        find(toy, status == FSDP_ERR_BAD_STATE, "stepped on a NaN");
        toy->set->poison = 0;
        return;
    }
    TRY(toy, status);
    if (toy->set->save != NULL) {
        save(toy);
    }
}

static void check_memory(toy_t *toy, const fsdp_memory_t *early,
                         unsigned long early_mallocs)
{
    unsigned long late_mallocs = atomic_load(&mallocs);
    fsdp_memory_t memory;

    fsdp_get_memory(toy->fsdp, &memory);
    for (int kind = 0; kind < FSDP_MEM_NUM_KINDS; kind++) {
        find(toy, memory.planned[kind] == memory.peak[kind],
             "peak memory is not what was planned");
    }
    find(toy, memory.planned_total == memory.peak_total,
         "peak memory is not what was planned in all");
    find(toy, memory.allocations == early->allocations,
         "memory was allocated after the second step");
    /* MPI has its own ways. */
    if (counts_mallocs && toy->info.world == 1 && toy->set->save == NULL &&
        !toy->set->check) {
        find(toy, late_mallocs == early_mallocs,
             "malloc() was called after the second step");
    }
}

static void load(toy_t *toy)
{
    fsdp_load_config_t config = FSDP_LOAD_CONFIG_INIT;
    fsdp_load_result_t result;

    config.path = toy->set->load;
    config.weights_only = toy->set->weights_only;
    TRY(toy, fsdp_load(toy->fsdp, &config, &result, &toy->err));
    if (toy->info.rank == 0) {
        printf("loaded step %" PRId64 " user %s\n", result.step,
               result.user_json ? result.user_json : "-");
    }
    free(result.user_json);
}

static void run(toy_t *toy)
{
    unsigned long early_mallocs = 0;
    fsdp_memory_t early = {0};
    double losses[MAX_MICRO];

    for (uint32_t i = 0; i < toy->set->steps; i++) {
        train_step(toy);
        if (toy->set->eval > 0) {
            run_rounds(toy, FSDP_EVAL, toy->set->eval, losses);
            if (toy->info.rank == 0) {
                printf("eval %a\n", sum(losses, toy->set->eval));
            }
        }
        if (i == 1) {
            fflush(stdout);
            fsdp_get_memory(toy->fsdp, &early);
            early_mallocs = atomic_load(&mallocs);
        }
    }
    if (toy->set->steps >= 2) {
        check_memory(toy, &early, early_mallocs);
    }
    TRY(toy, fsdp_save_wait(toy->fsdp, &toy->err));
}

static void print_digest(toy_t *toy)
{
    fsdp_digest_t digest;

    TRY(toy, fsdp_digest(toy->fsdp, &digest, &toy->err));
    if (toy->info.rank == 0) {
        printf("digest %016" PRIx64 "%016" PRIx64 " %016" PRIx64
               "%016" PRIx64 "\n",
               digest.model[0], digest.model[1], digest.optim[0],
               digest.optim[1]);
    }
}

int main(int argc, char **argv)
{
    const struct argp argp = {options, parse_option, NULL,
                              "Run a toy model under mpirun or alone.", 0, 0,
                              0};
    settings_t set = {.config = FSDP_CONFIG_INIT, .steps = 3,
                      .user = "{\"toy\": [1, 2, 3]}",
                      .swap_rank = NO_RANK, .odd_rank = NO_RANK, .max_norm = 1.0};
    fsdp_job_config_t job_config = FSDP_JOB_CONFIG_INIT;
    toy_t toy = {.set = &set};

    set.config.micro_batches = 8;
    set.config.seed = 42;
    set.config.async_save = true;
    argp_err_exit_status = FSDP_EXIT_USAGE;
    argp_parse(&argp, argc, argv, 0, 0, &set);

    job_config.deadline = 20;
    TRY(&toy, fsdp_job_open(&job_config, &toy.job, &toy.err));
    fsdp_job_get_info(toy.job, &toy.info);
    build(&toy);
    if (set.load != NULL) {
        load(&toy);
    }
    print_digest(&toy);
    run(&toy);
    print_digest(&toy);

    fsdp_destroy(toy.fsdp);
    fsdp_job_close(toy.job);
    return (fflush(stdout) != 0 || toy.wrong > 0) ? FSDP_EXIT_TROUBLE
                                                  : FSDP_EXIT_DONE;
}
