/*
 * fault - preloaded into a program under test: the N-th call below a directory
 * fails, or is the program's last
 *
 *     FSDP_FAULT=kill:N       SIGKILL before a call that changes or removes
 *                int:N        SIGINT before one that changes; so term, hup
 *                eio:N        that call fails; so estale
 *                enospc:N     from then on no space: writing and making fail;
 *                edquot:N     so a quota
 *                short:N      that write is half as long
 *                rmeio:N      a call that removes fails
 *                readeio:N    a call that only looks (open, read, close) fails
 *                readshort:N  that read is half as long
 *                readterm:N   SIGTERM before a call that only looks
 *                eintr:N      a call of either kind is interrupted
 *                fork:N       from that one on no process can be forked
 *                count:0      none
 *     FSDP_FAULT_DIR          an absolute path
 *     FSDP_FAULT_LOG          with count: a line a call, "change", "remove" or
 *                             "look", its name and path
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* Kinds of calls. */
enum {
    LOOK = 1,
    CHANGE = 2,
    SPACE = 4, /* a change that needs some */
    SLOW = 8,  /* may be interrupted */
    REMOVE = 16,
    FORK = 32
};

typedef struct {
    const char *name;
    unsigned counted; /* calls of these kinds are */
    unsigned fails;   /* and of these may fail */
    int error, signal;
    bool stays;   /* all later ones fail too */
    bool is_half; /* a shorter transfer instead of an error */
} fault_t;

/* clang-format off */
static const fault_t faults[] = {
    {.name = "count"},
    {.name = "kill", .counted = CHANGE | REMOVE, .signal = SIGKILL},
    {.name = "int", .counted = CHANGE, .signal = SIGINT},
    {.name = "term", .counted = CHANGE, .signal = SIGTERM},
    {.name = "hup", .counted = CHANGE, .signal = SIGHUP},
    {.name = "eio", .counted = CHANGE, .fails = CHANGE, .error = EIO},
    {.name = "estale", .counted = CHANGE, .fails = CHANGE, .error = ESTALE},
    {.name = "enospc", .counted = CHANGE, .fails = SPACE, .error = ENOSPC,
     .stays = true},
    {.name = "edquot", .counted = CHANGE, .fails = SPACE, .error = EDQUOT,
     .stays = true},
    {.name = "short", .counted = CHANGE, .is_half = true},
    {.name = "rmeio", .counted = REMOVE, .fails = REMOVE, .error = EIO},
    {.name = "readeio", .counted = LOOK, .fails = LOOK, .error = EIO},
    {.name = "readterm", .counted = LOOK, .signal = SIGTERM},
    {.name = "readshort", .counted = LOOK, .is_half = true},
    {.name = "eintr", .counted = LOOK | CHANGE, .fails = SLOW, .error = EINTR},
    {.name = "fork", .counted = FORK, .fails = FORK, .error = EAGAIN,
     .stays = true},
};
/* clang-format on */

static const fault_t *fault;
static long at;
static const char *dir;
static _Atomic long *calls; /* of the program and of what it forks */
static pid_t program;

__attribute__((constructor)) static void begin(void)
{
    const char *text = getenv("FSDP_FAULT");
    const char *colon = (text != NULL) ? strchr(text, ':') : NULL;

    dir = getenv("FSDP_FAULT_DIR");
    program = getpid();
    calls = mmap(NULL, sizeof(*calls), PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (colon == NULL || dir == NULL || calls == MAP_FAILED) {
        return;
    }
    for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++) {
        if (strncmp(text, faults[i].name, (size_t)(colon - text)) == 0 &&
            faults[i].name[colon - text] == '\0') {
            fault = &faults[i];
            at = atol(colon + 1);
        }
    }
}

static bool below(const char *path)
{
    return fault != NULL && strncmp(path, dir, strlen(dir)) == 0;
}

static void add_to_log(unsigned kind, const char *name, const char *path)
{
    const char *log_path = getenv("FSDP_FAULT_LOG");
    FILE *log = (log_path != NULL) ? fopen(log_path, "a") : NULL;

    if (log != NULL) {
        fprintf(log, "%s %s %s\n",
                (kind & LOOK)     ? "look"
                : (kind & REMOVE) ? "remove"
                                  : "change",
                name, path);
        fclose(log);
    }
}

typedef enum { GO_ON, FAIL, HALF } verdict_t;

/* Count a call.  @return what is to become of it; errno is set if it fails. */
static verdict_t judge(unsigned kind, const char *name, const char *path)
{
    long call = (fault->counted & kind) ? atomic_fetch_add(calls, 1) + 1 : 0;

    if (fault->counted == 0) {
        add_to_log(kind, name, path);
    }
    if (call == 0 || (call != at && (call < at || !fault->stays))) {
        return GO_ON;
    }
    if (fault->signal != 0) {
        if (getpid() == program) {
            raise(fault->signal);
        } else {
            kill(program, fault->signal);
        }
    }
    if ((fault->fails & kind) != 0) {
        errno = fault->error;
        return FAIL;
    }
    return fault->is_half ? HALF : GO_ON;
}

static verdict_t judge_path(unsigned kind, const char *name, const char *path)
{
    char whole[8192], here[4096];

    if (fault == NULL) {
        return GO_ON;
    }
    if (path[0] != '/' && getcwd(here, sizeof(here)) != NULL) {
        snprintf(whole, sizeof(whole), "%s/%s", here, path);
        path = whole;
    }
    return below(path) ? judge(kind, name, path) : GO_ON;
}

static verdict_t judge_fd(unsigned kind, const char *name, int fd)
{
    char link[64], path[4096];
    ssize_t size;

    if (fault == NULL) {
        return GO_ON;
    }
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    size = readlink(link, path, sizeof(path) - 1);
    if (size < 0) {
        return GO_ON;
    }
    path[size] = '\0';
    return below(path) ? judge(kind, name, path) : GO_ON;
}

#define REAL(_name) ((__typeof__(&_name))dlsym(RTLD_NEXT, #_name))

/* Transfers. */
#define MOVE(_kind, _name, _args, _call, _halve)                  \
    ssize_t _name _args                                           \
    {                                                             \
        verdict_t verdict = judge_fd((_kind) | SLOW, #_name, fd); \
                                                                  \
        if (verdict == FAIL) {                                    \
            return -1;                                            \
        }                                                         \
        if (verdict == HALF) {                                    \
            _halve                                                \
        }                                                         \
        return REAL(_name) _call;                                 \
    }

#define HALVE size = (size + 1) / 2;

MOVE(CHANGE | SPACE, write, (int fd, const void *data, size_t size),
     (fd, data, size), HALVE)
MOVE(CHANGE | SPACE, pwrite,
     (int fd, const void *data, size_t size, off_t offset),
     (fd, data, size, offset), HALVE)
MOVE(CHANGE | SPACE, pwrite64,
     (int fd, const void *data, size_t size, off64_t offset),
     (fd, data, size, offset), HALVE)
MOVE(LOOK, read, (int fd, void *data, size_t size), (fd, data, size), HALVE)
MOVE(LOOK, pread, (int fd, void *data, size_t size, off_t offset),
     (fd, data, size, offset), HALVE)
MOVE(LOOK, pread64, (int fd, void *data, size_t size, off64_t offset),
     (fd, data, size, offset), HALVE)

/* Half of the buffers, or half of one. */
#define HALVE_VECTOR(_one)                                                    \
    if (num == 1) {                                                           \
        return REAL(_one)(fd, iov->iov_base, (iov->iov_len + 1) / 2, offset); \
    }                                                                         \
    num /= 2;

MOVE(CHANGE | SPACE, pwritev,
     (int fd, const struct iovec *iov, int num, off_t offset),
     (fd, iov, num, offset), HALVE_VECTOR(pwrite))
MOVE(CHANGE | SPACE, pwritev64,
     (int fd, const struct iovec *iov, int num, off64_t offset),
     (fd, iov, num, offset), HALVE_VECTOR(pwrite64))
MOVE(LOOK, preadv, (int fd, const struct iovec *iov, int num, off_t offset),
     (fd, iov, num, offset), HALVE_VECTOR(pread))
MOVE(LOOK, preadv64, (int fd, const struct iovec *iov, int num, off64_t offset),
     (fd, iov, num, offset), HALVE_VECTOR(pread64))

#define ON_FD(_kind, _name, _args, _call)                                      \
    int _name _args                                                            \
    {                                                                          \
        return (judge_fd(_kind, #_name, fd) == FAIL) ? -1 : REAL(_name) _call; \
    }

ON_FD(CHANGE | SLOW, fsync, (int fd), (fd))
ON_FD(CHANGE | SLOW, fdatasync, (int fd), (fd))
ON_FD(CHANGE | SLOW, ftruncate, (int fd, off_t size), (fd, size))
ON_FD(CHANGE | SLOW, ftruncate64, (int fd, off64_t size), (fd, size))
ON_FD(CHANGE | SPACE | SLOW, fallocate,
      (int fd, int flags, off_t offset, off_t size), (fd, flags, offset, size))
ON_FD(CHANGE | SPACE | SLOW, fallocate64,
      (int fd, int flags, off64_t offset, off64_t size),
      (fd, flags, offset, size))

/* What is to be closed is closed, whatever it returns.  Only where there is
 * something to write may that be interrupted. */
int close(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    bool writes = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
    verdict_t verdict =
        judge_fd(writes ? CHANGE | SPACE | SLOW : LOOK, "close", fd);
    int saved = errno, rc = REAL(close)(fd);

    errno = (verdict == FAIL) ? saved : errno;
    return (verdict == FAIL) ? -1 : rc;
}

pid_t fork(void)
{
    /* Not the shell that libtool puts before it. */
    bool is_ours = strstr(program_invocation_short_name, "fsdp-") != NULL;

    return (fault != NULL && fault->counted == FORK && is_ours &&
            judge(FORK, "fork", "") == FAIL)
               ? -1
               : REAL(fork)();
}

int ioctl(int fd, unsigned long request, ...)
{
    va_list ap;
    void *arg;

    va_start(ap, request);
    arg = va_arg(ap, void *);
    va_end(ap);
    return (request == FICLONERANGE &&
            judge_fd(CHANGE | SPACE | SLOW, "ioctl", fd) == FAIL)
               ? -1
               : REAL(ioctl)(fd, request, arg);
}

#define ON_PATH(_kind, _name, _args, _call, _path)                             \
    int _name _args                                                            \
    {                                                                          \
        return (judge_path(_kind, #_name, _path) == FAIL) ? -1                 \
                                                          : REAL(_name) _call; \
    }

ON_PATH(CHANGE, rename, (const char *from, const char *to), (from, to), to)
ON_PATH(CHANGE, renameat2,
        (int from_fd, const char *from, int to_fd, const char *to,
         unsigned flags),
        (from_fd, from, to_fd, to, flags), to)
ON_PATH(CHANGE | SPACE, link, (const char *from, const char *to), (from, to),
        to)
ON_PATH(CHANGE | SPACE, symlink, (const char *target, const char *path),
        (target, path), path)
ON_PATH(CHANGE | SPACE, mkdir, (const char *path, mode_t mode), (path, mode),
        path)

ON_PATH(REMOVE, unlink, (const char *path), (path), path)
ON_PATH(REMOVE, rmdir, (const char *path), (path), path)
ON_PATH(REMOVE, remove, (const char *path), (path), path)

#define OPEN(_name)                                            \
    int _name(const char *path, int flags, ...)                \
    {                                                          \
        bool makes = (flags & O_CREAT) != 0;                   \
        unsigned kind = makes ? CHANGE | SPACE : LOOK;         \
        mode_t mode = 0;                                       \
        va_list ap;                                            \
                                                               \
        if (makes) {                                           \
            va_start(ap, flags);                               \
            mode = va_arg(ap, mode_t);                         \
            va_end(ap);                                        \
        }                                                      \
        return (judge_path(kind | SLOW, #_name, path) == FAIL) \
                   ? -1                                        \
                   : REAL(_name)(path, flags, mode);           \
    }

OPEN(open)
OPEN(open64)
