/*
 * Compare the fast tables with the definition, each op at several odd sizes.  The bytes must be the
 * same for any number of threads, and nothing may be written outside the outputs.
 *
 * Tolerances are relative to the largest value of an output.  Products and sums are made in
 * float32: their error is about 6e-8 times the square root of their length, and cancellation adds
 * to it; 5e-6 is enough for all of them at these sizes.  Elementwise ops get 1e-6.
 */
#include "tests/unit/outputs.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dnnl.h"
#include "kernels/ops/ops.h"
#include "lib/base/isa.h"
#include "lib/base/pool.h"

#define TOL_SUM 5e-6
#define TOL_EACH 1e-6
#define TOL_BF16 2e-2 /* operands have 8 bits */

/* A case runs one or more ops on random inputs of the sizes z. */
typedef void run_case(const struct fm_ops *ops, const int *z, struct outputs *o);

/* In each case z holds the sizes.  Here: M N K ta tb beta; leading dimensions have gaps. */
static void run_gemm(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    int M = z[0], N = z[1], K = z[2], lda = (z[3] ? M : K) + 3, ldb = (z[4] ? K : N) + 1;
    int ldc = N + 2;
    float *a = normals((size_t)(z[3] ? K : M) * lda, 1);
    float *b = normals((size_t)(z[4] ? N : K) * ldb, 1);
    float *c = give(o, normals((size_t)M * ldc, 1), (size_t)M * ldc, TOL_SUM);
    for (size_t i = 0; !z[5] && i < (size_t)M * ldc; i++)
        if (i % (size_t)ldc < (size_t)N)
            c[i] = NAN; /* must not be read with beta 0 */
    ops->gemm(z[3], z[4], M, N, K, 0.75f, fm_f32(a), lda, fm_f32(b), ldb, (float)z[5], c, ldc);
}

/* z: N H, whether there is a bias */
static void run_norm(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    size_t n = (size_t)z[0] * z[1];
    float *x = normals(n, 2), *w = normals(z[1], 1), *dy = normals(n, 1);
    const float *b = z[2] ? normals(z[1], 1) : NULL;
    float *y = give(o, floats(n), n, TOL_EACH), *rstd = give(o, floats(z[0]), z[0], TOL_EACH);
    float *dx = give(o, normals(n, 1), n, TOL_EACH);
    ops->norm(fm_to_f32(y), rstd, x, w, b, z[0], z[1], 1e-5f);
    ops->norm_back(dx, dy, x, w, b, rstd, z[0], z[1]);
}

/* z: S T heads C R pairs; the last R elements of each head are rotated */
static void run_rope(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    size_t n = (size_t)z[0] * z[1] * z[2] * z[3], half = (size_t)z[1] * (z[4] / 2);
    float *c = normals(half, 1), *s = normals(half, 1);
    ops->rope(give(o, normals(n, 1), n, TOL_EACH) + z[3] - z[4], c, s, z[0] * z[1], z[1], z[2],
              z[3], z[4], z[5], -1);
}

/* z: S T Q G C D window sinks */
static void run_attention(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    size_t rq = (size_t)z[0] * z[1] * z[2], rk = (size_t)z[0] * z[1] * z[3], C = z[4], D = z[5];
    float *q = normals(rq * C, 1), *k = normals(rk * C, 1), *v = normals(rk * D, 1);
    float *d_o = normals(rq * D, 1), *y = give(o, floats(rq * D), rq * D, TOL_SUM);
    float *dq = give(o, floats(rq * C), rq * C, TOL_SUM);
    float *dk = give(o, floats(rk * C), rk * C, TOL_SUM);
    float *dv = give(o, floats(rk * D), rk * D, TOL_SUM);
    double root = sqrt(z[4]) * (C == D ? 1 : 0.7);
    const float *sinks = z[7] ? normals((size_t)z[2], 2) : NULL;
    ops->attention(y, q, k, v, sinks, z[0], z[1], z[2], z[3], z[4], z[5], root, z[6]);
    ops->attention_back(dq, dk, dv, d_o, y, q, k, v, sinks, z[0], z[1], z[2], z[3], z[4], z[5],
                        root, z[6]);
}

/* z: n m; a is a product with its transpose, plus a ridge */
static void run_solve(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    size_t n = (size_t)z[0], m = (size_t)z[1];
    float *b = normals(n * n, 1), *side = normals(n * m, 1);
    double *a = zeros((int)(n * n)), *x = give_doubles(o, n * m, 0);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            for (size_t k = 0; k < n; k++)
                a[i * n + j] += (double)b[i * n + k] * (double)b[j * n + k];
            a[i * n + j] = j > i ? (double)NAN : a[i * n + j] + (i == j ? 0.1 * (double)n : 0);
        }
    for (size_t i = 0; i < n * m; i++)
        x[i] = (double)side[i];
    ops->solve(x, a, z[0], z[1]);
}

/* z: N Q A R D */
static void run_join_keys(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    size_t heads = (size_t)z[0] * z[1], nkv = heads * (z[2] + z[4]), nr = (size_t)z[0] * z[3];
    size_t nk = heads * (z[2] + z[3]), nv = heads * z[4];
    float *kv = normals(nkv, 1), *r = normals(nr, 1), *dk = normals(nk, 1), *dv = normals(nv, 1);
    float *k = give(o, floats(nk), nk, 0), *v = give(o, floats(nv), nv, 0);
    float *dkv = give(o, floats(nkv), nkv, 0), *dr = give(o, floats(nr), nr, TOL_SUM);
    ops->join_keys(k, v, kv, r, z[0], z[1], z[2], z[3], z[4]);
    ops->join_keys_back(dkv, dr, dk, dv, z[0], z[1], z[2], z[3], z[4]);
}

/* z: S T G Q C D */
static void run_delta(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    size_t rows = (size_t)z[0] * z[1], nq = rows * z[3], no = nq * z[5];
    size_t nx = rows * (2 * z[2] * z[4] + z[3] * z[5]);
    float *x = normals(nx, 1), *a = normals(nq, 1), *b = normals(nq, 1), *d_o = normals(no, 1);
    float *rate = normals(z[3], 1), *bias = normals(z[3], 1);
    float *g = give(o, floats(nq), nq, TOL_EACH), *beta = give(o, floats(nq), nq, TOL_EACH);
    float *dg = give(o, floats(nq), nq, 2 * TOL_SUM), *dbeta = give(o, floats(nq), nq, TOL_SUM);
    float *dx = give(o, floats(nx), nx, TOL_SUM), *y = give(o, floats(no), no, TOL_SUM);
    ops->delta_gates(g, beta, a, b, rate, bias, (int)rows, z[3]);
    ops->delta_rule(y, x, g, beta, z[0], z[1], z[2], z[3], z[4], z[5]);
    ops->delta_rule_back(dx, dg, dbeta, d_o, x, g, beta, z[0], z[1], z[2], z[3], z[4], z[5]);
    ops->delta_gates_back(give(o, floats(nq), nq, 2 * TOL_SUM), give(o, floats(nq), nq, TOL_SUM),
                          dg, dbeta, a, beta, rate, bias, (int)rows, z[3]);
}

/* z: S T H W */
static void run_convolve(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    size_t n = (size_t)z[0] * z[1] * z[2];
    float *x = normals(n, 1), *w = normals((size_t)z[2] * z[3], 1), *dy = normals(n, 1);
    for (int silu = 0; silu < 2; silu++) {
        ops->convolve(give(o, floats(n), n, TOL_EACH), x, w, silu, z[0], z[1], z[2], z[3]);
        ops->convolve_back(give(o, floats(n), n, TOL_SUM), dy, x, w, silu, z[0], z[1], z[2], z[3]);
    }
}

/* z: count, silu */
static void run_gates(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    size_t n = z[0];
    float *x = normals(n, 1), *u = normals(n, 4), *dy = normals(n, 1);
    ops->gate(give(o, floats(n), n, TOL_EACH), x, u, z[1], z[0]);
    float *dx = give(o, floats(n), n, TOL_EACH), *du = give(o, floats(n), n, TOL_EACH);
    ops->gate_back(dx, du, dy, x, u, z[1], z[0]);
    ops->shift(give(o, floats(n), n, 0), x, 1, z[0]);
    ops->multiply(give(o, floats(n), n, 0), x, u, z[0]);
}

/* z: N E K */
static void run_route(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    size_t n = (size_t)z[0] * z[2];
    float *logits = normals((size_t)z[0] * z[1], 1), *dw = normals(n, 1);
    int32_t *ids = give_ints(o, n);
    float *w = give(o, floats(n), n, TOL_EACH);
    float *dlogits = give(o, floats((size_t)z[0] * z[1]), (size_t)z[0] * z[1], TOL_EACH);
    ops->route(ids, w, logits, z[0], z[1], z[2]);
    ops->route_back(dlogits, dw, ids, w, z[0], z[1], z[2]);
}

/* z: N E K */
static void run_route_raw(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    size_t n = (size_t)z[0] * z[2], all = (size_t)z[0] * z[1];
    float *p = give(o, normals(all, 1), all, TOL_EACH), *dw = normals(n, 1);
    int32_t *ids = give_ints(o, n);
    float *w = give(o, floats(n), n, TOL_EACH), *dlogits = give(o, floats(all), all, TOL_EACH);
    ops->route_raw(ids, w, p, z[0], z[1], z[2]);
    ops->route_raw_back(dlogits, dw, ids, p, z[0], z[1], z[2]);
}

/* z: N E K groups kept sigmoid */
static void run_route_scored(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    size_t n = (size_t)z[0] * z[2], all = (size_t)z[0] * z[1];
    struct fm_route_rule rule = {.sigmoid = z[5],
                                 .groups = z[3],
                                 .topk_group = z[4],
                                 .group_sum = 1 + z[5],
                                 .renormalised = z[5],
                                 .eps = 1e-20f,
                                 .scale = 2.5f};
    float *s = give(o, normals(all, 1), all, TOL_EACH), *bias = normals(z[1], 0.3);
    float *dw = normals(n, 1), *w = give(o, floats(n), n, TOL_EACH);
    float *dlogits = give(o, floats(all), all, TOL_EACH);
    int32_t *ids = give_ints(o, n);
    ops->route_scored(ids, w, s, z[5] ? bias : NULL, &rule, z[0], z[1], z[2]);
    ops->route_scored_back(dlogits, dw, ids, s, &rule, z[0], z[1], z[2]);
}

/* z: N I */
static void run_gate(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    size_t n = (size_t)z[0] * z[1];
    float *h = give(o, normals(n, 1), n, TOL_EACH), *u = normals(z[0], 3);
    float *dh = give(o, normals(n, 1), n, TOL_EACH), *b = normals(z[1], 1);
    float *s = give(o, floats(z[0]), z[0], TOL_EACH), *du = give(o, floats(z[0]), z[0], TOL_EACH);
    float *y = give(o, normals(n, 2), n, TOL_EACH), *dy = give(o, normals(n, 1), n, 0);
    ops->gate_rows(h, s, u, z[0] % 2, z[0], z[1]);
    ops->gate_rows_back(dh, du, h, s, z[0] % 2, z[0], z[1]);
    ops->add_rows(y, b, z[0], z[1]);
    ops->clamp_back(dy, y, 1.5f, (int64_t)n);
    ops->clamp(y, 1.5f, (int64_t)n);
}

/* z: N E */
static void run_sparsemixer(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    size_t n = (size_t)z[0] * 2, all = (size_t)z[0] * z[1];
    float *logits = normals(all, 1), *dw = normals(n, 1);
    int32_t *ids = give_ints(o, n);
    float *w = give(o, floats(n), n, TOL_EACH), *dlogits = give(o, floats(all), all, TOL_EACH);
    ops->sparsemixer(ids, w, logits, z[0], z[1], 0.4f);
    ops->sparsemixer_back(dlogits, dw, ids, w, logits, z[0], z[1], 0.4f);
}

/* z: rows of x, n, H, K */
static void run_rows(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    size_t n = (size_t)z[1] * z[2], slots = (size_t)z[0] * z[3];
    float *x = normals((size_t)z[0] * z[2], 1), *scale = normals(z[1], 1), *w = normals(slots, 1);
    int32_t *rows = below(z[1], z[0]), *where = below(slots, z[1]);
    float *plain = give(o, floats(n), n, 0), *scaled = give(o, floats(n), n, TOL_EACH);
    ops->gather(fm_to_f32(plain), fm_f32(x), rows, NULL, z[1], z[2]);
    ops->gather(fm_to_f32(scaled), fm_f32(x), rows, scale, z[1], z[2]);
    ops->embed(give(o, floats(n), n, 0), rows, fm_f32(x), z[1], z[2]);
    size_t sums = (size_t)z[0] * z[2];
    ops->combine(give(o, normals(sums, 1), sums, TOL_EACH), plain, where, w, z[0], z[3], z[2]);
    ops->combine(give(o, normals(sums, 1), sums, TOL_EACH), plain, where, NULL, z[0], z[3], z[2]);
    ops->add(give(o, copied(plain, n), n, TOL_EACH), scaled, (int64_t)n);
}

/* z: n I k */
static void run_swiglu(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    size_t n = (size_t)z[0] * z[1], nk = (size_t)z[0] * z[2];
    float *gu = normals(2 * n, 4), *dh = normals(n, 1);
    float *h = give(o, floats(n), n, TOL_EACH);
    ops->swiglu(fm_to_f32(h), gu, z[0], z[1]);
    ops->swiglu_back(fm_to_f32(give(o, floats(2 * nk), 2 * nk, TOL_EACH)), dh, gu, z[0], z[1],
                     z[2]);
    ops->dot_rows(give(o, floats(z[0]), z[0], TOL_SUM), fm_f32(h), fm_f32(dh), z[0], z[1], z[2]);
    ops->channel_sums(give_doubles(o, z[1], TOL_EACH), fm_f32(h), fm_f32(dh), z[0], z[1]);
}

/* z: count */
static void run_softcap(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    size_t n = (size_t)z[0];
    float *x = normals(n, 40);
    x[0] = 1e30f;
    float *y = give(o, x, n, TOL_EACH);
    ops->softcap(y, 30, z[0]);
    ops->softcap_back(give(o, normals(n, 1), n, TOL_SUM), y, 30, z[0]);
}

/* z: n I k */
static void run_geglu(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    size_t n = (size_t)z[0] * z[1], nk = (size_t)z[0] * z[2];
    float *gu = normals(2 * n, 4), *dh = normals(n, 1);
    gu[0] = n == 1 ? 1e30f : gu[0]; /* its cube is no float */
    ops->geglu(fm_to_f32(give(o, floats(n), n, TOL_EACH)), gu, z[0], z[1]);
    ops->geglu_back(fm_to_f32(give(o, floats(2 * nk), 2 * nk, TOL_EACH)), dh, gu, z[0], z[1], z[2]);
}

/* z: n I k */
static void run_swiglu_clamped(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    size_t n = (size_t)z[0] * z[1], nk = (size_t)z[0] * z[2];
    float *gu = normals(2 * n, 2), *dh = normals(n, 1), *b = normals(2 * (size_t)z[1], 1);
    float *h = give(o, floats(n), n, TOL_EACH);
    float *dgu = give(o, floats(2 * nk), 2 * nk, TOL_EACH);
    ops->swiglu_clamped(fm_to_f32(h), gu, z[0], z[1], 1.702f, 1.5f);
    ops->swiglu_clamped_back(fm_to_f32(dgu), dh, gu, z[0], z[1], z[2], 1.702f, 1.5f);
    ops->add_dots(give(o, normals(z[0], 1), z[0], TOL_SUM), fm_f32(h), b, z[0], z[1]);
    ops->bias_scores(give_doubles(o, z[1], TOL_SUM), b, fm_f32(gu), z[0], z[1]);
}

/* z: n I k */
static void run_swiglu_limited(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    size_t n = (size_t)z[0] * z[1], nk = (size_t)z[0] * z[2];
    float *gu = normals(2 * n, 2), *dh = normals(n, 1);
    float *h = give(o, floats(n), n, TOL_EACH);
    float *dgu = give(o, floats(2 * nk), 2 * nk, TOL_EACH);
    ops->swiglu_limited(fm_to_f32(h), gu, z[0], z[1], 1.5f);
    ops->swiglu_limited_back(fm_to_f32(dgu), dh, gu, z[0], z[1], z[2], 1.5f);
}

/* z: rows, columns, dtype of what is read */
static void run_memory(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    int n = z[0], H = z[1], H2 = H + 3;
    size_t count = (size_t)n * H;
    enum fm_dtype dtype = (enum fm_dtype)z[2];
    float *x = normals(count, 1), *rounded = give(o, copied(x, count), count, 0);
    void *raw = array(count, sizeof(float));
    int32_t *rows = array((size_t)n, sizeof *rows), *columns = array((size_t)H, sizeof *columns);
    for (int i = 0; i < n; i++)
        rows[i] = n - 1 - i;
    for (int i = 0; i < H; i++)
        columns[i] = (i + 1) % H;
    fm_dtype_from_f32(raw, x, dtype, count);
    struct fm_in in = {raw, dtype, NULL};
    ops->round_to(rounded, dtype, (int64_t)count);
    float *apart = give(o, normals((size_t)n * H2, 1), (size_t)n * H2, 0);
    ops->convert(fm_to_f32(apart), H2, in, rows, n, H);
    ops->transpose(fm_to_f32(give(o, floats(count), count, 0)), in, columns, n, H);
    struct fm_out narrow = {array(count, sizeof(float)), dtype};
    ops->convert(narrow, H, fm_f32(x), NULL, n, H);
    ops->convert(fm_to_f32(give(o, floats(count), count, 0)), (int64_t)count,
                 (struct fm_in){narrow.data, dtype, NULL}, NULL, 1, (int64_t)count);
    ops->transpose(narrow, fm_f32(x), NULL, n, H);
    fm_dtype_to_f32(give(o, floats(count), count, 0), narrow.data, dtype, count);
    ops->convert(narrow, H, in, rows, n, H);
    fm_dtype_to_f32(give(o, floats(count), count, 0), narrow.data, dtype, count);
    ops->transpose(narrow, in, columns, n, H);
    fm_dtype_to_f32(give(o, floats(count), count, 0), narrow.data, dtype, count);
    float *copy = give(o, floats(count), count, 0);
    ops->copy(copy, x, count * sizeof *copy);
    ops->zero(copy + count / 2, (count - count / 2) * sizeof *copy);
}

/* z: N E K P */
static void run_sort(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    size_t R = (size_t)z[0] * z[2];
    float *weights = normals(R, 1), *scale = give(o, floats(R), R, 0);
    int32_t *ids = below(R, z[1]), *first = give_ints(o, (size_t)z[1] * z[3] + 1);
    int32_t *rows = give_ints(o, R), *where = give_ints(o, R);
    ops->sort_rows(first, rows, scale, where, ids, weights, z[0], z[1], z[2], z[3]);
}

/* z: n I k */
static void run_sums(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    int n = z[0], I = z[1], k = z[2];
    size_t count = (size_t)n * I, kept = (size_t)n * k;
    float *x = normals(2 * count, 1), *total = give(o, normals(count, 1), count, TOL_EACH);
    float *part = give(o, normals(count, 1), count, 0), *by = normals(count, 1);
    double *sum = give_doubles(o, count, TOL_EACH), *more = zeros((int)count);
    uint32_t width[3] = {0, (uint32_t)k, (uint32_t)I};
    for (size_t i = 0; i < count; i++)
        sum[i] = more[i] = total[i];
    ops->split_pairs(fm_to_f32(give(o, floats(kept), kept, 0)),
                     fm_to_f32(give(o, floats(kept), kept, 0)), fm_f32(x), n, I, k);
    ops->divide(total, by, (int64_t)count);
    ops->scale(total, 0.3f, (int64_t)count);
    ops->accumulate(fm_to_f32(total), fm_to_f32(part), 0.7, (int64_t)count);
    ops->accumulate((struct fm_out){sum, FM_F64}, (struct fm_out){more, FM_F64}, 0.7,
                    (int64_t)count);
    ops->width_sums(give_doubles(o, 3, TOL_EACH), sum, width, 3, false);
    ops->width_sums(give_doubles(o, 3, TOL_EACH), sum, width, 3, true);
}

/* Add n bfloat16 elements of y as an output; a rounding may differ in the last of 8 bits. */
static void give_bf16(struct outputs *o, struct fm_out y, size_t n)
{
    fm_dtype_to_f32(give(o, floats(n), n, 8e-3), y.data, FM_BF16, n);
}

/* z: M N K: products and rows of bfloat16 */
static void run_bf16_rows(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    int M = z[0], N = z[1], K = z[2];
    size_t a = (size_t)M * K, b = (size_t)N * K, c = (size_t)M * N;
    struct fm_in A = as_bf16(normals(a, 1), a), B = as_bf16(normals(b, 1), b);
    float *x = normals(a, 1), *rstd = give(o, floats(M), M, TOL_EACH), *scale = normals(M, 1);
    int32_t *ids = below(M, M);
    struct fm_out y = room_bf16(a);
    ops->gemm(false, true, M, N, K, 1, A, K, B, K, 0, give(o, floats(c), c, TOL_SUM), N);
    ops->gemm(false, true, M, N, K, 0.5f, fm_f32(x), K, B, K, 1, give(o, normals(c, 1), c, TOL_SUM),
              N);
    ops->gemm(true, false, K, K, M, 1, A, K, fm_f32(x), K, 0,
              give(o, floats((size_t)K * K), (size_t)K * K, TOL_SUM), K);
    ops->gemm(false, true, M, N, K, 1, A, K, B, K, 1, give(o, normals(c, 1), c, TOL_SUM), N);
    ops->gemm(true, false, K, N, M, 0.5f, A, K, as_bf16(normals(c, 1), c), N, 0,
              give(o, floats(b), b, TOL_SUM), N);
    size_t apart = (size_t)M * (size_t)(N + 3);
    ops->gemm(false, false, M, N, K, 1, A, K, B, N, 1, give(o, normals(apart, 1), apart, TOL_SUM),
              N + 3);
    ops->norm(y, rstd, x, x, NULL, M, K, 1e-5f);
    give_bf16(o, y, a);
    ops->gather(y, A, ids, scale, M, K);
    give_bf16(o, y, a);
    ops->gather(y, fm_f32(x), ids, NULL, M, K);
    give_bf16(o, y, a);
    ops->embed(give(o, floats(a), a, 0), ids, A, M, K);
}

/* z: n I H k: the middle of an expert in bfloat16 */
static void run_bf16_expert(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    int n = z[0], I = z[1], H = z[2], k = z[3];
    size_t rows = (size_t)n * H, wide = (size_t)n * I, W = (size_t)I * H, kept = (size_t)n * k;
    struct fm_in x = as_bf16(normals(rows, 1), rows), dy = as_bf16(normals(rows, 1), rows);
    struct fm_in w = as_bf16(normals(2 * W, 1), 2 * W), down = as_bf16(normals(W, 1), W);
    struct fm_in h = as_bf16(normals(wide, 1), wide), d = as_bf16(normals(2 * wide, 1), 2 * wide);
    float *gu = normals(2 * wide, 4), *dh = normals(wide, 1);
    struct fm_out y = room_bf16(wide), dgu = room_bf16(2 * kept);
    struct fm_out even = room_bf16(kept), odd = room_bf16(kept);
    ops->swiglu(y, gu, n, I);
    give_bf16(o, y, wide);
    ops->swiglu_back(dgu, dh, gu, n, I, k);
    give_bf16(o, dgu, 2 * kept);
    ops->geglu(y, gu, n, I);
    give_bf16(o, y, wide);
    ops->geglu_back(dgu, dh, gu, n, I, k);
    give_bf16(o, dgu, 2 * kept);
    ops->dot_rows(give(o, floats(n), n, TOL_SUM), h, fm_f32(dh), n, I, k);
    ops->channel_sums(give_doubles(o, I, TOL_EACH), h, fm_f32(dh), n, I);
    ops->channel_scores(give_doubles(o, I, TOL_SUM), w, down, d, x, h, dy, n, I, H);
    const int32_t first[] = {7, 7 + n / 3, 7 + n / 3, 7 + n};
    ops->channel_scores_each(give_doubles(o, I, TOL_SUM), w, down, d, x, h, dy, first, 3, I, H);
    ops->split_pairs(even, odd, d, n, I, k);
    give_bf16(o, even, kept);
    give_bf16(o, odd, kept);
}

/* z: n I H */
static void run_scores(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    size_t n = z[0], I = z[1], H = z[2];
    float *gate_up = normals(2 * I * H, 1), *down = normals(I * H, 1), *dgu = normals(n * 2 * I, 1);
    float *x = normals(n * H, 1), *h = normals(n * I, 1), *dy = normals(n * H, 1);
    double *s = give_doubles(o, I, TOL_SUM);
    for (size_t i = 0; i < I; i++)
        s[i] = (double)i;
    ops->channel_scores(s, fm_f32(gate_up), fm_f32(down), fm_f32(dgu), fm_f32(x), fm_f32(h),
                        fm_f32(dy), z[0], z[1], z[2]);
}

/* z: n V teacher(0/1) weights(0/1) */
static void run_loss(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    static const struct fm_loss_weights weights = {0.75f, 1.5f, 0.1f};
    size_t n = z[0], V = z[1];
    float *teacher = normals(n * V, 3);
    int32_t *target = below(n, z[1]);
    target[n / 2] = -1;
    double *ce = give_doubles(o, n, TOL_EACH), *kl = give_doubles(o, n, TOL_EACH);
    int32_t *top = give_ints(o, n);
    float *logits = give(o, normals(n * V, 3), n * V, TOL_EACH);
    ops->loss(ce, kl, top, logits, z[2] ? teacher : NULL, target, z[0], z[1],
              z[3] ? &weights : NULL);
}

/* z: count t */
static void run_adamw(const struct fm_ops *ops, const int *z, struct outputs *o)
{
    size_t n = z[0];
    float *g = normals(n, 1), *v = normals(n, 1);
    for (size_t i = 0; i < n; i++)
        v[i] *= v[i];
    float *p = give(o, normals(n, 1), n, TOL_EACH), *m = give(o, normals(n, 1), n, TOL_EACH);
    ops->adamw(p, m, give(o, v, n, TOL_EACH), g, (int64_t)n, 0.01f, 0.9f, 0.999f, 1e-8f, 0.01f,
               z[1]);
}

static const struct {
    const char *name;
    run_case *run;
    int z[8];
} cases[] = {
    {"gemm", run_gemm, {3, 17, 5, 0, 0, 0}},
    {"gemm", run_gemm, {1, 1, 1, 1, 1, 1}},
    {"gemm", run_gemm, {33, 70, 129, 0, 1, 1}},
    {"gemm", run_gemm, {33, 70, 129, 1, 0, 0}},
    {"gemm", run_gemm, {48, 5, 37, 1, 1, 0}},
    {"gemm", run_gemm, {5, 48, 0, 0, 0, 0}},
    {"gemm", run_gemm, {5, 48, 0, 0, 1, 1}},
    {"gemm", run_gemm, {530, 1050, 3, 0, 1, 0}}, /* several tiles */
    {"gemm", run_gemm, {530, 1050, 3, 1, 0, 1}},
    {"norm", run_norm, {3, 17, 0}},
    {"norm", run_norm, {1, 1, 0}},
    {"norm", run_norm, {700, 48, 0}}, /* several blocks */
    {"norm", run_norm, {3, 17, 1}},
    {"norm", run_norm, {700, 75, 1}},
    {"rope", run_rope, {2, 3, 2, 10, 10, 0}},
    {"rope", run_rope, {3, 130, 3, 66, 66, 0}},
    {"rope", run_rope, {2, 3, 2, 11, 6, 0}},
    {"rope", run_rope, {3, 130, 3, 69, 66, 1}},
    {"attention", run_attention, {2, 5, 6, 2, 10, 10, 0}},
    {"attention", run_attention, {1, 130, 6, 2, 10, 10, 0}},
    {"attention", run_attention, {2, 129, 2, 2, 34, 34, 20}},
    {"attention", run_attention, {1, 200, 3, 1, 8, 8, 64}},
    {"attention", run_attention, {3, 1, 2, 1, 2, 2, 0}},
    {"attention", run_attention, {2, 67, 4, 2, 11, 6, 0}},
    {"attention", run_attention, {1, 131, 3, 3, 14, 37, 70}},
    {"attention", run_attention, {2, 131, 4, 2, 10, 10, 7, 1}},
    {"attention", run_attention, {1, 66, 3, 1, 6, 9, 0, 1}},
    {"join keys", run_join_keys, {3, 5, 7, 4, 3}},
    {"join keys", run_join_keys, {700, 3, 12, 8, 20}},
    {"delta", run_delta, {2, 5, 2, 4, 7, 3}},
    {"delta", run_delta, {1, 150, 1, 3, 12, 9}}, /* several chunks */
    {"convolve", run_convolve, {3, 5, 7, 4}},
    {"convolve", run_convolve, {1, 2, 300, 4}}, /* several blocks; shorter than the filter */
    {"convolve", run_convolve, {1, 9, 11, 1}},
    {"gates", run_gates, {37, 0}},
    {"gates", run_gates, {40000, 1}},
    {"route", run_route, {3, 5, 2}},
    {"route", run_route, {2100, 8, 1}},
    {"route", run_route, {7, 8, 8}},
    {"route_raw", run_route_raw, {3, 5, 2}},
    {"route_raw", run_route_raw, {1100, 60, 4}},
    {"route_raw", run_route_raw, {7, 8, 8}},
    {"route_scored", run_route_scored, {3, 5, 2, 1, 1, 1}},
    {"route_scored", run_route_scored, {1100, 60, 4, 6, 3, 1}},
    {"route_scored", run_route_scored, {700, 16, 3, 4, 2, 0}},
    {"route_scored", run_route_scored, {7, 8, 8, 1, 1, 0}},
    {"gate", run_gate, {5, 37}},
    {"gate", run_gate, {1, 1}},
    {"gate", run_gate, {300, 1101}},
    {"sparsemixer", run_sparsemixer, {3, 2}},
    {"sparsemixer", run_sparsemixer, {700, 16}},
    {"rows", run_rows, {7, 11, 17, 3}},
    {"rows", run_rows, {1, 1, 1, 1}},
    {"rows", run_rows, {900, 800, 101, 2}},
    {"swiglu", run_swiglu, {3, 17, 11}},
    {"swiglu", run_swiglu, {1, 37, 1}},
    {"swiglu", run_swiglu, {60, 1100, 1100}},
    {"softcap", run_softcap, {1}},
    {"softcap", run_softcap, {70001}},
    {"geglu", run_geglu, {3, 17, 11}},
    {"geglu", run_geglu, {1, 1, 1}},
    {"geglu", run_geglu, {60, 1100, 1099}},
    {"clamped", run_swiglu_clamped, {3, 17, 11}},
    {"clamped", run_swiglu_clamped, {1, 1, 1}},
    {"clamped", run_swiglu_clamped, {60, 1100, 1099}},
    {"limited", run_swiglu_limited, {3, 17, 11}},
    {"limited", run_swiglu_limited, {60, 1100, 1099}},
    {"memory", run_memory, {3, 5, FM_F32}},
    {"memory", run_memory, {1, 1, FM_BF16}},
    {"memory", run_memory, {37, 2100, FM_BF16}}, /* several blocks and tiles */
    {"memory", run_memory, {300, 301, FM_F16}},
    {"sort", run_sort, {6, 5, 2, 1}},
    {"sort", run_sort, {12, 3, 3, 4}},
    {"sort", run_sort, {700, 60, 4, 7}},
    {"sums", run_sums, {3, 17, 11}},
    {"sums", run_sums, {1, 1, 1}},
    {"sums", run_sums, {70, 1100, 1099}},
    {"bf16 rows", run_bf16_rows, {3, 17, 5}},
    {"bf16 rows", run_bf16_rows, {530, 33, 140}},
    {"bf16 rows", run_bf16_rows, {63, 4, 205}}, /* oneDNN 2.6.3 cannot do one of them with AMX */
    {"bf16 expert", run_bf16_expert, {3, 17, 5, 11}},
    {"bf16 expert", run_bf16_expert, {90, 260, 70, 260}},
    {"scores", run_scores, {1, 37, 48}},
    {"scores", run_scores, {19, 131, 33}},
    {"scores", run_scores, {6, 150, 1060}},
    {"loss", run_loss, {4, 17, 1, 1}},
    {"loss", run_loss, {4, 17, 0, 1}},
    {"loss", run_loss, {1, 1, 1, 1}},
    {"loss", run_loss, {9, 3001, 1, 1}},
    {"loss", run_loss, {9, 3001, 1, 0}},
    {"solve", run_solve, {1, 1}},
    {"solve", run_solve, {13, 5}},
    {"solve", run_solve, {64, 64}},
    {"solve", run_solve, {197, 130}},
    {"adamw", run_adamw, {17, 1}},
    {"adamw", run_adamw, {40000, 12}},
};
enum { CASES = sizeof cases / sizeof *cases };

/* Run case c from the same random numbers, whatever was run before. */
static struct outputs run(int c, const struct fm_ops *ops)
{
    struct outputs o = {0};
    arrays.drawn = (uint64_t)c << 32;
    cases[c].run(ops, cases[c].z, &o);
    return o;
}

/* The softmax of a single key is 1, so the gradients of query and key are differences of equal
 * sums, of order 1: 0 in the definition, and a few roundings if one sum is in another order
 * (arm64). */
#define ROUNDINGS (16 * FLT_EPSILON)
static void expect_floats(const float *got, const float *want, size_t n, double tol,
                          const char *what)
{
    bool zero = true;
    for (size_t i = 0; i < n; i++)
        zero = zero && want[i] == 0;
    for (size_t i = 0; zero && i < n; i++)
        if (!(fabsf(got[i]) <= ROUNDINGS))
            fail_msg("%s[%zu] is %.9g, expected 0 within %g", what, i, (double)got[i],
                     (double)ROUNDINGS);
    if (!zero)
        expect_close(got, want, n, tol, what);
}

static void expect_table(const struct fm_ops *ops, double widen)
{
    for (int c = 0; c < CASES; c++) {
        struct outputs got = run(c, ops), want = run(c, fm_ops_ref());
        for (int i = 0; i < got.count; i++) {
            char what[64];
            snprintf(what, sizeof what, "case %d, %s, output %d", c, cases[c].name, i);
            double tol = fmax(widen, want.tol[i]);
            if (want.f[i])
                expect_floats(got.f[i], want.f[i], want.n[i], tol, what);
            else if (want.d[i])
                expect_doubles(got.d[i], want.d[i], want.n[i], tol, what);
            else
                assert_memory_equal(got.i[i], want.i[i], want.n[i] * sizeof(int32_t));
        }
        check_guards();
        free_arrays();
    }
}

static const struct fm_ops *cpu(void)
{
    const struct fm_ops *ops = NULL;
    struct fm_err err = {0};
    assert_ok(fm_ops_cpu(&ops, FM_PRECISION_F32, &err));
    return ops;
}

KERNEL_TEST(every_op_agrees_with_the_definition)
{
    expect_table(cpu(), 0);
}

KERNEL_TEST(bf16_products_agree_within_their_precision)
{
    if (!fm_dnnl_has_bf16())
        skip();
    expect_table(fm_ops_cpu_bf16(), TOL_BF16);
}

/* The backward pass computes the products with gate_up again, for fewer rows at a time. */
KERNEL_TEST(bf16_products_of_a_row_do_not_depend_on_the_other_rows)
{
    enum { M = 530, N = 1152, K = 576 };
    static const int rows[] = {1, 7, 33, 128, 255, 256, 300, 512};
    if (!fm_dnnl_has_bf16())
        skip();
    size_t a = (size_t)M * K, b = (size_t)N * K;
    struct fm_in A = as_bf16(normals(a, 1), a), B = as_bf16(normals(b, 1), b);
    float *all = floats((size_t)M * N), *some = floats((size_t)M * N);
    fm_ops_cpu_bf16()->gemm(false, true, M, N, K, 1, A, K, B, K, 0, all, N);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int n = rows[i], first = M - n;
        struct fm_in part = fm_element(A, (size_t)first * K);
        fm_ops_cpu_bf16()->gemm(false, true, n, N, K, 1, part, K, B, K, 0, some, N);
        assert_memory_equal(some, all + (size_t)first * N, (size_t)n * N * sizeof *some);
    }
}

/* FNV-1a of the bytes of case c's outputs, after `sum`. */
static uint64_t hash_case(uint64_t sum, int c, const struct fm_ops *ops)
{
    struct outputs o = run(c, ops);
    for (int i = 0; i < o.count; i++) {
        size_t bytes = o.n[i] * (o.d[i] ? 8 : 4);
        const unsigned char *p = o.f[i]   ? (unsigned char *)o.f[i]
                                 : o.d[i] ? (unsigned char *)o.d[i]
                                          : (unsigned char *)o.i[i];
        for (size_t b = 0; b < bytes; b++)
            sum = (sum ^ p[b]) * 0x100000001b3;
    }
    free_arrays();
    return sum;
}

static uint64_t fingerprint(const struct fm_ops *ops)
{
    uint64_t sum = 0;
    for (int c = 0; c < CASES; c++)
        sum = hash_case(sum, c, ops);
    return sum;
}

KERNEL_TEST(any_number_of_threads_gives_the_same_bytes)
{
    static const int threads[] = {2, 3, 5};
    uint64_t f32 = fingerprint(cpu()),
             bf16 = fm_dnnl_has_bf16() ? fingerprint(fm_ops_cpu_bf16()) : 0;
    assert_true(f32 != bf16);
    for (int i = 0; i < 3; i++) {
        assert_ok(fm_pool_start(threads[i], &err));
        assert_int_equal(fm_pool_threads(), threads[i]);
        for (int round = 0; round < 2; round++)
            assert_true(fingerprint(cpu()) == f32);
        if (bf16)
            assert_true(fingerprint(fm_ops_cpu_bf16()) == bf16);
        fm_pool_stop();
    }
}

/* True if the case contains products, whose order of summation depends on the level of
 * lib/base/isa.h.  Ops made only of loops (FM_CLONES) have the same bits at every level. */
static bool is_product(int c)
{
    static const char *const product[] = {"gemm",      "attention",   "delta",
                                          "bf16 rows", "bf16 expert", "scores"};
    for (size_t i = 0; i < sizeof product / sizeof *product; i++)
        if (strcmp(cases[c].name, product[i]) == 0)
            return true;
    return false;
}

static const char *self;

static int print_hashes(void)
{
    printf("%s", fm_isa_name(fm_isa()));
    for (int c = 0; c < CASES; c++)
        printf(" %016" PRIx64, hash_case(0, c, cpu()));
    return 0;
}

/* The level is determined once per process, so this program is run again for each level. */
KERNEL_TEST(loops_give_the_same_bits_at_every_level)
{
    for (enum fm_isa isa = FM_ISA_BASE; isa < fm_isa(); isa++) {
        char command[4200], level[16];
        snprintf(command, sizeof command, "FM_ISA=%s '%s' hashes", fm_isa_name(isa), self);
        FILE *f = popen(command, "r");
        assert_non_null(f);
        assert_int_equal(fscanf(f, "%15s", level), 1);
        assert_string_equal(level, fm_isa_name(isa));
        for (int c = 0; c < CASES; c++) {
            uint64_t hash;
            assert_int_equal(fscanf(f, "%" SCNx64, &hash), 1);
            if (!is_product(c) && hash != hash_case(0, c, cpu()))
                fail_msg("case %d, %s, has other bits with FM_ISA=%s than with %s", c,
                         cases[c].name, level, fm_isa_name(fm_isa()));
        }
        assert_int_equal(pclose(f), 0);
    }
}

int main(int argc, char **argv)
{
    self = argv[0];
    if (argc > 1 && strcmp(argv[1], "hashes") == 0)
        return print_hashes();
    return tests_run(NULL, NULL);
}
