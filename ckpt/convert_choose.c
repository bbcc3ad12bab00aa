/*
 * Which tensors a conversion takes, under which names, and what goes along
 * with them.
 */
#include "config.h"

#include "ckpt/convert.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/format/llmc.h"
#include "ckpt/value.h"
#include "lib/util/check.h"
#include "lib/util/select.h"

/* --- Choosing ------------------------------------------------------------- */

static select_t selection(const convert_t *convert)
{
    const fsdp_ckpt_convert_config_t *config = convert->config;

    return (select_t){.include = (const char *const *)convert->cut.patterns,
                      .num_include = convert->cut.num,
                      .exclude = config->exclude,
                      .num_exclude = config->num_exclude,
                      .only = config->only_model   ? SELECT_MODEL
                              : config->only_optim ? SELECT_OPTIM
                                                   : SELECT_ALL};
}

/* The name before rules are applied. */
static const char *plain_name(const convert_t *convert, const char *name)
{
    return (convert->config->only_model && select_is_model(name))
               ? select_base(name)
               : name;
}

static char *target_name(const convert_t *convert, const char *name)
{
    return select_rename(convert->config->rename, convert->config->num_rename,
                         plain_name(convert, name));
}

/* A pattern or rule that fits nothing is a mistake that would pass unseen. */
static fsdp_status_t check_pattern(const convert_t *convert,
                                   const char *pattern, fsdp_error_t *err)
{
    for (uint64_t t = 0; t < convert->src.num_tensors; t++) {
        if (select_pattern_match(pattern, convert->src.tensors[t].name)) {
            return FSDP_OK;
        }
    }

    return catalog_no_tensor(&convert->src, pattern, pattern, err);
}

/* Whether rule @a number changes the name of any wanted tensor. */
static fsdp_status_t check_rule(const convert_t *convert, size_t number,
                                fsdp_error_t *err)
{
    const char *const *rules = convert->config->rename;
    bool used = false;

    FSDP_TRY(select_check_rule(rules[number], err));
    for (uint64_t i = 0; i < convert->num_wanted && !used; i++) {
        const char *name = convert->src.tensors[convert->wanted[i].source].name;
        char *before = select_rename(rules, number, plain_name(convert, name));
        char *after =
            (before != NULL) ? select_rename(rules + number, 1, before) : NULL;

        used = after == NULL || strcmp(before, after) != 0;
        free(before);
        free(after);
    }

    return used ? FSDP_OK
                : fsdp_error_set(err, FSDP_ERR_NOT_FOUND,
                                 "%s: the rule '%s' renames no tensor",
                                 convert->src.path, rules[number]);
}

static fsdp_status_t want(convert_t *convert, uint64_t tensor,
                          fsdp_error_t *err)
{
    const catalog_tensor_t *entry = &convert->src.tensors[tensor];
    wanted_t *wanted = &convert->wanted[convert->num_wanted];

    *wanted = (wanted_t){.source = tensor,
                         .name = target_name(convert, entry->name),
                         .dtype = (fsdp_dtype_t)entry->dtype};
    if (wanted->name == NULL) {
        return convert_no_memory(convert, err);
    }
    if (wanted->name[0] == '\0') {
        free(wanted->name);
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "tensor '%s' would have an empty name: leave it "
                              "out with --exclude '%s'",
                              entry->name, entry->name);
    }
    if (convert->config->cast && dtype_is_float(wanted->dtype) &&
        (convert->format->id != FSDP_CKPT_LLMC ||
         llmc_is_parameter(wanted->name))) {
        wanted->dtype = convert->config->cast_dtype;
    }

    convert->num_wanted++;
    return FSDP_OK;
}

static int by_name(const void *a, const void *b)
{
    const wanted_t *const *left = a, *const *right = b;

    return strcmp((*left)->name, (*right)->name);
}

/* Two tensors of the source must not get one name. */
static fsdp_status_t check_names(const convert_t *convert, fsdp_error_t *err)
{
    uint64_t num = convert->num_wanted;
    const wanted_t **sorted = calloc(num + 1, sizeof(*sorted));
    fsdp_status_t status = FSDP_OK;

    if (sorted == NULL) {
        return convert_no_memory(convert, err);
    }

    for (uint64_t i = 0; i < num; i++) {
        sorted[i] = &convert->wanted[i];
    }
    qsort(sorted, num, sizeof(*sorted), by_name);
    for (uint64_t i = 1; i < num && status == FSDP_OK; i++) {
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0) {
            status = fsdp_error_set(
                err, FSDP_ERR_INVALID_PARAM,
                "tensors %s and %s would both be named %s: leave one out or "
                "rename it",
                convert->src.tensors[sorted[i - 1]->source].name,
                convert->src.tensors[sorted[i]->source].name, sorted[i]->name);
        }
    }
    free(sorted);

    return status;
}

fsdp_status_t convert_choose(convert_t *convert, fsdp_error_t *err)
{
    const fsdp_ckpt_convert_config_t *config = convert->config;
    const catalog_t *src = &convert->src;
    uint64_t *ordered = catalog_in_order(src);
    const select_t select = selection(convert);
    fsdp_status_t status = FSDP_OK;

    convert->wanted = calloc(src->num_tensors + 1, sizeof(*convert->wanted));
    if (ordered == NULL || convert->wanted == NULL) {
        status = convert_no_memory(convert, err);
        goto err_free;
    }

    for (size_t i = 0; i < convert->cut.num; i++) {
        FSDP_TRY_GOTO(check_pattern(convert, convert->cut.patterns[i], err),
                      err_free);
    }
    for (uint64_t i = 0; i < src->num_tensors; i++) {
        if (select_match(&select, src->tensors[ordered[i]].name)) {
            FSDP_TRY_GOTO(want(convert, ordered[i], err), err_free);
        }
    }
    for (size_t i = 0; i < config->num_rename; i++) {
        FSDP_TRY_GOTO(check_rule(convert, i, err), err_free);
    }
    if (convert->num_wanted == 0 && src->num_tensors > 0) {
        status = fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                                "%s: none of its %" PRIu64 " tensors is chosen",
                                src->path, src->num_tensors);
        goto err_free;
    }
    status = check_names(convert, err);
err_free:
    free(ordered);
    return status;
}

/* --- What is kept beside the tensors -------------------------------------- */

/* Is every tensor of a kind in the target as it was? */
static bool kind_is_kept(const convert_t *convert,
                         bool (*is_kind)(const char *name))
{
    const catalog_t *src = &convert->src;
    uint64_t there = 0, kept = 0;

    for (uint64_t t = 0; t < src->num_tensors; t++) {
        there += is_kind(src->tensors[t].name);
    }
    for (uint64_t i = 0; i < convert->num_wanted; i++) {
        const wanted_t *wanted = &convert->wanted[i];
        const catalog_tensor_t *from = &src->tensors[wanted->source];

        kept += is_kind(from->name) && from->dtype == wanted->dtype &&
                strcmp(from->name, wanted->name) == 0;
    }

    return there > 0 && kept == there;
}

/* The target tensor that holds a source tensor, or NULL.  They are in the
 * order of the source's writer. */
static const wanted_t *find_wanted(const convert_t *convert, uint64_t source)
{
    const catalog_tensor_t *tensors = convert->src.tensors;
    uint64_t lo = 0, hi = convert->num_wanted;

    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        const wanted_t *wanted = &convert->wanted[mid];

        if (wanted->source == source) {
            return wanted;
        }
        if (tensors[wanted->source].order < tensors[source].order) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }

    return NULL;
}

/* Other names go with their owner, unless a pattern leaves them out. */
static fsdp_status_t keep_aliases(convert_t *convert, fsdp_error_t *err)
{
    const catalog_t *src = &convert->src;
    select_t select = selection(convert);

    select.num_include = 0;
    for (uint64_t i = 0; i < src->num_aliases; i++) {
        const catalog_alias_t *alias = &src->aliases[i];
        const wanted_t *owner = find_wanted(convert, alias->tensor);
        fsdp_status_t status;
        char *name;

        if (owner == NULL || !select_match(&select, alias->name)) {
            continue;
        }
        name = target_name(convert, alias->name);
        if (name == NULL) {
            return convert_no_memory(convert, err);
        }
        status = catalog_add_alias(&convert->dst, name, owner->name, err);
        free(name);
        FSDP_TRY(status);
    }

    return FSDP_OK;
}

typedef struct {
    const convert_t *convert;
    const char *value;
} keeping_t;

/* Give a tensor that a value holds the name that it has in the target. */
static fsdp_status_t rename_inner(json_t *name, void *arg, fsdp_error_t *err)
{
    const keeping_t *keeping = arg;
    const wanted_t *wanted = NULL;
    uint64_t tensor;

    if (catalog_find(&keeping->convert->src, json_string_value(name),
                     &tensor)) {
        wanted = find_wanted(keeping->convert, tensor);
    }
    return (wanted != NULL && json_string_set(name, wanted->name) == 0)
               ? FSDP_OK
               : fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                                "value '%s' holds tensor %s, which is left "
                                "out: leave the value out too with --exclude "
                                "'%s'",
                                keeping->value, json_string_value(name),
                                keeping->value);
}

static fsdp_status_t keep_value(convert_t *convert,
                                const catalog_value_t *value, fsdp_error_t *err)
{
    const char *missing;
    fsdp_status_t status;
    char *name, *text;
    json_t *json;

    FSDP_TRY(
        value_parse(value->name, value->json, strlen(value->json), &json, err));
    missing = value_unread(json);
    if (missing != NULL) {
        status = fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                                "%s: %s: %s: leave it out with --exclude '%s'",
                                convert->src.path, value->name, missing,
                                value->name);
        json_decref(json);
        return status;
    }
    status = value_visit_tensors(json, rename_inner,
                                 &(keeping_t){convert, value->name}, err);
    if (status != FSDP_OK) {
        json_decref(json);
        return status;
    }

    name = target_name(convert, value->name);
    text = value_text(json);
    status = (name != NULL && text != NULL)
                 ? catalog_add_value(&convert->dst, name, text, err)
                 : convert_no_memory(convert, err);
    free(name);
    free(text);
    json_decref(json);
    return status;
}

/* Values go along, unless patterns choose others. */
static fsdp_status_t keep_values(convert_t *convert, fsdp_error_t *err)
{
    const select_t select = selection(convert);

    for (uint64_t i = 0; i < convert->src.num_values; i++) {
        const catalog_value_t *value = &convert->src.values[i];

        if (select_match(&select, value->name)) {
            FSDP_TRY(keep_value(convert, value, err));
        }
    }

    return FSDP_OK;
}

fsdp_status_t convert_keep_rest(convert_t *convert, fsdp_error_t *err)
{
    const catalog_t *src = &convert->src;
    catalog_t *dst = &convert->dst;
    const char *meta = catalog_strdup(dst, src->meta);

    if (meta == NULL) {
        return convert_no_memory(convert, err);
    }

    dst->meta = meta;
    dst->step = src->step;
    if (src->has_digest_model && kind_is_kept(convert, select_is_model)) {
        dst->has_digest_model = true;
        memcpy(dst->digest_model, src->digest_model, sizeof(dst->digest_model));
    }
    if (src->has_digest_optim && kind_is_kept(convert, select_is_optim)) {
        dst->has_digest_optim = true;
        memcpy(dst->digest_optim, src->digest_optim, sizeof(dst->digest_optim));
    }

    FSDP_TRY(keep_values(convert, err));
    return keep_aliases(convert, err);
}
