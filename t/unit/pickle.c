#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "ckpt/pickle.h"
#include "ckpt/pickle_write.h"
#include "ckpt/torch_object.h"
#include "ckpt/value.h"
#include "t/tap/tap.h"

/* A pickle as a C string: with what is in it, '\0' included. */
#define P(_text) (_text), sizeof(_text) - 1

static void test_values(void)
{
    static const struct {
        const char *what;
        const char *data;
        size_t size;
        const char *json;
    } cases[] = {
        {"None",                   P("\x80\x02N."),                                      "null"                       },
        {"booleans",               P("\x80\x02\x88\x89\x86."),                           "{\"$tuple\": [true, false]}"},
        {"old booleans",           P("(I01\nI00\nl."),                                   "[true, false]"              },
        {"a byte",                 P("\x80\x02K\xff."),                                  "255"                        },
        {"two bytes",              P("\x80\x02M\xff\xff."),                              "65535"                      },
        {"four bytes",             P("\x80\x02J\xfe\xff\xff\xff."),                      "-2"                         },
        {"LONG1",                  P("\x80\x02\x8a\x05\x00\xf2\x05\x2a\x01."),           "5000000000"                 },
        {"LONG1 negative",         P("\x80\x02\x8a\x01\xff."),                           "-1"                         },
        {"LONG1 empty",            P("\x80\x02\x8a\x00."),                               "0"                          },
        {"LONG1 of 64 bits",       P("\x80\x02\x8a\x08\0\0\0\0\0\0\0\x80."),
         "-9223372036854775808"                                                                                       },
        {"LONG1 of 2^63",          P("\x80\x02\x8a\x09\0\0\0\0\0\0\0\x80\0."),
         "9223372036854775808"                                                                                        },
        {"LONG1 of 2^80",          P("\x80\x02\x8a\x0b\0\0\0\0\0\0\0\0\0\0\1."),
         "1208925819614629174706176"                                                                                  },
        {"LONG4 of -2^80",         P("\x80\x02\x8b\x0b\0\0\0\0\0\0\0\0\0\0\0\0\0\xff."),
         "-1208925819614629174706176"                                                                                 },
        {"decimal",                P("L123456789012345678901L\n."),                      "123456789012345678901"      },
        {"decimal negative",       P("I-128\n."),                                        "-128"                       },
        {"float",                  P("\x80\x02G\x3f\xb9\x99\x99\x99\x99\x99\x9a."),      "0.1"                        },
        {"float of whole",         P("\x80\x02G\x40\x08\0\0\0\0\0\0."),                  "3.0"                        },
        {"float as text",          P("F1e300\n."),                                       "1e+300"                     },
        {"inf",                    P("\x80\x02G\x7f\xf0\0\0\0\0\0\0."),                  "{\"$float\": \"inf\"}"      },
        {"nan",                    P("\x80\x02G\x7f\xf8\0\0\0\0\0\0."),                  "{\"$float\": \"nan\"}"      },
        {"string",                 P("\x80\x02X\2\0\0\0a\"."),                           "\"a\\\"\""                  },
        {"string of UTF-8",        P("\x80\x04\x8c\x02\xc3\xa9."),                       "\"\xc3\xa9\""               },
        {"string of no UTF-8",     P("\x80\x04\x8c\x01\xff."),                           "\"\\ufffd\""                },
        {"string with NUL",
         P("\x80\x04\x8c\x03"
           "a\0b."),
         "\"a\\u0000b\""                                                                                              },
        {"string of protocol 0",   P("Va\\u00e9\xe9\n."),
         "\"a\xc3\xa9\xc3\xa9\""                                                                                      },
        {"string of Python 2",     P("S'a\\n\\x41'\n."),                                 "\"a\\u000aA\""              },
        {"bytes",
         P("\x80\x03"
           "C\x02\x00\xff."),
         "{\"$bytes_hex\": \"00ff\"}"                                                                                 },
        {"bytes of protocol 2",
         P("\x80\x02"
           "c_codecs\nencode\nX\2\0\0\0\xc3\xbf"
           "X\6\0\0\0latin1\x86R."),
         "{\"$bytes_hex\": \"ff\"}"                                                                                   },
        {"empty bytes",
         P("\x80\x02"
           "c__builtin__\nbytes\n)R."),
         "{\"$bytes_hex\": \"\"}"                                                                                     },
        {"list",                   P("\x80\x02](K\1K\2e."),                              "[1, 2]"                     },
        {"list one by one",        P("\x80\x02]K\1aK\2a."),                              "[1, 2]"                     },
        {"dict",                   P("\x80\x02}(X\1\0\0\0aK\1K\2Nu."),
         "{\"$dict\": [[\"a\", 1], [2, null]]}"                                                                       },
        {"dict of protocol 0",     P("(dS'a'\nI1\ns."),                                  "{\"a\": 1}"                 },
        {"set of protocol 4",      P("\x80\x04\x8f(K\1K\2\x90."),
         "{\"$set\": [1, 2]}"                                                                                         },
        {"set of protocol 2",
         P("\x80\x02"
           "c__builtin__\nset\n](K\1e\x85R."),
         "{\"$set\": [1]}"                                                                                            },
        {"frozenset",              P("\x80\x04(K\1\x91."),                               "{\"$set\": [1]}"            },
        {"OrderedDict",
         P("\x80\x02"
           "ccollections\nOrderedDict\n)R(X\1\0\0\0aK\1u."),
         "{\"a\": 1}"                                                                                                 },
        {"empty OrderedDict",
         P("\x80\x02"
           "ccollections\nOrderedDict\n)R."),
         "{}"                                                                                                         },
        {"Size",
         P("\x80\x02"
           "ctorch\nSize\nK\1K\2\x86\x85R."),
         "{\"$size\": [1, 2]}"                                                                                        },
        {"dtype",                  P("\x80\x04\x8c\5torch\x8c\7float16\x93."),
         "{\"$repr\": \"torch.float16\", \"$class\": \"torch.dtype\"}"                                                },
        {"device",
         P("\x80\x02"
           "ctorch\ndevice\nX\4\0\0\0cudaK\1\x86R."),
         "{\"$repr\": \"device(type='cuda', index=1)\", "
         "\"$class\": \"torch.device\"}"                                                                              },
        {"opaque",
         P("\x80\x02"
           "cos\nsystem\nX\2\0\0\0ls\x85R."),
         "{\"$class\": \"os.system\", \"$args\": {\"$tuple\": [\"ls\"]}}"                                             },
        {"state",
         P("\x80\x02"
           "ca\nB\n)\x81}X\1\0\0\0xK\1sb."),
         "{\"$class\": \"a.B\", \"$new\": true, \"$state\": {\"x\": 1}}"                                              },
        {"state and items",
         P("\x80\x02"
           "ca\nB\n)\x81]X\1\0\0\0xab(K\7e."),
         "{\"$class\": \"a.B\", \"$new\": true, \"$state\": [\"x\"], "
         "\"$items\": [7]}"                                                                                           },
        {"memo",                   P("\x80\x02](K\1q\5h\5j\5\0\0\0e."),                  "[1, 1, 1]"                  },
        {"MEMOIZE",                P("\x80\x04]\x94(\x8c\1a\x94h\1e."),                  "[\"a\", \"a\"]"             },
        {"POP and DUP",
         P("\x80\x02](K\1K\2"
           "02e."),
         "[1, 1]"                                                                                                     },
        {"POP_MARK",
         P("\x80\x02K\3(K\1K\2"
           "1."),
         "3"                                                                                                          },
        {"frames",                 P("\x80\x04\x95\3\0\0\0\0\0\0\0K\1."),                "1"                          },
        {"instance of protocol 0", P("(K\1ia\nB\n."),
         "{\"$class\": \"a.B\", \"$args\": {\"$tuple\": [1]}}"                                                        },
        {"object of protocol 1",   P("(ca\nB\nK\1o."),
         "{\"$class\": \"a.B\", \"$args\": {\"$tuple\": [1]}}"                                                        },
        {"keywords",               P("\x80\x04\x8c\1a\x8c\1B\x93K\1\x85}\x92."),
         "{\"$class\": \"a.B\", \"$args\": {\"$tuple\": [1, {}]}}"                                                    },
        {"bytearray",              P("\x80\5\x96\1\0\0\0\0\0\0\0\7."),
         "{\"$bytes_hex\": \"07\"}"                                                                                   },
    };
    pickle_t *pickle;
    fsdp_error_t err;
    uint64_t used;
    char *text;

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        bool same = false;

        err.text[0] = '\0';
        pickle = NULL;
        text = NULL;
        if (pickle_parse(cases[i].data, cases[i].size, "p", &pickle, &used,
                         &err) == FSDP_OK &&
            torch_value_json(pickle, pickle_root(pickle), "v", NULL, NULL,
                             &text, &err) == FSDP_OK) {
            same = strcmp(text, cases[i].json) == 0 && used == cases[i].size;
        }
        ok(same, "%s", cases[i].what);
        if (!same) {
            printf("# %s %s\n", text ? text : "", err.text);
        }
        free(text);
        pickle_free(pickle);
    }
}

static void test_hostile(void)
{
    static const struct {
        const char *what;
        const char *data;
        size_t size;
        fsdp_status_t status;
    } cases[] = {
        {"nothing",                         P(""),                        FSDP_ERR_CORRUPT    },
        {"no end",                          P("\x80\x02K\1"),             FSDP_ERR_CORRUPT    },
        {"an empty stack at the end",       P("\x80\x02."),               FSDP_ERR_CORRUPT    },
        {"a mark at the end",               P("K\1(K\1."),                FSDP_ERR_CORRUPT    },
        {"no such opcode",                  P("\xff."),                   FSDP_ERR_CORRUPT    },
        {"protocol 6",                      P("\x80\x06N."),              FSDP_ERR_UNSUPPORTED},
        {"extension codes",                 P("\x82\x01."),               FSDP_ERR_UNSUPPORTED},
        {"buffers",                         P("\x80\5\x97."),             FSDP_ERR_UNSUPPORTED},
        {"a string of 2^32 - 1 bytes",
         P("X\xff\xff\xff\xff"
           "abc."),
         FSDP_ERR_CORRUPT                                                                     },
        {"a string of 2^64 - 1 bytes",
         P("\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
           "abc."),
         FSDP_ERR_CORRUPT                                                                     },
        {"a long of 2^32 - 1 bytes",        P("\x8b\xff\xff\xff\xff."),
         FSDP_ERR_CORRUPT                                                                     },
        {"10^9 in the memo",                P("Nr\0\xca\x9a\x3b."),       FSDP_ERR_CORRUPT    },
        {"10^15 in the memo",               P("Np999999999999999\n."),    FSDP_ERR_CORRUPT    },
        {"nothing in the memo",             P("h\0."),                    FSDP_ERR_CORRUPT    },
        {"TUPLE without a mark",            P("K\1t."),                   FSDP_ERR_CORRUPT    },
        {"TUPLE3 over a mark",              P("K\1(K\1K\1\x87."),         FSDP_ERR_CORRUPT    },
        {"APPEND to a number",              P("K\1K\1a."),                FSDP_ERR_CORRUPT    },
        {"APPENDS to a dict",               P("}(K\1e."),                 FSDP_ERR_CORRUPT    },
        {"SETITEMS of three",               P("}(K\1K\1K\1u."),           FSDP_ERR_CORRUPT    },
        {"a list and a dict in one object", P("ca\nB\n)R(K\1e(K\1K\1u."),
         FSDP_ERR_CORRUPT                                                                     },
        {"BUILD of a number",               P("K\1K\1b."),                FSDP_ERR_CORRUPT    },
        {"REDUCE without a tuple",          P("ca\nB\nK\1R."),            FSDP_ERR_CORRUPT    },
        {"a class of numbers",              P("K\1K\1\x93."),             FSDP_ERR_CORRUPT    },
        {"OBJ without a class",             P("(o."),                     FSDP_ERR_CORRUPT    },
        {"a line without an end",           P("I12"),                     FSDP_ERR_CORRUPT    },
        {"an integer of letters",           P("Ixy\n."),                  FSDP_ERR_CORRUPT    },
        {"a float of letters",              P("Fxy\n."),                  FSDP_ERR_CORRUPT    },
        {"no quotes",                       P("Sab\n."),                  FSDP_ERR_CORRUPT    },
    };
    pickle_t *pickle;
    fsdp_error_t err;

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        fsdp_status_t status;

        pickle = NULL;
        status = pickle_parse(cases[i].data, cases[i].size, "p", &pickle, NULL,
                              &err);
        ok(status == cases[i].status && pickle == NULL &&
               strstr(err.text, "p: ") == err.text,
           "%s", cases[i].what);
        pickle_free(pickle);
    }
}

/* Pickle a value and read that; NULL: it cannot be written. */
static char *write_and_read(const char *json)
{
    pickle_t *pickle = NULL;
    pickle_writer_t writer;
    json_t *value = NULL;
    char *text = NULL;

    if (value_parse("v", json, strlen(json), &value, NULL) != FSDP_OK) {
        return NULL;
    }

    pickle_write_begin(&writer, 2);
    if (pickle_write_value(&writer, value, NULL, NULL) &&
        pickle_write_end(&writer) &&
        pickle_parse(writer.out.data, writer.out.size, "p", &pickle, NULL,
                     NULL) == FSDP_OK) {
        (void)torch_value_json(pickle, pickle_root(pickle), "v", NULL, NULL,
                               &text, NULL);
    }
    pickle_free(pickle);
    pickle_write_free(&writer);
    json_decref(value);
    return text;
}

/* What is written is read as the same. */
static void test_written(void)
{
    static const char *const cases[] = {
        "null",
        "[true, false, 0, -1, 255, 256, 2147483648, -9223372036854775808]",
        "1180591620717411303435",
        "-1180591620717411303435",
        "[0.1, -0.0, 1e+300, {\"$float\": \"nan\"}, {\"$float\": \"-inf\"}]",
        "[\"\", \"a\\u0000b\", \"\xc3\xa9\"]",
        "{\"a\": [], \"b.c\": {}, \"\": {\"$tuple\": []}}",
        "{\"$dict\": [[1, \"a\"], [\"1\", \"b\"], [null, 2], [{\"$tuple\": [1, "
        "2]}, true], [\"$tuple\", []]]}",
        "{\"$set\": [1, \"a\", {\"$set\": [2]}]}",
        "{\"$size\": [3, 0]}",
        "{\"$bytes_hex\": \"00417fff\"}",
        "{\"$repr\": \"torch.bfloat16\", \"$class\": \"torch.dtype\"}",
        "{\"$repr\": \"device(type='cuda', index=3)\", \"$class\": "
        "\"torch.device\"}",
        "{\"$repr\": \"builtins.complex\", \"$class\": \"type\"}",
        "{\"$class\": \"builtins.complex\", \"$args\": {\"$tuple\": [1.0, "
        "-2.5]}}",
        "{\"$class\": \"a.b.C\", \"$new\": true, \"$args\": {\"$tuple\": "
        "[1]}, \"$state\": {\"x\": 1}, \"$items\": [1, 2]}",
        "{\"$class\": \"a:B.C\", \"$args\": {\"$tuple\": [1]}, \"$items\": "
        "{\"$dict\": [[1, 2]]}}",
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char *text = write_and_read(cases[i]);

        ok(text != NULL && strcmp(text, cases[i]) == 0, "written: %s (%s)",
           cases[i], text ? text : "not written");
        free(text);
    }
}

/* Values of a file that somebody made up. */
static void test_not_written(void)
{
    static const char *const cases[] = {
        "{\"$int\": \"1\\nN.\"}",
        "{\"$int\": \"\"}",
        "{\"$float\": \"x\"}",
        "{\"$bytes_hex\": \"0g\"}",
        "{\"$bytes_hex\": \"012\"}",
        "{\"$tensor\": \"a\"}",
        "{\"$tuple\": 1}",
        "{\"$dict\": [[1]]}",
        "{\"$dict\": 1}",
        "{\"$what\": 1}",
        "{\"$class\": \"torch.storage\"}",
        "{\"$class\": \"none\"}",
        "{\"$class\": \"a.b\\nN.c\"}",
        "{\"$class\": \"a.B\", \"$args\": [1]}",
        "{\"$repr\": \"<a.B object>\", \"$class\": \"a.B\"}",
        "{\"$repr\": \"device()\", \"$class\": \"torch.device\"}",
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char *text = write_and_read(cases[i]);

        ok(text == NULL, "not written: %s", cases[i]);
        free(text);
    }
}

static void test_equal(void)
{
    static const struct {
        const char *a, *b;
        bool same;
    } cases[] = {
        {"{\"$dict\": [[1, 2], [\"1\", 3]]}",
         "{\"$dict\": [[\"1\", 3], [1, 2]]}",                                          true },
        {"{\"$dict\": [[1, 2]]}",                         "{\"$dict\": [[\"1\", 2]]}", false},
        {"{\"$dict\": [[1, 2], [true, 3]]}",              "{\"1\": 2, \"True\": 3}",   true },
        {"{\"$dict\": [[1, 2]]}",                         "{\"1\": 3}",                false},
        {"{\"$class\": \"a.B\", \"$state\": {\"x\": 1}}",
         "{\"$class\": \"a.B\", \"$state\": {\"x\": 2}}",                              false},
        {"{\"$class\": \"a.B\", \"$state\": {\"x\": 1}}",
         "{\"$class\": \"a.B\", \"$repr\": \"<a.B>\"}",                                true },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        json_t *a = NULL, *b = NULL;

        (void)value_parse("a", cases[i].a, strlen(cases[i].a), &a, NULL);
        (void)value_parse("b", cases[i].b, strlen(cases[i].b), &b, NULL);
        ok(value_equal(a, b, NULL, NULL) == cases[i].same &&
               value_equal(b, a, NULL, NULL) == cases[i].same,
           "%s: %s and %s", cases[i].same ? "equal" : "not equal", cases[i].a,
           cases[i].b);
        json_decref(a);
        json_decref(b);
    }
}

/* Values that contain themselves, are deep, or become large by sharing. */
static void test_shapes(void)
{
    static const char cycle[] = "]q\0h\0a.";
    pickle_t *pickle = NULL;
    fsdp_error_t err;
    char *deep, *text = NULL;
    size_t size = 0;

    ok(pickle_parse(cycle, sizeof(cycle) - 1, "p", &pickle, NULL, &err) ==
               FSDP_OK &&
           torch_value_json(pickle, pickle_root(pickle), "v", NULL, NULL, &text,
                            &err) == FSDP_ERR_UNSUPPORTED,
       "a list that contains itself is not shown");
    pickle_free(pickle);

    deep = malloc(4000003);
    memset(deep, ']', 2000000);
    memset(deep + 2000000, 'a', 1999999);
    deep[3999999] = '.';
    pickle = NULL;
    ok(pickle_parse(deep, 4000000, "p", &pickle, NULL, &err) == FSDP_OK &&
           torch_value_json(pickle, pickle_root(pickle), "v", NULL, NULL, &text,
                            &err) == FSDP_ERR_UNSUPPORTED,
       "two million lists in each other");
    ok(pickle_memory(pickle) < 40 * 4000000ul, "memory is bounded");
    pickle_free(pickle);

    /* [x, x] of [x, x] of …: 2^40 values. */
    size = 0;
    deep[size++] = ']';
    for (int i = 0; i < 40; i++) {
        deep[size++] = '2';
        deep[size++] = '\x86';
    }
    deep[size++] = '.';
    pickle = NULL;
    ok(pickle_parse(deep, size, "p", &pickle, NULL, &err) == FSDP_OK &&
           torch_value_json(pickle, pickle_root(pickle), "v", NULL, NULL, &text,
                            &err) == FSDP_ERR_UNSUPPORTED,
       "2^40 values by sharing");
    pickle_free(pickle);
    free(deep);
}

/* A file is read in windows: strings over their ends, and one that is longer. */
static void test_file(void)
{
    enum { NUM = 400, LENGTH = 9999 };
    char path[] = "/tmp/fsdp-pickle-XXXXXX";
    int fd = mkstemp(path);
    FILE *file = fdopen(dup(fd), "w");
    char *text = malloc(3 << 20);
    pickle_t *pickle = NULL;
    uint32_t size = LENGTH;
    bool same = true;
    fsdp_error_t err;
    uint64_t used;

    unlink(path);
    fputs("before\x80\x04](", file);
    for (int i = 0; i < NUM; i++) {
        memset(text, 'a' + i % 26, LENGTH);
        fputc('X', file);
        fwrite(&size, 4, 1, file);
        fwrite(text, 1, LENGTH, file);
    }
    size = 3 << 20;
    memset(text, 'z', size);
    fputc('X', file);
    fwrite(&size, 4, 1, file);
    fwrite(text, 1, size, file);
    fputs("e.behind", file);
    fclose(file);

    ok(pickle_parse_file(fd, 6, (uint64_t)lseek(fd, 0, SEEK_END) - 6, "p",
                         &pickle, &used, &err) == FSDP_OK,
       "a pickle of 7 MB in a file");
    for (uint64_t i = 0; pickle != NULL && i <= NUM; i++) {
        size_t length;
        const char *item = pickle_str(
            pickle, pickle_item(pickle, pickle_root(pickle), i), &length);

        memset(text, (i == NUM) ? 'z' : 'a' + (int)(i % 26), length);
        same = same && item != NULL &&
               length == ((i == NUM) ? 3u << 20 : (unsigned)LENGTH) &&
               memcmp(item, text, length) == 0;
    }
    ok(pickle != NULL && same, "its strings are whole");
    ok(used == 5 + NUM * (5ul + LENGTH) + 5 + (3ul << 20) + 1,
       "what is behind it is left alone");
    pickle_free(pickle);
    pickle = NULL;
    ok(pickle_parse_file(fd, 6, 5000000, "p", &pickle, NULL, &err) ==
           FSDP_ERR_CORRUPT,
       "a part of it is no pickle");
    free(text);
    close(fd);
}

static void test_attributes(void)
{
    static const char data[] = "\x80\x02"
                               "ca.b\nC.D\n)\x81N}(X\1\0\0\0xK\1X\1\0\0\0yK\2"
                               "X\1\0\0\0xK\3u\x86"
                               "b.";
    pickle_t *pickle = NULL;
    pickle_ref_t root;
    int64_t value = 0;

    ok(pickle_parse(data, sizeof(data) - 1, "p", &pickle, NULL, NULL) ==
           FSDP_OK,
       "an object with slots");
    root = pickle_root(pickle);
    ok(pickle_is(pickle, root, "D") &&
           strcmp(pickle_module(pickle, pickle_class(pickle, root)), "a.b") ==
               0,
       "its class");
    ok(pickle_int(pickle, pickle_attr(pickle, root, "y"), &value) && value == 2,
       "an attribute");
    ok(pickle_int(pickle, pickle_attr(pickle, root, "x"), &value) && value == 3,
       "the last of two counts");
    ok(pickle_attr(pickle, root, "z") == 0 &&
           pickle_kind(pickle, 0) == PICKLE_ABSENT &&
           pickle_item(pickle, 0, 0) == 0 &&
           pickle_str(pickle, 0, NULL) == NULL,
       "what is not there");
    pickle_free(pickle);
}

int main(void)
{
    test_values();
    test_hostile();
    test_written();
    test_not_written();
    test_equal();
    test_shapes();
    test_file();
    test_attributes();
    return tap_done();
}
