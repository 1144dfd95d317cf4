/*
 * Sweeps over the golden models for tests: a model with a sweep and its tokens, a visitor that
 * records the data of one lane's experts, and the loop over models and tables of operations.
 */
#ifndef FM_TESTS_SWEEPS_H
#define FM_TESTS_SWEEPS_H

#include "lib/base/pool.h"
#include "lib/engine/sweeping.h"
#include "lib/learn/recover.h"
#include "tests/unit/golden.h"
#include "tests/unit/models.h"
#include "tests/unit/test.h"

/* The table of operations that is tested. */
static const struct fm_ops *sweeps_ops;
static struct golden sweeps_golden;
static char sweeps_model[64];

static struct fm_err sweeps_err;

#define SWEEPS_TRY(call)                                                                           \
    do {                                                                                           \
        if ((call) != FM_OK) {                                                                     \
            printf("%s\n", sweeps_err.text);                                                       \
            fail();                                                                                \
        }                                                                                          \
    } while (0)

/* A model with a sweep, and the results of one run. */
struct sweeps {
    struct fm_model *model;
    const struct fm_config *c;
    struct fm_sweep *sweep;
    int32_t *order; /* the ranking in whose order it is read, or NULL */
    int32_t *ids;   /* tokens */
    int S, T;
    struct fm_measure measure[16];
};

/* What a visitor of one lane collects: sums for every expert, per slot until they are committed. */
struct sweeps_seen {
    const struct fm_config *c;
    const struct fm_ops *ops;
    const struct fm_adapter *adapter;
    int lane;
    double *slot_c;      /* (slots, E, I) */
    float *slot_grad;    /* (slots, floats of all layers) */
    float *w1, *w3, *w2; /* (E, I, H), (E, I, H), (E, H, I) of layer `watch` */
    int watch;
    double *c_sum; /* (M, E, I) */
    float *grad;   /* adapter gradients, laid out like its values */
    int last_batch, last_lane, commits;
};

static inline size_t sweeps_adapter_floats(const struct fm_adapter *a)
{
    return a->offset[(size_t)a->M * (size_t)a->E];
}

static inline void sweeps_see(void *self, const struct fm_expert_view *v)
{
    struct sweeps_seen *s = self;
    size_t I = (size_t)s->c->I, E = (size_t)s->c->E, H = (size_t)s->c->H, e = (size_t)v->expert;
    assert_true(v->n > 0 && v->width <= v->cap);
    if (v->lane != s->lane)
        return;
    double *c = s->slot_c + ((size_t)v->slot * E + e) * I;
    s->ops->channel_sums(c, v->h, fm_f32(v->dh), v->n, v->cap);
    if (s->adapter) {
        size_t at = s->adapter->offset[(size_t)v->layer * E + e];
        float *block = s->slot_grad + (size_t)v->slot * sweeps_adapter_floats(s->adapter);
        fm_recovery_experts.expert(s->adapter, s->ops, block + at, v);
    }
    const float *vx = v->x.data, *vh = v->h.data, *vdy = v->dy.data, *vdgu = v->dgu.data;
    for (size_t j = 0; s->w1 && v->layer == s->watch && j < I; j++)
        for (size_t h = 0; h < H; h++)
            for (size_t t = 0; t < (size_t)v->n; t++) {
                float x = vx[t * H + h], dy = vdy[t * H + h];
                s->w1[(e * I + j) * H + h] += vdgu[(t * I + j) * 2] * x;
                s->w3[(e * I + j) * H + h] += vdgu[(t * I + j) * 2 + 1] * x;
                s->w2[(e * H + h) * I + j] += vh[t * I + j] * dy;
            }
}

static inline void sweeps_commit(void *self, int l, int batch, int lane, int slot)
{
    struct sweeps_seen *s = self;
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
    size_t floats = sweeps_adapter_floats(s->adapter);
    float *block = s->slot_grad + (size_t)slot * floats;
    for (size_t i = 0; i < floats; i++)
        s->grad[i] += block[i];
    memset(block, 0, floats * sizeof *block);
}

static inline int sweeps_begin(void *self, int l, struct fm_err *e)
{
    struct sweeps_seen *s = self;
    (void)l, (void)e;
    s->commits = 0;
    return FM_OK;
}

static inline struct fm_visitor sweeps_visitor(struct sweeps_seen *seen)
{
    return (struct fm_visitor){
        .self = seen, .layer_begin = sweeps_begin, .expert = sweeps_see, .commit = sweeps_commit};
}

static inline void sweeps_seen_init(struct sweeps_seen *s, const struct sweeps *u,
                                    const struct fm_adapter *adapter)
{
    size_t n = (size_t)u->c->E * (size_t)u->c->I, slots = (size_t)fm_sweep_slots(u->sweep);
    *s = (struct sweeps_seen){.c = u->c, .ops = sweeps_ops, .adapter = adapter};
    s->slot_c = calloc(slots * n, sizeof *s->slot_c);
    s->c_sum = calloc((size_t)u->c->M * n, sizeof *s->c_sum);
    if (adapter) {
        s->slot_grad = calloc(slots * sweeps_adapter_floats(adapter), sizeof *s->slot_grad);
        s->grad = calloc(sweeps_adapter_floats(adapter), sizeof *s->grad);
    }
}

static inline void sweeps_seen_release(struct sweeps_seen *s)
{
    free(s->slot_c);
    free(s->c_sum);
    free(s->slot_grad);
    free(s->grad);
    free(s->w1);
    free(s->w3);
    free(s->w2);
}

static inline void sweeps_open(struct sweeps *u, bool ranked, const char *ids, int batches,
                               int lanes, uint64_t memory)
{
    size_t count = 0;
    *u = (struct sweeps){0};
    SWEEPS_TRY(fm_model_open(&u->model, sweeps_model, memory, &sweeps_err));
    u->c = fm_model_config(u->model);
    u->ids = golden_read(&sweeps_golden, ids, FM_I32, &count);
    u->T = (int)fm_safetensors_find(&sweeps_golden.st, ids)->shape[1];
    u->S = (int)(count / (size_t)u->T);
    if (ranked) {
        u->order = golden_read(&sweeps_golden, "rank.order", FM_I32, NULL);
        fm_model_rank(u->model, u->order);
    }
    struct fm_sweep_options options = {.memory = memory};
    SWEEPS_TRY(fm_sweep_new(&u->sweep, u->model, sweeps_ops, batches, u->S * u->T, u->T, lanes,
                            &options, &sweeps_err));
}

static inline void sweeps_close(struct sweeps *u)
{
    fm_sweep_free(u->sweep);
    fm_model_close(u->model);
    free(u->order);
    free(u->ids);
}

/* One batch of all sequences. */
static inline struct fm_batch sweeps_whole(const struct sweeps *u)
{
    return (struct fm_batch){u->ids, u->S, u->T};
}

static inline size_t sweeps_boundary(const struct sweeps *u)
{
    return (size_t)u->S * (size_t)u->T * (size_t)u->c->H;
}

static inline void sweeps_open_adapter(struct fm_adapter *a, const struct sweeps *u)
{
    size_t n = 0;
    uint32_t *widths = golden_read(&sweeps_golden, "lora.widths", FM_I32, NULL);
    float *rank_alpha = golden_read(&sweeps_golden, "lora.rank_alpha", FM_F32, NULL);
    float *values = golden_read(&sweeps_golden, "lora.values", FM_F32, &n);
    SWEEPS_TRY(fm_adapter_init(a, u->c->M, u->c->E, u->c->H, (int)rank_alpha[0], rank_alpha[1],
                               widths, &sweeps_err));
    assert_int_equal(n, sweeps_adapter_floats(a));
    memcpy(a->values, values, n * sizeof *values);
    free(widths);
    free(rank_alpha);
    free(values);
}

static inline int sweeps_run_on(const char *model, const struct fm_ops *ops, int (*run)(void))
{
    char path[96];
    sweeps_ops = ops;
    snprintf(sweeps_model, sizeof sweeps_model, "golden/%s", model);
    snprintf(path, sizeof path, "%s/golden.safetensors", sweeps_model);
    printf("== %s, %s\n", model, ops->name);
    golden_open(&sweeps_golden, path);
    int failed = run();
    golden_close(&sweeps_golden);
    return failed;
}

static inline int sweeps_tests(void)
{
    return tests_run(NULL, NULL);
}

/* Run all tests on every odd model, with the CPU's table and that of the definition, and on
 * tiny-mixtral with the CPU's. */
static inline int sweeps_run(void)
{
    const struct fm_ops *cpu = NULL;
    if (fm_pool_start(2, &sweeps_err) || fm_ops_cpu(&cpu, FM_PRECISION_F32, &sweeps_err))
        golden_die(&sweeps_err);
    int failed = sweeps_run_on("tiny-mixtral", cpu, sweeps_tests);
    for (size_t i = 0; i < MODELS; i++)
        failed += sweeps_run_on(odd_models[i], fm_ops_ref(), sweeps_tests) +
                  sweeps_run_on(odd_models[i], cpu, sweeps_tests);
    fm_pool_stop();
    return failed ? 1 : 0;
}

#endif
