/*
 * The check of sources that are zip archives: each storage that is a piece,
 * whole, against its CRC-32.  What lies between them was compared when the
 * checkpoint was opened, or is under no checksum.
 */
#include "config.h"

#include "ckpt/verify.h"

#include <inttypes.h>

#include "ckpt/engine.h"
#include "ckpt/span.h"
#include "lib/util/check.h"
#include "lib/util/map.h"

typedef struct {
    verify_t *verify;
    bool *good;
} zip_check_t;

static bool on_mismatch(const catalog_t *cat, uint64_t index, uint64_t block,
                        void *arg)
{
    const catalog_piece_t *piece = &cat->pieces[index];
    zip_check_t *check = arg;

    (void)block;
    check->good[piece->file] = false;
    return verify_find(check->verify,
                       "%s: tensor %s: bytes [%" PRIu64 ", %" PRIu64
                       ") do not have the CRC-32 of their archive",
                       cat->files[piece->file].path,
                       cat->tensors[piece->tensor].name, piece->offset,
                       piece->offset + catalog_piece_bytes(cat, piece)) ==
           FSDP_OK;
}

static bool on_bad_span(const catalog_t *cat, const catalog_span_t *span,
                        void *arg)
{
    zip_check_t *check = arg;

    check->good[span->file] = false;
    return verify_find(check->verify,
                       "%s: bytes [%" PRIu64 ", %" PRIu64
                       ") do not have the CRC-32 of their archive",
                       cat->files[span->file].path, span->offset,
                       span->offset + span->bytes) == FSDP_OK;
}

/* Bytes of files that pieces with a checksum take, those in a span left out;
 * views of one storage count once, and so do those that share an encoded
 * stretch. */
static fsdp_status_t count_checked(const catalog_t *cat, uint64_t *bytes_p,
                                   fsdp_error_t *err)
{
    map_t seen = {0};
    uint64_t there;
    bool done = true;

    *bytes_p = 0;
    for (uint64_t p = 0; p < cat->num_pieces && done; p++) {
        const catalog_piece_t *piece = &cat->pieces[p];
        const catalog_code_t *code = catalog_code(cat, piece);
        const uint64_t place[3] = {piece->file, piece->code,
                                   (code == NULL) ? piece->offset : 0};

        if (piece->crc_first != CATALOG_NONE &&
            span_of_piece(cat, piece) == NULL &&
            !map_get(&seen, place, sizeof(place), &there)) {
            *bytes_p +=
                (code != NULL) ? code->length : catalog_piece_bytes(cat, piece);
            done = map_put(&seen, place, sizeof(place), 0);
        }
    }
    map_free(&seen);
    return done ? FSDP_OK
                : fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                                 cat->path);
}

fsdp_status_t verify_zip(verify_t *verify, const catalog_t *cat, bool *good,
                         fsdp_error_t *err)
{
    zip_check_t check = {verify, good};
    engine_result_t result = {0};
    fsdp_error_t why = {0};
    engine_job_t job = {.mismatch = on_mismatch, .arg = &check};
    uint64_t checked, size = 0;
    fsdp_status_t status;
    plan_t plan;

    FSDP_TRY(count_checked(cat, &checked, err));
    for (uint32_t f = 0; f < cat->num_files; f++) {
        size += cat->files[f].size;
        checked += cat->files[f].checked;
    }
    for (uint64_t s = 0; s < cat->num_spans; s++) {
        checked += cat->spans[s].bytes;
    }
    verify->result.unchecked += (size > checked) ? size - checked : 0;

    FSDP_TRY(plan_check(&plan, cat, NULL, err));
    job.plan = &plan;
    if (verify->engine != NULL) {
        job.options = *verify->engine;
    }
    status = engine_run(&job, &result, &why);
    plan_free(&plan);
    verify->result.bytes += result.bytes_read;
    if (status == FSDP_OK) {
        status = span_check(cat, NULL, on_bad_span, &check,
                            &verify->result.bytes, &why);
    }
    if (verify->stopped) {
        return fsdp_error_set(err, FSDP_ERR_CANCELLED, "the check was stopped");
    }
    return verify_status(verify, status, &why, err);
}
