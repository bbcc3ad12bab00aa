#include "config.h"

#include "bin/cli.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "lib/util/json_text.h"
#include "lib/util/size.h"

static const char *cli_program = "fsdp";
static char version[64];

/* argp ends the program when it has printed a help. */
static bool parsing;

static void finish_parsing(void)
{
    if (parsing && cli_finish(FSDP_EXIT_DONE) != FSDP_EXIT_DONE) {
        _exit(FSDP_EXIT_IO);
    }
}

void cli_parse(const char *program, const struct argp *argp, int argc,
               char **argv, void *settings)
{
    cli_program = program;
    snprintf(version, sizeof(version), "%s (libfsdp) %s", program,
             PACKAGE_VERSION);
    argp_program_version = version;
    argp_err_exit_status = FSDP_EXIT_USAGE;
    setlocale(LC_CTYPE, "C.UTF-8"); /* names are UTF-8 whatever the user has */

    /* argp shows argv[0], which libtool makes a longer name in a build tree. */
    if (argc > 0) {
        argv[0] = (char *)(uintptr_t)program;
    }
    parsing = true;
    atexit(finish_parsing);
    argp_parse(argp, argc, argv, 0, NULL, settings);
    parsing = false;
}

uint64_t cli_parse_count(const struct argp_state *state, const char *what,
                         const char *text, uint64_t least, uint64_t most)
{
    uintmax_t value;
    char *end;

    errno = 0;
    value = strtoumax(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end != '\0') {
        argp_error(state, "%s must be a whole number, not '%s'", what, text);
    }
    if (errno != 0 || value < least || value > most) {
        if (most == UINT64_MAX) {
            argp_error(state, "%s must be at least %" PRIu64 ", not %s", what,
                       least, text);
        }
        argp_error(state, "%s must be from %" PRIu64 " to %" PRIu64 ", not %s",
                   what, least, most, text);
    }

    return value;
}

uint64_t cli_parse_size(const struct argp_state *state, const char *what,
                        const char *text, uint64_t least)
{
    uint64_t bytes = 0;

    if (!size_parse(text, &bytes)) {
        argp_error(state,
                   "%s must be a size such as 512K, 64MiB or 1.5GB, not '%s'",
                   what, text);
    }
    if (bytes < least) {
        argp_error(state, "%s must be at least %" PRIu64 " bytes, not '%s'",
                   what, least, text);
    }

    return bytes;
}

double cli_parse_double(const struct argp_state *state, const char *what,
                        const char *text, double least, double most)
{
    double value;
    char *end;

    errno = 0;
    value = strtod(text, &end);
    if (end == text || *end != '\0' || errno == ERANGE || isnan(value)) {
        argp_error(state, "%s must be a number, not '%s'", what, text);
    }
    if (value < least || value > most) {
        argp_error(state, "%s must be from %.9g to %.9g, not %s", what, least,
                   most, text);
    }

    return value;
}

void cli_message(const char *fmt, ...)
{
    char *text = NULL, *clean;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0) {
        abort();
    }

    clean = cli_printable(text);
    fprintf(stderr, "%s: %s\n", cli_program, clean);
    free(clean);
    free(text);
}

int cli_fail(const fsdp_error_t *err)
{
    cli_message("%s", err->text);

    return (int)fsdp_status_exit(err->status);
}

int cli_finish(int code)
{
    bool failed = ferror(stdout) != 0;

    errno = 0;
    if (fflush(stdout) != 0 || failed) {
        cli_message("cannot write the results to standard output%s%s",
                    errno ? ": " : "", errno ? strerror(errno) : "");
        return FSDP_EXIT_IO;
    }

    return code;
}

/* --- Memory and text ------------------------------------------------------ */

static void *or_die(void *memory)
{
    if (memory == NULL) {
        fprintf(stderr, "%s: no memory left\n", cli_program);
        exit(FSDP_EXIT_TROUBLE);
    }

    return memory;
}

void *cli_realloc(void *old, size_t num, size_t size)
{
    return or_die(reallocarray(old, num ? num : 1, size ? size : 1));
}

char *cli_strdup(const char *text)
{
    return or_die(strdup(text));
}

char *cli_printf(const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vasprintf(&text, fmt, ap);
    va_end(ap);

    return or_die((n < 0) ? NULL : text);
}

char *cli_printable(const char *text)
{
    size_t size = strlen(text), n;
    char *clean = cli_realloc(NULL, size + 1, 4), *out = clean;
    mbstate_t state = {0};
    wchar_t wide;

    for (; size > 0; text += n, size -= n) {
        n = mbrtowc(&wide, text, size, &state);
        if (n <= size && wcwidth(wide) >= 0) {
            out = mempcpy(out, text, n);
        } else {
            out += sprintf(out, "\\x%02x", (unsigned char)*text);
            memset(&state, 0, sizeof(state));
            n = 1;
        }
    }
    *out = '\0';

    return clean;
}

const char *cli_s(uint64_t num)
{
    return (num == 1) ? "" : "s";
}

size_t cli_width(const char *text)
{
    size_t size = strlen(text), width = 0, n;
    mbstate_t state = {0};
    wchar_t wide;

    for (; size > 0; text += n, size -= n) {
        n = mbrtowc(&wide, text, size, &state);
        if (n > size) {
            memset(&state, 0, sizeof(state));
            n = 1;
            width++;
        } else {
            int columns = wcwidth(wide);

            width += (columns > 0) ? (size_t)columns : 0;
        }
    }

    return width;
}

void cli_list_add(cli_list_t *list, const char *text)
{
    list->items = cli_realloc(list->items, list->num + 1, sizeof(*list->items));
    list->items[list->num++] = text;
}

/* --- JSON ----------------------------------------------------------------- */

json_t *cli_json_text(const char *text)
{
    json_t *value = json_string(text);

    if (value == NULL) { /* not UTF-8 */
        char *clean = cli_printable(text);

        value = json_string(clean);
        free(clean);
    }

    return or_die(value);
}

json_t *cli_json_number(double value)
{
    if (isnan(value)) {
        return or_die(json_string("nan"));
    }
    if (isinf(value)) {
        return or_die(json_string((value < 0) ? "-inf" : "inf"));
    }

    return or_die(json_real(value));
}

json_t *cli_json_hex(const uint64_t *words, size_t num)
{
    char *text = cli_realloc(NULL, num + 1, 16);
    json_t *value;

    text[0] = '\0';
    for (size_t i = 0; i < num; i++) {
        sprintf(text + 16 * i, "%016" PRIx64, words[i]);
    }
    value = json_string(text);
    free(text);

    return or_die(value);
}

void cli_json_set(json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new_nocheck(object, key, value) != 0) {
        or_die(NULL);
    }
}

void cli_json_append(json_t *array, json_t *value)
{
    if (json_array_append_new(array, value) != 0) {
        or_die(NULL);
    }
}

void cli_json_print(json_t *value)
{
    /* The outcome is in ferror(stdout), which cli_finish() looks at. */
    json_dumpf(value, stdout,
               JSON_INDENT(2) | JSON_ENCODE_ANY | json_text_digits(value));
    putchar('\n');
    json_decref(value);
}
