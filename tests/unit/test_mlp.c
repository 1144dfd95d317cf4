/*
 * The MLP that all tokens go through, with the activation of each form of expert: its output
 * against the formula, and its backward against finite differences along random directions.
 */
#include "lib/block/clamped.h"
#include "lib/block/limited.h"
#include "lib/block/mlp.h"
#include "lib/block/swiglu.h"
#include "tests/unit/blocks.h"
#include "tests/unit/test.h"

enum { D = 7 };

/* unlimited: the MLP has no limit, though experts have one. */
static void open_mlp(struct block *b, const struct fm_expert_form *form, bool unlimited)
{
    static struct fm_limits limits[] = {{.expert = {9}, .mlp = {1.5f}}, {.expert = {1.5f}}};
    *b = (struct block){.c = {.expert = form,
                              .L = 1,
                              .H = H,
                              .dense = D,
                              .alpha = 1.7f,
                              .limit = 1.5f,
                              .limits = &limits[unlimited]}};
    b->layer.mlp_gate_up = fm_f32(block_draw(b, 2 * D * H, 0.4f));
    b->layer.mlp_down = fm_f32(block_draw(b, D * H, 0.4f));
}

/* y = MLP(x); if dy is given, dx from it. */
static void compute(struct block *b, float *y, const float *x, float *dx, const float *dy)
{
    struct fm_pass pass = block_pass(b, fm_ops_ref());
    memset(y, 0, FLOATS * sizeof *y);
    fm_mlp_forward(&pass, NULL, y, x);
    if (!dy)
        return;
    memset(dx, 0, FLOATS * sizeof *dx);
    fm_mlp_backward(&pass, NULL, dx, dy, x);
}

static double product(const float *w, const float *x)
{
    double sum = 0;
    for (int i = 0; i < H; i++)
        sum += (double)w[i] * (double)x[i];
    return sum;
}

static double channel(const struct fm_config *c, double g, double u)
{
    double most = (double)c->limit, limit = (double)c->limits->mlp[0];
    if (c->expert == &fm_swiglu || (c->expert == &fm_swiglu_limited && limit == 0))
        return g * u / (1 + exp(-g));
    if (c->expert == &fm_geglu)
        return g * u * 0.5 * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)));
    if (c->expert == &fm_swiglu_limited)
        return fmin(g / (1 + exp(-g)), limit) * fmax(fmin(u, limit), -limit);
    g = fmin(g, most);
    u = fmax(fmin(u, most), -most);
    return (u + 1) * g / (1 + exp(-(double)c->alpha * g));
}

static void check_output(struct block *b)
{
    const float *gate_up = b->layer.mlp_gate_up.data, *down = b->layer.mlp_down.data;
    float *x = draw(FLOATS, 1), y[FLOATS];
    compute(b, y, x, NULL, NULL);
    for (int t = 0; t < N; t++)
        for (int i = 0; i < H; i++) {
            double want = 0;
            for (int j = 0; j < D; j++) {
                const float *row = gate_up + (size_t)(2 * j * H), *at = x + (size_t)(t * H);
                want += channel(&b->c, product(row, at), product(row + H, at)) *
                        (double)down[j * H + i];
            }
            assert_true(fabs((double)y[t * H + i] - want) <= 1e-5);
        }
    free(x);
}

static void check_backward(struct block *b)
{
    float *x = draw(FLOATS, 1), *r = draw(FLOATS, 1), dx[FLOATS], y[FLOATS];
    double length = 0, off = 0;
    compute(b, y, x, dx, r);
    for (int i = 0; i < 12; i++) {
        float *v = draw(FLOATS, 1), moved[FLOATS], step = 2e-4f;
        double side[2];
        for (int s = 0; s < 2; s++) {
            for (int j = 0; j < FLOATS; j++)
                moved[j] = x[j] + (s ? step : -step) * v[j];
            compute(b, y, moved, NULL, NULL);
            side[s] = block_dot(r, y);
        }
        double slope = (side[1] - side[0]) / (2 * (double)step), miss = slope - block_dot(dx, v);
        length += slope * slope;
        off += miss * miss;
        free(v);
    }
    print_message("finite differences: relative error %.2g\n", sqrt(off / length));
    assert_true(sqrt(off / length) <= 5e-3);
    free(x);
    free(r);
}

TEST(the_activation_is_that_of_the_experts)
{
    const struct fm_expert_form *forms[] = {&fm_swiglu, &fm_geglu, &fm_swiglu_clamped,
                                            &fm_swiglu_limited};
    for (int f = 0; f < 5; f++) {
        struct block b;
        open_mlp(&b, forms[f < 4 ? f : 3], f == 4);
        check_output(&b);
        check_backward(&b);
        b.c.limits = NULL; /* not from read() */
        block_release(&b);
    }
}

TEST_MAIN(start_pool, stop_pool)
