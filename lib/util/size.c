#include "config.h"

#include "lib/util/size.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char prefixes[] = "KMGT";

#define FRACTION 1000000u /* parts of a unit: six digits */

/* Digits behind a point, if there is one. */
static bool parse_fraction(char **at, uint64_t *parts_p)
{
    uint64_t unit = FRACTION;

    *parts_p = 0;
    if (**at != '.') {
        return true;
    }
    for (++*at; isdigit((unsigned char)**at) && unit > 1; ++*at) {
        unit /= 10;
        *parts_p += (uint64_t)(**at - '0') * unit;
    }

    return unit < FRACTION;
}

bool size_parse(const char *text, uint64_t *bytes_p)
{
    unsigned long long value;
    uint64_t parts, unit = 1;
    const char *prefix;
    unsigned base = 1024;
    char *end;

    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno != 0 || !isdigit((unsigned char)text[0]) ||
        !parse_fraction(&end, &parts)) {
        return false;
    }

    prefix = (*end != '\0') ? strchr(prefixes, toupper((unsigned char)*end))
                            : NULL;
    if (prefix != NULL) {
        end++;
        base = (strcasecmp(end, "B") == 0) ? 1000 : 1024;
        if (strcasecmp(end, "iB") == 0 || strcasecmp(end, "B") == 0) {
            end += strlen(end);
        }
        for (const char *p = prefixes; p <= prefix; p++) {
            unit *= base;
        }
    } else if (strcasecmp(end, "B") == 0) {
        end++;
    }
    if (*end != '\0' || (parts != 0 && prefix == NULL) ||
        __builtin_mul_overflow(value, unit, &value) ||
        __builtin_add_overflow(value, parts * unit / FRACTION, &value)) {
        return false;
    }

    *bytes_p = value;
    return true;
}

const char *size_format(uint64_t bytes, char text[SIZE_TEXT_MAX])
{
    double value = (double)bytes;
    unsigned p = 0;

    if (bytes < 1024) {
        snprintf(text, SIZE_TEXT_MAX, "%u B", (unsigned)bytes);
        return text;
    }

    for (value /= 1024; value >= 999.5 && prefixes[p + 1] != '\0'; p++) {
        value /= 1024;
    }
    snprintf(text, SIZE_TEXT_MAX, "%.*f %ciB",
             (value < 9.995) ? 2 : (value < 99.95) ? 1 : 0, value,
             prefixes[p]);

    return text;
}

const char *size_shape(unsigned ndim, const uint64_t *dims, char *text,
                       size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");

    for (unsigned d = 0; d < ndim && used < size; d++) {
        used += (size_t)snprintf(text + used, size - used, "%s%" PRIu64,
                                 (d > 0) ? ", " : "", dims[d]);
    }
    if (used < size) {
        snprintf(text + used, size - used, "]");
    }
    return text;
}
