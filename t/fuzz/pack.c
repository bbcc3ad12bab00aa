/*
 * pack - make an input of t/fuzz/fuzz-dir.c of a directory, or of
 * fuzz-file.c of a file: on standard output, its checksums all 1
 *
 *     pack CHECKPOINT [RECIPE [MANIFEST]]
 */
#include "config.h"

#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/util/io.h"

#define FILE_MOST (16u << 20)

static const char *top;
static json_t *manifest; /* of a checkpoint of ours */

static void put_u32(char *at)
{
    const unsigned char one[4] = {1};

    memcpy(at, one, sizeof(one));
}

/* A table of checksums. */
static void put_table(char *data, size_t size, uint64_t offset, uint64_t num)
{
    for (uint64_t i = 0; i < num && offset + 4 * i + 4 <= size; i++) {
        put_u32(data + offset + 4 * i);
    }
}

static void patch_zip(char *data, size_t size)
{
    for (size_t i = 0; i + 30 < size; i++) {
        if (memcmp(data + i, "PK\3\4", 4) == 0) {
            put_u32(data + i + 14);
        } else if (memcmp(data + i, "PK\1\2", 4) == 0) {
            put_u32(data + i + 16);
        }
    }
}

/* The end of one HDF5 file of ours: doc/checkpoint-format.md. */
static void patch_trailer(char *data, size_t size)
{
    uint64_t words[3];

    if (size >= 64 && memcmp(data + size - 8, "fsdp-h5\n", 8) == 0) {
        memcpy(words, data + size - 64, sizeof(words));
        put_table(data, size, words[1], words[2]);
        put_table(data, size, size - 24, 2);
        put_u32(data + size - 12);
    }
}

static void patch_json(char *text)
{
    for (char *at = text; (at = strstr(at, "crc32c\": \"")) != NULL; at++) {
        memcpy(at + 10, "00000001", 8);
    }
}

/* A shard file of ours. */
static void patch_shard(const char *name, char *data, size_t size)
{
    json_t *file;
    size_t i;

    json_array_foreach(json_object_get(manifest, "files"), i, file)
    {
        const json_t *blocks = json_object_get(file, "blocks");
        const char *its = json_string_value(json_object_get(file, "name"));

        if (its != NULL && strcmp(its, name) == 0) {
            put_table(
                data, size,
                (uint64_t)json_integer_value(json_object_get(blocks, "offset")),
                (uint64_t)json_integer_value(json_object_get(blocks, "count")));
        }
    }
}

static int put_file(const char *path, const char *name)
{
    char *data;
    size_t size;

    if (io_read_file(path, FILE_MOST, &data, &size, NULL) != FSDP_OK) {
        perror(path);
        return 1;
    }
    patch_zip(data, size);
    patch_trailer(data, size);
    patch_shard(name, data, size);
    if (strcmp(name, "manifest.json") == 0) {
        patch_json(data);
    }
    fwrite(data, 1, size, stdout);
    free(data);
    return 0;
}

static int on_file(const char *path, const struct stat *st, int type,
                   struct FTW *ftw)
{
    const char *name = path + strlen(top);
    static bool any;

    (void)st;
    if (type != FTW_F) {
        return 0;
    }
    if (ftw->level == 0) {
        return put_file(path, "");
    }
    name += strspn(name, "/");
    printf("%s@@ %s\n", any ? "\n" : "", name);
    any = true;
    return put_file(path, name);
}

int main(int argc, char **argv)
{
    char *path;

    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: pack CHECKPOINT [RECIPE [MANIFEST]]\n");
        return 2;
    }
    top = argv[1];
    path = io_path("%s/manifest.json", top);
    manifest = json_load_file(path, 0, NULL);
    free(path);
    if (nftw(top, on_file, 16, FTW_PHYS) != 0) {
        return 1;
    }
    for (int i = 2; i < argc; i++) {
        printf("\n@@ %s\n", (i == 2) ? ".recipe" : ".manifest");
        if (put_file(argv[i], "") != 0) {
            return 1;
        }
    }
    json_decref(manifest);
    return fflush(stdout) != 0;
}
