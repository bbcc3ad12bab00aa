/*
 * Where in an HDF5 file a tensor lies: its name, made safe.
 *
 * A tensor's name is cut at its slashes into links.  '%', control characters,
 * "." and "..", and the slash after a prefix that is itself a tensor (a link
 * cannot be dataset and group), and those after HDF5_DEPTH_MAX others, are
 * written as %XX; an empty component is one '%'.  Distinct names give
 * distinct paths.
 */
#ifndef FSDP_HDF5_NAME_H
#define FSDP_HDF5_NAME_H

#include <stdbool.h>

#include "ckpt/catalog.h"

#define HDF5_NAME_MAX  65535 /* bytes */
#define HDF5_DEPTH_MAX 100   /* groups around a tensor */

/* What else there is where the path leads. */
typedef enum {
    HDF5_IN_SHARD = 0, /* tensors, below a rank's own group */
    HDF5_IN_FILE = 1,  /* tensors and aliases */
    HDF5_IN_INDEX = 2  /* those and the tables */
} hdf5_where_t;

/**
 * The path, without a leading slash, of a tensor or alias of a catalog.
 *
 * @param cat     Sealed; says which prefixes are there.
 * @param where   In an index, a first component `tensors`, `pieces`, `names`
 *                or `dims` gets its first character escaped.
 * @param path_p  The caller frees it.
 *
 * @return FSDP_ERR_UNSUPPORTED for a name that is empty, not UTF-8 or longer
 *         than HDF5_NAME_MAX.
 */
fsdp_status_t hdf5_path_make(const catalog_t *cat, const char *name,
                             hdf5_where_t where, char **path_p,
                             fsdp_error_t *err);

/* The name that has this path; the caller frees it, NULL if there is no
 * memory.  What is no escape stays as it is. */
char *hdf5_path_name(const char *path);

/* Is it valid UTF-8? */
bool hdf5_name_is_utf8(const char *name);

#endif
