#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lib/fsdp.h"
#include "lib/job/heartbeat.h"
#include "lib/job/hostlist.h"
#include "lib/job/launch.h"
#include "lib/job/missing.h"
#include "lib/job/peers.h"
#include "t/tap/tap.h"

extern char **environ;

/* --- Who launched us ------------------------------------------------------ */

#define SLURM_JOB "SLURM_JOB_ID=12", "SLURM_NTASKS=4"
#define SLURM_STEP \
    SLURM_JOB, "SLURM_STEP_ID=1", "SLURM_STEP_NUM_TASKS=4", "SLURM_PROCID=3"
#define PMIX_SERVER \
    "PMIX_SERVER_URI4=pmix-server.1;tcp4://127.0.0.1:1", "PMIX_RANK=3"

static const struct {
    const char *name;
    const char *env[12];
    fsdp_status_t status;
    launch_kind_t kind;
    uint32_t rank, size;
    const char *says; /* the id, or a part of the error */
} launches[] = {
    {"no launcher",                         {NULL},                   FSDP_OK, LAUNCH_NONE,   0, 1, NULL},
    {"srun --mpi=pmix",
     {SLURM_STEP, PMIX_SERVER, "PMIX_NAMESPACE=slurm.pmix.12.1"},
     FSDP_OK,                                                                  LAUNCH_SRUN,
     3,                                                                                          4,
     "12.1"                                                                                             },
    {"a requeued job",
     {SLURM_STEP, PMIX_SERVER, "PMIX_NAMESPACE=slurm.pmix.12.1",
      "SLURM_RESTART_COUNT=2"},
     FSDP_OK,                                                                  LAUNCH_SRUN,
     3,                                                                                          4,
     "12.1-r2"                                                                                          },
    {"srun --mpi=none",
     {SLURM_STEP},
     FSDP_ERR_NO_LAUNCHER,                                                     0,
     0,                                                                                          0,
     "srun --mpi=pmix"                                                                                  },
    {"srun --mpi=pmi2",
     {SLURM_STEP, "PMI_RANK=3", "PMI_SIZE=4"},
     FSDP_ERR_NO_LAUNCHER,                                                     0,
     0,                                                                                          0,
     "libpmix-dev"                                                                                      },
    {"srun --mpi=none in a step with PMIx",
     {SLURM_STEP, PMIX_SERVER, "PMIX_NAMESPACE=slurm.pmix.12.0"},
     FSDP_ERR_NO_LAUNCHER,                                                     0,
     0,                                                                                          0,
     "srun --mpi=pmix"                                                                                  },
    {"srun -n1 --mpi=none",
     {"SLURM_JOB_ID=12", "SLURM_NTASKS=1", "SLURM_STEP_ID=0",
      "SLURM_STEP_NUM_TASKS=1", "SLURM_PROCID=0"},
     FSDP_OK,                                                                  LAUNCH_SRUN,
     0,                                                                                          1,
     "12.0"                                                                                             },
    {"an interactive step of a larger job",
     {SLURM_JOB, "SLURM_STEP_ID=4294967290", "SLURM_STEP_NUM_TASKS=1",
      "SLURM_PROCID=0"},
     FSDP_ERR_NO_LAUNCHER,                                                     0,
     0,                                                                                          0,
     "srun --mpi=pmix"                                                                                  },
    {"a batch script",
     {SLURM_JOB, "SLURM_PROCID=0"},
     FSDP_ERR_NO_LAUNCHER,                                                     0,
     0,                                                                                          0,
     "srun was not used"                                                                                },
    {"a batch script of one task",
     {"SLURM_JOB_ID=12", "SLURM_NTASKS=1"},
     FSDP_OK,                                                                  LAUNCH_NONE,
     0,                                                                                          1,
     NULL                                                                                               },
    {"mpirun",
     {PMIX_SERVER, "PMIX_NAMESPACE=77", "OMPI_COMM_WORLD_SIZE=5",
      "OMPI_COMM_WORLD_RANK=3",
      "OMPI_MCA_orte_precondition_transports=0123456789abcdef-0123"},
     FSDP_OK,                                                                  LAUNCH_MPIRUN,
     3,                                                                                          5,
     "77-01234567"                                                                                      },
    {"mpirun in a job of Slurm",
     {SLURM_STEP, PMIX_SERVER, "PMIX_NAMESPACE=77", "OMPI_COMM_WORLD_SIZE=5",
      "OMPI_COMM_WORLD_RANK=2"},
     FSDP_OK,                                                                  LAUNCH_MPIRUN,
     2,                                                                                          5,
     "77-"                                                                                              },
    {"mpirun without PMIx",
     {"OMPI_COMM_WORLD_SIZE=5", "OMPI_COMM_WORLD_RANK=2"},
     FSDP_ERR_NO_LAUNCHER,                                                     0,
     0,                                                                                          0,
     "OMPI_COMM_WORLD_SIZE"                                                                             },
    {"mpiexec of MPICH",
     {"PMI_SIZE=2", "PMI_RANK=0"},
     FSDP_ERR_NO_LAUNCHER,                                                     0,
     0,                                                                                          0,
     "PMI_SIZE"                                                                                         },
};

static void test_launches(void)
{
    char **before = environ;

    for (size_t i = 0; i < sizeof(launches) / sizeof(*launches); i++) {
        launch_t launch = {0};
        fsdp_error_t err = {.text = ""};
        fsdp_status_t status;

        environ = (char **)launches[i].env;
        status = launch_detect(false, &launch, &err);
        ok(status == launches[i].status && launch.kind == launches[i].kind &&
               launch.rank == launches[i].rank &&
               launch.size == launches[i].size,
           "%s: %s", launches[i].name,
           (status == FSDP_OK) ? launch.id : err.text);
        ok(launches[i].says == NULL ||
               ((status == FSDP_OK) ? strcmp(launch.id, launches[i].says) == 0
                                    : strstr(err.text, launches[i].says) != 0),
           "%s: says so", launches[i].name);
        status = launch_detect(true, &launch, &err);
        ok(status == FSDP_OK && launch.size == 1 &&
               launch.kind == LAUNCH_NONE && launch.rank == 0,
           "%s: may be alone", launches[i].name);
    }
    environ = before;
}

/* Ranks that need no PMIx. */
static void test_places(void)
{
    static const struct {
        const char *name;
        const char *env[8];
        fsdp_status_t status;
        uint32_t rank, size;
        const char *id; /* NULL: any */
    } places[] = {
        {"nothing",                             {NULL},                        FSDP_OK, 0, 1, NULL     },
        {"srun --mpi=none",
         {SLURM_JOB, "SLURM_STEP_ID=3", "SLURM_STEP_NUM_TASKS=4",
          "SLURM_PROCID=2"},
         FSDP_OK,                                                                       2,
         4,                                                                                   "12.3"   },
        {"a requeued job",
         {SLURM_JOB, "SLURM_STEP_ID=3", "SLURM_STEP_NUM_TASKS=4",
          "SLURM_PROCID=2", "SLURM_RESTART_COUNT=1"},
         FSDP_OK,                                                                       2,
         4,                                                                                   "12.3-r1"},
        {"srun --mpi=pmix",                     {SLURM_STEP, PMIX_SERVER},     FSDP_OK, 3, 4, "12.1"   },
        {"an interactive step of a larger job",
         {SLURM_JOB, "SLURM_STEP_ID=4294967290", "SLURM_STEP_NUM_TASKS=1",
          "SLURM_PROCID=0"},
         FSDP_OK,                                                                       0,
         1,                                                                                   NULL     },
        {"a batch script",                      {SLURM_JOB, "SLURM_PROCID=0"}, FSDP_OK, 0, 1, NULL     },
        {"mpirun",
         {PMIX_SERVER, "PMIX_NAMESPACE=77", "OMPI_COMM_WORLD_SIZE=5",
          "OMPI_COMM_WORLD_RANK=3"},
         FSDP_OK,                                                                       3,
         5,                                                                                   "77-"    },
        {"mpirun without a name",
         {"OMPI_COMM_WORLD_SIZE=5", "OMPI_COMM_WORLD_RANK=2"},
         FSDP_ERR_NO_LAUNCHER,                                                          0,
         0,                                                                                   NULL     },
        {"mpiexec of MPICH",
         {"PMI_SIZE=2", "PMI_RANK=0"},
         FSDP_ERR_NO_LAUNCHER,                                                          0,
         0,                                                                                   NULL     },
    };
    char **before = environ;

    for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
        launch_t launch = {0};
        fsdp_error_t err = {.text = ""};
        fsdp_status_t status;

        environ = (char **)places[i].env;
        status = launch_place(false, &launch, &err);
        ok(status == places[i].status && launch.rank == places[i].rank &&
               launch.size == places[i].size &&
               (places[i].id == NULL || strcmp(launch.id, places[i].id) == 0),
           "in files: %s: %u of %u, %s %s", places[i].name, launch.rank,
           launch.size, launch.id, err.text);
    }
    environ = before;
}

/* --- Lists of hosts ------------------------------------------------------- */

static const struct {
    const char *text;
    const char *names; /* joined by ' '; NULL: refused */
} hostlists[] = {
    {"n1",                      "n1"                     },
    {"n[1-3]",                  "n1 n2 n3"               },
    {"n[1-2,9],login",          "n1 n2 n9 login"         },
    {"a[08-11]",                "a08 a09 a10 a11"        },
    {"r[1-2]c[0-1]x",           "r1c0x r1c1x r2c0x r2c1x"},
    {"a,b,c",                   "a b c"                  },
    {"",                        NULL                     },
    {"a,,b",                    NULL                     },
    {"n[",                      NULL                     },
    {"n[]",                     NULL                     },
    {"n[1",                     NULL                     },
    {"n[2-1]",                  NULL                     },
    {"n[1-]",                   NULL                     },
    {"n[x]",                    NULL                     },
    {"n[1;2]",                  NULL                     },
    {"n[1-99999999]",           NULL                     },
    {"n[0-999]m[0-999]",        NULL                     },
    {"n[99999999999999999999]", NULL                     },
};

static void test_hostlists(void)
{
    for (size_t i = 0; i < sizeof(hostlists) / sizeof(*hostlists); i++) {
        char joined[200] = "";
        fsdp_error_t err;
        char **names;
        size_t num;

        if (hostlist_expand(hostlists[i].text, &names, &num, &err) != FSDP_OK) {
            ok(hostlists[i].names == NULL, "'%s' is refused",
               hostlists[i].text);
            continue;
        }
        for (size_t n = 0; n < num && n < 20; n++) {
            strcat(strcat(joined, (n > 0) ? " " : ""), names[n]);
        }
        hostlist_free(names, num);
        ok(hostlists[i].names != NULL &&
               strcmp(joined, hostlists[i].names) == 0,
           "'%s' is %s", hostlists[i].text, joined);
    }
}

static const struct {
    const char *text;
    size_t num;
    const char *nodes; /* a digit a task; NULL: refused */
} maps[] = {
    {"(vector,(0,2,2))",                   4, "0011"},
    {"(vector,(0,2,1),(0,1,2))",           4, "0100"},
    {"(vector,(1,1,3))",                   3, "111" },
    {"(vector,(0,2,2))",                   5, NULL  },
    {"(vector,(0,2,2))",                   3, NULL  },
    {"(vector,(1,2,2))",                   4, NULL  },
    {"(vector,(0,4294967295,4294967295))", 4, NULL  },
    {"(vector,(0,2,2)",                    4, NULL  },
    {"vector",                             4, NULL  },
    {"",                                   0, NULL  },
};

static void test_maps(void)
{
    for (size_t i = 0; i < sizeof(maps) / sizeof(*maps); i++) {
        uint32_t node_of[8] = {0};
        char digits[9] = "";
        fsdp_status_t status =
            hostlist_map(maps[i].text, 2, node_of, maps[i].num, NULL);

        for (size_t t = 0; t < maps[i].num; t++) {
            digits[t] = (char)('0' + node_of[t]);
        }
        ok((status == FSDP_OK)
               ? maps[i].nodes != NULL && strcmp(digits, maps[i].nodes) == 0
               : maps[i].nodes == NULL,
           "map '%s' of %zu", maps[i].text, maps[i].num);
    }
}

/* --- Peers ---------------------------------------------------------------- */

static const char *host_of(uint32_t rank, void *arg)
{
    const char *const *hosts = arg;

    return hosts[rank];
}

static void test_peers(void)
{
    const char *hosts[8] = {"n3", "n1", "n3", "n3", "n1", "n3", "n3", "n2"};
    static const uint32_t all[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    uint32_t many[400];
    peers_t peers, none = {0};
    char text[300];

    ok(peers_make(8, 3, host_of, hosts, &peers, NULL) == FSDP_OK,
       "tables of 8 ranks");
    ok(peers.nodes == 3 && peers.local_rank == 2 && peers.local_size == 5,
       "3 nodes; rank 3 is number 2 of 5");
    ok(peers.node_of[0] == 0 && peers.node_of[1] == 1 && peers.node_of[7] == 2,
       "nodes are numbered as ranks name them");
    peers_list(&peers, all, 8, text, sizeof(text));
    ok(strcmp(text, "ranks 0, 2, 3, 5, 6 on n3, ranks 1, 4 on n1, rank 7 on "
                    "n2") == 0,
       "%s", text);
    peers_list(&peers, all + 1, 1, text, sizeof(text));
    ok(strcmp(text, "rank 1 on n1") == 0, "%s", text);
    peers_list(&none, all, 8, text, sizeof(text));
    ok(strcmp(text, "ranks 0-7") == 0, "%s", text);
    peers_list(&none, all, 2, text, sizeof(text));
    ok(strcmp(text, "ranks 0, 1") == 0, "%s", text);
    peers_list(&peers, all, 8, text, 60);
    ok(strcmp(text, "ranks 0, 2, 3, 5, 6 on n3 and 3 more") == 0, "%s", text);
    for (uint32_t i = 0; i < 400; i++) {
        many[i] = 2 * i;
    }
    peers_list(&none, many, 400, text, sizeof(text));
    ok(strncmp(text, "ranks 0, 2, 4, ", 15) == 0 &&
           strlen(text) > sizeof(text) - 50 &&
           strcmp(text + strlen(text) - 13, " and 338 more") == 0,
       "what does not fit is counted: %s", text);
    peers_list(&none, many, 400, text, 12);
    ok(strcmp(text, "400 more") == 0, "or all of it: %s", text);
    peers_free(&peers);
    peers_free(&peers);
    ok(peers.hosts == NULL, "freed twice");
}

static void test_peers_from_slurm(void)
{
    peers_t peers;

    unsetenv("SLURM_STEP_NODELIST");
    ok(peers_from_slurm(4, 1, &peers, NULL) == FSDP_ERR_NOT_FOUND,
       "no map in the environment");
    setenv("SLURM_STEP_NODELIST", "n[1-2]", 1);
    setenv("SLURM_PMIX_MAPPING_SERV", "(vector,(0,2,1),(0,1,2))", 1);
    ok(peers_from_slurm(4, 1, &peers, NULL) == FSDP_OK &&
           strcmp(peers.hosts[peers.node_of[1]], "n2") == 0 &&
           strcmp(peers.hosts[peers.node_of[3]], "n1") == 0 &&
           peers.local_size == 1,
       "4 tasks, cyclic, on 2 nodes");
    peers_free(&peers);
    unsetenv("SLURM_STEP_NODELIST");
    unsetenv("SLURM_PMIX_MAPPING_SERV");
}

/* --- Heartbeats ----------------------------------------------------------- */

static char run_dir[] = "/tmp/fsdp-job-XXXXXX";

static void path_of(int rank, char path[200])
{
    snprintf(path, 200, "%s/.job-x.0/rank-%05d", run_dir, rank);
}

/* The file of a rank that does not beat. */
static void write_peer(int rank, const char *phase)
{
    char path[200];
    FILE *file;

    path_of(rank, path);
    file = fopen(path, "w");
    fprintf(file, "%d n2 4242 %s all-gather:h.3 17 99 %lld.000\n", rank, phase,
            (long long)time(NULL) - 7);
    fclose(file);
}

static fsdp_status_t explain(heartbeat_t *beat, bool started,
                             comm_reason_t reason, fsdp_error_t *err)
{
    const char *hosts[6] = {"n1", "n1", "n2", "n2", "n3", "n3"};
    static const uint32_t pending[2] = {1, 5};
    comm_stall_t stall = {
        reason, "all-gather", "h.3", 5.0, "the wire is cut", pending, 2};
    missing_view_t view = {0, 6, "n1", NULL, started, run_dir, beat};
    fsdp_status_t status;
    peers_t peers;

    peers_make(6, 0, host_of, hosts, &peers, NULL);
    view.peers = &peers;
    status = missing_explain(&view, &stall, err);
    peers_free(&peers);
    return status;
}

static void test_heartbeat(void)
{
    heartbeat_seen_t seen[6];
    heartbeat_t *beat;
    char path[200];
    fsdp_error_t err;
    heartbeat_t *second;

    if (mkdtemp(run_dir) == NULL ||
        heartbeat_open(run_dir, "x.0", "n 1", 0, 6, &beat, &err) != FSDP_OK ||
        heartbeat_open(run_dir, "x.0", "n1", 1, 6, &second, &err) != FSDP_OK) {
        ok(false, "heartbeats: %s", err.text);
        return;
    }
    heartbeat_set_phase(second, "data", 3);

    /* Rank 1 beats, 2 and 3 do not, 4 has closed meanwhile, 5 never came. */
    write_peer(2, "forward");
    write_peer(3, "forward");
    write_peer(4, "forward");
    heartbeat_look(beat);
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    path_of(4, path);
    unlink(path);
    ok(heartbeat_judge(beat, seen, 6), "heartbeats are read");
    ok(seen[0].state == HEARTBEAT_ALIVE, "this rank is alive");
    ok(seen[1].state == HEARTBEAT_ALIVE && strcmp(seen[1].phase, "data") == 0 &&
           seen[1].step == 3,
       "so is one that beats");
    ok(seen[2].state == HEARTBEAT_STILL && seen[2].step == 17 &&
           seen[2].age >= 7.0 && seen[2].age < 12.0 &&
           strcmp(seen[2].operation, "all-gather:h.3") == 0,
       "one that stands still is gone, %.0f s ago", seen[2].age);
    ok(seen[4].state == HEARTBEAT_LEFT, "one whose file is gone has left");
    ok(seen[5].state == HEARTBEAT_NONE, "one without a file has not come");

    ok(explain(beat, true, COMM_STALL_DEADLINE, &err) == FSDP_ERR_PEER_LOST &&
           err.rank == 2,
       "the first lost rank is in the error");
    ok(strstr(err.text, "rank 0 on n1: all-gather of h.3: no progress for "
                        "5.0 s") != NULL &&
           strstr(err.text, "ranks 2, 3 on n2 are gone, rank 2 last seen") !=
               NULL &&
           strstr(err.text, "in forward of step 17") != NULL,
       "%s", err.text);
    ok(explain(beat, false, COMM_STALL_DEADLINE, &err) == FSDP_ERR_PEER_LOST &&
           strstr(err.text, "rank 5 on n3 has not arrived") != NULL,
       "at the start: %s", err.text);
    ok(explain(beat, true, COMM_STALL_BACKEND, &err) == FSDP_ERR_PEER_LOST &&
           strstr(err.text, "the wire is cut") != NULL,
       "%s", err.text);

    /* Those that stood still are replaced by one that has given up. */
    path_of(2, path);
    unlink(path);
    path_of(3, path);
    unlink(path);
    heartbeat_give_up(second);
    heartbeat_look(beat);
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    ok(explain(beat, true, COMM_STALL_ALARM, &err) == FSDP_ERR_SIGNALLED &&
           strstr(err.text, "rank 1 gave up") != NULL &&
           strstr(err.text, "told to end") != NULL,
       "%s", err.text);

    path_of(1, path);
    heartbeat_close(second);
    ok(access(path, F_OK) == 0, "who gave up leaves his file");
    unlink(path);
    path_of(0, path);
    ok(access(path, F_OK) == 0, "the file is there");
    heartbeat_close(beat);
    ok(access(path, F_OK) != 0, "and gone after closing");
    ok(rmdir(run_dir) == 0, "with its directory");
}

static void test_no_heartbeat(void)
{
    fsdp_error_t err;
    heartbeat_t *beat;

    ok(explain(NULL, true, COMM_STALL_DEADLINE, &err) == FSDP_ERR_PEER_LOST &&
           err.rank == 1 &&
           strstr(err.text, "rank 1 on n1, rank 5 on n3 are waited for") !=
               NULL,
       "%s", err.text);
    ok(heartbeat_open("/proc/no/such", "x", "n1", 0, 1, &beat, &err) ==
           FSDP_ERR_IO,
       "%s", err.text);
}

/* --- A job of one rank ---------------------------------------------------- */

static void test_alone(void)
{
    fsdp_job_config_t config = FSDP_JOB_CONFIG_INIT;
    fsdp_job_info_t info;
    fsdp_error_t mine, err;
    fsdp_job_t *job = NULL;

    config.alone = true;
    ok(fsdp_job_open(&config, &job, &err) == FSDP_OK, "a job of one rank");
    fsdp_job_get_info(job, &info);
    ok(info.rank == 0 && info.world == 1 && info.local_size == 1 &&
           info.nodes == 1 && strcmp(info.launcher, "none") == 0 &&
           strcmp(info.backend, "self") == 0,
       "on %s, %s", info.host, info.id);
    ok(strcmp(fsdp_job_host(job, 0), info.host) == 0, "which is its host");
    ok(fsdp_job_agree(job, FSDP_OK, NULL, &err) == FSDP_OK, "it agrees");
    fsdp_error_set(&mine, FSDP_ERR_IO, "no space");
    ok(fsdp_job_agree(job, FSDP_ERR_IO, &mine, &err) == FSDP_ERR_IO &&
           err.rank == 0 && strcmp(err.text, "no space") == 0,
       "on an error too");
    ok(fsdp_job_agree(job, FSDP_OK, NULL, &err) == FSDP_OK,
       "and goes on after it");
    fsdp_error_set(&mine, FSDP_ERR_MISMATCH, "they differ");
    ok(fsdp_job_agree(job, FSDP_ERR_MISMATCH, &mine, &err) ==
               FSDP_ERR_MISMATCH &&
           fsdp_job_agree(job, FSDP_OK, NULL, &err) == FSDP_ERR_MISMATCH,
       "but not after a mismatch");
    fsdp_job_close(job);

    config.deadline = -1.0;
    ok(fsdp_job_open(&config, &job, &err) == FSDP_ERR_INVALID_PARAM,
       "a negative deadline is refused");
    config.deadline = 0.0;
    config.run_dir = "/proc/no/such";
    ok(fsdp_job_open(&config, &job, &err) == FSDP_ERR_IO, "%s", err.text);
    fsdp_job_close(NULL);
}

int main(void)
{
    test_launches();
    test_places();
    test_hostlists();
    test_maps();
    test_peers();
    test_peers_from_slurm();
    test_heartbeat();
    test_no_heartbeat();
    test_alone();
    return tap_done();
}
