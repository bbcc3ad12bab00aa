/*
 * The digest of a set of tensors (doc/numerics.md): two 64-bit words that do
 * not depend on how the tensors are sharded or in which order they are seen.
 *
 * Each holder adds what it holds to a digest that starts at zero; the sums of
 * all holders, modulo 2^64, are the digest of the whole.
 */
#ifndef FSDP_DIGEST_H
#define FSDP_DIGEST_H

#include <stdint.h>

typedef struct {
    uint64_t word[2];
} digest_t;

/* k_t of the tensor "kind/name", such as "model/transformer.wte.weight". */
uint64_t digest_key(const char *kind, const char *name);

/**
 * Add elements [first, first + count) of a tensor of 32-bit elements.
 *
 * @param key   digest_key() of the tensor.
 * @param bits  The @a count elements as they lie in memory.
 */
void digest_add(digest_t *digest, uint64_t key, const uint32_t *bits,
                uint64_t first, uint64_t count);

/* Add a tensor's constant: by the holder of element 0, rank 0 if none has. */
void digest_add_tensor(digest_t *digest, uint64_t key, uint64_t numel);

#endif
