/*
 * The pickle machine: a stack, marks on it and a memo, as Python's has them.
 */
#include "config.h"

#include "ckpt/pickle.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/pickle_tree.h"
#include "lib/util/check.h"
#include "lib/util/io.h"

#define WINDOW    (1u << 20)   /* bytes of a file that are read at a time */
#define LINE_MAX  (1u << 20)   /* of the opcodes that are lines of text */
#define SIZE_MOST (1ull << 33) /* bytes of one pickle */

enum { DIGITS_MAX = 4300 }; /* of an integer as text: what Python takes */

/* The opcodes, as Lib/pickle.py names them. */
enum {
    OP_MARK = '(',
    OP_STOP = '.',
    OP_POP = '0',
    OP_POP_MARK = '1',
    OP_DUP = '2',
    OP_FLOAT = 'F',
    OP_INT = 'I',
    OP_BININT = 'J',
    OP_BININT1 = 'K',
    OP_LONG = 'L',
    OP_BININT2 = 'M',
    OP_NONE = 'N',
    OP_PERSID = 'P',
    OP_BINPERSID = 'Q',
    OP_REDUCE = 'R',
    OP_STRING = 'S',
    OP_BINSTRING = 'T',
    OP_SHORT_BINSTRING = 'U',
    OP_UNICODE = 'V',
    OP_BINUNICODE = 'X',
    OP_APPEND = 'a',
    OP_BUILD = 'b',
    OP_GLOBAL = 'c',
    OP_DICT = 'd',
    OP_EMPTY_DICT = '}',
    OP_APPENDS = 'e',
    OP_GET = 'g',
    OP_BINGET = 'h',
    OP_INST = 'i',
    OP_LONG_BINGET = 'j',
    OP_LIST = 'l',
    OP_EMPTY_LIST = ']',
    OP_OBJ = 'o',
    OP_PUT = 'p',
    OP_BINPUT = 'q',
    OP_LONG_BINPUT = 'r',
    OP_SETITEM = 's',
    OP_TUPLE = 't',
    OP_EMPTY_TUPLE = ')',
    OP_SETITEMS = 'u',
    OP_BINFLOAT = 'G',
    OP_BINBYTES = 'B',
    OP_SHORT_BINBYTES = 'C',
    OP_PROTO = 0x80,
    OP_NEWOBJ = 0x81,
    OP_EXT1 = 0x82,
    OP_EXT2 = 0x83,
    OP_EXT4 = 0x84,
    OP_TUPLE1 = 0x85,
    OP_TUPLE2 = 0x86,
    OP_TUPLE3 = 0x87,
    OP_NEWTRUE = 0x88,
    OP_NEWFALSE = 0x89,
    OP_LONG1 = 0x8a,
    OP_LONG4 = 0x8b,
    OP_SHORT_BINUNICODE = 0x8c,
    OP_BINUNICODE8 = 0x8d,
    OP_BINBYTES8 = 0x8e,
    OP_EMPTY_SET = 0x8f,
    OP_ADDITEMS = 0x90,
    OP_FROZENSET = 0x91,
    OP_NEWOBJ_EX = 0x92,
    OP_STACK_GLOBAL = 0x93,
    OP_MEMOIZE = 0x94,
    OP_FRAME = 0x95,
    OP_BYTEARRAY8 = 0x96,
    OP_NEXT_BUFFER = 0x97,
    OP_READONLY_BUFFER = 0x98
};

typedef struct {
    pickle_ref_t *items;
    uint64_t num, max;
} array_t;

typedef struct {
    const char *what;

    /* Input: data[pos, end) is at hand; of a file, more follows. */
    const unsigned char *data;
    size_t pos, end;
    uint64_t base;       /* bytes before data[0] */
    int fd;              /* -1: all is at hand */
    uint64_t next, rest; /* of the file: where it goes on, and how far */
    unsigned char *window;
    size_t window_size;

    pickle_t *tree;
    array_t stack, marks, memo, persids;
    uint64_t memo_num;
    fsdp_error_t *err;
} vm_t;

static uint64_t position(const vm_t *vm)
{
    return vm->base + vm->pos;
}

static fsdp_status_t bad(vm_t *vm, const char *why)
{
    errno = 0;
    return fsdp_error_set(vm->err, FSDP_ERR_CORRUPT,
                          "%s: pickle damaged at byte %" PRIu64 ": %s",
                          vm->what, position(vm), why);
}

static fsdp_status_t no_memory(vm_t *vm)
{
    return fsdp_error_set(vm->err, FSDP_ERR_NO_MEMORY,
                          "%s: no memory for the values of its pickle",
                          vm->what);
}

/* --- Input ---------------------------------------------------------------- */

/* Have @a size more bytes at hand; vm->data may move. */
static fsdp_status_t need_more(vm_t *vm, uint64_t size)
{
    size_t have = vm->end - vm->pos, want;
    unsigned char *larger;

    if (vm->fd < 0 || size - have > vm->rest) {
        return bad(vm, "it ends too early");
    }

    if (size > vm->window_size) {
        larger = malloc(size);
        if (larger == NULL) {
            return no_memory(vm);
        }
        if (have > 0) {
            memcpy(larger, vm->data + vm->pos, have);
        }
        free(vm->window);
        vm->window = larger;
        vm->window_size = size;
    } else {
        memmove(vm->window, vm->data + vm->pos, have);
    }

    vm->base += vm->pos;
    vm->data = vm->window;
    vm->pos = 0;
    vm->end = have;
    want = vm->window_size - have;
    if (want > vm->rest) {
        want = (size_t)vm->rest;
    }
    FSDP_TRY(
        io_pread(vm->fd, vm->window + have, want, vm->next, vm->what, vm->err));
    vm->end += want;
    vm->next += want;
    vm->rest -= want;
    return FSDP_OK;
}

static inline fsdp_status_t need(vm_t *vm, uint64_t size)
{
    return (vm->end - vm->pos >= size) ? FSDP_OK : need_more(vm, size);
}

/* The next @a bytes as a little-endian number. */
static fsdp_status_t get_number(vm_t *vm, unsigned bytes, uint64_t *number_p)
{
    uint64_t number = 0;

    FSDP_TRY(need(vm, bytes));
    memcpy(&number, vm->data + vm->pos, bytes);
    vm->pos += bytes;
    *number_p = le64toh(number);
    return FSDP_OK;
}

/* The next line, without its end; borrowed until more is read. */
static fsdp_status_t get_line(vm_t *vm, const char **line_p, size_t *size_p)
{
    size_t size = 64, have;
    const unsigned char *end;

    for (;;) {
        have = vm->end - vm->pos;
        end = (have > 0) ? memchr(vm->data + vm->pos, '\n', have) : NULL;
        if (end != NULL) {
            break;
        }
        if (have >= LINE_MAX) {
            return bad(vm, "a line has no end");
        }
        size = have + 1;
        FSDP_TRY(need(vm, size));
    }

    *line_p = (const char *)vm->data + vm->pos;
    *size_p = (size_t)(end - (vm->data + vm->pos));
    vm->pos += *size_p + 1;
    return FSDP_OK;
}

/* --- Stack and memo ------------------------------------------------------- */

static fsdp_status_t push_on(vm_t *vm, array_t *array, uint32_t item)
{
    if (array->num == array->max) {
        uint64_t max = (array->max == 0) ? 256 : 2 * array->max;
        pickle_ref_t *larger = realloc(array->items, max * sizeof(*larger));

        if (larger == NULL) {
            return no_memory(vm);
        }
        array->items = larger;
        array->max = max;
    }

    array->items[array->num++] = item;
    return FSDP_OK;
}

/* @a ref is 0 if there was no memory for it. */
static fsdp_status_t push(vm_t *vm, pickle_ref_t ref)
{
    return (ref == 0) ? no_memory(vm) : push_on(vm, &vm->stack, ref);
}

/* What lies below the last mark is out of reach. */
static uint64_t floor_of(const vm_t *vm)
{
    return (vm->marks.num > 0) ? vm->marks.items[vm->marks.num - 1] : 0;
}

static fsdp_status_t want(vm_t *vm, uint64_t num)
{
    return (vm->stack.num - floor_of(vm) >= num)
               ? FSDP_OK
               : bad(vm, "it takes more from the stack than there is");
}

static pickle_ref_t *top(vm_t *vm, uint64_t back)
{
    return &vm->stack.items[vm->stack.num - back];
}

/* What was pushed since the last mark, which goes; it stays in the array until
 * something is pushed. */
static fsdp_status_t pop_mark(vm_t *vm, pickle_ref_t **items_p, uint64_t *num_p)
{
    uint64_t from;

    if (vm->marks.num == 0) {
        return bad(vm, "there is no mark");
    }

    from = vm->marks.items[--vm->marks.num];
    *items_p = vm->stack.items + from;
    *num_p = vm->stack.num - from;
    vm->stack.num = from;
    return FSDP_OK;
}

/* Indexes are no larger than the bytes read: so is the memo. */
static fsdp_status_t put(vm_t *vm, uint64_t index)
{
    array_t *memo = &vm->memo;

    FSDP_TRY(want(vm, 1));
    if (index > position(vm)) {
        return bad(vm, "an index of the memo is too large");
    }

    while (memo->num <= index) {
        FSDP_TRY(push_on(vm, memo, 0));
    }
    vm->memo_num += memo->items[index] == 0;
    memo->items[index] = *top(vm, 1);
    return FSDP_OK;
}

static fsdp_status_t get(vm_t *vm, uint64_t index)
{
    return (index < vm->memo.num && vm->memo.items[index] != 0)
               ? push(vm, vm->memo.items[index])
               : bad(vm, "the memo has no such entry");
}

/* --- Numbers and strings -------------------------------------------------- */

/* Two's complement, little-endian. */
static pickle_ref_t long_value(pickle_t *tree, const unsigned char *data,
                               size_t size)
{
    uint64_t value;

    if (size > 8) {
        return tree_text(tree, PICKLE_LONG, data, size);
    }

    value = (size > 0 && (data[size - 1] & 0x80) != 0) ? UINT64_MAX : 0;
    for (size_t i = size; i > 0; i--) {
        value = value << 8 | data[i - 1];
    }
    return tree_int(tree, (int64_t)value);
}

static fsdp_status_t push_long(vm_t *vm, uint64_t size)
{
    FSDP_TRY(need(vm, size));
    FSDP_TRY(push(vm, long_value(vm->tree, vm->data + vm->pos, (size_t)size)));
    vm->pos += (size_t)size;
    return FSDP_OK;
}

/* An integer as text. */
static fsdp_status_t push_decimal(vm_t *vm, const char *line, size_t size)
{
    unsigned char value[DIGITS_MAX / 2 + 2] = {0};
    size_t bytes = 1, i = 0;
    bool minus = false;
    unsigned carry;

    if (size > 0 && line[size - 1] == 'L') {
        size--;
    }
    if (size > 0 && (line[0] == '-' || line[0] == '+')) {
        minus = line[i++] == '-';
    }
    if (i == size || size > DIGITS_MAX) {
        return bad(vm, "an integer has no digits, or too many");
    }

    for (; i < size; i++) {
        if (line[i] < '0' || line[i] > '9') {
            return bad(vm, "an integer has other characters than digits");
        }
        carry = (unsigned)(line[i] - '0');
        for (size_t b = 0; b < bytes; b++) {
            carry += value[b] * 10u;
            value[b] = (unsigned char)carry;
            carry >>= 8;
        }
        if (carry > 0) {
            value[bytes++] = (unsigned char)carry;
        }
    }

    bytes++; /* room for the sign */
    carry = 1;
    for (size_t b = 0; minus && b < bytes; b++) {
        carry += (unsigned char)~value[b];
        value[b] = (unsigned char)carry;
        carry >>= 8;
    }
    while (bytes > 1 &&
           ((value[bytes - 1] == 0 && value[bytes - 2] < 0x80) ||
            (value[bytes - 1] == 0xff && value[bytes - 2] >= 0x80))) {
        bytes--;
    }
    return push(vm, long_value(vm->tree, value, bytes));
}

static fsdp_status_t push_int_line(vm_t *vm)
{
    const char *line;
    size_t size;

    FSDP_TRY(get_line(vm, &line, &size));
    if (size == 2 && line[0] == '0' && (line[1] == '0' || line[1] == '1')) {
        return push(vm, (line[1] == '1') ? TREE_TRUE : TREE_FALSE);
    }
    return push_decimal(vm, line, size);
}

static fsdp_status_t push_float_line(vm_t *vm)
{
    const char *line;
    char text[64], *end;
    double value;
    size_t size;

    FSDP_TRY(get_line(vm, &line, &size));
    if (size == 0 || size >= sizeof(text)) {
        return bad(vm, "a number has no digits, or too many");
    }

    memcpy(text, line, size);
    text[size] = '\0';
    value = strtod(text, &end);
    return (*end == '\0') ? push(vm, tree_float(vm->tree, value))
                          : bad(vm, "a number is none");
}

static fsdp_status_t push_binfloat(vm_t *vm)
{
    uint64_t bits;
    double value;

    FSDP_TRY(get_number(vm, 8, &bits));
    bits = __builtin_bswap64(bits); /* the only big-endian number */
    memcpy(&value, &bits, sizeof(value));
    return push(vm, tree_float(vm->tree, value));
}

/* A length of @a bytes, then so much. */
static fsdp_status_t push_text(vm_t *vm, pickle_kind_t kind, unsigned bytes)
{
    uint64_t size;

    FSDP_TRY(get_number(vm, bytes, &size));
    FSDP_TRY(need(vm, size));
    FSDP_TRY(
        push(vm, tree_text(vm->tree, kind, vm->data + vm->pos, (size_t)size)));
    vm->pos += (size_t)size;
    return FSDP_OK;
}

/* Append a code point as UTF-8. */
static size_t put_utf8(char *text, uint32_t code)
{
    if (code < 0x80) {
        text[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        text[0] = (char)(0xc0 | code >> 6);
        text[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        text[0] = (char)(0xe0 | code >> 12);
        text[1] = (char)(0x80 | (code >> 6 & 0x3f));
        text[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    text[0] = (char)(0xf0 | code >> 18);
    text[1] = (char)(0x80 | (code >> 12 & 0x3f));
    text[2] = (char)(0x80 | (code >> 6 & 0x3f));
    text[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

/* @a digits hexadecimal digits at *at_p, if they are there. */
static bool get_hex(const char *line, size_t size, size_t *at_p,
                    unsigned digits, uint32_t *code_p)
{
    uint32_t code = 0;

    if (size - *at_p < digits) {
        return false;
    }
    for (unsigned i = 0; i < digits; i++) {
        int c = (unsigned char)line[*at_p + i];
        int low = c | 0x20;

        if (c >= '0' && c <= '9') {
            code = code << 4 | (uint32_t)(c - '0');
        } else if (low >= 'a' && low <= 'f') {
            code = code << 4 | (uint32_t)(low - 'a' + 10);
        } else {
            return false;
        }
    }

    *at_p += digits;
    *code_p = code;
    return code <= 0x10ffff;
}

/* A line of Latin-1 with \uXXXX and \UXXXXXXXX. */
static size_t from_raw_unicode(const char *line, size_t size, char *text)
{
    size_t used = 0, at = 0;

    while (at < size) {
        uint32_t code = (unsigned char)line[at++];
        size_t digits = at + 1;

        if (code == '\\' && at < size &&
            ((line[at] == 'u' && get_hex(line, size, &digits, 4, &code)) ||
             (line[at] == 'U' && get_hex(line, size, &digits, 8, &code)))) {
            at = digits;
        }
        used += put_utf8(text + used, code);
    }

    return used;
}

/* A quoted string of Python 2, with backslashes. */
static size_t from_quoted(const char *line, size_t size, char *text)
{
    static const char from[] = "abfnrtv", to[] = "\a\b\f\n\r\t\v";
    size_t used = 0, at = 0;

    while (at < size) {
        char c = line[at++];
        const char *known;
        uint32_t code;

        if (c == '\\' && at < size) {
            c = line[at++];
            known = (c != '\0') ? strchr(from, c) : NULL;
            if (known != NULL) {
                c = to[known - from];
            } else if (c == 'x' && get_hex(line, size, &at, 2, &code)) {
                c = (char)code;
            }
        }
        text[used++] = c;
    }

    return used;
}

static fsdp_status_t push_text_line(vm_t *vm, bool quoted)
{
    const char *line;
    pickle_ref_t ref;
    size_t size;
    char *text;

    FSDP_TRY(get_line(vm, &line, &size));
    if (quoted) {
        if (size < 2 || (line[0] != '\'' && line[0] != '"') ||
            line[size - 1] != line[0]) {
            return bad(vm, "a string is not quoted");
        }
        line++;
        size -= 2;
    }

    text = malloc(2 * size + 4); /* Latin-1 becomes two bytes */
    if (text == NULL) {
        return no_memory(vm);
    }
    size = quoted ? from_quoted(line, size, text)
                  : from_raw_unicode(line, size, text);
    ref = tree_text(vm->tree, PICKLE_STR, text, size);
    free(text);
    return push(vm, ref);
}

/* --- Containers and objects ----------------------------------------------- */

/* Replace what is above the last mark, or the top @a num, by one value. */
static fsdp_status_t replace(vm_t *vm, uint64_t num, pickle_ref_t ref)
{
    vm->stack.num -= num;
    return push(vm, ref);
}

static fsdp_status_t push_tuple(vm_t *vm, uint64_t num)
{
    FSDP_TRY(want(vm, num));
    return replace(vm, num, tree_tuple(vm->tree, top(vm, num), num));
}

static fsdp_status_t push_marked_tuple(vm_t *vm)
{
    pickle_ref_t *items = NULL;
    uint64_t num = 0;

    FSDP_TRY(pop_mark(vm, &items, &num));
    return push(vm, tree_tuple(vm->tree, items, num));
}

/* A list, set or dict of what is above the mark. */
static fsdp_status_t push_filled(vm_t *vm, pickle_kind_t kind)
{
    pickle_ref_t *items = NULL, ref;
    uint64_t num = 0;

    FSDP_TRY(pop_mark(vm, &items, &num));
    if (kind == PICKLE_DICT && num % 2 != 0) {
        return bad(vm, "a key has no value");
    }
    ref = tree_list(vm->tree, kind);
    if (ref == 0 || !tree_append(vm->tree, ref, items, num)) {
        return no_memory(vm);
    }
    return push(vm, ref);
}

/* Put items into the container below them. */
static fsdp_status_t fill(vm_t *vm, pickle_kind_t kind,
                          const pickle_ref_t *items, uint64_t num)
{
    pickle_ref_t ref;

    if (kind == PICKLE_DICT && num % 2 != 0) {
        return bad(vm, "a key has no value");
    }
    FSDP_TRY(want(vm, 1));
    ref = *top(vm, 1);
    if (pickle_kind(vm->tree, ref) == PICKLE_OBJECT) {
        ref = tree_items(vm->tree, ref, kind);
    }
    if (pickle_kind(vm->tree, ref) != kind) {
        return bad(vm, "what should be filled is no such container");
    }
    return tree_append(vm->tree, ref, items, num) ? FSDP_OK : no_memory(vm);
}

static fsdp_status_t fill_marked(vm_t *vm, pickle_kind_t kind)
{
    pickle_ref_t *items = NULL;
    uint64_t num = 0;

    FSDP_TRY(pop_mark(vm, &items, &num));
    return fill(vm, kind, items, num);
}

static fsdp_status_t fill_top(vm_t *vm, pickle_kind_t kind, uint64_t num)
{
    FSDP_TRY(want(vm, num + 1));
    vm->stack.num -= num;
    return fill(vm, kind, vm->stack.items + vm->stack.num, num);
}

static fsdp_status_t make_global(vm_t *vm, pickle_ref_t module,
                                 pickle_ref_t name, pickle_ref_t *ref_p)
{
    if (pickle_kind(vm->tree, module) != PICKLE_STR ||
        pickle_kind(vm->tree, name) != PICKLE_STR) {
        return bad(vm, "the name of a class is no string");
    }

    *ref_p = tree_node(vm->tree, PICKLE_GLOBAL, module, name, 0);
    return (*ref_p != 0) ? FSDP_OK : no_memory(vm);
}

static fsdp_status_t get_global(vm_t *vm, pickle_ref_t *ref_p)
{
    pickle_ref_t parts[2];
    const char *line;
    size_t size;

    for (int i = 0; i < 2; i++) {
        FSDP_TRY(get_line(vm, &line, &size));
        parts[i] = tree_text(vm->tree, PICKLE_STR, line, size);
        if (parts[i] == 0) {
            return no_memory(vm);
        }
    }
    return make_global(vm, parts[0], parts[1], ref_p);
}

static fsdp_status_t push_global(vm_t *vm)
{
    pickle_ref_t ref;

    FSDP_TRY(get_global(vm, &ref));
    return push(vm, ref);
}

static fsdp_status_t push_stack_global(vm_t *vm)
{
    pickle_ref_t ref;

    FSDP_TRY(want(vm, 2));
    FSDP_TRY(make_global(vm, *top(vm, 2), *top(vm, 1), &ref));
    return replace(vm, 2, ref);
}

static fsdp_status_t push_object(vm_t *vm, bool is_new)
{
    FSDP_TRY(want(vm, 2));
    if (pickle_kind(vm->tree, *top(vm, 1)) != PICKLE_TUPLE) {
        return bad(vm, "the arguments of a class are no tuple");
    }
    return replace(vm, 2,
                   tree_object(vm->tree, *top(vm, 2), *top(vm, 1), is_new));
}

/* class, args, keywords: the keywords become the last argument. */
static fsdp_status_t push_object_ex(vm_t *vm)
{
    pickle_ref_t args, *all;
    uint64_t num;

    FSDP_TRY(want(vm, 3));
    args = *top(vm, 2);
    num = pickle_count(vm->tree, args);
    if (pickle_kind(vm->tree, args) != PICKLE_TUPLE) {
        return bad(vm, "the arguments of a class are no tuple");
    }
    all = malloc((num + 1) * sizeof(*all));
    if (all == NULL) {
        return no_memory(vm);
    }
    for (uint64_t i = 0; i < num; i++) {
        all[i] = pickle_item(vm->tree, args, i);
    }
    all[num] = *top(vm, 1);
    args = tree_tuple(vm->tree, all, num + 1);
    free(all);
    return (args != 0)
               ? replace(vm, 3, tree_object(vm->tree, *top(vm, 3), args, false))
               : no_memory(vm);
}

/* The old forms: the class is in a line, or the first above the mark. */
static fsdp_status_t push_instance(vm_t *vm, bool in_line)
{
    pickle_ref_t *items = NULL, cls = 0, args;
    uint64_t num = 0;

    if (in_line) {
        FSDP_TRY(get_global(vm, &cls));
    }
    FSDP_TRY(pop_mark(vm, &items, &num));
    if (!in_line) {
        if (num == 0) {
            return bad(vm, "an object has no class");
        }
        cls = *items++;
        num--;
    }
    args = tree_tuple(vm->tree, items, num);
    return (args != 0) ? push(vm, tree_object(vm->tree, cls, args, false))
                       : no_memory(vm);
}

static fsdp_status_t build(vm_t *vm)
{
    FSDP_TRY(want(vm, 2));
    if (pickle_kind(vm->tree, *top(vm, 2)) != PICKLE_OBJECT) {
        return bad(vm, "a state is given to what is no object");
    }
    if (!tree_set_state(vm->tree, *top(vm, 2), *top(vm, 1))) {
        return no_memory(vm);
    }
    vm->stack.num--;
    return FSDP_OK;
}

/* Replace the top @a num by a persistent id. */
static fsdp_status_t replace_persid(vm_t *vm, uint64_t num, pickle_ref_t id)
{
    pickle_ref_t ref =
        (id != 0) ? tree_node(vm->tree, PICKLE_PERSID, id, 0, 0) : 0;

    if (ref == 0) {
        return no_memory(vm);
    }
    FSDP_TRY(push_on(vm, &vm->persids, ref));
    return replace(vm, num, ref);
}

static fsdp_status_t push_persid_line(vm_t *vm)
{
    const char *line;
    size_t size;

    FSDP_TRY(get_line(vm, &line, &size));
    return replace_persid(vm, 0, tree_text(vm->tree, PICKLE_STR, line, size));
}

static fsdp_status_t push_persid(vm_t *vm)
{
    FSDP_TRY(want(vm, 1));
    return replace_persid(vm, 1, *top(vm, 1));
}

/* --- The machine ---------------------------------------------------------- */

static fsdp_status_t push_number(vm_t *vm, unsigned bytes)
{
    uint64_t number;

    FSDP_TRY(get_number(vm, bytes, &number));
    return push(vm, tree_int(vm->tree, (bytes == 4) ? (int32_t)(uint32_t)number
                                                    : (int64_t)number));
}

static fsdp_status_t memo_number(vm_t *vm, unsigned bytes, bool is_put)
{
    uint64_t number;

    FSDP_TRY(get_number(vm, bytes, &number));
    return is_put ? put(vm, number) : get(vm, number);
}

static fsdp_status_t memo_line(vm_t *vm, bool is_put)
{
    uint64_t number = 0;
    const char *line;
    size_t size;

    FSDP_TRY(get_line(vm, &line, &size));
    for (size_t i = 0; i < size; i++) {
        if (line[i] < '0' || line[i] > '9' || i > 15) {
            return bad(vm, "an index of the memo is no number");
        }
        number = number * 10 + (uint64_t)(line[i] - '0');
    }
    return is_put ? put(vm, number) : get(vm, number);
}

static fsdp_status_t push_sized_long(vm_t *vm, unsigned bytes)
{
    uint64_t size;

    FSDP_TRY(get_number(vm, bytes, &size));
    return push_long(vm, size);
}

static fsdp_status_t skip(vm_t *vm, unsigned bytes)
{
    uint64_t number;

    return get_number(vm, bytes, &number);
}

static fsdp_status_t proto(vm_t *vm)
{
    uint64_t version;

    FSDP_TRY(get_number(vm, 1, &version));
    return (version <= 5) ? FSDP_OK
                          : fsdp_error_set(vm->err, FSDP_ERR_UNSUPPORTED,
                                           "%s: a pickle of protocol %" PRIu64
                                           ", later than 5",
                                           vm->what, version);
}

static fsdp_status_t refuse(vm_t *vm)
{
    return fsdp_error_set(vm->err, FSDP_ERR_UNSUPPORTED,
                          "%s: pickle at byte %" PRIu64
                          ": buffers outside it and extension codes are not "
                          "read here",
                          vm->what, position(vm));
}

static fsdp_status_t pop(vm_t *vm)
{
    pickle_ref_t *items = NULL;
    uint64_t num = 0;

    /* As Python: a POP with nothing above the mark takes the mark. */
    if (vm->marks.num > 0 && vm->stack.num == floor_of(vm)) {
        return pop_mark(vm, &items, &num);
    }
    FSDP_TRY(want(vm, 1));
    vm->stack.num--;
    return FSDP_OK;
}

static fsdp_status_t step_more(vm_t *vm, unsigned op);

/* One opcode of those that protocol 2 and later use most. */
static fsdp_status_t step(vm_t *vm, unsigned op)
{
    switch (op) {
    case OP_MARK:
        return push_on(vm, &vm->marks, (uint32_t)vm->stack.num);
    case OP_NONE:
        return push(vm, TREE_NONE);
    case OP_NEWTRUE:
        return push(vm, TREE_TRUE);
    case OP_NEWFALSE:
        return push(vm, TREE_FALSE);
    case OP_BININT1:
        return push_number(vm, 1);
    case OP_BININT2:
        return push_number(vm, 2);
    case OP_BININT:
        return push_number(vm, 4);
    case OP_LONG1:
        return push_sized_long(vm, 1);
    case OP_BINFLOAT:
        return push_binfloat(vm);
    case OP_SHORT_BINUNICODE:
        return push_text(vm, PICKLE_STR, 1);
    case OP_BINUNICODE:
        return push_text(vm, PICKLE_STR, 4);
    case OP_EMPTY_TUPLE:
        return push(vm, TREE_EMPTY_TUPLE);
    case OP_TUPLE1:
        return push_tuple(vm, 1);
    case OP_TUPLE2:
        return push_tuple(vm, 2);
    case OP_TUPLE3:
        return push_tuple(vm, 3);
    case OP_TUPLE:
        return push_marked_tuple(vm);
    case OP_EMPTY_LIST:
        return push(vm, tree_list(vm->tree, PICKLE_LIST));
    case OP_APPEND:
        return fill_top(vm, PICKLE_LIST, 1);
    case OP_APPENDS:
        return fill_marked(vm, PICKLE_LIST);
    case OP_EMPTY_DICT:
        return push(vm, tree_list(vm->tree, PICKLE_DICT));
    case OP_SETITEM:
        return fill_top(vm, PICKLE_DICT, 2);
    case OP_SETITEMS:
        return fill_marked(vm, PICKLE_DICT);
    case OP_GLOBAL:
        return push_global(vm);
    case OP_STACK_GLOBAL:
        return push_stack_global(vm);
    case OP_NEWOBJ:
    case OP_REDUCE:
        return push_object(vm, op == OP_NEWOBJ);
    case OP_BUILD:
        return build(vm);
    case OP_BINPERSID:
        return push_persid(vm);
    case OP_MEMOIZE:
        return put(vm, vm->memo_num);
    case OP_BINPUT:
        return memo_number(vm, 1, true);
    case OP_LONG_BINPUT:
        return memo_number(vm, 4, true);
    case OP_BINGET:
        return memo_number(vm, 1, false);
    case OP_LONG_BINGET:
        return memo_number(vm, 4, false);
    case OP_PROTO:
        return proto(vm);
    case OP_FRAME:
        return skip(vm, 8);
    default:
        return step_more(vm, op);
    }
}

static fsdp_status_t step_more(vm_t *vm, unsigned op)
{
    pickle_ref_t *items = NULL;
    uint64_t num = 0;

    switch (op) {
    case OP_POP:
        return pop(vm);
    case OP_POP_MARK:
        return pop_mark(vm, &items, &num);
    case OP_DUP:
        FSDP_TRY(want(vm, 1));
        return push(vm, *top(vm, 1));
    case OP_INT:
        return push_int_line(vm);
    case OP_LONG: {
        const char *line;
        size_t size;

        FSDP_TRY(get_line(vm, &line, &size));
        return push_decimal(vm, line, size);
    }
    case OP_LONG4:
        return push_sized_long(vm, 4);
    case OP_FLOAT:
        return push_float_line(vm);
    case OP_STRING:
        return push_text_line(vm, true);
    case OP_UNICODE:
        return push_text_line(vm, false);
    case OP_BINSTRING:
        return push_text(vm, PICKLE_STR, 4);
    case OP_SHORT_BINSTRING:
        return push_text(vm, PICKLE_STR, 1);
    case OP_BINUNICODE8:
        return push_text(vm, PICKLE_STR, 8);
    case OP_SHORT_BINBYTES:
        return push_text(vm, PICKLE_BYTES, 1);
    case OP_BINBYTES:
        return push_text(vm, PICKLE_BYTES, 4);
    case OP_BINBYTES8:
    case OP_BYTEARRAY8:
        return push_text(vm, PICKLE_BYTES, 8);
    case OP_LIST:
        return push_filled(vm, PICKLE_LIST);
    case OP_DICT:
        return push_filled(vm, PICKLE_DICT);
    case OP_FROZENSET:
        return push_filled(vm, PICKLE_SET);
    case OP_EMPTY_SET:
        return push(vm, tree_list(vm->tree, PICKLE_SET));
    case OP_ADDITEMS:
        return fill_marked(vm, PICKLE_SET);
    case OP_NEWOBJ_EX:
        return push_object_ex(vm);
    case OP_INST:
        return push_instance(vm, true);
    case OP_OBJ:
        return push_instance(vm, false);
    case OP_PERSID:
        return push_persid_line(vm);
    case OP_PUT:
        return memo_line(vm, true);
    case OP_GET:
        return memo_line(vm, false);
    case OP_EXT1:
    case OP_EXT2:
    case OP_EXT4:
    case OP_NEXT_BUFFER:
    case OP_READONLY_BUFFER:
        return refuse(vm);
    default:
        return bad(vm, "there is no such opcode");
    }
}

static fsdp_status_t run(vm_t *vm)
{
    unsigned op;

    for (;;) {
        FSDP_TRY(need(vm, 1));
        op = vm->data[vm->pos++];
        if (op == OP_STOP) {
            break;
        }
        FSDP_TRY(step(vm, op));
    }

    FSDP_TRY(want(vm, 1));
    if (vm->marks.num > 0) {
        return bad(vm, "it stops behind a mark");
    }
    vm->tree->root = *top(vm, 1);
    return FSDP_OK;
}

static fsdp_status_t parse(vm_t *vm, pickle_t **pickle_p, uint64_t *used_p)
{
    fsdp_status_t status;

    vm->tree = tree_new(vm->what);
    status = (vm->tree != NULL) ? push(vm, TREE_NONE) : no_memory(vm);
    if (status == FSDP_OK) {
        vm->stack.num = 0; /* the array is there from now on */
        status = run(vm);
    }
    free(vm->stack.items);
    free(vm->marks.items);
    free(vm->memo.items);
    free(vm->window);
    if (vm->tree != NULL) {
        vm->tree->persids = vm->persids.items;
        vm->tree->num_persids = vm->persids.num;
    }
    if (status != FSDP_OK) {
        pickle_free(vm->tree);
        return status;
    }

    tree_finish(vm->tree);
    *pickle_p = vm->tree;
    if (used_p != NULL) {
        *used_p = position(vm);
    }
    return FSDP_OK;
}

static fsdp_status_t check_size(const char *what, uint64_t size,
                                fsdp_error_t *err)
{
    return (size <= SIZE_MOST)
               ? FSDP_OK
               : fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                                "%s: a pickle of more than 8 GiB", what);
}

fsdp_status_t pickle_parse(const void *data, size_t size, const char *what,
                           pickle_t **pickle_p, uint64_t *used_p,
                           fsdp_error_t *err)
{
    vm_t vm = {.what = what, .data = data, .end = size, .fd = -1, .err = err};

    FSDP_TRY(check_size(what, size, err));
    return parse(&vm, pickle_p, used_p);
}

fsdp_status_t pickle_parse_file(int fd, uint64_t offset, uint64_t length,
                                const char *what, pickle_t **pickle_p,
                                uint64_t *used_p, fsdp_error_t *err)
{
    vm_t vm = {
        .what = what, .fd = fd, .next = offset, .rest = length, .err = err};

    FSDP_TRY(check_size(what, length, err));
    vm.window_size = (length < WINDOW) ? (size_t)length + 1 : WINDOW;
    vm.window = malloc(vm.window_size);
    if (vm.window == NULL) {
        return no_memory(&vm);
    }
    vm.data = vm.window;
    return parse(&vm, pickle_p, used_p);
}
