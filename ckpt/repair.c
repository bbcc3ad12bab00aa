/*
 * Repair: build the index and the manifest of a checkpoint anew from its data
 * files, which are only read.
 *
 * What is rebuilt is written beside the checkpoint, and moved into it when it
 * is complete: a repair that is interrupted leaves what was there before.
 */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/engine.h"
#include "ckpt/files.h"
#include "ckpt/format.h"
#include "ckpt/format/hdf5_check.h"
#include "ckpt/format/hdf5_recover.h"
#include "ckpt/format/hdf5_write.h"
#include "ckpt/format/manifest.h"
#include "ckpt/format/safetensors.h"
#include "ckpt/target.h"
#include "lib/util/check.h"
#include "lib/util/crc.h"
#include "lib/util/dir.h"
#include "lib/util/io.h"

typedef struct {
    const fsdp_ckpt_engine_t *engine;
    fsdp_ckpt_finding_f tell;
    void *arg;
    fsdp_ckpt_repair_result_t result;
} repair_t;

__attribute__((format(printf, 3, 4))) static fsdp_status_t tell(
    const repair_t *repair, fsdp_error_t *err, const char *fmt, ...)
{
    char *text = NULL;
    bool go_on = true;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n >= 0 && repair->tell != NULL) {
        go_on = repair->tell(text, repair->arg);
    }
    free((n >= 0) ? text : NULL);

    return go_on ? FSDP_OK
                 : fsdp_error_set(err, FSDP_ERR_CANCELLED, "stopped as asked");
}

static fsdp_status_t no_memory(const char *path, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);
}

/* --- Sharded HDF5 --------------------------------------------------------- */

/* One checkpoint on its way. */
typedef struct {
    const repair_t *repair;
    const char *dir;
    manifest_t *manifest; /* NULL: missing or damaged */
    fsdp_status_t why;    /* then */
    catalog_t cat;
    bool *bad; /* each file: not what was written */
} sharded_t;

static int is_shard(const struct dirent *entry)
{
    unsigned number;
    char name[32];

    if (sscanf(entry->d_name, "shard-%5u.h5", &number) != 1) {
        return 0;
    }
    target_file_name(number, name);
    return strcmp(entry->d_name, name) == 0;
}

/* A file of the catalog with the size that it has. */
static fsdp_status_t list_file(catalog_t *cat, const char *name,
                               fsdp_error_t *err)
{
    char *path = io_path("%s/%s", cat->root, name);
    fsdp_status_t status;
    struct stat st;
    uint32_t file;

    if (path == NULL) {
        return no_memory(cat->root, err);
    }
    status = (stat(path, &st) == 0)
                 ? catalog_add_file(cat, name, (uint64_t)st.st_size, &file, err)
                 : fsdp_error_set(err, FSDP_ERR_IO, "%s: %m", path);
    free(path);
    return status;
}

/* The files that lie there, whose numbers must have no gap. */
static fsdp_status_t list_files(catalog_t *cat, fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;
    struct dirent **entries;
    int num = scandir(cat->root, &entries, is_shard, alphasort);

    if (num < 0) {
        return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot read: %m",
                              cat->root);
    }

    for (int i = 0; i < num; i++) {
        char name[32];

        target_file_name((uint32_t)i, name);
        if (status == FSDP_OK && strcmp(entries[i]->d_name, name) != 0) {
            status = fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                    "%s/%s: missing, though %s is there",
                                    cat->root, name, entries[i]->d_name);
        }
        if (status == FSDP_OK) {
            status = list_file(cat, name, err);
        }
    }
    dir_free(entries, num);
    if (status == FSDP_OK && num == 0) {
        status = fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                "%s: has no shard file to repair from",
                                cat->root);
    }

    return status;
}

/* Compare each file with the checksum of the manifest, or take its own. */
static fsdp_status_t sum_files(sharded_t *sharded, fsdp_error_t *err)
{
    catalog_t *cat = &sharded->cat;

    for (uint32_t f = 0; f < cat->num_files; f++) {
        catalog_file_t *file = &cat->files[f];
        uint32_t crc;
        fsdp_error_t why;
        fsdp_status_t status = files_sum(cat, f, file->size, &crc, &why);

        if (status == FSDP_ERR_NOT_FOUND || status == FSDP_ERR_CORRUPT) {
            sharded->bad[f] = true;
            FSDP_TRY(tell(sharded->repair, err, "%s", why.text));
        } else if (status != FSDP_OK) {
            *err = why;
            return status;
        } else if (file->has_crc && file->crc32c != crc) {
            sharded->bad[f] = true;
            FSDP_TRY(tell(sharded->repair, err,
                          "%s/%s: does not have its checksum: it is damaged",
                          cat->root, file->path));
        }
        if (!file->has_crc) {
            file->crc32c = crc;
            file->has_crc = true;
        }
    }

    return FSDP_OK;
}

/* Every block of data has its checksum. */
static fsdp_status_t check_blocks(const repair_t *repair, const catalog_t *cat,
                                  fsdp_error_t *err)
{
    engine_job_t job = {0};
    fsdp_status_t status;
    plan_t plan;

    if (repair->engine != NULL) {
        job.options = *repair->engine;
    }
    FSDP_TRY(plan_check(&plan, cat, NULL, err));
    job.plan = &plan;
    status = engine_run(&job, NULL, err);
    plan_free(&plan);
    return status;
}

static fsdp_status_t refuse_line(const char *text, void *arg)
{
    return fsdp_error_set(arg, FSDP_ERR_CORRUPT, "cannot be repaired: %s",
                          text);
}

/* HDF5's own bytes of the files show what their tables say. */
static fsdp_status_t check_shards(const catalog_t *cat, fsdp_error_t *err)
{
    fsdp_error_t why = {.status = FSDP_OK};

    for (uint32_t f = 0; f < cat->num_files; f++) {
        fsdp_status_t status = hdf5_check_shard(cat, f, refuse_line, &why, err);

        if (status != FSDP_OK) {
            if (why.status != FSDP_OK) {
                *err = why;
            }
            return status;
        }
    }

    return FSDP_OK;
}

static const char *unit_of(const char *tensor, const void *arg)
{
    return manifest_unit(arg, tensor);
}

/* Without the files that are bad nothing can be repaired: say what is lost. */
static fsdp_status_t tell_lost(sharded_t *sharded, fsdp_error_t *err)
{
    catalog_t *cat = &sharded->cat;
    uint64_t holes = 0;

    FSDP_TRY(catalog_seal(cat, 0, err));
    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        const catalog_tensor_t *tensor = &cat->tensors[t];
        uint64_t there = 0;

        for (uint32_t p = 0; p < tensor->piece_count; p++) {
            there += cat->pieces[tensor->piece_first + p].count;
        }
        if (there < tensor->numel) {
            holes++;
            FSDP_TRY(tell(sharded->repair, err,
                          "tensor %s: %" PRIu64 " of its %" PRIu64
                          " elements are lost",
                          tensor->name, tensor->numel - there, tensor->numel));
        }
    }

    return fsdp_error_set(
        err, FSDP_ERR_CORRUPT,
        "%s: cannot be repaired: data of %" PRIu64
        " tensors is lost, and of any that lie wholly in the damaged files",
        cat->root, holes);
}

/* What only a manifest has. */
static fsdp_status_t tell_unknown(sharded_t *sharded, bool has_aliases,
                                  fsdp_error_t *err)
{
    return tell(sharded->repair, err,
                "%s: what only the manifest had is lost: strategy, units, "
                "metadata (configuration, parameter groups, data position), "
                "values, digests%s; whether there were more shard files than "
                "%" PRIu32 " is not known",
                sharded->dir, has_aliases ? "" : ", other names of tensors",
                sharded->cat.num_files);
}

/* Other names of tensors, as far as the old index can say them.
 * @param has_p  Whether it could. */
static fsdp_status_t recover_aliases(sharded_t *sharded, bool *has_p,
                                     fsdp_error_t *err)
{
    char *index = io_path("%s/" HDF5_INDEX_NAME, sharded->dir);
    fsdp_status_t status = (index != NULL)
                               ? hdf5_recover_aliases(index, &sharded->cat, err)
                               : no_memory(sharded->dir, err);

    free(index);
    *has_p = status == FSDP_OK;
    return (status == FSDP_ERR_CORRUPT || status == FSDP_ERR_NOT_FOUND)
               ? FSDP_OK
               : status;
}

static fsdp_status_t recover(sharded_t *sharded, fsdp_error_t *err)
{
    catalog_t *cat = &sharded->cat;
    bool damaged = false, has_aliases = true;

    if (sharded->manifest != NULL) {
        FSDP_TRY(manifest_fill(sharded->manifest, cat, err));
    } else {
        FSDP_TRY(list_files(cat, err));
        cat->step = format_step(io_base(sharded->dir));
    }
    sharded->bad = calloc(cat->num_files + 1ul, sizeof(*sharded->bad));
    if (sharded->bad == NULL) {
        return no_memory(sharded->dir, err);
    }

    FSDP_TRY(sum_files(sharded, err));
    for (uint32_t f = 0; f < cat->num_files; f++) {
        damaged |= sharded->bad[f];
    }
    FSDP_TRY(hdf5_recover(cat, sharded->bad,
                          (sharded->manifest != NULL) ? unit_of : NULL,
                          sharded->manifest, err));
    if (damaged) {
        cat->num_aliases = 0; /* their owners may be lost */
        return tell_lost(sharded, err);
    }
    if (sharded->manifest == NULL) {
        FSDP_TRY(recover_aliases(sharded, &has_aliases, err));
    }
    FSDP_TRY(catalog_seal(cat, CATALOG_CHECK_ALL, err));
    if (sharded->manifest == NULL) {
        FSDP_TRY(check_blocks(sharded->repair, cat, err));
        FSDP_TRY(check_shards(cat, err));
        FSDP_TRY(tell_unknown(sharded, has_aliases, err));
    }

    return FSDP_OK;
}

/* Move a file of the temporary directory into the checkpoint. */
static fsdp_status_t move_in(const char *temp, const char *dir,
                             const char *name, fsdp_error_t *err)
{
    char *from = io_path("%s/%s", temp, name);
    char *to = io_path("%s/%s", dir, name);
    fsdp_status_t status = (from != NULL && to != NULL)
                               ? io_rename(from, to, err)
                               : no_memory(dir, err);

    if (status == FSDP_OK) {
        status = io_fsync_path(dir, err);
    }
    free(from);
    free(to);
    return status;
}

/* BEFORE NAME AFTER in the directory that holds a checkpoint; NULL: no
 * memory. */
static char *path_beside(const char *dir, const char *before, const char *after)
{
    int size = (int)(io_base(dir) - dir);

    return io_path("%.*s%s%s%s", size, dir, before, dir + size, after);
}

/* A damaged manifest may still tell a person something. */
static fsdp_status_t keep_damaged(const sharded_t *sharded, fsdp_error_t *err)
{
    char *from = io_path("%s/" MANIFEST_NAME, sharded->dir);
    char *to = path_beside(sharded->dir, "damaged-", "-" MANIFEST_NAME);
    fsdp_status_t status = FSDP_OK;

    if (from == NULL || to == NULL) {
        status = no_memory(sharded->dir, err);
    } else if (link(from, to) == 0) {
        status = tell(sharded->repair, err, "%s: the damaged manifest, kept",
                      to);
    } else if (errno != EEXIST) {
        status = fsdp_error_set(err, FSDP_ERR_IO,
                                "%s: cannot keep the damaged manifest: %m", to);
    }
    free(from);
    free(to);
    return status;
}

static fsdp_status_t write_sharded(const sharded_t *sharded, const char *temp,
                                   fsdp_error_t *err)
{
    FSDP_TRY(hdf5_index_write(&sharded->cat, sharded->dir, temp, err));
    if (sharded->manifest == NULL && sharded->why == FSDP_ERR_CORRUPT) {
        FSDP_TRY(keep_damaged(sharded, err));
    }

    /* Until the manifest is there too, the index is not the one it lists: the
     * checkpoint is as damaged as before. */
    FSDP_TRY(move_in(temp, sharded->dir, HDF5_INDEX_NAME, err));
    return move_in(temp, sharded->dir, MANIFEST_NAME, err);
}

static void remove_temp(const char *temp)
{
    static const char *const names[] = {HDF5_INDEX_NAME, MANIFEST_NAME};

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        char *path = io_path("%s/%s", temp, names[i]);

        if (path != NULL) {
            unlink(path);
        }
        free(path);
    }
    rmdir(temp);
}

static fsdp_status_t rebuild(sharded_t *sharded, fsdp_error_t *err)
{
    char suffix[48], *temp;
    fsdp_status_t status;

    snprintf(suffix, sizeof(suffix), "-repair-%ld", (long)getpid());
    temp = path_beside(sharded->dir, ".tmp-", suffix);
    if (temp == NULL) {
        return no_memory(sharded->dir, err);
    }

    if (mkdir(temp, 0777) != 0) {
        status = fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot make it: %m",
                                temp);
    } else {
        status = write_sharded(sharded, temp, err);
        remove_temp(temp);
    }
    free(temp);
    return status;
}

/* @return true if index and manifest are what the files say. */
static bool opens(const char *path)
{
    fsdp_status_t status;
    catalog_t cat;

    catalog_init(&cat);
    status = format_open(path, &cat, NULL);
    catalog_free(&cat);
    return status == FSDP_OK;
}

static fsdp_status_t repair_sharded(repair_t *repair, const char *path,
                                    fsdp_error_t *err)
{
    size_t size = strlen(path);
    char *dir;
    sharded_t sharded = {.repair = repair};
    fsdp_status_t status;

    if (opens(path)) {
        return FSDP_OK;
    }

    while (size > 1 && path[size - 1] == '/') {
        size--;
    }
    dir = strndup(path, size);
    if (dir == NULL) {
        return no_memory(path, err);
    }

    sharded.dir = dir;
    catalog_init(&sharded.cat);
    sharded.cat.format = FSDP_CKPT_HDF5;
    sharded.cat.path = sharded.cat.root = dir;
    status = sharded.why = manifest_read(dir, &sharded.manifest, err);
    if (status != FSDP_OK && status != FSDP_ERR_NOT_FOUND &&
        status != FSDP_ERR_CORRUPT) {
        goto err_free;
    }
    FSDP_TRY_GOTO(recover(&sharded, err), err_free);
    FSDP_TRY_GOTO(rebuild(&sharded, err), err_free);
    repair->result.repaired++;
    status = tell(repair, err,
                  "%s: rebuilt " HDF5_INDEX_NAME " and " MANIFEST_NAME
                  " from %" PRIu32 " shard files",
                  dir, sharded.cat.num_files);
err_free:
    free(sharded.bad);
    catalog_free(&sharded.cat);
    manifest_free(sharded.manifest);
    free(dir);
    return status;
}

/* --- Safetensors ---------------------------------------------------------- */

/* Add what a file holds to the index. */
static fsdp_status_t add_shard(const char *dir, const char *name, json_t *map,
                               uint64_t *total_p, fsdp_error_t *err)
{
    char *path = io_path("%s/%s", dir, name);
    safetensors_file_t file;
    fsdp_status_t status;

    if (path == NULL) {
        return no_memory(dir, err);
    }

    status = safetensors_file_open(path, &file, err);
    for (size_t i = 0; status == FSDP_OK && i < file.num; i++) {
        const safetensors_entry_t *entry = &file.entries[i];
        json_t *other = json_object_get(map, entry->name);

        if (other != NULL) {
            status = fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                    "%s: cannot be repaired: tensor %s is in "
                                    "%s too",
                                    path, entry->name,
                                    json_string_value(other));
        } else if (json_object_set_new(map, entry->name, json_string(name)) !=
                   0) {
            status = no_memory(path, err);
        }
        *total_p += entry->end - entry->begin;
    }
    if (status == FSDP_OK) {
        safetensors_file_close(&file);
    }
    free(path);
    return status;
}

static fsdp_status_t write_index(const char *dir, const char *prefix,
                                 size_t size, json_t *map, uint64_t total,
                                 fsdp_error_t *err)
{
    char *path = io_path("%s/%.*s" SAFETENSORS_INDEX, dir, (int)size, prefix);
    json_t *index = json_pack("{s:{s:I}, s:O}", "metadata", "total_size",
                              (json_int_t)total, "weight_map", map);
    char *text = json_dumps(index, JSON_INDENT(2) | JSON_SORT_KEYS);
    char *line = (text != NULL) ? io_path("%s\n", text) : NULL;
    fsdp_status_t status = (path != NULL && line != NULL)
                               ? io_replace_file(path, line, strlen(line), err)
                               : no_memory(dir, err);

    free(path);
    free(text);
    free(line);
    json_decref(index);
    return status;
}

static int is_shard_of_many(const struct dirent *entry)
{
    unsigned number, total;

    return safetensors_shard(entry->d_name, &number, &total) > 0 && total > 1;
}

/* All files of a set, 1 to N of N, and nothing else. */
static fsdp_status_t check_set(const char *dir, struct dirent **entries,
                               int num, fsdp_error_t *err)
{
    size_t first = 0;

    for (int i = 0; i < num; i++) {
        const char *name = entries[i]->d_name;
        unsigned number = 0, total = 0;
        size_t size = safetensors_shard(name, &number, &total);

        first = (i == 0) ? size : first;
        if (size != first || strncmp(name, entries[0]->d_name, size) != 0) {
            return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                  "%s: cannot be repaired: %s and %s are of "
                                  "different sets",
                                  dir, entries[0]->d_name, name);
        }
        if (number != (unsigned)i + 1 || (i + 1 == num && number != total)) {
            return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                  "%s: cannot be repaired: number %d of %u "
                                  "files is missing, and what it held is lost",
                                  dir,
                                  (number != (unsigned)i + 1) ? i + 1 : num + 1,
                                  total);
        }
    }

    return FSDP_OK;
}

static fsdp_status_t index_set(repair_t *repair, const char *dir,
                               struct dirent **entries, int num,
                               fsdp_error_t *err)
{
    json_t *map = json_object();
    unsigned number, total;
    fsdp_status_t status;
    uint64_t bytes = 0;
    size_t size;

    FSDP_TRY_GOTO(check_set(dir, entries, num, err), err_free);
    for (int i = 0; i < num; i++) {
        FSDP_TRY_GOTO(add_shard(dir, entries[i]->d_name, map, &bytes, err),
                      err_free);
    }
    size = safetensors_shard(entries[0]->d_name, &number, &total);
    FSDP_TRY_GOTO(
        write_index(dir, entries[0]->d_name, size, map, bytes, err), err_free);
    repair->result.repaired++;
    status = tell(repair, err,
                  "%s: rebuilt %.*s" SAFETENSORS_INDEX " from %d files", dir,
                  (int)size, entries[0]->d_name, num);
err_free:
    json_decref(map);
    return status;
}

/* @param is_set_p  Whether there are such files at all. */
static fsdp_status_t repair_safetensors(repair_t *repair, const char *dir,
                                        bool *is_set_p, fsdp_error_t *err)
{
    struct dirent **entries;
    fsdp_status_t status = FSDP_OK;
    int num = scandir(dir, &entries, is_shard_of_many, alphasort);

    *is_set_p = num > 0;
    if (num > 0 && !opens(dir)) {
        status = index_set(repair, dir, entries, num, err);
    }
    dir_free(entries, num);
    return status;
}

/* --- A directory of checkpoints ------------------------------------------- */

static fsdp_status_t repair_one(repair_t *repair, const char *path,
                                fsdp_error_t *err)
{
    bool is_set = false;
    format_look_t look;

    FSDP_TRY(format_look(path, &look, err));
    if (format_hdf5.probe(&look)) {
        return repair_sharded(repair, path, err);
    }
    if (look.is_dir) {
        FSDP_TRY(repair_safetensors(repair, path, &is_set, err));
    }

    return (is_set || opens(path))
               ? FSDP_OK
               : tell(repair, err,
                      "%s: no index of a kind that can be rebuilt", path);
}

static int is_step(const struct dirent *entry)
{
    return format_step(entry->d_name) >= 0;
}

/* `latest` names the newest one that opens. */
static fsdp_status_t repair_latest(repair_t *repair, const char *dir,
                                   fsdp_error_t *err)
{
    fsdp_ckpt_latest_config_t config = FSDP_CKPT_LATEST_INIT;
    fsdp_ckpt_latest_result_t result;

    config.repair = true;
    FSDP_TRY(fsdp_ckpt_latest(dir, &config, &result, err));
    if (!result.repaired) {
        return FSDP_OK;
    }

    repair->result.repaired++;
    return tell(repair, err, "%s/latest: names %s now", dir, result.path);
}

/* What cannot be repaired does not keep the others from it. */
static fsdp_status_t repair_entry(repair_t *repair, const char *dir,
                                  const char *name, fsdp_error_t *err)
{
    char *path = io_path("%s/%s", dir, name);
    fsdp_status_t status;
    fsdp_error_t why;

    if (path == NULL) {
        return no_memory(dir, err);
    }

    status = repair_one(repair, path, &why);
    if (status == FSDP_ERR_CORRUPT) {
        repair->result.lost++;
        status = tell(repair, err, "%s", why.text);
    } else if (status != FSDP_OK) {
        *err = why;
    }
    free(path);
    return status;
}

/* @param is_dir_p  Whether it is a directory of checkpoints. */
static fsdp_status_t repair_many(repair_t *repair, const char *dir,
                                 bool *is_dir_p, fsdp_error_t *err)
{
    struct dirent **entries;
    fsdp_status_t status = FSDP_OK;
    int num = scandir(dir, &entries, is_step, versionsort);

    *is_dir_p = num > 0;
    for (int i = 0; i < num; i++) {
        if (status == FSDP_OK) {
            status = repair_entry(repair, dir, entries[i]->d_name, err);
        }
    }
    dir_free(entries, num);

    return (status == FSDP_OK && num > 0) ? repair_latest(repair, dir, err)
                                          : status;
}

static fsdp_status_t run(repair_t *repair, const char *path, fsdp_error_t *err)
{
    bool is_dir = false;
    format_look_t look;

    FSDP_TRY(format_look(path, &look, err));
    if (look.is_dir && format_recognise(&look) == NULL) {
        FSDP_TRY(repair_many(repair, path, &is_dir, err));
    }
    return is_dir ? FSDP_OK : repair_one(repair, path, err);
}

fsdp_status_t fsdp_ckpt_repair(const char *path,
                               const fsdp_ckpt_engine_t *engine,
                               fsdp_ckpt_finding_f found, void *arg,
                               fsdp_ckpt_repair_result_t *result_p,
                               fsdp_error_t *err)
{
    repair_t repair = {.engine = engine, .tell = found, .arg = arg};
    char *where = format_find(path, NULL);
    fsdp_status_t status;
    fsdp_error_t why;

    status =
        (where != NULL) ? run(&repair, where, &why) : no_memory(path, &why);
    free(where);
    if (status != FSDP_OK) {
        if (err != NULL) {
            *err = why;
        }
        return status;
    }

    *result_p = repair.result;
    return FSDP_OK;
}
