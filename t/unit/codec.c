/*
 * Steps of a codec: known answers, whole and byte by byte; and bytes that are
 * damaged in one way each.
 */
#include "config.h"

#include <string.h>

#include "ckpt/codec.h"
#include "t/tap/tap.h"

typedef struct {
    const char *what;
    codec_step_t steps[3];
    unsigned num;
    const char *encoded;
    size_t length;
    const char *decoded; /* NULL: it is damaged */
    size_t bytes;
} case_t;

#define BYTES(_text) _text, sizeof(_text) - 1
#define DAMAGED      NULL, 0
#define ZLIB         "\x78\xda\x4b\x4c\x4a\x4e\x84\x21\x00\x1d\xe0\x04\x99"

static const case_t cases[] = {
    {"no step",                               {{0}},                0, BYTES("abc"),                  BYTES("abc")                                              },
    {"nothing",                               {{CODEC_SHUFFLE, 4}}, 1, BYTES(""),                     BYTES("")                                                 },
    {"shuffled, and two bytes more",
     {{CODEC_SHUFFLE, 3}},
     1,                                                                BYTES("adbecfxy"),
     BYTES("abcdefxy")                                                                                                                                          },
    {"big-endian",                            {{CODEC_SWAP, 4}},    1, BYTES("abcdefgh"),             BYTES("dcbahgfe")                                         },
    {"big-endian and shuffled",
     {{CODEC_SHUFFLE, 2}, {CODEC_SWAP, 2}},
     2,                                                                BYTES("acbd"),
     BYTES("badc")                                                                                                                                              },
    {"a checksum",
     {{CODEC_FLETCHER32, 0}},
     1,                                                                BYTES("\1\2\3\4\x06\4\x08\5"),
     BYTES("\1\2\3\4")                                                                                                                                          },
    {"the checksum as old versions wrote it",
     {{CODEC_FLETCHER32, 0}},
     1,                                                                BYTES("\1\2\3\4\4\x06\5\x08"),
     BYTES("\1\2\3\4")                                                                                                                                          },
    {"another checksum",
     {{CODEC_FLETCHER32, 0}},
     1,                                                                BYTES("\1\2\3\5\x06\4\x08\5"),
     DAMAGED                                                                                                                                                    },
    {"no room for a checksum",
     {{CODEC_FLETCHER32, 0}},
     1,                                                                BYTES("abc"),
     DAMAGED                                                                                                                                                    },
    {"LZF: as they are",                      {{CODEC_LZF, 3}},     1, BYTES("\2abc"),                BYTES("abc")                                              },
    {"LZF: repeated",
     {{CODEC_LZF, 6}},
     1,                                                                BYTES("\1ab\x40\1"),
     BYTES("ababab")                                                                                                                                            },
    {"LZF: repeated often",
     {{CODEC_LZF, 11}},
     1,                                                                BYTES("\0a\xe0\1\0"),
     BYTES("aaaaaaaaaaa")                                                                                                                                       },
    {"LZF: from before the beginning",
     {{CODEC_LZF, 5}},
     1,                                                                BYTES("\0a\x40\1"),
     DAMAGED                                                                                                                                                    },
    {"LZF: more than there are",              {{CODEC_LZF, 5}},     1, BYTES("\4a"),                  DAMAGED                                                   },
    {"LZF: more than there should be",
     {{CODEC_LZF, 2}},
     1,                                                                BYTES("\2abc"),
     DAMAGED                                                                                                                                                    },
    {"LZF: fewer than there should be",
     {{CODEC_LZF, 4}},
     1,                                                                BYTES("\2abc"),
     DAMAGED                                                                                                                                                    },
    {"LZF: cut in a length",                  {{CODEC_LZF, 4}},     1, BYTES("\0a\xe0"),              DAMAGED                                                   },
    {"deflated",                              {{CODEC_DEFLATE, 0}}, 1, BYTES(ZLIB),                   BYTES("abcabcabcabc")                                     },
    {"deflated and shuffled",
     {{CODEC_DEFLATE, 0}, {CODEC_SHUFFLE, 6}},
     2,                                                                BYTES(ZLIB),
     BYTES("acbacbbacbac")                                                                                                                                      },
    {"deflated, cut",                         {{CODEC_DEFLATE, 0}}, 1, ZLIB,                          6,                                                          DAMAGED},
    {"deflated, cut before its checksum",
     {{CODEC_DEFLATE, 0}},
     1,                                             ZLIB,
     9,                                                                                                         DAMAGED},
    {"deflated, with another checksum",
     {{CODEC_DEFLATE, 0}},
     1,                     BYTES("\x78\xda\x4b\x4c\x4a\x4e\x84\x21\x00\x1d\xe0\x04\x98"),
     DAMAGED                                                                                                                                                          },
    {"no zlib",                                 {{CODEC_DEFLATE, 0}},                                                     1,                                              BYTES("\1\2\3\4\5\6\7\x08"),                       DAMAGED},
    {"a step that is not known",                                {{99, 0}},                                                    1,                            BYTES("abc"),DAMAGED                                                                                                                               },
};

static fsdp_status_t source(void *arg, uint64_t at, void *data, size_t bytes,
                            fsdp_error_t *err)
{
    const case_t *one = arg;

    if (at > one->length || bytes > one->length - at) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM, "not there");
    }
    memcpy(data, one->encoded + at, bytes);
    return FSDP_OK;
}

/* Decode @a step bytes at a time.
 * @return how many there were, or -1. */
static int decode(const case_t *one, size_t step, char *data, size_t room)
{
    const codec_config_t config = {.steps = one->steps,
                                   .num_steps = one->num,
                                   .length = one->length,
                                   .source = source,
                                   .arg = (void *)one,
                                   .max_mem = 1 << 20,
                                   .what = "it"};
    fsdp_status_t status;
    size_t total = 0, got;
    codec_t *codec;

    if (codec_open(&config, &codec, NULL) != FSDP_OK) {
        return -1;
    }
    do {
        size_t n = (room - total < step) ? room - total : step;

        status = codec_read(codec, data + total, n, &got, NULL);
        total += (status == FSDP_OK) ? got : 0;
    } while (status == FSDP_OK && got > 0);
    codec_close(codec);
    return (status == FSDP_OK) ? (int)total : -1;
}

int main(void)
{
    static const size_t steps[] = {1, 5, 64};
    char data[64];

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const case_t *one = &cases[i];

        for (size_t s = 0; s < sizeof(steps) / sizeof(*steps); s++) {
            int got = decode(one, steps[s], data, sizeof(data));

            ok((one->decoded == NULL)
                   ? got == -1
                   : got == (int)one->bytes &&
                         memcmp(data, one->decoded, one->bytes) == 0,
               "%s, %zu at a time", one->what, steps[s]);
        }
    }
    return tap_done();
}
