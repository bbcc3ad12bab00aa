/*
 * A table from byte strings to numbers.
 */
#ifndef FSDP_MAP_H
#define FSDP_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    void *slots;
    uint64_t num, size;
} map_t; /* zeroed: empty */

/* Frees what it holds, not @a map. */
void map_free(map_t *map);

/* @return false if it is not there. */
bool map_get(const map_t *map, const void *key, size_t size, uint64_t *value_p);

/* Add, or replace.  The key is copied.  @return false without memory. */
bool map_put(map_t *map, const void *key, size_t size, uint64_t value);

#endif
