#include "config.h"

#include <string.h>

#include "ckpt/box.h"
#include "t/tap/tap.h"

#define MAX_NUMEL 64

typedef struct {
    const char *name;
    unsigned ndim;
    uint64_t dims[4];
} shape_t;

static const shape_t shapes[] = {
    {"scalar",          0, {0}         },
    {"vector",          1, {7}         },
    {"empty matrix",    2, {0, 4}      },
    {"matrix",          2, {3, 5}      },
    {"one column",      2, {6, 1}      },
    {"cube",            3, {3, 2, 4}   },
    {"four dimensions", 4, {2, 3, 1, 4}},
};

/* Set bit i of the mask for each element i of the tensor that the box holds. */
static uint64_t box_mask(const box_t *box, const shape_t *shape)
{
    box_t whole = {.ndim = shape->ndim};
    uint64_t mask = 0, numel, rest;

    memcpy(whole.count, shape->dims, sizeof(shape->dims));
    box_numel(&whole, &numel);
    for (uint64_t i = 0; i < numel; i++) {
        bool inside = true;

        rest = i;
        for (unsigned d = shape->ndim; d > 0; d--) {
            uint64_t x = rest % shape->dims[d - 1];

            rest /= shape->dims[d - 1];
            inside &= x >= box->start[d - 1] &&
                      x < box->start[d - 1] + box->count[d - 1];
        }
        mask |= (uint64_t)inside << i;
    }

    return mask;
}

/* Every range of every shape: its boxes cover it once, and nothing else. */
static void test_range_is_covered_once(void)
{
    for (size_t s = 0; s < sizeof(shapes) / sizeof(*shapes); s++) {
        const shape_t *shape = &shapes[s];
        box_t whole = {.ndim = shape->ndim};
        bool covered = true;
        unsigned most = 0, num;
        box_t boxes[7];
        uint64_t numel;

        memcpy(whole.count, shape->dims, sizeof(shape->dims));
        box_numel(&whole, &numel);
        for (uint64_t lo = 0; lo <= numel; lo++) {
            for (uint64_t hi = lo; hi <= numel; hi++) {
                uint64_t want = 0, seen = 0;

                for (uint64_t i = lo; i < hi; i++) {
                    want |= 1ull << i;
                }
                covered &= box_from_range(shape->ndim, shape->dims, lo, hi - lo,
                                          boxes, &num) == FSDP_OK;
                for (unsigned i = 0; i < num; i++) {
                    uint64_t mask = box_mask(&boxes[i], shape);

                    covered &= (mask & seen) == 0;
                    seen |= mask;
                }
                covered &= seen == want;
                most = (num > most) ? num : most;
            }
        }
        ok(covered, "%s: each range is covered once", shape->name);
        ok(most <= (shape->ndim ? 2 * shape->ndim - 1 : 1),
           "%s: in at most 2n - 1 boxes", shape->name);
    }
}

typedef struct {
    const uint64_t *a, *b; /* element numbers as stored in each box */
    uint64_t matched;
    bool equal;
} compare_t;

static fsdp_status_t compare_run(const box_run_t *run, void *arg)
{
    compare_t *cmp = arg;

    for (uint64_t i = 0; i < run->length; i++) {
        cmp->equal &= cmp->a[run->offset_a + i] == cmp->b[run->offset_b + i];
        cmp->matched++;
    }

    return FSDP_OK;
}

static void fill_numbers(const box_t *box, const shape_t *shape, uint64_t *out)
{
    uint64_t mask = box_mask(box, shape), n = 0;

    for (uint64_t i = 0; i < MAX_NUMEL; i++) {
        if (mask >> i & 1) {
            out[n++] = i;
        }
    }
}

/* Runs of all pairs of boxes of a cube join equal elements, all of them. */
static void test_runs_join_equal_elements(void)
{
    const shape_t *shape = &shapes[5];
    box_t boxes[64];
    unsigned num = 0;
    bool good = true;

    for (uint64_t i = 0; i < 3; i++) {
        for (uint64_t j = 0; j < 2; j++) {
            for (uint64_t k = 0; k < 4; k++) {
                boxes[num++] = (box_t){
                    3, {i,     j,     k    },
                     {3 - i, 2 - j, 4 - k}
                };
                boxes[num++] = (box_t){
                    3, {0,     0,     0    },
                     {i + 1, j + 1, k + 1}
                };
            }
        }
    }
    for (unsigned x = 0; x < num; x++) {
        for (unsigned y = 0; y < num; y++) {
            uint64_t a[MAX_NUMEL], b[MAX_NUMEL];
            compare_t cmp = {a, b, 0, true};
            uint64_t both =
                box_mask(&boxes[x], shape) & box_mask(&boxes[y], shape);

            fill_numbers(&boxes[x], shape, a);
            fill_numbers(&boxes[y], shape, b);
            good &= box_walk_runs(&boxes[x], &boxes[y], compare_run, &cmp) ==
                    FSDP_OK;
            good &= cmp.equal &&
                    cmp.matched == (uint64_t)__builtin_popcountll(both);
        }
    }
    ok(good, "runs of %u pairs of boxes join equal elements", num * num);
}

static void test_bad_input(void)
{
    uint64_t dims[2] = {3, 5}, huge[2] = {UINT64_MAX, 2}, numel;
    box_t boxes[3], big = {
                        2, {0,          0},
                         {UINT64_MAX, 2}
    };
    unsigned num;

    ok(box_from_range(2, dims, 15, 1, boxes, &num) == FSDP_ERR_INVALID_PARAM,
       "a range past the end is refused");
    ok(box_from_range(2, dims, 1, UINT64_MAX, boxes, &num) ==
           FSDP_ERR_INVALID_PARAM,
       "so is one whose end overflows");
    ok(box_from_range(2, huge, 0, 1, boxes, &num) == FSDP_ERR_OVERFLOW,
       "and a shape with too many elements");
    ok(box_numel(&big, &numel) == FSDP_ERR_OVERFLOW, "which has no count");
}

int main(void)
{
    test_range_is_covered_once();
    test_runs_join_equal_elements();
    test_bad_input();
    return tap_done();
}
