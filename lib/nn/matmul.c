#include "config.h"

#include "lib/nn/matmul.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if HAVE_DNNL
#include <dnnl.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#elif HAVE_DNNL
/* oneDNN has OpenMP threads even if this compiler has not. */
extern void omp_set_num_threads(int) __attribute__((weak));
extern int omp_get_max_threads(void) __attribute__((weak));
#endif

#include "lib/nn/matmul_private.h"
#include "lib/nn/vec.h"
#include "lib/util/check.h"

/* A part is worth a thread's while from here on: about a millisecond. */
#define PART_FLOPS (UINT64_C(1) << 27)
#define PART_MIN   128
#define PART_MOST  64

/* Prepared products; a set is looked through from its first place. */
#define TABLE_SETS 64
#define TABLE_WAYS 4

#if HAVE_DNNL

enum { ARG_A, ARG_B, ARG_C, ARG_BIAS, ARG_SCRATCH, NUM_ARGS };

static const int arg_ids[NUM_ARGS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS,
                                      DNNL_ARG_DST, DNNL_ARG_BIAS,
                                      DNNL_ARG_SCRATCHPAD};

/* A product of one size, with a set of memory handles for each thread. */
typedef struct {
    dnnl_primitive_t primitive;
    size_t scratch;        /* bytes that it wants lent; 0: none */
    dnnl_memory_t *memory; /* threads × NUM_ARGS; NULL where there is none */
} product_t;

typedef struct {
    bool used;
    matmul_shape_t shape;
    matmul_split_t split;
    product_t part, last; /* `last` is empty if it is like the others */
} entry_t;

#endif

struct matmul {
    uint32_t threads;
    bool plain;
    size_t scratch_need; /* of one thread, as prepared */
    size_t scratch_lent; /* of one thread; 0: none yet */
    char *scratch;
#if HAVE_DNNL
    dnnl_engine_t engine;
    dnnl_stream_t *streams; /* one a thread */
    entry_t table[TABLE_SETS][TABLE_WAYS];
    unsigned victim[TABLE_SETS]; /* the way that is given up next */
#endif
};

static uint64_t round_up(uint64_t x, uint64_t to)
{
    return (x + to - 1) / to * to;
}

void matmul_split(const matmul_shape_t *shape, matmul_split_t *split_p)
{
    bool by_rows = shape->m >= shape->n;
    uint64_t total = by_rows ? shape->m : shape->n;
    uint64_t row_flops = 2 * shape->k * (by_rows ? shape->n : shape->m);
    uint64_t least = (PART_FLOPS + row_flops - 1) / row_flops;
    uint64_t num;

    least = (least > PART_MIN) ? least : PART_MIN;
    num = total / least;
    num = (num < 1) ? 1 : (num > PART_MOST) ? PART_MOST : num;

    split_p->by_rows = by_rows;
    split_p->length =
        (num == 1) ? total : round_up((total + num - 1) / num, 64);
    split_p->num = (total + split_p->length - 1) / split_p->length;
    split_p->last = total - (split_p->num - 1) * split_p->length;
}

/* The shape of a part, and where it begins in a, b and c, in elements. */
static matmul_shape_t part_shape(const matmul_shape_t *shape,
                                 const matmul_split_t *split, uint64_t length)
{
    matmul_shape_t part = *shape;

    if (split->by_rows) {
        part.m = length;
    } else {
        part.n = length;
    }
    return part;
}

typedef struct {
    const char *a, *b, *bias;
    char *c;
} operands_t;

static operands_t part_operands(const matmul_shape_t *s,
                                const matmul_split_t *split, uint64_t i,
                                const operands_t *whole)
{
    uint64_t at = i * split->length;
    size_t in = precision_size(s->in), out = precision_size(s->out);
    operands_t part = *whole;

    if (split->by_rows) {
        part.a += in * at * (s->trans_a ? 1 : s->lda);
        part.c += out * at * s->ldc;
    } else {
        part.b += in * at * (s->trans_b ? s->ldb : 1);
        part.c += out * at;
        if (s->bias) {
            part.bias += precision_size(s->bias_type) * at;
        }
    }
    return part;
}

#if HAVE_DNNL

static fsdp_status_t dnnl_failed(dnnl_status_t code, const char *what,
                                 const matmul_shape_t *s, fsdp_error_t *err)
{
    static const char *const words[] = {
        "success",       "out of memory", "invalid arguments", "unimplemented",
        "iterator ends", "runtime error", "not required"};
    unsigned i = (unsigned)code;
    const char *word =
        (i < sizeof(words) / sizeof(*words)) ? words[i] : "unknown";

    return fsdp_error_set(err,
                          (code == dnnl_out_of_memory) ? FSDP_ERR_NO_MEMORY
                                                       : FSDP_ERR_UNSUPPORTED,
                          "oneDNN cannot %s a product of %llu x %llu x %llu "
                          "(%s to %s): %s",
                          what, (unsigned long long)s->m,
                          (unsigned long long)s->n, (unsigned long long)s->k,
                          (s->in == FSDP_BF16) ? "bf16" : "fp32",
                          (s->out == FSDP_BF16) ? "bf16" : "fp32", word);
}

static dnnl_data_type_t dnnl_type(fsdp_precision_t type)
{
    return (type == FSDP_BF16) ? dnnl_bf16 : dnnl_f32;
}

static void describe(dnnl_memory_desc_t *md, uint64_t rows, uint64_t cols,
                     uint64_t ld, bool trans, fsdp_precision_t type)
{
    dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)cols};
    dnnl_dims_t strides = {trans ? 1 : (dnnl_dim_t)ld,
                           trans ? (dnnl_dim_t)ld : 1};

    dnnl_memory_desc_init_by_strides(md, 2, dims, dnnl_type(type), strides);
}

static void product_destroy(product_t *product, uint32_t threads)
{
    if (product->memory != NULL) {
        for (size_t i = 0; i < (size_t)threads * NUM_ARGS; i++) {
            if (product->memory[i] != NULL) {
                dnnl_memory_destroy(product->memory[i]);
            }
        }
        free(product->memory);
    }
    if (product->primitive != NULL) {
        dnnl_primitive_destroy(product->primitive);
    }
    memset(product, 0, sizeof(*product));
}

/* With scratch of ours, if @a lend, or oneDNN's own. */
static dnnl_status_t product_describe(const matmul_t *matmul,
                                      const matmul_shape_t *s, bool lend,
                                      dnnl_memory_desc_t md[NUM_ARGS],
                                      dnnl_primitive_desc_t *desc_p)
{
    dnnl_matmul_desc_t desc;
    dnnl_primitive_attr_t attr;
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t code;

    code = dnnl_matmul_desc_init(&desc, &md[ARG_A], &md[ARG_B],
                                 s->bias ? &md[ARG_BIAS] : NULL, &md[ARG_C]);
    if (code != dnnl_success) {
        return code;
    }

    code = dnnl_primitive_attr_create(&attr);
    if (code != dnnl_success) {
        return code;
    }
    if (lend) {
        code = dnnl_primitive_attr_set_scratchpad_mode(
            attr, dnnl_scratchpad_mode_user);
    }
    if (code == dnnl_success && s->add) {
        code = dnnl_post_ops_create(&ops);
        if (code == dnnl_success) {
            code = dnnl_post_ops_append_sum(ops, 1.0f);
        }
        if (code == dnnl_success) {
            code = dnnl_primitive_attr_set_post_ops(attr, ops);
        }
    }
    if (code == dnnl_success) {
        code = dnnl_primitive_desc_create(desc_p, &desc, attr, matmul->engine,
                                          NULL);
    }
    if (ops != NULL) {
        dnnl_post_ops_destroy(ops);
    }
    dnnl_primitive_attr_destroy(attr);
    return code;
}

static dnnl_status_t product_memory(matmul_t *matmul, product_t *product,
                                    const dnnl_memory_desc_t md[NUM_ARGS],
                                    bool bias)
{
    product->memory =
        calloc((size_t)matmul->threads * NUM_ARGS, sizeof(*product->memory));
    if (product->memory == NULL) {
        return dnnl_out_of_memory;
    }

    for (uint32_t t = 0; t < matmul->threads; t++) {
        for (unsigned arg = 0; arg < NUM_ARGS; arg++) {
            dnnl_status_t code;

            if ((arg == ARG_BIAS && !bias) ||
                (arg == ARG_SCRATCH && product->scratch == 0)) {
                continue;
            }
            code =
                dnnl_memory_create(&product->memory[t * NUM_ARGS + arg],
                                   &md[arg], matmul->engine, DNNL_MEMORY_NONE);
            if (code != dnnl_success) {
                return code;
            }
        }
    }
    return dnnl_success;
}

/* @param room  Take scratch of ours if this much is enough. */
static fsdp_status_t product_create(matmul_t *matmul, const matmul_shape_t *s,
                                    size_t room, product_t *product,
                                    fsdp_error_t *err)
{
    dnnl_memory_desc_t md[NUM_ARGS];
    dnnl_primitive_desc_t desc = NULL;
    dnnl_status_t code;

    memset(product, 0, sizeof(*product));
    describe(&md[ARG_A], s->m, s->k, s->lda, s->trans_a, s->in);
    describe(&md[ARG_B], s->k, s->n, s->ldb, s->trans_b, s->in);
    describe(&md[ARG_C], s->m, s->n, s->ldc, false, s->out);
    describe(&md[ARG_BIAS], 1, s->n, s->n, false, s->bias_type);

    code = product_describe(matmul, s, true, md, &desc);
    if (code == dnnl_success) {
        md[ARG_SCRATCH] =
            *dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
        product->scratch = dnnl_memory_desc_get_size(&md[ARG_SCRATCH]);
        if (product->scratch > room) {
            dnnl_primitive_desc_destroy(desc);
            product->scratch = 0;
            code = product_describe(matmul, s, false, md, &desc);
        }
    }
    if (code == dnnl_success) {
        code = dnnl_primitive_create(&product->primitive, desc);
        dnnl_primitive_desc_destroy(desc);
    }
    if (code == dnnl_success) {
        code = product_memory(matmul, product, md, s->bias);
    }
    if (code != dnnl_success) {
        product_destroy(product, matmul->threads);
        return dnnl_failed(code, "prepare", s, err);
    }

    if (product->scratch > matmul->scratch_need) {
        matmul->scratch_need = round_up(product->scratch, 64);
    }
    return FSDP_OK;
}

/* One thread for oneDNN in all that is done here: we split the work. */
static int one_thread(void)
{
    int before;

#ifndef _OPENMP
    if (omp_set_num_threads == NULL || omp_get_max_threads == NULL) {
        return 1;
    }
#endif
    before = omp_get_max_threads();
    omp_set_num_threads(1);
    return before;
}

static void as_before(int threads)
{
#ifndef _OPENMP
    if (omp_set_num_threads == NULL) {
        return;
    }
#endif
    omp_set_num_threads(threads);
}

static uint64_t shape_hash(const matmul_shape_t *s)
{
    uint64_t words[] = {
        s->m,
        s->n,
        s->k,
        s->lda,
        s->ldb,
        s->ldc,
        (uint64_t)s->in | (uint64_t)s->out << 1 | (uint64_t)s->bias_type << 2 |
            (uint64_t)s->trans_a << 3 | (uint64_t)s->trans_b << 4 |
            (uint64_t)s->bias << 5 | (uint64_t)s->add << 6};
    uint64_t hash = 0;

    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
        hash = (hash ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    return hash;
}

static bool shape_same(const matmul_shape_t *x, const matmul_shape_t *y)
{
    return x->m == y->m && x->n == y->n && x->k == y->k && x->lda == y->lda &&
           x->ldb == y->ldb && x->ldc == y->ldc && x->in == y->in &&
           x->out == y->out && x->trans_a == y->trans_a &&
           x->trans_b == y->trans_b && x->bias == y->bias &&
           x->bias_type == y->bias_type && x->add == y->add;
}

static void entry_clear(matmul_t *matmul, entry_t *entry)
{
    product_destroy(&entry->part, matmul->threads);
    product_destroy(&entry->last, matmul->threads);
    memset(entry, 0, sizeof(*entry));
}

static fsdp_status_t entry_create(matmul_t *matmul, const matmul_shape_t *s,
                                  size_t room, entry_t *entry,
                                  fsdp_error_t *err)
{
    matmul_shape_t part, last;
    fsdp_status_t status;
    int threads = one_thread();

    entry_clear(matmul, entry);
    matmul_split(s, &entry->split);
    part = part_shape(s, &entry->split, entry->split.length);
    last = part_shape(s, &entry->split, entry->split.last);

    status = product_create(matmul, &part, room, &entry->part, err);
    if (status == FSDP_OK && entry->split.last != entry->split.length) {
        status = product_create(matmul, &last, room, &entry->last, err);
    }
    as_before(threads);
    if (status != FSDP_OK) {
        entry_clear(matmul, entry);
        return status;
    }

    entry->shape = *s;
    entry->used = true;
    return FSDP_OK;
}

/* Find or make the entry of a shape; one whose scratch does not fit in @a room
 * is made anew. */
static fsdp_status_t entry_find(matmul_t *matmul, const matmul_shape_t *s,
                                size_t room, entry_t **entry_p,
                                fsdp_error_t *err)
{
    unsigned set = (unsigned)(shape_hash(s) % TABLE_SETS), way;
    entry_t *entry;

    for (way = 0; way < TABLE_WAYS && matmul->table[set][way].used; way++) {
        entry = &matmul->table[set][way];
        if (shape_same(&entry->shape, s)) {
            break;
        }
    }
    if (way == TABLE_WAYS) {
        way = matmul->victim[set]++ % TABLE_WAYS;
        entry_clear(matmul, &matmul->table[set][way]);
    }

    entry = &matmul->table[set][way];
    if (!entry->used || entry->part.scratch > room ||
        entry->last.scratch > room) {
        FSDP_TRY(entry_create(matmul, s, room, entry, err));
    }
    *entry_p = entry;
    return FSDP_OK;
}

static dnnl_status_t product_run(matmul_t *matmul, const product_t *product,
                                 uint32_t thread, const operands_t *x)
{
    dnnl_memory_t *memory = product->memory + (size_t)thread * NUM_ARGS;
    void *data[NUM_ARGS] = {(void *)x->a, (void *)x->b, x->c, (void *)x->bias,
                            matmul->scratch + thread * matmul->scratch_lent};
    dnnl_exec_arg_t args[NUM_ARGS];
    int num = 0;
    dnnl_status_t code;

    for (unsigned arg = 0; arg < NUM_ARGS; arg++) {
        if (memory[arg] == NULL) {
            continue;
        }
        code = dnnl_memory_set_data_handle(memory[arg], data[arg]);
        if (code != dnnl_success) {
            return code;
        }
        args[num].arg = arg_ids[arg];
        args[num++].memory = memory[arg];
    }
    return dnnl_primitive_execute(product->primitive, matmul->streams[thread],
                                  num, args);
}

static fsdp_status_t entry_run(matmul_t *matmul, entry_t *entry,
                               const operands_t *whole, fsdp_error_t *err)
{
    const matmul_split_t *split = &entry->split;
    int64_t num = (int64_t)split->num;
    int failed = dnnl_success;
    int before = one_thread();

    /* clang-format off */
    NN_PARALLEL(matmul->threads,
                schedule(static) reduction(max : failed) if (num > 1))
    /* clang-format on */
    for (int64_t i = 0; i < num; i++) {
        operands_t x = part_operands(&entry->shape, split, (uint64_t)i, whole);
        const product_t *product =
            (i == num - 1 && entry->last.primitive != NULL) ? &entry->last
                                                            : &entry->part;
        uint32_t thread = 0;
        int code;

#ifdef _OPENMP
        thread = (uint32_t)omp_get_thread_num();
#endif
        code = product_run(matmul, product, thread, &x);
        failed = (code > failed) ? code : failed;
    }

    as_before(before);
    if (failed != dnnl_success) {
        return dnnl_failed((dnnl_status_t)failed, "run", &entry->shape, err);
    }
    return FSDP_OK;
}

static fsdp_status_t dnnl_open(matmul_t *matmul, fsdp_error_t *err)
{
    dnnl_status_t code = dnnl_engine_create(&matmul->engine, dnnl_cpu, 0);

    matmul->streams = calloc(matmul->threads, sizeof(*matmul->streams));
    if (matmul->streams == NULL) {
        code = dnnl_out_of_memory;
    }
    for (uint32_t t = 0; t < matmul->threads && code == dnnl_success; t++) {
        code = dnnl_stream_create(&matmul->streams[t], matmul->engine,
                                  dnnl_stream_default_flags);
    }
    if (code != dnnl_success) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "oneDNN: cannot make a CPU engine (status %d)",
                              (int)code);
    }
    return FSDP_OK;
}

static void dnnl_shut(matmul_t *matmul)
{
    for (unsigned set = 0; set < TABLE_SETS; set++) {
        for (unsigned way = 0; way < TABLE_WAYS; way++) {
            entry_clear(matmul, &matmul->table[set][way]);
        }
    }
    for (uint32_t t = 0; matmul->streams != NULL && t < matmul->threads; t++) {
        if (matmul->streams[t] != NULL) {
            dnnl_stream_destroy(matmul->streams[t]);
        }
    }
    free(matmul->streams);
    if (matmul->engine != NULL) {
        dnnl_engine_destroy(matmul->engine);
    }
}

#endif

static void run_plain(const matmul_t *matmul, const matmul_shape_t *shape,
                      const operands_t *whole)
{
    matmul_split_t split;
    int64_t num;

    matmul_split(shape, &split);
    num = (int64_t)split.num;
    NN_PARALLEL(matmul->threads, schedule(static))
    for (int64_t i = 0; i < num; i++) {
        matmul_shape_t part = part_shape(
            shape, &split, (i == num - 1) ? split.last : split.length);
        operands_t x = part_operands(shape, &split, (uint64_t)i, whole);

        matmul_plain(&part, x.a, x.b, x.bias, x.c);
    }
}

fsdp_status_t matmul_create(uint32_t threads, bool plain, matmul_t **matmul_p,
                            fsdp_error_t *err)
{
    matmul_t *matmul = calloc(1, sizeof(*matmul));

    if (matmul == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for the table of matrix products");
    }

    matmul->threads = threads;
    matmul->plain = plain || !HAVE_DNNL;
#if HAVE_DNNL
    if (!matmul->plain) {
        fsdp_status_t status = dnnl_open(matmul, err);

        if (status != FSDP_OK) {
            matmul_destroy(matmul);
            return status;
        }
    }
#endif

    *matmul_p = matmul;
    return FSDP_OK;
}

void matmul_destroy(matmul_t *matmul)
{
    if (matmul == NULL) {
        return;
    }
#if HAVE_DNNL
    dnnl_shut(matmul);
#endif
    free(matmul);
}

fsdp_status_t matmul_prepare(matmul_t *matmul, const matmul_shape_t *shape,
                             fsdp_error_t *err)
{
#if HAVE_DNNL
    entry_t *entry;

    if (!matmul->plain) {
        return entry_find(matmul, shape, SIZE_MAX, &entry, err);
    }
#endif
    (void)matmul;
    (void)shape;
    (void)err;
    return FSDP_OK;
}

size_t matmul_scratch_size(const matmul_t *matmul)
{
    return matmul->scratch_need * matmul->threads;
}

void matmul_set_scratch(matmul_t *matmul, void *scratch)
{
    matmul->scratch = scratch;
    matmul->scratch_lent = matmul->scratch_need;
}

fsdp_status_t matmul_run(matmul_t *matmul, const matmul_shape_t *shape,
                         const void *a, const void *b, const void *bias,
                         void *c, fsdp_error_t *err)
{
    operands_t whole = {.a = a, .b = b, .bias = bias, .c = c};

#if HAVE_DNNL
    if (!matmul->plain) {
        entry_t *entry;

        FSDP_TRY(entry_find(matmul, shape, matmul->scratch_lent, &entry, err));
        return entry_run(matmul, entry, &whole, err);
    }
#endif
    (void)err;
    run_plain(matmul, shape, &whole);
    return FSDP_OK;
}
