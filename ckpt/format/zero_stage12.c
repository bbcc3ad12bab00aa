/*
 * Stages 1 and 2 of ZeRO.
 *
 * With round_robin_gradients (stage 2) the parameters of a group are dealt to
 * the ranks like cards before they are put end to end: those with index 0, W,
 * 2W, … first.  param_slice_mappings does not tell that order, so it is taken
 * from the settings and proved by the weights.
 */
#include "config.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/format/zero.h"
#include "lib/util/check.h"
#include "lib/util/io.h"

enum { PROBE = 64 }; /* elements that are compared of each parameter */

/* One group of parameters. */
typedef struct {
    uint64_t first, num; /* parameters */
    uint64_t *order;     /* as they lie in the flat array */
    uint64_t numel;      /* without padding */
    uint64_t partition;  /* elements of a rank, padding included */
} group_t;

typedef struct {
    zero_t *zero;
    const zero_file_t *model;
    group_t *groups;
} stage_t;

/* --- Order ---------------------------------------------------------------- */

static void lay_out(zero_t *zero, const group_t *group)
{
    uint64_t start = 0;

    for (uint64_t i = 0; i < group->num; i++) {
        zero_param_t *param = &zero->params[group->first + group->order[i]];

        param->start = start;
        start += param->numel;
    }
}

static void order_plain(zero_t *zero, const group_t *group)
{
    for (uint64_t i = 0; i < group->num; i++) {
        group->order[i] = i;
    }
    lay_out(zero, group);
}

static void order_round_robin(zero_t *zero, const group_t *group)
{
    uint64_t next = 0;

    for (uint64_t r = 0; r < zero->world && r < group->num; r++) {
        for (uint64_t i = r; i < group->num; i += zero->world) {
            group->order[next++] = i;
        }
    }
    lay_out(zero, group);
}

static bool is_round_robin(const zero_file_t *file)
{
    pickle_ref_t config =
        zero_file_get(file, zero_file_root(file), "ds_config");
    pickle_ref_t zero = zero_file_get(file, config, "zero_optimization");
    int64_t stage = 0, on = 0;

    return pickle_int(file->file.pickle, zero_file_get(file, zero, "stage"),
                      &stage) &&
           stage == 2 &&
           pickle_int(file->file.pickle,
                      zero_file_get(file, zero, "round_robin_gradients"),
                      &on) &&
           on != 0;
}

/* --- Groups --------------------------------------------------------------- */

static fsdp_status_t make_groups(stage_t *stage, fsdp_error_t *err)
{
    zero_t *zero = stage->zero;
    uint64_t next = 0;

    stage->groups = calloc(zero->num_groups + 1, sizeof(*stage->groups));
    if (stage->groups == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "no memory");
    }

    for (uint32_t g = 0; g < zero->num_groups; g++) {
        group_t *group = &stage->groups[g];

        group->first = next;
        while (next < zero->num_params && zero->params[next].group == g) {
            if (__builtin_add_overflow(group->numel, zero->params[next].numel,
                                       &group->numel)) {
                return zero_file_bad(stage->model, err,
                                     "group %u has more than 2^64 elements", g);
            }
            next++;
        }
        group->num = next - group->first;
        group->order = calloc(group->num + 1, sizeof(*group->order));
        if (group->order == NULL) {
            return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "no memory");
        }
        order_plain(zero, group);
    }

    return FSDP_OK;
}

static void free_groups(stage_t *stage)
{
    for (uint32_t g = 0; stage->groups != NULL && g < stage->zero->num_groups;
         g++) {
        free(stage->groups[g].order);
    }
    free(stage->groups);
}

/* --- Padding -------------------------------------------------------------- */

static pickle_ref_t optim_dict(const zero_file_t *file)
{
    return zero_file_get(file, zero_file_root(file), "optimizer_state_dict");
}

/* @return false if the file does not say: older versions. */
static bool padding_of(const zero_file_t *file, uint32_t group,
                       uint64_t *padding_p)
{
    pickle_ref_t list = zero_file_get(file, optim_dict(file), "group_paddings");

    return pickle_u64(file->file.pickle,
                      pickle_item(file->file.pickle, list, group), padding_p);
}

/* Elements of the last partition that are kept when its padding is cut off as
 * DeepSpeed does it: a slice up to a negative index counts from the end. */
static uint64_t trimmed(uint64_t partition, uint64_t padding)
{
    if (padding <= partition) {
        return partition - padding;
    }
    return (padding - partition < partition) ? 2 * partition - padding : 0;
}

/* The size of a partition follows from a rank that is not the last one, or
 * from the padding of the only one. */
static fsdp_status_t set_partition(const stage_t *stage, uint32_t g,
                                   const zero_file_t *file,
                                   const zero_part_t *part, fsdp_error_t *err)
{
    group_t *group = &stage->groups[g];
    uint64_t world = stage->zero->world, there = part->flats[0].numel, total;
    uint64_t padding = 0;

    if (world == 1) {
        (void)padding_of(file, g, &padding);
        there = (there == group->numel) ? there + padding : there;
    }
    if (__builtin_mul_overflow(there, world, &total) || total < group->numel) {
        return zero_file_bad(file, err,
                             "group %u has %" PRIu64 " elements on each of "
                             "%" PRIu64 " ranks, but its parameters have "
                             "%" PRIu64,
                             g, there, world, group->numel);
    }

    group->partition = there;
    return FSDP_OK;
}

/* What one rank holds of a group must be what follows from shapes and
 * padding, to the element. */
static fsdp_status_t check_partition(const stage_t *stage, uint32_t g,
                                     uint32_t rank, const zero_file_t *file,
                                     const zero_part_t *part, fsdp_error_t *err)
{
    const group_t *group = &stage->groups[g];
    uint32_t world = stage->zero->world;
    uint64_t surplus = group->partition * world - group->numel;
    uint64_t is_last = rank + 1 == world, told = 0, least;
    bool known = padding_of(file, g, &told);

    if (known && told != (is_last ? surplus : 0)) {
        return zero_file_bad(file, err,
                             "group %u: says a padding of %" PRIu64
                             ", shapes and partitions say %" PRIu64,
                             g, told, is_last ? surplus : 0);
    }
    if (!known && surplus >= 2 * (uint64_t)world) {
        return zero_file_bad(file, err,
                             "group %u: %" PRIu64 " elements belong to no "
                             "parameter",
                             g, surplus);
    }

    least = is_last ? trimmed(group->partition, surplus) : group->partition;
    for (uint32_t k = 0; k < stage->zero->num_kinds; k++) {
        uint64_t numel = part->flats[k].numel;

        if (!stage->zero->kinds[k].scalar && numel != group->partition &&
            numel != least) {
            return zero_file_bad(file, err,
                                 "group %u: %s of rank %u has %" PRIu64
                                 " elements, should have %" PRIu64,
                                 g, stage->zero->kinds[k].name, rank, numel,
                                 group->partition);
        }
    }

    return FSDP_OK;
}

/* Padding inside a group is not known well enough. */
static fsdp_status_t check_alignment(const zero_file_t *file, uint32_t g,
                                     fsdp_error_t *err)
{
    const pickle_t *pickle = file->file.pickle;
    pickle_ref_t lists =
        zero_file_get(file, optim_dict(file), "param_alignment_paddings");
    pickle_ref_t list = pickle_item(pickle, lists, g);
    uint64_t padding;

    for (uint64_t i = 0; i < pickle_count(pickle, list); i++) {
        if (pickle_u64(pickle, pickle_item(pickle, list, i), &padding) &&
            padding > 0) {
            return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                                  "%s: group %u: parameters with padding "
                                  "between them are not read here",
                                  file->file.path, g);
        }
    }

    return FSDP_OK;
}

/* Where DeepSpeed says that the parameters of a partition are: in the plain
 * order this must be what was computed. */
static fsdp_status_t check_mapping(const stage_t *stage, uint32_t g,
                                   uint32_t rank, const zero_file_t *file,
                                   fsdp_error_t *err)
{
    const pickle_t *pickle = file->file.pickle;
    pickle_ref_t list =
        zero_file_get(file, optim_dict(file), "param_slice_mappings");
    pickle_ref_t dict = pickle_as_dict(pickle, pickle_item(pickle, list, g));
    const group_t *group = &stage->groups[g];
    uint64_t at = 0, lo = rank * group->partition, hi = lo + group->partition;

    for (uint64_t i = 0; dict != 0 && i < group->num; i++) {
        const zero_param_t *param =
            &stage->zero->params[group->first + group->order[i]];
        uint64_t from = (param->start > lo) ? param->start : lo;
        uint64_t end = param->start + param->numel;
        uint64_t to = (end < hi) ? end : hi, start = 0, numel = 0;
        pickle_ref_t place = pickle_item(pickle, dict, at);
        const char *name =
            pickle_str(pickle, pickle_key(pickle, dict, at), NULL);

        if (from >= to) {
            continue;
        }
        if (name == NULL || strcmp(name, param->name) != 0 ||
            !pickle_u64(pickle, pickle_attr(pickle, place, "start"), &start) ||
            !pickle_u64(pickle, pickle_attr(pickle, place, "numel"), &numel) ||
            start != from - lo || numel != to - from) {
            return zero_file_bad(file, err,
                                 "group %u: param_slice_mappings says %s at "
                                 "%" PRIu64 ", the shapes say %s at %" PRIu64,
                                 g, (name != NULL) ? name : "nothing", start,
                                 param->name, from - lo);
        }
        at++;
    }

    if (dict != 0 && at != pickle_count(pickle, dict)) {
        return zero_file_bad(file, err,
                             "group %u: param_slice_mappings has parameters "
                             "that the shapes do not have",
                             g);
    }
    return FSDP_OK;
}

/* --- Pieces --------------------------------------------------------------- */

static fsdp_status_t add_pieces(const stage_t *stage, uint32_t g, uint32_t rank,
                                const zero_file_t *file,
                                const zero_part_t *part, fsdp_error_t *err)
{
    zero_t *zero = stage->zero;
    const group_t *group = &stage->groups[g];
    uint64_t lo = rank * group->partition, hi = lo + group->partition;

    for (uint64_t i = 0; i < group->num; i++) {
        uint64_t index = group->first + group->order[i];
        const zero_param_t *param = &zero->params[index];
        uint64_t from = (param->start > lo) ? param->start : lo;
        uint64_t end = param->start + param->numel;
        uint64_t to = (end < hi) ? end : hi;

        for (uint32_t k = 0; k < zero->num_kinds; k++) {
            if (zero->kinds[k].scalar) {
                if (rank == 0) {
                    FSDP_TRY(zero_add_piece(zero, file, 0, k, index, 0, 1,
                                            &part->flats[k], 0, err));
                }
            } else if (from < to) {
                FSDP_TRY(zero_add_piece(zero, file, rank, k, index,
                                        from - param->start, to - from,
                                        &part->flats[k], from - lo, err));
            }
        }
    }

    return FSDP_OK;
}

/* The optimizer's state of a group: a state dict, or a list with one dict a
 * group ("elastic" checkpoints). */
static pickle_ref_t state_of(const zero_file_t *file, uint32_t group)
{
    const pickle_t *pickle = file->file.pickle;
    pickle_ref_t base =
        zero_file_get(file, optim_dict(file), "base_optimizer_state");
    pickle_ref_t states =
        pickle_as_dict(pickle, zero_file_get(file, base, "state"));

    if (pickle_kind(pickle, base) == PICKLE_LIST) {
        return pickle_item(pickle, base, group);
    }
    for (uint64_t i = 0; i < pickle_count(pickle, states); i++) {
        uint64_t key;

        if (pickle_u64(pickle, pickle_key(pickle, states, i), &key) &&
            key == group) {
            return pickle_item(pickle, states, i);
        }
    }

    return 0;
}

/* --- The proof of an order ------------------------------------------------ */

/* Where the flat arrays of a group's master weights are: all ranks' parts. */
typedef struct {
    char **paths;
    zero_flat_t *flats;
} where_t;

/* Up to PROBE elements from the start of a parameter, which may go over the
 * end of a partition. */
static fsdp_status_t read_master(const where_t *where, uint64_t partition,
                                 uint64_t start, uint64_t count, void *data,
                                 size_t size, fsdp_error_t *err)
{
    for (uint64_t done = 0; done < count;) {
        uint64_t rank = (start + done) / partition;
        uint64_t at = (start + done) % partition;
        uint64_t more = count - done;
        fsdp_status_t status;
        int fd;

        if (more > partition - at) {
            more = partition - at;
        }
        if (where->flats[rank].numel < at + more) {
            return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                  "%s: a partition is too short",
                                  where->paths[rank]);
        }
        FSDP_TRY(io_open(where->paths[rank], O_RDONLY, 0, &fd, err));
        status = io_pread(fd, (char *)data + done * size, more * size,
                          where->flats[rank].offset + at * size,
                          where->paths[rank], err);
        close(fd);
        FSDP_TRY(status);
        done += more;
    }

    return FSDP_OK;
}

/* Are the weights of a parameter what its master weights become? */
static fsdp_status_t same_values(const stage_t *stage, const group_t *group,
                                 const where_t *where, uint64_t index,
                                 bool *same_p, fsdp_error_t *err)
{
    const zero_param_t *param = &stage->zero->params[index];
    pickle_ref_t module =
        zero_file_get(stage->model, zero_file_root(stage->model), "module");
    fsdp_dtype_t dtype = stage->zero->kinds[0].dtype;
    uint64_t count = (param->numel < PROBE) ? param->numel : PROBE;
    char master[PROBE * 8], made[PROBE * 8], weights[PROBE * 8];
    size_t size = fsdp_dtype_bits(dtype) / 8, width;
    zero_flat_t flat;
    fsdp_status_t status;
    int fd;

    FSDP_TRY(zero_file_flat(stage->model,
                            zero_file_get(stage->model, module, param->name),
                            param->name, &flat, err));
    if (flat.numel != param->numel || !dtype_is_float(flat.dtype) ||
        !dtype_is_float(dtype)) {
        return zero_file_bad(stage->model, err,
                             "tensor %s: does not have the shape or a type of "
                             "its master weights",
                             param->name);
    }

    width = fsdp_dtype_bits(flat.dtype) / 8;
    FSDP_TRY(read_master(where, group->partition, param->start, count, master,
                         size, err));
    FSDP_TRY(io_open(stage->model->file.path, O_RDONLY, 0, &fd, err));
    status = io_pread(fd, weights, count * width, flat.offset,
                      stage->model->file.path, err);
    close(fd);
    FSDP_TRY(status);

    if (!dtype_convert(dtype, master, flat.dtype, made, count)) {
        memcpy(made, master, count * width); /* the same type */
    }
    *same_p = memcmp(made, weights, count * width) == 0;
    return FSDP_OK;
}

static fsdp_status_t same_group(const stage_t *stage, const group_t *group,
                                const where_t *where, bool *same_p,
                                fsdp_error_t *err)
{
    *same_p = true;
    for (uint64_t i = 0; i < group->num && *same_p; i++) {
        FSDP_TRY(
            same_values(stage, group, where, group->first + i, same_p, err));
    }

    return FSDP_OK;
}

/* Find the partitions of a group's master weights on all ranks. */
static fsdp_status_t find_where(const stage_t *stage, uint32_t g,
                                where_t *where, fsdp_error_t *err)
{
    for (uint32_t rank = 0; rank < stage->zero->world; rank++) {
        fsdp_status_t status;
        zero_file_t file = {0};
        catalog_t cat;

        catalog_init(&cat); /* for its files only */
        cat.root = stage->zero->cat->root;
        cat.path = stage->zero->cat->path;
        {
            zero_t zero = *stage->zero;

            zero.cat = &cat;
            status = zero_open_optim(&zero, rank, &file, err);
        }
        if (status == FSDP_OK) {
            pickle_ref_t list = zero_file_get(
                &file, optim_dict(&file), "single_partition_of_fp32_groups");

            status = zero_file_flat(
                &file, pickle_item(file.file.pickle, list, g),
                "single_partition_of_fp32_groups", &where->flats[rank], err);
        }
        if (status == FSDP_OK) {
            where->paths[rank] = strdup(file.file.path);
            if (where->paths[rank] == NULL) {
                status = fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "no memory");
            }
        }
        zero_file_close(&file);
        catalog_free(&cat);
        FSDP_TRY(status);
    }

    return FSDP_OK;
}

/* The order of a group with round robin: that which gives the weights. */
static fsdp_status_t prove_order(const stage_t *stage, uint32_t g,
                                 fsdp_error_t *err)
{
    const group_t *group = &stage->groups[g];
    uint32_t world = stage->zero->world;
    where_t where = {.paths = calloc(world, sizeof(*where.paths)),
                     .flats = calloc(world, sizeof(*where.flats))};
    fsdp_status_t status = FSDP_OK;
    bool same = false;

    if (where.paths == NULL || where.flats == NULL) {
        status = fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "no memory");
        goto err_free;
    }

    FSDP_TRY_GOTO(find_where(stage, g, &where, err), err_free);
    order_round_robin(stage->zero, group);
    FSDP_TRY_GOTO(same_group(stage, group, &where, &same, err), err_free);
    if (!same) {
        order_plain(stage->zero, group);
        FSDP_TRY_GOTO(same_group(stage, group, &where, &same, err), err_free);
    }
    if (!same) {
        status =
            fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                           "%s: group %u: round_robin_gradients is set "
                           "and neither order of the parameters gives the "
                           "weights of %s",
                           stage->zero->cat->path, g, stage->model->file.path);
    }
err_free:
    for (uint32_t r = 0; where.paths != NULL && r < world; r++) {
        free(where.paths[r]);
    }
    free(where.paths);
    free(where.flats);
    return status;
}

/* --- All ranks ------------------------------------------------------------ */

static fsdp_status_t add_rank_group(const stage_t *stage, uint32_t g,
                                    uint32_t rank, const zero_file_t *file,
                                    bool round_robin, fsdp_error_t *err)
{
    pickle_ref_t list = zero_file_get(file, optim_dict(file),
                                      "single_partition_of_fp32_groups");
    zero_part_t part;

    FSDP_TRY(check_alignment(file, g, err));
    FSDP_TRY(zero_find_part(stage->zero, file, state_of(file, g),
                            pickle_item(file->file.pickle, list, g), &part,
                            err));
    if (rank == 0) {
        FSDP_TRY(set_partition(stage, g, file, &part, err));
        if (round_robin) {
            FSDP_TRY(prove_order(stage, g, err));
        }
    }
    FSDP_TRY(check_partition(stage, g, rank, file, &part, err));
    if (!round_robin) {
        FSDP_TRY(check_mapping(stage, g, rank, file, err));
    }
    return add_pieces(stage, g, rank, file, &part, err);
}

static fsdp_status_t add_rank(const stage_t *stage, uint32_t rank,
                              fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;
    pickle_ref_t list;
    zero_file_t file;

    FSDP_TRY(zero_open_optim(stage->zero, rank, &file, err));
    list = zero_file_get(&file, optim_dict(&file),
                         "single_partition_of_fp32_groups");
    if (pickle_count(file.file.pickle, list) != stage->zero->num_groups) {
        status = zero_file_bad(
            &file, err, "has %" PRIu64 " groups, the model has %u",
            pickle_count(file.file.pickle, list), stage->zero->num_groups);
    }
    for (uint32_t g = 0; g < stage->zero->num_groups && status == FSDP_OK;
         g++) {
        status =
            add_rank_group(stage, g, rank, &file, is_round_robin(&file), err);
    }
    if (status == FSDP_OK && rank == 0) {
        status = zero_add_optim_values(&file, err);
    }
    zero_file_close(&file);
    return status;
}

fsdp_status_t zero_add_stage12(zero_t *zero, const zero_file_t *model,
                               fsdp_error_t *err)
{
    stage_t stage = {.zero = zero, .model = model};
    fsdp_status_t status = make_groups(&stage, err);

    for (uint32_t rank = 0; rank < zero->world && status == FSDP_OK; rank++) {
        status = add_rank(&stage, rank, err);
    }
    free_groups(&stage);
    return status;
}
