/*
 * Replay: train what a directory records, and compare every quantity that was
 * recorded with ours.  The directory holds config.json, meta.json,
 * weights.safetensors, tokens.safetensors, grads_step0.safetensors,
 * weights_after.safetensors and adamw_after.safetensors.
 */
#include "config.h"

#include "bin/train.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bin/table.h"
#include "fsdp_ckpt.h"
#include "lib/util/check.h"
#include "lib/util/io.h"

/* --- Tolerances ----------------------------------------------------------- */

/* What is compared; each has one tolerance. */
typedef enum {
    GROUP_MICRO_LOSS = 0,
    GROUP_LOSS,
    GROUP_NORM,
    GROUP_GRAD,
    GROUP_WEIGHT,
    GROUP_WEIGHT_RMS,
    GROUP_EXP_AVG,
    GROUP_EXP_AVG_SQ,
    NUM_GROUPS
} group_t;

typedef struct {
    const char *name;
    const char *unit;  /* of the difference */
    double fp32, bf16; /* largest difference */
} group_info_t;

static const group_info_t group_info[NUM_GROUPS] = {
    {"loss of a micro-batch", "relative",           2e-6, 5e-3},
    {"loss",                  "relative",           2e-6, 5e-3},
    {"gradient norm",         "relative",           1e-5, 5e-2},
    {"gradient of step 0",    "of largest entry",   2e-5, 1e-1},
    {"weight after",          "of the lr, largest", 0.5,  0   },
    {"weight after",          "of the lr, rms",     0.01, 0   },
    {"exp_avg after",         "of largest entry",   1e-4, 2e-1},
    {"exp_avg_sq after",      "of largest entry",   1e-4, 2e-1},
};

/* With bf16 the direction of Adam's steps is noise where gradients are tiny:
 * what is left is how far it can go, and the average. */
#define BF16_WEIGHT_PER_STEP 2.0
#define BF16_RMS_PER_STEP    0.25

/* One compared quantity. */
typedef struct {
    group_t group;
    char *name;
    double ours, recorded; /* where they differ most */
    double difference;     /* in the group's unit */
} row_t;

typedef struct {
    train_t *train;
    const char *dir;
    json_t *meta;
    fsdp_ckpt_t *tokens;
    double tolerance[NUM_GROUPS];
    row_t *rows;
    size_t num_rows;
    double *mine, *all; /* losses of a step */
    double clipped;     /* what gradients were multiplied with; 1: nothing */
    double square_sum;  /* of weight differences, over all parameters */
    uint64_t square_num;
} replay_t;

static void add_row(replay_t *replay, group_t group, char *name, double ours,
                    double recorded, double difference)
{
    replay->rows =
        cli_realloc(replay->rows, replay->num_rows + 1, sizeof(*replay->rows));
    replay->rows[replay->num_rows++] =
        (row_t){group, name, ours, recorded, difference};
}

/* Nothing that is not a number is within. */
static bool row_within(const replay_t *replay, const row_t *row)
{
    return row->difference <= replay->tolerance[row->group];
}

static void set_tolerances(replay_t *replay, double steps)
{
    const train_t *train = replay->train;
    bool fp32 =
        train->param_dtype == FSDP_F32 && train->reduce_dtype == FSDP_F32;

    for (unsigned g = 0; g < NUM_GROUPS; g++) {
        replay->tolerance[g] = fp32 ? group_info[g].fp32 : group_info[g].bf16;
    }
    if (!fp32) {
        replay->tolerance[GROUP_WEIGHT] = BF16_WEIGHT_PER_STEP * steps;
        replay->tolerance[GROUP_WEIGHT_RMS] = BF16_RMS_PER_STEP * steps;
    }
}

/* --- Reading what was recorded -------------------------------------------- */

static fsdp_status_t read_json(const char *dir, const char *name,
                               json_t **json_p, fsdp_error_t *err)
{
    char *path = cli_printf("%s/%s", dir, name), *text;
    json_error_t where;
    fsdp_status_t status;
    size_t size;

    FSDP_TRY_GOTO(io_read_file(path, 64u << 20, &text, &size, err), err_path);
    *json_p = json_loadb(text, size, 0, &where);
    free(text);
    if (!json_is_object(*json_p)) {
        json_decref(*json_p);
        *json_p = NULL;
        status = fsdp_error_set(err, FSDP_ERR_CORRUPT, "%s, line %d: %s", path,
                                where.line,
                                where.text[0] ? where.text : "no object");
    }

err_path:
    free(path);
    return status;
}

/* A number of meta.json, or *value_p where it is optional and absent. */
static fsdp_status_t read_number(const replay_t *replay, const char *key,
                                 bool needed, double *value_p,
                                 fsdp_error_t *err)
{
    json_t *value = json_object_get(replay->meta, key);

    if (json_is_number(value)) {
        *value_p = json_number_value(value);
    } else if (value != NULL || needed) {
        return fsdp_error_set(err, FSDP_ERR_BAD_DATA, "%s/meta.json: %s is %s",
                              replay->dir, key,
                              value ? "no number" : "missing");
    }

    return FSDP_OK;
}

/* Hyperparameters of the record; the schedule is flat unless it says more. */
static fsdp_status_t read_hypers(replay_t *replay, fsdp_error_t *err)
{
    static const struct {
        const char *key;
        hyper_t hyper;
        bool needed;
    } keys[] = {
        {"lr",            HYPER_LR,            true },
        {"beta1",         HYPER_BETA1,         true },
        {"beta2",         HYPER_BETA2,         true },
        {"eps",           HYPER_EPS,           true },
        {"weight_decay",  HYPER_WEIGHT_DECAY,  true },
        {"clip",          HYPER_CLIP,          false},
        {"micro_batches", HYPER_MICRO_BATCHES, true },
        {"batch",         HYPER_BATCH,         true },
        {"seq",           HYPER_SEQ,           true },
    };
    settings_t *set = replay->train->set;
    double steps = 0;

    for (unsigned h = 0; h < NUM_HYPERS; h++) {
        set->hyper[h] = 0;
    }
    for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++) {
        const hyper_info_t *info = &hyper_info[keys[i].hyper];
        double *value = &set->hyper[keys[i].hyper];

        FSDP_TRY(read_number(replay, keys[i].key, keys[i].needed, value, err));
        if (!(*value >= info->least && *value <= info->most) ||
            (info->whole && *value != floor(*value))) {
            return fsdp_error_set(err, FSDP_ERR_BAD_DATA,
                                  "%s/meta.json: %s cannot be %.9g",
                                  replay->dir, keys[i].key, *value);
        }
    }
    set->hyper[HYPER_MIN_LR] = set->hyper[HYPER_LR];

    FSDP_TRY(read_number(replay, "steps", true, &steps, err));
    if (!(steps >= 1 && steps <= INT32_MAX) || steps != floor(steps)) {
        return fsdp_error_set(err, FSDP_ERR_BAD_DATA,
                              "%s/meta.json: steps cannot be %.9g", replay->dir,
                              steps);
    }
    set->steps = (int64_t)steps;

    return FSDP_OK;
}

/* The model, if it is one that can be built. */
static fsdp_status_t read_model(replay_t *replay, fsdp_error_t *err)
{
    char *path = cli_printf("%s/config.json", replay->dir);
    fsdp_status_t status;
    const char *type;
    json_t *config;

    FSDP_TRY_GOTO(read_json(replay->dir, "config.json", &config, err),
                  err_path);
    type = json_string_value(json_object_get(config, "model_type"));
    if (type != NULL && strcmp(type, "gpt2") != 0) {
        status = fsdp_error_set(err, FSDP_ERR_CONFIG,
                                "%s: models of type %s cannot be built, only "
                                "gpt2",
                                path, type);
    } else {
        replay->train->model = (gpt2_config_t)GPT2_CONFIG_INIT;
        status = gpt2_config_read(path, &replay->train->model, err);
    }
    json_decref(config);

err_path:
    free(path);
    return status;
}

static fsdp_status_t open_tensors(const replay_t *replay, const char *name,
                                  fsdp_ckpt_t **ckpt_p, fsdp_error_t *err)
{
    char *path = cli_printf("%s/%s", replay->dir, name);
    fsdp_status_t status = fsdp_ckpt_open(path, ckpt_p, err);

    free(path);
    return status;
}

/* The tokens, whose shape must be what meta.json says. */
static fsdp_status_t open_tokens(replay_t *replay, fsdp_error_t *err)
{
    const settings_t *set = replay->train->set;
    const uint64_t want[4] = {
        (uint64_t)set->steps, hyper_u32(set, HYPER_MICRO_BATCHES),
        hyper_u32(set, HYPER_BATCH), hyper_u32(set, HYPER_SEQ) + 1u};
    fsdp_ckpt_tensor_t tensor;
    uint64_t index;

    FSDP_TRY(open_tensors(replay, "tokens.safetensors", &replay->tokens, err));
    if (!fsdp_ckpt_find(replay->tokens, "tokens", &index)) {
        return fsdp_error_set(err, FSDP_ERR_BAD_DATA,
                              "%s/tokens.safetensors: there is no tensor "
                              "'tokens'",
                              replay->dir);
    }

    fsdp_ckpt_get_tensor(replay->tokens, index, &tensor);
    if (tensor.dtype != FSDP_DTYPE_I32 || tensor.ndim != 4 ||
        memcmp(tensor.dims, want, sizeof(want)) != 0) {
        return fsdp_error_set(err, FSDP_ERR_BAD_DATA,
                              "%s/tokens.safetensors: tokens are not int32 of "
                              "shape %" PRIu64 " x %" PRIu64 " x %" PRIu64
                              " x %" PRIu64 ", as meta.json has it",
                              replay->dir, want[0], want[1], want[2], want[3]);
    }

    return FSDP_OK;
}

static fsdp_status_t read_tokens(const replay_t *replay, int64_t step,
                                 uint32_t micro, fsdp_error_t *err)
{
    train_t *train = replay->train;
    const settings_t *set = train->set;
    fsdp_ckpt_engine_t engine = {.jobs = 1};
    uint64_t count = (uint64_t)hyper_u32(set, HYPER_BATCH) *
                     (hyper_u32(set, HYPER_SEQ) + 1u);
    fsdp_ckpt_range_t range = {.count = count, .data = train->tokens};

    fsdp_ckpt_find(replay->tokens, "tokens", &range.tensor);
    range.first =
        ((uint64_t)step * hyper_u32(set, HYPER_MICRO_BATCHES) + micro) * count;
    FSDP_TRY(fsdp_ckpt_read(replay->tokens, &range, 1, &engine, NULL, err));
    for (uint64_t i = 0; i < count; i++) {
        if (train->tokens[i] < 0 ||
            (uint32_t)train->tokens[i] >= train->model.vocab) {
            return fsdp_error_set(err, FSDP_ERR_BAD_DATA,
                                  "%s/tokens.safetensors: step %" PRId64
                                  ", micro-batch %u has token %d, the "
                                  "vocabulary is %u",
                                  replay->dir, step, micro, train->tokens[i],
                                  train->model.vocab);
        }
    }

    return FSDP_OK;
}

/* An array of meta.json: at [index], or at [index][inner]. */
static fsdp_status_t recorded(const replay_t *replay, const char *key,
                              int64_t index, int64_t inner, double *value_p,
                              fsdp_error_t *err)
{
    json_t *value =
        json_array_get(json_object_get(replay->meta, key), (size_t)index);

    if (inner >= 0) {
        value = json_array_get(value, (size_t)inner);
    }
    if (!json_is_number(value)) {
        return fsdp_error_set(
            err, FSDP_ERR_BAD_DATA,
            "%s/meta.json: %s has no number for step %" PRId64, replay->dir,
            key, index);
    }

    *value_p = json_number_value(value);
    return FSDP_OK;
}

/* --- Comparing numbers ---------------------------------------------------- */

static fsdp_status_t compare_number(replay_t *replay, group_t group,
                                    const char *key, int64_t step,
                                    int64_t micro, double ours,
                                    fsdp_error_t *err)
{
    double want = 0;
    char *name;

    FSDP_TRY(recorded(replay, key, step, micro, &want, err));
    name = (micro >= 0) ? cli_printf("step %" PRId64 ", micro-batch %" PRId64,
                                     step, micro)
                        : cli_printf("step %" PRId64, step);
    add_row(replay, group, name, ours, want,
            ours == want ? 0 : fabs(ours - want) / fabs(want));

    return FSDP_OK;
}

/* --- Comparing tensors ---------------------------------------------------- */

/* One recorded tensor as floats; the caller frees *values_p. */
static fsdp_status_t read_floats(const replay_t *replay, fsdp_ckpt_t *ckpt,
                                 uint64_t index, const char *file,
                                 float **values_p, fsdp_error_t *err)
{
    fsdp_ckpt_range_t range = {.tensor = index};
    fsdp_ckpt_tensor_t tensor;
    fsdp_status_t status;

    fsdp_ckpt_get_tensor(ckpt, index, &tensor);
    if (tensor.dtype != FSDP_DTYPE_F32) {
        return fsdp_error_set(err, FSDP_ERR_BAD_DATA,
                              "%s/%s: %s is %s, not f32", replay->dir, file,
                              tensor.name, fsdp_dtype_name(tensor.dtype));
    }

    range.count = tensor.numel;
    range.data = cli_realloc(NULL, tensor.numel, sizeof(float));
    status = fsdp_ckpt_read(ckpt, &range, 1, NULL, NULL, err);
    if (status != FSDP_OK) {
        free(range.data);
        return status;
    }

    *values_p = range.data;
    return FSDP_OK;
}

/* Where two arrays differ most, and the sums. */
typedef struct {
    double largest; /* magnitude recorded */
    double difference, ours, recorded;
    double square_sum;
} compare_t;

static compare_t compare_arrays(const float *ours, const float *want,
                                uint64_t num)
{
    compare_t c = {.difference = -1};

    for (uint64_t i = 0; i < num; i++) {
        double a = (double)ours[i], b = (double)want[i];
        double difference = fabs(a - b);

        c.largest = fmax(c.largest, fabs(b));
        c.square_sum += difference * difference;
        if (!(difference <= c.difference)) {
            c.difference = isnan(difference) ? INFINITY : difference;
            c.ours = a;
            c.recorded = b;
        }
    }
    c.difference = fmax(c.difference, 0);

    return c;
}

static void compare_values(replay_t *replay, group_t group, const char *name,
                           const float *ours, const float *want, uint64_t num)
{
    compare_t c = compare_arrays(ours, want, num);
    double scale = c.largest;

    if (group == GROUP_WEIGHT) {
        scale = replay->train->set->hyper[HYPER_LR];
        replay->square_sum += c.square_sum;
        replay->square_num += num;
    }
    add_row(replay, group, cli_strdup(name), c.ours, c.recorded,
            c.difference == 0 ? 0 : c.difference / scale);
}

/* The parameter of a recorded tensor, of the same size. */
static fsdp_status_t find_param(const replay_t *replay, const char *name,
                                uint64_t numel, const char *file,
                                fsdp_param_t **param_p, fsdp_error_t *err)
{
    fsdp_param_t *param = fsdp_param_find(replay->train->fsdp, name);

    if (param == NULL || fsdp_param_numel(param) != numel) {
        return fsdp_error_set(err, FSDP_ERR_BAD_DATA,
                              "%s/%s: the model of config.json has no "
                              "parameter %s of %" PRIu64 " elements",
                              replay->dir, file, name, numel);
    }

    *param_p = param;
    return FSDP_OK;
}

static fsdp_status_t compare_tensor(replay_t *replay, fsdp_ckpt_t *ckpt,
                                    uint64_t index, const char *file,
                                    const char *prefix, fsdp_what_t what,
                                    group_t group, fsdp_error_t *err)
{
    float *want = NULL, *ours;
    fsdp_ckpt_tensor_t tensor;
    fsdp_param_t *param = NULL;
    fsdp_status_t status;
    const char *name;

    fsdp_ckpt_get_tensor(ckpt, index, &tensor);
    name = tensor.name + strlen(prefix);
    status = find_param(replay, name, tensor.numel, file, &param, err);
    if (status == FSDP_OK) {
        status = read_floats(replay, ckpt, index, file, &want, err);
    }
    FSDP_TRY(setup_agree(replay->train, status, err));

    ours = cli_realloc(NULL, tensor.numel, sizeof(*ours));
    status = fsdp_param_get(param, what, ours, err);
    if (status == FSDP_OK) {
        for (uint64_t i = 0; what == FSDP_GRAD && i < tensor.numel; i++) {
            ours[i] /= (float)replay->clipped;
        }
        compare_values(replay, group, name, ours, want, tensor.numel);
    }
    free(ours);
    free(want);

    return status;
}

/* All tensors of a file whose names begin with a prefix; there must be some. */
static fsdp_status_t compare_file(replay_t *replay, const char *file,
                                  const char *prefix, fsdp_what_t what,
                                  group_t group, fsdp_error_t *err)
{
    fsdp_ckpt_info_t info;
    fsdp_ckpt_tensor_t tensor;
    fsdp_ckpt_t *ckpt = NULL;
    fsdp_status_t status = open_tensors(replay, file, &ckpt, err);
    uint64_t found = 0;

    FSDP_TRY(setup_agree(replay->train, status, err));
    fsdp_ckpt_get_info(ckpt, &info);
    for (uint64_t i = 0; i < info.num_tensors; i++) {
        fsdp_ckpt_get_tensor(ckpt, i, &tensor);
        if (strncmp(tensor.name, prefix, strlen(prefix)) == 0) {
            FSDP_TRY_GOTO(
                compare_tensor(replay, ckpt, i, file, prefix, what, group, err),
                err_ckpt);
            found++;
        }
    }
    if (found == 0) {
        status = fsdp_error_set(err, FSDP_ERR_BAD_DATA,
                                "%s/%s: no tensor is named %s*", replay->dir,
                                file, prefix);
    }

err_ckpt:
    fsdp_ckpt_close(ckpt);
    return status;
}

/* --- Training ------------------------------------------------------------- */

static fsdp_status_t run_round(replay_t *replay, int64_t step, uint32_t round,
                               fsdp_error_t *err)
{
    train_t *train = replay->train;
    const settings_t *set = train->set;
    uint32_t micro;
    fsdp_status_t status = FSDP_OK;
    double loss = 0;

    FSDP_TRY(fsdp_micro_begin(train->fsdp, FSDP_TRAIN, round, 0, &micro, err));
    if (micro != FSDP_IDLE) {
        status = read_tokens(replay, step, micro, err);
    }
    FSDP_TRY(setup_agree(train, status, err));
    FSDP_TRY(gpt2_train(train->gpt2, micro == FSDP_IDLE ? NULL : train->tokens,
                        hyper_u32(set, HYPER_BATCH), hyper_u32(set, HYPER_SEQ),
                        &loss, err));
    replay->mine[round] = loss;

    return fsdp_micro_end(train->fsdp, err);
}

static fsdp_status_t run_step(replay_t *replay, int64_t step, uint32_t rounds,
                              fsdp_error_t *err)
{
    train_t *train = replay->train;
    const settings_t *set = train->set;
    uint32_t count = hyper_u32(set, HYPER_MICRO_BATCHES);
    double sum = 0, norm;

    for (uint32_t round = 0; round < rounds; round++) {
        FSDP_TRY(run_round(replay, step, round, err));
    }
    FSDP_TRY(fsdp_gather_scalars(train->fsdp, replay->mine, count, replay->all,
                                 err));
    FSDP_TRY(fsdp_clip(train->fsdp, set->hyper[HYPER_CLIP], &norm, err));
    for (uint32_t m = 0; m < count; m++) {
        sum += replay->all[m];
        FSDP_TRY(compare_number(replay, GROUP_MICRO_LOSS,
                                "loss_per_micro_batch", step, m, replay->all[m],
                                err));
    }
    FSDP_TRY(
        compare_number(replay, GROUP_LOSS, "loss", step, -1, sum / count, err));
    FSDP_TRY(
        compare_number(replay, GROUP_NORM, "grad_norm", step, -1, norm, err));
    if (step == 0) {
        /* What was recorded is the gradient before clipping. */
        replay->clipped = set->hyper[HYPER_CLIP] > 0
                              ? fmin(1, set->hyper[HYPER_CLIP] / (norm + 1e-6))
                              : 1;
        FSDP_TRY(compare_file(replay, "grads_step0.safetensors", "", FSDP_GRAD,
                              GROUP_GRAD, err));
    }

    return fsdp_optimizer_step(train->fsdp, set->hyper[HYPER_LR], err);
}

static fsdp_status_t compare_after(replay_t *replay, fsdp_error_t *err)
{
    double rms;

    FSDP_TRY(compare_file(replay, "weights_after.safetensors", "", FSDP_VALUE,
                          GROUP_WEIGHT, err));
    rms = sqrt(replay->square_sum / (double)replay->square_num);
    add_row(replay, GROUP_WEIGHT_RMS, cli_strdup("all parameters"), NAN, NAN,
            rms == 0 ? 0 : rms / replay->train->set->hyper[HYPER_LR]);
    FSDP_TRY(compare_file(replay, "adamw_after.safetensors", "exp_avg.",
                          FSDP_EXP_AVG, GROUP_EXP_AVG, err));

    return compare_file(replay, "adamw_after.safetensors", "exp_avg_sq.",
                        FSDP_EXP_AVG_SQ, GROUP_EXP_AVG_SQ, err);
}

/* --- The table ------------------------------------------------------------ */

static void print_rows(const replay_t *replay)
{
    static const table_column_t columns[] = {
        {"quantity",   false},
        {"of",         false},
        {"ours",       true },
        {"recorded",   true },
        {"difference", true },
        {"",           false},
    };
    table_t *table = table_create(columns, 6);

    for (size_t i = 0; i < replay->num_rows; i++) {
        const row_t *row = &replay->rows[i];

        table_cell(table, "%s", group_info[row->group].name);
        table_cell(table, "%s", row->name);
        if (isnan(row->recorded)) {
            table_cell(table, "%s", "");
            table_cell(table, "%s", "");
        } else {
            table_cell(table, "%.9g", row->ours);
            table_cell(table, "%.9g", row->recorded);
        }
        table_cell(table, "%.2e", row->difference);
        table_cell(table, "%s", row_within(replay, row) ? "" : "OUTSIDE");
        table_row_end(table);
    }
    table_print(table, stdout);
    table_destroy(table);
}

/* The worst of a group, or NULL if it has no row. */
static const row_t *worst_row(const replay_t *replay, group_t group,
                              size_t *num_p)
{
    const row_t *worst = NULL;

    *num_p = 0;
    for (size_t i = 0; i < replay->num_rows; i++) {
        const row_t *row = &replay->rows[i];

        if (row->group == group) {
            (*num_p)++;
            if (worst == NULL || !(row->difference <= worst->difference)) {
                worst = row;
            }
        }
    }

    return worst;
}

static void print_groups(const replay_t *replay)
{
    static const table_column_t columns[] = {
        {"quantity", false},
        {"compared", true },
        {"worst",    true },
        {"allowed",  true },
        {"",         false},
        {"",         false},
        {"where",    false},
    };
    table_t *table = table_create(columns, 7);
    size_t num;

    for (unsigned g = 0; g < NUM_GROUPS; g++) {
        const row_t *row = worst_row(replay, (group_t)g, &num);

        if (row != NULL) {
            table_cell(table, "%s", group_info[g].name);
            table_cell(table, "%zu", num);
            table_cell(table, "%.2e", row->difference);
            table_cell(table, "%.2e", replay->tolerance[g]);
            table_cell(table, "%s", group_info[g].unit);
            table_cell(table, "%s",
                       row_within(replay, row) ? "within" : "OUTSIDE");
            table_cell(table, "%s", row->name);
            table_row_end(table);
        }
    }
    table_print(table, stdout);
    table_destroy(table);
}

static void emit_events(const replay_t *replay, bool within)
{
    json_t *event;

    for (size_t i = 0; i < replay->num_rows; i++) {
        const row_t *row = &replay->rows[i];

        event = json_object();
        cli_json_set(event, "event", cli_json_text("replay"));
        cli_json_set(event, "quantity",
                     cli_json_text(group_info[row->group].name));
        cli_json_set(event, "of", cli_json_text(row->name));
        cli_json_set(event, "unit", cli_json_text(group_info[row->group].unit));
        cli_json_set(event, "ours", cli_json_number(row->ours));
        cli_json_set(event, "recorded", cli_json_number(row->recorded));
        cli_json_set(event, "difference", cli_json_number(row->difference));
        cli_json_set(event, "tolerance",
                     cli_json_number(replay->tolerance[row->group]));
        cli_json_set(event, "within", json_boolean(row_within(replay, row)));
        report_event(replay->train, event);
    }
    event = json_object();
    cli_json_set(event, "event", cli_json_text("replay-end"));
    cli_json_set(event, "within", json_boolean(within));
    report_event(replay->train, event);
}

static bool show_results(const replay_t *replay)
{
    const train_t *train = replay->train;
    size_t outside = 0;

    for (size_t i = 0; i < replay->num_rows; i++) {
        outside += !row_within(replay, &replay->rows[i]);
    }
    if (train->info.rank == 0) {
        emit_events(replay, outside == 0);
        if (!train->set->json && !train->set->quiet) {
            print_rows(replay);
            printf("\n");
            print_groups(replay);
            printf("\n%zu of %zu quantities are within their tolerances\n",
                   replay->num_rows - outside, replay->num_rows);
        }
    }

    return outside == 0;
}

/* --- The whole ------------------------------------------------------------ */

static fsdp_status_t prepare(replay_t *replay, fsdp_error_t *err)
{
    train_t *train = replay->train;

    FSDP_TRY(read_model(replay, err));
    FSDP_TRY(read_json(replay->dir, "meta.json", &replay->meta, err));
    FSDP_TRY(read_hypers(replay, err));
    if (hyper_u32(train->set, HYPER_SEQ) > train->model.positions) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "%s: sequences of %u tokens are longer than the "
                              "model's %u positions",
                              replay->dir, hyper_u32(train->set, HYPER_SEQ),
                              train->model.positions);
    }

    train->param_dtype =
        train->set->param_dtype == FSDP_BF16 ? FSDP_BF16 : FSDP_F32;
    train->reduce_dtype =
        train->set->reduce_dtype == FSDP_BF16 ? FSDP_BF16 : FSDP_F32;
    train->entropy = NAN;
    train->source = cli_printf("%s/weights.safetensors", replay->dir);
    set_tolerances(replay, (double)train->set->steps);

    return open_tokens(replay, err);
}

static fsdp_status_t run(replay_t *replay, fsdp_error_t *err)
{
    train_t *train = replay->train;
    const settings_t *set = train->set;
    uint32_t count, rounds;
    fsdp_status_t status = prepare(replay, err);

    FSDP_TRY(setup_agree(train, status, err));
    FSDP_TRY(setup_model(train, hyper_u32(set, HYPER_BATCH),
                         hyper_u32(set, HYPER_SEQ), true, err));
    report_start(train);
    FSDP_TRY(setup_load(train, err));
    count = hyper_u32(set, HYPER_MICRO_BATCHES);
    rounds = (count - 1) / train->info.world + 1;
    replay->mine = cli_realloc(NULL, rounds, sizeof(double));
    replay->all = cli_realloc(NULL, count, sizeof(double));
    for (int64_t step = 0; step < set->steps; step++) {
        FSDP_TRY(run_step(replay, step, rounds, err));
    }

    return compare_after(replay, err);
}

fsdp_status_t replay_run(train_t *train, bool *within_p, fsdp_error_t *err)
{
    replay_t replay = {.train = train, .dir = train->set->replay};
    fsdp_status_t status = run(&replay, err);

    if (status == FSDP_OK) {
        *within_p = show_results(&replay);
    }
    for (size_t i = 0; i < replay.num_rows; i++) {
        free(replay.rows[i].name);
    }
    free(replay.rows);
    free(replay.mine);
    free(replay.all);
    fsdp_ckpt_close(replay.tokens);
    json_decref(replay.meta);

    return status;
}
