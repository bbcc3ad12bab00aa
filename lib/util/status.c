#include "config.h"

#include "lib/util/fsdp_status.h"
#include "lib/util/text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

fsdp_status_t fsdp_error_set(fsdp_error_t *err, fsdp_status_t status,
                             const char *fmt, ...)
{
    int saved_errno = errno;
    va_list ap;

    if (err != NULL) {
        err->status = status;
        err->sys_errno = saved_errno;
        err->rank = -1;
        va_start(ap, fmt);
        text_message(err->text, sizeof(err->text), fmt, ap);
        va_end(ap);
    }

    errno = saved_errno;
    return status;
}

static const struct {
    fsdp_status_t status;
    fsdp_exit_t exit;
    const char *name;
} statuses[] = {
    {FSDP_OK,                FSDP_EXIT_DONE,        "ok"               },
    {FSDP_ERR_INVALID_PARAM, FSDP_EXIT_TROUBLE,     "invalid parameter"},
    {FSDP_ERR_NO_MEMORY,     FSDP_EXIT_TROUBLE,     "no memory"        },
    {FSDP_ERR_OVERFLOW,      FSDP_EXIT_TROUBLE,     "overflow"         },
    {FSDP_ERR_UNSUPPORTED,   FSDP_EXIT_TROUBLE,     "unsupported"      },
    {FSDP_ERR_BAD_STATE,     FSDP_EXIT_TROUBLE,     "bad state"        },
    {FSDP_ERR_CONFIG,        FSDP_EXIT_CONFIG,      "configuration"    },
    {FSDP_ERR_CANCELLED,     FSDP_EXIT_TROUBLE,     "cancelled"        },
    {FSDP_ERR_IO,            FSDP_EXIT_IO,          "input/output"     },
    {FSDP_ERR_CORRUPT,       FSDP_EXIT_BAD_DATA,    "corrupt"          },
    {FSDP_ERR_NOT_FOUND,     FSDP_EXIT_BAD_DATA,    "not found"        },
    {FSDP_ERR_EXISTS,        FSDP_EXIT_IO,          "exists"           },
    {FSDP_ERR_BAD_DATA,      FSDP_EXIT_BAD_DATA,    "bad data"         },
    {FSDP_ERR_PEER_LOST,     FSDP_EXIT_UNAVAILABLE, "peer lost"        },
    {FSDP_ERR_NO_LAUNCHER,   FSDP_EXIT_UNAVAILABLE, "no launcher"      },
    {FSDP_ERR_MISMATCH,      FSDP_EXIT_TROUBLE,     "mismatch"         },
    {FSDP_ERR_SIGNALLED,     FSDP_EXIT_UNAVAILABLE, "signalled"        },
};

#define NUM_STATUSES (sizeof(statuses) / sizeof(*statuses))

const char *fsdp_status_name(fsdp_status_t status)
{
    for (size_t i = 0; i < NUM_STATUSES; i++) {
        if (statuses[i].status == status) {
            return statuses[i].name;
        }
    }

    return "unknown";
}

fsdp_exit_t fsdp_status_exit(fsdp_status_t status)
{
    for (size_t i = 0; i < NUM_STATUSES; i++) {
        if (statuses[i].status == status) {
            return statuses[i].exit;
        }
    }

    return FSDP_EXIT_TROUBLE;
}
