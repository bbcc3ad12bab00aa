/*
 * Who am I and who are my peers: the inside of fsdp_job_t.
 *
 * fsdp_job_open() looks at the environment (launch.c), opens a communicator
 * with the backend that the launch calls for, and then asks PMIx for what the
 * environment cannot tell (pmix.c).  A thread keeps the heartbeat file
 * (heartbeat.c), from which missing ranks are named.
 */
#ifndef FSDP_JOB_H
#define FSDP_JOB_H

#include "fsdp.h"
#include "lib/comm/comm.h"

/* Borrowed until fsdp_job_close(). */
comm_t *job_comm(fsdp_job_t *job);

/* Seconds that any wait for peers may take. */
double job_deadline(const fsdp_job_t *job);

/* The error that broke the job, or FSDP_OK. */
fsdp_status_t job_broken(const fsdp_job_t *job, fsdp_error_t *err);

/**
 * For a wait for peers that is not the communicator's, such as that for a
 * checkpoint which all write: call it now and then.  Once SIGTERM has come, it
 * looks for COMM_LOOK_SECONDS who is gone, and then breaks the job.
 *
 * @param what     What is waited for, as in comm_submit().
 * @param seconds  How long so far.
 *
 * @return FSDP_OK: wait on; else the error that broke the job.  Local.
 */
fsdp_status_t job_check_wait(fsdp_job_t *job, const char *what, double seconds,
                             fsdp_error_t *err);

#endif
