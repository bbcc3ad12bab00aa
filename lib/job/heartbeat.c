#include "config.h"

#include "lib/job/heartbeat.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "lib/util/check.h"
#include "lib/util/io.h"

#define RECORD_BYTES  512
#define JUDGE_SECONDS 1.6
/* So long a file system may hang. */
#define ANSWER_SECONDS  2.0
#define GIVE_UP_SECONDS 0.5
#define CLOSE_SECONDS   2.0
#define GAVE_UP         "gave-up"

struct heartbeat {
    char *dir, *path;
    char *host;
    int fd;
    uint32_t rank, world;
    _Atomic(const char *) phase;
    _Atomic int64_t step;

    pthread_t thread;
    pthread_mutex_t lock;  /* of what follows; not held while files are used */
    pthread_cond_t wake;   /* for the thread: something is asked for */
    pthread_cond_t answer; /* from it */
    comm_t *comm;
    bool ending;
    bool gave_up;
    bool told; /* that it gave up */
    bool gone; /* the thread has ended, but for its last instructions */
    bool look_wanted, judge_wanted;
    double looked; /* monotonic; 0: never */

    /* For the thread; after an answer, for who asked. */
    unsigned long long counter;
    heartbeat_seen_t *before, *after; /* world of them */
};

static double clock_seconds(clockid_t clock)
{
    struct timespec ts;

    clock_gettime(clock, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* --- Writing -------------------------------------------------------------- */

/* One word: what separates words becomes '_'. */
static void set_word(char word[HEARTBEAT_WORD_MAX], const char *text)
{
    snprintf(word, HEARTBEAT_WORD_MAX, "%s",
             (text != NULL && text[0] != '\0') ? text : "-");
    for (char *c = word; *c != '\0'; c++) {
        if ((unsigned char)*c <= ' ') {
            *c = '_';
        }
    }
}

static void describe_work(comm_t *comm, char operation[HEARTBEAT_WORD_MAX])
{
    char what[COMM_NAME_MAX] = "", unit[COMM_NAME_MAX] = "";
    char text[HEARTBEAT_WORD_MAX];

    if (comm != NULL) {
        comm_get_activity(comm, what, unit);
    }
    snprintf(text, sizeof(text), "%s%s%s", what, (unit[0] != '\0') ? ":" : "",
             unit);
    set_word(operation, text);
}

/* Under the lock. */
static void compose(heartbeat_t *beat, char record[RECORD_BYTES])
{
    char operation[HEARTBEAT_WORD_MAX], phase[HEARTBEAT_WORD_MAX];
    int length;

    describe_work(beat->comm, operation);
    set_word(phase, beat->gave_up ? GAVE_UP : beat->phase);
    length = snprintf(record, RECORD_BYTES, "%u %s %d %s %s %lld %llu %.3f",
                      beat->rank, beat->host, (int)getpid(), phase, operation,
                      (long long)beat->step, ++beat->counter,
                      clock_seconds(CLOCK_REALTIME));
    memset(record + length, ' ', RECORD_BYTES - (size_t)length);
    record[RECORD_BYTES - 1] = '\n';
}

/* A failed write is no error: the next may succeed. */
static void write_record(const heartbeat_t *beat, const char *record)
{
    int fd;

    if (pwrite(beat->fd, record, RECORD_BYTES, 0) < 0) {
        return;
    }

    /* NFS sends data to the server when a descriptor is closed. */
    fd = fcntl(beat->fd, F_DUPFD_CLOEXEC, 0);
    if (fd >= 0) {
        close(fd);
    }
}

/* --- Reading -------------------------------------------------------------- */

static bool parse_record(const char *record, heartbeat_seen_t *seen)
{
    double time;

    if (sscanf(record, "%*u %135s %*d %135s %135s %lld %llu %lf", seen->host,
               seen->phase, seen->operation, &seen->step, &seen->counter,
               &time) != 6) {
        return false;
    }

    seen->age = clock_seconds(CLOCK_REALTIME) - time;
    seen->age = (seen->age > 0.0) ? seen->age : 0.0;
    return true;
}

/* Opened anew each time: NFS then asks the server.  A file that is there but
 * empty belongs to a rank that has just begun: counter 0. */
static void read_rank(const heartbeat_t *beat, uint32_t rank,
                      heartbeat_seen_t *seen)
{
    char record[RECORD_BYTES + 1];
    ssize_t size = 0;
    char *path;
    int fd = -1;

    *seen = (heartbeat_seen_t){.state = HEARTBEAT_NONE, .step = -1};
    path = io_path("%s/rank-%05u", beat->dir, rank);
    if (path != NULL) {
        fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    if (fd >= 0) {
        size = pread(fd, record, RECORD_BYTES, 0);
        record[(size > 0) ? size : 0] = '\0';
        seen->state = HEARTBEAT_ALIVE;
        parse_record(record, seen);
        close(fd);
    }
    free(path);
}

static void read_ranks(const heartbeat_t *beat, heartbeat_seen_t *seen)
{
    for (uint32_t rank = 0; rank < beat->world; rank++) {
        read_rank(beat, rank, &seen[rank]);
    }
}

static heartbeat_state_t judge(const heartbeat_seen_t *before,
                               const heartbeat_seen_t *after)
{
    if (after->state == HEARTBEAT_NONE) {
        return (before->state == HEARTBEAT_NONE) ? HEARTBEAT_NONE
                                                 : HEARTBEAT_LEFT;
    }
    if (strcmp(after->phase, GAVE_UP) == 0) {
        return HEARTBEAT_GAVE_UP;
    }

    return (before->state != HEARTBEAT_NONE &&
            before->counter == after->counter)
               ? HEARTBEAT_STILL
               : HEARTBEAT_ALIVE;
}

/* --- The thread ----------------------------------------------------------- */

/* Under the lock, which is let go meanwhile. */
static void do_beat(heartbeat_t *beat)
{
    char record[RECORD_BYTES];
    bool last = beat->gave_up;

    compose(beat, record);
    pthread_mutex_unlock(&beat->lock);
    write_record(beat, record);
    pthread_mutex_lock(&beat->lock);
    if (last) {
        beat->told = true;
        pthread_cond_broadcast(&beat->answer);
    }
}

static void do_look(heartbeat_t *beat)
{
    pthread_mutex_unlock(&beat->lock);
    read_ranks(beat, beat->before);
    pthread_mutex_lock(&beat->lock);
    beat->looked = clock_seconds(CLOCK_MONOTONIC);
    beat->look_wanted = false;
}

static void do_judge(heartbeat_t *beat)
{
    pthread_mutex_unlock(&beat->lock);
    read_ranks(beat, beat->after);
    pthread_mutex_lock(&beat->lock);
    for (uint32_t rank = 0; rank < beat->world; rank++) {
        beat->after[rank].state =
            (rank == beat->rank)
                ? HEARTBEAT_ALIVE
                : judge(&beat->before[rank], &beat->after[rank]);
    }
    beat->judge_wanted = false;
    pthread_cond_broadcast(&beat->answer);
}

static struct timespec as_timespec(double seconds)
{
    struct timespec ts = {.tv_sec = (time_t)seconds};

    ts.tv_nsec = (long)((seconds - (double)ts.tv_sec) * 1e9);
    return ts;
}

/* Do what is due; @return when to come back.  Under the lock. */
static double do_due(heartbeat_t *beat, double *next_beat)
{
    double time = clock_seconds(CLOCK_MONOTONIC);

    if (time >= *next_beat || (beat->gave_up && !beat->told)) {
        do_beat(beat);
        *next_beat = time + HEARTBEAT_SECONDS;
    }
    if (beat->look_wanted) {
        do_look(beat);
    }
    if (beat->judge_wanted && time >= beat->looked + JUDGE_SECONDS) {
        do_judge(beat);
    }

    return (beat->judge_wanted && beat->looked + JUDGE_SECONDS < *next_beat)
               ? beat->looked + JUDGE_SECONDS
               : *next_beat;
}

static void *beat_main(void *arg)
{
    heartbeat_t *beat = arg;
    double next_beat = 0.0;
    struct timespec until;

    prctl(PR_SET_NAME, "fsdp-beat");
    pthread_mutex_lock(&beat->lock);
    while (!beat->ending && !beat->told) {
        until = as_timespec(do_due(beat, &next_beat));
        if (!beat->ending && !beat->look_wanted &&
            beat->gave_up == beat->told) {
            pthread_cond_timedwait(&beat->wake, &beat->lock, &until);
        }
    }
    beat->gone = true;
    pthread_cond_broadcast(&beat->answer);
    pthread_mutex_unlock(&beat->lock);
    return NULL;
}

/* --- Requests ------------------------------------------------------------- */

void heartbeat_set_comm(heartbeat_t *beat, comm_t *comm)
{
    pthread_mutex_lock(&beat->lock);
    beat->comm = comm;
    pthread_mutex_unlock(&beat->lock);
}

void heartbeat_set_phase(heartbeat_t *beat, const char *phase, int64_t step)
{
    atomic_store_explicit(&beat->phase, phase, memory_order_release);
    atomic_store_explicit(&beat->step, step, memory_order_relaxed);
}

void heartbeat_give_up(heartbeat_t *beat)
{
    struct timespec until =
        as_timespec(clock_seconds(CLOCK_MONOTONIC) + GIVE_UP_SECONDS);

    pthread_mutex_lock(&beat->lock);
    beat->gave_up = true;
    pthread_cond_signal(&beat->wake);
    while (!beat->told && !beat->ending &&
           pthread_cond_timedwait(&beat->answer, &beat->lock, &until) == 0) {
        ;
    }
    pthread_mutex_unlock(&beat->lock);
}

void heartbeat_look(heartbeat_t *beat)
{
    pthread_mutex_lock(&beat->lock);
    beat->look_wanted = true;
    pthread_cond_signal(&beat->wake);
    pthread_mutex_unlock(&beat->lock);
}

bool heartbeat_judge(heartbeat_t *beat, heartbeat_seen_t *seen, uint32_t world)
{
    struct timespec until = as_timespec(clock_seconds(CLOCK_MONOTONIC) +
                                        JUDGE_SECONDS + ANSWER_SECONDS);
    bool answered;

    pthread_mutex_lock(&beat->lock);
    beat->look_wanted |= beat->looked == 0.0;
    beat->judge_wanted = true;
    pthread_cond_signal(&beat->wake);
    while (beat->judge_wanted && !beat->told &&
           pthread_cond_timedwait(&beat->answer, &beat->lock, &until) == 0) {
        ;
    }
    answered = !beat->judge_wanted && world <= beat->world;
    if (answered) {
        memcpy(seen, beat->after, world * sizeof(*seen));
    }
    pthread_mutex_unlock(&beat->lock);
    return answered;
}

/* --- Life ----------------------------------------------------------------- */

static fsdp_status_t start_thread(heartbeat_t *beat, fsdp_error_t *err)
{
    pthread_condattr_t attr;
    sigset_t all, before;
    int rc;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&beat->wake, &attr);
    pthread_cond_init(&beat->answer, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&beat->lock, NULL);

    /* Signals are for the program's own threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&beat->thread, NULL, beat_main, beat);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        errno = rc;
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "cannot start the heartbeat thread: %m");
    }

    return FSDP_OK;
}

static void free_beat(heartbeat_t *beat)
{
    if (beat->fd >= 0) {
        close(beat->fd);
    }
    free(beat->after);
    free(beat->before);
    free(beat->host);
    free(beat->path);
    free(beat->dir);
    free(beat);
}

fsdp_status_t heartbeat_open(const char *run_dir, const char *id,
                             const char *host, uint32_t rank, uint32_t world,
                             heartbeat_t **beat_p, fsdp_error_t *err)
{
    char word[HEARTBEAT_WORD_MAX];
    fsdp_status_t status;
    heartbeat_t *beat;

    beat = calloc(1, sizeof(*beat));
    if (beat == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for the heartbeat");
    }

    beat->fd = -1;
    beat->rank = rank;
    beat->world = world;
    beat->phase = "start";
    beat->step = -1;
    set_word(word, host);
    beat->host = strdup(word);
    beat->dir = io_path("%s/.job-%s", run_dir, id);
    beat->path = io_path("%s/.job-%s/rank-%05u", run_dir, id, rank);
    beat->before = calloc((world > 0) ? world : 1, sizeof(*beat->before));
    beat->after = calloc((world > 0) ? world : 1, sizeof(*beat->after));
    if (beat->host == NULL || beat->dir == NULL || beat->path == NULL ||
        beat->before == NULL || beat->after == NULL) {
        status = fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                "no memory for the heartbeat");
        goto err_beat;
    }

    FSDP_TRY_GOTO(io_make_dirs(beat->dir, err), err_beat);
    FSDP_TRY_GOTO(
        io_open(beat->path, O_RDWR | O_CREAT | O_TRUNC, 0644, &beat->fd, err),
        err_beat);
    FSDP_TRY_GOTO(start_thread(beat, err), err_file);

    *beat_p = beat;
    return FSDP_OK;

err_file:
    unlink(beat->path);
    rmdir(beat->dir);
err_beat:
    free_beat(beat);
    return status;
}

void heartbeat_close(heartbeat_t *beat)
{
    struct timespec until =
        as_timespec(clock_seconds(CLOCK_MONOTONIC) + CLOSE_SECONDS);
    int saved_errno = errno;
    bool keep, gone;

    if (beat == NULL) {
        return;
    }

    pthread_mutex_lock(&beat->lock);
    keep = beat->gave_up;
    beat->ending = true;
    pthread_cond_signal(&beat->wake);
    while (!beat->gone &&
           pthread_cond_timedwait(&beat->answer, &beat->lock, &until) == 0) {
        ;
    }
    gone = beat->gone;
    pthread_mutex_unlock(&beat->lock);
    if (!gone) {
        pthread_detach(beat->thread); /* it hangs in a write: forsake it */
        errno = saved_errno;
        return;
    }

    pthread_join(beat->thread, NULL);
    if (!keep) {
        unlink(beat->path);
        rmdir(beat->dir); /* only the last one can */
    }
    pthread_mutex_destroy(&beat->lock);
    pthread_cond_destroy(&beat->answer);
    pthread_cond_destroy(&beat->wake);
    free_beat(beat);
    errno = saved_errno;
}
