/*
 * Values as Python has them, pickled.
 */
#include "config.h"

#include "ckpt/pickle_write.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MOST = 500 };

/* Values may come from a file: what is no value at all is refused. */
typedef struct {
    pickle_writer_t *writer;
    pickle_write_tensor_f tensor;
    void *arg;
    unsigned depth;
    bool is_member; /* of a set: a set in it is a frozenset */
} value_writer_t;

static bool write_value(value_writer_t *to, const json_t *value);

static void op(value_writer_t *to, char opcode)
{
    pickle_write_op(to->writer, opcode);
}

/* --- Plain values --------------------------------------------------------- */

static bool write_items(value_writer_t *to, const json_t *array)
{
    size_t i;
    json_t *item;

    json_array_foreach(array, i, item)
    {
        if (!write_value(to, item)) {
            return false;
        }
    }

    return json_is_array(array);
}

static bool write_list(value_writer_t *to, const json_t *array)
{
    bool good;

    op(to, ']');
    op(to, '(');
    good = write_items(to, array);
    op(to, 'e');
    return good;
}

static bool write_tuple(value_writer_t *to, const json_t *array)
{
    bool good;

    op(to, '(');
    good = write_items(to, array);
    op(to, 't');
    return good;
}

/* Called with one argument: a list or a tuple. */
static bool write_call(value_writer_t *to, const char *module, const char *name,
                       const json_t *array, bool as_list)
{
    bool good;

    pickle_write_class(to->writer, module, name);
    good = as_list ? write_list(to, array) : write_tuple(to, array);
    op(to, '\x85');
    op(to, 'R');
    return good;
}

static bool write_set(value_writer_t *to, const json_t *array)
{
    const char *name = to->is_member ? "frozenset" : "set";
    bool was_member = to->is_member, good;

    to->is_member = true;
    good = write_call(to, "__builtin__", name, array, true);
    to->is_member = was_member;
    return good;
}

/* NaN and infinities. */
static bool write_float(value_writer_t *to, const char *text)
{
    static const char *const known[] = {"nan", "inf", "-inf"};

    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
        if (text != NULL && strcmp(text, known[i]) == 0) {
            pickle_write_float(to->writer, strtod(text, NULL));
            return true;
        }
    }

    return false;
}

static int hex_digit(char c)
{
    return isdigit((unsigned char)c) ? c - '0' : tolower(c) - 'a' + 10;
}

/* bytes: protocol 2 has none, so a latin-1 text that is encoded, as Python
 * itself writes them. */
static bool write_bytes(value_writer_t *to, const char *hex)
{
    size_t size = (hex != NULL) ? strlen(hex) / 2 : 0, used = 0;
    char *text;

    if (hex == NULL || hex[strspn(hex, "0123456789abcdefABCDEF")] != '\0' ||
        hex[2 * size] != '\0') {
        return false;
    }

    text = malloc(2 * size + 1);
    if (text == NULL) {
        to->writer->out.failed = true;
        return true;
    }

    for (size_t i = 0; i < size; i++) {
        int byte = hex_digit(hex[2 * i]) * 16 + hex_digit(hex[2 * i + 1]);

        if (byte < 128) {
            text[used++] = (char)byte;
        } else {
            text[used++] = (char)(0xc0 | (byte >> 6));
            text[used++] = (char)(0x80 | (byte & 63));
        }
    }
    pickle_write_class(to->writer, "_codecs", "encode");
    op(to, '(');
    pickle_write_string(to->writer, text, used);
    pickle_write_text(to->writer, "latin1");
    op(to, 't');
    op(to, 'R');
    free(text);
    return true;
}

static bool write_digits(value_writer_t *to, const char *digits)
{
    size_t sign = (digits != NULL && digits[0] == '-') ? 1 : 0;

    if (digits == NULL || digits[sign] == '\0' ||
        digits[sign + strspn(digits + sign, "0123456789")] != '\0') {
        return false;
    }

    return pickle_write_decimal(to->writer, digits);
}

static bool write_members(value_writer_t *to, const json_t *object)
{
    const char *key;
    json_t *item;

    json_object_foreach((json_t *)object, key, item)
    {
        pickle_write_text(to->writer, key);
        if (!write_value(to, item)) {
            return false;
        }
    }

    return true;
}

/* [[KEY, VALUE], …] */
static bool write_pairs(value_writer_t *to, const json_t *pairs)
{
    size_t i;
    json_t *pair;

    json_array_foreach(pairs, i, pair)
    {
        bool was_member = to->is_member, good;

        to->is_member = true;
        good = json_array_size(pair) == 2 &&
               write_value(to, json_array_get(pair, 0));
        to->is_member = was_member;
        if (!good || !write_value(to, json_array_get(pair, 1))) {
            return false;
        }
    }

    return json_is_array(pairs);
}

/* What is set in a dict, or in an object: SETITEMS and what it sets. */
static bool write_setitems(value_writer_t *to, const json_t *dict)
{
    const json_t *pairs = json_object_get(dict, "$dict");
    bool good;

    op(to, '(');
    good = (pairs != NULL) ? write_pairs(to, pairs) : write_members(to, dict);
    op(to, 'u');
    return good;
}

static bool write_dict(value_writer_t *to, const json_t *dict)
{
    op(to, '}');
    return write_setitems(to, dict);
}

/* --- Objects -------------------------------------------------------------- */

/* "module.Class", "module:Outer.Class" */
static bool write_name(value_writer_t *to, const char *text)
{
    const char *end = (text != NULL) ? strchr(text, ':') : NULL;
    char *module;

    if (end == NULL && text != NULL) {
        end = strrchr(text, '.');
    }
    if (end == NULL || end == text || end[1] == '\0' ||
        strchr(text, '\n') != NULL) {
        return false;
    }

    module = strndup(text, (size_t)(end - text));
    if (module == NULL) {
        to->writer->out.failed = true;
        return true;
    }
    pickle_write_global(
        to->writer,
        (strcmp(module, "builtins") == 0) ? "__builtin__" : module, end + 1);
    free(module);
    return true;
}

/* "device(type='cuda', index=0)" */
static bool write_device(value_writer_t *to, const char *text)
{
    char type[32];
    int size = 0;
    unsigned index;

    if (sscanf(text, "device(type='%31[a-z]'%n", type, &size) != 1 ||
        size == 0) {
        return false;
    }

    pickle_write_class(to->writer, "torch", "device");
    op(to, '(');
    pickle_write_text(to->writer, type);
    if (sscanf(text + size, ", index=%u)", &index) == 1) {
        pickle_write_int(to->writer, index);
    }
    op(to, 't');
    op(to, 'R');
    return true;
}

/* An object whose repr() says all of it. */
static bool write_repr(value_writer_t *to, const json_t *object)
{
    const char *text = json_string_value(json_object_get(object, "$repr"));
    const char *class = json_string_value(json_object_get(object, "$class"));

    if (text == NULL || class == NULL) {
        return false;
    }
    if (strcmp(class, "torch.device") == 0) {
        return write_device(to, text);
    }

    return (strcmp(class, "type") == 0 || strcmp(class, "torch.dtype") == 0) &&
           write_name(to, text);
}

/* Its class is called, or its __new__; then come its state and its items. */
static bool write_object(value_writer_t *to, const json_t *object)
{
    const char *class = json_string_value(json_object_get(object, "$class"));
    const json_t *args = json_object_get(object, "$args");
    const json_t *tuple = json_object_get(args, "$tuple");
    const json_t *state = json_object_get(object, "$state");
    const json_t *items = json_object_get(object, "$items");
    bool is_new = args == NULL || json_object_get(object, "$new") != NULL;

    if (class == NULL || strcmp(class, "torch.storage") == 0 ||
        (args != NULL && tuple == NULL) || !write_name(to, class)) {
        return false;
    }
    if (tuple == NULL) {
        op(to, ')');
    } else if (!write_tuple(to, tuple)) {
        return false;
    }
    op(to, is_new ? '\x81' : 'R');

    if (state != NULL) {
        if (!write_value(to, state)) {
            return false;
        }
        op(to, 'b');
    }
    if (json_is_array(items)) {
        op(to, '(');
        if (!write_items(to, items)) {
            return false;
        }
        op(to, 'e');
    }
    return !json_is_object(items) || write_setitems(to, items);
}

static bool write_special(value_writer_t *to, const char *key,
                          const json_t *inner)
{
    const char *text = json_string_value(inner);

    if (strcmp(key, "$tuple") == 0) {
        return write_tuple(to, inner);
    }
    if (strcmp(key, "$set") == 0) {
        return write_set(to, inner);
    }
    if (strcmp(key, "$size") == 0) {
        return write_call(to, "torch", "Size", inner, false);
    }
    if (strcmp(key, "$float") == 0) {
        return write_float(to, text);
    }
    if (strcmp(key, "$bytes_hex") == 0) {
        return write_bytes(to, text);
    }
    if (strcmp(key, "$tensor") == 0) {
        return to->tensor != NULL && text != NULL &&
               to->tensor(to->writer, text, to->arg);
    }
    return strcmp(key, "$int") == 0 && write_digits(to, text);
}

static bool write_any_object(value_writer_t *to, const json_t *value)
{
    const char *key;
    json_t *inner;

    if (json_object_get(value, "$repr") != NULL) {
        return write_repr(to, value);
    }
    if (json_object_get(value, "$class") != NULL) {
        return write_object(to, value);
    }
    if (json_object_size(value) == 1 &&
        json_object_get(value, "$dict") == NULL) {
        json_object_foreach((json_t *)value, key, inner)
        {
            if (key[0] == '$') {
                return write_special(to, key, inner);
            }
        }
    }
    return write_dict(to, value);
}

static bool write_typed(value_writer_t *to, const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL:
        op(to, 'N');
        return true;
    case JSON_TRUE:
    case JSON_FALSE:
        pickle_write_bool(to->writer, json_is_true(value));
        return true;
    case JSON_INTEGER:
        pickle_write_int(to->writer, json_integer_value(value));
        return true;
    case JSON_REAL:
        pickle_write_float(to->writer, json_real_value(value));
        return true;
    case JSON_STRING:
        pickle_write_string(to->writer, json_string_value(value),
                            json_string_length(value));
        return true;
    case JSON_ARRAY:
        return write_list(to, value);
    case JSON_OBJECT:
        return write_any_object(to, value);
    }

    return false;
}

static bool write_value(value_writer_t *to, const json_t *value)
{
    bool good;

    if (to->depth == DEPTH_MOST) {
        return false;
    }

    to->depth++;
    good = write_typed(to, value);
    to->depth--;
    return good;
}

bool pickle_write_value(pickle_writer_t *writer, const json_t *value,
                        pickle_write_tensor_f tensor, void *arg)
{
    value_writer_t to = {.writer = writer, .tensor = tensor, .arg = arg};

    return write_value(&to, value);
}
