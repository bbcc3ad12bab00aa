/*
 * The plan: which bytes go from where to where.
 *
 * Target pieces are intersected with source pieces.  Each intersection is one
 * copy; copies are in an order in which both sides are read and written from
 * front to back, so that the engine joins neighbours into large transfers.
 * Both sides may also be memory: that is a save, and a load.
 */
#ifndef FSDP_PLAN_H
#define FSDP_PLAN_H

#include "ckpt/box.h"
#include "ckpt/catalog.h"

enum {
    PLAN_SRC_MEM = 1, /* src is an address */
    PLAN_DST_MEM = 2, /* dst is an address */
    PLAN_DISCARD = 4, /* is read only to complete a checksum */
    PLAN_AGAIN = 8,   /* the source bytes are in another copy too: they do not
                         count for the source's checksum */
    PLAN_GATHER = 16, /* the elements lie in boxes: src is the byte of the
                         tensor, or of the target's box, in row-major order,
                         src_piece the tensor's first piece */
    PLAN_DECODE = 32  /* what src_piece, which has to be decoded, has of src and
                         bytes, which are as above; dst is where these begin */
};

typedef struct {
    uint64_t src;       /* byte of the source piece, or address */
    uint64_t dst;       /* byte of the target piece, or address */
    uint64_t bytes;     /* of the source, at least 1 */
    uint32_t src_piece; /* of the source catalog; CATALOG_NONE: memory */
    uint32_t dst_piece; /* of the target catalog; CATALOG_NONE: memory */
    uint8_t src_dtype;
    uint8_t dst_dtype; /* another one only for a cast */
    uint8_t flags;
} plan_copy_t;

typedef struct {
    const catalog_t *src; /* borrowed; NULL: all sources are memory */
    const catalog_t *dst; /* borrowed; NULL: all targets are memory */
    plan_copy_t *copies;
    uint64_t num;
    uint64_t max;
    uint64_t num_plain;  /* that are not PLAN_DECODE; these come behind, in the
                            order of the source */
    uint64_t runs;       /* after joining neighbours on both sides */
    uint64_t bytes_read; /* from files */
    uint64_t bytes_written;
} plan_t;

/**
 * Fill the pieces of a target from a source: reshard, convert, consolidate.
 *
 * @param dst  Sealed; offsets may still be unknown.  Boxes are dense.
 * @param map  The source tensor of each target tensor; same shape, and the
 *             same type or both floating-point.
 *
 * @return FSDP_ERR_CORRUPT if the source has no piece for an element.
 */
fsdp_status_t plan_convert(plan_t *plan, const catalog_t *src,
                           const catalog_t *dst, const uint64_t *map,
                           fsdp_error_t *err);

/* Fill ranges in memory, in the order of the files, with what is needed beside
 * them to complete the checksums of the blocks they touch. */
fsdp_status_t plan_read(plan_t *plan, const catalog_t *src,
                        const fsdp_ckpt_range_t *ranges, size_t num,
                        fsdp_error_t *err);

/* Read every piece that has checksums or is encoded, and none twice.
 * @param wanted  One for each piece; NULL: all. */
fsdp_status_t plan_check(plan_t *plan, const catalog_t *src, const bool *wanted,
                         fsdp_error_t *err);

/* Write pieces of a target from memory: data[i] are the elements of
 * pieces[i]. */
fsdp_status_t plan_save(plan_t *plan, const catalog_t *dst,
                        const uint64_t *pieces, const void *const *data,
                        size_t num, fsdp_error_t *err);

/* Put the copies in the order of the target files, once their offsets are
 * known, and count the runs again. */
fsdp_status_t plan_place(plan_t *plan, fsdp_error_t *err);

/**
 * Keep of a placed plan the part of one rank of several, alike in bytes.  No
 * two of them write into the same 64 KiB of a file: a client of a network file
 * system may write whole pages.  So each decodes what it writes, and what two of
 * them have a part of is decoded by both.  The counts stay those of the whole.
 */
fsdp_status_t plan_keep_part(plan_t *plan, uint32_t rank, uint32_t world,
                             fsdp_error_t *err);

/* Where a copy's bytes lie in the file of its source or target piece. */
uint64_t plan_src_offset(const plan_t *plan, const plan_copy_t *copy);
uint64_t plan_dst_offset(const plan_t *plan, const plan_copy_t *copy);

/* Bytes of the source that a copy moves. */
uint64_t plan_moved(const plan_t *plan, const plan_copy_t *copy);

/* The same, of all copies. */
uint64_t plan_total(const plan_t *plan);

/* What a PLAN_DECODE copy asks for. */
typedef struct {
    /* Of an array of these dimensions, row-major, whose first element is the
     * tensor's at `start`: */
    const uint64_t *start, *dims;
    bool boxed;            /* it is a box of the tensor; else all of it */
    uint64_t first, count; /* these elements, */
    unsigned num;          /* which are these boxes of the tensor */
    box_t boxes[2 * BOX_MAX_NDIM];
} plan_asked_t;

void plan_asked(const plan_t *plan, const plan_copy_t *copy,
                plan_asked_t *asked_p);

/* Do two PLAN_DECODE copies read the same encoded bytes? */
bool plan_same_code(const plan_t *plan, const plan_copy_t *a,
                    const plan_copy_t *b);

/* Bytes that a copy writes; of one that is not PLAN_DECODE. */
uint64_t plan_dst_bytes(const plan_copy_t *copy);

void plan_free(plan_t *plan);

#endif
