/*
 * Causal multi-head attention, softmax(q kT / sqrt(d)) v, in memory that grows
 * with the sequence, not its square: blocks of 64 × 64 scores are computed,
 * used and forgotten, and again in the backward pass (arXiv 2205.14135).
 *
 * A head of a sequence is computed by one thread from beginning to end, so the
 * bits do not depend on the number of threads.
 */
#ifndef FSDP_NN_ATTENTION_H
#define FSDP_NN_ATTENTION_H

#include "fsdp.h"

typedef struct {
    size_t batch, seq, heads, head_size;
    fsdp_precision_t type; /* of all activations */
} attention_shape_t;

/* Bytes of scratch, all threads together; aligned to 64. */
size_t attention_scratch_size(const attention_shape_t *shape, uint32_t threads);

/**
 * @param qkv  batch × seq rows of 3 × heads × head_size: q, k, v.
 * @param out  Rows of heads × head_size.
 * @param lse  batch × heads × seq: logarithm of the sum of exponentials.
 */
void attention(const attention_shape_t *shape, uint32_t threads,
               const void *qkv, void *out, float *lse, void *scratch);

/* dqkv is written, like qkv. */
void attention_back(const attention_shape_t *shape, uint32_t threads,
                    const void *qkv, const void *out, const float *lse,
                    const void *dout, void *dqkv, void *scratch);

#endif
