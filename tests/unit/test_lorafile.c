/* Adapters in a stage stream can be read as they were written; invalid ones are refused. */
#include "tests/unit/stages.h"
#include "tests/unit/test.h"

TEST(an_adapter_reads_back)
{
    char dropped[FM_STAGE_DROPPED_BYTES];
    struct fm_bundle in = stages_open_rank();
    struct fm_bundle train = stages_open(stages_write_train("train", &in, NULL, dropped));
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
    fm_bundle_close(&in);
}

static void replace(char *bytes, const char *from, const char *to)
{
    char *at = memmem(bytes, 4096, from, strlen(from));
    assert_non_null(at);
    memcpy(at, to, strlen(to));
}
static void edit_rank(char *bytes)
{
    replace(bytes, "\"rank\":\"3\"", "\"rank\":\"4\"");
}
static void edit_alpha(char *bytes)
{
    replace(bytes, "\"alpha\":\"6.5\"", "\"alpha\":\"inf\"");
}
static void edit_kind(char *bytes)
{
    replace(bytes, "\"adapter\"", "\"adaptor\"");
}
static void edit_name(char *bytes)
{
    replace(bytes, "layers.0.experts.0.gate_B", "layers.0.experts.9.gate_B");
}
static void edit_value(char *bytes)
{
    uint64_t header;
    memcpy(&header, bytes, 8);
    memset(bytes + 8 + header, 0xff, 4);
}

/* The adapter `a`, as the edit leaves it, cannot be opened. */
static void expect_refused(const struct fm_bundle *train, const struct fm_adapter *a,
                           void (*edit)(char *bytes), const char *why)
{
    struct fm_adapter back;
    struct fm_err err = {0};
    struct fm_bundle b = stages_open(stages_write_recover("bad", train, a, edit));
    int code = fm_lorafile_open(&back, &b, &err);
    fm_bundle_close(&b);
    stages_expect(code, &err, FM_EFORMAT, why);
}

TEST(adapters_that_cannot_be_are_refused)
{
    static const struct {
        void (*edit)(char *bytes);
        const char *why;
    } cases[] = {
        {edit_rank, "as the manifest implies"}, {edit_alpha, "metadata alpha is 'inf'"},
        {edit_kind, "fm.kind is 'adaptor'"},    {edit_name, "experts.0.gate_B' is missing"},
        {edit_value, "nan at element 0"},
    };
    char dropped[FM_STAGE_DROPPED_BYTES];
    struct fm_bundle in = stages_open_rank();
    struct fm_bundle train = stages_open(stages_write_train("train", &in, NULL, dropped));
    struct fm_adapter a = stages_adapter();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_refused(&train, &a, cases[i].edit, cases[i].why);
    fm_adapter_release(&a);
    fm_bundle_close(&train);
    fm_bundle_close(&in);
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
    char dropped[FM_STAGE_DROPPED_BYTES];
    struct fm_bundle in = stages_open_rank();
    struct fm_bundle train = stages_open(stages_write_train("train", &in, NULL, dropped));
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
    fm_bundle_close(&in);
}

static void edit_train(char *bytes)
{
    replace(bytes, "\"router\"", "\"tunnel\"");
}
static void edit_layer(char *bytes)
{
    replace(bytes, "layers.0.router", "layers.7.router");
}

TEST(routers_that_cannot_be_are_refused)
{
    static const struct {
        void (*edit)(char *bytes);
        const char *why;
    } cases[] = {
        {edit_train, "metadata train is 'tunnel', not 'router'"},
        {edit_layer, "layers.0.router' is missing"},
        {edit_value, "layers.0.router holds -nan at element 0"},
    };
    char dropped[FM_STAGE_DROPPED_BYTES];
    struct fm_bundle in = stages_open_rank();
    struct fm_bundle train = stages_open(stages_write_train("train", &in, NULL, dropped));
    struct fm_adapter a = routers(false);
    struct fm_budgets budgets;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_refused(&train, &a, cases[i].edit, cases[i].why);
    /* stages_write_recover's manifest has no "train", so the adapter is of experts. */
    struct fm_bundle b = stages_open(stages_write_recover("bad", &train, &a, NULL));
    assert_ok(fm_budgets_open(&budgets, &b, &err));
    int code = fm_lorafile_check(&a, &b, &budgets.masks, &err);
    stages_expect(code, &err, FM_EFORMAT, "is of the routers; the manifest says otherwise");
    fm_budgets_release(&budgets);
    fm_bundle_close(&b);
    fm_adapter_release(&a);
    fm_bundle_close(&train);
    fm_bundle_close(&in);
}

TEST_MAIN(stages_open_model, stages_close_model)
