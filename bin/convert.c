#include "config.h"

#include "bin/convert.h"

#include <argp.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bin/progress.h"
#include "bin/table.h"
#include "bin/tool.h"
#include "lib/util/check.h"
#include "lib/util/json_text.h"
#include "lib/util/select.h"
#include "lib/util/size.h"
#include "lib/util/text.h"

#define WORLD_MOST 1000000
#define FILES_MOST 65536

typedef struct {
    tool_t tool;
    convert_preset_t preset;
    fsdp_ckpt_convert_config_t convert;
    cli_list_t include, exclude, rename, split, rules, values;
    json_t *notes; /* lines that go with the result */
    bool has_format, has_strategy, all, verbose;
    uint32_t world; /* 0: not given */
    fsdp_strategy_t strategy;
    uint32_t shard; /* F of hybrid */
    uint32_t down;  /* ranks of a layout: dp, which is across all of tp; 0 */
    const char *source, *target;
} settings_t;

enum {
    OPTION_ALL = 0x100,
    OPTION_CAST,
    OPTION_FILES,
    OPTION_LAYOUT,
    OPTION_LINK,
    OPTION_ONLY,
    OPTION_ONLY_MODEL,
    OPTION_RECIPE,
    OPTION_RENAME,
    OPTION_RULES,
    OPTION_SET,
    OPTION_SHARD_SIZE,
    OPTION_SPLIT,
    OPTION_STRATEGY,
    OPTION_VIRTUAL
};

/* --- The command line ----------------------------------------------------- */

#define DOC_EXIT                                                              \
    "\vThe target appears under its name when it is complete and on disk; "   \
    "what was there before is never touched.\n\n"                             \
    "Exit status is 0 if all went well, 64 on wrong usage, 65 if the source " \
    "is missing or damaged or a pattern fits nothing in it, 69 if another "   \
    "rank is gone, 74 if the target exists or cannot be written, 78 if the "  \
    "strategy does not fit the number of ranks, 2 on other trouble."

static const char *const docs[] = {
    [CONVERT_ANY] =
        "Write checkpoint SOURCE as TARGET in another format, sharding or "
        "element type." DOC_EXIT,
    [CONVERT_RESHARD] =
        "Write checkpoint SOURCE as TARGET for another number of ranks or "
        "another strategy." DOC_EXIT,
    [CONVERT_CONSOLIDATE] =
        "Write the parameters of checkpoint SOURCE whole, as TARGET: "
        "safetensors, or one HDF5 file." DOC_EXIT,
};

/* One table a group of options; each program has some of them. */
/* clang-format off */
static const struct argp_option options_to[] = {
    {"to", 't', "FORMAT", 0,
     "hdf5 (sharded), hdf5-file, safetensors, dcp, dcp-hf, torch, "
     "universal, llmc (default: by the target's name)", 0},
    {0}
};
static const struct argp_option options_to_whole[] = {
    {"to", 't', "FORMAT", 0,
     "safetensors, hdf5-file, torch, dcp, dcp-hf, universal, llmc "
     "(default: by the target's name)", 0},
    {0}
};
static const struct argp_option options_virtual[] = {
    {"virtual", OPTION_VIRTUAL, 0, 0,
     "Write one HDF5 file that only shows what stays in the source's files, to "
     "any number of ranks", 0},
    {0}
};
static const struct argp_option options_mesh[] = {
    {"world", 'w', "N", 0,
     "For N ranks (default: as the source)", 0},
    {"strategy", OPTION_STRATEGY, "NAME", 0,
     "full, grad-op, hybrid:F, none or chunk (default: as the source; "
     "dcp and dcp-hf are always in chunks)", 0},
    {"files", OPTION_FILES, "N", 0,
     "Write N shard files (default: one a rank, 256 at most)", 0},
    {0}
};
static const struct argp_option options_layout[] = {
    {"layout", OPTION_LAYOUT, "dp=D,tp=T", 0,
     "For D times T ranks in a grid, T of them sharing what --split names "
     "(dcp, dcp-hf)", 0},
    {"split", OPTION_SPLIT, "PATTERN=DIM", 0,
     "Split tensors whose name fits along DIM for the tp ranks of --layout "
     "(repeatable, the first that fits counts)", 0},
    {0}
};
static const struct argp_option options_size[] = {
    {"shard-size", OPTION_SHARD_SIZE, "SIZE", 0,
     "Begin another safetensors file when one would be larger than SIZE "
     "(default: one file)", 0},
    {0}
};
static const struct argp_option options_model[] = {
    {"only", OPTION_ONLY, "KIND", 0,
     "model: leave out optimizer state, names lose \"model/\"; optim: leave "
     "out all else", 0},
    {"only-model", OPTION_ONLY_MODEL, 0, OPTION_HIDDEN, 0, 0},
    {0}
};
static const struct argp_option options_all[] = {
    {"all", OPTION_ALL, 0, 0,
     "Keep optimizer state, and names as they are", 0},
    {0}
};
static const struct argp_option options_names[] = {
    {"include", 'i', "PATTERN", 0,
     "Only tensors whose name fits; PATTERN[0:10]: of these the first ten rows "
     "(repeatable)", 0},
    {"exclude", 'x', "PATTERN", 0,
     "Leave out tensors whose name fits (repeatable)", 0},
    {"rules", OPTION_RULES, "SET", 0,
     "Apply rules to names and shapes first: a file, or a set that "
     "\"--rules list\" lists (repeatable, in order)", 0},
    {"set", OPTION_SET, "NAME=VALUE", 0,
     "Give a value that the source lacks (repeatable)", 0},
    {"rename", OPTION_RENAME, "FROM=TO", 0,
     "Change a name, or with * at the end of both a prefix (repeatable, "
     "in order)", 0},
    {"cast", OPTION_CAST, "DTYPE", 0,
     "Convert floating-point tensors to f32, bf16, f16 or f64", 0},
    {"recipe", OPTION_RECIPE, "FILE", 0,
     "FILE says what the flat parameters of PyTorch's FSDP1 are made of", 0},
    {"link", OPTION_LINK, 0, 0,
     "Share with the source, instead of writing, what goes unchanged into the "
     "target, where the file system has reflinks", 0},
    {"dry-run", 'n', 0, 0,
     "Plan and report, write nothing", 0},
    {"verbose", 'v', 0, 0,
     "Report more of the plan", 0},
    {0}
};
/* clang-format on */

static void parse_cast(settings_t *set, const char *text,
                       const struct argp_state *state)
{
    fsdp_dtype_t dtype = FSDP_DTYPE_I8;

    if (!fsdp_dtype_parse(text, &dtype) ||
        (dtype != FSDP_DTYPE_F32 && dtype != FSDP_DTYPE_BF16 &&
         dtype != FSDP_DTYPE_F16 && dtype != FSDP_DTYPE_F64)) {
        argp_error(state,
                   "the type to cast to must be f32, bf16, f16 or f64, "
                   "not '%s'",
                   text);
    }
    set->convert.cast = true;
    set->convert.cast_dtype = dtype;
}

static void parse_format(settings_t *set, const char *text,
                         const struct argp_state *state)
{
    if (!fsdp_ckpt_format_parse(text, &set->convert.format)) {
        argp_error(state,
                   "the format must be hdf5, hdf5-file, safetensors, dcp, "
                   "dcp-hf, torch, universal or llmc, not '%s'",
                   text);
    }
    if (set->preset == CONVERT_CONSOLIDATE &&
        set->convert.format == FSDP_CKPT_HDF5) {
        argp_error(state, "hdf5 is sharded: hdf5-file and safetensors are "
                          "whole (see fsdp-reshard)");
    }
    set->has_format = true;
}

static void parse_layout(settings_t *set, char *text,
                         const struct argp_state *state)
{
    char dp[] = "dp", tp[] = "tp", *const names[] = {dp, tp, NULL};
    const char *const what[] = {"dp of the layout", "tp of the layout"};
    uint32_t ranks[] = {0, 0};
    char *value;

    while (*text != '\0') {
        int i = getsubopt(&text, names, &value);

        if (i < 0 || value == NULL || ranks[i] != 0) {
            argp_error(state, "the layout must be such as dp=2,tp=4");
        }
        ranks[i] =
            (uint32_t)cli_parse_count(state, what[i], value, 1, WORLD_MOST);
    }
    if (ranks[1] == 0) {
        argp_error(state, "a layout needs tp=T: ranks that share tensors");
    }
    if ((uint64_t)ranks[0] * ranks[1] > WORLD_MOST) {
        argp_error(state, "the layout has more than %d ranks", WORLD_MOST);
    }
    set->down = ranks[0];
    set->convert.tensor_parallel = ranks[1];
}

static error_t parse_value(int key, char *text, struct argp_state *state)
{
    settings_t *set = state->input;
    fsdp_error_t err;
    size_t size;
    long dim;

    switch (key) {
    case 't':
        parse_format(set, text, state);
        return 0;
    case 'w':
        set->world = (uint32_t)cli_parse_count(state, "the number of ranks",
                                               text, 1, WORLD_MOST);
        return 0;
    case OPTION_STRATEGY:
        if (fsdp_strategy_parse(text, &set->strategy, &set->shard, &err) !=
            FSDP_OK) {
            argp_error(state, "%s", err.text);
        }
        set->has_strategy = true;
        return 0;
    case OPTION_FILES:
        set->convert.files = (uint32_t)cli_parse_count(
            state, "the number of files", text, 1, FILES_MOST);
        return 0;
    case OPTION_LAYOUT:
        parse_layout(set, text, state);
        return 0;
    case OPTION_SPLIT:
        if (select_parse_split(text, &size, &dim, &err) != FSDP_OK) {
            argp_error(state, "%s", err.text);
        }
        cli_list_add(&set->split, text);
        return 0;
    case OPTION_SHARD_SIZE:
        set->convert.shard_size =
            cli_parse_size(state, "the size of a file", text, 1);
        return 0;
    case OPTION_RENAME:
        if (select_check_rule(text, &err) != FSDP_OK) {
            argp_error(state, "%s", err.text);
        }
        cli_list_add(&set->rename, text);
        return 0;
    case OPTION_RULES:
        convert_list_rules(text);
        cli_list_add(&set->rules, text);
        return 0;
    case OPTION_SET:
        cli_list_add(&set->values, text);
        return 0;
    case OPTION_CAST:
        parse_cast(set, text, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* The options of each group. */
static error_t parse_option(int key, char *text, struct argp_state *state)
{
    settings_t *set = state->input;

    switch (key) {
    case 'i':
        cli_list_add(&set->include, text);
        return 0;
    case 'x':
        cli_list_add(&set->exclude, text);
        return 0;
    case OPTION_ONLY:
        tool_parse_only(state, text, &set->convert.only_model,
                        &set->convert.only_optim);
        return 0;
    case OPTION_ONLY_MODEL:
        set->convert.only_model = true;
        return 0;
    case OPTION_ALL:
        set->all = true;
        return 0;
    case OPTION_RECIPE:
        set->convert.recipe = text;
        return 0;
    case OPTION_VIRTUAL:
        set->convert.shows = true;
        return 0;
    case OPTION_LINK:
        set->convert.link = true;
        return 0;
    case 'n':
        set->convert.dry_run = true;
        return 0;
    case 'v':
        set->verbose = true;
        return 0;
    default:
        return parse_value(key, text, state);
    }
}

/* clang-format off */
#define GROUP(_options) {_options, parse_option, 0, 0, 0, 0, 0}
#define CHILD(_group) {&(_group), 0, 0, 0}
#define COMMON                                       \
    {&tool_argp, 0, "Common options:", TOOL_GROUP},  \
    {&tool_ranks_argp, 0, "Ranks:", TOOL_GROUP + 1}
#define NUM_COMMON 2

static const struct argp group_to = GROUP(options_to);
static const struct argp group_to_whole = GROUP(options_to_whole);
static const struct argp group_virtual = GROUP(options_virtual);
static const struct argp group_mesh = GROUP(options_mesh);
static const struct argp group_layout = GROUP(options_layout);
static const struct argp group_size = GROUP(options_size);
static const struct argp group_model = GROUP(options_model);
static const struct argp group_all = GROUP(options_all);
static const struct argp group_names = GROUP(options_names);

/* The common options are the first children of each. */
static const struct argp_child children_any[] = {
    COMMON, CHILD(group_to), CHILD(group_virtual), CHILD(group_mesh),
    CHILD(group_layout), CHILD(group_size), CHILD(group_model),
    CHILD(group_names), {0}
};
static const struct argp_child children_reshard[] = {
    COMMON, CHILD(group_virtual), CHILD(group_mesh), CHILD(group_model),
    CHILD(group_names), {0}
};
static const struct argp_child children_consolidate[] = {
    COMMON, CHILD(group_to_whole), CHILD(group_virtual), CHILD(group_size),
    CHILD(group_model), CHILD(group_all), CHILD(group_names), {0}
};
/* clang-format on */

static const struct argp_child *const children[] = {
    [CONVERT_ANY] = children_any,
    [CONVERT_RESHARD] = children_reshard,
    [CONVERT_CONSOLIDATE] = children_consolidate,
};

static void check_arguments(const settings_t *set,
                            const struct argp_state *state)
{
    if (set->target == NULL) {
        argp_error(state, "a source and a target are needed");
    }
    if (*set->target == '\0') {
        argp_error(state, "the target's name is empty");
    }
    if (set->all && (set->convert.only_model || set->convert.only_optim)) {
        argp_error(state, "--all and --only do not go together");
    }
    if (set->convert.link && set->convert.shows) {
        argp_error(state, "with --virtual there is nothing to --link");
    }
    if (set->split.num > 0 && set->convert.tensor_parallel == 0) {
        argp_error(state, "--split needs --layout, which says for how many");
    }
    if (set->down > 0 && set->world > 0 &&
        set->world != set->down * set->convert.tensor_parallel) {
        argp_error(state,
                   "--layout is for %" PRIu32 " times %" PRIu32
                   " ranks, --world for %" PRIu32,
                   set->down, set->convert.tensor_parallel, set->world);
    }
    if (set->preset == CONVERT_RESHARD && set->world == 0 &&
        !set->has_strategy && !set->convert.shows) {
        argp_error(state, "--world or --strategy is needed");
    }
}

static error_t parse_argument(int key, char *text, struct argp_state *state)
{
    settings_t *set = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        for (size_t i = 0; i < NUM_COMMON; i++) {
            state->child_inputs[i] = &set->tool;
        }
        for (size_t i = NUM_COMMON; children[set->preset][i].argp != NULL;
             i++) {
            state->child_inputs[i] = set;
        }
        return 0;
    case ARGP_KEY_ARG:
        if (set->target != NULL) {
            argp_error(state, "more than a source and a target");
        }
        *(set->source == NULL ? &set->source : &set->target) = text;
        return 0;
    case ARGP_KEY_END:
        check_arguments(set, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* --- What to do ----------------------------------------------------------- */

/* The format that the user gave, or that the target's name tells. */
static fsdp_ckpt_format_t choose_format(const settings_t *set)
{
    if (set->has_format) {
        return set->convert.format;
    }
    if (set->convert.shows) {
        return FSDP_CKPT_HDF5_FILE;
    }
    if (set->preset == CONVERT_RESHARD) {
        return FSDP_CKPT_HDF5;
    }
    if (text_ends_with(set->target, ".h5") ||
        text_ends_with(set->target, ".hdf5")) {
        return FSDP_CKPT_HDF5_FILE;
    }
    if (text_ends_with(set->target, ".pt") ||
        text_ends_with(set->target, ".pth") ||
        text_ends_with(set->target, ".bin")) {
        return FSDP_CKPT_TORCH;
    }
    if (text_ends_with(set->target, ".safetensors") ||
        set->convert.shard_size > 0 || set->preset == CONVERT_CONSOLIDATE) {
        return FSDP_CKPT_SAFETENSORS;
    }

    return FSDP_CKPT_HDF5;
}

static bool keeps(const settings_t *set, fsdp_ckpt_keeps_t what)
{
    return (fsdp_ckpt_format_keeps(set->convert.format) & what) != 0;
}

/* Formats of one file, or a file a tensor, are the same for any ranks: an
 * option for them would be lost. */
static fsdp_status_t check_mesh_options(const settings_t *set,
                                        fsdp_error_t *err)
{
    fsdp_ckpt_format_t format = set->convert.format;
    const char *lost = NULL;

    if (set->convert.files > 0 && !keeps(set, FSDP_CKPT_KEEPS_FILES)) {
        lost = "--files";
    } else if (set->world > 0 && !keeps(set, FSDP_CKPT_KEEPS_RANKS)) {
        lost = "--world";
    } else if (set->has_strategy && !keeps(set, FSDP_CKPT_KEEPS_RANKS)) {
        lost = "--strategy";
    }
    if (lost != NULL && !set->convert.shows) {
        return fsdp_error_set(err, FSDP_ERR_CONFIG,
                              "%s has no place for %s: leave it out, or choose "
                              "hdf5",
                              fsdp_ckpt_format_name(format), lost);
    }

    return FSDP_OK;
}

/* What is not given is as the source has it. */
static fsdp_status_t choose_mesh(settings_t *set, const fsdp_ckpt_info_t *info,
                                 fsdp_error_t *err)
{
    uint32_t world = (set->down > 0) ? set->down * set->convert.tensor_parallel
                     : (set->world > 0) ? set->world
                                        : info->mesh.world;
    fsdp_strategy_t strategy = set->strategy;
    uint32_t shard = set->shard;

    FSDP_TRY(check_mesh_options(set, err));
    if (!keeps(set, FSDP_CKPT_KEEPS_RANKS)) {
        return FSDP_OK;
    }

    if (keeps(set, FSDP_CKPT_KEEPS_ROWS)) {
        if (set->has_strategy && strategy != FSDP_STRATEGY_CHUNK) {
            return fsdp_error_set(
                err, FSDP_ERR_CONFIG,
                "%s holds rows of each rank: leave --strategy out, or say "
                "chunk",
                fsdp_ckpt_format_name(set->convert.format));
        }
        strategy = FSDP_STRATEGY_CHUNK;
    } else if (!set->has_strategy && info->mesh.world > 0) {
        strategy = info->mesh.strategy;
        shard = (strategy == FSDP_STRATEGY_HYBRID) ? info->mesh.shard : 0;
    }
    if (world == 0) {
        world = (shard > 0) ? shard : 1;
    }

    return fsdp_mesh_init(&set->convert.mesh, strategy, world, shard, err);
}

/* The name of what is put into the directory @a dir: as training would name
 * it, or as readers of the format look for it. */
static char *name_inside(const settings_t *set, const char *dir, int64_t step)
{
    size_t size = strlen(dir);
    const char *file = "model.safetensors";

    while (size > 1 && dir[size - 1] == '/') {
        size--;
    }
    switch (set->convert.format) {
    case FSDP_CKPT_HDF5:
        return cli_printf("%.*s/step-%08" PRId64, (int)size, dir,
                          (step >= 0) ? step : 0);
    case FSDP_CKPT_HDF5_FILE:
        file = "model.h5";
        break;
    case FSDP_CKPT_SAFETENSORS:
        break;
    case FSDP_CKPT_TORCH:
        file = "model.pt";
        break;
    default:
        file = fsdp_ckpt_format_name(set->convert.format);
        break;
    }

    return cli_printf("%.*s/%s", (int)size, dir, file);
}

/* A directory that is there takes the target inside, unless it is itself a
 * checkpoint: that is one of the same name, and refused by the library. */
static char *choose_target(const settings_t *set, int64_t step)
{
    char *manifest = cli_printf("%s/manifest.json", set->target);
    bool is_ckpt = access(manifest, F_OK) == 0;
    struct stat st;

    free(manifest);
    if (!is_ckpt && stat(set->target, &st) == 0 && S_ISDIR(st.st_mode)) {
        return name_inside(set, set->target, step);
    }

    return cli_strdup(set->target);
}

/* --- Results -------------------------------------------------------------- */

static void print_json(const settings_t *set,
                       const fsdp_ckpt_convert_result_t *result)
{
    json_t *all = json_object();

    cli_json_set(all, "target", cli_json_text(set->convert.target));
    cli_json_set(all, "format",
                 cli_json_text(fsdp_ckpt_format_name(set->convert.format)));
    cli_json_set(all, "dry_run", json_boolean(set->convert.dry_run));
    cli_json_set(all, "tensors", json_integer((json_int_t)result->tensors));
    cli_json_set(all, "files", json_integer((json_int_t)result->files));
    cli_json_set(all, "copies", json_integer((json_int_t)result->copies));
    cli_json_set(all, "bytes_read",
                 json_integer((json_int_t)result->bytes_read));
    cli_json_set(all, "bytes_written",
                 json_integer((json_int_t)result->bytes_written));
    cli_json_set(all, "bytes_shared",
                 json_integer((json_int_t)result->bytes_shared));
    cli_json_set(all, "bytes_needed",
                 json_integer((json_int_t)result->bytes_needed));
    cli_json_set(all, "bytes_free",
                 json_integer((json_int_t)result->bytes_free));
    cli_json_set(all, "ranks", json_integer((json_int_t)set->tool.launch.size));
    cli_json_set(all, "seconds", cli_json_number(result->seconds));
    if (set->rules.num > 0 || json_array_size(set->notes) > 0) {
        cli_json_set(all, "notes", json_incref(set->notes));
    }
    cli_json_print(all);
}

static void print_notes(const settings_t *set)
{
    const json_t *line;
    size_t i;

    json_array_foreach(set->notes, i, line)
    {
        char *text = cli_printable(json_string_value(line));

        printf("%s\n", text);
        free(text);
    }
}

static void add_note(const char *text, void *arg)
{
    cli_json_append(((settings_t *)arg)->notes, cli_json_text(text));
}

static void print_text(const settings_t *set, const fsdp_ckpt_info_t *source,
                       const fsdp_ckpt_convert_result_t *result)
{
    const fsdp_ckpt_convert_config_t *convert = &set->convert;
    char *target = cli_printable(convert->target);
    char *rate = tool_rate(result->bytes_written, result->seconds);
    fsdp_ckpt_info_t info = {.format = convert->format,
                             .shows = convert->shows,
                             .mesh = convert->mesh,
                             .step = -1};
    char *from = tool_summary(source), *to;
    char size[SIZE_TEXT_MAX];

    if (keeps(set, FSDP_CKPT_KEEPS_STEP)) {
        info.step = source->step;
    }
    to = tool_summary(&info);

    print_notes(set);
    printf("%s: %s%s, from %s\n", target, convert->dry_run ? "would be " : "",
           to, from);
    printf("%" PRIu64 " tensor%s, %s (%" PRIu64 " bytes) in %" PRIu64 " file%s",
           result->tensors, cli_s(result->tensors),
           size_format(result->bytes_written, size), result->bytes_written,
           result->files, cli_s(result->files));
    if (!convert->dry_run) {
        printf(", %.2f s (%s)", result->seconds, rate);
        if (set->tool.launch.size > 1) {
            printf(" by %" PRIu32 " ranks", set->tool.launch.size);
        }
    }
    putchar('\n');
    if (result->bytes_shared > 0) {
        printf("%s (%" PRIu64 " bytes) shared with the source\n",
               size_format(result->bytes_shared, size), result->bytes_shared);
    }
    if (set->verbose || convert->dry_run) {
        printf("%s (%" PRIu64 " bytes) %s in %" PRIu64 " cop%s\n",
               size_format(result->bytes_read, size), result->bytes_read,
               convert->dry_run ? "to read" : "read", result->copies,
               (result->copies == 1) ? "y" : "ies");
    }
    if (convert->dry_run) {
        printf("%s needed", size_format(result->bytes_needed, size));
        printf(", %s free there%s\n", size_format(result->bytes_free, size),
               (result->bytes_needed > result->bytes_free) ? ": not enough"
                                                           : "");
    }
    free(from);
    free(to);
    free(rate);
    free(target);
}

/* --- Steps ---------------------------------------------------------------- */

static void prepare(settings_t *set)
{
    fsdp_ckpt_convert_config_t *convert = &set->convert;

    convert->source = set->source;
    convert->include = set->include.items;
    convert->num_include = set->include.num;
    convert->exclude = set->exclude.items;
    convert->num_exclude = set->exclude.num;
    convert->rename = set->rename.items;
    convert->num_rename = set->rename.num;
    convert->split = set->split.items;
    convert->num_split = set->split.num;
    convert->rules = set->rules.items;
    convert->num_rules = set->rules.num;
    convert->set = set->values.items;
    convert->num_set = set->values.num;
    convert->note = add_note;
    convert->note_arg = set;
    convert->format = choose_format(set);
    if (set->preset == CONVERT_CONSOLIDATE && !convert->only_optim) {
        convert->only_model = !set->all;
    }
    convert->rank = set->tool.launch.rank;
    convert->world = set->tool.launch.size;
    convert->job_id = set->tool.launch.id;
    convert->deadline = set->tool.deadline;
}

/* Only HDF5 keeps what a source has beside its tensors and values; how its
 * state dict was nested is of use to some others too. */
static void note_lost(settings_t *set, const fsdp_ckpt_info_t *source)
{
    fsdp_ckpt_format_t format = set->convert.format;
    json_t *meta = json_text_parse(source->meta_json);
    bool has_step = source->step >= 0 && !keeps(set, FSDP_CKPT_KEEPS_STEP);
    bool has_meta;
    char *text;

    json_object_del(meta, "nesting");
    if (format == FSDP_CKPT_SAFETENSORS) {
        json_object_del(meta, "__metadata__");
    }
    has_meta = json_object_size(meta) > 0;
    json_decref(meta);
    if (keeps(set, FSDP_CKPT_KEEPS_META) || (!has_step && !has_meta)) {
        return;
    }

    text = cli_printf("note: %s has no place for the source's %s%s%s",
                      fsdp_ckpt_format_name(format), has_step ? "step" : "",
                      (has_step && has_meta) ? " and " : "",
                      has_meta ? "metadata (fsdp-ls --meta)" : "");
    add_note(text, set);
    free(text);
}

static fsdp_status_t run(settings_t *set, const fsdp_ckpt_info_t *source,
                         fsdp_error_t *err)
{
    fsdp_ckpt_convert_result_t result = {0};
    fsdp_status_t status;
    char *target;

    FSDP_TRY(choose_mesh(set, source, err));
    target = choose_target(set, source->step);
    set->convert.target = target;
    tool_begin(&set->tool, "writing");
    set->convert.engine = set->tool.engine;
    status = fsdp_ckpt_convert(&set->convert, &result, err);
    progress_end();
    note_lost(set, source);
    if (status == FSDP_OK && set->tool.json && !set->tool.quiet) {
        print_json(set, &result);
    } else if (status == FSDP_OK && !set->tool.quiet) {
        print_text(set, source, &result);
    }
    free(target);

    return status;
}

static int convert(settings_t *set)
{
    fsdp_ckpt_open_config_t open = FSDP_CKPT_OPEN_INIT;
    fsdp_ckpt_t *source = NULL;
    fsdp_ckpt_info_t info;
    fsdp_status_t status;
    fsdp_error_t err;

    prepare(set);
    if (set->convert.dry_run && set->convert.rank > 0) {
        return FSDP_EXIT_DONE;
    }

    open.recipe = set->convert.recipe;
    status = fsdp_ckpt_open_with(set->source, &open, &source, &err);
    if (status == FSDP_OK) {
        fsdp_ckpt_get_info(source, &info);
        status = run(set, &info, &err);
    } else if (set->convert.world > 1) {
        /* It fails in the same way, and tells the other ranks. */
        set->convert.target = set->target;
        status = fsdp_ckpt_convert(&set->convert, NULL, &err);
    }
    fsdp_ckpt_close(source);

    return (status == FSDP_OK) ? FSDP_EXIT_DONE : tool_fail(&set->tool, &err);
}

int convert_main(const char *program, convert_preset_t preset, int argc,
                 char **argv)
{
    const struct argp argp = {
        NULL,
        parse_argument,
        "SOURCE TARGET",
        docs[preset],
        children[preset],
        0,
        0,
    };
    settings_t set = {.preset = preset,
                      .convert = FSDP_CKPT_CONVERT_INIT,
                      .notes = json_array()};
    int code;

    tool_parse_ranks(&set.tool, program, &argp, argc, argv, &set);
    code = convert(&set);
    free(set.include.items);
    free(set.exclude.items);
    free(set.rename.items);
    free(set.split.items);
    free(set.rules.items);
    free(set.values.items);
    json_decref(set.notes);

    return cli_finish(code);
}
