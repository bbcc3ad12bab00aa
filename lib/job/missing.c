#include "config.h"

#include "lib/job/missing.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define LIST_MAX 220

/* Text that grows and is cut where its room ends. */
typedef struct {
    char *text;
    size_t size, at;
} line_t;

__attribute__((format(printf, 2, 3))) static void add(line_t *line,
                                                      const char *fmt, ...)
{
    va_list ap;
    int length;

    va_start(ap, fmt);
    length = vsnprintf(line->text + line->at, line->size - line->at, fmt, ap);
    va_end(ap);
    line->at += (size_t)length;
    if (line->at >= line->size) {
        line->at = line->size - 1;
    }
}

/* What is known of all ranks, and a list being made of some. */
typedef struct {
    const missing_view_t *view;
    heartbeat_seen_t *seen;
    uint32_t *ranks;
    size_t num;
    line_t line;
    bool listed; /* there is a list in the line */
    int lost;    /* the first rank that is gone; -1: none is seen to be */
} report_t;

static void pick(report_t *report, heartbeat_state_t state)
{
    report->num = 0;
    for (uint32_t rank = 0; rank < report->view->world; rank++) {
        if (report->seen[rank].state == state) {
            report->ranks[report->num++] = rank;
        }
    }
}

/* ": ranks 4-7 on n3 TEXT", or "; …" if it is not the first list */
static void add_list(report_t *report, const uint32_t *ranks, size_t num,
                     const char *one, const char *many)
{
    char list[LIST_MAX];

    peers_list(report->view->peers, ranks, num, list, sizeof(list));
    add(&report->line, "%s %s %s", report->listed ? ";" : ":", list,
        (num == 1) ? one : many);
    report->listed = true;
}

/* ", last seen 5.2 s ago in forward of step 17" of the first of the list */
static void add_last_seen(report_t *report)
{
    const heartbeat_seen_t *seen = &report->seen[report->ranks[0]];

    if (seen->counter == 0) {
        return;
    }
    add(&report->line, ", ");
    if (report->num > 1) {
        add(&report->line, "rank %u ", report->ranks[0]);
    }
    add(&report->line, "last seen %.1f s ago in %.32s", seen->age, seen->phase);
    if (seen->step >= 0) {
        add(&report->line, " of step %lld", seen->step);
    }
}

static bool add_state(report_t *report, heartbeat_state_t state,
                      const char *one, const char *many)
{
    pick(report, state);
    if (report->num == 0) {
        return false;
    }

    add_list(report, report->ranks, report->num, one, many);
    if (report->lost < 0) {
        report->lost = (int)report->ranks[0];
    }
    return true;
}

/* Nobody is gone: what does the first of those do that are waited for? */
static void add_pending(report_t *report, const comm_stall_t *stall)
{
    const heartbeat_seen_t *seen;

    if (stall->num_peers == 0) {
        if (!add_state(report, HEARTBEAT_GAVE_UP, "gave up", "gave up")) {
            add(&report->line, ": all ranks are alive");
        }
        return;
    }

    add_list(report, stall->peers, stall->num_peers, "is waited for",
             "are waited for");
    seen = &report->seen[stall->peers[0]];
    add(&report->line, "; rank %u ", stall->peers[0]);
    switch (seen->state) {
    case HEARTBEAT_GAVE_UP:
        add(&report->line, "gave up, %.1f s ago", seen->age);
        break;
    case HEARTBEAT_ALIVE:
        add(&report->line, "is alive, in %.32s", seen->phase);
        if (seen->step >= 0) {
            add(&report->line, " of step %lld", seen->step);
        }
        break;
    default:
        add(&report->line, "has no heartbeat: do all nodes share %.60s?",
            report->view->run_dir);
        break;
    }
}

/* Those without a file: have not arrived, at the start; later only an error
 * of the set-up explains it. */
static void add_missing(report_t *report, const comm_stall_t *stall)
{
    bool found = false;

    if (!report->view->started) {
        found |= add_state(report, HEARTBEAT_NONE, "has not arrived",
                           "have not arrived");
    }
    if (add_state(report, HEARTBEAT_STILL, "is gone", "are gone")) {
        add_last_seen(report);
        found = true;
    }
    found |= add_state(report, HEARTBEAT_LEFT, "has left the job",
                       "have left the job");
    if (!found) {
        add_pending(report, stall);
    }
}

static void add_head(report_t *report, const comm_stall_t *stall)
{
    add(&report->line, "rank %u on %s: %s", report->view->rank,
        report->view->host, stall->what);
    if (stall->unit != NULL) {
        add(&report->line, " of %s", stall->unit);
    }
    switch (stall->reason) {
    case COMM_STALL_ALARM:
        add(&report->line, ": told to end after %.1f s of waiting",
            stall->seconds);
        break;
    case COMM_STALL_DEADLINE:
        add(&report->line, ": no progress for %.1f s", stall->seconds);
        break;
    default:
        add(&report->line, ": failed after %.1f s (%.120s)", stall->seconds,
            (stall->detail != NULL) ? stall->detail : "?");
        break;
    }
}

/* Without heartbeats: who has not sent. */
static void add_waited_for(report_t *report, const comm_stall_t *stall)
{
    if (stall->num_peers > 0) {
        add_list(report, stall->peers, stall->num_peers, "is waited for",
                 "are waited for");
    }
    if (report->view->beat == NULL) {
        add(&report->line,
            "%s (without a run directory there are no "
            "heartbeats to tell who is missing)",
            (stall->num_peers > 0) ? "" : ": peers do not answer");
    } else {
        add(&report->line, " (%s does not answer)", report->view->run_dir);
    }
}

fsdp_status_t missing_explain(const missing_view_t *view,
                              const comm_stall_t *stall, fsdp_error_t *err)
{
    char text[sizeof(err->text)] = "";
    report_t report = {
        .view = view,
        .seen = calloc(view->world + 1, sizeof(*report.seen)),
        .ranks = calloc(view->world + 1, sizeof(*report.ranks)),
        .line = {text, sizeof(text), 0},
        .lost = -1,
    };
    fsdp_status_t status;

    add_head(&report, stall);
    if (report.seen != NULL && report.ranks != NULL && view->beat != NULL &&
        heartbeat_judge(view->beat, report.seen, view->world)) {
        add_missing(&report, stall);
    } else {
        add_waited_for(&report, stall);
    }

    errno = 0;
    status =
        fsdp_error_set(err,
                       (stall->reason == COMM_STALL_ALARM && report.lost < 0)
                           ? FSDP_ERR_SIGNALLED
                           : FSDP_ERR_PEER_LOST,
                       "%s", text);
    if (err != NULL) {
        err->rank = (report.lost >= 0)       ? report.lost
                    : (stall->num_peers > 0) ? (int)stall->peers[0]
                                             : -1;
    }
    free(report.ranks);
    free(report.seen);
    return status;
}
