/*
 * Reading Megatron's torch_dist checkpoints: a distributed checkpoint of
 * PyTorch, with metadata.json that names the format, and common.pt with what
 * all ranks have alike.  Their tensors may have axes of layers or experts in
 * front; objects are named NAME/shard_I_N.
 *
 * integrity.json, where there is one, has the SHA-256 of every file: they are
 * compared by verify.
 */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/format.h"
#include "ckpt/format/dcp.h"
#include "ckpt/format/megatron.h"
#include "ckpt/torch_file.h"
#include "ckpt/torch_object.h"
#include "lib/util/check.h"
#include "lib/util/io.h"

#define METADATA  "metadata.json"
#define COMMON    "common.pt"
#define INTEGRITY "integrity.json"
#define TRACKER   "latest_checkpointed_iteration.txt"

enum { JSON_MOST = 64 << 20 };

/* A JSON file of a directory; NULL: none, or no JSON. */
static json_t *load_json(const char *dir, const char *name)
{
    char *path = io_path("%s/%s", dir, name), *text = NULL;
    json_t *json = NULL;
    size_t size;

    if (path != NULL &&
        io_read_file(path, JSON_MOST, &text, &size, NULL) == FSDP_OK) {
        json = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
    }
    free(text);
    free(path);
    return json;
}

static bool is_checkpoint(const char *dir)
{
    json_t *json = load_json(dir, METADATA);
    bool is = json_is_string(json_object_get(json, "sharded_backend"));

    json_decref(json);
    return is;
}

/* The directory of the iteration that the tracker names; the caller frees it;
 * NULL: none. */
static char *tracked(const char *dir)
{
    char *path = io_path("%s/" TRACKER, dir), *text = NULL, *found = NULL;
    size_t size;

    if (path != NULL && io_read_file(path, 64, &text, &size, NULL) == FSDP_OK) {
        text[strcspn(text, " \r\n")] = '\0';
        if (strcmp(text, "release") == 0) {
            found = io_path("%s/release", dir);
        } else if (text[0] != '\0' &&
                   strspn(text, "0123456789") == strlen(text) &&
                   strlen(text) < 16) {
            found = io_path("%s/iter_%07lld", dir, atoll(text));
        }
    }
    free(text);
    free(path);
    return found;
}

static bool probe(const format_look_t *look)
{
    char *child;
    bool is;

    if (!look->is_dir) {
        return false;
    }
    if (is_checkpoint(look->path)) {
        return true;
    }

    child = tracked(look->path);
    is = child != NULL && is_checkpoint(child);
    free(child);
    return is;
}

/* --- common.pt ------------------------------------------------------------ */

typedef struct {
    catalog_t *cat;
    const torch_file_t *file;
    uint32_t index; /* of the file in the catalog */
} common_t;

static fsdp_status_t add_tensor(const char *name, pickle_ref_t ref, void *arg,
                                fsdp_error_t *err)
{
    static const uint64_t start[FSDP_CKPT_MAX_NDIM];
    common_t *common = arg;
    catalog_t *cat = common->cat;
    catalog_piece_t piece = {.file = common->index, .crc_first = CATALOG_NONE};
    uint64_t tensor, before, bytes, num = cat->num_pieces;
    const torch_storage_t *stored;
    torch_tensor_t view;
    uint32_t storage;

    FSDP_TRY(torch_tensor(common->file->pickle, ref, name, &view, err));
    FSDP_TRY(catalog_add_tensor(cat, name, view.dtype, view.ndim, view.dims,
                                NULL, &tensor, err));
    if (view.numel == 0) {
        return FSDP_OK;
    }
    if (!torch_file_find(common->file, view.key, &storage) ||
        !dtype_bytes(view.dtype, view.offset, &before)) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: %s: its storage is not there",
                              common->file->path, name);
    }

    stored = &common->file->storages[storage];
    piece.tensor = (uint32_t)tensor;
    piece.offset = stored->offset + before;
    FSDP_TRY(catalog_add_changed(
        cat, &piece, start, view.dims, view.strides,
        (view.neg ? CATALOG_NEG : 0u) | (view.conj ? CATALOG_CONJ : 0u), err));
    bytes = catalog_piece_bytes(cat, &cat->pieces[num]);
    if (before > stored->size || bytes > stored->size - before) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: %s: its elements leave their storage",
                              common->file->path, name);
    }
    return FSDP_OK;
}

static fsdp_status_t add_value(const char *name, pickle_ref_t ref, void *arg,
                               fsdp_error_t *err)
{
    common_t *common = arg;
    fsdp_status_t status;
    char *text;

    FSDP_TRY(torch_value_json(common->file->pickle, ref, name, add_tensor,
                              common, &text, err));
    status = catalog_add_value(common->cat, name, text, err);
    free(text);
    return status;
}

static fsdp_status_t add_common(catalog_t *cat, fsdp_error_t *err)
{
    char *path = io_path("%s/" COMMON, cat->root);
    common_t common = {.cat = cat};
    torch_file_t file = {0};
    fsdp_status_t status;
    uint64_t value;

    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              cat->path);
    }
    if (access(path, F_OK) != 0) {
        free(path);
        return FSDP_OK; /* newer ones have all of it in .metadata's files */
    }

    FSDP_TRY_GOTO(torch_file_open(path, &file, err), err_free);
    common.file = &file;
    FSDP_TRY_GOTO(catalog_add_file(cat, COMMON, file.size, &common.index, err),
                  err_free);
    status = torch_walk(file.pickle, pickle_root(file.pickle), "", NULL,
                        add_tensor, add_value, &common, err);
    if (status == FSDP_OK &&
        pickle_u64(
            file.pickle,
            pickle_get(file.pickle, pickle_root(file.pickle), "iteration"),
            &value) &&
        value <= INT64_MAX) {
        cat->step = (int64_t)value;
    }
err_free:
    torch_file_close(&file);
    free(path);
    return status;
}

/* --- integrity.json ------------------------------------------------------- */

/* SHA-256 of a file as hexadecimal text. */
static fsdp_status_t hash_file(const char *path, char hex[65],
                               uint64_t *bytes_p, fsdp_error_t *err)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    unsigned char *buffer = malloc(1 << 20), digest[EVP_MAX_MD_SIZE];
    fsdp_status_t status = FSDP_OK;
    ssize_t n = 0;
    int fd = -1;

    if (context == NULL || buffer == NULL ||
        EVP_DigestInit_ex(context, EVP_sha256(), NULL) != 1) {
        status = fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);
    } else {
        status = io_open(path, O_RDONLY, 0, &fd, err);
    }
    while (status == FSDP_OK &&
           ((n = read(fd, buffer, 1 << 20)) > 0 || (n < 0 && errno == EINTR))) {
        if (n < 0) {
            continue;
        }
        EVP_DigestUpdate(context, buffer, (size_t)n);
        *bytes_p += (uint64_t)n;
    }
    if (status == FSDP_OK && n < 0) {
        status = fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot read: %m", path);
    }
    if (status == FSDP_OK) {
        EVP_DigestFinal_ex(context, digest, NULL);
        for (unsigned i = 0; i < 32; i++) {
            snprintf(hex + 2ul * i, 3, "%02x", digest[i]);
        }
    }
    if (fd >= 0) {
        close(fd);
    }
    EVP_MD_CTX_free(context);
    free(buffer);
    return status;
}

/* The file that should have a SHA-256; NULL: none. */
static const char *name_of(json_t *files, const char *hex)
{
    const char *name;
    json_t *value;

    json_object_foreach(files, name, value)
    {
        if (json_is_string(value) &&
            strcasecmp(json_string_value(value), hex) == 0) {
            return name;
        }
    }

    return NULL;
}

static fsdp_status_t check_file(const catalog_t *cat, json_t *files,
                                const char *name, megatron_find_f find,
                                void *arg, uint64_t *bytes_p, fsdp_error_t *err)
{
    const char *want = json_string_value(json_object_get(files, name));
    char *path = io_path("%s/%s", cat->root, name), *text = NULL;
    char hex[65] = "";
    fsdp_error_t why;
    fsdp_status_t status;

    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              cat->path);
    }

    if (want == NULL || name[0] == '/' || strstr(name, "..") != NULL) {
        text = io_path("%s: " INTEGRITY ": no checksum of a file here", name);
        status = FSDP_OK;
    } else {
        status = hash_file(path, hex, bytes_p, &why);
        if (status == FSDP_ERR_NOT_FOUND) {
            text = io_path("%s: missing, but " INTEGRITY " names it", path);
            status = FSDP_OK;
        } else if (status != FSDP_OK && err != NULL) {
            *err = why;
        } else if (strcasecmp(hex, want) != 0) {
            const char *twin = name_of(files, hex);

            text = (twin != NULL)
                       ? io_path(FORMAT_EXCHANGED, path, twin)
                       : io_path("%s: its SHA-256 is %s, " INTEGRITY " has %s",
                                 path, hex, want);
        }
    }
    if (status == FSDP_OK && text != NULL) {
        status = find(text, arg);
    }
    free(text);
    free(path);
    return status;
}

fsdp_status_t megatron_check(const catalog_t *cat, megatron_find_f find,
                             void *arg, uint64_t *bytes_p, fsdp_error_t *err)
{
    json_t *json = load_json(cat->root, INTEGRITY), *value;
    json_t *files = json_object_get(json, "files");
    const char *algorithm =
        json_string_value(json_object_get(json, "algorithm"));
    fsdp_status_t status = FSDP_OK;
    const char *name;
    char *path = io_path("%s/" INTEGRITY, cat->root);

    if (path == NULL) {
        status =
            fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", cat->path);
    } else if (json == NULL && access(path, F_OK) == 0) {
        status = find(INTEGRITY ": is no JSON", arg);
    } else if (json != NULL &&
               (algorithm == NULL || strcmp(algorithm, "sha256") != 0 ||
                !json_is_object(files))) {
        status = find(INTEGRITY ": has no SHA-256 of files", arg);
    } else {
        json_object_foreach(files, name, value)
        {
            status = check_file(cat, files, name, find, arg, bytes_p, err);
            if (status != FSDP_OK) {
                break;
            }
        }
    }
    json_decref(json);
    free(path);
    return status;
}

/* --- The format ----------------------------------------------------------- */

static fsdp_status_t megatron_open(const char *path, catalog_t *cat,
                                   fsdp_error_t *err)
{
    const char *backend;
    json_t *json;
    char *child;

    if (!is_checkpoint(path)) {
        child = tracked(path);
        cat->root = (child != NULL) ? catalog_strdup(cat, child) : NULL;
        free(child);
        if (cat->root == NULL) {
            cat->root = ".";
            return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                                  path);
        }
        cat->path = cat->root;
    }

    json = load_json(cat->root, METADATA);
    backend = json_string_value(json_object_get(json, "sharded_backend"));
    if (backend == NULL || strcmp(backend, "torch_dist") != 0) {
        fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                       "%s: a Megatron checkpoint of backend %s, of which "
                       "only torch_dist is read here",
                       cat->path, (backend != NULL) ? backend : "?");
        json_decref(json);
        return FSDP_ERR_UNSUPPORTED;
    }
    json_decref(json);

    FSDP_TRY(dcp_load(cat, "", err));
    FSDP_TRY(add_common(cat, err));
    return catalog_seal(cat, CATALOG_CHECK_ALL, err);
}

const format_t format_megatron = {
    .id = FSDP_CKPT_MEGATRON,
    .name = "megatron",
    .what = "a Megatron torch_dist checkpoint",
    .probe = probe,
    .open = megatron_open,
    .extra = dcp_extra,
    .is_dir = true,
};
