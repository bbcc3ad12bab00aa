/*
 * The clock that measures how long things take.
 */
#ifndef FSDP_CLOCK_H
#define FSDP_CLOCK_H

#include <time.h>

/* Seconds since some moment in the past; never set back. */
static inline double clock_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

#endif
