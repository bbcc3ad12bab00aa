/*
 * A conversion by several ranks, each with the whole plan before it:
 *
 *     rank r                              rank 0
 *     -------------------------------    --------------------------------
 *     make some of the files
 *     "made": where their pieces lie <-> the same: all tell each other
 *     copy its part of the bytes, sync   the same
 *     "part": checksums              --> join and compare them, finish all
 *                                        files, publish
 */
#include "config.h"

#include "ckpt/convert.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/save_message.h"
#include "lib/util/check.h"

/* --- Files ---------------------------------------------------------------- */

static uint32_t first_file(const convert_t *convert, uint32_t rank)
{
    return (uint32_t)((uint64_t)convert->dst.num_files * rank / convert->world);
}

/* Where the pieces of this rank's files lie. */
static fsdp_status_t tell_made(convert_t *convert, fsdp_error_t *err)
{
    const catalog_t *dst = &convert->dst;
    uint32_t rank = convert->rank;
    buffer_t message = {0};
    fsdp_status_t status;

    for (uint32_t f = first_file(convert, rank);
         f < first_file(convert, rank + 1); f++) {
        buffer_add(&message, &dst->files[f].size, sizeof(uint64_t));
        buffer_add(&message, &dst->files[f].table, sizeof(uint64_t));
        for (uint64_t i = convert->lists.first[f];
             i < convert->lists.first[f + 1]; i++) {
            buffer_add(&message, &dst->pieces[convert->lists.pieces[i]].offset,
                       sizeof(uint64_t));
        }
    }
    status = message.failed ? convert_no_memory(convert, err)
                            : commit_post(convert->commit, "made", rank,
                                          message.data, message.size, err);
    buffer_free(&message);
    return status;
}

static fsdp_status_t bad_message(const convert_t *convert, uint32_t rank,
                                 fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_MISMATCH,
                          "%s: the message of rank %" PRIu32
                          " makes no sense: do all ranks run the same command "
                          "and see the same source?",
                          convert->config->target, rank);
}

static fsdp_status_t take_made(uint32_t rank, const char *text, size_t size,
                               void *arg, fsdp_error_t *err)
{
    convert_t *convert = arg;
    catalog_t *dst = &convert->dst;
    cursor_t cursor = {text, size};
    bool good = true;

    for (uint32_t f = first_file(convert, rank);
         f < first_file(convert, rank + 1); f++) {
        good = good &&
               message_take(&cursor, &dst->files[f].size, sizeof(uint64_t)) &&
               message_take(&cursor, &dst->files[f].table, sizeof(uint64_t));
        for (uint64_t i = convert->lists.first[f];
             i < convert->lists.first[f + 1]; i++) {
            good = good &&
                   message_take(&cursor,
                                &dst->pieces[convert->lists.pieces[i]].offset,
                                sizeof(uint64_t));
        }
    }

    return (good && cursor.left == 0) ? FSDP_OK
                                      : bad_message(convert, rank, err);
}

fsdp_status_t convert_create_files(convert_t *convert, fsdp_error_t *err)
{
    uint32_t rank = convert->rank;

    for (uint32_t f = first_file(convert, rank);
         f < first_file(convert, rank + 1); f++) {
        FSDP_TRY(target_create(convert->format, &convert->dst, f,
                               &convert->lists, convert->dir, err));
    }
    if (convert->world == 1) {
        return FSDP_OK;
    }

    FSDP_TRY(tell_made(convert, err));
    return commit_take(convert->commit, "made", 0, convert->world, NULL,
                       take_made, convert, err);
}

/* --- Checksums ------------------------------------------------------------ */

/* A run of checksums of the target. */
typedef struct {
    uint64_t first, num;
} crc_row_t;

/* A block of the source that has passed in part. */
typedef struct {
    uint64_t index, passed;
    uint32_t sum, zero;
} sum_row_t;

static void put_crcs(buffer_t *message, const catalog_t *dst)
{
    uint64_t end = 0;

    for (uint64_t c = 0; c < dst->num_crcs; c = end + 1) {
        crc_row_t row = {.first = c};

        for (end = c; end < dst->num_crcs && dst->crcs[end] != 0; end++) {
        }
        if (end > c) {
            row.num = end - c;
            buffer_add(message, &row, sizeof(row));
            buffer_add(message, dst->crcs + c, row.num * sizeof(*dst->crcs));
        }
    }
    buffer_add(message, &(crc_row_t){0}, sizeof(crc_row_t));
}

/* Those that are whole have been compared. */
static void put_sums(buffer_t *message, const catalog_t *src,
                     const engine_sums_t *sums)
{
    for (uint64_t p = 0; p < src->num_pieces; p++) {
        const catalog_piece_t *piece = &src->pieces[p];

        for (uint64_t b = 0; b < engine_num_sums(src, piece); b++) {
            uint64_t index = piece->crc_first + b;
            const sum_row_t row = {.index = index,
                                   .passed = sums->passed[index],
                                   .sum = sums->xors[index]};

            if (row.passed != 0 &&
                row.passed != engine_sum_bytes(src, piece, b)) {
                buffer_add(message, &row, sizeof(row));
            }
        }
    }
}

static fsdp_status_t tell_part(convert_t *convert, fsdp_error_t *err)
{
    buffer_t message = {0};
    fsdp_status_t status;

    buffer_add(&message, &convert->shared, sizeof(convert->shared));
    put_crcs(&message, &convert->dst);
    put_sums(&message, &convert->src, &convert->sums);
    status = message.failed
                 ? convert_no_memory(convert, err)
                 : commit_post(convert->commit, "part", convert->rank,
                               message.data, message.size, err);
    buffer_free(&message);
    return status;
}

/* A block of two ranks: each has the xor of what its bytes give. */
static bool take_crcs(cursor_t *cursor, catalog_t *dst)
{
    crc_row_t row;
    uint32_t crc;

    while (message_take(cursor, &row, sizeof(row))) {
        if (row.num == 0) {
            return true;
        }
        for (uint64_t i = 0; i < row.num; i++) {
            if (!message_take(cursor, &crc, sizeof(crc)) ||
                row.first >= dst->num_crcs || i >= dst->num_crcs - row.first) {
                return false;
            }
            dst->crcs[row.first + i] ^= crc;
        }
    }

    return false;
}

static fsdp_status_t take_part(uint32_t rank, const char *text, size_t size,
                               void *arg, fsdp_error_t *err)
{
    convert_t *convert = arg;
    cursor_t cursor = {text, size};
    uint64_t shared;
    sum_row_t row;

    if (!message_take(&cursor, &shared, sizeof(shared)) ||
        !take_crcs(&cursor, &convert->dst)) {
        return bad_message(convert, rank, err);
    }
    convert->shared += shared;
    while (message_take(&cursor, &row, sizeof(row))) {
        if (row.index >= convert->src.num_crcs) {
            return bad_message(convert, rank, err);
        }
        convert->sums.xors[row.index] ^= row.sum;
        convert->sums.passed[row.index] += row.passed;
    }

    return (cursor.left == 0) ? FSDP_OK : bad_message(convert, rank, err);
}

/* --- A rank's part -------------------------------------------------------- */

/* What this rank has written. */
static fsdp_status_t sync_files(const convert_t *convert, fsdp_error_t *err)
{
    const catalog_t *dst = &convert->dst;
    const plan_t *plan = &convert->plan;
    bool *written = calloc(dst->num_files + 1ul, sizeof(*written));
    fsdp_status_t status;

    if (written == NULL) {
        return convert_no_memory(convert, err);
    }

    for (uint64_t i = 0; i < plan->num; i++) {
        uint32_t piece = plan->copies[i].dst_piece;

        if (piece != CATALOG_NONE) {
            written[dst->pieces[piece].file] = true;
        }
    }
    status = target_sync_all(dst, written, convert->config->engine.jobs,
                             convert->dir, err);
    free(written);
    return status;
}

fsdp_status_t convert_share_part(convert_t *convert, fsdp_error_t *err)
{
    if (convert->world == 1) {
        return FSDP_OK;
    }
    if (convert->rank > 0) {
        FSDP_TRY(sync_files(convert, err));
        return tell_part(convert, err);
    }

    FSDP_TRY(commit_take(convert->commit, "part", 1, convert->world - 1, NULL,
                         take_part, convert, err));
    return engine_check_sums(&convert->src, &convert->sums, err);
}
