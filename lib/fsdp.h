/*
 * libfsdp: fully sharded data-parallel training (arXiv 2304.11277).
 *
 * Parameters, gradients and optimizer state are sharded over the ranks of a
 * job.  The model drives an explicit state machine:
 *
 *     fsdp_job_open → fsdp_create → fsdp_unit_add, fsdp_param_add … → fsdp_seal
 *     for each step:
 *         for each round of micro-batches:
 *             fsdp_micro_begin
 *             fsdp_forward_begin(u)  … fsdp_forward_end(u)   parameters of u
 *             fsdp_backward_begin(u) … fsdp_backward_end(u)  are whole here
 *             fsdp_micro_end
 *         fsdp_clip → fsdp_optimizer_step → (fsdp_save_start)
 *     fsdp_destroy → fsdp_job_close
 *
 * The same G micro-batches give the same bits at every number of ranks,
 * strategy and prefetch depth (doc/numerics.md).
 *
 * "Collective" calls are made by all ranks of the job in the same order.  All
 * calls on a job and what belongs to it come from one thread.  Nothing here
 * prints, exits or aborts.  After FSDP_ERR_PEER_LOST, FSDP_ERR_MISMATCH or
 * FSDP_ERR_SIGNALLED the job is broken: each later call returns the same
 * error, closing does not wait for anybody, and the program should say the
 * error's text and end with _exit().
 */
#ifndef FSDP_H
#define FSDP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fsdp_layout.h"
#include "fsdp_status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- The job -------------------------------------------------------------- */

typedef struct fsdp_job fsdp_job_t;

typedef struct {
    size_t size;
    /* Do not look for peers: one rank, whatever launched the process. */
    bool alone;
    /* Seconds that any wait for peers may take; 0: 300. */
    double deadline;
    /* A directory that all ranks share; heartbeat files are kept in
     * DIR/.job-ID/ while the job runs.  NULL: none, and then a deadline can
     * name ranks but not say when they were last seen. */
    const char *run_dir;
} fsdp_job_config_t;

#define FSDP_JOB_CONFIG_INIT {.size = sizeof(fsdp_job_config_t)}

typedef struct {
    uint32_t rank;
    uint32_t world;
    uint32_t local_rank; /* among the ranks of this node */
    uint32_t local_size;
    uint32_t node; /* 0 … nodes - 1 */
    uint32_t nodes;
    const char *host;
    const char *id;       /* the same on all ranks, new for each run */
    const char *launcher; /* "srun", "mpirun" or "none" */
    const char *backend;  /* "mpi" or "self" */
} fsdp_job_info_t;

/**
 * Find the other ranks: by PMIx under srun --mpi=pmix and mpirun, alone
 * without a launcher.  Initialises MPI where MPI carries the data.  Collective.
 *
 * @return FSDP_ERR_NO_LAUNCHER with the cure if a launcher is there but not
 *         its PMIx, or fewer peers than it started; FSDP_ERR_PEER_LOST, naming
 *         ranks and nodes, if some have not arrived at the deadline.
 */
FSDP_API fsdp_status_t fsdp_job_open(const fsdp_job_config_t *config,
                                     fsdp_job_t **job_p, fsdp_error_t *err);

/* Collective, unless the job is broken.  NULL is allowed. */
FSDP_API void fsdp_job_close(fsdp_job_t *job);

/* Strings are borrowed until fsdp_job_close().  Local. */
FSDP_API void fsdp_job_get_info(const fsdp_job_t *job, fsdp_job_info_t *info_p);

/* Host name of a rank; borrowed until fsdp_job_close().  Local. */
FSDP_API const char *fsdp_job_host(const fsdp_job_t *job, uint32_t rank);

/* What this rank does now, for the heartbeat file: a short word such as
 * "forward", kept by pointer, and a step.  Local, no system call. */
FSDP_API void fsdp_job_set_phase(fsdp_job_t *job, const char *phase,
                                 int64_t step);

/**
 * Agree before anyone branches on a local error: if any rank passes another
 * status than FSDP_OK, all ranks get that of the lowest such rank, and its
 * text and number in @a err.  Collective.
 *
 * @param mine  This rank's error; read only if @a status is not FSDP_OK.
 */
FSDP_API fsdp_status_t fsdp_job_agree(fsdp_job_t *job, fsdp_status_t status,
                                      const fsdp_error_t *mine,
                                      fsdp_error_t *err);

/* To be called by the program's SIGTERM handler; async-signal-safe.  A wait
 * for peers then ends with FSDP_ERR_SIGNALLED after it has looked, for up to
 * two seconds, who else is gone, and names them. */
FSDP_API void fsdp_job_signalled(int signo);

/* --- Layout --------------------------------------------------------------- */

typedef struct fsdp fsdp_t;
typedef struct fsdp_unit fsdp_unit_t;
typedef struct fsdp_param fsdp_param_t;

/* Element types of gathered parameters and of gradients. */
typedef enum { FSDP_F32 = 0, FSDP_BF16 = 1 } fsdp_precision_t;

typedef struct {
    size_t size;
    fsdp_strategy_t strategy;
    uint32_t shard;         /* F, for hybrid only */
    uint32_t micro_batches; /* G: a step's, over all ranks; at least 1 */
    uint32_t prefetch;      /* units gathered ahead: 0 … 4 */
    fsdp_precision_t param_dtype;  /* of gathered parameters */
    fsdp_precision_t reduce_dtype; /* of the gradients that the model writes;
                                      sums are fp32 all the same */
    bool reshard_root; /* do not keep the root unit whole between forward and
                          backward */
    uint64_t seed;     /* of initial values */
    bool async_save;   /* room for a staged copy, so that fsdp_save_start()
                          takes as long as a memory copy */
    uint32_t threads;  /* for the optimizer; 0: 1 */
    double beta1, beta2, eps, weight_decay; /* AdamW */
} fsdp_config_t;

#define FSDP_CONFIG_INIT                                             \
    {                                                                \
        .size = sizeof(fsdp_config_t), .micro_batches = 1,           \
        .prefetch = 1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8,     \
        .weight_decay = 0.1                                          \
    }

/* Local: ranks compare their layouts in fsdp_seal(). */
FSDP_API fsdp_status_t fsdp_create(fsdp_job_t *job, const fsdp_config_t *config,
                                   fsdp_t **fsdp_p, fsdp_error_t *err);

/* Waits for a save in progress.  NULL is allowed.  Local. */
FSDP_API void fsdp_destroy(fsdp_t *fsdp);

enum {
    FSDP_UNIT_NONE = 0,
    /* The outermost unit: has a buffer of its own, stays whole between forward
     * and backward, and may begin more than once.  At most one. */
    FSDP_UNIT_ROOT = 1,
    /* May begin more than once in a forward pass (layers that share it): has a
     * gradient buffer of its own. */
    FSDP_UNIT_REUSED = 2
};

/* Add parameters that are gathered together.  The order of calls is the order
 * in checkpoints.  @a name is copied.  Local. */
FSDP_API fsdp_status_t fsdp_unit_add(fsdp_t *fsdp, const char *name,
                                     unsigned flags, fsdp_unit_t **unit_p,
                                     fsdp_error_t *err);

typedef enum {
    FSDP_INIT_ZERO = 0,
    FSDP_INIT_ONE = 1,
    FSDP_INIT_NORMAL = 2 /* mean 0, standard deviation `std` */
} fsdp_init_t;

typedef struct {
    size_t size;
    const char *name; /* Hugging Face's, such as "transformer.wte.weight" */
    uint32_t ndim;
    const uint64_t *dims;
    fsdp_init_t init;
    float std;
    bool frozen; /* no gradient, no optimizer state: is only gathered */
} fsdp_param_config_t;

#define FSDP_PARAM_CONFIG_INIT {.size = sizeof(fsdp_param_config_t)}

/* Everything in @a config is copied.  Weight decay applies to parameters of
 * two or more dimensions.  Local. */
FSDP_API fsdp_status_t fsdp_param_add(fsdp_unit_t *unit,
                                      const fsdp_param_config_t *config,
                                      fsdp_param_t **param_p,
                                      fsdp_error_t *err);

/* Name a second name of a parameter (tied weights), for checkpoints.  Local. */
FSDP_API fsdp_status_t fsdp_param_tie(fsdp_param_t *owner, const char *alias,
                                      fsdp_error_t *err);

/* A parameter by its name or an alias; NULL if there is none.  Local. */
FSDP_API fsdp_param_t *fsdp_param_find(const fsdp_t *fsdp, const char *name);

/* Its elements.  Local. */
FSDP_API uint64_t fsdp_param_numel(const fsdp_param_t *param);

/* Kinds of memory in reports. */
typedef enum {
    FSDP_MEM_MASTER = 0,     /* fp32 parameter shards */
    FSDP_MEM_OPTIMIZER = 1,  /* exp_avg and exp_avg_sq shards */
    FSDP_MEM_GRAD_SHARD = 2, /* reduced gradients and partial sums */
    FSDP_MEM_PARAM_SLOT = 3, /* gathered parameters */
    FSDP_MEM_GRAD_SLOT = 4,  /* gradients before reduction */
    FSDP_MEM_COMM = 5,       /* staging of collectives */
    FSDP_MEM_SAVE = 6,       /* staged copy of a checkpoint */
    FSDP_MEM_ACTIVATION = 7, /* the model's own: fsdp_mem_alloc() */
    FSDP_MEM_OTHER = 8,      /* data, tables */
    FSDP_MEM_NUM_KINDS = 9
} fsdp_mem_kind_t;

/* Memory of the program's own that shall be in the reports: aligned to 64
 * bytes, zeroed, freed by fsdp_destroy().  Before fsdp_seal() only.  Local. */
FSDP_API fsdp_status_t fsdp_mem_alloc(fsdp_t *fsdp, fsdp_mem_kind_t kind,
                                      size_t bytes, void **data_p,
                                      fsdp_error_t *err);

/**
 * Fix the layout, allocate all memory, and set initial values, each rank its
 * own shard only.  Collective.
 *
 * @return FSDP_ERR_MISMATCH, naming the rank and what differs, if the ranks do
 *         not have the same units, parameters and configuration.
 */
FSDP_API fsdp_status_t fsdp_seal(fsdp_t *fsdp, fsdp_error_t *err);

typedef struct {
    uint64_t planned[FSDP_MEM_NUM_KINDS]; /* bytes, as fsdp_seal() computed */
    uint64_t peak[FSDP_MEM_NUM_KINDS];    /* bytes really allocated, at most */
    uint64_t planned_total, peak_total;
    uint64_t allocations; /* since fsdp_create() */
} fsdp_memory_t;

/* Local. */
FSDP_API void fsdp_get_memory(const fsdp_t *fsdp, fsdp_memory_t *memory_p);

typedef struct {
    uint64_t parameters; /* elements, ties counted once */
    uint64_t units;
    uint64_t padded;     /* elements with padding */
    uint32_t rounds;     /* micro-batches of a rank in a step: ceil(G / W) */
    fsdp_mesh_t mesh;
} fsdp_layout_info_t;

/* Element types that fsdp_param_data() and fsdp_param_grad() have; known from
 * fsdp_create() on.  Local. */
FSDP_API void fsdp_get_precision(const fsdp_t *fsdp, fsdp_precision_t *param_p,
                                 fsdp_precision_t *reduce_p);

/* After fsdp_seal().  Local. */
FSDP_API void fsdp_get_layout(const fsdp_t *fsdp, fsdp_layout_info_t *info_p);

/* --- A step --------------------------------------------------------------- */

typedef enum { FSDP_TRAIN = 0, FSDP_EVAL = 1 } fsdp_mode_t;

#define FSDP_IDLE UINT32_MAX

/**
 * Begin round @a round (0 … rounds - 1 in training, any in evaluation) of
 * micro-batches.
 *
 * @param micro_p  The micro-batch that this rank computes: rank + W · round,
 *                 or FSDP_IDLE if that is not below G (in training) or @a
 *                 count (in evaluation).  An idle rank makes the same begin
 *                 and end calls and computes nothing.
 * @param count    Micro-batches of an evaluation over all rounds; ignored in
 *                 training.
 *
 * Collective.  The rounds of a training step must be run in order.
 */
FSDP_API fsdp_status_t fsdp_micro_begin(fsdp_t *fsdp, fsdp_mode_t mode,
                                        uint32_t round, uint32_t count,
                                        uint32_t *micro_p, fsdp_error_t *err);

/* All units must be ended.  Collective. */
FSDP_API fsdp_status_t fsdp_micro_end(fsdp_t *fsdp, fsdp_error_t *err);

/**
 * The parameters of the unit are whole from begin to end.  The order of calls
 * is recorded in the first round and must be the same on all ranks and in all
 * later rounds of the same mode: FSDP_ERR_MISMATCH names both units.
 * Collective.
 */
FSDP_API fsdp_status_t fsdp_forward_begin(fsdp_unit_t *unit, fsdp_error_t *err);
FSDP_API fsdp_status_t fsdp_forward_end(fsdp_unit_t *unit, fsdp_error_t *err);

/**
 * As many times as the unit began forward.  At the first begin its gradients
 * are zero; the model adds to them (or writes them); at the last end they are
 * complete, and their reduction begins.  Collective.
 */
FSDP_API fsdp_status_t fsdp_backward_begin(fsdp_unit_t *unit,
                                           fsdp_error_t *err);
FSDP_API fsdp_status_t fsdp_backward_end(fsdp_unit_t *unit, fsdp_error_t *err);

/* The whole parameter, row-major, of param dtype, aligned to 64 elements;
 * read-only; valid between begin and end of its unit, at an address that may
 * differ each time.  Local. */
FSDP_API const void *fsdp_param_data(const fsdp_param_t *param);

/* Its gradient, of reduce dtype; valid between the first backward_begin and
 * the last backward_end; NULL for a frozen one.  Local. */
FSDP_API void *fsdp_param_grad(const fsdp_param_t *param);

/**
 * Bring together one number per micro-batch, such as the loss.
 *
 * @param mine   One value for each round of this rank (idle rounds ignored).
 * @param count  Micro-batches: G, or that of an evaluation.
 * @param all    @a count values, in order of micro-batches, on all ranks.
 *
 * Collective.
 */
FSDP_API fsdp_status_t fsdp_gather_scalars(fsdp_t *fsdp, const double *mine,
                                           uint32_t count, double *all,
                                           fsdp_error_t *err);

/**
 * Finish the reduction, divide by G, and scale the gradients so that their
 * global 2-norm is at most @a max_norm.  Once a step, before
 * fsdp_optimizer_step().  Collective.
 *
 * @param max_norm  0 or less: do not scale.
 * @param norm_p    The norm before scaling.
 */
FSDP_API fsdp_status_t fsdp_clip(fsdp_t *fsdp, double max_norm, double *norm_p,
                                 fsdp_error_t *err);

/* AdamW with decoupled weight decay (arXiv 1711.05101); counts the step.
 * Local.
 *
 * @return FSDP_ERR_BAD_STATE, on all ranks, if the norm that fsdp_clip() gave
 *         is infinite or no number: nothing is changed, and the step may be
 *         repeated from round 0 with other data. */
FSDP_API fsdp_status_t fsdp_optimizer_step(fsdp_t *fsdp, double lr,
                                           fsdp_error_t *err);

/* Optimizer steps made so far, those before a load included.  Local. */
FSDP_API int64_t fsdp_get_step(const fsdp_t *fsdp);

/* --- Whole on demand ------------------------------------------------------ */

/* What of a parameter. */
typedef enum {
    FSDP_VALUE = 0,
    FSDP_GRAD = 1, /* after fsdp_clip(), scaled by it; before the next round */
    FSDP_EXP_AVG = 2,
    FSDP_EXP_AVG_SQ = 3
} fsdp_what_t;

/* Gather a parameter, outside a round.  @a whole has room for all its fp32
 * elements on every rank; the caller owns it.  Collective. */
FSDP_API fsdp_status_t fsdp_param_get(fsdp_param_t *param, fsdp_what_t what,
                                      float *whole, fsdp_error_t *err);

/* Write it back, outside a round: each rank takes its shard from @a whole,
 * which must be the same on all ranks.  Not for FSDP_GRAD.  Local. */
FSDP_API fsdp_status_t fsdp_param_set(fsdp_param_t *param, fsdp_what_t what,
                                      const float *whole, fsdp_error_t *err);

/* --- State ---------------------------------------------------------------- */

typedef struct {
    size_t size;
    const char *dir; /* the checkpoint becomes DIR/step-%08d, DIR/latest names
                        it; the same on all ranks */
    uint32_t files;  /* shard files; 0: min(W, 256) */
    const char *user_json; /* an object, kept under "user" in the manifest:
                              the model's configuration, the data position;
                              from rank 0; NULL: none */
} fsdp_save_config_t;

#define FSDP_SAVE_CONFIG_INIT {.size = sizeof(fsdp_save_config_t)}

typedef struct {
    bool busy;          /* a save is running */
    uint64_t saves;     /* durable ones */
    int64_t step;       /* of the newest durable one; -1: none */
    uint64_t bytes;     /* of it, written by this rank */
    double copy_seconds;  /* training stood still for it */
    double total_seconds; /* until it was durable */
} fsdp_save_status_t;

/**
 * Save the parameters and optimizer state: copy them aside, and write the copy
 * in a thread.  Waits first if a save is running.  Without async_save it
 * writes from the shards themselves and returns when the checkpoint is
 * durable.  Collective.
 */
FSDP_API fsdp_status_t fsdp_save_start(fsdp_t *fsdp,
                                       const fsdp_save_config_t *config,
                                       fsdp_error_t *err);

/* Wait for the save in progress, if any; an error of a save is returned here
 * or by the next fsdp_save_start(), and leaves older checkpoints valid.
 * Collective. */
FSDP_API fsdp_status_t fsdp_save_wait(fsdp_t *fsdp, fsdp_error_t *err);

/* Local. */
FSDP_API void fsdp_get_save_status(const fsdp_t *fsdp,
                                   fsdp_save_status_t *status_p);

typedef struct {
    size_t size;
    const char *path;  /* a checkpoint of any format: fsdp_ckpt_open() */
    bool weights_only; /* parameters, not the optimizer's state and step */
} fsdp_load_config_t;

#define FSDP_LOAD_CONFIG_INIT {.size = sizeof(fsdp_load_config_t)}

typedef struct {
    int64_t step;
    uint64_t bytes_read; /* by this rank */
    uint64_t widened;    /* tensors of bf16 or fp16 that became fp32 */
    char *user_json;     /* what was saved; the caller frees it with free();
                            NULL if there is none */
} fsdp_load_result_t;

/**
 * Load into the sealed layout, whatever world and strategy wrote it; each rank
 * reads only what it needs.  A parameter is looked up as "model/NAME", "NAME"
 * and without a leading "transformer.".  A missing tensor or wrong shape is an
 * error that names it, and so is missing optimizer state unless weights_only.
 * Collective.
 */
FSDP_API fsdp_status_t fsdp_load(fsdp_t *fsdp, const fsdp_load_config_t *config,
                                 fsdp_load_result_t *result_p,
                                 fsdp_error_t *err);

typedef struct {
    uint64_t model[2];
    uint64_t optim[2];
} fsdp_digest_t;

/* Digests of parameters and of optimizer state (doc/numerics.md): the same for
 * any sharding.  Collective. */
FSDP_API fsdp_status_t fsdp_digest(fsdp_t *fsdp, fsdp_digest_t *digest_p,
                                   fsdp_error_t *err);

/* --- Counters ------------------------------------------------------------- */

/* Since fsdp_seal(); this rank's. */
typedef struct {
    uint64_t gather_bytes;  /* collective volume sent: all-gathers of params */
    uint64_t reduce_bytes;  /* of gradients in the shard group */
    uint64_t replica_bytes; /* of gradients over the replicas */
    uint64_t control_bytes; /* agreement, norms, losses: not in the formulas */
    uint64_t link_bytes;    /* of all that, sent to other nodes */
    uint64_t collectives;
    double compute_seconds; /* between begin and end calls */
    double comm_seconds;    /* the communication thread was busy */
    double exposed_seconds; /* compute waited for it */
    double optimizer_seconds;
    double save_seconds;    /* training stood still for a save */
} fsdp_counters_t;

/* Local. */
FSDP_API void fsdp_get_counters(const fsdp_t *fsdp,
                                fsdp_counters_t *counters_p);

/* What gather, reduce and replica bytes of one training step of this rank must
 * be by the formulas of doc/volume.md, with padding.  Before the first round
 * units are taken to run once.  Local. */
FSDP_API void fsdp_expected_volume(const fsdp_t *fsdp, uint64_t *gather_p,
                                   uint64_t *reduce_p, uint64_t *replica_p);

#ifdef __cplusplus
}
#endif

#endif
