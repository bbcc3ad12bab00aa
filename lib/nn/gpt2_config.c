#include "config.h"

#include "lib/nn/gpt2.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "lib/util/check.h"
#include "lib/util/io.h"

#define CONFIG_MOST_BYTES (1 << 20)

/* Products of these stay far below 2^63. */
#define MOST_LENGTH (UINT32_C(1) << 24)
#define MOST_LAYERS (UINT32_C(1) << 16)

static fsdp_status_t check_length(const char *what, uint32_t value,
                                  uint32_t least, uint32_t most,
                                  fsdp_error_t *err)
{
    if (value >= least && value <= most) {
        return FSDP_OK;
    }
    return fsdp_error_set(err, FSDP_ERR_CONFIG,
                          "%s is %u; it must be from %u to %u", what, value,
                          least, most);
}

fsdp_status_t gpt2_config_check(const gpt2_config_t *c, fsdp_error_t *err)
{
    FSDP_TRY(check_length("the vocabulary", c->vocab, 1, MOST_LENGTH, err));
    FSDP_TRY(check_length("the number of positions", c->positions, 1,
                          MOST_LENGTH, err));
    FSDP_TRY(check_length("the width", c->width, 1, MOST_LENGTH, err));
    FSDP_TRY(
        check_length("the number of layers", c->layers, 1, MOST_LAYERS, err));
    FSDP_TRY(
        check_length("the number of heads", c->heads, 1, MOST_LENGTH, err));
    FSDP_TRY(check_length("the inner width", c->inner, 0, MOST_LENGTH, err));
    if (c->width % c->heads != 0) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "%u heads do not divide a width of %u", c->heads,
                              c->width);
    }
    if (!(c->norm_eps > 0) || !isfinite(c->norm_eps)) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "layer_norm_epsilon is %g; it must be above 0",
                              (double)c->norm_eps);
    }
    if (!(c->init_std >= 0) || !isfinite(c->init_std)) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "initializer_range is %g; it must not be "
                              "negative",
                              (double)c->init_std);
    }
    return FSDP_OK;
}

/* --- Reading -------------------------------------------------------------- */

/* The first of two keys that is there and not null; NULL: neither. */
static json_t *find(const json_t *root, const char *key, const char *other)
{
    json_t *value = json_object_get(root, key);

    if ((value == NULL || json_is_null(value)) && other != NULL) {
        value = json_object_get(root, other);
    }
    return (value == NULL || json_is_null(value)) ? NULL : value;
}

static fsdp_status_t get_length(const char *path, const json_t *root,
                                const char *key, const char *other,
                                bool required, uint32_t *value_p,
                                fsdp_error_t *err)
{
    const json_t *value = find(root, key, other);

    if (value == NULL) {
        if (!required) {
            return FSDP_OK;
        }
        return fsdp_error_set(err, FSDP_ERR_CONFIG, "%s: %s is missing", path,
                              key);
    }
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > UINT32_MAX) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "%s: %s is not a whole number that fits", path,
                              key);
    }
    *value_p = (uint32_t)json_integer_value(value);
    return FSDP_OK;
}

static fsdp_status_t get_number(const char *path, const json_t *root,
                                const char *key, float *value_p,
                                fsdp_error_t *err)
{
    const json_t *value = find(root, key, NULL);

    if (value == NULL) {
        return FSDP_OK;
    }
    if (!json_is_number(value)) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG, "%s: %s is not a number",
                              path, key);
    }
    *value_p = (float)json_number_value(value);
    return FSDP_OK;
}

/* A switch that changes the arithmetic and is built in one position only. */
static fsdp_status_t refuse(const char *path, const json_t *root,
                            const char *key, bool only, fsdp_error_t *err)
{
    const json_t *value = find(root, key, NULL);

    if (value == NULL || json_boolean_value(value) == only) {
        return FSDP_OK;
    }
    return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                          "%s: %s is %s; only %s is supported", path, key,
                          only ? "false" : "true", only ? "true" : "false");
}

static fsdp_status_t get_activation(const char *path, const json_t *root,
                                    gpt2_config_t *c, fsdp_error_t *err)
{
    const json_t *value = find(root, "activation_function", NULL);
    const char *name = "gelu_new";

    if (value != NULL) {
        name = json_is_string(value) ? json_string_value(value) : "?";
    }
    c->gelu_exact = strcmp(name, "gelu") == 0;
    if (!c->gelu_exact && strcmp(name, "gelu_new") != 0 &&
        strcmp(name, "gelu_pytorch_tanh") != 0) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s: activation_function is \"%s\"; only "
                              "\"gelu_new\" and \"gelu\" are supported",
                              path, name);
    }
    return FSDP_OK;
}

static fsdp_status_t get_model_type(const char *path, const json_t *root,
                                    fsdp_error_t *err)
{
    const json_t *value = find(root, "model_type", NULL);

    if (value == NULL || (json_is_string(value) &&
                          strcmp(json_string_value(value), "gpt2") == 0)) {
        return FSDP_OK;
    }
    return fsdp_error_set(
        err, FSDP_ERR_UNSUPPORTED,
        "%s: model_type is \"%s\"; only \"gpt2\" is "
        "supported",
        path, json_is_string(value) ? json_string_value(value) : "?");
}

static fsdp_status_t parse(const char *path, const json_t *root,
                           gpt2_config_t *c, fsdp_error_t *err)
{
    FSDP_TRY(get_model_type(path, root, err));
    FSDP_TRY(get_length(path, root, "vocab_size", NULL, true, &c->vocab, err));
    FSDP_TRY(get_length(path, root, "n_positions", "n_ctx", true, &c->positions,
                        err));
    FSDP_TRY(get_length(path, root, "n_embd", NULL, true, &c->width, err));
    FSDP_TRY(get_length(path, root, "n_layer", NULL, true, &c->layers, err));
    FSDP_TRY(get_length(path, root, "n_head", NULL, true, &c->heads, err));
    FSDP_TRY(get_length(path, root, "n_inner", NULL, false, &c->inner, err));
    FSDP_TRY(get_number(path, root, "layer_norm_epsilon", &c->norm_eps, err));
    FSDP_TRY(get_number(path, root, "initializer_range", &c->init_std, err));
    FSDP_TRY(get_activation(path, root, c, err));
    FSDP_TRY(refuse(path, root, "scale_attn_weights", true, err));
    FSDP_TRY(refuse(path, root, "scale_attn_by_inverse_layer_idx", false, err));
    FSDP_TRY(refuse(path, root, "add_cross_attention", false, err));
    FSDP_TRY(refuse(path, root, "tie_word_embeddings", true, err));
    return FSDP_OK;
}

fsdp_status_t gpt2_config_parse(const char *text, size_t size, const char *path,
                                gpt2_config_t *config_p, fsdp_error_t *err)
{
    gpt2_config_t config = GPT2_CONFIG_INIT;
    fsdp_error_t why;
    json_error_t where;
    fsdp_status_t status;
    json_t *root;

    root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &where);
    if (root == NULL || !json_is_object(root)) {
        status = fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                "%s: not a JSON object: line %d: %s", path,
                                where.line, (root == NULL) ? where.text : "");
        json_decref(root);
        return status;
    }

    status = parse(path, root, &config, err);
    json_decref(root);
    if (status != FSDP_OK) {
        return status;
    }
    status = gpt2_config_check(&config, &why);
    if (status != FSDP_OK) {
        return fsdp_error_set(err, status, "%s: %s", path, why.text);
    }

    *config_p = config;
    return FSDP_OK;
}

fsdp_status_t gpt2_config_read(const char *path, gpt2_config_t *config_p,
                               fsdp_error_t *err)
{
    fsdp_status_t status;
    char *text;
    size_t size;

    FSDP_TRY(io_read_file(path, CONFIG_MOST_BYTES, &text, &size, err));
    status = gpt2_config_parse(text, size, path, config_p, err);
    free(text);

    return status;
}

/* --- Writing -------------------------------------------------------------- */

/* The shortest decimal number that is this float again. */
static json_t *number(float value)
{
    char text[32];

    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) {
            break;
        }
    }
    return json_real(strtod(text, NULL));
}

char *gpt2_config_json(const gpt2_config_t *c)
{
    json_t *root = json_pack(
        "{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:f, s:f, s:f, s:o, s:o,"
        " s:b, s:b, s:b}",
        "architectures", "GPT2LMHeadModel", "model_type", "gpt2", "vocab_size",
        (json_int_t)c->vocab, "n_positions", (json_int_t)c->positions, "n_embd",
        (json_int_t)c->width, "n_layer", (json_int_t)c->layers, "n_head",
        (json_int_t)c->heads, "activation_function",
        c->gelu_exact ? "gelu" : "gelu_new", "resid_pdrop", 0.0, "embd_pdrop",
        0.0, "attn_pdrop", 0.0, "layer_norm_epsilon", number(c->norm_eps),
        "initializer_range", number(c->init_std), "scale_attn_weights", 1,
        "scale_attn_by_inverse_layer_idx", 0, "tie_word_embeddings", 1);
    char *text;

    if (root == NULL) {
        return NULL;
    }
    if (json_object_set_new(root, "n_inner",
                            (c->inner != 0) ? json_integer(c->inner)
                                            : json_null()) != 0) {
        json_decref(root);
        return NULL;
    }
    text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(root);
    return text;
}
