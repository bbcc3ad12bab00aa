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

/* --- Backend -------------------------------------------------------------- */

#define COMM_OPS_VERSION 1
#define COMM_OPS_SYMBOL  "fsdp_comm_module" /* struct comm_ops in a module */

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

    /* Initialise; may block for as long as ranks are missing.  Sends nothing:
     * other ranks may not be ready for messages yet. */
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
    /* Ranks whose messages in this slot are not over, ascending, each once, at
     * most @a max of them; @return their number. */
    size_t (*exchange_pending)(void *ctx, unsigned slot, uint32_t *peers,
                               size_t max);
};

#define COMM_MAX_EXCHANGES 4

/* One rank; jobs run in the caller. */
extern const struct comm_ops comm_self_ops;

/* Find the module fsdp_comm_NAME.so and its ops; it stays loaded.
 * @return FSDP_ERR_UNSUPPORTED, saying where was looked, if there is none. */
fsdp_status_t comm_module_load(const char *name, const struct comm_ops **ops_p,
                               fsdp_error_t *err);

/* --- Communicator --------------------------------------------------------- */

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

/* Why a wait failed. */
typedef enum {
    COMM_STALL_DEADLINE = 0, /* it took too long */
    COMM_STALL_ALARM = 1,    /* the program was told to end */
    COMM_STALL_BACKEND = 2   /* the backend reports an error */
} comm_reason_t;

typedef struct {
    comm_reason_t reason;
    const char *what, *unit; /* of the job; unit may be NULL */
    double seconds;          /* waited */
    const char *detail;      /* the backend's text, or NULL */
    const uint32_t *peers;   /* ranks that are waited for, if known */
    size_t num_peers;
} comm_stall_t;

/* Who watches over waits: lib/job, which knows more than the communicator.
 * Called by the worker, or by a caller that waits for it. */
typedef struct {
    /* Has the program been told to end?  Cheap: each poll asks. */
    bool (*alarmed)(void *arg);
    /* A wait has become suspect: see now what all ranks do.  Called once
     * before explain(), COMM_LOOK_SECONDS earlier if the deadline allows. */
    void (*look)(void *arg);
    /* Make the error of a failed wait: name who is missing. */
    fsdp_status_t (*explain)(void *arg, const comm_stall_t *stall,
                             fsdp_error_t *err);
    void *arg;
} comm_watch_t;

#define COMM_LOOK_SECONDS 2.0

typedef struct {
    const struct comm_ops *ops;
    double deadline;           /* seconds that a wait may take */
    const comm_watch_t *watch; /* NULL: errors name the ranks waited for */
} comm_config_t;

/**
 * Start the worker and let it open the backend.  Collective.
 *
 * @param config  Copied; what it points at is borrowed until comm_destroy().
 *
 * @return the backend's error, or FSDP_ERR_PEER_LOST at the deadline: then
 *         the worker is left behind in the backend.
 */
fsdp_status_t comm_create(const comm_config_t *config, comm_t **comm_p,
                          fsdp_error_t *err);

/**
 * Finish queued jobs and close the backend: collective.  If the communicator
 * is broken, forsake a worker that hangs, and what it works on.  NULL is
 * allowed.
 *
 * @return false if the worker was left behind: what jobs use must not be
 *         freed.
 */
bool comm_destroy(comm_t *comm);

/* Tell the node of each rank, for link bytes; borrowed until comm_destroy().
 * When the worker is idle. */
void comm_set_nodes(comm_t *comm, const uint32_t *nodes);

/* Break it with an error of the caller's, unless it is broken already.
 * @return the error that broke it.  Any thread. */
fsdp_status_t comm_break(comm_t *comm, const fsdp_error_t *error,
                         fsdp_error_t *err);

/* The error that broke the communicator, or FSDP_OK.  Any thread. */
fsdp_status_t comm_broken(comm_t *comm, fsdp_error_t *err);

#define COMM_NAME_MAX 64

/* Copy what the worker runs now, "" if nothing, and its unit; cut to
 * COMM_NAME_MAX bytes.  @return how many steps it has made: jobs and
 * exchanges.  Any thread. */
uint64_t comm_get_activity(comm_t *comm, char what[COMM_NAME_MAX],
                           char unit[COMM_NAME_MAX]);

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

/* --- For jobs, on the worker only ----------------------------------------- */

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
 * gets those of the others.  Each sends (size - 1) * bytes; where nodes have
 * several ranks, as many each, large blocks cross between two nodes once, and
 * are passed on inside.  Needs a free slot, better two. */
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
