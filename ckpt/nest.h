/*
 * How a state dict was nested whose dotted names a catalog has.
 *
 * A name does not tell which of its dots part keys, which keys are integers,
 * what is a list.  Readers of formats that know note each container; it goes
 * along in the catalog's metadata, as "nesting", by the container's name:
 *
 *     {"": {"is": "OrderedDict"}, "state": {"keys": "int"},
 *      "state.0": {"key": 0}, "groups": {"is": "list"}}
 *
 * Of one: "is", unless it is a dict ("leaf": the root is the one tensor or
 * value that there is); "keys", unless they are texts: "int" are integers where
 * they look so, "other" are not known; "key", unless it is the text behind the
 * last dot; "_metadata" of an OrderedDict, as value.h writes it.  What is in
 * none of them is a key of the root, dots and all.
 */
#ifndef FSDP_NEST_H
#define FSDP_NEST_H

#include <jansson.h>

#include "ckpt/catalog.h"
#include "lib/util/map.h"

#define NEST_KEY        "nesting" /* in the metadata */
#define NEST_KEYS_INT   "int"
#define NEST_KEYS_OTHER "other"

typedef enum { NEST_DICT, NEST_ORDERED, NEST_LIST, NEST_LEAF } nest_is_t;

/* "list", as "is" has it; NULL: that is left out. */
const char *nest_is_text(nest_is_t is);

/* Put what was noted of a checkpoint's containers into its metadata, unless
 * that tells nothing: keeps @a notes as it is. */
fsdp_status_t nest_keep(catalog_t *cat, const json_t *notes, fsdp_error_t *err);

typedef enum { NEST_TENSOR, NEST_ALIAS, NEST_VALUE } nest_leaf_t;

#define NEST_NONE UINT32_MAX

/* A container or a leaf; the first one is the root. */
typedef struct {
    const char *name; /* of a container; its key is the end of it */
    const char *key;  /* in its parent; not ended by '\0' */
    uint32_t key_size;
    bool key_is_int;
    bool ints;    /* what looks like an integer in it is one */
    uint8_t is;   /* nest_is_t */
    uint8_t leaf; /* nest_leaf_t */
    uint32_t parent;
    uint32_t first, last; /* child, or NEST_NONE */
    uint32_t next;        /* of the same parent */
    uint32_t num;         /* children */
    uint64_t index;       /* of a leaf, in the catalog */
    const json_t *metadata;
} nest_node_t;

typedef struct {
    const catalog_t *cat;
    nest_node_t *nodes;
    uint32_t num, max;
    map_t containers; /* names to nodes */
    map_t notes;      /* names to what is noted */
    map_t holders;    /* names of values that hold tensors, to indexes */
    map_t inner;      /* which tensors those hold */
    json_t *meta;     /* that holds it */
} nest_t;

/**
 * The tree of all that a sealed catalog holds: tensors in the order of the
 * writer, other names, values.  What lies inside a value is not in it.
 *
 * @param nest_p  The caller frees it.  Names are those of the catalog.
 *
 * @return FSDP_ERR_CORRUPT if what was noted makes no sense,
 *         FSDP_ERR_UNSUPPORTED if a list has lost some of its elements, a
 *         dict has other keys, or something has the name of a container.
 */
fsdp_status_t nest_make(const catalog_t *cat, nest_t *nest_p,
                        fsdp_error_t *err);

void nest_free(nest_t *nest);

#endif
