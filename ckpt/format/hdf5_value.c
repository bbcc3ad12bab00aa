#include "config.h"

#include "ckpt/format/hdf5_value.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "ckpt/format/hdf5_util.h"
#include "ckpt/value.h"
#include "lib/util/check.h"
#include "lib/util/io.h"

#define BYTES_MOST (16u << 20) /* of one value */

/* A dataset or attribute, and what was read of it. */
typedef struct {
    hid_t object;
    bool is_attribute;
    hid_t type, space;
    H5T_class_t class;
    int ndim;
    hsize_t dims[FSDP_CKPT_MAX_NDIM];
    size_t size; /* of an element in data */
    char *data;
} source_t;

static void source_close(source_t *source)
{
    free(source->data);
    if (source->space >= 0) {
        H5Sclose(source->space);
    }
    if (source->type >= 0) {
        H5Tclose(source->type);
    }
}

static bool source_open(source_t *source, hid_t object, bool is_attribute)
{
    *source = (source_t){
        .object = object,
        .is_attribute = is_attribute,
        .type = is_attribute ? H5Aget_type(object) : H5Dget_type(object),
        .space = is_attribute ? H5Aget_space(object) : H5Dget_space(object)};
    source->class =
        (source->type < 0) ? H5T_NO_CLASS : H5Tget_class(source->type);
    source->ndim =
        (source->space < 0)
            ? -1
            : H5Sget_simple_extent_dims(source->space, source->dims, NULL);
    return source->ndim >= 0;
}

static bool is_text(const source_t *source)
{
    return source->class == H5T_STRING;
}

static bool is_bool(const source_t *source)
{
    return source->class == H5T_ENUM && H5Tget_nmembers(source->type) == 2 &&
           H5Tget_member_index(source->type, "FALSE") >= 0 &&
           H5Tget_member_index(source->type, "TRUE") >= 0;
}

static bool is_known(const source_t *source)
{
    return is_text(source) || source->class == H5T_INTEGER ||
           source->class == H5T_FLOAT || is_bool(source);
}

/* The type in memory: texts as they are, numbers in 64 bits. */
static hid_t type_in_memory(const source_t *source)
{
    if (is_text(source)) {
        return source->type;
    }
    if (source->class == H5T_FLOAT) {
        return H5T_NATIVE_DOUBLE;
    }
    return (source->class == H5T_INTEGER &&
            H5Tget_sign(source->type) == H5T_SGN_NONE)
               ? H5T_NATIVE_UINT64
               : H5T_NATIVE_INT64;
}

static bool read_data(source_t *source)
{
    hssize_t num = H5Sget_simple_extent_npoints(source->space);
    hid_t type = type_in_memory(source);

    source->size = H5Tget_size(type);
    if (num < 0 || source->size == 0 ||
        (uint64_t)num > BYTES_MOST / source->size) {
        return false;
    }
    source->data = calloc((size_t)num + 1, source->size);
    if (source->data == NULL) {
        return false;
    }

    return (num == 0) || (source->is_attribute
                              ? H5Aread(source->object, type, source->data)
                              : H5Dread(source->object, type, H5S_ALL, H5S_ALL,
                                        H5P_DEFAULT, source->data)) >= 0;
}

/* --- JSON ----------------------------------------------------------------- */

static json_t *json_of_text(const char *text, size_t size)
{
    json_t *json = json_stringn(text, size);
    char *hex;

    if (json != NULL) {
        return json;
    }

    hex = calloc(2, size + 1); /* it is no UTF-8 */
    for (size_t i = 0; hex != NULL && i < size; i++) {
        snprintf(hex + 2 * i, 3, "%02x", (unsigned char)text[i]);
    }
    json = json_pack("{ss}", "$bytes_hex", (hex != NULL) ? hex : "");
    free(hex);
    return json;
}

static json_t *json_of_float(double value)
{
    return isfinite(value) ? json_real(value)
                           : json_pack("{ss}", "$float",
                                       isnan(value)  ? "nan"
                                       : (value > 0) ? "inf"
                                                     : "-inf");
}

static json_t *json_of_fixed(const source_t *source, const char *text)
{
    size_t size = strnlen(text, source->size);

    while (H5Tget_strpad(source->type) == H5T_STR_SPACEPAD && size > 0 &&
           text[size - 1] == ' ') {
        size--;
    }

    return json_of_text(text, size);
}

static json_t *json_of_unsigned(uint64_t value)
{
    char text[32];

    if (value <= INT64_MAX) {
        return json_integer((json_int_t)value);
    }
    snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    return json_pack("{ss}", "$int", text);
}

static json_t *json_of_element(const source_t *source, size_t index)
{
    const char *at = source->data + index * source->size;
    const char *text;
    uint64_t word;
    double real;

    if (is_text(source)) {
        if (H5Tis_variable_str(source->type) <= 0) {
            return json_of_fixed(source, at);
        }
        memcpy(&text, at, sizeof(text));
        return (text != NULL) ? json_of_text(text, strlen(text))
                              : json_string("");
    }

    memcpy(&word, at, sizeof(word));
    memcpy(&real, at, sizeof(real));
    if (source->class == H5T_FLOAT) {
        return json_of_float(real);
    }
    if (is_bool(source)) {
        return json_boolean(word != 0);
    }
    return (H5Tget_sign(source->type) == H5T_SGN_NONE)
               ? json_of_unsigned(word)
               : json_integer((json_int_t)word);
}

/* Lists of lists, by dimension @a d; *index_p is the next element. */
static json_t *json_of(const source_t *source, int d, size_t *index_p)
{
    json_t *list;

    if (d == source->ndim) {
        return json_of_element(source, (*index_p)++);
    }

    list = json_array();
    for (hsize_t i = 0; i < source->dims[d]; i++) {
        if (json_array_append_new(list, json_of(source, d + 1, index_p)) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* --- Values --------------------------------------------------------------- */

static fsdp_status_t add(catalog_t *cat, source_t *source, const char *name,
                         fsdp_error_t *err)
{
    fsdp_status_t status;
    json_t *json = NULL;
    char *text = NULL;
    size_t index = 0;

    if (!read_data(source)) {
        return hdf5_error(err, FSDP_ERR_CORRUPT, cat->path,
                          "%.150s cannot be read, or is longer than %u bytes",
                          name, BYTES_MOST);
    }

    json = json_of(source, 0, &index);
    text = (json != NULL) ? value_text(json) : NULL;
    status = (text != NULL) ? catalog_add_value(cat, name, text, err)
                            : fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                                             "%s: no memory", cat->path);
    if (is_text(source) && H5Tis_variable_str(source->type) > 0) {
        H5Dvlen_reclaim(source->type, source->space, H5P_DEFAULT, source->data);
    }
    json_decref(json);
    free(text);
    return status;
}

bool hdf5_is_text(hid_t dataset)
{
    source_t source;
    bool is = source_open(&source, dataset, false) && is_text(&source);

    source_close(&source);
    return is;
}

fsdp_status_t hdf5_value_add(catalog_t *cat, hid_t dataset, const char *link,
                             fsdp_error_t *err)
{
    source_t source;
    fsdp_status_t status = source_open(&source, dataset, false)
                               ? add(cat, &source, link, err)
                               : hdf5_error(err, FSDP_ERR_CORRUPT, cat->path,
                                            "/%.150s has no shape", link);

    source_close(&source);
    return status;
}

typedef struct {
    catalog_t *cat;
    const char *link;
    fsdp_status_t status;
    fsdp_error_t *err;
} adding_t;

static herr_t add_attribute(hid_t object, const char *name,
                            const H5A_info_t *info, void *arg)
{
    adding_t *adding = arg;
    char *path = io_path("%s@%s", adding->link, name);
    hid_t attribute = H5Aopen(object, name, H5P_DEFAULT);
    source_t source = {.type = H5I_INVALID_HID, .space = H5I_INVALID_HID};

    (void)info;
    if (path == NULL || attribute < 0) {
        adding->status =
            hdf5_error(adding->err, FSDP_ERR_CORRUPT, adding->cat->path,
                       "cannot open attribute %.150s", name);
    } else if (source_open(&source, attribute, true) && is_known(&source)) {
        adding->status = add(adding->cat, &source, path, adding->err);
    }
    source_close(&source);
    if (attribute >= 0) {
        H5Aclose(attribute);
    }
    free(path);
    return (adding->status == FSDP_OK) ? 0 : 1;
}

fsdp_status_t hdf5_value_add_attributes(catalog_t *cat, hid_t object,
                                        const char *link, fsdp_error_t *err)
{
    adding_t adding = {.cat = cat, .link = link, .err = err};

    if (H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_NATIVE, NULL, add_attribute,
                    &adding) < 0) {
        return hdf5_error(err, FSDP_ERR_CORRUPT, cat->path,
                          "cannot list the attributes of /%.150s", link);
    }

    return adding.status;
}
