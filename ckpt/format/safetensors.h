/*
 * What reader and writer of safetensors share.
 */
#ifndef FSDP_SAFETENSORS_H
#define FSDP_SAFETENSORS_H

#include <jansson.h>

#include "ckpt/catalog.h"

#define SAFETENSORS_HEADER_MAX 100000000u /* the reference's limit */
#define SAFETENSORS_END        ".safetensors"
#define SAFETENSORS_INDEX      ".safetensors.index.json"
#define SAFETENSORS_METADATA   "__metadata__"
#define SAFETENSORS_VALUES     "fsdp_values" /* in it: value_all() as text */

/* In it, of the shards of PyTorch's distributed checkpoints: JSON text of
 * {NAME: {"saved_offsets": [n, …]}}. */
#define SAFETENSORS_SHARDING "DCP_SHARDING_INFO"
#define SAFETENSORS_OFFSETS  "saved_offsets"
#define SAFETENSORS_VERSION  "DCP_VERSION"

#define SAFETENSORS_NUM_DTYPES 22

typedef struct {
    const char *name;
    fsdp_dtype_t dtype;
} safetensors_dtype_t;

/* In the order by which the official writer sorts. */
extern const safetensors_dtype_t safetensors_dtypes[SAFETENSORS_NUM_DTYPES];

/* A tensor as the header has it; pointers into the JSON. */
typedef struct {
    const char *name;
    fsdp_dtype_t dtype;
    uint64_t begin, end; /* of the data */
    json_t *shape;
} safetensors_entry_t;

typedef struct {
    const char *path;
    uint64_t data;      /* where the data begins */
    uint64_t data_size; /* to the end of the file */
    json_t *header;
    safetensors_entry_t *entries; /* sorted by range */
    size_t num;
} safetensors_file_t;

/**
 * Whether a name is that of one file of several:
 * PREFIX-00002-of-00005.safetensors.
 *
 * @return the length of PREFIX; 0 if it is not.
 */
size_t safetensors_shard(const char *name, unsigned *number_p,
                         unsigned *total_p);

/* Read and check the header.  @a path is borrowed until the file is closed. */
fsdp_status_t safetensors_file_open(const char *path, safetensors_file_t *file,
                                    fsdp_error_t *err);
void safetensors_file_close(safetensors_file_t *file);

/* Of {"__metadata__": {…}}, the metadata of all files: take out values and
 * tied names, and add them; keep the rest as the catalog's. */
fsdp_status_t safetensors_take_extra(catalog_t *cat, json_t *meta,
                                     fsdp_error_t *err);
fsdp_status_t safetensors_keep_meta(catalog_t *cat, const json_t *meta,
                                    fsdp_error_t *err);

/* format_t.create and .finish; create is also that of the shards of PyTorch's
 * distributed checkpoints. */
fsdp_status_t safetensors_create(catalog_t *cat, uint32_t file,
                                 const uint64_t *pieces, uint64_t num,
                                 const char *path, fsdp_error_t *err);
fsdp_status_t safetensors_finish(const catalog_t *cat, const char *dir,
                                 fsdp_error_t *err);

#endif
