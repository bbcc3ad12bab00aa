/*
 * Memory of a device, counted by kind.  CUDA has its own table in the same
 * shape; the runtime above knows only this one.
 */
#ifndef FSDP_DEVICE_H
#define FSDP_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "fsdp.h"

/* What has been allocated. */
typedef struct {
    uint64_t now[FSDP_MEM_NUM_KINDS];
    uint64_t peak[FSDP_MEM_NUM_KINDS];
    uint64_t now_total, peak_total;
    uint64_t allocations;
} device_usage_t;

struct device_ops {
    const char *name;
    /* Zeroed, aligned to a page. */
    fsdp_status_t (*alloc)(size_t bytes, void **data_p, fsdp_error_t *err);
    void (*free)(void *data, size_t bytes);
};

extern const struct device_ops device_cpu_ops;

/* Count an allocation or a release made elsewhere (comm_alloc). */
void device_count(device_usage_t *usage, fsdp_mem_kind_t kind, size_t bytes);
void device_uncount(device_usage_t *usage, fsdp_mem_kind_t kind, size_t bytes);

#endif
