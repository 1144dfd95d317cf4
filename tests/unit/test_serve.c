/* fm-bench serve: the loop computes what the engine computes, and its budgets can be switched. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/base/rng.h"
#include "lib/bench/servebench.h"
#include "lib/bench/servecase.h"
#include "lib/bench/synth.h"
#include "lib/block/gqa.h"
#include "lib/block/norm.h"
#include "lib/block/softmax.h"
#include "lib/block/swiglu.h"
#include "lib/engine/layer.h"
#include "lib/stage/budgets.h"
#include "lib/stage/stage.h"
#include "tests/unit/scratch.h"

enum { BATCH = 3, PROMPT = 6, DECODE = 5, T = PROMPT + DECODE };

static const struct fm_servebench_options small = {.shape = "48,40,5,2",
                                                   .budgets = "0,0.3,0.6",
                                                   .dtype = "f32",
                                                   .layers = 3,
                                                   .batch = BATCH,
                                                   .prompt = PROMPT,
                                                   .decode = DECODE,
                                                   .repeat = 3};
static const struct fm_run_options run = {.seed = 7, .memory = (uint64_t)1 << 30};

static struct fm_servecase *open_case(const struct fm_servebench_options *o)
{
    struct fm_err err = {0};
    struct fm_servecase *c = calloc(1, sizeof *c);
    assert_non_null(c);
    assert_int_equal(fm_servecase_shape(c, o, &run, &err), FM_OK);
    assert_int_equal(fm_servecase_fill(c, &err), FM_OK);
    return c;
}

static void close_case(struct fm_servecase *c)
{
    fm_servecase_release(c);
    free(c);
}

/* The largest difference of `last` from position t of x (BATCH, T, H), as a share of x's size. */
static double distance(const struct fm_servecase *c, const float *x, int t)
{
    double worst = 0, size = 0;
    size_t H = (size_t)c->config.H;
    for (size_t s = 0; s < BATCH; s++)
        for (size_t i = 0; i < H; i++) {
            double want = x[(s * T + (size_t)t) * H + i];
            double off = fabs(want - c->last[s * H + i]);
            worst = off > worst || isnan(off) ? off : worst;
            size = fmax(size, fabs(want));
        }
    return worst / size;
}

/* x (BATCH, T, H): every sequence whole through the engine's layers, by plain loops. */
static float *forward_engine(const struct fm_servecase *c, int budget)
{
    struct fm_config config = c->config;
    const struct fm_config *g = &config;
    size_t H = (size_t)g->H, E = (size_t)g->E;
    size_t q = (size_t)g->Q * (size_t)g->C * H * 4, kv = (size_t)g->G * (size_t)g->C * H * 4;
    float *x = malloc(BATCH * T * H * sizeof *x);
    uint32_t *widths = malloc(E * sizeof *widths);
    assert_true(x && widths);
    struct fm_gqa *own = (void *)&config.attention_own;
    fm_rope_plain(&own->rope, 1e6, config.C);
    config.attention = &fm_gqa;
    config.router = &fm_softmax;
    config.expert = &fm_swiglu;
    config.norm = &fm_rmsnorm;
    fm_ops_ref()->embed(x, c->tokens, fm_f32(c->table), BATCH * T, g->H);
    for (int l = 0; l < g->L; l++) {
        const struct fm_serve_layer *w = &c->layer[l];
        struct fm_layer layer = {.input_norm = w->input_norm, .post_norm = w->post_norm};
        struct fm_pass pass = {.ops = fm_ops_ref(), .config = g, .layer = &layer, .l = l};
        const struct fm_gqa_weights attention = {.q = (float *)(void *)w->qkv,
                                                 .k = (float *)(void *)(w->qkv + q),
                                                 .v = (float *)(void *)(w->qkv + q + kv),
                                                 .o = (float *)(void *)w->o};
        memcpy(&layer.attention, &attention, sizeof attention);
        memcpy(&layer.router, &w->router, sizeof w->router);
        layer.gate_up = fm_f32((float *)(void *)w->gate_up);
        layer.down = fm_f32((float *)(void *)w->down);
        layer.row0 = c->row0;
        layer.cap = c->cap;
        for (size_t e = 0; e < E; e++)
            widths[e] = (uint32_t)w->widths[(size_t)budget * E + e];
        pass.widths = widths;
        pass.cos = c->cos;
        pass.sin = c->sin;
        pass.S = BATCH;
        pass.T = T;
        pass.parts = 1;
        fm_layer_forward(&pass, x, x, NULL, NULL, NULL);
    }
    free(widths);
    return x;
}

/* Sums in another order: float32's rounding, through three layers. */
static void prompts_and_steps_are_the_engines_forward_at_every_budget(void **state)
{
    (void)state;
    struct fm_servecase *c = open_case(&small);
    struct fm_err err = {0};
    assert_int_equal(c->B, 3);
    for (c->budget = 0; c->budget < c->B; c->budget++) {
        float *x = forward_engine(c, c->budget);
        assert_int_equal(fm_servecase_prefill(c, &err), FM_OK);
        assert_true(distance(c, x, PROMPT - 1) <= 1e-5);
        for (int t = PROMPT; t < T; t++) {
            assert_true(!(distance(c, x, t) <= 1e-2)); /* it is not there by chance */
            assert_int_equal(fm_servecase_step(c, t, &err), FM_OK);
            assert_true(distance(c, x, t) <= 1e-5);
        }
        free(x);
    }
    close_case(c);
}

/* Steps after a short prompt against one long prompt; in bfloat16 a rounding of what goes into
 * experts can fall the other way. */
static void a_step_on_the_cache_is_the_end_of_a_longer_prompt(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        struct fm_servebench_options o = small;
        struct fm_err err = {0};
        o.dtype = d ? "bf16" : "f32";
        struct fm_servecase *c = open_case(&o);
        o.prompt = T - 1;
        o.decode = 1;
        struct fm_servecase *whole = open_case(&o);
        c->budget = whole->budget = 1;
        assert_int_equal(fm_servecase_prefill(c, &err), FM_OK);
        for (int t = PROMPT; t < T - 1; t++)
            assert_int_equal(fm_servecase_step(c, t, &err), FM_OK);
        assert_int_equal(fm_servecase_prefill(whole, &err), FM_OK);
        for (int i = 0; i < BATCH * c->config.H; i++)
            assert_true(fabsf(c->last[i] - whole->last[i]) <= (d ? 0.1f : 1e-4f));
        close_case(c);
        close_case(whole);
    }
}

/* What goes in together does not change what comes out. */
static void prompts_in_pieces_are_the_same(void **state)
{
    (void)state;
    struct fm_err err = {0};
    struct fm_servecase *c = open_case(&small), *pieces = calloc(1, sizeof *pieces);
    assert_int_equal(fm_servecase_shape(pieces, &small, &run, &err), FM_OK);
    assert_int_equal(pieces->rows, BATCH * PROMPT);
    pieces->rows = 2 * PROMPT;
    assert_int_equal(fm_servecase_fill(pieces, &err), FM_OK);
    assert_int_equal(fm_servecase_prefill(c, &err), FM_OK);
    assert_int_equal(fm_servecase_prefill(pieces, &err), FM_OK);
    for (int i = 0; i < BATCH * c->config.H; i++)
        assert_true(fabsf(c->last[i] - pieces->last[i]) <= 1e-4f);
    close_case(c);
    close_case(pieces);
}

static void the_budget_that_comes_back_gives_the_same_bits(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        struct fm_servebench_options o = small;
        struct fm_err err = {0};
        o.dtype = d ? "bf16" : "f32";
        struct fm_servecase *c = open_case(&o);
        size_t bytes = (size_t)(BATCH * c->config.H) * sizeof(float);
        float *first = malloc(bytes);
        assert_non_null(first);
        for (int i = 0; i < 3; i++) {
            c->budget = i == 1 ? 2 : 0;
            assert_int_equal(fm_servecase_prefill(c, &err), FM_OK);
            assert_int_equal(fm_servecase_step(c, PROMPT, &err), FM_OK);
            if (i == 0)
                memcpy(first, c->last, bytes);
            assert_int_equal(memcmp(first, c->last, bytes) == 0, i != 1);
        }
        free(first);
        close_case(c);
    }
}

/* The same prompts and steps on both, at every budget; without a GPU a sentence. */
static void a_gpu_computes_what_the_cpu_does(void **state)
{
    (void)state;
    struct fm_err err = {0};
    struct fm_clip_error error = {0};
    struct fm_run_options there = run;
    struct fm_servecase *gpu = calloc(1, sizeof *gpu), *c = open_case(&small);
    there.device = "cuda";
    assert_non_null(gpu);
    if (fm_clip_available(FM_CLIP_CUDA, &error) != FM_CLIP_OK) {
        assert_int_equal(fm_servecase_shape(gpu, &small, &there, &err), FM_EDEVICE);
        assert_non_null(strstr(err.text, error.text));
    } else {
        assert_int_equal(fm_servecase_shape(gpu, &small, &there, &err), FM_OK);
        assert_int_equal(fm_servecase_fill(gpu, &err), FM_OK);
        float *last = malloc((size_t)(BATCH * c->config.H) * sizeof *last);
        assert_non_null(last);
        for (int i = 0; i < 3 * T; i++) {
            int t = i % T;
            gpu->budget = c->budget = i / T;
            assert_int_equal(
                t < PROMPT ? fm_servecase_prefill(c, &err) : fm_servecase_step(c, t, &err), FM_OK);
            assert_int_equal(t < PROMPT ? fm_servecase_prefill(gpu, &err)
                                        : fm_servecase_step(gpu, t, &err),
                             FM_OK);
            assert_int_equal(fm_serve_gpu_last(gpu->gpu, last, &error), FM_CLIP_OK);
            for (int j = 0; j < BATCH * c->config.H; j++)
                assert_true(fabsf(last[j] - c->last[j]) <= 1e-4f);
        }
        free(last);
    }
    close_case(gpu);
    close_case(c);
}

/* Layers, shape and widths are a family's; budgets that mean one mask are one. */
static void masks_of_a_family_are_taken_layer_by_layer(void **state)
{
    (void)state;
    struct fm_err err = {0};
    struct fm_synth s;
    struct fm_bundle bundle = {0};
    struct fm_budgets masks = {0};
    struct fm_servebench_options o = small;
    assert_int_equal(fm_synth_parse(&s, "32,24,4,2,3,64,16", 0, &err), FM_OK);
    assert_int_equal(fm_synth_model(&s, scratch("model"), &run, &err), FM_OK);
    assert_int_equal(fm_synth_stage(scratch("model"), scratch("stage"), 1, &err), FM_OK);
    assert_int_equal(fm_stage_open(&bundle, scratch("stage"), FM_MEMBER_MASKS, &err), FM_OK);
    assert_int_equal(fm_budgets_open(&masks, &bundle, &err), FM_OK);
    o.shape = NULL;
    o.family = scratch("stage");
    o.budgets = "0,0.4,0.401,0.6";
    o.layers = 2;
    struct fm_servecase *c = open_case(&o);
    assert_true(c->config.H == 32 && c->config.I == 24 && c->config.E == 4 && c->config.K == 2);
    assert_true(c->config.L == 2 && c->model_layers == 3 && c->B == 3);
    assert_true(fabs(c->share[1] - 0.4) < 0.1 && fabs(c->share[2] - 0.6) < 0.1);
    for (int b = 0; b < 3; b++) {
        int mask = fm_masks_nearest(&masks.masks, &(struct fm_decimal){b ? 2 + 2 * b : 0, 10});
        const uint32_t *widths = fm_masks_widths(&masks.masks, mask);
        for (int i = 0; i < 2 * 4; i++)
            assert_int_equal(c->layer[i / 4].widths[b * 4 + i % 4], widths[i]);
    }
    close_case(c);
    o.layers = 4;
    c = calloc(1, sizeof *c);
    assert_int_equal(fm_servecase_shape(c, &o, &run, &err), FM_EUSAGE);
    close_case(c);
    fm_budgets_release(&masks);
    fm_bundle_close(&bundle);
}

static void random_floats(float *x, size_t n, uint64_t which)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)fm_rng_normal(which, FM_STREAM_BENCH, i);
}

/* The newest of n positions, over the cache, against the definition over all of them. */
static void attention_over_the_cache_is_the_definitions_last_row(void **state)
{
    (void)state;
    enum { S = 2, n = 37, Q = 6, G = 2, C = 10 };
    static float k[S * n * G * C], v[S * n * G * C], q[S * n * Q * C], o[S * n * Q * C];
    for (int d = 0; d < 2; d++) {
        struct fm_err err = {0};
        struct fm_serve_cache cache = {d ? FM_BF16 : FM_F32, n + 3, G, C, NULL, NULL};
        float newest[S * Q * C], got[S * Q * C];
        cache.k = fm_alloc(S * (n + 3) * G * C, 4, "keys", &err);
        cache.v = fm_alloc(S * (n + 3) * G * C, 4, "values", &err);
        assert_true(cache.k && cache.v);
        random_floats(k, S * n * G * C, 1);
        random_floats(v, S * n * G * C, 2);
        random_floats(q, S * n * Q * C, 3);
        fm_serve_store(&cache, k, v, 0, S, 0, n); /* rounds k and v */
        fm_ops_ref()->attention(o, q, k, v, NULL, S, n, Q, G, C, C, sqrt(C), 0);
        for (int s = 0; s < S; s++)
            memcpy(newest + s * Q * C, q + ((size_t)s * n + n - 1) * Q * C, sizeof newest / S);
        fm_serve_attend(got, newest, &cache, S, Q, n);
        for (int i = 0; i < S * Q * C; i++) {
            float want = o[((size_t)(i / (Q * C)) * n + n - 1) * Q * C + (size_t)(i % (Q * C))];
            assert_true(fabsf(got[i] - want) <= 1e-5f);
        }
        free(cache.k);
        free(cache.v);
    }
}

static void products_widen_their_weights(void **state)
{
    (void)state;
    enum { M = 131, H = 20 };
    static float x[300 * H], w[M * H], y[300 * M], want[300 * M];
    static uint16_t narrow[M * H];
    const struct fm_ops *ops;
    struct fm_err err = {0};
    assert_int_equal(fm_ops_cpu(&ops, FM_PRECISION_F32, &err), FM_OK);
    random_floats(x, 300 * H, 4);
    random_floats(w, M * H, 5);
    fm_dtype_from_f32(narrow, w, FM_BF16, M * H);
    fm_dtype_to_f32(w, narrow, FM_BF16, M * H);
    for (int N = 3; N <= 300; N += 297)
        for (int beta = 0; beta < 2; beta++) {
            random_floats(y, 300 * M, 6);
            memcpy(want, y, sizeof y);
            fm_serve_product(ops, y, x, narrow, FM_BF16, N, M, H, (float)beta);
            fm_ops_ref()->gemm(false, true, N, M, H, 1, fm_f32(x), H, fm_f32(w), H, (float)beta,
                               want, M);
            for (int i = 0; i < N * M; i++)
                assert_true(fabsf(y[i] - want[i]) <= 1e-4f);
        }
}

static void a_whole_measurement_has_every_figure(void **state)
{
    (void)state;
    struct fm_servebench s;
    struct fm_err err = {0};
    assert_int_equal(fm_servebench_run(&run, &small, false, &s, &err), FM_OK);
    assert_true(s.rows == 3 && s.layers == 3 && s.Q == 3 && s.G == 3 && s.C == 16);
    assert_int_equal(s.token_bytes, 3 * 2 * 3 * 16 * 4);
    assert_true(s.switched > 0 && s.held > 0);
    for (int b = 0; b < 3; b++) {
        const struct fm_servebench_row *r = &s.row[b];
        assert_true(r->prefill > 0 && r->decode > 0);
        assert_true(r->prefill_experts > 0 && r->prefill_experts < 1);
        assert_true(r->decode_experts > 0 && r->decode_experts < 1);
        assert_true(b ? r->budget > s.row[b - 1].budget : r->budget == 0);
        assert_true(b ? r->prefill_ideal > 1.1 && r->decode_ideal > 1.1
                      : r->prefill_ideal == 1 && r->decode_ideal == 1);
    }
    /* With budget 0 all channels stay; the last one alone frees what it removes. */
    assert_int_equal(s.row[0].freed, 0);
    double experts = 3.0 * 3 * 5 * 40 * 48 * 4;
    assert_true(fabs((double)s.row[2].freed / experts - s.row[2].budget) < 1e-9);
}

static void layers_are_those_that_fit(void **state)
{
    (void)state;
    struct fm_servebench s;
    struct fm_err err = {0};
    struct fm_run_options little = run;
    struct fm_servebench_options o = small;
    o.shape = "mixtral-8x7b";
    o.dtype = "bf16";
    o.layers = 0;
    little.memory = 20000000000;
    assert_int_equal(fm_servebench_run(&little, &o, true, &s, &err), FM_OK);
    assert_true(s.layers == 6 && s.model_layers == 32 && s.rows == 0);
    assert_true(s.bytes > 6 * 3ull * 2 * 8 * 4096 * 14336 && s.bytes < little.memory);
    assert_true(s.Q == 32 && s.G == 8 && s.C == 128);
    o.layers = 7;
    assert_int_equal(fm_servebench_run(&little, &o, true, &s, &err), FM_ENOMEM);
    err = (struct fm_err){0};
    o.layers = 33;
    assert_int_equal(fm_servebench_run(&little, &o, true, &s, &err), FM_EUSAGE);
    err = (struct fm_err){0};
    o = small;
    o.shape = "45,40,5,2";
    assert_int_equal(fm_servebench_run(&run, &o, true, &s, &err), FM_EUSAGE);
    err = (struct fm_err){0};
    o.shape = "moonlight";
    assert_int_equal(fm_servebench_run(&run, &o, true, &s, &err), FM_EUSAGE);
    assert_non_null(strstr(err.text, "latent attention"));
}

int main(void)
{
    struct fm_err err = {0};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_and_steps_are_the_engines_forward_at_every_budget),
        cmocka_unit_test(a_step_on_the_cache_is_the_end_of_a_longer_prompt),
        cmocka_unit_test(prompts_in_pieces_are_the_same),
        cmocka_unit_test(the_budget_that_comes_back_gives_the_same_bits),
        cmocka_unit_test(masks_of_a_family_are_taken_layer_by_layer),
        cmocka_unit_test(a_gpu_computes_what_the_cpu_does),
        cmocka_unit_test(attention_over_the_cache_is_the_definitions_last_row),
        cmocka_unit_test(products_widen_their_weights),
        cmocka_unit_test(a_whole_measurement_has_every_figure),
        cmocka_unit_test(layers_are_those_that_fit),
    };
    if (fm_pool_start(2, &err) != FM_OK)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fm_pool_stop();
    return failed;
}
