#include "config.h"

#include "ckpt/engine_sums.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/util/check.h"

static uint64_t block_bytes(uint64_t piece_bytes, uint64_t block)
{
    uint64_t rest = piece_bytes - block * CATALOG_BLOCK;

    return (rest < CATALOG_BLOCK) ? rest : CATALOG_BLOCK;
}

uint64_t engine_sum_bytes(const catalog_t *src, const catalog_piece_t *piece,
                          uint64_t block)
{
    uint64_t bytes = catalog_piece_bytes(src, piece);

    return src->crc_zip ? bytes : block_bytes(bytes, block);
}

uint64_t engine_num_sums(const catalog_t *src, const catalog_piece_t *piece)
{
    return (piece->crc_first == CATALOG_NONE) ? 0
           : src->crc_zip                     ? 1
                          : catalog_blocks(catalog_piece_bytes(src, piece));
}

/* "tensor T elements [a, b)" of a block, for messages. */
static void describe(const catalog_t *cat, uint64_t index, uint64_t block,
                     char *text, size_t size)
{
    const catalog_piece_t *piece = &cat->pieces[index];
    const catalog_tensor_t *tensor = &cat->tensors[piece->tensor];
    unsigned bits = fsdp_dtype_bits((fsdp_dtype_t)tensor->dtype);
    uint64_t start = block * CATALOG_BLOCK;
    uint64_t end = start + engine_sum_bytes(cat, piece, block);
    uint64_t to = (end * 8 + bits - 1) / bits;

    snprintf(text, size, "tensor %s elements [%" PRIu64 ", %" PRIu64 ")",
             tensor->name, piece->first + start * 8 / bits,
             piece->first + ((to < piece->count) ? to : piece->count));
}

fsdp_status_t engine_damaged(const catalog_t *src, uint64_t index,
                             uint64_t block, fsdp_error_t *err)
{
    const catalog_piece_t *piece = &src->pieces[index];
    char *path = catalog_file_path(src, piece->file), what[300];

    describe(src, index, block, what, sizeof(what));
    fsdp_error_set(err, FSDP_ERR_CORRUPT,
                   "%s: %s: the bytes at %" PRIu64
                   " do not have their checksum: the file is damaged",
                   (path != NULL) ? path : src->path, what,
                   piece->offset + block * CATALOG_BLOCK);
    free(path);
    return FSDP_ERR_CORRUPT;
}

fsdp_status_t engine_sums_init(engine_sums_t *sums, uint64_t num,
                               fsdp_error_t *err)
{
    sums->xors = calloc(num + 1, sizeof(*sums->xors));
    sums->passed = calloc(num + 1, sizeof(*sums->passed));
    return (sums->xors != NULL && sums->passed != NULL)
               ? FSDP_OK
               : fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                "no memory for checksums");
}

void engine_sums_free(engine_sums_t *sums)
{
    free(sums->xors);
    free(sums->passed);
    *sums = (engine_sums_t){0};
}

fsdp_status_t engine_check_passed(const catalog_t *src,
                                  const engine_sums_t *sums, fsdp_error_t *err)
{
    if (src == NULL || src->crc_zip) {
        return FSDP_OK; /* parts of a piece are read without its checksum */
    }
    for (uint64_t p = 0; p < src->num_pieces; p++) {
        const catalog_piece_t *piece = &src->pieces[p];

        for (uint64_t b = 0; b < engine_num_sums(src, piece); b++) {
            uint64_t passed = atomic_load(&sums->passed[piece->crc_first + b]);

            if (passed != 0 && passed != engine_sum_bytes(src, piece, b)) {
                return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                      "%s: tensor %s: its pieces share "
                                      "checksums with others",
                                      src->path,
                                      src->tensors[piece->tensor].name);
            }
        }
    }

    return FSDP_OK;
}

fsdp_status_t engine_check_sums(const catalog_t *src, const engine_sums_t *sums,
                                fsdp_error_t *err)
{
    FSDP_TRY(engine_check_passed(src, sums, err));
    for (uint64_t p = 0; p < src->num_pieces; p++) {
        const catalog_piece_t *piece = &src->pieces[p];

        for (uint64_t b = 0; b < engine_num_sums(src, piece); b++) {
            uint64_t slot = piece->crc_first + b;

            if (atomic_load(&sums->passed[slot]) ==
                    engine_sum_bytes(src, piece, b) &&
                atomic_load(&sums->xors[slot]) != src->crcs[slot]) {
                return engine_damaged(src, p, b, err);
            }
        }
    }

    return FSDP_OK;
}
