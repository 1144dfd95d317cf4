/* Test over how many devices an export can be split, and which card has memory for it. */
#include "lib/block/deltanet.h"
#include "lib/block/gqa.h"
#include "lib/block/mla.h"
#include "lib/export/runtimes.h"
#include "tests/unit/test.h"

enum { E = 2 };

static void expect(const struct fm_config *c, const struct fm_layout *layout,
                   const uint32_t *stored, const char *want)
{
    char text[FM_TP_DEGREES_TEXT];
    fm_runtimes_print(text, fm_runtimes_tp_degrees(c, layout, stored, 1), " ");
    assert_string_equal(text, want);
}

/* 12 query heads over 6 key heads; experts of 48 channels, of which the masks keep a part. */
static struct fm_gqa attention;
static const struct fm_config plain = {.family = &fm_mixtral,
                                       .attention = &fm_gqa,
                                       .L = 2,
                                       .M = 2,
                                       .Q = 12,
                                       .G = 6,
                                       .E = E,
                                       .I = 48,
                                       .gqa = &attention};
static const uint32_t odd[] = {7, 9, 12, 48}, even[] = {24, 24, 16, 16}, full[] = {48, 48, 48, 48};

TEST(only_attention_limits_where_experts_stay_whole)
{
    expect(&plain, &fm_layout_ragged, odd, "1 2 3 6");
    expect(&plain, &fm_layout_elastic, odd, "1 2 3 6");
    expect(&plain, &fm_layout_layer, odd, "1 2 3 6");
    expect(&plain, &fm_layout_native, odd, "none");
}

TEST(channels_limit_where_experts_are_split)
{
    /* Stock code gives every device a copy of a key head where 12 devices share 6. */
    expect(&plain, &fm_layout_padded, full, "1 2 3 6 12");
    expect(&plain, &fm_layout_uniform, odd, "1");
    expect(&plain, fm_layout_layer.vllm, even, "1 2");
    const uint32_t k[] = {24, 24, 24, 24};
    expect(&plain, &fm_layout_uniform, k, "1 2 3 6 12");
    expect(&plain, fm_layout_layer.vllm, k, "1 2 3 6");
}

TEST(dense_layers_and_shared_experts_limit_too)
{
    struct fm_config dense = plain, shared = plain;
    dense.dense = 20;
    shared.shared = 9;
    expect(&dense, &fm_layout_padded, full, "1 2");
    expect(&dense, &fm_layout_ragged, odd, "1 2");
    expect(&shared, &fm_layout_padded, full, "1 3");
    expect(&shared, &fm_layout_ragged, odd, "1 3");
}

/* If config.json gives the shared expert's width as a number of experts and these become narrower,
 * a shared expert of 96 channels is stored as three experts of 40, with 24 zeros. */
TEST(shared_experts_are_as_wide_as_whole_experts)
{
    struct fm_config c = plain, own = plain;
    const uint32_t k[] = {40, 40, 40, 40};
    c.family = &fm_glm4_moe;
    own.family = &fm_qwen2_moe;
    c.shared = own.shared = 96;
    assert_int_equal(fm_layouts_shared(&fm_layout_uniform, &c, 40), 120);
    assert_int_equal(fm_layouts_shared(&fm_layout_uniform, &c, 48), 96);
    assert_int_equal(fm_layouts_shared(&fm_layout_uniform, &c, 0), 96);
    assert_int_equal(fm_layouts_shared(&fm_layout_padded, &c, 40), 96);
    assert_int_equal(fm_layouts_shared(&fm_layout_uniform, &own, 40), 96);
    c.shared = own.shared = 33; /* stored as 40 for c's family */
    expect(&c, &fm_layout_uniform, k, "1 2");
    expect(&own, &fm_layout_uniform, k, "1");
    c.shared = 0;
    assert_int_equal(fm_layouts_shared(&fm_layout_uniform, &c, 40), 0);
}

/* OLMoE's keys are gathered again for one norm, which would include the copies. */
TEST(a_norm_over_all_key_heads_takes_no_copies)
{
    struct fm_config c = plain;
    struct fm_gqa g = {.qk_norm = FM_QK_NORM_FULL};
    c.gqa = &g;
    expect(&c, &fm_layout_padded, full, "1 2 3 6");
    g.qk_norm = FM_QK_NORM_HEAD;
    expect(&c, &fm_layout_padded, full, "1 2 3 6 12");
}

/* Latent attention has as many key heads as query heads, so no copies are needed. */
TEST(latent_attention_is_split_by_heads)
{
    struct fm_config c = plain;
    c.attention = &fm_mla;
    c.Q = c.G = 20;
    expect(&c, &fm_layout_ragged, odd, "1 2 4 5 10 20");
    expect(&c, &fm_layout_padded, full, "1 2 4");
}

/* Servers' own code splits sinks and linear attention; their code for modelling files does not. */
TEST(only_stock_code_splits_sinks_and_states)
{
    struct fm_config c = plain;
    struct fm_gqa sinks = {.sinks = true};
    struct fm_deltanet linear = {.G = 12};
    c.gqa = &sinks;
    expect(&c, &fm_layout_padded, full, "1 2 3 6 12");
    expect(&c, &fm_layout_ragged, odd, "1");
    sinks.sinks = false;
    c.attention = &fm_deltanet;
    c.deltanet = &linear;
    expect(&c, &fm_layout_padded, full, "1 2 3 6 12");
    expect(&c, &fm_layout_elastic, odd, "1");
    linear.G = 2;
    expect(&c, &fm_layout_padded, full, "1 2");
}

/* A kind of attention without a row in the table: whole heads, keys and values in the cache. */
TEST(attention_without_a_row_is_shared_by_heads)
{
    const struct fm_attention unknown = {.name = "unknown"};
    struct fm_config c = plain;
    c.attention = &unknown;
    c.C = 10;
    expect(&c, &fm_layout_padded, full, "1 2 3 6");
    struct fm_runtimes_cache cache = fm_runtimes_cache(&c, 16);
    assert_int_equal(cache.token, 2 * 2 * 6 * 10 * 2); /* layers, k and v, heads, width, bytes */
    assert_true(cache.window == 0 && cache.window_token == 0 && cache.fixed == 0);
}

TEST(the_largest_degree_is_printed_too)
{
    struct fm_config c = plain;
    c.Q = c.G = 128;
    expect(&c, &fm_layout_ragged, odd, "1 2 4 8 16 32 64");
}

/* One more byte of weights, or one more token in the cache, requires the next card. */
TEST(a_card_has_space_for_weights_and_cache)
{
    struct fm_runtimes_cache cache = {.token = 1000, .window_token = 100, .window = 50, .fixed = 7};
    uint64_t space = fm_runtimes_card_space(24000000000), need = 8192ull * 1000 + 50 * 100 + 7;
    assert_int_equal(space, 21600000000);
    assert_int_equal(fm_runtimes_card(space - need, &cache, 8192), 0);
    assert_int_equal(fm_runtimes_card(space - need + 1, &cache, 8192), 1);
    assert_int_equal(fm_runtimes_card(space - need, &cache, 8193), 1);
    assert_int_equal(fm_runtimes_card(0, &cache, 60000000), 2);
    assert_int_equal(fm_runtimes_card(72000000001, &cache, 0), -1);
}

TEST_MAIN(NULL, NULL)
