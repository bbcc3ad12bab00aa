/*
 * Training data: text as bytes, or token files of llm.c (header, u16) and
 * nanoGPT (bare u16).  Which tokens a micro-batch reads depends on the seed,
 * the step and the micro-batch alone, not on the number of ranks.
 */
#ifndef FSDP_NN_DATA_H
#define FSDP_NN_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "lib/util/fsdp_status.h"

typedef struct data data_t;

typedef enum { DATA_TRAIN = 0, DATA_VALID = 1 } data_part_t;

/**
 * Map the files.  A name that ends in .bin holds tokens, any other text; .gz
 * is not read.
 *
 * @param paths  At least one; all of one kind.
 * @param seq    Tokens of a sequence.
 * @param vocab  Tokens must be below it; 0: do not check yet.
 *
 * The last tenth of the tokens, at least one sequence, is the validation part.
 *
 * @return FSDP_ERR_NOT_FOUND; FSDP_ERR_BAD_DATA if there are fewer tokens than
 *         two sequences need, or a header does not fit.
 */
fsdp_status_t data_open(const char *const *paths, size_t num, uint32_t seq,
                        uint32_t vocab, data_t **data_p, fsdp_error_t *err);

/* NULL is allowed. */
void data_close(data_t *data);

/* Tokens in a part. */
uint64_t data_tokens(const data_t *data, data_part_t part);

/* 256 for text; for token files the largest token + 1 (reads all). */
uint32_t data_vocab(data_t *data);

/* Entropy of single tokens of the validation part under their own frequencies
 * in the training part (add-one), in nats: what a model without context can
 * reach at best. */
double data_order0_entropy(data_t *data);

/**
 * Fill @a tokens (@a batch × (seq + 1)) with micro-batch @a micro of step @a
 * step.
 *
 * @return FSDP_ERR_BAD_DATA, naming file and position, if a token is not below
 *         the vocabulary.
 */
fsdp_status_t data_batch(data_t *data, data_part_t part, uint64_t seed,
                         int64_t step, uint32_t micro, uint32_t batch,
                         int32_t *tokens, fsdp_error_t *err);

#endif
