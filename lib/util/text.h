/*
 * Small questions about text.
 */
#ifndef FSDP_TEXT_H
#define FSDP_TEXT_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static inline bool text_ends_with(const char *text, const char *end)
{
    size_t size = strlen(text), end_size = strlen(end);

    return size >= end_size && strcmp(text + size - end_size, end) == 0;
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
