/* The parts of gpt2_t, for the files that make it up. */
#ifndef FSDP_NN_GPT2_PRIVATE_H
#define FSDP_NN_GPT2_PRIVATE_H

#include "lib/nn/gpt2.h"

#include "lib/nn/attention.h"
#include "lib/nn/layers.h"
#include "lib/nn/matmul.h"

/* The parameters of a block, in checkpoint order. */
enum {
    LN1_W,
    LN1_B,
    ATTN_W,
    ATTN_B,
    PROJ_W,
    PROJ_B,
    LN2_W,
    LN2_B,
    FC_W,
    FC_B,
    OUT_W,
    OUT_B,
    BLOCK_PARAMS
};

/* What is kept from a block's forward to its backward pass, for each row; how
 * much that is, lay_out_block() says. */
typedef struct {
    fsdp_unit_t *unit;
    fsdp_param_t *params[BLOCK_PARAMS];
    float *x;             /* fp32: the block's input */
    float *middle;        /* fp32: after attention */
    void *qkv;            /* three times the width */
    void *attention;      /* attention's output, before its projection */
    void *hidden;         /* the MLP's inner values, before GELU */
    float *lse;           /* of attention, one a head */
    float *mean1, *rstd1; /* of both norms */
    float *mean2, *rstd2;
} gpt2_block_t;

struct gpt2 {
    fsdp_t *fsdp;
    gpt2_config_t config;
    fsdp_precision_t dtype, reduce;
    uint32_t threads, batch, seq; /* at most */
    bool train;
    size_t max_rows, width, inner, vocab;
    matmul_t *matmul;

    fsdp_unit_t *root;
    fsdp_param_t *wte, *wpe, *norm_w, *norm_b;
    gpt2_block_t *blocks;

    /* The micro-batch at hand. */
    const int32_t *tokens;
    size_t now_batch, now_seq, rows;
    attention_shape_t attention;

    /* Kept besides the blocks'. */
    float *x_last; /* the last block's output */
    float *mean, *rstd;
    void *final;      /* the last norm's output */
    int32_t *targets; /* one a row */
    double *losses;   /* one a row */
    int32_t *prompt;  /* of gpt2_logits(), padded */

    /* Scratch of one layer. */
    void *norm_out;   /* rows × width */
    void *wide;       /* rows × inner: GELU's output */
    void *dwide;      /* rows × the larger of inner and 3 · width */
    void *dattention; /* rows × width */
    float *dx;        /* gradient of the residual stream */
    float *dnorm;     /* gradient of a norm's output */
    void *dx_narrow;  /* dx as bf16 */
    float *partials;  /* column sums */
    float *dweight;   /* fp32 product that becomes a bf16 gradient */
    void *attention_scratch;
    void *matmul_scratch;

    /* Of the head: logits are made for so many rows at a time. */
    size_t head_rows, head_ld;
    float *logits;
    float *dwte; /* fp32 sum that becomes a bf16 gradient */
};

/* One block: its unit's parameters are whole. */
fsdp_status_t gpt2_block_forward(gpt2_t *model, uint32_t layer,
                                 fsdp_error_t *err);
fsdp_status_t gpt2_block_backward(gpt2_t *model, uint32_t layer,
                                  fsdp_error_t *err);

/* The root unit: embeddings at the bottom, norm and vocabulary at the top. */
void gpt2_embed_forward(gpt2_t *model);
void gpt2_embed_backward(gpt2_t *model);
void gpt2_final_norm(gpt2_t *model);

/**
 * Losses of all rows, from the last norm's output.
 *
 * @param grads  Also dx, and the gradients of wte and the last norm.
 */
fsdp_status_t gpt2_head(gpt2_t *model, bool grads, fsdp_error_t *err);

/* Rows whose logits are held at a time: by the vocabulary alone, since it
 * decides in which order the gradient of wte is summed. */
size_t gpt2_head_rows(const gpt2_config_t *config);

/* Logits of one row. */
fsdp_status_t gpt2_head_logits(gpt2_t *model, size_t row, float *logits,
                               fsdp_error_t *err);

/* Make ready all products of micro-batches of the largest size. */
fsdp_status_t gpt2_block_prepare(gpt2_t *model, fsdp_error_t *err);
fsdp_status_t gpt2_head_prepare(gpt2_t *model, fsdp_error_t *err);

#endif
