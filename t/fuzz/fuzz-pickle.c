/*
 * Fuzz target: a pickle, parsed, taken apart as a state dict, and shown.
 */
#include "config.h"

#include <stdlib.h>

#include "ckpt/pickle.h"
#include "ckpt/torch_object.h"
#include "t/fuzz/fuzz.h"

static const pickle_t *parsed;

static fsdp_status_t on_tensor(const char *name, pickle_ref_t ref, void *arg,
                               fsdp_error_t *err)
{
    torch_sharded_t sharded = {0};
    torch_tensor_t tensor;

    (void)arg;
    if (!torch_is_sharded(parsed, ref)) {
        if (torch_tensor(parsed, ref, name, &tensor, err) == FSDP_OK) {
            (void)torch_is_contiguous(&tensor);
        }
    } else if (torch_sharded(parsed, ref, 1, name, &sharded, err) == FSDP_OK) {
        torch_sharded_free(&sharded);
    }
    return FSDP_OK;
}

static fsdp_status_t on_value(const char *name, pickle_ref_t ref, void *arg,
                              fsdp_error_t *err)
{
    char *text;

    (void)arg;
    if (torch_value_json(parsed, ref, name, on_tensor, NULL, &text, err) ==
        FSDP_OK) {
        free(text);
    }
    return FSDP_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pickle_t *pickle = NULL;
    fsdp_error_t err;
    json_t *nesting;

    if (pickle_parse(data, size, "input", &pickle, NULL, &err) != FSDP_OK) {
        return 0;
    }
    if (pickle_memory(pickle) > 4096 + 40 * size) {
        abort();
    }
    parsed = pickle;
    nesting = json_object();
    (void)torch_walk(pickle, pickle_root(pickle), "", nesting, on_tensor,
                     on_value, NULL, &err);
    json_decref(nesting);
    pickle_free(pickle);
    return 0;
}
