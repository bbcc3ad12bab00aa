/* The entry point of libFuzzer, and what targets share. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_PATH = 100 };

/* $FUZZ_DIR, where targets work, or /tmp. */
const char *fuzz_top(void);

/* The path of a file that holds these bytes until the next call. */
const char *fuzz_file(const uint8_t *data, size_t size);

/**
 * Do with a checkpoint what programs do: open it, look at all it has, read
 * some of each tensor, convert it, verify it.
 *
 * @param recipe    Of LOCAL checkpoints, or NULL.
 * @param manifest  To compare it with, or NULL.
 */
void fuzz_use(const char *path, const char *recipe, const char *manifest);

#endif
