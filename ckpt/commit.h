/*
 * The commit protocol: a target is built under a temporary name and appears
 * under its own by one rename, when everything is durable.
 *
 * A directory target may be built by several ranks that share nothing but the
 * file system.  They meet in a directory of small messages beside it:
 *
 *     PARENT/.tmp-NAME-ID         the target while it is built
 *     PARENT/.tmp-NAME-ID.ranks   messages; gone when the commit is over
 *
 * Nothing that starts with ".tmp-" is ever taken for a checkpoint.
 */
#ifndef FSDP_COMMIT_H
#define FSDP_COMMIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/util/fsdp_status.h"

typedef struct commit commit_t;

typedef struct {
    const char *target; /* final path: directory or file */
    const char *id;     /* of this attempt; the same on all ranks */
    bool is_dir;
    bool replace;   /* an older directory of that name may be replaced */
    uint32_t rank;  /* who am I, of how many */
    uint32_t world; /* 1: no messages are used */
    uint64_t bytes; /* that the target will need in all, for the preflight */
    uint64_t files;
    double deadline; /* seconds that a wait for others may take */
    /* The ranks know of each other only that they have the same id: they meet
     * first.  Then errors name hosts, the deadline counts from a rank's last
     * sign of life, and what an earlier attempt with this id left goes. */
    bool meet;
    bool (*go_on)(void *arg); /* asked while waiting; false: stop with
                                 FSDP_ERR_CANCELLED.  NULL: never */
    void *arg;
} commit_config_t;

/* Is there room for @a bytes and @a files more in the file system of an
 * existing directory, and may we write there?
 * @param free_p  Bytes free; may be NULL. */
fsdp_status_t commit_preflight(const char *dir, uint64_t bytes, uint64_t files,
                               uint64_t *free_p, fsdp_error_t *err);

/**
 * Rank 0 checks the room, removes nothing of others, and makes the temporary
 * directories; the others wait for them.
 *
 * @return FSDP_ERR_EXISTS if the target is there and not to be replaced;
 *         FSDP_ERR_IO without room or permission.
 */
fsdp_status_t commit_begin(const commit_config_t *config, commit_t **commit_p,
                           fsdp_error_t *err);

/**
 * Instead of commit_begin(), for ranks that meet: this rank has failed
 * already, and the others are to know.
 *
 * @return as commit_end(); @a status, with @a err->rank -1, if they could not
 *         be told.
 */
fsdp_status_t commit_tell(const commit_config_t *config, fsdp_status_t status,
                          fsdp_error_t *err);

/**
 * During long work, as often as one likes: this rank lives.
 *
 * @param done  Bytes, for commit_done_by_all().
 *
 * @return false if another rank has failed: end with FSDP_ERR_CANCELLED, and
 *         commit_end() finds out why.
 */
bool commit_work(commit_t *commit, uint64_t done);

/* What all ranks have last said that they have done. */
uint64_t commit_done_by_all(commit_t *commit);

/* Temporary directory, or temporary file. */
const char *commit_path(const commit_t *commit);

/* Leave a message for the other ranks: it appears whole or not at all. */
fsdp_status_t commit_post(commit_t *commit, const char *topic, uint32_t number,
                          const void *data, size_t size, fsdp_error_t *err);

/**
 * Wait for the messages of @a topic with the numbers [first, first + num).
 *
 * @param rank_of  The rank that is to blame for message i: rank_of[i], or
 *                 first + i if it is NULL.
 * @param data_p   num texts, each to be freed by the caller, '\0' behind
 *                 them, and
 * @param size_p   their sizes.  Both NULL: only wait.
 *
 * @return FSDP_ERR_PEER_LOST, naming the ranks, at the deadline; another
 *         rank's error as soon as it has failed.
 */
fsdp_status_t commit_wait(commit_t *commit, const char *topic, uint32_t first,
                          uint32_t num, const uint32_t *rank_of, char **data_p,
                          size_t *size_p, fsdp_error_t *err);

/* What is to become of message @a number; '\0' is behind the text. */
typedef fsdp_status_t (*commit_take_f)(uint32_t number, const char *text,
                                       size_t size, void *arg,
                                       fsdp_error_t *err);

/* Wait for messages as commit_wait() does, and let @a take have each, in their
 * order. */
fsdp_status_t commit_take(commit_t *commit, const char *topic, uint32_t first,
                          uint32_t num, const uint32_t *rank_of,
                          commit_take_f take, void *arg, fsdp_error_t *err);

/**
 * Rank 0: sync the directory, rename, sync the parent, and say so to all.
 *
 * @param latest  Also replace PARENT/latest by this target's name.
 */
fsdp_status_t commit_publish(commit_t *commit, bool latest, fsdp_error_t *err);

/* Other ranks: wait until rank 0 has published. */
fsdp_status_t commit_wait_published(commit_t *commit, fsdp_error_t *err);

/**
 * End it, once for each commit_begin() that succeeded.
 *
 * @param status  FSDP_OK, or what made this rank fail: then the others are
 *                told, and rank 0 removes all temporary files.
 * @param err     The text of that error: the first failing rank's, on all
 *                ranks; may be NULL.
 *
 * @return the status that all ranks return.
 */
fsdp_status_t commit_end(commit_t *commit, fsdp_status_t status,
                         fsdp_error_t *err);

#endif
