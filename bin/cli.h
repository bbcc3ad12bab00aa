/*
 * What all programs share: arguments by argp, exit codes, messages on stderr,
 * results on stdout, JSON.
 *
 * These functions are for programs: they print, and some exit.  One thread.
 */
#ifndef FSDP_CLI_H
#define FSDP_CLI_H

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include "lib/util/fsdp_status.h"

/**
 * Parse the command line.  Wrong usage exits with FSDP_EXIT_USAGE, --help and
 * --version exit with 0.
 *
 * @param program   Name in usage, version and messages; kept by pointer.
 * @param settings  What the parser functions get as state->input.
 */
void cli_parse(const char *program, const struct argp *argp, int argc,
               char **argv, void *settings);

/* Values of options; what is wrong ends in argp_error(), which names @a what:
 * a noun phrase such as "the number of ranks". */
uint64_t cli_parse_count(const struct argp_state *state, const char *what,
                         const char *text, uint64_t least, uint64_t most);
uint64_t cli_parse_size(const struct argp_state *state, const char *what,
                        const char *text, uint64_t least);
double cli_parse_double(const struct argp_state *state, const char *what,
                        const char *text, double least, double most);

/* One line "PROGRAM: text" on stderr. */
__attribute__((format(printf, 1, 2))) void cli_message(const char *fmt, ...);

/* Say the error on stderr.
 * @return The exit code that belongs to it, for `return cli_fail(&err);`. */
int cli_fail(const fsdp_error_t *err);

/**
 * Flush stdout: the last thing a program does.
 *
 * @param code  The exit code so far.
 *
 * @return @a code; FSDP_EXIT_IO, with a message, if stdout could not be
 *         written.
 */
int cli_finish(int code);

/* Memory or death: the result is never NULL.  The caller frees it. */
void *cli_realloc(void *old, size_t num, size_t size);
char *cli_strdup(const char *text);
__attribute__((format(printf, 1, 2))) char *cli_printf(const char *fmt, ...);

/**
 * A copy of @a text that is safe for a terminal: control characters and bytes
 * that are no UTF-8 appear as \xNN.  The caller frees it.
 */
char *cli_printable(const char *text);

/* The end of the plural: "" for one, else "s". */
const char *cli_s(uint64_t num);

/* Columns that @a text, which is printable UTF-8, takes on a terminal. */
size_t cli_width(const char *text);

/* A list of texts that an option may add to. */
typedef struct {
    const char **items; /* borrowed texts */
    size_t num;
} cli_list_t;

void cli_list_add(cli_list_t *list, const char *text);

/* JSON values; never NULL.  Numbers that JSON lacks become the strings "nan",
 * "inf" and "-inf". */
json_t *cli_json_text(const char *text);
json_t *cli_json_number(double value);
json_t *cli_json_hex(const uint64_t *words, size_t num);

/* Add a value to an object or an array; the reference is taken over. */
void cli_json_set(json_t *object, const char *key, json_t *value);
void cli_json_append(json_t *array, json_t *value);

/* Print a value and a newline on stdout, and release it. */
void cli_json_print(json_t *value);

#endif
