/*
 * llm.c's files, as its reader and writer share them.
 *
 *     model_STEP.bin       i32[256] header, 16 arrays, each of all layers
 *     state_STEP_RANK.bin  i32[256] header, m, v and perhaps master weights in
 *                          f32, and where the data is shuffled its state
 *     DONE_STEP            empty: the two above are complete
 *
 * Arrays are tensors of the catalog, and so are the bytes of a rank's shuffle
 * state.
 *
 * With ZeRO-1 each array is split layer by layer: rank R of N has elements
 * [R, R + 1) * size / N of every layer, in the order of the arrays.
 */
#ifndef FSDP_LLMC_H
#define FSDP_LLMC_H

#include <inttypes.h>

#include "ckpt/catalog.h"

#define LLMC_HEADER       1024 /* bytes */
#define LLMC_MODEL        20240326
#define LLMC_MODEL_F32    3 /* version */
#define LLMC_MODEL_BF16   5
#define LLMC_STATE        20240527
#define LLMC_STATE_FORMAT 1 /* version */
#define LLMC_LLAMA3       20240803
#define LLMC_SHUFFLE_RNG  2520 /* bytes of its Mersenne Twister */

#define LLMC_NUM_TENSORS 16

#define LLMC_SHUFFLE "shuffle." /* then the rank */

#define LLMC_MODEL_NAME "model_%08" PRId64 ".bin"               /* step */
#define LLMC_STATE_NAME "state_%08" PRId64 "_%05" PRIu32 ".bin" /* rank */

/* A model's shape, as the header has it. */
typedef struct {
    uint64_t max_seq_len, vocab_size, num_layers, num_heads, channels;
    uint64_t padded_vocab_size;
} llmc_shape_t;

/* An array of all layers. */
typedef struct {
    const char *name;
    uint32_t ndim;
    uint64_t dims[3];
    uint64_t layers; /* 1 for those that no layer has */
    uint64_t size;   /* elements of a layer */
} llmc_tensor_t;

/**
 * The arrays in the order of the file.
 *
 * @param total_p  Elements of all.
 *
 * @return false if a size does not fit in 62 bits, or the shape is none.
 */
bool llmc_tensors(const llmc_shape_t *shape,
                  llmc_tensor_t tensors[LLMC_NUM_TENSORS], uint64_t *total_p);

/* All that is none is f32. */
bool llmc_is_parameter(const char *name);

/**
 * Give a target, which has tensors and values and is not sealed, the files of
 * llm.c and its pieces.
 *
 * @param values  The sealed catalog to ask for what the headers hold.
 *
 * @return FSDP_ERR_INVALID_PARAM, naming the tensor or value, if it is no
 *         model of llm.c; FSDP_ERR_CONFIG if it cannot be divided.
 */
fsdp_status_t llmc_layout(catalog_t *dst, const catalog_t *values,
                          uint32_t world, fsdp_error_t *err);

/* As format_t says. */
fsdp_status_t llmc_create(catalog_t *cat, uint32_t file, const uint64_t *pieces,
                          uint64_t num, const char *path, fsdp_error_t *err);
fsdp_status_t llmc_finish(const catalog_t *cat, const char *dir,
                          fsdp_error_t *err);

#endif
