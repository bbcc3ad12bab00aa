#include "config.h"

#include "bin/convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bin/cli.h"
#include "ckpt/fsdp_ckpt.h"

#define LIST "list"

void convert_list_rules(const char *name)
{
    const char *set, *text;
    bool found = false;

    if (strncmp(name, LIST, strlen(LIST)) != 0 ||
        (name[strlen(LIST)] != '\0' && name[strlen(LIST)] != ':')) {
        return;
    }

    name += strlen(LIST);
    for (size_t i = 0; fsdp_ckpt_get_rules(i, &set, &text); i++) {
        if (*name == '\0') {
            /* The first line of each is "# what it is for". */
            printf("%-12s %.*s\n", set, (int)strcspn(text, "\n") - 2, text + 2);
            found = true;
        } else if (strcmp(name + 1, set) == 0) {
            fputs(text, stdout);
            found = true;
        }
    }
    if (!found) {
        cli_message("there is no set of rules '%s'", name + 1);
        exit(FSDP_EXIT_USAGE);
    }
    exit(cli_finish(FSDP_EXIT_DONE));
}
