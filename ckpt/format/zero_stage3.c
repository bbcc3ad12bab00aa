/*
 * Stage 3 of ZeRO.
 *
 * The master weights lie in sub-groups; no parameter is in two of them.  Of
 * the model's own weights only placeholders are saved: they are the master
 * weights, rounded to the placeholder's type.
 */
#include "config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/format/zero.h"
#include "lib/util/check.h"
#include "lib/util/io.h"

/* A weight that is not in the rank's `module` whole. */
typedef struct {
    uint64_t tensor; /* module.NAME; CATALOG_NONE: there is none */
    uint64_t numel;
} weight_t;

typedef struct {
    zero_t *zero;
    zero_file_t *model; /* of rank 0 */
    weight_t *weights;  /* one a parameter */
    weight_t *frozen;
    uint64_t num_frozen;
    map_t apart; /* names that the module's walk leaves out */
} stage_t;

static uint64_t share_of(const zero_t *zero, uint64_t numel)
{
    return numel / zero->world + (numel % zero->world != 0);
}

/* Elements [*first_p, + *count_p) of a parameter are a rank's. */
static void clip(const zero_t *zero, uint64_t numel, uint32_t rank,
                 uint64_t *first_p, uint64_t *count_p)
{
    uint64_t share = share_of(zero, numel), first = share * rank;

    *first_p = (first < numel) ? first : numel;
    *count_p = (numel - *first_p < share) ? numel - *first_p : share;
}

/* --- The optimizer -------------------------------------------------------- */

static pickle_ref_t state_of(const zero_file_t *file, pickle_ref_t optim,
                             uint64_t sub_group)
{
    const pickle_t *pickle = file->file.pickle;
    pickle_ref_t inner = zero_file_get(file, optim, "optimizer_state_dict");
    pickle_ref_t states =
        pickle_as_dict(pickle, zero_file_get(file, inner, "state"));

    for (uint64_t i = 0; i < pickle_count(pickle, states); i++) {
        uint64_t key;

        if (pickle_u64(pickle, pickle_key(pickle, states, i), &key) &&
            key == sub_group) {
            return pickle_item(pickle, states, i);
        }
    }

    return 0;
}

/* The rank's part of one parameter, which begins at element @a at. */
static fsdp_status_t add_param(const stage_t *stage, const zero_file_t *file,
                               uint32_t rank, uint64_t index,
                               const zero_part_t *part, uint64_t at,
                               fsdp_error_t *err)
{
    zero_t *zero = stage->zero;
    const weight_t *weight = &stage->weights[index];
    uint64_t first, count;

    clip(zero, zero->params[index].numel, rank, &first, &count);
    for (uint32_t k = 0; k < zero->num_kinds; k++) {
        if (!zero->kinds[k].scalar) {
            FSDP_TRY(zero_add_piece(zero, file, rank, k, index, first, count,
                                    &part->flats[k], at, err));
        } else if (rank == 0) {
            FSDP_TRY(zero_add_piece(zero, file, 0, k, index, 0, 1,
                                    &part->flats[k], 0, err));
        }
    }

    if (weight->tensor != CATALOG_NONE) {
        const catalog_piece_t piece = {
            .first = first,
            .count = count,
            .offset = part->flats[0].offset +
                      at * (fsdp_dtype_bits(part->flats[0].dtype) / 8),
            .tensor = (uint32_t)weight->tensor,
            .file = file->index,
            .crc_first = CATALOG_NONE,
            .rank = rank,
            .box = CATALOG_NONE};

        FSDP_TRY(catalog_add_piece(zero->cat, &piece, err));
    }
    return FSDP_OK;
}

/* The model's weights have the type of their placeholders, whatever that of
 * the master weights is, which is known by now. */
static fsdp_status_t set_stored(const stage_t *stage, fsdp_error_t *err)
{
    const zero_t *zero = stage->zero;

    for (uint64_t i = 0; i < zero->num_params; i++) {
        uint64_t tensor = stage->weights[i].tensor;

        if (tensor != CATALOG_NONE &&
            zero->cat->tensors[tensor].dtype != zero->kinds[0].dtype) {
            FSDP_TRY(catalog_set_stored(zero->cat, tensor, zero->kinds[0].dtype,
                                        err));
        }
    }

    return FSDP_OK;
}

static fsdp_status_t check_flats(const zero_t *zero, const zero_file_t *file,
                                 uint64_t sub_group, const zero_part_t *part,
                                 fsdp_error_t *err)
{
    for (uint32_t k = 1; k < zero->num_kinds; k++) {
        if (!zero->kinds[k].scalar &&
            part->flats[k].numel != part->flats[0].numel) {
            return zero_file_bad(file, err,
                                 "sub-group %" PRIu64 ": %s has %" PRIu64
                                 " elements, the master weights %" PRIu64,
                                 sub_group, zero->kinds[k].name,
                                 part->flats[k].numel, part->flats[0].numel);
        }
    }

    return FSDP_OK;
}

/* Walk the parameters through the sub-groups: both must come out even. */
static fsdp_status_t add_flats(const stage_t *stage, const zero_file_t *file,
                               uint32_t rank, fsdp_error_t *err)
{
    zero_t *zero = stage->zero;
    const pickle_t *pickle = file->file.pickle;
    pickle_ref_t optim =
        zero_file_get(file, zero_file_root(file), "optimizer_state_dict");
    pickle_ref_t flats = zero_file_get(file, optim, "fp32_flat_groups");
    uint64_t num = pickle_count(pickle, flats), next = 0;
    zero_part_t part;

    for (uint64_t s = 0; s < num; s++) {
        uint64_t at = 0;

        FSDP_TRY(zero_find_part(zero, file, state_of(file, optim, s),
                                pickle_item(pickle, flats, s), &part, err));
        FSDP_TRY(check_flats(zero, file, s, &part, err));
        if (rank == 0 && s == 0) {
            FSDP_TRY(set_stored(stage, err));
        }
        while (next < zero->num_params && at < part.flats[0].numel) {
            uint64_t share = share_of(zero, zero->params[next].numel);

            if (share > part.flats[0].numel - at) {
                return zero_file_bad(
                    file, err,
                    "tensor %s: sub-group %" PRIu64 " has %" PRIu64
                    " elements left for it, a part of it has %" PRIu64,
                    zero->params[next].name, s, part.flats[0].numel - at,
                    share);
            }
            FSDP_TRY(add_param(stage, file, rank, next, &part, at, err));
            at += share;
            next++;
        }
        if (at != part.flats[0].numel) {
            return zero_file_bad(file, err,
                                 "sub-group %" PRIu64 ": %" PRIu64
                                 " elements belong to no parameter",
                                 s, part.flats[0].numel - at);
        }
    }

    while (next < zero->num_params && zero->params[next].numel == 0) {
        next++; /* has no part anywhere */
    }
    if (next < zero->num_params) {
        return zero_file_bad(file, err, "tensor %s: is in no sub-group",
                             zero->params[next].name);
    }
    return FSDP_OK;
}

/* --- Weights -------------------------------------------------------------- */

static fsdp_status_t no_memory(const stage_t *stage, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                          stage->model->file.path);
}

/* A placeholder of module: no elements, but a type. */
static fsdp_status_t add_weight(stage_t *stage, const char *name, uint32_t ndim,
                                const uint64_t *dims, fsdp_dtype_t dtype,
                                weight_t *weight, fsdp_error_t *err)
{
    catalog_t *cat = stage->zero->cat;
    char *full = io_path("module.%s", name);
    fsdp_status_t status;

    if (full == NULL || !map_put(&stage->apart, name, strlen(name), 0)) {
        free(full);
        return no_memory(stage, err);
    }
    status = catalog_add_tensor(cat, full, dtype, ndim, dims, NULL,
                                &weight->tensor, err);
    free(full);
    if (status == FSDP_OK) {
        weight->numel = cat->tensors[weight->tensor].numel;
    }
    return status;
}

static fsdp_status_t add_weights(stage_t *stage, fsdp_error_t *err)
{
    const zero_t *zero = stage->zero;
    const zero_file_t *model = stage->model;
    pickle_ref_t module = zero_file_get(model, zero_file_root(model), "module");

    for (uint64_t i = 0; i < zero->num_params; i++) {
        const zero_param_t *param = &zero->params[i];
        pickle_ref_t ref = zero_file_get(model, module, param->name);
        zero_flat_t flat;

        stage->weights[i].tensor = CATALOG_NONE;
        if (ref == 0) {
            continue;
        }
        FSDP_TRY(zero_file_flat(model, ref, param->name, &flat, err));
        if (flat.numel == 0) {
            FSDP_TRY(add_weight(stage, param->name, param->ndim, param->dims,
                                flat.dtype, &stage->weights[i], err));
        } else if (flat.numel != param->numel) {
            return zero_file_bad(model, err,
                                 "tensor %s: has %" PRIu64 " elements, its "
                                 "shape %" PRIu64,
                                 param->name, flat.numel, param->numel);
        }
    }

    return FSDP_OK;
}

static pickle_ref_t model_dict(const zero_file_t *file, const char *key)
{
    return pickle_as_dict(file->file.pickle,
                          zero_file_get(file, zero_file_root(file), key));
}

/* Parameters that are not trained: each rank has a part beside the module. */
static fsdp_status_t add_frozen(stage_t *stage, fsdp_error_t *err)
{
    const zero_file_t *model = stage->model;
    const pickle_t *pickle = model->file.pickle;
    pickle_ref_t shapes = model_dict(model, "frozen_param_shapes");
    pickle_ref_t parts = model_dict(model, "frozen_param_fragments");
    uint64_t num = pickle_count(pickle, shapes);

    stage->frozen = calloc(num + 1, sizeof(*stage->frozen));
    if (stage->frozen == NULL) {
        return no_memory(stage, err);
    }
    if (pickle_count(pickle, parts) != num) {
        return zero_file_bad(model, err,
                             "frozen_param_shapes and frozen_param_fragments "
                             "do not agree");
    }

    for (uint64_t i = 0; i < num; i++) {
        const char *name =
            pickle_str(pickle, pickle_key(pickle, shapes, i), NULL);
        uint64_t dims[FSDP_CKPT_MAX_NDIM];
        zero_flat_t flat;
        uint32_t ndim;

        if (name == NULL || !pickle_u64s(pickle, pickle_item(pickle, shapes, i),
                                         dims, FSDP_CKPT_MAX_NDIM, &ndim)) {
            return zero_file_bad(model, err,
                                 "frozen_param_shapes makes no "
                                 "sense");
        }
        FSDP_TRY(zero_file_flat(model, pickle_get(pickle, parts, name), name,
                                &flat, err));
        FSDP_TRY(add_weight(stage, name, ndim, dims, flat.dtype,
                            &stage->frozen[i], err));
        stage->num_frozen++;
    }

    return FSDP_OK;
}

/* One rank's parts of the frozen parameters. */
static fsdp_status_t add_fragments(const stage_t *stage,
                                   const zero_file_t *file, uint32_t rank,
                                   fsdp_error_t *err)
{
    const zero_t *zero = stage->zero;
    const pickle_t *pickle = file->file.pickle;
    pickle_ref_t parts = model_dict(file, "frozen_param_fragments");

    for (uint64_t i = 0; i < stage->num_frozen; i++) {
        const weight_t *frozen = &stage->frozen[i];
        const catalog_tensor_t *tensor = &zero->cat->tensors[frozen->tensor];
        const char *name = tensor->name + strlen("module.");
        catalog_piece_t piece = {.tensor = (uint32_t)frozen->tensor,
                                 .file = file->index,
                                 .crc_first = CATALOG_NONE,
                                 .rank = rank,
                                 .box = CATALOG_NONE};
        zero_flat_t flat;

        FSDP_TRY(zero_file_flat(file, pickle_get(pickle, parts, name), name,
                                &flat, err));
        if (flat.numel != share_of(zero, frozen->numel) ||
            flat.dtype != (fsdp_dtype_t)tensor->dtype) {
            return zero_file_bad(file, err,
                                 "tensor %s: rank %u has %" PRIu64
                                 " elements of it, should have %" PRIu64,
                                 name, rank, flat.numel,
                                 share_of(zero, frozen->numel));
        }
        clip(zero, frozen->numel, rank, &piece.first, &piece.count);
        piece.offset = flat.offset;
        FSDP_TRY(catalog_add_piece(zero->cat, &piece, err));
    }

    return FSDP_OK;
}

static fsdp_status_t add_rank(const stage_t *stage, uint32_t rank,
                              fsdp_error_t *err)
{
    zero_file_t file = {0};
    fsdp_status_t status;
    char name[80];

    if (rank == 0) {
        FSDP_TRY(add_fragments(stage, stage->model, rank, err));
    } else {
        snprintf(name, sizeof(name),
                 "zero_pp_rank_%u_mp_rank_00_model_states.pt", rank);
        FSDP_TRY(zero_file_open(stage->zero->cat, name, &file, err));
        status = add_fragments(stage, &file, rank, err);
        zero_file_close(&file);
        FSDP_TRY(status);
    }

    FSDP_TRY(zero_open_optim(stage->zero, rank, &file, err));
    status = add_flats(stage, &file, rank, err);
    if (status == FSDP_OK && rank == 0) {
        status = zero_add_optim_values(&file, err);
    }
    zero_file_close(&file);
    return status;
}

fsdp_status_t zero_add_stage3(zero_t *zero, zero_file_t *model,
                              fsdp_error_t *err)
{
    stage_t stage = {.zero = zero, .model = model};
    fsdp_status_t status;

    stage.weights = calloc(zero->num_params + 1, sizeof(*stage.weights));
    if (stage.weights == NULL) {
        return no_memory(&stage, err);
    }

    FSDP_TRY_GOTO(add_weights(&stage, err), err_free);
    FSDP_TRY_GOTO(add_frozen(&stage, err), err_free);
    FSDP_TRY_GOTO(zero_file_add_shared(model, &stage.apart, &stage.apart, err),
                  err_free);
    FSDP_TRY_GOTO(zero_file_add_module(model, &stage.apart, err), err_free);
    for (uint32_t rank = 0; rank < zero->world && status == FSDP_OK; rank++) {
        status = add_rank(&stage, rank, err);
    }
err_free:
    map_free(&stage.apart);
    free(stage.weights);
    free(stage.frozen);
    return status;
}
