/*
 * The Hugging Face form of PyTorch's distributed checkpoints: one safetensors
 * file or several for each rank, in whose metadata is where the shards begin.
 * The shapes of the whole tensors are told nowhere: they are
 * what the shards reach to, so that a last rank that is missing can only be
 * noticed by its file's number.
 */
#include "config.h"

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/format.h"
#include "ckpt/format/safetensors.h"
#include "lib/util/check.h"
#include "lib/util/dir.h"
#include "lib/util/io.h"
#include "lib/util/json_text.h"

/* One shard: where it begins is in the JSON, what it is in the file's. */
typedef struct {
    const safetensors_entry_t *entry;
    uint64_t start[FSDP_CKPT_MAX_NDIM], count[FSDP_CKPT_MAX_NDIM];
    uint32_t ndim, file;
    uint64_t offset; /* bytes in the file */
} shard_t;

/* How many shards of a file another one has too. */
typedef struct {
    size_t num;
    uint32_t of; /* that file, if it is always the same; or CATALOG_NONE */
} copy_t;

typedef struct {
    catalog_t *cat;
    safetensors_file_t *files;
    copy_t *copies; /* of each file */
    char **paths;
    json_t **infos; /* where the shards of each file belong */
    int num_files;
    shard_t *shards;
    size_t num_shards;
    json_t *meta; /* the metadata of all files */
} open_t;

/* "shard-00002-model-00001-of-00001.safetensors": 2; 0: another name. */
static unsigned rank_of(const char *name)
{
    const char *end = strstr(name, ".safetensors");
    unsigned rank;
    int used = 0;

    if (end == NULL || end[12] != '\0' ||
        sscanf(name, "shard-%u-%n", &rank, &used) != 1 || used == 0) {
        return 0;
    }

    return rank;
}

static int is_shard(const struct dirent *entry)
{
    return rank_of(entry->d_name) > 0;
}

static int is_other(const struct dirent *entry)
{
    const char *end = strstr(entry->d_name, ".safetensors");

    return entry->d_name[0] != '.' && end != NULL &&
           rank_of(entry->d_name) == 0;
}

static bool probe(const format_look_t *look)
{
    return look->is_dir && dir_count(look->path, is_shard) > 0 &&
           dir_count(look->path, is_other) == 0;
}

/* --- Reading -------------------------------------------------------------- */

static fsdp_status_t bad(const safetensors_file_t *file, const char *name,
                         const char *what, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_CORRUPT, "%s: %s: %s", file->path, name,
                          what);
}

static bool get_numbers(const json_t *array, uint64_t *values, uint32_t *num_p)
{
    size_t num = json_array_size(array);

    if (!json_is_array(array) || num > FSDP_CKPT_MAX_NDIM) {
        return false;
    }
    for (size_t i = 0; i < num; i++) {
        if (!json_text_u64(json_array_get(array, i), &values[i])) {
            return false;
        }
    }

    *num_p = (uint32_t)num;
    return true;
}

static fsdp_status_t read_shard(const open_t *open, uint32_t index,
                                const safetensors_entry_t *entry,
                                shard_t *shard, fsdp_error_t *err)
{
    const safetensors_file_t *file = &open->files[index];
    const json_t *info = json_object_get(open->infos[index], entry->name);
    uint32_t ndim;

    *shard = (shard_t){
        .entry = entry, .file = index, .offset = file->data + entry->begin};
    if (!get_numbers(entry->shape, shard->count, &shard->ndim)) {
        return bad(file, entry->name, "its shape is none", err);
    }
    if (!get_numbers(json_object_get(info, SAFETENSORS_OFFSETS), shard->start,
                     &ndim) ||
        ndim != shard->ndim) {
        return bad(file, entry->name,
                   "the metadata does not say where in the tensor it lies",
                   err);
    }
    for (uint32_t d = 0; d < ndim; d++) {
        if (shard->start[d] > INT64_MAX || shard->count[d] > INT64_MAX) {
            return bad(file, entry->name, "its shape is none", err);
        }
    }

    return FSDP_OK;
}

static fsdp_status_t open_file(open_t *open, const char *name,
                               fsdp_error_t *err)
{
    int i = open->num_files;
    safetensors_file_t *file = &open->files[i];
    const json_t *metadata, *text;
    uint32_t index;

    open->paths[i] = io_path("%s/%s", open->cat->root, name);
    if (open->paths[i] == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", name);
    }
    FSDP_TRY(safetensors_file_open(open->paths[i], file, err));
    open->num_files++;

    metadata = json_object_get(file->header, SAFETENSORS_METADATA);
    text = json_object_get(metadata, SAFETENSORS_SHARDING);
    open->infos[i] =
        json_is_string(text)
            ? json_loads(json_string_value(text), JSON_REJECT_DUPLICATES, NULL)
            : NULL;
    if (!json_is_object(open->infos[i])) {
        return bad(file, SAFETENSORS_SHARDING,
                   "is not in its metadata: where its shards belong is not "
                   "known",
                   err);
    }
    if (json_object_update_missing(
            json_object_get(open->meta, SAFETENSORS_METADATA),
            (json_t *)metadata) != 0) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", name);
    }
    return catalog_add_file(open->cat, name, file->data + file->data_size,
                            &index, err);
}

static fsdp_status_t open_files(open_t *open, struct dirent **names, int num,
                                fsdp_error_t *err)
{
    unsigned before = 0, rank;
    size_t shards = 0;

    open->files = calloc((size_t)num, sizeof(*open->files));
    open->copies = calloc((size_t)num, sizeof(*open->copies));
    open->paths = calloc((size_t)num, sizeof(*open->paths));
    open->infos = calloc((size_t)num, sizeof(*open->infos));
    if (open->files == NULL || open->copies == NULL || open->paths == NULL ||
        open->infos == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "no memory");
    }

    for (int i = 0; i < num; i++) {
        rank = rank_of(names[i]->d_name);
        if (rank > before + 1) {
            return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                  "%s: the files of rank %u (shard-%05u-…) are "
                                  "missing",
                                  open->cat->path, before, before + 1);
        }
        before = rank;
        FSDP_TRY(open_file(open, names[i]->d_name, err));
        shards += open->files[i].num;
    }

    open->shards = calloc(shards + 1, sizeof(*open->shards));
    if (open->shards == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "no memory");
    }
    for (int f = 0; f < num; f++) {
        for (size_t e = 0; e < open->files[f].num; e++) {
            FSDP_TRY(read_shard(open, (uint32_t)f, &open->files[f].entries[e],
                                &open->shards[open->num_shards++], err));
        }
    }
    return FSDP_OK;
}

/* --- Tensors -------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    const shard_t *left = a, *right = b;

    return strcmp(left->entry->name, right->entry->name);
}

static int by_name_and_file(const void *a, const void *b)
{
    const shard_t *left = a, *right = b;
    int order = by_name(a, b);

    return (order != 0)
               ? order
               : (left->file > right->file) - (left->file < right->file);
}

static uint64_t numel_of(const shard_t *shard)
{
    uint64_t numel = 1;

    for (uint32_t d = 0; d < shard->ndim; d++) {
        if (__builtin_mul_overflow(numel, shard->count[d], &numel)) {
            return UINT64_MAX;
        }
    }

    return numel;
}

/* A copy of a shard before: of a tensor that every rank has. */
static bool is_replica(const open_t *open, const shard_t *shards, size_t i)
{
    copy_t *copy = &open->copies[shards[i].file];

    for (size_t k = 0; k < i; k++) {
        if (memcmp(shards[k].start, shards[i].start,
                   shards[i].ndim * sizeof(*shards->start)) == 0 &&
            memcmp(shards[k].count, shards[i].count,
                   shards[i].ndim * sizeof(*shards->count)) == 0) {
            copy->of = (copy->num == 0 || copy->of == shards[k].file)
                           ? shards[k].file
                           : CATALOG_NONE;
            copy->num++;
            return true;
        }
    }

    return false;
}

static fsdp_status_t add_shard(const open_t *open, const shard_t *shard,
                               uint64_t tensor, fsdp_error_t *err)
{
    const catalog_piece_t piece = {.tensor = (uint32_t)tensor,
                                   .file = shard->file,
                                   .offset = shard->offset,
                                   .crc_first = CATALOG_NONE};
    uint64_t bytes;

    if (!dtype_bytes(shard->entry->dtype, numel_of(shard), &bytes) ||
        bytes != shard->entry->end - shard->entry->begin) {
        return bad(&open->files[shard->file], shard->entry->name,
                   "its shape and its data_offsets do not agree", err);
    }

    return catalog_add_box(open->cat, &piece, shard->start, shard->count, NULL,
                           err);
}

/* All shards of one tensor. */
static fsdp_status_t add_tensor(const open_t *open, const shard_t *shards,
                                size_t num, fsdp_error_t *err)
{
    uint64_t dims[FSDP_CKPT_MAX_NDIM] = {0}, tensor;

    for (size_t i = 0; i < num; i++) {
        if (shards[i].ndim != shards->ndim ||
            shards[i].entry->dtype != shards->entry->dtype) {
            return bad(&open->files[shards[i].file], shards->entry->name,
                       "has another type or number of dimensions in another "
                       "file",
                       err);
        }
        for (uint32_t d = 0; d < shards->ndim; d++) {
            uint64_t end = shards[i].start[d] + shards[i].count[d];

            dims[d] = (end > dims[d]) ? end : dims[d];
        }
    }

    FSDP_TRY(catalog_add_tensor(open->cat, shards->entry->name,
                                shards->entry->dtype, shards->ndim, dims, NULL,
                                &tensor, err));
    for (size_t i = 0; i < num; i++) {
        if (!is_replica(open, shards, i)) {
            FSDP_TRY(add_shard(open, &shards[i], tensor, err));
        }
    }
    return FSDP_OK;
}

/* PyTorch saves each shard once: a file that has nothing of its own was most
 * likely copied over another one, and that is lost, which the others' shapes
 * may not tell. */
static fsdp_status_t check_copies(const open_t *open, fsdp_error_t *err)
{
    for (int f = 0; f < open->num_files; f++) {
        const copy_t *copy = &open->copies[f];

        if (copy->num > 0 && copy->num == open->files[f].num &&
            copy->of != CATALOG_NONE) {
            return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                  "%s: holds only shards that %s holds too: "
                                  "was one copied over the other?",
                                  open->paths[f], open->paths[copy->of]);
        }
    }

    return FSDP_OK;
}

static fsdp_status_t add_tensors(open_t *open, fsdp_error_t *err)
{
    size_t end;

    if (open->num_shards > 1) {
        qsort(open->shards, open->num_shards, sizeof(*open->shards),
              by_name_and_file);
    }
    for (size_t first = 0; first < open->num_shards; first = end) {
        for (end = first + 1; end < open->num_shards; end++) {
            if (by_name(&open->shards[first], &open->shards[end]) != 0) {
                break;
            }
        }
        FSDP_TRY(add_tensor(open, open->shards + first, end - first, err));
    }

    return check_copies(open, err);
}

/* Values, tied names, and what else the metadata says. */
static fsdp_status_t add_extra(const open_t *open, fsdp_error_t *err)
{
    json_t *metadata = json_object_get(open->meta, SAFETENSORS_METADATA);

    json_object_del(metadata, SAFETENSORS_SHARDING);
    json_object_del(metadata, SAFETENSORS_VERSION);
    FSDP_TRY(safetensors_take_extra(open->cat, open->meta, err));
    FSDP_TRY(safetensors_keep_meta(open->cat, open->meta, err));
    return catalog_seal(open->cat, CATALOG_CHECK_ALL, err);
}

static fsdp_status_t dcp_hf_open(const char *path, catalog_t *cat,
                                 fsdp_error_t *err)
{
    open_t open = {.cat = cat,
                   .meta = json_pack("{s:{}}", SAFETENSORS_METADATA)};
    struct dirent **names;
    fsdp_status_t status;
    int num = scandir(path, &names, is_shard, alphasort);

    if (num < 0) {
        json_decref(open.meta);
        return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot read: %m", path);
    }

    status = open_files(&open, names, num, err);
    if (status == FSDP_OK) {
        status = add_tensors(&open, err);
    }
    if (status == FSDP_OK) {
        status = add_extra(&open, err);
    }
    json_decref(open.meta);
    for (int i = 0; i < num; i++) {
        if (i < open.num_files) {
            safetensors_file_close(&open.files[i]);
            json_decref(open.infos[i]);
        }
        if (open.paths != NULL) {
            free(open.paths[i]);
        }
    }
    dir_free(names, num);
    free(open.files);
    free(open.copies);
    free(open.paths);
    free(open.infos);
    free(open.shards);
    return status;
}

const format_t format_dcp_hf = {
    .id = FSDP_CKPT_DCP_HF,
    .name = "dcp-hf",
    .what = "a PyTorch distributed checkpoint in safetensors shards",
    .probe = probe,
    .open = dcp_hf_open,
    .is_dir = true,
    .has_boxes = true,
    .keeps = FSDP_CKPT_KEEPS_RANKS | FSDP_CKPT_KEEPS_ROWS,
    .create = safetensors_create,
};
