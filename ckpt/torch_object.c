#include "config.h"

#include "ckpt/torch_object.h"

bool torch_is_contiguous(const torch_tensor_t *tensor)
{
    uint64_t stride = 1;

    if (tensor->numel == 0) {
        return true;
    }
    for (uint32_t d = tensor->ndim; d > 0; d--) {
        if (tensor->dims[d - 1] != 1 && tensor->strides[d - 1] != stride) {
            return false;
        }
        stride *= tensor->dims[d - 1];
    }

    return true;
}
