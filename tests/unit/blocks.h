/*
 * A single attention block, for tests: its output from random weights, its backward compared with
 * central differences along random directions, and the fast table compared with the definition.  T
 * and H are primes.  The block owns the weights that a test draws.
 */
#ifndef FM_TESTS_BLOCKS_H
#define FM_TESTS_BLOCKS_H

#include <math.h>

#include "lib/base/rng.h"
#include "lib/block/pass.h"
#include "tests/unit/owned.h"
#include "tests/unit/relaxed.h"
#include "tests/unit/test.h"

enum { S = 2, T = 11, N = S * T, H = 19, FLOATS = N * H, GUARD = 64 };

struct block {
    struct fm_config c;
    struct fm_layer layer;
    int l;
    float cosines[T * 6], sines[T * 6];
    float *drawn[16]; /* the weights */
    int count;
};

/* *c = `sizes` with the values that its attention reads from `keys`, members of config.json
 * (relaxed JSON). */
static inline int block_read(struct fm_config *c, const struct fm_config *sizes,
                             const void *options, const char *keys, struct fm_err *err)
{
    char text[1024];
    cJSON *json = NULL;
    *c = *sizes;
    text[0] = '{';
    strcat(relaxed_json(text + 1, sizeof text - 2, keys), "}");
    assert_int_equal(fm_json_tree(&json, text, strlen(text), err), FM_OK);
    const struct fm_keys k = {.json = json, .family = "test"};
    int rc = c->attention->read(c, options, &k, err);
    cJSON_Delete(json);
    return rc;
}

static inline struct fm_config block_must(const struct fm_config *sizes, const void *options,
                                          const char *keys)
{
    struct fm_config c;
    struct fm_err err = {0};
    if (block_read(&c, sizes, options, keys, &err))
        fail_msg("%s: %s", keys, err.text);
    return owned_config(&c);
}

static inline void block_expect(const struct fm_config *sizes, const void *options,
                                const char *keys, int code, const char *part)
{
    struct fm_config c;
    struct fm_err err = {0};
    int rc = block_read(&c, sizes, options, keys, &err);
    fm_config_release(&c);
    if (rc != code || !strstr(err.text, part))
        fail_msg("%s: status %d, \"%s\"", keys, rc, err.text);
}

static inline float *draw(size_t n, float size)
{
    static uint64_t at;
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = size * (float)fm_rng_normal(17, FM_STREAM_BENCH, at++);
    return x;
}

static inline float *block_draw(struct block *b, size_t n, float size)
{
    assert_in_range(b->count, 0, sizeof b->drawn / sizeof *b->drawn - 1);
    return b->drawn[b->count++] = draw(n, size);
}

static inline void block_release(struct block *b)
{
    while (b->count > 0)
        free(b->drawn[--b->count]);
}

static inline struct fm_pass block_pass(struct block *b, const struct fm_ops *ops)
{
    return (struct fm_pass){.ops = ops,
                            .config = &b->c,
                            .layer = &b->layer,
                            .l = b->l,
                            .cos = b->cosines,
                            .sin = b->sines,
                            .positions = T,
                            .S = S,
                            .T = T,
                            .parts = 1};
}

/* y = x + attention(x); if dy is given, dx from it.  Inner values are kept in as much memory as
 * the block reports. */
static inline void block_compute(struct block *b, const struct fm_ops *ops, float *y,
                                 const float *x, float *dx, const float *dy)
{
    const struct fm_attention *attention = fm_attention_of(&b->c, b->l);
    struct fm_pass pass = block_pass(b, ops);
    struct fm_mark mark = fm_scratch_mark();
    size_t floats = fm_attention_floats(&b->c, b->l, N);
    float *inner = fm_scratch_floats(floats + GUARD);
    memset(inner + floats, 0xAB, GUARD * sizeof *inner);
    memcpy(y, x, FLOATS * sizeof *y);
    attention->forward(&pass, inner, y, x);
    if (dy)
        attention->backward(&pass, inner, dx, dy);
    for (size_t i = 0; i < GUARD * sizeof *inner; i++)
        assert_int_equal(((unsigned char *)(inner + floats))[i], 0xAB);
    fm_scratch_release(mark);
}

static inline double block_dot(const float *a, const float *b)
{
    double sum = 0;
    for (int i = 0; i < FLOATS; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* <r, attention(x + step v)>, without the residual. */
static inline double block_probe(struct block *b, const float *x, const float *v, float step,
                                 const float *r)
{
    float moved[FLOATS], y[FLOATS];
    for (int i = 0; i < FLOATS; i++)
        moved[i] = x[i] + step * v[i];
    block_compute(b, fm_ops_ref(), y, moved, NULL, NULL);
    return block_dot(r, y) - block_dot(r, moved);
}

/* Compare the backward with 12 directional derivatives.  With float32, their relative error may be
 * `most` at this step; a mistake in one path of the gradient causes 10 % or more. */
static inline void block_check_backward(struct block *b, float step, double most)
{
    float *x = draw(FLOATS, 1), *r = draw(FLOATS, 1), dx[FLOATS], y[FLOATS];
    double length = 0, off = 0;
    block_compute(b, fm_ops_ref(), y, x, dx, r);
    for (int i = 0; i < 12; i++) {
        float *v = draw(FLOATS, 1);
        double up = block_probe(b, x, v, step, r), down = block_probe(b, x, v, -step, r);
        double slope = (up - down) / (2 * step), miss = slope - block_dot(dx, v);
        length += slope * slope;
        off += miss * miss;
        free(v);
    }
    print_message("finite differences: relative error %.2g\n", sqrt(off / length));
    assert_true(sqrt(off / length) <= most);
    free(x);
    free(r);
}

/* Largest difference, relative to the largest value of b. */
static inline double block_worst(const float *a, const float *b)
{
    double most = 0, largest = 0;
    for (int i = 0; i < FLOATS; i++) {
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
        largest = fmax(largest, fabs((double)b[i]));
    }
    return most / largest;
}

/* Check the fast table against the definition: the output within 1e-5, the gradient within
 * `most`. */
static inline void block_check_cpu(struct block *b, double most)
{
    const struct fm_ops *cpu = NULL;
    struct fm_err err = {0};
    assert_ok(fm_ops_cpu(&cpu, FM_PRECISION_F32, &err));
    float *x = draw(FLOATS, 1), *r = draw(FLOATS, 1);
    float y[FLOATS], dx[FLOATS], want[FLOATS], dwant[FLOATS];
    block_compute(b, cpu, y, x, dx, r);
    block_compute(b, fm_ops_ref(), want, x, dwant, r);
    assert_true(block_worst(y, want) <= 1e-5 && block_worst(dx, dwant) <= most);
    free(x);
    free(r);
}

#endif
