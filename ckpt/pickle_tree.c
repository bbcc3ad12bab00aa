#include "config.h"

#include "ckpt/pickle_tree.h"

#include <stdlib.h>
#include <string.h>

enum { INTERN_MAX = 1024, PROBES = 32, TABLE_MIN = 1024 };

/* --- Making --------------------------------------------------------------- */

static uint32_t header(uint32_t kind, uint64_t num)
{
    return kind | (uint32_t)num << TREE_KIND_BITS;
}

/* Room for @a num words; @return the index of the first, 0: none. */
static uint64_t take(pickle_t *tree, uint64_t num)
{
    uint64_t at = tree->num, want;
    uint32_t *larger;

    if (num > TREE_MAX_WORDS - tree->num) {
        return 0;
    }
    if (num > tree->max - tree->num) {
        want = 2 * tree->max;
        if (want < tree->num + num) {
            want = tree->num + num;
        }
        larger = realloc(tree->words, want * sizeof(*larger));
        if (larger == NULL) {
            return 0;
        }
        tree->words = larger;
        tree->max = want;
    }

    tree->num += num;
    return at;
}

/* What readers may make of a pickle: each value has a name, and its text is
 * longer than the value. */
#define SPENT_LEAST (16u << 20)
#define SPENT_TIMES 64

pickle_t *tree_new(const char *what)
{
    pickle_t *tree = calloc(1, sizeof(*tree));

    if (tree == NULL) {
        return NULL;
    }

    tree->max = 256;
    tree->words = calloc(tree->max, sizeof(*tree->words));
    tree->table = calloc(TABLE_MIN, sizeof(*tree->table));
    tree->table_size = TABLE_MIN;
    tree->what = strdup(what);
    tree->spent = calloc(1, sizeof(*tree->spent));
    if (tree->words == NULL || tree->table == NULL || tree->what == NULL ||
        tree->spent == NULL) {
        pickle_free(tree);
        return NULL;
    }

    tree->words[TREE_NONE / 2] = header(PICKLE_NONE, 0);
    tree->words[TREE_FALSE / 2] = header(PICKLE_BOOL, 0);
    tree->words[TREE_TRUE / 2] = header(PICKLE_BOOL, 1);
    tree->words[TREE_EMPTY_TUPLE / 2] = header(PICKLE_TUPLE, 0);
    tree->num = TREE_EMPTY_TUPLE / 2 + 1;
    return tree;
}

void tree_finish(pickle_t *tree)
{
    uint32_t *less;

    free(tree->table);
    tree->table = NULL;
    less = realloc(tree->words, tree->num * sizeof(*less));
    if (less != NULL) {
        tree->words = less;
        tree->max = tree->num;
    }
}

void pickle_free(pickle_t *pickle)
{
    if (pickle != NULL) {
        free(pickle->words);
        free(pickle->table);
        free(pickle->persids);
        free(pickle->what);
        free(pickle->spent);
        free(pickle);
    }
}

static pickle_ref_t tree_64(pickle_t *tree, uint32_t kind, const void *value)
{
    uint64_t at = take(tree, 3);

    if (at == 0) {
        return 0;
    }

    tree->words[at] = header(kind, 0);
    memcpy(tree->words + at + 1, value, 8);
    return (pickle_ref_t)(2 * at);
}

pickle_ref_t tree_int(pickle_t *tree, int64_t value)
{
    if (value >= -(1 << 30) && value < (1 << 30)) {
        return (pickle_ref_t)(int32_t)value << 1 | 1;
    }
    return tree_64(tree, PICKLE_INT, &value);
}

pickle_ref_t tree_float(pickle_t *tree, double value)
{
    return tree_64(tree, PICKLE_FLOAT, &value);
}

/* FNV-1a, finished: the table takes the low bits. */
static uint32_t hash(uint32_t kind, const unsigned char *data, size_t size)
{
    uint32_t h = 2166136261u ^ kind;

    for (size_t i = 0; i < size; i++) {
        h = (h ^ data[i]) * 16777619u;
    }
    h ^= h >> 15;
    h *= 0x2c1b3c6du;
    return h ^ h >> 13;
}

static bool same(const pickle_t *tree, pickle_ref_t ref, pickle_kind_t kind,
                 const void *data, size_t size)
{
    const uint32_t *words = tree->words + ref / 2;

    return words[0] == header((uint32_t)kind, 0) && words[1] == size &&
           memcmp(words + 2, data, size) == 0;
}

/* Twice the table. */
static void grow_table(pickle_t *tree)
{
    uint64_t size = 2 * tree->table_size;
    uint32_t *table = calloc(size, sizeof(*table));

    if (table == NULL) {
        return; /* fewer strings are found again, that is all */
    }

    for (uint64_t i = 0; i < tree->table_size; i++) {
        const uint32_t *words = tree->words + tree->table[i] / 2;
        uint64_t at;

        if (tree->table[i] == 0) {
            continue;
        }
        at = hash(words[0], (const unsigned char *)(words + 2), words[1]);
        for (unsigned n = 0; n < PROBES; n++) {
            uint32_t *slot = &table[(at + n) & (size - 1)];

            if (*slot == 0) {
                *slot = tree->table[i];
                break;
            }
        }
    }

    free(tree->table);
    tree->table = table;
    tree->table_size = size;
}

static pickle_ref_t new_text(pickle_t *tree, pickle_kind_t kind,
                             const void *data, size_t size)
{
    uint64_t at;

    if (size > UINT32_MAX - 8) {
        return 0;
    }
    at = take(tree, 2 + size / 4 + 1); /* one '\0' at least */
    if (at == 0) {
        return 0;
    }

    tree->words[at] = header((uint32_t)kind, 0);
    tree->words[at + 1] = (uint32_t)size;
    tree->words[at + 2 + size / 4] = 0;
    memcpy(tree->words + at + 2, data, size);
    return (pickle_ref_t)(2 * at);
}

pickle_ref_t tree_text(pickle_t *tree, pickle_kind_t kind, const void *data,
                       size_t size)
{
    uint32_t *free_slot = NULL;
    pickle_ref_t ref;
    uint64_t at;

    if (size > INTERN_MAX) {
        return new_text(tree, kind, data, size);
    }

    if (tree->table_num >= tree->table_size / 2) {
        grow_table(tree);
    }
    at = hash(header((uint32_t)kind, 0), data, size);
    for (unsigned n = 0; n < PROBES && free_slot == NULL; n++) {
        uint32_t *slot = &tree->table[(at + n) & (tree->table_size - 1)];

        if (*slot == 0) {
            free_slot = slot;
        } else if (same(tree, *slot, kind, data, size)) {
            return *slot;
        }
    }

    ref = new_text(tree, kind, data, size);
    if (ref != 0 && free_slot != NULL) {
        *free_slot = ref;
        tree->table_num++;
    }
    return ref;
}

pickle_ref_t tree_tuple(pickle_t *tree, const pickle_ref_t *items, uint64_t num)
{
    uint64_t at;

    if (num == 0) {
        return TREE_EMPTY_TUPLE;
    }
    if (num > TREE_MAX_NUM || (at = take(tree, 1 + num)) == 0) {
        return 0;
    }

    tree->words[at] = header(PICKLE_TUPLE, num);
    memcpy(tree->words + at + 1, items, num * sizeof(*items));
    return (pickle_ref_t)(2 * at);
}

/* Words: header, number of references, room for so many, where they are. */
pickle_ref_t tree_list(pickle_t *tree, pickle_kind_t kind)
{
    uint64_t at = take(tree, 4);

    if (at == 0) {
        return 0;
    }

    tree->words[at] = header((uint32_t)kind, 0);
    memset(tree->words + at + 1, 0, 3 * sizeof(*tree->words));
    return (pickle_ref_t)(2 * at);
}

bool tree_append(pickle_t *tree, pickle_ref_t ref, const pickle_ref_t *items,
                 uint64_t num)
{
    uint64_t used = tree->words[ref / 2 + 1], room = tree->words[ref / 2 + 2];
    uint64_t want = used + num, at;

    if (num == 0) {
        return true;
    }
    if (want > room) {
        if (want < 2 * room) {
            want = 2 * room;
        }
        if (want > UINT32_MAX || (at = take(tree, want)) == 0) {
            return false;
        }
        if (used > 0) {
            memcpy(tree->words + at, tree->words + tree->words[ref / 2 + 3],
                   used * sizeof(*items));
        }
        tree->words[ref / 2 + 2] = (uint32_t)want;
        tree->words[ref / 2 + 3] = (uint32_t)at;
    }

    memcpy(tree->words + tree->words[ref / 2 + 3] + used, items,
           num * sizeof(*items));
    tree->words[ref / 2 + 1] = (uint32_t)(used + num);
    return true;
}

pickle_ref_t tree_node(pickle_t *tree, uint32_t kind, pickle_ref_t a,
                       pickle_ref_t b, unsigned num)
{
    uint64_t at = take(tree, 3);

    if (at == 0) {
        return 0;
    }

    tree->words[at] = header(kind, num);
    tree->words[at + 1] = a;
    tree->words[at + 2] = b;
    return (pickle_ref_t)(2 * at);
}

pickle_ref_t tree_object(pickle_t *tree, pickle_ref_t cls, pickle_ref_t args,
                         bool is_new)
{
    uint64_t at = take(tree, 4);

    if (at == 0) {
        return 0;
    }

    tree->words[at] = header(PICKLE_OBJECT, is_new ? TREE_IS_NEW : 0);
    tree->words[at + 1] = cls;
    tree->words[at + 2] = args;
    tree->words[at + 3] = 0;
    return (pickle_ref_t)(2 * at);
}

/* Give an object a state or items beside what it has. */
static bool set_part(pickle_t *tree, pickle_ref_t ref, unsigned part,
                     pickle_ref_t value)
{
    unsigned num = tree->words[ref / 2] >> TREE_KIND_BITS;
    unsigned has = num & TREE_HAS_BOTH;
    pickle_ref_t pair = tree->words[ref / 2 + 3];

    if (has == 0 || has == part) {
        tree->words[ref / 2] = header(PICKLE_OBJECT, num | part);
        tree->words[ref / 2 + 3] = value;
        return true;
    }

    if (has != TREE_HAS_BOTH) {
        pair = tree_node(tree, TREE_PAIR, pair, pair, 0);
        if (pair == 0) {
            return false;
        }
        tree->words[ref / 2] = header(PICKLE_OBJECT, num | TREE_HAS_BOTH);
        tree->words[ref / 2 + 3] = pair;
    }
    tree->words[pair / 2 + part] = value;
    return true;
}

static pickle_ref_t get_part(const pickle_t *tree, pickle_ref_t ref,
                             unsigned part)
{
    unsigned has;

    if (pickle_kind(tree, ref) != PICKLE_OBJECT) {
        return 0;
    }

    has = (tree->words[ref / 2] >> TREE_KIND_BITS) & TREE_HAS_BOTH;
    if (has == part) {
        return tree->words[ref / 2 + 3];
    }
    return (has == TREE_HAS_BOTH)
               ? tree->words[tree->words[ref / 2 + 3] / 2 + part]
               : 0;
}

bool tree_set_state(pickle_t *tree, pickle_ref_t ref, pickle_ref_t state)
{
    return set_part(tree, ref, TREE_HAS_STATE, state);
}

pickle_ref_t tree_items(pickle_t *tree, pickle_ref_t ref, pickle_kind_t kind)
{
    pickle_ref_t items = get_part(tree, ref, TREE_HAS_ITEMS);

    if (items != 0) {
        return (pickle_kind(tree, items) == kind) ? items : 0;
    }

    items = tree_list(tree, kind);
    return (items != 0 && set_part(tree, ref, TREE_HAS_ITEMS, items)) ? items
                                                                      : 0;
}

/* --- Looking -------------------------------------------------------------- */

pickle_ref_t pickle_root(const pickle_t *pickle)
{
    return pickle->root;
}

pickle_ref_t pickle_persid(const pickle_t *pickle, uint64_t i)
{
    return (i < pickle->num_persids) ? pickle->persids[i] : 0;
}

uint64_t pickle_memory(const pickle_t *pickle)
{
    return sizeof(*pickle) + pickle->max * sizeof(*pickle->words);
}

const char *pickle_what(const pickle_t *pickle)
{
    return pickle->what;
}

bool pickle_spend(const pickle_t *pickle, uint64_t bytes)
{
    uint64_t most = SPENT_LEAST + SPENT_TIMES * pickle_memory(pickle);

    *pickle->spent += (bytes < most) ? bytes : most;
    return *pickle->spent < most;
}

pickle_kind_t pickle_kind(const pickle_t *pickle, pickle_ref_t ref)
{
    if ((ref & 1) != 0) {
        return PICKLE_INT;
    }
    return (ref == 0) ? PICKLE_ABSENT
                      : (pickle_kind_t)(pickle->words[ref / 2] &
                                        ((1u << TREE_KIND_BITS) - 1));
}

bool pickle_int(const pickle_t *pickle, pickle_ref_t ref, int64_t *value_p)
{
    if ((ref & 1) != 0) {
        *value_p = (int32_t)ref >> 1;
        return true;
    }
    if (pickle_kind(pickle, ref) == PICKLE_INT) {
        memcpy(value_p, pickle->words + ref / 2 + 1, sizeof(*value_p));
        return true;
    }
    if (pickle_kind(pickle, ref) == PICKLE_BOOL) {
        *value_p = ref == TREE_TRUE;
        return true;
    }

    return false;
}

bool pickle_u64(const pickle_t *pickle, pickle_ref_t ref, uint64_t *value_p)
{
    int64_t value;

    if (!pickle_int(pickle, ref, &value) || value < 0) {
        return false;
    }

    *value_p = (uint64_t)value;
    return true;
}

bool pickle_float(const pickle_t *pickle, pickle_ref_t ref, double *value_p)
{
    if (pickle_kind(pickle, ref) != PICKLE_FLOAT) {
        return false;
    }

    memcpy(value_p, pickle->words + ref / 2 + 1, sizeof(*value_p));
    return true;
}

static const void *text(const pickle_t *pickle, pickle_ref_t ref,
                        size_t *size_p)
{
    const uint32_t *words = pickle->words + ref / 2;

    if (size_p != NULL) {
        *size_p = words[1];
    }
    return words + 2;
}

const char *pickle_str(const pickle_t *pickle, pickle_ref_t ref, size_t *size_p)
{
    return (pickle_kind(pickle, ref) == PICKLE_STR) ? text(pickle, ref, size_p)
                                                    : NULL;
}

const unsigned char *pickle_bytes(const pickle_t *pickle, pickle_ref_t ref,
                                  size_t *size_p)
{
    pickle_kind_t kind = pickle_kind(pickle, ref);

    return (kind == PICKLE_BYTES || kind == PICKLE_LONG)
               ? text(pickle, ref, size_p)
               : NULL;
}

uint64_t pickle_count(const pickle_t *pickle, pickle_ref_t ref)
{
    switch (pickle_kind(pickle, ref)) {
    case PICKLE_TUPLE:
        return pickle->words[ref / 2] >> TREE_KIND_BITS;
    case PICKLE_LIST:
    case PICKLE_SET:
        return pickle->words[ref / 2 + 1];
    case PICKLE_DICT:
        return pickle->words[ref / 2 + 1] / 2;
    default:
        return 0;
    }
}

pickle_ref_t pickle_item(const pickle_t *pickle, pickle_ref_t ref, uint64_t i)
{
    if (i >= pickle_count(pickle, ref)) {
        return 0;
    }

    switch (pickle_kind(pickle, ref)) {
    case PICKLE_TUPLE:
        return pickle->words[ref / 2 + 1 + i];
    case PICKLE_DICT:
        return pickle->words[pickle->words[ref / 2 + 3] + 2 * i + 1];
    default:
        return pickle->words[pickle->words[ref / 2 + 3] + i];
    }
}

pickle_ref_t pickle_key(const pickle_t *pickle, pickle_ref_t ref, uint64_t i)
{
    return (pickle_kind(pickle, ref) == PICKLE_DICT &&
            i < pickle_count(pickle, ref))
               ? pickle->words[pickle->words[ref / 2 + 3] + 2 * i]
               : 0;
}

pickle_ref_t pickle_class(const pickle_t *pickle, pickle_ref_t ref)
{
    return (pickle_kind(pickle, ref) == PICKLE_OBJECT)
               ? pickle->words[ref / 2 + 1]
               : 0;
}

pickle_ref_t pickle_args(const pickle_t *pickle, pickle_ref_t ref)
{
    switch (pickle_kind(pickle, ref)) {
    case PICKLE_OBJECT:
        return pickle->words[ref / 2 + 2];
    case PICKLE_PERSID:
        return pickle->words[ref / 2 + 1];
    default:
        return 0;
    }
}

bool pickle_is_new(const pickle_t *pickle, pickle_ref_t ref)
{
    return pickle_kind(pickle, ref) == PICKLE_OBJECT &&
           ((pickle->words[ref / 2] >> TREE_KIND_BITS) & TREE_IS_NEW) != 0;
}

pickle_ref_t pickle_state(const pickle_t *pickle, pickle_ref_t ref)
{
    return get_part(pickle, ref, TREE_HAS_STATE);
}

pickle_ref_t pickle_items(const pickle_t *pickle, pickle_ref_t ref)
{
    return get_part(pickle, ref, TREE_HAS_ITEMS);
}

pickle_ref_t pickle_arg(const pickle_t *pickle, pickle_ref_t ref, uint64_t i)
{
    return pickle_item(pickle, pickle_args(pickle, ref), i);
}

static const char *global_part(const pickle_t *pickle, pickle_ref_t ref,
                               unsigned part)
{
    return (pickle_kind(pickle, ref) == PICKLE_GLOBAL)
               ? pickle_str(pickle, pickle->words[ref / 2 + part], NULL)
               : NULL;
}

const char *pickle_module(const pickle_t *pickle, pickle_ref_t ref)
{
    return global_part(pickle, ref, 1);
}

const char *pickle_name(const pickle_t *pickle, pickle_ref_t ref)
{
    return global_part(pickle, ref, 2);
}

const char *pickle_last_name(const pickle_t *pickle, pickle_ref_t ref)
{
    const char *name, *dot;

    if (pickle_kind(pickle, ref) == PICKLE_OBJECT) {
        ref = pickle_class(pickle, ref);
    }
    name = pickle_name(pickle, ref);
    if (name == NULL) {
        return "";
    }

    dot = strrchr(name, '.');
    return (dot != NULL) ? dot + 1 : name;
}

bool pickle_is(const pickle_t *pickle, pickle_ref_t ref, const char *name)
{
    return strcmp(pickle_last_name(pickle, ref), name) == 0;
}

pickle_ref_t pickle_as_dict(const pickle_t *pickle, pickle_ref_t ref)
{
    static const char *const classes[] = {"OrderedDict", "defaultdict",
                                          "Counter", "dict"};
    pickle_ref_t items;

    if (pickle_kind(pickle, ref) != PICKLE_OBJECT) {
        return (pickle_kind(pickle, ref) == PICKLE_DICT) ? ref : 0;
    }

    items = pickle_items(pickle, ref);
    if (pickle_kind(pickle, items) == PICKLE_DICT) {
        return items;
    }
    for (size_t i = 0; i < sizeof(classes) / sizeof(*classes); i++) {
        if (pickle_is(pickle, ref, classes[i])) {
            return ref; /* without a pair: pickle_count() is 0 */
        }
    }

    return 0;
}

pickle_ref_t pickle_get(const pickle_t *pickle, pickle_ref_t ref,
                        const char *key)
{
    pickle_ref_t dict = pickle_as_dict(pickle, ref);
    size_t size = strlen(key), key_size;

    for (uint64_t i = pickle_count(pickle, dict); i > 0; i--) {
        const char *name =
            pickle_str(pickle, pickle_key(pickle, dict, i - 1), &key_size);

        if (name != NULL && key_size == size && memcmp(name, key, size) == 0) {
            return pickle_item(pickle, dict, i - 1);
        }
    }

    return 0;
}

pickle_ref_t pickle_attr(const pickle_t *pickle, pickle_ref_t ref,
                         const char *name)
{
    pickle_ref_t state = pickle_state(pickle, ref), value;

    if (pickle_kind(pickle, state) == PICKLE_TUPLE &&
        pickle_count(pickle, state) == 2) {
        value = pickle_get(pickle, pickle_item(pickle, state, 1), name);
        return (value != 0)
                   ? value
                   : pickle_get(pickle, pickle_item(pickle, state, 0), name);
    }
    return pickle_get(pickle, state, name);
}

bool pickle_u64s(const pickle_t *pickle, pickle_ref_t ref, uint64_t *values,
                 uint32_t most, uint32_t *num_p)
{
    pickle_kind_t kind;
    uint64_t num;

    if (pickle_kind(pickle, ref) == PICKLE_OBJECT &&
        pickle_is(pickle, ref, "Size")) {
        ref = pickle_arg(pickle, ref, 0);
    }
    kind = pickle_kind(pickle, ref);
    num = pickle_count(pickle, ref);
    if ((kind != PICKLE_TUPLE && kind != PICKLE_LIST) || num > most) {
        return false;
    }

    for (uint64_t i = 0; i < num; i++) {
        if (!pickle_u64(pickle, pickle_item(pickle, ref, i), &values[i])) {
            return false;
        }
    }
    *num_p = (uint32_t)num;
    return true;
}
