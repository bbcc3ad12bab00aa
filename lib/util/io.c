#include "config.h"

#include "lib/util/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/util/check.h"

#define CALL_MAX (1u << 30)

/* What one call writes of large data.  For larger ones the page cache takes
 * huge pages; a virtual machine has to ask its host for such first, which made
 * copying 2 to 3 times as slow. */
#define WRITE_MOST (512u << 10)

fsdp_status_t io_open(const char *path, int flags, unsigned mode, int *fd_p,
                      fsdp_error_t *err)
{
    int fd;

    do {
        fd = open(path, flags | O_CLOEXEC, mode);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) {
        return fsdp_error_set(
            err, (errno == ENOENT) ? FSDP_ERR_NOT_FOUND : FSDP_ERR_IO,
            "%s: cannot open: %m", path);
    }

    *fd_p = fd;
    return FSDP_OK;
}

fsdp_status_t io_pread(int fd, void *buf, size_t size, uint64_t offset,
                       const char *path, fsdp_error_t *err)
{
    char *p = buf;

    while (size > 0) {
        ssize_t n =
            pread(fd, p, (size < CALL_MAX) ? size : CALL_MAX, (off_t)offset);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot read: %m",
                                  path);
        }
        if (n == 0) {
            errno = 0;
            return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                  "%s: ends before byte %llu, where %zu bytes "
                                  "should be: it was cut short",
                                  path, (unsigned long long)offset, size);
        }
        p += n;
        size -= (size_t)n;
        offset += (uint64_t)n;
    }

    return FSDP_OK;
}

fsdp_status_t io_pwrite(int fd, const void *buf, size_t size, uint64_t offset,
                        const char *path, fsdp_error_t *err)
{
    const char *p = buf;

    while (size > 0) {
        ssize_t n =
            pwrite(fd, p, (size < CALL_MAX) ? size : CALL_MAX, (off_t)offset);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot write: %m",
                                  path);
        }
        p += n;
        size -= (size_t)n;
        offset += (uint64_t)n;
    }

    return FSDP_OK;
}

enum { VECTOR_MAX = 512 }; /* Linux takes 1024 */

/* Take @a done bytes off the front of *iov_p. */
static void advance(struct iovec **iov_p, size_t *num_p, size_t done)
{
    while (*num_p > 0 && done >= (*iov_p)->iov_len) {
        done -= (*iov_p)->iov_len;
        (*iov_p)++;
        (*num_p)--;
    }
    if (done > 0) {
        (*iov_p)->iov_base = (char *)(*iov_p)->iov_base + done;
        (*iov_p)->iov_len -= done;
    }
}

fsdp_status_t io_preadv(int fd, struct iovec *iov, size_t num, uint64_t offset,
                        const char *path, fsdp_error_t *err)
{
    advance(&iov, &num, 0);
    while (num > 0) {
        ssize_t n = preadv(fd, iov, (num < VECTOR_MAX) ? (int)num : VECTOR_MAX,
                           (off_t)offset);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot read: %m",
                                  path);
        }
        if (n == 0) {
            errno = 0;
            return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                  "%s: ends too soon, at byte %llu", path,
                                  (unsigned long long)offset);
        }
        advance(&iov, &num, (size_t)n);
        offset += (uint64_t)n;
    }

    return FSDP_OK;
}

/* How many of the buffers one call takes: WRITE_MOST bytes, or one buffer. */
static int count_for_call(const struct iovec *iov, size_t num)
{
    size_t bytes = iov[0].iov_len;
    int count = 1;

    while ((size_t)count < num && count < VECTOR_MAX &&
           bytes + iov[count].iov_len <= WRITE_MOST) {
        bytes += iov[count++].iov_len;
    }

    return count;
}

fsdp_status_t io_pwritev(int fd, struct iovec *iov, size_t num, uint64_t offset,
                         const char *path, fsdp_error_t *err)
{
    advance(&iov, &num, 0);
    while (num > 0) {
        int count = count_for_call(iov, num);
        size_t size = iov->iov_len;
        ssize_t n;

        iov->iov_len = (size < WRITE_MOST) ? size : WRITE_MOST;
        n = pwritev(fd, iov, count, (off_t)offset);
        iov->iov_len = size;
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot write: %m",
                                  path);
        }
        advance(&iov, &num, (size_t)n);
        offset += (uint64_t)n;
    }

    return FSDP_OK;
}

fsdp_status_t io_fsync(int fd, const char *path, fsdp_error_t *err)
{
    int rc;

    do {
        rc = fsync(fd);
    } while (rc != 0 && errno == EINTR);
    if (rc != 0) {
        return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot fsync: %m", path);
    }

    return FSDP_OK;
}

fsdp_status_t io_truncate(int fd, uint64_t size, const char *path,
                          fsdp_error_t *err)
{
    int rc;

    do {
        rc = ftruncate(fd, (off_t)size);
    } while (rc != 0 && errno == EINTR);
    if (rc != 0) {
        return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot set its size: %m",
                              path);
    }

    return FSDP_OK;
}

/* After EINTR the descriptor is closed: another one may have its number. */
fsdp_status_t io_close(int fd, fsdp_status_t status, const char *path,
                       fsdp_error_t *err)
{
    if (close(fd) != 0 && errno != EINTR && status == FSDP_OK) {
        status = fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot close: %m", path);
    }

    return status;
}

fsdp_status_t io_fsync_path(const char *path, fsdp_error_t *err)
{
    fsdp_status_t status;
    int fd;

    FSDP_TRY(io_open(path, O_RDONLY, 0, &fd, err));
    status = io_fsync(fd, path, err);
    close(fd);

    return status;
}

char *io_parent(const char *path)
{
    const char *slash = strrchr(path, '/');

    if (slash == NULL) {
        return io_path(".");
    }

    return io_path("%.*s", (slash == path) ? 1 : (int)(slash - path), path);
}

const char *io_base(const char *path)
{
    const char *slash = strrchr(path, '/');

    return (slash != NULL) ? slash + 1 : path;
}

fsdp_status_t io_rename(const char *from, const char *to, fsdp_error_t *err)
{
    char *parent = io_parent(to);
    fsdp_status_t status;

    if (parent == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", to);
    }

    if (rename(from, to) != 0) {
        status = fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot rename to %s: %m",
                                from, to);
    } else {
        status = io_fsync_path(parent, err);
    }
    free(parent);

    return status;
}

fsdp_status_t io_read_file(const char *path, size_t most, char **text_p,
                           size_t *size_p, fsdp_error_t *err)
{
    fsdp_status_t status;
    struct stat st;
    char *text = NULL;
    int fd;

    FSDP_TRY(io_open(path, O_RDONLY, 0, &fd, err));
    if (fstat(fd, &st) != 0 || S_ISDIR(st.st_mode)) {
        status =
            fsdp_error_set(err, FSDP_ERR_IO, "%s: not a readable file", path);
        goto err_close;
    }

    if ((uint64_t)st.st_size > most) {
        status = fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                "%s: %lld bytes are more than such a file has",
                                path, (long long)st.st_size);
        goto err_close;
    }

    text = malloc((size_t)st.st_size + 1);
    if (text == NULL) {
        status = fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);
        goto err_close;
    }

    status = io_pread(fd, text, (size_t)st.st_size, 0, path, err);
    if (status != FSDP_OK) {
        free(text);
        goto err_close;
    }

    text[st.st_size] = '\0';
    *text_p = text;
    *size_p = (size_t)st.st_size;
err_close:
    close(fd);
    return status;
}

size_t io_read_head(const char *path, void *buf, size_t size)
{
    struct stat st;
    size_t got = 0;
    int fd;

    if (io_open(path, O_RDONLY, 0, &fd, NULL) != FSDP_OK) {
        return 0;
    }

    if (fstat(fd, &st) == 0) {
        got = ((uint64_t)st.st_size < size) ? (size_t)st.st_size : size;
        if (io_pread(fd, buf, got, 0, path, NULL) != FSDP_OK) {
            got = 0;
        }
    }
    close(fd);
    return got;
}

fsdp_status_t io_read_name(const char *dir, const char *file, char **name_p,
                           fsdp_error_t *err)
{
    char *path = io_path("%s/%s", dir, file), *text = NULL;
    fsdp_error_t why = {0};
    fsdp_status_t status;
    struct stat st;
    size_t size;

    *name_p = NULL;
    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", dir);
    }

    status = (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
                 ? FSDP_ERR_NOT_FOUND
                 : io_read_file(path, 4096, &text, &size, &why);
    free(path);
    if (status == FSDP_ERR_NOT_FOUND || status == FSDP_ERR_CORRUPT) {
        return FSDP_OK;
    }
    if (status != FSDP_OK) {
        if (err != NULL) {
            *err = why;
        }
        return status;
    }

    text[strcspn(text, "\r\n")] = '\0';
    if (text[0] == '\0' || text[0] == '.' || strchr(text, '/') != NULL) {
        free(text);
    } else {
        *name_p = text;
    }
    return FSDP_OK;
}

fsdp_status_t io_replace_file(const char *path, const void *text, size_t size,
                              fsdp_error_t *err)
{
    char *tmp = io_path("%s.tmp-%ld", path, (long)getpid());
    fsdp_status_t status;
    int fd;

    if (tmp == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);
    }

    status = io_open(tmp, O_WRONLY | O_CREAT | O_TRUNC, 0666, &fd, err);
    if (status != FSDP_OK) {
        goto err_free;
    }

    status = io_pwrite(fd, text, size, 0, tmp, err);
    if (status == FSDP_OK) {
        status = io_fsync(fd, tmp, err);
    }
    status = io_close(fd, status, tmp, err);
    if (status == FSDP_OK) {
        status = io_rename(tmp, path, err);
    }
    if (status != FSDP_OK) {
        unlink(tmp);
    }
err_free:
    free(tmp);
    return status;
}

fsdp_status_t io_make_file(const char *path, uint64_t size, fsdp_error_t *err)
{
    int fd;

    FSDP_TRY(io_open(path, O_WRONLY | O_CREAT | O_EXCL, 0666, &fd, err));
    return io_close(fd, io_truncate(fd, size, path, err), path, err);
}

fsdp_status_t io_make_dirs(const char *path, fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;
    char *copy = io_path("%s", path);

    if (copy == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);
    }

    for (char *p = copy + 1; status == FSDP_OK && *copy != '\0'; p++) {
        char c = *p;

        if (c != '/' && c != '\0') {
            continue;
        }
        *p = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST) {
            status = fsdp_error_set(err, FSDP_ERR_IO,
                                    "%s: cannot make the directory: %m", copy);
        }
        *p = c;
        if (c == '\0') {
            break;
        }
    }
    free(copy);

    return status;
}

char *io_path(const char *fmt, ...)
{
    char *text;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vasprintf(&text, fmt, ap);
    va_end(ap);

    return (n < 0) ? NULL : text;
}
