/*
 * Several threads for one piece of work, which they share out themselves.
 */
#ifndef FSDP_CREW_H
#define FSDP_CREW_H

#include <stdint.h>

/* @a number tells the threads apart: 0 is the caller's own. */
typedef void (*crew_work_f)(void *arg, uint32_t number);

/* Run @a work in the caller's thread and in at most @a jobs - 1 others, and
 * wait for all.  Fewer threads than wanted are no error. */
void crew_run(uint32_t jobs, crew_work_f work, void *arg);

#endif
