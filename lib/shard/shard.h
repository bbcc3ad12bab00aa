/*
 * The inside of fsdp_t: units, slots, the recorded schedule and the reduction.
 *
 * One file each, and calls go down this list only:
 *
 *     fsdp.c      create, add units and parameters, destroy
 *     seal.c      compare layouts, plan and allocate memory, initial values
 *     step.c      the state machine of a round: begin and end calls
 *     optim.c     division, norm and clip, AdamW
 *     whole.c     get and set a parameter, gather scalars, digests
 *     save.c load.c    checkpoints
 *     counters.c  counters and the formulas of doc/volume.md
 *     gather.c    slots and all-gathers, prefetch
 *     reduce.c    gradient slots and reductions
 *     schedule.c  the record of calls, and agreement on it
 *     memory.c    what seal allocates
 *     pool.c sum_tree.c kernels.c    know nothing of fsdp_t
 */
#ifndef FSDP_SHARD_H
#define FSDP_SHARD_H

#include <pthread.h>

#include "fsdp.h"
#include "lib/comm/comm.h"
#include "lib/device/device.h"
#include "lib/shard/kernels.h"
#include "lib/shard/pool.h"
#include "lib/shard/sum_tree.h"
#include "lib/util/digest.h"
#include "lib/util/map.h"

#define SHARD_MAX_PREFETCH 4

/* --- Layout --------------------------------------------------------------- */

/* A unit has two flat arrays: one of what is trained, one of what is frozen,
 * which is gathered and nothing else. */
typedef enum {
    REGION_TRAINED = 0,
    REGION_FROZEN = 1,
    NUM_REGIONS = 2
} region_id_t;

typedef struct {
    uint64_t length; /* elements of a shard; 0: there is no such region */
    uint64_t first;  /* where the region begins in the gathered unit */
    float *value;    /* fp32 master shard */
} region_t;

struct fsdp_param {
    fsdp_unit_t *unit;
    char *name;
    char **aliases;
    uint32_t num_aliases;
    uint32_t ndim;
    uint64_t *dims;
    uint64_t numel;
    uint64_t start; /* in its region's flat array */
    region_id_t region;
    fsdp_init_t init;
    float std;
};

/* How long the parameters of a unit stay whole once they are gathered. */
typedef enum {
    KEEP_CALL = 0,  /* from begin to end */
    KEEP_ROUND = 1, /* until the end of the round */
    KEEP_ALWAYS = 2 /* every rank has all of them: F = 1 */
} keep_t;

/* --- Buffers -------------------------------------------------------------- */

/* Room for the gathered parameters of a unit. */
typedef struct {
    void *data;
    bool busy; /* from the issue of the gather to the end of its unit */
} param_slot_t;

/* Room for the gradients of a unit on their way to its reduction, which is the
 * one job that reads this slot. */
typedef struct {
    void *data;
    fsdp_unit_t *unit; /* whose gradients */
    bool held;         /* the unit has not handed them to the reduction */
    uint32_t round;
    comm_ticket_t ticket; /* of the reduction */
} grad_slot_t;

struct fsdp_unit {
    fsdp_t *fsdp;
    char *name;
    unsigned flags;
    uint32_t index;
    fsdp_param_t **params;
    uint32_t num_params;

    region_t regions[NUM_REGIONS];
    float *exp_avg, *exp_avg_sq; /* shards of the trained region */
    /* The reduced gradient: part_length * R elements, of which the first
     * `length` are the shard. */
    float *grad;
    uint64_t part_length; /* of the shard: what one replica sums */
    float **sums; /* where node sums lie between rounds; [0] is in `grad` */

    keep_t keep;
    param_slot_t own_param; /* data NULL: uses the common slots */
    bool stale;             /* KEEP_ALWAYS: own_param must be converted again */
    grad_slot_t own_grad;   /* data NULL: uses the common slots */

    /* In this round. */
    param_slot_t *param_slot;     /* where the parameters are whole, or NULL */
    grad_slot_t *grad_slot;       /* where the gradients are, or NULL */
    const char *open;             /* "forward" or "backward", or NULL */
    uint32_t forwards, backwards; /* begins */
    uint32_t begins; /* in a whole training round, once there was one */
};

/* --- Schedule ------------------------------------------------------------- */

typedef enum {
    CALL_ROUND_BEGIN = 0,
    CALL_FORWARD_BEGIN = 1,
    CALL_FORWARD_END = 2,
    CALL_BACKWARD_BEGIN = 3,
    CALL_BACKWARD_END = 4,
    CALL_ROUND_END = 5
} call_op_t;

/* A call as the ranks compare it. */
typedef struct {
    uint32_t number; /* in the round, from 0 */
    uint32_t mode;
    uint32_t op;
    uint32_t unit; /* index, or CALL_NO_UNIT */
    uint64_t hash; /* at the end of a round: of the whole record */
} call_t;

#define CALL_NO_UNIT UINT32_MAX

/* One all-gather of the schedule, and the argument of its job. */
typedef struct {
    fsdp_unit_t *unit;
    param_slot_t *slot;
    comm_ticket_t ticket;
} gather_t;

/* The order of calls in a round, one of each mode. */
typedef struct {
    call_t *calls;
    gather_t *gathers; /* in the order in which units begin */
    uint32_t num_calls, max_calls;
    uint32_t num_gathers, max_gathers;
    bool recorded;
    /* In this round. */
    uint32_t next_call;
    uint32_t issued; /* gathers given to the worker */
    uint32_t begun;  /* gathers whose unit has begun */
} schedule_t;

/* --- Reduction ------------------------------------------------------------ */

/* One exchange-and-sum of a reduction: in the shard group, or over the
 * replicas. */
typedef struct {
    const comm_group_t *group;
    comm_class_t class;
    bool micro; /* inputs are micro-batches, of reduce dtype; else fp32 nodes */
    bool bf16;
    uint64_t chunk;      /* elements of an input exchanged at once */
    uint32_t *input_at;  /* first input of each member, and the end */
    const void **inputs; /* of a chunk, in order */
    comm_message_t *sends, *recvs;
} stage_t;

typedef struct {
    sum_tree_t *tree;
    bool two_stages;  /* else the final stage takes the micro-batches */
    stage_t group;    /* in the shard group, to nodes; only of two stages */
    stage_t final;    /* over the replicas if there are any, to the sum */
    float **nodes;    /* what the group stage leaves, one unit at a time */
    void *staging[2]; /* what is received: two chunks */
} reduction_t;

/* --- Memory --------------------------------------------------------------- */

typedef struct {
    fsdp_mem_kind_t kind;
    bool comm; /* through the communication backend */
    size_t bytes;
    void **data_p;
    void *data;
} block_t;

typedef struct {
    block_t *blocks;
    uint32_t num, max;
    uint32_t allocated; /* the first ones are there */
    uint64_t planned[FSDP_MEM_NUM_KINDS];
    device_usage_t usage;
} memory_t;

/* --- The whole ------------------------------------------------------------ */

typedef struct save save_t;

/* A stretch of a shard for one pass of clip or optimizer. */
typedef struct {
    fsdp_unit_t *unit;
    uint64_t first, count;
    bool decay;
} span_t;

struct fsdp {
    fsdp_job_t *job;
    comm_t *comm;
    const struct device_ops *device;
    fsdp_config_t config;

    fsdp_mesh_t mesh;
    uint32_t rank, shard_index, replica_index;
    uint32_t rounds; /* of a training step */
    comm_group_t shard_group, replica_group;
    uint32_t *group_ranks; /* both groups' */

    fsdp_unit_t **units;
    uint32_t num_units;
    map_t names; /* of parameters, tied ones too */
    fsdp_unit_t *root;
    bool sealed;

    memory_t memory;
    param_slot_t param_slots[SHARD_MAX_PREFETCH + 1];
    uint32_t num_param_slots;
    grad_slot_t grad_slots[2];
    uint32_t num_grad_slots, last_grad_slot;
    reduction_t reduction;
    call_t *calls;   /* W, for the agreement on a call */
    double *scalars; /* W * scalars_each */
    uint32_t scalars_each;
    uint64_t *words;          /* W * EXACT_WORDS, scratch of sums over ranks */
    comm_message_t *messages; /* 2 F, for whole parameters */

    /* The round. */
    schedule_t schedules[2];
    bool in_round;
    fsdp_mode_t mode;
    uint32_t round, micro;
    uint32_t num_open;
    comm_ticket_t last_ticket;

    /* The step. */
    uint32_t rounds_done;
    bool clipped;      /* gradients are reduced, divided and measured */
    bool finite;       /* their norm is a number */
    double lr;         /* of the last optimizer step */
    double grad_scale; /* by which the optimizer multiplies them */
    int64_t step;
    pool_t *pool;
    span_t *spans;
    uint32_t num_spans;
    exact_sum_t *thread_sums;

    save_t *save;

    /* Counters. */
    comm_counters_t comm_base;
    double compute_seconds, optimizer_seconds, save_seconds;
    double compute_since; /* 0: no unit is open */
};

static inline size_t dtype_size(fsdp_precision_t dtype)
{
    return (dtype == FSDP_BF16) ? 2 : 4;
}

/* Elements of the gathered unit. */
static inline uint64_t unit_elements(const fsdp_unit_t *unit)
{
    return unit->fsdp->mesh.shard * (unit->regions[REGION_TRAINED].length +
                                     unit->regions[REGION_FROZEN].length);
}

static inline bool unit_trains(const fsdp_unit_t *unit)
{
    return unit->regions[REGION_TRAINED].length > 0;
}

/* Make a parameter known by a name, which is copied.  @return false without
 * memory. */
bool find_add(fsdp_t *fsdp, const char *name, fsdp_param_t *param);

/**
 * What of a parameter lies in this rank's shard.
 *
 * @param first_p  The first such element of the parameter.
 * @param at_p     Where it is in the shard.
 *
 * @return how many there are; only if there are some, the rest is written.
 */
uint64_t param_in_shard(const fsdp_param_t *param, uint32_t shard,
                        uint64_t *first_p, uint64_t *at_p);

/* The shard array that holds @a what of the parameter's region; NULL if there
 * is none (state of a frozen parameter). */
float *param_shard(const fsdp_param_t *param, fsdp_what_t what);

/* FSDP_ERR_BAD_STATE unless sealed and outside a round; or the job's error. */
fsdp_status_t shard_check_outside(const fsdp_t *fsdp, const char *what,
                                  fsdp_error_t *err);

/* Masters have changed: copies of them in param dtype are out of date. */
void shard_values_changed(fsdp_t *fsdp);

/* The kind of its tensor in checkpoints and digests: "model",
 * "optim/exp_avg", "optim/exp_avg_sq". */
const char *shard_kind(fsdp_what_t what);

/* --- memory.c ------------------------------------------------------------- */

/* Plan a zeroed block that memory_allocate() will put into *@a data_p.  Of 0
 * bytes: NULL. */
fsdp_status_t memory_plan(fsdp_t *fsdp, fsdp_mem_kind_t kind, bool comm,
                          size_t bytes, void *data_p, fsdp_error_t *err);
fsdp_status_t memory_allocate(fsdp_t *fsdp, fsdp_error_t *err);
void memory_free(fsdp_t *fsdp);

/* --- schedule.c ----------------------------------------------------------- */

/**
 * A call of the round: record it and agree on it with all ranks in the first
 * round of a mode, compare it with the record later.
 *
 * @return FSDP_ERR_MISMATCH naming both calls.
 */
fsdp_status_t schedule_call(fsdp_t *fsdp, call_op_t op, const fsdp_unit_t *unit,
                            fsdp_error_t *err);
void schedule_free(schedule_t *schedule);

static inline schedule_t *schedule_now(fsdp_t *fsdp)
{
    return &fsdp->schedules[fsdp->mode];
}

/* --- gather.c ------------------------------------------------------------- */

fsdp_status_t gather_plan(fsdp_t *fsdp, fsdp_error_t *err);
/* After the allocation: master shards that lie in gather buffers. */
void gather_place_masters(fsdp_t *fsdp);
/* Issue the first gathers of a recorded round. */
fsdp_status_t gather_round_begin(fsdp_t *fsdp, fsdp_error_t *err);
/* Make the unit whole, and issue what comes next. */
fsdp_status_t gather_begin(fsdp_unit_t *unit, fsdp_error_t *err);
void gather_end(fsdp_unit_t *unit);
/* Wait for gathers that nobody consumed; no unit is whole afterwards. */
fsdp_status_t gather_round_end(fsdp_t *fsdp, fsdp_error_t *err);

/* --- reduce.c ------------------------------------------------------------- */

fsdp_status_t reduce_plan_memory(fsdp_t *fsdp, fsdp_error_t *err);
/* After the allocation: sums that lie in gradient shards. */
void reduce_place_sums(fsdp_t *fsdp);
/* Give the unit a zeroed gradient slot; waits until one is free. */
fsdp_status_t reduce_begin(fsdp_unit_t *unit, fsdp_error_t *err);
/* Its gradients are complete. */
fsdp_status_t reduce_submit(fsdp_unit_t *unit, fsdp_error_t *err);
void reduce_free(fsdp_t *fsdp);

/* --- whole.c -------------------------------------------------------------- */

/* Add elements [first, first + count) of a tensor, and its constant if the
 * first one is among them. */
void shard_digest(digest_t *digest, uint64_t key, uint64_t numel,
                  const float *data, uint64_t first, uint64_t count);

/* --- save.c --------------------------------------------------------------- */

fsdp_status_t save_plan(fsdp_t *fsdp, fsdp_error_t *err);
/* Join the thread.
 * @return false if it was left behind, since the job is broken: then what it
 *         works on must not be freed. */
bool save_free(fsdp_t *fsdp);

#endif
