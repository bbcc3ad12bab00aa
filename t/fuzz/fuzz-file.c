/*
 * Fuzz target: one file of any format, used as a checkpoint: torch.save, zip
 * and legacy, safetensors, llm.c, one HDF5 file.
 */
#include "config.h"

#include "t/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_use(fuzz_file(data, size), NULL, NULL);
    return 0;
}
