/*
 * manifest.json: what a checkpoint is, which files it has, and the mark that
 * it is complete (doc/checkpoint-format.md).
 */
#ifndef FSDP_MANIFEST_H
#define FSDP_MANIFEST_H

#include <stdint.h>

#include "ckpt/catalog.h"

#define MANIFEST_NAME       "manifest.json"
#define MANIFEST_FORMAT     "fsdp-checkpoint" /* its key "format" */
#define MANIFEST_VERSION    1 /* that is written */
#define MANIFEST_MIN_READER 1 /* oldest reader that understands it */

/* Where a table of the index lies in index.h5. */
typedef struct {
    uint64_t offset; /* bytes; 0 for an empty table */
    uint64_t count;  /* records */
} manifest_table_t;

typedef struct {
    uint64_t size; /* of index.h5 */
    uint32_t crc32c;
    manifest_table_t tensors, pieces, names, dims;
} manifest_index_t;

/* A manifest that was read. */
typedef struct manifest manifest_t;

/**
 * Write manifest.json into @a dir and make it and its name durable.
 *
 * @param cat  Complete: files with sizes and checksums, and all the rest that
 *             a manifest holds.
 *
 * @return FSDP_ERR_INVALID_PARAM if cat->meta is no JSON object;
 *         FSDP_ERR_UNSUPPORTED if a name is not UTF-8.
 */
fsdp_status_t manifest_write(const catalog_t *cat,
                             const manifest_index_t *index, const char *dir,
                             fsdp_error_t *err);

/**
 * Read the manifest of a checkpoint directory.
 *
 * @return FSDP_ERR_NOT_FOUND if there is none: the checkpoint is incomplete;
 *         FSDP_ERR_CORRUPT if it was altered or is no manifest;
 *         FSDP_ERR_UNSUPPORTED if it wants a newer reader.
 */
fsdp_status_t manifest_read(const char *dir, manifest_t **manifest_p,
                            fsdp_error_t *err);

/* NULL is allowed. */
void manifest_free(manifest_t *manifest);

void manifest_get_index(const manifest_t *manifest, manifest_index_t *index_p);

/* Put step, mesh, meta, digests, files (with room for their checksums, and
 * where their tables are) and aliases into an empty catalog. */
fsdp_status_t manifest_fill(const manifest_t *manifest, catalog_t *cat,
                            fsdp_error_t *err);

/* The unit that a tensor belongs to, or NULL; borrowed. */
const char *manifest_unit(const manifest_t *manifest, const char *tensor);

/* A digest as text: its two words, 16 hexadecimal digits each. */
#define MANIFEST_DIGEST_SIZE 33
void manifest_put_digest(const uint64_t word[2],
                         char text[MANIFEST_DIGEST_SIZE]);
/* @return false if @a text, which may be NULL, is no digest. */
bool manifest_get_digest(const char *text, uint64_t word[2]);

#endif
