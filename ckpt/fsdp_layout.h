/*
 * Shard arithmetic: where every element of every parameter lies, for any
 * world size and strategy.  The runtime and the checkpoint tools share it.
 *
 * A unit's parameters lie end to end in one flat array, each starting at a
 * multiple of FSDP_LAYOUT_ALIGN elements.  The array is padded so that the F
 * ranks of a shard group hold equal shards whose length is a multiple of
 * FSDP_LAYOUT_ALIGN as well.  Shard f is elements [f * L, (f + 1) * L).
 *
 * All functions are local, keep no state, and may be called from any thread.
 */
#ifndef FSDP_LAYOUT_H
#define FSDP_LAYOUT_H

#include <stdint.h>

#include "fsdp_status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FSDP_LAYOUT_ALIGN 64   /* elements */
#define FSDP_LAYOUT_PART  1024 /* parts of a shard start at multiples of this */
#define FSDP_MESH_MOST    (1u << 20) /* ranks */

typedef enum {
    FSDP_STRATEGY_FULL = 0,    /* params, gradients and optimizer sharded */
    FSDP_STRATEGY_GRAD_OP = 1, /* params whole between forward and backward */
    FSDP_STRATEGY_HYBRID = 2, /* sharded over F ranks, replicated W / F times */
    FSDP_STRATEGY_NONE = 3,   /* replicated: F = 1, all-reduce */
    FSDP_STRATEGY_CHUNK = 4   /* rows of each tensor, as PyTorch's FSDP2: of
                                 checkpoints only, nothing trains so here */
} fsdp_strategy_t;

/* How W ranks share the work: rank r = f + F * replica. */
typedef struct {
    fsdp_strategy_t strategy;
    uint32_t world;    /* W */
    uint32_t shard;    /* F: ranks that hold one copy */
    uint32_t replicas; /* R = W / F */
} fsdp_mesh_t;

/**
 * Choose F for a strategy: W for full, grad-op and chunk, 1 for none, @a shard
 * for hybrid.
 *
 * @param shard  Only for hybrid; 0 elsewhere.
 *
 * @return FSDP_ERR_CONFIG if F does not divide W, or W is more than
 *         FSDP_MESH_MOST.
 */
FSDP_API fsdp_status_t fsdp_mesh_init(fsdp_mesh_t *mesh,
                                      fsdp_strategy_t strategy, uint32_t world,
                                      uint32_t shard, fsdp_error_t *err);

/* "full", "grad-op", "hybrid", "none", "chunk". */
FSDP_API const char *fsdp_strategy_name(fsdp_strategy_t strategy);

/**
 * Read "full", "grad-op", "none", "chunk" or "hybrid:F".
 *
 * @param shard_p  F for hybrid, else 0.
 */
FSDP_API fsdp_status_t fsdp_strategy_parse(const char *text,
                                           fsdp_strategy_t *strategy_p,
                                           uint32_t *shard_p,
                                           fsdp_error_t *err);

/**
 * Lay out a unit.
 *
 * @param numels    Elements of each of the @a num parameters.
 * @param shard     F.
 * @param starts_p  Where each begins in the flat array; @a num entries.
 * @param length_p  Shard length L; the flat array has F * L elements.
 */
FSDP_API fsdp_status_t fsdp_layout_unit(const uint64_t *numels, uint32_t num,
                                        uint32_t shard, uint64_t *starts_p,
                                        uint64_t *length_p, fsdp_error_t *err);

/* First element of part @a replica of @a replicas of a shard of @a length
 * elements: what a replica writes of a checkpoint.  Part i is
 * [part_start(i), part_start(i + 1)). */
FSDP_API uint64_t fsdp_layout_part_start(uint64_t length, uint32_t replicas,
                                         uint32_t replica);

/**
 * The elements of a parameter that lie in [lo, hi) of the flat array.
 *
 * @param start    Where the parameter begins in the flat array.
 * @param numel    Its elements.
 * @param first_p  First element of the parameter in the range.
 * @param count_p  0 if there is none; then *first_p is 0.
 */
FSDP_API void fsdp_layout_clip(uint64_t start, uint64_t numel, uint64_t lo,
                               uint64_t hi, uint64_t *first_p,
                               uint64_t *count_p);

#ifdef __cplusplus
}
#endif

#endif
