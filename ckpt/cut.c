#include "config.h"

#include "ckpt/cut.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/catalog_box.h"
#include "lib/util/check.h"
#include "lib/util/select.h"
#include "lib/util/size.h"
#include "lib/util/slice.h"

static fsdp_status_t no_memory(const catalog_t *cat, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", cat->path);
}

/* --- Patterns ------------------------------------------------------------- */

static bool fits_anything(const char *pattern, const catalog_t *cat)
{
    for (uint64_t t = 0; t < cat->num_tensors; t++) {
        if (select_pattern_match(pattern, cat->tensors[t].name)) {
            return true;
        }
    }
    for (uint64_t v = 0; v < cat->num_values; v++) {
        if (select_pattern_match(pattern, cat->values[v].name)) {
            return true;
        }
    }

    return false;
}

fsdp_status_t cut_init(cut_t *cut, const char *const *texts, size_t num,
                       const catalog_t *cat, fsdp_error_t *err)
{
    cut->patterns = calloc(num + 1, sizeof(*cut->patterns));
    cut->slices = calloc(num + 1, sizeof(*cut->slices));
    if (cut->patterns == NULL || cut->slices == NULL) {
        return no_memory(cat, err);
    }

    for (; cut->num < num; cut->num++) {
        const char *text = texts[cut->num];
        size_t size;
        const char *inner = slice_split(text, &size);

        if (inner == NULL || !slice_is(inner) || fits_anything(text, cat)) {
            size = strlen(text);
            inner = NULL;
        }
        cut->slices[cut->num] = inner;
        cut->cuts |= inner != NULL;
        cut->patterns[cut->num] = strndup(text, size);
        if (cut->patterns[cut->num] == NULL) {
            return no_memory(cat, err);
        }
    }

    return FSDP_OK;
}

void cut_free(cut_t *cut)
{
    for (size_t i = 0; i < cut->num; i++) {
        free(cut->patterns[i]);
    }
    free(cut->patterns);
    free(cut->slices);
}

/* --- Tensors -------------------------------------------------------------- */

typedef struct {
    const cut_t *cut;
    const catalog_t *from;
    catalog_t *to;
    bool *lost; /* of each piece of `from`: it had checksums */
} cutting_t;

/* What a piece has of the part of its tensor. */
typedef struct {
    const cutting_t *cutting;
    const box_t *part;
    uint64_t index; /* of the piece in `from` */
    uint64_t target;
} cut_piece_t;

/* The part of a tensor that is meant: all of it, if nothing else is said. */
static fsdp_status_t choose_part(const cutting_t *cutting,
                                 const catalog_tensor_t *tensor,
                                 slice_t *slice_p, fsdp_error_t *err)
{
    const uint64_t *dims = cutting->from->dims + tensor->dims_first;
    const char *inner = NULL, *pattern = "", *why;
    char shape[128];

    for (size_t i = 0; i < cutting->cut->num; i++) {
        pattern = cutting->cut->patterns[i];
        if (select_pattern_match(pattern, tensor->name)) {
            inner = cutting->cut->slices[i];
            break;
        }
    }
    if (slice_parse((inner != NULL) ? inner : "]", tensor->ndim, dims, slice_p,
                    &why)) {
        return FSDP_OK;
    }

    return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                          "'%s[%s': %s; the shape of %s is %s", pattern, inner,
                          why, tensor->name,
                          size_shape(tensor->ndim, dims, shape, sizeof(shape)));
}

static fsdp_status_t add_tensor(const cutting_t *cutting,
                                const catalog_tensor_t *tensor,
                                const slice_t *slice, uint64_t *target_p,
                                fsdp_error_t *err)
{
    const catalog_t *from = cutting->from;
    const char *unit =
        (tensor->unit != CATALOG_NONE) ? from->units[tensor->unit] : NULL;
    uint64_t dims[SLICE_MAX_NDIM];

    for (unsigned d = 0; d < slice->ndim; d++) {
        dims[d] = slice->hi[d] - slice->lo[d];
    }
    FSDP_TRY(catalog_add_tensor(cutting->to, tensor->name,
                                (fsdp_dtype_t)tensor->dtype, slice->ndim, dims,
                                unit, target_p, err));

    return (tensor->stored != tensor->dtype)
               ? catalog_set_stored(cutting->to, *target_p,
                                    (fsdp_dtype_t)tensor->stored, err)
               : FSDP_OK;
}

/* --- Pieces --------------------------------------------------------------- */

static fsdp_status_t bad_type(const cutting_t *cutting, uint64_t index,
                              fsdp_error_t *err)
{
    const catalog_t *from = cutting->from;
    const catalog_tensor_t *tensor = &from->tensors[from->pieces[index].tensor];

    return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                          "%s: tensor %s: its type %s cannot be cut there",
                          from->path, tensor->name,
                          fsdp_dtype_name((fsdp_dtype_t)tensor->dtype));
}

/* Of a piece that is a range, what is in elements [from_lo, from_hi) of its
 * tensor. */
static fsdp_status_t cut_range(const cut_piece_t *cut, uint64_t from_lo,
                               uint64_t from_hi, fsdp_error_t *err)
{
    const cutting_t *cutting = cut->cutting;
    const catalog_t *from = cutting->from;
    catalog_piece_t added = from->pieces[cut->index];
    unsigned bits =
        fsdp_dtype_bits((fsdp_dtype_t)from->tensors[added.tensor].stored);
    uint64_t lo = added.first, hi = lo + added.count;

    lo = (lo > from_lo) ? lo : from_lo;
    hi = (hi < from_hi) ? hi : from_hi;
    if (lo >= hi) {
        return FSDP_OK;
    }
    if (!part_range(&added, bits, lo, hi, &cutting->lost[cut->index])) {
        return bad_type(cutting, cut->index, err);
    }

    added.first -= from_lo;
    added.tensor = (uint32_t)cut->target;
    return catalog_add_piece(cutting->to, &added, err);
}

/* What a box of a piece, whose elements lie at strides, has of the part. */
static fsdp_status_t cut_box(const box_t *box, const uint64_t *strides,
                             uint64_t skipped, unsigned change, void *arg,
                             fsdp_error_t *err)
{
    const cut_piece_t *cut = arg;
    const cutting_t *cutting = cut->cutting;
    catalog_piece_t added = cutting->from->pieces[cut->index];
    unsigned bits = fsdp_dtype_bits(
        (fsdp_dtype_t)cutting->from->tensors[added.tensor].dtype);
    uint64_t numel = 1;
    box_t common;

    if (!box_intersect(cut->part, box, &common)) {
        return FSDP_OK;
    }

    for (unsigned d = 0; d < common.ndim; d++) {
        skipped += (common.start[d] - box->start[d]) * strides[d];
        common.start[d] -= cut->part->start[d];
        numel *= common.count[d];
    }
    added.tensor = (uint32_t)cut->target;
    added.offset += skipped * (bits / 8);
    part_checksums(&added, numel, &cutting->lost[cut->index]);
    return catalog_add_changed(cutting->to, &added, common.start, common.count,
                               strides, change, err);
}

static fsdp_status_t cut_boxes(cut_piece_t *cut, fsdp_error_t *err)
{
    const catalog_t *from = cut->cutting->from;
    const catalog_piece_t *piece = &from->pieces[cut->index];
    const catalog_tensor_t *tensor = &from->tensors[piece->tensor];

    if (tensor->stored != tensor->dtype ||
        fsdp_dtype_bits((fsdp_dtype_t)tensor->dtype) % 8 != 0) {
        return bad_type(cut->cutting, cut->index, err);
    }

    return box_visit(from, piece, cut_box, cut, err);
}

static fsdp_status_t add_pieces(const cutting_t *cutting,
                                const catalog_tensor_t *tensor,
                                const slice_t *slice, uint64_t target,
                                fsdp_error_t *err)
{
    const catalog_t *from = cutting->from;
    const uint64_t *dims = from->dims + tensor->dims_first;
    box_t part = {.ndim = slice->ndim};
    uint64_t row = 1;
    bool rows = true; /* the part is some, whole */

    for (unsigned d = 0; d < slice->ndim; d++) {
        part.start[d] = slice->lo[d];
        part.count[d] = slice->hi[d] - slice->lo[d];
        if (d > 0) {
            row *= dims[d];
            rows = rows && part.count[d] == dims[d];
        }
    }
    for (uint32_t p = 0; p < tensor->piece_count; p++) {
        cut_piece_t cut = {.cutting = cutting,
                           .part = &part,
                           .index = tensor->piece_first + p,
                           .target = target};
        uint64_t lo = (slice->ndim > 0) ? slice->lo[0] * row : 0;
        uint64_t hi = (slice->ndim > 0) ? slice->hi[0] * row : 1;
        bool flat = rows && from->pieces[cut.index].box == CATALOG_NONE;

        FSDP_TRY(flat ? cut_range(&cut, lo, hi, err) : cut_boxes(&cut, err));
    }

    return FSDP_OK;
}

/* --- All of it ------------------------------------------------------------ */

/* In the order of the source's writer. */
static fsdp_status_t add_tensors(const cutting_t *cutting, fsdp_error_t *err)
{
    const catalog_t *from = cutting->from;
    uint64_t *order = catalog_in_order(from);
    fsdp_status_t status = FSDP_OK;

    if (order == NULL) {
        return no_memory(from, err);
    }

    for (uint64_t i = 0; i < from->num_tensors; i++) {
        const catalog_tensor_t *tensor = &from->tensors[order[i]];
        uint64_t target;
        slice_t slice;

        FSDP_TRY_GOTO(choose_part(cutting, tensor, &slice, err), err_free);
        FSDP_TRY_GOTO(add_tensor(cutting, tensor, &slice, &target, err),
                      err_free);
        FSDP_TRY_GOTO(add_pieces(cutting, tensor, &slice, target, err),
                      err_free);
    }
err_free:
    free(order);
    return status;
}

static fsdp_status_t fill(const cutting_t *cutting, fsdp_error_t *err)
{
    const catalog_t *from = cutting->from;
    catalog_t *to = cutting->to;

    FSDP_TRY(catalog_copy_storage(to, from, err));
    FSDP_TRY(add_tensors(cutting, err));
    for (uint64_t i = 0; i < from->num_aliases; i++) {
        const catalog_alias_t *alias = &from->aliases[i];

        FSDP_TRY(catalog_add_alias(to, alias->name,
                                   from->tensors[alias->tensor].name, err));
    }
    for (uint64_t i = 0; i < from->num_values; i++) {
        FSDP_TRY(catalog_add_value(to, from->values[i].name,
                                   from->values[i].json, err));
    }

    return catalog_seal(to, CATALOG_CHECK_COVER, err);
}

fsdp_status_t cut_use(const cut_t *cut, catalog_t *cat, rules_stages_t *stages,
                      fsdp_error_t *err)
{
    rules_stage_t *stage = &stages->stages[stages->num];
    cutting_t cutting = {.cut = cut, .from = &stage->cat, .to = cat};

    if (!cut->cuts) {
        return FSDP_OK;
    }

    stage->lost = calloc(cat->num_pieces + 1, sizeof(*stage->lost));
    if (stage->lost == NULL) {
        return no_memory(cat, err);
    }
    stage->cat = *cat;
    stages->num++;
    catalog_init(cat);
    cutting.lost = stage->lost;
    return fill(&cutting, err);
}
