/*
 * Making a file of a target complete: its checksums.
 */
#include "config.h"

#include "ckpt/engine.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/util/check.h"
#include "lib/util/crc.h"
#include "lib/util/io.h"

/* A stretch of a file whose checksum is known without reading. */
typedef struct {
    uint64_t offset, bytes;
    uint64_t piece; /* CATALOG_NONE: the table of checksums */
} extent_t;

static int by_offset(const void *a, const void *b)
{
    const extent_t *left = a, *right = b;

    return (left->offset > right->offset) - (left->offset < right->offset);
}

/* Continue a checksum with bytes that are read. */
static fsdp_status_t add_gap(int fd, uint64_t from, uint64_t to,
                             const char *path, uint32_t *crc, fsdp_error_t *err)
{
    char buffer[16 << 10];

    while (from < to) {
        size_t size =
            (to - from < sizeof(buffer)) ? (size_t)(to - from) : sizeof(buffer);

        FSDP_TRY(io_pread(fd, buffer, size, from, path, err));
        *crc = crc32c(*crc, buffer, size);
        from += size;
    }

    return FSDP_OK;
}

static uint32_t add_piece(const catalog_t *dst, const catalog_piece_t *piece,
                          uint32_t crc)
{
    for (uint64_t block = 0; block < engine_num_sums(dst, piece); block++) {
        crc = crc32c_join(crc, dst->crcs[piece->crc_first + block],
                          engine_sum_bytes(dst, piece, block));
    }

    return crc;
}

/* The checksum of the whole file: gaps are read, the rest is known. */
static fsdp_status_t sum_file(catalog_t *dst, uint32_t index,
                              const extent_t *extents, uint64_t num, int fd,
                              const char *path, fsdp_error_t *err)
{
    catalog_file_t *file = &dst->files[index];
    uint64_t next = 0;
    uint32_t crc = 0;

    for (uint64_t i = 0; i < num; i++) {
        const extent_t *extent = &extents[i];

        if (extent->offset < next) {
            return fsdp_error_set(err, FSDP_ERR_BAD_STATE,
                                  "%s: two pieces at byte %" PRIu64, path,
                                  extent->offset);
        }
        FSDP_TRY(add_gap(fd, next, extent->offset, path, &crc, err));
        if (extent->piece == CATALOG_NONE) {
            crc = crc32c(crc, dst->crcs + file->crc_first, extent->bytes);
        } else {
            crc = add_piece(dst, &dst->pieces[extent->piece], crc);
        }
        next = extent->offset + extent->bytes;
    }
    FSDP_TRY(add_gap(fd, next, file->size, path, &crc, err));

    file->crc32c = crc;
    file->has_crc = true;
    return FSDP_OK;
}

static fsdp_status_t finish_table(catalog_t *dst, uint32_t index,
                                  const uint64_t *pieces, uint64_t num, int fd,
                                  const char *path, fsdp_error_t *err)
{
    const catalog_file_t *file = &dst->files[index];
    uint64_t table_bytes = file->crc_count * sizeof(*dst->crcs);
    extent_t *extents = calloc(num + 1, sizeof(*extents));
    fsdp_status_t status;

    _Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
                   "tables are written as they lie in memory");
    if (extents == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);
    }

    for (uint64_t i = 0; i < num; i++) {
        const catalog_piece_t *piece = &dst->pieces[pieces[i]];

        extents[i] = (extent_t){.offset = piece->offset,
                                .bytes = catalog_piece_bytes(dst, piece),
                                .piece = pieces[i]};
    }
    if (file->table != 0) {
        extents[num++] = (extent_t){
            .offset = file->table, .bytes = table_bytes, .piece = CATALOG_NONE};
        FSDP_TRY_GOTO(io_pwrite(fd, dst->crcs + file->crc_first, table_bytes,
                                file->table, path, err),
                      err_free);
    }
    if (num > 1) {
        qsort(extents, num, sizeof(*extents), by_offset);
    }
    status = sum_file(dst, index, extents, num, fd, path, err);
err_free:
    free(extents);
    return status;
}

fsdp_status_t engine_finish_file(catalog_t *dst, uint32_t index,
                                 const uint64_t *pieces, uint64_t num,
                                 const char *dir, fsdp_error_t *err)
{
    fsdp_status_t status;
    char *path;
    int fd;

    if (dst->crc_zip ||
        (num > 0 && dst->pieces[pieces[0]].crc_first == CATALOG_NONE)) {
        return FSDP_OK;
    }
    path = io_path("%s/%s", dir, dst->files[index].path);
    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", dir);
    }

    status = io_open(path, O_RDWR, 0, &fd, err);
    if (status == FSDP_OK) {
        status = finish_table(dst, index, pieces, num, fd, path, err);
        close(fd);
    }
    free(path);
    return status;
}
