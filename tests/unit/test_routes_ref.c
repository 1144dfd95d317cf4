/*
 * Test the definitions of routers: choices in known cases, gradients against finite differences.
 */
#include "tests/unit/gradients.h"

KERNEL_TEST(route_takes_the_largest_and_lower_index_on_ties)
{
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

KERNEL_TEST(route_back_is_the_gradient)
{
    enum { N = 3, E = 5, K = 2 };
    struct scalar s = {.value = route_value, .n = {N, E, K}};
    float *x = s.x[0] = floats(N * E);
    for (int i = 0; i < N * E; i++) /* differences are larger than a step, so the choice does not
                                       change */
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

KERNEL_TEST(route_raw_gives_probabilities_and_their_gradient)
{
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
KERNEL_TEST(scored_routes_choose_with_the_bias_and_weigh_without)
{
    enum { E = 8, K = 3 };
    const float z[E] = {0, 0, 1.0986123f, -1.0986123f, 0, 0, 1.0986123f, 0};
    const float bias[E] = {0, .75f, 0, 0, .5f, .125f, 0, .0625f};
    const struct fm_route_rule rules[] = {
        {.sigmoid = true, .groups = 1, .topk_group = 1, .group_sum = 2, .scale = 1},
        {.sigmoid = true,
         .groups = 4,
         .topk_group = 2,
         .group_sum = 2,
         .scale = 2,
         .renormalised = true},
        {.sigmoid = true,
         .groups = 4,
         .topk_group = 2,
         .group_sum = 1,
         .scale = 1,
         .renormalised = true,
         .least = 4},
        {.sigmoid = false, .groups = 4, .topk_group = 3, .group_sum = 1, .scale = 16}};
    /* With the bias, the scores are 1.25 for expert 1, 1 for 4, and .75 for 2 and 6.  Sums of
     * groups: 1.75, 1, 1.625, 1.3125; best: 1.25, .75, 1, .75.  Probabilities are equal except for
     * experts 2, 3 and 6; on a tie the lower expert is chosen. */
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

KERNEL_TEST(scored_routes_have_their_gradient)
{
    enum { N = 3, E = 6, K = 2 };
    /* No step changes the choice. */
    const float logits[N * E] = {2,    -1,  0,     1, -3, -2,   -2, -.5f, 1.5f,
                                 2.5f, .5f, -1.5f, 3, 0,  1.5f, -1, -3,   2};
    for (int i = 0; i < 32; i++) {
        struct fm_route_rule rule = {.sigmoid = i & 1,
                                     .renormalised = i & 2,
                                     .least = i & 4 ? 3 : 0,
                                     .eps = i & 8 ? .5f : 0,
                                     .groups = i & 16 ? 3 : 1,
                                     .topk_group = 2,
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

KERNEL_TEST(sparsemixer_weighs_among_those_near_the_largest)
{
    enum { N = 5, E = 4 };
    const float logits[N * E] = {4,   3.75f, 1,
                                 -2, /* 1/16 is close; 11/15, from the second, is not */
                                 0,   0,     0,
                                 0, /* 0/0 is close, and the lower index comes
                                       first */
                                 -4,  -1,    -8,
                                 -2, /* quotients of 3/4 7/8 1/2, then 1/2 3/4 */
                                 1,   -7,    -7,
                                 .5f, /* 1/2 is the threshold itself: close */
                                 -1,  2,     .9f,
                                 -2};
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

KERNEL_TEST(sparsemixer_back_is_the_gradient)
{
    enum { N = 2, E = 5 };
    /* No step changes which experts are chosen or close. */
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

TEST_MAIN(NULL, NULL)
