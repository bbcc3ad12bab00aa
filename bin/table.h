/*
 * Tables whose columns line up: text to the left, numbers to the right, widths
 * as a terminal shows them.  Lines have no trailing blanks.
 */
#ifndef FSDP_TABLE_H
#define FSDP_TABLE_H

#include <stdbool.h>
#include <stdio.h>

typedef struct table table_t;

typedef struct {
    const char *title; /* borrowed by the table */
    bool right;        /* align to the right */
} table_column_t;

/* @a columns is copied. */
table_t *table_create(const table_column_t *columns, unsigned num);

/* NULL is allowed. */
void table_destroy(table_t *table);

/* Fill the next cell, rows from left to right.  The text is made printable.
 * A row is begun by its first cell; missing cells at the end are empty. */
__attribute__((format(printf, 2, 3))) void table_cell(table_t *table,
                                                      const char *fmt, ...);

/* End the row that is being filled. */
void table_row_end(table_t *table);

/* Print the titles, unless all are empty, and all rows. */
void table_print(const table_t *table, FILE *out);

#endif
