#include "config.h"

#include "bin/stats.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "lib/util/check.h"
#include "lib/util/simd.h"

#define BLOCK 1024 /* elements: whole bytes of any type */
#define LANES 8

/* What a block of numbers comes to.  Sums run in LANES so that one addition
 * need not wait for the one before. */
typedef struct {
    double sum[LANES], squares[LANES], min[LANES], max[LANES];
    uint64_t finite[LANES];
} lanes_t;

SIMD_BODY bool is_finite(double value)
{
    return fabs(value) <= DBL_MAX;
}

SIMD_BODY void add_value(lanes_t *lanes, unsigned l, double value)
{
    bool finite = is_finite(value);
    double low = finite ? value : INFINITY, high = finite ? value : -INFINITY;

    lanes->sum[l] += finite ? value : 0;
    lanes->finite[l] += finite;
    lanes->min[l] = (low < lanes->min[l]) ? low : lanes->min[l];
    lanes->max[l] = (high > lanes->max[l]) ? high : lanes->max[l];
}

SIMD_BODY void add_values_body(lanes_t *lanes, const double *values,
                               uint64_t count)
{
    uint64_t i;

    for (i = 0; i + LANES <= count; i += LANES) {
        for (unsigned l = 0; l < LANES; l++) {
            add_value(lanes, l, values[i + l]);
        }
    }
    for (; i < count; i++) {
        add_value(lanes, 0, values[i]);
    }
}

SIMD_BODY void add_square(lanes_t *lanes, unsigned l, double value, double mean)
{
    double delta = is_finite(value) ? value - mean : 0;

    lanes->squares[l] += delta * delta;
}

SIMD_BODY void add_squares_body(lanes_t *lanes, const double *values,
                                uint64_t count, double mean)
{
    uint64_t i;

    for (i = 0; i + LANES <= count; i += LANES) {
        for (unsigned l = 0; l < LANES; l++) {
            add_square(lanes, l, values[i + l], mean);
        }
    }
    for (; i < count; i++) {
        add_square(lanes, 0, values[i], mean);
    }
}

SIMD_FUNCTION(static, add_values,
              (lanes_t * lanes, const double *values, uint64_t count),
              (lanes, values, count))
SIMD_FUNCTION(static, add_squares,
              (lanes_t * lanes, const double *values, uint64_t count,
               double mean),
              (lanes, values, count, mean))

static void count_others(stats_t *stats, const double *values, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        stats->nans += isnan(values[i]) != 0;
        stats->infs += isinf(values[i]) != 0;
    }
}

void stats_add(stats_t *stats, const double *values, uint64_t count)
{
    double sum = 0, squares = 0, mean, delta, n, old;
    lanes_t lanes = {{0}};
    uint64_t finite = 0;

    for (unsigned l = 0; l < LANES; l++) {
        lanes.min[l] = INFINITY;
        lanes.max[l] = -INFINITY;
    }
    add_values(&lanes, values, count);
    for (unsigned l = 0; l < LANES; l++) {
        sum += lanes.sum[l];
        finite += lanes.finite[l];
    }
    if (finite < count) {
        count_others(stats, values, count);
    }
    if (finite == 0) {
        return;
    }

    /* Deviations from the block's own mean, then joined with what came before:
     * exact enough where mean² is much larger than the variance. */
    mean = sum / (double)finite;
    add_squares(&lanes, values, count, mean);
    for (unsigned l = 0; l < LANES; l++) {
        squares += lanes.squares[l];
        stats->min = fmin(stats->min, lanes.min[l]);
        stats->max = fmax(stats->max, lanes.max[l]);
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
    stats->mean = mean;
    stats->std = sqrt(squares / (double)stats->finite);
}

/* --- Reading -------------------------------------------------------------- */

typedef void (*numbers_f)(const double *values, uint64_t count, void *arg);

/* Call @a f with all numbers of a tensor, a block at a time. */
static fsdp_status_t each_number(fsdp_ckpt_t *ckpt, uint64_t tensor,
                                 const fsdp_ckpt_engine_t *engine, void *buffer,
                                 uint64_t size, uint64_t *bytes_p, numbers_f f,
                                 void *arg, fsdp_error_t *err)
{
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
            f(values, num * parts, arg);
        }
    }

    return FSDP_OK;
}

static void add_to_stats(const double *values, uint64_t count, void *arg)
{
    stats_add(arg, values, count);
}

fsdp_status_t stats_compute(fsdp_ckpt_t *ckpt, uint64_t tensor,
                            const fsdp_ckpt_engine_t *engine, void *buffer,
                            uint64_t size, uint64_t *bytes_p, stats_t *stats_p,
                            fsdp_error_t *err)
{
    stats_t stats = STATS_INIT;

    FSDP_TRY(each_number(ckpt, tensor, engine, buffer, size, bytes_p,
                         add_to_stats, &stats, err));
    *stats_p = stats;
    return FSDP_OK;
}

typedef struct {
    double min, max;
    uint64_t *bins;
    unsigned num;
} histogram_t;

static void add_to_bins(const double *values, uint64_t count, void *arg)
{
    const histogram_t *into = arg;
    /* Halves: the difference of two large numbers may be infinite. */
    double half = into->max / 2 - into->min / 2;

    for (uint64_t i = 0; i < count; i++) {
        double place;
        unsigned bin;

        if (!is_finite(values[i])) {
            continue;
        }
        place = (half > 0) ? (values[i] / 2 - into->min / 2) / half : 0;
        bin = (unsigned)(place * into->num);
        into->bins[(bin < into->num) ? bin : into->num - 1]++;
    }
}

fsdp_status_t stats_histogram(fsdp_ckpt_t *ckpt, uint64_t tensor,
                              const fsdp_ckpt_engine_t *engine, void *buffer,
                              uint64_t size, uint64_t *bytes_p,
                              const stats_t *stats, uint64_t *bins,
                              unsigned num, fsdp_error_t *err)
{
    histogram_t into = {stats->min, stats->max, bins, num};

    memset(bins, 0, num * sizeof(*bins));
    return each_number(ckpt, tensor, engine, buffer, size, bytes_p, add_to_bins,
                       &into, err);
}
