/*
 * Writing one file of torch.save: a stored zip of one pickle, and of a storage
 * for each tensor in it.
 */
#ifndef FSDP_TORCH_SAVE_H
#define FSDP_TORCH_SAVE_H

#include "ckpt/catalog.h"
#include "ckpt/nest.h"
#include "ckpt/pickle_write.h"
#include "ckpt/zip_write.h"
#include "lib/util/map.h"

typedef struct {
    const catalog_t *cat;
    const char *path; /* of the file */
    int fd;           /* -1: it is only asked where things lie */
    pickle_writer_t pickle;
    zip_writer_t zip;
    map_t keys;        /* tensors to the numbers of their storages */
    uint64_t *tensors; /* of the storages */
    uint64_t *offsets; /* of their data */
    uint64_t num, max;
    uint64_t size; /* of the file */
} torch_out_t;

/* Write the one object of a file into out->pickle. */
typedef fsdp_status_t (*torch_fill_f)(torch_out_t *out, void *arg,
                                      fsdp_error_t *err);

/* What it may hold.  FSDP_ERR_UNSUPPORTED, naming it, if PyTorch has no such
 * type, or a value is no plain one. */
fsdp_status_t torch_out_tensor(torch_out_t *out, uint64_t tensor,
                               fsdp_error_t *err);
fsdp_status_t torch_out_value(torch_out_t *out, uint64_t value,
                              fsdp_error_t *err);
fsdp_status_t torch_out_node(torch_out_t *out, const nest_t *nest,
                             const nest_node_t *node, fsdp_error_t *err);

/* create() of format.h. */
fsdp_status_t torch_out_create(catalog_t *cat, uint32_t file,
                               const uint64_t *pieces, uint64_t num,
                               const char *path, torch_fill_f fill, void *arg,
                               fsdp_error_t *err);

/* Write all of a file in @a dir but the tensors' data, whose checksums it
 * has twice, and sync it. */
fsdp_status_t torch_out_finish(const catalog_t *cat, uint32_t file,
                               const char *dir, torch_fill_f fill, void *arg,
                               fsdp_error_t *err);

#endif
