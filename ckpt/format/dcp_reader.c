#include "config.h"

#include "ckpt/format/dcp_reader.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/util/check.h"
#include "lib/util/crew.h"
#include "lib/util/io.h"

#define PICKLE_MOST (1ull << 30)   /* bytes of one archive's data.pkl */
#define MEM_MOST    (128ull << 20) /* to decode an archive: zstd's own limit */
#define JOBS        8              /* more than cores: they wait for a disk */
#define TASK        64             /* records that a thread takes at a time */
#define WINDOW      (64u << 10)    /* read at once where archives are small */
#define ENDS        (8u << 10)     /* where not: a directory, and the next head */

/* Bytes of the file. */
typedef struct {
    uint64_t at;
    size_t bytes;
    char data[WINDOW];
} window_t;

struct dcp_reader {
    const catalog_t *cat;
    const dcp_meta_t *meta;
    const uint32_t *files;
    uint64_t max_mem; /* to decode an archive */
    uint32_t file;    /* of the catalog, that is open */
    int fd;           /* -1: none */
    char *path;
    /* The end of an archive has the head of the next one behind it, and is
     * read before its own head. */
    window_t windows[2];
    unsigned last; /* that was read into */
};

static fsdp_status_t no_memory(const dcp_reader_t *reader, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                          reader->cat->path);
}

/* --- Files ---------------------------------------------------------------- */

dcp_reader_t *dcp_reader_create(const catalog_t *cat, const dcp_meta_t *meta,
                                const uint32_t *files)
{
    dcp_reader_t *reader = malloc(sizeof(*reader));

    if (reader != NULL) {
        reader->cat = cat;
        reader->meta = meta;
        reader->files = files;
        reader->max_mem = MEM_MOST;
        reader->file = CATALOG_NONE;
        reader->fd = -1;
        reader->path = NULL;
        reader->last = 0;
    }
    return reader;
}

static void close_file(dcp_reader_t *reader)
{
    if (reader->fd >= 0) {
        close(reader->fd);
    }
    free(reader->path);
    reader->fd = -1;
    reader->path = NULL;
    reader->file = CATALOG_NONE;
}

void dcp_reader_destroy(dcp_reader_t *reader)
{
    if (reader != NULL) {
        close_file(reader);
        free(reader);
    }
}

static fsdp_status_t open_file(dcp_reader_t *reader, uint32_t file,
                               fsdp_error_t *err)
{
    if (reader->file == file) {
        return FSDP_OK;
    }

    close_file(reader);
    reader->windows[0].at = reader->windows[0].bytes = 0;
    reader->windows[1].at = reader->windows[1].bytes = 0;
    reader->path = catalog_file_path(reader->cat, file);
    if (reader->path == NULL) {
        return no_memory(reader, err);
    }
    FSDP_TRY(io_open(reader->path, O_RDONLY, 0, &reader->fd, err));
    reader->file = file;
    return FSDP_OK;
}

/* Bytes of an archive by their place in the file. */
static fsdp_status_t read_near(void *arg, uint64_t at, void *data, size_t bytes,
                               fsdp_error_t *err)
{
    const dcp_in_t *in = arg;
    dcp_reader_t *reader = in->reader;
    uint64_t left = reader->cat->files[reader->file].size - at;
    size_t most = (in->record->length <= WINDOW) ? WINDOW : ENDS;
    window_t *window;

    for (unsigned w = 0; w < 2; w++) {
        window = &reader->windows[w];
        if (at >= window->at && at - window->at < window->bytes &&
            bytes <= window->bytes - (at - window->at)) {
            memcpy(data, window->data + (at - window->at), bytes);
            return FSDP_OK;
        }
    }
    if (bytes > most) {
        return io_pread(reader->fd, data, bytes, at, reader->path, err);
    }

    reader->last = 1 - reader->last;
    window = &reader->windows[reader->last];
    window->bytes = 0;
    most = (left < most) ? (size_t)left : most;
    FSDP_TRY(io_pread(reader->fd, window->data, most, at, reader->path, err));
    window->at = at;
    window->bytes = most;
    memcpy(data, window->data, bytes);
    return FSDP_OK;
}

/* --- Archives ------------------------------------------------------------- */

static fsdp_status_t read_entry(const dcp_in_t *in, const zip_entry_t *entry,
                                void *data, fsdp_error_t *err)
{
    const zip_source_t packed = {unpack_read, in->unpack};
    const zip_source_t plain = {read_near, (void *)in};

    return zip_read_from((in->unpack != NULL) ? &packed : &plain, in->what,
                         entry, data, err);
}

static bool is_big_endian(const dcp_in_t *in)
{
    const zip_entry_t *entry = zip_find(&in->zip, "byteorder");
    char text[8] = "";

    return entry != NULL && entry->size < sizeof(text) &&
           read_entry(in, entry, text, NULL) == FSDP_OK &&
           strcmp(text, "big") == 0;
}

static fsdp_status_t read_record(void *arg, uint64_t at, void *data,
                                 size_t bytes, fsdp_error_t *err)
{
    const dcp_in_t *in = arg;

    return io_pread(in->reader->fd, data, bytes, in->record->offset + at,
                    in->what, err);
}

static fsdp_status_t open_zip(dcp_in_t *in, fsdp_error_t *err)
{
    const dcp_record_t *record = in->record;
    codec_step_t steps[CODEC_MOST];
    codec_config_t config = {.steps = steps,
                             .num_steps = record->zstd,
                             .length = record->length,
                             .source = read_record,
                             .arg = in,
                             .max_mem = in->reader->max_mem,
                             .what = in->what};
    const zip_source_t plain = {read_near, in};
    zip_source_t packed = {.read = unpack_read};

    if (record->zstd == 0) {
        in->length = record->length;
        return zip_open_from(&plain, in->what, record->offset, record->length,
                             &in->zip, err);
    }

    dcp_record_steps(record, steps);
    FSDP_TRY(unpack_open(&config, &in->unpack, &in->length, err));
    in->memory = unpack_memory(in->unpack);
    packed.arg = in->unpack;
    return zip_open_from(&packed, in->what, 0, in->length, &in->zip, err);
}

/* Its place in the file makes sense. */
static fsdp_status_t check_place(const dcp_in_t *in, fsdp_error_t *err)
{
    const dcp_record_t *record = in->record;
    uint64_t size = in->reader->cat->files[in->reader->file].size;

    return (record->offset <= size && record->length <= size - record->offset)
               ? FSDP_OK
               : fsdp_error_set(
                     err, FSDP_ERR_CORRUPT,
                     "%s: has %" PRIu64
                     " bytes, but %s lies in bytes [%" PRIu64 ", %" PRIu64
                     "): it was cut short or changed",
                     in->reader->path, size, in->entry->name, record->offset,
                     record->offset + record->length);
}

fsdp_status_t dcp_in_open(dcp_reader_t *reader, const dcp_record_t *record,
                          dcp_in_t *in, fsdp_error_t *err)
{
    const zip_entry_t *entry;

    *in = (dcp_in_t){.reader = reader,
                     .record = record,
                     .entry = &reader->meta->entries[record->entry]};
    FSDP_TRY(open_file(reader, reader->files[record->file], err));
    FSDP_TRY(check_place(in, err));
    snprintf(in->what, sizeof(in->what), "%s: %s", reader->path,
             in->entry->name);
    FSDP_TRY(open_zip(in, err));
    entry = zip_find(&in->zip, "data.pkl");
    if (entry == NULL || entry->size > PICKLE_MOST) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: the archive at byte %" PRIu64
                              " has no data.pkl that makes sense",
                              in->what, record->offset);
    }
    if (is_big_endian(in)) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s: its bytes are in big-endian order",
                              in->what);
    }

    in->data = malloc(entry->size + 1);
    if (in->data == NULL) {
        return no_memory(reader, err);
    }
    FSDP_TRY(read_entry(in, entry, in->data, err));
    return pickle_parse(in->data, entry->size, in->what, &in->pickle, NULL,
                        err);
}

void dcp_in_close(dcp_in_t *in)
{
    unpack_close(in->unpack);
    pickle_free(in->pickle);
    free(in->data);
    zip_close(&in->zip);
    in->reader = NULL;
    in->unpack = NULL;
    in->pickle = NULL;
    in->data = NULL;
}

fsdp_status_t dcp_in_view(const dcp_in_t *in, pickle_ref_t ref,
                          torch_tensor_t *view_p, zip_entry_t *storage_p,
                          fsdp_error_t *err)
{
    const zip_entry_t *entry;
    uint64_t bytes;
    char *name;

    FSDP_TRY(torch_tensor(in->pickle, ref, in->what, view_p, err));
    if (view_p->numel == 0) {
        *storage_p = (zip_entry_t){0};
        return FSDP_OK;
    }

    name = io_path("data/%s", view_p->key);
    entry = (name != NULL) ? zip_find(&in->zip, name) : NULL;
    free(name);
    if (entry == NULL) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: the archive has no storage %s", in->what,
                              view_p->key);
    }
    if (!dtype_bytes(view_p->dtype, view_p->offset, &bytes) ||
        view_p->storage_bytes != entry->size) {
        return fsdp_error_set(
            err, FSDP_ERR_CORRUPT,
            "%s: storage %s has %" PRIu64 " bytes, should have %" PRIu64,
            in->what, view_p->key, entry->size, view_p->storage_bytes);
    }

    *storage_p = *entry;
    return FSDP_OK;
}

/* --- Many ----------------------------------------------------------------- */

fsdp_status_t dcp_find(dcp_reader_t *reader, const dcp_record_t *record,
                       dcp_found_t *found, fsdp_error_t *err)
{
    fsdp_status_t status = dcp_in_open(reader, record, &found->in, err);

    if (status == FSDP_OK) {
        status = dcp_in_view(&found->in, pickle_root(found->in.pickle),
                             &found->view, &found->storage, err);
    }
    dcp_in_close(&found->in);
    found->good = status == FSDP_OK;
    return status;
}

typedef struct {
    const dcp_reader_t *like;
    const dcp_record_t *records;
    dcp_found_t *found;
    uint64_t num;
    _Atomic uint64_t next; /* not yet taken */
} finding_t;

static void find_some(void *arg, uint32_t number)
{
    finding_t *finding = arg;
    const dcp_reader_t *like = finding->like;
    dcp_reader_t *reader =
        dcp_reader_create(like->cat, like->meta, like->files);
    uint64_t first;

    (void)number;
    if (reader == NULL) {
        return;
    }

    reader->max_mem = MEM_MOST / JOBS;
    while ((first = atomic_fetch_add(&finding->next, TASK)) < finding->num) {
        uint64_t end = (finding->num - first < TASK) ? finding->num
                                                     : first + TASK;

        for (uint64_t i = first; i < end; i++) {
            if (finding->records[i].chunk != DCP_NONE) {
                (void)dcp_find(reader, &finding->records[i],
                               &finding->found[i], NULL);
            }
        }
    }
    dcp_reader_destroy(reader);
}

void dcp_find_all(const dcp_reader_t *reader, uint64_t first, uint64_t num,
                  dcp_found_t *found)
{
    finding_t finding = {.like = reader,
                         .records = reader->meta->records + first,
                         .found = found,
                         .num = num};
    uint64_t tasks = (num + TASK - 1) / TASK;

    for (uint64_t i = 0; i < num; i++) {
        found[i].good = false;
    }
    crew_run((tasks < JOBS) ? (uint32_t)tasks : JOBS, find_some, &finding);
}
