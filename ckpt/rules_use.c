/*
 * Sets of rules, one after the other: a source becomes what they make of it.
 */
#include "config.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/engine.h"
#include "ckpt/rules.h"
#include "ckpt/value.h"
#include "lib/util/check.h"

/* "NAME=JSON" */
static fsdp_status_t set_value(catalog_t *cat, const char *text,
                               fsdp_error_t *err)
{
    const char *equals = strchr(text, '=');
    char *name = (equals != NULL && equals != text)
                     ? strndup(text, (size_t)(equals - text))
                     : NULL;
    fsdp_status_t status;
    uint64_t step;
    json_t *json;

    if (name == NULL) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "'%s' is no NAME=VALUE", text);
    }

    status = value_parse(name, equals + 1, strlen(equals + 1), &json, err);
    if (status != FSDP_OK) {
        free(name);
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "'%s': the value is no JSON: a number, or a "
                              "text in double quotes",
                              text);
    }
    json_decref(json);

    status = catalog_set_value(cat, name, equals + 1, err);
    if (status == FSDP_OK && strcmp(name, "step") == 0 &&
        value_number(cat, name, &step) && step <= INT64_MAX) {
        cat->step = (int64_t)step;
    }
    free(name);
    return status;
}

static fsdp_status_t apply(const rules_use_t *use, const char *name,
                           catalog_t *cat, rules_stages_t *stages,
                           fsdp_error_t *err)
{
    rules_stage_t *stage = &stages->stages[stages->num];
    fsdp_status_t status;
    rules_t rules;

    FSDP_TRY(rules_open(name, &rules, err));
    stage->cat = *cat;
    stages->num++;
    catalog_init(cat);
    status = rules_apply(&rules, &stage->cat, use->only_model, cat,
                         &stage->lost, use->note, use->note_arg, err);
    rules_close(&rules);
    return status;
}

fsdp_status_t rules_use(const rules_use_t *use, catalog_t *cat,
                        rules_stages_t *stages, fsdp_error_t *err)
{
    stages->stages = calloc(use->num_rules + 1, sizeof(*stages->stages));
    if (stages->stages == NULL) {
        return fsdp_error_set(err, FSDP_ERR_NO_MEMORY, "%s: no memory",
                              cat->path);
    }

    for (size_t i = 0; i < use->num_set; i++) {
        FSDP_TRY(set_value(cat, use->set[i], err));
    }
    for (size_t i = 0; i < use->num_rules; i++) {
        FSDP_TRY(apply(use, use->rules[i], cat, stages, err));
    }

    return FSDP_OK;
}

fsdp_status_t rules_check(const rules_stages_t *stages,
                          const fsdp_ckpt_engine_t *engine, uint64_t *bytes_p,
                          fsdp_error_t *err)
{
    for (size_t i = 0; i < stages->num; i++) {
        const rules_stage_t *stage = &stages->stages[i];
        engine_result_t result = {0};
        engine_job_t job = {0};
        fsdp_status_t status;
        plan_t plan;

        if (engine != NULL) {
            job.options = *engine;
            job.options.progress = NULL;
        }
        FSDP_TRY(plan_check(&plan, &stage->cat, stage->lost, err));
        job.plan = &plan;
        status = engine_run(&job, &result, err);
        *bytes_p += result.bytes_read;
        plan_free(&plan);
        FSDP_TRY(status);
    }

    return FSDP_OK;
}

void rules_stages_free(rules_stages_t *stages)
{
    for (size_t i = 0; i < stages->num; i++) {
        catalog_free(&stages->stages[i].cat);
        free(stages->stages[i].lost);
    }
    free(stages->stages);
}
