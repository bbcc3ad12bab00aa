/*
 * Where the checkpoint is that someone means who names a directory above it,
 * or a file in it that only says where its data lies.
 */
#include "config.h"

#include <dirent.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/format.h"
#include "lib/util/io.h"

#define DEPTH_MOST   3    /* directories that are gone down */
#define ENTRIES_MOST 1000 /* that are looked at in all */

/* What was found below a directory. */
typedef struct {
    char *path; /* the first; the caller frees it */
    unsigned num;
    unsigned looked; /* at entries */
} below_t;

/* Files that say something about the directory they lie in. */
static bool is_pointer(const char *name)
{
    static const char *const patterns[] = {
        "manifest.json", "index.h5",   "shard-[0-9]*.h5",
        "latest",        "*.distcp",   "latest_universal",
        "metadata.json", "latest_checkpointed_iteration.txt",
    };

    for (size_t i = 0; i < sizeof(patterns) / sizeof(*patterns); i++) {
        if (fnmatch(patterns[i], name, FNM_PERIOD) == 0) {
            return true;
        }
    }

    return false;
}

/* A checkpoint, or a directory of ours. */
static bool is_checkpoint(const char *path)
{
    format_look_t look;

    return format_look(path, &look, NULL) == FSDP_OK && look.is_dir &&
           (format_recognise(&look) != NULL || format_has_steps(path));
}

static void look_below(const char *dir, unsigned depth, below_t *below)
{
    DIR *stream = opendir(dir);
    const struct dirent *entry;

    while (stream != NULL && (entry = readdir(stream)) != NULL &&
           below->looked++ < ENTRIES_MOST) {
        char *path;
        struct stat st;

        if (entry->d_name[0] == '.') {
            continue;
        }
        path = io_path("%s/%s", dir, entry->d_name);
        if (path == NULL || stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
            free(path);
        } else if (!is_checkpoint(path)) {
            if (depth > 1) {
                look_below(path, depth - 1, below);
            }
            free(path);
        } else if (below->num++ == 0) {
            below->path = path;
        } else {
            free(path);
        }
    }
    if (stream != NULL) {
        closedir(stream);
    }
}

/* The directory of a file that only points to it, or NULL. */
static char *directory_of(const char *path)
{
    char *dir;

    if (!is_pointer(io_base(path))) {
        return NULL;
    }

    dir = io_parent(path);
    if (dir != NULL && !is_checkpoint(dir)) {
        free(dir);
        dir = NULL;
    }
    return dir;
}

char *format_find(const char *path, unsigned *num_p)
{
    below_t below = {0};
    struct stat st;

    if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode)) {
        below.path = directory_of(path);
        below.num = below.path != NULL;
    } else if (!is_checkpoint(path)) {
        look_below(path, DEPTH_MOST, &below);
    }
    if (num_p != NULL) {
        *num_p = below.num;
    }
    if (below.num == 1) {
        return below.path;
    }
    free(below.path);
    return strdup(path);
}
