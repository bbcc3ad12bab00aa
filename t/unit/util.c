#include "config.h"

#include <string.h>

#include "lib/util/crc.h"
#include "lib/util/size.h"
#include "t/tap/tap.h"

static void test_sizes(void)
{
    static const struct {
        const char *text;
        bool good;
        uint64_t bytes;
    } sizes[] = {
        {"0",         true,  0            },
        {"512",       true,  512          },
        {"64K",       true,  65536        },
        {"64KiB",     true,  65536        },
        {"5GB",       true,  5000000000   },
        {"5GiB",      true,  5368709120   },
        {"2t",        true,  2199023255552},
        {"7B",        true,  7            },
        {"",          false, 0            },
        {"-1",        false, 0            },
        {"1.5G",      false, 0            },
        {"1Gx",       false, 0            },
        {"99999999T", false, 0            },
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

int main(void)
{
    test_sizes();
    test_crc();
    return tap_done();
}
