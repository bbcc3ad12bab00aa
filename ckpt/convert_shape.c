/*
 * The shape of a conversion's target: its files, and which pieces of which
 * tensors lie in them.
 */
#include "config.h"

#include "ckpt/convert.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/format/dcp.h"
#include "ckpt/format/llmc.h"
#include "ckpt/format/safetensors.h"
#include "ckpt/format/universal.h"
#include "lib/util/check.h"

/* --- The target's shape --------------------------------------------------- */

static fsdp_status_t add_tensors(convert_t *convert, fsdp_error_t *err)
{
    const catalog_t *src = &convert->src;

    for (uint64_t i = 0; i < convert->num_wanted; i++) {
        const wanted_t *wanted = &convert->wanted[i];
        const catalog_tensor_t *from = &src->tensors[wanted->source];
        const char *unit =
            (from->unit != CATALOG_NONE) ? src->units[from->unit] : NULL;

        FSDP_TRY(catalog_add_tensor(&convert->dst, wanted->name, wanted->dtype,
                                    from->ndim, src->dims + from->dims_first,
                                    unit, NULL, err));
    }

    return FSDP_OK;
}

static fsdp_status_t shape_sharded(convert_t *convert, fsdp_error_t *err)
{
    catalog_t *dst = &convert->dst;
    uint32_t files, index;
    char name[32];

    dst->mesh = (convert->config->mesh.world > 0) ? convert->config->mesh
                                                  : convert->src.mesh;
    if (dst->mesh.world == 0) {
        dst->mesh = (fsdp_mesh_t){FSDP_STRATEGY_FULL, 1, 1, 1};
    }
    if (dst->mesh.shard == 0 || dst->mesh.replicas == 0 ||
        (uint64_t)dst->mesh.shard * dst->mesh.replicas != dst->mesh.world) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "%u ranks are not %u shards times %u replicas",
                              dst->mesh.world, dst->mesh.shard,
                              dst->mesh.replicas);
    }

    files = target_num_files(dst->mesh.world, convert->config->files);
    for (uint32_t f = 0; f < files; f++) {
        target_file_name(f, name);
        FSDP_TRY(catalog_add_file(dst, name, 0, &index, err));
    }
    return (dst->mesh.strategy == FSDP_STRATEGY_CHUNK)
               ? target_grid(dst, &(target_grid_t){0}, files, err)
               : target_shard(dst, files, err);
}

/* As many ranks as asked for, or as the source has. */
static uint32_t target_world(const convert_t *convert)
{
    uint32_t world = (convert->config->mesh.world > 0)
                         ? convert->config->mesh.world
                         : convert->src.mesh.world;

    return (world > 0) ? world : 1;
}

/* Number the files that have pieces one after the other: readers take a number
 * that is missing for a file that is.  One of them at least stays. */
static fsdp_status_t drop_empty_files(convert_t *convert, fsdp_error_t *err)
{
    catalog_t *dst = &convert->dst;
    uint32_t *number = calloc(dst->num_files + 1ul, sizeof(*number)), num = 0;

    if (number == NULL) {
        return convert_no_memory(convert, err);
    }

    for (uint64_t p = 0; p < dst->num_pieces; p++) {
        number[dst->pieces[p].file] = 1;
    }
    for (uint32_t f = 0; f < dst->num_files; f++) {
        bool is_used = number[f] != 0;

        number[f] = num;
        num += is_used;
    }
    for (uint64_t p = 0; p < dst->num_pieces; p++) {
        dst->pieces[p].file = number[dst->pieces[p].file];
    }
    dst->num_files = (num > 0) ? num : 1;
    free(number);
    return FSDP_OK;
}

/* A file for each rank, a box of each tensor in it. */
static fsdp_status_t shape_grid(convert_t *convert, fsdp_error_t *err)
{
    catalog_t *dst = &convert->dst;
    uint32_t world = target_world(convert);
    const target_grid_t grid = {.across = convert->config->tensor_parallel,
                                .split = convert->config->split,
                                .num_split = convert->config->num_split};
    bool is_hf = dst->format == FSDP_CKPT_DCP_HF;
    uint32_t index;
    char name[64];

    FSDP_TRY(fsdp_mesh_init(&dst->mesh, FSDP_STRATEGY_CHUNK, world, 0, err));
    dst->crc_zip = !is_hf;
    for (uint32_t r = 0; r < world; r++) {
        if (is_hf) {
            snprintf(name, sizeof(name),
                     "shard-%05" PRIu32 "-model-00001-of-00001" SAFETENSORS_END,
                     r + 1);
        } else {
            snprintf(name, sizeof(name), "__%" PRIu32 "_0.distcp", r);
        }
        FSDP_TRY(catalog_add_file(dst, name, 0, &index, err));
    }
    FSDP_TRY(target_grid(dst, &grid, world, err));
    return is_hf ? drop_empty_files(convert, err) : dcp_prepare(dst, err);
}

static fsdp_status_t add_whole(catalog_t *dst, uint64_t tensor, uint32_t file,
                               fsdp_error_t *err)
{
    const catalog_piece_t piece = {.count = dst->tensors[tensor].numel,
                                   .tensor = (uint32_t)tensor,
                                   .file = file,
                                   .crc_first = CATALOG_NONE,
                                   .box = CATALOG_NONE};

    return catalog_add_piece(dst, &piece, err);
}

/* The file of each tensor when none is to be larger than @a most bytes, unless
 * it holds one tensor only.  @return the number of files. */
static uint32_t divide(const catalog_t *dst, uint64_t most, uint32_t *file_of)
{
    uint64_t used = 0;
    uint32_t file = 0;

    for (uint64_t t = 0; t < dst->num_tensors; t++) {
        uint64_t bytes = dst->tensors[t].bytes;

        if (most > 0 && used > 0 && (used > most || bytes > most - used)) {
            file++;
            used = 0;
        }
        file_of[t] = file;
        used += bytes;
    }

    return file + 1;
}

/* One file, or several of at most shard_size bytes, of whole tensors. */
static fsdp_status_t shape_whole(convert_t *convert, const char *single,
                                 fsdp_error_t *err)
{
    catalog_t *dst = &convert->dst;
    uint32_t *file_of = calloc(dst->num_tensors + 1, sizeof(*file_of));
    fsdp_status_t status = FSDP_OK;
    uint32_t files, index;
    char name[64];

    if (file_of == NULL) {
        return convert_no_memory(convert, err);
    }

    dst->crc_zip = convert->format->id == FSDP_CKPT_TORCH;
    files = divide(dst, convert->config->shard_size, file_of);
    for (uint32_t f = 0; f < files; f++) {
        snprintf(name, sizeof(name), "model-%05u-of-%05u" SAFETENSORS_END,
                 f + 1, files);
        FSDP_TRY_GOTO(
            catalog_add_file(dst, (files == 1) ? single : name, 0, &index, err),
            err_free);
    }
    for (uint64_t t = 0; t < dst->num_tensors; t++) {
        FSDP_TRY_GOTO(add_whole(dst, t, file_of[t], err), err_free);
    }
err_free:
    free(file_of);
    return status;
}

static fsdp_status_t map_tensors(convert_t *convert, fsdp_error_t *err)
{
    const catalog_t *dst = &convert->dst;

    convert->map = calloc(dst->num_tensors + 1, sizeof(*convert->map));
    if (convert->map == NULL) {
        return convert_no_memory(convert, err);
    }

    for (uint64_t t = 0; t < dst->num_tensors; t++) {
        convert->map[t] = convert->wanted[dst->tensors[t].order].source;
    }
    return FSDP_OK;
}

fsdp_status_t convert_shape(convert_t *convert, const char *single,
                            fsdp_error_t *err)
{
    catalog_t *dst = &convert->dst;

    dst->format = convert->format->id;
    dst->path = catalog_strdup(dst, convert->config->target);
    if (dst->path == NULL) {
        dst->path = "";
        return convert_no_memory(convert, err);
    }

    FSDP_TRY(add_tensors(convert, err));
    FSDP_TRY(convert_keep_rest(convert, err));
    if (convert->format->id == FSDP_CKPT_HDF5) {
        FSDP_TRY(shape_sharded(convert, err));
    } else if (convert->format->has_boxes) {
        FSDP_TRY(shape_grid(convert, err));
    } else if (convert->format->id == FSDP_CKPT_UNIVERSAL) {
        FSDP_TRY(universal_shape(dst, err));
    } else if (convert->format->id == FSDP_CKPT_LLMC) {
        FSDP_TRY(llmc_layout(dst, &convert->src, target_world(convert), err));
    } else {
        FSDP_TRY(shape_whole(convert, single, err));
    }
    FSDP_TRY(catalog_seal(dst, CATALOG_CHECK_COVER, err));
    FSDP_TRY(
        target_lists(dst, convert->format->has_crcs, &convert->lists, err));
    FSDP_TRY(map_tensors(convert, err));
    return plan_convert(&convert->plan, &convert->src, dst, convert->map, err);
}
