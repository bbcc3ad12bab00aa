/*
 * A catalog rewritten by rules.
 *
 * Each rule, bound to names that are there, says which tensors the new catalog
 * has and which rows of which old ones they are made of (rules_bind.c).  Then
 * the pieces go along (rules_piece.c), and all that is no tensor.
 */
#include "config.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/engine.h"
#include "ckpt/rules_moves.h"
#include "ckpt/value.h"
#include "lib/util/check.h"
#include "lib/util/select.h"

#define COMPARE_BYTES (1u << 20)

static rules_text_t text_of(const char *text)
{
    return (rules_text_t){text, strlen(text)};
}

/* --- Names of the source -------------------------------------------------- */

/* Take a text out wherever a component of the name begins. */
static void strip_one(char *name, const char *strip)
{
    size_t size = strlen(strip);
    char *to = name;
    char before = '.';

    for (const char *from = name; *from != '\0';) {
        if ((before == '.' || before == '/') &&
            strncmp(from, strip, size) == 0) {
            from += size;
        } else {
            before = *from;
            *to++ = *from++;
        }
    }
    *to = '\0';
}

/* The name that rules see; the caller frees it. */
static char *strip_name(const apply_t *apply, const char *name)
{
    char *stripped = strdup(name);

    for (size_t i = 0; i < apply->rules->num_strips && stripped != NULL; i++) {
        strip_one(stripped, apply->rules->strips[i]);
    }

    return stripped;
}

static fsdp_status_t name_tensors(apply_t *apply, fsdp_error_t *err)
{
    const catalog_t *from = apply->from;

    apply->olds = calloc(from->num_tensors + 1, sizeof(*apply->olds));
    apply->order = catalog_in_order(from);
    if (apply->olds == NULL || apply->order == NULL) {
        return rules_no_memory(apply, err);
    }

    for (uint64_t t = 0; t < from->num_tensors; t++) {
        old_t *old = &apply->olds[t];

        old->made = RULES_NONE;
        old->name = strip_name(apply, from->tensors[t].name);
        if (old->name == NULL ||
            !map_put(&apply->old_names, old->name, strlen(old->name), t)) {
            return rules_no_memory(apply, err);
        }
        apply->changes |= strcmp(old->name, from->tensors[t].name) != 0;
    }

    return FSDP_OK;
}

/* --- What is left out ----------------------------------------------------- */

static bool name_fits(const rules_name_t *name, const char *text)
{
    rules_binding_t binding = {0};

    return rules_name_match(name, text_of(text), &binding);
}

static bool is_dropped(const apply_t *apply, const char *name)
{
    for (size_t i = 0; i < apply->rules->num_drops; i++) {
        if (name_fits(&apply->rules->drops[i], name)) {
            return true;
        }
    }

    return false;
}

static void drop(apply_t *apply, bool only_model)
{
    const select_t model = {.only = SELECT_MODEL};

    for (uint64_t i = 0; i < apply->from->num_tensors; i++) {
        old_t *old = &apply->olds[apply->order[i]];

        if (is_dropped(apply, old->name)) {
            old->gone = apply->changes = true;
            rules_note(apply, "%s: is left out, as %s says", old->name,
                       apply->rules->name);
        }
        old->gone |= only_model && !select_match(&model, old->name);
    }
}

static fsdp_status_t read_part(const catalog_t *cat, uint64_t tensor,
                               uint64_t first, uint64_t count, void *data,
                               fsdp_error_t *err)
{
    const fsdp_ckpt_range_t range = {tensor, first, count, data};
    engine_job_t job = {0};
    fsdp_status_t status;
    plan_t plan;

    FSDP_TRY(plan_read(&plan, cat, &range, 1, err));
    job.plan = &plan;
    status = engine_run(&job, NULL, err);
    plan_free(&plan);
    return status;
}

static bool same_type(const catalog_t *cat, uint64_t a, uint64_t b)
{
    const catalog_tensor_t *left = &cat->tensors[a], *right = &cat->tensors[b];

    return left->dtype == right->dtype && left->ndim == right->ndim &&
           memcmp(cat->dims + left->dims_first, cat->dims + right->dims_first,
                  left->ndim * sizeof(*cat->dims)) == 0;
}

/* Do two tensors hold the same bytes? */
static fsdp_status_t compare(const catalog_t *cat, uint64_t a, uint64_t b,
                             bool *same_p, fsdp_error_t *err)
{
    const catalog_tensor_t *tensor = &cat->tensors[a];
    uint64_t step = COMPARE_BYTES / 16, count, bytes = 0;
    char *data = malloc(2 * COMPARE_BYTES);
    fsdp_status_t status = FSDP_OK;

    if (data == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              cat->path);
    }

    *same_p = same_type(cat, a, b);
    for (uint64_t i = 0; i < tensor->numel && *same_p; i += count) {
        count = (tensor->numel - i < step) ? tensor->numel - i : step;
        (void)dtype_bytes((fsdp_dtype_t)tensor->dtype, count, &bytes);
        FSDP_TRY_GOTO(read_part(cat, a, i, count, data, err), err_free);
        FSDP_TRY_GOTO(read_part(cat, b, i, count, data + COMPARE_BYTES, err),
                      err_free);
        *same_p = memcmp(data, data + COMPARE_BYTES, bytes) == 0;
    }
err_free:
    free(data);
    return status;
}

/* A copy of the tensor that it should be tied to may go, nothing else. */
static fsdp_status_t untie(apply_t *apply, const rules_tie_t *tie, uint64_t t,
                           fsdp_error_t *err)
{
    rules_binding_t binding = {0};
    fsdp_status_t status = FSDP_OK;
    bool there, same = false;
    uint64_t owner;
    char *name;

    if (!rules_name_match(&tie->alias, text_of(apply->olds[t].name),
                          &binding)) {
        return FSDP_OK;
    }
    name = rules_name_make(NULL, &tie->owner, &binding);
    if (name == NULL) {
        return rules_no_memory(apply, err);
    }

    there = map_get(&apply->old_names, name, strlen(name), &owner);
    if (there) {
        status = compare(apply->from, t, owner, &same, err);
    }
    if (there && status == FSDP_OK && !same) {
        status = fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                                "%s: tensor %s is not tied to %s: their "
                                "values differ; leave it out with a rule "
                                "'drop %s' if it may be lost",
                                apply->from->path, apply->olds[t].name, name,
                                apply->olds[t].name);
    }
    apply->olds[t].gone |= same;
    apply->changes |= same;
    free(name);
    return status;
}

static fsdp_status_t untie_all(apply_t *apply, fsdp_error_t *err)
{
    for (size_t i = 0; i < apply->rules->num_ties; i++) {
        for (uint64_t t = 0;
             t < apply->from->num_tensors && !apply->rules->reversed; t++) {
            FSDP_TRY(untie(apply, &apply->rules->ties[i], t, err));
        }
    }

    return FSDP_OK;
}

/* --- The new catalog ------------------------------------------------------ */

static const char *unit_of(const apply_t *apply, const made_t *made)
{
    uint32_t unit = apply->from->tensors[made->first].unit;

    return (unit != CATALOG_NONE) ? apply->from->units[unit] : NULL;
}

/* In the order of the tensors that they are made of. */
static fsdp_status_t add_tensors(const apply_t *apply, catalog_t *to,
                                 uint64_t *targets, fsdp_error_t *err)
{
    const catalog_t *from = apply->from;
    uint64_t *next = malloc((apply->num_mades + 1) * sizeof(*next));
    uint64_t *heads = malloc((from->num_tensors + 1) * sizeof(*heads));
    fsdp_status_t status = FSDP_OK;

    if (next == NULL || heads == NULL) {
        status = rules_no_memory(apply, err);
        goto err_free;
    }

    /* Lists of those that begin with the same tensor. */
    memset(heads, 0xff, (from->num_tensors + 1) * sizeof(*heads));
    for (uint64_t m = apply->num_mades; m > 0; m--) {
        next[m - 1] = heads[apply->mades[m - 1].first];
        heads[apply->mades[m - 1].first] = m - 1;
    }
    for (uint64_t i = 0; i < from->num_tensors; i++) {
        for (uint64_t m = heads[apply->order[i]]; m != RULES_NONE;
             m = next[m]) {
            const made_t *made = &apply->mades[m];

            FSDP_TRY_GOTO(
                catalog_add_tensor(to, made->name, (fsdp_dtype_t)made->dtype,
                                   made->ndim, made->dims, unit_of(apply, made),
                                   &targets[m], err),
                err_free);
            if (made->stored != made->dtype) {
                FSDP_TRY_GOTO(catalog_set_stored(to, targets[m],
                                                 (fsdp_dtype_t)made->stored,
                                                 err),
                              err_free);
            }
        }
    }
err_free:
    free(next);
    free(heads);
    return status;
}

static fsdp_status_t add_pieces(const apply_t *apply, catalog_t *to,
                                const uint64_t *targets, bool *lost,
                                fsdp_error_t *err)
{
    uint32_t zeros = CATALOG_NONE;

    for (uint64_t m = 0; m < apply->num_moves; m++) {
        const move_t *move = &apply->moves[m];

        if (move->zeros && move->rows > 0 && zeros == CATALOG_NONE) {
            FSDP_TRY(catalog_add_file(to, "zeros", INT64_MAX, &zeros, err));
            to->files[zeros].zeros = true;
        }
        if (!move->zeros || move->rows > 0) {
            FSDP_TRY(rules_move(apply, move, to, targets[move->made], zeros,
                                lost, err));
        }
    }

    return FSDP_OK;
}

/* --- Other names ---------------------------------------------------------- */

/* The one new tensor that is all of an old one, or NULL. */
static const made_t *whole_of(const apply_t *apply, uint64_t tensor)
{
    uint64_t made = apply->olds[tensor].made;

    return (made != RULES_NONE) ? &apply->mades[made] : NULL;
}

/* What a rule makes of a name alone; the name itself if none fits it. */
static char *new_name(const apply_t *apply, const char *name)
{
    char *stripped = strip_name(apply, name), *made;
    bound_t bound;

    for (size_t r = 0; r < apply->rules->num_rules && stripped != NULL; r++) {
        const rules_rule_t *rule = &apply->rules->rules[r];

        if (rule->from.num == 1 && rule->to.num == 1 &&
            rule->from.terms[0].index < 0 &&
            rules_fits(apply, rule, 0, stripped, &bound)) {
            made = rules_name_make(&bound.kind->to, &rule->to.terms[0].name,
                                   &bound.binding);
            free(stripped);
            return made;
        }
    }

    return stripped;
}

static bool is_tied(const apply_t *apply, const char *name)
{
    for (size_t i = 0; i < apply->rules->num_ties; i++) {
        if (name_fits(&apply->rules->ties[i].alias, name)) {
            return !apply->rules->reversed;
        }
    }

    return false;
}

static fsdp_status_t add_alias(const apply_t *apply, catalog_t *to,
                               const catalog_alias_t *alias, fsdp_error_t *err)
{
    const made_t *owner = whole_of(apply, alias->tensor);
    char *stripped = strip_name(apply, alias->name);
    char *name = new_name(apply, alias->name);
    fsdp_status_t status = FSDP_OK;

    if (stripped == NULL || name == NULL) {
        status = rules_no_memory(apply, err);
    } else if (is_tied(apply, stripped) || is_dropped(apply, stripped)) {
        status = FSDP_OK;
    } else if (owner == NULL) {
        status = fsdp_error_set(
            err, FSDP_ERR_INVALID_PARAM,
            "%s: %s is another name of %s, which rules change: a line 'tied "
            "%s = %s' lets them leave it out",
            apply->rules->name, alias->name,
            apply->from->tensors[alias->tensor].name, stripped,
            apply->olds[alias->tensor].name);
    } else {
        status = catalog_add_alias(to, name, owner->name, err);
    }
    free(stripped);
    free(name);
    return status;
}

/* From right to left, what is tied gets its other name back. */
static fsdp_status_t tie_again(const apply_t *apply, catalog_t *to,
                               const rules_tie_t *tie, const made_t *made,
                               fsdp_error_t *err)
{
    rules_binding_t binding = {0};
    fsdp_status_t status = FSDP_OK;
    uint64_t other;
    char *name;

    if (!rules_name_match(&tie->owner, text_of(made->name), &binding)) {
        return FSDP_OK;
    }
    name = rules_name_make(NULL, &tie->alias, &binding);
    if (name == NULL) {
        return rules_no_memory(apply, err);
    }
    if (!map_get(&apply->made_names, name, strlen(name), &other)) {
        status = catalog_add_alias(to, name, made->name, err);
    }
    free(name);
    return status;
}

static fsdp_status_t add_aliases(const apply_t *apply, catalog_t *to,
                                 fsdp_error_t *err)
{
    const catalog_t *from = apply->from;

    for (uint64_t i = 0; i < from->num_aliases; i++) {
        FSDP_TRY(add_alias(apply, to, &from->aliases[i], err));
    }
    for (size_t i = 0; apply->rules->reversed && i < apply->rules->num_ties;
         i++) {
        for (uint64_t m = 0; m < apply->num_mades; m++) {
            FSDP_TRY(tie_again(apply, to, &apply->rules->ties[i],
                               &apply->mades[m], err));
        }
    }

    return FSDP_OK;
}

/* --- Values --------------------------------------------------------------- */

typedef struct {
    const apply_t *apply;
    const char *value;
} renaming_t;

/* Give a tensor inside a value its new name. */
static fsdp_status_t rename_inner(json_t *name, void *arg, fsdp_error_t *err)
{
    const renaming_t *renaming = arg;
    const apply_t *apply = renaming->apply;
    const made_t *made;
    uint64_t tensor;

    if (!catalog_find(apply->from, json_string_value(name), &tensor)) {
        return FSDP_OK;
    }

    made = whole_of(apply, tensor);
    return (made != NULL && json_string_set(name, made->name) == 0)
               ? FSDP_OK
               : fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                                "%s: value %s holds tensor %s, which rules "
                                "change",
                                apply->rules->name, renaming->value,
                                json_string_value(name));
}

static fsdp_status_t add_value(const apply_t *apply, catalog_t *to,
                               const catalog_value_t *value, fsdp_error_t *err)
{
    char *name = strip_name(apply, value->name), *text = NULL;
    fsdp_status_t status;
    json_t *json;

    if (name == NULL) {
        return rules_no_memory(apply, err);
    }

    status =
        value_parse(value->name, value->json, strlen(value->json), &json, err);
    if (status != FSDP_OK) {
        goto err_free;
    }
    status = value_visit_tensors(json, rename_inner,
                                 &(renaming_t){apply, value->name}, err);
    if (status == FSDP_OK && !is_dropped(apply, name)) {
        text = value_text(json);
        status = (text != NULL) ? catalog_add_value(to, name, text, err)
                                : rules_no_memory(apply, err);
    }
    json_decref(json);
err_free:
    free(text);
    free(name);
    return status;
}

static fsdp_status_t add_values(const apply_t *apply, catalog_t *to,
                                fsdp_error_t *err)
{
    for (uint64_t v = 0; v < apply->from->num_values; v++) {
        FSDP_TRY(add_value(apply, to, &apply->from->values[v], err));
    }

    return FSDP_OK;
}

/* --- All of it ------------------------------------------------------------ */

static fsdp_status_t fill(const apply_t *apply, catalog_t *to, bool *lost,
                          fsdp_error_t *err)
{
    uint64_t *targets = malloc((apply->num_mades + 1) * sizeof(*targets));
    fsdp_status_t status;

    if (targets == NULL) {
        return rules_no_memory(apply, err);
    }

    FSDP_TRY_GOTO(catalog_copy_storage(to, apply->from, err), err_free);
    FSDP_TRY_GOTO(add_tensors(apply, to, targets, err), err_free);
    FSDP_TRY_GOTO(add_pieces(apply, to, targets, lost, err), err_free);
    FSDP_TRY_GOTO(add_aliases(apply, to, err), err_free);
    FSDP_TRY_GOTO(add_values(apply, to, err), err_free);
    status = catalog_seal(to, CATALOG_CHECK_COVER, err);
err_free:
    free(targets);
    return status;
}

static void apply_free(apply_t *apply)
{
    for (uint64_t t = 0; apply->olds != NULL && t < apply->from->num_tensors;
         t++) {
        free(apply->olds[t].name);
    }
    for (uint64_t m = 0; m < apply->num_mades; m++) {
        free(apply->mades[m].name);
    }
    free(apply->olds);
    free(apply->order);
    free(apply->mades);
    free(apply->moves);
    map_free(&apply->old_names);
    map_free(&apply->made_names);
}

fsdp_status_t rules_apply(const rules_t *rules, const catalog_t *from,
                          bool only_model, catalog_t *to, bool **lost_p,
                          fsdp_ckpt_note_f note, void *arg, fsdp_error_t *err)
{
    apply_t apply = {.rules = rules, .from = from, .note = note, .arg = arg};
    bool *lost = calloc(from->num_pieces + 1, sizeof(*lost));
    fsdp_status_t status;

    if (lost == NULL) {
        return rules_no_memory(&apply, err);
    }

    FSDP_TRY_GOTO(name_tensors(&apply, err), err_free);
    drop(&apply, only_model);
    FSDP_TRY_GOTO(untie_all(&apply, err), err_free);
    FSDP_TRY_GOTO(rules_bind(&apply, err), err_free);
    if (!apply.changes) {
        status =
            fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                           "%s: fits no tensor of %s", rules->name, from->path);
        goto err_free;
    }
    FSDP_TRY_GOTO(fill(&apply, to, lost, err), err_free);
    *lost_p = lost;
    lost = NULL;
err_free:
    free(lost);
    apply_free(&apply);
    return status;
}
