#include "config.h"

#include "lib/util/crew.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct {
    pthread_t thread;
    crew_work_f work;
    void *arg;
    uint32_t number;
} member_t;

static void *member_main(void *arg)
{
    const member_t *member = arg;

    member->work(member->arg, member->number);
    return NULL;
}

void crew_run(uint32_t jobs, crew_work_f work, void *arg)
{
    member_t *others = calloc((jobs > 1) ? jobs - 1 : 1, sizeof(*others));
    uint32_t num = 0;

    for (; others != NULL && num + 1 < jobs; num++) {
        others[num] = (member_t){.work = work, .arg = arg, .number = num + 1};
        if (pthread_create(&others[num].thread, NULL, member_main,
                           &others[num]) != 0) {
            break;
        }
    }
    work(arg, 0);
    while (num > 0) {
        pthread_join(others[--num].thread, NULL);
    }
    free(others);
}
