/*
 * Directories of checkpoints: which is the newest, which may go, and what
 * interrupted work left.
 */
#include "config.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/format.h"
#include "lib/util/check.h"
#include "lib/util/dir.h"
#include "lib/util/io.h"
#include "lib/util/text.h"

#define TEMPORARY ".tmp-"
#define LATEST    "latest"

typedef struct {
    char *name;
    int64_t step;
    bool looked, valid;
    bool unread;   /* an error of the disk, not damage: it may be whole */
    char why[500]; /* it is not */
} member_t;

typedef struct {
    const char *dir;
    bool deep;
    const fsdp_ckpt_engine_t *engine;
    member_t *members; /* newest first */
    size_t num;
    char *latest; /* what DIR/latest says; NULL: nothing */
} keep_t;

/* --- What is there -------------------------------------------------------- */

static int newest_first(const void *a, const void *b)
{
    const member_t *left = a, *right = b;

    return (left->step != right->step)
               ? (left->step < right->step) - (left->step > right->step)
               : strcmp(left->name, right->name);
}

static fsdp_status_t add_member(keep_t *keep, const char *name,
                                fsdp_error_t *err)
{
    member_t *larger =
        reallocarray(keep->members, keep->num + 1, sizeof(*keep->members));
    char *copy = strdup(name);

    if (larger != NULL) {
        keep->members = larger;
    }
    if (larger == NULL || copy == NULL) {
        free(copy);
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              keep->dir);
    }

    keep->members[keep->num++] =
        (member_t){.name = copy, .step = format_step(name)};
    return FSDP_OK;
}

/* Directories only: what a link names is someone else's. */
static bool is_directory(const char *dir, const char *name)
{
    char *path = io_path("%s/%s", dir, name);
    struct stat st;
    bool is_dir = path != NULL && lstat(path, &st) == 0 && S_ISDIR(st.st_mode);

    free(path);
    return is_dir;
}

static fsdp_status_t list_members(keep_t *keep, fsdp_error_t *err)
{
    DIR *stream = opendir(keep->dir);
    fsdp_status_t status = FSDP_OK;
    struct dirent *entry;

    if (stream == NULL) {
        return fsdp_error_set(
            err, (errno == ENOENT) ? FSDP_ERR_NOT_FOUND : FSDP_ERR_IO,
            "%s: cannot read: %m", keep->dir);
    }

    while (status == FSDP_OK && (entry = readdir(stream)) != NULL) {
        if (format_step(entry->d_name) >= 0 &&
            is_directory(keep->dir, entry->d_name)) {
            status = add_member(keep, entry->d_name, err);
        }
    }
    closedir(stream);
    if (keep->num > 0) {
        qsort(keep->members, keep->num, sizeof(*keep->members), newest_first);
    }

    return status;
}

static fsdp_status_t keep_open(keep_t *keep, fsdp_error_t *err)
{
    FSDP_TRY(list_members(keep, err));
    return io_read_name(keep->dir, LATEST, &keep->latest, err);
}

static void keep_close(keep_t *keep)
{
    for (size_t i = 0; i < keep->num; i++) {
        free(keep->members[i].name);
    }
    free(keep->members);
    free(keep->latest);
}

/* --- Which are valid ------------------------------------------------------ */

static bool is_damage(fsdp_status_t status)
{
    return status != FSDP_ERR_CANCELLED && status != FSDP_ERR_NO_MEMORY;
}

static bool first_finding(const char *text, void *arg)
{
    member_t *member = arg;

    snprintf(member->why, sizeof(member->why), "%s", text);
    return false;
}

static fsdp_status_t verify_member(const keep_t *keep, const char *path,
                                   member_t *member, fsdp_error_t *err)
{
    fsdp_ckpt_verify_result_t result = {0};
    fsdp_error_t why = {0};
    fsdp_status_t status = fsdp_ckpt_verify(
        path, NULL, keep->engine, NULL, first_finding, member, &result, &why);

    member->valid = status == FSDP_OK && result.findings == 0;
    member->unread = status == FSDP_ERR_IO;
    if (status == FSDP_OK || member->why[0] != '\0') {
        return FSDP_OK;
    }
    if (!is_damage(status)) {
        if (err != NULL) {
            *err = why;
        }
        return status;
    }
    snprintf(member->why, sizeof(member->why), "%s", why.text);
    return FSDP_OK;
}

/* Find out whether it is valid, once. */
static fsdp_status_t look_at(const keep_t *keep, member_t *member,
                             fsdp_error_t *err)
{
    char *path;
    fsdp_status_t status;
    fsdp_error_t why = {0};
    catalog_t cat;

    if (member->looked) {
        return FSDP_OK;
    }
    path = io_path("%s/%s", keep->dir, member->name);
    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              keep->dir);
    }

    catalog_init(&cat);
    status = format_open(path, &cat, &why);
    catalog_free(&cat);
    member->looked = true;
    member->valid = status == FSDP_OK;
    member->unread = status == FSDP_ERR_IO;
    if (status == FSDP_OK && keep->deep) {
        status = verify_member(keep, path, member, err);
    } else if (status != FSDP_OK && is_damage(status)) {
        snprintf(member->why, sizeof(member->why), "%s", why.text);
        status = FSDP_OK;
    } else if (status != FSDP_OK && err != NULL) {
        *err = why;
    }
    free(path);
    return status;
}

static fsdp_status_t none_valid(const keep_t *keep, fsdp_error_t *err)
{
    if (keep->num == 0) {
        return fsdp_error_set(err, FSDP_ERR_NOT_FOUND,
                              "%s: holds no checkpoints, which are directories "
                              "named step-N; give the directory that they are "
                              "in",
                              keep->dir);
    }

    return fsdp_error_set(err, FSDP_ERR_NOT_FOUND,
                          "%s: none of its %zu checkpoint%s step-N is valid "
                          "(fsdp-verify tells why)",
                          keep->dir, keep->num, (keep->num == 1) ? "" : "s");
}

static fsdp_status_t stopped(const keep_t *keep, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_CANCELLED, "%s: stopped", keep->dir);
}

/* --- The newest ----------------------------------------------------------- */

static fsdp_status_t find_newest(keep_t *keep,
                                 const fsdp_ckpt_latest_config_t *config,
                                 const member_t **newest_p, fsdp_error_t *err)
{
    for (size_t i = 0; i < keep->num; i++) {
        member_t *member = &keep->members[i];

        FSDP_TRY(look_at(keep, member, err));
        if (member->valid) {
            *newest_p = member;
            return FSDP_OK;
        }
        if (config->skipped != NULL &&
            !config->skipped(member->name, member->why, config->arg)) {
            return stopped(keep, err);
        }
    }

    return none_valid(keep, err);
}

static fsdp_status_t repair_latest(const keep_t *keep, const member_t *newest,
                                   bool *repaired_p, fsdp_error_t *err)
{
    char *path, *text;
    fsdp_status_t status;

    *repaired_p = false;
    if (keep->latest != NULL && strcmp(keep->latest, newest->name) == 0) {
        return FSDP_OK;
    }

    path = io_path("%s/" LATEST, keep->dir);
    text = io_path("%s\n", newest->name);
    status = (path != NULL && text != NULL)
                 ? io_replace_file(path, text, strlen(text), err)
                 : fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                                  keep->dir);
    *repaired_p = status == FSDP_OK;
    free(path);
    free(text);
    return status;
}

fsdp_status_t fsdp_ckpt_latest(const char *dir,
                               const fsdp_ckpt_latest_config_t *config,
                               fsdp_ckpt_latest_result_t *result_p,
                               fsdp_error_t *err)
{
    keep_t keep = {.dir = dir, .deep = config->deep, .engine = &config->engine};
    fsdp_ckpt_latest_result_t result = {0};
    const member_t *newest = NULL;
    fsdp_status_t status;
    int n;

    FSDP_TRY_SIZE(config, err);
    FSDP_TRY_GOTO(keep_open(&keep, err), err_close);
    FSDP_TRY_GOTO(find_newest(&keep, config, &newest, err), err_close);
    n = snprintf(result.path, sizeof(result.path), "%s/%s", dir, newest->name);
    if (n < 0 || (size_t)n >= sizeof(result.path)) {
        status =
            fsdp_error_set(err, FSDP_ERR_OVERFLOW, "%s: a path too long", dir);
        goto err_close;
    }
    result.step = newest->step;
    if (config->repair) {
        FSDP_TRY_GOTO(repair_latest(&keep, newest, &result.repaired, err),
                      err_close);
    }
    *result_p = result;
err_close:
    keep_close(&keep);
    return status;
}

/* --- Removing ------------------------------------------------------------- */

/* What nftw() gathers; one thread at a time uses it. */
static _Thread_local struct {
    uint64_t bytes;
    time_t newest;
    int failed; /* errno */
} walk;

static int visit(const char *path, const struct stat *st, int type,
                 struct FTW *ftw)
{
    (void)path;
    (void)ftw;
    if (type == FTW_F) {
        walk.bytes += (uint64_t)st->st_size;
    }
    if (type == FTW_NS || type == FTW_DNR) {
        walk.failed = errno;
    } else if (st->st_mtime > walk.newest) {
        walk.newest = st->st_mtime;
    }
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int type,
                      struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    /* The first one: the directories above are then not empty. */
    if (remove(path) != 0 && errno != ENOENT && walk.failed == 0) {
        walk.failed = errno;
    }
    return 0;
}

static void survey(const char *path)
{
    walk.bytes = 0;
    walk.newest = 0;
    walk.failed = 0;
    if (nftw(path, visit, 16, FTW_PHYS) != 0) {
        walk.failed = errno;
    }
}

static fsdp_status_t remove_tree(const char *path, fsdp_error_t *err)
{
    walk.failed = 0;
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0 &&
        errno != ENOENT && walk.failed == 0) {
        walk.failed = errno;
    }
    if (walk.failed != 0) {
        errno = walk.failed;
        return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot be removed: %m",
                              path);
    }

    return FSDP_OK;
}

/* A checkpoint: first it gets a name that is taken for none. */
static fsdp_status_t remove_member(const keep_t *keep, const char *path,
                                   const member_t *member, fsdp_error_t *err)
{
    char *away = io_path("%s/" TEMPORARY "%s-pruned-%ld", keep->dir,
                         member->name, (long)getpid());
    fsdp_status_t status;

    if (away == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              keep->dir);
    }

    status = io_rename(path, away, err);
    if (status == FSDP_OK) {
        status = io_fsync_path(keep->dir, err);
    }
    if (status == FSDP_OK) {
        status = remove_tree(away, err);
    }
    free(away);
    return status;
}

/* --- Pruning -------------------------------------------------------------- */

/* Why a checkpoint stays; NULL: it goes.
 * @param rank  Its place among the valid ones, from 0. */
static const char *why_kept(const keep_t *keep,
                            const fsdp_ckpt_prune_config_t *config,
                            const member_t *member, uint64_t rank)
{
    if (!member->valid && (!config->damaged || member->unread)) {
        return member->why;
    }
    if (keep->latest != NULL && strcmp(keep->latest, member->name) == 0) {
        return "latest names it";
    }
    if (!member->valid) {
        return NULL;
    }
    if (rank == 0) {
        return "the newest valid one";
    }
    if (rank < config->keep_last) {
        return "one of the last";
    }
    if (config->keep_every > 0 &&
        (uint64_t)member->step % config->keep_every == 0) {
        return "its step is a multiple";
    }

    return NULL;
}

static fsdp_status_t prune_one(const keep_t *keep,
                               const fsdp_ckpt_prune_config_t *config,
                               const member_t *member, const char *why,
                               fsdp_ckpt_prune_result_t *result,
                               fsdp_error_t *err)
{
    fsdp_ckpt_entry_f tell = (why != NULL) ? config->kept : config->removed;
    char *path = io_path("%s/%s", keep->dir, member->name);
    fsdp_status_t status = FSDP_OK;

    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              keep->dir);
    }

    survey(path);
    if (tell != NULL && !tell(path, (why != NULL) ? why : "", config->arg)) {
        status = stopped(keep, err);
    } else if (why != NULL) {
        result->kept++;
    } else {
        if (!config->dry_run) {
            status = remove_member(keep, path, member, err);
        }
        if (status == FSDP_OK) {
            result->removed++;
            result->bytes += walk.bytes;
        }
    }
    free(path);
    return status;
}

/* Which are valid must be known before anything is removed. */
static fsdp_status_t prune(keep_t *keep, const fsdp_ckpt_prune_config_t *config,
                           fsdp_ckpt_prune_result_t *result, fsdp_error_t *err)
{
    uint64_t valid = 0, rank = 0;

    for (size_t i = 0; i < keep->num; i++) {
        FSDP_TRY(look_at(keep, &keep->members[i], err));
        valid += keep->members[i].valid;
    }
    if (valid == 0) {
        return none_valid(keep, err);
    }

    for (size_t i = 0; i < keep->num; i++) {
        const member_t *member = &keep->members[i];

        FSDP_TRY(prune_one(keep, config, member,
                           why_kept(keep, config, member, rank), result, err));
        rank += member->valid;
    }

    return FSDP_OK;
}

fsdp_status_t fsdp_ckpt_prune(const char *dir,
                              const fsdp_ckpt_prune_config_t *config,
                              fsdp_ckpt_prune_result_t *result_p,
                              fsdp_error_t *err)
{
    keep_t keep = {.dir = dir, .deep = config->deep, .engine = &config->engine};
    fsdp_ckpt_prune_result_t result = {0};
    fsdp_status_t status;

    FSDP_TRY_SIZE(config, err);
    if (config->keep_last == 0) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "at least one checkpoint is kept");
    }

    FSDP_TRY_GOTO(keep_open(&keep, err), err_close);
    status = prune(&keep, config, &result, err);
err_close:
    keep_close(&keep);
    *result_p = result; /* what was done before an error, too */
    return status;
}

/* --- Leftovers ------------------------------------------------------------ */

static int is_temporary(const struct dirent *entry)
{
    return strncmp(entry->d_name, TEMPORARY, strlen(TEMPORARY)) == 0;
}

static fsdp_status_t clean_one(const char *dir, const char *name, double age,
                               fsdp_ckpt_entry_f removed, void *arg,
                               uint64_t *num, fsdp_error_t *err)
{
    char *path = io_path("%s/%s", dir, name), text[100], age_text[TEXT_AGE_MAX];
    fsdp_status_t status = FSDP_OK;
    double idle;

    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", dir);
    }

    survey(path);
    idle = difftime(time(NULL), walk.newest);
    if (walk.failed != 0 && walk.failed != ENOENT) {
        errno = walk.failed;
        status =
            fsdp_error_set(err, FSDP_ERR_IO,
                           "%s: cannot see when it was last touched: %m", path);
    } else if (walk.failed == 0 && idle >= age) { /* else someone works there */
        snprintf(text, sizeof(text), "last touched %s",
                 text_age(idle, age_text));
        if (removed != NULL && !removed(path, text, arg)) {
            status =
                fsdp_error_set(err, FSDP_ERR_CANCELLED, "%s: stopped", dir);
        } else {
            status = remove_tree(path, err);
            *num += status == FSDP_OK;
        }
    }
    free(path);
    return status;
}

/* What an interrupted save leaves lies beside checkpoints, not in one. */
static fsdp_status_t refuse_one(const char *path, fsdp_error_t *err)
{
    format_look_t look;

    FSDP_TRY(format_look(path, &look, err));
    return (format_recognise(&look) == NULL || format_has_steps(path))
               ? FSDP_OK
               : fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                                "%s: is one checkpoint: there is something to "
                                "clean only in the directory that it lies in",
                                path);
}

fsdp_status_t fsdp_ckpt_clean(const char *dir, double age,
                              fsdp_ckpt_entry_f removed, void *arg,
                              uint64_t *removed_p, fsdp_error_t *err)
{
    struct dirent **entries;
    fsdp_status_t status = FSDP_OK;
    int num = scandir(dir, &entries, is_temporary, alphasort);

    *removed_p = 0;
    if (num == 0 || (num < 0 && errno == ENOTDIR)) {
        status = refuse_one(dir, err);
    } else if (num < 0) {
        return fsdp_error_set(
            err, (errno == ENOENT) ? FSDP_ERR_NOT_FOUND : FSDP_ERR_IO,
            "%s: cannot read: %m", dir);
    }
    for (int i = 0; i < num; i++) {
        if (status == FSDP_OK) {
            status = clean_one(dir, entries[i]->d_name, age, removed, arg,
                               removed_p, err);
        }
    }
    dir_free(entries, num);

    return status;
}
