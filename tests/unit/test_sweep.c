/* Compare the results of a sweep with transformers and autograd. */
#include "tests/unit/sweeps.h"
#include "tests/unit/test.h"

/* Float32 sums of a few hundred terms in another order than torch's: 1e-6 is typical. */
#define NEAR 1e-4

TEST(the_full_model_gives_transformers_logits)
{
    struct sweeps u;
    sweeps_open(&u, false, "ids", 1, 1, 1 << 30);
    size_t rows = (size_t)u.S * (size_t)u.T, n = rows * (size_t)u.c->V;
    struct fm_sweep_taps taps = {.logits = calloc(n, sizeof(float)),
                                 .logprob = calloc(rows, sizeof(float))};
    struct fm_lane lane = {.teacher = -1, .ce = 1};
    struct fm_batch batch = sweeps_whole(&u);
    int64_t *counts = calloc((size_t)u.c->M * (size_t)u.c->E, sizeof *counts);
    int64_t *tokens = golden_read(&sweeps_golden, "rank.tokens", FM_I64, NULL);
    fm_sweep_tap(u.sweep, &taps);
    SWEEPS_TRY(fm_sweep_run(u.sweep, &batch, 1, &lane, 1, NULL, u.measure, counts, &sweeps_err));
    if (fm_safetensors_find(&sweeps_golden.st, "full.logits"))
        assert_true(golden_near(&sweeps_golden, "full.logits", taps.logits, n, NEAR));
    assert_true(
        golden_near(&sweeps_golden, "full.logprob", taps.logprob, rows - (size_t)u.S, NEAR));
    assert_memory_equal(counts, tokens, (size_t)u.c->M * (size_t)u.c->E * sizeof *counts);
    free(taps.logits);
    free(taps.logprob);
    free(counts);
    free(tokens);
    sweeps_close(&u);
}

static bool stored_gradient(int l)
{
    char name[64];
    snprintf(name, sizeof name, "grad.layers.%d.experts.0.w1", l);
    return fm_safetensors_find(&sweeps_golden.st, name) != NULL;
}

TEST(gradients_of_the_full_model_are_autograds)
{
    struct sweeps u;
    struct sweeps_seen seen;
    sweeps_open(&u, false, "grad.ids", 1, 1, 1 << 30);
    size_t n = sweeps_boundary(&u) * (size_t)(u.c->L + 1), IH = (size_t)u.c->I * (size_t)u.c->H;
    sweeps_seen_init(&seen, &u, NULL);
    seen.watch = u.c->M - 1; /* tiny-mixtral's golden has gradients of one layer */
    if (!stored_gradient(u.c->moe[seen.watch]))
        seen.watch--;
    seen.w1 = calloc((size_t)u.c->E * IH, sizeof(float));
    seen.w3 = calloc((size_t)u.c->E * IH, sizeof(float));
    seen.w2 = calloc((size_t)u.c->E * IH, sizeof(float));
    struct fm_sweep_taps taps = {.dx = calloc(n, sizeof(float))};
    struct fm_lane lane = {.teacher = -1, .ce = 1, .backward = true};
    struct fm_batch batch = sweeps_whole(&u);
    struct fm_visitor visitor = sweeps_visitor(&seen);
    fm_sweep_tap(u.sweep, &taps);
    SWEEPS_TRY(fm_sweep_run(u.sweep, &batch, 1, &lane, 1, &visitor, u.measure, NULL, &sweeps_err));
    float loss = (float)(u.measure[0].ce / (double)u.measure[0].n);
    assert_true(golden_near(&sweeps_golden, "grad.loss", &loss, 1, NEAR));
    assert_true(golden_near(&sweeps_golden, "grad.dx", taps.dx, n, NEAR));
    for (int e = 0; e < u.c->E; e++) {
        char name[64];
        snprintf(name, sizeof name, "grad.layers.%d.experts.%d.w1", u.c->moe[seen.watch], e);
        if (!fm_safetensors_find(&sweeps_golden.st, name))
            continue;
        assert_true(golden_near(&sweeps_golden, name, seen.w1 + (size_t)e * IH, IH, NEAR));
        name[strlen(name) - 1] = '3';
        assert_true(golden_near(&sweeps_golden, name, seen.w3 + (size_t)e * IH, IH, NEAR));
        name[strlen(name) - 1] = '2';
        assert_true(golden_near(&sweeps_golden, name, seen.w2 + (size_t)e * IH, IH, NEAR));
    }
    free(taps.dx);
    sweeps_seen_release(&seen);
    sweeps_close(&u);
}

static void near_sums(const char *name, const double *c, size_t n)
{
    float *f = calloc(n, sizeof *f);
    for (size_t i = 0; i < n; i++)
        f[i] = (float)c[i];
    assert_true(golden_near(&sweeps_golden, name, f, n, NEAR));
    free(f);
}

static int most_probable(const float *logits, int V)
{
    int best = 0;
    for (int v = 1; v < V; v++)
        best = logits[v] > logits[best] ? v : best;
    return best;
}

/* Positions with a next token at which two models' logits (S, T, V) have their largest entry at the
 * same token. */
static int64_t count_agreements(const struct sweeps *u, const float *a, const float *b)
{
    int64_t n = 0;
    for (int i = 0; i < u->S * u->T; i++) {
        size_t at = (size_t)i * (size_t)u->c->V;
        if (i % u->T < u->T - 1)
            n += most_probable(a + at, u->c->V) == most_probable(b + at, u->c->V);
    }
    return n;
}

/* Teacher and student of the mask gradient (fm-method(7)) in one sweep. */
TEST(a_subnet_learns_as_autograd_says)
{
    struct sweeps u;
    struct sweeps_seen seen;
    sweeps_open(&u, true, "grad.ids", 1, 2, 1 << 30);
    int32_t *widths = golden_read(&sweeps_golden, "subnet.widths", FM_I32, NULL);
    size_t n = sweeps_boundary(&u) * (size_t)(u.c->L + 1);
    size_t logits = (size_t)(u.S * u.T) * (size_t)u.c->V;
    sweeps_seen_init(&seen, &u, NULL);
    seen.lane = 1;
    struct fm_sweep_taps taps = {
        .lane = 1, .dx = calloc(n, sizeof(float)), .logits = calloc(logits, sizeof(float))};
    struct fm_lane lanes[2] = {
        {.teacher = -1},
        {.teacher = 0, .ce = 1, .kl = 1, .backward = true, .widths = (uint32_t *)widths}};
    struct fm_batch batch = sweeps_whole(&u);
    struct fm_visitor visitor = sweeps_visitor(&seen);
    fm_sweep_tap(u.sweep, &taps);
    SWEEPS_TRY(fm_sweep_run(u.sweep, &batch, 1, lanes, 2, &visitor, u.measure, NULL, &sweeps_err));
    float ce = (float)(u.measure[1].ce / (double)u.measure[1].n);
    float kl = (float)(u.measure[1].kl / (double)u.measure[1].n);
    assert_true(golden_near(&sweeps_golden, "subnet.ce", &ce, 1, NEAR));
    assert_true(golden_near(&sweeps_golden, "subnet.kl", &kl, 1, NEAR));
    if (fm_safetensors_find(&sweeps_golden.st, "subnet.logits"))
        assert_true(golden_near(&sweeps_golden, "subnet.logits", taps.logits, logits, NEAR));
    if (fm_safetensors_find(&sweeps_golden.st, "subnet.dx"))
        assert_true(golden_near(&sweeps_golden, "subnet.dx", taps.dx, n, NEAR));
    near_sums("subnet.c", seen.c_sum, (size_t)u.c->M * (size_t)u.c->E * (size_t)u.c->I);
    assert_int_equal(u.measure[1].n, u.S * (u.T - 1));
    struct fm_sweep_taps full = {.logits = calloc(logits, sizeof(float))};
    fm_sweep_tap(u.sweep, &full);
    int64_t agree = u.measure[1].agree;
    SWEEPS_TRY(fm_sweep_run(u.sweep, &batch, 1, lanes, 1, NULL, u.measure, NULL, &sweeps_err));
    assert_int_equal(agree, count_agreements(&u, full.logits, taps.logits));
    free(full.logits);
    free(taps.dx);
    free(taps.logits);
    free(widths);
    sweeps_seen_release(&seen);
    sweeps_close(&u);
}

/* odd-q35 has one badly conditioned token, the third of its second sequence.  In the last layer, k
 * and q of one head are nearly orthogonal (their cosine is 0.0021), so o is small, and the norm
 * after it multiplies the errors of o and of its gradient by 360.  The gradients of the layers
 * below differ from autograd's by 3.7e-5 for ref and by 1.8e-4 with FM_ISA=base.  Every other model
 * is within 2e-5. */
static double gradient_limit(void)
{
    return strcmp(sweeps_model, "golden/odd-q35") == 0 ? 3 * NEAR : NEAR;
}

TEST(an_adapter_learns_as_autograd_says)
{
    struct sweeps u;
    struct sweeps_seen seen;
    struct fm_adapter adapter;
    sweeps_open(&u, true, "grad.ids", 1, 2, 1 << 30);
    sweeps_open_adapter(&adapter, &u);
    sweeps_seen_init(&seen, &u, &adapter);
    seen.lane = 1;
    size_t logits = (size_t)(u.S * u.T) * (size_t)u.c->V;
    struct fm_sweep_taps taps = {.lane = 1, .logits = calloc(logits, sizeof(float))};
    struct fm_lane lanes[2] = {{.teacher = -1},
                               {.teacher = 0,
                                .ce = 1,
                                .kl = 1,
                                .backward = true,
                                .adapter = &adapter,
                                .widths = adapter.widths}};
    struct fm_batch batch = sweeps_whole(&u);
    struct fm_visitor visitor = sweeps_visitor(&seen);
    fm_sweep_tap(u.sweep, &taps);
    SWEEPS_TRY(fm_sweep_run(u.sweep, &batch, 1, lanes, 2, &visitor, u.measure, NULL, &sweeps_err));
    float *losses = golden_read(&sweeps_golden, "lora.losses", FM_F32, NULL);
    assert_true(fabs(u.measure[1].ce / (double)u.measure[1].n - losses[0]) <= NEAR * losses[0]);
    assert_true(fabs(u.measure[1].kl / (double)u.measure[1].n - losses[1]) <= NEAR * losses[1]);
    if (fm_safetensors_find(&sweeps_golden.st, "lora.logits"))
        assert_true(golden_near(&sweeps_golden, "lora.logits", taps.logits, logits, NEAR));
    assert_true(golden_near(&sweeps_golden, "lora.grad", seen.grad, sweeps_adapter_floats(&adapter),
                            gradient_limit()));
    free(losses);
    free(taps.logits);
    sweeps_seen_release(&seen);
    fm_adapter_release(&adapter);
    sweeps_close(&u);
}

/* Per-token log-probabilities of the members at five budgets; with the neighbouring masks they must
 * differ by more than ten times the tolerance. */
TEST(members_of_a_family_give_transformers_logprobs)
{
    struct sweeps u;
    size_t count = 0;
    if (!fm_safetensors_find(&sweeps_golden.st, "members.widths"))
        skip();
    sweeps_open(&u, true, "ids", 1, 1, 1 << 30);
    size_t n = (size_t)u.S * (size_t)(u.T - 1), experts = (size_t)u.c->M * (size_t)u.c->E;
    uint32_t *widths = golden_read(&sweeps_golden, "members.widths", FM_I32, &count);
    uint32_t *neighbours = golden_read(&sweeps_golden, "members.neighbours", FM_I32, NULL);
    float *want = golden_read(&sweeps_golden, "members.logprob", FM_F32, NULL);
    struct fm_sweep_taps taps = {.logprob = calloc(n, sizeof(float))};
    struct fm_batch batch = sweeps_whole(&u);
    fm_sweep_tap(u.sweep, &taps);
    assert_int_equal(count % experts, 0);
    for (size_t b = 0; b < count / experts; b++) {
        struct fm_lane lane = {.teacher = -1, .ce = 1, .widths = widths + b * experts};
        SWEEPS_TRY(fm_sweep_run(u.sweep, &batch, 1, &lane, 1, NULL, u.measure, NULL, &sweeps_err));
        double error = golden_error(taps.logprob, want + b * n, n);
        lane.widths = neighbours + b * experts;
        SWEEPS_TRY(fm_sweep_run(u.sweep, &batch, 1, &lane, 1, NULL, u.measure, NULL, &sweeps_err));
        double miss = golden_error(taps.logprob, want + b * n, n);
        printf("member %zu: relative error %.2g, of its neighbour %.2g\n", b, error, miss);
        assert_true(error <= NEAR && miss > 10 * NEAR);
    }
    free(widths);
    free(neighbours);
    free(want);
    free(taps.logprob);
    sweeps_close(&u);
}

static void halve(void *self, const struct fm_measure *measure, float *scale)
{
    (void)self;
    assert_true(measure[0].ce > 0);
    scale[0] = 0.5f;
}

TEST(a_visitor_scales_a_lanes_gradient)
{
    struct sweeps u;
    sweeps_open(&u, false, "grad.ids", 1, 1, 1 << 30);
    size_t n = sweeps_boundary(&u) * (size_t)(u.c->L + 1);
    struct fm_sweep_taps taps = {.dx = calloc(n, sizeof(float))};
    struct fm_lane lane = {.teacher = -1, .ce = 2, .backward = true};
    struct fm_batch batch = sweeps_whole(&u);
    struct fm_visitor visitor = {.losses = halve};
    fm_sweep_tap(u.sweep, &taps);
    SWEEPS_TRY(fm_sweep_run(u.sweep, &batch, 1, &lane, 1, &visitor, u.measure, NULL, &sweeps_err));
    assert_true(golden_near(&sweeps_golden, "grad.dx", taps.dx, n, NEAR));
    free(taps.dx);
    sweeps_close(&u);
}

int main(void)
{
    return sweeps_run();
}
