/*
 * Building a target: which rank writes which part of which file.  Used by
 * save and convert alike.
 */
#ifndef FSDP_TARGET_H
#define FSDP_TARGET_H

#include "ckpt/format.h"

#define TARGET_MAX_FILES 256

/* How many shard files W ranks write: @a files, or the default for 0. */
uint32_t target_num_files(uint32_t world, uint32_t files);

/* Ranks share files in runs: the file of a rank, and the first rank of a file
 * (W for one behind the last), which creates it. */
uint32_t target_file_of(uint32_t rank, uint32_t world, uint32_t files);
uint32_t target_creator_of(uint32_t file, uint32_t world, uint32_t files);

/* "shard-00003.h5" */
void target_file_name(uint32_t file, char text[32]);

/* The pieces of each file, by rank, then in the tensors' order. */
typedef struct {
    uint64_t *pieces; /* those of file f begin at first[f], end at first[f+1] */
    uint64_t *first;
} target_lists_t;

/* The lists of a sealed catalog. */
fsdp_status_t target_group(const catalog_t *cat, target_lists_t *lists_p,
                           fsdp_error_t *err);

/* The same, and with @a crcs room for checksums, piece by piece in this
 * order. */
fsdp_status_t target_lists(catalog_t *cat, bool crcs, target_lists_t *lists_p,
                           fsdp_error_t *err);
void target_lists_free(target_lists_t *lists);

/* Create a file of the target in @a dir and reserve its space. */
fsdp_status_t target_create(const format_t *format, catalog_t *cat,
                            uint32_t file, const target_lists_t *lists,
                            const char *dir, fsdp_error_t *err);

/* Make what this process has written to a file in @a dir durable. */
fsdp_status_t target_sync(const catalog_t *cat, uint32_t file, const char *dir,
                          fsdp_error_t *err);

/**
 * The same for all files, or those whose entry in @a wanted is set.
 *
 * @param jobs  Threads, at most; 0: the default.
 */
fsdp_status_t target_sync_all(const catalog_t *cat, const bool *wanted,
                              uint32_t jobs, const char *dir,
                              fsdp_error_t *err);

/**
 * Add the pieces of each rank for tensors that are in flat units.  Tensors of
 * kinds ("model/x", "optim/exp_avg/x") with the same unit and base name and
 * the same number of elements have the same place.  Tensors without a unit are
 * grouped by their base name up to the first component that is a number, the
 * others together.
 *
 * @param cat    Has tensors, not sealed; its mesh says how to shard.
 * @param files  Entries 0 … files - 1 are there.
 */
fsdp_status_t target_shard(catalog_t *cat, uint32_t files, fsdp_error_t *err);

/* Ranks in a grid: rank r = a + across * i, and how tensors are cut in it. */
typedef struct {
    uint32_t across;          /* ranks of tensor parallelism; 0: 1 */
    const char *const *split; /* "PATTERN=DIM": tensors whose name fits are
                                  cut along DIM for them, by the first rule */
    size_t num_split;
} target_grid_t;

/**
 * Add the pieces of each rank, which are boxes: a tensor's part a of `across`
 * along the dimension of its rule, and of that the rows that are part i of
 * dimension 0.  Part k of n elements in m parts begins at k * c, c being n / m
 * rounded up: as torch.chunk cuts, and FSDP2 and DTensor shard.  What no rule
 * fits is whole across and held by the ranks with a = 0, a scalar by rank 0.
 *
 * @param cat  As above, of mesh.world ranks.
 *
 * @return FSDP_ERR_INVALID_PARAM for a rule that fits nothing, or a tensor
 *         without that dimension.
 */
fsdp_status_t target_grid(catalog_t *cat, const target_grid_t *grid,
                          uint32_t files, fsdp_error_t *err);

#endif
