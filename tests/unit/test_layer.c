/*
 * Compare one layer with finite differences along random directions, at sizes that are not round
 * numbers, and the fast table with the definition.  If one path of the gradient is wrong, the
 * difference is 10 % or more; float32 causes about 1e-4.
 */
#include <math.h>

#include "kernels/ops/ops.h"
#include "lib/base/pool.h"
#include "lib/base/rng.h"
#include "lib/block/gqa.h"
#include "lib/block/norm.h"
#include "lib/block/softmax.h"
#include "lib/block/swiglu.h"
#include "lib/engine/layer.h"
#include "tests/unit/test.h"

static struct fm_config config = {.attention = &fm_gqa,
                                  .router = &fm_softmax,
                                  .expert = &fm_swiglu,
                                  .norm = &fm_rmsnorm,
                                  .residual_scale = 1,
                                  .L = 1,
                                  .M = 1,
                                  .H = 19,
                                  .Q = 6,
                                  .G = 3,
                                  .C = 10,
                                  .E = 5,
                                  .K = 2,
                                  .I = 23,
                                  .T_max = 13,
                                  .eps = 1e-5f};
enum { S = 2, T = 13, N = S * T, H = 19, I = 23, E = 5, FLOATS = N * H };
static const uint32_t narrow[E] = {23, 7, 0, 16, 1};

static float *draw(size_t n, float size)
{
    static uint64_t at;
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = size * (float)fm_rng_normal(11, FM_STREAM_BENCH, at++);
    return x;
}

static struct fm_layer layer;

static void set_router(struct fm_layer *y, float *w)
{
    y->router.w = w;
}

static float *router_of(const struct fm_layer *y)
{
    return y->router.w;
}

static float cosines[T * 5], sines[T * 5];

static int make_layer(void **state)
{
    static const struct fm_gqa_options options;
    static struct fm_gqa own = {.options = &options, .window = 4};
    static int64_t row0[E];
    static int cap[E];
    (void)state;
    float *input_norm = draw(H, 1);
    for (int e = 0; e < E; e++) {
        row0[e] = e * I;
        cap[e] = I;
    }
    struct fm_gqa_weights attention = {.q = draw(60 * H, 0.3f),
                                       .k = draw(30 * H, 0.3f),
                                       .v = draw(30 * H, 0.3f),
                                       .o = draw(H * 60, 0.2f)};
    layer = (struct fm_layer){
        .input_norm = input_norm, .post_norm = draw(H, 1), .row0 = row0, .cap = cap};
    layer.gqa = attention;
    set_router(&layer, draw(E * H, 0.4f));
    layer.gate_up = fm_f32(draw(2 * E * I * H, 0.3f));
    layer.down = fm_f32(draw(E * I * H, 0.4f));
    config.gqa = &own;
    fm_rope_plain(&own.rope, 1e4, config.C);
    fm_gqa.fill_angles(cosines, sines, &config, T);
    return 0;
}

static int free_layer(void **state)
{
    float *all[] = {layer.input_norm,
                    layer.gqa.q,
                    layer.gqa.k,
                    layer.gqa.v,
                    layer.gqa.o,
                    layer.post_norm,
                    router_of(&layer),
                    (float *)layer.gate_up.data,
                    (float *)layer.down.data};
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    return 0;
}

static struct fm_pass pass_with(const struct fm_ops *ops, const uint32_t *widths)
{
    return (struct fm_pass){.ops = ops,
                            .config = &config,
                            .layer = &layer,
                            .widths = widths,
                            .cos = cosines,
                            .sin = sines,
                            .S = S,
                            .T = T,
                            .parts = 1};
}

static double dot(const float *a, const float *b)
{
    double sum = 0;
    for (int i = 0; i < FLOATS; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static double worst_of(const float *a, const float *b, int n)
{
    double most = 0, largest = 0;
    for (int i = 0; i < n; i++) {
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
        largest = fmax(largest, fabs((double)b[i]));
        if (isnan(a[i]))
            return NAN;
    }
    return most / largest;
}

static double worst(const float *a, const float *b)
{
    return worst_of(a, b, FLOATS);
}

/* <r, layer(x + step v)> */
static double probe(const struct fm_pass *pass, const float *x, const float *v, float step,
                    const float *r)
{
    float moved[FLOATS], y[FLOATS];
    for (int i = 0; i < FLOATS; i++)
        moved[i] = x[i] + step * v[i];
    fm_layer_forward(pass, y, moved, NULL, NULL, NULL);
    return dot(r, y);
}

static void check_directions(const uint32_t *widths, float step)
{
    struct fm_pass pass = pass_with(fm_ops_ref(), widths);
    struct fm_expert_view where = {0};
    float *x = draw(FLOATS, 1), *r = draw(FLOATS, 1), dx[FLOATS];
    double length = 0, off = 0;
    memcpy(dx, r, sizeof dx);
    fm_layer_backward(&pass, dx, true, x, NULL, &where);
    for (int i = 0; i < 12; i++) {
        float *v = draw(FLOATS, 1);
        double slope = (probe(&pass, x, v, step, r) - probe(&pass, x, v, -step, r)) / (2 * step);
        length += slope * slope;
        off += (slope - dot(dx, v)) * (slope - dot(dx, v));
        free(v);
    }
    print_message("finite differences: relative error %.2g\n", sqrt(off / length));
    assert_true(sqrt(off / length) <= 2e-3);
    free(x);
    free(r);
}

TEST(the_backward_is_the_derivative)
{
    check_directions(NULL, 5e-4f);
}

TEST(the_backward_of_a_subnet_is_the_derivative)
{
    check_directions(narrow, 5e-4f);
}

/* Experts beside an MLP: inputs and outputs have norms of their own, a router factors for experts,
 * one of them negative, and the layer a factor. */
TEST(the_backward_of_experts_beside_an_mlp_is_the_derivative)
{
    struct fm_config usual = config;
    struct fm_layer own = layer;
    float *drawn[] = {draw(H, 1),
                      draw(H, 1),
                      draw(H, 1),
                      draw(H, 1),
                      draw(H, 1),
                      draw(H, 5),
                      draw(2 * 9 * H, 0.4f),
                      draw(9 * H, 0.4f)};
    float factors[E] = {1.5f, -0.7f, 0.4f, 1, 2}, scalar = 0.6f;
    config.apart = true;
    config.shared = 9;
    config.output_norms = FM_NORMS_ATTENTION | FM_NORMS_MLP;
    config.router = &fm_softmax_scaled;
    config.expert = &fm_geglu;
    layer.attention_norm = drawn[0];
    layer.mlp_norm = drawn[1];
    layer.experts_norm = drawn[2];
    layer.experts_output_norm = drawn[3];
    layer.shared_output_norm = drawn[4];
    layer.router.norm = drawn[5];
    layer.mlp_gate_up = fm_f32(drawn[6]);
    layer.mlp_down = fm_f32(drawn[7]);
    layer.router.scale = factors;
    layer.scalar = &scalar;
    check_directions(NULL, 2e-4f);
    check_directions(narrow, 2e-4f); /* norms of small outputs have a large curvature */
    config = usual;
    layer = own;
    for (size_t i = 0; i < sizeof drawn / sizeof *drawn; i++)
        free(drawn[i]);
}

/* A subnet of width k computes what the full layer computes with zeros beyond k. */
TEST(a_width_equals_zeroed_weights)
{
    struct fm_pass pass = pass_with(fm_ops_ref(), narrow);
    struct fm_layer zeroed = layer;
    float *x = draw(FLOATS, 1), y[FLOATS], want[FLOATS], dx[FLOATS], dwant[FLOATS];
    struct fm_expert_view where = {0};
    fm_layer_forward(&pass, y, x, NULL, NULL, NULL);
    memcpy(dx, y, sizeof dx);
    fm_layer_backward(&pass, dx, true, x, NULL, &where);
    float *some = malloc(2 * E * I * H * sizeof(float));
    memcpy(some, layer.gate_up.data, 2 * E * I * H * sizeof(float));
    zeroed.gate_up = fm_f32(some);
    for (size_t e = 0; e < E; e++)
        for (size_t j = 2 * narrow[e] * H; j < 2 * I * H; j++)
            some[2 * e * I * H + j] = 0;
    pass.layer = &zeroed;
    pass.widths = NULL;
    fm_layer_forward(&pass, want, x, NULL, NULL, NULL);
    assert_true(worst(y, want) <= 1e-6);
    memcpy(dwant, y, sizeof dwant);
    fm_layer_backward(&pass, dwant, true, x, NULL, &where);
    assert_true(worst(dx, dwant) <= 1e-6);
    free(some);
    free(x);
}

/* Two micro-batches in one pass are given to visitors separately, and the results are those of each
 * one alone. */
struct share {
    bool together;
    int rows[2];
    double sum[2][E];
};

static void take_share(void *self, const struct fm_expert_view *v)
{
    struct share *s = self;
    const float *h = v->h.data, *dgu = v->dgu.data, *x = v->x.data;
    double sum = 0;
    int before = s->together ? v->batch * T : 0; /* tokens of earlier micro-batches in the pass */
    for (int r = 0; r < v->n; r++) {
        assert_in_range(v->rows[r], r ? v->rows[r - 1] + 1 : before, before + T - 1);
        for (int j = 0; j < v->width; j++)
            sum += (double)h[r * I + j] * v->dh[r * I + j] +
                   (double)dgu[r * 2 * v->width + 2 * j] * x[r * H + j % H];
    }
    s->sum[v->batch][v->expert] = sum;
    __atomic_add_fetch(&s->rows[v->batch], v->n, __ATOMIC_RELAXED);
    assert_int_equal(v->slot, 5 - v->batch);
}

TEST(micro_batches_of_a_pass_are_visited_separately)
{
    struct fm_pass pass = pass_with(fm_ops_ref(), narrow);
    const struct fm_expert_view where[2] = {{.batch = 0, .slot = 5}, {.batch = 1, .slot = 4}};
    struct share both = {.together = true}, alone = {.together = false};
    struct fm_visitor visitor = {.self = &both, .expert = take_share};
    float *x = draw(FLOATS, 1), *r = draw(FLOATS, 1), dx[FLOATS], dwant[FLOATS];
    memcpy(dx, r, sizeof dx);
    memcpy(dwant, r, sizeof dx);
    pass.parts = 2;
    fm_layer_backward(&pass, dx, true, x, &visitor, where);
    pass.parts = 1;
    pass.S = 1;
    visitor.self = &alone;
    for (int i = 0; i < 2; i++)
        fm_layer_backward(&pass, dwant + i * T * H, true, x + i * T * H, &visitor, where + i);
    assert_memory_equal(dx, dwant, sizeof dx);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(both.rows[i], T * config.K);
        assert_int_equal(alone.rows[i], T * config.K);
        for (int e = 0; e < E; e++)
            assert_true(both.sum[i][e] == alone.sum[i][e]);
    }
    free(x);
    free(r);
}

/* With narrow operands, the backward of an expert is computed in several spans of rows if there are
 * more than can be processed at once.  The results are those of each micro-batch alone.
 */
enum { MANY = 160, PART = MANY / 4 * T * H };

/* For each micro-batch and expert. */
struct parts {
    bool together;
    int rows[4 * E];
    double sum[4 * E];
};

static void add_part(void *self, const struct fm_expert_view *v)
{
    struct parts *s = self;
    int at = v->batch * E + v->expert, first = s->together ? v->batch * (PART / H) : 0;
    assert_int_equal(s->rows[at], 0);
    s->rows[at] = v->n;
    for (int r = 0; r < v->n; r++) {
        assert_in_range(v->rows[r], first, first + PART / H - 1);
        for (int j = 0; j < I; j++)
            s->sum[at] += v->dh[r * I + j] * (double)(j + 1);
    }
}

TEST(spans_of_narrow_rows_are_seen_as_one)
{
    const struct fm_ops *cpu = NULL;
    if (fm_ops_cpu(&cpu, FM_PRECISION_BF16, &err))
        skip();
    struct fm_pass pass = pass_with(cpu, NULL);
    struct fm_expert_view where[4] = {{0}};
    struct parts all = {.together = true}, alone = {.together = false};
    struct fm_visitor visitor = {.self = &all, .expert = add_part};
    float *x = draw(4 * PART, 1), *dx = draw(4 * PART, 1), *want = malloc(4 * PART * sizeof *want);
    memcpy(want, dx, 4 * PART * sizeof *want);
    for (int i = 0; i < 4; i++)
        where[i].batch = i;
    pass.parts = 4;
    pass.S = MANY;
    fm_layer_backward(&pass, dx, true, x, &visitor, where);
    pass.parts = 1;
    pass.S = MANY / 4;
    visitor.self = &alone;
    for (int i = 0; i < 4; i++)
        fm_layer_backward(&pass, want + i * PART, true, x + i * PART, &visitor, where + i);
    assert_true(worst_of(dx, want, 4 * PART) <= 1e-3);
    for (int i = 0; i < 4 * E; i++)
        assert_true(all.rows[i] == alone.rows[i] &&
                    fabs(all.sum[i] - alone.sum[i]) <= 1e-3 * (1 + fabs(alone.sum[i])));
    free(x);
    free(dx);
    free(want);
}

/* A visitor that reads everything changes results only by rounding: products of a different width
 * may sum in a different order. */
static int views;

static void look_at(void *self, const struct fm_expert_view *v)
{
    (void)self;
    __atomic_add_fetch(&views, v->n, __ATOMIC_RELAXED);
    assert_int_equal(v->layer, 3);
    assert_int_equal(v->slot, 2);
    assert_int_equal(v->cap, I);
    assert_int_equal(v->width, (int)narrow[v->expert]);
    for (int i = 1; i < v->n; i++)
        assert_true(v->rows[i] > v->rows[i - 1]);
}

TEST(a_visitor_sees_every_row_once)
{
    const struct fm_ops *cpu = NULL;
    assert_ok(fm_ops_cpu(&cpu, FM_PRECISION_F32, &err));
    struct fm_pass pass = pass_with(cpu, narrow);
    struct fm_expert_view where = {.layer = 3, .slot = 2};
    struct fm_visitor visitor = {.expert = look_at};
    float *x = draw(FLOATS, 1), *r = draw(FLOATS, 1), dx[FLOATS], seen[FLOATS];
    memcpy(dx, r, sizeof dx);
    memcpy(seen, r, sizeof seen);
    views = 0;
    fm_layer_backward(&pass, dx, true, x, NULL, &where);
    fm_layer_backward(&pass, seen, true, x, &visitor, &where);
    assert_int_equal(views, N * config.K);
    assert_true(worst(seen, dx) <= 1e-5);
    free(x);
    free(r);
}

/* Sums over the channels below the width, and the number of channels that were visible. */
struct kept {
    int full[E];
    double sum[E];
};

static void keep_sums(void *self, const struct fm_expert_view *v)
{
    struct kept *k = self;
    struct fm_mark mark = fm_scratch_mark();
    const float *h = fm_widen(v->h, (size_t)v->n * (size_t)v->full);
    k->full[v->expert] = v->full;
    for (int i = 0; i < v->n; i++)
        for (int j = 0; j < v->width; j++)
            k->sum[v->expert] += fabs(h[i * v->full + j]) + fabs(v->dh[i * v->full + j]);
    fm_scratch_release(mark);
}

/* The bytes of a product depend on its width, in float32 in the last digits. */
TEST(products_end_at_the_width_for_a_visitor_that_wants_no_more)
{
    for (int i = 0; i < 2; i++) {
        const double apart = i ? 1e-3 : 1e-6;
        const struct fm_ops *cpu = NULL;
        if (fm_ops_cpu(&cpu, i ? FM_PRECISION_BF16 : FM_PRECISION_F32, &err))
            continue;
        struct fm_pass pass = pass_with(cpu, narrow);
        struct fm_expert_view where = {0};
        struct kept wide = {{0}, {0}}, ends = {{0}, {0}};
        struct fm_visitor all = {.self = &wide, .expert = keep_sums};
        struct fm_visitor some = {.self = &ends, .expert = keep_sums, .narrow = true};
        float *x = draw(FLOATS, 1), *dx = draw(FLOATS, 1), want[FLOATS];
        memcpy(want, dx, sizeof want);
        fm_layer_backward(&pass, want, true, x, &all, &where);
        fm_layer_backward(&pass, dx, true, x, &some, &where);
        assert_true(worst(dx, want) <= apart);
        for (int e = 0; e < E; e++) {
            assert_int_equal(wide.full[e], I);
            assert_int_equal(ends.full[e], narrow[e]);
            assert_true(fabs(ends.sum[e] - wide.sum[e]) <= apart * (1 + wide.sum[e]));
        }
        free(x);
        free(dx);
    }
}

TEST(the_fast_table_agrees_with_the_definition)
{
    const uint32_t *masks[] = {NULL, narrow};
    const struct fm_ops *cpu = NULL;
    assert_ok(fm_ops_cpu(&cpu, FM_PRECISION_F32, &err));
    for (int i = 0; i < 2; i++) {
        struct fm_pass fast = pass_with(cpu, masks[i]), ref = pass_with(fm_ops_ref(), masks[i]);
        struct fm_expert_view where = {0};
        float *x = draw(FLOATS, 1), y[FLOATS], want[FLOATS];
        int64_t counts[E] = {0}, wanted[E] = {0}, sum = 0;
        memcpy(y, x, sizeof y);
        fm_layer_forward(&fast, y, y, counts, NULL, NULL); /* in place */
        fm_layer_forward(&ref, want, x, wanted, NULL, NULL);
        assert_true(worst(y, want) <= 1e-5);
        assert_memory_equal(counts, wanted, sizeof counts);
        for (int e = 0; e < E; e++)
            sum += counts[e];
        assert_int_equal(sum, N * config.K);
        memcpy(want, y, sizeof want);
        fm_layer_backward(&fast, y, true, x, NULL, &where);
        fm_layer_backward(&ref, want, true, x, NULL, &where);
        assert_true(worst(y, want) <= 1e-5);
        free(x);
    }
}

/* Router logits so far apart that the second weight of most tokens is 0 in float32. */
TEST(a_weight_that_underflows_has_a_gradient_of_zero)
{
    const struct fm_ops *ops[2] = {fm_ops_ref()};
    struct fm_layer steep = layer;
    assert_ok(fm_ops_cpu(&ops[1], FM_PRECISION_F32, &err));
    set_router(&steep, draw(E * H, 400));
    for (int i = 0; i < 2; i++) {
        struct fm_pass pass = pass_with(ops[i], NULL);
        struct fm_expert_view where = {0};
        float *x = draw(FLOATS, 1), *dx = draw(FLOATS, 1);
        pass.layer = &steep;
        fm_layer_backward(&pass, dx, true, x, NULL, &where);
        for (int at = 0; at < FLOATS; at++)
            assert_true(isfinite(dx[at]));
        free(x);
        free(dx);
    }
    free(router_of(&steep));
}

int main(void)
{
    struct fm_err err = {0};
    if (fm_pool_start(2, &err))
        return 1;
    int failed = tests_run(make_layer, free_layer);
    fm_pool_stop();
    return failed ? 1 : 0;
}
