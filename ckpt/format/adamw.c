#include "config.h"

#include "ckpt/format/adamw.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/value.h"
#include "lib/util/check.h"
#include "lib/util/io.h"
#include "lib/util/json_text.h"
#include "lib/util/text.h"

static fsdp_status_t no_memory(const catalog_t *cat, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", cat->path);
}

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

/* Where the name of a parameter is in one that fits a pattern; 0: it does not. */
static size_t find_param(const char *pattern, const char *name,
                         const char **param_p)
{
    size_t before = strcspn(pattern, "*"), size = strlen(name);
    const char *after = pattern + before + 1;

    if (size <= before + strlen(after) ||
        strncmp(name, pattern, before) != 0 || !text_ends_with(name, after)) {
        return 0;
    }

    *param_p = name + before;
    return size - before - strlen(after);
}

/* Of the parameter whose first moment a tensor is: a tensor too, as AdamW has
 * it. */
static fsdp_status_t add_step(catalog_t *cat, const adamw_names_t *names,
                              const char *tensor, double step,
                              fsdp_error_t *err)
{
    size_t before = strcspn(names->step, "*"), size;
    fsdp_status_t status;
    const char *param;
    char *name;

    size = find_param(names->first, tensor, &param);
    if (size == 0) {
        return FSDP_OK;
    }

    name = io_path("%.*s%.*s%s", (int)before, names->step, (int)size, param,
                   names->step + before + 1);
    if (name == NULL) {
        return no_memory(cat, err);
    }
    status = add_value(cat, name,
                       json_pack("{s:s, s:{s:[f]}}", "$class", "torch.tensor",
                                 "$args", "$tuple", step),
                       err);
    free(name);
    return status;
}

/* One parameter group: what is kept of it, and AdamW's other settings. */
static json_t *make_group(const json_t *optimizer, const json_t *group)
{
    return json_pack(
        "{s:O, s:{s:[O, O]}, s:O, s:O, s:b, s:n, s:b, s:b, s:b, s:n, s:b, s:O}",
        "lr", json_object_get(optimizer, "lr"), "betas", "$tuple",
        json_object_get(optimizer, "beta1"),
        json_object_get(optimizer, "beta2"), "eps",
        json_object_get(optimizer, "eps"), "weight_decay",
        json_object_get(group, "weight_decay"), "amsgrad", 0, "foreach",
        "maximize", 0, "capturable", 0, "differentiable", 0, "fused",
        "decoupled_weight_decay", 1, "params",
        json_object_get(group, "params"));
}

/* GROUPS.INDEX.KEY */
static fsdp_status_t add_members(catalog_t *cat, const char *groups,
                                 size_t index, json_t *group, fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;
    const char *key;
    json_t *value;

    json_object_foreach(group, key, value)
    {
        char *name = io_path("%s.%zu.%s", groups, index, key);

        if (status == FSDP_OK) {
            status = (name != NULL)
                         ? add_value(cat, name, json_incref(value), err)
                         : no_memory(cat, err);
        }
        free(name);
    }

    return status;
}

static fsdp_status_t add_groups(catalog_t *cat, const adamw_names_t *names,
                                const json_t *meta, fsdp_error_t *err)
{
    json_t *all = json_array(), *group;
    fsdp_status_t status = FSDP_OK;
    size_t i;

    json_array_foreach(json_object_get(meta, "param_groups"), i, group)
    {
        json_array_append_new(
            all, make_group(json_object_get(meta, "optimizer"), group));
    }
    if (!names->flat) {
        return add_value(cat, names->groups, all, err);
    }

    json_array_foreach(all, i, group)
    {
        FSDP_TRY_GOTO(add_members(cat, names->groups, i, group, err), err_free);
    }
err_free:
    json_decref(all);
    return status;
}

static bool has_groups(const catalog_t *cat, const char *groups)
{
    for (uint64_t v = 0; v < cat->num_values; v++) {
        if (strncmp(cat->values[v].name, groups, strlen(groups)) == 0) {
            return true;
        }
    }

    return false;
}

static fsdp_status_t add_all(catalog_t *cat, const adamw_names_t *names,
                             const json_t *meta, fsdp_error_t *err)
{
    const json_t *optimizer = json_object_get(meta, "optimizer");
    uint64_t before = cat->num_values;
    double step;

    if (json_unpack((json_t *)optimizer, "{s:F}", "step", &step) != 0 ||
        has_groups(cat, names->groups)) {
        return FSDP_OK;
    }

    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        FSDP_TRY(add_step(cat, names, cat->tensors[t].name, step, err));
    }
    return (cat->num_values > before) ? add_groups(cat, names, meta, err)
                                      : FSDP_OK;
}

fsdp_status_t adamw_add(catalog_t *cat, const adamw_names_t *names,
                        fsdp_error_t *err)
{
    json_t *meta = json_text_parse(cat->meta);
    fsdp_status_t status = add_all(cat, names, meta, err);

    json_decref(meta);
    return status;
}
