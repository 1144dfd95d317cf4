/*
 * Test the strict scanner on everything that JSON allows, and on what lenient readers also accept.
 * Every prefix of a text is read from a block of its exact size, so that a sanitizer detects a read
 * past the end.
 */
#include <math.h>

#include "formats/json/json.h"
#include "tests/unit/test.h"

static int check(const char *text, struct fm_err *err)
{
    cJSON *tree = NULL;
    int rc = fm_json_tree(&tree, text, strlen(text), err);
    assert_true((rc == FM_OK) == (tree != NULL));
    cJSON_Delete(tree);
    return rc;
}

static void is_accepted(const char *text)
{
    struct fm_err err = {0};
    if (check(text, &err) != FM_OK)
        fail_msg("%s: %s", text, err.text);
}

static void is_refused(const char *text, const char *sentence)
{
    struct fm_err err = {0};
    if (check(text, &err) != FM_EFORMAT || !strstr(err.text, sentence))
        fail_msg("%s: \"%s\" does not say \"%s\"", text, err.text, sentence);
}

TEST(accepts_all_of_the_grammar)
{
    is_accepted("{}");
    is_accepted(" \t\r\n[ ] \n");
    is_accepted("[0,-0,1,-1,10,0.5,-0.25,1e5,1E+5,1e-5,12.5e-300,9007199254740993]");
    is_accepted("[\"\",\"\\\"\\\\\\/\\b\\f\\n\\r\\t\",\"\\u00e9\\ud83d\\ude00\"]");
    is_accepted("[\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xed\x9f\xbf\xf4\x8f\xbf\xbf\x7f\"]");
    is_accepted("{\"\":{\"a\":[true,false,null]},\"A\":1,\"a\":2}");
    is_accepted("[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]");
    is_accepted("[1e-400]");
}

TEST(refuses_what_lax_parsers_accept)
{
    is_refused("", "the end where a value was expected");
    is_refused("1", "an object or array was expected");
    is_refused("{} {}", "byte 3: '{' where the end of the text");
    is_refused("x", "'x' where a value");
    is_refused("\xef\xbb\xbf{}", "byte 0: byte 0xef where a value");
    is_refused("[0123]", "leading zero");
    is_refused("[-01]", "leading zero");
    is_refused("[1.]", "where a digit");
    is_refused("[.5]", "where a value");
    is_refused("[+1]", "where a value");
    is_refused("[1e]", "where a digit");
    is_refused("[0x10]", "'x' where ',' or ']'");
    is_refused("[1e400]", "not finite");
    is_refused("[-1E400]", "not finite");
    is_refused("[NaN]", "where a value");
    is_refused("[Infinity]", "where a value");
    is_refused("[1,]", "']' where a value");
    is_refused("{\"a\":1,}", "where a string");
    is_refused("{a:1}", "where a string");
    is_refused("{'a':1}", "where a string");
    is_refused("{\"a\" 1}", "'1' where ':'");
    is_refused("{\"a\":1 \"b\":2}", "where ',' or '}'");
    is_refused("[1}", "'}' where ',' or ']'");
    is_refused("[1 /* no */]", "where ',' or ']'");
    is_refused("[tru]", "where a value");
    is_refused("[1,\v2]", "byte 0x0b where a value");
    is_refused("[\"a", "not terminated");
    is_refused("[\"a\nb\"]", "raw control byte 0x0a in a string");
    is_refused("[\"\\u0000\"]", "NUL in a string");
    is_refused("[\"\\x\"]", "'x' where an escape");
    is_refused("[\"\\u12g4\"]", "'g' where a hexadecimal digit");
    is_refused("[\"\\ud800\"]", "lone surrogate");
    is_refused("[\"\\ud800\\n\"]", "lone surrogate");
    is_refused("[\"\\ud800\\ud800\"]", "lone surrogate");
    is_refused("[\"\\udc00\"]", "lone surrogate");
    is_refused("[\"\xc0\xaf\"]", "valid UTF-8");
    is_refused("[\"\xc3\"]", "valid UTF-8");
    is_refused("[\"\xed\xa0\x80\"]", "valid UTF-8");
    is_refused("[\"\xf4\x90\x80\x80\"]", "valid UTF-8");
    is_refused("[\"\xe0\x9f\xbf\"]", "valid UTF-8");
    is_refused("[\"\x80\"]", "valid UTF-8");
    is_refused("{\"a\":1,\"b\":{\"c\":1,\"\\u0063\":2}}", "key 'c' appears twice");
    is_refused("{\"a\\u001bb\":1}", "control character in a name");
    is_refused("[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]", "nested too deeply (limit 16)");
}

TEST(a_nul_byte_does_not_end_the_text)
{
    cJSON *tree = NULL;
    assert_int_equal(fm_json_tree(&tree, "[1]\0", 4, &err), FM_EFORMAT);
    assert_int_equal(fm_json_tree(&tree, "[\"a\0b\"]", 7, &err), FM_EFORMAT);
    assert_ok(fm_json_tree(&tree, "[1]x", 3, &err));
    cJSON_Delete(tree);
}

TEST(texts_over_the_limits_are_refused)
{
    cJSON *tree = NULL;
    size_t n = 1000000;
    char *text = malloc(3 * n + 2);
    for (size_t i = 0; i < n; i++)
        memcpy(text + 1 + 3 * i, "{},", 3);
    text[0] = '[';
    text[3 * n] = ']';
    assert_fails(fm_json_tree(&tree, text, 3 * n + 1, &err), FM_EFORMAT, "more than 250000 values");
    memset(text, '[', 100000);
    assert_int_equal(fm_json_tree(&tree, text, 100000, &err), FM_EFORMAT);
    memset(text, '1', 202);
    text[0] = '[';
    text[201] = ']';
    assert_fails(fm_json_tree(&tree, text, 202, &err), FM_EFORMAT,
                 "a number of 200 characters (limit 48)");
    memset(text, 'k', 65536 + 16);
    memcpy(text, "{\"", 2);
    memcpy(text + 65536, "\":1}", 4);
    assert_ok(fm_json_tree(&tree, text, 65540, &err)); /* a key of 64 KB is allowed */
    cJSON_Delete(tree);
    free(text);
}

TEST(strings_are_unescaped_within_their_room)
{
    struct fm_json j;
    char dst[8];
    const char *text = " \"a\\u00e9\\\\/\" \"1234567\" \"12345678\"";
    fm_json_init(&j, text, strlen(text));
    assert_ok(fm_json_string(&j, dst, sizeof dst, &err));
    assert_string_equal(dst, "a\xc3\xa9\\/");
    assert_ok(fm_json_string(&j, dst, sizeof dst, &err));
    assert_string_equal(dst, "1234567");
    assert_fails(fm_json_string(&j, dst, sizeof dst, &err), FM_EFORMAT, "too long (limit 7 bytes)");
    static const char *const controls[] = {"\"\\n\"", "\"\x7f\"", "\"\xc2\x9b\"", "\"\\u009b\""};
    for (int i = 0; i < 4; i++) {
        fm_json_init(&j, controls[i], strlen(controls[i]));
        assert_int_equal(fm_json_string(&j, dst, sizeof dst, &err), FM_EFORMAT);
        fm_json_init(&j, controls[i], strlen(controls[i]));
        assert_ok(fm_json_text(&j, dst, sizeof dst, &err));
    }
}

TEST(integers_are_plain)
{
    static const struct {
        const char *text, *error;
        uint64_t value;
    } c[] = {
        {"0", NULL, 0},
        {" 42]", NULL, 42},
        {"9223372036854775807", NULL, INT64_MAX},
        {"9223372036854775808", "too large", 0},
        {"18446744073709551616", "too large", 0},
        {"99999999999999999999999999", "too large", 0},
        {"-1", "'-' where a non-negative integer", 0},
        {"-0", "where a non-negative integer", 0},
        {"+1", "where a non-negative integer", 0},
        {"01", "leading zero", 0},
        {"00", "leading zero", 0},
        {"1.0", "'.' where the end of an integer", 0},
        {"1e3", "'e' where the end of an integer", 0},
        {"\"3\"", "where a non-negative integer", 0},
        {"null", "where a non-negative integer", 0},
        {"", "the end where a non-negative integer", 0},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct fm_json j;
        uint64_t v = 0;
        fm_json_init(&j, c[i].text, strlen(c[i].text));
        int rc = fm_json_uint(&j, &v, &err);
        if (!c[i].error) {
            assert_int_equal(rc, FM_OK);
            assert_int_equal(v, c[i].value);
        } else if (rc != FM_EFORMAT || !strstr(err.text, c[i].error)) {
            fail_msg("%s: \"%s\"", c[i].text, err.text);
        }
    }
}

TEST(skip_passes_one_value_exactly)
{
    struct fm_json j;
    const char *text = "{\"a\":[1,{\"b\":\"x\"}],\"c\":{}} 7";
    fm_json_init(&j, text, strlen(text));
    assert_ok(fm_json_skip(&j, &err));
    uint64_t v = 0;
    assert_int_equal(fm_json_end(&j, &err), FM_EFORMAT);
    assert_ok(fm_json_uint(&j, &v, &err));
    assert_int_equal(v, 7);
    assert_ok(fm_json_end(&j, &err));
}

/* No proper prefix of an object is valid, and the scanner does not read past the end of one: each
 * is in a block of its exact size. */
TEST(every_prefix_is_refused)
{
    const char *text =
        "{\"a\\u00e9\\ud83d\\ude00\": [-1.5e+3, true, null, \"\xe2\x82\xac\", {}], \"b\":[]}";
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) {
        char *exact = malloc(i ? i : 1);
        memcpy(exact, text, i);
        assert_int_equal(fm_json_check(exact, i, &err), FM_EFORMAT);
        free(exact);
    }
    is_accepted(text);
}

TEST(getters_check_type_and_range)
{
    cJSON *t = NULL;
    const char *text =
        "{\"i\":7,\"big\":9007199254740991,\"bigger\":9007199254740993,\"half\":0.5,\"s\":\"x\","
        "\"t\":true,\"n\":null,\"minus\":-3}";
    assert_ok(fm_json_tree(&t, text, strlen(text), &err));
    int64_t i = 0;
    double d = 0;
    bool b = false;
    const char *s = NULL;
    assert_true(fm_json_has(t, "i") && fm_json_has(t, "n") && !fm_json_has(t, "I"));
    assert_ok(fm_json_get_int(t, "i", 0, 10, &i, &err));
    assert_int_equal(i, 7);
    assert_ok(fm_json_get_int(t, "minus", -5, 0, &i, &err));
    assert_int_equal(i, -3);
    assert_ok(fm_json_get_int(t, "big", 0, INT64_MAX, &i, &err));
    assert_int_equal(i, 9007199254740991);
    assert_int_equal(fm_json_get_int(t, "bigger", 0, INT64_MAX, &i, &err), FM_EFORMAT);
    assert_int_equal(fm_json_get_int(t, "half", 0, 10, &i, &err), FM_EFORMAT);
    assert_int_equal(fm_json_get_int(t, "s", 0, 10, &i, &err), FM_EFORMAT);
    assert_int_equal(fm_json_get_int(t, "I", 0, 10, &i, &err), FM_EFORMAT);
    assert_string_equal(err.text, "key 'I' is missing");
    assert_int_equal(fm_json_get_int(t, "n", 0, 10, &i, &err), FM_EFORMAT);
    assert_int_equal(fm_json_get_int(t, "i", 8, 10, &i, &err), FM_EFORMAT);
    assert_string_equal(err.text, "key 'i' is 7 (limits 8 to 10)");
    i = 99;
    assert_ok(fm_json_opt_int(t, "n", 0, 10, &i, &err));
    assert_ok(fm_json_opt_int(t, "absent", 0, 10, &i, &err));
    assert_int_equal(i, 99);
    assert_ok(fm_json_opt_double(t, "half", 0, 1, &d, &err));
    assert_true(d == 0.5);
    assert_int_equal(fm_json_opt_double(t, "half", 0.6, 1, &d, &err), FM_EFORMAT);
    assert_int_equal(fm_json_opt_double(t, "t", 0, 1, &d, &err), FM_EFORMAT);
    assert_ok(fm_json_opt_bool(t, "t", &b, &err));
    assert_true(b);
    assert_int_equal(fm_json_opt_bool(t, "i", &b, &err), FM_EFORMAT);
    assert_ok(fm_json_get_string(t, "s", &s, &err));
    assert_string_equal(s, "x");
    assert_int_equal(fm_json_get_string(t, "i", &s, &err), FM_EFORMAT);
    assert_int_equal(fm_json_get_string(t, "n", &s, &err), FM_EFORMAT);
    cJSON_Delete(t);
}

TEST(values_are_printed_exactly_and_in_short_form)
{
    cJSON *t = cJSON_CreateObject();
    fm_json_add_uint(t, "u", UINT64_MAX);
    fm_json_add_double(t, "tenth", 0.1);
    fm_json_add_double(t, "third", 1.0 / 3.0);
    fm_json_add_double(t, "nan", NAN);
    fm_json_add_double(t, "inf", -INFINITY);
    fm_json_add_double(t, "whole", 3.0);
    fm_json_add_double(t, "tiny", 0x1p-1074);
    cJSON_AddNumberToObject(t, "count", 9007199254740991.0);
    cJSON_AddNumberToObject(t, "half", 0.5);
    fm_json_add_string(t, "s\"", "a\n\x1b\\\xc3\xa9");
    cJSON *list = fm_json_add_array(t, "list");
    fm_json_add_uint(list, NULL, 1);
    fm_json_add_double(list, NULL, 2.5);
    cJSON *deep = fm_json_add_array(t, "deep");
    fm_json_add_object(deep, NULL);
    fm_json_add_bool(deep, NULL, true);
    fm_json_add_object(t, "none");
    fm_json_add_null(t, "null");
    char *text = fm_json_print(t);
    assert_string_equal(text, "{\n"
                              "  \"u\": 18446744073709551615,\n"
                              "  \"tenth\": 0.1,\n"
                              "  \"third\": 0.3333333333333333,\n"
                              "  \"nan\": null,\n"
                              "  \"inf\": null,\n"
                              "  \"whole\": 3,\n"
                              "  \"tiny\": 5e-324,\n"
                              "  \"count\": 9007199254740991,\n"
                              "  \"half\": 0.5,\n"
                              "  \"s\\\"\": \"a\\n\\u001b\\\\\xc3\xa9\",\n"
                              "  \"list\": [1, 2.5],\n"
                              "  \"deep\": [\n"
                              "    {},\n"
                              "    true\n"
                              "  ],\n"
                              "  \"none\": {},\n"
                              "  \"null\": null\n"
                              "}\n");
    cJSON *again = NULL;
    assert_ok(fm_json_tree(&again, text, strlen(text), &err));
    cJSON_Delete(again);
    cJSON_Delete(t);
    free(text);
}

static int allocations, fails; /* the allocation that fails, counted from 1 */

static void *allocate(size_t size)
{
    return ++allocations == fails ? NULL : malloc(size);
}

/* Call every function that adds an item; objects and arrays are nested. */
static cJSON *build(void)
{
    cJSON *t = cJSON_CreateObject();
    fm_json_add_string(t, "string", "a");
    cJSON *object = fm_json_add_object(t, "object"), *array = fm_json_add_array(object, "array");
    fm_json_add_uint(array, NULL, 1);
    fm_json_add_double(array, NULL, 2.5);
    fm_json_add_string(array, NULL, "b");
    fm_json_add_bool(object, "bool", false);
    fm_json_add_null(fm_json_add_object(fm_json_add_array(array, NULL), NULL), "null");
    fm_json_add(t, "copy", cJSON_Duplicate(array, true));
    return t;
}

TEST(no_tree_that_lost_an_item_is_printed)
{
    int lost = 0;
    cJSON_Hooks hooks = {allocate, free};
    cJSON_InitHooks(&hooks);
    for (fails = 1;; fails++) {
        allocations = 0;
        cJSON *t = build(), *copy = cJSON_Duplicate(t, true);
        char *text = fm_json_print(t), *again = fm_json_print(copy);
        bool missed = allocations < fails;
        assert_int_equal(fm_json_is_whole(t), text != NULL);
        if (missed)
            assert_string_equal(text, again);
        else
            assert_null(again); /* no copy, or a copy of a tree that lost an item */
        lost += !text;
        cJSON_Delete(copy);
        cJSON_Delete(t);
        free(again);
        free(text);
        if (missed)
            break;
    }
    cJSON_InitHooks(NULL);
    assert_true(lost > 25);
    assert_null(fm_json_print(NULL));
    fm_json_add_uint(NULL, "a", 1);
    assert_null(fm_json_add_array(NULL, NULL));
}

TEST_MAIN(NULL, NULL)
