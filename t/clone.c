/*
 * clone - preloaded into a program under test: reflinks on any file system, by
 * copying
 *
 *     FSDP_CLONE_LOG    takes a line for each: offset in the source, in the
 *                       target, bytes
 *     FSDP_CLONE_FAILS  error number: half is copied, then it fails
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define REAL(_name) ((__typeof__(&_name))dlsym(RTLD_NEXT, #_name))

static int clone_range(int fd, const struct file_clone_range *range)
{
    const char *path = getenv("FSDP_CLONE_LOG");
    const char *fails = getenv("FSDP_CLONE_FAILS");
    uint64_t bytes = range->src_length / ((fails != NULL) ? 2 : 1);
    FILE *log = (path != NULL) ? fopen(path, "a") : NULL;
    off64_t from = (off64_t)range->src_offset, to = (off64_t)range->dest_offset;

    if (log != NULL) {
        fprintf(log, "%llu %llu %llu\n", range->src_offset, range->dest_offset,
                range->src_length);
        fclose(log);
    }
    while (bytes > 0) {
        ssize_t n = copy_file_range((int)range->src_fd, &from, fd, &to,
                                    (size_t)bytes, 0);

        if (n <= 0) {
            errno = EIO;
            return -1;
        }
        bytes -= (uint64_t)n;
    }
    errno = (fails != NULL) ? atoi(fails) : 0;
    return (fails != NULL) ? -1 : 0;
}

int ioctl(int fd, unsigned long request, ...)
{
    va_list ap;
    void *arg;

    va_start(ap, request);
    arg = va_arg(ap, void *);
    va_end(ap);
    return (request == FICLONERANGE) ? clone_range(fd, arg)
                                     : REAL(ioctl)(fd, request, arg);
}
