/*
 * Zip archives hold data.pkl and data/KEY, and byteorder since PyTorch 2.1.
 *
 * The legacy form (PyTorch before 1.6, or by choice) is five pickles, the
 * magic number, the protocol, a description of the machine, the object and
 * the list of keys, and then in the order of that list each storage: the
 * number of elements in 8 bytes, and the elements.
 */
#include "config.h"

#include "ckpt/torch_file.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/catalog.h"
#include "ckpt/torch_object.h"
#include "ckpt/zip.h"
#include "lib/util/check.h"
#include "lib/util/io.h"

/* LONG1 of ten bytes, 0x1950a86a20f9469cfc6c, as all protocols write it. */
static const unsigned char legacy_magic[] = {
    0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};

static fsdp_status_t bad(const torch_file_t *file, const char *why,
                         fsdp_error_t *err)
{
    errno = 0;
    return fsdp_error_set(err, FSDP_ERR_CORRUPT, "%s: %s", file->path, why);
}

static fsdp_status_t big_endian(const torch_file_t *file, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                          "%s: was written on a big-endian machine: such files "
                          "are not read here: torch.load() it and torch.save() "
                          "it again on this one",
                          file->path);
}

bool torch_file_probe(const unsigned char *head)
{
    return memcmp(head, "PK\3\4", 4) == 0 ||
           (head[0] == 0x80 &&
            memcmp(head + 2, legacy_magic, sizeof(legacy_magic)) == 0) ||
           (head[0] == 0x80 && head[2] == 0x95 && head[11] == 0x8a &&
            head[12] == 0x0a && head[13] == 0x6c); /* behind a frame */
}

bool torch_file_find(const torch_file_t *file, const char *key,
                     uint32_t *storage_p)
{
    uint64_t index;

    if (!map_get(&file->keys, key, strlen(key), &index)) {
        return false;
    }
    *storage_p = (uint32_t)index;
    return true;
}

static fsdp_status_t add_storage(torch_file_t *file, const char *key,
                                 const torch_storage_t *storage,
                                 fsdp_error_t *err)
{
    if (!map_put(&file->keys, key, strlen(key), file->num_storages)) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              file->path);
    }
    file->storages[file->num_storages++] = *storage;
    return FSDP_OK;
}

/* --- Zip ------------------------------------------------------------------ */

static fsdp_status_t check_order(const torch_file_t *file, int fd,
                                 const zip_t *zip, fsdp_error_t *err)
{
    const zip_entry_t *entry = zip_find(zip, "byteorder");
    char text[16] = "";

    if (entry == NULL) {
        return FSDP_OK; /* older: always that of the machine, little-endian */
    }
    if (entry->size < sizeof(text)) {
        FSDP_TRY(zip_read(fd, file->path, entry, text, err));
    }
    if (strcmp(text, "big") == 0) {
        return big_endian(file, err);
    }
    return (strcmp(text, "little") == 0)
               ? FSDP_OK
               : bad(file, "its byte order is neither little nor big", err);
}

static fsdp_status_t read_zip(torch_file_t *file, int fd, const zip_t *zip,
                              fsdp_error_t *err)
{
    const zip_entry_t *object = zip_find(zip, "data.pkl");
    fsdp_status_t status;
    uint64_t used;
    void *data;

    FSDP_TRY(check_order(file, fd, zip, err));
    if (object == NULL) {
        return bad(file,
                   "a zip archive without data.pkl: torch.save did not "
                   "write it",
                   err);
    }

    /* Whole, for its checksum is to be compared before anything is believed. */
    data = malloc(object->size + 1);
    if (data == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              file->path);
    }
    status = zip_read(fd, file->path, object, data, err);
    if (status == FSDP_OK) {
        status = pickle_parse(data, object->size, file->path, &file->pickle,
                              &used, err);
    }
    free(data);
    if (status != FSDP_OK) {
        return status;
    }

    file->checked = object->has_crc ? object->size : 0;
    file->storages = calloc(zip->num, sizeof(*file->storages));
    if (file->storages == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              file->path);
    }
    for (uint32_t i = 0; i < zip->num; i++) {
        const zip_entry_t *entry = &zip->entries[i];
        const char *name = entry->name + zip->prefix;
        const torch_storage_t storage = {.offset = entry->offset,
                                         .size = entry->size,
                                         .crc32 = entry->crc32,
                                         .has_crc = entry->has_crc};

        if (strncmp(name, "data/", 5) == 0) {
            FSDP_TRY(add_storage(file, name + 5, &storage, err));
        }
    }

    return FSDP_OK;
}

static fsdp_status_t open_zip(torch_file_t *file, int fd, fsdp_error_t *err)
{
    fsdp_status_t status;
    zip_t zip = {0};

    FSDP_TRY(zip_open(fd, file->path, 0, file->size, &zip, err));
    status = read_zip(file, fd, &zip, err);
    zip_close(&zip);
    return status;
}

/* --- Legacy --------------------------------------------------------------- */

/* One of the pickles, from *at_p on. */
static fsdp_status_t next_pickle(const torch_file_t *file, int fd,
                                 uint64_t *at_p, pickle_t **pickle_p,
                                 fsdp_error_t *err)
{
    uint64_t used;

    FSDP_TRY(pickle_parse_file(fd, *at_p, file->size - *at_p, file->path,
                               pickle_p, &used, err));
    *at_p += used;
    return FSDP_OK;
}

/* Magic number, protocol, machine. */
static fsdp_status_t read_head(const torch_file_t *file, int fd, uint64_t *at_p,
                               fsdp_error_t *err)
{
    fsdp_status_t status = FSDP_OK;
    int64_t little = 1, version = 0;

    for (int i = 0; i < 3 && status == FSDP_OK; i++) {
        pickle_t *pickle = NULL;
        pickle_ref_t root, flag;

        FSDP_TRY(next_pickle(file, fd, at_p, &pickle, err));
        root = pickle_root(pickle);
        flag = pickle_get(pickle, root, "little_endian");
        if ((i == 0 && pickle_kind(pickle, root) != PICKLE_LONG) ||
            (i == 1 &&
             (!pickle_int(pickle, root, &version) || version != 1001)) ||
            (i == 2 && !pickle_int(pickle, flag, &little))) {
            status = bad(file,
                         "the head of a legacy torch.save file makes no "
                         "sense",
                         err);
        }
        pickle_free(pickle);
    }

    return (status != FSDP_OK || little != 0)
               ? status
               : big_endian(file, err);
}

/* Bytes of a storage, from what the object says of it. */
static bool persid_bytes(const pickle_t *pickle, pickle_ref_t id,
                         const char **key_p, uint64_t *numel_p,
                         uint64_t *bytes_p)
{
    const char *cls = pickle_last_name(pickle, pickle_item(pickle, id, 1));
    fsdp_dtype_t dtype = FSDP_DTYPE_U8;

    *key_p = pickle_str(pickle, pickle_item(pickle, id, 2), NULL);
    return *key_p != NULL &&
           pickle_u64(pickle, pickle_item(pickle, id, 4), numel_p) &&
           (strcmp(cls, "UntypedStorage") == 0 || torch_dtype(cls, &dtype)) &&
           dtype_bytes(dtype, *numel_p, bytes_p);
}

/* Where the object first speaks of each storage. */
static fsdp_status_t map_persids(const torch_file_t *file, map_t *map,
                                 fsdp_error_t *err)
{
    uint64_t numel, bytes, i = 0;
    pickle_ref_t ref;
    const char *key;

    for (; (ref = pickle_persid(file->pickle, i)) != 0; i++) {
        pickle_ref_t id = pickle_args(file->pickle, ref);

        if (!persid_bytes(file->pickle, id, &key, &numel, &bytes)) {
            return bad(file, "a storage of it makes no sense", err);
        }
        if (!map_put(map, key, strlen(key), id)) {
            return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                                  file->path);
        }
    }

    return FSDP_OK;
}

static fsdp_status_t read_storages(torch_file_t *file, int fd, uint64_t at,
                                   const pickle_t *list, const map_t *persids,
                                   fsdp_error_t *err)
{
    pickle_ref_t keys = pickle_root(list);
    uint64_t num = pickle_count(list, keys), numel, bytes, there, id;

    if (pickle_kind(list, keys) != PICKLE_LIST || num > file->size / 8) {
        return bad(file, "its list of storages makes no sense", err);
    }
    file->storages = calloc(num + 1, sizeof(*file->storages));
    if (file->storages == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              file->path);
    }

    for (uint64_t i = 0; i < num; i++) {
        const char *key = pickle_str(list, pickle_item(list, keys, i), NULL);
        torch_storage_t storage = {0};
        uint32_t twice;

        if (key == NULL || !map_get(persids, key, strlen(key), &id) ||
            torch_file_find(file, key, &twice) ||
            !persid_bytes(file->pickle, (pickle_ref_t)id, &key, &numel,
                          &bytes)) {
            return bad(file, "its list of storages and its object do not agree",
                       err);
        }
        if (file->size - at < 8 || file->size - at - 8 < bytes) {
            return bad(file, "it was cut short: a storage is not all there",
                       err);
        }
        FSDP_TRY(io_pread(fd, &there, sizeof(there), at, file->path, err));
        if (le64toh(there) != numel) {
            return bad(file, "a storage has another size than its object says",
                       err);
        }
        storage.offset = at + 8;
        storage.size = bytes;
        at += 8 + bytes;
        FSDP_TRY(add_storage(file, key, &storage, err));
    }

    return (at == file->size) ? FSDP_OK
                              : bad(file,
                                    "bytes at its end belong to no "
                                    "storage",
                                    err);
}

static fsdp_status_t open_legacy(torch_file_t *file, int fd, fsdp_error_t *err)
{
    pickle_t *list = NULL;
    fsdp_status_t status;
    map_t persids = {0};
    uint64_t at = 0;

    FSDP_TRY(read_head(file, fd, &at, err));
    FSDP_TRY(next_pickle(file, fd, &at, &file->pickle, err));
    FSDP_TRY(next_pickle(file, fd, &at, &list, err));
    status = map_persids(file, &persids, err);
    if (status == FSDP_OK) {
        status = read_storages(file, fd, at, list, &persids, err);
    }
    map_free(&persids);
    pickle_free(list);
    return status;
}

/* --- Both ----------------------------------------------------------------- */

void torch_file_close(torch_file_t *file)
{
    pickle_free(file->pickle);
    map_free(&file->keys);
    free(file->storages);
    free(file->path);
    *file = (torch_file_t){0};
}

fsdp_status_t torch_file_open(const char *path, torch_file_t *file,
                              fsdp_error_t *err)
{
    unsigned char head[16] = {0};
    fsdp_status_t status;
    off_t end;
    int fd;

    *file = (torch_file_t){.path = strdup(path)};
    if (file->path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);
    }
    status = io_open(path, O_RDONLY, 0, &fd, err);
    if (status != FSDP_OK) {
        torch_file_close(file);
        return status;
    }

    end = lseek(fd, 0, SEEK_END);
    if (end < 0) {
        status = fsdp_error_set(err, FSDP_ERR_IO, "%s: %m", path);
        goto err_close;
    }
    file->size = (uint64_t)end;
    FSDP_TRY_GOTO(
        io_pread(fd, head, (file->size < 16) ? file->size : 16, 0, path, err),
        err_close);
    file->is_zip = memcmp(head, "PK\3\4", 4) == 0;
    if (!file->is_zip && !torch_file_probe(head)) {
        status = bad(file, "torch.save did not write this file", err);
        goto err_close;
    }
    status =
        file->is_zip ? open_zip(file, fd, err) : open_legacy(file, fd, err);
err_close:
    if (status != FSDP_OK) {
        torch_file_close(file);
    }
    close(fd);
    return status;
}
