#include "config.h"

#include "lib/job/job.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/job/heartbeat.h"
#include "lib/job/launch.h"
#include "lib/job/missing.h"
#include "lib/job/peers.h"
#include "lib/job/rendezvous.h"
#include "lib/util/check.h"
#include "lib/util/clock.h"

#define DEADLINE_DEFAULT 300.0

/* Set by the program's signal handler. */
static atomic_int signalled;

/* For fsdp_job_agree(). */
typedef struct {
    int64_t *statuses; /* of each rank */
    fsdp_error_t error;
    uint32_t failed; /* the lowest rank that failed; world: none */
} agree_t;

struct fsdp_job {
    launch_t launch;
    comm_t *comm;
    peers_t peers;
    agree_t agree;
    heartbeat_t *beat; /* NULL: none */
    const char *backend;
    double deadline;
    char host[PEERS_HOST_MAX]; /* of this rank, as the launcher calls it */
    char *run_dir;             /* NULL: none */
    _Atomic bool started;      /* all ranks have arrived; peers are known */
    double looked; /* when job_check_wait() looked for peers; 0: never */
};

/* --- Agreement ------------------------------------------------------------ */

/* The first failed rank tells the others why. */
static fsdp_status_t spread_error(comm_t *comm, agree_t *agree,
                                  fsdp_error_t *err)
{
    uint32_t rank = comm_rank(comm), world = comm_world(comm);
    comm_message_t message = {agree->failed, &agree->error,
                              sizeof(agree->error)};

    if (rank != agree->failed) {
        FSDP_TRY(comm_exchange_start(comm, 0, COMM_CONTROL, NULL, 0, &message,
                                     1, err));
        return comm_exchange_wait(comm, 0, err);
    }

    for (uint32_t peer = 0; peer < world; peer++) {
        if (peer == rank) {
            continue;
        }
        message.peer = peer;
        FSDP_TRY(comm_exchange_start(comm, 0, COMM_CONTROL, &message, 1, NULL,
                                     0, err));
        FSDP_TRY(comm_exchange_wait(comm, 0, err));
    }
    return FSDP_OK;
}

static fsdp_status_t agree_job(comm_t *comm, void *arg, fsdp_error_t *err)
{
    agree_t *agree = arg;
    uint32_t world = comm_world(comm);

    agree->statuses[comm_rank(comm)] = agree->error.status;
    FSDP_TRY(comm_all_gather(comm, comm_all(comm), COMM_CONTROL,
                             agree->statuses, sizeof(*agree->statuses), err));
    for (agree->failed = 0; agree->failed < world; agree->failed++) {
        if (agree->statuses[agree->failed] != FSDP_OK) {
            return spread_error(comm, agree, err);
        }
    }

    return FSDP_OK;
}

static bool breaks_job(fsdp_status_t status)
{
    return status == FSDP_ERR_PEER_LOST || status == FSDP_ERR_MISMATCH ||
           status == FSDP_ERR_SIGNALLED;
}

fsdp_status_t fsdp_job_agree(fsdp_job_t *job, fsdp_status_t status,
                             const fsdp_error_t *mine, fsdp_error_t *err)
{
    agree_t *agree = &job->agree;

    agree->error =
        (status != FSDP_OK && mine != NULL) ? *mine : (fsdp_error_t){0};
    agree->error.status = status;
    FSDP_TRY(comm_run(job->comm, agree_job, agree, "agreement", NULL, err));
    if (agree->failed == comm_world(job->comm)) {
        return FSDP_OK;
    }

    agree->error.rank = (int)agree->failed;
    agree->error.text[sizeof(agree->error.text) - 1] = '\0';
    if (err != NULL) {
        *err = agree->error;
    }
    if (breaks_job(agree->error.status)) {
        return comm_break(job->comm, &agree->error, err);
    }
    return agree->error.status;
}

/* --- Opening -------------------------------------------------------------- */

static bool is_alarmed(void *arg)
{
    (void)arg;
    return atomic_load_explicit(&signalled, memory_order_relaxed) != 0;
}

static void look(void *arg)
{
    fsdp_job_t *job = arg;

    if (job->beat != NULL) {
        heartbeat_look(job->beat);
    }
}

/* The last word of this rank: whatever comes now, it will not go on. */
static fsdp_status_t explain(void *arg, const comm_stall_t *stall,
                             fsdp_error_t *err)
{
    fsdp_job_t *job = arg;
    peers_t early = {0};
    missing_view_t view = {
        .rank = job->launch.rank,
        .world = job->launch.size,
        .host = job->host,
        .peers = &job->peers,
        .started = job->started,
        .run_dir = job->run_dir,
        .beat = job->beat,
    };
    fsdp_status_t status;

    if (!view.started) {
        view.peers = &early;
        if (view.world > 0 &&
            peers_from_slurm(view.world, view.rank, &early, NULL) != FSDP_OK) {
            (void)rendezvous_find_nodes(view.world, view.rank, &early, NULL);
        }
    }
    status = missing_explain(&view, stall, err);
    if (job->beat != NULL) {
        heartbeat_give_up(job->beat);
    }
    peers_free(&early);
    return status;
}

fsdp_status_t job_check_wait(fsdp_job_t *job, const char *what, double seconds,
                             fsdp_error_t *err)
{
    comm_stall_t stall = {
        .reason = COMM_STALL_ALARM, .what = what, .seconds = seconds};
    fsdp_error_t error = {0};

    FSDP_TRY(comm_broken(job->comm, err));
    if (!is_alarmed(NULL)) {
        return FSDP_OK;
    }
    if (job->looked == 0.0) {
        job->looked = clock_now();
        look(job);
    }
    if (clock_now() - job->looked < COMM_LOOK_SECONDS) {
        return FSDP_OK;
    }

    (void)explain(job, &stall, &error);
    return comm_break(job->comm, &error, err);
}

/* First of all, so that a rank that does not come is known by its absence. */
static fsdp_status_t open_beat(fsdp_job_t *job, const char *run_dir,
                               fsdp_error_t *err)
{
    if (run_dir == NULL) {
        return FSDP_OK;
    }

    job->run_dir = strdup(run_dir);
    if (job->run_dir == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "no memory for a path");
    }

    return heartbeat_open(run_dir, job->launch.id, job->host, job->launch.rank,
                          job->launch.size, &job->beat, err);
}

static void set_host(fsdp_job_t *job)
{
    const char *name = job->launch.pmix ? getenv("PMIX_HOSTNAME") : NULL;

    if (name != NULL && name[0] != '\0') {
        snprintf(job->host, sizeof(job->host), "%s", name);
    } else {
        gethostname(job->host, sizeof(job->host) - 1);
    }
}

static fsdp_status_t open_comm(fsdp_job_t *job, fsdp_error_t *err)
{
    comm_watch_t watch = {is_alarmed, look, explain, job};
    comm_config_t config = {
        .ops = &comm_self_ops, .deadline = job->deadline, .watch = &watch};

    if (job->launch.size != 1) {
        FSDP_TRY(comm_module_load("mpi", &config.ops, err));
    }
    job->backend = config.ops->name;
    FSDP_TRY(comm_create(&config, &job->comm, err));
    if (job->beat != NULL) {
        heartbeat_set_comm(job->beat, job->comm);
    }
    return FSDP_OK;
}

/* Singletons, each of which believes to be alone, are the worst that can come
 * of a broken launch: they would all write the same checkpoint. */
static fsdp_status_t check_world(const fsdp_job_t *job, fsdp_error_t *err)
{
    uint32_t world = comm_world(job->comm), size = job->launch.size;

    if (size != 0 && world != size) {
        errno = 0;
        return fsdp_error_set(
            err, FSDP_ERR_NO_LAUNCHER,
            "%s started %u ranks, but MPI finds %u: start them with 'srun "
            "--mpi=pmix' (Debian: libpmix-dev on all nodes) or Open MPI's own "
            "mpirun",
            launch_name(job->launch.kind), size, world);
    }

    return FSDP_OK;
}

static fsdp_status_t rendezvous_job(comm_t *comm, void *arg, fsdp_error_t *err)
{
    return rendezvous_run(comm, arg, err);
}

static fsdp_status_t find_peers(fsdp_job_t *job, fsdp_error_t *err)
{
    /* A worker that hangs may come back and write to it. */
    peers_t *peers = calloc(1, sizeof(*peers));
    fsdp_status_t status;

    if (peers == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for the hosts of ranks");
    }

    if (HAVE_PMIX && job->launch.pmix && comm_world(job->comm) > 1) {
        status = comm_run(job->comm, rendezvous_job, peers,
                          "rendezvous through PMIx", NULL, err);
    } else {
        status = peers_gather(job->comm, peers, err);
    }
    if (status != FSDP_OK) {
        return status;
    }

    job->peers = *peers;
    free(peers);
    job->agree.statuses =
        calloc(job->peers.world, sizeof(*job->agree.statuses));
    if (job->agree.statuses == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for the status of %u ranks",
                              job->peers.world);
    }

    comm_set_nodes(job->comm, job->peers.node_of);
    snprintf(job->host, sizeof(job->host), "%s",
             job->peers.hosts[job->peers.node_of[job->peers.rank]]);
    job->started = true;
    return FSDP_OK;
}

static fsdp_status_t open_job(fsdp_job_t *job, const fsdp_job_config_t *config,
                              fsdp_error_t *err)
{
    fsdp_status_t beat_status;
    fsdp_error_t beat_error;

    FSDP_TRY(launch_detect(config->alone, &job->launch, err));
    set_host(job);
    /* The others do not know yet if it fails here alone. */
    beat_status = open_beat(job, config->run_dir, &beat_error);
    FSDP_TRY(open_comm(job, err));
    FSDP_TRY(check_world(job, err));
    FSDP_TRY(find_peers(job, err));
    return fsdp_job_agree(job, beat_status, &beat_error, err);
}

fsdp_status_t fsdp_job_open(const fsdp_job_config_t *config, fsdp_job_t **job_p,
                            fsdp_error_t *err)
{
    fsdp_status_t status;
    fsdp_job_t *job;

    if (config->size != sizeof(*config) || isnan(config->deadline) ||
        config->deadline < 0.0) {
        errno = 0;
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "the configuration of the job is not valid");
    }

    job = calloc(1, sizeof(*job));
    if (job == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "no memory for a job");
    }

    job->deadline =
        (config->deadline > 0.0) ? config->deadline : DEADLINE_DEFAULT;
    status = open_job(job, config, err);
    if (status != FSDP_OK) {
        fsdp_job_close(job);
        return status;
    }

    *job_p = job;
    return FSDP_OK;
}

void fsdp_job_close(fsdp_job_t *job)
{
    int saved_errno = errno;

    if (job == NULL) {
        return;
    }

    /* Left behind, the file tells tools that the run did not end well. */
    if (job->beat != NULL) {
        heartbeat_set_comm(job->beat, NULL);
        if (job->comm == NULL || comm_broken(job->comm, NULL) != FSDP_OK) {
            heartbeat_give_up(job->beat);
        }
    }
    if (comm_destroy(job->comm)) {
        heartbeat_close(job->beat);
        free(job->agree.statuses);
        peers_free(&job->peers);
        free(job->run_dir);
        free(job);
    }
    errno = saved_errno;
}

/* --- Use ------------------------------------------------------------------ */

double job_deadline(const fsdp_job_t *job)
{
    return job->deadline;
}

comm_t *job_comm(fsdp_job_t *job)
{
    return job->comm;
}

fsdp_status_t job_broken(const fsdp_job_t *job, fsdp_error_t *err)
{
    return comm_broken(job->comm, err);
}

void fsdp_job_get_info(const fsdp_job_t *job, fsdp_job_info_t *info_p)
{
    *info_p = (fsdp_job_info_t){
        .rank = job->peers.rank,
        .world = job->peers.world,
        .local_rank = job->peers.local_rank,
        .local_size = job->peers.local_size,
        .node = job->peers.node_of[job->peers.rank],
        .nodes = job->peers.nodes,
        .host = fsdp_job_host(job, job->peers.rank),
        .id = job->launch.id,
        .launcher = launch_name(job->launch.kind),
        .backend = job->backend,
    };
}

const char *fsdp_job_host(const fsdp_job_t *job, uint32_t rank)
{
    return (rank < job->peers.world)
               ? job->peers.hosts[job->peers.node_of[rank]]
               : "?";
}

void fsdp_job_set_phase(fsdp_job_t *job, const char *phase, int64_t step)
{
    if (job->beat != NULL) {
        heartbeat_set_phase(job->beat, phase, step);
    }
}

void fsdp_job_signalled(int signo)
{
    atomic_store_explicit(&signalled, signo, memory_order_relaxed);
}
