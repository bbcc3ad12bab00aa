/*
 * ckpt-reseal - make a manifest fit files that a test has altered
 *
 * Sizes and checksums become those of the files as they are now, as if the
 * writer had written them so.
 */
#include "config.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/util/crc.h"
#include "lib/util/io.h"

#define FILE_MOST (1ul << 30)

static int fail(const char *what)
{
    fprintf(stderr, "ckpt-reseal: %s\n", what);
    return EXIT_FAILURE;
}

/* An entry {name, size, crc32c} of the manifest. */
static bool reseal_file(const char *dir, json_t *entry)
{
    const char *name = json_string_value(json_object_get(entry, "name"));
    char *path = io_path("%s/%s", dir, name), crc[9], *data;
    size_t size;

    if (io_read_file(path, FILE_MOST, &data, &size, NULL) != FSDP_OK) {
        return false;
    }

    snprintf(crc, sizeof(crc), "%08x", (unsigned)crc32c(0, data, size));
    json_object_set_new(entry, "size", json_integer((json_int_t)size));
    json_object_set_new(entry, "crc32c", json_string(crc));
    free(data);
    free(path);

    return true;
}

static bool write_manifest(const char *path, json_t *manifest)
{
    char *text, tail[64];
    size_t size;
    FILE *out;

    json_object_del(manifest, "manifest_crc32c");
    text = json_dumps(manifest, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    size = strlen(text) - strlen("\n}");
    snprintf(tail, sizeof(tail), ",\n \"manifest_crc32c\": \"%08x\"\n}\n",
             (unsigned)crc32c(0, text, size));

    out = fopen(path, "w");
    if (out == NULL) {
        return false;
    }
    fwrite(text, 1, size, out);
    fputs(tail, out);
    free(text);

    return fclose(out) == 0;
}

int main(int argc, char **argv)
{
    json_t *manifest, *entry;
    char *path;
    size_t i;

    if (argc != 2) {
        return fail("usage: ckpt-reseal STEP-DIR");
    }

    path = io_path("%s/manifest.json", argv[1]);
    manifest = json_load_file(path, 0, NULL);
    if (manifest == NULL) {
        return fail("no manifest");
    }
    if (!reseal_file(argv[1], json_object_get(manifest, "index"))) {
        return fail("no index");
    }
    json_array_foreach(json_object_get(manifest, "files"), i, entry)
    {
        if (!reseal_file(argv[1], entry)) {
            return fail("a file is missing");
        }
    }
    if (!write_manifest(path, manifest)) {
        return fail("cannot write the manifest");
    }
    json_decref(manifest);
    free(path);

    return EXIT_SUCCESS;
}
