#include "config.h"

#include "bin/stats.h"

#include <math.h>

#include "lib/util/check.h"

#define BLOCK 1024 /* elements: whole bytes of any type */

void stats_add(stats_t *stats, const double *values, uint64_t count)
{
    double sum = 0, squares = 0, mean, delta, n, old, variance;
    uint64_t finite = 0;

    for (uint64_t i = 0; i < count; i++) {
        if (isfinite(values[i])) {
            sum += values[i];
            finite++;
            stats->min = fmin(stats->min, values[i]);
            stats->max = fmax(stats->max, values[i]);
        } else if (isnan(values[i])) {
            stats->nans++;
        } else {
            stats->infs++;
        }
    }
    if (finite == 0) {
        return;
    }

    /* Deviations from the block's own mean, then joined with what came before:
     * exact enough where mean² is much larger than the variance. */
    mean = sum / (double)finite;
    for (uint64_t i = 0; i < count; i++) {
        if (isfinite(values[i])) {
            squares += (values[i] - mean) * (values[i] - mean);
        }
    }
    if (stats->finite > 0) {
        old = (double)stats->finite;
        n = old + (double)finite;
        delta = mean - stats->mean;
        squares += stats->std * stats->std * old +
                   delta * delta * old * (double)finite / n;
        mean = stats->mean + delta * (double)finite / n;
    }
    stats->finite += finite;
    variance = squares / (double)stats->finite;
    stats->mean = mean;
    stats->std = sqrt(variance);
}

fsdp_status_t stats_compute(fsdp_ckpt_t *ckpt, uint64_t tensor,
                            const fsdp_ckpt_engine_t *engine, void *buffer,
                            uint64_t size, uint64_t *bytes_p, stats_t *stats_p,
                            fsdp_error_t *err)
{
    stats_t stats = STATS_INIT;
    double values[2 * BLOCK];
    fsdp_ckpt_tensor_t info;
    uint64_t most, n, num;
    unsigned parts;

    fsdp_ckpt_get_tensor(ckpt, tensor, &info);
    parts =
        (info.dtype == FSDP_DTYPE_C64 || info.dtype == FSDP_DTYPE_C128) ? 2 : 1;
    most = size * 8 / fsdp_dtype_bits(info.dtype) / 64 * 64;
    for (uint64_t first = 0; first < info.numel; first += n) {
        fsdp_ckpt_range_t range = {.tensor = tensor, .data = buffer};
        uint64_t bytes = 0;

        n = (info.numel - first < most) ? info.numel - first : most;
        range.first = first;
        range.count = n;
        FSDP_TRY(fsdp_ckpt_read(ckpt, &range, 1, engine, &bytes, err));
        *bytes_p += bytes;
        for (uint64_t i = 0; i < n; i += num) {
            num = (n - i < BLOCK) ? n - i : BLOCK;
            fsdp_dtype_to_double(info.dtype, buffer, i, num, values);
            stats_add(&stats, values, num * parts);
        }
    }

    *stats_p = stats;
    return FSDP_OK;
}
