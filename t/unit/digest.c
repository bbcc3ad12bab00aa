#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/util/digest.h"
#include "lib/util/simd.h"
#include "t/tap/tap.h"

/* --- The rule, read literally --------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    x ^= x >> 31;
    return x;
}

static void slow_digest(const char *name, const uint32_t *x, uint64_t n,
                        uint64_t word[2])
{
    uint64_t fnv = 0xcbf29ce484222325u, key;

    for (const char *c = name; *c != '\0'; c++) {
        fnv = (fnv ^ (uint8_t)*c) * 0x100000001b3u;
    }
    key = mix(fnv);
    for (uint64_t w = 0; w < 2; w++) {
        uint64_t key_w = w ? ~key : key;

        word[w] += mix(key + n + w);
        for (uint64_t i = 0; i < n; i++) {
            word[w] += x[i] * (mix(2 * (i % 1024) + w) | 1) *
                       (mix(key_w + i / 1024) | 1);
        }
    }
}

#define NUM 5000

static uint32_t bits[NUM + 1];

static void fill(void)
{
    for (uint64_t i = 0; i <= NUM; i++) {
        bits[i] = (uint32_t)mix(i + 1);
    }
}

static void test_against_the_rule(void)
{
    static const uint64_t sizes[] = {0,    1,    63,   64,   65, 1023,
                                     1024, 1025, 2048, 4999, NUM};
    uint64_t key = digest_key("model", "transformer.wte.weight");

    for (simd_level_t most = SIMD_BASE; most <= SIMD_AVX512; most++) {
        bool good = true;

        simd_limit(most);
        for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
            digest_t digest = {{0}};
            uint64_t want[2] = {0};

            slow_digest("model/transformer.wte.weight", bits, sizes[s], want);
            digest_add(&digest, key, bits, 0, sizes[s]);
            digest_add_tensor(&digest, key, sizes[s]);
            good &= memcmp(digest.word, want, sizeof(want)) == 0;
        }
        ok(good, "as the rule says, at vector level %d", (int)simd_level());
    }
    simd_limit(SIMD_AVX512);
}

static void test_shards(void)
{
    uint64_t key = digest_key("optim", "a");
    digest_t whole = {{0}}, parts = {{0}};
    uint64_t cuts = 0;

    digest_add(&whole, key, bits, 0, NUM);
    for (uint64_t end = NUM, length = 1; end > 0; cuts++) {
        uint64_t n = length < end ? length : end;

        digest_add(&parts, key, bits + end - n, end - n, n);
        end -= n;
        length = length * 3 / 2 + 1;
    }
    ok(memcmp(&whole, &parts, sizeof(whole)) == 0,
       "the same in %d pieces, backwards", (int)cuts);
}

static void test_sees_changes(void)
{
    uint64_t key = digest_key("model", "a"), other = digest_key("model", "b");
    digest_t before = {{0}}, after = {{0}};
    uint32_t saved = bits[17];

    digest_add(&before, key, bits, 0, NUM);
    bits[17] ^= 0x80000000u;
    digest_add(&after, key, bits, 0, NUM);
    ok(before.word[0] != after.word[0] && before.word[1] != after.word[1],
       "one sign flipped");
    bits[17] = bits[18];
    bits[18] = saved;
    after = (digest_t){{0}};
    digest_add(&after, key, bits, 0, NUM);
    ok(before.word[0] != after.word[0] && before.word[1] != after.word[1],
       "two elements swapped");
    bits[18] = bits[17];
    bits[17] = saved;

    after = (digest_t){{0}};
    digest_add(&after, other, bits, 0, NUM);
    ok(before.word[0] != after.word[0] && before.word[1] != after.word[1],
       "another name");
    ok(digest_key("model", "a") != digest_key("model/a", ""), "another kind");

    before = after = (digest_t){{0}};
    digest_add_tensor(&before, key, 5);
    digest_add_tensor(&after, key, 6);
    ok(before.word[0] != after.word[0] && before.word[1] != after.word[1],
       "zeros of another length");
}

/* Not a test: a figure for the log. */
static void show_speed(void)
{
    const uint64_t num = 1 << 18;
    uint32_t *data = calloc(num, sizeof(*data));
    digest_t digest = {{0}};
    struct timespec t0, t1;
    double seconds;

    if (data == NULL) {
        return;
    }

    clock_gettime(CLOCK_MONOTONIC, &t0);
    for (unsigned i = 0; i < 64; i++) {
        digest_add(&digest, 1, data, 0, num);
    }
    clock_gettime(CLOCK_MONOTONIC, &t1);
    seconds = (double)(t1.tv_sec - t0.tv_sec) +
              1e-9 * (double)(t1.tv_nsec - t0.tv_nsec);
    printf("# %.1f GB/s\n", 64e-9 * 4.0 * (double)num / seconds);
    free(data);
}

int main(void)
{
    fill();
    test_against_the_rule();
    test_shards();
    test_sees_changes();
    show_speed();
    return tap_done();
}
