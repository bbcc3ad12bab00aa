/*
 * Directories of torch.save files: which rank and which part a file is.
 */
#include "config.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/format/safetensors.h"
#include "ckpt/format/torch.h"
#include "lib/util/check.h"
#include "lib/util/dir.h"
#include "lib/util/io.h"
#include "lib/util/text.h"

#define PYTORCH_MODEL "pytorch_model"

enum { MAX_MEMBERS = 1 << 20 };

/* The number that ends at @a end, and where it begins; NULL: there is none. */
static const char *number_before(const char *begin, const char *end,
                                 uint32_t *number_p)
{
    const char *at = end;

    while (at > begin && isdigit((unsigned char)at[-1])) {
        at--;
    }
    if (at == end || end - at > 9) {
        return NULL;
    }
    *number_p = (uint32_t)strtoul(at, NULL, 10);
    return at;
}

static const char *skip_back(const char *begin, const char *end,
                             const char *word)
{
    size_t size = strlen(word);

    return ((size_t)(end - begin) >= size &&
            strncmp(end - size, word, size) == 0)
               ? end - size
               : NULL;
}

/* The separators before @a end. */
static const char *skip_marks(const char *begin, const char *end)
{
    while (end > begin && strchr("_-.", end[-1]) != NULL) {
        end--;
    }
    return end;
}

static bool has_extension(const char *name)
{
    static const char *const known[] = {".pt", ".pth", ".bin", ".pkl", ".ckpt"};
    const char *dot = strrchr(name, '.');

    for (size_t i = 0;
         dot != NULL && dot != name && i < sizeof(known) / sizeof(*known);
         i++) {
        if (strcmp(dot, known[i]) == 0) {
            return true;
        }
    }

    return false;
}

static bool is_torch(const char *dir, const char *name)
{
    char *path = has_extension(name) ? io_path("%s/%s", dir, name) : NULL;
    unsigned char head[16] = {0};
    bool found = path != NULL && io_read_head(path, head, sizeof(head)) > 0 &&
                 torch_file_probe(head);

    free(path);
    return found;
}

/* Is it what accelerate calls such a file, the second one of a kind with _1
 * behind it?  Then it is one, whatever its first bytes have become. */
static bool is_accelerate(const char *name)
{
    static const char *const files[] = {
        PYTORCH_MODEL ".bin", "optimizer.bin",         "scheduler.bin",
        "sampler.bin",        "dl_state_dict.bin",     "scaler.pt",
        "random_states.pkl",  "custom_checkpoint.pkl",
    };
    const char *dot = strrchr(name, '.'), *number;
    uint32_t index;
    size_t size;

    if (dot == NULL) {
        return false;
    }
    number = number_before(name, dot, &index);
    size = (size_t)(((number != NULL) ? skip_marks(name, number) : dot) - name);
    for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
        if (strcspn(files[i], ".") == size &&
            strncmp(files[i], name, size) == 0 &&
            strcmp(files[i] + size, dot) == 0) {
            return true;
        }
    }

    return false;
}

bool torch_dir_probe(const char *path)
{
    DIR *stream = opendir(path);
    const struct dirent *entry;
    bool found = false;

    while (stream != NULL && !found && (entry = readdir(stream)) != NULL) {
        found = is_torch(path, entry->d_name);
    }
    if (stream != NULL) {
        closedir(stream);
    }
    return found;
}

/* Of a name of safetensors, or of an index of some, but not of one of several
 * files.
 * @return its length; 0: it is none. */
static size_t safetensors_stem(const char *name)
{
    unsigned number, total;
    size_t size = strlen(name);

    if (name[0] == '.') {
        return 0;
    }
    if (text_ends_with(name, SAFETENSORS_INDEX)) {
        return size - strlen(SAFETENSORS_INDEX);
    }
    return (text_ends_with(name, SAFETENSORS_END) &&
            safetensors_shard(name, &number, &total) == 0)
               ? size - strlen(SAFETENSORS_END)
               : 0;
}

static int is_model(const struct dirent *entry)
{
    return safetensors_stem(entry->d_name) > 0;
}

bool torch_dir_has_models(const char *path)
{
    return dir_has(path, "optimizer.bin", S_IFREG) &&
           dir_count(path, is_model) > 0;
}

/* NAME[_world_size_W]_rank_R.EXT, random_states_R.EXT, or else the stem.
 * @return where the stem ends. */
static const char *parse_name(const char *name, torch_member_t *member)
{
    const char *end = strrchr(name, '.');
    const char *number = number_before(name, end, &member->rank);
    const char *mark, *world;

    if (number == NULL) {
        member->rank = 0;
        return end;
    }

    mark = skip_back(name, skip_marks(name, number), "rank");
    if (mark == NULL) {
        mark = skip_marks(name, number);
        if (skip_back(name, mark, "random_states") == NULL) {
            member->rank = 0;
            return end;
        }
    }
    member->ranked = member->numbered = true;
    mark = skip_marks(name, mark);
    number = number_before(name, mark, &member->world);
    world = (number != NULL) ? skip_back(name, number, "world_size_") : NULL;
    if (world == NULL) {
        member->world = 0;
        return mark;
    }
    return skip_marks(name, world);
}

/* The shards that transformers makes: pytorch_model-00001-of-00002.bin. */
static bool is_numbered_part(const char *name)
{
    const char *of = strstr(name, "-of-");

    return of != NULL && of > name && isdigit((unsigned char)of[-1]) &&
           isdigit((unsigned char)of[4]);
}

/* Of what accelerate calls pytorch_model or pytorch_model_fsdp, the second of
 * them with _1 behind it; and transformers the parts of one model. */
static char *model_prefix(const char *name, size_t size)
{
    const char *rest = name + strlen(PYTORCH_MODEL), *end = name + size;
    uint32_t number;

    if (is_numbered_part(name)) {
        return strdup("");
    }
    rest += (strncmp(rest, "_fsdp", 5) == 0) ? 5 : 0;
    return (rest[0] == '_' && number_before(rest, end, &number) == rest + 1)
               ? io_path("model%.*s.", (int)(end - rest), rest)
               : strdup("model.");
}

static bool is_member(const char *path, const struct dirent *entry, bool models)
{
    return is_torch(path, entry->d_name) || is_accelerate(entry->d_name) ||
           (models && is_model(entry));
}

static bool add_member(torch_dir_t *dir, const char *name)
{
    size_t size = safetensors_stem(name);
    torch_member_t member = {.name = strdup(name), .safetensors = size > 0};
    torch_member_t *larger =
        realloc(dir->members, (dir->num + 1) * sizeof(*larger));

    if (larger != NULL) {
        dir->members = larger;
    }
    if (!member.safetensors) {
        size = (size_t)(parse_name(name, &member) - name);
    }
    if (strncmp(name, PYTORCH_MODEL, strlen(PYTORCH_MODEL)) == 0) {
        member.prefix = model_prefix(name, size);
    } else {
        member.prefix =
            (size > 0) ? io_path("%.*s.", (int)size, name) : strdup("");
    }
    if (member.name == NULL || member.prefix == NULL || larger == NULL) {
        free(member.name);
        free(member.prefix);
        return false;
    }
    dir->members[dir->num++] = member;
    return true;
}

/* The model first: its names come first, and own what others share. */
static int part_order(const torch_member_t *member)
{
    return (strncmp(member->prefix, "model", 5) == 0)   ? 0
           : (member->prefix[0] == '\0')                ? 1
           : (strncmp(member->prefix, "optim", 5) == 0) ? 2
                                                        : 3;
}

static int by_part(const void *a, const void *b)
{
    const torch_member_t *left = a, *right = b;
    int order = part_order(left) - part_order(right);

    if (order == 0) {
        order = strcmp(left->prefix, right->prefix);
    }
    if (order == 0) {
        order = right->safetensors - left->safetensors;
    }
    if (order == 0) {
        order = (left->rank > right->rank) - (left->rank < right->rank);
    }
    return (order != 0) ? order : strcmp(left->name, right->name);
}

static void member_free(torch_member_t *member)
{
    free(member->name);
    free(member->prefix);
}

/* Of a part that is there in two forms accelerate takes the safetensors, and
 * one file before an index. */
static void drop_others(torch_dir_t *dir)
{
    const torch_member_t *last = NULL;
    uint32_t num = 0;

    for (uint32_t i = 0; i < dir->num; i++) {
        torch_member_t *member = &dir->members[i];

        if (last != NULL && last->safetensors &&
            strcmp(last->prefix, member->prefix) == 0) {
            member_free(member);
            continue;
        }
        dir->members[num] = *member;
        last = &dir->members[num++];
    }
    dir->num = num;
}

void torch_dir_free(torch_dir_t *dir)
{
    for (uint32_t i = 0; i < dir->num; i++) {
        member_free(&dir->members[i]);
    }
    free(dir->members);
    *dir = (torch_dir_t){0};
}

/* Ranks from 0 on, each once, as many as the names say. */
static fsdp_status_t check_ranks(const char *path, const torch_dir_t *dir,
                                 fsdp_error_t *err)
{
    uint32_t next = 0;

    for (uint32_t i = 0; i < dir->num; i++) {
        const torch_member_t *member = &dir->members[i];
        bool last = i + 1 == dir->num ||
                    strcmp(member->prefix, dir->members[i + 1].prefix) != 0;

        if (!member->ranked) {
            continue;
        }
        errno = 0;
        if (member->rank != next) {
            return fsdp_error_set(
                err, FSDP_ERR_CORRUPT,
                (member->rank > next)
                    ? "%s: %s is there, but not the file of rank %u: put all "
                      "ranks' files into one directory"
                    : "%s: %s is there, and another file of its rank",
                path, member->name, next);
        }
        next++;
        if (last && member->world != 0 && member->world != next) {
            return fsdp_error_set(err, FSDP_ERR_CORRUPT,
                                  "%s: %s says that there are %u ranks, but "
                                  "the file of rank %u is missing",
                                  path, member->name, member->world, next);
        }
        next = last ? 0 : next;
    }

    return FSDP_OK;
}

/* A single file, or single parts, need no prefix. */
static void name_parts(torch_dir_t *dir)
{
    for (uint32_t i = 0; i < dir->num; i++) {
        torch_member_t *member = &dir->members[i];

        if (dir->num == 1 && !member->numbered) {
            member->prefix[0] = '\0';
        }
    }
}

fsdp_status_t torch_dir_read(const char *path, torch_dir_t *dir,
                             fsdp_error_t *err)
{
    DIR *stream = opendir(path);
    bool models = torch_dir_has_models(path);
    fsdp_status_t status = FSDP_OK;
    const struct dirent *entry;

    *dir = (torch_dir_t){0};
    if (stream == NULL) {
        return fsdp_error_set(err, FSDP_ERR_IO, "%s: cannot read: %m", path);
    }
    while (status == FSDP_OK && (entry = readdir(stream)) != NULL) {
        if (is_member(path, entry, models) &&
            (dir->num == MAX_MEMBERS || !add_member(dir, entry->d_name))) {
            status =
                fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory", path);
        }
    }
    closedir(stream);

    if (status == FSDP_OK && dir->num > 0) {
        qsort(dir->members, dir->num, sizeof(*dir->members), by_part);
        drop_others(dir);
        name_parts(dir);
        status = check_ranks(path, dir, err);
    }
    if (status != FSDP_OK) {
        torch_dir_free(dir);
    }
    return status;
}

/* Is it a file of tensors that the catalog does not have? */
static bool is_beside(const catalog_t *cat, const char *name)
{
    for (uint32_t f = 0; f < cat->num_files; f++) {
        if (strcmp(cat->files[f].path, name) == 0) {
            return false;
        }
    }

    return is_torch(cat->path, name) || is_accelerate(name) ||
           text_ends_with(name, SAFETENSORS_END);
}

fsdp_status_t torch_dir_note(catalog_t *cat, fsdp_error_t *err)
{
    bool mixed =
        cat->format == FSDP_CKPT_SAFETENSORS ||
        (cat->format == FSDP_CKPT_TORCH && torch_dir_has_models(cat->path));
    DIR *stream = mixed ? opendir(cat->path) : NULL;
    char name[sizeof(((struct dirent *)NULL)->d_name)] = "";
    const struct dirent *entry;
    unsigned more = 0;

    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        if (!is_beside(cat, entry->d_name)) {
            continue;
        }
        more += name[0] != '\0';
        if (name[0] == '\0' || strcmp(entry->d_name, name) < 0) {
            snprintf(name, sizeof(name), "%s", entry->d_name);
        }
    }
    if (stream != NULL) {
        closedir(stream);
    }

    if (name[0] == '\0') {
        return FSDP_OK;
    }
    return (more == 0)
               ? catalog_add_note(cat, err,
                                  "%s: %s is not read with the safetensors: "
                                  "name that file to read it",
                                  cat->path, name)
               : catalog_add_note(cat, err,
                                  "%s: %s and %u more are not read with the "
                                  "safetensors: name such a file to read it",
                                  cat->path, name, more);
}
