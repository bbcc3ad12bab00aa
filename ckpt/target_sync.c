/*
 * Making what was written last.  A sync of a file waits for the disk, and a
 * file system that is asked for many at once writes its own journal fewer
 * times: so a few threads ask.
 */
#include "config.h"

#include "ckpt/target.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/util/check.h"
#include "lib/util/crew.h"
#include "lib/util/io.h"

#define JOBS_MOST 8

typedef struct {
    const catalog_t *cat;
    const bool *wanted;
    const char *dir;
    pthread_mutex_t lock; /* over what follows */
    uint32_t next;        /* file */
    fsdp_status_t status; /* of the first that failed */
    fsdp_error_t err;
} sync_t;

fsdp_status_t target_sync(const catalog_t *cat, uint32_t file, const char *dir,
                          fsdp_error_t *err)
{
    char *path = io_path("%s/%s", dir, cat->files[file].path);
    fsdp_status_t status;
    int fd;

    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", dir);
    }

    status = io_open(path, O_RDWR, 0, &fd, err);
    if (status == FSDP_OK) {
        status = io_fsync(fd, path, err);
        close(fd);
    }
    free(path);
    return status;
}

/* Under the lock. @return false at the end, which a failure is too. */
static bool take(sync_t *sync, uint32_t *file_p)
{
    while (sync->wanted != NULL && sync->next < sync->cat->num_files &&
           !sync->wanted[sync->next]) {
        sync->next++;
    }
    if (sync->status != FSDP_OK || sync->next == sync->cat->num_files) {
        return false;
    }

    *file_p = sync->next++;
    return true;
}

static void work(void *arg, uint32_t number)
{
    sync_t *sync = arg;
    fsdp_status_t status;
    fsdp_error_t err;
    uint32_t file;

    (void)number;
    pthread_mutex_lock(&sync->lock);
    while (take(sync, &file)) {
        pthread_mutex_unlock(&sync->lock);
        status = target_sync(sync->cat, file, sync->dir, &err);
        pthread_mutex_lock(&sync->lock);
        if (status != FSDP_OK && sync->status == FSDP_OK) {
            sync->status = status;
            sync->err = err;
        }
    }
    pthread_mutex_unlock(&sync->lock);
}

fsdp_status_t target_sync_all(const catalog_t *cat, const bool *wanted,
                              uint32_t jobs, const char *dir, fsdp_error_t *err)
{
    sync_t sync = {.cat = cat,
                   .wanted = wanted,
                   .dir = dir,
                   .lock = PTHREAD_MUTEX_INITIALIZER};

    if (jobs == 0 || jobs > JOBS_MOST) {
        jobs = JOBS_MOST;
    }

    crew_run((jobs < cat->num_files) ? jobs : cat->num_files, work, &sync);
    pthread_mutex_destroy(&sync.lock);

    if (sync.status != FSDP_OK && err != NULL) {
        *err = sync.err;
    }
    return sync.status;
}
