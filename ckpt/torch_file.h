/*
 * One file of torch.save: its object, and where its storages are.
 */
#ifndef FSDP_TORCH_FILE_H
#define FSDP_TORCH_FILE_H

#include "ckpt/pickle.h"
#include "lib/util/map.h"

typedef struct {
    uint64_t offset; /* in the file */
    uint64_t size;   /* bytes */
    uint32_t crc32;
    bool has_crc; /* those of legacy files have none */
} torch_storage_t;

typedef struct {
    char *path;
    uint64_t size;    /* of the file */
    uint64_t checked; /* bytes whose checksum was compared */
    bool is_zip;
    pickle_t *pickle;
    torch_storage_t *storages;
    uint32_t num_storages;
    map_t keys; /* to indexes of storages */
} torch_file_t;

/* Zip archive or legacy, by its first bytes (16 of them)? */
bool torch_file_probe(const unsigned char *head);

/**
 * @param path  Copied.
 *
 * @return FSDP_ERR_CORRUPT, FSDP_ERR_UNSUPPORTED (big-endian), FSDP_ERR_IO.
 */
fsdp_status_t torch_file_open(const char *path, torch_file_t *file,
                              fsdp_error_t *err);

/* Frees what it holds, not @a file; a zeroed one is allowed. */
void torch_file_close(torch_file_t *file);

/* The index of a storage by its key; false: there is none. */
bool torch_file_find(const torch_file_t *file, const char *key,
                     uint32_t *storage_p);

#endif
