/*
 * Sharded tensors as each rank saves them: DTensor says by its mesh and its
 * placements which box is its own, ShardedTensor lists all boxes.
 */
#include "config.h"

#include "ckpt/torch_object.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/util/check.h"

enum { MAX_MESH = 8 }; /* dimensions of a mesh */

static fsdp_status_t bad(const char *what, const char *why, fsdp_error_t *err)
{
    errno = 0;
    return fsdp_error_set(err, FSDP_ERR_CORRUPT, "%s: %s", what, why);
}

/* The class of a wrapper, and its state; 0: it is none. */
static pickle_ref_t wrapped(const pickle_t *pickle, pickle_ref_t ref,
                            pickle_ref_t *cls_p)
{
    if (pickle_is(pickle, ref, "_rebuild_parameter")) {
        ref = pickle_arg(pickle, ref, 0);
    }
    if (pickle_is(pickle, ref, "_rebuild_from_type_v2") &&
        pickle_is(pickle, pickle_arg(pickle, ref, 0),
                  "_rebuild_wrapper_subclass")) {
        *cls_p = pickle_arg(pickle, ref, 1);
        return pickle_arg(pickle, ref, 3);
    }
    *cls_p = pickle_class(pickle, ref); /* before PyTorch 1.12 */
    return pickle_state(pickle, ref);
}

bool torch_is_sharded(const pickle_t *pickle, pickle_ref_t ref)
{
    pickle_ref_t cls;

    return wrapped(pickle, ref, &cls) != 0 &&
           (pickle_is(pickle, cls, "DTensor") ||
            pickle_is(pickle, cls, "ShardedTensor"));
}

void torch_sharded_free(torch_sharded_t *sharded)
{
    free(sharded->shards);
    *sharded = (torch_sharded_t){0};
}

static fsdp_status_t add_shard(torch_sharded_t *sharded,
                               const uint64_t *offsets,
                               const torch_tensor_t *local, const char *what,
                               fsdp_error_t *err)
{
    torch_shard_t *larger;

    for (uint32_t d = 0; d < sharded->ndim; d++) {
        if (local->ndim != sharded->ndim || offsets[d] > sharded->dims[d] ||
            local->dims[d] > sharded->dims[d] - offsets[d]) {
            return bad(what, "a shard of it leaves it", err);
        }
    }
    if (local->dtype != sharded->dtype || local->conj || local->neg) {
        return bad(what, "a shard of it has another element type", err);
    }

    larger =
        realloc(sharded->shards, (sharded->num_shards + 1) * sizeof(*larger));
    if (larger == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", what);
    }
    sharded->shards = larger;
    larger[sharded->num_shards] = (torch_shard_t){.local = *local};
    memcpy(larger[sharded->num_shards].offsets, offsets,
           sharded->ndim * sizeof(*offsets));
    sharded->num_shards++;
    return FSDP_OK;
}

/* --- ShardedTensor -------------------------------------------------------- */

/* State: (local shards, metadata, process group, spec, init_rrefs), or the
 * attributes by name. */
static fsdp_status_t read_sharded(const pickle_t *pickle, pickle_ref_t state,
                                  const char *what, torch_sharded_t *sharded,
                                  fsdp_error_t *err)
{
    bool by_name = pickle_kind(pickle, state) == PICKLE_DICT;
    pickle_ref_t shards = by_name ? pickle_get(pickle, state, "_local_shards")
                                  : pickle_item(pickle, state, 0);
    pickle_ref_t metadata = by_name ? pickle_get(pickle, state, "_metadata")
                                    : pickle_item(pickle, state, 1);
    pickle_ref_t properties =
        pickle_attr(pickle, metadata, "tensor_properties");
    pickle_ref_t dtype = pickle_attr(pickle, properties, "dtype");
    pickle_ref_t all = pickle_attr(pickle, metadata, "shards_metadata");
    uint64_t offsets[FSDP_CKPT_MAX_NDIM], sizes[FSDP_CKPT_MAX_NDIM];
    torch_tensor_t local;
    uint32_t num;

    if (dtype == 0) {
        dtype = pickle_item(pickle, pickle_state(pickle, properties), 0);
    }
    if (pickle_kind(pickle, shards) != PICKLE_LIST ||
        !torch_dtype(pickle_last_name(pickle, dtype), &sharded->dtype) ||
        !pickle_u64s(pickle, pickle_attr(pickle, metadata, "size"),
                     sharded->dims, FSDP_CKPT_MAX_NDIM, &sharded->ndim)) {
        return bad(what, "its metadata makes no sense", err);
    }

    sharded->world = pickle_count(pickle, all); /* at least so many */
    for (uint64_t i = 0; i < pickle_count(pickle, shards); i++) {
        pickle_ref_t shard = pickle_item(pickle, shards, i);
        pickle_ref_t box = pickle_attr(pickle, shard, "metadata");

        if (!pickle_u64s(pickle, pickle_attr(pickle, box, "shard_offsets"),
                         offsets, FSDP_CKPT_MAX_NDIM, &num) ||
            num != sharded->ndim ||
            !pickle_u64s(pickle, pickle_attr(pickle, box, "shard_sizes"), sizes,
                         FSDP_CKPT_MAX_NDIM, &num) ||
            num != sharded->ndim) {
            return bad(what, "a shard of it has no place", err);
        }
        if (num == 1 && offsets[0] >= sharded->dims[0]) {
            continue; /* nothing but the padding of a flat parameter */
        }
        FSDP_TRY(torch_tensor(pickle, pickle_attr(pickle, shard, "tensor"),
                              what, &local, err));
        if (local.ndim != num ||
            memcmp(local.dims, sizes, num * sizeof(*sizes)) != 0) {
            return bad(what, "a shard and its metadata do not agree", err);
        }
        FSDP_TRY(add_shard(sharded, offsets, &local, what, err));
    }

    return FSDP_OK;
}

/* --- DTensor -------------------------------------------------------------- */

typedef struct {
    uint32_t ndim;
    uint64_t dims[MAX_MESH], at[MAX_MESH];
    uint64_t world;
} mesh_t;

/* The shape: of the tensor of ranks, or (2.10 and later) of the layout. */
static bool read_mesh_dims(const pickle_t *pickle, pickle_ref_t mesh,
                           const char *what, mesh_t *out, fsdp_error_t *err)
{
    pickle_ref_t layout = pickle_attr(pickle, mesh, "_layout");
    pickle_ref_t axes = pickle_attr(pickle, layout, "axes");
    pickle_ref_t ranks = pickle_attr(pickle, mesh, "mesh");
    uint64_t parts[MAX_MESH];
    torch_tensor_t tensor;
    uint32_t num;

    if (ranks != 0) {
        if (torch_tensor(pickle, ranks, what, &tensor, err) != FSDP_OK ||
            tensor.ndim > MAX_MESH) {
            return false;
        }
        out->ndim = tensor.ndim;
        memcpy(out->dims, tensor.dims, tensor.ndim * sizeof(*tensor.dims));
        return true;
    }

    if (axes == 0) { /* one flat layout: shape and stride by dimension */
        axes = pickle_attr(pickle, layout, "shape");
    }
    if (axes == 0) {
        axes = pickle_attr(pickle, layout, "_shape");
    }
    out->ndim = (uint32_t)pickle_count(pickle, axes);
    if (out->ndim == 0 || pickle_count(pickle, axes) > MAX_MESH) {
        return false;
    }
    for (uint32_t d = 0; d < out->ndim; d++) {
        pickle_ref_t axis = pickle_item(pickle, axes, d);
        pickle_ref_t shape = pickle_attr(pickle, axis, "shape");

        out->dims[d] = 1;
        if (pickle_u64(pickle, axis, &out->dims[d])) {
            continue;
        }
        if (!pickle_u64s(pickle, shape != 0 ? shape : axis, parts, MAX_MESH,
                         &num)) {
            return false;
        }
        for (uint32_t i = 0; i < num; i++) {
            if (__builtin_mul_overflow(out->dims[d], parts[i], &out->dims[d])) {
                return false;
            }
        }
    }

    return true;
}

/* Where this rank is in the mesh: as it was saved, or, in a mesh of one
 * dimension, by the list of ranks. */
static bool read_mesh_at(const pickle_t *pickle, pickle_ref_t mesh,
                         uint64_t rank, mesh_t *out)
{
    pickle_ref_t at = pickle_attr(pickle, mesh, "_coordinate_on_dim");
    pickle_ref_t ranks = pickle_attr(pickle, mesh, "_flatten_mesh_list");
    uint64_t value, rest;
    uint32_t num;

    if (pickle_u64s(pickle, at, out->at, MAX_MESH, &num)) {
        return num == out->ndim;
    }

    if (ranks == 0) {
        ranks = pickle_attr(pickle, mesh, "_flatten_rank_map");
    }
    for (uint64_t i = 0; i < pickle_count(pickle, ranks); i++) {
        if (pickle_u64(pickle, pickle_item(pickle, ranks, i), &value) &&
            value == rank) {
            rest = i;
            for (uint32_t d = out->ndim; d > 0; d--) {
                out->at[d - 1] = rest % out->dims[d - 1];
                rest /= out->dims[d - 1];
            }
            return rest == 0;
        }
    }

    return false;
}

static fsdp_status_t read_mesh(const pickle_t *pickle, pickle_ref_t mesh,
                               uint64_t rank, const char *what, mesh_t *out,
                               fsdp_error_t *err)
{
    bool makes_sense;

    *out = (mesh_t){.world = 1};
    makes_sense = read_mesh_dims(pickle, mesh, what, out, err);
    for (uint32_t d = 0; d < out->ndim && makes_sense; d++) {
        makes_sense =
            out->dims[d] > 0 &&
            !__builtin_mul_overflow(out->world, out->dims[d], &out->world);
    }
    if (!makes_sense || !read_mesh_at(pickle, mesh, rank, out)) {
        return bad(what, "its mesh makes no sense", err);
    }
    for (uint32_t d = 0; d < out->ndim; d++) {
        if (out->at[d] >= out->dims[d]) {
            return bad(what, "this rank is not in its mesh", err);
        }
    }

    return FSDP_OK;
}

/* What this rank has of one dimension after one more split of it: as
 * torch.chunk() does. */
static void split(uint64_t *offset, uint64_t *size, uint64_t parts, uint64_t at)
{
    uint64_t chunk = *size / parts + (*size % parts != 0);
    uint64_t start;

    if (__builtin_mul_overflow(chunk, at, &start) || start > *size) {
        start = *size;
    }
    *offset += start;
    *size = (*size - start < chunk) ? *size - start : chunk;
}

/* One placement: the dimension that it splits. */
static fsdp_status_t read_placement(const pickle_t *pickle, pickle_ref_t ref,
                                    uint32_t ndim, const char *what,
                                    bool *splits_p, bool *strided_p,
                                    uint64_t *dim_p, fsdp_error_t *err)
{
    *strided_p = pickle_is(pickle, ref, "_StridedShard");
    *splits_p = *strided_p || pickle_is(pickle, ref, "Shard");
    if (!*splits_p && !pickle_is(pickle, ref, "Replicate")) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "%s: its placement is %s: only Shard and "
                              "Replicate can be read",
                              what, pickle_last_name(pickle, ref));
    }
    if (*splits_p &&
        (!pickle_u64(pickle, pickle_attr(pickle, ref, "dim"), dim_p) ||
         *dim_p >= ndim)) {
        return bad(what, "its placement is in no dimension of it", err);
    }

    return FSDP_OK;
}

/* The box of this rank.  A strided shard splits what the later dimensions of
 * the mesh have left: so those go first. */
static fsdp_status_t place(const pickle_t *pickle, pickle_ref_t placements,
                           const mesh_t *mesh, const char *what,
                           torch_sharded_t *sharded, uint64_t *offsets,
                           uint64_t *sizes, fsdp_error_t *err)
{
    bool splits, strided;
    uint64_t dim = 0;

    if (pickle_count(pickle, placements) != mesh->ndim) {
        return bad(what,
                   "it has not one placement for each dimension of its "
                   "mesh",
                   err);
    }

    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t d = 0; d < mesh->ndim; d++) {
            FSDP_TRY(read_placement(pickle, pickle_item(pickle, placements, d),
                                    sharded->ndim, what, &splits, &strided,
                                    &dim, err));
            if (splits && strided == (pass == 1)) {
                split(&offsets[dim], &sizes[dim], mesh->dims[d], mesh->at[d]);
            }
            if (!splits && mesh->at[d] != 0) {
                sharded->replica = true;
            }
        }
    }

    return FSDP_OK;
}

static fsdp_status_t read_dtensor(const pickle_t *pickle, pickle_ref_t ref,
                                  pickle_ref_t state, uint64_t rank,
                                  const char *what, torch_sharded_t *sharded,
                                  fsdp_error_t *err)
{
    pickle_ref_t attrs = pickle_kind(pickle, state) == PICKLE_TUPLE
                             ? pickle_item(pickle, state, 1)
                             : state;
    pickle_ref_t spec = pickle_get(pickle, attrs, "_spec");
    pickle_ref_t args = pickle_arg(pickle, ref, 2);
    uint64_t offsets[FSDP_CKPT_MAX_NDIM] = {0}, sizes[FSDP_CKPT_MAX_NDIM];
    pickle_ref_t dtype = pickle_item(pickle, args, 1);
    torch_tensor_t local;
    mesh_t mesh;

    if (!torch_dtype(pickle_last_name(pickle, dtype), &sharded->dtype) ||
        !pickle_u64s(pickle, pickle_item(pickle, args, 2), sharded->dims,
                     FSDP_CKPT_MAX_NDIM, &sharded->ndim)) {
        return bad(what, "its shape or its element type makes no sense", err);
    }

    FSDP_TRY(torch_tensor(pickle, pickle_get(pickle, attrs, "_local_tensor"),
                          what, &local, err));
    FSDP_TRY(read_mesh(pickle, pickle_attr(pickle, spec, "mesh"), rank, what,
                       &mesh, err));
    sharded->world = mesh.world;
    memcpy(sizes, sharded->dims, sizeof(sizes));
    FSDP_TRY(place(pickle, pickle_attr(pickle, spec, "placements"), &mesh, what,
                   sharded, offsets, sizes, err));
    if (local.ndim != sharded->ndim ||
        memcmp(local.dims, sizes, local.ndim * sizeof(*sizes)) != 0) {
        return bad(what,
                   "its local part has another shape than its placements say",
                   err);
    }
    return add_shard(sharded, offsets, &local, what, err);
}

fsdp_status_t torch_sharded(const pickle_t *pickle, pickle_ref_t ref,
                            uint64_t rank, const char *what,
                            torch_sharded_t *sharded_p, fsdp_error_t *err)
{
    torch_sharded_t sharded = {0};
    pickle_ref_t cls, state;
    fsdp_status_t status;

    if (pickle_is(pickle, ref, "_rebuild_parameter")) {
        ref = pickle_arg(pickle, ref, 0);
    }
    state = wrapped(pickle, ref, &cls);
    status = pickle_is(pickle, cls, "ShardedTensor")
                 ? read_sharded(pickle, state, what, &sharded, err)
                 : read_dtensor(pickle, ref, state, rank, what, &sharded, err);
    if (status != FSDP_OK) {
        torch_sharded_free(&sharded);
        return status;
    }

    *sharded_p = sharded;
    return FSDP_OK;
}
