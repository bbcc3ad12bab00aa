/*
 * Writing DeepSpeed's universal checkpoints: a file of torch.save for the
 * weights and what DeepSpeed and its client keep, one for the settings of the
 * optimizer, and one for each state of each parameter.
 *
 * Engines of stage 3 look for the first one under another name.  Of the
 * settings each stage asks for some that the others do not keep: where the
 * source lacks them they are made of what it has.
 */
#include "config.h"

#include "ckpt/format/universal.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/format/adamw.h"
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

#define GROUPS     OPTIMIZER "param_groups"
#define STEP       "step."
#define NESTED     "optimizer_state_dict"
#define DS_VERSION "ds_version"

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

enum { PART_MOST = 250, NAME_MOST = 2000 };

/* May a name be that of a directory below zero/?  Files in such directories end
 * in .pt. */
static bool is_safe(const char *name)
{
    const char *part = name;

    for (unsigned depth = 1; depth <= UNIVERSAL_DEPTH_MAX; depth++) {
        size_t size = strcspn(part, "/");

        if (size == 0 || size > PART_MOST || part[0] == '.' ||
            (size >= 3 && memcmp(part + size - 3, ".pt", 3) == 0)) {
            return false;
        }
        if (part[size] == '\0') {
            return part + size - name <= NAME_MOST;
        }
        part += size + 1;
    }

    return false;
}

typedef struct {
    catalog_t *cat;
    char *tag;
    map_t params; /* names of those that have master weights: which tensor */
    unsigned *states; /* of each such tensor: how many, itself included */
    bool has_groups;
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
                    "tensor %s: '%.80s%s' cannot name a directory, as a "
                    "universal checkpoint needs it (parts between slashes "
                    "have 1 to %d bytes, no dot in front and no .pt at their "
                    "end; %d of them and %d bytes at most): rename it",
                    cat->tensors[t].name, name,
                    (strlen(name) > 80) ? "..." : "", PART_MOST,
                    UNIVERSAL_DEPTH_MAX, NAME_MOST);
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
        dot - name > PART_MOST ||
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
    shape->has_groups |= begins(name, GROUPS);
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
    static const char *const names[] = {UNIVERSAL_STAGE12, UNIVERSAL_OPTIMIZER};
    catalog_t *cat = shape->cat;
    uint32_t file;

    for (int i = FILE_MODEL; i <= FILE_OPTIMIZER; i++) {
        char *path = io_path("%s/%s", shape->tag, names[i]);
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

/* What engines ask for and only they know is made up for a checkpoint of ours;
 * by the version they tell old forms. */
static fsdp_status_t add_settings(catalog_t *cat, fsdp_error_t *err)
{
    static const adamw_names_t names = {
        .first = "exp_avg.*",
        .step = STEP "*",
        .groups = GROUPS,
    };
    static const char *const engine[][2] = {
        {DS_VERSION,      "\"0.14.0\""},
        {"dp_world_size", "1"         },
        {"mp_world_size", "1"         },
        {"skipped_steps", "0"         },
    };
    uint64_t before = cat->num_values;

    FSDP_TRY(adamw_add(cat, &names, err));
    if (cat->num_values == before) {
        return FSDP_OK; /* it is another one */
    }
    for (size_t i = 0; i < sizeof(engine) / sizeof(*engine); i++) {
        FSDP_TRY(catalog_add_value(cat, engine[i][0], engine[i][1], err));
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
    FSDP_TRY_GOTO(add_settings(cat, err), err_free);
    status = (shape.tag != NULL && shape.states != NULL)
                 ? find_params(&shape, err)
                 : no_memory(cat, err);
    if (status == FSDP_OK) {
        status = add_files(&shape, err);
    }
    if (status == FSDP_OK) {
        status = check_states(&shape, err);
    }
    if (status == FSDP_OK && !shape.has_groups) {
        status = catalog_add_note(
            cat, err,
            "DeepSpeed's engines do not load this without " GROUPS
            ", which the source lacks: those of elastic_checkpoint have none");
    }
err_free:
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

/* --- Settings of the optimizer -------------------------------------------- */

/* The first member of the root that has a name, or one that begins so if that
 * ends in a dot; or NULL. */
static const nest_node_t *find_member(const nest_t *nest, const char *name)
{
    size_t size = strlen(name);
    bool is_prefix = name[size - 1] == '.';

    for (uint32_t i = nest->nodes[0].first; i != NEST_NONE;
         i = nest->nodes[i].next) {
        const nest_node_t *node = &nest->nodes[i];

        if ((node->key_size == size || (is_prefix && node->key_size > size)) &&
            memcmp(node->key, name, size) == 0) {
            return node;
        }
    }

    return NULL;
}

/* The number of steps, which is a tensor in a file of its own, when that has
 * its data: until then only what is around it is laid out. */
static fsdp_status_t read_step(const torch_out_t *out, uint64_t index,
                               float *step, fsdp_error_t *err)
{
    const catalog_t *cat = out->cat;
    const catalog_piece_t *piece =
        &cat->pieces[cat->tensors[index].piece_first];
    size_t size = strlen(out->path) - strlen(cat->files[FILE_OPTIMIZER].path);
    char *path =
        io_path("%.*s%s", (int)size, out->path, cat->files[piece->file].path);
    fsdp_status_t status;
    int fd;

    if (path == NULL) {
        return no_memory(cat, err);
    }

    status = io_open(path, O_RDONLY, 0, &fd, err);
    if (status == FSDP_OK) {
        status = io_pread(fd, step, sizeof(*step), piece->offset, path, err);
        close(fd);
    }
    free(path);
    return status;
}

/* One number of steps for all parameters, as DeepSpeed takes it. */
static fsdp_status_t write_state_step(torch_out_t *out, const nest_t *nest,
                                      const nest_node_t *node,
                                      fsdp_error_t *err)
{
    pickle_writer_t *pickle = &out->pickle;
    float step = 0;

    if (node == NULL) {
        pickle_write_int(pickle, out->cat->step);
        return FSDP_OK;
    }
    if (node->is != NEST_LEAF || node->leaf != NEST_TENSOR) {
        return torch_out_node(out, nest, node, err);
    }

    if (out->fd >= 0) {
        FSDP_TRY(read_step(out, node->index, &step, err));
    }
    pickle_write_class(pickle, "torch", "tensor");
    pickle_write_float(pickle, (double)step);
    pickle_write_op(pickle, '\x85');
    pickle_write_op(pickle, 'R');
    return FSDP_OK;
}

/* Can a number of steps be told? */
static bool has_step(const catalog_t *cat, const nest_node_t *node)
{
    const catalog_tensor_t *tensor;

    if (node == NULL) {
        return cat->step >= 0;
    }
    if (node->is != NEST_LEAF || node->leaf != NEST_TENSOR) {
        return true;
    }
    tensor = &cat->tensors[node->index];
    return tensor->dtype == FSDP_DTYPE_F32 && tensor->numel == 1;
}

/* As stage 3 has it, of which DeepSpeed reads the steps and the settings. */
static fsdp_status_t write_nested(torch_out_t *out, const nest_t *nest,
                                  const nest_node_t *groups,
                                  const nest_node_t *step, fsdp_error_t *err)
{
    pickle_writer_t *pickle = &out->pickle;

    pickle_write_text(pickle, NESTED);
    pickle_write_op(pickle, '}');
    pickle_write_op(pickle, '(');
    pickle_write_text(pickle, "state");
    pickle_write_op(pickle, '}');
    pickle_write_op(pickle, '(');
    pickle_write_int(pickle, 0);
    pickle_write_op(pickle, '}');
    pickle_write_op(pickle, '(');
    pickle_write_text(pickle, "step");
    FSDP_TRY(write_state_step(out, nest, step, err));
    pickle_write_op(pickle, 'u');
    pickle_write_op(pickle, 'u');
    pickle_write_text(pickle, "param_groups");
    FSDP_TRY(torch_out_node(out, nest, groups, err));
    pickle_write_op(pickle, 'u');
    return FSDP_OK;
}

/* What engines of the other stages ask for, and which that is. */
static fsdp_status_t write_added(torch_out_t *out, const nest_t *nest,
                                 fsdp_error_t *err)
{
    const nest_node_t *groups = find_member(nest, GROUPS);
    const nest_node_t *step = find_member(nest, STEP);
    const nest_node_t *version = find_member(nest, DS_VERSION);
    pickle_writer_t *pickle = &out->pickle;
    bool has_nested = groups != NULL && has_step(out->cat, step) &&
                      find_member(nest, OPTIMIZER NESTED) == NULL;
    bool has_version =
        version != NULL && find_member(nest, OPTIMIZER DS_VERSION) == NULL;

    if (has_nested) {
        FSDP_TRY(write_nested(out, nest, groups, step, err));
    }
    if (has_version) {
        pickle_write_text(pickle, DS_VERSION);
        FSDP_TRY(torch_out_node(out, nest, version, err));
    }
    if (has_nested || has_version) {
        pickle_write_text(pickle, UNIVERSAL_ADDED);
        pickle_write_op(pickle, ']');
        pickle_write_op(pickle, '(');
        if (has_nested) {
            pickle_write_text(pickle, NESTED);
        }
        if (has_version) {
            pickle_write_text(pickle, DS_VERSION);
        }
        pickle_write_op(pickle, 'e');
    }
    return FSDP_OK;
}

static fsdp_status_t write_optimizer(torch_out_t *out, const nest_t *nest,
                                     fsdp_error_t *err)
{
    pickle_write_op(&out->pickle, '}');
    pickle_write_op(&out->pickle, '(');
    FSDP_TRY(write_members(out, nest, OPTIMIZER, err));
    FSDP_TRY(write_added(out, nest, err));
    pickle_write_op(&out->pickle, 'u');
    return FSDP_OK;
}

/* --- States --------------------------------------------------------------- */

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
    } else if (begins(name, STEP)) {
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
    status = (file == FILE_MODEL) ? write_model(out, &nest, err)
                                  : write_optimizer(out, &nest, err);
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

/* The other name of the first file, which is made durable with it. */
static fsdp_status_t link_stage3(const catalog_t *cat, const char *dir,
                                 fsdp_error_t *err)
{
    const char *tag = cat->files[FILE_MODEL].path;
    char *path =
        io_path("%s/%.*s/" UNIVERSAL_STAGE3, dir, (int)strcspn(tag, "/"), tag);
    fsdp_status_t status = FSDP_OK;

    if (path == NULL) {
        return no_memory(cat, err);
    }
    if (symlink(UNIVERSAL_STAGE12, path) != 0) {
        status = fsdp_error_set(err, FSDP_ERR_IO,
                                "%s: cannot make a symbolic link: %m", path);
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

    status = link_stage3(cat, dir, err);
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
