/*
 * ckpt-golden - make the checkpoints that t/data keeps, and list what any
 * checkpoint holds
 *
 *     ckpt-golden make DIR STRATEGY WORLD   as WORLD ranks would save it
 *     ckpt-golden sums CHECKPOINT           SHA-256, type, shape and name of
 *                                           each tensor; the aliases
 *
 * The tensors are two units with optimizer state, all types, scalars, empty
 * ones, awkward names.  `sums` prints what t/read-checkpoint.py prints.
 */
#include "config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <openssl/evp.h>

#include "ckpt/fsdp_ckpt.h"
#include "lib/util/check.h"
#include "lib/util/digest.h"

/* clang-format off */
static const fsdp_ckpt_desc_t tensors[] = {
#define DIMS(...) ((const uint64_t[]){__VA_ARGS__})
#define UNIT(_kind)                                                           \
    {_kind "/wte.weight", FSDP_DTYPE_F32, 2, DIMS(61, 8), "root"},            \
        {_kind "/ln_f.bias", FSDP_DTYPE_F32, 1, DIMS(8), "root"}
#define LAYER(_kind)                                                          \
    {_kind "/h.0.attn.weight", FSDP_DTYPE_F32, 3, DIMS(5, 3, 31), "h.0"},     \
        {_kind "/h.0.attn.bias", FSDP_DTYPE_F32, 1, DIMS(15), "h.0"},         \
        {_kind "/h.0.scale", FSDP_DTYPE_F32, 0, NULL, "h.0"},                 \
        {_kind "/h.0.adapters", FSDP_DTYPE_F32, 2, DIMS(0, 31), "h.0"}
    UNIT("model"),
    UNIT("optim/exp_avg"),
    UNIT("optim/exp_avg_sq"),
    LAYER("model"),
    LAYER("optim/exp_avg"),
    LAYER("optim/exp_avg_sq"),
    {"types/bf16", FSDP_DTYPE_BF16, 2, DIMS(7, 11), NULL},
    {"types/bf16.scalar", FSDP_DTYPE_BF16, 0, NULL, NULL},
    {"types/f16", FSDP_DTYPE_F16, 1, DIMS(13), NULL},
    {"types/f64", FSDP_DTYPE_F64, 1, DIMS(13), NULL},
    {"types/i8", FSDP_DTYPE_I8, 1, DIMS(13), NULL},
    {"types/i16", FSDP_DTYPE_I16, 1, DIMS(13), NULL},
    {"types/i32", FSDP_DTYPE_I32, 1, DIMS(13), NULL},
    {"types/i64", FSDP_DTYPE_I64, 0, NULL, NULL},
    {"types/u8", FSDP_DTYPE_U8, 1, DIMS(13), NULL},
    {"types/u16", FSDP_DTYPE_U16, 1, DIMS(13), NULL},
    {"types/u32", FSDP_DTYPE_U32, 1, DIMS(13), NULL},
    {"types/u64", FSDP_DTYPE_U64, 1, DIMS(13), NULL},
    {"types/bool", FSDP_DTYPE_BOOL, 2, DIMS(3, 5), NULL},
    {"types/c64", FSDP_DTYPE_C64, 1, DIMS(13), NULL},
    {"types/c128", FSDP_DTYPE_C128, 1, DIMS(13), NULL},
    {"types/f8_e4m3", FSDP_DTYPE_F8_E4M3, 2, DIMS(3, 5), NULL},
    {"types/f6_e3m2", FSDP_DTYPE_F6_E3M2, 2, DIMS(2, 8), NULL},
    {"types/f4", FSDP_DTYPE_F4, 2, DIMS(3, 8), NULL},
    {"names/with space", FSDP_DTYPE_F32, 1, DIMS(3), NULL},
    {"names//empty/../dots", FSDP_DTYPE_F32, 1, DIMS(3), NULL},
    {"names/100%", FSDP_DTYPE_F32, 1, DIMS(3), NULL},
    {"names/both", FSDP_DTYPE_F32, 1, DIMS(3), NULL},
    {"names/both/inner", FSDP_DTYPE_F32, 1, DIMS(3), NULL},
    {"names/gr\xc3\xb6\xc3\x9f"
     "e",
     FSDP_DTYPE_F32, 1, DIMS(3), NULL},
    {"tensors", FSDP_DTYPE_F32, 1, DIMS(3), NULL},
};
/* clang-format on */

#define NUM (uint32_t)(sizeof(tensors) / sizeof(*tensors))

static const char *const aliases[] = {"model/lm_head.weight"};
static const uint32_t owners[] = {0};

static uint64_t numel_of(uint32_t t)
{
    uint64_t numel = 1;

    for (uint32_t d = 0; d < tensors[t].ndim; d++) {
        numel *= tensors[t].dims[d];
    }

    return numel;
}

/* Numbers that any program reads as they are: small, no NaN. */
static void *make_data(uint32_t t, uint64_t numel)
{
    unsigned bits = fsdp_dtype_bits(tensors[t].dtype);
    unsigned char *data = calloc(1, (size_t)(numel * bits + 15) / 8);

    for (uint64_t i = 0; data != NULL && i < (numel * bits + 7) / 8; i++) {
        uint64_t x = (i + 1) * 2654435761u + t * 40503u;

        data[i] = (tensors[t].dtype == FSDP_DTYPE_BOOL) ? (x >> 13) & 1
                                                        : (x >> 13) & 0x3f;
    }

    return data;
}

/* --- make ----------------------------------------------------------------- */

typedef struct {
    fsdp_ckpt_part_t parts[NUM];
    size_t num;
} rank_parts_t;

/* Tensors [t, t + num) are one kind of a unit. */
static fsdp_status_t add_unit(const fsdp_ckpt_save_config_t *config,
                              rank_parts_t *parts, uint32_t t, uint32_t num,
                              fsdp_error_t *err)
{
    const fsdp_mesh_t *mesh = &config->mesh;
    uint32_t f = config->rank % mesh->shard;
    uint32_t replica = config->rank / mesh->shard;
    uint64_t numels[NUM], starts[NUM], length, lo, hi;

    for (uint32_t i = 0; i < num; i++) {
        numels[i] = numel_of(t + i);
    }
    FSDP_TRY(fsdp_layout_unit(numels, num, mesh->shard, starts, &length, err));
    lo = f * length + fsdp_layout_part_start(length, mesh->replicas, replica);
    hi = f * length +
         fsdp_layout_part_start(length, mesh->replicas, replica + 1);
    for (uint32_t i = 0; i < num; i++) {
        fsdp_ckpt_part_t part = {.tensor = t + i};

        fsdp_layout_clip(starts[i], numels[i], lo, hi, &part.first,
                         &part.count);
        part.data = (char *)make_data(t + i, numels[i]) + 4 * part.first;
        parts->parts[parts->num++] = part;
    }

    return FSDP_OK;
}

/* Of all tensors whose names start with @a kind. */
static void add_digest(const char *kind, uint64_t words[2])
{
    digest_t digest = {
        {0, 0}
    };

    for (uint32_t t = 0; t < NUM; t++) {
        const char *name = tensors[t].name, *base = strrchr(name, '/') + 1;
        uint64_t numel = numel_of(t), key;
        char prefix[64];
        void *data;

        if (strncmp(name, kind, strlen(kind)) != 0) {
            continue;
        }
        snprintf(prefix, sizeof(prefix), "%.*s", (int)(base - 1 - name), name);
        key = digest_key(prefix, base);
        data = make_data(t, numel);
        digest_add(&digest, key, data, 0, numel);
        digest_add_tensor(&digest, key, numel);
        free(data);
    }
    memcpy(words, digest.word, sizeof(digest.word));
}

static fsdp_status_t save_rank(const char *dir, const fsdp_mesh_t *mesh,
                               uint32_t rank, fsdp_error_t *err)
{
    fsdp_ckpt_save_config_t config = FSDP_CKPT_SAVE_INIT;
    fsdp_ckpt_save_result_t result;
    rank_parts_t parts = {.num = 0};
    uint32_t num;

    config.dir = dir;
    config.step = 7;
    config.job_id = "golden";
    config.rank = rank;
    config.mesh = *mesh;
    for (uint32_t t = 0; t < NUM; t += num) {
        const char *unit = tensors[t].unit;

        num = 1;
        if (unit == NULL) {
            if (t % mesh->world == rank) { /* whole, at one rank */
                uint64_t numel = numel_of(t);

                parts.parts[parts.num++] =
                    (fsdp_ckpt_part_t){t, 0, numel, make_data(t, numel)};
            }
            continue;
        }
        num = (strcmp(unit, "root") == 0) ? 2 : 4;
        FSDP_TRY(add_unit(&config, &parts, t, num, err));
    }
    config.tensors = tensors;
    config.num_tensors = NUM;
    config.parts = parts.parts;
    config.num_parts = parts.num;
    config.alias_names = aliases;
    config.alias_owners = owners;
    config.num_aliases = 1;
    config.meta_json = "{\"config\": {\"n_layer\": 1}, \"lr\": 0.0003}";
    add_digest("model/", config.digest_model);
    add_digest("optim/", config.digest_optim);
    config.deadline = 60;

    return fsdp_ckpt_save(&config, &result, err);
}

static int make(const char *dir, const char *strategy, const char *world)
{
    fsdp_strategy_t kind;
    fsdp_error_t err;
    fsdp_mesh_t mesh;
    uint32_t shard;
    int worst = 0, code;

    if (fsdp_strategy_parse(strategy, &kind, &shard, &err) != FSDP_OK ||
        fsdp_mesh_init(&mesh, kind, (uint32_t)atoi(world), shard, &err) !=
            FSDP_OK) {
        fprintf(stderr, "ckpt-golden: %s\n", err.text);
        return FSDP_EXIT_USAGE;
    }

    for (uint32_t rank = 0; rank < mesh.world; rank++) {
        pid_t pid = fork();

        if (pid == 0) {
            if (save_rank(dir, &mesh, rank, &err) != FSDP_OK) {
                fprintf(stderr, "ckpt-golden: %s\n", err.text);
                _exit(fsdp_status_exit(err.status));
            }
            _exit(0);
        }
        worst = (pid < 0) ? FSDP_EXIT_TROUBLE : worst;
    }
    while (wait(&code) > 0) {
        code = WIFEXITED(code) ? WEXITSTATUS(code) : FSDP_EXIT_TROUBLE;
        worst = (code > worst) ? code : worst;
    }

    return worst;
}

/* --- sums ----------------------------------------------------------------- */

static fsdp_status_t print_tensor(fsdp_ckpt_t *ckpt, uint64_t number,
                                  fsdp_error_t *err)
{
    unsigned char sum[EVP_MAX_MD_SIZE];
    fsdp_ckpt_tensor_t tensor;
    fsdp_ckpt_range_t range = {.tensor = number};
    unsigned size = 0;

    fsdp_ckpt_get_tensor(ckpt, number, &tensor);
    range.count = tensor.numel;
    range.data = malloc(tensor.bytes + 1);
    FSDP_TRY(fsdp_ckpt_read(ckpt, &range, 1, NULL, NULL, err));

    EVP_Digest(range.data, tensor.bytes, sum, &size, EVP_sha256(), NULL);
    free(range.data);
    for (unsigned i = 0; i < size; i++) {
        printf("%02x", sum[i]);
    }
    printf(" %s [", fsdp_dtype_name(tensor.dtype));
    for (uint32_t d = 0; d < tensor.ndim; d++) {
        printf("%s%" PRIu64, (d > 0) ? ", " : "", tensor.dims[d]);
    }
    printf("] %s\n", tensor.name);

    return FSDP_OK;
}

static fsdp_status_t print_all(fsdp_ckpt_t *ckpt, fsdp_error_t *err)
{
    fsdp_ckpt_tensor_t tensor;
    fsdp_ckpt_info_t info;
    const char *name;
    uint64_t owner;

    fsdp_ckpt_get_info(ckpt, &info);
    for (uint64_t i = 0; i < info.num_tensors; i++) {
        FSDP_TRY(print_tensor(ckpt, i, err));
    }
    for (uint64_t i = 0; i < info.num_aliases; i++) {
        fsdp_ckpt_get_alias(ckpt, i, &name, &owner);
        fsdp_ckpt_get_tensor(ckpt, owner, &tensor);
        printf("alias %s of %s\n", name, tensor.name);
    }

    return FSDP_OK;
}

static int sums(const char *path)
{
    fsdp_ckpt_t *ckpt = NULL;
    fsdp_status_t status;
    fsdp_error_t err;

    status = fsdp_ckpt_open(path, &ckpt, &err);
    if (status == FSDP_OK) {
        status = print_all(ckpt, &err);
        fsdp_ckpt_close(ckpt);
    }
    if (status != FSDP_OK) {
        fprintf(stderr, "ckpt-golden: %s\n", err.text);
        return fsdp_status_exit(status);
    }

    return (fflush(stdout) == 0) ? FSDP_EXIT_DONE : FSDP_EXIT_IO;
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "make") == 0) {
        return make(argv[2], argv[3], argv[4]);
    }
    if (argc == 3 && strcmp(argv[1], "sums") == 0) {
        return sums(argv[2]);
    }

    fprintf(stderr, "usage: ckpt-golden make DIR STRATEGY WORLD | "
                    "sums CHECKPOINT\n");
    return FSDP_EXIT_USAGE;
}
