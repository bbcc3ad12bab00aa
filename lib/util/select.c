#include "config.h"

#include "lib/util/select.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "lib/util/io.h"

#define MODEL "model/"
#define OPTIM "optim/"

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

bool select_is_model(const char *name)
{
    return begins(name, MODEL);
}

bool select_is_optim(const char *name)
{
    return begins(name, OPTIM);
}

const char *select_base(const char *name)
{
    const char *slash;

    if (select_is_model(name)) {
        return name + strlen(MODEL);
    }
    if (select_is_optim(name)) {
        slash = strchr(name + strlen(OPTIM), '/');
        return (slash != NULL) ? slash + 1 : name;
    }

    return name;
}

bool select_pattern_match(const char *pattern, const char *name)
{
    return fnmatch(pattern, name, 0) == 0 ||
           (select_is_model(name) &&
            fnmatch(pattern, name + strlen(MODEL), 0) == 0);
}

static bool any_matches(const char *const *patterns, size_t num,
                        const char *name)
{
    for (size_t i = 0; i < num; i++) {
        if (select_pattern_match(patterns[i], name)) {
            return true;
        }
    }

    return false;
}

/* Of the second optimizer of accelerate, and those behind it: "optimizer_1." */
static bool is_numbered_optimizer(const char *name)
{
    static const char with[] = "optimizer_";
    size_t digits =
        begins(name, with) ? strspn(name + strlen(with), "0123456789") : 0;

    return digits > 0 && name[strlen(with) + digits] == '.';
}

static bool is_optimizer_state(const char *name)
{
    static const char *const prefixes[] = {
        OPTIM, "optim.", "optimizer.", "opt.state.", "exp_avg.", "exp_avg_sq.",
    };

    for (size_t i = 0; i < sizeof(prefixes) / sizeof(*prefixes); i++) {
        if (begins(name, prefixes[i])) {
            return true;
        }
    }

    return is_numbered_optimizer(name);
}

bool select_match(const select_t *select, const char *name)
{
    if (select->only != SELECT_ALL &&
        is_optimizer_state(name) != (select->only == SELECT_OPTIM)) {
        return false;
    }

    return (select->num_include == 0 ||
            any_matches(select->include, select->num_include, name)) &&
           !any_matches(select->exclude, select->num_exclude, name);
}

/* A rule's parts, neither of them with its '*'. */
typedef struct {
    const char *from, *to; /* not terminated */
    size_t from_size, to_size;
    bool is_prefix;
} rule_t;

static bool parse_rule(const char *text, rule_t *rule)
{
    const char *equals = strchr(text, '=');
    bool from_star, to_star;

    if (equals == NULL) {
        return false;
    }

    *rule = (rule_t){
        .from = text,
        .to = equals + 1,
        .from_size = (size_t)(equals - text),
        .to_size = strlen(equals + 1),
    };
    from_star = rule->from_size > 0 && equals[-1] == '*';
    to_star = rule->to_size > 0 && rule->to[rule->to_size - 1] == '*';
    rule->is_prefix = from_star;
    rule->from_size -= from_star;
    rule->to_size -= to_star;

    return from_star == to_star &&
           (from_star || (rule->from_size > 0 && rule->to_size > 0)) &&
           memchr(rule->from, '*', rule->from_size) == NULL &&
           memchr(rule->to, '*', rule->to_size) == NULL;
}

fsdp_status_t select_check_rule(const char *rule, fsdp_error_t *err)
{
    rule_t parsed;

    if (!parse_rule(rule, &parsed)) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "'%s' is no FROM=TO: both are whole names, or "
                              "both are prefixes that end in '*'",
                              rule);
    }

    return FSDP_OK;
}

fsdp_status_t select_parse_split(const char *rule, size_t *size_p, long *dim_p,
                                 fsdp_error_t *err)
{
    const char *equals = strrchr(rule, '=');
    char *end = NULL;

    if (equals != NULL && equals > rule && equals[1] != '\0') {
        *size_p = (size_t)(equals - rule);
        *dim_p = strtol(equals + 1, &end, 10);
    }
    if (end == NULL || *end != '\0') {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "'%s' does not say what is split where: give "
                              "PATTERN=DIMENSION, such as '*.c_attn.weight=1'",
                              rule);
    }

    return FSDP_OK;
}

char *select_rename(const char *const *rules, size_t num, const char *name)
{
    char *now = strdup(name);

    for (size_t i = 0; i < num && now != NULL; i++) {
        char *next;
        rule_t rule;

        if (!parse_rule(rules[i], &rule) ||
            strncmp(now, rule.from, rule.from_size) != 0 ||
            (!rule.is_prefix && now[rule.from_size] != '\0')) {
            continue;
        }
        next =
            io_path("%.*s%s", (int)rule.to_size, rule.to, now + rule.from_size);
        free(now);
        now = next;
    }

    return now;
}
