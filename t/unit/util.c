#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/util/crc.h"
#include "lib/util/io.h"
#include "lib/util/json_text.h"
#include "lib/util/size.h"
#include "t/tap/tap.h"

static void test_sizes(void)
{
    static const struct {
        const char *text;
        bool good;
        uint64_t bytes;
    } sizes[] = {
        {"0",                true,  0                      },
        {"512",              true,  512                    },
        {"64K",              true,  65536                  },
        {"64KiB",            true,  65536                  },
        {"5GB",              true,  5000000000             },
        {"5GiB",             true,  5368709120             },
        {"2t",               true,  2199023255552          },
        {"7B",               true,  7                      },
        {"",                 false, 0                      },
        {"-1",               false, 0                      },
        {"1.5G",             true,  1610612736             },
        {"1.5GB",            true,  1500000000             },
        {"0.25kb",           true,  250                    },
        {"2.000001M",        true,  2097153                },
        {"1.5",              false, 0                      },
        {"1.5B",             false, 0                      },
        {"1.G",              false, 0                      },
        {".5G",              false, 0                      },
        {"1.2345678G",       false, 0                      },
        {"16777215.999999T", true,  18446744073708452104ull},
        {"16777216T",        false, 0                      },
        {"1Gx",              false, 0                      },
        {"99999999T",        false, 0                      },
    };
    char text[SIZE_TEXT_MAX];

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        uint64_t bytes = 0;
        bool good = size_parse(sizes[i].text, &bytes);

        ok(good == sizes[i].good && bytes == sizes[i].bytes, "size '%s'",
           sizes[i].text);
    }

    ok(strcmp(size_format(1023, text), "1023 B") == 0, "%s", text);
    ok(strcmp(size_format(1536, text), "1.50 KiB") == 0, "%s", text);
    ok(strcmp(size_format(1ull << 30, text), "1.00 GiB") == 0, "%s", text);
    ok(strcmp(size_format((1ull << 20) - 1, text), "1.00 MiB") == 0, "%s",
       text);
}

static void test_crc(void)
{
    const char *text = "123456789";
    uint32_t head = crc32c(0, text, 4), tail = crc32c(0, text + 4, 5);

    ok(crc32c(0, text, 9) == 0xe3069283u, "CRC-32C of the check string");
    ok(crc32_zip(0, text, 9) == 0xcbf43926u, "CRC-32 of the check string");
    ok(crc32c(head, text + 4, 5) == 0xe3069283u, "continued");
    ok(crc32c_join(head, tail, 5) == 0xe3069283u, "joined");
    ok(crc32c_join(head, 0, 0) == head, "joined with nothing");
}

/* Each text is the shortest that comes back. */
static void test_json(void)
{
    static const char *const texts[] = {
        "{\"a\":[0.0003,{\"b\":1e-8}],\"c\":3}",
        "[0.1,0.30000000000000004]",
        "[]",
        "[1.7976931348623157e308]",
        "\"text\"",
    };

    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        json_t *value = json_loads(texts[i], JSON_DECODE_ANY, NULL);
        char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY |
                                           json_text_digits(value));
        json_t *back = json_loads(text, JSON_DECODE_ANY, NULL);

        /* One number that needs all digits gives them to all. */
        ok(json_equal(value, back) &&
               (strcmp(text, texts[i]) == 0 || strlen(texts[i]) == 25),
           "%s is written as %s", texts[i], text);
        json_decref(back);
        json_decref(value);
        free(text);
    }
}

/* Buffers longer and shorter than one call writes, in any order. */
static void test_vectors(void)
{
    enum { SIZE = 3 << 20, MOST = 1000 };
    static const size_t ends[] = {5, 5, 1500000, 1500001, 2024289, 2600000};
    unsigned char *data = malloc(SIZE), *back = calloc(1, SIZE);
    struct iovec iov[MOST];
    int fd = memfd_create("vectors", MFD_CLOEXEC);
    size_t num = 0, at = 0;
    fsdp_error_t err;

    for (size_t i = 0; i < SIZE; i++) {
        data[i] = (unsigned char)(i * 2654435761u >> 13);
    }
    for (; num < sizeof(ends) / sizeof(*ends); at = ends[num++]) {
        iov[num] = (struct iovec){data + at, ends[num] - at};
    }
    for (; num < MOST - 1; at += 101) {
        iov[num++] = (struct iovec){data + at, 101};
    }
    iov[num++] = (struct iovec){data + at, SIZE - at};

    ok(io_pwritev(fd, iov, num, 7, "vectors", &err) == FSDP_OK &&
           io_pread(fd, back, SIZE, 7, "vectors", &err) == FSDP_OK &&
           memcmp(data, back, SIZE) == 0,
       "%zu buffers written at once", num);
    close(fd);
    free(data);
    free(back);
}

/* What a message is about, and its cure, stay, whatever is between them. */
static void test_messages(void)
{
    char name[2000] = "", whole[sizeof(((fsdp_error_t *)NULL)->text)] = "";
    fsdp_error_t err;
    size_t size;

    memset(name, 'x', sizeof(name) - 1);
    errno = ENOENT;
    fsdp_error_set(&err, FSDP_ERR_IO, "tensor %s: %m: rename it", name);
    size = strlen(err.text);
    ok(size == sizeof(err.text) - 1 && strncmp(err.text, "tensor xx", 9) == 0 &&
           strstr(err.text, "xx...xx") != NULL &&
           strcmp(err.text + size - 40,
                  "xxx: No such file or directory: rename it" + 1) == 0,
       "a message that is too long loses its middle: %s", err.text);
    ok(errno == ENOENT, "and errno is left");

    memset(whole, 'y', sizeof(whole) - 1);
    fsdp_error_set(&err, FSDP_ERR_IO, "%s", whole);
    ok(strcmp(err.text, whole) == 0, "one that just fits is whole");
}

int main(void)
{
    test_sizes();
    test_messages();
    test_crc();
    test_json();
    test_vectors();
    return tap_done();
}
