/*
 * Writing llm.c: the model whole, the optimizer's state in a file for each
 * rank, of which each has its part of every layer.
 */
#include "config.h"

#include <endian.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/format/llmc.h"
#include "ckpt/value.h"
#include "lib/util/check.h"
#include "lib/util/io.h"

enum { PARAMS, M, V, MASTER, NUM_KINDS };

static const char *const kinds[NUM_KINDS] = {"params", "m", "v", "master"};

/* What the tensors and values of a catalog are to llm.c. */
typedef struct {
    const catalog_t *cat;
    uint64_t at[NUM_KINDS][LLMC_NUM_TENSORS]; /* tensors; LLMC_NONE: none */
    llmc_shape_t shape;
    llmc_tensor_t tensors[LLMC_NUM_TENSORS];
    uint64_t total;
    bool has_kind[NUM_KINDS];
    uint32_t shuffles; /* ranks whose shuffle state is there */
} model_t;

#define LLMC_NONE UINT64_MAX

/* --- What is there -------------------------------------------------------- */

bool llmc_is_parameter(const char *name)
{
    return strncmp(name, "params.", strlen("params.")) == 0;
}

/* Kind and array of a name; @return false if it is none. */
static bool parse_name(const char *name, const llmc_tensor_t *tensors,
                       int *kind_p, int *array_p)
{
    const char *dot = strchr(name, '.');

    for (int kind = 0; kind < NUM_KINDS && dot != NULL; kind++) {
        if (strlen(kinds[kind]) != (size_t)(dot - name) ||
            strncmp(kinds[kind], name, (size_t)(dot - name)) != 0) {
            continue;
        }
        for (int i = 0; i < LLMC_NUM_TENSORS; i++) {
            if (strcmp(tensors[i].name, dot + 1) == 0) {
                *kind_p = kind;
                *array_p = i;
                return true;
            }
        }
    }

    return false;
}

/* The dimensions of a parameter; false if it has others or is not there. */
static bool dims_of(const model_t *model, const char *name, uint32_t ndim,
                    const uint64_t **dims_p)
{
    const catalog_t *cat = model->cat;

    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        const catalog_tensor_t *tensor = &cat->tensors[t];

        if (strcmp(tensor->name, name) == 0 && tensor->ndim == ndim) {
            *dims_p = cat->dims + tensor->dims_first;
            return true;
        }
    }

    return false;
}

/* What the headers hold and nothing tells, as " --set NAME=N" each. */
typedef struct {
    char text[200];
    size_t used;
} missing_t;

static void need_value(missing_t *missing, const char *name)
{
    size_t left = sizeof(missing->text) - missing->used;
    int n = snprintf(missing->text + missing->used, left, " --set %s=N", name);

    missing->used += (n > 0 && (size_t)n < left) ? (size_t)n : 0;
}

static fsdp_status_t ask_for(const missing_t *missing, fsdp_error_t *err)
{
    return (missing->used == 0)
               ? FSDP_OK
               : fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                                "the headers of llm.c hold what the source "
                                "does not tell: give it with%s",
                                missing->text);
}

static bool find_heads(const catalog_t *values, uint64_t *heads_p)
{
    return value_number(values, "num_heads", heads_p) ||
           value_number(values, "n_head", heads_p) ||
           value_number(values, "num_attention_heads", heads_p);
}

/* From shapes, and from values for what those do not tell. */
static fsdp_status_t find_shape(model_t *model, const catalog_t *values,
                                fsdp_error_t *err)
{
    llmc_shape_t *shape = &model->shape;
    const uint64_t *wte, *wpe, *norm;

    if (!dims_of(model, "params.wte", 2, &wte) ||
        !dims_of(model, "params.wpe", 2, &wpe) ||
        !dims_of(model, "params.ln1w", 2, &norm)) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "there are no tensors params.wte, params.wpe and "
                              "params.ln1w of two dimensions: --rules "
                              "gpt2-llmc gives those of a GPT-2 the names and "
                              "shapes of llm.c");
    }

    shape->padded_vocab_size = wte[0];
    shape->channels = wte[1];
    shape->max_seq_len = wpe[0];
    shape->num_layers = norm[0];
    (void)find_heads(values, &shape->num_heads);
    (void)value_number(values, "vocab_size", &shape->vocab_size);

    if (shape->num_heads > INT32_MAX || shape->padded_vocab_size > INT32_MAX ||
        shape->max_seq_len > INT32_MAX || shape->num_layers > INT32_MAX ||
        shape->channels > INT32_MAX ||
        !llmc_tensors(shape, model->tensors, &model->total)) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "%" PRIu64 " channels, %" PRIu64 " heads and a "
                              "vocabulary of %" PRIu64 ", padded %" PRIu64
                              ", are no model of llm.c",
                              shape->channels, shape->num_heads,
                              shape->vocab_size, shape->padded_vocab_size);
    }
    return FSDP_OK;
}

static fsdp_status_t check_tensor(const model_t *model, uint64_t t, int kind,
                                  const llmc_tensor_t *array, fsdp_error_t *err)
{
    const catalog_tensor_t *tensor = &model->cat->tensors[t];
    const uint64_t *dims = model->cat->dims + tensor->dims_first;

    if (tensor->ndim != array->ndim ||
        memcmp(dims, array->dims, array->ndim * sizeof(*dims)) != 0) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "tensor %s has not the shape that it has in "
                              "llm.c, as the others are",
                              tensor->name);
    }
    if (tensor->dtype != FSDP_DTYPE_F32 &&
        (kind != PARAMS || tensor->dtype != FSDP_DTYPE_BF16)) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "tensor %s is %s: llm.c has parameters of f32 or "
                              "bf16, and all else in f32",
                              tensor->name,
                              fsdp_dtype_name((fsdp_dtype_t)tensor->dtype));
    }

    return FSDP_OK;
}

/* The rank whose shuffle state a tensor is; @return false if it is none. */
static bool shuffle_rank(const catalog_tensor_t *tensor, uint32_t *rank_p)
{
    char name[32];

    if (strncmp(tensor->name, LLMC_SHUFFLE, strlen(LLMC_SHUFFLE)) != 0 ||
        tensor->dtype != FSDP_DTYPE_U8 || tensor->ndim != 1) {
        return false;
    }

    *rank_p = (uint32_t)strtoul(tensor->name + strlen(LLMC_SHUFFLE), NULL, 10);
    snprintf(name, sizeof(name), LLMC_SHUFFLE "%" PRIu32, *rank_p);
    return strcmp(tensor->name, name) == 0;
}

/* All arrays of a kind, or none; parameters in any case. */
static fsdp_status_t check_kind(model_t *model, int kind, fsdp_error_t *err)
{
    const catalog_tensor_t *tensors = model->cat->tensors;
    const uint64_t *at = model->at[kind];

    for (int i = 0; i < LLMC_NUM_TENSORS; i++) {
        model->has_kind[kind] |= at[i] != LLMC_NONE;
    }
    for (int i = 0; i < LLMC_NUM_TENSORS; i++) {
        if (at[i] == LLMC_NONE && (kind == PARAMS || model->has_kind[kind])) {
            return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                                  "tensor %s.%s is missing: llm.c needs it",
                                  kinds[kind], model->tensors[i].name);
        }
        if (at[i] != LLMC_NONE &&
            tensors[at[i]].dtype != tensors[at[0]].dtype) {
            return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                                  "tensors %s and %s are of different types: "
                                  "llm.c has parameters of one",
                                  tensors[at[0]].name, tensors[at[i]].name);
        }
    }

    return FSDP_OK;
}

static fsdp_status_t look(model_t *model, const catalog_t *cat,
                          const catalog_t *values, fsdp_error_t *err)
{
    int kind, array;
    uint32_t rank;

    *model = (model_t){.cat = cat};
    memset(model->at, 0xff, sizeof(model->at));
    FSDP_TRY(find_shape(model, values, err));
    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        if (shuffle_rank(&cat->tensors[t], &rank)) {
            model->shuffles++;
            continue;
        }
        if (!parse_name(cat->tensors[t].name, model->tensors, &kind, &array)) {
            return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                                  "tensor %s is none of llm.c: rename it, or "
                                  "leave it out with --exclude '%s'",
                                  cat->tensors[t].name, cat->tensors[t].name);
        }
        FSDP_TRY(check_tensor(model, t, kind, &model->tensors[array], err));
        model->at[kind][array] = t;
    }
    for (kind = 0; kind < NUM_KINDS; kind++) {
        FSDP_TRY(check_kind(model, kind, err));
    }

    return (model->has_kind[M] == model->has_kind[V] &&
            (model->has_kind[M] || !model->has_kind[MASTER]))
               ? FSDP_OK
               : fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                                "llm.c keeps m and v together, and master "
                                "weights with them only");
}

/* --- Positions ------------------------------------------------------------ */

enum { RNG, RNG_LAST, SHARD, SAMPLE, NUM_FIELDS };

static const char *const fields[NUM_FIELDS] = {
    "rng_state", "rng_state_last_update", "current_shard_idx",
    "current_sample_idx"};

/* Where a rank's random numbers and data stand. */
typedef struct {
    uint64_t fields[NUM_FIELDS];
    bool shuffled;
} position_t;

/* An integer that value_parse() gave. */
static bool get_number(const json_t *json, uint64_t *number_p)
{
    const char *digits = json_string_value(json_object_get(json, "$int"));
    char *end;

    if (json_is_integer(json)) {
        *number_p = (uint64_t)json_integer_value(json);
        return true;
    }
    if (digits == NULL || *digits == '-') {
        return false;
    }
    *number_p = strtoull(digits, &end, 10);
    return *end == '\0';
}

static json_t *value_of(const catalog_t *cat, const char *name)
{
    json_t *json = NULL;
    uint64_t value;

    if (catalog_find_value(cat, name, &value)) {
        const char *text = cat->values[value].json;

        (void)value_parse(name, text, strlen(text), &json, NULL);
    }

    return json;
}

/* What a checkpoint of llm.c for as many ranks says of a rank, or NULL. */
static json_t *rank_value(const catalog_t *cat, uint32_t rank, uint32_t world)
{
    char name[32];
    uint64_t value;

    snprintf(name, sizeof(name), "rank.%" PRIu32, world);
    if (catalog_find_value(cat, name, &value)) {
        return NULL;
    }
    snprintf(name, sizeof(name), "rank.%" PRIu32, world - 1);
    if (!catalog_find_value(cat, name, &value)) {
        return NULL;
    }
    snprintf(name, sizeof(name), "rank.%" PRIu32, rank);
    return value_of(cat, name);
}

/* Whether the data was shuffled: what a value says by itself counts, then what
 * ranks say, which say the same. */
static bool was_shuffled(const catalog_t *cat)
{
    json_t *set = value_of(cat, "should_shuffle");
    json_t *said = value_of(cat, "rank.0");
    bool shuffled = json_is_true(
        (set != NULL) ? set : json_object_get(said, "should_shuffle"));

    json_decref(set);
    json_decref(said);
    return shuffled;
}

/* Values by themselves count, those that are given; then those of the rank. */
static bool find_field(const catalog_t *cat, const json_t *said, uint32_t rank,
                       int i, position_t *position)
{
    json_t *given = value_of(cat, fields[i]);
    bool found = true;

    if (get_number(given, &position->fields[i])) {
        position->fields[i] += (i <= RNG_LAST) ? rank : 0;
    } else if (i == RNG_LAST && said == NULL) {
        position->fields[i] = position->fields[RNG];
    } else {
        found =
            get_number(json_object_get(said, fields[i]), &position->fields[i]);
    }
    json_decref(given);
    return found;
}

static fsdp_status_t find_position(const catalog_t *cat, uint32_t rank,
                                   uint32_t world, position_t *position,
                                   fsdp_error_t *err)
{
    json_t *said = rank_value(cat, rank, world);
    missing_t missing = {.used = 0};

    position->shuffled = was_shuffled(cat);
    for (int i = 0; i < NUM_FIELDS; i++) {
        if (!find_field(cat, said, rank, i, position)) {
            need_value(&missing, fields[i]);
        }
    }
    json_decref(said);
    return ask_for(&missing, err);
}

/* --- Layout --------------------------------------------------------------- */

/* Whether llm.c's files tell this value. */
static bool is_told(const char *name)
{
    static const char *const others[] = {
        "max_seq_len", "vocab_size",        "num_layers", "num_heads",
        "channels",    "padded_vocab_size", "step",       "should_shuffle"};

    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
        if (strcmp(name, others[i]) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < NUM_FIELDS; i++) {
        if (strcmp(name, fields[i]) == 0) {
            return true;
        }
    }

    return strncmp(name, "rank.", strlen("rank.")) == 0;
}

static fsdp_status_t check_rest(const catalog_t *dst, fsdp_error_t *err)
{
    const char *name = NULL;

    for (uint64_t v = 0; v < dst->num_values && name == NULL; v++) {
        name = is_told(dst->values[v].name) ? NULL : dst->values[v].name;
    }
    if (dst->num_aliases > 0) {
        name = dst->aliases[0].name;
    }
    return (name == NULL)
               ? FSDP_OK
               : fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                                "llm.c has no place for %s: leave it out with "
                                "--exclude '%s'",
                                name, name);
}

/* Patterns that choose tensors leave values out, but headers hold these. */
static fsdp_status_t keep_told(catalog_t *dst, const catalog_t *values,
                               fsdp_error_t *err)
{
    uint64_t num = dst->num_values;

    for (uint64_t v = 0; v < values->num_values; v++) {
        const catalog_value_t *value = &values->values[v];
        bool there = !is_told(value->name);

        for (uint64_t i = 0; i < num && !there; i++) {
            there = strcmp(dst->values[i].name, value->name) == 0;
        }
        if (!there) {
            FSDP_TRY(catalog_add_value(dst, value->name, value->json, err));
        }
    }

    return FSDP_OK;
}

static fsdp_status_t check_world(const model_t *model, uint32_t world,
                                 fsdp_error_t *err)
{
    for (int i = 0; i < LLMC_NUM_TENSORS; i++) {
        const llmc_tensor_t *tensor = &model->tensors[i];

        if (tensor->size % world != 0) {
            return fsdp_error_set(err, FSDP_ERR_CONFIG,
                                  "llm.c cannot divide the %" PRIu64
                                  " elements "
                                  "of a layer of %s among %u ranks: choose "
                                  "another number",
                                  tensor->size, tensor->name, world);
        }
    }

    return FSDP_OK;
}

static fsdp_status_t add_part(catalog_t *dst, uint64_t tensor, uint64_t first,
                              uint64_t count, uint32_t file, uint32_t rank,
                              fsdp_error_t *err)
{
    const catalog_piece_t piece = {.first = first,
                                   .count = count,
                                   .tensor = (uint32_t)tensor,
                                   .file = file,
                                   .rank = rank,
                                   .crc_first = CATALOG_NONE,
                                   .box = CATALOG_NONE};

    return catalog_add_piece(dst, &piece, err);
}

/* One rank's part of each layer. */
static fsdp_status_t add_rank(catalog_t *dst, const model_t *model,
                              uint32_t file, uint32_t rank, uint32_t world,
                              fsdp_error_t *err)
{
    for (int kind = M; kind < NUM_KINDS; kind++) {
        for (int i = 0; i < LLMC_NUM_TENSORS && model->has_kind[kind]; i++) {
            const llmc_tensor_t *tensor = &model->tensors[i];
            uint64_t count = tensor->size / world;

            for (uint64_t layer = 0; layer < tensor->layers; layer++) {
                FSDP_TRY(add_part(dst, model->at[kind][i],
                                  layer * tensor->size + rank * count, count,
                                  file, rank, err));
            }
        }
    }

    return FSDP_OK;
}

/* The shuffle state of each rank, behind its arrays. */
static fsdp_status_t add_shuffles(catalog_t *dst, uint32_t world,
                                  fsdp_error_t *err)
{
    for (uint64_t t = 0; t < dst->num_tensors; t++) {
        uint32_t rank;

        if (shuffle_rank(&dst->tensors[t], &rank) && rank < world) {
            FSDP_TRY(add_part(dst, t, 0, dst->tensors[t].numel, 1 + rank, rank,
                              err));
        }
    }

    return FSDP_OK;
}

/* It is of so many ranks as it was written for. */
static fsdp_status_t check_shuffle(const model_t *model, uint32_t world,
                                   bool shuffled, fsdp_error_t *err)
{
    return (model->shuffles == (shuffled ? world : 0))
               ? FSDP_OK
               : fsdp_error_set(
                     err, FSDP_ERR_INVALID_PARAM,
                     "the order of shuffled data is there for %" PRIu32
                     " ranks, not for %" PRIu32 ": --exclude '" LLMC_SHUFFLE
                     "*' --set should_shuffle=false leaves it out",
                     model->shuffles, shuffled ? world : 0);
}

static fsdp_status_t add_states(catalog_t *dst, const catalog_t *values,
                                const model_t *model, uint32_t world,
                                fsdp_error_t *err)
{
    position_t position;
    uint32_t file;
    char name[64];

    FSDP_TRY(check_world(model, world, err));
    for (uint32_t rank = 0; rank < world; rank++) {
        FSDP_TRY(find_position(values, rank, world, &position, err));
        FSDP_TRY(check_shuffle(model, world, position.shuffled, err));
        snprintf(name, sizeof(name), LLMC_STATE_NAME, dst->step, rank);
        FSDP_TRY(catalog_add_file(dst, name, 0, &file, err));
        FSDP_TRY(add_rank(dst, model, file, rank, world, err));
    }

    return add_shuffles(dst, world, err);
}

/* All that is to be given, at once. */
static fsdp_status_t check_told(const catalog_t *dst, const catalog_t *values,
                                uint32_t world, fsdp_error_t *err)
{
    json_t *said = rank_value(values, 0, world);
    missing_t missing = {.used = 0};
    position_t position = {.shuffled = false};
    bool trained = false;
    uint64_t number = 0;

    for (uint64_t t = 0; t < dst->num_tensors && !trained; t++) {
        trained = strncmp(dst->tensors[t].name, "m.", 2) == 0;
    }
    if (!find_heads(values, &number) || number == 0) {
        need_value(&missing, "num_heads");
    }
    if (!value_number(values, "vocab_size", &number)) {
        need_value(&missing, "vocab_size");
    }
    if (dst->step < 0 && trained) {
        need_value(&missing, "step");
    }
    for (int i = 0; i < NUM_FIELDS && trained; i++) {
        if (!find_field(values, said, 0, i, &position)) {
            need_value(&missing, fields[i]);
        }
    }
    json_decref(said);
    return ask_for(&missing, err);
}

fsdp_status_t llmc_layout(catalog_t *dst, const catalog_t *values,
                          uint32_t world, fsdp_error_t *err)
{
    model_t model = {.cat = dst};
    const uint64_t *dims;
    uint32_t file;
    char name[64];

    if (dims_of(&model, "params.wte", 2, &dims)) { /* else look() says it */
        FSDP_TRY(check_told(dst, values, world, err));
    }
    FSDP_TRY(look(&model, dst, values, err));
    FSDP_TRY(check_rest(dst, err));
    FSDP_TRY(keep_told(dst, values, err));
    if (dst->step < 0 && !model.has_kind[M]) {
        dst->step = 0; /* a model that was not trained here */
    }
    if (dst->step < 0 || dst->step > INT32_MAX) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "llm.c has no step %" PRId64
                              ": give another one with --set step=N",
                              dst->step);
    }

    snprintf(name, sizeof(name), LLMC_MODEL_NAME, dst->step);
    FSDP_TRY(catalog_add_file(dst, name, 0, &file, err));
    for (int i = 0; i < LLMC_NUM_TENSORS; i++) {
        uint64_t tensor = model.at[PARAMS][i];

        FSDP_TRY(
            add_part(dst, tensor, 0, dst->tensors[tensor].numel, file, 0, err));
    }
    return model.has_kind[M] ? add_states(dst, values, &model, world, err)
                             : check_shuffle(&model, 0, false, err);
}

/* --- Files ---------------------------------------------------------------- */

static void put_u32(unsigned char *header, unsigned i, uint64_t value)
{
    uint32_t word = htole32((uint32_t)value);

    memcpy(header + (size_t)i * 4, &word, sizeof(word));
}

static void put_u64(unsigned char *header, unsigned i, uint64_t value)
{
    put_u32(header, i, value);
    put_u32(header, i + 1, value >> 32);
}

static void model_header(const model_t *model, unsigned char *header)
{
    const llmc_shape_t *shape = &model->shape;
    unsigned dtype = model->cat->tensors[model->at[PARAMS][0]].dtype;
    const uint64_t words[] = {LLMC_MODEL,
                              (dtype == FSDP_DTYPE_F32) ? LLMC_MODEL_F32
                                                        : LLMC_MODEL_BF16,
                              shape->max_seq_len,
                              shape->vocab_size,
                              shape->num_layers,
                              shape->num_heads,
                              shape->channels,
                              shape->padded_vocab_size};

    for (unsigned i = 0; i < sizeof(words) / sizeof(*words); i++) {
        put_u32(header, i, words[i]);
    }
}

static fsdp_status_t state_header(const model_t *model, uint32_t rank,
                                  uint32_t world, unsigned char *header,
                                  fsdp_error_t *err)
{
    position_t position;

    FSDP_TRY(find_position(model->cat, rank, world, &position, err));
    put_u32(header, 0, LLMC_STATE);
    put_u32(header, 1, LLMC_STATE_FORMAT);
    put_u32(header, 2, world);
    put_u32(header, 3, rank);
    put_u32(header, 4, model->has_kind[MASTER]);
    put_u32(header, 5, position.shuffled);
    put_u32(header, 10, (uint64_t)model->cat->step);
    put_u64(header, 20, position.fields[RNG]);
    put_u64(header, 22, position.fields[RNG_LAST]);
    put_u64(header, 30, position.fields[SHARD]);
    put_u64(header, 32, position.fields[SAMPLE]);
    return FSDP_OK;
}

/* Where a piece lies in its file; @a world is 1 for the model. */
static uint64_t offset_of(const model_t *model, const catalog_piece_t *piece,
                          uint32_t world)
{
    const catalog_tensor_t *tensor = &model->cat->tensors[piece->tensor];
    unsigned size = fsdp_dtype_bits((fsdp_dtype_t)tensor->dtype) / 8;
    uint64_t before = 0, layer;
    int kind = NUM_KINDS, array = 0;

    /* Behind all arrays, unless it is one. */
    if (!parse_name(tensor->name, model->tensors, &kind, &array)) {
        kind = model->has_kind[MASTER] ? NUM_KINDS : MASTER;
        size = sizeof(float);
    }
    for (int k = M; k < kind; k++) {
        before += model->total;
    }
    for (int i = 0; i < array; i++) {
        before += model->tensors[i].size * model->tensors[i].layers;
    }
    layer = piece->first / model->tensors[array].size;
    before += layer * model->tensors[array].size;
    return LLMC_HEADER + before / world * size;
}

static fsdp_status_t write_file(const char *path, const unsigned char *header,
                                uint64_t size, fsdp_error_t *err)
{
    fsdp_status_t status;
    int fd;

    FSDP_TRY(io_open(path, O_WRONLY | O_CREAT | O_EXCL, 0666, &fd, err));
    status = io_pwrite(fd, header, LLMC_HEADER, 0, path, err);
    if (status == FSDP_OK) {
        status = io_truncate(fd, size, path, err);
    }
    return io_close(fd, status, path, err);
}

fsdp_status_t llmc_create(catalog_t *cat, uint32_t file, const uint64_t *pieces,
                          uint64_t num, const char *path, fsdp_error_t *err)
{
    unsigned char header[LLMC_HEADER] = {0};
    uint32_t world = (file == 0) ? 1 : cat->num_files - 1;
    uint64_t size = LLMC_HEADER;
    model_t model;

    FSDP_TRY(look(&model, cat, cat, err));
    if (file == 0) {
        model_header(&model, header);
    } else {
        FSDP_TRY(state_header(&model, file - 1, world, header, err));
    }

    for (uint64_t i = 0; i < num; i++) {
        catalog_piece_t *piece = &cat->pieces[pieces[i]];

        piece->offset = offset_of(&model, piece, world);
        size += catalog_piece_bytes(cat, piece);
    }
    cat->files[file].size = size;
    return write_file(path, header, size, err);
}

/* The mark that all is there. */
fsdp_status_t llmc_finish(const catalog_t *cat, const char *dir,
                          fsdp_error_t *err)
{
    char *path = io_path("%s/DONE_%08" PRId64, dir, cat->step);
    fsdp_status_t status;

    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", dir);
    }
    status = io_replace_file(path, "", 0, err);
    free(path);
    return status;
}
