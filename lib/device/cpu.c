#include "config.h"

#include "lib/device/device.h"

#include "lib/comm/pages.h"

const struct device_ops device_cpu_ops = {
    .name = "cpu",
    .alloc = pages_alloc,
    .free = pages_free,
};
