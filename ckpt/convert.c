/*
 * Converting: one driver behind convert, reshard and consolidate.
 *
 *     open the source → choose and name tensors → lay out the target → plan
 *     → make the files → copy → index → publish
 *
 * A dry run stops after the plan.
 */
#include "config.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/commit.h"
#include "ckpt/engine.h"
#include "ckpt/span.h"
#include "ckpt/target.h"
#include "ckpt/value.h"
#include "lib/util/check.h"
#include "lib/util/io.h"
#include "lib/util/json_text.h"
#include "lib/util/select.h"

#define SAFETENSORS_END ".safetensors"

/* A tensor that is wanted. */
typedef struct {
    uint64_t source; /* index into the source */
    char *name;      /* in the target */
    fsdp_dtype_t dtype;
} wanted_t;

typedef struct {
    const fsdp_ckpt_convert_config_t *config;
    const format_t *format;
    catalog_t src, dst;
    wanted_t *wanted; /* in the order of the source's writer */
    uint64_t num_wanted;
    uint64_t *map; /* source tensor of each target tensor */
    target_lists_t lists;
    plan_t plan;
    commit_t *commit;
    char *dir;       /* where the files are while they are written */
    char *parent;    /* of the target */
    bool only_model; /* names lose "model/" */
    bool is_dir;
} convert_t;

static double now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static fsdp_status_t no_memory(const convert_t *convert, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                          convert->config->target);
}

/* --- Choosing ------------------------------------------------------------------------ */

static select_t selection(const convert_t *convert)
{
    const fsdp_ckpt_convert_config_t *config = convert->config;

    return (select_t){.include = config->include,
                      .num_include = config->num_include,
                      .exclude = config->exclude,
                      .num_exclude = config->num_exclude,
                      .only_model = convert->only_model};
}

/* The name before rules are applied. */
static const char *plain_name(const convert_t *convert, const char *name)
{
    return (convert->only_model && select_is_model(name)) ? select_base(name)
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

    return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                          "%s: no tensor fits the pattern '%s'",
                          convert->src.path, pattern);
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
                : fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
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
        return no_memory(convert, err);
    }
    if (wanted->name[0] == '\0') {
        free(wanted->name);
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "tensor %s would have an empty name",
                              entry->name);
    }
    if (convert->config->cast && dtype_is_float(wanted->dtype)) {
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
        return no_memory(convert, err);
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

static fsdp_status_t choose_tensors(convert_t *convert, fsdp_error_t *err)
{
    const fsdp_ckpt_convert_config_t *config = convert->config;
    const catalog_t *src = &convert->src;
    uint64_t *ordered = calloc(src->num_tensors + 1, sizeof(*ordered));
    const select_t select = selection(convert);
    fsdp_status_t status = FSDP_OK;

    convert->wanted = calloc(src->num_tensors + 1, sizeof(*convert->wanted));
    if (ordered == NULL || convert->wanted == NULL) {
        status = no_memory(convert, err);
        goto err_free;
    }

    for (size_t i = 0; i < config->num_include; i++) {
        FSDP_TRY_GOTO(check_pattern(convert, config->include[i], err),
                      err_free);
    }
    for (uint64_t t = 0; t < src->num_tensors; t++) {
        ordered[src->tensors[t].order] = t;
    }
    for (uint64_t i = 0; i < src->num_tensors; i++) {
        if (select_match(&select, src->tensors[ordered[i]].name)) {
            FSDP_TRY_GOTO(want(convert, ordered[i], err), err_free);
        }
    }
    for (size_t i = 0; i < config->num_rename; i++) {
        FSDP_TRY_GOTO(check_rule(convert, i, err), err_free);
    }
    if (convert->num_wanted == 0) {
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

/* --- What is kept beside the tensors ---------------------------------------------------- */

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

/* The target tensor that holds a source tensor, or NULL. */
static const wanted_t *find_wanted(const convert_t *convert, uint64_t source)
{
    for (uint64_t i = 0; i < convert->num_wanted; i++) {
        if (convert->wanted[i].source == source) {
            return &convert->wanted[i];
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
            return no_memory(convert, err);
        }
        status = catalog_add_alias(&convert->dst, name, owner->name, err);
        free(name);
        FSDP_TRY(status);
    }

    return FSDP_OK;
}

/* Give the tensors that a value holds the names they have in the target.
 * @return false if one of them is left out. */
static bool rename_tensors(convert_t *convert, json_t *value)
{
    json_t *inner = json_object_get(value, "$tensor");
    const wanted_t *wanted;
    uint64_t tensor;
    const char *key;
    size_t i;

    if (json_is_string(inner)) {
        if (!catalog_find(&convert->src, json_string_value(inner), &tensor)) {
            return false;
        }
        wanted = find_wanted(convert, tensor);
        return wanted != NULL && json_string_set(inner, wanted->name) == 0;
    }

    json_object_foreach(value, key, inner)
    {
        if (!rename_tensors(convert, inner)) {
            return false;
        }
    }
    json_array_foreach(value, i, inner)
    {
        if (!rename_tensors(convert, inner)) {
            return false;
        }
    }

    return true;
}

static fsdp_status_t keep_value(convert_t *convert,
                                const catalog_value_t *value, fsdp_error_t *err)
{
    fsdp_status_t status;
    char *name, *text;
    json_t *json;

    FSDP_TRY(
        value_parse(value->name, value->json, strlen(value->json), &json, err));
    if (!rename_tensors(convert, json)) {
        json_decref(json);
        return FSDP_OK;
    }

    name = target_name(convert, value->name);
    text = value_text(json);
    status = (name != NULL && text != NULL)
                 ? catalog_add_value(&convert->dst, name, text, err)
                 : no_memory(convert, err);
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

static fsdp_status_t keep_rest(convert_t *convert, fsdp_error_t *err)
{
    const catalog_t *src = &convert->src;
    catalog_t *dst = &convert->dst;
    const char *meta = catalog_strdup(dst, src->meta);

    if (meta == NULL) {
        return no_memory(convert, err);
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

/* --- The target's shape ------------------------------------------------------------------ */

static bool ends_with(const char *text, const char *end)
{
    size_t size = strlen(text), end_size = strlen(end);

    return size >= end_size && strcmp(text + size - end_size, end) == 0;
}

static fsdp_status_t add_tensors(convert_t *convert, fsdp_error_t *err)
{
    const catalog_t *src = &convert->src;

    for (uint64_t i = 0; i < convert->num_wanted; i++) {
        const wanted_t *wanted = &convert->wanted[i];
        const catalog_tensor_t *from = &src->tensors[wanted->source];
        const char *unit =
            (from->unit != CATALOG_NONE) ? src->units[from->unit] : NULL;

        FSDP_TRY(catalog_add_tensor(&convert->dst, wanted->name, wanted->dtype,
                                    from->ndim, src->dims + from->dims_first,
                                    unit, NULL, err));
    }

    return FSDP_OK;
}

static fsdp_status_t shape_sharded(convert_t *convert, fsdp_error_t *err)
{
    catalog_t *dst = &convert->dst;
    uint32_t files, index;
    char name[32];

    dst->mesh = (convert->config->mesh.world > 0) ? convert->config->mesh
                                                  : convert->src.mesh;
    if (dst->mesh.world == 0) {
        dst->mesh = (fsdp_mesh_t){FSDP_STRATEGY_FULL, 1, 1, 1};
    }
    if (dst->mesh.shard == 0 || dst->mesh.replicas == 0 ||
        (uint64_t)dst->mesh.shard * dst->mesh.replicas != dst->mesh.world) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "%u ranks are not %u shards times %u replicas",
                              dst->mesh.world, dst->mesh.shard,
                              dst->mesh.replicas);
    }

    files = target_num_files(dst->mesh.world, convert->config->files);
    for (uint32_t f = 0; f < files; f++) {
        target_file_name(f, name);
        FSDP_TRY(catalog_add_file(dst, name, 0, &index, err));
    }
    return target_shard(dst, files, err);
}

/* Rank @a r of @a world has rows [r * c, (r + 1) * c) of dimension 0, c being
 * the number of rows over the world, rounded up: as torch.chunk cuts, and
 * FSDP2 and DTensor shard.  A scalar is rank 0's. */
static fsdp_status_t add_rows(catalog_t *dst, uint64_t index, uint32_t world,
                              fsdp_error_t *err)
{
    const catalog_tensor_t *tensor = &dst->tensors[index];
    uint64_t rows = (tensor->ndim > 0) ? dst->dims[tensor->dims_first] : 1;
    uint64_t most = rows / world + (rows % world != 0);
    uint64_t row = (rows > 0) ? tensor->numel / rows : 0;

    for (uint64_t r = 0; r < world && r * most < rows && row > 0; r++) {
        uint64_t begin = r * most;
        uint64_t end = (rows - begin < most) ? rows : begin + most;
        const catalog_piece_t piece = {.first = begin * row,
                                       .count = (end - begin) * row,
                                       .tensor = (uint32_t)index,
                                       .file = (uint32_t)r,
                                       .rank = (uint32_t)r,
                                       .crc_first = CATALOG_NONE,
                                       .box = CATALOG_NONE};

        FSDP_TRY(catalog_add_piece(dst, &piece, err));
    }

    return FSDP_OK;
}

/* A file for each rank, rows of each tensor in it. */
static fsdp_status_t shape_rows(convert_t *convert, fsdp_error_t *err)
{
    catalog_t *dst = &convert->dst;
    uint32_t world = (convert->config->mesh.world > 0)
                         ? convert->config->mesh.world
                         : convert->src.mesh.world;
    uint32_t index;
    char name[32];

    dst->crc_zip = true;
    world = (world > 0) ? world : 1;
    for (uint32_t r = 0; r < world; r++) {
        snprintf(name, sizeof(name), "__%" PRIu32 "_0.distcp", r);
        FSDP_TRY(catalog_add_file(dst, name, 0, &index, err));
    }
    for (uint64_t t = 0; t < dst->num_tensors; t++) {
        FSDP_TRY(add_rows(dst, t, world, err));
    }
    return FSDP_OK;
}

static fsdp_status_t add_whole(catalog_t *dst, uint64_t tensor, uint32_t file,
                               fsdp_error_t *err)
{
    const catalog_piece_t piece = {.count = dst->tensors[tensor].numel,
                                   .tensor = (uint32_t)tensor,
                                   .file = file,
                                   .crc_first = CATALOG_NONE,
                                   .box = CATALOG_NONE};

    return catalog_add_piece(dst, &piece, err);
}

/* The file of each tensor when none is to be larger than @a most bytes, unless
 * it holds one tensor only.  @return the number of files. */
static uint32_t divide(const catalog_t *dst, uint64_t most, uint32_t *file_of)
{
    uint64_t used = 0;
    uint32_t file = 0;

    for (uint64_t t = 0; t < dst->num_tensors; t++) {
        uint64_t bytes = dst->tensors[t].bytes;

        if (most > 0 && used > 0 && (used > most || bytes > most - used)) {
            file++;
            used = 0;
        }
        file_of[t] = file;
        used += bytes;
    }

    return file + 1;
}

/* One file, or several of at most shard_size bytes, of whole tensors. */
static fsdp_status_t shape_whole(convert_t *convert, const char *single,
                                 fsdp_error_t *err)
{
    catalog_t *dst = &convert->dst;
    uint32_t *file_of = calloc(dst->num_tensors + 1, sizeof(*file_of));
    fsdp_status_t status = FSDP_OK;
    uint32_t files, index;
    char name[64];

    if (file_of == NULL) {
        return no_memory(convert, err);
    }

    files = divide(dst, convert->config->shard_size, file_of);
    for (uint32_t f = 0; f < files; f++) {
        snprintf(name, sizeof(name), "model-%05u-of-%05u" SAFETENSORS_END,
                 f + 1, files);
        FSDP_TRY_GOTO(
            catalog_add_file(dst, (files == 1) ? single : name, 0, &index, err),
            err_free);
    }
    for (uint64_t t = 0; t < dst->num_tensors; t++) {
        FSDP_TRY_GOTO(add_whole(dst, t, file_of[t], err), err_free);
    }
err_free:
    free(file_of);
    return status;
}

/* A unique name for this attempt. */
static void make_id(char id[48])
{
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    snprintf(id, 48, "%ld-%llx%05lx", (long)getpid(),
             (unsigned long long)ts.tv_sec, ts.tv_nsec / 1000);
}

static fsdp_status_t map_tensors(convert_t *convert, fsdp_error_t *err)
{
    const catalog_t *dst = &convert->dst;

    convert->map = calloc(dst->num_tensors + 1, sizeof(*convert->map));
    if (convert->map == NULL) {
        return no_memory(convert, err);
    }

    for (uint64_t t = 0; t < dst->num_tensors; t++) {
        convert->map[t] = convert->wanted[dst->tensors[t].order].source;
    }
    return FSDP_OK;
}

/* @param single  Name of the file while it is written, if there is one only. */
static fsdp_status_t shape_target(convert_t *convert, const char *single,
                                  fsdp_error_t *err)
{
    catalog_t *dst = &convert->dst;

    dst->format = convert->format->id;
    dst->path = catalog_strdup(dst, convert->config->target);
    if (dst->path == NULL) {
        dst->path = "";
        return no_memory(convert, err);
    }

    FSDP_TRY(add_tensors(convert, err));
    FSDP_TRY(keep_rest(convert, err));
    if (convert->format->id == FSDP_CKPT_HDF5) {
        FSDP_TRY(shape_sharded(convert, err));
    } else if (convert->format->id == FSDP_CKPT_DCP) {
        FSDP_TRY(shape_rows(convert, err));
    } else {
        FSDP_TRY(shape_whole(convert, single, err));
    }
    FSDP_TRY(catalog_seal(dst, CATALOG_CHECK_COVER, err));
    FSDP_TRY(
        target_lists(dst, convert->format->has_crcs, &convert->lists, err));
    FSDP_TRY(map_tensors(convert, err));
    return plan_convert(&convert->plan, &convert->src, dst, convert->map, err);
}

/* --- config.json ---------------------------------------------------------------------------- */

/* The model's configuration as Hugging Face has it, if the source's metadata
 * holds one: text to be freed, or NULL. */
static char *config_text(const convert_t *convert)
{
    json_t *meta = json_loads(convert->src.meta, 0, NULL);
    json_t *user = json_object_get(meta, "user");
    json_t *config = json_object_get(user, "config");
    char *text = NULL, *line = NULL;

    if (json_is_string(json_object_get(config, "model_type"))) {
        text = json_dumps(config, JSON_INDENT(2) | json_text_digits(config));
        line = (text != NULL) ? io_path("%s\n", text) : NULL;
    }
    free(text);
    json_decref(meta);
    return line;
}

/* Beside the weights, unless it is there already. */
static fsdp_status_t write_config(const convert_t *convert, const char *dir,
                                  fsdp_error_t *err)
{
    char *text = config_text(convert), *path = io_path("%s/config.json", dir);
    fsdp_status_t status = FSDP_OK;

    if (path == NULL) {
        status = no_memory(convert, err);
    } else if (text != NULL && access(path, F_OK) != 0) {
        status = io_replace_file(path, text, strlen(text), err);
    }
    free(text);
    free(path);
    return status;
}

/* A config.json of another model beside our file would be taken for ours. */
static fsdp_status_t check_beside(const convert_t *convert, fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;
    json_t *ours, *theirs;
    char *text, *path;

    if (convert->is_dir || convert->format->id != FSDP_CKPT_SAFETENSORS) {
        return FSDP_OK;
    }

    text = config_text(convert);
    path = io_path("%s/config.json", convert->parent);
    if (text != NULL && path != NULL && access(path, F_OK) == 0) {
        ours = json_loads(text, 0, NULL);
        theirs = json_load_file(path, 0, NULL);
        if (!json_equal(ours, theirs)) {
            status = fsdp_error_set(err, FSDP_ERR_EXISTS,
                                    "%s: is that of another model and would "
                                    "be taken for the one of %s: choose "
                                    "another directory",
                                    path, convert->config->target);
        }
        json_decref(ours);
        json_decref(theirs);
    }
    free(text);
    free(path);
    return status;
}

/* --- Writing --------------------------------------------------------------------------------- */

static fsdp_status_t create_files(convert_t *convert, fsdp_error_t *err)
{
    for (uint32_t f = 0; f < convert->dst.num_files; f++) {
        FSDP_TRY(target_create(convert->format, &convert->dst, f,
                               &convert->lists, convert->dir, err));
    }

    return FSDP_OK;
}

static fsdp_status_t finish_files(convert_t *convert, fsdp_error_t *err)
{
    const target_lists_t *lists = &convert->lists;

    for (uint32_t f = 0; f < convert->dst.num_files; f++) {
        FSDP_TRY(engine_finish_file(
            &convert->dst, f, lists->pieces + lists->first[f],
            lists->first[f + 1] - lists->first[f], convert->dir, err));
    }

    return FSDP_OK;
}

/* What was read may be under checksums that cover more than one piece. */
static fsdp_status_t check_spans(const convert_t *convert,
                                 engine_result_t *result, fsdp_error_t *err)
{
    bool *used = calloc(convert->src.num_tensors + 1, sizeof(*used));
    fsdp_status_t status;

    if (used == NULL) {
        return no_memory(convert, err);
    }

    for (uint64_t i = 0; i < convert->num_wanted; i++) {
        used[convert->wanted[i].source] = true;
    }
    status = span_check(&convert->src, used, NULL, NULL, &result->bytes_read,
                        err);
    free(used);
    return status;
}

static fsdp_status_t fill(convert_t *convert, engine_result_t *result,
                          fsdp_error_t *err)
{
    const engine_job_t job = {.plan = &convert->plan,
                              .dst = &convert->dst,
                              .dst_dir = convert->dir,
                              .options = convert->config->engine};

    FSDP_TRY(create_files(convert, err));
    FSDP_TRY(plan_place(&convert->plan, err));
    FSDP_TRY(engine_run(&job, result, err));
    FSDP_TRY(check_spans(convert, result, err));
    FSDP_TRY(finish_files(convert, err));
    if (convert->is_dir && convert->format->finish != NULL) {
        FSDP_TRY(convert->format->finish(&convert->dst, convert->dir, err));
    }
    if (convert->is_dir && convert->format->id == FSDP_CKPT_SAFETENSORS) {
        FSDP_TRY(write_config(convert, convert->dir, err));
    }

    return FSDP_OK;
}

static fsdp_status_t write_target(convert_t *convert, engine_result_t *result,
                                  fsdp_error_t *err)
{
    fsdp_status_t status = fill(convert, result, err);

    if (status == FSDP_OK) {
        status = commit_publish(convert->commit, false, err);
    }
    status = commit_end(convert->commit, status, err);
    convert->commit = NULL;
    if (status == FSDP_OK && !convert->is_dir &&
        convert->format->id == FSDP_CKPT_SAFETENSORS) {
        status = write_config(convert, convert->parent, err);
    }

    return status;
}

/* --- Beginning --------------------------------------------------------------------------------- */

/* The directory and the last component of the target's path. */
static fsdp_status_t split_target(convert_t *convert, char **name_p,
                                  fsdp_error_t *err)
{
    size_t size = strlen(convert->config->target);
    const char *target = convert->config->target;
    const char *slash;

    while (size > 1 && target[size - 1] == '/') {
        size--;
    }
    slash = memrchr(target, '/', size);
    if (slash == NULL) {
        convert->parent = strdup(".");
        *name_p = strndup(target, size);
    } else {
        convert->parent = (slash == target)
                              ? strdup("/")
                              : strndup(target, (size_t)(slash - target));
        *name_p = strndup(slash + 1, size - (size_t)(slash + 1 - target));
    }

    return (convert->parent != NULL && *name_p != NULL)
               ? FSDP_OK
               : no_memory(convert, err);
}

static fsdp_status_t check_config(convert_t *convert, fsdp_error_t *err)
{
    const fsdp_ckpt_convert_config_t *config = convert->config;
    bool is_safetensors;
    struct stat st;

    if (config->size != sizeof(*config) || config->source == NULL ||
        config->target == NULL || config->target[0] == '\0') {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "a conversion needs a source and a target");
    }

    convert->format = format_get(config->format);
    if (convert->format == NULL || convert->format->create == NULL) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "this format cannot be written");
    }
    is_safetensors = convert->format->id == FSDP_CKPT_SAFETENSORS;
    convert->only_model = config->only_model || is_safetensors;
    convert->is_dir = is_safetensors
                          ? !ends_with(config->target, SAFETENSORS_END)
                          : convert->format->is_dir;
    if (!is_safetensors && config->shard_size > 0) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "a shard size is for safetensors only");
    }
    if (is_safetensors && config->shard_size > 0 && !convert->is_dir) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "%s: safetensors in shards are a directory: "
                              "give its name, without " SAFETENSORS_END,
                              config->target);
    }
    if (config->cast && !dtype_is_float(config->cast_dtype)) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "no cast to %s: only to f32, bf16, f16 and f64",
                              fsdp_dtype_name(config->cast_dtype));
    }
    if (lstat(config->target, &st) == 0) {
        return fsdp_error_set(err, FSDP_ERR_EXISTS,
                              "%s: is there already; it is not replaced",
                              config->target);
    }

    return FSDP_OK;
}

/* Bytes that the target will take, with room for what describes it. */
static uint64_t estimate(const convert_t *convert)
{
    const catalog_t *dst = &convert->dst;
    uint64_t bytes = dst->num_pieces * 2048 + dst->num_tensors * 512 +
                     (uint64_t)dst->num_files * 65536;

    for (uint64_t t = 0; t < dst->num_tensors; t++) {
        bytes += dst->tensors[t].bytes;
    }

    return bytes;
}

static fsdp_status_t begin_commit(convert_t *convert, const char *id,
                                  fsdp_error_t *err)
{
    const commit_config_t begin = {.target = convert->config->target,
                                   .id = id,
                                   .is_dir = convert->is_dir,
                                   .world = 1,
                                   .bytes = estimate(convert),
                                   .files = convert->dst.num_files + 4};

    FSDP_TRY(commit_begin(&begin, &convert->commit, err));
    convert->dir = strdup(convert->is_dir ? commit_path(convert->commit)
                                          : convert->parent);
    return (convert->dir != NULL) ? FSDP_OK : no_memory(convert, err);
}

static void convert_free(convert_t *convert)
{
    for (uint64_t i = 0; i < convert->num_wanted; i++) {
        free(convert->wanted[i].name);
    }
    free(convert->wanted);
    free(convert->map);
    free(convert->dir);
    free(convert->parent);
    plan_free(&convert->plan);
    target_lists_free(&convert->lists);
    catalog_free(&convert->src);
    catalog_free(&convert->dst);
}

/* Everything up to the plan. */
static fsdp_status_t prepare(convert_t *convert, const char *id,
                             fsdp_error_t *err)
{
    char *name = NULL, *single = NULL;
    fsdp_status_t status;

    FSDP_TRY_GOTO(check_config(convert, err), err_free);
    FSDP_TRY_GOTO(split_target(convert, &name, err), err_free);
    single = convert->is_dir ? strdup("model" SAFETENSORS_END)
                             : io_path(".tmp-%s-%s", name, id);
    if (single == NULL) {
        status = no_memory(convert, err);
        goto err_free;
    }

    convert->src.recipe = convert->config->recipe;
    FSDP_TRY_GOTO(format_open(convert->config->source, &convert->src, err),
                  err_free);
    FSDP_TRY_GOTO(choose_tensors(convert, err), err_free);
    status = shape_target(convert, single, err);
err_free:
    free(name);
    free(single);
    return status;
}

fsdp_status_t fsdp_ckpt_convert(const fsdp_ckpt_convert_config_t *config,
                                fsdp_ckpt_convert_result_t *result_p,
                                fsdp_error_t *err)
{
    convert_t convert = {.config = config};
    engine_result_t engine = {0};
    uint64_t bytes_free = 0;
    fsdp_status_t status;
    double start = now();
    char id[48];

    make_id(id);
    catalog_init(&convert.src);
    catalog_init(&convert.dst);
    FSDP_TRY_GOTO(prepare(&convert, id, err), err_free);
    FSDP_TRY_GOTO(commit_preflight(convert.parent, 0, 0, &bytes_free, err),
                  err_free);
    FSDP_TRY_GOTO(check_beside(&convert, err), err_free);
    if (!config->dry_run) {
        FSDP_TRY_GOTO(begin_commit(&convert, id, err), err_free);
        FSDP_TRY_GOTO(write_target(&convert, &engine, err), err_free);
    }

    if (result_p != NULL) {
        *result_p = (fsdp_ckpt_convert_result_t){
            .tensors = convert.dst.num_tensors,
            .files = convert.dst.num_files,
            .copies = convert.plan.runs,
            .bytes_read = convert.plan.bytes_read,
            .bytes_written = convert.plan.bytes_written,
            .bytes_free = bytes_free,
            .seconds = now() - start,
        };
    }
err_free:
    if (convert.commit != NULL) {
        status = commit_end(convert.commit, status, err);
    }
    convert_free(&convert);
    return status;
}
