/*
 * Fuzz target: the .metadata of a distributed checkpoint.  With
 * -fsanitize=fuzzer it is libFuzzer's; else a program that replays files.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ckpt/format/dcp_meta.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    int fd = memfd_create("metadata", MFD_CLOEXEC);
    fsdp_error_t err;
    dcp_meta_t meta;

    if (fd < 0 || write(fd, data, size) != (ssize_t)size) {
        abort();
    }
    (void)dcp_meta_read(fd, size, "metadata", &meta, &err);
    dcp_meta_free(&meta);
    close(fd);
    return 0;
}

#ifndef FSDP_LIBFUZZER
int main(int argc, char **argv)
{
    static unsigned char data[16 << 20];

    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        size_t size = (file != NULL) ? fread(data, 1, sizeof(data), file) : 0;

        if (file != NULL) {
            fclose(file);
            LLVMFuzzerTestOneInput(data, size);
        }
    }
    return 0;
}
#endif
