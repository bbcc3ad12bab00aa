#include "config.h"

#include "lib/util/select.h"

#include <fnmatch.h>
#include <string.h>

bool select_matches(const char *pattern, const char *name)
{
    size_t skip = strlen(SELECT_MODEL);

    return fnmatch(pattern, name, 0) == 0 ||
           (strncmp(name, SELECT_MODEL, skip) == 0 &&
            fnmatch(pattern, name + skip, 0) == 0);
}

static bool any_matches(const char *const *patterns, size_t num,
                        const char *name)
{
    for (size_t i = 0; i < num; i++) {
        if (select_matches(patterns[i], name)) {
            return true;
        }
    }

    return false;
}

bool select_wants(const select_t *select, const char *name)
{
    if (select->only_model &&
        strncmp(name, SELECT_OPTIM, strlen(SELECT_OPTIM)) == 0) {
        return false;
    }

    return (select->num_include == 0 ||
            any_matches(select->include, select->num_include, name)) &&
           !any_matches(select->exclude, select->num_exclude, name);
}
