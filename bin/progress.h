/*
 * A progress bar with rate and time left, on stderr if that is a terminal,
 * erased at the end, or lines where the user wants them anyway; and SIGINT and SIGTERM turned into a clean stop.
 *
 * One at a time.
 */
#ifndef FSDP_PROGRESS_H
#define FSDP_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

/**
 * Begin.  From here on SIGINT and SIGTERM make progress_update() return false
 * instead of ending the program, so that the work can clean up.
 *
 * @param what   What is done, such as "verifying"; kept by pointer.
 * @param quiet  Draw nothing.
 * @param lines  Where there is no terminal to draw on, print a line at the
 *               beginning, every few seconds and at the end.
 */
void progress_begin(const char *what, bool quiet, bool lines);

/* An fsdp_ckpt_progress_f; bytes.  Any thread; @a arg is not used.
 * @return false if a signal came. */
bool progress_update(uint64_t done, uint64_t total, void *arg);

/* Erase the bar before other output on the terminal; it comes back with the
 * next update. */
void progress_erase(void);

/* Erase the bar.  If a signal came, the program says so and ends here, by that
 * signal. */
void progress_end(void);

#endif
