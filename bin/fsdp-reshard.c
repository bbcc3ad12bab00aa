/*
 * fsdp-reshard - write a checkpoint for another number of ranks
 */
#include "config.h"

#include "bin/convert.h"

int main(int argc, char **argv)
{
    return convert_main("fsdp-reshard", CONVERT_RESHARD, argc, argv);
}
