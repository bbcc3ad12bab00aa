#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bin/stats.h"
#include "lib/util/slice.h"
#include "t/tap/tap.h"

static const uint64_t dims[] = {5, 6, 10};

static void test_split(void)
{
    static const struct {
        const char *text, *name, *inner;
    } cases[] = {
        {"wte",        "wte",  NULL   },
        {"wte[]",      "wte",  "]"    },
        {"a[1][2, 3]", "a[1]", "2, 3]"},
        {"[1]",        "[1]",  NULL   },
        {"a[1",        "a[1",  NULL   },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        size_t size;
        const char *inner = slice_split(cases[i].text, &size);

        ok(size == strlen(cases[i].name) &&
               strncmp(cases[i].text, cases[i].name, size) == 0 &&
               (cases[i].inner == NULL
                    ? inner == NULL
                    : inner != NULL && strcmp(inner, cases[i].inner) == 0),
           "split '%s'", cases[i].text);
    }
}

static void test_parse(void)
{
    static const struct {
        const char *inner, *want; /* NULL: refused */
        uint64_t numel;
    } cases[] = {
        {NULL,                    "[0:1, 0:4, 0:8]",  32 },
        {"]",                     "[0:5, 0:6, 0:10]", 300},
        {"2]",                    "[2:3, 0:6, 0:10]", 60 },
        {"2,]",                   "[2:3, 0:6, 0:10]", 60 },
        {"-1, -2:, :3]",          "[4:5, 4:6, 0:3]",  6  },
        {" 1 : 3 , : , 9 ]",      "[1:3, 0:6, 9:10]", 12 },
        {"2:2]",                  "[2:2, 0:6, 0:10]", 0  },
        {"5:5]",                  "[5:5, 0:6, 0:10]", 0  },
        {"5]",                    NULL,               0  },
        {"-6]",                   NULL,               0  },
        {"3:2]",                  NULL,               0  },
        {"0:6]",                  NULL,               0  },
        {"0, 0, 0, 0]",           NULL,               0  },
        {"a]",                    NULL,               0  },
        {"1 2]",                  NULL,               0  },
        {"1:2:3]",                NULL,               0  },
        {",]",                    NULL,               0  },
        {"99999999999999999999]", NULL,               0  },
        {"-]",                    NULL,               0  },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const char *inner = cases[i].inner, *why = NULL;
        slice_t slice;

        if (!slice_parse(inner, 3, dims, &slice, &why)) {
            ok(cases[i].want == NULL && why != NULL, "'[%s' is refused: %s",
               inner, why);
        } else {
            char buffer[SLICE_TEXT_MAX];
            const char *text = slice_format(&slice, buffer);

            ok(cases[i].want != NULL && strcmp(text, cases[i].want) == 0 &&
                   slice_numel(&slice) == cases[i].numel,
               "'[%s' is %s", inner ? inner : "", text);
        }
    }
}

static void test_scalar(void)
{
    const char *why;
    slice_t slice;

    ok(slice_parse(NULL, 0, NULL, &slice, &why) && slice_numel(&slice) == 1,
       "a scalar has one element");
    ok(slice_parse("]", 0, NULL, &slice, &why), "brackets may be empty");
    ok(!slice_parse("0]", 0, NULL, &slice, &why), "but have nothing to index");
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-13 * fmax(fabs(a), fabs(b));
}

/* All splits of one list into two calls give the same. */
static void test_stats(void)
{
    double values[] = {3,         -INFINITY, 1e9 + 1, 1e9 + 2, NAN, -7,  0.5,
                       1e9 + 3,   INFINITY,  4,       5,       6,   NAN, 8,
                       1e9 + 0.5, 9,         -1,      -2,      11};
    const uint64_t num = sizeof(values) / sizeof(*values);
    double sum = 0, squares = 0, n = 0, mean, std;
    bool good = true;

    for (uint64_t i = 0; i < num; i++) {
        if (isfinite(values[i])) {
            sum += values[i];
            n++;
        }
    }
    mean = sum / n;
    for (uint64_t i = 0; i < num; i++) {
        if (isfinite(values[i])) {
            squares += (values[i] - mean) * (values[i] - mean);
        }
    }
    std = sqrt(squares / n);

    for (uint64_t cut = 0; cut <= num; cut++) {
        stats_t stats = STATS_INIT;

        stats_add(&stats, values, cut);
        stats_add(&stats, values + cut, num - cut);
        good = good && stats.min == -7 && stats.max == 1e9 + 3 &&
               near(stats.mean, mean) && near(stats.std, std) &&
               stats.finite == (uint64_t)n && stats.nans == 2 &&
               stats.infs == 2;
    }
    ok(good, "statistics do not depend on where the values are cut");
}

/* The textbook formula loses all digits here. */
static void test_large_mean(void)
{
    double values[] = {1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16};
    stats_t stats = STATS_INIT;

    for (int i = 0; i < 250; i++) {
        stats_add(&stats, values, 4);
    }
    ok(near(stats.mean, 1e9 + 10) && fabs(stats.std - sqrt(22.5)) < 1e-6,
       "a mean that is much larger than the deviation");
}

static void test_no_values(void)
{
    double values[] = {NAN, NAN};
    stats_t stats = STATS_INIT;

    stats_add(&stats, values, 2);
    ok(isnan(stats.min) && isnan(stats.mean) && stats.nans == 2,
       "without finite values there is nothing to tell");
}

int main(void)
{
    test_split();
    test_parse();
    test_scalar();
    test_stats();
    test_large_mean();
    test_no_values();
    return tap_done();
}
