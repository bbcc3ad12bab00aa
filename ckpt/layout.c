#include "config.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/fsdp_layout.h"

static const char *const strategy_names[] = {
    [FSDP_STRATEGY_FULL] = "full",     [FSDP_STRATEGY_GRAD_OP] = "grad-op",
    [FSDP_STRATEGY_HYBRID] = "hybrid", [FSDP_STRATEGY_NONE] = "none",
    [FSDP_STRATEGY_CHUNK] = "chunk",
};

#define NUM_STRATEGIES (sizeof(strategy_names) / sizeof(*strategy_names))

fsdp_status_t fsdp_mesh_init(fsdp_mesh_t *mesh, fsdp_strategy_t strategy,
                             uint32_t world, uint32_t shard, fsdp_error_t *err)
{
    if (world == 0) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG, "a world of 0 ranks");
    }
    if (world > FSDP_MESH_MOST) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "a world of %u ranks: %u are the most", world,
                              FSDP_MESH_MOST);
    }

    if (strategy == FSDP_STRATEGY_FULL || strategy == FSDP_STRATEGY_GRAD_OP ||
        strategy == FSDP_STRATEGY_CHUNK) {
        shard = world;
    } else if (strategy == FSDP_STRATEGY_NONE) {
        shard = 1;
    } else if (strategy != FSDP_STRATEGY_HYBRID) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG, "no such strategy: %d",
                              (int)strategy);
    } else if (shard == 0 || world % shard != 0) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "hybrid:%u: a shard group of %u ranks does not "
                              "divide a world of %u",
                              shard, shard, world);
    }

    *mesh = (fsdp_mesh_t){.strategy = strategy,
                          .world = world,
                          .shard = shard,
                          .replicas = world / shard};
    return FSDP_OK;
}

const char *fsdp_strategy_name(fsdp_strategy_t strategy)
{
    return ((unsigned)strategy < NUM_STRATEGIES) ? strategy_names[strategy]
                                                 : "unknown";
}

static bool parse_hybrid(const char *text, uint32_t *shard_p)
{
    unsigned long shard;
    char *end;

    if (strncmp(text, "hybrid:", 7) != 0 || text[7] < '1' || text[7] > '9') {
        return false;
    }

    shard = strtoul(text + 7, &end, 10);
    if (*end != '\0' || shard > UINT32_MAX) {
        return false;
    }

    *shard_p = (uint32_t)shard;
    return true;
}

fsdp_status_t fsdp_strategy_parse(const char *text, fsdp_strategy_t *strategy_p,
                                  uint32_t *shard_p, fsdp_error_t *err)
{
    for (unsigned i = 0; i < NUM_STRATEGIES; i++) {
        if (i != FSDP_STRATEGY_HYBRID && strcmp(text, strategy_names[i]) == 0) {
            *strategy_p = (fsdp_strategy_t)i;
            *shard_p = 0;
            return FSDP_OK;
        }
    }

    if (parse_hybrid(text, shard_p)) {
        *strategy_p = FSDP_STRATEGY_HYBRID;
        return FSDP_OK;
    }

    return fsdp_error_set(err, FSDP_ERR_CONFIG,
                          "no such strategy: '%s'; there are full, grad-op, "
                          "hybrid:F, none and chunk",
                          text);
}

/* Round up to a multiple of @a unit.  @return false if it does not fit. */
static bool round_up(uint64_t value, uint64_t unit, uint64_t *result_p)
{
    if (__builtin_add_overflow(value, unit - 1, &value)) {
        return false;
    }

    *result_p = value - value % unit;
    return true;
}

fsdp_status_t fsdp_layout_unit(const uint64_t *numels, uint32_t num,
                               uint32_t shard, uint64_t *starts_p,
                               uint64_t *length_p, fsdp_error_t *err)
{
    uint64_t end = 0, whole;

    if (shard == 0) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "a shard group of 0 ranks");
    }

    for (uint32_t i = 0; i < num; i++) {
        starts_p[i] = end;
        if (__builtin_add_overflow(end, numels[i], &end) ||
            !round_up(end, FSDP_LAYOUT_ALIGN, &end)) {
            return fsdp_error_set(err, FSDP_ERR_OVERFLOW,
                                  "a unit has more than 2^64 elements");
        }
    }

    if (!round_up(end, (uint64_t)FSDP_LAYOUT_ALIGN * shard, &whole)) {
        return fsdp_error_set(err, FSDP_ERR_OVERFLOW,
                              "a unit has more than 2^64 elements");
    }

    *length_p = whole / shard;
    return FSDP_OK;
}

uint64_t fsdp_layout_part_start(uint64_t length, uint32_t replicas,
                                uint32_t replica)
{
    /* Shards of 2^64 elements times 2^32 replicas need 96 bits. */
    unsigned __int128 product = (unsigned __int128)length * replica;

    if (replica >= replicas) {
        return length;
    }

    return (uint64_t)(product / ((uint64_t)FSDP_LAYOUT_PART * replicas)) *
           FSDP_LAYOUT_PART;
}

void fsdp_layout_clip(uint64_t start, uint64_t numel, uint64_t lo, uint64_t hi,
                      uint64_t *first_p, uint64_t *count_p)
{
    uint64_t from = (lo > start) ? lo - start : 0;
    uint64_t to = (hi > start) ? hi - start : 0;

    if (to > numel) {
        to = numel;
    }

    *first_p = (from < to) ? from : 0;
    *count_p = (from < to) ? to - from : 0;
}
