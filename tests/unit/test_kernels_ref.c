/*
 * The definitions: forwards against closed forms, backwards against finite differences.
 *
 * Differences are the four-point formula at step 2^-5, error about h^4 = 1e-6 times a fifth
 * derivative; outputs are rounded to float, which adds about 1e-7 / h = 3e-6.  Both relative to
 * values of order 1, hence the tolerance of 1e-4 of the largest gradient.
 */
#include "tests/unit/kernels.h"

#define STEP 0x1p-5f
#define TOL_DIFFERENCE 1e-4

/* The scalar whose gradient is tested. */
struct scalar {
    double (*value)(const struct scalar *s);
    float *x[4];    /* its arguments */
    const float *r; /* weights of the outputs */
    float *y, *aux; /* outputs, more outputs */
    const void *more;
    int n[8];
};

static double weighted(const float *y, const float *r, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)y[i] * r[i];
    return sum;
}

static double value_at(const struct scalar *s, float *x, float step)
{
    float kept = *x;
    *x = kept + step;
    double value = s->value(s);
    *x = kept;
    return value;
}

static void expect_gradient(const struct scalar *s, int arg, const float *dx, size_t n,
                            const char *what)
{
    float *difference = floats(n);
    for (size_t i = 0; i < n; i++) {
        float *x = &s->x[arg][i];
        double near = value_at(s, x, STEP) - value_at(s, x, -STEP);
        double far = value_at(s, x, 2 * STEP) - value_at(s, x, -2 * STEP);
        difference[i] = (float)((8 * near - far) / (12 * (double)STEP));
    }
    expect_close(dx, difference, n, TOL_DIFFERENCE, what);
}

static const struct fm_ops *ref(void)
{
    return fm_ops_ref();
}

static void gemm_multiplies_all_four_transposes(void **state)
{
    (void)state;
    /* [1 2; 3 4; 5 6] [1 0 2; 0 1 3] = [1 2 8; 3 4 18; 5 6 28] */
    const float a[] = {1, 2, 3, 4, 5, 6}, at[] = {1, 3, 5, 2, 4, 6};
    const float b[] = {1, 0, 2, 0, 1, 3}, bt[] = {1, 0, 0, 1, 2, 3};
    const float want[] = {1, 2, 8, 3, 4, 18, 5, 6, 28};
    for (int t = 0; t < 4; t++) {
        bool ta = t & 1, tb = t & 2;
        float *c = floats(9);
        for (int i = 0; i < 9; i++)
            c[i] = NAN; /* must not be read with beta 0 */
        ref()->gemm(ta, tb, 3, 3, 2, 1, fm_f32(ta ? at : a), ta ? 3 : 2, fm_f32(tb ? bt : b),
                    tb ? 2 : 3, 0, c, 3);
        expect_close(c, want, 9, 0, "c");
        ref()->gemm(ta, tb, 3, 3, 2, 2, fm_f32(ta ? at : a), ta ? 3 : 2, fm_f32(tb ? bt : b),
                    tb ? 2 : 3, 1, c, 3);
        for (int i = 0; i < 9; i++)
            c[i] /= 3;
        expect_close(c, want, 9, 1e-6, "c = 2 a b + c");
    }
}

static double norm_value(const struct scalar *s)
{
    ref()->norm(fm_to_f32(s->y), s->aux, s->x[0], s->x[1], s->x[2], s->n[0], s->n[1], 1e-5f);
    return weighted(s->y, s->r, (size_t)s->n[0] * s->n[1]);
}

static void norm_has_unit_mean_square(void **state)
{
    (void)state;
    enum { N = 3, H = 17 };
    float *x = normals(N * H, 3), *w = floats(H), *y = floats(N * H), *rstd = floats(N);
    for (int i = 0; i < H; i++)
        w[i] = 1;
    ref()->norm(fm_to_f32(y), rstd, x, w, NULL, N, H, 0);
    for (int t = 0; t < N; t++)
        expect_near(weighted(y + t * H, y + t * H, H) / H, 1, 1e-6, "mean square");
    ref()->norm(fm_to_f32(y), rstd, x, w, NULL, N, H, 1e6f); /* eps outweighs x */
    expect_near(rstd[0], 1e-3, 1e-6, "rstd");
}

static void norm_with_a_bias_has_its_mean_and_unit_variance(void **state)
{
    (void)state;
    enum { N = 3, H = 17 };
    float *x = normals(N * H, 3), *w = floats(H), *b = floats(H), *y = floats(N * H);
    float *rstd = floats(N);
    for (int i = 0; i < H; i++)
        w[i] = 1, b[i] = 0.5f;
    for (int i = 0; i < N * H; i++)
        x[i] += 100; /* a mean that may not drown the rest */
    ref()->norm(fm_to_f32(y), rstd, x, w, b, N, H, 0);
    for (int t = 0; t < N; t++) {
        expect_near(weighted(y + t * H, w, H) / H, 0.5, 1e-6, "mean");
        expect_near(weighted(y + t * H, y + t * H, H) / H, 1.25, 1e-5, "mean square");
    }
}

static void check_norm_back(bool bias)
{
    enum { N = 3, H = 17 };
    struct scalar s = {.value = norm_value, .n = {N, H}};
    s.x[0] = normals(N * H, 1), s.x[1] = normals(H, 1), s.r = normals(N * H, 1);
    s.x[2] = bias ? normals(H, 1) : NULL;
    s.y = floats(N * H), s.aux = floats(N);
    s.value(&s);
    float *dx = floats(N * H);
    for (int i = 0; i < N * H; i++)
        dx[i] = 1;
    ref()->norm_back(dx, s.r, s.x[0], s.x[1], s.x[2], s.aux, N, H);
    for (int i = 0; i < N * H; i++)
        dx[i] -= 1;
    expect_gradient(&s, 0, dx, N * H, "dx");
}

static void norm_back_adds_the_gradient(void **state)
{
    (void)state;
    check_norm_back(false);
    check_norm_back(true);
}

/* Row 4 is position 1; the angle of element 2 of head 1, whose partner is `other` behind it. */
static void check_rope(int R, bool pairs, int first, int angle, int other)
{
    enum { N = 6, T = 3, HEADS = 2, C = 10 };
    float *x = normals(N * HEADS * C, 1), *y = copied(x, N * HEADS * C);
    float *cosines = floats(T * R / 2), *sines = floats(T * R / 2);
    int at = (4 * HEADS + 1) * C + first + 2;
    for (int i = 0; i < T * R / 2; i++) {
        cosines[i] = cosf((float)i);
        sines[i] = sinf((float)i);
    }
    ref()->rope(y + first, cosines, sines, N, T, HEADS, C, R, pairs, 1);
    expect_near(y[at], x[at] * cos(angle) - x[at + other] * sin(angle), 1e-6, "one");
    expect_near(y[at + other], x[at + other] * cos(angle) + x[at] * sin(angle), 1e-6, "its other");
    for (int i = 0; i < N * HEADS * C; i++)
        if (i % C < first || i % C >= first + R)
            assert_true(y[i] == x[i]);
    ref()->rope(y + first, cosines, sines, N, T, HEADS, C, R, pairs, -1);
    expect_close(y, x, N * HEADS * C, 1e-6, "x turned back");
}

static void rope_turns_by_position_and_back(void **state)
{
    (void)state;
    check_rope(10, false, 0, 5 + 2, 5);
    check_rope(6, false, 0, 3 + 2, 3);
    check_rope(6, true, 4, 3 + 1, 1);
    check_rope(10, true, 0, 5 + 1, 1);
}

/* n: S T Q G C D window; scores are divided by 1.5 sqrt(C) where D differs */
static double root_of(const int *n)
{
    return sqrt(n[4]) * (n[4] == n[5] ? 1 : 1.5);
}

static double attention_value(const struct scalar *s)
{
    const int *n = s->n;
    ref()->attention(s->y, s->x[0], s->x[1], s->x[2], n[0], n[1], n[2], n[3], n[4], n[5],
                     root_of(n), n[6]);
    return weighted(s->y, s->r, (size_t)n[0] * n[1] * n[2] * n[5]);
}

static void check_attention_back(int S, int T, int Q, int G, int C, int D, int window)
{
    size_t nq = (size_t)S * T * Q * C, nk = (size_t)S * T * G * C;
    size_t no = (size_t)S * T * Q * D, nv = (size_t)S * T * G * D;
    struct scalar s = {.value = attention_value, .n = {S, T, Q, G, C, D, window}};
    s.x[0] = normals(nq, 1), s.x[1] = normals(nk, 1), s.x[2] = normals(nv, 1);
    s.y = floats(no), s.r = normals(no, 1);
    s.value(&s);
    float *dq = floats(nq), *dk = floats(nk), *dv = floats(nv);
    ref()->attention_back(dq, dk, dv, s.r, s.y, s.x[0], s.x[1], s.x[2], S, T, Q, G, C, D,
                          root_of(s.n), window);
    expect_gradient(&s, 0, dq, nq, "dq");
    expect_gradient(&s, 1, dk, nk, "dk");
    expect_gradient(&s, 2, dv, nv, "dv");
}

static void attention_back_is_the_gradient(void **state)
{
    (void)state;
    check_attention_back(2, 5, 6, 2, 10, 10, 0);
    check_attention_back(1, 7, 3, 3, 4, 4, 3);
    check_attention_back(1, 1, 2, 1, 2, 2, 0);
    check_attention_back(2, 5, 4, 2, 7, 3, 0);
    check_attention_back(1, 6, 2, 2, 4, 9, 4);
}

static void attention_sees_the_past_inside_the_window(void **state)
{
    (void)state;
    enum { S = 2, T = 6, C = 4 };
    size_t n = S * T * C;
    float *q = normals(n, 1), *k = floats(n), *v = normals(n, 1), *o = floats(n);
    ref()->attention(o, q, v, v, S, T, 1, 1, C, C, 2, 1);
    expect_close(o, v, n, 0, "o where only the row itself is seen");
    memset(k, 0, n * sizeof *k); /* all keys alike: the mean of what is seen */
    for (int window = 0; window < 4; window++) {
        ref()->attention(o, q, k, v, S, T, 1, 1, C, C, 2, window);
        for (int t = 0; t < S * T; t++) {
            int pos = t % T, seen = window && window < pos + 1 ? window : pos + 1;
            double sum = 0;
            for (int j = 0; j < seen; j++)
                sum += v[(t - j) * C];
            expect_near(o[t * C], sum / seen, 1e-6, "mean of the values seen");
        }
    }
}

/* n: N Q A R D; x: kv, r; the weights of k are r's beginning. */
static double join_keys_value(const struct scalar *s)
{
    const int *n = s->n;
    size_t nk = (size_t)n[0] * n[1] * (n[2] + n[3]), nv = (size_t)n[0] * n[1] * n[4];
    ref()->join_keys(s->y, s->y + nk, s->x[0], s->x[1], n[0], n[1], n[2], n[3], n[4]);
    return weighted(s->y, s->r, nk + nv);
}

static void join_keys_back_is_the_gradient(void **state)
{
    (void)state;
    enum { N = 3, Q = 2, A = 5, R = 4, D = 3 };
    size_t nk = N * Q * (A + R), nv = N * Q * D, nkv = N * Q * (A + D);
    struct scalar s = {.value = join_keys_value, .n = {N, Q, A, R, D}};
    s.x[0] = normals(nkv, 1), s.x[1] = normals(N * R, 1), s.r = normals(nk + nv, 1);
    s.y = floats(nk + nv);
    float *dkv = floats(nkv), *dr = floats(N * R);
    ref()->join_keys_back(dkv, dr, s.r, s.r + nk, N, Q, A, R, D);
    expect_gradient(&s, 0, dkv, nkv, "dkv");
    expect_gradient(&s, 1, dr, N * R, "dr");
}

static void route_takes_the_largest_and_lower_index_on_ties(void **state)
{
    (void)state;
    const float logits[] = {1, 3, 3, 2, -1, /* second row */ 0, 0, 0, 0, 0};
    int32_t *ids = array(6, sizeof *ids);
    float *w = floats(6);
    ref()->route(ids, w, logits, 2, 5, 3);
    const int32_t want[] = {1, 2, 3, 0, 1, 2};
    assert_memory_equal(ids, want, sizeof want);
    double z = 2 + exp(-1);
    const float expected[] = {(float)(1 / z), (float)(1 / z), (float)(exp(-1) / z),
                              1.f / 3,        1.f / 3,        1.f / 3};
    expect_close(w, expected, 6, 1e-6, "weights");
}

/* n: N E K */
static double route_value(const struct scalar *s)
{
    const int *n = s->n;
    int32_t ids[64];
    ref()->route(ids, s->y, s->x[0], n[0], n[1], n[2]);
    return weighted(s->y, s->r, (size_t)n[0] * n[2]);
}

static void route_back_is_the_gradient(void **state)
{
    (void)state;
    enum { N = 3, E = 5, K = 2 };
    struct scalar s = {.value = route_value, .n = {N, E, K}};
    float *x = s.x[0] = floats(N * E);
    for (int i = 0; i < N * E; i++) /* further apart than a step, so the choice stays */
        x[i] = (float)((i * 7) % E) * 0.25f;
    s.y = floats(N * K), s.r = normals(N * K, 1);
    int32_t *ids = array(N * K, sizeof *ids);
    float *w = floats(N * K), *dlogits = floats(N * E);
    ref()->route(ids, w, x, N, E, K);
    ref()->route_back(dlogits, s.r, ids, w, N, E, K);
    expect_gradient(&s, 0, dlogits, N * E, "dlogits");
}

static double route_raw_value(const struct scalar *s)
{
    const int *n = s->n;
    int32_t ids[64];
    float p[64];
    memcpy(p, s->x[0], (size_t)(n[0] * n[1]) * sizeof *p);
    ref()->route_raw(ids, s->y, p, n[0], n[1], n[2]);
    return weighted(s->y, s->r, (size_t)n[0] * n[2]);
}

static void route_raw_gives_probabilities_and_their_gradient(void **state)
{
    (void)state;
    enum { N = 3, E = 5, K = 2 };
    struct scalar s = {.value = route_raw_value, .n = {N, E, K}};
    float *x = s.x[0] = floats(N * E);
    for (int i = 0; i < N * E; i++)
        x[i] = (float)((i * 7) % E) * 0.25f;
    s.y = floats(N * K), s.r = normals(N * K, 1);
    int32_t *ids = array(N * K, sizeof *ids), *same = array(N * K, sizeof *same);
    float *w = floats(N * K), *p = copied(x, N * E), *dlogits = floats(N * E);
    ref()->route_raw(ids, w, p, N, E, K);
    for (int t = 0; t < N; t++) {
        double sum = 0;
        for (int e = 0; e < E; e++)
            sum += p[t * E + e];
        expect_near(sum, 1, 1e-6, "sum of probabilities");
        for (int i = 0; i < K; i++)
            assert_true(w[t * K + i] == p[t * E + ids[t * K + i]]);
    }
    ref()->route_raw_back(dlogits, s.r, ids, p, N, E, K);
    expect_gradient(&s, 0, dlogits, N * E, "dlogits");
    ref()->route(same, w, x, N, E, K);
    assert_memory_equal(ids, same, N * K * sizeof *ids);
}

/* Scores 1/2, 3/4, ... of logits 0, ln 3, ...; eight experts in four groups. */
static void scored_routes_choose_with_the_bias_and_weigh_without(void **state)
{
    (void)state;
    enum { E = 8, K = 3 };
    const float z[E] = {0, 0, 1.0986123f, -1.0986123f, 0, 0, 1.0986123f, 0};
    const float bias[E] = {0, .75f, 0, 0, .5f, .125f, 0, .0625f};
    const struct fm_route_rule rules[] = {
        {.sigmoid = true, .groups = 1, .kept = 1, .group_sum = 2, .scale = 1},
        {.sigmoid = true, .groups = 4, .kept = 2, .group_sum = 2, .scale = 2, .renormalised = true},
        {.sigmoid = true,
         .groups = 4,
         .kept = 2,
         .group_sum = 1,
         .scale = 1,
         .renormalised = true,
         .least = 4},
        {.sigmoid = false, .groups = 4, .kept = 3, .group_sum = 1, .scale = 16}};
    /* 1.25 of expert 1, 1 of 4, .75 of 2 and 6.  Groups' sums: 1.75, 1, 1.625, 1.3125; best: 1.25,
     * .75, 1, .75.  Probabilities are alike but for experts 2, 3 and 6; a tie takes the lower. */
    const int32_t want[][K] = {{1, 4, 2}, {1, 4, 5}, {1, 4, 5}, {2, 6, 0}};
    const float weights[][K] = {{.5f, .5f, .75f},
                                {2 / 3.f, 2 / 3.f, 2 / 3.f},
                                {.125f, .125f, .125f},
                                {16 * 9 / 34.f, 16 * 9 / 34.f, 16 * 3 / 34.f}};
    for (int i = 0; i < 4; i++) {
        float *s = copied(z, E), *w = floats(K);
        int32_t *ids = array(K, sizeof *ids);
        ref()->route_scored(ids, w, s, i < 3 ? bias : NULL, &rules[i], 1, E, K);
        assert_memory_equal(ids, want[i], sizeof want[i]);
        expect_close(w, weights[i], K, 1e-6, "weights");
    }
}

/* n: N E K; more: the rule */
static double route_scored_value(const struct scalar *s)
{
    int32_t ids[64];
    float p[64];
    memcpy(p, s->x[0], (size_t)(s->n[0] * s->n[1]) * sizeof *p);
    ref()->route_scored(ids, s->y, p, s->aux, s->more, s->n[0], s->n[1], s->n[2]);
    return weighted(s->y, s->r, (size_t)s->n[0] * s->n[2]);
}

static void scored_routes_have_their_gradient(void **state)
{
    (void)state;
    enum { N = 3, E = 6, K = 2 };
    /* No step changes what is chosen. */
    const float logits[N * E] = {2,    -1,  0,     1, -3, -2,   -2, -.5f, 1.5f,
                                 2.5f, .5f, -1.5f, 3, 0,  1.5f, -1, -3,   2};
    for (int i = 0; i < 32; i++) {
        struct fm_route_rule rule = {.sigmoid = i & 1,
                                     .renormalised = i & 2,
                                     .least = i & 4 ? 3 : 0,
                                     .eps = i & 8 ? .5f : 0,
                                     .groups = i & 16 ? 3 : 1,
                                     .kept = 2,
                                     .group_sum = 2,
                                     .scale = 2.5f};
        struct scalar s = {.value = route_scored_value, .n = {N, E, K}, .more = &rule};
        float *x = s.x[0] = copied(logits, N * E), *bias = s.aux = normals(E, 0.01);
        s.y = floats(N * K), s.r = normals(N * K, 1);
        int32_t *ids = array(N * K, sizeof *ids);
        float *w = floats(N * K), *p = copied(x, N * E), *dlogits = floats(N * E);
        ref()->route_scored(ids, w, p, bias, &rule, N, E, K);
        ref()->route_scored_back(dlogits, s.r, ids, p, &rule, N, E, K);
        expect_gradient(&s, 0, dlogits, N * E, "dlogits");
    }
}

static void a_row_is_added_to_all_rows(void **state)
{
    (void)state;
    float x[] = {1, 2, 3, 4, 5, 6};
    const float b[] = {10, -1, 0.5f}, want[] = {11, 1, 3.5f, 14, 4, 6.5f};
    ref()->add_rows(x, b, 2, 3);
    expect_close(x, want, 6, 0, "x + b");
}

/* As torch.clamp: at a bound the gradient passes. */
static void clamped_values_have_no_gradient(void **state)
{
    (void)state;
    const float x[] = {-3, -2, -1, 2, 2.5f, NAN}, want[] = {-2, -2, -1, 2, 2};
    const float passed[] = {0, 1, 1, 1, 0};
    float y[6], dx[6] = {1, 1, 1, 1, 1, 1};
    memcpy(y, x, sizeof x);
    ref()->clamp(y, 2, 6);
    ref()->clamp_back(dx, x, 2, 6);
    expect_close(y, want, 5, 0, "y");
    expect_close(dx, passed, 5, 0, "dx");
    assert_true(isnan(y[5]));
}

/* n: N I; x: h, u */
static double gate_rows_value(const struct scalar *s)
{
    memcpy(s->y, s->x[0], (size_t)(s->n[0] * s->n[1]) * sizeof *s->y);
    ref()->gate_rows(s->y, s->aux, s->x[1], s->n[0], s->n[1]);
    return weighted(s->y, s->r, (size_t)s->n[0] * s->n[1]);
}

static void gate_rows_back_is_the_gradient(void **state)
{
    (void)state;
    enum { N = 4, I = 7 };
    struct scalar s = {.value = gate_rows_value, .n = {N, I}};
    s.x[0] = normals(N * I, 1), s.x[1] = normals(N, 2);
    s.y = floats(N * I), s.aux = floats(N), s.r = normals(N * I, 1);
    float *h = copied(s.x[0], N * I), *share = floats(N), *du = floats(N);
    float *dh = copied(s.r, N * I);
    ref()->gate_rows(h, share, s.x[1], N, I);
    ref()->gate_rows_back(dh, du, h, share, N, I);
    expect_gradient(&s, 0, dh, N * I, "dh");
    expect_gradient(&s, 1, du, N, "du");
}

static void sparsemixer_weighs_among_those_near_the_largest(void **state)
{
    (void)state;
    enum { N = 5, E = 4 };
    const float logits[N * E] = {4,  3.75f, 1,   -2,  /* 1/16 is near; 12/15 of the second is not */
                                 0,  0,     0,   0,   /* 0/0 is near, and the lower index first */
                                 -4, -1,    -8,  -2,  /* quotients of 3/4 7/8 1/2, then 1/2 3/4 */
                                 1,  -7,    -7,  .5f, /* 1/2 is the threshold itself: near */
                                 -1, 2,     .9f, -2};
    int32_t *ids = array(2 * N, sizeof *ids);
    float *w = floats(2 * N);
    ref()->sparsemixer(ids, w, logits, N, E, 0.5f);
    const int32_t want[] = {0, 1, 0, 1, 1, 3, 0, 3, 1, 2};
    assert_memory_equal(ids, want, sizeof want);
    const double weights[] = {
        1 / (1 + exp(-.25)), 1, 1. / 4, 1. / 3, 1 / (1 + exp(-1)), 1 / (1 + exp(-2)),
        1 / (1 + exp(-.5)),  1, 1,      1};
    for (int i = 0; i < 2 * N; i++)
        expect_near(w[i], weights[i], 1e-6, "weight");
}

static double sparsemixer_value(const struct scalar *s)
{
    int32_t ids[8];
    ref()->sparsemixer(ids, s->y, s->x[0], s->n[0], s->n[1], 0.5f);
    return weighted(s->y, s->r, 2 * (size_t)s->n[0]);
}

static void sparsemixer_back_is_the_gradient(void **state)
{
    (void)state;
    enum { N = 2, E = 5 };
    /* No step changes what is chosen or near. */
    const float logits[N * E] = {2, 1.5f, .25f, -1, 1.75f, -1.25f, -2.5f, -4, -.5f, -.75f};
    struct scalar s = {.value = sparsemixer_value, .n = {N, E}};
    s.x[0] = copied(logits, N * E), s.y = floats(2 * N), s.r = normals(2 * N, 1);
    int32_t *ids = array(2 * N, sizeof *ids);
    float *w = floats(2 * N), *dlogits = floats(N * E);
    ref()->sparsemixer(ids, w, logits, N, E, 0.5f);
    ref()->sparsemixer_back(dlogits, s.r, ids, w, logits, N, E, 0.5f);
    expect_gradient(&s, 0, dlogits, N * E, "dlogits");
    assert_true(dlogits[2] == 0 && dlogits[3] == 0 && dlogits[7] == 0);
    assert_true(dlogits[1] != 0 && dlogits[5] != 0);
}

static void gather_and_combine_move_rows(void **state)
{
    (void)state;
    enum { H = 3 };
    const float x[] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, scale[] = {2, -1, 0.5f, 1};
    const int32_t rows[] = {2, 0, 2, 1};
    float *y = floats(4 * H), *sum = floats(2 * H);
    ref()->gather(fm_to_f32(y), fm_f32(x), rows, NULL, 4, H);
    const float plain[] = {7, 8, 9, 1, 2, 3, 7, 8, 9, 4, 5, 6};
    expect_close(y, plain, 4 * H, 0, "rows");
    ref()->gather(fm_to_f32(y), fm_f32(x), rows, scale, 4, H);
    const float scaled[] = {14, 16, 18, -1, -2, -3, 3.5f, 4, 4.5f, 4, 5, 6};
    expect_close(y, scaled, 4 * H, 0, "scaled rows");
    const int32_t where[] = {0, 2, 1, 0};
    const float weights[] = {1, 10, 2, 3}, start[] = {1, 1, 1, 0, 0, 0};
    memcpy(sum, start, sizeof start);
    ref()->combine(sum, x, where, weights, 2, 2, H);
    const float want[] = {72, 83, 94, 11, 16, 21};
    expect_close(sum, want, 2 * H, 0, "sums");
    memcpy(sum, start, sizeof start);
    ref()->combine(sum, x, where, NULL, 2, 2, H);
    const float unweighted[] = {9, 11, 13, 5, 7, 9};
    expect_close(sum, unweighted, 2 * H, 0, "sums without weights");
}

static void rows_are_sorted_by_expert_micro_batch_and_token(void **state)
{
    (void)state;
    enum { N = 4, E = 3, K = 2, P = 2 };
    const int32_t ids[] = {2, 0, 0, 2, 2, 0, 0, 2}; /* nobody chooses expert 1 */
    const float weights[] = {1, 2, 3, 4, 5, 6, 7, 8};
    int32_t first[E * P + 1], rows[N * K], where[N * K];
    float scale[N * K];
    ref()->sort_rows(first, rows, scale, where, ids, weights, N, E, K, P);
    const int32_t want_first[] = {0, 2, 4, 4, 4, 6, 8}, want_rows[] = {0, 1, 2, 3, 0, 1, 2, 3};
    const int32_t want_where[] = {4, 0, 1, 5, 6, 2, 3, 7};
    const float want_scale[] = {2, 3, 6, 7, 1, 4, 5, 8};
    assert_memory_equal(first, want_first, sizeof first);
    assert_memory_equal(rows, want_rows, sizeof rows);
    assert_memory_equal(where, want_where, sizeof where);
    expect_close(scale, want_scale, N * K, 0, "weights of rows");
}

static void conversions_order_transpose_and_round(void **state)
{
    (void)state;
    const float x[] = {1, 2, 3, 4, 5, 6.5f}; /* (3, 2) or (2, 3) */
    const int32_t order[] = {2, 0, 1};
    const enum fm_dtype types[] = {FM_F32, FM_F16, FM_BF16};
    for (int t = 0; t < 3; t++) {
        unsigned char raw[24], back[24];
        float wide[9] = {0, 0, 0, 0, 0, 0, 0, 0, 0};
        fm_dtype_from_f32(raw, x, types[t], 6);
        struct fm_in from = {raw, types[t], NULL};
        ref()->convert(fm_to_f32(wide), 3, from, order, 3, 2);
        const float rows[] = {5, 6.5f, 0, 1, 2, 0, 3, 4, 0};
        expect_close(wide, rows, 9, 0, "rows in order, three apart");
        ref()->convert((struct fm_out){back, types[t]}, 6, from, NULL, 1, 6);
        assert_memory_equal(back, raw, 6 * (size_t)fm_dtype_bits(types[t]) / 8);
        ref()->transpose(fm_to_f32(wide), from, order, 2, 3);
        const float columns[] = {3, 6.5f, 1, 4, 2, 5};
        expect_close(wide, columns, 6, 0, "columns in order");
        ref()->transpose((struct fm_out){back, types[t]}, from, NULL, 2, 3);
        fm_dtype_to_f32(wide, back, types[t], 6);
        const float turned[] = {1, 4, 2, 5, 3, 6.5f};
        expect_close(wide, turned, 6, 0, "columns");
    }
    float y[] = {1.001f, -2, 0x1.01p0f, 0x1.03p0f};
    ref()->round_to(y, FM_BF16, 4);
    const float rounded[] = {1, -2, 1, 0x1.04p0f}; /* ties to even */
    expect_close(y, rounded, 4, 0, "rounded");
}

static void what_is_not_finite_is_found(void **state)
{
    (void)state;
    float x[70] = {0};
    uint16_t narrow[70];
    int64_t first = 0;
    for (int at = 70; at >= 0; at -= 7) {
        if (at < 70)
            x[at] = at % 2 ? NAN : -INFINITY;
        fm_dtype_from_f32(narrow, x, FM_BF16, 70);
        ref()->nonfinite(&first, fm_f32(x), 70);
        assert_int_equal(first, at);
        ref()->nonfinite(&first, (struct fm_in){narrow, FM_BF16, NULL}, 70);
        assert_int_equal(first, at);
        assert_int_equal(fm_ops_nonfinite(ref(), fm_f32(x), 70), at);
    }
}

static void arithmetic_on_arrays(void **state)
{
    (void)state;
    float x[] = {6, 5, 4, -3}, part[] = {1, 2, 3, 4};
    const float by[] = {2, 0, -1, 0.5f}, divided[] = {3, 0, 0, -6}, scaled[] = {-6, 0, 0, 12};
    ref()->divide(x, by, 4);
    expect_close(x, divided, 4, 0, "quotients");
    ref()->scale(x, -2, 4);
    expect_close(x, scaled, 4, 0, "products");
    ref()->fold(fm_to_f32(x), fm_to_f32(part), 0.5, 4);
    const float folded[] = {-5.5f, 1, 1.5f, 14}, none[4] = {0};
    expect_close(x, folded, 4, 0, "folded");
    assert_memory_equal(part, none, sizeof part);
    double total[] = {1, 2}, more[] = {0x1p-40, 4}; /* not in float32 */
    ref()->fold((struct fm_out){total, FM_F64}, (struct fm_out){more, FM_F64}, 0.5, 2);
    assert_true(total[0] == 1 + 0x1p-41 && total[1] == 4 && more[0] == 0 && more[1] == 0);
    ref()->copy(x, by, sizeof x);
    assert_memory_equal(x, by, sizeof x);
    ref()->zero(x + 1, 2 * sizeof *x);
    assert_true(x[0] == 2 && x[1] == 0 && x[2] == 0 && x[3] == 0.5f);
}

static void widths_sum_channels_and_pairs_come_apart(void **state)
{
    (void)state;
    const double c[] = {1, -2, 3, 0.5, 9}; /* the last channel is in no width */
    const int32_t width[] = {0, 1, 3, 4};
    double sum[4];
    ref()->width_sums(sum, c, width, 4, false);
    assert_true(sum[0] == 0 && sum[1] == 1 && sum[2] == 2 && sum[3] == 2.5);
    ref()->width_sums(sum, c, width, 4, true);
    assert_true(sum[0] == 0 && sum[1] == 1 && sum[2] == 13 && sum[3] == 0.25);
    const float x[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}; /* (2, 2 * 3) */
    float a[4], b[4];
    const float even[] = {1, 3, 7, 9}, odd[] = {2, 4, 8, 10};
    ref()->split_pairs(fm_to_f32(a), fm_to_f32(b), fm_f32(x), 2, 3, 2);
    expect_close(a, even, 4, 0, "even elements");
    expect_close(b, odd, 4, 0, "odd elements");
}

/* n elements of y are x rounded to bfloat16. */
static void expect_rounded(struct fm_out y, const float *x, size_t n, const char *what)
{
    float *want = copied(x, n), *got = floats(n);
    ref()->round_to(want, FM_BF16, (int64_t)n);
    fm_dtype_to_f32(got, y.data, FM_BF16, n);
    expect_close(got, want, n, 0, what);
}

/* What is read as bfloat16 gives what its values give as float32; what is written is rounded. */
static void arrays_of_bfloat16_are_the_same_operations(void **state)
{
    (void)state;
    enum { n = 5, I = 7, H = 9, k = 4 };
    float *x = normals(n * H, 1), *w = normals(2 * I * H, 1), *gu = floats(n * 2 * I);
    float *want = floats(n * 2 * I), *down = normals(I * H, 1), *dy = normals(n * H, 1);
    struct fm_in x16 = as_bf16(x, n * H), w16 = as_bf16(w, 2 * I * H);
    struct fm_in down16 = as_bf16(down, I * H), dy16 = as_bf16(dy, n * H);
    ref()->gemm(false, true, n, 2 * I, H, 1, x16, H, w16, H, 0, gu, 2 * I);
    ref()->gemm(false, true, n, 2 * I, H, 1, fm_f32(x), H, fm_f32(w), H, 0, want, 2 * I);
    expect_close(gu, want, n * 2 * I, 0, "product");
    float *y = floats(n * H), *rstd = floats(n);
    struct fm_out y16 = room_bf16(n * H), h16 = room_bf16(n * I), pairs = room_bf16(n * 2 * k);
    ref()->norm(fm_to_f32(y), rstd, x, w, NULL, n, H, 1e-5f);
    ref()->norm(y16, rstd, x, w, NULL, n, H, 1e-5f);
    expect_rounded(y16, y, n * H, "norm");
    const int32_t rows[n] = {4, 0, 4, 2, 1};
    ref()->gather(fm_to_f32(y), fm_f32(x), rows, w, n, H);
    ref()->gather(y16, x16, rows, w, n, H);
    expect_rounded(y16, y, n * H, "rows");
    ref()->embed(y, rows, x16, n, H);
    ref()->gather(fm_to_f32(want), fm_f32(x), rows, NULL, n, H);
    expect_close(y, want, n * H, 0, "rows of a table");
    float *h = floats(n * I), *dh = normals(n * I, 1), *dgu = floats(n * 2 * I), g[n], g16[n];
    ref()->swiglu(fm_to_f32(h), gu, n, I);
    ref()->swiglu(h16, gu, n, I);
    expect_rounded(h16, h, n * I, "swiglu");
    ref()->swiglu_back(fm_to_f32(dgu), dh, gu, n, I, k);
    ref()->swiglu_back(pairs, dh, gu, n, I, k);
    expect_rounded(pairs, dgu, n * 2 * k, "its gradient");
    struct fm_in a16 = as_bf16(h, n * I);
    ref()->dot_rows(g, fm_f32(h), fm_f32(dh), n, I, k);
    ref()->dot_rows(g16, a16, fm_f32(dh), n, I, k);
    expect_close(g16, g, n, 0, "products of rows");
    double c[I] = {0}, c16[I] = {0}, s[I] = {0}, s16[I] = {0};
    ref()->channel_sums(c, fm_f32(h), fm_f32(dh), n, I);
    ref()->channel_sums(c16, a16, fm_f32(dh), n, I);
    assert_memory_equal(c16, c, sizeof c);
    float *d = normals(n * 2 * I, 1), even[n * k], odd[n * k];
    struct fm_in d16 = as_bf16(d, n * 2 * I);
    struct fm_out even16 = room_bf16(n * k), odd16 = room_bf16(n * k);
    ref()->channel_scores(s, fm_f32(w), fm_f32(down), fm_f32(d), fm_f32(x), fm_f32(h), fm_f32(dy),
                          n, I, H);
    ref()->channel_scores(s16, w16, down16, d16, x16, a16, dy16, n, I, H);
    assert_memory_equal(s16, s, sizeof s);
    ref()->split_pairs(fm_to_f32(even), fm_to_f32(odd), fm_f32(d), n, I, k);
    ref()->split_pairs(even16, odd16, d16, n, I, k);
    expect_rounded(even16, even, n * k, "even elements");
    expect_rounded(odd16, odd, n * k, "odd elements");
}

/* n: n I */
static double swiglu_value(const struct scalar *s)
{
    ref()->swiglu(fm_to_f32(s->y), s->x[0], s->n[0], s->n[1]);
    return weighted(s->y, s->r, (size_t)s->n[0] * s->n[1]);
}

static void swiglu_back_is_the_gradient_of_a_prefix(void **state)
{
    (void)state;
    enum { N = 3, I = 17, WIDTH = 11 };
    struct scalar s = {.value = swiglu_value, .n = {N, I}};
    s.x[0] = normals(2 * N * I, 2), s.y = floats(N * I);
    float *r = normals(N * I, 1), *dgu = floats(2 * N * WIDTH), *full = floats(2 * N * I);
    s.r = r;
    ref()->swiglu_back(fm_to_f32(full), r, s.x[0], N, I, I);
    expect_gradient(&s, 0, full, 2 * N * I, "dgu");
    ref()->swiglu_back(fm_to_f32(dgu), r, s.x[0], N, I, WIDTH);
    for (int row = 0; row < N; row++)
        expect_close(dgu + 2 * row * WIDTH, full + 2 * row * I, 2 * WIDTH, 0, "dgu of a prefix");
}

static void sums_over_rows_and_channels_are_plain_sums(void **state)
{
    (void)state;
    const float a[] = {1, 2, 3, 4, 5, 6}, b[] = {1, -1, 2, 3, 0.5f, 1};
    float *g = floats(2);
    ref()->dot_rows(g, fm_f32(a), fm_f32(b), 2, 3, 2);
    const float want[] = {-1, 14.5f};
    expect_close(g, want, 2, 0, "dots of a prefix");
    double c[3] = {1, 0, 0};
    ref()->channel_sums(c, fm_f32(a), fm_f32(b), 2, 3);
    assert_true(c[0] == 14 && c[1] == 0.5 && c[2] == 12);
}

/* The loss sum_r dy_r . down(h_r) with h and gu given: dW by finite differences of a bilinear
 * form is exact, so this checks which parameter belongs to which channel. */
static void channel_scores_square_each_parameters_gradient(void **state)
{
    (void)state;
    enum { N = 4, I = 5, H = 7 };
    float *gate_up = normals(2 * I * H, 1), *down = normals(I * H, 1), *dgu = normals(N * 2 * I, 1);
    float *x = normals(N * H, 1), *h = normals(N * I, 1), *dy = normals(N * H, 1);
    double s[I] = {0, 0, 0, 0, 100}, want[I] = {0, 0, 0, 0, 100};
    for (int j = 0; j < I; j++)
        for (int i = 0; i < H; i++) {
            double gate = 0, up = 0, back = 0;
            for (int r = 0; r < N; r++) {
                gate += (double)dgu[r * 2 * I + 2 * j] * x[r * H + i];
                up += (double)dgu[r * 2 * I + 2 * j + 1] * x[r * H + i];
                back += (double)h[r * I + j] * dy[r * H + i];
            }
            want[j] += pow(gate_up[2 * j * H + i] * gate, 2);
            want[j] += pow(gate_up[(2 * j + 1) * H + i] * up, 2);
            want[j] += pow(down[j * H + i] * back, 2);
        }
    ref()->channel_scores(s, fm_f32(gate_up), fm_f32(down), fm_f32(dgu), fm_f32(x), fm_f32(h),
                          fm_f32(dy), N, I, H);
    for (int j = 0; j < I; j++)
        expect_near(s[j], want[j], 1e-12 * want[j], "score");
}

/* n: n V, more: the weights; the scalar is scale * sum of (ce CE + kl KL). */
static double loss_value(const struct scalar *s)
{
    double ce[8], kl[8], sum = 0;
    int32_t top[8], target[8];
    const struct fm_loss_weights *w = s->more;
    for (int r = 0; r < s->n[0]; r++)
        target[r] = r == 2 ? -1 : (3 * r) % s->n[1];
    ref()->loss(ce, kl, top, s->x[0], s->r, target, s->n[0], s->n[1], NULL);
    for (int r = 0; r < s->n[0]; r++)
        sum += (double)w->scale * (w->ce * ce[r] + w->kl * kl[r]);
    return sum;
}

static void loss_gradient_matches_its_value(void **state)
{
    (void)state;
    enum { N = 4, V = 17 };
    static const struct fm_loss_weights weights[] = {{1, 0, 1}, {0, 1, 1}, {0.5f, 2, 0.25f}};
    const int32_t target[N] = {0, 3, -1, 9};
    double ce[N], kl[N];
    int32_t top[N];
    for (int w = 0; w < 3; w++) {
        struct scalar s = {.value = loss_value, .more = &weights[w], .n = {N, V}};
        s.x[0] = normals(N * V, 2);
        s.r = w == 0 ? NULL : normals(N * V, 2); /* the teacher */
        float *d = copied(s.x[0], N * V);
        ref()->loss(ce, kl, top, d, s.r, target, N, V, &weights[w]);
        expect_gradient(&s, 0, d, N * V, "dlogits");
        assert_true(ce[2] == 0 && kl[2] == 0 && top[2] == 0);
    }
}

static void loss_of_known_rows(void **state)
{
    (void)state;
    float *logits = floats(8);
    const float rows[8] = {0, 0, 0, 0, 5, 7, 7, 1};
    const int32_t target[2] = {3, 1};
    double ce[2], kl[2];
    int32_t top[2];
    memcpy(logits, rows, sizeof rows);
    ref()->loss(ce, kl, top, logits, rows, target, 2, 4, NULL);
    assert_memory_equal(logits, rows, sizeof rows); /* no weights: logits stay */
    expect_near(ce[0], log(4), 1e-12, "cross-entropy of equal logits");
    expect_near(ce[1], log(2 + exp(-2) + exp(-6)), 1e-12, "cross-entropy");
    expect_near(kl[0], 0, 1e-15, "divergence from itself");
    expect_near(kl[1], 0, 1e-15, "divergence from itself");
    assert_int_equal(top[0], 0);
    assert_int_equal(top[1], 1);
    const float teacher[8] = {0, 0, -1e4f, -1e4f, 5, 7, 7, 1};
    ref()->loss(ce, kl, top, logits, teacher, target, 2, 4, NULL);
    expect_near(kl[0], log(2), 1e-12, "divergence from half of the words");
}

static void embed_takes_rows(void **state)
{
    (void)state;
    const float table[] = {1, 2, 3, 4, 5, 6};
    const int32_t ids[] = {2, 0, 2};
    const float want[] = {5, 6, 1, 2, 5, 6};
    float *x = floats(6);
    ref()->embed(x, ids, fm_f32(table), 3, 2);
    expect_close(x, want, 6, 0, "rows");
}

static void adamw_decays_then_steps(void **state)
{
    (void)state;
    /* A constant gradient: both corrected moments are exact, so each step is lr g / (|g| + eps). */
    float p[2] = {1, -2}, m[2] = {0, 0}, v[2] = {0, 0}, want[2] = {1, -2};
    const float g[2] = {0.5f, -3};
    for (int t = 1; t <= 5; t++) {
        ref()->adamw(p, m, v, g, 2, 0.01f, 0.9f, 0.99f, 1e-3f, 0.1f, t);
        for (int i = 0; i < 2; i++) {
            want[i] *= 1 - 0.01f * 0.1f;
            want[i] -= 0.01f * g[i] / (fabsf(g[i]) + 1e-3f);
        }
        expect_close(p, want, 2, 1e-6, "p");
    }
    expect_near(m[0], 0.5 * (1 - pow(0.9, 5)), 1e-6, "first moment");
    expect_near(v[1], 9 * (1 - pow(0.99, 5)), 1e-6, "second moment");
    ref()->add(p, g, 2);
    want[0] += g[0], want[1] += g[1];
    expect_close(p, want, 2, 1e-6, "p + g");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        KERNEL_TEST(gemm_multiplies_all_four_transposes),
        KERNEL_TEST(norm_has_unit_mean_square),
        KERNEL_TEST(norm_with_a_bias_has_its_mean_and_unit_variance),
        KERNEL_TEST(norm_back_adds_the_gradient),
        KERNEL_TEST(rope_turns_by_position_and_back),
        KERNEL_TEST(attention_back_is_the_gradient),
        KERNEL_TEST(attention_sees_the_past_inside_the_window),
        KERNEL_TEST(join_keys_back_is_the_gradient),
        KERNEL_TEST(route_takes_the_largest_and_lower_index_on_ties),
        KERNEL_TEST(route_back_is_the_gradient),
        KERNEL_TEST(route_raw_gives_probabilities_and_their_gradient),
        KERNEL_TEST(a_row_is_added_to_all_rows),
        KERNEL_TEST(clamped_values_have_no_gradient),
        KERNEL_TEST(gate_rows_back_is_the_gradient),
        KERNEL_TEST(scored_routes_choose_with_the_bias_and_weigh_without),
        KERNEL_TEST(scored_routes_have_their_gradient),
        KERNEL_TEST(sparsemixer_weighs_among_those_near_the_largest),
        KERNEL_TEST(sparsemixer_back_is_the_gradient),
        KERNEL_TEST(gather_and_combine_move_rows),
        KERNEL_TEST(rows_are_sorted_by_expert_micro_batch_and_token),
        KERNEL_TEST(conversions_order_transpose_and_round),
        KERNEL_TEST(what_is_not_finite_is_found),
        KERNEL_TEST(arithmetic_on_arrays),
        KERNEL_TEST(widths_sum_channels_and_pairs_come_apart),
        KERNEL_TEST(arrays_of_bfloat16_are_the_same_operations),
        KERNEL_TEST(swiglu_back_is_the_gradient_of_a_prefix),
        KERNEL_TEST(sums_over_rows_and_channels_are_plain_sums),
        KERNEL_TEST(channel_scores_square_each_parameters_gradient),
        KERNEL_TEST(loss_gradient_matches_its_value),
        KERNEL_TEST(loss_of_known_rows),
        KERNEL_TEST(embed_takes_rows),
        KERNEL_TEST(adamw_decays_then_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
