/*
 * The path of each name of a distributed checkpoint in the state dict that was
 * taken apart for it: planner_data of `.metadata`.
 */
#ifndef FSDP_DCP_PATHS_H
#define FSDP_DCP_PATHS_H

#include "ckpt/nest.h"
#include "ckpt/pickle.h"
#include "ckpt/pickle_write.h"

/* Note the containers of the paths in planner_data, as nest.h describes them.
 * @param paths  0: there are none.  @return false: there was no memory. */
bool dcp_paths_note(const pickle_t *pickle, pickle_ref_t paths, json_t *notes);

typedef struct {
    const catalog_t *cat;
    nest_t nest;
    bool has_state; /* names are those of {"model": …, "optim": …} */
} dcp_paths_t;

/**
 * As the catalog's metadata tells, and else as names do.
 *
 * @param cat  Sealed; borrowed.
 */
fsdp_status_t dcp_paths_make(const catalog_t *cat, dcp_paths_t *paths_p,
                             fsdp_error_t *err);

/* A dict of all names, but those of tensors that are in values. */
void dcp_paths_write(const dcp_paths_t *paths, const bool *inner,
                     pickle_writer_t *writer);

void dcp_paths_free(dcp_paths_t *paths);

#endif
