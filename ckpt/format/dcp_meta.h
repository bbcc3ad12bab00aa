/*
 * The `.metadata` of a DCP directory, parsed: tensors, values, records.
 *
 * Classes are known by the last part of their name and by their attributes,
 * for both modules and fields have changed with the versions of PyTorch.
 */
#ifndef FSDP_DCP_META_H
#define FSDP_DCP_META_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/codec.h"
#include "ckpt/fsdp_ckpt.h"
#include "ckpt/pickle.h"

#define DCP_NONE UINT32_MAX

typedef struct {
    const char *name; /* in the pickle */
    bool is_bytes;    /* a value, not a tensor: the rest is not set */
    bool is_unread;   /* ... because its type is not known here */
    fsdp_dtype_t dtype;
    uint32_t ndim;
    uint64_t dims_first; /* index into dcp_meta_t.dims */
    uint64_t numel;
    uint32_t owner; /* another entry, whose records it shares; or DCP_NONE */
    uint32_t owned; /* records that are its own */
} dcp_entry_t;

/* One archive. */
typedef struct {
    uint64_t offset, length; /* in its file */
    uint32_t entry;
    uint32_t file;
    uint32_t chunk; /* in dcp_meta_t.chunks; DCP_NONE for values */
    uint32_t zstd;  /* how often it is compressed by zstd: 0 or 1, as a rule */
} dcp_record_t;

typedef struct {
    uint64_t first;
    uint32_t entry;
    pickle_ref_t offsets, sizes;
} dcp_chunk_t;

typedef struct dcp_names dcp_names_t;

typedef struct {
    const char *path; /* of the pickle, borrowed, for messages */
    pickle_t *pickle;
    dcp_entry_t *entries;
    uint64_t num_entries;
    uint64_t *dims;
    uint64_t num_dims, max_dims;
    dcp_chunk_t *chunks; /* that are not empty, by entry and first */
    uint64_t num_chunks, max_chunks;
    dcp_record_t *records; /* by file and offset; none of an empty chunk */
    uint64_t num_records;
    const char **files; /* relative paths, in the pickle */
    uint32_t num_files;
    uint32_t max_files;
    pickle_ref_t paths; /* planner_data: each name's true path; or 0 */
} dcp_meta_t;

/**
 * @param fd, size  The pickle.
 *
 * @return FSDP_ERR_CORRUPT, FSDP_ERR_UNSUPPORTED, FSDP_ERR_NO_MEMORY.  Free it
 *         in any case.
 */
fsdp_status_t dcp_meta_read(int fd, uint64_t size, const char *path,
                            dcp_meta_t *meta, fsdp_error_t *err);

/* How a record is decoded: record->zstd steps. */
void dcp_record_steps(const dcp_record_t *record, codec_step_t *steps);

/* Frees what it holds, not @a meta; a zeroed one is allowed. */
void dcp_meta_free(dcp_meta_t *meta);

#endif
