/*
 * Finding parameters by name.
 */
#include "config.h"

#include "lib/shard/shard.h"

#include <string.h>

bool find_add(fsdp_t *fsdp, const char *name, fsdp_param_t *param)
{
    return map_put(&fsdp->names, name, strlen(name), (uintptr_t)param);
}

fsdp_param_t *fsdp_param_find(const fsdp_t *fsdp, const char *name)
{
    uint64_t param;

    return map_get(&fsdp->names, name, strlen(name), &param)
               ? (fsdp_param_t *)(uintptr_t)param
               : NULL;
}

uint64_t fsdp_param_numel(const fsdp_param_t *param)
{
    return param->numel;
}
