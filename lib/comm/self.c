/*
 * The backend of one rank: there is nobody to talk to.
 */
#include "config.h"

#include "lib/comm/comm.h"

#include <errno.h>

#include "lib/comm/pages.h"

static fsdp_status_t self_open(void **ctx_p, uint32_t *rank_p,
                               uint32_t *world_p, fsdp_error_t *err)
{
    (void)err;
    *ctx_p = NULL;
    *rank_p = 0;
    *world_p = 1;
    return FSDP_OK;
}

static void self_close(void *ctx)
{
    (void)ctx;
}

static fsdp_status_t self_alloc(void *ctx, size_t bytes, void **data_p,
                                fsdp_error_t *err)
{
    (void)ctx;
    return pages_alloc(bytes, data_p, err);
}

static void self_free(void *ctx, void *data, size_t bytes)
{
    (void)ctx;
    pages_free(data, bytes);
}

static fsdp_status_t self_exchange_start(void *ctx, unsigned slot,
                                         const comm_message_t *sends,
                                         size_t nsends,
                                         const comm_message_t *recvs,
                                         size_t nrecvs, fsdp_error_t *err)
{
    (void)ctx, (void)slot, (void)sends, (void)recvs;
    if (nsends > 0 || nrecvs > 0) {
        errno = 0;
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "a single rank has no peer to exchange with");
    }

    return FSDP_OK;
}

static fsdp_status_t self_exchange_test(void *ctx, unsigned slot, bool *done_p,
                                        fsdp_error_t *err)
{
    (void)ctx, (void)slot, (void)err;
    *done_p = true;
    return FSDP_OK;
}

static size_t self_exchange_pending(void *ctx, unsigned slot, uint32_t *peers,
                                    size_t max)
{
    (void)ctx, (void)slot, (void)peers, (void)max;
    return 0;
}

const struct comm_ops comm_self_ops = {
    .version = COMM_OPS_VERSION,
    .name = "self",
    .open = self_open,
    .close = self_close,
    .alloc = self_alloc,
    .free = self_free,
    .exchange_start = self_exchange_start,
    .exchange_test = self_exchange_test,
    .exchange_pending = self_exchange_pending,
};
