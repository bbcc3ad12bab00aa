#include "config.h"

#include "ckpt/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "ckpt/files.h"
#include "ckpt/gather.h"
#include "ckpt/link.h"
#include "lib/util/check.h"
#include "lib/util/crc.h"
#include "lib/util/crew.h"
#include "lib/util/io.h"

#define BATCH_BYTES (4u << 20)   /* what one thread moves at a time, at most */
#define MEM_MIN     (64u << 10)  /* least buffer that is worth a thread */
#define FLUSH_LEAST (256u << 10) /* shorter runs are left to the sync */
#define PAGE        4096
#define UNIT        48 /* copies are cut at multiples of it: any type fits */
#define CUT         (3 * PAGE) /* or of this: whole pages, where aligned */

enum { BATCH_PARTS = 256 };

/* A stretch of one copy that is worked on: where its bytes are in memory. */
typedef struct {
    const plan_copy_t *copy;
    uint64_t from;  /* bytes of the source into the copy */
    uint64_t bytes; /* of the source */
    char *src;      /* these bytes */
    char *dst;      /* those to be written: differ only for a cast */
} part_t;

/* Where the work stands; shared by the threads. */
typedef struct {
    const engine_job_t *job;
    const plan_t *plan;
    files_t *src_files, *dst_files;
    uint64_t buffer; /* bytes of each thread */
    uint64_t stage;  /* bytes behind them, to gather from boxes */
    uint64_t decode; /* and what decoding may take besides */
    uint64_t total;  /* bytes to be moved */

    pthread_mutex_t telling; /* held by the thread that reports progress */

    pthread_mutex_t lock;
    uint64_t next_copy, next_byte; /* the first bytes not yet taken */
    uint64_t next_decode;          /* and of what has to be decoded */
    fsdp_status_t status;          /* of the first thread that failed */
    fsdp_error_t err;

    _Atomic bool stop;
    _Atomic uint64_t bytes_read, bytes_written, bytes_shared;
    _Atomic uint64_t bytes_done, peak_mem;
    _Atomic int link_error; /* why one could not be shared, or 0 */

    engine_sums_t sums;
} run_t;

static void fail(run_t *run, fsdp_status_t status, const fsdp_error_t *err)
{
    pthread_mutex_lock(&run->lock);
    if (run->status == FSDP_OK) {
        run->status = status;
        run->err = *err;
    }
    pthread_mutex_unlock(&run->lock);
    atomic_store(&run->stop, true);
}

/* Whichever thread has something to say: the work of another may be long. */
static fsdp_status_t report(run_t *run, fsdp_error_t *err)
{
    const fsdp_ckpt_engine_t *options = &run->job->options;
    bool go_on;

    if (options->progress == NULL ||
        pthread_mutex_trylock(&run->telling) != 0) {
        return FSDP_OK;
    }

    go_on = options->progress(atomic_load(&run->bytes_done), run->total,
                              options->progress_arg);
    pthread_mutex_unlock(&run->telling);
    return go_on ? FSDP_OK
                 : fsdp_error_set(err, FSDP_ERR_CANCELLED, "stopped as asked");
}

/* --- Taking work ---------------------------------------------------------- */

static bool is_cast(const plan_copy_t *copy)
{
    return copy->src_dtype != copy->dst_dtype;
}

/* Bytes that @a bytes of the source become. */
static uint64_t dst_bytes(const plan_copy_t *copy, uint64_t bytes)
{
    plan_copy_t part = *copy;

    part.bytes = bytes;
    part.flags &= (uint8_t)~PLAN_DISCARD;
    return plan_dst_bytes(&part);
}

/* Bytes of buffer that a stretch needs: none where it lies in memory. */
static uint64_t need_src(const plan_copy_t *copy, uint64_t bytes)
{
    bool in_place = (copy->flags & PLAN_SRC_MEM) != 0 ||
                    ((copy->flags & PLAN_DST_MEM) != 0 && !is_cast(copy));

    return in_place ? 0 : bytes;
}

static uint64_t need_dst(const plan_copy_t *copy, uint64_t bytes)
{
    return (is_cast(copy) && (copy->flags & PLAN_DST_MEM) == 0)
               ? dst_bytes(copy, bytes)
               : 0;
}

/* How much of @a bytes fits into @a room of buffer. */
static uint64_t fit(const plan_copy_t *copy, uint64_t bytes, uint64_t room)
{
    uint64_t need = need_src(copy, bytes) + need_dst(copy, bytes);
    uint64_t per_unit = need_src(copy, UNIT) + need_dst(copy, UNIT);

    return (need <= room) ? bytes : room / per_unit * UNIT;
}

/* Take the next stretches; @return their number, 0 at the end. */
static unsigned take(run_t *run, part_t *parts, char *buffer)
{
    const plan_t *plan = run->plan;
    uint64_t used = 0, total = 0, bytes;
    unsigned num = 0;

    pthread_mutex_lock(&run->lock);
    while (num < BATCH_PARTS && total < BATCH_BYTES &&
           run->next_copy < plan->num_plain) {
        const plan_copy_t *copy = &plan->copies[run->next_copy];

        bytes = copy->bytes - run->next_byte;
        if (bytes > BATCH_BYTES - total) {
            bytes = (BATCH_BYTES - total) / CUT * CUT;
        }
        bytes = fit(copy, bytes, run->buffer - used);
        if (bytes == 0) {
            break;
        }

        parts[num] =
            (part_t){.copy = copy, .from = run->next_byte, .bytes = bytes};
        parts[num].src = buffer + used;
        used += need_src(copy, bytes);
        parts[num].dst = buffer + used;
        used += need_dst(copy, bytes);
        num++;
        total += bytes;
        run->next_byte += bytes;
        if (run->next_byte == copy->bytes) {
            run->next_byte = 0;
            run->next_copy++;
        }
    }
    pthread_mutex_unlock(&run->lock);

    return num;
}

/* Point parts that need no buffer at the memory itself. */
static void place(part_t *part)
{
    const plan_copy_t *copy = part->copy;
    bool src_mem = (copy->flags & PLAN_SRC_MEM) != 0;
    bool dst_mem = (copy->flags & PLAN_DST_MEM) != 0;

    if (dst_mem) {
        part->dst = (char *)(uintptr_t)copy->dst + dst_bytes(copy, part->from);
    }
    if (src_mem) {
        part->src = (char *)(uintptr_t)copy->src + part->from;
    } else if (dst_mem && !is_cast(copy)) {
        part->src = part->dst;
    }
    if (!dst_mem && !is_cast(copy)) {
        part->dst = part->src;
    }
}

/* --- Reading and writing -------------------------------------------------- */

static uint64_t src_at(const run_t *run, const part_t *part)
{
    return plan_src_offset(run->plan, part->copy) + part->from;
}

static uint64_t dst_at(const run_t *run, const part_t *part)
{
    return plan_dst_offset(run->plan, part->copy) +
           dst_bytes(part->copy, part->from);
}

static uint32_t src_file(const run_t *run, const part_t *part)
{
    return run->plan->src->pieces[part->copy->src_piece].file;
}

static uint32_t dst_file(const run_t *run, const part_t *part)
{
    return run->plan->dst->pieces[part->copy->dst_piece].file;
}

static bool reads(const part_t *part)
{
    return (part->copy->flags & PLAN_SRC_MEM) == 0;
}

/* Does it lie behind the one before it, in the same file of the source? */
static bool follows(const run_t *run, const part_t *part)
{
    return src_file(run, part) == src_file(run, part - 1) &&
           src_at(run, part - 1) + part[-1].bytes == src_at(run, part);
}

static bool gathers(const part_t *part)
{
    return (part->copy->flags & PLAN_GATHER) != 0;
}

static bool writes(const part_t *part)
{
    return (part->copy->flags & (PLAN_DST_MEM | PLAN_DISCARD)) == 0;
}

/* Read parts that lie end to end in one file. */
static fsdp_status_t read_run(run_t *run, const part_t *parts, unsigned num,
                              fsdp_error_t *err)
{
    uint32_t file = src_file(run, &parts[0]);
    struct iovec iov[BATCH_PARTS];
    fsdp_status_t status;
    uint64_t bytes = 0;
    int fd;

    for (unsigned i = 0; i < num; i++) {
        iov[i] = (struct iovec){parts[i].src, parts[i].bytes};
        bytes += parts[i].bytes;
    }

    FSDP_TRY(files_get(run->src_files, file, &fd, err));
    status = io_preadv(fd, iov, num, src_at(run, &parts[0]),
                       files_path(run->src_files, file), err);
    files_put(run->src_files, file);
    atomic_fetch_add(&run->bytes_read, bytes);
    return status;
}

/* Let the disk begin with what is written: else all of it would wait for the
 * sync at the end.  Only whole pages of this run: over those of another thread
 * the two would wait for each other.  An error is the sync's to report. */
static void flush_early(int fd, uint64_t from, uint64_t bytes)
{
    uint64_t first = (from + PAGE - 1) / PAGE * PAGE;
    uint64_t end = (from + bytes) / PAGE * PAGE;

    if (bytes >= FLUSH_LEAST) {
        (void)sync_file_range(fd, (off_t)first, (off_t)(end - first),
                              SYNC_FILE_RANGE_WRITE);
    }
}

/* Write what lies at [from, to) of the file, of parts that are end to end. */
static fsdp_status_t write_between(run_t *run, const part_t *parts,
                                   unsigned num, uint64_t from, uint64_t to,
                                   fsdp_error_t *err)
{
    uint32_t file = dst_file(run, &parts[0]);
    uint64_t at = dst_at(run, &parts[0]), bytes;
    struct iovec iov[BATCH_PARTS];
    fsdp_status_t status;
    unsigned used = 0;
    int fd;

    if (from == to) {
        return FSDP_OK;
    }

    for (unsigned i = 0; i < num; i++, at += bytes) {
        uint64_t first = (from > at) ? from : at, end;

        bytes = dst_bytes(parts[i].copy, parts[i].bytes);
        end = (to < at + bytes) ? to : at + bytes;
        if (first < end) {
            iov[used++] =
                (struct iovec){parts[i].dst + (first - at), end - first};
        }
    }

    FSDP_TRY(files_get(run->dst_files, file, &fd, err));
    status =
        io_pwritev(fd, iov, used, from, files_path(run->dst_files, file), err);
    flush_early(fd, from, to - from);
    files_put(run->dst_files, file);
    atomic_fetch_add(&run->bytes_written, to - from);
    return status;
}

/* --- Sharing -------------------------------------------------------------- */

/* Does the source have the very bytes that are to be written? */
static bool is_there(const run_t *run, const part_t *part)
{
    const unsigned made = PLAN_SRC_MEM | PLAN_GATHER | PLAN_DECODE;

    return (part->copy->flags & made) == 0 && !is_cast(part->copy) &&
           !run->plan->src->files[src_file(run, part)].zeros;
}

/* How many of these parts, end to end in the target, are so in the source. */
static unsigned count_alike(const run_t *run, const part_t *parts, unsigned num)
{
    unsigned alike = 0;

    while (alike < num && is_there(run, &parts[alike]) &&
           (alike == 0 || follows(run, &parts[alike]))) {
        alike++;
    }

    return alike;
}

/* Share [*from_p, *to_p) of the target's file, of such parts.  If that cannot
 * be, both stay: what is not shared is to be written. */
static fsdp_status_t share(run_t *run, const part_t *parts, unsigned num,
                           uint64_t *from_p, uint64_t *to_p, fsdp_error_t *err)
{
    uint32_t src = src_file(run, parts), dst = dst_file(run, parts);
    const part_t *last = &parts[num - 1];
    uint64_t at = src_at(run, parts);
    int src_fd, dst_fd, error;
    fsdp_status_t status;

    FSDP_TRY(files_get(run->src_files, src, &src_fd, err));
    FSDP_TRY_GOTO(files_get(run->dst_files, dst, &dst_fd, err), err_put);
    error = link_blocks(src_fd, at, dst_fd, dst_at(run, parts),
                        src_at(run, last) + last->bytes - at, from_p, to_p);
    if (error == 0) {
        atomic_fetch_add(&run->bytes_shared, *to_p - *from_p);
    } else if (error != EINVAL) {
        atomic_store(&run->link_error, error);
    }
    files_put(run->dst_files, dst);
err_put:
    files_put(run->src_files, src);
    return status;
}

static fsdp_status_t write_run(run_t *run, const part_t *parts, unsigned num,
                               fsdp_error_t *err)
{
    const part_t *last = &parts[num - 1];
    uint64_t end = dst_at(run, last) + dst_bytes(last->copy, last->bytes);
    uint64_t next = dst_at(run, parts), from, to;
    unsigned alike;

    for (unsigned i = 0; i < num && run->job->link; i += alike) {
        alike = count_alike(run, parts + i, num - i);
        if (alike == 0) {
            alike = 1;
            continue;
        }
        from = to = next;
        FSDP_TRY(share(run, parts + i, alike, &from, &to, err));
        FSDP_TRY(write_between(run, parts, num, next, from, err));
        next = to;
    }

    return write_between(run, parts, num, next, end, err);
}

/* --- Checksums ------------------------------------------------------------ */

/*
 * The checksum of A B C is shift(A, |B| + |C|) ^ shift(B, |C|) ^ C: stretches
 * may pass in any order, and each is shifted by what lies behind it in its
 * block.
 */
static uint32_t shift(const catalog_t *src, uint32_t crc, uint64_t behind)
{
    return (behind == 0)    ? crc
           : (src->crc_zip) ? crc32_zip_join(crc, 0, behind)
                            : crc32c_join(crc, 0, behind);
}

/* A block of the source has another checksum. */
static fsdp_status_t mismatch(run_t *run, uint32_t piece_index, uint64_t block,
                              fsdp_error_t *err)
{
    const catalog_t *src = run->plan->src;
    bool go_on = false;

    if (run->job->mismatch != NULL) {
        pthread_mutex_lock(&run->lock);
        go_on = run->job->mismatch(src, piece_index, block, run->job->arg);
        pthread_mutex_unlock(&run->lock);
    }
    return go_on ? FSDP_OK : engine_damaged(src, piece_index, block, err);
}

/* The last byte of a source block has passed: compare. */
static fsdp_status_t check_block(run_t *run, uint32_t piece, uint64_t block,
                                 fsdp_error_t *err)
{
    const catalog_t *src = run->plan->src;
    uint64_t crc = src->pieces[piece].crc_first + block;

    return (atomic_load(&run->sums.xors[crc]) == src->crcs[crc])
               ? FSDP_OK
               : mismatch(run, piece, block, err);
}

/* A stretch of a source piece with checksum @a crc has passed. */
static fsdp_status_t pass_src(run_t *run, uint32_t piece_index, uint64_t at,
                              uint64_t bytes, uint32_t crc, fsdp_error_t *err)
{
    const catalog_t *src = run->plan->src;
    const catalog_piece_t *piece = &src->pieces[piece_index];
    uint64_t block = src->crc_zip ? 0 : at / CATALOG_BLOCK;
    uint64_t within = at - block * CATALOG_BLOCK, before;
    uint64_t size = engine_sum_bytes(src, piece, block);
    uint64_t slot = piece->crc_first + block;

    atomic_fetch_xor(&run->sums.xors[slot],
                     shift(src, crc, size - within - bytes));
    before = atomic_fetch_add(&run->sums.passed[slot], bytes);
    return (before + bytes == size) ? check_block(run, piece_index, block, err)
                                    : FSDP_OK;
}

/* The same, of bytes that are in memory. */
static fsdp_status_t pass_bytes(run_t *run, uint32_t piece_index, uint64_t at,
                                const char *data, uint64_t bytes,
                                fsdp_error_t *err)
{
    uint64_t block, n;

    if (run->plan->src->crc_zip) {
        return pass_src(run, piece_index, at, bytes, crc32_zip(0, data, bytes),
                        err);
    }

    for (; bytes > 0; at += n, data += n, bytes -= n) {
        block = CATALOG_BLOCK - at % CATALOG_BLOCK;
        n = (bytes < block) ? bytes : block;
        FSDP_TRY(pass_src(run, piece_index, at, n, crc32c(0, data, n), err));
    }

    return FSDP_OK;
}

static void pass_dst(run_t *run, uint32_t piece_index, uint64_t at,
                     uint64_t bytes, uint32_t crc)
{
    catalog_t *dst = run->job->dst;
    const catalog_piece_t *piece = &dst->pieces[piece_index];
    uint64_t block = dst->crc_zip ? 0 : at / CATALOG_BLOCK;
    uint64_t within = at - block * CATALOG_BLOCK;
    uint64_t size = engine_sum_bytes(dst, piece, block);

    __atomic_fetch_xor(&dst->crcs[piece->crc_first + block],
                       shift(dst, crc, size - within - bytes),
                       __ATOMIC_RELAXED);
}

static uint64_t to_block_end(uint64_t at)
{
    return CATALOG_BLOCK - at % CATALOG_BLOCK;
}

/* Does this part count for checksums of the source; of the target? */
static bool checks_src(const run_t *run, const part_t *part)
{
    const plan_copy_t *copy = part->copy;

    return (copy->flags &
            (PLAN_SRC_MEM | PLAN_AGAIN | PLAN_GATHER | PLAN_DECODE)) == 0 &&
           run->plan->src->pieces[copy->src_piece].crc_first != CATALOG_NONE;
}

static bool checks_dst(const run_t *run, const part_t *part)
{
    return writes(part) &&
           run->job->dst->pieces[part->copy->dst_piece].crc_first !=
               CATALOG_NONE;
}

/* Source and target have the same bytes: once for both. */
static fsdp_status_t pass_both(run_t *run, const part_t *part, bool src,
                               bool dst, fsdp_error_t *err)
{
    const plan_copy_t *copy = part->copy;
    uint64_t src_byte = copy->src + part->from,
             dst_byte = copy->dst + part->from;

    if (src && run->plan->src->crc_zip) {
        uint32_t crc = crc32_zip(0, part->src, part->bytes);

        FSDP_TRY(
            pass_src(run, copy->src_piece, src_byte, part->bytes, crc, err));
        if (dst && run->job->dst->crc_zip) {
            pass_dst(run, copy->dst_piece, dst_byte, part->bytes, crc);
            dst = false;
        }
        src = false;
    } else if (dst && run->job->dst->crc_zip) {
        pass_dst(run, copy->dst_piece, dst_byte, part->bytes,
                 crc32_zip(0, part->src, part->bytes));
        dst = false;
    }
    if (!src && !dst) {
        return FSDP_OK;
    }
    for (uint64_t done = 0; done < part->bytes;) {
        uint64_t bytes = part->bytes - done;
        uint32_t crc;

        if (src && bytes > to_block_end(src_byte + done)) {
            bytes = to_block_end(src_byte + done);
        }
        if (dst && bytes > to_block_end(dst_byte + done)) {
            bytes = to_block_end(dst_byte + done);
        }
        crc = crc32c(0, part->src + done, bytes);
        if (src) {
            FSDP_TRY(pass_src(run, copy->src_piece, src_byte + done, bytes, crc,
                              err));
        }
        if (dst) {
            pass_dst(run, copy->dst_piece, dst_byte + done, bytes, crc);
        }
        done += bytes;
    }

    return FSDP_OK;
}

/* The target of a cast. */
static void pass_cast(run_t *run, const part_t *part)
{
    uint64_t total = dst_bytes(part->copy, part->bytes);
    uint64_t at = part->copy->dst + dst_bytes(part->copy, part->from);

    if (run->job->dst->crc_zip) {
        pass_dst(run, part->copy->dst_piece, at, total,
                 crc32_zip(0, part->dst, total));
        return;
    }
    for (uint64_t done = 0, bytes; done < total; done += bytes) {
        bytes = to_block_end(at + done);
        if (bytes > total - done) {
            bytes = total - done;
        }
        pass_dst(run, part->copy->dst_piece, at + done, bytes,
                 crc32c(0, part->dst + done, bytes));
    }
}

static fsdp_status_t pass_part(run_t *run, const part_t *part,
                               fsdp_error_t *err)
{
    bool src = checks_src(run, part), dst = checks_dst(run, part);
    const plan_copy_t *copy = part->copy;

    if (run->job->spans != NULL &&
        (copy->flags & (PLAN_SRC_MEM | PLAN_GATHER | PLAN_DECODE)) == 0) {
        span_pass(run->job->spans, run->plan->src,
                  &run->plan->src->pieces[copy->src_piece], src_at(run, part),
                  part->src, part->bytes);
    }
    if (!is_cast(part->copy)) {
        return (src || dst) ? pass_both(run, part, src, dst, err) : FSDP_OK;
    }

    if (src) {
        FSDP_TRY(pass_both(run, part, true, false, err));
    }
    if (dst) {
        pass_cast(run, part);
    }
    return FSDP_OK;
}

/* --- Many at once --------------------------------------------------------- */

/* What gather_elements() asks for. */
typedef struct {
    run_t *run;
    const plan_copy_t *copy;
} gathering_t;

static fsdp_status_t gather_read(void *arg, uint64_t index, uint64_t at,
                                 void *data, size_t bytes, fsdp_error_t *err)
{
    const gathering_t *gathering = arg;
    run_t *run = gathering->run;
    const catalog_t *src = run->plan->src;
    const catalog_piece_t *piece = &src->pieces[index];
    catalog_box_t box = {.dense = true};
    fsdp_status_t status;
    int fd;

    FSDP_TRY(files_get(run->src_files, piece->file, &fd, err));
    status = io_pread(fd, data, bytes, piece->offset + at,
                      files_path(run->src_files, piece->file), err);
    files_put(run->src_files, piece->file);
    atomic_fetch_add(&run->bytes_read, bytes);
    if (status != FSDP_OK || piece->crc_first == CATALOG_NONE ||
        (gathering->copy->flags & PLAN_AGAIN) != 0) {
        return status;
    }

    (void)catalog_box(src, piece, &box);
    return box.dense ? pass_bytes(run, (uint32_t)index, at, data, bytes, err)
                     : FSDP_OK;
}

static fsdp_status_t gather_part(run_t *run, const part_t *part, char *stage,
                                 fsdp_error_t *err)
{
    const plan_copy_t *copy = part->copy;
    gathering_t gathering = {.run = run, .copy = copy};
    const gather_t gather = {.cat = run->plan->src,
                             .read = gather_read,
                             .arg = &gathering,
                             .stage = stage,
                             .stage_bytes = (size_t)run->stage};
    uint64_t size = fsdp_dtype_bits((fsdp_dtype_t)copy->src_dtype) / 8;
    const catalog_t *dst = run->plan->dst;
    catalog_box_t box;
    bool boxed = copy->dst_piece != CATALOG_NONE &&
                 catalog_box(dst, &dst->pieces[copy->dst_piece], &box);

    return gather_elements(&gather,
                           run->plan->src->pieces[copy->src_piece].tensor,
                           boxed ? &box : NULL, (copy->src + part->from) / size,
                           part->bytes / size, part->src, err);
}

static fsdp_status_t read_parts(run_t *run, const part_t *parts, unsigned num,
                                char *stage, fsdp_error_t *err)
{
    unsigned first, i;

    for (first = 0; first < num; first = i) {
        i = first + 1;
        if (!reads(&parts[first])) {
            continue;
        }
        if (gathers(&parts[first])) {
            FSDP_TRY(gather_part(run, &parts[first], stage, err));
            continue;
        }
        while (i < num && reads(&parts[i]) && !gathers(&parts[i]) &&
               follows(run, &parts[i])) {
            i++;
        }
        FSDP_TRY(read_run(run, parts + first, i - first, err));
    }

    return FSDP_OK;
}

static fsdp_status_t write_parts(run_t *run, const part_t *parts, unsigned num,
                                 fsdp_error_t *err)
{
    unsigned first, i;

    for (first = 0; first < num; first = i) {
        i = first + 1;
        if (!writes(&parts[first])) {
            continue;
        }
        while (i < num && writes(&parts[i]) &&
               dst_file(run, &parts[i]) == dst_file(run, &parts[first]) &&
               dst_at(run, &parts[i - 1]) +
                       dst_bytes(parts[i - 1].copy, parts[i - 1].bytes) ==
                   dst_at(run, &parts[i])) {
            i++;
        }
        FSDP_TRY(write_run(run, parts + first, i - first, err));
    }

    return FSDP_OK;
}

/* --- What has to be decoded ----------------------------------------------- */

/* Take the copies of one code; @return their number, 0 at the end. */
static uint64_t take_decodes(run_t *run, const plan_copy_t **copies_p)
{
    const plan_t *plan = run->plan;
    uint64_t first, next;

    pthread_mutex_lock(&run->lock);
    first = next = run->next_decode;
    while (next < plan->num &&
           plan_same_code(plan, &plan->copies[first], &plan->copies[next])) {
        next++;
    }
    run->next_decode = next;
    pthread_mutex_unlock(&run->lock);

    *copies_p = (next > first) ? &plan->copies[first] : NULL;
    return next - first;
}

/* Write decoded bytes, or put them into memory. */
static fsdp_status_t put_part(run_t *run, part_t *part, fsdp_error_t *err)
{
    const plan_copy_t *copy = part->copy;
    bool in_mem = (copy->flags & PLAN_DST_MEM) != 0;

    if (in_mem) {
        part->dst = (char *)(uintptr_t)copy->dst + dst_bytes(copy, part->from);
    }
    if (is_cast(copy)) {
        uint64_t size = fsdp_dtype_bits((fsdp_dtype_t)copy->src_dtype) / 8;

        dtype_convert((fsdp_dtype_t)copy->src_dtype, part->src,
                      (fsdp_dtype_t)copy->dst_dtype, part->dst,
                      part->bytes / size);
    } else if (in_mem) {
        memcpy(part->dst, part->src, part->bytes);
    } else {
        part->dst = part->src;
    }
    if (in_mem) {
        return FSDP_OK;
    }
    FSDP_TRY(pass_part(run, part, err));
    return write_run(run, part, 1, err);
}

static fsdp_status_t put_decoded(void *arg, const plan_copy_t *copy,
                                 uint64_t at, const char *data, size_t bytes,
                                 fsdp_error_t *err)
{
    _Alignas(16) char cast[16 << 10];
    part_t part = {.copy = copy, .from = at};
    uint64_t most = is_cast(copy) ? sizeof(cast) / 4 : bytes;

    for (; bytes > 0; bytes -= part.bytes, data += part.bytes) {
        part.bytes = (bytes < most) ? bytes : most;
        part.src = (char *)(uintptr_t)data;
        part.dst = cast;
        FSDP_TRY(put_part(arg, &part, err));
        part.from += part.bytes;
    }

    return FSDP_OK;
}

static fsdp_status_t bad_sum(void *arg, uint32_t piece, fsdp_error_t *err)
{
    return mismatch(arg, piece, 0, err);
}

static fsdp_status_t decoding(void *arg, fsdp_error_t *err)
{
    return report(arg, err);
}

static fsdp_status_t decode_some(run_t *run, const plan_copy_t *copies,
                                 uint64_t num, char *buffer, fsdp_error_t *err)
{
    decode_t decode = {.plan = run->plan,
                       .files = run->src_files,
                       .decoders = run->job->decoders,
                       .keep_mem = run->decode,
                       .stage = buffer,
                       .stage_bytes = (size_t)run->buffer,
                       .max_mem = run->decode,
                       .put = put_decoded,
                       .mismatch = bad_sum,
                       .go_on = decoding,
                       .arg = run};
    fsdp_status_t status = decode_copies(&decode, copies, num, err);

    if (status == FSDP_ERR_CORRUPT && run->job->mismatch != NULL) {
        status = mismatch(run, copies->src_piece, 0, err);
    }
    atomic_fetch_add(&run->bytes_read, decode.bytes_read);
    for (uint64_t i = 0; i < num; i++) {
        atomic_fetch_add(&run->bytes_done, plan_moved(run->plan, &copies[i]));
    }
    return status;
}

/* --- Running -------------------------------------------------------------- */

static fsdp_status_t work_on(run_t *run, part_t *parts, unsigned num,
                             char *stage, fsdp_error_t *err)
{
    uint64_t bytes = 0;

    for (unsigned i = 0; i < num; i++) {
        place(&parts[i]);
        bytes += parts[i].bytes;
    }

    FSDP_TRY(read_parts(run, parts, num, stage, err));
    for (unsigned i = 0; i < num; i++) {
        const plan_copy_t *copy = parts[i].copy;

        if (is_cast(copy)) {
            uint64_t bits = fsdp_dtype_bits((fsdp_dtype_t)copy->src_dtype);

            dtype_convert((fsdp_dtype_t)copy->src_dtype, parts[i].src,
                          (fsdp_dtype_t)copy->dst_dtype, parts[i].dst,
                          parts[i].bytes / (bits / 8));
        } else if (parts[i].src != parts[i].dst) {
            memcpy(parts[i].dst, parts[i].src, parts[i].bytes);
        }
        FSDP_TRY(pass_part(run, &parts[i], err));
    }
    FSDP_TRY(write_parts(run, parts, num, err));

    atomic_fetch_add(&run->bytes_done, bytes);
    return FSDP_OK;
}

/* One thread's work. */
static void work(void *arg, uint32_t number)
{
    run_t *run = arg;
    part_t *parts = malloc(BATCH_PARTS * sizeof(*parts));
    const plan_copy_t *decodes;
    char *buffer = NULL;
    fsdp_status_t status = FSDP_OK;
    fsdp_error_t err = {0};
    uint64_t num_decodes;
    unsigned num;

    (void)number;
    /* Aligned to pages, so that the kernel can copy whole ones. */
    if (parts == NULL ||
        posix_memalign((void **)&buffer, 4096,
                       (size_t)(run->buffer + run->stage)) != 0) {
        status =
            fsdp_error_set(&err, FSDP_ERR_NO_MEMORY,
                           "no memory for a copy buffer of %" PRIu64 " bytes",
                           run->buffer + run->stage);
        goto err_free;
    }

    atomic_fetch_add(&run->peak_mem, run->buffer + run->stage);
    while (status == FSDP_OK && !atomic_load(&run->stop) &&
           (num = take(run, parts, buffer)) > 0) {
        status = work_on(run, parts, num, buffer + run->buffer, &err);
        if (status == FSDP_OK) {
            status = report(run, &err);
        }
    }
    while (status == FSDP_OK && !atomic_load(&run->stop) &&
           (num_decodes = take_decodes(run, &decodes)) > 0) {
        status = decode_some(run, decodes, num_decodes, buffer, &err);
    }
err_free:
    if (status != FSDP_OK) {
        fail(run, status, &err);
    }
    free(buffer);
    free(parts);
}

static uint32_t usable_cores(void)
{
    cpu_set_t cpus;

    return (sched_getaffinity(0, sizeof(cpus), &cpus) == 0)
               ? (uint32_t)CPU_COUNT(&cpus)
               : 1;
}

static bool has_gathers(const plan_t *plan)
{
    for (uint64_t i = 0; i < plan->num; i++) {
        if ((plan->copies[i].flags & PLAN_GATHER) != 0) {
            return true;
        }
    }

    return false;
}

/* What decoding takes at most, of any of the copies. */
static const catalog_code_t *largest_code(const plan_t *plan)
{
    const catalog_code_t *largest = NULL;

    for (uint64_t i = plan->num_plain; i < plan->num; i++) {
        const catalog_piece_t *piece =
            &plan->src->pieces[plan->copies[i].src_piece];
        const catalog_code_t *code = catalog_code(plan->src, piece);

        if (code != NULL &&
            (largest == NULL || code->memory > largest->memory)) {
            largest = code;
        }
    }

    return largest;
}

/* Fewer threads, if decoding takes much of the memory. */
static fsdp_status_t divide_for_codes(run_t *run, uint64_t max_mem,
                                      uint32_t *jobs, fsdp_error_t *err)
{
    const catalog_code_t *code = largest_code(run->plan);
    uint64_t need = (code != NULL) ? code->memory : 0;

    if (code == NULL) {
        return FSDP_OK;
    }
    if (need > max_mem - max_mem / 4) {
        return fsdp_error_set(
            err, FSDP_ERR_UNSUPPORTED,
            "%s: %s: to decode the %" PRIu64 " bytes at %" PRIu64
            " takes %" PRIu64 " bytes of memory: give more, --max-mem %" PRIu64
            "M at least",
            run->plan->src->path, run->plan->src->files[code->file].path,
            code->length, code->offset, need, ((need + need / 2) >> 20) + 1);
    }

    while (*jobs > 1 && *jobs * (need + MEM_MIN) > max_mem - max_mem / 4) {
        --*jobs;
    }
    run->decode = need;
    return FSDP_OK;
}

/* Threads, and the buffer of each. */
static fsdp_status_t divide(run_t *run, uint32_t *jobs_p, fsdp_error_t *err)
{
    const fsdp_ckpt_engine_t *options = &run->job->options;
    uint64_t max_mem =
        (options->max_mem > 0) ? options->max_mem : ENGINE_MAX_MEM;
    uint32_t jobs = (options->jobs > 0) ? options->jobs : usable_cores();

    if (max_mem < 4096) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "%" PRIu64 " bytes of buffers are too few; give "
                              "4096 at least",
                              max_mem);
    }

    if (options->jobs == 0 && jobs > ENGINE_MAX_JOBS) {
        jobs = ENGINE_MAX_JOBS;
    }
    if (jobs > run->total / CATALOG_BLOCK) {
        jobs = (uint32_t)(run->total / CATALOG_BLOCK);
    }
    if (jobs > max_mem / MEM_MIN) {
        jobs = (uint32_t)(max_mem / MEM_MIN);
    }
    jobs = (jobs > 0) ? jobs : 1;
    FSDP_TRY(divide_for_codes(run, max_mem, &jobs, err));

    /* Twice, for both sides of a cast that widens. */
    run->buffer = max_mem / jobs - run->decode;
    if (run->buffer > 2 * BATCH_BYTES) {
        run->buffer = 2 * BATCH_BYTES;
    }
    if (has_gathers(run->plan)) {
        run->stage = run->buffer / 4;
        run->buffer -= run->stage;
    }
    *jobs_p = jobs;
    return FSDP_OK;
}

static fsdp_status_t run_open(run_t *run, fsdp_error_t *err)
{
    const plan_t *plan = run->plan;

    run->next_decode = plan->num_plain;

    if (plan->src != NULL) {
        if (run->job->sums != NULL) {
            run->sums = *run->job->sums;
        } else {
            FSDP_TRY(engine_sums_init(&run->sums, plan->src->num_crcs, err));
        }
        FSDP_TRY(files_open(plan->src, NULL, O_RDONLY, &run->src_files, err));
    }
    if (plan->dst != NULL) {
        FSDP_TRY(files_open(plan->dst, run->job->dst_dir, O_RDWR,
                            &run->dst_files, err));
    }

    return FSDP_OK;
}

fsdp_status_t engine_run(const engine_job_t *job, engine_result_t *result_p,
                         fsdp_error_t *err)
{
    run_t run = {.job = job, .plan = job->plan, .total = plan_total(job->plan)};
    fsdp_status_t status;
    uint32_t jobs = 1;

    pthread_mutex_init(&run.lock, NULL);
    pthread_mutex_init(&run.telling, NULL);
    FSDP_TRY_GOTO(divide(&run, &jobs, err), err_close);
    FSDP_TRY_GOTO(run_open(&run, err), err_close);
    crew_run(jobs, work, &run);
    status = run.status;
    if (status != FSDP_OK) {
        if (err != NULL) {
            *err = run.err;
        }
        goto err_close;
    }
    if (job->sums == NULL) {
        FSDP_TRY_GOTO(engine_check_passed(run.plan->src, &run.sums, err),
                      err_close);
    }
    FSDP_TRY_GOTO(report(&run, err), err_close);

    if (result_p != NULL) {
        *result_p = (engine_result_t){.bytes_read = run.bytes_read,
                                      .bytes_written = run.bytes_written,
                                      .bytes_shared = run.bytes_shared,
                                      .link_error = run.link_error,
                                      .peak_mem = run.peak_mem};
    }
err_close:
    files_close(run.src_files, status, NULL);
    status = files_close(run.dst_files, status, err);
    if (job->sums == NULL) {
        engine_sums_free(&run.sums);
    }
    pthread_mutex_destroy(&run.telling);
    pthread_mutex_destroy(&run.lock);
    return status;
}
