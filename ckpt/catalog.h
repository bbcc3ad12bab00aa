/*
 * The catalog: which tensors a checkpoint holds and where each byte lies.
 *
 * Every format's reader fills one, every writer is given one, and planner,
 * verify and diff look at nothing else.  It is filled by catalog_add_*(), then
 * sealed: sorted and checked.  A sealed catalog may be read by any thread.
 *
 * Sizes: a tensor takes about 100 bytes and its name, a piece 56, and a piece
 * that is a box 24 more for each dimension.
 */
#ifndef FSDP_CATALOG_H
#define FSDP_CATALOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/codec.h"
#include "ckpt/fsdp_ckpt.h"

#define CATALOG_NONE  UINT32_MAX
#define CATALOG_BLOCK (1u << 20) /* bytes that one CRC-32C covers, at most */

typedef struct {
    const char *name; /* in the arena */
    uint64_t numel;
    uint64_t bytes;       /* of all elements */
    uint64_t dims_first;  /* index into catalog_t.dims; ndim entries */
    uint64_t piece_first; /* index into catalog_t.pieces, once sealed */
    uint32_t piece_count;
    uint32_t unit;  /* index into catalog_t.units, or CATALOG_NONE */
    uint32_t order; /* how many tensors were added before it: the order of the
                       writer, and within a unit that of the flat array */
    uint8_t ndim;
    uint8_t dtype;  /* fsdp_dtype_t */
    uint8_t stored; /* what its elements are in the files: another type than
                       dtype only after catalog_set_stored() */
    bool boxed;     /* a piece of it is a box, once sealed */
    bool coded;     /* a piece of it is encoded, once sealed */
} catalog_tensor_t;

/*
 * Elements [first, first + count) of a tensor, end to end in a file.  Block i
 * is its bytes from i * CATALOG_BLOCK on, the last one short; blocks do not
 * reach over pieces.  A piece of a packed type starts and ends at whole bytes
 * (it may end inside one at the end of the tensor).
 *
 * Or, where box is not CATALOG_NONE, a box of the tensor whose element at
 * start is at `offset`, the others at their strides from there; then first is
 * the row-major index of start, and count how many elements the box has.
 */
typedef struct {
    uint64_t first;
    uint64_t count;
    uint64_t offset; /* bytes in the file, or in what its code gives */
    uint32_t tensor;
    uint32_t file;
    uint32_t code;      /* 1 + index into catalog_t.codes; 0: the bytes lie in
                           the file as they are */
    uint32_t crc_first; /* index into catalog_t.crcs; CATALOG_NONE: it has no
                           checksums */
    uint32_t rank;      /* that wrote it; 0 where a format has none */
    uint32_t box;       /* index into catalog_t.boxes; CATALOG_NONE: elements
                           end to end as above */
    uint32_t tag;       /* for the use of whoever fills the catalog */
} catalog_piece_t;

typedef struct {
    const char *path;   /* relative to catalog_t.root */
    uint64_t size;      /* bytes */
    uint64_t table;     /* where the file holds its own u32 table of block
                           checksums, entry i being crcs[crc_first + i]; 0:
                           it holds none */
    uint32_t crc_first; /* its pieces' checksums, all of them, in a row */
    uint32_t crc_count;
    uint32_t crc32c;  /* of the whole file */
    bool has_crc;     /* crc32c is known */
    bool zeros;       /* there is no such file: all its bytes are 0 */
    int64_t mtime;    /* when it must have been written, in nanoseconds; 0: not
                         known */
    uint64_t checked; /* bytes that are no piece's and whose checksum was
                         compared when the file was opened */
} catalog_file_t;

typedef struct {
    const char *name;
    const char *owner; /* as added */
    uint64_t tensor;   /* once sealed */
} catalog_alias_t;

/*
 * What a checkpoint holds beside its tensors, by the dotted path in the state
 * dict: JSON as value.h writes it.  A tensor inside a value is a tensor of
 * the catalog; {"$tensor": "NAME"} stands for it in the JSON.
 */
typedef struct {
    const char *name;
    const char *json;
} catalog_value_t;

/* Bytes of a file that have one CRC-32, as zip archives have it, though no
 * piece is all of them (ckpt/span.h). */
typedef struct {
    uint64_t offset;
    uint64_t bytes;
    uint32_t file;
    uint32_t crc32;
} catalog_span_t;

/* A stretch of a file that is encoded: pieces lie in what it becomes. */
typedef struct {
    uint64_t offset; /* in the file */
    uint64_t length;
    uint64_t bytes;  /* that it becomes */
    uint64_t memory; /* that decoding it takes */
    uint32_t file;
    uint32_t step_first; /* index into catalog_t.steps */
    uint32_t num_steps;
    bool inlined; /* no file has them: they are in catalog_t.inlined, and
                     repeated until there are enough */
} catalog_code_t;

typedef struct catalog_chunk catalog_chunk_t;

typedef struct {
    fsdp_ckpt_format_t format;
    const char *path; /* what was recognised, for messages; in the arena */
    const char *root; /* directory that file paths are relative to */
    int64_t step;     /* -1: none */
    fsdp_mesh_t mesh; /* world 0: none */
    const char *meta; /* one JSON object; "{}" if nothing */
    /* What whoever opens it knows besides: path of a file that says which
     * parameters flat ones are made of, or NULL.  Set before format_open(). */
    const char *recipe;
    bool recipe_used; /* there are flat parameters, and it says of what */
    uint64_t digest_model[2], digest_optim[2];
    bool has_digest_model, has_digest_optim;

    catalog_tensor_t *tensors; /* sorted by name (strcmp), once sealed */
    uint64_t num_tensors;
    catalog_piece_t *pieces; /* sorted by tensor and first, once sealed */
    uint64_t num_pieces;
    catalog_file_t *files;
    uint32_t num_files;
    catalog_alias_t *aliases; /* sorted by name, once sealed */
    uint64_t num_aliases;
    catalog_value_t *values; /* sorted by name, once sealed */
    uint64_t num_values;
    catalog_span_t *spans; /* sorted by file and offset, once sealed */
    uint64_t num_spans, max_spans;
    const char **notes; /* what else is to be known, each of one line */
    uint64_t num_notes, max_notes;
    const char **units; /* names, in order of first mention */
    uint32_t num_units;
    uint64_t *dims;
    uint64_t num_dims;
    uint32_t *crcs; /* 0 in a table on disk: the block was never written */
    uint64_t num_crcs;
    bool crc_zip; /* a piece's checksum is one CRC-32 of all its bytes, as zip
                     archives have it, instead of CRC-32C by blocks */
    bool shows;   /* it only shows what lies in files of others */
    bool shared;  /* pieces may share bytes of a file: views of a storage */
    uint64_t *boxes; /* of each box: start, count and stride (elements in the
                        file) of every dimension, and its CATALOG_CONJ … */
    uint64_t num_boxes;
    catalog_code_t *codes;
    uint64_t num_codes, max_codes;
    codec_step_t *steps;
    uint64_t num_steps, max_steps;
    char *inlined; /* bytes */
    uint64_t num_inlined, max_inlined;

    bool sealed;
    catalog_chunk_t *arena;
    uint64_t max_tensors, max_pieces, max_aliases, max_values;
    uint64_t max_dims, max_crcs, max_boxes;
    uint32_t max_files, max_units;
} catalog_t;

/* Empty, with step -1 and meta "{}". */
void catalog_init(catalog_t *cat);

/* Frees what the catalog holds, not @a cat; an empty one is allowed. */
void catalog_free(catalog_t *cat);

/* A copy of a string that lives as long as the catalog; NULL: no memory. */
const char *catalog_strdup(catalog_t *cat, const char *text);

/*
 * Fill it.  Strings are copied.  Each fails with FSDP_ERR_NO_MEMORY, or with
 * FSDP_ERR_CORRUPT and the file's or tensor's name if a number does not make
 * sense.
 */

fsdp_status_t catalog_add_file(catalog_t *cat, const char *path, uint64_t size,
                               uint32_t *file_p, fsdp_error_t *err);

/**
 * @param unit      NULL: none.
 * @param tensor_p  Index until catalog_seal(), which sorts; may be NULL.
 */
fsdp_status_t catalog_add_tensor(catalog_t *cat, const char *name,
                                 fsdp_dtype_t dtype, uint32_t ndim,
                                 const uint64_t *dims, const char *unit,
                                 uint64_t *tensor_p, fsdp_error_t *err);

/**
 * The files hold a tensor in another type, for its values are defined as the
 * conversion of these (dtype_convert()): it has no bytes of its own.
 *
 * @param tensor  As catalog_add_tensor() gave it; none of its pieces may be a
 *                box or have checksums.
 *
 * @return FSDP_ERR_UNSUPPORTED if one of the types is no float.
 */
fsdp_status_t catalog_set_stored(catalog_t *cat, uint64_t tensor,
                                 fsdp_dtype_t stored, fsdp_error_t *err);

/* piece->tensor is an index as catalog_add_tensor() gave it.  Empty pieces are
 * left out. */
fsdp_status_t catalog_add_piece(catalog_t *cat, const catalog_piece_t *piece,
                                fsdp_error_t *err);

/**
 * Make an empty catalog one of the same files: with their checksums and codes,
 * the step, the mesh, meta and notes, but not the tensors, other names, values
 * and digests.  Pieces may be added as the other one has them.
 */
fsdp_status_t catalog_copy_storage(catalog_t *to, const catalog_t *from,
                                   fsdp_error_t *err);

/* What is to be done to the elements of a piece when it is read. */
enum {
    CATALOG_NEG = 1, /* negate them */
    CATALOG_CONJ = 2 /* conjugate them: complex types only */
};

/**
 * Add a box of a tensor: from @a start, @a count elements in each dimension,
 * as many entries each as the tensor has dimensions.  Where that is a range of
 * elements end to end it becomes an ordinary piece.
 *
 * @param piece    tensor, file, offset, rank, crc_first and tag are used.
 * @param strides  Elements; NULL: the box is stored densely, row-major.
 *
 * @return FSDP_ERR_UNSUPPORTED for a box of a type of less than a byte.
 */
fsdp_status_t catalog_add_box(catalog_t *cat, const catalog_piece_t *piece,
                              const uint64_t *start, const uint64_t *count,
                              const uint64_t *strides, fsdp_error_t *err);

/* The same, with CATALOG_NEG and CATALOG_CONJ in @a change. */
fsdp_status_t catalog_add_changed(catalog_t *cat, const catalog_piece_t *piece,
                                  const uint64_t *start, const uint64_t *count,
                                  const uint64_t *strides, unsigned change,
                                  fsdp_error_t *err);

/* Room for @a num checksums of a file, all zero: crcs[file.crc_first …].  Once
 * for each file. */
fsdp_status_t catalog_add_crcs(catalog_t *cat, uint32_t file, uint64_t num,
                               fsdp_error_t *err);

fsdp_status_t catalog_add_alias(catalog_t *cat, const char *name,
                                const char *owner, fsdp_error_t *err);

/* What whoever looks at the checkpoint is to be told, though it can be read:
 * one line, with the file's name. */
__attribute__((format(printf, 3, 4))) fsdp_status_t catalog_add_note(
    catalog_t *cat, fsdp_error_t *err, const char *fmt, ...);

/* When the catalog is sealed those of 0 bytes are left out, and those in which
 * each piece has a checksum of its own: then that is all of the span. */
fsdp_status_t catalog_add_span(catalog_t *cat, const catalog_span_t *span,
                               fsdp_error_t *err);

/**
 * @param code    file, offset, length, bytes and memory are used.
 * @param steps   How it is decoded.
 * @param code_p  For catalog_piece_t.code.
 *
 * @return FSDP_ERR_CORRUPT, as catalog_seal() too, if what it says makes no
 *         sense.
 */
fsdp_status_t catalog_add_code(catalog_t *cat, const catalog_code_t *code,
                               const codec_step_t *steps, unsigned num_steps,
                               uint32_t *code_p, fsdp_error_t *err);

/* The same for bytes that are no file's: @a length of them at @a data, which
 * are copied, repeated until they are @a bytes. */
fsdp_status_t catalog_add_inlined(catalog_t *cat, const void *data,
                                  uint64_t length, uint64_t bytes,
                                  uint32_t *code_p, fsdp_error_t *err);

/* @a json is one JSON value, as value.h writes it. */
fsdp_status_t catalog_add_value(catalog_t *cat, const char *name,
                                const char *json, fsdp_error_t *err);

/* The same in a sealed catalog; replaces the one of this name. */
fsdp_status_t catalog_set_value(catalog_t *cat, const char *name,
                                const char *json, fsdp_error_t *err);

/* What catalog_seal() checks beside names, aliases and piece ranges. */
enum {
    CATALOG_CHECK_COVER = 1, /* each element lies in one piece exactly */
    CATALOG_CHECK_FILES = 2, /* root/path has the size that was added, and each
                                piece lies inside its file */
    CATALOG_CHECK_ALL = 3
};

/**
 * Sort, check, and make ready for lookups.  Indexes of tensors and pieces
 * change; `order` tells the old one of a tensor.
 *
 * @return FSDP_ERR_CORRUPT, naming tensor, file and range: a name twice, an
 *         element in no piece or in two, a file that is missing, short or
 *         long, a piece that leaves its file.
 */
fsdp_status_t catalog_seal(catalog_t *cat, unsigned checks, fsdp_error_t *err);

/* After catalog_seal(): binary search; aliases are found too. */
bool catalog_find(const catalog_t *cat, const char *name, uint64_t *tensor_p);

/* The error that no tensor fits a pattern, with the nearest name.
 * @param text  What the user has written: the pattern, and more. */
fsdp_status_t catalog_no_tensor(const catalog_t *cat, const char *pattern,
                                const char *text, fsdp_error_t *err);

/* After catalog_seal(): binary search. */
bool catalog_find_value(const catalog_t *cat, const char *name,
                        uint64_t *value_p);

/* The piece of a tensor that is not boxed that holds an element, or the first
 * one behind it; piece_first + piece_count if there is none. */
uint64_t catalog_find_piece(const catalog_t *cat, uint64_t tensor,
                            uint64_t element);

/* Bytes that a piece spans in its file, and how many blocks of CRC-32C those
 * are. */
uint64_t catalog_piece_bytes(const catalog_t *cat,
                             const catalog_piece_t *piece);
uint64_t catalog_blocks(uint64_t bytes);

/* The tensors in the order of the writer: `order` turned around.
 * @return to be freed by the caller; NULL: no memory. */
uint64_t *catalog_in_order(const catalog_t *cat);

/* What it is encoded by; NULL: nothing. */
const catalog_code_t *catalog_code(const catalog_t *cat,
                                   const catalog_piece_t *piece);

/* A piece that is a box. */
typedef struct {
    unsigned ndim;
    const uint64_t *start, *count, *strides; /* ndim entries each */
    unsigned change;
    bool dense;                              /* row-major, without holes */
} catalog_box_t;

/* @return false if it is none. */
bool catalog_box(const catalog_t *cat, const catalog_piece_t *piece,
                 catalog_box_t *box_p);

/* root/path of a file; the caller frees it; NULL: no memory. */
char *catalog_file_path(const catalog_t *cat, uint32_t file);

/*
 * Element types, beside the public functions.
 */

/* Bytes that @a count elements take, packed types rounded up to whole bytes.
 * @return false if it does not fit. */
bool dtype_bytes(fsdp_dtype_t dtype, uint64_t count, uint64_t *bytes_p);

/* Known to this version; values read from files are checked by this. */
bool dtype_valid(unsigned dtype);

/* f32, bf16, f16 and f64: what --cast and diff take as numbers. */
bool dtype_is_float(fsdp_dtype_t dtype);

/**
 * Convert elements between f32, bf16, f16 and f64: to nearest, ties to even;
 * NaN stays NaN, infinities and signed zeros stay.
 *
 * @return false if one of the types is another.
 */
bool dtype_convert(fsdp_dtype_t from, const void *src, fsdp_dtype_t to,
                   void *dst, uint64_t count);

#endif
