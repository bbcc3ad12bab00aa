#include "config.h"

#include "bin/train.h"

#include <inttypes.h>
#include <libgen.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fsdp_ckpt.h"
#include "lib/util/check.h"
#include "lib/util/io.h"
#include "lib/util/json_text.h"

/* clang-format off */
const hyper_info_t hyper_info[NUM_HYPERS] = {
    [HYPER_LR] = {"lr", "the learning rate", 1e-3, 0, 1e6, false},
    [HYPER_MIN_LR] = {"min-lr", "the last learning rate", NAN, 0, 1e6, false},
    [HYPER_WARMUP] = {"warmup", "the number of warm-up steps", 20, 0, 1e9,
                      true},
    [HYPER_DECAY_STEPS] = {"decay-steps", "the end of the cosine", NAN, 0, 1e9,
                           true},
    [HYPER_BETA1] = {"beta1", "beta1", 0.9, 0, 0.9999999, false},
    [HYPER_BETA2] = {"beta2", "beta2", 0.95, 0, 0.9999999, false},
    [HYPER_EPS] = {"eps", "epsilon", 1e-8, 0, 1, false},
    [HYPER_WEIGHT_DECAY] = {"weight-decay", "the weight decay", 0.1, 0, 1e3,
                            false},
    [HYPER_CLIP] = {"clip", "the largest norm", 1, 0, 1e30, false},
    [HYPER_BATCH] = {"batch", "the batch size", 8, 1, 1 << 20, true},
    [HYPER_SEQ] = {"seq", "the sequence length", NAN, 1, 1 << 24, true},
    [HYPER_MICRO_BATCHES] = {"micro-batches", "the number of micro-batches", 8,
                             1, 1 << 20, true},
    /* Doubles hold integers up to 2^53. */
    [HYPER_SEED] = {"seed", "the seed", 1, 0, 9007199254740991.0, true},
};
/* clang-format on */

void settings_init(settings_t *set)
{
    *set = (settings_t){
        .steps = 1000,
        .prefetch = 1,
        .param_dtype = -1,
        .reduce_dtype = -1,
        .threads = 1,
        .valid_every = 100,
        .valid_count = 8,
        .sample_tokens = 200,
        .temperature = 0.8,
    };
    for (unsigned h = 0; h < NUM_HYPERS; h++) {
        set->hyper[h] = NAN;
    }
}

/* --- What a checkpoint says ----------------------------------------------- */

/* A config.json beside a checkpoint's files; the caller frees it. */
static char *config_beside(const char *path)
{
    char *copy = cli_strdup(path), *beside = cli_printf("%s/config.json", path);

    if (access(beside, R_OK) != 0) {
        free(beside);
        beside = cli_printf("%s/config.json", dirname(copy));
    }
    free(copy);

    return beside;
}

/* The model's configuration: kept with the tensors, or in a config.json. */
static fsdp_status_t read_model(train_t *train, const char *path,
                                fsdp_error_t *err)
{
    json_t *config = json_object_get(train->saved, "config");
    char *beside, *text;
    fsdp_status_t status = FSDP_OK;

    if (json_is_object(config)) {
        text = json_dumps(config, 0);
        status = gpt2_config_parse(text ? text : "", text ? strlen(text) : 0,
                                   path, &train->model, err);
        free(text);
        return status;
    }

    beside = config_beside(path);
    if (access(beside, R_OK) == 0) {
        status = gpt2_config_read(beside, &train->model, err);
    }
    free(beside);

    return status;
}

/* Look into the checkpoint that parameters come from. */
static fsdp_status_t read_checkpoint(train_t *train, const char *path,
                                     fsdp_error_t *err)
{
    fsdp_ckpt_info_t info;
    fsdp_ckpt_t *ckpt;
    json_t *meta, *user;

    FSDP_TRY(fsdp_ckpt_open(path, &ckpt, err));
    fsdp_ckpt_get_info(ckpt, &info);
    train->source = cli_strdup(info.path);
    meta = json_text_parse(info.meta_json);
    user = json_object_get(meta, "user");
    train->saved = json_incref(json_is_object(user) ? user : meta);
    json_decref(meta);
    fsdp_ckpt_close(ckpt);

    return read_model(train, train->source, err);
}

/* The one that DIR/latest names could not be opened, and an older one was. */
static void warn_not_newest(const train_t *train, const char *dir)
{
    char *latest = cli_printf("%s/latest", dir), *text = NULL, *path;
    fsdp_error_t err = {0};
    fsdp_ckpt_t *ckpt;
    size_t size;

    if (io_read_file(latest, 4096, &text, &size, NULL) == FSDP_OK) {
        text[strcspn(text, "\r\n")] = '\0';
        path = cli_printf("%s/%s", dir, text);
        if (strcmp(path, train->source) != 0) {
            if (fsdp_ckpt_open(path, &ckpt, &err) == FSDP_OK) {
                fsdp_ckpt_close(ckpt);
            } else {
                cli_message("warning: %s; going on from %s", err.text,
                            train->source);
            }
        }
        free(path);
    }
    free(text);
    free(latest);
}

/* What --resume or --init-from name; nothing is no error for "latest". */
static fsdp_status_t find_checkpoint(train_t *train, fsdp_error_t *err)
{
    const settings_t *set = train->set;
    bool latest = set->resume != NULL && strcmp(set->resume, "latest") == 0;
    const char *path = latest ? set->save_dir : set->resume;
    fsdp_status_t status;

    if (path == NULL) {
        return (set->init_from != NULL)
                   ? read_checkpoint(train, set->init_from, err)
                   : FSDP_OK;
    }

    status = read_checkpoint(train, path, err);
    if (status == FSDP_ERR_NOT_FOUND && latest) {
        if (train->info.rank == 0) {
            cli_message("no checkpoint in %s yet: starting at step 0", path);
        }
        return FSDP_OK;
    }
    train->resumed = status == FSDP_OK;
    if (train->resumed && train->info.rank == 0) {
        warn_not_newest(train, path);
    }

    return status;
}

/* --- Completing ----------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void warn(const train_t *train,
                                                       const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;
    int n;

    if (train->info.rank != 0) {
        return;
    }

    va_start(ap, fmt);
    n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n >= 0) {
        cli_message("warning: %s: losses will not be those of a run that never "
                    "stopped",
                    text);
        free(text);
    }
}

/* Numbers of the run that is resumed, where the command line has none. */
static void complete_hypers(train_t *train)
{
    settings_t *set = train->set;
    json_t *saved =
        train->resumed ? json_object_get(train->saved, "train") : NULL;

    for (unsigned h = 0; h < NUM_HYPERS; h++) {
        json_t *value = json_object_get(saved, hyper_info[h].key);
        double old = json_number_value(value);

        if (json_is_number(value) && isnan(set->hyper[h])) {
            set->hyper[h] = old;
        } else if (json_is_number(value) && set->hyper[h] != old) {
            warn(train, "%s is %.9g, and was %.9g in %s", hyper_info[h].what,
                 set->hyper[h], old, train->source);
        } else if (isnan(set->hyper[h])) {
            set->hyper[h] = hyper_info[h].initial;
        }
    }
    if (isnan(set->hyper[HYPER_MIN_LR])) {
        set->hyper[HYPER_MIN_LR] = set->hyper[HYPER_LR] / 10;
    }
    if (isnan(set->hyper[HYPER_DECAY_STEPS])) {
        set->hyper[HYPER_DECAY_STEPS] = (double)set->steps;
    }
}

static const char *precision_name(fsdp_precision_t precision)
{
    return (precision == FSDP_BF16) ? "bf16" : "fp32";
}

static fsdp_precision_t complete_dtype(const train_t *train, const char *key,
                                       int given)
{
    json_t *saved = json_object_get(train->saved, "train");
    const char *old = json_string_value(json_object_get(saved, key));
    fsdp_precision_t was =
        (old != NULL && strcmp(old, "bf16") == 0) ? FSDP_BF16 : FSDP_F32;

    if (given < 0) {
        return train->resumed ? was : FSDP_F32;
    }
    if (train->resumed && old != NULL && given != (int)was) {
        warn(train, "%s is %s, and was %s in %s", key,
             precision_name((fsdp_precision_t)given), old, train->source);
    }

    return (fsdp_precision_t)given;
}

static fsdp_status_t read_preset(train_t *train, fsdp_error_t *err)
{
    static const struct {
        const char *name;
        uint32_t layers, width, heads;
    } presets[] = {
        {"gpt2",        12, 768,  12},
        {"gpt2-medium", 24, 1024, 16},
        {"gpt2-large",  36, 1280, 20},
        {"gpt2-xl",     48, 1600, 25},
    };
    const char *name = train->set->model;

    for (size_t i = 0; i < sizeof(presets) / sizeof(*presets); i++) {
        if (strcmp(name, presets[i].name) == 0) {
            train->model.layers = presets[i].layers;
            train->model.width = presets[i].width;
            train->model.heads = presets[i].heads;
            train->model.positions = 1024;
            train->model.vocab = 50257;
            return FSDP_OK;
        }
    }

    return gpt2_config_read(name, &train->model, err);
}

static uint32_t first_of(uint32_t given, uint32_t model, uint32_t initial)
{
    return given != 0 ? given : model != 0 ? model : initial;
}

/* The shape: options, then --model or the checkpoint, then defaults. */
static fsdp_status_t complete_model(train_t *train, fsdp_error_t *err)
{
    settings_t *set = train->set;
    gpt2_config_t *model = &train->model;
    uint32_t seq;

    if (set->model != NULL) {
        FSDP_TRY(read_preset(train, err));
    }
    if (set->width != 0 && set->width != model->width) {
        model->inner = 0;
    }
    model->layers = first_of(set->layers, model->layers, 4);
    model->width = first_of(set->width, model->width, 256);
    model->heads = first_of(set->heads, model->heads, 4);
    model->vocab = first_of(set->vocab, model->vocab, 0);

    if (isnan(set->hyper[HYPER_SEQ])) {
        seq = first_of(set->positions, model->positions, 128);
        set->hyper[HYPER_SEQ] = (seq < 128) ? seq : 128;
    }
    seq = hyper_u32(set, HYPER_SEQ);
    model->positions = first_of(set->positions, model->positions, seq);
    if (seq > model->positions) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "sequences of %u tokens are longer than the "
                              "model's %u positions: lower --seq",
                              seq, model->positions);
    }

    return FSDP_OK;
}

fsdp_status_t config_complete(train_t *train, fsdp_error_t *err)
{
    settings_t *set = train->set;

    train->model = (gpt2_config_t)GPT2_CONFIG_INIT;
    FSDP_TRY(find_checkpoint(train, err));
    complete_hypers(train);
    train->param_dtype = complete_dtype(train, "param-dtype", set->param_dtype);
    train->reduce_dtype =
        complete_dtype(train, "reduce-dtype", set->reduce_dtype);

    return complete_model(train, err);
}

void config_compare_data(const train_t *train)
{
    json_t *saved = json_object_get(train->saved, "data");
    json_int_t was = json_integer_value(json_object_get(saved, "train_tokens"));
    uint64_t now = data_tokens(train->data, DATA_TRAIN);

    if (train->resumed && saved != NULL && (uint64_t)was != now) {
        warn(train,
             "the text has %" PRIu64 " tokens to train on, and had %lld "
             "when %s was saved",
             now, (long long)was, train->source);
    }
}

/* --- Saving --------------------------------------------------------------- */

char *config_to_json(const train_t *train)
{
    const settings_t *set = train->set;
    char *model = gpt2_config_json(&train->model), *text;
    json_t *user = json_object(), *hypers = json_object();
    json_t *data = json_object(), *files = json_array();

    for (unsigned h = 0; h < NUM_HYPERS; h++) {
        cli_json_set(hypers, hyper_info[h].key,
                     hyper_info[h].whole
                         ? json_integer((json_int_t)set->hyper[h])
                         : json_real(set->hyper[h]));
    }
    cli_json_set(hypers, "param-dtype",
                 json_string(precision_name(train->param_dtype)));
    cli_json_set(hypers, "reduce-dtype",
                 json_string(precision_name(train->reduce_dtype)));

    for (size_t i = 0; i < set->data.num; i++) {
        cli_json_append(files, cli_json_text(set->data.items[i]));
    }
    cli_json_set(data, "files", files);
    if (train->data != NULL) {
        cli_json_set(
            data, "train_tokens",
            json_integer((json_int_t)data_tokens(train->data, DATA_TRAIN)));
    }
    /* Which tokens a micro-batch reads follows from seed and step. */
    cli_json_set(data, "next_step", json_integer(fsdp_get_step(train->fsdp)));

    cli_json_set(user, "config",
                 model != NULL ? json_loads(model, 0, NULL) : NULL);
    cli_json_set(user, "train", hypers);
    cli_json_set(user, "data", data);
    text = json_dumps(user, JSON_COMPACT);
    json_decref(user);
    free(model);

    return text;
}

double config_lr(const settings_t *set, int64_t step)
{
    double lr = set->hyper[HYPER_LR], low = set->hyper[HYPER_MIN_LR];
    double warmup = set->hyper[HYPER_WARMUP];
    double end = set->hyper[HYPER_DECAY_STEPS], at = (double)step;

    if (at < warmup) {
        return lr * (at + 1) / warmup;
    }
    if (at >= end) {
        return low;
    }

    return low +
           0.5 * (lr - low) * (1 + cos(M_PI * (at - warmup) / (end - warmup)));
}
