/*
 * Heartbeats: each rank writes twice a second what it does into a small file,
 * from which the others, and tools, see who is missing.
 *
 * RUN_DIR/.job-ID/rank-00003 holds one line, padded with spaces:
 *
 *     rank host pid phase operation step counter time
 *
 * with "-" for an empty phase or operation, the counter of beats, and seconds
 * since the epoch.  A file whose counter stands still belongs to a process
 * that is gone or stopped; clocks of nodes need not agree for that.
 *
 * Only the heartbeat's own thread reads and writes: a file system that hangs
 * does not stop those who wait for peers.
 */
#ifndef FSDP_HEARTBEAT_H
#define FSDP_HEARTBEAT_H

#include "lib/comm/comm.h"

typedef struct heartbeat heartbeat_t;

#define HEARTBEAT_SECONDS  0.5
#define HEARTBEAT_WORD_MAX 136

typedef enum {
    HEARTBEAT_NONE = 0,    /* no file: not arrived, or not on a shared disk */
    HEARTBEAT_LEFT = 1,    /* the file has been removed: closed in order */
    HEARTBEAT_STILL = 2,   /* gone, without a word, or stopped */
    HEARTBEAT_GAVE_UP = 3, /* gone, after an error of its own */
    HEARTBEAT_ALIVE = 4
} heartbeat_state_t;

typedef struct {
    heartbeat_state_t state;
    double age; /* seconds since the last beat, by the clocks of both nodes */
    char host[HEARTBEAT_WORD_MAX];
    char phase[HEARTBEAT_WORD_MAX];
    char operation[HEARTBEAT_WORD_MAX];
    long long step;
    unsigned long long counter;
} heartbeat_seen_t;

/**
 * Make the file, and start the thread that keeps it.  Local.
 *
 * @param id     Of the run.
 * @param host   Of this rank.
 * @param world  Ranks that there will be; 0: not known yet.
 */
fsdp_status_t heartbeat_open(const char *run_dir, const char *id,
                             const char *host, uint32_t rank, uint32_t world,
                             heartbeat_t **beat_p, fsdp_error_t *err);

/* Remove the file, and the directory if it is the last one; but leave it if
 * heartbeat_give_up() was called.  NULL is allowed. */
void heartbeat_close(heartbeat_t *beat);

/* The communicator whose work is shown; NULL before it is destroyed. */
void heartbeat_set_comm(heartbeat_t *beat, comm_t *comm);

/* Kept by pointer.  No system call. */
void heartbeat_set_phase(heartbeat_t *beat, const char *phase, int64_t step);

/* The last beat: this rank ends with an error. */
void heartbeat_give_up(heartbeat_t *beat);

/* --- The others ----------------------------------------------------------- */

/* Have the files of all ranks read, to be compared with.  Does not wait. */
void heartbeat_look(heartbeat_t *beat);

/**
 * Have them read again, at least 1.6 seconds after the look, and judge.
 *
 * @param seen  One for each rank below @a world; that of this rank is alive.
 *
 * @return false if the file system does not answer.
 */
bool heartbeat_judge(heartbeat_t *beat, heartbeat_seen_t *seen, uint32_t world);

#endif
