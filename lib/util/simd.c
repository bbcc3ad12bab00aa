#include "config.h"

#include "lib/util/simd.h"

#include <stdatomic.h>

/* 1 + the level in use; 0 before the first look. */
static atomic_int level_plus_1;

static simd_level_t machine_level(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl")) {
        return SIMD_AVX512;
    }
    if (__builtin_cpu_supports("avx2")) {
        return SIMD_AVX2;
    }
#endif
    return SIMD_BASE;
}

simd_level_t simd_level(void)
{
    int known = atomic_load_explicit(&level_plus_1, memory_order_relaxed);

    if (known == 0) {
        known = 1 + (int)machine_level();
        atomic_store_explicit(&level_plus_1, known, memory_order_relaxed);
    }

    return (simd_level_t)(known - 1);
}

void simd_limit(simd_level_t most)
{
    simd_level_t level = machine_level();

    atomic_store_explicit(&level_plus_1, 1 + (int)(level < most ? level : most),
                          memory_order_relaxed);
}
