/*
 * job-ring - open a job, pass numbers around, and say what was found
 *
 * The program of the tests of rendezvous and failure, and a quick measure of
 * the exchange.
 */
#include "config.h"

#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "lib/fsdp.h"
#include "lib/job/job.h"
#include "lib/util/check.h"

typedef struct {
    double deadline, seconds;
    uint64_t block;
    uint32_t per_node;
    const char *run_dir;
    /* A rank that fails in a way: reports an error, stops, or is killed. */
    const char *fail, *stop, *kill;
    bool alone, bench, quiet;
} settings_t;

static const struct argp_option options[] = {
    {"deadline",                         'd', "SECONDS", 0, "Longest wait", 0},
    {"run-dir",                         'r', "DIR", 0, "Keep heartbeats there", 0},
    {"seconds",                    's', "SECONDS", 0, "Pass numbers around for so long", 0},
    {"block",                                  'n', "WORDS", 0, "Numbers of each rank", 0},
    {"per-node",       'p', "RANKS", 0, "Act as if so many ranks shared a node", 0},
    {"fail",                                 'f', "RANK", 0, "This rank has an error", 0},
    {"stop",                                 'S', "RANK", 0, "This rank stops in round 30", 0},
    {"kill",                          'K', "RANK", 0, "This rank is killed in round 30", 0},
    {"alone",                         'a', NULL, 0, "Be alone", 0},
    {"bench", 'b', NULL, 0, "Measure", 0},
    {"quiet",                                  'q', NULL, 0, "Only errors", 0},
    {0}
};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    settings_t *set = state->input;

    switch (key) {
    case 'd':
        set->deadline = strtod(text, NULL);
        return 0;
    case 'r':
        set->run_dir = text;
        return 0;
    case 's':
        set->seconds = strtod(text, NULL);
        return 0;
    case 'n':
        set->block = strtoull(text, NULL, 10);
        return 0;
    case 'p':
        set->per_node = (uint32_t)strtoul(text, NULL, 10);
        return 0;
    case 'S':
        set->stop = text;
        return 0;
    case 'K':
        set->kill = text;
        return 0;
    case 'f':
        set->fail = text;
        return 0;
    case 'a':
        set->alone = true;
        return 0;
    case 'b':
        set->bench = true;
        return 0;
    case 'q':
        set->quiet = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static double now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static fsdp_status_t wrong(fsdp_error_t *err, const char *what)
{
    errno = 0;
    return fsdp_error_set(err, FSDP_ERR_CORRUPT, "wrong result: %s", what);
}

/* --- One round of each collective, checked -------------------------------- */

typedef struct {
    uint64_t *all, *scratch;
    uint64_t block; /* words a rank */
    uint64_t round;
    uint64_t go_on; /* any rank wants another one */
} round_t;

static uint64_t value(uint64_t round, uint64_t rank, uint64_t i)
{
    return (round * 1000003 + rank * 10007 + i) * 0x9e3779b97f4a7c15u;
}

static fsdp_status_t gather_round(comm_t *comm, const comm_group_t *group,
                                  round_t *round, fsdp_error_t *err)
{
    uint64_t block = round->block;

    memset(round->all, 0, group->size * block * sizeof(*round->all));
    for (uint64_t i = 0; i < block; i++) {
        round->all[group->index * block + i] =
            value(round->round, comm_rank(comm), i);
    }
    FSDP_TRY(comm_all_gather(comm, group, COMM_GATHER, round->all,
                             block * sizeof(*round->all), err));
    for (uint64_t r = 0; r < group->size; r++) {
        for (uint64_t i = 0; i < block; i++) {
            if (round->all[r * block + i] !=
                value(round->round, group->ranks[r], i)) {
                return wrong(err, "all-gather");
            }
        }
    }

    return FSDP_OK;
}

static fsdp_status_t sum_round(comm_t *comm, const comm_group_t *group,
                               round_t *round, fsdp_error_t *err)
{
    uint64_t sums[3], maxima[3];

    for (uint64_t i = 0; i < 3; i++) {
        sums[i] = maxima[i] = value(round->round, comm_rank(comm), i);
    }
    FSDP_TRY(comm_all_sum(comm, group, sums, 3, round->scratch, err));
    FSDP_TRY(comm_all_max(comm, group, maxima, 3, round->scratch, err));
    for (uint64_t i = 0; i < 3; i++) {
        uint64_t sum = 0, max = 0, x;

        for (uint64_t r = 0; r < group->size; r++) {
            x = value(round->round, group->ranks[r], i);
            sum += x;
            max = (max > x) ? max : x;
        }
        if (sums[i] != sum || maxima[i] != max) {
            return wrong(err, "sum or maximum");
        }
    }

    return FSDP_OK;
}

/* Two exchanges under way at once, with messages of different sizes. */
static fsdp_status_t ring_round(comm_t *comm, const comm_group_t *group,
                                round_t *round, fsdp_error_t *err)
{
    uint32_t next = group->ranks[(group->index + 1) % group->size];
    uint32_t last =
        group->ranks[(group->index + group->size - 1) % group->size];
    uint64_t block = round->block, part = block * 7 / 10;
    uint64_t *out = round->all, *in = round->all + block;
    comm_message_t sends[2] = {
        {next, out,        8 * part          },
        {next, out + part, 8 * (block - part)}
    };
    comm_message_t recvs[2] = {
        {last, in,        8 * part          },
        {last, in + part, 8 * (block - part)}
    };

    if (group->size < 2) {
        return FSDP_OK;
    }
    for (uint64_t i = 0; i < block; i++) {
        out[i] = value(round->round, comm_rank(comm), i);
        in[i] = 0;
    }
    for (unsigned slot = 0; slot < 2; slot++) {
        FSDP_TRY(comm_exchange_start(comm, slot, COMM_REDUCE, &sends[slot], 1,
                                     &recvs[slot], 1, err));
    }
    FSDP_TRY(comm_exchange_wait(comm, 1, err));
    FSDP_TRY(comm_exchange_wait(comm, 0, err));
    for (uint64_t i = 0; i < block; i++) {
        if (in[i] != value(round->round, last, i)) {
            return wrong(err, "ring");
        }
    }

    return FSDP_OK;
}

static fsdp_status_t round_job(comm_t *comm, void *arg, fsdp_error_t *err)
{
    const comm_group_t *all = comm_all(comm);
    uint32_t ranks[2] = {all->index & ~1u, (all->index & ~1u) + 1};
    comm_group_t pair = {2, all->index & 1, ranks};
    round_t *round = arg;

    FSDP_TRY(gather_round(comm, all, round, err));
    FSDP_TRY(sum_round(comm, all, round, err));
    FSDP_TRY(ring_round(comm, all, round, err));
    if (ranks[1] < all->size) {
        FSDP_TRY(gather_round(comm, &pair, round, err));
    }
    return comm_all_max(comm, all, &round->go_on, 1, round->scratch, err);
}

static bool is_me(const char *rank, const comm_t *comm)
{
    return rank != NULL && strtoul(rank, NULL, 10) == comm_rank(comm);
}

#define FATAL_ROUND 30

static fsdp_status_t run_rounds(fsdp_job_t *job, const settings_t *set,
                                uint64_t *rounds_p, fsdp_error_t *err)
{
    comm_t *comm = job_comm(job);
    size_t words = ((size_t)comm_world(comm) + 1) * set->block;
    double end = now() + set->seconds;
    round_t round = {.block = set->block};
    void *data;

    FSDP_TRY(comm_alloc(comm, 2 * words * sizeof(uint64_t), &data, err));
    round.all = data;
    round.scratch = round.all + words;
    do {
        fsdp_job_set_phase(job, "round", (int64_t)round.round);
        round.go_on = round.round < 19 || now() < end;
        if (round.round == FATAL_ROUND && is_me(set->stop, comm)) {
            raise(SIGSTOP);
        }
        if (round.round == FATAL_ROUND && is_me(set->kill, comm)) {
            raise(SIGKILL);
        }
        FSDP_TRY(comm_run(comm, round_job, &round, "round", "ring", err));
        round.round++;
        if (set->seconds > 0.0) {
            nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        }
    } while (round.go_on);
    comm_free(comm, data, 2 * words * sizeof(uint64_t));

    *rounds_p = round.round;
    return FSDP_OK;
}

/* --- Measure -------------------------------------------------------------- */

typedef struct {
    char *data;
    size_t bytes; /* of each rank */
    unsigned repeat;
} bench_t;

static fsdp_status_t bench_gather(comm_t *comm, void *arg, fsdp_error_t *err)
{
    bench_t *bench = arg;

    for (unsigned i = 0; i < bench->repeat; i++) {
        FSDP_TRY(comm_all_gather(comm, comm_all(comm), COMM_GATHER, bench->data,
                                 bench->bytes, err));
    }
    return FSDP_OK;
}

static fsdp_status_t run_bench(fsdp_job_t *job, fsdp_error_t *err)
{
    comm_t *comm = job_comm(job);
    size_t world = comm_world(comm), most = 64ul << 20;
    bench_t bench;
    void *data;

    FSDP_TRY(comm_alloc(comm, most * world, &data, err));
    memset(data, 1, most * world);
    bench.data = data;
    for (bench.bytes = 1024; bench.bytes <= most; bench.bytes *= 4) {
        double best = 1e9, start, seconds;

        bench.repeat = (unsigned)(most / 4 / bench.bytes);
        bench.repeat = (bench.repeat > 500)  ? 500
                       : (bench.repeat == 0) ? 1
                                             : bench.repeat;
        for (int try = 0; try < 5; try++) {
            FSDP_TRY(fsdp_job_agree(job, FSDP_OK, NULL, err));
            start = now();
            FSDP_TRY(comm_run(comm, bench_gather, &bench, "bench", NULL, err));
            seconds = (now() - start) / bench.repeat;
            best = (best < seconds) ? best : seconds;
        }
        if (comm_rank(comm) == 0) {
            printf("all-gather of %9zu bytes a rank: %10.1f us %8.3f GB/s\n",
                   bench.bytes, best * 1e6,
                   (double)bench.bytes * (double)(world - 1) / best * 1e-9);
        }
    }
    comm_free(comm, data, most * world);
    return FSDP_OK;
}

/* --- Main ----------------------------------------------------------------- */

static void print_info(const fsdp_job_t *job)
{
    fsdp_job_info_t info;

    fsdp_job_get_info(job, &info);
    printf("rank %u of %u local %u of %u node %u of %u host %s launcher %s "
           "backend %s id %s\n",
           info.rank, info.world, info.local_rank, info.local_size, info.node,
           info.nodes, info.host, info.launcher, info.backend, info.id);
    fflush(stdout);
}

static fsdp_status_t test_agree(fsdp_job_t *job, const settings_t *set,
                                fsdp_error_t *err)
{
    fsdp_error_t mine;
    fsdp_status_t status = FSDP_OK;
    fsdp_job_info_t info;

    fsdp_job_get_info(job, &info);
    if (set->fail != NULL && info.rank >= strtoul(set->fail, NULL, 10)) {
        errno = 0;
        status = fsdp_error_set(&mine, FSDP_ERR_IO, "disk of rank %u is full",
                                info.rank);
    }
    return fsdp_job_agree(job, status, &mine, err);
}

static uint32_t nodes[64];

static void set_nodes(fsdp_job_t *job, uint32_t per_node)
{
    for (uint32_t rank = 0; rank < 64; rank++) {
        nodes[rank] = rank / per_node;
    }
    comm_set_nodes(job_comm(job), nodes);
}

static fsdp_status_t run(fsdp_job_t *job, const settings_t *set,
                         fsdp_error_t *err)
{
    uint64_t rounds = 0;
    comm_counters_t counters;

    FSDP_TRY(test_agree(job, set, err));
    if (set->per_node > 0) {
        set_nodes(job, set->per_node);
    }
    if (set->bench) {
        return run_bench(job, err);
    }
    FSDP_TRY(run_rounds(job, set, &rounds, err));
    comm_get_counters(job_comm(job), &counters);
    if (!set->quiet) {
        printf("sent gather %llu reduce %llu control %llu link %llu in %llu "
               "rounds\n",
               (unsigned long long)counters.bytes[COMM_GATHER],
               (unsigned long long)counters.bytes[COMM_REDUCE],
               (unsigned long long)counters.bytes[COMM_CONTROL],
               (unsigned long long)counters.link_bytes,
               (unsigned long long)rounds);
    }
    return FSDP_OK;
}

static void on_term(int signo)
{
    fsdp_job_signalled(signo);
}

/* Say it, and go without waiting for anybody, but for srun: it drops what it
 * has not yet passed on of a rank whose end is that of the step. */
static void fail(const fsdp_error_t *err)
{
    fflush(stdout);
    fprintf(stderr, "job-ring: %s: %s\n", fsdp_status_name(err->status),
            err->text);
    fflush(stderr);
    sleep(1);
    _exit((int)fsdp_status_exit(err->status));
}

int main(int argc, char **argv)
{
    const struct argp argp = {options, parse_option, "", NULL, 0, 0, 0};
    fsdp_job_config_t config = FSDP_JOB_CONFIG_INIT;
    settings_t set = {.block = 1000};
    fsdp_job_t *job;
    fsdp_error_t err;

    argp_parse(&argp, argc, argv, 0, 0, &set);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGTERM, on_term);

    config.alone = set.alone;
    config.deadline = set.deadline;
    config.run_dir = set.run_dir;
    if (fsdp_job_open(&config, &job, &err) != FSDP_OK) {
        fail(&err);
    }
    if (!set.quiet) {
        print_info(job);
    }
    if (run(job, &set, &err) != FSDP_OK) {
        fail(&err);
    }
    fsdp_job_close(job);
    return 0;
}
