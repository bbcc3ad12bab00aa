#include "config.h"

#include "ckpt/tensor_hash.h"

#include <openssl/evp.h>
#include <stdlib.h>

#include "ckpt/catalog.h"
#include "ckpt/engine.h"
#include "lib/util/check.h"

enum { MAX_RANGES = 4096, LEAST_BUFFER = 64 << 10 };

typedef struct {
    fsdp_ckpt_t *ckpt;
    const fsdp_ckpt_engine_t *engine; /* the caller's */
    tensor_damage_f damage;
    void *arg;
    tensor_hash_t *hashes;
    EVP_MD_CTX *ctx; /* of the tensor at hand */
    unsigned char *buffer;
    size_t size, used;
    fsdp_ckpt_range_t *ranges; /* of consecutive elements and tensors */
    size_t num;
    bool broken;          /* the tensor at hand could not be read */
    uint64_t done, total; /* bytes of tensors, for progress */
} hasher_t;

static bool progress(uint64_t done, uint64_t total, void *arg)
{
    const hasher_t *hasher = arg;

    (void)total;
    done += hasher->done;
    return hasher->engine->progress(
        (done < hasher->total) ? done : hasher->total, hasher->total,
        hasher->engine->progress_arg);
}

/* How the reads run: with what the buffer leaves of the memory. */
static fsdp_ckpt_engine_t engine_of(hasher_t *hasher)
{
    const fsdp_ckpt_engine_t *from = hasher->engine;
    uint64_t max_mem = (from->max_mem > 0) ? from->max_mem : ENGINE_MAX_MEM;
    fsdp_ckpt_engine_t engine = *from;

    engine.max_mem = max_mem - max_mem / 4;
    if (from->progress != NULL) {
        engine.progress = progress;
        engine.progress_arg = hasher;
    }

    return engine;
}

static uint64_t range_bytes(const hasher_t *hasher,
                            const fsdp_ckpt_range_t *range)
{
    fsdp_ckpt_tensor_t tensor;
    uint64_t bytes = 0;

    fsdp_ckpt_get_tensor(hasher->ckpt, range->tensor, &tensor);
    dtype_bytes(tensor.dtype, range->count, &bytes);

    return bytes;
}

/* --- Hashing -------------------------------------------------------------- */

static fsdp_status_t failed(fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                          "SHA-256 does not work here: libcrypto");
}

static fsdp_status_t hash_range(hasher_t *hasher,
                                const fsdp_ckpt_range_t *range,
                                fsdp_error_t *err)
{
    tensor_hash_t *hash = &hasher->hashes[range->tensor];
    fsdp_ckpt_tensor_t tensor;

    fsdp_ckpt_get_tensor(hasher->ckpt, range->tensor, &tensor);
    if (range->first == 0 &&
        EVP_DigestInit_ex(hasher->ctx, EVP_sha256(), NULL) != 1) {
        return failed(err);
    }
    if (EVP_DigestUpdate(hasher->ctx, range->data,
                         (size_t)range_bytes(hasher, range)) != 1) {
        return failed(err);
    }
    if (range->first + range->count == tensor.numel) {
        if (EVP_DigestFinal_ex(hasher->ctx, hash->sha256, NULL) != 1) {
            return failed(err);
        }
        hash->known = !hasher->broken;
    }

    return FSDP_OK;
}

/* One range that could not be read together with others. */
static fsdp_status_t read_alone(hasher_t *hasher,
                                const fsdp_ckpt_range_t *range,
                                uint64_t *bytes_p, fsdp_error_t *err)
{
    fsdp_ckpt_engine_t engine = engine_of(hasher);
    fsdp_error_t why = {0};
    uint64_t bytes = 0;
    fsdp_status_t status =
        fsdp_ckpt_read(hasher->ckpt, range, 1, &engine, &bytes, &why);

    *bytes_p += bytes;
    if (status == FSDP_ERR_CORRUPT || status == FSDP_ERR_NOT_FOUND) {
        hasher->broken = true;
        return hasher->damage(&why, hasher->arg)
                   ? FSDP_OK
                   : fsdp_error_set(err, FSDP_ERR_CANCELLED,
                                    "the check was stopped");
    }
    if (status != FSDP_OK && err != NULL) {
        *err = why;
    }

    return status;
}

/* Read and hash what is gathered. */
static fsdp_status_t flush(hasher_t *hasher, uint64_t *bytes_p,
                           fsdp_error_t *err)
{
    fsdp_ckpt_engine_t engine = engine_of(hasher);
    fsdp_error_t why = {0};
    uint64_t bytes = 0;
    fsdp_status_t status =
        (hasher->num == 0) ? FSDP_OK
                           : fsdp_ckpt_read(hasher->ckpt, hasher->ranges,
                                            hasher->num, &engine, &bytes, &why);
    bool alone = status == FSDP_ERR_CORRUPT || status == FSDP_ERR_NOT_FOUND;

    if (status != FSDP_OK && !alone) {
        if (err != NULL) {
            *err = why;
        }
        return status;
    }

    *bytes_p += bytes;
    for (size_t i = 0; i < hasher->num; i++) {
        const fsdp_ckpt_range_t *range = &hasher->ranges[i];

        hasher->broken = hasher->broken && range->first > 0;
        if (alone && !hasher->broken) {
            FSDP_TRY(read_alone(hasher, range, bytes_p, err));
        }
        FSDP_TRY(hash_range(hasher, range, err));
    }
    hasher->done += hasher->used;
    hasher->used = 0;
    hasher->num = 0;

    return FSDP_OK;
}

/* Elements that fit into the room of the buffer; of a part of a tensor as many
 * as end with a checksummed block, so that none is read twice. */
static uint64_t fitting(const hasher_t *hasher, fsdp_dtype_t dtype,
                        uint64_t left)
{
    uint64_t room = hasher->size - hasher->used, bytes = 0;
    unsigned bits = fsdp_dtype_bits(dtype);

    if (dtype_bytes(dtype, left, &bytes) && bytes <= room) {
        return left;
    }
    if (room >= CATALOG_BLOCK) {
        room -= room % CATALOG_BLOCK;
    } else if (hasher->used > 0) {
        return 0;
    }

    return room * 8 / bits / 8 * 8; /* whole bytes of packed types */
}

static fsdp_status_t add_tensor(hasher_t *hasher, uint64_t t, uint64_t *bytes_p,
                                fsdp_error_t *err)
{
    fsdp_ckpt_tensor_t tensor;
    uint64_t first = 0;

    fsdp_ckpt_get_tensor(hasher->ckpt, t, &tensor);
    do {
        uint64_t count = fitting(hasher, tensor.dtype, tensor.numel - first);
        fsdp_ckpt_range_t *range;

        while (hasher->num == MAX_RANGES || (count == 0 && tensor.numel > 0)) {
            FSDP_TRY(flush(hasher, bytes_p, err));
            count = fitting(hasher, tensor.dtype, tensor.numel - first);
        }
        range = &hasher->ranges[hasher->num++];
        *range =
            (fsdp_ckpt_range_t){t, first, count, hasher->buffer + hasher->used};
        first += count;
        /* Memory is read into in place: elements are aligned. */
        hasher->used += (range_bytes(hasher, range) + 15) / 16 * 16;
        if (hasher->used > hasher->size) {
            hasher->used = hasher->size;
        }
    } while (first < tensor.numel);

    return FSDP_OK;
}

/* --- The call ------------------------------------------------------------- */

fsdp_status_t tensor_hash_all(fsdp_ckpt_t *ckpt,
                              const fsdp_ckpt_engine_t *engine,
                              const bool *wanted, tensor_damage_f damage,
                              void *arg, tensor_hash_t *hashes,
                              uint64_t *bytes_p, fsdp_error_t *err)
{
    uint64_t max_mem = (engine->max_mem > 0) ? engine->max_mem : ENGINE_MAX_MEM;
    hasher_t hasher = {.ckpt = ckpt,
                       .engine = engine,
                       .damage = damage,
                       .arg = arg,
                       .hashes = hashes};
    fsdp_status_t status = FSDP_OK;
    fsdp_ckpt_info_t info;

    fsdp_ckpt_get_info(ckpt, &info);
    hasher.total = info.bytes;
    hasher.size =
        (max_mem / 4 > LEAST_BUFFER) ? (size_t)(max_mem / 4) : LEAST_BUFFER;
    hasher.buffer = aligned_alloc(64, hasher.size / 64 * 64);
    hasher.size = hasher.size / 64 * 64;
    hasher.ranges = calloc(MAX_RANGES, sizeof(*hasher.ranges));
    hasher.ctx = EVP_MD_CTX_new();
    if (hasher.buffer == NULL || hasher.ranges == NULL || hasher.ctx == NULL) {
        status = fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                "%s: no memory to hash tensors", info.path);
        goto err_free;
    }

    for (uint64_t t = 0; t < info.num_tensors; t++) {
        if (wanted == NULL || wanted[t]) {
            FSDP_TRY_GOTO(add_tensor(&hasher, t, bytes_p, err), err_free);
        }
    }
    status = flush(&hasher, bytes_p, err);
err_free:
    EVP_MD_CTX_free(hasher.ctx);
    free(hasher.ranges);
    free(hasher.buffer);
    return status;
}

void tensor_hash_text(const tensor_hash_t *hash,
                      char text[2 * TENSOR_HASH_SIZE + 1])
{
    static const char digits[] = "0123456789abcdef";

    for (int i = 0; i < TENSOR_HASH_SIZE; i++) {
        text[2 * i] = digits[hash->sha256[i] >> 4];
        text[2 * i + 1] = digits[hash->sha256[i] & 15];
    }
    text[2 * TENSOR_HASH_SIZE] = '\0';
}
