#include "config.h"

#include "ckpt/format/dcp_paths.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/util/check.h"

#define MODEL  "model."
#define STATE  "optim.state."
#define GROUPS "optim.param_groups."

/* --- Reading -------------------------------------------------------------- */

/* Note the container that has the first bytes of a name as its own.
 * @param key   Under which it lies; NULL: an index, or it is the root.
 * @param list  It is one. */
static bool note(json_t *notes, const char *name, size_t size, const char *key,
                 bool list)
{
    char *text = strndup(name, size);
    json_t *all = (text != NULL) ? json_object_get(notes, text) : NULL;
    bool good = text != NULL;

    if (good && all == NULL) {
        all = json_object();
        good = json_object_set_new(notes, text, all) == 0;
    }
    if (good && list) {
        good = json_object_set_new(all, "is",
                                   json_string(nest_is_text(NEST_LIST))) == 0;
    }
    if (good && key != NULL && strchr(key, '.') != NULL) {
        good = json_object_set_new(all, "key", json_string(key)) == 0;
    }
    free(text);
    return good;
}

/* The text of a key of a path, in @a text if it is an index. */
static const char *key_of(const pickle_t *pickle, pickle_ref_t key,
                          char text[24])
{
    int64_t index;

    if (pickle_int(pickle, key, &index)) {
        snprintf(text, 24, "%lld", (long long)index);
        return text;
    }

    return pickle_str(pickle, key, NULL);
}

/* Do the keys make the name? */
static bool is_path(const pickle_t *pickle, pickle_ref_t path, const char *name)
{
    uint64_t num = pickle_count(pickle, path);

    for (uint64_t i = 0; i < num; i++) {
        char text[24];
        const char *key = key_of(pickle, pickle_item(pickle, path, i), text);
        size_t size = (key != NULL) ? strlen(key) : 0;

        if (key == NULL || strncmp(name, key, size) != 0 ||
            name[size] != ((i + 1 < num) ? '.' : '\0')) {
            return false;
        }
        name += size + 1;
    }

    return num > 0;
}

bool dcp_paths_note(const pickle_t *pickle, pickle_ref_t paths, json_t *notes)
{
    uint64_t num = pickle_count(pickle, paths);

    for (uint64_t p = 0; p < num; p++) {
        pickle_ref_t path = pickle_item(pickle, paths, p);
        const char *name =
            pickle_str(pickle, pickle_key(pickle, paths, p), NULL);
        uint64_t keys = pickle_count(pickle, path);
        const char *key = NULL;
        size_t size = 0;

        if (name == NULL || !is_path(pickle, path, name)) {
            continue; /* then its name is its key */
        }
        for (uint64_t i = 0; i < keys; i++) {
            pickle_ref_t ref = pickle_item(pickle, path, i);
            char text[24];

            if (!note(notes, name, size, key,
                      pickle_kind(pickle, ref) == PICKLE_INT)) {
                return false;
            }
            key = pickle_str(pickle, ref, NULL);
            size += strlen(key_of(pickle, ref, text)) + (i > 0);
        }
    }

    return true;
}

/* --- Making --------------------------------------------------------------- */

/* "optim.state.NAME.exp_avg", of which "model.NAME" is there. */
static bool is_state(const catalog_t *cat, const char *name)
{
    const char *end = strrchr(name, '.');
    uint64_t tensor;
    bool found;
    char *model;

    if (strncmp(name, STATE, strlen(STATE)) != 0 ||
        end < name + strlen(STATE)) {
        return false;
    }

    model = malloc(strlen(name) + 1);
    if (model == NULL) {
        return false;
    }
    strcpy(model, MODEL);
    strncat(model, name + strlen(STATE), (size_t)(end - name) - strlen(STATE));
    found = catalog_find(cat, model, &tensor);
    free(model);
    return found;
}

fsdp_status_t dcp_paths_make(const catalog_t *cat, dcp_paths_t *paths_p,
                             fsdp_error_t *err)
{
    dcp_paths_t paths = {.cat = cat};

    FSDP_TRY(nest_make(cat, &paths.nest, err));
    for (uint64_t t = 0; t < cat->num_tensors && !paths.has_state; t++) {
        paths.has_state = is_state(cat, cat->tensors[t].name);
    }

    *paths_p = paths;
    return FSDP_OK;
}

void dcp_paths_free(dcp_paths_t *paths)
{
    nest_free(&paths->nest);
}

/* --- Writing -------------------------------------------------------------- */

static void write_key(pickle_writer_t *writer, const char *key, size_t size,
                      bool is_index)
{
    if (is_index) {
        pickle_write_int(writer, strtol(key, NULL, 10));
    } else {
        pickle_write_string(writer, key, size);
    }
}

/* The keys that lead to a node; a list has indexes, and dicts have texts, also
 * where they were integers: PyTorch takes dicts apart so. */
static void write_node(const nest_t *nest, uint32_t index,
                       pickle_writer_t *writer)
{
    const nest_node_t *node = &nest->nodes[index];

    if (node->parent != NEST_NONE) {
        write_node(nest, node->parent, writer);
        write_key(writer, node->key, node->key_size,
                  nest->nodes[node->parent].is == NEST_LIST);
    }
}

/* The keys of a name of which nothing is known, in what
 * get_model_state_dict() and get_optimizer_state_dict() give. */
static void write_name(const dcp_paths_t *paths, const char *name,
                       pickle_writer_t *writer)
{
    const char *rest = name, *end = strrchr(name, '.');

    if (paths->has_state && strncmp(name, MODEL, strlen(MODEL)) == 0) {
        pickle_write_text(writer, "model");
        rest = name + strlen(MODEL);
    } else if (paths->has_state && strncmp(name, STATE, strlen(STATE)) == 0 &&
               end > name + strlen(STATE)) {
        rest = name + strlen(STATE);
        pickle_write_text(writer, "optim");
        pickle_write_text(writer, "state");
        pickle_write_string(writer, rest, (size_t)(end - rest));
        rest = end + 1;
    } else if (paths->has_state && strncmp(name, GROUPS, strlen(GROUPS)) == 0 &&
               end > name + strlen(GROUPS)) {
        pickle_write_text(writer, "optim");
        pickle_write_text(writer, "param_groups");
        pickle_write_int(writer, strtol(name + strlen(GROUPS), NULL, 10));
        rest = end + 1;
    }
    pickle_write_text(writer, rest);
}

static const char *name_of(const catalog_t *cat, const nest_node_t *node)
{
    switch (node->leaf) {
    case NEST_TENSOR:
        return cat->tensors[node->index].name;
    case NEST_ALIAS:
        return cat->aliases[node->index].name;
    default:
        return cat->values[node->index].name;
    }
}

void dcp_paths_write(const dcp_paths_t *paths, const bool *inner,
                     pickle_writer_t *writer)
{
    const nest_t *nest = &paths->nest;

    pickle_write_op(writer, '}');
    pickle_write_op(writer, '(');
    for (uint32_t i = 0; i < nest->num; i++) {
        const nest_node_t *node = &nest->nodes[i];
        const char *name;

        if (node->is != NEST_LEAF ||
            (node->leaf == NEST_TENSOR && inner[node->index])) {
            continue;
        }
        name = name_of(paths->cat, node);
        pickle_write_text(writer, name);
        pickle_write_op(writer, '(');
        if (node->parent == 0) {
            write_name(paths, name, writer);
        } else {
            write_node(nest, i, writer);
        }
        pickle_write_op(writer, 't');
    }
    pickle_write_op(writer, 'u');
}
