/*
 * Compare two checkpoints: what is told, and in which order.
 */
#include "config.h"

#include "ckpt/diff.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/value.h"
#include "lib/util/check.h"
#include "lib/util/clock.h"
#include "lib/util/io.h"
#include "lib/util/size.h"

/* --- Reporting ------------------------------------------------------------ */

/* One line about a pair; the caller frees it. */
static char *describe(const diff_t *diff, const diff_pair_t *pair)
{
    fsdp_ckpt_tensor_t a = {0}, b = {0};
    char shape_a[128], shape_b[128];

    switch (pair->how) {
    case FSDP_CKPT_ONLY_A:
        return io_path("%s: only in %s", pair->name, diff->paths[0]);
    case FSDP_CKPT_ONLY_B:
        return io_path("%s: only in %s", pair->name, diff->paths[1]);
    default:
        break;
    }

    fsdp_ckpt_get_tensor(diff->ckpts[0], pair->tensor[0], &a);
    fsdp_ckpt_get_tensor(diff->ckpts[1], pair->tensor[1], &b);
    switch (pair->how) {
    case FSDP_CKPT_SHAPE:
        size_shape(a.ndim, a.dims, shape_a, sizeof(shape_a));
        size_shape(b.ndim, b.dims, shape_b, sizeof(shape_b));
        return io_path("%s: shape %s against %s", pair->name, shape_a, shape_b);
    case FSDP_CKPT_DTYPE:
        return io_path("%s: dtype %s against %s", pair->name,
                       fsdp_dtype_name(a.dtype), fsdp_dtype_name(b.dtype));
    default:
        return io_path("%s: %" PRIu64 " of %" PRIu64 " elements differ, "
                       "first %" PRIu64 ": %.9g against %.9g, largest "
                       "difference %.3g, relative %.3g",
                       pair->name, pair->differing, pair->numel, pair->first,
                       pair->value[0], pair->value[1], pair->max_abs,
                       pair->max_rel);
    }
}

static fsdp_status_t call_back(diff_t *diff, fsdp_ckpt_difference_t *what,
                               char *text, fsdp_error_t *err)
{
    bool goes_on = true;

    if (text == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "no memory for a line");
    }

    diff->result.differences++;
    what->text = text;
    if (diff->difference != NULL) {
        goes_on = diff->difference(what, diff->arg);
    }
    free(text);
    if (!goes_on) {
        return fsdp_error_set(err, FSDP_ERR_CANCELLED,
                              "the comparison was stopped");
    }

    return FSDP_OK;
}

fsdp_status_t diff_report(diff_t *diff, fsdp_error_t *err)
{
    for (; diff->reported < diff->num_pairs; diff->reported++) {
        const diff_pair_t *pair = &diff->pairs[diff->reported];
        fsdp_ckpt_difference_t what = {
            .name = pair->name,
            .how = pair->how,
            .numel = pair->numel,
            .differing = pair->differing,
            .first = pair->first,
            .value_a = pair->value[0],
            .value_b = pair->value[1],
            .max_abs = pair->max_abs,
            .max_rel = pair->max_rel,
        };

        if (pair->reads && pair->compared < pair->numel) {
            break;
        }
        if (pair->differs) {
            FSDP_TRY(call_back(diff, &what, describe(diff, pair), err));
        }
    }

    return FSDP_OK;
}

/* --- Metadata ------------------------------------------------------------- */

static fsdp_status_t compare_objects(diff_t *diff, const char *path, json_t *a,
                                     json_t *b, fsdp_error_t *err);

/* Of objects, what in them differs. */
static fsdp_status_t differ_in(diff_t *diff, const char *key, json_t *a,
                               json_t *b, fsdp_error_t *err)
{
    fsdp_ckpt_difference_t what = {.name = key, .how = FSDP_CKPT_METADATA};
    char *texts[DIFF_SIDES] = {NULL, NULL};
    json_t *values[DIFF_SIDES] = {a, b};
    fsdp_status_t status;

    if (json_equal(a, b)) {
        return FSDP_OK;
    }
    if (json_is_object(a) && json_is_object(b)) {
        return compare_objects(diff, key, a, b, err);
    }

    for (unsigned side = 0; side < DIFF_SIDES; side++) {
        texts[side] =
            (values[side] == NULL)
                ? strdup("nothing")
                : json_dumps(values[side], JSON_COMPACT | JSON_ENCODE_ANY);
    }
    status = call_back(diff, &what,
                       (texts[0] == NULL || texts[1] == NULL)
                           ? NULL
                           : io_path("metadata %s: %.300s against %.300s", key,
                                     texts[0], texts[1]),
                       err);
    free(texts[0]);
    free(texts[1]);

    return status;
}

static fsdp_status_t differ_below(diff_t *diff, const char *path,
                                  const char *key, json_t *a, json_t *b,
                                  fsdp_error_t *err)
{
    char *longer = (*path != '\0') ? io_path("%s.%s", path, key) : strdup(key);
    fsdp_status_t status =
        (longer != NULL)
            ? differ_in(diff, longer, a, b, err)
            : fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "no memory for a line");

    free(longer);
    return status;
}

/* @param path  Of the objects, "" at the top. */
static fsdp_status_t compare_objects(diff_t *diff, const char *path, json_t *a,
                                     json_t *b, fsdp_error_t *err)
{
    const char *key;
    json_t *value;

    json_object_foreach(a, key, value)
    {
        FSDP_TRY(
            differ_below(diff, path, key, value, json_object_get(b, key), err));
    }
    json_object_foreach(b, key, value)
    {
        if (json_object_get(a, key) == NULL) {
            FSDP_TRY(differ_below(diff, path, key, NULL, value, err));
        }
    }

    return FSDP_OK;
}

static fsdp_status_t compare_metadata(diff_t *diff, fsdp_error_t *err)
{
    json_t *metas[DIFF_SIDES] = {NULL, NULL};
    fsdp_status_t status = FSDP_OK;

    for (unsigned side = 0; side < DIFF_SIDES && status == FSDP_OK; side++) {
        json_error_t error;

        metas[side] =
            json_loads(diff->infos[side].meta_json, JSON_ALLOW_NUL, &error);
        if (!json_is_object(metas[side]) ||
            json_object_set_new(metas[side], "step",
                                json_integer(diff->infos[side].step)) != 0) {
            status = fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                    "%s: the metadata is no JSON object",
                                    diff->paths[side]);
        }
    }
    if (status == FSDP_OK) {
        status = compare_objects(diff, "", metas[0], metas[1], err);
    }
    json_decref(metas[0]);
    json_decref(metas[1]);

    return status;
}

/* --- Values --------------------------------------------------------------- */

static bool is_tensor_anyway(const json_t *a, const json_t *b, void *arg)
{
    (void)a;
    (void)b;
    (void)arg;
    return true; /* it is compared as a tensor */
}

/* The values of a side that are chosen, taken apart: what one format keeps
 * whole another has by parts. */
static fsdp_status_t flat_values(const diff_t *diff, unsigned side,
                                 json_t **flat_p, fsdp_error_t *err)
{
    json_t *all = json_object(), *value = NULL;
    fsdp_status_t status = FSDP_OK;
    const char *name, *json;

    for (uint64_t i = 0; i < diff->infos[side].num_values && status == FSDP_OK;
         i++) {
        fsdp_ckpt_get_value(diff->ckpts[side], i, &name, &json);
        if (!select_match(&diff->select, name)) {
            continue;
        }
        status =
            value_parse(diff->paths[side], json, strlen(json), &value, err);
        if (status == FSDP_OK) {
            json_object_set_new(all, name, value);
        }
    }
    if (status == FSDP_OK) {
        *flat_p = value_flat(all);
        if (*flat_p == NULL) {
            status = fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                                    diff->paths[side]);
        }
    }
    json_decref(all);
    return status;
}

/* Of a name that both sides have. */
static fsdp_status_t compare_value(diff_t *diff, const char *name,
                                   const json_t *a, const json_t *b,
                                   fsdp_error_t *err)
{
    fsdp_ckpt_difference_t what = {.name = name, .how = FSDP_CKPT_METADATA};
    fsdp_status_t status;
    char *left, *right;

    if (value_equal(a, b, is_tensor_anyway, NULL)) {
        return FSDP_OK;
    }

    left = value_text(a);
    right = value_text(b);
    status = call_back(
        diff, &what,
        (left == NULL || right == NULL)
            ? NULL
            : io_path("value %s: %.300s against %.300s", name, left, right),
        err);
    free(left);
    free(right);
    return status;
}

/* Names of @a side that the other lacks, and, once, those that both have. */
static fsdp_status_t compare_values_of(diff_t *diff, json_t *const flat[],
                                       unsigned side, fsdp_error_t *err)
{
    const char *name;
    json_t *value;

    json_object_foreach(flat[side], name, value)
    {
        fsdp_ckpt_difference_t what = {.name = name, .how = FSDP_CKPT_METADATA};
        const json_t *other = json_object_get(flat[1 - side], name);

        if (other == NULL) {
            FSDP_TRY(call_back(
                diff, &what,
                io_path("value %s: only in %s", name, diff->paths[side]), err));
        } else if (side == 0) {
            FSDP_TRY(compare_value(diff, name, value, other, err));
        }
    }

    return FSDP_OK;
}

/* A side that has no values at all is of a format or a writer without them:
 * told only if the metadata is compared too. */
static fsdp_status_t compare_values(diff_t *diff, fsdp_error_t *err)
{
    json_t *flat[DIFF_SIDES] = {NULL, NULL};
    fsdp_status_t status = FSDP_OK;

    if (!diff->config->metadata &&
        (diff->infos[0].num_values == 0 || diff->infos[1].num_values == 0)) {
        return FSDP_OK;
    }

    for (unsigned side = 0; side < DIFF_SIDES && status == FSDP_OK; side++) {
        status = flat_values(diff, side, &flat[side], err);
    }
    for (unsigned side = 0; side < DIFF_SIDES && status == FSDP_OK; side++) {
        status = compare_values_of(diff, flat, side, err);
    }
    json_decref(flat[0]);
    json_decref(flat[1]);
    return status;
}

/* --- The call ------------------------------------------------------------- */

static fsdp_status_t run_diff(diff_t *diff, fsdp_error_t *err)
{
    fsdp_ckpt_open_config_t open = FSDP_CKPT_OPEN_INIT;

    open.recipe = diff->config->recipe;
    open.rules = diff->config->rules;
    open.num_rules = diff->config->num_rules;
    open.set = diff->config->set;
    open.num_set = diff->config->num_set;
    open.include = diff->config->include;
    open.num_include = diff->config->num_include;
    for (unsigned side = 0; side < DIFF_SIDES; side++) {
        FSDP_TRY(fsdp_ckpt_open_with(diff->paths[side], &open,
                                     &diff->ckpts[side], err));
        fsdp_ckpt_get_info(diff->ckpts[side], &diff->infos[side]);
        diff->result.steps[side] = diff->infos[side].step;
        diff->result.recipe_unused = diff->infos[side].recipe_unused &&
                                     (side == 0 || diff->result.recipe_unused);
        open.num_rules = open.num_set = 0; /* of the first one only */
    }
    for (size_t i = 0; i < diff->select.num_include; i++) {
        diff->patterns[i] = fsdp_ckpt_get_pattern(diff->ckpts[0], i);
    }
    FSDP_TRY(diff_pair_tensors(diff, err));
    if (diff->config->metadata) {
        FSDP_TRY(compare_metadata(diff, err));
    }
    FSDP_TRY(compare_values(diff, err));

    return diff_compare_values(diff, err);
}

fsdp_status_t fsdp_ckpt_diff(const char *path_a, const char *path_b,
                             const fsdp_ckpt_diff_config_t *config,
                             fsdp_ckpt_difference_f difference, void *arg,
                             fsdp_ckpt_diff_result_t *result_p,
                             fsdp_error_t *err)
{
    diff_t diff = {
        .config = config,
        .select = {.num_include = config->num_include,
                   .exclude = config->exclude,
                   .num_exclude = config->num_exclude,
                   .only = config->only_model   ? SELECT_MODEL
                           : config->only_optim ? SELECT_OPTIM
                                                : SELECT_ALL},
        .difference = difference,
        .arg = arg,
        .paths = {path_a, path_b},
    };
    double began = clock_now();
    fsdp_status_t status;

    FSDP_TRY_SIZE(config, err);
    if (!(config->rtol >= 0 && config->atol >= 0)) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "a tolerance may not be negative");
    }

    diff.patterns = calloc(config->num_include + 1, sizeof(*diff.patterns));
    diff.select.include = diff.patterns;
    status = (diff.patterns != NULL) ? run_diff(&diff, err)
                                     : fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                                      "%s: no memory", path_a);
    free(diff.patterns);
    free(diff.pairs);
    fsdp_ckpt_close(diff.ckpts[0]);
    fsdp_ckpt_close(diff.ckpts[1]);
    if (status == FSDP_OK) {
        diff.result.seconds = clock_now() - began;
        *result_p = diff.result;
    }

    return status;
}
