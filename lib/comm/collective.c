/*
 * Collectives as exchanges: each rank sends straight to each other one.
 */
#include "config.h"

#include "lib/comm/comm_private.h"

#include <string.h>

#include "lib/util/check.h"

/* Rank index ± 1, ± 2 …: at each time every rank sends to another one. */
static void fill_messages(comm_t *comm, const comm_group_t *group, char *all,
                          size_t bytes)
{
    for (uint32_t step = 1; step < group->size; step++) {
        uint32_t to = (group->index + step) % group->size;
        uint32_t from = (group->index + group->size - step) % group->size;

        comm->sends[step - 1] = (comm_message_t){
            group->ranks[to], all + group->index * bytes, bytes};
        comm->recvs[step - 1] =
            (comm_message_t){group->ranks[from], all + from * bytes, bytes};
    }
}

fsdp_status_t comm_all_gather(comm_t *comm, const comm_group_t *group,
                              comm_class_t class, void *all, size_t bytes,
                              fsdp_error_t *err)
{
    unsigned slot;

    if (group->size < 2 || bytes == 0) {
        return FSDP_OK;
    }

    FSDP_TRY(comm_free_slot(comm, &slot, err));
    fill_messages(comm, group, all, bytes);
    FSDP_TRY(comm_exchange_start(comm, slot, class, comm->sends,
                                 group->size - 1, comm->recvs, group->size - 1,
                                 err));
    return comm_exchange_wait(comm, slot, err);
}

/* The words of all ranks, one rank after the other, into scratch. */
static fsdp_status_t gather_words(comm_t *comm, const comm_group_t *group,
                                  const uint64_t *words, size_t num,
                                  uint64_t *scratch, fsdp_error_t *err)
{
    memcpy(scratch + group->index * num, words, num * sizeof(*words));
    return comm_all_gather(comm, group, COMM_CONTROL, scratch,
                           num * sizeof(*words), err);
}

fsdp_status_t comm_all_sum(comm_t *comm, const comm_group_t *group,
                           uint64_t *words, size_t num, uint64_t *scratch,
                           fsdp_error_t *err)
{
    FSDP_TRY(gather_words(comm, group, words, num, scratch, err));
    for (size_t i = 0; i < num; i++) {
        words[i] = 0;
        for (size_t r = 0; r < group->size; r++) {
            words[i] += scratch[r * num + i];
        }
    }

    return FSDP_OK;
}

fsdp_status_t comm_all_max(comm_t *comm, const comm_group_t *group,
                           uint64_t *words, size_t num, uint64_t *scratch,
                           fsdp_error_t *err)
{
    FSDP_TRY(gather_words(comm, group, words, num, scratch, err));
    for (size_t i = 0; i < num; i++) {
        for (size_t r = 0; r < group->size; r++) {
            if (words[i] < scratch[r * num + i]) {
                words[i] = scratch[r * num + i];
            }
        }
    }

    return FSDP_OK;
}
