#include "config.h"

#include <math.h>

#include "ckpt/fsdp_ckpt.h"
#include "t/tap/tap.h"

static void test_numbers(void)
{
    static const struct {
        const char *what;
        fsdp_dtype_t dtype;
        unsigned char data[8];
        uint64_t index;
        double value;
    } cases[] = {
        {"f32 1.5",          FSDP_DTYPE_F32,         {0, 0, 0xc0, 0x3f},          0, 1.5        },
        {"f64 -2",           FSDP_DTYPE_F64,         {0, 0, 0, 0, 0, 0, 0, 0xc0}, 0, -2         },
        {"bf16 second",      FSDP_DTYPE_BF16,        {0, 0, 0x80, 0xbf},          1, -1         },
        {"f16 1",            FSDP_DTYPE_F16,         {0, 0x3c},                   0, 1          },
        {"f16 largest",      FSDP_DTYPE_F16,         {0xff, 0x7b},                0, 65504      },
        {"f16 smallest",     FSDP_DTYPE_F16,         {1, 0},                      0, 0x1p-24    },
        {"f16 -inf",         FSDP_DTYPE_F16,         {0, 0xfc},                   0, -INFINITY  },
        {"f16 NaN",          FSDP_DTYPE_F16,         {1, 0xfc},                   0, NAN        },
        {"i8",               FSDP_DTYPE_I8,          {0x80},                      0, -128       },
        {"i16",              FSDP_DTYPE_I16,         {0xfe, 0xff},                0, -2         },
        {"i32",              FSDP_DTYPE_I32,         {1, 0, 0, 0x80},             0, -2147483647},
        {"i64 second half",  FSDP_DTYPE_I64,         {0, 0, 0, 0, 1},             0, 4294967296 },
        {"u8 third",         FSDP_DTYPE_U8,          {1, 2, 0xff},                2, 255        },
        {"u16",              FSDP_DTYPE_U16,         {0xff, 0xff},                0, 65535      },
        {"u32",              FSDP_DTYPE_U32,         {0xff, 0xff, 0xff, 0xff},    0, 4294967295 },
        {"u64",              FSDP_DTYPE_U64,         {0, 0, 0, 0, 0, 0, 0, 0x80}, 0, 0x1p63     },
        {"bool",             FSDP_DTYPE_BOOL,        {1},                         0, 1          },
        {"e4m3 448",         FSDP_DTYPE_F8_E4M3,     {0x7e},                      0, 448        },
        {"e4m3 NaN",         FSDP_DTYPE_F8_E4M3,     {0x7f},                      0, NAN        },
        {"e4m3 smallest",    FSDP_DTYPE_F8_E4M3,     {0x81},                      0, -0x1p-9    },
        {"e5m2 57344",       FSDP_DTYPE_F8_E5M2,     {0x7b},                      0, 57344      },
        {"e5m2 inf",         FSDP_DTYPE_F8_E5M2,     {0x7c},                      0, INFINITY   },
        {"e8m0 1",           FSDP_DTYPE_F8_E8M0,     {127},                       0, 1          },
        {"e8m0 NaN",         FSDP_DTYPE_F8_E8M0,     {255},                       0, NAN        },
        {"e4m3fnuz 240",     FSDP_DTYPE_F8_E4M3FNUZ, {0x7f},                      0, 240        },
        {"e4m3fnuz NaN",     FSDP_DTYPE_F8_E4M3FNUZ, {0x80},                      0, NAN        },
        {"e5m2fnuz 57344",   FSDP_DTYPE_F8_E5M2FNUZ, {0x7f},                      0, 57344      },
        {"f4 second is 6",   FSDP_DTYPE_F4,          {0x70},                      1, 6          },
        {"f4 third is -0.5", FSDP_DTYPE_F4,          {0, 0x09},                   2, -0.5       },
        {"e2m3 second 7.5",  FSDP_DTYPE_F6_E2M3,     {0xc0, 0x07},                1, 7.5        },
        {"e3m2 fourth 28",   FSDP_DTYPE_F6_E3M2,     {0, 0, 0x7c},                3, 28         },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        double value = 12345;

        fsdp_dtype_to_double(cases[i].dtype, cases[i].data, cases[i].index, 1,
                             &value);
        ok(isnan(cases[i].value) ? isnan(value) : value == cases[i].value,
           "%s: %g", cases[i].what, value);
    }
}

static void test_complex(void)
{
    const float parts[4] = {1, 2, 3, 4};
    double values[2];

    fsdp_dtype_to_double(FSDP_DTYPE_C64, parts, 1, 1, values);
    ok(values[0] == 3 && values[1] == 4, "a complex number has two values");
}

int main(void)
{
    test_numbers();
    test_complex();
    return tap_done();
}
