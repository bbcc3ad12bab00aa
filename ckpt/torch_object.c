#include "config.h"

#include "ckpt/torch_object.h"

#include <errno.h>
#include <string.h>

#include "ckpt/catalog.h"
#include "lib/util/check.h"

enum { MAX_NESTING = 8 }; /* of parameters that wrap tensors */

static fsdp_status_t bad(const char *what, const char *why, fsdp_error_t *err)
{
    errno = 0;
    return fsdp_error_set(err, FSDP_ERR_CORRUPT, "%s: %s", what, why);
}

/* --- Element types -------------------------------------------------------- */

static const torch_type_t types[] = {
    {"float32",         "FloatStorage",         FSDP_DTYPE_F32        },
    {"float64",         "DoubleStorage",        FSDP_DTYPE_F64        },
    {"float16",         "HalfStorage",          FSDP_DTYPE_F16        },
    {"bfloat16",        "BFloat16Storage",      FSDP_DTYPE_BF16       },
    {"int64",           "LongStorage",          FSDP_DTYPE_I64        },
    {"int32",           "IntStorage",           FSDP_DTYPE_I32        },
    {"int16",           "ShortStorage",         FSDP_DTYPE_I16        },
    {"int8",            "CharStorage",          FSDP_DTYPE_I8         },
    {"uint8",           "ByteStorage",          FSDP_DTYPE_U8         },
    {"bool",            "BoolStorage",          FSDP_DTYPE_BOOL       },
    {"complex64",       "ComplexFloatStorage",  FSDP_DTYPE_C64        },
    {"complex128",      "ComplexDoubleStorage", FSDP_DTYPE_C128       },
    {"uint16",          NULL,                   FSDP_DTYPE_U16        },
    {"uint32",          NULL,                   FSDP_DTYPE_U32        },
    {"uint64",          NULL,                   FSDP_DTYPE_U64        },
    {"float8_e4m3fn",   NULL,                   FSDP_DTYPE_F8_E4M3    },
    {"float8_e5m2",     NULL,                   FSDP_DTYPE_F8_E5M2    },
    {"float8_e8m0fnu",  NULL,                   FSDP_DTYPE_F8_E8M0    },
    {"float8_e4m3fnuz", NULL,                   FSDP_DTYPE_F8_E4M3FNUZ},
    {"float8_e5m2fnuz", NULL,                   FSDP_DTYPE_F8_E5M2FNUZ},
};

#define NUM_TYPES (sizeof(types) / sizeof(*types))

const torch_type_t *torch_type(fsdp_dtype_t dtype)
{
    for (size_t i = 0; i < NUM_TYPES; i++) {
        if (types[i].dtype == dtype) {
            return &types[i];
        }
    }

    return NULL;
}

bool torch_dtype(const char *name, fsdp_dtype_t *dtype_p)
{
    if (strncmp(name, "torch.", 6) == 0) {
        name += 6;
    }
    for (size_t i = 0; i < NUM_TYPES; i++) {
        if (strcmp(name, types[i].name) == 0 ||
            (types[i].storage != NULL && strcmp(name, types[i].storage) == 0)) {
            *dtype_p = types[i].dtype;
            return true;
        }
    }

    return false;
}

/* --- Plain tensors -------------------------------------------------------- */

/* The function and the arguments that make a tensor, parameters unwrapped. */
typedef struct {
    pickle_ref_t function, args;
} call_t;

static bool name_is(const pickle_t *pickle, pickle_ref_t ref, const char *name)
{
    return strcmp(pickle_last_name(pickle, ref), name) == 0;
}

/* @return false if it is no object, or wraps others without an end. */
static bool unwrap(const pickle_t *pickle, pickle_ref_t ref, call_t *call)
{
    *call = (call_t){pickle_class(pickle, ref), pickle_args(pickle, ref)};
    if (pickle_kind(pickle, ref) != PICKLE_OBJECT) {
        return false;
    }

    for (int i = 0; i < MAX_NESTING; i++) {
        if (name_is(pickle, call->function, "_rebuild_parameter") ||
            name_is(pickle, call->function, "_rebuild_parameter_with_state")) {
            ref = pickle_item(pickle, call->args, 0);
            if (pickle_kind(pickle, ref) != PICKLE_OBJECT) {
                return false;
            }
            call->function = pickle_class(pickle, ref);
            call->args = pickle_args(pickle, ref);
        } else if (name_is(pickle, call->function, "_rebuild_from_type_v2") &&
                   !name_is(pickle, pickle_item(pickle, call->args, 0),
                            "_rebuild_wrapper_subclass")) {
            call->function = pickle_item(pickle, call->args, 0);
            call->args = pickle_item(pickle, call->args, 2);
        } else {
            return true;
        }
    }

    return false;
}

bool torch_is_tensor(const pickle_t *pickle, pickle_ref_t ref)
{
    const char *name;
    call_t call;

    if (!unwrap(pickle, ref, &call) || torch_is_sharded(pickle, ref)) {
        return false;
    }

    /* The ones that are not known here too, so that they are told. */
    name = pickle_last_name(pickle, call.function);
    return strncmp(name, "_rebuild_", 9) == 0 &&
           strstr(name, "parameter") == NULL;
}

/* ('storage', class, key, location, elements[, view]). */
static fsdp_status_t read_storage(const pickle_t *pickle, pickle_ref_t ref,
                                  const char *what, torch_tensor_t *tensor,
                                  fsdp_error_t *err)
{
    pickle_ref_t id = pickle_args(pickle, ref),
                 cls = pickle_item(pickle, id, 1);
    const char *kind = pickle_str(pickle, pickle_item(pickle, id, 0), NULL);
    pickle_ref_t view = pickle_item(pickle, id, 5);
    uint64_t numel;

    if (pickle_kind(pickle, ref) != PICKLE_PERSID || kind == NULL ||
        strcmp(kind, "storage") != 0) {
        return bad(what, "it has no storage", err);
    }
    tensor->key = pickle_str(pickle, pickle_item(pickle, id, 2), NULL);
    if (tensor->key == NULL ||
        !pickle_u64(pickle, pickle_item(pickle, id, 4), &numel)) {
        return bad(what, "its storage makes no sense", err);
    }
    if (view != 0 && pickle_kind(pickle, view) != PICKLE_NONE) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s: its storage is a view of another one, as "
                              "PyTorch before 0.4 wrote it",
                              what);
    }

    if (name_is(pickle, cls, "UntypedStorage")) {
        tensor->dtype = FSDP_DTYPE_U8;
    } else if (!torch_dtype(pickle_last_name(pickle, cls), &tensor->dtype)) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s: a storage of class %s is not known here",
                              what, pickle_last_name(pickle, cls));
    }
    if (!dtype_bytes(tensor->dtype, numel, &tensor->storage_bytes)) {
        return bad(what, "its storage is too large", err);
    }

    return FSDP_OK;
}

/* The last element lies inside the storage. */
static bool is_inside(const torch_tensor_t *tensor)
{
    uint64_t last = tensor->offset, step, bytes;

    for (uint32_t d = 0; d < tensor->ndim; d++) {
        if (__builtin_mul_overflow(tensor->dims[d] - 1, tensor->strides[d],
                                   &step) ||
            __builtin_add_overflow(last, step, &last)) {
            return false;
        }
    }

    return last != UINT64_MAX && dtype_bytes(tensor->dtype, last + 1, &bytes) &&
           bytes <= tensor->storage_bytes;
}

static fsdp_status_t read_shape(const pickle_t *pickle, pickle_ref_t args,
                                const char *what, torch_tensor_t *tensor,
                                fsdp_error_t *err)
{
    uint32_t num;

    if (!pickle_u64(pickle, pickle_item(pickle, args, 1), &tensor->offset) ||
        !pickle_u64s(pickle, pickle_item(pickle, args, 2), tensor->dims,
                     FSDP_CKPT_MAX_NDIM, &tensor->ndim) ||
        !pickle_u64s(pickle, pickle_item(pickle, args, 3), tensor->strides,
                     FSDP_CKPT_MAX_NDIM, &num) ||
        num != tensor->ndim) {
        return bad(what, "its shape makes no sense", err);
    }

    tensor->numel = 1;
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        if (tensor->dims[d] == 0) {
            tensor->numel = 0;
            return FSDP_OK;
        }
    }
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        if (__builtin_mul_overflow(tensor->numel, tensor->dims[d],
                                   &tensor->numel)) {
            return bad(what, "its shape is too large", err);
        }
    }

    return is_inside(tensor) ? FSDP_OK
                             : bad(what, "it leaves its storage", err);
}

static bool is_true(const pickle_t *pickle, pickle_ref_t ref)
{
    int64_t value;

    return pickle_int(pickle, ref, &value) && value != 0;
}

/* What is no plain tensor, by the function that makes it. */
static fsdp_status_t refuse_made(const char *function, const char *what,
                                 fsdp_error_t *err)
{
    static const char *const kinds[][2] = {
        {"_rebuild_qtensor",                "quantized"},
        {"_rebuild_sparse_tensor",          "sparse"   },
        {"_rebuild_sparse_csr_tensor",      "sparse"   },
        {"_rebuild_nested_tensor",          "nested"   },
        {"_rebuild_njt",                    "nested"   },
        {"_rebuild_meta_tensor_no_storage", "meta"     },
    };

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(function, kinds[i][0]) == 0) {
            return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                                  "%s: is a %s tensor, which is not read here",
                                  what, kinds[i][1]);
        }
    }

    return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                          "%s: a tensor made by %s is not known here", what,
                          function);
}

fsdp_status_t torch_tensor(const pickle_t *pickle, pickle_ref_t ref,
                           const char *what, torch_tensor_t *tensor_p,
                           fsdp_error_t *err)
{
    torch_tensor_t tensor = {0};
    pickle_ref_t metadata;
    const char *name;
    bool is_v3;
    call_t call;

    if (!unwrap(pickle, ref, &call)) {
        return bad(what, "it is no tensor", err);
    }
    name = pickle_last_name(pickle, call.function);
    is_v3 = strcmp(name, "_rebuild_tensor_v3") == 0;
    if (!is_v3 && strcmp(name, "_rebuild_tensor_v2") != 0 &&
        strcmp(name, "_rebuild_tensor") != 0) {
        return refuse_made(name, what, err);
    }

    FSDP_TRY(read_storage(pickle, pickle_item(pickle, call.args, 0), what,
                          &tensor, err));
    if (is_v3) {
        name = pickle_last_name(pickle, pickle_item(pickle, call.args, 6));
        if (!torch_dtype(name, &tensor.dtype)) {
            return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                                  "%s: elements of type %s are not known here",
                                  what, name);
        }
    }
    FSDP_TRY(read_shape(pickle, call.args, what, &tensor, err));

    metadata = pickle_item(pickle, call.args, is_v3 ? 7 : 6);
    tensor.conj = is_true(pickle, pickle_get(pickle, metadata, "conj"));
    tensor.neg = is_true(pickle, pickle_get(pickle, metadata, "neg"));
    *tensor_p = tensor;
    return FSDP_OK;
}

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
