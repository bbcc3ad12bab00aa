/*
 * Writing zip archives as torch.save does: all entries stored, their data at
 * multiples of 64 bytes, sizes of 64 bits where they are needed.
 *
 * The bytes come into memory, in pieces: large data is written by others,
 * between them.  Failing to get memory is remembered until zip_write_take().
 */
#ifndef FSDP_ZIP_WRITE_H
#define FSDP_ZIP_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/util/buffer.h"

/* The directory that holds all entries. */
#define ZIP_WRITE_PREFIX "archive/"

enum { ZIP_WRITE_NAME_MAX = 40 };

typedef struct {
    char name[ZIP_WRITE_NAME_MAX];
    uint64_t size;
    uint64_t at; /* of its header */
    uint32_t crc32;
} zip_entry_out_t;

typedef struct {
    buffer_t out; /* that was not yet taken */
    uint64_t at; /* of it, in the archive */
    zip_entry_out_t *entries;
    size_t num, max_entries;
} zip_writer_t; /* all zero: an empty archive */

void zip_write_free(zip_writer_t *zip);

/* The header of an entry whose data others write right behind it.
 * @param name  Below ZIP_WRITE_PREFIX. */
void zip_write_header(zip_writer_t *zip, const char *name, uint64_t size,
                      uint32_t crc32);

/* An entry. */
void zip_write_entry(zip_writer_t *zip, const char *name, const char *data,
                     size_t size);

/* What is in every archive of PyTorch, and the directory. */
void zip_write_end(zip_writer_t *zip);

/**
 * The bytes since the last call, which others write to where they belong.
 *
 * @param pass    Bytes of data that follow, written by others.
 * @param data_p  The caller frees it.
 *
 * @return false: there was no memory.
 */
bool zip_write_take(zip_writer_t *zip, uint64_t pass, char **data_p,
                    size_t *size_p);

#endif
