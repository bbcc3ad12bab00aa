/*
 * Rules that give tensors the names and shapes of another program
 * (fsdp-rules(5)).
 *
 * A catalog is rewritten into a catalog: a transposed tensor is the same bytes
 * with other strides, a part of a tensor is part of its pieces, a tensor made
 * of several has the pieces of all.  So whatever reads a catalog reads through
 * rules, and nothing is copied for them.
 */
#ifndef FSDP_RULES_H
#define FSDP_RULES_H

#include "ckpt/catalog.h"

#define RULES_CAPTURES 16    /* different ones in a file; 0 is '*' */
#define RULES_PARTS    24    /* of a name */
#define RULES_TERMS    16    /* of one side */
#define RULES_NUMBERED 65536 /* numbers of a dimension that is taken apart */

/* --- Names (rules_name.c) ------------------------------------------------- */

/* Text that is not terminated. */
typedef struct {
    const char *at; /* NULL: none */
    size_t size;
} rules_text_t;

/* Literal text, or a capture where literal.at is NULL. */
typedef struct {
    rules_text_t literal;
    unsigned capture;
} rules_part_t;

typedef struct {
    rules_part_t parts[RULES_PARTS];
    unsigned num;
} rules_name_t;

/* What the captures of a name stand for. */
typedef struct {
    rules_text_t texts[RULES_CAPTURES];
    char numbers[RULES_CAPTURES][24]; /* where texts that are made may lie */
} rules_binding_t;

/* Captures that are bound must fit.  @a binding is changed only on success. */
bool rules_name_match(const rules_name_t *name, rules_text_t text,
                      rules_binding_t *binding);

/* The name that a binding makes, in place of the '*' of @a kind, if that is not
 * NULL; the caller frees it; NULL: no memory. */
char *rules_name_make(const rules_name_t *kind, const rules_name_t *name,
                      const rules_binding_t *binding);

/* Captures of a name, a bit each. */
unsigned rules_name_captures(const rules_name_t *name);

/* --- Rules (rules.c) ------------------------------------------------------ */

/* One name of a side, and what of it is meant. */
typedef struct {
    rules_name_t name;
    int index; /* capture that numbers its first dimension; -1: none */
    bool transposed;
    const char *size; /* of its part: a number or a value's name; or NULL */
    uint64_t pad;     /* no name: rows of zeros up to a multiple of this */
} rules_term_t;

typedef struct {
    rules_term_t terms[RULES_TERMS];
    unsigned num;
} rules_side_t;

typedef struct {
    rules_side_t from, to;
    unsigned line;
    bool optional; /* it need not fit */
} rules_rule_t;

typedef struct {
    rules_name_t from, to; /* each with one '*' */
} rules_kind_t;

typedef struct {
    rules_name_t alias, owner; /* as the first side of a file has them */
} rules_tie_t;

typedef struct {
    const char *name; /* for messages */
    bool reversed;
    rules_rule_t *rules;
    size_t num_rules;
    rules_kind_t *kinds; /* the first that fits counts */
    size_t num_kinds;
    rules_tie_t *ties;
    size_t num_ties;
    rules_name_t *drops;
    size_t num_drops;
    const char **strips;
    size_t num_strips;
    const char *captures[RULES_CAPTURES]; /* names */
    unsigned num_captures;
    char *text; /* all strings point into it */
    char *label;
} rules_t;

/**
 * Read a set of rules.
 *
 * @param name  One that comes with libfsdp, or the path of a file; with
 *              "reverse:" in front the set is used from right to left.
 *
 * @return FSDP_ERR_INVALID_PARAM, naming file and line.
 */
fsdp_status_t rules_open(const char *name, rules_t *rules_p, fsdp_error_t *err);
void rules_close(rules_t *rules);

/* --- Using them (rules_apply.c) ------------------------------------------- */

/**
 * What rules make of a sealed catalog.
 *
 * @param only_model  Leave out what is named as optimizer state.
 * @param to      Empty; the caller frees it, after errors too.
 * @param lost_p  One for each piece of @a from: it has checksums that no piece
 *                of @a to has; rules_check() compares them.  The caller frees
 *                it.
 * @param note    Told what rules leave out or add; may be NULL.
 *
 * @return FSDP_ERR_INVALID_PARAM, naming the rule's line and the tensor, if a
 *         rule fits nothing or tensors do not fit it.
 */
fsdp_status_t rules_apply(const rules_t *rules, const catalog_t *from,
                          bool only_model, catalog_t *to, bool **lost_p,
                          fsdp_ckpt_note_f note, void *arg, fsdp_error_t *err);

/* --- Several sets (rules_use.c) ------------------------------------------- */

/* As in fsdp_ckpt_convert_config_t. */
typedef struct {
    const char *const *rules;
    size_t num_rules;
    const char *const *set;
    size_t num_set;
    bool only_model; /* leave out what is named as optimizer state */
    fsdp_ckpt_note_f note;
    void *note_arg;
} rules_use_t;

/* A source before rules were applied, and which of its pieces lost their
 * checksums by that. */
typedef struct {
    catalog_t cat;
    bool *lost;
} rules_stage_t;

typedef struct {
    rules_stage_t *stages; /* one for each set of rules, and room for one of
                              parts (ckpt/cut.h) */
    size_t num;
} rules_stages_t; /* zeroed: none */

/**
 * Give a source the values that it lacks, then make it what rules make of it.
 *
 * @param stages  Zeroed; the caller frees it with rules_stages_free(), after
 *                errors too.
 */
fsdp_status_t rules_use(const rules_use_t *use, catalog_t *cat,
                        rules_stages_t *stages, fsdp_error_t *err);

/**
 * Read the pieces that lost their checksums, and compare those.
 *
 * @param engine   NULL: the defaults.
 * @param bytes_p  How many bytes were read are added.
 */
fsdp_status_t rules_check(const rules_stages_t *stages,
                          const fsdp_ckpt_engine_t *engine, uint64_t *bytes_p,
                          fsdp_error_t *err);

void rules_stages_free(rules_stages_t *stages);

#endif
