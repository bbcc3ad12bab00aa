#include "config.h"

#include "lib/util/nearest.h"

#include <stdio.h>
#include <string.h>

#include "lib/util/select.h"

#define LENGTH_MOST 128 /* longer ones are not compared */

static size_t least(size_t a, size_t b)
{
    return (a < b) ? a : b;
}

/* The edits of a pattern that make it fit: row i of the table is for its first
 * i characters, column j for those of the name. */
static size_t distance_of(const char *pattern, const char *name)
{
    size_t rows = strlen(pattern), columns = strlen(name);
    size_t row[LENGTH_MOST + 1], before, here;

    for (size_t j = 0; j <= columns; j++) {
        row[j] = j;
    }
    for (size_t i = 0; i < rows; i++) {
        char c = pattern[i];

        before = row[0]; /* row i, column j */
        row[0] += (c == '*') ? 0 : 1;
        for (size_t j = 0; j < columns; j++) {
            here = row[j + 1];
            if (c == '*') { /* any number of characters */
                row[j + 1] = least(here, row[j]);
            } else {
                row[j + 1] = least(least(here, row[j]) + 1,
                                   before + (c != '?' && c != name[j]));
            }
            before = here;
        }
    }

    return row[columns];
}

void nearest_try(nearest_t *nearest, const char *name)
{
    size_t distance;

    if (strlen(name) > LENGTH_MOST) {
        return;
    }
    distance = distance_of(nearest->pattern, name);
    if (select_is_model(name)) {
        distance =
            least(distance, distance_of(nearest->pattern, select_base(name)));
    }
    if (nearest->name == NULL || distance < nearest->distance) {
        nearest->name = name;
        nearest->distance = distance;
    }
}

const char *nearest_text(const nearest_t *nearest, char text[NEAREST_TEXT_MAX])
{
    size_t letters = 0;

    for (const char *c = nearest->pattern; *c != '\0'; c++) {
        letters += *c != '*' && *c != '?';
    }
    text[0] = '\0';
    if (nearest->name != NULL && nearest->distance <= letters / 3) {
        snprintf(text, NEAREST_TEXT_MAX, ": did you mean '%s'?", nearest->name);
    }

    return text;
}
