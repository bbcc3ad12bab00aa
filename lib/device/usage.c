#include "config.h"

#include "lib/device/device.h"

void device_count(device_usage_t *usage, fsdp_mem_kind_t kind, size_t bytes)
{
    usage->allocations++;
    usage->now[kind] += bytes;
    usage->now_total += bytes;
    if (usage->now[kind] > usage->peak[kind]) {
        usage->peak[kind] = usage->now[kind];
    }
    if (usage->now_total > usage->peak_total) {
        usage->peak_total = usage->now_total;
    }
}

void device_uncount(device_usage_t *usage, fsdp_mem_kind_t kind, size_t bytes)
{
    usage->now[kind] -= bytes;
    usage->now_total -= bytes;
}
