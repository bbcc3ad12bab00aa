/*
 * What a distributed checkpoint needs of its target before it is sealed: where
 * tensors go that are in values, and what PyTorch's optimizers keep besides.
 */
#include "config.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/format/adamw.h"
#include "ckpt/format/dcp.h"
#include "ckpt/value.h"
#include "lib/util/check.h"
#include "lib/util/map.h"

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
    const char *value; /* that is looked at */
} finder_t;

/* A tensor in a value is named by its path from there. */
static fsdp_status_t mark(json_t *inner, void *arg, fsdp_error_t *err)
{
    const finder_t *finder = arg;
    const char *name = json_string_value(inner), *value = finder->value;
    size_t size = strlen(value);
    uint64_t tensor;

    if (strncmp(name, value, size) != 0 || name[size] != '.' ||
        !map_get(&finder->names, name, strlen(name), &tensor) ||
        finder->inner[tensor]) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "value '%s' shares tensor '%s' with others, "
                              "which cannot be written to this format: leave "
                              "it out with --exclude '%s'",
                              value, name, value);
    }

    finder->inner[tensor] = true;
    return FSDP_OK;
}

static fsdp_status_t find_in(finder_t *finder, const catalog_value_t *value,
                             fsdp_error_t *err)
{
    fsdp_status_t status;
    json_t *json;

    if (strstr(value->json, "\"$tensor\"") == NULL) {
        return FSDP_OK;
    }

    FSDP_TRY(
        value_parse(value->name, value->json, strlen(value->json), &json, err));
    finder->value = value->name;
    status = value_visit_tensors(json, mark, finder, err);
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

fsdp_status_t dcp_prepare(catalog_t *cat, fsdp_error_t *err)
{
    /* PyTorch does not load an optimizer without. */
    static const adamw_names_t names = {
        .first = "optim.state.*.exp_avg",
        .step = "optim.state.*.step",
        .groups = "optim.param_groups",
        .flat = true,
    };
    fsdp_status_t status;
    bool *inner;

    FSDP_TRY(adamw_add(cat, &names, err));
    FSDP_TRY(dcp_find_inner(cat, &inner, err));
    status = make_whole(cat, inner, err);
    free(inner);
    return status;
}
