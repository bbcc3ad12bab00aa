#include "config.h"

#include "ckpt/rules.h"

#include <stdlib.h>
#include <string.h>

static bool same_text(rules_text_t a, rules_text_t b)
{
    return a.size == b.size && memcmp(a.at, b.at, a.size) == 0;
}

/* How much of a text a capture may take: all for '*', else to the next '.' or
 * '/'. */
static size_t reach(unsigned capture, rules_text_t text)
{
    size_t size = 0;

    while (size < text.size &&
           (capture == 0 || (text.at[size] != '.' && text.at[size] != '/'))) {
        size++;
    }

    return size;
}

static bool match(const rules_part_t *part, unsigned num, rules_text_t text,
                  rules_text_t *texts)
{
    rules_text_t taken = text, rest, before;
    size_t least;

    if (num == 0) {
        return text.size == 0;
    }
    if (part->literal.at != NULL) {
        taken.size = part->literal.size;
        rest = (rules_text_t){text.at + taken.size, text.size - taken.size};
        return taken.size <= text.size && same_text(taken, part->literal) &&
               match(part + 1, num - 1, rest, texts);
    }

    before = texts[part->capture];
    least = (part->capture == 0) ? 0 : 1;
    taken.size = reach(part->capture, text);
    for (; taken.size + 1 > least; taken.size--) {
        rest = (rules_text_t){text.at + taken.size, text.size - taken.size};
        if (before.at == NULL || same_text(before, taken)) {
            texts[part->capture] = taken;
            if (match(part + 1, num - 1, rest, texts)) {
                return true;
            }
        }
        if (taken.size == 0) {
            break;
        }
    }
    texts[part->capture] = before;
    return false;
}

bool rules_name_match(const rules_name_t *name, rules_text_t text,
                      rules_binding_t *binding)
{
    return match(name->parts, name->num, text, binding->texts);
}

static rules_text_t text_of(const rules_part_t *part,
                            const rules_binding_t *binding)
{
    return (part->literal.at != NULL) ? part->literal
                                      : binding->texts[part->capture];
}

/* Append a name to a text, or with @a to NULL only measure it. */
static size_t add_name(const rules_name_t *name, const rules_name_t *star,
                       const rules_binding_t *binding, char *to)
{
    size_t size = 0;

    for (unsigned i = 0; i < name->num; i++) {
        const rules_part_t *part = &name->parts[i];
        rules_text_t text = text_of(part, binding);

        if (star != NULL && part->literal.at == NULL && part->capture == 0) {
            size +=
                add_name(star, NULL, binding, (to != NULL) ? to + size : NULL);
            continue;
        }
        if (to != NULL && text.size > 0) {
            memcpy(to + size, text.at, text.size);
        }
        size += text.size;
    }

    return size;
}

char *rules_name_make(const rules_name_t *kind, const rules_name_t *name,
                      const rules_binding_t *binding)
{
    const rules_name_t *outer = (kind != NULL) ? kind : name;
    const rules_name_t *inner = (kind != NULL) ? name : NULL;
    size_t size = add_name(outer, inner, binding, NULL);
    char *made = malloc(size + 1);

    if (made != NULL) {
        add_name(outer, inner, binding, made);
        made[size] = '\0';
    }
    return made;
}

unsigned rules_name_captures(const rules_name_t *name)
{
    unsigned captures = 0;

    for (unsigned i = 0; i < name->num; i++) {
        if (name->parts[i].literal.at == NULL) {
            captures |= 1u << name->parts[i].capture;
        }
    }

    return captures;
}
