#include "config.h"

#include "ckpt/format/hdf5_recover.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/format/hdf5_apart.h"
#include "ckpt/format/hdf5_name.h"
#include "ckpt/format/hdf5_table.h"
#include "ckpt/format/hdf5_util.h"
#include "ckpt/format/manifest.h"
#include "lib/util/check.h"
#include "lib/util/io.h"

/* A tensor that some file has a row of. */
typedef struct {
    char *name;
    const hdf5_tensor_row_t *row; /* of the first file that has it */
    const uint64_t *dims;
    size_t next;   /* tensor behind it, in the order of the writer */
    uint64_t added; /* in the catalog */
} seen_t;

/* What a file says of itself. */
typedef struct {
    hdf5_rows_t rows;
    size_t *seen; /* of each row of its tensors */
} shard_t;

typedef struct {
    catalog_t *cat;
    const bool *skip;
    shard_t *shards; /* of each file */
    seen_t *seen;    /* the first is no tensor but the head of the list */
    size_t num, max;
    json_t *by_name; /* name → index into seen */
    fsdp_error_t *err;
} recover_t;

static fsdp_status_t no_memory(const recover_t *recover)
{
    return fsdp_error_set(recover->err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                          recover->cat->path);
}

static fsdp_status_t bad(const recover_t *recover, uint32_t file,
                         const char *what)
{
    return fsdp_error_set(recover->err, FSDP_ERR_CORRUPT, "%s/%s: %s",
                          recover->cat->root, recover->cat->files[file].path,
                          what);
}

/* --- Tables --------------------------------------------------------------- */

static fsdp_status_t read_rows(recover_t *recover, uint32_t number, hid_t file)
{
    catalog_file_t *entry = &recover->cat->files[number];
    hdf5_rows_t *rows = &recover->shards[number].rows;
    uint64_t size = entry->size, blocks, format = UINT64_MAX;

    if (!hdf5_get_number(file, "file", &format) || format != number) {
        return bad(recover, number, "is another one of the files, by its own "
                                    "number");
    }
    if (!hdf5_read_table(file, "tensors", sizeof(*rows->tensors), size,
                         (void **)&rows->tensors, &rows->num_tensors, NULL) ||
        !hdf5_read_table(file, "pieces", sizeof(*rows->pieces), size,
                         (void **)&rows->pieces, &rows->num_pieces, NULL) ||
        !hdf5_read_table(file, "names", 1, size, (void **)&rows->names,
                         &rows->num_names, NULL) ||
        !hdf5_read_table(file, "dims", sizeof(*rows->dims), size,
                         (void **)&rows->dims, &rows->num_dims, NULL) ||
        !hdf5_read_table(file, "crc32c", sizeof(uint32_t), size, NULL, &blocks,
                         &entry->table)) {
        return bad(recover, number, "its tables cannot be read");
    }

    if (entry->crc_count == 0) { /* the manifest did not say */
        return catalog_add_crcs(recover->cat, number, blocks, recover->err);
    }
    return (entry->crc_count == blocks)
               ? FSDP_OK
               : bad(recover, number,
                     "has another number of checksums than " MANIFEST_NAME
                     " says");
}

/* One of the files. */
typedef struct {
    recover_t *recover;
    uint32_t number;
    const char *path;
} reading_t;

/* Caller has entered HDF5. */
static fsdp_status_t read_file(void *arg, fsdp_error_t *err)
{
    const reading_t *reading = arg;
    hdf5_reader_t reader;

    reading->recover->err = err;
    FSDP_TRY(hdf5_open(&reader, reading->path, true, err));
    return hdf5_close(&reader,
                      read_rows(reading->recover, reading->number, reader.file),
                      err);
}

static fsdp_status_t read_shard(recover_t *recover, uint32_t number)
{
    char *path = catalog_file_path(recover->cat, number);
    reading_t reading = {recover, number, path};
    fsdp_status_t status =
        (path != NULL)
            ? hdf5_read_safely(path, read_file, &reading, recover->err)
            : no_memory(recover);

    free(path);
    return status;
}

/* The checksums of blocks, of which none may be unknown. */
static fsdp_status_t read_blocks(recover_t *recover, uint32_t number)
{
    catalog_t *cat = recover->cat;
    const catalog_file_t *file = &cat->files[number];
    char *path = catalog_file_path(cat, number);
    fsdp_status_t status;
    int fd;

    if (path == NULL) {
        return no_memory(recover);
    }

    status = io_open(path, O_RDONLY, 0, &fd, recover->err);
    if (status == FSDP_OK) {
        status = io_pread(fd, cat->crcs + file->crc_first,
                          file->crc_count * sizeof(*cat->crcs), file->table,
                          path, recover->err);
        close(fd);
    }
    free(path);
    for (uint32_t i = 0; i < file->crc_count && status == FSDP_OK; i++) {
        if (cat->crcs[file->crc_first + i] == 0) {
            status = bad(recover, number,
                         "not all of its data was written: a block has no "
                         "checksum");
        }
    }

    return status;
}

/* --- The order of tensors ------------------------------------------------- */

/* Find or add a tensor, behind the one that comes before it in a file. */
static fsdp_status_t see(recover_t *recover, uint32_t file, uint64_t number,
                         size_t before, size_t *index_p)
{
    const hdf5_rows_t *rows = &recover->shards[file].rows;
    const hdf5_tensor_row_t *row = &rows->tensors[number];
    const uint64_t *dims = rows->dims + row->dim_off;
    const seen_t *other;
    json_t *known;
    char *name;

    name = strndup(rows->names + row->name_off, row->name_len);
    if (name == NULL || strlen(name) != row->name_len) {
        free(name);
        return bad(recover, file, "has a tensor whose name makes no sense");
    }

    known = json_object_get(recover->by_name, name);
    if (known != NULL) {
        *index_p = (size_t)json_integer_value(known);
        other = &recover->seen[*index_p];
        free(name);
        return (other->row->dtype == row->dtype &&
                other->row->rank == row->rank &&
                memcmp(other->dims, dims, row->rank * sizeof(*dims)) == 0)
                   ? FSDP_OK
                   : bad(recover, file,
                         "has a tensor in another shape or type than a file "
                         "before it");
    }

    if (recover->num == recover->max) {
        size_t max = 2 * recover->max;
        seen_t *larger = reallocarray(recover->seen, max, sizeof(*larger));

        if (larger == NULL) {
            free(name);
            return no_memory(recover);
        }
        recover->seen = larger;
        recover->max = max;
    }
    if (json_object_set_new_nocheck(recover->by_name, name,
                                    json_integer((json_int_t)recover->num)) !=
        0) {
        free(name);
        return no_memory(recover);
    }
    recover->seen[recover->num] = (seen_t){.name = name,
                                           .row = row,
                                           .dims = dims,
                                           .next = recover->seen[before].next};
    recover->seen[before].next = recover->num;
    *index_p = recover->num++;
    return FSDP_OK;
}

static fsdp_status_t see_tensors(recover_t *recover, uint32_t file)
{
    shard_t *shard = &recover->shards[file];
    uint64_t next_piece = 0;
    size_t before = 0;

    shard->seen = calloc(shard->rows.num_tensors + 1, sizeof(*shard->seen));
    if (shard->seen == NULL) {
        return no_memory(recover);
    }

    for (uint64_t i = 0; i < shard->rows.num_tensors; i++) {
        if (!hdf5_row_fits(&shard->rows, &shard->rows.tensors[i], next_piece)) {
            return bad(recover, file, "its table of tensors makes no sense");
        }
        FSDP_TRY(see(recover, file, i, before, &shard->seen[i]));
        before = shard->seen[i];
        next_piece += shard->rows.tensors[i].piece_count;
    }

    return FSDP_OK;
}

/* --- The catalog ---------------------------------------------------------- */

static fsdp_status_t add_tensors(recover_t *recover, hdf5_unit_f unit,
                                 const void *arg)
{
    for (size_t i = recover->seen[0].next; i != 0; i = recover->seen[i].next) {
        seen_t *seen = &recover->seen[i];

        FSDP_TRY(catalog_add_tensor(
            recover->cat, seen->name, (fsdp_dtype_t)seen->row->dtype,
            seen->row->rank, seen->dims,
            (unit != NULL) ? unit(seen->name, arg) : NULL, &seen->added,
            recover->err));
    }

    return FSDP_OK;
}

static fsdp_status_t add_pieces(recover_t *recover, uint32_t file)
{
    const shard_t *shard = &recover->shards[file];
    const catalog_file_t *entry = &recover->cat->files[file];

    for (uint64_t p = 0; p < shard->rows.num_pieces; p++) {
        const hdf5_piece_row_t *row = &shard->rows.pieces[p];
        catalog_piece_t piece = {.first = row->start,
                                 .count = row->count,
                                 .offset = row->offset,
                                 .file = file,
                                 .rank = row->path};
        const seen_t *seen;
        uint64_t bytes;

        if (row->file != file || row->tensor >= shard->rows.num_tensors) {
            return bad(recover, file, "its table of pieces makes no sense");
        }
        seen = &recover->seen[shard->seen[row->tensor]];
        if (!dtype_bytes((fsdp_dtype_t)seen->row->dtype, row->count, &bytes) ||
            row->crc_first > entry->crc_count ||
            catalog_blocks(bytes) > entry->crc_count - row->crc_first) {
            return bad(recover, file, "its table of pieces makes no sense");
        }
        piece.tensor = (uint32_t)seen->added;
        piece.crc_first = entry->crc_first + row->crc_first;
        FSDP_TRY(catalog_add_piece(recover->cat, &piece, recover->err));
    }

    return FSDP_OK;
}

static fsdp_status_t read_all(recover_t *recover)
{
    for (uint32_t f = 0; f < recover->cat->num_files; f++) {
        if (!recover->skip[f]) {
            FSDP_TRY(read_shard(recover, f));
        }
    }

    return FSDP_OK;
}

static fsdp_status_t fill(recover_t *recover, hdf5_unit_f unit, const void *arg)
{
    uint32_t num = recover->cat->num_files;

    FSDP_TRY(read_all(recover));
    for (uint32_t f = 0; f < num; f++) {
        if (!recover->skip[f]) {
            FSDP_TRY(read_blocks(recover, f));
            FSDP_TRY(see_tensors(recover, f));
        }
    }
    FSDP_TRY(add_tensors(recover, unit, arg));
    for (uint32_t f = 0; f < num; f++) {
        if (!recover->skip[f]) {
            FSDP_TRY(add_pieces(recover, f));
        }
    }

    return FSDP_OK;
}

fsdp_status_t hdf5_recover(catalog_t *cat, const bool *skip, hdf5_unit_f unit,
                           const void *arg, fsdp_error_t *err)
{
    recover_t recover = {
        .cat = cat, .skip = skip, .num = 1, .max = 64, .err = err};
    fsdp_status_t status;

    recover.shards = calloc(cat->num_files + 1ul, sizeof(*recover.shards));
    recover.seen = calloc(recover.max, sizeof(*recover.seen));
    recover.by_name = json_object();
    status = (recover.shards != NULL && recover.seen != NULL &&
              recover.by_name != NULL)
                 ? fill(&recover, unit, arg)
                 : no_memory(&recover);

    for (uint32_t f = 0; recover.shards != NULL && f < cat->num_files; f++) {
        hdf5_rows_free(&recover.shards[f].rows);
        free(recover.shards[f].seen);
    }
    for (size_t i = 1; recover.seen != NULL && i < recover.num; i++) {
        free(recover.seen[i].name);
    }
    free(recover.shards);
    free(recover.seen);
    json_decref(recover.by_name);
    return status;
}

/* --- Aliases -------------------------------------------------------------- */

typedef struct {
    const char *path;
    catalog_t *cat;
    fsdp_status_t status;
    fsdp_error_t *err;
} links_t;

static fsdp_status_t add_link(links_t *links, hid_t group, const char *link,
                              size_t size)
{
    char *target = calloc(1, size + 1), *name = NULL, *owner = NULL;
    fsdp_status_t status;

    if (target == NULL ||
        H5Lget_val(group, link, target, size, H5P_DEFAULT) < 0) {
        free(target);
        return hdf5_error(links->err, FSDP_ERR_CORRUPT, links->path,
                          "cannot read the link /%.150s", link);
    }

    name = hdf5_path_name(link);
    owner = hdf5_path_name(target + (target[0] == '/'));
    status = (name != NULL && owner != NULL)
                 ? catalog_add_alias(links->cat, name, owner, links->err)
                 : fsdp_error_set(links->err, FSDP_ERR_NO_MEMORY,
                                  "%s: no memory", links->path);
    free(name);
    free(owner);
    free(target);
    return status;
}

static herr_t visit(hid_t group, const char *link, const H5L_info_t *info,
                    void *arg)
{
    links_t *links = arg;

    if (info->type == H5L_TYPE_SOFT) {
        links->status = add_link(links, group, link, info->u.val_size);
    }
    return (links->status == FSDP_OK) ? 0 : 1;
}

/* Caller has entered HDF5. */
static fsdp_status_t read_links(void *arg, fsdp_error_t *err)
{
    links_t *links = arg;
    hdf5_reader_t reader;

    links->err = err;
    FSDP_TRY(hdf5_open(&reader, links->path, false, err));
    if (H5Lvisit(reader.file, H5_INDEX_NAME, H5_ITER_NATIVE, visit, links) <
        0) {
        links->status = hdf5_error(err, FSDP_ERR_CORRUPT, links->path,
                                   "HDF5 cannot list its links");
    }
    return hdf5_close(&reader, links->status, err);
}

fsdp_status_t hdf5_recover_aliases(const char *path, catalog_t *cat,
                                   fsdp_error_t *err)
{
    links_t links = {.path = path, .cat = cat};

    return hdf5_read_safely(path, read_links, &links, err);
}
