/*
 * A few threads that share a loop: for passes over memory whose result does
 * not depend on who does which turn.
 */
#ifndef FSDP_POOL_H
#define FSDP_POOL_H

#include <stdint.h>

#include "lib/util/fsdp_status.h"

typedef struct pool pool_t;

/* Turn @a item of the loop, done by thread @a thread (0 … threads - 1). */
typedef void (*pool_item_f)(void *arg, uint32_t item, uint32_t thread);

/* @param threads  At least 1, the caller of pool_run() included. */
fsdp_status_t pool_create(uint32_t threads, pool_t **pool_p, fsdp_error_t *err);
/* NULL is allowed. */
void pool_destroy(pool_t *pool);

/* Do items 0 … @a num - 1 and return when all are done.  No allocation, no
 * system call but to wake and to wait; none at all with one thread. */
void pool_run(pool_t *pool, pool_item_f item_f, void *arg, uint32_t num);

#endif
