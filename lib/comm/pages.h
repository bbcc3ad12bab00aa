/*
 * Whole pages, for slots and staging of backends on the CPU.
 */
#ifndef FSDP_PAGES_H
#define FSDP_PAGES_H

#include <stddef.h>

#include "lib/util/fsdp_status.h"

/* Zeroed, aligned to a page, to a huge page if that large; never moves.  Free
 * with pages_free() and the same size.  At least one page. */
fsdp_status_t pages_alloc(size_t bytes, void **data_p, fsdp_error_t *err);

/* NULL is allowed. */
void pages_free(void *data, size_t bytes);

#endif
