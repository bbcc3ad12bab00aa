#include "config.h"

#include "bin/progress.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "bin/cli.h"
#include "lib/util/clock.h"
#include "lib/util/size.h"

#define REDRAW    0.1 /* seconds between drawings */
#define PATIENCE  0.5 /* seconds before the first one */
#define INTERVAL  10  /* seconds between lines */
#define BAR_MOST  40  /* columns */
#define LINE_MOST 200 /* columns */

static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
#define NUM_SIGNALS (sizeof(signals) / sizeof(*signals))

static struct {
    pthread_mutex_t lock; /* over what follows */
    const char *what;
    bool quiet, draws, drawn;
    bool lines; /* instead of a bar */
    double began, last;
    double done, total; /* bytes, when it was last told */
    struct sigaction old[NUM_SIGNALS];
} bar = {.lock = PTHREAD_MUTEX_INITIALIZER};

static volatile sig_atomic_t caught;

static void catch (int signo)
{
    caught = signo;
}

void progress_begin(const char *what, bool quiet, bool lines)
{
    /* HDF5 takes an interrupted call for one that has failed. */
    struct sigaction action = {.sa_handler = catch, .sa_flags = SA_RESTART};
    const char *term = getenv("TERM");

    bar.what = what;
    bar.quiet = quiet;
    bar.draws = !quiet && isatty(STDERR_FILENO) && term != NULL &&
                strcmp(term, "dumb") != 0;
    bar.lines = lines && !quiet && !bar.draws;
    bar.drawn = false;
    bar.began = clock_now();
    bar.last = bar.lines ? bar.began - INTERVAL : bar.began + PATIENCE - REDRAW;
    bar.done = bar.total = 0;

    /* A signal that is ignored (nohup) stays so. */
    for (size_t i = 0; i < NUM_SIGNALS; i++) {
        sigaction(signals[i], NULL, &bar.old[i]);
        if (bar.old[i].sa_handler != SIG_IGN) {
            sigaction(signals[i], &action, NULL);
        }
    }
}

static int columns(void)
{
    struct winsize size;

    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) {
        return 80;
    }

    return (size.ws_col < LINE_MOST) ? size.ws_col : LINE_MOST;
}

/* "writing  42%  1.10 GiB/s  0:00:07 left" */
static void describe(double seconds, char line[LINE_MOST + 1])
{
    double part = (bar.total > 0) ? fmin(bar.done / bar.total, 1) : 0;
    double rate = (seconds > 0) ? bar.done / seconds : 0;
    double left = (rate > 0) ? ceil((bar.total - bar.done) / rate) : 0;
    char rate_text[SIZE_TEXT_MAX];

    left = fmin(fmax(left, 0), 359999);
    size_format((uint64_t)rate, rate_text);
    snprintf(line, LINE_MOST + 1, "%s %3.0f%%  %s/s  %.0f:%02.0f:%02.0f left",
             bar.what, floor(100 * part), rate_text, floor(left / 3600),
             floor(fmod(left, 3600) / 60), fmod(left, 60));
}

static void draw(double seconds)
{
    double part = (bar.total > 0) ? fmin(bar.done / bar.total, 1) : 0;
    char line[LINE_MOST + 1];
    int room, full;

    describe(seconds, line);
    if (bar.lines) {
        cli_message("%s", line);
        return;
    }

    /* The bar takes what the words leave, and the last column stays free:
     * writing there would wrap on some terminals. */
    room = columns() - 1 - (int)strlen(line) - 3;
    room = (room < BAR_MOST) ? room : BAR_MOST;
    full = (int)(part * room);
    if (room >= 5) {
        fprintf(stderr, "\r%s [%.*s%*s]\033[K", line, full,
                "########################################", room - full, "");
    } else {
        fprintf(stderr, "\r%.*s\033[K", columns() - 1, line);
    }
    fflush(stderr);
    bar.drawn = true;
}

bool progress_update(uint64_t done, uint64_t total, void *arg)
{
    double t;

    (void)arg;
    if ((bar.draws && pthread_mutex_trylock(&bar.lock) == 0) ||
        (bar.lines && pthread_mutex_lock(&bar.lock) == 0)) {
        t = clock_now();
        /* Threads may come late with less than others have told. */
        bar.done = ((double)total == bar.total) ? fmax(bar.done, (double)done)
                                                : (double)done;
        bar.total = (double)total;
        if (t - bar.last >= (bar.lines ? INTERVAL : REDRAW)) {
            draw(t - bar.began);
            bar.last = t;
        }
        pthread_mutex_unlock(&bar.lock);
    }

    return caught == 0;
}

void progress_erase(void)
{
    pthread_mutex_lock(&bar.lock);
    if (bar.drawn) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
        bar.drawn = false;
    }
    pthread_mutex_unlock(&bar.lock);
}

void progress_end(void)
{
    progress_erase();
    if (bar.lines && bar.last > bar.began) {
        draw(clock_now() - bar.began);
    }
    for (size_t i = 0; i < NUM_SIGNALS; i++) {
        sigaction(signals[i], &bar.old[i], NULL);
    }
    if (caught != 0) {
        if (!bar.quiet) {
            cli_message("stopped by a signal: %s", strsignal(caught));
        }
        raise(caught);
    }
}
