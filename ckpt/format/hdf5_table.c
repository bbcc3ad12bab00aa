#include "config.h"

#include "ckpt/format/hdf5_table.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/util/check.h"
#include "lib/util/crc.h"
#include "lib/util/io.h"

#define READ_BYTES (1u << 20)

/* Does the file hold something of the tensor, for its own tables? */
static bool belongs(const catalog_t *cat, const catalog_tensor_t *tensor,
                    uint32_t file)
{
    if (file == CATALOG_NONE || (file == 0 && tensor->numel == 0)) {
        return true;
    }

    for (uint32_t i = 0; i < tensor->piece_count; i++) {
        if (cat->pieces[tensor->piece_first + i].file == file) {
            return true;
        }
    }

    return false;
}

/* The tensors of a file in the writer's order; the caller frees them. */
static uint64_t *choose_tensors(const catalog_t *cat, uint32_t file,
                                uint64_t *num_p)
{
    uint64_t *order = malloc((cat->num_tensors + 1) * sizeof(*order));
    uint64_t num = 0;

    if (order == NULL) {
        return NULL;
    }

    memset(order, 0xff, (cat->num_tensors + 1) * sizeof(*order));
    for (uint64_t i = 0; i < cat->num_tensors; i++) {
        if (belongs(cat, &cat->tensors[i], file)) {
            order[cat->tensors[i].order] = i;
        }
    }
    for (uint64_t i = 0; i < cat->num_tensors; i++) {
        if (order[i] != UINT64_MAX) {
            order[num++] = order[i];
        }
    }

    *num_p = num;
    return order;
}

static bool allocate(hdf5_rows_t *rows)
{
    rows->tensors = calloc(rows->num_tensors + 1, sizeof(*rows->tensors));
    rows->pieces = calloc(rows->num_pieces + 1, sizeof(*rows->pieces));
    rows->names = calloc(rows->num_names + 1, 1);
    rows->dims = calloc(rows->num_dims + 1, sizeof(*rows->dims));

    return rows->tensors != NULL && rows->pieces != NULL &&
           rows->names != NULL && rows->dims != NULL;
}

void hdf5_rows_free(hdf5_rows_t *rows)
{
    free(rows->tensors);
    free(rows->pieces);
    free(rows->names);
    free(rows->dims);
    memset(rows, 0, sizeof(*rows));
}

static void append_pieces(const catalog_t *cat, const catalog_tensor_t *tensor,
                          uint32_t file, hdf5_rows_t *rows,
                          hdf5_tensor_row_t *row)
{
    for (uint32_t i = 0; i < tensor->piece_count; i++) {
        const catalog_piece_t *piece = &cat->pieces[tensor->piece_first + i];

        if (file != CATALOG_NONE && piece->file != file) {
            continue;
        }
        rows->pieces[rows->num_pieces++] = (hdf5_piece_row_t){
            .start = piece->first,
            .count = piece->count,
            .offset = piece->offset,
            .tensor = (uint32_t)(row - rows->tensors),
            .file = piece->file,
            .crc_first = piece->crc_first - cat->files[piece->file].crc_first,
            .path = piece->rank,
        };
        row->piece_count++;
    }
}

static void append_tensor(const catalog_t *cat, const catalog_tensor_t *tensor,
                          uint32_t file, hdf5_rows_t *rows)
{
    hdf5_tensor_row_t *row = &rows->tensors[rows->num_tensors++];
    size_t length = strlen(tensor->name);

    *row = (hdf5_tensor_row_t){
        .nelem = tensor->numel,
        .name_off = rows->num_names,
        .dim_off = rows->num_dims,
        .piece_first = rows->num_pieces,
        .name_len = (uint16_t)length,
        .rank = tensor->ndim,
        .dtype = tensor->dtype,
    };
    memcpy(rows->names + rows->num_names, tensor->name, length);
    rows->num_names += length;
    if (tensor->ndim > 0) {
        memcpy(rows->dims + rows->num_dims, cat->dims + tensor->dims_first,
               tensor->ndim * sizeof(*rows->dims));
    }
    rows->num_dims += tensor->ndim;
    append_pieces(cat, tensor, file, rows, row);
}

fsdp_status_t hdf5_rows_make(const catalog_t *cat, uint32_t file,
                             hdf5_rows_t *rows_p, fsdp_error_t *err)
{
    hdf5_rows_t rows = {0};
    uint64_t *order, num = 0;

    order = choose_tensors(cat, file, &num);
    if (order == NULL) {
        goto err_memory;
    }

    for (uint64_t i = 0; i < num; i++) {
        const catalog_tensor_t *tensor = &cat->tensors[order[i]];

        rows.num_pieces += tensor->piece_count;
        rows.num_names += strlen(tensor->name);
        rows.num_dims += tensor->ndim;
    }
    rows.num_tensors = num;
    if (!allocate(&rows)) {
        goto err_memory;
    }

    rows.num_tensors = rows.num_pieces = rows.num_names = rows.num_dims = 0;
    for (uint64_t i = 0; i < num; i++) {
        append_tensor(cat, &cat->tensors[order[i]], file, &rows);
    }
    free(order);

    *rows_p = rows;
    return FSDP_OK;

err_memory:
    free(order);
    hdf5_rows_free(&rows);
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                          "no memory for the tables of %" PRIu64 " pieces",
                          cat->num_pieces);
}

fsdp_status_t hdf5_rows_add(const hdf5_rows_t *rows, hdf5_file_t *file,
                            manifest_index_t *index_p, fsdp_error_t *err)
{
    manifest_index_t unused, *index = (index_p != NULL) ? index_p : &unused;

    index->tensors.count = rows->num_tensors;
    index->pieces.count = rows->num_pieces;
    index->names.count = rows->num_names;
    index->dims.count = rows->num_dims;

    FSDP_TRY(hdf5_file_add_table(file, "tensors", HDF5_TABLE_TENSOR,
                                 rows->num_tensors, rows->tensors,
                                 &index->tensors.offset, err));
    FSDP_TRY(hdf5_file_add_table(file, "pieces", HDF5_TABLE_PIECE,
                                 rows->num_pieces, rows->pieces,
                                 &index->pieces.offset, err));
    FSDP_TRY(hdf5_file_add_table(file, "names", HDF5_TABLE_U8, rows->num_names,
                                 rows->names, &index->names.offset, err));
    return hdf5_file_add_table(file, "dims", HDF5_TABLE_U64, rows->num_dims,
                               rows->dims, &index->dims.offset, err);
}

/* The whole file has the size and checksum of the manifest. */
static fsdp_status_t check_file(int fd, const char *path,
                                const manifest_index_t *index,
                                fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;
    uint32_t crc = 0;
    struct stat st;
    char *buf;

    if (fstat(fd, &st) != 0) {
        return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot stat: %m", path);
    }
    if ((uint64_t)st.st_size != index->size) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: has %lld bytes instead of %" PRIu64, path,
                              (long long)st.st_size, index->size);
    }

    buf = malloc(READ_BYTES);
    if (buf == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);
    }

    for (uint64_t at = 0; status == FSDP_OK && at < index->size;) {
        uint64_t left = index->size - at;
        size_t n = (left < READ_BYTES) ? (size_t)left : READ_BYTES;

        status = io_pread(fd, buf, n, at, path, err);
        crc = crc32c(crc, buf, n);
        at += n;
    }
    free(buf);
    if (status == FSDP_OK && crc != index->crc32c) {
        status = fsdp_error_set(
            err, FSDP_ERR_CORRUPT,
            "%s: its CRC-32C is %08" PRIx32 " instead of %08" PRIx32
            ": it was altered; fsdp-verify says what is intact",
            path, crc, index->crc32c);
    }

    return status;
}

fsdp_status_t hdf5_rows_read(const char *path, const manifest_index_t *index,
                             hdf5_rows_t *rows_p, fsdp_error_t *err)
{
    hdf5_rows_t rows = {
        .num_tensors = index->tensors.count,
        .num_pieces = index->pieces.count,
        .num_names = index->names.count,
        .num_dims = index->dims.count,
    };
    fsdp_status_t status;
    int fd;

    status = io_open(path, O_RDONLY, 0, &fd, err);
    if (status == FSDP_ERR_NOT_FOUND) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: missing, though the manifest lists it",
                              path);
    }
    FSDP_TRY(status);

    FSDP_TRY_GOTO(check_file(fd, path, index, err), err_close);
    if (!allocate(&rows)) {
        status = fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);
        goto err_rows;
    }

    FSDP_TRY_GOTO(io_pread(fd, rows.tensors,
                           rows.num_tensors * sizeof(*rows.tensors),
                           index->tensors.offset, path, err),
                  err_rows);
    FSDP_TRY_GOTO(io_pread(fd, rows.pieces,
                           rows.num_pieces * sizeof(*rows.pieces),
                           index->pieces.offset, path, err),
                  err_rows);
    FSDP_TRY_GOTO(io_pread(fd, rows.names, rows.num_names, index->names.offset,
                           path, err),
                  err_rows);
    FSDP_TRY_GOTO(io_pread(fd, rows.dims, rows.num_dims * sizeof(*rows.dims),
                           index->dims.offset, path, err),
                  err_rows);
    close(fd);

    *rows_p = rows;
    return FSDP_OK;

err_rows:
    hdf5_rows_free(&rows);
err_close:
    close(fd);
    return status;
}

bool hdf5_row_fits(const hdf5_rows_t *rows, const hdf5_tensor_row_t *row,
                   uint64_t next_piece)
{
    return row->name_len > 0 && row->name_off <= rows->num_names &&
           row->name_len <= rows->num_names - row->name_off &&
           memchr(rows->names + row->name_off, '\0', row->name_len) == NULL &&
           row->rank <= FSDP_CKPT_MAX_NDIM && row->dim_off <= rows->num_dims &&
           row->rank <= rows->num_dims - row->dim_off &&
           dtype_valid(row->dtype) && row->piece_first == next_piece &&
           row->piece_count <= rows->num_pieces - next_piece;
}
