#include "config.h"

#include "ckpt/plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/catalog_box.h"
#include "lib/util/check.h"

static fsdp_status_t no_memory(fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                          "no memory for the list of copies");
}

static fsdp_status_t add_copy(plan_t *plan, const plan_copy_t *copy,
                              fsdp_error_t *err)
{
    if (plan->num == plan->max) {
        uint64_t max = plan->max + plan->max / 2 + 64;
        plan_copy_t *larger =
            realloc(plan->copies, (size_t)max * sizeof(*larger));

        if (larger == NULL) {
            return no_memory(err);
        }
        plan->copies = larger;
        plan->max = max;
    }

    plan->copies[plan->num++] = *copy;
    return FSDP_OK;
}

void plan_free(plan_t *plan)
{
    free(plan->copies);
    *plan = (plan_t){0};
}

/* Bytes of @a count elements of a tensor that is in a catalog: they fit. */
static uint64_t bytes_of(unsigned dtype, uint64_t count)
{
    uint64_t bytes = 0;

    (void)dtype_bytes((fsdp_dtype_t)dtype, count, &bytes);
    return bytes;
}

uint64_t plan_src_offset(const plan_t *plan, const plan_copy_t *copy)
{
    return plan->src->pieces[copy->src_piece].offset + copy->src;
}

uint64_t plan_dst_offset(const plan_t *plan, const plan_copy_t *copy)
{
    return plan->dst->pieces[copy->dst_piece].offset + copy->dst;
}

uint64_t plan_dst_bytes(const plan_copy_t *copy)
{
    if ((copy->flags & PLAN_DISCARD) != 0) {
        return 0;
    }
    if (copy->src_dtype == copy->dst_dtype) {
        return copy->bytes;
    }

    return copy->bytes / (fsdp_dtype_bits((fsdp_dtype_t)copy->src_dtype) / 8) *
           (fsdp_dtype_bits((fsdp_dtype_t)copy->dst_dtype) / 8);
}

/* --- What has to be decoded ----------------------------------------------- */

/* Elements of the tensor that a range of its bytes is. */
static void find_range(const plan_t *plan, const plan_copy_t *copy,
                       uint64_t *first_p, uint64_t *count_p)
{
    const catalog_piece_t *piece = &plan->src->pieces[copy->src_piece];
    const catalog_tensor_t *tensor = &plan->src->tensors[piece->tensor];
    unsigned bits = fsdp_dtype_bits((fsdp_dtype_t)copy->src_dtype);
    uint64_t most;

    *first_p = copy->src / bits * 8 + copy->src % bits * 8 / bits;
    *count_p = copy->bytes / bits * 8 + copy->bytes % bits * 8 / bits;
    most = tensor->numel - *first_p;
    if (*count_p > most) {
        *count_p = most; /* of a packed type, at the end */
    }
}

static bool has_target_box(const plan_t *plan, const plan_copy_t *copy,
                           catalog_box_t *box_p)
{
    return copy->dst_piece != CATALOG_NONE &&
           catalog_box(plan->dst, &plan->dst->pieces[copy->dst_piece], box_p);
}

void plan_asked(const plan_t *plan, const plan_copy_t *copy,
                plan_asked_t *asked_p)
{
    static const uint64_t zeros[BOX_MAX_NDIM];
    const catalog_t *src = plan->src;
    const catalog_tensor_t *tensor =
        &src->tensors[src->pieces[copy->src_piece].tensor];
    catalog_box_t box = {.start = zeros,
                         .count = src->dims + tensor->dims_first};

    asked_p->boxed = has_target_box(plan, copy, &box);
    asked_p->start = box.start;
    asked_p->dims = box.count;
    find_range(plan, copy, &asked_p->first, &asked_p->count);
    (void)box_from_range(tensor->ndim, asked_p->dims, asked_p->first,
                         asked_p->count, asked_p->boxes, &asked_p->num);
    for (unsigned b = 0; b < asked_p->num; b++) {
        for (unsigned d = 0; d < tensor->ndim; d++) {
            asked_p->boxes[b].start[d] += asked_p->start[d];
        }
    }
}

/* Elements that the source piece of a PLAN_DECODE copy has for it. */
static uint64_t common_of(const plan_t *plan, const plan_copy_t *copy)
{
    const catalog_piece_t *piece = &plan->src->pieces[copy->src_piece];
    uint64_t first, count, common = 0;
    plan_asked_t asked;
    catalog_box_t box;

    if (!has_target_box(plan, copy, &box)) {
        find_range(plan, copy, &first, &count);
        return box_common(plan->src, piece, first, count);
    }

    plan_asked(plan, copy, &asked);
    for (unsigned b = 0; b < asked.num; b++) {
        common += box_common_box(plan->src, piece, &asked.boxes[b]);
    }
    return common;
}

uint64_t plan_moved(const plan_t *plan, const plan_copy_t *copy)
{
    return ((copy->flags & PLAN_DECODE) != 0)
               ? bytes_of(copy->src_dtype, common_of(plan, copy))
               : copy->bytes;
}

uint64_t plan_total(const plan_t *plan)
{
    uint64_t total = 0;

    for (uint64_t i = 0; i < plan->num; i++) {
        total += plan_moved(plan, &plan->copies[i]);
    }

    return total;
}

bool plan_same_code(const plan_t *plan, const plan_copy_t *a,
                    const plan_copy_t *b)
{
    const catalog_piece_t *pieces = plan->src->pieces;

    return (pieces[a->src_piece].code != 0)
               ? pieces[a->src_piece].code == pieces[b->src_piece].code
               : a->src_piece == b->src_piece;
}

/* --- Order ---------------------------------------------------------------- */

static int compare_u64(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int by_source(const void *a, const void *b, void *arg)
{
    const plan_copy_t *left = a, *right = b;
    const plan_t *plan = arg;
    const catalog_piece_t *pieces = plan->src->pieces;
    int order = compare_u64(pieces[left->src_piece].file,
                            pieces[right->src_piece].file);

    if (order == 0) {
        order = compare_u64(plan_src_offset(plan, left),
                            plan_src_offset(plan, right));
    }
    return (order != 0) ? order : compare_u64(left->bytes, right->bytes);
}

/* Encoded bytes in the order of the files, pieces in that of their bytes. */
static int by_code(const void *a, const void *b, void *arg)
{
    const plan_copy_t *copies[2] = {a, b};
    const plan_t *plan = arg;
    uint64_t keys[2][6];

    for (int i = 0; i < 2; i++) {
        const catalog_piece_t *piece = &plan->src->pieces[copies[i]->src_piece];
        const catalog_code_t *code = catalog_code(plan->src, piece);

        keys[i][0] = (code != NULL) ? code->file : piece->file;
        keys[i][1] = (code != NULL) ? code->offset : piece->offset;
        keys[i][2] = piece->code;
        keys[i][3] = piece->offset;
        keys[i][4] = copies[i]->src_piece;
        keys[i][5] = copies[i]->src;
    }
    for (int k = 0; k < 6; k++) {
        if (keys[0][k] != keys[1][k]) {
            return compare_u64(keys[0][k], keys[1][k]);
        }
    }

    return 0;
}

/* Each encoded stretch is read once, from front to back, whatever it is needed
 * for: so these copies are in the source's order. */
static fsdp_status_t put_decodes_last(plan_t *plan, fsdp_error_t *err)
{
    plan_copy_t *decodes;
    uint64_t num = 0;

    for (uint64_t i = 0; i < plan->num; i++) {
        num += (plan->copies[i].flags & PLAN_DECODE) != 0;
    }
    plan->num_plain = 0;
    if (num == 0) {
        plan->num_plain = plan->num;
        return FSDP_OK;
    }

    decodes = malloc(num * sizeof(*decodes));
    if (decodes == NULL) {
        return no_memory(err);
    }
    num = 0;
    for (uint64_t i = 0; i < plan->num; i++) {
        if ((plan->copies[i].flags & PLAN_DECODE) != 0) {
            decodes[num++] = plan->copies[i];
        } else {
            plan->copies[plan->num_plain++] = plan->copies[i];
        }
    }
    qsort_r(decodes, num, sizeof(*decodes), by_code, plan);
    memcpy(plan->copies + plan->num_plain, decodes, num * sizeof(*decodes));
    free(decodes);
    return FSDP_OK;
}

/* The copies of one target piece: they follow each other in the plan. */
typedef struct {
    uint64_t offset; /* of the piece */
    uint64_t first;  /* copy */
    uint32_t num;
    uint32_t file;
} group_t;

static int by_place(const void *a, const void *b)
{
    const group_t *left = a, *right = b;

    return (left->file != right->file)
               ? compare_u64(left->file, right->file)
               : compare_u64(left->offset, right->offset);
}

static uint64_t make_groups(const plan_t *plan, group_t *groups)
{
    uint64_t num = 0;

    for (uint64_t i = 0; i < plan->num; i++) {
        const plan_copy_t *copy = &plan->copies[i];
        const catalog_piece_t *piece = plan->dst->pieces + copy->dst_piece;

        if (i > 0 && copy[-1].dst_piece == copy->dst_piece) {
            groups[num - 1].num++;
        } else if (copy->dst_piece == CATALOG_NONE) {
            groups[num++] = (group_t){0, i, 1, CATALOG_NONE};
        } else {
            groups[num++] = (group_t){piece->offset, i, 1, piece->file};
        }
    }

    return num;
}

static void sort_by_source(plan_t *plan)
{
    for (uint64_t i = 1; i < plan->num; i++) {
        if (by_source(&plan->copies[i - 1], &plan->copies[i], plan) > 0) {
            qsort_r(plan->copies, plan->num, sizeof(*plan->copies), by_source,
                    plan);
            return;
        }
    }
}

/* Does @a b go on where @a a ends, on both sides? */
static bool joins(const plan_t *plan, const plan_copy_t *a,
                  const plan_copy_t *b)
{
    const catalog_piece_t *pieces;

    if (a->flags != b->flags || (a->flags & (PLAN_GATHER | PLAN_DECODE)) != 0 ||
        a->src_dtype != b->src_dtype || a->dst_dtype != b->dst_dtype) {
        return false;
    }
    if ((a->flags & PLAN_SRC_MEM) != 0) {
        if (a->src + a->bytes != b->src) {
            return false;
        }
    } else {
        pieces = plan->src->pieces;
        if (pieces[a->src_piece].file != pieces[b->src_piece].file ||
            plan_src_offset(plan, a) + a->bytes != plan_src_offset(plan, b)) {
            return false;
        }
    }
    if ((a->flags & PLAN_DISCARD) != 0) {
        return true;
    }
    if ((a->flags & PLAN_DST_MEM) != 0) {
        return a->dst + plan_dst_bytes(a) == b->dst;
    }

    pieces = plan->dst->pieces;
    return pieces[a->dst_piece].file == pieces[b->dst_piece].file &&
           plan_dst_offset(plan, a) + plan_dst_bytes(a) ==
               plan_dst_offset(plan, b);
}

/* Bytes that a PLAN_DECODE copy reads, if it is the first of its code. */
static uint64_t encoded_bytes(const plan_t *plan, const plan_copy_t *copy)
{
    const catalog_piece_t *piece = &plan->src->pieces[copy->src_piece];
    const catalog_code_t *code = catalog_code(plan->src, piece);

    if (copy > plan->copies + plan->num_plain &&
        plan_same_code(plan, copy - 1, copy)) {
        return 0;
    }
    return (code == NULL)  ? catalog_piece_bytes(plan->src, piece)
           : code->inlined ? 0
                           : code->length;
}

static void count_decodes(plan_t *plan)
{
    for (uint64_t i = plan->num_plain; i < plan->num; i++) {
        plan_copy_t copy = plan->copies[i];

        plan->runs++;
        plan->bytes_read += encoded_bytes(plan, &plan->copies[i]);
        copy.bytes = plan_moved(plan, &copy);
        plan->bytes_written +=
            ((copy.flags & PLAN_DST_MEM) == 0) ? plan_dst_bytes(&copy) : 0;
    }
}

/* Done with adding: order what has to be decoded, and count. */
static fsdp_status_t finish(plan_t *plan, fsdp_error_t *err)
{
    FSDP_TRY(put_decodes_last(plan, err));
    plan->runs = plan->bytes_read = plan->bytes_written = 0;
    for (uint64_t i = 0; i < plan->num_plain; i++) {
        const plan_copy_t *copy = &plan->copies[i];

        plan->runs += i == 0 || !joins(plan, copy - 1, copy);
        if ((copy->flags & PLAN_SRC_MEM) == 0) {
            plan->bytes_read += copy->bytes;
        }
        if ((copy->flags & (PLAN_DST_MEM | PLAN_DISCARD)) == 0) {
            plan->bytes_written += plan_dst_bytes(copy);
        }
    }
    count_decodes(plan);
    return FSDP_OK;
}

/* Put the copies in the order of the target files. */
static fsdp_status_t order(plan_t *plan, fsdp_error_t *err)
{
    plan_copy_t *copies = malloc((plan->num + 1) * sizeof(*copies));
    group_t *groups = malloc((plan->num + 1) * sizeof(*groups));
    uint64_t num, next = 0;

    if (copies == NULL || groups == NULL) {
        free(copies);
        free(groups);
        return no_memory(err);
    }

    num = make_groups(plan, groups);
    qsort(groups, num, sizeof(*groups), by_place);
    for (uint64_t i = 0; i < num; i++) {
        memcpy(copies + next, plan->copies + groups[i].first,
               groups[i].num * sizeof(*copies));
        next += groups[i].num;
    }
    free(groups);
    free(plan->copies);
    plan->copies = copies;
    plan->max = plan->num + 1;
    return FSDP_OK;
}

fsdp_status_t plan_place(plan_t *plan, fsdp_error_t *err)
{
    FSDP_TRY(order(plan, err));
    return finish(plan, err);
}

/* --- Parts ---------------------------------------------------------------- */

#define SHARED (64u << 10) /* bytes that only one rank writes; of a file */

/* A place in a plan: a byte of a copy. */
typedef struct {
    uint64_t copy, byte;
} place_t;

/* Into @a file of the target; CATALOG_NONE: none. */
static uint32_t dst_file(const plan_t *plan, uint64_t copy)
{
    uint32_t piece = plan->copies[copy].dst_piece;

    return (piece == CATALOG_NONE) ? CATALOG_NONE
                                   : plan->dst->pieces[piece].file;
}

/* The source's bytes of a copy before its target's byte @a bytes, if it can be
 * cut there; else 0. */
static uint64_t cut_of(const plan_copy_t *copy, uint64_t bytes)
{
    uint64_t from = fsdp_dtype_bits((fsdp_dtype_t)copy->src_dtype) / 8;
    uint64_t to = fsdp_dtype_bits((fsdp_dtype_t)copy->dst_dtype) / 8;

    if (copy->src_dtype == copy->dst_dtype &&
        (copy->flags & (PLAN_GATHER | PLAN_DECODE)) == 0) {
        return bytes;
    }
    return (to > 0 && bytes % to == 0) ? bytes / to * from : 0;
}

/* Where in its file the target's bytes of a copy begin behind @a bytes of the
 * source's. */
static uint64_t dst_at(const plan_t *plan, const plan_copy_t *copy,
                       uint64_t bytes)
{
    plan_copy_t before = *copy;

    before.bytes = bytes;
    return plan_dst_offset(plan, copy) + plan_dst_bytes(&before);
}

/* Does the copy before @a copy, in the same file, reach behind @a offset? */
static bool is_reached(const plan_t *plan, uint64_t copy, uint64_t offset)
{
    const plan_copy_t *before = plan->copies + copy - 1;

    return copy > 0 && dst_file(plan, copy - 1) == dst_file(plan, copy) &&
           dst_at(plan, before, before->bytes) > offset;
}

/* The last place that is not behind @a place and where a rank may begin. */
static place_t back_to_page(const plan_t *plan, place_t place)
{
    uint64_t page, begin;

    if (dst_file(plan, place.copy) == CATALOG_NONE) {
        return place;
    }

    do {
        begin = dst_at(plan, &plan->copies[place.copy], place.byte);
        page = begin / SHARED * SHARED;
        place.byte = 0;
        for (; (begin = plan_dst_offset(plan, &plan->copies[place.copy])) >
                   page &&
               is_reached(plan, place.copy, page);
             place.copy--) {
        }
        if (begin < page) {
            place.byte = cut_of(&plan->copies[place.copy], page - begin);
        }
    } while (begin < page && place.byte == 0);

    return place;
}

/* Where the part of a rank begins; that of the last one ends where one more
 * would begin. */
static place_t begin_of(const plan_t *plan, uint64_t total, uint32_t rank,
                        uint32_t world)
{
    uint64_t at = total / world * rank, copy = 0;

    for (; copy < plan->num && at >= plan->copies[copy].bytes; copy++) {
        at -= plan->copies[copy].bytes;
    }
    if (rank == world || copy == plan->num) {
        return (place_t){plan->num, 0};
    }

    return (rank == 0) ? (place_t){0, 0}
                       : back_to_page(plan, (place_t){copy, at});
}

/* Do both have something to decode for the same bytes of the target? */
static bool is_alike(const plan_copy_t *a, const plan_copy_t *b)
{
    return (a->flags & b->flags & PLAN_DECODE) != 0 &&
           a->dst_piece == b->dst_piece;
}

/* One copy for all that are alike: no byte of the target comes twice. */
static fsdp_status_t outline(const plan_t *plan, plan_t *lines_p,
                             fsdp_error_t *err)
{
    *lines_p = (plan_t){.src = plan->src, .dst = plan->dst};
    for (uint64_t i = 0; i < plan->num; i++) {
        const plan_copy_t *copy = &plan->copies[i];

        if (i == 0 || !is_alike(copy - 1, copy)) {
            FSDP_TRY(add_copy(lines_p, copy, err));
        }
    }

    return FSDP_OK;
}

/* What lies between two places of the outline. */
static void cut_out(plan_t *plan, const place_t *begin, const place_t *end)
{
    uint64_t num = 0, line = 0;

    for (uint64_t i = 0; i < plan->num; i++) {
        plan_copy_t copy = plan->copies[i], before = copy;

        line += i > 0 && !is_alike(&plan->copies[i - 1], &copy);
        if (line < begin->copy || line > end->copy) {
            continue;
        }
        before.bytes = (line == begin->copy) ? begin->byte : 0;
        copy.bytes = (line == end->copy) ? end->byte : copy.bytes;
        if (copy.bytes <= before.bytes) {
            continue;
        }
        copy.bytes -= before.bytes;
        copy.src += before.bytes;
        copy.dst += plan_dst_bytes(&before);
        if (plan_moved(plan, &copy) > 0) {
            plan->copies[num++] = copy;
        }
    }
    plan->num = num;
}

fsdp_status_t plan_keep_part(plan_t *plan, uint32_t rank, uint32_t world,
                             fsdp_error_t *err)
{
    uint64_t total = 0;
    fsdp_status_t status;
    place_t begin, end;
    plan_t lines;

    FSDP_TRY(order(plan, err));
    FSDP_TRY_GOTO(outline(plan, &lines, err), err_free);
    for (uint64_t i = 0; i < lines.num; i++) {
        total += lines.copies[i].bytes;
    }
    begin = begin_of(&lines, total, rank, world);
    end = begin_of(&lines, total, rank + 1, world);
    cut_out(plan, &begin, &end);
    status = put_decodes_last(plan, err);
err_free:
    plan_free(&lines);
    return status;
}

/* --- Target pieces from source pieces ------------------------------------- */

/* The pieces of a boxed tensor, and those that share elements with a box, are
 * found when it is copied: a box may share millions of short runs with the
 * other side. */
static fsdp_status_t add_gather(plan_t *plan, const catalog_tensor_t *from,
                                uint64_t first, uint64_t count,
                                const plan_copy_t *make, fsdp_error_t *err)
{
    plan_copy_t copy = *make;

    if (count == 0) {
        return FSDP_OK;
    }

    copy.flags |= PLAN_GATHER;
    copy.src_piece = (uint32_t)from->piece_first;
    copy.src = bytes_of(copy.src_dtype, first);
    copy.bytes = bytes_of(copy.src_dtype, count);
    return add_copy(plan, &copy, err);
}

/* From each piece what it has of the range. */
static fsdp_status_t add_decodes(plan_t *plan, const catalog_tensor_t *from,
                                 uint64_t first, uint64_t count,
                                 const plan_copy_t *make, fsdp_error_t *err)
{
    const catalog_t *src = plan->src;
    uint64_t end = from->piece_first + from->piece_count, found = 0;
    plan_copy_t copy = *make;

    copy.flags |= PLAN_DECODE;
    copy.src = bytes_of(copy.src_dtype, first);
    copy.bytes = bytes_of(copy.src_dtype, count);
    for (uint64_t p = from->piece_first; p < end; p++) {
        uint64_t common;

        copy.src_piece = (uint32_t)p;
        common = common_of(plan, &copy);
        if (common > 0) {
            FSDP_TRY(add_copy(plan, &copy, err));
            found += common;
        }
    }

    return (found == count)
               ? FSDP_OK
               : fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                "%s: tensor %s: %" PRIu64 " of the elements "
                                "[%" PRIu64 ", %" PRIu64 ") are in the files",
                                src->path, from->name, found, first,
                                first + count);
}

/* All copies that fill elements [first, first + count) of a source tensor;
 * @a make->dst is where the first of them goes. */
static fsdp_status_t add_range(plan_t *plan, uint64_t tensor, uint64_t first,
                               uint64_t count, const plan_copy_t *make,
                               fsdp_error_t *err)
{
    const catalog_t *src = plan->src;
    const catalog_tensor_t *from = &src->tensors[tensor];
    uint64_t end = from->piece_first + from->piece_count;
    uint64_t p, next = first;

    if (from->coded) {
        return add_decodes(plan, from, first, count, make, err);
    }
    if (from->boxed) {
        return add_gather(plan, from, first, count, make, err);
    }
    p = catalog_find_piece(src, tensor, first);
    for (; p < end && next < first + count; p++) {
        const catalog_piece_t *piece = &src->pieces[p];
        uint64_t stop = piece->first + piece->count;
        plan_copy_t copy = *make;

        if (piece->first > next) {
            break;
        }
        if (stop > first + count) {
            stop = first + count;
        }
        copy.src_piece = (uint32_t)p;
        copy.src = bytes_of(copy.src_dtype, next - piece->first);
        copy.dst = make->dst + bytes_of(copy.dst_dtype, next - first);
        copy.bytes = bytes_of(copy.src_dtype, stop - next);
        FSDP_TRY(add_copy(plan, &copy, err));
        next = stop;
    }

    if (next < first + count) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: tensor %s: element %" PRIu64
                              " is in no file",
                              src->path, from->name, next);
    }
    return FSDP_OK;
}

/* Strided pieces, and those that go into boxes, are not read from front to
 * back: once more, for the checksum. */
static fsdp_status_t add_unordered(plan_t *plan, const uint64_t *map,
                                   fsdp_error_t *err)
{
    enum { USED = 1, BOXED = 2 };
    const catalog_t *src = plan->src;
    uint8_t *used = calloc(src->num_tensors + 1, sizeof(*used));
    fsdp_status_t status = FSDP_OK;
    catalog_box_t box;

    if (used == NULL) {
        return no_memory(err);
    }

    for (uint64_t t = 0; t < plan->dst->num_tensors; t++) {
        used[map[t]] |= USED;
        if (plan->dst->tensors[t].boxed) {
            used[map[t]] |= BOXED;
        }
    }
    for (uint64_t p = 0; p < src->num_pieces && status == FSDP_OK; p++) {
        const catalog_piece_t *piece = &src->pieces[p];
        uint8_t dtype = src->tensors[piece->tensor].dtype;
        bool strided = catalog_box(src, piece, &box) && !box.dense;
        const plan_copy_t copy = {.bytes = catalog_piece_bytes(src, piece),
                                  .src_piece = (uint32_t)p,
                                  .dst_piece = CATALOG_NONE,
                                  .src_dtype = dtype,
                                  .dst_dtype = dtype,
                                  .flags = PLAN_DISCARD};

        if (!src->tensors[piece->tensor].coded &&
            piece->crc_first != CATALOG_NONE &&
            ((used[piece->tensor] & BOXED) != 0 ||
             (used[piece->tensor] != 0 && strided))) {
            status = add_copy(plan, &copy, err);
        }
    }
    free(used);
    return status;
}

static fsdp_status_t check_pair(const catalog_tensor_t *from,
                                const catalog_tensor_t *to, fsdp_error_t *err)
{
    if (from->numel != to->numel) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "tensor %s has %" PRIu64 " elements, %s should "
                              "have %" PRIu64,
                              from->name, from->numel, to->name, to->numel);
    }
    if (from->dtype != to->dtype &&
        (!dtype_is_float((fsdp_dtype_t)from->dtype) ||
         !dtype_is_float((fsdp_dtype_t)to->dtype))) {
        return fsdp_error_set(
            err, FSDP_ERR_UNSUPPORTED, "tensor %s: no conversion from %s to %s",
            from->name, fsdp_dtype_name((fsdp_dtype_t)from->dtype),
            fsdp_dtype_name((fsdp_dtype_t)to->dtype));
    }

    if (from->stored != from->dtype && from->dtype != to->dtype) {
        return fsdp_error_set(
            err, FSDP_ERR_UNSUPPORTED,
            "tensor %s: its %s values are made from %s: convert it once "
            "without a cast, then cast that to %s",
            from->name, fsdp_dtype_name((fsdp_dtype_t)from->dtype),
            fsdp_dtype_name((fsdp_dtype_t)from->stored),
            fsdp_dtype_name((fsdp_dtype_t)to->dtype));
    }

    return FSDP_OK;
}

fsdp_status_t plan_convert(plan_t *plan, const catalog_t *src,
                           const catalog_t *dst, const uint64_t *map,
                           fsdp_error_t *err)
{
    fsdp_status_t status;

    *plan = (plan_t){.src = src, .dst = dst};
    for (uint64_t p = 0; p < dst->num_pieces; p++) {
        const catalog_piece_t *piece = &dst->pieces[p];
        const catalog_tensor_t *to = &dst->tensors[piece->tensor];
        const catalog_tensor_t *from = &src->tensors[map[piece->tensor]];
        const plan_copy_t make = {.dst_piece = (uint32_t)p,
                                  .src_dtype = from->stored,
                                  .dst_dtype = to->dtype,
                                  .flags = to->boxed ? PLAN_AGAIN : 0};

        FSDP_TRY_GOTO(check_pair(from, to, err), err_free);
        status = (piece->box != CATALOG_NONE && from->coded)
                     ? add_decodes(plan, from, 0, piece->count, &make, err)
                 : (piece->box != CATALOG_NONE)
                     ? add_gather(plan, from, 0, piece->count, &make, err)
                     : add_range(plan, map[piece->tensor], piece->first,
                                 piece->count, &make, err);
        if (status != FSDP_OK) {
            goto err_free;
        }
    }
    FSDP_TRY_GOTO(add_unordered(plan, map, err), err_free);
    FSDP_TRY_GOTO(finish(plan, err), err_free);

    return FSDP_OK;
err_free:
    plan_free(plan);
    return status;
}

/* --- Into memory ---------------------------------------------------------- */

static fsdp_status_t check_range(const catalog_t *src,
                                 const fsdp_ckpt_range_t *range,
                                 fsdp_error_t *err)
{
    const catalog_tensor_t *tensor;
    unsigned bits;

    if (range->tensor >= src->num_tensors) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "%s: there is no tensor %" PRIu64, src->path,
                              range->tensor);
    }

    tensor = &src->tensors[range->tensor];
    bits = fsdp_dtype_bits((fsdp_dtype_t)tensor->dtype);
    if (range->first > tensor->numel ||
        range->count > tensor->numel - range->first ||
        range->first % 8 * bits % 8 != 0) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "%s: tensor %s: [%" PRIu64 ", %" PRIu64
                              " more) is no range of its %" PRIu64 " elements",
                              src->path, tensor->name, range->first,
                              range->count, tensor->numel);
    }

    return FSDP_OK;
}

/* Bytes [from, to) of a piece, only to complete the checksums. */
static fsdp_status_t add_discard(plan_t *plan, const plan_copy_t *of,
                                 uint64_t from, uint64_t to, fsdp_error_t *err)
{
    plan_copy_t copy = {.src = from,
                        .bytes = to - from,
                        .src_piece = of->src_piece,
                        .dst_piece = CATALOG_NONE,
                        .src_dtype = of->src_dtype,
                        .dst_dtype = of->src_dtype,
                        .flags = PLAN_DISCARD};

    return (to > from) ? add_copy(plan, &copy, err) : FSDP_OK;
}

/* Between two copies of a piece that use [.., from) and [to, ..): what is
 * missing of the blocks that they touch. */
static fsdp_status_t add_between(plan_t *plan, const plan_copy_t *of,
                                 uint64_t from, uint64_t to, fsdp_error_t *err)
{
    uint64_t from_end =
        (from + CATALOG_BLOCK - 1) / CATALOG_BLOCK * CATALOG_BLOCK;
    uint64_t to_start = to / CATALOG_BLOCK * CATALOG_BLOCK;

    if (from_end >= to_start) {
        return add_discard(plan, of, from, to, err);
    }
    FSDP_TRY(add_discard(plan, of, from, from_end, err));
    return add_discard(plan, of, to_start, to, err);
}

/* What is missing behind the last copy of a piece. */
static fsdp_status_t add_tail(plan_t *plan, const plan_copy_t *of,
                              uint64_t from, fsdp_error_t *err)
{
    uint64_t end =
        catalog_piece_bytes(plan->src, &plan->src->pieces[of->src_piece]);
    uint64_t block_end =
        (from + CATALOG_BLOCK - 1) / CATALOG_BLOCK * CATALOG_BLOCK;

    return add_discard(plan, of, from, (block_end < end) ? block_end : end,
                       err);
}

/* A copy whose first bytes, up to @a done, another copy reads too. */
static fsdp_status_t add_once(plan_t *plan, const plan_copy_t *copy,
                              uint64_t done, fsdp_error_t *err)
{
    plan_copy_t again = *copy, rest = *copy;

    if (copy->src >= done) {
        return add_copy(plan, copy, err);
    }

    again.flags |= PLAN_AGAIN;
    if (done - copy->src < again.bytes) {
        again.bytes = done - copy->src;
    }
    rest.src += again.bytes;
    rest.dst += again.bytes;
    rest.bytes -= again.bytes;
    FSDP_TRY(add_copy(plan, &again, err));
    return (rest.bytes > 0) ? add_copy(plan, &rest, err) : FSDP_OK;
}

/* A copy from a piece that has one checksum for all its bytes: it is compared
 * if they are all read anyhow.  @a whole_p is the last piece that was. */
static fsdp_status_t add_unblocked(plan_t *plan, const plan_copy_t *copy,
                                   uint32_t *whole_p, fsdp_error_t *err)
{
    const catalog_piece_t *piece = &plan->src->pieces[copy->src_piece];
    plan_copy_t added = *copy;

    if ((copy->flags & PLAN_GATHER) != 0 || copy->src_piece == *whole_p ||
        copy->bytes != catalog_piece_bytes(plan->src, piece)) {
        added.flags |= PLAN_AGAIN;
    } else {
        *whole_p = copy->src_piece;
    }
    return add_copy(plan, &added, err);
}

/*
 * From copies in the order of the source, make those that pass each byte of
 * each touched block to the checksums exactly once.
 */
static fsdp_status_t complete_blocks(plan_t *plan, const plan_t *wanted,
                                     fsdp_error_t *err)
{
    const plan_copy_t *before = NULL;
    uint32_t whole = CATALOG_NONE;
    uint64_t done = 0;

    for (uint64_t i = 0; i < wanted->num; i++) {
        const plan_copy_t *copy = &wanted->copies[i];
        bool checked =
            plan->src->pieces[copy->src_piece].crc_first != CATALOG_NONE;

        if ((copy->flags & PLAN_DECODE) != 0) {
            FSDP_TRY(add_copy(plan, copy, err));
            continue;
        }
        if ((copy->flags & PLAN_GATHER) != 0 || plan->src->crc_zip) {
            FSDP_TRY(add_unblocked(plan, copy, &whole, err));
            continue;
        }
        if (before != NULL && before->src_piece != copy->src_piece) {
            FSDP_TRY(add_tail(plan, before, done, err));
            before = NULL;
        }
        if (!checked) {
            FSDP_TRY(add_copy(plan, copy, err));
            continue;
        }
        if (before == NULL) {
            done = copy->src / CATALOG_BLOCK * CATALOG_BLOCK;
        }
        if (copy->src > done) {
            FSDP_TRY(add_between(plan, copy, done, copy->src, err));
        }
        FSDP_TRY(add_once(plan, copy, done, err));
        if (copy->src + copy->bytes > done) {
            done = copy->src + copy->bytes;
        }
        before = copy;
    }

    return (before != NULL) ? add_tail(plan, before, done, err) : FSDP_OK;
}

fsdp_status_t plan_read(plan_t *plan, const catalog_t *src,
                        const fsdp_ckpt_range_t *ranges, size_t num,
                        fsdp_error_t *err)
{
    plan_t wanted = {.src = src};
    fsdp_status_t status = FSDP_OK;

    *plan = (plan_t){.src = src};
    for (size_t i = 0; i < num; i++) {
        const fsdp_ckpt_range_t *range = &ranges[i];
        plan_copy_t make = {.dst = (uint64_t)(uintptr_t)range->data,
                            .dst_piece = CATALOG_NONE,
                            .flags = PLAN_DST_MEM};

        FSDP_TRY_GOTO(check_range(src, range, err), err_free);
        make.src_dtype = src->tensors[range->tensor].stored;
        make.dst_dtype = src->tensors[range->tensor].dtype;
        FSDP_TRY_GOTO(add_range(&wanted, range->tensor, range->first,
                                range->count, &make, err),
                      err_free);
    }

    sort_by_source(&wanted);
    FSDP_TRY_GOTO(complete_blocks(plan, &wanted, err), err_free);
    FSDP_TRY_GOTO(finish(plan, err), err_free);
    plan_free(&wanted);
    return FSDP_OK;
err_free:
    plan_free(&wanted);
    plan_free(plan);
    return status;
}

fsdp_status_t plan_check(plan_t *plan, const catalog_t *src, const bool *wanted,
                         fsdp_error_t *err)
{
    fsdp_status_t status;

    *plan = (plan_t){.src = src};
    for (uint64_t p = 0; p < src->num_pieces; p++) {
        const catalog_piece_t *piece = &src->pieces[p];
        const catalog_tensor_t *tensor = &src->tensors[piece->tensor];
        plan_copy_t of = {.src_piece = (uint32_t)p,
                          .dst_piece = CATALOG_NONE,
                          .src_dtype = tensor->stored,
                          .dst_dtype = tensor->stored};

        if (wanted != NULL && !wanted[p]) {
            continue;
        }
        if (piece->code != 0) {
            of.bytes = bytes_of(tensor->stored, tensor->numel);
            of.flags = PLAN_DISCARD | PLAN_DECODE;
            FSDP_TRY_GOTO(add_copy(plan, &of, err), err_free);
        } else if (piece->crc_first != CATALOG_NONE) {
            FSDP_TRY_GOTO(
                add_discard(plan, &of, 0, catalog_piece_bytes(src, piece), err),
                err_free);
        }
    }

    sort_by_source(plan);
    FSDP_TRY_GOTO(finish(plan, err), err_free);
    return FSDP_OK;
err_free:
    plan_free(plan);
    return status;
}

/* --- From memory ---------------------------------------------------------- */

fsdp_status_t plan_save(plan_t *plan, const catalog_t *dst,
                        const uint64_t *pieces, const void *const *data,
                        size_t num, fsdp_error_t *err)
{
    fsdp_status_t status;

    *plan = (plan_t){.dst = dst};
    for (size_t i = 0; i < num; i++) {
        const catalog_piece_t *piece = &dst->pieces[pieces[i]];
        uint8_t dtype = dst->tensors[piece->tensor].dtype;
        plan_copy_t copy = {.src = (uint64_t)(uintptr_t)data[i],
                            .bytes = catalog_piece_bytes(dst, piece),
                            .src_piece = CATALOG_NONE,
                            .dst_piece = (uint32_t)pieces[i],
                            .src_dtype = dtype,
                            .dst_dtype = dtype,
                            .flags = PLAN_SRC_MEM};

        FSDP_TRY_GOTO(add_copy(plan, &copy, err), err_free);
    }

    FSDP_TRY_GOTO(plan_place(plan, err), err_free);
    return FSDP_OK;
err_free:
    plan_free(plan);
    return status;
}
