/*
 * Writing what torch.save pickles.
 */
#ifndef FSDP_TORCH_WRITE_H
#define FSDP_TORCH_WRITE_H

#include "ckpt/pickle_write.h"
#include "ckpt/torch_object.h"

/* A tensor whose elements, row-major, are all of the storage @a key.
 * @param bytes  Of them. */
void torch_write_tensor(pickle_writer_t *writer, const torch_type_t *type,
                        uint64_t key, unsigned ndim, const uint64_t *dims,
                        uint64_t bytes);

#endif
