/* What the parts of a product are, and who computes one. */
#ifndef FSDP_NN_MATMUL_PRIVATE_H
#define FSDP_NN_MATMUL_PRIVATE_H

#include "lib/nn/matmul.h"

/* Part i holds rows (or columns) from i * length on; the last one is shorter
 * or empty of none. */
typedef struct {
    bool by_rows;
    uint64_t length;
    uint64_t num;
    uint64_t last; /* length of the last one */
} matmul_split_t;

void matmul_split(const matmul_shape_t *shape, matmul_split_t *split_p);

/* The plain product of one part; the oracle of the tests, too. */
void matmul_plain(const matmul_shape_t *shape, const void *a, const void *b,
                  const void *bias, void *c);

#endif
