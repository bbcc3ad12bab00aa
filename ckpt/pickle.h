/*
 * Python pickles, parsed and never executed.
 *
 * A pickle of protocol 0 to 5 becomes a tree of values.  What Python would
 * call stays a node: the class or function by its name, its arguments, its
 * state.  Values may be shared, and a hostile pickle may even contain itself:
 * who walks the tree bounds depth and the number of steps.
 *
 * A value is a 32-bit reference; small integers are in the reference itself.
 * Equal short strings are one.  Memory is bounded by the bytes of the input:
 * about 2.2 bytes for each byte of a DCP .metadata, at most 40.
 */
#ifndef FSDP_PICKLE_H
#define FSDP_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/util/fsdp_status.h"

typedef struct pickle pickle_t;

/* A value of one pickle; 0 is none at all, and every accessor takes it. */
typedef uint32_t pickle_ref_t;

typedef enum {
    PICKLE_ABSENT = 0, /* of the reference 0 */
    PICKLE_NONE,
    PICKLE_BOOL,
    PICKLE_INT,  /* fits in 64 bits */
    PICKLE_LONG, /* does not: pickle_bytes() has it, little-endian, signed */
    PICKLE_FLOAT,
    PICKLE_STR,   /* UTF-8, checked by nobody */
    PICKLE_BYTES, /* bytes and bytearray */
    PICKLE_TUPLE,
    PICKLE_LIST,
    PICKLE_DICT, /* in the order of insertion */
    PICKLE_SET,  /* set and frozenset of protocol 4 */
    PICKLE_GLOBAL,
    PICKLE_OBJECT, /* NEWOBJ and REDUCE: class, args, state, items */
    PICKLE_PERSID  /* pickle_args() is its id */
} pickle_kind_t;

/**
 * Parse one pickle; bytes behind its end are left alone.
 *
 * @param what    Named in errors: the file, or the entry in it.
 * @param used_p  Bytes of the pickle; may be NULL.
 *
 * @return FSDP_ERR_CORRUPT with the byte where it does not make sense,
 *         FSDP_ERR_UNSUPPORTED for out-of-band buffers and extension codes,
 *         FSDP_ERR_NO_MEMORY.
 */
fsdp_status_t pickle_parse(const void *data, size_t size, const char *what,
                           pickle_t **pickle_p, uint64_t *used_p,
                           fsdp_error_t *err);

/* The same from bytes [offset, offset + length) of a file, which is read in
 * small windows. */
fsdp_status_t pickle_parse_file(int fd, uint64_t offset, uint64_t length,
                                const char *what, pickle_t **pickle_p,
                                uint64_t *used_p, fsdp_error_t *err);

/* NULL is allowed. */
void pickle_free(pickle_t *pickle);

pickle_ref_t pickle_root(const pickle_t *pickle);

/* The PICKLE_PERSIDs, wherever they are, in their order; 0 behind the last. */
pickle_ref_t pickle_persid(const pickle_t *pickle, uint64_t i);

/* Bytes of memory that it holds. */
uint64_t pickle_memory(const pickle_t *pickle);

/* What it was named in errors. */
const char *pickle_what(const pickle_t *pickle);

/**
 * Count memory that is made of it: a pickle may refer to one value from many
 * places, and to those from many again.
 *
 * @return false if all that was counted is more than its size explains.
 */
bool pickle_spend(const pickle_t *pickle, uint64_t bytes);

/*
 * Looking.  None of them fails: the wrong kind is false, 0 or NULL.  Pointers
 * are borrowed until pickle_free().
 */

pickle_kind_t pickle_kind(const pickle_t *pickle, pickle_ref_t ref);

/* PICKLE_INT, and PICKLE_BOOL as 0 and 1. */
bool pickle_int(const pickle_t *pickle, pickle_ref_t ref, int64_t *value_p);

/* The same, not negative. */
bool pickle_u64(const pickle_t *pickle, pickle_ref_t ref, uint64_t *value_p);

bool pickle_float(const pickle_t *pickle, pickle_ref_t ref, double *value_p);

/* PICKLE_STR, '\0' behind it; it may hold others (@a size_p, may be NULL). */
const char *pickle_str(const pickle_t *pickle, pickle_ref_t ref,
                       size_t *size_p);

/* PICKLE_BYTES and PICKLE_LONG. */
const unsigned char *pickle_bytes(const pickle_t *pickle, pickle_ref_t ref,
                                  size_t *size_p);

/* Elements of a tuple, list or set, pairs of a dict; else 0. */
uint64_t pickle_count(const pickle_t *pickle, pickle_ref_t ref);

/* Element @a i of a tuple, list or set, value @a i of a dict; 0 behind the
 * end. */
pickle_ref_t pickle_item(const pickle_t *pickle, pickle_ref_t ref, uint64_t i);

/* Key @a i of a dict. */
pickle_ref_t pickle_key(const pickle_t *pickle, pickle_ref_t ref, uint64_t i);

/* A dict, or what an OrderedDict, defaultdict and their like were filled with
 * (an object without items: an empty dict); 0 for what has no items of that
 * kind. */
pickle_ref_t pickle_as_dict(const pickle_t *pickle, pickle_ref_t ref);

/* The last value of a string key, in what pickle_as_dict() takes. */
pickle_ref_t pickle_get(const pickle_t *pickle, pickle_ref_t ref,
                        const char *key);

/* Of an object: the class or function, which is a PICKLE_GLOBAL or what else
 * stands there, the arguments, the state of BUILD (or 0), and what was
 * appended or set (a list, a dict, or 0). */
pickle_ref_t pickle_class(const pickle_t *pickle, pickle_ref_t ref);
pickle_ref_t pickle_args(const pickle_t *pickle, pickle_ref_t ref);
pickle_ref_t pickle_state(const pickle_t *pickle, pickle_ref_t ref);
pickle_ref_t pickle_items(const pickle_t *pickle, pickle_ref_t ref);

/* An object that was made without a call of its class. */
bool pickle_is_new(const pickle_t *pickle, pickle_ref_t ref);

/* Argument @a i of an object. */
pickle_ref_t pickle_arg(const pickle_t *pickle, pickle_ref_t ref, uint64_t i);

/* An attribute by name, from the state of an object: a dict, or the pair
 * (dict or None, dict) of classes with slots. */
pickle_ref_t pickle_attr(const pickle_t *pickle, pickle_ref_t ref,
                         const char *name);

/* The two parts of a PICKLE_GLOBAL; NULL for another kind. */
const char *pickle_module(const pickle_t *pickle, pickle_ref_t ref);
const char *pickle_name(const pickle_t *pickle, pickle_ref_t ref);

/* The last component of the name of a global, or of an object's class
 * ("ShardedTensorMetadata"); "" where there is none. */
const char *pickle_last_name(const pickle_t *pickle, pickle_ref_t ref);

/* pickle_last_name() is @a name. */
bool pickle_is(const pickle_t *pickle, pickle_ref_t ref, const char *name);

/**
 * Integers of a tuple or list, or of a torch.Size.
 *
 * @param most   Room in @a values.
 * @param num_p  Their number.
 *
 * @return false if it is none, has more, or one is negative.
 */
bool pickle_u64s(const pickle_t *pickle, pickle_ref_t ref, uint64_t *values,
                 uint32_t most, uint32_t *num_p);

#endif
