#include "config.h"

#include "lib/util/digest.h"

#include <pthread.h>

#include "lib/util/simd.h"

#define BLOCK 1024 /* elements that share one factor */
#define LANE  64   /* elements that are summed with a fixed number of turns */

static uint64_t table[2][BLOCK]; /* T_w[j] */
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

/* The finalizer of splitmix64. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void table_fill(void)
{
    for (unsigned w = 0; w < 2; w++) {
        for (uint64_t j = 0; j < BLOCK; j++) {
            table[w][j] = mix(2 * j + w) | 1;
        }
    }
}

static uint64_t fnv1a(uint64_t hash, const char *text)
{
    for (; *text != '\0'; text++) {
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    }

    return hash;
}

uint64_t digest_key(const char *kind, const char *name)
{
    uint64_t hash = fnv1a(0xcbf29ce484222325u, kind);

    return mix(fnv1a(fnv1a(hash, "/"), name));
}

/* sum_w = Σ x[i] * T_w[j + i]; what overflows 64 bits does not count. */
SIMD_BODY void sum_products_body(const uint32_t *x, uint64_t j, uint64_t count,
                                 uint64_t *sum)
{
    const uint64_t *t0 = table[0] + j, *t1 = table[1] + j;
    uint64_t sum0 = 0, sum1 = 0, i;

    for (i = 0; i + LANE <= count; i += LANE) {
        for (unsigned k = 0; k < LANE; k++) {
            sum0 += x[i + k] * t0[i + k];
            sum1 += x[i + k] * t1[i + k];
        }
    }
    for (; i < count; i++) {
        sum0 += x[i] * t0[i];
        sum1 += x[i] * t1[i];
    }
    sum[0] = sum0;
    sum[1] = sum1;
}

SIMD_FUNCTION(static, sum_products,
              (const uint32_t *x, uint64_t j, uint64_t count, uint64_t *sum),
              (x, j, count, sum))

void digest_add(digest_t *digest, uint64_t key, const uint32_t *bits,
                uint64_t first, uint64_t count)
{
    uint64_t sum[2];

    pthread_once(&table_once, table_fill);
    while (count > 0) {
        uint64_t block = first / BLOCK, j = first % BLOCK;
        uint64_t part = (count < BLOCK - j) ? count : BLOCK - j;

        sum_products(bits, j, part, sum);
        digest->word[0] += sum[0] * (mix(key + block) | 1);
        digest->word[1] += sum[1] * (mix(~key + block) | 1);
        bits += part;
        first += part;
        count -= part;
    }
}

void digest_add_tensor(digest_t *digest, uint64_t key, uint64_t numel)
{
    digest->word[0] += mix(key + numel);
    digest->word[1] += mix(key + numel + 1);
}
