#include "config.h"

#include "ckpt/unpack.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lib/util/check.h"

#define KEPT (256u << 10) /* bytes of either end */

struct unpack {
    codec_config_t config;
    codec_t *codec; /* has given the bytes before `next` */
    uint64_t next, length, memory;
    char *head;    /* KEPT bytes from the front */
    char *tail;    /* 2 * KEPT bytes, of which the last ones are there */
    uint64_t from; /* where the tail begins */
};

void unpack_close(unpack_t *unpack)
{
    if (unpack == NULL) {
        return;
    }

    codec_close(unpack->codec);
    free(unpack->head);
    free(unpack->tail);
    free(unpack);
}

static fsdp_status_t restart(unpack_t *unpack, fsdp_error_t *err)
{
    codec_close(unpack->codec);
    unpack->codec = NULL;
    unpack->next = 0;
    return codec_open(&unpack->config, &unpack->codec, err);
}

/* Decode all of it, and keep both ends. */
static fsdp_status_t measure(unpack_t *unpack, fsdp_error_t *err)
{
    size_t in_tail = 0, got;

    FSDP_TRY(restart(unpack, err));
    FSDP_TRY(codec_read(unpack->codec, unpack->head, KEPT, &got, err));
    unpack->from = unpack->next = got;
    while (got > 0) {
        if (in_tail == 2 * KEPT) {
            memcpy(unpack->tail, unpack->tail + KEPT, KEPT);
            in_tail = KEPT;
            unpack->from += KEPT;
        }
        FSDP_TRY(
            codec_read(unpack->codec, unpack->tail + in_tail, KEPT, &got, err));
        in_tail += got;
        unpack->next += got;
    }

    unpack->length = unpack->next;
    unpack->memory = codec_memory(unpack->codec);
    return FSDP_OK;
}

fsdp_status_t unpack_open(const codec_config_t *config, unpack_t **unpack_p,
                          uint64_t *length_p, fsdp_error_t *err)
{
    unpack_t *unpack = calloc(1, sizeof(*unpack));
    fsdp_status_t status;

    if (unpack != NULL) {
        unpack->config = *config;
        unpack->head = malloc(KEPT);
        unpack->tail = malloc(2 * KEPT);
    }
    if (unpack == NULL || unpack->head == NULL || unpack->tail == NULL) {
        unpack_close(unpack);
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "%s: no memory to decode it", config->what);
    }

    status = measure(unpack, err);
    if (status != FSDP_OK) {
        unpack_close(unpack);
        return status;
    }

    *unpack_p = unpack;
    *length_p = unpack->length;
    return FSDP_OK;
}

/* The next @a bytes; fewer are an error. */
static fsdp_status_t next_bytes(unpack_t *unpack, void *data, size_t bytes,
                                fsdp_error_t *err)
{
    size_t got;

    FSDP_TRY(codec_read(unpack->codec, data, bytes, &got, err));
    unpack->next += got;
    return (got == bytes) ? FSDP_OK
                          : fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                           "%s: has changed while it was read",
                                           unpack->config.what);
}

fsdp_status_t unpack_read(void *arg, uint64_t at, void *data, size_t bytes,
                          fsdp_error_t *err)
{
    char skipped[16 << 10];
    unpack_t *unpack = arg;

    if (at > unpack->length || bytes > unpack->length - at) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: becomes %" PRIu64
                              " bytes when it is decoded, should be more",
                              unpack->config.what, unpack->length);
    }
    if (at + bytes <= KEPT) {
        memcpy(data, unpack->head + at, bytes);
        return FSDP_OK;
    }
    if (at >= unpack->from) {
        memcpy(data, unpack->tail + (at - unpack->from), bytes);
        return FSDP_OK;
    }

    if (unpack->next > at) {
        FSDP_TRY(restart(unpack, err));
    }
    while (unpack->next < at) {
        uint64_t left = at - unpack->next;

        FSDP_TRY(next_bytes(
            unpack, skipped,
            (left < sizeof(skipped)) ? (size_t)left : sizeof(skipped), err));
    }
    return next_bytes(unpack, data, bytes, err);
}

uint64_t unpack_memory(const unpack_t *unpack)
{
    return unpack->memory;
}
