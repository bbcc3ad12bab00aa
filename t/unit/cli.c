#include "config.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "bin/cli.h"
#include "bin/table.h"
#include "t/tap/tap.h"

static void test_printable(void)
{
    static const struct {
        const char *what, *text, *want;
        size_t width;
    } cases[] = {
        {"ASCII",               "wte.weight",   "wte.weight",    10},
        {"UTF-8",               "größe",      "größe",       5 },
        {"wide characters",     "重み",       "重み",        4 },
        {"a combining accent",  "e\xcc\x81x",   "e\xcc\x81x",    2 },
        {"an escape sequence",  "a\033[2Jb",    "a\\x1b[2Jb",    9 },
        {"a newline",           "a\nb",         "a\\x0ab",       6 },
        {"bytes not UTF-8",     "a\xff\xc3",    "a\\xff\\xc3",   9 },
        {"a C1 control",        "\xc2\x9b",     "\\xc2\\x9b",    8 },
        {"UTF-8 after garbage", "\xe9\xc3\xa9", "\\xe9\xc3\xa9", 5 },
        {"nothing",             "",             "",              0 },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char *clean = cli_printable(cases[i].text);

        ok(strcmp(clean, cases[i].want) == 0, "%s: text", cases[i].what);
        ok(cli_width(clean) == cases[i].width, "%s: width", cases[i].what);
        free(clean);
    }
}

static void test_table(void)
{
    static const table_column_t columns[] = {
        {"NAME",  false},
        {"BYTES", true },
        {"NOTE",  false},
    };
    static const char want[] = "NAME   BYTES  NOTE\n"
                               "größe      7\n"
                               "重み   12345  x\n"
                               "a\n"
                               "              late\n";
    table_t *table = table_create(columns, 3);
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    table_cell(table, "größe");
    table_cell(table, "%d", 7);
    table_row_end(table);
    table_cell(table, "重み");
    table_cell(table, "%d", 12345);
    table_cell(table, "x");
    table_cell(table, "a");
    table_row_end(table);
    table_cell(table, "%s", "");
    table_cell(table, "%s", "");
    table_cell(table, "late");
    table_row_end(table);
    table_print(table, out);
    fclose(out);

    ok(strcmp(text, want) == 0, "a table lines up, no blanks trail");
    free(text);
    table_destroy(table);
    table_destroy(NULL);
}

static void test_json(void)
{
    const uint64_t words[2] = {1, 0xfedcba9876543210};
    json_t *all = json_array();
    char *text;

    cli_json_append(all, cli_json_number(0.5));
    cli_json_append(all, cli_json_number(0.0 / 0.0));
    cli_json_append(all, cli_json_number(-1.0 / 0.0));
    cli_json_append(all, cli_json_text("\xff"));
    cli_json_append(all, cli_json_hex(words, 2));
    text = json_dumps(all, JSON_COMPACT);
    ok(strcmp(text, "[0.5,\"nan\",\"-inf\",\"\\\\xff\","
                    "\"0000000000000001fedcba9876543210\"]") == 0,
       "JSON has no values that it lacks: %s", text);
    free(text);
    json_decref(all);
}

int main(void)
{
    setlocale(LC_CTYPE, "C.UTF-8");
    test_printable();
    test_table();
    test_json();
    return tap_done();
}
