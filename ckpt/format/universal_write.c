/*
 * Writing DeepSpeed's universal checkpoints: a file of torch.save for the
 * weights and what DeepSpeed and its client keep, one for the settings of the
 * optimizer, and one for each state of each parameter.
 */
#include "config.h"

#include "ckpt/format/universal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/format/torch_save.h"
#include "ckpt/format/zero_file.h"
#include "lib/util/check.h"
#include "lib/util/io.h"
#include "lib/util/map.h"

#define MODULE    "module."
#define MASTER    "fp32."
#define OPTIMIZER "optimizer."
#define CLIENT    "client_state."

/* Which file something is in: each state has one of its own. */
enum { FILE_MODEL, FILE_OPTIMIZER, FILE_STATES };

static fsdp_status_t no_memory(const catalog_t *cat, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", cat->path);
}

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* What DeepSpeed itself keeps beside the weights: KEY, or KEY.REST. */
static bool is_own(const char *name)
{
    char *key = strndup(name, strcspn(name, "."));
    bool is = key != NULL && zero_file_is_own(key);

    free(key);
    return is;
}

/* --- Files ---------------------------------------------------------------- */

/* May a name be that of a directory below zero/? */
static bool is_safe(const char *name)
{
    for (size_t size;; name += size + 1) {
        size = strcspn(name, "/");
        if (size == 0 || size > 250 || name[0] == '.') {
            return false;
        }
        if (name[size] == '\0') {
            return true;
        }
    }
}

typedef struct {
    catalog_t *cat;
    char *tag;
    map_t params; /* names of those that have master weights: which tensor */
    unsigned *states; /* of each such tensor: how many, itself included */
} shape_t;

static fsdp_status_t find_params(shape_t *shape, fsdp_error_t *err)
{
    const catalog_t *cat = shape->cat;

    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        const char *name = cat->tensors[t].name;

        if (begins(name, MASTER)) {
            name += strlen(MASTER);
            if (!is_safe(name)) {
                return fsdp_error_set(
                    err, FSDP_ERR_UNSUPPORTED,
                    "tensor %s: '%s' cannot name a directory, as a universal "
                    "checkpoint needs it: rename it",
                    cat->tensors[t].name, name);
            }
            if (!map_put(&shape->params, name, strlen(name), t)) {
                return no_memory(cat, err);
            }
        }
    }
    if (shape->params.num == 0) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s: cannot be written to this format: no tensor "
                              "is named " MASTER "NAME, which are the master "
                              "weights of a universal checkpoint: --rules "
                              "universal gives those of libfsdp such names",
                              cat->path);
    }
    for (uint64_t i = 0; i < cat->num_aliases; i++) {
        const catalog_alias_t *alias = &cat->aliases[i];

        if (!begins(alias->name, MODULE)) {
            return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                                  "%s is another name of %s, which universal "
                                  "checkpoints have for " MODULE "NAME only: "
                                  "leave it out with --exclude '%s'",
                                  alias->name, cat->tensors[alias->tensor].name,
                                  alias->name);
        }
    }

    return FSDP_OK;
}

/* The file of STATE.NAME, added. */
static fsdp_status_t add_state(shape_t *shape, const char *name,
                               uint32_t *file_p, fsdp_error_t *err)
{
    const char *dot = strchr(name, '.');
    fsdp_status_t status;
    uint64_t found;
    char *path;

    if (dot == NULL || dot == name || name[0] == '.' ||
        memchr(name, '/', (size_t)(dot - name)) != NULL ||
        !map_get(&shape->params, dot + 1, strlen(dot + 1), &found)) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s cannot be written to a universal checkpoint, "
                              "which has no place for it: leave it out with "
                              "--exclude '%s'",
                              name, name);
    }

    shape->states[found]++;
    path = io_path("%s/zero/%s/%.*s.pt", shape->tag, dot + 1, (int)(dot - name),
                   name);
    status = (path != NULL) ? catalog_add_file(shape->cat, path, 0, file_p, err)
                            : no_memory(shape->cat, err);
    free(path);
    return status;
}

static fsdp_status_t find_file(shape_t *shape, const char *name,
                               uint32_t *file_p, fsdp_error_t *err)
{
    if (begins(name, MODULE) || begins(name, CLIENT) || is_own(name)) {
        *file_p = FILE_MODEL;
        return FSDP_OK;
    }
    if (begins(name, OPTIMIZER)) {
        *file_p = FILE_OPTIMIZER;
        return FSDP_OK;
    }
    return add_state(shape, name, file_p, err);
}

static fsdp_status_t add_files(shape_t *shape, fsdp_error_t *err)
{
    static const char *const names[] = {"%s/mp_rank_00_model_states.pt",
                                        "%s/zero/optimizer_state.pt"};
    catalog_t *cat = shape->cat;
    uint32_t file;

    for (int i = FILE_MODEL; i <= FILE_OPTIMIZER; i++) {
        char *path = io_path(names[i], shape->tag);
        fsdp_status_t status = (path != NULL)
                                   ? catalog_add_file(cat, path, 0, &file, err)
                                   : no_memory(cat, err);

        free(path);
        FSDP_TRY(status);
    }
    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        catalog_piece_t piece = {.count = cat->tensors[t].numel,
                                 .tensor = (uint32_t)t,
                                 .crc_first = CATALOG_NONE,
                                 .box = CATALOG_NONE};

        FSDP_TRY(find_file(shape, cat->tensors[t].name, &piece.file, err));
        FSDP_TRY(catalog_add_piece(cat, &piece, err));
    }
    for (uint64_t v = 0; v < cat->num_values; v++) {
        FSDP_TRY(find_file(shape, cat->values[v].name, &file, err));
    }

    return FSDP_OK;
}

/* A parameter with fewer than others would be taken for one that lost some. */
static fsdp_status_t check_states(const shape_t *shape, fsdp_error_t *err)
{
    const catalog_t *cat = shape->cat;
    unsigned most = 0;

    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        most = (shape->states[t] > most) ? shape->states[t] : most;
    }
    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        const char *name = cat->tensors[t].name;

        if (shape->states[t] > 0 && shape->states[t] < most) {
            return fsdp_error_set(
                err, FSDP_ERR_UNSUPPORTED,
                "%s has %u of the %u states that others have, which universal "
                "checkpoints hold for all: leave it out with --exclude '%s', "
                "or make it a weight alone with --rename '%s=" MODULE "%s'",
                name, shape->states[t] - 1, most - 1, name, name,
                name + strlen(MASTER));
        }
    }

    return FSDP_OK;
}

fsdp_status_t universal_shape(catalog_t *cat, fsdp_error_t *err)
{
    shape_t shape = {.cat = cat};
    fsdp_status_t status;

    shape.tag = io_path("global_step%" PRId64 "_universal",
                        (cat->step > 0) ? cat->step : 0);
    shape.states = calloc(cat->num_tensors + 1, sizeof(*shape.states));
    cat->crc_zip = true;
    status = (shape.tag != NULL && shape.states != NULL)
                 ? find_params(&shape, err)
                 : no_memory(cat, err);
    if (status == FSDP_OK) {
        status = add_files(&shape, err);
    }
    if (status == FSDP_OK) {
        status = check_states(&shape, err);
    }
    free(shape.states);
    map_free(&shape.params);
    free(shape.tag);
    return status;
}

/* --- What is in them ------------------------------------------------------ */

/* Members whose names begin so, under the rest of them. */
static fsdp_status_t write_members(torch_out_t *out, const nest_t *nest,
                                   const char *prefix, fsdp_error_t *err)
{
    size_t size = strlen(prefix);

    for (uint32_t i = nest->nodes[0].first; i != NEST_NONE;
         i = nest->nodes[i].next) {
        const nest_node_t *node = &nest->nodes[i];

        if (node->key_size > size && memcmp(node->key, prefix, size) == 0) {
            pickle_write_string(&out->pickle, node->key + size,
                                node->key_size - size);
            FSDP_TRY(torch_out_node(out, nest, node, err));
        }
    }

    return FSDP_OK;
}

static fsdp_status_t write_own(torch_out_t *out, const nest_t *nest,
                               fsdp_error_t *err)
{
    for (uint32_t i = nest->nodes[0].first; i != NEST_NONE;
         i = nest->nodes[i].next) {
        const nest_node_t *node = &nest->nodes[i];
        char *key = strndup(node->key, node->key_size);
        bool is = key != NULL && zero_file_is_own(key);

        free(key);
        if (is) {
            pickle_write_string(&out->pickle, node->key, node->key_size);
            FSDP_TRY(torch_out_node(out, nest, node, err));
        }
    }

    return FSDP_OK;
}

static void begin_ordered(pickle_writer_t *pickle)
{
    pickle_write_class(pickle, "collections", "OrderedDict");
    pickle_write_op(pickle, ')');
    pickle_write_op(pickle, 'R');
    pickle_write_op(pickle, '(');
}

/* One group: which parameters shared one is not known any more, nor needed. */
static void write_shapes(torch_out_t *out)
{
    pickle_writer_t *pickle = &out->pickle;
    const catalog_t *cat = out->cat;

    pickle_write_text(pickle, "param_shapes");
    pickle_write_op(pickle, ']');
    pickle_write_op(pickle, '(');
    begin_ordered(pickle);
    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        const catalog_tensor_t *tensor = &cat->tensors[t];

        if (begins(tensor->name, MASTER)) {
            pickle_write_text(pickle, tensor->name + strlen(MASTER));
            pickle_write_class(pickle, "torch", "Size");
            pickle_write_ints(pickle, cat->dims + tensor->dims_first,
                              tensor->ndim);
            pickle_write_op(pickle, '\x85');
            pickle_write_op(pickle, 'R');
        }
    }
    pickle_write_op(pickle, 'u');
    pickle_write_op(pickle, 'e');
}

static void write_shared(torch_out_t *out)
{
    const catalog_t *cat = out->cat;

    pickle_write_text(&out->pickle, "shared_params");
    pickle_write_op(&out->pickle, '}');
    pickle_write_op(&out->pickle, '(');
    for (uint64_t i = 0; i < cat->num_aliases; i++) {
        const char *name = cat->aliases[i].name;
        const char *owner = cat->tensors[cat->aliases[i].tensor].name;

        if (begins(name, MODULE) && begins(owner, MODULE)) {
            pickle_write_text(&out->pickle, name + strlen(MODULE));
            pickle_write_text(&out->pickle, owner + strlen(MODULE));
        }
    }
    pickle_write_op(&out->pickle, 'u');
}

/* Unless it is among what DeepSpeed kept. */
static void write_step(torch_out_t *out)
{
    const catalog_t *cat = out->cat;
    uint64_t value;

    if (cat->step >= 0 && !catalog_find_value(cat, "global_steps", &value)) {
        pickle_write_text(&out->pickle, "global_steps");
        pickle_write_int(&out->pickle, cat->step);
    }
}

static fsdp_status_t write_model(torch_out_t *out, const nest_t *nest,
                                 fsdp_error_t *err)
{
    static const char *const none[] = {"optimizer", "frozen_param_shapes",
                                       "frozen_param_fragments"};
    pickle_writer_t *pickle = &out->pickle;

    pickle_write_op(pickle, '}');
    pickle_write_op(pickle, '(');
    pickle_write_text(pickle, "module");
    begin_ordered(pickle);
    FSDP_TRY(write_members(out, nest, MODULE, err));
    pickle_write_op(pickle, 'u');
    for (size_t i = 0; i < sizeof(none) / sizeof(*none); i++) {
        pickle_write_text(pickle, none[i]);
        pickle_write_op(pickle, 'N');
    }
    write_shapes(out);
    write_shared(out);
    write_step(out);
    FSDP_TRY(write_own(out, nest, err));
    FSDP_TRY(write_members(out, nest, CLIENT, err));
    pickle_write_op(pickle, 'u');
    return FSDP_OK;
}

/* STATE.NAME of a file …/zero/NAME/STATE.pt; the caller frees it. */
static char *state_of(const catalog_t *cat, uint32_t file)
{
    const char *param = strstr(cat->files[file].path, "/zero/") + 6;
    const char *state = io_base(param);

    return io_path("%.*s.%.*s", (int)strlen(state) - 3, state,
                   (int)(state - param) - 1, param);
}

static fsdp_status_t write_state(torch_out_t *out, uint32_t file,
                                 fsdp_error_t *err)
{
    pickle_writer_t *pickle = &out->pickle;
    const catalog_t *cat = out->cat;
    char *name = state_of(cat, file);
    fsdp_status_t status;
    uint64_t index;

    if (name == NULL) {
        return no_memory(cat, err);
    }

    if (catalog_find_value(cat, name, &index)) {
        status = torch_out_value(out, index, err);
    } else if (!catalog_find(cat, name, &index)) {
        status = fsdp_error_set(err, FSDP_ERR_BAD_STATE, "no tensor %s", name);
    } else if (begins(name, "step.")) {
        status = torch_out_tensor(out, index, err);
    } else {
        pickle_write_op(pickle, '}');
        pickle_write_op(pickle, '(');
        pickle_write_text(pickle, "cat_dim");
        pickle_write_int(pickle, 0);
        pickle_write_text(pickle, "param");
        status = torch_out_tensor(out, index, err);
        pickle_write_op(pickle, 'u');
    }
    free(name);
    return status;
}

/* torch_fill_f: @a arg is the number of the file. */
static fsdp_status_t fill(torch_out_t *out, void *arg, fsdp_error_t *err)
{
    uint32_t file = *(const uint32_t *)arg;
    fsdp_status_t status;
    nest_t nest;

    if (file >= FILE_STATES) {
        return write_state(out, file, err);
    }

    FSDP_TRY(nest_make(out->cat, &nest, err));
    if (file == FILE_MODEL) {
        status = write_model(out, &nest, err);
    } else {
        pickle_write_op(&out->pickle, '}');
        pickle_write_op(&out->pickle, '(');
        status = write_members(out, &nest, OPTIMIZER, err);
        pickle_write_op(&out->pickle, 'u');
    }
    nest_free(&nest);
    return status;
}

fsdp_status_t universal_create(catalog_t *cat, uint32_t file,
                               const uint64_t *pieces, uint64_t num,
                               const char *path, fsdp_error_t *err)
{
    char *dir = io_parent(path);
    fsdp_status_t status =
        (dir != NULL) ? io_make_dirs(dir, err) : no_memory(cat, err);

    free(dir);
    FSDP_TRY(status);
    return torch_out_create(cat, file, pieces, num, path, fill, &file, err);
}

/* --- Finishing ------------------------------------------------------------ */

/* Make the names of a file durable, up to the checkpoint. */
static fsdp_status_t sync_dirs(const catalog_t *cat, uint32_t file,
                               const char *dir, fsdp_error_t *err)
{
    char *path = io_path("%s/%s", dir, cat->files[file].path);
    fsdp_status_t status = (path != NULL) ? FSDP_OK : no_memory(cat, err);

    while (status == FSDP_OK && strlen(path) > strlen(dir)) {
        *strrchr(path, '/') = '\0';
        status = io_fsync_path(path, err);
    }
    free(path);
    return status;
}

fsdp_status_t universal_finish(const catalog_t *cat, const char *dir,
                               fsdp_error_t *err)
{
    const char *tag = cat->files[FILE_MODEL].path;
    char *latest = io_path("%s/latest_universal", dir);
    fsdp_status_t status = FSDP_OK;

    if (latest == NULL) {
        return no_memory(cat, err);
    }

    for (uint32_t f = 0; f < cat->num_files && status == FSDP_OK; f++) {
        status = torch_out_finish(cat, f, dir, fill, &f, err);
        if (status == FSDP_OK) {
            status = sync_dirs(cat, f, dir, err);
        }
    }
    if (status == FSDP_OK) {
        status = io_replace_file(latest, tag, strcspn(tag, "/"), err);
    }
    free(latest);
    return status;
}
