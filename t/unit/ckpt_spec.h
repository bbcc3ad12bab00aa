/*
 * A small checkpoint made of numbers that can be told again, for the tests of
 * the HDF5 formats.
 */
#ifndef FSDP_TEST_CKPT_SPEC_H
#define FSDP_TEST_CKPT_SPEC_H

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/format.h"
#include "ckpt/format/hdf5_table.h"
#include "lib/util/crc.h"
#include "lib/util/io.h"

typedef struct {
    const char *name;
    fsdp_dtype_t dtype;
    uint32_t ndim;
    uint64_t dims[4];
    const char *unit;
} spec_t;

/* Byte @a i of tensor @a t.  Booleans are 0 and 1. */
static inline unsigned char spec_byte(const spec_t *spec, unsigned t,
                                      uint64_t i)
{
    uint64_t x = (i + 1) * 2654435761u + t * 40503u;

    return (spec->dtype == FSDP_DTYPE_BOOL) ? (x >> 16) & 1
                                            : (unsigned char)(x >> 16);
}

/* All elements of a tensor; the caller frees them. */
static inline unsigned char *spec_data(const spec_t *spec, unsigned t,
                                       uint64_t bytes)
{
    unsigned char *data = malloc(bytes + 1);

    for (uint64_t i = 0; i < bytes; i++) {
        data[i] = spec_byte(spec, t, i);
    }

    return data;
}

static inline unsigned spec_find(const spec_t *specs, unsigned num,
                                 const char *name)
{
    for (unsigned t = 0; t < num; t++) {
        if (strcmp(specs[t].name, name) == 0) {
            return t;
        }
    }

    return num;
}

/* Where rank @a r of @a world begins in a tensor: whole bytes of any type. */
static inline uint64_t spec_cut(uint64_t numel, unsigned world, unsigned r)
{
    return (r == world) ? numel : numel * r / world / 8 * 8;
}

/* Pieces of all tensors for @a world ranks, rank r in file r % files. */
static inline fsdp_status_t spec_catalog(const spec_t *specs, unsigned num,
                                         unsigned world, unsigned files,
                                         catalog_t *cat, fsdp_error_t *err)
{
    uint64_t blocks[64] = {0};

    catalog_init(cat);
    for (unsigned f = 0; f < files; f++) {
        char name[32];
        uint32_t unused;

        snprintf(name, sizeof(name), "shard-%05u.h5", f);
        if (catalog_add_file(cat, name, 0, &unused, err) != FSDP_OK) {
            return err->status;
        }
    }
    for (unsigned t = 0; t < num; t++) {
        const spec_t *s = &specs[t];
        uint64_t tensor;

        if (catalog_add_tensor(cat, s->name, s->dtype, s->ndim, s->dims,
                               s->unit, &tensor, err) != FSDP_OK) {
            return err->status;
        }
        for (unsigned r = 0; r < world; r++) {
            uint64_t numel = cat->tensors[tensor].numel;
            uint64_t first = spec_cut(numel, world, r), bytes;
            catalog_piece_t piece = {
                .first = first,
                .count = spec_cut(numel, world, r + 1) - first,
                .tensor = (uint32_t)tensor,
                .file = r % files,
                .rank = r,
                .crc_first = (uint32_t)blocks[r % files],
                .box = CATALOG_NONE,
            };

            dtype_bytes(s->dtype, piece.count, &bytes);
            blocks[r % files] += catalog_blocks(bytes);
            if (catalog_add_piece(cat, &piece, err) != FSDP_OK) {
                return err->status;
            }
        }
    }
    for (unsigned f = 0; f < files; f++) {
        if (catalog_add_crcs(cat, f, blocks[f], err) != FSDP_OK) {
            return err->status;
        }
    }
    for (uint64_t i = 0; i < cat->num_pieces; i++) {
        cat->pieces[i].crc_first += cat->files[cat->pieces[i].file].crc_first;
    }

    return FSDP_OK;
}

/* What the engine does: data, checksums of blocks, table, whole file. */
static inline fsdp_status_t spec_write(const spec_t *specs, unsigned num,
                                       catalog_t *cat, uint32_t file,
                                       const char *path, fsdp_error_t *err)
{
    catalog_file_t *f = &cat->files[file];
    fsdp_status_t status = FSDP_OK;
    size_t size;
    char *text;
    int fd;

    if (io_open(path, O_RDWR, 0, &fd, err) != FSDP_OK) {
        return err->status;
    }
    for (uint64_t i = 0; status == FSDP_OK && i < cat->num_pieces; i++) {
        const catalog_piece_t *p = &cat->pieces[i];
        const catalog_tensor_t *tensor = &cat->tensors[p->tensor];
        unsigned t = spec_find(specs, num, tensor->name);
        unsigned char *data = spec_data(&specs[t], t, tensor->bytes);
        uint64_t bytes = catalog_piece_bytes(cat, p), at;

        if (p->file == file) {
            dtype_bytes((fsdp_dtype_t)tensor->dtype, p->first, &at);
            status = io_pwrite(fd, data + at, bytes, p->offset, path, err);
            for (uint64_t b = 0; f->table != 0 && b < bytes;
                 b += CATALOG_BLOCK) {
                uint64_t n =
                    (bytes - b < CATALOG_BLOCK) ? bytes - b : CATALOG_BLOCK;

                cat->crcs[p->crc_first + b / CATALOG_BLOCK] =
                    crc32c(0, data + at + b, n);
            }
        }
        free(data);
    }
    if (status == FSDP_OK && f->table != 0) {
        status = io_pwrite(fd, cat->crcs + f->crc_first, 4ul * f->crc_count,
                           f->table, path, err);
    }
    close(fd);
    if (status == FSDP_OK) {
        status = io_read_file(path, 1ul << 32, &text, &size, err);
    }
    if (status == FSDP_OK) {
        f->crc32c = crc32c(0, text, size);
        f->has_crc = true;
        free(text);
    }

    return status;
}

/* Make all files of a sealed catalog with @a format. */
static inline fsdp_status_t spec_files(const spec_t *specs, unsigned num,
                                       const format_t *format, catalog_t *cat,
                                       const char *dir, fsdp_error_t *err)
{
    uint64_t *pieces = calloc(cat->num_pieces + 1, sizeof(*pieces));
    fsdp_status_t status = FSDP_OK;

    for (uint32_t f = 0; status == FSDP_OK && f < cat->num_files; f++) {
        char *path = io_path("%s/%s", dir, cat->files[f].path);
        uint64_t count = 0;

        for (uint32_t r = 0; r < cat->num_pieces; r++) { /* by rank */
            for (uint64_t i = 0; r < 64 && i < cat->num_pieces; i++) {
                if (cat->pieces[i].file == f && cat->pieces[i].rank == r) {
                    pieces[count++] = i;
                }
            }
        }
        status = format->create(cat, f, pieces, count, path, err);
        if (status == FSDP_OK) {
            status = spec_write(specs, num, cat, f, path, err);
        }
        free(path);
    }
    free(pieces);

    return status;
}

/* Does an opened checkpoint hold exactly the bytes of the specs? */
static inline bool spec_same(const spec_t *specs, unsigned num,
                             const catalog_t *cat)
{
    bool same = cat->num_tensors == num;

    for (uint64_t i = 0; i < cat->num_tensors; i++) {
        const catalog_tensor_t *tensor = &cat->tensors[i];
        unsigned t = spec_find(specs, num, tensor->name);
        unsigned char *want, *got;

        if (t == num || tensor->dtype != specs[t].dtype ||
            tensor->ndim != specs[t].ndim ||
            memcmp(cat->dims + tensor->dims_first, specs[t].dims,
                   tensor->ndim * sizeof(uint64_t)) != 0) {
            return false;
        }

        want = spec_data(&specs[t], t, tensor->bytes);
        got = calloc(1, tensor->bytes + 1);
        for (uint32_t k = 0; k < tensor->piece_count; k++) {
            const catalog_piece_t *p = &cat->pieces[tensor->piece_first + k];
            char *path = catalog_file_path(cat, p->file);
            uint64_t at;
            int fd;

            dtype_bytes((fsdp_dtype_t)tensor->dtype, p->first, &at);
            same &= io_open(path, O_RDONLY, 0, &fd, NULL) == FSDP_OK &&
                    io_pread(fd, got + at, catalog_piece_bytes(cat, p),
                             p->offset, path, NULL) == FSDP_OK;
            close(fd);
            free(path);
        }
        same &= memcmp(want, got, tensor->bytes) == 0;
        free(want);
        free(got);
    }

    return same;
}

/* Do the bytes of all blocks have the checksums that were read? */
static inline bool spec_checked(const catalog_t *cat)
{
    unsigned bad = 0;

    for (uint64_t i = 0; i < cat->num_pieces; i++) {
        const catalog_piece_t *p = &cat->pieces[i];
        uint64_t bytes = catalog_piece_bytes(cat, p);
        char *file = catalog_file_path(cat, p->file);
        char *buf = malloc(bytes + 1);
        int fd = open(file, O_RDONLY);

        io_pread(fd, buf, bytes, p->offset, file, NULL);
        for (uint64_t b = 0; b < bytes; b += CATALOG_BLOCK) {
            uint64_t n =
                (bytes - b < CATALOG_BLOCK) ? bytes - b : CATALOG_BLOCK;

            bad += p->crc_first == CATALOG_NONE ||
                   cat->crcs[p->crc_first + b / CATALOG_BLOCK] !=
                       crc32c(0, buf + b, n);
        }
        close(fd);
        free(buf);
        free(file);
    }

    return bad == 0;
}

#endif
