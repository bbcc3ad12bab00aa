#include "config.h"

#include "ckpt/format/hdf5_frame.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

#include "lib/util/io.h"

/* What a property list says: which file. */
typedef struct {
    hdf5_frame_t *frame;
} info_t;

typedef struct {
    H5FD_t pub; /* first: HDF5 knows no more of it */
    hdf5_frame_t *frame;
    bool writes;
    haddr_t eoa; /* end of what HDF5 has allocated */
} open_t;

static hid_t driver = H5I_INVALID_HID;

static hdf5_frame_t *frame_of(const H5FD_t *file)
{
    return ((const open_t *)file)->frame;
}

static void note_error(H5FD_t *file)
{
    if (frame_of(file)->error == 0) {
        frame_of(file)->error = (errno != 0) ? errno : EIO;
    }
}

static H5FD_t *frame_open(const char *name, unsigned flags, hid_t fapl,
                          haddr_t maxaddr)
{
    const info_t *info = H5Pget_driver_info(fapl);
    open_t *file = (info == NULL) ? NULL : calloc(1, sizeof(*file));

    (void)name;
    (void)maxaddr;
    if (file != NULL) {
        file->frame = info->frame;
        file->writes = (flags & H5F_ACC_RDWR) != 0;
    }

    return (H5FD_t *)file;
}

static herr_t frame_close(H5FD_t *file)
{
    free(file);
    return 0;
}

static herr_t frame_query(const H5FD_t *file, unsigned long *flags)
{
    (void)file;
    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA |
             H5FD_FEAT_AGGREGATE_SMALLDATA;

    return 0;
}

static haddr_t frame_get_eoa(const H5FD_t *file, H5FD_mem_t type)
{
    (void)type;
    return ((const open_t *)file)->eoa;
}

static herr_t frame_set_eoa(H5FD_t *file, H5FD_mem_t type, haddr_t addr)
{
    (void)type;
    ((open_t *)file)->eoa = addr;

    return 0;
}

static haddr_t frame_get_eof(const H5FD_t *file, H5FD_mem_t type)
{
    struct stat st;

    (void)type;
    return (fstat(frame_of(file)->fd, &st) == 0) ? (haddr_t)st.st_size
                                                 : HADDR_UNDEF;
}

/* What lies behind the end reads as zeros, as HDF5 wants it. */
static herr_t frame_read(H5FD_t *file, H5FD_mem_t type, hid_t dxpl,
                         haddr_t addr, size_t size, void *buf)
{
    hdf5_frame_t *frame = frame_of(file);
    haddr_t eof = frame_get_eof(file, type);
    size_t there = (addr >= eof)         ? 0
                   : (size < eof - addr) ? size
                                         : (size_t)(eof - addr);

    (void)dxpl;
    if (frame->watch && type == H5FD_MEM_DRAW) {
        frame->raw_at = addr;
        frame->raw_bytes = size;
        return 0;
    }
    memset((char *)buf + there, 0, size - there);

    if (io_pread(frame_of(file)->fd, buf, there, addr, "memory", NULL) !=
        FSDP_OK) {
        memset(buf, 0, there);
        note_error(file);
        return ((const open_t *)file)->writes ? 0 : -1;
    }

    return 0;
}

static herr_t frame_write(H5FD_t *file, H5FD_mem_t type, hid_t dxpl,
                          haddr_t addr, size_t size, const void *buf)
{
    (void)type;
    (void)dxpl;
    if (frame_of(file)->error == 0 &&
        io_pwrite(frame_of(file)->fd, buf, size, addr, "memory", NULL) !=
            FSDP_OK) {
        note_error(file);
    }

    return 0;
}

static herr_t frame_truncate(H5FD_t *file, hid_t dxpl, hbool_t closing)
{
    (void)dxpl;
    (void)closing;
    if (ftruncate(frame_of(file)->fd, (off_t)((open_t *)file)->eoa) != 0) {
        note_error(file);
    }

    return 0;
}

static const H5FD_class_t frame_class = {
#if H5_VERSION_GE(1, 13, 0)
    .version = H5FD_CLASS_VERSION,
    .value = (H5FD_class_value_t)600, /* HDF5's own are below 256 */
#endif
    .name = "fsdp_frame",
    .maxaddr = INT64_MAX,
    .fc_degree = H5F_CLOSE_WEAK,
    .fapl_size = sizeof(info_t),
    .open = frame_open,
    .close = frame_close,
    .query = frame_query,
    .get_eoa = frame_get_eoa,
    .set_eoa = frame_set_eoa,
    .get_eof = frame_get_eof,
    .read = frame_read,
    .write = frame_write,
    .truncate = frame_truncate,
    .fl_map = H5FD_FLMAP_DICHOTOMY,
};

herr_t hdf5_frame_set(hid_t fapl, hdf5_frame_t *frame)
{
    info_t info = {frame};

    if (driver < 0 || H5Iis_valid(driver) <= 0) { /* or HDF5 was closed */
        driver = H5FDregister(&frame_class);
    }

    return (driver < 0) ? -1 : H5Pset_driver(fapl, driver, &info);
}
