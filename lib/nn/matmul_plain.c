#include "config.h"

#include "lib/nn/matmul_private.h"

#include "lib/nn/vec.h"

#define PLAIN_COLS 64

NN_INLINE float element(const void *p, fsdp_precision_t type, uint64_t i)
{
    return (type == FSDP_BF16) ? bf16_to_float(((const uint16_t *)p)[i])
                               : ((const float *)p)[i];
}

/* Some columns of one row, the sums in order of k. */
NN_INLINE void plain_row(const matmul_shape_t *s, fsdp_precision_t in,
                         const void *a, const void *b, uint64_t i, uint64_t j0,
                         uint64_t cols, float *sum)
{
    uint64_t a_step = s->trans_a ? s->lda : 1;
    uint64_t a_at = s->trans_a ? i : i * s->lda;
    uint64_t b_row = s->trans_b ? 1 : s->ldb, b_col = s->trans_b ? s->ldb : 1;

    for (uint64_t p = 0; p < s->k; p++) {
        float x = element(a, in, a_at + p * a_step);

        for (uint64_t j = 0; j < cols; j++) {
            sum[j] += x * element(b, in, p * b_row + (j0 + j) * b_col);
        }
    }
}

void matmul_plain(const matmul_shape_t *s, const void *a, const void *b,
                  const void *bias, void *c)
{
    float sum[PLAIN_COLS];

    for (uint64_t i = 0; i < s->m; i++) {
        for (uint64_t j0 = 0; j0 < s->n; j0 += PLAIN_COLS) {
            uint64_t left = s->n - j0;
            uint64_t cols = (left < PLAIN_COLS) ? left : PLAIN_COLS;

            memset(sum, 0, sizeof(sum));
            if (s->in == FSDP_BF16) {
                plain_row(s, FSDP_BF16, a, b, i, j0, cols, sum);
            } else {
                plain_row(s, FSDP_F32, a, b, i, j0, cols, sum);
            }

            for (uint64_t j = 0; j < cols; j++) {
                uint64_t at = i * s->ldc + j0 + j;
                float x = sum[j];

                if (s->bias) {
                    x += element(bias, s->bias_type, j0 + j);
                }
                if (s->add) {
                    x += element(c, s->out, at);
                }
                if (s->out == FSDP_BF16) {
                    ((uint16_t *)c)[at] = bf16_from_float(x);
                } else {
                    ((float *)c)[at] = x;
                }
            }
        }
    }
}
