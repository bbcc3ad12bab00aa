#include "config.h"

#include "ckpt/zip_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/util/crc.h"

#define ALIGN       64
#define MOST_16     0xffffu
#define MOST_32     0xffffffffull
#define UTF8        0x0800 /* names are */
#define ZIP_VERSION 45     /* of zip, that is needed: it has 64-bit sizes */

void zip_write_free(zip_writer_t *zip)
{
    buffer_free(&zip->out);
    free(zip->entries);
    *zip = (zip_writer_t){0};
}

/* --- Bytes ---------------------------------------------------------------- */

static void add_number(zip_writer_t *zip, uint64_t value, unsigned size)
{
    char text[8];

    for (unsigned i = 0; i < size; i++) {
        text[i] = (char)(value >> (8 * i));
    }
    buffer_add(&zip->out, text, size);
}

/* Where the next byte goes. */
static uint64_t place(const zip_writer_t *zip)
{
    return zip->at + zip->out.size;
}

static uint64_t at_most(uint64_t value, uint64_t most)
{
    return (value < most) ? value : most;
}

bool zip_write_take(zip_writer_t *zip, uint64_t pass, char **data_p,
                    size_t *size_p)
{
    if (zip->out.failed) {
        return false;
    }

    *data_p = zip->out.data;
    *size_p = zip->out.size;
    zip->at = place(zip) + pass;
    zip->out = (buffer_t){0};
    return true;
}

/* --- Entries -------------------------------------------------------------- */

static bool add_to_list(zip_writer_t *zip, const zip_entry_out_t *entry)
{
    if (zip->num == zip->max_entries) {
        size_t max = 2 * zip->max_entries + 8;
        zip_entry_out_t *larger =
            reallocarray(zip->entries, max, sizeof(*larger));

        if (larger == NULL) {
            zip->out.failed = true;
            return false;
        }
        zip->entries = larger;
        zip->max_entries = max;
    }

    zip->entries[zip->num++] = *entry;
    return true;
}

/* What local header and directory have in common. */
static void add_common(zip_writer_t *zip, const zip_entry_out_t *entry,
                       size_t extra)
{
    add_number(zip, ZIP_VERSION, 2);
    add_number(zip, UTF8, 2);
    add_number(zip, 0, 2); /* stored */
    add_number(zip, 0, 4); /* time and date */
    add_number(zip, entry->crc32, 4);
    add_number(zip, at_most(entry->size, MOST_32), 4);
    add_number(zip, at_most(entry->size, MOST_32), 4);
    add_number(zip, strlen(entry->name), 2);
    add_number(zip, extra, 2);
}

void zip_write_header(zip_writer_t *zip, const char *name, uint64_t size,
                      uint32_t crc32)
{
    zip_entry_out_t entry = {.size = size, .at = place(zip), .crc32 = crc32};
    size_t extra = (size >= MOST_32) ? 20 : 0, pad;

    snprintf(entry.name, sizeof(entry.name), ZIP_WRITE_PREFIX "%s", name);
    if (!add_to_list(zip, &entry)) {
        return;
    }

    pad = -(entry.at + 30 + strlen(entry.name) + extra + 4) % ALIGN;
    buffer_add(&zip->out, "PK\3\4", 4);
    add_common(zip, &entry, extra + 4 + pad);
    buffer_add(&zip->out, entry.name, strlen(entry.name));
    if (extra > 0) {
        add_number(zip, 1, 2);
        add_number(zip, 16, 2);
        add_number(zip, size, 8);
        add_number(zip, size, 8);
    }
    buffer_add(&zip->out, "FB", 2);
    add_number(zip, pad, 2);
    for (size_t i = 0; i < pad; i++) {
        buffer_add(&zip->out, "Z", 1);
    }
}

void zip_write_entry(zip_writer_t *zip, const char *name, const char *data,
                     size_t size)
{
    zip_write_header(zip, name, size, crc32_zip(0, data, size));
    buffer_add(&zip->out, data, size);
}

/* --- The directory -------------------------------------------------------- */

static void add_to_directory(zip_writer_t *zip, const zip_entry_out_t *entry)
{
    bool large = entry->size >= MOST_32, far = entry->at >= MOST_32;
    size_t extra = (large ? 16u : 0) + (far ? 8u : 0);

    buffer_add(&zip->out, "PK\1\2", 4);
    add_number(zip, ZIP_VERSION, 2);
    add_common(zip, entry, (extra > 0) ? 4 + extra : 0);
    add_number(zip, 0, 2); /* comment */
    add_number(zip, 0, 2); /* disk */
    add_number(zip, 0, 6); /* attributes */
    add_number(zip, at_most(entry->at, MOST_32), 4);
    buffer_add(&zip->out, entry->name, strlen(entry->name));
    if (extra > 0) {
        add_number(zip, 1, 2);
        add_number(zip, extra, 2);
    }
    if (large) {
        add_number(zip, entry->size, 8);
        add_number(zip, entry->size, 8);
    }
    if (far) {
        add_number(zip, entry->at, 8);
    }
}

void zip_write_end(zip_writer_t *zip)
{
    uint64_t begin, end;

    zip_write_entry(zip, "version", "3\n", 2);
    begin = place(zip);
    for (size_t i = 0; i < zip->num; i++) {
        add_to_directory(zip, &zip->entries[i]);
    }
    end = place(zip);

    buffer_add(&zip->out, "PK\6\6", 4);
    add_number(zip, 44, 8);
    add_number(zip, ZIP_VERSION, 2);
    add_number(zip, ZIP_VERSION, 2);
    add_number(zip, 0, 8); /* disks */
    add_number(zip, zip->num, 8);
    add_number(zip, zip->num, 8);
    add_number(zip, end - begin, 8);
    add_number(zip, begin, 8);
    buffer_add(&zip->out, "PK\6\7", 4);
    add_number(zip, 0, 4);
    add_number(zip, end, 8);
    add_number(zip, 1, 4);
    buffer_add(&zip->out, "PK\5\6", 4);
    add_number(zip, 0, 4); /* disks */
    add_number(zip, at_most(zip->num, MOST_16), 2);
    add_number(zip, at_most(zip->num, MOST_16), 2);
    add_number(zip, at_most(end - begin, MOST_32), 4);
    add_number(zip, at_most(begin, MOST_32), 4);
    add_number(zip, 0, 2);
}
