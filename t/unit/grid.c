/*
 * The grid: saved by W ranks, then converted through random worlds, strategies
 * and formats, every tensor keeps its bytes, whatever its type, its number of
 * elements beside that of ranks, and its shape; and nothing else gets into a
 * file: memory that was never filled has a pattern, which no file may hold.
 *
 * With TEST_LONG in the environment: all worlds, and more than 2^31 elements.
 */
#include "config.h"

#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/fsdp_ckpt.h"
#include "lib/util/check.h"
#include "lib/util/io.h"
#include "t/tap/tap.h"

enum {
    NUM_DTYPES = FSDP_DTYPE_F4 + 1,
    NUM_COUNTS = 6,
    MOST = NUM_DTYPES * NUM_COUNTS * 4,
    PRIME = 1021,
    POISON = 0xa7, /* what malloc() gives, and all padding */
    PERTURB = (unsigned char)~POISON,
    POISON_RUN = 16
};

static char dir[] = "/tmp/fsdp-grid.XXXXXX";

/* The tensors of a grid point; those of one type lie side by side. */
typedef struct {
    fsdp_ckpt_desc_t descs[MOST];
    char names[MOST][32];
    uint64_t dims[MOST][4];
    uint64_t numels[MOST];
    unsigned char *data[MOST];
    uint32_t num;
} tensors_t;

/* Small buffers: malloc() fills them. */
static const fsdp_ckpt_engine_t engine = {.max_mem = 256 << 10, .jobs = 2};

static uint64_t random_state = 1;

static uint32_t below(uint32_t most)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % most;
}

/* --- What is saved -------------------------------------------------------- */

static size_t bytes_of(fsdp_dtype_t dtype, uint64_t count)
{
    return (size_t)((count * fsdp_dtype_bits(dtype) + 7) / 8);
}

static unsigned char *make_data(fsdp_dtype_t dtype, uint64_t numel)
{
    size_t size = bytes_of(dtype, numel);
    unsigned char *data = malloc(size + 1);

    for (size_t i = 0; i < size; i++) {
        data[i] = (unsigned char)below((dtype == FSDP_DTYPE_BOOL) ? 2 : 256);
    }
    return data;
}

/* A shape of @a numel elements; of prime ones with dimensions of 1. */
static void make_dims(uint64_t numel, uint32_t ndim, uint64_t *dims)
{
    uint64_t factor = 2;

    while (factor < numel && numel % factor != 0) {
        factor++;
    }
    for (uint32_t d = 0; d < ndim; d++) {
        dims[d] = 1;
    }
    if (ndim == 1) {
        dims[0] = numel;
    } else if (ndim > 1 && numel > 1) {
        dims[ndim - 1] = factor;
        dims[ndim / 2 - 1] = numel / factor;
    } else if (ndim > 1 && numel == 0) {
        dims[ndim - 1] = 3;
        dims[ndim / 2 - 1] = 0;
    }
}

static void add_tensor(tensors_t *all, fsdp_dtype_t dtype, uint64_t numel,
                       uint32_t ndim)
{
    uint32_t t = all->num++;

    make_dims(numel, ndim, all->dims[t]);
    snprintf(all->names[t], sizeof(all->names[t]), "%s.%u.%" PRIu64 ".%u",
             fsdp_dtype_name(dtype), ndim, numel, t);
    all->numels[t] = numel;
    all->data[t] = make_data(dtype, numel);
    all->descs[t] = (fsdp_ckpt_desc_t){.name = all->names[t],
                                       .dtype = dtype,
                                       .ndim = ndim,
                                       .dims = all->dims[t],
                                       .unit = fsdp_dtype_name(dtype)};
}

/* Of all types of a set, as many elements as ranks, one more, one less … */
static void make_tensors(tensors_t *all, uint32_t world, bool (*has)(unsigned))
{
    const uint64_t counts[NUM_COUNTS] = {0,     1,         world - 1,
                                         world, world + 1, PRIME};
    static const uint32_t ndims[] = {0, 1, 2, 4};

    all->num = 0;
    for (unsigned dtype = 0; dtype < NUM_DTYPES; dtype++) {
        for (unsigned n = 0; n < 4 * NUM_COUNTS && has(dtype); n++) {
            uint64_t numel = counts[n / 4];

            /* Packed types are whole bytes everywhere but in our formats. */
            if (fsdp_dtype_bits((fsdp_dtype_t)dtype) % 8 != 0) {
                numel *= 4;
            }
            if (ndims[n % 4] > 0 || numel == 1) {
                add_tensor(all, (fsdp_dtype_t)dtype, numel, ndims[n % 4]);
            }
        }
    }
}

static void free_tensors(tensors_t *all)
{
    for (uint32_t t = 0; t < all->num; t++) {
        free(all->data[t]);
    }
}

/* --- Saving --------------------------------------------------------------- */

/* Tensors [t, t + num) are a unit: this rank's part of its flat array, whose
 * padding is poisoned. */
static fsdp_status_t add_unit(const fsdp_mesh_t *mesh, uint32_t rank,
                              const tensors_t *all, uint32_t t, uint32_t num,
                              fsdp_ckpt_part_t *parts, fsdp_error_t *err)
{
    uint32_t f = rank % mesh->shard, replica = rank / mesh->shard;
    fsdp_dtype_t dtype = all->descs[t].dtype;
    uint64_t starts[4 * NUM_COUNTS], length, lo, hi;
    unsigned char *flat;

    FSDP_TRY(fsdp_layout_unit(all->numels + t, num, mesh->shard, starts,
                              &length, err));
    flat = malloc(bytes_of(dtype, mesh->shard * length) + 1);
    memset(flat, POISON, bytes_of(dtype, mesh->shard * length));
    for (uint32_t i = 0; i < num; i++) {
        memcpy(flat + bytes_of(dtype, starts[i]), all->data[t + i],
               bytes_of(dtype, all->numels[t + i]));
    }
    lo = f * length + fsdp_layout_part_start(length, mesh->replicas, replica);
    hi = f * length +
         fsdp_layout_part_start(length, mesh->replicas, replica + 1);
    for (uint32_t i = 0; i < num; i++) {
        parts[i] = (fsdp_ckpt_part_t){.tensor = t + i};
        fsdp_layout_clip(starts[i], all->numels[t + i], lo, hi, &parts[i].first,
                         &parts[i].count);
        parts[i].data = flat + bytes_of(dtype, starts[i] + parts[i].first);
    }
    return FSDP_OK;
}

static fsdp_status_t save_rank(const fsdp_mesh_t *mesh, uint32_t rank,
                               const tensors_t *all, fsdp_error_t *err)
{
    static fsdp_ckpt_part_t parts[MOST];
    fsdp_ckpt_save_config_t config = FSDP_CKPT_SAVE_INIT;
    fsdp_ckpt_save_result_t result;

    config.dir = dir;
    config.step = 1;
    config.job_id = "grid";
    config.rank = rank;
    config.mesh = *mesh;
    config.files = (mesh->world + 1) / 2;
    config.tensors = all->descs;
    config.num_tensors = all->num;
    config.parts = parts;
    config.num_parts = all->num;
    config.meta_json = "{}";
    config.engine = engine;
    config.deadline = 120;
    for (uint32_t t = 0, num; t < all->num; t += num) {
        for (num = 1; t + num < all->num &&
                      all->descs[t + num].dtype == all->descs[t].dtype;) {
            num++;
        }
        FSDP_TRY(add_unit(mesh, rank, all, t, num, parts + t, err));
    }
    return fsdp_ckpt_save(&config, &result, err);
}

static bool save(const fsdp_mesh_t *mesh, const tensors_t *all)
{
    bool good = true;
    fsdp_error_t err;
    int code;

    fflush(stdout);
    for (uint32_t rank = 0; rank < mesh->world; rank++) {
        pid_t pid = fork();

        if (pid == 0) {
            if (save_rank(mesh, rank, all, &err) != FSDP_OK) {
                printf("# rank %u: %s\n", rank, err.text);
                fflush(stdout);
                _exit(1);
            }
            _exit(0);
        }
        good = good && pid > 0;
    }
    while (wait(&code) > 0) {
        good = good && code == 0;
    }
    return good;
}

/* --- Looking -------------------------------------------------------------- */

static bool poisoned;

static int on_file(const char *path, const struct stat *st, int type,
                   struct FTW *ftw)
{
    static const unsigned char fills[] = {POISON, PERTURB, 0xbe}; /* ASan's */
    unsigned char run[POISON_RUN];
    char *data;
    size_t size;

    (void)st;
    (void)ftw;
    if (type != FTW_F ||
        io_read_file(path, 1u << 30, &data, &size, NULL) != 0) {
        return 0;
    }
    for (size_t i = 0; i < sizeof(fills); i++) {
        const char *found;

        memset(run, fills[i], sizeof(run));
        found = memmem(data, size, run, sizeof(run));
        if (found != NULL) {
            printf("# %s: %zu: bytes that nobody wrote\n", path,
                   (size_t)(found - data));
            poisoned = true;
        }
    }
    free(data);
    return 0;
}

static bool is_poisoned(const char *path)
{
    poisoned = false;
    nftw(path, on_file, 16, FTW_PHYS);
    return poisoned;
}

static bool same_tensor(fsdp_ckpt_t *ckpt, const tensors_t *all, uint32_t t,
                        fsdp_error_t *err)
{
    const fsdp_ckpt_desc_t *desc = &all->descs[t];
    fsdp_ckpt_range_t range = {.count = all->numels[t]};
    fsdp_ckpt_tensor_t tensor;
    bool same;

    snprintf(err->text, sizeof(err->text), "another shape or type");
    if (!fsdp_ckpt_find(ckpt, desc->name, &range.tensor)) {
        snprintf(err->text, sizeof(err->text), "not there");
        return false;
    }
    fsdp_ckpt_get_tensor(ckpt, range.tensor, &tensor);
    if (tensor.dtype != desc->dtype || tensor.ndim != desc->ndim ||
        memcmp(tensor.dims, desc->dims, desc->ndim * sizeof(*desc->dims)) !=
            0) {
        return false;
    }

    range.data = malloc(tensor.bytes + 1);
    same = fsdp_ckpt_read(ckpt, &range, 1, &engine, NULL, err) == FSDP_OK;
    if (same) {
        snprintf(err->text, sizeof(err->text), "other values");
        same = memcmp(range.data, all->data[t], tensor.bytes) == 0;
    }
    free(range.data);
    return same;
}

static bool holds(const char *path, const tensors_t *all)
{
    fsdp_ckpt_info_t info;
    fsdp_ckpt_t *ckpt;
    fsdp_error_t err;
    bool same;

    if (fsdp_ckpt_open(path, &ckpt, &err) != FSDP_OK) {
        printf("# %s\n", err.text);
        return false;
    }
    fsdp_ckpt_get_info(ckpt, &info);
    same = info.num_tensors == all->num;
    for (uint32_t t = 0; t < all->num && same; t++) {
        same = same_tensor(ckpt, all, t, &err);
        if (!same) {
            printf("# %s: %s: %s\n", path, all->descs[t].name, err.text);
        }
    }
    fsdp_ckpt_close(ckpt);
    return same && !is_poisoned(path);
}

/* --- Chains --------------------------------------------------------------- */

static const uint32_t all_worlds[] = {1, 2, 3, 4, 7, 8, 16};
enum { NUM_WORLDS = sizeof(all_worlds) / sizeof(*all_worlds) };

static int remove_entry(const char *path, const struct stat *st, int type,
                        struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void drop(const char *path)
{
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* @param chunks  Also rows: those of packed types may not be whole bytes. */
static fsdp_mesh_t any_mesh(bool chunks)
{
    static const fsdp_strategy_t strategies[] = {
        FSDP_STRATEGY_FULL, FSDP_STRATEGY_GRAD_OP, FSDP_STRATEGY_HYBRID,
        FSDP_STRATEGY_NONE, FSDP_STRATEGY_CHUNK};
    uint32_t world = all_worlds[below(NUM_WORLDS)], shard = 1;
    fsdp_strategy_t strategy = strategies[below(chunks ? 5 : 4)];
    fsdp_mesh_t mesh;

    if (strategy == FSDP_STRATEGY_HYBRID) {
        do {
            shard = 1 + below(world);
        } while (world % shard != 0);
    }
    (void)fsdp_mesh_init(&mesh, strategy, world,
                         (strategy == FSDP_STRATEGY_HYBRID) ? shard : 0, NULL);
    return mesh;
}

static const char *mesh_text(const fsdp_mesh_t *mesh, char text[64])
{
    snprintf(text, 64, "%u ranks %s:%u", mesh->world,
             fsdp_strategy_name(mesh->strategy), mesh->shard);
    return text;
}

/* @return whether what is at @a from was converted to @a to, and is the same
 * there. */
static bool convert(const char *from, const char *to, fsdp_ckpt_format_t format,
                    bool chunks, const tensors_t *all)
{
    fsdp_ckpt_convert_config_t config = FSDP_CKPT_CONVERT_INIT;
    fsdp_ckpt_convert_result_t result;
    fsdp_error_t err;
    char text[64];
    bool good;

    config.source = from;
    config.target = to;
    config.format = format;
    config.mesh = any_mesh(chunks);
    config.engine = engine;
    config.files = below(5);
    config.shard_size =
        (format == FSDP_CKPT_SAFETENSORS && below(2) == 0) ? 40000 : 0;
    good = fsdp_ckpt_convert(&config, &result, &err) == FSDP_OK;
    if (!good) {
        printf("# %s\n", err.text);
    }
    good = good && holds(to, all);
    if (!good) {
        printf("# converting to %s, %s\n", fsdp_ckpt_format_name(format),
               mesh_text(&config.mesh, text));
    }
    return good;
}

/* Which types a chain has, and through which formats it may go. */
static bool has_all(unsigned dtype)
{
    (void)dtype;
    return true;
}

static bool has_safetensors(unsigned dtype)
{
    return dtype != FSDP_DTYPE_C128;
}

static bool has_torch(unsigned dtype)
{
    return has_safetensors(dtype) &&
           fsdp_dtype_bits((fsdp_dtype_t)dtype) % 8 == 0;
}

static const struct {
    const char *what;
    bool (*has)(unsigned dtype);
    unsigned num;
    fsdp_ckpt_format_t formats[4];
} kinds[] = {
    {"all types",          has_all, 2, {FSDP_CKPT_HDF5, FSDP_CKPT_HDF5_FILE}},
    {"safetensors' types",
     has_safetensors,               3,
     {FSDP_CKPT_SAFETENSORS, FSDP_CKPT_HDF5, FSDP_CKPT_HDF5_FILE}           },
    {"PyTorch's types",
     has_torch,                     4,
     {FSDP_CKPT_DCP, FSDP_CKPT_SAFETENSORS, FSDP_CKPT_HDF5,
      FSDP_CKPT_HDF5_FILE}                                                  },
};

static void run_chain(const fsdp_mesh_t *mesh, unsigned kind, unsigned steps)
{
    static tensors_t all;
    char *from = io_path("%s/step-00000001", dir), text[64];
    bool good;

    make_tensors(&all, mesh->world, kinds[kind].has);
    good = save(mesh, &all) && holds(from, &all);
    for (unsigned i = 0; i < steps && good; i++) {
        /* Each format is in each chain. */
        fsdp_ckpt_format_t format =
            kinds[kind].formats[(i + steps) % kinds[kind].num];
        char *to = io_path("%s/chain-%u", dir, i);

        good = convert(from, to, format, kinds[kind].has == has_torch, &all);
        drop(from);
        free(from);
        from = to;
    }
    ok(good, "%s, %u tensors saved by %s, converted %u times", kinds[kind].what,
       all.num, mesh_text(mesh, text), steps);
    drop(from);
    free(from);
    free_tensors(&all);
}

static void run_world(uint32_t world, unsigned steps)
{
    static unsigned kind;
    fsdp_mesh_t mesh;

    for (uint32_t shard = 1; shard <= world; shard++) {
        if (world % shard == 0) {
            (void)fsdp_mesh_init(&mesh, FSDP_STRATEGY_HYBRID, world, shard,
                                 NULL);
            run_chain(&mesh, kind++ % 3, steps);
        }
    }
    (void)fsdp_mesh_init(&mesh, FSDP_STRATEGY_FULL, world, 0, NULL);
    run_chain(&mesh, kind++ % 3, steps);
    (void)fsdp_mesh_init(&mesh, FSDP_STRATEGY_GRAD_OP, world, 0, NULL);
    run_chain(&mesh, kind++ % 3, steps);
    (void)fsdp_mesh_init(&mesh, FSDP_STRATEGY_NONE, world, 0, NULL);
    run_chain(&mesh, kind++ % 3, steps);
}

/* --- More elements than 31 bits count ------------------------------------- */

#define LARGE (1ull << 31)

/* Places in a large tensor that have data, elements: 16 each. */
static const uint64_t islands[] = {0, LARGE / 3 / 8 * 8, LARGE - 8, LARGE};
enum { NUM_ISLANDS = 4, ISLAND = 16 };

static bool write_sparse(const char *path, const char *dtype, unsigned bits)
{
    uint64_t numel = LARGE + ISLAND, bytes = numel * bits / 8, size;
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0666);
    char header[200];
    bool good;

    snprintf(header, sizeof(header),
             "{\"t\":{\"dtype\":\"%s\",\"shape\":[%" PRIu64
             ",16],\"data_offsets\":[0,%" PRIu64 "]}}",
             dtype, numel / 16, bytes);
    size = strlen(header);
    good = pwrite(fd, &size, 8, 0) == 8 &&
           pwrite(fd, header, size, 8) == (ssize_t)size &&
           ftruncate(fd, (off_t)(8 + size + bytes)) == 0;
    for (unsigned i = 0; i < NUM_ISLANDS; i++) {
        unsigned char data[ISLAND * 8];

        memset(data, (int)(i + 1), sizeof(data));
        good = good && pwrite(fd, data, ISLAND * bits / 8,
                              (off_t)(8 + size + islands[i] * bits / 8)) ==
                           (ssize_t)(ISLAND * bits / 8);
    }
    close(fd);
    return good;
}

/* The islands, and 16 elements on both sides, which are zero. */
static bool holds_islands(const char *path, unsigned bits)
{
    fsdp_ckpt_t *ckpt;
    fsdp_error_t err;
    bool good = true;

    if (fsdp_ckpt_open(path, &ckpt, &err) != FSDP_OK) {
        printf("# %s\n", err.text);
        return false;
    }
    for (unsigned i = 0; i < NUM_ISLANDS; i++) {
        uint64_t first = (islands[i] < ISLAND) ? 0 : islands[i] - ISLAND;
        uint64_t numel = LARGE + ISLAND;
        unsigned char data[3 * ISLAND * 8];
        fsdp_ckpt_range_t range = {
            .first = first, .count = 3 * ISLAND, .data = data};

        if (range.count > numel - first) {
            range.count = numel - first;
        }
        good = good &&
               fsdp_ckpt_read(ckpt, &range, 1, NULL, NULL, &err) == FSDP_OK;
        for (uint64_t e = 0; e < range.count * bits / 8 && good; e++) {
            uint64_t element = first + e * 8 / bits;
            unsigned char want = 0;

            for (unsigned k = 0; k < NUM_ISLANDS; k++) {
                if (element >= islands[k] && element < islands[k] + ISLAND) {
                    want = (unsigned char)(k + 1);
                }
            }
            good = data[e] == want;
        }
    }
    fsdp_ckpt_close(ckpt);
    return good;
}

/* 1 GiB of packed elements, copied; 8 GiB of others, looked at. */
static void run_large(void)
{
    char *sparse = io_path("%s/sparse.safetensors", dir);
    char *sharded = io_path("%s/sharded", dir);
    fsdp_ckpt_convert_config_t config = FSDP_CKPT_CONVERT_INIT;
    fsdp_ckpt_convert_result_t result;
    fsdp_error_t err;

    ok(write_sparse(sparse, "F32", 32) && holds_islands(sparse, 32),
       "2^31 + 16 elements of 4 bytes are read");
    config.source = sparse;
    config.target = sharded;
    config.dry_run = true;
    (void)fsdp_mesh_init(&config.mesh, FSDP_STRATEGY_FULL, 7, 0, NULL);
    ok(fsdp_ckpt_convert(&config, &result, &err) == FSDP_OK &&
           result.bytes_written == 4 * (LARGE + ISLAND),
       "they would be sharded");

    ok(write_sparse(sparse, "F4", 4), "a sparse file of packed elements");
    config.dry_run = false;
    ok(fsdp_ckpt_convert(&config, &result, &err) == FSDP_OK &&
           holds_islands(sharded, 4),
       "sharded over 7 ranks");
    drop(sparse);
    config.source = sharded;
    config.target = sparse;
    config.format = FSDP_CKPT_SAFETENSORS;
    ok(fsdp_ckpt_convert(&config, &result, &err) == FSDP_OK &&
           holds_islands(sparse, 4),
       "and whole again");
    drop(sparse);
    drop(sharded);
    free(sparse);
    free(sharded);
}

int main(void)
{
    bool all = getenv("TEST_LONG") != NULL;

    mallopt(M_PERTURB, PERTURB);
    if (mkdtemp(dir) == NULL) {
        return 1;
    }
    if (all) {
        for (unsigned i = 0; i < NUM_WORLDS; i++) {
            run_world(all_worlds[i], 6);
        }
        run_large();
    } else {
        run_world(1, 2);
        run_world(3, 3);
        run_world(8, 3);
    }
    drop(dir);
    return tap_done();
}
