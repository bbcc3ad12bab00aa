/*
 * GPT-2 (Radford et al. 2019) on the CPU, driven through fsdp.h: one unit a
 * block, "h.0" …, and the root unit with both embeddings and the last norm.
 * Parameter names, shapes and orientation are Hugging Face's GPT2LMHeadModel:
 * Conv1D weights are (in, out), lm_head is tied to transformer.wte.weight.
 *
 * A micro-batch's result depends on its tokens and the parameters alone, not
 * on the number of threads or ranks.
 */
#ifndef FSDP_NN_GPT2_H
#define FSDP_NN_GPT2_H

#include "fsdp.h"

typedef struct {
    uint32_t vocab;
    uint32_t positions; /* longest sequence */
    uint32_t width;
    uint32_t layers;
    uint32_t heads;
    uint32_t inner; /* width of the MLP; 0: 4 * width */
    float norm_eps;
    float init_std;  /* of all matrices; residual projections get
                       init_std / sqrt(2 * layers) */
    bool gelu_exact; /* GELU by the error function ("gelu"), not its tanh
                        approximation ("gelu_new") */
} gpt2_config_t;

#define GPT2_CONFIG_INIT                     \
    {                                        \
        .norm_eps = 1e-5f, .init_std = 0.02f \
    }

typedef struct gpt2 gpt2_t;

/* @return FSDP_ERR_CONFIG, naming both numbers, if heads do not divide the
 *         width, or a number is 0 or too large. */
fsdp_status_t gpt2_config_check(const gpt2_config_t *config, fsdp_error_t *err);

/* Hugging Face's config.json; settings that change the arithmetic and are not
 * implemented are FSDP_ERR_UNSUPPORTED.  Dropout is the exception: any rate is
 * accepted, and 0 is used. */
fsdp_status_t gpt2_config_read(const char *path, gpt2_config_t *config_p,
                               fsdp_error_t *err);

/* The same from text; @a path says in errors where it comes from. */
fsdp_status_t gpt2_config_parse(const char *text, size_t size, const char *path,
                                gpt2_config_t *config_p, fsdp_error_t *err);

/* The same as JSON text; the caller frees it.  NULL: no memory. */
char *gpt2_config_json(const gpt2_config_t *config);

/**
 * Add the model's units and parameters, and its activations, to @a fsdp before
 * it is sealed.
 *
 * @param batch    Sequences of a micro-batch, at most.
 * @param seq      Tokens of a sequence, at most; at most config->positions.
 * @param train    Whether backward passes will be run.
 * @param threads  For the kernels.
 *
 * With FSDP_PLAIN in the environment matrix products are plain loops, even
 * where oneDNN is there.
 */
fsdp_status_t gpt2_create(fsdp_t *fsdp, fsdp_precision_t dtype,
                          const gpt2_config_t *config, uint32_t batch,
                          uint32_t seq, bool train, uint32_t threads,
                          gpt2_t **model_p, fsdp_error_t *err);

/* Before fsdp_destroy().  NULL is allowed. */
void gpt2_destroy(gpt2_t *model);

/**
 * Forward and backward of one micro-batch, between fsdp_micro_begin() and
 * fsdp_micro_end().  Collective.
 *
 * @param tokens  batch × (seq + 1): inputs are [.., :-1], targets [.., 1:].
 *                NULL if this rank is idle.
 * @param loss_p  Mean loss over the tokens, in nats.
 */
fsdp_status_t gpt2_train(gpt2_t *model, const int32_t *tokens, uint32_t batch,
                         uint32_t seq, double *loss_p, fsdp_error_t *err);

/* Forward only, in FSDP_EVAL mode. */
fsdp_status_t gpt2_eval(gpt2_t *model, const int32_t *tokens, uint32_t batch,
                        uint32_t seq, double *loss_p, fsdp_error_t *err);

/* Logits of the token after @a tokens (@a num of them), for sampling:
 * config.vocab values.  In FSDP_EVAL mode, same call order as gpt2_eval(). */
fsdp_status_t gpt2_logits(gpt2_t *model, const int32_t *tokens, uint32_t num,
                          float *logits, fsdp_error_t *err);

#endif
