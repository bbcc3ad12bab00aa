#define _GNU_SOURCE
#include "config.h"

#include "ckpt/format/hdf5_apart.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/format/hdf5_util.h"

/* Far more than a file of so many bytes needs: a dataset has 300 of them at
 * least, and takes about 1 KiB of memory and 50 microseconds. */
#define MEMORY(_size)      ((128ull << 20) + 16 * (_size))
#define MEMORY_MOST        (4ull << 30)
#define CPU_SECONDS(_size) (10 + (_size) / (1 << 20))
#define SECONDS_MOST       3600

/* In memory that both processes share: how a child ends says little where
 * SIGCHLD is ignored, or others wait for all children. */
typedef struct {
    fsdp_status_t status;
    fsdp_error_t err;
    volatile bool done;
} outcome_t;

static uint64_t least(uint64_t a, uint64_t b)
{
    return (a < b) ? a : b;
}

static void limit(int resource, rlim_t most)
{
    struct rlimit limit;

    if (getrlimit(resource, &limit) == 0 && limit.rlim_cur > most) {
        limit.rlim_cur = most;
        setrlimit(resource, &limit);
    }
}

/* Beyond what this process has mapped, which the child has too. */
static void limit_memory(uint64_t size)
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long pages;

    if (file != NULL && fscanf(file, "%lu", &pages) == 1) {
        limit(RLIMIT_AS, pages * (rlim_t)sysconf(_SC_PAGESIZE) +
                             least(MEMORY(size), MEMORY_MOST));
    }
    if (file != NULL) {
        fclose(file);
    }
}

/* What a process does that fails; all other signals stay blocked: what is to
 * stop the job is the parent's to handle. */
static void let_die(void)
{
    static const int deaths[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL,
                                 SIGTRAP, SIGSYS, SIGALRM, SIGXCPU};
    const struct sigaction die = {.sa_handler = SIG_DFL};
    sigset_t set;

    sigemptyset(&set);
    for (size_t i = 0; i < sizeof(deaths) / sizeof(*deaths); i++) {
        sigaction(deaths[i], &die, NULL);
        sigaddset(&set, deaths[i]);
    }
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

/* It leaves no core, prints nothing (as libc does when it aborts), and does
 * not outlive its parent. */
static void begin_child(const char *path)
{
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    struct stat st = {.st_size = 0};

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    stat(path, &st);
    limit_memory((uint64_t)st.st_size);
    limit(RLIMIT_CPU, CPU_SECONDS((uint64_t)st.st_size));
    prctl(PR_SET_DUMPABLE, 0);
    alarm(SECONDS_MOST);
    if (null >= 0) {
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
    }
    let_die();
}

static void await(pid_t pid, int *how_p)
{
    pid_t rc;

    do {
        rc = waitpid(pid, how_p, 0);
    } while (rc < 0 && errno == EINTR);
    if (rc < 0) {
        *how_p = 0; /* not known */
    }
}

/* @param how  As waitpid() says it. */
static fsdp_status_t tell(const char *path, int how, fsdp_error_t *err)
{
    int sig = WIFSIGNALED(how) ? WTERMSIG(how) : 0;

    switch (sig) {
    case SIGKILL:
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "%s: reading it with HDF5 was killed, as it is "
                              "where there is no more memory",
                              path);
    case SIGXCPU:
    case SIGALRM:
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: damaged: HDF5 comes to no end of it", path);
    default:
        return fsdp_error_set(
            err, FSDP_ERR_CORRUPT, "%s: damaged: HDF5 crashed over it%s%s%s",
            path, (sig != 0) ? " (" : "", (sig != 0) ? sigdescr_np(sig) : "",
            (sig != 0) ? ")" : "");
    }
}

static fsdp_status_t cannot_fork(const char *path, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                          "%s: cannot start the process that reads it first, "
                          "lest HDF5 crash over it: %m: allow more processes "
                          "(ulimit -u) or memory",
                          path);
}

fsdp_status_t hdf5_apart(const char *path, hdf5_read_f read, void *arg,
                         fsdp_error_t *err)
{
    outcome_t *outcome = mmap(NULL, sizeof(*outcome), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fsdp_status_t status;
    sigset_t all, old;
    pid_t pid;
    int how;

    if (outcome == MAP_FAILED) {
        return cannot_fork(path, err);
    }

    /* No handler of the parent's is to run in the child. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pid = fork();
    if (pid == 0) {
        begin_child(path);
        outcome->status = read(arg, &outcome->err);
        outcome->done = true;
        _exit(0);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);

    if (pid > 0) {
        await(pid, &how);
        status = outcome->done ? outcome->status : tell(path, how, err);
    } else {
        status = cannot_fork(path, err);
    }
    if (outcome->done && status != FSDP_OK && err != NULL) {
        *err = outcome->err;
    }
    munmap(outcome, sizeof(*outcome));
    return status;
}

fsdp_status_t hdf5_read_safely(const char *path, hdf5_read_f read, void *arg,
                               fsdp_error_t *err)
{
    fsdp_status_t status;
    hdf5_guard_t guard;

    hdf5_enter(&guard);
    status = hdf5_apart(path, read, arg, err);
    if (status == FSDP_OK) {
        status = read(arg, err);
    }
    hdf5_leave(&guard);

    return status;
}
