#include "config.h"

#include "ckpt/target.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/util/check.h"
#include "lib/util/io.h"
#include "lib/util/map.h"
#include "lib/util/select.h"

/* --- Files ---------------------------------------------------------------- */

uint32_t target_num_files(uint32_t world, uint32_t files)
{
    if (files == 0 || files > TARGET_MAX_FILES) {
        files = TARGET_MAX_FILES;
    }

    return (files < world) ? files : world;
}

uint32_t target_file_of(uint32_t rank, uint32_t world, uint32_t files)
{
    return (uint32_t)((uint64_t)rank * files / world);
}

uint32_t target_creator_of(uint32_t file, uint32_t world, uint32_t files)
{
    /* The least rank with rank * files / world >= file. */
    return (uint32_t)(((uint64_t)file * world + files - 1) / files);
}

void target_file_name(uint32_t file, char text[32])
{
    snprintf(text, 32, "shard-%05u.h5", file);
}

/* --- Lists ---------------------------------------------------------------- */

static int by_rank_and_order(const void *a, const void *b, void *arg)
{
    const catalog_t *cat = arg;
    const catalog_piece_t *left = &cat->pieces[*(const uint64_t *)a];
    const catalog_piece_t *right = &cat->pieces[*(const uint64_t *)b];
    uint32_t left_order = cat->tensors[left->tensor].order;
    uint32_t right_order = cat->tensors[right->tensor].order;

    if (left->rank != right->rank) {
        return (left->rank > right->rank) - (left->rank < right->rank);
    }
    if (left_order != right_order) {
        return (left_order > right_order) - (left_order < right_order);
    }
    return (left->first > right->first) - (left->first < right->first);
}

/* Checksums of a piece. */
static uint64_t piece_sums(const catalog_t *cat, const catalog_piece_t *piece)
{
    return cat->crc_zip ? 1 : catalog_blocks(catalog_piece_bytes(cat, piece));
}

static fsdp_status_t make_room_for_crcs(catalog_t *cat, uint32_t file,
                                        const uint64_t *pieces, uint64_t num,
                                        fsdp_error_t *err)
{
    uint64_t blocks = 0;

    for (uint64_t i = 0; i < num; i++) {
        blocks += piece_sums(cat, &cat->pieces[pieces[i]]);
    }
    FSDP_TRY(catalog_add_crcs(cat, file, blocks, err));

    blocks = cat->files[file].crc_first;
    for (uint64_t i = 0; i < num; i++) {
        catalog_piece_t *piece = &cat->pieces[pieces[i]];

        piece->crc_first = (uint32_t)blocks;
        blocks += piece_sums(cat, piece);
    }

    return FSDP_OK;
}

fsdp_status_t target_group(const catalog_t *cat, target_lists_t *lists_p,
                           fsdp_error_t *err)
{
    target_lists_t lists = {
        .pieces = malloc((cat->num_pieces + 1) * sizeof(*lists.pieces)),
        .first = calloc((size_t)cat->num_files + 2, sizeof(*lists.first)),
    };

    if (lists.pieces == NULL || lists.first == NULL) {
        target_lists_free(&lists);
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for the list of pieces");
    }

    /* first[f + 1] becomes where the next piece of f goes, then f's end. */
    for (uint64_t p = 0; p < cat->num_pieces; p++) {
        lists.first[cat->pieces[p].file + 2]++;
    }
    for (uint32_t f = 0; f < cat->num_files; f++) {
        lists.first[f + 2] += lists.first[f + 1];
    }
    for (uint64_t p = 0; p < cat->num_pieces; p++) {
        lists.pieces[lists.first[cat->pieces[p].file + 1]++] = p;
    }
    for (uint32_t f = 0; f < cat->num_files; f++) {
        qsort_r(lists.pieces + lists.first[f],
                lists.first[f + 1] - lists.first[f], sizeof(*lists.pieces),
                by_rank_and_order, (void *)cat);
    }

    *lists_p = lists;
    return FSDP_OK;
}

fsdp_status_t target_lists(catalog_t *cat, bool crcs, target_lists_t *lists_p,
                           fsdp_error_t *err)
{
    target_lists_t lists;
    fsdp_status_t status = FSDP_OK;

    FSDP_TRY(target_group(cat, &lists, err));
    for (uint32_t f = 0; crcs && f < cat->num_files && status == FSDP_OK; f++) {
        status = make_room_for_crcs(cat, f, lists.pieces + lists.first[f],
                                    lists.first[f + 1] - lists.first[f], err);
    }
    if (status != FSDP_OK) {
        target_lists_free(&lists);
        return status;
    }

    *lists_p = lists;
    return FSDP_OK;
}

void target_lists_free(target_lists_t *lists)
{
    free(lists->pieces);
    free(lists->first);
    *lists = (target_lists_t){0};
}

/* Reserve the space of a file, where the file system can: then running out of
 * it is noticed before any data is moved. */
static fsdp_status_t reserve(const char *path, uint64_t size, fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;
    int fd, rc;

    if (size == 0) {
        return FSDP_OK;
    }

    FSDP_TRY(io_open(path, O_RDWR, 0, &fd, err));
    do {
        rc = fallocate(fd, 0, 0, (off_t)size);
    } while (rc != 0 && errno == EINTR);
    if (rc != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
        status = fsdp_error_set(err, FSDP_ERR_IO,
                                "%s: cannot reserve %llu bytes: %m", path,
                                (unsigned long long)size);
    }
    close(fd);
    return status;
}

fsdp_status_t target_create(const format_t *format, catalog_t *cat,
                            uint32_t file, const target_lists_t *lists,
                            const char *dir, fsdp_error_t *err)
{
    char *path = io_path("%s/%s", dir, cat->files[file].path);
    fsdp_status_t status;

    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", dir);
    }

    status =
        format->create(cat, file, lists->pieces + lists->first[file],
                       lists->first[file + 1] - lists->first[file], path, err);
    if (status == FSDP_OK) {
        status = reserve(path, cat->files[file].size, err);
    }
    free(path);
    return status;
}

/* --- Units ---------------------------------------------------------------- */

/* A tensor on its way into a unit. */
typedef struct {
    const char *base;
    uint64_t tensor;
    uint64_t numel;
    uint64_t start; /* in the flat array */
    uint32_t group;
    uint32_t order;
    uint32_t kind; /* place among those of the same name and size: 0, 1, … */
} member_t;

/* Length of the name up to the first component that is a number, that
 * included: "transformer.h.3" of "transformer.h.3.ln.weight"; 0: none. */
static size_t group_size(const char *base)
{
    for (const char *p = base; *p != '\0';) {
        size_t size = strcspn(p, "./");

        if (size > 0 && strspn(p, "0123456789") == size) {
            return (size_t)(p - base) + size;
        }
        p += size;
        p += *p != '\0';
    }

    return 0;
}

static int by_group(const void *a, const void *b)
{
    const member_t *left = a, *right = b;

    if (left->group != right->group) {
        return (left->group > right->group) - (left->group < right->group);
    }
    if (left->order != right->order) {
        return (left->order > right->order) - (left->order < right->order);
    }
    return (left->kind > right->kind) - (left->kind < right->kind);
}

/* Groups of equal base name and size lie together; the first of them, in the
 * writer's order, is the one that gets a place. */
static int by_base(const void *a, const void *b)
{
    const member_t *left = a, *right = b;
    int order = (left->group > right->group) - (left->group < right->group);

    if (order == 0) {
        order = strcmp(left->base, right->base);
    }
    if (order == 0) {
        order = (left->numel > right->numel) - (left->numel < right->numel);
    }
    if (order == 0) {
        order = (left->order > right->order) - (left->order < right->order);
    }
    return order;
}

/* Number the groups of tensors without a unit after the units, in order of
 * first mention.  @return false without memory. */
static bool number_group(const catalog_t *cat, map_t *groups, member_t *member)
{
    size_t size = group_size(member->base);
    uint64_t group = groups->num;

    if (!map_get(groups, member->base, size, &group) &&
        !map_put(groups, member->base, size, group)) {
        return false;
    }
    member->group = cat->num_units + (uint32_t)group;
    return true;
}

/* @return false without memory. */
static bool number_members(const catalog_t *cat, member_t *members)
{
    map_t groups = {0};
    bool done = true;

    for (uint64_t t = 0; t < cat->num_tensors && done; t++) {
        const catalog_tensor_t *tensor = &cat->tensors[t];

        members[t] = (member_t){.base = select_base(tensor->name),
                                .group = tensor->unit,
                                .tensor = t,
                                .numel = tensor->numel,
                                .order = tensor->order};
        done = tensor->unit != CATALOG_NONE ||
               number_group(cat, &groups, &members[t]);
    }
    map_free(&groups);
    return done;
}

/* Give tensors of other kinds the place of the first one: kind 0 is laid out,
 * the others follow it. */
static void number_kinds(member_t *members, uint64_t num)
{
    qsort(members, num, sizeof(*members), by_base);
    for (uint64_t i = 1; i < num; i++) {
        member_t *member = &members[i];

        if (member->group == member[-1].group &&
            member->numel == member[-1].numel &&
            strcmp(member->base, member[-1].base) == 0) {
            member->kind = member[-1].kind + 1;
            member->order = member[-1].order;
        }
    }
    qsort(members, num, sizeof(*members), by_group);
}

static fsdp_status_t add_members(catalog_t *cat, const member_t *members,
                                 uint64_t num, uint64_t length, uint32_t files,
                                 fsdp_error_t *err)
{
    const fsdp_mesh_t *mesh = &cat->mesh;

    for (uint32_t rank = 0; rank < mesh->world; rank++) {
        uint32_t f = rank % mesh->shard, replica = rank / mesh->shard;
        uint64_t lo = f * length +
                      fsdp_layout_part_start(length, mesh->replicas, replica);
        uint64_t hi = f * length + fsdp_layout_part_start(
                                       length, mesh->replicas, replica + 1);

        for (uint64_t i = 0; i < num; i++) {
            catalog_piece_t piece = {
                .tensor = (uint32_t)members[i].tensor,
                .file = target_file_of(rank, mesh->world, files),
                .rank = rank,
                .crc_first = CATALOG_NONE,
                .box = CATALOG_NONE};

            fsdp_layout_clip(members[i].start, members[i].numel, lo, hi,
                             &piece.first, &piece.count);
            FSDP_TRY(catalog_add_piece(cat, &piece, err));
        }
    }

    return FSDP_OK;
}

/* Lay out one group and add its pieces. */
static fsdp_status_t shard_group(catalog_t *cat, member_t *members,
                                 uint64_t num, uint64_t *numels,
                                 uint64_t *starts, uint32_t files,
                                 fsdp_error_t *err)
{
    uint64_t length;
    uint32_t laid = 0;

    for (uint64_t i = 0; i < num; i++) {
        if (members[i].kind == 0) {
            numels[laid++] = members[i].numel;
        }
    }
    FSDP_TRY(
        fsdp_layout_unit(numels, laid, cat->mesh.shard, starts, &length, err));

    laid = 0;
    for (uint64_t i = 0; i < num; i++) {
        laid += members[i].kind == 0;
        members[i].start = starts[laid - 1];
    }

    return add_members(cat, members, num, length, files, err);
}

fsdp_status_t target_shard(catalog_t *cat, uint32_t files, fsdp_error_t *err)
{
    uint64_t num = cat->num_tensors, end;
    member_t *members = calloc(num + 1, sizeof(*members));
    uint64_t *numels = calloc(num + 1, sizeof(*numels));
    uint64_t *starts = calloc(num + 1, sizeof(*starts));
    fsdp_status_t status = FSDP_OK;

    if (members == NULL || numels == NULL || starts == NULL ||
        !number_members(cat, members)) {
        status = fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                "no memory for the layout of units");
        goto err_free;
    }

    number_kinds(members, num);
    for (uint64_t first = 0; first < num; first = end) {
        for (end = first + 1; end < num; end++) {
            if (members[end].group != members[first].group) {
                break;
            }
        }
        FSDP_TRY_GOTO(shard_group(cat, members + first, end - first, numels,
                                  starts, files, err),
                      err_free);
    }
err_free:
    free(members);
    free(numels);
    free(starts);
    return status;
}
