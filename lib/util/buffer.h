/*
 * Bytes that are put together.
 */
#ifndef FSDP_BUFFER_H
#define FSDP_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

/* All zero: empty. */
typedef struct {
    char *data;
    size_t size, max;
    bool failed; /* there was no memory: not all is in it */
} buffer_t;

/* Put @a size bytes behind the others; @a data may be NULL for none. */
void buffer_add(buffer_t *buffer, const void *data, size_t size);

/* Leaves it empty. */
void buffer_free(buffer_t *buffer);

#endif
