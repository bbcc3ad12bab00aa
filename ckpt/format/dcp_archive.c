#include "config.h"

#include "ckpt/format/dcp_archive.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/pickle_write.h"
#include "ckpt/torch_object.h"
#include "lib/util/check.h"
#include "lib/util/crc.h"

#define ALIGN   64
#define MOST_32 0xffffffffull
#define UTF8    0x0800 /* names are */
#define ZIP_VERSION 45     /* of zip, that is needed: it has 64-bit sizes */
#define PREFIX  "archive/"

const char *dcp_dtype_name(fsdp_dtype_t dtype)
{
    const torch_type_t *name = torch_type(dtype);

    return (name != NULL) ? name->name : NULL;
}

/* --- Bytes ---------------------------------------------------------------------- */

typedef struct {
    char *data;
    size_t size, max;
    bool failed;
} bytes_t;

static void add(bytes_t *bytes, const void *data, size_t size)
{
    if (size > bytes->max - bytes->size) {
        size_t max = 2 * bytes->max + size + 1024;
        char *larger = realloc(bytes->data, max);

        if (larger == NULL) {
            bytes->failed = true;
            return;
        }
        bytes->data = larger;
        bytes->max = max;
    }
    memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
}

static void add_number(bytes_t *bytes, uint64_t value, unsigned size)
{
    char text[8];

    for (unsigned i = 0; i < size; i++) {
        text[i] = (char)(value >> (8 * i));
    }
    add(bytes, text, size);
}

/* --- Zip -------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    uint64_t size;
    uint32_t crc32;
    uint64_t at; /* of its header */
} record_t;

typedef struct {
    bytes_t head, tail;
    uint64_t data; /* bytes between them */
    record_t records[4];
    unsigned num;
} zip_writer_t;

/* Where the next byte goes; the data lies behind the head. */
static uint64_t place(const zip_writer_t *zip)
{
    return zip->head.size + zip->data + zip->tail.size;
}

static uint64_t in_32(uint64_t value)
{
    return (value < MOST_32) ? value : MOST_32;
}

/* What local header and directory have in common. */
static void add_common(bytes_t *bytes, const record_t *record, size_t extra)
{
    add_number(bytes, ZIP_VERSION, 2);
    add_number(bytes, UTF8, 2);
    add_number(bytes, 0, 2); /* stored */
    add_number(bytes, 0, 4); /* time and date */
    add_number(bytes, record->crc32, 4);
    add_number(bytes, in_32(record->size), 4);
    add_number(bytes, in_32(record->size), 4);
    add_number(bytes, strlen(record->name), 2);
    add_number(bytes, extra, 2);
}

/* A local header, with what makes the data behind it begin aligned. */
static void begin_record(zip_writer_t *zip, bytes_t *bytes, const char *name,
                         uint64_t size, uint32_t crc32)
{
    record_t *record = &zip->records[zip->num++];
    size_t extra = (size >= MOST_32) ? 20 : 0, pad;

    *record = (record_t){name, size, crc32, place(zip)};
    pad = -(record->at + 30 + strlen(name) + extra + 4) % ALIGN;
    add(bytes, "PK\3\4", 4);
    add_common(bytes, record, extra + 4 + pad);
    add(bytes, name, strlen(name));
    if (extra > 0) {
        add_number(bytes, 1, 2);
        add_number(bytes, 16, 2);
        add_number(bytes, size, 8);
        add_number(bytes, size, 8);
    }
    add(bytes, "FB", 2);
    add_number(bytes, pad, 2);
    for (size_t i = 0; i < pad; i++) {
        add(bytes, "Z", 1);
    }
}

static void add_record(zip_writer_t *zip, bytes_t *bytes, const char *name,
                       const char *data, size_t size)
{
    begin_record(zip, bytes, name, size, crc32_zip(0, data, size));
    add(bytes, data, size);
}

static void add_directory(zip_writer_t *zip)
{
    bytes_t *bytes = &zip->tail;
    uint64_t begin = place(zip), end;

    for (unsigned i = 0; i < zip->num; i++) {
        const record_t *record = &zip->records[i];
        bool large = record->size >= MOST_32, far = record->at >= MOST_32;
        size_t extra = (large ? 16u : 0) + (far ? 8u : 0);

        add(bytes, "PK\1\2", 4);
        add_number(bytes, ZIP_VERSION, 2);
        add_common(bytes, record, (extra > 0) ? 4 + extra : 0);
        add_number(bytes, 0, 2); /* comment */
        add_number(bytes, 0, 2); /* disk */
        add_number(bytes, 0, 6); /* attributes */
        add_number(bytes, in_32(record->at), 4);
        add(bytes, record->name, strlen(record->name));
        if (extra > 0) {
            add_number(bytes, 1, 2);
            add_number(bytes, extra, 2);
        }
        if (large) {
            add_number(bytes, record->size, 8);
            add_number(bytes, record->size, 8);
        }
        if (far) {
            add_number(bytes, record->at, 8);
        }
    }
    end = place(zip);

    add(bytes, "PK\6\6", 4);
    add_number(bytes, 44, 8);
    add_number(bytes, ZIP_VERSION, 2);
    add_number(bytes, ZIP_VERSION, 2);
    add_number(bytes, 0, 8); /* disks */
    add_number(bytes, zip->num, 8);
    add_number(bytes, zip->num, 8);
    add_number(bytes, end - begin, 8);
    add_number(bytes, begin, 8);
    add(bytes, "PK\6\7", 4);
    add_number(bytes, 0, 4);
    add_number(bytes, end, 8);
    add_number(bytes, 1, 4);
    add(bytes, "PK\5\6", 4);
    add_number(bytes, 0, 4); /* disks */
    add_number(bytes, zip->num, 2);
    add_number(bytes, zip->num, 2);
    add_number(bytes, end - begin, 4);
    add_number(bytes, in_32(begin), 4);
    add_number(bytes, 0, 2);
}

/* What is in every archive, and the end of it. */
static fsdp_status_t finish(zip_writer_t *zip, dcp_archive_t *archive_p,
                            fsdp_error_t *err)
{
    add_record(zip, &zip->tail, PREFIX "version", "3\n", 2);
    add_directory(zip);
    if (zip->head.failed || zip->tail.failed) {
        free(zip->head.data);
        free(zip->tail.data);
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for an archive");
    }

    *archive_p = (dcp_archive_t){zip->head.data, zip->tail.data, zip->head.size,
                                 zip->tail.size};
    return FSDP_OK;
}

void dcp_archive_free(dcp_archive_t *archive)
{
    free(archive->head);
    free(archive->tail);
    *archive = (dcp_archive_t){0};
}

/* --- Tensors ----------------------------------------------------------------------- */

/* The tuple that stands for storage 0. */
static void write_storage(pickle_writer_t *writer, const torch_type_t *name,
                          uint64_t numel, uint64_t bytes)
{
    pickle_write_op(writer, '(');
    pickle_write_text(writer, "storage");
    if (name->storage != NULL) {
        pickle_write_class(writer, "torch", name->storage);
    } else {
        pickle_write_class(writer, "torch.storage", "UntypedStorage");
    }
    pickle_write_text(writer, "0");
    pickle_write_text(writer, "cpu");
    pickle_write_int(writer,
                     (int64_t)((name->storage != NULL) ? numel : bytes));
    pickle_write_op(writer, 't');
    pickle_write_op(writer, 'Q');
}

static void write_tensor(pickle_writer_t *writer, const torch_type_t *name,
                         unsigned ndim, const uint64_t *dims, uint64_t bytes)
{
    uint64_t strides[FSDP_CKPT_MAX_NDIM], numel = 1;

    for (unsigned d = ndim; d > 0; d--) {
        strides[d - 1] = numel;
        numel *= dims[d - 1];
    }

    pickle_write_class(writer, "torch._utils",
                       (name->storage != NULL) ? "_rebuild_tensor_v2"
                                               : "_rebuild_tensor_v3");
    pickle_write_op(writer, '(');
    write_storage(writer, name, numel, bytes);
    pickle_write_int(writer, 0);
    pickle_write_ints(writer, dims, ndim);
    pickle_write_ints(writer, strides, ndim);
    pickle_write_bool(writer, false);
    pickle_write_class(writer, "collections", "OrderedDict");
    pickle_write_op(writer, ')');
    pickle_write_op(writer, 'R');
    if (name->storage == NULL) {
        pickle_write_class(writer, "torch", name->name);
    }
    pickle_write_op(writer, 't');
    pickle_write_op(writer, 'R');
}

fsdp_status_t dcp_archive_tensor(fsdp_dtype_t dtype, unsigned ndim,
                                 const uint64_t *dims, uint64_t bytes,
                                 uint32_t crc32, dcp_archive_t *archive_p,
                                 fsdp_error_t *err)
{
    const torch_type_t *name = torch_type(dtype);
    zip_writer_t zip = {0};
    pickle_writer_t writer;

    if (name == NULL) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "PyTorch has no tensors of type %s",
                              fsdp_dtype_name(dtype));
    }

    pickle_write_begin(&writer, 2);
    write_tensor(&writer, name, ndim, dims, bytes);
    if (!pickle_write_end(&writer)) {
        pickle_write_free(&writer);
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for an archive");
    }

    add_record(&zip, &zip.head, PREFIX "data.pkl", writer.data, writer.size);
    add_record(&zip, &zip.head, PREFIX "byteorder", "little", 6);
    begin_record(&zip, &zip.head, PREFIX "data/0", bytes, crc32);
    zip.data = bytes;
    pickle_write_free(&writer);
    return finish(&zip, archive_p, err);
}

fsdp_status_t dcp_archive_value(const json_t *value, bool *known_p,
                                dcp_archive_t *archive_p, fsdp_error_t *err)
{
    zip_writer_t zip = {0};
    pickle_writer_t writer;

    pickle_write_begin(&writer, 2);
    *known_p = pickle_write_value(&writer, value);
    if (!*known_p) {
        pickle_write_free(&writer);
        return FSDP_OK;
    }
    if (!pickle_write_end(&writer)) {
        pickle_write_free(&writer);
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for an archive");
    }

    add_record(&zip, &zip.head, PREFIX "data.pkl", writer.data, writer.size);
    add_record(&zip, &zip.head, PREFIX "byteorder", "little", 6);
    pickle_write_free(&writer);
    return finish(&zip, archive_p, err);
}
