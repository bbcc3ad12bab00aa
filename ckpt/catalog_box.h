/*
 * Pieces of a catalog that are boxes: what catalog.c needs of them.
 */
#ifndef FSDP_CATALOG_BOX_H
#define FSDP_CATALOG_BOX_H

#include "ckpt/box.h"
#include "ckpt/catalog.h"

/**
 * Check a box against its tensor, and set piece->first and count.
 *
 * @param is_range_p  Its elements are a range of the tensor, end to end.
 */
fsdp_status_t box_measure(const catalog_t *cat, catalog_piece_t *piece,
                          const uint64_t *start, const uint64_t *count,
                          const uint64_t *strides, bool *is_range_p,
                          fsdp_error_t *err);

/* Copy strides, or make those of a dense box; of a dimension of one element
 * they become those of a dense box too. */
void box_strides(unsigned ndim, const uint64_t *count, const uint64_t *strides,
                 uint64_t *to);

/* Elements from the first to the last in the file, both counted. */
uint64_t box_span(const catalog_box_t *box);

/* The piece as a box of its tensor, whatever it is; a range that is no box is
 * several.
 * @param boxes  Room for 2 * ndim boxes.  @return their number. */
unsigned box_of_piece(const catalog_t *cat, const catalog_piece_t *piece,
                      box_t *boxes);

/* Called for a box of a piece.
 * @param strides  In elements, of the file.
 * @param skipped  Elements of the file from the piece's offset to the box.
 * @param change   As catalog_box() says it. */
typedef fsdp_status_t (*box_visit_f)(const box_t *box, const uint64_t *strides,
                                     uint64_t skipped, unsigned change,
                                     void *arg, fsdp_error_t *err);

/* Visit the boxes that a piece is made of, as box_of_piece() has them. */
fsdp_status_t box_visit(const catalog_t *cat, const catalog_piece_t *piece,
                        box_visit_f visit, void *arg, fsdp_error_t *err);

/* Make a copy of a range what it holds of the elements [lo, hi), which both lie
 * in it.  @param lost  See part_checksums().
 * @return false if that begins within a byte. */
bool part_range(catalog_piece_t *piece, unsigned bits, uint64_t lo, uint64_t hi,
                bool *lost);

/* A piece that is not taken whole, but @a count elements of it, cannot keep its
 * checksums.  @param lost  Set if it had any. */
void part_checksums(catalog_piece_t *piece, uint64_t count, bool *lost);

/* How many of the elements [first, first + count) of its tensor a piece has. */
uint64_t box_common(const catalog_t *cat, const catalog_piece_t *piece,
                    uint64_t first, uint64_t count);

/* How many of those in a box. */
uint64_t box_common_box(const catalog_t *cat, const catalog_piece_t *piece,
                        const box_t *with);

/* Each element of a tensor lies in one piece exactly. */
fsdp_status_t box_check_cover(const catalog_t *cat, uint64_t tensor,
                              fsdp_error_t *err);

#endif
