/* In runs of a sweep, threads, memory and other lanes do not change results, and a stop is
 * reported. */
#include "tests/unit/sweeps.h"
#include "tests/unit/test.h"

/* All results of one run of two lanes over four batches, to be compared byte for byte. */
struct outcome {
    struct fm_measure measure[12];
    double *c;
    float *grad, *dx;
    size_t kept;            /* records of inner values */
    uint64_t bounds, cache; /* bytes of all boundaries, and of one record */
};

static void run_pieces(struct outcome *o, int threads, uint64_t memory, bool tapped, bool adapted)
{
    struct sweeps u;
    struct sweeps_seen seen;
    struct fm_adapter adapter;
    fm_pool_stop();
    SWEEPS_TRY(fm_pool_start(threads, &sweeps_err));
    sweeps_open(&u, true, "ids", 6, 2, memory);
    sweeps_open_adapter(&adapter, &u);
    sweeps_seen_init(&seen, &u, &adapter);
    seen.lane = 1;
    /* The first two share a block. */
    struct fm_batch batch[4] = {
        {u.ids, 1, u.T}, {u.ids + u.T, 1, u.T}, {u.ids, 2, u.T}, {u.ids + 3, 1, u.T - 4}};
    struct fm_lane lanes[2] = {{.teacher = -1, .ce = 0.5f, .backward = true},
                               {.teacher = 0,
                                .ce = 1,
                                .kl = 1,
                                .backward = true,
                                .adapter = adapted ? &adapter : NULL,
                                .round = true,
                                .widths = adapter.widths}};
    struct fm_visitor visitor = sweeps_visitor(&seen);
    struct fm_sweep_taps taps = {
        .lane = 1,
        .dx = calloc((size_t)u.T * (size_t)u.c->H * (size_t)(u.c->L + 1), sizeof(float))};
    if (tapped)
        fm_sweep_tap(u.sweep, &taps);
    SWEEPS_TRY(fm_sweep_run(u.sweep, batch, 4, lanes, 2, &visitor, o->measure, NULL, &sweeps_err));
    assert_int_equal(seen.commits, 8);
    o->c = seen.c_sum;
    o->grad = seen.grad;
    o->dx = taps.dx;
    o->kept = u.sweep->cache.count;
    o->bounds = (uint64_t)u.sweep->store.record * u.sweep->store.count;
    o->cache = u.sweep->cache.record;
    seen.c_sum = NULL;
    seen.grad = NULL;
    sweeps_seen_release(&seen);
    fm_adapter_release(&adapter);
    sweeps_close(&u);
}

/* Memory for no inner values, for all, for those of one block of the last layer, for all but
 * one; finally, no lane needs the gradient at layer 0. */
static void compare_runs(bool adapted)
{
    enum { RUNS = 7 };
    const int threads[RUNS] = {1, 2, 3, 2, 1, 2, 2};
    uint64_t memory[RUNS] = {0, 1 << 30, 1 << 30, 30000};
    struct outcome first = {0};
    struct fm_model *model;
    SWEEPS_TRY(fm_model_open(&model, sweeps_model, 0, &sweeps_err));
    const struct fm_config c = *fm_model_config(model);
    size_t T = (size_t)fm_safetensors_find(&sweeps_golden.st, "ids")->shape[1];
    size_t grads = 0;
    free(golden_read(&sweeps_golden, "lora.values", FM_F32, &grads));
    for (int i = 0; i < RUNS; i++) {
        struct outcome o = {0};
        bool tapped = i < RUNS - 1;
        /* Keeping inner values does not depend on the operations, so the slow table makes only
         * three of these runs. */
        if (sweeps_ops == fm_ops_ref() && i != 0 && i != 2 && i != 5)
            continue;
        run_pieces(&o, threads[i], memory[i], tapped, adapted);
        /* Three blocks, two lanes; all: records of all layers; read: of those from the first layer
         * with experts on. */
        size_t all = 3 * 2 * (size_t)c.L, read = 3 * 2 * (size_t)(c.L - c.moe[0]);
        const size_t kept[RUNS] = {0, all, all, 0, 1, all - 1, read};
        assert_int_equal(o.kept, kept[i]);
        if (i > 0) {
            assert_memory_equal(o.measure, first.measure, 8 * sizeof *o.measure);
            assert_memory_equal(o.c, first.c,
                                (size_t)c.M * (size_t)c.E * (size_t)c.I * sizeof *o.c);
            assert_memory_equal(o.grad, first.grad, grads * sizeof *o.grad);
            if (tapped)
                assert_memory_equal(o.dx, first.dx,
                                    (size_t)(c.L + 1) * T * (size_t)c.H * sizeof *o.dx);
            free(o.c);
            free(o.grad);
            free(o.dx);
        } else {
            first = o;
            memory[4] = o.bounds + o.cache;
            memory[5] = o.bounds + all * o.cache - 1;
            memory[6] = o.bounds + all * o.cache;
        }
    }
    free(first.c);
    free(first.grad);
    free(first.dx);
    fm_model_close(model);
}

TEST(threads_and_memory_change_no_byte)
{
    compare_runs(false);
}

TEST(threads_and_memory_change_no_byte_of_an_adapter)
{
    compare_runs(true);
}

/* Quality runs have many lanes without gradients. */
TEST(many_lanes_measure_what_one_lane_does)
{
    struct sweeps u;
    enum { LANES = 9 };
    struct fm_measure alone, many[LANES];
    struct fm_lane lanes[LANES];
    sweeps_open(&u, true, "grad.ids", 1, LANES, 1 << 30);
    uint32_t *widths = golden_read(&sweeps_golden, "subnet.widths", FM_I32, NULL);
    for (int i = 0; i < LANES; i++)
        lanes[i] = (struct fm_lane){.teacher = i ? 0 : -1, .widths = i % 2 ? widths : NULL};
    struct fm_batch batch = sweeps_whole(&u);
    SWEEPS_TRY(fm_sweep_run(u.sweep, &batch, 1, lanes, LANES, NULL, many, NULL, &sweeps_err));
    for (int i = 1; i < LANES; i++)
        assert_memory_equal(&many[i], &many[2 - i % 2], sizeof many[i]);
    assert_true(many[2].kl >= -1e-9 && many[2].kl <= 1e-9);
    assert_int_equal(many[2].agree, many[2].n);
    lanes[1].teacher = -1;
    SWEEPS_TRY(fm_sweep_run(u.sweep, &batch, 1, lanes + 1, 1, NULL, &alone, NULL, &sweeps_err));
    assert_true(alone.ce == many[1].ce);
    free(widths);
    sweeps_close(&u);
}

TEST(a_stopped_sweep_says_so)
{
    struct sweeps u;
    const atomic_int stop = 1;
    struct fm_lane lane = {.teacher = -1, .ce = 1};
    sweeps_open(&u, false, "grad.ids", 1, 1, 1 << 30);
    fm_sweep_free(u.sweep);
    struct fm_sweep_options options = {.stop = &stop};
    SWEEPS_TRY(
        fm_sweep_new(&u.sweep, u.model, sweeps_ops, 1, u.S * u.T, u.T, 1, &options, &sweeps_err));
    struct fm_batch batch = sweeps_whole(&u);
    struct fm_err told = {0};
    assert_int_equal(fm_sweep_run(u.sweep, &batch, 1, &lane, 1, NULL, u.measure, NULL, &told),
                     FM_ESAVED);
    sweeps_close(&u);
}

/* The nth expert that is visited requests a stop. */
struct stopper {
    atomic_int stop;
    int nth, seen;
};

static void stop_at(void *self, const struct fm_expert_view *view)
{
    struct stopper *s = self;
    (void)view;
    if (++s->seen == s->nth)
        s->stop = 1;
}

/* Run until the end or until the nth expert stops it, on one thread; returns the result of
 * fm_sweep_run. */
static int run_until(struct stopper *s, int nth, bool forward, bool *once_more)
{
    struct sweeps u;
    struct fm_lane lane = {.teacher = -1, .ce = 1, .backward = !forward};
    struct fm_visitor visitor = {.self = s, .forward = forward, .expert = stop_at};
    *s = (struct stopper){.nth = nth};
    sweeps_open(&u, false, "grad.ids", 1, 1, 1 << 30);
    fm_sweep_free(u.sweep);
    struct fm_sweep_options options = {.stop = &s->stop};
    SWEEPS_TRY(
        fm_sweep_new(&u.sweep, u.model, sweeps_ops, 1, u.S * u.T, u.T, 1, &options, &sweeps_err));
    struct fm_batch batch = sweeps_whole(&u);
    struct fm_err told = {0};
    int seen, rc = fm_sweep_run(u.sweep, &batch, 1, &lane, 1, &visitor, u.measure, NULL, &told);
    if (rc)
        assert_non_null(strstr(told.text, "interrupted in layer"));
    /* Without the stop, the same sweep runs to its end. */
    seen = s->seen;
    *s = (struct stopper){0};
    SWEEPS_TRY(fm_sweep_run(u.sweep, &batch, 1, &lane, 1, &visitor, u.measure, NULL, &told));
    *once_more = s->seen >= seen;
    s->seen = seen;
    sweeps_close(&u);
    return rc;
}

/* No further expert is computed, not even of the current layer. */
TEST(a_sweep_stops_between_two_experts)
{
    struct stopper s;
    bool whole;
    fm_pool_stop();
    for (int forward = 0; forward < 2; forward++) {
        assert_int_equal(run_until(&s, 0, forward, &whole), FM_OK);
        assert_true(whole);
        int all = s.seen;
        assert_true(all > 6);
        for (int nth = 1; nth < all; nth += all / 3) {
            assert_int_equal(run_until(&s, nth, forward, &whole), FM_ESAVED);
            assert_int_equal(s.seen, nth);
            assert_true(whole);
        }
    }
}

int main(void)
{
    return sweeps_run();
}
