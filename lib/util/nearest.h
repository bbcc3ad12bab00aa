/*
 * What someone most likely meant whose name or pattern fits nothing.
 */
#ifndef FSDP_NEAREST_H
#define FSDP_NEAREST_H

#include <stddef.h>

#define NEAREST_TEXT_MAX 160

typedef struct {
    const char *pattern; /* as fnmatch() takes it; what else it has is 0 */
    const char *name;    /* the best of those that were tried; borrowed */
    size_t distance;     /* characters to change, add or take away */
} nearest_t;

/* Try a name, with its kind "model/" and without. */
void nearest_try(nearest_t *nearest, const char *name);

/* ": did you mean 'NAME'?", or nothing where none is near. */
const char *nearest_text(const nearest_t *nearest, char text[NEAREST_TEXT_MAX]);

#endif
