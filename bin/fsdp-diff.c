/*
 * fsdp-diff - compare the values of two checkpoints
 */
#include "config.h"

#include <argp.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bin/progress.h"
#include "bin/table.h"
#include "bin/tool.h"
#include "lib/util/size.h"

typedef struct {
    tool_t tool;
    fsdp_ckpt_diff_config_t diff;
    cli_list_t include, exclude, rules, values;
    const char *paths[2];
    unsigned num_paths;
} settings_t;

static const char doc[] =
    "Compare the values of checkpoints A and B, whatever their formats and "
    "shardings: bit for bit, or as numbers if a tolerance is given. "
    "\"model/NAME\" in one matches NAME in the other if that has no kinds."
    "\vExit status is 0 if they hold the same, 1 if they differ, 2 on trouble, "
    "64 on wrong usage.";

enum {
    OPTION_ATOL = 0x100,
    OPTION_METADATA,
    OPTION_ONLY,
    OPTION_ONLY_MODEL,
    OPTION_RECIPE,
    OPTION_RTOL,
    OPTION_RULES,
    OPTION_SET
};

/* clang-format off */
static const struct argp_option options[] = {
    {"rtol", OPTION_RTOL, "X", 0,
     "Numbers a and b may differ by X * max(|a|, |b|) ...", 0},
    {"atol", OPTION_ATOL, "X", 0,
     "... plus X; then element types may differ too", 0},
    {"include", 'i', "PATTERN", 0,
     "Compare only tensors whose name fits; PATTERN[0:10]: of these the first "
     "ten rows (repeatable)", 0},
    {"exclude", 'x', "PATTERN", 0,
     "Leave out tensors whose name fits (repeatable)", 0},
    {"only", OPTION_ONLY, "KIND", 0,
     "model: leave out optimizer state; optim: all else", 0},
    {"only-model", OPTION_ONLY_MODEL, 0, OPTION_HIDDEN, 0, 0},
    {"model-only", OPTION_ONLY_MODEL, 0, OPTION_HIDDEN, 0, 0},
    {"recipe", OPTION_RECIPE, "FILE", 0,
     "FILE says what the flat parameters of PyTorch's FSDP1 are made of, in "
     "either checkpoint", 0},
    {"rules", OPTION_RULES, "SET", 0,
     "Read A through rules: a file, or a set that \"fsdp-convert --rules "
     "list\" lists (repeatable, in order)", 0},
    {"set", OPTION_SET, "NAME=VALUE", 0,
     "Give a value that A lacks (repeatable)", 0},
    {"metadata", OPTION_METADATA, 0, 0,
     "Compare the step and the writers' metadata too", 0},
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
    case OPTION_RTOL:
        set->diff.rtol =
            cli_parse_double(state, "the relative tolerance", text, 0, 1);
        return 0;
    case OPTION_ATOL:
        set->diff.atol =
            cli_parse_double(state, "the absolute tolerance", text, 0, 1e300);
        return 0;
    case 'i':
        cli_list_add(&set->include, text);
        return 0;
    case 'x':
        cli_list_add(&set->exclude, text);
        return 0;
    case OPTION_ONLY:
        tool_parse_only(state, text, &set->diff.only_model,
                        &set->diff.only_optim);
        return 0;
    case OPTION_ONLY_MODEL:
        set->diff.only_model = true;
        return 0;
    case OPTION_RECIPE:
        set->diff.recipe = text;
        return 0;
    case OPTION_RULES:
        cli_list_add(&set->rules, text);
        return 0;
    case OPTION_SET:
        cli_list_add(&set->values, text);
        return 0;
    case OPTION_METADATA:
        set->diff.metadata = true;
        return 0;
    case ARGP_KEY_ARG:
        if (set->num_paths == 2) {
            argp_error(state, "more than two checkpoints");
        }
        set->paths[set->num_paths++] = text;
        return 0;
    case ARGP_KEY_END:
        if (set->num_paths < 2) {
            argp_error(state, "two checkpoints are needed");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* --- What differs --------------------------------------------------------- */

static const char *const hows[] = {
    [FSDP_CKPT_ONLY_A] = "only in A", [FSDP_CKPT_ONLY_B] = "only in B",
    [FSDP_CKPT_SHAPE] = "shape",      [FSDP_CKPT_DTYPE] = "dtype",
    [FSDP_CKPT_VALUES] = "values",    [FSDP_CKPT_METADATA] = "metadata",
};

/* Where differences are gathered: they are printed when all are known. */
typedef struct {
    const tool_t *tool;
    table_t *table; /* tensors whose values differ */
    char **lines;   /* the others */
    size_t num_rows, num_lines;
    uint64_t only[2]; /* tensors of one side alone: the first ones have lines */
    json_t *json;
    uint64_t num;
} gather_t;

enum { ONLY_MOST = 20 };

static void add_json(gather_t *gather, const fsdp_ckpt_difference_t *what)
{
    json_t *item = json_object();

    cli_json_set(item, "name", cli_json_text(what->name));
    cli_json_set(item, "how", cli_json_text(hows[what->how]));
    if (what->how == FSDP_CKPT_VALUES) {
        cli_json_set(item, "elements", json_integer((json_int_t)what->numel));
        cli_json_set(item, "differing",
                     json_integer((json_int_t)what->differing));
        cli_json_set(item, "first", json_integer((json_int_t)what->first));
        cli_json_set(item, "value_a", cli_json_number(what->value_a));
        cli_json_set(item, "value_b", cli_json_number(what->value_b));
        cli_json_set(item, "max_abs", cli_json_number(what->max_abs));
        cli_json_set(item, "max_rel", cli_json_number(what->max_rel));
    }
    cli_json_set(item, "text", cli_json_text(what->text));
    cli_json_append(gather->json, item);
}

static void add_row(gather_t *gather, const fsdp_ckpt_difference_t *what)
{
    table_cell(gather->table, "%s", what->name);
    table_cell(gather->table, "%" PRIu64, what->differing);
    table_cell(gather->table, "%" PRIu64, what->numel);
    table_cell(gather->table, "%" PRIu64, what->first);
    table_cell(gather->table, "%.9g", what->value_a);
    table_cell(gather->table, "%.9g", what->value_b);
    table_cell(gather->table, "%.3g", what->max_abs);
    table_cell(gather->table, "%.3g", what->max_rel);
    gather->num_rows++;
}

static void add_line(gather_t *gather, const fsdp_ckpt_difference_t *what)
{
    uint64_t *only = (what->how == FSDP_CKPT_ONLY_A)   ? &gather->only[0]
                     : (what->how == FSDP_CKPT_ONLY_B) ? &gather->only[1]
                                                       : NULL;

    if (only != NULL && ++*only > ONLY_MOST) {
        return;
    }
    gather->lines = cli_realloc(gather->lines, gather->num_lines + 1,
                                sizeof(*gather->lines));
    gather->lines[gather->num_lines++] = cli_printable(what->text);
}

static bool add_difference(const fsdp_ckpt_difference_t *what, void *arg)
{
    gather_t *gather = arg;

    gather->num++;
    if (gather->tool->quiet) {
        return false; /* the answer is known */
    }

    if (gather->tool->json) {
        add_json(gather, what);
    } else if (what->how == FSDP_CKPT_VALUES) {
        add_row(gather, what);
    } else {
        add_line(gather, what);
    }

    return true;
}

static void print_json(gather_t *gather, const fsdp_ckpt_diff_result_t *result)
{
    json_t *all = json_object();

    cli_json_set(all, "same", json_boolean(gather->num == 0));
    cli_json_set(all, "tensors", json_integer((json_int_t)result->tensors));
    if (result->steps[0] >= 0) {
        cli_json_set(all, "step_a", json_integer(result->steps[0]));
    }
    if (result->steps[1] >= 0) {
        cli_json_set(all, "step_b", json_integer(result->steps[1]));
    }
    cli_json_set(all, "bytes", json_integer((json_int_t)result->bytes));
    cli_json_set(all, "seconds", cli_json_number(result->seconds));
    cli_json_set(all, "differences", json_incref(gather->json));
    cli_json_print(all);
}

static void print_differences(const gather_t *gather)
{
    for (size_t i = 0; i < gather->num_lines; i++) {
        puts(gather->lines[i]);
    }
    for (unsigned side = 0; side < 2; side++) {
        if (gather->only[side] > ONLY_MOST) {
            uint64_t more = gather->only[side] - ONLY_MOST;

            printf("%" PRIu64 " more tensor%s only in %s (--json lists all)\n",
                   more, cli_s(more), (side == 0) ? "A" : "B");
        }
    }
    if (gather->num_rows > 0) {
        table_print(gather->table, stdout);
    }
}

/* Which step a directory of checkpoints was opened at. */
static void print_step(const fsdp_ckpt_diff_result_t *result, unsigned side)
{
    if (result->steps[side] >= 0) {
        printf("; %s is step %" PRId64, (side == 0) ? "A" : "B",
               result->steps[side]);
    }
}

static void print_text(const gather_t *gather,
                       const fsdp_ckpt_diff_result_t *result)
{
    char *rate = tool_rate(result->bytes, result->seconds);
    char size[SIZE_TEXT_MAX];

    print_differences(gather);
    size_format(result->bytes, size);
    if (gather->num == 0) {
        printf("the same: %" PRIu64 " tensor%s, %s read in %.2f s (%s)",
               result->tensors, cli_s(result->tensors), size, result->seconds,
               rate);
    } else {
        printf("they differ in %" PRIu64 " place%s; %" PRIu64 " tensor%s "
               "compared, %s read in %.2f s (%s)",
               gather->num, cli_s(gather->num), result->tensors,
               cli_s(result->tensors), size, result->seconds, rate);
    }
    print_step(result, 0);
    print_step(result, 1);
    putchar('\n');
    free(rate);
}

static void gather_init(gather_t *gather, const tool_t *tool)
{
    static const table_column_t columns[] = {
        {"TENSOR",  false},
        {"DIFFER",  true },
        {"OF",      true },
        {"FIRST",   true },
        {"A",       true },
        {"B",       true },
        {"MAX ABS", true },
        {"MAX REL", true },
    };

    *gather = (gather_t){.tool = tool, .json = json_array()};
    gather->table = table_create(columns, sizeof(columns) / sizeof(*columns));
}

static void gather_free(gather_t *gather)
{
    table_destroy(gather->table);
    for (size_t i = 0; i < gather->num_lines; i++) {
        free(gather->lines[i]);
    }
    free(gather->lines);
    json_decref(gather->json);
}

static int compare(settings_t *set)
{
    fsdp_ckpt_diff_result_t result = {0};
    fsdp_status_t status;
    fsdp_error_t err;
    gather_t gather;

    gather_init(&gather, &set->tool);
    tool_begin(&set->tool, "comparing");
    set->diff.engine = set->tool.engine;
    status = fsdp_ckpt_diff(set->paths[0], set->paths[1], &set->diff,
                            add_difference, &gather, &result, &err);
    progress_end();
    if (status != FSDP_OK && !(set->tool.quiet && gather.num > 0)) {
        /* 1 says that they differ: every failure is another number. */
        tool_fail(&set->tool, &err);
        gather_free(&gather);
        return FSDP_EXIT_TROUBLE;
    }

    tool_warn_recipe(result.recipe_unused);
    if (set->tool.json && !set->tool.quiet) {
        print_json(&gather, &result);
    } else if (!set->tool.quiet) {
        print_text(&gather, &result);
    }
    gather_free(&gather);

    return (gather.num > 0) ? FSDP_EXIT_DIFFERS : FSDP_EXIT_DONE;
}

int main(int argc, char **argv)
{
    const struct argp argp = {
        options, parse_option, "A B", doc, tool_children, 0, 0,
    };
    settings_t set = {.diff = FSDP_CKPT_DIFF_INIT};
    int code;

    cli_parse("fsdp-diff", &argp, argc, argv, &set);
    set.diff.include = set.include.items;
    set.diff.num_include = set.include.num;
    set.diff.exclude = set.exclude.items;
    set.diff.num_exclude = set.exclude.num;
    set.diff.rules = set.rules.items;
    set.diff.num_rules = set.rules.num;
    set.diff.set = set.values.items;
    set.diff.num_set = set.values.num;

    code = compare(&set);
    free(set.include.items);
    free(set.exclude.items);
    free(set.rules.items);
    free(set.values.items);
    code = cli_finish(code);

    return (code == FSDP_EXIT_IO) ? FSDP_EXIT_TROUBLE : code;
}
