/*
 * Values that are no tensors, as JSON.
 *
 * JSON has no form for much of what Python keeps in a state dict, so:
 *
 *     {"$tuple": [a, …]}   {"$set": [a, …]}   {"$size": [n, …]}  torch.Size
 *     {"$bytes_hex": "00ff"}                  bytes and bytearrays
 *     {"$float": "nan"}    "inf", "-inf"
 *     {"$dict": [[key, value], …]}            a dict with keys that are no
 *                                             texts, or begin with '$'
 *     {"$repr": "device(type='cpu')", "$class": "torch.device"}  any other
 *     {"$class": "module.Class", "$new": true, "$args": …, "$state": …,
 *      "$items": …}        an object, and what it is made of: "$new" if by
 *                          Class.__new__, else by a call; then state is set,
 *                          items are appended or set.  What is not there was
 *                          not used.  "module:Outer.Class" of nested classes
 *     {"$tensor": "NAME"}  a tensor of the catalog;
 *     {"$tensor": {"shape": […], "dtype": "float32", "sha256": "…"}}
 *                          a tensor, in the manifest of fsdp-verify
 *
 *     {"$unread": "why"}   what is in the file and is not read here
 *
 * Integers may have any number of digits; floats have a point or an exponent
 * (3.0 is no 3).  Manifests have all keys as texts: the integer key 3 is "3".
 */
#ifndef FSDP_VALUE_H
#define FSDP_VALUE_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

#include "ckpt/catalog.h"

/**
 * Parse JSON text, in which integers of more than 18 digits become
 * {"$int": "digits"}: jansson has 64-bit integers.
 *
 * @param what  Whose text it is, for messages.
 *
 * @return FSDP_ERR_CORRUPT.
 */
fsdp_status_t value_parse(const char *what, const char *text, size_t size,
                          json_t **value_p, fsdp_error_t *err);

/* JSON text of a value that value_parse() gave; the caller frees it; NULL: no
 * memory. */
char *value_text(const json_t *value);

/* Called for the name of each tensor inside a value, which it may change. */
typedef fsdp_status_t (*value_visit_f)(json_t *name, void *arg,
                                       fsdp_error_t *err);

/* Visit them in order; an error ends it. */
fsdp_status_t value_visit_tensors(json_t *value, value_visit_f visit, void *arg,
                                  fsdp_error_t *err);

/* Why something in a value was not read, or NULL: it was.  Borrowed. */
const char *value_unread(const json_t *value);

/* A number that is known by this name: an integer value, or one of the model's
 * configuration (config.json).
 * @return false: there is none, or it is negative. */
bool value_number(const catalog_t *cat, const char *name, uint64_t *number_p);

/* All values of a catalog as one JSON object, for json_decref(); NULL: no
 * memory.  Long integers are wrapped as value_parse() does. */
json_t *value_all(const catalog_t *cat);

/* Add the members of an object that value_all() made. */
fsdp_status_t value_add_all(catalog_t *cat, const json_t *values,
                            fsdp_error_t *err);

/**
 * Values as a state dict that is taken apart has them: for a dict its members,
 * NAME.KEY, for a list that holds dicts or tensors its elements, NAME.INDEX.
 * Tensors are left out.
 *
 * @param values  An object, as value_all() made it.
 *
 * @return NULL: no memory.
 */
json_t *value_flat(const json_t *values);

/* The two inside "$tensor"; NULL: those are equal if their JSON is. */
typedef bool (*value_tensor_f)(const json_t *a, const json_t *b, void *arg);

/* Equal by what they say: the order of keys and of a set's members does not
 * matter, NaN equals NaN, 3 is not 3.0; of two of an unknown class, one
 * without "$repr" equals any; what was not read equals nothing. */
bool value_equal(const json_t *a, const json_t *b, value_tensor_f tensor,
                 void *arg);

#endif
