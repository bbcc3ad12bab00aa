#include "config.h"

#include "ckpt/lustre.h"

#include <stdint.h>
#include <string.h>
#include <sys/xattr.h>

#define LAYOUT   "lustre.lov" /* anyone may read it */
#define MAGIC_V1 0x0BD10BD0u
#define MAGIC_V3 0x0BD30BD0u /* with the name of a pool */

/* How both begin (struct lov_user_md); layouts of several parts do not. */
typedef struct {
    uint32_t magic;
    uint32_t pattern;
    uint64_t object[2];
    uint32_t stripe_size;
    uint16_t stripe_count;
    uint16_t stripe_offset;
} layout_t;

bool lustre_is_narrow(const char *path)
{
    char text[1024]; /* one of a single stripe fits */
    layout_t layout;
    ssize_t size = getxattr(path, LAYOUT, text, sizeof(text));

    if (size < (ssize_t)sizeof(layout)) {
        return false;
    }

    memcpy(&layout, text, sizeof(layout));
    return (layout.magic == MAGIC_V1 || layout.magic == MAGIC_V3) &&
           layout.stripe_count == 1;
}
