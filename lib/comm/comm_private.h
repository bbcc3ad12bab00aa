/*
 * The inside of comm_t, for the files of this room.
 */
#ifndef FSDP_COMM_PRIVATE_H
#define FSDP_COMM_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "lib/comm/comm.h"

typedef struct {
    comm_job_f run;
    void *arg;
    const char *what, *unit;
} comm_item_t;

struct comm {
    const struct comm_ops *ops;
    void *ctx; /* of the backend */
    comm_watch_t watch;
    double deadline;
    bool inlined; /* no worker: jobs run in the caller */

    uint32_t rank, world;
    comm_group_t all;
    uint32_t *ranks;       /* 0, 1, … world - 1 */
    const uint32_t *nodes; /* of each rank; NULL: not known yet */

    pthread_t worker;
    pthread_mutex_t lock;
    pthread_cond_t work; /* for the worker: a job, or the end */
    pthread_cond_t done; /* for callers: a job is done, the backend is open,
                            the worker has ended */
    bool opened;         /* under the lock, as are the next ones */
    bool ending;
    bool gone;     /* the worker has ended, but for its last instructions */
    bool forsaken; /* nobody waits for it: it frees what is left */
    fsdp_error_t error; /* the first one */
    comm_item_t queue[COMM_QUEUE_SIZE];
    const comm_item_t *current; /* what the worker runs, or NULL */
    uint64_t submitted;         /* tickets given */
    _Atomic uint64_t finished;  /* jobs done; also read without the lock */
    _Atomic bool broken;
    _Atomic uint64_t steps; /* jobs begun and ended, exchanges ended */

    /* For the worker alone. */
    bool busy[COMM_MAX_EXCHANGES];
    comm_message_t *sends, *recvs; /* of collectives: a message for each peer */
    uint32_t *pending;             /* ranks waited for */
    uint32_t *node_number, *node_count, *grid; /* of all-gathers by node */

    _Atomic uint64_t bytes[COMM_NUM_CLASSES];
    _Atomic uint64_t link_bytes;
    _Atomic uint64_t exchanges;
    _Atomic uint64_t busy_ns;
    _Atomic uint64_t waited_ns;
};

/* A slot without an exchange; the collectives take the last ones, so that jobs
 * which number theirs from 0 may use both. */
fsdp_status_t comm_free_slot(const comm_t *comm, unsigned *slot_p,
                             fsdp_error_t *err);

#endif
