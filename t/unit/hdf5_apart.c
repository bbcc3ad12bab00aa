#include "config.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/format/hdf5_apart.h"
#include "ckpt/format/hdf5_util.h"
#include "t/tap/tap.h"

static int calls; /* in this process */

static fsdp_status_t read_well(void *arg, fsdp_error_t *err)
{
    (void)arg;
    (void)err;
    calls++;
    return FSDP_OK;
}

static fsdp_status_t read_ill(void *arg, fsdp_error_t *err)
{
    (void)arg;
    calls++;
    return fsdp_error_set(err, FSDP_ERR_IO, "why");
}

static fsdp_status_t die_of(void *arg, fsdp_error_t *err)
{
    (void)err;
    calls++;
    raise(*(int *)arg);
    return FSDP_OK;
}

static fsdp_status_t leave(void *arg, fsdp_error_t *err)
{
    (void)arg;
    (void)err;
    _exit(0);
}

#if !defined(FSDP_SANITIZED)
static fsdp_status_t take_memory(void *arg, fsdp_error_t *err)
{
    char *most = malloc(1ul << 32);

    (void)arg;
    if (most == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "no memory");
    }
    most[1] = 1; /* so that it is not left out */
    free(most);
    return FSDP_OK;
}
#endif

static void try_read(hdf5_read_f read, void *arg, fsdp_status_t want,
                     const char *text, int in_this)
{
    fsdp_error_t err = {.text = ""};

    calls = 0;
    ok(hdf5_read_safely("FILE", read, arg, &err) == want &&
           strcmp(err.text, text) == 0 && calls == in_this,
       "%d calls in this process, '%s'", calls, err.text);
}

static void try_all(void)
{
    int sig = SIGTERM;

    try_read(read_well, NULL, FSDP_OK, "", 1);
    try_read(read_ill, NULL, FSDP_ERR_IO, "why", 0);
    try_read(die_of, &sig, FSDP_OK, "", 1); /* not its to handle */
    try_read(leave, NULL, FSDP_ERR_CORRUPT,
             "FILE: damaged: HDF5 crashed over it", 0);
}

static void on_term(int sig)
{
    (void)sig;
}

int main(void)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    int sig = SIGSEGV;

    signal(SIGTERM, on_term);
    try_all();
    try_read(die_of, &sig, FSDP_ERR_CORRUPT,
             "FILE: damaged: HDF5 crashed over it (Segmentation fault)", 0);
    sig = SIGABRT;
    try_read(die_of, &sig, FSDP_ERR_CORRUPT,
             "FILE: damaged: HDF5 crashed over it (Aborted)", 0);
    sig = SIGXCPU;
    try_read(die_of, &sig, FSDP_ERR_CORRUPT,
             "FILE: damaged: HDF5 comes to no end of it", 0);
    sig = SIGKILL;
    try_read(die_of, &sig, FSDP_ERR_NO_MEMORY,
             "FILE: reading it with HDF5 was killed, as it is where there is "
             "no more memory",
             0);
#if !defined(FSDP_SANITIZED)
    try_read(take_memory, NULL, FSDP_ERR_NO_MEMORY, "no memory", 0);
#endif

    /* Of a child nobody waits for nothing is known but what it says. */
    sigaction(SIGCHLD, &ignore, NULL);
    try_all();
    sig = SIGSEGV;
    try_read(die_of, &sig, FSDP_ERR_CORRUPT,
             "FILE: damaged: HDF5 crashed over it", 0);

    return tap_done();
}
