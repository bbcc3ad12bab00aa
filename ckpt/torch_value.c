/*
 * State dicts taken apart, and what is no tensor as JSON.
 */
#include "config.h"

#include "ckpt/torch_object.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/nest.h"
#include "ckpt/value.h"
#include "lib/util/check.h"

/* Of one value and one integer; a pickle may refer to a value from
 * within itself. */
enum {
    MAX_TEXT = 16 << 20,
    MAX_LONG = 1 << 10,
    MAX_DEPTH = 100,
    STEP = 256 /* bytes that a name takes, beside itself */
};

typedef struct {
    char *data;
    size_t used, size;
} buffer_t;

typedef struct {
    const pickle_t *pickle;
    buffer_t text, name; /* what is written; the name of where it is */
    size_t prefix;       /* of the name, which has its dot */
    json_t *nesting;     /* NULL: nobody asks */
    torch_found_f tensor, value;
    void *arg;
    fsdp_error_t *err;
} walk_t;

static fsdp_status_t fail(const walk_t *walk, fsdp_status_t status,
                          const char *why)
{
    errno = 0;
    return fsdp_error_set(
        walk->err, status, "%s: %s: %s", pickle_what(walk->pickle),
        (walk->name.used > 0) ? walk->name.data : "all of it", why);
}

static fsdp_status_t no_memory(const walk_t *walk)
{
    return fail(walk, FSDP_ERR_NO_MEMORY, "no memory");
}

static fsdp_status_t too_large(const walk_t *walk)
{
    return fail(walk, FSDP_ERR_UNSUPPORTED,
                "a value of its pickle is too deep or too large to be shown");
}

/* Whether one more value is looked at, in so many containers. */
static bool may_look(const walk_t *walk, unsigned depth, uint64_t bytes)
{
    return depth <= MAX_DEPTH && pickle_spend(walk->pickle, bytes);
}

static fsdp_status_t add(walk_t *walk, buffer_t *out, const char *data,
                         size_t size)
{
    size_t most = (out == &walk->name) ? TORCH_NAME_MAX : MAX_TEXT, want;
    char *larger;

    if (size >= most || out->used >= most - size) {
        return too_large(walk);
    }
    if (out->used + size >= out->size) {
        want = 2 * (out->used + size) + 64;
        larger = realloc(out->data, want);
        if (larger == NULL) {
            return no_memory(walk);
        }
        out->data = larger;
        out->size = want;
    }

    memcpy(out->data + out->used, data, size);
    out->used += size;
    out->data[out->used] = '\0';
    return FSDP_OK;
}

static fsdp_status_t put(walk_t *walk, const char *text)
{
    return add(walk, &walk->text, text, strlen(text));
}

__attribute__((format(printf, 3, 4))) static fsdp_status_t put_format(
    walk_t *walk, buffer_t *out, const char *fmt, ...)
{
    char text[64];
    va_list args;
    int size;

    va_start(args, fmt);
    size = vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return add(walk, out, text,
               (size > 0 && size < (int)sizeof(text)) ? (size_t)size : 0);
}

/* --- Numbers and strings -------------------------------------------------- */

/* The fewest digits that come back as the same number; always a float. */
static fsdp_status_t put_float(walk_t *walk, double value)
{
    char text[40];

    if (!isfinite(value)) {
        return put(walk, isnan(value)  ? "{\"$float\": \"nan\"}"
                         : (value < 0) ? "{\"$float\": \"-inf\"}"
                                       : "{\"$float\": \"inf\"}");
    }

    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text) - 2, "%.*g", digits, value);
        if (strtod(text, NULL) == value) {
            break;
        }
    }
    if (strpbrk(text, ".e") == NULL) {
        strcat(text, ".0");
    }
    return put(walk, text);
}

/* An integer of more than 64 bits, in decimal. */
static fsdp_status_t put_long(walk_t *walk, buffer_t *out, pickle_ref_t ref)
{
    uint32_t words[MAX_LONG / 4 + 1] = {0};
    char digits[MAX_LONG * 5 / 2 + 20];
    size_t size, at = sizeof(digits);
    const unsigned char *data = pickle_bytes(walk->pickle, ref, &size);
    bool minus = size > 0 && (data[size - 1] & 0x80) != 0;
    uint64_t carry = 1, num = size / 4 + 1;

    if (size > MAX_LONG) {
        return too_large(walk);
    }

    if (minus) {
        memset(words, 0xff, num * sizeof(*words));
    }
    for (size_t i = 0; i < size; i++) {
        words[i / 4] &= ~(0xffu << (i % 4 * 8));
        words[i / 4] |= (uint32_t)data[i] << (i % 4 * 8);
    }
    for (size_t i = 0; i < num && minus; i++) {
        carry += (uint32_t)~words[i];
        words[i] = (uint32_t)carry;
        carry >>= 32;
    }

    while (num > 0) {
        carry = 0;
        for (size_t i = num; i > 0; i--) {
            carry = carry << 32 | words[i - 1];
            words[i - 1] = (uint32_t)(carry / 1000000000u);
            carry %= 1000000000u;
        }
        for (int i = 0; i < 9; i++) {
            digits[--at] = (char)('0' + carry % 10);
            carry /= 10;
        }
        while (num > 0 && words[num - 1] == 0) {
            num--;
        }
    }
    while (at < sizeof(digits) - 1 && digits[at] == '0') {
        at++;
    }
    if (minus) {
        digits[--at] = '-';
    }
    return add(walk, out, digits + at, sizeof(digits) - at);
}

/* Length of the UTF-8 sequence at @a text; 0: there is none. */
static size_t utf8_size(const unsigned char *text, size_t size)
{
    size_t want = (text[0] < 0x80)    ? 1
                  : (text[0] < 0xc2)  ? 0
                  : (text[0] < 0xe0)  ? 2
                  : (text[0] < 0xf0)  ? 3
                  : (text[0] <= 0xf4) ? 4
                                      : 0;

    if (want > size) {
        return 0;
    }
    for (size_t i = 1; i < want; i++) {
        if ((text[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    if (want >= 3 && ((text[0] == 0xe0 && text[1] < 0xa0) ||
                      (text[0] == 0xed && text[1] >= 0xa0) ||
                      (text[0] == 0xf0 && text[1] < 0x90) ||
                      (text[0] == 0xf4 && text[1] >= 0x90))) {
        return 0;
    }
    return want;
}

/* Bytes that are no UTF-8 become U+FFFD. */
static fsdp_status_t put_string(walk_t *walk, const char *text, size_t size)
{
    const unsigned char *data = (const unsigned char *)text;
    size_t length;

    FSDP_TRY(put(walk, "\""));
    for (size_t i = 0; i < size; i += length) {
        length = utf8_size(data + i, size - i);
        if (length == 0) {
            length = 1;
            FSDP_TRY(put(walk, "\\ufffd"));
        } else if (data[i] < 0x20) {
            FSDP_TRY(put_format(walk, &walk->text, "\\u%04x", data[i]));
        } else if (data[i] == '"' || data[i] == '\\') {
            FSDP_TRY(put_format(walk, &walk->text, "\\%c", data[i]));
        } else {
            FSDP_TRY(add(walk, &walk->text, text + i, length));
        }
    }
    return put(walk, "\"");
}

static fsdp_status_t put_hex(walk_t *walk, const unsigned char *data,
                             size_t size)
{
    static const char digits[] = "0123456789abcdef";

    FSDP_TRY(put(walk, "{\"$bytes_hex\": \""));
    for (size_t i = 0; i < size; i++) {
        char pair[2] = {digits[data[i] >> 4], digits[data[i] & 15]};

        FSDP_TRY(add(walk, &walk->text, pair, 2));
    }
    return put(walk, "\"}");
}

/* A string whose code points are bytes. */
static fsdp_status_t put_latin1(walk_t *walk, pickle_ref_t ref)
{
    size_t size, used = 0;
    const char *text = pickle_str(walk->pickle, ref, &size);
    unsigned char *bytes = malloc(size + 1);
    fsdp_status_t status;

    if (bytes == NULL) {
        return no_memory(walk);
    }
    for (size_t i = 0; i < size; i++) {
        unsigned c = (unsigned char)text[i];

        if (c >= 0xc0 && i + 1 < size) {
            c = (c << 6 | ((unsigned char)text[++i] & 0x3f)) & 0xff;
        }
        bytes[used++] = (unsigned char)c;
    }
    status = put_hex(walk, bytes, used);
    free(bytes);
    return status;
}

/* --- Names ---------------------------------------------------------------- */

/* One more part of the name; walk->name.used is put back by the caller. */
static fsdp_status_t push_name(walk_t *walk, const char *part, size_t size)
{
    buffer_t *name = &walk->name;

    if (name->used > walk->prefix) {
        FSDP_TRY(add(walk, name, ".", 1));
    }
    return add(walk, name, part, size);
}

static void pop_name(walk_t *walk, size_t used)
{
    walk->name.used = used;
    walk->name.data[used] = '\0';
}

/* A key as Python's str() has it. */
static fsdp_status_t key_text(walk_t *walk, pickle_ref_t key, buffer_t *out)
{
    const pickle_t *pickle = walk->pickle;
    const char *text;
    int64_t number;
    double value;
    size_t size;

    out->used = 0;
    switch (pickle_kind(pickle, key)) {
    case PICKLE_STR:
        text = pickle_str(pickle, key, &size);
        return (memchr(text, '\0', size) == NULL)
                   ? add(walk, out, text, size)
                   : fail(walk, FSDP_ERR_UNSUPPORTED, "a key has a NUL in it");
    case PICKLE_INT:
        (void)pickle_int(pickle, key, &number);
        return put_format(walk, out, "%" PRId64, number);
    case PICKLE_LONG:
        return put_long(walk, out, key);
    case PICKLE_BOOL:
        (void)pickle_int(pickle, key, &number);
        return put_format(walk, out, "%s", (number != 0) ? "True" : "False");
    case PICKLE_NONE:
        return put_format(walk, out, "None");
    case PICKLE_FLOAT:
        (void)pickle_float(pickle, key, &value);
        return put_format(walk, out, "%.17g", value);
    default:
        return fail(walk, FSDP_ERR_UNSUPPORTED,
                    "a key that is neither a string nor a number");
    }
}

/* --- JSON ----------------------------------------------------------------- */

static fsdp_status_t put_value(walk_t *walk, pickle_ref_t ref, unsigned depth);

static fsdp_status_t put_elements(walk_t *walk, pickle_ref_t ref,
                                  unsigned depth)
{
    uint64_t num = pickle_count(walk->pickle, ref);
    size_t used = walk->name.used;

    FSDP_TRY(put(walk, "["));
    for (uint64_t i = 0; i < num; i++) {
        char index[24];
        int size = snprintf(index, sizeof(index), "%" PRIu64, i);

        if (i > 0) {
            FSDP_TRY(put(walk, ", "));
        }
        FSDP_TRY(push_name(walk, index, (size_t)size));
        FSDP_TRY(put_value(walk, pickle_item(walk->pickle, ref, i), depth));
        pop_name(walk, used);
    }
    return put(walk, "]");
}

/* {"$tuple": […]} and the like. */
static fsdp_status_t put_tagged(walk_t *walk, const char *tag, pickle_ref_t ref,
                                unsigned depth)
{
    FSDP_TRY(put(walk, "{\""));
    FSDP_TRY(put(walk, tag));
    FSDP_TRY(put(walk, "\": "));
    FSDP_TRY(put_elements(walk, ref, depth));
    return put(walk, "}");
}

/* JSON's objects have texts without NUL as keys; what begins with '$' means
 * something else. */
static bool is_plain_key(const pickle_t *pickle, pickle_ref_t key)
{
    size_t size = 0;
    const char *text = pickle_str(pickle, key, &size);

    return pickle_kind(pickle, key) == PICKLE_STR && text[0] != '$' &&
           memchr(text, '\0', size) == NULL;
}

static bool is_plain_dict(const pickle_t *pickle, pickle_ref_t dict)
{
    uint64_t num = pickle_count(pickle, dict);

    for (uint64_t i = 0; i < num; i++) {
        if (!is_plain_key(pickle, pickle_key(pickle, dict, i))) {
            return false;
        }
    }

    return true;
}

/* What names a member: its key, or its number if that is a tuple or so. */
static fsdp_status_t member_name(walk_t *walk, pickle_ref_t key, uint64_t i,
                                 buffer_t *out)
{
    if (key_text(walk, key, out) == FSDP_OK) {
        return add(walk, out, "", 0);
    }

    out->used = 0;
    return put_format(walk, out, "%" PRIu64, i);
}

/* "KEY": VALUE, or [KEY, VALUE]. */
static fsdp_status_t put_member(walk_t *walk, pickle_ref_t dict, uint64_t i,
                                bool is_plain, unsigned depth)
{
    pickle_ref_t key = pickle_key(walk->pickle, dict, i);
    size_t used = walk->name.used;
    fsdp_status_t status;
    buffer_t name = {0};

    FSDP_TRY(put(walk, is_plain ? "" : "["));
    FSDP_TRY(put_value(walk, key, depth));
    FSDP_TRY(put(walk, is_plain ? ": " : ", "));
    status = member_name(walk, key, i, &name);
    if (status == FSDP_OK) {
        status = push_name(walk, name.data, name.used);
    }
    free(name.data);
    FSDP_TRY(status);
    FSDP_TRY(put_value(walk, pickle_item(walk->pickle, dict, i), depth));
    pop_name(walk, used);
    return put(walk, is_plain ? "" : "]");
}

static fsdp_status_t put_members(walk_t *walk, pickle_ref_t dict,
                                 unsigned depth)
{
    bool is_plain = is_plain_dict(walk->pickle, dict);
    uint64_t num = pickle_count(walk->pickle, dict);

    FSDP_TRY(put(walk, is_plain ? "{" : "{\"$dict\": ["));
    for (uint64_t i = 0; i < num; i++) {
        if (i > 0) {
            FSDP_TRY(put(walk, ", "));
        }
        FSDP_TRY(put_member(walk, dict, i, is_plain, depth));
    }
    return put(walk, is_plain ? "}" : "]}");
}

static fsdp_status_t put_text(walk_t *walk, const char *text)
{
    return put_string(walk, text, strlen(text));
}

/* "module.Class", with the module's name of Python 3; "module:Outer.Class" of
 * a class inside another. */
static fsdp_status_t put_class_name(walk_t *walk, pickle_ref_t cls)
{
    const char *module = pickle_module(walk->pickle, cls);
    const char *name = pickle_name(walk->pickle, cls);
    fsdp_status_t status;
    char *text;

    if (name == NULL) {
        return put(walk, "\"object\"");
    }

    module = (strcmp(module, "__builtin__") == 0) ? "builtins" : module;
    text = malloc(strlen(module) + strlen(name) + 2);
    if (text == NULL) {
        return no_memory(walk);
    }
    sprintf(text, "%s%c%s", module, (strchr(name, '.') != NULL) ? ':' : '.',
            name);
    status = put_text(walk, text);
    free(text);
    return status;
}

/* A class or a function itself, or a torch.dtype. */
static fsdp_status_t put_global(walk_t *walk, pickle_ref_t ref)
{
    const char *module = pickle_module(walk->pickle, ref);
    const char *name = pickle_name(walk->pickle, ref);
    bool is_torch = strcmp(module, "torch") == 0;
    fsdp_dtype_t dtype;

    FSDP_TRY(put(walk, "{\"$repr\": "));
    FSDP_TRY(put_class_name(walk, ref));
    FSDP_TRY(put(walk, ", \"$class\": "));
    FSDP_TRY(put(walk, (is_torch && torch_dtype(name, &dtype) &&
                        strstr(name, "Storage") == NULL)
                           ? "\"torch.dtype\""
                           : "\"type\""));
    return put(walk, "}");
}

static fsdp_status_t put_device(walk_t *walk, pickle_ref_t ref)
{
    size_t size;
    const char *type =
        pickle_str(walk->pickle, pickle_arg(walk->pickle, ref, 0), &size);
    uint64_t index;
    char text[100];
    bool has_index =
        pickle_u64(walk->pickle, pickle_arg(walk->pickle, ref, 1), &index);

    if (has_index) {
        snprintf(text, sizeof(text), "device(type='%.30s', index=%" PRIu64 ")",
                 type, index);
    } else {
        snprintf(text, sizeof(text), "device(type='%.30s')", type);
    }
    FSDP_TRY(put(walk, "{\"$repr\": "));
    FSDP_TRY(put_text(walk, text));
    return put(walk, ", \"$class\": \"torch.device\"}");
}

/* An object of any class: its name, and what it was made of. */
static fsdp_status_t put_object(walk_t *walk, pickle_ref_t ref, unsigned depth)
{
    const pickle_t *pickle = walk->pickle;
    pickle_ref_t cls = pickle_class(pickle, ref);
    const struct {
        const char *tag;
        pickle_ref_t ref;
    } parts[] = {
        {", \"$args\": ",  pickle_args(pickle,  ref)},
        {", \"$state\": ", pickle_state(pickle, ref)},
        {", \"$items\": ", pickle_items(pickle, ref)},
    };

    FSDP_TRY(put(walk, "{\"$class\": "));
    FSDP_TRY(put_class_name(walk, cls));
    if (pickle_is_new(pickle, ref)) {
        FSDP_TRY(put(walk, ", \"$new\": true"));
    }
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        if (parts[i].ref != 0 &&
            (i > 0 || pickle_count(pickle, parts[i].ref) > 0)) {
            FSDP_TRY(put(walk, parts[i].tag));
            FSDP_TRY(put_value(walk, parts[i].ref, depth));
        }
    }
    return put(walk, "}");
}

static bool is_kind(const pickle_t *pickle, pickle_ref_t ref, uint64_t arg,
                    pickle_kind_t kind)
{
    return pickle_kind(pickle, pickle_arg(pickle, ref, arg)) == kind;
}

/* Objects of classes that are known. */
static fsdp_status_t put_known(walk_t *walk, pickle_ref_t ref, unsigned depth)
{
    const pickle_t *pickle = walk->pickle;
    pickle_ref_t args = pickle_args(pickle, ref), first;
    const char *name = pickle_last_name(pickle, ref);
    uint64_t num = pickle_count(pickle, args);
    pickle_ref_t dict = pickle_as_dict(pickle, ref);

    first = pickle_item(pickle, args, 0);
    if (dict != 0 && num == 0) {
        return put_members(walk, dict, depth);
    }
    if (strcmp(name, "Size") == 0 && is_kind(pickle, ref, 0, PICKLE_TUPLE)) {
        return put_tagged(walk, "$size", first, depth);
    }
    if ((strcmp(name, "set") == 0 || strcmp(name, "frozenset") == 0) &&
        (num == 0 || is_kind(pickle, ref, 0, PICKLE_LIST))) {
        return put_tagged(walk, "$set", first, depth);
    }
    if (strcmp(name, "device") == 0 && is_kind(pickle, ref, 0, PICKLE_STR)) {
        return put_device(walk, ref);
    }
    if ((strcmp(name, "bytes") == 0 || strcmp(name, "bytearray") == 0) &&
        num == 0) {
        return put_hex(walk, NULL, 0);
    }
    if ((strcmp(name, "encode") == 0 || strcmp(name, "bytearray") == 0) &&
        is_kind(pickle, ref, 0, PICKLE_STR)) {
        return put_latin1(walk, first);
    }
    if (strcmp(name, "bytearray") == 0 && num == 1 &&
        pickle_kind(pickle, first) == PICKLE_BYTES) {
        return put_value(walk, first, depth);
    }
    return put_object(walk, ref, depth);
}

/* What is not read here says why, without the names that messages begin with:
 * they differ from rank to rank. */
static fsdp_status_t put_unread(walk_t *walk, pickle_ref_t ref)
{
    fsdp_error_t why = {.text = ": is not read here"};
    torch_sharded_t sharded = {0};
    torch_tensor_t tensor;

    if (torch_is_sharded(walk->pickle, ref)) {
        (void)torch_sharded(walk->pickle, ref, 0, "", &sharded, &why);
        torch_sharded_free(&sharded);
    } else {
        (void)torch_tensor(walk->pickle, ref, "", &tensor, &why);
    }
    FSDP_TRY(put(walk, "{\"$unread\": "));
    FSDP_TRY(put_text(walk, why.text + 2));
    return put(walk, "}");
}

static fsdp_status_t put_tensor(walk_t *walk, pickle_ref_t ref)
{
    fsdp_status_t status =
        walk->tensor(walk->name.data, ref, walk->arg, walk->err);

    if (status == FSDP_ERR_UNSUPPORTED) {
        return put_unread(walk, ref);
    }
    FSDP_TRY(status);
    FSDP_TRY(put(walk, "{\"$tensor\": "));
    FSDP_TRY(put_text(walk, walk->name.data));
    return put(walk, "}");
}

static bool is_any_tensor(const pickle_t *pickle, pickle_ref_t ref)
{
    return torch_is_tensor(pickle, ref) || torch_is_sharded(pickle, ref);
}

static fsdp_status_t put_value(walk_t *walk, pickle_ref_t ref, unsigned depth)
{
    const pickle_t *pickle = walk->pickle;
    const unsigned char *bytes;
    const char *text;
    int64_t number;
    double value;
    size_t size;

    if (!may_look(walk, depth, 1)) {
        return too_large(walk);
    }

    switch (pickle_kind(pickle, ref)) {
    case PICKLE_NONE:
        return put(walk, "null");
    case PICKLE_BOOL:
        (void)pickle_int(pickle, ref, &number);
        return put(walk, (number != 0) ? "true" : "false");
    case PICKLE_INT:
        (void)pickle_int(pickle, ref, &number);
        return put_format(walk, &walk->text, "%" PRId64, number);
    case PICKLE_LONG:
        return put_long(walk, &walk->text, ref);
    case PICKLE_FLOAT:
        (void)pickle_float(pickle, ref, &value);
        return put_float(walk, value);
    case PICKLE_STR:
        text = pickle_str(pickle, ref, &size);
        return put_string(walk, text, size);
    case PICKLE_BYTES:
        bytes = pickle_bytes(pickle, ref, &size);
        return put_hex(walk, bytes, size);
    case PICKLE_TUPLE:
        return put_tagged(walk, "$tuple", ref, depth + 1);
    case PICKLE_SET:
        return put_tagged(walk, "$set", ref, depth + 1);
    case PICKLE_LIST:
        return put_elements(walk, ref, depth + 1);
    case PICKLE_DICT:
        return put_members(walk, ref, depth + 1);
    case PICKLE_GLOBAL:
        return put_global(walk, ref);
    case PICKLE_OBJECT:
        return (walk->tensor != NULL && is_any_tensor(pickle, ref))
                   ? put_tensor(walk, ref)
                   : put_known(walk, ref, depth + 1);
    case PICKLE_PERSID:
        return put(walk, "{\"$unread\": \"is a storage and no tensor, which is "
                         "not read here\"}");
    default:
        return put(walk, "null");
    }
}

fsdp_status_t torch_value_json(const pickle_t *pickle, pickle_ref_t ref,
                               const char *name, torch_found_f tensor,
                               void *arg, char **text_p, fsdp_error_t *err)
{
    walk_t walk = {.pickle = pickle, .tensor = tensor, .arg = arg, .err = err};
    fsdp_status_t status = add(&walk, &walk.name, name, strlen(name));

    if (status == FSDP_OK) {
        status = put_value(&walk, ref, 0);
    }
    if (status == FSDP_OK && !pickle_spend(pickle, walk.text.used)) {
        status = too_large(&walk);
    }
    free(walk.name.data);
    if (status != FSDP_OK) {
        free(walk.text.data);
        return status;
    }

    *text_p = walk.text.data;
    return FSDP_OK;
}

/* --- Taking apart --------------------------------------------------------- */

/* Does a list hold dicts or tensors, or lists that do? */
static bool is_split(walk_t *walk, pickle_ref_t list, unsigned depth)
{
    const pickle_t *pickle = walk->pickle;
    uint64_t num = pickle_count(pickle, list);

    for (uint64_t i = 0; i < num && depth < MAX_DEPTH; i++) {
        pickle_ref_t item = pickle_item(pickle, list, i);

        if (!may_look(walk, depth, 1)) {
            return false;
        }
        if (pickle_as_dict(pickle, item) != 0 || is_any_tensor(pickle, item) ||
            (pickle_kind(pickle, item) == PICKLE_LIST &&
             is_split(walk, item, depth + 1))) {
            return true;
        }
    }

    return false;
}

/* The attribute of a module's state dict, added to what is noted of it. */
static fsdp_status_t note_metadata(const walk_t *walk, pickle_ref_t ref,
                                   json_t *note)
{
    pickle_ref_t metadata =
        pickle_get(walk->pickle, pickle_state(walk->pickle, ref), "_metadata");
    fsdp_status_t status;
    json_t *value;
    char *text;

    if (metadata == 0) {
        return FSDP_OK;
    }
    FSDP_TRY(torch_value_json(walk->pickle, metadata, "_metadata", NULL, NULL,
                              &text, walk->err));
    status = value_parse("_metadata", text, strlen(text), &value, walk->err);
    free(text);
    if (status == FSDP_OK) {
        json_object_set_new(note, "_metadata", value);
    }
    return status;
}

/* What the keys of a dict are, unless they are all texts. */
static const char *keys_of(const pickle_t *pickle, pickle_ref_t dict)
{
    uint64_t num = pickle_count(pickle, dict), integers = 0;

    for (uint64_t i = 0; i < num; i++) {
        pickle_kind_t kind = pickle_kind(pickle, pickle_key(pickle, dict, i));

        if (kind != PICKLE_INT && kind != PICKLE_STR) {
            return NEST_KEYS_OTHER;
        }
        integers += kind == PICKLE_INT;
    }

    return (integers > 0) ? NEST_KEYS_INT : NULL;
}

/* Note a container, which lies under @a key; 0: an index, or nothing. */
static fsdp_status_t note(const walk_t *walk, pickle_ref_t key,
                          pickle_ref_t ref)
{
    const pickle_t *pickle = walk->pickle;
    const char *text = pickle_str(pickle, key, NULL);
    pickle_ref_t dict = pickle_as_dict(pickle, ref);
    nest_is_t is = (dict == 0)                             ? NEST_LIST
                   : pickle_is(pickle, ref, "OrderedDict") ? NEST_ORDERED
                                                           : NEST_DICT;
    const char *keys = keys_of(pickle, dict);
    size_t size = walk->name.used;
    fsdp_status_t status = FSDP_OK;
    json_t *all = json_object();
    int64_t number;
    char *name;

    if (nest_is_text(is) != NULL) {
        json_object_set_new(all, "is", json_string(nest_is_text(is)));
    }
    if (keys != NULL) {
        json_object_set_new(all, "keys", json_string(keys));
    }
    if (text != NULL && strchr(text, '.') != NULL) {
        json_object_set_new(all, "key", json_string(text));
    } else if (pickle_kind(pickle, key) == PICKLE_INT) {
        (void)pickle_int(pickle, key, &number);
        json_object_set_new(all, "key", json_integer(number));
    }
    if (is == NEST_ORDERED) {
        status = note_metadata(walk, ref, all);
    }
    size -= size == walk->prefix && size > 0; /* its dot */
    name = strndup(walk->name.data, size);
    if (name == NULL && status == FSDP_OK) {
        status = no_memory(walk);
    }
    /* Not of a name that is no UTF-8: that stays a key of the root. */
    (void)json_object_set_new(walk->nesting, name, all);
    free(name);
    return status;
}

static fsdp_status_t take_apart(walk_t *walk, pickle_ref_t key,
                                pickle_ref_t ref, unsigned depth);

static fsdp_status_t take_part(walk_t *walk, const char *part, size_t size,
                               pickle_ref_t key, pickle_ref_t ref,
                               unsigned depth)
{
    size_t used = walk->name.used;

    FSDP_TRY(push_name(walk, part, size));
    FSDP_TRY(take_apart(walk, key, ref, depth));
    pop_name(walk, used);
    return FSDP_OK;
}

static fsdp_status_t take_dict(walk_t *walk, pickle_ref_t dict, unsigned depth)
{
    uint64_t num = pickle_count(walk->pickle, dict);
    fsdp_status_t status = FSDP_OK;
    buffer_t text = {0};

    for (uint64_t i = 0; i < num && status == FSDP_OK; i++) {
        pickle_ref_t key = pickle_key(walk->pickle, dict, i);

        status = key_text(walk, key, &text);
        if (status == FSDP_OK) {
            status = take_part(walk, text.data ? text.data : "", text.used, key,
                               pickle_item(walk->pickle, dict, i), depth);
        }
    }

    free(text.data);
    return status;
}

static fsdp_status_t take_list(walk_t *walk, pickle_ref_t list, unsigned depth)
{
    uint64_t num = pickle_count(walk->pickle, list);

    for (uint64_t i = 0; i < num; i++) {
        char index[24];
        int size = snprintf(index, sizeof(index), "%" PRIu64, i);

        FSDP_TRY(take_part(walk, index, (size_t)size, 0,
                           pickle_item(walk->pickle, list, i), depth));
    }
    return FSDP_OK;
}

/* Is each key of a dict one that key_text() has a text for? */
static bool has_names(const pickle_t *pickle, pickle_ref_t dict)
{
    uint64_t num = pickle_count(pickle, dict);

    for (uint64_t i = 0; i < num; i++) {
        pickle_ref_t key = pickle_key(pickle, dict, i);
        pickle_kind_t kind = pickle_kind(pickle, key);
        size_t size = 0;
        const char *text = pickle_str(pickle, key, &size);

        if ((kind != PICKLE_STR && kind != PICKLE_INT && kind != PICKLE_LONG &&
             kind != PICKLE_BOOL && kind != PICKLE_NONE &&
             kind != PICKLE_FLOAT) ||
            (kind == PICKLE_STR && memchr(text, '\0', size) != NULL)) {
            return false;
        }
    }

    return true;
}

/* Is a dict taken apart?  The root is, and what has keys for parts of names. */
static bool is_named(const pickle_t *pickle, pickle_ref_t dict, unsigned depth)
{
    return dict != 0 && (depth == 0 || (pickle_count(pickle, dict) > 0 &&
                                        has_names(pickle, dict)));
}

/* One tensor or value that is no dict's: it has the name of its part, which
 * has no dot then, or is all there is. */
static void name_root(walk_t *walk)
{
    if (walk->prefix > 0) {
        pop_name(walk, walk->prefix - 1);
    } else if (walk->nesting != NULL) {
        json_object_set_new(walk->nesting, "",
                            json_pack("{s:s}", "is", nest_is_text(NEST_LEAF)));
    }
}

static fsdp_status_t take_apart(walk_t *walk, pickle_ref_t key,
                                pickle_ref_t ref, unsigned depth)
{
    const pickle_t *pickle = walk->pickle;
    pickle_ref_t dict = pickle_as_dict(pickle, ref);
    bool is_dict = is_named(pickle, dict, depth), is_list;

    if (!may_look(walk, depth, STEP + walk->name.used)) {
        return too_large(walk);
    }

    is_list = !is_dict && pickle_kind(pickle, ref) == PICKLE_LIST &&
              is_split(walk, ref, 0);
    if (depth == 0 && !is_dict && !is_list) {
        name_root(walk);
    }
    if (is_any_tensor(pickle, ref)) {
        fsdp_status_t status =
            walk->tensor(walk->name.data, ref, walk->arg, walk->err);

        return (status == FSDP_ERR_UNSUPPORTED)
                   ? walk->value(walk->name.data, ref, walk->arg, walk->err)
                   : status;
    }
    if (!is_dict && !is_list) {
        return walk->value(walk->name.data, ref, walk->arg, walk->err);
    }
    if (walk->nesting != NULL) {
        FSDP_TRY(note(walk, key, ref));
    }
    return is_dict ? take_dict(walk, dict, depth + 1)
                   : take_list(walk, ref, depth + 1);
}

fsdp_status_t torch_walk(const pickle_t *pickle, pickle_ref_t ref,
                         const char *prefix, json_t *nesting,
                         torch_found_f tensor, torch_found_f value, void *arg,
                         fsdp_error_t *err)
{
    walk_t walk = {.pickle = pickle,
                   .tensor = tensor,
                   .value = value,
                   .prefix = strlen(prefix),
                   .nesting = nesting,
                   .arg = arg,
                   .err = err};
    fsdp_status_t status;

    status = add(&walk, &walk.name, prefix, strlen(prefix));
    if (status == FSDP_OK) {
        status = take_apart(&walk, 0, ref, 0);
    }
    free(walk.name.data);
    return status;
}
