/*
 * Parts of tensors among patterns: "*.weight[0:10]" means rows 0 to 9 of every
 * tensor that fits "*.weight".
 *
 * As for rules, a catalog is rewritten into a catalog, in which such a tensor
 * is its part: whatever reads a catalog reads parts, and nothing is copied.
 */
#ifndef FSDP_CUT_H
#define FSDP_CUT_H

#include "ckpt/rules.h"

typedef struct {
    char **patterns;     /* without slices */
    const char **slices; /* of each: what stands in the brackets, as given;
                            NULL: none */
    size_t num;
    bool cuts; /* one has a slice */
} cut_t;       /* zeroed: none */

/**
 * Take patterns apart.  One that fits a tensor or value as it stands has no
 * slice: brackets may be part of a pattern, and of a name.
 *
 * @param texts  Must outlive the result.
 * @param cut    Zeroed; the caller frees it with cut_free(), after errors too.
 */
fsdp_status_t cut_init(cut_t *cut, const char *const *texts, size_t num,
                       const catalog_t *cat, fsdp_error_t *err);
void cut_free(cut_t *cut);

/**
 * Make a sealed catalog one of parts.  The first pattern that a tensor fits
 * counts; what none fits stays whole.
 *
 * @param stages  As rules_use() left it: the source is added to it, for
 *                rules_check() compares checksums of what is read in part.
 *
 * @return FSDP_ERR_INVALID_PARAM, naming the pattern and the tensor, if the
 *         tensor has no such part.
 */
fsdp_status_t cut_use(const cut_t *cut, catalog_t *cat, rules_stages_t *stages,
                      fsdp_error_t *err);

#endif
