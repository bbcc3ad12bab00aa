/*
 * Finding parameters by name.
 */
#include "config.h"

#include "lib/shard/shard.h"

#include <string.h>

static bool has_name(const fsdp_param_t *param, const char *name)
{
    bool same = strcmp(param->name, name) == 0;

    for (uint32_t i = 0; i < param->num_aliases && !same; i++) {
        same = strcmp(param->aliases[i], name) == 0;
    }

    return same;
}

fsdp_param_t *fsdp_param_find(const fsdp_t *fsdp, const char *name)
{
    for (uint32_t u = 0; u < fsdp->num_units; u++) {
        const fsdp_unit_t *unit = fsdp->units[u];

        for (uint32_t i = 0; i < unit->num_params; i++) {
            if (has_name(unit->params[i], name)) {
                return unit->params[i];
            }
        }
    }

    return NULL;
}

uint64_t fsdp_param_numel(const fsdp_param_t *param)
{
    return param->numel;
}
