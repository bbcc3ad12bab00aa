#include "config.h"

#include "ckpt/files.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/util/crc.h"
#include "lib/util/io.h"

enum { MAX_OPEN = 128 }; /* far from the usual limit of 1024 descriptors */

typedef struct {
    char *path;
    int fd;   /* -1: closed */
    int used; /* by so many threads */
} slot_t;

struct files {
    pthread_mutex_t lock;
    int flags;
    uint32_t num, num_open;
    uint32_t hand; /* where to look for one to close */
    slot_t slots[];
};

static fsdp_status_t close_slot(const files_t *files, slot_t *slot,
                                fsdp_status_t status, fsdp_error_t *err)
{
    int fd = slot->fd;

    slot->fd = -1;
    if (files->flags == O_RDONLY) {
        close(fd);
        return status;
    }
    return io_close(fd, status, slot->path, err);
}

fsdp_status_t files_close(files_t *files, fsdp_status_t status,
                          fsdp_error_t *err)
{
    if (files == NULL) {
        return status;
    }

    for (uint32_t i = 0; i < files->num; i++) {
        if (files->slots[i].fd >= 0) {
            status = close_slot(files, &files->slots[i], status, err);
        }
        free(files->slots[i].path);
    }
    pthread_mutex_destroy(&files->lock);
    free(files);
    return status;
}

fsdp_status_t files_open(const catalog_t *cat, const char *root, int flags,
                         files_t **files_p, fsdp_error_t *err)
{
    files_t *files =
        calloc(1, sizeof(*files) + cat->num_files * sizeof(*files->slots));

    if (files == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              cat->path);
    }

    pthread_mutex_init(&files->lock, NULL);
    files->flags = flags;
    for (; files->num < cat->num_files; files->num++) {
        slot_t *slot = &files->slots[files->num];

        slot->fd = -1;
        slot->path = cat->files[files->num].zeros
                         ? strdup("/dev/zero")
                         : io_path("%s/%s", (root != NULL) ? root : cat->root,
                                   cat->files[files->num].path);
        if (slot->path == NULL) {
            fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", cat->path);
            return files_close(files, FSDP_ERR_NO_MEMORY, err);
        }
    }

    *files_p = files;
    return FSDP_OK;
}

/* Close one that nobody uses, if there are too many. */
static fsdp_status_t make_room(files_t *files, fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;

    for (uint32_t i = 0; i < files->num && files->num_open >= MAX_OPEN; i++) {
        slot_t *slot = &files->slots[files->hand];

        files->hand = (files->hand + 1) % files->num;
        if (slot->fd >= 0 && slot->used == 0) {
            status = close_slot(files, slot, status, err);
            files->num_open--;
        }
    }

    return status;
}

fsdp_status_t files_get(files_t *files, uint32_t file, int *fd_p,
                        fsdp_error_t *err)
{
    slot_t *slot = &files->slots[file];
    fsdp_status_t status = FSDP_OK;

    pthread_mutex_lock(&files->lock);
    if (slot->fd < 0) {
        status = make_room(files, err);
        if (status == FSDP_OK) {
            status = io_open(slot->path, files->flags, 0, &slot->fd, err);
        }
        if (status == FSDP_OK) {
            files->num_open++;
        } else {
            slot->fd = -1;
        }
    }
    if (status == FSDP_OK) {
        slot->used++;
        *fd_p = slot->fd;
    }
    pthread_mutex_unlock(&files->lock);

    return status;
}

void files_put(files_t *files, uint32_t file)
{
    pthread_mutex_lock(&files->lock);
    files->slots[file].used--;
    pthread_mutex_unlock(&files->lock);
}

const char *files_path(files_t *files, uint32_t file)
{
    return files->slots[file].path;
}

fsdp_status_t files_sum(const catalog_t *cat, uint32_t file, uint64_t size,
                        uint32_t *crc_p, fsdp_error_t *err)
{
    enum { BYTES = 1 << 20 };
    char *path = catalog_file_path(cat, file), *buffer = malloc(BYTES);
    fsdp_status_t status;
    uint32_t crc = 0;
    int fd = -1;

    status = (path != NULL && buffer != NULL)
                 ? io_open(path, O_RDONLY, 0, &fd, err)
                 : fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                                  cat->path);
    for (uint64_t at = 0; status == FSDP_OK && at < size;) {
        size_t n = (size - at < BYTES) ? (size_t)(size - at) : BYTES;

        status = io_pread(fd, buffer, n, at, path, err);
        crc = crc32c(crc, buffer, n);
        at += n;
    }
    if (fd >= 0) {
        close(fd);
    }
    free(path);
    free(buffer);
    *crc_p = crc;
    return status;
}
