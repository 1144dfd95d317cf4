/* The shards of a Hugging Face directory, and edits of single keys of a JSON text. */
#include "formats/json/jsonedit.h"
#include "formats/tensor/hfwriter.h"
#include "tests/unit/test.h"

static const struct fm_tensor tensors[] = {
    {.name = "d", .dtype = FM_BF16, .dims = 2, .shape = {5, 10}}, /* 100 bytes */
    {.name = "a", .dtype = FM_F32, .dims = 1, .shape = {10}},     /* 40 */
    {.name = "c", .dtype = FM_BF16, .dims = 1, .shape = {31}},    /* 62 */
    {.name = "b", .dtype = FM_F16, .dims = 1, .shape = {29}},     /* 58 */
};

TEST(shards_fill_in_order_of_name_up_to_the_limit)
{
    struct fm_hfwriter w;
    assert_ok(fm_hfwriter_plan(&w, tensors, 4, 98, &err));
    /* a and b are exactly 98; c is alone because d does not fit with it; d alone exceeds the
     * limit */
    assert_int_equal(w.files, 3);
    assert_string_equal(w.file[1].name, "model-00002-of-00003.safetensors");
    assert_int_equal(w.file[0].count, 2);
    assert_int_equal(w.tensor_bytes, 260);
    assert_string_equal(w.index, "{\n"
                                 "  \"metadata\": {\n"
                                 "    \"total_size\": 260\n"
                                 "  },\n"
                                 "  \"weight_map\": {\n"
                                 "    \"a\": \"model-00001-of-00003.safetensors\",\n"
                                 "    \"b\": \"model-00001-of-00003.safetensors\",\n"
                                 "    \"c\": \"model-00002-of-00003.safetensors\",\n"
                                 "    \"d\": \"model-00003-of-00003.safetensors\"\n"
                                 "  }\n"
                                 "}\n");
    fm_hfwriter_release(&w);
}

TEST(one_file_has_no_index)
{
    struct fm_hfwriter w;
    assert_ok(fm_hfwriter_plan(&w, tensors, 4, 4ull << 30, &err));
    assert_int_equal(w.files, 1);
    assert_string_equal(w.file[0].name, "model.safetensors");
    assert_null(w.index);
    assert_int_equal(w.file_bytes, w.file[0].header_bytes + 260);
    fm_hfwriter_release(&w);
}

TEST(sizes_that_wrap_are_refused)
{
    struct fm_hfwriter w;
    const struct fm_tensor huge = {
        .name = "x", .dtype = FM_F32, .dims = 2, .shape = {1ull << 40, 1ull << 40}};
    assert_int_equal(fm_hfwriter_plan(&w, &huge, 1, 98, &err), FM_ECONFIG);
}

static void set_all(const char *before, const struct fm_jsonedit *edit, int n, const char *after)
{
    struct fm_err err = {0};
    char *text = strdup(before);
    size_t size = strlen(text);
    assert_ok(fm_jsonedit_set(&text, &size, edit, n, &err));
    assert_string_equal(text, after);
    assert_int_equal(size, strlen(after));
    free(text);
}

static void set(const char *before, const char *key, const char *value, const char *after)
{
    set_all(before, &(struct fm_jsonedit){key, value}, 1, after);
}

TEST(one_key_changes_and_no_other_byte)
{
    set("{\n  \"a\" : 1,\n\t\"b\": {\"a\": [2, \"}\"]},  \"c\":3 }\n", "a", "77",
        "{\n  \"a\" : 77,\n\t\"b\": {\"a\": [2, \"}\"]},  \"c\":3 }\n");
    set("{\"a\": 1,\"b\": {\"a\": [2]}}", "b", "null", "{\"a\": 1,\"b\": null}");
    set("{\n  \"a\": 1\n}\n", "new", "[1]", "{\n  \"a\": 1,\n  \"new\": [1]\n}\n");
    set("{}", "a", "1", "{\"a\": 1}");
    set("{\n}\n", "a", "1", "{\n\"a\": 1\n}\n");
}

/* Keys that exist keep their places; new ones follow in the order of the edits. */
TEST(many_keys_change_at_once)
{
    static const struct fm_jsonedit edit[] = {
        {"c", "[1, 2, 3]"}, {"new", "{}"}, {"a", "0"}, {"b", ""}, {"newer", "\"x\""}};
    set_all("{\n  \"a\": 17,\n  \"k\": {\"c\": 1},\n  \"b\":2 ,\n  \"c\": true\n}\n", edit, 5,
            "{\n  \"a\": 0,\n  \"k\": {\"c\": 1},\n  \"b\": ,\n  \"c\": [1, 2, 3],\n"
            "  \"new\": {},\n  \"newer\": \"x\"\n}\n");
    set_all("{}", edit, 2, "{\"c\": [1, 2, 3],\"new\": {}}");
    set_all("{\"a\": 1}", edit, 0, "{\"a\": 1}");
}

TEST(keys_are_taken_out)
{
    const char *text = "{\n  \"a\": 1,\n  \"b\": {\"a\": 2},\n  \"c\": 3\n}\n";
    set(text, "a", NULL, "{\n  \"b\": {\"a\": 2},\n  \"c\": 3\n}\n");
    set(text, "b", NULL, "{\n  \"a\": 1,\n  \"c\": 3\n}\n");
    set(text, "c", NULL, "{\n  \"a\": 1,\n  \"b\": {\"a\": 2}\n}\n");
    set(text, "d", NULL, text);
    set("{\"a\": 1}", "a", NULL, "{}");
    static const struct fm_jsonedit edit[] = {{"c", NULL}, {"new", "4"}, {"b", NULL}, {"a", NULL}};
    set_all(text, edit, 1, "{\n  \"a\": 1,\n  \"b\": {\"a\": 2}\n}\n");
    set_all(text, edit, 3, "{\n  \"a\": 1,\n  \"new\": 4\n}\n");
    set_all(text, edit + 1, 3, "{\n  \"c\": 3,\n  \"new\": 4\n}\n");
    set_all(text, edit, 4, "{\n  \"new\": 4\n}\n");
}

/* "bad" is removed at any depth, "top" only from the outermost object. */
static bool stays(void *asked, const char *key, int depth)
{
    ++*(int *)asked;
    return strcmp(key, "bad") != 0 && !(strcmp(key, "top") == 0 && depth == 1);
}

static int prune(char **text, size_t *size, int *asked)
{
    struct fm_err err = {0};
    *size = strlen(*text);
    *asked = 0;
    return fm_jsonedit_prune(text, size, stays, asked, &err);
}

TEST(members_are_taken_out_at_any_depth)
{
    static const struct {
        const char *before, *after;
        int asked;
    } t[] = {
        {"{\n  \"bad\": [1, {\"bad\": 2}],\n  \"a\": {\"x\": 1, \"b\\u0061d\": 3 }\n}\n",
         "{\n  \"a\": {\"x\": 1 }\n}\n", 4},
        {"{\"top\": 1, \"a\": {\"top\" :2}}", "{ \"a\": {\"top\" :2}}", 3},
        {"[{\"bad\": 1}, [[{\"a\": 1,\"bad\": {}, \"c\": [ ] }]]]",
         "[{}, [[{\"a\": 1, \"c\": [ ] }]]]", 4},
        {"{\"bad\": 1, \"bad\": 2, \"a\": 1e3, \"bad\": 3, \"bad\": 4}", "{ \"a\": 1e3}", 5},
        {"{\"a\": {\"bad\": 1}, \"bad\": {\"a\": 1}, \"b\": {\"c\": 0, \"bad\": 1}}",
         "{\"a\": {}, \"b\": {\"c\": 0}}", 6},
        {"{\"bad\": 1, \"bad\": 2}", "{}", 2},
        {"{ }", "{ }", 0},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char *text = strdup(t[i].before);
        size_t size;
        int asked;
        assert_int_equal(prune(&text, &size, &asked), FM_OK);
        assert_string_equal(text, t[i].after);
        assert_int_equal(size, strlen(t[i].after));
        assert_int_equal(asked, t[i].asked);
        free(text);
    }
}

/* On failure nothing is changed: for a broken text, and one nested deeper than the reader
 * allows. */
TEST(a_text_that_cannot_be_read_is_not_pruned)
{
    char deep[128] = "", *d = deep;
    for (int i = 0; i < 17; i++)
        d += sprintf(d, "[");
    d += sprintf(d, "{\"bad\": 1}");
    for (int i = 0; i < 17; i++)
        d += sprintf(d, "]");
    const char *bad[] = {"",  "{\"bad\": 1", "{\"bad\": 1,}", "{\"bad\": NaN}", "{\"bad\": 1} {}",
                         deep};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *text = strdup(bad[i]);
        size_t size;
        int asked;
        assert_int_equal(prune(&text, &size, &asked), FM_EFORMAT);
        assert_string_equal(text, bad[i]);
        free(text);
    }
}

/* Otherwise an edit would change only one of the two. */
TEST(a_key_that_appears_twice_is_refused)
{
    static const struct fm_jsonedit edit[] = {{"a", "2"}, {"a", NULL}};
    static const char *const bad[] = {"{\"a\":0,\"a\":{}}", "{\"a\":0,\"b\":1,\"a\":0}"};
    for (size_t i = 0; i < 4; i++) {
        char *text = strdup(bad[i / 2]);
        size_t size = strlen(text);
        assert_fails(fm_jsonedit_set(&text, &size, &edit[i % 2], 1, &err), FM_EFORMAT,
                     "JSON: key 'a' appears twice");
        assert_string_equal(text, bad[i / 2]);
        free(text);
    }
    set("{\"b\":0,\"b\":{},\"a\":1}", "a", "2", "{\"b\":0,\"b\":{},\"a\":2}");
}

TEST(a_text_that_is_no_object_is_refused)
{
    static const struct fm_jsonedit edit = {"a", "2"};
    static const char *const bad[] = {"", "[1]", "{\"a\" 1}", "{\"a\": 1", "{\"a\": 1,}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *text = strdup(bad[i]);
        size_t size = strlen(text);
        assert_int_equal(fm_jsonedit_set(&text, &size, &edit, 1, &err), FM_EFORMAT);
        assert_string_equal(text, bad[i]);
        free(text);
    }
}

TEST_MAIN(NULL, NULL)
