/*
 * Fuzz target: a whole file of torch.save, a zip archive or a legacy one,
 * opened as a checkpoint.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ckpt/fsdp_ckpt.h"
#include "t/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int fd = memfd_create("input", MFD_CLOEXEC);
    fsdp_ckpt_t *ckpt = NULL;
    fsdp_error_t err;
    char path[64];

    if (fd < 0 || write(fd, data, size) != (ssize_t)size) {
        abort();
    }
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (fsdp_ckpt_open(path, &ckpt, &err) == FSDP_OK) {
        fsdp_ckpt_close(ckpt);
    }
    close(fd);
    return 0;
}
