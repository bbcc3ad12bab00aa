#include "config.h"

#include <hdf5.h>
#include <stdio.h>

#include "t/tap/tap.h"
#include "t/unit/ckpt_spec.h"

static char dir[] = "hdf5-plain-test-XXXXXX";

static const spec_t specs[] = {
    {"model/f32",       FSDP_DTYPE_F32,     2, {33, 17},  "unit 2"},
    {"model/bf16",      FSDP_DTYPE_BF16,    3, {5, 7, 9}, "unit 2"},
    {"model/a",         FSDP_DTYPE_F16,     1, {1000},    "unit 1"},
    {"model/bool",      FSDP_DTYPE_BOOL,    2, {7, 11},   NULL    },
    {"model/c64",       FSDP_DTYPE_C64,     2, {7, 11},   NULL    },
    {"model/f8",        FSDP_DTYPE_F8_E4M3, 2, {7, 11},   NULL    },
    {"model/f4",        FSDP_DTYPE_F4,      2, {8, 10},   NULL    },
    {"model/scalar",    FSDP_DTYPE_I64,     0, {0},       "unit 1"},
    {"model/empty",     FSDP_DTYPE_F32,     2, {0, 4},    "unit 1"},
    {"model/big",       FSDP_DTYPE_F32,     2, {300, 99}, "unit 1"},
    {"both",            FSDP_DTYPE_F32,     1, {300},     NULL    },
    {"both/inner//../", FSDP_DTYPE_U8,      1, {300},     NULL    },
    {"tensors",         FSDP_DTYPE_I32,     1, {300},     NULL    },
};

#define NUM  (unsigned)(sizeof(specs) / sizeof(*specs))
#define META "{\"config\":{\"lr\":0.0003}}"

static fsdp_status_t open_at(const char *path, catalog_t *cat,
                             fsdp_error_t *err)
{
    catalog_init(cat);
    return format_hdf5_file.open(path, cat, err);
}

static void test_round_trip(void)
{
    char *path = io_path("%s/model.h5", dir);
    fsdp_error_t err = {.text = ""};
    uint64_t tensor, owner;
    catalog_t cat;

    spec_catalog(specs, NUM, 1, 1, &cat, &err);
    cat.files[0].path = "model.h5";
    cat.meta = META;
    cat.step = 3;
    cat.digest_optim[1] = 5;
    cat.has_digest_optim = true;
    catalog_add_alias(&cat, "model/tied", "model/f32", &err);
    ok(catalog_seal(&cat, CATALOG_CHECK_COVER, &err) == FSDP_OK &&
           spec_files(specs, NUM, &format_hdf5_file, &cat, dir, &err) ==
               FSDP_OK,
       "written %s", err.text);
    catalog_free(&cat);

    ok(open_at(path, &cat, &err) == FSDP_OK, "opened %s", err.text);
    ok(spec_same(specs, NUM, &cat), "every byte of every tensor is the same");
    ok(cat.num_crcs >= NUM - 1 && spec_checked(&cat),
       "every block of every tensor has its checksum");
    ok(cat.step == 3 && strcmp(cat.meta, META) == 0, "step, metadata %s",
       cat.meta);
    ok(!cat.has_digest_model && cat.has_digest_optim &&
           cat.digest_optim[0] == 0 && cat.digest_optim[1] == 5,
       "digests");
    ok(catalog_find(&cat, "model/tied", &tensor) &&
           catalog_find(&cat, "model/f32", &owner) && tensor == owner,
       "alias");
    ok(catalog_find(&cat, "model/a", &tensor) &&
           cat.tensors[tensor].order == 2 &&
           strcmp(cat.units[cat.tensors[tensor].unit], "unit 1") == 0 &&
           cat.num_units == 2,
       "order and unit");
    catalog_free(&cat);
    free(path);
}

/* Files that others wrote. */
typedef enum {
    FOREIGN_GOOD,
    FOREIGN_CHUNKED,
    FOREIGN_COMPACT,
    FOREIGN_BIG_ENDIAN,
    FOREIGN_TEXT,
    FOREIGN_UNWRITTEN,
    FOREIGN_SOFT,
    FOREIGN_DANGLING,
    FOREIGN_EXTERNAL_LINK,
    FOREIGN_EXTERNAL_DATA,
    FOREIGN_CYCLE,
    FOREIGN_HARD,
    FOREIGN_VIRTUAL,
    FOREIGN_SHARD
} foreign_t;

static hid_t make_set(hid_t file, const char *name, hid_t type, hid_t dcpl)
{
    hsize_t dims[2] = {4, 6};
    hid_t space = H5Screate_simple(2, dims, NULL);
    hid_t lcpl = H5Pcreate(H5P_LINK_CREATE), set;

    H5Pset_create_intermediate_group(lcpl, 1);
    set = H5Dcreate2(file, name, type, space, lcpl, dcpl, H5P_DEFAULT);
    H5Pclose(lcpl);
    H5Sclose(space);

    return set;
}

static void put_text(hid_t object, const char *name, const char *text)
{
    hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR), attr;

    H5Tset_size(type, H5T_VARIABLE); /* as h5py does */
    attr = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(attr, type, &text);
    H5Aclose(attr);
    H5Sclose(space);
    H5Tclose(type);
}

static void make_foreign(const char *path, foreign_t what)
{
    static const float data[24] = {1, 2, 3};
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hid_t dcpl = H5Pcreate(H5P_DATASET_CREATE), type = H5T_IEEE_F32LE, set;
    hsize_t chunk[2] = {2, 6}, dims[2] = {4, 6};
    hid_t text = H5Tcopy(H5T_C_S1);

    H5Tset_size(text, 7);
    switch (what) {
    case FOREIGN_CHUNKED:
        H5Pset_chunk(dcpl, 2, chunk);
        H5Pset_deflate(dcpl, 1);
        break;
    case FOREIGN_COMPACT:
        H5Pset_layout(dcpl, H5D_COMPACT);
        break;
    case FOREIGN_BIG_ENDIAN:
        type = H5T_IEEE_F32BE;
        break;
    case FOREIGN_TEXT:
        type = text;
        break;
    case FOREIGN_EXTERNAL_DATA:
        H5Pset_external(dcpl, "/etc/passwd", 0, 96);
        break;
    case FOREIGN_VIRTUAL: {
        hid_t space = H5Screate_simple(2, dims, NULL);

        H5Pset_virtual(dcpl, space, "gone.h5", "x", space);
        H5Sclose(space);
        break;
    }
    default:
        break;
    }

    set = make_set(file, "deep/in/x", type, dcpl);
    if (what != FOREIGN_UNWRITTEN && what != FOREIGN_VIRTUAL &&
        what != FOREIGN_EXTERNAL_DATA && what != FOREIGN_TEXT) {
        H5Dwrite(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, data);
    }
    put_text(set, "name", "not ours to read");
    if (what == FOREIGN_SOFT) {
        H5Lcreate_soft("in/x", file, "deep/tied", H5P_DEFAULT, H5P_DEFAULT);
        H5Lcreate_soft("/deep/in/x", file, "also", H5P_DEFAULT, H5P_DEFAULT);
    } else if (what == FOREIGN_DANGLING) {
        H5Lcreate_soft("/nothing", file, "tied", H5P_DEFAULT, H5P_DEFAULT);
    } else if (what == FOREIGN_EXTERNAL_LINK) {
        H5Lcreate_external("/etc/passwd", "/x", file, "far", H5P_DEFAULT,
                           H5P_DEFAULT);
    } else if (what == FOREIGN_CYCLE) {
        H5Lcreate_hard(file, "/", file, "deep/root", H5P_DEFAULT, H5P_DEFAULT);
        H5Lcreate_hard(file, "deep", file, "deep/in/up", H5P_DEFAULT,
                       H5P_DEFAULT);
    } else if (what == FOREIGN_HARD) {
        H5Lcreate_hard(file, "deep/in/x", file, "twice", H5P_DEFAULT,
                       H5P_DEFAULT);
    } else if (what == FOREIGN_SHARD) {
        put_text(file, "format", "fsdp-shard");
    }
    H5Dclose(set);
    H5Tclose(text);
    H5Pclose(dcpl);
    H5Fclose(file);
}

static void test_foreign(void)
{
    static const struct {
        const char *what;
        foreign_t kind;
        fsdp_status_t status;
        const char *text; /* in the error */
        unsigned aliases;
    } cases[] = {
        {"contiguous",    FOREIGN_GOOD,          FSDP_OK,              "",          0},
        {"chunked",       FOREIGN_CHUNKED,       FSDP_OK,              "",          0},
        {"compact",       FOREIGN_COMPACT,       FSDP_OK,              "",          0},
        {"big-endian",    FOREIGN_BIG_ENDIAN,    FSDP_OK,              "",          0},
        {"text",          FOREIGN_TEXT,          FSDP_OK,              "",          0},
        {"never written", FOREIGN_UNWRITTEN,     FSDP_ERR_CORRUPT,     "never",     0},
        {"soft links",    FOREIGN_SOFT,          FSDP_OK,              "",          2},
        {"dangling link", FOREIGN_DANGLING,      FSDP_OK,              "",          0},
        {"external link", FOREIGN_EXTERNAL_LINK, FSDP_ERR_UNSUPPORTED, "/far",
         0                                                                           },
        {"external data", FOREIGN_EXTERNAL_DATA, FSDP_ERR_UNSUPPORTED,
         "/etc/passwd",                                                             0},
        {"cycles",        FOREIGN_CYCLE,         FSDP_OK,              "",          0},
        {"hard links",    FOREIGN_HARD,          FSDP_OK,              "",          1},
        {"virtual",       FOREIGN_VIRTUAL,       FSDP_ERR_UNSUPPORTED, "directory", 0},
        {"a shard",       FOREIGN_SHARD,         FSDP_ERR_UNSUPPORTED, "directory", 0},
    };
    char *path = io_path("%s/foreign.h5", dir);

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        fsdp_error_t err = {.text = ""};
        fsdp_status_t status;
        catalog_t cat;

        make_foreign(path, cases[i].kind);
        status = open_at(path, &cat, &err);
        ok(status == cases[i].status &&
               strstr(err.text, cases[i].text) != NULL &&
               cat.num_aliases == cases[i].aliases,
           "%s: %s %s", cases[i].what, fsdp_status_name(status), err.text);
        if (status == FSDP_OK && cases[i].kind == FOREIGN_TEXT) {
            ok(cat.num_tensors == 0 && cat.num_values == 2 &&
                   strcmp(cat.values[0].name, "deep/in/x") == 0 &&
                   strcmp(cat.values[1].json, "\"not ours to read\"") == 0,
               "with values only");
        } else if (status == FSDP_OK) {
            ok(cat.num_tensors == 1 && cat.tensors[0].numel == 24 &&
                   cat.tensors[0].dtype == FSDP_DTYPE_F32 &&
                   cat.num_values == 1,
               "with one tensor, %s", cat.tensors[0].name);
        }
        catalog_free(&cat);
    }
    free(path);
}

/* Is the byte a tensor's?  Those have no checksum in such a file. */
static bool is_data(const catalog_t *cat, uint64_t at)
{
    for (uint64_t i = 0; i < cat->num_pieces; i++) {
        uint64_t bytes = catalog_piece_bytes(cat, &cat->pieces[i]);

        if (at >= cat->pieces[i].offset && at - cat->pieces[i].offset < bytes) {
            return true;
        }
    }

    return false;
}

/* One bit flipped in HDF5's own bytes, the file cut: an error, or the same. */
static void test_damage(void)
{
    char *good = io_path("%s/model.h5", dir), *bad = io_path("%s/bad.h5", dir);
    unsigned refused = 0, same = 0, wrong = 0, cut = 0, tried = 0;
    catalog_t cat, whole;
    char *text;
    size_t size;
    int fd;

    if (io_read_file(good, 1u << 30, &text, &size, NULL) != FSDP_OK ||
        open_at(good, &whole, NULL) != FSDP_OK) {
        ok(false, "%s can be read", good);
        return;
    }

    fd = open(bad, O_RDWR | O_CREAT, 0666);
    io_pwrite(fd, text, size, 0, bad, NULL);
    for (size_t at = 0; at < size; at += (at < 8192) ? 16 : 1024) {
        char flipped = text[at] ^ 16;

        if (is_data(&whole, at)) {
            continue;
        }
        io_pwrite(fd, &flipped, 1, at, bad, NULL);
        if (open_at(bad, &cat, NULL) != FSDP_OK) {
            refused++;
        } else if (spec_same(specs, NUM, &cat) && cat.num_aliases == 1 &&
                   cat.step == 3 && strcmp(cat.meta, META) == 0) {
            same++;
        } else {
            wrong++;
        }
        catalog_free(&cat);
        io_pwrite(fd, text + at, 1, at, bad, NULL);
    }
    ok(refused > 100 && wrong == 0,
       "flipped bits in HDF5's own bytes: %u refused, %u the same, %u wrong",
       refused, same, wrong);
    catalog_free(&whole);

    io_pwrite(fd, text, size, 0, bad, NULL);
    for (size_t end = size - 1; end > size / 64; end -= size / 64) {
        tried++;
        cut += ftruncate(fd, (off_t)end) == 0 &&
               (open_at(bad, &cat, NULL) != FSDP_OK ||
                (end > size - 1000 && spec_same(specs, NUM, &cat)));
        catalog_free(&cat);
    }
    ok(cut == tried, "all of %u cuts are refused, but in the trailer", tried);
    close(fd);
    free(text);
    free(good);
    free(bad);
}

static void test_probe(void)
{
    char *path = io_path("%s/user-block.h5", dir);
    hid_t fcpl = H5Pcreate(H5P_FILE_CREATE), file, set;
    static const float data[24] = {1, 2, 3};
    fsdp_error_t err = {.text = ""};
    format_look_t look = {.path = path};
    catalog_t cat;
    float got = 0;
    int fd;

    H5Pset_userblock(fcpl, 1024);
    file = H5Fcreate(path, H5F_ACC_TRUNC, fcpl, H5P_DEFAULT);
    set = make_set(file, "x", H5T_IEEE_F32LE, H5P_DEFAULT);
    H5Dwrite(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, data);
    H5Dclose(set);
    H5Fclose(file);
    H5Pclose(fcpl);

    look.size = 4096;
    ok(format_hdf5_file.probe(&look), "a file with a user block is seen");
    ok(open_at(path, &cat, &err) == FSDP_OK, "and opened %s", err.text);
    fd = open(path, O_RDONLY);
    ok(cat.num_pieces == 1 &&
           pread(fd, &got, 4, (off_t)cat.pieces[0].offset + 4) == 4 && got == 2,
       "with the right offset");
    close(fd);
    catalog_free(&cat);

    look.path = "/etc/passwd";
    memcpy(look.head, "root:x:0:0:root:", 16);
    ok(!format_hdf5_file.probe(&look), "another file is not taken for HDF5");
    free(path);
}

int main(void)
{
    char *command;

    if (mkdtemp(dir) == NULL) {
        return 1;
    }

    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    test_round_trip();
    test_foreign();
    test_damage();
    test_probe();

    command = io_path("rm -rf %s", dir);
    ok(system(command) == 0, "%s", command);
    free(command);
    return tap_done();
}
