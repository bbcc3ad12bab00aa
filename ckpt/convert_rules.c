/*
 * Rules in a conversion: the source becomes what they make of it.
 */
#include "config.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/convert.h"
#include "ckpt/rules.h"
#include "ckpt/value.h"
#include "lib/util/check.h"

/* "NAME=JSON" */
static fsdp_status_t set_value(convert_t *convert, const char *text,
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

    status = catalog_set_value(&convert->src, name, equals + 1, err);
    if (status == FSDP_OK && strcmp(name, "step") == 0 &&
        value_number(&convert->src, name, &step) && step <= INT64_MAX) {
        convert->src.step = (int64_t)step;
    }
    free(name);
    return status;
}

static fsdp_status_t apply(convert_t *convert, const char *name,
                           fsdp_error_t *err)
{
    const fsdp_ckpt_convert_config_t *config = convert->config;
    convert_stage_t *stage = &convert->stages[convert->num_stages];
    fsdp_status_t status;
    rules_t rules;

    FSDP_TRY(rules_open(name, &rules, err));
    stage->cat = convert->src;
    convert->num_stages++;
    catalog_init(&convert->src);
    status = rules_apply(&rules, &stage->cat, config->only_model, &convert->src,
                         &stage->lost, config->note, config->note_arg, err);
    rules_close(&rules);
    return status;
}

fsdp_status_t convert_apply_rules(convert_t *convert, fsdp_error_t *err)
{
    const fsdp_ckpt_convert_config_t *config = convert->config;

    convert->stages = calloc(config->num_rules + 1, sizeof(*convert->stages));
    if (convert->stages == NULL) {
        return convert_no_memory(convert, err);
    }

    for (size_t i = 0; i < config->num_set; i++) {
        FSDP_TRY(set_value(convert, config->set[i], err));
    }
    for (size_t i = 0; i < config->num_rules; i++) {
        FSDP_TRY(apply(convert, config->rules[i], err));
    }

    return FSDP_OK;
}

fsdp_status_t convert_check_rules(const convert_t *convert, uint64_t *bytes_p,
                                  fsdp_error_t *err)
{
    for (size_t i = 0; i < convert->num_stages; i++) {
        const convert_stage_t *stage = &convert->stages[i];

        FSDP_TRY(rules_check(&stage->cat, stage->lost, &convert->config->engine,
                             bytes_p, err));
    }

    return FSDP_OK;
}

void convert_free_rules(convert_t *convert)
{
    for (size_t i = 0; i < convert->num_stages; i++) {
        catalog_free(&convert->stages[i].cat);
        free(convert->stages[i].lost);
    }
    free(convert->stages);
}
