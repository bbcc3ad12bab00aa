/*
 * Ranks that look at one checkpoint and write nothing: each reads a part, and
 * the first one puts together what they tell it.  They meet in a directory of
 * messages as ranks that write do (commit.h).
 *
 *     rank r                        rank 0
 *     --------------------------    --------------------------
 *     "part0": what it has read -->  join, and go on
 *     "part1": …                -->  …
 *                               <--  "end": what came out
 */
#ifndef FSDP_RANKS_H
#define FSDP_RANKS_H

#include "ckpt/commit.h"
#include "ckpt/fsdp_ckpt.h"
#include "lib/util/buffer.h"

typedef struct {
    commit_t *commit; /* NULL: one rank, which does not meet others */
    uint32_t rank, world;
    uint32_t next;             /* number of the part */
    char *own;                 /* name of the directory of messages */
    fsdp_ckpt_engine_t engine; /* the caller's */
    uint64_t total;            /* bytes that all are to read, for progress */
} ranks_t;

/**
 * @param config  NULL, or a world of 1: one rank.
 *
 * @return FSDP_ERR_CONFIG if the directory cannot be written;
 *         FSDP_ERR_PEER_LOST, naming the ranks, if they do not come.
 */
fsdp_status_t ranks_meet(ranks_t *ranks, const fsdp_ckpt_ranks_t *config,
                         const fsdp_ckpt_engine_t *engine, fsdp_error_t *err);

/* For engines: progress of all ranks; @a arg is the ranks_t. */
bool ranks_progress(uint64_t done, uint64_t total, void *arg);

/* Whether what begins at byte @a at of @a total is for this rank to read. */
bool ranks_is_mine(const ranks_t *ranks, uint64_t at, uint64_t total);

/* Whether a directory entry is that of the messages. */
bool ranks_is_own(const ranks_t *ranks, const char *name);

/* The others tell @a message, which is freed; rank 0 takes one from each. */
fsdp_status_t ranks_gather(ranks_t *ranks, buffer_t *message,
                           commit_take_f take, void *arg, fsdp_error_t *err);

/* The error of a rank that has read something else than rank 0. */
fsdp_status_t ranks_differ(const char *path, uint32_t rank, fsdp_error_t *err);

/**
 * @param status  How it went here.
 * @param count   Rank 0's, for all.
 *
 * @return the status that all ranks return.
 */
fsdp_status_t ranks_end(ranks_t *ranks, fsdp_status_t status, uint64_t *count,
                        fsdp_error_t *err);

#endif
