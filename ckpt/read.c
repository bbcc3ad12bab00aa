#include "config.h"

#include "ckpt/fsdp_ckpt.h"

#include <stdlib.h>

#include "ckpt/cut.h"
#include "ckpt/engine.h"
#include "ckpt/format.h"
#include "ckpt/format/torch.h"
#include "ckpt/read_check.h"
#include "ckpt/rules.h"
#include "lib/util/check.h"

struct fsdp_ckpt {
    catalog_t cat;
    uint64_t bytes; /* of all tensors */
    bool recipe_unused;
    rules_stages_t stages;
    cut_t cut;
    bool rules_checked; /* what rules took checksums from */
    read_check_t check;
    decoders_t *decoders; /* from one read to the next; NULL: none needed */
};

fsdp_status_t fsdp_ckpt_open(const char *path, fsdp_ckpt_t **ckpt_p,
                             fsdp_error_t *err)
{
    const fsdp_ckpt_open_config_t config = FSDP_CKPT_OPEN_INIT;

    return fsdp_ckpt_open_with(path, &config, ckpt_p, err);
}

fsdp_status_t fsdp_ckpt_open_with(const char *path,
                                  const fsdp_ckpt_open_config_t *config,
                                  fsdp_ckpt_t **ckpt_p, fsdp_error_t *err)
{
    const rules_use_t use = {.rules = config->rules,
                             .num_rules = config->num_rules,
                             .set = config->set,
                             .num_set = config->num_set};
    fsdp_status_t status;
    fsdp_ckpt_t *ckpt;

    FSDP_TRY_SIZE(config, err);
    ckpt = calloc(1, sizeof(*ckpt));
    if (ckpt == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);
    }

    catalog_init(&ckpt->cat);
    ckpt->cat.recipe = config->recipe;
    status = format_open(path, &ckpt->cat, err);
    ckpt->recipe_unused = config->recipe != NULL && !ckpt->cat.recipe_used;
    if (status == FSDP_OK) {
        status = torch_dir_note(&ckpt->cat, err);
    }
    if (status == FSDP_OK) {
        status = rules_use(&use, &ckpt->cat, &ckpt->stages, err);
    }
    if (status == FSDP_OK) {
        status = cut_init(&ckpt->cut, config->include, config->num_include,
                          &ckpt->cat, err);
    }
    if (status == FSDP_OK) {
        status = cut_use(&ckpt->cut, &ckpt->cat, &ckpt->stages, err);
    }
    if (status != FSDP_OK) {
        fsdp_ckpt_close(ckpt);
        return status;
    }

    ckpt->cat.recipe = NULL; /* the caller's */
    for (uint64_t t = 0; t < ckpt->cat.num_tensors; t++) {
        ckpt->bytes += ckpt->cat.tensors[t].bytes;
    }
    if (ckpt->cat.num_codes > 0) {
        ckpt->decoders = decoders_create(); /* without memory: slower */
    }
    *ckpt_p = ckpt;
    return FSDP_OK;
}

void fsdp_ckpt_close(fsdp_ckpt_t *ckpt)
{
    if (ckpt != NULL) {
        read_check_free(&ckpt->check);
        decoders_destroy(ckpt->decoders);
        cut_free(&ckpt->cut);
        rules_stages_free(&ckpt->stages);
        catalog_free(&ckpt->cat);
        free(ckpt);
    }
}

const char *fsdp_ckpt_get_pattern(const fsdp_ckpt_t *ckpt, size_t i)
{
    return ckpt->cut.patterns[i];
}

void fsdp_ckpt_get_info(const fsdp_ckpt_t *ckpt, fsdp_ckpt_info_t *info_p)
{
    const catalog_t *cat = &ckpt->cat;

    *info_p = (fsdp_ckpt_info_t){
        .format = cat->format,
        .path = cat->path,
        .num_tensors = cat->num_tensors,
        .num_aliases = cat->num_aliases,
        .num_values = cat->num_values,
        .num_pieces = cat->num_pieces,
        .num_files = cat->num_files,
        .bytes = ckpt->bytes,
        .shows = cat->shows,
        .num_notes = cat->num_notes,
        .recipe_unused = ckpt->recipe_unused,
        .step = cat->step,
        .mesh = cat->mesh,
        .meta_json = cat->meta,
    };
}

const char *fsdp_ckpt_get_note(const fsdp_ckpt_t *ckpt, uint64_t note)
{
    return ckpt->cat.notes[note];
}

void fsdp_ckpt_get_tensor(const fsdp_ckpt_t *ckpt, uint64_t tensor,
                          fsdp_ckpt_tensor_t *tensor_p)
{
    const catalog_t *cat = &ckpt->cat;
    const catalog_tensor_t *entry = &cat->tensors[tensor];

    *tensor_p = (fsdp_ckpt_tensor_t){
        .name = entry->name,
        .dtype = (fsdp_dtype_t)entry->dtype,
        .ndim = entry->ndim,
        .dims = cat->dims + entry->dims_first,
        .numel = entry->numel,
        .bytes = entry->bytes,
        .num_pieces = entry->piece_count,
        .unit = (entry->unit != CATALOG_NONE) ? cat->units[entry->unit] : NULL,
    };
}

void fsdp_ckpt_get_piece(const fsdp_ckpt_t *ckpt, uint64_t tensor,
                         uint32_t piece, fsdp_ckpt_piece_t *piece_p)
{
    const catalog_t *cat = &ckpt->cat;
    const catalog_piece_t *entry =
        &cat->pieces[cat->tensors[tensor].piece_first + piece];
    const catalog_code_t *code = catalog_code(cat, entry);
    catalog_box_t box;

    *piece_p = (fsdp_ckpt_piece_t){
        .first = entry->first,
        .count = entry->count,
        .file = cat->files[entry->file].path,
        .offset = entry->offset,
    };
    if (code != NULL) {
        piece_p->file = cat->files[code->file].path;
        piece_p->offset = code->offset;
        piece_p->encoded = code->length;
    }
    if (catalog_box(cat, entry, &box)) {
        piece_p->start = box.start;
        piece_p->counts = box.count;
        piece_p->strides = box.strides;
    }
}

void fsdp_ckpt_get_alias(const fsdp_ckpt_t *ckpt, uint64_t alias,
                         const char **name_p, uint64_t *tensor_p)
{
    *name_p = ckpt->cat.aliases[alias].name;
    *tensor_p = ckpt->cat.aliases[alias].tensor;
}

void fsdp_ckpt_get_value(const fsdp_ckpt_t *ckpt, uint64_t value,
                         const char **name_p, const char **json_p)
{
    if (name_p != NULL) {
        *name_p = ckpt->cat.values[value].name;
    }
    *json_p = ckpt->cat.values[value].json;
}

bool fsdp_ckpt_find_value(const fsdp_ckpt_t *ckpt, const char *name,
                          uint64_t *value_p)
{
    return catalog_find_value(&ckpt->cat, name, value_p);
}

bool fsdp_ckpt_find(const fsdp_ckpt_t *ckpt, const char *name,
                    uint64_t *tensor_p)
{
    return catalog_find(&ckpt->cat, name, tensor_p);
}

fsdp_status_t fsdp_ckpt_read(fsdp_ckpt_t *ckpt, const fsdp_ckpt_range_t *ranges,
                             size_t num, const fsdp_ckpt_engine_t *engine,
                             uint64_t *bytes_p, fsdp_error_t *err)
{
    engine_result_t result = {0};
    engine_job_t job = {0};
    fsdp_status_t status;
    uint64_t bytes = 0;
    plan_t plan;

    FSDP_TRY(plan_read(&plan, &ckpt->cat, ranges, num, err));
    job.plan = &plan;
    job.decoders = ckpt->decoders;
    if (engine != NULL) {
        job.options = *engine;
    }
    if (!ckpt->rules_checked) {
        FSDP_TRY_GOTO(rules_check(&ckpt->stages, engine, &bytes, err),
                      err_free);
        ckpt->rules_checked = true;
    }
    FSDP_TRY_GOTO(
        read_check(&ckpt->check, &ckpt->cat, ranges, num, engine, &bytes, err),
        err_free);
    status = engine_run(&job, &result, err);
    if (status == FSDP_OK && bytes_p != NULL) {
        *bytes_p = bytes + result.bytes_read;
    }
err_free:
    plan_free(&plan);
    return status;
}
