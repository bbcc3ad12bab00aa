#include "config.h"

#include "lib/job/launch.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CURE                                                              \
    "start it with 'srun --mpi=pmix' (Debian: libpmix-dev on all nodes) " \
    "or Open MPI's mpirun"

static bool is_set(const char *name)
{
    const char *text = getenv(name);

    return text != NULL && text[0] != '\0';
}

/* A number from the environment; @a otherwise if it is not one. */
static uint32_t env_number(const char *name, uint32_t otherwise)
{
    const char *text = getenv(name);
    unsigned long value;
    char *end;

    if (text == NULL || !isdigit((unsigned char)text[0])) {
        return otherwise;
    }

    errno = 0;
    value = strtoul(text, &end, 10);
    return (errno == 0 && *end == '\0' && value < UINT32_MAX) ? (uint32_t)value
                                                              : otherwise;
}

static const char *env_text(const char *name)
{
    return is_set(name) ? getenv(name) : "";
}

/* --- PMIx ----------------------------------------------------------------- */

static bool has_server(void)
{
    static const char *const names[] = {
        "PMIX_SERVER_URI41", "PMIX_SERVER_URI4", "PMIX_SERVER_URI3",
        "PMIX_SERVER_URI21", "PMIX_SERVER_URI2", "PMIX_SERVER_URI5",
        "PMIX_SERVER_URI6"};

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        if (is_set(names[i])) {
            return is_set("PMIX_NAMESPACE") && is_set("PMIX_RANK");
        }
    }

    return false;
}

#define SLURM_SPACE "slurm.pmix."

/* The server of this very step: an srun within an srun passes on the variables
 * of the outer one. */
static bool is_server_of_step(void)
{
    char space[96];

    snprintf(space, sizeof(space), SLURM_SPACE "%s.%s",
             env_text("SLURM_JOB_ID"), env_text("SLURM_STEP_ID"));
    return has_server() && strcmp(env_text("PMIX_NAMESPACE"), space) == 0;
}

/* --- Name of the run ------------------------------------------------------ */

/* Names of files are made of it. */
static void clean_id(char *id)
{
    for (; *id != '\0'; id++) {
        if (!isalnum((unsigned char)*id) && strchr("._-", *id) == NULL) {
            *id = '_';
        }
    }
}

static void set_id(launch_t *launch)
{
    char *id = launch->id;
    uint32_t restarts = env_number("SLURM_RESTART_COUNT", 0);
    int length;

    switch (launch->kind) {
    case LAUNCH_SRUN:
        length = snprintf(id, LAUNCH_ID_MAX, "%.40s.%.20s",
                          env_text("SLURM_JOB_ID"), env_text("SLURM_STEP_ID"));
        if (restarts > 0) {
            snprintf(id + length, LAUNCH_ID_MAX - (size_t)length, "-r%u",
                     restarts);
        }
        break;
    case LAUNCH_MPIRUN:
        /* The name space is made of host and pid, which come again; the key
         * is random. */
        snprintf(id, LAUNCH_ID_MAX, "%.60s-%.8s", env_text("PMIX_NAMESPACE"),
                 env_text("OMPI_MCA_orte_precondition_transports"));
        break;
    default:
        snprintf(id, LAUNCH_ID_MAX, "%d-%lld", (int)getpid(),
                 (long long)time(NULL));
        break;
    }
    clean_id(id);
}

/* --- Kinds of launch ------------------------------------------------------ */

static fsdp_status_t refuse(fsdp_error_t *err, const char *what, uint32_t size)
{
    errno = 0;
    return fsdp_error_set(err, FSDP_ERR_NO_LAUNCHER,
                          "%s, and the %u ranks cannot find each other: " CURE,
                          what, size);
}

static void read_mpirun(launch_t *launch)
{
    launch->kind = LAUNCH_MPIRUN;
    launch->pmix = has_server();
    launch->rank =
        env_number("OMPI_COMM_WORLD_RANK", env_number("PMIX_RANK", 0));
    launch->size = env_number("OMPI_COMM_WORLD_SIZE", 0);
}

static void read_step(launch_t *launch)
{
    launch->kind = LAUNCH_SRUN;
    launch->pmix = is_server_of_step();
    launch->rank = env_number("SLURM_PROCID", 0);
    launch->size =
        env_number("SLURM_STEP_NUM_TASKS", env_number("SLURM_NTASKS", 0));
    if (launch->pmix) {
        launch->rank = env_number("PMIX_RANK", launch->rank);
    }
}

/* mpirun first: on other nodes its own daemons are a step of srun, whose
 * variables the ranks inherit. */
static launch_kind_t kind_of_launch(void)
{
    bool slurm_space = strncmp(env_text("PMIX_NAMESPACE"), SLURM_SPACE,
                               strlen(SLURM_SPACE)) == 0;

    if (!slurm_space && (is_set("OMPI_COMM_WORLD_SIZE") || has_server())) {
        return LAUNCH_MPIRUN;
    }

    return (is_set("SLURM_JOB_ID") && is_set("SLURM_STEP_ID") &&
            is_set("SLURM_PROCID"))
               ? LAUNCH_SRUN
               : LAUNCH_NONE;
}

static fsdp_status_t detect_mpirun(launch_t *launch, fsdp_error_t *err)
{
    read_mpirun(launch);
    if (!launch->pmix && launch->size != 1) {
        return refuse(err,
                      "OMPI_COMM_WORLD_SIZE is set, but not the variables "
                      "PMIX_* of mpirun",
                      launch->size);
    }

    return FSDP_OK;
}

static fsdp_status_t detect_step(launch_t *launch, fsdp_error_t *err)
{
    read_step(launch);
    if (launch->pmix) {
        return FSDP_OK;
    }

    /* The step of an interactive shell has one task; the allocation more. */
    if (launch->size == 1) {
        launch->size = env_number("SLURM_NTASKS", 1);
    }
    if (launch->size != 1) {
        return refuse(err,
                      is_set("PMI_RANK") ? "srun was called with --mpi=pmi2"
                                         : "srun offers no PMIx (--mpi=none?)",
                      launch->size);
    }

    return FSDP_OK;
}

static fsdp_status_t detect_no_launcher(launch_t *launch, fsdp_error_t *err)
{
    uint32_t tasks = is_set("SLURM_JOB_ID") ? env_number("SLURM_NTASKS", 1) : 1;
    uint32_t pmi = env_number("PMI_SIZE", 1);

    launch->kind = LAUNCH_NONE;
    launch->size = 1;
    if (tasks > 1) {
        return refuse(err,
                      "the Slurm job has several tasks, but srun was "
                      "not used",
                      tasks);
    }
    if (pmi > 1) {
        return refuse(err, "the launcher speaks PMI-1 or PMI-2 (PMI_SIZE)",
                      pmi);
    }

    return FSDP_OK;
}

fsdp_status_t launch_detect(bool alone, launch_t *launch_p, fsdp_error_t *err)
{
    launch_kind_t kind = alone ? LAUNCH_NONE : kind_of_launch();
    launch_t launch = {.kind = LAUNCH_NONE, .size = 1};
    fsdp_status_t status = FSDP_OK;

    if (kind == LAUNCH_MPIRUN) {
        status = detect_mpirun(&launch, err);
    } else if (kind == LAUNCH_SRUN) {
        status = detect_step(&launch, err);
    } else if (!alone) {
        status = detect_no_launcher(&launch, err);
    }
    if (status == FSDP_OK) {
        set_id(&launch);
        *launch_p = launch;
    }

    return status;
}

fsdp_status_t launch_place(bool alone, launch_t *launch_p, fsdp_error_t *err)
{
    launch_kind_t kind = alone ? LAUNCH_NONE : kind_of_launch();
    launch_t launch = {.kind = LAUNCH_NONE, .size = 1};
    uint32_t pmi = env_number("PMI_SIZE", 1);

    if (kind == LAUNCH_MPIRUN) {
        read_mpirun(&launch);
    } else if (kind == LAUNCH_SRUN) {
        read_step(&launch);
    } else if (!alone && pmi > 1) {
        return refuse(err, "the launcher speaks PMI-1 or PMI-2 (PMI_SIZE)",
                      pmi);
    }
    if (launch.size == 0 || (launch.kind == LAUNCH_MPIRUN && launch.size > 1 &&
                             !is_set("PMIX_NAMESPACE"))) {
        return refuse(err,
                      "the launcher does not say how many ranks there are, "
                      "or of which run (PMIX_NAMESPACE)",
                      launch.size);
    }
    set_id(&launch);

    *launch_p = launch;
    return FSDP_OK;
}

const char *launch_name(launch_kind_t kind)
{
    return (kind == LAUNCH_SRUN)     ? "srun"
           : (kind == LAUNCH_MPIRUN) ? "mpirun"
                                     : "none";
}
