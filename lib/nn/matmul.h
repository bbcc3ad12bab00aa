/*
 * Matrix products c = a · b (+ bias) or c += a · b, fp32 or bf16 with fp32
 * sums, by oneDNN, or by plain loops where it is not there.
 *
 * A product is cut into parts by its shape alone and each part is computed by
 * one thread, so that the bits do not depend on the number of threads.
 */
#ifndef FSDP_NN_MATMUL_H
#define FSDP_NN_MATMUL_H

#include "fsdp.h"

typedef struct matmul matmul_t;

typedef struct {
    uint64_t m, n, k;
    uint64_t lda, ldb, ldc; /* elements from one stored row to the next */
    fsdp_precision_t in;    /* of a and b */
    fsdp_precision_t out;   /* of c; bf16 only if `in` is */
    fsdp_precision_t bias_type;
    bool trans_a; /* a is stored k × m */
    bool trans_b; /* b is stored n × k */
    bool bias;    /* add a row of n values to each row of c */
    bool add;     /* add to what c holds */
} matmul_shape_t;

/**
 * @param threads  At least 1.
 * @param plain    Plain loops, even where oneDNN is there.
 */
fsdp_status_t matmul_create(uint32_t threads, bool plain, matmul_t **matmul_p,
                            fsdp_error_t *err);

/* NULL is allowed. */
void matmul_destroy(matmul_t *matmul);

/* Make ready what a product of this shape needs, so that matmul_run() of it
 * allocates nothing. */
fsdp_status_t matmul_prepare(matmul_t *matmul, const matmul_shape_t *shape,
                             fsdp_error_t *err);

/* Bytes of scratch that the prepared shapes need, all threads together. */
size_t matmul_scratch_size(const matmul_t *matmul);

/* Lend it, aligned to 64, until matmul_destroy().  Without it, and for shapes
 * that were not prepared and need more, oneDNN allocates its own. */
void matmul_set_scratch(matmul_t *matmul, void *scratch);

/**
 * @param bias  NULL unless shape->bias.
 *
 * @return FSDP_ERR_UNSUPPORTED or FSDP_ERR_NO_MEMORY with oneDNN's word for it.
 */
fsdp_status_t matmul_run(matmul_t *matmul, const matmul_shape_t *shape,
                         const void *a, const void *b, const void *bias,
                         void *c, fsdp_error_t *err);

#endif
