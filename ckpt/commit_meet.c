/*
 * Ranks that meet: programs that know of each other only how many they are.
 * They learn who is where, and that an old directory of messages is not theirs;
 * later each shows now and then that it lives.
 *
 *     rank r                          rank 0
 *     ------------------------        ----------------------------
 *     "here": a random number,  -->   all are there
 *     host                      <--   "welcome": the numbers, hosts
 *     "beat": bytes done        -->   progress; who is silent is lost
 */
#define _GNU_SOURCE
#include "config.h"

#include "ckpt/commit_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "lib/util/check.h"
#include "lib/util/clock.h"
#include "lib/util/io.h"

#define BEAT      1.0 /* seconds */
#define LINE_MOST 200 /* of a rank in "welcome" */
#define HOST_MOST 65

static fsdp_status_t no_memory(const commit_t *commit, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                          commit->target);
}

/* --- Meeting -------------------------------------------------------------- */

static void own_host(char host[HOST_MOST])
{
    memset(host, 0, HOST_MOST);
    if (gethostname(host, HOST_MOST - 1) != 0 || host[0] == '\0') {
        strcpy(host, "-");
    }
}

/* "NUMBER HOST": no other attempt has the number. */
static void describe_self(char line[LINE_MOST])
{
    char host[HOST_MOST];
    uint64_t number = 0;

    own_host(host);
    (void)getrandom(&number, sizeof(number), 0);
    snprintf(line, LINE_MOST, "%016" PRIx64 ".%lx %s", number,
             (unsigned long)getpid(), host);
}

/* Take "welcome" apart: a line for each rank. */
static fsdp_status_t take_welcome(commit_t *commit, char *text,
                                  fsdp_error_t *err)
{
    char *next = text;

    commit->welcome = text;
    commit->peers = calloc(commit->world, sizeof(*commit->peers));
    if (commit->peers == NULL) {
        return no_memory(commit, err);
    }

    for (uint32_t rank = 0; rank < commit->world; rank++) {
        char *line = strsep(&next, "\n");
        char *space = (line != NULL) ? strchr(line, ' ') : NULL;

        commit->peers[rank].host = (space != NULL) ? space + 1 : "-";
        commit_expect(commit, rank);
    }
    return FSDP_OK;
}

static fsdp_status_t post_welcome(commit_t *commit, char *const *texts,
                                  fsdp_error_t *err)
{
    char *all = calloc(commit->world + 1ul, LINE_MOST), *end = all;
    fsdp_status_t status;

    if (all == NULL) {
        return no_memory(commit, err);
    }

    for (uint32_t rank = 0; rank < commit->world; rank++) {
        end += snprintf(end, LINE_MOST, "%.*s\n", LINE_MOST - 2,
                        (texts[rank] != NULL) ? texts[rank] : "-");
    }
    status = commit_post(commit, "welcome", 0, all, (size_t)(end - all), err);
    if (status != FSDP_OK) {
        free(all);
        return status;
    }
    return take_welcome(commit, all, err);
}

static fsdp_status_t stopped(fsdp_error_t *err)
{
    errno = 0;
    return fsdp_error_set(err, FSDP_ERR_CANCELLED, "stopped as asked");
}

/* The run has failed: wait a little for those who still come, since they wait
 * for a welcome before they listen to what has failed.  Who could not come has
 * left. */
static void receive_late(commit_t *commit, char **texts, size_t *sizes,
                         double patience)
{
    double end = clock_now() + patience;
    unsigned round = 0;
    uint32_t left, rank;

    for (;;) {
        if (commit_receive(commit, "here", 1, commit->world - 1, texts + 1,
                           sizes + 1, &left, NULL) != FSDP_OK) {
            return;
        }
        for (rank = 1; rank < commit->world; rank++) {
            if (texts[rank] == NULL && !commit_has_left(commit, rank)) {
                break;
            }
        }
        if (rank == commit->world || clock_now() > end) {
            return;
        }
        commit_pause(&round);
    }
}

/* Those who have come learn so, even if others have not. */
static fsdp_status_t receive_others(commit_t *commit, double patience,
                                    fsdp_error_t *err)
{
    char **texts = calloc(commit->world, sizeof(*texts)), self[LINE_MOST];
    size_t *sizes = calloc(commit->world, sizeof(*sizes));
    double end = clock_now() + patience;
    fsdp_status_t status = FSDP_OK, told;
    uint32_t left = 0;

    if (texts == NULL || sizes == NULL) {
        status = no_memory(commit, err);
        goto err_free;
    }

    describe_self(self);
    for (unsigned round = 0; status == FSDP_OK; commit_pause(&round)) {
        status = commit_receive(commit, "here", 1, commit->world - 1, texts + 1,
                                sizes + 1, &left, err);
        if (status == FSDP_OK && left == 0) {
            break;
        }
        if (status == FSDP_OK) {
            status = commit_poll(commit, err);
        }
        if (status == FSDP_OK && clock_now() > end) {
            status = commit_missing(commit, "here", 1, commit->world - 1, NULL,
                                    texts + 1, err);
        }
    }
    if (status != FSDP_OK && clock_now() <= end) {
        receive_late(commit, texts, sizes, commit_grace(commit, status));
    }
    texts[0] = self;
    told = post_welcome(commit, texts, (status == FSDP_OK) ? err : NULL);
    texts[0] = NULL;
    status = (status == FSDP_OK) ? told : status;
err_free:
    for (uint32_t rank = 0; texts != NULL && rank < commit->world; rank++) {
        free(texts[rank]);
    }
    free(texts);
    free(sizes);
    return status;
}

/* Is this welcome for us?  Line number rank must be what we said. */
static bool is_for(const char *text, uint32_t rank, const char *self)
{
    size_t size = strlen(self);

    for (uint32_t i = 0; i < rank; i++) {
        text = strchr(text, '\n');
        if (text == NULL) {
            return false;
        }
        text++;
    }

    return strncmp(text, self, size) == 0 && text[size] == '\n';
}

/* Say that we are here, again if the directory has been made anew, and see
 * whether rank 0 has taken notice. */
static fsdp_status_t try_to_join(commit_t *commit, const char *here,
                                 const char *welcome, const char *self,
                                 fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;
    size_t size;
    char *text;

    commit_refresh(commit->ranks);
    if (!commit_exists(here)) {
        status =
            commit_post(commit, "here", commit->rank, self, strlen(self), err);
        if (status != FSDP_OK && !commit_exists(commit->ranks)) {
            status = FSDP_OK; /* that one was old */
        }
    }
    if (status == FSDP_OK && commit_exists(welcome) &&
        io_read_file(welcome, (commit->world + 1ul) * LINE_MOST, &text, &size,
                     NULL) == FSDP_OK) {
        if (is_for(text, commit->rank, self)) {
            return take_welcome(commit, text, err);
        }
        free(text);
    }

    return status;
}

static fsdp_status_t join(commit_t *commit, double patience, fsdp_error_t *err)
{
    char *here = commit_message_path(commit, "here", commit->rank);
    char *welcome = commit_message_path(commit, "welcome", 0);
    /* Rank 0, which may have begun later, says first who is missing. */
    double end = clock_now() + patience + COMMIT_GRACE;
    fsdp_status_t status;
    char self[LINE_MOST];
    unsigned round = 0;

    if (here == NULL || welcome == NULL) {
        status = no_memory(commit, err);
        goto err_free;
    }

    describe_self(self);
    for (;;) {
        FSDP_TRY_GOTO(try_to_join(commit, here, welcome, self, err), err_free);
        if (commit->peers != NULL) {
            break;
        }
        if (commit->go_on != NULL && !commit->go_on(commit->arg)) {
            status = stopped(err);
            break;
        }
        if (clock_now() > end) {
            errno = 0;
            status = fsdp_error_set(err, FSDP_ERR_PEER_LOST,
                                    "%s: no welcome from rank 0 within "
                                    "%.0f s",
                                    commit->target, patience + COMMIT_GRACE);
            break;
        }
        commit_pause(&round);
    }
err_free:
    free(here);
    free(welcome);
    return status;
}

fsdp_status_t commit_meet(commit_t *commit, double patience, fsdp_error_t *err)
{
    return (commit->rank == 0) ? receive_others(commit, patience, err)
                               : join(commit, patience, err);
}

void commit_rank_text(const commit_t *commit, uint32_t rank, char *text,
                      size_t size)
{
    char host[HOST_MOST];

    if (commit->peers != NULL) {
        snprintf(text, size, "%" PRIu32 " (%s)", rank,
                 commit->peers[rank].host);
    } else if (commit->meet && rank == commit->rank) {
        own_host(host);
        snprintf(text, size, "%" PRIu32 " (%s)", rank, host);
    } else {
        snprintf(text, size, "%" PRIu32, rank);
    }
}

/* --- Signs of life -------------------------------------------------------- */

void commit_expect(commit_t *commit, uint32_t rank)
{
    if (commit->peers != NULL) {
        commit->peers[rank].since = clock_now();
    }
}

static void read_beat(commit_t *commit, uint32_t rank)
{
    char *path = commit_message_path(commit, "beat", rank), *text;
    commit_peer_t *peer = &commit->peers[rank];
    uint64_t beat, done;
    size_t size;

    if (path != NULL &&
        io_read_file(path, LINE_MOST, &text, &size, NULL) == FSDP_OK) {
        if (sscanf(text, "%" SCNu64 " %" SCNu64, &beat, &done) == 2 &&
            beat != peer->beat) {
            peer->beat = beat;
            peer->done = done;
            commit_expect(commit, rank);
        }
        free(text);
    }
    free(path);
}

bool commit_is_silent(commit_t *commit, uint32_t rank)
{
    read_beat(commit, rank);
    return clock_now() - commit->peers[rank].since > commit->deadline;
}

static void beat(commit_t *commit, uint64_t done)
{
    char text[64];
    int size = snprintf(text, sizeof(text), "%" PRIu64 " %" PRIu64,
                        ++commit->beat, done);

    (void)commit_post(commit, "beat", commit->rank, text, (size_t)size, NULL);
    commit->peers[commit->rank].done = done;
}

bool commit_work(commit_t *commit, uint64_t done)
{
    double t = clock_now();

    if (commit->peers == NULL || t < commit->next_beat) {
        return true;
    }

    beat(commit, done);
    commit->next_beat = t + BEAT;
    return commit_look_for_failure(commit, NULL) == FSDP_OK;
}

uint64_t commit_done_by_all(commit_t *commit)
{
    double t = clock_now();
    uint64_t done = 0;

    if (commit->peers == NULL) {
        return 0;
    }

    for (uint32_t rank = 0; rank < commit->world; rank++) {
        if (rank != commit->rank && t >= commit->next_reading) {
            read_beat(commit, rank);
        }
        done += commit->peers[rank].done;
    }
    if (t >= commit->next_reading) {
        commit->next_reading = t + BEAT;
    }
    return done;
}

fsdp_status_t commit_poll(commit_t *commit, fsdp_error_t *err)
{
    if (commit->go_on != NULL && !commit->go_on(commit->arg)) {
        return stopped(err);
    }
    if (commit->peers != NULL) {
        (void)commit_work(commit, commit->peers[commit->rank].done);
    }

    return commit_look_for_failure(commit, err);
}
