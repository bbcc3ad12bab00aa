/*
 * Checkpoints: read any format, write ours and others', reshard, verify, diff.
 *
 * A checkpoint of any format is seen as a catalog: tensors by name, each in
 * pieces, each piece in one place of one file.  Reading, converting and
 * saving all run the same engine over a list of copies.
 *
 * Nothing here needs MPI, CUDA or a launcher.  Handles may be used by one
 * thread at a time; different handles by different threads.  All calls are
 * local, except that the W ranks of a job call fsdp_ckpt_save() together.
 * Doc: doc/checkpoint-format.md.
 */
#ifndef FSDP_CKPT_H
#define FSDP_CKPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fsdp_layout.h"
#include "fsdp_status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- Types ---------------------------------------------------------------- */

#define FSDP_CKPT_MAX_NDIM 32 /* as many as HDF5 has */

/* Element types; values are on disk (index.h5): append-only. */
typedef enum {
    FSDP_DTYPE_F32 = 0,
    FSDP_DTYPE_BF16 = 1,
    FSDP_DTYPE_F16 = 2,
    FSDP_DTYPE_F64 = 3,
    FSDP_DTYPE_I8 = 4,
    FSDP_DTYPE_I16 = 5,
    FSDP_DTYPE_I32 = 6,
    FSDP_DTYPE_I64 = 7,
    FSDP_DTYPE_U8 = 8,
    FSDP_DTYPE_U16 = 9,
    FSDP_DTYPE_U32 = 10,
    FSDP_DTYPE_U64 = 11,
    FSDP_DTYPE_BOOL = 12,
    FSDP_DTYPE_C64 = 13,
    FSDP_DTYPE_C128 = 14,
    FSDP_DTYPE_F8_E4M3 = 15,
    FSDP_DTYPE_F8_E5M2 = 16,
    FSDP_DTYPE_F8_E8M0 = 17,
    FSDP_DTYPE_F8_E4M3FNUZ = 18,
    FSDP_DTYPE_F8_E5M2FNUZ = 19,
    FSDP_DTYPE_F6_E2M3 = 20, /* F6 and F4 are packed: sizes in bits */
    FSDP_DTYPE_F6_E3M2 = 21,
    FSDP_DTYPE_F4 = 22
} fsdp_dtype_t;

/* Formats, as --to names them. */
typedef enum {
    FSDP_CKPT_HDF5 = 0,        /* "hdf5": ours, sharded */
    FSDP_CKPT_HDF5_FILE = 1,   /* "hdf5-file": one file of plain datasets */
    FSDP_CKPT_SAFETENSORS = 2, /* "safetensors": one file or shards + index */
    FSDP_CKPT_DCP = 3,         /* "dcp": torch.distributed.checkpoint */
    FSDP_CKPT_DCP_HF = 4,      /* "dcp-hf": its Hugging Face form, sharded */
    FSDP_CKPT_TORCH = 5,       /* "torch": files of torch.save, one or one of
                                  each rank */
    FSDP_CKPT_ZERO = 6,        /* "zero": DeepSpeed, of each rank */
    FSDP_CKPT_UNIVERSAL = 7,   /* "universal": DeepSpeed, by parameter */
    FSDP_CKPT_MEGATRON = 8,    /* "megatron": torch_dist of megatron-core */
    FSDP_CKPT_LLMC = 9         /* "llmc": llm.c */
} fsdp_ckpt_format_t;

/* An open checkpoint; reading only. */
typedef struct fsdp_ckpt fsdp_ckpt_t;

typedef struct {
    fsdp_ckpt_format_t format;
    const char *path;     /* the directory or file that was recognised */
    uint64_t num_tensors; /* aliases not counted */
    uint64_t num_aliases;
    uint64_t num_values; /* kept beside the tensors */
    uint64_t num_pieces;
    uint64_t num_files;
    uint64_t bytes;        /* of all tensors */
    bool shows;            /* it only shows what lies in files of another one */
    int64_t step;          /* -1 if it has none */
    fsdp_mesh_t mesh;      /* world 0 if it has none */
    const char *meta_json; /* what the writer kept beside the tensors: one
                              JSON object, "{}" if nothing */
    uint64_t num_notes;
    bool recipe_unused; /* a recipe was given, but there are no flat parameters
                           that it could be of */
} fsdp_ckpt_info_t;

typedef struct {
    const char *name; /* "model/h.0.ln_1.weight", or as the format has it */
    fsdp_dtype_t dtype;
    uint32_t ndim; /* 0 is a scalar */
    const uint64_t *dims;
    uint64_t numel;
    uint64_t bytes;
    uint32_t num_pieces;
    const char *unit; /* flat unit that it belongs to, or NULL */
} fsdp_ckpt_tensor_t;

/* Elements [first, first + count) of a tensor, at @a offset in @a file.  Or a
 * box of it: then `start` is not NULL, first is its first element's index and
 * count their number.  Where they are compressed or otherwise encoded, they
 * are in what the `encoded` bytes at @a offset become. */
typedef struct {
    uint64_t first;
    uint64_t count;
    const char *file;      /* relative to the checkpoint's path */
    uint64_t offset;       /* bytes */
    const uint64_t *start; /* of the box, an entry for each dimension */
    const uint64_t *counts;
    const uint64_t *strides; /* elements in the file */
    uint64_t encoded;        /* bytes; 0: they lie there as they are */
} fsdp_ckpt_piece_t;

/* Called now and then during long work, by one thread at a time, which need not
 * be the caller's.
 * @return false to stop: the call then fails with FSDP_ERR_CANCELLED. */
typedef bool (*fsdp_ckpt_progress_f)(uint64_t done, uint64_t total, void *arg);

/* How the engine may use the machine; zeros choose the defaults. */
typedef struct {
    uint64_t max_mem; /* bytes of copy buffers, default 64 MiB */
    uint32_t jobs;    /* threads, default the number of usable cores, ≤ 8 */
    fsdp_ckpt_progress_f progress; /* may be NULL */
    void *progress_arg;
} fsdp_ckpt_engine_t;

/* Several processes, on one node or many, that run the same check: each reads a
 * part. */
typedef struct {
    uint32_t rank;
    uint32_t world;
    const char *job_id; /* the same on all ranks, of this run alone */
    const char *dir;    /* all see it and can write there; they leave nothing */
    double deadline;    /* seconds that a rank may show no life; 0: 600 */
} fsdp_ckpt_ranks_t;

/* "f32", "bf16", …; and back. */
FSDP_API const char *fsdp_dtype_name(fsdp_dtype_t dtype);
FSDP_API bool fsdp_dtype_parse(const char *text, fsdp_dtype_t *dtype_p);
/* Bits an element takes. */
FSDP_API unsigned fsdp_dtype_bits(fsdp_dtype_t dtype);

/* Elements [first, first + count) of @a data as numbers: one for each, two for
 * each complex one.  64-bit integers beyond 2^53 are rounded. */
FSDP_API void fsdp_dtype_to_double(fsdp_dtype_t dtype, const void *data,
                                   uint64_t first, uint64_t count,
                                   double *values);

/* "hdf5", "hdf5-file", "safetensors"; and back. */
FSDP_API const char *fsdp_ckpt_format_name(fsdp_ckpt_format_t format);
FSDP_API bool fsdp_ckpt_format_parse(const char *text,
                                     fsdp_ckpt_format_t *format_p);

/* What a format has a place for, beside tensors and values. */
typedef enum {
    FSDP_CKPT_KEEPS_NONE = 0,
    FSDP_CKPT_KEEPS_STEP = 1 << 0,  /* the number of the step */
    FSDP_CKPT_KEEPS_META = 1 << 1,  /* what else a source has in metadata */
    FSDP_CKPT_KEEPS_RANKS = 1 << 2, /* which rank has what */
    FSDP_CKPT_KEEPS_ROWS = 1 << 3,  /* and that is rows, or boxes, only */
    FSDP_CKPT_KEEPS_FILES = 1 << 4  /* any number of them for its ranks */
} fsdp_ckpt_keeps_t;

/* Flags of fsdp_ckpt_keeps_t. */
FSDP_API unsigned fsdp_ckpt_format_keeps(fsdp_ckpt_format_t format);

/* --- Reading -------------------------------------------------------------- */

/**
 * Open a checkpoint.  The format is found by looking.
 *
 * @param path  A checkpoint directory, a directory of checkpoints (then the
 *              one that `latest` names, or the newest valid one), or a file.
 *
 * @return FSDP_ERR_NOT_FOUND if nothing is there, FSDP_ERR_CORRUPT if what is
 *         there is incomplete or damaged: sizes, coverage and indexes are
 *         checked here, data only when it is read.
 */
FSDP_API fsdp_status_t fsdp_ckpt_open(const char *path, fsdp_ckpt_t **ckpt_p,
                                      fsdp_error_t *err);

typedef struct {
    size_t size; /* FSDP_CKPT_OPEN_INIT sets it */
    /* Path of a JSON file that says which parameters the flat parameters of a
     * LOCAL_STATE_DICT of PyTorch's FSDP1 are made of, which the checkpoint
     * itself does not know: {"h.0._flat_param": {"fqns": ["ln.weight", …],
     * "shapes": [[12], …], "numels_with_padding": […], "is_padding_mask":
     * […]}, …}.  NULL: none. */
    const char *recipe;
    /* Read through rules, as fsdp_ckpt_convert() does. */
    const char *const *rules;
    size_t num_rules;
    const char *const *set;
    size_t num_set;
    /* Of tensors that fit "PATTERN[SLICE]", see only that part: a range LO:HI
     * or an index for each dimension, negative ones from the end, those left
     * out whole.  The first pattern that fits counts; others stay whole. */
    const char *const *include;
    size_t num_include;
} fsdp_ckpt_open_config_t;

#define FSDP_CKPT_OPEN_INIT                     \
    {                                           \
        .size = sizeof(fsdp_ckpt_open_config_t) \
    }

/* As fsdp_ckpt_open(), which is this with the defaults. */
FSDP_API fsdp_status_t
fsdp_ckpt_open_with(const char *path, const fsdp_ckpt_open_config_t *config,
                    fsdp_ckpt_t **ckpt_p, fsdp_error_t *err);

/* NULL is allowed. */
FSDP_API void fsdp_ckpt_close(fsdp_ckpt_t *ckpt);

/* The i-th pattern of config.include, without its slice; borrowed. */
FSDP_API const char *fsdp_ckpt_get_pattern(const fsdp_ckpt_t *ckpt, size_t i);

/* Pointers in the results are borrowed until fsdp_ckpt_close(). */
FSDP_API void fsdp_ckpt_get_info(const fsdp_ckpt_t *ckpt,
                                 fsdp_ckpt_info_t *info_p);
/* Note @a note (0 … num_notes - 1): what is to be known of the checkpoint though
 * it can be read, as one line that names the file; so of a link that leads
 * nowhere. */
FSDP_API const char *fsdp_ckpt_get_note(const fsdp_ckpt_t *ckpt, uint64_t note);
FSDP_API void fsdp_ckpt_get_tensor(const fsdp_ckpt_t *ckpt, uint64_t tensor,
                                   fsdp_ckpt_tensor_t *tensor_p);
FSDP_API void fsdp_ckpt_get_piece(const fsdp_ckpt_t *ckpt, uint64_t tensor,
                                  uint32_t piece, fsdp_ckpt_piece_t *piece_p);
/* Alias @a alias (0 … num_aliases - 1) and the tensor that owns its bytes. */
FSDP_API void fsdp_ckpt_get_alias(const fsdp_ckpt_t *ckpt, uint64_t alias,
                                  const char **name_p, uint64_t *tensor_p);
/* Value @a value (0 … num_values - 1), sorted by name: what the checkpoint
 * holds that is no tensor, as one JSON value.  What JSON has no form for is
 * written {"$tuple": […]}, {"$set": […]}, {"$size": […]}, {"$bytes_hex": "…"},
 * {"$float": "nan"}, {"$repr": "…", "$class": "…"}; {"$tensor": "NAME"} is a
 * tensor of this checkpoint.  An integer may have any number of digits.
 *
 * @param name_p  May be NULL. */
FSDP_API void fsdp_ckpt_get_value(const fsdp_ckpt_t *ckpt, uint64_t value,
                                  const char **name_p, const char **json_p);
/* @return false if there is no value of that name. */
FSDP_API bool fsdp_ckpt_find_value(const fsdp_ckpt_t *ckpt, const char *name,
                                   uint64_t *value_p);

/* Tensors are sorted by name.  Aliases are found too.
 * @return false if there is none. */
FSDP_API bool fsdp_ckpt_find(const fsdp_ckpt_t *ckpt, const char *name,
                             uint64_t *tensor_p);

/* One destination of a read. */
typedef struct {
    uint64_t tensor;
    uint64_t first; /* elements of the tensor in row-major order */
    uint64_t count;
    void *data; /* count elements of the tensor's dtype, filled by the call */
} fsdp_ckpt_range_t;

/**
 * Read ranges of elements, in any order, as few bytes as they need: whole
 * checksummed blocks where there are checksums, which are verified.  Where one
 * covers much, as in zip archives that of a storage, the first call that needs
 * a part of it reads all of it.
 *
 * @param engine  NULL: the defaults.
 * @param bytes_p Bytes read from files; may be NULL.
 */
FSDP_API fsdp_status_t fsdp_ckpt_read(fsdp_ckpt_t *ckpt,
                                      const fsdp_ckpt_range_t *ranges,
                                      size_t num,
                                      const fsdp_ckpt_engine_t *engine,
                                      uint64_t *bytes_p, fsdp_error_t *err);

/* --- Saving from a running job -------------------------------------------- */

typedef struct {
    const char *name; /* with its kind: "model/NAME", "optim/exp_avg/NAME" */
    fsdp_dtype_t dtype;
    uint32_t ndim;
    const uint64_t *dims;
    const char *unit; /* name of its flat unit; tensors of a unit are given in
                         their order in the flat array, kind by kind */
} fsdp_ckpt_desc_t;

/* What one rank writes of a tensor: elements [first, first + count). */
typedef struct {
    uint32_t tensor; /* index into the descriptors */
    uint64_t first;
    uint64_t count;
    const void *data; /* borrowed until the call returns */
} fsdp_ckpt_part_t;

typedef struct {
    size_t size;     /* sizeof: FSDP_CKPT_SAVE_INIT sets it */
    const char *dir; /* the checkpoint becomes DIR/step-%08d */
    int64_t step;
    const char *job_id; /* the same on all ranks, new for each run: it names
                           the temporary directory */
    uint32_t rank;
    fsdp_mesh_t mesh;
    uint32_t files; /* shard files; 0: the default, min(W, 256) */
    const fsdp_ckpt_desc_t *tensors; /* the same on all ranks */
    uint32_t num_tensors;
    const fsdp_ckpt_part_t *parts; /* of this rank */
    size_t num_parts;
    const char *const *alias_names; /* tied names and the index of the owner */
    const uint32_t *alias_owners;
    uint32_t num_aliases;
    const char *meta_json; /* kept in the manifest: configuration, parameter
                              groups, data position; from rank 0 */
    /* Digests (doc/numerics.md), two words each; from rank 0. */
    uint64_t digest_model[2];
    uint64_t digest_optim[2];
    double deadline; /* seconds to wait for the other ranks; 0: 600 */
    fsdp_ckpt_engine_t engine;
} fsdp_ckpt_save_config_t;

#define FSDP_CKPT_SAVE_INIT                     \
    {                                           \
        .size = sizeof(fsdp_ckpt_save_config_t) \
    }

typedef struct {
    uint64_t bytes;       /* this rank wrote */
    double seconds;       /* from the call to the commit */
    double write_seconds; /* of them: writing and fsync of this rank's part */
} fsdp_ckpt_save_result_t;

/**
 * Write a sharded HDF5 checkpoint: every rank calls it with its parts, no
 * other communication is needed than the shared file system.  It returns when
 * the checkpoint is complete and durable, or has failed; then what was there
 * before is untouched.  May run in a thread of its own.
 *
 * @return FSDP_ERR_PEER_LOST, naming the ranks, if parts of others are not
 *         there at the deadline; FSDP_ERR_IO (no space, no permission) named
 *         with its file, on all ranks.
 */
FSDP_API fsdp_status_t fsdp_ckpt_save(const fsdp_ckpt_save_config_t *config,
                                      fsdp_ckpt_save_result_t *result_p,
                                      fsdp_error_t *err);

/* --- Converting ----------------------------------------------------------- */

/* Told one line of text that is worth to know. */
typedef void (*fsdp_ckpt_note_f)(const char *text, void *arg);

/**
 * The sets of rules that come with the library, for `rules` below.
 *
 * @param index   From 0 on.
 * @param text_p  As in a file of rules; its first line says what it is for.
 *
 * @return false behind the last one.
 */
FSDP_API bool fsdp_ckpt_get_rules(size_t index, const char **name_p,
                                  const char **text_p);

typedef struct {
    size_t size; /* FSDP_CKPT_CONVERT_INIT sets it */
    const char *source;
    const char *target; /* must not exist */
    fsdp_ckpt_format_t format;
    fsdp_mesh_t mesh; /* target of HDF5 and DCP; world 0: as the source's */
    /* DCP: of the ranks, so many beside each other share the tensors that
     * "PATTERN=DIM" of split name, along that dimension, the first rule that
     * fits counting; 0: 1 */
    uint32_t tensor_parallel;
    const char *const *split;
    size_t num_split;
    uint32_t files;      /* shard files of HDF5; 0: the default */
    uint64_t shard_size; /* safetensors: bytes a file at most; 0: one file */
    const char *const *include; /* patterns (fnmatch), perhaps with a slice as
                                   in fsdp_ckpt_open_with(); none: all tensors */
    size_t num_include;
    const char *const *exclude;
    size_t num_exclude;
    const char *const *rename; /* "FROM=TO", applied in order: FROM is a whole
                                  name, or a prefix that ends in '*' as TO
                                  does */
    size_t num_rename;
    bool cast;               /* to cast_dtype, floating-point tensors only */
    fsdp_dtype_t cast_dtype; /* f32, bf16, f16 or f64 */
    bool only_model; /* leave out optimizer state; names lose "model/" */
    bool only_optim; /* leave out all but optimizer state */
    bool dry_run;    /* plan and report, write nothing */
    bool shows;      /* one HDF5 file that only shows what stays in the source's
                   files: written in no time, and of no use without them */
    const char *recipe; /* of the source, as in fsdp_ckpt_open_with() */
    fsdp_ckpt_engine_t engine;
    const char *const *rules; /* files of rules or names of sets (see
                                 fsdp_ckpt_get_rules()), "reverse:" in front
                                 of those to be used from right to left;
                                 applied in order, before patterns and
                                 rename */
    size_t num_rules;
    const char *const *set; /* "NAME=JSON": values that the source lacks */
    size_t num_set;
    fsdp_ckpt_note_f note; /* told what rules leave out or add, and why `link`
                              shares nothing; or NULL */
    void *note_arg;
    /* Several processes, on one node or many, that run the same conversion:
     * each copies a part. */
    uint32_t rank;
    uint32_t world;     /* 0: 1 */
    const char *job_id; /* the same on all ranks, of this run alone: it names
                           the temporary files */
    double deadline;    /* seconds that a rank may show no life; 0: 600 */
    bool link; /* share with the source's files what goes unchanged into the
                  target's, where the file system can (reflinks) */
} fsdp_ckpt_convert_config_t;

#define FSDP_CKPT_CONVERT_INIT                     \
    {                                              \
        .size = sizeof(fsdp_ckpt_convert_config_t) \
    }

typedef struct {
    uint64_t tensors;
    uint64_t files;
    uint64_t copies;     /* after joining neighbours */
    uint64_t bytes_read; /* planned, in a dry run */
    uint64_t bytes_written;
    uint64_t bytes_needed; /* about, with what describes the data */
    uint64_t bytes_free;   /* on the target's file system */
    double seconds;
    uint64_t bytes_shared; /* of bytes_written: by `link` */
} fsdp_ckpt_convert_result_t;

/**
 * Convert, reshard or consolidate: the target appears under its name when it
 * is complete and durable.  Sources are only read.  If the target's format
 * holds no world and strategy they are ignored; safetensors get config.json
 * beside them where the source's metadata has one.
 *
 * @return with several ranks, the same on all of them: the first error of any,
 *         whose rank is in @a err.  -1 there: the others do not know of it.
 *         FSDP_ERR_PEER_LOST, naming ranks and hosts, at the deadline.
 */
FSDP_API fsdp_status_t
fsdp_ckpt_convert(const fsdp_ckpt_convert_config_t *config,
                  fsdp_ckpt_convert_result_t *result_p, fsdp_error_t *err);

/* --- Checking ------------------------------------------------------------- */

/* Called for each finding, with one line of text; false stops the check. */
typedef bool (*fsdp_ckpt_finding_f)(const char *text, void *arg);

typedef struct {
    uint64_t findings;
    uint64_t bytes;     /* read */
    uint64_t unchecked; /* bytes that no checksum covers */
    uint64_t tensors;
    uint64_t files;
    uint64_t digest_model[2]; /* computed, if compute_digest */
    uint64_t digest_optim[2];
    double seconds;
    uint64_t checkpoints;      /* that were opened */
    fsdp_ckpt_format_t format; /* of the last one */
    uint64_t stale_files;      /* beside it, of an earlier save there, as some
                                  writers leave them */
    uint64_t stale_bytes;
    uint64_t unread;    /* values that hold what cannot be read */
    bool recipe_unused; /* as in fsdp_ckpt_info_t: of the last one */
} fsdp_ckpt_verify_result_t;

/**
 * Check every byte and every coverage rule of a checkpoint, and its digests
 * where it has them.  Findings are no error: the call returns FSDP_OK and
 * result_p->findings > 0.
 *
 * @param recipe  As in fsdp_ckpt_open_with(); NULL: none.
 * @param ranks  NULL: this process is alone.  Else rank 0 is told the findings
 *               of all and has the result; the others have only the number of
 *               findings.  All return the same, as in fsdp_ckpt_convert().
 */
FSDP_API fsdp_status_t fsdp_ckpt_verify(const char *path, const char *recipe,
                                        const fsdp_ckpt_engine_t *engine,
                                        const fsdp_ckpt_ranks_t *ranks,
                                        fsdp_ckpt_finding_f finding, void *arg,
                                        fsdp_ckpt_verify_result_t *result_p,
                                        fsdp_error_t *err);

typedef struct {
    uint64_t repaired; /* files and directories that were */
    uint64_t lost;     /* checkpoints of a directory that cannot be */
} fsdp_ckpt_repair_result_t;

/**
 * Build what says where the data lies anew from the data: index.h5 and
 * manifest.json of a sharded HDF5 checkpoint, the index of safetensors in
 * several files, and `latest` of a directory of checkpoints.  Data files are
 * only read, and each is checked first.  What is whole is left alone.
 *
 * @param found  Told of each thing that was repaired, cannot be, or is lost.
 *
 * @return FSDP_ERR_CORRUPT, and nothing is changed, if data is missing or
 *         damaged; in a directory of checkpoints that counts as lost.
 */
FSDP_API fsdp_status_t fsdp_ckpt_repair(const char *path,
                                        const fsdp_ckpt_engine_t *engine,
                                        fsdp_ckpt_finding_f found, void *arg,
                                        fsdp_ckpt_repair_result_t *result_p,
                                        fsdp_error_t *err);

typedef struct {
    size_t size;          /* FSDP_CKPT_MANIFEST_INIT sets it */
    const char *manifest; /* path of a JSON file, see below */
    const char *recipe;   /* as in fsdp_ckpt_open_with(); NULL: the manifest's
                             own "flat_recipe" if it has one */
    fsdp_ckpt_finding_f finding; /* what differs */
    fsdp_ckpt_finding_f note;    /* what is worth to know; may be NULL */
    void *arg;                   /* of both */
    fsdp_ckpt_engine_t engine;
    const fsdp_ckpt_ranks_t *ranks; /* as in fsdp_ckpt_verify() */
} fsdp_ckpt_manifest_config_t;

#define FSDP_CKPT_MANIFEST_INIT                     \
    {                                               \
        .size = sizeof(fsdp_ckpt_manifest_config_t) \
    }

typedef struct {
    uint64_t findings;
    uint64_t tensors; /* that the manifest lists */
    uint64_t aliases;
    uint64_t values;
    uint64_t bytes; /* read */
    double seconds;
} fsdp_ckpt_manifest_result_t;

/**
 * Compare a checkpoint of any format with what a manifest says it holds: each
 * tensor's name, shape, type and SHA-256, which names are the same tensor, and
 * values that are no tensors.
 *
 * The manifest is a JSON object: "tensors" [{"name", "shape", "dtype" (as
 * PyTorch names it), "sha256" of the row-major little-endian bytes}, …],
 * "aliases" {name: the name whose storage it shares}, "values" {name: value
 * as in fsdp_ckpt_get_value(), but a "$tensor" is an object as in "tensors"},
 * "tied_dropped_ok": true if only one of two tied names may be kept.  Names
 * are dotted paths.  Values that it does not list may be there; so may tensors
 * whose first component no listed name has.
 *
 * Differences are findings, no error.
 */
FSDP_API fsdp_status_t fsdp_ckpt_check_manifest(
    const char *path, const fsdp_ckpt_manifest_config_t *config,
    fsdp_ckpt_manifest_result_t *result_p, fsdp_error_t *err);

typedef struct {
    size_t size; /* FSDP_CKPT_DIFF_INIT sets it */
    /* Both 0: bit for bit; else |a - b| <= atol + rtol * max(|a|, |b|), and
     * NaN equals NaN. */
    double rtol, atol;
    const char *const *include; /* as in fsdp_ckpt_convert() */
    size_t num_include;
    const char *const *exclude;
    size_t num_exclude;
    bool only_model;    /* leave optimizer state out */
    bool only_optim;    /* leave all else out */
    const char *recipe; /* of both, as in fsdp_ckpt_open_with(); NULL: none */
    bool metadata;      /* compare step and meta_json too, and values (which
                        are no tensors) even if only one side has any */
    fsdp_ckpt_engine_t engine;
    const char *const *rules; /* of path_a, as in fsdp_ckpt_open_with() */
    size_t num_rules;
    const char *const *set;
    size_t num_set;
} fsdp_ckpt_diff_config_t;

#define FSDP_CKPT_DIFF_INIT                     \
    {                                           \
        .size = sizeof(fsdp_ckpt_diff_config_t) \
    }

/* How one tensor differs. */
typedef enum {
    FSDP_CKPT_ONLY_A = 0,
    FSDP_CKPT_ONLY_B = 1,
    FSDP_CKPT_SHAPE = 2,
    FSDP_CKPT_DTYPE = 3,
    FSDP_CKPT_VALUES = 4,
    FSDP_CKPT_METADATA = 5
} fsdp_ckpt_how_t;

typedef struct {
    const char *name;
    fsdp_ckpt_how_t how;
    uint64_t numel;
    uint64_t differing;      /* elements */
    uint64_t first;          /* the first one, of what is compared */
    double value_a, value_b; /* there */
    /* Largest differences, relative to the larger of the two; NaN against a
     * number: inf. */
    double max_abs, max_rel;
    const char *text; /* one line for people */
} fsdp_ckpt_difference_t;

typedef bool (*fsdp_ckpt_difference_f)(const fsdp_ckpt_difference_t *difference,
                                       void *arg);

typedef struct {
    uint64_t tensors;     /* compared */
    uint64_t differences; /* tensors, or items of metadata, that differ */
    uint64_t bytes;
    double seconds;
    int64_t steps[2]; /* of what was opened; -1: it has none */
    bool recipe_unused; /* as in fsdp_ckpt_info_t: by neither of them */
} fsdp_ckpt_diff_result_t;

/* Compare the values of two checkpoints of any formats and shardings.
 * "model/NAME" in one matches "NAME" in the other if that has no kinds. */
FSDP_API fsdp_status_t fsdp_ckpt_diff(const char *path_a, const char *path_b,
                                      const fsdp_ckpt_diff_config_t *config,
                                      fsdp_ckpt_difference_f difference,
                                      void *arg,
                                      fsdp_ckpt_diff_result_t *result_p,
                                      fsdp_error_t *err);

/* --- A directory of checkpoints ------------------------------------------- */

/* Told of what is found, or was done or would be; false stops the call. */
typedef bool (*fsdp_ckpt_entry_f)(const char *path, const char *text,
                                  void *arg);

typedef struct {
    size_t size; /* FSDP_CKPT_LATEST_INIT sets it */
    bool deep;   /* valid is what fsdp_ckpt_verify() has no finding of; else
                    what opens: sizes, coverage, checksums of tables */
    bool repair; /* make DIR/latest name it if that does not */
    fsdp_ckpt_entry_f skipped; /* newer ones, with what is wrong; may be NULL */
    void *arg;
    fsdp_ckpt_engine_t engine;
} fsdp_ckpt_latest_config_t;

#define FSDP_CKPT_LATEST_INIT                     \
    {                                             \
        .size = sizeof(fsdp_ckpt_latest_config_t) \
    }

typedef struct {
    char path[4096]; /* DIR/step-N */
    int64_t step;
    bool repaired; /* DIR/latest was written */
} fsdp_ckpt_latest_result_t;

/**
 * The newest valid checkpoint of a directory of checkpoints: the step-N of the
 * highest number.
 *
 * @return FSDP_ERR_NOT_FOUND if there is none.
 */
FSDP_API fsdp_status_t fsdp_ckpt_latest(const char *dir,
                                        const fsdp_ckpt_latest_config_t *config,
                                        fsdp_ckpt_latest_result_t *result_p,
                                        fsdp_error_t *err);

typedef struct {
    size_t size;         /* FSDP_CKPT_PRUNE_INIT sets it */
    uint64_t keep_last;  /* that many valid ones, at least 1 */
    uint64_t keep_every; /* and all whose step is a multiple of it; 0: none */
    bool deep;           /* as above */
    bool damaged;        /* remove damaged ones too, but none that cannot be
                            read for an error of the disk */
    bool dry_run;
    fsdp_ckpt_entry_f removed; /* each, before it is; may be NULL */
    fsdp_ckpt_entry_f kept;    /* each, and why; may be NULL */
    void *arg;
    fsdp_ckpt_engine_t engine;
} fsdp_ckpt_prune_config_t;

#define FSDP_CKPT_PRUNE_INIT                     \
    {                                            \
        .size = sizeof(fsdp_ckpt_prune_config_t) \
    }

typedef struct {
    uint64_t kept;
    uint64_t removed; /* would be, in a dry run */
    uint64_t bytes;   /* of those */
} fsdp_ckpt_prune_result_t;

/**
 * Remove old checkpoints from a directory of them.  The newest valid one, the
 * one that DIR/latest names, and damaged ones stay.  A checkpoint is first
 * renamed to .tmp-*, so that what is half removed is never taken for one.
 *
 * @return FSDP_ERR_NOT_FOUND if there is no valid one: then nothing is done.
 */
FSDP_API fsdp_status_t fsdp_ckpt_prune(const char *dir,
                                       const fsdp_ckpt_prune_config_t *config,
                                       fsdp_ckpt_prune_result_t *result_p,
                                       fsdp_error_t *err);

/**
 * Remove what interrupted saves, conversions and prunes left in a directory:
 * .tmp-*, in which nothing was written for @a age seconds.
 *
 * @param removed    Each, before it is removed; may be NULL.
 * @param removed_p  How many.
 *
 * @return FSDP_ERR_INVALID_PARAM if it is one checkpoint, with nothing of that
 *         kind in it.
 */
FSDP_API fsdp_status_t fsdp_ckpt_clean(const char *dir, double age,
                                       fsdp_ckpt_entry_f removed, void *arg,
                                       uint64_t *removed_p, fsdp_error_t *err);

#ifdef __cplusplus
}
#endif

#endif
