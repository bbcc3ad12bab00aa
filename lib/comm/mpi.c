/*
 * The backend over MPI, for CPU ranks: a module, so that nothing else needs
 * libmpi.
 *
 * All MPI calls are made by the thread that opens it.  Only non-blocking
 * point-to-point calls are used: waits belong to the caller, who has a
 * deadline, and a lost peer is an error to report, not to abort on.
 */
#include "config.h"

#include "lib/comm/comm.h"

#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/comm/pages.h"
#include "lib/util/check.h"

/* MPI counts are ints; longer messages go in pieces. */
#define PIECE_MAX (1ul << 30)

#define MPI_TRY(_expr, _err)                       \
    do {                                           \
        int _rc = (_expr);                         \
        if (_rc != MPI_SUCCESS) {                  \
            return mpi_error((_err), _rc, #_expr); \
        }                                          \
    } while (0)

typedef struct {
    MPI_Request *requests; /* MPI_REQUEST_NULL where it is over */
    MPI_Status *statuses;
    int *indices;
    uint32_t *peers; /* of each request */
    int num, room;
    int left; /* requests not over */
} slot_t;

typedef struct {
    MPI_Comm comm;
    bool initialised; /* MPI, by us */
    slot_t slots[COMM_MAX_EXCHANGES];
} mpi_t;

static fsdp_status_t mpi_error(fsdp_error_t *err, int rc, const char *call)
{
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int length;

    MPI_Error_string(rc, text, &length);
    errno = 0;
    return fsdp_error_set(err, FSDP_ERR_PEER_LOST, "%.*s: %s",
                          (int)__builtin_strcspn(call, "("), call, text);
}

/* --- Life ----------------------------------------------------------------- */

/* Where the program has initialised MPI itself, it must allow our thread. */
static fsdp_status_t check_threads(fsdp_error_t *err)
{
    int provided;

    MPI_TRY(MPI_Query_thread(&provided), err);
    if (provided < MPI_THREAD_MULTIPLE) {
        errno = 0;
        return fsdp_error_set(
            err, FSDP_ERR_BAD_STATE,
            "the program has called MPI_Init: call fsdp_job_open() before it, "
            "or MPI_Init_thread() with MPI_THREAD_MULTIPLE");
    }

    return FSDP_OK;
}

#define OUTPUT_FD "OPAL_OUTPUT_STDERR_FD"

/*
 * Open MPI prints a page of advice when a peer goes away, and we say more in
 * one line.  Its messages go to a descriptor that is standard error while MPI
 * starts, when they are needed, and nowhere later.  A user who has set the
 * variable gets all of them there.
 */
static int divert_messages(void)
{
    char number[16];
    int fd;

    if (getenv(OUTPUT_FD) != NULL) {
        return -1;
    }

    fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    if (fd >= 0) {
        snprintf(number, sizeof(number), "%d", fd);
        setenv(OUTPUT_FD, number, 1);
    }
    return fd;
}

static void silence_messages(int fd)
{
    int null;

    if (fd < 0) {
        return;
    }

    unsetenv(OUTPUT_FD);
    null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (null >= 0) {
        dup3(null, fd, O_CLOEXEC);
        close(null);
    }
}

static fsdp_status_t init_mpi(fsdp_error_t *err)
{
    int provided, fd, rc;

    fd = divert_messages();
    rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    silence_messages(fd);
    return (rc == MPI_SUCCESS) ? FSDP_OK
                               : mpi_error(err, rc, "MPI_Init_thread");
}

/*
 * Open without a message to anybody.  Under Slurm the barrier at the end of
 * MPI_Init is none (a PMIx fence without data), and Open MPI 4.1 crashes on a
 * message that comes while it still starts.  The first messages come after the
 * rendezvous, which is a barrier.
 */
static fsdp_status_t open_mpi(mpi_t *mpi, uint32_t *rank_p, uint32_t *world_p,
                              fsdp_error_t *err)
{
    int initialised, rank, world;

    MPI_TRY(MPI_Initialized(&initialised), err);
    if (initialised) {
        FSDP_TRY(check_threads(err));
        MPI_TRY(MPI_Comm_dup(MPI_COMM_WORLD, &mpi->comm), err);
    } else {
        FSDP_TRY(init_mpi(err));
        mpi->initialised = true;
        mpi->comm = MPI_COMM_WORLD; /* ours alone */
    }

    MPI_TRY(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), err);
    MPI_TRY(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN), err);
    MPI_TRY(MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN), err);
    MPI_TRY(MPI_Comm_rank(mpi->comm, &rank), err);
    MPI_TRY(MPI_Comm_size(mpi->comm, &world), err);

    *rank_p = (uint32_t)rank;
    *world_p = (uint32_t)world;
    return FSDP_OK;
}

static fsdp_status_t comm_mpi_open(void **ctx_p, uint32_t *rank_p,
                                   uint32_t *world_p, fsdp_error_t *err)
{
    fsdp_status_t status;
    mpi_t *mpi;

    mpi = calloc(1, sizeof(*mpi));
    if (mpi == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "no memory for MPI");
    }

    status = open_mpi(mpi, rank_p, world_p, err);
    if (status != FSDP_OK) {
        free(mpi);
        return status;
    }

    *ctx_p = mpi;
    return FSDP_OK;
}

static void comm_mpi_close(void *ctx)
{
    mpi_t *mpi = ctx;

    if (mpi->initialised) {
        MPI_Finalize();
    } else {
        MPI_Comm_free(&mpi->comm);
    }
    for (unsigned i = 0; i < COMM_MAX_EXCHANGES; i++) {
        free(mpi->slots[i].peers);
        free(mpi->slots[i].indices);
        free(mpi->slots[i].statuses);
        free(mpi->slots[i].requests);
    }
    free(mpi);
}

/* --- Memory --------------------------------------------------------------- */

static fsdp_status_t comm_mpi_alloc(void *ctx, size_t bytes, void **data_p,
                                    fsdp_error_t *err)
{
    (void)ctx;
    return pages_alloc(bytes, data_p, err);
}

static void comm_mpi_free(void *ctx, void *data, size_t bytes)
{
    (void)ctx;
    pages_free(data, bytes);
}

/* --- Exchanges ------------------------------------------------------------ */

static size_t count_pieces(const comm_message_t *messages, size_t num)
{
    size_t pieces = 0;

    for (size_t i = 0; i < num; i++) {
        pieces += (messages[i].bytes + PIECE_MAX - 1) / PIECE_MAX;
    }

    return pieces;
}

static bool grow(void **array_p, size_t num, size_t size)
{
    void *array = reallocarray(*array_p, num, size);

    if (array != NULL) {
        *array_p = array;
    }
    return array != NULL;
}

/* Room is kept, so that the same step allocates only the first time. */
static fsdp_status_t reserve(slot_t *slot, size_t num, fsdp_error_t *err)
{
    if (num <= (size_t)slot->room) {
        return FSDP_OK;
    }
    if (num > INT32_MAX) {
        errno = 0;
        return fsdp_error_set(err, FSDP_ERR_OVERFLOW,
                              "%zu messages in one exchange", num);
    }

    if (!grow((void **)&slot->requests, num, sizeof(*slot->requests)) ||
        !grow((void **)&slot->statuses, num, sizeof(*slot->statuses)) ||
        !grow((void **)&slot->indices, num, sizeof(*slot->indices)) ||
        !grow((void **)&slot->peers, num, sizeof(*slot->peers))) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for %zu messages", num);
    }

    slot->room = (int)num;
    return FSDP_OK;
}

static fsdp_status_t start_message(mpi_t *mpi, slot_t *slot, bool send,
                                   const comm_message_t *message,
                                   fsdp_error_t *err)
{
    char *data = message->data;
    int peer = (int)message->peer;

    for (size_t at = 0; at < message->bytes; at += PIECE_MAX) {
        size_t left = message->bytes - at;
        int bytes = (int)((left < PIECE_MAX) ? left : PIECE_MAX);
        MPI_Request *request = &slot->requests[slot->num];

        if (send) {
            MPI_TRY(MPI_Isend(data + at, bytes, MPI_BYTE, peer, 0, mpi->comm,
                              request),
                    err);
        } else {
            MPI_TRY(MPI_Irecv(data + at, bytes, MPI_BYTE, peer, 0, mpi->comm,
                              request),
                    err);
        }
        slot->peers[slot->num++] = message->peer;
        slot->left++;
    }

    return FSDP_OK;
}

static fsdp_status_t comm_mpi_exchange_start(void *ctx, unsigned number,
                                             const comm_message_t *sends,
                                             size_t nsends,
                                             const comm_message_t *recvs,
                                             size_t nrecvs, fsdp_error_t *err)
{
    mpi_t *mpi = ctx;
    slot_t *slot = &mpi->slots[number];

    FSDP_TRY(reserve(
        slot, count_pieces(sends, nsends) + count_pieces(recvs, nrecvs), err));

    /* Receives first: data that finds its place is not copied twice. */
    slot->num = 0;
    slot->left = 0;
    for (size_t i = 0; i < nrecvs; i++) {
        FSDP_TRY(start_message(mpi, slot, false, &recvs[i], err));
    }
    for (size_t i = 0; i < nsends; i++) {
        FSDP_TRY(start_message(mpi, slot, true, &sends[i], err));
    }

    return FSDP_OK;
}

/* Which message failed. */
static fsdp_status_t failed_message(const slot_t *slot, int num,
                                    fsdp_error_t *err)
{
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int length;

    for (int i = 0; i < num; i++) {
        if (slot->statuses[i].MPI_ERROR != MPI_SUCCESS &&
            slot->statuses[i].MPI_ERROR != MPI_ERR_PENDING) {
            MPI_Error_string(slot->statuses[i].MPI_ERROR, text, &length);
            errno = 0;
            return fsdp_error_set(err, FSDP_ERR_PEER_LOST,
                                  "message to or from rank %u: %s",
                                  slot->peers[slot->indices[i]], text);
        }
    }

    return FSDP_OK;
}

static fsdp_status_t comm_mpi_exchange_test(void *ctx, unsigned number,
                                            bool *done_p, fsdp_error_t *err)
{
    mpi_t *mpi = ctx;
    slot_t *slot = &mpi->slots[number];
    int num = 0, rc;

    if (slot->left > 0) {
        rc = MPI_Testsome(slot->num, slot->requests, &num, slot->indices,
                          slot->statuses);
        if (rc == MPI_ERR_IN_STATUS) {
            FSDP_TRY(failed_message(slot, num, err));
        } else if (rc != MPI_SUCCESS) {
            return mpi_error(err, rc, "MPI_Testsome");
        }
        if (num == MPI_UNDEFINED) {
            num = slot->left;
        }
        slot->left -= num;
    }

    *done_p = slot->left == 0;
    return FSDP_OK;
}

static int compare_ranks(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

static size_t comm_mpi_exchange_pending(void *ctx, unsigned number,
                                        uint32_t *peers, size_t max)
{
    mpi_t *mpi = ctx;
    slot_t *slot = &mpi->slots[number];
    size_t num = 0;
    int left = 0;

    /* An exchange that waits is over for good: its table may be sorted. */
    for (int i = 0; i < slot->num; i++) {
        if (slot->requests[i] != MPI_REQUEST_NULL) {
            slot->peers[left++] = slot->peers[i];
        }
    }
    qsort(slot->peers, (size_t)left, sizeof(*slot->peers), compare_ranks);
    for (int i = 0; i < left && num < max; i++) {
        if (num == 0 || peers[num - 1] != slot->peers[i]) {
            peers[num++] = slot->peers[i];
        }
    }

    return num;
}

extern const struct comm_ops fsdp_comm_module;

FSDP_API const struct comm_ops fsdp_comm_module = {
    .version = COMM_OPS_VERSION,
    .name = "mpi",
    .open = comm_mpi_open,
    .close = comm_mpi_close,
    .alloc = comm_mpi_alloc,
    .free = comm_mpi_free,
    .exchange_start = comm_mpi_exchange_start,
    .exchange_test = comm_mpi_exchange_test,
    .exchange_pending = comm_mpi_exchange_pending,
};
