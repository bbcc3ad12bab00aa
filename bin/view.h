/*
 * Values of tensors, shown.
 */
#ifndef FSDP_VIEW_H
#define FSDP_VIEW_H

#include "bin/tool.h"

/**
 * Print parts of tensors (slice.h), whose name may be a pattern, and values
 * that are no tensors; or all of them as one JSON array.
 *
 * @return FSDP_ERR_NOT_FOUND without such a tensor; FSDP_ERR_INVALID_PARAM if
 *         the part is none of it, or very large.
 */
fsdp_status_t view_parts(fsdp_ckpt_t *ckpt, const cli_list_t *texts,
                         const tool_t *tool, fsdp_error_t *err);

#endif
