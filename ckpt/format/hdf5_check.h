/*
 * Checks of a sharded HDF5 checkpoint that go through HDF5 itself: what other
 * programs will see is what our tables say.
 *
 * Only for files whose checksums are right: HDF5 is not meant for damaged
 * ones.
 */
#ifndef FSDP_HDF5_CHECK_H
#define FSDP_HDF5_CHECK_H

#include <stdint.h>

#include "ckpt/catalog.h"

/* Called for each finding, with one line of text.
 * @return FSDP_OK, or a status that ends the check. */
typedef fsdp_status_t (*hdf5_check_f)(const char *text, void *arg);

/**
 * A shard file's own tables and datasets against the catalog, both ways.
 *
 * @param cat  Sealed, read from the index.
 * @param err  Trouble, no finding.
 */
fsdp_status_t hdf5_check_shard(const catalog_t *cat, uint32_t file,
                               hdf5_check_f find, void *arg, fsdp_error_t *err);

/* The index's whole tensors: each is there with its type and shape and shows
 * nothing but the checkpoint's files, and copies of scalars hold what the
 * shard files hold. */
fsdp_status_t hdf5_check_index(const catalog_t *cat, hdf5_check_f find,
                               void *arg, fsdp_error_t *err);

#endif
