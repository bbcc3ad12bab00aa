#include "config.h"

#include "ckpt/read_check.h"

#include <stdlib.h>

#include "ckpt/engine.h"
#include "ckpt/plan.h"
#include "ckpt/span.h"
#include "lib/util/check.h"

/* The element behind the last one of a piece. */
static uint64_t end_of(const catalog_t *cat, const catalog_piece_t *piece)
{
    const catalog_tensor_t *tensor = &cat->tensors[piece->tensor];
    uint64_t last = piece->first, step = 1;
    catalog_box_t box;

    if (!catalog_box(cat, piece, &box)) {
        return piece->first + piece->count;
    }

    for (unsigned d = box.ndim; d > 0; d--) {
        last += (box.count[d - 1] - 1) * step;
        step *= cat->dims[tensor->dims_first + d - 1];
    }
    return last + 1;
}

/* Whether reading a range compares the checksum of a piece that it touches. */
static bool is_compared(const catalog_t *cat, const catalog_piece_t *piece,
                        const fsdp_ckpt_range_t *range)
{
    if (piece->crc_first == CATALOG_NONE) {
        return true; /* there is none */
    }
    if (cat->tensors[piece->tensor].boxed) {
        return cat->tensors[piece->tensor].coded; /* are decoded whole */
    }
    return !cat->crc_zip || (range->first <= piece->first &&
                             range->count - (piece->first - range->first) >=
                                 piece->count);
}

/* What of the pieces that a range touches is still to be compared. */
static void mark(const read_check_t *check, const catalog_t *cat,
                 const fsdp_ckpt_range_t *range, bool *pieces, bool *spans)
{
    const catalog_tensor_t *tensor = &cat->tensors[range->tensor];
    uint64_t end = tensor->piece_first + tensor->piece_count;
    uint64_t begin =
        tensor->boxed ? tensor->piece_first
                      : catalog_find_piece(cat, range->tensor, range->first);

    for (uint64_t p = begin; p < end; p++) {
        const catalog_piece_t *piece = &cat->pieces[p];
        const catalog_span_t *span;

        if (piece->first >= range->first + range->count) {
            break;
        }
        if (end_of(cat, piece) <= range->first) {
            continue;
        }
        pieces[p] = !check->pieces[p] && !is_compared(cat, piece, range);
        span = span_of_piece(cat, piece);
        if (span != NULL) {
            spans[span - cat->spans] = !check->spans[span - cat->spans];
        }
    }
}

static bool any(const bool *flags, uint64_t num)
{
    for (uint64_t i = 0; i < num; i++) {
        if (flags[i]) {
            return true;
        }
    }

    return false;
}

static fsdp_status_t compare_pieces(const catalog_t *cat, const bool *pieces,
                                    const fsdp_ckpt_engine_t *engine,
                                    uint64_t *bytes_p, fsdp_error_t *err)
{
    engine_result_t result = {0};
    engine_job_t job = {0};
    fsdp_status_t status;
    plan_t plan;

    FSDP_TRY(plan_check(&plan, cat, pieces, err));
    job.plan = &plan;
    if (engine != NULL) {
        job.options = *engine;
        job.options.progress = NULL; /* which counts what was asked for */
    }
    status = engine_run(&job, &result, err);
    *bytes_p += result.bytes_read;
    plan_free(&plan);
    return status;
}

static fsdp_status_t compare(read_check_t *check, const catalog_t *cat,
                             const bool *pieces, const bool *spans,
                             const fsdp_ckpt_engine_t *engine,
                             uint64_t *bytes_p, fsdp_error_t *err)
{
    if (any(pieces, cat->num_pieces)) {
        FSDP_TRY(compare_pieces(cat, pieces, engine, bytes_p, err));
        for (uint64_t p = 0; p < cat->num_pieces; p++) {
            check->pieces[p] |= pieces[p];
        }
    }
    if (any(spans, cat->num_spans)) {
        FSDP_TRY(span_check(cat, spans, (engine != NULL) ? engine->jobs : 0,
                            NULL, NULL, bytes_p, err));
        for (uint64_t s = 0; s < cat->num_spans; s++) {
            check->spans[s] |= spans[s];
        }
    }

    return FSDP_OK;
}

/* Whether a catalog has checksums that reading alone does not compare. */
static bool is_needed(const catalog_t *cat)
{
    return cat->crc_zip || cat->num_spans > 0 || cat->num_boxes > 0;
}

static fsdp_status_t prepare(read_check_t *check, const catalog_t *cat,
                             fsdp_error_t *err)
{
    if (check->pieces == NULL) {
        check->pieces = calloc(cat->num_pieces + 1, sizeof(*check->pieces));
        check->spans = calloc(cat->num_spans + 1, sizeof(*check->spans));
    }
    return (check->pieces != NULL && check->spans != NULL)
               ? FSDP_OK
               : fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                                cat->path);
}

fsdp_status_t read_check(read_check_t *check, const catalog_t *cat,
                         const fsdp_ckpt_range_t *ranges, size_t num,
                         const fsdp_ckpt_engine_t *engine, uint64_t *bytes_p,
                         fsdp_error_t *err)
{
    bool *pieces, *spans;
    fsdp_status_t status;

    if (!is_needed(cat)) {
        return FSDP_OK;
    }

    FSDP_TRY(prepare(check, cat, err));
    pieces = calloc(cat->num_pieces + 1, sizeof(*pieces));
    spans = calloc(cat->num_spans + 1, sizeof(*spans));
    if (pieces == NULL || spans == NULL) {
        status =
            fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", cat->path);
    } else {
        for (size_t i = 0; i < num; i++) {
            mark(check, cat, &ranges[i], pieces, spans);
        }
        status = compare(check, cat, pieces, spans, engine, bytes_p, err);
    }
    free(pieces);
    free(spans);
    return status;
}

void read_check_free(read_check_t *check)
{
    free(check->pieces);
    free(check->spans);
    *check = (read_check_t){0};
}
