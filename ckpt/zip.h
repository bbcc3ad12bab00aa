/*
 * Zip archives as torch.save writes them: entries are stored, not packed, and
 * 64-bit sizes are used where needed.  The archive may be a part of a file.
 *
 * Sizes come from the central directory; the local header of every entry is
 * checked against it, and so are the places: no two entries share a byte.
 */
#ifndef FSDP_ZIP_H
#define FSDP_ZIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/util/fsdp_status.h"

typedef struct {
    const char *name; /* whole, "archive/data/0" */
    uint64_t offset;  /* of its data, in the file */
    uint64_t size;
    uint32_t crc32;
    bool has_crc; /* PyTorch can leave checksums out */
} zip_entry_t;

typedef struct {
    zip_entry_t *entries; /* in the order of the data */
    uint32_t num;
    uint32_t prefix; /* length of what all names begin with, '/' included */
    char *names;
    uint32_t *by_name; /* entries sorted by name */
} zip_t;

/**
 * Read the directory of the archive in bytes [offset, offset + length).
 *
 * @param path  Named in errors.
 *
 * @return FSDP_ERR_CORRUPT: no archive, no entries, an entry that leaves it,
 *         overlaps another, or has no or two names; FSDP_ERR_UNSUPPORTED: an
 *         entry is packed or encrypted, or the archive is in several parts.
 */
fsdp_status_t zip_open(int fd, const char *path, uint64_t offset,
                       uint64_t length, zip_t *zip, fsdp_error_t *err);

/* Frees what it holds, not @a zip; a zeroed one is allowed. */
void zip_close(zip_t *zip);

/* Where an archive's bytes come from if they are not those of a file. */
typedef struct {
    fsdp_status_t (*read)(void *arg, uint64_t at, void *data, size_t bytes,
                          fsdp_error_t *err);
    void *arg;
} zip_source_t;

/* As zip_open(): the offsets are the source's. */
fsdp_status_t zip_open_from(const zip_source_t *source, const char *path,
                            uint64_t offset, uint64_t length, zip_t *zip,
                            fsdp_error_t *err);

/* By the name behind the prefix: "data.pkl", "data/0"; NULL: not there. */
const zip_entry_t *zip_find(const zip_t *zip, const char *name);

/* Read an entry whole and compare its checksum; @a data has room for its
 * size. */
fsdp_status_t zip_read(int fd, const char *path, const zip_entry_t *entry,
                       void *data, fsdp_error_t *err);
fsdp_status_t zip_read_from(const zip_source_t *source, const char *path,
                            const zip_entry_t *entry, void *data,
                            fsdp_error_t *err);

#endif
