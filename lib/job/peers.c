#include "config.h"

#include "lib/job/peers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/job/hostlist.h"
#include "lib/util/check.h"

/* --- Tables --------------------------------------------------------------- */

static fsdp_status_t no_memory(uint32_t world, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                          "no memory for the hosts of %u ranks", world);
}

/* The number of a host's node; a new host gets the next.  Neighbours share
 * nodes, so the search begins with the newest. */
static bool find_node(peers_t *peers, const char *host, uint32_t *node_p)
{
    for (uint32_t node = peers->nodes; node > 0; node--) {
        if (strcmp(peers->hosts[node - 1], host) == 0) {
            *node_p = node - 1;
            return true;
        }
    }

    peers->hosts[peers->nodes] = strdup(host);
    *node_p = peers->nodes;
    return peers->hosts[peers->nodes++] != NULL;
}

fsdp_status_t peers_make(uint32_t world, uint32_t rank, peers_host_f host,
                         void *arg, peers_t *peers_p, fsdp_error_t *err)
{
    peers_t peers = {.world = world, .rank = rank};

    peers.node_of = calloc(world, sizeof(*peers.node_of));
    peers.hosts = calloc(world, sizeof(*peers.hosts));
    if (peers.node_of == NULL || peers.hosts == NULL) {
        peers_free(&peers);
        return no_memory(world, err);
    }

    for (uint32_t r = 0; r < world; r++) {
        if (!find_node(&peers, host(r, arg), &peers.node_of[r])) {
            peers_free(&peers);
            return no_memory(world, err);
        }
    }
    for (uint32_t r = 0; r < world; r++) {
        if (peers.node_of[r] == peers.node_of[rank]) {
            peers.local_rank += r < rank;
            peers.local_size++;
        }
    }

    *peers_p = peers;
    return FSDP_OK;
}

void peers_free(peers_t *peers)
{
    if (peers->hosts != NULL) {
        hostlist_free(peers->hosts, peers->nodes);
    }
    free(peers->node_of);
    *peers = (peers_t){0};
}

/* --- Without PMIx --------------------------------------------------------- */

static fsdp_status_t gather_hosts(comm_t *comm, void *arg, fsdp_error_t *err)
{
    return comm_all_gather(comm, comm_all(comm), COMM_CONTROL, arg,
                           PEERS_HOST_MAX, err);
}

static const char *host_of(uint32_t rank, void *arg)
{
    char(*hosts)[PEERS_HOST_MAX] = arg;

    return hosts[rank];
}

fsdp_status_t peers_gather(comm_t *comm, peers_t *peers_p, fsdp_error_t *err)
{
    uint32_t world = comm_world(comm), rank = comm_rank(comm);
    fsdp_status_t status;
    char(*hosts)[PEERS_HOST_MAX];

    hosts = calloc(world, sizeof(*hosts));
    if (hosts == NULL) {
        return no_memory(world, err);
    }

    gethostname(hosts[rank], PEERS_HOST_MAX - 1);
    status = comm_run(comm, gather_hosts, hosts, "exchange of host names", NULL,
                      err);
    if (status == FSDP_OK) {
        for (uint32_t r = 0; r < world; r++) {
            hosts[r][PEERS_HOST_MAX - 1] = '\0';
        }
        status = peers_make(world, rank, host_of, hosts, peers_p, err);
    } else {
        /* A worker that hangs may still write to it. */
        hosts = NULL;
    }
    free(hosts);
    return status;
}

/* --- From Slurm's environment --------------------------------------------- */

typedef struct {
    char **names;
    uint32_t *node_of;
} step_t;

static const char *host_of_task(uint32_t rank, void *arg)
{
    step_t *step = arg;

    return step->names[step->node_of[rank]];
}

/* The PMIx plugin's map is exact for any distribution of tasks. */
fsdp_status_t peers_from_slurm(uint32_t world, uint32_t rank, peers_t *peers_p,
                               fsdp_error_t *err)
{
    const char *list = getenv("SLURM_STEP_NODELIST");
    const char *map = getenv("SLURM_PMIX_MAPPING_SERV");
    step_t step = {0};
    fsdp_status_t status;
    size_t num;

    if (list == NULL || map == NULL) {
        errno = 0;
        return fsdp_error_set(err, FSDP_ERR_NOT_FOUND,
                              "no map of tasks in the environment");
    }

    FSDP_TRY(hostlist_expand(list, &step.names, &num, err));
    step.node_of = calloc(world, sizeof(*step.node_of));
    if (step.node_of == NULL) {
        status = no_memory(world, err);
        goto out;
    }
    FSDP_TRY_GOTO(hostlist_map(map, (uint32_t)num, step.node_of, world, err),
                  out);
    status = peers_make(world, rank, host_of_task, &step, peers_p, err);

out:
    free(step.node_of);
    hostlist_free(step.names, num);
    return status;
}

/* --- Text ----------------------------------------------------------------- */

static bool same_node(const peers_t *peers, uint32_t a, uint32_t b)
{
    return peers->world == 0 || peers->node_of[a] == peers->node_of[b];
}

/* A run of ranks: " 3,", " 3, 4," or " 3-5,". */
static size_t put_run(uint32_t first, uint32_t last, char *text, size_t size)
{
    int length = (first == last)
                     ? snprintf(text, size, " %u,", first)
                     : snprintf(text, size, " %u%s%u,", first,
                                (last > first + 1) ? "-" : ", ", last);

    return (size_t)length;
}

/*
 * The ranks of the node of ranks[i], as "ranks 0, 4-7 on n3", as far as there
 * is room.
 *
 * @return how many ranks are in the text; *whole_p: all of the node.
 */
static size_t list_node(const peers_t *peers, const uint32_t *ranks, size_t num,
                        size_t i, char *text, size_t size, bool *whole_p)
{
    const char *host =
        (peers->world > 0) ? peers->hosts[peers->node_of[ranks[i]]] : "";
    size_t tail = strlen(host) + sizeof(" on ");
    size_t at = 5, told = 0, run = 0; /* "ranks" is put in front at the end */
    uint32_t first = ranks[i], last = ranks[i];

    *whole_p = true;
    for (size_t j = i; j <= num && *whole_p; j++) {
        size_t length;

        if (j < num && !same_node(peers, ranks[i], ranks[j])) {
            continue;
        }
        if (j < num && (j == i || ranks[j] == last + 1)) {
            last = ranks[j];
            run++;
            continue;
        }
        length = put_run(first, last, text + at, size - at);
        if (at + length + tail >= size) {
            *whole_p = false;
            break;
        }
        at += length;
        told += run;
        run = 1;
        if (j < num) {
            first = last = ranks[j];
        }
    }
    if (told == 0) {
        return 0;
    }

    /* In place of the last comma. */
    snprintf(text + at - 1, size - at + 1, "%s%s",
             (host[0] != '\0') ? " on " : "", host);
    memcpy(text, (told > 1) ? "ranks" : " rank", 5);
    return told;
}

static bool is_first_of_node(const peers_t *peers, const uint32_t *ranks,
                             size_t i)
{
    for (size_t j = 0; j < i; j++) {
        if (same_node(peers, ranks[j], ranks[i])) {
            return false;
        }
    }

    return true;
}

void peers_list(const peers_t *peers, const uint32_t *ranks, size_t num,
                char *text, size_t size)
{
    const size_t tail = 32; /* " and 4294967295 more" */
    size_t at = 0, told = 0, count;
    char part[320];
    bool whole = true;

    text[0] = '\0';
    for (size_t i = 0; i < num && whole; i++) {
        size_t room = (size > at + tail) ? size - at - tail : 0;

        if (!is_first_of_node(peers, ranks, i)) {
            continue;
        }
        room = (room < sizeof(part)) ? room : sizeof(part);
        count = (room > 16)
                    ? list_node(peers, ranks, num, i, part, room, &whole)
                    : 0;
        if (count == 0) {
            break;
        }
        at += (size_t)snprintf(text + at, size - at, "%s%s",
                               (at > 0) ? ", " : "", part + (part[0] == ' '));
        told += count;
    }
    if (told < num) {
        snprintf(text + at, size - at, "%s%zu more", (at > 0) ? " and " : "",
                 num - told);
    }
}
