#include "config.h"

#include "lib/nn/gpt2_private.h"

#include "lib/util/check.h"

/* A linear layer y = x · w + b with w (in, out), and its two gradients. */
typedef struct {
    size_t in, out;
} linear_t;

enum { LINEAR_ATTN, LINEAR_PROJ, LINEAR_FC, LINEAR_OUT, NUM_LINEAR };

static linear_t linear_of(const gpt2_t *m, int which)
{
    switch (which) {
    case LINEAR_ATTN:
        return (linear_t){m->width, 3 * m->width};
    case LINEAR_PROJ:
        return (linear_t){m->width, m->width};
    case LINEAR_FC:
        return (linear_t){m->width, m->inner};
    default:
        return (linear_t){m->inner, m->width};
    }
}

/* Outputs to the residual stream are fp32, others of the model's type. */
static fsdp_precision_t output_type(const gpt2_t *m, int which)
{
    return (which == LINEAR_PROJ || which == LINEAR_OUT) ? FSDP_F32 : m->dtype;
}

/* Gradients of a norm's output are fp32, since they go into the stream. */
static fsdp_precision_t input_grad_type(const gpt2_t *m, int which)
{
    return (which == LINEAR_ATTN || which == LINEAR_FC) ? FSDP_F32 : m->dtype;
}

/* oneDNN makes bf16 of bf16 products only. */
static fsdp_precision_t weight_grad_type(const gpt2_t *m)
{
    return (m->dtype == FSDP_BF16) ? m->reduce : FSDP_F32;
}

static matmul_shape_t forward_shape(const gpt2_t *m, size_t rows, int which)
{
    linear_t l = linear_of(m, which);

    return (matmul_shape_t){
        .m = rows,
        .n = l.out,
        .k = l.in,
        .lda = l.in,
        .ldb = l.out,
        .ldc = l.out,
        .in = m->dtype,
        .out = output_type(m, which),
        .bias = true,
        .bias_type = m->dtype,
    };
}

static matmul_shape_t input_shape(const gpt2_t *m, size_t rows, int which)
{
    linear_t l = linear_of(m, which);

    return (matmul_shape_t){
        .m = rows,
        .n = l.in,
        .k = l.out,
        .lda = l.out,
        .ldb = l.out,
        .ldc = l.in,
        .trans_b = true,
        .in = m->dtype,
        .out = input_grad_type(m, which),
    };
}

static matmul_shape_t weight_shape(const gpt2_t *m, size_t rows, int which)
{
    linear_t l = linear_of(m, which);

    return (matmul_shape_t){
        .m = l.in,
        .n = l.out,
        .k = rows,
        .lda = l.in,
        .ldb = l.out,
        .ldc = l.out,
        .trans_a = true,
        .in = m->dtype,
        .out = weight_grad_type(m),
    };
}

fsdp_status_t gpt2_block_prepare(gpt2_t *m, fsdp_error_t *err)
{
    for (int which = 0; which < NUM_LINEAR; which++) {
        matmul_shape_t forward = forward_shape(m, m->max_rows, which);
        matmul_shape_t input = input_shape(m, m->max_rows, which);
        matmul_shape_t weight = weight_shape(m, m->max_rows, which);

        FSDP_TRY(matmul_prepare(m->matmul, &forward, err));
        if (m->train) {
            FSDP_TRY(matmul_prepare(m->matmul, &input, err));
            FSDP_TRY(matmul_prepare(m->matmul, &weight, err));
        }
    }
    return FSDP_OK;
}

static const void *data(const gpt2_block_t *b, int param)
{
    return fsdp_param_data(b->params[param]);
}

static void *grad(const gpt2_block_t *b, int param)
{
    return fsdp_param_grad(b->params[param]);
}

/* The weight's place; its bias comes next. */
static fsdp_status_t linear_forward(gpt2_t *m, const gpt2_block_t *b, int which,
                                    int weight, const void *x, void *y,
                                    fsdp_error_t *err)
{
    matmul_shape_t shape = forward_shape(m, m->rows, which);

    return matmul_run(m->matmul, &shape, x, data(b, weight),
                      data(b, weight + 1), y, err);
}

static fsdp_status_t linear_input(gpt2_t *m, const gpt2_block_t *b, int which,
                                  int weight, const void *dy, void *dx,
                                  fsdp_error_t *err)
{
    matmul_shape_t shape = input_shape(m, m->rows, which);

    return matmul_run(m->matmul, &shape, dy, data(b, weight), NULL, dx, err);
}

static fsdp_status_t linear_weight(gpt2_t *m, const gpt2_block_t *b, int which,
                                   int weight, const void *x, const void *dy,
                                   fsdp_error_t *err)
{
    matmul_shape_t shape = weight_shape(m, m->rows, which);
    void *dw = grad(b, weight);

    if (shape.out == m->reduce) {
        return matmul_run(m->matmul, &shape, x, dy, NULL, dw, err);
    }

    FSDP_TRY(matmul_run(m->matmul, &shape, x, dy, NULL, m->dweight, err));
    layer_convert(m->threads, dw, m->reduce, m->dweight, FSDP_F32,
                  shape.m * shape.n);
    return FSDP_OK;
}

static layer_norm_t norm_of(const gpt2_t *m, const gpt2_block_t *b, int weight)
{
    return (layer_norm_t){
        .weight = data(b, weight),
        .bias = data(b, weight + 1),
        .type = m->dtype,
        .eps = m->config.norm_eps,
        .mean = (weight == LN1_W) ? b->mean1 : b->mean2,
        .rstd = (weight == LN1_W) ? b->rstd1 : b->rstd2,
    };
}

/* The sum of the residual stream and a branch is taken where it is read next:
 * in the norm behind it. */
fsdp_status_t gpt2_block_forward(gpt2_t *m, uint32_t layer, fsdp_error_t *err)
{
    gpt2_block_t *b = &m->blocks[layer];
    float *next = (layer + 1 < m->config.layers) ? b[1].x : m->x_last;
    layer_norm_t norm1 = norm_of(m, b, LN1_W), norm2 = norm_of(m, b, LN2_W);

    layer_norm(m->threads, &norm1, b->x, (layer > 0) ? b[-1].middle : NULL,
               m->norm_out, m->dtype, false, m->rows, m->width);
    FSDP_TRY(
        linear_forward(m, b, LINEAR_ATTN, ATTN_W, m->norm_out, b->qkv, err));
    attention(&m->attention, m->threads, b->qkv, b->attention, b->lse,
              m->attention_scratch);
    FSDP_TRY(linear_forward(m, b, LINEAR_PROJ, PROJ_W, b->attention, b->middle,
                            err));

    layer_norm(m->threads, &norm2, b->middle, b->x, m->norm_out, m->dtype,
               false, m->rows, m->width);
    FSDP_TRY(
        linear_forward(m, b, LINEAR_FC, FC_W, m->norm_out, b->hidden, err));
    layer_gelu(m->threads, m->config.gelu_exact, m->wide, b->hidden, m->dtype,
               m->rows, m->inner);
    return linear_forward(m, b, LINEAR_OUT, OUT_W, m->wide, next, err);
}

/* The gradient of a branch's output is that of the stream; returned in the
 * type that products take. */
static const void *branch_grad(gpt2_t *m, const gpt2_block_t *b, int bias)
{
    layer_bias_back(m->threads, m->dx, FSDP_F32, m->dx_narrow, m->rows,
                    m->width, grad(b, bias), m->reduce, m->partials);
    return (m->dx_narrow != NULL) ? m->dx_narrow : m->dx;
}

/* dx += what comes back through a norm. */
static void norm_backward(gpt2_t *m, const gpt2_block_t *b, int weight,
                          const float *x)
{
    layer_norm_t norm = norm_of(m, b, weight);

    layer_norm_back(m->threads, &norm, x, m->dnorm, m->dx, true, m->rows,
                    m->width, grad(b, weight), grad(b, weight + 1), m->reduce,
                    m->partials);
}

static fsdp_status_t mlp_backward(gpt2_t *m, gpt2_block_t *b, fsdp_error_t *err)
{
    layer_norm_t norm2 = norm_of(m, b, LN2_W);
    const void *dy = branch_grad(m, b, OUT_B);

    FSDP_TRY(linear_input(m, b, LINEAR_OUT, OUT_W, dy, m->dwide, err));
    layer_gelu_back(m->threads, m->config.gelu_exact, m->wide, m->dwide,
                    b->hidden, m->dtype, m->rows, m->inner, grad(b, FC_B),
                    m->reduce, m->partials);
    FSDP_TRY(linear_weight(m, b, LINEAR_OUT, OUT_W, m->wide, dy, err));

    layer_norm(m->threads, &norm2, b->middle, NULL, m->norm_out, m->dtype, true,
               m->rows, m->width);
    FSDP_TRY(linear_weight(m, b, LINEAR_FC, FC_W, m->norm_out, m->dwide, err));
    FSDP_TRY(linear_input(m, b, LINEAR_FC, FC_W, m->dwide, m->dnorm, err));
    norm_backward(m, b, LN2_W, b->middle);
    return FSDP_OK;
}

static fsdp_status_t attention_backward(gpt2_t *m, gpt2_block_t *b,
                                        fsdp_error_t *err)
{
    layer_norm_t norm1 = norm_of(m, b, LN1_W);
    const void *dy = branch_grad(m, b, PROJ_B);

    FSDP_TRY(linear_weight(m, b, LINEAR_PROJ, PROJ_W, b->attention, dy, err));
    FSDP_TRY(linear_input(m, b, LINEAR_PROJ, PROJ_W, dy, m->dattention, err));
    attention_back(&m->attention, m->threads, b->qkv, b->attention, b->lse,
                   m->dattention, m->dwide, m->attention_scratch);
    layer_bias_back(m->threads, m->dwide, m->dtype, NULL, m->rows, 3 * m->width,
                    grad(b, ATTN_B), m->reduce, m->partials);

    layer_norm(m->threads, &norm1, b->x, NULL, m->norm_out, m->dtype, true,
               m->rows, m->width);
    FSDP_TRY(
        linear_weight(m, b, LINEAR_ATTN, ATTN_W, m->norm_out, m->dwide, err));
    FSDP_TRY(linear_input(m, b, LINEAR_ATTN, ATTN_W, m->dwide, m->dnorm, err));
    norm_backward(m, b, LN1_W, b->x);
    return FSDP_OK;
}

fsdp_status_t gpt2_block_backward(gpt2_t *m, uint32_t layer, fsdp_error_t *err)
{
    gpt2_block_t *b = &m->blocks[layer];

    FSDP_TRY(mlp_backward(m, b, err));
    return attention_backward(m, b, err);
}
