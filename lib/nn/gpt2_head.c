#include "config.h"

#include "lib/nn/gpt2_private.h"

#include "lib/nn/vec.h"
#include "lib/util/check.h"

/* At most so many logits are held, but those of 64 rows. */
#define HEAD_LOGITS    (UINT64_C(1) << 24)
#define HEAD_ROWS_MOST 512

size_t gpt2_head_rows(const gpt2_config_t *config)
{
    size_t rows = HEAD_LOGITS / config->vocab / 64 * 64;

    return (rows < 64) ? 64 : (rows > HEAD_ROWS_MOST) ? HEAD_ROWS_MOST : rows;
}

/* Gradients of logits take the place of the logits; narrow ones fill half of
 * each row. */
static size_t dlogits_ld(const gpt2_t *m)
{
    return (m->dtype == FSDP_BF16) ? 2 * m->head_ld : m->head_ld;
}

static matmul_shape_t logits_shape(const gpt2_t *m, size_t rows)
{
    return (matmul_shape_t){
        .m = rows,
        .n = m->vocab,
        .k = m->width,
        .lda = m->width,
        .ldb = m->width,
        .ldc = m->head_ld,
        .trans_b = true,
        .in = m->dtype,
        .out = FSDP_F32,
    };
}

static matmul_shape_t input_shape(const gpt2_t *m, size_t rows)
{
    return (matmul_shape_t){
        .m = rows,
        .n = m->width,
        .k = m->vocab,
        .lda = dlogits_ld(m),
        .ldb = m->width,
        .ldc = m->width,
        .in = m->dtype,
        .out = FSDP_F32,
    };
}

static matmul_shape_t weight_shape(const gpt2_t *m, size_t rows, bool add)
{
    return (matmul_shape_t){
        .m = m->vocab,
        .n = m->width,
        .k = rows,
        .lda = dlogits_ld(m),
        .ldb = m->width,
        .ldc = m->width,
        .trans_a = true,
        .in = m->dtype,
        .out = FSDP_F32,
        .add = add,
    };
}

/* The chunks of a micro-batch: how many rows the one at @a first has. */
static size_t chunk_rows(const gpt2_t *m, size_t rows, size_t first)
{
    return (rows - first < m->head_rows) ? rows - first : m->head_rows;
}

fsdp_status_t gpt2_head_prepare(gpt2_t *m, fsdp_error_t *err)
{
    for (size_t first = 0; first < m->max_rows; first += m->head_rows) {
        size_t rows = chunk_rows(m, m->max_rows, first);
        matmul_shape_t logits = logits_shape(m, rows);
        matmul_shape_t input = input_shape(m, rows);
        matmul_shape_t weight = weight_shape(m, rows, first > 0);

        FSDP_TRY(matmul_prepare(m->matmul, &logits, err));
        if (m->train) {
            FSDP_TRY(matmul_prepare(m->matmul, &input, err));
            FSDP_TRY(matmul_prepare(m->matmul, &weight, err));
        }
    }
    return FSDP_OK;
}

static const char *final_row(const gpt2_t *m, size_t row)
{
    return (const char *)m->final + row * m->width * precision_size(m->dtype);
}

static layer_norm_t final_norm(const gpt2_t *m)
{
    return (layer_norm_t){
        .weight = fsdp_param_data(m->norm_w),
        .bias = fsdp_param_data(m->norm_b),
        .type = m->dtype,
        .eps = m->config.norm_eps,
        .mean = m->mean,
        .rstd = m->rstd,
    };
}

void gpt2_final_norm(gpt2_t *m)
{
    layer_norm_t norm = final_norm(m);
    const float *residual = m->blocks[m->config.layers - 1].middle;

    layer_norm(m->threads, &norm, m->x_last, residual, m->final, m->dtype,
               false, m->rows, m->width);
}

/* Where the gradient of wte is summed in fp32: in place, unless it is bf16. */
static float *wte_sum(const gpt2_t *m)
{
    return (m->reduce == FSDP_BF16) ? m->dwte : fsdp_param_grad(m->wte);
}

static fsdp_status_t head_chunk(gpt2_t *m, size_t first, bool grads,
                                fsdp_error_t *err)
{
    size_t rows = chunk_rows(m, m->rows, first);
    const void *wte = fsdp_param_data(m->wte);
    matmul_shape_t logits = logits_shape(m, rows);
    matmul_shape_t input = input_shape(m, rows);
    matmul_shape_t weight = weight_shape(m, rows, first > 0);

    FSDP_TRY(matmul_run(m->matmul, &logits, final_row(m, first), wte, NULL,
                        m->logits, err));
    layer_cross_entropy(m->threads, m->logits, m->head_ld, rows, m->vocab,
                        m->targets + first, grads, 1.0f / (float)m->rows,
                        m->dtype, m->losses + first);
    if (!grads) {
        return FSDP_OK;
    }

    FSDP_TRY(matmul_run(m->matmul, &input, m->logits, wte, NULL,
                        m->dnorm + first * m->width, err));
    return matmul_run(m->matmul, &weight, m->logits, final_row(m, first), NULL,
                      wte_sum(m), err);
}

fsdp_status_t gpt2_head(gpt2_t *m, bool grads, fsdp_error_t *err)
{
    layer_norm_t norm = final_norm(m);

    for (size_t first = 0; first < m->rows; first += m->head_rows) {
        FSDP_TRY(head_chunk(m, first, grads, err));
    }
    if (grads) {
        layer_norm_back(m->threads, &norm, m->x_last, m->dnorm, m->dx, false,
                        m->rows, m->width, fsdp_param_grad(m->norm_w),
                        fsdp_param_grad(m->norm_b), m->reduce, m->partials);
    }
    return FSDP_OK;
}

fsdp_status_t gpt2_head_logits(gpt2_t *m, size_t row, float *logits,
                               fsdp_error_t *err)
{
    matmul_shape_t shape = logits_shape(m, 1);

    shape.ldc = m->vocab;
    return matmul_run(m->matmul, &shape, final_row(m, row),
                      fsdp_param_data(m->wte), NULL, logits, err);
}

void gpt2_embed_forward(gpt2_t *m)
{
    layer_embed(m->threads, m->blocks[0].x, fsdp_param_data(m->wte),
                fsdp_param_data(m->wpe), m->dtype, m->tokens, m->now_seq + 1,
                m->now_batch, m->now_seq, m->width);
}

void gpt2_embed_backward(gpt2_t *m)
{
    layer_embed_back(m->threads, wte_sum(m), fsdp_param_grad(m->wpe), m->reduce,
                     m->dx, m->tokens, m->now_seq + 1, m->now_batch, m->now_seq,
                     m->width);
    if (m->reduce == FSDP_BF16) {
        layer_convert(m->threads, fsdp_param_grad(m->wte), FSDP_BF16, m->dwte,
                      FSDP_F32, m->vocab * m->width);
    }
}
