#include "config.h"

#include "ckpt/format/dcp_archive.h"

#include <stdlib.h>

#include "ckpt/torch_write.h"
#include "ckpt/zip_write.h"
#include "lib/util/check.h"

const char *dcp_dtype_name(fsdp_dtype_t dtype)
{
    const torch_type_t *name = torch_type(dtype);

    return (name != NULL) ? name->name : NULL;
}

static fsdp_status_t no_memory(fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "no memory for an archive");
}

/* What lies before data of so many bytes, and behind it. */
static fsdp_status_t finish(zip_writer_t *zip, uint64_t bytes,
                            dcp_archive_t *archive_p, fsdp_error_t *err)
{
    dcp_archive_t archive = {0};
    bool good = zip_write_take(zip, bytes, &archive.head, &archive.head_size);

    zip_write_end(zip);
    good = good && zip_write_take(zip, 0, &archive.tail, &archive.tail_size);
    zip_write_free(zip);
    if (!good) {
        dcp_archive_free(&archive);
        return no_memory(err);
    }

    *archive_p = archive;
    return FSDP_OK;
}

void dcp_archive_free(dcp_archive_t *archive)
{
    free(archive->head);
    free(archive->tail);
    *archive = (dcp_archive_t){0};
}

/* The pickle, which is freed, as the first entry. */
static fsdp_status_t begin(zip_writer_t *zip, pickle_writer_t *writer,
                           fsdp_error_t *err)
{
    bool good = pickle_write_end(writer);

    if (good) {
        zip_write_entry(zip, "data.pkl", writer->data, writer->size);
        zip_write_entry(zip, "byteorder", "little", 6);
    }
    pickle_write_free(writer);
    return good ? FSDP_OK : no_memory(err);
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
    torch_write_tensor(&writer, name, 0, ndim, dims, bytes);
    FSDP_TRY(begin(&zip, &writer, err));
    zip_write_header(&zip, "data/0", bytes, crc32);
    return finish(&zip, bytes, archive_p, err);
}

fsdp_status_t dcp_archive_value(const json_t *value, bool *known_p,
                                dcp_archive_t *archive_p, fsdp_error_t *err)
{
    zip_writer_t zip = {0};
    pickle_writer_t writer;

    pickle_write_begin(&writer, 2);
    *known_p = pickle_write_value(&writer, value, NULL, NULL);
    if (!*known_p) {
        pickle_write_free(&writer);
        return FSDP_OK;
    }
    FSDP_TRY(begin(&zip, &writer, err));
    return finish(&zip, 0, archive_p, err);
}
