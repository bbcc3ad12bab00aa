#include "config.h"

#include "ckpt/span.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "ckpt/files.h"
#include "lib/util/check.h"
#include "lib/util/crc.h"
#include "lib/util/crew.h"
#include "lib/util/io.h"

#define BUFFER    (256u << 10) /* of each thread */
#define JOBS_MOST 8

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

/* --- What passes by ------------------------------------------------------- */

void span_pass(engine_sums_t *sums, const catalog_t *cat,
               const catalog_piece_t *piece, uint64_t offset, const void *data,
               uint64_t bytes)
{
    const catalog_span_t *span = span_of_piece(cat, piece);
    uint64_t behind;

    if (span != NULL) {
        behind = span->offset + span->bytes - offset - bytes;
        atomic_fetch_xor(&sums->xors[span - cat->spans],
                         crc32_zip_join(crc32_zip(0, data, bytes), 0, behind));
        atomic_fetch_add(&sums->passed[span - cat->spans], bytes);
    }
}

void span_drop_passed(const catalog_t *cat, const engine_sums_t *sums,
                      bool *wanted)
{
    for (uint64_t s = 0; s < cat->num_spans; s++) {
        wanted[s] = wanted[s] && (sums->passed[s] != cat->spans[s].bytes ||
                                  sums->xors[s] != cat->spans[s].crc32);
    }
}

/* --- Checking ------------------------------------------------------------- */

typedef struct {
    const catalog_t *cat;
    const bool *wanted;
    span_mismatch_f mismatch;
    void *arg;
    files_t *files;
    pthread_mutex_t lock; /* over what follows */
    uint64_t next, bytes;
    fsdp_status_t status; /* of the first that failed */
    fsdp_error_t err;
} check_t;

/* Under the lock: the next span, NULL at the end, which a failure is too. */
static const catalog_span_t *take(check_t *check)
{
    while (check->status == FSDP_OK && check->next < check->cat->num_spans) {
        uint64_t s = check->next++;

        if (check->wanted == NULL || check->wanted[s]) {
            return &check->cat->spans[s];
        }
    }

    return NULL;
}

static void work(void *arg, uint32_t number)
{
    check_t *check = arg;
    char *buffer = malloc(BUFFER);
    const catalog_span_t *span;
    fsdp_status_t status;
    fsdp_error_t err;

    (void)number;
    pthread_mutex_lock(&check->lock);
    while ((span = take(check)) != NULL) {
        pthread_mutex_unlock(&check->lock);
        status = (buffer != NULL)
                     ? check_one(check->cat, check->files, span, buffer,
                                 check->mismatch, check->arg, &err)
                     : fsdp_error_set(&err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                                      check->cat->path);
        pthread_mutex_lock(&check->lock);
        check->bytes += span->bytes;
        if (status != FSDP_OK && check->status == FSDP_OK) {
            check->status = status;
            check->err = err;
        }
    }
    pthread_mutex_unlock(&check->lock);
    free(buffer);
}

fsdp_status_t span_check(const catalog_t *cat, const bool *wanted,
                         uint32_t jobs, span_mismatch_f mismatch, void *arg,
                         uint64_t *bytes_p, fsdp_error_t *err)
{
    check_t check = {.cat = cat,
                     .wanted = wanted,
                     .mismatch = mismatch,
                     .arg = arg,
                     .lock = PTHREAD_MUTEX_INITIALIZER};
    fsdp_status_t status;

    if (jobs == 0 || jobs > JOBS_MOST) {
        jobs = JOBS_MOST;
    }
    FSDP_TRY(files_open(cat, NULL, O_RDONLY, &check.files, err));
    crew_run((jobs < cat->num_spans) ? jobs : (uint32_t)cat->num_spans, work,
             &check);
    pthread_mutex_destroy(&check.lock);

    *bytes_p += check.bytes;
    status = check.status;
    if (status != FSDP_OK && err != NULL) {
        *err = check.err;
    }
    return files_close(check.files, status, err);
}
