/*
 * What a distributed checkpoint needs of its target before it is sealed: where
 * tensors go that are in values, and what PyTorch's optimizers keep besides.
 */
#include "config.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/format/dcp.h"
#include "ckpt/value.h"
#include "lib/util/check.h"
#include "lib/util/io.h"
#include "lib/util/json_text.h"
#include "lib/util/map.h"

#define STATE  "optim.state."
#define FIRST  ".exp_avg"
#define GROUPS "optim.param_groups."

static fsdp_status_t no_memory(const catalog_t *cat, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", cat->path);
}

/* --- Tensors in values ---------------------------------------------------- */

/* Names of tensors, to their indexes; sealed or not. */
typedef struct {
    const catalog_t *cat;
    map_t names;
    bool *inner;
} finder_t;

/* A tensor in the value @a what is named by its path from there. */
static fsdp_status_t mark(const finder_t *finder, const char *what,
                          const char *name, fsdp_error_t *err)
{
    size_t size = strlen(what);
    uint64_t tensor;

    if (strncmp(name, what, size) != 0 || name[size] != '.' ||
        !map_get(&finder->names, name, strlen(name), &tensor) ||
        finder->inner[tensor]) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "value '%s' shares tensor '%s' with others, "
                              "which cannot be written to this format: leave "
                              "it out with --exclude '%s'",
                              what, name, what);
    }

    finder->inner[tensor] = true;
    return FSDP_OK;
}

static fsdp_status_t mark_all(const finder_t *finder, const char *what,
                              const json_t *value, fsdp_error_t *err)
{
    const json_t *name = json_object_get(value, "$tensor");
    const char *key;
    json_t *part;
    size_t i;

    if (json_is_string(name)) {
        return mark(finder, what, json_string_value(name), err);
    }
    json_object_foreach((json_t *)value, key, part)
    {
        FSDP_TRY(mark_all(finder, what, part, err));
    }
    json_array_foreach(value, i, part)
    {
        FSDP_TRY(mark_all(finder, what, part, err));
    }

    return FSDP_OK;
}

static fsdp_status_t find_in(const finder_t *finder,
                             const catalog_value_t *value, fsdp_error_t *err)
{
    fsdp_status_t status;
    json_t *json;

    if (strstr(value->json, "\"$tensor\"") == NULL) {
        return FSDP_OK;
    }

    FSDP_TRY(
        value_parse(value->name, value->json, strlen(value->json), &json, err));
    status = mark_all(finder, value->name, json, err);
    json_decref(json);
    return status;
}

fsdp_status_t dcp_find_inner(const catalog_t *cat, bool **inner_p,
                             fsdp_error_t *err)
{
    finder_t finder = {.cat = cat};
    fsdp_status_t status = FSDP_OK;
    bool good;

    finder.inner = calloc(cat->num_tensors + 1, sizeof(*finder.inner));
    good = finder.inner != NULL;
    for (uint64_t t = 0; t < cat->num_tensors && good; t++) {
        const char *name = cat->tensors[t].name;

        good = map_put(&finder.names, name, strlen(name), t);
    }
    if (!good) {
        status = no_memory(cat, err);
    }
    for (uint64_t v = 0; v < cat->num_values && status == FSDP_OK; v++) {
        status = find_in(&finder, &cat->values[v], err);
    }
    map_free(&finder.names);
    if (status != FSDP_OK) {
        free(finder.inner);
        return status;
    }

    *inner_p = finder.inner;
    return FSDP_OK;
}

/* Instead of the pieces of each rank, one in the first file. */
static fsdp_status_t make_whole(catalog_t *cat, const bool *inner,
                                fsdp_error_t *err)
{
    uint64_t num = 0;

    for (uint64_t p = 0; p < cat->num_pieces; p++) {
        if (!inner[cat->pieces[p].tensor]) {
            cat->pieces[num++] = cat->pieces[p];
        }
    }
    cat->num_pieces = num;
    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        const catalog_piece_t piece = {.count = cat->tensors[t].numel,
                                       .tensor = (uint32_t)t,
                                       .crc_first = CATALOG_NONE};

        if (inner[t]) {
            FSDP_TRY(catalog_add_piece(cat, &piece, err));
        }
    }

    return FSDP_OK;
}

/* --- Optimizers ----------------------------------------------------------- */

/* Add a value, whose JSON is freed. */
static fsdp_status_t add_value(catalog_t *cat, const char *name, json_t *value,
                               fsdp_error_t *err)
{
    char *text = (value != NULL) ? value_text(value) : NULL;
    fsdp_status_t status = (text != NULL)
                               ? catalog_add_value(cat, name, text, err)
                               : no_memory(cat, err);

    free(text);
    json_decref(value);
    return status;
}

/* "optim.state.NAME.exp_avg": the step of this parameter, a tensor as AdamW
 * has it. */
static fsdp_status_t add_step(catalog_t *cat, const char *name, double step,
                              fsdp_error_t *err)
{
    size_t size = strlen(name), end = strlen(FIRST);
    fsdp_status_t status;
    char *text;

    if (strncmp(name, STATE, strlen(STATE)) != 0 || size < end ||
        strcmp(name + size - end, FIRST) != 0) {
        return FSDP_OK;
    }

    text = io_path("%.*s.step", (int)(size - end), name);
    if (text == NULL) {
        return no_memory(cat, err);
    }
    status = add_value(cat, text,
                       json_pack("{s:s, s:{s:[f]}}", "$class", "torch.tensor",
                                 "$args", "$tuple", step),
                       err);
    free(text);
    return status;
}

/* One parameter group: what is kept of it, and AdamW's other settings. */
static fsdp_status_t add_group(catalog_t *cat, size_t index,
                               const json_t *optimizer, const json_t *group,
                               fsdp_error_t *err)
{
    json_t *all = json_pack(
        "{s:O, s:{s:[O, O]}, s:O, s:O, s:b, s:n, s:b, s:b, s:b, s:n, s:b, s:O}",
        "lr", json_object_get(optimizer, "lr"), "betas", "$tuple",
        json_object_get(optimizer, "beta1"),
        json_object_get(optimizer, "beta2"), "eps",
        json_object_get(optimizer, "eps"), "weight_decay",
        json_object_get(group, "weight_decay"), "amsgrad", 0, "foreach",
        "maximize", 0, "capturable", 0, "differentiable", 0, "fused",
        "decoupled_weight_decay", 1, "params",
        json_object_get(group, "params"));
    fsdp_status_t status = FSDP_OK;
    const char *key;
    json_t *value;

    json_object_foreach(all, key, value)
    {
        char *name = io_path(GROUPS "%zu.%s", index, key);

        if (status == FSDP_OK) {
            status = (name != NULL)
                         ? add_value(cat, name, json_incref(value), err)
                         : no_memory(cat, err);
        }
        free(name);
    }
    json_decref(all);
    return status;
}

static bool has_groups(const catalog_t *cat)
{
    for (uint64_t v = 0; v < cat->num_values; v++) {
        if (strncmp(cat->values[v].name, GROUPS, strlen(GROUPS)) == 0) {
            return true;
        }
    }

    return false;
}

/* Our checkpoints keep the optimizer's step and settings once, in their
 * metadata; PyTorch has them by parameter and group, and does not load an
 * optimizer without. */
static fsdp_status_t add_optimizer(catalog_t *cat, const json_t *meta,
                                   fsdp_error_t *err)
{
    const json_t *optimizer = json_object_get(meta, "optimizer");
    uint64_t before = cat->num_values;
    double step;
    json_t *group;
    size_t i;

    if (json_unpack((json_t *)optimizer, "{s:F}", "step", &step) != 0 ||
        has_groups(cat)) {
        return FSDP_OK;
    }

    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        FSDP_TRY(add_step(cat, cat->tensors[t].name, step, err));
    }
    if (cat->num_values == before) {
        return FSDP_OK;
    }
    json_array_foreach(json_object_get(meta, "param_groups"), i, group)
    {
        FSDP_TRY(add_group(cat, i, optimizer, group, err));
    }

    return FSDP_OK;
}

fsdp_status_t dcp_prepare(catalog_t *cat, fsdp_error_t *err)
{
    json_t *meta = json_text_parse(cat->meta);
    fsdp_status_t status;
    bool *inner;

    status = add_optimizer(cat, meta, err);
    json_decref(meta);
    FSDP_TRY(status);
    FSDP_TRY(dcp_find_inner(cat, &inner, err));
    status = make_whole(cat, inner, err);
    free(inner);
    return status;
}
