#include "config.h"

#include "lib/shard/sum_tree.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "lib/shard/kernels.h"
#include "lib/util/check.h"

#define RUN_BLOCK 512 /* elements: with all scratch blocks below 64 KiB */

/* --- Making a plan -------------------------------------------------------- */

/* A sum that waits for its sibling; `value` is the operand that holds it:
 * an input, a register, or VALUE + the instruction that makes it. */
typedef struct {
    sum_node_t node;
    uint32_t value;
} pending_t;

#define VALUE 0x20000000u

typedef struct {
    uint32_t count;       /* G: leaves of the whole tree */
    uint32_t num_pending; /* in order of micro-batches */
    pending_t *pending;
    uint32_t num_ops;
    sum_op_t *ops;
} builder_t;

static fsdp_status_t builder_init(builder_t *b, uint32_t count, uint32_t room,
                                  fsdp_error_t *err)
{
    *b = (builder_t){.count = count};
    b->pending = calloc(room + 1, sizeof(*b->pending));
    b->ops = calloc(2 * (size_t)room + 1, sizeof(*b->ops));
    if (b->pending == NULL || b->ops == NULL) {
        free(b->pending);
        free(b->ops);
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for the summation tree of %u "
                              "micro-batches",
                              count);
    }

    return FSDP_OK;
}

static void builder_free(builder_t *b)
{
    free(b->pending);
    free(b->ops);
}

/* The place of a node among the pending ones: its first micro-batch decides. */
static uint32_t builder_place(const builder_t *b, sum_node_t node)
{
    uint64_t leaf = (uint64_t)node.index << node.level;
    uint32_t i = b->num_pending;

    while (i > 0 && (uint64_t)b->pending[i - 1].node.index
                            << b->pending[i - 1].node.level >
                        leaf) {
        i--;
    }

    return i;
}

/* The pending sum of a node, taken out; false if it is not there. */
static bool builder_take(builder_t *b, sum_node_t node, uint32_t *value_p)
{
    uint32_t i = builder_place(b, node);

    if (i == 0 || b->pending[i - 1].node.level != node.level ||
        b->pending[i - 1].node.index != node.index) {
        return false;
    }

    *value_p = b->pending[i - 1].value;
    memmove(&b->pending[i - 1], &b->pending[i],
            (b->num_pending - i) * sizeof(*b->pending));
    b->num_pending--;
    return true;
}

/* Add a node; join siblings as far up as both are known. */
static void builder_insert(builder_t *b, sum_node_t node, uint32_t value)
{
    uint32_t place, other;

    while ((1ull << node.level) < b->count) {
        sum_node_t sibling = {node.level, node.index ^ 1};
        bool left = node.index % 2 == 0;

        if (builder_take(b, sibling, &other)) {
            b->ops[b->num_ops] = (sum_op_t){SUM_NONE, left ? value : other,
                                            left ? other : value};
            value = VALUE + b->num_ops++;
        } else if (!left ||
                   (uint64_t)sibling.index << sibling.level < b->count) {
            break; /* the sibling exists and is not here yet */
        }
        node = (sum_node_t){node.level + 1, node.index / 2};
    }

    place = builder_place(b, node);
    memmove(&b->pending[place + 1], &b->pending[place],
            (b->num_pending - place) * sizeof(*b->pending));
    b->pending[place] = (pending_t){node, value};
    b->num_pending++;
}

/* Which numbers of registers or scratch blocks are in use. */
typedef struct {
    uint64_t used;
    uint32_t most; /* the highest ever + 1 */
} numbers_t;

static uint32_t numbers_take(numbers_t *numbers)
{
    uint32_t k = (uint32_t)__builtin_ctzll(~numbers->used);

    numbers->used |= 1ull << k;
    numbers->most = (k + 1 > numbers->most) ? k + 1 : numbers->most;
    return k;
}

/* An operand is used up: what held it is free again. */
static void operand_release(uint32_t operand, numbers_t *regs, numbers_t *temps)
{
    if (operand == SUM_NONE) {
        return;
    }
    if (operand >= SUM_TEMP) {
        temps->used &= ~(1ull << (operand - SUM_TEMP));
    } else if (operand >= SUM_REG) {
        regs->used &= ~(1ull << (operand - SUM_REG));
    }
}

/* The operand that holds a value, once its instruction has a destination. */
static uint32_t operand_of(const builder_t *b, uint32_t value)
{
    return (value >= VALUE && value < SUM_REG) ? b->ops[value - VALUE].dst
                                               : value;
}

/* The pending sum that an instruction makes, or SUM_NONE. */
static uint32_t pending_of(const builder_t *b, uint32_t op)
{
    for (uint32_t k = 0; k < b->num_pending; k++) {
        if (b->pending[k].value == VALUE + op) {
            return k;
        }
    }

    return SUM_NONE;
}

/*
 * Give every value a place: registers to those that outlive the plan, scratch
 * blocks to the others.  An instruction may write where it reads.
 *
 * @param regs  Registers in use before and after; NULL: none are, and sum k
 *              goes to register k.
 */
static void builder_allocate(builder_t *b, numbers_t *regs)
{
    numbers_t temps = {0}, none = {0};
    uint32_t made = b->num_ops, stays, dst;

    for (uint32_t i = 0; i < made; i++) {
        sum_op_t *op = &b->ops[i];

        op->left = operand_of(b, op->left);
        op->right = operand_of(b, op->right);
        operand_release(op->left, regs ? regs : &none, &temps);
        operand_release(op->right, regs ? regs : &none, &temps);
        stays = pending_of(b, i);
        if (stays == SUM_NONE) {
            op->dst = SUM_TEMP + numbers_take(&temps);
        } else {
            op->dst = SUM_REG + (regs ? numbers_take(regs) : stays);
        }
    }
    assert(temps.most <= SUM_TREE_MAX_TEMPS);

    /* Inputs that wait are copied: they do not outlive the round. */
    for (uint32_t k = 0; k < b->num_pending; k++) {
        uint32_t value = operand_of(b, b->pending[k].value);

        if (value < VALUE) {
            dst = SUM_REG + (regs ? numbers_take(regs) : k);
            b->ops[b->num_ops++] = (sum_op_t){dst, value, SUM_NONE};
            value = dst;
        }
        b->pending[k].value = value;
    }
}

/* Copy what the builder has into a plan. */
static fsdp_status_t builder_finish(const builder_t *b, uint32_t num_inputs,
                                    uint32_t num_registers, sum_plan_t *plan,
                                    fsdp_error_t *err)
{
    plan->num_inputs = num_inputs;
    plan->num_ops = b->num_ops;
    plan->num_nodes = b->num_pending;
    plan->num_registers = num_registers;
    plan->ops = calloc(b->num_ops + 1, sizeof(*plan->ops));
    plan->nodes = calloc(b->num_pending + 1, sizeof(*plan->nodes));
    plan->regs = calloc(b->num_pending + 1, sizeof(*plan->regs));
    if (plan->ops == NULL || plan->nodes == NULL || plan->regs == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for the summation tree of %u "
                              "micro-batches",
                              b->count);
    }

    memcpy(plan->ops, b->ops, b->num_ops * sizeof(*plan->ops));
    for (uint32_t k = 0; k < b->num_pending; k++) {
        plan->nodes[k] = b->pending[k].node;
        plan->regs[k] = b->pending[k].value - SUM_REG;
    }

    return FSDP_OK;
}

/* --- The plans of a step -------------------------------------------------- */

/* First micro-batch of rank @a rank in a round, or G. */
static uint32_t round_start(const sum_tree_t *tree, uint32_t round,
                            uint32_t rank)
{
    uint64_t m = (uint64_t)tree->world * round + rank;

    return (m < tree->micro_batches) ? (uint32_t)m : tree->micro_batches;
}

/* What a shard group makes of its micro-batches of one round. */
static fsdp_status_t make_group_plan(const sum_tree_t *tree, uint32_t round,
                                     uint32_t replica, sum_plan_t *plan,
                                     fsdp_error_t *err)
{
    uint32_t lo = round_start(tree, round, tree->shard * replica);
    uint32_t hi = round_start(tree, round, tree->shard * (replica + 1));
    fsdp_status_t status;
    builder_t b;

    FSDP_TRY(builder_init(&b, tree->micro_batches, hi - lo, err));
    for (uint32_t m = lo; m < hi; m++) {
        builder_insert(&b, (sum_node_t){0, m}, m - lo);
    }
    builder_allocate(&b, NULL);
    status = builder_finish(&b, hi - lo, b.num_pending, plan, err);
    builder_free(&b);

    return status;
}

static fsdp_status_t make_group_plans(sum_tree_t *tree, fsdp_error_t *err)
{
    sum_plan_t *plan;

    tree->group =
        calloc((size_t)tree->rounds * tree->replicas, sizeof(*tree->group));
    if (tree->group == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for the summation tree");
    }

    for (uint32_t round = 0; round < tree->rounds; round++) {
        for (uint32_t q = 0; q < tree->replicas; q++) {
            plan = &tree->group[(size_t)round * tree->replicas + q];
            FSDP_TRY(make_group_plan(tree, round, q, plan, err));
            if (plan->num_registers > tree->group_registers) {
                tree->group_registers = plan->num_registers;
            }
        }
    }

    return FSDP_OK;
}

/* Insert what comes in a round; returns the number of inputs. */
static uint32_t insert_round(const sum_tree_t *tree, uint32_t round,
                             builder_t *b)
{
    uint32_t lo = round_start(tree, round, 0);
    uint32_t hi = round_start(tree, round, tree->world), num = 0;

    if (tree->group == NULL) {
        for (uint32_t m = lo; m < hi; m++) {
            builder_insert(b, (sum_node_t){0, m}, num++);
        }
        return num;
    }

    for (uint32_t q = 0; q < tree->replicas; q++) {
        const sum_plan_t *plan =
            &tree->group[(size_t)round * tree->replicas + q];

        for (uint32_t k = 0; k < plan->num_nodes; k++) {
            builder_insert(b, plan->nodes[k], num++);
        }
    }

    return num;
}

/* The final plans: what waits after a round is there in the next one. */
static fsdp_status_t make_final_plans(sum_tree_t *tree, fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;
    numbers_t regs = {0};
    uint32_t num;
    builder_t b;

    tree->final = calloc(tree->rounds, sizeof(*tree->final));
    if (tree->final == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for the summation tree");
    }

    /* At most 32 sums wait for earlier rounds' siblings. */
    FSDP_TRY(builder_init(&b, tree->micro_batches, tree->world + 32, err));
    for (uint32_t round = 0; round < tree->rounds; round++) {
        b.num_ops = 0;
        num = insert_round(tree, round, &b);
        builder_allocate(&b, &regs);
        FSDP_TRY_GOTO(
            builder_finish(&b, num, regs.most, &tree->final[round], err),
            err_builder);
    }
    tree->final_registers = regs.most;
    assert(b.num_pending == 1 && b.pending[0].value == SUM_REG);

err_builder:
    builder_free(&b);
    return status;
}

static void free_plans(sum_plan_t *plans, size_t num)
{
    for (size_t i = 0; plans != NULL && i < num; i++) {
        free(plans[i].ops);
        free(plans[i].nodes);
        free(plans[i].regs);
    }
    free(plans);
}

void sum_tree_free(sum_tree_t *tree)
{
    if (tree != NULL) {
        free_plans(tree->group, (size_t)tree->rounds * tree->replicas);
        free_plans(tree->final, tree->rounds);
        free(tree);
    }
}

fsdp_status_t sum_tree_create(uint32_t micro_batches, uint32_t world,
                              uint32_t shard, sum_tree_t **tree_p,
                              fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;
    sum_tree_t *tree;

    if (micro_batches == 0 || micro_batches >= VALUE || world == 0 ||
        world >= VALUE || shard == 0 || world % shard != 0) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "no summation tree of %u micro-batches over %u "
                              "ranks in groups of %u",
                              micro_batches, world, shard);
    }

    tree = calloc(1, sizeof(*tree));
    if (tree == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for the summation tree");
    }

    tree->micro_batches = micro_batches;
    tree->world = world;
    tree->shard = shard;
    tree->replicas = world / shard;
    tree->rounds = micro_batches / world + (micro_batches % world != 0);
    if (tree->replicas > 1 && shard > 1) {
        FSDP_TRY_GOTO(make_group_plans(tree, err), err_tree);
    }
    FSDP_TRY_GOTO(make_final_plans(tree, err), err_tree);

    *tree_p = tree;
    return FSDP_OK;

err_tree:
    sum_tree_free(tree);
    return status;
}

/* --- Running one ---------------------------------------------------------- */

typedef struct {
    const void *const *inputs;
    bool bf16;
    float *const *registers;
    uint64_t at;    /* first element of this block in the inputs */
    uint64_t first; /* that of the registers is first + at */
    uint64_t count;
    float temp[SUM_TREE_MAX_TEMPS][RUN_BLOCK];
    float wide[2][RUN_BLOCK]; /* bf16 inputs, widened */
} run_t;

/* Where an operand's block is; bf16 inputs are widened into scratch @a side. */
static float *run_operand(run_t *run, uint32_t operand, unsigned side)
{
    if (operand >= SUM_TEMP) {
        return run->temp[operand - SUM_TEMP];
    }
    if (operand >= SUM_REG) {
        return run->registers[operand - SUM_REG] + run->first + run->at;
    }
    if (!run->bf16) {
        return (float *)run->inputs[operand] + run->at;
    }

    kernel_from_bf16(run->wide[side],
                     (const uint16_t *)run->inputs[operand] + run->at,
                     run->count);
    return run->wide[side];
}

static void run_op(run_t *run, const sum_op_t *op)
{
    float *dst = run_operand(run, op->dst, 0);
    const float *left = run_operand(run, op->left, 0);

    if (op->right == SUM_NONE) {
        memcpy(dst, left, run->count * sizeof(*dst));
    } else {
        kernel_add(dst, left, run_operand(run, op->right, 1), run->count);
    }
}

void sum_plan_run(const sum_plan_t *plan, const void *const *inputs, bool bf16,
                  float *const *registers, uint64_t first, uint64_t count)
{
    run_t run;

    run.inputs = inputs;
    run.bf16 = bf16;
    run.registers = registers;
    run.first = first;
    for (run.at = 0; run.at < count; run.at += RUN_BLOCK) {
        run.count = count - run.at < RUN_BLOCK ? count - run.at : RUN_BLOCK;
        for (uint32_t i = 0; i < plan->num_ops; i++) {
            run_op(&run, &plan->ops[i]);
        }
    }
}
