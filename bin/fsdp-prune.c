/*
 * fsdp-prune - remove old checkpoints from a directory
 */
#include "config.h"

#include <argp.h>
#include <inttypes.h>

#include "bin/progress.h"
#include "bin/tool.h"
#include "lib/util/size.h"

typedef struct {
    tool_t tool;
    const char *dir;
    fsdp_ckpt_prune_config_t prune;
} settings_t;

static const char doc[] =
    "Remove old checkpoints step-N from a directory of checkpoints.  The "
    "newest "
    "valid one and the one that the file latest names always stay."
    "\vExit status is 0 if all went well, 64 on wrong usage, 65 if there is no "
    "valid checkpoint (then nothing is removed), 74 if the directory cannot be "
    "read or written.";

enum { OPTION_EVERY = 0x100, OPTION_DEEP, OPTION_DAMAGED };

/* clang-format off */
static const struct argp_option options[] = {
    {"keep-last", 'k', "N", 0,
     "Keep the N newest valid ones", 0},
    {"keep-every", OPTION_EVERY, "K", 0,
     "Keep those whose step is a multiple of K too", 0},
    {"damaged", OPTION_DAMAGED, 0, 0,
     "Remove damaged ones too, which stay otherwise", 0},
    {"deep", OPTION_DEEP, 0, 0,
     "Read all bytes, as fsdp-verify does, to tell which are valid; else "
     "sizes, coverage and the checksums of tables decide", 0},
    {"dry-run", 'n', 0, 0,
     "Say what would be removed, and remove nothing", 0},
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
    case 'k':
        set->prune.keep_last = cli_parse_count(
            state, "the number of checkpoints to keep", text, 1, UINT32_MAX);
        return 0;
    case OPTION_EVERY:
        set->prune.keep_every =
            cli_parse_count(state, "the number of steps", text, 1, INT64_MAX);
        return 0;
    case OPTION_DEEP:
        set->prune.deep = true;
        return 0;
    case OPTION_DAMAGED:
        set->prune.damaged = true;
        return 0;
    case 'n':
        set->prune.dry_run = true;
        return 0;
    case ARGP_KEY_ARG:
        tool_parse_argument(state, "directory", text, &set->dir);
        return 0;
    case ARGP_KEY_END:
        if (set->dir == NULL) {
            argp_error(state, "a directory is needed");
        }
        if (set->prune.keep_last == 0) {
            argp_error(state, "--keep-last is needed");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

typedef struct {
    const settings_t *set;
    json_t *removed, *kept;
} gather_t;

static bool tell(const gather_t *gather, json_t *list, const char *verb,
                 const char *path, const char *text)
{
    tool_line(&gather->set->tool, list, tool_json_entry("path", path, text),
              "%s %s%s%s", verb, path, (*text != '\0') ? ": " : "", text);
    return true;
}

static bool add_removed(const char *path, const char *text, void *arg)
{
    const gather_t *gather = arg;

    return tell(gather, gather->removed,
                gather->set->prune.dry_run ? "would remove" : "remove", path,
                text);
}

static bool add_kept(const char *path, const char *text, void *arg)
{
    const gather_t *gather = arg;

    return tell(gather, gather->kept, "keep", path, text);
}

static void print_result(const gather_t *gather,
                         const fsdp_ckpt_prune_result_t *result)
{
    char size[SIZE_TEXT_MAX];
    json_t *all;

    if (gather->set->tool.json) {
        all = json_object();
        cli_json_set(all, "dry_run", json_boolean(gather->set->prune.dry_run));
        cli_json_set(all, "removed", json_incref(gather->removed));
        cli_json_set(all, "kept", json_incref(gather->kept));
        cli_json_set(all, "bytes", json_integer((json_int_t)result->bytes));
        cli_json_print(all);
    } else {
        printf("%" PRIu64 " kept, %" PRIu64 " %s, %s\n", result->kept,
               result->removed,
               gather->set->prune.dry_run ? "would be removed" : "removed",
               size_format(result->bytes, size));
    }
}

static int prune(settings_t *set)
{
    gather_t gather = {set, json_array(), json_array()};
    fsdp_ckpt_prune_result_t result = {0};
    fsdp_status_t status;
    fsdp_error_t err;

    tool_begin(&set->tool, "verifying");
    set->prune.engine = set->tool.engine;
    set->prune.removed = add_removed;
    set->prune.kept = add_kept;
    set->prune.arg = &gather;
    status = fsdp_ckpt_prune(set->dir, &set->prune, &result, &err);
    progress_end();
    if (status == FSDP_OK && !set->tool.quiet) {
        print_result(&gather, &result);
    }
    json_decref(gather.removed);
    json_decref(gather.kept);

    return (status == FSDP_OK) ? FSDP_EXIT_DONE : tool_fail(&set->tool, &err);
}

int main(int argc, char **argv)
{
    const struct argp argp = {
        options, parse_option, "DIRECTORY", doc, tool_children, 0, 0,
    };
    settings_t set = {.prune = FSDP_CKPT_PRUNE_INIT};

    cli_parse("fsdp-prune", &argp, argc, argv, &set);

    return cli_finish(prune(&set));
}
