#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/format/hdf5_name.h"
#include "t/tap/tap.h"

/* All of these are tensors of one checkpoint. */
static const struct {
    const char *name;
    const char *path;
    const char *beside_tables; /* NULL: the same */
} names[] = {
    {"model/h.0.ln_1.weight",           "model/h.0.ln_1.weight",          NULL           },
    {"plain",                           "plain",                          NULL           },
    {"with space/and [*] 'x'",          "with space/and [*] 'x'",         NULL           },
    {"gr\xc3\xb6\xc3\x9f"
     "e/\xe9\x87\x8d\xe3\x81\xbf", "gr\xc3\xb6\xc3\x9f"
     "e/\xe9\x87\x8d\xe3\x81\xbf", NULL           },
    {".",                               "%2E",                            NULL           },
    {"a/./b",                           "a/%2E/b",                        NULL           },
    {"../up",                           "%2E%2E/up",                      NULL           },
    {"dots/...",                        "dots/...",                       NULL           },
    {"/front",                          "%/front",                        NULL           },
    {"back/",                           "back/%",                         NULL           },
    {"twice//x",                        "twice/%/x",                      NULL           },
    {"100%",                            "100%25",                         NULL           },
    {"%/front",                         "%25/front",                      NULL           },
    {"%2E",                             "%252E",                          NULL           },
    {"line\nend\x7f",                   "line%0Aend%7F",                  NULL           },
    {"both",                            "both",                           NULL           },
    {"both/inner",                      "both%2Finner",                   NULL           },
    {"both/inner/deep",                 "both%2Finner%2Fdeep",            NULL           },
    {"both/other/deep",                 "both%2Fother/deep",              NULL           },
    {"bother/deep",                     "bother/deep",                    NULL           },
    {"tensors",                         "tensors",                        "%74ensors"    },
    {"tensors/x",                       "tensors%2Fx",                    "%74ensors%2Fx"},
    {"dims/x",                          "dims/x",                         "%64ims/x"     },
    {"model/tensors",                   "model/tensors",                  NULL           },
};

#define NUM (sizeof(names) / sizeof(*names))

static void test_paths(const catalog_t *cat)
{
    for (size_t i = 0; i < NUM; i++) {
        const char *beside = names[i].beside_tables;
        char *path = NULL, *back;

        ok(hdf5_path_make(cat, names[i].name, HDF5_IN_FILE, &path, NULL) ==
                   FSDP_OK &&
               strcmp(path, names[i].path) == 0,
           "name %zu lies at its path", i);
        back = hdf5_path_name(path);
        ok(strcmp(back, names[i].name) == 0, "and the path gives the name");
        free(back);
        free(path);

        beside = (beside != NULL) ? beside : names[i].path;
        ok(hdf5_path_make(cat, names[i].name, HDF5_IN_INDEX, &path, NULL) ==
                   FSDP_OK &&
               strcmp(path, beside) == 0,
           "beside the tables too");
        back = hdf5_path_name(path);
        ok(strcmp(back, names[i].name) == 0, "and back");
        free(back);
        free(path);
    }
}

/* An alias is a link in a file, but nothing in a shard. */
static void test_aliases(const catalog_t *cat)
{
    char *shard = NULL, *file = NULL;

    ok(hdf5_path_make(cat, "tied/x", HDF5_IN_SHARD, &shard, NULL) == FSDP_OK &&
           strcmp(shard, "tied/x") == 0,
       "an alias is no prefix in a shard");
    ok(hdf5_path_make(cat, "tied/x", HDF5_IN_FILE, &file, NULL) == FSDP_OK &&
           strcmp(file, "tied%2Fx") == 0,
       "but in a file");
    free(shard);
    free(file);
}

static void test_refused(const catalog_t *cat)
{
    static const char *const bad[] = {"",
                                      "\x80",
                                      "cut\xc3",
                                      "\xc0\x80 long zero",
                                      "\xed\xa0\x80 surrogate",
                                      "\xf4\x90\x80\x80 too high",
                                      "\xff"};
    fsdp_error_t err;
    char *huge = malloc(HDF5_NAME_MAX + 2), *path;

    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        ok(hdf5_path_make(cat, bad[i], HDF5_IN_FILE, &path, &err) ==
               FSDP_ERR_UNSUPPORTED,
           "bad name %zu is refused", i);
    }

    memset(huge, 'x', HDF5_NAME_MAX + 1);
    huge[HDF5_NAME_MAX + 1] = '\0';
    ok(hdf5_path_make(cat, huge, HDF5_IN_FILE, &path, &err) ==
               FSDP_ERR_UNSUPPORTED &&
           strstr(err.text, "65535") != NULL,
       "a name that is too long is refused: %.40s...", err.text);
    huge[HDF5_NAME_MAX] = '\0';
    ok(hdf5_path_make(cat, huge, HDF5_IN_FILE, &path, &err) == FSDP_OK,
       "the longest one is not");
    free(path);
    free(huge);
}

int main(void)
{
    uint64_t dims[1] = {1};
    catalog_t cat;

    catalog_init(&cat);
    for (size_t i = 0; i < NUM; i++) {
        if (catalog_add_tensor(&cat, names[i].name, FSDP_DTYPE_F32, 1, dims,
                               NULL, NULL, NULL) != FSDP_OK) {
            return 1;
        }
    }
    if (catalog_add_alias(&cat, "tied", "plain", NULL) != FSDP_OK ||
        catalog_seal(&cat, 0, NULL) != FSDP_OK) {
        return 1;
    }

    test_paths(&cat);
    test_aliases(&cat);
    test_refused(&cat);
    catalog_free(&cat);
    return tap_done();
}
