/*
 * The table of formats: how each is recognised, read and written.
 *
 * A reader fills a catalog.  A writer is given a sealed catalog: it makes the
 * files with room for the data and says where each piece lies; the engine
 * then writes the data with pwrite; at the end the writer adds what describes
 * the whole (index, manifest).  No format code moves tensor data.
 */
#ifndef FSDP_FORMAT_H
#define FSDP_FORMAT_H

#include "ckpt/catalog.h"

/* What format_look() found at a path. */
typedef struct {
    const char *path;
    bool is_dir;
    uint64_t size;          /* of a file */
    unsigned char head[16]; /* first bytes of a file, zeros behind its end */
} format_look_t;

/* What a file is that lies in a directory of a checkpoint, and is none of its
 * catalog. */
typedef enum {
    FORMAT_FOREIGN = 0, /* not the format's: notes, settings, other data */
    FORMAT_STALE,       /* data that an earlier save into the directory left, as
                           the format's own writers do */
    FORMAT_EXTRA        /* data that should not be there */
} format_extra_t;

/* Of a file that is another one of the checkpoint, whose name follows. */
#define FORMAT_EXCHANGED                                                 \
    "%s: holds what %s should hold: were they exchanged, or one copied " \
    "over the other?"

typedef struct {
    fsdp_ckpt_format_t id;
    const char *name; /* as --to names it */
    const char *what; /* for messages: "a sharded HDF5 checkpoint" */

    /* Does it look like this format, whole or damaged?  Cheap: file names and
     * first bytes.  The first format of the table that says yes opens it. */
    bool (*probe)(const format_look_t *look);

    /**
     * Fill an empty catalog and seal it with CATALOG_CHECK_ALL.  Sets root,
     * path, step, mesh, meta and digests where there are any.  Tensors are
     * added in the order of the writer, with their units.
     *
     * @return FSDP_ERR_CORRUPT, FSDP_ERR_IO, FSDP_ERR_NOT_FOUND (incomplete).
     */
    fsdp_status_t (*open)(const char *path, catalog_t *cat, fsdp_error_t *err);

    /* What a file is, by its name and size: the reader did not add it to the
     * catalog.  @a path is relative to its root, and in a directory of its
     * files.  NULL: all that is there was read, or is not the format's. */
    format_extra_t (*extra)(const catalog_t *cat, const char *path,
                            uint64_t size);

    /* The writer; create == NULL: this format cannot be written. */
    bool is_dir;    /* the target is a directory, else one file */
    bool has_crcs;  /* files keep a table of block checksums */
    bool has_kinds; /* names carry their kind: "model/…", "optim/…/…" */
    bool has_boxes; /* pieces may be dense boxes */
    unsigned keeps; /* flags of fsdp_ckpt_keeps_t */

    /**
     * Make one file: with room for its pieces, nothing else known yet.
     *
     * @param cat     Sealed.  files[file].crc_count entries are reserved for
     *                it where has_crcs.  The call sets pieces[].offset of its
     *                pieces, files[file].size and .table.
     * @param pieces  Indexes of all pieces of the file, by rank, then in the
     *                tensors' order.
     * @param path    The full path of the file, which does not exist.
     *
     * The file is closed when it returns; it need not be durable: sizes are
     * reserved, gaps checksummed and everything synced by the caller.  May be
     * called from several threads at once (a lock is the format's business).
     */
    fsdp_status_t (*create)(catalog_t *cat, uint32_t file,
                            const uint64_t *pieces, uint64_t num,
                            const char *path, fsdp_error_t *err);

    /**
     * Write what describes the whole into @a dir, the mark of completeness
     * last, each synced; what is written to the files of the catalog is not.
     * The catalog is complete: offsets, checksums, file
     * sizes and file checksums, meta, mesh, digests, aliases.  NULL: nothing.
     */
    fsdp_status_t (*finish)(const catalog_t *cat, const char *dir,
                            fsdp_error_t *err);
} format_t;

extern const format_t format_hdf5;      /* ours, sharded */
extern const format_t format_hdf5_file; /* one file of plain datasets */
extern const format_t format_safetensors;
extern const format_t format_megatron;
extern const format_t format_dcp;
extern const format_t format_dcp_hf; /* its Hugging Face form, sharded */
extern const format_t format_zero;
extern const format_t format_universal;
extern const format_t format_llmc;
extern const format_t format_torch; /* torch.save, one file or all ranks' */

/* NULL if the number is no format. */
const format_t *format_get(fsdp_ckpt_format_t id);

/* What is there; FSDP_ERR_NOT_FOUND, FSDP_ERR_IO. */
fsdp_status_t format_look(const char *path, format_look_t *look_p,
                          fsdp_error_t *err);

/* The format of what was found, or NULL: none, or a directory of
 * checkpoints. */
const format_t *format_recognise(const format_look_t *look);

/* The number in the name step-N of a checkpoint, or -1: it is none. */
int64_t format_step(const char *name);

/* Are there checkpoints step-N in a directory? */
bool format_has_steps(const char *dir);

/**
 * The checkpoint, or directory of checkpoints, that is meant by naming a file
 * in it that only points to it, such as its manifest or `latest`, or a
 * directory above it.
 *
 * @param num_p  How many there are below the directory; may be NULL.
 *
 * @return its path if there is one, else a copy of @a path, the caller frees
 *         it; NULL: no memory.
 */
char *format_find(const char *path, unsigned *num_p);

/**
 * Find, recognise and open.  In a directory of checkpoints: the one that
 * `latest` names, or where that is missing or damaged the step-* of the highest
 * number that opens.
 *
 * @param cat  Empty (catalog_init); the caller frees it, after errors too.
 */
fsdp_status_t format_open(const char *path, catalog_t *cat, fsdp_error_t *err);

#endif
