/*
 * Run a fuzz target on files, and on what a fixed sequence of changes makes of
 * each: cut, a bit changed, a byte set to an extreme, a stretch doubled.
 *
 *     replay-TARGET CHANGES FILE...
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "t/fuzz/fuzz.h"

static uint64_t state = 1;

static size_t below(size_t most)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (most > 0) ? (size_t)((state >> 33) % most) : 0;
}

/* @a data has room for twice the size. */
static size_t change(unsigned char *data, size_t size)
{
    static const unsigned char extremes[] = {0, 1, 0x7f, 0x80, 0xff};
    size_t at = below(size), most;

    switch (below(4)) {
    case 0:
        return at;
    case 1:
        data[at] ^= (unsigned char)(1u << below(8));
        return size;
    case 2:
        data[at] = extremes[below(sizeof(extremes))];
        return size;
    default:
        most = below(size - at) + 1;
        memmove(data + at + most, data + at, size - at);
        return size + most;
    }
}

static int replay(const char *path, unsigned long changes)
{
    FILE *file = fopen(path, "rb");
    unsigned char *good = malloc(1 << 20), *data = malloc(1 << 22);
    size_t size;

    if (file == NULL || good == NULL || data == NULL) {
        perror(path);
        return 1;
    }
    size = fread(good, 1, 1 << 20, file);
    fclose(file);
    LLVMFuzzerTestOneInput(good, size);
    for (unsigned long i = 0; i < changes && size > 0; i++) {
        size_t changed = size;

        memcpy(data, good, size);
        for (size_t n = below(3); changed > 0 && changed < (1u << 20) && n < 3;
             n++) {
            changed = change(data, changed);
        }
        LLVMFuzzerTestOneInput(data, changed);
    }
    free(good);
    free(data);
    return 0;
}

int main(int argc, char **argv)
{
    int failed = 0;

    for (int i = 2; i < argc; i++) {
        failed |= replay(argv[i], strtoul(argv[1], NULL, 10));
    }
    printf("%d files\n", argc - 2);
    return failed;
}
