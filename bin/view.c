#include "config.h"

#include "bin/view.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bin/table.h"
#include "lib/util/check.h"
#include "lib/util/select.h"
#include "lib/util/slice.h"

#define VALUES_MOST 100000 /* elements shown of a tensor */

/* One number as its type has it, so that reading it gives the same bits. */
static char *format_value(fsdp_dtype_t dtype, const void *data, uint64_t i)
{
    double value[2];
    int64_t i64;
    uint64_t u64;

    fsdp_dtype_to_double(dtype, data, i, 1, value);
    switch (dtype) {
    case FSDP_DTYPE_I64:
        memcpy(&i64, (const char *)data + 8 * i, 8);
        return cli_printf("%" PRId64, i64);
    case FSDP_DTYPE_U64:
        memcpy(&u64, (const char *)data + 8 * i, 8);
        return cli_printf("%" PRIu64, u64);
    case FSDP_DTYPE_F64:
        return cli_printf("%.17g", value[0]);
    case FSDP_DTYPE_C64:
        return cli_printf("%.9g%+.9gi", value[0], value[1]);
    case FSDP_DTYPE_C128:
        return cli_printf("%.17g%+.17gi", value[0], value[1]);
    case FSDP_DTYPE_F32:
        return cli_printf("%.9g", value[0]);
    case FSDP_DTYPE_BF16:
        return cli_printf("%.4g", value[0]);
    case FSDP_DTYPE_F16:
        return cli_printf("%.5g", value[0]);
    default:
        return cli_printf("%.10g", value[0]);
    }
}

/* A part of a tensor, row by row: rows are runs of the last dimension. */
typedef struct {
    fsdp_ckpt_tensor_t tensor;
    uint64_t index;
    slice_t slice;
    uint64_t columns, rows;
    char *data; /* the rows, each from a whole byte on */
    uint64_t row_bytes;
} part_t;

#define GROUP 8 /* elements of a packed type that are whole bytes */

/* First element of row @a row of the slice, in the tensor's own order. */
static uint64_t row_first(const part_t *part, uint64_t row)
{
    uint32_t ndim = part->slice.ndim;
    uint64_t first = 0, stride = 1;

    for (uint32_t d = ndim; d > 0; d--) {
        uint64_t lo = part->slice.lo[d - 1];
        uint64_t count = part->slice.hi[d - 1] - lo;

        if (d < ndim) {
            lo += row % count;
            row /= count;
        }
        first += lo * stride;
        stride *= part->tensor.dims[d - 1];
    }

    return first;
}

static bool is_packed(const part_t *part)
{
    return fsdp_dtype_bits(part->tensor.dtype) % 8 != 0;
}

/* Elements that are read before the first one of a row. */
static uint64_t lead_of(const part_t *part, uint64_t row)
{
    return is_packed(part) ? row_first(part, row) % GROUP : 0;
}

static char *format_element(const part_t *part, uint64_t row, uint64_t column)
{
    return format_value(part->tensor.dtype, part->data + row * part->row_bytes,
                        lead_of(part, row) + column);
}

/* Of packed types whole bytes are read. */
static fsdp_ckpt_range_t row_range(const part_t *part, uint64_t row)
{
    uint64_t lead = lead_of(part, row), first = row_first(part, row) - lead;
    uint64_t count = part->columns + lead, left = part->tensor.numel - first;

    if (is_packed(part)) {
        count = (count + GROUP - 1) / GROUP * GROUP;
    }

    return (fsdp_ckpt_range_t){
        .tensor = part->index,
        .first = first,
        .count = (count < left) ? count : left,
        .data = part->data + row * part->row_bytes,
    };
}

static fsdp_status_t read_part(fsdp_ckpt_t *ckpt, part_t *part,
                               fsdp_error_t *err)
{
    fsdp_ckpt_range_t *ranges;
    fsdp_status_t status;
    uint64_t most = part->columns + (is_packed(part) ? 2 * GROUP : 0);

    part->row_bytes = most * fsdp_dtype_bits(part->tensor.dtype) / 8;
    part->data = cli_realloc(NULL, part->rows, part->row_bytes);
    ranges = cli_realloc(NULL, part->rows, sizeof(*ranges));
    for (uint64_t r = 0; r < part->rows; r++) {
        ranges[r] = row_range(part, r);
    }
    status = fsdp_ckpt_read(ckpt, ranges, part->rows, NULL, NULL, err);
    free(ranges);

    return status;
}

/* The slice that was asked for, of a tensor. */
static fsdp_status_t choose_part(fsdp_ckpt_t *ckpt, const char *text,
                                 const char *inner, part_t *part,
                                 fsdp_error_t *err)
{
    const char *why = NULL;
    uint64_t numel;

    fsdp_ckpt_get_tensor(ckpt, part->index, &part->tensor);
    if (!slice_parse(inner, part->tensor.ndim, part->tensor.dims, &part->slice,
                     &why)) {
        char *shape = tool_shape(part->tensor.ndim, part->tensor.dims);

        fsdp_error_set(err, FSDP_ERR_INVALID_PARAM, "'%s': %s; its shape is %s",
                       text, why, shape);
        free(shape);
        return FSDP_ERR_INVALID_PARAM;
    }

    numel = slice_numel(&part->slice);
    part->columns = 1;
    if (part->slice.ndim > 0) {
        uint32_t last = part->slice.ndim - 1;

        part->columns = part->slice.hi[last] - part->slice.lo[last];
    }
    part->rows = (part->columns > 0) ? numel / part->columns : 0;
    if (numel > VALUES_MOST) {
        return fsdp_error_set(err, FSDP_ERR_INVALID_PARAM,
                              "'%s': %" PRIu64 " values are more than the "
                              "%d that are shown at once",
                              text, numel, VALUES_MOST);
    }
    return FSDP_OK;
}

static void print_part(const part_t *part)
{
    char *name = cli_printable(part->tensor.name);
    char *shape = tool_shape(part->tensor.ndim, part->tensor.dims);
    char slice[SLICE_TEXT_MAX];
    table_column_t *columns =
        cli_realloc(NULL, part->columns, sizeof(*columns));
    table_t *table;

    for (uint64_t c = 0; c < part->columns; c++) {
        columns[c] = (table_column_t){"", true};
    }
    table = table_create(columns, (unsigned)part->columns);
    for (uint64_t i = 0; i < part->rows * part->columns; i++) {
        char *value =
            format_element(part, i / part->columns, i % part->columns);

        table_cell(table, "%s", value);
        free(value);
    }

    printf("%s  %s %s, elements %s\n", name,
           fsdp_dtype_name(part->tensor.dtype), shape,
           slice_format(&part->slice, slice));
    if (part->rows > 0) {
        table_print(table, stdout);
    }
    table_destroy(table);
    free(columns);
    free(shape);
    free(name);
}

static json_t *json_part(const part_t *part)
{
    json_t *item = json_object(), *values = json_array();
    char slice[SLICE_TEXT_MAX];

    cli_json_set(item, "name", cli_json_text(part->tensor.name));
    cli_json_set(item, "dtype",
                 cli_json_text(fsdp_dtype_name(part->tensor.dtype)));
    cli_json_set(item, "elements",
                 cli_json_text(slice_format(&part->slice, slice)));
    for (uint64_t i = 0; i < part->rows * part->columns; i++) {
        char *text = format_element(part, i / part->columns, i % part->columns);
        json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);

        /* NaN, Inf and complex numbers are no JSON. */
        cli_json_append(values, (value != NULL) ? value : cli_json_text(text));
        free(text);
    }
    cli_json_set(item, "values", values);

    return item;
}

/* Where everything that was asked for goes. */
typedef struct {
    fsdp_ckpt_t *ckpt;
    const tool_t *tool;
    json_t *all;
} view_t;

static fsdp_status_t show_part(view_t *view, const char *text,
                               const char *inner, uint64_t tensor,
                               fsdp_error_t *err)
{
    part_t part = {.index = tensor};
    fsdp_status_t status = choose_part(view->ckpt, text, inner, &part, err);

    if (status == FSDP_OK) {
        status = read_part(view->ckpt, &part, err);
    }
    if (status == FSDP_OK && view->tool->json) {
        cli_json_append(view->all, json_part(&part));
    } else if (status == FSDP_OK && !view->tool->quiet) {
        print_part(&part);
    }
    free(part.data);

    return status;
}

/* A value that is no tensor. */
static void show_value(view_t *view, uint64_t index)
{
    const char *name, *json;
    json_t *item, *value;

    fsdp_ckpt_get_value(view->ckpt, index, &name, &json);
    if (view->tool->json) {
        item = json_object();
        value = json_loads(json, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        cli_json_set(item, "name", cli_json_text(name));
        cli_json_set(item, "value",
                     (value != NULL) ? value : cli_json_text(json));
        cli_json_append(view->all, item);
    } else if (!view->tool->quiet) {
        char *clean = cli_printable(name), *text = cli_printable(json);

        printf("%s  %s\n", clean, text);
        free(clean);
        free(text);
    }
}

/* All tensors whose name fits a pattern. */
static fsdp_status_t show_fitting(view_t *view, const char *text,
                                  const char *pattern, const char *inner,
                                  fsdp_error_t *err)
{
    fsdp_ckpt_info_t info;
    bool found = false;

    fsdp_ckpt_get_info(view->ckpt, &info);
    for (uint64_t t = 0; t < info.num_tensors; t++) {
        fsdp_ckpt_tensor_t tensor;

        fsdp_ckpt_get_tensor(view->ckpt, t, &tensor);
        if (select_pattern_match(pattern, tensor.name)) {
            found = true;
            FSDP_TRY(show_part(view, text, inner, t, err));
        }
    }

    return found ? FSDP_OK : tool_no_tensor(view->ckpt, pattern, err);
}

static fsdp_status_t show(view_t *view, const char *text, fsdp_error_t *err)
{
    const char *inner;
    fsdp_status_t status;
    uint64_t index;
    size_t size;
    char *name;

    /* Brackets may be part of a name. */
    if (fsdp_ckpt_find(view->ckpt, text, &index)) {
        return show_part(view, text, NULL, index, err);
    }
    if (fsdp_ckpt_find_value(view->ckpt, text, &index)) {
        show_value(view, index);
        return FSDP_OK;
    }

    inner = slice_split(text, &size);
    name = cli_printf("%.*s", (int)size, text);
    status = fsdp_ckpt_find(view->ckpt, name, &index)
                 ? show_part(view, text, inner, index, err)
                 : show_fitting(view, text, name, inner, err);
    free(name);
    return status;
}

fsdp_status_t view_parts(fsdp_ckpt_t *ckpt, const cli_list_t *texts,
                         const tool_t *tool, fsdp_error_t *err)
{
    view_t view = {ckpt, tool, json_array()};
    fsdp_status_t status = FSDP_OK;

    for (size_t i = 0; i < texts->num && status == FSDP_OK; i++) {
        status = show(&view, texts->items[i], err);
    }
    if (status == FSDP_OK && tool->json && !tool->quiet) {
        cli_json_print(json_incref(view.all));
    }
    json_decref(view.all);

    return status;
}
