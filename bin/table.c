#include "config.h"

#include "bin/table.h"

#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "bin/cli.h"

#define GAP 2 /* blanks between columns */

struct table {
    table_column_t *columns;
    size_t *widths;
    char **cells; /* row by row; NULL is empty */
    size_t num_cells, room;
    unsigned num_columns;
};

table_t *table_create(const table_column_t *columns, unsigned num)
{
    table_t *table = cli_realloc(NULL, 1, sizeof(*table));

    *table = (table_t){.num_columns = num};
    table->columns = cli_realloc(NULL, num, sizeof(*columns));
    memcpy(table->columns, columns, num * sizeof(*columns));
    table->widths = cli_realloc(NULL, num, sizeof(*table->widths));
    for (unsigned c = 0; c < num; c++) {
        table->widths[c] = cli_width(columns[c].title);
    }

    return table;
}

void table_destroy(table_t *table)
{
    if (table == NULL) {
        return;
    }

    for (size_t i = 0; i < table->num_cells; i++) {
        free(table->cells[i]);
    }
    free(table->cells);
    free(table->widths);
    free(table->columns);
    free(table);
}

static void add(table_t *table, char *text)
{
    unsigned column = (unsigned)(table->num_cells % table->num_columns);

    if (table->num_cells == table->room) {
        table->room = 2 * table->room + table->num_columns;
        table->cells =
            cli_realloc(table->cells, table->room, sizeof(*table->cells));
    }
    table->cells[table->num_cells++] = text;

    if (text != NULL) {
        size_t width = cli_width(text);

        if (width > table->widths[column]) {
            table->widths[column] = width;
        }
    }
}

void table_cell(table_t *table, const char *fmt, ...)
{
    char *text, *clean;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0) {
        abort();
    }

    clean = cli_printable(text);
    free(text);
    add(table, clean);
}

void table_row_end(table_t *table)
{
    while (table->num_cells % table->num_columns != 0) {
        add(table, NULL);
    }
}

static void print_blanks(FILE *out, size_t num)
{
    fprintf(out, "%*s", (int)num, "");
}

/* Blanks are owed until a text comes that needs them, so none trail. */
static void print_row(const table_t *table, const char *const *cells, FILE *out)
{
    size_t owed = 0;

    for (unsigned c = 0; c < table->num_columns; c++) {
        const char *text = (cells[c] != NULL) ? cells[c] : "";
        size_t pad = table->widths[c] - cli_width(text);

        if (*text != '\0') {
            print_blanks(out, owed + (table->columns[c].right ? pad : 0));
            fputs(text, out);
            owed = table->columns[c].right ? 0 : pad;
        } else {
            owed += table->widths[c];
        }
        owed += GAP;
    }
    fputc('\n', out);
}

void table_print(const table_t *table, FILE *out)
{
    const char **titles =
        cli_realloc(NULL, table->num_columns, sizeof(*titles));
    bool titled = false;

    assert(table->num_cells % table->num_columns == 0);
    for (unsigned c = 0; c < table->num_columns; c++) {
        titles[c] = table->columns[c].title;
        titled = titled || *titles[c] != '\0';
    }
    if (titled) {
        print_row(table, titles, out);
    }
    free(titles);

    for (size_t i = 0; i < table->num_cells; i += table->num_columns) {
        print_row(table, (const char *const *)table->cells + i, out);
    }
}
