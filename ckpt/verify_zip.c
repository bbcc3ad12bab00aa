/*
 * The check of sources that are zip archives: each storage that is a piece,
 * whole, against its CRC-32.  What lies between them was compared when the
 * checkpoint was opened, or is under no checksum.  And of what is encoded.
 */
#include "config.h"

#include "ckpt/verify.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

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

/* Of all pieces, or of those that are encoded, the part of this rank: those
 * that share bytes go together. */
static fsdp_status_t choose(const verify_t *verify, const catalog_t *cat,
                            bool coded, bool **wanted_p, fsdp_error_t *err)
{
    uint64_t *begins = calloc(cat->num_files + 1ul, sizeof(*begins));
    bool *wanted = calloc(cat->num_pieces + 1, sizeof(*wanted));

    if (begins == NULL || wanted == NULL) {
        free(begins);
        free(wanted);
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              cat->path);
    }

    for (uint32_t f = 0; f < cat->num_files; f++) {
        begins[f + 1] = begins[f] + cat->files[f].size;
    }
    for (uint64_t p = 0; p < cat->num_pieces; p++) {
        const catalog_piece_t *piece = &cat->pieces[p];
        const catalog_code_t *code = catalog_code(cat, piece);
        uint64_t at = (code == NULL)    ? begins[piece->file] + piece->offset
                      : (code->inlined) ? 0
                                        : begins[code->file] + code->offset;

        wanted[p] = (code != NULL || !coded) &&
                    ranks_is_mine(&verify->ranks, at, begins[cat->num_files]);
    }
    free(begins);

    *wanted_p = wanted;
    return FSDP_OK;
}

/* Read and decode what plan_check() says, of all pieces or the encoded. */
static fsdp_status_t check_pieces(piece_check_t *check, const catalog_t *cat,
                                  bool coded, fsdp_error_t *why)
{
    verify_t *verify = check->verify;
    engine_job_t job = {.mismatch = on_mismatch, .arg = check};
    engine_result_t result = {0};
    fsdp_status_t status;
    bool *wanted = NULL;
    plan_t plan;

    FSDP_TRY(choose(verify, cat, coded, &wanted, why));
    status = plan_check(&plan, cat, wanted, why);
    free(wanted);
    FSDP_TRY(status);
    job.plan = &plan;
    if (verify->engine != NULL) {
        job.options = *verify->engine;
    }
    status = engine_run(&job, &result, why);
    plan_free(&plan);
    verify->result.bytes += result.bytes_read;
    return status;
}

static fsdp_status_t check_spans(piece_check_t *check, const catalog_t *cat,
                                 fsdp_error_t *why)
{
    verify_t *verify = check->verify;
    bool *wanted = calloc(cat->num_spans + 1, sizeof(*wanted));
    fsdp_status_t status;

    if (wanted == NULL) {
        return fsdp_error_set(why, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              cat->path);
    }

    memset(wanted, true, cat->num_spans);
    span_keep_part(cat, wanted, verify->ranks.rank, verify->ranks.world);
    status = span_check(cat, wanted,
                        (verify->engine != NULL) ? verify->engine->jobs : 0,
                        on_bad_span, check, &verify->result.bytes, why);
    free(wanted);
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
                         digest_t digests[VERIFY_KINDS], fsdp_error_t *err)
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

    verify_share_begin(verify);
    status = check_pieces(&check, cat, false, &why);
    if (status == FSDP_OK) {
        status = check_spans(&check, cat, &why);
    }
    FSDP_TRY(end_check(verify, status, &why, err));
    return verify_share_end(verify, cat, good, NULL, digests, err);
}

fsdp_status_t verify_codes(verify_t *verify, const catalog_t *cat, bool *good,
                           fsdp_error_t *err)
{
    piece_check_t check = {verify, good};
    fsdp_error_t why = {0};

    if (cat->num_codes == 0) {
        return FSDP_OK;
    }

    return end_check(verify, check_pieces(&check, cat, true, &why), &why, err);
}
