#include "config.h"

#include "ckpt/save_message.h"

#include <stdlib.h>
#include <string.h>

#include "lib/util/check.h"

/* The next bytes, or NULL if there are fewer. */
static const char *get(cursor_t *cursor, uint64_t size)
{
    const char *data = cursor->next;

    if (size > cursor->left) {
        return NULL;
    }

    cursor->next += size;
    cursor->left -= (size_t)size;
    return data;
}

bool message_take(cursor_t *cursor, void *to, size_t size)
{
    const char *data = get(cursor, size);

    if (data == NULL) {
        return false;
    }

    if (size > 0) { /* else there may be no place for it */
        memcpy(to, data, size);
    }
    return true;
}

static fsdp_status_t bad_message(const char *what, uint32_t number,
                                 fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_MISMATCH,
                          "the message of %s %u makes no sense: do all ranks "
                          "save the same tensors with the same library?",
                          what, number);
}

/* --- Parts ---------------------------------------------------------------- */

typedef struct {
    uint64_t first, count;
    uint32_t tensor, has_data;
} part_row_t;

/* Bytes of a part, 0 if the data do not go along. */
static uint64_t small_bytes(fsdp_dtype_t dtype, uint64_t count)
{
    uint64_t bytes;

    return (dtype_bytes(dtype, count, &bytes) && bytes < SAVE_SMALL) ? bytes
                                                                     : 0;
}

void message_put_parts(buffer_t *message, const fsdp_ckpt_desc_t *tensors,
                       const fsdp_ckpt_part_t *parts, size_t num)
{
    uint64_t count = num;

    buffer_add(message, &count, sizeof(count));
    for (size_t i = 0; i < num; i++) {
        part_row_t row = {.first = parts[i].first,
                          .count = parts[i].count,
                          .tensor = parts[i].tensor};

        row.has_data = small_bytes(tensors[row.tensor].dtype, row.count) > 0;
        buffer_add(message, &row, sizeof(row));
    }
    for (size_t i = 0; i < num; i++) {
        buffer_add(message, parts[i].data,
                   small_bytes(tensors[parts[i].tensor].dtype, parts[i].count));
    }
}

fsdp_status_t message_get_parts(const char *text, size_t size, uint32_t rank,
                                const fsdp_ckpt_desc_t *tensors,
                                uint32_t num_tensors, save_part_t **parts_p,
                                size_t *num_p, fsdp_error_t *err)
{
    cursor_t cursor = {text, size};
    save_part_t *parts;
    part_row_t row;
    bool good = true;
    uint64_t num;

    if (!message_take(&cursor, &num, sizeof(num)) || num > size / sizeof(row)) {
        return bad_message("rank", rank, err);
    }
    parts = calloc((size_t)num + 1, sizeof(*parts));
    if (parts == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for the parts of rank %u", rank);
    }

    for (uint64_t i = 0; i < num && good; i++) {
        good = message_take(&cursor, &row, sizeof(row)) &&
               row.tensor < num_tensors;
        if (good) {
            parts[i] = (save_part_t){.first = row.first,
                                     .count = row.count,
                                     .tensor = row.tensor,
                                     .rank = rank};
        }
    }
    for (uint64_t i = 0; i < num && good; i++) {
        uint64_t bytes =
            small_bytes(tensors[parts[i].tensor].dtype, parts[i].count);

        if (bytes > 0) {
            parts[i].data = get(&cursor, bytes);
            good = parts[i].data != NULL;
        }
    }
    if (!good || cursor.left != 0) {
        free(parts);
        return bad_message("rank", rank, err);
    }

    *parts_p = parts;
    *num_p = (size_t)num;
    return FSDP_OK;
}

/* --- Files ---------------------------------------------------------------- */

typedef struct {
    uint64_t size, table, num_pieces;
    uint32_t crc32c, crc_count;
} file_row_t;

typedef struct {
    uint64_t first, count, offset;
    uint32_t tensor; /* index into the descriptors */
    uint32_t rank;
    uint32_t crc_first; /* in the file's table */
    uint32_t zero;
} piece_row_t;

void message_put_file(buffer_t *message, const catalog_t *cat, uint32_t file,
                      const uint64_t *pieces, uint64_t num)
{
    const catalog_file_t *entry = &cat->files[file];
    file_row_t row = {.size = entry->size,
                      .table = entry->table,
                      .num_pieces = num,
                      .crc32c = entry->crc32c,
                      .crc_count = entry->crc_count};

    buffer_add(message, &row, sizeof(row));
    for (uint64_t i = 0; i < num; i++) {
        const catalog_piece_t *piece = &cat->pieces[pieces[i]];
        piece_row_t piece_row = {.first = piece->first,
                                 .count = piece->count,
                                 .offset = piece->offset,
                                 .tensor = cat->tensors[piece->tensor].order,
                                 .rank = piece->rank,
                                 .crc_first =
                                     piece->crc_first - entry->crc_first};

        buffer_add(message, &piece_row, sizeof(piece_row));
    }
    buffer_add(message, cat->crcs + entry->crc_first,
               entry->crc_count * sizeof(*cat->crcs));
}

fsdp_status_t message_get_file(const char *text, size_t size, catalog_t *cat,
                               uint32_t file, fsdp_error_t *err)
{
    catalog_file_t *entry = &cat->files[file];
    cursor_t cursor = {text, size};
    piece_row_t piece;
    file_row_t row;

    if (!message_take(&cursor, &row, sizeof(row)) ||
        row.num_pieces > size / sizeof(piece) || row.crc_count > size / 4) {
        return bad_message("file", file, err);
    }

    FSDP_TRY(catalog_add_crcs(cat, file, row.crc_count, err));
    entry->size = row.size;
    entry->table = row.table;
    entry->crc32c = row.crc32c;
    entry->has_crc = true;
    for (uint64_t i = 0; i < row.num_pieces; i++) {
        catalog_piece_t made = {.file = file, .box = CATALOG_NONE};

        if (!message_take(&cursor, &piece, sizeof(piece))) {
            return bad_message("file", file, err);
        }
        made.first = piece.first;
        made.count = piece.count;
        made.offset = piece.offset;
        made.tensor = piece.tensor;
        made.rank = piece.rank;
        made.crc_first = entry->crc_first + piece.crc_first;
        FSDP_TRY(catalog_add_piece(cat, &made, err));
    }
    if (!message_take(&cursor, cat->crcs + entry->crc_first,
                      row.crc_count * sizeof(*cat->crcs)) ||
        cursor.left != 0) {
        return bad_message("file", file, err);
    }

    return FSDP_OK;
}
