#define _GNU_SOURCE
#include "config.h"

#include "ckpt/format/hdf5_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/box.h"
#include "ckpt/catalog.h"
#include "ckpt/format/hdf5_frame.h"
#include "ckpt/format/hdf5_table.h"
#include "ckpt/format/hdf5_util.h"
#include "lib/util/check.h"
#include "lib/util/crc.h"
#include "lib/util/io.h"
#include "lib/util/size.h"

#define ALIGN_FROM 65536
#define ALIGN      4096
#define BLOCK_MOST (1u << 20)
#define COPY_BYTES (1u << 20)
#define CACHE      (128u << 10) /* of the metadata that HDF5 keeps */

/* Data that the caller writes later. */
typedef struct {
    uint64_t offset;
    uint64_t size;
} region_t;

struct hdf5_file {
    char *path;
    hdf5_frame_t frame; /* the file in memory */
    hid_t file;
    hid_t dcpl; /* contiguous, early, never filled, no times */
    hid_t gcpl; /* no times */
    hid_t lcpl; /* UTF-8 */
    hdf5_types_t types;
    hid_t tensor_type, piece_type;
    char *group_path; /* the group that was used last, */
    size_t group_size;
    hid_t group; /* kept open; invalid: none */
    region_t *regions;
    size_t num_regions, max_regions;
};

#define FAIL(_file, ...) \
    hdf5_error(err, FSDP_ERR_IO, (_file)->path, __VA_ARGS__)

/* HDF5 takes its own space and that of small data in blocks: large ones where
 * they will be filled. */
static unsigned choose_block(uint64_t num_datasets)
{
    unsigned block = 4096;

    while (block < BLOCK_MOST && block / 2048 < num_datasets) {
        block *= 2;
    }

    return block;
}

/* What HDF5 keeps of closed objects, until there is no more room: evicting them
 * as they are closed flushes, each time, all that is dirty.  It counts the few
 * hundred bytes that one takes in the file; decoded, a virtual dataset is
 * 13 KB. */
static herr_t bound_cache(hid_t fapl)
{
    H5AC_cache_config_t config = {.version = H5AC__CURR_CACHE_CONFIG_VERSION};

    if (H5Pget_mdc_config(fapl, &config) < 0) {
        return -1;
    }

    config.set_initial_size = true;
    config.initial_size = config.min_size = config.max_size = CACHE;
    config.incr_mode = H5C_incr__off;
    config.flash_incr_mode = H5C_flash_incr__off;
    config.decr_mode = H5C_decr__off;
    return H5Pset_mdc_config(fapl, &config);
}

static hid_t make_fapl(bool virtual, uint64_t num_datasets, hdf5_frame_t *frame)
{
    unsigned block = choose_block(num_datasets);
    hid_t fapl = H5Pcreate(H5P_FILE_ACCESS);

    if (fapl >= 0 &&
        (H5Pset_libver_bounds(fapl, H5F_LIBVER_V18,
                              virtual ? H5F_LIBVER_V110 : H5F_LIBVER_V18) < 0 ||
         hdf5_frame_set(fapl, frame) < 0 || bound_cache(fapl) < 0 ||
         H5Pset_alignment(fapl, ALIGN_FROM, ALIGN) < 0 ||
         H5Pset_meta_block_size(fapl, block) < 0 ||
         H5Pset_small_data_block_size(fapl, block) < 0)) {
        H5Pclose(fapl);
        return H5I_INVALID_HID;
    }

    return fapl;
}

static herr_t make_plists(hdf5_file_t *file)
{
    file->dcpl = H5Pcreate(H5P_DATASET_CREATE);
    file->gcpl = H5Pcreate(H5P_GROUP_CREATE);
    file->lcpl = H5Pcreate(H5P_LINK_CREATE);
    if (file->dcpl < 0 || file->gcpl < 0 || file->lcpl < 0 ||
        H5Pset_layout(file->dcpl, H5D_CONTIGUOUS) < 0 ||
        H5Pset_alloc_time(file->dcpl, H5D_ALLOC_TIME_EARLY) < 0 ||
        H5Pset_fill_time(file->dcpl, H5D_FILL_TIME_NEVER) < 0 ||
        H5Pset_obj_track_times(file->dcpl, false) < 0 ||
        H5Pset_obj_track_times(file->gcpl, false) < 0 ||
        H5Pset_char_encoding(file->lcpl, H5T_CSET_UTF8) < 0) {
        return -1;
    }

    return 0;
}

static hid_t make_tensor_type(void)
{
    hid_t type = H5Tcreate(H5T_COMPOUND, sizeof(hdf5_tensor_row_t));

#define MEMBER(_name, _type) \
    H5Tinsert(type, #_name, offsetof(hdf5_tensor_row_t, _name), _type) < 0
    if (type >= 0 &&
        (MEMBER(nelem, H5T_STD_U64LE) || MEMBER(name_off, H5T_STD_U64LE) ||
         MEMBER(dim_off, H5T_STD_U64LE) || MEMBER(piece_first, H5T_STD_U64LE) ||
         MEMBER(piece_count, H5T_STD_U32LE) ||
         MEMBER(name_len, H5T_STD_U16LE) || MEMBER(rank, H5T_STD_U8LE) ||
         MEMBER(dtype, H5T_STD_U8LE))) {
        H5Tclose(type);
        return H5I_INVALID_HID;
    }
#undef MEMBER

    return type;
}

static hid_t make_piece_type(void)
{
    hid_t type = H5Tcreate(H5T_COMPOUND, sizeof(hdf5_piece_row_t));

#define MEMBER(_name, _type) \
    H5Tinsert(type, #_name, offsetof(hdf5_piece_row_t, _name), _type) < 0
    if (type >= 0 &&
        (MEMBER(start, H5T_STD_U64LE) || MEMBER(count, H5T_STD_U64LE) ||
         MEMBER(offset, H5T_STD_U64LE) || MEMBER(tensor, H5T_STD_U32LE) ||
         MEMBER(file, H5T_STD_U32LE) || MEMBER(crc_first, H5T_STD_U32LE) ||
         MEMBER(path, H5T_STD_U32LE))) {
        H5Tclose(type);
        return H5I_INVALID_HID;
    }
#undef MEMBER

    return type;
}

/* Caller has entered HDF5. */
static fsdp_status_t begin_locked(hdf5_file_t *file, bool virtual,
                                  uint64_t num_datasets, fsdp_error_t *err)
{
    hid_t fcpl = H5Pcreate(H5P_FILE_CREATE),
          fapl = make_fapl(virtual, num_datasets, &file->frame);
    fsdp_status_t status = FSDP_OK;

    if (fcpl < 0 || fapl < 0 || make_plists(file) < 0 ||
        H5Pset_obj_track_times(fcpl, false) < 0) {
        status = FAIL(file, "cannot make property lists");
        goto done;
    }

    file->file = H5Fcreate(file->path, H5F_ACC_TRUNC, fcpl, fapl);
    if (file->file < 0) {
        status = FAIL(file, "cannot begin the file in memory");
        goto done;
    }

    FSDP_TRY_GOTO(hdf5_types_open(&file->types, err), done);
    file->tensor_type = make_tensor_type();
    file->piece_type = make_piece_type();
    if (file->tensor_type < 0 || file->piece_type < 0) {
        status = FAIL(file, "cannot make the tables' types");
    }
done:
    H5Pclose(fcpl);
    H5Pclose(fapl);
    return status;
}

fsdp_status_t hdf5_file_begin(const char *path, bool virtual,
                              uint64_t num_datasets, hdf5_file_t **file_p,
                              fsdp_error_t *err)
{
    hdf5_file_t *file = calloc(1, sizeof(*file));
    fsdp_status_t status;
    hdf5_guard_t guard;

    if (file == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);
    }

    file->file = file->dcpl = file->gcpl = file->lcpl = file->group =
        file->tensor_type = file->piece_type = H5I_INVALID_HID;
    for (int i = 0; i <= FSDP_DTYPE_F4; i++) {
        file->types.ids[i] = H5I_INVALID_HID;
    }
    file->path = strdup(path);
    file->frame.fd = memfd_create("hdf5", MFD_CLOEXEC);
    if (file->path == NULL || file->frame.fd < 0) {
        status = fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                "%s: no memory for its frame: %m", path);
        goto err_free;
    }

    hdf5_enter(&guard);
    status = begin_locked(file, virtual, num_datasets, err);
    hdf5_leave(&guard);
    if (status != FSDP_OK) {
        goto err_free;
    }

    *file_p = file;
    return FSDP_OK;

err_free:
    hdf5_file_free(file);
    return status;
}

static void close_group(hdf5_file_t *file)
{
    if (file->group >= 0) {
        H5Gclose(file->group);
    }
    file->group = H5I_INVALID_HID;
    free(file->group_path);
    file->group_path = NULL;
    file->group_size = 0;
}

/* Close everything in HDF5; the file in memory is complete then. */
static herr_t close_hdf5(hdf5_file_t *file)
{
    herr_t rc = 0;

    close_group(file);
    hdf5_types_close(&file->types);
    if (file->tensor_type >= 0) {
        H5Tclose(file->tensor_type);
    }
    if (file->piece_type >= 0) {
        H5Tclose(file->piece_type);
    }
    if (file->dcpl >= 0) {
        H5Pclose(file->dcpl);
    }
    if (file->gcpl >= 0) {
        H5Pclose(file->gcpl);
    }
    if (file->lcpl >= 0) {
        H5Pclose(file->lcpl);
    }
    if (file->file >= 0) {
        rc = H5Fclose(file->file);
    }
    file->file = file->dcpl = file->gcpl = file->lcpl = file->tensor_type =
        file->piece_type = H5I_INVALID_HID;

    return rc;
}

void hdf5_file_free(hdf5_file_t *file)
{
    hdf5_guard_t guard;

    if (file == NULL) {
        return;
    }

    hdf5_enter(&guard);
    close_hdf5(file);
    hdf5_leave(&guard);
    if (file->frame.fd >= 0) {
        close(file->frame.fd);
    }
    free(file->regions);
    free(file->path);
    free(file);
}

/* The group that holds @a path, made with those above it where missing, and
 * the last component in *leaf_p.  It stays open until another is asked for. */
static hid_t parent_group(hdf5_file_t *file, const char *path,
                          const char **leaf_p)
{
    const char *slash = strrchr(path, '/');
    size_t size = (slash == NULL) ? 0 : (size_t)(slash - path);
    char *prefix;
    hid_t group;

    *leaf_p = (slash == NULL) ? path : slash + 1;
    if (size == 0) {
        return file->file;
    }
    if (file->group >= 0 && size == file->group_size &&
        memcmp(file->group_path, path, size) == 0) {
        return file->group;
    }

    prefix = strndup(path, size);
    if (prefix == NULL) {
        return H5I_INVALID_HID;
    }

    close_group(file);
    for (char *p = prefix;; p++) {
        char c = *p;
        htri_t there;

        if (c != '/' && c != '\0') {
            continue;
        }
        *p = '\0';
        there = H5Lexists(file->file, prefix, H5P_DEFAULT);
        group = (there < 0)   ? H5I_INVALID_HID
                : (there > 0) ? H5Gopen2(file->file, prefix, H5P_DEFAULT)
                              : H5Gcreate2(file->file, prefix, file->lcpl,
                                           file->gcpl, H5P_DEFAULT);
        *p = c;
        if (group < 0 || c == '\0') {
            break;
        }
        H5Gclose(group);
    }
    if (group < 0) {
        free(prefix);
        return group;
    }

    file->group = group;
    file->group_path = prefix;
    file->group_size = size;
    return group;
}

static herr_t put_attribute(hid_t object, const char *name, hid_t type,
                            hid_t space, const void *value)
{
    hid_t attr =
        H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    herr_t rc = (attr < 0) ? -1 : H5Awrite(attr, type, value);

    if (attr >= 0 && H5Aclose(attr) < 0) {
        rc = -1;
    }

    return rc;
}

static herr_t put_text(hid_t object, const char *name, const char *text)
{
    size_t size = strlen(text);
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t type = H5Tcopy(H5T_C_S1);
    herr_t rc = -1;

    if (space >= 0 && type >= 0 && H5Tset_size(type, size ? size : 1) >= 0 &&
        H5Tset_strpad(type, H5T_STR_NULLPAD) >= 0 &&
        H5Tset_cset(type, H5T_CSET_UTF8) >= 0) {
        rc = put_attribute(object, name, type, space, text);
    }
    H5Tclose(type);
    H5Sclose(space);

    return rc;
}

/* @a num of 1 or more is an array, 0 one number. */
static herr_t put_numbers(hid_t object, const char *name,
                          const uint64_t *values, size_t num)
{
    hsize_t dim = num;
    hid_t space =
        (num == 0) ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &dim, NULL);
    herr_t rc = (space < 0)
                    ? -1
                    : put_attribute(object, name, H5T_STD_U64LE, space, values);

    H5Sclose(space);
    return rc;
}

/* A scalar has the shape "no numbers": an attribute without elements. */
static herr_t put_shape(hid_t object, const uint64_t *dims, uint32_t ndim)
{
    hid_t space;
    herr_t rc;

    if (ndim > 0) {
        return put_numbers(object, "shape", dims, ndim);
    }

    space = H5Screate(H5S_NULL);
    rc = H5I_INVALID_HID;
    if (space >= 0) {
        hid_t attr = H5Acreate2(object, "shape", H5T_STD_U64LE, space,
                                H5P_DEFAULT, H5P_DEFAULT);

        rc = (attr < 0) ? -1 : H5Aclose(attr);
        H5Sclose(space);
    }

    return rc;
}

static herr_t put_attributes(hid_t object, const hdf5_dataset_t *dataset)
{
    bool raw = hdf5_type_is_raw(dataset->dtype);
    bool packed = fsdp_dtype_bits(dataset->dtype) < 8;

    if (dataset->name != NULL && put_text(object, "name", dataset->name) < 0) {
        return -1;
    }
    if (raw && put_text(object, "dtype", fsdp_dtype_name(dataset->dtype)) < 0) {
        return -1;
    }
    if (dataset->unit != NULL && put_text(object, "unit", dataset->unit) < 0) {
        return -1;
    }
    if (dataset->has_order &&
        put_numbers(object, "order", &dataset->order, 0) < 0) {
        return -1;
    }
    if (dataset->is_piece) {
        return (put_shape(object, dataset->shape, dataset->shape_ndim) < 0 ||
                put_numbers(object, "first", &dataset->first, 0) < 0)
                   ? -1
                   : 0;
    }
    if (packed) {
        return put_shape(object, dataset->dims, dataset->ndim);
    }

    return 0;
}

/* The dataspace; packed types are rows of bytes. */
static hid_t make_space(const hdf5_dataset_t *dataset, uint64_t *bytes_p)
{
    hsize_t dims[BOX_MAX_NDIM];
    box_t whole = {.ndim = dataset->ndim};
    uint64_t numel;

    if (dataset->ndim > BOX_MAX_NDIM) {
        return H5I_INVALID_HID;
    }

    for (uint32_t d = 0; d < dataset->ndim; d++) {
        dims[d] = whole.count[d] = dataset->dims[d];
    }
    if (box_numel(&whole, &numel) != FSDP_OK ||
        !dtype_bytes(dataset->dtype, numel, bytes_p)) {
        return H5I_INVALID_HID;
    }

    if (fsdp_dtype_bits(dataset->dtype) < 8) {
        dims[0] = *bytes_p;
        return H5Screate_simple(1, dims, NULL);
    }

    return (dataset->ndim == 0)
               ? H5Screate(H5S_SCALAR)
               : H5Screate_simple((int)dataset->ndim, dims, NULL);
}

static fsdp_status_t add_region(hdf5_file_t *file, uint64_t offset,
                                uint64_t size, fsdp_error_t *err)
{
    if (file->num_regions == file->max_regions) {
        size_t most = file->max_regions ? 2 * file->max_regions : 64;
        region_t *more = realloc(file->regions, most * sizeof(*more));

        if (more == NULL) {
            return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                                  file->path);
        }
        file->regions = more;
        file->max_regions = most;
    }

    file->regions[file->num_regions++] = (region_t){offset, size};
    return FSDP_OK;
}

/* Write @a data, or note that the caller will; say where it lies. */
static fsdp_status_t settle(hdf5_file_t *file, hid_t set, const char *path,
                            hid_t type, uint64_t bytes, const void *data,
                            uint64_t *offset_p, fsdp_error_t *err)
{
    haddr_t offset = 0;

    if (bytes > 0) {
        offset = H5Dget_offset(set);
        if (offset == HADDR_UNDEF) {
            return FAIL(file, "no place for dataset /%s", path);
        }
    }
    if (bytes > 0 && data != NULL &&
        H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0) {
        return FAIL(file, "cannot write dataset /%s", path);
    }
    if (bytes > 0 && data == NULL) {
        FSDP_TRY(add_region(file, offset, bytes, err));
    }

    if (offset_p != NULL) {
        *offset_p = offset;
    }
    return FSDP_OK;
}

/* Close what a dataset was made with; none of it need be there. */
static void close_made(hid_t set, hid_t space, hid_t dcpl)
{
    if (set >= 0) {
        H5Dclose(set);
    }
    if (space >= 0) {
        H5Sclose(space);
    }
    if (dcpl >= 0) {
        H5Pclose(dcpl);
    }
}

/* @param set_p  To be closed if it is not negative, though this failed. */
static bool make_set(hdf5_file_t *file, const hdf5_dataset_t *dataset,
                     hid_t type, hid_t space, hid_t dcpl, hid_t *set_p)
{
    const char *leaf;
    hid_t group = parent_group(file, dataset->path, &leaf);

    *set_p = (group < 0) ? H5I_INVALID_HID
                         : H5Dcreate2(group, leaf, type, space, file->lcpl,
                                      dcpl, H5P_DEFAULT);
    return *set_p >= 0 && put_attributes(*set_p, dataset) >= 0;
}

static fsdp_status_t add_locked(hdf5_file_t *file,
                                const hdf5_dataset_t *dataset,
                                uint64_t *offset_p, fsdp_error_t *err)
{
    hid_t type = file->types.ids[dataset->dtype];
    uint64_t bytes = 0;
    hid_t space = make_space(dataset, &bytes), set;
    fsdp_status_t status;

    if (space < 0) {
        return FAIL(file, "dataset /%s has no shape that HDF5 can hold",
                    dataset->path);
    }

    if (!make_set(file, dataset, type, space, file->dcpl, &set)) {
        status = FAIL(file, "cannot make dataset /%s", dataset->path);
    } else {
        status = settle(file, set, dataset->path, type, bytes, dataset->data,
                        offset_p, err);
    }

    if (set >= 0) {
        H5Dclose(set);
    }
    H5Sclose(space);
    return status;
}

fsdp_status_t hdf5_file_add(hdf5_file_t *file, const hdf5_dataset_t *dataset,
                            uint64_t *offset_p, fsdp_error_t *err)
{
    fsdp_status_t status;
    hdf5_guard_t guard;

    hdf5_enter(&guard);
    status = add_locked(file, dataset, offset_p, err);
    hdf5_leave(&guard);

    return status;
}

static hid_t table_type(const hdf5_file_t *file, hdf5_table_t type)
{
    switch (type) {
    case HDF5_TABLE_U8:
        return H5T_STD_U8LE;
    case HDF5_TABLE_U32:
        return H5T_STD_U32LE;
    case HDF5_TABLE_U64:
        return H5T_STD_U64LE;
    case HDF5_TABLE_TENSOR:
        return file->tensor_type;
    default:
        return file->piece_type;
    }
}

fsdp_status_t hdf5_file_add_table(hdf5_file_t *file, const char *path,
                                  hdf5_table_t type, uint64_t num,
                                  const void *records, uint64_t *offset_p,
                                  fsdp_error_t *err)
{
    hid_t id = table_type(file, type), space, set = H5I_INVALID_HID;
    fsdp_status_t status;
    hdf5_guard_t guard;
    hsize_t dim = num;

    hdf5_enter(&guard);
    space = H5Screate_simple(1, &dim, NULL);
    if (space >= 0) {
        set = H5Dcreate2(file->file, path, id, space, file->lcpl, file->dcpl,
                         H5P_DEFAULT);
    }
    status = (set < 0) ? FAIL(file, "cannot make table /%s", path)
                       : settle(file, set, path, id, num * H5Tget_size(id),
                                records, offset_p, err);
    close_made(set, space, H5I_INVALID_HID);
    hdf5_leave(&guard);

    return status;
}

static fsdp_status_t add_external_locked(hdf5_file_t *file,
                                         const hdf5_dataset_t *dataset,
                                         const hdf5_extent_t *extents,
                                         size_t num, fsdp_error_t *err)
{
    hid_t dcpl = H5Pcreate(H5P_DATASET_CREATE), set = H5I_INVALID_HID;
    uint64_t bytes = 0;
    hid_t space = make_space(dataset, &bytes);
    fsdp_status_t status = FSDP_OK;
    bool good = dcpl >= 0 && space >= 0 &&
                H5Pset_obj_track_times(dcpl, false) >= 0 &&
                H5Pset_layout(dcpl, H5D_CONTIGUOUS) >= 0;

    for (size_t i = 0; i < num && good; i++) {
        good = H5Pset_external(dcpl, extents[i].file, (off_t)extents[i].offset,
                               extents[i].size) >= 0;
    }
    if (!good || !make_set(file, dataset, file->types.ids[dataset->dtype],
                           space, dcpl, &set)) {
        status = FAIL(file, "cannot make dataset /%s of %zu parts of files",
                      dataset->path, num);
    }
    close_made(set, space, dcpl);
    return status;
}

fsdp_status_t hdf5_file_add_external(hdf5_file_t *file,
                                     const hdf5_dataset_t *dataset,
                                     const hdf5_extent_t *extents, size_t num,
                                     fsdp_error_t *err)
{
    fsdp_status_t status;
    hdf5_guard_t guard;

    hdf5_enter(&guard);
    status = add_external_locked(file, dataset, extents, num, err);
    hdf5_leave(&guard);

    return status;
}

/* In names of sources HDF5 takes "%b" for a number and "%%" for '%'. */
static char *double_percents(const char *name)
{
    char *copy = malloc(2 * strlen(name) + 1), *out = copy;

    for (; copy != NULL && *name != '\0'; name++) {
        if (*name == '%') {
            *out++ = '%';
        }
        *out++ = *name;
    }
    if (copy != NULL) {
        *out = '\0';
    }

    return copy;
}

/* Map boxes of the tensor, in order, to elements of one source. */
static herr_t map_boxes(hid_t dcpl, hid_t space, const hdf5_source_t *source,
                        const box_t *boxes, unsigned num, uint64_t count)
{
    hsize_t dim = count, at = 0;
    hid_t from = H5Screate_simple(1, &dim, NULL);
    char *file = double_percents(source->file);
    char *path = double_percents(source->path);
    herr_t rc = (from < 0 || file == NULL || path == NULL) ? -1 : 0;

    for (unsigned i = 0; rc >= 0 && i < num; i++) {
        hsize_t start[BOX_MAX_NDIM], size[BOX_MAX_NDIM], length = 1;

        for (unsigned d = 0; d < boxes[i].ndim; d++) {
            start[d] = boxes[i].start[d];
            size[d] = boxes[i].count[d];
            length *= size[d];
        }
        if (H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, size,
                                NULL) < 0 ||
            H5Sselect_hyperslab(from, H5S_SELECT_SET, &at, NULL, &length,
                                NULL) < 0 ||
            H5Pset_virtual(dcpl, space, file, path, from) < 0) {
            rc = -1;
        }
        at += length;
    }
    free(path);
    free(file);
    H5Sclose(from);

    return rc;
}

/* Of packed types, bytes are mapped instead of elements. */
static herr_t map_source(hid_t dcpl, hid_t space, const hdf5_dataset_t *dataset,
                         const hdf5_source_t *source)
{
    unsigned bits = fsdp_dtype_bits(dataset->dtype), num;
    box_t boxes[2 * BOX_MAX_NDIM];
    uint64_t first = source->first, count = source->count, bytes;
    const uint64_t *dims = dataset->dims;
    uint32_t ndim = dataset->ndim;
    hsize_t whole[BOX_MAX_NDIM];

    if (bits < 8) {
        if (first * bits % 8 != 0 ||
            !dtype_bytes(dataset->dtype, count, &bytes) ||
            H5Sget_simple_extent_dims(space, whole, NULL) < 0) {
            return -1;
        }
        first = first * bits / 8;
        count = bytes;
        ndim = 1;
        bytes = whole[0];
        dims = &bytes;
    }

    if (box_from_range(ndim, dims, first, count, boxes, &num) != FSDP_OK) {
        return -1;
    }

    return map_boxes(dcpl, space, source, boxes, num, count);
}

static fsdp_status_t add_virtual_locked(hdf5_file_t *file,
                                        const hdf5_dataset_t *dataset,
                                        const hdf5_source_t *sources,
                                        size_t num, fsdp_error_t *err)
{
    hid_t dcpl = H5Pcreate(H5P_DATASET_CREATE), set = H5I_INVALID_HID;
    fsdp_status_t status = FSDP_OK;
    uint64_t bytes;
    hid_t space = make_space(dataset, &bytes);

    if (dcpl < 0 || space < 0 || H5Pset_obj_track_times(dcpl, false) < 0) {
        status = FAIL(file, "cannot shape virtual dataset /%s", dataset->path);
        goto done;
    }

    for (size_t i = 0; i < num; i++) {
        if (map_source(dcpl, space, dataset, &sources[i]) < 0) {
            status = FAIL(file,
                          "cannot map elements %llu and %llu more of /%s to %s",
                          (unsigned long long)sources[i].first,
                          (unsigned long long)sources[i].count, dataset->path,
                          sources[i].file);
            goto done;
        }
    }

    H5Sselect_all(space);
    if (!make_set(file, dataset, file->types.ids[dataset->dtype], space, dcpl,
                  &set)) {
        status = FAIL(file, "cannot make virtual dataset /%s", dataset->path);
    }
done:
    close_made(set, space, dcpl);
    return status;
}

fsdp_status_t hdf5_file_add_virtual(hdf5_file_t *file,
                                    const hdf5_dataset_t *dataset,
                                    const hdf5_source_t *sources, size_t num,
                                    fsdp_error_t *err)
{
    fsdp_status_t status;
    hdf5_guard_t guard;

    hdf5_enter(&guard);
    status = add_virtual_locked(file, dataset, sources, num, err);
    hdf5_leave(&guard);

    return status;
}

static fsdp_status_t add_link(hdf5_file_t *file, const char *path,
                              const char *target, fsdp_error_t *err)
{
    char *whole = io_path("/%s", target);
    fsdp_status_t status = FSDP_OK;
    hdf5_guard_t guard;
    const char *leaf;
    hid_t group;

    if (whole == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              file->path);
    }

    hdf5_enter(&guard);
    group = parent_group(file, path, &leaf);
    if (group < 0 ||
        H5Lcreate_soft(whole, group, leaf, file->lcpl, H5P_DEFAULT) < 0) {
        status = FAIL(file, "cannot link /%s to %s", path, whole);
    }
    hdf5_leave(&guard);
    free(whole);

    return status;
}

fsdp_status_t hdf5_file_add_alias(hdf5_file_t *file, const catalog_t *cat,
                                  const catalog_alias_t *alias,
                                  hdf5_where_t where, fsdp_error_t *err)
{
    char *path, *target;
    fsdp_status_t status;

    FSDP_TRY(hdf5_path_make(cat, alias->name, where, &path, err));
    status = hdf5_path_make(cat, cat->tensors[alias->tensor].name, where,
                            &target, err);
    if (status == FSDP_OK) {
        status = add_link(file, path, target, err);
        free(target);
    }
    free(path);

    return status;
}

fsdp_status_t hdf5_file_set_text(hdf5_file_t *file, const char *name,
                                 const char *text, fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;
    hdf5_guard_t guard;

    hdf5_enter(&guard);
    if (put_text(file->file, name, text) < 0) {
        status = FAIL(file, "cannot set attribute %s", name);
    }
    hdf5_leave(&guard);

    return status;
}

fsdp_status_t hdf5_file_set_number(hdf5_file_t *file, const char *name,
                                   uint64_t value, fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;
    hdf5_guard_t guard;

    hdf5_enter(&guard);
    if (put_numbers(file->file, name, &value, 0) < 0) {
        status = FAIL(file, "cannot set attribute %s", name);
    }
    hdf5_leave(&guard);

    return status;
}

static int compare_regions(const void *a, const void *b)
{
    uint64_t x = ((const region_t *)a)->offset;
    uint64_t y = ((const region_t *)b)->offset;

    return (x > y) - (x < y);
}

/* Reserve room; a file system that cannot only gets the size. */
static fsdp_status_t reserve(int fd, uint64_t size, const char *path,
                             fsdp_error_t *err)
{
    char text[SIZE_TEXT_MAX];
    int rc;

    do {
        rc = fallocate(fd, 0, 0, (off_t)size);
    } while (rc != 0 && errno == EINTR);
    if (rc != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) {
        return io_truncate(fd, size, path, err);
    }
    if (rc != 0) {
        return fsdp_error_set(
            err, FSDP_ERR_IO, "%s: cannot reserve %s (%llu bytes): %m", path,
            size_format(size, text), (unsigned long long)size);
    }

    return FSDP_OK;
}

/* Copy bytes [from, to) of the frame. */
static fsdp_status_t copy_gap(const hdf5_file_t *file, int fd, uint64_t from,
                              uint64_t to, char *buf, uint32_t *crc,
                              fsdp_error_t *err)
{
    while (from < to) {
        size_t n = (to - from < COPY_BYTES) ? (size_t)(to - from) : COPY_BYTES;

        FSDP_TRY(io_pread(file->frame.fd, buf, n, from, file->path, err));
        FSDP_TRY(io_pwrite(fd, buf, n, from, file->path, err));
        *crc = crc32c(*crc, buf, n);
        from += n;
    }

    return FSDP_OK;
}

/* Copy what lies between the regions, which must be apart and in the file. */
static fsdp_status_t copy_gaps(hdf5_file_t *file, int fd, uint64_t size,
                               char *buf, uint32_t *crc, fsdp_error_t *err)
{
    uint64_t at = 0;

    if (file->num_regions > 0) {
        qsort(file->regions, file->num_regions, sizeof(*file->regions),
              compare_regions);
    }
    for (size_t i = 0; i <= file->num_regions; i++) {
        bool last = i == file->num_regions;
        region_t region = last ? (region_t){size, 0} : file->regions[i];

        if (region.offset < at || region.offset > size ||
            region.size > size - region.offset) {
            return fsdp_error_set(err, FSDP_ERR_IO,
                                  "%s: HDF5 laid datasets over each other at "
                                  "byte %llu",
                                  file->path,
                                  (unsigned long long)region.offset);
        }
        FSDP_TRY(copy_gap(file, fd, at, region.offset, buf, crc, err));
        at = region.offset + region.size;
    }

    return FSDP_OK;
}

/* Make the file on disk from the frame in memory. */
static fsdp_status_t write_file(hdf5_file_t *file, uint64_t size, uint32_t *crc,
                                fsdp_error_t *err)
{
    char *buf = malloc(COPY_BYTES);
    fsdp_status_t status;
    int fd;

    if (buf == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              file->path);
    }

    FSDP_TRY_GOTO(
        io_open(file->path, O_WRONLY | O_CREAT | O_TRUNC, 0666, &fd, err),
        err_buf);
    status = reserve(fd, size, file->path, err);
    if (status == FSDP_OK) {
        status = copy_gaps(file, fd, size, buf, crc, err);
    }
    status = io_close(fd, status, file->path, err);
    if (status != FSDP_OK) {
        unlink(file->path);
    }
err_buf:
    free(buf);
    return status;
}

fsdp_status_t hdf5_file_place(hdf5_file_t *file, uint64_t *size_p,
                              uint32_t *crc32c_p, fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;
    hdf5_guard_t guard;
    uint32_t crc = 0;
    struct stat st;

    hdf5_enter(&guard);
    if (close_hdf5(file) < 0) {
        status = FAIL(file, "cannot finish the file");
    }
    hdf5_leave(&guard);
    if (file->frame.error != 0) {
        errno = file->frame.error;
        status = fsdp_error_set(err, FSDP_ERR_IO,
                                "%s: cannot keep its frame in memory: %m",
                                file->path);
    }
    if (status != FSDP_OK) {
        return status;
    }

    if (fstat(file->frame.fd, &st) != 0) {
        return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot stat: %m",
                              file->path);
    }
    FSDP_TRY(write_file(file, (uint64_t)st.st_size, &crc, err));

    *size_p = (uint64_t)st.st_size;
    if (crc32c_p != NULL) {
        *crc32c_p = crc;
    }
    return FSDP_OK;
}
