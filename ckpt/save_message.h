/*
 * What the ranks of a save or conversion tell each other, as bytes: the
 * machine's own order and sizes, for messages do not outlive the save.
 */
#ifndef FSDP_SAVE_MESSAGE_H
#define FSDP_SAVE_MESSAGE_H

#include "ckpt/catalog.h"
#include "lib/util/buffer.h"

/* Pieces below this lie close together in a file: where ranks share it, its
 * creator writes them for all, so that no two ranks write to one page. */
#define SAVE_SMALL (64u << 10)

/* A message that is read. */
typedef struct {
    const char *next;
    size_t left;
} cursor_t;

/* Take the next bytes.  @return false if there are fewer. */
bool message_take(cursor_t *cursor, void *to, size_t size);

/* What one rank writes of a tensor, as another rank sees it. */
typedef struct {
    uint64_t first, count;
    const void *data; /* NULL: that rank writes it itself */
    uint32_t tensor;
    uint32_t rank;
} save_part_t;

/* A rank's parts, with the data of small ones. */
void message_put_parts(buffer_t *message, const fsdp_ckpt_desc_t *tensors,
                       const fsdp_ckpt_part_t *parts, size_t num);

/**
 * @param parts_p  For the caller to free; data points into @a text.
 *
 * @return FSDP_ERR_CORRUPT if it is no such message.
 */
fsdp_status_t message_get_parts(const char *text, size_t size, uint32_t rank,
                                const fsdp_ckpt_desc_t *tensors,
                                uint32_t num_tensors, save_part_t **parts_p,
                                size_t *num_p, fsdp_error_t *err);

/* A file that is complete: its pieces in their order, and all checksums. */
void message_put_file(buffer_t *message, const catalog_t *cat, uint32_t file,
                      const uint64_t *pieces, uint64_t num);

/* Add such a file's contents to a catalog, not sealed, whose tensors are in
 * the order of the descriptors. */
fsdp_status_t message_get_file(const char *text, size_t size, catalog_t *cat,
                               uint32_t file, fsdp_error_t *err);

#endif
