/*
 * What torch.save pickles: tensors, sharded tensors and plain values, from the
 * tree of a pickle.
 *
 * Classes are known by the last part of their name, for their modules have
 * changed with the versions of PyTorch.
 */
#ifndef FSDP_TORCH_OBJECT_H
#define FSDP_TORCH_OBJECT_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/fsdp_ckpt.h"
#include "ckpt/pickle.h"

/* A view of a storage. */
typedef struct {
    fsdp_dtype_t dtype;
    uint32_t ndim;
    uint64_t dims[FSDP_CKPT_MAX_NDIM];
    uint64_t strides[FSDP_CKPT_MAX_NDIM]; /* elements */
    uint64_t offset;                      /* elements */
    uint64_t numel;
    const char *key;        /* of its storage: the entry "data/KEY" of a zip */
    uint64_t storage_bytes; /* as the pickle has it */
    bool quirk_conj, quirk_neg; /* the values are those of the storage,
                                   conjugated, negated: refused by readers */
} torch_tensor_t;

/* Tensors, parameters and tensor subclasses that only wrap one. */
bool torch_is_tensor(const pickle_t *pickle, pickle_ref_t ref);

/**
 * @param what  For messages: "FILE: tensor NAME".
 *
 * @return FSDP_ERR_CORRUPT if it leaves its storage or makes no sense,
 *         FSDP_ERR_UNSUPPORTED if it is no tensor that is known, or is a
 *         quantised, sparse, conjugated or negated one.
 */
fsdp_status_t torch_tensor(const pickle_t *pickle, pickle_ref_t ref,
                           const char *what, torch_tensor_t *tensor_p,
                           fsdp_error_t *err);

/* Its elements lie end to end in row-major order. */
bool torch_is_contiguous(const torch_tensor_t *tensor);

/* The element type of "torch.float32", "float32" or "FloatStorage".
 * @return false: none that is known. */
bool torch_dtype(const char *name, fsdp_dtype_t *dtype_p);

/* One shard of a sharded tensor: a box, and the tensor that holds it. */
typedef struct {
    uint64_t offsets[FSDP_CKPT_MAX_NDIM];
    torch_tensor_t local; /* its dims are the box's */
} torch_shard_t;

/* DTensor or ShardedTensor as one rank saved it. */
typedef struct {
    uint32_t ndim;
    uint64_t dims[FSDP_CKPT_MAX_NDIM]; /* of the whole */
    fsdp_dtype_t dtype;
    torch_shard_t *shards; /* of this rank; replicas are told as such */
    uint32_t num_shards;
    uint64_t world;  /* ranks of its mesh or its metadata; 0: not known */
    bool replicated; /* other ranks hold the same boxes too */
} torch_sharded_t;

bool torch_is_sharded(const pickle_t *pickle, pickle_ref_t ref);

/**
 * @param rank  That saved it: a DTensor does not say so.
 *
 * @return FSDP_ERR_UNSUPPORTED also for placements other than Shard and
 *         Replicate.
 */
fsdp_status_t torch_sharded(const pickle_t *pickle, pickle_ref_t ref,
                            uint64_t rank, const char *what,
                            torch_sharded_t *sharded_p, fsdp_error_t *err);

void torch_sharded_free(torch_sharded_t *sharded);

/**
 * A value as JSON text: numbers, strings, lists and dicts as they are, others
 * as {"$tuple": […]}, {"$set": […]}, {"$size": […]}, {"$bytes_hex": "…"},
 * {"$float": "inf"}, {"$tensor": {"shape": …, "dtype": …}},
 * {"$repr": "module.Class", "$class": "module.Class"}.
 *
 * @return FSDP_ERR_UNSUPPORTED if it is too deep or too large (16 MiB of
 *         text); the caller frees *text_p.
 */
fsdp_status_t torch_value_json(const pickle_t *pickle, pickle_ref_t ref,
                               const char *what, char **text_p,
                               fsdp_error_t *err);

#endif
