/*
 * Small questions about text.
 */
#ifndef FSDP_TEXT_H
#define FSDP_TEXT_H

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline bool text_ends_with(const char *text, const char *end)
{
    size_t size = strlen(text), end_size = strlen(end);

    return size >= end_size && strcmp(text + size - end_size, end) == 0;
}

/* As vsnprintf() has it, for a message: what does not fit loses its middle, as
 * a message names something first, and ends with the cure. */
__attribute__((format(printf, 3, 0))) static inline void text_message(
    char *text, size_t size, const char *fmt, va_list ap)
{
    static const char cut[] = "...";
    size_t end = (size - sizeof(cut)) / 2, length;
    int saved_errno = errno;
    char *whole = NULL;
    va_list again;

    va_copy(again, ap);
    if (vsnprintf(text, size, fmt, ap) >= (int)size) {
        errno = saved_errno;
        if (vasprintf(&whole, fmt, again) >= 0) {
            length = strlen(whole);
            memcpy(text + size - 1 - end - strlen(cut), cut, strlen(cut));
            memcpy(text + size - 1 - end, whole + length - end, end);
            free(whole);
        }
    }
    va_end(again);
    errno = saved_errno;
}

#define TEXT_AGE_MAX 32

/* "12 minutes ago", "3.0 hours ago", "5 days ago".  @return @a text. */
static inline const char *text_age(double seconds, char text[TEXT_AGE_MAX])
{
    double minutes = (seconds > 0) ? seconds / 60 : 0, hours = minutes / 60;

    if (hours < 1) {
        snprintf(text, TEXT_AGE_MAX, "%.0f minute%s ago", minutes,
                 (minutes >= 0.5 && minutes < 1.5) ? "" : "s");
    } else if (hours < 48) {
        snprintf(text, TEXT_AGE_MAX, "%.1f hours ago", hours);
    } else {
        snprintf(text, TEXT_AGE_MAX, "%.0f days ago", hours / 24);
    }
    return text;
}

#endif
