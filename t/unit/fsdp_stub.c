/* fsdp.h with one rank and whole buffers, for tests of the model alone. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "lib/fsdp.h"
#include "lib/nn/vec.h"

#define MOST 512

struct fsdp_param {
    fsdp_t *fsdp;
    char *name;
    size_t num;
    fsdp_init_t init;
    float std;
    float *master, *sum;
    void *data, *grad;
};

struct fsdp_unit {
    fsdp_t *fsdp;
    bool root;
    unsigned backward;
    fsdp_param_t *params[16];
    size_t num;
};

struct fsdp {
    fsdp_config_t config;
    fsdp_unit_t *units[MOST];
    size_t num;
    void *memory[MOST];
    size_t num_memory;
};

struct fsdp_job {
    int dummy;
};

static fsdp_job_t job_self;

fsdp_status_t fsdp_job_open(const fsdp_job_config_t *config, fsdp_job_t **job_p,
                            fsdp_error_t *err)
{
    (void)config;
    (void)err;
    *job_p = &job_self;
    return FSDP_OK;
}

void fsdp_job_close(fsdp_job_t *job)
{
    (void)job;
}

fsdp_status_t fsdp_create(fsdp_job_t *job, const fsdp_config_t *config,
                          fsdp_t **fsdp_p, fsdp_error_t *err)
{
    (void)job;
    (void)err;
    *fsdp_p = calloc(1, sizeof(**fsdp_p));
    (*fsdp_p)->config = *config;
    return FSDP_OK;
}

void fsdp_destroy(fsdp_t *fsdp)
{
    if (fsdp == NULL) {
        return;
    }
    for (size_t u = 0; u < fsdp->num; u++) {
        for (size_t i = 0; i < fsdp->units[u]->num; i++) {
            fsdp_param_t *p = fsdp->units[u]->params[i];

            free(p->name);
            free(p->master);
            free(p->sum);
            free(p->data);
            free(p->grad);
            free(p);
        }
        free(fsdp->units[u]);
    }
    for (size_t i = 0; i < fsdp->num_memory; i++) {
        free(fsdp->memory[i]);
    }
    free(fsdp);
}

void fsdp_get_precision(const fsdp_t *fsdp, fsdp_precision_t *param_p,
                        fsdp_precision_t *reduce_p)
{
    *param_p = fsdp->config.param_dtype;
    *reduce_p = fsdp->config.reduce_dtype;
}

static void *zeros(size_t bytes)
{
    bytes = (bytes + 63) / 64 * 64;
    return memset(aligned_alloc(64, bytes), 0, bytes);
}

fsdp_status_t fsdp_mem_alloc(fsdp_t *fsdp, fsdp_mem_kind_t kind, size_t bytes,
                             void **data_p, fsdp_error_t *err)
{
    (void)kind;
    (void)err;
    *data_p = fsdp->memory[fsdp->num_memory++] = zeros(bytes);
    return FSDP_OK;
}

fsdp_status_t fsdp_unit_add(fsdp_t *fsdp, const char *name, unsigned flags,
                            fsdp_unit_t **unit_p, fsdp_error_t *err)
{
    (void)name;
    (void)err;
    *unit_p = fsdp->units[fsdp->num++] = calloc(1, sizeof(**unit_p));
    (*unit_p)->fsdp = fsdp;
    (*unit_p)->root = flags == FSDP_UNIT_ROOT;
    return FSDP_OK;
}

fsdp_status_t fsdp_param_add(fsdp_unit_t *unit,
                             const fsdp_param_config_t *config,
                             fsdp_param_t **param_p, fsdp_error_t *err)
{
    fsdp_param_t *p = calloc(1, sizeof(*p));

    (void)err;
    p->fsdp = unit->fsdp;
    p->name = strdup(config->name);
    p->num = 1;
    for (uint32_t d = 0; d < config->ndim; d++) {
        p->num *= config->dims[d];
    }
    p->init = config->init;
    p->std = config->std;
    p->master = zeros(p->num * 4);
    p->sum = zeros(p->num * 4);
    p->data = zeros(p->num * 4);
    p->grad = zeros(p->num * 4);
    *param_p = unit->params[unit->num++] = p;
    return FSDP_OK;
}

fsdp_status_t fsdp_param_tie(fsdp_param_t *owner, const char *alias,
                             fsdp_error_t *err)
{
    (void)owner;
    (void)alias;
    (void)err;
    return FSDP_OK;
}

fsdp_status_t fsdp_seal(fsdp_t *fsdp, fsdp_error_t *err)
{
    uint64_t seed = 1 + fsdp->config.seed;

    (void)err;
    for (size_t u = 0; u < fsdp->num; u++) {
        for (size_t i = 0; i < fsdp->units[u]->num; i++) {
            fsdp_param_t *p = fsdp->units[u]->params[i];

            for (size_t j = 0; j < p->num; j++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                p->master[j] =
                    (p->init == FSDP_INIT_ONE) ? 1
                    : (p->init == FSDP_INIT_ZERO)
                        ? 0
                        : p->std * 3.46f *
                              ((float)(seed >> 40) / 16777216.0f - 0.5f);
            }
        }
    }
    return FSDP_OK;
}

fsdp_status_t fsdp_micro_begin(fsdp_t *fsdp, fsdp_mode_t mode, uint32_t round,
                               uint32_t count, uint32_t *micro_p,
                               fsdp_error_t *err)
{
    (void)count;
    (void)err;
    *micro_p = round;
    for (size_t u = 0; u < fsdp->num; u++) {
        fsdp->units[u]->backward = 0;
        for (size_t i = 0; i < fsdp->units[u]->num; i++) {
            fsdp_param_t *p = fsdp->units[u]->params[i];

            if (mode == FSDP_TRAIN && round == 0) {
                memset(p->sum, 0, p->num * 4);
            }
            for (size_t j = 0; j < p->num; j++) {
                if (fsdp->config.param_dtype == FSDP_BF16) {
                    ((uint16_t *)p->data)[j] = bf16_from_float(p->master[j]);
                } else {
                    ((float *)p->data)[j] = p->master[j];
                }
            }
        }
    }
    return FSDP_OK;
}

fsdp_status_t fsdp_micro_end(fsdp_t *fsdp, fsdp_error_t *err)
{
    (void)fsdp;
    (void)err;
    return FSDP_OK;
}

fsdp_status_t fsdp_forward_begin(fsdp_unit_t *unit, fsdp_error_t *err)
{
    (void)unit;
    (void)err;
    return FSDP_OK;
}

fsdp_status_t fsdp_forward_end(fsdp_unit_t *unit, fsdp_error_t *err)
{
    (void)unit;
    (void)err;
    return FSDP_OK;
}

fsdp_status_t fsdp_backward_begin(fsdp_unit_t *unit, fsdp_error_t *err)
{
    (void)err;
    for (size_t i = 0; i < unit->num && unit->backward == 0; i++) {
        memset(unit->params[i]->grad, 0, unit->params[i]->num * 4);
    }
    unit->backward++;
    return FSDP_OK;
}

fsdp_status_t fsdp_backward_end(fsdp_unit_t *unit, fsdp_error_t *err)
{
    (void)err;
    if (unit->root && unit->backward < 2) {
        return FSDP_OK;
    }
    for (size_t i = 0; i < unit->num; i++) {
        fsdp_param_t *p = unit->params[i];

        for (size_t j = 0; j < p->num; j++) {
            p->sum[j] += (unit->fsdp->config.reduce_dtype == FSDP_BF16)
                             ? bf16_to_float(((uint16_t *)p->grad)[j])
                             : ((float *)p->grad)[j];
        }
    }
    return FSDP_OK;
}

const void *fsdp_param_data(const fsdp_param_t *param)
{
    return param->data;
}

void *fsdp_param_grad(const fsdp_param_t *param)
{
    return param->grad;
}

fsdp_status_t fsdp_clip(fsdp_t *fsdp, double max_norm, double *norm_p,
                        fsdp_error_t *err)
{
    (void)max_norm;
    (void)err;
    *norm_p = 0;
    for (size_t u = 0; u < fsdp->num; u++) {
        for (size_t i = 0; i < fsdp->units[u]->num; i++) {
            fsdp_param_t *p = fsdp->units[u]->params[i];

            for (size_t j = 0; j < p->num; j++) {
                p->sum[j] /= (float)fsdp->config.micro_batches;
            }
        }
    }
    return FSDP_OK;
}

fsdp_status_t fsdp_param_get(fsdp_param_t *param, fsdp_what_t what,
                             float *whole, fsdp_error_t *err)
{
    (void)err;
    memcpy(whole, (what == FSDP_GRAD) ? param->sum : param->master,
           param->num * 4);
    return FSDP_OK;
}

fsdp_status_t fsdp_param_set(fsdp_param_t *param, fsdp_what_t what,
                             const float *whole, fsdp_error_t *err)
{
    (void)err;
    (void)what;
    memcpy(param->master, whole, param->num * 4);
    return FSDP_OK;
}
