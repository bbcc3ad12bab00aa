/*
 * Files in a directory of DCP that are not what its metadata says: not named
 * there at all, or another one.
 *
 * PyTorch saves into a directory that holds a checkpoint already without
 * removing it: what the new one does not write again stays.  Of a rank that
 * the new one has too that is as it must be; a rank that it has not is taken
 * for one whose data was lost from the metadata, or copied here.
 */
#include "config.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/format/dcp.h"
#include "ckpt/zip.h"
#include "lib/util/dir.h"
#include "lib/util/io.h"

/* Behind a number at @a text; NULL: there is none. */
static const char *skip_number(const char *text, uint64_t *number_p)
{
    char *end;

    if (!isdigit((unsigned char)*text)) {
        return NULL;
    }
    *number_p = strtoull(text, &end, 10);
    return end;
}

/* __R_N.distcp, or with @a metadata __R.metadata. */
static bool is_of_rank(const char *name, bool metadata, uint64_t *rank_p)
{
    const char *rest = NULL;
    uint64_t number;

    if (strncmp(name, "__", 2) == 0) {
        rest = skip_number(name + 2, rank_p);
    }
    if (rest != NULL && !metadata) {
        rest = (*rest == '_') ? skip_number(rest + 1, &number) : NULL;
    }
    return rest != NULL &&
           strcmp(rest, metadata ? DCP_METADATA : ".distcp") == 0;
}

/* Has the checkpoint files of that rank, in the directory of @a path? */
static bool has_rank(const catalog_t *cat, const char *path, uint64_t rank)
{
    size_t size = (size_t)(io_base(path) - path);
    uint64_t other;

    for (uint32_t i = 0; i < cat->num_files; i++) {
        if (strncmp(cat->files[i].path, path, size) == 0 &&
            is_of_rank(cat->files[i].path + size, false, &other) &&
            other == rank) {
            return true;
        }
    }

    return false;
}

/* The ranks' own metadata is read where there is none for all. */
static bool is_for_all(const catalog_t *cat, const char *path)
{
    char *dir =
        io_path("%s/%.*s.", cat->root, (int)(io_base(path) - path), path);
    bool is = dir != NULL && dir_has(dir, DCP_METADATA, S_IFREG);

    free(dir);
    return is;
}

format_extra_t dcp_extra(const catalog_t *cat, const char *path, uint64_t size)
{
    const char *name = io_base(path);
    uint64_t rank;

    if (strcmp(name, DCP_METADATA ".tmp") == 0) {
        return FORMAT_EXTRA; /* the save did not end */
    }
    if (!is_of_rank(name, false, &rank) &&
        !(is_of_rank(name, true, &rank) && is_for_all(cat, path))) {
        return FORMAT_FOREIGN;
    }
    if (size == 0) {
        return FORMAT_FOREIGN; /* of a rank that had nothing to write */
    }

    return has_rank(cat, path, rank) ? FORMAT_STALE : FORMAT_EXTRA;
}

/* Whether a file has an archive in each place where the one of that number has
 * one. */
static bool has_archives(const dcp_meta_t *meta, uint32_t number, int fd)
{
    bool all = true;

    for (uint64_t i = 0; i < meta->num_records && all; i++) {
        const dcp_record_t *record = &meta->records[i];
        zip_t zip = {0};

        if (record->file == number && record->zstd == 0) {
            all = zip_open(fd, "", record->offset, record->length, &zip,
                           NULL) == FSDP_OK;
            zip_close(&zip);
        }
    }

    return all;
}

enum { TRIED_MOST = 64 }; /* files of one size */

const char *dcp_twin(const dcp_meta_t *meta, uint32_t file, int fd,
                     uint64_t size)
{
    uint64_t *ends = calloc(meta->num_files + 1ul, sizeof(*ends));
    uint32_t twin = file, tried = 0;

    if (ends == NULL) {
        return NULL;
    }

    for (uint64_t i = 0; i < meta->num_records; i++) {
        const dcp_record_t *record = &meta->records[i];

        ends[record->file] = record->offset + record->length;
    }
    if (ends[file] != size || !has_archives(meta, file, fd)) {
        for (uint32_t i = 0; i < meta->num_files && twin == file; i++) {
            if (i != file && ends[i] == size && tried++ < TRIED_MOST &&
                has_archives(meta, i, fd)) {
                twin = i;
            }
        }
    }
    free(ends);

    return (twin != file) ? meta->files[twin] : NULL;
}
