#include "config.h"

#include "ckpt/ranks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/util/check.h"
#include "lib/util/io.h"

#define NAME "fsdp-verify"

static fsdp_status_t no_memory(fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                          "no memory for what ranks tell each other");
}

/* --- Meeting -------------------------------------------------------------- */

static bool go_on(void *arg)
{
    const ranks_t *ranks = arg;
    const fsdp_ckpt_engine_t *engine = &ranks->engine;

    return engine->progress == NULL ||
           engine->progress(
               (ranks->commit != NULL) ? commit_done_by_all(ranks->commit) : 0,
               ranks->total, engine->progress_arg);
}

bool ranks_progress(uint64_t done, uint64_t total, void *arg)
{
    ranks_t *ranks = arg;

    (void)total;
    return commit_work(ranks->commit, done) && go_on(ranks);
}

static fsdp_status_t meet(ranks_t *ranks, const fsdp_ckpt_ranks_t *config,
                          const char *target, fsdp_error_t *err)
{
    const commit_config_t begin = {.target = target,
                                   .id = config->job_id,
                                   .rank = config->rank,
                                   .world = config->world,
                                   .replace = true, /* nothing is written */
                                   .deadline = config->deadline,
                                   .meet = true,
                                   .files = 4 * (uint64_t)config->world + 4,
                                   .go_on = go_on,
                                   .arg = ranks};
    fsdp_error_t why;
    fsdp_status_t status;

    if (access(config->dir, W_OK | X_OK) != 0) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "%s: ranks meet here, but cannot write: %m: give "
                              "a directory that all nodes share (--scratch)",
                              config->dir);
    }

    status = commit_begin(&begin, &ranks->commit, &why);
    if (status == FSDP_ERR_PEER_LOST) {
        return fsdp_error_set(err, status,
                              "%s: is %s a directory that all nodes share "
                              "(--scratch)?",
                              why.text, config->dir);
    }
    if (status != FSDP_OK && err != NULL) {
        *err = why;
    }
    return status;
}

fsdp_status_t ranks_meet(ranks_t *ranks, const fsdp_ckpt_ranks_t *config,
                         const fsdp_ckpt_engine_t *engine, fsdp_error_t *err)
{
    fsdp_status_t status;
    char *target;

    *ranks = (ranks_t){.world = 1};
    if (config == NULL || config->world <= 1) {
        return FSDP_OK;
    }
    if (config->rank >= config->world || config->job_id == NULL ||
        config->dir == NULL) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "a check by several ranks needs the rank, an "
                              "identifier that all have, and a directory");
    }

    ranks->rank = config->rank;
    ranks->world = config->world;
    if (engine != NULL) {
        ranks->engine = *engine;
    }
    target = io_path("%s/" NAME, config->dir);
    ranks->own = io_path(".tmp-" NAME "-%s.ranks", config->job_id);
    status = (target != NULL && ranks->own != NULL)
                 ? meet(ranks, config, target, err)
                 : no_memory(err);
    free(target);
    if (status != FSDP_OK) {
        free(ranks->own);
    }
    return status;
}

bool ranks_is_own(const ranks_t *ranks, const char *name)
{
    return ranks->own != NULL && strcmp(name, ranks->own) == 0;
}

/* --- Sharing -------------------------------------------------------------- */

bool ranks_is_mine(const ranks_t *ranks, uint64_t at, uint64_t total)
{
    return ranks->world == 1 || (uint32_t)((double)at / ((double)total + 1) *
                                           ranks->world) == ranks->rank;
}

fsdp_status_t ranks_gather(ranks_t *ranks, buffer_t *message,
                           commit_take_f take, void *arg, fsdp_error_t *err)
{
    fsdp_status_t status;
    char topic[32];

    snprintf(topic, sizeof(topic), "part%" PRIu32, ranks->next++);
    status = message->failed ? no_memory(err)
             : (ranks->rank > 0)
                 ? commit_post(ranks->commit, topic, ranks->rank, message->data,
                               message->size, err)
                 : commit_take(ranks->commit, topic, 1, ranks->world - 1, NULL,
                               take, arg, err);
    buffer_free(message);
    return status;
}

fsdp_status_t ranks_differ(const char *path, uint32_t rank, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_MISMATCH,
                          "%s: rank %" PRIu32
                          " does not see what rank 0 sees: do all ranks run "
                          "the same command, and do all nodes have the same "
                          "files there?",
                          path, rank);
}

/* --- Ending --------------------------------------------------------------- */

static fsdp_status_t share_end(ranks_t *ranks, uint64_t *count,
                               fsdp_error_t *err)
{
    size_t size;
    char *text;

    if (ranks->rank == 0) {
        return commit_post(ranks->commit, "end", 0, count, sizeof(*count), err);
    }

    FSDP_TRY(commit_wait(ranks->commit, "end", 0, 1, NULL, &text, &size, err));
    if (size == sizeof(*count)) {
        memcpy(count, text, size);
    }
    free(text);
    return FSDP_OK;
}

fsdp_status_t ranks_end(ranks_t *ranks, fsdp_status_t status, uint64_t *count,
                        fsdp_error_t *err)
{
    if (ranks->commit == NULL) {
        return status;
    }

    if (status == FSDP_OK) {
        status = share_end(ranks, count, err);
    }
    status = commit_end(ranks->commit, status, err);
    free(ranks->own);
    return status;
}
