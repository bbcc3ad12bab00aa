/*
 * Making an HDF5 file whose data is written by others with pwrite().
 *
 * The file is put together in memory, so that a full disk, a quota or a file
 * system without locks never meets HDF5 itself; hdf5_file_place() then makes
 * it on disk, reserves its space and copies HDF5's own bytes.  Those, the gaps
 * between the datasets' data, are final from then on.
 *
 * Functions take the process's HDF5 mutex; one file is used by one thread.
 */
#ifndef FSDP_HDF5_FILE_H
#define FSDP_HDF5_FILE_H

#include <stdint.h>

#include "ckpt/format/hdf5_name.h"
#include "ckpt/fsdp_ckpt.h"

typedef struct hdf5_file hdf5_file_t;

/* A dataset to add; what is NULL is left out. */
typedef struct {
    const char *path; /* links, made safe; no leading slash */
    fsdp_dtype_t dtype;
    uint32_t ndim; /* shape of the tensor, or {count} for a piece of it */
    const uint64_t *dims;
    const char *name; /* attribute `name`: the tensor's true name */
    const char *unit; /* attribute `unit` */
    bool has_order;   /* attribute `order` */
    uint64_t order;
    bool is_piece; /* with attributes `shape` and `first` */
    uint32_t shape_ndim;
    const uint64_t *shape;
    uint64_t first;
    const void *data; /* written now; else its place is left for the caller */
} hdf5_dataset_t;

/* Part of a tensor that a virtual dataset shows. */
typedef struct {
    const char *file; /* beside the file that holds the virtual dataset */
    const char *path;
    uint64_t first; /* elements of the tensor */
    uint64_t count;
} hdf5_source_t;

/* Record types of tables; the layouts are those of hdf5_table.h. */
typedef enum {
    HDF5_TABLE_U8 = 0,
    HDF5_TABLE_U32 = 1,
    HDF5_TABLE_U64 = 2,
    HDF5_TABLE_TENSOR = 3,
    HDF5_TABLE_PIECE = 4
} hdf5_table_t;

/**
 * Begin a file.
 *
 * @param path     Where it will lie; for error texts.  Copied.
 * @param virtual  It will have virtual datasets (library bounds V18 to V110,
 *                 else V18 to V18).
 * @param num_datasets  About how many it will have.
 */
fsdp_status_t hdf5_file_begin(const char *path, bool virtual,
                              uint64_t num_datasets, hdf5_file_t **file_p,
                              fsdp_error_t *err);

/**
 * Add a contiguous dataset.
 *
 * @param offset_p  Where its data lies in the file; 0 if it has none.  May be
 *                  NULL.
 */
fsdp_status_t hdf5_file_add(hdf5_file_t *file, const hdf5_dataset_t *dataset,
                            uint64_t *offset_p, fsdp_error_t *err);

/**
 * Add a one-dimensional table.
 *
 * @param records  @a num of them, packed little-endian; NULL: the caller
 *                 writes them later.
 */
fsdp_status_t hdf5_file_add_table(hdf5_file_t *file, const char *path,
                                  hdf5_table_t type, uint64_t num,
                                  const void *records, uint64_t *offset_p,
                                  fsdp_error_t *err);

/* Add a whole tensor (of one element at least and of dimension 1 at least) as
 * a virtual dataset over the @a num sources. */
fsdp_status_t hdf5_file_add_virtual(hdf5_file_t *file,
                                    const hdf5_dataset_t *dataset,
                                    const hdf5_source_t *sources, size_t num,
                                    fsdp_error_t *err);

/* A stretch of another file that a dataset's data is in. */
typedef struct {
    const char *file;
    uint64_t offset;
    uint64_t size;
} hdf5_extent_t;

/* Add a dataset whose data is what lies in other files, end to end. */
fsdp_status_t hdf5_file_add_external(hdf5_file_t *file,
                                     const hdf5_dataset_t *dataset,
                                     const hdf5_extent_t *extents, size_t num,
                                     fsdp_error_t *err);

/* Add another name of a tensor of a sealed catalog: a soft link, where its
 * paths are those of @a where. */
fsdp_status_t hdf5_file_add_alias(hdf5_file_t *file, const catalog_t *cat,
                                  const catalog_alias_t *alias,
                                  hdf5_where_t where, fsdp_error_t *err);

/* Attributes of the root group. */
fsdp_status_t hdf5_file_set_text(hdf5_file_t *file, const char *name,
                                 const char *text, fsdp_error_t *err);
fsdp_status_t hdf5_file_set_number(hdf5_file_t *file, const char *name,
                                   uint64_t value, fsdp_error_t *err);

/**
 * Write the file to its path (an older one is replaced) and reserve its space.
 * It is closed, not synced; nothing can be added afterwards.
 *
 * @param crc32c_p  Checksum of the gaps, end to end: of the whole file if no
 *                  data was left to the caller.  May be NULL.
 *
 * @return FSDP_ERR_IO, naming the file, if there is no room for it; then it is
 *         not there.
 */
fsdp_status_t hdf5_file_place(hdf5_file_t *file, uint64_t *size_p,
                              uint32_t *crc32c_p, fsdp_error_t *err);

/* NULL is allowed. */
void hdf5_file_free(hdf5_file_t *file);

#endif
