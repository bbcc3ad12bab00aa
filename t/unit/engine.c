/*
 * Layout, plan and engine together: random tensors are saved in one sharding,
 * resharded into another, and read back, against plain copies in memory.  The
 * files are those of a stand-in format: data at odd places, bytes in between.
 */
#include "config.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/engine.h"
#include "ckpt/target.h"
#include "lib/util/crc.h"
#include "lib/util/io.h"
#include "t/tap/tap.h"

static char dir[] = "/tmp/fsdp-engine.XXXXXX";

/* --- A stand-in format ---------------------------------------------------- */

static fsdp_status_t fake_create(catalog_t *cat, uint32_t file,
                                 const uint64_t *pieces, uint64_t num,
                                 const char *path, fsdp_error_t *err)
{
    catalog_file_t *entry = &cat->files[file];
    uint64_t at = 13;
    int fd;

    for (uint64_t i = 0; i < num; i++) {
        catalog_piece_t *piece = &cat->pieces[pieces[i]];
        uint64_t bytes = catalog_piece_bytes(cat, piece);

        if (bytes >= 65536) {
            at = (at + 4095) / 4096 * 4096;
        }
        piece->offset = at;
        at += bytes + i % 3; /* some lie end to end, some do not */
    }
    entry->table = at;
    entry->size = at + entry->crc_count * 4 + 7;

    if (io_open(path, O_RDWR | O_CREAT | O_EXCL, 0666, &fd, err) != FSDP_OK ||
        io_pwrite(fd, "made by a test", 13, 0, path, err) != FSDP_OK ||
        ftruncate(fd, (off_t)entry->size) != 0) {
        return FSDP_ERR_IO;
    }
    close(fd);
    return FSDP_OK;
}

static const format_t fake = {.name = "fake", .create = fake_create};

/* --- Tensors -------------------------------------------------------------- */

enum { MAX_TENSORS = 12 };

typedef struct {
    const char *name, *unit;
    fsdp_dtype_t dtype;
    uint32_t ndim;
    uint64_t dims[3];
} shape_t;

static const shape_t shapes[] = {
    {"model/wte",           "root", FSDP_DTYPE_F32,  2, {300, 1100}},
    {"model/empty",         "root", FSDP_DTYPE_F32,  2, {0, 7}     },
    {"model/scalar",        "root", FSDP_DTYPE_F64,  0, {0}        },
    {"model/h.0.w",         "h.0",  FSDP_DTYPE_BF16, 3, {5, 3, 67} },
    {"model/h.0.b",         "h.0",  FSDP_DTYPE_F32,  1, {1}        },
    {"model/h.1.w",         "h.1",  FSDP_DTYPE_F32,  1, {530000}   },
    {"optim/exp_avg/h.0.w", "h.0",  FSDP_DTYPE_F32,  3, {5, 3, 67} },
    {"optim/exp_avg/h.1.w", "h.1",  FSDP_DTYPE_F32,  1, {530000}   },
    {"loose.7.x",           NULL,   FSDP_DTYPE_I64,  1, {997}      },
    {"loose.7.y",           NULL,   FSDP_DTYPE_F4,   1, {129}      },
    {"loose.z",             NULL,   FSDP_DTYPE_U8,   2, {3, 1}     },
};

#define NUM_SHAPES (sizeof(shapes) / sizeof(*shapes))

static unsigned char *truth[NUM_SHAPES]; /* the bytes, by order of shapes */

static uint64_t rng_state = 88172645463325252ull;

static uint64_t rng(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return rng_state;
}

static void make_truth(void)
{
    for (size_t i = 0; i < NUM_SHAPES; i++) {
        uint64_t numel = 1, bytes;

        for (uint32_t d = 0; d < shapes[i].ndim; d++) {
            numel *= shapes[i].dims[d];
        }
        dtype_bytes(shapes[i].dtype, numel, &bytes);
        truth[i] = malloc(bytes + 1);
        for (uint64_t b = 0; b < bytes; b++) {
            truth[i][b] = (unsigned char)rng();
        }
    }
}

/* --- Checkpoints ---------------------------------------------------------- */

typedef struct {
    catalog_t cat;
    target_lists_t lists;
    char *root;
} ckpt_t;

static fsdp_status_t make_catalog(ckpt_t *ckpt, const char *name,
                                  const char *strategy, uint32_t world,
                                  uint32_t files, fsdp_error_t *err)
{
    catalog_t *cat = &ckpt->cat;
    fsdp_strategy_t kind;
    uint32_t shard, index;
    char path[32];

    catalog_init(cat);
    ckpt->root = io_path("%s/%s", dir, name);
    cat->path = cat->root = ckpt->root;
    if (mkdir(ckpt->root, 0777) != 0 ||
        fsdp_strategy_parse(strategy, &kind, &shard, err) != FSDP_OK ||
        fsdp_mesh_init(&cat->mesh, kind, world, shard, err) != FSDP_OK) {
        return FSDP_ERR_CONFIG;
    }

    files = target_num_files(world, files);
    for (uint32_t f = 0; f < files; f++) {
        target_file_name(f, path);
        catalog_add_file(cat, path, 0, &index, err);
    }
    for (size_t i = 0; i < NUM_SHAPES; i++) {
        if (catalog_add_tensor(cat, shapes[i].name, shapes[i].dtype,
                               shapes[i].ndim, shapes[i].dims, shapes[i].unit,
                               NULL, err) != FSDP_OK) {
            return FSDP_ERR_CONFIG;
        }
    }
    if (target_shard(cat, files, err) != FSDP_OK ||
        catalog_seal(cat, CATALOG_CHECK_COVER, err) != FSDP_OK ||
        target_lists(cat, true, &ckpt->lists, err) != FSDP_OK) {
        return FSDP_ERR_CONFIG;
    }
    for (uint32_t f = 0; f < files; f++) {
        if (target_create(&fake, cat, f, &ckpt->lists, ckpt->root, err) !=
            FSDP_OK) {
            return FSDP_ERR_IO;
        }
    }
    return FSDP_OK;
}

static fsdp_status_t finish(ckpt_t *ckpt, fsdp_error_t *err)
{
    for (uint32_t f = 0; f < ckpt->cat.num_files; f++) {
        uint64_t first = ckpt->lists.first[f];
        fsdp_status_t status = engine_finish_file(
            &ckpt->cat, f, ckpt->lists.pieces + first,
            ckpt->lists.first[f + 1] - first, ckpt->root, err);

        if (status != FSDP_OK) {
            return status;
        }
    }

    return FSDP_OK;
}

static int remove_entry(const char *path, const struct stat *st, int type,
                        struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static void drop(ckpt_t *ckpt)
{
    nftw(ckpt->root, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    target_lists_free(&ckpt->lists);
    catalog_free(&ckpt->cat);
    free(ckpt->root);
}

/* Write a checkpoint from memory, as ranks do. */
static fsdp_status_t save(ckpt_t *ckpt, const char *name, const char *strategy,
                          uint32_t world, uint32_t files, fsdp_error_t *err)
{
    fsdp_status_t status =
        make_catalog(ckpt, name, strategy, world, files, err);
    catalog_t *cat = &ckpt->cat;
    const void **data = calloc(cat->num_pieces + 1, sizeof(*data));
    uint64_t *pieces = calloc(cat->num_pieces + 1, sizeof(*pieces));
    engine_job_t job = {.dst = cat, .dst_dir = ckpt->root};
    plan_t plan = {0};

    for (uint64_t p = 0; p < cat->num_pieces; p++) {
        const catalog_piece_t *piece = &cat->pieces[p];
        const catalog_tensor_t *tensor = &cat->tensors[piece->tensor];
        uint64_t at;

        dtype_bytes((fsdp_dtype_t)tensor->dtype, piece->first, &at);
        pieces[p] = p;
        data[p] = truth[tensor->order] + at;
    }
    if (status == FSDP_OK) {
        status = plan_save(&plan, cat, pieces, data, cat->num_pieces, err);
    }
    job.plan = &plan;
    if (status == FSDP_OK) {
        status = engine_run(&job, NULL, err);
    }
    if (status == FSDP_OK) {
        status = finish(ckpt, err);
    }
    plan_free(&plan);
    free(data);
    free(pieces);
    return status;
}

static fsdp_status_t reshard(ckpt_t *from, ckpt_t *to, const char *name,
                             const char *strategy, uint32_t world,
                             uint32_t files, fsdp_ckpt_engine_t options,
                             engine_result_t *result, fsdp_error_t *err)
{
    engine_job_t job = {.dst = &to->cat, .options = options};
    uint64_t map[NUM_SHAPES];
    plan_t plan = {0};
    fsdp_status_t status = make_catalog(to, name, strategy, world, files, err);

    for (uint64_t t = 0; t < NUM_SHAPES; t++) {
        map[t] = t; /* both are sorted by name */
    }
    if (status == FSDP_OK) {
        status = plan_convert(&plan, &from->cat, &to->cat, map, err);
    }
    if (status == FSDP_OK) {
        status = plan_place(&plan, err);
    }
    if (status == FSDP_OK) {
        job.plan = &plan;
        status = engine_run(&job, result, err);
    }
    if (status == FSDP_OK && plan.bytes_read != result->bytes_read) {
        status = FSDP_ERR_BAD_STATE;
    }
    if (status == FSDP_OK) {
        status = finish(to, err);
    }
    plan_free(&plan);
    return status;
}

/* --- Checks --------------------------------------------------------------- */

/* The files hold the true bytes, the checksums of blocks and of whole files are
 * those of the bytes on disk, and the table is there. */
static bool is_true(const ckpt_t *ckpt)
{
    const catalog_t *cat = &ckpt->cat;
    bool good = true;

    for (uint32_t f = 0; f < cat->num_files && good; f++) {
        char *path = catalog_file_path(cat, f), *text;
        const catalog_file_t *file = &cat->files[f];
        size_t size;

        good = io_read_file(path, 1 << 30, &text, &size, NULL) == FSDP_OK &&
               size == file->size && crc32c(0, text, size) == file->crc32c &&
               memcmp(text + file->table, cat->crcs + file->crc_first,
                      file->crc_count * 4) == 0;
        for (uint64_t p = 0; p < cat->num_pieces && good; p++) {
            const catalog_piece_t *piece = &cat->pieces[p];
            const catalog_tensor_t *tensor = &cat->tensors[piece->tensor];
            uint64_t bytes = catalog_piece_bytes(cat, piece), at;

            if (piece->file != f) {
                continue;
            }
            dtype_bytes((fsdp_dtype_t)tensor->dtype, piece->first, &at);
            good = memcmp(text + piece->offset, truth[tensor->order] + at,
                          bytes) == 0;
            for (uint64_t b = 0; b < catalog_blocks(bytes) && good; b++) {
                uint64_t start = b * CATALOG_BLOCK;
                uint64_t rest = bytes - start;

                good = crc32c(0, text + piece->offset + start,
                              rest < CATALOG_BLOCK ? rest : CATALOG_BLOCK) ==
                       cat->crcs[piece->crc_first + b];
            }
        }
        free(text);
        free(path);
    }

    return good;
}

static void test_reshard(void)
{
    static const struct {
        const char *strategy;
        uint32_t world, files;
    } meshes[] = {
        {"full",     1, 0},
        {"full",     2, 0},
        {"full",     3, 2},
        {"none",     3, 0},
        {"grad-op",  4, 0},
        {"hybrid:2", 4, 3},
        {"full",     7, 0},
        {"full",     8, 5},
        {"hybrid:4", 8, 1},
        {"hybrid:2", 8, 0},
    };
    const size_t num = sizeof(meshes) / sizeof(*meshes);
    engine_result_t result;

    for (size_t i = 0; i < num; i++) {
        size_t j = (i * 3 + 1) % num;
        fsdp_ckpt_engine_t options = {.max_mem = (i % 2) ? 0 : 150000,
                                      .jobs = 1 + i % 3};
        fsdp_error_t err = {0};
        ckpt_t a = {0}, b = {0};
        bool good = save(&a, "a", meshes[i].strategy, meshes[i].world,
                         meshes[i].files, &err) == FSDP_OK;

        ok(good && is_true(&a), "saved by %u, %s, in %u files %s",
           meshes[i].world, meshes[i].strategy, a.cat.num_files, err.text);
        good = reshard(&a, &b, "b", meshes[j].strategy, meshes[j].world,
                       meshes[j].files, options, &result, &err) == FSDP_OK;
        ok(good && is_true(&b), "resharded to %u, %s %s", meshes[j].world,
           meshes[j].strategy, err.text);
        ok(result.peak_mem <=
               (options.max_mem ? options.max_mem : ENGINE_MAX_MEM),
           "in %lu bytes of buffers", (unsigned long)result.peak_mem);
        drop(&a);
        drop(&b);
    }
}

/* --- Reading into memory -------------------------------------------------- */

/* --- Parts ---------------------------------------------------------------- */

/* Which rank, from 1 on, writes to each 64 KiB of each file. */
typedef struct {
    unsigned char *owner[8];
    bool shared;
} pages_t;

static void claim(pages_t *pages, const plan_t *plan, unsigned char rank)
{
    for (uint64_t i = 0; i < plan->num; i++) {
        const plan_copy_t *copy = &plan->copies[i];
        uint64_t first = plan_dst_offset(plan, copy);
        uint64_t last = first + plan_dst_bytes(copy) - 1;
        uint32_t file = plan->dst->pieces[copy->dst_piece].file;

        for (uint64_t p = first >> 16; p <= last >> 16; p++) {
            unsigned char *owner = &pages->owner[file][p];

            pages->shared |= *owner != 0 && *owner != rank;
            *owner = rank;
        }
    }
}

/* Each rank in turn copies its part. */
static fsdp_status_t copy_in_parts(ckpt_t *from, ckpt_t *to, uint32_t ranks,
                                   pages_t *pages, fsdp_error_t *err)
{
    uint64_t map[NUM_SHAPES], bytes = 0, whole = 0;
    fsdp_status_t status = FSDP_OK;
    engine_sums_t sums = {0};

    for (uint64_t t = 0; t < NUM_SHAPES; t++) {
        map[t] = t;
    }
    status = engine_sums_init(&sums, from->cat.num_crcs, err);
    for (uint32_t rank = 0; rank < ranks && status == FSDP_OK; rank++) {
        engine_job_t job = {.dst = &to->cat, .sums = &sums};
        plan_t plan = {0};

        status = plan_convert(&plan, &from->cat, &to->cat, map, err);
        status = (status == FSDP_OK) ? plan_place(&plan, err) : status;
        status = (status == FSDP_OK) ? plan_keep_part(&plan, rank, ranks, err)
                                     : status;
        claim(pages, &plan, (unsigned char)(rank + 1));
        for (uint64_t i = 0; i < plan.num; i++) {
            bytes += plan.copies[i].bytes;
        }
        whole = plan.bytes_read;
        job.plan = &plan;
        status = (status == FSDP_OK) ? engine_run(&job, NULL, err) : status;
        plan_free(&plan);
    }
    if (status == FSDP_OK) {
        status = engine_check_sums(&from->cat, &sums, err);
    }
    engine_sums_free(&sums);
    return (status == FSDP_OK && bytes != whole) ? FSDP_ERR_BAD_STATE : status;
}

static void test_parts(void)
{
    static const uint32_t ranks[] = {1, 2, 3, 5, 16, 100};
    fsdp_error_t err = {0};
    ckpt_t a = {0}, b = {0};

    ok(save(&a, "a", "full", 3, 0, &err) == FSDP_OK, "a source %s", err.text);
    for (size_t i = 0; i < sizeof(ranks) / sizeof(*ranks); i++) {
        pages_t pages = {0};
        bool good = make_catalog(&b, "b", "full", 4, 1 + i, &err) == FSDP_OK;

        for (size_t f = 0; f < 8; f++) {
            pages.owner[f] = calloc(4096, 1);
        }
        good = good && copy_in_parts(&a, &b, ranks[i], &pages, &err) == FSDP_OK;
        ok(good && finish(&b, &err) == FSDP_OK && is_true(&b),
           "copied by %u ranks %s", ranks[i], err.text);
        ok(!pages.shared, "none of which writes to another's 64 KiB");
        for (size_t f = 0; f < 8; f++) {
            free(pages.owner[f]);
        }
        drop(&b);
    }
    drop(&a);
}

static fsdp_status_t read_ranges(const catalog_t *cat,
                                 const fsdp_ckpt_range_t *ranges, size_t num,
                                 engine_result_t *result, fsdp_error_t *err)
{
    engine_job_t job = {.options = {.jobs = 2}};
    fsdp_status_t status;
    plan_t plan;

    status = plan_read(&plan, cat, ranges, num, err);
    if (status == FSDP_OK) {
        job.plan = &plan;
        status = engine_run(&job, result, err);
        plan_free(&plan);
    }
    return status;
}

static void test_read(void)
{
    enum { ROUNDS = 40, RANGES = 9 };
    fsdp_ckpt_range_t ranges[RANGES];
    engine_result_t result = {0};
    fsdp_error_t err = {0};
    bool good, all = true;
    ckpt_t a = {0};

    good = save(&a, "a", "hybrid:2", 4, 0, &err) == FSDP_OK;
    ok(good, "a checkpoint to read %s", err.text);
    for (int round = 0; round < ROUNDS && all; round++) {
        for (int i = 0; i < RANGES; i++) { /* they overlap now and then */
            uint64_t t = rng() % NUM_SHAPES, bytes;
            const catalog_tensor_t *tensor = &a.cat.tensors[t];

            ranges[i].tensor = t;
            ranges[i].first = rng() % (tensor->numel + 1) & ~1ull;
            ranges[i].count = rng() % (tensor->numel - ranges[i].first + 1);
            if (tensor->dtype == FSDP_DTYPE_F4) {
                ranges[i].count &= ~1ull;
            }
            dtype_bytes((fsdp_dtype_t)tensor->dtype, ranges[i].count, &bytes);
            ranges[i].data = malloc(bytes + 1);
        }
        all &= read_ranges(&a.cat, ranges, RANGES, &result, &err) == FSDP_OK;
        for (int i = 0; i < RANGES; i++) {
            const catalog_tensor_t *tensor = &a.cat.tensors[ranges[i].tensor];
            uint64_t at, bytes;

            dtype_bytes((fsdp_dtype_t)tensor->dtype, ranges[i].first, &at);
            dtype_bytes((fsdp_dtype_t)tensor->dtype, ranges[i].count, &bytes);
            all &=
                memcmp(ranges[i].data, truth[tensor->order] + at, bytes) == 0;
            free(ranges[i].data);
        }
    }
    ok(all, "%d times %d ranges that may overlap %s", ROUNDS, RANGES, err.text);

    ranges[0] = (fsdp_ckpt_range_t){
        .tensor = 0, .first = 0, .count = 1, .data = (char[8]){0}};
    ok(read_ranges(&a.cat, ranges, 1, &result, &err) == FSDP_OK &&
           result.bytes_read <= CATALOG_BLOCK,
       "one element reads one block at most");
    ranges[0].count = UINT64_MAX;
    ok(read_ranges(&a.cat, ranges, 1, &result, &err) == FSDP_ERR_INVALID_PARAM,
       "%s", err.text);
    drop(&a);
}

/* --- Damage --------------------------------------------------------------- */

static void flip(const ckpt_t *ckpt, uint32_t file, uint64_t at)
{
    char *path = catalog_file_path(&ckpt->cat, file);
    int fd = open(path, O_RDWR);
    char c;

    if (pread(fd, &c, 1, (off_t)at) == 1) {
        c ^= 16;
        if (pwrite(fd, &c, 1, (off_t)at) != 1) {
            c = 0;
        }
    }
    close(fd);
    free(path);
}

static bool count_mismatch(const catalog_t *cat, uint64_t piece, uint64_t block,
                           void *arg)
{
    (void)cat, (void)piece, (void)block;
    ++*(int *)arg;
    return true;
}

static int check_all(const ckpt_t *ckpt)
{
    engine_job_t job = {.mismatch = count_mismatch};
    fsdp_error_t err;
    int num = 0;
    plan_t plan;

    job.arg = &num;
    if (plan_check(&plan, &ckpt->cat, NULL, &err) != FSDP_OK) {
        return -1;
    }
    job.plan = &plan;
    if (engine_run(&job, NULL, &err) != FSDP_OK) {
        num = -1;
    }
    plan_free(&plan);
    return num;
}

static void test_damage(void)
{
    engine_result_t result;
    fsdp_error_t err = {0};
    ckpt_t a = {0}, b = {0};
    bool found = true, named = true, counted = true;

    ok(save(&a, "a", "full", 3, 0, &err) == FSDP_OK && check_all(&a) == 0,
       "a good checkpoint has no mismatch");
    for (int i = 0; i < 20; i++) {
        const catalog_piece_t *piece = &a.cat.pieces[rng() % a.cat.num_pieces];
        uint64_t at =
            piece->offset + rng() % catalog_piece_bytes(&a.cat, piece);

        flip(&a, piece->file, at);
        found &=
            reshard(&a, &b, "b", "full", 2, 0, (fsdp_ckpt_engine_t){.jobs = 2},
                    &result, &err) == FSDP_ERR_CORRUPT;
        named &= strstr(err.text, a.cat.files[piece->file].path) != NULL &&
                 strstr(err.text, a.cat.tensors[piece->tensor].name) != NULL;
        counted &= check_all(&a) == 1;
        flip(&a, piece->file, at);
        drop(&b);
    }
    ok(found, "20 flipped bits are found by resharding");
    ok(named, "and named: %s", err.text);
    ok(counted, "and found by the check alone, one block each");

    for (uint32_t f = 0; f < 1; f++) {
        char *path = catalog_file_path(&a.cat, f);

        if (truncate(path, (off_t)a.cat.files[f].size / 2) != 0) {
            ok(false, "cannot truncate");
        }
        free(path);
        ok(reshard(&a, &b, "b", "full", 2, 0, (fsdp_ckpt_engine_t){0}, &result,
                   &err) == FSDP_ERR_CORRUPT,
           "%s", err.text);
        drop(&b);
    }
    drop(&a);
}

static bool stop_at_once(uint64_t done, uint64_t total, void *arg)
{
    (void)total;
    *(uint64_t *)arg = done;
    return false;
}

static void test_options(void)
{
    engine_result_t result;
    uint64_t done = 0;
    fsdp_error_t err = {0};
    ckpt_t a = {0}, b = {0};

    save(&a, "a", "full", 2, 0, &err);
    ok(reshard(&a, &b, "b", "full", 1, 0,
               (fsdp_ckpt_engine_t){.progress = stop_at_once,
                                    .progress_arg = &done,
                                    .jobs = 1,
                                    .max_mem = 65536},
               &result, &err) == FSDP_ERR_CANCELLED &&
           done > 0 && done <= 65536,
       "progress can stop it");
    drop(&b);
    ok(reshard(&a, &b, "b", "full", 1, 0, (fsdp_ckpt_engine_t){.max_mem = 100},
               &result, &err) == FSDP_ERR_INVALID_PARAM,
       "%s", err.text);
    drop(&b);
    ok(reshard(&a, &b, "b", "full", 1, 0,
               (fsdp_ckpt_engine_t){.max_mem = 4096, .jobs = 8}, &result,
               &err) == FSDP_OK &&
           is_true(&b) && result.peak_mem == 4096,
       "4096 bytes are enough %s", err.text);
    drop(&b);
    drop(&a);
}

int main(void)
{
    if (mkdtemp(dir) == NULL) {
        return 99;
    }
    make_truth();
    test_reshard();
    test_parts();
    test_read();
    test_damage();
    test_options();
    for (size_t i = 0; i < NUM_SHAPES; i++) {
        free(truth[i]);
    }
    rmdir(dir);
    return tap_done();
}
