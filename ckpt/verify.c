/*
 * Check a checkpoint: everything that can be wrong is a finding of one line.
 *
 * Opening stops at the first thing that is wrong; here the parts are looked at
 * one by one, so that all damage is named: the manifest, the files that should
 * be there, the index, what the index says of the files, every byte, what the
 * files say of themselves, the digests.
 */
#include "config.h"

#include "ckpt/verify.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/files.h"
#include "ckpt/format.h"
#include "ckpt/format/hdf5_check.h"
#include "ckpt/format/hdf5_table.h"
#include "ckpt/format/hdf5_write.h"
#include "ckpt/format/manifest.h"
#include "ckpt/format/megatron.h"
#include "ckpt/value.h"
#include "lib/util/check.h"
#include "lib/util/clock.h"
#include "lib/util/dir.h"
#include "lib/util/io.h"
#include "lib/util/select.h"
#include "lib/util/text.h"

#define TEMPORARY ".tmp-"
#define STEP      "step-"
#define LATEST    "latest"

/* --- Findings ------------------------------------------------------------- */

fsdp_status_t verify_find(verify_t *verify, const char *fmt, ...)
{
    char *text = NULL;
    const char *told;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vasprintf(&text, fmt, ap);
    va_end(ap);
    told = (n < 0) ? "a finding" : text;

    pthread_mutex_lock(&verify->lock);
    if (verify->sharing) {
        buffer_add(&verify->found, told, strlen(told) + 1);
    } else if (verify->ranks.rank == 0) {
        verify->result.findings++;
        verify->stopped =
            verify->stopped ||
            (verify->finding != NULL && !verify->finding(told, verify->arg));
    }
    n = verify->stopped;
    pthread_mutex_unlock(&verify->lock);
    free(text);

    return n ? FSDP_ERR_CANCELLED : FSDP_OK;
}

fsdp_status_t verify_status(verify_t *verify, fsdp_status_t status,
                            const fsdp_error_t *why, fsdp_error_t *err)
{
    if (status == FSDP_ERR_CORRUPT || status == FSDP_ERR_NOT_FOUND) {
        status = verify_find(verify, "%s", why->text);
        return (status == FSDP_OK)
                   ? FSDP_OK
                   : fsdp_error_set(err, status, "the check was stopped");
    }
    if (status != FSDP_OK && err != NULL) {
        *err = *why;
    }

    return status;
}

/* For findings outside of threads: stopping is an error like others. */
#define FIND(_verify, _err, ...)                            \
    do {                                                    \
        if (verify_find(_verify, __VA_ARGS__) != FSDP_OK) { \
            return fsdp_error_set(_err, FSDP_ERR_CANCELLED, \
                                  "the check was stopped"); \
        }                                                   \
    } while (0)

static fsdp_status_t find_line(const char *text, void *arg)
{
    return verify_find(arg, "%s", text);
}

/* --- Files ---------------------------------------------------------------- */

static int64_t mtime_of(const struct stat *st)
{
    return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

/* Another file of the list that should be what this one is, whose size is not
 * its own; or NULL.  The first rank only tells of it, and so looks alone. */
static fsdp_status_t find_twin(const verify_t *verify, const catalog_t *cat,
                               uint32_t file, uint64_t size,
                               const char **twin_p, fsdp_error_t *err)
{
    bool summed = false;
    uint32_t crc = 0;

    *twin_p = NULL;
    for (uint32_t i = 0; i < cat->num_files && verify->ranks.rank == 0; i++) {
        if (i == file || !cat->files[i].has_crc || cat->files[i].size != size) {
            continue;
        }
        if (!summed) {
            FSDP_TRY(files_sum(cat, file, size, &crc, err));
            summed = true;
        }
        if (cat->files[i].crc32c == crc) {
            *twin_p = cat->files[i].path;
            return FSDP_OK;
        }
    }

    return FSDP_OK;
}

static fsdp_status_t find_size(verify_t *verify, const catalog_t *cat,
                               uint32_t index, uint64_t size, fsdp_error_t *err)
{
    const catalog_file_t *file = &cat->files[index];
    const char *twin;

    FSDP_TRY(find_twin(verify, cat, index, size, &twin, err));
    if (twin != NULL) {
        FIND(verify, err, "%s/" FORMAT_EXCHANGED, cat->root, file->path, twin);
    } else {
        FIND(verify, err,
             "%s/%s: %s: has %" PRIu64 " bytes instead of %" PRIu64, cat->root,
             file->path, (size < file->size) ? "cut off" : "too long", size,
             file->size);
    }

    return FSDP_OK;
}

/* Sizes of the listed files; good[i] says that file i can be read whole. */
static fsdp_status_t check_sizes(verify_t *verify, const catalog_t *cat,
                                 bool *good, fsdp_error_t *err)
{
    for (uint32_t i = 0; i < cat->num_files; i++) {
        const catalog_file_t *file = &cat->files[i];
        char *path = catalog_file_path(cat, i);
        struct stat st;
        int rc;

        if (path == NULL) {
            return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                                  cat->path);
        }
        rc = stat(path, &st);
        free(path);

        good[i] = rc == 0 && S_ISREG(st.st_mode) &&
                  (uint64_t)st.st_size == file->size;
        if (rc != 0 && errno != ENOENT && errno != ENOTDIR) {
            return fsdp_error_set(err, FSDP_ERR_IO, "%s/%s: cannot stat: %m",
                                  cat->root, file->path);
        }
        if (rc != 0) {
            FIND(verify, err, "%s/%s: missing", cat->root, file->path);
        } else if (!S_ISREG(st.st_mode)) {
            FIND(verify, err, "%s/%s: is no regular file", cat->root,
                 file->path);
        } else if (good[i] && file->mtime != 0 &&
                   mtime_of(&st) != file->mtime) {
            FIND(verify, err,
                 "%s/%s: was written at another time than when %s was made to "
                 "show it: altered, or copied",
                 cat->root, file->path, cat->path);
        } else if (!good[i]) {
            FSDP_TRY(find_size(verify, cat, i, (uint64_t)st.st_size, err));
        }
        verify->total += good[i] ? file->size : 0;
    }
    verify->result.files += cat->num_files;
    verify->ranks.total = verify->total;

    return FSDP_OK;
}

/* --- Digests -------------------------------------------------------------- */

/* Digests are over 32-bit elements: those of all tensors of a kind. */
static bool has_other_types(const catalog_t *cat, bool optim)
{
    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        const catalog_tensor_t *tensor = &cat->tensors[t];

        if ((optim ? select_is_optim(tensor->name)
                   : select_is_model(tensor->name)) &&
            fsdp_dtype_bits((fsdp_dtype_t)tensor->dtype) != 32) {
            return true;
        }
    }

    return false;
}

static fsdp_status_t check_digest(verify_t *verify, const catalog_t *cat,
                                  bool optim, const uint64_t *want,
                                  const digest_t *digest, fsdp_error_t *err)
{
    const uint64_t *have = digest->word;

    if (has_other_types(cat, optim) ||
        (want[0] == have[0] && want[1] == have[1])) {
        return FSDP_OK;
    }

    FIND(verify, err,
         "%s: the digest of %s is %016" PRIx64 "%016" PRIx64
         " instead of %016" PRIx64 "%016" PRIx64,
         cat->root, optim ? "the optimizer state" : "the parameters", have[0],
         have[1], want[0], want[1]);

    return FSDP_OK;
}

static fsdp_status_t check_digests(verify_t *verify, const catalog_t *cat,
                                   const digest_t *digests, fsdp_error_t *err)
{
    for (unsigned w = 0; w < 2; w++) {
        verify->result.digest_model[w] = digests[VERIFY_MODEL].word[w];
        verify->result.digest_optim[w] = digests[VERIFY_OPTIM].word[w];
    }
    if (cat->has_digest_model) {
        FSDP_TRY(check_digest(verify, cat, false, cat->digest_model,
                              &digests[VERIFY_MODEL], err));
    }
    if (cat->has_digest_optim) {
        FSDP_TRY(check_digest(verify, cat, true, cat->digest_optim,
                              &digests[VERIFY_OPTIM], err));
    }

    return FSDP_OK;
}

/* --- One checkpoint ------------------------------------------------------- */

static bool all_good(const catalog_t *cat, const bool *good)
{
    for (uint32_t i = 0; i < cat->num_files; i++) {
        if (!good[i]) {
            return false;
        }
    }

    return true;
}

/* What the files and the index say of themselves, through HDF5. */
static fsdp_status_t check_inside(verify_t *verify, const catalog_t *cat,
                                  const bool *good, fsdp_error_t *err)
{
    for (uint32_t i = 0; i < cat->num_files; i++) {
        if (good[i]) {
            FSDP_TRY(hdf5_check_shard(cat, i, find_line, verify, err));
        }
    }

    return all_good(cat, good) ? hdf5_check_index(cat, find_line, verify, err)
                               : FSDP_OK;
}

/*
 * Every byte of the files, with the catalog as far as it is known.
 *
 * @param whole  The catalog was opened: it has the pieces.
 */
static fsdp_status_t check_bytes(verify_t *verify, const catalog_t *cat,
                                 bool whole, bool *good, fsdp_error_t *err)
{
    digest_t digests[VERIFY_KINDS] = {0};
    uint64_t findings;

    FSDP_TRY(verify_pass(verify, cat, good, digests, err));
    if (!whole || verify->ranks.rank > 0) {
        return FSDP_OK;
    }

    if (cat->format == FSDP_CKPT_MEGATRON) {
        FSDP_TRY(megatron_check(cat, find_line, verify, &verify->result.bytes,
                                err));
    }
    if (cat->format == FSDP_CKPT_HDF5) {
        FSDP_TRY(check_inside(verify, cat, good, err));
    }
    findings = verify->result.findings;
    if (findings == 0 || all_good(cat, good)) {
        FSDP_TRY(check_digests(verify, cat, digests, err));
    }
    verify->result.tensors += cat->num_tensors;

    return FSDP_OK;
}

/* The catalog as the format opens it.
 * @param whole_p  false, and a finding, if what is there is damaged. */
static fsdp_status_t open_whole(verify_t *verify, const char *path,
                                catalog_t *cat, bool *whole_p,
                                fsdp_error_t *err)
{
    fsdp_error_t why;
    fsdp_status_t status;

    cat->recipe = verify->recipe;
    status = format_open(path, cat, &why);

    *whole_p = status == FSDP_OK;
    verify->result.recipe_unused =
        *whole_p && cat->recipe != NULL && !cat->recipe_used;
    if (status == FSDP_ERR_NOT_FOUND) {
        if (err != NULL) {
            *err = why; /* nothing that could be damaged */
        }
        return status;
    }

    return verify_status(verify, status, &why, err);
}

static fsdp_status_t check_with_catalog(verify_t *verify, const catalog_t *cat,
                                        bool whole, fsdp_error_t *err)
{
    bool *good = calloc(cat->num_files + 1ul, sizeof(*good));
    fsdp_status_t status;

    if (good == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              cat->path);
    }

    verify->result.checkpoints++;
    verify->result.format = cat->format;
    status = check_sizes(verify, cat, good, err);
    if (status == FSDP_OK) {
        status = check_bytes(verify, cat, whole, good, err);
    }
    free(good);

    return status;
}

/* Whether each listed file is there with its size. */
static bool has_sizes(const catalog_t *listed)
{
    bool sized = true;
    struct stat st;

    for (uint32_t i = 0; i < listed->num_files && sized; i++) {
        char *file = catalog_file_path(listed, i);

        sized = file != NULL && stat(file, &st) == 0 &&
                (uint64_t)st.st_size == listed->files[i].size;
        free(file);
    }

    return sized;
}

/* The index alone: its size and checksum. */
static fsdp_status_t check_index(verify_t *verify, const char *dir,
                                 const manifest_index_t *index,
                                 fsdp_error_t *err)
{
    char *path = io_path("%s/%s", dir, HDF5_INDEX_NAME);
    hdf5_rows_t rows;
    fsdp_status_t status;
    fsdp_error_t why;

    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", dir);
    }

    status = hdf5_rows_read(path, index, &rows, &why);
    if (status == FSDP_OK) {
        hdf5_rows_free(&rows);
    }
    free(path);

    return verify_status(verify, status, &why, err);
}

/* Opening checks the index, its tables and the coverage, but stops at a file
 * without its size, and would only say again which one that is. */
static fsdp_status_t check_listed(verify_t *verify, const char *path,
                                  const manifest_index_t *index,
                                  const catalog_t *listed, fsdp_error_t *err)
{
    fsdp_status_t status;
    catalog_t cat;
    bool whole;

    if (!has_sizes(listed)) {
        FSDP_TRY(check_index(verify, path, index, err));
        return check_with_catalog(verify, listed, false, err);
    }

    catalog_init(&cat);
    status = open_whole(verify, path, &cat, &whole, err);
    if (status == FSDP_OK) {
        status = check_with_catalog(verify, whole ? &cat : listed, whole, err);
    }
    catalog_free(&cat);

    return status;
}

/* Sharded HDF5: what the manifest says is what should be there. */
static fsdp_status_t check_sharded(verify_t *verify, const char *path,
                                   fsdp_error_t *err)
{
    manifest_t *manifest = NULL;
    manifest_index_t index;
    fsdp_status_t status;
    fsdp_error_t why;
    catalog_t listed;

    status = manifest_read(path, &manifest, &why);
    if (status != FSDP_OK) {
        return verify_status(verify, status, &why, err);
    }

    catalog_init(&listed);
    listed.format = FSDP_CKPT_HDF5;
    listed.path = listed.root = path;
    status = manifest_fill(manifest, &listed, &why);
    if (status != FSDP_OK) {
        status = verify_status(verify, status, &why, err);
        goto done;
    }

    manifest_get_index(manifest, &index);
    verify->result.bytes += index.size;
    verify->result.files += 2; /* the manifest and the index */
    FSDP_TRY_GOTO(verify_extra(verify, &listed, err), done);
    status = check_listed(verify, path, &index, &listed, err);
done:
    catalog_free(&listed);
    manifest_free(manifest);
    return status;
}

/* What whoever only reads it is told. */
static fsdp_status_t find_notes(verify_t *verify, const catalog_t *cat,
                                fsdp_error_t *err)
{
    for (uint64_t n = 0; n < cat->num_notes; n++) {
        FIND(verify, err, "%s", cat->notes[n]);
    }

    return FSDP_OK;
}

/* Values are in files that are whole, if of a kind that is not known here: that
 * is no finding. */
static fsdp_status_t count_unread(verify_t *verify, const catalog_t *cat,
                                  fsdp_error_t *err)
{
    for (uint64_t v = 0; v < cat->num_values; v++) {
        const char *name = cat->values[v].name, *text = cat->values[v].json;
        json_t *json;

        FSDP_TRY(value_parse(name, text, strlen(text), &json, err));
        verify->result.unread += value_unread(json) != NULL;
        json_decref(json);
    }

    return FSDP_OK;
}

/* Other formats: what opening checks, and that every byte can be read. */
static fsdp_status_t check_other(verify_t *verify, const format_look_t *look,
                                 fsdp_error_t *err)
{
    fsdp_status_t status;
    catalog_t cat;
    bool whole;

    catalog_init(&cat);
    status = open_whole(verify, look->path, &cat, &whole, err);
    if (status == FSDP_OK && whole && look->is_dir) {
        status = verify_extra(verify, &cat, err);
    }
    if (status == FSDP_OK && whole) {
        status = find_notes(verify, &cat, err);
    }
    if (status == FSDP_OK && whole) {
        status = count_unread(verify, &cat, err);
    }
    if (status == FSDP_OK && whole) {
        status = check_with_catalog(verify, &cat, true, err);
    }
    catalog_free(&cat);

    return status;
}

static fsdp_status_t check_one(verify_t *verify, const char *path,
                               fsdp_error_t *err)
{
    format_look_t look;

    FSDP_TRY(format_look(path, &look, err));

    return format_hdf5.probe(&look) ? check_sharded(verify, path, err)
                                    : check_other(verify, &look, err);
}

/* --- A directory of checkpoints ------------------------------------------- */

static int is_entry(const struct dirent *entry)
{
    return strncmp(entry->d_name, STEP, strlen(STEP)) == 0 ||
           strncmp(entry->d_name, TEMPORARY, strlen(TEMPORARY)) == 0 ||
           strcmp(entry->d_name, LATEST) == 0;
}

/* A save or conversion that did not end, or one that runs now. */
static fsdp_status_t find_leftover(verify_t *verify, const char *path,
                                   fsdp_error_t *err)
{
    char age[TEXT_AGE_MAX];
    struct stat st;

    if (stat(path, &st) != 0) {
        return FSDP_OK; /* it was running, and is done */
    }

    FIND(verify, err,
         "%s: left by writing that was interrupted, or is going on: last "
         "touched %s; fsdp-verify --clean removes it if nothing writes there",
         path, text_age(difftime(time(NULL), st.st_mtime), age));

    return FSDP_OK;
}

static fsdp_status_t check_latest(verify_t *verify, const char *dir,
                                  const char *path, fsdp_error_t *err)
{
    char *text, *named;
    size_t size;
    bool there;

    FSDP_TRY(io_read_file(path, 4096, &text, &size, err));
    text[strcspn(text, "\n")] = '\0';
    named = io_path("%s/%s", dir, text);
    there = named != NULL && *text != '\0' && strchr(text, '/') == NULL &&
            access(named, F_OK) == 0;
    free(named);
    if (!there && verify_find(verify, "%s: names '%.100s', which is not there",
                              path, text) != FSDP_OK) {
        free(text);
        return fsdp_error_set(err, FSDP_ERR_CANCELLED, "the check was stopped");
    }
    free(text);

    return FSDP_OK;
}

static fsdp_status_t check_entry(verify_t *verify, const char *dir,
                                 const char *name, fsdp_error_t *err)
{
    char *path = io_path("%s/%s", dir, name);
    fsdp_status_t status;
    fsdp_error_t why;

    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", dir);
    }

    if (ranks_is_own(&verify->ranks, name)) {
        status = FSDP_OK;
    } else if (strncmp(name, TEMPORARY, strlen(TEMPORARY)) == 0) {
        status = find_leftover(verify, path, err);
    } else if (strcmp(name, LATEST) == 0) {
        status = verify_status(verify, check_latest(verify, dir, path, &why),
                               &why, err);
    } else {
        status =
            verify_status(verify, check_one(verify, path, &why), &why, err);
    }
    free(path);

    return status;
}

/* @param is_dir_p  Whether it is a directory of checkpoints at all: others
 *                   have a `latest` too. */
static fsdp_status_t check_many(verify_t *verify, const char *dir,
                                bool *is_dir_p, fsdp_error_t *err)
{
    struct dirent **entries;
    fsdp_status_t status = FSDP_OK;
    int num = scandir(dir, &entries, is_entry, versionsort);

    *is_dir_p = false;
    for (int i = 0; i < num; i++) {
        *is_dir_p = *is_dir_p || strcmp(entries[i]->d_name, LATEST) != 0;
    }
    for (int i = 0; i < num; i++) {
        if (status == FSDP_OK && *is_dir_p) {
            status = check_entry(verify, dir, entries[i]->d_name, err);
        }
    }
    dir_free(entries, num);

    return status;
}

/* --- The call ------------------------------------------------------------- */

static fsdp_status_t check(verify_t *verify, const char *path,
                           fsdp_error_t *err)
{
    bool is_dir = false;
    format_look_t look;

    FSDP_TRY(format_look(path, &look, err));
    if (look.is_dir && !format_hdf5.probe(&look)) {
        FSDP_TRY(check_many(verify, path, &is_dir, err));
        /* Other tools' checkpoints have a file `latest` too. */
        if (is_dir && format_recognise(&look) == NULL) {
            return FSDP_OK;
        }
    }

    return check_one(verify, path, err);
}

static fsdp_status_t run(verify_t *verify, const char *path, fsdp_error_t *err)
{
    char *found = format_find(path, NULL);
    fsdp_status_t status =
        (found != NULL)
            ? check(verify, found, err)
            : fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);

    free(found);
    return status;
}

fsdp_status_t fsdp_ckpt_verify(const char *path, const char *recipe,
                               const fsdp_ckpt_engine_t *engine,
                               const fsdp_ckpt_ranks_t *ranks,
                               fsdp_ckpt_finding_f finding, void *arg,
                               fsdp_ckpt_verify_result_t *result_p,
                               fsdp_error_t *err)
{
    fsdp_ckpt_engine_t shared =
        (engine != NULL) ? *engine : (fsdp_ckpt_engine_t){0};
    verify_t verify = {
        .recipe = recipe,
        .engine = engine,
        .finding = finding,
        .arg = arg,
        .lock = PTHREAD_MUTEX_INITIALIZER,
    };
    double began = clock_now();
    fsdp_status_t status = ranks_meet(&verify.ranks, ranks, engine, err);

    if (status == FSDP_OK && verify.ranks.commit != NULL) {
        shared.progress = ranks_progress;
        shared.progress_arg = &verify.ranks;
        verify.engine = &shared;
    }
    if (status == FSDP_OK) {
        status = verify_end(&verify, run(&verify, path, err), err);
    }
    pthread_mutex_destroy(&verify.lock);
    if (status == FSDP_OK) {
        verify.result.seconds = clock_now() - began;
        *result_p = verify.result;
    }

    return status;
}
