/*
 * Where a dataset of any HDF5 file has its elements: in one stretch, in
 * chunks that went through filters, in its header, in other files.
 *
 * HDF5 itself only says where the bytes are: they are read and decoded like
 * those of every format, so that neither a damaged chunk nor a large one gets
 * into HDF5.
 */
#ifndef FSDP_HDF5_LAYOUT_H
#define FSDP_HDF5_LAYOUT_H

#include "ckpt/catalog.h"
#include "ckpt/format/hdf5_frame.h"

typedef struct {
    uint64_t offset, size; /* size 0: it was never written */
    uint32_t mask;         /* filters that it did not go through */
} hdf5_chunk_t;

/* A part of a dataset that is kept in another file. */
typedef struct {
    char *file;
    uint64_t offset, size;
} hdf5_external_t;

typedef enum {
    HDF5_LAYOUT_EMPTY = 0, /* it has no elements */
    HDF5_LAYOUT_STRETCH = 1,
    HDF5_LAYOUT_CHUNKS = 2,
    HDF5_LAYOUT_INLINED = 3, /* bytes at hand, repeated until they are enough */
    HDF5_LAYOUT_EXTERNAL = 4
} hdf5_layout_kind_t;

typedef struct {
    hdf5_layout_kind_t kind;
    uint32_t ndim; /* of the dataset */
    uint64_t dims[FSDP_CKPT_MAX_NDIM];
    uint64_t bytes;  /* of all elements */
    uint64_t offset; /* of the stretch, or of the first chunk in the file */
    uint32_t swap;   /* bytes of a number, if they are big-endian; 0: not */
    /* Chunks, in row-major order of their places. */
    uint64_t chunk_dims[FSDP_CKPT_MAX_NDIM];
    uint64_t chunk_bytes;
    hdf5_chunk_t *chunks;
    uint64_t num_chunks;
    codec_step_t filters[CODEC_MOST]; /* in the order in which they were used */
    unsigned num_filters;
    bool whole_only; /* chunks that reach over the edge are not filtered */
    char *data;      /* inlined, or what stands where no chunk was written */
    size_t data_bytes;
    hdf5_external_t *external;
    unsigned num_external;
} hdf5_layout_t;

/**
 * Find a dataset's elements.  Within hdf5_enter().
 *
 * @param frame  The driver that the file was opened with.
 * @param type   Of an element, little-endian.
 * @param swap   As in hdf5_layout_t.
 * @param where  "FILE: /LINK", for messages.
 *
 * @return FSDP_ERR_UNSUPPORTED, naming the filter or layout, FSDP_ERR_CORRUPT.
 *         Free it in any case.
 */
fsdp_status_t hdf5_layout_read(hdf5_frame_t *frame, hid_t set, hid_t type,
                               uint32_t swap, const char *where,
                               hdf5_layout_t *layout_p, fsdp_error_t *err);

/* Frees what it holds; a zeroed one is allowed. */
void hdf5_layout_free(hdf5_layout_t *layout);

/**
 * Add the pieces of a tensor of a catalog whose file 0 is the HDF5 file.
 *
 * @param crc_first  Of a stretch, or CATALOG_NONE.
 */
fsdp_status_t hdf5_layout_put(const hdf5_layout_t *layout, catalog_t *cat,
                              uint32_t tensor, uint32_t crc_first,
                              const char *where, fsdp_error_t *err);

#endif
