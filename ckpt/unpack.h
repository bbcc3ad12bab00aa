/*
 * An encoded stretch of a file as if it were decoded: bytes of it by their
 * place, in bounded memory.
 *
 * It is decoded once to learn its length; then its first and its last bytes
 * are kept, which is where archives have what describes them.  Others are
 * decoded again, from the front.
 */
#ifndef FSDP_UNPACK_H
#define FSDP_UNPACK_H

#include "ckpt/codec.h"

typedef struct unpack unpack_t;

/**
 * @param config    As for codec_open(); steps, source and what are borrowed
 *                  until unpack_close().
 * @param length_p  Of the decoded bytes.
 */
fsdp_status_t unpack_open(const codec_config_t *config, unpack_t **unpack_p,
                          uint64_t *length_p, fsdp_error_t *err);

/* NULL is allowed. */
void unpack_close(unpack_t *unpack);

/* A zip_source_t's read: @a unpack is an unpack_t. */
fsdp_status_t unpack_read(void *unpack, uint64_t at, void *data, size_t bytes,
                          fsdp_error_t *err);

/* Bytes of memory that decoding has taken. */
uint64_t unpack_memory(const unpack_t *unpack);

#endif
