/*
 * lustre - preloaded into a program under test: the layouts of Lustre
 *
 *     FSDP_LUSTRE_DIR   stripes of new files in any directory
 *     FSDP_LUSTRE_FILE  stripes of any file
 *
 * Not set: there is no such layout; 0: one of several parts.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

ssize_t getxattr(const char *path, const char *name, void *value, size_t size)
{
    struct {
        uint32_t magic, pattern;
        uint64_t object[2];
        uint32_t stripe_size;
        uint16_t stripe_count, stripe_offset;
    } layout = {.magic = 0x0BD10BD0, .stripe_size = 1 << 20};
    const char *text = NULL;
    struct stat st;

    if (strcmp(name, "lustre.lov") == 0 && stat(path, &st) == 0) {
        text = getenv(S_ISDIR(st.st_mode) ? "FSDP_LUSTRE_DIR"
                                          : "FSDP_LUSTRE_FILE");
    }
    if (text == NULL || size < sizeof(layout)) {
        errno = ENODATA;
        return -1;
    }

    layout.stripe_count = (uint16_t)atoi(text);
    if (layout.stripe_count == 0) {
        layout.magic = 0x0BD60BD0;
    }
    memcpy(value, &layout, sizeof(layout));
    return sizeof(layout);
}
