/*
 * Test the reading of sequences from small files in which each token is its own position, so that
 * the ids show what was read.
 */
#include "lib/data/calib.h"
#include "tests/unit/scratch.h"
#include "tests/unit/test.h"

/* 1000 tokens, each its own position, as raw u16. */
static struct fm_run_options numbered(void)
{
    uint16_t ids[1000];
    for (int i = 0; i < 1000; i++)
        ids[i] = (uint16_t)i;
    return (struct fm_run_options){
        .inputs.tokens = {{.path = scratch_write("numbered.u16", ids, sizeof ids)}}};
}

static const struct fm_config config = {.V = 1000, .T_max = 300, .T_exact = 300};

static struct fm_calib open_calib(const struct fm_run_options *run)
{
    struct fm_calib c;
    struct fm_err err = {0};
    int rc = fm_calib_open(&c, run, &config, false, &err);
    if (rc)
        print_message("%s\n", err.text);
    assert_int_equal(rc, FM_OK);
    return c;
}

/* All ids, read in pieces; valid until the fourth call after this one. */
static const int32_t *ids_of(const struct fm_calib *c)
{
    static int32_t ids[4][1000];
    static unsigned turn;
    int32_t *to = ids[turn++ % 4];
    struct fm_err err = {0};
    assert_true(c->count * c->T <= 1000);
    for (int at = 0, n; at < c->count; at += n) {
        n = 1 + at % 5 < c->count - at ? 1 + at % 5 : c->count - at;
        assert_ok(fm_calib_read(c, at, n, to + at * c->T, &err));
    }
    return to;
}

static void expect(const struct fm_run_options *run, const struct fm_config *model, int code,
                   const char *says)
{
    struct fm_calib c;
    struct fm_err err = {0};
    assert_fails(fm_calib_open(&c, run, model, false, &err), code, says);
    assert_null(c.files);
}

static char warned[2][256];
static int warnings;

static void keep_warning(void *self, const char *text)
{
    (void)self;
    assert_true(warnings < 2);
    snprintf(warned[warnings++], sizeof warned[0], "%s", text);
}

/* The last warning of a model with a vocabulary of V, or NULL. */
static const char *warning_of(struct fm_run_options *run, int V)
{
    struct fm_config model = {.V = V, .T_max = 300, .T_exact = 300};
    struct fm_calib c;
    struct fm_err err = {0};
    warnings = 0;
    run->progress.warn = keep_warning;
    assert_ok(fm_calib_open(&c, run, &model, false, &err));
    fm_calib_close(&c);
    return warnings ? warned[warnings - 1] : NULL;
}

/* Sizes of released models, and of others: ids of the tokenizer, vocabulary of the model. */
TEST(a_tokenizer_of_another_model_is_noticed)
{
    static const struct {
        int ids, V;
        bool said;
    } sizes[] = {
        {32000, 32000, false},   {32011, 32064, false},   /* Mixtral, Phi-3.5 */
        {151669, 151936, false}, {151646, 152064, false}, /* Qwen3, Qwen2 */
        {100015, 102400, false}, {128815, 129280, false}, /* DeepSeek-V2, -V3 */
        {200019, 201088, false}, {151365, 151552, false}, /* gpt-oss, GLM-4.5 */
        {50295, 51200, false},   {64400, 65536, false},   /* Phi-2, LFM2 */
        {50280, 50304, false},   {200029, 200064, false}, /* OLMoE, Phi-4-mini */
        {49152, 49155, false},   {128, 384, false},       {1000, 49152, true},
        {128256, 151936, true},  {151669, 128256, true},  {32064, 32000, true},
        {127, 384, true},
    };
    char text[256];
    snprintf(text, sizeof text, "%s", scratch_write("a.txt", "a b a b a b a b a b", 19));
    struct fm_run_options run = {.inputs = {.texts = {{.path = text}}, .separator = "none"}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char json[512], wanted[128];
        int size =
            snprintf(json, sizeof json,
                     "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false},"
                     " \"model\": {\"type\": \"BPE\", \"merges\": [],"
                     " \"vocab\": {\"a\": 0, \"b\": 1, \"\u0120\": 2, \"x\": %d}}}",
                     sizes[i].ids - 1);
        run.inputs.tokenizer = scratch_write("tokenizer.json", json, (size_t)size);
        run.inputs.seq_len = 2;
        const char *said = warning_of(&run, sizes[i].V);
        snprintf(wanted, sizeof wanted, "%d ids, but the model's vocabulary is %d", sizes[i].ids,
                 sizes[i].V);
        if (!said != !sizes[i].said || (said && !strstr(said, wanted)))
            fail_msg("%d of %d: %s", sizes[i].ids, sizes[i].V, said ? said : "no warning");
    }
}

/* Token files whose ids are far below the vocabulary. */
TEST(tokens_of_another_model_are_noticed)
{
    enum { IDS = 8192 };
    uint16_t ids[IDS];
    for (int i = 0; i < IDS; i++)
        ids[i] = (uint16_t)(i % 1000);
    struct fm_run_options run = {.inputs = {.seq_len = 64}};
    run.inputs.tokens[0].path = scratch_write("low.u16", ids, sizeof ids);
    const char *said = warning_of(&run, 49152);
    assert_non_null(said);
    assert_non_null(
        strstr(said, "the largest of 8192 ids is 999, but the model's vocabulary is 49152"));
    assert_null(warning_of(&run, 9990));
    run.inputs.max_tokens = 4032; /* too few to say */
    assert_null(warning_of(&run, 49152));
    ids[IDS - 1] = 4916;
    run.inputs.max_tokens = 0;
    run.inputs.tokens[0].path = scratch_write("high.u16", ids, sizeof ids);
    assert_null(warning_of(&run, 49152));
}

TEST(sequences_follow_one_another)
{
    struct fm_run_options run = numbered();
    run.inputs.seq_len = 7;
    struct fm_calib c = open_calib(&run);
    assert_int_equal(c.T, 7);
    assert_int_equal(c.count, 142);
    for (int i = 0; i < 142 * 7; i++)
        assert_int_equal(ids_of(&c)[i], i);
    struct fm_digest same = fm_digest_of(ids_of(&c), 142 * 7 * sizeof(int32_t));
    assert_true(fm_digest_equal(&c.digest, &same));
    fm_calib_close(&c);
}

TEST(the_length_has_a_default_and_bounds)
{
    struct fm_run_options run = numbered();
    struct fm_calib c = open_calib(&run);
    assert_int_equal(c.T, 300);
    assert_int_equal(c.count, 3);
    fm_calib_close(&c);
    run.inputs.seq_len = 301;
    expect(&run, &config, FM_EUSAGE, "301");
    run.inputs.seq_len = 1;
    expect(&run, &config, FM_EUSAGE, "at least 2");
    struct fm_config wide = {.V = 1000, .T_max = 4000, .T_exact = 4000};
    run.inputs.seq_len = 1001;
    expect(&run, &wide, FM_EFORMAT, "smaller --seq-len");
    run.inputs.seq_len = 0;
    expect(&run, &wide, FM_EFORMAT, "smaller --seq-len");
    struct fm_config few = {.V = 999, .T_max = 300, .T_exact = 300};
    run.inputs.seq_len = 10;
    expect(&run, &few, FM_EFORMAT, "999");
}

TEST(max_tokens_removes_whole_sequences)
{
    struct fm_run_options run = numbered();
    run.inputs.seq_len = 10;
    run.inputs.max_tokens = 59;
    struct fm_calib c = open_calib(&run);
    assert_int_equal(c.count, 5);
    fm_calib_close(&c);
    run.inputs.eval_tokens[0] = run.inputs.tokens[0].path; /* --max-tokens does not limit these */
    assert_ok(fm_calib_open(&c, &run, &config, true, &err));
    assert_int_equal(c.count, 100);
    fm_calib_close(&c);
    run.inputs.max_tokens = 9;
    expect(&run, &config, FM_EUSAGE, "--max-tokens 9");
}

TEST(shuffling_permutes_whole_sequences_by_seed)
{
    struct fm_run_options run = numbered();
    run.inputs.seq_len = 10;
    run.inputs.shuffle = true;
    run.inputs.seed = 3;
    struct fm_calib a = open_calib(&run), b = open_calib(&run);
    run.inputs.seed = 4;
    struct fm_calib other = open_calib(&run);
    bool seen[100] = {false};
    int moved = 0;
    for (int i = 0; i < 100; i++) {
        int first = ids_of(&a)[i * 10];
        assert_int_equal(first % 10, 0);
        assert_false(seen[first / 10]);
        seen[first / 10] = true;
        moved += first != i * 10;
        for (int t = 0; t < 10; t++)
            assert_int_equal(ids_of(&a)[i * 10 + t], first + t);
    }
    assert_true(moved > 80);
    assert_memory_equal(ids_of(&a), ids_of(&b), 1000 * sizeof(int32_t));
    assert_true(fm_digest_equal(&a.digest, &b.digest));
    assert_false(fm_digest_equal(&a.digest, &other.digest));
    fm_calib_close(&a);
    fm_calib_close(&b);
    fm_calib_close(&other);
}

TEST(rows_of_a_2d_file_are_cut)
{
    char npy[128 + 6 * 23 * 4];
    const char header[] = "{'descr': '<i4', 'fortran_order': False, 'shape': (6, 23), }";
    memset(npy, ' ', 128);
    memcpy(npy, "\x93NUMPY\x01\x00\x76\x00", 10);
    memcpy(npy + 10, header, strlen(header));
    npy[127] = '\n';
    for (int32_t i = 0; i < 6 * 23; i++)
        memcpy(npy + 128 + 4 * i, &i, 4);
    struct fm_run_options run = {
        .inputs.tokens = {{.path = scratch_write("rows.npy", npy, sizeof npy)}}};
    struct fm_calib c = open_calib(&run);
    assert_int_equal(c.T, 23);
    assert_int_equal(c.count, 6);
    fm_calib_close(&c);
    run.inputs.seq_len = 20;
    c = open_calib(&run);
    assert_int_equal(c.count, 6);
    assert_int_equal(ids_of(&c)[20], 23);
    assert_int_equal(ids_of(&c)[5 * 20 + 19], 5 * 23 + 19);
    fm_calib_close(&c);
    run.inputs.seq_len = 24;
    expect(&run, &config, FM_EFORMAT, "in a row");
}

TEST(a_file_that_changes_is_noticed)
{
    struct fm_run_options run = numbered();
    run.inputs.seq_len = 10;
    struct fm_calib c = open_calib(&run);
    int32_t ids[20];
    assert_ok(fm_calib_read(&c, 98, 2, ids, &err));
    assert_int_equal(ids[19], 999);
    assert_int_equal(truncate(run.inputs.tokens[0].path, 1998), 0);
    assert_fails(fm_calib_read(&c, 0, 1, ids, &err), FM_EIO, "changed while it was read");
    fm_calib_close(&c);
}

TEST(the_last_sequences_are_held_out)
{
    struct fm_run_options run = numbered();
    run.inputs.seq_len = 10;
    struct fm_calib c = open_calib(&run), held;
    assert_ok(fm_calib_hold_out(&c, &held, 16, &err));
    assert_int_equal(c.count, 84);
    assert_int_equal(held.count, 16);
    assert_int_equal(held.ids[0], 840);
    struct fm_digest train = fm_digest_of(ids_of(&c), 840 * sizeof(int32_t));
    struct fm_digest rest = fm_digest_of(held.ids, 160 * sizeof *held.ids);
    assert_true(fm_digest_equal(&c.digest, &train) && fm_digest_equal(&held.digest, &rest));
    fm_calib_close(&held);
    fm_calib_close(&c);
    run.inputs.max_tokens = 50;
    c = open_calib(&run);
    assert_ok(fm_calib_hold_out(&c, &held, 16, &err));
    assert_int_equal(c.count, 3);
    assert_int_equal(held.count, 2);
    fm_calib_close(&held);
    fm_calib_close(&c);
    run.inputs.max_tokens = 10;
    c = open_calib(&run);
    assert_int_equal(fm_calib_hold_out(&c, &held, 16, &err), FM_EFORMAT);
    fm_calib_close(&c);
}

/* `n` tokens that count up from `first`, as raw u16. */
static const char *counting(const char *name, int first, int n)
{
    uint16_t ids[1000];
    char file[16];
    assert_true(n <= 1000);
    for (int i = 0; i < n; i++)
        ids[i] = (uint16_t)(first + i);
    snprintf(file, sizeof file, "%s.u16", name);
    return scratch_write(file, ids, (size_t)n * sizeof *ids);
}

/* "PATH:WEIGHT", in one of 8 rotating buffers. */
TEST(sources_are_interleaved_by_weight)
{
    struct fm_run_options run = {
        .inputs.tokens = {{counting("a", 0, 300), 700000}, {counting("b", 500, 70), 300000}},
        .inputs.seq_len = 10};
    struct fm_calib c = open_calib(&run);
    /* After a and b sequences, i in all, the next is taken from the first input if 0.7 (i + 1) - a
     * is at least 0.3 (i + 1) - b, until the 7 sequences of the second are used up. */
    static const int first[] = {0, 500, 10, 20, 30, 510, 40, 50, 520, 60, 70};
    assert_int_equal(c.inputs, 2);
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        assert_int_equal(ids_of(&c)[i * 10], first[i]);
    int b = 0;
    for (int i = 0; i < c.count; i++) {
        b += ids_of(&c)[i * 10] >= 500;
        assert_true(abs(10 * b - 3 * (i + 1)) <= 10);
    }
    assert_int_equal(b, 7);
    assert_int_equal(c.input[0].sequences + 7, c.count);
    assert_int_equal(c.input[0].weight, 700000);
    assert_int_equal(c.input[1].tokens, 70);
    uint16_t wide[70];
    int32_t ids[70];
    for (int i = 0; i < 70; i++)
        ids[i] = wide[i] = (uint16_t)(500 + i);
    struct fm_digest same = fm_digest_of(ids, sizeof ids);
    assert_true(fm_digest_equal(&same, &c.input[1].digest));
    fm_calib_close(&c);
    run.inputs.max_tokens = 45;
    c = open_calib(&run);
    assert_int_equal(c.count, 4);
    assert_int_equal(ids_of(&c)[30], 20);
    assert_int_equal(c.input[1].sequences, 1);
    fm_calib_close(&c);
}

TEST(a_mixture_is_shuffled_source_by_source)
{
    struct fm_run_options run = {
        .inputs.tokens = {{.path = counting("a", 0, 400)}, {.path = counting("b", 500, 400)}},
        .inputs.shuffle = true,
        .inputs.seed = 5,
        .inputs.seq_len = 10};
    struct fm_calib c = open_calib(&run);
    int same = 0;
    assert_int_equal(c.count, 80);
    for (int i = 0; i < 80; i++)
        assert_int_equal(ids_of(&c)[i * 10] >= 500, i % 2);
    for (int i = 0; i < 40; i++)
        same += ids_of(&c)[(2 * i + 1) * 10] == ids_of(&c)[2 * i * 10] + 500;
    assert_true(same < 10); /* each permuted separately */
    fm_calib_close(&c);
}

TEST(weights_are_checked)
{
    static const struct {
        const char *spec;
        size_t length;
        uint64_t weight;
    } good[] = {{"a.npy", 5, 1000000},           {"a.npy:0.7", 5, 700000}, {"a:b", 3, 1000000},
                {"a:2:3", 3, 3000000},           {"a:", 2, 1000000},       {"a:.5", 1, 500000},
                {"a:1000000", 1, 1000000000000}, {"a:0.000001", 1, 1},     {"a:-1", 4, 1000000},
                {"a:1e3", 5, 1000000},           {"a:5.", 1, 5000000}};
    static const char *const bad[] = {"a:0",         "a:0.0",      "a:0.0000001",
                                      "a:1000000.1", "a:99999999", ":1"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        size_t length = 0;
        uint64_t weight = 0;
        assert_ok(fm_inputs_parse(good[i].spec, &length, &weight, &err));
        assert_int_equal(length, good[i].length);
        assert_int_equal(weight, good[i].weight);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        size_t length = 0;
        uint64_t weight = 0;
        assert_fails(fm_inputs_parse(bad[i], &length, &weight, &err), FM_EUSAGE, bad[i]);
    }
}

TEST_MAIN(NULL, NULL)
