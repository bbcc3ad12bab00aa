#define _GNU_SOURCE
#include "config.h"

#include "ckpt/commit_private.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "lib/util/check.h"
#include "lib/util/clock.h"
#include "lib/util/io.h"

#define DEADLINE    600.0
#define QUICK       2.0  /* seconds that are left when a signal came */
#define PATIENCE    30.0 /* seconds to keep back an error until all know it */
#define MESSAGE_MAX (1u << 30)
#define RESERVE     4096 /* a message that must get through without space */

/* --- Helpers -------------------------------------------------------------- */

void commit_pause(unsigned *round)
{
    long ms = (*round < 6) ? 1L << *round : 50;
    struct timespec ts = {.tv_nsec = ms * 1000000};

    nanosleep(&ts, NULL);
    (*round)++;
}

static fsdp_status_t no_memory(const char *what, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", what);
}

static int remove_entry(const char *path, const struct stat *st, int type,
                        struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    (void)remove(path);
    return 0; /* go on: as much as can be */
}

/* A temporary tree; what cannot be removed stays, and is never taken for a
 * checkpoint. */
static void remove_tree(const char *path)
{
    int saved = errno;

    (void)nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    errno = saved;
}

/* Opening a directory makes a network file system ask the server for it, so
 * that a new entry is seen at once and not when a cache has grown old. */
void commit_refresh(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd >= 0) {
        close(fd);
    }
}

bool commit_exists(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0;
}

fsdp_status_t commit_preflight(const char *dir, uint64_t bytes, uint64_t files,
                               uint64_t *free_p, fsdp_error_t *err)
{
    struct statvfs vfs;
    uint64_t room;

    if (statvfs(dir, &vfs) != 0) {
        /* Where to write is the environment's business, not a bad source. */
        return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot write here: %m",
                              dir);
    }
    if (access(dir, W_OK | X_OK) != 0) {
        return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot write here: %m",
                              dir);
    }

    room = (uint64_t)vfs.f_bavail * vfs.f_frsize;
    if (bytes > room) {
        errno = ENOSPC;
        return fsdp_error_set(err, FSDP_ERR_IO,
                              "%s: needs %" PRIu64 " bytes, but only %" PRIu64
                              " are free; nothing was written",
                              dir, bytes, room);
    }
    if (vfs.f_files > 0 && files > vfs.f_favail) {
        errno = ENOSPC;
        return fsdp_error_set(err, FSDP_ERR_IO,
                              "%s: needs %" PRIu64 " more files, but only "
                              "%" PRIu64
                              " inodes are free; nothing was written",
                              dir, files, (uint64_t)vfs.f_favail);
    }

    if (free_p != NULL) {
        *free_p = room;
    }
    return FSDP_OK;
}

/* --- Failure of a rank ---------------------------------------------------- */

/*
 * "failed" appears whole by link(2): the first failing rank's error.  Where
 * even a small file cannot be made any more, the error is written over the
 * file "reserve", whose space rank 0 has taken at the start.
 */

static int format_failure(const commit_t *commit, fsdp_status_t status,
                          const fsdp_error_t *err, char *text, size_t size)
{
    char who[100], from[120] = "";

    /* An error that rank 0 shows for another; one that is about others names
     * them already. */
    if (commit->meet && commit->rank != 0 && status != FSDP_ERR_PEER_LOST) {
        commit_rank_text(commit, commit->rank, who, sizeof(who));
        snprintf(from, sizeof(from), "rank %s: ", who);
    }
    if (commit->meet && status == FSDP_ERR_CANCELLED) {
        status = FSDP_ERR_SIGNALLED; /* to the others it is no wish */
    }

    return snprintf(text, size, "%d %d %d\n%s%s", (int)status,
                    (err != NULL) ? err->sys_errno : 0,
                    (err != NULL && err->rank >= 0) ? err->rank
                                                    : (int)commit->rank,
                    from, (err != NULL) ? err->text : "");
}

static void post_failure(commit_t *commit, fsdp_status_t status,
                         const fsdp_error_t *err)
{
    char *mine = io_path("%s/failed-%05u", commit->ranks, commit->rank);
    char *failed = io_path("%s/failed", commit->ranks);
    char *reserve = io_path("%s/reserve", commit->ranks);
    char text[RESERVE] = {0};
    int fd, size = format_failure(commit, status, err, text, sizeof(text));

    if (mine == NULL || failed == NULL || reserve == NULL ||
        commit_exists(failed)) {
        goto err_free;
    }

    if (io_replace_file(mine, text, (size_t)size, NULL) == FSDP_OK &&
        (link(mine, failed) == 0 || errno == EEXIST)) {
        unlink(mine);
    } else if (io_open(reserve, O_WRONLY, 0, &fd, NULL) == FSDP_OK) {
        (void)io_pwrite(fd, text, sizeof(text), 0, reserve, NULL);
        close(fd);
    }
err_free:
    free(mine);
    free(failed);
    free(reserve);
}

static fsdp_status_t parse_failure(const char *text, fsdp_error_t *err)
{
    const char *line = strchr(text, '\n');
    int status, sys_errno, rank;

    if (line == NULL ||
        sscanf(text, "%d %d %d", &status, &sys_errno, &rank) != 3 ||
        status == FSDP_OK) {
        return FSDP_OK;
    }

    errno = 0;
    fsdp_error_set(err, (fsdp_status_t)status, "%s", line + 1);
    if (err != NULL) {
        err->sys_errno = sys_errno;
        err->rank = rank;
    }
    return (fsdp_status_t)status;
}

fsdp_status_t commit_look_for_failure(commit_t *commit, fsdp_error_t *err)
{
    static const char *const names[] = {"failed", "reserve"};
    fsdp_status_t status = FSDP_OK;

    for (int i = 0; i < 2 && status == FSDP_OK; i++) {
        char *path = io_path("%s/%s", commit->ranks, names[i]), *text = NULL;
        size_t size;

        if (path != NULL && io_read_file(path, 2 * (size_t)RESERVE, &text,
                                         &size, NULL) == FSDP_OK) {
            status = parse_failure(text, err);
            free(text);
        }
        free(path);
    }

    return status;
}

/* --- Beginning ------------------------------------------------------------ */

static void commit_free(commit_t *commit)
{
    free(commit->target);
    free(commit->parent);
    free(commit->name);
    free(commit->tmp);
    free(commit->ranks);
    free(commit->peers);
    free(commit->welcome);
    free(commit);
}

static fsdp_status_t split_target(commit_t *commit,
                                  const commit_config_t *config,
                                  fsdp_error_t *err)
{
    size_t size = strlen(config->target);

    while (size > 1 && config->target[size - 1] == '/') {
        size--;
    }
    commit->target = strndup(config->target, size);
    if (commit->target == NULL) {
        return no_memory(config->target, err);
    }

    commit->name = strdup(io_base(commit->target));
    commit->parent = io_parent(commit->target);
    if (commit->name == NULL || commit->parent == NULL) {
        return no_memory(config->target, err);
    }
    if (commit->name[0] == '\0' || strcmp(commit->name, ".") == 0 ||
        strcmp(commit->name, "..") == 0) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "'%s' cannot be the name of a new checkpoint",
                              config->target);
    }

    commit->tmp =
        io_path("%s/.tmp-%s-%s", commit->parent, commit->name, config->id);
    if (commit->tmp == NULL) {
        return no_memory(config->target, err);
    }
    if (config->world > 1) {
        commit->ranks = io_path("%s.ranks", commit->tmp);
        if (commit->ranks == NULL) {
            return no_memory(config->target, err);
        }
    }
    return FSDP_OK;
}

static fsdp_status_t make_dir(const char *path, fsdp_error_t *err)
{
    if (mkdir(path, 0777) != 0) {
        return fsdp_error_set(err, FSDP_ERR_IO,
                              "%s: cannot make the directory: %m", path);
    }

    return FSDP_OK;
}

/* All messages at once: a rank that is late must not put another one among
 * them. */
static void remove_ranks(const commit_t *commit)
{
    char *old =
        (commit->ranks != NULL) ? io_path("%s.old", commit->ranks) : NULL;

    if (old != NULL && rename(commit->ranks, old) == 0) {
        remove_tree(old);
    }
    free(old);
}

/* The messages' directory appears last, with the reserve in it: it is the sign
 * that all is ready. */
static fsdp_status_t make_ranks(const commit_t *commit, fsdp_error_t *err)
{
    char *building = io_path("%s.new", commit->ranks);
    char *reserve = io_path("%s/reserve", building);
    fsdp_status_t status;

    if (building == NULL || reserve == NULL) {
        status = no_memory(commit->target, err);
        goto err_free;
    }

    FSDP_TRY_GOTO(make_dir(building, err), err_free);
    status = io_replace_file(reserve, (char[RESERVE]){0}, RESERVE, err);
    if (status == FSDP_OK) {
        status = io_rename(building, commit->ranks, err);
    }
    if (status != FSDP_OK) {
        remove_tree(building);
    }
err_free:
    free(building);
    free(reserve);
    return status;
}

static fsdp_status_t begin_first(commit_t *commit,
                                 const commit_config_t *config,
                                 fsdp_error_t *err)
{
    fsdp_status_t status;

    if (commit_exists(commit->target) && !config->replace) {
        return fsdp_error_set(err, FSDP_ERR_EXISTS,
                              "%s: is there already; it is not replaced",
                              commit->target);
    }
    FSDP_TRY(commit_preflight(commit->parent, config->bytes, config->files,
                              NULL, err));
    if (config->meet) {
        /* What a run with the same identifier left behind when it died: no
         * other one has it, and our own ranks wait for a welcome. */
        remove_ranks(commit);
        remove_tree(commit->tmp);
    }
    if (commit_exists(commit->tmp)) {
        return fsdp_error_set(err, FSDP_ERR_EXISTS,
                              "%s: is there already; another run with the same "
                              "identifier is writing, or left it behind",
                              commit->tmp);
    }

    if (commit->is_dir) {
        FSDP_TRY(make_dir(commit->tmp, err));
    }
    if (commit->ranks != NULL) {
        status = make_ranks(commit, err);
        if (status != FSDP_OK) {
            remove_tree(commit->tmp);
            return status;
        }
    }
    return FSDP_OK;
}

/* Rank 0 may be unable to say that it has failed: while nothing is there, see
 * for ourselves whether anything could be. */
static fsdp_status_t begin_other(commit_t *commit,
                                 const commit_config_t *config,
                                 fsdp_error_t *err)
{
    double end = clock_now() + commit->deadline, look = clock_now() + 2;
    unsigned round = 0;

    for (commit_refresh(commit->parent); !commit_exists(commit->ranks);
         commit_refresh(commit->parent)) {
        if (clock_now() > look && commit_exists(commit->parent)) {
            FSDP_TRY(commit_preflight(commit->parent, config->bytes,
                                      config->files, NULL, err));
            look = clock_now() + 2;
        }
        if (commit->go_on != NULL && !commit->go_on(commit->arg)) {
            return fsdp_error_set(err, FSDP_ERR_CANCELLED, "stopped as asked");
        }
        if (clock_now() > end) {
            return fsdp_error_set(err, FSDP_ERR_PEER_LOST,
                                  "%s: rank 0 has not begun to write it within "
                                  "%.0f s",
                                  commit->target, commit->deadline);
        }
        commit_pause(&round);
    }

    return FSDP_OK;
}

static fsdp_status_t commit_new(const commit_config_t *config,
                                commit_t **commit_p, fsdp_error_t *err)
{
    commit_t *commit = calloc(1, sizeof(*commit));
    fsdp_status_t status;

    if (commit == NULL) {
        return no_memory(config->target, err);
    }

    commit->is_dir = config->is_dir;
    commit->replace = config->replace;
    commit->rank = config->rank;
    commit->world = config->world;
    commit->deadline = (config->deadline > 0) ? config->deadline : DEADLINE;
    commit->meet = config->meet;
    commit->go_on = config->go_on;
    commit->arg = config->arg;
    status = split_target(commit, config, err);
    if (status != FSDP_OK) {
        commit_free(commit);
        return status;
    }

    *commit_p = commit;
    return FSDP_OK;
}

fsdp_status_t commit_tell(const commit_config_t *config, fsdp_status_t status,
                          fsdp_error_t *err)
{
    fsdp_status_t ready;
    commit_t *commit;
    double patience;

    if (config->world == 1 || commit_new(config, &commit, NULL) != FSDP_OK) {
        return status;
    }

    patience = commit->deadline;
    if (config->rank == 0) {
        patience = (patience < PATIENCE) ? patience : PATIENCE;
        remove_ranks(commit);
        ready = make_ranks(commit, NULL);
    } else {
        ready = commit_exists(commit->parent)
                    ? begin_other(commit, config, NULL)
                    : FSDP_ERR_NOT_FOUND;
    }
    if (ready == FSDP_OK) {
        (void)commit_meet(commit, patience, NULL);
        if (config->rank == 0 || commit->peers != NULL) {
            return commit_end(commit, status, err);
        }
    }

    commit_free(commit);
    return status;
}

fsdp_status_t commit_begin(const commit_config_t *config, commit_t **commit_p,
                           fsdp_error_t *err)
{
    bool meet = config->meet && config->world > 1;
    fsdp_status_t status;
    commit_t *commit;

    FSDP_TRY(commit_new(config, &commit, err));
    status = (config->rank == 0) ? begin_first(commit, config, err)
                                 : begin_other(commit, config, err);
    if (status != FSDP_OK) {
        commit_free(commit);
        return (meet && config->rank == 0) ? commit_tell(config, status, err)
                                           : status;
    }
    if (meet) {
        status = commit_meet(commit, commit->deadline, err);
        if (status != FSDP_OK) {
            return commit_end(commit, status, err);
        }
    }

    *commit_p = commit;
    return FSDP_OK;
}

const char *commit_path(const commit_t *commit)
{
    return commit->tmp;
}

/* --- Messages ------------------------------------------------------------- */

char *commit_message_path(const commit_t *commit, const char *topic,
                          uint32_t number)
{
    return io_path("%s/%s-%05u", commit->ranks, topic, number);
}

fsdp_status_t commit_post(commit_t *commit, const char *topic, uint32_t number,
                          const void *data, size_t size, fsdp_error_t *err)
{
    char *path = commit_message_path(commit, topic, number);
    char *building = io_path("%s.%u", path, commit->rank);
    fsdp_status_t status;
    int fd;

    if (path == NULL || building == NULL) {
        status = no_memory(commit->target, err);
        goto err_free;
    }

    /* It need not be durable: a run that dies never commits. */
    status = io_open(building, O_WRONLY | O_CREAT | O_TRUNC, 0666, &fd, err);
    if (status != FSDP_OK) {
        goto err_free;
    }
    status = io_pwrite(fd, data, size, 0, building, err);
    status = io_close(fd, status, building, err);
    if (status == FSDP_OK && rename(building, path) != 0) {
        status =
            fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot rename: %m", building);
    }
err_free:
    free(path);
    free(building);
    return status;
}

/* Names the missing ranks: "ranks 3, 5 and 12 more". */
fsdp_status_t commit_missing(const commit_t *commit, const char *topic,
                             uint32_t first, uint32_t num,
                             const uint32_t *rank_of, char *const *texts,
                             fsdp_error_t *err)
{
    char list[300] = "", who[100];
    size_t used = 0;
    uint32_t more = 0;

    for (uint32_t i = 0; i < num; i++) {
        uint32_t rank = (rank_of != NULL) ? rank_of[i] : first + i;

        if (texts[i] != NULL) {
            continue;
        }
        if (used > 150) {
            more++;
            continue;
        }
        commit_rank_text(commit, rank, who, sizeof(who));
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s",
                                 (used > 0) ? ", " : "", who);
    }
    if (more > 0) {
        snprintf(list + used, sizeof(list) - used, " and %u more", more);
    }

    errno = 0;
    return fsdp_error_set(err, FSDP_ERR_PEER_LOST,
                          "%s: no word from rank %s within %.0f s (waiting for "
                          "'%s'); nothing was changed",
                          commit->target, list, commit->deadline, topic);
}

fsdp_status_t commit_receive(commit_t *commit, const char *topic,
                             uint32_t first, uint32_t num, char **texts,
                             size_t *sizes, uint32_t *missing_p,
                             fsdp_error_t *err)
{
    uint32_t left = 0;

    if (num > 0) { /* a process alone has no such directory */
        commit_refresh(commit->ranks);
    }
    for (uint32_t i = 0; i < num; i++) {
        fsdp_status_t status;
        char *path;

        if (texts[i] != NULL) {
            continue;
        }
        path = commit_message_path(commit, topic, first + i);
        if (path == NULL) {
            return no_memory(commit->target, err);
        }
        status = commit_exists(path) ? io_read_file(path, MESSAGE_MAX,
                                                    &texts[i], &sizes[i], err)
                                     : FSDP_ERR_NOT_FOUND;
        free(path);
        if (status != FSDP_OK && status != FSDP_ERR_NOT_FOUND) {
            return status;
        }
        left += status != FSDP_OK;
    }

    *missing_p = left;
    return FSDP_OK;
}

/* Is one of those who have not sent their message lost?  @a look_p: when to
 * look again at what they show of themselves. */
static bool any_lost(commit_t *commit, uint32_t first, uint32_t num,
                     const uint32_t *rank_of, char *const *texts, double end,
                     double *look_p)
{
    bool lost = false;

    if (commit->peers == NULL) {
        return clock_now() > end;
    }
    if (clock_now() < *look_p) {
        return false;
    }

    *look_p = clock_now() + 1;
    for (uint32_t i = 0; i < num && !lost; i++) {
        lost = texts[i] == NULL &&
               commit_is_silent(commit,
                                (rank_of != NULL) ? rank_of[i] : first + i);
    }
    return lost;
}

fsdp_status_t commit_wait(commit_t *commit, const char *topic, uint32_t first,
                          uint32_t num, const uint32_t *rank_of, char **data_p,
                          size_t *size_p, fsdp_error_t *err)
{
    char **texts = calloc((size_t)num + 1, sizeof(*texts));
    size_t *sizes = calloc((size_t)num + 1, sizeof(*sizes));
    double end = clock_now() + commit->deadline, look = 0;
    fsdp_status_t status;
    unsigned round = 0;
    uint32_t left;

    if (texts == NULL || sizes == NULL) {
        status = no_memory(commit->target, err);
        goto err_free;
    }

    /* These wait for others in turn, and know better who is absent. */
    end += (rank_of != NULL) ? 1 : 0;
    for (uint32_t i = 0; i < num; i++) {
        commit_expect(commit, (rank_of != NULL) ? rank_of[i] : first + i);
    }
    for (;;) {
        FSDP_TRY_GOTO(
            commit_receive(commit, topic, first, num, texts, sizes, &left, err),
            err_free);
        if (left == 0) {
            break;
        }
        FSDP_TRY_GOTO(commit_poll(commit, err), err_free);
        if (any_lost(commit, first, num, rank_of, texts, end, &look)) {
            status =
                commit_missing(commit, topic, first, num, rank_of, texts, err);
            goto err_free;
        }
        commit_pause(&round);
    }

    if (data_p != NULL) {
        memcpy(data_p, texts, num * sizeof(*texts));
        memcpy(size_p, sizes, num * sizeof(*sizes));
        memset(texts, 0, num * sizeof(*texts));
    }
err_free:
    for (uint32_t i = 0; texts != NULL && i < num; i++) {
        free(texts[i]);
    }
    free(texts);
    free(sizes);
    return status;
}

fsdp_status_t commit_take(commit_t *commit, const char *topic, uint32_t first,
                          uint32_t num, const uint32_t *rank_of,
                          commit_take_f take, void *arg, fsdp_error_t *err)
{
    char **texts = calloc((size_t)num + 1, sizeof(*texts));
    size_t *sizes = calloc((size_t)num + 1, sizeof(*sizes));
    fsdp_status_t status;

    if (texts == NULL || sizes == NULL) {
        status = no_memory(commit->target, err);
        goto err_free;
    }

    status = commit_wait(commit, topic, first, num, rank_of, texts, sizes, err);
    for (uint32_t i = 0; i < num && status == FSDP_OK; i++) {
        status = take(first + i, texts[i], sizes[i], arg, err);
    }
    for (uint32_t i = 0; i < num; i++) {
        free(texts[i]);
    }
err_free:
    free(texts);
    free(sizes);
    return status;
}

/* --- Publishing ----------------------------------------------------------- */

/* Put the new directory in the place of an old one: at once where the file
 * system can exchange two names, else with a moment in between. */
static fsdp_status_t replace_dir(commit_t *commit, fsdp_error_t *err)
{
    char *old;
    fsdp_status_t status;

    if (renameat2(AT_FDCWD, commit->tmp, AT_FDCWD, commit->target,
                  RENAME_EXCHANGE) == 0) {
        status = io_fsync_path(commit->parent, err);
        remove_tree(commit->tmp);
        return status;
    }
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) {
        return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot replace it: %m",
                              commit->target);
    }

    old = io_path("%s.old", commit->tmp);
    if (old == NULL) {
        return no_memory(commit->target, err);
    }
    status = io_rename(commit->target, old, err);
    if (status == FSDP_OK) {
        status = io_rename(commit->tmp, commit->target, err);
        if (status != FSDP_OK) {
            (void)io_rename(old, commit->target, NULL);
        }
    }
    if (status == FSDP_OK) {
        remove_tree(old);
    }
    free(old);
    return status;
}

static fsdp_status_t appear(commit_t *commit, fsdp_error_t *err)
{
    if (commit->is_dir) {
        FSDP_TRY(io_fsync_path(commit->tmp, err));
        if (commit_exists(commit->target)) {
            if (!commit->replace) {
                return fsdp_error_set(err, FSDP_ERR_EXISTS,
                                      "%s: has appeared meanwhile; it is not "
                                      "replaced",
                                      commit->target);
            }
            return replace_dir(commit, err);
        }
        return io_rename(commit->tmp, commit->target, err);
    }

    /* link() does not replace what may have appeared meanwhile. */
    if (!commit->replace && link(commit->tmp, commit->target) == 0) {
        unlink(commit->tmp);
        return io_fsync_path(commit->parent, err);
    }
    if (!commit->replace && errno == EEXIST) {
        return fsdp_error_set(err, FSDP_ERR_EXISTS,
                              "%s: has appeared meanwhile; it is not replaced",
                              commit->target);
    }
    return io_rename(commit->tmp, commit->target, err);
}

fsdp_status_t commit_publish(commit_t *commit, bool latest, fsdp_error_t *err)
{
    fsdp_status_t status;
    char *path, *line;

    if (commit->ranks != NULL) {
        FSDP_TRY(commit_look_for_failure(commit, err));
    }
    FSDP_TRY(appear(commit, err));
    commit->published = true;

    if (latest) {
        path = io_path("%s/latest", commit->parent);
        line = io_path("%s\n", commit->name);
        status = (path != NULL && line != NULL)
                     ? io_replace_file(path, line, strlen(line), err)
                     : no_memory(commit->target, err);
        free(path);
        free(line);
        FSDP_TRY(status);
    }

    return (commit->ranks != NULL)
               ? commit_post(commit, "published", 0, "", 0, err)
               : FSDP_OK;
}

/* Rank 0 takes the messages away when it has waited long enough. */
static bool has_given_up(const commit_t *commit, const char *published)
{
    return !commit_exists(commit->ranks) && !commit_exists(published) &&
           (commit_exists(commit->tmp) || !commit_exists(commit->target));
}

fsdp_status_t commit_wait_published(commit_t *commit, fsdp_error_t *err)
{
    /* Rank 0 waits for everyone, and says first who is absent. */
    double end = clock_now() + commit->deadline + 2, look = 0;
    unsigned round = 0;
    char *path = commit_message_path(commit, "published", 0);
    char *none = NULL, who[100];
    fsdp_status_t status = FSDP_OK;

    if (path == NULL) {
        return no_memory(commit->target, err);
    }

    commit_rank_text(commit, 0, who, sizeof(who));
    commit_expect(commit, 0);
    for (commit_refresh(commit->ranks);
         status == FSDP_OK && !commit_exists(path);
         commit_refresh(commit->ranks)) {
        status = commit_poll(commit, err);
        if (status == FSDP_OK && !commit_exists(commit->ranks)) {
            if (has_given_up(commit, path)) {
                status = fsdp_error_set(err, FSDP_ERR_PEER_LOST,
                                        "%s: rank %s has given up",
                                        commit->target, who);
            }
            break;
        }
        if (status == FSDP_OK &&
            any_lost(commit, 0, 1, NULL, &none, end, &look)) {
            status = fsdp_error_set(err, FSDP_ERR_PEER_LOST,
                                    "%s: rank %s has not published it within "
                                    "%.0f s",
                                    commit->target, who, commit->deadline);
        }
        commit_pause(&round);
    }
    free(path);

    return status;
}

/* --- Ending --------------------------------------------------------------- */

double commit_grace(const commit_t *commit, fsdp_status_t status)
{
    double grace =
        (status == FSDP_ERR_CANCELLED || status == FSDP_ERR_SIGNALLED)
            ? QUICK
            : COMMIT_GRACE;

    return (commit->deadline < grace) ? commit->deadline : grace;
}

bool commit_has_left(const commit_t *commit, uint32_t rank)
{
    char *path = commit_message_path(commit, "left", rank);
    bool has_left = path != NULL && commit_exists(path);

    free(path);
    return has_left;
}

/* Rank 0: let the others read what there is to read, then clean up. */
static void dismiss(commit_t *commit, double grace)
{
    double end = clock_now() + grace;
    unsigned round = 0;

    for (uint32_t rank = 1; rank < commit->world && clock_now() < end;) {
        if (commit_has_left(commit, rank)) {
            rank++;
        } else {
            commit_pause(&round);
            commit_refresh(commit->ranks);
        }
    }
    remove_ranks(commit);
}

fsdp_status_t commit_end(commit_t *commit, fsdp_status_t status,
                         fsdp_error_t *err)
{
    fsdp_error_t first = {0};
    fsdp_status_t other;

    if (status != FSDP_OK && commit->ranks != NULL) {
        post_failure(commit, status, err);
        other = commit_look_for_failure(commit, &first);
        if (other != FSDP_OK) {
            status = other;
            if (err != NULL) {
                *err = first;
            }
        }
    }
    if (commit->ranks != NULL && commit->rank == 0) {
        dismiss(commit, commit_grace(commit, status));
    } else if (commit->ranks != NULL) {
        (void)commit_post(commit, "left", commit->rank, "", 0, NULL);
    }
    /* Now that the others have left: one that still wrote would leave a file
     * behind. */
    if (status != FSDP_OK && commit->rank == 0 && !commit->published) {
        remove_tree(commit->tmp);
    }

    commit_free(commit);
    return status;
}
