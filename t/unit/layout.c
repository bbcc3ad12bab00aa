#include "config.h"

#include "ckpt/fsdp_layout.h"
#include "t/tap/tap.h"

enum { MAX_FLAT = 8192, MAX_PARAMS = 8 };

/* A flat array as one would lay it out by hand: owner[i] says which parameter
 * element i belongs to, element[i] which of its elements it is. */
typedef struct {
    int owner[MAX_FLAT];
    uint64_t element[MAX_FLAT];
    uint64_t length;
} slow_t;

static void lay_out_slowly(slow_t *slow, const uint64_t *numels, uint32_t num,
                           uint32_t shard)
{
    uint64_t at = 0;

    for (int i = 0; i < MAX_FLAT; i++) {
        slow->owner[i] = -1;
    }
    for (uint32_t p = 0; p < num; p++) {
        while (at % 64 != 0) {
            at++;
        }
        for (uint64_t e = 0; e < numels[p]; e++) {
            slow->owner[at] = (int)p;
            slow->element[at++] = e;
        }
    }
    while (at % shard != 0 || at / shard % 64 != 0) {
        at++;
    }
    slow->length = at / shard;
}

/* Each element that the clips of all shards give is where the slow reading
 * has it, and all are given. */
static bool same_as_slow(const slow_t *slow, const uint64_t *numels,
                         const uint64_t *starts, uint32_t num, uint32_t shard,
                         uint64_t length)
{
    uint64_t first, count, given = 0, there = 0;

    for (uint32_t f = 0; f < shard; f++) {
        for (uint32_t p = 0; p < num; p++) {
            fsdp_layout_clip(starts[p], numels[p], f * length, (f + 1) * length,
                             &first, &count);
            if (count == 0 && first != 0) {
                return false;
            }
            for (uint64_t e = first; e < first + count; e++, given++) {
                uint64_t at = starts[p] + e;

                if (at / length != f || slow->owner[at] != (int)p ||
                    slow->element[at] != e) {
                    return false;
                }
            }
        }
    }
    for (int i = 0; i < MAX_FLAT; i++) {
        there += slow->owner[i] >= 0;
    }

    return given == there;
}

static void test_units(void)
{
    static const struct {
        uint32_t num;
        uint64_t numels[MAX_PARAMS];
    } units[] = {
        {0, {0}                         },
        {1, {0}                         },
        {1, {1}                         },
        {1, {64}                        },
        {3, {63, 64, 65}                },
        {4, {1, 0, 1, 997}              },
        {8, {0, 0, 3, 1000, 64, 0, 7, 1}},
    };
    static slow_t slow;
    uint64_t starts[MAX_PARAMS], length;

    for (size_t u = 0; u < sizeof(units) / sizeof(*units); u++) {
        for (uint32_t shard = 1; shard <= 16; shard++) {
            bool good = fsdp_layout_unit(units[u].numels, units[u].num, shard,
                                         starts, &length, NULL) == FSDP_OK;

            lay_out_slowly(&slow, units[u].numels, units[u].num, shard);
            ok(good && length == slow.length &&
                   same_as_slow(&slow, units[u].numels, starts, units[u].num,
                                shard, length),
               "unit %zu over %u ranks: shards of %lu", u, shard,
               (unsigned long)length);
        }
    }
}

static void test_unit_errors(void)
{
    uint64_t numels[] = {UINT64_MAX - 10, 64}, starts[2], length = 7;
    fsdp_error_t err;

    ok(fsdp_layout_unit(numels, 1, 2, starts, &length, &err) ==
           FSDP_ERR_OVERFLOW,
       "rounding up overflows");
    ok(fsdp_layout_unit(numels, 2, 2, starts, &length, &err) ==
           FSDP_ERR_OVERFLOW,
       "the sum overflows");
    ok(fsdp_layout_unit(numels, 0, 0, starts, &length, &err) ==
           FSDP_ERR_INVALID_PARAM,
       "a group of 0 ranks");
    ok(length == 7, "nothing is written on failure");
}

static void test_parts(void)
{
    static const uint64_t lengths[] = {0,    64,     1024,   1088,
                                       4096, 100000, 1 << 20};
    bool good = true;

    for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
        for (uint32_t replicas = 1; replicas <= 9; replicas++) {
            uint64_t before = 0;

            good &= fsdp_layout_part_start(lengths[i], replicas, 0) == 0;
            for (uint32_t r = 1; r <= replicas; r++) {
                uint64_t start =
                    fsdp_layout_part_start(lengths[i], replicas, r);

                good &= start >= before && start <= lengths[i];
                good &=
                    r == replicas
                        ? start == lengths[i]
                        : start == 1024 * (r * lengths[i] / (1024 * replicas));
                before = start;
            }
        }
    }
    ok(good, "parts follow each other, start at multiples of 1024, end at L");
    ok(fsdp_layout_part_start(UINT64_MAX, 4000000000u, 3999999999u) >
           UINT64_MAX - (1ull << 40),
       "no overflow in large shards");
}

static void test_meshes(void)
{
    static const struct {
        const char *text;
        uint32_t world, shard, replicas;
        fsdp_status_t status;
    } meshes[] = {
        {"full",      6, 6, 1, FSDP_OK        },
        {"grad-op",   6, 6, 1, FSDP_OK        },
        {"none",      6, 1, 6, FSDP_OK        },
        {"hybrid:2",  6, 2, 3, FSDP_OK        },
        {"hybrid:6",  6, 6, 1, FSDP_OK        },
        {"hybrid:4",  6, 0, 0, FSDP_ERR_CONFIG},
        {"hybrid:0",  6, 0, 0, FSDP_ERR_CONFIG},
        {"hybrid",    6, 0, 0, FSDP_ERR_CONFIG},
        {"hybrid:",   6, 0, 0, FSDP_ERR_CONFIG},
        {"hybrid:-2", 6, 0, 0, FSDP_ERR_CONFIG},
        {"hybrid:2x", 6, 0, 0, FSDP_ERR_CONFIG},
        {"chunk",     6, 6, 1, FSDP_OK        },
        {"Full",      6, 0, 0, FSDP_ERR_CONFIG},
        {"full",      0, 0, 0, FSDP_ERR_CONFIG},
    };

    for (size_t i = 0; i < sizeof(meshes) / sizeof(*meshes); i++) {
        fsdp_mesh_t mesh = {0};
        fsdp_strategy_t strategy;
        fsdp_error_t err = {0};
        uint32_t shard;
        fsdp_status_t status =
            fsdp_strategy_parse(meshes[i].text, &strategy, &shard, &err);

        if (status == FSDP_OK) {
            status =
                fsdp_mesh_init(&mesh, strategy, meshes[i].world, shard, &err);
        }
        ok(status == meshes[i].status && mesh.shard == meshes[i].shard &&
               mesh.replicas == meshes[i].replicas &&
               (status == FSDP_OK || err.text[0] != '\0'),
           "'%s' with %u ranks: %s", meshes[i].text, meshes[i].world,
           (status == FSDP_OK) ? fsdp_strategy_name(mesh.strategy) : err.text);
    }
}

int main(void)
{
    test_units();
    test_unit_errors();
    test_parts();
    test_meshes();
    return tap_done();
}
