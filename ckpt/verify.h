/*
 * What the parts of fsdp_ckpt_verify() share: findings, and the one pass over
 * the bytes.
 */
#ifndef FSDP_VERIFY_H
#define FSDP_VERIFY_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "ckpt/catalog.h"
#include "ckpt/ranks.h"
#include "lib/util/digest.h"

/* The checkpoint's two digests: of parameters and of optimizer state. */
enum { VERIFY_MODEL = 0, VERIFY_OPTIM = 1, VERIFY_KINDS = 2 };

typedef struct {
    const char *recipe; /* of flat parameters, or NULL */
    const fsdp_ckpt_engine_t *engine;
    fsdp_ckpt_finding_f finding;
    void *arg;
    ranks_t ranks;
    bool sharing; /* ranks read each a part: what they find is kept in `found`,
                     texts with their '\0' */
    uint64_t bytes_before; /* read before that */
    pthread_mutex_t lock;  /* over what follows */
    buffer_t found;
    bool stopped;         /* the callback said so */
    fsdp_ckpt_verify_result_t result;
    uint64_t done, total; /* bytes, for progress */
} verify_t;

/**
 * Tell a finding.  Any thread.  What several ranks find is told by the first.
 *
 * @return FSDP_OK; FSDP_ERR_CANCELLED if the callback wants to stop.
 */
__attribute__((format(printf, 2, 3))) fsdp_status_t verify_find(
    verify_t *verify, const char *fmt, ...);

/* An error of reading: damage becomes a finding, what else is passed on. */
fsdp_status_t verify_status(verify_t *verify, fsdp_status_t status,
                            const fsdp_error_t *why, fsdp_error_t *err);

/* Find what lies in the directories of the catalog's files and should not; what
 * an earlier save left is only counted. */
fsdp_status_t verify_extra(verify_t *verify, const catalog_t *cat,
                           fsdp_error_t *err);

/**
 * Read every file of the catalog once: checksums of blocks and of whole files,
 * and the digests' sums.
 *
 * @param cat      Files with their sizes on disk; pieces may be missing: then
 *                 files are only compared with their own checksums.
 * @param good     One entry a file: false if it is missing or has another
 *                 size, and is not read; set to false where damage is found.
 * @param digests  The sums over all tensors of 32-bit elements.
 */
fsdp_status_t verify_pass(verify_t *verify, const catalog_t *cat, bool *good,
                          digest_t digests[VERIFY_KINDS], fsdp_error_t *err);

/* Ranks share what lies between these two.  Then the first one has all that was
 * found, read and summed: files that are not good, of each file the xor of what
 * the ranks have for its checksum (or NULL), the digests' sums. */
void verify_share_begin(verify_t *verify);
fsdp_status_t verify_share_end(verify_t *verify, const catalog_t *cat,
                               bool *good, uint32_t *crcs,
                               digest_t digests[VERIFY_KINDS],
                               fsdp_error_t *err);

/* Of ranks that have met: all return the same, and count the same findings. */
fsdp_status_t verify_end(verify_t *verify, fsdp_status_t status,
                         fsdp_error_t *err);

/* What verify_pass() does for catalogs whose checksums are those of zip
 * archives (crc_zip): only what has one is read. */
fsdp_status_t verify_zip(verify_t *verify, const catalog_t *cat, bool *good,
                         digest_t digests[VERIFY_KINDS], fsdp_error_t *err);

/* What verify_pass() leaves out: decode all that is encoded. */
fsdp_status_t verify_codes(verify_t *verify, const catalog_t *cat, bool *good,
                           fsdp_error_t *err);

#endif
