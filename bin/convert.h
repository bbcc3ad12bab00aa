/*
 * The driver of fsdp-convert, fsdp-reshard and fsdp-consolidate.
 */
#ifndef FSDP_CONVERT_H
#define FSDP_CONVERT_H

/* What is particular to each of the three programs. */
typedef enum {
    CONVERT_ANY = 0,        /* any format to any */
    CONVERT_RESHARD = 1,    /* to sharded HDF5 of another world */
    CONVERT_CONSOLIDATE = 2 /* to a whole: one file, parameters only */
} convert_preset_t;

/* If @a name is "list", or "list:SET", print the sets of rules or the text of
 * one, and exit. */
void convert_list_rules(const char *name);

/* main() of the program. */
int convert_main(const char *program, convert_preset_t preset, int argc,
                 char **argv);

#endif
