#include "config.h"

#include "bin/train.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "bin/table.h"
#include "lib/util/size.h"

/* Kinds of memory as people know them, in the order of fsdp_mem_kind_t. */
static const char *const mem_names[FSDP_MEM_NUM_KINDS] = {
    "parameters",          "optimizer state", "reduced gradients",
    "gathered parameters", "gradients",       "communication",
    "staged checkpoint",   "activations",     "data, tables",
};

static bool for_people(const train_t *train)
{
    return train->info.rank == 0 && !train->set->json && !train->set->quiet;
}

void report_line(const train_t *train, const char *fmt, ...)
{
    va_list ap;

    if (!for_people(train)) {
        return;
    }

    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
}

void report_event(const train_t *train, json_t *event)
{
    char *text;

    if (train->info.rank == 0 &&
        (train->log != NULL || (train->set->json && !train->set->quiet))) {
        text = json_dumps(event, JSON_COMPACT);
        if (text != NULL && train->log != NULL) {
            fprintf(train->log, "%s\n", text);
            fflush(train->log);
        }
        if (text != NULL && train->set->json && !train->set->quiet) {
            printf("%s\n", text);
        }
        free(text);
    }
    json_decref(event);
}

static json_t *event_create(const char *name)
{
    json_t *event = json_object();

    cli_json_set(event, "event", cli_json_text(name));
    return event;
}

static void set_number(json_t *object, const char *key, double value)
{
    cli_json_set(object, key, cli_json_number(value));
}

static void set_count(json_t *object, const char *key, uint64_t value)
{
    cli_json_set(object, key, json_integer((json_int_t)value));
}

/* All bits of a double. */
static void set_hex(json_t *object, const char *key, double value)
{
    char text[40];

    snprintf(text, sizeof(text), "%a", value);
    cli_json_set(object, key, cli_json_text(text));
}

/* Resident memory of this process, in bytes; 0 if unknown. */
static uint64_t resident_bytes(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");

    if (f == NULL) {
        return 0;
    }
    if (fscanf(f, "%*s %lu", &pages) != 1) {
        pages = 0;
    }
    fclose(f);

    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* The most there ever was. */
static uint64_t resident_peak(void)
{
    struct rusage usage;

    return (getrusage(RUSAGE_SELF, &usage) == 0)
               ? (uint64_t)usage.ru_maxrss * 1024
               : 0;
}

/* --- The start ------------------------------------------------------------ */

static table_t *pairs_create(void)
{
    static const table_column_t columns[] = {
        {"", false},
        {"", false},
    };

    return table_create(columns, 2);
}

__attribute__((format(printf, 3, 4))) static void pair(table_t *table,
                                                       const char *key,
                                                       const char *fmt, ...)
{
    char text[300];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    table_cell(table, "%s", key);
    table_cell(table, "%s", text);
    table_row_end(table);
}

static const char *precision_name(fsdp_precision_t precision)
{
    return (precision == FSDP_BF16) ? "bf16" : "fp32";
}

/* What was chosen, and what it is applied to. */
static void add_job(const train_t *train, const fsdp_layout_info_t *layout,
                    table_t *table)
{
    const settings_t *set = train->set;
    const gpt2_config_t *model = &train->model;

    pair(table, "ranks", "%u on %u %s, started by %s, data by %s",
         train->info.world, train->info.nodes,
         train->info.nodes == 1 ? "node" : "nodes", train->info.launcher,
         train->info.backend);
    pair(table, "strategy", "%s: %u x %u (ranks a copy x copies), prefetch %u",
         fsdp_strategy_name(layout->mesh.strategy), layout->mesh.shard,
         layout->mesh.replicas, set->prefetch);
    pair(table, "model",
         "%u layers, width %u, %u heads, vocabulary %u, %u "
         "positions",
         model->layers, model->width, model->heads, model->vocab,
         model->positions);
    pair(table, "parameters",
         "%" PRIu64 " in %" PRIu64 " units, %" PRIu64 " with padding",
         layout->parameters, layout->units, layout->padded);
    pair(table, "types", "parameters %s, gradients %s, masters and state fp32",
         precision_name(train->param_dtype),
         precision_name(train->reduce_dtype));
    pair(table, "step", "%u micro-batches of %u x %u tokens, %u %s",
         hyper_u32(set, HYPER_MICRO_BATCHES), hyper_u32(set, HYPER_BATCH),
         hyper_u32(set, HYPER_SEQ), layout->rounds,
         layout->rounds == 1 ? "round" : "rounds");
    pair(table, "seed", "%.0f", set->hyper[HYPER_SEED]);
    if (train->data != NULL) {
        pair(table, "text",
             "%" PRIu64 " tokens to train on, %" PRIu64 " to validate",
             data_tokens(train->data, DATA_TRAIN),
             data_tokens(train->data, DATA_VALID));
        pair(table, "order-0 entropy", "%.4f nats", train->entropy);
    }
}

static void add_memory(const fsdp_memory_t *memory, table_t *table)
{
    char size[SIZE_TEXT_MAX];

    pair(table, "memory",
         "%s a rank, of that:", size_format(memory->planned_total, size));
    for (unsigned kind = 0; kind < FSDP_MEM_NUM_KINDS; kind++) {
        char key[64];

        if (memory->planned[kind] > 0) {
            snprintf(key, sizeof(key), "  %s", mem_names[kind]);
            pair(table, key, "%s", size_format(memory->planned[kind], size));
        }
    }
}

static json_t *start_event(const train_t *train,
                           const fsdp_layout_info_t *layout,
                           const fsdp_memory_t *memory)
{
    json_t *event = event_create("start"), *kinds = json_object();
    const settings_t *set = train->set;

    cli_json_set(event, "job", cli_json_text(train->info.id));
    set_count(event, "world", train->info.world);
    set_count(event, "nodes", train->info.nodes);
    cli_json_set(event, "launcher", cli_json_text(train->info.launcher));
    cli_json_set(event, "strategy",
                 cli_json_text(fsdp_strategy_name(layout->mesh.strategy)));
    set_count(event, "shard", layout->mesh.shard);
    set_count(event, "prefetch", set->prefetch);
    set_count(event, "threads", set->threads);
    set_count(event, "parameters", layout->parameters);
    set_count(event, "units", layout->units);
    set_count(event, "padded", layout->padded);
    set_count(event, "micro_batches", hyper_u32(set, HYPER_MICRO_BATCHES));
    set_count(event, "batch", hyper_u32(set, HYPER_BATCH));
    set_count(event, "seq", hyper_u32(set, HYPER_SEQ));
    cli_json_set(event, "param_dtype",
                 cli_json_text(precision_name(train->param_dtype)));
    cli_json_set(event, "reduce_dtype",
                 cli_json_text(precision_name(train->reduce_dtype)));
    if (train->data != NULL) {
        set_count(event, "train_tokens", data_tokens(train->data, DATA_TRAIN));
        set_count(event, "valid_tokens", data_tokens(train->data, DATA_VALID));
        set_number(event, "order0_entropy", train->entropy);
    }
    for (unsigned kind = 0; kind < FSDP_MEM_NUM_KINDS; kind++) {
        set_count(kinds, mem_names[kind], memory->planned[kind]);
    }
    cli_json_set(event, "memory_planned", kinds);
    set_count(event, "memory_planned_total", memory->planned_total);

    return event;
}

void report_start(const train_t *train)
{
    fsdp_layout_info_t layout;
    fsdp_memory_t memory;
    table_t *table;

    if (train->info.rank != 0) {
        return;
    }

    fsdp_get_layout(train->fsdp, &layout);
    fsdp_get_memory(train->fsdp, &memory);
    report_event(train, start_event(train, &layout, &memory));
    if (!for_people(train)) {
        return;
    }

    table = pairs_create();
    add_job(train, &layout, table);
    add_memory(&memory, table);
    table_print(table, stdout);
    table_destroy(table);
    if (train->set->mode == MODE_TRAIN) {
        printf("\n%8s %10s %10s %10s %10s %16s %11s %11s\n", "step", "loss",
               "norm", "lr", "tokens/s", "exposed comm.", "memory", "resident");
    }
}

/* --- A step --------------------------------------------------------------- */

static json_t *step_event(const train_step_t *step, const fsdp_memory_t *memory,
                          uint32_t micro_batches)
{
    json_t *event = event_create("step"), *micro = json_array();

    set_count(event, "step", (uint64_t)step->step);
    set_number(event, "loss", step->loss);
    set_hex(event, "loss_hex", step->loss);
    set_number(event, "norm", step->norm);
    set_hex(event, "norm_hex", step->norm);
    set_number(event, "lr", step->lr);
    for (uint32_t m = 0; m < micro_batches; m++) {
        cli_json_append(micro, cli_json_number(step->micro_loss[m]));
    }
    cli_json_set(event, "micro_loss", micro);
    set_number(event, "seconds", step->cost.seconds);
    set_number(event, "tokens_per_second",
               (double)step->cost.tokens / step->cost.seconds);
    set_number(event, "compute_seconds", step->cost.counters.compute_seconds);
    set_number(event, "comm_seconds", step->cost.counters.comm_seconds);
    set_number(event, "exposed_seconds", step->cost.counters.exposed_seconds);
    set_number(event, "optimizer_seconds",
               step->cost.counters.optimizer_seconds);
    set_number(event, "data_seconds", step->cost.data_seconds);
    set_count(event, "gather_bytes", step->cost.counters.gather_bytes);
    set_count(event, "reduce_bytes", step->cost.counters.reduce_bytes);
    set_count(event, "replica_bytes", step->cost.counters.replica_bytes);
    set_count(event, "control_bytes", step->cost.counters.control_bytes);
    set_count(event, "link_bytes", step->cost.counters.link_bytes);
    set_count(event, "memory_bytes", memory->peak_total);
    set_count(event, "allocations", memory->allocations);
    set_count(event, "resident_bytes", resident_bytes());

    return event;
}

void report_step(const train_t *train, const train_step_t *step)
{
    char ours[SIZE_TEXT_MAX], resident[SIZE_TEXT_MAX];
    fsdp_memory_t memory;

    if (train->info.rank != 0) {
        return;
    }

    fsdp_get_memory(train->fsdp, &memory);
    if (train->log != NULL || train->set->json) {
        report_event(train,
                     step_event(step, &memory,
                                hyper_u32(train->set, HYPER_MICRO_BATCHES)));
    }
    report_line(train,
                "%8" PRId64 " %10.6f %10.4f %10.3e %10.0f %8.1f ms %3.0f%% "
                "%11s %11s",
                step->step, step->loss, step->norm, step->lr,
                (double)step->cost.tokens / step->cost.seconds,
                1e3 * step->cost.counters.exposed_seconds,
                100 * step->cost.counters.exposed_seconds / step->cost.seconds,
                size_format(memory.peak_total, ours),
                size_format(resident_bytes(), resident));
}

void report_valid(const train_t *train, int64_t step, double loss,
                  uint32_t count, double seconds)
{
    json_t *event = event_create("valid");

    set_count(event, "step", (uint64_t)step);
    set_number(event, "loss", loss);
    set_hex(event, "loss_hex", loss);
    set_count(event, "micro_batches", count);
    set_number(event, "order0_entropy", train->entropy);
    set_number(event, "seconds", seconds);
    report_event(train, event);
    report_line(train,
                "validation after step %" PRId64 ": loss %.6f over %u "
                "micro-batches, %.4f bits a token; order 0 has %.6f",
                step, loss, count, loss / M_LN2, train->entropy);
}

/* --- Checkpoints ---------------------------------------------------------- */

static void set_digest(json_t *event, const fsdp_digest_t *digest)
{
    cli_json_set(event, "digest_model", cli_json_hex(digest->model, 2));
    cli_json_set(event, "digest_optim", cli_json_hex(digest->optim, 2));
}

void report_save_begin(const train_t *train, int64_t step,
                       const fsdp_digest_t *digest, double seconds)
{
    json_t *event = event_create("save");

    set_count(event, "step", (uint64_t)step);
    set_number(event, "stood_still_seconds", seconds);
    set_digest(event, digest);
    report_event(train, event);
    report_line(train,
                "saving step %" PRId64 ": training stood still for %.3f s, "
                "parameters %016" PRIx64 "%016" PRIx64
                ", optimizer state %016" PRIx64 "%016" PRIx64,
                step, seconds, digest->model[0], digest->model[1],
                digest->optim[0], digest->optim[1]);
}

void report_saved(const train_t *train, const fsdp_save_status_t *status)
{
    json_t *event = event_create("saved");
    char size[SIZE_TEXT_MAX];

    set_count(event, "step", (uint64_t)status->step);
    set_count(event, "bytes", status->bytes);
    set_number(event, "copy_seconds", status->copy_seconds);
    set_number(event, "total_seconds", status->total_seconds);
    report_event(train, event);
    report_line(train,
                "saved step %" PRId64 " to %s/step-%08" PRId64
                ": durable after %.2f s, %s by rank 0",
                status->step, train->set->save_dir, status->step,
                status->total_seconds, size_format(status->bytes, size));
}

/* --- The end -------------------------------------------------------------- */

/* A volume beside what the formulas say. */
static void volume_row(table_t *table, const char *what, uint64_t bytes,
                       uint64_t expected)
{
    table_cell(table, "%s", what);
    table_cell(table, "%" PRIu64, bytes);
    table_cell(table, "%" PRIu64, expected);
    table_cell(table, "%s", bytes == expected ? "equal" : "DIFFERS");
    table_row_end(table);
}

static void print_volumes(const fsdp_counters_t *c, uint64_t gather,
                          uint64_t reduce, uint64_t replica)
{
    static const table_column_t columns[] = {
        {"sent by rank 0, bytes", false},
        {"counted",               true },
        {"by the formulas",       true },
        {"",                      false},
    };
    table_t *table = table_create(columns, 4);

    volume_row(table, "parameters gathered", c->gather_bytes, gather);
    volume_row(table, "gradients in the shard group", c->reduce_bytes, reduce);
    volume_row(table, "gradients over replicas", c->replica_bytes, replica);
    table_cell(table, "control");
    table_cell(table, "%" PRIu64, c->control_bytes);
    table_row_end(table);
    table_cell(table, "of all that, between nodes");
    table_cell(table, "%" PRIu64, c->link_bytes);
    table_row_end(table);
    table_print(table, stdout);
    table_destroy(table);
}

static void print_times(const train_cost_t *total, double save_seconds)
{
    static const table_column_t columns[] = {
        {"time of rank 0", false},
        {"seconds",        true },
        {"of steps",       true },
    };
    const struct {
        const char *what;
        double seconds;
    } rows[] = {
        {"steps",                     total->seconds                   },
        {"compute",                   total->counters.compute_seconds  },
        {"communication, beside it",  total->counters.comm_seconds     },
        {"  exposed: compute waited", total->counters.exposed_seconds  },
        {"optimizer",                 total->counters.optimizer_seconds},
        {"data",                      total->data_seconds              },
        {"stood still to save",       save_seconds                     },
    };
    table_t *table = table_create(columns, 3);

    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        table_cell(table, "%s", rows[i].what);
        table_cell(table, "%.3f", rows[i].seconds);
        table_cell(table, "%.1f%%", 100 * rows[i].seconds / total->seconds);
        table_row_end(table);
    }
    table_print(table, stdout);
    table_destroy(table);
}

static void print_memory(const fsdp_memory_t *memory)
{
    char planned[SIZE_TEXT_MAX], peak[SIZE_TEXT_MAX], resident[SIZE_TEXT_MAX];

    printf("memory: planned %s, peak %s (%s), peak resident %s, %" PRIu64
           " allocations\n",
           size_format(memory->planned_total, planned),
           size_format(memory->peak_total, peak),
           memory->planned_total == memory->peak_total ? "equal" : "DIFFERS",
           size_format(resident_peak(), resident), memory->allocations);
}

static json_t *end_event(const train_t *train, int64_t steps,
                         const train_cost_t *total, double save_seconds,
                         const fsdp_digest_t *digest, const uint64_t *expected)
{
    json_t *event = event_create("end");
    fsdp_memory_t memory;

    fsdp_get_memory(train->fsdp, &memory);
    set_count(event, "step", (uint64_t)fsdp_get_step(train->fsdp));
    set_count(event, "steps", (uint64_t)steps);
    set_count(event, "tokens", total->tokens);
    set_number(event, "seconds", total->seconds);
    set_number(event, "compute_seconds", total->counters.compute_seconds);
    set_number(event, "comm_seconds", total->counters.comm_seconds);
    set_number(event, "exposed_seconds", total->counters.exposed_seconds);
    set_number(event, "optimizer_seconds", total->counters.optimizer_seconds);
    set_number(event, "data_seconds", total->data_seconds);
    set_number(event, "save_seconds", save_seconds);
    set_count(event, "gather_bytes", total->counters.gather_bytes);
    set_count(event, "reduce_bytes", total->counters.reduce_bytes);
    set_count(event, "replica_bytes", total->counters.replica_bytes);
    set_count(event, "control_bytes", total->counters.control_bytes);
    set_count(event, "link_bytes", total->counters.link_bytes);
    set_count(event, "gather_expected", expected[0]);
    set_count(event, "reduce_expected", expected[1]);
    set_count(event, "replica_expected", expected[2]);
    set_count(event, "memory_planned", memory.planned_total);
    set_count(event, "memory_peak", memory.peak_total);
    set_count(event, "allocations", memory.allocations);
    set_count(event, "resident_peak_bytes", resident_peak());
    set_digest(event, digest);

    return event;
}

void report_end(const train_t *train, int64_t steps, const train_cost_t *total,
                double save_seconds, const fsdp_digest_t *digest)
{
    fsdp_memory_t memory;
    uint64_t expected[3];

    if (train->info.rank != 0) {
        return;
    }

    fsdp_expected_volume(train->fsdp, &expected[0], &expected[1], &expected[2]);
    for (unsigned i = 0; i < 3; i++) {
        expected[i] *= (uint64_t)steps;
    }
    report_event(
        train, end_event(train, steps, total, save_seconds, digest, expected));
    if (!for_people(train)) {
        return;
    }

    if (steps == 0) {
        printf("nothing to do: step %" PRId64 " is reached already\n",
               fsdp_get_step(train->fsdp));
    } else {
        printf("\n%" PRId64 " steps, %" PRIu64 " tokens in %.1f s: %.0f "
               "tokens/s\n\n",
               steps, total->tokens, total->seconds,
               (double)total->tokens / total->seconds);
        print_times(total, save_seconds);
        printf("\n");
        print_volumes(&total->counters, expected[0], expected[1], expected[2]);
        printf("\n");
    }
    fsdp_get_memory(train->fsdp, &memory);
    print_memory(&memory);
    printf("digest of parameters %016" PRIx64 "%016" PRIx64
           ", of optimizer state %016" PRIx64 "%016" PRIx64 "\n",
           digest->model[0], digest->model[1], digest->optim[0],
           digest->optim[1]);
}
