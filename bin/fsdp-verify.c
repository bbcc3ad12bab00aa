/*
 * fsdp-verify - check every byte of a checkpoint
 */
#include "config.h"

#include <argp.h>
#include <inttypes.h>
#include <stdlib.h>

#include "bin/progress.h"
#include "bin/tool.h"
#include "lib/util/check.h"
#include "lib/util/size.h"

typedef struct {
    tool_t tool;
    const char *path;
    const char *manifest;
    const char *recipe;
    const char *scratch;
    bool clean, repair;
    uint64_t minutes;
} settings_t;

enum {
    OPTION_MANIFEST = 0x2000,
    OPTION_RECIPE,
    OPTION_CLEAN,
    OPTION_REPAIR,
    OPTION_SCRATCH
};

#define CLEAN_MINUTES 60 /* that nothing was written */
#define MINUTES_MOST  (366ull * 24 * 60)

/* clang-format off */
static const struct argp_option options[] = {
    {"manifest", OPTION_MANIFEST, "FILE", 0,
     "Compare names, shapes, types, SHA-256, aliases and values with what FILE "
     "says", 0},
    {"recipe", OPTION_RECIPE, "FILE", 0,
     "FILE says what the flat parameters of PyTorch's FSDP1 are made of", 0},
    {"clean", OPTION_CLEAN, "MINUTES", OPTION_ARG_OPTIONAL,
     "Remove first what interrupted saves left in a directory of checkpoints "
     "and was not touched for MINUTES (default 60)", 0},
    {"repair", OPTION_REPAIR, 0, 0,
     "Build a missing or damaged index, manifest or `latest` anew first, if "
     "the data is whole", 0},
    {"scratch", OPTION_SCRATCH, "DIR", 0,
     "Several ranks meet in DIR, which all nodes share and may write (default: "
     "the current directory)", 0},
    {0}
};

static const struct argp_child children[] = {
    {&tool_argp, 0, "Common options:", TOOL_GROUP},
    {&tool_ranks_argp, 0, "Ranks:", TOOL_GROUP + 1},
    {0}
};
/* clang-format on */

static const char doc[] =
    "Check a checkpoint of any format: sizes and checksums of all files, the "
    "checksum of every block, that each element lies in one place exactly, "
    "that index and files say the same, and the digests that the training "
    "job left.  In a directory of checkpoints all of them are checked.  "
    "With --manifest, it is compared with what a manifest says it holds.  "
    "Under srun or mpirun each rank reads a part.  "
    "Findings are printed on standard output, one a line."
    "\vExit status is 0 if nothing was found, 1 if something was, 64 on wrong "
    "usage, 65 if there is no checkpoint or it cannot be repaired, 69 if "
    "another rank is gone, 74 if it cannot be read, and 78 if ranks cannot "
    "meet.";

static bool has_others(const tool_t *tool)
{
    return tool->launch.size > 1 && !tool->alone;
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    settings_t *set = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &set->tool;
        state->child_inputs[1] = &set->tool;
        return 0;
    case OPTION_MANIFEST:
        set->manifest = text;
        return 0;
    case OPTION_CLEAN:
        set->clean = true;
        set->minutes = (text == NULL)
                           ? CLEAN_MINUTES
                           : cli_parse_count(state, "the number of minutes",
                                             text, 0, MINUTES_MOST);
        return 0;
    case OPTION_REPAIR:
        set->repair = true;
        return 0;
    case OPTION_RECIPE:
        set->recipe = text;
        return 0;
    case OPTION_SCRATCH:
        set->scratch = text;
        return 0;
    case ARGP_KEY_ARG:
        tool_parse_argument(state, "checkpoint", text, &set->path);
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "a checkpoint is needed");
        return 0;
    case ARGP_KEY_END:
        if ((set->clean || set->repair) && set->manifest != NULL) {
            argp_error(state, "%s and --manifest do not go together",
                       set->clean ? "--clean" : "--repair");
        }
        if ((set->clean || set->repair) && has_others(&set->tool)) {
            argp_error(state,
                       "%s is for one process: run it with --alone or "
                       "without srun",
                       set->clean ? "--clean" : "--repair");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

typedef struct {
    const tool_t *tool;
    json_t *json;
    json_t *notes;
} gather_t;

static bool add_finding(const char *text, void *arg)
{
    const gather_t *gather = arg;

    tool_line(gather->tool, gather->json, cli_json_text(text), "%s", text);
    return true;
}

static bool add_note(const char *text, void *arg)
{
    const gather_t *gather = arg;

    tool_line(gather->tool, gather->notes, cli_json_text(text), "note: %s",
              text);
    return true;
}

static void print_json(gather_t *gather,
                       const fsdp_ckpt_verify_result_t *result)
{
    json_t *all = json_object();

    cli_json_set(all, "good", json_boolean(result->findings == 0));
    if (result->checkpoints > 0) {
        cli_json_set(all, "format",
                     cli_json_text(fsdp_ckpt_format_name(result->format)));
    }
    cli_json_set(all, "checkpoints",
                 json_integer((json_int_t)result->checkpoints));
    cli_json_set(all, "findings", json_incref(gather->json));
    cli_json_set(all, "repaired", json_incref(gather->notes));
    cli_json_set(all, "tensors", json_integer((json_int_t)result->tensors));
    cli_json_set(all, "files", json_integer((json_int_t)result->files));
    cli_json_set(all, "bytes", json_integer((json_int_t)result->bytes));
    cli_json_set(all, "unchecked", json_integer((json_int_t)result->unchecked));
    cli_json_set(all, "unread", json_integer((json_int_t)result->unread));
    cli_json_set(all, "stale_files",
                 json_integer((json_int_t)result->stale_files));
    cli_json_set(all, "stale_bytes",
                 json_integer((json_int_t)result->stale_bytes));
    cli_json_set(all, "digest_model", cli_json_hex(result->digest_model, 2));
    cli_json_set(all, "digest_optim", cli_json_hex(result->digest_optim, 2));
    cli_json_set(all, "seconds", cli_json_number(result->seconds));
    cli_json_print(all);
}

static void print_text(const fsdp_ckpt_verify_result_t *result)
{
    char *rate = tool_rate(result->bytes, result->seconds);
    char size[SIZE_TEXT_MAX], unchecked[SIZE_TEXT_MAX];

    printf("%s: %" PRIu64 " tensor%s, %" PRIu64 " file%s, ",
           (result->findings == 0) ? "good" : "not good", result->tensors,
           cli_s(result->tensors), result->files, cli_s(result->files));
    if (result->checkpoints > 1) {
        printf("%" PRIu64 " checkpoints, ", result->checkpoints);
    }
    printf("%s%s%s read in %.2f s (%s)\n", size_format(result->bytes, size),
           (result->checkpoints > 0) ? " of " : "",
           (result->checkpoints > 0) ? fsdp_ckpt_format_name(result->format)
                                     : "",
           result->seconds, rate);
    if (result->unchecked > 0) {
        printf("no checksum covers %" PRIu64 " bytes (%s): whether they are "
               "what was written is not known\n",
               result->unchecked, size_format(result->unchecked, unchecked));
    }
    if (result->unread > 0) {
        printf("%" PRIu64 " value%s cannot be read: fsdp-ls shows why\n",
               result->unread, cli_s(result->unread));
    }
    if (result->stale_files > 0) {
        printf("beside it %" PRIu64 " file%s of an earlier save, %s, which it "
               "does not use\n",
               result->stale_files, cli_s(result->stale_files),
               size_format(result->stale_bytes, size));
    }
    free(rate);
}

static bool tell_removed(const char *path, const char *text, void *arg)
{
    const settings_t *set = arg;
    char *clean;

    if (!set->tool.quiet && !set->tool.json) {
        clean = cli_printable(path);
        printf("removed %s: %s\n", clean, text);
        free(clean);
    }

    return true;
}

/* What is done before the check. */
static fsdp_status_t mend(settings_t *set, gather_t *gather, fsdp_error_t *err)
{
    fsdp_ckpt_repair_result_t repaired;
    uint64_t removed;

    if (set->clean) {
        FSDP_TRY(fsdp_ckpt_clean(set->path, 60.0 * (double)set->minutes,
                                 tell_removed, set, &removed, err));
    }
    if (set->repair) {
        FSDP_TRY(fsdp_ckpt_repair(set->path, &set->tool.engine, add_note,
                                  gather, &repaired, err));
    }

    return FSDP_OK;
}

static fsdp_ckpt_ranks_t ranks_of(const settings_t *set)
{
    return (fsdp_ckpt_ranks_t){.rank = set->tool.launch.rank,
                               .world = set->tool.launch.size,
                               .job_id = set->tool.launch.id,
                               .dir =
                                   (set->scratch != NULL) ? set->scratch : ".",
                               .deadline = set->tool.deadline};
}

static int verify(settings_t *set)
{
    const fsdp_ckpt_ranks_t ranks = ranks_of(set);
    fsdp_ckpt_verify_result_t result = {0};
    gather_t gather = {
        .tool = &set->tool, .json = json_array(), .notes = json_array()};
    fsdp_status_t status;
    fsdp_error_t err;

    tool_begin(&set->tool, "verifying");
    status = mend(set, &gather, &err);
    if (status == FSDP_OK) {
        status = fsdp_ckpt_verify(set->path, set->recipe, &set->tool.engine,
                                  &ranks, add_finding, &gather, &result, &err);
    }
    progress_end();
    tool_warn_recipe(result.recipe_unused);
    if (status == FSDP_OK && set->tool.json && !set->tool.quiet) {
        print_json(&gather, &result);
    } else if (status == FSDP_OK && !set->tool.quiet) {
        print_text(&result);
    }
    json_decref(gather.json);
    json_decref(gather.notes);
    if (status != FSDP_OK) {
        return tool_fail(&set->tool, &err);
    }

    return (result.findings > 0) ? FSDP_EXIT_DIFFERS : FSDP_EXIT_DONE;
}

/* --- Against a manifest --------------------------------------------------- */

static void print_compared(const gather_t *gather,
                           const fsdp_ckpt_manifest_result_t *result)
{
    char *rate = tool_rate(result->bytes, result->seconds);
    char size[SIZE_TEXT_MAX];
    json_t *all;

    if (gather->tool->json) {
        all = json_object();
        cli_json_set(all, "same", json_boolean(result->findings == 0));
        cli_json_set(all, "findings", json_incref(gather->json));
        cli_json_set(all, "notes", json_incref(gather->notes));
        cli_json_set(all, "tensors", json_integer((json_int_t)result->tensors));
        cli_json_set(all, "aliases", json_integer((json_int_t)result->aliases));
        cli_json_set(all, "values", json_integer((json_int_t)result->values));
        cli_json_set(all, "bytes", json_integer((json_int_t)result->bytes));
        cli_json_set(all, "seconds", cli_json_number(result->seconds));
        cli_json_print(all);
    } else {
        printf("%s: %" PRIu64 " tensor%s, %" PRIu64 " alias%s, %" PRIu64
               " value%s, %s read in %.2f s (%s)\n",
               (result->findings == 0) ? "as the manifest says"
                                       : "not what the manifest says",
               result->tensors, cli_s(result->tensors), result->aliases,
               (result->aliases == 1) ? "" : "es", result->values,
               cli_s(result->values), size_format(result->bytes, size),
               result->seconds, rate);
    }
    free(rate);
}

static int compare(settings_t *set)
{
    const fsdp_ckpt_ranks_t ranks = ranks_of(set);
    gather_t gather = {
        .tool = &set->tool, .json = json_array(), .notes = json_array()};
    fsdp_ckpt_manifest_config_t config = FSDP_CKPT_MANIFEST_INIT;
    fsdp_ckpt_manifest_result_t result = {0};
    fsdp_status_t status;
    fsdp_error_t err;

    tool_begin(&set->tool, "comparing");
    config.manifest = set->manifest;
    config.recipe = set->recipe;
    config.finding = add_finding;
    config.note = add_note;
    config.arg = &gather;
    config.engine = set->tool.engine;
    config.ranks = &ranks;
    status = fsdp_ckpt_check_manifest(set->path, &config, &result, &err);
    progress_end();
    if (status == FSDP_OK && !set->tool.quiet) {
        print_compared(&gather, &result);
    }
    json_decref(gather.json);
    json_decref(gather.notes);
    if (status != FSDP_OK) {
        return tool_fail(&set->tool, &err);
    }

    return (result.findings > 0) ? FSDP_EXIT_DIFFERS : FSDP_EXIT_DONE;
}

int main(int argc, char **argv)
{
    const struct argp argp = {
        options, parse_option, "CHECKPOINT", doc, children, 0, 0,
    };
    settings_t set = {0};

    tool_parse_ranks(&set.tool, "fsdp-verify", &argp, argc, argv, &set);

    return cli_finish((set.manifest != NULL) ? compare(&set) : verify(&set));
}
