#include "config.h"

#include "ckpt/format/torch.h"

#include <errno.h>
#include <string.h>

bool torch_is_flat(const torch_item_t *item)
{
    const char *name = item->name, *last = strrchr(name, '.');

    last = (last != NULL) ? last + 1 : name;
    return item->first->kind == TORCH_SHARD && item->first->ndim == 1 &&
           strcmp(last, "_flat_param") == 0;
}

fsdp_status_t torch_take_local(torch_reader_t *reader)
{
    errno = 0;
    return fsdp_error_set(
        reader->err, FSDP_ERR_UNSUPPORTED,
        "%s: a LOCAL_STATE_DICT of FSDP1: it does not say which parameters its "
        "flat ones are made of; give a recipe file (--recipe)",
        reader->cat->path);
}
