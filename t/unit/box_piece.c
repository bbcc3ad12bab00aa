/*
 * Pieces that are boxes: random partitions of random tensors, stored densely
 * or with strides, as they are or to be decoded, read and converted, by several
 * ranks too, against plain copies in memory; and what is no partition is found.
 */
#include "config.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/box.h"
#include "ckpt/engine.h"
#include "lib/util/crc.h"
#include "lib/util/io.h"
#include "t/tap/tap.h"

static char dir[] = "/tmp/fsdp-box-piece.XXXXXX";

static uint64_t rng_state = 88172645463325252ull;

static uint64_t rng(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return rng_state;
}

/* --- A tensor in boxes ---------------------------------------------------- */

typedef struct {
    fsdp_dtype_t dtype;
    unsigned ndim;
    uint64_t dims[4];
    size_t size;
    uint64_t numel;
    unsigned char *truth;
} tensor_t;

static void make_tensor(tensor_t *tensor, fsdp_dtype_t dtype, unsigned ndim,
                        const uint64_t *dims)
{
    *tensor = (tensor_t){.dtype = dtype, .ndim = ndim, .numel = 1};
    tensor->size = fsdp_dtype_bits(dtype) / 8;
    for (unsigned d = 0; d < ndim; d++) {
        tensor->dims[d] = dims[d];
        tensor->numel *= dims[d];
    }
    tensor->truth = malloc(tensor->numel * tensor->size);
    for (uint64_t i = 0; i < tensor->numel * tensor->size; i++) {
        tensor->truth[i] = (unsigned char)rng();
    }
}

/* The index of element @a i of a box in its tensor, and in a file. */
static uint64_t index_of(const tensor_t *tensor, const uint64_t *start,
                         const uint64_t *count, const uint64_t *strides,
                         uint64_t i, uint64_t *at_p)
{
    uint64_t index = 0, scale = 1, at = 0;

    for (unsigned d = tensor->ndim; d > 0; d--) {
        uint64_t x = i % count[d - 1];

        i /= count[d - 1];
        index += (start[d - 1] + x) * scale;
        scale *= tensor->dims[d - 1];
        at += x * strides[d - 1];
    }

    *at_p = at;
    return index;
}

/* Strides of a random order of dimensions, now and then with holes. */
static void choose_strides(unsigned ndim, const uint64_t *count,
                           uint64_t *strides)
{
    unsigned order[4] = {0, 1, 2, 3};
    uint64_t next = 1;

    for (unsigned d = ndim; d > 1; d--) {
        unsigned other = (unsigned)(rng() % d), t = order[d - 1];

        order[d - 1] = order[other];
        order[other] = t;
    }
    for (unsigned d = 0; d < ndim; d++) {
        strides[order[d]] = next;
        next *= count[order[d]] + rng() % 2;
    }
}

typedef struct {
    catalog_t *cat;
    uint32_t tensor, file;
    const tensor_t *what;
    int fd;
    uint64_t end;  /* of the file */
    bool strided;  /* some of the boxes */
    uint32_t crcs; /* used */
} writer_t;

static fsdp_status_t write_box(writer_t *writer, const uint64_t *start,
                               const uint64_t *count)
{
    const tensor_t *tensor = writer->what;
    uint64_t strides[4], numel = 1, span = 1, at, index;
    bool dense = !writer->strided || rng() % 2 == 0;
    catalog_piece_t piece = {.tensor = writer->tensor, .file = writer->file};
    unsigned char *data;

    for (unsigned d = tensor->ndim; d > 0; d--) {
        strides[d - 1] = numel;
        numel *= count[d - 1];
    }
    if (!dense) {
        choose_strides(tensor->ndim, count, strides);
    }
    for (unsigned d = 0; d < tensor->ndim; d++) {
        span += (count[d] - 1) * strides[d];
    }

    if (writer->fd < 0) { /* of a target: only where it will be */
        piece.offset = writer->end;
        piece.crc_first = CATALOG_NONE;
        writer->end += numel * tensor->size;
        return catalog_add_box(writer->cat, &piece, start, count, NULL, NULL);
    }

    data = calloc(span, tensor->size);
    for (uint64_t i = 0; i < numel; i++) {
        index = index_of(tensor, start, count, strides, i, &at);
        memcpy(data + at * tensor->size, tensor->truth + index * tensor->size,
               tensor->size);
    }
    writer->end += rng() % 50;
    piece.offset = writer->end;
    piece.crc_first =
        writer->cat->files[writer->file].crc_first + writer->crcs++;
    writer->cat->crcs[piece.crc_first] =
        crc32_zip(0, data, span * tensor->size);
    if (pwrite(writer->fd, data, span * tensor->size, (off_t)writer->end) < 0) {
        abort();
    }
    writer->end += span * tensor->size;
    free(data);
    return catalog_add_box(writer->cat, &piece, start, count,
                           dense ? NULL : strides, NULL);
}

/* Cut a box at random places and write the parts. */
static fsdp_status_t write_parts(writer_t *writer, const uint64_t *start,
                                 const uint64_t *count, unsigned depth)
{
    unsigned ndim = writer->what->ndim, d = (unsigned)(rng() % ndim);
    uint64_t a[4], b[4], left;
    fsdp_status_t status;

    if (depth == 0 || count[d] < 2) {
        return write_box(writer, start, count);
    }

    memcpy(a, start, sizeof(a));
    memcpy(b, count, sizeof(b));
    left = 1 + rng() % (count[d] - 1);
    b[d] = left;
    status = write_parts(writer, a, b, depth - 1);
    a[d] += left;
    b[d] = count[d] - left;
    return (status == FSDP_OK) ? write_parts(writer, a, b, depth - 1) : status;
}

/* Let the pieces lie in what a code gives, which is the file itself. */
static void encode(catalog_t *cat, uint64_t size)
{
    const catalog_code_t code = {.length = size, .bytes = size};

    for (uint64_t p = 0; p < cat->num_pieces; p++) {
        if (p == 0 || rng() % 4 == 0) {
            catalog_add_code(cat, &code, NULL, 0, &cat->pieces[p].code, NULL);
        } else {
            cat->pieces[p].code = cat->pieces[p - 1].code;
        }
    }
}

static void make_source(catalog_t *cat, const tensor_t *tensor, unsigned depth,
                        bool strided, bool coded)
{
    static unsigned number;
    writer_t writer = {.cat = cat, .what = tensor, .strided = strided};
    const uint64_t start[4] = {0};
    uint64_t added;
    char name[32], *path;

    catalog_init(cat);
    cat->root = catalog_strdup(cat, dir);
    cat->crc_zip = true;
    snprintf(name, sizeof(name), "source-%u", number++);
    path = io_path("%s/%s", dir, name);
    writer.fd = open(path, O_RDWR | O_CREAT, 0666);
    ok(catalog_add_tensor(cat, "x", tensor->dtype, tensor->ndim, tensor->dims,
                          NULL, &added, NULL) == FSDP_OK &&
           catalog_add_file(cat, name, 0, &writer.file, NULL) == FSDP_OK &&
           catalog_add_crcs(cat, writer.file, 1ul << depth, NULL) == FSDP_OK &&
           write_parts(&writer, start, tensor->dims, depth) == FSDP_OK,
       "%s is written in boxes", name);
    cat->files[writer.file].size = writer.end;
    if (coded) {
        encode(cat, writer.end);
    }
    ok(catalog_seal(cat, CATALOG_CHECK_ALL, NULL) == FSDP_OK,
       "and is a whole tensor");
    close(writer.fd);
    free(path);
}

/* --- Reading and converting ----------------------------------------------- */

static void check_ranges(catalog_t *cat, const tensor_t *tensor,
                         const fsdp_ckpt_engine_t *options)
{
    enum { NUM = 9 };
    fsdp_ckpt_range_t ranges[NUM];
    engine_job_t job = {.options = *options};
    plan_t plan;
    bool same = true;

    for (int i = 0; i < NUM; i++) {
        uint64_t first = (i == 0) ? 0 : rng() % (tensor->numel + 1);

        ranges[i] = (fsdp_ckpt_range_t){
            .tensor = 0,
            .first = first,
            .count =
                (i == 0) ? tensor->numel : rng() % (tensor->numel - first + 1),
            .data = calloc(tensor->numel + 1, tensor->size)};
    }
    same = plan_read(&plan, cat, ranges, NUM, NULL) == FSDP_OK;
    job.plan = &plan;
    same = same && engine_run(&job, NULL, NULL) == FSDP_OK;
    for (int i = 0; i < NUM; i++) {
        same = same && memcmp(ranges[i].data,
                              tensor->truth + ranges[i].first * tensor->size,
                              ranges[i].count * tensor->size) == 0;
        free(ranges[i].data);
    }
    plan_free(&plan);
    ok(same, "its elements are read, in %u threads and %llu bytes",
       options->jobs, (unsigned long long)options->max_mem);
}

/* The pieces of a target: a few ranges of elements, or dense boxes, one after
 * the other in one file. */
static void add_ranges(catalog_t *dst, const tensor_t *tensor)
{
    for (uint64_t first = 0, count; first < tensor->numel; first += count) {
        const catalog_piece_t *piece;

        count = 1 + rng() % tensor->numel;
        if (count > tensor->numel - first) {
            count = tensor->numel - first;
        }
        piece = &(catalog_piece_t){.first = first,
                                   .count = count,
                                   .offset = first * tensor->size,
                                   .crc_first = CATALOG_NONE};
        catalog_add_piece(dst, piece, NULL);
    }
}

static void add_boxes(catalog_t *dst, const tensor_t *tensor)
{
    const uint64_t start[4] = {0};
    writer_t writer = {.cat = dst, .what = tensor, .fd = -1};

    write_parts(&writer, start, tensor->dims, 4);
}

/* What a target piece holds, back to where it belongs. */
static void take_piece(const catalog_t *dst, const catalog_piece_t *piece,
                       const tensor_t *tensor, int fd, unsigned char *data)
{
    unsigned char *part = malloc(piece->count * tensor->size);
    catalog_box_t box;
    bool boxed = catalog_box(dst, piece, &box);

    if (pread(fd, part, piece->count * tensor->size, (off_t)piece->offset) !=
        (ssize_t)(piece->count * tensor->size)) {
        abort();
    }
    for (uint64_t i = 0, at; i < piece->count; i++) {
        uint64_t index =
            boxed ? index_of(tensor, box.start, box.count, box.strides, i, &at)
                  : piece->first + i;

        memcpy(data + index * tensor->size, part + i * tensor->size,
               tensor->size);
    }
    free(part);
}

/* Which rank, from 1 on, writes to each 64 KiB of the target: no other may. */
typedef struct {
    uint32_t owner[128];
    bool shared;
} pages_t;

static void claim(pages_t *pages, const plan_t *plan, uint32_t rank)
{
    for (uint64_t i = 0; i < plan->num; i++) {
        const plan_copy_t *copy = &plan->copies[i];

        if ((copy->flags & PLAN_DISCARD) == 0) {
            uint64_t first = plan_dst_offset(plan, copy);
            uint64_t last = first + plan_dst_bytes(copy) - 1;

            for (uint64_t p = first >> 16; p <= last >> 16; p++) {
                uint32_t *owner = &pages->owner[p];

                pages->shared |= *owner != 0 && *owner != rank + 1;
                *owner = rank + 1;
            }
        }
    }
}

/* Each rank in turn copies its part. */
static fsdp_status_t copy_by(uint32_t ranks, catalog_t *src, catalog_t *dst,
                             const fsdp_ckpt_engine_t *options)
{
    const uint64_t map[1] = {0};
    engine_sums_t sums = {0};
    engine_job_t job = {.dst = dst, .options = *options};
    fsdp_status_t status = engine_sums_init(&sums, src->num_crcs, NULL);
    pages_t pages = {0};
    plan_t plan;

    job.sums = (ranks > 1) ? &sums : NULL;
    for (uint32_t rank = 0; rank < ranks && status == FSDP_OK; rank++) {
        status = plan_convert(&plan, src, dst, map, NULL);
        if (status == FSDP_OK) {
            status = plan_place(&plan, NULL);
        }
        if (status == FSDP_OK && ranks > 1) {
            status = plan_keep_part(&plan, rank, ranks, NULL);
            claim(&pages, &plan, rank);
        }
        job.plan = &plan;
        status = (status == FSDP_OK) ? engine_run(&job, NULL, NULL) : status;
        plan_free(&plan);
    }
    if (status == FSDP_OK && ranks > 1) {
        status = engine_check_sums(src, &sums, NULL);
    }
    engine_sums_free(&sums);
    return pages.shared ? FSDP_ERR_BAD_STATE : status;
}

/* Into one file. */
static fsdp_status_t convert(catalog_t *src, const tensor_t *tensor,
                             const fsdp_ckpt_engine_t *options, uint32_t ranks,
                             bool boxes, unsigned char *data)
{
    char *path = io_path("%s/target", dir);
    catalog_t dst;
    fsdp_status_t status;
    uint64_t added;
    uint32_t file;
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0666);

    catalog_init(&dst);
    dst.root = catalog_strdup(&dst, dir);
    catalog_add_tensor(&dst, "x", tensor->dtype, tensor->ndim, tensor->dims,
                       NULL, &added, NULL);
    catalog_add_file(&dst, "target", 0, &file, NULL);
    if (boxes) {
        add_boxes(&dst, tensor);
    } else {
        add_ranges(&dst, tensor);
    }
    status = catalog_seal(&dst, CATALOG_CHECK_COVER, NULL);
    if (status == FSDP_OK) {
        status = copy_by(ranks, src, &dst, options);
    }
    for (uint64_t p = 0; status == FSDP_OK && p < dst.num_pieces; p++) {
        take_piece(&dst, &dst.pieces[p], tensor, fd, data);
    }
    close(fd);
    unlink(path);
    free(path);
    catalog_free(&dst);
    return status;
}

/* One bit of one piece is another: the checksum tells. */
static void flip_bit(const catalog_t *cat, uint64_t at)
{
    char *path = catalog_file_path(cat, 0);
    int fd = open(path, O_RDWR);
    char byte;

    if (pread(fd, &byte, 1, (off_t)at) == 1) {
        byte ^= 4;
        at = (uint64_t)pwrite(fd, &byte, 1, (off_t)at);
    }
    close(fd);
    free(path);
}

static void test_tensor(const tensor_t *tensor, unsigned depth, bool strided,
                        bool coded)
{
    static const fsdp_ckpt_engine_t options[] = {
        {.jobs = 1,           .max_mem = 4096},
        {.jobs = 3,                   .max_mem = 1 << 20},
        {0},
    };
    static const uint32_t ranks[] = {2, 5, 1};
    unsigned char *data = malloc(tensor->numel * tensor->size);
    catalog_t cat;

    make_source(&cat, tensor, depth, strided, coded);
    for (size_t i = 0; i < sizeof(options) / sizeof(*options); i++) {
        check_ranges(&cat, tensor, &options[i]);
        for (int boxes = 0; boxes < 2; boxes++) {
            memset(data, 0, tensor->numel * tensor->size);
            ok(convert(&cat, tensor, &options[i], ranks[i], boxes, data) ==
                       FSDP_OK &&
                   memcmp(data, tensor->truth, tensor->numel * tensor->size) ==
                       0,
               "and converted by %u, to %s", ranks[i],
               boxes ? "boxes" : "ranges");
        }
    }
    flip_bit(&cat, cat.pieces[cat.num_pieces / 2].offset);
    ok(convert(&cat, tensor, &options[1], 1, false, data) == FSDP_ERR_CORRUPT &&
           convert(&cat, tensor, &options[1], 3, true, data) ==
               FSDP_ERR_CORRUPT,
       "a bit that is not right is found");
    catalog_free(&cat);
    free(data);
}

static void test_tensors(void)
{
    static const struct {
        fsdp_dtype_t dtype;
        unsigned ndim, depth;
        uint64_t dims[4];
    } cases[] = {
        {FSDP_DTYPE_F32,  2, 3, {61, 40}       },
        {FSDP_DTYPE_BF16, 2, 5, {700, 1200}    },
        {FSDP_DTYPE_U8,   1, 2, {97}           },
        {FSDP_DTYPE_C128, 3, 4, {7, 11, 5}     },
        {FSDP_DTYPE_F64,  4, 5, {5, 6, 7, 8}   },
        {FSDP_DTYPE_F32,  3, 4, {90, 3, 4000}  },
        {FSDP_DTYPE_I16,  4, 4, {2, 1, 900, 70}},
    };
    tensor_t tensor;

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        make_tensor(&tensor, cases[i].dtype, cases[i].ndim, cases[i].dims);
        for (unsigned how = 0; how < 4; how++) {
            test_tensor(&tensor, cases[i].depth, how & 1, how & 2);
        }
        free(tensor.truth);
    }
}

/* --- Signs of life -------------------------------------------------------- */

/* Goes on *arg times. */
static bool count_down(uint64_t done, uint64_t total, void *arg)
{
    uint64_t *left = arg;

    (void)done, (void)total;
    return *left > 0 && (*left)-- > 0;
}

static void test_progress(void)
{
    const uint64_t dims[1] = {1 << 20};
    uint64_t left = 1000;
    const fsdp_ckpt_engine_t options = {.jobs = 1,
                                        .max_mem = 64 << 10,
                                        .progress = count_down,
                                        .progress_arg = &left};
    unsigned char *data = malloc(dims[0]);
    tensor_t tensor;
    catalog_t cat;

    make_tensor(&tensor, FSDP_DTYPE_U8, 1, dims);
    make_source(&cat, &tensor, 0, false, true);
    ok(convert(&cat, &tensor, &options, 1, false, data) == FSDP_OK &&
           left < 1000 - 16,
       "progress is told while one code is decoded");
    left = 3;
    ok(convert(&cat, &tensor, &options, 1, false, data) == FSDP_ERR_CANCELLED,
       "which ends when that says so");
    catalog_free(&cat);
    free(tensor.truth);
    free(data);
}

/* --- Spans ---------------------------------------------------------------- */

/* Read @a num of two tensors that share a storage; is it to be read again? */
static bool is_left(const catalog_t *cat, size_t num)
{
    uint64_t half = cat->tensors[0].numel;
    unsigned char *data = malloc(2 * half);
    const fsdp_ckpt_range_t ranges[] = {
        {.tensor = 0, .count = half, .data = data       },
        {.tensor = 1, .count = half, .data = data + half},
    };
    engine_sums_t sums = {0};
    engine_job_t job = {
        .options = {.jobs = 2, .max_mem = 64 << 10},
          .spans = &sums
    };
    bool wanted = true;
    plan_t plan;

    job.plan = &plan;
    ok(engine_sums_init(&sums, cat->num_spans, NULL) == FSDP_OK &&
           plan_read(&plan, cat, ranges, num, NULL) == FSDP_OK &&
           engine_run(&job, NULL, NULL) == FSDP_OK,
       "%zu of two tensors of a storage are read", num);
    span_drop_passed(cat, &sums, &wanted);
    engine_sums_free(&sums);
    plan_free(&plan);
    free(data);
    return wanted;
}

static void test_spans(void)
{
    const uint64_t dims[1] = {3 << 20};
    catalog_span_t span = {.bytes = dims[0]};
    catalog_t source, cat;
    tensor_t tensor;
    uint64_t added;
    uint32_t file;

    make_tensor(&tensor, FSDP_DTYPE_U8, 1, dims);
    make_source(&source, &tensor, 0, false, false);
    span.offset = source.pieces[0].offset;
    span.crc32 = crc32_zip(0, tensor.truth, span.bytes);
    catalog_init(&cat);
    cat.root = catalog_strdup(&cat, dir);
    catalog_add_file(&cat, source.files[0].path, source.files[0].size, &file,
                     NULL);
    for (uint64_t t = 0; t < 2; t++) {
        uint64_t half = span.bytes / 2;
        const catalog_piece_t piece = {.tensor = (uint32_t)t,
                                       .count = half,
                                       .offset = span.offset + t * half,
                                       .crc_first = CATALOG_NONE};

        catalog_add_tensor(&cat, t == 0 ? "a" : "b", FSDP_DTYPE_U8, 1, &half,
                           NULL, &added, NULL);
        catalog_add_piece(&cat, &piece, NULL);
    }
    catalog_add_span(&cat, &span, NULL);
    ok(catalog_seal(&cat, CATALOG_CHECK_ALL, NULL) == FSDP_OK &&
           cat.num_spans == 1,
       "two tensors that share a storage");
    ok(!is_left(&cat, 2), "which has passed whole");
    ok(is_left(&cat, 1), "which has passed in part");
    flip_bit(&source, span.offset);
    ok(is_left(&cat, 2), "which does not have its checksum");
    catalog_free(&cat);
    catalog_free(&source);
    free(tensor.truth);
}

/* --- Negated and conjugated ----------------------------------------------- */

static void test_changes(void)
{
    static const float stored[4] = {1.5f, -0.0f, -2.0f, 3.0f};
    const uint64_t dims[1] = {2}, start[1] = {0};
    const catalog_piece_t piece = {.crc_first = CATALOG_NONE};
    fsdp_ckpt_range_t range = {.count = 2};
    float got[4] = {0};
    char *path = io_path("%s/changed", dir);
    uint64_t added;
    catalog_t cat;
    engine_job_t job = {0};
    uint32_t file;
    plan_t plan;
    int fd = open(path, O_RDWR | O_CREAT, 0666);

    catalog_init(&cat);
    cat.root = catalog_strdup(&cat, dir);
    catalog_add_tensor(&cat, "z", FSDP_DTYPE_C64, 1, dims, NULL, &added, NULL);
    catalog_add_file(&cat, "changed", sizeof(stored), &file, NULL);
    ok(pwrite(fd, stored, sizeof(stored), 0) == sizeof(stored) &&
           catalog_add_changed(&cat, &piece, start, dims, NULL, CATALOG_CONJ,
                               NULL) == FSDP_OK &&
           catalog_seal(&cat, CATALOG_CHECK_ALL, NULL) == FSDP_OK,
       "a conjugated view");
    range.data = got;
    job.plan = &plan;
    ok(plan_read(&plan, &cat, &range, 1, NULL) == FSDP_OK &&
           engine_run(&job, NULL, NULL) == FSDP_OK && got[0] == 1.5f &&
           got[1] == 0.0f && !__builtin_signbit(got[1]) && got[2] == -2.0f &&
           got[3] == -3.0f,
       "has imaginary parts of the other sign");
    plan_free(&plan);
    catalog_free(&cat);
    close(fd);
    free(path);
}

/* --- What is no partition ------------------------------------------------- */

typedef struct {
    uint64_t start[2], count[2];
} rect_t;

static fsdp_status_t seal(const rect_t *rects, unsigned num)
{
    const uint64_t dims[2] = {6, 8};
    fsdp_status_t status;
    uint64_t added;
    uint32_t file;
    catalog_t cat;

    catalog_init(&cat);
    status = catalog_add_tensor(&cat, "x", FSDP_DTYPE_F32, 2, dims, NULL,
                                &added, NULL);
    catalog_add_file(&cat, "f", 4096, &file, NULL);
    for (unsigned i = 0; i < num && status == FSDP_OK; i++) {
        const catalog_piece_t piece = {.offset = 192 * i,
                                       .crc_first = CATALOG_NONE};

        status = catalog_add_box(&cat, &piece, rects[i].start, rects[i].count,
                                 NULL, NULL);
    }
    if (status == FSDP_OK) {
        status = catalog_seal(&cat, CATALOG_CHECK_COVER, NULL);
    }
    catalog_free(&cat);
    return status;
}

static void test_coverage(void)
{
    static const struct {
        const char *what;
        unsigned num;
        rect_t rects[5];
        fsdp_status_t status;
    } cases[] = {
        {"two columns",                            2, {{{0, 0}, {6, 3}}, {{0, 3}, {6, 5}}},                   FSDP_OK         },
        {"a column that is missing",
         2,                                           {{{0, 0}, {6, 3}}, {{0, 4}, {6, 4}}},
         FSDP_ERR_CORRUPT                                                                                                     },
        {"columns that overlap",
         2,                                           {{{0, 0}, {6, 4}}, {{0, 3}, {6, 5}}},
         FSDP_ERR_CORRUPT                                                                                                     },
        {"a hole and an overlap of the same size",
         2,                                           {{{0, 0}, {6, 4}}, {{0, 3}, {6, 4}}},
         FSDP_ERR_CORRUPT                                                                                                     },
        {"a pinwheel, which no cut separates",
         5,                                           {{{0, 0}, {2, 5}},
          {{0, 5}, {4, 3}},
          {{4, 3}, {2, 5}},
          {{2, 0}, {4, 3}},
          {{2, 3}, {2, 2}}},
         FSDP_OK                                                                                                              },
        {"a pinwheel with one blade twice",
         5,                                           {{{0, 0}, {2, 5}},
          {{0, 5}, {4, 3}},
          {{4, 3}, {2, 5}},
          {{2, 0}, {4, 3}},
          {{2, 0}, {4, 1}}},
         FSDP_ERR_CORRUPT                                                                                                     },
        {"a box that leaves it",                   1, {{{0, 1}, {6, 8}}},                                     FSDP_ERR_CORRUPT},
        {"rows and a box",
         3,                                           {{{0, 0}, {3, 8}}, {{3, 0}, {3, 2}}, {{3, 2}, {3, 6}}},
         FSDP_OK                                                                                                              },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        ok(seal(cases[i].rects, cases[i].num) == cases[i].status, "%s",
           cases[i].what);
    }
}

static void test_bad_strides(void)
{
    const uint64_t dims[2] = {6, 8}, start[2] = {0};
    const uint64_t strides[2] = {UINT64_MAX / 3, 1};
    const catalog_piece_t piece = {.crc_first = CATALOG_NONE};
    uint64_t added;
    uint32_t file;
    catalog_t cat;

    catalog_init(&cat);
    catalog_add_tensor(&cat, "x", FSDP_DTYPE_F32, 2, dims, NULL, &added, NULL);
    catalog_add_file(&cat, "f", 4096, &file, NULL);
    ok(catalog_add_box(&cat, &piece, start, dims, strides, NULL) ==
           FSDP_ERR_CORRUPT,
       "strides beyond 64 bits are refused");
    catalog_free(&cat);
}

/* --- Many ----------------------------------------------------------------- */

static double now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* 250 tensors on 4000 ranks, each in 8 columns of 500 rows of boxes. */
static void test_many(void)
{
    enum { TENSORS = 250, COLUMNS = 8, ROWS = 500 };
    const uint64_t dims[2] = {ROWS * 4, COLUMNS * 16}, count[2] = {4, 16};
    fsdp_status_t status = FSDP_OK;
    struct rusage usage;
    double start = now();
    uint64_t tensor;
    uint32_t file;
    catalog_t cat;
    char name[32];

    catalog_init(&cat);
    catalog_add_file(&cat, "f", 1ull << 40, &file, NULL);
    for (unsigned t = 0; t < TENSORS && status == FSDP_OK; t++) {
        snprintf(name, sizeof(name), "t%u", t);
        status = catalog_add_tensor(&cat, name, FSDP_DTYPE_F32, 2, dims, NULL,
                                    &tensor, NULL);
        for (uint64_t i = 0; i < COLUMNS * ROWS && status == FSDP_OK; i++) {
            const uint64_t at[2] = {i / COLUMNS * 4, i % COLUMNS * 16};
            const catalog_piece_t piece = {.tensor = (uint32_t)tensor,
                                           .offset = i * 256,
                                           .crc_first = CATALOG_NONE};

            status = catalog_add_box(&cat, &piece, at, count, NULL, NULL);
        }
    }
    ok(status == FSDP_OK &&
           catalog_seal(&cat, CATALOG_CHECK_COVER, NULL) == FSDP_OK &&
           cat.num_pieces == TENSORS * COLUMNS * ROWS,
       "a million boxes are sealed");
    getrusage(RUSAGE_SELF, &usage);
    printf("# %.2f s, %ld MB\n", now() - start, usage.ru_maxrss / 1024);
    ok(usage.ru_maxrss < 500 * 1024, "in less than 500 MB");
    catalog_free(&cat);
}

static int remove_entry(const char *path, const struct stat *st, int type,
                        struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

int main(void)
{
    if (mkdtemp(dir) == NULL) {
        return 1;
    }
    test_coverage();
    test_bad_strides();
    test_changes();
    test_tensors();
    test_progress();
    test_spans();
    test_many();
    nftw(dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    return tap_done();
}
