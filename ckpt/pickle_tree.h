/*
 * How the values of a pickle lie in memory: 32-bit words, one array.
 *
 * The first word of a value has its kind in the low bits and a number above.
 * A reference is twice the index of that word, or an odd number: a small
 * integer.
 */
#ifndef FSDP_PICKLE_TREE_H
#define FSDP_PICKLE_TREE_H

#include "ckpt/pickle.h"

#define TREE_KIND_BITS 5u
#define TREE_MAX_NUM   (UINT32_MAX >> TREE_KIND_BITS)
#define TREE_MAX_WORDS (1ull << 31) /* as many as references reach */
#define TREE_PAIR      31u          /* state and items of an object */

/* The number of an object says what its last word is, and whether it was made
 * by its class's __new__ instead of a call. */
enum {
    TREE_HAS_STATE = 1,
    TREE_HAS_ITEMS = 2,
    TREE_HAS_BOTH = TREE_HAS_STATE | TREE_HAS_ITEMS,
    TREE_IS_NEW = 4
};

/* References of constants. */
enum { TREE_NONE = 2, TREE_FALSE = 4, TREE_TRUE = 6, TREE_EMPTY_TUPLE = 8 };

struct pickle {
    uint32_t *words;
    uint64_t num, max;
    pickle_ref_t root;
    pickle_ref_t *persids; /* all that there are */
    uint64_t num_persids;

    uint32_t *table; /* strings by their hash; 0: free */
    uint64_t table_size, table_num;

    char *what;
    uint64_t *spent; /* by readers, to whom the rest is constant */
};

/* All that make something return 0 without memory or room for it. */

pickle_t *tree_new(const char *what);
pickle_ref_t tree_int(pickle_t *tree, int64_t value);
pickle_ref_t tree_float(pickle_t *tree, double value);
pickle_ref_t tree_text(pickle_t *tree, pickle_kind_t kind, const void *data,
                       size_t size);
pickle_ref_t tree_tuple(pickle_t *tree, const pickle_ref_t *items,
                        uint64_t num);
pickle_ref_t tree_list(pickle_t *tree, pickle_kind_t kind);
pickle_ref_t tree_node(pickle_t *tree, uint32_t kind, pickle_ref_t a,
                       pickle_ref_t b, unsigned num);
pickle_ref_t tree_object(pickle_t *tree, pickle_ref_t cls, pickle_ref_t args,
                         bool is_new);

/* Append to a list, set or dict (@a num elements: keys and values in turn). */
bool tree_append(pickle_t *tree, pickle_ref_t ref, const pickle_ref_t *items,
                 uint64_t num);

/* The list or dict behind an object, made if there is none; 0 also if it has
 * one of the other kind. */
pickle_ref_t tree_items(pickle_t *tree, pickle_ref_t ref, pickle_kind_t kind);

bool tree_set_state(pickle_t *tree, pickle_ref_t ref, pickle_ref_t state);

/* No more strings are added: free what only the parser needs. */
void tree_finish(pickle_t *tree);

#endif
