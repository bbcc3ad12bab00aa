/*
 * Saving: all ranks of a job write one checkpoint, with no other means than
 * the shared file system.
 *
 *     creator of a file              other ranks of the file
 *     ---------------------------    ------------------------------------
 *                             <--    "parts": what I have; small data too
 *     make the file
 *     "offsets": where yours are -->
 *     write own and small pieces     write large pieces, sync
 *                             <--    "blocks": their checksums
 *     table, checksum, sync
 *     "file": all about it   --> rank 0: check, index, manifest, publish
 *
 * A file that one rank has for itself, the usual case, needs none of the
 * first four.
 */
#include "config.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/commit.h"
#include "ckpt/engine.h"
#include "ckpt/save_message.h"
#include "ckpt/target.h"
#include "lib/util/check.h"
#include "lib/util/clock.h"
#include "lib/util/io.h"

typedef struct {
    const fsdp_ckpt_save_config_t *config;
    const format_t *format;
    commit_t *commit;
    uint32_t world, files;
    uint32_t file;    /* that this rank writes to, */
    uint32_t creator; /* made by this rank, */
    uint32_t members; /* shared by so many ranks, the creator included */
    buffer_t done;    /* rank 0: about file 0 */
    uint64_t bytes;   /* of this rank's parts */
    double write_seconds;
} save_t;

static fsdp_status_t no_memory(fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                          "no memory to save a checkpoint");
}

/* --- The catalog that all ranks know -------------------------------------- */

/* All tensors in the order of the descriptors, and all files, yet empty. */
static fsdp_status_t begin_catalog(const save_t *save, catalog_t *cat,
                                   fsdp_error_t *err)
{
    const fsdp_ckpt_save_config_t *config = save->config;
    uint32_t index;
    char name[32];

    catalog_init(cat);
    cat->format = save->format->id;
    cat->mesh = config->mesh;
    cat->step = config->step;
    cat->path = catalog_strdup(cat, commit_path(save->commit));
    cat->root = cat->path;
    if (cat->path == NULL) {
        return no_memory(err);
    }

    for (uint32_t i = 0; i < config->num_tensors; i++) {
        const fsdp_ckpt_desc_t *desc = &config->tensors[i];

        FSDP_TRY(catalog_add_tensor(cat, desc->name, desc->dtype, desc->ndim,
                                    desc->dims, desc->unit, NULL, err));
    }
    for (uint32_t f = 0; f < save->files; f++) {
        target_file_name(f, name);
        FSDP_TRY(catalog_add_file(cat, name, 0, &index, err));
    }

    return FSDP_OK;
}

static fsdp_status_t add_part(catalog_t *cat, uint32_t file,
                              const save_part_t *part, uint32_t tag,
                              fsdp_error_t *err)
{
    const catalog_piece_t piece = {.first = part->first,
                                   .count = part->count,
                                   .tensor = part->tensor,
                                   .file = file,
                                   .crc_first = CATALOG_NONE,
                                   .rank = part->rank,
                                   .box = CATALOG_NONE,
                                   .tag = tag};

    return catalog_add_piece(cat, &piece, err);
}

/* This rank's own parts. */
static fsdp_status_t own_parts(const save_t *save, save_part_t **parts_p,
                               fsdp_error_t *err)
{
    const fsdp_ckpt_save_config_t *config = save->config;
    save_part_t *parts = calloc(config->num_parts + 1, sizeof(*parts));

    if (parts == NULL) {
        return no_memory(err);
    }

    for (size_t i = 0; i < config->num_parts; i++) {
        const fsdp_ckpt_part_t *part = &config->parts[i];

        parts[i] = (save_part_t){.first = part->first,
                                 .count = part->count,
                                 .data = part->data,
                                 .tensor = part->tensor,
                                 .rank = config->rank};
    }

    *parts_p = parts;
    return FSDP_OK;
}

/* Write those pieces whose part has data here; tags index @a parts. */
static fsdp_status_t write_pieces(const save_t *save, catalog_t *cat,
                                  const save_part_t *parts, fsdp_error_t *err)
{
    uint64_t *pieces = calloc(cat->num_pieces + 1, sizeof(*pieces));
    const void **data = calloc(cat->num_pieces + 1, sizeof(*data));
    engine_job_t job = {.dst = cat, .options = save->config->engine};
    fsdp_status_t status;
    plan_t plan = {0};
    size_t num = 0;

    if (pieces == NULL || data == NULL) {
        status = no_memory(err);
        goto err_free;
    }

    for (uint64_t p = 0; p < cat->num_pieces; p++) {
        const save_part_t *part = &parts[cat->pieces[p].tag];

        if (part->data != NULL) {
            pieces[num] = p;
            data[num++] = part->data;
        }
    }
    FSDP_TRY_GOTO(plan_save(&plan, cat, pieces, data, num, err), err_free);
    job.plan = &plan;
    status = engine_run(&job, NULL, err);
err_free:
    plan_free(&plan);
    free(pieces);
    free(data);
    return status;
}

/* The piece of each part; CATALOG_NONE for empty ones. */
static fsdp_status_t pieces_of_parts(const catalog_t *cat, size_t num_parts,
                                     uint32_t **pieces_p, fsdp_error_t *err)
{
    uint32_t *pieces = malloc((num_parts + 1) * sizeof(*pieces));

    if (pieces == NULL) {
        return no_memory(err);
    }

    for (size_t i = 0; i < num_parts; i++) {
        pieces[i] = CATALOG_NONE;
    }
    for (uint64_t p = 0; p < cat->num_pieces; p++) {
        pieces[cat->pieces[p].tag] = (uint32_t)p;
    }

    *pieces_p = pieces;
    return FSDP_OK;
}

/* --- A rank that shares another's file ------------------------------------ */

static bool is_small(const catalog_t *cat, const catalog_piece_t *piece)
{
    return catalog_piece_bytes(cat, piece) < SAVE_SMALL;
}

static fsdp_status_t tell_parts(save_t *save, fsdp_error_t *err)
{
    const fsdp_ckpt_save_config_t *config = save->config;
    buffer_t message = {0};
    fsdp_status_t status;

    message_put_parts(&message, config->tensors, config->parts,
                      config->num_parts);
    status = message.failed ? no_memory(err)
                            : commit_post(save->commit, "parts", config->rank,
                                          message.data, message.size, err);
    buffer_free(&message);
    return status;
}

/* My large parts, at the offsets that the creator told. */
static fsdp_status_t member_catalog(const save_t *save, catalog_t *cat,
                                    const save_part_t *parts,
                                    const uint64_t *offsets,
                                    target_lists_t *lists, fsdp_error_t *err)
{
    FSDP_TRY(begin_catalog(save, cat, err));
    for (size_t i = 0; i < save->config->num_parts; i++) {
        uint64_t bytes;

        if (dtype_bytes(save->config->tensors[parts[i].tensor].dtype,
                        parts[i].count, &bytes) &&
            bytes >= SAVE_SMALL) {
            FSDP_TRY(add_part(cat, save->file, &parts[i], (uint32_t)i, err));
        }
    }
    FSDP_TRY(catalog_seal(cat, 0, err));
    FSDP_TRY(target_lists(cat, true, lists, err));
    for (uint64_t p = 0; p < cat->num_pieces; p++) {
        cat->pieces[p].offset = offsets[cat->pieces[p].tag];
    }

    return FSDP_OK;
}

/* The checksums of my large parts, in their order. */
static fsdp_status_t tell_blocks(save_t *save, const catalog_t *cat,
                                 fsdp_error_t *err)
{
    buffer_t message = {0};
    fsdp_status_t status;
    uint32_t *pieces;

    FSDP_TRY(pieces_of_parts(cat, save->config->num_parts, &pieces, err));
    for (size_t i = 0; i < save->config->num_parts; i++) {
        if (pieces[i] != CATALOG_NONE) {
            const catalog_piece_t *piece = &cat->pieces[pieces[i]];
            uint64_t blocks = catalog_blocks(catalog_piece_bytes(cat, piece));

            buffer_add(&message, cat->crcs + piece->crc_first,
                       blocks * sizeof(*cat->crcs));
        }
    }
    status = message.failed
                 ? no_memory(err)
                 : commit_post(save->commit, "blocks", save->config->rank,
                               message.data, message.size, err);
    buffer_free(&message);
    free(pieces);
    return status;
}

static fsdp_status_t save_as_member(save_t *save, fsdp_error_t *err)
{
    const fsdp_ckpt_save_config_t *config = save->config;
    target_lists_t lists = {0};
    save_part_t *parts = NULL;
    char *offsets = NULL;
    fsdp_status_t status;
    catalog_t cat;
    size_t size;
    double start;

    catalog_init(&cat);
    FSDP_TRY_GOTO(own_parts(save, &parts, err), err_free);
    FSDP_TRY_GOTO(tell_parts(save, err), err_free);
    FSDP_TRY_GOTO(commit_wait(save->commit, "offsets", config->rank, 1,
                              &save->creator, &offsets, &size, err),
                  err_free);
    if (size != config->num_parts * sizeof(uint64_t)) {
        status = fsdp_error_set(err, FSDP_ERR_MISMATCH,
                                "rank %u told %zu bytes of offsets for %zu "
                                "parts",
                                save->creator, size, config->num_parts);
        goto err_free;
    }

    start = clock_now();
    FSDP_TRY_GOTO(member_catalog(save, &cat, parts, (const uint64_t *)offsets,
                                 &lists, err),
                  err_free);
    FSDP_TRY_GOTO(write_pieces(save, &cat, parts, err), err_free);
    FSDP_TRY_GOTO(target_sync(&cat, save->file, cat.root, err), err_free);
    save->write_seconds = clock_now() - start;
    status = tell_blocks(save, &cat, err);
err_free:
    free(offsets);
    free(parts);
    target_lists_free(&lists);
    catalog_free(&cat);
    return status;
}

/* --- The rank that creates a file ----------------------------------------- */

/* The parts of all ranks of the file, one after the other. */
typedef struct {
    save_part_t *parts;
    size_t num;
    size_t *first; /* those of member i begin here; members + 1 entries */
    char **texts;  /* the members' messages, which small data point into */
} shared_t;

static void shared_free(shared_t *shared, uint32_t members)
{
    for (uint32_t i = 0; shared->texts != NULL && i + 1 < members; i++) {
        free(shared->texts[i]);
    }
    free(shared->texts);
    free(shared->parts);
    free(shared->first);
}

static fsdp_status_t append_parts(shared_t *shared, uint32_t member,
                                  const save_part_t *parts, size_t num,
                                  fsdp_error_t *err)
{
    save_part_t *larger =
        realloc(shared->parts, (shared->num + num + 1) * sizeof(*larger));

    if (larger == NULL) {
        return no_memory(err);
    }

    shared->parts = larger;
    memcpy(larger + shared->num, parts, num * sizeof(*parts));
    shared->num += num;
    shared->first[member + 1] = shared->num;
    return FSDP_OK;
}

static fsdp_status_t gather_parts(save_t *save, shared_t *shared,
                                  fsdp_error_t *err)
{
    const fsdp_ckpt_save_config_t *config = save->config;
    uint32_t others = save->members - 1;
    size_t *sizes = calloc((size_t)others + 1, sizeof(*sizes)), num;
    save_part_t *parts = NULL;
    fsdp_status_t status;

    shared->texts = calloc((size_t)others + 1, sizeof(*shared->texts));
    shared->first = calloc((size_t)others + 3, sizeof(*shared->first));
    if (sizes == NULL || shared->texts == NULL || shared->first == NULL) {
        status = no_memory(err);
        goto err_free;
    }

    FSDP_TRY_GOTO(own_parts(save, &parts, err), err_free);
    FSDP_TRY_GOTO(append_parts(shared, 0, parts, config->num_parts, err),
                  err_free);
    if (others > 0) {
        FSDP_TRY_GOTO(commit_wait(save->commit, "parts", config->rank + 1,
                                  others, NULL, shared->texts, sizes, err),
                      err_free);
    }
    for (uint32_t i = 0; i < others; i++) {
        free(parts);
        parts = NULL;
        FSDP_TRY_GOTO(message_get_parts(shared->texts[i], sizes[i],
                                        config->rank + 1 + i, config->tensors,
                                        config->num_tensors, &parts, &num, err),
                      err_free);
        FSDP_TRY_GOTO(append_parts(shared, i + 1, parts, num, err), err_free);
    }
err_free:
    free(parts);
    free(sizes);
    return status;
}

static fsdp_status_t creator_catalog(const save_t *save, catalog_t *cat,
                                     const shared_t *shared,
                                     target_lists_t *lists, fsdp_error_t *err)
{
    FSDP_TRY(begin_catalog(save, cat, err));
    for (size_t i = 0; i < shared->num; i++) {
        FSDP_TRY(
            add_part(cat, save->file, &shared->parts[i], (uint32_t)i, err));
    }
    FSDP_TRY(catalog_seal(cat, 0, err));
    FSDP_TRY(target_lists(cat, save->format->has_crcs, lists, err));
    return target_create(save->format, cat, save->file, lists, cat->root, err);
}

static fsdp_status_t tell_offsets(save_t *save, const catalog_t *cat,
                                  const shared_t *shared,
                                  const uint32_t *pieces, fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;

    for (uint32_t i = 1; i < save->members && status == FSDP_OK; i++) {
        buffer_t message = {0};

        for (size_t p = shared->first[i]; p < shared->first[i + 1]; p++) {
            uint64_t offset =
                (pieces[p] != CATALOG_NONE) ? cat->pieces[pieces[p]].offset : 0;

            buffer_add(&message, &offset, sizeof(offset));
        }
        status = message.failed ? no_memory(err)
                                : commit_post(save->commit, "offsets",
                                              save->config->rank + i,
                                              message.data, message.size, err);
        buffer_free(&message);
    }

    return status;
}

/* Where the checksums of the other members' large pieces go. */
typedef struct {
    catalog_t *cat;
    const shared_t *shared;
    const uint32_t *pieces;
    uint32_t creator; /* the rank of the first member */
} blocks_t;

static fsdp_status_t take_blocks(uint32_t rank, const char *text, size_t size,
                                 void *arg, fsdp_error_t *err)
{
    const blocks_t *blocks = arg;
    catalog_t *cat = blocks->cat;
    const size_t *first = blocks->shared->first + (rank - blocks->creator);
    cursor_t cursor = {text, size};

    for (size_t i = first[0]; i < first[1]; i++) {
        const catalog_piece_t *piece;
        uint64_t num;

        if (blocks->pieces[i] == CATALOG_NONE) {
            continue;
        }
        piece = &cat->pieces[blocks->pieces[i]];
        num = catalog_blocks(catalog_piece_bytes(cat, piece));
        if (!is_small(cat, piece) &&
            !message_take(&cursor, cat->crcs + piece->crc_first,
                          num * sizeof(*cat->crcs))) {
            return fsdp_error_set(err, FSDP_ERR_MISMATCH,
                                  "rank %u told too few checksums", rank);
        }
    }

    return FSDP_OK;
}

/* Tell rank 0, or keep it for myself, what the file holds. */
static fsdp_status_t tell_file(save_t *save, const catalog_t *cat,
                               const uint64_t *pieces, uint64_t num,
                               fsdp_error_t *err)
{
    buffer_t *message = &save->done;

    message_put_file(message, cat, save->file, pieces, num);
    if (message->failed) {
        return no_memory(err);
    }

    return (save->config->rank == 0)
               ? FSDP_OK
               : commit_post(save->commit, "file", save->file, message->data,
                             message->size, err);
}

static fsdp_status_t save_as_creator(save_t *save, fsdp_error_t *err)
{
    target_lists_t lists = {0};
    shared_t shared = {0};
    uint32_t *pieces = NULL;
    fsdp_status_t status;
    uint64_t num;
    catalog_t cat;
    double start;

    catalog_init(&cat);
    FSDP_TRY_GOTO(gather_parts(save, &shared, err), err_free);
    start = clock_now();
    FSDP_TRY_GOTO(creator_catalog(save, &cat, &shared, &lists, err), err_free);
    FSDP_TRY_GOTO(pieces_of_parts(&cat, shared.num, &pieces, err), err_free);
    FSDP_TRY_GOTO(tell_offsets(save, &cat, &shared, pieces, err), err_free);
    FSDP_TRY_GOTO(write_pieces(save, &cat, shared.parts, err), err_free);
    save->write_seconds = clock_now() - start;
    FSDP_TRY_GOTO(
        commit_take(save->commit, "blocks", save->config->rank + 1,
                    save->members - 1, NULL, take_blocks,
                    &(blocks_t){&cat, &shared, pieces, save->config->rank},
                    err),
        err_free);

    start = clock_now();
    num = lists.first[save->file + 1] - lists.first[save->file];
    FSDP_TRY_GOTO(engine_finish_file(&cat, save->file,
                                     lists.pieces + lists.first[save->file],
                                     num, cat.root, err),
                  err_free);
    FSDP_TRY_GOTO(target_sync(&cat, save->file, cat.root, err), err_free);
    save->write_seconds += clock_now() - start;
    status =
        tell_file(save, &cat, lists.pieces + lists.first[save->file], num, err);
err_free:
    shared_free(&shared, save->members);
    free(pieces);
    target_lists_free(&lists);
    catalog_free(&cat);
    return status;
}

/* --- Rank 0: the whole ---------------------------------------------------- */

static fsdp_status_t take_file(uint32_t number, const char *text, size_t size,
                               void *arg, fsdp_error_t *err)
{
    return message_get_file(text, size, arg, number, err);
}

static fsdp_status_t add_files(save_t *save, catalog_t *cat, fsdp_error_t *err)
{
    uint32_t others = save->files - 1;
    uint32_t *creators = calloc((size_t)others + 1, sizeof(*creators));
    fsdp_status_t status;

    if (creators == NULL) {
        return no_memory(err);
    }

    FSDP_TRY_GOTO(
        message_get_file(save->done.data, save->done.size, cat, 0, err),
        err_free);
    for (uint32_t i = 0; i < others; i++) {
        creators[i] = target_creator_of(i + 1, save->world, save->files);
    }
    if (others > 0) {
        status = commit_take(save->commit, "file", 1, others, creators,
                             take_file, cat, err);
    }
err_free:
    free(creators);
    return status;
}

static fsdp_status_t add_rest(const save_t *save, catalog_t *cat,
                              fsdp_error_t *err)
{
    const fsdp_ckpt_save_config_t *config = save->config;

    if (config->meta_json != NULL) {
        cat->meta = catalog_strdup(cat, config->meta_json);
        if (cat->meta == NULL) {
            cat->meta = "{}";
            return no_memory(err);
        }
    }
    for (uint32_t i = 0; i < config->num_aliases; i++) {
        if (config->alias_owners[i] >= config->num_tensors) {
            return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                                  "%s is another name of a tensor that does "
                                  "not exist",
                                  config->alias_names[i]);
        }
        FSDP_TRY(catalog_add_alias(
            cat, config->alias_names[i],
            config->tensors[config->alias_owners[i]].name, err));
    }

    memcpy(cat->digest_model, config->digest_model, sizeof(cat->digest_model));
    memcpy(cat->digest_optim, config->digest_optim, sizeof(cat->digest_optim));
    cat->has_digest_model =
        config->digest_model[0] != 0 || config->digest_model[1] != 0;
    cat->has_digest_optim =
        config->digest_optim[0] != 0 || config->digest_optim[1] != 0;
    return FSDP_OK;
}

static fsdp_status_t publish(save_t *save, fsdp_error_t *err)
{
    fsdp_status_t status;
    catalog_t cat;

    status = begin_catalog(save, &cat, err);
    if (status == FSDP_OK) {
        status = add_files(save, &cat, err);
    }
    if (status == FSDP_OK) {
        status = add_rest(save, &cat, err);
    }
    if (status == FSDP_OK) {
        status = catalog_seal(&cat, CATALOG_CHECK_ALL, err);
    }
    if (status == FSDP_OK) {
        status = save->format->finish(&cat, commit_path(save->commit), err);
    }
    if (status == FSDP_OK) {
        status = commit_publish(save->commit, true, err);
    }
    catalog_free(&cat);
    return status;
}

/* --- The call ------------------------------------------------------------- */

static fsdp_status_t check_config(const fsdp_ckpt_save_config_t *config,
                                  fsdp_error_t *err)
{
    if (config->size != sizeof(*config) || config->dir == NULL ||
        config->job_id == NULL || config->job_id[0] == '\0' ||
        strchr(config->job_id, '/') != NULL || config->step < 0 ||
        config->mesh.world == 0 || config->rank >= config->mesh.world) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "a save needs its directory, step, identifier, "
                              "rank and world");
    }

    for (size_t i = 0; i < config->num_parts; i++) {
        const fsdp_ckpt_part_t *part = &config->parts[i];

        if (part->tensor >= config->num_tensors ||
            (part->count > 0 && part->data == NULL)) {
            return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                                  "part %zu of a save is of no tensor, or has "
                                  "no data",
                                  i);
        }
    }

    return FSDP_OK;
}

/* What the checkpoint will take, with some room for HDF5's own bytes. */
static void estimate(const save_t *save, commit_config_t *begin)
{
    const fsdp_ckpt_save_config_t *config = save->config;

    begin->bytes = ((uint64_t)config->num_tensors + save->world) * 2048 +
                   (uint64_t)save->files * 65536;
    for (uint32_t i = 0; i < config->num_tensors; i++) {
        const fsdp_ckpt_desc_t *desc = &config->tensors[i];
        uint64_t numel = 1, bytes;

        for (uint32_t d = 0; d < desc->ndim; d++) {
            numel *= desc->dims[d]; /* overflow is an error of the catalog */
        }
        if (dtype_bytes(desc->dtype, numel, &bytes)) {
            begin->bytes += bytes;
        }
    }
    begin->files = save->files + 4;
    if (save->world > 1) {
        begin->files += 4 * (uint64_t)save->world + 4;
    }
}

static fsdp_status_t begin(save_t *save, fsdp_error_t *err)
{
    const fsdp_ckpt_save_config_t *config = save->config;
    commit_config_t begin = {.id = config->job_id,
                             .is_dir = true,
                             .replace = true,
                             .rank = config->rank,
                             .world = save->world,
                             .deadline = config->deadline};
    char *target = io_path("%s/step-%08" PRId64, config->dir, config->step);
    fsdp_status_t status = FSDP_OK;

    if (target == NULL) {
        return no_memory(err);
    }

    begin.target = target;
    estimate(save, &begin);
    if (config->rank == 0) {
        status = io_make_dirs(config->dir, err);
    }
    if (status == FSDP_OK) {
        status = commit_begin(&begin, &save->commit, err);
    }
    free(target);
    return status;
}

static void find_place(save_t *save)
{
    const fsdp_ckpt_save_config_t *config = save->config;

    save->world = config->mesh.world;
    save->files = target_num_files(save->world, config->files);
    save->file = target_file_of(config->rank, save->world, save->files);
    save->creator = target_creator_of(save->file, save->world, save->files);
    save->members =
        target_creator_of(save->file + 1, save->world, save->files) -
        save->creator;
    for (size_t i = 0; i < config->num_parts; i++) {
        uint64_t bytes = 0;

        (void)dtype_bytes(config->tensors[config->parts[i].tensor].dtype,
                          config->parts[i].count, &bytes);
        save->bytes += bytes;
    }
}

fsdp_status_t fsdp_ckpt_save(const fsdp_ckpt_save_config_t *config,
                             fsdp_ckpt_save_result_t *result_p,
                             fsdp_error_t *err)
{
    save_t save = {.config = config, .format = format_get(FSDP_CKPT_HDF5)};
    double start = clock_now();
    fsdp_error_t own;
    fsdp_status_t status;

    err = (err != NULL) ? err : &own;
    FSDP_TRY(check_config(config, err));
    find_place(&save);
    FSDP_TRY(begin(&save, err));

    status = (config->rank == save.creator) ? save_as_creator(&save, err)
                                            : save_as_member(&save, err);
    if (status == FSDP_OK) {
        status = (config->rank == 0) ? publish(&save, err)
                                     : commit_wait_published(save.commit, err);
    }
    status = commit_end(save.commit, status, err);
    buffer_free(&save.done);

    if (status == FSDP_OK && result_p != NULL) {
        *result_p =
            (fsdp_ckpt_save_result_t){.bytes = save.bytes,
                                      .seconds = clock_now() - start,
                                      .write_seconds = save.write_seconds};
    }
    return status;
}
