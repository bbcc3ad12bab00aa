#include "config.h"

#include "lib/util/digest.h"

#include <pthread.h>

#include "lib/util/simd.h"

#define BLOCK 1024 /* elements that share one factor */
#define LANE  64   /* elements that are summed with a fixed number of turns */

/*
 * T_w[j] in two halves: x * T = x * low + 2^32 * (x * high), so that each
 * product is one of 32 by 32 bits, which every vector unit has.
 */
static uint32_t table_low[2][BLOCK], table_high[2][BLOCK];
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
            uint64_t factor = mix(2 * j + w) | 1;

            table_low[w][j] = (uint32_t)factor;
            table_high[w][j] = (uint32_t)(factor >> 32);
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

/* sum_w += Σ x[i] * T_w[j + i]; the sums stay below one block's BLOCK
 * products, and what overflows 64 bits does not count. */
SIMD_BODY void sum_products_body(const uint32_t *x, uint64_t j, uint64_t count,
                                 uint64_t *sum)
{
    for (unsigned w = 0; w < 2; w++) {
        const uint32_t *low = table_low[w] + j, *high = table_high[w] + j;
        uint64_t sum_low = 0, sum_high = 0, i;

        for (i = 0; i + LANE <= count; i += LANE) {
            for (unsigned k = 0; k < LANE; k++) {
                sum_low += (uint64_t)x[i + k] * low[i + k];
                sum_high += (uint64_t)x[i + k] * high[i + k];
            }
        }
        for (; i < count; i++) {
            sum_low += (uint64_t)x[i] * low[i];
            sum_high += (uint64_t)x[i] * high[i];
        }
        sum[w] = sum_low + (sum_high << 32);
    }
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
