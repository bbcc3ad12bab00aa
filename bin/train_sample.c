#include "config.h"

#include "bin/train.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/util/check.h"

#define BYTES 256 /* vocabulary of text */

/* The text so far, as tokens, and room for the rest. */
typedef struct {
    int32_t *tokens;
    uint32_t num;
    float *logits;
    double *weights;
} text_t;

/* A number in [0, 1) for each token, from seed and place: splitmix64. */
static double uniform(uint64_t seed, uint32_t place)
{
    uint64_t x =
        seed * 0xd1342543de82ef95u + 0x9e3779b97f4a7c15u * (place + 1u);

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (double)((x ^ x >> 31) >> 11) * 0x1p-53;
}

/* A token by its probability at this temperature. */
static uint32_t choose(const text_t *text, uint32_t vocab, double temperature,
                       double at)
{
    double sum = 0, most;
    uint32_t best = 0;

    for (uint32_t v = 1; v < vocab; v++) {
        best = (text->logits[v] > text->logits[best]) ? v : best;
    }
    if (temperature <= 0) {
        return best;
    }

    most = (double)text->logits[best];
    for (uint32_t v = 0; v < vocab; v++) {
        text->weights[v] = exp(((double)text->logits[v] - most) / temperature);
        sum += text->weights[v];
    }
    at *= sum;
    for (uint32_t v = 0; v < vocab; v++) {
        at -= text->weights[v];
        if (at < 0) {
            return v;
        }
    }

    return best;
}

static void put_token(const train_t *train, int32_t token)
{
    if (train->model.vocab == BYTES) {
        putchar(token);
    } else {
        printf("%d ", token);
    }
}

/* The next token, from as many before it as the model has positions for. */
static fsdp_status_t next_token(train_t *train, text_t *text, uint32_t place,
                                fsdp_error_t *err)
{
    const settings_t *set = train->set;
    uint32_t most = train->model.positions, micro;
    uint32_t num = (text->num < most) ? text->num : most;

    FSDP_TRY(fsdp_micro_begin(train->fsdp, FSDP_EVAL, 0, 1, &micro, err));
    FSDP_TRY(gpt2_logits(train->gpt2, text->tokens + text->num - num, num,
                         text->logits, err));
    FSDP_TRY(fsdp_micro_end(train->fsdp, err));
    text->tokens[text->num++] =
        (int32_t)choose(text, train->model.vocab, set->temperature,
                        uniform((uint64_t)set->hyper[HYPER_SEED], place));

    return FSDP_OK;
}

/* A prompt is text for a model of bytes, else numbers between blanks. */
static fsdp_status_t read_prompt(const train_t *train, text_t *text,
                                 fsdp_error_t *err)
{
    const char *prompt = train->set->prompt, *at = prompt;
    uint32_t vocab = train->model.vocab;
    char *end;

    if (vocab == BYTES) {
        for (; *at != '\0'; at++) {
            text->tokens[text->num++] = (unsigned char)*at;
        }
    } else {
        for (; at[strspn(at, " ,")] != '\0'; at = end) {
            unsigned long token = strtoul(at + strspn(at, " ,"), &end, 10);

            if (end == at || token >= vocab) {
                return fsdp_error_set(err, FSDP_ERR_BAD_DATA,
                                      "the prompt '%s' is no list of tokens "
                                      "below %u, which this model reads",
                                      prompt, vocab);
            }
            text->tokens[text->num++] = (int32_t)token;
        }
    }
    if (text->num == 0) {
        text->tokens[text->num++] = (vocab == BYTES) ? '\n' : 0;
    }

    return FSDP_OK;
}

static json_t *sample_event(const train_t *train, const text_t *text)
{
    json_t *event = json_object(), *tokens = json_array();
    char *bytes = cli_realloc(NULL, (size_t)text->num + 1, 1), *clean;

    cli_json_set(event, "event", cli_json_text("sample"));
    for (uint32_t i = 0; i < text->num; i++) {
        cli_json_append(tokens, json_integer(text->tokens[i]));
        bytes[i] = (char)text->tokens[i];
    }
    bytes[text->num] = '\0';
    cli_json_set(event, "tokens", tokens);
    if (train->model.vocab == BYTES) {
        clean = cli_printable(bytes);
        cli_json_set(event, "text", cli_json_text(clean));
        free(clean);
    }
    free(bytes);

    return event;
}

static fsdp_status_t write_text(train_t *train, text_t *text, fsdp_error_t *err)
{
    const settings_t *set = train->set;
    bool print = !set->json && !set->quiet;

    FSDP_TRY(read_prompt(train, text, err));
    for (uint32_t i = 0; print && i < text->num; i++) {
        put_token(train, text->tokens[i]);
    }
    for (uint32_t i = 0; i < set->sample_tokens; i++) {
        if (setup_stopped()) {
            return fsdp_error_set(err, FSDP_ERR_SIGNALLED,
                                  "stopped by SIGTERM after %" PRIu32 " tokens",
                                  i);
        }
        FSDP_TRY(next_token(train, text, i, err));
        if (print) {
            put_token(train, text->tokens[text->num - 1]);
        }
    }
    if (print) {
        putchar('\n');
    }
    report_event(train, sample_event(train, text));

    return FSDP_OK;
}

fsdp_status_t sample_run(train_t *train, fsdp_error_t *err)
{
    settings_t *set = train->set;
    fsdp_status_t status;
    text_t text = {0};

    if (train->info.world > 1) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "--sample runs in one process, not in %u",
                              train->info.world);
    }

    FSDP_TRY(config_complete(train, err));
    if (train->model.vocab == 0) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "%s does not say what model it holds: name its "
                              "config.json with --model",
                              set->init_from);
    }

    FSDP_TRY(setup_model(train, 1, train->model.positions, false, err));
    FSDP_TRY(setup_load(train, err));
    text.tokens =
        cli_realloc(NULL, strlen(set->prompt) + set->sample_tokens + 1,
                    sizeof(*text.tokens));
    text.logits = cli_realloc(NULL, train->model.vocab, sizeof(*text.logits));
    text.weights = cli_realloc(NULL, train->model.vocab, sizeof(*text.weights));
    status = write_text(train, &text, err);
    free(text.tokens);
    free(text.logits);
    free(text.weights);

    return status;
}
