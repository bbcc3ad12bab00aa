/*
 * Writing PyTorch's distributed checkpoints: a file for each rank, its chunks
 * one archive after the other; then the values, in the first file; `.metadata`
 * last.
 *
 * Archives have the CRC-32 of their data in front of it and behind it: room is
 * left for both, and they are written when the data is.
 */
#include "config.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/format/dcp.h"
#include "ckpt/format/dcp_archive.h"
#include "ckpt/format/dcp_paths.h"
#include "ckpt/pickle_write.h"
#include "ckpt/target.h"
#include "lib/util/check.h"
#include "lib/util/io.h"

#define META       "torch.distributed.checkpoint.metadata"
#define FILESYSTEM "torch.distributed.checkpoint.filesystem"

/* --- Chunks --------------------------------------------------------------- */

bool dcp_chunk(const catalog_t *cat, const catalog_piece_t *piece,
               uint64_t *start, uint64_t *count)
{
    const catalog_tensor_t *tensor = &cat->tensors[piece->tensor];
    const uint64_t *dims = cat->dims + tensor->dims_first;
    catalog_box_t box;
    uint64_t row;

    if (tensor->ndim == 0) {
        return true;
    }
    if (catalog_box(cat, piece, &box)) {
        memcpy(start, box.start, tensor->ndim * sizeof(*start));
        memcpy(count, box.count, tensor->ndim * sizeof(*count));
        return true;
    }

    row = tensor->numel / dims[0];
    memset(start, 0, tensor->ndim * sizeof(*start));
    memcpy(count, dims, tensor->ndim * sizeof(*count));
    start[0] = piece->first / row;
    count[0] = piece->count / row;
    return piece->first % row == 0 && piece->count % row == 0;
}

static fsdp_status_t make_archive(const catalog_t *cat,
                                  const catalog_piece_t *piece,
                                  dcp_archive_t *archive_p, fsdp_error_t *err)
{
    const catalog_tensor_t *tensor = &cat->tensors[piece->tensor];
    uint64_t start[FSDP_CKPT_MAX_NDIM], count[FSDP_CKPT_MAX_NDIM];
    uint32_t crc32 =
        (piece->crc_first != CATALOG_NONE) ? cat->crcs[piece->crc_first] : 0;

    if (!dcp_chunk(cat, piece, start, count)) {
        return fsdp_error_set(err, FSDP_ERR_BAD_STATE,
                              "tensor %s: a piece is neither rows nor a box",
                              tensor->name);
    }

    return dcp_archive_tensor(tensor, count, catalog_piece_bytes(cat, piece),
                              crc32, archive_p, err);
}

/* --- Values --------------------------------------------------------------- */

/* Say where the data of the tensors in a value is, if its archive begins at
 * @a *at; that is moved to its end. */
static void place_value(catalog_t *cat, const dcp_value_t *archive,
                        uint64_t *at)
{
    for (size_t i = 0; i < archive->num; i++) {
        const dcp_part_t *part = &archive->parts[i];
        const catalog_tensor_t *tensor;

        *at += part->size;
        if (part->tensor != CATALOG_NONE) {
            tensor = &cat->tensors[part->tensor];
            if (tensor->piece_count > 0) {
                cat->pieces[tensor->piece_first].offset = *at;
            }
            *at += tensor->bytes;
        }
    }
}

static fsdp_status_t place_values(catalog_t *cat, uint64_t *at,
                                  fsdp_error_t *err)
{
    for (uint64_t v = 0; v < cat->num_values; v++) {
        dcp_value_t archive;

        FSDP_TRY(dcp_archive_value(cat, v, &archive, err));
        place_value(cat, &archive, at);
        dcp_value_free(&archive);
    }

    return FSDP_OK;
}

static fsdp_status_t place_chunks(catalog_t *cat, const uint64_t *pieces,
                                  uint64_t num, const bool *inner, uint64_t *at,
                                  fsdp_error_t *err)
{
    for (uint64_t i = 0; i < num; i++) {
        catalog_piece_t *piece = &cat->pieces[pieces[i]];
        dcp_archive_t archive;

        if (inner != NULL && inner[piece->tensor]) {
            continue;
        }
        FSDP_TRY(make_archive(cat, piece, &archive, err));
        piece->offset = *at + archive.head_size;
        *at =
            piece->offset + catalog_piece_bytes(cat, piece) + archive.tail_size;
        dcp_archive_free(&archive);
    }

    return FSDP_OK;
}

/* The first file has all values, and the tensors in them. */
static fsdp_status_t place_first(catalog_t *cat, const uint64_t *pieces,
                                 uint64_t num, uint64_t *at, fsdp_error_t *err)
{
    fsdp_status_t status;
    bool *inner;

    FSDP_TRY(dcp_find_inner(cat, &inner, err));
    status = place_chunks(cat, pieces, num, inner, at, err);
    free(inner);
    return (status == FSDP_OK) ? place_values(cat, at, err) : status;
}

fsdp_status_t dcp_create(catalog_t *cat, uint32_t file, const uint64_t *pieces,
                         uint64_t num, const char *path, fsdp_error_t *err)
{
    uint64_t at = 0;

    FSDP_TRY((file == 0) ? place_first(cat, pieces, num, &at, err)
                         : place_chunks(cat, pieces, num, NULL, &at, err));
    cat->files[file].size = at;
    cat->files[file].table = 0;

    return io_make_file(path, at, err);
}

/* --- Finishing ------------------------------------------------------------ */

/* Where a record lies. */
typedef struct {
    uint64_t at, size;
} extent_t;

typedef struct {
    const catalog_t *cat;
    const char *dir;
    bool *inner; /* tensors that are in values */
    target_lists_t lists;
    extent_t *pieces;
    extent_t *values;
    uint64_t end; /* of what was written to the file */
} finish_t;

static fsdp_status_t no_memory(const finish_t *finish, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                          finish->dir);
}

static fsdp_status_t write_archive(finish_t *finish, uint64_t index, int fd,
                                   const char *path, fsdp_error_t *err)
{
    const catalog_t *cat = finish->cat;
    const catalog_piece_t *piece = &cat->pieces[index];
    uint64_t bytes = catalog_piece_bytes(cat, piece);
    dcp_archive_t archive;
    fsdp_status_t status;

    FSDP_TRY(make_archive(cat, piece, &archive, err));
    finish->pieces[index] =
        (extent_t){piece->offset - archive.head_size,
                   archive.head_size + bytes + archive.tail_size};
    status = io_pwrite(fd, archive.head, archive.head_size,
                       piece->offset - archive.head_size, path, err);
    if (status == FSDP_OK) {
        status = io_pwrite(fd, archive.tail, archive.tail_size,
                           piece->offset + bytes, path, err);
    }
    finish->end = piece->offset + bytes + archive.tail_size;
    dcp_archive_free(&archive);
    return status;
}

static fsdp_status_t write_value(finish_t *finish, uint64_t index, int fd,
                                 const char *path, fsdp_error_t *err)
{
    const catalog_t *cat = finish->cat;
    fsdp_status_t status = FSDP_OK;
    uint64_t at = finish->end;
    dcp_value_t archive;

    FSDP_TRY(dcp_archive_value(cat, index, &archive, err));
    finish->values[index] = (extent_t){at, archive.size};
    for (size_t i = 0; i < archive.num && status == FSDP_OK; i++) {
        const dcp_part_t *part = &archive.parts[i];

        status = io_pwrite(fd, part->data, part->size, at, path, err);
        at += part->size;
        if (part->tensor != CATALOG_NONE) {
            at += cat->tensors[part->tensor].bytes;
        }
    }
    finish->end = at;
    dcp_value_free(&archive);
    return status;
}

/* Behind the last of the chunks values begin. */
static fsdp_status_t write_chunks(finish_t *finish, uint32_t file, int fd,
                                  const char *path, fsdp_error_t *err)
{
    const catalog_t *cat = finish->cat;
    uint64_t end = 0;

    for (uint64_t i = finish->lists.first[file];
         i < finish->lists.first[file + 1]; i++) {
        uint64_t p = finish->lists.pieces[i];

        if (!finish->inner[cat->pieces[p].tensor]) {
            FSDP_TRY(write_archive(finish, p, fd, path, err));
            end = (finish->end > end) ? finish->end : end;
        }
    }

    finish->end = end;
    return FSDP_OK;
}

static fsdp_status_t finish_file(finish_t *finish, uint32_t file,
                                 fsdp_error_t *err)
{
    const catalog_t *cat = finish->cat;
    char *path = io_path("%s/%s", finish->dir, cat->files[file].path);
    fsdp_status_t status;
    int fd;

    if (path == NULL) {
        return no_memory(finish, err);
    }

    status = io_open(path, O_RDWR, 0, &fd, err);
    if (status != FSDP_OK) {
        free(path);
        return status;
    }
    status = write_chunks(finish, file, fd, path, err);
    for (uint64_t v = 0; file == 0 && v < cat->num_values && status == FSDP_OK;
         v++) {
        status = write_value(finish, v, fd, path, err);
    }
    close(fd);
    free(path);
    return status;
}

/* --- .metadata ------------------------------------------------------------ */

static void begin_object(pickle_writer_t *writer, const char *module,
                         const char *name)
{
    pickle_write_class(writer, module, name);
    pickle_write_op(writer, ')');
    pickle_write_op(writer, '\x81');
    pickle_write_op(writer, '}');
    pickle_write_op(writer, '(');
}

static void end_object(pickle_writer_t *writer)
{
    pickle_write_op(writer, 'u');
    pickle_write_op(writer, 'b');
}

static void write_key(pickle_writer_t *writer, uint32_t *memos, unsigned key)
{
    static const char *const keys[] = {
        "properties", "size",   "chunks", "offsets", "sizes",
        "fqn",        "offset", "index",  "length",  "relative_path",
    };

    pickle_write_again(writer, keys[key], &memos[key]);
}

enum {
    KEY_PROPERTIES,
    KEY_SIZE,
    KEY_CHUNKS,
    KEY_OFFSETS,
    KEY_SIZES,
    KEY_FQN,
    KEY_OFFSET,
    KEY_INDEX,
    KEY_LENGTH,
    KEY_PATH,
    NUM_KEYS
};

static void write_size(pickle_writer_t *writer, const uint64_t *values,
                       unsigned num)
{
    pickle_write_class(writer, "torch", "Size");
    pickle_write_ints(writer, values, num);
    pickle_write_op(writer, '\x85');
    pickle_write_op(writer, 'R');
}

static void write_properties(pickle_writer_t *writer, fsdp_dtype_t dtype)
{
    pickle_write_class(writer, META, "TensorProperties");
    pickle_write_op(writer, ')');
    pickle_write_op(writer, '\x81');
    pickle_write_op(writer, '(');
    pickle_write_class(writer, "torch", dcp_dtype_name(dtype));
    pickle_write_class(writer, "torch.serialization", "_get_layout");
    pickle_write_text(writer, "torch.strided");
    pickle_write_op(writer, '\x85');
    pickle_write_op(writer, 'R');
    pickle_write_bool(writer, false);
    pickle_write_class(writer, META, "_MEM_FORMAT_ENCODING");
    pickle_write_int(writer, 0);
    pickle_write_op(writer, '\x85');
    pickle_write_op(writer, 'R');
    pickle_write_bool(writer, false);
    pickle_write_op(writer, 't');
    pickle_write_op(writer, 'b');
}

static void write_chunk(pickle_writer_t *writer, uint32_t *memos, unsigned ndim,
                        const uint64_t *start, const uint64_t *count)
{
    begin_object(writer, META, "ChunkStorageMetadata");
    write_key(writer, memos, KEY_OFFSETS);
    write_size(writer, start, ndim);
    write_key(writer, memos, KEY_SIZES);
    write_size(writer, count, ndim);
    end_object(writer);
}

static void write_tensor(pickle_writer_t *writer, uint32_t *memos,
                         const catalog_t *cat, const catalog_tensor_t *tensor)
{
    uint64_t start[FSDP_CKPT_MAX_NDIM] = {0}, count[FSDP_CKPT_MAX_NDIM];
    const uint64_t *dims = cat->dims + tensor->dims_first;

    begin_object(writer, META, "TensorStorageMetadata");
    write_key(writer, memos, KEY_PROPERTIES);
    write_properties(writer, (fsdp_dtype_t)tensor->dtype);
    write_key(writer, memos, KEY_SIZE);
    write_size(writer, dims, tensor->ndim);
    write_key(writer, memos, KEY_CHUNKS);
    pickle_write_op(writer, ']');
    pickle_write_op(writer, '(');
    for (uint32_t i = 0; i < tensor->piece_count; i++) {
        (void)dcp_chunk(cat, &cat->pieces[tensor->piece_first + i], start,
                        count);
        write_chunk(writer, memos, tensor->ndim, start, count);
    }
    if (tensor->piece_count == 0) {
        write_chunk(writer, memos, tensor->ndim, start, dims);
    }
    pickle_write_op(writer, 'e');
    end_object(writer);
}

static void write_entries(pickle_writer_t *writer, uint32_t *memos,
                          const finish_t *finish)
{
    const catalog_t *cat = finish->cat;

    pickle_write_op(writer, '}');
    pickle_write_op(writer, '(');
    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        if (!finish->inner[t]) {
            pickle_write_text(writer, cat->tensors[t].name);
            write_tensor(writer, memos, cat, &cat->tensors[t]);
        }
    }
    for (uint64_t i = 0; i < cat->num_aliases; i++) {
        pickle_write_text(writer, cat->aliases[i].name);
        write_tensor(writer, memos, cat, &cat->tensors[cat->aliases[i].tensor]);
    }
    for (uint64_t v = 0; v < cat->num_values; v++) {
        pickle_write_text(writer, cat->values[v].name);
        pickle_write_class(writer, META, "BytesStorageMetadata");
        pickle_write_op(writer, ')');
        pickle_write_op(writer, '\x81');
    }
    pickle_write_op(writer, 'u');
}

static void write_place(pickle_writer_t *writer, uint32_t *memos,
                        const char *path, uint32_t *path_memo,
                        const extent_t *extent)
{
    begin_object(writer, FILESYSTEM, "_StorageInfo");
    write_key(writer, memos, KEY_PATH);
    pickle_write_again(writer, path, path_memo);
    write_key(writer, memos, KEY_OFFSET);
    pickle_write_int(writer, (int64_t)extent->at);
    write_key(writer, memos, KEY_LENGTH);
    pickle_write_int(writer, (int64_t)extent->size);
    end_object(writer);
}

/* The records of a tensor, by its name or another one. */
static void write_records(pickle_writer_t *writer, uint32_t *memos,
                          const finish_t *finish, const char *name,
                          const catalog_tensor_t *tensor, uint32_t *path_memos)
{
    uint64_t start[FSDP_CKPT_MAX_NDIM] = {0}, count[FSDP_CKPT_MAX_NDIM];
    const catalog_t *cat = finish->cat;
    uint32_t memo = UINT32_MAX;

    for (uint32_t i = 0; i < tensor->piece_count; i++) {
        const catalog_piece_t *piece = &cat->pieces[tensor->piece_first + i];

        (void)dcp_chunk(cat, piece, start, count);
        begin_object(writer, META, "MetadataIndex");
        write_key(writer, memos, KEY_FQN);
        pickle_write_again(writer, name, &memo);
        write_key(writer, memos, KEY_OFFSET);
        write_size(writer, start, tensor->ndim);
        write_key(writer, memos, KEY_INDEX);
        pickle_write_int(writer, i);
        end_object(writer);
        write_place(writer, memos, cat->files[piece->file].path,
                    &path_memos[piece->file],
                    &finish->pieces[tensor->piece_first + i]);
    }
}

static void write_storage(pickle_writer_t *writer, uint32_t *memos,
                          const finish_t *finish, uint32_t *path_memos)
{
    const catalog_t *cat = finish->cat;

    pickle_write_op(writer, '}');
    pickle_write_op(writer, '(');
    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        if (finish->inner[t]) {
            continue;
        }
        write_records(writer, memos, finish, cat->tensors[t].name,
                      &cat->tensors[t], path_memos);
    }
    for (uint64_t i = 0; i < cat->num_aliases; i++) {
        write_records(writer, memos, finish, cat->aliases[i].name,
                      &cat->tensors[cat->aliases[i].tensor], path_memos);
    }
    for (uint64_t v = 0; v < cat->num_values; v++) {
        begin_object(writer, META, "MetadataIndex");
        write_key(writer, memos, KEY_FQN);
        pickle_write_text(writer, cat->values[v].name);
        write_key(writer, memos, KEY_OFFSET);
        pickle_write_op(writer, 'N');
        write_key(writer, memos, KEY_INDEX);
        pickle_write_op(writer, 'N');
        end_object(writer);
        write_place(writer, memos, cat->files[0].path, &path_memos[0],
                    &finish->values[v]);
    }
    pickle_write_op(writer, 'u');
}

static fsdp_status_t write_metadata(const finish_t *finish,
                                    const dcp_paths_t *paths, fsdp_error_t *err)
{
    const catalog_t *cat = finish->cat;
    uint32_t memos[NUM_KEYS];
    uint32_t *path_memos = malloc((cat->num_files + 1ul) * sizeof(*path_memos));
    char *path = io_path("%s/" DCP_METADATA, finish->dir);
    pickle_writer_t writer;
    fsdp_status_t status;

    if (path_memos == NULL || path == NULL) {
        free(path_memos);
        free(path);
        return no_memory(finish, err);
    }

    memset(memos, 0xff, sizeof(memos));
    memset(path_memos, 0xff, (cat->num_files + 1ul) * sizeof(*path_memos));
    pickle_write_begin(&writer, 4);
    begin_object(&writer, META, "Metadata");
    pickle_write_text(&writer, "state_dict_metadata");
    write_entries(&writer, memos, finish);
    pickle_write_text(&writer, "planner_data");
    dcp_paths_write(paths, finish->inner, &writer);
    pickle_write_text(&writer, "storage_data");
    write_storage(&writer, memos, finish, path_memos);
    pickle_write_text(&writer, "storage_meta");
    pickle_write_op(&writer, 'N');
    end_object(&writer);
    status = pickle_write_end(&writer)
                 ? io_replace_file(path, writer.out.data, writer.out.size, err)
                 : no_memory(finish, err);
    pickle_write_free(&writer);
    free(path_memos);
    free(path);
    return status;
}

fsdp_status_t dcp_finish(const catalog_t *cat, const char *dir,
                         fsdp_error_t *err)
{
    finish_t finish = {.cat = cat, .dir = dir};
    dcp_paths_t paths = {0};
    fsdp_status_t status;

    finish.pieces = calloc(cat->num_pieces + 1, sizeof(*finish.pieces));
    finish.values = calloc(cat->num_values + 1, sizeof(*finish.values));
    status = (finish.pieces != NULL && finish.values != NULL)
                 ? dcp_find_inner(cat, &finish.inner, err)
                 : no_memory(&finish, err);
    if (status == FSDP_OK) {
        status = dcp_paths_make(cat, &paths, err);
    }
    if (status == FSDP_OK) {
        status = target_group(cat, &finish.lists, err);
    }
    for (uint32_t f = 0; f < cat->num_files && status == FSDP_OK; f++) {
        status = finish_file(&finish, f, err);
    }
    if (status == FSDP_OK) {
        status = write_metadata(&finish, &paths, err);
    }
    dcp_paths_free(&paths);
    target_lists_free(&finish.lists);
    free(finish.inner);
    free(finish.pieces);
    free(finish.values);
    return status;
}
