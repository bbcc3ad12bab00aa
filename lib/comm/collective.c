/*
 * Collectives as exchanges.
 *
 * Small blocks go straight from each rank to each other one.  Large ones, where
 * several ranks share each node, go by node: rank l of a node sends its block
 * to rank l of every other node, and all that it got to the others of its own
 * node.  A link between nodes then carries each block once instead of once for
 * each rank behind it.
 */
#include "config.h"

#include "lib/comm/comm_private.h"

#include <string.h>

#include "lib/util/check.h"

/* Below this a second exchange costs more than it saves. */
#define BY_NODE_MIN (32u << 10)

/* Chunks overlap: one goes between nodes while the last is passed on. */
#define BY_NODE_CHUNK (1u << 20)

/* --- Straight ------------------------------------------------------------- */

/* Rank index ± 1, ± 2 …: at each time every rank sends to another one. */
static void fill_messages(comm_t *comm, const comm_group_t *group, char *all,
                          size_t bytes)
{
    for (uint32_t step = 1; step < group->size; step++) {
        uint32_t to = (group->index + step) % group->size;
        uint32_t from = (group->index + group->size - step) % group->size;

        comm->sends[step - 1] = (comm_message_t){
            group->ranks[to], all + group->index * bytes, bytes};
        comm->recvs[step - 1] =
            (comm_message_t){group->ranks[from], all + from * bytes, bytes};
    }
}

static fsdp_status_t gather_straight(comm_t *comm, const comm_group_t *group,
                                     comm_class_t class, void *all,
                                     size_t bytes, fsdp_error_t *err)
{
    unsigned slot;

    FSDP_TRY(comm_free_slot(comm, &slot, err));
    fill_messages(comm, group, all, bytes);
    FSDP_TRY(comm_exchange_start(comm, slot, class, comm->sends,
                                 group->size - 1, comm->recvs, group->size - 1,
                                 err));
    return comm_exchange_wait(comm, slot, err);
}

/* --- By node -------------------------------------------------------------- */

/* The group as a grid: its members on node n are grid[n * locals + l]. */
typedef struct {
    const comm_group_t *group;
    const uint32_t *grid; /* indices in the group */
    uint32_t nodes, locals;
    uint32_t node, local; /* of this rank */
    char *all;
    size_t bytes;
} by_node_t;

/* Number the nodes of the group in order of its ranks, and count the ranks of
 * each. */
static uint32_t count_nodes(comm_t *comm, const comm_group_t *group)
{
    uint32_t nodes = 0;

    for (uint32_t i = 0; i < group->size; i++) {
        uint32_t *number = &comm->node_number[comm->nodes[group->ranks[i]]];

        if (*number == 0) {
            *number = ++nodes;
            comm->node_count[nodes - 1] = 0;
        }
        comm->node_count[*number - 1]++;
    }

    return nodes;
}

/* Fill the grid; @return false if the nodes have not all as many ranks, or
 * there would be nothing to gain. */
static bool lay_out(comm_t *comm, const comm_group_t *group, by_node_t *by_node)
{
    uint32_t nodes = count_nodes(comm, group);
    uint32_t locals = comm->node_count[0];
    bool even = nodes > 1 && locals > 1;

    for (uint32_t n = 0; n < nodes; n++) {
        even &= comm->node_count[n] == locals;
        comm->node_count[n] = 0;
    }
    for (uint32_t i = 0; i < group->size && even; i++) {
        uint32_t n = comm->node_number[comm->nodes[group->ranks[i]]] - 1;
        uint32_t l = comm->node_count[n]++;

        comm->grid[n * locals + l] = i;
        if (i == group->index) {
            by_node->node = n;
            by_node->local = l;
        }
    }
    for (uint32_t i = 0; i < group->size; i++) {
        comm->node_number[comm->nodes[group->ranks[i]]] = 0;
    }

    by_node->group = group;
    by_node->grid = comm->grid;
    by_node->nodes = nodes;
    by_node->locals = locals;
    return even;
}

typedef struct {
    size_t at, bytes; /* of each block */
} chunk_t;

static comm_message_t message(const by_node_t *b, uint32_t node, uint32_t local,
                              uint32_t block, const chunk_t *chunk)
{
    uint32_t peer = b->grid[node * b->locals + local];

    return (comm_message_t){b->group->ranks[peer],
                            b->all + block * b->bytes + chunk->at,
                            chunk->bytes};
}

/* The own block, to the same place of each other node and to the own node. */
static fsdp_status_t start_own(comm_t *comm, const by_node_t *b, unsigned slot,
                               comm_class_t class, const chunk_t *chunk,
                               fsdp_error_t *err)
{
    uint32_t own = b->group->index, num = 0;

    for (uint32_t step = 1; step < b->nodes; step++, num++) {
        uint32_t to = (b->node + step) % b->nodes;
        uint32_t from = (b->node + b->nodes - step) % b->nodes;

        comm->sends[num] = message(b, to, b->local, own, chunk);
        comm->recvs[num] = message(b, from, b->local,
                                   b->grid[from * b->locals + b->local], chunk);
    }
    for (uint32_t step = 1; step < b->locals; step++, num++) {
        uint32_t to = (b->local + step) % b->locals;
        uint32_t from = (b->local + b->locals - step) % b->locals;

        comm->sends[num] = message(b, b->node, to, own, chunk);
        comm->recvs[num] = message(b, b->node, from,
                                   b->grid[b->node * b->locals + from], chunk);
    }

    return comm_exchange_start(comm, slot, class, comm->sends, num, comm->recvs,
                               num, err);
}

/* What came from other nodes, to the own node. */
static fsdp_status_t start_passing(comm_t *comm, const by_node_t *b,
                                   unsigned slot, comm_class_t class,
                                   const chunk_t *chunk, fsdp_error_t *err)
{
    uint32_t num = 0;

    for (uint32_t step = 1; step < b->locals; step++) {
        uint32_t to = (b->local + step) % b->locals;
        uint32_t from = (b->local + b->locals - step) % b->locals;

        for (uint32_t n = 0; n < b->nodes; n++) {
            if (n == b->node) {
                continue;
            }
            comm->sends[num] = message(
                b, b->node, to, b->grid[n * b->locals + b->local], chunk);
            comm->recvs[num++] =
                message(b, b->node, from, b->grid[n * b->locals + from], chunk);
        }
    }

    return comm_exchange_start(comm, slot, class, comm->sends, num, comm->recvs,
                               num, err);
}

static chunk_t chunk_at(const by_node_t *b, size_t at)
{
    size_t left = b->bytes - at;

    return (chunk_t){at, (left < BY_NODE_CHUNK) ? left : BY_NODE_CHUNK};
}

/* Slot @a link carries own blocks, slot @a node those that are passed on. */
static fsdp_status_t gather_by_node(comm_t *comm, const by_node_t *b,
                                    comm_class_t class, unsigned link,
                                    unsigned node, fsdp_error_t *err)
{
    chunk_t chunk = chunk_at(b, 0), next;

    FSDP_TRY(start_own(comm, b, link, class, &chunk, err));
    for (size_t at = 0; at < b->bytes; at += chunk.bytes, chunk = next) {
        FSDP_TRY(comm_exchange_wait(comm, link, err));
        next = chunk_at(b, at + chunk.bytes);
        if (next.bytes > 0) {
            FSDP_TRY(start_own(comm, b, link, class, &next, err));
        }
        if (at > 0) {
            FSDP_TRY(comm_exchange_wait(comm, node, err));
        }
        FSDP_TRY(start_passing(comm, b, node, class, &chunk, err));
    }
    return comm_exchange_wait(comm, node, err);
}

/* Two free slots, or none. */
static bool find_slots(const comm_t *comm, unsigned *link_p, unsigned *node_p)
{
    unsigned found = 0;

    for (unsigned slot = COMM_MAX_EXCHANGES; slot > 0 && found < 2; slot--) {
        if (!comm->busy[slot - 1]) {
            *(found++ == 0 ? link_p : node_p) = slot - 1;
        }
    }

    return found == 2;
}

/* --- Collectives ---------------------------------------------------------- */

fsdp_status_t comm_all_gather(comm_t *comm, const comm_group_t *group,
                              comm_class_t class, void *all, size_t bytes,
                              fsdp_error_t *err)
{
    by_node_t by_node = {.all = all, .bytes = bytes};
    unsigned link = 0, node = 0;

    if (group->size < 2 || bytes == 0) {
        return FSDP_OK;
    }

    /* All ranks of the group decide alike: slots are used in the same order. */
    if (bytes >= BY_NODE_MIN && comm->nodes != NULL &&
        lay_out(comm, group, &by_node) && find_slots(comm, &link, &node)) {
        return gather_by_node(comm, &by_node, class, link, node, err);
    }

    return gather_straight(comm, group, class, all, bytes, err);
}

/* The words of all ranks, one rank after the other, into scratch. */
static fsdp_status_t gather_words(comm_t *comm, const comm_group_t *group,
                                  const uint64_t *words, size_t num,
                                  uint64_t *scratch, fsdp_error_t *err)
{
    memcpy(scratch + group->index * num, words, num * sizeof(*words));
    return comm_all_gather(comm, group, COMM_CONTROL, scratch,
                           num * sizeof(*words), err);
}

fsdp_status_t comm_all_sum(comm_t *comm, const comm_group_t *group,
                           uint64_t *words, size_t num, uint64_t *scratch,
                           fsdp_error_t *err)
{
    FSDP_TRY(gather_words(comm, group, words, num, scratch, err));
    for (size_t i = 0; i < num; i++) {
        words[i] = 0;
        for (size_t r = 0; r < group->size; r++) {
            words[i] += scratch[r * num + i];
        }
    }

    return FSDP_OK;
}

fsdp_status_t comm_all_max(comm_t *comm, const comm_group_t *group,
                           uint64_t *words, size_t num, uint64_t *scratch,
                           fsdp_error_t *err)
{
    FSDP_TRY(gather_words(comm, group, words, num, scratch, err));
    for (size_t i = 0; i < num; i++) {
        for (size_t r = 0; r < group->size; r++) {
            if (words[i] < scratch[r * num + i]) {
                words[i] = scratch[r * num + i];
            }
        }
    }

    return FSDP_OK;
}
