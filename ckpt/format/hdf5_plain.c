/*
 * One HDF5 file of plain datasets: ours, or any other.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/format.h"
#include "ckpt/format/hdf5_apart.h"
#include "ckpt/format/hdf5_layout.h"
#include "ckpt/format/hdf5_name.h"
#include "ckpt/format/hdf5_trailer.h"
#include "ckpt/format/hdf5_util.h"
#include "ckpt/format/hdf5_value.h"
#include "ckpt/format/hdf5_write.h"
#include "ckpt/format/manifest.h"
#include "ckpt/value.h"
#include "lib/util/check.h"
#include "lib/util/io.h"
#include "lib/util/map.h"
#include "lib/util/text.h"

static const unsigned char signature[8] = "\x89HDF\r\n\x1a\n";

/* HDF5's signature lies at 0 or behind a user block of 512, 1024, … bytes. */
static bool probe(const format_look_t *look)
{
    unsigned char head[8];
    bool found = memcmp(look->head, signature, 8) == 0;
    int fd;

    if (look->is_dir || found) {
        return found && !look->is_dir;
    }

    if (io_open(look->path, O_RDONLY, 0, &fd, NULL) != FSDP_OK) {
        return false;
    }
    for (uint64_t at = 512; !found && at <= 65536 && at + 8 <= look->size;
         at *= 2) {
        found = io_pread(fd, head, 8, at, look->path, NULL) == FSDP_OK &&
                memcmp(head, signature, 8) == 0;
    }
    close(fd);

    return found;
}

/*
 * Reading.
 */

typedef struct {
    char *path; /* links, without a leading slash */
    char *name;
    char *unit;       /* or NULL */
    uint64_t rank;    /* in the writer's order */
    uint64_t address; /* of its header: links to one dataset have the same */
    hdf5_layout_t layout;
    uint64_t dims[FSDP_CKPT_MAX_NDIM];
    uint32_t ndim;
    fsdp_dtype_t dtype;
} found_t;

/* Another name of what may be a dataset. */
typedef struct {
    char *path;
    uint64_t address;
} name_t;

typedef struct {
    const char *path;
    catalog_t *cat; /* takes values at once */
    map_t seen;     /* addresses of objects whose attributes it has */
    bool ours;      /* it has our attributes and escapes */
    hdf5_types_t types;
    hdf5_reader_t reader;
    hdf5_trailer_t trailer;
    found_t *found;
    size_t num, max;
    name_t *names;
    size_t num_names, max_names;
    fsdp_status_t status;
    fsdp_error_t *err;
} walk_t;

__attribute__((format(printf, 4, 5))) static fsdp_status_t refuse(
    const walk_t *walk, fsdp_status_t status, const char *link, const char *fmt,
    ...)
{
    char why[200];
    va_list ap;

    va_start(ap, fmt);
    text_message(why, sizeof(why), fmt, ap);
    va_end(ap);

    return fsdp_error_set(walk->err, status, "%s: /%.150s %s", walk->path, link,
                          why);
}

static fsdp_status_t no_memory(const walk_t *walk)
{
    return fsdp_error_set(walk->err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                          walk->path);
}

/* A larger array of records, or NULL; @a *max_p is doubled. */
static void *grow(void *array, size_t *max_p, size_t size)
{
    size_t max = (*max_p > 0) ? 2 * *max_p : 64;
    void *more = realloc(array, max * size);

    if (more != NULL) {
        *max_p = max;
    }

    return more;
}

static fsdp_status_t read_dtype(walk_t *walk, hid_t set, const char *link,
                                found_t *found, uint32_t *swap_p)
{
    hid_t type = H5Dget_type(set);
    bool known = type >= 0 &&
                 hdf5_types_find_any(&walk->types, type, &found->dtype, swap_p);
    fsdp_dtype_t raw;
    char *text;

    if (type >= 0) {
        H5Tclose(type);
    }
    if (!known) {
        return refuse(walk, FSDP_ERR_UNSUPPORTED, link,
                      "has elements that are no numbers, booleans or complex "
                      "numbers of a known size");
    }

    if (found->dtype != FSDP_DTYPE_U8) {
        return FSDP_OK;
    }

    if (!hdf5_get_text(set, "dtype", &text)) {
        return refuse(walk, FSDP_ERR_CORRUPT, link,
                      "has an attribute 'dtype' that is no text");
    }
    if (text != NULL && fsdp_dtype_parse(text, &raw) && hdf5_type_is_raw(raw)) {
        found->dtype = raw;
    }
    free(text);

    return FSDP_OK;
}

/* Packed elements are rows of bytes; an attribute has the shape. */
static bool read_packed_shape(hid_t set, found_t *found)
{
    hid_t attr = H5Aopen(set, "shape", H5P_DEFAULT);
    hid_t space = (attr < 0) ? H5I_INVALID_HID : H5Aget_space(attr);
    hssize_t num = (space < 0) ? -1 : H5Sget_simple_extent_npoints(space);
    bool good = num >= 0 && num <= FSDP_CKPT_MAX_NDIM;

    if (good && num > 0) {
        good = H5Aread(attr, H5T_NATIVE_UINT64, found->dims) >= 0;
    }
    found->ndim = good ? (uint32_t)num : 0;
    if (space >= 0) {
        H5Sclose(space);
    }
    if (attr >= 0) {
        H5Aclose(attr);
    }

    return good;
}

/* The shape of the tensor: the dataset's own, unless elements are packed. */
static fsdp_status_t read_shape(walk_t *walk, hid_t set, const char *link,
                                found_t *found)
{
    const hdf5_layout_t *layout = &found->layout;

    if (fsdp_dtype_bits(found->dtype) < 8) {
        return read_packed_shape(set, found)
                   ? FSDP_OK
                   : refuse(walk, FSDP_ERR_CORRUPT, link,
                            "has packed elements and no attribute 'shape'");
    }

    found->ndim = layout->ndim;
    memcpy(found->dims, layout->dims, layout->ndim * sizeof(*layout->dims));
    return FSDP_OK;
}

static void free_found(found_t *found)
{
    free(found->path);
    free(found->name);
    free(found->unit);
    hdf5_layout_free(&found->layout);
}

/* "FILE: /LINK", for messages. */
static void say_where(const walk_t *walk, const char *link, char where[400])
{
    snprintf(where, 400, "%.200s: /%.150s", walk->path, link);
}

static fsdp_status_t read_layout(walk_t *walk, hid_t set, const char *link,
                                 uint32_t swap, found_t *found)
{
    char where[400];

    say_where(walk, link, where);
    return hdf5_layout_read(&walk->reader.frame, set,
                            walk->types.ids[found->dtype], swap, where,
                            &found->layout, walk->err);
}

static fsdp_status_t add_dataset(walk_t *walk, hid_t set, const char *link,
                                 uint64_t address)
{
    found_t found = {.rank = UINT64_MAX, .address = address};
    fsdp_status_t status;
    uint32_t swap;

    FSDP_TRY(read_dtype(walk, set, link, &found, &swap));
    FSDP_TRY_GOTO(read_layout(walk, set, link, swap, &found), err_found);
    FSDP_TRY_GOTO(read_shape(walk, set, link, &found), err_found);

    if (walk->num == walk->max) {
        void *more = grow(walk->found, &walk->max, sizeof(*walk->found));

        if (more == NULL) {
            status = no_memory(walk);
            goto err_found;
        }
        walk->found = more;
    }

    found.path = strdup(link);
    if (walk->ours && (!hdf5_get_text(set, "name", &found.name) ||
                       !hdf5_get_text(set, "unit", &found.unit) ||
                       !hdf5_get_number(set, "order", &found.rank))) {
        status = refuse(walk, FSDP_ERR_CORRUPT, link,
                        "has damaged attributes 'name', 'unit' or 'order'");
        goto err_found;
    }
    if (found.name == NULL) {
        found.name = strdup(link);
    }
    if (found.path == NULL || found.name == NULL) {
        status = no_memory(walk);
        goto err_found;
    }
    if (!hdf5_name_is_utf8(found.name)) {
        status = refuse(walk, FSDP_ERR_UNSUPPORTED, link,
                        "has a name that is not UTF-8");
        goto err_found;
    }

    walk->found[walk->num++] = found;
    return FSDP_OK;

err_found:
    free_found(&found);
    return status;
}

/* Where the header of what a link is lies. */
static uint64_t address_of(const H5L_info_t *info)
{
    uint64_t address = 0;

#if H5_VERSION_GE(1, 12, 0)
    memcpy(&address, &info->u.token, sizeof(address));
#else
    address = info->u.address;
#endif
    return address;
}

static unsigned depth_of(const char *link)
{
    unsigned depth = 0;

    for (; *link != '\0'; link++) {
        depth += *link == '/';
    }

    return depth;
}

static fsdp_status_t too_deep(const walk_t *walk, const char *link)
{
    return refuse(walk, FSDP_ERR_UNSUPPORTED, link,
                  "lies too deep: in %d groups", HDF5_DEPTH_MAX);
}

/* A link that leads nowhere is no tensor, but not forgotten either. */
static fsdp_status_t leave_out(const walk_t *walk, const char *link,
                               const char *target, const char *file)
{
    return catalog_add_note(walk->cat, walk->err,
                            "%s: /%.150s is a link to %.100s%s%.100s, which is "
                            "not there",
                            walk->path, link, target,
                            (*file != '\0') ? " in " : "", file);
}

/* @param path  Taken; NULL: no memory. */
static fsdp_status_t add_name(walk_t *walk, char *path, uint64_t address)
{
    if (path != NULL && walk->num_names == walk->max_names) {
        void *more = grow(walk->names, &walk->max_names, sizeof(*walk->names));

        if (more == NULL) {
            free(path);
            return no_memory(walk);
        }
        walk->names = more;
    }
    if (path == NULL) {
        return no_memory(walk);
    }

    walk->names[walk->num_names++] = (name_t){path, address};
    return FSDP_OK;
}

typedef struct {
    walk_t *walk;
    const char *link;
} below_t;

/* Called for every link below a group that has another name. */
static herr_t visit_below(hid_t group, const char *link, const H5L_info_t *info,
                          void *arg)
{
    const below_t *below = arg;
    walk_t *walk = below->walk;

    (void)group;
    if (depth_of(link) > HDF5_DEPTH_MAX) {
        walk->status = too_deep(walk, link);
    } else if (info->type == H5L_TYPE_HARD) {
        walk->status = add_name(walk, io_path("%s/%s", below->link, link),
                                address_of(info));
    }
    return (walk->status == FSDP_OK) ? 0 : 1;
}

static herr_t refuse_file(const char *parent, const char *group,
                          const char *file, const char *object, unsigned *flags,
                          hid_t fapl, void *arg)
{
    (void)parent;
    (void)group;
    (void)file;
    (void)object;
    (void)flags;
    (void)fapl;
    (void)arg;
    return -1;
}

/* What a soft link leads to.  Other files are not opened.
 * @return false: to nothing. */
static bool follow(hid_t group, const char *link, hid_t lapl,
                   H5O_type_t *type_p, uint64_t *address_p)
{
#if H5_VERSION_GE(1, 12, 0)
    H5O_info2_t info;
    herr_t rc = H5Oget_info_by_name3(group, link, &info, H5O_INFO_BASIC, lapl);

    memcpy(address_p, &info.token, sizeof(*address_p));
#else
    H5O_info_t info;
    herr_t rc = H5Oget_info_by_name2(group, link, &info, H5O_INFO_BASIC, lapl);

    *address_p = info.addr;
#endif
    *type_p = info.type;
    H5Eclear2(H5E_DEFAULT);
    return rc >= 0;
}

static fsdp_status_t add_soft(walk_t *walk, hid_t group, const char *link,
                              size_t size)
{
    below_t below = {walk, link};
    char *target = calloc(1, size + 1);
    hid_t lapl = H5Pcreate(H5P_LINK_ACCESS);
    fsdp_status_t status = FSDP_OK;
    uint64_t address;
    H5O_type_t type;

    if (target == NULL || lapl < 0 ||
        H5Pset_elink_cb(lapl, refuse_file, NULL) < 0 ||
        H5Lget_val(group, link, target, size, H5P_DEFAULT) < 0) {
        status = hdf5_error(walk->err, FSDP_ERR_CORRUPT, walk->path,
                            "cannot read the link /%.150s", link);
    } else if (!follow(group, link, lapl, &type, &address)) {
        status = leave_out(walk, link, target, "");
    } else if (type == H5O_TYPE_DATASET) {
        status = add_name(walk, strdup(link), address);
    } else if (type == H5O_TYPE_GROUP &&
               H5Lvisit_by_name(group, link, H5_INDEX_NAME, H5_ITER_NATIVE,
                                visit_below, &below, lapl) < 0) {
        status = hdf5_error(walk->err, FSDP_ERR_CORRUPT, walk->path,
                            "cannot list what /%.150s leads to", link);
    }
    H5Pclose(lapl);
    free(target);

    return (status == FSDP_OK) ? walk->status : status;
}

/* Whether HDF5 could find a file that a link names. */
static bool is_there(const walk_t *walk, const char *file)
{
    char *path = (file[0] == '/') ? strdup(file)
                                  : io_path("%s/%s", walk->cat->root, file);
    bool there = path == NULL || access(path, F_OK) == 0;

    free(path);
    return there;
}

static fsdp_status_t see_external(walk_t *walk, hid_t group, const char *link,
                                  size_t size)
{
    char *value = calloc(1, size + 1);
    const char *file, *object;
    fsdp_status_t status;

    if (value == NULL ||
        H5Lget_val(group, link, value, size, H5P_DEFAULT) < 0 ||
        H5Lunpack_elink_val(value, size, NULL, &file, &object) < 0) {
        status = hdf5_error(walk->err, FSDP_ERR_CORRUPT, walk->path,
                            "cannot read the link /%.150s", link);
    } else if (is_there(walk, file)) {
        status = refuse(walk, FSDP_ERR_UNSUPPORTED, link,
                        "is a link to %.100s in %.100s, which is not followed: "
                        "name that file, or copy what it holds into this one "
                        "('h5copy -f ext')",
                        object, file);
    } else {
        status = leave_out(walk, link, object, file);
    }
    free(value);

    return status;
}

/* Of an object with several names by the first one. */
static fsdp_status_t add_attributes(walk_t *walk, hid_t object,
                                    const char *link, uint64_t address)
{
    uint64_t there;

    if (map_get(&walk->seen, &address, sizeof(address), &there)) {
        return FSDP_OK;
    }

    return map_put(&walk->seen, &address, sizeof(address), 0)
               ? hdf5_value_add_attributes(walk->cat, object, link, walk->err)
               : no_memory(walk);
}

static fsdp_status_t visit_hard(walk_t *walk, hid_t group, const char *link,
                                uint64_t address)
{
    hid_t object = H5Oopen(group, link, H5P_DEFAULT);
    fsdp_status_t status = FSDP_OK;

    if (object < 0) {
        return hdf5_error(walk->err, FSDP_ERR_CORRUPT, walk->path,
                          "cannot open /%.150s", link);
    }

    if (H5Iget_type(object) == H5I_DATASET) {
        status = hdf5_is_text(object)
                     ? hdf5_value_add(walk->cat, object, link, walk->err)
                     : add_dataset(walk, object, link, address);
    }
    if (status == FSDP_OK && !walk->ours) {
        status = add_attributes(walk, object, link, address);
    }
    H5Oclose(object);

    return status;
}

/* Called for every link below the root; each group is entered once.  HDF5
 * calls itself for a group in a group, and follows each path from the root. */
static herr_t visit(hid_t group, const char *link, const H5L_info_t *info,
                    void *arg)
{
    walk_t *walk = arg;

    if (depth_of(link) > HDF5_DEPTH_MAX) {
        walk->status = too_deep(walk, link);
        return 1;
    }

    switch (info->type) {
    case H5L_TYPE_HARD:
        walk->status = visit_hard(walk, group, link, address_of(info));
        break;
    case H5L_TYPE_SOFT:
        walk->status = add_soft(walk, group, link, info->u.val_size);
        break;
    case H5L_TYPE_EXTERNAL:
        walk->status = see_external(walk, group, link, info->u.val_size);
        break;
    default:
        walk->status = refuse(walk, FSDP_ERR_UNSUPPORTED, link,
                              "is a link of a kind that is not known");
    }

    return (walk->status == FSDP_OK) ? 0 : 1;
}

static fsdp_status_t walk_file(walk_t *walk, hid_t file)
{
    /* Native order: for any other one HDF5 (1.10.8) makes a table first, and
     * crashes over it when a damaged group fails to fill it. */
    herr_t rc = H5Lvisit(file, H5_INDEX_NAME, H5_ITER_NATIVE, visit, walk);

    if (rc < 0) {
        return hdf5_error(walk->err, FSDP_ERR_CORRUPT, walk->path,
                          "cannot list its datasets");
    }

    return walk->status;
}

static int compare_places(const void *a, const void *b)
{
    const found_t *x = a, *y = b;

    if (x->rank != y->rank) {
        return (x->rank > y->rank) - (x->rank < y->rank);
    }
    if (x->layout.offset != y->layout.offset) {
        return (x->layout.offset > y->layout.offset) -
               (x->layout.offset < y->layout.offset);
    }
    if (x->address != y->address) {
        return (x->address > y->address) - (x->address < y->address);
    }

    return strcmp(x->path, y->path);
}

/* Where the data's checksums are, if the file has them. */
static fsdp_status_t find_crcs(const walk_t *walk, const found_t *found,
                               const catalog_t *cat, uint64_t bytes,
                               uint32_t *crc_first_p)
{
    const hdf5_trailer_t *trailer = &walk->trailer;
    const hdf5_trailer_row_t *row =
        hdf5_trailer_find(trailer, found->layout.offset);

    if (trailer->num_crcs == 0) {
        return FSDP_OK;
    }

    if (row == NULL || row->size != bytes ||
        row->crc_first > trailer->num_crcs ||
        catalog_blocks(bytes) > trailer->num_crcs - row->crc_first) {
        return refuse(walk, FSDP_ERR_CORRUPT, found->path,
                      "is not where the file's trailer says");
    }

    *crc_first_p = (uint32_t)(cat->files[0].crc_first + row->crc_first);
    return FSDP_OK;
}

static fsdp_status_t put_tensor(const walk_t *walk, const found_t *found,
                                catalog_t *cat)
{
    fsdp_error_t *err = walk->err;
    uint32_t crc_first = CATALOG_NONE;
    char where[400];
    uint64_t tensor;

    FSDP_TRY(catalog_add_tensor(cat, found->name, found->dtype, found->ndim,
                                found->dims, found->unit, &tensor, err));
    if (fsdp_dtype_bits(found->dtype) < 8 &&
        cat->tensors[tensor].bytes != found->layout.bytes) {
        return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                              "%s: /%.150s has %" PRIu64
                              " bytes, its shape needs %" PRIu64,
                              cat->path, found->path, found->layout.bytes,
                              cat->tensors[tensor].bytes);
    }

    if (found->layout.kind == HDF5_LAYOUT_STRETCH) {
        FSDP_TRY(find_crcs(walk, found, cat, cat->tensors[tensor].bytes,
                           &crc_first));
    }
    say_where(walk, found->path, where);
    return hdf5_layout_put(&found->layout, cat, (uint32_t)tensor, crc_first,
                           where, err);
}

static int compare_addresses(const void *a, const void *b)
{
    const found_t *x = a, *y = b;

    return (x->address != y->address)
               ? (x->address > y->address) - (x->address < y->address)
               : strcmp(x->path, y->path);
}

/* The first dataset at an address or behind it. */
static const found_t *find_address(const walk_t *walk, uint64_t address)
{
    size_t low = 0, high = walk->num;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (walk->found[middle].address < address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }

    return &walk->found[low];
}

static fsdp_status_t put_alias(const walk_t *walk, catalog_t *cat,
                               const char *path, const found_t *owner)
{
    char *name = walk->ours ? hdf5_path_name(path) : strdup(path);
    fsdp_status_t status =
        (name != NULL) ? catalog_add_alias(cat, name, owner->name, walk->err)
                       : no_memory(walk);

    free(name);
    return status;
}

/* Soft links to datasets, and what lies in groups that have other names, are
 * aliases; texts are values, which have one name.  Leaves walk->found sorted
 * by address. */
static fsdp_status_t put_aliases(walk_t *walk, catalog_t *cat)
{
    if (walk->num > 0) {
        qsort(walk->found, walk->num, sizeof(*walk->found), compare_addresses);
    }
    for (size_t i = 0; i < walk->num_names; i++) {
        const name_t *name = &walk->names[i];
        const found_t *owner = find_address(walk, name->address);

        if (owner < walk->found + walk->num &&
            owner->address == name->address) {
            FSDP_TRY(put_alias(walk, cat, name->path, owner));
        }
    }

    return FSDP_OK;
}

/* A dataset with two names: the first is the tensor, the second an alias. */
static fsdp_status_t put_datasets(walk_t *walk, catalog_t *cat)
{
    const found_t *before = NULL;

    if (walk->num > 0) {
        qsort(walk->found, walk->num, sizeof(*walk->found), compare_places);
    }
    for (size_t i = 0; i < walk->num; i++) {
        const found_t *found = &walk->found[i];

        if (before != NULL && found->address == before->address) {
            FSDP_TRY(
                catalog_add_alias(cat, found->path, before->name, walk->err));
            continue;
        }
        FSDP_TRY(put_tensor(walk, found, cat));
        before = found;
    }

    return put_aliases(walk, cat);
}

/* @return false if it is there and no digest. */
static bool read_digest(hid_t file, const char *name, uint64_t word[2],
                        bool *has_p)
{
    char *text;
    bool good = hdf5_get_text(file, name, &text);

    *has_p = manifest_get_digest(text, word);
    good &= *has_p || text == NULL;
    free(text);

    return good;
}

/* The text of the attributes values, values_1, …; the caller frees it; NULL:
 * there are none, or *good_p is false. */
static char *read_values_text(hid_t file, bool *good_p)
{
    char name[32] = "values", *all = NULL, *part, *longer;

    *good_p = true;
    for (unsigned i = 1; *good_p; i++) {
        *good_p = hdf5_get_text(file, name, &part);
        if (!*good_p || part == NULL) {
            break;
        }
        longer = io_path("%s%s", (all != NULL) ? all : "", part);
        *good_p = longer != NULL;
        free(all);
        free(part);
        all = longer;
        snprintf(name, sizeof(name), "values_%u", i);
    }

    return all;
}

static fsdp_status_t read_values(walk_t *walk, hid_t file, catalog_t *cat)
{
    fsdp_status_t status = FSDP_OK;
    json_t *values = NULL;
    bool good;
    char *text = read_values_text(file, &good);

    if (!good) {
        status = refuse(walk, FSDP_ERR_CORRUPT, "", "has damaged values");
    } else if (text != NULL) {
        status =
            value_parse(walk->path, text, strlen(text), &values, walk->err);
    }
    if (status == FSDP_OK) {
        status = value_add_all(cat, values, walk->err);
    }
    json_decref(values);
    free(text);
    return status;
}

/* What our own writer keeps at the root. */
static fsdp_status_t read_ours(walk_t *walk, hid_t file, catalog_t *cat)
{
    uint64_t min_reader = 0, step = UINT64_MAX;
    char *meta;

    if (!hdf5_get_number(file, "min_reader", &min_reader) ||
        !hdf5_get_number(file, "step", &step) ||
        !read_digest(file, "digest_model", cat->digest_model,
                     &cat->has_digest_model) ||
        !read_digest(file, "digest_optim", cat->digest_optim,
                     &cat->has_digest_optim) ||
        !hdf5_get_text(file, "metadata", &meta) || meta == NULL) {
        return refuse(walk, FSDP_ERR_CORRUPT, "", "has damaged attributes");
    }

    cat->step = (step <= INT64_MAX) ? (int64_t)step : -1;
    cat->meta = catalog_strdup(cat, meta);
    free(meta);
    if (cat->meta == NULL) {
        return no_memory(walk);
    }
    if (min_reader > MANIFEST_VERSION) {
        return fsdp_error_set(walk->err, FSDP_ERR_UNSUPPORTED,
                              "%s: wants a reader of version %" PRIu64
                              ", this is %d: use a newer libfsdp",
                              walk->path, min_reader, MANIFEST_VERSION);
    }

    return FSDP_OK;
}

static fsdp_status_t read_source(walk_t *walk, const char *text, catalog_t *cat)
{
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    json_int_t size = -1, mtime = 0;
    const char *path = NULL;
    fsdp_status_t status;
    uint32_t file;

    if (json_unpack(json, "{s:s, s:I, s:I}", "path", &path, "size", &size,
                    "mtime", &mtime) != 0 ||
        size < 0 || *path == '\0') {
        status = refuse(walk, FSDP_ERR_CORRUPT, "",
                        "names a source that makes "
                        "no sense");
    } else {
        status = catalog_add_file(cat, path, (uint64_t)size, &file, walk->err);
    }
    if (status == FSDP_OK) {
        cat->files[file].mtime = mtime;
    }
    json_decref(json);
    return status;
}

/* The files that the file shows, if it does. */
static fsdp_status_t read_sources(walk_t *walk, hid_t file, catalog_t *cat)
{
    uint64_t num = 0;

    if (!hdf5_get_number(file, "virtual", &num)) {
        return refuse(walk, FSDP_ERR_CORRUPT, "", "has damaged attributes");
    }
    for (uint64_t i = 0; i < num; i++) {
        char name[48], *text = NULL;
        fsdp_status_t status;

        snprintf(name, sizeof(name), "source_%" PRIu64, i);
        if (!hdf5_get_text(file, name, &text) || text == NULL) {
            return refuse(walk, FSDP_ERR_CORRUPT, "",
                          "does not name all of its sources");
        }
        status = read_source(walk, text, cat);
        free(text);
        FSDP_TRY(status);
    }

    cat->shows = num > 0;
    return FSDP_OK;
}

static fsdp_status_t read_root(walk_t *walk, hid_t file, catalog_t *cat)
{
    char *format;
    bool part;

    if (!hdf5_get_text(file, "format", &format)) {
        /* Someone else's, which may be anything. */
        format = NULL;
    }
    part = format != NULL && (strcmp(format, "fsdp-index") == 0 ||
                              strcmp(format, "fsdp-shard") == 0);
    walk->ours = format != NULL && strcmp(format, HDF5_PLAIN_FORMAT) == 0;
    free(format);
    if (part) {
        return fsdp_error_set(walk->err, FSDP_ERR_UNSUPPORTED,
                              "%s: one file of a sharded checkpoint: name its "
                              "directory instead",
                              walk->path);
    }

    if (!walk->ours) {
        return hdf5_value_add_attributes(cat, file, "", walk->err);
    }
    FSDP_TRY(read_ours(walk, file, cat));
    FSDP_TRY(read_values(walk, file, cat));
    return read_sources(walk, file, cat);
}

static fsdp_status_t read_locked(void *arg, fsdp_error_t *err)
{
    walk_t *walk = arg;
    fsdp_status_t status;

    walk->err = err;
    FSDP_TRY(hdf5_open(&walk->reader, walk->path, false, err));
    status = hdf5_types_open(&walk->types, err);
    if (status == FSDP_OK) {
        status = read_root(walk, walk->reader.file, walk->cat);
    }
    if (status == FSDP_OK) {
        status = walk_file(walk, walk->reader.file);
    }
    hdf5_types_close(&walk->types);

    return hdf5_close(&walk->reader, status, err);
}

/* Put the file itself into the catalog: its directory, its name, its size. */
static fsdp_status_t add_file(catalog_t *cat, const char *path,
                              fsdp_error_t *err)
{
    uint32_t file;
    struct stat st;
    char *root;

    if (stat(path, &st) != 0) {
        return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot stat: %m", path);
    }

    root = io_parent(path);
    cat->format = FSDP_CKPT_HDF5_FILE;
    cat->path = catalog_strdup(cat, path);
    cat->root = (root != NULL) ? catalog_strdup(cat, root) : NULL;
    free(root);
    if (cat->path == NULL || cat->root == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);
    }

    return catalog_add_file(cat, io_base(path), (uint64_t)st.st_size, &file,
                            err);
}

/* Check what can be checked before HDF5 sees the file. */
static fsdp_status_t read_trailer(walk_t *walk, catalog_t *cat)
{
    catalog_file_t *file = &cat->files[0];
    fsdp_status_t status;
    int fd;

    FSDP_TRY(
        hdf5_trailer_read(walk->path, file->size, &walk->trailer, walk->err));
    if (walk->trailer.num_crcs == 0) {
        return FSDP_OK;
    }

    FSDP_TRY(catalog_add_crcs(cat, 0, walk->trailer.num_crcs, walk->err));
    file->table = walk->trailer.table;
    FSDP_TRY(io_open(walk->path, O_RDONLY, 0, &fd, walk->err));
    status = io_pread(fd, cat->crcs + file->crc_first,
                      file->crc_count * sizeof(*cat->crcs), file->table,
                      walk->path, walk->err);
    close(fd);

    return status;
}

/* The trailer has checksums of HDF5's bytes and of its own rows; a damaged
 * table of blocks is found with the data. */
static void count_checked(const walk_t *walk, catalog_t *cat)
{
    uint64_t data = 0;

    for (uint64_t i = 0; i < walk->trailer.num_rows; i++) {
        data += walk->trailer.rows[i].size;
    }
    if (walk->trailer.rows != NULL) {
        cat->files[0].checked = cat->files[0].size - data;
    }
}

static fsdp_status_t read_file(walk_t *walk, catalog_t *cat)
{
    FSDP_TRY(add_file(cat, walk->path, walk->err));
    FSDP_TRY(read_trailer(walk, cat));
    /* A trailer with its checksums may have been made for anything. */
    FSDP_TRY(hdf5_read_safely(walk->path, read_locked, walk, walk->err));
    FSDP_TRY(put_datasets(walk, cat));
    count_checked(walk, cat);
    return catalog_seal(cat, CATALOG_CHECK_ALL, walk->err);
}

static fsdp_status_t open_checkpoint(const char *path, catalog_t *cat,
                                     fsdp_error_t *err)
{
    walk_t walk = {.path = path, .cat = cat, .err = err};
    fsdp_status_t status = read_file(&walk, cat);

    for (size_t i = 0; i < walk.num; i++) {
        free_found(&walk.found[i]);
    }
    for (size_t i = 0; i < walk.num_names; i++) {
        free(walk.names[i].path);
    }
    free(walk.found);
    free(walk.names);
    free(walk.trailer.rows);
    map_free(&walk.seen);
    return status;
}

const format_t format_hdf5_file = {
    .id = FSDP_CKPT_HDF5_FILE,
    .name = "hdf5-file",
    .what = "an HDF5 file of plain datasets",
    .probe = probe,
    .open = open_checkpoint,
    .has_crcs = true,
    .has_kinds = true,
    .keeps = FSDP_CKPT_KEEPS_STEP | FSDP_CKPT_KEEPS_META,
    .create = hdf5_plain_create,
};
