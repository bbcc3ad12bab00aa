#include "config.h"

#include "ckpt/codec.h"

#include <endian.h>
#include <isa-l.h>
#include <stdlib.h>
#include <string.h>

#if HAVE_ZSTD
#include <zstd.h>
#include <zstd_errors.h>
#endif

#include "lib/util/check.h"

#define INPUT      (128u << 10) /* that a step asks for at a time */
#define ZSTD_NEEDS (1u << 20)   /* besides the window */
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
    fsdp_status_t (*refill)(stage_t *stage, fsdp_error_t *err);
    uint32_t param;
    void *state;  /* of the library */
    char *buffer; /* of which [pos, end) are left: input, or what is given */
    size_t size, pos, end;
    bool inside; /* a frame has begun and not ended */
    bool done;   /* nothing more comes from below */
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

/* --- The source ----------------------------------------------------------- */

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

/* --- Streams -------------------------------------------------------------- */

/* More input, where none is left.  At the end none comes. */
static fsdp_status_t fill(stage_t *stage, fsdp_error_t *err)
{
    if (stage->pos < stage->end) {
        return FSDP_OK;
    }

    stage->pos = 0;
    return stage->below->read(stage->below, stage->buffer, stage->size,
                              &stage->end, err);
}

static fsdp_status_t add_buffer(stage_t *stage, size_t size, fsdp_error_t *err)
{
    stage->buffer = malloc(size + 1);
    stage->size = size;
    return (stage->buffer != NULL) ? FSDP_OK : no_memory(stage->codec, err);
}

static size_t memory_of_buffer(const stage_t *stage)
{
    return stage->size;
}

static fsdp_status_t damaged(const stage_t *stage, const char *how,
                             fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                          "%s: its encoded data %s: the file is damaged",
                          stage->codec->config.what, how);
}

/* --- Steps that work on a buffer ------------------------------------------ */

/* What is in the buffer, which is filled again as it gets empty. */
static fsdp_status_t read_buffer(stage_t *stage, char *data, size_t bytes,
                                 size_t *got_p, fsdp_error_t *err)
{
    size_t n;

    for (*got_p = 0; *got_p < bytes; *got_p += n) {
        if (stage->pos == stage->end) {
            stage->pos = stage->end = 0;
            FSDP_TRY(stage->refill(stage, err));
        }
        n = stage->end - stage->pos;
        n = (n < bytes - *got_p) ? n : bytes - *got_p;
        if (n == 0) {
            break;
        }
        memcpy(data + *got_p, stage->buffer + stage->pos, n);
        stage->pos += n;
    }

    return FSDP_OK;
}

/* All that comes from below, once. */
static fsdp_status_t take_all(stage_t *stage, fsdp_error_t *err)
{
    uint64_t most = stage->codec->config.max_mem;
    size_t got;

    while (!stage->done) {
        if (stage->end == stage->size) {
            size_t size = 2 * stage->size + INPUT;
            char *larger = (size <= 2 * most + INPUT)
                               ? realloc(stage->buffer, size + 1)
                               : NULL;

            if (larger == NULL) {
                return no_memory(stage->codec, err);
            }
            stage->buffer = larger;
            stage->size = size;
        }
        FSDP_TRY(stage->below->read(stage->below, stage->buffer + stage->end,
                                    stage->size - stage->end, &got, err));
        stage->end += got;
        stage->done = got == 0;
    }

    return FSDP_OK;
}

static void open_buffered(stage_t *stage,
                          fsdp_status_t (*refill)(stage_t *, fsdp_error_t *))
{
    stage->read = read_buffer;
    stage->memory = memory_of_buffer;
    stage->refill = refill;
}

static fsdp_status_t refill_shuffle(stage_t *stage, fsdp_error_t *err)
{
    size_t size = stage->param, count;
    char *given;

    if (stage->done) {
        return FSDP_OK;
    }

    FSDP_TRY(take_all(stage, err));
    given = malloc(stage->size + 1);
    if (given == NULL) {
        return no_memory(stage->codec, err);
    }
    count = stage->end / size;
    for (size_t b = 0; b < size; b++) {
        const char *from = stage->buffer + b * count;

        for (size_t i = 0; i < count; i++) {
            given[i * size + b] = from[i];
        }
    }
    memcpy(given + count * size, stage->buffer + count * size,
           stage->end - count * size);
    free(stage->buffer);
    stage->buffer = given;
    return FSDP_OK;
}

/* The checksum of HDF5's filter: of 16-bit words, big-endian. */
static uint32_t fletcher32(const unsigned char *data, size_t bytes)
{
    uint64_t low = 0, high = 0;

    for (size_t i = 0; i < bytes; i += 2) {
        low += (uint64_t)data[i] << 8 | ((i + 1 < bytes) ? data[i + 1] : 0);
        high += low;
        if (i % 512 == 0) {
            low = (low & 0xffff) + (low >> 16);
            high = (high & 0xffff) + (high >> 16);
        }
    }
    for (int i = 0; i < 4; i++) {
        low = (low & 0xffff) + (low >> 16);
        high = (high & 0xffff) + (high >> 16);
    }

    return (uint32_t)(high << 16 | low);
}

static fsdp_status_t refill_fletcher32(stage_t *stage, fsdp_error_t *err)
{
    uint32_t there, sum;

    if (stage->done) {
        return FSDP_OK;
    }

    FSDP_TRY(take_all(stage, err));
    if (stage->end < sizeof(there)) {
        return damaged(stage, "has no checksum", err);
    }
    stage->end -= sizeof(there);
    memcpy(&there, stage->buffer + stage->end, sizeof(there));
    sum = fletcher32((const unsigned char *)stage->buffer, stage->end);
    /* HDF5 before 1.6.3 wrote it in another order. */
    if (le32toh(there) != sum && le32toh(there) != ((sum & 0x00ff00ffu) << 8 |
                                                    (sum >> 8 & 0x00ff00ffu))) {
        return damaged(stage, "does not have its checksum (fletcher32)", err);
    }

    return FSDP_OK;
}

static fsdp_status_t refill_swap(stage_t *stage, fsdp_error_t *err)
{
    size_t size = stage->param, got;

    while (stage->end < stage->size) {
        FSDP_TRY(stage->below->read(stage->below, stage->buffer + stage->end,
                                    stage->size - stage->end, &got, err));
        stage->end += got;
        if (got == 0) {
            break;
        }
    }
    for (char *at = stage->buffer; at + size <= stage->buffer + stage->end;
         at += size) {
        for (size_t i = 0; i < size / 2; i++) {
            char byte = at[i];

            at[i] = at[size - 1 - i];
            at[size - 1 - i] = byte;
        }
    }

    return FSDP_OK;
}

static fsdp_status_t open_swap(stage_t *stage, fsdp_error_t *err)
{
    open_buffered(stage, refill_swap);
    return add_buffer(stage, INPUT / stage->param * stage->param, err);
}

/* --- LZF ------------------------------------------------------------------ */

/* Control bytes below 32 are followed by so many bytes, and one more; others
 * say where in what was given a stretch begins that is to be repeated.
 * @return false if that makes no sense, or is not @a bytes in all. */
static bool unpack_lzf(const unsigned char *from, size_t length,
                       unsigned char *to, size_t bytes)
{
    size_t in = 0, out = 0;

    while (in < length) {
        size_t control = from[in++], count = control + 1, back;

        if (control < 32) {
            if (count > length - in || count > bytes - out) {
                return false;
            }
            memcpy(to + out, from + in, count);
            in += count;
            out += count;
            continue;
        }

        count = (control >> 5) + 2;
        if (count == 9) {
            if (in == length) {
                return false;
            }
            count += from[in++];
        }
        if (in == length) {
            return false;
        }
        back = ((control & 31) << 8 | from[in++]) + 1;
        if (back > out || count > bytes - out) {
            return false;
        }
        for (; count > 0; count--, out++) {
            to[out] = to[out - back];
        }
    }

    return out == bytes;
}

static fsdp_status_t refill_lzf(stage_t *stage, fsdp_error_t *err)
{
    unsigned char *given;

    if (stage->done) {
        return FSDP_OK;
    }

    FSDP_TRY(take_all(stage, err));
    given = malloc(stage->param + 1ul);
    if (given == NULL) {
        return no_memory(stage->codec, err);
    }
    if (!unpack_lzf((const unsigned char *)stage->buffer, stage->end, given,
                    stage->param)) {
        free(given);
        return damaged(stage, "is none of LZF", err);
    }
    free(stage->buffer);
    stage->buffer = (char *)given;
    stage->end = stage->size = stage->param;
    return FSDP_OK;
}

/* --- Deflate -------------------------------------------------------------- */

static fsdp_status_t read_deflate(stage_t *stage, char *data, size_t bytes,
                                  size_t *got_p, fsdp_error_t *err)
{
    struct inflate_state *state = stage->state;
    int rc;

    *got_p = 0;
    while (*got_p < bytes && state->block_state != ISAL_BLOCK_FINISH) {
        uint32_t room =
            (bytes - *got_p < INPUT) ? (uint32_t)(bytes - *got_p) : INPUT;

        FSDP_TRY(fill(stage, err));
        state->next_in = (uint8_t *)stage->buffer + stage->pos;
        state->avail_in = (uint32_t)(stage->end - stage->pos);
        state->next_out = (uint8_t *)data + *got_p;
        state->avail_out = room;
        rc = isal_inflate(state);
        if (rc != ISAL_DECOMP_OK && rc != ISAL_END_INPUT &&
            rc != ISAL_OUT_OVERFLOW) {
            return damaged(stage, "cannot be inflated", err);
        }
        if (stage->end == 0 && state->avail_out == room &&
            state->block_state != ISAL_BLOCK_FINISH) {
            return damaged(stage, "ends too soon", err);
        }
        stage->pos = stage->end - state->avail_in;
        *got_p += room - state->avail_out;
    }

    return FSDP_OK;
}

static size_t memory_of_deflate(const stage_t *stage)
{
    return stage->size + sizeof(struct inflate_state);
}

static void close_deflate(stage_t *stage)
{
    free(stage->state);
}

static fsdp_status_t open_deflate(stage_t *stage, fsdp_error_t *err)
{
    struct inflate_state *state = malloc(sizeof(*state));

    if (state == NULL) {
        return no_memory(stage->codec, err);
    }

    isal_inflate_init(state);
    state->crc_flag = ISAL_ZLIB;
    stage->state = state;
    stage->read = read_deflate;
    stage->close = close_deflate;
    stage->memory = memory_of_deflate;
    return add_buffer(stage, INPUT, err);
}

/* --- Zstandard ------------------------------------------------------------ */

#if HAVE_ZSTD
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
        in = (ZSTD_inBuffer){stage->buffer, stage->end, stage->pos};
        rc = ZSTD_decompressStream(stage->state, &out, &in);
        if (ZSTD_isError(rc)) {
            return zstd_failed(stage, rc, err);
        }
        if (in.pos > stage->pos || out.pos > before) {
            stage->inside = rc != 0;
            stage->pos = in.pos;
        } else if (stage->inside) {
            return damaged(stage, "ends too soon", err);
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
    return stage->size + ZSTD_sizeof_DStream(stage->state);
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
    return add_buffer(stage, INPUT, err);
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

/* --- Chains --------------------------------------------------------------- */

static fsdp_status_t open_stage(stage_t *stage, codec_kind_t kind,
                                fsdp_error_t *err)
{
    switch (kind) {
    case CODEC_ZSTD:
        return open_zstd(stage, err);
    case CODEC_DEFLATE:
        return open_deflate(stage, err);
    case CODEC_SHUFFLE:
        open_buffered(stage, refill_shuffle);
        return FSDP_OK;
    case CODEC_FLETCHER32:
        open_buffered(stage, refill_fletcher32);
        return FSDP_OK;
    case CODEC_SWAP:
        return open_swap(stage, err);
    case CODEC_LZF:
        open_buffered(stage, refill_lzf);
        return FSDP_OK;
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
        stage->param = config->steps[i].param;
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
        free(codec->stages[i].buffer);
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

uint64_t codec_needs(const codec_step_t *steps, unsigned num_steps,
                     uint64_t length, uint64_t bytes)
{
    uint64_t most = 2 * ((length > bytes) ? length : bytes) + INPUT;
    uint64_t need = 0;

    for (unsigned i = 0; i < num_steps; i++) {
        switch (steps[i].kind) {
        case CODEC_SHUFFLE:
        case CODEC_LZF:
            need += 2 * most; /* before and after */
            break;
        case CODEC_FLETCHER32:
            need += most;
            break;
        case CODEC_DEFLATE:
            need += INPUT + sizeof(struct inflate_state);
            break;
        case CODEC_ZSTD:
            need += ZSTD_NEEDS + bytes; /* its window, at most */
            break;
        case CODEC_SWAP:
            need += INPUT;
            break;
        }
    }

    return need;
}

bool codec_checks(const codec_step_t *steps, unsigned num_steps)
{
    for (unsigned i = 0; i < num_steps; i++) {
        if (steps[i].kind == CODEC_DEFLATE ||
            steps[i].kind == CODEC_FLETCHER32) {
            return true;
        }
    }

    return false;
}
