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

/* A configuration of the caller's begins with its size, which differs where it
 * was not initialised, or was built with the header of another version. */
#define FSDP_TRY_SIZE(_config, _err)                                        \
    do {                                                                    \
        if ((_config)->size != sizeof(*(_config))) {                        \
            return fsdp_error_set(                                          \
                _err, FSDP_ERR_INVALID_PARAM,                               \
                "a configuration has %zu bytes instead of %zu: initialise " \
                "it with its _INIT, from the header of this version",       \
                (_config)->size, sizeof(*(_config)));                       \
        }                                                                   \
    } while (0)

#endif
