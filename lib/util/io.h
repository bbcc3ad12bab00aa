/*
 * Whole reads and writes of files, with errors that name the file.
 *
 * All calls go on after EINTR and short transfers, and move at most 1 GiB per
 * system call.  Safe to call from any thread.
 */
#ifndef FSDP_IO_H
#define FSDP_IO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "lib/util/fsdp_status.h"

/* @return FSDP_ERR_IO; FSDP_ERR_NOT_FOUND if it is not there. */
fsdp_status_t io_open(const char *path, int flags, unsigned mode, int *fd_p,
                      fsdp_error_t *err);

/* @return FSDP_ERR_CORRUPT if the file ends before @a offset + @a size. */
fsdp_status_t io_pread(int fd, void *buf, size_t size, uint64_t offset,
                       const char *path, fsdp_error_t *err);

fsdp_status_t io_pwrite(int fd, const void *buf, size_t size, uint64_t offset,
                        const char *path, fsdp_error_t *err);

/* What there is of the first @a size bytes of a file: 0 if it cannot be read. */
size_t io_read_head(const char *path, void *buf, size_t size);

/* The same from and into several buffers at once.  The array is changed.
 * Writes go in calls of a size that is quick for data of any length. */
fsdp_status_t io_preadv(int fd, struct iovec *iov, size_t num, uint64_t offset,
                        const char *path, fsdp_error_t *err);

fsdp_status_t io_pwritev(int fd, struct iovec *iov, size_t num, uint64_t offset,
                         const char *path, fsdp_error_t *err);

fsdp_status_t io_fsync(int fd, const char *path, fsdp_error_t *err);

fsdp_status_t io_truncate(int fd, uint64_t size, const char *path,
                          fsdp_error_t *err);

/* Close a file that was written to: a network file system may only now say
 * that a write has failed.
 * @return @a status, unless that is FSDP_OK and closing fails. */
fsdp_status_t io_close(int fd, fsdp_status_t status, const char *path,
                       fsdp_error_t *err);

/* Make a file of @a size bytes, all holes, which must not be there. */
fsdp_status_t io_make_file(const char *path, uint64_t size, fsdp_error_t *err);

/* Make a file, or the entries of a directory, durable. */
fsdp_status_t io_fsync_path(const char *path, fsdp_error_t *err);

/* Rename, and make the new name durable. */
fsdp_status_t io_rename(const char *from, const char *to, fsdp_error_t *err);

/**
 * Read a small file whole, with a '\0' behind it.
 *
 * @param most    A larger file is FSDP_ERR_CORRUPT.
 * @param text_p  The caller frees it.
 */
fsdp_status_t io_read_file(const char *path, size_t most, char **text_p,
                           size_t *size_p, fsdp_error_t *err);

/* The plain name that a file of one line holds, as DIR/latest does.
 * @param name_p  The caller frees it; NULL: there is no such file, or it holds
 *                more than a name. */
fsdp_status_t io_read_name(const char *dir, const char *file, char **name_p,
                           fsdp_error_t *err);

/* Replace @a path by a file that holds @a text: temporary name, fsync, rename,
 * fsync of the directory. */
fsdp_status_t io_replace_file(const char *path, const void *text, size_t size,
                              fsdp_error_t *err);

/* Make a directory and those above it; one that is there is no error. */
fsdp_status_t io_make_dirs(const char *path, fsdp_error_t *err);

/* The directory that holds @a path: ".", "/" or what is before the last slash;
 * the caller frees it; NULL: no memory. */
char *io_parent(const char *path);

/* The last component of @a path: what is behind the last slash. */
const char *io_base(const char *path);

/* printf into a new string, which the caller frees; NULL: no memory. */
__attribute__((format(printf, 1, 2))) char *io_path(const char *fmt, ...);

#endif
