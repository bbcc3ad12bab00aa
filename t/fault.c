/*
 * fault - preloaded into a program under test: the N-th call that changes a
 * file below a directory fails, or is the program's last
 *
 *     FSDP_FAULT=kill:N     SIGKILL before the call
 *                enospc:N   from then on no space: writing and making fail
 *                eio:N      this call fails with EIO
 *                short:N    this write is half as long
 *                count:0    only count: a byte a call in FSDP_FAULT_LOG
 *     FSDP_FAULT_DIR        an absolute path
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

typedef enum { NONE, KILL, ENOSPC_FROM, EIO_ONCE, SHORT_ONCE, COUNT } mode_t_;

static mode_t_ mode;
static long at;
static const char *dir;
static _Atomic long calls;

__attribute__((constructor)) static void begin(void)
{
    static const char *const names[] = {"",    "kill",  "enospc",
                                        "eio", "short", "count"};
    const char *text = getenv("FSDP_FAULT");
    const char *colon = (text != NULL) ? strchr(text, ':') : NULL;

    dir = getenv("FSDP_FAULT_DIR");
    for (int i = 1; colon != NULL && dir != NULL && i <= COUNT; i++) {
        if (strncmp(text, names[i], (size_t)(colon - text)) == 0 &&
            names[i][colon - text] == '\0') {
            mode = (mode_t_)i;
            at = atol(colon + 1);
        }
    }
}

static bool below(const char *path)
{
    char here[4096];

    if (mode == NONE) {
        return false;
    }
    if (path[0] != '/') {
        path = (getcwd(here, sizeof(here)) != NULL) ? here : "";
    }
    return strncmp(path, dir, strlen(dir)) == 0;
}

static bool fd_below(int fd)
{
    char link[64], path[4096];
    ssize_t size;

    if (mode == NONE) {
        return false;
    }
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    size = readlink(link, path, sizeof(path) - 1);
    if (size < 0) {
        return false;
    }
    path[size] = '\0';
    return below(path);
}

/* A byte a call, of all processes. */
static void add_to_log(void)
{
    const char *path = getenv("FSDP_FAULT_LOG");
    FILE *log = (path != NULL) ? fopen(path, "a") : NULL;

    if (log != NULL) {
        fputc('x', log);
        fclose(log);
    }
}

/* Count a call.  @return whether it is to fail; errno is set then. */
static bool fails(bool takes_space)
{
    long call = atomic_fetch_add(&calls, 1) + 1;

    if (mode == COUNT) {
        add_to_log();
    }
    if (mode == KILL && call == at) {
        raise(SIGKILL);
    }
    if (mode == ENOSPC_FROM && call >= at && takes_space) {
        errno = ENOSPC;
        return true;
    }
    if (mode == EIO_ONCE && call == at) {
        errno = EIO;
        return true;
    }
    return false;
}

static bool is_short(size_t size)
{
    return mode == SHORT_ONCE && size > 1 && atomic_load(&calls) == at;
}

#define REAL(_name) ((__typeof__(&_name))dlsym(RTLD_NEXT, #_name))

#define WRITE(_name, _args, _call, _short) \
    ssize_t _name _args                    \
    {                                      \
        if (fd_below(fd)) {                \
            if (fails(true)) {             \
                return -1;                 \
            }                              \
            _short                         \
        }                                  \
        return REAL(_name) _call;          \
    }

#define HALVE             \
    if (is_short(size)) { \
        size /= 2;        \
    }

WRITE(write, (int fd, const void *data, size_t size), (fd, data, size), HALVE)
WRITE(pwrite, (int fd, const void *data, size_t size, off_t offset),
      (fd, data, size, offset), HALVE)
WRITE(pwrite64, (int fd, const void *data, size_t size, off64_t offset),
      (fd, data, size, offset), HALVE)

/* Half of the buffers, or half of one. */
#define HALVE_VECTOR                                 \
    if (num > 1 && is_short(2)) {                    \
        num /= 2;                                    \
    } else if (num == 1 && is_short(iov->iov_len)) { \
        struct iovec half = *iov;                    \
        half.iov_len /= 2;                           \
        return pwritev_half(fd, &half, offset);      \
    }

static ssize_t pwritev_half(int fd, const struct iovec *iov, off64_t offset)
{
    return REAL(pwrite64)(fd, iov->iov_base, iov->iov_len, offset);
}

WRITE(pwritev, (int fd, const struct iovec *iov, int num, off_t offset),
      (fd, iov, num, offset), HALVE_VECTOR)
WRITE(pwritev64, (int fd, const struct iovec *iov, int num, off64_t offset),
      (fd, iov, num, offset), HALVE_VECTOR)

#define ON_FD(_name, _space, _args, _call)   \
    int _name _args                          \
    {                                        \
        if (fd_below(fd) && fails(_space)) { \
            return -1;                       \
        }                                    \
        return REAL(_name) _call;            \
    }

ON_FD(fsync, false, (int fd), (fd))
ON_FD(fdatasync, false, (int fd), (fd))
ON_FD(ftruncate, false, (int fd, off_t size), (fd, size))
ON_FD(ftruncate64, false, (int fd, off64_t size), (fd, size))
ON_FD(fallocate, true, (int fd, int flags, off_t offset, off_t size),
      (fd, flags, offset, size))
ON_FD(fallocate64, true, (int fd, int flags, off64_t offset, off64_t size),
      (fd, flags, offset, size))

int rename(const char *from, const char *to)
{
    return (below(to) && fails(false)) ? -1 : REAL(rename)(from, to);
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to,
              unsigned flags)
{
    return (below(to) && fails(false))
               ? -1
               : REAL(renameat2)(from_fd, from, to_fd, to, flags);
}

int link(const char *from, const char *to)
{
    return (below(to) && fails(true)) ? -1 : REAL(link)(from, to);
}

int mkdir(const char *path, mode_t permissions)
{
    return (below(path) && fails(true)) ? -1 : REAL(mkdir)(path, permissions);
}

int open64(const char *path, int flags, ...)
{
    mode_t permissions = 0;
    va_list ap;

    if ((flags & O_CREAT) != 0) {
        va_start(ap, flags);
        permissions = va_arg(ap, mode_t);
        va_end(ap);
        if (below(path) && fails(true)) {
            return -1;
        }
    }
    return REAL(open64)(path, flags, permissions);
}
