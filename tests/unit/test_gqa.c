/*
 * Test grouped attention with differences between layers (numbers of heads, rotations, sinks) and
 * with values narrower than keys: what config.json says of these, and the backward of both types of
 * layer against finite differences along random directions.
 */
#include "lib/block/gqa.h"
#include "lib/block/norm.h"
#include "tests/unit/blocks.h"
#include "tests/unit/test.h"

static const struct fm_rope_options window_rope = {.theta = 30,
                                                   .partial = 0.6,
                                                   .partial_object = 0.6,
                                                   .layer_type = "sliding_attention",
                                                   .theta_key = "swa_rope_theta"};

static const struct fm_gqa_options options = {.bias_key = "attention_bias",
                                              .window = true,
                                              .alternates = true,
                                              .every = 3,
                                              .first_full = true,
                                              .usual_window = 4,
                                              .before_key = "before",
                                              .pattern_key = "pattern",
                                              .heads_key = "heads",
                                              .window_groups = 2,
                                              .value_key = "v_head_dim",
                                              .scale_key = "value_scale",
                                              .scale = 0.7,
                                              .sinks = true,
                                              .window_sinks = true,
                                              .rope = {.theta = 500,
                                                       .yarn = true,
                                                       .llama3 = true,
                                                       .partial = 0.2,
                                                       .partial_object = 0.6,
                                                       .layer_type = "full_attention"},
                                              .window_rope = &window_rope};

static const struct fm_config sizes = {
    .attention = &fm_gqa, .norm = &fm_rmsnorm, .H = H, .L = 4, .T_max = 64, .eps = 1e-5f};

/* Layers 0 and 2 have no window; layers 1 and 3 have twice as many key heads. */
#define KEYS "num_attention_heads:4,num_key_value_heads:2,head_dim:10,v_head_dim:3"
#define HEADS KEYS ",heads:[6,4,2,8]"

static struct fm_config must(const char *keys)
{
    return block_must(&sizes, &options, keys);
}

static void expect(const char *keys, int code, const char *part)
{
    block_expect(&sizes, &options, keys, code, part);
}

TEST(layers_differ_in_heads_and_rotations)
{
    struct fm_config c = must(HEADS);
    static const int heads[] = {6, 4, 2, 8}, groups[] = {2, 4, 2, 4};
    assert_true(c.Q == 8 && c.G == 4 && c.C == 10 && fm_gqa_value(&c, 0) == 3);
    for (int l = 0; l < 4; l++) {
        assert_int_equal(fm_gqa_heads(&c, l), heads[l]);
        assert_int_equal(fm_gqa_groups(&c, l), groups[l]);
        assert_int_equal(fm_gqa_window(&c, l), l % 2 ? 4 : 0);
        assert_int_equal(fm_gqa.has(&c, l),
                         FM_GQA_APART | FM_GQA_VALUES | (l % 2 ? FM_GQA_SINKS : 0));
        assert_int_equal(fm_gqa.size(&c, l, 'q'), heads[l] * 10);
        assert_int_equal(fm_gqa.size(&c, l, 'u'), groups[l] * 3);
        assert_int_equal(fm_gqa.size(&c, l, 'o'), heads[l] * 3);
    }
    assert_true(c.gqa->rope.theta == 500 && c.gqa->rope.R == 2);
    assert_true(c.gqa->window_rope.theta == 30 && c.gqa->window_rope.R == 6);
    assert_int_equal(fm_gqa.angles(&c), 4);
    assert_true(c.gqa->scale == 0.7f);
    assert_true(must(KEYS ",value_scale:null").gqa->scale == 1);
}

TEST(numbers_of_heads_are_checked)
{
    expect(KEYS ",heads:7", FM_EFORMAT, "key 'heads' is not an array");
    expect(KEYS ",heads:[4,4]", FM_EFORMAT, "heads has 2 entries for 4 layers");
    expect(KEYS ",heads:[4,4,4,4,4]", FM_EFORMAT, "heads has 5 entries for 4 layers");
    expect(KEYS ",heads:[4,0,4,4]", FM_EFORMAT, "heads of layer 1 is not a number from 1");
    expect(KEYS ",heads:[4,4,4.5,4]", FM_EFORMAT, "heads of layer 2 is not a number from 1");
    expect(KEYS ",heads:[4,4,4,1e9]", FM_EFORMAT, "heads of layer 3 is not a number from 1");
    expect(KEYS ",heads:[4,6,4,4]", FM_EFORMAT,
           "num_attention_heads 6 is not a multiple of num_key_value_heads 4");
    expect("num_attention_heads:1024,num_key_value_heads:1024,head_dim:2,v_head_dim:2", FM_ECONFIG,
           "num_key_value_heads 1024 is too many (limit 512)");
    expect("num_attention_heads:4,head_dim:10", FM_EFORMAT, "'v_head_dim' is missing");
    expect(KEYS ",value_scale:0", FM_EFORMAT, "value_scale is not above 0");
}

TEST(each_type_of_layer_has_rope_parameters)
{
#define FULL ",rope_parameters:{full_attention:{rope_theta:9,rope_type:'default'}"
    struct fm_config c = must(KEYS FULL ",sliding_attention:{rope_theta:8,"
                                        "partial_rotary_factor:1.0}}");
    assert_true(c.gqa->rope.theta == 9 && c.gqa->rope.R == 6);
    assert_true(c.gqa->window_rope.theta == 8 && c.gqa->window_rope.R == 10);
    expect(KEYS FULL ",sliding_attention:{}}", FM_EFORMAT,
           "sliding_attention of rope_parameters has no rope_theta");
    expect(KEYS FULL "}", FM_ECONFIG, "rope_parameters has no object 'sliding_attention'");
    expect(KEYS ",rope_parameters:{rope_theta:7}", FM_ECONFIG,
           "rope_parameters has no object 'full_attention'");
    expect(KEYS ",rope_parameters:7", FM_ECONFIG, "no object 'full_attention'");
    expect(KEYS FULL ",sliding_attention:{rope_type:'yarn',factor:2}}", FM_ECONFIG,
           "sliding_attention: rope_type 'yarn' is not supported for test; supported: default");
    expect(KEYS ",rope_scaling:{type:'yarn',factor:2}", FM_ECONFIG,
           "rope_scaling is not supported for test");
    must(KEYS ",swa_rope_theta:30,partial_rotary_factor:0.6");
    expect(KEYS ",swa_rope_theta:31", FM_ECONFIG,
           "swa_rope_theta 31 differs from the rope_theta 30 of sliding_attention");
    expect(KEYS ",partial_rotary_factor:0.4", FM_ECONFIG,
           "partial_rotary_factor 0.4 does not rotate 6 elements, as sliding_attention does");
}

#define LLAMA3(keys)                                                                               \
    KEYS ",rope_parameters:{sliding_attention:{rope_theta:8},full_attention:{rope_theta:500,"      \
         "rope_type:'llama3'," keys "}}"

/* cos at position 37: rope_init_functions["llama3"] of transformers 5.24, in float32. */
TEST(llama3_turns_as_in_transformers)
{
    static const struct {
        const char *keys;
        double cos[3];
    } row[] = {
        {LLAMA3(
             "factor:4,low_freq_factor:1,high_freq_factor:8,original_max_position_embeddings:128"),
         {0.7654141, -0.368266, 0.9892392}},
        {LLAMA3(
             "factor:4,low_freq_factor:1,high_freq_factor:8,original_max_position_embeddings:512"),
         {0.7654141, -0.0506594, 0.986368}},
        {LLAMA3(
             "factor:2,low_freq_factor:1,high_freq_factor:32,original_max_position_embeddings:64"),
         {0.4077362, -0.704247, 0.9571882}},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        float cosines[38 * 6], sines[38 * 6];
        struct fm_config c = must(row[i].keys);
        assert_int_equal(fm_gqa.angles(&c), 6);
        fm_gqa.fill_angles(cosines, sines, &c, 38);
        for (int at = 0; at < 3; at++)
            assert_true(fabs(cosines[37 * 3 + at] - row[i].cos[at]) < 4e-6);
    }
    expect(LLAMA3("factor:4,low_freq_factor:1,high_freq_factor:1,"
                  "original_max_position_embeddings:64"),
           FM_EFORMAT, "llama3 needs a factor of 1 or more");
    expect(LLAMA3("factor:4,low_freq_factor:1,high_freq_factor:8"), FM_EFORMAT, "llama3 needs");
}

TEST(windows_in_other_spellings_are_the_same)
{
    assert_int_equal(must(KEYS ",before:8").gqa->window, 9);
    assert_int_equal(must(KEYS ",before:8,sliding_window:8").gqa->window, 9);
    assert_int_equal(must(KEYS ",before:8,sliding_window:9").gqa->window, 9);
    expect(KEYS ",before:8,sliding_window:10", FM_ECONFIG,
           "sliding_window 10 is neither before 8 nor one more");
    must(KEYS ",pattern:[0,1,0,1]");
    expect(KEYS ",pattern:[0,1,1,1]", FM_ECONFIG, "pattern of layer 2 is not 0");
    expect(KEYS ",pattern:[0,1,0]", FM_EFORMAT, "pattern has 3 entries for 4 layers");
    expect(KEYS ",pattern:[0,true,0,1]", FM_ECONFIG, "pattern of layer 1 is not 1");
    expect(KEYS ",pattern:{}", FM_EFORMAT, "key 'pattern' is not an array");
    must(KEYS ",layer_types:['sliding_attention','full_attention','full_attention',"
              "'sliding_attention'],pattern:[1,0,0,1]");
}

/* ---- layers whose heads have different widths ---- */

static int read_full(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    (void)keys;
    (void)err;
    fm_gqa_differ(c, 8, 1);
    return FM_OK;
}

static const struct fm_rope_options narrow_rope = {
    .theta = 30, .partial = 1, .partial_object = 1, .layer_type = "sliding_attention"};

static const struct fm_gqa_options wide = {.window = true,
                                           .alternates = true,
                                           .every = 2,
                                           .usual_window = 4,
                                           .shared_key = "k_is_v",
                                           .value_norm = true,
                                           .divisor = 1.5,
                                           .read_full = read_full,
                                           .qk_norm = FM_QK_NORM_HEAD,
                                           .rope = {.theta = 500,
                                                    .proportional = true,
                                                    .partial_object = 0.6,
                                                    .layer_type = "full_attention"},
                                           .window_rope = &narrow_rope};

/* Layers 1 and 3 have no window. */
#define WIDE "num_attention_heads:4,num_key_value_heads:2,head_dim:4,k_is_v:"

TEST(layers_differ_in_the_width_of_heads)
{
    struct fm_config c = block_must(&sizes, &wide, WIDE "true");
    assert_true(c.C == 8 && c.G == 2 && c.gqa->divisor == 1.5);
    for (int l = 0; l < 4; l++) {
        int full = l % 2, width = full ? 8 : 4;
        assert_true(fm_gqa_width(&c, l) == width && fm_gqa_value(&c, l) == width);
        assert_int_equal(fm_gqa_groups(&c, l), full ? 1 : 2);
        assert_int_equal(fm_gqa.size(&c, l, 'q'), 4 * width);
        assert_int_equal(fm_gqa.size(&c, l, 'u'), 8);
        assert_int_equal(fm_gqa.has(&c, l),
                         FM_GQA_APART | FM_GQA_QK_NORM | (full ? 0 : FM_GQA_VALUES));
    }
    c = block_must(&sizes, &wide, WIDE "false");
    assert_int_equal(fm_gqa.has(&c, 1), FM_GQA_APART | FM_GQA_QK_NORM | FM_GQA_VALUES);
}

/* 0.6 of a head of 8 are 2 of 4 pairs; their frequencies are those of 4 pairs. */
TEST(a_proportional_rotation_leaves_the_last_pairs_alone)
{
#define WINDOWED "sliding_attention:{rope_theta:8,rope_type:'default'}}"
    struct fm_config c = block_must(&sizes, &wide, WIDE "true");
    float cosines[3 * 6], sines[3 * 6];
    fm_gqa.fill_angles(cosines, sines, &c, 3);
    for (int i = 0; i < 4; i++) {
        double angle = i < 2 ? 2 * pow(500, -i / 4.0) : 0;
        assert_true(fabs((double)cosines[8 + i] - cos(angle)) < 1e-6);
        assert_true(fabs((double)sines[8 + i] - sin(angle)) < 1e-6);
    }
    block_must(&sizes, &wide,
               WIDE "true,rope_parameters:{full_attention:{rope_theta:9,rope_type:'proportional',"
                    "partial_rotary_factor:0.25,factor:1.0}," WINDOWED);
    block_expect(&sizes, &wide,
                 WIDE "true,rope_parameters:{full_attention:{rope_theta:9,"
                      "rope_type:'proportional',factor:2}," WINDOWED,
                 FM_ECONFIG, "full_attention: factor 2 is not supported; supported: 1");
    block_expect(
        &sizes, &wide,
        WIDE "true,rope_parameters:{full_attention:{rope_theta:9,rope_type:'default'}," WINDOWED,
        FM_ECONFIG, "'default' is not supported for test; supported: proportional");
    block_expect(&sizes, &wide,
                 WIDE "true,rope_parameters:{full_attention:{rope_theta:9}," WINDOWED, FM_EFORMAT,
                 "full_attention of rope_parameters has no rope_type");
}

static void open_wide(struct block *b, int l, const char *keys)
{
    *b = (struct block){.c = block_must(&sizes, &wide, keys), .l = l};
    size_t q = fm_gqa.size(&b->c, l, 'q'), k = fm_gqa.size(&b->c, l, 'g');
    size_t C = (size_t)fm_gqa_width(&b->c, l);
    b->layer.gqa = (struct fm_gqa_weights){.q = block_draw(b, q * H, 0.3f),
                                           .k = block_draw(b, k * H, 0.3f),
                                           .o = block_draw(b, H * q, 0.3f),
                                           .q_norm = block_draw(b, C, 0.7f),
                                           .k_norm = block_draw(b, C, 0.7f)};
    if (fm_gqa.has(&b->c, l) & FM_GQA_VALUES)
        b->layer.gqa.v = block_draw(b, k * H, 0.3f);
    fm_gqa.fill_angles(b->cosines, b->sines, &b->c, T);
}

TEST(the_backward_through_keys_that_are_values_is_the_derivative)
{
    for (int i = 0; i < 4; i++) {
        struct block b;
        open_wide(&b, i / 2, i % 2 ? WIDE "true" : WIDE "false");
        block_check_backward(&b, 5e-4f, 2e-3);
        block_check_cpu(&b, 1e-5);
        block_release(&b);
    }
}

/* ---- gradients ---- */

/* A gate of each head's output. */
enum gate { NO_GATE, SIGMOID, SOFTPLUS, GATES };

static void open_block(struct block *b, int l, enum gate gate)
{
    static struct fm_gqa_options form; /* the config borrows it */
    form = options;
    bool gated = gate != NO_GATE;
    form.gated = form.gate_apart = form.gate_heads = gated;
    form.gate_softplus = gate == SOFTPLUS;
    *b = (struct block){.c = block_must(&sizes, &form, HEADS ",attention_bias:true"), .l = l};
    size_t q = fm_gqa.size(&b->c, l, 'q'), k = fm_gqa.size(&b->c, l, 'g');
    size_t v = fm_gqa.size(&b->c, l, 'u'), o = fm_gqa.size(&b->c, l, 'o');
    b->layer.gqa = (struct fm_gqa_weights){.q = block_draw(b, q * H, 0.3f),
                                           .k = block_draw(b, k * H, 0.3f),
                                           .v = block_draw(b, v * H, 0.3f),
                                           .o = block_draw(b, H * o, 0.3f),
                                           .q_bias = block_draw(b, q, 1),
                                           .k_bias = block_draw(b, k, 1),
                                           .v_bias = block_draw(b, v, 1)};
    if (gated)
        b->layer.gqa.gate = block_draw(b, fm_gqa.size(&b->c, l, 'h') * H, 0.3f);
    if (fm_gqa.has(&b->c, l) & FM_GQA_SINKS)
        b->layer.gqa.sinks = block_draw(b, fm_gqa.size(&b->c, l, 'h'), 1);
    fm_gqa.fill_angles(b->cosines, b->sines, &b->c, T);
}

TEST(the_backward_of_every_layer_is_the_derivative)
{
    for (int i = 0; i < 4 * GATES; i++) {
        struct block b;
        open_block(&b, i / GATES, i % GATES);
        block_check_backward(&b, 5e-4f, 2e-3);
        block_release(&b);
    }
}

TEST(the_fast_table_agrees_with_the_definition)
{
    for (int i = 0; i < 4 * GATES; i++) {
        struct block b;
        open_block(&b, i / GATES, i % GATES);
        block_check_cpu(&b, 1e-5);
        block_release(&b);
    }
}

/* The rows of k and v may follow those of q in one tensor. */
TEST(one_tensor_of_q_k_and_v_computes_the_same_as_three)
{
    for (int l = 0; l < 4; l++) {
        struct block b;
        float x[FLOATS], y[2][FLOATS], dx[2][FLOATS], dy[FLOATS];
        open_block(&b, l, NO_GATE);
        struct fm_gqa_weights *w = &b.layer.gqa;
        size_t q = fm_gqa.size(&b.c, l, 'q') * H, k = fm_gqa.size(&b.c, l, 'g') * H;
        size_t v = fm_gqa.size(&b.c, l, 'u') * H;
        float *drawn = draw(2 * FLOATS, 1), *all = malloc((q + k + v) * sizeof *all);
        memcpy(x, drawn, sizeof x);
        memcpy(dy, drawn + FLOATS, sizeof dy);
        block_compute(&b, fm_ops_ref(), y[0], x, dx[0], dy);
        memcpy(all, w->q, q * sizeof *all);
        memcpy(all + q, w->k, k * sizeof *all);
        memcpy(all + q + k, w->v, v * sizeof *all);
        w->q = all;
        w->k = w->v = NULL;
        block_compute(&b, fm_ops_ref(), y[1], x, dx[1], dy);
        assert_memory_equal(y[0], y[1], sizeof x);
        assert_memory_equal(dx[0], dx[1], sizeof x);
        free(all);
        free(drawn);
        block_release(&b);
    }
}

/* A batch may have fewer positions than the tables. */
TEST(the_second_table_begins_after_all_positions_of_the_first)
{
    struct block b;
    float x[FLOATS], y[FLOATS], want[FLOATS], cosines[50 * 4], sines[50 * 4];
    open_block(&b, 1, NO_GATE);
    struct fm_pass pass = block_pass(&b, fm_ops_ref());
    float *drawn = draw(FLOATS, 1);
    memcpy(x, drawn, sizeof x);
    block_compute(&b, fm_ops_ref(), want, x, NULL, NULL);
    fm_gqa.fill_angles(cosines, sines, &b.c, 50);
    pass.cos = cosines;
    pass.sin = sines;
    pass.positions = 50;
    struct fm_mark mark = fm_scratch_mark();
    memcpy(y, x, sizeof y);
    fm_gqa.forward(&pass, fm_scratch_floats(fm_attention_floats(&b.c, 1, N)), y, x);
    fm_scratch_release(mark);
    assert_memory_equal(y, want, sizeof y);
    free(drawn);
    block_release(&b);
}

TEST_MAIN(start_pool, stop_pool)
