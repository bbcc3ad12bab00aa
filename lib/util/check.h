/*
 * Pass a failed status up: the callee has filled the error already.
 */
#ifndef FSDP_CHECK_H
#define FSDP_CHECK_H

#include "lib/util/fsdp_status.h"

#define FSDP_TRY(_expr)                       \
    do {                                      \
        fsdp_status_t _try_status = (_expr);  \
        if (_try_status != FSDP_OK) {         \
            return _try_status;               \
        }                                     \
    } while (0)

/* For functions with a `status` variable and labels that say what they undo. */
#define FSDP_TRY_GOTO(_expr, _label)          \
    do {                                      \
        status = (_expr);                     \
        if (status != FSDP_OK) {              \
            goto _label;                      \
        }                                     \
    } while (0)

#endif
