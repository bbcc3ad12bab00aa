#include "config.h"

#include "lib/util/slice.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Leading elements shown of the last dimension, of the one before it, and of
 * all others. */
static const uint64_t leading[] = {8, 4, 1};
#define NUM_LEADING (sizeof(leading) / sizeof(*leading))

const char *slice_split(const char *text, size_t *size_p)
{
    size_t size = strlen(text);
    const char *open = strrchr(text, '[');
    bool has = open != NULL && open != text && text[size - 1] == ']';

    *size_p = has ? (size_t)(open - text) : size;
    return has ? open + 1 : NULL;
}

bool slice_is(const char *inner)
{
    return strspn(inner, "0123456789-:, ") + 1 == strlen(inner);
}

static const char *skip_blanks(const char *p)
{
    while (isspace((unsigned char)*p)) {
        p++;
    }

    return p;
}

/* Read a position, if one is there, as an element of 0 … dim. */
static bool parse_position(const char **p, uint64_t dim, uint64_t *position_p,
                           bool *there_p)
{
    long long value;
    char *end;

    *p = skip_blanks(*p);
    *there_p = isdigit((unsigned char)**p) || **p == '-';
    if (!*there_p) {
        return true;
    }

    errno = 0;
    value = strtoll(*p, &end, 10);
    if (errno != 0 || end == *p) {
        return false;
    }
    *p = skip_blanks(end);
    if (value < 0) {
        value += (long long)dim;
    }
    if (value < 0 || (uint64_t)value > dim) {
        return false;
    }
    *position_p = (uint64_t)value;

    return true;
}

static bool parse_dim(const char **p, uint64_t dim, uint64_t *lo, uint64_t *hi,
                      const char **why_p)
{
    bool has_lo, has_hi;

    *lo = 0;
    *hi = dim;
    *why_p = "a position is outside of the tensor";
    if (!parse_position(p, dim, lo, &has_lo)) {
        return false;
    }
    if (**p == ':') {
        (*p)++;
        if (!parse_position(p, dim, hi, &has_hi)) {
            return false;
        }
        *why_p = "a range ends before it begins";
        return *lo <= *hi;
    }
    if (!has_lo) {
        *why_p = "an index or LO:HI is needed for each dimension";
        return false;
    }
    *hi = *lo + 1;

    return *lo < dim;
}

bool slice_parse(const char *inner, uint32_t ndim, const uint64_t *dims,
                 slice_t *slice_p, const char **why_p)
{
    slice_t slice = {.ndim = ndim};
    const char *p = inner;

    for (uint32_t d = 0; d < ndim; d++) {
        uint32_t back = ndim - 1 - d;
        uint64_t most = leading[(back < NUM_LEADING) ? back : NUM_LEADING - 1];

        slice.hi[d] = (inner == NULL && dims[d] > most) ? most : dims[d];
    }

    for (uint32_t d = 0; p != NULL && *skip_blanks(p) != ']'; d++) {
        if (d == ndim) {
            *why_p = "more dimensions than the tensor has";
            return false;
        }
        if (!parse_dim(&p, dims[d], &slice.lo[d], &slice.hi[d], why_p)) {
            return false;
        }
        if (*p == ',') {
            p++;
        } else if (*p != ']') {
            *why_p = (*p == ':') ? "a range is LO:HI, without a step"
                                 : "dimensions are separated by commas";
            return false;
        }
    }

    *slice_p = slice;
    return true;
}

uint64_t slice_numel(const slice_t *slice)
{
    uint64_t numel = 1;

    for (uint32_t d = 0; d < slice->ndim; d++) {
        numel *= slice->hi[d] - slice->lo[d];
    }

    return numel;
}

const char *slice_format(const slice_t *slice, char text[SLICE_TEXT_MAX])
{
    char *end = text;

    *end++ = '[';
    for (uint32_t d = 0; d < slice->ndim; d++) {
        end += sprintf(end, "%s%" PRIu64 ":%" PRIu64, d ? ", " : "",
                       slice->lo[d], slice->hi[d]);
    }
    strcpy(end, "]");

    return text;
}
