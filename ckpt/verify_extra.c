/*
 * What lies beside the files of a checkpoint: the format tells data of its own,
 * which should not be there, from all else that people keep in a directory.
 */
#include "config.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/format.h"
#include "ckpt/format/hdf5_write.h"
#include "ckpt/format/manifest.h"
#include "ckpt/verify.h"
#include "lib/util/check.h"
#include "lib/util/io.h"
#include "lib/util/map.h"

typedef struct {
    verify_t *verify;
    const catalog_t *cat;
    map_t listed; /* paths of the catalog's files */
} extra_t;

static bool is_listed(const extra_t *extra, const char *path)
{
    return map_get(&extra->listed, path, strlen(path), &(uint64_t){0}) ||
           strcmp(path, MANIFEST_NAME) == 0 ||
           strcmp(path, HDF5_INDEX_NAME) == 0 ||
           ranks_is_own(&extra->verify->ranks, path);
}

static fsdp_status_t no_memory(const extra_t *extra, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                          extra->cat->path);
}

/* @param path  Relative to the catalog's root. */
static fsdp_status_t look_at(const extra_t *extra, const char *path,
                             fsdp_error_t *err)
{
    const catalog_t *cat = extra->cat;
    fsdp_ckpt_verify_result_t *result = &extra->verify->result;
    struct stat st = {.st_size = 0};
    fsdp_status_t status = FSDP_OK;
    format_extra_t what;
    char *full;

    if (is_listed(extra, path)) {
        return FSDP_OK;
    }
    full = io_path("%s/%s", cat->root, path);
    if (full == NULL) {
        return no_memory(extra, err);
    }

    (void)stat(full, &st); /* a link that leads nowhere has 0 bytes */
    what = format_get(cat->format)->extra(cat, path, (uint64_t)st.st_size);
    if (what == FORMAT_STALE) {
        result->stale_files++;
        result->stale_bytes += (uint64_t)st.st_size;
    } else if (what == FORMAT_EXTRA &&
               verify_find(extra->verify, "%s: is no part of the checkpoint",
                           full) != FSDP_OK) {
        status =
            fsdp_error_set(err, FSDP_ERR_CANCELLED, "the check was stopped");
    }
    free(full);
    return status;
}

/* @param sub  Relative to the catalog's root: "", or with a slash at its end.
 */
static fsdp_status_t look_in(const extra_t *extra, const char *sub,
                             fsdp_error_t *err)
{
    char *path = io_path("%s/%s", extra->cat->root, sub);
    DIR *dir = (path != NULL) ? opendir(path) : NULL;
    fsdp_status_t status = FSDP_OK;
    const struct dirent *entry;

    free(path);
    if (dir == NULL) {
        return fsdp_error_set(err, FSDP_ERR_IO, "%s/%s: cannot read: %m",
                              extra->cat->root, sub);
    }

    while (status == FSDP_OK && (entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 ||
            strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        path = io_path("%s%s", sub, entry->d_name);
        status =
            (path != NULL) ? look_at(extra, path, err) : no_memory(extra, err);
        free(path);
    }
    closedir(dir);

    return status;
}

/* Whether a file of the catalog before this one has the same directory, which
 * is @a size characters of its path. */
static bool is_done(const catalog_t *cat, uint32_t file, size_t size)
{
    for (uint32_t i = 0; i < file; i++) {
        if (io_base(cat->files[i].path) == cat->files[i].path + size &&
            strncmp(cat->files[i].path, cat->files[file].path, size) == 0) {
            return true;
        }
    }

    return false;
}

static fsdp_status_t look_everywhere(extra_t *extra, fsdp_error_t *err)
{
    const catalog_t *cat = extra->cat;

    for (uint32_t i = 0; i < cat->num_files; i++) {
        const char *path = cat->files[i].path;

        if (!map_put(&extra->listed, path, strlen(path), i)) {
            return no_memory(extra, err);
        }
    }

    FSDP_TRY(look_in(extra, "", err));
    for (uint32_t i = 0; i < cat->num_files; i++) {
        const char *path = cat->files[i].path;
        size_t size = (size_t)(io_base(path) - path);
        fsdp_status_t status;
        char *sub;

        if (size == 0 || is_done(cat, i, size)) {
            continue;
        }
        sub = strndup(path, size);
        status =
            (sub != NULL) ? look_in(extra, sub, err) : no_memory(extra, err);
        free(sub);
        FSDP_TRY(status);
    }

    return FSDP_OK;
}

fsdp_status_t verify_extra(verify_t *verify, const catalog_t *cat,
                           fsdp_error_t *err)
{
    extra_t extra = {.verify = verify, .cat = cat};
    fsdp_status_t status;

    if (format_get(cat->format)->extra == NULL) {
        return FSDP_OK;
    }

    status = look_everywhere(&extra, err);
    map_free(&extra.listed);
    return status;
}
