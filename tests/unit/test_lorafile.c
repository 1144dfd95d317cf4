/* Adapters in a stage stream can be read as they were written; invalid ones are refused. */
#include "tests/unit/stages.h"
#include "tests/unit/test.h"

static struct fm_bundle open_train(void)
{
    char dropped[FM_STAGE_DROPPED_BYTES];
    struct fm_bundle in = stages_open_rank();
    struct fm_bundle train = stages_open(stages_write_train("train", &in, NULL, dropped));
    fm_bundle_close(&in);
    return train;
}

TEST(an_adapter_reads_back)
{
    struct fm_bundle train = open_train();
    struct fm_adapter a = stages_adapter(), back;
    struct fm_bundle b = stages_open(stages_write_recover("recover", &train, &a, NULL));
    assert_ok(fm_lorafile_open(&back, &b, &err));
    size_t experts = (size_t)(stages_config.M * stages_config.E);
    assert_int_equal(back.r, 3);
    assert_true(back.alpha == 6.5f);
    assert_memory_equal(back.widths, a.widths, experts * sizeof *a.widths);
    assert_memory_equal(back.values, a.values, a.offset[experts] * sizeof *a.values);
    fm_adapter_release(&a);
    fm_adapter_release(&back);
    fm_bundle_close(&b);
    fm_bundle_close(&train);
}

static struct fm_adapter projections(void)
{
    struct fm_adapter a;
    struct fm_err err = {0};
    int E = stages_config.E, I = stages_config.I, H = stages_config.H;
    assert_ok(fm_adapter_init_down(&a, stages_config.M, E, H, I, FM_F16, &err));
    for (int m = 0; m < a.M; m++)
        for (int e = 0; e < E; e++) {
            uint16_t *down = fm_adapter_down(&a, m, e);
            for (int i = 0; i < I * H; i++)
                down[i] = (uint16_t)(m * E + e + i);
        }
    return a;
}

TEST(projections_read_back_and_replace_down)
{
    struct fm_bundle train = open_train();
    struct fm_adapter a = projections(), back;
    struct fm_bundle b = stages_open(stages_write_recover("recover", &train, &a, NULL));
    assert_ok(fm_lorafile_open(&back, &b, &err));
    assert_true(back.down && !back.router && back.r == 0);
    size_t count = (size_t)stages_config.I * (size_t)stages_config.H;
    float *down = calloc(count, sizeof *down), want;
    for (int x = 0; x < a.M * a.E; x++) {
        const uint16_t *stored = fm_adapter_down(&a, x / a.E, x % a.E);
        fm_adapter_merge(&back, fm_ops_ref(), NULL, down, x / a.E, x % a.E);
        for (size_t i = 0; i < count; i++) {
            fm_dtype_to_f32(&want, stored + i, FM_F16, 1);
            assert_true(down[i] == want);
        }
    }
    free(down);
    fm_adapter_release(&a);
    fm_adapter_release(&back);
    fm_bundle_close(&b);
    fm_bundle_close(&train);
}

/* A change to the bytes of an adapter's file, and the error that it causes. */
struct edit {
    const char *from, *to; /* NULL: the first value becomes a NaN */
    const char *why;
};

static struct edit now;

static void make_edit(char *bytes)
{
    uint64_t header;
    memcpy(&header, bytes, 8);
    if (!now.from) {
        memset(bytes + 8 + header, 0xff, 4);
        return;
    }
    char *at = memmem(bytes, 4096, now.from, strlen(now.from));
    assert_non_null(at);
    memcpy(at, now.to, strlen(now.to));
}

/* The adapter `a` with the edit cannot be opened. */
static void expect_refused(const struct fm_bundle *train, const struct fm_adapter *a,
                           const struct edit *edit)
{
    struct fm_adapter back;
    struct fm_err err = {0};
    now = *edit;
    struct fm_bundle b = stages_open(stages_write_recover("bad", train, a, make_edit));
    int code = fm_lorafile_open(&back, &b, &err);
    fm_bundle_close(&b);
    stages_expect(code, &err, FM_EFORMAT, edit->why);
}

TEST(invalid_adapters_are_refused)
{
    static const struct edit cases[] = {
        {"\"rank\":\"3\"", "\"rank\":\"4\"", "as the manifest implies"},
        {"\"alpha\":\"6.5\"", "\"alpha\":\"inf\"", "metadata alpha is 'inf'"},
        {"\"adapter\"", "\"adaptor\"", "fm.kind is 'adaptor'"},
        {"layers.0.experts.0.gate_B", "layers.0.experts.9.gate_B", "experts.0.gate_B' is missing"},
        {NULL, NULL, "nan at element 0"},
    };
    struct fm_bundle train = open_train();
    struct fm_adapter a = stages_adapter();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_refused(&train, &a, &cases[i]);
    fm_adapter_release(&a);
    fm_bundle_close(&train);
}

TEST(invalid_projections_are_refused)
{
    static const struct edit cases[] = {
        {"\"down\"", "\"dawn\"", "metadata train is 'dawn'"},
        {"layers.0.down", "layers.7.down", "layers.0.down' is missing"},
        {"\"F16\"", "\"I16\"", "as the manifest implies"},
        {NULL, NULL, "layers.0.down has a value that is not finite, element 0"},
    };
    struct fm_bundle train = open_train();
    struct fm_adapter a = projections();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_refused(&train, &a, &cases[i]);
    fm_adapter_release(&a);
    fm_bundle_close(&train);
}

static struct fm_adapter routers(bool biased)
{
    struct fm_adapter a;
    struct fm_err err = {0};
    assert_ok(fm_adapter_init_routers(&a, stages_config.M, stages_config.E, stages_config.H, biased,
                                      &err));
    for (uint64_t i = 0; i < a.offset[a.M * a.E]; i++)
        a.values[i] = (float)i;
    return a;
}

TEST(routers_read_back)
{
    struct fm_bundle train = open_train();
    for (int biased = 0; biased < 2; biased++) {
        struct fm_adapter a = routers(biased), back;
        struct fm_bundle b = stages_open(stages_write_recover("recover", &train, &a, NULL));
        assert_ok(fm_lorafile_open(&back, &b, &err));
        assert_true(back.router && back.biased == biased);
        assert_memory_equal(back.values, a.values, a.offset[a.M * a.E] * sizeof *a.values);
        fm_adapter_release(&a);
        fm_adapter_release(&back);
        fm_bundle_close(&b);
    }
    fm_bundle_close(&train);
}

TEST(invalid_routers_are_refused)
{
    static const struct edit cases[] = {
        {"\"router\"", "\"tunnel\"", "metadata train is 'tunnel', not 'router'"},
        {"layers.0.router", "layers.7.router", "layers.0.router' is missing"},
        {NULL, NULL, "layers.0.router holds -nan at element 0"},
    };
    struct fm_bundle train = open_train();
    struct fm_adapter a = routers(false);
    struct fm_budgets budgets;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_refused(&train, &a, &cases[i]);
    /* The manifest of stages_write_recover has no "train", so it describes an experts' adapter. */
    struct fm_bundle b = stages_open(stages_write_recover("bad", &train, &a, NULL));
    assert_ok(fm_budgets_open(&budgets, &b, &err));
    int code = fm_lorafile_check(&a, &b, &budgets.masks, &err);
    stages_expect(code, &err, FM_EFORMAT, "is of 'router'; the manifest says 'experts'");
    fm_budgets_release(&budgets);
    fm_bundle_close(&b);
    fm_adapter_release(&a);
    fm_bundle_close(&train);
}

TEST_MAIN(stages_open_model, stages_close_model)
