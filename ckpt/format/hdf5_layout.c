#include "config.h"

#include "ckpt/format/hdf5_layout.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/format/hdf5_util.h"
#include "lib/util/check.h"
#include "lib/util/io.h"

#define CHUNKS_MOST (1ull << 24)
#define CURE        "make a copy without it: h5repack -f NONE OLD NEW"

/* Filters that are registered with The HDF Group. */
enum { FILTER_LZF = 32000, FILTER_BLOSC = 32001, FILTER_ZSTD = 32015 };

static fsdp_status_t no_memory(const char *where, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", where);
}

void hdf5_layout_free(hdf5_layout_t *layout)
{
    for (unsigned i = 0; i < layout->num_external; i++) {
        free(layout->external[i].file);
    }
    free(layout->external);
    free(layout->chunks);
    free(layout->data);
    *layout = (hdf5_layout_t){0};
}

/* --- Filters -------------------------------------------------------------- */

static fsdp_status_t read_filter(hid_t dcpl, unsigned index,
                                 hdf5_layout_t *layout, const char *where,
                                 fsdp_error_t *err)
{
    codec_step_t *step = &layout->filters[layout->num_filters];
    size_t num = 8;
    unsigned flags, config, values[8] = {0};
    char name[64] = "";
    H5Z_filter_t filter = H5Pget_filter2(dcpl, index, &flags, &num, values,
                                         sizeof(name), name, &config);

    layout->num_filters++;
    switch ((int)filter) {
    case H5Z_FILTER_DEFLATE:
        *step = (codec_step_t){.kind = CODEC_DEFLATE};
        return FSDP_OK;
    case H5Z_FILTER_SHUFFLE:
        *step = (codec_step_t){CODEC_SHUFFLE, values[0]};
        break;
    case H5Z_FILTER_FLETCHER32:
        *step = (codec_step_t){.kind = CODEC_FLETCHER32};
        return FSDP_OK;
    case FILTER_LZF:
        *step = (codec_step_t){CODEC_LZF, values[2]};
        break;
    case FILTER_ZSTD:
        *step = (codec_step_t){.kind = CODEC_ZSTD};
        return FSDP_OK;
    default:
        return fsdp_error_set(
            err, FSDP_ERR_UNSUPPORTED,
            "%s went through filter %d (%.60s), which is not read here: " CURE,
            where, (int)filter,
            (name[0] != '\0')                    ? name
            : (filter == H5Z_FILTER_SZIP)        ? "szip"
            : ((int)filter == FILTER_BLOSC)      ? "blosc"
            : (filter == H5Z_FILTER_NBIT)        ? "nbit"
            : (filter == H5Z_FILTER_SCALEOFFSET) ? "scaleoffset"
                                                 : "its name is not known");
    }

    return (step->param > 0)
               ? FSDP_OK
               : fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                "%s has a filter %.60s without its parameters",
                                where, name);
}

static fsdp_status_t read_filters(hid_t dcpl, hdf5_layout_t *layout,
                                  const char *where, fsdp_error_t *err)
{
    int num = H5Pget_nfilters(dcpl);

    if (num < 0 || num > CODEC_MOST - 1) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s went through %d filters: " CURE, where, num);
    }
    for (int i = 0; i < num; i++) {
        FSDP_TRY(read_filter(dcpl, (unsigned)i, layout, where, err));
    }

    return FSDP_OK;
}

/* --- Chunks --------------------------------------------------------------- */

/* What stands for elements that were never written. */
static fsdp_status_t read_fill(hid_t dcpl, hid_t type, hdf5_layout_t *layout,
                               const char *where, fsdp_error_t *err)
{
    H5D_fill_value_t defined = H5D_FILL_VALUE_UNDEFINED;

    layout->data_bytes = H5Tget_size(type);
    layout->data = calloc(1, layout->data_bytes + 1);
    if (layout->data == NULL) {
        return no_memory(where, err);
    }
    if (H5Pfill_value_defined(dcpl, &defined) < 0 ||
        defined == H5D_FILL_VALUE_UNDEFINED ||
        H5Pget_fill_value(dcpl, type, layout->data) < 0) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s has elements that were never written, and no "
                              "fill value",
                              where);
    }

    return FSDP_OK;
}

/*
 * Where one chunk lies.  HDF5 (1.10) finds chunk number i by counting, which
 * for a million of them never ends, but finds one by its place fast if it is
 * to be read: so it is told to read it, and the driver looks on.
 */
static fsdp_status_t find_chunk(hdf5_frame_t *frame, hid_t set,
                                const hsize_t *place, hdf5_chunk_t *chunk_p,
                                const char *where, fsdp_error_t *err)
{
    hsize_t size = 0;
    uint32_t mask = 0;
    char nothing[1];
    herr_t rc;

    *chunk_p = (hdf5_chunk_t){0};
    rc = H5Dget_chunk_storage_size(set, place, &size);
    if (rc >= 0 && size > 0) {
        frame->watch = true;
        frame->raw_bytes = 0;
        rc = H5Dread_chunk(set, H5P_DEFAULT, place, &mask, nothing);
        frame->watch = false;
        if (rc < 0 || frame->raw_bytes != size) {
            return hdf5_error(err, FSDP_ERR_CORRUPT, where,
                              "a chunk cannot be found");
        }
        *chunk_p = (hdf5_chunk_t){frame->raw_at, size, mask};
    }
    H5Eclear(H5E_DEFAULT);
    return FSDP_OK;
}

static fsdp_status_t find_chunks(hdf5_frame_t *frame, hid_t set, hid_t dcpl,
                                 hid_t type, hdf5_layout_t *layout,
                                 const char *where, fsdp_error_t *err)
{
    hsize_t place[FSDP_CKPT_MAX_NDIM] = {0};
    bool any_missing = false;
    uint64_t i = 0;
    unsigned d;

    layout->offset = UINT64_MAX;
    do {
        hdf5_chunk_t *chunk = &layout->chunks[i++];

        FSDP_TRY(find_chunk(frame, set, place, chunk, where, err));
        any_missing |= chunk->size == 0;
        if (chunk->size > 0 && chunk->offset < layout->offset) {
            layout->offset = chunk->offset;
        }
        for (d = layout->ndim; d > 0; d--) {
            place[d - 1] += layout->chunk_dims[d - 1];
            if (place[d - 1] < layout->dims[d - 1]) {
                break;
            }
            place[d - 1] = 0;
        }
    } while (d > 0);

    return any_missing ? read_fill(dcpl, type, layout, where, err) : FSDP_OK;
}

static fsdp_status_t read_chunks(hdf5_frame_t *frame, hid_t set, hid_t dcpl,
                                 hid_t type, hdf5_layout_t *layout,
                                 const char *where, fsdp_error_t *err)
{
    hsize_t dims[FSDP_CKPT_MAX_NDIM];
    unsigned options = 0;

    layout->kind = HDF5_LAYOUT_CHUNKS;
    if (H5Pget_chunk(dcpl, FSDP_CKPT_MAX_NDIM, dims) != (int)layout->ndim ||
        layout->ndim == 0) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s has chunks of another shape than its own",
                              where);
    }

    layout->num_chunks = 1;
    layout->chunk_bytes = H5Tget_size(type);
    for (uint32_t d = 0; d < layout->ndim; d++) {
        layout->chunk_dims[d] = dims[d];
        if (dims[d] == 0 ||
            __builtin_mul_overflow(layout->chunk_bytes, dims[d],
                                   &layout->chunk_bytes) ||
            __builtin_mul_overflow(layout->num_chunks,
                                   (layout->dims[d] - 1) / dims[d] + 1,
                                   &layout->num_chunks) ||
            layout->num_chunks > CHUNKS_MOST) {
            return fsdp_error_set(
                err, FSDP_ERR_UNSUPPORTED,
                "%s has more than %llu chunks: make larger ones with "
                "h5repack -l CHUNK=… OLD NEW",
                where, CHUNKS_MOST);
        }
    }
    layout->chunks = calloc(layout->num_chunks, sizeof(*layout->chunks));
    if (layout->chunks == NULL) {
        return no_memory(where, err);
    }

    layout->whole_only = H5Pget_chunk_opts(dcpl, &options) >= 0 &&
                         (options & H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS) != 0;
    FSDP_TRY(read_filters(dcpl, layout, where, err));
    return find_chunks(frame, set, dcpl, type, layout, where, err);
}

/* --- Other layouts -------------------------------------------------------- */

/* In the header: at most 64 KiB. */
static fsdp_status_t read_compact(hid_t set, hid_t type, hdf5_layout_t *layout,
                                  const char *where, fsdp_error_t *err)
{
    layout->kind = HDF5_LAYOUT_INLINED;
    if (layout->bytes > UINT16_MAX) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s is kept in its header, but too large for one",
                              where);
    }
    layout->data_bytes = layout->bytes;
    layout->data = calloc(1, layout->bytes + 1);
    if (layout->data == NULL) {
        return no_memory(where, err);
    }

    /* HDF5 swaps bytes itself if it has to. */
    layout->swap = 0;
    return (H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, layout->data) >=
            0)
               ? FSDP_OK
               : hdf5_error(err, FSDP_ERR_CORRUPT, where, "cannot be read");
}

static fsdp_status_t read_external(hid_t dcpl, int num, hdf5_layout_t *layout,
                                   const char *where, fsdp_error_t *err)
{
    char name[4096];
    hsize_t size;
    off_t offset;

    layout->kind = HDF5_LAYOUT_EXTERNAL;
    layout->external = calloc((size_t)num, sizeof(*layout->external));
    if (layout->external == NULL) {
        return no_memory(where, err);
    }

    for (int i = 0; i < num; i++) {
        hdf5_external_t *external = &layout->external[i];

        if (H5Pget_external(dcpl, (unsigned)i, sizeof(name) - 1, name, &offset,
                            &size) < 0 ||
            offset < 0) {
            return hdf5_error(err, FSDP_ERR_CORRUPT, where,
                              "has a list of files that makes no sense");
        }
        name[sizeof(name) - 1] = '\0';
        *external = (hdf5_external_t){strdup(name), (uint64_t)offset, size};
        layout->num_external++;
        if (external->file == NULL) {
            return no_memory(where, err);
        }
    }

    return FSDP_OK;
}

static fsdp_status_t read_stretch(hid_t set, hid_t dcpl, hid_t type,
                                  hdf5_layout_t *layout, const char *where,
                                  fsdp_error_t *err)
{
    H5D_fill_value_t defined = H5D_FILL_VALUE_DEFAULT;
    haddr_t offset = H5Dget_offset(set);

    if (offset != HADDR_UNDEF) {
        layout->kind = HDF5_LAYOUT_STRETCH;
        layout->offset = offset;
        return FSDP_OK;
    }

    /* Zeros that nobody has asked for are no data. */
    if (H5Pfill_value_defined(dcpl, &defined) < 0 ||
        defined != H5D_FILL_VALUE_USER_DEFINED) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s was made, but its data was never written",
                              where);
    }
    layout->kind = HDF5_LAYOUT_INLINED;
    layout->swap = 0;
    return read_fill(dcpl, type, layout, where, err);
}

static fsdp_status_t read_shape(hid_t set, hid_t type, hdf5_layout_t *layout,
                                const char *where, fsdp_error_t *err)
{
    hid_t space = H5Dget_space(set);
    hsize_t dims[FSDP_CKPT_MAX_NDIM];
    H5S_class_t class =
        (space < 0) ? H5S_NO_CLASS : H5Sget_simple_extent_type(space);
    hssize_t numel = (space < 0) ? -1 : H5Sget_simple_extent_npoints(space);
    int ndim = (space < 0) ? -1 : H5Sget_simple_extent_dims(space, dims, NULL);

    if (space >= 0) {
        H5Sclose(space);
    }
    if (class == H5S_NULL) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED, "%s has no shape",
                              where);
    }
    if (ndim < 0 || numel < 0 ||
        __builtin_mul_overflow((uint64_t)numel, H5Tget_size(type),
                               &layout->bytes)) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s has a shape that makes no sense", where);
    }

    layout->ndim = (uint32_t)ndim;
    for (int d = 0; d < ndim; d++) {
        layout->dims[d] = dims[d];
    }
    return FSDP_OK;
}

static fsdp_status_t read_from(hdf5_frame_t *frame, hid_t set, hid_t dcpl,
                               hid_t type, const char *where,
                               hdf5_layout_t *layout, fsdp_error_t *err)
{
    int num_external = H5Pget_external_count(dcpl);

    if (H5Pget_layout(dcpl) == H5D_VIRTUAL) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s is a virtual dataset, which shows zeros "
                              "where a source is missing: name the "
                              "checkpoint's directory instead",
                              where);
    }
    if (layout->bytes == 0) {
        return FSDP_OK;
    }
    if (num_external > 0) {
        return read_external(dcpl, num_external, layout, where, err);
    }
    switch (H5Pget_layout(dcpl)) {
    case H5D_CONTIGUOUS:
        return read_stretch(set, dcpl, type, layout, where, err);
    case H5D_CHUNKED:
        return read_chunks(frame, set, dcpl, type, layout, where, err);
    case H5D_COMPACT:
        return read_compact(set, type, layout, where, err);
    default:
        return hdf5_error(err, FSDP_ERR_CORRUPT, where, "has no layout");
    }
}

fsdp_status_t hdf5_layout_read(hdf5_frame_t *frame, hid_t set, hid_t type,
                               uint32_t swap, const char *where,
                               hdf5_layout_t *layout_p, fsdp_error_t *err)
{
    hid_t dcpl = H5Dget_create_plist(set);
    fsdp_status_t status;

    *layout_p = (hdf5_layout_t){.swap = swap};
    if (dcpl < 0) {
        return hdf5_error(err, FSDP_ERR_CORRUPT, where, "has no layout");
    }

    status = read_shape(set, type, layout_p, where, err);
    if (status == FSDP_OK) {
        status = read_from(frame, set, dcpl, type, where, layout_p, err);
    }
    H5Pclose(dcpl);
    return status;
}

/* --- Pieces --------------------------------------------------------------- */

/* How a chunk is decoded; 0: it lies there as it is. */
static unsigned steps_of(const hdf5_layout_t *layout, const hdf5_chunk_t *chunk,
                         bool whole, codec_step_t *steps)
{
    unsigned num = 0;

    for (unsigned i = layout->num_filters; i > 0; i--) {
        if ((chunk->mask >> (i - 1) & 1) == 0 &&
            (whole || !layout->whole_only)) {
            steps[num++] = layout->filters[i - 1];
        }
    }
    if (layout->swap > 0) {
        steps[num++] = (codec_step_t){CODEC_SWAP, layout->swap};
    }

    return num;
}

static fsdp_status_t put_code(const hdf5_layout_t *layout, catalog_t *cat,
                              const hdf5_chunk_t *chunk, bool whole,
                              uint64_t bytes, catalog_piece_t *piece,
                              const char *where, fsdp_error_t *err)
{
    codec_step_t steps[CODEC_MOST + 1];
    unsigned num = steps_of(layout, chunk, whole, steps);
    const catalog_code_t code = {
        .offset = chunk->offset,
        .length = chunk->size,
        .bytes = bytes,
        .memory = codec_needs(steps, num, chunk->size, bytes),
        .file = piece->file};

    if (num > 0) {
        return catalog_add_code(cat, &code, steps, num, &piece->code, err);
    }

    piece->offset = chunk->offset;
    return (chunk->size >= bytes)
               ? FSDP_OK
               : fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                "%s: a chunk has %" PRIu64
                                " bytes, should have %" PRIu64,
                                where, chunk->size, bytes);
}

/* Elements of a packed type are bytes in one dimension. */
static fsdp_status_t put_packed(const hdf5_layout_t *layout, catalog_t *cat,
                                catalog_piece_t *piece, uint64_t start,
                                uint64_t count, const char *where,
                                fsdp_error_t *err)
{
    const catalog_tensor_t *tensor = &cat->tensors[piece->tensor];
    unsigned bits = fsdp_dtype_bits((fsdp_dtype_t)tensor->dtype);
    uint64_t most;

    if (layout->ndim != 1 || start * 8 % bits != 0) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s has elements of less than a byte in chunks "
                              "that do not begin with one: " CURE,
                              where);
    }

    piece->first = start * 8 / bits;
    most = tensor->numel - piece->first;
    piece->count = (count * 8 / bits < most) ? count * 8 / bits : most;
    return catalog_add_piece(cat, piece, err);
}

static fsdp_status_t put_chunk(const hdf5_layout_t *layout, catalog_t *cat,
                               uint32_t tensor, const hdf5_chunk_t *chunk,
                               const uint64_t *start, uint32_t fill,
                               const char *where, fsdp_error_t *err)
{
    catalog_piece_t piece = {
        .tensor = tensor, .crc_first = CATALOG_NONE, .code = fill};
    uint64_t count[FSDP_CKPT_MAX_NDIM], strides[FSDP_CKPT_MAX_NDIM], step = 1;
    bool whole = true;

    for (uint32_t d = layout->ndim; d > 0; d--) {
        uint64_t left = layout->dims[d - 1] - start[d - 1];
        uint64_t most = layout->chunk_dims[d - 1];

        whole &= left >= most;
        count[d - 1] = (left < most) ? left : most;
        strides[d - 1] = step;
        step *= most;
    }
    if (chunk->size > 0) {
        FSDP_TRY(put_code(layout, cat, chunk, whole, layout->chunk_bytes,
                          &piece, where, err));
    }
    if (fsdp_dtype_bits((fsdp_dtype_t)cat->tensors[tensor].dtype) < 8) {
        return put_packed(layout, cat, &piece, start[0], count[0], where, err);
    }
    return catalog_add_box(cat, &piece, start, count, strides, err);
}

static fsdp_status_t put_chunks(const hdf5_layout_t *layout, catalog_t *cat,
                                uint32_t tensor, const char *where,
                                fsdp_error_t *err)
{
    uint64_t start[FSDP_CKPT_MAX_NDIM] = {0};
    uint32_t fill = 0;

    if (layout->data != NULL) {
        FSDP_TRY(catalog_add_inlined(cat, layout->data, layout->data_bytes,
                                     layout->chunk_bytes, &fill, err));
    }
    for (uint64_t i = 0; i < layout->num_chunks; i++) {
        FSDP_TRY(put_chunk(layout, cat, tensor, &layout->chunks[i], start,
                           (layout->chunks[i].size == 0) ? fill : 0, where,
                           err));
        for (uint32_t d = layout->ndim; d > 0; d--) {
            start[d - 1] += layout->chunk_dims[d - 1];
            if (start[d - 1] < layout->dims[d - 1]) {
                break;
            }
            start[d - 1] = 0;
        }
    }

    return FSDP_OK;
}

/* One stretch that holds all of the tensor's elements, or some end to end. */
static fsdp_status_t put_stretch(const hdf5_layout_t *layout, catalog_t *cat,
                                 catalog_piece_t *piece, uint64_t offset,
                                 uint64_t bytes, const char *where,
                                 fsdp_error_t *err)
{
    const hdf5_chunk_t stretch = {.offset = offset, .size = bytes};

    FSDP_TRY(put_code(layout, cat, &stretch, true, bytes, piece, where, err));
    return catalog_add_piece(cat, piece, err);
}

/* Only files beside the HDF5 file: it may come from anyone. */
static bool is_beside(const char *name)
{
    return name[0] != '\0' && strchr(name, '/') == NULL &&
           strcmp(name, "..") != 0;
}

static fsdp_status_t add_beside(catalog_t *cat, const char *name,
                                uint32_t *file_p, const char *where,
                                fsdp_error_t *err)
{
    char *path = io_path("%s/%s", cat->root, name);
    struct stat st;
    int rc = (path != NULL) ? stat(path, &st) : -1;

    free(path);
    if (rc != 0) {
        return fsdp_error_set(
            err, (errno == ENOENT) ? FSDP_ERR_CORRUPT : FSDP_ERR_IO,
            "%s is kept in %s, which cannot be found: %m", where, name);
    }
    return catalog_add_file(cat, name, (uint64_t)st.st_size, file_p, err);
}

static fsdp_status_t find_file(catalog_t *cat, const char *name,
                               uint32_t *file_p, const char *where,
                               fsdp_error_t *err)
{
    for (uint32_t f = 0; f < cat->num_files; f++) {
        if (strcmp(cat->files[f].path, name) == 0) {
            *file_p = f;
            return FSDP_OK;
        }
    }

    if (cat->shows) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s is in %.200s, which the file does not name "
                              "as a source",
                              where, name);
    }
    if (!is_beside(name)) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s is kept in %.200s, which is not in the "
                              "directory of the file: make a copy with "
                              "'h5repack -l CONTI OLD NEW'",
                              where, name);
    }
    return add_beside(cat, name, file_p, where, err);
}

static fsdp_status_t put_external(const hdf5_layout_t *layout, catalog_t *cat,
                                  uint32_t tensor, const char *where,
                                  fsdp_error_t *err)
{
    unsigned bits = fsdp_dtype_bits((fsdp_dtype_t)cat->tensors[tensor].dtype);
    uint64_t numel = cat->tensors[tensor].numel, done = 0;

    for (unsigned i = 0; i < layout->num_external && done < layout->bytes;
         i++) {
        const hdf5_external_t *external = &layout->external[i];
        uint64_t left = layout->bytes - done;
        uint64_t bytes = (external->size < left) ? external->size : left;
        catalog_piece_t piece = {
            .tensor = tensor,
            .first = done / bits * 8 + done % bits * 8 / bits,
            .count = bytes / bits * 8 + bytes % bits * 8 / bits,
            .crc_first = CATALOG_NONE};

        if (bytes == left) {
            piece.count = numel - piece.first;
        } else if (bytes % bits * 8 % bits != 0) {
            return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                                  "%s is cut within an element between files: "
                                  "make a copy with 'h5repack -l CONTI OLD "
                                  "NEW'",
                                  where);
        }
        FSDP_TRY(find_file(cat, external->file, &piece.file, where, err));
        FSDP_TRY(put_stretch(layout, cat, &piece, external->offset, bytes,
                             where, err));
        done += bytes;
    }

    return FSDP_OK;
}

fsdp_status_t hdf5_layout_put(const hdf5_layout_t *layout, catalog_t *cat,
                              uint32_t tensor, uint32_t crc_first,
                              const char *where, fsdp_error_t *err)
{
    catalog_piece_t piece = {.tensor = tensor,
                             .count = cat->tensors[tensor].numel,
                             .crc_first = crc_first};

    switch (layout->kind) {
    case HDF5_LAYOUT_EMPTY:
        return FSDP_OK;
    case HDF5_LAYOUT_STRETCH:
        return put_stretch(layout, cat, &piece, layout->offset, layout->bytes,
                           where, err);
    case HDF5_LAYOUT_CHUNKS:
        return put_chunks(layout, cat, tensor, where, err);
    case HDF5_LAYOUT_INLINED:
        FSDP_TRY(catalog_add_inlined(cat, layout->data, layout->data_bytes,
                                     layout->bytes, &piece.code, err));
        return catalog_add_piece(cat, &piece, err);
    case HDF5_LAYOUT_EXTERNAL:
        return put_external(layout, cat, tensor, where, err);
    }

    return FSDP_OK;
}
