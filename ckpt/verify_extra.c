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

static bool is_listed(const verify_t *verify, const catalog_t *cat,
                      const char *path)
{
    for (uint32_t i = 0; i < cat->num_files; i++) {
        if (strcmp(cat->files[i].path, path) == 0) {
            return true;
        }
    }

    return strcmp(path, MANIFEST_NAME) == 0 ||
           strcmp(path, HDF5_INDEX_NAME) == 0 ||
           ranks_is_own(&verify->ranks, path);
}

/* @param path  Relative to the catalog's root. */
static fsdp_status_t look_at(verify_t *verify, const catalog_t *cat,
                             const char *path, fsdp_error_t *err)
{
    char *full = io_path("%s/%s", cat->root, path);
    fsdp_status_t status = FSDP_OK;
    struct stat st = {.st_size = 0};
    format_extra_t what;

    if (full == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              cat->path);
    }

    (void)stat(full, &st); /* a link that leads nowhere has 0 bytes */
    what = format_get(cat->format)->extra(cat, path, (uint64_t)st.st_size);
    if (what != FORMAT_FOREIGN && is_listed(verify, cat, path)) {
        what = FORMAT_FOREIGN;
    }
    if (what == FORMAT_STALE) {
        verify->result.stale_files++;
        verify->result.stale_bytes += (uint64_t)st.st_size;
    } else if (what == FORMAT_EXTRA &&
               verify_find(verify, "%s: is no part of the checkpoint", full) !=
                   FSDP_OK) {
        status =
            fsdp_error_set(err, FSDP_ERR_CANCELLED, "the check was stopped");
    }
    free(full);
    return status;
}

/* @param sub  Relative to the catalog's root: "", or with a slash at its end.
 */
static fsdp_status_t look_in(verify_t *verify, const catalog_t *cat,
                             const char *sub, fsdp_error_t *err)
{
    char *path = io_path("%s/%s", cat->root, sub);
    DIR *dir = (path != NULL) ? opendir(path) : NULL;
    fsdp_status_t status = FSDP_OK;
    const struct dirent *entry;

    free(path);
    if (dir == NULL) {
        return fsdp_error_set(err, FSDP_ERR_IO, "%s/%s: cannot read: %m",
                              cat->root, sub);
    }

    while (status == FSDP_OK && (entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 ||
            strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        path = io_path("%s%s", sub, entry->d_name);
        status = (path != NULL) ? look_at(verify, cat, path, err)
                                : fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                                 "%s: no memory", cat->path);
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

fsdp_status_t verify_extra(verify_t *verify, const catalog_t *cat,
                           fsdp_error_t *err)
{
    if (format_get(cat->format)->extra == NULL) {
        return FSDP_OK;
    }

    FSDP_TRY(look_in(verify, cat, "", err));
    for (uint32_t i = 0; i < cat->num_files; i++) {
        const char *path = cat->files[i].path;
        size_t size = (size_t)(io_base(path) - path);
        fsdp_status_t status;
        char *sub;

        if (size == 0 || is_done(cat, i, size)) {
            continue;
        }
        sub = strndup(path, size);
        status = (sub != NULL) ? look_in(verify, cat, sub, err)
                               : fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                                "%s: no memory", cat->path);
        free(sub);
        FSDP_TRY(status);
    }

    return FSDP_OK;
}
