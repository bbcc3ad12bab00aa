#include "config.h"

#include "lib/comm/pages.h"

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>

#define PAGE      4096
#define HUGE_PAGE (2ul << 20)

static size_t round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

fsdp_status_t pages_alloc(size_t bytes, void **data_p, fsdp_error_t *err)
{
    size_t size = round_up((bytes > 0) ? bytes : 1, PAGE);
    size_t room = (size >= HUGE_PAGE) ? size + HUGE_PAGE : size;
    size_t head;
    char *map;

    if (bytes > SIZE_MAX - 2 * HUGE_PAGE) {
        errno = 0;
        return fsdp_error_set(err, FSDP_ERR_OVERFLOW,
                              "cannot allocate %zu bytes", bytes);
    }

    map = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
               -1, 0);
    if (map == MAP_FAILED) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "cannot allocate %zu bytes: %m", bytes);
    }

    if (room > size) {
        /* Give back what lies before and behind the aligned part. */
        head = round_up((uintptr_t)map, HUGE_PAGE) - (uintptr_t)map;
        if (head > 0) {
            munmap(map, head);
        }
        if (room - head > size) {
            munmap(map + head + size, room - head - size);
        }
        map += head;
        madvise(map, size, MADV_HUGEPAGE);
    }

    *data_p = map;
    return FSDP_OK;
}

void pages_free(void *data, size_t bytes)
{
    if (data != NULL) {
        munmap(data, round_up((bytes > 0) ? bytes : 1, PAGE));
    }
}
