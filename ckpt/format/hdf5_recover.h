/*
 * A sharded HDF5 checkpoint without its index: the catalog from the tables
 * that each shard file has of itself.
 */
#ifndef FSDP_HDF5_RECOVER_H
#define FSDP_HDF5_RECOVER_H

#include <stdbool.h>

#include "ckpt/catalog.h"

/* What is known besides, for the tensors' units; NULL: nothing. */
typedef const char *(*hdf5_unit_f)(const char *tensor, const void *arg);

/**
 * Read the tables of the files of a catalog into it: tensors, pieces, where
 * the blocks' checksums lie, and these.  Tensors come in an order that agrees
 * with that of each file.
 *
 * Goes through HDF5, whose own bytes have checksums, but is not meant for
 * damaged files.
 *
 * @param cat    root, path, and files with their sizes; files[i] is shard-i.h5.
 *               Not sealed by the call.
 * @param skip   Files that are not to be read, or NULL.
 * @param unit   NULL: no tensor has a unit.
 *
 * @return FSDP_ERR_CORRUPT, naming the file, if something makes no sense.
 */
fsdp_status_t hdf5_recover(catalog_t *cat, const bool *skip, hdf5_unit_f unit,
                           const void *arg, fsdp_error_t *err);

/**
 * Add the other names of tensors that an index.h5 shows: its soft links.
 *
 * @return FSDP_ERR_CORRUPT if HDF5 cannot read it.
 */
fsdp_status_t hdf5_recover_aliases(const char *path, catalog_t *cat,
                                   fsdp_error_t *err);

#endif
