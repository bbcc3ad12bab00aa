#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lib/comm/comm.h"
#include "lib/comm/pages.h"
#include "lib/util/check.h"
#include "t/tap/tap.h"

/*
 * A backend without peers: rank 1 of 4, on nodes of two.  What a peer sends is
 * its rank in each byte, once `answers` is set; until then it never comes.
 */
static struct {
    atomic_bool answers;
    atomic_bool broken;     /* tests report an error */
    atomic_bool hangs;      /* tests do not return */
    atomic_bool open_hangs; /* open does not return */
    atomic_int closed;
    atomic_int started;
    comm_message_t recvs[COMM_MAX_EXCHANGES][8];
    size_t num[COMM_MAX_EXCHANGES];
} fake;

#define FAKE_RANK  1
#define FAKE_WORLD 4

static const uint32_t fake_nodes[FAKE_WORLD] = {0, 0, 1, 1};

static void nap(double seconds)
{
    struct timespec ts = {.tv_sec = (time_t)seconds};

    ts.tv_nsec = (long)((seconds - (double)ts.tv_sec) * 1e9);
    nanosleep(&ts, NULL);
}

static double now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static fsdp_status_t fake_open(void **ctx_p, uint32_t *rank_p,
                               uint32_t *world_p, fsdp_error_t *err)
{
    (void)err;
    while (fake.open_hangs) {
        nap(0.01);
    }
    *ctx_p = NULL;
    *rank_p = FAKE_RANK;
    *world_p = FAKE_WORLD;
    return FSDP_OK;
}

static void fake_close(void *ctx)
{
    (void)ctx;
    fake.closed++;
}

static fsdp_status_t fake_alloc(void *ctx, size_t bytes, void **data_p,
                                fsdp_error_t *err)
{
    (void)ctx;
    return pages_alloc(bytes, data_p, err);
}

static void fake_free(void *ctx, void *data, size_t bytes)
{
    (void)ctx;
    pages_free(data, bytes);
}

static fsdp_status_t fake_start(void *ctx, unsigned slot,
                                const comm_message_t *sends, size_t nsends,
                                const comm_message_t *recvs, size_t nrecvs,
                                fsdp_error_t *err)
{
    (void)ctx, (void)sends, (void)nsends, (void)err;
    for (size_t i = 0; i < nrecvs; i++) {
        fake.recvs[slot][i] = recvs[i];
    }
    fake.num[slot] = nrecvs;
    fake.started++;
    return FSDP_OK;
}

static fsdp_status_t fake_test(void *ctx, unsigned slot, bool *done_p,
                               fsdp_error_t *err)
{
    (void)ctx;
    while (fake.hangs) {
        nap(0.01);
    }
    if (fake.broken) {
        errno = 0;
        return fsdp_error_set(err, FSDP_ERR_PEER_LOST, "the wire is cut");
    }
    if (fake.answers) {
        for (size_t i = 0; i < fake.num[slot]; i++) {
            memset(fake.recvs[slot][i].data, (int)fake.recvs[slot][i].peer,
                   fake.recvs[slot][i].bytes);
        }
    }
    *done_p = fake.answers;
    return FSDP_OK;
}

static size_t fake_pending(void *ctx, unsigned slot, uint32_t *peers,
                           size_t max)
{
    size_t num = 0;

    (void)ctx;
    for (; num < fake.num[slot] && num < max; num++) {
        peers[num] = fake.recvs[slot][num].peer;
    }
    return num;
}

static const struct comm_ops fake_ops = {
    COMM_OPS_VERSION, "fake",     fake_open, fake_close,  fake_alloc,
    fake_free,        fake_start, fake_test, fake_pending};

static comm_t *fake_create(double deadline, const comm_watch_t *watch)
{
    comm_config_t config = {&fake_ops, deadline, watch};
    comm_t *comm = NULL;
    fsdp_error_t err;

    fake.answers = true;
    fake.broken = fake.hangs = fake.open_hangs = false;
    fake.started = 0;
    if (comm_create(&config, &comm, &err) != FSDP_OK) {
        printf("Bail out! %s\n", err.text);
        exit(1);
    }
    return comm;
}

/* --- Jobs ----------------------------------------------------------------- */

static fsdp_status_t count_job(comm_t *comm, void *arg, fsdp_error_t *err)
{
    (void)comm, (void)err;
    ++*(int *)arg;
    return FSDP_OK;
}

static fsdp_status_t nap_job(comm_t *comm, void *arg, fsdp_error_t *err)
{
    (void)comm, (void)err;
    nap(*(double *)arg);
    return FSDP_OK;
}

static fsdp_status_t fail_job(comm_t *comm, void *arg, fsdp_error_t *err)
{
    (void)comm;
    errno = 0;
    return fsdp_error_set(err, FSDP_ERR_CORRUPT, "%s", (const char *)arg);
}

/* One exchange with ranks 0 and 3. */
static fsdp_status_t exchange_job(comm_t *comm, void *arg, fsdp_error_t *err)
{
    static char out[100], in[2][10];
    comm_message_t sends[2] = {
        {0, out, 100},
        {3, out, 20 }
    };
    comm_message_t recvs[2] = {
        {0, in[0], 10},
        {3, in[1], 10}
    };

    (void)arg;
    FSDP_TRY(
        comm_exchange_start(comm, 0, COMM_REDUCE, sends, 2, recvs, 2, err));
    return comm_exchange_wait(comm, 0, err);
}

/* Jobs run in order, and number i sees i before it. */
typedef struct {
    int next;
    bool ordered;
} order_t;

typedef struct {
    order_t *order;
    int number;
} turn_t;

static fsdp_status_t turn_job(comm_t *comm, void *arg, fsdp_error_t *err)
{
    turn_t *turn = arg;

    (void)comm, (void)err;
    turn->order->ordered &= turn->order->next == turn->number;
    turn->order->next++;
    return FSDP_OK;
}

/* --- Tests ---------------------------------------------------------------- */

static void test_self(void)
{
    comm_config_t config = {&comm_self_ops, 1.0, NULL};
    static char text[] = "first", later[] = "second";
    comm_ticket_t ticket;
    fsdp_error_t err;
    uint64_t words[2] = {7, UINT64_MAX}, scratch[2];
    char *data;
    void *memory;
    int count = 0;
    comm_t *comm;

    ok(comm_create(&config, &comm, &err) == FSDP_OK, "self: opens");
    ok(comm_rank(comm) == 0 && comm_world(comm) == 1, "self: one rank");
    ok(comm_submit(comm, count_job, &count, "count", NULL, &ticket, &err) ==
               FSDP_OK &&
           count == 1 && comm_done(comm, ticket),
       "self: a job runs in the caller");
    ok(comm_wait(comm, ticket, &err) == FSDP_OK, "self: and is done");
    ok(comm_all_sum(comm, comm_all(comm), words, 2, scratch, &err) == FSDP_OK &&
           words[0] == 7 && words[1] == UINT64_MAX,
       "self: the sum over one rank");

    ok(comm_alloc(comm, 3u << 20, &memory, &err) == FSDP_OK, "self: allocates");
    data = memory;
    ok((uintptr_t)data % 4096 == 0 && data[0] == 0 && data[(3u << 20) - 1] == 0,
       "self: zeroed pages");
    comm_free(comm, memory, 3u << 20);
    comm_free(comm, NULL, 0);

    ok(comm_run(comm, exchange_job, NULL, "exchange", NULL, &err) ==
           FSDP_ERR_INVALID_PARAM,
       "self: there is no peer: %s", err.text);
    comm_destroy(comm);

    comm_create(&config, &comm, &err);
    ok(comm_run(comm, fail_job, text, "fail", NULL, &err) == FSDP_ERR_CORRUPT,
       "self: an error is returned");
    ok(comm_run(comm, fail_job, later, "fail", NULL, &err) ==
               FSDP_ERR_CORRUPT &&
           strcmp(err.text, "first") == 0,
       "self: and again, the first one");
    ok(comm_destroy(comm), "self: closes");
}

static void test_order(void)
{
    enum { NUM = 3 * COMM_QUEUE_SIZE + 5 };
    static turn_t turns[NUM];
    order_t order = {0, true};
    comm_t *comm = fake_create(10.0, NULL);
    comm_ticket_t ticket = 0, before = 0;
    bool good = true, rising = true;
    fsdp_error_t err;

    for (int i = 0; i < NUM; i++) {
        turns[i] = (turn_t){&order, i};
        good &= comm_submit(comm, turn_job, &turns[i], "turn", NULL, &ticket,
                            &err) == FSDP_OK;
        rising &= ticket > before;
        before = ticket;
    }
    ok(good, "more jobs than the queue holds");
    ok(rising, "tickets rise");
    ok(comm_wait(comm, ticket, &err) == FSDP_OK, "wait for the last");
    ok(order.ordered && order.next == NUM, "all ran in order");
    ok(comm_wait(comm, 0, &err) == FSDP_OK && comm_done(comm, 0),
       "ticket 0 is done");
    fake.closed = 0;
    ok(comm_destroy(comm) && fake.closed == 1, "the backend is closed");
}

static void test_times(void)
{
    comm_t *comm = fake_create(10.0, NULL);
    comm_counters_t counters;
    double seconds = 0.1;
    comm_ticket_t ticket;
    fsdp_error_t err;

    comm_submit(comm, nap_job, &seconds, "nap", NULL, &ticket, &err);
    ok(!comm_done(comm, ticket), "a job runs beside the caller");
    comm_wait(comm, ticket, &err);
    comm_get_counters(comm, &counters);
    ok(counters.busy_seconds >= 0.1, "busy for %g s", counters.busy_seconds);
    ok(counters.waited_seconds > 0.05, "waited for %g s",
       counters.waited_seconds);

    comm_submit(comm, nap_job, &seconds, "nap", NULL, &ticket, &err);
    nap(0.3);
    comm_wait(comm, ticket, &err);
    comm_get_counters(comm, &counters);
    ok(counters.busy_seconds >= 0.2 && counters.waited_seconds < 0.25,
       "a hidden job is not waited for: busy %g s, waited %g s",
       counters.busy_seconds, counters.waited_seconds);
    comm_destroy(comm);
}

static fsdp_status_t collective_job(comm_t *comm, void *arg, fsdp_error_t *err)
{
    const comm_group_t *all = comm_all(comm);
    static const uint32_t some[2] = {1, 3};
    comm_group_t pair = {2, 0, some};
    uint64_t words[2] = {5, 0x0202020202020202u};
    uint64_t scratch[8], both[2] = {9, 9};
    char *block = arg;

    memset(block, 0xee, 4 * 100);
    memset(block + 100, 1, 100);
    FSDP_TRY(comm_all_gather(comm, all, COMM_GATHER, block, 100, err));
    FSDP_TRY(comm_all_gather(comm, &pair, COMM_REPLICA, both, 8, err));
    block[400] = both[0] == 9 && both[1] == 0x0303030303030303u;
    FSDP_TRY(comm_all_sum(comm, all, words, 1, scratch, err));
    block[401] = words[0] == 5 + 0 + 0x0202020202020202u + 0x0303030303030303u;
    FSDP_TRY(comm_all_max(comm, all, words + 1, 1, scratch, err));
    block[402] = words[1] == 0x0303030303030303u;
    return FSDP_OK;
}

static void test_collectives(void)
{
    comm_t *comm = fake_create(10.0, NULL);
    comm_counters_t counters;
    char block[403];
    bool good = true;
    fsdp_error_t err;

    comm_set_nodes(comm, fake_nodes);
    ok(comm_run(comm, collective_job, block, "all", NULL, &err) == FSDP_OK,
       "collectives over 4 ranks");
    for (int i = 0; i < 400; i++) {
        good &= block[i] == i / 100;
    }
    ok(good, "all-gather puts each rank's block in its place");
    ok(block[400] == 1, "all-gather in a group");
    ok(block[401] == 1, "sum modulo 2^64");
    ok(block[402] == 1, "maximum");

    comm_get_counters(comm, &counters);
    ok(counters.bytes[COMM_GATHER] == 300 && counters.bytes[COMM_REDUCE] == 0 &&
           counters.bytes[COMM_REPLICA] == 8 &&
           counters.bytes[COMM_CONTROL] == 48,
       "bytes are counted by class");
    ok(counters.link_bytes == 200 + 8 + 32, "and those to other nodes");
    ok(counters.exchanges == 4, "and exchanges");
    comm_destroy(comm);
}

static fsdp_status_t misuse_job(comm_t *comm, void *arg, fsdp_error_t *err)
{
    fsdp_error_t mine;

    for (unsigned slot = 0; slot < COMM_MAX_EXCHANGES; slot++) {
        FSDP_TRY(comm_exchange_start(comm, slot, COMM_REDUCE, NULL, 0, NULL, 0,
                                     err));
    }
    *(bool *)arg =
        comm_exchange_start(comm, 1, COMM_REDUCE, NULL, 0, NULL, 0, &mine) ==
            FSDP_ERR_BAD_STATE &&
        comm_exchange_start(comm, COMM_MAX_EXCHANGES, COMM_REDUCE, NULL, 0,
                            NULL, 0, &mine) == FSDP_ERR_BAD_STATE &&
        comm_all_gather(comm, comm_all(comm), COMM_GATHER, &mine, 8, &mine) ==
            FSDP_ERR_BAD_STATE;
    for (unsigned slot = COMM_MAX_EXCHANGES; slot > 0; slot--) {
        FSDP_TRY(comm_exchange_wait(comm, slot - 1, err));
    }
    return FSDP_OK;
}

static void test_slots(void)
{
    comm_t *comm = fake_create(10.0, NULL);
    bool refused = false;
    fsdp_error_t err;

    ok(comm_run(comm, misuse_job, &refused, "slots", NULL, &err) == FSDP_OK,
       "all slots at once");
    ok(refused, "a slot in use, or beyond the last, is refused");
    comm_destroy(comm);
}

static void test_silent_peer(void)
{
    comm_t *comm = fake_create(0.5, NULL);
    comm_ticket_t ticket, behind;
    fsdp_error_t err, again;
    int count = 0;
    double start;

    fake.answers = false;
    start = now();
    comm_submit(comm, exchange_job, NULL, "all-gather", "h.3", &ticket, &err);
    comm_submit(comm, count_job, &count, "count", NULL, &behind, &err);
    ok(comm_wait(comm, behind, &err) == FSDP_ERR_PEER_LOST,
       "a peer that never answers is lost");
    ok(now() - start >= 0.5 && now() - start < 1.5, "after %.2f s",
       now() - start);
    ok(strstr(err.text, "all-gather of h.3") != NULL &&
           strstr(err.text, "ranks 0, 3") != NULL &&
           strstr(err.text, "rank 1:") != NULL,
       "%s", err.text);
    ok(count == 0, "what was queued behind it is dropped");

    ok(comm_wait(comm, ticket, &again) == FSDP_ERR_PEER_LOST &&
           strcmp(err.text, again.text) == 0,
       "each later wait gives the same error");
    ok(comm_submit(comm, count_job, &count, "count", NULL, &ticket, &again) ==
               FSDP_ERR_PEER_LOST &&
           strcmp(err.text, again.text) == 0,
       "and each submission");
    ok(comm_broken(comm, &again) == FSDP_ERR_PEER_LOST, "it is broken");

    fake.closed = 0;
    start = now();
    comm_destroy(comm);
    ok(fake.closed == 0 && now() - start < 0.5,
       "it closes without the backend, in %.3f s", now() - start);
}

static void test_backend_error(void)
{
    comm_t *comm = fake_create(10.0, NULL);
    fsdp_error_t err;

    fake.broken = true;
    ok(comm_run(comm, exchange_job, NULL, "reduce", NULL, &err) ==
               FSDP_ERR_PEER_LOST &&
           strstr(err.text, "the wire is cut") != NULL,
       "%s", err.text);
    comm_destroy(comm);
}

/* The worker hangs inside the backend: the caller comes back all the same. */
static void test_hang(void)
{
    comm_t *comm = fake_create(0.5, NULL);
    fsdp_error_t err;
    double start = now();

    fake.hangs = true;
    ok(comm_run(comm, exchange_job, NULL, "reduce", "h.1", &err) ==
           FSDP_ERR_PEER_LOST,
       "a worker that hangs is given up after %.2f s", now() - start);
    ok(now() - start < 2.5, "in time");
    ok(strstr(err.text, "reduce of h.1") != NULL, "%s", err.text);
    start = now();
    ok(!comm_destroy(comm), "it is left behind");
    ok(now() - start < 0.6, "at once");
    fake.hangs = false;
    nap(0.1); /* it goes on, and ends */
}

static void test_open_hangs(void)
{
    comm_config_t config = {&fake_ops, 0.3, NULL};
    double start = now();
    fsdp_error_t err;
    comm_t *comm;

    fake.open_hangs = true;
    ok(comm_create(&config, &comm, &err) == FSDP_ERR_PEER_LOST,
       "an open that hangs: %s", err.text);
    ok(now() - start < 1.5, "after %.2f s", now() - start);
    fake.closed = 0;
    fake.open_hangs = false;
    nap(0.2);
    ok(fake.closed == 0, "what opens too late is not used");
}

static atomic_bool alarmed;
static atomic_int looks;

static bool watch_alarmed(void *arg)
{
    (void)arg;
    return alarmed;
}

static void watch_look(void *arg)
{
    (void)arg;
    looks++;
}

static fsdp_status_t watch_explain(void *arg, const comm_stall_t *stall,
                                   fsdp_error_t *err)
{
    *(comm_stall_t *)arg = *stall;
    errno = 0;
    return fsdp_error_set(err, FSDP_ERR_SIGNALLED, "explained");
}

static void *raise_alarm(void *arg)
{
    (void)arg;
    nap(0.2);
    alarmed = true;
    return NULL;
}

static void test_alarm(void)
{
    comm_stall_t stall = {0};
    comm_watch_t watch = {watch_alarmed, watch_look, watch_explain, &stall};
    comm_t *comm = fake_create(60.0, &watch);
    double start = now();
    pthread_t thread;
    fsdp_error_t err;

    alarmed = false;
    looks = 0;
    fake.answers = false;
    pthread_create(&thread, NULL, raise_alarm, NULL);
    ok(comm_run(comm, exchange_job, NULL, "reduce", NULL, &err) ==
               FSDP_ERR_SIGNALLED &&
           strcmp(err.text, "explained") == 0,
       "a wait ends when the program is told to");
    pthread_join(thread, NULL);
    ok(now() - start > COMM_LOOK_SECONDS && now() - start < 4.0,
       "after %.1f s of looking", now() - start);
    ok(looks >= 1 && stall.reason == COMM_STALL_ALARM && stall.num_peers == 2,
       "the watch has looked, and knows the peers");
    comm_destroy(comm);

    /* What is done within that time is not disturbed. */
    comm = fake_create(60.0, &watch);
    ok(comm_run(comm, exchange_job, NULL, "reduce", NULL, &err) == FSDP_OK,
       "an exchange that goes on is not cut off");
    comm_destroy(comm);
    alarmed = false;
}

static void test_break(void)
{
    comm_t *comm = fake_create(10.0, NULL);
    fsdp_error_t mine, err;
    comm_ticket_t ticket;

    fake.answers = false;
    comm_submit(comm, exchange_job, NULL, "reduce", NULL, &ticket, &err);
    errno = 0;
    fsdp_error_set(&mine, FSDP_ERR_MISMATCH, "they differ");
    ok(comm_break(comm, &mine, &err) == FSDP_ERR_MISMATCH, "break it");
    ok(comm_wait(comm, ticket, &err) == FSDP_ERR_MISMATCH &&
           strcmp(err.text, "they differ") == 0,
       "a wait ends with that error");
    fsdp_error_set(&mine, FSDP_ERR_IO, "later");
    ok(comm_break(comm, &mine, &err) == FSDP_ERR_MISMATCH,
       "the first error stays");
    ok(comm_destroy(comm), "the worker leaves its wait");
}

static fsdp_status_t mask_job(comm_t *comm, void *arg, fsdp_error_t *err)
{
    sigset_t set;

    (void)comm, (void)err;
    pthread_sigmask(SIG_SETMASK, NULL, &set);
    *(bool *)arg = sigismember(&set, SIGTERM) && sigismember(&set, SIGUSR1) &&
                   sigismember(&set, SIGINT);
    return FSDP_OK;
}

static fsdp_status_t activity_job(comm_t *comm, void *arg, fsdp_error_t *err)
{
    char what[COMM_NAME_MAX], unit[COMM_NAME_MAX];

    (void)err;
    comm_get_activity(comm, what, unit);
    *(bool *)arg = strcmp(what, "gather") == 0 && strcmp(unit, "h.7") == 0;
    return FSDP_OK;
}

static void test_thread(void)
{
    comm_t *comm = fake_create(10.0, NULL);
    char what[COMM_NAME_MAX], unit[COMM_NAME_MAX];
    bool good = false;
    fsdp_error_t err;
    sigset_t set;

    comm_run(comm, mask_job, &good, "mask", NULL, &err);
    pthread_sigmask(SIG_SETMASK, NULL, &set);
    ok(good && !sigismember(&set, SIGTERM),
       "signals are for the program's threads");
    comm_run(comm, activity_job, &good, "gather", "h.7", &err);
    ok(good, "the work at hand is known");
    comm_get_activity(comm, what, unit);
    ok(what[0] == '\0' && unit[0] == '\0', "and that there is none");
    comm_destroy(comm);
    ok(comm_destroy(NULL), "no communicator is no trouble");
}

static void test_modules(void)
{
    const struct comm_ops *ops = NULL;
    fsdp_error_t err;

    ok(comm_module_load("no-such", &ops, &err) == FSDP_ERR_NO_LAUNCHER &&
           strstr(err.text, "fsdp_comm_no-such.so") != NULL,
       "%s", err.text);
#if HAVE_MPI
    ok(comm_module_load("mpi", &ops, &err) == FSDP_OK &&
           strcmp(ops->name, "mpi") == 0,
       "the MPI module loads");
#endif
}

int main(void)
{
    test_self();
    test_order();
    test_times();
    test_collectives();
    test_slots();
    test_silent_peer();
    test_backend_error();
    test_hang();
    test_open_hangs();
    test_alarm();
    test_break();
    test_thread();
    test_modules();
    return tap_done();
}
