/*
 * Models in safetensors beside files of torch.save, as accelerate's save_state
 * leaves them: what their own reader finds gets its part's name in front.
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/format.h"
#include "ckpt/format/safetensors.h"
#include "ckpt/format/torch.h"
#include "ckpt/value.h"
#include "lib/util/check.h"
#include "lib/util/io.h"
#include "lib/util/json_text.h"

typedef struct {
    torch_reader_t *reader;
    const char *prefix;
    const catalog_t *from;
    uint32_t first_file;
} model_t;

static fsdp_status_t no_memory(const model_t *model)
{
    return fsdp_error_set(model->reader->err, FSDP_ERR_NO_MEMORY,
                          "%s: no memory", model->reader->cat->path);
}

static char *full_name(const model_t *model, const char *name)
{
    return io_path("%s%s", model->prefix, name);
}

static fsdp_status_t add_files(const model_t *model)
{
    const catalog_t *from = model->from;
    uint32_t index;

    for (uint32_t f = 0; f < from->num_files; f++) {
        FSDP_TRY(catalog_add_file(model->reader->cat, from->files[f].path,
                                  from->files[f].size, &index,
                                  model->reader->err));
    }

    return FSDP_OK;
}

static fsdp_status_t add_tensor(const model_t *model,
                                const catalog_tensor_t *tensor)
{
    const catalog_t *from = model->from;
    char *name = full_name(model, tensor->name);
    fsdp_status_t status = (name != NULL) ? FSDP_OK : no_memory(model);
    uint64_t index;

    FSDP_TRY(status);
    status = catalog_add_tensor(
        model->reader->cat, name, (fsdp_dtype_t)tensor->dtype, tensor->ndim,
        from->dims + tensor->dims_first, NULL, &index, model->reader->err);
    free(name);
    for (uint32_t p = 0; p < tensor->piece_count && status == FSDP_OK; p++) {
        catalog_piece_t piece = from->pieces[tensor->piece_first + p];

        piece.tensor = (uint32_t)index;
        piece.file += model->first_file;
        status =
            catalog_add_piece(model->reader->cat, &piece, model->reader->err);
    }
    return status;
}

static fsdp_status_t add_tensors(const model_t *model)
{
    uint64_t *order = catalog_in_order(model->from);
    fsdp_status_t status = (order != NULL) ? FSDP_OK : no_memory(model);

    for (uint64_t i = 0; i < model->from->num_tensors && status == FSDP_OK;
         i++) {
        status = add_tensor(model, &model->from->tensors[order[i]]);
    }
    free(order);
    return status;
}

static fsdp_status_t add_alias(const model_t *model,
                               const catalog_alias_t *alias)
{
    char *name = full_name(model, alias->name);
    char *owner = full_name(model, alias->owner);
    fsdp_status_t status = (name != NULL && owner != NULL)
                               ? catalog_add_alias(model->reader->cat, name,
                                                   owner, model->reader->err)
                               : no_memory(model);

    free(name);
    free(owner);
    return status;
}

/* Give a tensor inside a value the name that it has here. */
static fsdp_status_t rename_inner(json_t *name, void *arg, fsdp_error_t *err)
{
    const model_t *model = arg;
    char *full = full_name(model, json_string_value(name));
    bool done = full != NULL && json_string_set(name, full) == 0;

    (void)err; /* it is the reader's */
    free(full);
    return done ? FSDP_OK : no_memory(model);
}

static fsdp_status_t add_value(const model_t *model,
                               const catalog_value_t *value)
{
    fsdp_error_t *err = model->reader->err;
    char *name = NULL, *text = NULL;
    fsdp_status_t status;
    json_t *json;

    FSDP_TRY(
        value_parse(value->name, value->json, strlen(value->json), &json, err));
    status = value_visit_tensors(json, rename_inner, (void *)model, err);
    if (status == FSDP_OK) {
        name = full_name(model, value->name);
        text = value_text(json);
        status = (name != NULL && text != NULL)
                     ? catalog_add_value(model->reader->cat, name, text, err)
                     : no_memory(model);
    }
    free(text);
    free(name);
    json_decref(json);
    return status;
}

/* The metadata of several models becomes one, as that of several shards. */
static fsdp_status_t keep_meta(const model_t *model)
{
    json_t *meta = json_text_parse(model->reader->cat->meta);
    json_t *more = json_text_parse(model->from->meta);
    json_t *kept = json_object_get(meta, SAFETENSORS_METADATA);
    json_t *metadata = json_object_get(more, SAFETENSORS_METADATA);
    fsdp_status_t status;

    if (kept != NULL && metadata != NULL) {
        (void)json_object_update_missing(kept, metadata);
    }
    status = (json_object_update_missing(meta, more) == 0)
                 ? safetensors_keep_meta(model->reader->cat, meta,
                                         model->reader->err)
                 : no_memory(model);
    json_decref(meta);
    json_decref(more);
    return status;
}

/* Its names have no dicts, but the part is one. */
static fsdp_status_t note_dict(const model_t *model)
{
    size_t size = strlen(model->prefix);
    char *name = strndup(model->prefix, size - (size > 0)); /* its dot */
    fsdp_status_t status = (name != NULL) ? FSDP_OK : no_memory(model);

    /* Not of a name that is no UTF-8. */
    (void)json_object_set_new(model->reader->nesting, name, json_object());
    free(name);
    return status;
}

static fsdp_status_t add_model(const model_t *model)
{
    const catalog_t *from = model->from;

    FSDP_TRY(add_files(model));
    FSDP_TRY(add_tensors(model));
    for (uint64_t i = 0; i < from->num_aliases; i++) {
        FSDP_TRY(add_alias(model, &from->aliases[i]));
    }
    for (uint64_t i = 0; i < from->num_values; i++) {
        FSDP_TRY(add_value(model, &from->values[i]));
    }
    FSDP_TRY(keep_meta(model));
    return note_dict(model);
}

fsdp_status_t torch_add_safetensors(torch_reader_t *reader, const char *path,
                                    const torch_member_t *member)
{
    catalog_t from;
    const model_t model = {.reader = reader,
                           .prefix = member->prefix,
                           .from = &from,
                           .first_file = reader->cat->num_files};
    fsdp_status_t status;

    catalog_init(&from);
    from.path = path;
    status = format_safetensors.open(path, &from, reader->err);
    if (status == FSDP_OK) {
        status = add_model(&model);
    }
    catalog_free(&from);
    return status;
}
