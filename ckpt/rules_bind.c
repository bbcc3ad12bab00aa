/*
 * Rules bound to the names that are there: which tensors the new catalog has,
 * and which rows of which old ones they are made of.
 */
#include "config.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/rules_moves.h"
#include "ckpt/value.h"
#include "lib/util/check.h"
#include "lib/util/text.h"

fsdp_status_t rules_no_memory(const apply_t *apply, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                          apply->rules->name);
}

__attribute__((format(printf, 4, 5))) static fsdp_status_t misfit(
    const apply_t *apply, const rules_rule_t *rule, fsdp_error_t *err,
    const char *fmt, ...)
{
    char text[400];
    va_list ap;

    va_start(ap, fmt);
    text_message(text, sizeof(text), fmt, ap);
    va_end(ap);
    return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM, "%s: line %u: %s",
                          apply->rules->name, rule->line, text);
}

__attribute__((format(printf, 2, 3))) void rules_note(const apply_t *apply,
                                                      const char *fmt, ...)
{
    char text[400];
    va_list ap;

    if (apply->note != NULL) {
        va_start(ap, fmt);
        text_message(text, sizeof(text), fmt, ap);
        va_end(ap);
        apply->note(text, apply->arg);
    }
}

static rules_text_t text_of(const char *text)
{
    return (rules_text_t){text, strlen(text)};
}

/* --- The shape of a term -------------------------------------------------- */

typedef struct {
    unsigned ndim;
    uint64_t dims[FSDP_CKPT_MAX_NDIM];
} shape_t;

/* Swap the last two dimensions. */
static bool transpose(shape_t *shape)
{
    uint64_t last;

    if (shape->ndim < 2) {
        return false;
    }

    last = shape->dims[shape->ndim - 1];
    shape->dims[shape->ndim - 1] = shape->dims[shape->ndim - 2];
    shape->dims[shape->ndim - 2] = last;
    return true;
}

static shape_t shape_of(const catalog_t *cat, uint64_t t)
{
    const catalog_tensor_t *tensor = &cat->tensors[t];
    shape_t shape = {.ndim = tensor->ndim};

    memcpy(shape.dims, cat->dims + tensor->dims_first,
           tensor->ndim * sizeof(*shape.dims));
    return shape;
}

/* What a term of the source means of its tensor. */
static fsdp_status_t view(const apply_t *apply, const rules_rule_t *rule,
                          const rules_term_t *term, uint64_t tensor,
                          shape_t *shape_p, fsdp_error_t *err)
{
    shape_t shape = shape_of(apply->from, tensor);
    const char *name = apply->from->tensors[tensor].name;

    if (term->index >= 0) {
        if (shape.ndim == 0) {
            return misfit(apply, rule, err,
                          "tensor %s has no dimension that [%s] could number",
                          name, apply->rules->captures[term->index]);
        }
        shape.ndim--;
        memmove(shape.dims, shape.dims + 1, shape.ndim * sizeof(*shape.dims));
    }
    if (term->transposed && !transpose(&shape)) {
        return misfit(apply, rule, err,
                      "tensor %s has too few dimensions to be transposed",
                      name);
    }

    *shape_p = shape;
    return FSDP_OK;
}

/* --- Making tensors ------------------------------------------------------- */

/* The number that an index capture stands for. */
static uint64_t index_of(const rules_term_t *term,
                         const rules_binding_t *binding, bool *good)
{
    rules_text_t text;
    uint64_t index = 0;

    if (term->index < 0) {
        return RULES_NONE;
    }

    text = binding->texts[term->index];
    *good &= text.size <= 9 && (text.size == 1 || text.at[0] != '0');
    for (size_t i = 0; i < text.size && *good; i++) {
        *good &= text.at[i] >= '0' && text.at[i] <= '9';
        index = index * 10 + (uint64_t)(text.at[i] - '0');
    }

    return index;
}

/* The shape of the tensor that a term of a shape belongs to. */
static fsdp_status_t unview(const apply_t *apply, const bound_t *bound,
                            const rules_term_t *term, uint64_t index,
                            shape_t *shape, fsdp_error_t *err)
{
    const char *name = apply->from->tensors[bound->tensors[0]].name;

    if (term->transposed && !transpose(shape)) {
        return misfit(apply, bound->rule, err,
                      "tensor %s has too few dimensions to be transposed",
                      name);
    }
    if (index == RULES_NONE) {
        return FSDP_OK;
    }
    if (shape->ndim == FSDP_CKPT_MAX_NDIM) {
        return misfit(apply, bound->rule, err,
                      "tensor %s has too many dimensions for one more", name);
    }

    memmove(shape->dims + 1, shape->dims, shape->ndim * sizeof(*shape->dims));
    shape->dims[0] = index + 1;
    shape->ndim++;
    return FSDP_OK;
}

/* One number more of a tensor that was begun. */
static fsdp_status_t extend(const apply_t *apply, const bound_t *bound,
                            uint64_t index, const shape_t *shape, made_t *made,
                            fsdp_error_t *err)
{
    const catalog_tensor_t *tensors = apply->from->tensors;
    const catalog_tensor_t *first = &tensors[bound->tensors[0]];

    if (index == RULES_NONE || made->rule != bound->rule ||
        made->ndim != shape->ndim ||
        memcmp(shape->dims + 1, made->dims + 1,
               (shape->ndim - 1) * sizeof(*shape->dims)) != 0 ||
        made->dtype != first->dtype || made->stored != first->stored) {
        return misfit(apply, bound->rule, err,
                      "tensor %s, from %s, was made already, or with another "
                      "shape or type, from %s",
                      made->name, first->name, tensors[made->first].name);
    }

    if (shape->dims[0] > made->dims[0]) {
        made->dims[0] = shape->dims[0];
    }
    made->numbered++;
    return FSDP_OK;
}

/* Takes @a name over. */
static fsdp_status_t add_made(apply_t *apply, char *name, uint64_t first,
                              const rules_rule_t *rule, const shape_t *shape,
                              fsdp_error_t *err)
{
    const catalog_tensor_t *tensor = &apply->from->tensors[first];
    uint64_t number = apply->num_mades;
    made_t *made;

    if (name == NULL || !RULES_GROW(apply->mades, apply->num_mades)) {
        free(name);
        return rules_no_memory(apply, err);
    }

    made = &apply->mades[apply->num_mades++];
    *made = (made_t){.name = name,
                     .first = first,
                     .rule = rule,
                     .ndim = shape->ndim,
                     .numbered = 1,
                     .dtype = tensor->dtype,
                     .stored = tensor->stored};
    memcpy(made->dims, shape->dims, sizeof(made->dims));
    return map_put(&apply->made_names, name, strlen(name), number)
               ? FSDP_OK
               : rules_no_memory(apply, err);
}

/* Find or make the tensor of a term.
 * @param shape  Of the term; becomes that of the tensor. */
static fsdp_status_t make_tensor(apply_t *apply, const bound_t *bound,
                                 const rules_term_t *term, shape_t *shape,
                                 uint64_t index, uint64_t *made_p,
                                 fsdp_error_t *err)
{
    fsdp_status_t status;
    char *name;

    FSDP_TRY(unview(apply, bound, term, index, shape, err));
    name = rules_name_make(&bound->kind->to, &term->name, &bound->binding);
    if (name == NULL) {
        return rules_no_memory(apply, err);
    }

    if (map_get(&apply->made_names, name, strlen(name), made_p)) {
        status =
            extend(apply, bound, index, shape, &apply->mades[*made_p], err);
        free(name);
        return status;
    }
    *made_p = apply->num_mades;
    return add_made(apply, name, bound->tensors[0], bound->rule, shape, err);
}

static fsdp_status_t add_move(apply_t *apply, const move_t *move,
                              fsdp_error_t *err)
{
    if (move->whole && move->from_index == RULES_NONE &&
        move->to_index == RULES_NONE) {
        apply->olds[move->tensor].made = move->made;
    }
    if (!RULES_GROW(apply->moves, apply->num_moves)) {
        return rules_no_memory(apply, err);
    }

    apply->moves[apply->num_moves++] = *move;
    return FSDP_OK;
}

/* --- Parts and their sizes ------------------------------------------------ */

/* The size that a term gives: a number, or the name of a value. */
static fsdp_status_t size_of(const apply_t *apply, const rules_rule_t *rule,
                             const rules_term_t *term, uint64_t *size_p,
                             fsdp_error_t *err)
{
    char *end;

    if (term->size == NULL) {
        *size_p = 1;
        return FSDP_OK;
    }

    *size_p = strtoull(term->size, &end, 10);
    if (*end == '\0' ? *size_p <= INT64_MAX / RULES_TERMS
                     : value_number(apply->from, term->size, size_p) &&
                           *size_p <= INT64_MAX / RULES_TERMS) {
        return FSDP_OK;
    }
    return misfit(apply, rule, err,
                  "%s does not say how much '%s' is: give it with --set %s=N",
                  apply->from->path, term->size, term->size);
}

/* Rows of each part of what has @a rows of them. */
static fsdp_status_t divide(const apply_t *apply, const bound_t *bound,
                            uint64_t rows, uint64_t sizes[RULES_TERMS],
                            fsdp_error_t *err)
{
    const rules_side_t *side = &bound->rule->to;
    const char *name = apply->from->tensors[bound->tensors[0]].name;
    bool padded = side->terms[side->num - 1].pad > 0;
    uint64_t sum = 0;

    for (unsigned i = 0; i < side->num - padded; i++) {
        FSDP_TRY(size_of(apply, bound->rule, &side->terms[i], &sizes[i], err));
        sum += sizes[i];
        if (padded && side->terms[i].size == NULL) {
            return misfit(apply, bound->rule, err,
                          "pad: needs the sizes of what comes before it");
        }
    }
    if (padded ? sum > rows : sum == 0 || rows % sum != 0) {
        return misfit(apply, bound->rule, err,
                      "the %" PRIu64 " rows of tensor %s cannot be divided "
                      "into %" PRIu64,
                      rows, name, sum);
    }

    for (unsigned i = 0; i < side->num && !padded; i++) {
        sizes[i] *= rows / sum;
    }
    if (padded) {
        sizes[side->num - 1] = rows - sum;
    }
    if (padded && rows > sum) {
        rules_note(apply,
                   "%s: the last %" PRIu64 " of its %" PRIu64 " rows are "
                   "padding and left out",
                   name, rows - sum, rows);
    }
    return FSDP_OK;
}

/* What the terms of the source have in common, and the rows of each. */
static fsdp_status_t join(const apply_t *apply, const bound_t *bound,
                          shape_t *whole, uint64_t sizes[RULES_TERMS],
                          fsdp_error_t *err)
{
    const rules_side_t *side = &bound->rule->from;
    const catalog_tensor_t *tensors = apply->from->tensors;
    const catalog_tensor_t *first = &tensors[bound->tensors[0]];
    unsigned parts = side->num + bound->rule->to.num - 1;
    shape_t shape;

    for (unsigned i = 0; i < side->num; i++) {
        const rules_term_t *term = &side->terms[i];
        const catalog_tensor_t *tensor = &tensors[bound->tensors[i]];
        uint64_t over;

        if (term->pad > 0) {
            over = whole->dims[0] % term->pad;
            sizes[i] = (over > 0) ? term->pad - over : 0;
            whole->dims[0] += sizes[i];
            continue;
        }
        FSDP_TRY(
            view(apply, bound->rule, term, bound->tensors[i], &shape, err));
        if (shape.ndim == 0 && parts > 1) {
            return misfit(apply, bound->rule, err,
                          "tensor %s has no rows to be joined or divided",
                          tensor->name);
        }
        sizes[i] = (shape.ndim > 0) ? shape.dims[0] : 1;
        if (i == 0) {
            *whole = shape;
        } else if (shape.ndim != whole->ndim ||
                   memcmp(shape.dims + 1, whole->dims + 1,
                          (shape.ndim - 1) * sizeof(*shape.dims)) != 0 ||
                   tensor->dtype != first->dtype ||
                   tensor->stored != first->stored) {
            return misfit(apply, bound->rule, err,
                          "tensors %s and %s cannot be joined: their types, "
                          "or their shapes behind the first dimension, differ",
                          first->name, tensor->name);
        } else {
            whole->dims[0] += sizes[i];
        }
    }

    return FSDP_OK;
}

/* One of several on the source's side becomes a part of the target. */
static fsdp_status_t merge(apply_t *apply, const bound_t *bound,
                           const shape_t *whole, const uint64_t *sizes,
                           fsdp_error_t *err)
{
    const rules_side_t *side = &bound->rule->from;
    const rules_term_t *to = &bound->rule->to.terms[0];
    shape_t shape = *whole;
    uint64_t row = 0, made;
    bool good = true;
    move_t move;

    move.to_index = index_of(to, &bound->binding, &good);
    FSDP_TRY(make_tensor(apply, bound, to, &shape, move.to_index, &made, err));
    for (unsigned i = 0; i < side->num; i++) {
        const rules_term_t *term = &side->terms[i];

        move = (move_t){.tensor = bound->tensors[i],
                        .made = made,
                        .from_index = index_of(term, &bound->binding, &good),
                        .to_index = move.to_index,
                        .to_row = row,
                        .rows = sizes[i],
                        .whole = side->num == 1,
                        .zeros = term->pad > 0,
                        .from_transposed = term->transposed,
                        .to_transposed = to->transposed};
        row += sizes[i];
        if (move.zeros && move.rows > 0) {
            rules_note(apply,
                       "%s: %" PRIu64 " rows of zeros are added to the "
                       "%" PRIu64 " of %s",
                       apply->mades[made].name, sizes[i], row - sizes[i],
                       apply->from->tensors[bound->tensors[0]].name);
        }
        FSDP_TRY(add_move(apply, &move, err));
    }

    return FSDP_OK;
}

/* Each part of the source becomes a tensor of its own. */
static fsdp_status_t split(apply_t *apply, const bound_t *bound,
                           const shape_t *whole, fsdp_error_t *err)
{
    const rules_side_t *side = &bound->rule->to;
    const rules_term_t *from = &bound->rule->from.terms[0];
    uint64_t sizes[RULES_TERMS], row = 0;
    bool good = true;

    FSDP_TRY(divide(apply, bound, whole->dims[0], sizes, err));
    for (unsigned i = 0; i < side->num; i++) {
        const rules_term_t *term = &side->terms[i];
        shape_t shape = *whole;
        move_t move = {.tensor = bound->tensors[0],
                       .from_index = index_of(from, &bound->binding, &good),
                       .to_index = index_of(term, &bound->binding, &good),
                       .from_row = row,
                       .rows = sizes[i],
                       .from_transposed = from->transposed,
                       .to_transposed = term->transposed};

        row += sizes[i];
        shape.dims[0] = sizes[i];
        if (term->pad == 0) {
            FSDP_TRY(make_tensor(apply, bound, term, &shape, move.to_index,
                                 &move.made, err));
            FSDP_TRY(add_move(apply, &move, err));
        }
    }

    return FSDP_OK;
}

/* --- Binding rules -------------------------------------------------------- */

/* All that the names and numbers of an instance of a rule give. */
static fsdp_status_t use(apply_t *apply, bound_t *bound, fsdp_error_t *err)
{
    const rules_rule_t *rule = bound->rule;
    uint64_t sizes[RULES_TERMS];
    shape_t whole = {0};
    bool good = true;

    for (unsigned i = 0; i < rule->from.num + rule->to.num; i++) {
        const rules_term_t *term = (i < rule->from.num)
                                       ? &rule->from.terms[i]
                                       : &rule->to.terms[i - rule->from.num];

        (void)index_of(term, &bound->binding, &good);
        if (!good) {
            return misfit(apply, rule, err,
                          "tensor %s: '%.*s' does not number a layer",
                          apply->from->tensors[bound->tensors[0]].name,
                          (int)bound->binding.texts[term->index].size,
                          bound->binding.texts[term->index].at);
        }
    }

    FSDP_TRY(join(apply, bound, &whole, sizes, err));
    return (rule->to.num == 1) ? merge(apply, bound, &whole, sizes, err)
                               : split(apply, bound, &whole, err);
}

/* Is a tensor used already?  One that is taken apart is, once a number. */
static bool is_used(const apply_t *apply, const bound_t *bound, unsigned term,
                    uint64_t tensor)
{
    const rules_rule_t *rule = apply->olds[tensor].rule;

    for (unsigned i = 0; i < term; i++) {
        if (bound->tensors[i] == tensor) {
            return true;
        }
    }

    return rule != NULL &&
           (rule != bound->rule || rule->from.terms[term].index < 0);
}

/* Find the other tensors of a rule by the names that the first one gives. */
static fsdp_status_t find_others(apply_t *apply, bound_t *bound,
                                 fsdp_error_t *err)
{
    const rules_side_t *side = &bound->rule->from;

    for (unsigned i = 1; i < side->num; i++) {
        const rules_term_t *term = &side->terms[i];
        fsdp_status_t status = FSDP_OK;
        uint64_t other;
        char *name;

        if (term->pad > 0) {
            continue;
        }
        name =
            rules_name_make(&bound->kind->from, &term->name, &bound->binding);
        if (name == NULL) {
            return rules_no_memory(apply, err);
        }
        if (!map_get(&apply->old_names, name, strlen(name), &other) ||
            apply->olds[other].gone) {
            status = misfit(apply, bound->rule, err,
                            "there is tensor %s, but not %s, which belongs "
                            "to it",
                            apply->from->tensors[bound->tensors[0]].name, name);
        } else if (is_used(apply, bound, i, other)) {
            status = misfit(apply, bound->rule, err,
                            "tensor %s is used by line %u already", name,
                            apply->olds[other].rule->line);
        } else {
            apply->olds[other].rule = bound->rule;
            bound->tensors[i] = other;
        }
        free(name);
        FSDP_TRY(status);
    }

    return FSDP_OK;
}

/* A rule whose names number layers has an instance for each of them. */
static fsdp_status_t use_all(apply_t *apply, bound_t *bound, fsdp_error_t *err)
{
    const rules_term_t *term = &bound->rule->from.terms[0];
    uint64_t tensor = bound->tensors[0];
    shape_t shape = shape_of(apply->from, tensor);
    unsigned capture = (unsigned)term->index;

    if (term->index < 0) {
        FSDP_TRY(find_others(apply, bound, err));
        return use(apply, bound, err);
    }

    if (shape.ndim == 0 || shape.dims[0] > RULES_NUMBERED) {
        return misfit(apply, bound->rule, err,
                      "tensor %s has no first dimension of at most %d that "
                      "[%s] could number",
                      apply->from->tensors[tensor].name, RULES_NUMBERED,
                      apply->rules->captures[capture]);
    }
    for (uint64_t i = 0; i < shape.dims[0]; i++) {
        char *text = bound->binding.numbers[capture];

        snprintf(text, sizeof(bound->binding.numbers[capture]), "%" PRIu64, i);
        bound->binding.texts[capture] = text_of(text);
        FSDP_TRY(find_others(apply, bound, err));
        FSDP_TRY(use(apply, bound, err));
    }

    return FSDP_OK;
}

/* Does a name fit a term of the source?  Then bind it, and its kind. */
bool rules_fits(const apply_t *apply, const rules_rule_t *rule, unsigned term,
                const char *name, bound_t *bound)
{
    for (size_t k = 0; k < apply->rules->num_kinds; k++) {
        const rules_kind_t *kind = &apply->rules->kinds[k];
        rules_text_t base;

        *bound = (bound_t){.rule = rule, .kind = kind};
        if (rules_name_match(&kind->from, text_of(name), &bound->binding)) {
            base = bound->binding.texts[0];
            bound->binding.texts[0] = (rules_text_t){0};
            if (rules_name_match(&rule->from.terms[term].name, base,
                                 &bound->binding)) {
                return true;
            }
        }
    }

    return false;
}

/* Is there anything of this number of a tensor? */
static bool is_numbered(const apply_t *apply, uint64_t made, uint64_t number)
{
    for (uint64_t m = 0; m < apply->num_moves; m++) {
        if (apply->moves[m].made == made &&
            apply->moves[m].to_index == number) {
            return true;
        }
    }

    return false;
}

/* Tensors whose first dimension is numbered have all the numbers. */
static fsdp_status_t check_numbers(const apply_t *apply, fsdp_error_t *err)
{
    for (uint64_t m = 0; m < apply->num_moves; m++) {
        const move_t *move = &apply->moves[m];
        const made_t *made = &apply->mades[move->made];
        uint64_t missing = 0;

        if (move->to_index == RULES_NONE || made->numbered == made->dims[0]) {
            continue;
        }
        while (is_numbered(apply, move->made, missing)) {
            missing++;
        }
        return misfit(apply, made->rule, err,
                      "tensor %s: number %" PRIu64 " of %" PRIu64 " is missing",
                      made->name, missing, made->dims[0]);
    }

    return FSDP_OK;
}

static fsdp_status_t use_rule(apply_t *apply, const rules_rule_t *rule,
                              fsdp_error_t *err)
{
    bool used = false;
    bound_t bound;

    for (uint64_t i = 0; i < apply->from->num_tensors; i++) {
        uint64_t t = apply->order[i];
        old_t *old = &apply->olds[t];

        if (old->rule == NULL && !old->gone &&
            rules_fits(apply, rule, 0, old->name, &bound)) {
            old->rule = rule;
            bound.tensors[0] = t;
            FSDP_TRY(use_all(apply, &bound, err));
            used = apply->changes = true;
        }
    }

    return (used || rule->optional)
               ? FSDP_OK
               : misfit(apply, rule, err, "fits no tensor of %s",
                        apply->from->path);
}

/* What a rule joins to another tensor must not be left alone. */
static fsdp_status_t check_left(const apply_t *apply, uint64_t t,
                                fsdp_error_t *err)
{
    bound_t bound;

    for (size_t r = 0; r < apply->rules->num_rules; r++) {
        const rules_rule_t *rule = &apply->rules->rules[r];

        for (unsigned i = 1; i < rule->from.num; i++) {
            if (rule->from.terms[i].pad == 0 &&
                rules_fits(apply, rule, i, apply->olds[t].name, &bound)) {
                return misfit(apply, rule, err,
                              "there is tensor %s, but not the first one that "
                              "it belongs to",
                              apply->from->tensors[t].name);
            }
        }
    }

    return FSDP_OK;
}

/* Tensors that no rule fits stay as they are. */
static fsdp_status_t keep(apply_t *apply, uint64_t t, fsdp_error_t *err)
{
    const shape_t shape = shape_of(apply->from, t);
    const char *name = apply->olds[t].name;
    const move_t move = {.tensor = t,
                         .made = apply->num_mades,
                         .from_index = RULES_NONE,
                         .to_index = RULES_NONE,
                         .whole = true};
    uint64_t other;

    FSDP_TRY(check_left(apply, t, err));
    if (map_get(&apply->made_names, name, strlen(name), &other)) {
        other = apply->mades[other].first;
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "%s: tensors %s and %s would both be named %s",
                              apply->rules->name, apply->from->tensors[t].name,
                              apply->from->tensors[other].name, name);
    }

    FSDP_TRY(add_made(apply, strdup(name), t, NULL, &shape, err));
    return add_move(apply, &move, err);
}

fsdp_status_t rules_bind(apply_t *apply, fsdp_error_t *err)
{
    for (size_t r = 0; r < apply->rules->num_rules; r++) {
        FSDP_TRY(use_rule(apply, &apply->rules->rules[r], err));
    }
    FSDP_TRY(check_numbers(apply, err));
    for (uint64_t i = 0; i < apply->from->num_tensors; i++) {
        const old_t *old = &apply->olds[apply->order[i]];

        if (old->rule == NULL && !old->gone) {
            FSDP_TRY(keep(apply, apply->order[i], err));
        }
    }

    return FSDP_OK;
}
