#include "config.h"

#include "lib/comm/comm_private.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "lib/util/check.h"

/* The worker reports a stalled exchange itself.  Callers look after a worker
 * that hangs inside the backend (Open MPI 4.1 may lock itself out when a peer
 * closes a connection), and give it so much longer. */
#define CALLER_SLACK 0.5

#define CALLER_TICK     0.05 /* a waiting caller looks at the clock */
#define CLOSE_SECONDS   20.0
#define FORSAKE_SECONDS 0.2

/* Naps between polls, in nanoseconds. */
#define NAP_MIN    4000
#define NAP_MAX    200000
#define POLL_BUSY  3000 /* a poll that took so long has moved data */
#define POLL_SPINS 8

static uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static double now(void)
{
    return (double)now_ns() * 1e-9;
}

static void nap(uint64_t ns)
{
    struct timespec ts = {.tv_nsec = (long)ns};

    clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, NULL);
}

static struct timespec deadline_in(double seconds)
{
    struct timespec until;
    double whole;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(modf(seconds, &whole) * 1e9);
    until.tv_sec += (time_t)whole + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return until;
}

/* --- Errors --------------------------------------------------------------- */

fsdp_status_t comm_broken(comm_t *comm, fsdp_error_t *err)
{
    fsdp_status_t status;

    if (!atomic_load_explicit(&comm->broken, memory_order_acquire)) {
        return FSDP_OK;
    }

    /* Written once, before broken was set. */
    status = comm->error.status;
    if (err != NULL) {
        *err = comm->error;
    }
    return status;
}

/* Keep the first error, and wake whoever waits; under the lock. */
static void break_locked(comm_t *comm, const fsdp_error_t *error)
{
    if (!atomic_load_explicit(&comm->broken, memory_order_relaxed)) {
        comm->error = *error;
        atomic_store_explicit(&comm->broken, true, memory_order_release);
    }
    pthread_cond_broadcast(&comm->done);
}

fsdp_status_t comm_break(comm_t *comm, const fsdp_error_t *error,
                         fsdp_error_t *err)
{
    pthread_mutex_lock(&comm->lock);
    break_locked(comm, error);
    pthread_mutex_unlock(&comm->lock);
    return comm_broken(comm, err);
}

/* --- Waits under watch ---------------------------------------------------- */

typedef struct {
    double start;
    double end;
    double slack; /* how much later than the worker this wait ends */
    bool looked;
    bool alarmed;
} guard_t;

static guard_t guard_start(const comm_t *comm, double slack)
{
    double start = now();

    return (guard_t){
        .start = start, .end = start + comm->deadline + slack, .slack = slack};
}

/* Is the wait to be given up? */
static bool guard_expired(const comm_t *comm, guard_t *guard, double time)
{
    const comm_watch_t *watch = &comm->watch;

    if (!guard->alarmed && watch->alarmed != NULL &&
        watch->alarmed(watch->arg)) {
        guard->alarmed = true;
        guard->end = fmin(guard->end, time + COMM_LOOK_SECONDS + guard->slack);
    }
    if (!guard->looked && time >= guard->end - COMM_LOOK_SECONDS &&
        watch->look != NULL) {
        guard->looked = true;
        watch->look(watch->arg);
    }

    return time >= guard->end;
}

/* "ranks 1, 2, 5 and 7 more", as much as fits. */
static void list_ranks(const uint32_t *ranks, size_t num, char *text,
                       size_t size)
{
    size_t at, i;

    at = (size_t)snprintf(text, size, (num == 1) ? "rank" : "ranks");
    for (i = 0; i < num && at + 24 < size; i++) {
        at += (size_t)snprintf(text + at, size - at, "%s%u",
                               (i > 0) ? ", " : " ", ranks[i]);
    }
    if (i < num) {
        snprintf(text + at, size - at, " and %zu more", num - i);
    }
}

static fsdp_status_t explain_plainly(const comm_t *comm,
                                     const comm_stall_t *stall,
                                     fsdp_error_t *err)
{
    char ranks[200] = "";
    fsdp_status_t status;

    if (stall->num_peers > 0) {
        list_ranks(stall->peers, stall->num_peers, ranks, sizeof(ranks));
    }
    errno = 0;
    status = fsdp_error_set(
        err,
        (stall->reason == COMM_STALL_ALARM) ? FSDP_ERR_SIGNALLED
                                            : FSDP_ERR_PEER_LOST,
        "rank %u: %s%s%s: %s after %.1f s%s%s%s%s", comm->rank, stall->what,
        (stall->unit != NULL) ? " of " : "",
        (stall->unit != NULL) ? stall->unit : "",
        (stall->reason == COMM_STALL_ALARM)      ? "told to end"
        : (stall->reason == COMM_STALL_DEADLINE) ? "given up"
                                                 : "failed",
        stall->seconds, (ranks[0] != '\0') ? " of waiting for " : "", ranks,
        (stall->detail != NULL) ? ": " : "",
        (stall->detail != NULL) ? stall->detail : "");
    if (err != NULL && stall->num_peers == 1) {
        err->rank = (int)stall->peers[0];
    }

    return status;
}

static fsdp_status_t explain(const comm_t *comm, const comm_stall_t *stall,
                             fsdp_error_t *err)
{
    const comm_watch_t *watch = &comm->watch;

    if (watch->explain != NULL) {
        return watch->explain(watch->arg, stall, err);
    }

    return explain_plainly(comm, stall, err);
}

/* --- The worker ----------------------------------------------------------- */

static void count_step(comm_t *comm)
{
    atomic_fetch_add_explicit(&comm->steps, 1, memory_order_relaxed);
}

/* Run the next job in the queue; under the lock, which is let go meanwhile. */
static void run_next(comm_t *comm)
{
    uint64_t number = atomic_load(&comm->finished);
    const comm_item_t *item = &comm->queue[number % COMM_QUEUE_SIZE];
    fsdp_error_t error;
    fsdp_status_t status;
    uint64_t start;

    comm->current = item;
    count_step(comm);
    pthread_mutex_unlock(&comm->lock);

    start = now_ns();
    status = item->run(comm, item->arg, &error);
    atomic_fetch_add_explicit(&comm->busy_ns, now_ns() - start,
                              memory_order_relaxed);

    pthread_mutex_lock(&comm->lock);
    comm->current = NULL;
    count_step(comm);
    atomic_store_explicit(&comm->finished, number + 1, memory_order_release);
    if (status != FSDP_OK) {
        break_locked(comm, &error);
    } else {
        pthread_cond_broadcast(&comm->done);
    }
}

static void serve(comm_t *comm)
{
    pthread_mutex_lock(&comm->lock);
    for (;;) {
        while (!comm->ending && !comm->broken &&
               comm->submitted == comm->finished) {
            pthread_cond_wait(&comm->work, &comm->lock);
        }
        /* A broken communicator drops what is queued; an ending one does
         * not. */
        if (comm->broken || comm->submitted == comm->finished) {
            break;
        }
        run_next(comm);
    }
    pthread_mutex_unlock(&comm->lock);
}

static void free_comm(comm_t *comm)
{
    pthread_cond_destroy(&comm->done);
    pthread_cond_destroy(&comm->work);
    pthread_mutex_destroy(&comm->lock);
    free(comm->grid);
    free(comm->node_count);
    free(comm->node_number);
    free(comm->pending);
    free(comm->recvs);
    free(comm->sends);
    free(comm->ranks);
    free(comm);
}

static void *worker_main(void *arg)
{
    comm_t *comm = arg;
    fsdp_error_t error;
    fsdp_status_t status;
    bool broken, forsaken;

    prctl(PR_SET_NAME, "fsdp-comm");
    prctl(PR_SET_TIMERSLACK, 1000ul); /* short naps are to be short */

    status = comm->ops->open(&comm->ctx, &comm->rank, &comm->world, &error);
    pthread_mutex_lock(&comm->lock);
    comm->opened = status == FSDP_OK;
    if (status != FSDP_OK) {
        break_locked(comm, &error);
    }
    count_step(comm);
    pthread_cond_broadcast(&comm->done);
    pthread_mutex_unlock(&comm->lock);

    serve(comm);

    pthread_mutex_lock(&comm->lock);
    broken = comm->broken;
    pthread_mutex_unlock(&comm->lock);
    if (!broken) {
        comm->ops->close(comm->ctx);
    }

    pthread_mutex_lock(&comm->lock);
    comm->gone = true;
    forsaken = comm->forsaken;
    pthread_cond_broadcast(&comm->done);
    pthread_mutex_unlock(&comm->lock);
    if (forsaken) {
        free_comm(comm);
    }
    return NULL;
}

/* Signals are for the program's own threads. */
static int start_worker(comm_t *comm)
{
    sigset_t all, before;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&comm->worker, NULL, worker_main, comm);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

/* --- Waits of callers ----------------------------------------------------- */

/* The worker hangs: say in what.  Under the lock, which is let go meanwhile. */
static void give_up_locked(comm_t *comm, const guard_t *guard)
{
    char what[COMM_NAME_MAX] = "start-up", unit[COMM_NAME_MAX] = "";
    comm_stall_t stall = {
        .reason = guard->alarmed ? COMM_STALL_ALARM : COMM_STALL_DEADLINE,
        .what = what,
        .seconds = now() - guard->start,
    };
    bool opened = comm->opened;
    fsdp_error_t error;

    pthread_mutex_unlock(&comm->lock);
    if (opened) {
        comm_get_activity(comm, what, unit);
    }
    stall.unit = (unit[0] != '\0') ? unit : NULL;
    explain(comm, &stall, &error);
    pthread_mutex_lock(&comm->lock);
    break_locked(comm, &error);
}

/* Wait until the backend is open (ticket 0), the job done, or the
 * communicator broken; under the lock. */
static void wait_locked(comm_t *comm, comm_ticket_t ticket, double slack)
{
    guard_t guard = guard_start(comm, slack);
    uint64_t steps = comm->steps;
    struct timespec until;
    bool expired;

    while (!comm->broken && !(comm->opened && comm->finished >= ticket)) {
        until = deadline_in(CALLER_TICK);
        pthread_cond_timedwait(&comm->done, &comm->lock, &until);
        if (comm->steps != steps && !guard.alarmed) {
            steps = comm->steps;
            guard = guard_start(comm, slack);
        }
        /* The watch reads files. */
        pthread_mutex_unlock(&comm->lock);
        expired = guard_expired(comm, &guard, now());
        pthread_mutex_lock(&comm->lock);
        if (expired && !comm->broken && comm->steps == steps) {
            give_up_locked(comm, &guard);
        }
    }
}

fsdp_status_t comm_wait(comm_t *comm, comm_ticket_t ticket, fsdp_error_t *err)
{
    uint64_t start;

    if (!comm_done(comm, ticket)) {
        start = now_ns();
        pthread_mutex_lock(&comm->lock);
        wait_locked(comm, ticket, CALLER_SLACK);
        pthread_mutex_unlock(&comm->lock);
        atomic_fetch_add_explicit(&comm->waited_ns, now_ns() - start,
                                  memory_order_relaxed);
    }

    return comm_broken(comm, err);
}

bool comm_done(comm_t *comm, comm_ticket_t ticket)
{
    return atomic_load_explicit(&comm->finished, memory_order_acquire) >=
           ticket;
}

/* --- Submission ----------------------------------------------------------- */

static fsdp_status_t submit_inlined(comm_t *comm, const comm_item_t *item,
                                    comm_ticket_t *ticket_p, fsdp_error_t *err)
{
    FSDP_TRY(comm_broken(comm, err));
    pthread_mutex_lock(&comm->lock);
    comm->queue[comm->submitted % COMM_QUEUE_SIZE] = *item;
    comm->submitted++;
    run_next(comm);
    *ticket_p = comm->submitted;
    pthread_mutex_unlock(&comm->lock);
    return comm_broken(comm, err);
}

fsdp_status_t comm_submit(comm_t *comm, comm_job_f job, void *arg,
                          const char *what, const char *unit,
                          comm_ticket_t *ticket_p, fsdp_error_t *err)
{
    comm_item_t item = {job, arg, what, unit};

    if (comm->inlined) {
        return submit_inlined(comm, &item, ticket_p, err);
    }

    pthread_mutex_lock(&comm->lock);
    while (comm->submitted - comm->finished == COMM_QUEUE_SIZE &&
           !comm->broken) {
        comm_ticket_t oldest = comm->finished + 1;

        pthread_mutex_unlock(&comm->lock);
        FSDP_TRY(comm_wait(comm, oldest, err));
        pthread_mutex_lock(&comm->lock);
    }
    if (!comm->broken) {
        comm->queue[comm->submitted % COMM_QUEUE_SIZE] = item;
        *ticket_p = ++comm->submitted;
        pthread_cond_signal(&comm->work);
    }
    pthread_mutex_unlock(&comm->lock);
    return comm_broken(comm, err);
}

fsdp_status_t comm_run(comm_t *comm, comm_job_f job, void *arg,
                       const char *what, const char *unit, fsdp_error_t *err)
{
    comm_ticket_t ticket;

    FSDP_TRY(comm_submit(comm, job, arg, what, unit, &ticket, err));
    return comm_wait(comm, ticket, err);
}

/* --- Life ----------------------------------------------------------------- */

static fsdp_status_t init_locks(comm_t *comm, fsdp_error_t *err)
{
    pthread_condattr_t attr;
    int rc;

    rc = pthread_condattr_init(&attr);
    if (rc != 0) {
        errno = rc;
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "cannot make a condition variable: %m");
    }

    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->work, NULL);
    pthread_cond_init(&comm->done, &attr);
    pthread_condattr_destroy(&attr);
    return FSDP_OK;
}

/* The backend is open: make room for its ranks. */
static fsdp_status_t make_tables(comm_t *comm, fsdp_error_t *err)
{
    size_t world = comm->world;

    comm->ranks = malloc(world * sizeof(*comm->ranks));
    comm->pending = malloc(world * sizeof(*comm->pending));
    comm->sends = malloc(world * sizeof(*comm->sends));
    comm->recvs = malloc(world * sizeof(*comm->recvs));
    comm->node_number = calloc(world, sizeof(*comm->node_number));
    comm->node_count = malloc(world * sizeof(*comm->node_count));
    comm->grid = malloc(world * sizeof(*comm->grid));
    if (comm->ranks == NULL || comm->pending == NULL || comm->sends == NULL ||
        comm->recvs == NULL || comm->node_number == NULL ||
        comm->node_count == NULL || comm->grid == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for tables of %zu ranks", world);
    }

    for (uint32_t rank = 0; rank < comm->world; rank++) {
        comm->ranks[rank] = rank;
    }
    comm->all = (comm_group_t){comm->world, comm->rank, comm->ranks};
    return FSDP_OK;
}

static fsdp_status_t open_backend(comm_t *comm, fsdp_error_t *err)
{
    int rc;

    if (comm->inlined) {
        FSDP_TRY(comm->ops->open(&comm->ctx, &comm->rank, &comm->world, err));
        comm->opened = true;
        return FSDP_OK;
    }

    rc = start_worker(comm);
    if (rc != 0) {
        errno = rc;
        /* There is no worker to end. */
        comm->inlined = true;
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "cannot start the communication thread: %m");
    }

    pthread_mutex_lock(&comm->lock);
    wait_locked(comm, 0, 0.0);
    pthread_mutex_unlock(&comm->lock);
    return comm_broken(comm, err);
}

fsdp_status_t comm_create(const comm_config_t *config, comm_t **comm_p,
                          fsdp_error_t *err)
{
    fsdp_status_t status;
    fsdp_error_t error;
    comm_t *comm;

    comm = calloc(1, sizeof(*comm));
    if (comm == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for a communicator");
    }

    comm->ops = config->ops;
    comm->deadline = config->deadline;
    comm->inlined = config->ops == &comm_self_ops;
    if (config->watch != NULL) {
        comm->watch = *config->watch;
    }
    status = init_locks(comm, err);
    if (status != FSDP_OK) {
        free(comm);
        return status;
    }

    FSDP_TRY_GOTO(open_backend(comm, &error), err_comm);
    FSDP_TRY_GOTO(make_tables(comm, &error), err_comm);

    *comm_p = comm;
    return FSDP_OK;

err_comm:
    status = comm_break(comm, &error, err);
    (void)comm_destroy(comm);
    return status;
}

/* Wait for the worker to end; @return false if it is left to itself. */
static bool join_worker(comm_t *comm)
{
    struct timespec until;
    double seconds;
    bool gone;

    pthread_mutex_lock(&comm->lock);
    comm->ending = true;
    pthread_cond_signal(&comm->work);
    seconds =
        comm->broken ? FORSAKE_SECONDS : fmin(comm->deadline, CLOSE_SECONDS);
    until = deadline_in(seconds);
    while (!comm->gone &&
           pthread_cond_timedwait(&comm->done, &comm->lock, &until) == 0) {
        ;
    }
    gone = comm->gone;
    comm->forsaken = !gone;
    if (!gone) {
        pthread_detach(comm->worker);
    }
    pthread_mutex_unlock(&comm->lock);
    if (gone) {
        pthread_join(comm->worker, NULL);
    }
    return gone;
}

bool comm_destroy(comm_t *comm)
{
    int saved_errno = errno;
    bool joined = true;

    if (comm == NULL) {
        return true;
    }

    if (!comm->inlined) {
        joined = join_worker(comm);
    } else if (comm->opened) {
        comm->ops->close(comm->ctx);
    }
    if (joined) {
        free_comm(comm);
    }
    errno = saved_errno;
    return joined;
}

/* --- What is known about it ----------------------------------------------- */

uint32_t comm_rank(const comm_t *comm)
{
    return comm->rank;
}

uint32_t comm_world(const comm_t *comm)
{
    return comm->world;
}

const comm_group_t *comm_all(const comm_t *comm)
{
    return &comm->all;
}

void comm_set_nodes(comm_t *comm, const uint32_t *nodes)
{
    comm->nodes = nodes;
}

uint64_t comm_get_activity(comm_t *comm, char what[COMM_NAME_MAX],
                           char unit[COMM_NAME_MAX])
{
    const comm_item_t *item;
    uint64_t steps;

    pthread_mutex_lock(&comm->lock);
    item = comm->current;
    snprintf(what, COMM_NAME_MAX, "%s",
             (item != NULL && item->what != NULL) ? item->what : "");
    snprintf(unit, COMM_NAME_MAX, "%s",
             (item != NULL && item->unit != NULL) ? item->unit : "");
    steps = comm->steps;
    pthread_mutex_unlock(&comm->lock);
    return steps;
}

void comm_get_counters(comm_t *comm, comm_counters_t *counters_p)
{
    for (unsigned c = 0; c < COMM_NUM_CLASSES; c++) {
        counters_p->bytes[c] = comm->bytes[c];
    }
    counters_p->link_bytes = comm->link_bytes;
    counters_p->exchanges = comm->exchanges;
    counters_p->busy_seconds = (double)comm->busy_ns * 1e-9;
    counters_p->waited_seconds = (double)comm->waited_ns * 1e-9;
}

/* --- Memory --------------------------------------------------------------- */

fsdp_status_t comm_alloc(comm_t *comm, size_t bytes, void **data_p,
                         fsdp_error_t *err)
{
    return comm->ops->alloc(comm->ctx, bytes, data_p, err);
}

void comm_free(comm_t *comm, void *data, size_t bytes)
{
    if (data != NULL) {
        comm->ops->free(comm->ctx, data, bytes);
    }
}

/* --- Exchanges ------------------------------------------------------------ */

fsdp_status_t comm_free_slot(const comm_t *comm, unsigned *slot_p,
                             fsdp_error_t *err)
{
    for (unsigned slot = COMM_MAX_EXCHANGES; slot > 0; slot--) {
        if (!comm->busy[slot - 1]) {
            *slot_p = slot - 1;
            return FSDP_OK;
        }
    }

    errno = 0;
    return fsdp_error_set(err, FSDP_ERR_BAD_STATE,
                          "all %d exchanges are under way", COMM_MAX_EXCHANGES);
}

static void count_bytes(comm_t *comm, comm_class_t class,
                        const comm_message_t *sends, size_t nsends)
{
    uint64_t bytes = 0, link_bytes = 0;

    for (size_t i = 0; i < nsends; i++) {
        bytes += sends[i].bytes;
        if (comm->nodes != NULL &&
            comm->nodes[sends[i].peer] != comm->nodes[comm->rank]) {
            link_bytes += sends[i].bytes;
        }
    }
    atomic_fetch_add_explicit(&comm->bytes[class], bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&comm->link_bytes, link_bytes,
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&comm->exchanges, 1, memory_order_relaxed);
}

/* What the worker does now, in an error about it. */
static fsdp_status_t fail_exchange(comm_t *comm, unsigned slot,
                                   comm_reason_t reason, double seconds,
                                   const char *detail, fsdp_error_t *err)
{
    comm_stall_t stall = {
        .reason = reason,
        .what = comm->current->what,
        .unit = comm->current->unit,
        .seconds = seconds,
        .detail = detail,
        .peers = comm->pending,
    };

    stall.num_peers = comm->ops->exchange_pending(comm->ctx, slot,
                                                  comm->pending, comm->world);
    return explain(comm, &stall, err);
}

fsdp_status_t comm_exchange_start(comm_t *comm, unsigned slot,
                                  comm_class_t class,
                                  const comm_message_t *sends, size_t nsends,
                                  const comm_message_t *recvs, size_t nrecvs,
                                  fsdp_error_t *err)
{
    fsdp_error_t error;
    fsdp_status_t status;

    if (slot >= COMM_MAX_EXCHANGES || comm->busy[slot]) {
        errno = 0;
        return fsdp_error_set(err, FSDP_ERR_BAD_STATE,
                              "exchange slot %u is not free", slot);
    }

    status = comm->ops->exchange_start(comm->ctx, slot, sends, nsends, recvs,
                                       nrecvs, &error);
    if (status == FSDP_ERR_PEER_LOST) {
        return fail_exchange(comm, slot, COMM_STALL_BACKEND, 0.0, error.text,
                             err);
    }
    if (status != FSDP_OK) {
        if (err != NULL) {
            *err = error;
        }
        return status;
    }

    comm->busy[slot] = true;
    count_bytes(comm, class, sends, nsends);
    return FSDP_OK;
}

/* How long to leave the core alone after a poll that began at @a start. */
typedef struct {
    unsigned idle; /* polls without progress, up to POLL_SPINS */
    uint64_t next; /* nap, ns */
} pace_t;

static void pace(pace_t *pace, uint64_t start)
{
    if (now_ns() - start > POLL_BUSY) {
        /* It has moved data: there may be more. */
        pace->next = NAP_MIN;
        return;
    }

    if (pace->idle < POLL_SPINS) {
        pace->idle++;
    } else {
        nap(pace->next);
        pace->next += pace->next / 2;
        if (pace->next > NAP_MAX) {
            pace->next = NAP_MAX;
        }
    }
}

fsdp_status_t comm_exchange_wait(comm_t *comm, unsigned slot, fsdp_error_t *err)
{
    guard_t guard;
    pace_t pause = {.next = NAP_MIN};
    fsdp_error_t error;
    bool done = false;

    count_step(comm);
    guard = guard_start(comm, 0.0);
    for (;;) {
        uint64_t start = now_ns();
        double time = (double)start * 1e-9;

        if (comm->ops->exchange_test(comm->ctx, slot, &done, &error) !=
            FSDP_OK) {
            return fail_exchange(comm, slot, COMM_STALL_BACKEND,
                                 time - guard.start, error.text, err);
        }
        if (done) {
            comm->busy[slot] = false;
            count_step(comm);
            return FSDP_OK;
        }
        FSDP_TRY(comm_broken(comm, err)); /* a caller has given up */
        if (guard_expired(comm, &guard, time)) {
            return fail_exchange(comm, slot,
                                 guard.alarmed ? COMM_STALL_ALARM
                                               : COMM_STALL_DEADLINE,
                                 time - guard.start, NULL, err);
        }
        pace(&pause, start);
    }
}
