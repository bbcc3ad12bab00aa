#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "lib/shard/kernels.h"
#include "lib/shard/sum_tree.h"
#include "t/tap/tap.h"

#define MAX_G 24
#define MAX_W 12
#define NUM   48 /* elements of a gradient */

static float grads[MAX_G][NUM];

/* --- The rule, read literally --------------------------------------------- */

static bool node_exists(uint32_t g, unsigned level, uint64_t index)
{
    return index << level < g;
}

/* node(level, index) of the tree over g micro-batches. */
static void node_sum(uint32_t g, unsigned level, uint64_t index, float *sum)
{
    float right[NUM];

    if (level == 0) {
        memcpy(sum, grads[index], sizeof(right));
        return;
    }

    node_sum(g, level - 1, 2 * index, sum);
    if (node_exists(g, level - 1, 2 * index + 1)) {
        node_sum(g, level - 1, 2 * index + 1, right);
        for (unsigned i = 0; i < NUM; i++) {
            sum[i] = sum[i] + right[i];
        }
    }
}

static unsigned root_level(uint32_t g)
{
    unsigned level = 0;

    while ((1u << level) < g) {
        level++;
    }

    return level;
}

/* --- What the ranks do ---------------------------------------------------- */

typedef struct {
    float group[MAX_W][8][NUM]; /* per replica: its nodes */
    float regs[40][NUM];
    uint32_t sent; /* nodes that groups passed on */
} job_t;

static void run_group(const sum_tree_t *tree, uint32_t round, uint32_t q,
                      bool bf16, uint16_t half[MAX_G][NUM], job_t *job)
{
    const sum_plan_t *plan = &tree->group[round * tree->replicas + q];
    const void *inputs[MAX_W];
    float *regs[8];

    for (uint32_t f = 0; f < plan->num_inputs; f++) {
        uint32_t m = round * tree->world + q * tree->shard + f;

        inputs[f] = bf16 ? (const void *)half[m] : (const void *)grads[m];
    }
    for (uint32_t k = 0; k < 8; k++) {
        regs[k] = job->group[q][k];
    }
    sum_plan_run(plan, inputs, bf16, regs, 0, NUM);
    job->sent += plan->num_nodes;
}

static void run_final(const sum_tree_t *tree, uint32_t round, bool bf16,
                      uint16_t half[MAX_G][NUM], job_t *job)
{
    const sum_plan_t *plan = &tree->final[round];
    const void *inputs[8 * MAX_W];
    float *regs[40];
    uint32_t num = 0;

    if (tree->group != NULL) {
        for (uint32_t q = 0; q < tree->replicas; q++) {
            const sum_plan_t *group = &tree->group[round * tree->replicas + q];

            for (uint32_t k = 0; k < group->num_nodes; k++) {
                inputs[num++] = job->group[q][k];
            }
        }
        bf16 = false;
    } else {
        for (uint32_t r = 0; r < tree->world; r++) {
            uint32_t m = round * tree->world + r;

            if (m < tree->micro_batches) {
                inputs[num++] =
                    bf16 ? (const void *)half[m] : (const void *)grads[m];
            }
        }
    }
    for (uint32_t k = 0; k < 40; k++) {
        regs[k] = job->regs[k];
    }

    if (num != plan->num_inputs) {
        abort();
    }

    /* In two pieces, as chunks of a collective come. */
    sum_plan_run(plan, inputs, bf16, regs, 0, 20);
    for (uint32_t i = 0; i < num; i++) {
        inputs[i] = (const char *)inputs[i] +
                    20 * (bf16 ? sizeof(uint16_t) : sizeof(float));
    }
    sum_plan_run(plan, inputs, bf16, regs, 20, NUM - 20);
}

/* Is the result the root, bit for bit? */
static bool try_case(uint32_t g, uint32_t w, uint32_t f, bool bf16,
                     uint16_t half[MAX_G][NUM], const float *want, job_t *job)
{
    sum_tree_t *tree;
    bool good;

    if (sum_tree_create(g, w, f, &tree, NULL) != FSDP_OK) {
        return false;
    }

    memset(job, 0xff, sizeof(*job));
    job->sent = 0;
    for (uint32_t round = 0; round < tree->rounds; round++) {
        for (uint32_t q = 0; tree->group != NULL && q < tree->replicas; q++) {
            run_group(tree, round, q, bf16, half, job);
        }
        run_final(tree, round, bf16, half, job);
    }
    good = memcmp(job->regs[0], want, sizeof(grads[0])) == 0;
    good &= tree->final_registers <= 6;
    /* A group of a power of two within a power of two: one node a round. */
    if (tree->group != NULL && (f & (f - 1)) == 0 && g % w == 0) {
        good &= job->sent == tree->rounds * tree->replicas;
    }
    sum_tree_free(tree);

    return good;
}

static void fill_grads(bool bf16, uint16_t half[MAX_G][NUM])
{
    uint64_t seed = 1;

    for (uint32_t m = 0; m < MAX_G; m++) {
        for (unsigned i = 0; i < NUM; i++) {
            float x;

            kernel_normal(&x, seed, m * NUM + i, 1, 1.0f);
            /* Wide ranges, so that each order of sums gives other bits. */
            for (unsigned k = 0; k < (m * 7 + i * 5) % 23; k++) {
                x *= 3.7f;
            }
            /* And sums of -0, which + 0 would turn into +0. */
            grads[m][i] = (i == 0) ? -0.0f : x;
        }
        kernel_to_bf16(half[m], grads[m], NUM);
        if (bf16) {
            kernel_from_bf16(grads[m], half[m], NUM);
        }
    }
}

static void test_all_cases(bool bf16)
{
    static uint16_t half[MAX_G][NUM];
    static job_t job;
    unsigned cases = 0, wrong = 0, differ = 0;
    float want[NUM], plain;

    fill_grads(bf16, half);
    for (uint32_t g = 1; g <= MAX_G; g++) {
        node_sum(g, root_level(g), 0, want);
        for (unsigned i = 0; i < NUM; i++) {
            plain = grads[0][i];
            for (uint32_t m = 1; m < g; m++) {
                plain += grads[m][i];
            }
            differ += plain != want[i];
        }
        for (uint32_t w = 1; w <= MAX_W; w++) {
            for (uint32_t f = 1; f <= w; f++) {
                if (w % f == 0) {
                    cases++;
                    wrong += !try_case(g, w, f, bf16, half, want, &job);
                }
            }
        }
    }
    ok(wrong == 0 && cases == 24 * 35, "%s: %u of %u cases differ",
       bf16 ? "bf16" : "fp32", wrong, cases);
    ok(differ > 100, "a plain loop gives other bits in %u sums", differ);
}

static void test_plan_shape(void)
{
    sum_tree_t *tree;
    fsdp_error_t err;

    ok(sum_tree_create(16, 4, 4, &tree, &err) == FSDP_OK, "G 16, W 4, F 4");
    ok(tree->group == NULL && tree->rounds == 4, "one stage in four rounds");
    ok(tree->final[0].num_ops == 3 && tree->final[0].num_nodes == 1 &&
           tree->final[0].nodes[0].level == 2,
       "the first round makes one node of level 2");
    ok(tree->final_registers == 2, "%u registers of the shard's size",
       tree->final_registers);
    sum_tree_free(tree);

    ok(sum_tree_create(4, 8, 2, &tree, &err) == FSDP_OK, "G 4, W 8, F 2");
    ok(tree->group[2].num_inputs == 0 && tree->group[2].num_nodes == 0,
       "a group without a micro-batch sends no node");
    sum_tree_free(tree);

    ok(sum_tree_create(4096, 512, 8, &tree, &err) == FSDP_OK, "large ones");
    sum_tree_free(tree);
    ok(sum_tree_create(0, 1, 1, &tree, &err) == FSDP_ERR_INVALID_PARAM,
       "no micro-batch: %s", err.text);
    ok(sum_tree_create(8, 6, 4, &tree, &err) == FSDP_ERR_INVALID_PARAM,
       "F does not divide W: %s", err.text);
}

int main(void)
{
    test_all_cases(false);
    test_all_cases(true);
    test_plan_shape();
    return tap_done();
}
