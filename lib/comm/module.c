/*
 * Find and load backends.
 */
#include "config.h"

#include "lib/comm/comm.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/util/io.h"

#ifndef FSDP_MODULE_DIR
#define FSDP_MODULE_DIR "/usr/lib/fsdp"
#endif

/* Open MPI's own plugins need the symbols of libmpi, hence RTLD_GLOBAL. */
static fsdp_status_t load(const char *path, const struct comm_ops **ops_p,
                          fsdp_error_t *err)
{
    const struct comm_ops *ops;
    void *handle;

    handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    errno = 0;
    if (handle == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_LAUNCHER,
                              "%s: cannot be loaded: %s", path, dlerror());
    }

    ops = dlsym(handle, COMM_OPS_SYMBOL);
    if (ops == NULL || ops->version != COMM_OPS_VERSION) {
        dlclose(handle);
        return fsdp_error_set(
            err, FSDP_ERR_UNSUPPORTED,
            "%s: is of another version of libfsdp: install both anew", path);
    }

    *ops_p = ops;
    return FSDP_OK;
}

/* One directory; FSDP_ERR_NOT_FOUND if the module is not there. */
static fsdp_status_t load_from(const char *dir, size_t length, const char *name,
                               const struct comm_ops **ops_p, fsdp_error_t *err)
{
    fsdp_status_t status;
    char *path;

    path = io_path("%.*s/fsdp_comm_%s.so", (int)length, dir, name);
    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "no memory for a path");
    }

    if (access(path, F_OK) != 0) {
        status = fsdp_error_set(err, FSDP_ERR_NOT_FOUND, "%s: %m", path);
    } else {
        status = load(path, ops_p, err);
    }
    free(path);
    return status;
}

/* Each directory of a list in which ':' separates. */
static fsdp_status_t load_from_list(const char *list, const char *name,
                                    const struct comm_ops **ops_p,
                                    fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_ERR_NOT_FOUND;
    size_t length;

    while (*list != '\0' && status == FSDP_ERR_NOT_FOUND) {
        length = strcspn(list, ":");
        if (length > 0) {
            status = load_from(list, length, name, ops_p, err);
        }
        list += length + (list[length] == ':');
    }

    return status;
}

/* The directory of libfsdp.so, and "fsdp" in it; the caller frees it. */
static char *own_dirs(void)
{
    const char *slash;
    Dl_info info;
    int length;

    if (dladdr(&comm_self_ops, &info) == 0 || info.dli_fname == NULL) {
        return io_path("%s", "");
    }

    slash = strrchr(info.dli_fname, '/');
    if (slash == NULL) {
        return io_path(".:./fsdp");
    }

    length = (int)(slash - info.dli_fname);
    return io_path("%.*s:%.*s/fsdp", length, info.dli_fname, length,
                   info.dli_fname);
}

fsdp_status_t comm_module_load(const char *name, const struct comm_ops **ops_p,
                               fsdp_error_t *err)
{
    const char *asked = secure_getenv("FSDP_MODULE_PATH");
    fsdp_status_t status;
    char *own, *list;

    own = own_dirs();
    list = io_path("%s:%s:%s", (asked != NULL) ? asked : "",
                   (own != NULL) ? own : "", FSDP_MODULE_DIR);
    if (own == NULL || list == NULL) {
        status =
            fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "no memory for a path");
        goto out;
    }

    status = load_from_list(list, name, ops_p, err);
    if (status == FSDP_ERR_NOT_FOUND) {
        errno = 0;
        status = fsdp_error_set(
            err, FSDP_ERR_NO_LAUNCHER,
            "no module fsdp_comm_%s.so in %s: build with --with-%s, or set "
            "FSDP_MODULE_PATH",
            name, list + (list[0] == ':'), name);
    }

out:
    free(list);
    free(own);
    return status;
}
