/*
 * One pass over all bytes of a checkpoint.
 *
 * A file is a row of segments: blocks of pieces, and what lies between pieces,
 * each at most one block long.  Threads take neighbouring segments as tasks of
 * a few MiB, read them with one call, and compute the checksum of each block,
 * that of the task, and the digests' sums, while the bytes are in the cache.
 * The checksums of tasks are joined to that of the file.
 */
#include "config.h"

#include "ckpt/verify.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/format.h"
#include "lib/util/check.h"
#include "lib/util/crc.h"
#include "lib/util/crew.h"
#include "lib/util/io.h"
#include "lib/util/select.h"

#define TASK_BYTES (4u << 20)
_Static_assert(TASK_BYTES >= CATALOG_BLOCK, "a task has whole blocks");
#define JOIN_LEAST (64u << 10) /* joining costs less than computing again */
#define JOBS_MOST  8

/* A place in a file between two segments. */
typedef struct {
    uint32_t file;
    uint64_t offset;
    uint64_t next; /* index into pass_t.order: the piece here or behind */
} place_t;

typedef struct {
    uint64_t bytes;
    const catalog_piece_t *piece; /* NULL: a gap */
    uint64_t block;               /* of the piece */
} segment_t;

/* What is left of a task when it is done. */
typedef struct {
    uint64_t bytes;
    uint32_t file, crc32c;
} task_t;

typedef struct {
    verify_t *verify;
    const catalog_t *cat;
    bool *good;
    uint64_t *order;  /* pieces by file and offset */
    uint64_t *begins; /* of each file in `order`, and the end */
    uint64_t *keys;   /* of each tensor for its digest */
    int8_t *kinds;    /* VERIFY_MODEL …, -1: in no digest */
    uint64_t unchecked;
    /* Under verify->lock: */
    place_t place; /* where the next task begins */
    task_t *tasks; /* in the order of files and offsets */
    size_t num_tasks, max_tasks;
    uint64_t at, total; /* bytes of all files that are read: taken, and all */
    bool over; /* no more tasks: the end, or an error */
    fsdp_status_t status;
    fsdp_error_t err;
} pass_t;

typedef struct {
    pass_t *pass;
    char *buffer;
    int fd;
    uint32_t file; /* that is open */
    digest_t digests[VERIFY_KINDS];
} worker_t;

/* --- The order of things -------------------------------------------------- */

static int by_place(const void *a, const void *b, void *arg)
{
    const catalog_t *cat = arg;
    const catalog_piece_t *pa = &cat->pieces[*(const uint64_t *)a];
    const catalog_piece_t *pb = &cat->pieces[*(const uint64_t *)b];

    if (pa->file != pb->file) {
        return (pa->file < pb->file) ? -1 : 1;
    }

    return (pa->offset > pb->offset) - (pa->offset < pb->offset);
}

/* Leave out pieces that lie on the end of the one before: each byte belongs
 * to one segment. */
static fsdp_status_t drop_overlaps(pass_t *pass, uint64_t *num)
{
    const catalog_t *cat = pass->cat;
    uint64_t kept = 0, end = 0;
    uint32_t file = CATALOG_NONE;

    for (uint64_t i = 0; i < *num; i++) {
        const catalog_piece_t *piece = &cat->pieces[pass->order[i]];

        if (piece->file == file && piece->offset < end) {
            if (cat->shared) {
                continue;
            }
            FSDP_TRY(verify_find(
                pass->verify,
                "%s: tensor %s: elements [%" PRIu64 ", %" PRIu64
                ") lie at byte %" PRIu64 ", which is another piece's",
                cat->files[file].path, cat->tensors[piece->tensor].name,
                piece->first, piece->first + piece->count, piece->offset));
            pass->good[file] = false;
            continue;
        }
        file = piece->file;
        end = piece->offset + catalog_piece_bytes(cat, piece);
        pass->order[kept++] = pass->order[i];
    }
    *num = kept;

    return FSDP_OK;
}

static fsdp_status_t order_pieces(pass_t *pass, fsdp_error_t *err)
{
    const catalog_t *cat = pass->cat;
    uint64_t num = cat->num_pieces, i = 0;

    pass->order = calloc(num + 1, sizeof(*pass->order));
    pass->begins = calloc(cat->num_files + 1ul, sizeof(*pass->begins));
    if (pass->order == NULL || pass->begins == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "%s: no memory for the order of %" PRIu64
                              " pieces",
                              cat->path, num);
    }

    /* What is encoded belongs to the gaps: it is decoded by others. */
    num = 0;
    for (uint64_t p = 0; p < cat->num_pieces; p++) {
        if (cat->pieces[p].code == 0) {
            pass->order[num++] = p;
        }
    }
    qsort_r(pass->order, num, sizeof(*pass->order), by_place, (void *)cat);
    if (drop_overlaps(pass, &num) != FSDP_OK) {
        return fsdp_error_set(err, FSDP_ERR_CANCELLED, "the check was stopped");
    }
    for (uint32_t file = 0; file < cat->num_files; file++) {
        pass->begins[file] = i;
        while (i < num && cat->pieces[pass->order[i]].file == file) {
            i++;
        }
    }
    pass->begins[cat->num_files] = num;

    return FSDP_OK;
}

static fsdp_status_t choose_keys(pass_t *pass, fsdp_error_t *err)
{
    const catalog_t *cat = pass->cat;

    pass->keys = calloc(cat->num_tensors + 1, sizeof(*pass->keys));
    pass->kinds = calloc(cat->num_tensors + 1, sizeof(*pass->kinds));
    if (pass->keys == NULL || pass->kinds == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              cat->path);
    }

    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        const catalog_tensor_t *tensor = &cat->tensors[t];
        const char *base = select_base(tensor->name);
        char *kind;

        pass->kinds[t] = -1;
        if (base == tensor->name || tensor->boxed ||
            fsdp_dtype_bits((fsdp_dtype_t)tensor->dtype) != 32) {
            continue;
        }

        kind = io_path("%.*s", (int)(base - 1 - tensor->name), tensor->name);
        if (kind == NULL) {
            return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                                  cat->path);
        }
        pass->keys[t] = digest_key(kind, base);
        pass->kinds[t] =
            select_is_model(tensor->name) ? VERIFY_MODEL : VERIFY_OPTIM;
        free(kind);
    }

    return FSDP_OK;
}

/* --- Segments and tasks --------------------------------------------------- */

/* The segment at a place; empty at the end of the file. */
static segment_t segment_at(const pass_t *pass, const place_t *place)
{
    const catalog_t *cat = pass->cat;
    uint64_t left = cat->files[place->file].size - place->offset;
    uint64_t bytes = (left < CATALOG_BLOCK) ? left : CATALOG_BLOCK;
    const catalog_piece_t *piece;
    uint64_t inside, end;

    if (place->next == pass->begins[place->file + 1]) {
        return (segment_t){.bytes = bytes};
    }

    piece = &cat->pieces[pass->order[place->next]];
    if (place->offset < piece->offset) {
        end = piece->offset - place->offset;
        return (segment_t){.bytes = (end < bytes) ? end : bytes};
    }

    inside = place->offset - piece->offset;
    end = catalog_piece_bytes(cat, piece) - inside;
    return (segment_t){
        .bytes = (end < CATALOG_BLOCK) ? end : CATALOG_BLOCK,
        .piece = piece,
        .block = inside / CATALOG_BLOCK,
    };
}

static void step_over(const pass_t *pass, place_t *place,
                      const segment_t *segment)
{
    place->offset += segment->bytes;
    if (segment->piece != NULL &&
        place->offset == segment->piece->offset +
                             catalog_piece_bytes(pass->cat, segment->piece)) {
        place->next++;
    }
}

static void begin_file(pass_t *pass, uint32_t file)
{
    while (file < pass->cat->num_files && !pass->good[file]) {
        file++;
    }
    pass->place = (place_t){.file = file};
    pass->over = file == pass->cat->num_files;
    if (!pass->over) {
        pass->place.next = pass->begins[file];
    }
}

/* Under the lock: the segments from pass->place on that make a task.
 * @return false if there are none left, or no memory. */
static bool take_task(pass_t *pass, place_t *begin_p, task_t *task_p,
                      size_t *number_p)
{
    place_t *place = &pass->place;
    uint64_t bytes = 0;

    while (!pass->over && place->offset == pass->cat->files[place->file].size) {
        begin_file(pass, place->file + 1);
    }
    if (pass->over) {
        return false;
    }

    if (pass->num_tasks == pass->max_tasks) {
        size_t max = 2 * pass->max_tasks + 64;
        task_t *tasks = reallocarray(pass->tasks, max, sizeof(*tasks));

        if (tasks == NULL) {
            pass->status = fsdp_error_set(&pass->err, FSDP_ERR_NO_MEMORY,
                                          "no memory for %zu tasks", max);
            pass->over = true;
            return false;
        }
        pass->tasks = tasks;
        pass->max_tasks = max;
    }

    *begin_p = *place;
    for (;;) {
        segment_t segment = segment_at(pass, place);

        if (segment.bytes == 0 || bytes + segment.bytes > TASK_BYTES) {
            break;
        }
        bytes += segment.bytes;
        step_over(pass, place, &segment);
    }
    *task_p = (task_t){.bytes = bytes, .file = begin_p->file};
    *number_p = pass->num_tasks;
    pass->tasks[pass->num_tasks++] = *task_p;
    pass->at += bytes;

    return true;
}

/* The same, but those of other ranks are passed over. */
static bool take_own_task(pass_t *pass, place_t *begin_p, task_t *task_p,
                          size_t *number_p)
{
    const ranks_t *ranks = &pass->verify->ranks;
    uint64_t at;

    do {
        at = pass->at;
        if (!take_task(pass, begin_p, task_p, number_p)) {
            return false;
        }
    } while (!ranks_is_mine(ranks, at, pass->total));

    return true;
}

/* --- What a thread does --------------------------------------------------- */

static fsdp_status_t check_block(pass_t *pass, const segment_t *segment,
                                 uint64_t offset, uint32_t crc)
{
    const catalog_t *cat = pass->cat;
    const catalog_piece_t *piece = segment->piece;
    const catalog_tensor_t *tensor = &cat->tensors[piece->tensor];
    unsigned bits = fsdp_dtype_bits((fsdp_dtype_t)tensor->dtype);
    uint64_t first = piece->first + segment->block * CATALOG_BLOCK * 8 / bits;
    uint64_t end = first + segment->bytes * 8 / bits;

    if (piece->crc_first == CATALOG_NONE ||
        cat->crcs[piece->crc_first + segment->block] == crc) {
        return FSDP_OK;
    }

    pthread_mutex_lock(&pass->verify->lock);
    pass->good[piece->file] = false;
    pthread_mutex_unlock(&pass->verify->lock);
    return verify_find(
        pass->verify,
        "%s: tensor %s: elements [%" PRIu64 ", %" PRIu64 "), bytes [%" PRIu64
        ", %" PRIu64 "): their CRC-32C is %08" PRIx32 " instead of %08" PRIx32,
        cat->files[piece->file].path, tensor->name, first,
        (end < tensor->numel) ? end : tensor->numel, offset,
        offset + segment->bytes, crc,
        cat->crcs[piece->crc_first + segment->block]);
}

/* @a data may lie at any address. */
static void add_to_digest(worker_t *worker, const segment_t *segment,
                          const char *data)
{
    const catalog_piece_t *piece = segment->piece;
    uint64_t key = worker->pass->keys[piece->tensor];
    digest_t *digest = &worker->digests[worker->pass->kinds[piece->tensor]];
    uint64_t first = piece->first + segment->block * (CATALOG_BLOCK / 4);
    uint64_t count = segment->bytes / 4, n;
    uint32_t aligned[1024];

    if ((uintptr_t)data % sizeof(uint32_t) == 0) {
        digest_add(digest, key, (const void *)data, first, count);
        return;
    }
    for (uint64_t i = 0; i < count; i += n) {
        n = (count - i < 1024) ? count - i : 1024;
        memcpy(aligned, data + 4 * i, 4 * n);
        digest_add(digest, key, aligned, first + i, n);
    }
}

static fsdp_status_t check_segments(worker_t *worker, place_t place,
                                    task_t *task)
{
    pass_t *pass = worker->pass;
    const char *data = worker->buffer;
    uint64_t left = task->bytes;

    while (left > 0) {
        segment_t segment = segment_at(pass, &place);
        bool has_crc =
            segment.piece != NULL && segment.piece->crc_first != CATALOG_NONE;

        if (has_crc) {
            uint32_t crc = crc32c(0, data, segment.bytes);

            FSDP_TRY(check_block(pass, &segment, place.offset, crc));
            task->crc32c = (segment.bytes >= JOIN_LEAST)
                               ? crc32c_join(task->crc32c, crc, segment.bytes)
                               : crc32c(task->crc32c, data, segment.bytes);
        } else if (pass->cat->files[task->file].has_crc) {
            task->crc32c = crc32c(task->crc32c, data, segment.bytes);
        }
        if (segment.piece != NULL && pass->kinds[segment.piece->tensor] >= 0) {
            add_to_digest(worker, &segment, data);
        }
        step_over(pass, &place, &segment);
        data += segment.bytes;
        left -= segment.bytes;
    }

    return FSDP_OK;
}

static fsdp_status_t read_task(worker_t *worker, const place_t *place,
                               const task_t *task, fsdp_error_t *err)
{
    char *path = catalog_file_path(worker->pass->cat, task->file);
    fsdp_status_t status = FSDP_OK;

    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "no memory");
    }

    if (worker->fd < 0 || worker->file != task->file) {
        if (worker->fd >= 0) {
            close(worker->fd);
        }
        worker->fd = -1;
        worker->file = task->file;
        status = io_open(path, O_RDONLY, 0, &worker->fd, err);
    }
    if (status == FSDP_OK) {
        status = io_pread(worker->fd, worker->buffer, task->bytes,
                          place->offset, path, err);
    }
    free(path);

    return status;
}

/* Under the lock: tell how far it is. */
static bool tell_progress(verify_t *verify)
{
    const fsdp_ckpt_engine_t *engine = verify->engine;

    return engine == NULL || engine->progress == NULL ||
           engine->progress(verify->done, verify->total, engine->progress_arg);
}

/* Under the lock: the first error ends the pass. */
static void fail(pass_t *pass, fsdp_status_t status, const fsdp_error_t *err)
{
    if (pass->status == FSDP_OK) {
        pass->status = status;
        pass->err = *err;
    }
    pass->over = true;
}

static void work(void *arg, uint32_t crew_number)
{
    worker_t *worker = (worker_t *)arg + crew_number;
    pass_t *pass = worker->pass;
    verify_t *verify = pass->verify;
    fsdp_error_t err = {.status = FSDP_OK};
    fsdp_status_t status;
    place_t place;
    size_t number;
    task_t task;

    pthread_mutex_lock(&verify->lock);
    while (take_own_task(pass, &place, &task, &number)) {
        pthread_mutex_unlock(&verify->lock);
        status = read_task(worker, &place, &task, &err);
        if (status == FSDP_OK) {
            status = check_segments(worker, place, &task);
            if (status != FSDP_OK) {
                fsdp_error_set(&err, status, "the check was stopped");
            }
        }
        pthread_mutex_lock(&verify->lock);
        pass->tasks[number] = task;
        verify->done += task.bytes;
        verify->result.bytes += task.bytes;
        if (status == FSDP_OK && !tell_progress(verify)) {
            status = fsdp_error_set(&err, FSDP_ERR_CANCELLED,
                                    "the check was stopped");
        }
        if (status != FSDP_OK) {
            fail(pass, status, &err);
        }
    }
    pthread_mutex_unlock(&verify->lock);
}

/* --- The pass ------------------------------------------------------------- */

static uint32_t choose_jobs(const verify_t *verify)
{
    const fsdp_ckpt_engine_t *engine = verify->engine;
    uint64_t mem = (engine != NULL) ? engine->max_mem : 0;
    uint64_t jobs = (engine != NULL) ? engine->jobs : 0;

    if (jobs == 0) {
        long cores = sysconf(_SC_NPROCESSORS_ONLN);

        jobs = (cores < 1)           ? 1
               : (cores < JOBS_MOST) ? (uint64_t)cores
                                     : JOBS_MOST;
    }
    if (mem != 0 && jobs > mem / TASK_BYTES) {
        jobs = (mem / TASK_BYTES > 0) ? mem / TASK_BYTES : 1;
    }

    return (uint32_t)jobs;
}

static fsdp_status_t run_workers(pass_t *pass, digest_t *digests,
                                 fsdp_error_t *err)
{
    uint32_t jobs = choose_jobs(pass->verify);
    worker_t *workers = calloc(jobs, sizeof(*workers));
    char *buffers = NULL;

    if (workers == NULL || posix_memalign((void **)&buffers, 4096,
                                          (size_t)jobs * TASK_BYTES) != 0) {
        free(workers);
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for %" PRIu32 " buffers", jobs);
    }

    for (uint32_t i = 0; i < jobs; i++) {
        workers[i].pass = pass;
        workers[i].fd = -1;
        workers[i].buffer = buffers + (size_t)i * TASK_BYTES;
    }
    crew_run(jobs, work, workers);
    for (uint32_t i = 0; i < jobs; i++) {
        if (workers[i].fd >= 0) {
            close(workers[i].fd);
        }
        for (unsigned k = 0; k < VERIFY_KINDS; k++) {
            digests[k].word[0] += workers[i].digests[k].word[0];
            digests[k].word[1] += workers[i].digests[k].word[1];
        }
    }
    free(buffers);
    free(workers);

    if (pass->status != FSDP_OK && err != NULL) {
        *err = pass->err;
    }
    return pass->status;
}

/* Another file of the list that should have had this checksum. */
static const char *find_twin(const catalog_t *cat, uint32_t file, uint32_t crc)
{
    for (uint32_t i = 0; i < cat->num_files; i++) {
        if (i != file && cat->files[i].has_crc && cat->files[i].crc32c == crc &&
            cat->files[i].size == cat->files[file].size) {
            return cat->files[i].path;
        }
    }

    return NULL;
}

static fsdp_status_t check_file(pass_t *pass, uint32_t number, uint32_t crc)
{
    const catalog_t *cat = pass->cat;
    const catalog_file_t *file = &cat->files[number];
    const char *twin;
    bool known = !pass->good[number];

    if (!file->has_crc || file->crc32c == crc) {
        return FSDP_OK;
    }

    pass->good[number] = false;
    twin = find_twin(cat, number, crc);
    if (twin != NULL) {
        return verify_find(pass->verify, FORMAT_EXCHANGED, file->path, twin);
    }

    return verify_find(
        pass->verify,
        "%s: its CRC-32C is %08" PRIx32 " instead of %08" PRIx32 "%s",
        file->path, crc, file->crc32c,
        (known || cat->num_pieces == 0)
            ? ""
            : ": what was altered is HDF5's own, no tensor's data");
}

/* The checksums of the files that were read; tasks of other ranks have 0 here,
 * so that the xor of all ranks is the checksum. */
static void join_tasks(const pass_t *pass, uint32_t *crcs)
{
    for (size_t t = 0; t < pass->num_tasks; t++) {
        const task_t *task = &pass->tasks[t];

        crcs[task->file] =
            crc32c_join(crcs[task->file], task->crc32c, task->bytes);
    }
}

static fsdp_status_t check_files(pass_t *pass, const uint32_t *crcs)
{
    uint32_t last = CATALOG_NONE;

    for (size_t t = 0; t < pass->num_tasks; t++) {
        uint32_t file = pass->tasks[t].file;

        if (file != last) {
            FSDP_TRY(check_file(pass, file, crcs[file]));
        }
        last = file;
    }

    return FSDP_OK;
}

/* Bytes that are under no checksum, neither of their block nor of the file. */
static uint64_t count_unchecked(const pass_t *pass)
{
    const catalog_t *cat = pass->cat;
    uint64_t bytes = 0;

    for (uint32_t file = 0; file < cat->num_files; file++) {
        const catalog_file_t *entry = &cat->files[file];

        bytes += entry->has_crc ? 0 : entry->size - entry->checked;
    }
    for (uint64_t p = 0; p < cat->num_pieces; p++) {
        const catalog_piece_t *piece = &cat->pieces[p];

        if (!cat->files[piece->file].has_crc &&
            piece->crc_first != CATALOG_NONE) {
            bytes -= catalog_piece_bytes(cat, piece);
        }
    }

    for (uint64_t c = 0; c < cat->num_codes; c++) {
        const catalog_code_t *code = &cat->codes[c];

        if (!code->inlined && !cat->files[code->file].has_crc &&
            codec_checks(cat->steps + code->step_first, code->num_steps)) {
            bytes -= code->length;
        }
    }

    return bytes;
}

static void add_constants(const pass_t *pass, digest_t *digests)
{
    for (uint64_t t = 0; t < pass->cat->num_tensors; t++) {
        if (pass->kinds[t] >= 0) {
            digest_add_tensor(&digests[pass->kinds[t]], pass->keys[t],
                              pass->cat->tensors[t].numel);
        }
    }
}

fsdp_status_t verify_pass(verify_t *verify, const catalog_t *cat, bool *good,
                          digest_t digests[VERIFY_KINDS], fsdp_error_t *err)
{
    pass_t pass = {.verify = verify, .cat = cat, .good = good};
    uint32_t *crcs = NULL;
    fsdp_status_t status;

    if (cat->crc_zip) {
        return verify_zip(verify, cat, good, digests, err);
    }
    crcs = calloc(cat->num_files + 1ul, sizeof(*crcs));
    if (crcs == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              cat->path);
    }
    FSDP_TRY_GOTO(order_pieces(&pass, err), done);
    FSDP_TRY_GOTO(choose_keys(&pass, err), done);
    verify->result.unchecked += count_unchecked(&pass);
    verify_share_begin(verify);
    for (uint32_t file = 0; file < cat->num_files; file++) {
        pass.total += good[file] ? cat->files[file].size : 0;
    }
    begin_file(&pass, 0);
    FSDP_TRY_GOTO(run_workers(&pass, digests, err), done);
    FSDP_TRY_GOTO(verify_codes(verify, cat, good, err), done);
    join_tasks(&pass, crcs);
    FSDP_TRY_GOTO(verify_share_end(verify, cat, good, crcs, digests, err),
                  done);
    add_constants(&pass, digests);
    status = check_files(&pass, crcs);
    if (status != FSDP_OK) {
        fsdp_error_set(err, status, "the check was stopped");
    }
done:
    free(crcs);
    free(pass.tasks);
    free(pass.kinds);
    free(pass.keys);
    free(pass.begins);
    free(pass.order);
    return status;
}
