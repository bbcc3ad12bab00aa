#include "config.h"

#include "ckpt/format/hdf5_trailer.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/util/check.h"
#include "lib/util/crc.h"
#include "lib/util/io.h"

#define READ_BYTES (1u << 20)

/* The last bytes of the file.  Before it: HDF5's file, the table, the rows. */
typedef struct {
    uint64_t hdf5_size;
    uint64_t table;
    uint64_t num_crcs;
    uint64_t rows;
    uint64_t num_rows;
    uint32_t gaps_crc32c; /* HDF5's own bytes, end to end */
    uint32_t rows_crc32c;
    uint32_t version;
    uint32_t crc32c; /* of the footer up to here */
    char magic[8];
} footer_t;

_Static_assert(sizeof(footer_t) == 64, "as on disk");
_Static_assert(sizeof(hdf5_trailer_row_t) == 24, "as on disk");

static const char magic[8] = "fsdp-h5\n";

static uint32_t footer_crc(const footer_t *footer)
{
    return crc32c(0, footer, offsetof(footer_t, crc32c));
}

static int compare_rows(const void *a, const void *b)
{
    uint64_t x = ((const hdf5_trailer_row_t *)a)->offset;
    uint64_t y = ((const hdf5_trailer_row_t *)b)->offset;

    return (x > y) - (x < y);
}

static hdf5_trailer_row_t *make_rows(const catalog_t *cat,
                                     const catalog_file_t *file)
{
    hdf5_trailer_row_t *rows = calloc(cat->num_pieces + 1, sizeof(*rows));

    if (rows == NULL) {
        return NULL;
    }

    for (uint64_t i = 0; i < cat->num_pieces; i++) {
        const catalog_piece_t *piece = &cat->pieces[i];

        rows[i] = (hdf5_trailer_row_t){
            .offset = piece->offset,
            .size = catalog_piece_bytes(cat, piece),
            .crc_first = piece->crc_first - file->crc_first,
        };
    }
    qsort(rows, cat->num_pieces, sizeof(*rows), compare_rows);

    return rows;
}

fsdp_status_t hdf5_trailer_append(catalog_t *cat, uint32_t file,
                                  const char *path, uint32_t gaps_crc32c,
                                  fsdp_error_t *err)
{
    catalog_file_t *entry = &cat->files[file];
    hdf5_trailer_row_t *rows = make_rows(cat, entry);
    size_t rows_size = cat->num_pieces * sizeof(*rows);
    fsdp_status_t status;
    footer_t footer = {
        .hdf5_size = entry->size,
        .table = (entry->size + 7) / 8 * 8,
        .num_crcs = entry->crc_count,
        .num_rows = cat->num_pieces,
        .gaps_crc32c = gaps_crc32c,
        .version = 1,
    };
    int fd;

    if (rows == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);
    }

    footer.rows = footer.table + (4ull * footer.num_crcs + 7) / 8 * 8;
    footer.rows_crc32c = crc32c(0, rows, rows_size);
    memcpy(footer.magic, magic, sizeof(magic));
    footer.crc32c = footer_crc(&footer);

    FSDP_TRY_GOTO(io_open(path, O_WRONLY, 0, &fd, err), err_rows);
    status = io_pwrite(fd, rows, rows_size, footer.rows, path, err);
    if (status == FSDP_OK) {
        status = io_pwrite(fd, &footer, sizeof(footer), footer.rows + rows_size,
                           path, err);
    }
    status = io_close(fd, status, path, err);
    if (status == FSDP_OK) {
        entry->table = footer.table;
        entry->size = footer.rows + rows_size + sizeof(footer);
    }
err_rows:
    free(rows);
    return status;
}

static fsdp_status_t altered(const char *path, const char *what,
                             fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                          "%s: %s do not have their checksum: the file was "
                          "altered",
                          path, what);
}

/* Are all places those that hdf5_trailer_append() would choose? */
static bool footer_fits(const footer_t *footer, uint64_t size)
{
    return footer->hdf5_size <= size && footer->num_crcs <= size / 4 &&
           footer->num_rows <= size / sizeof(hdf5_trailer_row_t) &&
           footer->table == (footer->hdf5_size + 7) / 8 * 8 &&
           footer->rows == footer->table + (4 * footer->num_crcs + 7) / 8 * 8 &&
           size == footer->rows +
                       footer->num_rows * sizeof(hdf5_trailer_row_t) +
                       sizeof(*footer);
}

static fsdp_status_t add_stretch(int fd, uint64_t from, uint64_t to, char *buf,
                                 uint32_t *crc, const char *path,
                                 fsdp_error_t *err)
{
    while (from < to) {
        size_t n = (to - from < READ_BYTES) ? (size_t)(to - from) : READ_BYTES;

        FSDP_TRY(io_pread(fd, buf, n, from, path, err));
        *crc = crc32c(*crc, buf, n);
        from += n;
    }

    return FSDP_OK;
}

/* HDF5's own bytes: everything before its end that is in no row. */
static fsdp_status_t check_gaps(int fd, const footer_t *footer,
                                const hdf5_trailer_row_t *rows,
                                const char *path, fsdp_error_t *err)
{
    char *buf = malloc(READ_BYTES);
    fsdp_status_t status = FSDP_OK;
    uint64_t at = 0;
    uint32_t crc = 0;

    if (buf == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);
    }

    for (uint64_t i = 0; status == FSDP_OK && i <= footer->num_rows; i++) {
        bool last = i == footer->num_rows;
        uint64_t next = last ? footer->hdf5_size : rows[i].offset;

        if (next < at || next > footer->hdf5_size ||
            (!last && rows[i].size > footer->hdf5_size - next)) {
            status = altered(path, "the rows of its trailer", err);
        } else {
            status = add_stretch(fd, at, next, buf, &crc, path, err);
            at = last ? next : next + rows[i].size;
        }
    }
    free(buf);
    if (status == FSDP_OK && crc != footer->gaps_crc32c) {
        status = altered(path, "HDF5's own bytes", err);
    }

    return status;
}

static fsdp_status_t read_rows(int fd, const footer_t *footer, const char *path,
                               hdf5_trailer_t *trailer_p, fsdp_error_t *err)
{
    size_t size = footer->num_rows * sizeof(*trailer_p->rows);
    hdf5_trailer_row_t *rows = malloc(size + 1);
    fsdp_status_t status;

    if (rows == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);
    }

    FSDP_TRY_GOTO(io_pread(fd, rows, size, footer->rows, path, err), err_rows);
    if (crc32c(0, rows, size) != footer->rows_crc32c) {
        status = altered(path, "the rows of its trailer", err);
        goto err_rows;
    }
    FSDP_TRY_GOTO(check_gaps(fd, footer, rows, path, err), err_rows);

    *trailer_p = (hdf5_trailer_t){footer->table, footer->num_crcs, rows,
                                  footer->num_rows};
    return FSDP_OK;

err_rows:
    free(rows);
    return status;
}

fsdp_status_t hdf5_trailer_read(const char *path, uint64_t size,
                                hdf5_trailer_t *trailer_p, fsdp_error_t *err)
{
    fsdp_status_t status;
    footer_t footer;
    int fd;

    *trailer_p = (hdf5_trailer_t){0};
    if (size < sizeof(footer)) {
        return FSDP_OK;
    }

    FSDP_TRY(io_open(path, O_RDONLY, 0, &fd, err));
    status =
        io_pread(fd, &footer, sizeof(footer), size - sizeof(footer), path, err);
    if (status == FSDP_OK && memcmp(footer.magic, magic, sizeof(magic)) == 0) {
        status = (footer.version == 1 && footer.crc32c == footer_crc(&footer) &&
                  footer_fits(&footer, size))
                     ? read_rows(fd, &footer, path, trailer_p, err)
                     : altered(path, "the last bytes", err);
    }
    close(fd);

    return status;
}

static int compare_offset(const void *key, const void *member)
{
    uint64_t x = *(const uint64_t *)key;
    uint64_t y = ((const hdf5_trailer_row_t *)member)->offset;

    return (x > y) - (x < y);
}

const hdf5_trailer_row_t *hdf5_trailer_find(const hdf5_trailer_t *trailer,
                                            uint64_t offset)
{
    if (trailer->num_rows == 0) {
        return NULL;
    }

    return bsearch(&offset, trailer->rows, trailer->num_rows,
                   sizeof(*trailer->rows), compare_offset);
}
