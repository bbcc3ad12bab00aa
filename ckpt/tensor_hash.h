/*
 * SHA-256 of tensors: of their row-major little-endian bytes, as a manifest
 * of other tools' checkpoints gives it.
 */
#ifndef FSDP_TENSOR_HASH_H
#define FSDP_TENSOR_HASH_H

#include "ckpt/fsdp_ckpt.h"

enum { TENSOR_HASH_SIZE = 32 };

typedef struct {
    bool known; /* false: it could not be read whole */
    unsigned char sha256[TENSOR_HASH_SIZE];
} tensor_hash_t;

/* Told when a tensor's bytes are damaged; false ends the call with
 * FSDP_ERR_CANCELLED. */
typedef bool (*tensor_damage_f)(const fsdp_error_t *why, void *arg);

/**
 * Hash the tensors of a checkpoint, in bounded memory.
 *
 * @param wanted    One a tensor; NULL: all.
 * @param engine    max_mem is for buffers of both reading and hashing.
 * @param hashes    One a tensor.
 * @param bytes_p   Bytes read from files are added.
 *
 * @return FSDP_ERR_IO and others of fsdp_ckpt_read(), but damage is told to
 *         @a damage.
 */
fsdp_status_t tensor_hash_all(fsdp_ckpt_t *ckpt,
                              const fsdp_ckpt_engine_t *engine,
                              const bool *wanted, tensor_damage_f damage,
                              void *arg, tensor_hash_t *hashes,
                              uint64_t *bytes_p, fsdp_error_t *err);

/* 64 hexadecimal digits and a NUL. */
void tensor_hash_text(const tensor_hash_t *hash,
                      char text[2 * TENSOR_HASH_SIZE + 1]);

#endif
