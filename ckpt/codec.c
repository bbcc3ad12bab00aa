#include "config.h"

#include "ckpt/codec.h"

#include <stdlib.h>
#include <string.h>

#if HAVE_ZSTD
#include <zstd.h>
#include <zstd_errors.h>
#endif

#include "lib/util/check.h"

#define INPUT      (128u << 10) /* that a step asks for at a time */
#define LEAST_WLOG 17           /* of zstd's windows: 128 KiB */
#define MOST_WLOG  30

typedef struct stage stage_t;

/* One step at work: it gives bytes, and takes them from the stage below. */
struct stage {
    codec_t *codec;
    stage_t *below; /* NULL: the source */
    fsdp_status_t (*read)(stage_t *stage, char *data, size_t bytes,
                          size_t *got_p, fsdp_error_t *err);
    void (*close)(stage_t *stage);
    size_t (*memory)(const stage_t *stage);
    void *state; /* of the library */
    char *input; /* INPUT bytes, of which [pos, end) are left */
    size_t pos, end;
    bool inside; /* a frame has begun and not ended */
};

struct codec {
    codec_config_t config;
    uint64_t next; /* encoded byte */
    unsigned num;
    stage_t stages[CODEC_MOST + 1];
};

static fsdp_status_t no_memory(const codec_t *codec, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory to decode it",
                          codec->config.what);
}

/* --- The source -------------------------------------------------------------- */

static fsdp_status_t read_source(stage_t *stage, char *data, size_t bytes,
                                 size_t *got_p, fsdp_error_t *err)
{
    codec_t *codec = stage->codec;
    uint64_t left = codec->config.length - codec->next;

    *got_p = (bytes < left) ? bytes : (size_t)left;
    if (*got_p == 0) {
        return FSDP_OK;
    }

    FSDP_TRY(codec->config.source(codec->config.arg, codec->next, data, *got_p,
                                  err));
    codec->next += *got_p;
    return FSDP_OK;
}

/* --- Streams ----------------------------------------------------------------- */

#if HAVE_ZSTD
/* More input, where none is left.  At the end none comes. */
static fsdp_status_t fill(stage_t *stage, fsdp_error_t *err)
{
    if (stage->pos < stage->end) {
        return FSDP_OK;
    }

    stage->pos = 0;
    return stage->below->read(stage->below, stage->input, INPUT, &stage->end,
                              err);
}

static fsdp_status_t add_input(stage_t *stage, fsdp_error_t *err)
{
    stage->input = malloc(INPUT);
    return (stage->input != NULL) ? FSDP_OK : no_memory(stage->codec, err);
}

static fsdp_status_t ends_too_soon(const stage_t *stage, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                          "%s: its compressed data ends too soon: the file is "
                          "damaged",
                          stage->codec->config.what);
}

/* --- Zstandard ---------------------------------------------------------------- */

static unsigned window_log(uint64_t max_mem)
{
    unsigned log = LEAST_WLOG;

    while (log < MOST_WLOG && 2ull << log <= max_mem) {
        log++;
    }

    return log;
}

static fsdp_status_t zstd_failed(const stage_t *stage, size_t rc,
                                 fsdp_error_t *err)
{
    const codec_t *codec = stage->codec;

    if (ZSTD_getErrorCode(rc) == ZSTD_error_frameParameter_windowTooLarge) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s: is compressed by zstd with a window of more "
                              "than %llu KiB, which takes too much memory: "
                              "compress it with a smaller window",
                              codec->config.what,
                              1ull << (window_log(codec->config.max_mem) - 10));
    }
    return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                          "%s: zstd cannot decode it (%s): the file is damaged",
                          codec->config.what, ZSTD_getErrorName(rc));
}

static fsdp_status_t read_zstd(stage_t *stage, char *data, size_t bytes,
                               size_t *got_p, fsdp_error_t *err)
{
    ZSTD_outBuffer out = {data, bytes, 0};
    size_t rc;

    while (out.pos < bytes) {
        ZSTD_inBuffer in;
        size_t before = out.pos;

        FSDP_TRY(fill(stage, err));
        in = (ZSTD_inBuffer){stage->input, stage->end, stage->pos};
        rc = ZSTD_decompressStream(stage->state, &out, &in);
        if (ZSTD_isError(rc)) {
            return zstd_failed(stage, rc, err);
        }
        if (in.pos > stage->pos || out.pos > before) {
            stage->inside = rc != 0;
            stage->pos = in.pos;
        } else if (stage->inside) {
            return ends_too_soon(stage, err);
        } else {
            break;
        }
    }

    *got_p = out.pos;
    return FSDP_OK;
}

static void close_zstd(stage_t *stage)
{
    ZSTD_freeDStream(stage->state);
}

static size_t memory_of_zstd(const stage_t *stage)
{
    return INPUT + ZSTD_sizeof_DStream(stage->state);
}

static fsdp_status_t open_zstd(stage_t *stage, fsdp_error_t *err)
{
    codec_t *codec = stage->codec;
    unsigned log = window_log(codec->config.max_mem);

    stage->read = read_zstd;
    stage->close = close_zstd;
    stage->memory = memory_of_zstd;
    stage->state = ZSTD_createDStream();
    if (stage->state == NULL ||
        ZSTD_isError(ZSTD_DCtx_setParameter(stage->state, ZSTD_d_windowLogMax,
                                            (int)log))) {
        return no_memory(codec, err);
    }
    return add_input(stage, err);
}
#else
static fsdp_status_t open_zstd(stage_t *stage, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                          "%s: is compressed by zstd, which this build of "
                          "libfsdp does not read: build it with libzstd "
                          "(Debian: libzstd-dev)",
                          stage->codec->config.what);
}
#endif

/* --- Chains ------------------------------------------------------------------- */

static fsdp_status_t open_stage(stage_t *stage, codec_kind_t kind,
                                fsdp_error_t *err)
{
    switch (kind) {
    case CODEC_ZSTD:
        return open_zstd(stage, err);
    }

    return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                          "%s: went through filter %d, which is not known here",
                          stage->codec->config.what, (int)kind);
}

fsdp_status_t codec_open(const codec_config_t *config, codec_t **codec_p,
                         fsdp_error_t *err)
{
    codec_t *codec = calloc(1, sizeof(*codec));
    fsdp_status_t status = FSDP_OK;

    if (codec == NULL || config->num_steps > CODEC_MOST) {
        free(codec);
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "%s: no memory to decode it", config->what);
    }

    codec->config = *config;
    codec->stages[0].codec = codec;
    codec->stages[0].read = read_source;
    for (unsigned i = 0; i < config->num_steps && status == FSDP_OK; i++) {
        stage_t *stage = &codec->stages[i + 1];

        stage->codec = codec;
        stage->below = stage - 1;
        codec->num++;
        status = open_stage(stage, config->steps[i].kind, err);
    }
    if (status != FSDP_OK) {
        codec_close(codec);
        return status;
    }

    *codec_p = codec;
    return FSDP_OK;
}

void codec_close(codec_t *codec)
{
    if (codec == NULL) {
        return;
    }

    for (unsigned i = 1; i <= codec->num; i++) {
        if (codec->stages[i].close != NULL) {
            codec->stages[i].close(&codec->stages[i]);
        }
        free(codec->stages[i].input);
    }
    free(codec);
}

fsdp_status_t codec_read(codec_t *codec, void *data, size_t bytes,
                         size_t *got_p, fsdp_error_t *err)
{
    stage_t *last = &codec->stages[codec->num];

    return last->read(last, data, bytes, got_p, err);
}

uint64_t codec_memory(const codec_t *codec)
{
    uint64_t memory = 0;

    for (unsigned i = 1; i <= codec->num; i++) {
        memory += codec->stages[i].memory(&codec->stages[i]);
    }

    return memory;
}
