/*
 * The check of sources that are zip archives: each storage that is a piece,
 * whole, against its CRC-32.  What lies between them was compared when the
 * checkpoint was opened, or is under no checksum.  And of what is encoded.
 */
#include "config.h"

#include "ckpt/verify.h"

#include <inttypes.h>
#include <stdlib.h>

#include "ckpt/engine.h"
#include "ckpt/span.h"
#include "lib/util/check.h"
#include "lib/util/map.h"

typedef struct {
    verify_t *verify;
    bool *good;
} piece_check_t;

static bool on_mismatch(const catalog_t *cat, uint64_t index, uint64_t block,
                        void *arg)
{
    const catalog_piece_t *piece = &cat->pieces[index];
    const catalog_code_t *code = catalog_code(cat, piece);
    piece_check_t *check = arg;

    (void)block;
    if (code != NULL) {
        check->good[code->file] = false;
        return verify_find(check->verify,
                           "%s: tensor %s: the encoded bytes [%" PRIu64
                           ", %" PRIu64 ") do not become what was stored",
                           cat->files[code->file].path,
                           cat->tensors[piece->tensor].name, code->offset,
                           code->offset + code->length) == FSDP_OK;
    }
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
    piece_check_t *check = arg;

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

/* Read and decode what plan_check() says. */
static fsdp_status_t check_pieces(piece_check_t *check, const catalog_t *cat,
                                  const bool *wanted, fsdp_error_t *why)
{
    verify_t *verify = check->verify;
    engine_job_t job = {.mismatch = on_mismatch, .arg = check};
    engine_result_t result = {0};
    fsdp_status_t status;
    plan_t plan;

    FSDP_TRY(plan_check(&plan, cat, wanted, why));
    job.plan = &plan;
    if (verify->engine != NULL) {
        job.options = *verify->engine;
    }
    status = engine_run(&job, &result, why);
    plan_free(&plan);
    verify->result.bytes += result.bytes_read;
    return status;
}

/* An error of reading, once the callback wanted no more. */
static fsdp_status_t end_check(verify_t *verify, fsdp_status_t status,
                               const fsdp_error_t *why, fsdp_error_t *err)
{
    return verify->stopped ? fsdp_error_set(err, FSDP_ERR_CANCELLED,
                                            "the check was stopped")
                           : verify_status(verify, status, why, err);
}

fsdp_status_t verify_zip(verify_t *verify, const catalog_t *cat, bool *good,
                         fsdp_error_t *err)
{
    piece_check_t check = {verify, good};
    fsdp_error_t why = {0};
    uint64_t checked, size = 0;
    fsdp_status_t status;

    FSDP_TRY(count_checked(cat, &checked, err));
    for (uint32_t f = 0; f < cat->num_files; f++) {
        size += cat->files[f].size;
        checked += cat->files[f].checked;
    }
    for (uint64_t s = 0; s < cat->num_spans; s++) {
        checked += cat->spans[s].bytes;
    }
    verify->result.unchecked += (size > checked) ? size - checked : 0;

    status = check_pieces(&check, cat, NULL, &why);
    if (status == FSDP_OK) {
        status = span_check(cat, NULL, on_bad_span, &check,
                            &verify->result.bytes, &why);
    }
    return end_check(verify, status, &why, err);
}

fsdp_status_t verify_codes(verify_t *verify, const catalog_t *cat, bool *good,
                           fsdp_error_t *err)
{
    piece_check_t check = {verify, good};
    fsdp_error_t why = {0};
    fsdp_status_t status;
    bool *wanted;

    if (cat->num_codes == 0) {
        return FSDP_OK;
    }
    wanted = calloc(cat->num_pieces + 1, sizeof(*wanted));
    if (wanted == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              cat->path);
    }

    for (uint64_t p = 0; p < cat->num_pieces; p++) {
        wanted[p] = cat->pieces[p].code != 0;
    }
    status = check_pieces(&check, cat, wanted, &why);
    free(wanted);
    return end_check(verify, status, &why, err);
}
