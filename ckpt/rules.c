/*
 * The text of rules, read.
 */
#include "config.h"

#include "ckpt/rules.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/util/check.h"
#include "lib/util/io.h"
#include "lib/util/text.h"

#define REVERSE   "reverse:"
#define TEXT_MOST (1u << 20)
#define SPACE     " \t\r"

typedef struct {
    rules_t *rules;
    unsigned line;
    char *rest; /* of the line */
    char *at;   /* of the word at hand */
    const char *word;
    fsdp_error_t *err;
} parser_t;

__attribute__((format(printf, 2, 3))) static fsdp_status_t wrong(
    const parser_t *parser, const char *fmt, ...)
{
    char text[200];
    va_list ap;

    va_start(ap, fmt);
    text_message(text, sizeof(text), fmt, ap);
    va_end(ap);
    return fsdp_error_set(parser->err, FSDP_ERR_INVALID_PARAM,
                          "%s: line %u: %s", parser->rules->name, parser->line,
                          text);
}

static fsdp_status_t no_memory(const rules_t *rules, fsdp_error_t *err)
{
    return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                          rules->name);
}

/* Room for one entry more; it is zeroed. */
static void *grow(void **array, size_t *num, size_t size)
{
    char *larger = realloc(*array, (*num + 1) * size);

    if (larger == NULL) {
        return NULL;
    }
    *array = larger;
    memset(larger + *num * size, 0, size);
    return larger + (*num)++ * size;
}

#define ADD(_rules, _array)                                   \
    grow((void **)&(_rules)->_array, &(_rules)->num_##_array, \
         sizeof(*(_rules)->_array))

/* --- Words ---------------------------------------------------------------- */

/* Go to the next word of the line; @return false if there is none. */
static bool next_word(parser_t *parser)
{
    char *word = parser->rest + strspn(parser->rest, SPACE);
    size_t size = strcspn(word, SPACE);

    if (size == 0 || *word == '#') {
        parser->word = parser->at = NULL;
        return false;
    }

    parser->rest = word + size;
    if (*parser->rest != '\0') {
        *parser->rest++ = '\0';
    }
    parser->word = parser->at = word;
    return true;
}

static bool is_word(const parser_t *parser, const char *text)
{
    return parser->word != NULL && strcmp(parser->word, text) == 0;
}

/* --- Names ---------------------------------------------------------------- */

static fsdp_status_t find_capture(const parser_t *parser, const char *name,
                                  int *capture_p)
{
    rules_t *rules = parser->rules;

    for (unsigned i = 1; i < rules->num_captures; i++) {
        if (strcmp(rules->captures[i], name) == 0) {
            *capture_p = (int)i;
            return FSDP_OK;
        }
    }
    if (rules->num_captures == RULES_CAPTURES) {
        return wrong(parser, "more than %d different {NAME}s",
                     RULES_CAPTURES - 1);
    }

    rules->captures[rules->num_captures] = name;
    *capture_p = (int)rules->num_captures++;
    return FSDP_OK;
}

/* The name between two brackets, the first of which is at hand. */
static fsdp_status_t parse_capture(parser_t *parser, char end, int *capture_p)
{
    char *name = parser->at + 1, *close = name;

    while (isalnum((unsigned char)*close) || *close == '_') {
        close++;
    }
    if (*close != end || close == name) {
        return wrong(parser,
                     "'%s': %c needs a name of letters and digits, "
                     "and %c",
                     parser->at, *parser->at, end);
    }

    *close = '\0';
    parser->at = close + 1;
    return find_capture(parser, name, capture_p);
}

static fsdp_status_t add_part(const parser_t *parser, rules_name_t *name,
                              const rules_part_t *part)
{
    if (name->num == RULES_PARTS) {
        return wrong(parser, "a name of more than %d parts", RULES_PARTS);
    }

    name->parts[name->num++] = *part;
    return FSDP_OK;
}

/* Literal text up to what means something; '\' takes the meaning from the
 * next character. */
static fsdp_status_t parse_literal(parser_t *parser, rules_name_t *name)
{
    char *from = parser->at, *to = from;
    rules_part_t part = {.literal.at = from};

    while (*from != '\0' && strchr("{*['", *from) == NULL && *from != ':') {
        if (*from == '\\' && from[1] != '\0') {
            from++;
        }
        *to++ = *from++;
    }
    part.literal.size = (size_t)(to - parser->at);
    parser->at = from;
    return (part.literal.size > 0) ? add_part(parser, name, &part) : FSDP_OK;
}

static fsdp_status_t parse_name(parser_t *parser, rules_name_t *name)
{
    bool star = false;
    int capture;

    *name = (rules_name_t){0};
    while (*parser->at != '\0' && strchr("['", *parser->at) == NULL &&
           *parser->at != ':') {
        rules_part_t part = {0};

        if (*parser->at == '{') {
            FSDP_TRY(parse_capture(parser, '}', &capture));
            part.capture = (unsigned)capture;
            FSDP_TRY(add_part(parser, name, &part));
        } else if (*parser->at == '*') {
            if (star) {
                return wrong(parser, "a second * in one name");
            }
            star = true;
            parser->at++;
            FSDP_TRY(add_part(parser, name, &part));
        } else {
            FSDP_TRY(parse_literal(parser, name));
        }
    }
    return (name->num > 0) ? FSDP_OK
                           : wrong(parser, "'%s' is no name", parser->word);
}

/* A word that is a name and nothing else. */
static fsdp_status_t parse_whole_name(parser_t *parser, rules_name_t *name)
{
    if (!next_word(parser)) {
        return wrong(parser, "a name is missing");
    }
    FSDP_TRY(parse_name(parser, name));
    return (*parser->at == '\0')
               ? FSDP_OK
               : wrong(parser,
                       "'%s' behind a name: write \\%c for the "
                       "character itself",
                       parser->at, *parser->at);
}

/* --- Rules ---------------------------------------------------------------- */

static fsdp_status_t parse_pad(parser_t *parser, rules_term_t *term)
{
    char *end;

    term->index = -1;
    term->pad = strtoull(parser->word + strlen("pad:"), &end, 10);
    return (term->pad > 0 && term->pad <= INT32_MAX && *end == '\0')
               ? FSDP_OK
               : wrong(parser, "'%s' is no pad:ROWS", parser->word);
}

static fsdp_status_t parse_term(parser_t *parser, rules_term_t *term)
{
    *term = (rules_term_t){.index = -1};
    if (!next_word(parser)) {
        return wrong(parser, "a name is missing");
    }
    if (strncmp(parser->word, "pad:", strlen("pad:")) == 0) {
        return parse_pad(parser, term);
    }

    FSDP_TRY(parse_name(parser, &term->name));
    if (*parser->at == '[') {
        FSDP_TRY(parse_capture(parser, ']', &term->index));
    }
    if (*parser->at == '\'') {
        term->transposed = true;
        parser->at++;
    }
    if (*parser->at == ':' && parser->at[1] != '\0') {
        term->size = parser->at + 1;
        return FSDP_OK;
    }
    return (*parser->at == '\0')
               ? FSDP_OK
               : wrong(parser,
                       "'%s' behind a name: it may have [CAPTURE], "
                       "then ', then :SIZE",
                       parser->at);
}

static fsdp_status_t parse_side(parser_t *parser, rules_side_t *side)
{
    do {
        if (side->num == RULES_TERMS) {
            return wrong(parser, "more than %d names on one side", RULES_TERMS);
        }
        FSDP_TRY(parse_term(parser, &side->terms[side->num]));
        side->num++;
    } while (next_word(parser) && is_word(parser, "+"));

    return FSDP_OK;
}

/* Each name has the same captures: so one name tells the others. */
static fsdp_status_t check_captures(const parser_t *parser,
                                    const rules_side_t *side, unsigned *all,
                                    bool *seen)
{
    for (unsigned i = 0; i < side->num; i++) {
        const rules_term_t *term = &side->terms[i];
        unsigned captures = rules_name_captures(&term->name);
        unsigned index = (term->index >= 0) ? 1u << term->index : 0;

        if (term->pad > 0) {
            continue;
        }
        if ((captures & index) != 0) {
            return wrong(parser, "[%s] is in the name too",
                         parser->rules->captures[term->index]);
        }
        if (*seen && (captures | index) != *all) {
            return wrong(parser, "all names need the same {NAME}s, in "
                                 "brackets of one kind or the other");
        }
        *all = captures | index;
        *seen = true;
    }

    return FSDP_OK;
}

static fsdp_status_t check_side(const parser_t *parser,
                                const rules_side_t *side)
{
    for (unsigned i = 0; i < side->num; i++) {
        const rules_term_t *term = &side->terms[i];

        if (term->pad > 0 && (i == 0 || i + 1 < side->num)) {
            return wrong(parser, "pad: comes last, behind a name and a +");
        }
        if (term->size != NULL && side->num == 1) {
            return wrong(parser, "a size is for one of several names that "
                                 "+ joins");
        }
    }

    return FSDP_OK;
}

static fsdp_status_t check_rule(const parser_t *parser,
                                const rules_rule_t *rule)
{
    unsigned captures = 0;
    bool seen = false;

    if (rule->from.num > 1 && rule->to.num > 1) {
        return wrong(parser, "one side of a rule is a single tensor");
    }
    FSDP_TRY(check_side(parser, &rule->from));
    FSDP_TRY(check_side(parser, &rule->to));
    FSDP_TRY(check_captures(parser, &rule->from, &captures, &seen));
    return check_captures(parser, &rule->to, &captures, &seen);
}

/* Both sides transposed are neither. */
static void simplify(rules_rule_t *rule)
{
    if (rule->from.num == 1 && rule->to.num == 1 &&
        rule->from.terms[0].transposed && rule->to.terms[0].transposed) {
        rule->from.terms[0].transposed = rule->to.terms[0].transposed = false;
    }
}

static fsdp_status_t parse_rule(parser_t *parser)
{
    rules_rule_t rule = {.line = parser->line}, *added;

    if (*parser->rest == '?') {
        rule.optional = true;
        parser->rest++;
    }
    FSDP_TRY(parse_side(parser, &rule.from));
    if (!is_word(parser, "=")) {
        return wrong(parser, "'%s' where = or + should be",
                     (parser->word != NULL) ? parser->word : "");
    }
    FSDP_TRY(parse_side(parser, &rule.to));
    if (parser->word != NULL) {
        return wrong(parser, "'%s' behind the end of the rule", parser->word);
    }
    FSDP_TRY(check_rule(parser, &rule));

    simplify(&rule);
    added = ADD(parser->rules, rules);
    if (added == NULL) {
        return no_memory(parser->rules, parser->err);
    }
    *added = rule;
    return FSDP_OK;
}

/* --- Statements ----------------------------------------------------------- */

static fsdp_status_t parse_pair(parser_t *parser, rules_name_t *left,
                                rules_name_t *right)
{
    FSDP_TRY(parse_whole_name(parser, left));
    if (!next_word(parser) || !is_word(parser, "=")) {
        return wrong(parser, "= is missing");
    }
    FSDP_TRY(parse_whole_name(parser, right));
    return (rules_name_captures(left) == rules_name_captures(right))
               ? FSDP_OK
               : wrong(parser, "both names need the same {NAME}s and *");
}

static fsdp_status_t parse_kind(parser_t *parser)
{
    rules_kind_t *kind = ADD(parser->rules, kinds);

    if (kind == NULL) {
        return no_memory(parser->rules, parser->err);
    }
    FSDP_TRY(parse_pair(parser, &kind->from, &kind->to));
    return ((rules_name_captures(&kind->from) & 1) != 0)
               ? FSDP_OK
               : wrong(parser, "a kind needs a * where names of rules go");
}

static fsdp_status_t parse_tie(parser_t *parser)
{
    rules_tie_t *tie = ADD(parser->rules, ties);

    return (tie != NULL) ? parse_pair(parser, &tie->alias, &tie->owner)
                         : no_memory(parser->rules, parser->err);
}

static fsdp_status_t parse_drop(parser_t *parser)
{
    rules_name_t *drop = ADD(parser->rules, drops);

    return (drop != NULL) ? parse_whole_name(parser, drop)
                          : no_memory(parser->rules, parser->err);
}

static fsdp_status_t parse_strip(parser_t *parser)
{
    const char **strip = ADD(parser->rules, strips);

    if (strip == NULL) {
        return no_memory(parser->rules, parser->err);
    }
    *strip = next_word(parser) ? parser->word : "";
    return (**strip != '\0') ? FSDP_OK
                             : wrong(parser, "a text to strip is missing");
}

static fsdp_status_t parse_statement(parser_t *parser)
{
    static const struct {
        const char *word;
        fsdp_status_t (*parse)(parser_t *parser);
    } table[] = {
        {"kind",  parse_kind },
        {"tied",  parse_tie  },
        {"drop",  parse_drop },
        {"strip", parse_strip},
    };
    char *start;

    parser->rest += strspn(parser->rest, SPACE);
    start = parser->rest;
    for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
        size_t size = strlen(table[i].word);

        if (strncmp(start, table[i].word, size) == 0 &&
            strchr(SPACE, start[size]) != NULL) {
            parser->rest += size;
            FSDP_TRY(table[i].parse(parser));
            return next_word(parser)
                       ? wrong(parser, "'%s' behind the end", parser->word)
                       : FSDP_OK;
        }
    }
    return (*start == '\0' || *start == '#') ? FSDP_OK : parse_rule(parser);
}

static fsdp_status_t parse_text(rules_t *rules, char *text, fsdp_error_t *err)
{
    parser_t parser = {.rules = rules, .err = err};
    char *end;

    rules->num_captures = 1;
    rules->captures[0] = "*";
    for (char *line = text; line != NULL; line = end) {
        end = strchr(line, '\n');
        if (end != NULL) {
            *end++ = '\0';
        }
        parser.line++;
        parser.rest = line;
        FSDP_TRY(parse_statement(&parser));
    }

    if (rules->num_rules + rules->num_strips + rules->num_drops == 0) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM, "%s: holds no rule",
                              rules->name);
    }
    return FSDP_OK;
}

/* --- Opening -------------------------------------------------------------- */

/* Rules without kinds are for parameters and what an optimizer keeps of each
 * alike. */
static const char default_kinds[] = "kind model/* = model/*\n"
                                    "kind optim/{kind}/* = optim/{kind}/*\n"
                                    "kind * = *\n";

static bool has_kinds(const char *text)
{
    while (text != NULL) {
        text += strspn(text, SPACE "\n");
        if (strncmp(text, "kind", 4) == 0 && text[4] != '\0' &&
            strchr(SPACE, text[4]) != NULL) {
            return true;
        }
        text = strchr(text, '\n');
    }

    return false;
}

static void reverse(rules_t *rules)
{
    for (size_t i = 0; i < rules->num_rules; i++) {
        rules_side_t side = rules->rules[i].from;

        rules->rules[i].from = rules->rules[i].to;
        rules->rules[i].to = side;
    }
    for (size_t i = 0; i < rules->num_kinds; i++) {
        rules_name_t name = rules->kinds[i].from;

        rules->kinds[i].from = rules->kinds[i].to;
        rules->kinds[i].to = name;
    }
    rules->num_strips = 0;
}

static fsdp_status_t get_text(rules_t *rules, const char *name, char **text_p,
                              fsdp_error_t *err)
{
    const char *known, *text;
    size_t size;

    for (size_t i = 0; fsdp_ckpt_get_rules(i, &known, &text); i++) {
        if (strcmp(known, name) == 0) {
            *text_p = strdup(text);
            return (*text_p != NULL) ? FSDP_OK : no_memory(rules, err);
        }
    }
    if (strchr(name, '/') == NULL && access(name, F_OK) != 0) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "%s: neither a set of rules nor a file: 'list' "
                              "lists the sets",
                              name);
    }

    FSDP_TRY(io_read_file(name, TEXT_MOST, text_p, &size, err));
    if (strlen(*text_p) != size) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "%s: is no text: it holds a byte 0", name);
    }
    return FSDP_OK;
}

fsdp_status_t rules_open(const char *name, rules_t *rules_p, fsdp_error_t *err)
{
    rules_t rules = {.name = name};
    fsdp_status_t status;
    char *text = NULL;

    if (strncmp(name, REVERSE, strlen(REVERSE)) == 0) {
        name += strlen(REVERSE);
        rules.reversed = true;
    }
    rules.name = rules.label = strdup(name);
    if (rules.label == NULL) {
        rules.name = name;
        return no_memory(&rules, err);
    }

    FSDP_TRY_GOTO(get_text(&rules, name, &text, err), err_free);
    rules.text =
        has_kinds(text) ? strdup(text) : io_path("%s\n%s", text, default_kinds);
    if (rules.text == NULL) {
        status = no_memory(&rules, err);
        goto err_free;
    }
    FSDP_TRY_GOTO(parse_text(&rules, rules.text, err), err_free);

    if (rules.reversed) {
        reverse(&rules);
    }
    free(text);
    *rules_p = rules;
    return FSDP_OK;
err_free:
    free(text);
    rules_close(&rules);
    return status;
}

void rules_close(rules_t *rules)
{
    free(rules->rules);
    free(rules->kinds);
    free(rules->ties);
    free(rules->drops);
    free(rules->strips);
    free(rules->text);
    free(rules->label);
    *rules = (rules_t){0};
}
