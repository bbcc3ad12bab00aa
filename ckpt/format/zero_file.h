/*
 * What the readers of DeepSpeed's formats share: files of torch.save whose
 * tensors become tensors of the catalog.
 */
#ifndef FSDP_ZERO_FILE_H
#define FSDP_ZERO_FILE_H

#include "ckpt/catalog.h"
#include "ckpt/torch_file.h"
#include "ckpt/torch_object.h"

/* An open file of the checkpoint, in the catalog too. */
typedef struct {
    catalog_t *cat;
    torch_file_t file;
    const char *name; /* relative to the catalog's root */
    uint32_t index;   /* in the catalog */
    map_t views;      /* tensors that were added, by what they are views of */
} zero_file_t;

/* A stretch of elements in a file: a flat tensor of torch.save. */
typedef struct {
    fsdp_dtype_t dtype;
    uint64_t offset; /* bytes in the file */
    uint64_t numel;
} zero_flat_t;

/**
 * Open a file and add it to the catalog.
 *
 * @param name  Relative to the catalog's root.
 *
 * @return FSDP_ERR_CORRUPT also if it is missing.
 */
fsdp_status_t zero_file_open(catalog_t *cat, const char *name,
                             zero_file_t *file, fsdp_error_t *err);

/* A zeroed one is allowed. */
void zero_file_close(zero_file_t *file);

pickle_ref_t zero_file_root(const zero_file_t *file);

/* The value of a string key of a dict. */
pickle_ref_t zero_file_get(const zero_file_t *file, pickle_ref_t ref,
                           const char *key);

/* "PATH: WHAT" as FSDP_ERR_CORRUPT. */
__attribute__((format(printf, 3, 4))) fsdp_status_t zero_file_bad(
    const zero_file_t *file, fsdp_error_t *err, const char *fmt, ...);

/**
 * Where a tensor's elements lie, end to end.
 *
 * @param what  Its name, for messages.
 *
 * @return FSDP_ERR_UNSUPPORTED if they do not lie so.
 */
fsdp_status_t zero_file_flat(const zero_file_t *file, pickle_ref_t ref,
                             const char *what, zero_flat_t *flat_p,
                             fsdp_error_t *err);

/* Add a tensor whole, or another name of one that was added from this file
 * and is the same view of the same storage. */
fsdp_status_t zero_file_add(zero_file_t *file, const char *name,
                            pickle_ref_t ref, fsdp_error_t *err);

/* Add a value, and the tensors inside it; if it is a tensor, that alone. */
fsdp_status_t zero_file_add_value(zero_file_t *file, const char *name,
                                  pickle_ref_t ref, fsdp_error_t *err);

/* Add all of a state dict, taken apart, its names behind the prefix. */
fsdp_status_t zero_file_add_all(zero_file_t *file, const char *prefix,
                                pickle_ref_t ref, fsdp_error_t *err);

/**
 * Add what mp_rank_…_model_states.pt and its like hold beside the weights: the
 * client's values as client_state.KEY, DeepSpeed's own under their names.
 * Sets the catalog's step.
 */
fsdp_status_t zero_file_add_client(zero_file_t *file, fsdp_error_t *err);

/* Is a key of such a file DeepSpeed's own, and not of its layout?  All the rest
 * is the client's. */
bool zero_file_is_own(const char *key);

/**
 * Add as aliases the tied names, by shared_params, of weights that stage 3
 * leaves out of `module`: there they are placeholders too.
 *
 * @param owners  Names (without module.) of these weights.
 * @param tied    Takes their other names; may be @a owners.
 */
fsdp_status_t zero_file_add_shared(const zero_file_t *file, const map_t *owners,
                                   map_t *tied, fsdp_error_t *err);

/* Add the state dict `module` with its tied weights, as module.NAME.
 * @param skip  Names (without module.) that are left out, or NULL. */
fsdp_status_t zero_file_add_module(zero_file_t *file, const map_t *skip,
                                   fsdp_error_t *err);

#endif
