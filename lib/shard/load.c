/*
 * Loading: each rank reads what its shards hold, whatever wrote the
 * checkpoint.
 */
#include "config.h"

#include "lib/shard/shard.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsdp_ckpt.h"
#include "lib/util/check.h"
#include "lib/util/json_text.h"

#define WIDEN_ELEMENTS (1u << 20) /* of bf16 or fp16, read at once */
#define NAME_MAX_TEXT  1024

/* What this rank needs of one tensor. */
typedef struct {
    uint64_t tensor; /* in the checkpoint */
    fsdp_dtype_t dtype;
    uint64_t first, count;
    float *data;
} want_t;

typedef struct {
    fsdp_t *fsdp;
    bool weights_only;
    fsdp_ckpt_t *ckpt;
    want_t *wants;
    size_t num_wants;
    uint64_t widened; /* tensors, whether or not this rank needs them */
    uint64_t bytes;
} load_t;

/* --- Lookup --------------------------------------------------------------- */

static bool find(const fsdp_ckpt_t *ckpt, const char *kind, const char *slash,
                 const char *name, uint64_t *tensor_p)
{
    char text[NAME_MAX_TEXT];
    int n = snprintf(text, sizeof(text), "%s%s%s", kind, slash, name);

    return n > 0 && (size_t)n < sizeof(text) &&
           fsdp_ckpt_find(ckpt, text, tensor_p);
}

/* "KIND/NAME" or for the model "NAME", each with and without Hugging Face's
 * leading "transformer.". */
static bool find_param(const fsdp_ckpt_t *ckpt, const char *name,
                       fsdp_what_t what, uint64_t *tensor_p)
{
    static const char prefix[] = "transformer.";
    const char *kind = shard_kind(what);
    size_t skip = (strncmp(name, prefix, sizeof(prefix) - 1) == 0)
                      ? sizeof(prefix) - 1
                      : 0;

    return find(ckpt, kind, "/", name, tensor_p) ||
           (what == FSDP_VALUE && find(ckpt, "", "", name, tensor_p)) ||
           (skip > 0 && find(ckpt, kind, "/", name + skip, tensor_p)) ||
           (skip > 0 && what == FSDP_VALUE &&
            find(ckpt, "", "", name + skip, tensor_p));
}

static void shape_text(char *text, size_t size, uint32_t ndim,
                       const uint64_t *dims)
{
    size_t at = 0;

    text[0] = '\0';
    for (uint32_t d = 0; d < ndim && at + 24 < size; d++) {
        at += (size_t)snprintf(text + at, size - at, "%s%" PRIu64,
                               (d > 0) ? " x " : "", dims[d]);
    }
    if (ndim == 0) {
        snprintf(text, size, "scalar");
    }
}

static fsdp_status_t check_tensor(const load_t *load, const char *path,
                                  const fsdp_param_t *param,
                                  const fsdp_ckpt_tensor_t *tensor,
                                  fsdp_error_t *err)
{
    char have[120], want[120];

    (void)load;
    if (tensor->ndim != param->ndim ||
        memcmp(tensor->dims, param->dims, param->ndim * sizeof(*param->dims)) !=
            0) {
        shape_text(have, sizeof(have), tensor->ndim, tensor->dims);
        shape_text(want, sizeof(want), param->ndim, param->dims);
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "%s: tensor '%s' is %s, but the model needs %s",
                              path, tensor->name, have, want);
    }
    if (tensor->dtype != FSDP_DTYPE_F32 && tensor->dtype != FSDP_DTYPE_BF16 &&
        tensor->dtype != FSDP_DTYPE_F16) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s: tensor '%s' is of type %s: convert it first "
                              "with fsdp-convert --cast f32",
                              path, tensor->name,
                              fsdp_dtype_name(tensor->dtype));
    }

    return FSDP_OK;
}

static fsdp_status_t want_param(load_t *load, const char *path,
                                const fsdp_param_t *param, fsdp_what_t what,
                                fsdp_error_t *err)
{
    fsdp_ckpt_tensor_t tensor;
    uint64_t index, first, at, count;

    if (!find_param(load->ckpt, param->name, what, &index)) {
        return fsdp_error_set(
            err, FSDP_ERR_NOT_FOUND, "%s: there is no tensor '%s/%s'%s", path,
            shard_kind(what), param->name,
            (what == FSDP_VALUE)
                ? ""
                : ": without optimizer state only the weights can be loaded");
    }
    fsdp_ckpt_get_tensor(load->ckpt, index, &tensor);
    FSDP_TRY(check_tensor(load, path, param, &tensor, err));
    load->widened += tensor.dtype != FSDP_DTYPE_F32;

    count = param_in_shard(param, load->fsdp->shard_index, &first, &at);
    if (count > 0) {
        load->wants[load->num_wants++] = (want_t){
            index, tensor.dtype, first, count, param_shard(param, what) + at};
    }

    return FSDP_OK;
}

static fsdp_status_t want_all(load_t *load, const char *path, fsdp_error_t *err)
{
    const fsdp_t *fsdp = load->fsdp;

    for (uint32_t u = 0; u < fsdp->num_units; u++) {
        for (uint32_t i = 0; i < fsdp->units[u]->num_params; i++) {
            const fsdp_param_t *param = fsdp->units[u]->params[i];

            FSDP_TRY(want_param(load, path, param, FSDP_VALUE, err));
            if (!load->weights_only && param->region == REGION_TRAINED) {
                FSDP_TRY(want_param(load, path, param, FSDP_EXP_AVG, err));
                FSDP_TRY(want_param(load, path, param, FSDP_EXP_AVG_SQ, err));
            }
        }
    }

    return FSDP_OK;
}

static fsdp_status_t open_and_find(load_t *load, const char *path,
                                   fsdp_error_t *err)
{
    const fsdp_t *fsdp = load->fsdp;
    fsdp_ckpt_info_t info;
    size_t params = 0;

    FSDP_TRY(fsdp_ckpt_open(path, &load->ckpt, err));
    fsdp_ckpt_get_info(load->ckpt, &info);
    if (!load->weights_only && info.step < 0) {
        return fsdp_error_set(err, FSDP_ERR_NOT_FOUND,
                              "%s: it has no step and no optimizer state: only "
                              "the weights can be loaded",
                              info.path);
    }

    for (uint32_t u = 0; u < fsdp->num_units; u++) {
        params += fsdp->units[u]->num_params;
    }
    load->wants = calloc(3 * params + 1, sizeof(*load->wants));
    if (load->wants == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for %zu ranges to read", 3 * params);
    }

    return want_all(load, info.path, err);
}

/* --- Read ----------------------------------------------------------------- */

/* All that is fp32 already, at once, to where it belongs. */
static fsdp_status_t read_plain(load_t *load, fsdp_error_t *err)
{
    fsdp_ckpt_range_t *ranges = calloc(load->num_wants + 1, sizeof(*ranges));
    fsdp_status_t status = FSDP_OK;
    uint64_t bytes = 0;
    size_t num = 0;

    if (ranges == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for %zu ranges to read",
                              load->num_wants);
    }
    for (size_t i = 0; i < load->num_wants; i++) {
        const want_t *want = &load->wants[i];

        if (want->dtype == FSDP_DTYPE_F32) {
            ranges[num++] = (fsdp_ckpt_range_t){want->tensor, want->first,
                                                want->count, want->data};
        }
    }
    if (num > 0) {
        status = fsdp_ckpt_read(load->ckpt, ranges, num, NULL, &bytes, err);
        load->bytes += bytes;
    }

    free(ranges);
    return status;
}

static float half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
    uint32_t bits;
    float value;

    if (exponent == 0) {
        /* Zero or subnormal: exact in fp32. */
        value = (float)fraction * 0x1p-24f;
        return (sign != 0) ? -value : value;
    }

    bits = sign | fraction << 13 |
           ((exponent == 31) ? 0x7f800000u : (exponent + 112) << 23);
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static void widen(fsdp_dtype_t dtype, float *out, const uint16_t *in,
                  uint64_t count)
{
    if (dtype == FSDP_DTYPE_BF16) {
        kernel_from_bf16(out, in, count);
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        out[i] = half_to_float(in[i]);
    }
}

static fsdp_status_t read_wide(load_t *load, const want_t *want,
                               uint16_t *buffer, fsdp_error_t *err)
{
    for (uint64_t done = 0; done < want->count;) {
        uint64_t left = want->count - done;
        uint64_t count = (left < WIDEN_ELEMENTS) ? left : WIDEN_ELEMENTS;
        fsdp_ckpt_range_t range = {want->tensor, want->first + done, count,
                                   buffer};
        uint64_t bytes;

        FSDP_TRY(fsdp_ckpt_read(load->ckpt, &range, 1, NULL, &bytes, err));
        widen(want->dtype, want->data + done, buffer, count);
        load->bytes += bytes;
        done += count;
    }

    return FSDP_OK;
}

static fsdp_status_t read_all(load_t *load, fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;
    uint16_t *buffer;

    FSDP_TRY(read_plain(load, err));
    if (load->widened == 0) {
        return FSDP_OK;
    }

    buffer = malloc(WIDEN_ELEMENTS * sizeof(*buffer));
    if (buffer == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory to widen tensors");
    }
    for (size_t i = 0; i < load->num_wants && status == FSDP_OK; i++) {
        if (load->wants[i].dtype != FSDP_DTYPE_F32) {
            status = read_wide(load, &load->wants[i], buffer, err);
        }
    }

    free(buffer);
    return status;
}

/* --- The rest ------------------------------------------------------------- */

/* What the program kept, as a new string; NULL if there is nothing. */
static char *user_part(const char *meta_json)
{
    json_t *root = json_text_parse(meta_json);
    json_t *user = json_object_get(root, "user");
    char *text = (user != NULL) ? json_dumps(user, JSON_COMPACT) : NULL;

    json_decref(root);
    return text;
}

static fsdp_status_t load_local(load_t *load, const char *path,
                                fsdp_error_t *err)
{
    fsdp_status_t status;
    fsdp_error_t mine;

    /* Nothing is changed on any rank unless all have found what they need. */
    status = open_and_find(load, path, &mine);
    FSDP_TRY(fsdp_job_agree(load->fsdp->job, status, &mine, err));
    status = read_all(load, &mine);
    return fsdp_job_agree(load->fsdp->job, status, &mine, err);
}

fsdp_status_t fsdp_load(fsdp_t *fsdp, const fsdp_load_config_t *config,
                        fsdp_load_result_t *result_p, fsdp_error_t *err)
{
    fsdp_load_config_t full = FSDP_LOAD_CONFIG_INIT;
    load_t load = {.fsdp = fsdp};
    fsdp_ckpt_info_t info;
    fsdp_status_t status;

    FSDP_TRY(shard_check_outside(fsdp, "fsdp_load()", err));
    if (config->size > sizeof(full) || config->path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "fsdp_load() needs a path, and a configuration "
                              "of at most %zu bytes",
                              sizeof(full));
    }
    memcpy(&full, config, config->size);
    /* What is saved now must be on disk before the shards change. */
    FSDP_TRY(fsdp_save_wait(fsdp, err));

    fsdp_job_set_phase(fsdp->job, "load", fsdp->step);
    load.weights_only = full.weights_only;
    status = load_local(&load, full.path, err);
    shard_values_changed(fsdp);
    if (status == FSDP_OK) {
        fsdp_ckpt_get_info(load.ckpt, &info);
        if (!full.weights_only) {
            fsdp->step = info.step;
        }
        *result_p = (fsdp_load_result_t){
            .step = info.step,
            .bytes_read = load.bytes,
            .widened = load.widened,
            .user_json = user_part(info.meta_json),
        };
    }

    fsdp_ckpt_close(load.ckpt);
    free(load.wants);
    return status;
}
