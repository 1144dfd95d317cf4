/*
 * Test the costs that blocks report: parameters are compared with the tensors of a checkpoint, and
 * floating-point operations with the products that a sweep computes.
 */
#include "formats/tensor/hfdir.h"
#include "tests/measure/meter.h"
#include "lib/block/deltanet.h"
#include "lib/block/mla.h"
#include "lib/block/shortconv.h"
#include "lib/block/cost.h"
#include "lib/block/experts.h"
#include "lib/block/pass.h"
#include "lib/engine/sweep.h"
#include "lib/family/extra.h"
#include "tests/unit/models.h"
#include "tests/unit/test.h"

enum { S = 3, T = 11, N = S * T };

static const char *model_path(const char *name)
{
    static char path[64];
    snprintf(path, sizeof path, "golden/%s", name);
    return path;
}

/* Elements of the tensors that contain experts' channels, and of all other tensors. */
static void count_tensors(uint64_t *experts, uint64_t *others, const struct fm_config *c,
                          const struct fm_hfdir *dir)
{
    *experts = *others = 0;
    for (size_t s = 0; s < dir->shards; s++)
        for (size_t i = 0; i < dir->shard[s].st.count; i++) {
            const struct fm_tensor *t = &dir->shard[s].st.tensor[i];
            bool stacked = /* of Granite, of Step */
                strstr(t->name, "moe.input_linear") || strstr(t->name, "moe.output_linear") ||
                (strstr(t->name, ".moe.") && strstr(t->name, "_proj."));
            bool channels =
                stacked || (strstr(t->name, ".experts.") && !strstr(t->name, "down_proj_bias") &&
                            !strstr(t->name, "correction_bias"));
            int l, e;
            const struct fm_weight *w = fm_weights_find(c, FM_NAMING_STOCK, t->name, &l, &e);
            if (w && w->part == FM_PART_SPARE)
                continue; /* other checkpoints of the model may lack it */
            if (!strstr(t->name, "_scale_inv") && fm_extra_layer(c, t->name) < 0)
                *(channels ? experts : others) += fm_tensor_count(t);
        }
}

TEST(parameters_are_those_of_the_tensors)
{
    for (size_t i = 0; i < MODELS; i++) {
        struct fm_hfdir dir = {0};
        struct fm_config c;
        uint64_t experts, others;
        assert_ok(fm_hfdir_open(&dir, model_path(odd_models[i]), &err));
        assert_ok(fm_config_parse(&c, dir.config, dir.config_bytes, &err));
        count_tensors(&experts, &others, &c, &dir);
        uint64_t channels = (uint64_t)c.M * (uint64_t)c.E * (uint64_t)c.I;
        assert_int_equal(channels * fm_expert_channel_params(c.expert, c.H), experts);
        assert_int_equal(fm_config_params(&c, NULL), experts + others);
        fm_config_release(&c);
        fm_hfdir_close(&dir);
    }
}

/* Narrowing an expert by one channel removes the weights of one channel. */
TEST(a_width_less_by_one_removes_one_channel)
{
    for (size_t i = 0; i < MODELS; i++) {
        struct fm_model *m;
        assert_ok(fm_model_open(&m, model_path(odd_models[i]), 0, &err));
        const struct fm_config *c = fm_model_config(m);
        uint32_t *widths = malloc((size_t)(c->M * c->E) * sizeof *widths);
        for (int x = 0; x < c->M * c->E; x++)
            widths[x] = (uint32_t)c->I;
        widths[c->M * c->E - 1]--;
        assert_int_equal(fm_config_params(c, NULL) - fm_config_params(c, widths),
                         fm_expert_channel_params(c->expert, c->H));
        free(widths);
        fm_model_close(m);
    }
}

TEST(inner_values_include_the_outputs_of_all_heads)
{
    for (size_t i = 0; i < MODELS; i++) {
        struct fm_model *m;
        assert_ok(fm_model_open(&m, model_path(odd_models[i]), 0, &err));
        const struct fm_config *c = fm_model_config(m);
        for (int l = 0; l < c->L; l++) {
            assert_true(fm_attention_floats(c, l, N) > (size_t)N * (size_t)c->Q * (size_t)c->C);
        }
        fm_model_close(m);
    }
}

/* ---- operations ---- */

/* A model, and a sweep of one lane over one batch whose products are counted. */
struct run {
    struct fm_model *model;
    const struct fm_config *c;
    struct fm_sweep *sweep;
    const struct fm_ops *ops;
    int32_t ids[N];
};

static void open_run(struct run *r, const char *name)
{
    struct fm_err err = {0};
    const uint64_t memory = (uint64_t)1 << 28; /* inner values are kept from forward to backward */
    assert_ok(fm_model_open(&r->model, model_path(name), memory, &err));
    r->c = fm_model_config(r->model);
    r->ops = fm_meter_begin(fm_ops_ref());
    struct fm_sweep_options options = {.memory = memory};
    assert_ok(fm_sweep_new(&r->sweep, r->model, r->ops, 1, N, T, 1, &options, &err));
    for (int i = 0; i < N; i++)
        r->ids[i] = i * 7 % r->c->V;
}

static void close_run(struct run *r)
{
    fm_sweep_free(r->sweep);
    fm_model_close(r->model);
}

/* Operations of the products in a forward pass, or in a forward and backward pass through every
 * layer. */
static double count_products(struct run *r, bool backward, const struct fm_visitor *visitor)
{
    struct fm_err err = {0};
    struct fm_measure measure;
    struct fm_lane lane = {.teacher = -1, .ce = 1, .backward = backward};
    struct fm_batch batch = {r->ids, S, T};
    struct fm_sweep_taps taps = {
        .dx = backward ? calloc((size_t)(r->c->L + 1) * N * (size_t)r->c->H, sizeof(float)) : NULL};
    double before = fm_meter_flops();
    fm_sweep_tap(r->sweep, &taps);
    assert_ok(fm_sweep_run(r->sweep, &batch, 1, &lane, 1, visitor, &measure, NULL, &err));
    free(taps.dx);
    return fm_meter_flops() - before;
}

static double all_layers(const struct fm_config *c)
{
    double sum = 0;
    for (int l = 0; l < c->L; l++)
        sum += fm_cost_layer(c, l, T).products;
    return N * sum;
}

static double all_experts(const struct fm_config *c)
{
    return (double)N * c->M * c->K * fm_cost_expert(c);
}

TEST(a_forward_takes_the_products_that_blocks_say)
{
    for (size_t i = 0; i < MODELS; i++) {
        struct run r;
        open_run(&r, odd_models[i]);
        double want = all_layers(r.c) + all_experts(r.c) + N * fm_cost_lm_head(r.c);
        double have = count_products(&r, false, NULL);
        if (have != want)
            fail_msg("%s: %.0f products, the blocks say %.0f", odd_models[i], have, want);
        close_run(&r);
    }
}

TEST(a_backward_takes_the_products_that_blocks_say)
{
    for (size_t i = 0; i < MODELS; i++) {
        struct run r;
        open_run(&r, odd_models[i]);
        double forward = count_products(&r, false, NULL);
        double mixed = r.c->shared_mix ? 2.0 * N * r.c->H * r.c->M : 0;
        double want = all_layers(r.c) + mixed + all_experts(r.c) + N * fm_cost_lm_head(r.c);
        double have = count_products(&r, true, NULL) - forward;
        if (have != want)
            fail_msg("%s: %.0f products, the blocks say %.0f", odd_models[i], have, want);
        close_run(&r);
    }
}

/* A visitor that scores channels, which takes further products. */
struct scorer {
    const struct fm_ops *ops;
    int H;
};

static void score(void *self, const struct fm_expert_view *v)
{
    const struct scorer *s = self;
    double *sum = calloc((size_t)v->width, sizeof *sum);
    s->ops->channel_scores(sum, v->gate_up, v->down, v->dgu, v->x, v->h, v->dy, v->n, v->width,
                           s->H);
    free(sum);
}

TEST(scoring_channels_takes_as_many_products_as_a_forward_of_experts)
{
    for (size_t i = 0; i < MODELS; i++) {
        struct run r;
        open_run(&r, odd_models[i]);
        struct scorer scorer = {r.ops, r.c->H};
        struct fm_visitor visitor = {.self = &scorer, .expert = score};
        double without = count_products(&r, true, NULL);
        double have = count_products(&r, true, &visitor) - without;
        if (have != all_experts(r.c))
            fail_msg("%s: %.0f products, the blocks say %.0f", odd_models[i], have,
                     all_experts(r.c));
        close_run(&r);
    }
}

/* Operations of a DeltaNet for each token: four products with the state of every head, and the
 * convolution. */
static double delta_layer(const struct fm_deltanet *m)
{
    return 8.0 * m->Q * m->C * m->D + 2.0 * (2 * m->G * m->C + m->Q * m->D) * m->W;
}

/* Operations of attention for each query and each key that it attends to. */
static double attention_layer(const struct fm_config *c, int l)
{
    if (c->attention == &fm_mla)
        return 2.0 * (c->C + c->mla->D) * c->Q;
    return 2.0 * (fm_gqa_width(c, l) + fm_gqa_value(c, l)) * fm_gqa_heads(c, l);
}

/* Operations that are not products with a layer's matrices: in attention, for each query head and
 * key, a product of width C and one of the values' width; in a DeltaNet or a short convolution,
 * those of the states and the convolution. */
TEST(attention_counts_its_scores)
{
    for (size_t i = 0; i < MODELS; i++) {
        struct run r;
        open_run(&r, odd_models[i]);
        double pairs = 0, have = 0;
        for (int t = 0; t < T; t++)
            pairs += t + 0.5; /* T / 2 keys on average, as fm_cost_layer assumes */
        for (int l = 0; l < r.c->L; l++)
            have += T * fm_cost_layer(r.c, l, T).others;
        double want = 0;
        for (int l = 0; l < r.c->L; l++)
            want += fm_deltanet_layer(r.c, l)    ? T * delta_layer(r.c->deltanet)
                    : fm_shortconv_layer(r.c, l) ? T * 2.0 * r.c->H * r.c->shortconv->W
                                                 : attention_layer(r.c, l) * pairs;
        assert_true(have == want);
        close_run(&r);
    }
}

TEST_MAIN(start_pool, stop_pool)
