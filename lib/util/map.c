#include "config.h"

#include "lib/util/map.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    char *key; /* NULL: free */
    size_t size;
    uint64_t hash, value;
} slot_t;

/* FNV-1a of eight bytes at a time, finished. */
static uint64_t hash_of(const void *key, size_t size)
{
    const unsigned char *data = key;
    uint64_t hash = 0xcbf29ce484222325u ^ size, word;

    for (; size >= 8; size -= 8, data += 8) {
        memcpy(&word, data, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
    }
    for (; size > 0; size--, data++) {
        hash = (hash ^ *data) * 0x100000001b3u;
    }
    hash ^= hash >> 29;
    hash *= 0xbf58476d1ce4e5b9u;
    return hash ^ hash >> 32;
}

void map_free(map_t *map)
{
    slot_t *slots = map->slots;

    for (uint64_t i = 0; i < map->size; i++) {
        free(slots[i].key);
    }
    free(slots);
    *map = (map_t){0};
}

/* Where a key is, or would be. */
static slot_t *find(const map_t *map, const void *key, size_t size,
                    uint64_t hash)
{
    slot_t *slots = map->slots, *slot;

    for (uint64_t at = hash & (map->size - 1);;
         at = (at + 1) & (map->size - 1)) {
        slot = &slots[at];
        if (slot->key == NULL || (slot->hash == hash && slot->size == size &&
                                  memcmp(slot->key, key, size) == 0)) {
            return slot;
        }
    }
}

bool map_get(const map_t *map, const void *key, size_t size, uint64_t *value_p)
{
    const slot_t *slot;

    if (map->num == 0) {
        return false;
    }

    slot = find(map, key, size, hash_of(key, size));
    if (slot->key == NULL) {
        return false;
    }
    *value_p = slot->value;
    return true;
}

static bool grow(map_t *map)
{
    map_t larger = {.size = (map->size == 0) ? 64 : 2 * map->size};
    slot_t *slots = map->slots;

    larger.slots = calloc(larger.size, sizeof(*slots));
    if (larger.slots == NULL) {
        return false;
    }
    for (uint64_t i = 0; i < map->size; i++) {
        if (slots[i].key != NULL) {
            *find(&larger, slots[i].key, slots[i].size, slots[i].hash) =
                slots[i];
        }
    }

    larger.num = map->num;
    free(slots);
    *map = larger;
    return true;
}

bool map_put(map_t *map, const void *key, size_t size, uint64_t value)
{
    uint64_t hash = hash_of(key, size);
    slot_t *slot;

    if (map->num >= map->size / 2 && !grow(map)) {
        return false;
    }

    slot = find(map, key, size, hash);
    if (slot->key == NULL) {
        char *copy = malloc(size + 1);

        if (copy == NULL) {
            return false;
        }
        memcpy(copy, key, size);
        *slot = (slot_t){.key = copy, .size = size, .hash = hash};
        map->num++;
    }
    slot->value = value;
    return true;
}
