#include "config.h"

#include "ckpt/nest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/value.h"
#include "lib/util/check.h"
#include "lib/util/json_text.h"

enum { DEPTH_MOST = 100 };

static const char *const texts[] = {
    [NEST_DICT] = NULL,
    [NEST_ORDERED] = "OrderedDict",
    [NEST_LIST] = "list",
    [NEST_LEAF] = "leaf",
};

const char *nest_is_text(nest_is_t is)
{
    return texts[is];
}

fsdp_status_t nest_keep(catalog_t *cat, const json_t *notes, fsdp_error_t *err)
{
    const json_t *root = json_object_get(notes, "");
    bool plain = json_object_size(notes) == (root != NULL) &&
                 json_object_size(root) == 0;
    json_t *meta = plain ? NULL : json_text_parse(cat->meta);
    char *text = NULL;

    if (plain) {
        return FSDP_OK;
    }
    if (json_object_set(meta, NEST_KEY, (json_t *)notes) == 0) {
        text = json_dumps(meta, JSON_COMPACT | json_text_digits(meta));
    }
    cat->meta = (text != NULL) ? catalog_strdup(cat, text) : NULL;
    free(text);
    json_decref(meta);
    if (cat->meta == NULL) {
        cat->meta = "{}";
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              cat->path);
    }
    return FSDP_OK;
}

static fsdp_status_t no_memory(const nest_t *nest, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                          nest->cat->path);
}

static fsdp_status_t bad(const nest_t *nest, const char *name, size_t size,
                         fsdp_error_t *err)
{
    errno = 0;
    return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                          "%s: its metadata: what is noted under \"" NEST_KEY
                          "\" about '%.*s' makes no sense",
                          nest->cat->path, (int)size, name);
}

void nest_free(nest_t *nest)
{
    free(nest->nodes);
    map_free(&nest->containers);
    map_free(&nest->notes);
    map_free(&nest->holders);
    map_free(&nest->inner);
    json_decref(nest->meta);
    *nest = (nest_t){0};
}

/* Digits that come back as they are. */
static bool is_integer(const char *text, size_t size)
{
    size_t sign = size > 1 && text[0] == '-';

    if (size == 0 || size > 18 || (text[sign] == '0' && size > 1)) {
        return false;
    }
    for (size_t i = sign; i < size; i++) {
        if (text[i] < '0' || text[i] > '9') {
            return false;
        }
    }

    return true;
}

/* --- Nodes ---------------------------------------------------------------- */

static bool add_node(nest_t *nest, const nest_node_t *node)
{
    nest_node_t *parent;

    if (nest->num == nest->max) {
        uint32_t max = 2 * nest->max + 64;
        nest_node_t *larger =
            (max > nest->max) ? reallocarray(nest->nodes, max, sizeof(*larger))
                              : NULL;

        if (larger == NULL) {
            return false;
        }
        nest->nodes = larger;
        nest->max = max;
    }

    nest->nodes[nest->num] = *node;
    nest->nodes[nest->num].first = NEST_NONE;
    nest->nodes[nest->num].last = NEST_NONE;
    nest->nodes[nest->num].next = NEST_NONE;
    if (node->parent != NEST_NONE) {
        parent = &nest->nodes[node->parent];
        if (parent->last != NEST_NONE) {
            nest->nodes[parent->last].next = nest->num;
        } else {
            parent->first = nest->num;
        }
        parent->last = nest->num;
        parent->num++;
    }
    nest->num++;
    return true;
}

/* What is noted of a container, or NULL. */
static const json_t *noted(const nest_t *nest, const char *name, size_t size)
{
    uint64_t found;

    return map_get(&nest->notes, name, size, &found)
               ? (const json_t *)(uintptr_t)found
               : NULL;
}

/* Only the root may be a leaf. */
static bool read_is(const json_t *note, uint8_t most, nest_node_t *node)
{
    const char *is = json_string_value(json_object_get(note, "is"));

    node->metadata = json_object_get(note, "_metadata");
    node->is = NEST_DICT;
    if (is == NULL) {
        return true;
    }
    for (uint8_t i = NEST_ORDERED; i <= most; i++) {
        if (strcmp(is, texts[i]) == 0) {
            node->is = i;
            return true;
        }
    }
    return false;
}

static fsdp_status_t read_keys(const nest_t *nest, const json_t *note,
                               const char *name, size_t size, nest_node_t *node,
                               fsdp_error_t *err)
{
    const char *keys = json_string_value(json_object_get(note, "keys"));

    node->ints = keys != NULL;
    if (keys == NULL || strcmp(keys, NEST_KEYS_INT) == 0) {
        return FSDP_OK;
    }

    errno = 0;
    return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                          "%s: the dict '%.*s' of the source has keys that "
                          "are neither texts nor integers: it cannot be "
                          "written to this format",
                          nest->cat->path, (int)size, name);
}

/* The last part of a container's name that is its key. */
static bool read_key(const json_t *note, const char *name, size_t size,
                     nest_node_t *node)
{
    const json_t *key = json_object_get(note, "key");
    const char *dot = memrchr(name, '.', size);

    node->key = (dot != NULL) ? dot + 1 : name;
    node->key_size = (uint32_t)(size - (size_t)(node->key - name));
    if (json_is_string(key)) {
        size_t length = json_string_length(key);

        if (length > size ||
            memcmp(json_string_value(key), name + size - length, length) != 0 ||
            (length < size && name[size - length - 1] != '.')) {
            return false;
        }
        node->key = name + size - length;
        node->key_size = (uint32_t)length;
    } else if (key != NULL) {
        node->key_is_int = true;
        return json_is_integer(key) && is_integer(node->key, node->key_size);
    }

    return true;
}

/* The node of the container that is named by the first bytes of a name, made
 * if there is none. */
static fsdp_status_t get_container(nest_t *nest, const char *name, size_t size,
                                   unsigned depth, uint32_t *node_p,
                                   fsdp_error_t *err)
{
    const json_t *note = noted(nest, name, size);
    nest_node_t node = {.parent = NEST_NONE, .name = name};
    uint64_t found;
    size_t above;

    if (map_get(&nest->containers, name, size, &found)) {
        *node_p = (uint32_t)found;
        return FSDP_OK;
    }
    if (depth > DEPTH_MOST ||
        !read_is(note, (size > 0) ? NEST_LIST : NEST_LEAF, &node) ||
        !read_key(note, name, size, &node)) {
        return bad(nest, name, size, err);
    }
    FSDP_TRY(read_keys(nest, note, name, size, &node, err));

    above = size - node.key_size;
    if (size > 0) {
        FSDP_TRY(get_container(nest, name, above - (above > 0), depth + 1,
                               &node.parent, err));
        node.key_is_int |= nest->nodes[node.parent].is == NEST_LIST;
    }
    if (!map_put(&nest->containers, name, size, nest->num) ||
        !add_node(nest, &node)) {
        return no_memory(nest, err);
    }
    *node_p = nest->num - 1;
    return FSDP_OK;
}

/* --- Leaves --------------------------------------------------------------- */

/* The length of the name of the container that a leaf is in: the longest one
 * that is noted. */
static size_t container_size(const nest_t *nest, const char *name)
{
    size_t size = strlen(name);
    const char *dot;

    while ((dot = memrchr(name, '.', size)) != NULL) {
        size = (size_t)(dot - name);
        if (noted(nest, name, size) != NULL) {
            return size;
        }
    }

    return 0;
}

/* Of a tensor in a value, which is written with it. */
typedef struct {
    uint64_t value, tensor;
} inner_t;

typedef struct {
    nest_t *nest;
    uint64_t value;
} holder_t;

static fsdp_status_t find_inner(json_t *name, void *arg, fsdp_error_t *err)
{
    const holder_t *holder = arg;
    nest_t *nest = holder->nest;
    inner_t inner = {.value = holder->value};

    return (!catalog_find(nest->cat, json_string_value(name), &inner.tensor) ||
            map_put(&nest->inner, &inner, sizeof(inner), 0))
               ? FSDP_OK
               : no_memory(nest, err);
}

static fsdp_status_t find_all_inner(nest_t *nest, fsdp_error_t *err)
{
    for (uint64_t i = 0; i < nest->cat->num_values; i++) {
        const catalog_value_t *value = &nest->cat->values[i];
        fsdp_status_t status;
        json_t *json;

        if (strstr(value->json, "\"$tensor\"") == NULL) {
            continue;
        }
        FSDP_TRY(value_parse(value->name, value->json, strlen(value->json),
                             &json, err));
        status =
            value_visit_tensors(json, find_inner, &(holder_t){nest, i}, err);
        json_decref(json);
        FSDP_TRY(status);
        if (!map_put(&nest->holders, value->name, strlen(value->name), i)) {
            return no_memory(nest, err);
        }
    }

    return FSDP_OK;
}

/* Is a name that of a tensor inside a value: VALUE.REST? */
static bool is_inner(const nest_t *nest, const char *name)
{
    inner_t inner;
    uint64_t found;

    for (const char *dot = strchr(name, '.'); dot != NULL;
         dot = strchr(dot + 1, '.')) {
        if (map_get(&nest->holders, name, (size_t)(dot - name), &inner.value) &&
            catalog_find(nest->cat, name, &inner.tensor) &&
            map_get(&nest->inner, &inner, sizeof(inner), &found)) {
            return true;
        }
    }

    return false;
}

static fsdp_status_t add_leaf(nest_t *nest, const char *name, nest_leaf_t leaf,
                              uint64_t index, fsdp_error_t *err)
{
    size_t size = container_size(nest, name);
    nest_node_t node = {.is = NEST_LEAF, .leaf = leaf, .index = index};
    const nest_node_t *parent;

    if (leaf != NEST_VALUE && is_inner(nest, name)) {
        return FSDP_OK;
    }
    FSDP_TRY(get_container(nest, name, size, 0, &node.parent, err));
    parent = &nest->nodes[node.parent];
    node.key = name + size + (size > 0);
    node.key_size = (uint32_t)strlen(node.key);
    node.key_is_int = (parent->ints || parent->is == NEST_LIST) &&
                      is_integer(node.key, node.key_size);
    return add_node(nest, &node) ? FSDP_OK : no_memory(nest, err);
}

/* A root that was a leaf is the one that there is, or a dict of several. */
static void set_root(nest_t *nest)
{
    nest_node_t *root = &nest->nodes[0];

    if (root->is == NEST_LEAF && root->num == 1 && nest->num == 2) {
        root->leaf = nest->nodes[1].leaf;
        root->index = nest->nodes[1].index;
    } else if (root->is == NEST_LEAF) {
        root->is = NEST_DICT;
    }
}

static fsdp_status_t add_leaves(nest_t *nest, fsdp_error_t *err)
{
    const catalog_t *cat = nest->cat;
    uint64_t *ordered = catalog_in_order(cat);
    fsdp_status_t status = FSDP_OK;

    if (ordered == NULL) {
        return no_memory(nest, err);
    }

    for (uint64_t i = 0; i < cat->num_tensors && status == FSDP_OK; i++) {
        status = add_leaf(nest, cat->tensors[ordered[i]].name, NEST_TENSOR,
                          ordered[i], err);
    }
    for (uint64_t i = 0; i < cat->num_aliases && status == FSDP_OK; i++) {
        status = add_leaf(nest, cat->aliases[i].name, NEST_ALIAS, i, err);
    }
    for (uint64_t i = 0; i < cat->num_values && status == FSDP_OK; i++) {
        status = add_leaf(nest, cat->values[i].name, NEST_VALUE, i, err);
    }
    free(ordered);
    return status;
}

/* --- Checks --------------------------------------------------------------- */

static int name_size(const nest_node_t *node)
{
    return (int)(node->key - node->name) + (int)node->key_size;
}

static int by_number(const void *a, const void *b, void *arg)
{
    const nest_t *nest = arg;
    const nest_node_t *left = &nest->nodes[*(const uint32_t *)a];
    const nest_node_t *right = &nest->nodes[*(const uint32_t *)b];

    return (left->key_size != right->key_size)
               ? ((left->key_size > right->key_size) ? 1 : -1)
               : memcmp(left->key, right->key, left->key_size);
}

static bool is_number(const nest_node_t *node, uint32_t number)
{
    char text[16];
    int size = snprintf(text, sizeof(text), "%" PRIu32, number);

    return node->key_size == (uint32_t)size &&
           memcmp(node->key, text, node->key_size) == 0;
}

/* Put the elements of a list into their order.  All must be there, but in
 * PyTorch's distributed checkpoints, which leave out empty dicts. */
static fsdp_status_t sort_list(nest_t *nest, uint32_t index, fsdp_error_t *err)
{
    nest_node_t *list = &nest->nodes[index];
    uint32_t *items = calloc(list->num + 1ul, sizeof(*items)), num = 0;
    uint32_t good = 0; /* elements from the first one on */

    if (items == NULL) {
        return no_memory(nest, err);
    }

    for (uint32_t i = list->first; i != NEST_NONE; i = nest->nodes[i].next) {
        items[num++] = i;
    }
    qsort_r(items, num, sizeof(*items), by_number, nest);
    for (uint32_t i = 0; i < num; i++) {
        good += good == i && is_number(&nest->nodes[items[i]], i);
        nest->nodes[items[i]].next = (i + 1 < num) ? items[i + 1] : NEST_NONE;
    }
    list->first = items[0]; /* it was made for what is in it */
    list->last = items[num - 1];
    free(items);
    if (good == num || nest->cat->format == FSDP_CKPT_DCP) {
        return FSDP_OK;
    }

    errno = 0;
    return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                          "%s: the list '%.*s' would lack element %" PRIu32
                          ", which may have been an empty dict or list that "
                          "PyTorch's distributed checkpoints leave out: keep "
                          "all of the list, leave it out with --exclude "
                          "'%.*s.*', or choose dcp or hdf5, which keep it as "
                          "it is",
                          nest->cat->path, name_size(list), list->name, good,
                          name_size(list), list->name);
}

/* Nothing else has the name of a container. */
static fsdp_status_t check_name(const nest_t *nest, const nest_node_t *node,
                                fsdp_error_t *err)
{
    char *text = strndup(node->name, (size_t)name_size(node));
    fsdp_status_t status = FSDP_OK;
    uint64_t found;

    if (text == NULL) {
        return no_memory(nest, err);
    }
    if (catalog_find(nest->cat, text, &found) ||
        catalog_find_value(nest->cat, text, &found)) {
        status = fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                                "%s: '%s' would be a tensor or value, and a "
                                "dict of others too: rename it",
                                nest->cat->path, text);
    }
    free(text);
    return status;
}

static fsdp_status_t check(nest_t *nest, fsdp_error_t *err)
{
    for (uint32_t i = 0; i < nest->num; i++) {
        const nest_node_t *node = &nest->nodes[i];

        if (node->is == NEST_LEAF) {
            continue;
        }
        if (node->is == NEST_LIST) {
            FSDP_TRY(sort_list(nest, i, err));
        }
        if (i > 0) {
            FSDP_TRY(check_name(nest, node, err));
        }
    }

    return FSDP_OK;
}

static fsdp_status_t read_notes(nest_t *nest, fsdp_error_t *err)
{
    const char *name;
    json_t *note;

    json_object_foreach(json_object_get(nest->meta, NEST_KEY), name, note)
    {
        if (!map_put(&nest->notes, name, strlen(name), (uintptr_t)note)) {
            return no_memory(nest, err);
        }
    }
    return FSDP_OK;
}

fsdp_status_t nest_make(const catalog_t *cat, nest_t *nest_p, fsdp_error_t *err)
{
    nest_t nest = {.cat = cat, .meta = json_text_parse(cat->meta)};
    fsdp_status_t status = read_notes(&nest, err);
    uint32_t root;

    if (status == FSDP_OK) {
        status = get_container(&nest, "", 0, 0, &root, err);
    }
    if (status == FSDP_OK) {
        status = find_all_inner(&nest, err);
    }
    if (status == FSDP_OK) {
        status = add_leaves(&nest, err);
    }
    if (status == FSDP_OK) {
        set_root(&nest);
        status = check(&nest, err);
    }
    if (status != FSDP_OK) {
        nest_free(&nest);
        return status;
    }

    *nest_p = nest;
    return FSDP_OK;
}
