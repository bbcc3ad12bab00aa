/*
 * How checkpoints of very many pieces are planned, opened and parsed: seconds,
 * and MiB at the most.  Built on demand: make t/bench-ckpt
 *
 * usage: bench-ckpt plan         from 1000 tensors on 1000 ranks to 999 ranks
 *        bench-ckpt open PATH    a checkpoint, as every program does first
 *        bench-ckpt make DIR     a .metadata of 1000 tensors on 1000 ranks
 *        bench-ckpt parse FILE   such a file
 */
#include "config.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/format.h"
#include "ckpt/format/dcp_meta.h"
#include "ckpt/plan.h"
#include "ckpt/target.h"
#include "lib/util/io.h"

enum { TENSORS = 1000, RANKS = 1000, WIDTH = 16 };

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void must(fsdp_status_t status, const fsdp_error_t *err)
{
    if (status != FSDP_OK) {
        fprintf(stderr, "bench-ckpt: %s\n", err->text);
        exit(1);
    }
}

static void report(uint64_t num, const char *what, double start)
{
    struct rusage usage;
    double took = seconds() - start;

    getrusage(RUSAGE_SELF, &usage);
    printf("%" PRIu64 " %s: %.3f s, %ld MiB\n", num, what, took,
           usage.ru_maxrss >> 10);
}

/* Each rank has a part of each tensor, in a file of its own or all in one. */
static void make_catalog(catalog_t *cat, uint32_t world, uint32_t files)
{
    const uint64_t dims[] = {RANKS, WIDTH}, numel = dims[0] * dims[1];
    fsdp_error_t err;
    uint32_t index;
    char name[64];

    catalog_init(cat);
    cat->path = cat->root = ".";
    for (uint32_t f = 0; f < files; f++) {
        snprintf(name, sizeof(name), "__%" PRIu32 "_0.distcp", f);
        must(catalog_add_file(cat, name, UINT32_MAX, &index, &err), &err);
    }
    for (uint32_t t = 0; t < TENSORS; t++) {
        snprintf(name, sizeof(name), "model.layers.%" PRIu32 ".weight", t);
        must(catalog_add_tensor(cat, name, FSDP_DTYPE_F32, 2, dims, NULL, NULL,
                                &err),
             &err);
        for (uint32_t r = 0; r < world; r++) {
            uint64_t begin = numel * r / world;
            const catalog_piece_t piece = {.first = begin,
                                           .count =
                                               numel * (r + 1) / world - begin,
                                           .offset = begin * sizeof(float),
                                           .tensor = t,
                                           .file = r % files,
                                           .rank = r,
                                           .crc_first = CATALOG_NONE,
                                           .box = CATALOG_NONE};

            must(catalog_add_piece(cat, &piece, &err), &err);
        }
    }
    must(catalog_seal(cat, CATALOG_CHECK_COVER, &err), &err);
}

static void bench_plan(void)
{
    uint64_t map[TENSORS];
    catalog_t src, dst;
    fsdp_error_t err;
    plan_t plan;
    double start;

    for (uint64_t t = 0; t < TENSORS; t++) {
        map[t] = t;
    }
    make_catalog(&src, RANKS, RANKS);
    make_catalog(&dst, RANKS - 1, RANKS - 1);

    start = seconds();
    must(plan_convert(&plan, &src, &dst, map, &err), &err);
    must(plan_place(&plan, &err), &err);
    report(src.num_pieces, "pieces planned", start);

    plan_free(&plan);
    catalog_free(&src);
    catalog_free(&dst);
}

static void bench_open(const char *path)
{
    double start = seconds();
    fsdp_error_t err;
    catalog_t cat;

    catalog_init(&cat);
    must(format_open(path, &cat, &err), &err);
    report(cat.num_tensors, "tensors opened", start);
    catalog_free(&cat);
}

static void make_metadata(const char *dir)
{
    char *path = io_path("%s/__0_0.distcp", dir);
    target_lists_t lists;
    fsdp_error_t err;
    catalog_t cat;

    make_catalog(&cat, RANKS, 1);
    cat.crc_zip = true;
    must(io_make_dirs(dir, &err), &err);
    must(target_lists(&cat, true, &lists, &err), &err);
    must(format_dcp.create(&cat, 0, lists.pieces, cat.num_pieces, path, &err),
         &err);
    must(format_dcp.finish(&cat, dir, &err), &err);
    target_lists_free(&lists);
    catalog_free(&cat);
    free(path);
}

static void bench_parse(const char *path)
{
    double start = seconds();
    fsdp_error_t err;
    dcp_meta_t meta;
    struct stat st;
    int fd;

    must(io_open(path, O_RDONLY, 0, &fd, &err), &err);
    if (fstat(fd, &st) != 0) {
        perror(path);
        exit(1);
    }
    must(dcp_meta_read(fd, (uint64_t)st.st_size, path, &meta, &err), &err);
    report(meta.num_chunks, "chunks parsed", start);
    dcp_meta_free(&meta);
    close(fd);
}

int main(int argc, char **argv)
{
    const char *verb = (argc > 1) ? argv[1] : "";

    if (argc == 2 && strcmp(verb, "plan") == 0) {
        bench_plan();
    } else if (argc == 3 && strcmp(verb, "open") == 0) {
        bench_open(argv[2]);
    } else if (argc == 3 && strcmp(verb, "make") == 0) {
        make_metadata(argv[2]);
    } else if (argc == 3 && strcmp(verb, "parse") == 0) {
        bench_parse(argv[2]);
    } else {
        fputs("usage: bench-ckpt plan | open PATH | make DIR | parse FILE\n",
              stderr);
        return 64;
    }

    return 0;
}
