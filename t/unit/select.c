#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "lib/util/select.h"
#include "t/tap/tap.h"

static void test_patterns(void)
{
    static const struct {
        const char *pattern, *name;
        bool matches;
    } cases[] = {
        {"*",             "model/h.0.w",         true },
        {"model/*",       "model/h.0.w",         true },
        {"h.0.*",         "model/h.0.w",         true },
        {"h.0.*",         "h.0.w",               true },
        {"h.0.*",         "optim/exp_avg/h.0.w", false},
        {"*h.[0-3].*",    "optim/exp_avg/h.2.w", true },
        {"h.0",           "model/h.0.w",         false},
        {"model/model/w", "model/w",             false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        ok(select_pattern_match(cases[i].pattern, cases[i].name) ==
               cases[i].matches,
           "'%s' against '%s'", cases[i].pattern, cases[i].name);
    }
}

static void test_selection(void)
{
    const char *all[] = {"*h.0*", "*.b"}, *no[] = {"optim/exp_avg_sq/*"};
    static const char *const states[] = {
        "optim/exp_avg/w", "optim.state.w.step", "optimizer.state.0.exp_avg",
        "opt.state.w",     "exp_avg.w",          "exp_avg_sq.w",
        "optimizer_1.a",
    };
    static const char *const others[] = {
        "model/w", "optimal", "opt.w",         "model.optim.w",
        "exp_avg", "fp32.w",  "optimizer_x.a",
    };
    select_t select = {all, 2, no, 1, .only = SELECT_ALL};
    select_t none = {0}, model = {.only = SELECT_MODEL};

    ok(select_match(&none, "optim/exp_avg/w"), "no pattern selects all");
    ok(!select_match(&model, "optim/exp_avg/w"), "except optimizer state");
    ok(select_match(&model, "w"), "which a name without a kind is not");
    for (size_t i = 0; i < sizeof(states) / sizeof(*states); i++) {
        select_t only = {.only = SELECT_OPTIM}, rest = {.only = SELECT_MODEL};

        ok(select_match(&only, states[i]) && !select_match(&rest, states[i]),
           "%s is optimizer state", states[i]);
        ok(!select_match(&only, others[i]) && select_match(&rest, others[i]),
           "%s is not", others[i]);
    }
    ok(select_match(&select, "model/ln.b"), "any pattern is enough");
    ok(!select_match(&select, "model/ln.w"), "one is needed");
    ok(!select_match(&select, "optim/exp_avg_sq/h.0"), "exclusion wins");
}

static void test_rules(void)
{
    static const struct {
        const char *rule, *name, *want;
    } good[] = {
        {"a=b",         "a",       "b"     },
        {"a=b",         "ab",      "ab"    },
        {"a=b",         "ba",      "ba"    },
        {"model/*=m.*", "model/w", "m.w"   },
        {"model/*=*",   "model/w", "w"     },
        {"*=pre.*",     "w",       "pre.w" },
        {"h.1.*=h.9.*", "h.10.w",  "h.10.w"},
    };
    static const char *const bad[] = {
        "", "a", "=b", "a=", "=", "a*=b", "a=b*", "a*b=c", "*a=*b",
    };
    static const char *const two[] = {"a*=b*", "bx=c"};
    fsdp_error_t err;
    char *name;

    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        name = select_rename(&good[i].rule, 1, good[i].name);
        ok(select_check_rule(good[i].rule, &err) == FSDP_OK &&
               strcmp(name, good[i].want) == 0,
           "%s: %s becomes %s", good[i].rule, good[i].name, name);
        free(name);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        ok(select_check_rule(bad[i], &err) == FSDP_ERR_INVALID_PARAM,
           "'%s' is no rule", bad[i]);
    }
    name = select_rename(two, 2, "ax");
    ok(strcmp(name, "c") == 0, "a rule sees what the one before it made");
    free(name);
}

static void test_kinds(void)
{
    ok(strcmp(select_base("model/x/y"), "x/y") == 0, "base of a parameter");
    ok(strcmp(select_base("optim/exp_avg/x"), "x") == 0, "base of a moment");
    ok(strcmp(select_base("modelx"), "modelx") == 0, "base without a kind");
    ok(strcmp(select_base("optim/x"), "optim/x") == 0, "half a kind is none");
    ok(select_is_model("model/x") && !select_is_model("x"), "model");
    ok(select_is_optim("optim/a/x") && !select_is_optim("model/x"), "optim");
}

int main(void)
{
    test_patterns();
    test_selection();
    test_rules();
    test_kinds();
    return tap_done();
}
