/*
 * Slurm's short forms of lists.
 */
#ifndef FSDP_HOSTLIST_H
#define FSDP_HOSTLIST_H

#include <stddef.h>
#include <stdint.h>

#include "lib/util/fsdp_status.h"

#define HOSTLIST_MAX 65536

/**
 * Expand "n[1-2,04-05],login,r[1-2]c[1-3]" into names.
 *
 * @param names_p  The caller frees it with hostlist_free().
 *
 * @return FSDP_ERR_INVALID_PARAM if it is not such a list, or one of more than
 *         HOSTLIST_MAX names.
 */
fsdp_status_t hostlist_expand(const char *text, char ***names_p, size_t *num_p,
                              fsdp_error_t *err);

void hostlist_free(char **names, size_t num);

/**
 * The node of each task from a map "(vector,(0,2,1),(0,1,1))": first node,
 * nodes, tasks on each of them.
 *
 * @return FSDP_ERR_INVALID_PARAM if it does not place exactly @a num tasks on
 *         nodes below @a nodes.
 */
fsdp_status_t hostlist_map(const char *text, uint32_t nodes, uint32_t *node_of,
                           size_t num, fsdp_error_t *err);

#endif
