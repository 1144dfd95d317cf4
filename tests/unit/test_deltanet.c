/*
 * Test the block deltanet: its keys in config.json, the places of its rows in files, and its
 * backward against finite differences along random directions, for linear layers (tensors packed
 * and apart) and full ones.
 */

#include "lib/block/deltanet.h"
#include "lib/block/norm.h"
#include "tests/unit/blocks.h"
#include "tests/unit/test.h"

enum { L = 6 };

static const struct fm_deltanet_options separate = {
    .full = {.gated = true,
             .other_layers = true,
             .qk_norm = FM_QK_NORM_HEAD,
             .rope = {.theta = 1e4, .partial = 0.25}}};
static const struct fm_deltanet_options packed = {.full = {.gated = true,
                                                           .other_layers = true,
                                                           .qk_norm = FM_QK_NORM_HEAD,
                                                           .rope = {.theta = 1e4, .partial = 0.25}},
                                                  .packed = true};

static const struct fm_config sizes = {
    .attention = &fm_deltanet, .norm = &fm_rmsnorm_plus, .H = H, .L = L, .T_max = 64, .eps = 1e-6f};

#define FULL "num_attention_heads:4,num_key_value_heads:2,head_dim:8"
#define LINEAR                                                                                     \
    "linear_num_key_heads:2,linear_num_value_heads:6,linear_key_head_dim:5,"                       \
    "linear_value_head_dim:3,linear_conv_kernel_dim:4"
#define PLAIN FULL "," LINEAR

static struct fm_config must(const char *keys, bool apart)
{
    return block_must(&sizes, apart ? &separate : &packed, keys);
}

static void expect(const char *keys, int code, const char *part)
{
    block_expect(&sizes, &packed, keys, code, part);
}

TEST(layers_alternate_as_config_json_says)
{
    struct fm_config c = must(PLAIN, false);
    const struct fm_deltanet *m = c.deltanet;
    assert_true(m->G == 2 && m->Q == 6 && m->C == 5 && m->D == 3 && m->W == 4);
    assert_true(c.Q == 4 && c.G == 2 && c.C == 8 && c.gqa->rope.R == 2 && c.gqa->options->gated);
    for (int l = 0; l < L; l++)
        assert_true(fm_deltanet_layer(&c, l) == (l != 3)); /* every fourth */
    c = must(PLAIN ",full_attention_interval:2", false);
    for (int l = 0; l < L; l++)
        assert_true(fm_deltanet_layer(&c, l) == (l % 2 == 0));
    c = must(PLAIN ",full_attention_interval:2,layer_types:['full_attention','linear_attention',"
                   "'full_attention','full_attention','linear_attention','full_attention']",
             true);
    for (int l = 0; l < L; l++)
        assert_true(fm_deltanet_layer(&c, l) == (l == 1 || l == 4));
    assert_int_equal(fm_deltanet.has(&c, 1), FM_DELTANET_LINEAR | FM_DELTANET_APART);
    assert_int_equal(fm_deltanet.has(&c, 0),
                     FM_DELTANET_FULL | FM_GQA_APART | FM_GQA_QK_NORM | FM_GQA_VALUES);
    c = must(FULL, false);
    m = c.deltanet;
    assert_true(m->G == 16 && m->Q == 32 && m->C == 128 && m->D == 128 && m->W == 4);
}

TEST(unsupported_values_are_refused_by_name)
{
    expect(PLAIN ",layer_types:['sliding_attention']", FM_ECONFIG,
           "layer_types 'sliding_attention' is not supported; supported: linear_attention, "
           "full_attention");
    expect(PLAIN ",layer_types:['linear_attention']", FM_EFORMAT, "1 entries for 6 layers");
    expect(PLAIN ",layer_types:'x'", FM_EFORMAT, "layer_types");
    expect(PLAIN ",full_attention_interval:0", FM_EFORMAT, "full_attention_interval");
    expect(PLAIN ",attention_bias:true", FM_ECONFIG, "attention_bias true");
    expect(PLAIN ",rope_scaling:{type:'yarn',factor:4}", FM_ECONFIG, "yarn");
    expect("num_attention_heads:4," LINEAR, FM_EFORMAT, "'head_dim' is missing");
    expect(FULL ",linear_num_key_heads:4,linear_num_value_heads:6", FM_EFORMAT,
           "linear_num_value_heads 6 is not a multiple of linear_num_key_heads 4");
    expect(FULL ",linear_conv_kernel_dim:65", FM_ECONFIG, "linear_conv_kernel_dim");
}

/* Check which row of the file each row in memory comes from. */
TEST(heads_are_taken_apart)
{
    struct fm_config c =
        must("num_attention_heads:2,num_key_value_heads:1,head_dim:2,linear_num_key_heads:2,"
             "linear_num_value_heads:4,linear_key_head_dim:1,linear_value_head_dim:2,"
             "partial_rotary_factor:1",
             false);
    static const int32_t q[] = {0, 1, 4, 5, 2, 3, 6, 7};
    static const int32_t qkvz[] = {0,  10, 1, 11, 2, 3, 4,  5,  12, 13,
                                   14, 15, 6, 7,  8, 9, 16, 17, 18, 19};
    static const int32_t ba[] = {0, 1, 4, 5, 2, 3, 6, 7};
    int32_t order[20];
    fm_deltanet.order(order, &c, 0, &(struct fm_weight){.shape = "pH"});
    assert_memory_equal(order, q, sizeof q);
    fm_deltanet.order(order, &c, 0, &(struct fm_weight){.shape = "xH"});
    assert_memory_equal(order, qkvz, sizeof qkvz);
    fm_deltanet.order(order, &c, 0, &(struct fm_weight){.shape = "yH"});
    assert_memory_equal(order, ba, sizeof ba);
}

/* ---- gradients ---- */

static size_t rows(const struct fm_config *c, char letter)
{
    return (size_t)fm_deltanet.size(c, 0, letter);
}

static void open_block(struct block *b, int l, bool apart)
{
    *b = (struct block){.c = must(PLAIN, apart), .l = l};
    const struct fm_config *c = &b->c;
    struct fm_deltanet_weights *w = &b->layer.deltanet;
    if (fm_deltanet_layer(c, l)) {
        w->qkv = block_draw(b, rows(c, apart ? 'c' : 'x') * H, 0.4f);
        w->b = block_draw(b, rows(c, apart ? 'h' : 'y') * H, 0.3f);
        w->z = apart ? block_draw(b, rows(c, 'v') * H, 0.3f) : NULL;
        w->a = apart ? block_draw(b, rows(c, 'h') * H, 0.3f) : NULL;
        w->conv = block_draw(b, rows(c, 'c') * rows(c, 'w'), 0.8f);
        w->rate = block_draw(b, rows(c, 'h'), 0.5f);
        w->bias = block_draw(b, rows(c, 'h'), 0.5f);
        w->norm = block_draw(b, rows(c, 'd'), 1);
        w->out = block_draw(b, H * rows(c, 'v'), 0.3f);
    } else {
        b->layer.gqa = (struct fm_gqa_weights){.q = block_draw(b, rows(c, 'p') * H, 0.3f),
                                               .k = block_draw(b, rows(c, 'g') * H, 0.3f),
                                               .v = block_draw(b, rows(c, 'g') * H, 0.3f),
                                               .o = block_draw(b, H * rows(c, 'q'), 0.3f),
                                               .q_norm = block_draw(b, rows(c, 'a'), 0.3f),
                                               .k_norm = block_draw(b, rows(c, 'b'), 0.3f)};
    }
    fm_gqa.fill_angles(b->cosines, b->sines, c, T);
}

static const struct {
    int l;
    bool apart;
} forms[] = {{0, false}, {0, true}, {3, false}};
enum { FORMS = sizeof forms / sizeof *forms };

TEST(the_backward_is_the_derivative)
{
    for (int f = 0; f < FORMS; f++) {
        struct block b;
        open_block(&b, forms[f].l, forms[f].apart);
        block_check_backward(&b, 2e-4f, 5e-3);
        block_release(&b);
    }
}

TEST(the_fast_table_agrees_with_the_definition)
{
    for (int f = 0; f < FORMS; f++) {
        struct block b;
        open_block(&b, forms[f].l, forms[f].apart);
        block_check_cpu(&b, 3e-5);
        block_release(&b);
    }
}

TEST_MAIN(start_pool, stop_pool)
