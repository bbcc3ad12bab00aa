#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/catalog.h"
#include "lib/util/io.h"
#include "t/tap/tap.h"

static char dir[] = "/tmp/fsdp-catalog.XXXXXX";

/* --- Names and shapes ----------------------------------------------------- */

static void test_lookup(void)
{
    static const char *const names[] = {"model/b", "model/a", "model/c.d",
                                        "model/c"};
    uint64_t dims[] = {3, 5}, tensor = 99;
    catalog_t cat;
    fsdp_error_t err = {0};
    bool good = true;

    catalog_init(&cat);
    for (int i = 0; i < 4; i++) {
        good &=
            catalog_add_tensor(&cat, names[i], FSDP_DTYPE_BF16, 2, dims,
                               i < 2 ? "wte" : "h.0", NULL, &err) == FSDP_OK;
    }
    good &= catalog_add_alias(&cat, "model/tied", "model/c", &err) == FSDP_OK;
    good &= catalog_seal(&cat, 0, &err) == FSDP_OK;
    ok(good, "four tensors and an alias");
    for (int i = 0; i < 4; i++) {
        ok(catalog_find(&cat, names[i], &tensor) &&
               strcmp(cat.tensors[tensor].name, names[i]) == 0 &&
               cat.tensors[tensor].order == (uint32_t)i &&
               cat.tensors[tensor].bytes == 30,
           "%s is found", names[i]);
    }
    ok(catalog_find(&cat, "model/tied", &tensor) &&
           strcmp(cat.tensors[tensor].name, "model/c") == 0,
       "an alias is found");
    ok(!catalog_find(&cat, "model/", &tensor) &&
           !catalog_find(&cat, "", &tensor) &&
           !catalog_find(&cat, "model/z", &tensor),
       "others are not");
    ok(cat.num_units == 2 && strcmp(cat.units[0], "wte") == 0, "two units");
    catalog_free(&cat);
}

static void test_shapes(void)
{
    static const struct {
        uint32_t ndim;
        uint64_t dims[3];
        fsdp_dtype_t dtype;
        bool good;
        uint64_t numel, bytes;
    } shapes[] = {
        {0, {0},                      FSDP_DTYPE_F32,     true,  1, 4},
        {2, {0, UINT64_MAX},          FSDP_DTYPE_F32,     true,  0, 0},
        {3, {UINT64_MAX, 0, 7},       FSDP_DTYPE_F64,     true,  0, 0},
        {1, {7},                      FSDP_DTYPE_F4,      true,  7, 4},
        {1, {5},                      FSDP_DTYPE_F6_E2M3, true,  5, 4},
        {2, {1ull << 40, 1ull << 40}, FSDP_DTYPE_U8,      false, 0, 0},
        {1, {1ull << 62},             FSDP_DTYPE_F32,     false, 0, 0},
        {1, {1},                      (fsdp_dtype_t)23,   false, 0, 0},
    };
    catalog_t cat;

    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
        fsdp_error_t err = {0};
        fsdp_status_t status;

        catalog_init(&cat);
        status = catalog_add_tensor(&cat, "t", shapes[i].dtype, shapes[i].ndim,
                                    shapes[i].dims, NULL, NULL, &err);
        ok(status == (shapes[i].good ? FSDP_OK : FSDP_ERR_CORRUPT) &&
               (!shapes[i].good || (cat.tensors[0].numel == shapes[i].numel &&
                                    cat.tensors[0].bytes == shapes[i].bytes)),
           "shape %zu%s%s", i, shapes[i].good ? "" : ": ", err.text);
        catalog_free(&cat);
    }
}

static void test_twice(void)
{
    uint64_t dims[] = {1};
    fsdp_error_t err = {0};
    catalog_t cat;

    for (int i = 0; i < 3; i++) {
        catalog_init(&cat);
        catalog_add_tensor(&cat, "a", FSDP_DTYPE_F32, 1, dims, NULL, NULL,
                           &err);
        if (i == 0) {
            catalog_add_tensor(&cat, "a", FSDP_DTYPE_F32, 1, dims, NULL, NULL,
                               &err);
        } else {
            catalog_add_alias(&cat, i == 1 ? "a" : "b", i == 1 ? "a" : "gone",
                              &err);
        }
        ok(catalog_seal(&cat, 0, &err) == FSDP_ERR_CORRUPT, "%s", err.text);
        catalog_free(&cat);
    }
}

/* --- Pieces and files ----------------------------------------------------- */

enum { NUMEL = 100, FILE_SIZE = 4000 };

typedef struct {
    const char *what;
    uint64_t first, count, offset;
    const char *text; /* in the error */
} odd_t;

/* One tensor of 100 floats in pieces [0, 40), [40, 60) and a third one. */
static fsdp_status_t seal_with(const odd_t *odd, fsdp_error_t *err)
{
    catalog_piece_t pieces[] = {
        {.first = 40,         .count = 20, .offset = 1000, .crc_first = CATALOG_NONE},
        {.first = 0,          .count = 40, .offset = 2000, .crc_first = CATALOG_NONE},
        {.first = odd->first,
         .count = odd->count,
         .offset = odd->offset,
         .crc_first = CATALOG_NONE                                                  },
    };
    uint64_t dims[] = {NUMEL};
    fsdp_status_t status;
    catalog_t cat;
    uint32_t file;

    catalog_init(&cat);
    cat.path = cat.root = dir;
    catalog_add_file(&cat, "data", FILE_SIZE, &file, err);
    catalog_add_tensor(&cat, "t", FSDP_DTYPE_F32, 1, dims, NULL, NULL, err);
    for (int i = 0; i < 3; i++) {
        catalog_add_piece(&cat, &pieces[i], err);
    }
    status = catalog_seal(&cat, CATALOG_CHECK_ALL, err);
    if (status == FSDP_OK &&
        (cat.pieces[0].first != 0 || cat.pieces[2].first != 60 ||
         catalog_find_piece(&cat, 0, 59) != 1 ||
         catalog_find_piece(&cat, 0, 60) != 2 ||
         catalog_find_piece(&cat, 0, NUMEL) != 3)) {
        status = FSDP_ERR_BAD_STATE;
    }
    catalog_free(&cat);
    return status;
}

static void test_pieces(void)
{
    static const odd_t odds[] = {
        {"whole",       60, 40,              0,               NULL                               },
        {"a hole",      61, 39,              0,               "elements [60, 61) are in no file" },
        {"a short end", 60, 39,              0,               "elements [99, 100) are in no file"},
        {"an overlap",  59, 41,              0,               "in another piece too"             },
        {"a copy",      40, 20,              0,               "in another piece too"             },
        {"too far",     60, 41,              0,               "the tensor has fewer"             },
        {"wrapping",    60, UINT64_MAX - 10, 0,               "the tensor has fewer"             },
        {"at the end",  60, 40,              FILE_SIZE - 160, NULL                               },
        {"behind it",   60, 40,              FILE_SIZE - 159, "behind the end of the file"       },
        {"far behind",  60, 40,              UINT64_MAX - 8,  "behind the end of the file"       },
        {"none",        60, 0,               0,               "elements [60, 100) are in no file"},
    };
    char *path = io_path("%s/data", dir);

    for (size_t i = 0; i < sizeof(odds) / sizeof(*odds); i++) {
        fsdp_error_t err = {0};
        fsdp_status_t status;

        status = io_replace_file(path, (char[FILE_SIZE]){0}, FILE_SIZE, NULL);
        if (status == FSDP_OK) {
            status = seal_with(&odds[i], &err);
        }
        ok(odds[i].text == NULL ? status == FSDP_OK
                                : status == FSDP_ERR_CORRUPT &&
                                      strstr(err.text, odds[i].text) != NULL &&
                                      strstr(err.text, "tensor t") != NULL,
           "third piece is %s: %s", odds[i].what, err.text);
    }
    free(path);
}

static void test_files(void)
{
    const odd_t whole = {"whole", 60, 40, 0, NULL};
    char *path = io_path("%s/data", dir);
    char data[FILE_SIZE + 1] = {0};
    fsdp_error_t err = {0};

    for (size_t size = FILE_SIZE - 1; size <= FILE_SIZE + 1; size++) {
        io_replace_file(path, data, size, NULL);
        ok((seal_with(&whole, &err) == FSDP_OK) == (size == FILE_SIZE),
           "a file of %zu bytes: %s", size, err.text);
    }
    unlink(path);
    ok(seal_with(&whole, &err) == FSDP_ERR_CORRUPT &&
           strstr(err.text, "missing") != NULL,
       "%s", err.text);
    free(path);
}

/* --- Conversions ---------------------------------------------------------- */

static void test_cast(void)
{
    static const struct {
        fsdp_dtype_t from, to;
        uint64_t in, out;
    } casts[] = {
        {FSDP_DTYPE_BF16, FSDP_DTYPE_F32,  0x3f80,             0x3f800000        },
        {FSDP_DTYPE_F32,  FSDP_DTYPE_BF16, 0x3f808000,         0x3f80            },
        {FSDP_DTYPE_F32,  FSDP_DTYPE_BF16, 0x3f808001,         0x3f81            },
        {FSDP_DTYPE_F32,  FSDP_DTYPE_BF16, 0x3f818000,         0x3f82            },
        {FSDP_DTYPE_F32,  FSDP_DTYPE_BF16, 0x7f7fffff,         0x7f80            },
        {FSDP_DTYPE_F32,  FSDP_DTYPE_BF16, 0x80000000,         0x8000            },
        {FSDP_DTYPE_F32,  FSDP_DTYPE_BF16, 0x00000001,         0x0000            },
        {FSDP_DTYPE_F32,  FSDP_DTYPE_BF16, 0x00018000,         0x0002            },
        {FSDP_DTYPE_F32,  FSDP_DTYPE_F16,  0x477fefff,         0x7bff            },
        {FSDP_DTYPE_F32,  FSDP_DTYPE_F16,  0x477ff000,         0x7c00            },
        {FSDP_DTYPE_F32,  FSDP_DTYPE_F16,  0x33800000,         0x0001            },
        {FSDP_DTYPE_F32,  FSDP_DTYPE_F16,  0x33000000,         0x0000            },
        {FSDP_DTYPE_F32,  FSDP_DTYPE_F16,  0x33000001,         0x0001            },
        {FSDP_DTYPE_F32,  FSDP_DTYPE_F16,  0x387fffff,         0x0400            },
        {FSDP_DTYPE_F16,  FSDP_DTYPE_F64,  0x0001,             0x3e70000000000000},
        {FSDP_DTYPE_F64,  FSDP_DTYPE_F32,  0xfff0000000000000, 0xff800000        },
        {FSDP_DTYPE_F64,  FSDP_DTYPE_F16,  0x3ff0020000000000, 0x3c00            },
        {FSDP_DTYPE_F64,  FSDP_DTYPE_F16,  0x3ff0020000000001, 0x3c01            },
    };
    static const fsdp_dtype_t halves[] = {FSDP_DTYPE_BF16, FSDP_DTYPE_F16};
    uint64_t nan = 0x7fc00001, out;
    bool good;

    for (size_t i = 0; i < sizeof(casts) / sizeof(*casts); i++) {
        out = 0;
        ok(dtype_convert(casts[i].from, &casts[i].in, casts[i].to, &out, 1) &&
               out == casts[i].out,
           "%s %lx is %s %lx: %lx", fsdp_dtype_name(casts[i].from), casts[i].in,
           fsdp_dtype_name(casts[i].to), casts[i].out, out);
    }

    for (int i = 0; i < 2; i++) {
        uint16_t all[1024], back[1024];
        float wide[1024];

        good = true;
        for (uint32_t high = 0; high < 64; high++) {
            for (uint32_t low = 0; low < 1024; low++) {
                all[low] = (uint16_t)(high << 10 | low);
            }
            dtype_convert(halves[i], all, FSDP_DTYPE_F32, wide, 1024);
            dtype_convert(FSDP_DTYPE_F32, wide, halves[i], back, 1024);
            for (uint32_t low = 0; low < 1024; low++) {
                good &= back[low] == all[low] ||
                        (wide[low] != wide[low] &&
                         (back[low] & 0x7fff) >
                             (halves[i] == FSDP_DTYPE_F16 ? 0x7c00 : 0x7f80));
            }
        }
        ok(good, "all %s values come back from f32",
           fsdp_dtype_name(halves[i]));
    }

    out = 0;
    dtype_convert(FSDP_DTYPE_F32, &nan, FSDP_DTYPE_BF16, &out, 1);
    ok((out & 0x7fff) > 0x7f80, "NaN stays NaN");
    ok(!dtype_convert(FSDP_DTYPE_I32, &nan, FSDP_DTYPE_F32, &out, 1) &&
           !dtype_convert(FSDP_DTYPE_F32, &nan, FSDP_DTYPE_U8, &out, 1),
       "integers are not cast");
}

int main(void)
{
    if (mkdtemp(dir) == NULL) {
        return 99;
    }
    test_lookup();
    test_shapes();
    test_twice();
    test_pieces();
    test_files();
    test_cast();
    rmdir(dir);
    return tap_done();
}
