#include "config.h"

#include "ckpt/zip.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lib/util/check.h"
#include "lib/util/crc.h"
#include "lib/util/io.h"

/* Sizes of the fixed parts of the records, and their signatures. */
enum { LOCAL = 30, CENTRAL = 46, END = 22, LOCATOR = 20, END64 = 56 };
#define SIG_LOCAL   0x04034b50u
#define SIG_CENTRAL 0x02014b50u
#define SIG_END     0x06054b50u
#define SIG_LOCATOR 0x07064b50u
#define SIG_END64   0x06064b50u

#define FLAGS_CRYPT  0x2041u /* encrypted, in any of the ways */
#define FLAG_BEHIND  0x0008u /* sizes are behind the data */
#define TAIL         4096    /* read at once from the end */
#define CENTRAL_MOST (1u << 30)

/* A file as a source. */
typedef struct {
    int fd;
    const char *path;
} file_source_t;

typedef struct {
    const zip_source_t *source;
    const char *path;
    uint64_t offset, length; /* of the archive */
    uint64_t tail_at;        /* where in the archive the tail begins */
    unsigned char tail[TAIL];
    uint64_t central, central_size, num;
    uint64_t *starts; /* of the local headers, entry by entry */
    fsdp_error_t *err;
} reader_t;

static fsdp_status_t read_file(void *arg, uint64_t at, void *data, size_t bytes,
                               fsdp_error_t *err)
{
    const file_source_t *file = arg;

    return io_pread(file->fd, data, bytes, at, file->path, err);
}

static uint16_t u16(const unsigned char *data)
{
    uint16_t value;

    memcpy(&value, data, sizeof(value));
    return le16toh(value);
}

static uint32_t u32(const unsigned char *data)
{
    uint32_t value;

    memcpy(&value, data, sizeof(value));
    return le32toh(value);
}

static uint64_t u64(const unsigned char *data)
{
    uint64_t value;

    memcpy(&value, data, sizeof(value));
    return le64toh(value);
}

static fsdp_status_t bad(const reader_t *in, const char *why)
{
    errno = 0;
    return fsdp_error_set(in->err, FSDP_ERR_CORRUPT,
                          "%s: zip archive at %" PRIu64 ": %s", in->path,
                          in->offset, why);
}

static fsdp_status_t bad_entry(const reader_t *in, const char *name,
                               const char *why)
{
    errno = 0;
    return fsdp_error_set(in->err, FSDP_ERR_CORRUPT,
                          "%s: zip archive at %" PRIu64 ": entry %s: %s",
                          in->path, in->offset, name, why);
}

static fsdp_status_t no_memory(const reader_t *in)
{
    return fsdp_error_set(in->err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                          in->path);
}

/* Bytes of the archive, from the tail if they are there. */
static fsdp_status_t fetch(const reader_t *in, uint64_t at, void *data,
                           uint64_t size)
{
    if (at > in->length || size > in->length - at) {
        return bad(in, "a record leaves it");
    }
    if (at >= in->tail_at) {
        memcpy(data, in->tail + (at - in->tail_at), size);
        return FSDP_OK;
    }
    return in->source->read(in->source->arg, in->offset + at, data, size,
                            in->err);
}

/* --- The end -------------------------------------------------------------- */

/* The 64-bit end record, which stands right before its locator. */
static fsdp_status_t read_end64(reader_t *in, uint64_t locator_at,
                                const unsigned char *locator, uint64_t *at_p)
{
    unsigned char end[END64];
    uint64_t at = u64(locator + 8);

    if (u32(locator + 4) != 0 || u32(locator + 16) > 1) {
        return bad(in, "it claims to be one of several parts, which torch.save "
                       "never writes");
    }
    if (at > locator_at || locator_at - at < END64) {
        return bad(in, "its 64-bit end record is not where it should be");
    }
    FSDP_TRY(fetch(in, at, end, sizeof(end)));
    if (u32(end) != SIG_END64 || u64(end + 4) != locator_at - at - 12 ||
        u32(end + 16) != 0 || u32(end + 20) != 0 ||
        u64(end + 24) != u64(end + 32)) {
        return bad(in, "its 64-bit end record does not make sense");
    }

    in->num = u64(end + 32);
    in->central_size = u64(end + 40);
    in->central = u64(end + 48);
    *at_p = at;
    return FSDP_OK;
}

/* What the old record says must be the same, or say nothing. */
static bool agree(uint64_t small, uint64_t nothing, uint64_t large)
{
    return small == nothing || small == large;
}

static fsdp_status_t read_end(reader_t *in)
{
    uint64_t size = (in->length < TAIL) ? in->length : TAIL, at;
    unsigned char end[END], locator[LOCATOR];

    if (in->length < END) {
        return bad(in, "it is too short to be one");
    }
    in->tail_at = in->length - size;
    FSDP_TRY(in->source->read(in->source->arg, in->offset + in->tail_at,
                              in->tail, size, in->err));

    at = in->length - END;
    FSDP_TRY(fetch(in, at, end, sizeof(end)));
    if (u32(end) != SIG_END || u16(end + 20) != 0) {
        return bad(in, "it has no end record: it was cut short, or is no zip "
                       "archive");
    }
    if (u16(end + 4) != 0 || u16(end + 6) != 0) {
        return bad(in, "its end record does not make sense");
    }
    in->num = u16(end + 10);
    in->central_size = u32(end + 12);
    in->central = u32(end + 16);

    if (at >= LOCATOR) {
        FSDP_TRY(fetch(in, at - LOCATOR, locator, sizeof(locator)));
        if (u32(locator) == SIG_LOCATOR) {
            FSDP_TRY(read_end64(in, at - LOCATOR, locator, &at));
        }
    }
    if (!agree(u16(end + 8), UINT16_MAX, in->num) ||
        !agree(u16(end + 10), UINT16_MAX, in->num) ||
        !agree(u32(end + 12), UINT32_MAX, in->central_size) ||
        !agree(u32(end + 16), UINT32_MAX, in->central)) {
        return bad(in, "its two end records do not agree");
    }

    if (in->num == 0) {
        return bad(in, "it has no entries");
    }
    if (in->central > at || in->central_size != at - in->central ||
        in->central_size > CENTRAL_MOST ||
        in->num > in->central_size / CENTRAL) {
        return bad(in, "its directory is not where the end record says");
    }

    return FSDP_OK;
}

/* --- The directory -------------------------------------------------------- */

/* 64-bit values, where the 32-bit ones say so. */
static fsdp_status_t read_extra(const reader_t *in, const unsigned char *extra,
                                unsigned size, uint64_t *values[3])
{
    while (size >= 4) {
        unsigned id = u16(extra), length = u16(extra + 2);
        const unsigned char *data = extra + 4;

        if (length > size - 4) {
            return bad(in, "an extra field is longer than its place");
        }
        size -= 4 + length;
        extra += 4 + length;
        if (id != 1) {
            continue;
        }
        for (int i = 0; i < 3; i++) {
            if (*values[i] == UINT32_MAX) {
                if (length < 8) {
                    return bad(in, "a 64-bit size is missing");
                }
                *values[i] = u64(data);
                data += 8;
                length -= 8;
            }
        }
        return FSDP_OK;
    }

    return FSDP_OK;
}

/* A name has no '\0' and a '/' behind a first part, which all share. */
static fsdp_status_t check_name(const reader_t *in, zip_t *zip,
                                const char *name, size_t size)
{
    const char *slash = memchr(name, '/', size);

    if (strlen(name) != size || slash == NULL || slash == name) {
        return bad_entry(in, name, "its name is none that torch.save writes");
    }
    if (zip->prefix == 0) {
        zip->prefix = (uint32_t)(slash + 1 - name);
    }
    if (size < zip->prefix || memcmp(name, zip->names, zip->prefix) != 0) {
        return bad_entry(in, name, "its name begins unlike the first one's");
    }

    return FSDP_OK;
}

/* One entry at *at_p. */
static fsdp_status_t read_central(reader_t *in, zip_t *zip,
                                  const unsigned char *data, uint64_t *at_p,
                                  size_t *name_p)
{
    uint64_t rest = in->central_size - *at_p, usize, csize, start;
    const unsigned char *record = data + *at_p;
    unsigned name_size, extra_size, comment_size;
    uint64_t *values[3] = {&usize, &csize, &start};
    char *name = zip->names + *name_p;

    if (rest < CENTRAL || u32(record) != SIG_CENTRAL) {
        return bad(in, "its directory has fewer entries than it says");
    }
    name_size = u16(record + 28);
    extra_size = u16(record + 30);
    comment_size = u16(record + 32);
    if (rest - CENTRAL < (uint64_t)name_size + extra_size + comment_size) {
        return bad(in, "an entry of its directory leaves it");
    }

    memcpy(name, record + CENTRAL, name_size);
    name[name_size] = '\0';
    FSDP_TRY(check_name(in, zip, name, name_size));
    csize = u32(record + 20);
    usize = u32(record + 24);
    start = u32(record + 42);
    FSDP_TRY(read_extra(in, record + CENTRAL + name_size, extra_size, values));
    if ((u16(record + 8) & FLAGS_CRYPT) != 0 || u16(record + 10) != 0) {
        return fsdp_error_set(in->err, FSDP_ERR_UNSUPPORTED,
                              "%s: zip archive at %" PRIu64
                              ": entry %s is packed or encrypted, which "
                              "torch.save never does",
                              in->path, in->offset, name);
    }
    if (csize != usize || u16(record + 34) != 0) {
        return bad_entry(in, name, "its sizes do not agree");
    }

    zip->entries[zip->num] =
        (zip_entry_t){.name = name, .size = usize, .crc32 = u32(record + 16)};
    in->starts[zip->num++] = start;
    *name_p += (size_t)name_size + 1;
    *at_p += CENTRAL + (uint64_t)name_size + extra_size + comment_size;
    return FSDP_OK;
}

/* The local header says the same, and the data lies before the directory. */
static fsdp_status_t read_local(const reader_t *in, zip_entry_t *entry,
                                uint64_t start)
{
    size_t name_size = strlen(entry->name);
    unsigned char head[LOCAL];
    uint64_t at, csize, usize;
    char *name;
    bool same;

    if (start > in->central || in->central - start < LOCAL + name_size) {
        return bad_entry(in, entry->name, "it begins behind the directory");
    }
    FSDP_TRY(fetch(in, start, head, sizeof(head)));
    csize = u32(head + 18);
    usize = u32(head + 22);
    if (u32(head) != SIG_LOCAL || (u16(head + 6) & FLAGS_CRYPT) != 0 ||
        u16(head + 8) != 0 || u16(head + 26) != name_size ||
        ((u16(head + 6) & FLAG_BEHIND) == 0 &&
         (u32(head + 14) != entry->crc32 ||
          !agree(csize, UINT32_MAX, entry->size) ||
          !agree(usize, UINT32_MAX, entry->size)))) {
        return bad_entry(in, entry->name,
                         "its header and the directory do not agree");
    }

    name = malloc(name_size + 1);
    if (name == NULL) {
        return no_memory(in);
    }
    same = fetch(in, start + LOCAL, name, name_size) == FSDP_OK &&
           memcmp(name, entry->name, name_size) == 0;
    free(name);
    if (!same) {
        return bad_entry(in, entry->name, "its header has another name");
    }

    at = start + LOCAL + name_size + u16(head + 28);
    if (at > in->central || entry->size > in->central - at) {
        return bad_entry(in, entry->name,
                         "its data reaches over the directory");
    }
    entry->offset = in->offset + at;
    return FSDP_OK;
}

/* --- Order ---------------------------------------------------------------- */

static int by_offset(const void *a, const void *b)
{
    const zip_entry_t *left = a, *right = b;

    if (left->offset != right->offset) {
        return (left->offset > right->offset) - (left->offset < right->offset);
    }
    return (left->size > right->size) - (left->size < right->size);
}

static int by_entry_name(const void *a, const void *b, void *arg)
{
    const zip_entry_t *entries = arg;

    return strcmp(entries[*(const uint32_t *)a].name,
                  entries[*(const uint32_t *)b].name);
}

/* Between the data of two entries there is room for a header at least. */
static fsdp_status_t check_places(const reader_t *in, const zip_t *zip)
{
    for (uint32_t i = 1; i < zip->num; i++) {
        const zip_entry_t *entry = &zip->entries[i];
        const zip_entry_t *before = &zip->entries[i - 1];
        uint64_t end = before->offset + before->size;

        if (end > entry->offset ||
            entry->offset - end < LOCAL + strlen(entry->name)) {
            return bad_entry(in, entry->name, "it overlaps another entry");
        }
    }

    return FSDP_OK;
}

static fsdp_status_t check_names(const reader_t *in, zip_t *zip)
{
    for (uint32_t i = 0; i < zip->num; i++) {
        zip->by_name[i] = i;
    }
    qsort_r(zip->by_name, zip->num, sizeof(*zip->by_name), by_entry_name,
            zip->entries);
    for (uint32_t i = 1; i < zip->num; i++) {
        const char *name = zip->entries[zip->by_name[i]].name;

        if (strcmp(zip->entries[zip->by_name[i - 1]].name, name) == 0) {
            return bad_entry(in, name, "it is there twice");
        }
    }

    return FSDP_OK;
}

/* PyTorch writes 0 for all of them after set_crc32_options(False). */
static void find_crcs(zip_t *zip)
{
    bool has_crcs = false;

    for (uint32_t i = 0; i < zip->num; i++) {
        has_crcs |= zip->entries[i].crc32 != 0;
    }
    for (uint32_t i = 0; i < zip->num; i++) {
        zip->entries[i].has_crc = has_crcs;
    }
}

static fsdp_status_t read_entries(reader_t *in, zip_t *zip,
                                  const unsigned char *data)
{
    uint64_t at = 0;
    size_t name = 0;

    while (zip->num < in->num) {
        FSDP_TRY(read_central(in, zip, data, &at, &name));
    }
    if (at != in->central_size) {
        return bad(in, "its directory has more entries than it says");
    }
    for (uint32_t i = 0; i < zip->num; i++) {
        FSDP_TRY(read_local(in, &zip->entries[i], in->starts[i]));
    }

    qsort(zip->entries, zip->num, sizeof(*zip->entries), by_offset);
    find_crcs(zip);
    FSDP_TRY(check_places(in, zip));
    return check_names(in, zip);
}

void zip_close(zip_t *zip)
{
    free(zip->entries);
    free(zip->names);
    free(zip->by_name);
    *zip = (zip_t){0};
}

fsdp_status_t zip_open_from(const zip_source_t *source, const char *path,
                            uint64_t offset, uint64_t length, zip_t *zip,
                            fsdp_error_t *err)
{
    reader_t in = {.source = source,
                   .path = path,
                   .offset = offset,
                   .length = length,
                   .err = err};
    unsigned char *data = NULL;
    fsdp_status_t status;
    zip_t found = {0};

    FSDP_TRY(read_end(&in));
    data = malloc(in.central_size);
    found.entries = calloc(in.num, sizeof(*found.entries));
    found.names = malloc(in.central_size); /* 46 bytes of each are no name */
    found.by_name = calloc(in.num, sizeof(*found.by_name));
    in.starts = calloc(in.num, sizeof(*in.starts));
    if (data == NULL || found.entries == NULL || found.names == NULL ||
        found.by_name == NULL || in.starts == NULL) {
        status = no_memory(&in);
        goto err_free;
    }

    FSDP_TRY_GOTO(fetch(&in, in.central, data, in.central_size), err_free);
    FSDP_TRY_GOTO(read_entries(&in, &found, data), err_free);
    *zip = found;
    found = (zip_t){0};
err_free:
    zip_close(&found);
    free(data);
    free(in.starts);
    return status;
}

fsdp_status_t zip_open(int fd, const char *path, uint64_t offset,
                       uint64_t length, zip_t *zip, fsdp_error_t *err)
{
    file_source_t file = {fd, path};

    return zip_open_from(&(zip_source_t){read_file, &file}, path, offset,
                         length, zip, err);
}

/* --- Use ------------------------------------------------------------------ */

const zip_entry_t *zip_find(const zip_t *zip, const char *name)
{
    uint32_t lo = 0, hi = zip->num, mid;

    while (lo < hi) {
        const zip_entry_t *entry;
        int order;

        mid = lo + (hi - lo) / 2;
        entry = &zip->entries[zip->by_name[mid]];
        order = strcmp(entry->name + zip->prefix, name);
        if (order == 0) {
            return entry;
        }
        if (order < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }

    return NULL;
}

fsdp_status_t zip_read_from(const zip_source_t *source, const char *path,
                            const zip_entry_t *entry, void *data,
                            fsdp_error_t *err)
{
    FSDP_TRY(source->read(source->arg, entry->offset, data, entry->size, err));
    if (entry->has_crc && crc32_zip(0, data, entry->size) != entry->crc32) {
        errno = 0;
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: zip entry %s: its bytes do not have their "
                              "checksum: the file is damaged",
                              path, entry->name);
    }

    return FSDP_OK;
}

fsdp_status_t zip_read(int fd, const char *path, const zip_entry_t *entry,
                       void *data, fsdp_error_t *err)
{
    file_source_t file = {fd, path};

    return zip_read_from(&(zip_source_t){read_file, &file}, path, entry, data,
                         err);
}
