/*
 * Reading the archives of a distributed checkpoint, of which there may be
 * millions: those of chunks by several threads, for on a parallel file system
 * it is waiting that takes the time.
 */
#ifndef FSDP_DCP_READER_H
#define FSDP_DCP_READER_H

#include "ckpt/catalog.h"
#include "ckpt/format/dcp_meta.h"
#include "ckpt/torch_object.h"
#include "ckpt/unpack.h"
#include "ckpt/zip.h"

/* What one thread has open. */
typedef struct dcp_reader dcp_reader_t;

/**
 * @param files  Of the catalog, whose paths are read; of each file of the
 *               metadata.  Borrowed.
 *
 * @return NULL: no memory.
 */
dcp_reader_t *dcp_reader_create(const catalog_t *cat, const dcp_meta_t *meta,
                                const uint32_t *files);

/* NULL is allowed. */
void dcp_reader_destroy(dcp_reader_t *reader);

/* One archive. */
typedef struct {
    const dcp_record_t *record;
    const dcp_entry_t *entry;
    uint64_t length, memory; /* when it is decoded, and what that took */
    uint32_t code;           /* of the catalog, once there is one */
    char what[400];          /* "FILE: NAME", for messages */
    /* While it is open: */
    unpack_t *unpack; /* it is compressed; NULL: no */
    dcp_reader_t *reader;
    zip_t zip;
    char *data; /* its pickle */
    pickle_t *pickle;
} dcp_in_t;

/* @a in is to be closed in any case; the first members stay. */
fsdp_status_t dcp_in_open(dcp_reader_t *reader, const dcp_record_t *record,
                          dcp_in_t *in, fsdp_error_t *err);
void dcp_in_close(dcp_in_t *in);

/* A view in an open archive, and the storage that it is of, unless it is empty;
 * their strings are gone when the archive is closed. */
fsdp_status_t dcp_in_view(const dcp_in_t *in, pickle_ref_t ref,
                          torch_tensor_t *view_p, zip_entry_t *storage_p,
                          fsdp_error_t *err);

/* What the archive of a chunk says. */
typedef struct {
    dcp_in_t in; /* closed */
    torch_tensor_t view;
    zip_entry_t storage;
    bool good;
} dcp_found_t;

/* The archive of a chunk, alone. */
fsdp_status_t dcp_find(dcp_reader_t *reader, const dcp_record_t *record,
                       dcp_found_t *found, fsdp_error_t *err);

/* Those of records [first, first + num), by several threads; nothing is found
 * of values.  What could not be read, or would take much memory, is not good:
 * dcp_find() says why, or does it. */
void dcp_find_all(const dcp_reader_t *reader, uint64_t first, uint64_t num,
                  dcp_found_t *found);

#endif
