/*
 * fsdp-consolidate - write a sharded checkpoint's parameters whole
 */
#include "config.h"

#include "bin/convert.h"

int main(int argc, char **argv)
{
    return convert_main("fsdp-consolidate", CONVERT_CONSOLIDATE, argc, argv);
}
