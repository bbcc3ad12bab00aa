#include "config.h"

#include "ckpt/format/zero_file.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/span.h"
#include "lib/util/check.h"
#include "lib/util/io.h"
#include "lib/util/text.h"

static fsdp_status_t no_memory(const zero_file_t *file, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                          file->file.path);
}

fsdp_status_t zero_file_bad(const zero_file_t *file, fsdp_error_t *err,
                            const char *fmt, ...)
{
    char text[400];
    va_list ap;

    va_start(ap, fmt);
    text_message(text, sizeof(text), fmt, ap);
    va_end(ap);
    errno = 0;
    return fsdp_error_set(err, FSDP_ERR_CORRUPT, "%s: %s", file->file.path,
                          text);
}

fsdp_status_t zero_file_open(catalog_t *cat, const char *name,
                             zero_file_t *file, fsdp_error_t *err)
{
    char *path = io_path("%s/%s", cat->root, name);
    fsdp_status_t status;

    *file = (zero_file_t){.cat = cat};
    file->name = catalog_strdup(cat, name);
    if (path == NULL || file->name == NULL) {
        free(path);
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", name);
    }

    status = torch_file_open(path, &file->file, err);
    if (status == FSDP_ERR_NOT_FOUND) {
        status =
            fsdp_error_set(err, FSDP_ERR_CORRUPT,
                           "%s: a file of the checkpoint is missing", path);
    }
    free(path);
    FSDP_TRY(status);

    status = catalog_add_file(cat, name, file->file.size, &file->index, err);
    if (status == FSDP_OK) {
        status =
            catalog_add_crcs(cat, file->index, file->file.num_storages, err);
    }
    if (status == FSDP_OK) {
        cat->files[file->index].checked = file->file.checked;
    }
    for (uint32_t i = 0; status == FSDP_OK && i < file->file.num_storages;
         i++) {
        cat->crcs[cat->files[file->index].crc_first + i] =
            file->file.storages[i].crc32;
    }
    if (status == FSDP_OK) {
        status = span_add_storages(cat, file->index, &file->file, err);
    }
    if (status != FSDP_OK) {
        zero_file_close(file);
    }
    return status;
}

void zero_file_close(zero_file_t *file)
{
    torch_file_close(&file->file);
    map_free(&file->views);
    file->views = (map_t){0};
}

pickle_ref_t zero_file_root(const zero_file_t *file)
{
    return pickle_root(file->file.pickle);
}

pickle_ref_t zero_file_get(const zero_file_t *file, pickle_ref_t ref,
                           const char *key)
{
    return pickle_get(file->file.pickle, ref, key);
}

/* --- Tensors -------------------------------------------------------------- */

/* A tensor and the storage that it is a view of. */
static fsdp_status_t find_tensor(const zero_file_t *file, pickle_ref_t ref,
                                 const char *what, torch_tensor_t *tensor,
                                 uint32_t *storage_p, fsdp_error_t *err)
{
    char *text = io_path("%s: tensor %s", file->file.path, what);
    const torch_storage_t *storage;
    fsdp_status_t status;

    if (text == NULL) {
        return no_memory(file, err);
    }
    status = torch_tensor(file->file.pickle, ref, text, tensor, err);
    free(text);
    FSDP_TRY(status);

    if (tensor->conj || tensor->neg) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s: tensor %s: is stored conjugated or negated, "
                              "which is not read here",
                              file->file.path, what);
    }
    if (!torch_file_find(&file->file, tensor->key, storage_p)) {
        return zero_file_bad(file, err, "tensor %s: its storage %s is missing",
                             what, tensor->key);
    }
    storage = &file->file.storages[*storage_p];
    if (storage->size != tensor->storage_bytes) {
        return zero_file_bad(file, err,
                             "tensor %s: its storage has %llu bytes, should "
                             "have %llu",
                             what, (unsigned long long)storage->size,
                             (unsigned long long)tensor->storage_bytes);
    }

    return FSDP_OK;
}

/* Byte in the file of a tensor's first element. */
static uint64_t offset_of(const zero_file_t *file, const torch_tensor_t *tensor,
                          uint32_t storage)
{
    uint64_t bytes = 0;

    /* It lies in the storage: torch_tensor() has checked that. */
    (void)dtype_bytes(tensor->dtype, tensor->offset, &bytes);
    return file->file.storages[storage].offset + bytes;
}

fsdp_status_t zero_file_flat(const zero_file_t *file, pickle_ref_t ref,
                             const char *what, zero_flat_t *flat_p,
                             fsdp_error_t *err)
{
    torch_tensor_t tensor;
    uint32_t storage;

    if (!torch_is_tensor(file->file.pickle, ref)) {
        return zero_file_bad(file, err, "%s is no tensor", what);
    }
    FSDP_TRY(find_tensor(file, ref, what, &tensor, &storage, err));
    if (!torch_is_contiguous(&tensor)) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s: tensor %s: its elements do not lie end to "
                              "end",
                              file->file.path, what);
    }

    *flat_p = (zero_flat_t){.dtype = tensor.dtype,
                            .offset = offset_of(file, &tensor, storage),
                            .numel = tensor.numel};
    return FSDP_OK;
}

/* What makes two tensors the same one. */
typedef struct {
    uint64_t storage, offset, dtype, ndim;
    uint64_t shape[2 * FSDP_CKPT_MAX_NDIM];
} view_t;

static size_t view_of(const torch_tensor_t *tensor, uint32_t storage,
                      view_t *view)
{
    *view = (view_t){.storage = storage,
                     .offset = tensor->offset,
                     .dtype = (uint64_t)tensor->dtype,
                     .ndim = tensor->ndim};
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        view->shape[2 * d] = tensor->dims[d];
        view->shape[2 * d + 1] = tensor->strides[d];
    }

    return sizeof(*view);
}

/* The checksum of a storage, for the first tensor that is all of it. */
static uint32_t take_crc(zero_file_t *file, const torch_tensor_t *tensor,
                         uint32_t storage)
{
    const torch_storage_t *entry = &file->file.storages[storage];
    const char key[] = {'c', (char)storage, (char)(storage >> 8),
                        (char)(storage >> 16), (char)(storage >> 24)};
    uint64_t bytes, taken;

    if (!entry->has_crc || !torch_is_contiguous(tensor) ||
        !dtype_bytes(tensor->dtype, tensor->numel, &bytes) ||
        bytes != entry->size ||
        map_get(&file->views, key, sizeof(key), &taken) ||
        !map_put(&file->views, key, sizeof(key), 0)) {
        return CATALOG_NONE;
    }
    return file->cat->files[file->index].crc_first + storage;
}

/* All of a tensor is one piece: a box if it has strides of its own. */
static fsdp_status_t add_new(zero_file_t *file, const char *name,
                             const torch_tensor_t *tensor, uint32_t storage,
                             uint64_t *index_p, fsdp_error_t *err)
{
    static const uint64_t zeros[FSDP_CKPT_MAX_NDIM];
    catalog_piece_t piece = {.count = tensor->numel,
                             .offset = offset_of(file, tensor, storage),
                             .file = file->index,
                             .crc_first = CATALOG_NONE,
                             .box = CATALOG_NONE};

    FSDP_TRY(catalog_add_tensor(file->cat, name, tensor->dtype, tensor->ndim,
                                tensor->dims, NULL, index_p, err));
    piece.tensor = (uint32_t)*index_p;
    piece.crc_first = take_crc(file, tensor, storage);
    return torch_is_contiguous(tensor)
               ? catalog_add_piece(file->cat, &piece, err)
               : catalog_add_box(file->cat, &piece, zeros, tensor->dims,
                                 tensor->strides, err);
}

fsdp_status_t zero_file_add(zero_file_t *file, const char *name,
                            pickle_ref_t ref, fsdp_error_t *err)
{
    torch_tensor_t tensor;
    uint64_t index;
    uint32_t storage;
    view_t view;
    size_t size;

    FSDP_TRY(find_tensor(file, ref, name, &tensor, &storage, err));
    size = view_of(&tensor, storage, &view);
    if (tensor.numel > 0 && map_get(&file->views, &view, size, &index)) {
        return catalog_add_alias(file->cat, name,
                                 file->cat->tensors[index].name, err);
    }

    FSDP_TRY(add_new(file, name, &tensor, storage, &index, err));
    return map_put(&file->views, &view, size, index) ? FSDP_OK
                                                     : no_memory(file, err);
}

/* --- Values --------------------------------------------------------------- */

static fsdp_status_t found_tensor(const char *name, pickle_ref_t ref, void *arg,
                                  fsdp_error_t *err)
{
    zero_file_t *file = arg;

    if (torch_is_sharded(file->file.pickle, ref)) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s: tensor %s: a sharded tensor inside a "
                              "DeepSpeed checkpoint is not read here",
                              file->file.path, name);
    }
    return zero_file_add(file, name, ref, err);
}

fsdp_status_t zero_file_add_value(zero_file_t *file, const char *name,
                                  pickle_ref_t ref, fsdp_error_t *err)
{
    fsdp_status_t status;
    char *text = NULL;

    if (torch_is_tensor(file->file.pickle, ref)) {
        status = found_tensor(name, ref, file, err);
        if (status != FSDP_ERR_UNSUPPORTED) {
            return status;
        }
    }
    FSDP_TRY(torch_value_json(file->file.pickle, ref, name, found_tensor, file,
                              &text, err));
    status = catalog_add_value(file->cat, name, text, err);
    free(text);
    return status;
}

static fsdp_status_t found_value(const char *name, pickle_ref_t ref, void *arg,
                                 fsdp_error_t *err)
{
    return zero_file_add_value(arg, name, ref, err);
}

fsdp_status_t zero_file_add_all(zero_file_t *file, const char *prefix,
                                pickle_ref_t ref, fsdp_error_t *err)
{
    return torch_walk(file->file.pickle, ref, prefix, NULL, found_tensor,
                      found_value, file, err);
}

/* --- Model states --------------------------------------------------------- */

/* Of the weights and their layout: read, not kept as values. */
static bool is_layout(const char *key)
{
    static const char *const keys[] = {"module",
                                       "buffer_names",
                                       "param_shapes",
                                       "frozen_param_shapes",
                                       "frozen_param_fragments",
                                       "shared_params",
                                       "optimizer"};

    for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++) {
        if (strcmp(key, keys[i]) == 0) {
            return true;
        }
    }

    return false;
}

bool zero_file_is_own(const char *key)
{
    static const char *const keys[] = {"lr_scheduler",
                                       "data_sampler",
                                       "random_ltd",
                                       "sparse_tensor_module_names",
                                       "skipped_steps",
                                       "global_steps",
                                       "global_samples",
                                       "dp_world_size",
                                       "mp_world_size",
                                       "num_experts",
                                       "checkpoint_parallel_dimensions",
                                       "universal_checkpoint_info",
                                       "ds_config",
                                       "ds_version"};

    for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++) {
        if (strcmp(key, keys[i]) == 0) {
            return true;
        }
    }

    return false;
}

fsdp_status_t zero_file_add_client(zero_file_t *file, fsdp_error_t *err)
{
    const pickle_t *pickle = file->file.pickle;
    pickle_ref_t root = pickle_as_dict(pickle, zero_file_root(file));
    uint64_t num = pickle_count(pickle, root), step;

    for (uint64_t i = 0; i < num; i++) {
        const char *key = pickle_str(pickle, pickle_key(pickle, root, i), NULL);
        fsdp_status_t status;
        char *name;

        if (key == NULL || is_layout(key)) {
            continue;
        }
        name = zero_file_is_own(key) ? strdup(key)
                                     : io_path("client_state.%s", key);
        if (name == NULL) {
            return no_memory(file, err);
        }
        status =
            zero_file_add_value(file, name, pickle_item(pickle, root, i), err);
        free(name);
        FSDP_TRY(status);
    }

    if (pickle_u64(pickle, zero_file_get(file, root, "global_steps"), &step) &&
        step <= INT64_MAX) {
        file->cat->step = (int64_t)step;
    }
    return FSDP_OK;
}

typedef struct {
    zero_file_t *file;
    const map_t *skip;
    map_t shared; /* names that are other names */
    bool late;    /* these are added now */
} module_t;

static fsdp_status_t module_tensor(const char *name, pickle_ref_t ref,
                                   void *arg, fsdp_error_t *err)
{
    const char *base = name + strlen("module.");
    module_t *module = arg;
    uint64_t found;

    if ((module->skip != NULL &&
         map_get(module->skip, base, strlen(base), &found)) ||
        map_get(&module->shared, base, strlen(base), &found) != module->late) {
        return FSDP_OK;
    }
    return found_tensor(name, ref, module->file, err);
}

static fsdp_status_t module_value(const char *name, pickle_ref_t ref, void *arg,
                                  fsdp_error_t *err)
{
    module_t *module = arg;

    /* One that is no tensor was there when the owners were added. */
    return (module->late && !torch_is_tensor(module->file->file.pickle, ref))
               ? FSDP_OK
               : zero_file_add_value(module->file, name, ref, err);
}

fsdp_status_t zero_file_add_module(zero_file_t *file, const map_t *skip,
                                   fsdp_error_t *err)
{
    const pickle_t *pickle = file->file.pickle;
    pickle_ref_t root = zero_file_root(file);
    pickle_ref_t dict =
        pickle_as_dict(pickle, zero_file_get(file, root, "shared_params"));
    pickle_ref_t module = zero_file_get(file, root, "module");
    module_t walk = {.file = file, .skip = skip};
    fsdp_status_t status = FSDP_OK;

    if (pickle_as_dict(pickle, module) == 0) {
        return zero_file_bad(file, err, "has no state dict 'module'");
    }

    for (uint64_t i = 0; i < pickle_count(pickle, dict); i++) {
        const char *key = pickle_str(pickle, pickle_key(pickle, dict, i), NULL);

        if (key != NULL && !map_put(&walk.shared, key, strlen(key), i)) {
            status = no_memory(file, err);
            goto err_free;
        }
    }

    /* Owners first, so that the others are found to be the same. */
    for (int late = 0; late < 2 && status == FSDP_OK; late++) {
        walk.late = late != 0;
        status = torch_walk(pickle, module, "module.", NULL, module_tensor,
                            module_value, &walk, err);
    }
err_free:
    map_free(&walk.shared);
    return status;
}

fsdp_status_t zero_file_add_shared(const zero_file_t *file, const map_t *owners,
                                   map_t *tied, fsdp_error_t *err)
{
    const pickle_t *pickle = file->file.pickle;
    pickle_ref_t shared = pickle_as_dict(
        pickle, zero_file_get(file, zero_file_root(file), "shared_params"));

    for (uint64_t i = 0; i < pickle_count(pickle, shared); i++) {
        const char *name =
            pickle_str(pickle, pickle_key(pickle, shared, i), NULL);
        const char *source =
            pickle_str(pickle, pickle_item(pickle, shared, i), NULL);
        char *alias, *owner;
        uint64_t found;
        fsdp_status_t status;

        if (name == NULL || source == NULL) {
            return zero_file_bad(file, err, "shared_params makes no sense");
        }
        if (!map_get(owners, source, strlen(source), &found)) {
            continue; /* its owner is in the module whole, and so is it */
        }
        alias = io_path("module.%s", name);
        owner = io_path("module.%s", source);
        status = (alias != NULL && owner != NULL &&
                  map_put(tied, name, strlen(name), 0))
                     ? catalog_add_alias(file->cat, alias, owner, err)
                     : no_memory(file, err);
        free(alias);
        free(owner);
        FSDP_TRY(status);
    }

    return FSDP_OK;
}
