/*
 * What the environment says about who launched this process.
 */
#ifndef FSDP_LAUNCH_H
#define FSDP_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/util/fsdp_status.h"

typedef enum {
    LAUNCH_NONE = 0,
    LAUNCH_SRUN = 1,
    LAUNCH_MPIRUN = 2
} launch_kind_t;

#define LAUNCH_ID_MAX 96

typedef struct {
    launch_kind_t kind;
    bool pmix;     /* there is a PMIx server */
    uint32_t rank; /* 0 if there is no launcher */
    uint32_t size; /* ranks launched; 0: the environment does not say */
    char id[LAUNCH_ID_MAX]; /* of this run; fit for a file name */
} launch_t;

/**
 * Local, without communication.
 *
 * @param alone  Whatever the environment says, be one rank.
 *
 * @return FSDP_ERR_NO_LAUNCHER with the cure, if there are to be several ranks
 *         that could not find each other.
 */
fsdp_status_t launch_detect(bool alone, launch_t *launch_p, fsdp_error_t *err);

/**
 * The same for ranks that meet in the file system and need no PMIx.
 *
 * @return FSDP_ERR_NO_LAUNCHER if there are several ranks and nothing that
 *         tells this run from others.
 */
fsdp_status_t launch_place(bool alone, launch_t *launch_p, fsdp_error_t *err);

/* "srun", "mpirun" or "none". */
const char *launch_name(launch_kind_t kind);

#endif
