/*
 * Which tensors of two checkpoints are compared with each other.
 */
#include "config.h"

#include "ckpt/diff.h"

#include <stdlib.h>
#include <string.h>

#include "lib/util/check.h"
#include "lib/util/io.h"
#include "lib/util/nearest.h"

static bool has_kinds(const fsdp_ckpt_t *ckpt, uint64_t num)
{
    fsdp_ckpt_tensor_t tensor;

    for (uint64_t t = 0; t < num; t++) {
        fsdp_ckpt_get_tensor(ckpt, t, &tensor);
        if (select_is_model(tensor.name) || select_is_optim(tensor.name)) {
            return true;
        }
    }

    return false;
}

/* The tensor on the other side that @a name of side @a side is compared with,
 * or DIFF_NONE. */
static fsdp_status_t find_partner(const diff_t *diff, unsigned side,
                                  const char *name, uint64_t *tensor_p,
                                  fsdp_error_t *err)
{
    const fsdp_ckpt_t *other = diff->ckpts[1 - side];
    char *longer;

    *tensor_p = DIFF_NONE;
    if (fsdp_ckpt_find(other, name, tensor_p) ||
        diff->kinds[0] == diff->kinds[1]) {
        return FSDP_OK;
    }

    if (diff->kinds[side]) {
        if (select_is_model(name)) {
            fsdp_ckpt_find(other, select_base(name), tensor_p);
        }
        return FSDP_OK;
    }

    longer = io_path("model/%s", name);
    if (longer == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "no memory for names");
    }
    fsdp_ckpt_find(other, longer, tensor_p);
    free(longer);

    return FSDP_OK;
}

static const char *tensor_name(const diff_t *diff, unsigned side,
                               uint64_t tensor)
{
    fsdp_ckpt_tensor_t info;

    fsdp_ckpt_get_tensor(diff->ckpts[side], tensor, &info);
    return info.name;
}

/* Decide what there is to compare of two tensors. */
static void judge_pair(diff_t *diff, diff_pair_t *pair)
{
    const fsdp_ckpt_diff_config_t *config = diff->config;
    fsdp_ckpt_tensor_t a, b;

    pair->differs = true;
    if (pair->tensor[0] == DIFF_NONE || pair->tensor[1] == DIFF_NONE) {
        pair->how = (pair->tensor[0] == DIFF_NONE) ? FSDP_CKPT_ONLY_B
                                                   : FSDP_CKPT_ONLY_A;
        return;
    }

    diff->result.tensors++;
    fsdp_ckpt_get_tensor(diff->ckpts[0], pair->tensor[0], &a);
    fsdp_ckpt_get_tensor(diff->ckpts[1], pair->tensor[1], &b);
    if (a.ndim != b.ndim ||
        memcmp(a.dims, b.dims, a.ndim * sizeof(*a.dims)) != 0) {
        pair->how = FSDP_CKPT_SHAPE;
    } else if (a.dtype != b.dtype && config->rtol == 0 && config->atol == 0) {
        pair->how = FSDP_CKPT_DTYPE;
    } else {
        pair->how = FSDP_CKPT_VALUES;
        pair->differs = false;
        pair->reads = true;
        diff->total += a.bytes + b.bytes;
    }
}

static fsdp_status_t add_pair(diff_t *diff, const char *name, uint64_t a,
                              uint64_t b, fsdp_error_t *err)
{
    fsdp_ckpt_tensor_t tensor;
    diff_pair_t *pair;

    if (!select_match(&diff->select, name)) {
        return FSDP_OK;
    }

    if (diff->num_pairs == diff->pairs_room) {
        size_t room = 2 * diff->pairs_room + 64;
        diff_pair_t *pairs = reallocarray(diff->pairs, room, sizeof(*pairs));

        if (pairs == NULL) {
            return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                  "no memory for %zu names", room);
        }
        diff->pairs = pairs;
        diff->pairs_room = room;
    }

    pair = &diff->pairs[diff->num_pairs++];
    *pair = (diff_pair_t){
        .name = name, .tensor = {a, b}
    };
    fsdp_ckpt_get_tensor(diff->ckpts[a == DIFF_NONE], (a == DIFF_NONE) ? b : a,
                         &tensor);
    pair->numel = tensor.numel;
    judge_pair(diff, pair);

    return FSDP_OK;
}

/* Does the pattern fit a tensor of this side, or a value? */
static bool fits(const diff_t *diff, unsigned side, const char *pattern)
{
    const fsdp_ckpt_info_t *info = &diff->infos[side];

    for (uint64_t t = 0; t < info->num_tensors; t++) {
        if (select_pattern_match(pattern, tensor_name(diff, side, t))) {
            return true;
        }
    }
    for (uint64_t v = 0; v < info->num_values; v++) {
        const char *name, *json;

        fsdp_ckpt_get_value(diff->ckpts[side], v, &name, &json);
        if (select_pattern_match(pattern, name)) {
            return true;
        }
    }

    return false;
}

static fsdp_status_t fits_nothing(const diff_t *diff, const char *pattern,
                                  fsdp_error_t *err)
{
    nearest_t nearest = {.pattern = pattern};
    char text[NEAREST_TEXT_MAX];

    for (unsigned side = 0; side < DIFF_SIDES; side++) {
        for (uint64_t t = 0; t < diff->infos[side].num_tensors; t++) {
            nearest_try(&nearest, tensor_name(diff, side, t));
        }
    }

    return fsdp_error_set(
        err, FSDP_ERR_NOT_FOUND, "nothing in %s or %s fits the pattern '%s'%s",
        diff->paths[0], diff->paths[1], pattern, nearest_text(&nearest, text));
}

/* A pattern that fits no name is a mistake that would pass as "the same". */
static fsdp_status_t check_patterns(const diff_t *diff,
                                    const char *const *patterns, size_t num,
                                    fsdp_error_t *err)
{
    for (size_t i = 0; i < num; i++) {
        if (!fits(diff, 0, patterns[i]) && !fits(diff, 1, patterns[i])) {
            return fits_nothing(diff, patterns[i], err);
        }
    }

    return FSDP_OK;
}

/* Whether the tensors' own names, without aliases, bring them together. */
static fsdp_status_t is_paired(const diff_t *diff, uint64_t a, uint64_t b,
                               bool *paired_p, fsdp_error_t *err)
{
    uint64_t partner;

    FSDP_TRY(find_partner(diff, 0, tensor_name(diff, 0, a), &partner, err));
    *paired_p = partner == b;

    return FSDP_OK;
}

/* Names of B: those that A lacks, and those that are another tensor's name
 * in A. */
static fsdp_status_t pair_names_of_b(diff_t *diff, fsdp_error_t *err)
{
    for (uint64_t b = 0; b < diff->infos[1].num_tensors; b++) {
        const char *name = tensor_name(diff, 1, b);
        bool paired = false;
        uint64_t a;

        FSDP_TRY(find_partner(diff, 1, name, &a, err));
        if (a != DIFF_NONE) {
            FSDP_TRY(is_paired(diff, a, b, &paired, err));
        }
        if (!paired) {
            FSDP_TRY(add_pair(diff, name, a, b, err));
        }
    }

    return FSDP_OK;
}

/* Names that are aliases on both sides, but of other tensors.  An alias that
 * only one side has is no difference of values. */
static fsdp_status_t pair_aliases(diff_t *diff, fsdp_error_t *err)
{
    for (uint64_t i = 0; i < diff->infos[0].num_aliases; i++) {
        const char *name;
        bool paired;
        uint64_t a, b;

        fsdp_ckpt_get_alias(diff->ckpts[0], i, &name, &a);
        FSDP_TRY(find_partner(diff, 0, name, &b, err));
        if (b == DIFF_NONE) {
            continue;
        }
        FSDP_TRY(is_paired(diff, a, b, &paired, err));
        if (!paired && strcmp(tensor_name(diff, 1, b), name) != 0) {
            FSDP_TRY(add_pair(diff, name, a, b, err));
        }
    }

    return FSDP_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const diff_pair_t *)a)->name,
                  ((const diff_pair_t *)b)->name);
}

fsdp_status_t diff_pair_tensors(diff_t *diff, fsdp_error_t *err)
{
    for (unsigned side = 0; side < DIFF_SIDES; side++) {
        diff->kinds[side] =
            has_kinds(diff->ckpts[side], diff->infos[side].num_tensors);
    }

    FSDP_TRY(
        check_patterns(diff, diff->patterns, diff->config->num_include, err));
    FSDP_TRY(check_patterns(diff, diff->config->exclude,
                            diff->config->num_exclude, err));
    for (uint64_t a = 0; a < diff->infos[0].num_tensors; a++) {
        const char *name = tensor_name(diff, 0, a);
        uint64_t b;

        FSDP_TRY(find_partner(diff, 0, name, &b, err));
        FSDP_TRY(add_pair(diff, name, a, b, err));
    }
    FSDP_TRY(pair_names_of_b(diff, err));
    FSDP_TRY(pair_aliases(diff, err));
    if (diff->num_pairs > 0) {
        qsort(diff->pairs, diff->num_pairs, sizeof(*diff->pairs), by_name);
    }

    return FSDP_OK;
}
