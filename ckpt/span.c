#include "config.h"

#include "ckpt/span.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "ckpt/files.h"
#include "lib/util/check.h"
#include "lib/util/crc.h"
#include "lib/util/io.h"

#define BUFFER (1u << 20)

fsdp_status_t span_add_storages(catalog_t *cat, uint32_t file,
                                const torch_file_t *from, fsdp_error_t *err)
{
    for (uint32_t i = 0; i < from->num_storages; i++) {
        const torch_storage_t *storage = &from->storages[i];
        const catalog_span_t span = {.offset = storage->offset,
                                     .bytes = storage->size,
                                     .file = file,
                                     .crc32 = storage->crc32};

        if (storage->has_crc) {
            FSDP_TRY(catalog_add_span(cat, &span, err));
        }
    }

    return FSDP_OK;
}

const catalog_span_t *span_of_piece(const catalog_t *cat,
                                    const catalog_piece_t *piece)
{
    uint64_t lo = 0, hi = cat->num_spans, bytes;
    const catalog_span_t *span;

    /* The last one that does not begin behind the piece. */
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;

        span = &cat->spans[mid];
        if (span->file < piece->file ||
            (span->file == piece->file && span->offset <= piece->offset)) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    if (lo == 0) {
        return NULL;
    }

    span = &cat->spans[lo - 1];
    bytes = catalog_piece_bytes(cat, piece);
    return (span->file == piece->file &&
            piece->offset - span->offset <= span->bytes &&
            bytes <= span->bytes - (piece->offset - span->offset))
               ? span
               : NULL;
}

static fsdp_status_t check_one(const catalog_t *cat, files_t *files,
                               const catalog_span_t *span, char *buffer,
                               span_mismatch_f mismatch, void *arg,
                               fsdp_error_t *err)
{
    const char *path = files_path(files, span->file);
    fsdp_status_t status = FSDP_OK;
    uint32_t crc = 0;
    int fd;

    FSDP_TRY(files_get(files, span->file, &fd, err));
    for (uint64_t done = 0, n; done < span->bytes && status == FSDP_OK;
         done += n) {
        n = (span->bytes - done < BUFFER) ? span->bytes - done : BUFFER;
        status = io_pread(fd, buffer, n, span->offset + done, path, err);
        if (status == FSDP_OK) {
            crc = crc32_zip(crc, buffer, n);
        }
    }
    files_put(files, span->file);
    FSDP_TRY(status);

    if (crc == span->crc32 || (mismatch != NULL && mismatch(cat, span, arg))) {
        return FSDP_OK;
    }
    return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                          "%s: the bytes [%" PRIu64 ", %" PRIu64
                          ") do not have the CRC-32 of their archive: the file "
                          "is damaged",
                          path, span->offset, span->offset + span->bytes);
}

void span_mark(const catalog_t *cat, const bool *used, bool *wanted)
{
    for (uint64_t p = 0; p < cat->num_pieces; p++) {
        const catalog_piece_t *piece = &cat->pieces[p];
        const catalog_span_t *span;

        if (used[piece->tensor]) {
            span = span_of_piece(cat, piece);
            if (span != NULL) {
                wanted[span - cat->spans] = true;
            }
        }
    }
}

void span_keep_part(const catalog_t *cat, bool *wanted, uint32_t rank,
                    uint32_t world)
{
    uint64_t total = 1, before = 0;

    for (uint64_t s = 0; s < cat->num_spans; s++) {
        total += wanted[s] ? cat->spans[s].bytes : 0;
    }
    for (uint64_t s = 0; s < cat->num_spans; s++) {
        if (wanted[s]) {
            wanted[s] =
                (uint32_t)((double)before / (double)total * world) == rank;
            before += cat->spans[s].bytes;
        }
    }
}

fsdp_status_t span_check(const catalog_t *cat, const bool *wanted,
                         span_mismatch_f mismatch, void *arg, uint64_t *bytes_p,
                         fsdp_error_t *err)
{
    char *buffer = malloc(BUFFER);
    fsdp_status_t status = FSDP_OK;
    files_t *files = NULL;

    if (buffer == NULL) {
        status =
            fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", cat->path);
        goto err_free;
    }

    FSDP_TRY_GOTO(files_open(cat, NULL, O_RDONLY, &files, err), err_free);
    for (uint64_t s = 0; s < cat->num_spans && status == FSDP_OK; s++) {
        if (wanted == NULL || wanted[s]) {
            status = check_one(cat, files, &cat->spans[s], buffer, mismatch,
                               arg, err);
            *bytes_p += cat->spans[s].bytes;
        }
    }
err_free:
    status = files_close(files, status, err);
    free(buffer);
    return status;
}
