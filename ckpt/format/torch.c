/*
 * torch.save files: a state dict in one file, or the parts of all ranks
 * (SHARDED_STATE_DICT and LOCAL_STATE_DICT of FSDP1, verl, plain DTensors), or
 * those of accelerate.
 *
 * Names are the keys of nested dicts joined by dots; where parts are in files
 * of their own ("model_…", "optim_…") the part comes first.  What all ranks
 * have alike is there once; what is of one rank alone has "rank_R." before
 * its name.
 */
#include "config.h"

#include "ckpt/format/torch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/format.h"
#include "ckpt/nest.h"
#include "ckpt/span.h"
#include "lib/util/check.h"
#include "lib/util/crc.h"
#include "lib/util/io.h"

static fsdp_status_t no_memory(const torch_reader_t *reader)
{
    return fsdp_error_set(reader->err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                          reader->cat->path);
}

static fsdp_status_t bad(const torch_reader_t *reader, const char *name,
                         const char *why)
{
    errno = 0;
    return fsdp_error_set(reader->err, FSDP_ERR_CORRUPT, "%s: %s: %s",
                          reader->cat->path, name, why);
}

/* A name of the catalog for one rank's own: "rank_1.NAME"; NULL: no memory. */
static char *rank_name(uint32_t rank, const char *name)
{
    return io_path("rank_%u.%s", rank, name);
}

/* The elements of a box, or of a whole tensor. */
static uint64_t found_numel(const torch_found_t *found)
{
    uint64_t numel = found->empty ? 0 : 1;

    for (uint32_t d = 0; d < found->ndim; d++) {
        numel *= found->count[d]; /* was measured */
    }
    return numel;
}

bool torch_found_contiguous(const torch_found_t *found)
{
    torch_tensor_t tensor = {.ndim = found->ndim,
                             .numel = found_numel(found)};

    memcpy(tensor.dims, found->count, found->ndim * sizeof(*found->count));
    memcpy(tensor.strides, found->stride, found->ndim * sizeof(*found->stride));
    return torch_is_contiguous(&tensor);
}

/* --- Collecting ----------------------------------------------------------- */

torch_item_t *torch_reader_find(const torch_reader_t *reader, const char *name)
{
    uint64_t index;

    return map_get(&reader->names, name, strlen(name), &index)
               ? &reader->items[index]
               : NULL;
}

/* The item of a name, made if there is none; NULL: no memory. */
static torch_item_t *get_item(torch_reader_t *reader, const char *name)
{
    torch_item_t *item = torch_reader_find(reader, name), *larger;

    if (item != NULL) {
        return item;
    }
    if (reader->num == reader->max) {
        uint64_t max = 2 * reader->max + 64;

        larger = realloc(reader->items, max * sizeof(*larger));
        if (larger == NULL) {
            return NULL;
        }
        reader->items = larger;
        reader->max = max;
    }

    item = &reader->items[reader->num];
    *item = (torch_item_t){.name = strdup(name)};
    if (item->name == NULL ||
        !map_put(&reader->names, name, strlen(name), reader->num)) {
        free(item->name);
        return NULL;
    }
    reader->num++;
    return item;
}

/* Append what the file has to the item of a name. */
static fsdp_status_t append(torch_reader_t *reader, const char *name,
                            torch_kind_t kind, uint32_t ndim,
                            torch_found_t **found_p)
{
    torch_found_t *found =
        calloc(1, sizeof(*found) + 4 * (size_t)ndim * sizeof(uint64_t));
    torch_item_t *item = (found != NULL) ? get_item(reader, name) : NULL;

    if (item == NULL) {
        free(found);
        return no_memory(reader);
    }

    found->kind = kind;
    found->file = reader->index;
    found->rank = reader->member->rank;
    found->ndim = ndim;
    found->whole = found->numbers;
    found->start = found->whole + ndim;
    found->count = found->start + ndim;
    found->stride = found->count + ndim;
    if (item->last != NULL) {
        item->last->next = found;
    } else {
        item->first = found;
    }
    item->last = found;
    *found_p = found;
    return FSDP_OK;
}

/* Where a tensor's storage is. */
static fsdp_status_t find_storage(torch_reader_t *reader, const char *what,
                                  const torch_tensor_t *tensor,
                                  torch_found_t *found)
{
    const torch_file_t *file = reader->file;
    uint32_t index;

    if (!torch_file_find(file, tensor->key, &index)) {
        return fsdp_error_set(reader->err, FSDP_ERR_CORRUPT,
                              "%s: its storage %s is not in the file", what,
                              tensor->key);
    }
    found->storage = file->storages[index];
    if (found->storage.size != tensor->storage_bytes) {
        return fsdp_error_set(
            reader->err, FSDP_ERR_CORRUPT,
            "%s: its storage %s has %" PRIu64 " bytes, should have %" PRIu64,
            what, tensor->key, found->storage.size, tensor->storage_bytes);
    }

    found->dtype = tensor->dtype;
    found->offset = tensor->offset;
    memcpy(found->count, tensor->dims, found->ndim * sizeof(*found->count));
    memcpy(found->stride, tensor->strides,
           found->ndim * sizeof(*found->stride));
    return FSDP_OK;
}

static fsdp_status_t add_plain(torch_reader_t *reader, const char *name,
                               const char *what, pickle_ref_t ref)
{
    torch_tensor_t tensor;
    torch_found_t *found;

    FSDP_TRY(
        torch_tensor(reader->file->pickle, ref, what, &tensor, reader->err));
    FSDP_TRY(append(reader, name, TORCH_TENSOR, tensor.ndim, &found));
    memcpy(found->whole, tensor.dims, tensor.ndim * sizeof(*tensor.dims));
    found->change =
        (tensor.neg ? CATALOG_NEG : 0u) | (tensor.conj ? CATALOG_CONJ : 0u);
    return find_storage(reader, what, &tensor, found);
}

static fsdp_status_t add_shards(torch_reader_t *reader, const char *name,
                                const char *what,
                                const torch_sharded_t *sharded)
{
    uint32_t num = (sharded->num_shards > 0) ? sharded->num_shards : 1;
    torch_found_t *found;

    if (reader->member->world != 0 && sharded->world > reader->member->world) {
        return bad(reader, name, "it is of more ranks than there are files");
    }

    for (uint32_t i = 0; i < num; i++) {
        FSDP_TRY(append(reader, name, TORCH_SHARD, sharded->ndim, &found));
        memcpy(found->whole, sharded->dims,
               sharded->ndim * sizeof(*sharded->dims));
        found->dtype = sharded->dtype;
        found->replica = sharded->replica;
        found->empty = sharded->num_shards == 0;
        if (!found->empty) {
            memcpy(found->start, sharded->shards[i].offsets,
                   sharded->ndim * sizeof(*found->start));
            FSDP_TRY(
                find_storage(reader, what, &sharded->shards[i].local, found));
        }
    }

    return FSDP_OK;
}

/* Keys as 1 and "1", or a key with dots and those of dicts, may give the same
 * name. */
static fsdp_status_t check_new(const torch_reader_t *reader, const char *name)
{
    const torch_item_t *item = torch_reader_find(reader, name);

    return (item != NULL && item->last->file == reader->index)
               ? bad(reader, name,
                     "the name is there twice: different keys, joined by "
                     "dots, give it")
               : FSDP_OK;
}

static fsdp_status_t on_tensor(const char *name, pickle_ref_t ref, void *arg,
                               fsdp_error_t *err)
{
    torch_reader_t *reader = arg;
    const pickle_t *pickle = reader->file->pickle;
    torch_sharded_t sharded = {0};
    fsdp_status_t status;
    char what[400];

    name = (name[0] != '\0') ? name : "tensor"; /* the file is one */
    FSDP_TRY(check_new(reader, name));
    snprintf(what, sizeof(what), "%s: tensor %.150s", reader->file->path, name);
    if (!torch_is_sharded(pickle, ref)) {
        return add_plain(reader, name, what, ref);
    }

    FSDP_TRY(
        torch_sharded(pickle, ref, reader->member->rank, what, &sharded, err));
    status = add_shards(reader, name, what, &sharded);
    torch_sharded_free(&sharded);
    return status;
}

static fsdp_status_t on_value(const char *name, pickle_ref_t ref, void *arg,
                              fsdp_error_t *err)
{
    torch_reader_t *reader = arg;
    torch_found_t *found;
    char *json;

    name = (name[0] != '\0') ? name : "value";
    FSDP_TRY(check_new(reader, name));
    FSDP_TRY(torch_value_json(reader->file->pickle, ref, name, on_tensor,
                              reader, &json, err));
    if (append(reader, name, TORCH_VALUE, 0, &found) != FSDP_OK) {
        free(json);
        return no_memory(reader);
    }
    found->json = json;
    return FSDP_OK;
}

static fsdp_status_t read_opened(torch_reader_t *reader)
{
    const torch_file_t *file = reader->file;
    catalog_t *cat = reader->cat;

    FSDP_TRY(catalog_add_file(cat, reader->member->name, file->size,
                              &reader->index, reader->err));
    cat->files[reader->index].checked = file->checked;
    FSDP_TRY(span_add_storages(cat, reader->index, file, reader->err));
    return torch_walk(file->pickle, pickle_root(file->pickle),
                      reader->member->prefix, reader->nesting, on_tensor,
                      on_value, reader, reader->err);
}

/* A file beside others, such as an archive of TorchScript. */
static fsdp_status_t add_unread(torch_reader_t *reader)
{
    const char *prefix = reader->member->prefix;
    char *name = strndup(prefix, strlen(prefix) - 1); /* without its dot */
    torch_found_t *found;
    fsdp_status_t status = (name != NULL)
                               ? append(reader, name, TORCH_VALUE, 0, &found)
                               : no_memory(reader);

    free(name);
    FSDP_TRY(status);
    found->json = strdup("{\"$unread\": \"is a file of a kind that is not read "
                         "here\"}");
    return (found->json != NULL) ? FSDP_OK : no_memory(reader);
}

static fsdp_status_t read_member(torch_reader_t *reader, const char *path,
                                 const torch_member_t *member)
{
    torch_file_t file = {0};
    fsdp_status_t status;

    if (member->safetensors) {
        return torch_add_safetensors(reader, path, member);
    }
    reader->member = member;
    status = torch_file_open(path, &file, reader->err);
    if (status == FSDP_ERR_UNSUPPORTED && member->prefix[0] != '\0' &&
        !member->ranked) {
        return add_unread(reader);
    }
    FSDP_TRY(status);
    reader->file = &file;
    status = read_opened(reader);
    reader->file = NULL;
    torch_file_close(&file);
    return status;
}

/* --- Adding --------------------------------------------------------------- */

static catalog_piece_t piece_of(const torch_found_t *found, uint64_t tensor)
{
    unsigned bits = fsdp_dtype_bits(found->dtype);

    return (catalog_piece_t){.tensor = (uint32_t)tensor,
                             .file = found->file,
                             .rank = found->rank,
                             .offset = found->storage.offset +
                                       found->offset * bits / 8,
                             .crc_first = CATALOG_NONE,
                             .box = CATALOG_NONE};
}

/* The checksum in the archive is that of the storage: of use where the pieces
 * from @a first on are that, whole. */
static fsdp_status_t set_crc(torch_reader_t *reader, const torch_found_t *found,
                             uint64_t first)
{
    catalog_t *cat = reader->cat;
    struct torch_sum *larger;

    for (uint64_t p = first; p < cat->num_pieces; p++) {
        const catalog_piece_t *piece = &cat->pieces[p];

        if (!found->storage.has_crc || piece->offset != found->storage.offset ||
            catalog_piece_bytes(cat, piece) != found->storage.size) {
            continue;
        }
        if (reader->num_sums == reader->max_sums) {
            uint64_t max = 2 * reader->max_sums + 64;

            larger = realloc(reader->sums, max * sizeof(*larger));
            if (larger == NULL) {
                return no_memory(reader);
            }
            reader->sums = larger;
            reader->max_sums = max;
        }
        reader->sums[reader->num_sums++] =
            (struct torch_sum){.piece = p, .crc32 = found->storage.crc32};
    }

    return FSDP_OK;
}

/* Each piece has a checksum of its own, also where two are one storage: how
 * far a checksum has come is counted with it. */
static fsdp_status_t add_sums(torch_reader_t *reader)
{
    catalog_t *cat = reader->cat;
    uint64_t *nums = calloc(cat->num_files + 1ul, sizeof(*nums));
    fsdp_status_t status = FSDP_OK;

    if (nums == NULL) {
        return no_memory(reader);
    }
    for (uint64_t i = 0; i < reader->num_sums; i++) {
        nums[cat->pieces[reader->sums[i].piece].file]++;
    }
    for (uint32_t f = 0; f < cat->num_files && status == FSDP_OK; f++) {
        status = catalog_add_crcs(cat, f, nums[f], reader->err);
        nums[f] = 0;
    }
    for (uint64_t i = 0; i < reader->num_sums && status == FSDP_OK; i++) {
        catalog_piece_t *piece = &cat->pieces[reader->sums[i].piece];

        piece->crc_first =
            cat->files[piece->file].crc_first + (uint32_t)nums[piece->file]++;
        cat->crcs[piece->crc_first] = reader->sums[i].crc32;
    }
    free(nums);
    return status;
}

fsdp_status_t torch_add_range(torch_reader_t *reader, uint64_t tensor,
                              const torch_found_t *found, uint64_t from,
                              uint64_t first, uint64_t count)
{
    catalog_piece_t piece = piece_of(found, tensor);
    uint64_t before = reader->cat->num_pieces;

    piece.offset += from * fsdp_dtype_bits(found->dtype) / 8;
    piece.first = first;
    piece.count = count;
    FSDP_TRY(catalog_add_piece(reader->cat, &piece, reader->err));
    return set_crc(reader, found, before);
}

static fsdp_status_t add_box(torch_reader_t *reader, uint64_t tensor,
                             const torch_found_t *found)
{
    catalog_piece_t piece = piece_of(found, tensor);
    uint64_t before = reader->cat->num_pieces;

    if (found_numel(found) == 0) {
        return FSDP_OK;
    }
    FSDP_TRY(catalog_add_changed(reader->cat, &piece, found->start,
                                 found->count, found->stride, found->change,
                                 reader->err));
    return set_crc(reader, found, before);
}

/* Which bytes of which file, seen how. */
static bool identity(const torch_found_t *found, uint64_t **key_p,
                     size_t *size_p)
{
    size_t num = 6 + 4 * (size_t)found->ndim;
    uint64_t *key = calloc(num, sizeof(*key));

    if (key == NULL) {
        return false;
    }
    key[0] = found->file;
    key[1] = found->storage.offset;
    key[2] = found->offset;
    key[3] = (uint64_t)found->dtype;
    key[4] = (uint64_t)found->kind << 8 | found->change;
    key[5] = found->ndim;
    memcpy(key + 6, found->whole, 4 * (size_t)found->ndim * sizeof(*key));
    *key_p = key;
    *size_p = num * sizeof(*key);
    return true;
}

/* The first box that has elements. */
static const torch_found_t *first_filled(const torch_item_t *item)
{
    const torch_found_t *found = item->first;

    while (found != NULL && found_numel(found) == 0) {
        found = found->next;
    }
    return found;
}

/* Is what each rank has of two items the same bytes, seen in the same way? */
static bool same_places(const torch_item_t *left, const torch_item_t *right)
{
    const torch_found_t *a = left->first, *b = right->first;

    for (; a != NULL && b != NULL; a = a->next, b = b->next) {
        if (a->kind != b->kind || a->file != b->file || a->dtype != b->dtype ||
            a->change != b->change || a->ndim != b->ndim ||
            a->offset != b->offset || a->storage.offset != b->storage.offset ||
            memcmp(a->numbers, b->numbers,
                   4 * (size_t)a->ndim * sizeof(*a->numbers)) != 0) {
            return false;
        }
    }

    return a == NULL && b == NULL;
}

/* Does another item that is there already have the same bytes? */
static fsdp_status_t find_owner(torch_reader_t *reader,
                                const torch_item_t *item,
                                const torch_item_t **owner_p)
{
    const torch_found_t *found = first_filled(item);
    uint64_t *key, index;
    bool done = true;
    size_t size;

    *owner_p = NULL;
    if (found == NULL) {
        return FSDP_OK;
    }
    if (!identity(found, &key, &size)) {
        return no_memory(reader);
    }
    if (map_get(&reader->tensors, key, size, &index)) {
        if (same_places(item, &reader->items[index])) {
            *owner_p = &reader->items[index];
        }
    } else {
        done = map_put(&reader->tensors, key, size,
                       (uint64_t)(item - reader->items));
    }
    free(key);
    return done ? FSDP_OK : no_memory(reader);
}

static fsdp_status_t add_tensor(torch_reader_t *reader, const char *name,
                                const torch_found_t *found, uint64_t *tensor_p)
{
    return catalog_add_tensor(reader->cat, name, found->dtype, found->ndim,
                              found->whole, NULL, tensor_p, reader->err);
}

/* A box that other ranks have too counts once. */
static fsdp_status_t add_new_box(torch_reader_t *reader, uint64_t tensor,
                                 const torch_found_t *found)
{
    uint64_t key[1 + 2 * FSDP_CKPT_MAX_NDIM], there;
    size_t size = (1 + 2 * (size_t)found->ndim) * sizeof(*key);

    key[0] = tensor;
    memcpy(key + 1, found->start, 2 * (size_t)found->ndim * sizeof(*key));
    if (found_numel(found) == 0 ||
        map_get(&reader->boxes, key, size, &there)) {
        return FSDP_OK;
    }
    if (!map_put(&reader->boxes, key, size, 0)) {
        return no_memory(reader);
    }
    return add_box(reader, tensor, found);
}

static fsdp_status_t add_sharded(torch_reader_t *reader,
                                 const torch_item_t *item)
{
    const torch_found_t *first = item->first;
    uint64_t tensor;

    FSDP_TRY(add_tensor(reader, item->name, first, &tensor));
    for (const torch_found_t *found = first; found != NULL;
         found = found->next) {
        if (found->kind != TORCH_SHARD || found->dtype != first->dtype ||
            found->ndim != first->ndim ||
            memcmp(found->whole, first->whole,
                   first->ndim * sizeof(*first->whole)) != 0) {
            return bad(reader, item->name,
                       "the ranks' files do not agree about what it is");
        }
        FSDP_TRY(add_new_box(reader, tensor, found));
    }

    return FSDP_OK;
}

/* The checksum of a storage, computed where the file has none. */
static fsdp_status_t storage_crc(torch_reader_t *reader, torch_found_t *found)
{
    char *path = catalog_file_path(reader->cat, found->file);
    enum { WINDOW = 1 << 20 };
    char *data = malloc(WINDOW);
    fsdp_status_t status = FSDP_OK;
    uint64_t done = 0, bytes;
    uint32_t crc = 0;
    int fd = -1;

    if (path == NULL || data == NULL) {
        status = no_memory(reader);
    } else {
        status = io_open(path, O_RDONLY, 0, &fd, reader->err);
    }
    for (; status == FSDP_OK && done < found->storage.size; done += bytes) {
        bytes = found->storage.size - done;
        bytes = (bytes < WINDOW) ? bytes : WINDOW;
        status = io_pread(fd, data, bytes, found->storage.offset + done, path,
                          reader->err);
        crc = crc32_zip(crc, data, bytes);
    }
    if (fd >= 0) {
        close(fd);
    }
    free(data);
    free(path);
    found->storage.crc32 = crc;
    return status;
}

/* The same in two ranks: by shape, type and checksum. */
static fsdp_status_t compare(torch_reader_t *reader, torch_found_t *a,
                             torch_found_t *b, bool *same_p)
{
    *same_p = false;
    if (a->kind != b->kind) {
        return FSDP_OK;
    }
    if (a->kind == TORCH_VALUE) {
        *same_p = strcmp(a->json, b->json) == 0;
        return FSDP_OK;
    }

    if (a->dtype != b->dtype || a->change != b->change || a->ndim != b->ndim ||
        a->offset != b->offset || a->storage.size != b->storage.size ||
        memcmp(a->numbers, b->numbers, 4 * a->ndim * sizeof(*a->numbers)) !=
            0) {
        return FSDP_OK;
    }
    if (!a->storage.has_crc) {
        FSDP_TRY(storage_crc(reader, a));
    }
    if (!b->storage.has_crc) {
        FSDP_TRY(storage_crc(reader, b));
    }
    *same_p = a->storage.crc32 == b->storage.crc32;
    return FSDP_OK;
}

static fsdp_status_t add_one(torch_reader_t *reader, const char *name,
                             const torch_found_t *found)
{
    uint64_t tensor;

    if (found->kind == TORCH_VALUE) {
        return catalog_add_value(reader->cat, name, found->json, reader->err);
    }
    FSDP_TRY(add_tensor(reader, name, found, &tensor));
    return add_box(reader, tensor, found);
}

/* What is no sharded tensor: alike in all ranks, or each rank's own. */
static fsdp_status_t add_item(torch_reader_t *reader, const torch_item_t *item)
{
    bool same = true;

    for (torch_found_t *found = item->first->next; found != NULL && same;
         found = found->next) {
        if (found->rank == item->first->rank) {
            return bad(reader, item->name, "the name is there twice");
        }
        FSDP_TRY(compare(reader, item->first, found, &same));
    }
    if (same) {
        return add_one(reader, item->name, item->first);
    }

    for (const torch_found_t *found = item->first; found != NULL;
         found = found->next) {
        char *name = rank_name(found->rank, item->name);
        fsdp_status_t status;

        if (found->kind == TORCH_SHARD) {
            free(name);
            return bad(reader, item->name,
                       "it is sharded in one rank's file and not in another's");
        }
        status =
            (name != NULL) ? add_one(reader, name, found) : no_memory(reader);
        free(name);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

static fsdp_status_t add_all(torch_reader_t *reader)
{
    const torch_item_t *owner = NULL;

    for (uint64_t i = 0; i < reader->num; i++) {
        const torch_item_t *item = &reader->items[i];

        if (item->done) {
            continue;
        }
        owner = NULL;
        if (item->first->kind != TORCH_VALUE) {
            FSDP_TRY(find_owner(reader, item, &owner));
        }
        if (owner != NULL) {
            FSDP_TRY(catalog_add_alias(reader->cat, item->name, owner->name,
                                       reader->err));
        } else if (item->first->kind == TORCH_SHARD) {
            FSDP_TRY(add_sharded(reader, item));
        } else {
            FSDP_TRY(add_item(reader, item));
        }
    }

    return FSDP_OK;
}

/* --- Opening -------------------------------------------------------------- */

static void reader_free(torch_reader_t *reader)
{
    for (uint64_t i = 0; i < reader->num; i++) {
        torch_found_t *next;

        for (torch_found_t *found = reader->items[i].first; found != NULL;
             found = next) {
            next = found->next;
            free(found->json);
            free(found);
        }
        free(reader->items[i].name);
    }
    free(reader->items);
    free(reader->sums);
    json_decref(reader->nesting);
    map_free(&reader->names);
    map_free(&reader->tensors);
    map_free(&reader->boxes);
}

static bool has_flat(const torch_reader_t *reader)
{
    for (uint64_t i = 0; i < reader->num; i++) {
        if (torch_is_flat(&reader->items[i])) {
            return true;
        }
    }

    return false;
}

static fsdp_status_t read_dir(torch_reader_t *reader, const char *path,
                              const torch_dir_t *dir)
{
    for (uint32_t i = 0; i < dir->num; i++) {
        char *file = io_path("%s/%s", path, dir->members[i].name);
        fsdp_status_t status = (file != NULL)
                                   ? read_member(reader, file, &dir->members[i])
                                   : no_memory(reader);

        free(file);
        FSDP_TRY(status);
        if (dir->members[i].rank >= reader->num_ranks) {
            reader->num_ranks = dir->members[i].rank + 1;
        }
    }

    return FSDP_OK;
}

static fsdp_status_t read_all(torch_reader_t *reader, const char *path,
                              bool is_dir)
{
    torch_dir_t dir = {0};
    fsdp_status_t status;

    if (is_dir) {
        FSDP_TRY(torch_dir_read(path, &dir, reader->err));
        status = read_dir(reader, path, &dir);
        torch_dir_free(&dir);
        return status;
    }

    {
        const torch_member_t member = {.name = (char *)io_base(path),
                                       .prefix = (char *)""};
        char *root = io_parent(path);

        reader->cat->root =
            (root != NULL) ? catalog_strdup(reader->cat, root) : NULL;
        free(root);
        if (reader->cat->root == NULL) {
            reader->cat->root = reader->cat->path;
            return no_memory(reader);
        }
        reader->num_ranks = 1;
        return read_member(reader, path, &member);
    }
}

static bool probe(const format_look_t *look)
{
    return look->is_dir ? torch_dir_probe(look->path)
                        : torch_file_probe(look->head);
}

static fsdp_status_t open_torch(const char *path, catalog_t *cat,
                                fsdp_error_t *err)
{
    torch_reader_t reader = {.cat = cat, .nesting = json_object(), .err = err};
    fsdp_status_t status;
    format_look_t look;

    status = format_look(path, &look, err);
    cat->crc_zip = true;
    cat->shared = true;
    if (status == FSDP_OK) {
        status = read_all(&reader, path, look.is_dir);
    }
    if (status == FSDP_OK && has_flat(&reader)) {
        status = torch_take_local(&reader);
    }
    if (status == FSDP_OK) {
        status = add_all(&reader);
    }
    if (status == FSDP_OK) {
        status = add_sums(&reader);
    }
    if (status == FSDP_OK) {
        status = nest_keep(cat, reader.nesting, err);
    }
    if (status == FSDP_OK) {
        cat->mesh.world = 0;
        status = catalog_seal(cat, CATALOG_CHECK_ALL, err);
    }
    reader_free(&reader);
    return status;
}

const format_t format_torch = {
    .id = FSDP_CKPT_TORCH,
    .name = "torch",
    .what = "a file of torch.save, or those of all ranks",
    .probe = probe,
    .open = open_torch,
    .has_crcs = true,
    .create = torch_create,
    .finish = torch_finish,
};
