/*
 * The files of a catalog while the engine works on them: opened when first
 * used, and not too many at a time.  Safe to call from several threads.
 */
#ifndef FSDP_FILES_H
#define FSDP_FILES_H

#include "ckpt/catalog.h"

typedef struct files files_t;

/**
 * @param cat    Borrowed until files_close().
 * @param root   Directory that the paths are relative to, borrowed; NULL: the
 *               catalog's.
 * @param flags  O_RDONLY or O_RDWR.
 */
fsdp_status_t files_open(const catalog_t *cat, const char *root, int flags,
                         files_t **files_p, fsdp_error_t *err);

/* Closes all of them.  NULL is allowed.
 * @return @a status, unless that is FSDP_OK and a write turns out to have
 *         failed. */
fsdp_status_t files_close(files_t *files, fsdp_status_t status,
                          fsdp_error_t *err);

/* The descriptor of a file, which stays open until files_put(). */
fsdp_status_t files_get(files_t *files, uint32_t file, int *fd_p,
                        fsdp_error_t *err);
void files_put(files_t *files, uint32_t file);

/* Its full path, for messages; borrowed. */
const char *files_path(files_t *files, uint32_t file);

/* The CRC-32C of the first @a size bytes of a file.  Any thread. */
fsdp_status_t files_sum(const catalog_t *cat, uint32_t file, uint64_t size,
                        uint32_t *crc_p, fsdp_error_t *err);

#endif
