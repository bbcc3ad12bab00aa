/*
 * Bytes that went through filters when they were stored: compressed, shuffled,
 * checksummed, in another byte order.
 *
 * A codec gives the decoded bytes from front to back.  Each step pulls what it
 * needs from the one before it, the first from the source, so that a stream of
 * any length takes the memory of the steps alone.  Steps that need all of
 * their bytes at once (shuffle, fletcher32) hold these.
 */
#ifndef FSDP_CODEC_H
#define FSDP_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/util/fsdp_status.h"

typedef enum {
    CODEC_ZSTD = 1,       /* frames, one after the other */
    CODEC_DEFLATE = 2,    /* in zlib's frame */
    CODEC_SHUFFLE = 3,    /* first bytes of all elements, then second ones …;
                             param: bytes of an element */
    CODEC_FLETCHER32 = 4, /* HDF5's checksum behind the bytes */
    CODEC_SWAP = 5,       /* big-endian numbers; param: bytes of one */
    CODEC_LZF = 6         /* one block; param: bytes that it becomes */
} codec_kind_t;

enum { CODEC_MOST = 8 }; /* steps of a chain */

typedef struct {
    codec_kind_t kind;
    uint32_t param;
} codec_step_t;

typedef struct codec codec_t;

/* Read @a bytes encoded bytes from byte @a at of them on. */
typedef fsdp_status_t (*codec_source_f)(void *arg, uint64_t at, void *data,
                                        size_t bytes, fsdp_error_t *err);

typedef struct {
    const codec_step_t *steps; /* in the order in which they are undone */
    unsigned num_steps;        /* 0: the bytes are as they are */
    uint64_t length;           /* encoded bytes */
    codec_source_f source;
    void *arg;
    uint64_t max_mem; /* bytes that the steps may take */
    const char *what; /* for messages; borrowed until codec_close() */
} codec_config_t;

/* @return FSDP_ERR_UNSUPPORTED if this build lacks a library. */
fsdp_status_t codec_open(const codec_config_t *config, codec_t **codec_p,
                         fsdp_error_t *err);

/* NULL is allowed. */
void codec_close(codec_t *codec);

/**
 * The next bytes.
 *
 * @param got_p  Fewer than @a bytes only at the end.
 *
 * @return FSDP_ERR_CORRUPT: they are damaged, or end too soon;
 *         FSDP_ERR_UNSUPPORTED: more than max_mem is needed.
 */
fsdp_status_t codec_read(codec_t *codec, void *data, size_t bytes,
                         size_t *got_p, fsdp_error_t *err);

/* Bytes of memory that it has taken so far. */
uint64_t codec_memory(const codec_t *codec);

/* Bytes of memory that steps take at most, for @a length encoded bytes that
 * become @a bytes; of zstd if its window is no larger than these. */
uint64_t codec_needs(const codec_step_t *steps, unsigned num_steps,
                     uint64_t length, uint64_t bytes);

/* Do steps notice that the bytes were altered? */
bool codec_checks(const codec_step_t *steps, unsigned num_steps);

#endif
