#include "config.h"

#include "lib/util/buffer.h"

#include <stdlib.h>
#include <string.h>

void buffer_add(buffer_t *buffer, const void *data, size_t size)
{
    if (size > buffer->max - buffer->size) {
        size_t max = 2 * buffer->max + size + 4096;
        char *larger = realloc(buffer->data, max);

        if (larger == NULL) {
            buffer->failed = true;
            return;
        }
        buffer->data = larger;
        buffer->max = max;
    }
    if (size > 0) {
        memcpy(buffer->data + buffer->size, data, size);
    }
    buffer->size += size;
}

void buffer_free(buffer_t *buffer)
{
    free(buffer->data);
    *buffer = (buffer_t){0};
}
