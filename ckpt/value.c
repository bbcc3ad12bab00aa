#include "config.h"

#include "ckpt/value.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/util/buffer.h"
#include "lib/util/check.h"
#include "lib/util/json_text.h"

enum { MAX_DIGITS = 18, MAX_DEPTH = 512 };

/* --- Parsing -------------------------------------------------------------- */

/* The end of a string that begins at @a pos. */
static size_t skip_string(const char *text, size_t size, size_t pos)
{
    for (pos++; pos < size && text[pos] != '"'; pos++) {
        pos += text[pos] == '\\';
    }

    return (pos < size) ? pos + 1 : size;
}

static size_t skip_number(const char *text, size_t size, size_t pos)
{
    while (pos < size &&
           (isalnum((unsigned char)text[pos]) || text[pos] == '+' ||
            text[pos] == '-' || text[pos] == '.')) {
        pos++;
    }

    return pos;
}

static bool is_long_integer(const char *text, size_t size)
{
    size_t digits = 0;

    for (size_t i = (text[0] == '-'); i < size; i++) {
        if (!isdigit((unsigned char)text[i])) {
            return false;
        }
        digits++;
    }

    return digits > MAX_DIGITS;
}

/* Long integers put into objects; all else as it is. */
static void wrap_integers(const char *text, size_t size, buffer_t *out)
{
    size_t pos = 0, done = 0;

    while (pos < size) {
        size_t begin = pos;

        if (text[pos] == '"') {
            pos = skip_string(text, size, pos);
        } else if (text[pos] == '-' || isdigit((unsigned char)text[pos])) {
            pos = skip_number(text, size, pos);
            if (is_long_integer(text + begin, pos - begin)) {
                buffer_add(out, text + done, begin - done);
                buffer_add(out, "{\"$int\":\"", 9);
                buffer_add(out, text + begin, pos - begin);
                buffer_add(out, "\"}", 2);
                done = pos;
            }
        } else {
            pos++;
        }
    }
    buffer_add(out, text + done, size - done);
}

fsdp_status_t value_parse(const char *what, const char *text, size_t size,
                          json_t **value_p, fsdp_error_t *err)
{
    buffer_t out = {0};
    json_error_t why;
    json_t *value;

    wrap_integers(text, size, &out);
    if (out.failed) {
        buffer_free(&out);
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", what);
    }

    value = json_loadb(
        out.data != NULL ? out.data : "", out.size,
        JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &why);
    buffer_free(&out);
    if (value == NULL) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT, "%s: no JSON: line %d: %s",
                              what, why.line, why.text);
    }

    *value_p = value;
    return FSDP_OK;
}

/* The one member of an object {key: …}, or NULL. */
static json_t *only_member(const json_t *value, const char *key)
{
    return (json_is_object(value) && json_object_size(value) == 1)
               ? json_object_get(value, key)
               : NULL;
}

/* @param flags  Of json_dumps(). */
static char *dump(const json_t *value, size_t flags)
{
    static const char begin[] = "{\"$int\":\"";
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | flags |
                                       json_text_digits(value));
    size_t size = (text != NULL) ? strlen(text) : 0, from = 0, to = 0;

    while (from < size) {
        size_t end = from + 1;

        if (strncmp(text + from, begin, sizeof(begin) - 1) == 0) {
            from += sizeof(begin) - 1;
            end = from + strcspn(text + from, "\"");
            memmove(text + to, text + from, end - from);
            to += end - from;
            from = end + 2;
            continue;
        }
        if (text[from] == '"') {
            end = skip_string(text, size, from);
        }
        memmove(text + to, text + from, end - from);
        to += end - from;
        from = end;
    }
    if (text != NULL) {
        text[to] = '\0';
    }

    return text;
}

char *value_text(const json_t *value)
{
    return dump(value, 0);
}

json_t *value_all(const catalog_t *cat)
{
    json_t *all = json_object(), *value;

    for (uint64_t i = 0; all != NULL && i < cat->num_values; i++) {
        const char *json = cat->values[i].json;

        if (value_parse(cat->path, json, strlen(json), &value, NULL) !=
                FSDP_OK ||
            json_object_set_new(all, cat->values[i].name, value) != 0) {
            json_decref(all);
            all = NULL;
        }
    }

    return all;
}

fsdp_status_t value_add_all(catalog_t *cat, const json_t *values,
                            fsdp_error_t *err)
{
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)values, name, value)
    {
        char *text = value_text(value);
        fsdp_status_t status = (text != NULL)
                                   ? catalog_add_value(cat, name, text, err)
                                   : fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                                    "%s: no memory", cat->path);

        free(text);
        FSDP_TRY(status);
    }

    return FSDP_OK;
}

/* --- Taking apart --------------------------------------------------------- */

static bool flatten(json_t *flat, const char *name, json_t *value,
                    unsigned depth);

/* An object is what it says, or one of the forms above. */
static bool is_dict(const json_t *value)
{
    const char *key;
    json_t *member;

    json_object_foreach((json_t *)value, key, member)
    {
        if (key[0] == '$') {
            return false;
        }
    }

    return json_object_size(value) > 0;
}

/* Members with keys that are texts or integers, which names may have. */
static bool is_named(const json_t *pairs)
{
    json_t *pair;
    size_t i;

    json_array_foreach(pairs, i, pair)
    {
        const json_t *key = json_array_get(pair, 0);

        if (!json_is_string(key) && !json_is_integer(key)) {
            return false;
        }
    }

    return json_array_size(pairs) > 0;
}

static bool is_split(const json_t *array, unsigned depth)
{
    json_t *item;
    size_t i;

    json_array_foreach(array, i, item)
    {
        if (is_dict(item) || only_member(item, "$tensor") != NULL ||
            only_member(item, "$dict") != NULL ||
            (json_is_object(item) && json_object_size(item) == 0) ||
            (depth < MAX_DEPTH && is_split(item, depth + 1))) {
            return true;
        }
    }

    return false;
}

static bool flatten_part(json_t *flat, const char *name, const char *key,
                         json_t *value, unsigned depth)
{
    size_t size = strlen(name) + strlen(key) + 2;
    char *inner = malloc(size);
    bool good = inner != NULL;

    if (good) {
        snprintf(inner, size, "%s.%s", name, key);
        good = flatten(flat, inner, value, depth);
    }
    free(inner);
    return good;
}

static bool flatten_pairs(json_t *flat, const char *name, const json_t *pairs,
                          unsigned depth)
{
    bool good = true;
    json_t *pair;
    size_t i;

    json_array_foreach(pairs, i, pair)
    {
        const json_t *key = json_array_get(pair, 0);
        char number[24];

        snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT,
                 json_integer_value(key));
        good = good && flatten_part(flat, name,
                                    json_is_string(key) ? json_string_value(key)
                                                        : number,
                                    json_array_get(pair, 1), depth);
    }

    return good;
}

static bool flatten_items(json_t *flat, const char *name, const json_t *array,
                          unsigned depth)
{
    bool good = true;
    json_t *item;
    size_t i;

    json_array_foreach(array, i, item)
    {
        char number[24];

        snprintf(number, sizeof(number), "%zu", i);
        good = good && flatten_part(flat, name, number, item, depth);
    }

    return good;
}

static bool flatten(json_t *flat, const char *name, json_t *value,
                    unsigned depth)
{
    const json_t *pairs = only_member(value, "$dict");
    const char *key;
    json_t *member;
    bool good = true;

    if (only_member(value, "$tensor") != NULL) {
        return true;
    }
    if (depth < MAX_DEPTH && is_named(pairs)) {
        return flatten_pairs(flat, name, pairs, depth + 1);
    }
    if (depth < MAX_DEPTH && is_split(value, 0)) {
        return flatten_items(flat, name, value, depth + 1);
    }
    if (depth == MAX_DEPTH || !is_dict(value)) {
        return json_object_set(flat, name, value) == 0;
    }

    json_object_foreach(value, key, member)
    {
        good = good && flatten_part(flat, name, key, member, depth + 1);
    }
    return good;
}

json_t *value_flat(const json_t *values)
{
    json_t *flat = json_object(), *value;
    bool good = flat != NULL;
    const char *name;

    json_object_foreach((json_t *)values, name, value)
    {
        good = good && flatten(flat, name, value, 0);
    }
    if (!good) {
        json_decref(flat);
        flat = NULL;
    }

    return flat;
}

/* --- Comparing ------------------------------------------------------------ */

typedef struct {
    value_tensor_f tensor;
    void *arg;
} compare_t;

static bool equal(const json_t *a, const json_t *b, const compare_t *compare,
                  unsigned depth);

static bool equal_arrays(const json_t *a, const json_t *b,
                         const compare_t *compare, unsigned depth)
{
    size_t num = json_array_size(a);

    if (!json_is_array(b) || json_array_size(b) != num) {
        return false;
    }
    for (size_t i = 0; i < num; i++) {
        if (!equal(json_array_get(a, i), json_array_get(b, i), compare,
                   depth)) {
            return false;
        }
    }

    return true;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void free_texts(char **texts, size_t num)
{
    for (size_t i = 0; texts != NULL && i < num; i++) {
        free(texts[i]);
    }
    free(texts);
}

/* A manifest has a set's members as Python writes them: {1, 'a'} may be
 * ["1", "'a'"]. */
static char *member_text(const json_t *member)
{
    const char *text = json_string_value(member);
    size_t size = (text != NULL) ? strlen(text) : 0;

    if (text == NULL) {
        return dump(member, JSON_SORT_KEYS);
    }

    return (size >= 2 && text[0] == '\'' && text[size - 1] == '\'')
               ? strndup(text + 1, size - 2)
               : strdup(text);
}

/* Members as texts, sorted; NULL: no memory or no array. */
static char **sorted_members(const json_t *set)
{
    size_t num = json_array_size(set);
    char **texts = calloc(num + 1, sizeof(*texts));

    for (size_t i = 0; texts != NULL && i < num; i++) {
        texts[i] = member_text(json_array_get(set, i));
        if (texts[i] == NULL) {
            free_texts(texts, i);
            return NULL;
        }
    }
    if (texts != NULL) {
        qsort(texts, num, sizeof(*texts), by_text);
    }
    return texts;
}

static bool equal_sets(const json_t *a, const json_t *b)
{
    size_t num = json_array_size(a);
    char **left = sorted_members(a), **right = sorted_members(b);
    bool same = json_is_array(a) && json_is_array(b) &&
                json_array_size(b) == num && left != NULL && right != NULL;

    for (size_t i = 0; i < num && same; i++) {
        same = strcmp(left[i], right[i]) == 0;
    }
    free_texts(left, num);
    free_texts(right, json_array_size(b));
    return same;
}

static bool equal_members(const json_t *a, const json_t *b,
                          const compare_t *compare, unsigned depth)
{
    const char *key;
    json_t *left;

    if (json_object_size(a) != json_object_size(b)) {
        return false;
    }
    json_object_foreach((json_t *)a, key, left)
    {
        const json_t *right = json_object_get(b, key);

        if (right == NULL || !equal(left, right, compare, depth)) {
            return false;
        }
    }

    return true;
}

/* Objects of classes that only Python knows: a manifest has their repr(), a
 * checkpoint what they are made of. */
static bool equal_opaque(const json_t *a, const json_t *b,
                         const compare_t *compare, unsigned depth)
{
    const json_t *repr_a = json_object_get(a, "$repr");
    const json_t *repr_b = json_object_get(b, "$repr");

    if (!json_equal(json_object_get(a, "$class"),
                    json_object_get(b, "$class"))) {
        return false;
    }
    if (repr_a != NULL && repr_b != NULL) {
        return json_equal(repr_a, repr_b);
    }

    return repr_a != NULL || repr_b != NULL ||
           equal_members(a, b, compare, depth);
}

/* A key as Python's str() has it, or as JSON. */
static char *key_text(const json_t *key, bool is_json)
{
    if (!is_json && json_is_string(key)) {
        return strdup(json_string_value(key));
    }
    if (!is_json && json_is_boolean(key)) {
        return strdup(json_is_true(key) ? "True" : "False");
    }

    return (!is_json && json_is_null(key)) ? strdup("None")
                                           : dump(key, JSON_SORT_KEYS);
}

/* A dict as an object with texts as keys, for json_decref(); NULL: no memory,
 * or no dict. */
static json_t *dict_object(const json_t *dict, bool is_json)
{
    const json_t *pairs = only_member(dict, "$dict");
    json_t *object = json_object(), *pair;
    bool good = object != NULL && json_is_array(pairs);
    size_t i;

    json_array_foreach(pairs, i, pair)
    {
        char *key = key_text(json_array_get(pair, 0), is_json);

        good = good && key != NULL &&
               json_object_set(object, key, json_array_get(pair, 1)) == 0;
        free(key);
    }
    if (!good) {
        json_decref(object);
        return NULL;
    }

    return object;
}

/* One of them is a dict with keys that are no texts; the other one may be a
 * manifest's, where they are. */
static bool equal_dicts(const json_t *a, const json_t *b,
                        const compare_t *compare, unsigned depth)
{
    bool is_a = only_member(a, "$dict") != NULL;
    bool is_b = only_member(b, "$dict") != NULL;
    json_t *left = is_a ? dict_object(a, is_b) : json_incref((json_t *)a);
    json_t *right = is_b ? dict_object(b, is_a) : json_incref((json_t *)b);
    bool same = left != NULL && right != NULL &&
                equal_members(left, right, compare, depth);

    json_decref(left);
    json_decref(right);
    return same;
}

static bool equal_objects(const json_t *a, const json_t *b,
                          const compare_t *compare, unsigned depth)
{
    const json_t *left, *right;

    if (json_object_get(a, "$class") != NULL &&
        json_object_get(b, "$class") != NULL) {
        return equal_opaque(a, b, compare, depth);
    }
    left = only_member(a, "$set");
    right = only_member(b, "$set");
    if (left != NULL && right != NULL) {
        return equal_sets(left, right);
    }
    left = only_member(a, "$tensor");
    right = only_member(b, "$tensor");
    if (left != NULL && right != NULL && compare->tensor != NULL) {
        return compare->tensor(left, right, compare->arg);
    }
    if (only_member(a, "$unread") != NULL) {
        return false;
    }
    if (only_member(a, "$dict") != NULL || only_member(b, "$dict") != NULL) {
        return equal_dicts(a, b, compare, depth);
    }

    return equal_members(a, b, compare, depth);
}

static bool equal(const json_t *a, const json_t *b, const compare_t *compare,
                  unsigned depth)
{
    if (json_typeof(a) != json_typeof(b) || depth > MAX_DEPTH) {
        return false;
    }
    if (json_is_array(a)) {
        return equal_arrays(a, b, compare, depth + 1);
    }

    return json_is_object(a) ? equal_objects(a, b, compare, depth + 1)
                             : json_equal(a, b);
}

bool value_equal(const json_t *a, const json_t *b, value_tensor_f tensor,
                 void *arg)
{
    const compare_t compare = {tensor, arg};

    return equal(a, b, &compare, 0);
}

fsdp_status_t value_visit_tensors(json_t *value, value_visit_f visit, void *arg,
                                  fsdp_error_t *err)
{
    json_t *inner = json_object_get(value, "$tensor");
    const char *key;
    size_t i;

    if (json_is_string(inner)) {
        return visit(inner, arg, err);
    }

    json_object_foreach(value, key, inner)
    {
        FSDP_TRY(value_visit_tensors(inner, visit, arg, err));
    }
    json_array_foreach(value, i, inner)
    {
        FSDP_TRY(value_visit_tensors(inner, visit, arg, err));
    }

    return FSDP_OK;
}

const char *value_unread(const json_t *value)
{
    const char *why = json_string_value(only_member(value, "$unread")), *key;
    json_t *inner;
    size_t i;

    json_object_foreach((json_t *)value, key, inner)
    {
        why = (why != NULL) ? why : value_unread(inner);
    }
    json_array_foreach(value, i, inner)
    {
        why = (why != NULL) ? why : value_unread(inner);
    }

    return why;
}

bool value_number(const catalog_t *cat, const char *name, uint64_t *number_p)
{
    json_t *meta = NULL, *number = NULL;
    uint64_t value;
    bool known;

    if (catalog_find_value(cat, name, &value)) {
        number = meta =
            json_loads(cat->values[value].json, JSON_DECODE_ANY, NULL);
    } else {
        meta = json_text_parse(cat->meta);
        number = json_object_get(
            json_object_get(json_object_get(meta, "user"), "config"), name);
    }

    known = json_text_u64(number, number_p);
    json_decref(meta);
    return known;
}
