#define _GNU_SOURCE
#include "config.h"

#include "ckpt/format/hdf5_check.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ckpt/format/hdf5_apart.h"
#include "ckpt/format/hdf5_name.h"
#include "ckpt/format/hdf5_table.h"
#include "ckpt/format/hdf5_util.h"
#include "ckpt/format/hdf5_write.h"
#include "lib/util/check.h"
#include "lib/util/io.h"

#define SCALAR_MOST 16 /* bytes of an element of any type */

/* What a check works on.  A failing HDF5 call is a finding: the file's bytes
 * are what was written, so what HDF5 cannot use was written wrong. */
typedef struct {
    const catalog_t *cat;
    uint32_t number;  /* of a shard file, or CATALOG_NONE for the index */
    const char *name; /* of the file, in findings */
    char *path;
    FILE *lines; /* findings, each with a '\0' behind it */
    hdf5_reader_t reader;
    hdf5_types_t types;
    fsdp_error_t *err;
} check_t;

static fsdp_status_t end_line(const check_t *check, fsdp_error_t *err)
{
    fputc('\0', check->lines);
    return (fflush(check->lines) == 0)
               ? FSDP_OK
               : fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                "%s: no memory for what is wrong with it: %m",
                                check->path);
}

__attribute__((format(printf, 2, 3))) static fsdp_status_t find(
    const check_t *check, const char *fmt, ...)
{
    va_list ap;

    if (check->reader.frame.error != 0) {
        return FSDP_ERR_IO; /* not the file's fault: hdf5_close() says more */
    }

    fprintf(check->lines, "%s: ", check->name);
    va_start(ap, fmt);
    vfprintf(check->lines, fmt, ap);
    va_end(ap);

    return end_line(check, check->err);
}

/* --- Datasets ------------------------------------------------------------- */

/* Whether a dataset has the tensor's type, and @a dims as its shape. */
static bool looks_like(const check_t *check, hid_t dataset, uint8_t dtype,
                       uint32_t ndim, const uint64_t *dims)
{
    hid_t type = H5Dget_type(dataset), space = H5Dget_space(dataset);
    hsize_t have[H5S_MAX_RANK];
    bool raw = hdf5_type_is_raw((fsdp_dtype_t)dtype);
    bool same = type >= 0 && space >= 0 &&
                H5Tequal(type, raw ? check->types.ids[FSDP_DTYPE_U8]
                                   : check->types.ids[dtype]) > 0;

    /* Raw types are bytes: their shape says how many. */
    if (same && !raw) {
        same = H5Sget_simple_extent_ndims(space) == (int)ndim &&
               H5Sget_simple_extent_dims(space, have, NULL) == (int)ndim;
        for (uint32_t d = 0; same && d < ndim; d++) {
            same = have[d] == dims[d];
        }
    }
    if (space >= 0) {
        H5Sclose(space);
    }
    if (type >= 0) {
        H5Tclose(type);
    }

    return same;
}

/* --- Shard files ---------------------------------------------------------- */

/* Read a table as it lies in the file and compare it.
 * @return whether it is the same. */
static bool same_table(const check_t *check, const char *name, size_t size,
                       uint64_t num, const void *want)
{
    void *have = NULL;
    uint64_t found;
    bool same = hdf5_read_table(check->reader.file, name, size, num * size,
                                &have, &found, NULL) &&
                found == num &&
                (num == 0 || memcmp(have, want, num * size) == 0);

    free(have);
    return same;
}

/* A file's tables are what would be written of the index now: the same
 * tensors, and the same pieces, no more and no less. */
static fsdp_status_t check_tables(const check_t *check, uint32_t file)
{
    hdf5_rows_t rows;
    bool same;

    FSDP_TRY(hdf5_rows_make(check->cat, file, &rows, check->err));
    same = same_table(check, "tensors", sizeof(*rows.tensors), rows.num_tensors,
                      rows.tensors) &&
           same_table(check, "names", 1, rows.num_names, rows.names) &&
           same_table(check, "dims", sizeof(*rows.dims), rows.num_dims,
                      rows.dims) &&
           same_table(check, "pieces", sizeof(*rows.pieces), rows.num_pieces,
                      rows.pieces);
    hdf5_rows_free(&rows);

    return same ? FSDP_OK
                : find(check,
                       "its own tables of tensors and pieces are not "
                       "what %s says of it",
                       HDF5_INDEX_NAME);
}

/* The dataset of a piece lies where the index says. */
static fsdp_status_t check_piece(const check_t *check,
                                 const catalog_piece_t *piece)
{
    const catalog_tensor_t *tensor = &check->cat->tensors[piece->tensor];
    fsdp_status_t status = FSDP_OK;
    char *inside, *path;
    hid_t dataset;

    FSDP_TRY(hdf5_path_make(check->cat, tensor->name, HDF5_IN_SHARD, &inside,
                            check->err));
    path = io_path("rank-%05" PRIu32 "/%s", piece->rank, inside);
    free(inside);
    if (path == NULL) {
        return fsdp_error_set(check->err, FSDP_ERR_NO_MEMORY, "no memory");
    }

    dataset = H5Dopen2(check->reader.file, path, H5P_DEFAULT);
    if (dataset < 0) {
        status = find(check, "has no dataset /%s", path);
    } else if (!looks_like(check, dataset, tensor->dtype, tensor->ndim > 0,
                           &piece->count)) {
        status =
            find(check,
                 "dataset /%s is not the %" PRIu64
                 " elements of type %s that %s says",
                 path, piece->count,
                 fsdp_dtype_name((fsdp_dtype_t)tensor->dtype), HDF5_INDEX_NAME);
    } else if (H5Dget_offset(dataset) != piece->offset) {
        status =
            find(check,
                 "dataset /%s lies at byte %" PRIuHADDR ", not at %" PRIu64
                 " as %s says",
                 path, H5Dget_offset(dataset), piece->offset, HDF5_INDEX_NAME);
    }
    if (dataset >= 0) {
        H5Dclose(dataset);
    }
    free(path);

    return status;
}

static fsdp_status_t check_shard(const check_t *check)
{
    const catalog_t *cat = check->cat;
    uint32_t file = check->number;

    FSDP_TRY(check_tables(check, file));
    for (uint64_t p = 0; p < cat->num_pieces; p++) {
        if (cat->pieces[p].file == file) {
            FSDP_TRY(check_piece(check, &cat->pieces[p]));
        }
    }

    return FSDP_OK;
}

/* --- The index ------------------------------------------------------------ */

/* The element of a scalar, from its shard file. */
static fsdp_status_t read_scalar(const check_t *check,
                                 const catalog_tensor_t *tensor, void *value)
{
    const catalog_piece_t *piece = &check->cat->pieces[tensor->piece_first];
    char *path = catalog_file_path(check->cat, piece->file);
    fsdp_status_t status;
    int fd;

    if (path == NULL) {
        return fsdp_error_set(check->err, FSDP_ERR_NO_MEMORY, "no memory");
    }

    status = io_open(path, O_RDONLY, 0, &fd, check->err);
    if (status == FSDP_OK) {
        status =
            io_pread(fd, value, tensor->bytes, piece->offset, path, check->err);
        close(fd);
    }
    free(path);

    return status;
}

static fsdp_status_t check_scalar(const check_t *check, hid_t dataset,
                                  const catalog_tensor_t *tensor)
{
    unsigned char have[SCALAR_MOST] = {0}, want[SCALAR_MOST] = {0};
    hid_t type = H5Dget_type(dataset);
    bool same;

    FSDP_TRY(read_scalar(check, tensor, want));
    same = type >= 0 && H5Tget_size(type) <= sizeof(have) &&
           H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, have) >= 0 &&
           memcmp(have, want, tensor->bytes) == 0;
    if (type >= 0) {
        H5Tclose(type);
    }

    return same ? FSDP_OK
                : find(check, "its copy of the scalar %s is not what %s holds",
                       tensor->name,
                       check->cat
                           ->files[check->cat->pieces[tensor->piece_first].file]
                           .path);
}

static bool is_listed(const catalog_t *cat, const char *name)
{
    for (uint32_t i = 0; i < cat->num_files; i++) {
        if (strcmp(cat->files[i].path, name) == 0) {
            return true;
        }
    }

    return false;
}

/* Other programs see all of the tensor, and nothing else. */
static fsdp_status_t check_virtual(const check_t *check, hid_t dataset,
                                   const catalog_tensor_t *tensor)
{
    hid_t plist = H5Dget_create_plist(dataset);
    bool good = plist >= 0 && H5Pget_layout(plist) == H5D_VIRTUAL;
    size_t count = 0;
    char name[256];

    good = good && H5Pget_virtual_count(plist, &count) >= 0 &&
           count >= tensor->piece_count;
    for (size_t i = 0; good && i < count; i++) {
        ssize_t size = H5Pget_virtual_filename(plist, i, name, sizeof(name));

        good = size > 0 && size < (ssize_t)sizeof(name) &&
               is_listed(check->cat, name);
    }
    if (plist >= 0) {
        H5Pclose(plist);
    }

    return good ? FSDP_OK
                : find(check, "does not show tensor %s whole", tensor->name);
}

static fsdp_status_t check_whole(const check_t *check, const char *name,
                                 const catalog_tensor_t *tensor)
{
    const catalog_t *cat = check->cat;
    fsdp_status_t status = FSDP_OK;
    hid_t dataset;
    char *path;

    FSDP_TRY(hdf5_path_make(cat, name, HDF5_IN_INDEX, &path, check->err));
    dataset = H5Dopen2(check->reader.file, path, H5P_DEFAULT);
    if (dataset < 0) {
        status = find(check, "has no dataset /%s", path);
    } else if (!looks_like(check, dataset, tensor->dtype, tensor->ndim,
                           cat->dims + tensor->dims_first)) {
        status =
            find(check, "dataset /%s has another type or shape than tensor %s",
                 path, tensor->name);
    } else if (tensor->ndim == 0) {
        status = check_scalar(check, dataset, tensor);
    } else if (tensor->numel > 0) {
        status = check_virtual(check, dataset, tensor);
    }
    if (dataset >= 0) {
        H5Dclose(dataset);
    }
    free(path);

    return status;
}

static fsdp_status_t check_index(const check_t *check)
{
    const catalog_t *cat = check->cat;

    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        FSDP_TRY(check_whole(check, cat->tensors[t].name, &cat->tensors[t]));
    }
    for (uint64_t a = 0; a < cat->num_aliases; a++) {
        FSDP_TRY(check_whole(check, cat->aliases[a].name,
                             &cat->tensors[cat->aliases[a].tensor]));
    }

    return FSDP_OK;
}

/* --- Both ----------------------------------------------------------------- */

static fsdp_status_t check_inside(void *arg, fsdp_error_t *err)
{
    check_t *check = arg;
    fsdp_status_t status;

    check->err = err;
    status = hdf5_open(&check->reader, check->path, true, err);
    if (status == FSDP_ERR_CORRUPT) {
        return find(check, "HDF5 cannot open it");
    }
    FSDP_TRY(status);

    status = hdf5_types_open(&check->types, err);
    if (status == FSDP_OK) {
        status = (check->number == CATALOG_NONE) ? check_index(check)
                                                 : check_shard(check);
    }
    hdf5_types_close(&check->types);

    return hdf5_close(&check->reader, status, err);
}

/* Tell the findings. */
static fsdp_status_t tell(FILE *lines, hdf5_check_f find_f, void *arg,
                          fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;
    char *line = NULL;
    size_t size = 0;

    rewind(lines);
    while (status == FSDP_OK && getdelim(&line, &size, '\0', lines) > 0) {
        status = find_f(line, arg);
    }
    free(line);

    return (status == FSDP_OK)
               ? FSDP_OK
               : fsdp_error_set(err, status, "the check was stopped");
}

/* The file may be anything, and HDF5 not survive it. */
static fsdp_status_t check_apart(check_t *check, fsdp_error_t *err)
{
    fsdp_status_t status;
    fsdp_error_t why;
    hdf5_guard_t guard;

    hdf5_enter(&guard);
    status = hdf5_apart(check->path, check_inside, check, &why);
    hdf5_leave(&guard);

    if (status == FSDP_ERR_CORRUPT) {
        fputs(why.text, check->lines);
        return end_line(check, err);
    }
    if (status != FSDP_OK && err != NULL) {
        *err = why;
    }
    return status;
}

static fsdp_status_t check_file(check_t *check, hdf5_check_f find_f, void *arg,
                                fsdp_error_t *err)
{
    int fd = memfd_create("findings", MFD_CLOEXEC);
    fsdp_status_t status;

    check->path = io_path("%s/%s", check->cat->root, check->name);
    check->lines = (fd < 0) ? NULL : fdopen(fd, "w+");
    if (check->path == NULL || check->lines == NULL) {
        status = fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory: %m",
                                check->cat->root);
        goto done;
    }

    FSDP_TRY_GOTO(check_apart(check, err), done);
    status = tell(check->lines, find_f, arg, err);
done:
    if (check->lines != NULL) {
        fclose(check->lines);
    } else if (fd >= 0) {
        close(fd);
    }
    free(check->path);
    return status;
}

fsdp_status_t hdf5_check_shard(const catalog_t *cat, uint32_t file,
                               hdf5_check_f find_f, void *arg,
                               fsdp_error_t *err)
{
    check_t check = {.cat = cat, .number = file, .name = cat->files[file].path};

    return check_file(&check, find_f, arg, err);
}

fsdp_status_t hdf5_check_index(const catalog_t *cat, hdf5_check_f find_f,
                               void *arg, fsdp_error_t *err)
{
    check_t check = {
        .cat = cat, .number = CATALOG_NONE, .name = HDF5_INDEX_NAME};

    /* So many are not shown whole (doc/checkpoint-format.md). */
    return (cat->num_pieces > HDF5_VIRTUAL_MOST)
               ? FSDP_OK
               : check_file(&check, find_f, arg, err);
}
