/*
 * Which rank is on which node.
 */
#ifndef FSDP_PEERS_H
#define FSDP_PEERS_H

#include <stddef.h>
#include <stdint.h>

#include "lib/comm/comm.h"

#define PEERS_HOST_MAX 256

typedef struct {
    uint32_t world, nodes;
    uint32_t rank; /* this one */
    uint32_t local_rank, local_size;
    uint32_t *node_of; /* of each rank; nodes are numbered as ranks name them */
    char **hosts;      /* name of each node */
} peers_t;

/* Host of a rank, borrowed; an index is given up to the world. */
typedef const char *(*peers_host_f)(uint32_t rank, void *arg);

/* Make the tables from the host name of each rank.  The local rank is the
 * position among the ranks of the same host.  Free with peers_free(). */
fsdp_status_t peers_make(uint32_t world, uint32_t rank, peers_host_f host,
                         void *arg, peers_t *peers_p, fsdp_error_t *err);

/* Exchange host names over the communicator: where there is no PMIx.
 * Collective. */
fsdp_status_t peers_gather(comm_t *comm, peers_t *peers_p, fsdp_error_t *err);

/* From what Slurm puts into the environment of a step; needs no peer.
 * @return FSDP_ERR_NOT_FOUND if it does not say enough. */
fsdp_status_t peers_from_slurm(uint32_t world, uint32_t rank, peers_t *peers_p,
                               fsdp_error_t *err);

/* Twice does no harm. */
void peers_free(peers_t *peers);

/**
 * Write ranks with their nodes, such as "ranks 0, 4-7 on n3, rank 9 on n4",
 * into @a text; what does not fit is counted.
 *
 * @param peers  Empty tables (world 0): without nodes.
 * @param ranks  Ascending.
 */
void peers_list(const peers_t *peers, const uint32_t *ranks, size_t num,
                char *text, size_t size);

#endif
