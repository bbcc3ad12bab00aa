/*
 * What PyTorch's AdamW keeps beside its states, made of what our checkpoints
 * say of the optimizer in their metadata, once for all parameters.
 */
#ifndef FSDP_ADAMW_H
#define FSDP_ADAMW_H

#include <stdbool.h>

#include "ckpt/catalog.h"

/* How a format names them: "*" is for the name of a parameter. */
typedef struct {
    const char *first; /* its first moment */
    const char *step;
    const char *groups; /* a list of dicts, */
    bool flat;          /* or a value for each of their members */
} adamw_names_t;

/**
 * Add to a target each parameter's step and the parameter groups, as values.
 * Nothing is added that is there, or to what was not written by us.
 *
 * @param cat  Has its tensors, values and meta, and is not yet sealed.
 */
fsdp_status_t adamw_add(catalog_t *cat, const adamw_names_t *names,
                        fsdp_error_t *err);

#endif
