/*
 * Inside the commit protocol: what commit.c and commit_meet.c share.
 */
#ifndef FSDP_COMMIT_PRIVATE_H
#define FSDP_COMMIT_PRIVATE_H

#include "ckpt/commit.h"

#define COMMIT_GRACE 10.0 /* seconds for the others to have read something */

/* What is known of another rank. */
typedef struct {
    const char *host; /* in commit_t.welcome; "-": it has not come */
    uint64_t beat;    /* the last one seen, */
    double since;     /* when, */
    uint64_t done;    /* and the bytes it had done by then */
} commit_peer_t;

struct commit {
    char *target, *parent, *name; /* parent/name is target */
    char *tmp;                    /* what is built */
    char *ranks;                  /* messages; NULL: alone */
    bool is_dir, replace, meet;
    uint32_t rank, world;
    double deadline;
    bool published;
    bool (*go_on)(void *arg); /* NULL: always */
    void *arg;

    commit_peer_t *peers; /* NULL: the ranks have not met */
    char *welcome;
    uint64_t beat;                  /* of this rank */
    double next_beat, next_reading; /* not before */
};

/* Wait a little, then longer: 1 to 50 ms. */
void commit_pause(unsigned *round);

/* Have a network file system ask the server what is in a directory. */
void commit_refresh(const char *dir);

bool commit_exists(const char *path);

char *commit_message_path(const commit_t *commit, const char *topic,
                          uint32_t number);

/* Read those of the messages [first, first + num) that are there and not yet
 * in @a texts; @a left_p: how many are missing. */
fsdp_status_t commit_receive(commit_t *commit, const char *topic,
                             uint32_t first, uint32_t num, char **texts,
                             size_t *sizes, uint32_t *left_p,
                             fsdp_error_t *err);

/* The error that names the ranks whose text is missing. */
fsdp_status_t commit_missing(const commit_t *commit, const char *topic,
                             uint32_t first, uint32_t num,
                             const uint32_t *rank_of, char *const *texts,
                             fsdp_error_t *err);

/* Has another rank failed?  @return its status, FSDP_OK if none has. */
fsdp_status_t commit_look_for_failure(commit_t *commit, fsdp_error_t *err);

/* While waiting: does the caller want to go on, has another rank failed?  And
 * this one lives. */
fsdp_status_t commit_poll(commit_t *commit, fsdp_error_t *err);

/**
 * All ranks learn that all are there, and where; the directory of messages is
 * there, but may be of an earlier run that died, until rank 0 has made it anew.
 *
 * @return FSDP_ERR_PEER_LOST, naming the ranks, after @a patience seconds.
 */
fsdp_status_t commit_meet(commit_t *commit, double patience, fsdp_error_t *err);

/* Seconds that rank 0 gives the others to read the end of a run. */
double commit_grace(const commit_t *commit, fsdp_status_t status);

/* Whether a rank has said, as its last word, that it has left. */
bool commit_has_left(const commit_t *commit, uint32_t rank);

/* After meeting: whether a rank has shown no life for the deadline. */
bool commit_is_silent(commit_t *commit, uint32_t rank);

/* From now on the deadline of a rank counts anew. */
void commit_expect(commit_t *commit, uint32_t rank);

/* "3", or "3 (n2)" where the host is known. */
void commit_rank_text(const commit_t *commit, uint32_t rank, char *text,
                      size_t size);

#endif
