/*
 * The token after a document of text.  The ids between the separators are those that the tokenizers
 * library gave for the strings of golden/text/NAME.ids (tests/judge/textjudge.py).
 */
#include "formats/file/text.h"
#include "lib/data/corpus.h"
#include "tests/unit/scratch.h"
#include "tests/unit/test.h"

#define IDS_MAX 65536

/* Each document's ids, followed by -1. */
static int32_t plain[IDS_MAX];
static size_t plains;

static uint16_t take_u16(FILE *f)
{
    uint16_t v = 0;
    assert_int_equal(fread(&v, sizeof v, 1, f), 1);
    return v;
}

/* Write the strings of a sample, except those with a NUL, as rows of JSON; returns the path. */
static const char *rows_of(const char *name)
{
    static char text[65536], at[512];
    struct fm_text rows = {0};
    char path[64];
    snprintf(path, sizeof path, "golden/text/%s.ids", name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    plains = 0;
    for (int c; (c = fgetc(f)) != EOF;) {
        ungetc(c, f);
        uint16_t size = take_u16(f);
        assert_int_equal(fread(text, 1, size, f), size);
        text[size] = '\0';
        bool kept = strlen(text) == size;
        if (kept) {
            fm_text_add(&rows, "{\"text\": ", 9);
            fm_text_quote(&rows, text);
            fm_text_add(&rows, "}\n", 2);
        }
        for (uint16_t n = take_u16(f); n > 0; n--) {
            int32_t id = take_u16(f);
            if (kept)
                plain[plains++] = id;
        }
        if (kept)
            plain[plains++] = -1;
        assert_true(plains < IDS_MAX);
    }
    fclose(f);
    snprintf(at, sizeof at, "%s", scratch_write("rows.jsonl", rows.data, rows.size));
    free(rows.data);
    return at;
}

/* A model with this tokenizer and these files; NULL: without the file. */
static const char *model_with(const char *name, const char *tokenizer_config, const char *config,
                              const char *generation)
{
    char command[700];
    const char *dir = scratch("model");
    snprintf(command, sizeof command,
             "rm -rf %s && mkdir %s && cp golden/text/%s.json %s/tokenizer.json", dir, dir, name,
             dir);
    assert_int_equal(system(command), 0);
    if (tokenizer_config)
        scratch_write("model/tokenizer_config.json", tokenizer_config, strlen(tokenizer_config));
    if (config)
        scratch_write("model/config.json", config, strlen(config));
    if (generation)
        scratch_write("model/generation_config.json", generation, strlen(generation));
    return dir;
}

/* Check that the text's ids are those of the sample, with `separator` after each document that has
 * ids and does not have it among its last two. */
static void check(const struct fm_run_options *run, const char *rows, int32_t separator)
{
    static int32_t ids[IDS_MAX], wanted[IDS_MAX];
    struct fm_corpus corpus;
    struct fm_tokens t;
    struct fm_err err = {0};
    size_t n = 0;
    for (size_t i = 0; i < plains; i++) {
        int32_t last = i > 0 ? plain[i - 1] : -1, other = i > 1 ? plain[i - 2] : -1;
        if (plain[i] >= 0)
            wanted[n++] = plain[i];
        else if (separator >= 0 && last >= 0 && last != separator && other != separator)
            wanted[n++] = separator;
    }
    assert_ok(fm_corpus_encode(&corpus, &t, run, rows, 0, &err));
    assert_int_equal(corpus.separator.id, separator);
    assert_int_equal(t.count, n);
    assert_ok(fm_tokens_read(&t, 0, ids, n, 2000, &err));
    assert_memory_equal(ids, wanted, n * sizeof *ids);
    fm_tokens_close(&t);
}

/* qwen2 is byte-level BPE without a template; llama3 puts its bos first. */
TEST(documents_end_with_the_separator)
{
    const char *rows = rows_of("qwen2");
    struct fm_run_options run = {
        .inputs.model = model_with("qwen2", "{\"eos_token\": \"<|endoftext|>\"}", NULL, NULL)};
    check(&run, rows, 1000);
    run.inputs.separator = "eos";
    check(&run, rows, 1000);
    run.inputs.separator = "<|im_end|>";
    check(&run, rows, 1002);
    run.inputs.separator = "none";
    check(&run, rows, -1);
    rows = rows_of("llama3");
    run = (struct fm_run_options){
        .inputs.model = model_with(
            "llama3", "{\"eos_token\": {\"content\": \"<|eot_id|>\", \"lstrip\": false}}", NULL,
            NULL)};
    check(&run, rows, 1005);
}

/* The token is that of tokenizer_config.json, else of config.json, else of generation_config.json;
 * else there is no separator. */
TEST(the_eos_token_is_found_in_the_files)
{
    const char *rows = rows_of("qwen2");
    struct fm_run_options run = {.inputs.model = model_with("qwen2", "{\"eos_token\": null}",
                                                            "{\"eos_token_id\": 1001}",
                                                            "{\"eos_token_id\": 1002}")};
    check(&run, rows, 1001);
    run.inputs.model = model_with("qwen2", NULL, "{}", "{\"eos_token_id\": [1002, 1000]}");
    check(&run, rows, 1002);
    run.inputs.tokenizer = "golden/text/qwen2.json";
    check(&run, rows, 1002);
    run.inputs.tokenizer = NULL;
    run.inputs.model = model_with("qwen2", "{}", "{\"eos_token_id\": []}", "[]");
    check(&run, rows, -1);
    run.inputs.tokenizer = scratch("model/tokenizer.json");
    run.inputs.model = NULL;
    check(&run, rows, -1);
    scratch_write("model/tokenizer_config.json", "{\"eos_token\": \"<|im_end|>\"}", 27);
    check(&run, rows, 1002);
}

/* A template that ends every document with the separator, and texts that end with it. */
TEST(a_document_that_ends_with_a_separator_gets_no_other)
{
    static const char
        before[] = "\"post_processor\":{\"type\":\"ByteLevel\"",
        after[] =
            "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{}},"
            "{\"SpecialToken\":{\"id\":\"E\"}}],\"special_tokens\":{\"E\":{\"ids\":[1000]}}},"
            "\"decoder\":null,\"model\":";
    static const char text[] = "{\"text\": \"a\"}\n{\"text\": \"b<|endoftext|>\"}\n"
                               "{\"text\": \"c<|endoftext|>\\n\"}\n{\"text\": \"\"}\n";
    const char *model = model_with("qwen2", "{\"eos_token\": \"<|endoftext|>\"}", NULL, NULL);
    struct fm_run_options run = {.inputs.model = model};
    const char *rows = scratch_write("own.jsonl", text, sizeof text - 1);
    struct fm_file f;
    char *json;
    size_t size;
    plains = 0;
    for (const int32_t *p = (const int32_t[]){64, -1, 65, 1000, -1, 66, 1000, 198, -1, -1, -2};
         *p > -2; p++)
        plain[plains++] = *p;
    check(&run, rows, 1000);
    assert_ok(fm_file_open(&f, scratch("model/tokenizer.json"), &err));
    assert_ok(fm_file_slurp(&f, 1 << 24, &json, &size, &err));
    fm_file_close(&f);
    char *from = strstr(json, before), *to = from ? strstr(from, "\"model\":") : NULL;
    assert_non_null(to);
    struct fm_text changed = {0};
    fm_text_add(&changed, json, (size_t)(from - json));
    fm_text_add(&changed, after, sizeof after - 1);
    to += strlen("\"model\":");
    fm_text_add(&changed, to, strlen(to));
    scratch_write("model/tokenizer.json", changed.data, changed.size);
    free(changed.data);
    free(json);
    plains = 0;
    for (const int32_t *p = (const int32_t[]){64, 1000, -1, 65, 1000, 1000, -1, 66, 1000, 198, 1000,
                                              -1, 1000, -1, -2};
         *p > -2; p++)
        plain[plains++] = *p;
    check(&run, rows, 1000);
}

TEST(wrong_separators_are_refused)
{
    static const struct {
        const char *tokenizer_config, *config, *separator;
        int code;
        const char *says;
    } bad[] = {
        {"{\"eos_token\": 5}", NULL, NULL, FM_EFORMAT, "eos_token is not the text"},
        {"{\"eos_token\": []}", NULL, NULL, FM_EFORMAT, "eos_token is not the text"},
        {"{\"eos_token\": {\"content\": 2}}", NULL, NULL, FM_EFORMAT, "eos_token is not the text"},
        {"{\"eos_token\": {}}", NULL, NULL, FM_EFORMAT, "eos_token is not the text"},
        {"{\"eos_token\": \"</s>\"}", NULL, NULL, FM_ECONFIG, "eos_token '</s>' is not a token"},
        {"{\"eos_token\": \"\"}", NULL, NULL, FM_ECONFIG, "eos_token '' is not a token"},
        {"{\"eos_token\": ", NULL, NULL, FM_EFORMAT, "tokenizer_config.json"},
        {NULL, "{\"eos_token_id\": -1}", NULL, FM_EFORMAT, "config.json: eos_token_id is not"},
        {NULL, "{\"eos_token_id\": 1.5}", NULL, FM_EFORMAT, "eos_token_id is not"},
        {NULL, "{\"eos_token_id\": \"2\"}", NULL, FM_EFORMAT, "eos_token_id is not"},
        {NULL, "{\"eos_token_id\": [[2]]}", NULL, FM_EFORMAT, "eos_token_id is not"},
        {NULL, "{\"eos_token_id\": 1e300}", NULL, FM_EFORMAT, "eos_token_id is not"},
        {NULL, "{\"eos_token_id\": 1003}", NULL, FM_ECONFIG, "eos_token_id 1003 is not a token"},
        {NULL, NULL, "two tokens", FM_EUSAGE, "--separator 'two tokens' is not a token"},
        {NULL, NULL, "", FM_EUSAGE, "--separator '' is not a token"},
    };
    const char *rows = rows_of("qwen2");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct fm_corpus corpus;
        struct fm_tokens t;
        struct fm_run_options run = {
            .inputs.model = model_with("qwen2", bad[i].tokenizer_config, bad[i].config, NULL),
            .inputs.separator = bad[i].separator};
        assert_fails(fm_corpus_encode(&corpus, &t, &run, rows, 0, &err), bad[i].code, bad[i].says);
        run.inputs.separator = "none"; /* as the messages advise */
        check(&run, rows, -1);
    }
}

TEST_MAIN(NULL, NULL)
