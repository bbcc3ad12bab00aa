/*
 * ckpt-make - write a checkpoint as a training job of W ranks would, for tests
 *
 * The tensors are those of a small GPT-2 with its optimizer state, a tied
 * name, a scalar, an empty tensor, and some of other types.  Each value
 * follows from the tensor's name and the element's number.
 */
#include "config.h"

#include <argp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bin/cli.h"
#include "ckpt/fsdp_ckpt.h"
#include "lib/util/check.h"
#include "lib/util/digest.h"

#define KINDS 3

static const char *const kinds[KINDS] = {"model", "optim/exp_avg",
                                         "optim/exp_avg_sq"};

typedef struct {
    uint32_t world, shard, files;
    fsdp_strategy_t strategy;
    uint64_t vocab, width, layers;
    int64_t step;
    const char *meta;
    const char *change; /* NAME:ELEMENT gets another value */
    bool bad_digest;    /* as if it had another value in the digest only */
    uint64_t size;      /* 0: a small one, with optimizer state */
    const char *dir;
} settings_t;

static const char doc[] =
    "Write a checkpoint of a small GPT-2 into DIR as W ranks would, or of a "
    "large one for measurements.";

enum {
    OPTION_META = 0x100,
    OPTION_BAD_DIGEST,
    OPTION_SIZE,
    OPTION_VOCAB,
    OPTION_WIDTH,
    OPTION_LAYERS
};

/* clang-format off */
static const struct argp_option options[] = {
    {"world", 'w', "N", 0, "Ranks (default 4)", 0},
    {"strategy", 's', "NAME", 0, "full, grad-op, hybrid:F, none", 0},
    {"files", 'f', "N", 0, "Shard files", 0},
    {"step", 'n', "N", 0, "Step (default 100)", 0},
    {"change", 'c', "NAME:I", 0, "Change element I of a tensor", 0},
    {"bad-digest", OPTION_BAD_DIGEST, 0, 0, "Leave wrong digests", 0},
    {"meta", OPTION_META, "JSON", 0, "Metadata", 0},
    {"size", OPTION_SIZE, "SIZE", 0,
      "Parameters of about so many bytes, no optimizer state; values repeat",
     0},
    {"vocab", OPTION_VOCAB, "N", 0, "Rows of the embedding (8192)", 0},
    {"width", OPTION_WIDTH, "N", 0, "Width (64)", 0},
    {"layers", OPTION_LAYERS, "N", 0, "Layers (2)", 0},
    {0}
};
/* clang-format on */

/* Layers enough for what --size asks. */
static void choose_shape(settings_t *set)
{
    uint64_t embedding, layer;

    set->vocab = 50304;
    set->width = 1024;
    embedding = set->vocab * set->width * sizeof(float);
    layer = 12 * set->width * set->width * sizeof(float);
    set->layers =
        (set->size > embedding + layer) ? (set->size - embedding) / layer : 1;
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    settings_t *set = state->input;
    fsdp_error_t err;

    switch (key) {
    case 'w':
        set->world = (uint32_t)cli_parse_count(state, "world", text, 1, 1000);
        return 0;
    case 's':
        if (fsdp_strategy_parse(text, &set->strategy, &set->shard, &err) !=
            FSDP_OK) {
            argp_error(state, "%s", err.text);
        }
        return 0;
    case 'f':
        set->files = (uint32_t)cli_parse_count(state, "files", text, 1, 1000);
        return 0;
    case 'n':
        set->step = (int64_t)cli_parse_count(state, "step", text, 0, INT64_MAX);
        return 0;
    case 'c':
        set->change = text;
        return 0;
    case OPTION_BAD_DIGEST:
        set->bad_digest = true;
        return 0;
    case OPTION_META:
        set->meta = text;
        return 0;
    case OPTION_SIZE:
        set->size = cli_parse_size(state, "size", text, 1);
        return 0;
    case OPTION_VOCAB:
        set->vocab = cli_parse_count(state, "vocab", text, 1, 1 << 24);
        return 0;
    case OPTION_WIDTH:
        set->width = cli_parse_count(state, "width", text, 1, 1 << 16);
        return 0;
    case OPTION_LAYERS:
        set->layers = cli_parse_count(state, "layers", text, 1, 1 << 20);
        return 0;
    case ARGP_KEY_ARG:
        set->dir = text;
        return 0;
    case ARGP_KEY_END:
        if (set->dir == NULL) {
            argp_error(state, "a directory is needed");
        }
        if (set->size > 0) {
            choose_shape(set);
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* --- The tensors ---------------------------------------------------------- */

static fsdp_ckpt_desc_t *tensors;
static uint64_t *numels;
static uint32_t num_tensors;

static void add_tensor(const char *kind, const char *name, const char *unit,
                       fsdp_dtype_t dtype, uint32_t ndim, const uint64_t *dims)
{
    uint64_t *copy = cli_realloc(NULL, ndim, sizeof(*dims));

    tensors = cli_realloc(tensors, num_tensors + 1ul, sizeof(*tensors));
    numels = cli_realloc(numels, num_tensors + 1ul, sizeof(*numels));
    memcpy(copy, dims, ndim * sizeof(*dims));
    numels[num_tensors] = 1;
    for (uint32_t d = 0; d < ndim; d++) {
        numels[num_tensors] *= dims[d];
    }
    tensors[num_tensors++] = (fsdp_ckpt_desc_t){
        .name = (*kind != '\0') ? cli_printf("%s/%s", kind, name) : name,
        .dtype = dtype,
        .ndim = ndim,
        .dims = copy,
        .unit = unit,
    };
}

static void add_layer(const char *kind, const char *unit, uint64_t c)
{
    const struct {
        const char *name;
        uint32_t ndim;
        uint64_t dims[2];
    } params[] = {
        {"ln_1.weight",        1, {c}       },
        {"ln_1.bias",          1, {c}       },
        {"attn.c_attn.weight", 2, {c, 3 * c}},
        {"attn.c_attn.bias",   1, {3 * c}   },
        {"attn.c_proj.weight", 2, {c, c}    },
        {"attn.c_proj.bias",   1, {c}       },
        {"ln_2.weight",        1, {c}       },
        {"ln_2.bias",          1, {c}       },
        {"mlp.c_fc.weight",    2, {c, 4 * c}},
        {"mlp.c_fc.bias",      1, {4 * c}   },
        {"mlp.c_proj.weight",  2, {4 * c, c}},
        {"mlp.c_proj.bias",    1, {c}       },
    };

    for (size_t i = 0; i < sizeof(params) / sizeof(*params); i++) {
        char *name = cli_printf("transformer.%s.%s", unit, params[i].name);

        add_tensor(kind, name, unit, FSDP_DTYPE_F32, params[i].ndim,
                   params[i].dims);
        free(name); /* the tensor has a longer one of its own */
    }
}

static void add_tensors(const settings_t *set)
{
    const uint64_t wte[] = {set->vocab, set->width}, wpe[] = {32, set->width};
    const uint64_t rows[] = {3, 5}, empty[] = {0, 7};
    unsigned num_kinds = (set->size > 0) ? 1 : KINDS;

    for (unsigned k = 0; k < num_kinds; k++) {
        add_tensor(kinds[k], "transformer.wte.weight", "root", FSDP_DTYPE_F32,
                   2, wte);
        add_tensor(kinds[k], "transformer.wpe.weight", "root", FSDP_DTYPE_F32,
                   2, wpe);
        add_tensor(kinds[k], "transformer.ln_f.weight", "root", FSDP_DTYPE_F32,
                   1, wte + 1);
        add_tensor(kinds[k], "transformer.ln_f.bias", "root", FSDP_DTYPE_F32, 1,
                   wte + 1);
    }
    for (uint64_t l = 0; l < set->layers; l++) {
        const char *unit = cli_printf("h.%" PRIu64, l);

        for (unsigned k = 0; k < num_kinds; k++) {
            add_layer(kinds[k], unit, set->width);
        }
    }
    add_tensor("model", "temperature", NULL, FSDP_DTYPE_F32, 0, empty);
    add_tensor("model", "adapters", NULL, FSDP_DTYPE_F32, 2, empty);
    add_tensor("", "buffer/half", NULL, FSDP_DTYPE_BF16, 2, rows);
    add_tensor("", "buffer/mask", NULL, FSDP_DTYPE_BOOL, 2, rows);
    add_tensor("", "buffer/steps", NULL, FSDP_DTYPE_I64, 0, empty);
}

/* --- Values --------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t name_seed(const char *name)
{
    uint64_t seed = 0;

    for (; *name != '\0'; name++) {
        seed = mix(seed + (unsigned char)*name + 1);
    }

    return seed;
}

/* Elements [first, first + count) of a tensor. */
static void fill(uint32_t t, uint64_t first, uint64_t count, void *data)
{
    uint64_t seed = name_seed(tensors[t].name);
    bool positive = strstr(tensors[t].name, "exp_avg_sq") != NULL;

    for (uint64_t i = 0; i < count; i++) {
        uint64_t bits = mix(seed + first + i);
        float value = (float)(int32_t)(bits >> 32) * 0x1p-31f;
        uint32_t word;

        value = positive ? value * value : value;
        memcpy(&word, &value, sizeof(word));
        switch (tensors[t].dtype) {
        case FSDP_DTYPE_F32:
            ((float *)data)[i] = value;
            break;
        case FSDP_DTYPE_BF16:
            ((uint16_t *)data)[i] = (uint16_t)(word >> 16);
            break;
        case FSDP_DTYPE_BOOL:
            ((uint8_t *)data)[i] = bits & 1;
            break;
        case FSDP_DTYPE_I64:
            ((int64_t *)data)[i] = (int64_t)bits;
            break;
        default:
            abort();
        }
    }
}

/* The element that --change names becomes 1.5 times what it was, plus 1. */
static void change(const settings_t *set, uint32_t t, uint64_t first,
                   uint64_t count, void *data)
{
    const char *colon = set->change ? strrchr(set->change, ':') : NULL;
    uint64_t element;

    if (colon == NULL ||
        strlen(tensors[t].name) != (size_t)(colon - set->change) ||
        strncmp(set->change, tensors[t].name, (size_t)(colon - set->change))) {
        return;
    }

    element = strtoull(colon + 1, NULL, 10);
    if (tensors[t].dtype == FSDP_DTYPE_F32 && element >= first &&
        element - first < count) {
        float *value = (float *)data + (element - first);

        *value = 1.5f * *value + 1;
    }
}

/* --- What a rank writes --------------------------------------------------- */

static fsdp_ckpt_part_t *parts;
static size_t num_parts;

/* With --size: values that all parts share, more of them than one has. */
static float *pool;

#define POOL_MORE 4096 /* a part begins that far into the pool, at most */

static void fill_pool(const settings_t *set)
{
    uint64_t count = set->vocab * set->width + POOL_MORE;

    pool = cli_realloc(NULL, count, sizeof(*pool));
    fill(0, 0, count, pool);
}

static void *make_values(const settings_t *set, uint32_t t, uint64_t first,
                         uint64_t count)
{
    unsigned bytes = fsdp_dtype_bits(tensors[t].dtype) / 8;
    void *data;

    if (pool != NULL) {
        return pool + mix(t + first) % POOL_MORE;
    }

    data = cli_realloc(NULL, count, bytes);
    fill(t, first, count, data);
    change(set, t, first, count, data);
    return data;
}

static void add_part(const settings_t *set, uint32_t t, uint64_t first,
                     uint64_t count)
{
    void *data = make_values(set, t, first, count);

    parts = cli_realloc(parts, num_parts + 1, sizeof(*parts));
    parts[num_parts++] = (fsdp_ckpt_part_t){t, first, count, data};
}

/* Tensors [t, t + num) are one kind of a unit. */
static fsdp_status_t add_unit_parts(const settings_t *set,
                                    const fsdp_mesh_t *mesh, uint32_t rank,
                                    uint32_t t, uint32_t num, fsdp_error_t *err)
{
    uint32_t f = rank % mesh->shard, replica = rank / mesh->shard;
    uint64_t *starts = cli_realloc(NULL, num, sizeof(*starts));
    uint64_t length, lo, hi, first, count;

    FSDP_TRY(
        fsdp_layout_unit(numels + t, num, mesh->shard, starts, &length, err));
    lo = f * length + fsdp_layout_part_start(length, mesh->replicas, replica);
    hi = f * length +
         fsdp_layout_part_start(length, mesh->replicas, replica + 1);
    for (uint32_t i = 0; i < num; i++) {
        fsdp_layout_clip(starts[i], numels[t + i], lo, hi, &first, &count);
        if (count > 0) {
            add_part(set, t + i, first, count);
        }
    }
    free(starts);

    return FSDP_OK;
}

static fsdp_status_t add_parts(const settings_t *set, const fsdp_mesh_t *mesh,
                               uint32_t rank, fsdp_error_t *err)
{
    uint32_t num;

    for (uint32_t t = 0; t < num_tensors; t += num) {
        const char *unit = tensors[t].unit;
        size_t kind = strlen(tensors[t].name) -
                      strlen(strstr(tensors[t].name, "/transformer")
                                 ? strstr(tensors[t].name, "/transformer")
                                 : "");

        num = 1;
        if (unit == NULL) {
            if (rank == 0) {
                add_part(set, t, 0, numels[t]);
            }
            continue;
        }
        while (t + num < num_tensors && tensors[t + num].unit != NULL &&
               strcmp(tensors[t + num].unit, unit) == 0 &&
               strncmp(tensors[t].name, tensors[t + num].name, kind + 1) == 0) {
            num++;
        }
        FSDP_TRY(add_unit_parts(set, mesh, rank, t, num, err));
    }

    return FSDP_OK;
}

/* Of all tensors of 32-bit elements whose name starts with @a kind. */
static void compute_digest(const settings_t *set, const char *kind,
                           uint64_t *words)
{
    digest_t digest = {
        {0, 0}
    };

    for (uint32_t t = 0; t < num_tensors; t++) {
        const char *name = tensors[t].name, *base = strrchr(name, '/') + 1;
        uint32_t *data;
        uint64_t key;
        char *prefix;

        if (strncmp(name, kind, strlen(kind)) != 0) {
            continue;
        }
        prefix = cli_printf("%.*s", (int)(base - 1 - name), name);
        key = digest_key(prefix, base);
        data = cli_realloc(NULL, numels[t], sizeof(*data));
        fill(t, 0, numels[t], data);
        change(set, t, 0, numels[t], data);
        digest_add(&digest, key, data, 0, numels[t]);
        digest_add_tensor(&digest, key, numels[t]);
        free(data);
        free(prefix);
    }
    memcpy(words, digest.word, sizeof(digest.word));
}

static fsdp_status_t save_rank(const settings_t *set, uint32_t rank,
                               const char *job_id, fsdp_error_t *err)
{
    const char *aliases[] = {"model/lm_head.weight"};
    const uint32_t owners[] = {0};
    fsdp_ckpt_save_config_t config = FSDP_CKPT_SAVE_INIT;
    fsdp_ckpt_save_result_t result;

    FSDP_TRY(fsdp_mesh_init(&config.mesh, set->strategy, set->world, set->shard,
                            err));
    FSDP_TRY(add_parts(set, &config.mesh, rank, err));

    config.dir = set->dir;
    config.step = set->step;
    config.job_id = job_id;
    config.rank = rank;
    config.files = set->files;
    config.tensors = tensors;
    config.num_tensors = num_tensors;
    config.parts = parts;
    config.num_parts = num_parts;
    config.alias_names = aliases;
    config.alias_owners = owners;
    config.num_aliases = (pool == NULL) ? 1 : 0;
    config.meta_json = set->meta;
    config.deadline = 60;
    if (rank == 0 && pool == NULL) {
        compute_digest(set, "model/", config.digest_model);
        compute_digest(set, "optim/", config.digest_optim);
        config.digest_model[1] += set->bad_digest;
    }

    return fsdp_ckpt_save(&config, &result, err);
}

/* A process a rank.  The error shown is that of the first rank that fails. */
static int save(const settings_t *set)
{
    char *job_id = cli_printf("make%ld", (long)getpid());
    fsdp_error_t err;
    int worst = 0, code;

    add_tensors(set);
    if (set->size > 0) {
        fill_pool(set);
    }
    for (uint32_t rank = 0; rank < set->world; rank++) {
        pid_t pid = fork();

        if (pid < 0) {
            perror("ckpt-make: fork");
            return FSDP_EXIT_TROUBLE;
        }
        if (pid == 0) {
            code = (save_rank(set, rank, job_id, &err) == FSDP_OK)
                       ? 0
                       : cli_fail(&err);
            _exit(code);
        }
    }
    while (wait(&code) > 0) {
        code = WIFEXITED(code) ? WEXITSTATUS(code) : FSDP_EXIT_TROUBLE;
        worst = (code > worst) ? code : worst;
    }
    free(job_id);

    return worst;
}

int main(int argc, char **argv)
{
    const struct argp argp = {options, parse_option, "DIR", doc, 0, 0, 0};
    settings_t set = {.world = 4,
                      .step = 100,
                      .vocab = 8192,
                      .width = 64,
                      .layers = 2,
                      .meta = "{\"user\": {\"config\": {\"model_type\": "
                              "\"gpt2\"}}}"};

    cli_parse("ckpt-make", &argp, argc, argv, &set);

    return save(&set);
}
