#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "lib/nn/gpt2_private.h"
#include "lib/util/io.h"
#include "t/tap/tap.h"

/* --- A model with one rank ------------------------------------------------ */

typedef struct {
    fsdp_job_t *job;
    fsdp_t *fsdp;
    gpt2_t *model;
    fsdp_param_t *params[1024];
    char names[1024][64];
    size_t sizes[1024];
    size_t num;
} run_t;

typedef struct {
    gpt2_config_t config;
    uint32_t batch, seq, micro_batches, threads;
    fsdp_precision_t param, reduce;
    bool eval_only;
} setup_t;

static void add_param(run_t *r, fsdp_param_t *param, const char *name,
                      size_t size)
{
    r->params[r->num] = param;
    r->sizes[r->num] = size;
    snprintf(r->names[r->num++], sizeof(*r->names), "%s", name);
}

/* The parameters by name, as the model must have made them. */
static void list_params(run_t *r, const gpt2_config_t *c)
{
    static const char *const names[BLOCK_PARAMS] = {
        "ln_1.weight",      "ln_1.bias",          "attn.c_attn.weight",
        "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
        "ln_2.weight",      "ln_2.bias",          "mlp.c_fc.weight",
        "mlp.c_fc.bias",    "mlp.c_proj.weight",  "mlp.c_proj.bias"};
    size_t w = c->width, inner = c->inner ? c->inner : 4 * w;
    const size_t sizes[BLOCK_PARAMS] = {w, w, 3 * w * w, 3 * w, w * w,     w,
                                        w, w, w * inner, inner, w * inner, w};

    add_param(r, r->model->wte, "transformer.wte.weight", c->vocab * w);
    add_param(r, r->model->wpe, "transformer.wpe.weight", c->positions * w);
    add_param(r, r->model->norm_w, "transformer.ln_f.weight", w);
    add_param(r, r->model->norm_b, "transformer.ln_f.bias", w);
    for (uint32_t l = 0; l < c->layers; l++) {
        for (int i = 0; i < BLOCK_PARAMS; i++) {
            char name[64];

            snprintf(name, sizeof(name), "transformer.h.%u.%s", l, names[i]);
            add_param(r, r->model->blocks[l].params[i], name, sizes[i]);
        }
    }
}

static void stop(run_t *r)
{
    gpt2_destroy(r->model);
    fsdp_destroy(r->fsdp);
    fsdp_job_close(r->job);
}

static bool start(run_t *r, const setup_t *s)
{
    fsdp_job_config_t job = FSDP_JOB_CONFIG_INIT;
    fsdp_config_t config = FSDP_CONFIG_INIT;
    fsdp_error_t err = {0};

    memset(r, 0, sizeof(*r));
    job.alone = true;
    config.micro_batches = s->micro_batches;
    config.param_dtype = s->param;
    config.reduce_dtype = s->reduce;
    if (fsdp_job_open(&job, &r->job, &err) != FSDP_OK ||
        fsdp_create(r->job, &config, &r->fsdp, &err) != FSDP_OK ||
        gpt2_create(r->fsdp, s->param, &s->config, s->batch, s->seq,
                    !s->eval_only, s->threads, &r->model, &err) != FSDP_OK ||
        fsdp_seal(r->fsdp, &err) != FSDP_OK) {
        printf("# %s\n", err.text);
        stop(r);
        return false;
    }
    list_params(r, &s->config);
    return true;
}

/* One micro-batch; its loss. */
static double train(run_t *r, uint32_t round, const int32_t *tokens,
                    uint32_t batch, uint32_t seq)
{
    fsdp_error_t err = {0};
    double loss = NAN;
    uint32_t micro;

    if (fsdp_micro_begin(r->fsdp, FSDP_TRAIN, round, 0, &micro, &err) !=
            FSDP_OK ||
        gpt2_train(r->model, tokens, batch, seq, &loss, &err) != FSDP_OK ||
        fsdp_micro_end(r->fsdp, &err) != FSDP_OK) {
        printf("# %s\n", err.text);
        return NAN;
    }
    return loss;
}

static double evaluate(run_t *r, const int32_t *tokens, uint32_t batch,
                       uint32_t seq)
{
    fsdp_error_t err = {0};
    double loss = NAN;
    uint32_t micro;

    if (fsdp_micro_begin(r->fsdp, FSDP_EVAL, 0, 1, &micro, &err) != FSDP_OK ||
        gpt2_eval(r->model, tokens, batch, seq, &loss, &err) != FSDP_OK ||
        fsdp_micro_end(r->fsdp, &err) != FSDP_OK) {
        printf("# %s\n", err.text);
        return NAN;
    }
    return loss;
}

/* All gradients, one after another; the caller frees them. */
static float *gradients(run_t *r, size_t *num_p)
{
    size_t num = 0;
    double norm;
    float *all;

    fsdp_clip(r->fsdp, 0, &norm, NULL);
    for (size_t i = 0; i < r->num; i++) {
        num += r->sizes[i];
    }
    all = calloc(num, sizeof(*all));
    num = 0;
    for (size_t i = 0; i < r->num; i++) {
        fsdp_param_get(r->params[i], FSDP_GRAD, all + num, NULL);
        num += r->sizes[i];
    }
    *num_p = num;
    return all;
}

/* --- safetensors, as far as the reference needs it ------------------------ */

typedef struct {
    char *text;
    json_t *head;
    const char *data;
} tensors_t;

static bool tensors_open(tensors_t *t, const char *dir, const char *name)
{
    char *path = io_path("%s/%s", dir, name);
    uint64_t head = 0;
    size_t size;
    bool good;

    t->text = NULL;
    good = io_read_file(path, 1 << 28, &t->text, &size, NULL) == FSDP_OK;
    free(path);
    if (!good) {
        return false;
    }
    memcpy(&head, t->text, sizeof(head));
    t->head = json_loadb(t->text + 8, head, 0, NULL);
    t->data = t->text + 8 + head;
    return t->head != NULL;
}

static const void *tensor(const tensors_t *t, const char *name)
{
    json_t *at =
        json_object_get(json_object_get(t->head, name), "data_offsets");

    return (at == NULL) ? NULL
                        : t->data + json_integer_value(json_array_get(at, 0));
}

static void tensors_close(tensors_t *t)
{
    json_decref(t->head);
    free(t->text);
}

/* --- Against PyTorch ------------------------------------------------------ */

static bool load_weights(run_t *r, const char *dir)
{
    tensors_t weights;
    bool good = tensors_open(&weights, dir, "weights.safetensors");

    for (size_t i = 0; good && i < r->num; i++) {
        const void *values = tensor(&weights, r->names[i]);

        good = values != NULL && fsdp_param_set(r->params[i], FSDP_VALUE,
                                                values, NULL) == FSDP_OK;
    }
    tensors_close(&weights);
    return good;
}

static void check_gradients(run_t *r, const char *dir, double tolerance)
{
    tensors_t expected;
    size_t num, at = 0;
    float *got = gradients(r, &num);
    double worst = 0;
    const char *where = "";

    ok(tensors_open(&expected, dir, "grads_step0.safetensors"),
       "gradients of the reference are there");
    for (size_t i = 0; i < r->num; i++) {
        const float *want = tensor(&expected, r->names[i]);
        double most = 0, off = 0;

        for (size_t j = 0; want != NULL && j < r->sizes[i]; j++) {
            most = fmax(most, fabs((double)want[j]));
            off = fmax(off, fabs((double)want[j] - got[at + j]));
        }
        at += r->sizes[i];
        off = (want == NULL || most == 0) ? INFINITY : off / most;
        if (off > worst) {
            worst = off;
            where = r->names[i];
        }
    }
    ok(worst <= tolerance, "gradients: %.2g of the largest entry, in %s", worst,
       where);
    tensors_close(&expected);
    free(got);
}

static void test_reference(const char *dir, fsdp_precision_t type,
                           double loss_tolerance, double grad_tolerance)
{
    char *path = io_path("%s/config.json", dir);
    char *meta_path = io_path("%s/meta.json", dir);
    setup_t s = {.threads = 1, .param = type, .reduce = type};
    fsdp_error_t err = {0};
    tensors_t tokens;
    json_t *meta = json_load_file(meta_path, 0, NULL), *losses;
    double worst = 0;
    uint32_t micros;
    run_t r;

    ok(gpt2_config_read(path, &s.config, &err) == FSDP_OK, "config.json %s",
       err.text);
    s.batch = (uint32_t)json_integer_value(json_object_get(meta, "batch"));
    s.seq = (uint32_t)json_integer_value(json_object_get(meta, "seq"));
    micros =
        (uint32_t)json_integer_value(json_object_get(meta, "micro_batches"));
    s.micro_batches = micros;
    losses = json_array_get(json_object_get(meta, "loss_per_micro_batch"), 0);

    ok(start(&r, &s) && load_weights(&r, dir) &&
           tensors_open(&tokens, dir, "tokens.safetensors"),
       "model, weights and tokens of the reference");
    for (uint32_t i = 0; i < micros; i++) {
        const int32_t *t = tensor(&tokens, "tokens");
        double want = json_number_value(json_array_get(losses, i));
        double loss =
            train(&r, i, t + i * s.batch * (s.seq + 1), s.batch, s.seq);

        worst = fmax(worst, isnan(loss) ? INFINITY : fabs(loss / want - 1));
    }
    ok(micros > 0 && worst <= loss_tolerance, "losses: %.2g relative", worst);
    check_gradients(&r, dir, grad_tolerance);

    stop(&r);
    tensors_close(&tokens);
    json_decref(meta);
    free(path);
    free(meta_path);
}

/* --- The whole model in doubles ------------------------------------------- */

typedef struct {
    const gpt2_config_t *c;
    double **w; /* parameters in the order of list_params() */
} oracle_t;

static double oracle_gelu(const gpt2_config_t *c, double x)
{
    return c->gelu_exact ? 0.5 * x * erfc(-x / sqrt(2))
                         : 0.5 * x *
                               (1 + tanh(sqrt(2 / acos(-1)) *
                                         (x + 0.044715 * x * x * x)));
}

/* y (out) = x (in) · w + b. */
static void oracle_linear(const double *x, size_t in, const double *w,
                          const double *b, double *y, size_t out)
{
    memcpy(y, b, out * sizeof(*y));
    for (size_t i = 0; i < in; i++) {
        for (size_t j = 0; j < out; j++) {
            y[j] += x[i] * w[i * out + j];
        }
    }
}

static void oracle_norm(const oracle_t *o, const double *x, const double *w,
                        const double *b, double *y)
{
    size_t n = o->c->width;
    double mean = 0, var = 0;

    for (size_t i = 0; i < n; i++) {
        mean += x[i] / (double)n;
    }
    for (size_t i = 0; i < n; i++) {
        var += (x[i] - mean) * (x[i] - mean) / (double)n;
    }
    for (size_t i = 0; i < n; i++) {
        y[i] = (x[i] - mean) / sqrt(var + o->c->norm_eps) * w[i] + b[i];
    }
}

/* out of one token, from q, k and v of all those before it. */
static void oracle_attend(const oracle_t *o, const double *qkv, size_t t,
                          double *out)
{
    size_t n = o->c->width, d = n / o->c->heads;
    double *p = malloc((t + 1) * sizeof(*p));

    for (size_t h = 0; h < o->c->heads; h++) {
        double sum = 0;

        for (size_t j = 0; j <= t; j++) {
            p[j] = 0;
            for (size_t i = 0; i < d; i++) {
                p[j] +=
                    qkv[t * 3 * n + h * d + i] * qkv[j * 3 * n + n + h * d + i];
            }
            p[j] = exp(p[j] / sqrt((double)d));
            sum += p[j];
        }
        for (size_t i = 0; i < d; i++) {
            out[h * d + i] = 0;
            for (size_t j = 0; j <= t; j++) {
                out[h * d + i] +=
                    p[j] / sum * qkv[j * 3 * n + 2 * n + h * d + i];
            }
        }
    }
    free(p);
}

static void oracle_block(const oracle_t *o, double **w, double *x, size_t seq)
{
    size_t n = o->c->width, inner = o->c->inner ? o->c->inner : 4 * n;
    double *qkv = malloc(seq * 3 * n * sizeof(*qkv));
    double *y = malloc(n * sizeof(*y)), *z = malloc(n * sizeof(*z));
    double *h = malloc(inner * sizeof(*h));

    for (size_t t = 0; t < seq; t++) {
        oracle_norm(o, x + t * n, w[LN1_W], w[LN1_B], y);
        oracle_linear(y, n, w[ATTN_W], w[ATTN_B], qkv + t * 3 * n, 3 * n);
    }
    for (size_t t = 0; t < seq; t++) {
        oracle_attend(o, qkv, t, y);
        oracle_linear(y, n, w[PROJ_W], w[PROJ_B], z, n);
        for (size_t i = 0; i < n; i++) {
            x[t * n + i] += z[i];
        }
        oracle_norm(o, x + t * n, w[LN2_W], w[LN2_B], y);
        oracle_linear(y, n, w[FC_W], w[FC_B], h, inner);
        for (size_t i = 0; i < inner; i++) {
            h[i] = oracle_gelu(o->c, h[i]);
        }
        oracle_linear(h, inner, w[OUT_W], w[OUT_B], z, n);
        for (size_t i = 0; i < n; i++) {
            x[t * n + i] += z[i];
        }
    }
    free(qkv);
    free(y);
    free(z);
    free(h);
}

/* Sum of the losses of one sequence; logits of the last token, unless NULL. */
static double oracle_sequence(const oracle_t *o, const int32_t *tokens,
                              size_t seq, double *last)
{
    size_t n = o->c->width, vocab = o->c->vocab;
    double *x = malloc(seq * n * sizeof(*x)), *y = malloc(n * sizeof(*y));
    double *logits = malloc(vocab * sizeof(*logits)), loss = 0;

    for (size_t t = 0; t < seq; t++) {
        for (size_t i = 0; i < n; i++) {
            x[t * n + i] =
                o->w[0][(size_t)tokens[t] * n + i] + o->w[1][t * n + i];
        }
    }
    for (uint32_t l = 0; l < o->c->layers; l++) {
        oracle_block(o, o->w + 4 + l * BLOCK_PARAMS, x, seq);
    }
    for (size_t t = 0; t < seq; t++) {
        double sum = 0;

        oracle_norm(o, x + t * n, o->w[2], o->w[3], y);
        for (size_t v = 0; v < vocab; v++) {
            logits[v] = 0;
            for (size_t i = 0; i < n; i++) {
                logits[v] += y[i] * o->w[0][v * n + i];
            }
            sum += exp(logits[v]);
        }
        loss += log(sum) - logits[tokens[t + 1]];
    }
    if (last != NULL) {
        memcpy(last, logits, vocab * sizeof(*last));
    }
    free(x);
    free(y);
    free(logits);
    return loss;
}

static double oracle_loss(const oracle_t *o, const int32_t *tokens,
                          size_t batch, size_t seq)
{
    double loss = 0;

    for (size_t b = 0; b < batch; b++) {
        loss += oracle_sequence(o, tokens + b * (seq + 1), seq, NULL);
    }
    return loss / (double)(batch * seq);
}

static uint32_t random_state = 7;

static double uniform(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (double)(random_state >> 8) / 8388608.0 - 1.0;
}

/* Values of some size for all parameters: none is 0 or 1, as they are at
 * first, so that no mistake hides. */
static void oracle_make(oracle_t *o, run_t *r, const gpt2_config_t *config)
{
    o->c = config;
    o->w = calloc(r->num, sizeof(*o->w));
    for (size_t i = 0; i < r->num; i++) {
        float *values = malloc(r->sizes[i] * sizeof(*values));

        o->w[i] = malloc(r->sizes[i] * sizeof(**o->w));
        for (size_t j = 0; j < r->sizes[i]; j++) {
            values[j] = (float)(0.25 * uniform() +
                                (strstr(r->names[i], "ln_") != NULL &&
                                         strstr(r->names[i], "weight") != NULL
                                     ? 1
                                     : 0));
            if (r->model->dtype == FSDP_BF16) {
                uint32_t bits;

                /* Such as bf16 holds, so that only arithmetic differs. */
                memcpy(&bits, &values[j], sizeof(bits));
                bits &= 0xffff0000;
                memcpy(&values[j], &bits, sizeof(bits));
            }
            o->w[i][j] = values[j];
        }
        fsdp_param_set(r->params[i], FSDP_VALUE, values, NULL);
        free(values);
    }
}

static void oracle_free(oracle_t *o, size_t num)
{
    for (size_t i = 0; i < num; i++) {
        free(o->w[i]);
    }
    free(o->w);
}

/* The slope of the loss along a random direction of each parameter, against
 * the gradient; the largest difference relative to the gradient's length. */
static double slope_error(run_t *r, oracle_t *o, const int32_t *tokens,
                          const setup_t *s, const char **where_p)
{
    const double step = 1e-5;
    size_t num, at = 0;
    float *grad = gradients(r, &num);
    double worst = 0;

    for (size_t i = 0; i < r->num; at += r->sizes[i++]) {
        double *w = o->w[i], dot = 0, length = 0, along = 0, slope;
        double *dir = malloc(r->sizes[i] * sizeof(*dir));

        for (size_t j = 0; j < r->sizes[i]; j++) {
            dir[j] = uniform();
            dot += dir[j] * grad[at + j];
            length += (double)grad[at + j] * grad[at + j];
            along += dir[j] * dir[j];
            w[j] += step * dir[j];
        }
        slope = oracle_loss(o, tokens, s->batch, s->seq);
        for (size_t j = 0; j < r->sizes[i]; j++) {
            w[j] -= 2 * step * dir[j];
        }
        slope -= oracle_loss(o, tokens, s->batch, s->seq);
        slope /= 2 * step;
        for (size_t j = 0; j < r->sizes[i]; j++) {
            w[j] += step * dir[j];
        }
        /* With one token of a sequence q and k have no gradient. */
        length = sqrt(length * along / (double)r->sizes[i]) + 1e-6;
        if (!(fabs(dot - slope) / length <= worst)) {
            worst = fabs(dot - slope) / length;
            *where_p = r->names[i];
        }
        free(dir);
    }
    free(grad);
    return worst;
}

static int32_t *random_tokens(const setup_t *s)
{
    size_t num = (size_t)s->batch * (s->seq + 1);
    int32_t *tokens = malloc(num * sizeof(*tokens));

    for (size_t i = 0; i < num; i++) {
        tokens[i] = (int32_t)((uniform() + 1) / 2 * (s->config.vocab - 1));
    }
    return tokens;
}

static const setup_t odd_shapes[] = {
    {.config = {.vocab = 97,
                .positions = 9,
                .width = 60,
                .layers = 2,
                .heads = 3,
                .inner = 100},
     .batch = 3,
     .seq = 7  },
    {.config =
         {.vocab = 97, .positions = 4, .width = 15, .layers = 1, .heads = 5},
     .batch = 2,
     .seq = 1  },
    {.config = {.vocab = 17,
                .positions = 70,
                .width = 24,
                .layers = 3,
                .heads = 1,
                .gelu_exact = true},
     .batch = 1,
     .seq = 66 },
    {.config =
         {.vocab = 600, .positions = 300, .width = 8, .layers = 1, .heads = 2},
     .batch = 2,
     .seq = 290},
};

static void test_odd_shape(setup_t s, fsdp_precision_t param,
                           fsdp_precision_t reduce, double loss_tolerance,
                           double slope_tolerance)
{
    const char *where = "";
    int32_t *tokens = random_tokens(&s);
    double loss, want, off;
    oracle_t o;
    run_t r;

    s.config.norm_eps = 1e-5f;
    s.config.init_std = 0.02f;
    s.micro_batches = 1;
    s.threads = 2;
    s.param = param;
    s.reduce = reduce;
    if (!start(&r, &s)) {
        ok(false, "a model of odd shape");
        return;
    }
    oracle_make(&o, &r, &s.config);
    loss = train(&r, 0, tokens, s.batch, s.seq);
    want = oracle_loss(&o, tokens, s.batch, s.seq);
    ok(fabs(loss / want - 1) <= loss_tolerance,
       "%s/%s vocab %u width %u heads %u batch %u seq %u: loss %.2g relative",
       param == FSDP_BF16 ? "bf16" : "fp32",
       reduce == FSDP_BF16 ? "bf16" : "fp32", s.config.vocab, s.config.width,
       s.config.heads, s.batch, s.seq, fabs(loss / want - 1));
    ok(evaluate(&r, tokens, s.batch, s.seq) == loss,
       "evaluation gives the same bits");
    off = slope_error(&r, &o, tokens, &s, &where);
    ok(off <= slope_tolerance, "gradients: off by %.2g in %s", off, where);

    oracle_free(&o, r.num);
    stop(&r);
    free(tokens);
}

/* --- Sampling ------------------------------------------------------------- */

static void test_logits(bool eval_only)
{
    setup_t s = {
        .config = {.vocab = 97,
                   .positions = 70,
                   .width = 60,
                   .layers = 2,
                   .heads = 3,
                   .norm_eps = 1e-5f,
                   .init_std = 0.02f},
        .batch = 1,
        .seq = 69,
        .micro_batches = 1,
        .threads = 1,
        .eval_only = eval_only
    };
    int32_t *tokens = random_tokens(&s);
    double *want = malloc(97 * sizeof(*want)), worst = 0, loss;
    float *got = malloc(97 * sizeof(*got));
    fsdp_error_t err = {0};
    oracle_t o;
    run_t r;

    ok(start(&r, &s), "a model for sampling");
    oracle_make(&o, &r, &s.config);
    for (uint32_t num = 1; num <= s.seq; num += 17) {
        uint32_t micro;

        fsdp_micro_begin(r.fsdp, FSDP_EVAL, 0, 1, &micro, NULL);
        if (gpt2_logits(r.model, tokens, num, got, &err) != FSDP_OK) {
            worst = INFINITY;
        }
        fsdp_micro_end(r.fsdp, NULL);
        oracle_sequence(&o, tokens, num, want);
        for (size_t v = 0; v < 97; v++) {
            worst = fmax(worst, fabs(got[v] - want[v]));
        }
    }
    ok(worst <= 2e-5, "logits of prompts: off by %.2g %s", worst, err.text);
    loss = oracle_loss(&o, tokens, 1, s.seq);
    ok(fabs(evaluate(&r, tokens, 1, s.seq) / loss - 1) <= 1e-6,
       "loss of %s model", eval_only ? "an evaluation-only" : "a training");
    ok(gpt2_logits(r.model, tokens, 0, got, &err) == FSDP_ERR_INVALID_PARAM &&
           gpt2_logits(r.model, tokens, 70, got, &err) ==
               FSDP_ERR_INVALID_PARAM,
       "a prompt too long: %s", err.text);
    if (eval_only) {
        ok(gpt2_train(r.model, tokens, 1, 1, &loss, &err) == FSDP_ERR_BAD_STATE,
           "no training without its memory: %s", err.text);
    }
    oracle_free(&o, r.num);
    stop(&r);
    free(tokens);
    free(want);
    free(got);
}

/* --- Threads, idle ranks, bad input --------------------------------------- */

/* Large enough for products in parts and several chunks of the head. */
static void test_threads(fsdp_precision_t type)
{
    setup_t s = {
        .config = {.vocab = 1000,
                   .positions = 300,
                   .width = 132,
                   .layers = 1,
                   .heads = 3,
                   .inner = 700,
                   .norm_eps = 1e-5f,
                   .init_std = 0.02f},
        .batch = 4,
        .seq = 260,
        .micro_batches = 1,
        .param = type,
        .reduce = type
    };
    int32_t *tokens = random_tokens(&s);
    float *grads[2];
    double loss[2];
    size_t num = 0;

    for (uint32_t i = 0; i < 2; i++) {
        run_t r;

        s.threads = i + 1;
        start(&r, &s);
        loss[i] = train(&r, 0, tokens, s.batch, s.seq);
        grads[i] = gradients(&r, &num);
        stop(&r);
    }
    ok(loss[0] == loss[1] &&
           memcmp(grads[0], grads[1], num * sizeof(**grads)) == 0,
       "%s: the same bits with 1 and 2 threads (loss %.4f)",
       (type == FSDP_BF16) ? "bf16" : "fp32", loss[0]);
    free(grads[0]);
    free(grads[1]);
    free(tokens);
}

static void test_inputs(void)
{
    setup_t s = odd_shapes[0];
    int32_t *tokens = random_tokens(&s);
    fsdp_error_t err = {0};
    float *grads;
    size_t num = 0;
    bool zero = true;
    double loss = NAN, small;
    run_t r, exact;

    s.config.norm_eps = 1e-5f;
    s.config.init_std = 0.02f;
    s.micro_batches = 1;
    s.threads = 1;
    start(&r, &s);
    loss = train(&r, 0, NULL, 0, 0);
    grads = gradients(&r, &num);
    for (size_t i = 0; i < num; i++) {
        zero = zero && grads[i] == 0;
    }
    ok(loss == 0 && zero, "an idle rank computes nothing");
    free(grads);

    small = train(&r, 0, tokens, 1, 3);
    s.batch = 1;
    s.seq = 3;
    start(&exact, &s);
    ok(train(&exact, 0, tokens, 1, 3) == small,
       "a smaller micro-batch than planned: the same bits as when planned");
    stop(&exact);
    ok(gpt2_train(r.model, tokens, 4, 7, &loss, &err) == FSDP_ERR_INVALID_PARAM,
       "a larger one: %s", err.text);
    tokens[5] = 97;
    ok(gpt2_train(r.model, tokens, 3, 7, &loss, &err) == FSDP_ERR_BAD_DATA &&
           strstr(err.text, "97") != NULL,
       "a token too large: %s", err.text);
    stop(&r);

    s.seq = 10;
    ok(!start(&r, &s), "a sequence longer than the positions is refused");
    free(tokens);
}

/* --- config.json ---------------------------------------------------------- */

#define HEAD "{\"model_type\":\"gpt2\",\"vocab_size\":97,\"n_embd\":60,"
#define TAIL "\"n_layer\":2,\"n_head\":3,\"n_ctx\":9"

static void test_config(void)
{
    static const struct {
        const char *text;
        fsdp_status_t status;
        const char *word;
    } cases[] = {
        {HEAD TAIL "}",                                          FSDP_OK,              ""             },
        {HEAD TAIL ",\"n_inner\":100,\"resid_pdrop\":0.1}",      FSDP_OK,              ""             },
        {HEAD TAIL ",\"activation_function\":\"gelu\"}",         FSDP_OK,              ""             },
        {HEAD TAIL ",\"activation_function\":\"relu\"}",         FSDP_ERR_UNSUPPORTED,
         "relu"                                                                                       },
        {HEAD TAIL ",\"scale_attn_weights\":false}",             FSDP_ERR_UNSUPPORTED,
         "scale_attn_weights"                                                                         },
        {HEAD TAIL ",\"scale_attn_by_inverse_layer_idx\":true}",
         FSDP_ERR_UNSUPPORTED,                                                         "inverse_layer"},
        {HEAD TAIL ",\"tie_word_embeddings\":false}",            FSDP_ERR_UNSUPPORTED,
         "tie_word"                                                                                   },
        {"{\"model_type\":\"llama\"}",                           FSDP_ERR_UNSUPPORTED, "llama"        },
        {HEAD "\"n_layer\":2,\"n_head\":7,\"n_ctx\":9}",         FSDP_ERR_CONFIG,
         "7 heads do not divide a width of 60"                                                        },
        {HEAD "\"n_layer\":0,\"n_head\":3,\"n_ctx\":9}",         FSDP_ERR_CONFIG,
         "layers"                                                                                     },
        {HEAD "\"n_layer\":-1,\"n_head\":3,\"n_ctx\":9}",        FSDP_ERR_CONFIG,
         "n_layer"                                                                                    },
        {HEAD "\"n_layer\":\"2\",\"n_head\":3,\"n_ctx\":9}",     FSDP_ERR_CONFIG,
         "n_layer"                                                                                    },
        {HEAD "\"n_layer\":2,\"n_head\":3}",                     FSDP_ERR_CONFIG,      "n_positions"  },
        {HEAD TAIL,                                              FSDP_ERR_CORRUPT,     "JSON"         },
        {"[1]",                                                  FSDP_ERR_CORRUPT,     "JSON"         },
    };
    char path[] = "/tmp/fsdp-gpt2-XXXXXX";
    int fd = mkstemp(path);

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        gpt2_config_t c = {.vocab = 1};
        fsdp_error_t err = {0};
        fsdp_status_t status;

        io_replace_file(path, cases[i].text, strlen(cases[i].text), NULL);
        status = gpt2_config_read(path, &c, &err);
        ok(status == cases[i].status &&
               strstr(err.text, cases[i].word) != NULL &&
               c.vocab == (status == FSDP_OK ? 97 : 1),
           "config %zu: %s %s", i, fsdp_status_name(status), err.text);
        if (status == FSDP_OK) {
            char *text = gpt2_config_json(&c);
            gpt2_config_t again = {0};

            io_replace_file(path, text, strlen(text), NULL);
            ok(gpt2_config_read(path, &again, NULL) == FSDP_OK &&
                   again.vocab == c.vocab && again.positions == c.positions &&
                   again.width == c.width && again.layers == c.layers &&
                   again.heads == c.heads && again.inner == c.inner &&
                   again.norm_eps == c.norm_eps &&
                   again.init_std == c.init_std &&
                   again.gelu_exact == c.gelu_exact,
               "and back");
            free(text);
        }
    }
    close(fd);
    unlink(path);
}

int main(void)
{
    const char *given = getenv("FSDP_SAMPLES"), *src = getenv("FSDP_SRCDIR");
    char *root = (given != NULL) ? io_path("%s", given)
                                 : io_path("%s/../shared/samples",
                                           (src != NULL) ? src : ".");
    char *dir = io_path("%s/training-reference/gpt2-tiny", root);

    if (access(dir, R_OK) == 0) {
        test_reference(dir, FSDP_F32, 2e-6, 2e-5);
        test_reference(dir, FSDP_BF16, 1e-3, 3e-2);
    } else {
        printf("# SKIP no training reference at %s\n", dir);
    }
    free(dir);
    free(root);

    for (size_t i = 0; i < sizeof(odd_shapes) / sizeof(*odd_shapes); i++) {
        test_odd_shape(odd_shapes[i], FSDP_F32, FSDP_F32, 1e-6, 2e-5);
        test_odd_shape(odd_shapes[i], FSDP_F32, FSDP_BF16, 1e-6, 1e-2);
        test_odd_shape(odd_shapes[i], FSDP_BF16, FSDP_BF16, 2e-2, 0.1);
    }
    setenv("FSDP_PLAIN", "1", 1);
    test_odd_shape(odd_shapes[0], FSDP_F32, FSDP_F32, 1e-6, 2e-5);
    unsetenv("FSDP_PLAIN");
    test_logits(false);
    test_logits(true);
    test_threads(FSDP_F32);
    test_threads(FSDP_BF16);
    test_inputs();
    test_config();
    return tap_done();
}
