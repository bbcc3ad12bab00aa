/*
 * JSON: numbers as people write them, and as programs need them.
 */
#ifndef FSDP_JSON_TEXT_H
#define FSDP_JSON_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

/* A flag for json_dumps() and json_dumpf(): the fewest digits, 15 to 17, with
 * which all numbers of @a value come back as they are: 0.0003, not
 * 0.00029999999999999997.  NULL is allowed. */
size_t json_text_digits(const json_t *value);

/* What a program has written, in which texts may hold a NUL.
 * @return NULL: no JSON array or object, or no memory. */
json_t *json_text_parse(const char *text);

/* An integer that is not negative.
 * @return false, and *number_p untouched, if it is none; NULL is allowed. */
bool json_text_u64(const json_t *value, uint64_t *number_p);

#endif
