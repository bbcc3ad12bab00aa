/*
 * Compare a checkpoint with a manifest that tells the truth about it.
 */
#include "config.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/catalog.h"
#include "ckpt/ranks.h"
#include "ckpt/save_message.h"
#include "ckpt/tensor_hash.h"
#include "ckpt/value.h"
#include "lib/util/check.h"
#include "lib/util/clock.h"
#include "lib/util/io.h"
#include "lib/util/size.h"

#define MOST_BYTES  (4ull << 30) /* of a manifest */
#define NOTED_NAMES 3
#define SHORT_VALUE 100

typedef struct {
    const char *name;
    const json_t *json;
    uint64_t tensor; /* of the checkpoint; UINT64_MAX: missing */
} claim_t;

typedef struct {
    const fsdp_ckpt_manifest_config_t *config;
    fsdp_ckpt_t *ckpt;
    fsdp_ckpt_info_t info;
    json_t *manifest, *tensors, *aliases, *values;
    claim_t *claims; /* sorted by name */
    size_t num;
    bool *claimed;         /* one a tensor of the checkpoint */
    tensor_hash_t *hashes; /* one a tensor of the checkpoint */
    ranks_t ranks;
    bool *mine;     /* tensors that this rank hashes; NULL: all */
    buffer_t found; /* by a rank that tells it the first one */
    bool stopped;
    fsdp_ckpt_manifest_result_t result;
} check_t;

/* --- Telling -------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void find(check_t *check,
                                                       const char *fmt, ...)
{
    char *text = NULL;
    const char *told;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vasprintf(&text, fmt, ap);
    va_end(ap);
    told = (n < 0) ? "a finding" : text;

    if (check->ranks.rank > 0) {
        buffer_add(&check->found, told, strlen(told) + 1);
    } else {
        check->result.findings++;
        check->stopped = check->stopped ||
                         (check->config->finding != NULL &&
                          !check->config->finding(told, check->config->arg));
    }
    free((n < 0) ? NULL : text);
}

__attribute__((format(printf, 2, 3))) static void note(check_t *check,
                                                       const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vasprintf(&text, fmt, ap);
    va_end(ap);

    if (n >= 0 && !check->stopped && check->config->note != NULL) {
        check->stopped = !check->config->note(text, check->config->arg);
    }
    free((n < 0) ? NULL : text);
}

static bool on_damage(const fsdp_error_t *why, void *arg)
{
    check_t *check = arg;

    find(check, "%s", why->text);
    return !check->stopped;
}

/* --- The manifest --------------------------------------------------------- */

static fsdp_status_t bad_manifest(const check_t *check, const char *what,
                                  const char *name, fsdp_error_t *err)
{
    return fsdp_error_set(
        err, FSDP_ERR_CORRUPT, "%s: %s%s%.100s", check->config->manifest, what,
        (name != NULL) ? " " : "", (name != NULL) ? name : "");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const claim_t *)a)->name, ((const claim_t *)b)->name);
}

/* What one entry says must be there, so that later looks need no checks. */
static bool is_tensor_entry(const json_t *entry)
{
    const json_t *shape = json_object_get(entry, "shape"), *dim;
    size_t i;

    if (!json_is_array(shape) ||
        !json_is_string(json_object_get(entry, "dtype")) ||
        !json_is_string(json_object_get(entry, "sha256"))) {
        return false;
    }
    json_array_foreach(shape, i, dim)
    {
        if (!json_is_integer(dim) || json_integer_value(dim) < 0) {
            return false;
        }
    }

    return true;
}

static fsdp_status_t take_tensors(check_t *check, fsdp_error_t *err)
{
    size_t num = json_array_size(check->tensors), i;
    const json_t *entry;

    check->claims = calloc(num + 1, sizeof(*check->claims));
    if (check->claims == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              check->config->manifest);
    }

    json_array_foreach(check->tensors, i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));

        if (name == NULL || !is_tensor_entry(entry)) {
            return bad_manifest(check,
                                "a tensor without name, shape, dtype or sha256",
                                name, err);
        }
        check->claims[i] = (claim_t){name, entry, UINT64_MAX};
    }
    check->num = num;
    qsort(check->claims, num, sizeof(*check->claims), by_name);
    for (i = 1; i < num; i++) {
        if (by_name(&check->claims[i - 1], &check->claims[i]) == 0) {
            return bad_manifest(check, "two tensors of the name",
                                check->claims[i].name, err);
        }
    }

    return FSDP_OK;
}

static fsdp_status_t read_manifest(check_t *check, fsdp_error_t *err)
{
    const char *path = check->config->manifest;
    fsdp_status_t status;
    size_t size;
    char *text;

    FSDP_TRY(io_read_file(path, MOST_BYTES, &text, &size, err));
    status = value_parse(path, text, size, &check->manifest, err);
    free(text);
    FSDP_TRY(status);

    check->tensors = json_object_get(check->manifest, "tensors");
    check->aliases = json_object_get(check->manifest, "aliases");
    check->values = json_object_get(check->manifest, "values");
    if (!json_is_array(check->tensors)) {
        return bad_manifest(check, "no list of tensors: not a manifest", NULL,
                            err);
    }
    check->result.tensors = json_array_size(check->tensors);
    check->result.aliases = json_object_size(check->aliases);
    check->result.values = json_object_size(check->values);

    return take_tensors(check, err);
}

/* --- Finding tensors ------------------------------------------------------ */

/* The tensor that the manifest calls @a name: a checkpoint with kinds has it
 * under "model/". */
static bool find_tensor(const check_t *check, const char *name,
                        uint64_t *tensor_p)
{
    bool found = fsdp_ckpt_find(check->ckpt, name, tensor_p);
    char *kind;

    if (!found) {
        kind = io_path("model/%s", name);
        found = kind != NULL && fsdp_ckpt_find(check->ckpt, kind, tensor_p);
        free(kind);
    }

    return found;
}

/* The name that owns the storage of @a name, by the manifest. */
static const char *owner_of(const check_t *check, const char *name)
{
    size_t most = json_object_size(check->aliases);
    const char *owner;

    while (most-- > 0 && (owner = json_string_value(
                              json_object_get(check->aliases, name))) != NULL) {
        name = owner;
    }

    return name;
}

static void resolve(check_t *check)
{
    bool may_drop =
        json_is_true(json_object_get(check->manifest, "tied_dropped_ok"));

    for (size_t i = 0; i < check->num; i++) {
        claim_t *claim = &check->claims[i];
        bool found = find_tensor(check, claim->name, &claim->tensor);

        for (size_t k = 0; !found && may_drop && k < check->num; k++) {
            const char *tied = check->claims[k].name;

            found = strcmp(owner_of(check, tied),
                           owner_of(check, claim->name)) == 0 &&
                    find_tensor(check, tied, &claim->tensor);
        }
        if (!found) {
            claim->tensor = UINT64_MAX;
            find(check, "%s: missing", claim->name);
        } else {
            check->claimed[claim->tensor] = true;
        }
    }
}

/* --- Shape, type and bytes ------------------------------------------------ */

/* Types as PyTorch names them. */
static bool parse_dtype(const char *text, fsdp_dtype_t *dtype_p)
{
    static const struct {
        const char *name;
        fsdp_dtype_t dtype;
    } names[] = {
        {"float32",          FSDP_DTYPE_F32        },
        {"bfloat16",         FSDP_DTYPE_BF16       },
        {"float16",          FSDP_DTYPE_F16        },
        {"float64",          FSDP_DTYPE_F64        },
        {"int8",             FSDP_DTYPE_I8         },
        {"int16",            FSDP_DTYPE_I16        },
        {"int32",            FSDP_DTYPE_I32        },
        {"int64",            FSDP_DTYPE_I64        },
        {"uint8",            FSDP_DTYPE_U8         },
        {"uint16",           FSDP_DTYPE_U16        },
        {"uint32",           FSDP_DTYPE_U32        },
        {"uint64",           FSDP_DTYPE_U64        },
        {"bool",             FSDP_DTYPE_BOOL       },
        {"complex64",        FSDP_DTYPE_C64        },
        {"complex128",       FSDP_DTYPE_C128       },
        {"float8_e4m3fn",    FSDP_DTYPE_F8_E4M3    },
        {"float8_e5m2",      FSDP_DTYPE_F8_E5M2    },
        {"float8_e8m0fnu",   FSDP_DTYPE_F8_E8M0    },
        {"float8_e4m3fnuz",  FSDP_DTYPE_F8_E4M3FNUZ},
        {"float8_e5m2fnuz",  FSDP_DTYPE_F8_E5M2FNUZ},
        {"float4_e2m1fn_x2", FSDP_DTYPE_F4         },
    };

    if (strncmp(text, "torch.", 6) == 0) {
        text += 6;
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        if (strcmp(text, names[i].name) == 0) {
            *dtype_p = names[i].dtype;
            return true;
        }
    }

    return fsdp_dtype_parse(text, dtype_p);
}

/* PyTorch counts pairs of the elements of a type that ends in "_x2". */
static uint64_t dim_of(const json_t *shape, size_t d, bool is_pair)
{
    uint64_t dim = (uint64_t)json_integer_value(json_array_get(shape, d));

    return (is_pair && d + 1 == json_array_size(shape)) ? 2 * dim : dim;
}

static bool same_shape(const json_t *shape, bool is_pair,
                       const fsdp_ckpt_tensor_t *tensor)
{
    if (json_array_size(shape) != tensor->ndim) {
        return false;
    }
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        if (dim_of(shape, d, is_pair) != tensor->dims[d]) {
            return false;
        }
    }

    return true;
}

static bool same_hash(const check_t *check, const json_t *entry,
                      uint64_t tensor)
{
    char text[2 * TENSOR_HASH_SIZE + 1];

    tensor_hash_text(&check->hashes[tensor], text);
    return strcasecmp(json_string_value(json_object_get(entry, "sha256")),
                      text) == 0;
}

/* What is wrong with a tensor; @return false if anything is.
 * @param why  Text of it; empty if its bytes could not be read, which has been
 *             told. */
static bool is_as_claimed(const check_t *check, const json_t *entry,
                          uint64_t index, char *why, size_t size)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *shape = json_object_get(entry, "shape");
    size_t length = strlen(dtype);
    bool is_pair = length > 3 && strcmp(dtype + length - 3, "_x2") == 0;
    fsdp_ckpt_tensor_t tensor;
    fsdp_dtype_t want;
    char dims[700];
    char *text;

    fsdp_ckpt_get_tensor(check->ckpt, index, &tensor);
    why[0] = '\0';
    if (!parse_dtype(dtype, &want) || want != tensor.dtype) {
        snprintf(why, size, "is %s, not %s", fsdp_dtype_name(tensor.dtype),
                 dtype);
        return false;
    }
    if (!same_shape(shape, is_pair, &tensor)) {
        text = value_text(shape);
        size_shape(tensor.ndim, tensor.dims, dims, sizeof(dims));
        snprintf(why, size, "has shape %s, not %s", dims,
                 (text != NULL) ? text : "that");
        free(text);
        return false;
    }
    if (!check->hashes[index].known) {
        return false;
    }
    if (!same_hash(check, entry, index)) {
        snprintf(why, size, "its values are others (SHA-256)");
        return false;
    }

    return true;
}

static void compare_tensors(check_t *check)
{
    char why[1000];

    for (size_t i = 0; i < check->num && !check->stopped; i++) {
        const claim_t *claim = &check->claims[i];

        if (claim->tensor != UINT64_MAX &&
            !is_as_claimed(check, claim->json, claim->tensor, why,
                           sizeof(why)) &&
            why[0] != '\0') {
            find(check, "%s: %s", claim->name, why);
        }
    }
}

/* --- Aliases -------------------------------------------------------------- */

static void compare_aliases(check_t *check)
{
    /* Many formats do not say what is tied, nor does what was made of them. */
    bool kept = check->info.num_aliases > 0;
    const json_t *value;
    const char *name;
    uint64_t apart = 0;

    json_object_foreach(check->aliases, name, value)
    {
        const char *owner = owner_of(check, name);
        uint64_t a, b;

        if (!find_tensor(check, name, &a) || !find_tensor(check, owner, &b) ||
            a == b) {
            continue; /* what is missing has been told */
        }
        if (kept) {
            find(check, "%s: is not the same tensor as %s", name, owner);
        } else {
            apart++;
        }
    }
    if (apart > 0) {
        note(check,
             "%" PRIu64 " of %" PRIu64
             " aliases are tensors of their own here: it does not say "
             "what is tied",
             apart, check->result.aliases);
    }
}

/* Names that are one tensor here and not so in the manifest. */
static void find_extra_aliases(check_t *check)
{
    const char **owners =
        calloc((size_t)check->info.num_tensors + 1, sizeof(*owners));

    for (size_t i = 0; owners != NULL && i < check->num; i++) {
        const claim_t *claim = &check->claims[i];
        const char *owner = owner_of(check, claim->name);

        if (claim->tensor == UINT64_MAX) {
            continue;
        }
        if (owners[claim->tensor] == NULL) {
            owners[claim->tensor] = owner;
        } else if (strcmp(owners[claim->tensor], owner) != 0) {
            find(check, "%s: is the same tensor as %s here", claim->name,
                 owners[claim->tensor]);
        }
    }
    free(owners);
}

/* --- Values --------------------------------------------------------------- */

/* Does the value that the checkpoint calls @a name hold @a rest of a path?
 * Keys may have dots: each prefix of the rest is tried. */
static json_t *descend(json_t *value, const char *rest)
{
    json_t *tuple = json_object_get(value, "$tuple"), *found = NULL;
    size_t size = strlen(rest);

    if (size == 0) {
        return value;
    }
    value = (tuple != NULL) ? tuple : value;
    if (json_is_array(value)) {
        char *end;
        unsigned long long i = strtoull(rest, &end, 10);

        return (end != rest && (*end == '.' || *end == '\0'))
                   ? descend(json_array_get(value, (size_t)i),
                             end + (*end == '.'))
                   : NULL;
    }

    for (size_t used = size; used > 0 && found == NULL; used--) {
        if (used == size || rest[used] == '.') {
            char *key = strndup(rest, used);
            json_t *inner = (key != NULL) ? json_object_get(value, key) : NULL;

            free(key);
            found = (inner != NULL)
                        ? descend(inner, rest + used + (used < size))
                        : NULL;
        }
    }

    return found;
}

/* The checkpoint's value at a path: it may be kept whole under a shorter one.
 * @return NULL: none; else it is to be released. */
static json_t *value_at(const check_t *check, const char *path)
{
    size_t size = strlen(path);
    char *prefix = strdup(path);
    json_t *found = NULL;

    for (size_t used = size; prefix != NULL && used > 0 && found == NULL;
         used--) {
        const char *json;
        json_t *value;
        uint64_t index;

        if (used < size && path[used] != '.') {
            continue;
        }
        prefix[used] = '\0';
        if (fsdp_ckpt_find_value(check->ckpt, prefix, &index)) {
            fsdp_ckpt_get_value(check->ckpt, index, NULL, &json);
            if (value_parse(path, json, strlen(json), &value, NULL) ==
                FSDP_OK) {
                found =
                    json_incref(descend(value, path + used + (used < size)));
                json_decref(value);
            }
        }
    }
    free(prefix);

    return found;
}

/* @a a from the manifest, @a b from the checkpoint. */
static bool same_tensor(const json_t *a, const json_t *b, void *arg)
{
    check_t *check = arg;
    uint64_t tensor;
    char why[1000];

    if (!is_tensor_entry(a) || !json_is_string(b) ||
        !find_tensor(check, json_string_value(b), &tensor)) {
        return false;
    }
    check->claimed[tensor] = true;

    return is_as_claimed(check, a, tensor, why, sizeof(why));
}

static void compare_value(check_t *check, const char *path, const json_t *want);

/* A container of the manifest whose members the checkpoint keeps one by one. */
static bool compare_members(check_t *check, const char *path,
                            const json_t *want)
{
    const json_t *member;
    uint64_t tensor;
    const char *key;
    char *inner;
    size_t i;

    if (json_is_object(want) && json_object_size(want) > 0 &&
        json_object_get(want, "$tensor") == NULL) {
        json_object_foreach((json_t *)want, key, member)
        {
            if (key[0] == '$') {
                return false;
            }
        }
        json_object_foreach((json_t *)want, key, member)
        {
            inner = io_path("%s.%s", path, key);
            if (inner != NULL) {
                compare_value(check, inner, member);
            }
            free(inner);
        }
        return true;
    }
    if (json_is_array(want) && json_array_size(want) > 0) {
        json_array_foreach(want, i, member)
        {
            inner = io_path("%s.%zu", path, i);
            if (inner != NULL) {
                compare_value(check, inner, member);
            }
            free(inner);
        }
        return true;
    }

    member = json_object_get(want, "$tensor");
    if (member != NULL && find_tensor(check, path, &tensor)) {
        json_t *name = json_string(path);

        if (name != NULL && !same_tensor(member, name, check)) {
            find(check, "%s: the tensor of that name is another", path);
        }
        json_decref(name);
        return true;
    }

    return false;
}

static char *short_text(const json_t *value)
{
    char *text = value_text(value);

    if (text != NULL && strlen(text) > SHORT_VALUE) {
        strcpy(text + SHORT_VALUE - 3, "...");
    }
    return text;
}

static void compare_value(check_t *check, const char *path, const json_t *want)
{
    json_t *have = value_at(check, path);
    char *left, *right;

    if (have == NULL) {
        if (!compare_members(check, path, want)) {
            left = short_text(want);
            find(check, "%s: the value %s is missing", path,
                 (left != NULL) ? left : "");
            free(left);
        }
        return;
    }
    if (!value_equal(want, have, same_tensor, check)) {
        left = short_text(have);
        right = short_text(want);
        find(check, "%s: is %s, not %s", path, (left != NULL) ? left : "other",
             (right != NULL) ? right : "that");
        free(left);
        free(right);
    }
    json_decref(have);
}

static void compare_values(check_t *check)
{
    const json_t *value;
    const char *name;

    json_object_foreach(check->values, name, value)
    {
        if (!check->stopped) {
            compare_value(check, name, value);
        }
    }
}

/* --- What is there besides ------------------------------------------------ */

/* Is there a listed name that begins with @a prefix? */
static bool any_begins(const check_t *check, const char *prefix, size_t size)
{
    size_t lo = 0, hi = check->num;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (strncmp(check->claims[mid].name, prefix, size) < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }

    return lo < check->num &&
           strncmp(check->claims[lo].name, prefix, size) == 0;
}

/* Whether tensors of this name's kind, its first component, are listed: then
 * all should be. */
static bool kind_is_claimed(const check_t *check, const char *name)
{
    size_t size = strcspn(name, "./");
    char *kind = strndup(name, size + 1);
    bool claimed = kind == NULL || name[size] == '\0';

    for (const char *end = "./"; *end != '\0' && !claimed; end++) {
        kind[size] = *end;
        claimed = any_begins(check, kind, size + 1);
    }
    free(kind);
    return claimed;
}

static void find_extra(check_t *check)
{
    char names[400] = "";
    uint64_t num = 0;
    size_t used = 0;

    for (uint64_t t = 0; t < check->info.num_tensors; t++) {
        fsdp_ckpt_tensor_t tensor;

        if (check->claimed[t]) {
            continue;
        }
        fsdp_ckpt_get_tensor(check->ckpt, t, &tensor);
        if (kind_is_claimed(check, tensor.name)) {
            find(check, "%s: is not in the manifest", tensor.name);
            continue;
        }
        if (num++ < NOTED_NAMES && used < sizeof(names)) {
            used +=
                (size_t)snprintf(names + used, sizeof(names) - used, "%s%.100s",
                                 (num > 1) ? ", " : "", tensor.name);
        }
    }
    if (num > 0) {
        note(check,
             "%" PRIu64
             " tensors are of a kind that the manifest says nothing of: %s%s",
             num, names, (num > NOTED_NAMES) ? ", ..." : "");
    }
}

/* --- Ranks ---------------------------------------------------------------- */

/* What a rank tells: this, its hashes with their tensors, NO_TENSOR, and what
 * it found, texts with their '\0'. */
typedef struct {
    uint64_t tensors, bytes; /* of the checkpoint: all ranks see the same */
    uint64_t read;
} head_t;

#define NO_TENSOR UINT64_MAX

static fsdp_status_t choose_mine(check_t *check, fsdp_error_t *err)
{
    uint64_t num = check->info.num_tensors, before = 0, bytes;
    fsdp_ckpt_tensor_t tensor;

    check->mine = calloc((size_t)num + 1, sizeof(*check->mine));
    if (check->mine == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              check->info.path);
    }

    for (uint64_t t = 0; t < num; t++) {
        fsdp_ckpt_get_tensor(check->ckpt, t, &tensor);
        check->mine[t] =
            ranks_is_mine(&check->ranks, before, check->info.bytes);
        if (dtype_bytes(tensor.dtype, tensor.numel, &bytes)) {
            before += bytes;
        }
    }
    return FSDP_OK;
}

static fsdp_status_t take_part(uint32_t rank, const char *text, size_t size,
                               void *arg, fsdp_error_t *err)
{
    check_t *check = arg;
    cursor_t cursor = {text, size};
    uint64_t tensor = 0;
    head_t head;

    if (!message_take(&cursor, &head, sizeof(head)) ||
        head.tensors != check->info.num_tensors ||
        head.bytes != check->info.bytes) {
        return ranks_differ(check->config->manifest, rank, err);
    }

    check->result.bytes += head.read;
    for (;;) {
        if (!message_take(&cursor, &tensor, sizeof(tensor)) ||
            tensor == NO_TENSOR) {
            break;
        }
        if (tensor >= head.tensors ||
            !message_take(&cursor, &check->hashes[tensor],
                          sizeof(*check->hashes))) {
            return ranks_differ(check->config->manifest, rank, err);
        }
    }
    for (size_t at = 0; check->ckpt != NULL && at < cursor.left;
         at += strlen(cursor.next + at) + 1) {
        find(check, "%s", cursor.next + at);
    }
    return FSDP_OK;
}

/* The first rank has the hashes of all then. */
static fsdp_status_t share(check_t *check, fsdp_error_t *err)
{
    const head_t head = {.tensors = check->info.num_tensors,
                         .bytes = check->info.bytes,
                         .read = check->result.bytes};
    const uint64_t none = NO_TENSOR;
    buffer_t message = {0};

    if (check->ranks.commit == NULL) {
        return FSDP_OK;
    }

    buffer_add(&message, &head, sizeof(head));
    for (uint64_t t = 0; t < head.tensors; t++) {
        if (check->mine[t]) {
            buffer_add(&message, &t, sizeof(t));
            buffer_add(&message, &check->hashes[t], sizeof(*check->hashes));
        }
    }
    buffer_add(&message, &none, sizeof(none));
    buffer_add(&message, check->found.data, check->found.size);
    message.failed = message.failed || check->found.failed;
    return ranks_gather(&check->ranks, &message, take_part, check, err);
}

/* --- The call ------------------------------------------------------------- */

static fsdp_status_t hash(check_t *check, fsdp_error_t *err)
{
    fsdp_ckpt_engine_t engine = check->config->engine;

    if (check->ranks.commit != NULL) {
        engine.progress = ranks_progress;
        engine.progress_arg = &check->ranks;
        check->ranks.total = check->info.bytes;
        FSDP_TRY(choose_mine(check, err));
    }
    FSDP_TRY(tensor_hash_all(check->ckpt, &engine, check->mine, on_damage,
                             check, check->hashes, &check->result.bytes, err));
    return share(check, err);
}

static fsdp_status_t compare(check_t *check, fsdp_error_t *err)
{
    size_t num;

    fsdp_ckpt_get_info(check->ckpt, &check->info);
    num = (size_t)check->info.num_tensors;
    check->claimed = calloc(num + 1, sizeof(*check->claimed));
    check->hashes = calloc(num + 1, sizeof(*check->hashes));
    if (check->claimed == NULL || check->hashes == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              check->info.path);
    }

    FSDP_TRY(hash(check, err));
    if (check->ranks.rank > 0) {
        return FSDP_OK;
    }
    resolve(check);
    compare_tensors(check);
    compare_aliases(check);
    find_extra_aliases(check);
    compare_values(check);
    find_extra(check);

    return check->stopped ? fsdp_error_set(err, FSDP_ERR_CANCELLED,
                                           "the check was stopped")
                          : FSDP_OK;
}

/* Open; damage is a finding. */
static fsdp_status_t open_checkpoint(check_t *check, const char *path,
                                     fsdp_error_t *err)
{
    fsdp_ckpt_open_config_t open = FSDP_CKPT_OPEN_INIT;
    fsdp_error_t why = {0};
    fsdp_status_t status;

    open.recipe = check->config->recipe;
    if (open.recipe == NULL &&
        json_is_object(json_object_get(check->manifest, "flat_recipe"))) {
        open.recipe = check->config->manifest;
    }
    status = fsdp_ckpt_open_with(path, &open, &check->ckpt, &why);
    if (status == FSDP_ERR_CORRUPT) {
        find(check, "%s", why.text);
        return FSDP_OK;
    }
    if (status != FSDP_OK && err != NULL) {
        *err = why;
    }

    return status;
}

static fsdp_status_t run(check_t *check, const char *path, fsdp_error_t *err)
{
    FSDP_TRY(read_manifest(check, err));
    FSDP_TRY(open_checkpoint(check, path, err));

    return (check->ckpt != NULL) ? compare(check, err) : share(check, err);
}

fsdp_status_t fsdp_ckpt_check_manifest(
    const char *path, const fsdp_ckpt_manifest_config_t *config,
    fsdp_ckpt_manifest_result_t *result_p, fsdp_error_t *err)
{
    check_t check = {.config = config};
    double began = clock_now();
    fsdp_status_t status;

    if (config->size != sizeof(*config) || config->manifest == NULL) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "a check against a manifest needs one");
    }

    FSDP_TRY(ranks_meet(&check.ranks, config->ranks, &config->engine, err));
    status = run(&check, path, err);
    status = ranks_end(&check.ranks, status, &check.result.findings, err);
    if (status == FSDP_OK) {
        check.result.seconds = clock_now() - began;
        *result_p = check.result;
    }
    fsdp_ckpt_close(check.ckpt);
    json_decref(check.manifest);
    free(check.claims);
    free(check.claimed);
    free(check.hashes);
    free(check.mine);
    buffer_free(&check.found);
    return status;
}
