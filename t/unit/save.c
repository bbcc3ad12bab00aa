/*
 * fsdp_ckpt_save() by several ranks, which are threads here: every mesh and
 * number of files, read back whole; ranks that are missing or fail.
 */
#include "config.h"

#include <ftw.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/fsdp_ckpt.h"
#include "lib/util/io.h"
#include "t/tap/tap.h"

static char dir[] = "/tmp/fsdp-save.XXXXXX";

enum { MAX_WORLD = 8, NUM_PARAMS = 6 };

/* --- A model: two units, each with a parameter and its moment ------------- */

static const struct {
    const char *name, *unit;
    uint32_t ndim;
    uint64_t dims[2];
} params[NUM_PARAMS] = {
    {"wte",      "root", 2, {700, 301}},
    {"scale",    "root", 0, {0}       },
    {"empty",    "root", 1, {0}       },
    {"h.0.w",    "h.0",  2, {64, 33}  },
    {"h.0.b",    "h.0",  1, {1}       },
    {"h.0.long", "h.0",  1, {400000}  },
};

typedef struct {
    fsdp_ckpt_desc_t descs[2 * NUM_PARAMS];
    char names[2 * NUM_PARAMS][40];
    uint64_t numels[2 * NUM_PARAMS];
    float *data[2 * NUM_PARAMS];
} model_t;

static model_t model;

static void make_model(void)
{
    for (int i = 0; i < 2 * NUM_PARAMS; i++) {
        int p = i % NUM_PARAMS;

        snprintf(model.names[i], sizeof(model.names[i]), "%s/%s",
                 i < NUM_PARAMS ? "model" : "optim/exp_avg", params[p].name);
        model.descs[i] = (fsdp_ckpt_desc_t){.name = model.names[i],
                                            .dtype = FSDP_DTYPE_F32,
                                            .ndim = params[p].ndim,
                                            .dims = params[p].dims,
                                            .unit = params[p].unit};
        model.numels[i] = 1;
        for (uint32_t d = 0; d < params[p].ndim; d++) {
            model.numels[i] *= params[p].dims[d];
        }
        model.data[i] = malloc((model.numels[i] + 1) * sizeof(float));
        for (uint64_t e = 0; e < model.numels[i]; e++) {
            model.data[i][e] = (float)(e * 31 + (unsigned)i) * 1.25f;
        }
    }
}

/* The parts of a rank, unit by unit. */
static size_t make_parts(const fsdp_mesh_t *mesh, uint32_t rank,
                         fsdp_ckpt_part_t *parts)
{
    uint64_t numels[NUM_PARAMS], starts[NUM_PARAMS], length;
    uint32_t first, end, f = rank % mesh->shard, replica = rank / mesh->shard;
    size_t num = 0;

    for (first = 0; first < NUM_PARAMS; first = end) {
        for (end = first; end < NUM_PARAMS &&
                          strcmp(params[end].unit, params[first].unit) == 0;
             end++) {
            numels[end - first] = model.numels[end];
        }
        fsdp_layout_unit(numels, end - first, mesh->shard, starts, &length,
                         NULL);
        for (uint32_t i = first; i < end; i++) {
            uint64_t part =
                fsdp_layout_part_start(length, mesh->replicas, replica);
            uint64_t next =
                fsdp_layout_part_start(length, mesh->replicas, replica + 1);

            for (uint32_t kind = 0; kind < 2; kind++) {
                fsdp_ckpt_part_t *p = &parts[num++];

                p->tensor = i + kind * NUM_PARAMS;
                fsdp_layout_clip(starts[i - first], numels[i - first],
                                 f * length + part, f * length + next,
                                 &p->first, &p->count);
                p->data = model.data[p->tensor] + p->first;
            }
        }
    }

    return num;
}

/* --- Ranks ---------------------------------------------------------------- */

typedef struct {
    fsdp_ckpt_save_config_t config;
    fsdp_ckpt_part_t parts[2 * NUM_PARAMS];
    fsdp_ckpt_save_result_t result;
    fsdp_status_t status;
    fsdp_error_t err;
} rank_t;

static rank_t ranks[MAX_WORLD];

static void prepare(const fsdp_mesh_t *mesh, int64_t step, uint32_t files)
{
    static const char *const aliases[] = {"model/head"};
    static const uint32_t owners[] = {0};

    for (uint32_t r = 0; r < mesh->world; r++) {
        ranks[r] = (rank_t){
            .config = {.size = sizeof(fsdp_ckpt_save_config_t),
                       .dir = dir,
                       .step = step,
                       .job_id = "test.1",
                       .rank = r,
                       .mesh = *mesh,
                       .files = files,
                       .tensors = model.descs,
                       .num_tensors = 2 * NUM_PARAMS,
                       .parts = ranks[r].parts,
                       .alias_names = aliases,
                       .alias_owners = owners,
                       .num_aliases = 1,
                       .meta_json = "{\"user\": {\"x\": 1.5}}",
                       .digest_model = {1, 2},
                       .deadline = 20}
        };
        ranks[r].config.num_parts = make_parts(mesh, r, ranks[r].parts);
    }
}

static void *save_in_thread(void *arg)
{
    rank_t *rank = arg;

    rank->status = fsdp_ckpt_save(&rank->config, &rank->result, &rank->err);
    return NULL;
}

/* All ranks but @a absent (UINT32_MAX: none). */
static void save_all(uint32_t world, uint32_t absent)
{
    pthread_t threads[MAX_WORLD];

    for (uint32_t r = 0; r < world; r++) {
        if (r != absent) {
            pthread_create(&threads[r], NULL, save_in_thread, &ranks[r]);
        }
    }
    for (uint32_t r = 0; r < world; r++) {
        if (r != absent) {
            pthread_join(threads[r], NULL);
        }
    }
}

/* --- Checks --------------------------------------------------------------- */

static bool holds_model(const char *path, int64_t step, fsdp_error_t *err)
{
    fsdp_ckpt_t *ckpt;
    fsdp_ckpt_info_t info;
    bool good = true;
    uint64_t tensor;

    if (fsdp_ckpt_open(path, &ckpt, err) != FSDP_OK) {
        return false;
    }
    fsdp_ckpt_get_info(ckpt, &info);
    good = info.step == step && info.num_tensors == 2 * NUM_PARAMS &&
           info.num_aliases == 1 && fsdp_ckpt_find(ckpt, "model/head", &tensor);
    for (int i = 0; i < 2 * NUM_PARAMS && good; i++) {
        fsdp_ckpt_range_t range = {.count = model.numels[i]};
        fsdp_ckpt_tensor_t entry;

        good = fsdp_ckpt_find(ckpt, model.names[i], &range.tensor);
        if (good) {
            fsdp_ckpt_get_tensor(ckpt, range.tensor, &entry);
            range.data = calloc(model.numels[i] + 1, sizeof(float));
            good =
                entry.unit != NULL &&
                strcmp(entry.unit, params[i % NUM_PARAMS].unit) == 0 &&
                fsdp_ckpt_read(ckpt, &range, 1, NULL, NULL, err) == FSDP_OK &&
                memcmp(range.data, model.data[i],
                       model.numels[i] * sizeof(float)) == 0;
            free(range.data);
        }
    }
    fsdp_ckpt_close(ckpt);
    return good;
}

static int num_hidden;

static int count_hidden(const char *path, const struct stat *st, int type,
                        struct FTW *ftw)
{
    (void)st, (void)type;
    num_hidden += path[ftw->base] == '.' && ftw->level > 0;
    return 0;
}

static bool is_clean(void)
{
    num_hidden = 0;
    nftw(dir, count_hidden, 16, FTW_PHYS);
    return num_hidden == 0;
}

static void test_meshes(void)
{
    static const struct {
        const char *strategy;
        uint32_t world, files, want;
    } meshes[] = {
        {"full",     1, 0, 1},
        {"full",     3, 0, 3},
        {"none",     2, 0, 2},
        {"hybrid:2", 4, 0, 4},
        {"full",     4, 1, 1},
        {"full",     7, 3, 3},
        {"hybrid:2", 8, 5, 5},
    };

    for (size_t i = 0; i < sizeof(meshes) / sizeof(*meshes); i++) {
        uint32_t shard, world = meshes[i].world;
        bool all = true;
        fsdp_strategy_t strategy;
        fsdp_error_t err = {0};
        struct stat st;
        fsdp_mesh_t mesh;
        char *file =
            io_path("%s/step-%08zu/shard-%05u.h5", dir, i, meshes[i].want - 1);
        char *beyond =
            io_path("%s/step-%08zu/shard-%05u.h5", dir, i, meshes[i].want);

        fsdp_strategy_parse(meshes[i].strategy, &strategy, &shard, NULL);
        fsdp_mesh_init(&mesh, strategy, world, shard, NULL);
        prepare(&mesh, (int64_t)i, meshes[i].files);
        save_all(world, UINT32_MAX);
        for (uint32_t r = 0; r < world; r++) {
            all &= ranks[r].status == FSDP_OK;
            if (ranks[r].status != FSDP_OK) {
                printf("# rank %u: %s\n", r, ranks[r].err.text);
            }
        }
        ok(all && stat(file, &st) == 0 && stat(beyond, &st) != 0,
           "%u ranks, %s, %u files", world, meshes[i].strategy, meshes[i].want);
        ok(holds_model(dir, (int64_t)i, &err),
           "`latest` is that one, and whole %s", err.text);
        ok(is_clean(), "nothing temporary is left");
        free(file);
        free(beyond);
    }
}

static void test_again(void)
{
    fsdp_error_t err = {0};
    fsdp_mesh_t mesh;

    fsdp_mesh_init(&mesh, FSDP_STRATEGY_FULL, 2, 0, NULL);
    prepare(&mesh, 1, 0);
    model.data[0][5] += 1;
    save_all(2, UINT32_MAX);
    ok(ranks[0].status == FSDP_OK && holds_model(dir, 1, &err) && is_clean(),
       "a step that is there is replaced %s%s", ranks[0].err.text, err.text);
}

static void test_absent(void)
{
    fsdp_error_t err = {0};
    fsdp_mesh_t mesh;

    fsdp_mesh_init(&mesh, FSDP_STRATEGY_FULL, 4, 0, NULL);
    for (uint32_t absent = 1; absent < 4; absent += 2) {
        bool all = true;

        prepare(&mesh, 50, (absent == 3) ? 2 : 0);
        for (uint32_t r = 0; r < 4; r++) {
            ranks[r].config.deadline = 6;
        }
        save_all(4, absent);
        for (uint32_t r = 0; r < 4; r++) {
            all &= r == absent || ranks[r].status == FSDP_ERR_PEER_LOST;
        }
        ok(all && strstr(ranks[0].err.text, absent == 1 ? "rank 1" : "rank 3"),
           "rank %u is absent: %s", absent, ranks[0].err.text);
        ok(is_clean() && holds_model(dir, 1, &err),
           "the old checkpoint is untouched %s", err.text);
    }
}

static void test_failing(void)
{
    fsdp_error_t err = {0};
    fsdp_mesh_t mesh;

    fsdp_mesh_init(&mesh, FSDP_STRATEGY_FULL, 4, 0, NULL);
    for (uint32_t bad = 0; bad < 4; bad++) {
        bool all = true;

        prepare(&mesh, 51, (bad < 2) ? 2 : 0);
        ranks[bad].parts[0].count = 1ull << 50; /* more than the tensor has */
        ranks[bad].parts[0].first = 7;
        save_all(4, UINT32_MAX);
        for (uint32_t r = 0; r < 4; r++) {
            all &= ranks[r].status == FSDP_ERR_CORRUPT &&
                   strcmp(ranks[r].err.text, ranks[0].err.text) == 0 &&
                   ranks[r].err.rank == ranks[0].err.rank;
        }
        ok(all, "rank %u fails, all say: %s", bad, ranks[3].err.text);
        ok(is_clean() && holds_model(dir, 1, &err),
           "the old checkpoint is untouched %s", err.text);
    }
}

static void test_overlap(void)
{
    fsdp_mesh_t mesh;

    fsdp_mesh_init(&mesh, FSDP_STRATEGY_FULL, 2, 0, NULL);
    prepare(&mesh, 52, 0);
    ranks[1].parts[0].first--;
    ranks[1].parts[0].count++;
    save_all(2, UINT32_MAX);
    ok(ranks[0].status == FSDP_ERR_CORRUPT &&
           ranks[1].status == FSDP_ERR_CORRUPT && is_clean(),
       "an element of two ranks: %s", ranks[1].err.text);

    prepare(&mesh, 52, 0);
    ranks[1].parts[0].count--;
    save_all(2, UINT32_MAX);
    ok(ranks[0].status == FSDP_ERR_CORRUPT && is_clean(),
       "an element of none: %s", ranks[1].err.text);
}

static int remove_entry(const char *path, const struct stat *st, int type,
                        struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

int main(void)
{
    if (mkdtemp(dir) == NULL) {
        return 99;
    }
    make_model();
    test_meshes();
    test_again();
    test_absent();
    test_failing();
    test_overlap();
    nftw(dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    return tap_done();
}
