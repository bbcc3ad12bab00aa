#include "config.h"

#include "ckpt/decode.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/catalog_box.h"
#include "ckpt/gather.h"
#include "lib/util/check.h"
#include "lib/util/crc.h"
#include "lib/util/io.h"

#define UNIT      48   /* slabs are a multiple of it: any type fits */
#define RUN_BYTES 4096 /* that are put together before they are put */
enum { KEPT_MOST = 64 };

/* An encoded stretch at some place of its decoded bytes. */
typedef struct {
    uint32_t code; /* as in pieces; 0: the piece's bytes as they are */
    codec_t *codec;
    uint64_t next; /* decoded byte */
    char what[400];
    /* Of the bytes of `piece` before `sum_next`, which all passed. */
    uint32_t piece, sum;
    uint64_t sum_next;
    /* Where it reads from now. */
    decode_t *decode;
    const catalog_code_t *source; /* NULL: of a piece that has no code */
    uint32_t file;
    uint64_t offset;
} decoder_t;

/* --- Decoders that are kept ----------------------------------------------- */

struct decoders {
    pthread_mutex_t lock;
    decoder_t *kept[KEPT_MOST]; /* the oldest first */
    unsigned num;
    uint64_t memory;
};

static void decoder_close(decoder_t *decoder)
{
    if (decoder != NULL) {
        codec_close(decoder->codec);
        free(decoder);
    }
}

decoders_t *decoders_create(void)
{
    decoders_t *decoders = calloc(1, sizeof(*decoders));

    if (decoders != NULL) {
        pthread_mutex_init(&decoders->lock, NULL);
    }
    return decoders;
}

/* Under the lock. */
static decoder_t *remove_kept(decoders_t *decoders, unsigned index)
{
    decoder_t *decoder = decoders->kept[index];

    decoders->num--;
    decoders->memory -= codec_memory(decoder->codec);
    memmove(decoders->kept + index, decoders->kept + index + 1,
            (decoders->num - index) * sizeof(*decoders->kept));
    return decoder;
}

void decoders_destroy(decoders_t *decoders)
{
    if (decoders == NULL) {
        return;
    }

    while (decoders->num > 0) {
        decoder_close(remove_kept(decoders, 0));
    }
    pthread_mutex_destroy(&decoders->lock);
    free(decoders);
}

/* One of that code that has not passed byte @a at, or NULL. */
static decoder_t *take_kept(decoders_t *decoders, uint32_t code, uint64_t at)
{
    decoder_t *found = NULL;

    if (decoders == NULL || code == 0) {
        return NULL;
    }

    pthread_mutex_lock(&decoders->lock);
    for (unsigned i = 0; i < decoders->num && found == NULL; i++) {
        if (decoders->kept[i]->code == code && decoders->kept[i]->next <= at) {
            found = remove_kept(decoders, i);
        }
    }
    pthread_mutex_unlock(&decoders->lock);
    return found;
}

static void keep(const decode_t *decode, decoder_t *decoder, uint64_t end)
{
    decoders_t *decoders = decode->decoders;

    if (decoders == NULL || decoder->code == 0 || decoder->next == end ||
        codec_memory(decoder->codec) > decode->keep_mem) {
        decoder_close(decoder);
        return;
    }

    pthread_mutex_lock(&decoders->lock);
    decoders->memory += codec_memory(decoder->codec);
    while (decoders->num == KEPT_MOST ||
           (decoders->num > 0 && decoders->memory > decode->keep_mem)) {
        decoder_close(remove_kept(decoders, 0));
    }
    decoders->kept[decoders->num++] = decoder;
    pthread_mutex_unlock(&decoders->lock);
}

/* --- Reading -------------------------------------------------------------- */

/* Bytes [at, at + bytes) of a pattern that is repeated. */
static void repeat(const char *pattern, uint64_t length, uint64_t at,
                   char *data, size_t bytes)
{
    for (size_t n; bytes > 0; bytes -= n, data += n, at += n) {
        n = (size_t)(length - at % length);
        n = (n < bytes) ? n : bytes;
        memcpy(data, pattern + at % length, n);
    }
}

static fsdp_status_t read_source(void *arg, uint64_t at, void *data,
                                 size_t bytes, fsdp_error_t *err)
{
    const decoder_t *decoder = arg;
    decode_t *decode = decoder->decode;
    const catalog_t *cat = decode->plan->src;
    fsdp_status_t status;
    int fd;

    if (decoder->source != NULL && decoder->source->inlined) {
        repeat(cat->inlined + decoder->source->offset, decoder->source->length,
               at, data, bytes);
        return FSDP_OK;
    }

    FSDP_TRY(files_get(decode->files, decoder->file, &fd, err));
    status = io_pread(fd, data, bytes, decoder->offset + at,
                      files_path(decode->files, decoder->file), err);
    files_put(decode->files, decoder->file);
    decode->bytes_read += bytes;
    return status;
}

static fsdp_status_t decoder_open(decode_t *decode,
                                  const catalog_piece_t *piece,
                                  decoder_t **decoder_p, fsdp_error_t *err)
{
    const catalog_t *cat = decode->plan->src;
    const catalog_code_t *code = catalog_code(cat, piece);
    decoder_t *decoder = calloc(1, sizeof(*decoder));
    codec_config_t config = {
        .source = read_source, .arg = decoder, .max_mem = decode->max_mem};
    fsdp_status_t status;

    if (decoder == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "%s: no memory to decode it", cat->path);
    }

    *decoder = (decoder_t){.code = piece->code,
                           .piece = CATALOG_NONE,
                           .decode = decode,
                           .source = code,
                           .file = piece->file,
                           .offset = piece->offset};
    config.length = catalog_piece_bytes(cat, piece);
    config.what = decoder->what;
    if (code != NULL) {
        decoder->file = code->file;
        decoder->offset = code->offset;
        config.length = code->inlined ? code->bytes : code->length;
        config.steps = cat->steps + code->step_first;
        config.num_steps = code->num_steps;
    }
    snprintf(decoder->what, sizeof(decoder->what), "%s: tensor %s",
             files_path(decode->files, decoder->file),
             cat->tensors[piece->tensor].name);

    status = codec_open(&config, &decoder->codec, err);
    if (status != FSDP_OK) {
        free(decoder);
        return status;
    }
    *decoder_p = decoder;
    return FSDP_OK;
}

/* What is at work on the copies of one code. */
typedef struct {
    decode_t *decode;
    const catalog_t *cat;
    decoder_t *decoder;
    /* The piece, and the copies from it. */
    const plan_copy_t *copies;
    uint64_t num;
    uint32_t index;
    const catalog_piece_t *piece;
    bool boxed;
    catalog_box_t box;     /* if it is one */
    uint64_t start, bytes; /* of its bytes in what is decoded */
    size_t size;           /* of an element, if those are whole bytes */
    unsigned change;       /* that its elements need */
} work_t;

/* Nothing more comes; then all checksums of the steps have been compared. */
static fsdp_status_t check_end(decoder_t *decoder, fsdp_error_t *err)
{
    size_t got;
    char more;

    FSDP_TRY(codec_read(decoder->codec, &more, 1, &got, err));
    return (got == 0) ? FSDP_OK
                      : fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                       "%s: becomes more than %" PRIu64
                                       " bytes when it is decoded: the file is "
                                       "damaged",
                                       decoder->what, decoder->next);
}

/* The next bytes; none may be missing. */
static fsdp_status_t read_next(work_t *work, size_t bytes, fsdp_error_t *err)
{
    decoder_t *decoder = work->decoder;
    decode_t *decode = work->decode;
    size_t got;

    FSDP_TRY(decode->go_on(decode->arg, err));
    FSDP_TRY(codec_read(decoder->codec, decode->stage, bytes, &got, err));
    decoder->next += got;
    if (got < bytes) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: ends at byte %" PRIu64
                              " when it is decoded, which is too soon: the "
                              "file is damaged",
                              decoder->what, decoder->next);
    }

    return (decoder->source != NULL && decoder->next == decoder->source->bytes)
               ? check_end(decoder, err)
               : FSDP_OK;
}

/* Does the piece have a checksum of all its bytes? */
static bool has_sum(const work_t *work)
{
    return work->cat->crc_zip && work->piece->crc_first != CATALOG_NONE;
}

/* Bytes [at, at + bytes) of the piece have passed. */
static fsdp_status_t sum(work_t *work, uint64_t at, size_t bytes,
                         fsdp_error_t *err)
{
    decoder_t *decoder = work->decoder;

    if (!has_sum(work)) {
        return FSDP_OK;
    }

    if (at == 0) {
        decoder->piece = work->index;
        decoder->sum_next = 0;
        decoder->sum = 0;
    }
    if (decoder->piece != work->index || decoder->sum_next != at) {
        return FSDP_OK;
    }

    decoder->sum = crc32_zip(decoder->sum, work->decode->stage, bytes);
    decoder->sum_next += bytes;
    return (decoder->sum_next < work->bytes ||
            decoder->sum == work->cat->crcs[work->piece->crc_first])
               ? FSDP_OK
               : work->decode->mismatch(work->decode->arg, work->index, err);
}

/* Bytes [at, at + bytes) of the piece into the stage; the decoder is there. */
static fsdp_status_t load(work_t *work, uint64_t at, size_t bytes,
                          fsdp_error_t *err)
{
    FSDP_TRY(read_next(work, bytes, err));
    return sum(work, at, bytes, err);
}

/* Let the decoder pass what lies before byte @a at of the piece. */
static fsdp_status_t skip_to(work_t *work, uint64_t at, fsdp_error_t *err)
{
    decoder_t *decoder = work->decoder;
    uint64_t to = work->start + at, left;

    while (decoder->next < to) {
        bool before = decoder->next < work->start;

        left = (before ? work->start : to) - decoder->next;
        if (left > work->decode->stage_bytes) {
            left = work->decode->stage_bytes;
        }
        if (before) {
            FSDP_TRY(read_next(work, left, err));
        } else {
            FSDP_TRY(load(work, decoder->next - work->start, left, err));
        }
    }

    return FSDP_OK;
}

/* --- Handing on ----------------------------------------------------------- */

static uint64_t bytes_of(const plan_copy_t *copy, uint64_t count)
{
    uint64_t bytes = 0;

    (void)dtype_bytes((fsdp_dtype_t)copy->src_dtype, count, &bytes);
    return bytes;
}

/* A part of the piece that is staged, as a box of the tensor. */
typedef struct {
    work_t *work;
    box_t box;
    uint64_t strides[BOX_MAX_NDIM]; /* elements of the stage */
    uint64_t base;                  /* where in it the box begins */
} slab_t;

/* A run of @a count elements of the target, from @a to on, that lie @a stride
 * elements apart in the stage, from @a at on. */
static fsdp_status_t put_run(const slab_t *slab, const plan_copy_t *copy,
                             uint64_t to, uint64_t at, uint64_t stride,
                             uint64_t count, fsdp_error_t *err)
{
    const work_t *work = slab->work;
    const decode_t *decode = work->decode;
    const char *from = decode->stage + at * work->size;
    char run[RUN_BYTES];
    uint64_t n;

    if (stride == 1 && work->change == 0) {
        return decode->put(decode->arg, copy, to * work->size, from,
                           count * work->size, err);
    }

    for (; count > 0; count -= n, to += n) {
        n = (count < RUN_BYTES / work->size) ? count : RUN_BYTES / work->size;
        for (uint64_t i = 0; i < n; i++, from += stride * work->size) {
            memcpy(run + i * work->size, from, work->size);
        }
        gather_change((fsdp_dtype_t)copy->src_dtype, work->change, run, n);
        FSDP_TRY(decode->put(decode->arg, copy, to * work->size, run,
                             n * work->size, err));
    }
    return FSDP_OK;
}

/* What the slab and a copy share, as runs of the target: the last dimensions
 * are one run as long as they are whole on both sides. */
static fsdp_status_t put_common(const slab_t *slab, const plan_copy_t *copy,
                                const plan_asked_t *asked, const box_t *common,
                                fsdp_error_t *err)
{
    uint64_t index[BOX_MAX_NDIM] = {0}, run = 1, stride = 1;
    unsigned outer = common->ndim;
    bool whole = true;

    while (outer > 0 && whole &&
           (common->count[outer - 1] == 1 || slab->strides[outer - 1] == run)) {
        outer--;
        run *= common->count[outer];
        whole = common->count[outer] == asked->dims[outer];
    }
    if (run == 1 && outer > 0 && whole) {
        outer--;
        run = common->count[outer];
        stride = slab->strides[outer];
    }

    for (;;) {
        uint64_t to = 0, at = slab->base;
        unsigned d;

        for (d = 0; d < common->ndim; d++) {
            uint64_t i = common->start[d] + ((d < outer) ? index[d] : 0);

            to = to * asked->dims[d] + i - asked->start[d];
            at += (i - slab->box.start[d]) * slab->strides[d];
        }
        FSDP_TRY(
            put_run(slab, copy, to - asked->first, at, stride, run, err));
        for (d = outer; d > 0 && ++index[d - 1] == common->count[d - 1]; d--) {
            index[d - 1] = 0;
        }
        if (d == 0) {
            return FSDP_OK;
        }
    }
}

static fsdp_status_t put_slab(const slab_t *slab, const plan_copy_t *copy,
                              const plan_asked_t *asked, fsdp_error_t *err)
{
    box_t common;

    for (unsigned b = 0; b < asked->num; b++) {
        if (box_intersect(&asked->boxes[b], &slab->box, &common)) {
            FSDP_TRY(put_common(slab, copy, asked, &common, err));
        }
    }

    return FSDP_OK;
}

/* --- Pieces without a box ------------------------------------------------- */

/* The bytes of the piece that a copy wants. */
static void wanted(const work_t *work, const plan_copy_t *copy,
                   const plan_asked_t *asked, uint64_t *from_p, uint64_t *to_p)
{
    const catalog_piece_t *piece = work->piece;
    uint64_t first = asked->first, end = first + asked->count;

    *from_p = 0;
    *to_p = work->bytes;
    if ((copy->flags & PLAN_DISCARD) != 0 || asked->boxed) {
        return;
    }

    first = (first > piece->first) ? first : piece->first;
    end = (end < piece->first + piece->count) ? end
                                              : piece->first + piece->count;
    *from_p = bytes_of(copy, first - piece->first);
    *to_p = bytes_of(copy, end - piece->first);
}

/* A range of the tensor for a box: it is some boxes itself. */
static fsdp_status_t put_range(work_t *work, const plan_copy_t *copy,
                               const plan_asked_t *asked, uint64_t at,
                               uint64_t bytes, fsdp_error_t *err)
{
    const catalog_tensor_t *tensor = &work->cat->tensors[work->piece->tensor];
    const uint64_t *dims = work->cat->dims + tensor->dims_first;
    uint64_t first = work->piece->first + at / work->size;
    box_t boxes[2 * BOX_MAX_NDIM];
    slab_t slab = {.work = work};
    unsigned num;

    box_strides(tensor->ndim, dims, NULL, slab.strides);
    (void)box_from_range(tensor->ndim, dims, first, bytes / work->size, boxes,
                         &num);
    for (unsigned i = 0; i < num; i++) {
        slab.box = boxes[i];
        slab.base = 0;
        for (unsigned d = 0; d < tensor->ndim; d++) {
            slab.base += boxes[i].start[d] * slab.strides[d];
        }
        slab.base -= first;
        FSDP_TRY(put_slab(&slab, copy, asked, err));
    }

    return FSDP_OK;
}

/* Hand on what copies want of bytes [at, at + bytes), which are staged. */
static fsdp_status_t put_bytes(work_t *work, uint64_t at, uint64_t bytes,
                               fsdp_error_t *err)
{
    const decode_t *decode = work->decode;

    for (uint64_t i = 0; i < work->num; i++) {
        const plan_copy_t *copy = &work->copies[i];
        uint64_t from, to;
        plan_asked_t asked;

        if ((copy->flags & PLAN_DISCARD) != 0) {
            continue;
        }
        plan_asked(decode->plan, copy, &asked);
        wanted(work, copy, &asked, &from, &to);
        from = (from > at) ? from : at;
        to = (to < at + bytes) ? to : at + bytes;
        if (asked.boxed) {
            FSDP_TRY(put_range(work, copy, &asked, at, bytes, err));
        } else if (from < to) {
            FSDP_TRY(decode->put(
                decode->arg, copy,
                bytes_of(copy, work->piece->first) + from - copy->src,
                decode->stage + (from - at), to - from, err));
        }
    }

    return FSDP_OK;
}

/* The first byte of the piece that is needed, and the end of them. */
static void all_wanted(const work_t *work, uint64_t *from_p, uint64_t *to_p)
{
    plan_asked_t asked;
    uint64_t from, to;

    *from_p = work->boxed ? 0 : work->bytes;
    *to_p = work->boxed ? work->bytes : 0;
    for (uint64_t i = 0; i < work->num && !work->boxed; i++) {
        plan_asked(work->decode->plan, &work->copies[i], &asked);
        wanted(work, &work->copies[i], &asked, &from, &to);
        *from_p = (from < *from_p) ? from : *from_p;
        *to_p = (to > *to_p) ? to : *to_p;
    }
}

static fsdp_status_t read_flat(work_t *work, fsdp_error_t *err)
{
    uint64_t slab = work->decode->stage_bytes / UNIT * UNIT, at, end, n;

    all_wanted(work, &at, &end);
    FSDP_TRY(skip_to(work, at, err));
    for (; at < end; at += n) {
        n = (end - at < slab) ? end - at : slab;
        FSDP_TRY(load(work, at, n, err));
        FSDP_TRY(put_bytes(work, at, n, err));
    }

    return FSDP_OK;
}

/* --- Boxes ---------------------------------------------------------------- */

static fsdp_status_t put_box(const slab_t *slab, fsdp_error_t *err)
{
    const work_t *work = slab->work;
    plan_asked_t asked;

    for (uint64_t i = 0; i < work->num; i++) {
        const plan_copy_t *copy = &work->copies[i];

        if ((copy->flags & PLAN_DISCARD) == 0) {
            plan_asked(work->decode->plan, copy, &asked);
            FSDP_TRY(put_slab(slab, copy, &asked, err));
        }
    }

    return FSDP_OK;
}

/* The dimension of the slab that takes most steps in the file. */
static unsigned widest(const slab_t *slab)
{
    unsigned found = 0;

    for (unsigned d = 1; d < slab->box.ndim; d++) {
        if (slab->box.count[d] > 1 &&
            (slab->box.count[found] == 1 ||
             slab->strides[d] > slab->strides[found])) {
            found = d;
        }
    }

    return found;
}

static uint64_t span_of(const slab_t *slab)
{
    catalog_box_t box = {.ndim = slab->box.ndim,
                         .count = slab->box.count,
                         .strides = slab->strides};

    return box_span(&box);
}

/*
 * The elements of a slab, from element @a at of the piece on: all at once, or
 * cut in the dimension that is outermost in the file, as many rows at a time
 * as the stage holds.
 */
static fsdp_status_t read_slab(slab_t *slab, uint64_t at, fsdp_error_t *err)
{
    work_t *work = slab->work;
    uint64_t room = work->decode->stage_bytes / work->size;
    uint64_t span = span_of(slab), count, stride, row, n;
    slab_t part = *slab;
    unsigned d = widest(slab);

    if (span <= room) {
        FSDP_TRY(skip_to(work, at * work->size, err));
        FSDP_TRY(load(work, at * work->size, span * work->size, err));
        return put_box(slab, err);
    }

    count = slab->box.count[d];
    stride = slab->strides[d];
    part.box.count[d] = 1;
    row = span_of(&part);
    if (stride < row) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s: its strides make elements lie among each "
                              "other: more memory is needed (--max-mem)",
                              work->decoder->what);
    }
    n = (row > room) ? 1 : 1 + (room - row) / stride;
    for (uint64_t i = 0; i < count; i += n) {
        part.box.start[d] = slab->box.start[d] + i;
        part.box.count[d] = (count - i < n) ? count - i : n;
        FSDP_TRY(read_slab(&part, at + i * stride, err));
    }

    return FSDP_OK;
}

static fsdp_status_t read_box(work_t *work, fsdp_error_t *err)
{
    slab_t slab = {.work = work, .box = {.ndim = work->box.ndim}};
    size_t size = work->box.ndim * sizeof(uint64_t);

    memcpy(slab.box.start, work->box.start, size);
    memcpy(slab.box.count, work->box.count, size);
    memcpy(slab.strides, work->box.strides, size);
    FSDP_TRY(read_slab(&slab, 0, err));
    return skip_to(work, work->bytes, err);
}

/* --- The call ------------------------------------------------------------- */

static fsdp_status_t read_piece(work_t *work, fsdp_error_t *err)
{
    decode_t *decode = work->decode;
    uint64_t at, end;

    work->index = work->copies->src_piece;
    work->piece = &work->cat->pieces[work->index];
    work->boxed = catalog_box(work->cat, work->piece, &work->box);
    work->start = (work->piece->code != 0) ? work->piece->offset : 0;
    work->bytes = catalog_piece_bytes(work->cat, work->piece);
    work->size = fsdp_dtype_bits((fsdp_dtype_t)work->copies->src_dtype) / 8;

    work->change = work->boxed ? work->box.change : 0;
    all_wanted(work, &at, &end);
    at += work->start;
    if (work->decoder != NULL && work->decoder->next > at) {
        decoder_close(work->decoder);
        work->decoder = NULL;
    }
    if (work->decoder == NULL) {
        work->decoder = take_kept(decode->decoders, work->piece->code, at);
    }
    if (work->decoder == NULL) {
        FSDP_TRY(decoder_open(decode, work->piece, &work->decoder, err));
    }
    work->decoder->decode = decode;

    return work->boxed ? read_box(work, err) : read_flat(work, err);
}

fsdp_status_t decode_copies(decode_t *decode, const plan_copy_t *copies,
                            uint64_t num, fsdp_error_t *err)
{
    work_t work = {.decode = decode, .cat = decode->plan->src};
    fsdp_status_t status = FSDP_OK;
    const catalog_code_t *code;

    for (uint64_t i = 0; i < num && status == FSDP_OK; i += work.num) {
        work.copies = copies + i;
        for (work.num = 1;
             i + work.num < num &&
             copies[i + work.num].src_piece == copies[i].src_piece;
             work.num++) {
        }
        status = read_piece(&work, err);
    }
    if (status != FSDP_OK || work.decoder == NULL) {
        decoder_close(work.decoder);
        return status;
    }

    code = catalog_code(work.cat, work.piece);
    keep(decode, work.decoder, (code != NULL) ? code->bytes : 0);
    return FSDP_OK;
}
