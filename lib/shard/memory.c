/*
 * What fsdp_seal() allocates: first the whole plan, then the blocks.
 */
#include "config.h"

#include "lib/shard/shard.h"

#include <stdlib.h>

#include "lib/util/check.h"

static fsdp_status_t memory_grow(memory_t *memory, fsdp_error_t *err)
{
    uint32_t max = (memory->max > 0) ? 2 * memory->max : 64;
    block_t *blocks = realloc(memory->blocks, max * sizeof(*blocks));

    if (blocks == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for a plan of %u blocks", max);
    }

    memory->blocks = blocks;
    memory->max = max;
    return FSDP_OK;
}

fsdp_status_t memory_plan(fsdp_t *fsdp, fsdp_mem_kind_t kind, bool comm,
                          size_t bytes, void *data_p, fsdp_error_t *err)
{
    memory_t *memory = &fsdp->memory;

    *(void **)data_p = NULL;
    if (bytes == 0) {
        return FSDP_OK;
    }
    if (memory->num == memory->max) {
        FSDP_TRY(memory_grow(memory, err));
    }

    memory->blocks[memory->num++] =
        (block_t){.kind = kind, .comm = comm, .bytes = bytes, .data_p = data_p};
    memory->planned[kind] += bytes;
    return FSDP_OK;
}

fsdp_status_t memory_allocate(fsdp_t *fsdp, fsdp_error_t *err)
{
    memory_t *memory = &fsdp->memory;

    while (memory->allocated < memory->num) {
        block_t *block = &memory->blocks[memory->allocated];

        if (block->comm) {
            FSDP_TRY(comm_alloc(fsdp->comm, block->bytes, &block->data, err));
        } else {
            FSDP_TRY(fsdp->device->alloc(block->bytes, &block->data, err));
        }
        *block->data_p = block->data;
        device_count(&memory->usage, block->kind, block->bytes);
        memory->allocated++;
    }

    return FSDP_OK;
}

void memory_free(fsdp_t *fsdp)
{
    memory_t *memory = &fsdp->memory;

    while (memory->allocated > 0) {
        block_t *block = &memory->blocks[--memory->allocated];

        if (block->comm) {
            comm_free(fsdp->comm, block->data, block->bytes);
        } else {
            fsdp->device->free(block->data, block->bytes);
        }
        device_uncount(&memory->usage, block->kind, block->bytes);
    }
    free(memory->blocks);
    *memory = (memory_t){0};
}

fsdp_status_t fsdp_mem_alloc(fsdp_t *fsdp, fsdp_mem_kind_t kind, size_t bytes,
                             void **data_p, fsdp_error_t *err)
{
    memory_t *memory = &fsdp->memory;
    fsdp_status_t status;
    void *data;

    if ((unsigned)kind >= FSDP_MEM_NUM_KINDS) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "no such kind of memory: %d", (int)kind);
    }
    if (fsdp->sealed) {
        return fsdp_error_set(err, FSDP_ERR_BAD_STATE,
                              "fsdp_mem_alloc() must be called before "
                              "fsdp_seal()");
    }

    FSDP_TRY(memory_plan(fsdp, kind, false, bytes, &data, err));
    status = memory_allocate(fsdp, err);
    if (status != FSDP_OK) {
        memory->planned[kind] -= bytes;
        memory->num--;
        return status;
    }

    *data_p = data;
    return FSDP_OK;
}

void fsdp_get_memory(const fsdp_t *fsdp, fsdp_memory_t *memory_p)
{
    const memory_t *memory = &fsdp->memory;
    fsdp_memory_t result = {
        .peak_total = memory->usage.peak_total,
        .allocations = memory->usage.allocations,
    };

    for (unsigned kind = 0; kind < FSDP_MEM_NUM_KINDS; kind++) {
        result.planned[kind] = memory->planned[kind];
        result.planned_total += memory->planned[kind];
        result.peak[kind] = memory->usage.peak[kind];
    }

    *memory_p = result;
}
