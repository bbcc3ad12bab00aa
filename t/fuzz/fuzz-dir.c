/*
 * Fuzz target: a directory of any format, used as a checkpoint.
 *
 * The input is its files, each after a line "@@ NAME"; t/fuzz/pack.c makes it
 * of a directory.  Those named .recipe and .manifest are no part of it.
 */
#include "config.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "t/fuzz/fuzz.h"

#define MARK "\n@@ "

enum { MOST_FILES = 64, NAME = 100 };

static char top[FUZZ_PATH];
static char names[MOST_FILES][NAME];
static size_t num_names;

static void remove_top(void)
{
    rmdir(top);
}

static bool good_name(const char *name)
{
    return name[0] != '\0' && name[0] != '/' && strstr(name, "..") == NULL &&
           name[strspn(name, "abcdefghijklmnopqrstuvwxyz"
                             "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/")] ==
               '\0';
}

static void make_parents(char *path)
{
    for (char *slash = strchr(path + strlen(top) + 1, '/'); slash != NULL;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
}

static void write_one(const char *name, const uint8_t *data, size_t size)
{
    char path[sizeof(top) + NAME];
    int fd;

    if (num_names == MOST_FILES || !good_name(name)) {
        return;
    }
    snprintf(path, sizeof(path), "%s/%s", top, name);
    make_parents(path);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0) {
        return; /* the name is that of a directory */
    }
    if (write(fd, data, size) != (ssize_t)size) {
        abort();
    }
    close(fd);
    snprintf(names[num_names++], NAME, "%s", name);
}

/* Inputs are independent of each other. */
static void remove_all(void)
{
    char path[sizeof(top) + NAME], *slash;

    while (num_names > 0) {
        snprintf(path, sizeof(path), "%s/%s", top, names[--num_names]);
        unlink(path);
        while ((slash = strrchr(path, '/')) > path + strlen(top)) {
            *slash = '\0';
            rmdir(path);
        }
    }
}

static void write_all(const uint8_t *data, size_t size)
{
    const uint8_t *end = data + size, *next, *line;
    char name[NAME];

    for (; data < end; data = next) {
        next = memmem(data, (size_t)(end - data), MARK, strlen(MARK));
        next = (next != NULL) ? next + 1 : end;
        line = memchr(data, '\n', (size_t)(next - data));
        if (line == NULL || line - data < 4 || line - data >= NAME ||
            memcmp(data, &MARK[1], 3) != 0) {
            continue;
        }
        snprintf(name, sizeof(name), "%.*s", (int)(line - data - 3), data + 3);
        line++;
        /* The line end before the next mark is the mark's. */
        write_one(name, line,
                  (size_t)(next - line) - (next < end && next > line));
    }
}

static const char *beside(const char *name, char path[2 * FUZZ_PATH])
{
    snprintf(path, 2 * FUZZ_PATH, "%s/%s", top, name);
    return (access(path, F_OK) == 0) ? path : NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char recipe[2 * FUZZ_PATH], manifest[2 * FUZZ_PATH];

    if (top[0] == '\0') {
        snprintf(top, sizeof(top), "%s/fuzz-XXXXXX", fuzz_top());
        if (mkdtemp(top) == NULL) {
            abort();
        }
        atexit(remove_top);
    }

    write_all(data, size);
    fuzz_use(top, beside(".recipe", recipe), beside(".manifest", manifest));
    remove_all();
    return 0;
}
