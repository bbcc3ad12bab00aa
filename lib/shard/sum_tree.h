/*
 * The fixed tree along which the gradients of a step's G micro-batches are
 * summed (doc/numerics.md), as lists of instructions that are made once.
 *
 *     node(0, m) = the gradient of micro-batch m
 *     node(l, i) = node(l - 1, 2 i) + node(l - 1, 2 i + 1), or the left child
 *                  unchanged where there is no right one
 *
 * Round a brings micro-batches m = r + W a, one from each rank r = f + F q.
 *
 * Group stage: the shard group of replica q joins what it has of the round
 * into the sums of maximal complete subtrees, at most a few.  Final stage: the
 * nodes of all replicas, in their order, are joined with each other and with
 * those that wait in registers since earlier rounds; after the last round one
 * is left, the sum, in register 0.
 *
 * With one replica, or with shard groups of one rank, there is no group stage:
 * the final stage takes the micro-batches themselves.
 */
#ifndef FSDP_SUM_TREE_H
#define FSDP_SUM_TREE_H

#include <stdbool.h>
#include <stdint.h>

#include "fsdp_status.h"

typedef struct {
    uint32_t level, index;
} sum_node_t;

/* Operands: inputs are numbered from 0. */
#define SUM_REG  0x40000000u /* + k: register k */
#define SUM_TEMP 0x80000000u /* + k: a scratch block of sum_plan_run() */
#define SUM_NONE UINT32_MAX

#define SUM_TREE_MAX_TEMPS 32

/* dst = left + right, or dst = left if right is SUM_NONE. */
typedef struct {
    uint32_t dst, left, right;
} sum_op_t;

typedef struct {
    uint32_t num_inputs;
    uint32_t num_ops;
    sum_op_t *ops;
    /* What registers hold afterwards: node k of nodes[] in register regs[k],
     * in order of micro-batches. */
    uint32_t num_nodes;
    sum_node_t *nodes;
    uint32_t *regs;
    uint32_t num_registers; /* the highest one used + 1 */
} sum_plan_t;

typedef struct {
    uint32_t micro_batches, world, shard; /* G, W, F */
    uint32_t replicas;                    /* R = W / F */
    uint32_t rounds;                      /* ceil(G / W) */

    /* Most registers that a final plan, or that a group plan of any replica,
     * uses. */
    uint32_t final_registers, group_registers;

    /* Per round.  Inputs of a final plan: if there is a group stage, the nodes
     * of replica 0 in order, then those of replica 1, and so on; else the
     * micro-batches of ranks 0, 1, … that have one. */
    sum_plan_t *final;

    /* NULL if there is no group stage; else entry round * replicas + q.
     * Inputs: the micro-batches of ranks F q, F q + 1, … that have one (always
     * the first ones).  Node k is left in register k. */
    sum_plan_t *group;
} sum_tree_t;

/**
 * Make all plans of a step.
 *
 * @param shard   F; it divides @a world.
 * @param tree_p  sum_tree_free() frees it.
 */
fsdp_status_t sum_tree_create(uint32_t micro_batches, uint32_t world,
                              uint32_t shard, sum_tree_t **tree_p,
                              fsdp_error_t *err);

/* NULL is allowed. */
void sum_tree_free(sum_tree_t *tree);

/**
 * Run a plan over arrays, in blocks that stay in cache.
 *
 * @param inputs     plan->num_inputs arrays of @a count elements, fp32 or (if
 *                   @a bf16) bf16; they are not written.
 * @param registers  plan->num_registers fp32 arrays; elements [first, first +
 *                   count) of each are used.
 */
void sum_plan_run(const sum_plan_t *plan, const void *const *inputs, bool bf16,
                  float *const *registers, uint64_t first, uint64_t count);

#endif
