#include "config.h"

#include "lib/nn/gpt2_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/nn/vec.h"
#include "lib/util/check.h"

/* Sampling fills prompts up to a multiple of this, so that not each length
 * needs products of its own. */
#define PROMPT_STEP 32

/* --- Parameters ----------------------------------------------------------- */

/* Lengths that depend on the configuration. */
typedef enum { NO_DIM, WIDTH, WIDTH_3, INNER } dim_t;

static const struct {
    const char *name;
    dim_t dims[2];
    fsdp_init_t init;
    bool residual; /* a projection back into the stream */
} block_params[BLOCK_PARAMS] = {
    [LN1_W] = {"ln_1.weight",        {WIDTH},        FSDP_INIT_ONE,    false},
    [LN1_B] = {"ln_1.bias",          {WIDTH},        FSDP_INIT_ZERO,   false},
    [ATTN_W] = {"attn.c_attn.weight",
               {WIDTH, WIDTH_3},
               FSDP_INIT_NORMAL,                                       false},
    [ATTN_B] = {"attn.c_attn.bias",   {WIDTH_3},      FSDP_INIT_ZERO,   false},
    [PROJ_W] = {"attn.c_proj.weight", {WIDTH, WIDTH}, FSDP_INIT_NORMAL, true },
    [PROJ_B] = {"attn.c_proj.bias",   {WIDTH},        FSDP_INIT_ZERO,   false},
    [LN2_W] = {"ln_2.weight",        {WIDTH},        FSDP_INIT_ONE,    false},
    [LN2_B] = {"ln_2.bias",          {WIDTH},        FSDP_INIT_ZERO,   false},
    [FC_W] = {"mlp.c_fc.weight",    {WIDTH, INNER}, FSDP_INIT_NORMAL, false},
    [FC_B] = {"mlp.c_fc.bias",      {INNER},        FSDP_INIT_ZERO,   false},
    [OUT_W] = {"mlp.c_proj.weight",  {INNER, WIDTH}, FSDP_INIT_NORMAL, true },
    [OUT_B] = {"mlp.c_proj.bias",    {WIDTH},        FSDP_INIT_ZERO,   false},
};

static uint64_t dim_length(const gpt2_t *m, dim_t dim)
{
    return (dim == WIDTH)     ? m->width
           : (dim == WIDTH_3) ? 3 * m->width
                              : m->inner;
}

static fsdp_status_t add_block(gpt2_t *m, uint32_t layer, fsdp_error_t *err)
{
    gpt2_block_t *b = &m->blocks[layer];
    float residual_std =
        m->config.init_std / sqrtf(2.0f * (float)m->config.layers);
    char name[80];

    snprintf(name, sizeof(name), "h.%u", layer);
    FSDP_TRY(fsdp_unit_add(m->fsdp, name, FSDP_UNIT_NONE, &b->unit, err));
    for (int i = 0; i < BLOCK_PARAMS; i++) {
        fsdp_param_config_t config = FSDP_PARAM_CONFIG_INIT;
        uint64_t dims[2] = {0};

        snprintf(name, sizeof(name), "transformer.h.%u.%s", layer,
                 block_params[i].name);
        for (int d = 0; d < 2 && block_params[i].dims[d] != NO_DIM; d++) {
            dims[d] = dim_length(m, block_params[i].dims[d]);
            config.ndim++;
        }
        config.name = name;
        config.dims = dims;
        config.init = block_params[i].init;
        config.std =
            block_params[i].residual ? residual_std : m->config.init_std;
        FSDP_TRY(fsdp_param_add(b->unit, &config, &b->params[i], err));
    }
    return FSDP_OK;
}

static fsdp_status_t add_root(gpt2_t *m, fsdp_error_t *err)
{
    const struct {
        const char *name;
        uint32_t ndim;
        uint64_t dims[2];
        fsdp_init_t init;
        fsdp_param_t **param_p;
    } params[] = {
        {"transformer.wte.weight",
         2,                            {m->vocab, m->width},
         FSDP_INIT_NORMAL,                                                              &m->wte   },
        {"transformer.wpe.weight",
         2,                            {m->config.positions, m->width},
         FSDP_INIT_NORMAL,                                                              &m->wpe   },
        {"transformer.ln_f.weight", 1, {m->width},                      FSDP_INIT_ONE,  &m->norm_w},
        {"transformer.ln_f.bias",   1, {m->width},                      FSDP_INIT_ZERO, &m->norm_b},
    };

    FSDP_TRY(fsdp_unit_add(m->fsdp, "root", FSDP_UNIT_ROOT, &m->root, err));
    for (size_t i = 0; i < sizeof(params) / sizeof(*params); i++) {
        fsdp_param_config_t config = FSDP_PARAM_CONFIG_INIT;

        config.name = params[i].name;
        config.ndim = params[i].ndim;
        config.dims = params[i].dims;
        config.init = params[i].init;
        config.std = m->config.init_std;
        FSDP_TRY(fsdp_param_add(m->root, &config, params[i].param_p, err));
    }
    return fsdp_param_tie(m->wte, "lm_head.weight", err);
}

/* --- Memory --------------------------------------------------------------- */

/* Hands out an arena from its beginning; without one it only counts. */
typedef struct {
    char *base;
    size_t used;
} arena_t;

static void *take(arena_t *arena, size_t count, size_t size)
{
    void *p = (arena->base == NULL) ? NULL : arena->base + arena->used;

    arena->used += (count * size + 63) / 64 * 64;
    return p;
}

/*
 * A block keeps, for each row, its input and the sum after attention (fp32),
 * q, k and v, attention's output and the MLP's inner values (of the model's
 * type), and a few numbers:
 *     fp32: 24 * width + 4 * inner + 4 * heads + 16 bytes
 *     bf16: 16 * width + 2 * inner + 4 * heads + 16 bytes
 * which is 40 or 24 * width where inner is 4 * width.  Norms' and GELU's
 * outputs are computed again.  Without training all blocks share one set.
 */
static void lay_out_block(gpt2_t *m, gpt2_block_t *b, arena_t *arena)
{
    size_t rows = m->max_rows, size = precision_size(m->dtype);

    b->middle = take(arena, rows * m->width, 4);
    b->qkv = take(arena, rows * 3 * m->width, size);
    b->attention = take(arena, rows * m->width, size);
    b->hidden = take(arena, rows * m->inner, size);
    b->lse = take(arena, rows * m->config.heads, 4);
    b->mean1 = take(arena, rows, 4);
    b->rstd1 = take(arena, rows, 4);
    b->mean2 = take(arena, rows, 4);
    b->rstd2 = take(arena, rows, 4);
}

static void lay_out_blocks(gpt2_t *m, arena_t *arena)
{
    uint32_t layers = m->config.layers;
    size_t stream = m->max_rows * m->width;

    if (m->train) {
        for (uint32_t i = 0; i < layers; i++) {
            m->blocks[i].x = take(arena, stream, 4);
            lay_out_block(m, &m->blocks[i], arena);
        }
        m->x_last = take(arena, stream, 4);
        return;
    }

    /* A block reads one stream and writes the other. */
    m->blocks[0].x = take(arena, stream, 4);
    m->x_last = take(arena, stream, 4);
    lay_out_block(m, &m->blocks[0], arena);
    for (uint32_t i = 1; i < layers; i++) {
        fsdp_unit_t *unit = m->blocks[i].unit;
        fsdp_param_t *params[BLOCK_PARAMS];

        memcpy(params, m->blocks[i].params, sizeof(params));
        m->blocks[i] = m->blocks[0];
        m->blocks[i].unit = unit;
        memcpy(m->blocks[i].params, params, sizeof(params));
        if (i % 2 == 1) {
            m->blocks[i].x = m->x_last;
        }
    }
    if (layers % 2 == 0) {
        m->x_last = m->blocks[0].x;
    }
}

static size_t larger(size_t a, size_t b)
{
    return (a > b) ? a : b;
}

static void lay_out_backward(gpt2_t *m, arena_t *arena)
{
    size_t rows = m->max_rows, size = precision_size(m->dtype);
    size_t widest = larger(m->inner, 3 * m->width);

    m->dwide = take(arena, rows * widest, size);
    m->dattention = take(arena, rows * m->width, size);
    m->dx = take(arena, rows * m->width, 4);
    m->dnorm = take(arena, rows * m->width, 4);
    m->partials = take(arena, layer_partials(rows, widest), 4);
    if (m->dtype == FSDP_BF16) {
        m->dx_narrow = take(arena, rows * m->width, 2);
    }
    if (m->reduce == FSDP_BF16) {
        m->dwte = take(arena, m->vocab * m->width, 4);
        if (m->dtype != FSDP_BF16) {
            m->dweight = take(arena, m->width * widest, 4);
        }
    }
}

static void lay_out(gpt2_t *m, arena_t *arena)
{
    size_t rows = m->max_rows, size = precision_size(m->dtype);

    lay_out_blocks(m, arena);
    m->mean = take(arena, rows, 4);
    m->rstd = take(arena, rows, 4);
    m->final = take(arena, rows * m->width, size);
    m->targets = take(arena, rows, sizeof(*m->targets));
    m->losses = take(arena, rows, sizeof(*m->losses));
    m->prompt = take(arena, (size_t)m->seq + 1, sizeof(*m->prompt));
    m->norm_out = take(arena, rows * m->width, size);
    m->wide = take(arena, rows * m->inner, size);
    m->logits = take(arena, m->head_rows * m->head_ld, 4);
    m->attention_scratch =
        take(arena, attention_scratch_size(&m->attention, m->threads), 1);
    m->matmul_scratch = take(arena, matmul_scratch_size(m->matmul), 1);
    if (m->train) {
        lay_out_backward(m, arena);
    }
}

static fsdp_status_t allocate(gpt2_t *m, fsdp_error_t *err)
{
    arena_t arena = {0};
    void *base;

    lay_out(m, &arena);
    FSDP_TRY(
        fsdp_mem_alloc(m->fsdp, FSDP_MEM_ACTIVATION, arena.used, &base, err));
    arena = (arena_t){.base = base};
    lay_out(m, &arena);
    matmul_set_scratch(m->matmul, m->matmul_scratch);
    return FSDP_OK;
}

/* --- Create --------------------------------------------------------------- */

static void set_size(gpt2_t *m, size_t batch, size_t seq)
{
    m->now_batch = batch;
    m->now_seq = seq;
    m->rows = batch * seq;
    m->attention = (attention_shape_t){
        .batch = batch,
        .seq = seq,
        .heads = m->config.heads,
        .head_size = m->width / m->config.heads,
        .type = m->dtype,
    };
}

static fsdp_status_t check_sizes(const gpt2_config_t *config, uint32_t batch,
                                 uint32_t seq, fsdp_error_t *err)
{
    FSDP_TRY(gpt2_config_check(config, err));
    if (batch == 0 || seq == 0) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "batch and sequence must be at least 1");
    }
    if (seq > config->positions) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "a sequence of %u tokens is longer than the "
                              "model's %u positions",
                              seq, config->positions);
    }
    if ((uint64_t)batch * seq > INT32_MAX) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "batch %u x sequence %u is too large", batch,
                              seq);
    }
    return FSDP_OK;
}

static void set_shape(gpt2_t *m, uint32_t batch, uint32_t seq)
{
    m->batch = batch;
    m->seq = seq;
    m->width = m->config.width;
    m->inner = (m->config.inner != 0) ? m->config.inner : 4 * m->width;
    m->vocab = m->config.vocab;
    m->max_rows = (size_t)batch * seq;
    m->head_rows = gpt2_head_rows(&m->config);
    m->head_ld = (m->vocab + VEC - 1) / VEC * VEC;
    set_size(m, batch, seq);
}

fsdp_status_t gpt2_create(fsdp_t *fsdp, fsdp_precision_t dtype,
                          const gpt2_config_t *config, uint32_t batch,
                          uint32_t seq, bool train, uint32_t threads,
                          gpt2_t **model_p, fsdp_error_t *err)
{
    fsdp_precision_t param;
    fsdp_status_t status;
    gpt2_t *m;

    FSDP_TRY(check_sizes(config, batch, seq, err));
    m = calloc(1, sizeof(*m));
    if (m == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for the model's description");
    }

    m->fsdp = fsdp;
    m->config = *config;
    m->dtype = dtype;
    m->train = train;
    m->threads = (threads > 0) ? threads : 1;
    fsdp_get_precision(fsdp, &param, &m->reduce);
    if (param != dtype) {
        status = fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                                "the model's type is not that of the gathered "
                                "parameters");
        goto err_model;
    }
    set_shape(m, batch, seq);

    m->blocks = calloc(config->layers, sizeof(*m->blocks));
    if (m->blocks == NULL) {
        status = fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                "no memory for the model's description");
        goto err_model;
    }
    FSDP_TRY_GOTO(matmul_create(m->threads, getenv("FSDP_PLAIN") != NULL,
                                &m->matmul, err),
                  err_model);
    FSDP_TRY_GOTO(add_root(m, err), err_model);
    for (uint32_t i = 0; i < config->layers; i++) {
        FSDP_TRY_GOTO(add_block(m, i, err), err_model);
    }
    FSDP_TRY_GOTO(gpt2_block_prepare(m, err), err_model);
    FSDP_TRY_GOTO(gpt2_head_prepare(m, err), err_model);
    FSDP_TRY_GOTO(allocate(m, err), err_model);

    *model_p = m;
    return FSDP_OK;

err_model:
    gpt2_destroy(m);
    return status;
}

void gpt2_destroy(gpt2_t *m)
{
    if (m == NULL) {
        return;
    }
    matmul_destroy(m->matmul);
    free(m->blocks);
    free(m);
}

/* --- A micro-batch -------------------------------------------------------- */

static fsdp_status_t set_tokens(gpt2_t *m, const int32_t *tokens, size_t batch,
                                size_t seq, fsdp_error_t *err)
{
    m->tokens = tokens;
    if (tokens == NULL) {
        return FSDP_OK;
    }
    if (batch == 0 || seq == 0 || batch * seq > m->max_rows || seq > m->seq) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "a micro-batch of %zu x %zu tokens does not fit "
                              "%u x %u",
                              batch, seq, m->batch, m->seq);
    }
    for (size_t i = 0; i < batch * (seq + 1); i++) {
        if (tokens[i] < 0 || (uint64_t)tokens[i] >= m->vocab) {
            return fsdp_error_set(err, FSDP_ERR_BAD_DATA,
                                  "token %d at position %zu of a micro-batch "
                                  "is not below the vocabulary of %zu",
                                  tokens[i], i, m->vocab);
        }
    }

    set_size(m, batch, seq);
    for (size_t b = 0; b < batch; b++) {
        memcpy(m->targets + b * seq, tokens + b * (seq + 1) + 1,
               seq * sizeof(*tokens));
    }
    return FSDP_OK;
}

/* Up to the last norm; the root unit has begun a second time and not ended. */
static fsdp_status_t forward(gpt2_t *m, fsdp_error_t *err)
{
    FSDP_TRY(fsdp_forward_begin(m->root, err));
    if (m->tokens != NULL) {
        gpt2_embed_forward(m);
    }
    FSDP_TRY(fsdp_forward_end(m->root, err));

    for (uint32_t i = 0; i < m->config.layers; i++) {
        FSDP_TRY(fsdp_forward_begin(m->blocks[i].unit, err));
        if (m->tokens != NULL) {
            FSDP_TRY(gpt2_block_forward(m, i, err));
        }
        FSDP_TRY(fsdp_forward_end(m->blocks[i].unit, err));
    }

    FSDP_TRY(fsdp_forward_begin(m->root, err));
    if (m->tokens != NULL) {
        gpt2_final_norm(m);
    }
    return FSDP_OK;
}

/* The logits are made here and not in the forward pass, so that they are made
 * once and not kept. */
static fsdp_status_t backward(gpt2_t *m, fsdp_error_t *err)
{
    FSDP_TRY(fsdp_backward_begin(m->root, err));
    if (m->tokens != NULL) {
        FSDP_TRY(gpt2_head(m, true, err));
    }
    FSDP_TRY(fsdp_backward_end(m->root, err));

    for (uint32_t i = m->config.layers; i-- > 0;) {
        FSDP_TRY(fsdp_backward_begin(m->blocks[i].unit, err));
        if (m->tokens != NULL) {
            FSDP_TRY(gpt2_block_backward(m, i, err));
        }
        FSDP_TRY(fsdp_backward_end(m->blocks[i].unit, err));
    }

    FSDP_TRY(fsdp_backward_begin(m->root, err));
    if (m->tokens != NULL) {
        gpt2_embed_backward(m);
    }
    return fsdp_backward_end(m->root, err);
}

static double mean_loss(const gpt2_t *m)
{
    double sum = 0;

    if (m->tokens == NULL) {
        return 0;
    }
    for (size_t i = 0; i < m->rows; i++) {
        sum += m->losses[i];
    }
    return sum / (double)m->rows;
}

fsdp_status_t gpt2_train(gpt2_t *m, const int32_t *tokens, uint32_t batch,
                         uint32_t seq, double *loss_p, fsdp_error_t *err)
{
    if (!m->train) {
        return fsdp_error_set(err, FSDP_ERR_BAD_STATE,
                              "the model was created without training");
    }
    FSDP_TRY(set_tokens(m, tokens, batch, seq, err));
    FSDP_TRY(forward(m, err));
    FSDP_TRY(fsdp_forward_end(m->root, err));
    FSDP_TRY(backward(m, err));
    *loss_p = mean_loss(m);
    return FSDP_OK;
}

fsdp_status_t gpt2_eval(gpt2_t *m, const int32_t *tokens, uint32_t batch,
                        uint32_t seq, double *loss_p, fsdp_error_t *err)
{
    FSDP_TRY(set_tokens(m, tokens, batch, seq, err));
    FSDP_TRY(forward(m, err));
    if (tokens != NULL) {
        FSDP_TRY(gpt2_head(m, false, err));
    }
    FSDP_TRY(fsdp_forward_end(m->root, err));
    *loss_p = mean_loss(m);
    return FSDP_OK;
}

fsdp_status_t gpt2_logits(gpt2_t *m, const int32_t *tokens, uint32_t num,
                          float *logits, fsdp_error_t *err)
{
    uint64_t seq =
        ((uint64_t)num + PROMPT_STEP - 1) / PROMPT_STEP * PROMPT_STEP;

    if (num == 0 || num > m->seq) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "a prompt of %u tokens does not fit the model's "
                              "%u",
                              num, m->seq);
    }

    /* No token sees those behind it: any will do. */
    seq = (seq < m->seq) ? seq : m->seq;
    memset(m->prompt, 0, ((size_t)seq + 1) * sizeof(*m->prompt));
    memcpy(m->prompt, tokens, num * sizeof(*tokens));
    FSDP_TRY(set_tokens(m, m->prompt, 1, seq, err));
    FSDP_TRY(forward(m, err));
    FSDP_TRY(gpt2_head_logits(m, num - 1, logits, err));
    return fsdp_forward_end(m->root, err);
}
