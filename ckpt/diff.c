/*
 * Compare the values of two checkpoints.
 *
 * Tensors are paired by name, then both sides are read in batches of ranges,
 * the next batch while the last one is compared: two readers, two batches
 * each, whose sizes come from the budget of memory.
 */
#include "config.h"

#include "ckpt/fsdp_ckpt.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lib/util/check.h"
#include "lib/util/io.h"
#include "lib/util/select.h"

#define NONE        UINT64_MAX
#define SIDES       2
#define BATCH_ITEMS 1024      /* ranges in a batch at most */
#define BATCH_LEAST (1 << 16) /* bytes */
#define BLOCK       256       /* elements looked at together; whole bytes */
#define MEM_DEFAULT (64u << 20)
#define JOBS_MOST   8

/* A name, and what has been seen of it so far. */
typedef struct {
    const char *name;         /* borrowed from the checkpoint */
    uint64_t tensor[SIDES];   /* NONE: not there */
    uint64_t numel, compared; /* elements; compared only if `reads` */
    bool reads, differs;
    fsdp_ckpt_how_t how;
    uint64_t differing, first;
    double value[SIDES]; /* of the first that differs */
    double max_abs, max_rel;
} pair_t;

/* A range of a pair, and where its elements lie in the batch's buffers. */
typedef struct {
    uint64_t pair, first, count;
    char *data[SIDES];
} item_t;

typedef struct {
    item_t items[BATCH_ITEMS];
    size_t num;
    char *room[SIDES];
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
    } readers[SIDES];
} batch_t;

typedef struct {
    const fsdp_ckpt_diff_config_t *config;
    fsdp_ckpt_difference_f difference;
    void *arg;
    const char *paths[SIDES];
    fsdp_ckpt_t *ckpts[SIDES];
    fsdp_ckpt_info_t infos[SIDES];
    bool kinds[SIDES]; /* names begin with "model/" or "optim/" */
    pair_t *pairs;
    size_t num_pairs, pairs_room;
    size_t next_pair;    /* the next to be put into a batch … */
    uint64_t next_first; /* … from this element on */
    size_t reported;     /* pairs before this one are done with */
    batch_t *batches[2];
    size_t batch_room;         /* bytes a side */
    fsdp_ckpt_engine_t engine; /* of each reader */
    uint64_t done, total;      /* bytes of tensors, both sides */
    fsdp_ckpt_diff_result_t result;
} diff_t;

/* --- Pairing ----------------------------------------------------------------- */

static bool has_kinds(const fsdp_ckpt_t *ckpt, uint64_t num)
{
    fsdp_ckpt_tensor_t tensor;

    for (uint64_t t = 0; t < num; t++) {
        fsdp_ckpt_get_tensor(ckpt, t, &tensor);
        if (select_is_model(tensor.name) || select_is_optim(tensor.name)) {
            return true;
        }
    }

    return false;
}

/* The tensor on the other side that @a name of side @a side is compared with,
 * or NONE. */
static fsdp_status_t find_partner(const diff_t *diff, unsigned side,
                                  const char *name, uint64_t *tensor_p,
                                  fsdp_error_t *err)
{
    const fsdp_ckpt_t *other = diff->ckpts[1 - side];
    char *longer;

    *tensor_p = NONE;
    if (fsdp_ckpt_find(other, name, tensor_p) ||
        diff->kinds[0] == diff->kinds[1]) {
        return FSDP_OK;
    }

    if (diff->kinds[side]) {
        if (select_is_model(name)) {
            fsdp_ckpt_find(other, select_base(name), tensor_p);
        }
        return FSDP_OK;
    }

    longer = io_path("model/%s", name);
    if (longer == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "no memory for names");
    }
    fsdp_ckpt_find(other, longer, tensor_p);
    free(longer);

    return FSDP_OK;
}

static const char *tensor_name(const diff_t *diff, unsigned side,
                               uint64_t tensor)
{
    fsdp_ckpt_tensor_t info;

    fsdp_ckpt_get_tensor(diff->ckpts[side], tensor, &info);
    return info.name;
}

/* Decide what there is to compare of two tensors. */
static void judge_pair(diff_t *diff, pair_t *pair)
{
    const fsdp_ckpt_diff_config_t *config = diff->config;
    fsdp_ckpt_tensor_t a, b;

    pair->differs = true;
    if (pair->tensor[0] == NONE || pair->tensor[1] == NONE) {
        pair->how =
            (pair->tensor[0] == NONE) ? FSDP_CKPT_ONLY_B : FSDP_CKPT_ONLY_A;
        return;
    }

    diff->result.tensors++;
    fsdp_ckpt_get_tensor(diff->ckpts[0], pair->tensor[0], &a);
    fsdp_ckpt_get_tensor(diff->ckpts[1], pair->tensor[1], &b);
    if (a.ndim != b.ndim ||
        memcmp(a.dims, b.dims, a.ndim * sizeof(*a.dims)) != 0) {
        pair->how = FSDP_CKPT_SHAPE;
    } else if (a.dtype != b.dtype && config->rtol == 0 && config->atol == 0) {
        pair->how = FSDP_CKPT_DTYPE;
    } else {
        pair->how = FSDP_CKPT_VALUES;
        pair->differs = false;
        pair->reads = true;
        diff->total += a.bytes + b.bytes;
    }
}

static fsdp_status_t add_pair(diff_t *diff, const char *name, uint64_t a,
                              uint64_t b, fsdp_error_t *err)
{
    const select_t select = {
        diff->config->include,    diff->config->num_include,
        diff->config->exclude,    diff->config->num_exclude,
        diff->config->only_model,
    };
    fsdp_ckpt_tensor_t tensor;
    pair_t *pair;

    if (!select_match(&select, name)) {
        return FSDP_OK;
    }

    if (diff->num_pairs == diff->pairs_room) {
        size_t room = 2 * diff->pairs_room + 64;
        pair_t *pairs = reallocarray(diff->pairs, room, sizeof(*pairs));

        if (pairs == NULL) {
            return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                  "no memory for %zu names", room);
        }
        diff->pairs = pairs;
        diff->pairs_room = room;
    }

    pair = &diff->pairs[diff->num_pairs++];
    *pair = (pair_t){
        .name = name, .tensor = {a, b}
    };
    fsdp_ckpt_get_tensor(diff->ckpts[a == NONE], (a == NONE) ? b : a, &tensor);
    pair->numel = tensor.numel;
    judge_pair(diff, pair);

    return FSDP_OK;
}

/* A pattern that fits no name is a mistake that would pass as "the same". */
static fsdp_status_t check_patterns(const diff_t *diff,
                                    const char *const *patterns, size_t num,
                                    fsdp_error_t *err)
{
    for (size_t i = 0; i < num; i++) {
        bool found = false;

        for (unsigned side = 0; side < SIDES; side++) {
            for (uint64_t t = 0; t < diff->infos[side].num_tensors && !found;
                 t++) {
                found = select_pattern_match(patterns[i],
                                             tensor_name(diff, side, t));
            }
        }
        if (!found) {
            return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                                  "no tensor of %s or %s fits the pattern '%s'",
                                  diff->paths[0], diff->paths[1], patterns[i]);
        }
    }

    return FSDP_OK;
}

/* Whether the tensors' own names, without aliases, bring them together. */
static fsdp_status_t is_paired(const diff_t *diff, uint64_t a, uint64_t b,
                               bool *paired_p, fsdp_error_t *err)
{
    uint64_t partner;

    FSDP_TRY(find_partner(diff, 0, tensor_name(diff, 0, a), &partner, err));
    *paired_p = partner == b;

    return FSDP_OK;
}

/* Names of B: those that A lacks, and those that are another tensor's name
 * in A. */
static fsdp_status_t pair_names_of_b(diff_t *diff, fsdp_error_t *err)
{
    for (uint64_t b = 0; b < diff->infos[1].num_tensors; b++) {
        const char *name = tensor_name(diff, 1, b);
        bool paired = false;
        uint64_t a;

        FSDP_TRY(find_partner(diff, 1, name, &a, err));
        if (a != NONE) {
            FSDP_TRY(is_paired(diff, a, b, &paired, err));
        }
        if (!paired) {
            FSDP_TRY(add_pair(diff, name, a, b, err));
        }
    }

    return FSDP_OK;
}

/* Names that are aliases on both sides, but of other tensors.  An alias that
 * only one side has is no difference of values. */
static fsdp_status_t pair_aliases(diff_t *diff, fsdp_error_t *err)
{
    for (uint64_t i = 0; i < diff->infos[0].num_aliases; i++) {
        const char *name;
        bool paired;
        uint64_t a, b;

        fsdp_ckpt_get_alias(diff->ckpts[0], i, &name, &a);
        FSDP_TRY(find_partner(diff, 0, name, &b, err));
        if (b == NONE) {
            continue;
        }
        FSDP_TRY(is_paired(diff, a, b, &paired, err));
        if (!paired && strcmp(tensor_name(diff, 1, b), name) != 0) {
            FSDP_TRY(add_pair(diff, name, a, b, err));
        }
    }

    return FSDP_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const pair_t *)a)->name, ((const pair_t *)b)->name);
}

static fsdp_status_t pair_tensors(diff_t *diff, fsdp_error_t *err)
{
    for (unsigned side = 0; side < SIDES; side++) {
        fsdp_ckpt_get_info(diff->ckpts[side], &diff->infos[side]);
        diff->kinds[side] =
            has_kinds(diff->ckpts[side], diff->infos[side].num_tensors);
    }

    FSDP_TRY(check_patterns(diff, diff->config->include,
                            diff->config->num_include, err));
    FSDP_TRY(check_patterns(diff, diff->config->exclude,
                            diff->config->num_exclude, err));
    for (uint64_t a = 0; a < diff->infos[0].num_tensors; a++) {
        const char *name = tensor_name(diff, 0, a);
        uint64_t b;

        FSDP_TRY(find_partner(diff, 0, name, &b, err));
        FSDP_TRY(add_pair(diff, name, a, b, err));
    }
    FSDP_TRY(pair_names_of_b(diff, err));
    FSDP_TRY(pair_aliases(diff, err));
    if (diff->num_pairs > 0) {
        qsort(diff->pairs, diff->num_pairs, sizeof(*diff->pairs), by_name);
    }

    return FSDP_OK;
}

/* --- Comparing ------------------------------------------------------------------ */

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

static void note_difference(pair_t *pair, uint64_t element, double a, double b)
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
    fsdp_dtype_t dtypes[SIDES];
    unsigned bits;  /* of an element; 0: the types differ */
    unsigned parts; /* numbers of an element */
    bool exact;
} compare_t;

/* At most BLOCK elements, of which some may differ. */
static void compare_block(const compare_t *cmp, pair_t *pair,
                          const char *const *data, uint64_t skip,
                          uint64_t count, uint64_t element)
{
    double values[SIDES][2 * BLOCK];

    for (unsigned side = 0; side < SIDES; side++) {
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
    pair_t *pair = &diff->pairs[item->pair];
    const char *const data[SIDES] = {item->data[0], item->data[1]};
    compare_t cmp = {.config = diff->config};
    fsdp_ckpt_tensor_t tensor;
    uint64_t n;

    for (unsigned side = 0; side < SIDES; side++) {
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

/* --- Reporting ------------------------------------------------------------------- */

static void format_shape(const fsdp_ckpt_tensor_t *tensor, char *text,
                         size_t size)
{
    size_t used = 0;

    snprintf(text, size, "[]");
    for (uint32_t d = 0; d < tensor->ndim && used < size; d++) {
        used += (size_t)snprintf(text + used, size - used, "%s%" PRIu64 "%s",
                                 d ? ", " : "[", tensor->dims[d],
                                 (d + 1 == tensor->ndim) ? "]" : "");
    }
}

/* One line about a pair; the caller frees it. */
static char *describe(const diff_t *diff, const pair_t *pair)
{
    fsdp_ckpt_tensor_t a = {0}, b = {0};
    char shape_a[128], shape_b[128];

    switch (pair->how) {
    case FSDP_CKPT_ONLY_A:
        return io_path("%s: only in %s", pair->name, diff->paths[0]);
    case FSDP_CKPT_ONLY_B:
        return io_path("%s: only in %s", pair->name, diff->paths[1]);
    default:
        break;
    }

    fsdp_ckpt_get_tensor(diff->ckpts[0], pair->tensor[0], &a);
    fsdp_ckpt_get_tensor(diff->ckpts[1], pair->tensor[1], &b);
    switch (pair->how) {
    case FSDP_CKPT_SHAPE:
        format_shape(&a, shape_a, sizeof(shape_a));
        format_shape(&b, shape_b, sizeof(shape_b));
        return io_path("%s: shape %s against %s", pair->name, shape_a, shape_b);
    case FSDP_CKPT_DTYPE:
        return io_path("%s: dtype %s against %s", pair->name,
                       fsdp_dtype_name(a.dtype), fsdp_dtype_name(b.dtype));
    default:
        return io_path("%s: %" PRIu64 " of %" PRIu64 " elements differ, "
                       "first %" PRIu64 ": %.9g against %.9g, largest "
                       "difference %.3g, relative %.3g",
                       pair->name, pair->differing, pair->numel, pair->first,
                       pair->value[0], pair->value[1], pair->max_abs,
                       pair->max_rel);
    }
}

static fsdp_status_t call_back(diff_t *diff, fsdp_ckpt_difference_t *what,
                               char *text, fsdp_error_t *err)
{
    bool goes_on = true;

    if (text == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "no memory for a line");
    }

    diff->result.differences++;
    what->text = text;
    if (diff->difference != NULL) {
        goes_on = diff->difference(what, diff->arg);
    }
    free(text);
    if (!goes_on) {
        return fsdp_error_set(err, FSDP_ERR_CANCELLED,
                              "the comparison was stopped");
    }

    return FSDP_OK;
}

/* Report, in order, the pairs that are done. */
static fsdp_status_t report_pairs(diff_t *diff, fsdp_error_t *err)
{
    for (; diff->reported < diff->num_pairs; diff->reported++) {
        const pair_t *pair = &diff->pairs[diff->reported];
        fsdp_ckpt_difference_t what = {
            .name = pair->name,
            .how = pair->how,
            .numel = pair->numel,
            .differing = pair->differing,
            .first = pair->first,
            .value_a = pair->value[0],
            .value_b = pair->value[1],
            .max_abs = pair->max_abs,
            .max_rel = pair->max_rel,
        };

        if (pair->reads && pair->compared < pair->numel) {
            break;
        }
        if (pair->differs) {
            FSDP_TRY(call_back(diff, &what, describe(diff, pair), err));
        }
    }

    return FSDP_OK;
}

/* --- Reading ----------------------------------------------------------------------- */

static size_t bytes_of(fsdp_dtype_t dtype, uint64_t count)
{
    return (size_t)((count * fsdp_dtype_bits(dtype) + 7) / 8);
}

/* Take as much of a pair into the batch as fits: a multiple of 64 elements,
 * which is whole bytes of any type, or the rest.
 * @return false if the batch is full. */
static bool take_pair(diff_t *diff, batch_t *batch, size_t p)
{
    const pair_t *pair = &diff->pairs[p];
    uint64_t count = pair->numel - diff->next_first;
    fsdp_ckpt_tensor_t tensors[SIDES];
    item_t *item = &batch->items[batch->num];

    if (batch->num == BATCH_ITEMS) {
        return false;
    }

    for (unsigned side = 0; side < SIDES; side++) {
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
    for (unsigned side = 0; side < SIDES; side++) {
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

static void fill_batch(diff_t *diff, batch_t *batch)
{
    batch->num = 0;
    for (unsigned side = 0; side < SIDES; side++) {
        batch->readers[side].num = 0;
        batch->readers[side].used = 0;
    }

    while (diff->next_pair < diff->num_pairs) {
        const pair_t *pair = &diff->pairs[diff->next_pair];

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

static void start_batch(batch_t *batch)
{
    for (unsigned side = 0; side < SIDES && batch->num > 0; side++) {
        struct reader *reader = &batch->readers[side];

        reader->runs =
            pthread_create(&reader->thread, NULL, run_reader, reader) == 0;
        if (!reader->runs) {
            run_reader(reader);
        }
    }
}

/* The error is that of the first side that has one. */
static fsdp_status_t finish_batch(diff_t *diff, batch_t *batch,
                                  fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;

    for (unsigned side = 0; side < SIDES && batch->num > 0; side++) {
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

static fsdp_status_t compare_batch(diff_t *diff, const batch_t *batch,
                                   fsdp_error_t *err)
{
    for (size_t i = 0; i < batch->num; i++) {
        compare_item(diff, &batch->items[i]);
    }
    FSDP_TRY(report_pairs(diff, err));

    return tell_progress(diff, err);
}

static fsdp_status_t compare_pairs(diff_t *diff, fsdp_error_t *err)
{
    batch_t *batch = diff->batches[0], *next = diff->batches[1], *swap;
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

/* --- Metadata ------------------------------------------------------------------------ */

static fsdp_status_t differ_in(diff_t *diff, const char *key, json_t *a,
                               json_t *b, fsdp_error_t *err)
{
    fsdp_ckpt_difference_t what = {.name = key, .how = FSDP_CKPT_METADATA};
    char *texts[SIDES] = {NULL, NULL};
    json_t *values[SIDES] = {a, b};
    fsdp_status_t status;

    if (json_equal(a, b)) {
        return FSDP_OK;
    }

    for (unsigned side = 0; side < SIDES; side++) {
        texts[side] =
            (values[side] == NULL)
                ? strdup("nothing")
                : json_dumps(values[side], JSON_COMPACT | JSON_ENCODE_ANY);
    }
    status = call_back(diff, &what,
                       (texts[0] == NULL || texts[1] == NULL)
                           ? NULL
                           : io_path("metadata %s: %.300s against %.300s", key,
                                     texts[0], texts[1]),
                       err);
    free(texts[0]);
    free(texts[1]);

    return status;
}

static fsdp_status_t compare_objects(diff_t *diff, json_t *a, json_t *b,
                                     fsdp_error_t *err)
{
    const char *key;
    json_t *value;

    json_object_foreach(a, key, value)
    {
        FSDP_TRY(differ_in(diff, key, value, json_object_get(b, key), err));
    }
    json_object_foreach(b, key, value)
    {
        if (json_object_get(a, key) == NULL) {
            FSDP_TRY(differ_in(diff, key, NULL, value, err));
        }
    }

    return FSDP_OK;
}

static fsdp_status_t compare_metadata(diff_t *diff, fsdp_error_t *err)
{
    json_t *metas[SIDES] = {NULL, NULL};
    fsdp_status_t status = FSDP_OK;

    for (unsigned side = 0; side < SIDES && status == FSDP_OK; side++) {
        json_error_t error;

        metas[side] = json_loads(diff->infos[side].meta_json, 0, &error);
        if (!json_is_object(metas[side]) ||
            json_object_set_new(metas[side], "step",
                                json_integer(diff->infos[side].step)) != 0) {
            status = fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                    "%s: the metadata is no JSON object",
                                    diff->paths[side]);
        }
    }
    if (status == FSDP_OK) {
        status = compare_objects(diff, metas[0], metas[1], err);
    }
    json_decref(metas[0]);
    json_decref(metas[1]);

    return status;
}

/* --- The call -------------------------------------------------------------------------- */

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
        batch_t *batch = calloc(1, sizeof(*batch));

        diff->batches[i] = batch;
        for (unsigned side = 0; side < SIDES && batch != NULL; side++) {
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

static double now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static fsdp_status_t run_diff(diff_t *diff, fsdp_error_t *err)
{
    for (unsigned side = 0; side < SIDES; side++) {
        FSDP_TRY(fsdp_ckpt_open(diff->paths[side], &diff->ckpts[side], err));
    }
    FSDP_TRY(pair_tensors(diff, err));
    FSDP_TRY(make_batches(diff, err));
    if (diff->config->metadata) {
        FSDP_TRY(compare_metadata(diff, err));
    }

    return compare_pairs(diff, err);
}

fsdp_status_t fsdp_ckpt_diff(const char *path_a, const char *path_b,
                             const fsdp_ckpt_diff_config_t *config,
                             fsdp_ckpt_difference_f difference, void *arg,
                             fsdp_ckpt_diff_result_t *result_p,
                             fsdp_error_t *err)
{
    diff_t diff = {
        .config = config,
        .difference = difference,
        .arg = arg,
        .paths = {path_a, path_b},
    };
    double began = now();
    fsdp_status_t status;

    if (!(config->rtol >= 0 && config->atol >= 0)) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "a tolerance may not be negative");
    }

    status = run_diff(&diff, err);
    free_batches(&diff);
    free(diff.pairs);
    fsdp_ckpt_close(diff.ckpts[0]);
    fsdp_ckpt_close(diff.ckpts[1]);
    if (status == FSDP_OK) {
        diff.result.seconds = now() - began;
        *result_p = diff.result;
    }

    return status;
}
