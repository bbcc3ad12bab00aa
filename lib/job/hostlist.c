#include "config.h"

#include "lib/job/hostlist.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/util/check.h"

#define NAME_MAX_BYTES 256

typedef struct {
    const char *text; /* the whole list, for errors */
    char **names;
    size_t num, room;
    fsdp_error_t *err;
} list_t;

static fsdp_status_t bad_list(const list_t *list)
{
    errno = 0;
    return fsdp_error_set(list->err, FSDP_ERR_INVALID_PARAM,
                          "'%s' is not a list of hosts", list->text);
}

static fsdp_status_t add_name(list_t *list, const char *name)
{
    size_t room = (list->room > 0) ? 2 * list->room : 16;
    char **names;

    if (list->num == HOSTLIST_MAX || name[0] == '\0') {
        return bad_list(list);
    }
    if (list->num == list->room) {
        names = reallocarray(list->names, room, sizeof(*names));
        if (names == NULL) {
            return fsdp_error_set(list->err, FSDP_ERR_NO_MEMORY,
                                  "no memory for names of hosts");
        }
        list->names = names;
        list->room = room;
    }

    list->names[list->num] = strdup(name);
    if (list->names[list->num] == NULL) {
        return fsdp_error_set(list->err, FSDP_ERR_NO_MEMORY,
                              "no memory for names of hosts");
    }
    list->num++;
    return FSDP_OK;
}

/* "07-12," at *text_p: its two ends and the digits to pad to. */
static bool read_range(const char **text_p, const char *end,
                       unsigned long *first_p, unsigned long *last_p,
                       int *width_p)
{
    const char *text = *text_p;
    char *after;

    if (!isdigit((unsigned char)*text)) {
        return false;
    }
    *first_p = strtoul(text, &after, 10);
    *last_p = *first_p;
    *width_p = (int)(after - text);
    if (*after == '-' && isdigit((unsigned char)after[1])) {
        *last_p = strtoul(after + 1, &after, 10);
    }
    if (*width_p > 18 || *last_p < *first_p ||
        *last_p - *first_p >= HOSTLIST_MAX || after > end) {
        return false;
    }

    *text_p = after + (*after == ',');
    return *after == ',' || after == end;
}

/* One item of the list: @a text up to @a length, behind the @a done bytes of
 * @a name. */
static fsdp_status_t expand_item(list_t *list, const char *text, size_t length,
                                 char *name, size_t done)
{
    const char *open = memchr(text, '[', length);
    size_t plain = (open != NULL) ? (size_t)(open - text) : length;
    unsigned long first, last;
    const char *close;
    int width, wrote;

    if (done + plain >= NAME_MAX_BYTES) {
        return bad_list(list);
    }
    memcpy(name + done, text, plain);
    name[done + plain] = '\0';
    if (open == NULL) {
        return add_name(list, name);
    }

    close = memchr(open, ']', length - plain);
    if (close == NULL || close == open + 1) {
        return bad_list(list);
    }
    for (const char *range = open + 1; range < close;) {
        if (!read_range(&range, close, &first, &last, &width)) {
            return bad_list(list);
        }
        for (unsigned long i = first; i <= last; i++) {
            wrote = snprintf(name + done + plain, NAME_MAX_BYTES - done - plain,
                             "%0*lu", width, i);
            if (done + plain + (size_t)wrote >= NAME_MAX_BYTES) {
                return bad_list(list);
            }
            FSDP_TRY(expand_item(list, close + 1,
                                 (size_t)(text + length - close - 1), name,
                                 done + plain + (size_t)wrote));
        }
    }

    return FSDP_OK;
}

/* Length of the first item: up to a ',' outside brackets. */
static size_t item_length(const char *text)
{
    size_t length = 0;
    bool inside = false;

    while (text[length] != '\0' && (inside || text[length] != ',')) {
        inside = (text[length] == '[') || (inside && text[length] != ']');
        length++;
    }

    return length;
}

fsdp_status_t hostlist_expand(const char *text, char ***names_p, size_t *num_p,
                              fsdp_error_t *err)
{
    list_t list = {.text = text, .err = err};
    fsdp_status_t status = FSDP_OK;
    char name[NAME_MAX_BYTES];
    size_t length;

    do {
        length = item_length(text);
        status = expand_item(&list, text, length, name, 0);
        text += length;
    } while (status == FSDP_OK && *text++ == ',');

    if (status != FSDP_OK) {
        hostlist_free(list.names, list.num);
        return status;
    }

    *names_p = list.names;
    *num_p = list.num;
    return FSDP_OK;
}

void hostlist_free(char **names, size_t num)
{
    for (size_t i = 0; i < num; i++) {
        free(names[i]);
    }
    free(names);
}

fsdp_status_t hostlist_map(const char *text, uint32_t nodes, uint32_t *node_of,
                           size_t num, fsdp_error_t *err)
{
    unsigned first, count, tasks;
    size_t at = 0;
    int used = 0;
    bool good;

    good = sscanf(text, "(vector%n", &used) == 0 && used > 0;
    for (text += used; good && *text == ','; text += used) {
        used = 0;
        good =
            sscanf(text, ",(%u,%u,%u)%n", &first, &count, &tasks, &used) == 3 &&
            used > 0 && first < nodes && count <= nodes - first &&
            tasks <= num && (size_t)count * tasks <= num - at;
        for (unsigned i = 0; good && i < count * tasks; i++) {
            node_of[at++] = first + i / tasks;
        }
    }
    if (!good || strcmp(text, ")") != 0 || at != num) {
        errno = 0;
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "the map of tasks does not place %zu of them",
                              num);
    }

    return FSDP_OK;
}
