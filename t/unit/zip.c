#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/zip.h"
#include "lib/util/crc.h"
#include "t/tap/tap.h"

/* An archive in memory, as torch.save lays it out. */
typedef struct {
    unsigned char data[4096];
    size_t size, central, end64, end;
    size_t local[4]; /* of the entries */
    size_t record[4];
} archive_t;

static void put(archive_t *zip, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++) {
        zip->data[zip->size++] = (unsigned char)((i < 8) ? value >> (8 * i) : 0);
    }
}

static void put_text(archive_t *zip, const char *text)
{
    memcpy(zip->data + zip->size, text, strlen(text));
    zip->size += strlen(text);
}

static const char *const names[] = {"a/data.pkl", "a/data/0", "a/data/1",
                                    "a/version"};
static const char *const contents[] = {"hello", "0123456789", "", "3\n"};

static void build_it(archive_t *zip, bool has_crcs)
{
    uint32_t crcs[4] = {0};

    memset(zip, 0, sizeof(*zip));
    for (int i = 0; i < 4; i++) {
        bool empty = contents[i][0] == '\0';

        if (has_crcs) {
            crcs[i] = crc32_zip(0, contents[i], strlen(contents[i]));
        }
        zip->local[i] = zip->size;
        put(zip, 0x04034b50, 4);
        put(zip, 0, 2);
        put(zip, empty ? 0x0800 : 0x0808, 2);
        put(zip, 0, 2 + 4 + 4 + 4 + 4); /* method, time, crc, sizes */
        put(zip, strlen(names[i]), 2);
        put(zip, 6, 2);
        put_text(zip, names[i]);
        put(zip, 0x4246, 2);
        put(zip, 2, 2);
        put_text(zip, "ZZ");
        put_text(zip, contents[i]);
        if (!empty) {
            put(zip, 0x08074b50, 4);
            put(zip, crcs[i], 4);
            put(zip, strlen(contents[i]), 4);
            put(zip, strlen(contents[i]), 4);
        }
    }

    zip->central = zip->size;
    for (int i = 0; i < 4; i++) {
        zip->record[i] = zip->size;
        put(zip, 0x02014b50, 4);
        put(zip, 0, 4);
        put(zip, 0x0808, 2);
        put(zip, 0, 2 + 4);
        put(zip, crcs[i], 4);
        put(zip, strlen(contents[i]), 4);
        put(zip, strlen(contents[i]), 4);
        put(zip, strlen(names[i]), 2);
        put(zip, 0, 2 + 2 + 2 + 2 + 4);
        put(zip, zip->local[i], 4);
        put_text(zip, names[i]);
    }

    zip->end64 = zip->size;
    put(zip, 0x06064b50, 4);
    put(zip, 44, 8);
    put(zip, 0, 2 + 2 + 4 + 4);
    put(zip, 4, 8);
    put(zip, 4, 8);
    put(zip, zip->end64 - zip->central, 8);
    put(zip, zip->central, 8);
    put(zip, 0x07064b50, 4);
    put(zip, 0, 4);
    put(zip, zip->end64, 8);
    put(zip, 1, 4);
    zip->end = zip->size;
    put(zip, 0x06054b50, 4);
    put(zip, 0, 4);
    put(zip, 4, 2);
    put(zip, 4, 2);
    put(zip, zip->end64 - zip->central, 4);
    put(zip, 0xffffffff, 4);
    put(zip, 0, 2);
}

static void build(archive_t *zip)
{
    build_it(zip, true);
}

/* Open it as bytes [7, …) of a file. */
static fsdp_status_t open_it(const archive_t *archive, zip_t *zip, int *fd_p,
                             fsdp_error_t *err)
{
    char path[] = "/tmp/fsdp-zip-XXXXXX";
    int fd = mkstemp(path);
    fsdp_status_t status;

    unlink(path);
    if (pwrite(fd, archive->data, archive->size, 7) != (ssize_t)archive->size) {
        abort();
    }
    *zip = (zip_t){0};
    status = zip_open(fd, "z", 7, archive->size, zip, err);
    *fd_p = fd;
    return status;
}

static void test_good(void)
{
    archive_t archive;
    fsdp_error_t err;
    char text[16] = "";
    zip_t zip;
    int fd;

    build(&archive);
    ok(open_it(&archive, &zip, &fd, &err) == FSDP_OK && zip.num == 4,
       "an archive with 64-bit end records");
    for (int i = 0; i < 4; i++) {
        const zip_entry_t *entry = zip_find(&zip, names[i] + 2);

        memset(text, 0, sizeof(text));
        ok(entry != NULL && entry->size == strlen(contents[i]) &&
               zip_read(fd, "z", entry, text, &err) == FSDP_OK &&
               strcmp(text, contents[i]) == 0,
           "entry %s", names[i]);
    }
    ok(zip_find(&zip, "data") == NULL && zip_find(&zip, "") == NULL,
       "other names are not there");
    zip_close(&zip);
    close(fd);
}

/* What is changed: byte @a at of the archive to @a value. */
static void test_bad(void)
{
    archive_t good;

    build(&good);
    const struct {
        const char *what;
        size_t at;
        unsigned char value;
        fsdp_status_t status;
    } cases[] = {
        {"no end record",              good.end,            0,    FSDP_ERR_CORRUPT    },
        {"a comment",                  good.end + 20,       1,    FSDP_ERR_CORRUPT    },
        {"other number of entries",    good.end + 10,       5,    FSDP_ERR_CORRUPT    },
        {"several parts",              good.end - 4,        2,    FSDP_ERR_CORRUPT    },
        {"no 64-bit record",           good.end64,          0,    FSDP_ERR_CORRUPT    },
        {"64-bit record elsewhere",    good.end - 12,       0,    FSDP_ERR_CORRUPT    },
        {"no entries",                 good.end64 + 32,     0,    FSDP_ERR_CORRUPT    },
        {"10^18 entries",              good.end64 + 39,     0x0d, FSDP_ERR_CORRUPT    },
        {"a huge directory",           good.end64 + 46,     1,    FSDP_ERR_CORRUPT    },
        {"directory elsewhere",        good.end64 + 48,     1,    FSDP_ERR_CORRUPT    },
        {"no directory record",        good.record[1],      0,    FSDP_ERR_CORRUPT    },
        {"encrypted",                  good.record[1] + 8,  9,    FSDP_ERR_UNSUPPORTED},
        {"packed",                     good.record[1] + 10, 8,    FSDP_ERR_UNSUPPORTED},
        {"two sizes",                  good.record[1] + 20, 9,    FSDP_ERR_CORRUPT    },
        {"a long name",                good.record[1] + 29, 1,    FSDP_ERR_CORRUPT    },
        {"a name with NUL",            good.record[1] + 47, 0,    FSDP_ERR_CORRUPT    },
        {"a name of another archive",  good.record[1] + 46, 'b',
         FSDP_ERR_CORRUPT                                                             },
        {"a name twice",               good.record[2] + 53, '0',  FSDP_ERR_CORRUPT    },
        {"a name unlike the header's", good.record[2] + 53, '2',
         FSDP_ERR_CORRUPT                                                             },
        {"data of another entry",      good.record[1] + 42, 0,    FSDP_ERR_CORRUPT    },
        {"data behind the directory",  good.record[1] + 43, 9,    FSDP_ERR_CORRUPT    },
        {"no local header",            good.local[1],       0,    FSDP_ERR_CORRUPT    },
        {"local header packed",        good.local[1] + 8,   8,    FSDP_ERR_CORRUPT    },
        {"local extra too long",       good.local[1] + 29,  9,    FSDP_ERR_CORRUPT    },
        {"sizes in the local header",  good.local[2] + 22,  1,    FSDP_ERR_CORRUPT    },
    };
    archive_t archive;
    fsdp_error_t err;
    zip_t zip;
    int fd;

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        fsdp_status_t status;

        build(&archive);
        archive.data[cases[i].at] = cases[i].value;
        status = open_it(&archive, &zip, &fd, &err);
        ok(status == cases[i].status, "%s", cases[i].what);
        if (status != cases[i].status) {
            printf("# %d %s\n", status, status ? err.text : "");
        }
        zip_close(&zip);
        close(fd);
    }
}

/* An entry over another one: its size and its name are right. */
static void test_overlap(void)
{
    archive_t archive;
    fsdp_error_t err;
    zip_t zip;
    int fd;

    build(&archive);
    archive.data[archive.record[0] + 20] = 40; /* into the next header */
    archive.data[archive.record[0] + 24] = 40;
    ok(open_it(&archive, &zip, &fd, &err) == FSDP_ERR_CORRUPT &&
           strstr(err.text, "overlaps") != NULL,
       "entries that overlap");
    zip_close(&zip);
    close(fd);
}

/* Every length and every changed bit: an error, or the same entries. */
static void test_all(void)
{
    archive_t archive;
    fsdp_error_t err;
    bool good = true;
    zip_t zip;
    int fd;

    build(&archive);
    for (size_t size = 0, whole = archive.size; size < whole; size++) {
        archive.size = size;
        good = good && open_it(&archive, &zip, &fd, &err) != FSDP_OK;
        zip_close(&zip);
        close(fd);
    }
    ok(good, "each shorter archive is refused");

    build(&archive);
    for (size_t bit = 0; bit < 8 * archive.size; bit++) {
        archive.data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        if (open_it(&archive, &zip, &fd, &err) == FSDP_OK) {
            for (uint32_t i = 0; i < zip.num; i++) {
                const zip_entry_t *entry = &zip.entries[i];
                char text[64];
                bool read = entry->size < sizeof(text) &&
                            zip_read(fd, "z", entry, text, &err) == FSDP_OK;

                good = good &&
                       (!read ||
                        (zip.num == 4 && entry->size == strlen(contents[i]) &&
                         memcmp(text, contents[i], entry->size) == 0));
            }
        }
        zip_close(&zip);
        close(fd);
        archive.data[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    ok(good, "each changed bit is found, or changes nothing");
}

/* As PyTorch writes it after set_crc32_options(False). */
static void test_no_crcs(void)
{
    archive_t archive;
    fsdp_error_t err;
    char text[16] = "";
    zip_t zip;
    int fd;

    build_it(&archive, false);
    ok(open_it(&archive, &zip, &fd, &err) == FSDP_OK &&
           !zip.entries[0].has_crc &&
           zip_read(fd, "z", zip_find(&zip, "data/0"), text, &err) == FSDP_OK &&
           strcmp(text, contents[1]) == 0,
       "an archive without checksums");
    zip_close(&zip);
    close(fd);
}

int main(void)
{
    test_good();
    test_no_crcs();
    test_bad();
    test_overlap();
    test_all();
    return tap_done();
}
