/*
 * Files of torch.save as a checkpoint: what their parts share.
 *
 * One file, or one of each rank: the readers collect what each file has of
 * each name, and then decide what the names are.
 */
#ifndef FSDP_FORMAT_TORCH_H
#define FSDP_FORMAT_TORCH_H

#include "ckpt/catalog.h"
#include "ckpt/torch_file.h"
#include "ckpt/torch_object.h"
#include "lib/util/map.h"

/* --- Which files there are ------------------------------------------------ */

typedef struct {
    char *name;   /* of the file */
    char *prefix; /* of its tensors, with the dot; "" */
    uint32_t rank;
    uint32_t world;   /* as its name says; 0: it does not */
    bool ranked;      /* it is of one rank of several */
    bool numbered;    /* its rank is in its name */
    bool safetensors; /* or the index of some */
} torch_member_t;

typedef struct {
    torch_member_t *members; /* by prefix, then by rank */
    uint32_t num;
} torch_dir_t;

/**
 * The files of torch.save in a directory, with their parts told by their
 * names: model_world_size_4_rank_0.pt, rank_1.pt, optim_rank1.pt,
 * optimizer.bin; and the models of accelerate in safetensors beside that.
 *
 * @return FSDP_ERR_CORRUPT, naming them, if files of ranks are missing.
 */
fsdp_status_t torch_dir_read(const char *path, torch_dir_t *dir,
                             fsdp_error_t *err);

/* Is there any? */
bool torch_dir_probe(const char *path);

/* Is it what accelerate's save_state makes, with models in safetensors? */
bool torch_dir_has_models(const char *path);

void torch_dir_free(torch_dir_t *dir);

/* Note what lies beside safetensors in a directory and is not read with them,
 * such as the optimizer of transformers. */
fsdp_status_t torch_dir_note(catalog_t *cat, fsdp_error_t *err);

/* --- What is in them ------------------------------------------------------ */

typedef enum { TORCH_TENSOR, TORCH_SHARD, TORCH_VALUE } torch_kind_t;

/* What one file has of a name: a tensor, a box of a sharded one (or none: the
 * storage is not there), or a value. */
typedef struct torch_found torch_found_t;

struct torch_found {
    torch_found_t *next; /* in the order of the files */
    torch_kind_t kind;
    uint32_t file; /* of the catalog */
    uint32_t rank;
    bool empty; /* no box */
    bool replica;
    unsigned change; /* CATALOG_NEG, CATALOG_CONJ */
    torch_storage_t storage;
    fsdp_dtype_t dtype;
    uint32_t ndim;
    uint64_t offset;                          /* elements of the storage */
    uint64_t *whole, *start, *count, *stride; /* ndim each, behind this */
    char *json;                               /* of a value */
    uint64_t numbers[];
};

typedef struct {
    char *name;
    torch_found_t *first, *last;
    bool done; /* taken care of */
} torch_item_t;

typedef struct {
    catalog_t *cat;
    torch_item_t *items; /* in the order of first mention */
    uint64_t num, max;
    map_t names; /* to items */
    json_t *nesting;
    uint32_t num_ranks;
    map_t tensors;     /* identity to item: which share their bytes */
    struct torch_sum { /* pieces that are a whole storage */
        uint64_t piece;
        uint32_t crc32;
    } * sums;
    uint64_t num_sums, max_sums;
    map_t boxes;        /* that were added */
    torch_file_t *file; /* the one that is being read */
    const torch_member_t *member;
    uint32_t index; /* of it in the catalog */
    fsdp_error_t *err;
} torch_reader_t;

/* An item by its name; NULL: there is none. */
torch_item_t *torch_reader_find(const torch_reader_t *reader, const char *name);

/* Elements [from, from + count) of what was found, which is contiguous, are
 * elements [first, …) of a tensor: add the piece. */
fsdp_status_t torch_add_range(torch_reader_t *reader, uint64_t tensor,
                              const torch_found_t *found, uint64_t from,
                              uint64_t first, uint64_t count);

bool torch_found_contiguous(const torch_found_t *found);

/* --- Models in safetensors ------------------------------------------------ */

/* Add all that a file of safetensors, or what its index names, has. */
fsdp_status_t torch_add_safetensors(torch_reader_t *reader, const char *path,
                                    const torch_member_t *member);

/* --- Writing -------------------------------------------------------------- */

/* A file of torch.save, as format.h says.  Its archive holds the tensors'
 * checksums in two places: torch_finish() writes all but the data again. */
fsdp_status_t torch_create(catalog_t *cat, uint32_t file,
                           const uint64_t *pieces, uint64_t num,
                           const char *path, fsdp_error_t *err);
fsdp_status_t torch_finish(const catalog_t *cat, const char *dir,
                           fsdp_error_t *err);

/* --- FSDP1's LOCAL_STATE_DICT --------------------------------------------- */

/* The name of a flat parameter? */
bool torch_is_flat(const torch_item_t *item);

/**
 * Take flat parameters, and the optimizer's state of them, apart by
 * cat->recipe; items that are dealt with are done.
 *
 * @return FSDP_ERR_UNSUPPORTED without a recipe, FSDP_ERR_CORRUPT if it does
 *         not fit.
 */
fsdp_status_t torch_take_local(torch_reader_t *reader);

#endif
