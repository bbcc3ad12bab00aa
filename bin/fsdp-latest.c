/*
 * fsdp-latest - the newest valid checkpoint of a directory
 */
#include "config.h"

#include <argp.h>

#include "bin/progress.h"
#include "bin/tool.h"

typedef struct {
    tool_t tool;
    const char *dir;
    fsdp_ckpt_latest_config_t latest;
} settings_t;

static const char doc[] =
    "Print the path of the newest valid checkpoint step-N in a directory of "
    "checkpoints; newer ones that are damaged or incomplete are named on "
    "standard error."
    "\vExit status is 0 if there is one, 64 on wrong usage, 65 if there is "
    "none, 74 if the directory cannot be read or written.";

enum { OPTION_DEEP = 0x100, OPTION_REPAIR };

/* clang-format off */
static const struct argp_option options[] = {
    {"deep", OPTION_DEEP, 0, 0,
     "Read all bytes, as fsdp-verify does; else sizes, coverage and the "
     "checksums of tables decide", 0},
    {"repair", OPTION_REPAIR, 0, 0,
     "Make the file latest name it", 0},
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
    case OPTION_DEEP:
        set->latest.deep = true;
        return 0;
    case OPTION_REPAIR:
        set->latest.repair = true;
        return 0;
    case ARGP_KEY_ARG:
        tool_parse_argument(state, "directory", text, &set->dir);
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "a directory is needed");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

typedef struct {
    const tool_t *tool;
    json_t *skipped;
} gather_t;

static bool add_skipped(const char *path, const char *text, void *arg)
{
    gather_t *gather = arg;

    if (gather->tool->json) {
        cli_json_append(gather->skipped, tool_json_entry("name", path, text));
    } else if (!gather->tool->quiet) {
        progress_erase();
        cli_message("%s is not valid: %s", path, text);
    }

    return true;
}

static void print_result(const gather_t *gather,
                         const fsdp_ckpt_latest_result_t *result)
{
    json_t *all;

    if (gather->tool->json) {
        all = json_object();
        cli_json_set(all, "path", cli_json_text(result->path));
        cli_json_set(all, "step", json_integer(result->step));
        cli_json_set(all, "repaired", json_boolean(result->repaired));
        cli_json_set(all, "skipped", json_incref(gather->skipped));
        cli_json_print(all);
    } else {
        puts(result->path);
    }
}

static int find_latest(settings_t *set)
{
    gather_t gather = {.tool = &set->tool, .skipped = json_array()};
    fsdp_ckpt_latest_result_t result = {0};
    fsdp_status_t status;
    fsdp_error_t err;

    tool_begin(&set->tool, "verifying");
    set->latest.engine = set->tool.engine;
    set->latest.skipped = add_skipped;
    set->latest.arg = &gather;
    status = fsdp_ckpt_latest(set->dir, &set->latest, &result, &err);
    progress_end();
    if (status == FSDP_OK && !set->tool.quiet) {
        print_result(&gather, &result);
    }
    json_decref(gather.skipped);

    return (status == FSDP_OK) ? FSDP_EXIT_DONE : tool_fail(&set->tool, &err);
}

int main(int argc, char **argv)
{
    const struct argp argp = {
        options, parse_option, "DIRECTORY", doc, tool_children, 0, 0,
    };
    settings_t set = {.latest = FSDP_CKPT_LATEST_INIT};

    cli_parse("fsdp-latest", &argp, argc, argv, &set);

    return cli_finish(find_latest(&set));
}
