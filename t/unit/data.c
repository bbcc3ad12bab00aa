#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/nn/data.h"
#include "lib/util/io.h"
#include "t/tap/tap.h"

static char dir[] = "/tmp/fsdp-data-XXXXXX";

static const char *name_of(const char *name)
{
    static char paths[8][64];
    static int next;
    char *path = paths[next++ % 8];

    snprintf(path, sizeof(*paths), "%s/%s", dir, name);
    return path;
}

static const char *write_file(const char *name, const void *data, size_t size)
{
    const char *path = name_of(name);

    if (io_replace_file(path, data, size, NULL) != FSDP_OK) {
        printf("Bail out! cannot write %s\n", path);
        exit(1);
    }
    return path;
}

/* Tokens first, first + 1, … */
static const char *write_tokens(const char *name, bool header, uint16_t first,
                                int32_t num, int32_t claimed, int32_t version)
{
    char *data = calloc(1024 + 2 * (size_t)num, 1);
    int32_t head[3] = {20240520, version, claimed};
    size_t at = 0;
    const char *path;

    if (header) {
        memcpy(data, head, sizeof(head));
        at = 1024;
    }
    for (int32_t i = 0; i < num; i++) {
        uint16_t token = (uint16_t)(first + i);

        memcpy(data + at + 2 * (size_t)i, &token, sizeof(token));
    }
    path = write_file(name, data, at + 2 * (size_t)num);
    free(data);
    return path;
}

static void test_text(void)
{
    enum { NUM = 1000, SEQ = 20, BATCH = 16 };
    unsigned char text[NUM];
    int32_t tokens[BATCH * (SEQ + 1)], again[BATCH * (SEQ + 1)];
    bool inside = true, follows = true;
    const char *path;
    data_t *data = NULL;

    for (int i = 0; i < NUM; i++) {
        text[i] = (unsigned char)(i % 251);
    }
    path = write_file("text", text, NUM);
    ok(data_open(&path, 1, SEQ, 0, &data, NULL) == FSDP_OK &&
           data_tokens(data, DATA_TRAIN) == 900 &&
           data_tokens(data, DATA_VALID) == 100 && data_vocab(data) == 256,
       "text is split nine to one");

    for (int part = 0; part < 2; part++) {
        for (int micro = 0; micro < 50; micro++) {
            data_batch(data, (data_part_t)part, 5, 3, (uint32_t)micro, BATCH,
                       tokens, NULL);
            for (int row = 0; row < BATCH; row++) {
                const int32_t *t = tokens + row * (SEQ + 1);
                /* Positions repeat after 251: validation has 900 … 999. */
                int place = part ? (t[0] + 251 * 4) % 251 : t[0];

                for (int i = 0; i < SEQ; i++) {
                    follows = follows && t[i + 1] == (t[i] + 1) % 251;
                }
                if (part) {
                    place = (place + 251 - 900 % 251) % 251;
                    inside = inside && place <= 100 - SEQ - 1;
                }
            }
        }
    }
    ok(follows, "sequences are as in the text");
    ok(inside, "validation stays in its part");

    data_batch(data, DATA_TRAIN, 5, 3, 7, BATCH, tokens, NULL);
    data_batch(data, DATA_TRAIN, 5, 3, 7, BATCH, again, NULL);
    ok(memcmp(tokens, again, sizeof(tokens)) == 0, "the same again");
    data_batch(data, DATA_TRAIN, 5, 3, 8, BATCH, again, NULL);
    ok(memcmp(tokens, again, sizeof(tokens)) != 0, "not for another one");
    data_batch(data, DATA_TRAIN, 5, 4, 7, BATCH, again, NULL);
    ok(memcmp(tokens, again, sizeof(tokens)) != 0, "nor another step");
    data_batch(data, DATA_TRAIN, 6, 3, 7, BATCH, again, NULL);
    ok(memcmp(tokens, again, sizeof(tokens)) != 0, "nor another seed");
    data_batch(data, DATA_TRAIN, 5, 3, 7, BATCH / 2, again, NULL);
    ok(memcmp(tokens, again, sizeof(tokens) / 2) == 0,
       "a row does not depend on the number of rows");
    data_close(data);
}

/* Each place of the training part comes up about as often. */
static void test_uniform(void)
{
    enum { NUM = 111, SEQ = 1, DRAWS = 99000 };
    unsigned char text[NUM];
    int counts[256] = {0};
    int32_t tokens[2];
    const char *path;
    data_t *data = NULL;
    double chi = 0;

    for (int i = 0; i < NUM; i++) {
        text[i] = (unsigned char)i;
    }
    path = write_file("places", text, NUM);
    data_open(&path, 1, SEQ, 0, &data, NULL);
    for (int i = 0; i < DRAWS; i++) {
        data_batch(data, DATA_TRAIN, 1, i / 100, (uint32_t)(i % 100), 1, tokens,
                   NULL);
        counts[tokens[0]]++;
    }
    for (int i = 0; i < 99; i++) {
        chi += (counts[i] - 1000.0) * (counts[i] - 1000.0) / 1000;
    }
    /* 98 degrees of freedom: 160 has a probability of 1e-4. */
    ok(counts[99] == 0 && counts[98] > 0 && chi < 160,
       "places are uniform: chi squared %.0f of 98", chi);
    data_close(data);
}

static void test_entropy(void)
{
    enum { NUM = 4000 };
    char text[NUM];
    const char *path;
    data_t *data = NULL;
    double want, got;

    /* Training: 3 a to 1 b; validation: all a, so its entropy is -log 3/4. */
    for (int i = 0; i < NUM; i++) {
        text[i] = (i < NUM * 9 / 10 && i % 4 == 0) ? 'b' : 'a';
    }
    path = write_file("ab", text, NUM);
    data_open(&path, 1, 10, 0, &data, NULL);
    got = data_order0_entropy(data);
    want = -log(2701.0 / (3600 + 256));
    ok(fabs(got - want) < 1e-12, "entropy of single bytes: %.4f", got);
    data_close(data);
}

static void test_tokens(void)
{
    enum { SEQ = 9 };
    const char *paths[3];
    int32_t tokens[SEQ + 1];
    fsdp_error_t err = {0};
    data_t *data = NULL;
    bool good = true, crossed = false;

    paths[0] = write_tokens("a.bin", true, 1000, 30, 30, 1);
    paths[1] = write_tokens("b.bin", false, 1030, 0, 0, 0);
    paths[2] = write_tokens("c.bin", false, 1030, 90, 0, 0);
    ok(data_open(paths, 3, SEQ, 0, &data, &err) == FSDP_OK &&
           data_tokens(data, DATA_TRAIN) == 108 &&
           data_tokens(data, DATA_VALID) == 12 && data_vocab(data) == 1120,
       "llm.c's and nanoGPT's files are one stream %s", err.text);
    for (uint32_t i = 0; i < 400; i++) {
        good = good && data_batch(data, DATA_TRAIN, 1, 0, i, 1, tokens, NULL) ==
                           FSDP_OK;
        for (int j = 0; j < SEQ; j++) {
            good = good && tokens[j + 1] == tokens[j] + 1;
        }
        crossed = crossed || (tokens[0] < 1030 && tokens[SEQ] >= 1030);
    }
    ok(good && crossed, "sequences cross from one file to the next");
    data_close(data);

    data_open(paths, 3, SEQ, 1050, &data, NULL);
    good = false;
    for (uint32_t i = 0; i < 100 && !good; i++) {
        good = data_batch(data, DATA_TRAIN, 1, 0, i, 1, tokens, &err) ==
               FSDP_ERR_BAD_DATA;
    }
    ok(good && strstr(err.text, "c.bin: token ") != NULL &&
           sscanf(strstr(err.text, "token "), "token %d at position %d",
                  &tokens[0], &tokens[1]) == 2 &&
           tokens[0] == 1030 + tokens[1] && tokens[1] >= 20,
       "a token too large: %s", err.text);
    data_close(data);
}

static void test_errors(void)
{
    const char *paths[2] = {name_of("none"), NULL};
    static char letters[64];
    data_t *data = NULL;
    static const struct {
        const char *name;
        int32_t num, claimed, version;
        const char *word;
    } bins[] = {
        {"short.bin",    300, 301,  1, "301 tokens" },
        {"long.bin",     300, 299,  1, "299 tokens" },
        {"negative.bin", 300, -300, 1, "-300 tokens"},
        {"version.bin",  300, 300,  7, "version 7"  },
    };
    fsdp_error_t err = {0};

    ok(data_open(paths, 1, 4, 0, &data, &err) == FSDP_ERR_NOT_FOUND,
       "no such file: %s", err.text);
    paths[0] = dir;
    ok(data_open(paths, 1, 4, 0, &data, &err) == FSDP_ERR_BAD_DATA,
       "a directory: %s", err.text);
    paths[0] = write_file("empty", "", 0);
    ok(data_open(paths, 1, 4, 0, &data, &err) == FSDP_ERR_BAD_DATA,
       "an empty file: %s", err.text);
    paths[0] = write_file("x.gz", "abcdefghijkl", 12);
    ok(data_open(paths, 1, 4, 0, &data, &err) == FSDP_ERR_BAD_DATA &&
           strstr(err.text, "gunzip") != NULL,
       "a compressed file: %s", err.text);
    paths[0] = write_file("nine", letters, 9);
    ok(data_open(paths, 1, 4, 0, &data, &err) == FSDP_ERR_BAD_DATA &&
           strstr(err.text, "at least 10") != NULL,
       "too short: %s", err.text);
    paths[0] = write_file("ten", letters, 10);
    ok(data_open(paths, 1, 4, 0, &data, &err) == FSDP_OK &&
           data_tokens(data, DATA_TRAIN) == 5,
       "just long enough");
    data_close(data);
    paths[1] = write_tokens("ok.bin", true, 0, 100, 100, 1);
    ok(data_open(paths, 2, 4, 0, &data, &err) == FSDP_ERR_BAD_DATA,
       "text and tokens: %s", err.text);
    paths[0] = write_file("odd.bin", letters, 63);
    ok(data_open(paths, 1, 4, 0, &data, &err) == FSDP_ERR_BAD_DATA,
       "half a token: %s", err.text);
    for (size_t i = 0; i < sizeof(bins) / sizeof(*bins); i++) {
        paths[0] = write_tokens(bins[i].name, true, 0, bins[i].num,
                                bins[i].claimed, bins[i].version);
        ok(data_open(paths, 1, 4, 0, &data, &err) == FSDP_ERR_BAD_DATA &&
               strstr(err.text, bins[i].word) != NULL,
           "a wrong header: %s", err.text);
    }
}

int main(void)
{
    char *command;

    if (mkdtemp(dir) == NULL) {
        printf("Bail out! no directory\n");
        return 1;
    }
    test_text();
    test_uniform();
    test_entropy();
    test_tokens();
    test_errors();
    command = io_path("rm -rf %s", dir);
    ok(system(command) == 0, "clean up");
    free(command);
    return tap_done();
}
