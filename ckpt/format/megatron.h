/*
 * Megatron's torch_dist checkpoints: what verify needs of them.
 */
#ifndef FSDP_MEGATRON_H
#define FSDP_MEGATRON_H

#include "ckpt/catalog.h"

typedef fsdp_status_t (*megatron_find_f)(const char *text, void *arg);

/**
 * Compare the files with integrity.json, if there is one.
 *
 * @param find     Called with a line for each that is missing or altered.
 * @param bytes_p  What was read is added.
 */
fsdp_status_t megatron_check(const catalog_t *cat, megatron_find_f find,
                             void *arg, uint64_t *bytes_p, fsdp_error_t *err);

#endif
