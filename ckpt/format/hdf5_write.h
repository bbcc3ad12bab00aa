/*
 * The writers of the HDF5 formats, for their tables in format_t.
 */
#ifndef FSDP_HDF5_WRITE_H
#define FSDP_HDF5_WRITE_H

#include "ckpt/catalog.h"

#define HDF5_INDEX_NAME "index.h5"

/* With more pieces than this, HDF5 takes too long over virtual datasets: then
 * the index has none. */
#define HDF5_VIRTUAL_MOST 100000

/* format_t.create: a shard file. */
fsdp_status_t hdf5_shard_create(catalog_t *cat, uint32_t file,
                                const uint64_t *pieces, uint64_t num,
                                const char *path, fsdp_error_t *err);

/* index.h5, then manifest.json, into @a dir, of files in @a shard_dir. */
fsdp_status_t hdf5_index_write(const catalog_t *cat, const char *shard_dir,
                               const char *dir, fsdp_error_t *err);

/* format_t.finish: both, beside the files. */
fsdp_status_t hdf5_index_finish(const catalog_t *cat, const char *dir,
                                fsdp_error_t *err);

#define HDF5_PLAIN_FORMAT "fsdp-file"

/* Bytes of its attributes values, values_1, values_2 …, which are one text. */
#define HDF5_PLAIN_VALUES_PART 32768

/* Parts of files that one dataset can show: HDF5 keeps the list in 64 KiB. */
#define HDF5_EXTENTS_MOST 2000

/* Where the data of a file stays that only shows it. */
typedef struct {
    const catalog_t *cat;
    const uint64_t *map;   /* its tensor for each of the file */
    char **paths;          /* of its files from the new file's directory on;
                               NULL: nothing of it is shown */
    const int64_t *mtimes; /* of its files, in nanoseconds */
} hdf5_sources_t;

/* Write a file of datasets whose data stays where it is. */
fsdp_status_t hdf5_plain_show(catalog_t *cat, const hdf5_sources_t *sources,
                              const char *path, fsdp_error_t *err);

/* format_t.create of format_hdf5_file: everything, once the catalog has meta,
 * step, digests and aliases.  Each tensor is one piece. */
fsdp_status_t hdf5_plain_create(catalog_t *cat, uint32_t file,
                                const uint64_t *pieces, uint64_t num,
                                const char *path, fsdp_error_t *err);

#endif
