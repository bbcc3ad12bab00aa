/*
 * Entries of directories, beside scandir().
 */
#ifndef FSDP_DIR_H
#define FSDP_DIR_H

#include <dirent.h>
#include <stdbool.h>

/* How many entries are selected; -1 if the directory cannot be read. */
int dir_count(const char *path, int (*select)(const struct dirent *));

/* Is there an entry of a name and type, S_IFREG or S_IFDIR, or a link to one? */
bool dir_has(const char *dir, const char *name, unsigned type);

/* Free what scandir() gave, @a num being what it returned. */
void dir_free(struct dirent **entries, int num);

#endif
