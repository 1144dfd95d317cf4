/*
 * Test the definitions of products, norms, rotation, attention, loss and optimizer: forward against
 * closed forms, backward against finite differences.
 */
#include "tests/unit/gradients.h"

KERNEL_TEST(gemm_multiplies_all_four_transposes)
{
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

KERNEL_TEST(solve_inverts_a_product)
{
    /* L = [2 0 0; 1 3 0; -1 2 1] */
    double a[] = {4, NAN, NAN, 2, 10, NAN, -2, 5, 6}, x[6] = {0};
    const double l[] = {2, NAN, NAN, 1, 3, NAN, -1, 2, 1}, want[] = {0, -1, 1, 3, 0, 0};
    const double full[] = {4, 2, -2, 2, 10, 5, -2, 5, 6};
    for (int i = 0; i < 3; i++)
        for (int c = 0; c < 2; c++)
            for (int k = 0; k < 3; k++)
                x[i * 2 + c] += full[i * 3 + k] * want[k * 2 + c];
    ref()->solve(x, a, 3, 2);
    for (int i = 0; i < 9; i++)
        assert_true(isnan(l[i]) ? isnan(a[i]) : a[i] == l[i]);
    for (int i = 0; i < 6; i++)
        assert_true(fabs(x[i] - want[i]) < 1e-12);
}

static double norm_value(const struct scalar *s)
{
    ref()->norm(fm_to_f32(s->y), s->aux, s->x[0], s->x[1], s->x[2], s->n[0], s->n[1], 1e-5f);
    return weighted(s->y, s->r, (size_t)s->n[0] * s->n[1]);
}

KERNEL_TEST(norm_has_unit_mean_square)
{
    enum { N = 3, H = 17 };
    float *x = normals(N * H, 3), *w = floats(H), *y = floats(N * H), *rstd = floats(N);
    for (int i = 0; i < H; i++)
        w[i] = 1;
    ref()->norm(fm_to_f32(y), rstd, x, w, NULL, N, H, 0);
    for (int t = 0; t < N; t++)
        expect_near(weighted(y + t * H, y + t * H, H) / H, 1, 1e-6, "mean square");
    ref()->norm(fm_to_f32(y), rstd, x, w, NULL, N, H, 1e6f); /* eps is larger than x */
    expect_near(rstd[0], 1e-3, 1e-6, "rstd");
}

KERNEL_TEST(norm_with_a_bias_has_its_mean_and_unit_variance)
{
    enum { N = 3, H = 17 };
    float *x = normals(N * H, 3), *w = floats(H), *b = floats(H), *y = floats(N * H);
    float *rstd = floats(N);
    for (int i = 0; i < H; i++)
        w[i] = 1, b[i] = 0.5f;
    for (int i = 0; i < N * H; i++)
        x[i] += 100; /* a large mean, which must not cost precision */
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

KERNEL_TEST(norm_back_adds_the_gradient)
{
    check_norm_back(false);
    check_norm_back(true);
}

/* Row 4 is at position 1.  In its head 1, the pair of element 2 of the rotated part and the element
 * `other` places after it must turn by `angle`. */
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
    expect_close(y, x, N * HEADS * C, 1e-6, "x rotated back");
}

KERNEL_TEST(rope_turns_by_position_and_back)
{
    check_rope(10, false, 0, 5 + 2, 5);
    check_rope(6, false, 0, 3 + 2, 3);
    check_rope(6, true, 4, 3 + 1, 1);
    check_rope(10, true, 0, 5 + 1, 1);
}

/* n: S T Q G C D window sinks; scores are divided by 1.5 sqrt(C) if D differs from C */
static double root_of(const int *n)
{
    return sqrt(n[4]) * (n[4] == n[5] ? 1 : 1.5);
}

static double attention_value(const struct scalar *s)
{
    const int *n = s->n;
    const float *sinks = n[7] ? s->x[3] : NULL;
    ref()->attention(s->y, s->x[0], s->x[1], s->x[2], sinks, n[0], n[1], n[2], n[3], n[4], n[5],
                     root_of(n), n[6]);
    return weighted(s->y, s->r, (size_t)n[0] * n[1] * n[2] * n[5]);
}

static void check_attention_back(int S, int T, int Q, int G, int C, int D, int window, bool sinks)
{
    size_t nq = (size_t)S * T * Q * C, nk = (size_t)S * T * G * C;
    size_t no = (size_t)S * T * Q * D, nv = (size_t)S * T * G * D;
    struct scalar s = {.value = attention_value, .n = {S, T, Q, G, C, D, window, sinks}};
    s.x[0] = normals(nq, 1), s.x[1] = normals(nk, 1), s.x[2] = normals(nv, 1);
    s.x[3] = normals((size_t)Q, 1);
    s.y = floats(no), s.r = normals(no, 1);
    s.value(&s);
    float *dq = floats(nq), *dk = floats(nk), *dv = floats(nv);
    ref()->attention_back(dq, dk, dv, s.r, s.y, s.x[0], s.x[1], s.x[2], sinks ? s.x[3] : NULL, S, T,
                          Q, G, C, D, root_of(s.n), window);
    expect_gradient(&s, 0, dq, nq, "dq");
    expect_gradient(&s, 1, dk, nk, "dk");
    expect_gradient(&s, 2, dv, nv, "dv");
}

KERNEL_TEST(attention_back_is_the_gradient)
{
    check_attention_back(2, 5, 6, 2, 10, 10, 0, false);
    check_attention_back(1, 7, 3, 3, 4, 4, 3, false);
    check_attention_back(1, 1, 2, 1, 2, 2, 0, false);
    check_attention_back(2, 5, 4, 2, 7, 3, 0, false);
    check_attention_back(1, 6, 2, 2, 4, 9, 4, false);
    check_attention_back(2, 6, 4, 2, 4, 4, 3, true);
}

KERNEL_TEST(attention_sees_the_past_inside_the_window)
{
    enum { S = 2, T = 6, C = 4 };
    size_t n = S * T * C;
    float *q = normals(n, 1), *k = floats(n), *v = normals(n, 1), *o = floats(n);
    ref()->attention(o, q, v, v, NULL, S, T, 1, 1, C, C, 2, 1);
    expect_close(o, v, n, 0, "o where only the row itself is seen");
    memset(k, 0, n * sizeof *k); /* all keys are equal: the mean of the visible values */
    for (int window = 0; window < 4; window++) {
        ref()->attention(o, q, k, v, NULL, S, T, 1, 1, C, C, 2, window);
        for (int t = 0; t < S * T; t++) {
            int pos = t % T, seen = window && window < pos + 1 ? window : pos + 1;
            double sum = 0;
            for (int j = 0; j < seen; j++)
                sum += v[(t - j) * C];
            expect_near(o[t * C], sum / seen, 1e-6, "mean of the values seen");
        }
    }
}

/* n: N Q A R D; x: kv, r.  s->r has the weights of k, then those of v. */
static double join_keys_value(const struct scalar *s)
{
    const int *n = s->n;
    size_t nk = (size_t)n[0] * n[1] * (n[2] + n[3]), nv = (size_t)n[0] * n[1] * n[4];
    ref()->join_keys(s->y, s->y + nk, s->x[0], s->x[1], n[0], n[1], n[2], n[3], n[4]);
    return weighted(s->y, s->r, nk + nv);
}

KERNEL_TEST(join_keys_back_is_the_gradient)
{
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

KERNEL_TEST(loss_gradient_matches_its_value)
{
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

KERNEL_TEST(loss_of_known_rows)
{
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

KERNEL_TEST(embed_takes_rows)
{
    const float table[] = {1, 2, 3, 4, 5, 6};
    const int32_t ids[] = {2, 0, 2};
    const float want[] = {5, 6, 1, 2, 5, 6};
    float *x = floats(6);
    ref()->embed(x, ids, fm_f32(table), 3, 2);
    expect_close(x, want, 6, 0, "rows");
}

KERNEL_TEST(adamw_decays_then_steps)
{
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

TEST_MAIN(NULL, NULL)
