#include "config.h"

#include "lib/util/dir.h"

#include <stdlib.h>

int dir_count(const char *path, int (*select)(const struct dirent *))
{
    struct dirent **entries;
    int num = scandir(path, &entries, select, NULL);

    dir_free(entries, num);
    return num;
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
