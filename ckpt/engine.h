/*
 * The engine: runs a plan with a fixed budget of buffers and a few threads.
 *
 * CRC-32C is computed once for each stretch that lies in one block of the
 * source and one of the target, and joined for both: source blocks are
 * compared when the last of their bytes has passed, target blocks are put
 * into the target's catalog.  Memory is read and written in place.
 */
#ifndef FSDP_ENGINE_H
#define FSDP_ENGINE_H

#include "ckpt/decode.h"
#include "ckpt/engine_sums.h"
#include "ckpt/plan.h"
#include "ckpt/span.h"

#define ENGINE_MAX_MEM  (64ull << 20)
#define ENGINE_MAX_JOBS 8

/* A block whose bytes do not have its checksum.
 * @return false to stop with FSDP_ERR_CORRUPT. */
typedef bool (*engine_mismatch_f)(const catalog_t *cat, uint64_t piece,
                                  uint64_t block, void *arg);

typedef struct {
    const plan_t *plan;
    catalog_t *dst;      /* of the plan, to take checksums; NULL: memory */
    const char *dst_dir; /* its files are there now; NULL: catalog's root */
    decoders_t *decoders; /* of the source, from run to run; NULL: none */
    fsdp_ckpt_engine_t options;
    bool link; /* share blocks with the source instead of writing them */
    engine_mismatch_f mismatch; /* NULL: the first one ends the run */
    void *arg;
    engine_sums_t *sums; /* the plan is part of one: for engine_check_sums(),
                            when what others have passed is added.  NULL: it
                            is whole */
    engine_sums_t *spans; /* of the source; NULL: not asked for */
} engine_job_t;

typedef struct {
    uint64_t bytes_read; /* from files */
    uint64_t bytes_written;
    uint64_t bytes_shared; /* besides */
    uint64_t peak_mem;     /* bytes of buffers, at most options.max_mem */
    int link_error;        /* of link_blocks(), beyond EINVAL; or 0 */
} engine_result_t;

/**
 * Copy everything.  Target files exist and are big enough; they are not
 * synced.
 *
 * @param result_p  May be NULL.
 *
 * @return FSDP_ERR_CORRUPT, naming file, tensor and elements, if a checksum
 *         does not fit or a file is short; FSDP_ERR_IO with the file's name;
 *         FSDP_ERR_CANCELLED if options.progress said so.
 */
fsdp_status_t engine_run(const engine_job_t *job, engine_result_t *result_p,
                         fsdp_error_t *err);

/**
 * Make a file of a target complete once its data is written: write its table
 * of checksums, and compute the checksum of the whole file from blocks and from
 * the gaps between pieces, which alone are read.  It is not synced.
 *
 * @param pieces  Indexes of all pieces of the file.
 * @param dir     Where the file is now.
 */
fsdp_status_t engine_finish_file(catalog_t *dst, uint32_t file,
                                 const uint64_t *pieces, uint64_t num,
                                 const char *dir, fsdp_error_t *err);

#endif
