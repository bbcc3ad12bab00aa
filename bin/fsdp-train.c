/*
 * fsdp-train - train a GPT-2 model, sharded over the ranks of a job
 */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bin/cli.h"
#include "bin/train.h"

/* Options without a letter; those of hyper_info[] are OPT_HYPER + index. */
enum {
    OPT_MODEL = 256,
    OPT_LAYERS,
    OPT_WIDTH,
    OPT_HEADS,
    OPT_POSITIONS,
    OPT_VOCAB,
    OPT_STEPS,
    OPT_STRATEGY,
    OPT_PREFETCH,
    OPT_RESHARD_ROOT,
    OPT_PARAM_DTYPE,
    OPT_REDUCE_DTYPE,
    OPT_DTYPE,
    OPT_THREADS,
    OPT_SAVE,
    OPT_SAVE_EVERY,
    OPT_SAVE_FILES,
    OPT_SYNC_SAVE,
    OPT_RESUME,
    OPT_INIT_FROM,
    OPT_VALID,
    OPT_VALID_COUNT,
    OPT_EVAL,
    OPT_SAMPLE,
    OPT_TOKENS,
    OPT_TEMPERATURE,
    OPT_REPLAY,
    OPT_DEADLINE,
    OPT_JSON,
    OPT_LOG,
    OPT_HYPER = 512
};

static const char doc[] =
    "Train a GPT-2 model on TEXT (bytes), or on token files whose names end in "
    ".bin, sharded over the ranks that srun or mpirun started; alone without a "
    "launcher.\v"
    "Exit status: 0 done; 1 a replay is outside its tolerances; 2 trouble; 64 "
    "usage; 65 bad text or checkpoint; 69 launcher or peer unavailable; 74 "
    "files; 78 settings that do not fit each other.";

/* clang-format off */
static const struct argp_option options[] = {
    {0, 0, 0, 0, "What to do, if not to train:", 1},
    {"eval", OPT_EVAL, 0, 0, "Loss on the validation part of the text", 0},
    {"sample", OPT_SAMPLE, "PROMPT", 0,
     "Write text that goes on from PROMPT; one process", 0},
    {"tokens", OPT_TOKENS, "N", 0, "Tokens to write (default 200)", 0},
    {"temperature", OPT_TEMPERATURE, "T", 0,
     "0 always takes the likeliest token (default 0.8)", 0},
    {"replay", OPT_REPLAY, "DIR", 0,
     "Train what DIR records and compare each quantity", 0},

    {0, 0, 0, 0, "Model:", 2},
    {"model", OPT_MODEL, "NAME", 0,
     "gpt2, gpt2-medium, gpt2-large, gpt2-xl, or a config.json", 0},
    {"layers", OPT_LAYERS, "N", 0, "Blocks (default 4)", 0},
    {"width", OPT_WIDTH, "N", 0, "Size of a token's vector (default 256)", 0},
    {"heads", OPT_HEADS, "N", 0, "Attention heads (default 4)", 0},
    {"positions", OPT_POSITIONS, "N", 0,
     "Longest sequence (default: that of --seq)", 0},
    {"vocab", OPT_VOCAB, "N", 0, "Vocabulary (default: that of the text)", 0},

    {0, 0, 0, 0, "Training:", 3},
    {"steps", OPT_STEPS, "N", 0,
     "Stop after step N, those before a resume included (default 1000)", 0},
    {"batch", OPT_HYPER + HYPER_BATCH, "N", 0,
     "Sequences of a micro-batch (default 8)", 0},
    {"seq", OPT_HYPER + HYPER_SEQ, "N", 0,
     "Tokens of a sequence (default 128)", 0},
    {"micro-batches", OPT_HYPER + HYPER_MICRO_BATCHES, "G", 0,
     "Micro-batches of a step, over all ranks (default 8)", 0},
    {"lr", OPT_HYPER + HYPER_LR, "X", 0,
     "Highest learning rate (default 0.001)", 0},
    {"min-lr", OPT_HYPER + HYPER_MIN_LR, "X", 0,
     "Learning rate at the end (default: a tenth)", 0},
    {"warmup", OPT_HYPER + HYPER_WARMUP, "N", 0,
     "Steps of linear warm-up (default 20)", 0},
    {"decay-steps", OPT_HYPER + HYPER_DECAY_STEPS, "N", 0,
     "Step at which the cosine ends (default: --steps)", 0},
    {"beta1", OPT_HYPER + HYPER_BETA1, "X", 0, "Of AdamW (default 0.9)", 0},
    {"beta2", OPT_HYPER + HYPER_BETA2, "X", 0, "Of AdamW (default 0.95)", 0},
    {"eps", OPT_HYPER + HYPER_EPS, "X", 0, "Of AdamW (default 1e-8)", 0},
    {"weight-decay", OPT_HYPER + HYPER_WEIGHT_DECAY, "X", 0,
     "Of parameters of two or more dimensions (default 0.1)", 0},
    {"clip", OPT_HYPER + HYPER_CLIP, "X", 0,
     "Largest norm of the gradient; 0: any (default 1)", 0},
    {"seed", OPT_HYPER + HYPER_SEED, "N", 0,
     "Of initial values, data order and samples (default 1)", 0},
    {"valid", OPT_VALID, "N", 0,
     "Loss on the validation part each N steps and at the end (default 100; "
     "0: never)",
     0},
    {"valid-count", OPT_VALID_COUNT, "N", 0,
     "Micro-batches of a validation (default 8)", 0},

    {0, 0, 0, 0, "Sharding:", 4},
    {"strategy", OPT_STRATEGY, "NAME", 0,
     "full, grad-op, hybrid:F or none (default full)", 0},
    {"prefetch", OPT_PREFETCH, "N", 0,
     "Units gathered ahead: 0 to 4 (default 1)", 0},
    {"reshard-root", OPT_RESHARD_ROOT, 0, 0,
     "Do not keep the root unit whole between forward and backward", 0},
    {"dtype", OPT_DTYPE, "NAME", 0, "Both of the following", 0},
    {"param-dtype", OPT_PARAM_DTYPE, "NAME", 0,
     "Of gathered parameters and activations: fp32 or bf16 (default fp32)", 0},
    {"reduce-dtype", OPT_REDUCE_DTYPE, "NAME", 0,
     "Of gradients before they are summed: fp32 or bf16 (default fp32)", 0},
    {"threads", OPT_THREADS, "N", 0, "Compute threads a rank (default 1)", 0},

    {0, 0, 0, 0, "Checkpoints:", 5},
    {"save", OPT_SAVE, "DIR", 0, "Save to DIR/step-NNNNNNNN, at the end too",
     0},
    {"save-every", OPT_SAVE_EVERY, "N", 0, "And each N steps", 0},
    {"files", OPT_SAVE_FILES, "N", 0,
     "Shard files (default: one a rank, at most 256)", 0},
    {"sync-save", OPT_SYNC_SAVE, 0, 0,
     "Wait until a checkpoint is durable, instead of copying it aside", 0},
    {"resume", OPT_RESUME, "PATH", 0,
     "Go on from a checkpoint, from the newest one in a directory, or, for "
     "'latest', from the newest one in that of --save, if there is one",
     0},
    {"init-from", OPT_INIT_FROM, "PATH", 0,
     "Take parameters only, from a checkpoint of any format", 0},

    {0, 0, 0, 0, "Job and output:", 6},
    {"deadline", OPT_DEADLINE, "SECONDS", 0,
     "Longest wait for other ranks (default 300)", 0},
    {"json", OPT_JSON, 0, 0, "One JSON object a line on standard output", 0},
    {"log", OPT_LOG, "FILE", 0, "The same lines, appended to FILE", 0},
    {"quiet", 'q', 0, 0, "No lines on standard output", 0},
    {0},
};
/* clang-format on */

static int parse_precision(struct argp_state *state, const char *text)
{
    if (strcmp(text, "fp32") == 0 || strcmp(text, "f32") == 0) {
        return FSDP_F32;
    }
    if (strcmp(text, "bf16") == 0) {
        return FSDP_BF16;
    }
    argp_error(state, "the element type must be fp32 or bf16, not '%s'", text);

    return FSDP_F32;
}

static void parse_hyper(struct argp_state *state, hyper_t hyper,
                        const char *text, settings_t *set)
{
    const hyper_info_t *info = &hyper_info[hyper];

    if (info->whole) {
        set->hyper[hyper] = (double)cli_parse_count(state, info->what, text,
                                                    (uint64_t)info->least,
                                                    (uint64_t)info->most);
    } else {
        set->hyper[hyper] =
            cli_parse_double(state, info->what, text, info->least, info->most);
    }
}

static uint32_t parse_u32(struct argp_state *state, const char *what,
                          const char *text, uint64_t least, uint64_t most)
{
    return (uint32_t)cli_parse_count(state, what, text, least, most);
}

static void parse_mode(struct argp_state *state, settings_t *set,
                       train_mode_t mode)
{
    if (set->mode != MODE_TRAIN && set->mode != mode) {
        argp_error(state,
                   "only one of --eval, --sample and --replay can be done");
    }
    set->mode = mode;
}

static error_t parse_model(int key, char *arg, struct argp_state *state)
{
    settings_t *set = state->input;

    switch (key) {
    case OPT_MODEL:
        set->model = arg;
        break;
    case OPT_LAYERS:
        set->layers = parse_u32(state, "the number of layers", arg, 1, 10000);
        break;
    case OPT_WIDTH:
        set->width = parse_u32(state, "the width", arg, 1, 1u << 20);
        break;
    case OPT_HEADS:
        set->heads = parse_u32(state, "the number of heads", arg, 1, 1u << 16);
        break;
    case OPT_POSITIONS:
        set->positions =
            parse_u32(state, "the number of positions", arg, 1, 1u << 24);
        break;
    case OPT_VOCAB:
        set->vocab = parse_u32(state, "the vocabulary", arg, 1, 1u << 24);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }

    return 0;
}

static error_t parse_sharding(int key, char *arg, struct argp_state *state)
{
    settings_t *set = state->input;
    fsdp_error_t err;

    switch (key) {
    case OPT_STRATEGY:
        if (fsdp_strategy_parse(arg, &set->strategy, &set->shard, &err) !=
            FSDP_OK) {
            argp_error(state, "%s", err.text);
        }
        break;
    case OPT_PREFETCH:
        set->prefetch = parse_u32(state, "the prefetch depth", arg, 0, 4);
        break;
    case OPT_RESHARD_ROOT:
        set->reshard_root = true;
        break;
    case OPT_DTYPE:
        set->param_dtype = set->reduce_dtype = parse_precision(state, arg);
        break;
    case OPT_PARAM_DTYPE:
        set->param_dtype = parse_precision(state, arg);
        break;
    case OPT_REDUCE_DTYPE:
        set->reduce_dtype = parse_precision(state, arg);
        break;
    case OPT_THREADS:
        set->threads = parse_u32(state, "the number of threads", arg, 1, 1024);
        break;
    case OPT_DEADLINE:
        set->deadline = cli_parse_double(state, "the deadline", arg, 0.1, 1e6);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }

    return 0;
}

static error_t parse_checkpoints(int key, char *arg, struct argp_state *state)
{
    settings_t *set = state->input;

    switch (key) {
    case OPT_SAVE:
        set->save_dir = arg;
        break;
    case OPT_SAVE_EVERY:
        set->save_every = (int64_t)cli_parse_count(
            state, "the steps between checkpoints", arg, 1, INT64_MAX);
        break;
    case OPT_SAVE_FILES:
        set->save_files =
            parse_u32(state, "the number of shard files", arg, 1, 65535);
        break;
    case OPT_SYNC_SAVE:
        set->sync_save = true;
        break;
    case OPT_RESUME:
        set->resume = arg;
        break;
    case OPT_INIT_FROM:
        set->init_from = arg;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }

    return 0;
}

static error_t parse_modes(int key, char *arg, struct argp_state *state)
{
    settings_t *set = state->input;

    switch (key) {
    case OPT_EVAL:
        parse_mode(state, set, MODE_EVAL);
        break;
    case OPT_SAMPLE:
        parse_mode(state, set, MODE_SAMPLE);
        set->prompt = arg;
        break;
    case OPT_TOKENS:
        set->sample_tokens =
            parse_u32(state, "the number of tokens", arg, 1, 1u << 24);
        break;
    case OPT_TEMPERATURE:
        set->temperature =
            cli_parse_double(state, "the temperature", arg, 0, 100);
        break;
    case OPT_REPLAY:
        parse_mode(state, set, MODE_REPLAY);
        set->replay = arg;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }

    return 0;
}

/* What belongs together, once all is read. */
static void check_usage(struct argp_state *state, const settings_t *set)
{
    bool text = set->mode == MODE_TRAIN || set->mode == MODE_EVAL;

    if (text && set->data.num == 0) {
        argp_error(state, "no text was given");
    }
    if (!text && set->data.num > 0) {
        argp_error(state, "%s needs no text",
                   set->mode == MODE_SAMPLE ? "--sample" : "--replay");
    }
    if (set->resume != NULL && set->init_from != NULL) {
        argp_error(state, "--resume and --init-from exclude each other");
    }
    if (set->resume != NULL && set->mode != MODE_TRAIN) {
        argp_error(state, "--resume is for training; use --init-from");
    }
    if ((set->mode == MODE_EVAL || set->mode == MODE_SAMPLE) &&
        set->init_from == NULL) {
        argp_error(state, "which model? Name it with --init-from");
    }
    if (set->resume != NULL && strcmp(set->resume, "latest") == 0 &&
        set->save_dir == NULL) {
        argp_error(state, "--resume latest needs --save");
    }
    if (set->save_every > 0 && set->save_dir == NULL) {
        argp_error(state, "--save-every needs --save");
    }
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    settings_t *set = state->input;

    if (key >= OPT_HYPER && key < OPT_HYPER + NUM_HYPERS) {
        parse_hyper(state, (hyper_t)(key - OPT_HYPER), arg, set);
        return 0;
    }

    switch (key) {
    case OPT_STEPS:
        set->steps = (int64_t)cli_parse_count(state, "the number of steps", arg,
                                              0, INT32_MAX);
        break;
    case OPT_VALID:
        set->valid_every = (int64_t)cli_parse_count(
            state, "the steps between validations", arg, 0, INT32_MAX);
        break;
    case OPT_VALID_COUNT:
        set->valid_count =
            parse_u32(state, "the number of micro-batches", arg, 1, 1u << 24);
        break;
    case OPT_JSON:
        set->json = true;
        break;
    case OPT_LOG:
        set->log = arg;
        break;
    case 'q':
        set->quiet = true;
        break;
    case ARGP_KEY_ARG:
        cli_list_add(&set->data, arg);
        break;
    case ARGP_KEY_END:
        check_usage(state, set);
        break;
    default:
        if (parse_model(key, arg, state) == 0 ||
            parse_sharding(key, arg, state) == 0 ||
            parse_checkpoints(key, arg, state) == 0) {
            break;
        }
        return parse_modes(key, arg, state);
    }

    return 0;
}

int main(int argc, char **argv)
{
    static const struct argp argp = {options, parse_option, "[TEXT...]", doc,
                                     NULL,    NULL,         NULL};
    settings_t set;
    train_t train = {.set = &set};
    fsdp_status_t status;
    fsdp_error_t err = {0};
    bool within = true;
    int code;

    settings_init(&set);
    cli_parse("fsdp-train", &argp, argc, argv, &set);

    status = setup_job(&train, &err);
    if (status == FSDP_OK) {
        switch (set.mode) {
        case MODE_EVAL:
            status = loop_eval(&train, &err);
            break;
        case MODE_SAMPLE:
            status = sample_run(&train, &err);
            break;
        case MODE_REPLAY:
            status = replay_run(&train, &within, &err);
            break;
        default:
            status = loop_train(&train, &err);
            break;
        }
    }

    code = setup_end(&train, status,
                     within ? FSDP_EXIT_DONE : FSDP_EXIT_DIFFERS, &err);
    free(set.data.items);

    return cli_finish(code);
}
