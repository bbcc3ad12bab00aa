#include "config.h"

#include "bin/train.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/util/check.h"
#include "lib/util/clock.h"

/* Seconds in which the other ranks can say their part after one has failed. */
#define GRACE 1

static volatile sig_atomic_t stopped;

static void on_sigterm(int signo)
{
    stopped = 1;
    fsdp_job_signalled(signo);
}

bool setup_stopped(void)
{
    return stopped;
}

/* --- The job -------------------------------------------------------------- */

static fsdp_status_t open_log(train_t *train, fsdp_error_t *err)
{
    const char *path = train->set->log;

    if (path == NULL || train->info.rank != 0) {
        return FSDP_OK;
    }

    train->log = fopen(path, "ae");
    if (train->log == NULL) {
        return fsdp_error_set(err, FSDP_ERR_IO, "cannot write log %s: %m",
                              path);
    }

    return FSDP_OK;
}

fsdp_status_t setup_job(train_t *train, fsdp_error_t *err)
{
    const settings_t *set = train->set;
    fsdp_job_config_t config = FSDP_JOB_CONFIG_INIT;
    struct sigaction action = {.sa_handler = on_sigterm};
    fsdp_status_t status;

    config.deadline = set->deadline;
    config.run_dir = set->save_dir;
    if (config.run_dir == NULL && getenv("PMIX_RANK") != NULL &&
        access(".", W_OK) == 0) {
        config.run_dir = ".";
    }
    /* Before the start: ranks that wait for one that died there say so. */
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
    FSDP_TRY(fsdp_job_open(&config, &train->job, err));
    fsdp_job_get_info(train->job, &train->info);

    /* Lines are for people who watch, and for what a killed job leaves. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    status = open_log(train, err);

    return setup_agree(train, status, err);
}

fsdp_status_t setup_agree(train_t *train, fsdp_status_t status,
                          fsdp_error_t *err)
{
    fsdp_error_t mine = *err;

    return fsdp_job_agree(train->job, status, &mine, err);
}

/* --- Data and model ------------------------------------------------------- */

fsdp_status_t setup_data(train_t *train, fsdp_error_t *err)
{
    const settings_t *set = train->set;

    FSDP_TRY(data_open(set->data.items, set->data.num,
                       hyper_u32(set, HYPER_SEQ), train->model.vocab,
                       &train->data, err));
    if (train->model.vocab == 0) {
        train->model.vocab = data_vocab(train->data);
    }
    train->entropy = data_order0_entropy(train->data);
    config_compare_data(train);

    return FSDP_OK;
}

static fsdp_status_t create_model(train_t *train, uint32_t batch, uint32_t seq,
                                  bool backward, fsdp_error_t *err)
{
    const settings_t *set = train->set;
    fsdp_config_t config = FSDP_CONFIG_INIT;
    void *tokens;

    FSDP_TRY(gpt2_config_check(&train->model, err));
    config.strategy = set->strategy;
    config.shard = set->shard;
    config.micro_batches = hyper_u32(set, HYPER_MICRO_BATCHES);
    config.prefetch = set->prefetch;
    config.param_dtype = train->param_dtype;
    config.reduce_dtype = train->reduce_dtype;
    config.reshard_root = set->reshard_root;
    config.seed = (uint64_t)set->hyper[HYPER_SEED];
    config.async_save = backward && set->save_dir != NULL && !set->sync_save;
    config.threads = set->threads;
    config.beta1 = set->hyper[HYPER_BETA1];
    config.beta2 = set->hyper[HYPER_BETA2];
    config.eps = set->hyper[HYPER_EPS];
    config.weight_decay = set->hyper[HYPER_WEIGHT_DECAY];
    FSDP_TRY(fsdp_create(train->job, &config, &train->fsdp, err));
    FSDP_TRY(gpt2_create(train->fsdp, train->param_dtype, &train->model, batch,
                         seq, backward, set->threads, &train->gpt2, err));
    FSDP_TRY(fsdp_mem_alloc(train->fsdp, FSDP_MEM_OTHER,
                            (size_t)batch * (seq + 1) * sizeof(int32_t),
                            &tokens, err));
    train->tokens = tokens;

    return FSDP_OK;
}

fsdp_status_t setup_model(train_t *train, uint32_t batch, uint32_t seq,
                          bool backward, fsdp_error_t *err)
{
    fsdp_status_t status = create_model(train, batch, seq, backward, err);

    FSDP_TRY(setup_agree(train, status, err));

    return fsdp_seal(train->fsdp, err);
}

fsdp_status_t setup_load(train_t *train, fsdp_error_t *err)
{
    fsdp_load_config_t config = FSDP_LOAD_CONFIG_INIT;
    fsdp_load_result_t result = {0};
    double start = clock_now();

    if (train->source == NULL) {
        return FSDP_OK;
    }

    config.path = train->source;
    config.weights_only = !train->resumed;
    FSDP_TRY(fsdp_load(train->fsdp, &config, &result, err));
    free(result.user_json);
    if (result.widened > 0 && train->info.rank == 0) {
        cli_message("%s: widened %" PRIu64 " tensors to fp32", train->source,
                    result.widened);
    }
    if (train->set->mode != MODE_SAMPLE) {
        report_line(train, "loaded %s in %.2f s", train->source,
                    clock_now() - start);
    }

    return FSDP_OK;
}

/* --- The end -------------------------------------------------------------- */

/* Can nobody wait for anybody any more? */
static bool is_broken(fsdp_status_t status)
{
    return status == FSDP_ERR_PEER_LOST || status == FSDP_ERR_MISMATCH ||
           status == FSDP_ERR_SIGNALLED;
}

/* Where the error arose, if all agreed on that of one rank. */
static void say_error(const train_t *train, const fsdp_error_t *err)
{
    if (err->rank > 0 && train->info.world > 1) {
        cli_message("rank %d on %s: %s", err->rank,
                    fsdp_job_host(train->job, (uint32_t)err->rank), err->text);
    } else {
        cli_message("%s", err->text);
    }
}

static _Noreturn void end_broken(const train_t *train, fsdp_status_t status,
                                 const fsdp_error_t *err)
{
    if (strncmp(err->text, "rank ", 5) == 0) {
        cli_message("%s", err->text); /* it begins so by itself */
    } else {
        cli_message("rank %u on %s: %s", train->info.rank, train->info.host,
                    err->text);
    }
    if (train->log != NULL) {
        fflush(train->log);
    }
    fflush(stdout);
    sleep(GRACE);
    _exit((int)fsdp_status_exit(status));
}

int setup_end(train_t *train, fsdp_status_t status, int code,
              const fsdp_error_t *err)
{
    if (train->job == NULL) {
        return cli_fail(err);
    }

    if (is_broken(status)) {
        end_broken(train, status, err);
    }

    if (status != FSDP_OK) {
        code = (int)fsdp_status_exit(status);
        if (train->info.rank == 0) {
            say_error(train, err);
        }
    }

    gpt2_destroy(train->gpt2);
    fsdp_destroy(train->fsdp);
    data_close(train->data);
    fsdp_job_close(train->job);
    json_decref(train->saved);
    free(train->source);
    if (train->log != NULL && fclose(train->log) != 0) {
        cli_message("cannot write log %s: %m", train->set->log);
        code = (code == 0) ? FSDP_EXIT_IO : code;
    }

    return code;
}
