#include "config.h"

#include "ckpt/format/hdf5_util.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/util/io.h"
#include "lib/util/text.h"

static pthread_mutex_t hdf5_mutex = PTHREAD_MUTEX_INITIALIZER;

void hdf5_enter(hdf5_guard_t *guard)
{
    pthread_mutex_lock(&hdf5_mutex);
    guard->print = NULL;
    guard->print_arg = NULL;
    H5Eget_auto2(H5E_DEFAULT, &guard->print, &guard->print_arg);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
}

void hdf5_leave(const hdf5_guard_t *guard)
{
    H5Eclear2(H5E_DEFAULT);
    H5Eset_auto2(H5E_DEFAULT, guard->print, guard->print_arg);
    pthread_mutex_unlock(&hdf5_mutex);
}

enum { REASON_MOST = 1000 };

/* The first entry of a walk upward is the innermost. */
static herr_t take_innermost(unsigned n, const H5E_error2_t *entry, void *arg)
{
    char *text = arg;

    (void)n;
    snprintf(text, REASON_MOST, "%s", entry->desc);

    return 1;
}

fsdp_status_t hdf5_error(fsdp_error_t *err, fsdp_status_t status,
                         const char *path, const char *fmt, ...)
{
    char what[200], innermost[REASON_MOST] = "no reason given";
    va_list ap;

    va_start(ap, fmt);
    text_message(what, sizeof(what), fmt, ap);
    va_end(ap);

    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_innermost, innermost);
    H5Eclear2(H5E_DEFAULT);

    return fsdp_error_set(err, status, "%s: %s (HDF5: %.200s)", path, what,
                          innermost);
}

/* An IEEE-like float of 2 bytes; H5I_INVALID_HID on failure. */
static hid_t make_float16(unsigned exponent_bits, size_t bias)
{
    size_t mantissa_bits = 15 - exponent_bits;
    hid_t type = H5Tcopy(H5T_IEEE_F32LE);

    if (type < 0 ||
        H5Tset_fields(type, 15, mantissa_bits, exponent_bits, 0,
                      mantissa_bits) < 0 ||
        H5Tset_precision(type, 16) < 0 || H5Tset_size(type, 2) < 0 ||
        H5Tset_ebias(type, bias) < 0) {
        H5Tclose(type);
        return H5I_INVALID_HID;
    }

    return type;
}

/* h5py's convention for booleans. */
static hid_t make_bool(void)
{
    static const int8_t no = 0, yes = 1;
    hid_t type = H5Tenum_create(H5T_STD_I8LE);

    if (type < 0 || H5Tenum_insert(type, "FALSE", &no) < 0 ||
        H5Tenum_insert(type, "TRUE", &yes) < 0) {
        H5Tclose(type);
        return H5I_INVALID_HID;
    }

    return type;
}

/* h5py's convention for complex numbers. */
static hid_t make_complex(hid_t part)
{
    size_t size = H5Tget_size(part);
    hid_t type = H5Tcreate(H5T_COMPOUND, 2 * size);

    if (type < 0 || H5Tinsert(type, "r", 0, part) < 0 ||
        H5Tinsert(type, "i", size, part) < 0) {
        H5Tclose(type);
        return H5I_INVALID_HID;
    }

    return type;
}

static hid_t make_type(fsdp_dtype_t dtype)
{
    switch (dtype) {
    case FSDP_DTYPE_F32:
        return H5Tcopy(H5T_IEEE_F32LE);
    case FSDP_DTYPE_BF16:
        return make_float16(8, 127);
    case FSDP_DTYPE_F16:
        return make_float16(5, 15);
    case FSDP_DTYPE_F64:
        return H5Tcopy(H5T_IEEE_F64LE);
    case FSDP_DTYPE_I8:
        return H5Tcopy(H5T_STD_I8LE);
    case FSDP_DTYPE_I16:
        return H5Tcopy(H5T_STD_I16LE);
    case FSDP_DTYPE_I32:
        return H5Tcopy(H5T_STD_I32LE);
    case FSDP_DTYPE_I64:
        return H5Tcopy(H5T_STD_I64LE);
    case FSDP_DTYPE_U16:
        return H5Tcopy(H5T_STD_U16LE);
    case FSDP_DTYPE_U32:
        return H5Tcopy(H5T_STD_U32LE);
    case FSDP_DTYPE_U64:
        return H5Tcopy(H5T_STD_U64LE);
    case FSDP_DTYPE_BOOL:
        return make_bool();
    case FSDP_DTYPE_C64:
        return make_complex(H5T_IEEE_F32LE);
    case FSDP_DTYPE_C128:
        return make_complex(H5T_IEEE_F64LE);
    default:
        return H5Tcopy(H5T_STD_U8LE);
    }
}

fsdp_status_t hdf5_types_open(hdf5_types_t *types, fsdp_error_t *err)
{
    for (int i = 0; i <= FSDP_DTYPE_F4; i++) {
        types->ids[i] = H5I_INVALID_HID;
    }

    for (int i = 0; i <= FSDP_DTYPE_F4; i++) {
        types->ids[i] = make_type((fsdp_dtype_t)i);
        if (types->ids[i] < 0) {
            return hdf5_error(err, FSDP_ERR_NO_MEMORY, "HDF5",
                              "cannot make the type for %s",
                              fsdp_dtype_name((fsdp_dtype_t)i));
        }
    }

    return FSDP_OK;
}

void hdf5_types_close(hdf5_types_t *types)
{
    for (int i = 0; i <= FSDP_DTYPE_F4; i++) {
        if (types->ids[i] >= 0) {
            H5Tclose(types->ids[i]);
            types->ids[i] = H5I_INVALID_HID;
        }
    }
}

fsdp_status_t hdf5_open(hdf5_reader_t *reader, const char *path, bool forget,
                        fsdp_error_t *err)
{
    hid_t fapl = H5Pcreate(H5P_FILE_ACCESS);
    fsdp_status_t status;

    *reader = (hdf5_reader_t){.path = path, .file = H5I_INVALID_HID};
    status = io_open(path, O_RDONLY, 0, &reader->frame.fd, err);
    if (status != FSDP_OK) {
        H5Pclose(fapl);
        return status;
    }

    if (fapl >= 0 && H5Pset_evict_on_close(fapl, forget) >= 0 &&
        hdf5_frame_set(fapl, &reader->frame) >= 0) {
        reader->file = H5Fopen(path, H5F_ACC_RDONLY, fapl);
    }
    if (reader->file < 0) {
        status =
            hdf5_error(err, FSDP_ERR_CORRUPT, path, "cannot open it as HDF5");
        status = hdf5_close(reader, status, err);
    }
    H5Pclose(fapl);
    return status;
}

fsdp_status_t hdf5_close(hdf5_reader_t *reader, fsdp_status_t status,
                         fsdp_error_t *err)
{
    if (reader->file >= 0) {
        H5Fclose(reader->file);
    }
    close(reader->frame.fd);

    if (reader->frame.error != 0) {
        errno = reader->frame.error;
        return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot read: %m",
                              reader->path);
    }
    return status;
}

bool hdf5_type_is_raw(fsdp_dtype_t dtype)
{
    return dtype >= FSDP_DTYPE_F8_E4M3 && dtype <= FSDP_DTYPE_F4;
}

bool hdf5_types_find(const hdf5_types_t *types, hid_t type,
                     fsdp_dtype_t *dtype_p)
{
    for (int i = 0; i <= FSDP_DTYPE_C128; i++) {
        if (H5Tequal(types->ids[i], type) > 0) {
            *dtype_p = (fsdp_dtype_t)i;
            return true;
        }
    }

    return false;
}

/* A big-endian number. */
static bool find_swapped(const hdf5_types_t *types, hid_t type,
                         fsdp_dtype_t *dtype_p, uint32_t *swap_p)
{
    hid_t little = H5Tcopy(type);
    bool found = little >= 0 && H5Tget_order(type) == H5T_ORDER_BE &&
                 H5Tset_order(little, H5T_ORDER_LE) >= 0 &&
                 hdf5_types_find(types, little, dtype_p);

    if (little >= 0) {
        H5Tclose(little);
    }
    *swap_p = found ? (uint32_t)H5Tget_size(type) : 0;
    return found;
}

/* Two numbers r and i, as h5py has them. */
static bool find_complex(const hdf5_types_t *types, hid_t type,
                         fsdp_dtype_t *dtype_p, uint32_t *swap_p)
{
    hid_t part = H5Tget_member_type(type, 0), whole = H5I_INVALID_HID;
    bool found = part >= 0 && find_swapped(types, part, dtype_p, swap_p) &&
                 (*dtype_p == FSDP_DTYPE_F32 || *dtype_p == FSDP_DTYPE_F64);

    if (found) {
        whole = make_complex(part);
        found = whole >= 0 && H5Tequal(whole, type) > 0;
        *dtype_p =
            (*dtype_p == FSDP_DTYPE_F32) ? FSDP_DTYPE_C64 : FSDP_DTYPE_C128;
    }
    if (whole >= 0) {
        H5Tclose(whole);
    }
    if (part >= 0) {
        H5Tclose(part);
    }
    return found;
}

bool hdf5_types_find_any(const hdf5_types_t *types, hid_t type,
                         fsdp_dtype_t *dtype_p, uint32_t *swap_p)
{
    hid_t base;
    bool found;

    *swap_p = 0;
    if (hdf5_types_find(types, type, dtype_p)) {
        return true;
    }

    switch (H5Tget_class(type)) {
    case H5T_INTEGER:
    case H5T_FLOAT:
        return find_swapped(types, type, dtype_p, swap_p);
    case H5T_COMPOUND:
        return find_complex(types, type, dtype_p, swap_p);
    case H5T_ENUM:
        base = H5Tget_super(type);
        found = base >= 0 && (hdf5_types_find(types, base, dtype_p) ||
                              find_swapped(types, base, dtype_p, swap_p));
        if (base >= 0) {
            H5Tclose(base);
        }
        return found;
    default:
        return false;
    }
}

static char *read_fixed(hid_t attr, hid_t type)
{
    size_t size = H5Tget_size(type);
    char *text = calloc(1, size + 1);

    if (text != NULL && H5Aread(attr, type, text) < 0) {
        free(text);
        text = NULL;
    }

    return text;
}

static char *read_variable(hid_t attr, hid_t type)
{
    char *text = NULL, *copy = NULL;

    if (H5Aread(attr, type, &text) >= 0 && text != NULL) {
        copy = strdup(text);
        H5free_memory(text);
    }

    return copy;
}

static char *read_text(hid_t attr)
{
    hid_t type = H5Aget_type(attr), space = H5Aget_space(attr);
    char *text = NULL;

    if (type >= 0 && space >= 0 && H5Tget_class(type) == H5T_STRING &&
        H5Sget_simple_extent_npoints(space) == 1) {
        text = (H5Tis_variable_str(type) > 0) ? read_variable(attr, type)
                                              : read_fixed(attr, type);
    }
    if (space >= 0) {
        H5Sclose(space);
    }
    if (type >= 0) {
        H5Tclose(type);
    }

    return text;
}

bool hdf5_get_text(hid_t object, const char *name, char **text_p)
{
    htri_t there = H5Aexists(object, name);
    hid_t attr;

    *text_p = NULL;
    if (there <= 0) {
        return there == 0;
    }

    attr = H5Aopen(object, name, H5P_DEFAULT);
    if (attr >= 0) {
        *text_p = read_text(attr);
        H5Aclose(attr);
    }

    return *text_p != NULL;
}

bool hdf5_get_number(hid_t object, const char *name, uint64_t *value_p)
{
    htri_t there = H5Aexists(object, name);
    bool good = false;
    hid_t attr, space;
    uint64_t value;

    if (there <= 0) {
        return there == 0;
    }

    attr = H5Aopen(object, name, H5P_DEFAULT);
    if (attr < 0) {
        return false;
    }

    space = H5Aget_space(attr);
    if (space >= 0) {
        good = H5Sget_simple_extent_npoints(space) == 1 &&
               H5Aread(attr, H5T_NATIVE_UINT64, &value) >= 0;
        H5Sclose(space);
    }
    H5Aclose(attr);
    if (good) {
        *value_p = value;
    }

    return good;
}

bool hdf5_read_table(hid_t file, const char *name, size_t size, uint64_t most,
                     void **data_p, uint64_t *num_p, uint64_t *offset_p)
{
    hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT);
    hid_t space = H5I_INVALID_HID, type = H5I_INVALID_HID;
    hssize_t num = -1;
    bool good;

    if (dataset >= 0) {
        space = H5Dget_space(dataset);
        type = H5Dget_type(dataset); /* so that nothing is converted */
        num = (space >= 0) ? H5Sget_simple_extent_npoints(space) : -1;
    }
    good = type >= 0 && num >= 0 && H5Tget_size(type) == size &&
           (uint64_t)num <= most / size;
    if (good && data_p != NULL) {
        *data_p = calloc((size_t)num + 1, size);
        good = *data_p != NULL &&
               (num == 0 || H5Dread(dataset, type, H5S_ALL, H5S_ALL,
                                    H5P_DEFAULT, *data_p) >= 0);
    }
    if (good) {
        *num_p = (uint64_t)num;
        if (offset_p != NULL && num > 0) {
            *offset_p = H5Dget_offset(dataset);
        }
    }
    if (type >= 0) {
        H5Tclose(type);
    }
    if (space >= 0) {
        H5Sclose(space);
    }
    if (dataset >= 0) {
        H5Dclose(dataset);
    }

    return good;
}
