/*
 * Test the definitions of operations on rows, experts and arrays: forward against closed forms,
 * backward against finite differences.
 */
#include "tests/unit/gradients.h"

KERNEL_TEST(a_row_is_added_to_all_rows)
{
    float x[] = {1, 2, 3, 4, 5, 6};
    const float b[] = {10, -1, 0.5f}, want[] = {11, 1, 3.5f, 14, 4, 6.5f};
    ref()->add_rows(x, b, 2, 3);
    expect_close(x, want, 6, 0, "x + b");
}

/* At a bound the gradient is not zero, as in torch.clamp. */
KERNEL_TEST(clamped_values_have_no_gradient)
{
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

/* n: N I, softplus; x: h, u */
static double gate_rows_value(const struct scalar *s)
{
    memcpy(s->y, s->x[0], (size_t)(s->n[0] * s->n[1]) * sizeof *s->y);
    ref()->gate_rows(s->y, s->aux, s->x[1], s->n[2], s->n[0], s->n[1]);
    return weighted(s->y, s->r, (size_t)s->n[0] * s->n[1]);
}

static void check_gate_rows(bool softplus)
{
    enum { N = 4, I = 7 };
    struct scalar s = {.value = gate_rows_value, .n = {N, I, softplus}};
    s.x[0] = normals(N * I, 1), s.x[1] = normals(N, 2);
    s.y = floats(N * I), s.aux = floats(N), s.r = normals(N * I, 1);
    float *h = copied(s.x[0], N * I), *share = floats(N), *du = floats(N);
    float *dh = copied(s.r, N * I);
    ref()->gate_rows(h, share, s.x[1], softplus, N, I);
    ref()->gate_rows_back(dh, du, h, share, softplus, N, I);
    expect_gradient(&s, 0, dh, N * I, "dh");
    expect_gradient(&s, 1, du, N, "du");
}

KERNEL_TEST(gate_rows_back_is_the_gradient)
{
    check_gate_rows(false);
    check_gate_rows(true);
}

KERNEL_TEST(softplus_of_any_number_is_finite)
{
    const float u[] = {-200, -20, 0, 20, 1000}, slope[] = {0, 2.0611537e-9f, 0.5f, 1, 1};
    const float want[] = {0, 2.0611537e-9f, 0.69314718f, 20, 1000};
    float h[] = {1, 1, 1, 1, 1}, dh[] = {1, 1, 1, 1, 1}, s[5], du[5];
    ref()->gate_rows(h, s, u, true, 5, 1);
    ref()->gate_rows_back(dh, du, h, s, true, 5, 1);
    for (int i = 0; i < 5; i++) {
        assert_true(fabs((double)s[i] - want[i]) <= 1e-6 * want[i]);
        assert_true(fabs((double)du[i] - slope[i]) <= 1e-6 * slope[i]);
    }
}

KERNEL_TEST(gather_and_combine_move_rows)
{
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

KERNEL_TEST(rows_are_sorted_by_expert_micro_batch_and_token)
{
    enum { N = 4, E = 3, K = 2, P = 2 };
    const int32_t ids[] = {2, 0, 0, 2, 2, 0, 0, 2}; /* no token chooses expert 1 */
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

KERNEL_TEST(conversions_order_transpose_and_round)
{
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

KERNEL_TEST(arithmetic_on_arrays)
{
    float x[] = {6, 5, 4, -3}, part[] = {1, 2, 3, 4};
    const float by[] = {2, 0, -1, 0.5f}, divided[] = {3, 0, -4, -6}, scaled[] = {-6, 0, 8, 12};
    ref()->divide(x, by, 4);
    expect_close(x, divided, 4, 0, "quotients");
    ref()->scale(x, -2, 4);
    expect_close(x, scaled, 4, 0, "products");
    ref()->accumulate(fm_to_f32(x), fm_to_f32(part), 0.5, 4);
    const float accumulated[] = {-5.5f, 1, 9.5f, 14}, none[4] = {0};
    expect_close(x, accumulated, 4, 0, "accumulated");
    assert_memory_equal(part, none, sizeof part);
    double total[] = {1, 2}, more[] = {0x1p-40, 4}; /* 1 + 0x1p-41 is not a float32 */
    ref()->accumulate((struct fm_out){total, FM_F64}, (struct fm_out){more, FM_F64}, 0.5, 2);
    assert_true(total[0] == 1 + 0x1p-41 && total[1] == 4 && more[0] == 0 && more[1] == 0);
    ref()->copy(x, by, sizeof x);
    assert_memory_equal(x, by, sizeof x);
    ref()->zero(x + 1, 2 * sizeof *x);
    assert_true(x[0] == 2 && x[1] == 0 && x[2] == 0 && x[3] == 0.5f);
}

KERNEL_TEST(channels_are_summed_by_width_and_pairs_are_split)
{
    const double c[] = {1, -2, 3, 0.5, 9}; /* the last channel is not in any width */
    const uint32_t width[] = {0, 1, 3, 4};
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

/* Check that the n elements of y are those of x rounded to bfloat16. */
static void expect_rounded(struct fm_out y, const float *x, size_t n, const char *what)
{
    float *want = copied(x, n), *got = floats(n);
    ref()->round_to(want, FM_BF16, (int64_t)n);
    fm_dtype_to_f32(got, y.data, FM_BF16, n);
    expect_close(got, want, n, 0, what);
}

/* Inputs read as bfloat16 give the results of their values in float32; outputs are rounded. */
KERNEL_TEST(operations_accept_arrays_of_bfloat16)
{
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

KERNEL_TEST(swiglu_back_is_the_gradient_of_a_prefix)
{
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

/* n: count */
static double softcap_value(const struct scalar *s)
{
    memcpy(s->y, s->x[0], (size_t)s->n[0] * sizeof *s->y);
    ref()->softcap(s->y, 2.5f, s->n[0]);
    return weighted(s->y, s->r, (size_t)s->n[0]);
}

KERNEL_TEST(softcap_back_is_the_gradient)
{
    enum { COUNT = 40 };
    struct scalar s = {.value = softcap_value, .n = {COUNT}};
    s.x[0] = normals(COUNT, 3), s.y = floats(COUNT);
    s.x[0][0] = 100, s.x[0][1] = -100;
    float *r = normals(COUNT, 1), *dx = copied(r, COUNT);
    s.r = r;
    s.value(&s);
    assert_true(s.y[0] == 2.5f && s.y[1] == -2.5f);
    for (int i = 0; i < COUNT; i++)
        expect_near(s.y[i], 2.5 * tanh(s.x[0][i] / 2.5), 1e-6, "y");
    ref()->softcap_back(dx, s.y, 2.5f, COUNT);
    expect_gradient(&s, 0, dx, COUNT, "dx");
}

static double geglu_value(const struct scalar *s)
{
    ref()->geglu(fm_to_f32(s->y), s->x[0], s->n[0], s->n[1]);
    return weighted(s->y, s->r, (size_t)s->n[0] * s->n[1]);
}

/* Compare values with the formula by tanh, and gradients with finite differences. */
KERNEL_TEST(geglu_agrees_with_its_formula)
{
    enum { N = 3, I = 17, WIDTH = 11 };
    struct scalar s = {.value = geglu_value, .n = {N, I}};
    s.x[0] = normals(2 * N * I, 2), s.y = floats(N * I);
    s.x[0][0] = 40, s.x[0][2] = -40;
    float *r = normals(N * I, 1), *dgu = floats(2 * N * WIDTH), *full = floats(2 * N * I);
    s.r = r;
    s.value(&s);
    for (int i = 0; i < N * I; i++) {
        double g = s.x[0][2 * i], u = s.x[0][2 * i + 1];
        double t = tanh(0.7978845608028654 * (g + 0.044715 * g * g * g));
        float want = (float)(0.5 * g * (1 + t) * u);
        expect_near(s.y[i], want, 1e-6, "h");
    }
    ref()->geglu_back(fm_to_f32(full), r, s.x[0], N, I, I);
    expect_gradient(&s, 0, full, 2 * N * I, "dgu");
    ref()->geglu_back(fm_to_f32(dgu), r, s.x[0], N, I, WIDTH);
    for (int row = 0; row < N; row++)
        expect_close(dgu + 2 * row * WIDTH, full + 2 * row * I, 2 * WIDTH, 0, "dgu of a prefix");
}

static double clamped_value(const struct scalar *s)
{
    ref()->swiglu_clamped(fm_to_f32(s->y), s->x[0], s->n[0], s->n[1], 1.702f, 2);
    return weighted(s->y, s->r, (size_t)s->n[0] * s->n[1]);
}

/* Compare values with the formula, and gradients with finite differences, away from the bounds. */
KERNEL_TEST(clamped_swiglu_agrees_with_its_formula)
{
    enum { N = 3, I = 17, WIDTH = 11 };
    struct scalar s = {.value = clamped_value, .n = {N, I}};
    s.x[0] = normals(2 * N * I, 2), s.y = floats(N * I);
    for (int i = 0; i < 2 * N * I; i++)
        s.x[0][i] += fabs(fabs(s.x[0][i]) - 2) < 0.1 ? 0.3f : 0;
    float *r = normals(N * I, 1), *dgu = floats(2 * N * WIDTH), *full = floats(2 * N * I);
    s.r = r;
    s.value(&s);
    for (int i = 0; i < N * I; i++) {
        double g = fmin(s.x[0][2 * i], 2), u = fmax(-2, fmin(s.x[0][2 * i + 1], 2));
        float want = (float)((u + 1) * g / (1 + exp(-(double)1.702f * g)));
        expect_close(&s.y[i], &want, 1, 1e-7, "h");
    }
    ref()->swiglu_clamped_back(fm_to_f32(full), r, s.x[0], N, I, I, 1.702f, 2);
    expect_gradient(&s, 0, full, 2 * N * I, "dgu");
    ref()->swiglu_clamped_back(fm_to_f32(dgu), r, s.x[0], N, I, WIDTH, 1.702f, 2);
    for (int row = 0; row < N; row++)
        expect_close(dgu + 2 * row * WIDTH, full + 2 * row * I, 2 * WIDTH, 0, "dgu of a prefix");
}

static double limited_value(const struct scalar *s)
{
    ref()->swiglu_limited(fm_to_f32(s->y), s->x[0], s->n[0], s->n[1], 1.5f);
    return weighted(s->y, s->r, (size_t)s->n[0] * s->n[1]);
}

/* The same, away from the bounds of silu(g) and of u. */
KERNEL_TEST(limited_swiglu_agrees_with_its_formula)
{
    enum { N = 3, I = 17, WIDTH = 11 };
    struct scalar s = {.value = limited_value, .n = {N, I}};
    s.x[0] = normals(2 * N * I, 2), s.y = floats(N * I);
    for (int i = 0; i < 2 * N * I; i++) {
        double x = (double)s.x[0][i], bounded = i % 2 ? fabs(x) : x / (1 + exp(-x));
        s.x[0][i] += fabs(bounded - 1.5) < 0.1 ? 0.4f : 0;
    }
    float *r = normals(N * I, 1), *dgu = floats(2 * N * WIDTH), *full = floats(2 * N * I);
    int clamped = 0;
    s.r = r;
    s.value(&s);
    for (int i = 0; i < N * I; i++) {
        double g = s.x[0][2 * i], u = fmax(-1.5, fmin(s.x[0][2 * i + 1], 1.5));
        float want = (float)(fmin(g / (1 + exp(-g)), 1.5) * u);
        clamped += g / (1 + exp(-g)) > 1.5;
        expect_close(&s.y[i], &want, 1, 1e-7, "h");
    }
    assert_in_range(clamped, 3, N * I - 3);
    ref()->swiglu_limited_back(fm_to_f32(full), r, s.x[0], N, I, I, 1.5f);
    expect_gradient(&s, 0, full, 2 * N * I, "dgu");
    ref()->swiglu_limited_back(fm_to_f32(dgu), r, s.x[0], N, I, WIDTH, 1.5f);
    for (int row = 0; row < N; row++)
        expect_close(dgu + 2 * row * WIDTH, full + 2 * row * I, 2 * WIDTH, 0, "dgu of a prefix");
}

KERNEL_TEST(biases_are_scored_by_their_gradients)
{
    const float dgu[] = {1, 2, 3, 4, -1, 5, 1, 0}, b[] = {2, -1, 0.5f, 3};
    double s[2] = {10, 0};
    ref()->bias_scores(s, b, fm_f32(dgu), 2, 2); /* gradients 0 7 4 4 */
    assert_true(s[0] == 10 + 49 && s[1] == 4 + 144);
    const float a[] = {1, 2, 3, 4}, by[] = {1, -2};
    float g[2] = {5, 6};
    ref()->add_dots(g, fm_f32(a), by, 2, 2);
    assert_true(g[0] == 5 - 3 && g[1] == 6 - 5);
}

KERNEL_TEST(sums_over_rows_and_channels_are_plain_sums)
{
    const float a[] = {1, 2, 3, 4, 5, 6}, b[] = {1, -1, 2, 3, 0.5f, 1};
    float *g = floats(2);
    ref()->dot_rows(g, fm_f32(a), fm_f32(b), 2, 3, 2);
    const float want[] = {-1, 14.5f};
    expect_close(g, want, 2, 0, "dots of a prefix");
    double c[3] = {1, 0, 0};
    ref()->channel_sums(c, fm_f32(a), fm_f32(b), 2, 3);
    assert_true(c[0] == 14 && c[1] == 0.5 && c[2] == 12);
}

/* The gradients are sums of products over the rows, computed here one by one: this checks which
 * parameter belongs to which channel. */
KERNEL_TEST(channel_scores_square_each_parameters_gradient)
{
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

TEST_MAIN(NULL, NULL)
