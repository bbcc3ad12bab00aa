/*
 * Functions compiled for several vector widths, chosen when they are called.
 *
 * A function is written once, as a static inline `NAME_body` of plain loops
 * with a fixed number of turns, which GCC vectorises as far as the target
 * allows.  SIMD_FUNCTION then makes `NAME` of it.  The order of every floating
 * point operation is written out in the body, so that all widths give the same
 * bits (t/unit/kernels.c runs each).
 */
#ifndef FSDP_SIMD_H
#define FSDP_SIMD_H

typedef enum { SIMD_BASE = 0, SIMD_AVX2 = 1, SIMD_AVX512 = 2 } simd_level_t;

/* What this machine has, and simd_limit() allows. */
simd_level_t simd_level(void);

/* Use no more than @a most from now on; for tests.  Not while another thread
 * computes. */
void simd_limit(simd_level_t most);

#define SIMD_BODY static inline __attribute__((always_inline))

#if defined(__x86_64__)

#define SIMD_TARGET_AVX2 __attribute__((target("avx2"), noinline))
#define SIMD_TARGET_AVX512 \
    __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl"), noinline))

/* `storage` (static or extern) void NAME params, from NAME_body; @a args are
 * the names of the params. */
#define SIMD_FUNCTION(_storage, _name, _params, _args)    \
    SIMD_TARGET_AVX2 static void _name##_avx2 _params     \
    {                                                     \
        _name##_body _args;                               \
    }                                                     \
    SIMD_TARGET_AVX512 static void _name##_avx512 _params \
    {                                                     \
        _name##_body _args;                               \
    }                                                     \
    _storage void _name _params                           \
    {                                                     \
        switch (simd_level()) {                           \
        case SIMD_AVX512:                                 \
            _name##_avx512 _args;                         \
            break;                                        \
        case SIMD_AVX2:                                   \
            _name##_avx2 _args;                           \
            break;                                        \
        default:                                          \
            _name##_body _args;                           \
            break;                                        \
        }                                                 \
    }

#else

#define SIMD_FUNCTION(_storage, _name, _params, _args) \
    _storage void _name _params                        \
    {                                                  \
        _name##_body _args;                            \
    }

#endif

#endif
