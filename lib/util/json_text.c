#include "config.h"

#include "lib/util/json_text.h"

#include <stdio.h>
#include <stdlib.h>

#define LEAST 15 /* digits that any decimal number keeps as a double */
#define MOST  17 /* with which any double comes back */

static unsigned digits_of_real(double number)
{
    char text[40];

    for (unsigned digits = LEAST; digits < MOST; digits++) {
        snprintf(text, sizeof(text), "%.*g", (int)digits, number);
        if (strtod(text, NULL) == number) {
            return digits;
        }
    }

    return MOST;
}

static unsigned digits_of(const json_t *value)
{
    unsigned most = LEAST, digits;
    const char *key;
    json_t *item;
    size_t i;

    if (json_is_real(value)) {
        return digits_of_real(json_real_value(value));
    }

    json_object_foreach((json_t *)value, key, item)
    {
        digits = digits_of(item);
        most = (digits > most) ? digits : most;
    }
    json_array_foreach(value, i, item)
    {
        digits = digits_of(item);
        most = (digits > most) ? digits : most;
    }

    return most;
}

size_t json_text_digits(const json_t *value)
{
    return JSON_REAL_PRECISION(digits_of(value));
}

json_t *json_text_parse(const char *text)
{
    return json_loads(text, JSON_ALLOW_NUL, NULL);
}

bool json_text_u64(const json_t *value, uint64_t *number_p)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0) {
        return false;
    }

    *number_p = (uint64_t)json_integer_value(value);
    return true;
}
