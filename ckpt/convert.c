/*
 * Converting: one driver behind convert, reshard and consolidate.
 *
 *     open the source → choose and name tensors → lay out the target → plan
 *     → make the files → copy → index → publish
 *
 * A dry run stops after the plan.
 */
#include "config.h"

#include "ckpt/convert.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/engine.h"
#include "ckpt/format/safetensors.h"
#include "ckpt/format/torch.h"
#include "ckpt/link.h"
#include "ckpt/lustre.h"
#include "ckpt/span.h"
#include "lib/util/check.h"
#include "lib/util/clock.h"
#include "lib/util/io.h"
#include "lib/util/json_text.h"
#include "lib/util/text.h"

#define ID_MOST 128

/* Files that are worth to be spread over storage targets: fewer and larger. */
#define FEW_FILES  8
#define LARGE_FILE (1ull << 30)

fsdp_status_t convert_no_memory(const convert_t *convert, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                          convert->config->target);
}

/* --- config.json ---------------------------------------------------------- */

/* The model's configuration as Hugging Face has it, if the source's metadata
 * holds one: text to be freed, or NULL. */
static char *config_text(const convert_t *convert)
{
    json_t *meta = json_text_parse(convert->src.meta);
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
        status = convert_no_memory(convert, err);
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

/* --- Writing -------------------------------------------------------------- */

/* Of all ranks; the engine's thread and the one that waits for others are the
 * same. */
static bool show_all(void *arg)
{
    const convert_t *convert = arg;
    const fsdp_ckpt_engine_t *engine = &convert->config->engine;

    return engine->progress == NULL ||
           engine->progress((convert->commit != NULL)
                                ? commit_done_by_all(convert->commit)
                                : 0,
                            convert->total, engine->progress_arg);
}

static bool show_progress(uint64_t done, uint64_t total, void *arg)
{
    const convert_t *convert = arg;

    (void)total;
    return commit_work(convert->commit, done) && show_all(arg);
}

static fsdp_status_t finish_files(convert_t *convert, fsdp_error_t *err)
{
    const target_lists_t *lists = &convert->lists;

    for (uint32_t f = 0; f < convert->dst.num_files; f++) {
        (void)commit_work(convert->commit, 0);
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
    const catalog_t *src = &convert->src;
    bool *used = calloc(src->num_tensors + 1, sizeof(*used));
    bool *wanted = calloc(src->num_spans + 1, sizeof(*wanted));
    fsdp_status_t status;

    if (used == NULL || wanted == NULL) {
        status = convert_no_memory(convert, err);
        goto err_free;
    }

    for (uint64_t i = 0; i < convert->num_wanted; i++) {
        used[convert->wanted[i].source] = true;
    }
    span_mark(src, used, wanted);
    span_keep_part(src, wanted, convert->rank, convert->world);
    span_drop_passed(src, &convert->spans, wanted);
    status = span_check(src, wanted, convert->config->engine.jobs, NULL, NULL,
                        &result->bytes_read, err);
err_free:
    free(wanted);
    free(used);
    return status;
}

static void note_unshared(const convert_t *convert, int error)
{
    char text[128];

    if (convert->config->link && convert->shared == 0 &&
        convert->config->note != NULL) {
        snprintf(text, sizeof(text), "note: 0 bytes shared: %s",
                 link_why(error));
        convert->config->note(text, convert->config->note_arg);
    }
}

/* Bytes that the target will take, with room for what describes it. */
static uint64_t estimate(const convert_t *convert)
{
    const catalog_t *dst = &convert->dst;
    uint64_t bytes = dst->num_pieces * 2048 + dst->num_tensors * 512 +
                     (uint64_t)dst->num_files * 65536;

    for (uint64_t t = 0; t < dst->num_tensors && !convert->config->shows; t++) {
        bytes += dst->tensors[t].bytes;
    }

    return bytes;
}

/* @param path  A file of the target, or the directory that it is to be in. */
static void note_narrow(const convert_t *convert, const char *path)
{
    uint32_t files = convert->dst.num_files;
    char *text;

    if (convert->config->note == NULL || convert->rank > 0 || files == 0 ||
        files >= FEW_FILES || estimate(convert) / files < LARGE_FILE ||
        !lustre_is_narrow(path)) {
        return;
    }

    text = io_path("note: %s: Lustre keeps each of these large files on one "
                   "storage target: 'lfs setstripe -c 8 %s' before they are "
                   "written spreads them",
                   convert->parent, convert->parent);
    if (text != NULL) {
        convert->config->note(text, convert->config->note_arg);
    }
    free(text);
}

static fsdp_status_t create_files(convert_t *convert, fsdp_error_t *err)
{
    char *path;

    FSDP_TRY(convert_create_files(convert, err));
    path = io_path("%s/%s", convert->dir, convert->dst.files[0].path);
    if (path != NULL) {
        note_narrow(convert, path);
    }
    free(path);
    return FSDP_OK;
}

static fsdp_status_t fill(convert_t *convert, engine_result_t *result,
                          fsdp_error_t *err)
{
    const fsdp_ckpt_convert_config_t *config = convert->config;
    engine_job_t job = {.plan = &convert->plan,
                        .dst = &convert->dst,
                        .dst_dir = convert->dir,
                        .link = config->link,
                        .spans = &convert->spans,
                        .options = config->engine};

    if (config->shows) {
        return convert_show(convert, err);
    }
    FSDP_TRY(create_files(convert, err));
    FSDP_TRY(plan_place(&convert->plan, err));
    FSDP_TRY(engine_sums_init(&convert->spans, convert->src.num_spans, err));
    if (convert->world > 1) {
        FSDP_TRY(engine_sums_init(&convert->sums, convert->src.num_crcs, err));
        convert->total = plan_total(&convert->plan);
        job.sums = &convert->sums;
        job.options.progress = show_progress;
        job.options.progress_arg = convert;
        FSDP_TRY(
            plan_keep_part(&convert->plan, convert->rank, convert->world, err));
    }
    FSDP_TRY(engine_run(&job, result, err));
    convert->shared = result->bytes_shared;
    FSDP_TRY(rules_check(&convert->stages, &convert->config->engine,
                         &result->bytes_read, err));
    FSDP_TRY(check_spans(convert, result, err));
    FSDP_TRY(convert_share_part(convert, err));
    if (convert->rank > 0) {
        return FSDP_OK;
    }

    note_unshared(convert, result->link_error);
    FSDP_TRY(finish_files(convert, err));
    if (convert->format->finish != NULL) {
        FSDP_TRY(convert->format->finish(&convert->dst, convert->dir, err));
    }
    FSDP_TRY(target_sync_all(&convert->dst, NULL, config->engine.jobs,
                             convert->dir, err));
    if (convert->is_dir && convert->format->id == FSDP_CKPT_SAFETENSORS) {
        FSDP_TRY(write_config(convert, convert->dir, err));
    }

    return FSDP_OK;
}

static fsdp_status_t write_target(convert_t *convert, engine_result_t *result,
                                  fsdp_error_t *err)
{
    bool is_first = convert->rank == 0;
    fsdp_status_t status = fill(convert, result, err);

    if (status == FSDP_OK) {
        status = is_first ? commit_publish(convert->commit, false, err)
                          : commit_wait_published(convert->commit, err);
    }
    status = commit_end(convert->commit, status, err);
    convert->commit = NULL;
    if (status == FSDP_OK && is_first && !convert->is_dir &&
        convert->format->id == FSDP_CKPT_SAFETENSORS) {
        status = write_config(convert, convert->parent, err);
    }

    return status;
}

/* --- Beginning ------------------------------------------------------------ */

/* A unique name for this attempt. */
static void make_id(const convert_t *convert, char id[ID_MOST])
{
    struct timespec ts;

    if (convert->world > 1) {
        snprintf(id, ID_MOST, "%s", convert->config->job_id);
        return;
    }

    clock_gettime(CLOCK_REALTIME, &ts);
    snprintf(id, ID_MOST, "%ld-%llx%05lx", (long)getpid(),
             (unsigned long long)ts.tv_sec, ts.tv_nsec / 1000);
}

/* The directory and the last component of the target's path. */
static fsdp_status_t split_target(convert_t *convert, char **name_p,
                                  fsdp_error_t *err)
{
    size_t size = strlen(convert->config->target);
    char *target = strdup(convert->config->target);

    if (target == NULL) {
        return convert_no_memory(convert, err);
    }
    while (size > 1 && target[size - 1] == '/') {
        target[--size] = '\0';
    }
    convert->parent = io_parent(target);
    *name_p = strdup(io_base(target));
    free(target);

    return (convert->parent != NULL && *name_p != NULL)
               ? FSDP_OK
               : convert_no_memory(convert, err);
}

static bool has_job_id(const fsdp_ckpt_convert_config_t *config)
{
    return config->job_id != NULL && config->job_id[0] != '\0' &&
           strlen(config->job_id) < ID_MOST &&
           strchr(config->job_id, '/') == NULL;
}

/* All that lies in a sharded checkpoint of ours belongs to it: anything more is
 * what fsdp-verify finds. */
static fsdp_status_t check_outside(const convert_t *convert, fsdp_error_t *err)
{
    char *parent, *root;
    size_t size;
    bool inside;

    if (convert->src.format != FSDP_CKPT_HDF5) {
        return FSDP_OK;
    }

    parent = realpath(convert->parent, NULL);
    root = realpath(convert->src.root, NULL);
    size = (root != NULL) ? strlen(root) : 0;
    inside = parent != NULL && root != NULL &&
             strncmp(parent, root, size) == 0 &&
             (parent[size] == '/' || parent[size] == '\0');
    free(parent);
    free(root);

    return inside ? fsdp_error_set(err, FSDP_ERR_CONFIG,
                                   "%s: lies inside the source, which is only "
                                   "read: choose another place",
                                   convert->config->target)
                  : FSDP_OK;
}

/* What the target's format has no place for. */
static fsdp_status_t check_format(const convert_t *convert, fsdp_error_t *err)
{
    const fsdp_ckpt_convert_config_t *config = convert->config;
    const format_t *format = convert->format;

    if (format == NULL || format->create == NULL) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "this format cannot be written");
    }
    if (config->tensor_parallel > 1 && !format->has_boxes) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "%s holds no boxes of tensors, which this layout "
                              "needs: choose dcp",
                              format->name);
    }
    if (config->shows && config->world > 1) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "a file that only shows others is written by one "
                              "process");
    }
    if (config->shows && (format->id != FSDP_CKPT_HDF5_FILE || config->cast)) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "only one HDF5 file can show tensors that stay "
                              "where they are, and only as they are: choose "
                              "hdf5-file, without a cast");
    }
    if (format->id != FSDP_CKPT_SAFETENSORS && config->shard_size > 0) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "a shard size is for safetensors only");
    }

    return FSDP_OK;
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
    if (convert->rank >= convert->world ||
        (convert->world > 1 && !has_job_id(config))) {
        return fsdp_error_set(
            err, FSDP_ERR_INVALID_PARAM,
            "a conversion by several ranks needs the rank and "
            "an identifier that all have");
    }

    convert->format = format_get(config->format);
    FSDP_TRY(check_format(convert, err));
    is_safetensors = convert->format->id == FSDP_CKPT_SAFETENSORS;
    convert->is_dir = is_safetensors
                          ? !text_ends_with(config->target, SAFETENSORS_END)
                          : convert->format->is_dir;
    if (config->shard_size > 0 && !convert->is_dir) {
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

/* Or, where @a status says that this rank has failed, let the others know. */
static fsdp_status_t begin_commit(convert_t *convert, const char *id,
                                  fsdp_status_t status, fsdp_error_t *err)
{
    const fsdp_ckpt_convert_config_t *config = convert->config;
    commit_config_t begin = {.target = config->target,
                             .id = id,
                             .is_dir = convert->is_dir,
                             .rank = convert->rank,
                             .world = convert->world,
                             .deadline = config->deadline,
                             .meet = true,
                             .go_on = show_all,
                             .arg = convert};

    if (status != FSDP_OK) {
        return (status == FSDP_ERR_INVALID_PARAM)
                   ? status
                   : commit_tell(&begin, status, err);
    }

    begin.bytes = estimate(convert);
    begin.files = convert->dst.num_files + 4;
    if (convert->world > 1) {
        begin.files += 4 * (uint64_t)convert->world + 4;
    }
    FSDP_TRY(commit_begin(&begin, &convert->commit, err));
    convert->dir = strdup(convert->is_dir ? commit_path(convert->commit)
                                          : convert->parent);
    return (convert->dir != NULL) ? FSDP_OK : convert_no_memory(convert, err);
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
    engine_sums_free(&convert->sums);
    engine_sums_free(&convert->spans);
    target_lists_free(&convert->lists);
    cut_free(&convert->cut);
    rules_stages_free(&convert->stages);
    catalog_free(&convert->src);
    catalog_free(&convert->dst);
}

static fsdp_status_t apply_rules(convert_t *convert, fsdp_error_t *err)
{
    const fsdp_ckpt_convert_config_t *config = convert->config;
    const rules_use_t use = {.rules = config->rules,
                             .num_rules = config->num_rules,
                             .set = config->set,
                             .num_set = config->num_set,
                             .only_model = config->only_model,
                             .note = config->note,
                             .note_arg = config->note_arg};

    FSDP_TRY(rules_use(&use, &convert->src, &convert->stages, err));
    FSDP_TRY(cut_init(&convert->cut, config->include, config->num_include,
                      &convert->src, err));
    return cut_use(&convert->cut, &convert->src, &convert->stages, err);
}

/* What is to be known of the source, or of the target. */
static void pass_notes(const convert_t *convert, const catalog_t *cat)
{
    const fsdp_ckpt_convert_config_t *config = convert->config;

    for (uint64_t n = 0; config->note != NULL && n < cat->num_notes; n++) {
        char *text = io_path("note: %s", cat->notes[n]);

        config->note((text != NULL) ? text : "note", config->note_arg);
        free(text);
    }
    if (config->note != NULL && cat->recipe != NULL && !cat->recipe_used) {
        config->note("note: the source has no flat parameters: the recipe was "
                     "not needed",
                     config->note_arg);
    }
}

/* Everything up to the plan. */
static fsdp_status_t prepare(convert_t *convert, const char *id,
                             uint64_t *bytes_free_p, fsdp_error_t *err)
{
    char *name = NULL, *single = NULL;
    fsdp_status_t status;

    FSDP_TRY_GOTO(check_config(convert, err), err_free);
    FSDP_TRY_GOTO(split_target(convert, &name, err), err_free);
    single = convert->is_dir ? strdup("model" SAFETENSORS_END)
                             : io_path(".tmp-%s-%s", name, id);
    if (single == NULL) {
        status = convert_no_memory(convert, err);
        goto err_free;
    }

    convert->src.recipe = convert->config->recipe;
    FSDP_TRY_GOTO(format_open(convert->config->source, &convert->src, err),
                  err_free);
    FSDP_TRY_GOTO(torch_dir_note(&convert->src, err), err_free);
    pass_notes(convert, &convert->src);
    FSDP_TRY_GOTO(check_outside(convert, err), err_free);
    FSDP_TRY_GOTO(apply_rules(convert, err), err_free);
    FSDP_TRY_GOTO(convert_choose(convert, err), err_free);
    FSDP_TRY_GOTO(convert_shape(convert, single, err), err_free);
    pass_notes(convert, &convert->dst);
    FSDP_TRY_GOTO(commit_preflight(convert->parent, 0, 0, bytes_free_p, err),
                  err_free);
    status = check_beside(convert, err);
err_free:
    free(name);
    free(single);
    return status;
}

fsdp_status_t fsdp_ckpt_convert(const fsdp_ckpt_convert_config_t *config,
                                fsdp_ckpt_convert_result_t *result_p,
                                fsdp_error_t *err)
{
    convert_t convert = {.config = config, .world = 1};
    engine_result_t engine = {0};
    uint64_t bytes_free = 0;
    fsdp_status_t status;
    double start = clock_now();
    char id[ID_MOST];

    if (config->size == sizeof(*config) && config->world > 1) {
        convert.rank = config->rank;
        convert.world = config->world;
    }
    make_id(&convert, id);
    catalog_init(&convert.src);
    catalog_init(&convert.dst);
    status = prepare(&convert, id, &bytes_free, err);
    if (!config->dry_run) {
        status = begin_commit(&convert, id, status, err);
    } else if (status == FSDP_OK) {
        note_narrow(&convert, convert.parent);
    }
    if (!config->dry_run && status == FSDP_OK) {
        status = write_target(&convert, &engine, err);
    }
    if (status != FSDP_OK) {
        goto err_free;
    }

    if (config->shows) {
        convert.plan.runs = convert.plan.bytes_read = 0;
        convert.plan.bytes_written = convert.dst.files[0].size;
    }
    if (result_p != NULL) {
        *result_p = (fsdp_ckpt_convert_result_t){
            .tensors = convert.dst.num_tensors,
            .files = convert.dst.num_files,
            .copies = convert.plan.runs,
            .bytes_read = convert.plan.bytes_read,
            .bytes_written = convert.plan.bytes_written,
            .bytes_needed = estimate(&convert),
            .bytes_free = bytes_free,
            .seconds = clock_now() - start,
            .bytes_shared = convert.shared,
        };
    }
err_free:
    if (convert.commit != NULL) {
        status = commit_end(convert.commit, status, err);
    }
    convert_free(&convert);
    return status;
}
