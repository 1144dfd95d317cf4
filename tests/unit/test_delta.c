/*
 * Test Gated DeltaNet's operations: the definitions against autograd and finite differences, and
 * the fast table against the definitions at lengths around that of a chunk, with heads that forget
 * everything or nothing.
 */
#include "tests/unit/gradients.h"

#include "lib/base/pool.h"

/* ---- a whole layer without its products, by PyTorch 2.15 in float64 ---- */

/* sin(first + step i) in float32. */
static float *wave(size_t n, double first, double step)
{
    float *x = floats(n);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)sin(first + step * (double)i);
    return x;
}

enum { T5 = 5, G1 = 1, Q2 = 2, C3 = 3, D2 = 2, W4 = 4, H5 = 2 * G1 * C3 + Q2 * D2 };

static const float want_y[] = {-0.0953521358F, -0.447273939F,  0.579031306F,   -1.71389182F,
                               0.745166229F,   -0.0112516103F, 0.0501913397F,  -0.728790819F,
                               0.112946571F,   0.639494074F,   -0.0764063093F, 0.601973547F,
                               -1.15749909F,   -0.299472486F,  1.0801016F,     -0.0310078872F,
                               0.146404348F,   -0.5281509F,    -0.488097886F,  0.274547694F};
static const float want_dm[] = {
    0.0225439055F,  -0.0215643767F, 0.147755804F,     -0.0559522462F,  0.120273334F,
    0.482464985F,   0.0485926253F,  -0.118490074F,    0.911566548F,    1.32914406F,
    0.0405440522F,  -0.252459811F,  0.0387889659F,    -0.0406017378F,  0.552822969F,
    -0.0383461626F, -0.0311971699F, 1.16791687F,      -0.384953896F,   0.178138251F,
    -0.104151384F,  -0.0367843342F, -0.100039886F,    -0.00123582289F, 0.161696255F,
    -0.548647022F,  -0.175302154F,  0.372294335F,     -0.0842529306F,  0.0620493006F,
    -0.096987345F,  0.210872853F,   -0.0391161474F,   -0.0031819377F,  -0.292930063F,
    -0.226763863F,  -0.0631343259F, -0.971132413F,    0.233814627F,    -0.135421373F,
    0.0483231929F,  -0.0510284243F, -0.000983678588F, 0.00222370445F,  -0.000419615673F,
    0.00182751558F, -0.0749672651F, 0.265226859F,     0.12624898F,     -0.01129875F};
static const float want_da[] = {0.0F,           0.0F,          0.00609960573F, 0.00070193903F,
                                -0.0343261591F, -0.02304596F,  -0.318503468F,  -0.0124967197F,
                                0.0151880021F,  0.00727729978F};
static const float want_db[] = {-0.00175319316F, -0.0141456008F, 0.0422750976F, 0.0097001179F,
                                0.100983599F,    -0.0281447665F, -0.187374048F, -0.00237763346F,
                                0.0035059742F,   -0.0020530926F};
static const float want_dz[] = {-0.783648599F, -0.284164986F, -0.760780842F,  -0.713555917F,
                                1.20525232F,   0.228567887F,  0.016619731F,   0.274390207F,
                                0.0125260466F, 0.359198875F,  0.327767481F,   0.328255892F,
                                1.69130531F,   -0.171344337F, 1.18024288F,    0.0994836582F,
                                0.0527022203F, 0.319825798F,  -0.0691512268F, 0.0771018563F};

KERNEL_TEST(a_layer_without_its_products_agrees_with_autograd)
{
    const struct fm_ops *op = ref();
    size_t nm = T5 * H5, nq = T5 * Q2, no = nq * D2;
    float *m = wave(nm, 0.3, 0.7), *w = wave(H5 * W4, 1.1, 1.3), *a = wave(nq, 0.5, 0.9);
    float *b = wave(nq, 2.0, 1.7), *rate = wave(Q2, 0.2, 1.0), *bias = wave(Q2, 1.0, 2.0);
    float *z = wave(no, 0.1, 0.6), *norm = wave(D2, 0.4, 1.0), *dy = wave(no, 0.9, 1.9);
    float *c = floats(nm), *g = floats(nq), *beta = floats(nq), *o = floats(no), *n = floats(no);
    float *y = floats(no), *rstd = floats(nq), *dn = floats(no), *dz = floats(no);
    float *d_o = floats(no), *dc = floats(nm), *dg = floats(nq), *dbeta = floats(nq);
    float *dm = floats(nm), *da = floats(nq), *db = floats(nq);
    op->shift(norm, norm, 1, D2);
    op->convolve(c, m, w, true, 1, T5, H5, W4);
    op->delta_gates(g, beta, a, b, rate, bias, T5, Q2);
    op->delta_rule(o, c, g, beta, 1, T5, G1, Q2, C3, D2);
    op->norm(fm_to_f32(n), rstd, o, norm, NULL, (int)nq, D2, 1e-6f);
    op->gate(y, n, z, true, (int64_t)no);
    op->gate_back(dn, dz, dy, n, z, true, (int64_t)no);
    op->zero(d_o, no * sizeof *d_o);
    op->norm_back(d_o, dn, o, norm, NULL, rstd, (int)nq, D2);
    op->delta_rule_back(dc, dg, dbeta, d_o, c, g, beta, 1, T5, G1, Q2, C3, D2);
    op->delta_gates_back(da, db, dg, dbeta, a, beta, rate, bias, T5, Q2);
    op->convolve_back(dm, dc, m, w, true, 1, T5, H5, W4);
    expect_close(y, want_y, no, 2e-6, "y");
    expect_close(dm, want_dm, nm, 2e-6, "dm");
    expect_close(da, want_da, nq, 2e-6, "da");
    expect_close(db, want_db, nq, 2e-6, "db");
    expect_close(dz, want_dz, no, 2e-6, "dz");
}

/* ---- finite differences ---- */

/* n: S T H W, silu; x: x, w. */
static double convolve_value(const struct scalar *s)
{
    const int *n = s->n;
    ref()->convolve(s->y, s->x[0], s->x[1], n[4], n[0], n[1], n[2], n[3]);
    return weighted(s->y, s->r, (size_t)n[0] * n[1] * n[2]);
}

KERNEL_TEST(convolve_back_is_the_gradient)
{
    enum { S = 2, T = 7, H = 3 };
    for (int i = 0; i < 6; i++) {
        int W = 1 + i / 2 * 4, silu = i % 2;
        struct scalar s = {.value = convolve_value, .n = {S, T, H, W, silu}};
        float *dx = floats(S * T * H);
        s.x[0] = normals(S * T * H, 1), s.x[1] = normals((size_t)(H * W), 0.5);
        s.r = normals(S * T * H, 1), s.y = floats(S * T * H);
        ref()->convolve_back(dx, s.r, s.x[0], s.x[1], silu, S, T, H, W);
        expect_gradient(&s, 0, dx, S * T * H, "dx");
    }
}

/* n: S T G Q C D; x: x, g, beta. */
static double rule_value(const struct scalar *s)
{
    const int *n = s->n;
    ref()->delta_rule(s->y, s->x[0], s->x[1], s->x[2], n[0], n[1], n[2], n[3], n[4], n[5]);
    return weighted(s->y, s->r, (size_t)n[0] * n[1] * n[3] * n[5]);
}

/* Inputs of the rule: normal rows, gates that keep a state and gates that do not. */
static void draw_rule(struct scalar *s, size_t rows, int Q, int width, double decay)
{
    s->x[0] = normals(rows * width, 1);
    s->x[1] = normals(rows * Q, 1);
    s->x[2] = normals(rows * Q, 1);
    for (size_t i = 0; i < rows * Q; i++) {
        s->x[1][i] = (float)(-decay * fabs((double)s->x[1][i]));
        s->x[2][i] = (float)(1 / (1 + exp(-2 * (double)s->x[2][i])));
    }
}

static void check_rule_back(int S, int T, int G, int Q, int C, int D)
{
    size_t rows = (size_t)(S * T), nx = rows * (2 * G * C + Q * D), nq = rows * Q;
    struct scalar s = {.value = rule_value, .n = {S, T, G, Q, C, D}};
    draw_rule(&s, rows, Q, 2 * G * C + Q * D, 0.3);
    s.y = floats(rows * Q * D), s.r = normals(rows * Q * D, 1);
    float *dx = floats(nx), *dg = floats(nq), *dbeta = floats(nq);
    ref()->delta_rule_back(dx, dg, dbeta, s.r, s.x[0], s.x[1], s.x[2], S, T, G, Q, C, D);
    expect_gradient(&s, 0, dx, nx, "dx");
    expect_gradient(&s, 1, dg, nq, "dg");
    expect_gradient(&s, 2, dbeta, nq, "dbeta");
}

KERNEL_TEST(rule_back_is_the_gradient)
{
    check_rule_back(2, 6, 2, 4, 5, 3);
    check_rule_back(1, 11, 1, 3, 4, 6);
    check_rule_back(1, 1, 1, 1, 3, 2);
}

/* ---- the fast table ---- */

static const struct fm_ops *cpu(void)
{
    const struct fm_ops *ops = NULL;
    struct fm_err err = {0};
    assert_ok(fm_ops_cpu(&ops, FM_PRECISION_F32, &err));
    return ops;
}

struct outputs {
    float *o, *dx, *dg, *dbeta;
};

static struct outputs run_rule(const struct fm_ops *op, const struct scalar *s)
{
    const int *n = s->n;
    size_t rows = (size_t)n[0] * n[1], nx = rows * (2 * n[2] * n[4] + n[3] * n[5]);
    struct outputs y = {floats(rows * n[3] * n[5]), floats(nx), floats(rows * n[3]),
                        floats(rows * n[3])};
    op->delta_rule(y.o, s->x[0], s->x[1], s->x[2], n[0], n[1], n[2], n[3], n[4], n[5]);
    op->delta_rule_back(y.dx, y.dg, y.dbeta, s->r, s->x[0], s->x[1], s->x[2], n[0], n[1], n[2],
                        n[3], n[4], n[5]);
    return y;
}

KERNEL_TEST(chunks_agree_with_tokens)
{
    static const struct {
        int S, T, G, Q, C, D;
        double decay;
    } row[] = {
        {2, 63, 1, 2, 5, 7, 0.3},     {1, 64, 2, 2, 8, 8, 0.01}, {1, 65, 2, 6, 7, 5, 0.1},
        {1, 700, 1, 2, 16, 12, 0.05}, {2, 130, 1, 1, 9, 4, 40},  {1, 200, 1, 2, 8, 6, 0},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct scalar s = {.n = {row[i].S, row[i].T, row[i].G, row[i].Q, row[i].C, row[i].D}};
        size_t rows = (size_t)row[i].S * row[i].T, nq = rows * row[i].Q;
        int width = 2 * row[i].G * row[i].C + row[i].Q * row[i].D;
        draw_rule(&s, rows, row[i].Q, width, row[i].decay);
        s.r = normals(nq * row[i].D, 1);
        struct outputs got = run_rule(cpu(), &s), want = run_rule(ref(), &s);
        expect_close(got.o, want.o, nq * row[i].D, 5e-6, "o");
        expect_close(got.dx, want.dx, rows * width, 1e-5, "dx");
        expect_close(got.dg, want.dg, nq, 1e-5, "dg");
        expect_close(got.dbeta, want.dbeta, nq, 1e-5, "dbeta");
        check_guards();
        free_arrays();
    }
}

/* A decay of exp(-2000) must not make the results of the tokens after it less exact. */
KERNEL_TEST(a_full_decay_keeps_later_results_exact)
{
    enum { T = 60, C = 6, D = 4, WIDTH = 2 * C + D };
    struct scalar s = {.n = {1, T, 1, 1, C, D}};
    draw_rule(&s, T, 1, WIDTH, 0.02);
    s.r = normals(T * D, 1);
    s.x[1][20] = -2000;
    struct outputs got = run_rule(cpu(), &s), want = run_rule(ref(), &s);
    expect_close(got.o + 20 * D, want.o + 20 * D, 40 * D, 2e-6, "o");
    expect_close(got.dx + 20 * WIDTH, want.dx + 20 * WIDTH, 40 * WIDTH, 5e-6, "dx");
}

TEST_MAIN(NULL, NULL)
