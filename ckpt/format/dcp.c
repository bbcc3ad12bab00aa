/*
 * Reading PyTorch's distributed checkpoints.
 *
 * `.metadata` says which chunks there are and where the archive of each lies;
 * each archive says how its elements lie in it: storage, offset, strides.
 * What both say is compared.  The CRC-32 that the archive has of a storage
 * becomes the checksum of the piece, if the piece is all of the storage.
 */
#include "config.h"

#include "ckpt/format/dcp.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/format.h"
#include "ckpt/format/dcp_meta.h"
#include "ckpt/format/dcp_paths.h"
#include "ckpt/format/dcp_reader.h"
#include "lib/util/check.h"
#include "lib/util/dir.h"
#include "lib/util/io.h"
#include "lib/util/json_text.h"

#define BATCH 2048 /* archives that are read before they are added */

/* Several ranks' metadata in one directory: what is there already, to tell
 * copies from others. */
typedef struct {
    uint64_t first;
    uint64_t count;
    uint32_t tensor;
    uint32_t crc32;
    bool has_crc;
} seen_t;

typedef struct {
    catalog_t *cat;
    const char *sub;        /* "" or with a slash behind it */
    const dcp_meta_t *meta; /* that is being read */
    uint64_t rank;
    uint32_t *tensors; /* in the catalog, of each entry */
    uint32_t *files;   /* in the catalog, of each file of the metadata */
    bool is_local; /* one metadata a rank; then: */
    seen_t *seen;  /* pieces; those of the ranks before come first, sorted */
    uint64_t num_seen, max_seen, num_sorted;
    uint32_t *order; /* tensors of the ranks before, by name */
    uint64_t num_order;
    uint32_t next_crc, end_crc; /* room for those of the file */

    json_t *nesting; /* what is noted of containers */
} loader_t;

static fsdp_status_t no_memory(const loader_t *loader, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                          loader->cat->path);
}

/* --- What ranks before have added ----------------------------------------- */

static int by_name(const void *a, const void *b, void *arg)
{
    const catalog_t *cat = arg;

    return strcmp(cat->tensors[*(const uint32_t *)a].name,
                  cat->tensors[*(const uint32_t *)b].name);
}

static int by_first(const void *a, const void *b)
{
    const seen_t *left = a, *right = b;

    return (left->tensor != right->tensor)
               ? (left->tensor > right->tensor) - (left->tensor < right->tensor)
               : (left->first > right->first) - (left->first < right->first);
}

/* A rank is done: put what it added where the next ones look. */
static fsdp_status_t sort_seen(loader_t *loader, fsdp_error_t *err)
{
    catalog_t *cat = loader->cat;
    uint32_t *larger =
        reallocarray(loader->order, cat->num_tensors + 1, sizeof(*larger));

    if (larger == NULL) {
        return no_memory(loader, err);
    }

    loader->order = larger;
    loader->num_order = cat->num_tensors;
    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        loader->order[t] = (uint32_t)t;
    }
    qsort_r(loader->order, loader->num_order, sizeof(*loader->order), by_name,
            cat);
    if (loader->num_seen > 0) {
        qsort(loader->seen, loader->num_seen, sizeof(*loader->seen), by_first);
    }
    loader->num_sorted = loader->num_seen;
    return FSDP_OK;
}

/* The metadata of a rank before may have the tensor already. */
static bool find_added(const loader_t *loader, const char *name,
                       uint32_t *tensor_p)
{
    uint64_t lo = 0, hi = loader->num_order;

    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        uint32_t tensor = loader->order[mid];
        int order = strcmp(loader->cat->tensors[tensor].name, name);

        if (order == 0) {
            *tensor_p = tensor;
            return true;
        }
        if (order < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }

    return false;
}

/* --- Pieces --------------------------------------------------------------- */

/* How the catalog reads the bytes of an archive; 0: as they are. */
static fsdp_status_t find_code(loader_t *loader, dcp_in_t *archive,
                               uint32_t *code_p, fsdp_error_t *err)
{
    const dcp_record_t *record = archive->record;
    catalog_code_t code = {.offset = record->offset,
                           .length = record->length,
                           .bytes = archive->length,
                           .file = loader->files[record->file]};
    codec_step_t steps[CODEC_MOST];

    if (record->zstd > 0 && archive->code == 0) {
        code.memory = archive->memory;
        dcp_record_steps(record, steps);
        FSDP_TRY(catalog_add_code(loader->cat, &code, steps, record->zstd,
                                  &archive->code, err));
    }

    *code_p = archive->code;
    return FSDP_OK;
}

/* A view of a storage as a piece of @a tensor from @a start on. */
static fsdp_status_t add_view(loader_t *loader, dcp_in_t *archive,
                              const torch_tensor_t *view,
                              const zip_entry_t *storage, uint32_t tensor,
                              const uint64_t *start, fsdp_error_t *err)
{
    catalog_t *cat = loader->cat;
    uint32_t file = loader->files[archive->record->file];
    catalog_piece_t piece = {.tensor = tensor,
                             .file = file,
                             .rank = (uint32_t)loader->rank,
                             .crc_first = CATALOG_NONE};
    uint64_t before, bytes, num = cat->num_pieces;
    catalog_piece_t *added;

    if (view->numel == 0) {
        return FSDP_OK;
    }

    FSDP_TRY(find_code(loader, archive, &piece.code, err));
    (void)dtype_bytes(view->dtype, view->offset, &before);
    piece.offset = storage->offset + before;
    FSDP_TRY(catalog_add_changed(
        cat, &piece, start, view->dims, view->strides,
        (view->neg ? CATALOG_NEG : 0) | (view->conj ? CATALOG_CONJ : 0), err));

    added = &cat->pieces[num];
    bytes = catalog_piece_bytes(cat, added);
    if (bytes > storage->size || before > storage->size - bytes) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: its elements leave their storage",
                              archive->what);
    }
    if (storage->has_crc && before == 0 && bytes == storage->size &&
        loader->next_crc < loader->end_crc) {
        cat->crcs[loader->next_crc] = storage->crc32;
        added->crc_first = loader->next_crc++;
    }
    return FSDP_OK;
}

/* Has a rank before saved the same chunk?
 * @return FSDP_ERR_CORRUPT if it has, with other bytes. */
static fsdp_status_t is_seen(loader_t *loader, const seen_t *now,
                             const dcp_in_t *archive, bool *seen_p,
                             fsdp_error_t *err)
{
    const seen_t *seen = (loader->num_sorted > 0)
                             ? bsearch(now, loader->seen, loader->num_sorted,
                                       sizeof(*now), by_first)
                             : NULL;

    *seen_p = seen != NULL;
    if (seen != NULL) {
        if (!now->has_crc) {
            return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                                  "%s: several ranks have saved this part of "
                                  "the tensor, without checksums by which to "
                                  "compare them",
                                  archive->what);
        }
        if (seen->count != now->count || seen->crc32 != now->crc32) {
            return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                  "%s: another rank has saved this part of "
                                  "the tensor with other values",
                                  archive->what);
        }
        return FSDP_OK;
    }

    if (loader->num_seen == loader->max_seen) {
        uint64_t max = 2 * loader->max_seen + 64;
        seen_t *larger = reallocarray(loader->seen, max, sizeof(*larger));

        if (larger == NULL) {
            return no_memory(loader, err);
        }
        loader->seen = larger;
        loader->max_seen = max;
    }
    loader->seen[loader->num_seen++] = *now;
    return FSDP_OK;
}

static fsdp_status_t add_chunk(loader_t *loader, dcp_found_t *found,
                               fsdp_error_t *err)
{
    const dcp_meta_t *meta = loader->meta;
    const dcp_record_t *record = found->in.record;
    const dcp_chunk_t *chunk = &meta->chunks[record->chunk];
    const torch_tensor_t *view = &found->view;
    uint64_t start[FSDP_CKPT_MAX_NDIM], count[FSDP_CKPT_MAX_NDIM];
    uint32_t tensor = loader->tensors[record->entry];
    uint32_t ndim;
    bool seen;

    (void)pickle_u64s(meta->pickle, chunk->offsets, start, FSDP_CKPT_MAX_NDIM,
                      &ndim);
    (void)pickle_u64s(meta->pickle, chunk->sizes, count, FSDP_CKPT_MAX_NDIM,
                      &ndim);
    if (view->dtype != found->in.entry->dtype || view->ndim != ndim ||
        memcmp(view->dims, count, ndim * sizeof(*count)) != 0) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: its archive at byte %" PRIu64
                              " holds another shape or type than " DCP_METADATA
                              " says",
                              found->in.what, record->offset);
    }

    if (loader->is_local) {
        FSDP_TRY(
            is_seen(loader,
                    &(seen_t){chunk->first, view->numel, tensor,
                              found->storage.crc32, found->storage.has_crc},
                    &found->in, &seen, err));
        if (seen) {
            return FSDP_OK;
        }
    }
    return add_view(loader, &found->in, view, &found->storage, tensor, start,
                    err);
}

/* --- Values --------------------------------------------------------------- */

typedef struct {
    loader_t *loader;
    dcp_in_t *archive;
} inner_t;

/* A tensor inside a value is one of its own, by its path. */
static fsdp_status_t add_inner(const char *name, pickle_ref_t ref, void *arg,
                               fsdp_error_t *err)
{
    static const uint64_t start[FSDP_CKPT_MAX_NDIM];
    inner_t *inner = arg;
    loader_t *loader = inner->loader;
    zip_entry_t storage;
    torch_tensor_t view;
    uint64_t tensor;

    if (find_added(loader, name, &(uint32_t){0})) {
        return FSDP_OK; /* of a value that another rank has too */
    }
    FSDP_TRY(dcp_in_view(inner->archive, ref, &view, &storage, err));
    FSDP_TRY(catalog_add_tensor(loader->cat, name, view.dtype, view.ndim,
                                view.dims, NULL, &tensor, err));
    return add_view(loader, inner->archive, &view, &storage, (uint32_t)tensor,
                    start, err);
}

/* The same name in the metadata of another rank, or in another chunk of what
 * is not read.
 * @return NULL: none. */
static const char *find_value(const loader_t *loader, const dcp_entry_t *entry)
{
    const catalog_t *cat = loader->cat;
    uint64_t num = (loader->is_local || entry->is_unread) ? cat->num_values : 0;

    for (uint64_t i = 0; i < num; i++) {
        if (strcmp(cat->values[i].name, entry->name) == 0) {
            return cat->values[i].json;
        }
    }

    return NULL;
}

/* Values of ranks that saved on their own: those that differ from the first
 * rank's get the rank's number. */
static fsdp_status_t add_value(loader_t *loader, dcp_in_t *archive,
                               fsdp_error_t *err)
{
    inner_t inner = {.loader = loader, .archive = archive};
    const char *name = archive->entry->name, *before;
    pickle_ref_t root = pickle_root(archive->pickle);
    fsdp_status_t status;
    char *text, *unique;

    if (torch_is_tensor(archive->pickle, root)) {
        status = add_inner(name, root, &inner, err);
        if (status != FSDP_ERR_UNSUPPORTED) {
            return status;
        }
    }
    FSDP_TRY(torch_value_json(archive->pickle, root, name, add_inner, &inner,
                              &text, err));
    before = find_value(loader, archive->entry);
    if (before == NULL) {
        status = catalog_add_value(loader->cat, name, text, err);
    } else if (strcmp(before, text) == 0) {
        status = FSDP_OK;
    } else {
        unique = io_path("%s@%" PRIu64, name, loader->rank);
        status = (unique != NULL)
                     ? catalog_add_value(loader->cat, unique, text, err)
                     : no_memory(loader, err);
        free(unique);
    }
    free(text);
    return status;
}

/* --- Records -------------------------------------------------------------- */

/* Records from @a first on are in the same file: make room for their
 * checksums. */
static fsdp_status_t begin_file(loader_t *loader, uint64_t first,
                                fsdp_error_t *err)
{
    const dcp_meta_t *meta = loader->meta;
    uint32_t file = meta->records[first].file;
    uint64_t num = 0;

    while (first + num < meta->num_records &&
           meta->records[first + num].file == file) {
        num++;
    }
    FSDP_TRY(catalog_add_crcs(loader->cat, loader->files[file], num, err));
    loader->next_crc = loader->cat->files[loader->files[file]].crc_first;
    loader->end_crc = loader->next_crc + (uint32_t)num;
    return FSDP_OK;
}

static fsdp_status_t load_record(loader_t *loader, dcp_reader_t *reader,
                                 uint64_t index, dcp_found_t *found,
                                 fsdp_error_t *err)
{
    const dcp_record_t *record = &loader->meta->records[index];
    fsdp_status_t status;

    if (index == 0 || record[-1].file != record->file) {
        FSDP_TRY(begin_file(loader, index, err));
    }
    if (record->chunk != DCP_NONE) {
        if (!found->good) {
            FSDP_TRY(dcp_find(reader, record, found, err));
        }
        return add_chunk(loader, found, err);
    }

    status = dcp_in_open(reader, record, &found->in, err);
    if (status == FSDP_OK) {
        status = add_value(loader, &found->in, err);
    }
    dcp_in_close(&found->in);
    return status;
}

/* A file is damaged; or it is another one. */
static fsdp_status_t blame(const loader_t *loader, uint32_t file,
                           fsdp_error_t *err)
{
    const catalog_t *cat = loader->cat;
    char *path = catalog_file_path(cat, loader->files[file]);
    const char *twin = NULL;
    int fd;

    if (path != NULL && io_open(path, O_RDONLY, 0, &fd, NULL) == FSDP_OK) {
        twin = dcp_twin(loader->meta, file, fd,
                        cat->files[loader->files[file]].size);
        close(fd);
    }
    if (twin != NULL) {
        fsdp_error_set(err, FSDP_ERR_CORRUPT, FORMAT_EXCHANGED, path, twin);
    }
    free(path);
    return FSDP_ERR_CORRUPT;
}

static fsdp_status_t load_records(loader_t *loader, fsdp_error_t *err)
{
    const dcp_meta_t *meta = loader->meta;
    uint64_t most = (meta->num_records < BATCH) ? meta->num_records : BATCH;
    dcp_found_t *found = calloc(most + 1, sizeof(*found));
    dcp_reader_t *reader = dcp_reader_create(loader->cat, meta, loader->files);
    fsdp_status_t status =
        (found != NULL && reader != NULL) ? FSDP_OK : no_memory(loader, err);

    for (uint64_t i = 0; i < meta->num_records && status == FSDP_OK; i++) {
        uint64_t left = meta->num_records - i;

        if (i % BATCH == 0) {
            dcp_find_all(reader, i, (left < BATCH) ? left : BATCH, found);
        }
        status = load_record(loader, reader, i, &found[i % BATCH], err);
        if (status == FSDP_ERR_CORRUPT) {
            status = blame(loader, meta->records[i].file, err);
        }
    }
    dcp_reader_destroy(reader);
    free(found);
    return status;
}

/* --- Tensors and files ---------------------------------------------------- */

static fsdp_status_t add_tensor(loader_t *loader, uint64_t index,
                                fsdp_error_t *err)
{
    const dcp_entry_t *entry = &loader->meta->entries[index];
    const uint64_t *dims = loader->meta->dims + entry->dims_first;
    const catalog_tensor_t *tensor;
    uint64_t added;

    if (find_added(loader, entry->name, &loader->tensors[index])) {
        tensor = &loader->cat->tensors[loader->tensors[index]];
        if (tensor->dtype != entry->dtype || tensor->ndim != entry->ndim ||
            memcmp(loader->cat->dims + tensor->dims_first, dims,
                   entry->ndim * sizeof(*dims)) != 0) {
            return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                  "%s: tensor %s has another shape or type "
                                  "than in the metadata of other ranks",
                                  loader->meta->path, entry->name);
        }
        return FSDP_OK;
    }

    FSDP_TRY(catalog_add_tensor(loader->cat, entry->name, entry->dtype,
                                entry->ndim, dims, NULL, &added, err));
    loader->tensors[index] = (uint32_t)added;
    return FSDP_OK;
}

static fsdp_status_t add_file(loader_t *loader, uint32_t index,
                              fsdp_error_t *err)
{
    catalog_t *cat = loader->cat;
    char *path = io_path("%s%s", loader->sub, loader->meta->files[index]);
    char *full = io_path("%s/%s", cat->root, (path != NULL) ? path : "");
    fsdp_status_t status = FSDP_OK;
    struct stat st;

    if (path == NULL || full == NULL) {
        status = no_memory(loader, err);
    } else if (stat(full, &st) != 0) {
        status = fsdp_error_set(
            err, (errno == ENOENT) ? FSDP_ERR_CORRUPT : FSDP_ERR_IO,
            "%s: a file of the checkpoint is missing: %m", full);
    } else {
        status = catalog_add_file(cat, path, (uint64_t)st.st_size,
                                  &loader->files[index], err);
    }
    free(path);
    free(full);
    return status;
}

static fsdp_status_t load_meta(loader_t *loader, const dcp_meta_t *meta,
                               fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;

    loader->meta = meta;
    loader->tensors = calloc(meta->num_entries + 1, sizeof(*loader->tensors));
    loader->files = calloc(meta->num_files + 1ul, sizeof(*loader->files));
    if (loader->tensors == NULL || loader->files == NULL) {
        status = no_memory(loader, err);
    }
    for (uint64_t i = 0; i < meta->num_entries && status == FSDP_OK; i++) {
        loader->tensors[i] = CATALOG_NONE;
        if (meta->entries[i].owner != DCP_NONE) {
            status = catalog_add_alias(
                loader->cat, meta->entries[i].name,
                meta->entries[meta->entries[i].owner].name, err);
        } else if (!meta->entries[i].is_bytes) {
            status = add_tensor(loader, i, err);
        }
    }
    for (uint32_t f = 0; f < meta->num_files && status == FSDP_OK; f++) {
        status = add_file(loader, f, err);
    }
    if (status == FSDP_OK) {
        status = load_records(loader, err);
    }
    if (status == FSDP_OK &&
        !dcp_paths_note(meta->pickle, meta->paths, loader->nesting)) {
        status = no_memory(loader, err);
    }
    free(loader->tensors);
    free(loader->files);
    return status;
}

/* --- Directories ---------------------------------------------------------- */

/* "__R.metadata": R, or -1. */
static long long rank_of(const char *name)
{
    char *end;
    long long rank;

    if (strncmp(name, "__", 2) != 0 || !isdigit((unsigned char)name[2])) {
        return -1;
    }
    errno = 0;
    rank = strtoll(name + 2, &end, 10);
    return (errno == 0 && strcmp(end, DCP_METADATA) == 0 && rank <= INT32_MAX)
               ? rank
               : -1;
}

static int is_local(const struct dirent *entry)
{
    return rank_of(entry->d_name) >= 0;
}

static int by_rank(const struct dirent **a, const struct dirent **b)
{
    long long left = rank_of((*a)->d_name), right = rank_of((*b)->d_name);

    return (left > right) - (left < right);
}

/* A directory of DCP itself: it has .metadata, or __R.metadata of ranks that
 * saved without collectives. */
static bool is_dcp(const char *dir)
{
    return dir_has(dir, DCP_METADATA, S_IFREG) || dir_count(dir, is_local) > 0;
}

/* One metadata file of the directory. */
static fsdp_status_t load_file(loader_t *loader, const char *name,
                               fsdp_error_t *err)
{
    char *path = io_path("%s/%s%s", loader->cat->root, loader->sub, name);
    dcp_meta_t meta = {0};
    fsdp_status_t status;
    struct stat st;
    int fd;

    if (path == NULL) {
        return no_memory(loader, err);
    }

    FSDP_TRY_GOTO(io_open(path, O_RDONLY, 0, &fd, err), err_free);
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        status = fsdp_error_set(err, FSDP_ERR_CORRUPT, "%s: not a file", path);
    } else {
        status = dcp_meta_read(fd, (uint64_t)st.st_size, path, &meta, err);
    }
    close(fd);
    if (status == FSDP_OK) {
        status = load_meta(loader, &meta, err);
    }
    dcp_meta_free(&meta);
err_free:
    free(path);
    return status;
}

/* The ranks' own metadata: a rank that is missing would not be noticed by its
 * tensors if they were replicas only, so the numbers must be whole. */
static fsdp_status_t load_ranks(loader_t *loader, const char *dir,
                                fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;
    struct dirent **names;
    int num = scandir(dir, &names, is_local, by_rank);

    if (num < 0) {
        return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot read: %m", dir);
    }

    loader->is_local = true;
    for (int i = 0; i < num && status == FSDP_OK; i++) {
        loader->rank = (uint64_t)rank_of(names[i]->d_name);
        if (loader->rank != (uint64_t)i) {
            status =
                fsdp_error_set(err, FSDP_ERR_CORRUPT,
                               "%s: __%d" DCP_METADATA " is missing", dir, i);
        } else {
            status = load_file(loader, names[i]->d_name, err);
        }
        if (status == FSDP_OK) {
            status = sort_seen(loader, err);
        }
    }
    dir_free(names, num);
    free(loader->seen);
    free(loader->order);
    return status;
}

/* What directories before this one have noted of containers. */
static json_t *noted(const catalog_t *cat)
{
    json_t *meta = json_text_parse(cat->meta);
    json_t *nesting = json_incref(json_object_get(meta, NEST_KEY));

    json_decref(meta);
    return (nesting != NULL) ? nesting : json_object();
}

fsdp_status_t dcp_load(catalog_t *cat, const char *sub, fsdp_error_t *err)
{
    loader_t loader = {.cat = cat};
    char *dir = io_path("%s/%s", cat->root, sub);
    char *prefix = (sub[0] != '\0') ? io_path("%s/", sub) : strdup("");
    fsdp_status_t status;

    if (dir == NULL || prefix == NULL) {
        free(dir);
        free(prefix);
        return no_memory(&loader, err);
    }

    cat->crc_zip = true;
    loader.sub = prefix;
    loader.nesting = noted(cat);
    status = dir_has(dir, DCP_METADATA, S_IFREG)
                 ? load_file(&loader, DCP_METADATA, err)
                 : load_ranks(&loader, dir, err);
    if (status == FSDP_OK) {
        status = nest_keep(cat, loader.nesting, err);
    }
    json_decref(loader.nesting);
    free(dir);
    free(prefix);
    return status;
}

/* --- The format ----------------------------------------------------------- */

/* Directories that training programs put the checkpoints of model and
 * optimizer in, each one of its own. */
static int is_part(const struct dirent *entry)
{
    static const char *const names[] = {"pytorch_model_fsdp", "optimizer",
                                        "model"};

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        size_t size = strlen(names[i]);
        const char *rest = entry->d_name + size;

        if (strncmp(entry->d_name, names[i], size) == 0 &&
            (*rest == '\0' ||
             (*rest == '_' && isdigit((unsigned char)rest[1])))) {
            return 1;
        }
    }

    return 0;
}

static bool is_dcp_below(const char *dir, const char *name)
{
    char *path = io_path("%s/%s", dir, name);
    bool is = path != NULL && is_dcp(path);

    free(path);
    return is;
}

/* The directory itself, or its parts. */
static bool probe(const format_look_t *look)
{
    const char *name = io_base(look->path);
    struct dirent **names;
    bool found = false;
    int num;

    if (!look->is_dir) {
        return strcmp(name, DCP_METADATA) == 0 || rank_of(name) >= 0;
    }
    if (is_dcp(look->path)) {
        return true;
    }

    num = scandir(look->path, &names, is_part, alphasort);
    for (int i = 0; i < num; i++) {
        found |= is_dcp_below(look->path, names[i]->d_name);
    }
    dir_free(names, num);
    return found;
}

static fsdp_status_t load_parts(catalog_t *cat, fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;
    struct dirent **names;
    int num = scandir(cat->root, &names, is_part, alphasort);

    for (int i = 0; i < num && status == FSDP_OK; i++) {
        if (is_dcp_below(cat->root, names[i]->d_name)) {
            status = dcp_load(cat, names[i]->d_name, err);
        }
    }
    dir_free(names, num);
    return status;
}

static fsdp_status_t dcp_open(const char *path, catalog_t *cat,
                              fsdp_error_t *err)
{
    struct stat st;
    char *dir;

    if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode)) {
        dir = io_parent(path);
        cat->root = (dir != NULL) ? catalog_strdup(cat, dir) : NULL;
        free(dir);
        if (cat->root == NULL) {
            cat->root = ".";
            return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                                  path);
        }
    }

    if (is_dcp(cat->root)) {
        FSDP_TRY(dcp_load(cat, "", err));
    } else {
        FSDP_TRY(load_parts(cat, err));
    }
    return catalog_seal(cat, CATALOG_CHECK_ALL, err);
}

const format_t format_dcp = {
    .id = FSDP_CKPT_DCP,
    .name = "dcp",
    .what = "a PyTorch distributed checkpoint",
    .probe = probe,
    .open = dcp_open,
    .extra = dcp_extra,
    .is_dir = true,
    .has_crcs = true,
    .has_boxes = true,
    .keeps = FSDP_CKPT_KEEPS_RANKS | FSDP_CKPT_KEEPS_ROWS,
    .create = dcp_create,
    .finish = dcp_finish,
};
