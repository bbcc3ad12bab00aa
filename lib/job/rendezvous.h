/*
 * What PMIx knows about ranks and nodes.
 *
 * Without PMIx at build time both calls return FSDP_ERR_UNSUPPORTED.
 */
#ifndef FSDP_RENDEZVOUS_H
#define FSDP_RENDEZVOUS_H

#include "lib/job/peers.h"

/**
 * Exchange a card with each rank (version, host), and find everybody's node.
 * Runs as a job of the worker, after MPI has been initialised there: the other
 * way round Open MPI 4 loses its server.  And before the first message: it is
 * the barrier that MPI_Init is not under Slurm.  Collective.
 *
 * @return FSDP_ERR_MISMATCH, naming the rank, if it runs another version of
 *         the library; FSDP_ERR_NO_LAUNCHER if PMIx does not do its work.
 */
fsdp_status_t rendezvous_run(comm_t *comm, peers_t *peers_p, fsdp_error_t *err);

/**
 * The nodes of all ranks of a job of which some have not arrived.  Asks in a
 * thread of its own, at most two seconds.  Local.
 */
fsdp_status_t rendezvous_find_nodes(uint32_t world, uint32_t rank,
                                    peers_t *peers_p, fsdp_error_t *err);

#endif
