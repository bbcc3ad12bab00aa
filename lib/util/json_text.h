/*
 * JSON as people write it.
 */
#ifndef FSDP_JSON_TEXT_H
#define FSDP_JSON_TEXT_H

#include <stddef.h>

#include <jansson.h>

/* A flag for json_dumps() and json_dumpf(): the fewest digits, 15 to 17, with
 * which all numbers of @a value come back as they are: 0.0003, not
 * 0.00029999999999999997.  NULL is allowed. */
size_t json_text_digits(const json_t *value);

#endif
