/*
 * A check by several ranks.  Each looks at all but the bytes, and so knows what
 * there is to read; of that it reads a part.  What it finds there it tells rank
 * 0, which alone says what is found elsewhere, and joins checksums and digests.
 */
#define _GNU_SOURCE
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/save_message.h"
#include "ckpt/verify.h"
#include "lib/util/check.h"

/* What all ranks must see, */
typedef struct {
    uint64_t files, pieces, tensors, codes, spans, total;
} seen_t;

/* and what one has read. */
typedef struct {
    seen_t seen;
    uint64_t bytes;
    digest_t digests[VERIFY_KINDS];
} head_t;

typedef struct {
    verify_t *verify;
    const char *path; /* "": the end */
    head_t head;
    bool *good;
    uint32_t *crcs; /* NULL: none */
} share_t;

/* The rest of the message is findings. */
static fsdp_status_t take_part(uint32_t rank, const char *text, size_t size,
                               void *arg, fsdp_error_t *err)
{
    share_t *share = arg;
    verify_t *verify = share->verify;
    uint64_t files = share->head.seen.files;
    cursor_t cursor = {text, size};
    uint32_t crc;
    head_t head;
    bool good;

    if (!message_take(&cursor, &head, sizeof(head)) ||
        memcmp(&head.seen, &share->head.seen, sizeof(head.seen)) != 0 ||
        cursor.left <= strlen(share->path) ||
        strcmp(cursor.next, share->path) != 0) {
        return ranks_differ((share->path[0] != '\0') ? share->path
                                                     : "the check's end",
                            rank, err);
    }
    cursor.next += strlen(share->path) + 1;
    cursor.left -= strlen(share->path) + 1;

    for (uint64_t f = 0; f < files; f++) {
        if (!message_take(&cursor, &good, sizeof(good))) {
            return ranks_differ(share->path, rank, err);
        }
        share->good[f] = share->good[f] && good;
    }
    for (uint64_t f = 0; f < files && share->crcs != NULL; f++) {
        if (!message_take(&cursor, &crc, sizeof(crc))) {
            return ranks_differ(share->path, rank, err);
        }
        share->crcs[f] ^= crc;
    }
    for (unsigned k = 0; k < VERIFY_KINDS; k++) {
        share->head.digests[k].word[0] += head.digests[k].word[0];
        share->head.digests[k].word[1] += head.digests[k].word[1];
    }
    verify->result.bytes += head.bytes;
    buffer_add(&verify->found, cursor.next, cursor.left);
    return FSDP_OK;
}

static fsdp_status_t gather(share_t *share, fsdp_error_t *err)
{
    verify_t *verify = share->verify;
    uint64_t files = share->head.seen.files;
    buffer_t message = {0};

    buffer_add(&message, &share->head, sizeof(share->head));
    buffer_add(&message, share->path, strlen(share->path) + 1);
    buffer_add(&message, share->good, files * sizeof(*share->good));
    if (share->crcs != NULL) {
        buffer_add(&message, share->crcs, files * sizeof(*share->crcs));
    }
    buffer_add(&message, verify->found.data, verify->found.size);
    message.failed = message.failed || verify->found.failed;
    return ranks_gather(&verify->ranks, &message, take_part, share, err);
}

/* --- Findings ------------------------------------------------------------- */

static int by_text(const void *a, const void *b)
{
    return strverscmp(*(char *const *)a, *(char *const *)b);
}

/* The findings of all ranks, in an order of their own. */
static fsdp_status_t tell_found(verify_t *verify, fsdp_error_t *err)
{
    const buffer_t *found = &verify->found;
    const char **texts;
    size_t num = 0;

    for (size_t at = 0; at < found->size; at += strlen(found->data + at) + 1) {
        num++;
    }
    texts = calloc(num + 1, sizeof(*texts));
    if (texts == NULL || found->failed) {
        free(texts);
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY,
                              "no memory for %zu findings", num);
    }

    num = 0;
    for (size_t at = 0; at < found->size; at += strlen(found->data + at) + 1) {
        texts[num++] = found->data + at;
    }
    qsort(texts, num, sizeof(*texts), by_text);
    for (size_t i = 0; i < num; i++) {
        if (verify_find(verify, "%s", texts[i]) != FSDP_OK) {
            free(texts);
            return fsdp_error_set(err, FSDP_ERR_CANCELLED,
                                  "the check was stopped");
        }
    }
    free(texts);
    return FSDP_OK;
}

/* --- The parts ------------------------------------------------------------ */

void verify_share_begin(verify_t *verify)
{
    verify->sharing = verify->ranks.commit != NULL;
    verify->bytes_before = verify->result.bytes;
}

fsdp_status_t verify_share_end(verify_t *verify, const catalog_t *cat,
                               bool *good, uint32_t *crcs,
                               digest_t digests[VERIFY_KINDS],
                               fsdp_error_t *err)
{
    share_t share = {
        .verify = verify,
        .path = cat->path,
        .head = {.seen = {.files = cat->num_files,
                          .pieces = cat->num_pieces,
                          .tensors = cat->num_tensors,
                          .codes = cat->num_codes,
                          .spans = cat->num_spans,
                          .total = verify->total},
                 .bytes = verify->result.bytes - verify->bytes_before},
        .good = good,
        .crcs = crcs
    };
    fsdp_status_t status;

    if (!verify->sharing) {
        return FSDP_OK;
    }

    memcpy(share.head.digests, digests, sizeof(share.head.digests));
    status = gather(&share, err);
    memcpy(digests, share.head.digests, sizeof(share.head.digests));
    verify->sharing = false;
    if (status == FSDP_OK && verify->ranks.rank == 0) {
        status = tell_found(verify, err);
    }
    buffer_free(&verify->found);
    return status;
}

fsdp_status_t verify_end(verify_t *verify, fsdp_status_t status,
                         fsdp_error_t *err)
{
    share_t share = {.verify = verify, .path = ""};

    if (status == FSDP_OK && verify->ranks.commit != NULL) {
        status = gather(&share, err);
    }
    buffer_free(&verify->found);
    return ranks_end(&verify->ranks, status, &verify->result.findings, err);
}
