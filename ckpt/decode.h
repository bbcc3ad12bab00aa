/*
 * Copies from pieces that have to be decoded.
 *
 * An encoded stretch is decoded once, from front to back, in a buffer that
 * holds a part of it; what the copies ask for is handed on from there.  So the
 * order is that of the source, and the target is written in runs.
 */
#ifndef FSDP_DECODE_H
#define FSDP_DECODE_H

#include "ckpt/files.h"
#include "ckpt/plan.h"

/*
 * Decoders that stopped before their end, so that a reader that goes through a
 * large tensor in parts goes on where it was.  Safe to use from any thread.
 */
typedef struct decoders decoders_t;

/* @return NULL: no memory. */
decoders_t *decoders_create(void);
void decoders_destroy(decoders_t *decoders);

typedef struct {
    const plan_t *plan;
    files_t *files;       /* of the source */
    decoders_t *decoders; /* NULL: none is kept */
    uint64_t keep_mem;    /* bytes that kept ones may take */
    char *stage;          /* a buffer */
    size_t stage_bytes;   /* 64 at least */
    uint64_t max_mem;     /* bytes that decoding may take besides */

    /* Bytes of a PLAN_DECODE copy, from byte @a at of its range on. */
    fsdp_status_t (*put)(void *arg, const plan_copy_t *copy, uint64_t at,
                         const char *data, size_t bytes, fsdp_error_t *err);
    /* All bytes of a piece passed, and do not have its CRC-32. */
    fsdp_status_t (*mismatch)(void *arg, uint32_t piece, fsdp_error_t *err);
    /* Now and then: an error ends it. */
    fsdp_status_t (*go_on)(void *arg, fsdp_error_t *err);
    void *arg;

    uint64_t bytes_read; /* is added to */
} decode_t;

/**
 * Carry out PLAN_DECODE copies of one code (plan_same_code()), in the order of
 * the plan.
 *
 * @return FSDP_ERR_CORRUPT, naming file and tensor, and what put and mismatch
 *         return.
 */
fsdp_status_t decode_copies(decode_t *decode, const plan_copy_t *copies,
                            uint64_t num, fsdp_error_t *err);

#endif
