/*
 * Compare the values of pairs of tensors.
 *
 * Both sides are read in batches of ranges, the next batch while the last one
 * is compared: two readers, two batches each, whose sizes come from the budget
 * of memory.
 */
#include "config.h"

#include "ckpt/diff.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/util/check.h"

#define BATCH_ITEMS 1024      /* ranges in a batch at most */
#define BATCH_LEAST (1 << 16) /* bytes */
#define BLOCK       256       /* elements looked at together; whole bytes */
#define MEM_DEFAULT (64u << 20)
#define JOBS_MOST   8

/* A range of a pair, and where its elements lie in the batch's buffers. */
typedef struct {
    uint64_t pair, first, count;
    char *data[DIFF_SIDES];
} item_t;

struct diff_batch {
    item_t items[BATCH_ITEMS];
    size_t num;
    char *room[DIFF_SIDES];
    struct reader {
        fsdp_ckpt_t *ckpt;
        const fsdp_ckpt_engine_t *engine;
        fsdp_ckpt_range_t ranges[BATCH_ITEMS];
        size_t num, used; /* bytes of room */
        uint64_t bytes;   /* read from files */
        pthread_t thread;
        bool runs; /* in that thread */
        fsdp_status_t status;
        fsdp_error_t err;
    } readers[DIFF_SIDES];
};

/* --- Comparing ------------------------------------------------------------ */

static bool same_bits(unsigned bits, const char *a, const char *b, uint64_t i)
{
    if (bits % 8 == 0) {
        return memcmp(a + i * (bits / 8), b + i * (bits / 8), bits / 8) == 0;
    }

    for (uint64_t bit = i * bits; bit < (i + 1) * bits; bit++) {
        if ((a[bit / 8] ^ b[bit / 8]) >> (bit % 8) & 1) {
            return false;
        }
    }

    return true;
}

/* Whether the numbers differ by more than the tolerance, which is the same
 * whichever side is first. */
static bool beyond(const fsdp_ckpt_diff_config_t *config, double a, double b)
{
    if (a == b || (isnan(a) && isnan(b))) {
        return false;
    }
    if (!isfinite(a) || !isfinite(b)) {
        return true;
    }

    return fabs(a - b) > config->atol + config->rtol * fmax(fabs(a), fabs(b));
}

static void note_difference(diff_pair_t *pair, uint64_t element, double a,
                            double b)
{
    double abs, rel;

    if (!pair->differs) {
        pair->differs = true;
        pair->first = element;
        pair->value[0] = a;
        pair->value[1] = b;
    }
    if (a == b || (isnan(a) && isnan(b))) {
        return; /* other bits of the same number */
    }

    abs = (isfinite(a) && isfinite(b)) ? fabs(a - b) : INFINITY;
    rel = isinf(abs) ? INFINITY : abs / fmax(fabs(a), fabs(b));
    pair->max_abs = fmax(pair->max_abs, abs);
    pair->max_rel = fmax(pair->max_rel, rel);
}

/* What is known of both sides while a range is compared. */
typedef struct {
    const fsdp_ckpt_diff_config_t *config;
    fsdp_dtype_t dtypes[DIFF_SIDES];
    unsigned bits;  /* of an element; 0: the types differ */
    unsigned parts; /* numbers of an element */
    bool exact;
} compare_t;

/* At most BLOCK elements, of which some may differ. */
static void compare_block(const compare_t *cmp, diff_pair_t *pair,
                          const char *const *data, uint64_t skip,
                          uint64_t count, uint64_t element)
{
    double values[DIFF_SIDES][2 * BLOCK];

    for (unsigned side = 0; side < DIFF_SIDES; side++) {
        fsdp_dtype_to_double(cmp->dtypes[side], data[side], skip, count,
                             values[side]);
    }
    for (uint64_t i = 0; i < count; i++) {
        bool counted = false;

        if (cmp->exact && same_bits(cmp->bits, data[0], data[1], skip + i)) {
            continue;
        }
        for (uint64_t j = i * cmp->parts; j < (i + 1) * cmp->parts; j++) {
            double a = values[0][j], b = values[1][j];

            /* In an exact comparison the part with another value is shown; if
             * none has one, the last. */
            if (cmp->exact ? (a != b || j == (i + 1) * cmp->parts - 1)
                           : beyond(cmp->config, a, b)) {
                note_difference(pair, element + i, a, b);
                counted = true;
            }
        }
        pair->differing += counted;
    }
}

static void compare_item(const diff_t *diff, const item_t *item)
{
    diff_pair_t *pair = &diff->pairs[item->pair];
    const char *const data[DIFF_SIDES] = {item->data[0], item->data[1]};
    compare_t cmp = {.config = diff->config};
    fsdp_ckpt_tensor_t tensor;
    uint64_t n;

    for (unsigned side = 0; side < DIFF_SIDES; side++) {
        fsdp_ckpt_get_tensor(diff->ckpts[side], pair->tensor[side], &tensor);
        cmp.dtypes[side] = tensor.dtype;
    }
    cmp.exact = diff->config->rtol == 0 && diff->config->atol == 0;
    cmp.parts =
        (cmp.dtypes[0] == FSDP_DTYPE_C64 || cmp.dtypes[0] == FSDP_DTYPE_C128)
            ? 2
            : 1;
    cmp.bits =
        (cmp.dtypes[0] == cmp.dtypes[1]) ? fsdp_dtype_bits(cmp.dtypes[0]) : 0;

    pair->compared += item->count;
    if (cmp.bits != 0 &&
        memcmp(data[0], data[1], (item->count * cmp.bits + 7) / 8) == 0) {
        return;
    }

    for (uint64_t i = 0; i < item->count; i += n) {
        n = (item->count - i < BLOCK) ? item->count - i : BLOCK;
        if (cmp.bits == 0 ||
            memcmp(data[0] + i * cmp.bits / 8, data[1] + i * cmp.bits / 8,
                   (n * cmp.bits + 7) / 8) != 0) {
            compare_block(&cmp, pair, data, i, n, item->first + i);
        }
    }
}

/* --- Reading -------------------------------------------------------------- */

static size_t bytes_of(fsdp_dtype_t dtype, uint64_t count)
{
    return (size_t)((count * fsdp_dtype_bits(dtype) + 7) / 8);
}

/* Take as much of a pair into the batch as fits: a multiple of 64 elements,
 * which is whole bytes of any type, or the rest.
 * @return false if the batch is full. */
static bool take_pair(diff_t *diff, diff_batch_t *batch, size_t p)
{
    const diff_pair_t *pair = &diff->pairs[p];
    uint64_t count = pair->numel - diff->next_first;
    fsdp_ckpt_tensor_t tensors[DIFF_SIDES];
    item_t *item = &batch->items[batch->num];

    if (batch->num == BATCH_ITEMS) {
        return false;
    }

    for (unsigned side = 0; side < DIFF_SIDES; side++) {
        uint64_t room = diff->batch_room - batch->readers[side].used;
        uint64_t most;

        fsdp_ckpt_get_tensor(diff->ckpts[side], pair->tensor[side],
                             &tensors[side]);
        most = room * 8 / fsdp_dtype_bits(tensors[side].dtype);
        if (count > most) {
            count = most / 64 * 64;
        }
    }
    if (count == 0) {
        return false;
    }

    *item = (item_t){.pair = p, .first = diff->next_first, .count = count};
    batch->num++;
    for (unsigned side = 0; side < DIFF_SIDES; side++) {
        struct reader *reader = &batch->readers[side];
        size_t bytes = bytes_of(tensors[side].dtype, count);

        item->data[side] = batch->room[side] + reader->used;
        reader->ranges[reader->num++] = (fsdp_ckpt_range_t){
            pair->tensor[side], diff->next_first, count, item->data[side]};
        reader->used += (bytes + 63) / 64 * 64;
        if (reader->used > diff->batch_room) {
            reader->used = diff->batch_room;
        }
        diff->done += bytes;
    }
    diff->next_first += count;

    return true;
}

static void fill_batch(diff_t *diff, diff_batch_t *batch)
{
    batch->num = 0;
    for (unsigned side = 0; side < DIFF_SIDES; side++) {
        batch->readers[side].num = 0;
        batch->readers[side].used = 0;
    }

    while (diff->next_pair < diff->num_pairs) {
        const diff_pair_t *pair = &diff->pairs[diff->next_pair];

        if (pair->reads && diff->next_first < pair->numel) {
            if (!take_pair(diff, batch, diff->next_pair)) {
                return;
            }
        } else {
            diff->next_pair++;
            diff->next_first = 0;
        }
    }
}

static void *run_reader(void *arg)
{
    struct reader *reader = arg;

    reader->bytes = 0;
    reader->status =
        fsdp_ckpt_read(reader->ckpt, reader->ranges, reader->num,
                       reader->engine, &reader->bytes, &reader->err);

    return NULL;
}

static void start_batch(diff_batch_t *batch)
{
    for (unsigned side = 0; side < DIFF_SIDES && batch->num > 0; side++) {
        struct reader *reader = &batch->readers[side];

        reader->runs =
            pthread_create(&reader->thread, NULL, run_reader, reader) == 0;
        if (!reader->runs) {
            run_reader(reader);
        }
    }
}

/* The error is that of the first side that has one. */
static fsdp_status_t finish_batch(diff_t *diff, diff_batch_t *batch,
                                  fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;

    for (unsigned side = 0; side < DIFF_SIDES && batch->num > 0; side++) {
        struct reader *reader = &batch->readers[side];

        if (reader->runs) {
            pthread_join(reader->thread, NULL);
            reader->runs = false;
        }
        diff->result.bytes += reader->bytes;
        if (reader->status != FSDP_OK && status == FSDP_OK) {
            status = reader->status;
            if (err != NULL) {
                *err = reader->err;
            }
        }
    }

    return status;
}

static fsdp_status_t tell_progress(const diff_t *diff, fsdp_error_t *err)
{
    const fsdp_ckpt_engine_t *engine = &diff->config->engine;

    if (engine->progress != NULL &&
        !engine->progress(diff->done, diff->total, engine->progress_arg)) {
        return fsdp_error_set(err, FSDP_ERR_CANCELLED,
                              "the comparison was stopped");
    }

    return FSDP_OK;
}

static fsdp_status_t compare_batch(diff_t *diff, const diff_batch_t *batch,
                                   fsdp_error_t *err)
{
    for (size_t i = 0; i < batch->num; i++) {
        compare_item(diff, &batch->items[i]);
    }
    FSDP_TRY(diff_report(diff, err));

    return tell_progress(diff, err);
}

static fsdp_status_t compare_pairs(diff_t *diff, fsdp_error_t *err)
{
    diff_batch_t *batch = diff->batches[0], *next = diff->batches[1], *swap;
    fsdp_status_t status, later;

    fill_batch(diff, batch);
    start_batch(batch);
    do {
        status = finish_batch(diff, batch, err);
        if (status != FSDP_OK) {
            return status;
        }

        fill_batch(diff, next);
        start_batch(next);
        status = compare_batch(diff, batch, err);
        if (status != FSDP_OK) {
            later = finish_batch(diff, next, NULL);
            (void)later; /* the first error is the one to tell */
            return status;
        }
        swap = batch;
        batch = next;
        next = swap;
    } while (batch->num > 0);

    return FSDP_OK;
}

/* Three quarters of the memory for four buffers, the rest for the readers. */
static fsdp_status_t make_batches(diff_t *diff, fsdp_error_t *err)
{
    const fsdp_ckpt_engine_t *engine = &diff->config->engine;
    uint64_t mem = (engine->max_mem != 0) ? engine->max_mem : MEM_DEFAULT;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t jobs = engine->jobs;

    if (jobs == 0) {
        jobs = (cores < JOBS_MOST) ? (uint32_t)cores : JOBS_MOST;
    }
    diff->engine.jobs = (jobs + 1) / 2;
    diff->engine.max_mem = mem / 8;
    diff->batch_room = mem / 16 * 3 / 64 * 64;
    if (diff->batch_room < BATCH_LEAST) {
        diff->batch_room = BATCH_LEAST;
    }

    for (unsigned i = 0; i < 2; i++) {
        diff_batch_t *batch = calloc(1, sizeof(*batch));

        diff->batches[i] = batch;
        for (unsigned side = 0; side < DIFF_SIDES && batch != NULL; side++) {
            batch->room[side] = malloc(diff->batch_room);
            batch->readers[side].ckpt = diff->ckpts[side];
            batch->readers[side].engine = &diff->engine;
        }
        if (batch == NULL || batch->room[0] == NULL || batch->room[1] == NULL) {
            return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                  "no memory for buffers of %zu bytes",
                                  diff->batch_room);
        }
    }

    return FSDP_OK;
}

static void free_batches(diff_t *diff)
{
    for (unsigned i = 0; i < 2; i++) {
        if (diff->batches[i] != NULL) {
            free(diff->batches[i]->room[0]);
            free(diff->batches[i]->room[1]);
            free(diff->batches[i]);
        }
    }
}

fsdp_status_t diff_compare_values(diff_t *diff, fsdp_error_t *err)
{
    fsdp_status_t status = make_batches(diff, err);

    if (status == FSDP_OK) {
        status = compare_pairs(diff, err);
    }
    free_batches(diff);

    return status;
}
