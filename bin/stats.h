/*
 * Statistics of a tensor's values, read in bounded memory.
 */
#ifndef FSDP_STATS_H
#define FSDP_STATS_H

#include <math.h>
#include <stdint.h>

#include "ckpt/fsdp_ckpt.h"

/* Of the numbers that are finite; NaN if there are none.  A complex element
 * counts as two. */
typedef struct {
    double min, max, mean, std; /* std of the whole, not of a sample */
    uint64_t finite, nans, infs;
} stats_t;

/**
 * Read a tensor and compute them.
 *
 * @param buffer   Room for pieces of it.
 * @param size     Bytes of @a buffer, at least 4096.
 * @param bytes_p  Adds the bytes read from files.
 */
fsdp_status_t stats_compute(fsdp_ckpt_t *ckpt, uint64_t tensor,
                            const fsdp_ckpt_engine_t *engine, void *buffer,
                            uint64_t size, uint64_t *bytes_p, stats_t *stats_p,
                            fsdp_error_t *err);

/**
 * Count the finite values between stats->min and stats->max in @a num bins of
 * equal width, the last one with its upper end.
 *
 * @param stats  Of the same tensor.
 */
fsdp_status_t stats_histogram(fsdp_ckpt_t *ckpt, uint64_t tensor,
                              const fsdp_ckpt_engine_t *engine, void *buffer,
                              uint64_t size, uint64_t *bytes_p,
                              const stats_t *stats, uint64_t *bins,
                              unsigned num, fsdp_error_t *err);

/* Take numbers into account; start with STATS_INIT. */
void stats_add(stats_t *stats, const double *values, uint64_t count);

#define STATS_INIT                                      \
    {                                                   \
        .min = NAN, .max = NAN, .mean = NAN, .std = NAN \
    }

#endif
