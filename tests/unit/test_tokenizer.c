/*
 * Compare the encoder with the ids of the tokenizers library: golden/text/NAME.json is a tokenizer,
 * and NAME.ids has strings and their ids (tests/judge/textjudge.py).
 */
#include "formats/text/tokenizer.h"
#include "formats/text/tokenizerparts.h"
#include "formats/text/unicode.h"
#include "tests/unit/test.h"

static const char *const names[] = {"mixtral",   "mistral",   "phi35",  "flags",   "qwen2",
                                    "qwen3",     "llama3",    "olmoe",  "glm45",   "glm4",
                                    "deepseek3", "deepseek2", "gptoss", "minimax", "qwen35",
                                    "ernie",     "smollm2",   "gaps"};

static struct fm_tokenizer *open_tokenizer(const char *name)
{
    struct fm_tokenizer *t;
    struct fm_err err = {0};
    char path[64];
    snprintf(path, sizeof path, "golden/text/%s.json", name);
    assert_ok(fm_tokenizer_open(&t, path, &err));
    return t;
}

static uint16_t take_u16(FILE *f)
{
    uint16_t v = 0;
    assert_int_equal(fread(&v, sizeof v, 1, f), 1);
    return v;
}

/* Compare the ids of all strings of a sample; returns the number of strings. */
static int check_sample(const char *name, struct fm_encoder *e)
{
    char path[64];
    int strings = 0;
    snprintf(path, sizeof path, "golden/text/%s.ids", name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    for (int c; (c = fgetc(f)) != EOF; strings++) {
        static char text[65536];
        struct fm_err err = {0};
        const int32_t *ids = NULL;
        size_t n = 0;
        ungetc(c, f);
        uint16_t size = take_u16(f);
        assert_int_equal(fread(text, 1, size, f), size);
        assert_ok(fm_encoder_run(e, text, size, &ids, &n, &err));
        assert_int_equal(take_u16(f), n);
        for (size_t i = 0; i < n; i++)
            if (take_u16(f) != ids[i])
                fail_msg("%s: string %d '%.*s': id %zu is %d", name, strings, (int)size, text, i,
                         ids[i]);
    }
    fclose(f);
    return strings;
}

TEST(ids_are_those_of_the_tokenizers_library)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct fm_tokenizer *t = open_tokenizer(names[i]);
        struct fm_encoder *e;
        assert_ok(fm_encoder_new(&e, t, &err));
        assert_int_equal(check_sample(names[i], e), 253);
        assert_int_equal(check_sample(names[i], e), 253); /* words come from the cache now */
        fm_encoder_free(e);
        fm_tokenizer_close(t);
    }
}

/* SmolLM2's vocabulary lacks bytes 0x04 and 0xf1, which begins the characters from U+40000 on. */
TEST(dropped_bytes_are_counted)
{
    static const struct {
        const char *name, *text;
        size_t dropped;
    } expected[] = {{"smollm2", "a\x04\x04 b\U00040000", 3},
                    {"smollm2", "a \u00e9\U00010000", 0},
                    {"smollm2", "\x04", 1},
                    {"gaps", "a\x04\x04 b\U00040000\u00e9", 0}, /* it has a token for them */
                    {"qwen2", "a\x04\x04 b\U00040000", 0}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        struct fm_tokenizer *t = open_tokenizer(expected[i].name);
        struct fm_encoder *e;
        const int32_t *ids;
        size_t n;
        assert_ok(fm_encoder_new(&e, t, &err));
        for (int again = 0; again < 2; again++) { /* words come from the cache the second time */
            assert_ok(
                fm_encoder_run(e, expected[i].text, strlen(expected[i].text), &ids, &n, &err));
            assert_int_equal(fm_encoder_dropped(e), expected[i].dropped);
        }
        fm_encoder_free(e);
        fm_tokenizer_close(t);
    }
}

TEST(invalid_utf8_is_refused_with_its_place)
{
    static const struct {
        const char *text;
        size_t size;
        const char *says;
    } bad[] = {{"abc\xff", 4, "byte 3"},         {"\xc0\x80", 2, "byte 0"},
               {"ab\xed\xa0\x80", 5, "byte 2"},  {"12345678\xf4\x90\x80\x80", 12, "byte 8"},
               {"\xe2\x96", 2, "byte 0"},        {"x\x80", 2, "byte 1"},
               {"\xf0\x80\x80\x80", 4, "byte 0"}};
    struct fm_tokenizer *t = open_tokenizer("qwen2");
    struct fm_encoder *e;
    const int32_t *ids;
    size_t n;
    assert_ok(fm_encoder_new(&e, t, &err));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_fails(fm_encoder_run(e, bad[i].text, bad[i].size, &ids, &n, &err), FM_EFORMAT,
                     bad[i].says);
    }
    assert_ok(fm_encoder_run(e, "\0 is fine", 9, &ids, &n, &err));
    assert_true(n > 0);
    fm_encoder_free(e);
    fm_tokenizer_close(t);
}

TEST(long_words_take_time_in_proportion)
{
    enum { SIZE = 1 << 20 };
    struct fm_tokenizer *t = open_tokenizer("mixtral");
    struct fm_encoder *e;
    const int32_t *ids;
    size_t n;
    char *text = malloc(SIZE);
    assert_non_null(text);
    for (int i = 0; i < SIZE; i++)
        text[i] = "abcd efgh"[i % 9];
    assert_ok(fm_encoder_new(&e, t, &err));
    assert_ok(fm_encoder_run(e, text, SIZE, &ids, &n, &err));
    assert_true(n > SIZE / 9 && n < SIZE);
    memset(text, 'a', SIZE);
    assert_ok(fm_encoder_run(e, text, SIZE, &ids, &n, &err));
    free(text);
    fm_encoder_free(e);
    fm_tokenizer_close(t);
}

/* Text is cut before words if Metaspace splits it, or if no merge crosses the cut. */
TEST(merges_across_words_are_made_unless_metaspace_splits)
{
#define REPLACE "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"\u2581\"}"
#define METASPACE                                                                                  \
    "{\"type\": \"Metaspace\", \"replacement\": \"\u2581\", \"prepend_scheme\": \"never\", "       \
    "\"split\": %s}"
    static const char json[] =
        "{\"version\": \"1.0\", \"added_tokens\": [], \"normalizer\": %s, \"pre_tokenizer\": %s, "
        "\"post_processor\": null, \"decoder\": null, \"model\": {\"type\": \"BPE\", \"vocab\": "
        "{\"a\": 0, \"b\": 1, \"\u2581\": 2, \"\u2581b\": 3, \"a\u2581\": 4}, \"merges\": "
        "[%s[\"\u2581\", \"b\"]]}}";
    static const struct {
        const char *split, *merge; /* split: NULL without Metaspace */
        int32_t ids[6];
        size_t n;
    } expected[] = {{NULL, "", {0, 3, 0, 2, 0, 3}, 6},
                    {NULL, "[\"a\", \"\u2581\"], ", {4, 1, 4, 4, 1}, 5},
                    {"false", "[\"a\", \"\u2581\"], ", {4, 1, 4, 4, 1}, 5},
                    {"true", "[\"a\", \"\u2581\"], ", {0, 3, 0, 2, 0, 3}, 6}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        char metaspace[128], text[1024];
        struct fm_tokenizer *t;
        struct fm_encoder *e;
        const int32_t *ids;
        size_t n;
        const char *split = expected[i].split;
        snprintf(metaspace, sizeof metaspace, METASPACE, split ? split : "");
        snprintf(text, sizeof text, json, split ? "null" : REPLACE, split ? metaspace : "null",
                 expected[i].merge);
        assert_ok(fm_tokenizer_parse(&t, text, strlen(text), &err));
        assert_ok(fm_encoder_new(&e, t, &err));
        assert_ok(fm_encoder_run(e, "a ba a b", 8, &ids, &n, &err));
        assert_int_equal(n, expected[i].n);
        assert_memory_equal(ids, expected[i].ids, n * sizeof *ids);
        fm_encoder_free(e);
        fm_tokenizer_close(t);
    }
#undef REPLACE
#undef METASPACE
}

/* Check the pieces into which a pattern divides a text; `wanted` has a bar before each. */
static void pieces_are(const char *pattern, const char *text, const char *wanted)
{
    struct fm_pretoken p;
    char got[256] = "";
    size_t size = strlen(text), used = 0;
    assert_true(fm_pretoken_parse(&p, pattern));
    while (size > 0) {
        size_t n = fm_pretoken_next(&p, text, size);
        used += (size_t)snprintf(got + used, sizeof got - used, "|%.*s", (int)n, text);
        text += n;
        size -= n;
    }
    assert_string_equal(got, wanted);
}

TEST(classes_cut_text_into_matches_and_gaps)
{
    pieces_are("\\p{N}{1,3}", "ab12345c6", "|ab|123|45|c|6");
    pieces_are("[\u4e00-\u9fa5x]+", "a\u4e2dxb", "|a|\u4e2dx|b");
    pieces_are("\\s?[a-c]+", " ab  c\td", "| ab| | c|\td");
    pieces_are("[\r\n]", "a\r\n\nb", "|a|\r|\n|\n|b");
    pieces_are("[\\r\\n\\-\\]]", "a\n-]", "|a|\n|-|]");
    pieces_are("\\s+$", "a  b \n\nc  ", "|a  b| \n|\nc|  ");
    pieces_are("[b-ya]+", "1xyz", "|1|xy|z");
    pieces_are("[a-yb]+", "1xyz", "|1|xy|z"); /* ranges may overlap */
    pieces_are(FM_PRETOKEN_DIGITS, "a12", "|a|1|2");
    pieces_are("[\\p{L}\\p{M}]+", "1e\u0301!", "|1|e\u0301|!");
}

/* A long run that almost matches at every place is scanned once. */
TEST(tails_take_time_in_proportion)
{
    enum { SIZE = 1 << 20 };
    struct fm_pretoken p;
    char *text = malloc(SIZE);
    assert_non_null(text);
    memset(text, ' ', SIZE);
    text[SIZE - 1] = 'a';
    assert_true(fm_pretoken_parse(&p, "\\s+$"));
    assert_int_equal(fm_pretoken_next(&p, text, SIZE), SIZE);
    free(text);
}

static void nfc_is(const char *text, const char *wanted)
{
    struct fm_text out = {0};
    fm_unicode_nfc(&out, text, strlen(text));
    if (out.size != strlen(wanted) || memcmp(out.data, wanted, out.size) != 0)
        fail_msg("'%s' became '%.*s'", text, (int)out.size, out.data);
    free(out.data);
}

TEST(normal_form_c_composes_what_it_may)
{
    nfc_is("plain", "plain");
    nfc_is("cafe\u0301s", "caf\u00e9s");
    nfc_is("a\u0323\u0307", "\u1ea1\u0307");
    nfc_is("a\u0307\u0323", "\u1ea1\u0307"); /* marks are reordered */
    nfc_is("\u1100\u1161\u11a8", "\uac01");  /* Hangul */
    nfc_is("\u212b\u2126", "\u00c5\u03a9");  /* singletons */
    nfc_is("\u0915\u093c", "\u0915\u093c");  /* excluded from composition */
    nfc_is("\u0958", "\u0915\u093c");
    nfc_is("\u0301x", "\u0301x");
    nfc_is("o\u0302\u0301y\u0308", "\u1ed1\u00ff");
}

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static size_t refused;                   /* a block of this size is not available */
extern void *__libc_malloc(size_t size); /* glibc's malloc under another name */
void *malloc(size_t size);
void *malloc(size_t size)
{
    return size == refused && size > 0 ? NULL : __libc_malloc(size);
}

TEST(marks_that_cannot_be_sorted_are_an_error)
{
    enum { MARKS = 1000, BYTES = 2 };
    char text[MARKS * BYTES + 1];
    struct fm_text out = {0};
    for (int i = 0; i < MARKS; i++)
        memcpy(text + i * BYTES, i % 2 ? "\u0323" : "\u0301", BYTES + 1);
    refused = MARKS * sizeof(uint32_t);
    fm_unicode_nfc(&out, text, MARKS * BYTES);
    refused = 0;
    assert_true(out.failed);
    free(out.data);
}
#endif

TEST(classes_are_those_of_unicode_16)
{
    const uint16_t *class = fm_unicode_classes();
    int letters = 0, numbers = 0, spaces = 0, cased = 0, marks = 0, signs = 0;
    for (int c = 0; c < 0x110000; c++) {
        letters += (class[c] & FM_LETTER) != 0;
        numbers += (class[c] & FM_NUMBER) != 0;
        spaces += (class[c] & FM_SPACE) != 0;
        cased += (class[c] & (FM_UPPER | FM_LOWER)) != 0;
        marks += (class[c] & FM_MARK) != 0;
        signs += (class[c] & FM_SIGN) != 0;
    }
    assert_int_equal(letters, 141028);
    assert_int_equal(numbers, 1911);
    assert_int_equal(spaces, 25);
    assert_int_equal(cased, 1889 + 2258);
    assert_int_equal(marks, 2501);
    assert_int_equal(signs, 9369);
    assert_int_equal(class[0x11de3], FM_DIGIT); /* a number since Unicode 17 */
    assert_true(class[0x10d4a] & FM_LETTER);    /* Garay, new in Unicode 16 */
    assert_false(class['_'] & FM_LETTER);
    assert_true(class['_'] & FM_WORD);
}

TEST(the_template_and_the_largest_id_are_reported)
{
    struct fm_tokenizer *t = open_tokenizer("llama3");
    const int32_t *front, *back;
    int fronts, backs;
    fm_tokenizer_template(t, &front, &fronts, &back, &backs);
    assert_int_equal(fronts, 1);
    assert_int_equal(backs, 0);
    assert_int_equal(front[0] + 2, t->last);
    fm_tokenizer_close(t);
}

TEST_MAIN(NULL, NULL)
