/*
 * The rendezvous through PMIx.
 *
 * What Slurm's server does and does not (22.05, PMIx 4.2): a fence is a
 * barrier only if it collects data; PMIX_LOCAL_RANK is known for ranks of the
 * own node only, PMIX_HOSTNAME for all; a value that was not put before the
 * fence may be waited for without end, so nothing such is asked for.
 */
#include "config.h"

#include "lib/job/rendezvous.h"

#include <errno.h>

#include "lib/util/check.h"

#if HAVE_PMIX

#include <pmix.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CARD_KEY    "fsdp.card"
#define CARD_MAX    320
#define VERSION_MAX 32
#define ASK_SECONDS 2

#define PMIX_TRY(_expr, _err)                       \
    do {                                            \
        pmix_status_t _rc = (_expr);                \
        if (_rc != PMIX_SUCCESS) {                  \
            return pmix_error((_err), _rc, #_expr); \
        }                                           \
    } while (0)

static fsdp_status_t pmix_error(fsdp_error_t *err, pmix_status_t rc,
                                const char *call)
{
    errno = 0;
    return fsdp_error_set(
        err, FSDP_ERR_NO_LAUNCHER,
        "%.*s: %s: is libpmix-dev installed on all nodes, and does 'srun "
        "--mpi=pmix' run?",
        (int)strcspn(call, "("), call, PMIx_Error_string(rc));
}

/* --- Values --------------------------------------------------------------- */

/* A text that @a rank gave or the server knows; "" if there is none. */
static fsdp_status_t get_text(const pmix_proc_t *self, uint32_t rank,
                              const char *key, bool required, char *text,
                              size_t size, fsdp_error_t *err)
{
    pmix_proc_t proc;
    pmix_value_t *value = NULL;
    pmix_info_t local;
    pmix_status_t rc;
    bool yes = true;

    /* After the fence all that there is lies with the own server. */
    PMIX_INFO_LOAD(&local, PMIX_OPTIONAL, &yes, PMIX_BOOL);
    PMIX_LOAD_PROCID(&proc, self->nspace, rank);
    text[0] = '\0';
    rc = PMIx_Get(&proc, key, &local, 1, &value);
    if (rc == PMIX_ERR_NOT_FOUND && required) {
        /* Some servers hand out values on demand only. */
        rc = PMIx_Get(&proc, key, NULL, 0, &value);
    }
    if (rc == PMIX_ERR_NOT_FOUND && !required) {
        return FSDP_OK;
    }
    PMIX_TRY(rc, err);

    if (value->type == PMIX_STRING && value->data.string != NULL) {
        snprintf(text, size, "%s", value->data.string);
    }
    PMIX_VALUE_RELEASE(value);
    return FSDP_OK;
}

/* A number; @return false if it is not known. */
static bool get_number(const pmix_proc_t *proc, const char *key,
                       uint32_t *number_p)
{
    pmix_value_t *value = NULL;
    bool known = true;

    if (PMIx_Get(proc, key, NULL, 0, &value) != PMIX_SUCCESS) {
        return false;
    }

    switch (value->type) {
    case PMIX_UINT16:
        *number_p = value->data.uint16;
        break;
    case PMIX_UINT32:
        *number_p = value->data.uint32;
        break;
    default:
        known = false;
        break;
    }
    PMIX_VALUE_RELEASE(value);
    return known;
}

/* --- The rendezvous ------------------------------------------------------- */

typedef struct {
    pmix_proc_t self;
    uint32_t world;
    char (*hosts)[PEERS_HOST_MAX]; /* of each rank */
} meeting_t;

static fsdp_status_t check_place(const meeting_t *meeting, comm_t *comm,
                                 fsdp_error_t *err)
{
    pmix_proc_t all;
    uint32_t size;

    PMIX_LOAD_PROCID(&all, meeting->self.nspace, PMIX_RANK_WILDCARD);
    if (get_number(&all, PMIX_JOB_SIZE, &size) && size != meeting->world) {
        errno = 0;
        return fsdp_error_set(err, FSDP_ERR_NO_LAUNCHER,
                              "PMIx has started %u ranks, but MPI finds %u: "
                              "is another MPI or mpirun in the way?",
                              size, meeting->world);
    }
    if (meeting->self.rank != comm_rank(comm)) {
        errno = 0;
        return fsdp_error_set(err, FSDP_ERR_NO_LAUNCHER,
                              "rank %u of MPI is rank %u of PMIx",
                              comm_rank(comm), meeting->self.rank);
    }

    return FSDP_OK;
}

static fsdp_status_t put_card(fsdp_error_t *err)
{
    char card[CARD_MAX] = PACKAGE_VERSION " ";
    size_t length = strlen(card);
    pmix_value_t value;
    pmix_info_t collect;
    bool yes = true;

    gethostname(card + length, sizeof(card) - length - 1);
    PMIX_VALUE_CONSTRUCT(&value);
    value.type = PMIX_STRING;
    value.data.string = card;
    PMIX_TRY(PMIx_Put(PMIX_GLOBAL, CARD_KEY, &value), err);
    PMIX_TRY(PMIx_Commit(), err);

    /* Without data it would not be a barrier under Slurm. */
    PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
    PMIX_TRY(PMIx_Fence(NULL, 0, &collect, 1), err);
    return FSDP_OK;
}

static fsdp_status_t read_card(meeting_t *meeting, uint32_t rank,
                               fsdp_error_t *err)
{
    char *host = meeting->hosts[rank];
    char card[CARD_MAX], version[VERSION_MAX];
    int used = 0;

    FSDP_TRY(get_text(&meeting->self, rank, CARD_KEY, true, card, sizeof(card),
                      err));
    if (sscanf(card, "%31s %n", version, &used) != 1 || used == 0) {
        errno = 0;
        return fsdp_error_set(err, FSDP_ERR_NO_LAUNCHER,
                              "rank %u sent no name through PMIx", rank);
    }
    if (strcmp(version, PACKAGE_VERSION) != 0) {
        errno = 0;
        fsdp_error_set(err, FSDP_ERR_MISMATCH,
                       "rank %u on %s runs libfsdp %s, this is " PACKAGE_VERSION
                       ": install the same on all nodes",
                       rank, card + used, version);
        if (err != NULL) {
            err->rank = (int)rank;
        }
        return FSDP_ERR_MISMATCH;
    }

    /* The launcher's name of the node tells nodes apart even if they share a
     * host name. */
    FSDP_TRY(get_text(&meeting->self, rank, PMIX_HOSTNAME, false, host,
                      PEERS_HOST_MAX, err));
    if (host[0] == '\0') {
        snprintf(host, PEERS_HOST_MAX, "%s", card + used);
    }
    return FSDP_OK;
}

static const char *host_of(uint32_t rank, void *arg)
{
    meeting_t *meeting = arg;

    return meeting->hosts[rank];
}

/* The launcher's own count is better than ours. */
static void set_local(const meeting_t *meeting, peers_t *peers)
{
    uint32_t local_rank, local_size;
    pmix_proc_t all;

    PMIX_LOAD_PROCID(&all, meeting->self.nspace, PMIX_RANK_WILDCARD);
    if (get_number(&meeting->self, PMIX_LOCAL_RANK, &local_rank) &&
        get_number(&all, PMIX_LOCAL_SIZE, &local_size) &&
        local_rank < local_size) {
        peers->local_rank = local_rank;
        peers->local_size = local_size;
    }
}

static fsdp_status_t meet(meeting_t *meeting, comm_t *comm, peers_t *peers_p,
                          fsdp_error_t *err)
{
    FSDP_TRY(check_place(meeting, comm, err));
    FSDP_TRY(put_card(err));
    for (uint32_t rank = 0; rank < meeting->world; rank++) {
        FSDP_TRY(read_card(meeting, rank, err));
    }
    FSDP_TRY(peers_make(meeting->world, comm_rank(comm), host_of, meeting,
                        peers_p, err));
    set_local(meeting, peers_p);
    return FSDP_OK;
}

fsdp_status_t rendezvous_run(comm_t *comm, peers_t *peers_p, fsdp_error_t *err)
{
    meeting_t meeting = {.world = comm_world(comm)};
    pmix_status_t rc;
    fsdp_status_t status;

    meeting.hosts = calloc(meeting.world, sizeof(*meeting.hosts));
    if (meeting.hosts == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for the hosts of %u ranks",
                              meeting.world);
    }

    rc = PMIx_Init(&meeting.self, NULL, 0);
    if (rc != PMIX_SUCCESS) {
        status = pmix_error(err, rc, "PMIx_Init");
        goto out;
    }
    status = meet(&meeting, comm, peers_p, err);
    /* MPI is connected still. */
    rc = PMIx_Finalize(NULL, 0);
    if (status == FSDP_OK && rc != PMIX_SUCCESS) {
        peers_free(peers_p);
        status = pmix_error(err, rc, "PMIx_Finalize");
    }

out:
    free(meeting.hosts);
    return status;
}

/* --- Nodes of those who are not there ------------------------------------- */

/* Shared by who asks and the thread that answers; the last one frees it. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t answer;
    int users;
    bool answered;
    fsdp_status_t status;
    meeting_t meeting;
} question_t;

static void leave_question(question_t *question)
{
    bool last = --question->users == 0;

    pthread_mutex_unlock(&question->lock);
    if (last) {
        pthread_cond_destroy(&question->answer);
        pthread_mutex_destroy(&question->lock);
        free(question->meeting.hosts);
        free(question);
    }
}

static void *answer_main(void *arg)
{
    question_t *question = arg;
    meeting_t *meeting = &question->meeting;
    fsdp_status_t status = FSDP_OK;
    fsdp_error_t err;

    /* Never finalised: MPI may be in the middle of its start. */
    if (PMIx_Init(&meeting->self, NULL, 0) != PMIX_SUCCESS) {
        status = FSDP_ERR_NO_LAUNCHER;
    }
    for (uint32_t r = 0; r < meeting->world && status == FSDP_OK; r++) {
        status = get_text(&meeting->self, r, PMIX_HOSTNAME, false,
                          meeting->hosts[r], PEERS_HOST_MAX, &err);
        if (status == FSDP_OK && meeting->hosts[r][0] == '\0') {
            status = FSDP_ERR_NOT_FOUND;
        }
    }

    pthread_mutex_lock(&question->lock);
    question->status = status;
    question->answered = true;
    pthread_cond_signal(&question->answer);
    leave_question(question);
    return NULL;
}

static question_t *ask(uint32_t world)
{
    question_t *question = calloc(1, sizeof(*question));
    sigset_t all, before;
    pthread_t thread;
    int rc = -1;

    if (question == NULL) {
        return NULL;
    }

    pthread_mutex_init(&question->lock, NULL);
    pthread_cond_init(&question->answer, NULL);
    question->users = 2;
    question->meeting.world = world;
    question->meeting.hosts = calloc(world, sizeof(*question->meeting.hosts));
    if (question->meeting.hosts != NULL) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        rc = pthread_create(&thread, NULL, answer_main, question);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    if (rc != 0) {
        question->users = 1;
        pthread_mutex_lock(&question->lock);
        leave_question(question);
        return NULL;
    }

    pthread_detach(thread);
    return question;
}

fsdp_status_t rendezvous_find_nodes(uint32_t world, uint32_t rank,
                                    peers_t *peers_p, fsdp_error_t *err)
{
    question_t *question = ask(world);
    fsdp_status_t status;
    struct timespec until;

    if (question == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "cannot ask PMIx for nodes");
    }

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ASK_SECONDS;
    pthread_mutex_lock(&question->lock);
    while (!question->answered &&
           pthread_cond_timedwait(&question->answer, &question->lock, &until) ==
               0) {
        ;
    }
    if (question->answered && question->status == FSDP_OK) {
        status =
            peers_make(world, rank, host_of, &question->meeting, peers_p, err);
    } else {
        errno = 0;
        status = fsdp_error_set(err, FSDP_ERR_NOT_FOUND,
                                "PMIx does not know the nodes of all ranks");
    }
    leave_question(question);
    return status;
}

#else /* !HAVE_PMIX */

fsdp_status_t rendezvous_run(comm_t *comm, peers_t *peers_p, fsdp_error_t *err)
{
    (void)comm, (void)peers_p;
    errno = 0;
    return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED, "built without PMIx");
}

fsdp_status_t rendezvous_find_nodes(uint32_t world, uint32_t rank,
                                    peers_t *peers_p, fsdp_error_t *err)
{
    (void)world, (void)rank, (void)peers_p;
    errno = 0;
    return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED, "built without PMIx");
}

#endif
