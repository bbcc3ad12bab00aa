/*
 * What reader and writer of safetensors share.
 */
#ifndef FSDP_SAFETENSORS_H
#define FSDP_SAFETENSORS_H

#include "ckpt/catalog.h"

#define SAFETENSORS_HEADER_MAX 100000000u /* the reference's limit */
#define SAFETENSORS_INDEX      ".safetensors.index.json"
#define SAFETENSORS_METADATA   "__metadata__"
#define SAFETENSORS_VALUES     "fsdp_values" /* in it: value_all() as text */

#define SAFETENSORS_NUM_DTYPES 22

typedef struct {
    const char *name;
    fsdp_dtype_t dtype;
} safetensors_dtype_t;

/* In the order by which the official writer sorts. */
extern const safetensors_dtype_t safetensors_dtypes[SAFETENSORS_NUM_DTYPES];

/* format_t.create and .finish. */
fsdp_status_t safetensors_create(catalog_t *cat, uint32_t file,
                                 const uint64_t *pieces, uint64_t num,
                                 const char *path, fsdp_error_t *err);
fsdp_status_t safetensors_finish(const catalog_t *cat, const char *dir,
                                 fsdp_error_t *err);

#endif
