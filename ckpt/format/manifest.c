#include "config.h"

#include "ckpt/format/manifest.h"

#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/value.h"
#include "lib/util/check.h"
#include "lib/util/crc.h"
#include "lib/util/io.h"
#include "lib/util/json_text.h"
#include "lib/util/text.h"

#define INDEX_NAME  "index.h5"
#define SIZE_MOST   (1ull << 32) /* of a manifest */

/* The last line: the checksum of everything before its comma. */
#define TAIL_FORMAT ",\n \"manifest_crc32c\": \"%08" PRIx32 "\"\n}\n"
#define TAIL_SIZE   35

struct manifest {
    char *path;
    json_t *root;
    json_t *unit_of; /* tensor: unit */
    manifest_index_t index;
};

/*
 * Writing.
 */

static json_t *pack_crc(uint32_t crc)
{
    char text[9];

    snprintf(text, sizeof(text), "%08" PRIx32, crc);
    return json_string(text);
}

void manifest_put_digest(const uint64_t word[2],
                         char text[MANIFEST_DIGEST_SIZE])
{
    snprintf(text, MANIFEST_DIGEST_SIZE, "%016" PRIx64 "%016" PRIx64, word[0],
             word[1]);
}

static json_t *pack_digest(const uint64_t word[2])
{
    char text[MANIFEST_DIGEST_SIZE];

    manifest_put_digest(word, text);
    return json_string(text);
}

static json_t *pack_table(const manifest_table_t *table)
{
    return json_pack("{sI sI}", "offset", (json_int_t)table->offset, "count",
                     (json_int_t)table->count);
}

static json_t *pack_index(const manifest_index_t *index)
{
    return json_pack(
        "{ss sI so so so so so}", "name", INDEX_NAME, "size",
        (json_int_t)index->size, "crc32c", pack_crc(index->crc32c), "tensors",
        pack_table(&index->tensors), "pieces", pack_table(&index->pieces),
        "names", pack_table(&index->names), "dims", pack_table(&index->dims));
}

static json_t *pack_files(const catalog_t *cat)
{
    json_t *files = json_array();

    for (uint32_t i = 0; i < cat->num_files; i++) {
        const catalog_file_t *file = &cat->files[i];
        manifest_table_t blocks = {file->table, file->crc_count};

        if (json_array_append_new(
                files, json_pack("{ss sI so so}", "name", file->path, "size",
                                 (json_int_t)file->size, "crc32c",
                                 pack_crc(file->crc32c), "blocks",
                                 pack_table(&blocks))) != 0) {
            json_decref(files);
            return NULL;
        }
    }

    return files;
}

static json_t *pack_aliases(const catalog_t *cat)
{
    json_t *aliases = json_object();

    for (uint64_t i = 0; i < cat->num_aliases; i++) {
        const catalog_alias_t *alias = &cat->aliases[i];

        if (json_object_set_new(
                aliases, alias->name,
                json_string(cat->tensors[alias->tensor].name)) != 0) {
            json_decref(aliases);
            return NULL;
        }
    }

    return aliases;
}

/* @a by_order: the tensors in the writer's order. */
static json_t *pack_units(const catalog_t *cat, const uint64_t *by_order)
{
    json_t *units = json_array();

    for (uint32_t i = 0; i < cat->num_units; i++) {
        if (json_array_append_new(units, json_pack("{ss s[]}", "name",
                                                   cat->units[i], "tensors")) !=
            0) {
            goto err_units;
        }
    }
    for (uint64_t i = 0; i < cat->num_tensors; i++) {
        const catalog_tensor_t *tensor = &cat->tensors[by_order[i]];

        if (tensor->unit != CATALOG_NONE &&
            json_array_append_new(
                json_object_get(json_array_get(units, tensor->unit), "tensors"),
                json_string(tensor->name)) != 0) {
            goto err_units;
        }
    }

    return units;

err_units:
    json_decref(units);
    return NULL;
}

static json_t *pack_digests(const catalog_t *cat)
{
    json_t *digests = json_object();

    if (cat->has_digest_model) {
        json_object_set_new(digests, "model", pack_digest(cat->digest_model));
    }
    if (cat->has_digest_optim) {
        json_object_set_new(digests, "optim", pack_digest(cat->digest_optim));
    }

    return digests;
}

static json_t *pack_manifest(const catalog_t *cat,
                             const manifest_index_t *index,
                             const uint64_t *by_order, json_t *meta)
{
    const fsdp_mesh_t *mesh = &cat->mesh;
    json_t *step =
        (cat->step < 0) ? json_null() : json_integer((json_int_t)cat->step);

    return json_pack(
        "{ss si si ss so si ss si so so so so so sO}", "format",
        MANIFEST_FORMAT, "version", MANIFEST_VERSION, "min_reader",
        MANIFEST_MIN_READER, "writer", PACKAGE_STRING, "step", step, "world",
        (int)mesh->world, "strategy",
        (mesh->world == 0) ? "none" : fsdp_strategy_name(mesh->strategy),
        "shard", (int)mesh->shard, "digests", pack_digests(cat), "files",
        pack_files(cat), "index", pack_index(index), "aliases",
        pack_aliases(cat), "units", pack_units(cat, by_order), "meta", meta);
}

/* The text with its last line; the caller frees it. */
static char *seal_text(char *text)
{
    size_t size = (text == NULL) ? 0 : strlen(text);
    char *sealed;

    if (size < 2) {
        free(text);
        return NULL;
    }

    text[size - 2] = '\0'; /* "\n}" */
    sealed = io_path("%s" TAIL_FORMAT, text, crc32c(0, text, size - 2));
    free(text);

    return sealed;
}

static fsdp_status_t write_text(const char *dir, const char *text,
                                fsdp_error_t *err)
{
    char *path = io_path("%s/%s", dir, MANIFEST_NAME);
    fsdp_status_t status;

    if (path == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", dir);
    }

    status = io_replace_file(path, text, strlen(text), err);
    free(path);

    return status;
}

fsdp_status_t manifest_write(const catalog_t *cat,
                             const manifest_index_t *index, const char *dir,
                             fsdp_error_t *err)
{
    uint64_t *by_order = catalog_in_order(cat);
    json_t *meta, *values = NULL, *root = NULL;
    fsdp_status_t status;
    size_t digits, more;
    char *text = NULL;
    json_error_t why;

    meta = json_loads(cat->meta, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!json_is_object(meta)) {
        status = fsdp_error_set(
            err, FSDP_ERR_INVALID_PARAM,
            "%s: the metadata to keep is no JSON object: %s", dir,
            (meta == NULL) ? why.text : "it is something else");
        goto done;
    }

    values = value_all(cat);
    if (by_order != NULL && values != NULL) {
        root = pack_manifest(cat, index, by_order, meta);
    }
    if (root != NULL && json_object_size(values) > 0 &&
        json_object_set(root, "values", values) != 0) {
        json_decref(root);
        root = NULL;
    }
    if (root == NULL) {
        status = fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                                "%s: no memory for the manifest, or a name in "
                                "it is not UTF-8",
                                dir);
        goto done;
    }

    digits = json_text_digits(meta);
    more = json_text_digits(values);
    text = seal_text(
        json_dumps(root, JSON_INDENT(1) | ((digits > more) ? digits : more)));
    if (text == NULL) {
        status = fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                "%s: no memory for the manifest", dir);
        goto done;
    }

    status = write_text(dir, text, err);
done:
    free(text);
    json_decref(root);
    json_decref(values);
    json_decref(meta);
    free(by_order);
    return status;
}

/*
 * Reading.
 */

__attribute__((format(printf, 3, 4))) static fsdp_status_t corrupt(
    const manifest_t *manifest, fsdp_error_t *err, const char *fmt, ...)
{
    char what[300];
    va_list ap;

    va_start(ap, fmt);
    text_message(what, sizeof(what), fmt, ap);
    va_end(ap);

    return fsdp_error_set(err, FSDP_ERR_CORRUPT, "%s: %s", manifest->path,
                          what);
}

static bool get_uint(const json_t *object, const char *key, uint64_t *value_p)
{
    return json_text_u64(json_object_get(object, key), value_p);
}

static bool is_hex(const char *text, size_t digits)
{
    return text != NULL && strlen(text) == digits &&
           strspn(text, "0123456789abcdef") == digits;
}

bool manifest_get_digest(const char *text, uint64_t word[2])
{
    char high[17];

    if (!is_hex(text, 32)) {
        return false;
    }

    snprintf(high, sizeof(high), "%.16s", text);
    word[0] = strtoull(high, NULL, 16);
    word[1] = strtoull(text + 16, NULL, 16);
    return true;
}

static bool get_crc(const json_t *object, uint32_t *crc_p)
{
    const char *text = json_string_value(json_object_get(object, "crc32c"));

    if (!is_hex(text, 8)) {
        return false;
    }

    *crc_p = (uint32_t)strtoul(text, NULL, 16);
    return true;
}

/* A table of @a size bytes a record that lies inside a file. */
static bool get_table(const json_t *object, const char *key,
                      uint64_t record_size, uint64_t file_size,
                      manifest_table_t *table_p)
{
    const json_t *table = json_object_get(object, key);

    return get_uint(table, "offset", &table_p->offset) &&
           get_uint(table, "count", &table_p->count) &&
           table_p->offset <= file_size &&
           table_p->count <= (file_size - table_p->offset) / record_size;
}

static fsdp_status_t check_tail(const manifest_t *manifest, const char *text,
                                size_t size, fsdp_error_t *err)
{
    char tail[TAIL_SIZE + 1];

    if (size < TAIL_SIZE || strlen(text) != size) {
        return corrupt(manifest, err, "it is no manifest of a checkpoint");
    }

    snprintf(tail, sizeof(tail), TAIL_FORMAT,
             crc32c(0, text, size - TAIL_SIZE));
    if (strcmp(tail, text + size - TAIL_SIZE) != 0) {
        return corrupt(manifest, err,
                       "its bytes do not have the checksum of its last line: "
                       "it was altered or cut");
    }

    return FSDP_OK;
}

static fsdp_status_t check_version(const manifest_t *manifest,
                                   fsdp_error_t *err)
{
    const char *format =
        json_string_value(json_object_get(manifest->root, "format"));
    const char *writer =
        json_string_value(json_object_get(manifest->root, "writer"));
    uint64_t version, min_reader;

    if (format == NULL || strcmp(format, MANIFEST_FORMAT) != 0) {
        return corrupt(manifest, err, "its format is not \"%s\"",
                       MANIFEST_FORMAT);
    }

    if (!get_uint(manifest->root, "version", &version) ||
        !get_uint(manifest->root, "min_reader", &min_reader)) {
        return corrupt(manifest, err, "it has no version");
    }

    if (min_reader > MANIFEST_VERSION) {
        return fsdp_error_set(
            err, FSDP_ERR_UNSUPPORTED,
            "%s: written by %.80s in version %" PRIu64
            ", which readers of version %" PRIu64
            " and later understand; this is %s with version %d: use a newer "
            "libfsdp",
            manifest->path, (writer != NULL) ? writer : "an unknown program",
            version, min_reader, PACKAGE_STRING, MANIFEST_VERSION);
    }

    return FSDP_OK;
}

static fsdp_status_t read_index(manifest_t *manifest, fsdp_error_t *err)
{
    const json_t *object = json_object_get(manifest->root, "index");
    manifest_index_t *index = &manifest->index;

    if (!get_uint(object, "size", &index->size) ||
        !get_crc(object, &index->crc32c)) {
        return corrupt(manifest, err, "no size and checksum of %s", INDEX_NAME);
    }

    if (!get_table(object, "tensors", 40, index->size, &index->tensors) ||
        !get_table(object, "pieces", 40, index->size, &index->pieces) ||
        !get_table(object, "names", 1, index->size, &index->names) ||
        !get_table(object, "dims", 8, index->size, &index->dims)) {
        return corrupt(manifest, err, "a table that does not lie in %s",
                       INDEX_NAME);
    }

    return FSDP_OK;
}

/* Turn [{name, tensors}] into {tensor: unit}. */
static fsdp_status_t read_units(manifest_t *manifest, fsdp_error_t *err)
{
    const json_t *units = json_object_get(manifest->root, "units");
    json_t *unit, *tensor;
    size_t i, k;

    manifest->unit_of = json_object();
    json_array_foreach(units, i, unit)
    {
        json_t *name = json_object_get(unit, "name");

        if (!json_is_string(name)) {
            return corrupt(manifest, err, "unit %zu has no name", i);
        }
        json_array_foreach(json_object_get(unit, "tensors"), k, tensor)
        {
            const char *text = json_string_value(tensor);

            if (text == NULL ||
                json_object_get(manifest->unit_of, text) != NULL ||
                json_object_set(manifest->unit_of, text, name) != 0) {
                return corrupt(manifest, err,
                               "unit %s: tensor %zu has no name or two units",
                               json_string_value(name), k);
            }
        }
    }

    return FSDP_OK;
}

static fsdp_status_t parse(manifest_t *manifest, const char *text, size_t size,
                           fsdp_error_t *err)
{
    json_error_t why;

    FSDP_TRY(check_tail(manifest, text, size, err));
    manifest->root =
        json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!json_is_object(manifest->root)) {
        return corrupt(manifest, err, "line %d: %s", why.line, why.text);
    }

    FSDP_TRY(check_version(manifest, err));
    FSDP_TRY(read_index(manifest, err));
    return read_units(manifest, err);
}

fsdp_status_t manifest_read(const char *dir, manifest_t **manifest_p,
                            fsdp_error_t *err)
{
    manifest_t *manifest = calloc(1, sizeof(*manifest));
    fsdp_status_t status;
    char *text = NULL;
    size_t size;

    if (manifest != NULL) {
        manifest->path = io_path("%s/%s", dir, MANIFEST_NAME);
    }
    if (manifest == NULL || manifest->path == NULL) {
        free(manifest);
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", dir);
    }

    status = io_read_file(manifest->path, SIZE_MOST, &text, &size, err);
    if (status == FSDP_ERR_NOT_FOUND) {
        fsdp_error_set(err, status,
                       "%s: no %s: the checkpoint is incomplete, its writing "
                       "was interrupted",
                       dir, MANIFEST_NAME);
    }
    if (status == FSDP_OK) {
        status = parse(manifest, text, size, err);
        free(text);
    }
    if (status != FSDP_OK) {
        manifest_free(manifest);
        return status;
    }

    *manifest_p = manifest;
    return FSDP_OK;
}

void manifest_free(manifest_t *manifest)
{
    if (manifest == NULL) {
        return;
    }

    json_decref(manifest->root);
    json_decref(manifest->unit_of);
    free(manifest->path);
    free(manifest);
}

void manifest_get_index(const manifest_t *manifest, manifest_index_t *index_p)
{
    *index_p = manifest->index;
}

static fsdp_status_t fill_mesh(const manifest_t *manifest, catalog_t *cat,
                               fsdp_error_t *err)
{
    const char *name =
        json_string_value(json_object_get(manifest->root, "strategy"));
    uint64_t world, shard;
    fsdp_mesh_t mesh;

    if (name == NULL || !get_uint(manifest->root, "world", &world) ||
        !get_uint(manifest->root, "shard", &shard) || world > UINT32_MAX ||
        shard > world) {
        return corrupt(manifest, err, "no world and strategy");
    }

    if (world == 0) {
        return FSDP_OK;
    }

    for (fsdp_strategy_t i = FSDP_STRATEGY_FULL; i <= FSDP_STRATEGY_CHUNK;
         i++) {
        uint32_t want = (i == FSDP_STRATEGY_HYBRID) ? (uint32_t)shard : 0;

        if (strcmp(fsdp_strategy_name(i), name) == 0 &&
            fsdp_mesh_init(&mesh, i, (uint32_t)world, want, NULL) == FSDP_OK &&
            mesh.shard == shard) {
            cat->mesh = mesh;
            return FSDP_OK;
        }
    }

    return corrupt(manifest, err,
                   "there is no strategy %.40s over shards of %" PRIu64
                   " of %" PRIu64 " ranks",
                   name, shard, world);
}

/* A file name, not a way out of the directory. */
static bool is_plain_name(const char *name)
{
    return name != NULL && *name != '\0' && *name != '.' &&
           strchr(name, '/') == NULL;
}

static fsdp_status_t fill_file(const manifest_t *manifest, const json_t *object,
                               catalog_t *cat, fsdp_error_t *err)
{
    const char *name = json_string_value(json_object_get(object, "name"));
    manifest_table_t blocks;
    uint32_t crc, file;
    uint64_t size;

    if (!is_plain_name(name) || !get_uint(object, "size", &size) ||
        !get_crc(object, &crc) ||
        !get_table(object, "blocks", sizeof(uint32_t), size, &blocks)) {
        return corrupt(manifest, err,
                       "file %" PRIu32 " lacks a name, a size, a checksum or a "
                       "table of blocks that lies in it",
                       cat->num_files);
    }

    FSDP_TRY(catalog_add_file(cat, name, size, &file, err));
    cat->files[file].crc32c = crc;
    cat->files[file].has_crc = true;
    cat->files[file].table = blocks.offset;

    return catalog_add_crcs(cat, file, blocks.count, err);
}

static fsdp_status_t fill_digests(const manifest_t *manifest, catalog_t *cat,
                                  fsdp_error_t *err)
{
    const json_t *digests = json_object_get(manifest->root, "digests");

    cat->has_digest_model = manifest_get_digest(
        json_string_value(json_object_get(digests, "model")),
        cat->digest_model);
    cat->has_digest_optim = manifest_get_digest(
        json_string_value(json_object_get(digests, "optim")),
        cat->digest_optim);
    if (!json_is_object(digests) ||
        json_object_size(digests) !=
            (size_t)cat->has_digest_model + cat->has_digest_optim) {
        return corrupt(manifest, err, "digests that are none");
    }

    return FSDP_OK;
}

static fsdp_status_t fill_meta(const manifest_t *manifest, catalog_t *cat,
                               fsdp_error_t *err)
{
    const json_t *meta = json_object_get(manifest->root, "meta");
    char *text;

    if (!json_is_object(meta)) {
        return corrupt(manifest, err, "no metadata");
    }

    text = json_dumps(meta, JSON_COMPACT | json_text_digits(meta));
    cat->meta = (text != NULL) ? catalog_strdup(cat, text) : NULL;
    free(text);

    return (cat->meta != NULL)
               ? FSDP_OK
               : fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                                manifest->path);
}

fsdp_status_t manifest_fill(const manifest_t *manifest, catalog_t *cat,
                            fsdp_error_t *err)
{
    json_t *files = json_object_get(manifest->root, "files");
    json_t *aliases = json_object_get(manifest->root, "aliases");
    json_t *value;
    const char *name;
    uint64_t step;
    size_t i;

    if (get_uint(manifest->root, "step", &step)) {
        cat->step = (int64_t)step;
    }
    FSDP_TRY(fill_mesh(manifest, cat, err));
    FSDP_TRY(fill_digests(manifest, cat, err));
    FSDP_TRY(fill_meta(manifest, cat, err));

    if (!json_is_array(files) || !json_is_object(aliases)) {
        return corrupt(manifest, err, "no list of files or of aliases");
    }

    json_array_foreach(files, i, value)
    {
        FSDP_TRY(fill_file(manifest, value, cat, err));
    }
    json_object_foreach(aliases, name, value)
    {
        if (!json_is_string(value)) {
            return corrupt(manifest, err, "alias %.100s has no owner", name);
        }
        FSDP_TRY(catalog_add_alias(cat, name, json_string_value(value), err));
    }

    /* Checkpoints of a training job have none. */
    return value_add_all(cat, json_object_get(manifest->root, "values"), err);
}

const char *manifest_unit(const manifest_t *manifest, const char *tensor)
{
    return json_string_value(json_object_get(manifest->unit_of, tensor));
}
