/*
 * Test the fast tables' properties other than values: products stay on the calling thread and have
 * the same bytes for any alignment of operands, and ops propagate NaN.  Also test the error that
 * names what the CPU lacks, and the exponential.
 */
#include "tests/unit/kernels.h"

#include <dirent.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dnnl.h"
#include "kernels/ops/ops.h"
#include "lib/base/isa.h"

static const struct fm_ops *cpu(void)
{
    const struct fm_ops *ops = NULL;
    struct fm_err err = {0};
    assert_ok(fm_ops_cpu(&ops, FM_PRECISION_F32, &err));
    return ops;
}

static int count_threads(void)
{
    int threads = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *entry; (entry = readdir(tasks));)
        threads += entry->d_name[0] != '.';
    closedir(tasks);
    return threads;
}

/* By default oneDNN would start a thread per core at its first use, which is here. */
KERNEL_TEST(products_stay_on_the_calling_thread)
{
    size_t n = 512;
    float *a = normals(n * n, 1), *c = floats(n * n);
    int before = count_threads(); /* an emulator adds a thread */
    cpu()->gemm(false, true, (int)n, (int)n, (int)n, 1, fm_f32(a), (int)n, fm_f32(a), (int)n, 0, c,
                (int)n);
    assert_int_equal(count_threads(), before);
}

KERNEL_TEST(bf16_is_refused_by_name_without_the_instructions)
{
    const struct fm_ops *ops = NULL;
    int code = fm_ops_cpu(&ops, FM_PRECISION_BF16, &err);
    FILE *f = fopen("/proc/cpuinfo", "r");
    char *line = NULL;
    size_t size = 0;
    bool has = false;
    while (f && getline(&line, &size, f) > 0)
        has = has || strstr(line, " avx512_bf16") || strstr(line, " amx_bf16");
    free(line);
    if (f)
        fclose(f);
    has = has && fm_isa_limit() >= FM_ISA_AVX512;
    assert_int_equal(code, has ? FM_OK : FM_EDEVICE);
    assert_true(has ? ops == fm_ops_cpu_bf16() : strstr(err.text, "avx512_bf16") != NULL);
}

KERNEL_TEST(products_do_not_depend_on_alignment)
{
    static const int shapes[][3] = {
        {33, 70, 129}, {1, 512, 128}, {64, 64, 10}, {7, 1, 300}, {128, 256, 96}};
    for (int c = 0; c < 5 * 4; c++) {
        int M = shapes[c / 4][0], N = shapes[c / 4][1], K = shapes[c / 4][2];
        bool ta = c & 1, tb = c & 2;
        float *a = normals((size_t)M * K + 16, 1), *b = normals((size_t)K * N + 16, 1);
        float *first = floats((size_t)M * N), *y = floats((size_t)M * N + 16);
        int lda = ta ? M : K, ldb = tb ? K : N;
        fm_dnnl_sgemm(ta, tb, M, N, K, 1, a, lda, b, ldb, 0, first, N);
        for (int shift = 1; shift < 16; shift++) {
            memmove(a + shift, a + shift - 1, (size_t)M * K * sizeof *a);
            memmove(b + shift, b + shift - 1, (size_t)K * N * sizeof *b);
            fm_dnnl_sgemm(ta, tb, M, N, K, 1, a + shift, lda, b + shift, ldb, 0, y + 16 - shift, N);
            assert_memory_equal(first, y + 16 - shift, (size_t)M * N * sizeof *y);
        }
        check_guards();
        free_arrays();
    }
}

/* One NaN among the inputs must reach the outputs that depend on it. */
KERNEL_TEST(nan_stays_visible)
{
    enum { N = 40, W = 70 };
    const struct fm_ops *tables[] = {fm_ops_ref(), cpu()};
    for (int i = 0; i < 2; i++) {
        const struct fm_ops *ops = tables[i];
        for (int at = 0; at < N; at += 39) {
            float *x = normals(N * W, 1), *w = normals(W * W, 1), *y = floats(N * W);
            float *aux = floats(N * W);
            double ce[2] = {0}, kl[2] = {0}, sums[W] = {0};
            int32_t top[2], target[2] = {3, 3}, ids[2];
            x[at] = NAN;
            ops->norm(fm_to_f32(y), aux, x, w, i ? w : NULL, N, W, 1e-5f);
            assert_true(isnan(y[1]) && isnan(aux[0]));
            ops->gemm(false, true, N, W, W, 1, fm_f32(x), W, fm_f32(w), W, 0, y, W);
            assert_true(isnan(y[0]) && isnan(y[W - 1]));
            ops->swiglu(fm_to_f32(y), x, 1, W);
            assert_true(isnan(y[at / 2]));
            ops->channel_sums(sums, fm_f32(x), fm_f32(w), 1, W);
            assert_true(isnan(sums[at]));
            memset(sums, 0, sizeof sums);
            ops->channel_scores(sums, fm_f32(w), fm_f32(w), fm_f32(x), fm_f32(w), fm_f32(w),
                                fm_f32(w), 1, W / 2, W);
            assert_true(isnan(sums[at / 2]) && !isnan(sums[W / 2 - 1]));
            ops->attention(y, x, w, w, NULL, 1, N, 1, 1, W, W, sqrt(W), 0);
            assert_true(isnan(y[0]));
            ops->route(ids, aux, x, 1, W, 2);
            assert_true(isnan(aux[0]) && isnan(aux[1]));
            struct fm_route_rule rule = {.sigmoid = true, .groups = 1, .scale = 1};
            memcpy(y, x, W * sizeof *y);
            ops->route_scored(ids, aux, y, NULL, &rule, 1, W, 2);
            assert_true(isnan(aux[0]) && isnan(aux[1]));
            ops->sparsemixer(ids, aux, x, 1, W, 0.02f);
            assert_true(isnan(aux[0]));
            ops->loss(ce, kl, top, y, x, target, 1, W, NULL);
            assert_true(isnan(kl[0]));
            ops->loss(ce, kl, top, x, w, target, 1, W, NULL);
            assert_true(isnan(ce[0]) && isnan(kl[0]));
            free_arrays();
        }
    }
}

KERNEL_TEST(fast_exponential_is_good_to_its_last_bit_or_two)
{
    double worst = 0;
    for (uint32_t bits = 0; bits < 0xff800000u; bits += 509) {
        float x;
        memcpy(&x, &bits, sizeof x);
        if (!(x >= -87.3f && x <= 88.7f))
            continue;
        double want = exp((double)x), ulp = ldexp(1, ilogb(want) - 23);
        worst = fmax(worst, fabs(fm_expf(x) - want) / ulp);
    }
    expect_near(worst, 0.75, 0.75, "worst error in units in the last place");
    for (float x = -104; x < -87; x += 0.01f)
        expect_near(fm_expf(x), exp((double)x), 0x1.2p-149, "denormal result");
    assert_true(fm_expf(0) == 1 && fm_expf(INFINITY) == INFINITY && fm_expf(-INFINITY) == 0);
    for (float x = 128; x < INFINITY; x *= 1.25f)
        assert_true(fm_expf(x) == INFINITY && fm_expf(-x) == 0);
    assert_true(fm_expf(88.73f) == INFINITY && fm_expf(-105) == 0 && isnan(fm_expf(NAN)));
}

KERNEL_TEST(the_library_names_its_version_and_instructions)
{
    char text[64];
    int major, minor, patch;
    char isa[32];
    fm_ops_dnnl_version(text, sizeof text);
    assert_int_equal(sscanf(text, "%d.%d.%d %31s", &major, &minor, &patch, isa), 4);
    assert_true(major >= 2);
}

TEST_MAIN(NULL, NULL)
