/*
 * ckpt-damage - damage a checkpoint of any format in every place, and look
 *
 *     ckpt-damage [-m MOST] [-r RECIPE] [-s STEP] CHECKPOINT SCRATCH
 *
 * SCRATCH is a copy of CHECKPOINT.  Each of its files is removed, cut short at
 * each boundary of its structure and beside it, and has a bit changed in each
 * region between two boundaries; what describes the data, in each few bytes of
 * it.  Each time a process of its own opens SCRATCH, reads all of it and
 * verifies it.  It must end soon, need little memory, and either fail or find
 * what CHECKPOINT holds.  Only where no checksum covers the byte may it find
 * other values; then verifying must say that bytes are unchecked.
 *
 * -m: at most so many places, evenly chosen.  -s: so many bytes between two
 * changes where no data is, instead of 16.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/format.h"
#include "ckpt/tensor_hash.h"
#include "lib/util/io.h"

#if defined(FSDP_SANITIZED)
enum { MOST_KIB = 1 << 20, MOST_SECONDS = 60 };
#else
enum { MOST_KIB = 160 << 10, MOST_SECONDS = 20 };
#endif

#define FILE_MOST (1u << 30)

/* What a look found; shared with the process that looks. */
typedef struct {
    bool done;
    fsdp_status_t status; /* of opening and reading */
    unsigned char sha256[EVP_MAX_MD_SIZE];
    fsdp_status_t verify;
    uint64_t findings, unchecked;
    fsdp_error_t err;
    char finding[256];
} seen_t;

/* A file of the checkpoint. */
typedef struct {
    char *path; /* below the checkpoint; "" if that is one file */
    char *data;
    size_t size;
    bool sealed;     /* no byte may change unnoticed */
    uint64_t *marks; /* sorted */
    size_t num_marks, max_marks;
    unsigned char *kinds; /* a byte each: NOTHING … */
} file_t;

enum { NOTHING, DATA, CHECKED };

typedef enum { REMOVE, CUT, FLIP } how_t;

typedef struct {
    how_t how;
    uint32_t file;
    uint64_t at;
} place_t;

static const char *source, *scratch, *recipe;
static file_t *files;
static uint32_t num_files;
static place_t *places;
static size_t num_places, max_places;
static seen_t *seen, want;
static unsigned long step = 16, failures, errors, same, others;

static void die(const char *what)
{
    fprintf(stderr, "ckpt-damage: %s: %s\n", what, strerror(errno));
    exit(2);
}

static void *grow(void *array, size_t num, size_t *max, size_t size)
{
    if (num == *max) {
        *max = 2 * *max + 64;
        array = reallocarray(array, *max, size);
        if (array == NULL) {
            die("memory");
        }
    }
    return array;
}

/* --- What a checkpoint holds ---------------------------------------------- */

static void add_text(EVP_MD_CTX *ctx, const char *text)
{
    EVP_DigestUpdate(ctx, text, strlen(text) + 1);
}

static void add_tensor(EVP_MD_CTX *ctx, const fsdp_ckpt_t *ckpt, uint64_t t,
                       const tensor_hash_t *hash)
{
    fsdp_ckpt_tensor_t tensor;
    uint64_t shape[2];

    fsdp_ckpt_get_tensor(ckpt, t, &tensor);
    shape[0] = tensor.dtype;
    shape[1] = tensor.ndim;
    add_text(ctx, tensor.name);
    EVP_DigestUpdate(ctx, shape, sizeof(shape));
    EVP_DigestUpdate(ctx, tensor.dims, tensor.ndim * sizeof(*tensor.dims));
    EVP_DigestUpdate(ctx, hash->sha256, sizeof(hash->sha256));
}

static void add_rest(EVP_MD_CTX *ctx, const fsdp_ckpt_t *ckpt)
{
    fsdp_ckpt_info_t info;
    const char *name, *json;
    uint64_t tensor;

    fsdp_ckpt_get_info(ckpt, &info);
    for (uint64_t a = 0; a < info.num_aliases; a++) {
        fsdp_ckpt_get_alias(ckpt, a, &name, &tensor);
        add_text(ctx, name);
        EVP_DigestUpdate(ctx, &tensor, sizeof(tensor));
    }
    for (uint64_t v = 0; v < info.num_values; v++) {
        fsdp_ckpt_get_value(ckpt, v, &name, &json);
        add_text(ctx, name);
        add_text(ctx, json);
    }
    EVP_DigestUpdate(ctx, &info.step, sizeof(info.step));
    add_text(ctx, info.meta_json);
}

static bool on_damage(const fsdp_error_t *why, void *arg)
{
    *(fsdp_error_t *)arg = *why;
    return false;
}

static fsdp_status_t hash_all(fsdp_ckpt_t *ckpt,
                              const fsdp_ckpt_engine_t *engine)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    fsdp_ckpt_info_t info;
    tensor_hash_t *hashes;
    fsdp_error_t why = {0};
    fsdp_status_t status;
    uint64_t bytes = 0;

    fsdp_ckpt_get_info(ckpt, &info);
    hashes = calloc(info.num_tensors + 1, sizeof(*hashes));
    if (ctx == NULL || hashes == NULL ||
        EVP_DigestInit(ctx, EVP_sha256()) == 0) {
        die("memory");
    }
    status = tensor_hash_all(ckpt, engine, NULL, on_damage, &why, hashes,
                             &bytes, &seen->err);
    if (status == FSDP_ERR_CANCELLED) {
        seen->err = why;
        status = why.status;
    }
    if (status == FSDP_OK) {
        for (uint64_t t = 0; t < info.num_tensors; t++) {
            add_tensor(ctx, ckpt, t, &hashes[t]);
        }
        add_rest(ctx, ckpt);
        EVP_DigestFinal(ctx, seen->sha256, NULL);
    }
    free(hashes);
    EVP_MD_CTX_free(ctx);
    return status;
}

static bool on_finding(const char *text, void *arg)
{
    (void)arg;
    if (seen->finding[0] == '\0') {
        snprintf(seen->finding, sizeof(seen->finding), "%s", text);
    }
    return true;
}

static void look_at(const char *path)
{
    const fsdp_ckpt_engine_t engine = {.max_mem = 8 << 20, .jobs = 1};
    fsdp_ckpt_open_config_t config = FSDP_CKPT_OPEN_INIT;
    fsdp_ckpt_verify_result_t result = {0};
    fsdp_ckpt_t *ckpt;

    config.recipe = recipe;
    seen->status = fsdp_ckpt_open_with(path, &config, &ckpt, &seen->err);
    if (seen->status == FSDP_OK) {
        seen->status = hash_all(ckpt, &engine);
        fsdp_ckpt_close(ckpt);
    }
    seen->verify = fsdp_ckpt_verify(path, recipe, &engine, NULL, on_finding,
                                    NULL, &result, NULL);
    seen->findings = result.findings;
    seen->unchecked = result.unchecked;
    seen->done = true;
}

/* In a process of its own.  @return NULL, or what it died of. */
static const char *look(const char *path)
{
    static char text[80];
    struct rusage usage;
    int status;
    pid_t pid;

    fflush(NULL);
    memset(seen, 0, sizeof(*seen));
    pid = fork();
    if (pid < 0) {
        die("fork");
    }
    if (pid == 0) {
        alarm(MOST_SECONDS);
        look_at(path);
        exit(0);
    }
    if (wait4(pid, &status, 0, &usage) != pid) {
        die("wait");
    }
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) {
        return "it does not end";
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || !seen->done) {
        snprintf(text, sizeof(text), "it died: status %#x", (unsigned)status);
        return text;
    }
    if (usage.ru_maxrss > MOST_KIB) {
        snprintf(text, sizeof(text), "it took %ld KiB", usage.ru_maxrss);
        return text;
    }
    return NULL;
}

/* --- Where its files can be damaged --------------------------------------- */

static int on_file(const char *path, const struct stat *st, int type,
                   struct FTW *ftw)
{
    static size_t max_files;
    size_t num = num_files;
    file_t *file;

    (void)st;
    (void)ftw;
    if (type != FTW_F) {
        return 0;
    }

    files = grow(files, num, &max_files, sizeof(*files));
    file = &files[num_files++];
    *file = (file_t){0};
    path += strlen(source);
    file->path = strdup(path + strspn(path, "/"));
    return 0;
}

static char *path_of(const char *root, const file_t *file)
{
    char *path = (file->path[0] == '\0') ? io_path("%s", root)
                                         : io_path("%s/%s", root, file->path);

    if (path == NULL) {
        die("memory");
    }
    return path;
}

static void read_file(file_t *file)
{
    char *path = path_of(source, file);

    if (io_read_file(path, FILE_MOST, &file->data, &file->size, NULL) !=
        FSDP_OK) {
        die(path);
    }
    free(path);
    file->sealed = file->size > 4 && memcmp(file->data, "PK\3\4", 4) == 0;
    file->kinds = calloc(file->size + 1, 1);
}

static void mark(file_t *file, uint64_t at)
{
    if (at <= file->size) {
        file->marks = grow(file->marks, file->num_marks, &file->max_marks,
                           sizeof(*file->marks));
        file->marks[file->num_marks++] = at;
    }
}

/* Where structures of the formats begin. */
static void mark_structures(file_t *file)
{
    static const char *const heads[] = {
        "PK\1\2", "PK\3\4", "PK\5\6", "PK\6\6", "PK\6\7", "\200\2",   "\200\4",
        "OHDR",   "OCHK",   "FRHP",   "FHDB",   "FHIB",   "BTHD",     "BTIN",
        "BTLF",   "FSHD",   "FSSE",   "TREE",   "SNOD",   "GCOL",     "HEAP",
        "SMTB",   "SMLI",   "FADB",   "EAHD",   "\"",     "fsdp-h5\n"};
    uint64_t header;

    mark(file, 0);
    mark(file, 8);
    mark(file, 1024); /* llm.c's header */
    mark(file, file->size);
    if (file->size >= 8) {
        memcpy(&header, file->data, sizeof(header)); /* safetensors */
        mark(file, (header < file->size) ? header + 8 : 0);
    }
    for (size_t i = 0; i < sizeof(heads) / sizeof(*heads); i++) {
        const char *at = file->data, *end = at + file->size;
        size_t size = strlen(heads[i]);

        while ((at = memmem(at, (size_t)(end - at), heads[i], size)) != NULL) {
            mark(file, (uint64_t)(at - file->data));
            at += size;
        }
    }
}

static file_t *find_file(const catalog_t *cat, uint32_t number)
{
    char *path = catalog_file_path(cat, number);
    const char *name = path + strlen(source);
    file_t *found = NULL;

    if (files[0].path[0] == '\0') {
        free(path);
        return &files[0]; /* the checkpoint is one file */
    }

    if (strncmp(path, source, strlen(source)) == 0) {
        name += strspn(name, "/");
        for (uint32_t i = 0; i < num_files && found == NULL; i++) {
            found = (strcmp(files[i].path, name) == 0) ? &files[i] : NULL;
        }
    }
    free(path);
    return found;
}

static void mark_range(file_t *file, uint64_t at, uint64_t size,
                       unsigned char kind)
{
    mark(file, at);
    mark(file, at + size);
    for (uint64_t i = 0; i < size && at + i < file->size; i++) {
        if (file->kinds[at + i] < kind) {
            file->kinds[at + i] = kind;
        }
    }
}

/* Pieces, as the catalog has them. */
static void mark_pieces(void)
{
    fsdp_error_t err;
    catalog_t cat;

    catalog_init(&cat);
    cat.recipe = recipe;
    if (format_open(source, &cat, &err) != FSDP_OK) {
        fprintf(stderr, "ckpt-damage: %s\n", err.text);
        exit(2);
    }
    for (uint64_t p = 0; p < cat.num_pieces; p++) {
        const catalog_piece_t *piece = &cat.pieces[p];
        file_t *file = find_file(&cat, piece->file);

        if (file != NULL) {
            mark_range(file, piece->offset, catalog_piece_bytes(&cat, piece),
                       (piece->crc_first != CATALOG_NONE) ? CHECKED : DATA);
        }
    }
    for (uint64_t s = 0; s < cat.num_spans; s++) {
        file_t *file = find_file(&cat, cat.spans[s].file);

        if (file != NULL) {
            mark_range(file, cat.spans[s].offset, cat.spans[s].bytes, CHECKED);
        }
    }
    for (uint32_t f = 0; f < cat.num_files; f++) {
        file_t *file = find_file(&cat, f);

        if (file != NULL) {
            file->sealed |= cat.files[f].has_crc || cat.files[f].checked > 0;
        }
    }
    for (uint32_t i = 0; i < num_files; i++) {
        files[i].sealed |= cat.format == FSDP_CKPT_HDF5;
    }
    catalog_free(&cat);
}

static int by_value(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

    return (left > right) - (left < right);
}

static void add_place(how_t how, uint32_t file, uint64_t at)
{
    places = grow(places, num_places, &max_places, sizeof(*places));
    places[num_places++] = (place_t){how, file, at};
}

static void add_places(uint32_t number)
{
    file_t *file = &files[number];
    size_t num = 0;

    qsort(file->marks, file->num_marks, sizeof(*file->marks), by_value);
    for (size_t i = 0; i < file->num_marks; i++) {
        if (num == 0 || file->marks[num - 1] != file->marks[i]) {
            file->marks[num++] = file->marks[i];
        }
    }

    add_place(REMOVE, number, 0);
    for (size_t i = 0; i + 1 < num; i++) {
        uint64_t at = file->marks[i], next = file->marks[i + 1];
        bool data = file->kinds[at] != NOTHING;

        add_place(CUT, number, at);
        add_place(CUT, number, next - 1);
        add_place(FLIP, number, at);
        add_place(FLIP, number, next - 1);
        for (at += data ? (next - at) / 2 : 1; at < next; at += step) {
            add_place(FLIP, number, at);
            if (data) {
                break;
            }
            add_place(CUT, number, at);
        }
    }
}

/* --- Damage --------------------------------------------------------------- */

static void write_file(const file_t *file, const char *data, size_t size)
{
    char *path = path_of(scratch, file);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);

    if (fd < 0 || io_pwrite(fd, data, size, 0, path, NULL) != FSDP_OK ||
        close(fd) != 0) {
        die(path);
    }
    free(path);
}

static void damage(const place_t *place)
{
    file_t *file = &files[place->file];
    char *path;

    switch (place->how) {
    case REMOVE:
        path = path_of(scratch, file);
        if (unlink(path) != 0) {
            die(path);
        }
        free(path);
        return;
    case CUT:
        write_file(file, file->data, place->at);
        return;
    case FLIP:
        file->data[place->at] ^= (char)(1 << (place->at * 5 % 8));
        write_file(file, file->data, file->size);
        file->data[place->at] ^= (char)(1 << (place->at * 5 % 8));
        return;
    }
}

/* @return what is wrong with what was seen, or NULL. */
static const char *judge(const place_t *place)
{
    const file_t *file = &files[place->file];
    bool may_differ = !file->sealed && file->kinds[place->at] != CHECKED;

    if (seen->status == FSDP_ERR_NO_MEMORY ||
        seen->verify == FSDP_ERR_NO_MEMORY) {
        return "it wants more memory than there is";
    }
    if (seen->status != FSDP_OK) {
        errors++;
        return (seen->verify != FSDP_OK || seen->findings > 0)
                   ? NULL
                   : "it cannot be read, but verifies";
    }
    if (memcmp(seen->sha256, want.sha256, sizeof(want.sha256)) == 0) {
        same++;
        return NULL;
    }
    others++;
    if (!may_differ) {
        return "it holds something else";
    }
    if (seen->verify == FSDP_OK && seen->findings == 0 &&
        seen->unchecked == 0) {
        return "it holds something else, and verifying says that all was "
               "checked";
    }
    return NULL;
}

static void try_place(const place_t *place)
{
    static const char *const hows[] = {"removed", "cut at", "bit changed at"};
    const file_t *file = &files[place->file];
    const char *wrong;

    damage(place);
    wrong = look(scratch);
    write_file(file, file->data, file->size);
    if (wrong == NULL) {
        wrong = judge(place);
    }
    if (wrong != NULL) {
        failures++;
        printf("%s/%s: %s %" PRIu64 ": %s; %s%s%s\n", source, file->path,
               hows[place->how], place->at, wrong, seen->err.text,
               (seen->finding[0] != '\0') ? "; " : "", seen->finding);
    }
}

int main(int argc, char **argv)
{
    size_t most = SIZE_MAX, num;
    int option;

    while ((option = getopt(argc, argv, "m:r:s:")) != -1) {
        switch (option) {
        case 'm':
            most = strtoul(optarg, NULL, 10);
            break;
        case 'r':
            recipe = optarg;
            break;
        case 's':
            step = strtoul(optarg, NULL, 10);
            break;
        default:
            return 2;
        }
    }
    if (argc - optind != 2) {
        fprintf(stderr, "usage: ckpt-damage [-m MOST] [-r RECIPE] [-s STEP] "
                        "CHECKPOINT SCRATCH\n");
        return 2;
    }
    source = argv[optind];
    scratch = argv[optind + 1];

    seen = mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seen == MAP_FAILED || nftw(source, on_file, 16, FTW_PHYS) != 0) {
        die(source);
    }
    if (look(scratch) != NULL || seen->status != FSDP_OK ||
        seen->findings > 0) {
        fprintf(stderr, "ckpt-damage: %s: not whole before: %s%s\n", scratch,
                seen->err.text, seen->finding);
        return 2;
    }
    want = *seen;

    for (uint32_t i = 0; i < num_files; i++) {
        read_file(&files[i]);
        mark_structures(&files[i]);
    }
    mark_pieces();
    for (uint32_t i = 0; i < num_files; i++) {
        add_places(i);
    }
    num = (num_places < most) ? num_places : most;
    for (size_t i = 0; i < num; i++) {
        try_place(&places[i * num_places / num]);
    }

    printf("%s: %zu of %zu places: %lu errors, %lu the same, %lu others, %lu "
           "wrong\n",
           source, num, num_places, errors, same, others, failures);
    return failures > 0;
}
