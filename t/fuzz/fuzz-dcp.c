/*
 * Fuzz target: the .metadata of a distributed checkpoint.
 */
#include "config.h"

#include <fcntl.h>
#include <unistd.h>

#include "ckpt/format/dcp_meta.h"
#include "t/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int fd = open(fuzz_file(data, size), O_RDONLY);
    dcp_meta_t meta;
    fsdp_error_t err;

    (void)dcp_meta_read(fd, size, "metadata", &meta, &err);
    dcp_meta_free(&meta);
    close(fd);
    return 0;
}
