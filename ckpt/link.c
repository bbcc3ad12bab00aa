#include "config.h"

#include "ckpt/link.h"

#include <errno.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/vfs.h>

#define LINK_LEAST (64u << 10) /* less is copied sooner than shared */

int link_blocks(int src, uint64_t src_at, int dst, uint64_t dst_at,
                uint64_t bytes, uint64_t *from_p, uint64_t *to_p)
{
    struct file_clone_range range = {.src_fd = src};
    uint64_t block, head;
    struct statfs fs;

    if (fstatfs(dst, &fs) != 0 || fs.f_bsize <= 0) {
        return EINVAL;
    }
    block = (uint64_t)fs.f_bsize;
    head = (block - dst_at % block) % block;
    if (src_at % block != dst_at % block || bytes < head) {
        return EINVAL;
    }

    range.src_offset = src_at + head;
    range.src_length = (bytes - head) / block * block;
    range.dest_offset = dst_at + head;
    if (range.src_length < LINK_LEAST) {
        return EINVAL;
    }
    if (ioctl(dst, FICLONERANGE, &range) != 0) {
        return errno;
    }

    *from_p = range.dest_offset;
    *to_p = range.dest_offset + range.src_length;
    return 0;
}

const char *link_why(int error)
{
    switch (error) {
    case EOPNOTSUPP:
    case ENOTTY:
        return "the file system has no reflinks";
    case EXDEV:
        return "source and target are on different file systems";
    case 0:
    case EINVAL:
        return "nothing that goes unchanged lies alike in the blocks of both";
    default:
        return strerror(error);
    }
}
