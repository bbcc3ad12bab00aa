/*
 * LOCAL_STATE_DICT of PyTorch's FSDP1: each rank has a stretch of each flat
 * parameter, and of the optimizer's state of it.
 *
 * Which parameters a flat one is made of is in no file: a recipe says it.
 * Optimizer state is by number: where the flat parameters themselves were
 * optimized, in the order of the recipe; where the original ones were
 * (use_orig_params), by how many elements each rank has of them, and in the
 * order of the recipe among those that look alike.
 */
#include "config.h"

#include "ckpt/format/torch.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/util/check.h"
#include "lib/util/io.h"
#include "lib/util/json_text.h"

#define RECIPE_MAX (256u << 20)
#define FLAT_NAME  "_flat_param"

/* A parameter: elements [start, start + numel) of a flat one. */
typedef struct {
    char *name; /* without the part's prefix */
    uint64_t start, numel;
    uint32_t ndim, flat;
    uint64_t dims[FSDP_CKPT_MAX_NDIM];
    bool used; /* a number of the optimizer is it */
} param_t;

typedef struct {
    const char *key;
    torch_item_t *item;  /* its shards */
    uint32_t first, num; /* of the parameters */
    uint64_t total;
} flat_t;

/* What the optimizer's number stands for. */
typedef struct {
    uint32_t number, group;
    uint32_t param;   /* or flat one; UINT32_MAX: not known */
    uint64_t *numels; /* elements that each rank has */
} state_t;

typedef struct {
    torch_reader_t *reader;
    json_t *recipe;
    char *model; /* what the names of the model begin with */
    char *optim; /* and those of the optimizer; NULL: there is none */
    flat_t *flats;
    uint32_t num_flats;
    param_t *params;
    uint32_t num_params;
    bool orig; /* the optimizer has the parameters themselves */
    state_t *states;
    uint32_t num_states;
    fsdp_error_t *err;
} local_t;

static fsdp_status_t no_memory(const local_t *local)
{
    return fsdp_error_set(local->err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                          local->reader->cat->path);
}

static fsdp_status_t bad(const local_t *local, const char *name,
                         const char *why)
{
    errno = 0;
    return fsdp_error_set(local->err, FSDP_ERR_CORRUPT, "%s: %s: %s",
                          local->reader->cat->path, name, why);
}

bool torch_is_flat(const torch_item_t *item)
{
    const char *last = strrchr(item->name, '.');

    return item->first->kind == TORCH_SHARD && item->first->ndim == 1 &&
           strcmp((last != NULL) ? last + 1 : item->name, FLAT_NAME) == 0;
}

/* --- The recipe ----------------------------------------------------------- */

static fsdp_status_t read_recipe(local_t *local)
{
    const char *path = local->reader->cat->recipe;
    json_error_t why;
    json_t *inner;
    size_t size;
    char *text;

    if (path == NULL) {
        errno = 0;
        return fsdp_error_set(
            local->err, FSDP_ERR_UNSUPPORTED,
            "%s: a LOCAL_STATE_DICT of FSDP1: it does not say which parameters "
            "its flat ones are made of; give a recipe file (--recipe)",
            local->reader->cat->path);
    }

    FSDP_TRY(io_read_file(path, RECIPE_MAX, &text, &size, local->err));
    local->reader->cat->recipe_used = true;
    local->recipe = json_loadb(text, size, JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (!json_is_object(local->recipe)) {
        return fsdp_error_set(local->err, FSDP_ERR_CORRUPT,
                              "%s: no recipe: line %d: %s", path, why.line,
                              (local->recipe != NULL) ? "no object" : why.text);
    }

    inner = json_object_get(local->recipe, "flat_recipe");
    if (inner != NULL) {
        json_incref(inner);
        json_decref(local->recipe);
        local->recipe = inner;
    }
    return FSDP_OK;
}

/* Do all flat parameters have a recipe if their names begin so? */
static bool fits_prefix(const local_t *local, const char *name, size_t prefix)
{
    const torch_reader_t *reader = local->reader;

    for (uint64_t i = 0; i < reader->num; i++) {
        const torch_item_t *item = &reader->items[i];

        if (torch_is_flat(item) &&
            (strncmp(item->name, name, prefix) != 0 ||
             json_object_get(local->recipe, item->name + prefix) == NULL)) {
            return false;
        }
    }

    return true;
}

static fsdp_status_t find_prefix(local_t *local)
{
    const torch_reader_t *reader = local->reader;
    const char *name = NULL;

    for (uint64_t i = 0; i < reader->num && name == NULL; i++) {
        if (torch_is_flat(&reader->items[i])) {
            name = reader->items[i].name;
        }
    }
    for (size_t prefix = 0; name[prefix] != '\0'; prefix++) {
        if ((prefix == 0 || name[prefix - 1] == '.') &&
            fits_prefix(local, name, prefix)) {
            local->model = strndup(name, prefix);
            return (local->model != NULL) ? FSDP_OK : no_memory(local);
        }
    }

    return bad(local, name, "the recipe has not all flat parameters of it");
}

/* The shape of a parameter. */
static bool read_shape(const json_t *shape, param_t *param)
{
    param->ndim = (uint32_t)json_array_size(shape);
    param->numel = 1;
    if (!json_is_array(shape) || json_array_size(shape) > FSDP_CKPT_MAX_NDIM) {
        return false;
    }
    for (uint32_t d = 0; d < param->ndim; d++) {
        if (!json_text_u64(json_array_get(shape, d), &param->dims[d]) ||
            __builtin_mul_overflow(param->numel, param->dims[d],
                                   &param->numel)) {
            return false;
        }
    }

    return true;
}

/* Where each parameter begins: with padding between them, or without. */
static bool read_places(const json_t *recipe, param_t *params, uint32_t num,
                        uint64_t *total_p)
{
    const json_t *mask = json_object_get(recipe, "is_padding_mask");
    const json_t *numels = json_object_get(recipe, "numels_with_padding");
    size_t parts = json_is_array(numels) ? json_array_size(numels) : num;
    uint64_t at = 0, numel = 0;
    uint32_t next = 0;

    for (size_t i = 0; i < parts; i++) {
        bool padding = json_is_true(json_array_get(mask, i));

        if (!json_is_array(numels)) {
            numel = params[i].numel;
        } else if (!json_text_u64(json_array_get(numels, i), &numel)) {
            return false;
        }
        if (!padding) {
            if (next == num || params[next].numel != numel) {
                return false;
            }
            params[next++].start = at;
        }
        if (__builtin_add_overflow(at, numel, &at)) {
            return false;
        }
    }

    *total_p = at;
    return next == num;
}

/* The name of the module that a flat parameter is of, with its dot, and then
 * that of the parameter. */
static char *param_name(const flat_t *flat, const char *module,
                        const char *name)
{
    size_t size = strlen(flat->key) - strlen(FLAT_NAME);

    return io_path("%.*s%s%s%s", (int)size, flat->key, module,
                   (module[0] != '\0') ? "." : "", name);
}

static fsdp_status_t read_flat(local_t *local, flat_t *flat)
{
    const json_t *recipe = json_object_get(local->recipe, flat->key);
    const json_t *names = json_object_get(recipe, "fqns");
    const json_t *shapes = json_object_get(recipe, "shapes");
    size_t num = json_array_size(names);
    param_t *larger;
    char why[200];

    if (!json_is_array(names) || json_array_size(shapes) != num) {
        return bad(local, flat->key,
                   "its recipe has not as many shapes as "
                   "names");
    }
    larger =
        realloc(local->params, (local->num_params + num + 1) * sizeof(*larger));
    if (larger == NULL) {
        return no_memory(local);
    }
    local->params = larger;
    flat->first = local->num_params;
    flat->num = (uint32_t)num;

    for (size_t i = 0; i < num; i++) {
        const char *name = json_string_value(json_array_get(names, i));
        param_t *param = &local->params[local->num_params];

        *param = (param_t){.flat = (uint32_t)(flat - local->flats)};
        if (name == NULL || !read_shape(json_array_get(shapes, i), param)) {
            return bad(local, flat->key, "its recipe makes no sense");
        }
        param->name = param_name(flat, "", name);
        if (param->name == NULL) {
            return no_memory(local);
        }
        local->num_params++;
    }

    if (!read_places(recipe, local->params + flat->first, flat->num,
                     &flat->total)) {
        return bad(local, flat->key,
                   "its recipe has other numbers of elements than its shapes");
    }
    if (flat->total != flat->item->first->whole[0]) {
        snprintf(why, sizeof(why),
                 "its recipe is of %" PRIu64
                 " elements, the files have %" PRIu64
                 ": with use_orig_params PyTorch pads, which the recipe must "
                 "say, see fsdp-verify(1)",
                 flat->total, flat->item->first->whole[0]);
        return bad(local, flat->key, why);
    }
    return FSDP_OK;
}

/* In the order of the recipe, which is that of the modules. */
static fsdp_status_t read_flats(local_t *local)
{
    const char *key;
    json_t *value;

    local->flats =
        calloc(json_object_size(local->recipe) + 1, sizeof(*local->flats));
    if (local->flats == NULL) {
        return no_memory(local);
    }
    json_object_foreach(local->recipe, key, value)
    {
        char *name = io_path("%s%s", local->model, key);
        torch_item_t *item =
            (name != NULL) ? torch_reader_find(local->reader, name) : NULL;
        flat_t *flat = &local->flats[local->num_flats];

        free(name);
        if (item == NULL || !torch_is_flat(item)) {
            return bad(local, key, "the recipe has it, but the files do not");
        }
        *flat = (flat_t){.key = key, .item = item};
        local->num_flats++;
        FSDP_TRY(read_flat(local, flat));
    }

    return FSDP_OK;
}

/* --- Pieces --------------------------------------------------------------- */

/* The elements that a rank's stretch [start, start + count) has of a
 * parameter: *from_p of the stretch, *first_p of the parameter.
 * @return their number. */
static uint64_t overlap(const param_t *param, uint64_t start, uint64_t count,
                        uint64_t *from_p, uint64_t *first_p)
{
    uint64_t low = (start > param->start) ? start : param->start;
    uint64_t end = start + count, last = param->start + param->numel;

    if (end > last) {
        end = last;
    }
    if (low >= end) {
        return 0;
    }
    *from_p = low - start;
    *first_p = low - param->start;
    return end - low;
}

static fsdp_status_t add_tensor(local_t *local, const char *prefix,
                                const param_t *param, const char *suffix,
                                fsdp_dtype_t dtype, uint64_t *tensor_p)
{
    char *name = io_path("%s%s%s", prefix, param->name, suffix);
    fsdp_status_t status;

    if (name == NULL) {
        return no_memory(local);
    }
    status = catalog_add_tensor(local->reader->cat, name, dtype, param->ndim,
                                param->dims, NULL, tensor_p, local->err);
    free(name);
    return status;
}

/* Another rank before this one has the same stretch: replicas. */
static bool is_copy(const torch_found_t *first, const torch_found_t *found)
{
    for (; first != found; first = first->next) {
        if (!first->empty && first->start[0] == found->start[0]) {
            return true;
        }
    }

    return false;
}

static fsdp_status_t add_param(local_t *local, const flat_t *flat,
                               const param_t *param)
{
    const torch_found_t *found = flat->item->first;
    uint64_t tensor, from, first, count;

    FSDP_TRY(add_tensor(local, local->model, param, "", found->dtype, &tensor));
    for (; found != NULL; found = found->next) {
        if (found->empty || is_copy(flat->item->first, found)) {
            continue;
        }
        if (!torch_found_contiguous(found)) {
            return bad(local, flat->key, "a stretch of it is not contiguous");
        }
        count = overlap(param, found->start[0], found->count[0], &from, &first);
        if (count > 0) {
            FSDP_TRY(torch_add_range(local->reader, tensor, found, from, first,
                                     count));
        }
    }

    return FSDP_OK;
}

/* With use_orig_params each rank has its part of the parameters too, which is
 * in the flat one already. */
static void drop_part(local_t *local, const char *param)
{
    char *name = io_path("%s%s", local->model, param);
    torch_item_t *item =
        (name != NULL) ? torch_reader_find(local->reader, name) : NULL;

    if (item != NULL && item->first->kind == TORCH_TENSOR) {
        item->done = true;
        local->orig = true;
    }
    free(name);
}

/* [name, module, name of the owner, module of the owner] */
static fsdp_status_t add_shared(local_t *local, const flat_t *flat,
                                const json_t *shared)
{
    const char *part[4];
    char *name, *owner, *full = NULL, *full_owner = NULL;
    fsdp_status_t status;

    for (int i = 0; i < 4; i++) {
        part[i] = json_string_value(json_array_get(shared, (size_t)i));
        if (part[i] == NULL) {
            return bad(local, flat->key, "its recipe makes no sense");
        }
    }
    name = param_name(flat, part[1], part[0]);
    owner = param_name(flat, part[3], part[2]);
    if (name != NULL && owner != NULL) {
        drop_part(local, name);
        full = io_path("%s%s", local->model, name);
        full_owner = io_path("%s%s", local->model, owner);
    }
    status = (full != NULL && full_owner != NULL)
                 ? catalog_add_alias(local->reader->cat, full, full_owner,
                                     local->err)
                 : no_memory(local);
    free(name);
    free(owner);
    free(full);
    free(full_owner);
    return status;
}

static fsdp_status_t add_model(local_t *local)
{
    for (uint32_t f = 0; f < local->num_flats; f++) {
        const flat_t *flat = &local->flats[f];
        const json_t *shared = json_object_get(
            json_object_get(local->recipe, flat->key), "shared");

        flat->item->done = true;
        for (uint32_t p = 0; p < flat->num; p++) {
            const param_t *param = &local->params[flat->first + p];

            drop_part(local, param->name);
            FSDP_TRY(add_param(local, flat, param));
        }
        for (size_t i = 0; i < json_array_size(shared); i++) {
            FSDP_TRY(add_shared(local, flat, json_array_get(shared, i)));
        }
    }

    return FSDP_OK;
}

/* --- The optimizer -------------------------------------------------------- */

/* "PREFIXstate.NUMBER.NAME": the number and the name; else false. */
static bool is_state(const char *name, size_t *prefix_p, uint32_t *number_p,
                     const char **rest_p)
{
    const char *at = strstr(name, "state.");
    char *end;
    unsigned long number;

    if (at == NULL || (at != name && at[-1] != '.') || at[6] < '0' ||
        at[6] > '9') {
        return false;
    }
    number = strtoul(at + 6, &end, 10);
    if (*end != '.' || number >= UINT32_MAX) {
        return false;
    }
    *prefix_p = (size_t)(at - name);
    *number_p = (uint32_t)number;
    *rest_p = end; /* with its dot */
    return true;
}

static state_t *find_state(local_t *local, uint32_t number)
{
    for (uint32_t i = 0; i < local->num_states; i++) {
        if (local->states[i].number == number) {
            return &local->states[i];
        }
    }

    return NULL;
}

/* The numbers of a group: "[0, 1, 2]". */
static fsdp_status_t add_group(local_t *local, const torch_item_t *item,
                               uint32_t group)
{
    json_t *numbers = json_loads(item->first->json, 0, NULL);
    size_t num = json_array_size(numbers);
    state_t *larger =
        realloc(local->states, (local->num_states + num + 1) * sizeof(*larger));
    fsdp_status_t status = FSDP_OK;

    if (larger == NULL) {
        json_decref(numbers);
        return no_memory(local);
    }
    local->states = larger;
    for (size_t i = 0; i < num && status == FSDP_OK; i++) {
        uint64_t number;

        if (!json_text_u64(json_array_get(numbers, i), &number) ||
            number >= UINT32_MAX || find_state(local, (uint32_t)number)) {
            status = bad(local, item->name, "it is no list of numbers");
            break;
        }
        larger[local->num_states] =
            (state_t){.number = (uint32_t)number,
                      .group = group,
                      .param = UINT32_MAX,
                      .numels = calloc(local->reader->num_ranks,
                                       sizeof(*larger->numels))};
        if (larger[local->num_states].numels == NULL) {
            status = no_memory(local);
        }
        local->num_states++;
    }
    json_decref(numbers);
    return status;
}

/* param_groups.G.params */
static torch_item_t *group_item(local_t *local, uint32_t group)
{
    char *name = io_path("%sparam_groups.%u.params", local->optim, group);
    torch_item_t *item =
        (name != NULL) ? torch_reader_find(local->reader, name) : NULL;

    free(name);
    return (item != NULL && item->first->kind == TORCH_VALUE) ? item : NULL;
}

/* How many elements each rank has of what each number stands for. */
static fsdp_status_t measure_states(local_t *local)
{
    const torch_reader_t *reader = local->reader;
    const char *rest;
    uint32_t number;
    size_t prefix;

    for (uint64_t i = 0; i < reader->num; i++) {
        const torch_item_t *item = &reader->items[i];
        state_t *state;

        if (!is_state(item->name, &prefix, &number, &rest)) {
            continue;
        }
        state = find_state(local, number);
        if (state == NULL) {
            return bad(local, item->name, "it is in no param_group");
        }
        for (const torch_found_t *found = item->first; found != NULL;
             found = found->next) {
            if (found->kind == TORCH_TENSOR && found->ndim == 1) {
                state->numels[found->rank] = found->count[0];
            }
        }
    }

    return FSDP_OK;
}

/* A rank's stretch of a flat parameter. */
static const torch_found_t *stretch_of(const flat_t *flat, uint32_t rank)
{
    for (const torch_found_t *found = flat->item->first; found != NULL;
         found = found->next) {
        if (found->rank == rank && !found->empty) {
            return found;
        }
    }

    return NULL;
}

/* Would a rank have so many elements of it? */
static bool fits_param(const local_t *local, const state_t *state,
                       uint32_t index)
{
    const param_t *param = &local->params[index];
    const flat_t *flat = &local->flats[param->flat];

    for (uint32_t r = 0; r < local->reader->num_ranks; r++) {
        const torch_found_t *found = stretch_of(flat, r);
        uint64_t from, first, count = 0;

        if (found != NULL) {
            count =
                overlap(param, found->start[0], found->count[0], &from, &first);
        }
        if (count != state->numels[r]) {
            return false;
        }
    }

    return true;
}

static bool has_elements(const local_t *local, const state_t *state)
{
    for (uint32_t r = 0; r < local->reader->num_ranks; r++) {
        if (state->numels[r] > 0) {
            return true;
        }
    }

    return false;
}

static bool alike(const local_t *local, const state_t *a, const state_t *b)
{
    return memcmp(a->numels, b->numels,
                  local->reader->num_ranks * sizeof(*a->numels)) == 0;
}

/* Numbers that look alike stand for the parameters that look so, in order: if
 * there are as many, and all are of one group. */
static fsdp_status_t match_params(local_t *local, const state_t *like)
{
    uint32_t next = 0, p = 0, num_states = 0, num_params = 0;
    bool one_group = true;

    for (uint32_t i = 0; i < local->num_states; i++) {
        if (alike(local, &local->states[i], like)) {
            num_states++;
            one_group = one_group && local->states[i].group == like->group;
        }
    }
    for (p = 0; p < local->num_params; p++) {
        num_params += fits_param(local, like, p);
    }
    if (num_states != num_params || (num_states > 1 && !one_group)) {
        return fsdp_error_set(
            local->err, FSDP_ERR_UNSUPPORTED,
            "%s: %sstate.%u: %u numbers of the optimizer and %u parameters of "
            "the recipe have as many elements in each rank%s: which is which "
            "cannot be told",
            local->reader->cat->path, local->optim, like->number, num_states,
            num_params, one_group ? "" : ", in several groups");
    }

    for (p = 0; p < local->num_params; p++) {
        if (!fits_param(local, like, p)) {
            continue;
        }
        while (!alike(local, &local->states[next], like)) {
            next++;
        }
        local->states[next++].param = p;
    }
    return FSDP_OK;
}

/* The optimizer has one number for each flat parameter. */
static fsdp_status_t match_flats(local_t *local)
{
    uint64_t most;

    if (local->num_states != local->num_flats ||
        local->states[local->num_states - 1].group != local->states[0].group) {
        return fsdp_error_set(
            local->err, FSDP_ERR_UNSUPPORTED,
            "%s: the optimizer has %u parameters, and there are %u flat ones: "
            "which is which cannot be told",
            local->reader->cat->path, local->num_states, local->num_flats);
    }

    for (uint32_t i = 0; i < local->num_states; i++) {
        state_t *state = &local->states[i];
        const flat_t *flat = &local->flats[i];

        state->param = i;
        most = state->numels[0];
        for (uint32_t r = 0; r < local->reader->num_ranks; r++) {
            const torch_found_t *found = stretch_of(flat, r);

            if (has_elements(local, state) &&
                (state->numels[r] != most ||
                 (found != NULL && found->count[0] > most))) {
                return bad(local, flat->key,
                           "the optimizer's state has another number of "
                           "elements");
            }
        }
    }

    return FSDP_OK;
}

static fsdp_status_t match_states(local_t *local)
{
    if (!local->orig) {
        return match_flats(local);
    }
    for (uint32_t i = 0; i < local->num_states; i++) {
        if (local->states[i].param == UINT32_MAX &&
            has_elements(local, &local->states[i])) {
            FSDP_TRY(match_params(local, &local->states[i]));
        }
    }
    return FSDP_OK;
}

/* --- Its tensors ---------------------------------------------------------- */

/* The part of one parameter: of each rank's stretch, or, with
 * use_orig_params, all that the rank has. */
static fsdp_status_t add_part(local_t *local, const torch_item_t *item,
                              const param_t *param, const char *prefix,
                              const char *rest)
{
    const flat_t *flat = &local->flats[param->flat];
    uint64_t tensor, from, first, count;

    FSDP_TRY(
        add_tensor(local, prefix, param, rest, item->first->dtype, &tensor));
    for (const torch_found_t *found = item->first; found != NULL;
         found = found->next) {
        const torch_found_t *stretch = stretch_of(flat, found->rank);

        if (found->kind != TORCH_TENSOR || found->ndim != 1 ||
            found->dtype != item->first->dtype ||
            !torch_found_contiguous(found)) {
            return bad(local, item->name, "the ranks do not agree about it");
        }
        if (stretch == NULL || is_copy(flat->item->first, stretch)) {
            continue;
        }
        count =
            overlap(param, stretch->start[0], stretch->count[0], &from, &first);
        if (count > 0) {
            FSDP_TRY(torch_add_range(local->reader, tensor, found,
                                     local->orig ? 0 : from, first, count));
        }
    }

    return FSDP_OK;
}

/* A number or a scalar that all parameters of a flat one share: the first by
 * name has it. */
static fsdp_status_t add_scalar(local_t *local, const torch_item_t *item,
                                uint32_t first, uint32_t num,
                                const char *prefix, const char *rest)
{
    const torch_found_t *found = item->first;
    catalog_t *cat = local->reader->cat;
    fsdp_status_t status = FSDP_OK;
    uint32_t owner = first;
    char *own, *name;
    uint64_t tensor;

    for (uint32_t p = first; p < first + num; p++) {
        if (strcmp(local->params[p].name, local->params[owner].name) < 0) {
            owner = p;
        }
    }
    own = io_path("%s%s%s", prefix, local->params[owner].name, rest);
    for (uint32_t p = first; p < first + num && status == FSDP_OK; p++) {
        name = io_path("%s%s%s", prefix, local->params[p].name, rest);
        if (name == NULL || own == NULL) {
            status = no_memory(local);
        } else if (found->kind == TORCH_VALUE) {
            status = catalog_add_value(cat, name, found->json, local->err);
        } else if (p != owner) {
            status = catalog_add_alias(cat, name, own, local->err);
        } else {
            status = catalog_add_tensor(cat, name, found->dtype, 0, NULL, NULL,
                                        &tensor, local->err);
            if (status == FSDP_OK) {
                status = torch_add_range(local->reader, tensor, found, 0, 0, 1);
            }
        }
        free(name);
    }
    free(own);
    return status;
}

static fsdp_status_t add_state(local_t *local, torch_item_t *item,
                               const char *prefix, uint32_t number,
                               const char *rest)
{
    const state_t *state = find_state(local, number);
    uint32_t first = state->param, num = 1;

    if (state->param == UINT32_MAX) {
        return FSDP_OK; /* nothing but values: kept under its number */
    }
    if (!local->orig) {
        first = local->flats[state->param].first;
        num = local->flats[state->param].num;
    }

    item->done = true;
    if (item->first->kind == TORCH_VALUE || item->first->ndim == 0) {
        return add_scalar(local, item, first, num, prefix, rest);
    }
    for (uint32_t p = first; p < first + num; p++) {
        FSDP_TRY(add_part(local, item, &local->params[p], prefix, rest));
    }
    return FSDP_OK;
}

static fsdp_status_t add_states(local_t *local)
{
    char *prefix = io_path("%sstate.", local->optim);
    fsdp_status_t status = (prefix != NULL) ? FSDP_OK : no_memory(local);

    for (uint64_t i = 0; i < local->reader->num && status == FSDP_OK; i++) {
        torch_item_t *item = &local->reader->items[i];
        const char *rest;
        uint32_t number;
        size_t size;

        if (is_state(item->name, &size, &number, &rest)) {
            status = add_state(local, item, prefix, number, rest);
        }
    }
    free(prefix);
    return status;
}

/* The names instead of the numbers, in the param_groups. */
static fsdp_status_t name_group(local_t *local, torch_item_t *item,
                                uint32_t group)
{
    json_t *names = json_array();
    fsdp_status_t status = FSDP_OK;
    char *text = NULL;

    for (uint32_t i = 0; i < local->num_states; i++) {
        const state_t *state = &local->states[i];
        uint32_t first = state->param, num = 1;

        if (state->group != group) {
            continue;
        }
        if (state->param == UINT32_MAX) { /* not known: as it was */
            json_decref(names);
            return FSDP_OK;
        }
        if (!local->orig) {
            first = local->flats[state->param].first;
            num = local->flats[state->param].num;
        }
        for (uint32_t p = first; p < first + num; p++) {
            if (json_array_append_new(
                    names, json_string(local->params[p].name)) != 0) {
                status = no_memory(local);
            }
        }
    }

    text = json_dumps(names, 0);
    json_decref(names);
    if (text == NULL) {
        return no_memory(local);
    }
    if (status == FSDP_OK) {
        item->done = true;
        status =
            catalog_add_value(local->reader->cat, item->name, text, local->err);
    }
    free(text);
    return status;
}

static fsdp_status_t add_optim(local_t *local)
{
    torch_item_t *item;
    uint32_t group = 0;
    const char *rest;
    uint32_t number;
    size_t prefix;

    for (uint64_t i = 0; i < local->reader->num && local->optim == NULL; i++) {
        const char *name = local->reader->items[i].name;

        if (is_state(name, &prefix, &number, &rest)) {
            local->optim = strndup(name, prefix);
            if (local->optim == NULL) {
                return no_memory(local);
            }
        }
    }
    if (local->optim == NULL) {
        return FSDP_OK;
    }

    for (; (item = group_item(local, group)) != NULL; group++) {
        FSDP_TRY(add_group(local, item, group));
    }
    if (local->num_states == 0) {
        return bad(local, local->optim, "there are no param_groups");
    }
    FSDP_TRY(measure_states(local));
    FSDP_TRY(match_states(local));
    FSDP_TRY(add_states(local));
    for (group = 0; (item = group_item(local, group)) != NULL; group++) {
        FSDP_TRY(name_group(local, item, group));
    }
    return FSDP_OK;
}

fsdp_status_t torch_take_local(torch_reader_t *reader)
{
    local_t local = {.reader = reader, .err = reader->err};
    fsdp_status_t status = read_recipe(&local);

    if (status == FSDP_OK) {
        status = find_prefix(&local);
    }
    if (status == FSDP_OK) {
        status = read_flats(&local);
    }
    if (status == FSDP_OK) {
        status = add_model(&local);
    }
    if (status == FSDP_OK) {
        status = add_optim(&local);
    }

    for (uint32_t i = 0; i < local.num_params; i++) {
        free(local.params[i].name);
    }
    for (uint32_t i = 0; i < local.num_states; i++) {
        free(local.states[i].numels);
    }
    free(local.params);
    free(local.states);
    free(local.flats);
    free(local.model);
    free(local.optim);
    json_decref(local.recipe);
    return status;
}
