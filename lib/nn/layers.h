/*
 * What a transformer needs besides matrix products and attention.  Activations
 * and parameters are fp32 or bf16; the arithmetic is fp32.
 *
 * Rows are cut into blocks of LAYER_ROWS whatever the number of threads;
 * column sums are taken block by block and the blocks added in order.
 */
#ifndef FSDP_NN_LAYERS_H
#define FSDP_NN_LAYERS_H

#include "fsdp.h"

#define LAYER_ROWS 64

/* Floats of scratch for column sums over @a rows rows of @a width. */
size_t layer_partials(size_t rows, size_t width);

/* dst (of @a to) = src (of @a from). */
void layer_convert(uint32_t threads, void *dst, fsdp_precision_t to,
                   const void *src, fsdp_precision_t from, size_t num);

/**
 * Gaussian error linear unit of @a rows rows of @a width.
 *
 * @param exact  By the error function, not its tanh approximation.
 */
void layer_gelu(uint32_t threads, bool exact, void *out, const void *in,
                fsdp_precision_t type, size_t rows, size_t width);

/**
 * The same again, its gradient, and that of a bias added to its input.
 *
 * @param grad   In: the gradient of the output; out: that of the input.
 * @param dbias  @a width values of @a dbias_type, written.
 */
void layer_gelu_back(uint32_t threads, bool exact, void *out, void *grad,
                     const void *in, fsdp_precision_t type, size_t rows,
                     size_t width, void *dbias, fsdp_precision_t dbias_type,
                     float *partials);

/* dbias = column sums of @a in; and, unless @a copy is NULL, copy (bf16) = in
 * (fp32 or bf16). */
void layer_bias_back(uint32_t threads, const void *in, fsdp_precision_t type,
                     void *copy, size_t rows, size_t width, void *dbias,
                     fsdp_precision_t dbias_type, float *partials);

/* A layer norm's parameters, both of param dtype, and its two numbers a row. */
typedef struct {
    const void *weight, *bias;
    fsdp_precision_t type;
    float eps;
    float *mean, *rstd; /* one a row */
} layer_norm_t;

/**
 * x += residual (unless that is NULL), out = norm(x).
 *
 * @param keep  mean and rstd are as they were computed before.
 */
void layer_norm(uint32_t threads, const layer_norm_t *norm, float *x,
                const float *residual, void *out, fsdp_precision_t out_type,
                bool keep, size_t rows, size_t width);

/**
 * dx (+)= gradient of the norm's input.
 *
 * @param dout  Gradient of its output, fp32.
 * @param add   Add to dx; else write it.
 */
void layer_norm_back(uint32_t threads, const layer_norm_t *norm, const float *x,
                     const float *dout, float *dx, bool add, size_t rows,
                     size_t width, void *dweight, void *dbias,
                     fsdp_precision_t grad_type, float *partials);

/* x[i] = wte[tokens[i]] + wpe[i % seq].  Tokens lie @a stride apart from one
 * sequence to the next. */
void layer_embed(uint32_t threads, float *x, const void *wte, const void *wpe,
                 fsdp_precision_t type, const int32_t *tokens, size_t stride,
                 size_t batch, size_t seq, size_t width);

/**
 * dwte[tokens[i]] += dx[i], in order of i; dwpe[p] = sum over the batch.
 *
 * @param dwte  fp32.
 */
void layer_embed_back(uint32_t threads, float *dwte, void *dwpe,
                      fsdp_precision_t dwpe_type, const float *dx,
                      const int32_t *tokens, size_t stride, size_t batch,
                      size_t seq, size_t width);

/**
 * Cross-entropy of rows of logits.
 *
 * @param logits    rows × ld, fp32.  If @a dlogits: replaced by scale *
 *                  (softmax - one-hot), of @a type, bf16 ones at the same ld
 *                  counted in bf16 elements * 2.
 * @param targets   One a row.
 * @param loss      One a row: -log softmax[target].
 */
void layer_cross_entropy(uint32_t threads, float *logits, size_t ld,
                         size_t rows, size_t vocab, const int32_t *targets,
                         bool dlogits, float scale, fsdp_precision_t type,
                         double *loss);

#endif
