#include "config.h"

#include "lib/util/dir.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "lib/util/io.h"

int dir_count(const char *path, int (*select)(const struct dirent *))
{
    struct dirent **entries;
    int num = scandir(path, &entries, select, NULL);

    dir_free(entries, num);
    return num;
}

bool dir_has(const char *dir, const char *name, unsigned type)
{
    char *path = io_path("%s/%s", dir, name);
    struct stat st;
    bool has =
        path != NULL && stat(path, &st) == 0 && (st.st_mode & S_IFMT) == type;

    free(path);
    return has;
}

void dir_free(struct dirent **entries, int num)
{
    for (int i = 0; i < num; i++) {
        free(entries[i]);
    }
    if (num >= 0) {
        free(entries);
    }
}
