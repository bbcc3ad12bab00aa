#include "config.h"

#include "lib/nn/data.h"

#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/util/check.h"
#include "lib/util/io.h"

/* llm.c: 256 int32 (magic, version, number of tokens, 0 …), then u16. */
#define LLMC_HEADER    1024
#define LLMC_MAGIC     20240520
#define LLMC_MAGIC_U32 20240801 /* tokens of 32 bits */
#define LLMC_VERSION   1

typedef struct {
    char *path;
    void *map; /* NULL if the file is empty */
    size_t size;
    const unsigned char *tokens; /* behind the header */
    uint64_t first;              /* position in the stream */
    uint64_t num;
} part_file_t;

struct data {
    part_file_t *files;
    size_t num_files;
    bool text;
    uint32_t seq, vocab;
    uint32_t found_vocab; /* largest token + 1; 0: not looked for yet */
    uint64_t total, train;
};

static bool ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), end_length = strlen(end);

    return length >= end_length &&
           strcasecmp(name + length - end_length, end) == 0;
}

/* --- Opening -------------------------------------------------------------- */

static fsdp_status_t map_file(part_file_t *file, fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;
    struct stat st;
    int fd;

    FSDP_TRY(io_open(file->path, O_RDONLY, 0, &fd, err));
    if (fstat(fd, &st) != 0) {
        status = fsdp_error_set(err, FSDP_ERR_IO, "cannot look at %s: %m",
                                file->path);
        goto err_fd;
    }
    if (!S_ISREG(st.st_mode)) {
        status = fsdp_error_set(err, FSDP_ERR_BAD_DATA,
                                "%s is not a regular file", file->path);
        goto err_fd;
    }
    if (st.st_size == 0) {
        goto err_fd;
    }

    file->map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (file->map == MAP_FAILED) {
        file->map = NULL;
        status =
            fsdp_error_set(err, FSDP_ERR_IO, "cannot map %s: %m", file->path);
        goto err_fd;
    }
    file->size = (size_t)st.st_size;
    file->tokens = file->map;

err_fd:
    close(fd);
    return status;
}

/* Skip llm.c's header, if there is one; the rest must be what it says. */
static fsdp_status_t find_tokens(part_file_t *file, fsdp_error_t *err)
{
    int32_t header[3] = {0};
    size_t body;

    if (file->size >= LLMC_HEADER) {
        memcpy(header, file->map, sizeof(header));
    }
    if (header[0] == LLMC_MAGIC_U32 ||
        (header[0] == LLMC_MAGIC && header[1] != LLMC_VERSION)) {
        return fsdp_error_set(err, FSDP_ERR_BAD_DATA,
                              "%s: token file of magic %d, version %d: only "
                              "%d, version %d (u16) is read",
                              file->path, header[0], header[1], LLMC_MAGIC,
                              LLMC_VERSION);
    }

    body = file->size;
    if (header[0] == LLMC_MAGIC) {
        body -= LLMC_HEADER;
        file->tokens += LLMC_HEADER;
        if (header[2] < 0 || (uint64_t)header[2] * 2 != body) {
            return fsdp_error_set(err, FSDP_ERR_BAD_DATA,
                                  "%s: the header says %d tokens, but %zu "
                                  "bytes follow it",
                                  file->path, header[2], body);
        }
    }
    if (body % 2 != 0) {
        return fsdp_error_set(err, FSDP_ERR_BAD_DATA,
                              "%s: %zu bytes are no whole number of 16-bit "
                              "tokens",
                              file->path, body);
    }
    file->num = body / 2;
    return FSDP_OK;
}

static fsdp_status_t open_file(data_t *data, part_file_t *file,
                               fsdp_error_t *err)
{
    if (ends_with(file->path, ".gz")) {
        return fsdp_error_set(err, FSDP_ERR_BAD_DATA,
                              "%s is compressed: unpack it first (gunzip -k)",
                              file->path);
    }
    if (ends_with(file->path, ".bin") == data->text) {
        return fsdp_error_set(err, FSDP_ERR_BAD_DATA,
                              "%s and %s: text and token files (.bin) do not "
                              "go together",
                              data->files[0].path, file->path);
    }

    FSDP_TRY(map_file(file, err));
    file->num = file->size;
    if (!data->text) {
        FSDP_TRY(find_tokens(file, err));
    }
    file->first = data->total;
    data->total += file->num;
    return FSDP_OK;
}

static fsdp_status_t open_files(data_t *data, const char *const *paths,
                                size_t num, fsdp_error_t *err)
{
    data->files = calloc(num, sizeof(*data->files));
    if (data->files == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for %zu data files", num);
    }
    data->num_files = num;
    for (size_t i = 0; i < num; i++) {
        data->files[i].path = strdup(paths[i]);
        if (data->files[i].path == NULL) {
            return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                  "no memory for the name of a data file");
        }
        FSDP_TRY(open_file(data, &data->files[i], err));
    }
    return FSDP_OK;
}

/* Training first, then validation; each has room for a sequence. */
static fsdp_status_t divide(data_t *data, fsdp_error_t *err)
{
    uint64_t sequence = (uint64_t)data->seq + 1;
    uint64_t valid = data->total / 10;

    if (data->total < 2 * sequence) {
        return fsdp_error_set(
            err, FSDP_ERR_BAD_DATA,
            "%s%s: %llu tokens are too few: sequences of %u need at least "
            "%llu, one for training and one for validation",
            data->files[0].path, (data->num_files > 1) ? " and others" : "",
            (unsigned long long)data->total, data->seq,
            (unsigned long long)(2 * sequence));
    }
    data->train = data->total - ((valid > sequence) ? valid : sequence);
    return FSDP_OK;
}

fsdp_status_t data_open(const char *const *paths, size_t num, uint32_t seq,
                        uint32_t vocab, data_t **data_p, fsdp_error_t *err)
{
    fsdp_status_t status;
    data_t *data;

    if (num == 0 || seq == 0) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "no data file, or sequences of no tokens");
    }
    data = calloc(1, sizeof(*data));
    if (data == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for the data's description");
    }

    data->seq = seq;
    data->vocab = vocab;
    data->text = !ends_with(paths[0], ".bin");
    FSDP_TRY_GOTO(open_files(data, paths, num, err), err_data);
    FSDP_TRY_GOTO(divide(data, err), err_data);
    *data_p = data;
    return FSDP_OK;

err_data:
    data_close(data);
    return status;
}

void data_close(data_t *data)
{
    if (data == NULL) {
        return;
    }
    for (size_t i = 0; i < data->num_files; i++) {
        if (data->files[i].map != NULL) {
            munmap(data->files[i].map, data->files[i].size);
        }
        free(data->files[i].path);
    }
    free(data->files);
    free(data);
}

/* --- Tokens --------------------------------------------------------------- */

static int32_t token_of(const data_t *data, const part_file_t *file, uint64_t i)
{
    uint16_t token;

    if (data->text) {
        return file->tokens[i];
    }
    memcpy(&token, file->tokens + 2 * i, sizeof(token));
    return token;
}

/* The file that holds a position of the stream. */
static const part_file_t *file_at(const data_t *data, uint64_t at)
{
    size_t low = 0, high = data->num_files;

    while (high - low > 1) {
        size_t middle = (low + high) / 2;

        if (data->files[middle].first <= at) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return &data->files[low];
}

static fsdp_status_t copy_tokens(const data_t *data, uint64_t at, size_t num,
                                 int32_t *tokens, fsdp_error_t *err)
{
    const part_file_t *file = file_at(data, at);

    for (size_t i = 0; i < num; i++) {
        uint64_t in_file = at + i - file->first;

        while (in_file >= file->num) {
            file++;
            in_file = at + i - file->first;
        }
        tokens[i] = token_of(data, file, in_file);
        if (data->vocab != 0 && (uint32_t)tokens[i] >= data->vocab) {
            return fsdp_error_set(err, FSDP_ERR_BAD_DATA,
                                  "%s: token %d at position %llu is not below "
                                  "the vocabulary of %u",
                                  file->path, tokens[i],
                                  (unsigned long long)in_file, data->vocab);
        }
    }
    return FSDP_OK;
}

uint64_t data_tokens(const data_t *data, data_part_t part)
{
    return (part == DATA_TRAIN) ? data->train : data->total - data->train;
}

/* Add up how often each token is there in positions [first, end). */
static void count_tokens(const data_t *data, uint64_t first, uint64_t end,
                         uint64_t *counts)
{
    for (size_t f = 0; f < data->num_files; f++) {
        const part_file_t *file = &data->files[f];
        uint64_t from = (first > file->first) ? first - file->first : 0;
        uint64_t to = (end > file->first) ? end - file->first : 0;

        to = (to < file->num) ? to : file->num;
        for (uint64_t i = from; i < to; i++) {
            counts[token_of(data, file, i)]++;
        }
    }
}

uint32_t data_vocab(data_t *data)
{
    uint32_t largest = 0;

    if (data->text) {
        return 256;
    }
    if (data->found_vocab == 0) {
        for (size_t f = 0; f < data->num_files; f++) {
            for (uint64_t i = 0; i < data->files[f].num; i++) {
                uint32_t token = (uint32_t)token_of(data, &data->files[f], i);

                largest = (token > largest) ? token : largest;
            }
        }
        data->found_vocab = largest + 1;
    }
    return data->found_vocab;
}

double data_order0_entropy(data_t *data)
{
    enum { MOST = 1 << 16 };
    uint32_t vocab = (data->vocab != 0) ? data->vocab : data_vocab(data);
    uint64_t *train = calloc(2 * MOST, sizeof(*train)), *valid;
    double sum = 0;

    if (train == NULL) {
        return NAN;
    }
    valid = train + MOST;
    count_tokens(data, 0, data->train, train);
    count_tokens(data, data->train, data->total, valid);
    for (uint32_t t = 0; t < MOST; t++) {
        if (valid[t] != 0) {
            sum -= (double)valid[t] *
                   log(((double)train[t] + 1) / ((double)data->train + vocab));
        }
    }
    free(train);
    return sum / (double)(data->total - data->train);
}

/* splitmix64's finalizer. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint64_t sample_hash(data_part_t part, uint64_t seed, int64_t step,
                            uint32_t micro, uint32_t row)
{
    const uint64_t golden = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t hash = mix(seed + golden);

    hash = mix(hash + golden * ((uint64_t)step * 2 + (uint64_t)part + 1));
    return mix(hash + golden * (((uint64_t)micro << 32 | row) + 1));
}

fsdp_status_t data_batch(data_t *data, data_part_t part, uint64_t seed,
                         int64_t step, uint32_t micro, uint32_t batch,
                         int32_t *tokens, fsdp_error_t *err)
{
    uint64_t first = (part == DATA_TRAIN) ? 0 : data->train;
    uint64_t places = data_tokens(data, part) - data->seq;
    size_t length = (size_t)data->seq + 1;

    for (uint32_t row = 0; row < batch; row++) {
        uint64_t hash = sample_hash(part, seed, step, micro, row);
        uint64_t at = (uint64_t)((unsigned __int128)hash * places >> 64);

        FSDP_TRY(
            copy_tokens(data, first + at, length, tokens + row * length, err));
    }
    return FSDP_OK;
}
