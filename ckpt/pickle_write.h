/*
 * Writing pickles: opcodes of protocol 2 (torch.save) and 4 (.metadata), one
 * after the other, into memory.
 *
 * Failing to get memory is remembered: whoever writes asks once, at the end.
 */
#ifndef FSDP_PICKLE_WRITE_H
#define FSDP_PICKLE_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "lib/util/buffer.h"

/* Classes that one pickle names; each is written once. */
enum { PICKLE_WRITE_CLASSES = 24 };

typedef struct {
    buffer_t out;
    unsigned protocol; /* 2 or 4 */
    uint32_t memo;     /* entries used */
    struct {
        const char *module, *name;
        uint32_t memo;
    } classes[PICKLE_WRITE_CLASSES];
    unsigned num_classes;
} pickle_writer_t;

/* Begin; the strings that are given to it later must live as long. */
void pickle_write_begin(pickle_writer_t *writer, unsigned protocol);

/* End with STOP.  @return false: there was no memory. */
bool pickle_write_end(pickle_writer_t *writer);

void pickle_write_free(pickle_writer_t *writer);

/* One opcode without an argument: '(' MARK, 't' TUPLE, ')' EMPTY_TUPLE,
 * '}' EMPTY_DICT, 'u' SETITEMS, ']' EMPTY_LIST, 'e' APPENDS, 'N' NONE,
 * 'R' REDUCE, 'b' BUILD, 'Q' BINPERSID, '\x81' NEWOBJ. */
void pickle_write_op(pickle_writer_t *writer, char opcode);

void pickle_write_bool(pickle_writer_t *writer, bool value);
void pickle_write_int(pickle_writer_t *writer, int64_t value);
void pickle_write_float(pickle_writer_t *writer, double value);
void pickle_write_text(pickle_writer_t *writer, const char *text);
void pickle_write_string(pickle_writer_t *writer, const char *text,
                         size_t size);

/* An integer, from its decimal digits.  @return false: more than 4300. */
bool pickle_write_decimal(pickle_writer_t *writer, const char *digits);

/* A text that is used again: @a memo_p is UINT32_MAX at first. */
void pickle_write_again(pickle_writer_t *writer, const char *text,
                        uint32_t *memo_p);

/* A class or function; both names are constants. */
void pickle_write_class(pickle_writer_t *writer, const char *module,
                        const char *name);

/* The same, of which nothing is remembered. */
void pickle_write_global(pickle_writer_t *writer, const char *module,
                         const char *name);

/* A tuple of integers. */
void pickle_write_ints(pickle_writer_t *writer, const uint64_t *values,
                       unsigned num);

/* A tensor of a value was met.  @return false if it cannot be written. */
typedef bool (*pickle_write_tensor_f)(pickle_writer_t *writer, const char *name,
                                      void *arg);

/**
 * A value as value.h describes it.
 *
 * @param tensor  Writes the tensors in it; NULL: none can be written.
 *
 * @return false if it holds what cannot be made again: an object of which only
 *         class and repr() are known, a storage, a tensor if @a tensor says
 *         so.  Then what was written is to be dropped.
 */
bool pickle_write_value(pickle_writer_t *writer, const json_t *value,
                        pickle_write_tensor_f tensor, void *arg);

#endif
