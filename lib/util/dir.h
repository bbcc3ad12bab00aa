/*
 * Entries of directories, beside scandir().
 */
#ifndef FSDP_DIR_H
#define FSDP_DIR_H

#include <dirent.h>

/* How many entries are selected; -1 if the directory cannot be read. */
int dir_count(const char *path, int (*select)(const struct dirent *));

/* Free what scandir() gave, @a num being what it returned. */
void dir_free(struct dirent **entries, int num);

#endif
