/*
 * fsdp_ckpt_convert(): chains through worlds, strategies and formats that end
 * with the same values; what is chosen, renamed, cast and kept; refusals that
 * leave nothing behind.
 */
#include "config.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/format.h"
#include "ckpt/fsdp_ckpt.h"
#include "lib/util/io.h"
#include "t/tap/tap.h"

static char dir[] = "/tmp/fsdp-convert.XXXXXX";

static int remove_entry(const char *path, const struct stat *st, int type,
                        struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static void drop(const char *name)
{
    char *path = io_path("%s/%s", dir, name);

    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(path);
}

static bool is_there(const char *name)
{
    char *path = io_path("%s/%s", dir, name);
    struct stat st;
    bool there = stat(path, &st) == 0;

    free(path);
    return there;
}

/* Nothing temporary is left in the directory. */
static bool is_clean(void)
{
    DIR *stream = opendir(dir);
    struct dirent *entry;
    bool clean = true;

    while ((entry = readdir(stream)) != NULL) {
        clean &= strncmp(entry->d_name, ".tmp", 4) != 0;
    }
    closedir(stream);
    return clean;
}

/* --- The source: a step of one rank --------------------------------------- */

enum { NUM = 9 };

static const struct {
    const char *name, *unit;
    fsdp_dtype_t dtype;
    uint32_t ndim;
    uint64_t dims[2];
} tensors[NUM] = {
    {"model/wte.weight",            "root", FSDP_DTYPE_F32, 2, {257, 1031}},
    {"optim/exp_avg/wte.weight",    "root", FSDP_DTYPE_F32, 2, {257, 1031}},
    {"model/h.0.ln.weight",         "h.0",  FSDP_DTYPE_F32, 1, {33}       },
    {"model/h.0.empty",             "h.0",  FSDP_DTYPE_F32, 2, {0, 5}     },
    {"model/h.0.fc.weight",         "h.0",  FSDP_DTYPE_F32, 2, {65, 129}  },
    {"optim/exp_avg/h.0.ln.weight", "h.0",  FSDP_DTYPE_F32, 1, {33}       },
    {"optim/exp_avg/h.0.empty",     "h.0",  FSDP_DTYPE_F32, 2, {0, 5}     },
    {"optim/exp_avg/h.0.fc.weight", "h.0",  FSDP_DTYPE_F32, 2, {65, 129}  },
    {"model/steps",                 "h.0",  FSDP_DTYPE_I64, 0, {0}        },
};

static void make_source(void)
{
    static const char *const aliases[] = {"model/lm_head.weight"};
    static const uint32_t owners[] = {0};
    fsdp_ckpt_save_config_t config = FSDP_CKPT_SAVE_INIT;
    fsdp_ckpt_desc_t descs[NUM];
    fsdp_ckpt_part_t parts[NUM];
    fsdp_error_t err = {0};

    for (uint32_t i = 0; i < NUM; i++) {
        uint64_t numel = 1;
        uint32_t *words;

        descs[i] = (fsdp_ckpt_desc_t){tensors[i].name, tensors[i].dtype,
                                      tensors[i].ndim, tensors[i].dims,
                                      tensors[i].unit};
        for (uint32_t d = 0; d < tensors[i].ndim; d++) {
            numel *= tensors[i].dims[d];
        }
        words = calloc(2 * numel + 2, 4);
        for (uint64_t e = 0; e < 2 * numel; e++) {
            /* All kinds of bits: NaNs with payloads, -0, subnormal ones. */
            words[e] = (uint32_t)((e + i + 1) * 2654435761u);
        }
        parts[i] = (fsdp_ckpt_part_t){i, 0, numel, words};
    }
    config.dir = dir;
    config.step = 7;
    config.job_id = "x";
    config.mesh = (fsdp_mesh_t){FSDP_STRATEGY_FULL, 1, 1, 1};
    config.tensors = descs;
    config.num_tensors = NUM;
    config.parts = parts;
    config.num_parts = NUM;
    config.alias_names = aliases;
    config.alias_owners = owners;
    config.num_aliases = 1;
    config.meta_json = "{\"user\":{\"config\":{\"model_type\":\"gpt2\","
                       "\"n_embd\":3,\"eps\":1e-5},\"lr\":0.25}}";
    config.digest_model[0] = 11;
    config.digest_optim[1] = 12;
    ok(fsdp_ckpt_save(&config, NULL, &err) == FSDP_OK, "a source %s", err.text);
    for (uint32_t i = 0; i < NUM; i++) {
        free((void *)parts[i].data);
    }
}

/* --- Helpers -------------------------------------------------------------- */

static fsdp_status_t convert(const char *from, const char *to,
                             fsdp_ckpt_convert_config_t config,
                             fsdp_ckpt_convert_result_t *result,
                             fsdp_error_t *err)
{
    char *source = io_path("%s/%s", dir, from);
    char *target = io_path("%s/%s", dir, to);
    fsdp_status_t status;

    memset(err, 0, sizeof(*err));
    config.size = sizeof(config);
    config.source = source;
    config.target = target;
    status = fsdp_ckpt_convert(&config, result, err);
    free(source);
    free(target);
    return status;
}

static bool print_difference(const fsdp_ckpt_difference_t *difference,
                             void *arg)
{
    (void)arg;
    printf("# %s\n", difference->text);
    return true;
}

/* What was not initialised, or is of another version, is refused. */
static void test_sizes(const char *path)
{
    fsdp_ckpt_diff_config_t diff = FSDP_CKPT_DIFF_INIT;
    fsdp_ckpt_open_config_t open = FSDP_CKPT_OPEN_INIT;
    fsdp_ckpt_latest_config_t latest = FSDP_CKPT_LATEST_INIT;
    fsdp_ckpt_prune_config_t prune = FSDP_CKPT_PRUNE_INIT;
    fsdp_ckpt_diff_result_t diff_result;
    fsdp_ckpt_latest_result_t latest_result;
    fsdp_ckpt_prune_result_t prune_result;
    fsdp_ckpt_t *ckpt;

    diff.size--;
    open.size++;
    latest.size = 0;
    prune.size = 0;
    prune.keep_last = 1;
    ok(fsdp_ckpt_diff(path, path, &diff, NULL, NULL, &diff_result, NULL) ==
               FSDP_ERR_INVALID_PARAM &&
           fsdp_ckpt_open_with(path, &open, &ckpt, NULL) ==
               FSDP_ERR_INVALID_PARAM &&
           fsdp_ckpt_latest(dir, &latest, &latest_result, NULL) ==
               FSDP_ERR_INVALID_PARAM &&
           fsdp_ckpt_prune(dir, &prune, &prune_result, NULL) ==
               FSDP_ERR_INVALID_PARAM,
       "a configuration of another size is refused");
}

/* @return tensors compared, 0 if any differs. */
static uint64_t same(const char *a, const char *b, bool only_model)
{
    fsdp_ckpt_diff_config_t config = FSDP_CKPT_DIFF_INIT;
    char *left = io_path("%s/%s", dir, a), *right = io_path("%s/%s", dir, b);
    fsdp_ckpt_diff_result_t result = {0};
    fsdp_error_t err = {0};
    fsdp_status_t status;

    config.only_model = only_model;
    status = fsdp_ckpt_diff(left, right, &config, print_difference, NULL,
                            &result, &err);
    if (status != FSDP_OK) {
        printf("# %s\n", err.text);
    }
    free(left);
    free(right);
    return (status == FSDP_OK && result.differences == 0) ? result.tensors : 0;
}

static fsdp_status_t look(const char *name, catalog_t *cat)
{
    char *path = io_path("%s/%s", dir, name);
    fsdp_error_t err;
    fsdp_status_t status;

    catalog_init(cat);
    status = format_open(path, cat, &err);
    if (status != FSDP_OK) {
        printf("# %s\n", err.text);
    }
    free(path);
    return status;
}

static bool has(const char *ckpt, const char *name)
{
    catalog_t cat;
    uint64_t tensor;
    bool found =
        look(ckpt, &cat) == FSDP_OK && catalog_find(&cat, name, &tensor);

    catalog_free(&cat);
    return found;
}

/* --- Chains --------------------------------------------------------------- */

static void test_chain(void)
{
    static const struct {
        const char *strategy;
        uint32_t world, files;
    } steps[] = {
        {"full",     2, 0},
        {"hybrid:2", 4, 3},
        {"none",     3, 0},
        {"grad-op",  7, 0},
        {"hybrid:4", 8, 1},
        {"chunk",    3, 2},
        {"hybrid:1", 2, 0},
        {"chunk",    5, 0},
        {"full",     8, 2},
        {"full",     1, 0},
    };
    char from[16] = "step-00000007", to[16];

    for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++) {
        fsdp_ckpt_convert_config_t config = {.files = steps[i].files};
        fsdp_ckpt_convert_result_t result = {0};
        fsdp_strategy_t strategy;
        fsdp_error_t err = {0};
        uint32_t shard;
        catalog_t cat;
        bool good;

        fsdp_strategy_parse(steps[i].strategy, &strategy, &shard, NULL);
        fsdp_mesh_init(&config.mesh, strategy, steps[i].world, shard, NULL);
        snprintf(to, sizeof(to), "chain-%zu", i);
        good = convert(from, to, config, &result, &err) == FSDP_OK;
        ok(good && same("step-00000007", to, false) == NUM,
           "to %u ranks, %s: the same %s", steps[i].world, steps[i].strategy,
           err.text);
        good = look(to, &cat) == FSDP_OK && cat.step == 7 &&
               cat.mesh.world == steps[i].world &&
               cat.mesh.strategy == strategy && cat.num_files == result.files &&
               cat.num_aliases == 1 && cat.digest_model[0] == 11 &&
               cat.digest_optim[1] == 12 && strstr(cat.meta, "0.25") != NULL &&
               cat.num_units == 2;
        ok(good, "step, world, aliases, digests, units, metadata are kept");
        catalog_free(&cat);
        if (i > 0) {
            drop(from);
        }
        memcpy(from, to, sizeof(to));
    }
    ok(is_clean(), "nothing temporary is left");
    drop(from);
}

static void test_formats(void)
{
    fsdp_ckpt_convert_result_t result = {0};
    fsdp_error_t err;
    catalog_t cat;

    ok(convert("step-00000007", "one.h5",
               (fsdp_ckpt_convert_config_t){.format = FSDP_CKPT_HDF5_FILE},
               &result, &err) == FSDP_OK &&
           same("step-00000007", "one.h5", false) == NUM && result.files == 1,
       "one HDF5 file %s", err.text);
    ok(convert("one.h5", "again",
               (fsdp_ckpt_convert_config_t){
                   .mesh = {0, 3, 3, 1}
    },
               &result, &err) == FSDP_OK &&
           same("step-00000007", "again", false) == NUM,
       "and to three ranks %s", err.text);
    ok(has("again", "model/lm_head.weight"), "the tied name is there");

    ok(convert("again", "all.safetensors",
               (fsdp_ckpt_convert_config_t){.format = FSDP_CKPT_SAFETENSORS},
               &result, &err) == FSDP_OK &&
           same("again", "all.safetensors", false) == NUM &&
           has("all.safetensors", "model/lm_head.weight"),
       "safetensors have everything %s", err.text);
    ok(convert("again", "out.safetensors",
               (fsdp_ckpt_convert_config_t){.format = FSDP_CKPT_SAFETENSORS,
                                            .only_model = true},
               &result, &err) == FSDP_OK &&
           same("step-00000007", "out.safetensors", true) > 0 &&
           result.tensors == 5 && has("out.safetensors", "wte.weight") &&
           has("out.safetensors", "lm_head.weight"),
       "or the model alone %s", err.text);
    {
        char *path = io_path("%s/config.json", dir), *text = NULL;
        size_t size;

        ok(io_read_file(path, 4096, &text, &size, &err) == FSDP_OK &&
               strstr(text, "\"eps\": 1e-5") != NULL,
           "and config.json beside it");
        free(text);
        free(path);
    }
    ok(look("out.safetensors", &cat) == FSDP_OK &&
           strstr(cat.meta, "\"n_embd\":3") != NULL,
       "which is read with it");
    catalog_free(&cat);

    ok(convert("again", "shards",
               (fsdp_ckpt_convert_config_t){.format = FSDP_CKPT_SAFETENSORS,
                                            .only_model = true,
                                            .shard_size = 100000},
               &result, &err) == FSDP_OK &&
           same("out.safetensors", "shards", false) == 5 && result.files == 2 &&
           is_there("shards/model.safetensors.index.json") &&
           is_there("shards/config.json"),
       "in files of at most 100 kB %s", err.text);
    ok(convert("shards", "back",
               (fsdp_ckpt_convert_config_t){
                   .rename = (const char *const[]){"*=model/*"},
                   .num_rename = 1,
                   .mesh = { FSDP_STRATEGY_NONE, 2, 1, 2}
    },
               &result, &err) == FSDP_OK &&
           same("step-00000007", "back", true) == 5,
       "and back to two ranks %s", err.text);
    ok(is_clean(), "nothing temporary is left");
    drop("one.h5");
    drop("again");
    drop("shards");
    drop("back");
}

/* --- Choosing ------------------------------------------------------------- */

static void test_choice(void)
{
    static const char *const ln[] = {"*ln.weight"}, *const h[] = {"model/h.*"};
    static const char *const rules[] = {"model/h.0.*=model/block.*",
                                        "model/block.ln.weight=model/norm"};
    fsdp_ckpt_convert_result_t result;
    fsdp_error_t err;
    catalog_t cat;

    ok(convert("step-00000007", "x",
               (fsdp_ckpt_convert_config_t){.include = ln, .num_include = 1},
               &result, &err) == FSDP_OK &&
           result.tensors == 2,
       "included %s", err.text);
    ok(look("x", &cat) == FSDP_OK && !cat.has_digest_model &&
           cat.num_aliases == 0,
       "a part has no digest and no alias");
    catalog_free(&cat);
    drop("x");

    ok(convert("step-00000007", "x",
               (fsdp_ckpt_convert_config_t){.exclude = h, .num_exclude = 1},
               &result, &err) == FSDP_OK &&
           result.tensors == NUM - 3 && !has("x", "model/h.0.ln.weight"),
       "excluded %s", err.text);
    ok(look("x", &cat) == FSDP_OK && !cat.has_digest_model &&
           cat.has_digest_optim,
       "only the digest of what is whole is kept");
    catalog_free(&cat);
    drop("x");

    ok(convert("step-00000007", "x",
               (fsdp_ckpt_convert_config_t){.rename = rules, .num_rename = 2},
               &result, &err) == FSDP_OK &&
           has("x", "model/norm") && has("x", "model/block.fc.weight") &&
           has("x", "optim/exp_avg/h.0.ln.weight"),
       "renamed %s", err.text);
    drop("x");

    ok(convert("step-00000007", "x",
               (fsdp_ckpt_convert_config_t){.only_model = true}, &result,
               &err) == FSDP_OK &&
           result.tensors == 5 && has("x", "wte.weight") &&
           has("x", "lm_head.weight"),
       "only the model %s", err.text);
    drop("x");
}

static void test_cast(void)
{
    fsdp_ckpt_convert_result_t result;
    bool good = true;
    fsdp_error_t err;
    catalog_t cat;

    ok(convert("step-00000007", "x",
               (fsdp_ckpt_convert_config_t){.cast = true,
                                            .cast_dtype = FSDP_DTYPE_F64,
                                            .engine = {.max_mem = 10000}},
               &result, &err) == FSDP_OK,
       "to f64 in 10000 bytes of buffers %s", err.text);
    good = look("x", &cat) == FSDP_OK && !cat.has_digest_model;
    for (uint64_t t = 0; t < cat.num_tensors; t++) {
        good &=
            cat.tensors[t].dtype ==
            (strcmp(cat.tensors[t].name, "model/steps") == 0 ? FSDP_DTYPE_I64
                                                             : FSDP_DTYPE_F64);
    }
    ok(good, "all but the integers; no digest any more");
    catalog_free(&cat);
    ok(convert("x", "y",
               (fsdp_ckpt_convert_config_t){.cast = true,
                                            .cast_dtype = FSDP_DTYPE_F32},
               &result, &err) == FSDP_OK,
       "and back to f32 %s", err.text);
    {
        char *a = io_path("%s/step-00000007", dir), *b = io_path("%s/y", dir);
        fsdp_ckpt_diff_config_t config = FSDP_CKPT_DIFF_INIT;
        fsdp_ckpt_diff_result_t diff = {0};

        config.rtol = 1e-30;
        config.atol = 1e-300;
        ok(fsdp_ckpt_diff(a, b, &config, print_difference, NULL, &diff, &err) ==
                   FSDP_OK &&
               diff.differences == 0 && diff.tensors == NUM,
           "gives the same numbers");
        test_sizes(a);
        free(a);
        free(b);
    }
    drop("x");
    drop("y");
    ok(convert("step-00000007", "x",
               (fsdp_ckpt_convert_config_t){.cast = true,
                                            .cast_dtype = FSDP_DTYPE_I8},
               &result, &err) == FSDP_ERR_UNSUPPORTED,
       "%s", err.text);
}

/* --- Refusals ------------------------------------------------------------- */

static void test_dry_run(void)
{
    fsdp_ckpt_convert_result_t dry = {0}, wet = {0};
    fsdp_ckpt_convert_config_t config = {
        .dry_run = true, .mesh = {0, 2, 2, 1}
    };
    fsdp_error_t err;

    ok(convert("step-00000007", "x", config, &dry, &err) == FSDP_OK &&
           !is_there("x") && is_clean() && dry.bytes_free > 0,
       "a dry run writes nothing %s", err.text);
    config.dry_run = false;
    ok(convert("step-00000007", "x", config, &wet, &err) == FSDP_OK &&
           wet.bytes_read == dry.bytes_read &&
           wet.bytes_written == dry.bytes_written &&
           wet.tensors == dry.tensors && wet.files == dry.files,
       "and says what a real one does %s", err.text);
    drop("x");
}

static void flip(const char *name, off_t at)
{
    char *path = io_path("%s/%s", dir, name);
    int fd = open(path, O_RDWR);
    char c;

    if (pread(fd, &c, 1, at) == 1) {
        c ^= 1;
        if (pwrite(fd, &c, 1, at) != 1) {
            c = 0;
        }
    }
    close(fd);
    free(path);
}

static void test_refusals(void)
{
    static const char *const none[] = {"nothing*"}, *const bad[] = {"a*=b"};
    static const char *const unused[] = {"q=r"};
    static const char *const clash[] = {"model/h.0.ln.weight=model/steps"};
    fsdp_ckpt_convert_result_t result;
    fsdp_error_t err;

    ok(convert("step-00000007", "step-00000007",
               (fsdp_ckpt_convert_config_t){.format = 0}, &result,
               &err) == FSDP_ERR_EXISTS,
       "%s", err.text);
    ok(convert("step-00000007", "no/such/place",
               (fsdp_ckpt_convert_config_t){.format = 0}, &result,
               &err) == FSDP_ERR_IO,
       "%s", err.text);
    ok(convert("gone", "x", (fsdp_ckpt_convert_config_t){.format = 0}, &result,
               &err) == FSDP_ERR_NOT_FOUND,
       "%s", err.text);
    ok(convert("step-00000007", "x",
               (fsdp_ckpt_convert_config_t){.include = none, .num_include = 1},
               &result, &err) == FSDP_ERR_NOT_FOUND,
       "%s", err.text);
    ok(convert("step-00000007", "x",
               (fsdp_ckpt_convert_config_t){.rename = bad, .num_rename = 1},
               &result, &err) == FSDP_ERR_INVALID_PARAM,
       "%s", err.text);
    ok(convert("step-00000007", "x",
               (fsdp_ckpt_convert_config_t){.rename = unused, .num_rename = 1},
               &result, &err) == FSDP_ERR_NOT_FOUND,
       "%s", err.text);
    ok(convert("step-00000007", "x",
               (fsdp_ckpt_convert_config_t){.rename = clash, .num_rename = 1},
               &result, &err) == FSDP_ERR_INVALID_PARAM &&
           strstr(err.text, "both be named model/steps") != NULL,
       "%s", err.text);
    ok(convert("step-00000007", "x.safetensors",
               (fsdp_ckpt_convert_config_t){.format = FSDP_CKPT_SAFETENSORS,
                                            .shard_size = 1000},
               &result, &err) == FSDP_ERR_CONFIG,
       "%s", err.text);
    ok(convert("step-00000007", "x",
               (fsdp_ckpt_convert_config_t){
                   .mesh = {FSDP_STRATEGY_HYBRID, 6, 4, 1}
    },
               &result, &err) == FSDP_ERR_CONFIG,
       "%s", err.text);
    ok(!is_there("x") && is_clean(), "nothing is left of these");
}

static void test_damage(void)
{
    fsdp_ckpt_convert_result_t result;
    fsdp_error_t err;
    catalog_t cat;
    off_t at = 0;

    if (look("step-00000007", &cat) == FSDP_OK) {
        at = (off_t)cat.pieces[cat.tensors[cat.num_tensors - 1].piece_first]
                 .offset;
    }
    catalog_free(&cat);
    flip("step-00000007/shard-00000.h5", at + 5000);
    ok(convert("step-00000007", "x", (fsdp_ckpt_convert_config_t){.format = 0},
               &result, &err) == FSDP_ERR_CORRUPT &&
           strstr(err.text, "optim/exp_avg/wte.weight") != NULL,
       "%s", err.text);
    ok(convert("step-00000007", "x.h5",
               (fsdp_ckpt_convert_config_t){.format = FSDP_CKPT_HDF5_FILE},
               &result, &err) == FSDP_ERR_CORRUPT,
       "%s", err.text);
    ok(!is_there("x") && !is_there("x.h5") && is_clean(),
       "no target appears from a damaged source");
    flip("step-00000007/shard-00000.h5", at + 5000);
}

static void test_other_config(void)
{
    char *path = io_path("%s/config.json", dir);
    fsdp_ckpt_convert_result_t result;
    fsdp_error_t err;

    io_replace_file(path, "{\"model_type\":\"llama\"}", 22, NULL);
    ok(convert("step-00000007", "y.safetensors",
               (fsdp_ckpt_convert_config_t){.format = FSDP_CKPT_SAFETENSORS},
               &result, &err) == FSDP_ERR_EXISTS &&
           !is_there("y.safetensors"),
       "%s", err.text);
    free(path);
}

int main(void)
{
    if (mkdtemp(dir) == NULL) {
        return 99;
    }
    make_source();
    test_chain();
    test_formats();
    test_choice();
    test_cast();
    test_dry_run();
    test_refusals();
    test_damage();
    test_other_config();
    nftw(dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    return tap_done();
}
