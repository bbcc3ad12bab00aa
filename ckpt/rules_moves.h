/*
 * Inside rules_apply(): tensors of the new catalog, and the rows that go from
 * old ones to them.
 */
#ifndef FSDP_RULES_MOVES_H
#define FSDP_RULES_MOVES_H

#include "ckpt/rules.h"
#include "lib/util/map.h"

#define RULES_NONE UINT64_MAX

/* A tensor of the source. */
typedef struct {
    char *name;               /* as rules see it */
    const rules_rule_t *rule; /* that uses it; NULL: none */
    uint64_t made;            /* that is all of it; RULES_NONE: there is none */
    bool gone;                /* it is left out */
} old_t;

/* A tensor of the new catalog. */
typedef struct {
    char *name;
    uint64_t first;           /* the first tensor it is made of */
    const rules_rule_t *rule; /* NULL: it stays as it was */
    unsigned ndim;
    uint64_t dims[FSDP_CKPT_MAX_NDIM];
    uint64_t numbered; /* how many numbers of its first dimension are there */
    uint8_t dtype, stored;
} made_t;

/*
 * Rows [from_row, from_row + rows) of what a rule means of an old tensor become
 * rows from to_row on of what it means of a new one.  It means the tensor, or
 * one index of its first dimension, and perhaps that transposed.
 */
typedef struct {
    uint64_t tensor, made;
    uint64_t from_index, to_index; /* RULES_NONE: the tensor itself */
    uint64_t from_row, to_row, rows;
    bool from_transposed, to_transposed;
    bool whole; /* all of it, which may have no rows */
    bool zeros; /* they come from nowhere; `tensor` is unused */
} move_t;

/* A rule with what its captures stand for. */
typedef struct {
    const rules_rule_t *rule;
    const rules_kind_t *kind;
    rules_binding_t binding;
    uint64_t tensors[RULES_TERMS]; /* of the source's side */
} bound_t;

typedef struct {
    const rules_t *rules;
    const catalog_t *from;
    fsdp_ckpt_note_f note;
    void *arg;
    old_t *olds;     /* as the source's tensors */
    uint64_t *order; /* the source's tensors, as its writer had them */
    map_t old_names;
    made_t *mades;
    uint64_t num_mades;
    map_t made_names;
    move_t *moves;
    uint64_t num_moves;
    bool changes; /* anything at all */
} apply_t;

/* Make room for one entry more of an array whose room is a power of two. */
#define RULES_GROW(_array, _num)                                              \
    ({                                                                        \
        void *_p = (_array);                                                  \
        if (((_num) & ((_num)-1)) == 0) {                                     \
            _p = realloc(_p,                                                  \
                         ((_num) == 0 ? 1 : 2 * (_num)) * sizeof(*(_array))); \
        }                                                                     \
        if (_p != NULL) {                                                     \
            (_array) = _p;                                                    \
        }                                                                     \
        _p != NULL;                                                           \
    })

fsdp_status_t rules_no_memory(const apply_t *apply, fsdp_error_t *err);

__attribute__((format(printf, 2, 3))) void rules_note(const apply_t *apply,
                                                      const char *fmt, ...);

/* Fill mades and moves (rules_bind.c). */
fsdp_status_t rules_bind(apply_t *apply, fsdp_error_t *err);

/* Does a name fit a term of a rule's source?  Then bind it, and its kind. */
bool rules_fits(const apply_t *apply, const rules_rule_t *rule, unsigned term,
                const char *name, bound_t *bound);

/**
 * Add to @a to the pieces that a move takes along (rules_piece.c).
 *
 * @param target  The tensor there.
 * @param lost    As for rules_apply().
 */
fsdp_status_t rules_move(const apply_t *apply, const move_t *move,
                         catalog_t *to, uint64_t target, uint32_t zeros,
                         bool *lost, fsdp_error_t *err);

#endif
