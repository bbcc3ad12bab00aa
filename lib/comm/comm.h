/*
 * Communication: a backend that moves bytes between ranks, and one worker
 * thread that runs collectives in order beside the computation.
 *
 * Everything above the backend is built once from one primitive, the exchange:
 * a set of sends and receives that end together.  The worker is the only
 * thread that calls the backend (it also initialises it: MPI_THREAD_FUNNELED
 * is enough).  With one rank the "self" backend runs jobs in the caller.
 *
 * Every wait has a deadline.  After a failed wait the communicator is broken
 * for good and each call returns the first error.
 */
#ifndef FSDP_COMM_H
#define FSDP_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fsdp_status.h"

/* --- Backend ------------------------------------------------------------------ */

#define COMM_OPS_VERSION 1
#define COMM_OPS_SYMBOL "fsdp_comm_module" /* struct comm_ops in a module */

/* One side of a transfer; @a peer is a world rank, never the rank itself. */
typedef struct {
    uint32_t peer;
    void *data; /* a send does not write to it */
    size_t bytes;
} comm_message_t;

/* In a module fsdp_comm_NAME.so, found beside libfsdp.so, in its directory
 * fsdp/, or in $FSDP_MODULE_PATH. */
struct comm_ops {
    unsigned version;
    const char *name;

    /* Initialise; may block for as long as ranks are missing. */
    fsdp_status_t (*open)(void **ctx_p, uint32_t *rank_p, uint32_t *world_p,
                          fsdp_error_t *err);
    /* Finalise; collective. */
    void (*close)(void *ctx);

    /* Memory for slots and staging, aligned to a page. */
    fsdp_status_t (*alloc)(void *ctx, size_t bytes, void **data_p,
                           fsdp_error_t *err);
    void (*free)(void *ctx, void *data, size_t bytes);

    /* Start sends and receives; pairs of ranks match them in order.  At most
     * COMM_MAX_EXCHANGES are under way.  Empty messages are skipped by both
     * sides. */
    fsdp_status_t (*exchange_start)(void *ctx, unsigned slot,
                                    const comm_message_t *sends, size_t nsends,
                                    const comm_message_t *recvs, size_t nrecvs,
                                    fsdp_error_t *err);
    /* Progress all; is the exchange in this slot over? */
    fsdp_status_t (*exchange_test)(void *ctx, unsigned slot, bool *done_p,
                                   fsdp_error_t *err);
};

#define COMM_MAX_EXCHANGES 4

extern const struct comm_ops comm_self_ops;

/* --- Communicator --------------------------------------------------------------- */

typedef struct comm comm_t;

/* Ranks that work together; @a ranks are world ranks in order. */
typedef struct {
    uint32_t size;
    uint32_t index; /* of this rank */
    const uint32_t *ranks;
} comm_group_t;

/* What bytes are counted as. */
typedef enum {
    COMM_GATHER = 0,
    COMM_REDUCE = 1,
    COMM_REPLICA = 2,
    COMM_CONTROL = 3,
    COMM_NUM_CLASSES = 4
} comm_class_t;

typedef struct {
    uint64_t bytes[COMM_NUM_CLASSES]; /* sent to other ranks */
    uint64_t link_bytes;              /* of them, to other nodes */
    uint64_t exchanges;
    double busy_seconds;   /* the worker ran jobs */
    double waited_seconds; /* comm_wait() stood still */
} comm_counters_t;

/* A job of the worker: runs on it, in order of submission. */
typedef fsdp_status_t (*comm_job_f)(comm_t *comm, void *arg, fsdp_error_t *err);

/* When a job is done; 0 is done already. */
typedef uint64_t comm_ticket_t;

uint32_t comm_rank(const comm_t *comm);
uint32_t comm_world(const comm_t *comm);
/* All ranks. */
const comm_group_t *comm_all(const comm_t *comm);

/* Memory through the backend, zeroed; local. */
fsdp_status_t comm_alloc(comm_t *comm, size_t bytes, void **data_p,
                         fsdp_error_t *err);
void comm_free(comm_t *comm, void *data, size_t bytes);

/**
 * Give a job to the worker.  No allocation, no system call but a wake-up; the
 * queue holds COMM_QUEUE_SIZE jobs, and a full one is waited for.
 *
 * @param what  Operation and unit for error messages, such as "all-gather" and
 *              "h.3"; kept by pointer until the job is done.
 */
fsdp_status_t comm_submit(comm_t *comm, comm_job_f job, void *arg,
                          const char *what, const char *unit,
                          comm_ticket_t *ticket_p, fsdp_error_t *err);

#define COMM_QUEUE_SIZE 256

/* Wait until the job, and all before it, are done; the time is counted as
 * waited.  @return the first error of any job. */
fsdp_status_t comm_wait(comm_t *comm, comm_ticket_t ticket, fsdp_error_t *err);

/* Submit and wait. */
fsdp_status_t comm_run(comm_t *comm, comm_job_f job, void *arg,
                       const char *what, const char *unit, fsdp_error_t *err);

/* Is a job done?  Never blocks. */
bool comm_done(comm_t *comm, comm_ticket_t ticket);

/* A snapshot; call it when the worker is idle for exact values. */
void comm_get_counters(comm_t *comm, comm_counters_t *counters_p);

/* --- For jobs, on the worker only ------------------------------------------------- */

/* Start an exchange in @a slot, which must be free. */
fsdp_status_t comm_exchange_start(comm_t *comm, unsigned slot,
                                  comm_class_t class,
                                  const comm_message_t *sends, size_t nsends,
                                  const comm_message_t *recvs, size_t nrecvs,
                                  fsdp_error_t *err);

/* Wait for it, under the deadline; the worker polls, then sleeps in short and
 * growing naps, so that it leaves the core to the computation. */
fsdp_status_t comm_exchange_wait(comm_t *comm, unsigned slot,
                                 fsdp_error_t *err);

/* Every rank of the group gives @a bytes at all + index * bytes (in place) and
 * gets those of the others. */
fsdp_status_t comm_all_gather(comm_t *comm, const comm_group_t *group,
                              comm_class_t class, void *all, size_t bytes,
                              fsdp_error_t *err);

/* Element-wise sums (modulo 2^64) and maxima over a group; @a scratch has room
 * for size * num words. */
fsdp_status_t comm_all_sum(comm_t *comm, const comm_group_t *group,
                           uint64_t *words, size_t num, uint64_t *scratch,
                           fsdp_error_t *err);
fsdp_status_t comm_all_max(comm_t *comm, const comm_group_t *group,
                           uint64_t *words, size_t num, uint64_t *scratch,
                           fsdp_error_t *err);

#endif
