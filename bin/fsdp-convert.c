/*
 * fsdp-convert - write a checkpoint in another format or sharding
 */
#include "config.h"

#include "bin/convert.h"

int main(int argc, char **argv)
{
    return convert_main("fsdp-convert", CONVERT_ANY, argc, argv);
}
