#include "config.h"

#include "lib/nn/attention.h"

#include <math.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "lib/nn/vec.h"

#define BLOCK 64
/* Rows of a micro-tile, which is one or two vectors wide. */
#define TILE_ROWS 8

#define MASKED (-1e30f)

/* One head of one sequence as fp32, padded with zeros: so many rows, so many
 * columns that no tile has an edge. */
typedef struct {
    size_t seq;  /* real ones */
    size_t rows; /* seq to a multiple of BLOCK */
    size_t d;    /* real ones */
    size_t cols; /* d to a multiple of VEC */
    float scale;
    size_t ld_qkv, ld_out; /* elements from one token to the next */
    fsdp_precision_t type;
} head_t;

/* Scratch of a thread. */
typedef struct {
    float *q, *k_t, *v;      /* forward; q is scaled */
    float *k, *v_t, *dout;   /* backward, besides q and k_t */
    float *dk, *dv, *delta;  /* delta: dout · out of each row */
    float *acc;              /* BLOCK × cols: out or dq */
    float *scores, *dscores; /* BLOCK × BLOCK */
} work_t;

static size_t round_up(size_t x, size_t to)
{
    return (x + to - 1) / to * to;
}

static size_t work_floats(const attention_shape_t *shape)
{
    size_t rows = round_up(shape->seq, BLOCK);
    size_t cols = round_up(shape->head_size, VEC);

    return 8 * rows * cols + rows + BLOCK * cols + 2 * BLOCK * BLOCK;
}

size_t attention_scratch_size(const attention_shape_t *shape, uint32_t threads)
{
    return work_floats(shape) * sizeof(float) * threads;
}

static work_t work_of_thread(const attention_shape_t *shape, const head_t *h,
                             void *scratch)
{
    size_t thread = 0, whole = h->rows * h->cols;
    float *p;
    work_t w;

#ifdef _OPENMP
    thread = (size_t)omp_get_thread_num();
#endif
    p = (float *)scratch + thread * work_floats(shape);
    w.q = p;
    w.k_t = p + whole;
    w.v = w.k = p + 2 * whole;
    w.v_t = p + 3 * whole;
    w.dout = p + 4 * whole;
    w.dk = p + 5 * whole;
    w.dv = p + 6 * whole;
    w.delta = p + 8 * whole;
    w.acc = w.delta + h->rows;
    w.scores = w.acc + BLOCK * h->cols;
    w.dscores = w.scores + BLOCK * BLOCK;
    return w;
}

/* --- Tiles ---------------------------------------------------------------- */

#define TILE_EACH(_do) _do(0) _do(1) _do(2) _do(3) _do(4) _do(5) _do(6) _do(7)

/*
 * c (8 × 16 or 32) = or += a · b over @a depth.  Elements of a lie a_row and
 * a_col apart, so that it may be a transposed one.
 */
NN_INLINE void tile_wide(size_t depth, const float *a, size_t a_row,
                         size_t a_col, const float *b, size_t ldb, float *c,
                         size_t ldc, bool add)
{
#define DECLARE(_i) vf_t x##_i = {0}, y##_i = {0};
#define LOAD(_i)                             \
    x##_i = vec_load(c, FSDP_F32, (_i)*ldc); \
    y##_i = vec_load(c, FSDP_F32, (_i)*ldc + VEC);
#define STEP(_i)                 \
    x##_i += b0 * a[(_i)*a_row]; \
    y##_i += b1 * a[(_i)*a_row];
#define STORE(_i)                            \
    vec_store(c, FSDP_F32, (_i)*ldc, x##_i); \
    vec_store(c, FSDP_F32, (_i)*ldc + VEC, y##_i);
    TILE_EACH(DECLARE)

    if (add) {
        TILE_EACH(LOAD)
    }
    for (size_t p = 0; p < depth; p++, a += a_col, b += ldb) {
        vf_t b0 = vec_load(b, FSDP_F32, 0), b1 = vec_load(b, FSDP_F32, VEC);

        TILE_EACH(STEP)
    }
    TILE_EACH(STORE)
#undef DECLARE
#undef LOAD
#undef STEP
#undef STORE
}

NN_INLINE void tile_narrow(size_t depth, const float *a, size_t a_row,
                           size_t a_col, const float *b, size_t ldb, float *c,
                           size_t ldc, bool add)
{
#define DECLARE(_i) vf_t x##_i = {0};
#define LOAD(_i)    x##_i = vec_load(c, FSDP_F32, (_i)*ldc);
#define STEP(_i)    x##_i += b0 * a[(_i)*a_row];
#define STORE(_i)   vec_store(c, FSDP_F32, (_i)*ldc, x##_i);
    TILE_EACH(DECLARE)

    if (add) {
        TILE_EACH(LOAD)
    }
    for (size_t p = 0; p < depth; p++, a += a_col, b += ldb) {
        vf_t b0 = vec_load(b, FSDP_F32, 0);

        TILE_EACH(STEP)
    }
    TILE_EACH(STORE)
#undef DECLARE
#undef LOAD
#undef STEP
#undef STORE
}

/* In a block on the diagonal some of a product is known to be zero, or not
 * needed: of scores what is right of the diagonal; of what is summed over keys
 * those behind a query; of what is summed over queries those before a key. */
typedef enum { WHOLE, SCORES, OVER_KEYS, OVER_QUERIES } reach_t;

/* c = or += a · b for rows a multiple of 8 and columns a multiple of 16.  Not
 * inlined: callers are clones themselves, and call theirs. */
NN_CLONES static void product(reach_t reach, size_t rows, size_t cols,
                              size_t depth, const float *a, size_t a_row,
                              size_t a_col, const float *b, size_t ldb,
                              float *c, size_t ldc, bool add)
{
    for (size_t j = 0; j < cols; j += 2 * VEC) {
        for (size_t i = 0; i < rows; i += TILE_ROWS) {
            size_t from = (reach == OVER_QUERIES) ? i : 0, to = depth;

            if (reach == OVER_KEYS && i + TILE_ROWS < depth) {
                to = i + TILE_ROWS;
            }
            if ((reach == SCORES && j >= i + TILE_ROWS) || from >= to) {
                continue;
            }
            if (j + VEC < cols) {
                tile_wide(to - from, a + i * a_row + from * a_col, a_row, a_col,
                          b + from * ldb + j, ldb, c + i * ldc + j, ldc, add);
            } else {
                tile_narrow(to - from, a + i * a_row + from * a_col, a_row,
                            a_col, b + from * ldb + j, ldb, c + i * ldc + j,
                            ldc, add);
            }
        }
    }
}

/* --- Packing -------------------------------------------------------------- */

NN_INLINE void pack(const head_t *h, fsdp_precision_t type, const void *from,
                    size_t ld, float scale, float *to)
{
    for (size_t t = 0; t < h->rows; t++) {
        for (size_t i = 0; i < h->cols; i += VEC) {
            vf_t x = {0};

            if (t < h->seq && i < h->d) {
                x = vec_get(from, type, t * ld + i, t * ld + h->d) * scale;
            }
            vec_store(to, FSDP_F32, t * h->cols + i, x);
        }
    }
}

NN_INLINE void transpose(const head_t *h, const float *from, float *to)
{
    for (size_t i = 0; i < h->cols; i += VEC) {
        for (size_t t = 0; t < h->rows; t += VEC) {
            for (size_t x = 0; x < VEC; x++) {
                for (size_t y = 0; y < VEC; y++) {
                    to[(i + x) * h->rows + t + y] =
                        from[(t + y) * h->cols + i + x];
                }
            }
        }
    }
}

NN_INLINE void unpack(const head_t *h, fsdp_precision_t type, size_t rows,
                      const float *from, void *to, size_t first, size_t ld,
                      float scale)
{
    for (size_t t = 0; t < rows; t++) {
        size_t at = (first + t) * ld;

        for (size_t i = 0; i < h->d; i += VEC) {
            vec_put(to, type, at + i,
                    vec_load(from, FSDP_F32, t * h->cols + i) * scale,
                    at + h->d);
        }
    }
}

/* --- Forward -------------------------------------------------------------- */

/* Columns of a row that are looked at: in a block on the diagonal up to it, by
 * whole vectors. */
NN_INLINE size_t row_end(bool diagonal, size_t i)
{
    return diagonal ? (i + VEC) / VEC * VEC : BLOCK;
}

/* Hide from each row the keys behind it, in a block on the diagonal. */
NN_INLINE void mask_diagonal(float *scores, size_t rows)
{
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = i + 1; j < row_end(true, i); j++) {
            scores[i * BLOCK + j] = MASKED;
        }
    }
}

/* Turn scores into weights relative to the largest seen so far; what was summed
 * before shrinks by a factor. */
NN_INLINE void softmax_block(bool diagonal, size_t rows, float *scores,
                             float *max, float *sum, float *shrink)
{
    float fresh[BLOCK];

    for (size_t i = 0; i < rows; i++) {
        const float *s = scores + i * BLOCK;
        vf_t most = vec_load(s, FSDP_F32, 0);
        float largest;

        for (size_t j = VEC; j < row_end(diagonal, i); j += VEC) {
            most = vec_max(most, vec_load(s, FSDP_F32, j));
        }
        largest = vec_largest(most);
        fresh[i] = (largest > max[i]) ? largest : max[i];
    }
    for (size_t i = rows; i < BLOCK; i++) {
        fresh[i] = max[i];
    }
    for (size_t i = 0; i < BLOCK; i += VEC) {
        vf_t now = vec_load(fresh, FSDP_F32, i);

        vec_store(shrink, FSDP_F32, i,
                  vec_exp(vec_load(max, FSDP_F32, i) - now));
        vec_store(max, FSDP_F32, i, now);
    }
    for (size_t i = 0; i < rows; i++) {
        float *s = scores + i * BLOCK;
        vf_t part = {0};

        for (size_t j = 0; j < row_end(diagonal, i); j += VEC) {
            vf_t p = vec_exp(vec_load(s, FSDP_F32, j) - max[i]);

            vec_store(s, FSDP_F32, j, p);
            part += p;
        }
        sum[i] = sum[i] * shrink[i] + vec_sum(part);
    }
}

NN_INLINE void scale_rows(const head_t *h, size_t rows, float *acc,
                          const float *factor)
{
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < h->cols; j += VEC) {
            vec_store(acc, FSDP_F32, i * h->cols + j,
                      vec_load(acc, FSDP_F32, i * h->cols + j) * factor[i]);
        }
    }
}

/* The queries from q0 on; `real` of them, `rows` with padding. */
NN_INLINE void forward_block(const head_t *h, fsdp_precision_t type,
                             const work_t *w, size_t q0, void *out, float *lse)
{
    size_t real = (h->seq - q0 < BLOCK) ? h->seq - q0 : BLOCK;
    size_t rows = round_up(real, TILE_ROWS);
    float max[BLOCK], sum[BLOCK], factor[BLOCK];

    for (size_t i = 0; i < BLOCK; i++) {
        max[i] = MASKED;
        sum[i] = 0;
    }
    memset(w->acc, 0, BLOCK * h->cols * sizeof(*w->acc));

    for (size_t k0 = 0; k0 <= q0; k0 += BLOCK) {
        bool diagonal = k0 == q0;

        product(diagonal ? SCORES : WHOLE, rows, BLOCK, h->d,
                w->q + q0 * h->cols, h->cols, 1, w->k_t + k0, h->rows,
                w->scores, BLOCK, false);
        if (diagonal) {
            mask_diagonal(w->scores, rows);
        }
        softmax_block(diagonal, rows, w->scores, max, sum, factor);
        if (k0 > 0) {
            scale_rows(h, rows, w->acc, factor);
        }
        product(diagonal ? OVER_KEYS : WHOLE, rows, h->cols, BLOCK, w->scores,
                BLOCK, 1, w->v + k0 * h->cols, h->cols, w->acc, h->cols, true);
    }

    for (size_t i = 0; i < real; i++) {
        factor[i] = 1.0f / sum[i];
        lse[q0 + i] = max[i] + logf(sum[i]);
    }
    scale_rows(h, real, w->acc, factor);
    unpack(h, type, real, w->acc, out, q0, h->ld_out, 1.0f);
}

NN_INLINE void forward_head(const head_t *h, fsdp_precision_t type,
                            const work_t *w, const void *q, const void *k,
                            const void *v, void *out, float *lse)
{
    pack(h, type, k, h->ld_qkv, 1.0f, w->v);
    transpose(h, w->v, w->k_t);
    pack(h, type, q, h->ld_qkv, h->scale, w->q);
    pack(h, type, v, h->ld_qkv, 1.0f, w->v);
    for (size_t q0 = 0; q0 < h->seq; q0 += BLOCK) {
        forward_block(h, type, w, q0, out, lse);
    }
}

NN_CLONES static void forward_any(const head_t *h, const work_t *w,
                                  const void *q, const void *k, const void *v,
                                  void *out, float *lse)
{
    if (h->type == FSDP_BF16) {
        forward_head(h, FSDP_BF16, w, q, k, v, out, lse);
    } else {
        forward_head(h, FSDP_F32, w, q, k, v, out, lse);
    }
}

static head_t head_shape(const attention_shape_t *shape)
{
    return (head_t){
        .seq = shape->seq,
        .rows = round_up(shape->seq, BLOCK),
        .d = shape->head_size,
        .cols = round_up(shape->head_size, VEC),
        .scale = 1.0f / sqrtf((float)shape->head_size),
        .ld_qkv = 3 * shape->heads * shape->head_size,
        .ld_out = shape->heads * shape->head_size,
        .type = shape->type,
    };
}

static size_t element_size(const attention_shape_t *shape)
{
    return precision_size(shape->type);
}

void attention(const attention_shape_t *shape, uint32_t threads,
               const void *qkv, void *out, float *lse, void *scratch)
{
    head_t h = head_shape(shape);
    size_t size = element_size(shape), third = shape->heads * h.d * size;

    NN_PARALLEL(threads, schedule(dynamic))
    for (size_t i = 0; i < shape->batch * shape->heads; i++) {
        size_t b = i / shape->heads, head = i % shape->heads * h.d;
        work_t w = work_of_thread(shape, &h, scratch);
        const char *q =
            (const char *)qkv + size * (b * h.seq * h.ld_qkv + head);

        forward_any(&h, &w, q, q + third, q + 2 * third,
                    (char *)out + size * (b * h.seq * h.ld_out + head),
                    lse + i * h.seq);
    }
}

/* --- Backward ------------------------------------------------------------- */

/* delta = the sum over a row of dout · out. */
NN_INLINE void row_products(const head_t *h, fsdp_precision_t type,
                            const work_t *w, const void *out)
{
    memset(w->delta, 0, h->rows * sizeof(*w->delta));
    for (size_t t = 0; t < h->seq; t++) {
        vf_t dot = {0};

        for (size_t i = 0; i < h->d; i += VEC) {
            dot += vec_get(out, type, t * h->ld_out + i, t * h->ld_out + h->d) *
                   vec_load(w->dout, FSDP_F32, t * h->cols + i);
        }
        w->delta[t] = vec_sum(dot);
    }
}

/* scores := weights, dscores := weights (dscores - delta). */
NN_INLINE void softmax_block_back(bool diagonal, const work_t *w, size_t rows,
                                  const float *lse, const float *delta)
{
    for (size_t i = 0; i < rows; i++) {
        float *s = w->scores + i * BLOCK, *ds = w->dscores + i * BLOCK;

        for (size_t j = 0; j < row_end(diagonal, i); j += VEC) {
            vf_t p = vec_exp(vec_load(s, FSDP_F32, j) - lse[i]);

            vec_store(s, FSDP_F32, j, p);
            vec_store(ds, FSDP_F32, j,
                      p * (vec_load(ds, FSDP_F32, j) - delta[i]));
        }
    }
}

/* Rows of padding have q = 0 and dout = 0: their weights meet zeros. */
NN_INLINE void backward_block(const head_t *h, fsdp_precision_t type,
                              const work_t *w, size_t q0, const float *lse,
                              void *dq)
{
    size_t real = (h->seq - q0 < BLOCK) ? h->seq - q0 : BLOCK;
    size_t rows = round_up(real, TILE_ROWS);
    const float *q = w->q + q0 * h->cols, *dout = w->dout + q0 * h->cols;
    float row_lse[BLOCK] = {0};

    memcpy(row_lse, lse + q0, real * sizeof(*lse));
    memset(w->acc, 0, BLOCK * h->cols * sizeof(*w->acc));

    for (size_t k0 = 0; k0 <= q0; k0 += BLOCK) {
        bool diagonal = k0 == q0;
        reach_t scores = diagonal ? SCORES : WHOLE;
        reach_t queries = diagonal ? OVER_QUERIES : WHOLE;
        size_t at = k0 * h->cols;

        product(scores, rows, BLOCK, h->d, q, h->cols, 1, w->k_t + k0, h->rows,
                w->scores, BLOCK, false);
        if (diagonal) {
            mask_diagonal(w->scores, rows);
        }
        product(scores, rows, BLOCK, h->d, dout, h->cols, 1, w->v_t + k0,
                h->rows, w->dscores, BLOCK, false);
        softmax_block_back(diagonal, w, rows, row_lse, w->delta + q0);
        if (q0 == 0) {
            /* The first token sees itself alone: its weight is 1 whatever its
             * score, and rounding must not say otherwise. */
            w->dscores[0] = 0;
        }

        product(queries, BLOCK, h->cols, rows, w->scores, 1, BLOCK, dout,
                h->cols, w->dv + at, h->cols, true);
        product(queries, BLOCK, h->cols, rows, w->dscores, 1, BLOCK, q, h->cols,
                w->dk + at, h->cols, true);
        product(diagonal ? OVER_KEYS : WHOLE, rows, h->cols, BLOCK, w->dscores,
                BLOCK, 1, w->k + at, h->cols, w->acc, h->cols, true);
    }
    unpack(h, type, real, w->acc, dq, q0, h->ld_qkv, h->scale);
}

typedef struct {
    const char *q, *k, *v, *out, *dout;
    char *dq, *dk, *dv;
    const float *lse;
} backward_t;

NN_INLINE void backward_head(const head_t *h, fsdp_precision_t type,
                             const work_t *w, const backward_t *x)
{
    size_t whole = h->rows * h->cols * sizeof(float);

    pack(h, type, x->v, h->ld_qkv, 1.0f, w->k);
    transpose(h, w->k, w->v_t);
    pack(h, type, x->k, h->ld_qkv, 1.0f, w->k);
    transpose(h, w->k, w->k_t);
    pack(h, type, x->q, h->ld_qkv, h->scale, w->q);
    pack(h, type, x->dout, h->ld_out, 1.0f, w->dout);
    row_products(h, type, w, x->out);
    memset(w->dk, 0, whole);
    memset(w->dv, 0, whole);

    for (size_t q0 = 0; q0 < h->seq; q0 += BLOCK) {
        backward_block(h, type, w, q0, x->lse, x->dq);
    }
    unpack(h, type, h->seq, w->dk, x->dk, 0, h->ld_qkv, 1.0f);
    unpack(h, type, h->seq, w->dv, x->dv, 0, h->ld_qkv, 1.0f);
}

NN_CLONES static void backward_any(const head_t *h, const work_t *w,
                                   const backward_t *x)
{
    if (h->type == FSDP_BF16) {
        backward_head(h, FSDP_BF16, w, x);
    } else {
        backward_head(h, FSDP_F32, w, x);
    }
}

void attention_back(const attention_shape_t *shape, uint32_t threads,
                    const void *qkv, const void *out, const float *lse,
                    const void *dout, void *dqkv, void *scratch)
{
    head_t h = head_shape(shape);
    size_t size = element_size(shape), third = shape->heads * h.d * size;

    NN_PARALLEL(threads, schedule(dynamic))
    for (size_t i = 0; i < shape->batch * shape->heads; i++) {
        size_t b = i / shape->heads, head = i % shape->heads * h.d;
        size_t at = size * (b * h.seq * h.ld_qkv + head);
        size_t at_out = size * (b * h.seq * h.ld_out + head);
        work_t w = work_of_thread(shape, &h, scratch);
        backward_t x = {
            .q = (const char *)qkv + at,
            .k = (const char *)qkv + at + third,
            .v = (const char *)qkv + at + 2 * third,
            .out = (const char *)out + at_out,
            .dout = (const char *)dout + at_out,
            .dq = (char *)dqkv + at,
            .dk = (char *)dqkv + at + third,
            .dv = (char *)dqkv + at + 2 * third,
            .lse = lse + i * h.seq,
        };

        backward_any(&h, &w, &x);
    }
}
