/*
 * llm.c: a model and its states of two ranks, made here as llm.c writes them,
 * whose elements are their own numbers; and each way in which they can be
 * wrong.
 */
#include "config.h"

#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/format/llmc.h"
#include "lib/util/io.h"
#include "t/tap/tap.h"

enum { WORLD = 2, STEP = 7, SHUFFLED = 3 };

static char dir[] = "/tmp/fsdp-llmc.XXXXXX";

static const llmc_shape_t shape = {.max_seq_len = 4,
                                   .vocab_size = 5,
                                   .num_layers = 2,
                                   .num_heads = 2,
                                   .channels = 4,
                                   .padded_vocab_size = 8};

static llmc_tensor_t tensors[LLMC_NUM_TENSORS];
static uint64_t total;

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

static void put(const char *name, const void *data, size_t size)
{
    char *path = io_path("%s/%s", dir, name);

    io_replace_file(path, data, size, NULL);
    free(path);
}

static void put_model(void)
{
    size_t size = LLMC_HEADER + total * 4;
    int32_t *header = calloc(1, size);
    float *data = (float *)(header + 256);

    header[0] = LLMC_MODEL;
    header[1] = LLMC_MODEL_F32;
    header[2] = (int32_t)shape.max_seq_len;
    header[3] = (int32_t)shape.vocab_size;
    header[4] = (int32_t)shape.num_layers;
    header[5] = (int32_t)shape.num_heads;
    header[6] = (int32_t)shape.channels;
    header[7] = (int32_t)shape.padded_vocab_size;
    for (uint64_t i = 0; i < total; i++) {
        data[i] = (float)i;
    }
    put("model_00000007.bin", header, size);
    free(header);
}

/* m counts up from 1000, v from 2000: what is at element e of the model's
 * array is 1000 + e and 2000 + e, in llm.c's order of ranks. */
static void put_state(int32_t rank, bool shuffle)
{
    uint64_t part = total / WORLD, tail = 8 + 4 * 1 + 8 + 4 * SHUFFLED;
    size_t size = LLMC_HEADER + part * 8 +
                  (shuffle ? (size_t)tail + LLMC_SHUFFLE_RNG : 0);
    char *all = calloc(1, size), name[40];
    int32_t *header = (int32_t *)all;
    float *m = (float *)(all + LLMC_HEADER), *v = m + part;
    uint64_t local = 0, global = 0;

    header[0] = LLMC_STATE;
    header[1] = LLMC_STATE_FORMAT;
    header[2] = WORLD;
    header[3] = rank;
    header[5] = shuffle;
    header[10] = STEP;
    for (int i = 0; i < LLMC_NUM_TENSORS; i++) {
        uint64_t share = tensors[i].size / WORLD;

        for (uint64_t l = 0; l < tensors[i].layers; l++) {
            for (uint64_t j = 0; j < share; j++) {
                uint64_t e = global + (uint64_t)rank * share + j;

                m[local] = 1000 + (float)e;
                v[local++] = 2000 + (float)e;
            }
            global += tensors[i].size;
        }
    }
    if (shuffle) {
        const uint64_t shards = 1, samples = SHUFFLED;
        char *end = all + LLMC_HEADER + part * 8;

        memcpy(end, &shards, 8);
        memcpy(end + 12, &samples, 8);
    }
    snprintf(name, sizeof(name), "state_00000007_%05d.bin", rank);
    put(name, all, size);
    free(all);
}

static void put_all(bool shuffle)
{
    clear();
    put_model();
    for (int32_t rank = 0; rank < WORLD; rank++) {
        put_state(rank, shuffle);
    }
    put("DONE_00000007", "", 0);
}

/* --- What is right -------------------------------------------------------- */

/* Every element of a kind is its number. */
static bool counts_up(fsdp_ckpt_t *ckpt, const char *kind, float from)
{
    uint64_t next = 0, index;
    bool good = true;

    for (int i = 0; i < LLMC_NUM_TENSORS && good; i++) {
        uint64_t numel = tensors[i].layers * tensors[i].size;
        float *data = calloc(numel, sizeof(*data));
        char *name = io_path("%s.%s", kind, tensors[i].name);
        fsdp_ckpt_range_t range = {.count = numel, .data = data};

        good = fsdp_ckpt_find(ckpt, name, &index);
        range.tensor = index;
        good = good &&
               fsdp_ckpt_read(ckpt, &range, 1, NULL, NULL, NULL) == FSDP_OK;
        for (uint64_t e = 0; e < numel && good; e++) {
            good = data[e] == from + (float)(next + e);
        }
        next += numel;
        free(name);
        free(data);
    }

    return good;
}

static void test_read(bool shuffle)
{
    fsdp_ckpt_info_t info;
    fsdp_ckpt_t *ckpt;

    put_all(shuffle);
    ok(fsdp_ckpt_open(dir, &ckpt, NULL) == FSDP_OK,
       "a model and states%s are opened", shuffle ? " with shuffled data" : "");
    fsdp_ckpt_get_info(ckpt, &info);
    ok(info.format == FSDP_CKPT_LLMC && info.step == STEP,
       "format and step are known");
    ok(info.num_tensors == 3 * LLMC_NUM_TENSORS + (shuffle ? WORLD : 0),
       "16 tensors of each kind, and the order of the data");
    ok(counts_up(ckpt, "params", 0) && counts_up(ckpt, "m", 1000) &&
           counts_up(ckpt, "v", 2000),
       "each element comes from its place");
    fsdp_ckpt_close(ckpt);
}

/* The model alone: its file, without DONE. */
static void test_model_alone(void)
{
    fsdp_ckpt_info_t info;
    fsdp_ckpt_t *ckpt;
    char *path = io_path("%s/model_00000007.bin", dir);

    clear();
    put_model();
    ok(fsdp_ckpt_open(dir, &ckpt, NULL) == FSDP_ERR_NOT_FOUND,
       "a directory without DONE is not finished");
    ok(fsdp_ckpt_open(path, &ckpt, NULL) == FSDP_OK,
       "its model can be read alone");
    fsdp_ckpt_get_info(ckpt, &info);
    ok(info.num_tensors == LLMC_NUM_TENSORS, "that has the parameters");
    fsdp_ckpt_close(ckpt);
    free(path);
}

/* --- What is wrong -------------------------------------------------------- */

typedef struct {
    const char *what;
    const char *file;
    int field; /* of the header that becomes value; -1: the length changes */
    int32_t value;
    fsdp_status_t status;
    const char *text;
} wrong_t;

static const wrong_t wrongs[] = {
    {"a model cut short",                 "model_00000007.bin",       -1, -4,            FSDP_ERR_CORRUPT,
     "its header says"                                                                                                         },
    {"a model too long",                  "model_00000007.bin",       -1, 4,             FSDP_ERR_CORRUPT,
     "its header says"                                                                                                         },
    {"a header cut short",                "model_00000007.bin",       -1, -1000000,      FSDP_ERR_CORRUPT,
     "cut short"                                                                                                               },
    {"a model of version 1",              "model_00000007.bin",       1,  1,             FSDP_ERR_UNSUPPORTED,
     "version 1"                                                                                                               },
    {"a Llama 3 model",                   "model_00000007.bin",       0,  LLMC_LLAMA3,
     FSDP_ERR_UNSUPPORTED,                                                                                     "Llama 3"       },
    {"no layers",                         "model_00000007.bin",       4,  0,             FSDP_ERR_CORRUPT,     "no model"      },
    {"2^31 layers",                       "model_00000007.bin",       4,  INT32_MIN,     FSDP_ERR_CORRUPT,
     "no model"                                                                                                                },
    {"sizes over 2^64",                   "model_00000007.bin",       6,  INT32_MAX - 1,
     FSDP_ERR_CORRUPT,                                                                                         ""              },
    {"heads that do not divide",          "model_00000007.bin",       5,  3,             FSDP_ERR_CORRUPT,
     "no model"                                                                                                                },
    {"a state cut short",                 "state_00000007_00001.bin", -1, -4,            FSDP_ERR_CORRUPT,
     "neither a part"                                                                                                          },
    {"a state too long",                  "state_00000007_00000.bin", -1, 4,             FSDP_ERR_CORRUPT,
     "neither a part"                                                                                                          },
    {"a state of another rank",           "state_00000007_00001.bin", 3,  0,
     FSDP_ERR_CORRUPT,                                                                                         "rank 0 of 2"   },
    {"a state of another step",           "state_00000007_00000.bin", 10, 8,
     FSDP_ERR_CORRUPT,                                                                                         "step 8"        },
    {"one rank of a world of 1",          "state_00000007_00000.bin", 2,  1,
     FSDP_ERR_CORRUPT,                                                                                         "neither a part"},
    {"a rank that is missing",            "state_00000007_00000.bin", 2,  4,
     FSDP_ERR_CORRUPT,                                                                                         "neither a part"},
    {"master weights that are not there", "state_00000007_00000.bin", 4,  1,
     FSDP_ERR_CORRUPT,                                                                                         "neither a part"},
    {"a state that is none",              "state_00000007_00001.bin", 0,  1,             FSDP_ERR_CORRUPT,
     "begins with 1"                                                                                                           },
};

static void spoil(const wrong_t *wrong)
{
    char *path = io_path("%s/%s", dir, wrong->file), *text;
    size_t size;

    io_read_file(path, 1u << 20, &text, &size, NULL);
    if (wrong->field >= 0) {
        memcpy(text + 4 * wrong->field, &wrong->value, 4);
    } else {
        text = realloc(text, size + 8);
        memset(text + size, 0, 8);
        size = (wrong->value < -(int32_t)size)
                   ? 100
                   : size + (size_t)(ssize_t)wrong->value;
    }
    put(wrong->file, text, size);
    free(text);
    free(path);
}

static void test_wrong(void)
{
    for (size_t i = 0; i < sizeof(wrongs) / sizeof(*wrongs); i++) {
        fsdp_ckpt_t *ckpt;
        fsdp_error_t err = {0};
        fsdp_status_t status;

        put_all(false);
        spoil(&wrongs[i]);
        status = fsdp_ckpt_open(dir, &ckpt, &err);
        ok(status == wrongs[i].status &&
               strstr(err.text, wrongs[i].text) != NULL,
           "%s: %s", wrongs[i].what, err.text);
        if (status == FSDP_OK) {
            fsdp_ckpt_close(ckpt);
        }
    }
}

static void test_ranks(void)
{
    char *path = io_path("%s/state_00000007_00001.bin", dir);
    fsdp_ckpt_t *ckpt;
    fsdp_error_t err = {0};

    put_all(false);
    put("state_00000007_00002.bin", "", 0);
    ok(fsdp_ckpt_open(dir, &ckpt, &err) == FSDP_ERR_CORRUPT &&
           strstr(err.text, "another run") != NULL,
       "the state of a rank too many: %s", err.text);
    put_all(false);
    unlink(path);
    ok(fsdp_ckpt_open(dir, &ckpt, &err) == FSDP_ERR_CORRUPT &&
           strstr(err.text, "rank 1 is missing") != NULL,
       "the state of a rank is missing: %s", err.text);
    free(path);
}

int main(void)
{
    if (mkdtemp(dir) == NULL || !llmc_tensors(&shape, tensors, &total)) {
        return 1;
    }

    test_read(false);
    test_read(true);
    test_model_alone();
    test_wrong();
    test_ranks();

    clear();
    rmdir(dir);
    return tap_done();
}
