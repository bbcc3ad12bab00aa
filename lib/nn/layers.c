#include "config.h"

#include "lib/nn/layers.h"

#include <math.h>

#include "lib/nn/vec.h"

/*
 * Kernels work on some rows and are compiled for several instruction sets; the
 * functions behind layers.h share the rows out among threads.  GCC does not
 * clone what it makes of an OpenMP loop: so the loops stay outside.
 */

/* For each block of rows, shared out among threads: its first row and how many
 * there are. */
/* clang-format off */
#define FOR_BLOCKS(_first, _count, _rows)                                  \
    NN_PARALLEL(threads, schedule(static))                                 \
    for (size_t _first = 0; _first < (_rows); _first += LAYER_ROWS)        \
        for (size_t _count = block_rows(_first, _rows), _once = 1; _once;  \
             _once = 0)
/* clang-format on */

static inline size_t block_rows(size_t first, size_t rows)
{
    return (rows - first < LAYER_ROWS) ? rows - first : LAYER_ROWS;
}

static inline void *offset(void *p, fsdp_precision_t type, size_t elements)
{
    return (char *)p + precision_size(type) * elements;
}

static inline const void *offset_const(const void *p, fsdp_precision_t type,
                                       size_t elements)
{
    return (const char *)p + precision_size(type) * elements;
}

size_t layer_partials(size_t rows, size_t width)
{
    return (rows + LAYER_ROWS - 1) / LAYER_ROWS * width;
}

/* --- Column sums ---------------------------------------------------------- */

/* dst[i] = sum over blocks of partials[block * ld + i], in order. */
NN_CLONES static void sum_partials(void *dst, fsdp_precision_t type,
                                   const float *partials, size_t blocks,
                                   size_t ld, size_t first, size_t end)
{
    for (size_t i = first; i < end; i += VEC) {
        vf_t sum = vec_get(partials, FSDP_F32, i, end);

        for (size_t b = 1; b < blocks; b++) {
            sum += vec_get(partials + b * ld, FSDP_F32, i, end);
        }
        vec_put(dst, type, i, sum, end);
    }
}

static void join_partials(uint32_t threads, void *dst, fsdp_precision_t type,
                          const float *partials, size_t rows, size_t ld,
                          size_t width)
{
    size_t blocks = (rows + LAYER_ROWS - 1) / LAYER_ROWS;

    FOR_BLOCKS(first, count, width)
    {
        sum_partials(dst, type, partials, blocks, ld, first, first + count);
    }
}

/* --- Conversion ----------------------------------------------------------- */

NN_CLONES static void convert(void *dst, fsdp_precision_t to, const void *src,
                              fsdp_precision_t from, size_t num)
{
    for (size_t i = 0; i < num; i += VEC) {
        vec_put(dst, to, i, vec_get(src, from, i, num), num);
    }
}

void layer_convert(uint32_t threads, void *dst, fsdp_precision_t to,
                   const void *src, fsdp_precision_t from, size_t num)
{
    const size_t piece = 1 << 16;

    NN_PARALLEL(threads, schedule(static))
    for (size_t i = 0; i < num; i += piece) {
        convert(offset(dst, to, i), to, offset_const(src, from, i), from,
                (num - i < piece) ? num - i : piece);
    }
}

/* --- GELU ----------------------------------------------------------------- */

#define GELU_A 0.7978845608f /* sqrt(2 / pi) */
#define GELU_B 0.044715f

/*
 * 0.5 (1 + tanh u) = 1 / (1 + e^-2u): no cancellation on either side.
 * @a slope_p gets the derivative of x * that.
 */
NN_INLINE vf_t gelu_tanh(vf_t x, vf_t *slope_p)
{
    vf_t square = x * x;
    vf_t u2 = x * (2 * GELU_A) * (square * GELU_B + 1.0f); /* 2 u */
    vf_t slope_u2 = (2 * GELU_A) * (square * (3 * GELU_B) + 1.0f);
    vf_t e = vec_exp(-u2);
    vf_t gate = 1.0f / (1.0f + e);

    /* gate' = gate (1 - gate) = gate^2 e */
    *slope_p = gate + x * slope_u2 * (gate * (gate * e));
    return x * gate;
}

NN_INLINE vf_t gelu_erf(vf_t x, vf_t *slope_p)
{
    vf_t density = vec_exp(x * x * -0.5f) * 0.3989422804f;
    vf_t gate;

    for (unsigned j = 0; j < VEC; j++) {
        gate[j] = 0.5f * erfcf(x[j] * -0.7071067812f);
    }

    *slope_p = gate + x * density;
    return x * gate;
}

NN_INLINE vf_t gelu(bool exact, vf_t x, vf_t *slope_p)
{
    return exact ? gelu_erf(x, slope_p) : gelu_tanh(x, slope_p);
}

NN_INLINE void gelu_run(bool exact, void *out, const void *in,
                        fsdp_precision_t type, size_t num)
{
    vf_t slope;

    for (size_t i = 0; i < num; i += VEC) {
        vf_t x = vec_get(in, type, i, num);

        vec_put(out, type, i, gelu(exact, x, &slope), num);
    }
}

NN_CLONES static void gelu_rows(bool exact, void *out, const void *in,
                                fsdp_precision_t type, size_t num)
{
    if (exact) {
        gelu_run(true, out, in, type, num);
    } else if (type == FSDP_BF16) {
        gelu_run(false, out, in, FSDP_BF16, num);
    } else {
        gelu_run(false, out, in, FSDP_F32, num);
    }
}

void layer_gelu(uint32_t threads, bool exact, void *out, const void *in,
                fsdp_precision_t type, size_t rows, size_t width)
{
    FOR_BLOCKS(first, count, rows)
    {
        gelu_rows(exact, offset(out, type, first * width),
                  offset_const(in, type, first * width), type, count * width);
    }
}

NN_INLINE void gelu_back_run(bool exact, void *out, void *grad, const void *in,
                             fsdp_precision_t type, size_t rows, size_t width,
                             float *sums)
{
    memset(sums, 0, width * sizeof(*sums));
    for (size_t r = 0; r < rows; r++) {
        for (size_t j = 0; j < width; j += VEC) {
            size_t i = r * width + j, end = (r + 1) * width;
            vf_t slope;
            vf_t y = gelu(exact, vec_get(in, type, i, end), &slope);
            vf_t g = vec_get(grad, type, i, end) * slope;

            vec_put(out, type, i, y, end);
            vec_put(grad, type, i, g, end);
            g += vec_get(sums, FSDP_F32, j, width);
            vec_put(sums, FSDP_F32, j, g, width);
        }
    }
}

NN_CLONES static void gelu_back_rows(bool exact, void *out, void *grad,
                                     const void *in, fsdp_precision_t type,
                                     size_t rows, size_t width, float *sums)
{
    if (exact) {
        gelu_back_run(true, out, grad, in, type, rows, width, sums);
    } else if (type == FSDP_BF16) {
        gelu_back_run(false, out, grad, in, FSDP_BF16, rows, width, sums);
    } else {
        gelu_back_run(false, out, grad, in, FSDP_F32, rows, width, sums);
    }
}

void layer_gelu_back(uint32_t threads, bool exact, void *out, void *grad,
                     const void *in, fsdp_precision_t type, size_t rows,
                     size_t width, void *dbias, fsdp_precision_t dbias_type,
                     float *partials)
{
    FOR_BLOCKS(first, count, rows)
    {
        gelu_back_rows(exact, offset(out, type, first * width),
                       offset(grad, type, first * width),
                       offset_const(in, type, first * width), type, count,
                       width, partials + first / LAYER_ROWS * width);
    }
    join_partials(threads, dbias, dbias_type, partials, rows, width, width);
}

/* --- Bias ----------------------------------------------------------------- */

NN_INLINE void bias_back_run(const void *in, fsdp_precision_t type, void *copy,
                             size_t rows, size_t width, float *sums)
{
    memset(sums, 0, width * sizeof(*sums));
    for (size_t r = 0; r < rows; r++) {
        for (size_t j = 0; j < width; j += VEC) {
            size_t i = r * width + j, end = (r + 1) * width;
            vf_t x = vec_get(in, type, i, end);

            if (copy != NULL) {
                vec_put(copy, FSDP_BF16, i, x, end);
            }
            x += vec_get(sums, FSDP_F32, j, width);
            vec_put(sums, FSDP_F32, j, x, width);
        }
    }
}

NN_CLONES static void bias_back_rows(const void *in, fsdp_precision_t type,
                                     void *copy, size_t rows, size_t width,
                                     float *sums)
{
    if (type == FSDP_BF16) {
        bias_back_run(in, FSDP_BF16, copy, rows, width, sums);
    } else if (copy != NULL) {
        bias_back_run(in, FSDP_F32, copy, rows, width, sums);
    } else {
        bias_back_run(in, FSDP_F32, NULL, rows, width, sums);
    }
}

void layer_bias_back(uint32_t threads, const void *in, fsdp_precision_t type,
                     void *copy, size_t rows, size_t width, void *dbias,
                     fsdp_precision_t dbias_type, float *partials)
{
    FOR_BLOCKS(first, count, rows)
    {
        bias_back_rows(offset_const(in, type, first * width), type,
                       (copy == NULL) ? NULL
                                      : offset(copy, FSDP_BF16, first * width),
                       count, width, partials + first / LAYER_ROWS * width);
    }
    join_partials(threads, dbias, dbias_type, partials, rows, width, width);
}

/* --- Layer norm ----------------------------------------------------------- */

NN_INLINE void norm_moments(const float *x, size_t width, float eps,
                            float *mean_p, float *rstd_p)
{
    vf_t sum = {0}, squares = {0};
    size_t i;
    float mean, var;

    for (i = 0; i < width; i += VEC) {
        sum += vec_get(x, FSDP_F32, i, width);
    }
    mean = vec_sum(sum) / (float)width;

    for (i = 0; i + VEC <= width; i += VEC) {
        vf_t d = vec_load(x, FSDP_F32, i) - mean;

        squares += d * d;
    }
    var = vec_sum(squares);
    for (; i < width; i++) {
        var += (x[i] - mean) * (x[i] - mean);
    }

    *mean_p = mean;
    *rstd_p = 1.0f / sqrtf(var / (float)width + eps);
}

NN_INLINE void norm_run(const layer_norm_t *n, fsdp_precision_t type,
                        fsdp_precision_t out_type, size_t first, float *x,
                        const float *residual, void *out, bool keep,
                        size_t rows, size_t width)
{
    for (size_t r = 0; r < rows; r++) {
        float *row = x + r * width;
        float *mean = &n->mean[first + r], *rstd = &n->rstd[first + r];

        if (residual != NULL) {
            for (size_t i = 0; i < width; i += VEC) {
                vf_t sum = vec_get(row, FSDP_F32, i, width) +
                           vec_get(residual + r * width, FSDP_F32, i, width);

                vec_put(row, FSDP_F32, i, sum, width);
            }
        }
        if (!keep) {
            norm_moments(row, width, n->eps, mean, rstd);
        }
        for (size_t i = 0; i < width; i += VEC) {
            vf_t y = (vec_get(row, FSDP_F32, i, width) - *mean) * *rstd;

            y = y * vec_get(n->weight, type, i, width) +
                vec_get(n->bias, type, i, width);
            vec_put(out, out_type, r * width + i, y, (r + 1) * width);
        }
    }
}

NN_CLONES static void norm_rows(const layer_norm_t *n, size_t first, float *x,
                                const float *residual, void *out,
                                fsdp_precision_t out_type, bool keep,
                                size_t rows, size_t width)
{
    if (n->type == FSDP_F32 && out_type == FSDP_F32) {
        norm_run(n, FSDP_F32, FSDP_F32, first, x, residual, out, keep, rows,
                 width);
    } else if (n->type == FSDP_BF16 && out_type == FSDP_BF16) {
        norm_run(n, FSDP_BF16, FSDP_BF16, first, x, residual, out, keep, rows,
                 width);
    } else {
        norm_run(n, n->type, out_type, first, x, residual, out, keep, rows,
                 width);
    }
}

void layer_norm(uint32_t threads, const layer_norm_t *norm, float *x,
                const float *residual, void *out, fsdp_precision_t out_type,
                bool keep, size_t rows, size_t width)
{
    FOR_BLOCKS(first, count, rows)
    {
        norm_rows(norm, first, x + first * width,
                  (residual == NULL) ? NULL : residual + first * width,
                  offset(out, out_type, first * width), out_type, keep, count,
                  width);
    }
}

/* @a sums: width values for the weight, then width for the bias. */
NN_INLINE void norm_back_run(const layer_norm_t *n, fsdp_precision_t type,
                             size_t first, const float *x, const float *dout,
                             float *dx, bool add, size_t rows, size_t width,
                             float *sums)
{
    memset(sums, 0, 2 * width * sizeof(*sums));
    for (size_t r = 0; r < rows; r++) {
        const float *xr = x + r * width, *gr = dout + r * width;
        float *dr = dx + r * width;
        float mean = n->mean[first + r], rstd = n->rstd[first + r];
        vf_t sum = {0}, dot = {0};
        float mean_g, mean_gx;

        for (size_t i = 0; i < width; i += VEC) {
            vf_t xhat = (vec_get(xr, FSDP_F32, i, width) - mean) * rstd;
            vf_t dy = vec_get(gr, FSDP_F32, i, width);
            vf_t g = dy * vec_get(n->weight, type, i, width);

            sum += g;
            dot += g * xhat;
            vec_put(sums, FSDP_F32, i,
                    vec_get(sums, FSDP_F32, i, width) + dy * xhat, width);
            vec_put(sums + width, FSDP_F32, i,
                    vec_get(sums + width, FSDP_F32, i, width) + dy, width);
        }
        mean_g = vec_sum(sum) / (float)width;
        mean_gx = vec_sum(dot) / (float)width;

        for (size_t i = 0; i < width; i += VEC) {
            vf_t xhat = (vec_get(xr, FSDP_F32, i, width) - mean) * rstd;
            vf_t g = vec_get(gr, FSDP_F32, i, width) *
                     vec_get(n->weight, type, i, width);
            vf_t d = (g - mean_g - xhat * mean_gx) * rstd;

            if (add) {
                d += vec_get(dr, FSDP_F32, i, width);
            }
            vec_put(dr, FSDP_F32, i, d, width);
        }
    }
}

NN_CLONES static void norm_back_rows(const layer_norm_t *n, size_t first,
                                     const float *x, const float *dout,
                                     float *dx, bool add, size_t rows,
                                     size_t width, float *sums)
{
    if (n->type == FSDP_BF16) {
        norm_back_run(n, FSDP_BF16, first, x, dout, dx, add, rows, width, sums);
    } else {
        norm_back_run(n, FSDP_F32, first, x, dout, dx, add, rows, width, sums);
    }
}

void layer_norm_back(uint32_t threads, const layer_norm_t *norm, const float *x,
                     const float *dout, float *dx, bool add, size_t rows,
                     size_t width, void *dweight, void *dbias,
                     fsdp_precision_t grad_type, float *partials)
{
    FOR_BLOCKS(first, count, rows)
    {
        norm_back_rows(norm, first, x + first * width, dout + first * width,
                       dx + first * width, add, count, width,
                       partials + first / LAYER_ROWS * 2 * width);
    }
    join_partials(threads, dweight, grad_type, partials, rows, 2 * width,
                  width);
    join_partials(threads, dbias, grad_type, partials + width, rows, 2 * width,
                  width);
}

/* --- Embeddings ----------------------------------------------------------- */

NN_CLONES static void embed_row(float *x, const void *wte, const void *wpe,
                                fsdp_precision_t type, size_t token,
                                size_t position, size_t width)
{
    const void *t = offset_const(wte, type, token * width);
    const void *p = offset_const(wpe, type, position * width);

    for (size_t i = 0; i < width; i += VEC) {
        vec_put(x, FSDP_F32, i,
                vec_get(t, type, i, width) + vec_get(p, type, i, width), width);
    }
}

void layer_embed(uint32_t threads, float *x, const void *wte, const void *wpe,
                 fsdp_precision_t type, const int32_t *tokens, size_t stride,
                 size_t batch, size_t seq, size_t width)
{
    FOR_BLOCKS(first, count, batch * seq)
    {
        for (size_t i = first; i < first + count; i++) {
            embed_row(x + i * width, wte, wpe, type,
                      (size_t)tokens[i / seq * stride + i % seq], i % seq,
                      width);
        }
    }
}

/* The rows of dx, in order, for some columns. */
NN_CLONES static void embed_back_columns(float *dwte, const float *dx,
                                         const int32_t *tokens, size_t stride,
                                         size_t batch, size_t seq, size_t width,
                                         size_t first, size_t end)
{
    for (size_t b = 0; b < batch; b++) {
        for (size_t p = 0; p < seq; p++) {
            float *sum = dwte + (size_t)tokens[b * stride + p] * width;
            const float *row = dx + (b * seq + p) * width;

            for (size_t i = first; i < end; i += VEC) {
                vec_put(sum, FSDP_F32, i,
                        vec_get(sum, FSDP_F32, i, end) +
                            vec_get(row, FSDP_F32, i, end),
                        end);
            }
        }
    }
}

NN_CLONES static void embed_back_position(void *dwpe, fsdp_precision_t type,
                                          const float *dx, size_t batch,
                                          size_t seq, size_t width)
{
    for (size_t i = 0; i < width; i += VEC) {
        vf_t sum = vec_get(dx, FSDP_F32, i, width);

        for (size_t b = 1; b < batch; b++) {
            sum += vec_get(dx + b * seq * width, FSDP_F32, i, width);
        }
        vec_put(dwpe, type, i, sum, width);
    }
}

void layer_embed_back(uint32_t threads, float *dwte, void *dwpe,
                      fsdp_precision_t dwpe_type, const float *dx,
                      const int32_t *tokens, size_t stride, size_t batch,
                      size_t seq, size_t width)
{
    FOR_BLOCKS(first, count, width)
    {
        embed_back_columns(dwte, dx, tokens, stride, batch, seq, width, first,
                           first + count);
    }
    FOR_BLOCKS(first, count, seq)
    {
        for (size_t p = first; p < first + count; p++) {
            embed_back_position(offset(dwpe, dwpe_type, p * width), dwpe_type,
                                dx + p * width, batch, seq, width);
        }
    }
}

/* --- Cross-entropy -------------------------------------------------------- */

/* So many exponentials are added up in fp32 before they join a double. */
#define SOFTMAX_BLOCK 1024

/* @a out may be @a logits: narrow values are stored behind those still read. */
NN_INLINE void softmax_back(const float *logits, void *out,
                            fsdp_precision_t type, size_t vocab, float log_sum,
                            float scale)
{
    for (size_t i = 0; i < vocab; i += VEC) {
        vf_t p = vec_exp(vec_get(logits, FSDP_F32, i, vocab) - log_sum);

        vec_put(out, type, i, p * scale, vocab);
    }
}

NN_CLONES static double cross_entropy_row(float *logits, size_t vocab,
                                          size_t target, bool dlogits,
                                          float scale, fsdp_precision_t type)
{
    vf_t most = vec_set(logits[0]);
    double sum = 0, log_sum;
    float max, at_target = logits[target];
    size_t i;

    for (i = 0; i + VEC <= vocab; i += VEC) {
        most = vec_max(most, vec_load(logits, FSDP_F32, i));
    }
    max = vec_largest(most);
    for (; i < vocab; i++) {
        max = (logits[i] > max) ? logits[i] : max;
    }

    for (size_t block = 0; block < vocab; block += SOFTMAX_BLOCK) {
        size_t end =
            (vocab - block < SOFTMAX_BLOCK) ? vocab : block + SOFTMAX_BLOCK;
        vf_t part = {0};

        for (i = block; i + VEC <= end; i += VEC) {
            part += vec_exp(vec_load(logits, FSDP_F32, i) - max);
        }
        sum += vec_sum(part);
        for (; i < end; i++) {
            sum += exp(logits[i] - max);
        }
    }
    log_sum = log(sum) + max;

    if (dlogits) {
        float p = (float)exp(at_target - log_sum) - 1.0f;
        uint16_t half;

        if (type == FSDP_BF16) {
            softmax_back(logits, logits, FSDP_BF16, vocab, (float)log_sum,
                         scale);
            half = bf16_from_float(p * scale);
            memcpy((char *)logits + 2 * target, &half, sizeof(half));
        } else {
            softmax_back(logits, logits, FSDP_F32, vocab, (float)log_sum,
                         scale);
            logits[target] = p * scale;
        }
    }
    return log_sum - at_target;
}

void layer_cross_entropy(uint32_t threads, float *logits, size_t ld,
                         size_t rows, size_t vocab, const int32_t *targets,
                         bool dlogits, float scale, fsdp_precision_t type,
                         double *loss)
{
    NN_PARALLEL(threads, schedule(static))
    for (size_t r = 0; r < rows; r++) {
        loss[r] = cross_entropy_row(logits + r * ld, vocab, (size_t)targets[r],
                                    dlogits, scale, type);
    }
}
