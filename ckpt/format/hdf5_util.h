/*
 * What every use of HDF5 in this room shares: one thread in the library at a
 * time, silent errors whose text goes into ours, and the element types.
 */
#ifndef FSDP_HDF5_UTIL_H
#define FSDP_HDF5_UTIL_H

#include <stdint.h>

#include <hdf5.h>

#include "ckpt/format/hdf5_frame.h"
#include "ckpt/fsdp_ckpt.h"

/* What hdf5_enter() found and hdf5_leave() restores. */
typedef struct {
    H5E_auto2_t print;
    void *print_arg;
} hdf5_guard_t;

/* Every stretch of HDF5 calls lies between these two: they hold the one mutex
 * of the process, and HDF5 prints nothing in between.  Not recursive. */
void hdf5_enter(hdf5_guard_t *guard);
void hdf5_leave(const hdf5_guard_t *guard);

/**
 * Fill @a err with "PATH: WHAT: " and HDF5's innermost message, and clear
 * HDF5's error stack.
 *
 * @return @a status.
 */
__attribute__((format(printf, 4, 5))) fsdp_status_t hdf5_error(
    fsdp_error_t *err, fsdp_status_t status, const char *path, const char *fmt,
    ...);

/* A file that is read: by HDF5 through our driver, which locks nothing (files
 * are never changed once they are there) and tells errors of the disk. */
typedef struct {
    const char *path; /* borrowed */
    hdf5_frame_t frame;
    hid_t file;
} hdf5_reader_t;

/**
 * @param forget  What HDF5 decoded of a dataset, 13 KB of a virtual one, when
 *                that is closed: not where H5Lvisit() is used, which leaves
 *                groups behind then that HDF5 (1.10) crashes over at exit.
 *
 * @return FSDP_ERR_CORRUPT if it is no HDF5 file; after FSDP_OK only there is
 *         something to close.
 */
fsdp_status_t hdf5_open(hdf5_reader_t *reader, const char *path, bool forget,
                        fsdp_error_t *err);

/* @return @a status, unless reading the file failed: whatever else was found
 *         then is no news. */
fsdp_status_t hdf5_close(hdf5_reader_t *reader, fsdp_status_t status,
                         fsdp_error_t *err);

/* HDF5's types for our element types.  Those of 8 bits and fewer that HDF5
 * cannot describe are H5T_STD_U8LE: the dataset's attribute `dtype` says what
 * the bytes are. */
typedef struct {
    hid_t ids[FSDP_DTYPE_F4 + 1];
} hdf5_types_t;

/* Caller closes with hdf5_types_close(), also after a failure. */
fsdp_status_t hdf5_types_open(hdf5_types_t *types, fsdp_error_t *err);
void hdf5_types_close(hdf5_types_t *types);

/* Is the type stored as raw bytes with an attribute? */
bool hdf5_type_is_raw(fsdp_dtype_t dtype);

/* @return false if @a type is none that we know; raw ones come back as U8. */
bool hdf5_types_find(const hdf5_types_t *types, hid_t type,
                     fsdp_dtype_t *dtype_p);

/* The same for any order of bytes, and for enumerations as numbers.
 * @param swap_p  Bytes of a number, if they are big-endian; else 0. */
bool hdf5_types_find_any(const hdf5_types_t *types, hid_t type,
                         fsdp_dtype_t *dtype_p, uint32_t *swap_p);

/* A text attribute of an object; the caller frees it.  NULL: there is none.
 * @return false if it is there and cannot be read as text. */
bool hdf5_get_text(hid_t object, const char *name, char **text_p);

/* A number attribute; *value_p stays as it is if there is none.
 * @return false if it is there and cannot be read as a number. */
bool hdf5_get_number(hid_t object, const char *name, uint64_t *value_p);

/* A one-dimensional dataset of records of @a size bytes, as it lies in the
 * file.
 * @param most    Bytes that it may have.
 * @param data_p  The caller frees it, also after a failure.  NULL: only where
 *                it is.
 * @return false if it is not there or something else. */
bool hdf5_read_table(hid_t file, const char *name, size_t size, uint64_t most,
                     void **data_p, uint64_t *num_p, uint64_t *offset_p);

#endif
