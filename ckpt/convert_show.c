/*
 * A target that only shows what lies in the source's files.
 */
#include "config.h"

#include "ckpt/convert.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/format/hdf5_write.h"
#include "lib/util/check.h"
#include "lib/util/io.h"

/* The path of a file from a directory on, both absolute: so that they may be
 * moved together.  The caller frees it; NULL: no memory. */
static char *path_from(const char *dir, const char *file)
{
    size_t same = 0, size = strlen(dir);
    char *path = strdup(""), *longer;

    /* Same components at the beginning. */
    for (size_t i = 0; dir[i] == file[i] || dir[i] == '\0'; i++) {
        if (dir[i] == '/' || (dir[i] == '\0' && file[i] == '/')) {
            same = i + 1;
        }
        if (dir[i] == '\0') {
            break;
        }
    }
    for (size_t i = same; i < size && path != NULL; i++) {
        if (i == same || dir[i - 1] == '/') {
            longer = io_path("../%s", path);
            free(path);
            path = longer;
        }
    }
    longer = (path != NULL) ? io_path("%s%s", path, file + same) : NULL;
    free(path);
    return longer;
}

/* What a source file is now, and where. */
static fsdp_status_t look_at(const convert_t *convert, uint32_t file,
                             const char *dir, char **path_p, int64_t *mtime_p,
                             fsdp_error_t *err)
{
    char *path = catalog_file_path(&convert->src, file);
    char *real = (path != NULL) ? realpath(path, NULL) : NULL;
    fsdp_status_t status = FSDP_OK;
    struct stat st;

    if (path == NULL) {
        return convert_no_memory(convert, err);
    }
    if (real == NULL || stat(real, &st) != 0) {
        status = fsdp_error_set(err, FSDP_ERR_IO, "%s: %m", path);
    } else {
        *path_p = path_from(dir, real);
        *mtime_p = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
        status = (*path_p != NULL) ? FSDP_OK : convert_no_memory(convert, err);
    }
    free(real);
    free(path);
    return status;
}

/* The files that anything wanted lies in. */
static fsdp_status_t look_at_all(const convert_t *convert, char **paths,
                                 int64_t *mtimes, fsdp_error_t *err)
{
    const catalog_t *src = &convert->src;
    char *dir = realpath(convert->parent, NULL);
    fsdp_status_t status = FSDP_OK;

    if (dir == NULL) {
        return fsdp_error_set(err, FSDP_ERR_IO, "%s: %m", convert->parent);
    }

    for (uint64_t i = 0; i < convert->num_wanted && status == FSDP_OK; i++) {
        const catalog_tensor_t *tensor =
            &src->tensors[convert->wanted[i].source];

        for (uint32_t p = 0; p < tensor->piece_count && status == FSDP_OK;
             p++) {
            uint32_t file = src->pieces[tensor->piece_first + p].file;

            if (src->files[file].zeros) {
                status = fsdp_error_set(
                    err, FSDP_ERR_UNSUPPORTED,
                    "tensor %s: is in no file, but made by rules, so that it "
                    "cannot be shown: leave --virtual out",
                    tensor->name);
            } else if (paths[file] == NULL) {
                status = look_at(convert, file, dir, &paths[file],
                                 &mtimes[file], err);
            }
        }
    }
    free(dir);
    return status;
}

fsdp_status_t convert_show(convert_t *convert, fsdp_error_t *err)
{
    uint32_t num = convert->src.num_files;
    char **paths = calloc(num + 1ul, sizeof(*paths));
    int64_t *mtimes = calloc(num + 1ul, sizeof(*mtimes));
    char *path = io_path("%s/%s", convert->dir, convert->dst.files[0].path);
    const hdf5_sources_t sources = {.cat = &convert->src,
                                    .map = convert->map,
                                    .paths = paths,
                                    .mtimes = mtimes};
    fsdp_status_t status;

    if (paths == NULL || mtimes == NULL || path == NULL) {
        status = convert_no_memory(convert, err);
        goto err_free;
    }

    FSDP_TRY_GOTO(look_at_all(convert, paths, mtimes, err), err_free);
    FSDP_TRY_GOTO(hdf5_plain_show(&convert->dst, &sources, path, err),
                  err_free);
    status = io_fsync_path(path, err);
err_free:
    for (uint32_t f = 0; paths != NULL && f < num; f++) {
        free(paths[f]);
    }
    free(paths);
    free(mtimes);
    free(path);
    return status;
}
