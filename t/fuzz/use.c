#define _GNU_SOURCE
#include "config.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ckpt/fsdp_ckpt.h"
#include "t/fuzz/fuzz.h"

enum { MOST_TENSORS = 64, MOST_ELEMENTS = 4096, MOST_CONVERTED = 1 << 20 };

static const fsdp_ckpt_engine_t engine = {.max_mem = 256 << 10, .jobs = 1};

static char file_path[FUZZ_PATH];

static void remove_file(void)
{
    unlink(file_path);
}

const char *fuzz_top(void)
{
    const char *dir = getenv("FUZZ_DIR");

    return (dir != NULL) ? dir : "/tmp";
}

const char *fuzz_file(const uint8_t *data, size_t size)
{
    static int fd = -1;

    if (fd < 0) {
        snprintf(file_path, sizeof(file_path), "%s/fuzz-XXXXXX", fuzz_top());
        fd = mkstemp(file_path);
        atexit(remove_file);
    }
    if (fd < 0 || ftruncate(fd, 0) != 0 ||
        pwrite(fd, data, size, 0) != (ssize_t)size) {
        abort();
    }
    return file_path;
}

/* The first elements, and some from the middle. */
static void read_some(fsdp_ckpt_t *ckpt, uint64_t t, void *data)
{
    fsdp_ckpt_tensor_t tensor;
    fsdp_ckpt_range_t range = {.tensor = t, .data = data};
    fsdp_error_t err;

    fsdp_ckpt_get_tensor(ckpt, t, &tensor);
    range.count = (tensor.numel < MOST_ELEMENTS) ? tensor.numel : MOST_ELEMENTS;
    (void)fsdp_ckpt_read(ckpt, &range, 1, &engine, NULL, &err);
    range.first = (tensor.numel - range.count) / 16 * 8;
    (void)fsdp_ckpt_read(ckpt, &range, 1, &engine, NULL, &err);
}

static void look(fsdp_ckpt_t *ckpt, const fsdp_ckpt_info_t *info)
{
    void *data = malloc(MOST_ELEMENTS * 16);
    fsdp_ckpt_piece_t piece;
    fsdp_ckpt_tensor_t tensor;
    const char *name, *json;
    uint64_t owner;

    for (uint64_t t = 0; t < info->num_tensors && t < MOST_TENSORS; t++) {
        fsdp_ckpt_get_tensor(ckpt, t, &tensor);
        for (uint32_t p = 0; p < tensor.num_pieces; p++) {
            fsdp_ckpt_get_piece(ckpt, t, p, &piece);
        }
        read_some(ckpt, t, data);
    }
    for (uint64_t a = 0; a < info->num_aliases; a++) {
        fsdp_ckpt_get_alias(ckpt, a, &name, &owner);
    }
    for (uint64_t v = 0; v < info->num_values; v++) {
        fsdp_ckpt_get_value(ckpt, v, &name, &json);
    }
    free(data);
}

static int remove_one(const char *path, const struct stat *st, int type,
                      struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

/* To a format that is the same whenever this input is tried. */
static void convert(const char *path, const char *recipe,
                    const fsdp_ckpt_info_t *info)
{
    static const fsdp_ckpt_format_t formats[] = {
        FSDP_CKPT_HDF5,     FSDP_CKPT_HDF5_FILE, FSDP_CKPT_SAFETENSORS,
        FSDP_CKPT_DCP,      FSDP_CKPT_DCP_HF,    FSDP_CKPT_TORCH,
        FSDP_CKPT_UNIVERSAL};
    fsdp_ckpt_convert_config_t config = FSDP_CKPT_CONVERT_INIT;
    fsdp_ckpt_convert_result_t converted;
    char target[2 * FUZZ_PATH];
    fsdp_error_t err;

    snprintf(target, sizeof(target), "%s/converted-%d", fuzz_top(),
             (int)getpid());
    config.source = path;
    config.target = target;
    config.recipe = recipe;
    config.engine = engine;
    config.format = formats[(info->bytes + info->num_values) %
                            (sizeof(formats) / sizeof(*formats))];
    config.dry_run = info->bytes > MOST_CONVERTED;
    (void)fsdp_ckpt_convert(&config, &converted, &err);
    nftw(target, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

void fuzz_use(const char *path, const char *recipe, const char *manifest)
{
    fsdp_ckpt_open_config_t config = FSDP_CKPT_OPEN_INIT;
    fsdp_ckpt_manifest_config_t check = FSDP_CKPT_MANIFEST_INIT;
    fsdp_ckpt_manifest_result_t checked;
    fsdp_ckpt_verify_result_t verified;
    fsdp_ckpt_info_t info;
    fsdp_ckpt_t *ckpt;
    fsdp_error_t err;

    config.recipe = recipe;
    if (fsdp_ckpt_open_with(path, &config, &ckpt, &err) == FSDP_OK) {
        fsdp_ckpt_get_info(ckpt, &info);
        look(ckpt, &info);
        fsdp_ckpt_close(ckpt);
        convert(path, recipe, &info);
    }
    (void)fsdp_ckpt_verify(path, NULL, &engine, NULL, NULL, NULL, &verified,
                           &err);
    if (manifest != NULL) {
        check.manifest = manifest;
        check.recipe = recipe;
        check.engine = engine;
        (void)fsdp_ckpt_check_manifest(path, &check, &checked, &err);
    }
}
