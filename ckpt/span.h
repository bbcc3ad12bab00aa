/*
 * Stretches of files that have one checksum, though no piece is all of them:
 * a storage of torch.save of which many tensors have a part.
 */
#ifndef FSDP_SPAN_H
#define FSDP_SPAN_H

#include "ckpt/catalog.h"
#include "ckpt/engine_sums.h"
#include "ckpt/torch_file.h"

/* Add the storages of a file that have a checksum. */
fsdp_status_t span_add_storages(catalog_t *cat, uint32_t file,
                                const torch_file_t *from, fsdp_error_t *err);

/* The span that a piece lies in, or NULL; the catalog is sealed. */
const catalog_span_t *span_of_piece(const catalog_t *cat,
                                    const catalog_piece_t *piece);

/* A span whose bytes do not have its checksum.
 * @return false to stop with FSDP_ERR_CORRUPT. */
typedef bool (*span_mismatch_f)(const catalog_t *cat,
                                const catalog_span_t *span, void *arg);

/* Set @a wanted, one for each span, of those in which a piece of a tensor lies
 * whose entry in @a used is set. */
void span_mark(const catalog_t *cat, const bool *used, bool *wanted);

/* Of those that are wanted, leave those of one of @a world ranks, alike in
 * bytes. */
void span_keep_part(const catalog_t *cat, bool *wanted, uint32_t rank,
                    uint32_t world);

/* Bytes of a piece, from @a offset of its file on, pass by while it is copied:
 * add them to the sums of the spans.  By any thread. */
void span_pass(engine_sums_t *sums, const catalog_t *cat,
               const catalog_piece_t *piece, uint64_t offset, const void *data,
               uint64_t bytes);

/* Of those that are wanted, leave those that have not passed, whole and with
 * their checksum: to be read. */
void span_drop_passed(const catalog_t *cat, const engine_sums_t *sums,
                      bool *wanted);

/**
 * Read spans and compare their checksums.
 *
 * @param wanted    One for each span; NULL: all are read.
 * @param jobs      Threads, at most; 0: the default.
 * @param mismatch  Called by any of them; NULL: the first one ends the run.
 * @param bytes_p   How many bytes were read are added.
 *
 * @return FSDP_ERR_CORRUPT, naming file and bytes.
 */
fsdp_status_t span_check(const catalog_t *cat, const bool *wanted,
                         uint32_t jobs, span_mismatch_f mismatch, void *arg,
                         uint64_t *bytes_p, fsdp_error_t *err);

#endif
