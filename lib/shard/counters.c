/*
 * Counters, and what they must be.
 *
 * The formulas are those of doc/volume.md and know nothing of how bytes are
 * sent: a test compares the two.
 */
#include "config.h"

#include "lib/shard/shard.h"

void fsdp_get_counters(const fsdp_t *fsdp, fsdp_counters_t *counters_p)
{
    const comm_counters_t *base = &fsdp->comm_base;
    comm_counters_t now;

    comm_get_counters(fsdp->comm, &now);
    *counters_p = (fsdp_counters_t){
        .gather_bytes = now.bytes[COMM_GATHER] - base->bytes[COMM_GATHER],
        .reduce_bytes = now.bytes[COMM_REDUCE] - base->bytes[COMM_REDUCE],
        .replica_bytes = now.bytes[COMM_REPLICA] - base->bytes[COMM_REPLICA],
        .control_bytes = now.bytes[COMM_CONTROL] - base->bytes[COMM_CONTROL],
        .link_bytes = now.link_bytes - base->link_bytes,
        .collectives = now.exchanges - base->exchanges,
        .compute_seconds = fsdp->compute_seconds,
        .comm_seconds = now.busy_seconds - base->busy_seconds,
        .exposed_seconds = now.waited_seconds - base->waited_seconds,
        .optimizer_seconds = fsdp->optimizer_seconds,
        .save_seconds = fsdp->save_seconds,
    };
}

/* --- The formulas --------------------------------------------------------- */

/* How often a unit is gathered in a training round: once if it is kept, else
 * each time it begins; once forward and once backward until a round has shown
 * otherwise. */
static uint64_t gathers(const fsdp_unit_t *unit)
{
    const fsdp_config_t *config = &unit->fsdp->config;
    bool kept = (unit->flags & FSDP_UNIT_ROOT)
                    ? !config->reshard_root
                    : config->strategy == FSDP_STRATEGY_GRAD_OP;

    if (kept) {
        return 1;
    }

    return (unit->begins > 0) ? unit->begins : 2;
}

/* The least number of tree nodes that cover micro-batches [lo, hi) of G: each
 * starts at a multiple of its length, and ends with it or with the tree. */
static uint64_t cover(uint64_t lo, uint64_t hi, uint64_t g)
{
    uint64_t nodes = 0;

    for (; lo < hi; nodes++) {
        uint64_t length = 1;

        while (length < g && lo % (2 * length) == 0 &&
               (lo + 2 * length <= hi || hi == g)) {
            length *= 2;
        }
        lo = (lo + length < hi) ? lo + length : hi;
    }

    return nodes;
}

static uint64_t up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

void fsdp_expected_volume(const fsdp_t *fsdp, uint64_t *gather_p,
                          uint64_t *reduce_p, uint64_t *replica_p)
{
    const fsdp_config_t *config = &fsdp->config;
    uint64_t g = config->micro_batches, world = fsdp->mesh.world;
    uint64_t f = fsdp->mesh.shard, r = fsdp->mesh.replicas;
    uint64_t param = (config->param_dtype == FSDP_BF16) ? 2 : 4;
    uint64_t grad = (config->reduce_dtype == FSDP_BF16) ? 2 : 4;
    uint64_t mine = 0, nodes = 0, rounds = (g + world - 1) / world;

    *gather_p = *reduce_p = *replica_p = 0;
    for (uint64_t round = 0; round < rounds; round++) {
        uint64_t lo = fsdp->replica_index * f + world * round;
        uint64_t hi = (lo + f < g) ? lo + f : g;

        mine += fsdp->rank + world * round < g;
        nodes += cover(lo, hi, g);
    }

    for (uint32_t i = 0; i < fsdp->num_units; i++) {
        const fsdp_unit_t *unit = fsdp->units[i];
        uint64_t trained = unit->regions[REGION_TRAINED].length;
        uint64_t all = trained + unit->regions[REGION_FROZEN].length;
        uint64_t part = up(trained, 64 * r) / r;

        *gather_p += rounds * gathers(unit) * (f - 1) * all * param;
        *reduce_p += mine * (f - 1) * trained * grad;
        if (r > 1) {
            *replica_p += nodes * (r - 1) * part * ((f == 1) ? grad : 4);
            *replica_p += (r - 1) * part * 4;
        }
    }
}
