/*
 * An HDF5 file driver over memory: the bytes that HDF5 writes, holes for the
 * rest.  HDF5's own drivers either write to disk at once or hold the holes in
 * memory too.  Or over a file that is read, to see what HDF5 wants of it.
 */
#ifndef FSDP_HDF5_FRAME_H
#define FSDP_HDF5_FRAME_H

#include <stdbool.h>
#include <stdint.h>

#include <hdf5.h>

typedef struct {
    int fd;    /* made by memfd_create(), or of a file; the caller closes it */
    int error; /* errno of the first read or write that failed, or 0 */
    /* Raw data is not read, but where it lies is noted. */
    bool watch;
    uint64_t raw_at, raw_bytes;
} hdf5_frame_t;

/*
 * Make @a fapl, of file access, use the driver over @a frame, which stays the
 * caller's and must outlive the HDF5 file.  Caller has entered HDF5.
 *
 * HDF5 never sees an error of a file that it writes: it could then not close
 * it, and would try again when the process ends.  The caller looks at
 * frame->error instead.
 */
herr_t hdf5_frame_set(hid_t fapl, hdf5_frame_t *frame);

#endif
