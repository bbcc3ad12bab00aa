#include "config.h"

#include "ckpt/torch_write.h"

#include <inttypes.h>
#include <stdio.h>

/* The tuple that stands for a storage. */
static void write_storage(pickle_writer_t *writer, const torch_type_t *type,
                          uint64_t key, uint64_t numel, uint64_t bytes)
{
    char text[24];

    snprintf(text, sizeof(text), "%" PRIu64, key);
    pickle_write_op(writer, '(');
    pickle_write_text(writer, "storage");
    if (type->storage != NULL) {
        pickle_write_class(writer, "torch", type->storage);
    } else {
        pickle_write_class(writer, "torch.storage", "UntypedStorage");
    }
    pickle_write_text(writer, text);
    pickle_write_text(writer, "cpu");
    pickle_write_int(writer,
                     (int64_t)((type->storage != NULL) ? numel : bytes));
    pickle_write_op(writer, 't');
    pickle_write_op(writer, 'Q');
}

void torch_write_tensor(pickle_writer_t *writer, const torch_type_t *type,
                        uint64_t key, unsigned ndim, const uint64_t *dims,
                        uint64_t bytes)
{
    uint64_t strides[FSDP_CKPT_MAX_NDIM], numel = 1;

    for (unsigned d = ndim; d > 0; d--) {
        strides[d - 1] = numel;
        numel *= dims[d - 1];
    }

    pickle_write_class(writer, "torch._utils",
                       (type->storage != NULL) ? "_rebuild_tensor_v2"
                                               : "_rebuild_tensor_v3");
    pickle_write_op(writer, '(');
    write_storage(writer, type, key, numel, bytes);
    pickle_write_int(writer, 0);
    pickle_write_ints(writer, dims, ndim);
    pickle_write_ints(writer, strides, ndim);
    pickle_write_bool(writer, false);
    pickle_write_class(writer, "collections", "OrderedDict");
    pickle_write_op(writer, ')');
    pickle_write_op(writer, 'R');
    if (type->storage == NULL) {
        pickle_write_class(writer, "torch", type->name);
    }
    pickle_write_op(writer, 't');
    pickle_write_op(writer, 'R');
}
