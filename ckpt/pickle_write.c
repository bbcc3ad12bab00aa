#include "config.h"

#include "ckpt/pickle_write.h"

#include "ckpt/torch_object.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MOST = 500 };

static void put(pickle_writer_t *writer, const void *data, size_t size)
{
    if (size > writer->max - writer->size) {
        size_t max = 2 * writer->max + size + 4096;
        char *larger = realloc(writer->data, max);

        if (larger == NULL) {
            writer->failed = true;
            return;
        }
        writer->data = larger;
        writer->max = max;
    }
    memcpy(writer->data + writer->size, data, size);
    writer->size += size;
}

/* An opcode and a little-endian number of @a size bytes. */
static void put_number(pickle_writer_t *writer, char opcode, uint64_t value,
                       unsigned size)
{
    char bytes[9] = {opcode};

    for (unsigned i = 0; i < size; i++) {
        bytes[1 + i] = (char)(value >> (8 * i));
    }
    put(writer, bytes, 1 + size);
}

void pickle_write_begin(pickle_writer_t *writer, unsigned protocol)
{
    *writer = (pickle_writer_t){.protocol = protocol};
    put_number(writer, '\x80', protocol, 1);
}

bool pickle_write_end(pickle_writer_t *writer)
{
    put(writer, ".", 1);
    return !writer->failed;
}

void pickle_write_free(pickle_writer_t *writer)
{
    free(writer->data);
    *writer = (pickle_writer_t){0};
}

void pickle_write_op(pickle_writer_t *writer, char opcode)
{
    put(writer, &opcode, 1);
}

void pickle_write_bool(pickle_writer_t *writer, bool value)
{
    pickle_write_op(writer, value ? '\x88' : '\x89');
}

void pickle_write_int(pickle_writer_t *writer, int64_t value)
{
    if (value >= 0 && value < 256) {
        put_number(writer, 'K', (uint64_t)value, 1);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
        put_number(writer, 'J', (uint64_t)value, 4);
    } else {
        put(writer, "\x8a\x08", 2);
        put_number(writer, (char)value, (uint64_t)value >> 8, 7);
    }
}

void pickle_write_float(pickle_writer_t *writer, double value)
{
    char bytes[9] = {'G'};
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    for (unsigned i = 0; i < 8; i++) {
        bytes[1 + i] = (char)(bits >> (56 - 8 * i));
    }
    put(writer, bytes, sizeof(bytes));
}

static void write_string(pickle_writer_t *writer, const char *text, size_t size)
{
    if (writer->protocol >= 4 && size < 256) {
        put_number(writer, '\x8c', size, 1);
    } else {
        put_number(writer, 'X', size, 4);
    }
    put(writer, text, size);
}

void pickle_write_text(pickle_writer_t *writer, const char *text)
{
    write_string(writer, text, strlen(text));
}

/* Keep what was just written for later. */
static uint32_t memoize(pickle_writer_t *writer)
{
    uint32_t memo = writer->memo++;

    if (writer->protocol >= 4) {
        put(writer, "\x94", 1);
    } else if (memo < 256) {
        put_number(writer, 'q', memo, 1);
    } else {
        put_number(writer, 'r', memo, 4);
    }
    return memo;
}

static void write_memo(pickle_writer_t *writer, uint32_t memo)
{
    if (memo < 256) {
        put_number(writer, 'h', memo, 1);
    } else {
        put_number(writer, 'j', memo, 4);
    }
}

void pickle_write_again(pickle_writer_t *writer, const char *text,
                        uint32_t *memo_p)
{
    if (*memo_p != UINT32_MAX) {
        write_memo(writer, *memo_p);
        return;
    }

    pickle_write_text(writer, text);
    *memo_p = memoize(writer);
}

void pickle_write_class(pickle_writer_t *writer, const char *module,
                        const char *name)
{
    for (unsigned i = 0; i < writer->num_classes; i++) {
        if (strcmp(writer->classes[i].module, module) == 0 &&
            strcmp(writer->classes[i].name, name) == 0) {
            write_memo(writer, writer->classes[i].memo);
            return;
        }
    }

    if (writer->protocol >= 4) {
        pickle_write_text(writer, module);
        pickle_write_text(writer, name);
        put(writer, "\x93", 1);
    } else {
        put(writer, "c", 1);
        put(writer, module, strlen(module));
        put(writer, "\n", 1);
        put(writer, name, strlen(name));
        put(writer, "\n", 1);
    }
    if (writer->num_classes < PICKLE_WRITE_CLASSES) {
        unsigned i = writer->num_classes++;

        writer->classes[i].module = module;
        writer->classes[i].name = name;
        writer->classes[i].memo = memoize(writer);
    }
}

void pickle_write_ints(pickle_writer_t *writer, const uint64_t *values,
                       unsigned num)
{
    pickle_write_op(writer, (num > 0) ? '(' : ')');
    for (unsigned i = 0; i < num; i++) {
        pickle_write_int(writer, (int64_t)values[i]);
    }
    if (num > 0) {
        pickle_write_op(writer, 't');
    }
}

/* --- Values --------------------------------------------------------------------- */

static bool write_json(pickle_writer_t *writer, const json_t *value,
                       unsigned depth);

static bool write_items(pickle_writer_t *writer, const json_t *array,
                        unsigned depth)
{
    size_t i;
    json_t *item;

    json_array_foreach(array, i, item)
    {
        if (!write_json(writer, item, depth)) {
            return false;
        }
    }

    return true;
}

static bool write_list(pickle_writer_t *writer, const json_t *array,
                       unsigned depth)
{
    pickle_write_op(writer, ']');
    pickle_write_op(writer, '(');
    if (!write_items(writer, array, depth)) {
        return false;
    }
    pickle_write_op(writer, 'e');
    return true;
}

static bool write_tuple(pickle_writer_t *writer, const json_t *array,
                        unsigned depth)
{
    pickle_write_op(writer, '(');
    if (!write_items(writer, array, depth)) {
        return false;
    }
    pickle_write_op(writer, 't');
    return true;
}

static bool write_float_text(pickle_writer_t *writer, const char *text)
{
    if (text == NULL) {
        return false;
    }

    pickle_write_float(writer, strtod(text, NULL));
    return true;
}

static int hex_digit(char c)
{
    return (c >= '0' && c <= '9')   ? c - '0'
           : (c >= 'a' && c <= 'f') ? c - 'a' + 10
                                    : -1;
}

/* bytes: protocol 2 has none, so a latin-1 text that is encoded, as Python
 * itself writes them. */
static bool write_bytes(pickle_writer_t *writer, const char *hex)
{
    size_t size = (hex != NULL) ? strlen(hex) / 2 : 0, used = 0;
    char *text = malloc(2 * size + 1);

    if (hex == NULL || text == NULL) {
        free(text);
        writer->failed |= hex != NULL;
        return hex != NULL;
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
    pickle_write_class(writer, "_codecs", "encode");
    pickle_write_op(writer, '(');
    write_string(writer, text, used);
    pickle_write_text(writer, "latin1");
    pickle_write_op(writer, 't');
    pickle_write_op(writer, 'R');
    free(text);
    return true;
}

/* int(digits) */
static bool write_long(pickle_writer_t *writer, const char *digits)
{
    if (digits == NULL) {
        return false;
    }

    /* INT: digits and a newline. */
    put(writer, "I", 1);
    put(writer, digits, strlen(digits));
    put(writer, "\n", 1);
    return true;
}

static bool call_with(pickle_writer_t *writer, const char *module,
                      const char *name, const json_t *array, bool as_list,
                      unsigned depth)
{
    bool good;

    pickle_write_class(writer, module, name);
    pickle_write_op(writer, '(');
    good = as_list ? write_list(writer, array, depth)
                   : write_tuple(writer, array, depth);
    pickle_write_op(writer, 't');
    pickle_write_op(writer, 'R');
    return good;
}

/* An object of a class whose repr() says all of it: torch.float32. */
static bool write_repr(pickle_writer_t *writer, const json_t *object)
{
    const char *name = json_string_value(json_object_get(object, "$repr"));
    const char *class = json_string_value(json_object_get(object, "$class"));
    fsdp_dtype_t dtype;

    if (name == NULL || class == NULL || strcmp(class, "torch.dtype") != 0 ||
        strncmp(name, "torch.", 6) != 0 || !torch_dtype(name, &dtype)) {
        return false;
    }

    pickle_write_class(writer, "torch", name + 6);
    return true;
}

static bool write_special(pickle_writer_t *writer, const char *key,
                          const json_t *inner, unsigned depth)
{
    const char *text = json_string_value(inner);

    if (strcmp(key, "$tuple") == 0) {
        return write_tuple(writer, inner, depth);
    }
    if (strcmp(key, "$set") == 0) {
        return call_with(writer, "__builtin__", "set", inner, true, depth);
    }
    if (strcmp(key, "$size") == 0) {
        return call_with(writer, "torch", "Size", inner, false, depth);
    }
    if (strcmp(key, "$float") == 0) {
        return write_float_text(writer, text);
    }
    if (strcmp(key, "$bytes_hex") == 0) {
        return write_bytes(writer, text);
    }
    return strcmp(key, "$int") == 0 && write_long(writer, text);
}

static bool write_dict(pickle_writer_t *writer, const json_t *object,
                       unsigned depth)
{
    const char *key;
    json_t *item;

    pickle_write_op(writer, '}');
    pickle_write_op(writer, '(');
    json_object_foreach((json_t *)object, key, item)
    {
        write_string(writer, key, strlen(key));
        if (!write_json(writer, item, depth)) {
            return false;
        }
    }
    pickle_write_op(writer, 'u');
    return true;
}

static bool write_json(pickle_writer_t *writer, const json_t *value,
                       unsigned depth)
{
    const char *key;
    json_t *inner;

    if (depth == 0) {
        return false;
    }

    switch (json_typeof(value)) {
    case JSON_NULL:
        pickle_write_op(writer, 'N');
        return true;
    case JSON_TRUE:
    case JSON_FALSE:
        pickle_write_bool(writer, json_is_true(value));
        return true;
    case JSON_INTEGER:
        pickle_write_int(writer, json_integer_value(value));
        return true;
    case JSON_REAL:
        pickle_write_float(writer, json_real_value(value));
        return true;
    case JSON_STRING:
        write_string(writer, json_string_value(value),
                     json_string_length(value));
        return true;
    case JSON_ARRAY:
        return write_list(writer, value, depth - 1);
    case JSON_OBJECT:
        json_object_foreach((json_t *)value, key, inner)
        {
            if (strcmp(key, "$repr") == 0 || strcmp(key, "$class") == 0) {
                return write_repr(writer, value);
            }
            if (key[0] == '$') {
                return json_object_size(value) == 1 &&
                       write_special(writer, key, inner, depth - 1);
            }
        }
        return write_dict(writer, value, depth - 1);
    }

    return false;
}

bool pickle_write_value(pickle_writer_t *writer, const json_t *value)
{
    return write_json(writer, value, DEPTH_MOST);
}
