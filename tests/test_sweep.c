#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/sweeping.h"
#include "tests/golden.h"
#include "tests/models.h"

/* Float32 sums of a few hundred terms in another order than torch's: 1e-6 is typical. */
#define NEAR 1e-4

static const struct fm_ops *table;
static struct golden golden;
static char model_path[64];
static struct fm_err err;

#define check(call)                                                                                \
    do {                                                                                           \
        if ((call) != FM_OK) {                                                                     \
            printf("%s\n", err.text);                                                              \
            fail();                                                                                \
        }                                                                                          \
    } while (0)

/* A model with a sweep, and what one run gave. */
struct setup {
    struct fm_model *model;
    const struct fm_config *c;
    struct fm_sweep *sweep;
    int32_t *order; /* ranked by it, or NULL */
    int32_t *ids;   /* tokens */
    int S, T;
    struct fm_measure measure[16];
};

/* Per slot: what a visitor of one lane wants to know of every expert of a layer. */
struct seen {
    const struct fm_config *c;
    const struct fm_ops *ops;
    const struct fm_adapter *adapter;
    int lane;
    double *slot_c;      /* (slots, E, I) */
    float *slot_grad;    /* (slots, floats of all layers) */
    float *w1, *w3, *w2; /* (E, I, H), (E, I, H), (E, H, I) of layer `watch` */
    int watch;
    double *c_sum; /* (M, E, I) */
    float *grad;   /* adapter gradients, as values */
    int last_batch, last_lane, commits;
};

static size_t adapter_floats(const struct fm_adapter *a)
{
    return a->offset[(size_t)a->M * (size_t)a->E];
}

static void see(void *self, const struct fm_expert_view *v)
{
    struct seen *s = self;
    size_t I = (size_t)s->c->I, E = (size_t)s->c->E, H = (size_t)s->c->H, e = (size_t)v->expert;
    assert_true(v->n > 0 && v->width <= v->cap);
    if (v->lane != s->lane)
        return;
    double *c = s->slot_c + ((size_t)v->slot * E + e) * I;
    s->ops->channel_sums(c, v->h, v->dh, v->n, v->cap);
    if (s->adapter) {
        size_t at = s->adapter->offset[(size_t)v->layer * E + e];
        float *block = s->slot_grad + (size_t)v->slot * adapter_floats(s->adapter);
        fm_adapter_gradient(s->adapter, s->ops, block + at, v);
    }
    for (size_t j = 0; s->w1 && v->layer == s->watch && j < I; j++)
        for (size_t h = 0; h < H; h++)
            for (size_t t = 0; t < (size_t)v->n; t++) {
                float x = v->x[t * H + h], dy = v->dy[t * H + h];
                s->w1[(e * I + j) * H + h] += v->dgu[(t * I + j) * 2] * x;
                s->w3[(e * I + j) * H + h] += v->dgu[(t * I + j) * 2 + 1] * x;
                s->w2[(e * H + h) * I + j] += v->h[t * I + j] * dy;
            }
}

static void commit_seen(void *self, int l, int batch, int lane, int slot)
{
    struct seen *s = self;
    size_t n = (size_t)s->c->E * (size_t)s->c->I;
    assert_true(s->commits == 0 || batch > s->last_batch ||
                (batch == s->last_batch && lane > s->last_lane));
    s->last_batch = batch;
    s->last_lane = lane;
    s->commits++;
    double *c = s->slot_c + (size_t)slot * n;
    for (size_t i = 0; i < n; i++)
        s->c_sum[(size_t)l * n + i] += c[i];
    memset(c, 0, n * sizeof *c);
    if (!s->adapter)
        return;
    size_t floats = adapter_floats(s->adapter);
    float *block = s->slot_grad + (size_t)slot * floats;
    for (size_t i = 0; i < floats; i++)
        s->grad[i] += block[i];
    memset(block, 0, floats * sizeof *block);
}

static int begin_seen(void *self, int l, struct fm_err *e)
{
    struct seen *s = self;
    (void)l, (void)e;
    s->commits = 0;
    return FM_OK;
}

static void seen_init(struct seen *s, const struct setup *u, const struct fm_adapter *adapter)
{
    size_t n = (size_t)u->c->E * (size_t)u->c->I, slots = (size_t)fm_sweep_slots(u->sweep);
    *s = (struct seen){.c = u->c, .ops = table, .adapter = adapter};
    s->slot_c = calloc(slots * n, sizeof *s->slot_c);
    s->c_sum = calloc((size_t)u->c->M * n, sizeof *s->c_sum);
    if (adapter) {
        s->slot_grad = calloc(slots * adapter_floats(adapter), sizeof *s->slot_grad);
        s->grad = calloc(adapter_floats(adapter), sizeof *s->grad);
    }
}

static void seen_release(struct seen *s)
{
    free(s->slot_c);
    free(s->c_sum);
    free(s->slot_grad);
    free(s->grad);
    free(s->w1);
    free(s->w3);
    free(s->w2);
}

static void open_setup(struct setup *u, bool ranked, const char *ids, int batches, int lanes,
                       uint64_t memory)
{
    size_t count = 0;
    *u = (struct setup){0};
    check(fm_model_open(&u->model, model_path, memory, &err));
    u->c = fm_model_config(u->model);
    u->ids = golden_read(&golden, ids, FM_I32, &count);
    u->T = (int)fm_safetensors_find(&golden.st, ids)->shape[1];
    u->S = (int)(count / (size_t)u->T);
    if (ranked) {
        u->order = golden_read(&golden, "rank.order", FM_I32, NULL);
        fm_model_rank(u->model, u->order);
    }
    struct fm_sweep_options options = {.memory = memory};
    check(fm_sweep_new(&u->sweep, u->model, table, batches, u->S * u->T, u->T, lanes, &options,
                       &err));
}

static void close_setup(struct setup *u)
{
    fm_sweep_free(u->sweep);
    fm_model_close(u->model);
    free(u->order);
    free(u->ids);
}

/* One batch of all sequences. */
static struct fm_batch whole(const struct setup *u)
{
    return (struct fm_batch){u->ids, u->S, u->T};
}

static size_t boundary(const struct setup *u)
{
    return (size_t)u->S * (size_t)u->T * (size_t)u->c->H;
}

static void the_full_model_gives_transformers_logits(void **state)
{
    struct setup u;
    (void)state;
    open_setup(&u, false, "ids", 1, 1, 1 << 30);
    size_t rows = (size_t)u.S * (size_t)u.T, n = rows * (size_t)u.c->V;
    struct fm_sweep_taps taps = {.logits = calloc(n, sizeof(float)),
                                 .logprob = calloc(rows, sizeof(float))};
    struct fm_lane lane = {.teacher = -1, .ce = 1};
    struct fm_batch batch = whole(&u);
    int64_t *counts = calloc((size_t)u.c->M * (size_t)u.c->E, sizeof *counts);
    int64_t *tokens = golden_read(&golden, "rank.tokens", FM_I64, NULL);
    fm_sweep_tap(u.sweep, &taps);
    check(fm_sweep_run(u.sweep, &batch, 1, &lane, 1, NULL, u.measure, counts, &err));
    if (fm_safetensors_find(&golden.st, "full.logits"))
        assert_true(golden_near(&golden, "full.logits", taps.logits, n, NEAR));
    assert_true(golden_near(&golden, "full.logprob", taps.logprob, rows - (size_t)u.S, NEAR));
    assert_memory_equal(counts, tokens, (size_t)u.c->M * (size_t)u.c->E * sizeof *counts);
    free(taps.logits);
    free(taps.logprob);
    free(counts);
    free(tokens);
    close_setup(&u);
}

static bool stored_gradient(int l)
{
    char name[64];
    snprintf(name, sizeof name, "grad.layers.%d.experts.0.w1", l);
    return fm_safetensors_find(&golden.st, name) != NULL;
}

static void gradients_of_the_full_model_are_autograds(void **state)
{
    struct setup u;
    struct seen seen;
    (void)state;
    open_setup(&u, false, "grad.ids", 1, 1, 1 << 30);
    size_t n = boundary(&u) * (size_t)(u.c->L + 1), IH = (size_t)u.c->I * (size_t)u.c->H;
    seen_init(&seen, &u, NULL);
    seen.watch = u.c->M - 1; /* of tiny-mixtral only one layer is stored */
    if (!stored_gradient(u.c->moe[seen.watch]))
        seen.watch--;
    seen.w1 = calloc((size_t)u.c->E * IH, sizeof(float));
    seen.w3 = calloc((size_t)u.c->E * IH, sizeof(float));
    seen.w2 = calloc((size_t)u.c->E * IH, sizeof(float));
    struct fm_sweep_taps taps = {.dx = calloc(n, sizeof(float))};
    struct fm_lane lane = {.teacher = -1, .ce = 1, .backward = true};
    struct fm_batch batch = whole(&u);
    struct fm_visitor visitor = {
        .self = &seen, .layer_begin = begin_seen, .expert = see, .commit = commit_seen};
    fm_sweep_tap(u.sweep, &taps);
    check(fm_sweep_run(u.sweep, &batch, 1, &lane, 1, &visitor, u.measure, NULL, &err));
    float loss = (float)(u.measure[0].ce / (double)u.measure[0].n);
    assert_true(golden_near(&golden, "grad.loss", &loss, 1, NEAR));
    assert_true(golden_near(&golden, "grad.dx", taps.dx, n, NEAR));
    for (int e = 0; e < u.c->E; e++) {
        char name[64];
        snprintf(name, sizeof name, "grad.layers.%d.experts.%d.w1", u.c->moe[seen.watch], e);
        if (!fm_safetensors_find(&golden.st, name))
            continue;
        assert_true(golden_near(&golden, name, seen.w1 + (size_t)e * IH, IH, NEAR));
        name[strlen(name) - 1] = '3';
        assert_true(golden_near(&golden, name, seen.w3 + (size_t)e * IH, IH, NEAR));
        name[strlen(name) - 1] = '2';
        assert_true(golden_near(&golden, name, seen.w2 + (size_t)e * IH, IH, NEAR));
    }
    free(taps.dx);
    seen_release(&seen);
    close_setup(&u);
}

static void near_sums(const char *name, const double *c, size_t n)
{
    float *f = calloc(n, sizeof *f);
    for (size_t i = 0; i < n; i++)
        f[i] = (float)c[i];
    assert_true(golden_near(&golden, name, f, n, NEAR));
    free(f);
}

/* Teacher and student of METHOD 3 in one sweep. */
static void a_subnet_learns_as_autograd_says(void **state)
{
    struct setup u;
    struct seen seen;
    (void)state;
    open_setup(&u, true, "grad.ids", 1, 2, 1 << 30);
    int32_t *widths = golden_read(&golden, "subnet.widths", FM_I32, NULL);
    size_t n = boundary(&u) * (size_t)(u.c->L + 1);
    size_t logits = (size_t)(u.S * u.T) * (size_t)u.c->V;
    seen_init(&seen, &u, NULL);
    seen.lane = 1;
    struct fm_sweep_taps taps = {
        .lane = 1, .dx = calloc(n, sizeof(float)), .logits = calloc(logits, sizeof(float))};
    struct fm_lane lanes[2] = {
        {.teacher = -1},
        {.teacher = 0, .ce = 1, .kl = 1, .backward = true, .widths = (uint32_t *)widths}};
    struct fm_batch batch = whole(&u);
    struct fm_visitor visitor = {
        .self = &seen, .layer_begin = begin_seen, .expert = see, .commit = commit_seen};
    fm_sweep_tap(u.sweep, &taps);
    check(fm_sweep_run(u.sweep, &batch, 1, lanes, 2, &visitor, u.measure, NULL, &err));
    float ce = (float)(u.measure[1].ce / (double)u.measure[1].n);
    float kl = (float)(u.measure[1].kl / (double)u.measure[1].n);
    assert_true(golden_near(&golden, "subnet.ce", &ce, 1, NEAR));
    assert_true(golden_near(&golden, "subnet.kl", &kl, 1, NEAR));
    if (fm_safetensors_find(&golden.st, "subnet.logits"))
        assert_true(golden_near(&golden, "subnet.logits", taps.logits, logits, NEAR));
    if (fm_safetensors_find(&golden.st, "subnet.dx"))
        assert_true(golden_near(&golden, "subnet.dx", taps.dx, n, NEAR));
    near_sums("subnet.c", seen.c_sum, (size_t)u.c->M * (size_t)u.c->E * (size_t)u.c->I);
    assert_int_equal(u.measure[1].n, u.S * (u.T - 1));
    assert_true(u.measure[1].agree > 0 && u.measure[1].agree < u.measure[1].n);
    free(taps.dx);
    free(taps.logits);
    free(widths);
    seen_release(&seen);
    close_setup(&u);
}

static void open_adapter(struct fm_adapter *a, const struct setup *u)
{
    size_t n = 0;
    uint32_t *widths = golden_read(&golden, "lora.widths", FM_I32, NULL);
    float *rank_alpha = golden_read(&golden, "lora.rank_alpha", FM_F32, NULL);
    float *values = golden_read(&golden, "lora.values", FM_F32, &n);
    check(fm_adapter_init(a, u->c->M, u->c->E, u->c->H, (int)rank_alpha[0], rank_alpha[1], widths,
                          &err));
    assert_int_equal(n, adapter_floats(a));
    memcpy(a->values, values, n * sizeof *values);
    free(widths);
    free(rank_alpha);
    free(values);
}

static void an_adapter_learns_as_autograd_says(void **state)
{
    struct setup u;
    struct seen seen;
    struct fm_adapter adapter;
    (void)state;
    open_setup(&u, true, "grad.ids", 1, 2, 1 << 30);
    open_adapter(&adapter, &u);
    seen_init(&seen, &u, &adapter);
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
    struct fm_batch batch = whole(&u);
    struct fm_visitor visitor = {
        .self = &seen, .layer_begin = begin_seen, .expert = see, .commit = commit_seen};
    fm_sweep_tap(u.sweep, &taps);
    check(fm_sweep_run(u.sweep, &batch, 1, lanes, 2, &visitor, u.measure, NULL, &err));
    float *losses = golden_read(&golden, "lora.losses", FM_F32, NULL);
    assert_true(fabs(u.measure[1].ce / (double)u.measure[1].n - losses[0]) <= NEAR * losses[0]);
    assert_true(fabs(u.measure[1].kl / (double)u.measure[1].n - losses[1]) <= NEAR * losses[1]);
    if (fm_safetensors_find(&golden.st, "lora.logits"))
        assert_true(golden_near(&golden, "lora.logits", taps.logits, logits, NEAR));
    assert_true(golden_near(&golden, "lora.grad", seen.grad, adapter_floats(&adapter), NEAR));
    free(losses);
    free(taps.logits);
    seen_release(&seen);
    fm_adapter_release(&adapter);
    close_setup(&u);
}

/* Per-token log-probabilities of the members at five budgets; the masks next to them must miss ten
 * times what is allowed. */
static void members_of_a_family_give_transformers_logprobs(void **state)
{
    struct setup u;
    size_t count = 0;
    (void)state;
    if (!fm_safetensors_find(&golden.st, "members.widths"))
        skip();
    open_setup(&u, true, "ids", 1, 1, 1 << 30);
    size_t n = (size_t)u.S * (size_t)(u.T - 1), experts = (size_t)u.c->M * (size_t)u.c->E;
    uint32_t *widths = golden_read(&golden, "members.widths", FM_I32, &count);
    uint32_t *neighbours = golden_read(&golden, "members.neighbours", FM_I32, NULL);
    float *want = golden_read(&golden, "members.logprob", FM_F32, NULL);
    struct fm_sweep_taps taps = {.logprob = calloc(n, sizeof(float))};
    struct fm_batch batch = whole(&u);
    fm_sweep_tap(u.sweep, &taps);
    assert_int_equal(count % experts, 0);
    for (size_t b = 0; b < count / experts; b++) {
        struct fm_lane lane = {.teacher = -1, .ce = 1, .widths = widths + b * experts};
        check(fm_sweep_run(u.sweep, &batch, 1, &lane, 1, NULL, u.measure, NULL, &err));
        double error = golden_error(taps.logprob, want + b * n, n);
        lane.widths = neighbours + b * experts;
        check(fm_sweep_run(u.sweep, &batch, 1, &lane, 1, NULL, u.measure, NULL, &err));
        double miss = golden_error(taps.logprob, want + b * n, n);
        printf("member %zu: relative error %.2g, of its neighbour %.2g\n", b, error, miss);
        assert_true(error <= NEAR && miss > 10 * NEAR);
    }
    free(widths);
    free(neighbours);
    free(want);
    free(taps.logprob);
    close_setup(&u);
}

/* Everything one run of two lanes over single sequences gives, to be compared byte for byte. */
struct outcome {
    struct fm_measure measure[12];
    double *c;
    float *grad, *dx;
    size_t kept;           /* records of inner values */
    uint64_t bounds, keep; /* bytes of all boundaries, of one such record */
};

static void run_pieces(struct outcome *o, int threads, uint64_t memory, bool tapped, bool adapted)
{
    struct setup u;
    struct seen seen;
    struct fm_adapter adapter;
    fm_pool_stop();
    check(fm_pool_start(threads, &err));
    open_setup(&u, true, "ids", 6, 2, memory);
    open_adapter(&adapter, &u);
    seen_init(&seen, &u, &adapter);
    seen.lane = 1;
    /* The first two go together, the others alone. */
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
    struct fm_visitor visitor = {
        .self = &seen, .layer_begin = begin_seen, .expert = see, .commit = commit_seen};
    struct fm_sweep_taps taps = {
        .lane = 1,
        .dx = calloc((size_t)u.T * (size_t)u.c->H * (size_t)(u.c->L + 1), sizeof(float))};
    if (tapped)
        fm_sweep_tap(u.sweep, &taps);
    check(fm_sweep_run(u.sweep, batch, 4, lanes, 2, &visitor, o->measure, NULL, &err));
    assert_int_equal(seen.commits, 8);
    o->c = seen.c_sum;
    o->grad = seen.grad;
    o->dx = taps.dx;
    o->kept = u.sweep->keep.count;
    o->bounds = (uint64_t)u.sweep->store.record * u.sweep->store.count;
    o->keep = u.sweep->keep.record;
    seen.c_sum = NULL;
    seen.grad = NULL;
    seen_release(&seen);
    fm_adapter_release(&adapter);
    close_setup(&u);
}

/* Memory for no inner values, for all, for those of one block of the last layer, for all but one;
 * at last nobody asks for the gradient at layer 0. */
static void compare_runs(bool adapted)
{
    enum { RUNS = 7 };
    const int threads[RUNS] = {1, 2, 3, 2, 1, 2, 2};
    uint64_t memory[RUNS] = {0, 1 << 30, 1 << 30, 30000};
    struct outcome first = {0};
    struct fm_model *model;
    check(fm_model_open(&model, model_path, 0, &err));
    const struct fm_config c = *fm_model_config(model);
    fm_model_close(model);
    size_t T = (size_t)fm_safetensors_find(&golden.st, "ids")->shape[1];
    size_t grads = 0;
    free(golden_read(&golden, "lora.values", FM_F32, &grads));
    for (int i = 0; i < RUNS; i++) {
        struct outcome o = {0};
        bool tapped = i < RUNS - 1;
        run_pieces(&o, threads[i], memory[i], tapped, adapted);
        /* Three blocks, two lanes; below the first layer of experts nobody goes untapped. */
        size_t all = 3 * 2 * (size_t)c.L, read = 3 * 2 * (size_t)(c.L - c.moe[0]);
        const size_t kept[RUNS] = {0, all, all, 0, 1, all - 1, read};
        assert_int_equal(o.kept, adapted ? 0 : kept[i]);
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
            memory[4] = o.bounds + o.keep;
            memory[5] = o.bounds + all * o.keep - 1;
            memory[6] = o.bounds + all * o.keep;
        }
    }
    free(first.c);
    free(first.grad);
    free(first.dx);
}

static void threads_and_memory_change_no_byte(void **state)
{
    (void)state;
    compare_runs(false);
}

static void threads_and_memory_change_no_byte_of_an_adapter(void **state)
{
    (void)state;
    compare_runs(true);
}

static void halve(void *self, const struct fm_measure *measure, float *scale)
{
    (void)self;
    assert_true(measure[0].ce > 0);
    scale[0] = 0.5f;
}

static void a_visitor_scales_a_lanes_gradient(void **state)
{
    struct setup u;
    (void)state;
    open_setup(&u, false, "grad.ids", 1, 1, 1 << 30);
    size_t n = boundary(&u) * (size_t)(u.c->L + 1);
    struct fm_sweep_taps taps = {.dx = calloc(n, sizeof(float))};
    struct fm_lane lane = {.teacher = -1, .ce = 2, .backward = true};
    struct fm_batch batch = whole(&u);
    struct fm_visitor visitor = {.losses = halve};
    fm_sweep_tap(u.sweep, &taps);
    check(fm_sweep_run(u.sweep, &batch, 1, &lane, 1, &visitor, u.measure, NULL, &err));
    assert_true(golden_near(&golden, "grad.dx", taps.dx, n, NEAR));
    free(taps.dx);
    close_setup(&u);
}

/* Quality runs carry many lanes forward only. */
static void many_lanes_measure_what_one_lane_does(void **state)
{
    struct setup u;
    enum { LANES = 9 };
    struct fm_measure alone, many[LANES];
    struct fm_lane lanes[LANES];
    (void)state;
    open_setup(&u, true, "grad.ids", 1, LANES, 1 << 30);
    uint32_t *widths = golden_read(&golden, "subnet.widths", FM_I32, NULL);
    for (int i = 0; i < LANES; i++)
        lanes[i] = (struct fm_lane){.teacher = i ? 0 : -1, .widths = i % 2 ? widths : NULL};
    struct fm_batch batch = whole(&u);
    check(fm_sweep_run(u.sweep, &batch, 1, lanes, LANES, NULL, many, NULL, &err));
    for (int i = 1; i < LANES; i++)
        assert_memory_equal(&many[i], &many[2 - i % 2], sizeof many[i]);
    assert_true(many[2].kl >= -1e-9 && many[2].kl <= 1e-9);
    assert_int_equal(many[2].agree, many[2].n);
    lanes[1].teacher = -1;
    check(fm_sweep_run(u.sweep, &batch, 1, lanes + 1, 1, NULL, &alone, NULL, &err));
    assert_true(alone.ce == many[1].ce);
    free(widths);
    close_setup(&u);
}

static void a_stopped_sweep_says_so(void **state)
{
    struct setup u;
    const int stop = 1;
    struct fm_lane lane = {.teacher = -1, .ce = 1};
    (void)state;
    open_setup(&u, false, "grad.ids", 1, 1, 1 << 30);
    fm_sweep_free(u.sweep);
    struct fm_sweep_options options = {.stop = &stop};
    check(fm_sweep_new(&u.sweep, u.model, table, 1, u.S * u.T, u.T, 1, &options, &err));
    struct fm_batch batch = whole(&u);
    struct fm_err told = {0};
    assert_int_equal(fm_sweep_run(u.sweep, &batch, 1, &lane, 1, NULL, u.measure, NULL, &told),
                     FM_ESAVED);
    close_setup(&u);
}

static int run_all(const char *model, const struct fm_ops *ops)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_full_model_gives_transformers_logits),
        cmocka_unit_test(gradients_of_the_full_model_are_autograds),
        cmocka_unit_test(a_subnet_learns_as_autograd_says),
        cmocka_unit_test(an_adapter_learns_as_autograd_says),
        cmocka_unit_test(members_of_a_family_give_transformers_logprobs),
        cmocka_unit_test(a_visitor_scales_a_lanes_gradient),
        cmocka_unit_test(many_lanes_measure_what_one_lane_does),
        cmocka_unit_test(a_stopped_sweep_says_so),
        cmocka_unit_test(threads_and_memory_change_no_byte),
        cmocka_unit_test(threads_and_memory_change_no_byte_of_an_adapter),
    };
    char path[96];
    table = ops;
    snprintf(model_path, sizeof model_path, "golden/%s", model);
    snprintf(path, sizeof path, "%s/golden.safetensors", model_path);
    printf("== %s, %s\n", model, ops->name);
    golden_open(&golden, path);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    golden_close(&golden);
    return failed;
}

int main(void)
{
    const struct fm_ops *cpu = NULL;
    if (fm_pool_start(2, &err) || fm_ops_cpu(&cpu, FM_PRECISION_F32, &err))
        golden_die(&err);
    int failed = run_all("tiny-mixtral", cpu);
    for (size_t i = 0; i < MODELS; i++)
        failed += run_all(odd_models[i], fm_ops_ref()) + run_all(odd_models[i], cpu);
    fm_pool_stop();
    return failed ? 1 : 0;
}
