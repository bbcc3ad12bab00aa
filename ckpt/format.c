#include "config.h"

#include "ckpt/format.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/util/check.h"
#include "lib/util/dir.h"
#include "lib/util/io.h"

/* In the order in which they are asked whether they know a path: PyTorch's
 * checkpoints have more than the safetensors that may lie beside them. */
static const format_t *const formats[] = {
    &format_hdf5,
    &format_hdf5_file,
    &format_megatron,
    &format_dcp,
    &format_dcp_hf,
    &format_safetensors,
    &format_zero,
    &format_universal,
    &format_llmc,
    &format_torch,
};

#define NUM_FORMATS (sizeof(formats) / sizeof(*formats))

const format_t *format_get(fsdp_ckpt_format_t id)
{
    for (size_t i = 0; i < NUM_FORMATS; i++) {
        if (formats[i]->id == id) {
            return formats[i];
        }
    }

    return NULL;
}

const char *fsdp_ckpt_format_name(fsdp_ckpt_format_t id)
{
    const format_t *format = format_get(id);

    return (format != NULL) ? format->name : "unknown";
}

unsigned fsdp_ckpt_format_keeps(fsdp_ckpt_format_t id)
{
    const format_t *format = format_get(id);

    return (format != NULL) ? format->keeps : FSDP_CKPT_KEEPS_NONE;
}

bool fsdp_ckpt_format_parse(const char *text, fsdp_ckpt_format_t *format_p)
{
    for (size_t i = 0; i < NUM_FORMATS; i++) {
        if (strcmp(text, formats[i]->name) == 0) {
            *format_p = formats[i]->id;
            return true;
        }
    }

    return false;
}

/* --- Looking -------------------------------------------------------------- */

static fsdp_status_t look_inside(const char *path, format_look_t *look,
                                 fsdp_error_t *err)
{
    size_t size = sizeof(look->head);
    fsdp_status_t status;
    int fd;

    FSDP_TRY(io_open(path, O_RDONLY, 0, &fd, err));
    if (look->size < size) {
        size = (size_t)look->size;
    }
    status = io_pread(fd, look->head, size, 0, path, err);
    close(fd);
    return status;
}

fsdp_status_t format_look(const char *path, format_look_t *look_p,
                          fsdp_error_t *err)
{
    format_look_t look = {.path = path};
    struct stat st;

    if (stat(path, &st) != 0) {
        return fsdp_error_set(err,
                              (errno == ENOENT || errno == ENOTDIR)
                                  ? FSDP_ERR_NOT_FOUND
                                  : FSDP_ERR_IO,
                              "%s: %m", path);
    }

    look.is_dir = S_ISDIR(st.st_mode);
    look.size = (uint64_t)st.st_size;
    if (!look.is_dir && !S_ISREG(st.st_mode)) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: neither a file nor a directory", path);
    }
    if (!look.is_dir) {
        FSDP_TRY(look_inside(path, &look, err));
    }

    *look_p = look;
    return FSDP_OK;
}

const format_t *format_recognise(const format_look_t *look)
{
    for (size_t i = 0; i < NUM_FORMATS; i++) {
        if (formats[i]->probe(look)) {
            return formats[i];
        }
    }

    return NULL;
}

static fsdp_status_t open_as(const format_t *format, const char *path,
                             catalog_t *cat, fsdp_error_t *err)
{
    cat->format = format->id;
    cat->path = catalog_strdup(cat, path);
    cat->root = cat->path;
    if (cat->path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);
    }

    return format->open(path, cat, err);
}

/* --- What else it may be, for the message --------------------------------- */

/* Files that are no checkpoints of a format known here, by their first bytes
 * or name: told so that nobody has to guess. */
static const char *guess_file(const format_look_t *look)
{
    static const struct {
        const char *head;
        size_t size;
        const char *what;
    } heads[] = {
        {"PK\3\4",                4, "a zip archive, as torch.save writes it"},
        {"\211HDF\r\n\032\n",     8, "an HDF5 file"                          },
        {"\200\2\212\12\154\374", 6, "a legacy torch.save file"              },
        {"\200\4",                2, "a Python pickle"                       },
        {"\200\2",                2, "a Python pickle"                       },
        {"GGUF",                  4, "a GGUF file"                           },
        {"{",                     1, "JSON text"                             },
    };

    if (look->size == 0) {
        return "an empty file";
    }
    for (size_t i = 0; i < sizeof(heads) / sizeof(*heads); i++) {
        if (memcmp(look->head, heads[i].head, heads[i].size) == 0) {
            return heads[i].what;
        }
    }

    return "a file of an unknown kind";
}

static fsdp_status_t unknown_file(const format_look_t *look, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                          "%s: looks like %s, not like a checkpoint that can "
                          "be read here",
                          look->path, guess_file(look));
}

static fsdp_status_t unknown_dir(const format_look_t *look, fsdp_error_t *err)
{
    DIR *stream = opendir(look->path);
    const struct dirent *entry;
    char seen[200] = "";
    size_t used = 0;
    unsigned num = 0;

    if (stream == NULL) {
        return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot read: %m",
                              look->path);
    }
    while ((entry = readdir(stream)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 ||
            strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        if (num++ < 3) {
            int n = snprintf(seen + used, sizeof(seen) - used, "%s%.50s",
                             (used > 0) ? ", " : "", entry->d_name);

            used += (n > 0) ? (size_t)n : 0;
        }
    }
    closedir(stream);

    if (num == 0) {
        return fsdp_error_set(err, FSDP_ERR_NOT_FOUND,
                              "%s: an empty directory, no checkpoint",
                              look->path);
    }
    return fsdp_error_set(err, FSDP_ERR_NOT_FOUND,
                          "%s: no checkpoint that can be read here; the "
                          "directory has %u entries, such as %s",
                          look->path, num, seen);
}

/* --- A directory of checkpoints ------------------------------------------- */

int64_t format_step(const char *name)
{
    char *end;
    long long step;

    if (strncmp(name, "step-", 5) != 0 || !isdigit((unsigned char)name[5])) {
        return -1;
    }

    errno = 0;
    step = strtoll(name + 5, &end, 10);
    return (*end == '\0' && errno == 0) ? step : -1;
}

static int is_step(const struct dirent *entry)
{
    return format_step(entry->d_name) >= 0;
}

bool format_has_steps(const char *dir)
{
    return dir_count(dir, is_step) > 0;
}

static int newest_first(const struct dirent **a, const struct dirent **b)
{
    int64_t left = format_step((*a)->d_name);
    int64_t right = format_step((*b)->d_name);

    return (left < right) - (left > right);
}

static fsdp_status_t open_child(const char *dir, const char *name,
                                catalog_t *cat, fsdp_error_t *err)
{
    char *path = io_path("%s/%s", dir, name);
    const format_t *format;
    fsdp_status_t status;
    format_look_t look;

    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", dir);
    }

    status = format_look(path, &look, err);
    if (status == FSDP_OK) {
        format = format_recognise(&look);
        if (format != NULL) {
            status = open_as(format, path, cat, err);
        } else {
            status = look.is_dir ? unknown_dir(&look, err)
                                 : unknown_file(&look, err);
        }
    }
    if (status != FSDP_OK) {
        const char *recipe = cat->recipe;

        catalog_free(cat);
        cat->recipe = recipe;
    }
    free(path);
    return status;
}

/* @return FSDP_ERR_NOT_FOUND with no step-* in it, then err is untouched. */
static fsdp_status_t open_newest(const char *dir, catalog_t *cat,
                                 fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_ERR_NOT_FOUND, first = FSDP_OK;
    struct dirent **names = NULL;
    fsdp_error_t why = {0}, first_why = {0};
    char *latest;
    int num;

    FSDP_TRY(io_read_name(dir, "latest", &latest, err));
    if (latest != NULL) {
        status = first = open_child(dir, latest, cat, &first_why);
    }

    num = (status == FSDP_OK) ? 0 : scandir(dir, &names, is_step, newest_first);
    for (int i = 0; i < num; i++) {
        if (status != FSDP_OK &&
            (latest == NULL || strcmp(latest, names[i]->d_name) != 0)) {
            status = open_child(dir, names[i]->d_name, cat, &why);
            if (first == FSDP_OK) {
                first = status;
                first_why = why;
            }
        }
    }
    dir_free(names, num);
    free(latest);

    if (status != FSDP_OK && first != FSDP_OK && err != NULL) {
        *err = first_why; /* of the newest one: that is what was wanted */
    }
    return (status == FSDP_OK || first == FSDP_OK) ? status : first;
}

static fsdp_status_t open_found(const char *path, unsigned below,
                                catalog_t *cat, fsdp_error_t *err)
{
    fsdp_error_t why = {.status = FSDP_OK};
    const format_t *format;
    fsdp_status_t status;
    format_look_t look;

    FSDP_TRY(format_look(path, &look, err));
    format = format_recognise(&look);
    if (format != NULL) {
        return open_as(format, path, cat, err);
    }
    if (!look.is_dir) {
        return unknown_file(&look, err);
    }

    status = open_newest(path, cat, &why);
    if (status == FSDP_OK) {
        return FSDP_OK;
    }
    if (why.status == FSDP_OK && below > 1) {
        return fsdp_error_set(err, FSDP_ERR_NOT_FOUND,
                              "%s: holds %u checkpoints: name one of them",
                              path, below);
    }
    if (why.status == FSDP_OK) {
        return unknown_dir(&look, err);
    }
    if (err != NULL) {
        *err = why;
    }
    return status;
}

fsdp_status_t format_open(const char *path, catalog_t *cat, fsdp_error_t *err)
{
    unsigned below;
    char *found = format_find(path, &below);
    fsdp_status_t status =
        (found != NULL)
            ? open_found(found, below, cat, err)
            : fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);

    free(found);
    return status;
}
