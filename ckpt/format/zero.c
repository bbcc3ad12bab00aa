#include "config.h"

#include "ckpt/format/zero.h"

#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/format.h"
#include "lib/util/check.h"
#include "lib/util/io.h"

/* --- Names of files ------------------------------------------------------- */

/* What a directory holds of DeepSpeed. */
typedef struct {
    uint64_t mp_models; /* mp_rank_00_model_states.pt */
    uint64_t models;    /* zero_pp_rank_R_mp_rank_00_model_states.pt */
    uint64_t optims[3]; /* by prefix */
    uint64_t parallel;  /* of tensor, pipeline or expert parallel models */
} listing_t;

static const char *const prefixes[] = {"", "bf16_", "fp16_"};

/* "00" and "_model_states.pt" behind it. */
static bool is_end(const char *text, const char *end, bool *parallel_p)
{
    if (!isdigit((unsigned char)text[0]) || !isdigit((unsigned char)text[1])) {
        return false;
    }
    *parallel_p = text[0] != '0' || text[1] != '0';
    return strcmp(text + 2, end) == 0;
}

/* "zero_pp_rank_R_mp_rank_NN" + END. */
static bool is_rank_file(const char *name, const char *end, bool *parallel_p)
{
    static const char begin[] = "zero_pp_rank_", middle[] = "_mp_rank_";
    size_t digits;

    if (strncmp(name, begin, sizeof(begin) - 1) != 0) {
        return false;
    }
    name += sizeof(begin) - 1;
    digits = strspn(name, "0123456789");
    if (digits == 0 || strncmp(name + digits, middle, sizeof(middle) - 1)) {
        return false;
    }
    return is_end(name + digits + sizeof(middle) - 1, end, parallel_p);
}

static void list_name(const char *name, listing_t *listing)
{
    static const char begin[] = "mp_rank_", model[] = "_model_states.pt";
    bool parallel = false;

    if (strncmp(name, begin, sizeof(begin) - 1) == 0 &&
        is_end(name + sizeof(begin) - 1, model, &parallel)) {
        listing->mp_models += !parallel;
    } else if (is_rank_file(name, model, &parallel)) {
        listing->models += !parallel;
    } else if ((strncmp(name, "layer_", 6) == 0 ||
                strncmp(name, "expp_rank_", 10) == 0) &&
               strstr(name, "_states.pt") != NULL) {
        parallel = true;
    } else {
        for (size_t i = 0; i < 3; i++) {
            size_t size = strlen(prefixes[i]);

            if (strncmp(name, prefixes[i], size) == 0 &&
                is_rank_file(name + size, "_optim_states.pt", &parallel)) {
                listing->optims[i] += !parallel;
            }
        }
    }
    listing->parallel += parallel;
}

static bool list(const char *dir, listing_t *listing)
{
    DIR *stream = opendir(dir);
    const struct dirent *entry;

    *listing = (listing_t){0};
    if (stream == NULL) {
        return false;
    }

    while ((entry = readdir(stream)) != NULL) {
        list_name(entry->d_name, listing);
    }
    closedir(stream);
    return true;
}

static bool is_tag(const char *dir)
{
    listing_t listing;
    struct stat st;
    char *zero = io_path("%s/zero", dir);
    bool universal = zero != NULL && stat(zero, &st) == 0;

    free(zero);
    return list(dir, &listing) && !universal &&
           (listing.models > 0 || listing.parallel > 0 ||
            listing.optims[0] + listing.optims[1] + listing.optims[2] > 0 ||
            listing.mp_models > 0);
}

/* What DIR/latest says, if it is the name of a directory there, or NULL. */
static char *tag_of(const char *dir)
{
    char *name, *tag = NULL;

    if (io_read_name(dir, "latest", &name, NULL) == FSDP_OK && name != NULL) {
        tag = io_path("%s/%s", dir, name);
        free(name);
    }
    return tag;
}

static bool is_tag_in(const char *dir, const char *name)
{
    char *path = io_path("%s/%s", dir, name);
    bool is = path != NULL && name[0] != '.' && is_tag(path);

    free(path);
    return is;
}

/* Directories below that hold a checkpoint; the name of one of them. */
static unsigned count_tags(const char *dir, char name[256])
{
    DIR *stream = opendir(dir);
    const struct dirent *entry;
    unsigned num = 0;

    if (stream == NULL) {
        return 0;
    }
    while ((entry = readdir(stream)) != NULL) {
        if (is_tag_in(dir, entry->d_name)) {
            snprintf(name, 256, "%s", entry->d_name);
            num++;
        }
    }
    closedir(stream);
    return num;
}

static bool is_state(const char *name)
{
    listing_t listing = {0};

    list_name(name, &listing);
    return listing.mp_models + listing.models + listing.parallel +
               listing.optims[0] + listing.optims[1] + listing.optims[2] >
           0;
}

static bool is_file_of(const char *path)
{
    char *dir = io_parent(path);
    bool is = dir != NULL && is_tag(dir) && is_state(io_base(path));

    free(dir);
    return is;
}

static bool probe(const format_look_t *look)
{
    char *tag, name[256];
    bool is;

    if (!look->is_dir) {
        return is_file_of(look->path);
    }
    if (is_tag(look->path)) {
        return true;
    }
    tag = tag_of(look->path);
    is = (tag != NULL) ? is_tag(tag) : count_tags(look->path, name) > 0;
    free(tag);
    return is;
}

/* --- Parameters ----------------------------------------------------------- */

static fsdp_status_t no_memory(const zero_t *zero, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                          zero->cat->path);
}

static fsdp_status_t read_param(zero_t *zero, const zero_file_t *model,
                                pickle_ref_t key, pickle_ref_t shape,
                                uint32_t group, fsdp_error_t *err)
{
    const pickle_t *pickle = model->file.pickle;
    const char *name = pickle_str(pickle, key, NULL);
    zero_param_t *param = &zero->params[zero->num_params];
    uint64_t bytes;

    *param = (zero_param_t){.group = group, .numel = 1};
    if (name == NULL || !pickle_u64s(pickle, shape, param->dims,
                                     FSDP_CKPT_MAX_NDIM, &param->ndim)) {
        return zero_file_bad(model, err, "param_shapes makes no sense");
    }
    for (uint32_t d = 0; d < param->ndim; d++) {
        if (__builtin_mul_overflow(param->numel, param->dims[d],
                                   &param->numel)) {
            return zero_file_bad(model, err, "tensor %s: its shape is too big",
                                 name);
        }
    }
    if (!dtype_bytes(FSDP_DTYPE_F64, param->numel, &bytes)) {
        return zero_file_bad(model, err, "tensor %s: its shape is too big",
                             name);
    }

    param->name = catalog_strdup(zero->cat, name);
    if (param->name == NULL) {
        return no_memory(zero, err);
    }
    zero->num_params++;
    return FSDP_OK;
}

/* A list of groups; older versions have one dict. */
fsdp_status_t zero_read_params(zero_t *zero, const zero_file_t *model,
                               fsdp_error_t *err)
{
    const pickle_t *pickle = model->file.pickle;
    pickle_ref_t shapes =
        zero_file_get(model, zero_file_root(model), "param_shapes");
    bool is_list = pickle_kind(pickle, shapes) == PICKLE_LIST;
    uint64_t num = is_list ? pickle_count(pickle, shapes) : 1, total = 0;

    if (!is_list && pickle_as_dict(pickle, shapes) == 0) {
        return zero_file_bad(model, err,
                             "has no param_shapes: without them the "
                             "optimizer's state cannot be taken apart");
    }
    for (uint64_t g = 0; g < num; g++) {
        total += pickle_count(
            pickle,
            pickle_as_dict(pickle,
                           is_list ? pickle_item(pickle, shapes, g) : shapes));
    }
    if (num > UINT32_MAX || total > CATALOG_NONE) {
        return zero_file_bad(model, err, "param_shapes is too big");
    }
    zero->params = calloc(total + 1, sizeof(*zero->params));
    if (zero->params == NULL) {
        return no_memory(zero, err);
    }

    zero->num_groups = (uint32_t)num;
    for (uint32_t g = 0; g < num; g++) {
        pickle_ref_t dict = pickle_as_dict(
            pickle, is_list ? pickle_item(pickle, shapes, g) : shapes);

        for (uint64_t i = 0; i < pickle_count(pickle, dict); i++) {
            FSDP_TRY(read_param(zero, model, pickle_key(pickle, dict, i),
                                pickle_item(pickle, dict, i), g, err));
        }
    }

    return FSDP_OK;
}

/* --- The optimizer's files ------------------------------------------------ */

/* partition_count: a number, or one a group. */
static bool count_is(const pickle_t *pickle, pickle_ref_t ref,
                     uint64_t *count_p)
{
    uint64_t count, num = pickle_count(pickle, ref);

    if (pickle_u64(pickle, ref, count_p)) {
        return true;
    }
    for (uint64_t i = 0; i < num; i++) {
        if (!pickle_u64(pickle, pickle_item(pickle, ref, i), &count) ||
            (i > 0 && count != *count_p)) {
            return false;
        }
        *count_p = count;
    }
    return num > 0;
}

fsdp_status_t zero_open_optim(zero_t *zero, uint32_t rank, zero_file_t *file,
                              fsdp_error_t *err)
{
    char name[80];
    pickle_ref_t optim;
    fsdp_status_t status = FSDP_OK;
    uint64_t world = 0;

    snprintf(name, sizeof(name), "%szero_pp_rank_%u_mp_rank_00_optim_states.pt",
             zero->prefix, rank);
    FSDP_TRY(zero_file_open(zero->cat, name, file, err));

    optim = zero_file_get(file, zero_file_root(file), "optimizer_state_dict");
    if (!count_is(file->file.pickle,
                  zero_file_get(file, optim, "partition_count"), &world) ||
        world == 0 || world > INT32_MAX) {
        status = fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                                "%s: its partition_count is not one number of "
                                "ranks",
                                file->file.path);
    } else if (zero->world == 0) {
        zero->world = (uint32_t)world;
    } else if (zero->world != world) {
        status = zero_file_bad(file, err,
                               "is of %" PRIu64 " ranks, the file of rank 0 "
                               "of %u: they are of different runs",
                               world, zero->world);
    }
    if (status != FSDP_OK) {
        zero_file_close(file);
    }
    return status;
}

/* --- Kinds ---------------------------------------------------------------- */

static fsdp_status_t add_kind(zero_t *zero, const char *name,
                              fsdp_dtype_t dtype, bool scalar,
                              fsdp_error_t *err)
{
    zero_kind_t *kind = &zero->kinds[zero->num_kinds];

    if (zero->num_kinds == ZERO_MAX_KINDS) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s: the optimizer keeps more than %d tensors "
                              "for each parameter",
                              zero->cat->path, ZERO_MAX_KINDS);
    }
    *kind = (zero_kind_t){.name = catalog_strdup(zero->cat, name),
                          .first = zero->cat->num_tensors,
                          .dtype = dtype,
                          .scalar = scalar};
    if (kind->name == NULL) {
        return no_memory(zero, err);
    }
    zero->num_kinds++;

    for (uint64_t i = 0; i < zero->num_params; i++) {
        const zero_param_t *param = &zero->params[i];
        char *full = io_path("%s.%s", name, param->name);
        fsdp_status_t status;

        if (full == NULL) {
            return no_memory(zero, err);
        }
        status =
            catalog_add_tensor(zero->cat, full, dtype, scalar ? 0 : param->ndim,
                               param->dims, NULL, NULL, err);
        free(full);
        FSDP_TRY(status);
    }

    return FSDP_OK;
}

static bool find_kind(const zero_t *zero, const char *name, uint32_t *kind_p)
{
    for (uint32_t k = 0; k < zero->num_kinds; k++) {
        if (strcmp(zero->kinds[k].name, name) == 0) {
            *kind_p = k;
            return true;
        }
    }

    return false;
}

static fsdp_status_t find_flat(zero_t *zero, const zero_file_t *file,
                               const char *name, pickle_ref_t ref, bool first,
                               zero_part_t *part, uint32_t *seen,
                               fsdp_error_t *err)
{
    torch_tensor_t tensor;
    bool scalar;
    uint32_t k;
    zero_flat_t flat;

    FSDP_TRY(zero_file_flat(file, ref, name, &flat, err));
    FSDP_TRY(torch_tensor(file->file.pickle, ref, name, &tensor, err));
    scalar = tensor.ndim == 0;
    if (tensor.ndim > 1) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s: the optimizer's %s is not flat",
                              file->file.path, name);
    }
    if (first) {
        FSDP_TRY(add_kind(zero, name, flat.dtype, scalar, err));
    }
    if (!find_kind(zero, name, &k) || zero->kinds[k].scalar != scalar ||
        zero->kinds[k].dtype != flat.dtype) {
        return zero_file_bad(file, err,
                             "the optimizer's %s is not as in the first group "
                             "of rank 0",
                             name);
    }

    part->flats[k] = flat;
    *seen |= 1u << k;
    return FSDP_OK;
}

fsdp_status_t zero_find_part(zero_t *zero, const zero_file_t *file,
                             pickle_ref_t state, pickle_ref_t fp32,
                             zero_part_t *part, fsdp_error_t *err)
{
    const pickle_t *pickle = file->file.pickle;
    pickle_ref_t dict = pickle_as_dict(pickle, state);
    bool first = zero->num_kinds == 0;
    uint32_t seen = 0;

    *part = (zero_part_t){0};
    FSDP_TRY(find_flat(zero, file, "fp32", fp32, first, part, &seen, err));
    for (uint64_t i = 0; i < pickle_count(pickle, dict); i++) {
        const char *key = pickle_str(pickle, pickle_key(pickle, dict, i), NULL);
        pickle_ref_t ref = pickle_item(pickle, dict, i);

        if (key != NULL && torch_is_tensor(pickle, ref)) {
            FSDP_TRY(find_flat(zero, file, key, ref, first, part, &seen, err));
        }
    }

    for (uint32_t k = 0; k < zero->num_kinds; k++) {
        if ((seen & 1u << k) == 0) {
            return zero_file_bad(file, err,
                                 "the optimizer's %s is missing in a group",
                                 zero->kinds[k].name);
        }
    }
    return FSDP_OK;
}

fsdp_status_t zero_add_piece(zero_t *zero, const zero_file_t *file,
                             uint32_t rank, uint32_t kind, uint64_t param,
                             uint64_t first, uint64_t count,
                             const zero_flat_t *flat, uint64_t at,
                             fsdp_error_t *err)
{
    unsigned size = fsdp_dtype_bits(flat->dtype) / 8;
    const catalog_piece_t piece = {
        .first = first,
        .count = count,
        .offset = flat->offset + at * size,
        .tensor = (uint32_t)(zero->kinds[kind].first + param),
        .file = file->index,
        .crc_first = CATALOG_NONE,
        .rank = rank,
        .box = CATALOG_NONE};

    if (at > flat->numel || count > flat->numel - at) {
        return zero_file_bad(file, err,
                             "tensor %s.%s: elements [%" PRIu64 ", %" PRIu64
                             ") are behind the end of the partition",
                             zero->kinds[kind].name, zero->params[param].name,
                             first, first + count);
    }
    return catalog_add_piece(zero->cat, &piece, err);
}

/* --- All of it ------------------------------------------------------------ */

fsdp_status_t zero_add_optim_values(zero_file_t *file, fsdp_error_t *err)
{
    static const char *const parts[] = {
        "base_optimizer_state", "single_partition_of_fp32_groups",
        "fp32_flat_groups",     "optimizer_state_dict",
        "param_slice_mappings", "group_paddings",
        "partition_count",      "param_alignment_paddings"};
    const pickle_t *pickle = file->file.pickle;
    pickle_ref_t root =
        pickle_as_dict(pickle, zero_file_get(file, zero_file_root(file),
                                             "optimizer_state_dict"));
    pickle_ref_t inner = zero_file_get(file, root, "base_optimizer_state");
    pickle_ref_t groups;

    for (uint64_t i = 0; i < pickle_count(pickle, root); i++) {
        const char *key = pickle_str(pickle, pickle_key(pickle, root, i), NULL);
        bool is_part = key == NULL;
        fsdp_status_t status;
        char *name;

        for (size_t p = 0; p < sizeof(parts) / sizeof(*parts) && !is_part;
             p++) {
            is_part = strcmp(key, parts[p]) == 0;
        }
        if (is_part) {
            continue;
        }
        name = io_path("optimizer.%s", key);
        status = (name != NULL)
                     ? zero_file_add_value(file, name,
                                           pickle_item(pickle, root, i), err)
                     : fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "no memory");
        free(name);
        FSDP_TRY(status);
    }

    if (inner == 0) {
        inner = zero_file_get(file, root, "optimizer_state_dict");
    }
    groups = zero_file_get(file, inner, "param_groups");
    return (groups != 0) ? zero_file_add_value(file, "optimizer.param_groups",
                                               groups, err)
                         : FSDP_OK;
}

/* The stage and the number of ranks, from the optimizer's file of rank 0. */
static fsdp_status_t look_at_optim(zero_t *zero, unsigned *stage_p,
                                   fsdp_error_t *err)
{
    catalog_t files; /* opened again later, for its partitions */
    zero_t look = *zero;
    zero_file_t file;
    pickle_ref_t optim;
    fsdp_status_t status;

    catalog_init(&files);
    files.root = zero->cat->root;
    files.path = zero->cat->path;
    look.cat = &files;
    status = zero_open_optim(&look, 0, &file, err);
    if (status != FSDP_OK) {
        catalog_free(&files);
        return status;
    }

    optim = zero_file_get(&file, zero_file_root(&file), "optimizer_state_dict");
    zero->world = look.world;
    if (zero_file_get(&file, optim, "fp32_flat_groups") != 0) {
        *stage_p = 3;
    } else if (zero_file_get(&file, optim, "single_partition_of_fp32_groups") !=
               0) {
        *stage_p = 2;
    } else {
        status = fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                                "%s: holds master weights in no form that is "
                                "known here",
                                file.file.path);
    }
    zero_file_close(&file);
    catalog_free(&files);
    return status;
}

/* The optimizer's files of one run. */
static fsdp_status_t choose_prefix(zero_t *zero, const listing_t *listing,
                                   uint64_t *optims_p, fsdp_error_t *err)
{
    unsigned kinds = 0;

    *optims_p = 0;
    for (size_t i = 0; i < 3; i++) {
        if (listing->optims[i] > 0) {
            zero->prefix = prefixes[i];
            *optims_p = listing->optims[i];
            kinds++;
        }
    }

    return (kinds <= 1)
               ? FSDP_OK
               : fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                "%s: has optimizer states of several types: "
                                "remove those of another run",
                                zero->cat->path);
}

static fsdp_status_t check_world(const zero_t *zero, const zero_file_t *model,
                                 uint64_t files, const char *what,
                                 fsdp_error_t *err)
{
    uint64_t world;

    if (pickle_u64(model->file.pickle,
                   zero_file_get(model, zero_file_root(model), "dp_world_size"),
                   &world) &&
        world != zero->world) {
        return zero_file_bad(model, err,
                             "is of %" PRIu64 " ranks, the optimizer's state "
                             "of %u",
                             world, zero->world);
    }
    if (files > zero->world) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: has %" PRIu64 " files of %s, its run had %u "
                              "ranks: remove those of another run",
                              zero->cat->path, files, what, zero->world);
    }

    return FSDP_OK;
}

/* Without ZeRO: the weights, and an optimizer's state as it is. */
static fsdp_status_t fill_model(zero_file_t *model, fsdp_error_t *err)
{
    const pickle_t *pickle = model->file.pickle;
    pickle_ref_t root = zero_file_root(model);
    pickle_ref_t config = zero_file_get(model, root, "ds_config");
    pickle_ref_t zero = zero_file_get(model, config, "zero_optimization");
    pickle_ref_t optimizer = zero_file_get(model, root, "optimizer");
    int64_t stage = 0;

    if (pickle_int(pickle, zero_file_get(model, zero, "stage"), &stage) &&
        stage > 0) {
        return zero_file_bad(model, err,
                             "is of ZeRO stage %" PRId64 ", but its files "
                             "*_optim_states.pt are missing",
                             stage);
    }
    if (optimizer != 0 && pickle_kind(pickle, optimizer) != PICKLE_NONE) {
        FSDP_TRY(zero_file_add_all(model, "optimizer.", optimizer, err));
    }

    return zero_file_add_module(model, NULL, err);
}

static fsdp_status_t fill(zero_t *zero, const listing_t *listing,
                          fsdp_error_t *err)
{
    uint64_t optims;
    unsigned stage = 0;
    fsdp_status_t status;
    zero_file_t model;

    FSDP_TRY(choose_prefix(zero, listing, &optims, err));
    if (optims > 0) {
        FSDP_TRY(look_at_optim(zero, &stage, err));
    }
    FSDP_TRY(zero_file_open(zero->cat,
                            (stage == 3 || listing->mp_models == 0)
                                ? "zero_pp_rank_0_mp_rank_00_model_states.pt"
                                : "mp_rank_00_model_states.pt",
                            &model, err));

    FSDP_TRY_GOTO(zero_file_add_client(&model, err), err_close);
    if (stage == 0) {
        status = fill_model(&model, err);
        goto err_close;
    }
    FSDP_TRY_GOTO(check_world(zero, &model, optims, "optimizer states", err),
                  err_close);
    FSDP_TRY_GOTO(zero_read_params(zero, &model, err), err_close);
    if (stage == 3) {
        FSDP_TRY_GOTO(
            check_world(zero, &model, listing->models, "model states", err),
            err_close);
        status = zero_add_stage3(zero, &model, err);
    } else {
        FSDP_TRY_GOTO(zero_file_add_module(&model, NULL, err), err_close);
        status = zero_add_stage12(zero, &model, err);
    }
err_close:
    zero_file_close(&model);
    return status;
}

/* The directory of the tag. */
static fsdp_status_t find_tag(const char *path, char **dir_p, fsdp_error_t *err)
{
    struct stat st;
    char name[256];
    unsigned num;

    *dir_p = NULL;
    if (stat(path, &st) != 0) {
        return fsdp_error_set(err, FSDP_ERR_IO, "%s: %m", path);
    }
    if (!S_ISDIR(st.st_mode)) {
        *dir_p = io_parent(path);
    } else if (is_tag(path)) {
        *dir_p = strdup(path);
    } else {
        *dir_p = tag_of(path);
        num = (*dir_p == NULL) ? count_tags(path, name) : 0;
        if (num > 1) {
            return fsdp_error_set(err, FSDP_ERR_NOT_FOUND,
                                  "%s: has %u checkpoints of DeepSpeed and no "
                                  "file 'latest' that says which: name one, "
                                  "such as %s",
                                  path, num, name);
        }
        if (num == 1) {
            *dir_p = io_path("%s/%s", path, name);
        }
    }

    return (*dir_p != NULL)
               ? FSDP_OK
               : fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);
}

static fsdp_status_t open_zero(const char *path, catalog_t *cat,
                               fsdp_error_t *err)
{
    zero_t zero = {.cat = cat, .prefix = ""};
    listing_t listing;
    fsdp_status_t status;
    char *dir;

    FSDP_TRY(find_tag(path, &dir, err));
    cat->root = catalog_strdup(cat, dir);
    free(dir);
    if (cat->root == NULL) {
        cat->root = cat->path;
        return no_memory(&zero, err);
    }
    if (!list(cat->root, &listing)) {
        return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot read: %m",
                              cat->root);
    }
    if (listing.parallel > 0) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s: is of a tensor, pipeline or expert parallel "
                              "model, which is not read here: make a universal "
                              "checkpoint of it",
                              cat->root);
    }

    cat->crc_zip = true;
    cat->shared = true;
    status = fill(&zero, &listing, err);
    free(zero.params);
    FSDP_TRY(status);
    return catalog_seal(cat, CATALOG_CHECK_ALL, err);
}

/* Each file of these names is read, but for those of another stage. */
static format_extra_t extra(const catalog_t *cat, const char *path,
                            uint64_t size)
{
    (void)cat;
    (void)size;
    return is_state(path) ? FORMAT_EXTRA : FORMAT_FOREIGN;
}

const format_t format_zero = {
    .id = FSDP_CKPT_ZERO,
    .name = "zero",
    .what = "a DeepSpeed ZeRO checkpoint",
    .probe = probe,
    .open = open_zero,
    .extra = extra,
};
