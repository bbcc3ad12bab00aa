/*
 * llm.c: model_STEP.bin and state_STEP_RANK.bin (llmc.h).
 *
 * Tensors are named params.NAME, m.NAME, v.NAME and master.NAME.  Headers say
 * what the files must hold; their lengths are compared with that exactly.
 */
#include "config.h"

#include "ckpt/format/llmc.h"

#include <dirent.h>
#include <endian.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/format.h"
#include "lib/util/check.h"
#include "lib/util/io.h"
#include "lib/util/json_text.h"

/* One state file's header. */
typedef struct {
    uint32_t world, rank;
    bool master, shuffle;
    int64_t step;
    uint64_t rng, rng_last_update, shard, sample;
    uint64_t size;  /* of the file */
    uint64_t count; /* elements of m, which are those of v and master */
} state_t;

typedef struct {
    const char *dir;
    const char *model; /* file name */
    int64_t step;      /* -1: the name has none */
    llmc_shape_t shape;
    fsdp_dtype_t dtype;
    llmc_tensor_t tensors[LLMC_NUM_TENSORS];
    uint64_t total;
} llmc_t;

/* --- Shapes --------------------------------------------------------------- */

bool llmc_tensors(const llmc_shape_t *shape,
                  llmc_tensor_t tensors[LLMC_NUM_TENSORS], uint64_t *total_p)
{
    enum { LAYER = 1, VOCAB = -1, SEQ = -2 };
    /* Dimensions are multiples of the channels; 0: none. */
    static const struct {
        const char *name;
        int rows, columns; /* VOCAB and SEQ: of the embeddings */
        bool layers;
    } table[LLMC_NUM_TENSORS] = {
        {"wte",      VOCAB, 1, false},
        {"wpe",      SEQ,   1, false},
        {"ln1w",     1,     0, true },
        {"ln1b",     1,     0, true },
        {"qkvw",     3,     1, true },
        {"qkvb",     3,     0, true },
        {"attprojw", 1,     1, true },
        {"attprojb", 1,     0, true },
        {"ln2w",     1,     0, true },
        {"ln2b",     1,     0, true },
        {"fcw",      4,     1, true },
        {"fcb",      4,     0, true },
        {"fcprojw",  1,     4, true },
        {"fcprojb",  1,     0, true },
        {"lnfw",     1,     0, false},
        {"lnfb",     1,     0, false},
    };
    const uint64_t most = UINT64_MAX >> 2;
    uint64_t total = 0;

    if (shape->max_seq_len == 0 || shape->num_layers == 0 ||
        shape->num_heads == 0 || shape->channels == 0 ||
        shape->channels % shape->num_heads != 0 || shape->vocab_size == 0 ||
        shape->padded_vocab_size < shape->vocab_size) {
        return false;
    }

    for (int i = 0; i < LLMC_NUM_TENSORS; i++) {
        llmc_tensor_t *tensor = &tensors[i];
        uint64_t rows = (table[i].rows == VOCAB) ? shape->padded_vocab_size
                        : (table[i].rows == SEQ)
                            ? shape->max_seq_len
                            : (uint64_t)table[i].rows * shape->channels;
        uint64_t columns = (uint64_t)table[i].columns * shape->channels, numel;

        *tensor = (llmc_tensor_t){.name = table[i].name, .layers = 1};
        if (table[i].layers) {
            tensor->layers = tensor->dims[tensor->ndim++] = shape->num_layers;
        }
        tensor->size = tensor->dims[tensor->ndim++] = rows;
        if (columns > 0) {
            tensor->dims[tensor->ndim++] = columns;
            if (__builtin_mul_overflow(rows, columns, &tensor->size)) {
                return false;
            }
        }
        if (__builtin_mul_overflow(tensor->size, tensor->layers, &numel) ||
            __builtin_add_overflow(total, numel, &total) || total > most) {
            return false;
        }
    }

    *total_p = total;
    return true;
}

/* --- Names of files ------------------------------------------------------- */

/* PREFIX, digits, END; the number, or -1.  @a next is set to what follows the
 * digits if END is NULL. */
static int64_t number_in(const char *name, const char *prefix, const char *end,
                         const char **next)
{
    size_t size = strlen(prefix), digits;
    int64_t number = 0;

    if (strncmp(name, prefix, size) != 0) {
        return -1;
    }
    name += size;
    digits = strspn(name, "0123456789");
    if (digits == 0 || digits > 18) {
        return -1;
    }
    for (size_t i = 0; i < digits; i++) {
        number = number * 10 + (name[i] - '0');
    }
    if (end != NULL && strcmp(name + digits, end) != 0) {
        return -1;
    }
    if (next != NULL) {
        *next = name + digits;
    }
    return number;
}

static int64_t model_step(const char *name)
{
    return number_in(name, "model_", ".bin", NULL);
}

static int64_t state_step(const char *name, int64_t *rank_p)
{
    const char *next;
    int64_t step = number_in(name, "state_", NULL, &next);

    *rank_p = (step >= 0) ? number_in(next, "_", ".bin", NULL) : -1;
    return (*rank_p >= 0) ? step : -1;
}

/* What a directory holds of llm.c. */
typedef struct {
    int64_t newest;      /* model of the highest step, -1: none */
    int64_t newest_done; /* of those with a DONE file */
    uint64_t states;     /* state files of the step that was asked for */
    int64_t state_most;  /* their highest rank */
    bool done;           /* and its DONE file is there */
} listing_t;

/* @param step  Whose state files are counted; -1: none. */
static bool list(const char *dir, int64_t step, listing_t *listing)
{
    DIR *stream = opendir(dir);
    const struct dirent *entry;
    int64_t number, rank;

    *listing = (listing_t){.newest = -1, .newest_done = -1, .state_most = -1};
    if (stream == NULL) {
        return false;
    }

    while ((entry = readdir(stream)) != NULL) {
        number = model_step(entry->d_name);
        if (number > listing->newest) {
            listing->newest = number;
        }
        number = number_in(entry->d_name, "DONE_", "", NULL);
        if (number > listing->newest_done) {
            listing->newest_done = number;
        }
        listing->done |= step >= 0 && number == step;
        number = state_step(entry->d_name, &rank);
        if (step >= 0 && number == step) {
            listing->states++;
            listing->state_most =
                (rank > listing->state_most) ? rank : listing->state_most;
        }
    }
    closedir(stream);
    return true;
}

static uint32_t get_u32(const unsigned char *header, unsigned i)
{
    uint32_t value;

    memcpy(&value, header + (size_t)i * 4, sizeof(value));
    return le32toh(value);
}

static uint64_t get_u64(const unsigned char *header, unsigned i)
{
    uint64_t value;

    memcpy(&value, header + (size_t)i * 4, sizeof(value));
    return le64toh(value);
}

static bool is_magic(uint32_t magic)
{
    return magic == LLMC_MODEL || magic == LLMC_STATE || magic == LLMC_LLAMA3;
}

static bool probe(const format_look_t *look)
{
    listing_t listing;

    if (look->is_dir) {
        return list(look->path, -1, &listing) && listing.newest >= 0;
    }
    return look->size >= 8 && is_magic(get_u32(look->head, 0)) &&
           get_u32(look->head, 1) < 256;
}

/* --- Headers -------------------------------------------------------------- */

static fsdp_status_t read_header(const char *path, unsigned char *header,
                                 uint64_t *size_p, fsdp_error_t *err)
{
    fsdp_status_t status;
    struct stat st;
    int fd;

    FSDP_TRY(io_open(path, O_RDONLY, 0, &fd, err));
    if (fstat(fd, &st) != 0) {
        status = fsdp_error_set(err, FSDP_ERR_IO, "%s: %m", path);
    } else if (!S_ISREG(st.st_mode) || st.st_size < LLMC_HEADER) {
        status = fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                "%s: has %lld bytes, fewer than the header of "
                                "an llm.c file: it was cut short",
                                path, (long long)st.st_size);
    } else {
        *size_p = (uint64_t)st.st_size;
        status = io_pread(fd, header, LLMC_HEADER, 0, path, err);
    }
    close(fd);
    return status;
}

static fsdp_status_t check_model(const char *path, const unsigned char *header,
                                 fsdp_error_t *err)
{
    uint32_t magic = get_u32(header, 0), version = get_u32(header, 1);

    if (magic == LLMC_LLAMA3) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s: a Llama 3 model of llm.c: its header lost "
                              "the values that its shapes follow from; only "
                              "GPT-2 models can be read",
                              path);
    }
    if (magic != LLMC_MODEL) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: begins with %u, not with the %u of an "
                              "llm.c model",
                              path, magic, LLMC_MODEL);
    }
    if (version != LLMC_MODEL_F32 && version != LLMC_MODEL_BF16) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s: a model of version %u; only 3 (f32) and 5 "
                              "(bf16) can be read",
                              path, version);
    }

    return FSDP_OK;
}

/* @param size_p  Of the file. */
static fsdp_status_t read_model(llmc_t *llmc, const char *path,
                                uint64_t *size_p, fsdp_error_t *err)
{
    unsigned char header[LLMC_HEADER];
    llmc_shape_t *shape = &llmc->shape;
    uint64_t *const fields[] = {&shape->max_seq_len, &shape->vocab_size,
                                &shape->num_layers,  &shape->num_heads,
                                &shape->channels,    &shape->padded_vocab_size};
    uint64_t bytes;

    FSDP_TRY(read_header(path, header, size_p, err));
    FSDP_TRY(check_model(path, header, err));
    for (unsigned i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
        uint32_t value = get_u32(header, 2 + i);

        *fields[i] = (value <= INT32_MAX) ? value : 0;
    }
    llmc->dtype = (get_u32(header, 1) == LLMC_MODEL_F32) ? FSDP_DTYPE_F32
                                                         : FSDP_DTYPE_BF16;
    if (!llmc_tensors(shape, llmc->tensors, &llmc->total)) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: its header describes no model", path);
    }

    if (!dtype_bytes(llmc->dtype, llmc->total, &bytes) ||
        bytes > UINT64_MAX - LLMC_HEADER || bytes + LLMC_HEADER != *size_p) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: has %" PRIu64 " bytes, its header says "
                              "%" PRIu64,
                              path, *size_p, bytes + LLMC_HEADER);
    }
    return FSDP_OK;
}

/* The length of the shuffle state at @a offset, if it ends with the file. */
static bool shuffle_fits(int fd, const char *path, uint64_t offset,
                         uint64_t size)
{
    unsigned char text[8];
    uint64_t num;

    for (int part = 0; part < 2; part++) {
        if (offset > size || size - offset < sizeof(text) ||
            io_pread(fd, text, sizeof(text), offset, path, NULL) != FSDP_OK) {
            return false;
        }
        num = get_u64(text, 0);
        offset += sizeof(text);
        if (num > (size - offset) / 4) {
            return false;
        }
        offset += num * 4;
    }

    return size - offset == LLMC_SHUFFLE_RNG;
}

/* Does the file hold exactly so many elements of each kind? */
static bool state_fits(const state_t *state, int fd, const char *path,
                       uint64_t count)
{
    uint64_t kinds = state->master ? 3 : 2, end;

    if (__builtin_mul_overflow(count, kinds * 4, &end) ||
        __builtin_add_overflow(end, LLMC_HEADER, &end)) {
        return false;
    }
    return state->shuffle ? shuffle_fits(fd, path, end, state->size)
                          : end == state->size;
}

/* A part of each array, or, where ZeRO was off, all of it. */
static fsdp_status_t measure_state(const llmc_t *llmc, state_t *state,
                                   const char *path, fsdp_error_t *err)
{
    uint64_t total = llmc->total;
    fsdp_status_t status = FSDP_OK;
    int fd;

    FSDP_TRY(io_open(path, O_RDONLY, 0, &fd, err));
    if (total % state->world == 0 &&
        state_fits(state, fd, path, total / state->world)) {
        state->count = total / state->world;
    } else if (state_fits(state, fd, path, total)) {
        state->count = total;
    } else {
        status = fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                "%s: its %" PRIu64 " bytes are neither a part "
                                "of %u of the optimizer's state of %" PRIu64
                                " elements nor all of it: it was cut short or "
                                "is of another model",
                                path, state->size, state->world, total);
    }
    close(fd);
    return status;
}

static fsdp_status_t read_state(const llmc_t *llmc, const char *path,
                                uint32_t rank, state_t *state,
                                fsdp_error_t *err)
{
    unsigned char header[LLMC_HEADER];

    *state = (state_t){0};
    FSDP_TRY(read_header(path, header, &state->size, err));
    if (get_u32(header, 0) != LLMC_STATE) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: begins with %u, not with the %u of an "
                              "llm.c state",
                              path, get_u32(header, 0), LLMC_STATE);
    }
    if (get_u32(header, 1) != LLMC_STATE_FORMAT) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s: a state of version %u; only 1 can be read",
                              path, get_u32(header, 1));
    }

    state->world = get_u32(header, 2);
    state->rank = get_u32(header, 3);
    state->master = get_u32(header, 4) != 0;
    state->shuffle = get_u32(header, 5) != 0;
    state->step = (int32_t)get_u32(header, 10);
    state->rng = get_u64(header, 20);
    state->rng_last_update = get_u64(header, 22);
    state->shard = get_u64(header, 30);
    state->sample = get_u64(header, 32);
    if (state->world == 0 || state->world > INT32_MAX || state->rank != rank ||
        state->step != llmc->step) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: its header says rank %u of %u and step "
                              "%" PRId64 ", its name says rank %u and step "
                              "%" PRId64,
                              path, state->rank, state->world, state->step,
                              rank, llmc->step);
    }

    return measure_state(llmc, state, path, err);
}

/* --- Into the catalog ----------------------------------------------------- */

static fsdp_status_t no_memory(const llmc_t *llmc, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", llmc->dir);
}

/* @param index_p  Of the first one; the others follow. */
static fsdp_status_t add_tensors(catalog_t *cat, const llmc_t *llmc,
                                 const char *kind, fsdp_dtype_t dtype,
                                 uint64_t *index_p, fsdp_error_t *err)
{
    *index_p = cat->num_tensors;
    for (int i = 0; i < LLMC_NUM_TENSORS; i++) {
        const llmc_tensor_t *tensor = &llmc->tensors[i];
        char name[32];

        snprintf(name, sizeof(name), "%s.%s", kind, tensor->name);
        FSDP_TRY(catalog_add_tensor(cat, name, dtype, tensor->ndim,
                                    tensor->dims, NULL, NULL, err));
    }

    return FSDP_OK;
}

/* Each array whole, one after the other from @a offset on. */
static fsdp_status_t add_whole(catalog_t *cat, uint64_t first, uint32_t file,
                               uint64_t offset, fsdp_error_t *err)
{
    for (int i = 0; i < LLMC_NUM_TENSORS; i++) {
        const catalog_piece_t piece = {
            .count = cat->tensors[first + (uint64_t)i].numel,
            .offset = offset,
            .tensor = (uint32_t)first + (uint32_t)i,
            .file = file,
            .crc_first = CATALOG_NONE,
            .box = CATALOG_NONE};

        FSDP_TRY(catalog_add_piece(cat, &piece, err));
        offset += cat->tensors[first + (uint64_t)i].bytes;
    }

    return FSDP_OK;
}

/* One rank's part of each layer of each array. */
static fsdp_status_t add_part(catalog_t *cat, const llmc_t *llmc,
                              uint64_t first, uint32_t file,
                              const state_t *state, uint64_t offset,
                              fsdp_error_t *err)
{
    for (int i = 0; i < LLMC_NUM_TENSORS; i++) {
        const llmc_tensor_t *tensor = &llmc->tensors[i];
        uint64_t count = tensor->size / state->world;
        catalog_piece_t piece = {.count = count,
                                 .tensor = (uint32_t)first + (uint32_t)i,
                                 .file = file,
                                 .crc_first = CATALOG_NONE,
                                 .rank = state->rank,
                                 .box = CATALOG_NONE};

        for (uint64_t layer = 0; layer < tensor->layers; layer++) {
            piece.first = layer * tensor->size + state->rank * count;
            piece.offset = offset;
            offset += count * 4;
            FSDP_TRY(catalog_add_piece(cat, &piece, err));
        }
    }

    return FSDP_OK;
}

/* All that is behind the arrays, as bytes. */
static fsdp_status_t add_shuffle(catalog_t *cat, uint32_t file,
                                 const state_t *state, uint64_t offset,
                                 fsdp_error_t *err)
{
    const uint64_t bytes = state->size - offset;
    catalog_piece_t piece = {.count = bytes,
                             .offset = offset,
                             .file = file,
                             .crc_first = CATALOG_NONE,
                             .rank = state->rank,
                             .box = CATALOG_NONE};
    uint64_t tensor;
    char name[32];

    snprintf(name, sizeof(name), LLMC_SHUFFLE "%" PRIu32, state->rank);
    FSDP_TRY(catalog_add_tensor(cat, name, FSDP_DTYPE_U8, 1, &bytes, NULL,
                                &tensor, err));
    piece.tensor = (uint32_t)tensor;
    return catalog_add_piece(cat, &piece, err);
}

static fsdp_status_t add_state(catalog_t *cat, const llmc_t *llmc,
                               const uint64_t firsts[3], uint32_t file,
                               const state_t *state, fsdp_error_t *err)
{
    uint64_t offset = LLMC_HEADER;

    for (int kind = 0; kind < (state->master ? 3 : 2); kind++) {
        if (state->count == llmc->total && state->rank == 0) {
            FSDP_TRY(add_whole(cat, firsts[kind], file, offset, err));
        } else if (state->count != llmc->total) {
            FSDP_TRY(
                add_part(cat, llmc, firsts[kind], file, state, offset, err));
        }
        offset += state->count * 4;
    }

    return state->shuffle ? add_shuffle(cat, file, state, offset, err)
                          : FSDP_OK;
}

/* With ZeRO-1 llm.c itself refuses a model that does not divide. */
static fsdp_status_t check_parts(const llmc_t *llmc, const state_t *state,
                                 fsdp_error_t *err)
{
    for (int i = 0; i < LLMC_NUM_TENSORS && state->count != llmc->total; i++) {
        if (llmc->tensors[i].size % state->world != 0) {
            return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                  "%s: the %" PRIu64 " elements of a layer of "
                                  "%s do not divide by the %u ranks that the "
                                  "states name",
                                  llmc->dir, llmc->tensors[i].size,
                                  llmc->tensors[i].name, state->world);
        }
    }

    return FSDP_OK;
}

static fsdp_status_t add_number(catalog_t *cat, const char *name,
                                uint64_t number, fsdp_error_t *err)
{
    char text[24];

    snprintf(text, sizeof(text), "%" PRIu64, number);
    return catalog_add_value(cat, name, text, err);
}

/* Where a rank's random numbers and data stood, as one value. */
static fsdp_status_t add_position(catalog_t *cat, const state_t *state,
                                  fsdp_error_t *err)
{
    char name[32], text[240];

    snprintf(name, sizeof(name), "rank.%u", state->rank);
    snprintf(text, sizeof(text),
             "{\"rng_state\": %" PRIu64 ", \"rng_state_last_update\": %" PRIu64
             ", \"current_shard_idx\": %" PRIu64
             ", \"current_sample_idx\": %" PRIu64 ", \"should_shuffle\": %s}",
             state->rng, state->rng_last_update, state->shard, state->sample,
             state->shuffle ? "true" : "false");
    return catalog_add_value(cat, name, text, err);
}

/* All ranks must agree with the first one. */
static fsdp_status_t check_agreement(const char *path, const state_t *first,
                                     const state_t *state, fsdp_error_t *err)
{
    if (state->world != first->world || state->master != first->master ||
        state->shuffle != first->shuffle || state->count != first->count) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: is of another run than the state of rank "
                              "0: it says %u ranks, %" PRIu64 " elements%s, "
                              "that says %u and %" PRIu64 "%s",
                              path, state->world, state->count,
                              state->master ? " with master weights" : "",
                              first->world, first->count,
                              first->master ? " with master weights" : "");
    }

    return FSDP_OK;
}

/* The state of one rank; that of rank 0 comes first and fills @a first. */
static fsdp_status_t open_rank(catalog_t *cat, const llmc_t *llmc,
                               uint32_t rank, uint64_t firsts[3],
                               state_t *first, fsdp_error_t *err)
{
    static const char *const kinds[] = {"m", "v", "master"};
    char name[64];
    fsdp_status_t status;
    uint32_t file;
    state_t state;
    char *path;

    snprintf(name, sizeof(name), LLMC_STATE_NAME, llmc->step, rank);
    path = io_path("%s/%s", llmc->dir, name);
    if (path == NULL) {
        return no_memory(llmc, err);
    }

    status = read_state(llmc, path, rank, &state, err);
    if (status == FSDP_ERR_NOT_FOUND) {
        status =
            fsdp_error_set(err, FSDP_ERR_CORRUPT,
                           "%s: the state of rank %u is missing", path, rank);
    }
    if (status == FSDP_OK && rank == 0) {
        *first = state;
        status = check_parts(llmc, first, err);
        for (int k = 0; k < (state.master ? 3 : 2) && status == FSDP_OK; k++) {
            status = add_tensors(cat, llmc, kinds[k], FSDP_DTYPE_F32,
                                 &firsts[k], err);
        }
    }
    if (status == FSDP_OK) {
        status = check_agreement(path, first, &state, err);
    }
    if (status == FSDP_OK) {
        status = catalog_add_file(cat, name, state.size, &file, err);
    }
    if (status == FSDP_OK) {
        status = add_state(cat, llmc, firsts, file, &state, err);
    }
    if (status == FSDP_OK) {
        status = add_position(cat, &state, err);
    }
    free(path);
    return status;
}

static fsdp_status_t open_states(catalog_t *cat, const llmc_t *llmc,
                                 const listing_t *listing, fsdp_error_t *err)
{
    state_t first = {.world = 1};
    uint64_t firsts[3] = {0};

    for (uint32_t rank = 0; rank < first.world; rank++) {
        FSDP_TRY(open_rank(cat, llmc, rank, firsts, &first, err));
    }
    if (listing->states != first.world ||
        listing->state_most != (int64_t)first.world - 1) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: has %" PRIu64 " states of step %" PRId64
                              " up to rank %" PRId64 ", but they are of %u "
                              "ranks: remove those of another run",
                              llmc->dir, listing->states, llmc->step,
                              listing->state_most, first.world);
    }

    return FSDP_OK;
}

/* The header as values. */
static fsdp_status_t add_shape(catalog_t *cat, const llmc_t *llmc,
                               fsdp_error_t *err)
{
    const llmc_shape_t *shape = &llmc->shape;

    FSDP_TRY(add_number(cat, "max_seq_len", shape->max_seq_len, err));
    FSDP_TRY(add_number(cat, "vocab_size", shape->vocab_size, err));
    FSDP_TRY(add_number(cat, "num_layers", shape->num_layers, err));
    FSDP_TRY(add_number(cat, "num_heads", shape->num_heads, err));
    FSDP_TRY(add_number(cat, "channels", shape->channels, err));
    FSDP_TRY(
        add_number(cat, "padded_vocab_size", shape->padded_vocab_size, err));
    return (llmc->step < 0)
               ? FSDP_OK
               : add_number(cat, "step", (uint64_t)llmc->step, err);
}

/* What of the model's configuration as Hugging Face has it the header tells;
 * all else is the same in all models of llm.c. */
static fsdp_status_t add_config(catalog_t *cat, const llmc_t *llmc,
                                fsdp_error_t *err)
{
    const llmc_shape_t *shape = &llmc->shape;
    json_t *meta = json_pack(
        "{s:{s:{s:s, s:[s], s:s, s:f, s:b, s:I, s:I, s:I, s:I, s:I}}}", "user",
        "config", "model_type", "gpt2", "architectures", "GPT2LMHeadModel",
        "activation_function", "gelu_new", "layer_norm_epsilon", 1e-5,
        "tie_word_embeddings", 1, "vocab_size", (json_int_t)shape->vocab_size,
        "n_positions", (json_int_t)shape->max_seq_len, "n_embd",
        (json_int_t)shape->channels, "n_layer", (json_int_t)shape->num_layers,
        "n_head", (json_int_t)shape->num_heads);
    char *text =
        (meta != NULL) ? json_dumps(meta, json_text_digits(meta)) : NULL;

    if (text != NULL) {
        cat->meta = catalog_strdup(cat, text);
    }
    free(text);
    json_decref(meta);
    if (text == NULL || cat->meta == NULL) {
        cat->meta = "{}";
        return no_memory(llmc, err);
    }
    return FSDP_OK;
}

static fsdp_status_t open_model(catalog_t *cat, llmc_t *llmc, fsdp_error_t *err)
{
    char *path = io_path("%s/%s", llmc->dir, llmc->model);
    fsdp_status_t status;
    uint64_t size, first;
    uint32_t file;

    if (path == NULL) {
        return no_memory(llmc, err);
    }
    status = read_model(llmc, path, &size, err);
    free(path);
    FSDP_TRY(status);

    FSDP_TRY(catalog_add_file(cat, llmc->model, size, &file, err));
    FSDP_TRY(add_tensors(cat, llmc, "params", llmc->dtype, &first, err));
    FSDP_TRY(add_whole(cat, first, file, LLMC_HEADER, err));
    FSDP_TRY(add_config(cat, llmc, err));
    return add_shape(cat, llmc, err);
}

/* --- Where it is ---------------------------------------------------------- */

/* The step that a directory is opened at. */
static fsdp_status_t choose_step(const char *dir, int64_t *step_p,
                                 fsdp_error_t *err)
{
    listing_t listing;

    if (!list(dir, -1, &listing)) {
        return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot read: %m", dir);
    }
    if (listing.newest_done < 0) {
        return fsdp_error_set(err, FSDP_ERR_NOT_FOUND,
                              "%s: has model_%08" PRId64 ".bin of llm.c but no "
                              "DONE_%08" PRId64 ": the save was not finished; "
                              "name the model file to read it alone",
                              dir, listing.newest, listing.newest);
    }

    *step_p = listing.newest_done;
    return FSDP_OK;
}

static fsdp_status_t fill(catalog_t *cat, llmc_t *llmc, fsdp_error_t *err)
{
    listing_t listing = {0};

    if (llmc->step >= 0 && !list(llmc->dir, llmc->step, &listing)) {
        return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot read: %m",
                              llmc->dir);
    }

    FSDP_TRY(open_model(cat, llmc, err));
    if (listing.done && listing.states > 0) {
        FSDP_TRY(open_states(cat, llmc, &listing, err));
    }
    cat->step = llmc->step;
    return catalog_seal(cat, CATALOG_CHECK_ALL, err);
}

/* A directory, a model, or one of its states. */
static fsdp_status_t open_llmc(const char *path, catalog_t *cat,
                               fsdp_error_t *err)
{
    const char *name = io_base(path);
    llmc_t llmc = {.step = -1};
    char model[48];
    struct stat st;
    int64_t rank;

    if (stat(path, &st) != 0) {
        return fsdp_error_set(err, FSDP_ERR_IO, "%s: %m", path);
    }
    if (S_ISDIR(st.st_mode)) {
        llmc.dir = cat->path;
        FSDP_TRY(choose_step(llmc.dir, &llmc.step, err));
    } else {
        char *dir = io_parent(path);

        llmc.dir = (dir != NULL) ? catalog_strdup(cat, dir) : NULL;
        free(dir);
        if (llmc.dir == NULL) {
            return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                                  path);
        }
        llmc.step = model_step(name);
        if (llmc.step < 0) {
            llmc.step = state_step(name, &rank);
        }
    }

    cat->root = llmc.dir;
    llmc.model = name;
    if (llmc.step >= 0) {
        snprintf(model, sizeof(model), LLMC_MODEL_NAME, llmc.step);
        llmc.model = model;
    }
    return fill(cat, &llmc, err);
}

const format_t format_llmc = {
    .id = FSDP_CKPT_LLMC,
    .name = "llmc",
    .what = "an llm.c checkpoint",
    .probe = probe,
    .open = open_llmc,
    .is_dir = true,
    .keeps = FSDP_CKPT_KEEPS_STEP | FSDP_CKPT_KEEPS_RANKS,
    .create = llmc_create,
    .finish = llmc_finish,
};
