#include "config.h"

#include <dirent.h>
#include <hdf5.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#include "t/tap/tap.h"
#include "t/unit/ckpt_spec.h"

static char dir[] = "hdf5-test-XXXXXX";

/* Every type, shapes of 0 to 4 dimensions, empty ones, awkward names. */
static const spec_t specs[] = {
    {"model/f32",         FSDP_DTYPE_F32,         2, {33, 17},     "unit 1"},
    {"model/bf16",        FSDP_DTYPE_BF16,        3, {5, 7, 9},    "unit 1"},
    {"model/f16",         FSDP_DTYPE_F16,         1, {1000},       "unit 1"},
    {"model/f64",         FSDP_DTYPE_F64,         4, {2, 3, 5, 7}, "unit 2"},
    {"model/i8",          FSDP_DTYPE_I8,          2, {16, 8},      NULL    },
    {"model/i16",         FSDP_DTYPE_I16,         2, {16, 9},      NULL    },
    {"model/i32",         FSDP_DTYPE_I32,         2, {16, 9},      NULL    },
    {"model/i64",         FSDP_DTYPE_I64,         1, {77},         NULL    },
    {"model/u8",          FSDP_DTYPE_U8,          1, {77},         NULL    },
    {"model/u16",         FSDP_DTYPE_U16,         1, {77},         NULL    },
    {"model/u32",         FSDP_DTYPE_U32,         1, {77},         NULL    },
    {"model/u64",         FSDP_DTYPE_U64,         1, {77},         NULL    },
    {"model/bool",        FSDP_DTYPE_BOOL,        2, {7, 11},      NULL    },
    {"model/c64",         FSDP_DTYPE_C64,         2, {7, 11},      NULL    },
    {"model/c128",        FSDP_DTYPE_C128,        2, {7, 11},      NULL    },
    {"model/f8_e4m3",     FSDP_DTYPE_F8_E4M3,     2, {7, 11},      NULL    },
    {"model/f8_e5m2",     FSDP_DTYPE_F8_E5M2,     1, {77},         NULL    },
    {"model/f8_e8m0",     FSDP_DTYPE_F8_E8M0,     1, {77},         NULL    },
    {"model/f8_e4m3fnuz", FSDP_DTYPE_F8_E4M3FNUZ, 1, {77},         NULL    },
    {"model/f8_e5m2fnuz", FSDP_DTYPE_F8_E5M2FNUZ, 1, {77},         NULL    },
    {"model/f6_e2m3",     FSDP_DTYPE_F6_E2M3,     2, {8, 12},      NULL    },
    {"model/f6_e3m2",     FSDP_DTYPE_F6_E3M2,     1, {64},         NULL    },
    {"model/f4",          FSDP_DTYPE_F4,          2, {8, 10},      NULL    },
    {"model/scalar",      FSDP_DTYPE_F32,         0, {0},          "unit 2"},
    {"model/scalar.i64",  FSDP_DTYPE_I64,         0, {0},          NULL    },
    {"model/empty",       FSDP_DTYPE_F32,         2, {0, 4},       "unit 2"},
    {"model/one",         FSDP_DTYPE_BF16,        1, {1},          NULL    },
    {"optim/exp_avg/big", FSDP_DTYPE_F32,         2, {700, 1024},  "unit 3"},
    {"optim/exp_avg/a b", FSDP_DTYPE_F32,         1, {300},        NULL    },
    {"optim//../x",       FSDP_DTYPE_F32,         1, {300},        NULL    },
    {"both",              FSDP_DTYPE_F32,         1, {300},        NULL    },
    {"both/inner",        FSDP_DTYPE_F32,         1, {300},        NULL    },
    {"tensors",           FSDP_DTYPE_F32,         1, {300},        NULL    },
    {"gr\xc3\xb6\xc3\x9f"
     "e",            FSDP_DTYPE_F32,
     1,                                              {300},
     NULL                                                                  },
};

#define NUM (unsigned)(sizeof(specs) / sizeof(*specs))

#define META "{\"config\":{\"lr\":0.0003,\"layers\":2},\"data\":{\"step\":7}}"

static void set_rest(catalog_t *cat, unsigned world)
{
    cat->step = 12;
    cat->meta = META;
    fsdp_mesh_init(&cat->mesh, FSDP_STRATEGY_FULL, world, 0, NULL);
    cat->digest_model[0] = 0x0123456789abcdefu;
    cat->digest_model[1] = 42;
    cat->has_digest_model = true;
    if (cat->num_tensors > 1) {
        catalog_add_alias(cat, "model/tied", "model/f32", NULL);
    }
}

/* A whole checkpoint in DIR/NAME; the path is to be freed. */
static char *save(const spec_t *list, unsigned num, const char *name,
                  unsigned world, unsigned files)
{
    char *path = io_path("%s/%s", dir, name);
    fsdp_error_t err = {.text = ""};
    catalog_t cat;

    mkdir(path, 0777);
    if (spec_catalog(list, num, world, files, &cat, &err) == FSDP_OK) {
        set_rest(&cat, world);
        if (catalog_seal(&cat, CATALOG_CHECK_COVER, &err) == FSDP_OK &&
            spec_files(list, num, &format_hdf5, &cat, path, &err) == FSDP_OK) {
            format_hdf5.finish(&cat, path, &err);
        }
    }
    ok(err.text[0] == '\0', "%s: saved for %u ranks in %u files %s", name,
       world, files, err.text);
    catalog_free(&cat);

    return path;
}

static fsdp_status_t open_at(const char *path, catalog_t *cat,
                             fsdp_error_t *err)
{
    catalog_init(cat);
    return format_hdf5.open(path, cat, err);
}

static void test_round_trip(const char *path, unsigned world)
{
    uint64_t tensor, owner;
    fsdp_error_t err = {.text = ""};
    catalog_t cat;

    ok(open_at(path, &cat, &err) == FSDP_OK, "%s: opened %s", path, err.text);
    ok(spec_same(specs, NUM, &cat), "every byte of every tensor is the same");
    ok(cat.num_crcs >= cat.num_pieces && spec_checked(&cat),
       "every block of every tensor has its checksum");
    ok(cat.step == 12 && cat.mesh.world == world &&
           cat.mesh.strategy == FSDP_STRATEGY_FULL,
       "step and mesh");
    ok(strcmp(cat.meta, META) == 0, "metadata: %s", cat.meta);
    ok(cat.has_digest_model && cat.digest_model[0] == 0x0123456789abcdefu &&
           cat.digest_model[1] == 42 && !cat.has_digest_optim,
       "digests");
    ok(cat.num_aliases == 1 && catalog_find(&cat, "model/tied", &tensor) &&
           catalog_find(&cat, "model/f32", &owner) && tensor == owner,
       "alias");
    ok(catalog_find(&cat, "model/f16", &tensor) &&
           strcmp(cat.units[cat.tensors[tensor].unit], "unit 1") == 0 &&
           cat.tensors[tensor].order == 2,
       "unit and order");
    catalog_free(&cat);
}

static bool same_in_hdf5(hid_t file, const char *name, const void *want,
                         size_t bytes)
{
    hid_t set = H5Dopen2(file, name, H5P_DEFAULT);
    hid_t type = H5Dget_type(set), space = H5Dget_space(set);
    size_t size =
        (size_t)H5Sget_simple_extent_npoints(space) * H5Tget_size(type);
    char *got = calloc(1, bytes + size + 1);
    bool same = set >= 0 && size == bytes &&
                H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, got) >= 0 &&
                memcmp(got, want, bytes) == 0;

    free(got);
    H5Sclose(space);
    H5Tclose(type);
    H5Dclose(set);

    return same;
}

/* HDF5 itself sees each piece where the catalog says, with the same bytes. */
static void test_pieces_in_hdf5(const char *path)
{
    hid_t files[8];
    unsigned places = 0, equal = 0;
    catalog_t cat;

    open_at(path, &cat, NULL);
    for (uint32_t f = 0; f < cat.num_files; f++) {
        char *name = catalog_file_path(&cat, f);

        files[f] = H5Fopen(name, H5F_ACC_RDONLY, H5P_DEFAULT);
        free(name);
    }
    for (uint64_t i = 0; i < cat.num_pieces; i++) {
        const catalog_piece_t *p = &cat.pieces[i];
        const catalog_tensor_t *tensor = &cat.tensors[p->tensor];
        unsigned t = spec_find(specs, NUM, tensor->name);
        unsigned char *data = spec_data(&specs[t], t, tensor->bytes);
        uint64_t at;
        char *name;
        hid_t set;

        if (t >= spec_find(specs, NUM, "optim/exp_avg/a b")) {
            free(data);
            places++; /* its path is not its name */
            equal++;
            continue;
        }
        dtype_bytes((fsdp_dtype_t)tensor->dtype, p->first, &at);
        name = io_path("/rank-%05u/%s", p->rank, tensor->name);
        set = H5Dopen2(files[p->file], name, H5P_DEFAULT);
        places +=
            H5Dget_offset(set) == p->offset &&
            (catalog_piece_bytes(&cat, p) < 65536 || p->offset % 4096 == 0);
        H5Dclose(set);
        equal += same_in_hdf5(files[p->file], name, data + at,
                              catalog_piece_bytes(&cat, p));
        free(name);
        free(data);
    }
    for (uint32_t f = 0; f < cat.num_files; f++) {
        H5Fclose(files[f]);
    }
    ok(places == cat.num_pieces, "H5Dget_offset() of all %u pieces", places);
    ok(equal == cat.num_pieces, "H5Dread() of all %u pieces", equal);
    catalog_free(&cat);
}

/* Where a tensor lies in the index; to be freed. */
static char *link_of(const char *name)
{
    static const char *const other[][2] = {
        {"optim//../x", "optim/%/%2E%2E/x"},
        {"both/inner",  "both%2Finner"    },
        {"tensors",     "%74ensors"       },
    };

    for (size_t i = 0; i < sizeof(other) / sizeof(*other); i++) {
        if (strcmp(name, other[i][0]) == 0) {
            name = other[i][1];
            break;
        }
    }

    return io_path("/%s", name);
}

/* Every tensor is whole in the index, from another working directory too. */
static void test_index_in_hdf5(const char *path)
{
    char *name = io_path("%s/index.h5", path), *whole = realpath(name, NULL);
    char *here = getcwd(NULL, 0);
    unsigned equal = 0;
    bool moved = chdir("/") == 0;
    hid_t file = H5Fopen(whole, H5F_ACC_RDONLY, H5P_DEFAULT);

    for (unsigned t = 0; t < NUM; t++) {
        char *link = link_of(specs[t].name);
        uint64_t numel = 1, bytes;
        unsigned char *data;

        for (unsigned d = 0; d < specs[t].ndim; d++) {
            numel *= specs[t].dims[d];
        }
        dtype_bytes(specs[t].dtype, numel, &bytes);
        data = spec_data(&specs[t], t, bytes);
        if (!same_in_hdf5(file, link, data, bytes)) {
            printf("# %s differs\n", link);
        } else {
            equal++;
        }
        if (t == 0) {
            ok(same_in_hdf5(file, "/model/tied", data, bytes),
               "the alias is seen in the index");
        }
        free(link);
        free(data);
    }
    H5Fclose(file);
    moved = chdir(here) == 0 && moved;
    ok(moved && equal == NUM, "%u of %u tensors are whole in the index", equal,
       NUM);
    free(here);
    free(whole);
    free(name);
}

static unsigned files_in(const char *path)
{
    DIR *d = opendir(path);
    unsigned num = 0;

    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        num += e->d_name[0] != '.';
    }
    closedir(d);

    return num;
}

/* The same checkpoint twice is the same bytes. */
static void test_same_bytes(const char *path)
{
    static const char *const names[] = {"shard-00000.h5", "shard-00001.h5",
                                        "index.h5", "manifest.json"};
    char *again = save(specs, NUM, "again", 2, 2);

    ok(files_in(path) == 4 && files_in(again) == 4, "four files");
    for (unsigned i = 0; i < 4; i++) {
        char *a = io_path("%s/%s", path, names[i]), *text_a = NULL;
        char *b = io_path("%s/%s", again, names[i]), *text_b = NULL;
        size_t size_a = 0, size_b = 1;

        ok(io_read_file(a, 1u << 30, &text_a, &size_a, NULL) == FSDP_OK &&
               io_read_file(b, 1u << 30, &text_b, &size_b, NULL) == FSDP_OK &&
               size_a == size_b && memcmp(text_a, text_b, size_a) == 0,
           "%s is the same when written again", names[i]);
        free(text_a);
        free(text_b);
        free(a);
        free(b);
    }
    free(again);
}

/* Change one byte, or cut or lengthen the file if @a at is its end. */
static void flip(const char *path, const char *name, int64_t at)
{
    char *file = io_path("%s/%s", path, name);
    int fd = open(file, O_RDWR);
    char c = 0;

    if (at >= 0 && pread(fd, &c, 1, at) == 1) {
        c ^= 4;
        ok(pwrite(fd, &c, 1, at) == 1, "# %s altered at %lld", name,
           (long long)at);
    } else {
        off_t end = lseek(fd, 0, SEEK_END);

        ok(ftruncate(fd, end + at) == 0, "# %s cut by %lld", name,
           (long long)-at);
    }
    close(fd);
    free(file);
}

static void test_damage(const char *good)
{
    static const struct {
        const char *name;
        int64_t at; /* negative: cut so many bytes off */
        bool flip, gone;
        fsdp_status_t status;
    } cases[] = {
        {"manifest.json",  0,        false, true,  FSDP_ERR_NOT_FOUND},
        {"manifest.json",  5,        true,  false, FSDP_ERR_CORRUPT  },
        {"manifest.json",  200,      true,  false, FSDP_ERR_CORRUPT  },
        {"manifest.json",  -1,       false, false, FSDP_ERR_CORRUPT  },
        {"manifest.json",  -300,     false, false, FSDP_ERR_CORRUPT  },
        {"index.h5",       0,        false, true,  FSDP_ERR_CORRUPT  },
        {"index.h5",       0,        true,  false, FSDP_ERR_CORRUPT  },
        {"index.h5",       9000,     true,  false, FSDP_ERR_CORRUPT  },
        {"index.h5",       -1,       false, false, FSDP_ERR_CORRUPT  },
        {"index.h5",       -9000,    false, false, FSDP_ERR_CORRUPT  },
        {"shard-00001.h5", 0,        false, true,  FSDP_ERR_CORRUPT  },
        {"shard-00001.h5", -1,       false, false, FSDP_ERR_CORRUPT  },
        {"shard-00000.h5", -1000000, false, false, FSDP_ERR_CORRUPT  },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char *name = io_path("damage-%zu", i);
        char *path = io_path("%s/%s", dir, name);
        char *command = io_path("cp -r %s %s", good, path);
        fsdp_error_t err = {.text = ""};
        fsdp_status_t status;
        catalog_t cat;

        ok(system(command) == 0, "%s", command);
        if (cases[i].gone) {
            char *file = io_path("%s/%s", path, cases[i].name);

            unlink(file);
            free(file);
        } else {
            flip(path, cases[i].name, cases[i].at);
        }
        status = open_at(path, &cat, &err);
        ok(status == cases[i].status && strstr(err.text, cases[i].name) != NULL,
           "%s: %s", fsdp_status_name(status), err.text);
        catalog_free(&cat);
        free(command);
        free(path);
        free(name);
    }
}

/* Write a manifest with the checksum that belongs to it. */
static void put_manifest(const char *file, const char *text)
{
    char *whole = io_path("%s,\n \"manifest_crc32c\": \"%08x\"\n}\n", text,
                          crc32c(0, text, strlen(text)));

    FILE *out = fopen(file, "w");

    fputs(whole, out);
    fclose(out);
    free(whole);
}

/* Tables that were altered by someone who knows the checksums: an error, or a
 * catalog in which everything is inside its file. */
static void test_crafted(void)
{
    char *path = save(specs, 8, "crafted", 2, 2);
    char *index = io_path("%s/index.h5", path), *tables, *old, *crc;
    char *file = io_path("%s/manifest.json", path), *text;
    unsigned refused = 0, opened = 0, outside = 0;
    size_t size, text_size, from;
    catalog_t cat;
    int fd;

    io_read_file(index, 1u << 30, &tables, &size, NULL);
    io_read_file(file, 1u << 30, &text, &text_size, NULL);
    text[text_size - 35] = '\0';
    old = io_path("%08x", crc32c(0, tables, size));
    crc = strstr(text, old);
    from = strtoull(strstr(strstr(text, "\"tensors\": {"), "offset") + 9, NULL,
                    10);
    fd = open(index, O_WRONLY);
    for (unsigned i = 0; crc != NULL && i < 1000; i++) {
        size_t at = from + (i * 2654435761u >> 7) % (size - from);
        char was = tables[at], now[9];

        tables[at] ^= (char)(1 << i % 8);
        snprintf(now, sizeof(now), "%08x", crc32c(0, tables, size));
        memcpy(crc, now, 8);
        io_pwrite(fd, tables + at, 1, at, index, NULL);
        put_manifest(file, text);
        if (open_at(path, &cat, NULL) != FSDP_OK) {
            refused++;
        } else {
            opened++;
        }
        for (uint64_t p = 0; cat.sealed && p < cat.num_pieces; p++) {
            const catalog_piece_t *piece = &cat.pieces[p];

            outside += piece->offset + catalog_piece_bytes(&cat, piece) >
                       cat.files[piece->file].size;
        }
        catalog_free(&cat);
        tables[at] = was;
        io_pwrite(fd, tables + at, 1, at, index, NULL);
    }
    close(fd);
    ok(refused > 500 && outside == 0,
       "crafted tables: %u refused, %u opened, %u pieces outside their files",
       refused, opened, outside);
    free(old);
    free(text);
    free(tables);
    free(file);
    free(index);
    free(path);
}

/* A newer version that old readers understand, and one that they do not. */
static void test_versions(const char *good)
{
    static const struct {
        const char *from, *to;
        fsdp_status_t status;
    } cases[] = {
        {"\"version\": 1",               "\"version\": 7",               FSDP_OK             },
        {"\"min_reader\": 1",            "\"min_reader\": 2",            FSDP_ERR_UNSUPPORTED},
        {"fsdp-checkpoint",              "fsdp-checkpaint",              FSDP_ERR_CORRUPT    },
        {"\"world\": 2",                 "\"world\": 3",                 FSDP_ERR_CORRUPT    },
        {"\"strategy\"",                 "\"strategic\"",                FSDP_ERR_CORRUPT    },
        {"\"name\": \"shard-00001.h5\"", "\"name\": \"../shard-1.h5\" ",
         FSDP_ERR_CORRUPT                                                                    },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char *path = io_path("%s/version-%zu", dir, i);
        char *command = io_path("cp -r %s %s", good, path);
        char *file = io_path("%s/manifest.json", path);
        fsdp_error_t err = {.text = ""};
        fsdp_status_t status;
        char *text, *at, *more;
        catalog_t cat;
        size_t size;

        ok(system(command) == 0, "%s", command);
        io_read_file(file, 1u << 20, &text, &size, NULL);
        at = strstr(text, cases[i].from);
        text[size - 35] = '\0'; /* the line with the checksum */
        more = io_path("%.*s%s%s", (int)(at - text), text, cases[i].to,
                       at + strlen(cases[i].from));
        put_manifest(file, more);
        status = open_at(path, &cat, &err);
        ok(status == cases[i].status, "%s: %s %s", cases[i].to,
           fsdp_status_name(status), err.text);
        catalog_free(&cat);
        free(more);
        free(text);
        free(file);
        free(command);
        free(path);
    }
}

/* Killed before the data was written: HDF5 opens it, but we do not. */
static void test_unfinished(void)
{
    char *path = io_path("%s/unfinished", dir), *name;
    fsdp_error_t err = {.text = ""};
    catalog_t cat;
    hid_t file;

    mkdir(path, 0777);
    spec_catalog(specs, NUM, 1, 1, &cat, &err);
    set_rest(&cat, 1);
    catalog_seal(&cat, CATALOG_CHECK_COVER, &err);
    spec_files(specs, NUM, &format_hdf5, &cat, path, &err);
    catalog_free(&cat);

    name = io_path("%s/shard-00000.h5", path);
    file = H5Fopen(name, H5F_ACC_RDONLY, H5P_DEFAULT);
    ok(file >= 0, "HDF5 opens a shard of an unfinished checkpoint");
    H5Fclose(file);
    ok(open_at(path, &cat, &err) == FSDP_ERR_NOT_FOUND &&
           strstr(err.text, "incomplete") != NULL,
       "%s", err.text);
    catalog_free(&cat);
    free(name);
    free(path);
}

/* A file that grows over what is allowed, as on a full disk. */
static void test_no_room(void)
{
    struct rlimit old, small;
    char *path = io_path("%s/no-room", dir), *name;
    fsdp_error_t err = {.text = ""};
    uint64_t pieces[1] = {0};
    spec_t big = {"big", FSDP_DTYPE_F32, 1, {4 << 20}, NULL};
    fsdp_status_t status;
    catalog_t cat;

    mkdir(path, 0777);
    name = io_path("%s/shard-00000.h5", path);
    spec_catalog(&big, 1, 1, 1, &cat, &err);
    catalog_seal(&cat, CATALOG_CHECK_COVER, &err);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 8 << 20;
    setrlimit(RLIMIT_FSIZE, &small);
    status = format_hdf5.create(&cat, 0, pieces, 1, name, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    ok(status == FSDP_ERR_IO && strstr(err.text, "shard-00000.h5") != NULL,
       "%s", err.text);
    ok(access(name, F_OK) != 0, "nothing is left of it");
    ok(format_hdf5.create(&cat, 0, pieces, 1, name, &err) == FSDP_OK,
       "and with room it works");
    catalog_free(&cat);
    free(name);
    free(path);
}

/* Names as long as 4 KiB, and 20000 pieces; the time is only told. */
static void test_many(void)
{
    enum { MANY = 10000 };
    spec_t *many = calloc(MANY, sizeof(*many));
    uint64_t *pieces = calloc(2 * MANY, sizeof(*pieces));
    char *path = io_path("%s/many", dir), *name;
    fsdp_error_t err = {.text = ""};
    struct timespec t0, t1, t2;
    catalog_t cat;

    mkdir(path, 0777);
    name = io_path("%s/shard-00000.h5", path);
    for (unsigned i = 0; i < MANY; i++) {
        many[i] = (spec_t){.dtype = FSDP_DTYPE_F32, .ndim = 1, .dims = {64}};
        many[i].name =
            io_path("model/h.%u.%0*u", i % 100, (i % 1000 == 0) ? 4080 : 5, i);
    }
    spec_catalog(many, MANY, 2, 1, &cat, &err);
    cat.mesh = (fsdp_mesh_t){FSDP_STRATEGY_FULL, 2, 2, 1};
    catalog_seal(&cat, CATALOG_CHECK_COVER, &err);
    for (uint64_t i = 0; i < cat.num_pieces; i++) {
        pieces[i] = i;
    }
    clock_gettime(CLOCK_MONOTONIC, &t0);
    ok(format_hdf5.create(&cat, 0, pieces, cat.num_pieces, name, &err) ==
           FSDP_OK,
       "%llu pieces %s", (unsigned long long)cat.num_pieces, err.text);
    clock_gettime(CLOCK_MONOTONIC, &t1);
    ok(format_hdf5.finish(&cat, path, &err) == FSDP_OK, "and an index %s",
       err.text);
    catalog_free(&cat);
    ok(open_at(path, &cat, &err) == FSDP_OK && cat.num_tensors == MANY,
       "opened again %s", err.text);
    clock_gettime(CLOCK_MONOTONIC, &t2);
    printf("# shard %.2f s, index and opening %.2f s\n",
           (double)(t1.tv_sec - t0.tv_sec) +
               1e-9 * (double)(t1.tv_nsec - t0.tv_nsec),
           (double)(t2.tv_sec - t1.tv_sec) +
               1e-9 * (double)(t2.tv_nsec - t1.tv_nsec));
    catalog_free(&cat);
    for (unsigned i = 0; i < MANY; i++) {
        free((char *)many[i].name);
    }
    free(many);
    free(pieces);
    free(name);
    free(path);
}

int main(void)
{
    char *path, *command;

    if (mkdtemp(dir) == NULL) {
        return 1;
    }

    path = save(specs, NUM, "two", 2, 2);
    test_round_trip(path, 2);
    test_pieces_in_hdf5(path);
    test_index_in_hdf5(path);
    test_same_bytes(path);
    test_damage(path);
    test_versions(path);
    free(path);

    path = save(specs, NUM, "five-in-two", 5, 2);
    test_round_trip(path, 5);
    test_pieces_in_hdf5(path);
    test_index_in_hdf5(path);
    free(path);

    path = save(specs, 0, "nothing", 1, 1);
    free(path);
    test_crafted();
    test_unfinished();
    test_no_room();
    test_many();

    command = io_path("rm -rf %s", dir);
    ok(system(command) == 0, "%s", command);
    free(command);
    return tap_done();
}
