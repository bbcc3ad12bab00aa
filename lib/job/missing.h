/*
 * The error of a wait that failed: who is missing, and where.
 */
#ifndef FSDP_MISSING_H
#define FSDP_MISSING_H

#include "lib/job/heartbeat.h"
#include "lib/job/peers.h"

typedef struct {
    uint32_t rank, world;
    const char *host;     /* of this rank */
    const peers_t *peers; /* empty if not known */
    bool started;         /* all ranks had arrived */
    const char *run_dir;  /* NULL: there are no heartbeats */
    heartbeat_t *beat;
} missing_view_t;

/**
 * Look at the heartbeats, and say in @a err who holds up the wait.
 *
 * @return FSDP_ERR_SIGNALLED if the program was told to end and nobody is seen
 *         to be gone; else FSDP_ERR_PEER_LOST.
 */
fsdp_status_t missing_explain(const missing_view_t *view,
                              const comm_stall_t *stall, fsdp_error_t *err);

#endif
