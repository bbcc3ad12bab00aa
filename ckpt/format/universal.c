/*
 * DeepSpeed's universal checkpoints: a directory for each parameter.
 *
 *     DIR/latest_universal                  the tag
 *     DIR/TAG/mp_rank_00_model_states.pt    weights, as ZeRO has them
 *     DIR/TAG/zero_pp_rank_0_mp_rank_00_model_states.pt    that of stage 3
 *     DIR/TAG/zero/NAME/fp32.pt             master weights, and so on
 *     DIR/TAG/zero/NAME/STATE.pt            exp_avg, exp_avg_sq, step
 *     DIR/TAG/zero/optimizer_state.pt       settings of the optimizer
 *
 * A state is a dict with the tensor as `param`, or the tensor itself, flat if
 * it comes from stage 3.  What is not trained may be there as fp32.pt too
 * (--inject_missing_state): that is a copy of the weights, made f32, and is
 * left out.
 */
#include "config.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/format.h"
#include "ckpt/format/universal.h"
#include "ckpt/format/zero.h"
#include "lib/util/check.h"
#include "lib/util/dir.h"
#include "lib/util/io.h"
#include "lib/util/text.h"

typedef struct {
    zero_t zero; /* catalog and parameters */
    zero_file_t model;
    bool has_model;
    bool is_stage3;
    map_t params;  /* names to indexes of zero.params */
    char **states; /* of each parameter, as the first one has them */
    uint32_t num_states;
} universal_t;

static fsdp_status_t no_memory(const universal_t *universal, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                          universal->zero.cat->path);
}

/* --- Recognising ---------------------------------------------------------- */

static bool is_tag(const char *dir)
{
    return dir_has(dir, "zero", S_IFDIR) &&
           (dir_has(dir, UNIVERSAL_STAGE12, S_IFREG) ||
            dir_has(dir, UNIVERSAL_STAGE3, S_IFREG) ||
            dir_has(dir, UNIVERSAL_OPTIMIZER, S_IFREG));
}

/* What DIR/latest_universal names, or NULL. */
static char *tag_of(const char *dir)
{
    char *name, *tag = NULL;

    if (io_read_name(dir, "latest_universal", &name, NULL) == FSDP_OK &&
        name != NULL) {
        tag = io_path("%s/%s", dir, name);
        free(name);
    }
    return tag;
}

/* The directory of the tag, whatever level of it @a path is; or NULL. */
static char *find_tag(const char *path)
{
    char *tag = is_tag(path) ? strdup(path) : tag_of(path), *above;

    if (tag == NULL) {
        above = io_path("%s/..", path);
        if (above != NULL && is_tag(above) &&
            dir_has(path, "optimizer_state.pt", S_IFREG)) {
            return above;
        }
        free(above);
    }
    return tag;
}

static bool probe(const format_look_t *look)
{
    char *tag = look->is_dir ? find_tag(look->path) : NULL;
    bool is = tag != NULL;

    free(tag);
    return is;
}

/* --- States of a parameter ------------------------------------------------ */

/* A tensor that has another shape in the file: flat. */
static fsdp_status_t add_flat(universal_t *universal, zero_file_t *file,
                              const char *name, pickle_ref_t ref,
                              const zero_param_t *param, fsdp_error_t *err)
{
    catalog_t *cat = universal->zero.cat;
    catalog_piece_t piece = {
        .file = file->index, .crc_first = CATALOG_NONE, .box = CATALOG_NONE};
    zero_flat_t flat;
    uint64_t tensor;

    FSDP_TRY(zero_file_flat(file, ref, name, &flat, err));
    if (flat.numel != param->numel) {
        return zero_file_bad(file, err,
                             "tensor %s: has %" PRIu64 " elements, its shape "
                             "%" PRIu64,
                             name, flat.numel, param->numel);
    }
    FSDP_TRY(catalog_add_tensor(cat, name, flat.dtype, param->ndim, param->dims,
                                NULL, &tensor, err));
    piece.tensor = (uint32_t)tensor;
    piece.count = flat.numel;
    piece.offset = flat.offset;
    return catalog_add_piece(cat, &piece, err);
}

/* @param param  As param_shapes has it, or NULL. */
static fsdp_status_t add_tensor(universal_t *universal, zero_file_t *file,
                                const char *name, pickle_ref_t ref,
                                const zero_param_t *param, bool is_bare,
                                fsdp_error_t *err)
{
    torch_tensor_t tensor;

    FSDP_TRY(torch_tensor(file->file.pickle, ref, name, &tensor, err));
    if (tensor.ndim == 0 || param == NULL) {
        return zero_file_add(file, name, ref, err);
    }
    if (tensor.ndim == param->ndim &&
        memcmp(tensor.dims, param->dims, param->ndim * sizeof(*param->dims)) ==
            0) {
        return zero_file_add(file, name, ref, err);
    }
    if (is_bare && tensor.ndim == 1) {
        return add_flat(universal, file, name, ref, param, err);
    }

    return zero_file_bad(
        file, err, "tensor %s: has another shape than param_shapes says", name);
}

/* The model's weights of stage 3: a placeholder that takes the master
 * weights. */
static fsdp_status_t add_weight(universal_t *universal, const zero_file_t *file,
                                pickle_ref_t ref, const zero_param_t *param,
                                fsdp_error_t *err)
{
    const zero_file_t *model = &universal->model;
    pickle_ref_t holder = zero_file_get(
        model, zero_file_get(model, zero_file_root(model), "module"),
        param->name);
    catalog_t *cat = universal->zero.cat;
    catalog_piece_t piece = {
        .file = file->index, .crc_first = CATALOG_NONE, .box = CATALOG_NONE};
    zero_flat_t place, flat;
    uint64_t tensor;
    fsdp_status_t status;
    char *name;

    if (holder == 0) {
        return FSDP_OK;
    }
    FSDP_TRY(zero_file_flat(model, holder, param->name, &place, err));
    if (place.numel != 0) {
        return FSDP_OK; /* the module has it whole */
    }

    FSDP_TRY(zero_file_flat(file, ref, param->name, &flat, err));
    if (flat.numel != param->numel) {
        return zero_file_bad(file, err,
                             "tensor %s: has %" PRIu64 " elements, its shape "
                             "%" PRIu64,
                             param->name, flat.numel, param->numel);
    }
    name = io_path("module.%s", param->name);
    if (name == NULL) {
        return no_memory(universal, err);
    }
    status = catalog_add_tensor(cat, name, place.dtype, param->ndim,
                                param->dims, NULL, &tensor, err);
    free(name);
    FSDP_TRY(status);
    if (place.dtype != flat.dtype) {
        FSDP_TRY(catalog_set_stored(cat, tensor, flat.dtype, err));
    }
    piece.tensor = (uint32_t)tensor;
    piece.count = flat.numel;
    piece.offset = flat.offset;
    return catalog_add_piece(cat, &piece, err);
}

static fsdp_status_t add_object(universal_t *universal, zero_file_t *file,
                                const char *state, const char *name,
                                const zero_param_t *param, fsdp_error_t *err)
{
    const pickle_t *pickle = file->file.pickle;
    pickle_ref_t root = zero_file_root(file);
    bool is_bare = torch_is_tensor(pickle, root);
    pickle_ref_t ref = is_bare ? root : zero_file_get(file, root, "param");

    if (ref == 0 && pickle_as_dict(pickle, root) == 0) {
        return zero_file_add_value(file, name, root, err); /* step */
    }
    if (!torch_is_tensor(pickle, ref)) {
        return zero_file_bad(file, err, "has no tensor 'param'");
    }

    FSDP_TRY(add_tensor(universal, file, name, ref, param, is_bare, err));
    return (universal->is_stage3 && param != NULL && strcmp(state, "fp32") == 0)
               ? add_weight(universal, file, ref, param, err)
               : FSDP_OK;
}

static fsdp_status_t add_state(universal_t *universal, const char *param_name,
                               const char *state, const zero_param_t *param,
                               fsdp_error_t *err)
{
    char *path = io_path("zero/%s/%s.pt", param_name, state);
    char *name = io_path("%s.%s", state, param_name);
    fsdp_status_t status;
    zero_file_t file;

    if (path == NULL || name == NULL) {
        free(path);
        free(name);
        return no_memory(universal, err);
    }

    status = zero_file_open(universal->zero.cat, path, &file, err);
    if (status == FSDP_OK) {
        status = add_object(universal, &file, state, name, param, err);
        zero_file_close(&file);
    }
    free(path);
    free(name);
    return status;
}

/* --- Parameters ----------------------------------------------------------- */

static int is_state(const struct dirent *entry)
{
    return entry->d_name[0] != '.' && text_ends_with(entry->d_name, ".pt");
}

/* All trained parameters have the states of the first one. */
static fsdp_status_t check_states(universal_t *universal, const char *dir,
                                  struct dirent **names, int num,
                                  fsdp_error_t *err)
{
    if (universal->states == NULL) {
        universal->states = calloc((size_t)num + 1, sizeof(char *));
        if (universal->states == NULL) {
            return no_memory(universal, err);
        }
        for (int i = 0; i < num; i++) {
            universal->states[i] = strdup(names[i]->d_name);
            if (universal->states[i] == NULL) {
                return no_memory(universal, err);
            }
            universal->num_states++;
        }
        return FSDP_OK;
    }

    for (uint32_t i = 0; i < universal->num_states || i < (uint32_t)num; i++) {
        const char *want =
            (i < universal->num_states) ? universal->states[i] : NULL;
        const char *have = (i < (uint32_t)num) ? names[i]->d_name : NULL;

        if (want == NULL || have == NULL || strcmp(want, have) != 0) {
            return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                  "%s: has %s where other parameters have %s: "
                                  "a file is missing",
                                  dir, (have != NULL) ? have : "nothing",
                                  (want != NULL) ? want : "nothing");
        }
    }

    return FSDP_OK;
}

/* @param dir  Of the parameter: its fp32.pt is there. */
static fsdp_status_t add_param(universal_t *universal, const char *dir,
                               const char *name, fsdp_error_t *err)
{
    const zero_param_t *param = NULL;
    struct dirent **names = NULL;
    fsdp_status_t status = FSDP_OK;
    uint64_t index;
    int num;

    if (map_get(&universal->params, name, strlen(name), &index)) {
        param = &universal->zero.params[index];
        universal->zero.params[index].start = 1; /* seen */
    } else if (universal->has_model) {
        return FSDP_OK; /* a copy of weights that are not trained */
    }

    num = scandir(dir, &names, is_state, alphasort);
    if (num < 0) {
        return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot read: %m", dir);
    }
    if (param != NULL) {
        status = check_states(universal, dir, names, num, err);
    }
    for (int i = 0; i < num && status == FSDP_OK; i++) {
        names[i]->d_name[strlen(names[i]->d_name) - 3] = '\0';
        status = add_state(universal, name, names[i]->d_name, param, err);
    }
    dir_free(names, num);
    return status;
}

static int is_visible(const struct dirent *entry)
{
    return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

/* A directory below zero/: a parameter, or a part of names with slashes. */
static fsdp_status_t walk(universal_t *universal, const char *dir,
                          const char *name, unsigned depth, fsdp_error_t *err)
{
    struct dirent **names = NULL;
    fsdp_status_t status = FSDP_OK;
    int num;

    if (depth > UNIVERSAL_DEPTH_MAX) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT, "%s: too deep", dir);
    }
    if (name[0] != '\0' && dir_has(dir, "fp32.pt", S_IFREG)) {
        FSDP_TRY(add_param(universal, dir, name, err));
    }

    num = scandir(dir, &names, is_visible, alphasort);
    if (num < 0) {
        return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot read: %m", dir);
    }
    for (int i = 0; i < num && status == FSDP_OK; i++) {
        char *path, *full;

        if (!dir_has(dir, names[i]->d_name, S_IFDIR)) {
            continue;
        }
        path = io_path("%s/%s", dir, names[i]->d_name);
        full = io_path("%s%s%s", name, (name[0] != '\0') ? "/" : "",
                       names[i]->d_name);
        status = (path != NULL && full != NULL)
                     ? walk(universal, path, full, depth + 1, err)
                     : no_memory(universal, err);
        free(path);
        free(full);
    }
    dir_free(names, num);
    return status;
}

static fsdp_status_t add_params(universal_t *universal, fsdp_error_t *err)
{
    const zero_t *zero = &universal->zero;
    char *dir = io_path("%s/zero", zero->cat->root);
    fsdp_status_t status;

    if (dir == NULL) {
        return no_memory(universal, err);
    }
    status = walk(universal, dir, "", 0, err);
    free(dir);
    FSDP_TRY(status);

    for (uint64_t i = 0; i < zero->num_params; i++) {
        if (zero->params[i].start == 0) {
            return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                  "%s/zero: tensor %s: its directory or its "
                                  "fp32.pt is missing",
                                  zero->cat->root, zero->params[i].name);
        }
    }
    return FSDP_OK;
}

/* --- Beside them ---------------------------------------------------------- */

/* Was a key added by our writer, or says which were? */
static bool is_added(const pickle_t *pickle, pickle_ref_t root, const char *key)
{
    pickle_ref_t added = pickle_get(pickle, root, UNIVERSAL_ADDED);
    uint64_t num = pickle_count(pickle, added);
    bool is = strcmp(key, UNIVERSAL_ADDED) == 0;

    for (uint64_t i = 0; i < num && !is; i++) {
        const char *text =
            pickle_str(pickle, pickle_item(pickle, added, i), NULL);

        is = text != NULL && strcmp(text, key) == 0;
    }
    return is;
}

static fsdp_status_t add_setting(zero_file_t *file, const char *key,
                                 pickle_ref_t ref, fsdp_error_t *err)
{
    char *name = io_path("optimizer.%s", key);
    fsdp_status_t status =
        (name != NULL) ? zero_file_add_value(file, name, ref, err)
                       : fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                        "%s: no memory", file->file.path);

    free(name);
    return status;
}

static fsdp_status_t add_optimizer(universal_t *universal, fsdp_error_t *err)
{
    catalog_t *cat = universal->zero.cat;
    fsdp_status_t status = FSDP_OK;
    const pickle_t *pickle;
    pickle_ref_t root;
    zero_file_t file;

    if (!dir_has(cat->root, UNIVERSAL_OPTIMIZER, S_IFREG)) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s/%s: a file of the checkpoint is missing",
                              cat->root, UNIVERSAL_OPTIMIZER);
    }

    FSDP_TRY(zero_file_open(cat, UNIVERSAL_OPTIMIZER, &file, err));
    pickle = file.file.pickle;
    root = pickle_as_dict(pickle, zero_file_root(&file));
    for (uint64_t i = 0; i < pickle_count(pickle, root) && status == FSDP_OK;
         i++) {
        const char *key = pickle_str(pickle, pickle_key(pickle, root, i), NULL);

        if (key != NULL && !is_added(pickle, root, key)) {
            status = add_setting(&file, key, pickle_item(pickle, root, i), err);
        }
    }
    zero_file_close(&file);
    return status;
}

static fsdp_status_t map_params(universal_t *universal, map_t *skip,
                                fsdp_error_t *err)
{
    const zero_t *zero = &universal->zero;

    for (uint64_t i = 0; i < zero->num_params; i++) {
        const char *name = zero->params[i].name;

        universal->zero.params[i].start = 0; /* not yet seen */
        if (!map_put(&universal->params, name, strlen(name), i) ||
            (universal->is_stage3 && !map_put(skip, name, strlen(name), i))) {
            return no_memory(universal, err);
        }
    }

    return FSDP_OK;
}

static fsdp_status_t add_model(universal_t *universal, fsdp_error_t *err)
{
    zero_file_t *model = &universal->model;
    pickle_ref_t frozen;
    fsdp_status_t status;
    map_t skip = {0};

    FSDP_TRY(zero_file_add_client(model, err));
    FSDP_TRY(zero_read_params(&universal->zero, model, err));
    FSDP_TRY_GOTO(map_params(universal, &skip, err), err_free);
    if (universal->is_stage3) {
        frozen =
            zero_file_get(model, zero_file_root(model), "frozen_param_shapes");
        if (pickle_count(model->file.pickle,
                         pickle_as_dict(model->file.pickle, frozen)) > 0) {
            status = fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                                    "%s: frozen parameters of stage 3 in a "
                                    "universal checkpoint are not read here: "
                                    "read the checkpoint it was made from",
                                    model->file.path);
            goto err_free;
        }
        FSDP_TRY_GOTO(zero_file_add_shared(&universal->model,
                                           &universal->params, &skip, err),
                      err_free);
    }
    status = zero_file_add_module(model, &skip, err);
err_free:
    map_free(&skip);
    return status;
}

static fsdp_status_t fill(universal_t *universal, fsdp_error_t *err)
{
    catalog_t *cat = universal->zero.cat;
    bool parallel = dir_has(cat->root, "mp_rank_01_model_states.pt", S_IFREG);

    universal->is_stage3 = !dir_has(cat->root, UNIVERSAL_STAGE12, S_IFREG);
    FSDP_TRY(zero_file_open(
        cat, universal->is_stage3 ? UNIVERSAL_STAGE3 : UNIVERSAL_STAGE12,
        &universal->model, err));
    universal->has_model = !parallel;
    if (parallel) { /* the weights are slices; zero/ has them whole */
        FSDP_TRY(zero_file_add_client(&universal->model, err));
    } else {
        FSDP_TRY(add_model(universal, err));
    }

    FSDP_TRY(add_params(universal, err));
    return add_optimizer(universal, err);
}

static fsdp_status_t open_universal(const char *path, catalog_t *cat,
                                    fsdp_error_t *err)
{
    universal_t universal = {
        .zero = {.cat = cat, .prefix = ""}
    };
    char *dir = find_tag(path);
    fsdp_status_t status;

    cat->root = (dir != NULL) ? catalog_strdup(cat, dir) : NULL;
    free(dir);
    if (cat->root == NULL) {
        cat->root = cat->path;
        return no_memory(&universal, err);
    }

    cat->crc_zip = true;
    cat->shared = true;
    status = fill(&universal, err);
    zero_file_close(&universal.model);
    map_free(&universal.params);
    for (uint32_t i = 0; i < universal.num_states; i++) {
        free(universal.states[i]);
    }
    free(universal.states);
    free(universal.zero.params);
    FSDP_TRY(status);
    return catalog_seal(cat, CATALOG_CHECK_ALL, err);
}

const format_t format_universal = {
    .id = FSDP_CKPT_UNIVERSAL,
    .name = "universal",
    .what = "a DeepSpeed universal checkpoint",
    .probe = probe,
    .open = open_universal,
    .is_dir = true,
    .has_crcs = true,
    .keeps = FSDP_CKPT_KEEPS_STEP,
    .create = universal_create,
    .finish = universal_finish,
};
