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

#include <jansson.h>

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
    bool conj, neg;         /* the values are those of the storage, conjugated,
                       negated */
} torch_tensor_t;

/* Tensors, parameters and tensor subclasses that only wrap one. */
bool torch_is_tensor(const pickle_t *pickle, pickle_ref_t ref);

/**
 * @param what  For messages: "FILE: tensor NAME".
 *
 * @return FSDP_ERR_CORRUPT if it leaves its storage or makes no sense,
 *         FSDP_ERR_UNSUPPORTED if it is no tensor that is known, such as a
 *         quantised or sparse one.
 */
fsdp_status_t torch_tensor(const pickle_t *pickle, pickle_ref_t ref,
                           const char *what, torch_tensor_t *tensor_p,
                           fsdp_error_t *err);

/* Its elements lie end to end in row-major order. */
bool torch_is_contiguous(const torch_tensor_t *tensor);

/* An element type as PyTorch calls it. */
typedef struct {
    const char *name;    /* of torch.NAME */
    const char *storage; /* class of its storages; NULL: an untyped one */
    fsdp_dtype_t dtype;
} torch_type_t;

/* @return NULL if PyTorch has no such type. */
const torch_type_t *torch_type(fsdp_dtype_t dtype);

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
    torch_shard_t *shards; /* of this rank */
    uint32_t num_shards;
    uint64_t world; /* ranks of its mesh or its metadata */
    bool replica;   /* another rank, which is the first of those, holds the
                       same boxes */
} torch_sharded_t;

bool torch_is_sharded(const pickle_t *pickle, pickle_ref_t ref);

/**
 * @param rank  That saved it: told by the name of its file.
 *
 * @return FSDP_ERR_UNSUPPORTED for placements that are not known or are sums
 *         not yet taken.
 */
fsdp_status_t torch_sharded(const pickle_t *pickle, pickle_ref_t ref,
                            uint64_t rank, const char *what,
                            torch_sharded_t *sharded_p, fsdp_error_t *err);

void torch_sharded_free(torch_sharded_t *sharded);

/*
 * Values.
 */

/* Bytes that a dotted name has less than; what is read of a pickle pays for
 * each of its names (pickle_spend). */
#define TORCH_NAME_MAX (16u << 20)

/* Something with a dotted name was found. */
typedef fsdp_status_t (*torch_found_f)(const char *name, pickle_ref_t ref,
                                       void *arg, fsdp_error_t *err);

/**
 * A value as JSON text, as value.h describes it.  Of an object of a class that
 * is not known the class is told, and what it was made of in "$args", "$state"
 * and "$items".
 *
 * @param name    Of the value: tensors inside it are named NAME.PATH.
 * @param tensor  Called for tensors inside it, plain and sharded ones; those
 *                for which it returns FSDP_ERR_UNSUPPORTED become "$unread".
 *                NULL: they are objects like others.
 * @param text_p  The caller frees it.
 *
 * @return FSDP_ERR_UNSUPPORTED if it is too deep or too large (16 MiB).
 */
fsdp_status_t torch_value_json(const pickle_t *pickle, pickle_ref_t ref,
                               const char *name, torch_found_f tensor,
                               void *arg, char **text_p, fsdp_error_t *err);

/**
 * Take a state dict apart: dicts, and lists that hold dicts or tensors, by
 * their keys and indexes, joined by dots.
 *
 * @param prefix   Of all names, "" or with a dot at its end.
 * @param nesting  An object that gets a member for each dict and list, as
 *                 nest.h describes them; NULL: none.
 * @param tensor   Called for tensors, plain and sharded ones.
 * @param value    Called for everything else, and for tensors for which @a
 *                 tensor has returned FSDP_ERR_UNSUPPORTED.
 */
fsdp_status_t torch_walk(const pickle_t *pickle, pickle_ref_t ref,
                         const char *prefix, json_t *nesting,
                         torch_found_f tensor, torch_found_f value, void *arg,
                         fsdp_error_t *err);

#endif
