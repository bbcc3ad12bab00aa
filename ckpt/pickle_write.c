#include "config.h"

#include "ckpt/pickle_write.h"

#include <stdlib.h>
#include <string.h>

/* Digits of an integer: as many as Python itself takes from a text. */
enum { DECIMAL_MOST = 4300 };

/* An opcode and a little-endian number of @a size bytes. */
static void put_number(pickle_writer_t *writer, char opcode, uint64_t value,
                       unsigned size)
{
    char bytes[9] = {opcode};

    for (unsigned i = 0; i < size; i++) {
        bytes[1 + i] = (char)(value >> (8 * i));
    }
    buffer_add(&writer->out, bytes, 1 + size);
}

void pickle_write_begin(pickle_writer_t *writer, unsigned protocol)
{
    *writer = (pickle_writer_t){.protocol = protocol};
    put_number(writer, '\x80', protocol, 1);
}

bool pickle_write_end(pickle_writer_t *writer)
{
    buffer_add(&writer->out, ".", 1);
    return !writer->out.failed;
}

void pickle_write_free(pickle_writer_t *writer)
{
    buffer_free(&writer->out);
    *writer = (pickle_writer_t){0};
}

void pickle_write_op(pickle_writer_t *writer, char opcode)
{
    buffer_add(&writer->out, &opcode, 1);
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
        buffer_add(&writer->out, "\x8a\x08", 2);
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
    buffer_add(&writer->out, bytes, sizeof(bytes));
}

void pickle_write_string(pickle_writer_t *writer, const char *text, size_t size)
{
    if (writer->protocol >= 4 && size < 256) {
        put_number(writer, '\x8c', size, 1);
    } else {
        put_number(writer, 'X', size, 4);
    }
    buffer_add(&writer->out, text, size);
}

void pickle_write_text(pickle_writer_t *writer, const char *text)
{
    pickle_write_string(writer, text, strlen(text));
}

/* Keep what was just written for later. */
static uint32_t memoize(pickle_writer_t *writer)
{
    uint32_t memo = writer->memo++;

    if (writer->protocol >= 4) {
        buffer_add(&writer->out, "\x94", 1);
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

bool pickle_write_decimal(pickle_writer_t *writer, const char *digits)
{
    unsigned char bytes[DECIMAL_MOST / 2] = {0};
    bool minus = digits[0] == '-';
    size_t size = 1;
    unsigned carry = 1;

    digits += minus;
    if (strlen(digits) > DECIMAL_MOST) {
        return false;
    }

    for (; *digits != '\0'; digits++) {
        unsigned more = (unsigned)(*digits - '0');

        for (size_t i = 0; i < size; i++) {
            more += bytes[i] * 10u;
            bytes[i] = (unsigned char)more;
            more >>= 8;
        }
        if (more > 0) {
            bytes[size++] = (unsigned char)more;
        }
    }
    size += bytes[size - 1] >= 128; /* room for the sign */
    for (size_t i = 0; i < size && minus; i++) {
        carry += (unsigned char)~bytes[i];
        bytes[i] = (unsigned char)carry;
        carry >>= 8;
    }

    if (size < 256) {
        put_number(writer, '\x8a', size, 1); /* LONG1 */
    } else {
        put_number(writer, '\x8b', size, 4); /* LONG4 */
    }
    buffer_add(&writer->out, bytes, size);
    return true;
}

void pickle_write_global(pickle_writer_t *writer, const char *module,
                         const char *name)
{
    if (writer->protocol >= 4) {
        pickle_write_text(writer, module);
        pickle_write_text(writer, name);
        buffer_add(&writer->out, "\x93", 1);
    } else {
        buffer_add(&writer->out, "c", 1);
        buffer_add(&writer->out, module, strlen(module));
        buffer_add(&writer->out, "\n", 1);
        buffer_add(&writer->out, name, strlen(name));
        buffer_add(&writer->out, "\n", 1);
    }
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

    pickle_write_global(writer, module, name);
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
