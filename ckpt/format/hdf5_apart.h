/*
 * Reading files that the HDF5 library may not survive.
 *
 * HDF5 (1.10) can crash over a damaged file, run in circles, or take all
 * memory.  So a child of this process, with limits, reads it first.
 */
#ifndef FSDP_HDF5_APART_H
#define FSDP_HDF5_APART_H

#include "ckpt/fsdp_ckpt.h"

/* Reads a file; called with HDF5 entered (hdf5_util.h). */
typedef fsdp_status_t (*hdf5_read_f)(void *arg, fsdp_error_t *err);

/**
 * Read a file in a child of this process.  What @a read changes in memory goes
 * with the child; what it writes to open files stays.  Caller has entered
 * HDF5.
 *
 * @param path  Of the file, for error texts.
 *
 * @return what @a read returned; FSDP_ERR_CORRUPT if it crashed or took too
 *         long; FSDP_ERR_NO_MEMORY if there can be no child.
 */
fsdp_status_t hdf5_apart(const char *path, hdf5_read_f read, void *arg,
                         fsdp_error_t *err);

/* Read it in a child, and if that has survived it in this process. */
fsdp_status_t hdf5_read_safely(const char *path, hdf5_read_f read, void *arg,
                               fsdp_error_t *err);

#endif
