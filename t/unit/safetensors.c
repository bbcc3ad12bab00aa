/*
 * safetensors: each way in which a header can be wrong, the index checked both
 * ways, files of other programs compared with what those say is in them, and
 * written again byte for byte.
 */
#include "config.h"

#include <ftw.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/fsdp_ckpt.h"
#include "lib/util/io.h"
#include "t/tap/tap.h"

static char dir[] = "/tmp/fsdp-safetensors.XXXXXX";

static int remove_entry(const char *path, const struct stat *st, int type,
                        struct FTW *ftw)
{
    (void)st, (void)type;
    return (ftw->level > 0) ? remove(path) : 0;
}

static void clear(void)
{
    nftw(dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* Write NAME: the header with its size before it, and @a data zeros. */
static char *write_file(const char *name, const char *header, size_t data)
{
    size_t size = strlen(header);
    char *path = io_path("%s/%s", dir, name), *all = calloc(1, 8 + size + data);

    memcpy(all, &size, 8);
    memcpy(all + 8, header, size);
    io_replace_file(path, all, 8 + size + data, NULL);
    free(all);
    return path;
}

static fsdp_status_t try_open(const char *path, fsdp_error_t *err)
{
    fsdp_ckpt_t *ckpt;
    fsdp_status_t status = fsdp_ckpt_open(path, &ckpt, err);

    if (status == FSDP_OK) {
        fsdp_ckpt_close(ckpt);
    }
    return status;
}

/* --- Headers -------------------------------------------------------------- */

#define F32(_shape, _begin, _end)                                        \
    "{\"dtype\":\"F32\",\"shape\":" _shape ",\"data_offsets\":[" #_begin \
    "," #_end "]}"

static void test_headers(void)
{
    static const struct {
        const char *what, *header;
        size_t data;
        const char *text; /* in the error; NULL: it is good */
    } files[] = {
        {"one tensor",               "{\"a\":" F32("[2,3]", 0,                                                     24) "}",                                                            24, NULL},
        {"spaces behind it",                      "{\"a\":" F32("[2,3]",                                           0,                                                                               24) "}     ",                                                                                                       24, NULL},
        {"no tensor",              "{}",                                 0,    NULL},
        {"a scalar and an empty one",
         "{\"a\":" F32("[]",0,                                           4) ",\"b\":" F32("[0,5]",                                                                                                                                              4, 4) "}", 4, NULL},
        {"metadata",         "{\"__metadata__\":{\"k\":\"v\"}}",                                 0,                    NULL},
        {"two in another order",
         "{\"a\":" F32("[1]",                                          4,                                                                                               8) ",\"b\":" F32("[1]",                                                                                                                                                        0, 4) "}", 8, NULL},
        {"packed",
         "{\"a\":{\"dtype\":\"F4\",\"shape\":[3,2],"
         "\"data_offsets\":[0,3]}}",          3,                                            NULL                                                                                                                                                 },

        {"a list",                         "[]",0,"begin with '{'"},
        {"a space before it",                      " {}",                                           0,                                                                                         "begin with '{'"                                                                                                                                                  },
        {"nothing",                      "",                                           0,                                              "begin with '{'"},
        {"no JSON",          "{\"a\":",                               0,                                                                                                                              "no JSON"                                                                                                                                                                                                                                                                                                                            },
        {"JSON and more",          "{} {}",                               0,"no JSON"},
        {"a name twice",
         "{\"a\":" F32("[1]",                               0,                               4) ",\"a\":" F32("[1]",                                                                                                                                             0, 4) "}", 4,
         "no JSON"},
        {"an unknown dtype",
         "{\"a\":{\"dtype\":\"F33\",\"shape\":[1],"
         "\"data_offsets\":[0,4]}}",                                      4,"dtype"},
        {"no dtype",                 "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}",                                      4,
         "dtype"                                                                                                                                                         },
        {"a string for a tensor",    "{\"a\":\"F32\"}",                        0,                                         "dtype"},
        {"no shape",                          "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}",                              4,
         "shape"                                                                                                          },
        {"a negative dimension",                          "{\"a\":" F32("[-1]",                                      0,                           4) "}",                                                                                                                                                                                                                                                                                                                                                                                  4, "shape"},
        {"a fractional dimension",                          "{\"a\":" F32("[1.0]",                         0,                                                          4) "}",4,
         "shape"},
        {"33 dimensions",
         "{\"a\":" F32("[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
                       "1,1,1,1,1,1]",                                      0,              4) "}",
         4, "shape"},
        {"one offset",
         "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],"
         "\"data_offsets\":[0]}}",                          4,                                  "data_offsets"},
        {"offsets in reverse",                         "{\"a\":" F32("[1]",                                       4,                                                                                            0) "}",4,
         "data_offsets"},
        {"a negative offset",                         "{\"a\":" F32("[1]",                -4,           0) "}",                                                                                                                                                                      4,
         "data_offsets"},
        {"a huge offset",            "{\"a\":" F32("[1]",                      0,                                     99999999999999999999) "}",                                                                                    4,
         "no JSON"},
        {"too few bytes for the shape",                   "{\"a\":" F32("[2]",                                        0,                                                                                  4) "}",                                                                                                                                                     4,
         "do not agree"},
        {"a shape that wraps to 0",
         "{\"a\":" F32("[4294967296,4294967296]",                                 0,                                  0) "}",                                                                                                      0, "2^63 bytes"},
        {"a shape of 2^62",                    "{\"a\":" F32("[4611686018427387904]",                                        0,                                                                                           0) "}",                                                                                                                                                             0,
         "2^63 bytes"},
        {"half a byte",
         "{\"a\":{\"dtype\":\"F4\",\"shape\":[3],"
         "\"data_offsets\":[0,2]}}",2,                        "whole bytes"},
        {"a hole",                          "{\"a\":" F32("[1]",                                 0,                                                        4) ",\"b\":" F32("[1]",                                                                                                    8, 12) "}",
         12, "belong to no tensor"},
        {"a hole at the start",                         "{\"a\":" F32("[1]",                                         4,                                                                                              8) "}",                                                                                                                                    8,
         "belong to no tensor"},
        {"an overlap",
         "{\"a\":" F32("[2]", 0,8) ",\"b\":" F32("[1]",                                                                                                                                                               4, 8) "}", 8,
         "overlaps"},
        {"the same bytes twice",
         "{\"a\":" F32("[1]",           0,                               4) ",\"b\":" F32("[1]",                                                          0, 4) "}", 4,
         "overlaps"},
        {"a short file",              "{\"a\":" F32("[2]",                                   0,                                                                        8) "}",                                                                                  7, "cut short"},
        {"a long file",                    "{\"a\":" F32("[2]",                                        0,                                                                                             8) "}",                                                                                                                                                               9, "at its end"},
        {"metadata that is a list", "{\"__metadata__\":[]}",                                   0,                                                    "no object"                                                                                                                                                                                                  },
        {"metadata with a number","{\"__metadata__\":{\"k\":1}}",0,
         "no string"},
    };

    for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
        char *path =
            write_file("x.safetensors", files[i].header, files[i].data);
        fsdp_error_t err = {0};
        fsdp_status_t status = try_open(path, &err);

        ok(files[i].text == NULL
               ? status == FSDP_OK
               : status == FSDP_ERR_CORRUPT &&
                     strstr(err.text, files[i].text) != NULL &&
                     strstr(err.text, "x.safetensors") != NULL,
           "%s%s%s", files[i].what, status ? ": " : "", err.text);
        free(path);
    }
    clear();
}

static void test_sizes(void)
{
    static const struct {
        uint64_t size;
        size_t bytes; /* of the whole file */
    } heads[] = {
        {2,              0 },
        {2,              7 },
        {3,              10},
        {100000001,      10},
        {UINT64_MAX,     10},
        {UINT64_MAX - 7, 10},
    };
    char *path = io_path("%s/x.safetensors", dir);

    for (size_t i = 0; i < sizeof(heads) / sizeof(*heads); i++) {
        char all[16] = {0};
        fsdp_error_t err = {0};

        memcpy(all, &heads[i].size, 8);
        memcpy(all + 8, "{}", 2);
        io_replace_file(path, all, heads[i].bytes, NULL);
        ok(try_open(path, &err) == FSDP_ERR_CORRUPT, "%s", err.text);
    }
    free(path);
    clear();
}

/* --- Several files -------------------------------------------------------- */

static void test_index(void)
{
    static const struct {
        const char *what, *map, *text;
    } maps[] = {
        {"right",              "{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}",    NULL          },
        {"one tensor missing", "{\"a\":\"1.safetensors\"}",                            NULL          },
        {"a tensor too many",
         "{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\","
         "\"c\":\"2.safetensors\"}",                                                   "should be in"},
        {"a wrong file",       "{\"a\":\"2.safetensors\",\"b\":\"2.safetensors\"}",
         "should be in"                                                                              },
        {"swapped",            "{\"a\":\"2.safetensors\",\"b\":\"1.safetensors\"}",
         "were they exchanged"                                                                       },
        {"an absent file",     "{\"a\":\"1.safetensors\",\"b\":\"3.safetensors\"}",
         "missing"                                                                                   },
        {"a path",             "{\"a\":\"1.safetensors\",\"b\":\"../2.safetensors\"}",
         "no file name"                                                                              },
        {"no name",            "{\"a\":\"1.safetensors\",\"b\":7}",                    "no file name"},
        {"no object",          "[]",                                                   "weight_map"  },
    };
    char *path = io_path("%s/model.safetensors.index.json", dir);

    for (size_t i = 0; i < sizeof(maps) / sizeof(*maps); i++) {
        char *text =
            io_path("{\"metadata\":{},\"weight_map\":%s}", maps[i].map);
        fsdp_error_t err = {0};
        fsdp_status_t status;

        free(write_file("1.safetensors", "{\"a\":" F32("[1]", 0, 4) "}", 4));
        free(write_file("2.safetensors", "{\"b\":" F32("[1]", 0, 4) "}", 4));
        io_replace_file(path, text, strlen(text), NULL);
        status = try_open(dir, &err);
        if (i == 1) { /* 2.safetensors is then no part of it */
            ok(status == FSDP_OK, "an index of one file of two");
        } else {
            ok(maps[i].text == NULL
                   ? status == FSDP_OK
                   : status == FSDP_ERR_CORRUPT &&
                         strstr(err.text, maps[i].text) != NULL,
               "an index with %s: %s", maps[i].what, err.text);
        }
        free(text);
    }
    unlink(path);
    free(path);

    {
        fsdp_error_t err = {0};

        ok(try_open(dir, &err) == FSDP_ERR_CORRUPT &&
               strstr(err.text, "no index") != NULL,
           "two files: %s", err.text);
    }
    clear();
}

static void test_config(void)
{
    char *weights = write_file("model.safetensors", "{}", 0);
    char *path = io_path("%s/config.json", dir);
    fsdp_error_t err = {0};
    fsdp_ckpt_info_t info;
    fsdp_ckpt_t *ckpt;

    io_replace_file(path, "{\"model_type\":\"gpt2\"}", 21, NULL);
    if (fsdp_ckpt_open(dir, &ckpt, &err) == FSDP_OK) {
        fsdp_ckpt_get_info(ckpt, &info);
        ok(strcmp(info.meta_json,
                  "{\"user\":{\"config\":{\"model_type\":\"gpt2\"}}}") == 0,
           "config.json is kept: %s", info.meta_json);
        fsdp_ckpt_close(ckpt);
    } else {
        ok(false, "%s", err.text);
    }
    io_replace_file(path, "{", 1, NULL);
    ok(try_open(weights, &err) == FSDP_ERR_CORRUPT, "%s", err.text);
    free(weights);
    free(path);
    clear();
}

/* --- Files of other programs ---------------------------------------------- */

static void hash(const void *data, size_t size, char text[65])
{
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned num = 0;

    EVP_Digest(data, size, sum, &num, EVP_sha256(), NULL);
    for (unsigned i = 0; i < num && i < 32; i++) {
        snprintf(text + 2 * i, 3, "%02x", sum[i]);
    }
}

/* May this one be left out, because another name of its bytes is kept? */
static bool may_be_absent(const json_t *manifest, const char *name)
{
    json_t *aliases = json_object_get(manifest, "aliases"), *owner;
    const char *alias;

    json_object_foreach(aliases, alias, owner)
    {
        if (json_object_get(manifest, "tied_dropped_ok") != NULL &&
            (strcmp(alias, name) == 0 ||
             strcmp(json_string_value(owner), name) == 0)) {
            return true;
        }
    }

    return false;
}

/* Each tensor of the manifest has these bytes in the checkpoint. */
static size_t compare(fsdp_ckpt_t *ckpt, const json_t *manifest)
{
    json_t *tensors = json_object_get(manifest, "tensors"), *entry;
    size_t index, same = 0;

    json_array_foreach(tensors, index, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        fsdp_ckpt_range_t range = {0};
        fsdp_ckpt_tensor_t tensor;
        fsdp_error_t err = {0};
        char sum[65] = "";

        if (!fsdp_ckpt_find(ckpt, name, &range.tensor)) {
            same += may_be_absent(manifest, name);
            continue;
        }
        fsdp_ckpt_get_tensor(ckpt, range.tensor, &tensor);
        range.count = tensor.numel;
        range.data = malloc(tensor.bytes + 1);
        if (fsdp_ckpt_read(ckpt, &range, 1, NULL, NULL, &err) == FSDP_OK) {
            hash(range.data, tensor.bytes, sum);
        }
        if (strcmp(sum, json_string_value(json_object_get(entry, "sha256"))) ==
                0 &&
            (json_int_t)tensor.bytes ==
                json_integer_value(json_object_get(entry, "nbytes"))) {
            same++;
        } else {
            printf("# %s differs %s\n", name, err.text);
        }
        free(range.data);
    }

    return same == json_array_size(tensors) ? same : 0;
}

static bool same_file(const char *a, const char *b)
{
    char *left = NULL, *right = NULL;
    size_t left_size, right_size;
    bool same =
        io_read_file(a, 1 << 30, &left, &left_size, NULL) == FSDP_OK &&
        io_read_file(b, 1 << 30, &right, &right_size, NULL) == FSDP_OK &&
        left_size == right_size && memcmp(left, right, left_size) == 0;

    free(left);
    free(right);
    return same;
}

static void test_sample(const char *root, const char *sample)
{
    char *path = io_path("%s/checkpoints/%s/ckpt", root, sample);
    char *truth = io_path("%s/checkpoints/%s/manifest.json", root, sample);
    char *single = io_path("%s/model.safetensors", path);
    char *copy = io_path("%s/copy.safetensors", dir);
    fsdp_ckpt_convert_config_t config = FSDP_CKPT_CONVERT_INIT;
    json_t *manifest = json_load_file(truth, 0, NULL);
    fsdp_error_t err = {0};
    fsdp_ckpt_t *ckpt;

    if (manifest == NULL) {
        ok(true, "%s # SKIP no such sample", sample);
        goto err_free;
    }

    if (fsdp_ckpt_open(path, &ckpt, &err) == FSDP_OK) {
        size_t same = compare(ckpt, manifest);

        ok(same > 0, "%s: %zu tensors are as its manifest says", sample, same);
        fsdp_ckpt_close(ckpt);
    } else {
        ok(false, "%s: %s", sample, err.text);
    }

    config.source = path;
    config.target = copy;
    config.format = FSDP_CKPT_SAFETENSORS;
    ok(fsdp_ckpt_convert(&config, NULL, &err) == FSDP_OK &&
           (access(single, F_OK) != 0 || same_file(single, copy)),
       "%s: written again %s", sample, err.text);
    if (fsdp_ckpt_open(copy, &ckpt, &err) == FSDP_OK) {
        ok(compare(ckpt, manifest) > 0, "%s: and read again", sample);
        fsdp_ckpt_close(ckpt);
    }
err_free:
    json_decref(manifest);
    free(path);
    free(truth);
    free(single);
    free(copy);
    clear();
}

static void test_samples(void)
{
    static const char *const samples[] = {
        "safetensors-alldtypes-a", "hf-gpt2-sharded-a", "hf-llama-tied-bf16-a"};
    const char *given = getenv("FSDP_SAMPLES"), *src = getenv("FSDP_SRCDIR");
    char *root = (given != NULL) ? io_path("%s", given)
                                 : io_path("%s/../shared/samples",
                                           (src != NULL) ? src : ".");

    for (size_t i = 0; i < sizeof(samples) / sizeof(*samples); i++) {
        test_sample(root, samples[i]);
    }
    free(root);
}

int main(void)
{
    if (mkdtemp(dir) == NULL) {
        return 99;
    }
    test_headers();
    test_sizes();
    test_index();
    test_config();
    test_samples();
    rmdir(dir);
    return tap_done();
}
