#include "config.h"

#include "ckpt/format/hdf5_name.h"

#include <stdlib.h>
#include <string.h>

bool hdf5_name_is_utf8(const char *name)
{
    static const unsigned least[] = {0, 0x80, 0x800, 0x10000};
    const unsigned char *p = (const unsigned char *)name;

    while (*p != '\0') {
        unsigned more = (*p < 0x80)       ? 0
                        : (*p >> 5 == 6)  ? 1
                        : (*p >> 4 == 14) ? 2
                                          : 3;
        unsigned code = (more == 0) ? *p : *p & (0x3fu >> more);

        if (more == 3 && *p >> 3 != 30) {
            return false;
        }
        p++;
        for (unsigned i = 0; i < more; i++, p++) {
            if (*p >> 6 != 2) {
                return false;
            }
            code = code << 6 | (*p & 0x3f);
        }
        if (code < least[more] || code > 0x10ffff || code >> 11 == 27) {
            return false;
        }
    }

    return true;
}

static bool is_table(const char *text, size_t size)
{
    static const char *const tables[] = {"tensors", "pieces", "names", "dims"};

    for (size_t i = 0; i < sizeof(tables) / sizeof(*tables); i++) {
        if (strlen(tables[i]) == size && memcmp(tables[i], text, size) == 0) {
            return true;
        }
    }

    return false;
}

static char *put_escape(char *out, char c)
{
    static const char digits[] = "0123456789ABCDEF";
    unsigned char u = (unsigned char)c;

    *out++ = '%';
    *out++ = digits[u >> 4];
    *out++ = digits[u & 15];

    return out;
}

/* One component between slashes; @a first escapes its first character. */
static char *put_component(char *out, const char *text, size_t size, bool first)
{
    bool dots = (size == 1 && text[0] == '.') ||
                (size == 2 && text[0] == '.' && text[1] == '.');

    if (size == 0) {
        *out++ = '%';
    }
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)text[i];

        if (dots || c == '%' || c < 0x20 || c == 0x7f || (first && i == 0)) {
            out = put_escape(out, text[i]);
        } else {
            *out++ = text[i];
        }
    }

    return out;
}

/* Is there a tensor, or an alias where those are, of this name? */
static bool is_there(const catalog_t *cat, const char *name, hdf5_where_t where)
{
    uint64_t tensor;

    return catalog_find(cat, name, &tensor) &&
           (where != HDF5_IN_SHARD ||
            strcmp(cat->tensors[tensor].name, name) == 0);
}

fsdp_status_t hdf5_path_make(const catalog_t *cat, const char *name,
                             hdf5_where_t where, char **path_p,
                             fsdp_error_t *err)
{
    size_t length = strlen(name);
    char *prefix, *part, *path, *out;
    unsigned depth = 0;

    if (length == 0 || length > HDF5_NAME_MAX || !hdf5_name_is_utf8(name)) {
        return fsdp_error_set(err, FSDP_ERR_UNSUPPORTED,
                              "tensor '%.80s%s': HDF5 files hold names of 1 to "
                              "%d bytes of UTF-8; rename it",
                              name, (length > 80) ? "..." : "", HDF5_NAME_MAX);
    }

    prefix = strdup(name);
    path = malloc(3 * length + 2);
    if (prefix == NULL || path == NULL) {
        free(prefix);
        free(path);
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "tensor %s: no memory for its path", name);
    }

    out = path;
    for (part = prefix;; part++) {
        size_t size = strcspn(part, "/");

        out = put_component(out, part, size,
                            where == HDF5_IN_INDEX && part == prefix &&
                                is_table(part, size));
        part += size;
        if (*part == '\0') {
            break;
        }
        *part = '\0';
        if (depth == HDF5_DEPTH_MAX || is_there(cat, prefix, where)) {
            out = put_escape(out, '/');
        } else {
            *out++ = '/';
            depth++;
        }
        *part = '/';
    }
    *out = '\0';
    free(prefix);

    *path_p = path;
    return FSDP_OK;
}

static int hex_digit(char c)
{
    return (c >= '0' && c <= '9')   ? c - '0'
           : (c >= 'A' && c <= 'F') ? c - 'A' + 10
                                    : -1;
}

char *hdf5_path_name(const char *path)
{
    char *name = malloc(strlen(path) + 1);
    char *out = name;

    if (name == NULL) {
        return NULL;
    }

    for (const char *p = path; *p != '\0';) {
        int high = (*p == '%') ? hex_digit(p[1]) : -1;
        int low = (high >= 0) ? hex_digit(p[2]) : -1;

        if (low >= 0) {
            *out++ = (char)(high << 4 | low);
            p += 3;
        } else if (*p == '%' && (p == path || p[-1] == '/') &&
                   (p[1] == '/' || p[1] == '\0')) {
            p++; /* an empty component */
        } else {
            *out++ = *p++;
        }
    }
    *out = '\0';

    return name;
}
