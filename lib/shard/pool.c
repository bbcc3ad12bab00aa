#include "config.h"

#include "lib/shard/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>


typedef struct {
    pool_t *pool;
    uint32_t thread;
    pthread_t id;
} helper_t;

struct pool {
    uint32_t num_helpers;
    helper_t *helpers;
    pthread_mutex_t lock;
    pthread_cond_t wake; /* helpers wait for a loop */
    pthread_cond_t done; /* the caller waits for helpers */
    uint64_t loops;      /* how many were begun */
    uint32_t working;    /* helpers that are not through with this one */
    bool stop;
    pool_item_f item_f;
    void *arg;
    uint32_t num;
    atomic_uint next;
};

static void pool_work(pool_t *pool, uint32_t thread)
{
    for (;;) {
        uint32_t item = atomic_fetch_add(&pool->next, 1);

        if (item >= pool->num) {
            return;
        }
        pool->item_f(pool->arg, item, thread);
    }
}

static void *helper_main(void *arg)
{
    helper_t *helper = arg;
    pool_t *pool = helper->pool;
    uint64_t seen = 0;

    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->loops == seen && !pool->stop) {
            pthread_cond_wait(&pool->wake, &pool->lock);
        }
        if (pool->stop) {
            break;
        }
        seen = pool->loops;
        pthread_mutex_unlock(&pool->lock);
        pool_work(pool, helper->thread);
        pthread_mutex_lock(&pool->lock);
        if (--pool->working == 0) {
            pthread_cond_signal(&pool->done);
        }
    }
    pthread_mutex_unlock(&pool->lock);

    return NULL;
}

fsdp_status_t pool_create(uint32_t threads, pool_t **pool_p, fsdp_error_t *err)
{
    pool_t *pool = calloc(1, sizeof(*pool));
    helper_t *helpers = calloc(threads, sizeof(*helpers));

    if (pool == NULL || helpers == NULL) {
        free(pool);
        free(helpers);
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "no memory for threads");
    }
    pool->helpers = helpers;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);

    for (uint32_t i = 0; i + 1 < threads; i++) {
        helpers[i] = (helper_t){.pool = pool, .thread = i + 1};
        if (pthread_create(&helpers[i].id, NULL, helper_main, &helpers[i])) {
            pool_destroy(pool);
            return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                  "cannot start thread %u of %u", i + 1,
                                  threads);
        }
        pool->num_helpers++;
    }

    *pool_p = pool;
    return FSDP_OK;
}

void pool_destroy(pool_t *pool)
{
    if (pool == NULL) {
        return;
    }

    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->num_helpers; i++) {
        pthread_join(pool->helpers[i].id, NULL);
    }
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    free(pool->helpers);
    free(pool);
}

void pool_run(pool_t *pool, pool_item_f item_f, void *arg, uint32_t num)
{
    if (pool->num_helpers == 0) {
        for (uint32_t item = 0; item < num; item++) {
            item_f(arg, item, 0);
        }
        return;
    }

    pthread_mutex_lock(&pool->lock);
    pool->item_f = item_f;
    pool->arg = arg;
    pool->num = num;
    atomic_store(&pool->next, 0);
    pool->working = pool->num_helpers;
    pool->loops++;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);

    pool_work(pool, 0);

    pthread_mutex_lock(&pool->lock);
    while (pool->working > 0) {
        pthread_cond_wait(&pool->done, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
}
