/*
 * fsdp-ls - show what is in a checkpoint
 */
#include "config.h"

#include <argp.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "bin/progress.h"
#include "bin/stats.h"
#include "bin/table.h"
#include "bin/tool.h"
#include "bin/view.h"
#include "lib/util/check.h"
#include "lib/util/json_text.h"
#include "lib/util/select.h"
#include "lib/util/size.h"
#include "lib/util/slice.h"

#define FDS_OTHER 8 /* that a reader needs beside the shard files */
#define BUFFER    (4u << 20)

typedef struct {
    tool_t tool;
    bool pieces; /* show each */
    bool meta;   /* show the metadata only */
    bool stats;
    unsigned bins;     /* of histograms; 0: none */
    cli_list_t values; /* parts of tensors to show */
    const char *path;
    cli_list_t patterns;
    fsdp_ckpt_open_config_t open;
} settings_t;

static const char doc[] =
    "Show what a checkpoint of any format holds: its tensors, or those whose "
    "name fits a PATTERN.  '*' in a pattern fits '/' and '.' too, and a "
    "parameter's name may be given without \"model/\"; PATTERN[0:10] is the "
    "first ten rows."
    "\vExit status is 0 if all went well, 64 on wrong usage, 65 if there is no "
    "such checkpoint or tensor or it is damaged, 74 if it cannot be read.";

enum { OPTION_STATS = 0x100, OPTION_VALUES, OPTION_HISTOGRAM, OPTION_RECIPE };
enum { BINS = 20, BINS_MOST = 10000, BAR = 40, SHORT_VALUE = 60 };

/* clang-format off */
static const struct argp_option options[] = {
    {"long", 'l', 0, 0,
     "Show each piece: elements, file, offset", 0},
    {"meta", 'm', 0, 0,
     "Show the metadata that the writer kept, and no tensors", 0},
    {"stats", OPTION_STATS, 0, 0,
     "Read the tensors and show min, max, mean, standard deviation, NaN "
     "and Inf", 0},
    {"histogram", OPTION_HISTOGRAM, "BINS", OPTION_ARG_OPTIONAL,
     "Show how the values are spread, in BINS ranges (default 20)", 0},
    {"values", OPTION_VALUES, "PART", 0,
     "Show values: NAME (leading elements) or NAME[2, 0:8]; NAME may be a "
     "pattern (repeatable)", 0},
    {"recipe", OPTION_RECIPE, "FILE", 0,
     "FILE says what the flat parameters of PyTorch's FSDP1 are made of", 0},
    {0}
};
/* clang-format on */

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    settings_t *set = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &set->tool;
        return 0;
    case 'l':
        set->pieces = true;
        return 0;
    case 'm':
        set->meta = true;
        return 0;
    case OPTION_STATS:
        set->stats = true;
        return 0;
    case OPTION_HISTOGRAM:
        set->stats = true;
        set->bins =
            (text == NULL)
                ? BINS
                : (unsigned)cli_parse_count(state, "the number of ranges", text,
                                            1, BINS_MOST);
        return 0;
    case OPTION_RECIPE:
        set->open.recipe = text;
        return 0;
    case OPTION_VALUES:
        cli_list_add(&set->values, text);
        return 0;
    case ARGP_KEY_ARG:
        if (set->path == NULL) {
            set->path = text;
        } else {
            cli_list_add(&set->patterns, text);
        }
        return 0;
    case ARGP_KEY_END:
        set->open.include = set->patterns.items;
        set->open.num_include = set->patterns.num;
        if (set->path == NULL) {
            argp_error(state, "a checkpoint is needed");
        }
        if (set->pieces && set->stats) {
            argp_error(state, "--long and --stats do not go together");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* --- What is shown -------------------------------------------------------- */

/* The tensors that the user means, and what has been found out of them. */
typedef struct {
    const settings_t *set;
    fsdp_ckpt_t *ckpt;
    fsdp_ckpt_info_t info;
    uint64_t *tensors;
    stats_t *stats; /* of each, or NULL */
    uint64_t *bins; /* set->bins of each, or NULL */
    size_t num;
    uint64_t bytes; /* of them */
} list_t;

static fsdp_status_t check_patterns(const list_t *list, fsdp_error_t *err)
{
    const cli_list_t *patterns = &list->set->patterns;

    for (size_t i = 0; i < patterns->num; i++) {
        bool found = false;

        for (uint64_t t = 0; t < list->info.num_tensors && !found; t++) {
            fsdp_ckpt_tensor_t tensor;

            fsdp_ckpt_get_tensor(list->ckpt, t, &tensor);
            found = select_pattern_match(patterns->items[i], tensor.name);
        }
        for (uint64_t v = 0; v < list->info.num_values && !found; v++) {
            const char *name, *json;

            fsdp_ckpt_get_value(list->ckpt, v, &name, &json);
            found = select_pattern_match(patterns->items[i], name);
        }
        if (!found) {
            return tool_no_tensor(list->ckpt, patterns->items[i], err);
        }
    }

    return FSDP_OK;
}

static void choose_tensors(list_t *list)
{
    const select_t select = {.include = list->set->patterns.items,
                             .num_include = list->set->patterns.num};

    list->tensors =
        cli_realloc(NULL, list->info.num_tensors, sizeof(*list->tensors));
    for (uint64_t t = 0; t < list->info.num_tensors; t++) {
        fsdp_ckpt_tensor_t tensor;

        fsdp_ckpt_get_tensor(list->ckpt, t, &tensor);
        if (select_match(&select, tensor.name)) {
            list->tensors[list->num++] = t;
            list->bytes += tensor.bytes;
        }
    }
}

static fsdp_status_t compute_stats(list_t *list, fsdp_error_t *err)
{
    fsdp_ckpt_engine_t engine = list->set->tool.engine;
    uint64_t size = BUFFER, bytes = 0;
    fsdp_status_t status = FSDP_OK;
    void *buffer;

    if (engine.max_mem != 0) {
        engine.max_mem /= 2;
        size = (engine.max_mem < size) ? engine.max_mem : size;
    }
    engine.progress = NULL; /* told here, over all tensors */
    buffer = cli_realloc(NULL, size, 1);
    list->stats = cli_realloc(NULL, list->num, sizeof(*list->stats));
    if (list->set->bins > 0) {
        list->bins =
            cli_realloc(NULL, list->num * list->set->bins, sizeof(*list->bins));
    }
    for (size_t i = 0; i < list->num && status == FSDP_OK; i++) {
        status = stats_compute(list->ckpt, list->tensors[i], &engine, buffer,
                               size, &bytes, &list->stats[i], err);
        if (status == FSDP_OK && list->bins != NULL) {
            status = stats_histogram(list->ckpt, list->tensors[i], &engine,
                                     buffer, size, &bytes, &list->stats[i],
                                     list->bins + i * list->set->bins,
                                     list->set->bins, err);
        }
        if (status == FSDP_OK &&
            !progress_update(bytes, list->bytes * (list->bins ? 2 : 1), NULL)) {
            status = fsdp_error_set(err, FSDP_ERR_CANCELLED, "stopped");
        }
    }
    free(buffer);

    return status;
}

/* HDF5 itself reads nothing, and says nothing, where it cannot open one of the
 * files behind a virtual dataset; our own readers do not go that way. */
static void warn_of_open_files(const list_t *list)
{
    struct rlimit limit;

    if (list->info.format == FSDP_CKPT_HDF5 &&
        getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
        limit.rlim_cur != RLIM_INFINITY &&
        list->info.num_files + FDS_OTHER > limit.rlim_cur) {
        cli_message("warning: %" PRIu64 " files, but only %" PRIu64 " may be "
                    "open: h5py and other HDF5 programs would show zeros "
                    "without an error (raise `ulimit -n`, or consolidate)",
                    list->info.num_files, (uint64_t)limit.rlim_cur);
    }
}

/* --- As text -------------------------------------------------------------- */

static void print_summary(const list_t *list)
{
    const fsdp_ckpt_info_t *info = &list->info;
    char *summary = tool_summary(info), *path = cli_printable(info->path);
    char size[SIZE_TEXT_MAX];

    printf("%s: %s\n", path, summary);
    printf("%" PRIu64 " tensor%s, %s (%" PRIu64 " bytes), %" PRIu64
           " piece%s in "
           "%" PRIu64 " file%s",
           info->num_tensors, cli_s(info->num_tensors),
           size_format(info->bytes, size), info->bytes, info->num_pieces,
           cli_s(info->num_pieces), info->num_files, cli_s(info->num_files));
    if (info->num_aliases > 0) {
        printf(", %" PRIu64 " tied name%s", info->num_aliases,
               cli_s(info->num_aliases));
    }
    if (info->num_values > 0) {
        printf(", %" PRIu64 " value%s", info->num_values,
               cli_s(info->num_values));
    }
    putchar('\n');
    if (list->num < info->num_tensors) {
        printf("%zu tensor%s chosen, %s (%" PRIu64 " bytes)\n", list->num,
               cli_s(list->num), size_format(list->bytes, size), list->bytes);
    }
    free(summary);
    free(path);
}

static void add_tensor_cells(table_t *table, const fsdp_ckpt_tensor_t *tensor)
{
    char *shape = tool_shape(tensor->ndim, tensor->dims);

    table_cell(table, "%s", tensor->name);
    table_cell(table, "%s", fsdp_dtype_name(tensor->dtype));
    table_cell(table, "%s", shape);
    table_cell(table, "%" PRIu64, tensor->bytes);
    free(shape);
}

/* Whether a piece of a chosen tensor is a box. */
static bool has_boxes(const list_t *list)
{
    fsdp_ckpt_tensor_t tensor;
    fsdp_ckpt_piece_t piece;

    for (size_t i = 0; i < list->num; i++) {
        fsdp_ckpt_get_tensor(list->ckpt, list->tensors[i], &tensor);
        for (uint32_t p = 0; p < tensor.num_pieces; p++) {
            fsdp_ckpt_get_piece(list->ckpt, list->tensors[i], p, &piece);
            if (piece.start != NULL) {
                return true;
            }
        }
    }

    return false;
}

/* "[0:2, 4:8]"; nothing for a piece that is a range. */
static void add_box_cell(table_t *table, const fsdp_ckpt_tensor_t *tensor,
                         const fsdp_ckpt_piece_t *piece)
{
    slice_t slice = {.ndim = tensor->ndim};
    char text[SLICE_TEXT_MAX] = "";

    for (uint32_t d = 0; d < tensor->ndim && piece->start != NULL; d++) {
        slice.lo[d] = piece->start[d];
        slice.hi[d] = piece->start[d] + piece->counts[d];
    }
    table_cell(table, "%s",
               (piece->start != NULL) ? slice_format(&slice, text) : text);
}

static void add_piece_rows(const list_t *list, table_t *table, bool boxes,
                           uint64_t t)
{
    fsdp_ckpt_tensor_t tensor;
    fsdp_ckpt_piece_t piece;

    fsdp_ckpt_get_tensor(list->ckpt, t, &tensor);
    add_tensor_cells(table, &tensor);
    for (uint32_t p = 0; p < tensor.num_pieces; p++) {
        fsdp_ckpt_get_piece(list->ckpt, t, p, &piece);
        for (int blank = 0; p > 0 && blank < 4; blank++) {
            table_cell(table, "%s", "");
        }
        if (boxes) {
            add_box_cell(table, &tensor, &piece);
        }
        table_cell(table, "%" PRIu64, piece.first);
        table_cell(table, "%" PRIu64, piece.count);
        table_cell(table, "%s", piece.file);
        table_cell(table, "%" PRIu64, piece.offset);
        table_row_end(table);
    }
    table_row_end(table);
}

static void add_stats_row(const list_t *list, table_t *table, size_t i)
{
    const stats_t *stats = &list->stats[i];
    fsdp_ckpt_tensor_t tensor;

    fsdp_ckpt_get_tensor(list->ckpt, list->tensors[i], &tensor);
    add_tensor_cells(table, &tensor);
    if (stats->finite > 0) {
        table_cell(table, "%.6g", stats->min);
        table_cell(table, "%.6g", stats->max);
        table_cell(table, "%.6g", stats->mean);
        table_cell(table, "%.6g", stats->std);
    } else {
        for (int blank = 0; blank < 4; blank++) {
            table_cell(table, "-");
        }
    }
    table_cell(table, "%" PRIu64, stats->nans);
    table_cell(table, "%" PRIu64, stats->infs);
}

static void print_tensors(const list_t *list)
{
    static const table_column_t pieces[] = {
        {"TENSOR", false},
        {"DTYPE",  false},
        {"SHAPE",  false},
        {"BYTES",  true },
        {"FIRST",  true },
        {"COUNT",  true },
        {"FILE",   false},
        {"OFFSET", true },
    };
    static const table_column_t with_boxes[] = {
        {"TENSOR", false},
        {"DTYPE",  false},
        {"SHAPE",  false},
        {"BYTES",  true },
        {"BOX",    false},
        {"FIRST",  true },
        {"COUNT",  true },
        {"FILE",   false},
        {"OFFSET", true },
    };
    static const table_column_t stats[] = {
        {"TENSOR", false},
        {"DTYPE",  false},
        {"SHAPE",  false},
        {"BYTES",  true },
        {"MIN",    true },
        {"MAX",    true },
        {"MEAN",   true },
        {"STD",    true },
        {"NAN",    true },
        {"INF",    true },
    };
    static const table_column_t plain[] = {
        {"TENSOR", false},
        {"DTYPE",  false},
        {"SHAPE",  false},
        {"BYTES",  true },
        {"PIECES", true },
    };
    const settings_t *set = list->set;
    bool boxes = set->pieces && has_boxes(list);
    table_t *table = boxes         ? table_create(with_boxes, 9)
                     : set->pieces ? table_create(pieces, 8)
                     : set->stats  ? table_create(stats, 10)
                                   : table_create(plain, 5);

    for (size_t i = 0; i < list->num; i++) {
        fsdp_ckpt_tensor_t tensor;

        if (set->pieces) {
            add_piece_rows(list, table, boxes, list->tensors[i]);
        } else if (set->stats) {
            add_stats_row(list, table, i);
        } else {
            fsdp_ckpt_get_tensor(list->ckpt, list->tensors[i], &tensor);
            add_tensor_cells(table, &tensor);
            table_cell(table, "%" PRIu32, tensor.num_pieces);
        }
    }
    putchar('\n');
    table_print(table, stdout);
    table_destroy(table);
}

/* Tied names, of the chosen tensors. */
static void print_aliases(const list_t *list)
{
    for (uint64_t a = 0; a < list->info.num_aliases; a++) {
        fsdp_ckpt_tensor_t owner;
        const char *name;
        uint64_t tensor;

        fsdp_ckpt_get_alias(list->ckpt, a, &name, &tensor);
        fsdp_ckpt_get_tensor(list->ckpt, tensor, &owner);
        for (size_t i = 0; i < list->num; i++) {
            if (list->tensors[i] == tensor) {
                char *clean = cli_printable(name);
                char *clean_owner = cli_printable(owner.name);

                printf("%s is tied to %s\n", clean, clean_owner);
                free(clean);
                free(clean_owner);
            }
        }
    }
}

/* Whether a value is shown: without patterns all are. */
static bool is_chosen(const list_t *list, const char *name)
{
    const select_t select = {.include = list->set->patterns.items,
                             .num_include = list->set->patterns.num};

    return select_match(&select, name);
}

/* What is no tensor; the beginning of long ones. */
static void print_values(const list_t *list)
{
    static const table_column_t columns[] = {
        {"VALUE", false},
        {"IS",    false},
    };
    table_t *table = table_create(columns, 2);
    bool any = false;

    for (uint64_t v = 0; v < list->info.num_values; v++) {
        const char *name, *json;
        size_t size;

        fsdp_ckpt_get_value(list->ckpt, v, &name, &json);
        if (!is_chosen(list, name)) {
            continue;
        }
        size = strlen(json);
        if (size > SHORT_VALUE) {
            size = SHORT_VALUE - 3;
            while (size > 0 && (json[size] & 0xc0) == 0x80) {
                size--;
            }
        }
        table_cell(table, "%s", name);
        table_cell(table, "%.*s%s", (int)size, json,
                   (json[size] != '\0') ? "..." : "");
        any = true;
    }
    if (any) {
        putchar('\n');
        table_print(table, stdout);
    }
    table_destroy(table);
}

static void print_histogram(const list_t *list, size_t i)
{
    static const table_column_t columns[] = {
        {"FROM",  true },
        {"TO",    true },
        {"COUNT", true },
        {"",      false},
    };
    const stats_t *stats = &list->stats[i];
    const uint64_t *bins = list->bins + i * list->set->bins;
    unsigned num = list->set->bins;
    table_t *table = table_create(columns, 4);
    char bar[BAR + 1];
    uint64_t most = 1;

    memset(bar, '#', BAR);
    bar[BAR] = '\0';
    for (unsigned b = 0; b < num; b++) {
        most = (bins[b] > most) ? bins[b] : most;
    }
    for (unsigned b = 0; b < num; b++) {
        double lo = (double)b / num, hi = (double)(b + 1) / num;

        table_cell(table, "%.6g", stats->min * (1 - lo) + stats->max * lo);
        table_cell(table, "%.6g", stats->min * (1 - hi) + stats->max * hi);
        table_cell(table, "%" PRIu64, bins[b]);
        table_cell(table, "%.*s",
                   (int)((double)bins[b] / (double)most * BAR + 0.5), bar);
    }
    table_print(table, stdout);
    table_destroy(table);
}

static void print_histograms(const list_t *list)
{
    for (size_t i = 0; list->bins != NULL && i < list->num; i++) {
        fsdp_ckpt_tensor_t tensor;
        char *name;

        fsdp_ckpt_get_tensor(list->ckpt, list->tensors[i], &tensor);
        if (list->stats[i].finite > 0) {
            name = cli_printable(tensor.name);
            printf("\n%s\n", name);
            free(name);
            print_histogram(list, i);
        }
    }
}

/* --- As JSON -------------------------------------------------------------- */

static json_t *json_count(uint64_t number)
{
    return json_integer((json_int_t)number);
}

static json_t *json_counts(const uint64_t *numbers, uint32_t num)
{
    json_t *all = json_array();

    for (uint32_t i = 0; i < num; i++) {
        cli_json_append(all, json_count(numbers[i]));
    }

    return all;
}

static json_t *json_pieces(const list_t *list, uint64_t t,
                           const fsdp_ckpt_tensor_t *tensor)
{
    json_t *all = json_array();

    for (uint32_t p = 0; p < tensor->num_pieces; p++) {
        json_t *item = json_object();
        fsdp_ckpt_piece_t piece;

        fsdp_ckpt_get_piece(list->ckpt, t, p, &piece);
        cli_json_set(item, "first", json_count(piece.first));
        cli_json_set(item, "count", json_count(piece.count));
        if (piece.start != NULL) {
            cli_json_set(item, "start", json_counts(piece.start, tensor->ndim));
            cli_json_set(item, "shape",
                         json_counts(piece.counts, tensor->ndim));
        }
        cli_json_set(item, "file", cli_json_text(piece.file));
        cli_json_set(item, "offset", json_count(piece.offset));
        if (piece.encoded > 0) {
            cli_json_set(item, "encoded", json_count(piece.encoded));
        }
        cli_json_append(all, item);
    }

    return all;
}

static json_t *json_stats(const stats_t *stats)
{
    json_t *item = json_object();

    cli_json_set(item, "min", cli_json_number(stats->min));
    cli_json_set(item, "max", cli_json_number(stats->max));
    cli_json_set(item, "mean", cli_json_number(stats->mean));
    cli_json_set(item, "std", cli_json_number(stats->std));
    cli_json_set(item, "finite", json_count(stats->finite));
    cli_json_set(item, "nan", json_count(stats->nans));
    cli_json_set(item, "inf", json_count(stats->infs));

    return item;
}

static json_t *json_tensor(const list_t *list, size_t i)
{
    json_t *item = json_object();
    fsdp_ckpt_tensor_t tensor;

    fsdp_ckpt_get_tensor(list->ckpt, list->tensors[i], &tensor);
    cli_json_set(item, "name", cli_json_text(tensor.name));
    cli_json_set(item, "dtype", cli_json_text(fsdp_dtype_name(tensor.dtype)));
    cli_json_set(item, "shape", json_counts(tensor.dims, tensor.ndim));
    cli_json_set(item, "bytes", json_count(tensor.bytes));
    if (tensor.unit != NULL) {
        cli_json_set(item, "unit", cli_json_text(tensor.unit));
    }
    cli_json_set(item, "pieces",
                 list->set->pieces
                     ? json_pieces(list, list->tensors[i], &tensor)
                     : json_count(tensor.num_pieces));
    if (list->stats != NULL) {
        cli_json_set(item, "stats", json_stats(&list->stats[i]));
    }
    if (list->bins != NULL) {
        json_t *bins = json_array();

        for (unsigned b = 0; b < list->set->bins; b++) {
            cli_json_append(bins,
                            json_count(list->bins[i * list->set->bins + b]));
        }
        cli_json_set(item, "histogram", bins);
    }

    return item;
}

static json_t *json_aliases(const list_t *list)
{
    json_t *all = json_object();

    for (uint64_t a = 0; a < list->info.num_aliases; a++) {
        fsdp_ckpt_tensor_t owner;
        const char *name;
        uint64_t tensor;

        fsdp_ckpt_get_alias(list->ckpt, a, &name, &tensor);
        fsdp_ckpt_get_tensor(list->ckpt, tensor, &owner);
        cli_json_set(all, name, cli_json_text(owner.name));
    }

    return all;
}

/* Integers of more than 64 bits are no JSON number here: then the text. */
static json_t *json_values(const list_t *list)
{
    json_t *all = json_object();

    for (uint64_t v = 0; v < list->info.num_values; v++) {
        const char *name, *json;
        json_t *value;

        fsdp_ckpt_get_value(list->ckpt, v, &name, &json);
        if (is_chosen(list, name)) {
            value = json_loads(json, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
            cli_json_set(all, name,
                         (value != NULL) ? value : cli_json_text(json));
        }
    }

    return all;
}

static json_t *json_meta(const list_t *list)
{
    json_t *meta = json_text_parse(list->info.meta_json);

    return (meta != NULL) ? meta : cli_json_text(list->info.meta_json);
}

static void print_json(const list_t *list)
{
    const fsdp_ckpt_info_t *info = &list->info;
    json_t *all = json_object(), *tensors = json_array();

    cli_json_set(all, "path", cli_json_text(info->path));
    cli_json_set(all, "format",
                 cli_json_text(fsdp_ckpt_format_name(info->format)));
    if (info->step >= 0) {
        cli_json_set(all, "step", json_integer(info->step));
    }
    if (info->mesh.world > 0) {
        cli_json_set(all, "world", json_count(info->mesh.world));
        cli_json_set(all, "strategy",
                     cli_json_text(fsdp_strategy_name(info->mesh.strategy)));
        cli_json_set(all, "shard", json_count(info->mesh.shard));
        cli_json_set(all, "replicas", json_count(info->mesh.replicas));
    }
    cli_json_set(all, "num_tensors", json_count(info->num_tensors));
    cli_json_set(all, "num_pieces", json_count(info->num_pieces));
    cli_json_set(all, "num_files", json_count(info->num_files));
    cli_json_set(all, "bytes", json_count(info->bytes));
    for (size_t i = 0; i < list->num; i++) {
        cli_json_append(tensors, json_tensor(list, i));
    }
    cli_json_set(all, "tensors", tensors);
    cli_json_set(all, "aliases", json_aliases(list));
    if (info->num_values > 0) {
        cli_json_set(all, "values", json_values(list));
    }
    cli_json_set(all, "meta", json_meta(list));
    cli_json_print(all);
}

/* --- Steps ---------------------------------------------------------------- */

static fsdp_status_t show_list(list_t *list, fsdp_error_t *err)
{
    const settings_t *set = list->set;
    fsdp_status_t status = FSDP_OK;

    FSDP_TRY(check_patterns(list, err));
    choose_tensors(list);
    if (set->stats) {
        progress_begin("reading", set->tool.quiet, set->tool.progress);
        status = compute_stats(list, err);
        progress_end();
    }
    if (status != FSDP_OK || set->tool.quiet) {
        return status;
    }

    if (set->tool.json) {
        print_json(list);
    } else {
        print_summary(list);
        print_tensors(list);
        print_histograms(list);
        print_aliases(list);
        print_values(list);
    }

    return FSDP_OK;
}

static int list_checkpoint(settings_t *set)
{
    list_t list = {.set = set};
    fsdp_status_t status;
    fsdp_error_t err;

    status = fsdp_ckpt_open_with(set->path, &set->open, &list.ckpt, &err);
    if (status != FSDP_OK) {
        return tool_fail(&set->tool, &err);
    }
    for (size_t i = 0; i < set->patterns.num; i++) {
        set->patterns.items[i] = fsdp_ckpt_get_pattern(list.ckpt, i);
    }

    fsdp_ckpt_get_info(list.ckpt, &list.info);
    warn_of_open_files(&list);
    tool_warn_recipe(list.info.recipe_unused);
    for (uint64_t n = 0; n < list.info.num_notes; n++) {
        cli_message("warning: %s", fsdp_ckpt_get_note(list.ckpt, n));
    }
    if (set->meta) {
        cli_json_print(json_meta(&list));
    } else if (set->values.num > 0) {
        status = view_parts(list.ckpt, &set->values, &set->tool, &err);
    } else {
        status = show_list(&list, &err);
    }
    free(list.tensors);
    free(list.stats);
    free(list.bins);
    fsdp_ckpt_close(list.ckpt);

    return (status == FSDP_OK) ? FSDP_EXIT_DONE : tool_fail(&set->tool, &err);
}

int main(int argc, char **argv)
{
    const struct argp argp = {
        options, parse_option, "CHECKPOINT [PATTERN...]", doc, tool_children, 0,
        0,
    };
    settings_t set = {.open = FSDP_CKPT_OPEN_INIT};
    int code;

    cli_parse("fsdp-ls", &argp, argc, argv, &set);
    code = list_checkpoint(&set);
    free(set.values.items);
    free(set.patterns.items);

    return cli_finish(code);
}
