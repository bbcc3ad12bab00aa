#include "config.h"

#include "bin/tool.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "bin/progress.h"
#include "lib/util/nearest.h"
#include "lib/util/size.h"

#define JOBS_MOST 1024
#define MEM_LEAST (1u << 20)

#define DEADLINE_MOST 1e6

enum {
    OPTION_JSON = 0x1000,
    OPTION_MAX_MEM,
    OPTION_PROGRESS,
    OPTION_ALONE,
    OPTION_DEADLINE
};

/* clang-format off */
static const struct argp_option options[] = {
    {"jobs", 'j', "N", 0,
     "Use N threads (default: one a core, 8 at most)", TOOL_GROUP},
    {"max-mem", OPTION_MAX_MEM, "SIZE", 0,
     "Use buffers of SIZE bytes in all (default 64MiB)", 0},
    {"json", OPTION_JSON, 0, 0,
     "Print results as one JSON object", 0},
    {"progress", OPTION_PROGRESS, 0, 0,
     "Show progress where there is no terminal too, in lines", 0},
    {"quiet", 'q', 0, 0,
     "Print no results and no progress", 0},
    {0}
};
/* clang-format on */

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    tool_t *tool = state->input;

    switch (key) {
    case 'j':
        tool->engine.jobs = (uint32_t)cli_parse_count(
            state, "the number of threads", text, 1, JOBS_MOST);
        return 0;
    case OPTION_MAX_MEM:
        tool->engine.max_mem =
            cli_parse_size(state, "the size of buffers", text, MEM_LEAST);
        return 0;
    case OPTION_JSON:
        tool->json = true;
        return 0;
    case OPTION_PROGRESS:
        tool->progress = true;
        return 0;
    case 'q':
        tool->quiet = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp tool_argp = {options, parse_option, 0, 0, 0, 0, 0};

const struct argp_child tool_children[] = {
    {&tool_argp,         0, "Common options:", TOOL_GROUP},
    {0}
};

void tool_parse_only(const struct argp_state *state, const char *text,
                     bool *model_p, bool *optim_p)
{
    *model_p = strcmp(text, "model") == 0;
    *optim_p = strcmp(text, "optim") == 0;
    if (!*model_p && !*optim_p) {
        argp_error(state, "the kind must be model or optim, not '%s'", text);
    }
}

/* --- Ranks ---------------------------------------------------------------- */

/* clang-format off */
static const struct argp_option options_ranks[] = {
    {"alone", OPTION_ALONE, 0, 0,
     "Do all the work here, whatever srun or mpirun have started", TOOL_GROUP},
    {"deadline", OPTION_DEADLINE, "SECONDS", 0,
     "Give up when another rank has shown no life for SECONDS (default 600)",
     0},
    {0}
};
/* clang-format on */

static error_t parse_ranks(int key, char *text, struct argp_state *state)
{
    tool_t *tool = state->input;

    switch (key) {
    case OPTION_ALONE:
        tool->alone = true;
        return 0;
    case OPTION_DEADLINE:
        tool->deadline =
            cli_parse_double(state, "the deadline", text, 5, DEADLINE_MOST);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp tool_ranks_argp = {options_ranks, parse_ranks, 0, 0, 0, 0, 0};

void tool_parse_ranks(tool_t *tool, const char *program,
                      const struct argp *argp, int argc, char **argv,
                      void *settings)
{
    FILE *out = stdout, *errors = stderr, *nowhere = NULL;
    fsdp_error_t err;
    fsdp_status_t status = launch_place(false, &tool->launch, &err);

    /* Help and usage are said once. */
    if (status == FSDP_OK && tool->launch.rank > 0) {
        nowhere = fopen("/dev/null", "w");
    }
    if (nowhere != NULL) {
        stdout = stderr = nowhere;
    }
    cli_parse(program, argp, argc, argv, settings);
    if (nowhere != NULL) {
        stdout = out;
        stderr = errors;
        fclose(nowhere);
    }

    if (tool->alone) {
        status = launch_place(true, &tool->launch, &err);
    }
    if (status != FSDP_OK) {
        exit(cli_fail(&err));
    }
    tool->quiet = tool->quiet || tool->launch.rank > 0;
}

void tool_begin(tool_t *tool, const char *what)
{
    tool->engine.progress = progress_update;
    progress_begin(what, tool->quiet, tool->progress);
}

char *tool_shape(uint32_t ndim, const uint64_t *dims)
{
    const size_t most = sizeof(", 18446744073709551615");
    char *text = cli_realloc(NULL, ndim + 1, most);

    size_shape(ndim, dims, text, (ndim + 1) * most);
    return text;
}

char *tool_summary(const fsdp_ckpt_info_t *info)
{
    char step[32] = "", mesh[80] = "";

    if (info->step >= 0) {
        snprintf(step, sizeof(step), ", step %" PRId64, info->step);
    }
    if (info->mesh.world > 0) {
        snprintf(mesh, sizeof(mesh), ", %" PRIu32 " rank%s, %s",
                 info->mesh.world, cli_s(info->mesh.world),
                 fsdp_strategy_name(info->mesh.strategy));
        if (info->mesh.strategy == FSDP_STRATEGY_HYBRID) {
            size_t used = strlen(mesh);

            snprintf(mesh + used, sizeof(mesh) - used, ":%" PRIu32,
                     info->mesh.shard);
        }
    }

    return cli_printf("%s%s%s%s", fsdp_ckpt_format_name(info->format),
                      info->shows ? " (virtual)" : "", step, mesh);
}

char *tool_rate(uint64_t bytes, double seconds)
{
    char size[SIZE_TEXT_MAX];

    if (seconds <= 0) {
        return cli_strdup("-");
    }
    size_format((uint64_t)((double)bytes / seconds), size);

    return cli_printf("%s/s", size);
}

void tool_parse_argument(const struct argp_state *state, const char *what,
                         const char *text, const char **argument_p)
{
    if (*argument_p != NULL) {
        argp_error(state, "more than one %s", what);
    }
    *argument_p = text;
}

json_t *tool_json_entry(const char *key, const char *path, const char *text)
{
    json_t *item = json_object();

    cli_json_set(item, key, cli_json_text(path));
    if (text[0] != '\0') {
        cli_json_set(item, "why", cli_json_text(text));
    }

    return item;
}

void tool_line(const tool_t *tool, json_t *list, json_t *item, const char *fmt,
               ...)
{
    char *text = NULL, *clean;
    va_list ap;
    int n;

    if (tool->json) {
        cli_json_append(list, item);
        return;
    }

    json_decref(item);
    if (tool->quiet) {
        return;
    }
    va_start(ap, fmt);
    n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n >= 0) {
        clean = cli_printable(text);
        progress_erase();
        puts(clean);
        fflush(stdout);
        free(clean);
        free(text);
    }
}

/* What is wrong with the command all ranks find out, and what one has told the
 * others the first one says; unless that is what is lost. */
static bool is_known(const tool_t *tool, const fsdp_error_t *err)
{
    return (err->rank >= 0) ? err->status != FSDP_ERR_PEER_LOST ||
                                  (uint32_t)err->rank != tool->launch.rank
                            : err->status == FSDP_ERR_CONFIG ||
                                  err->status == FSDP_ERR_INVALID_PARAM ||
                                  err->status == FSDP_ERR_UNSUPPORTED;
}

int tool_fail(const tool_t *tool, const fsdp_error_t *err)
{
    if (tool->launch.rank > 0) {
        if (!is_known(tool, err)) {
            cli_message("rank %" PRIu32 ": %s", tool->launch.rank, err->text);
        }
        return (int)fsdp_status_exit(err->status);
    }
    if (tool->json) {
        json_t *all = json_object();

        cli_json_set(all, "error", cli_json_text(err->text));
        cli_json_set(all, "status",
                     cli_json_text(fsdp_status_name(err->status)));
        cli_json_print(all);
    }

    return cli_fail(err);
}

void tool_warn_recipe(bool unused)
{
    if (unused) {
        cli_message("warning: there are no flat parameters: --recipe was not "
                    "needed");
    }
}

fsdp_status_t tool_no_tensor(const fsdp_ckpt_t *ckpt, const char *pattern,
                             fsdp_error_t *err)
{
    nearest_t nearest = {.pattern = pattern};
    char text[NEAREST_TEXT_MAX];
    fsdp_ckpt_info_t info;

    fsdp_ckpt_get_info(ckpt, &info);
    for (uint64_t t = 0; t < info.num_tensors; t++) {
        fsdp_ckpt_tensor_t tensor;

        fsdp_ckpt_get_tensor(ckpt, t, &tensor);
        nearest_try(&nearest, tensor.name);
    }

    return fsdp_error_set(err, FSDP_ERR_NOT_FOUND,
                          "%s: no tensor's name fits '%s'%s", info.path,
                          pattern, nearest_text(&nearest, text));
}
