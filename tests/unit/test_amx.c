/*
 * Compare every form of the AMX matrix product with the definition, at sizes that are not multiples
 * of a tile, with operands at the end of mapped memory.  Sums must be the same however the product
 * is divided.
 */
#include "tests/unit/kernels.h"

#include <sys/mman.h>
#include <unistd.h>

#include "kernels/cpu/cpu_amx.h"
#include "lib/base/isa.h"

#define TOL_SUM 5e-6

/* Memory that ends before an inaccessible page. */
struct edge {
    char *block;
    size_t mapped;
    void *data;
};

static struct edge take_edge(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (bytes + page - 1) / page * page;
    struct edge e = {.mapped = pages + page};
    e.block = mmap(NULL, e.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(e.block != MAP_FAILED);
    assert_int_equal(mprotect(e.block + pages, page, PROT_NONE), 0);
    e.data = e.block + pages - bytes;
    return e;
}

static void free_edge(struct edge e)
{
    assert_int_equal(munmap(e.block, e.mapped), 0);
}

/* Copy `bytes` bytes to memory that ends before an inaccessible page. */
static struct edge at_edge(const void *from, size_t bytes)
{
    struct edge e = take_edge(bytes);
    memcpy(e.data, from, bytes);
    return e;
}

/* Elements that a (rows, cols) matrix with row stride ld spans. */
static size_t span(int rows, int cols, int ld)
{
    return (size_t)(rows - 1) * (size_t)ld + (size_t)cols;
}

enum { APART = 7 }; /* elements between rows */

/* Compare one product of these sizes: ta and tb transpose the operands, beta is 0 or 1. */
static void try_product(int M, int N, int K, bool ta, bool tb, float beta)
{
    int lda = (ta ? M : K) + APART, ldb = (tb ? K : N) + APART, ldc = N + APART;
    size_t na = ta ? span(K, M, lda) : span(M, K, lda), nb = tb ? span(N, K, ldb) : span(K, N, ldb);
    size_t nc = span(M, N, ldc);
    float *a = normals(na, 1), *b = normals(nb, 1), *want = normals(nc, 1);
    struct edge A = at_edge(as_bf16(a, na).data, na * sizeof(uint16_t));
    struct edge B = at_edge(as_bf16(b, nb).data, nb * sizeof(uint16_t));
    struct edge C = at_edge(want, nc * sizeof *want);
    float *got = C.data;
    if (beta == 0) /* C must not be read */
        for (size_t i = 0; i < nc; i++)
            got[i] = i % (size_t)ldc < (size_t)N ? NAN : want[i];
    fm_ops_ref()->gemm(ta, tb, M, N, K, 1, fm_f32(a), lda, fm_f32(b), ldb, beta, want, ldc);
    fm_cpu_amx_gemm(ta, tb, M, N, K, A.data, lda, B.data, ldb, beta, got, ldc);
    for (size_t i = 0; i < nc; i++) {
        if (i % (size_t)ldc >= (size_t)N)
            assert_memory_equal(&got[i], &want[i], sizeof *got);
        else if (!(fabs(got[i] - want[i]) <= TOL_SUM * (fabs(want[i]) + sqrt(K))))
            fail_msg("%d x %d x %d, ta %d tb %d beta %g, element %zu: %g, not %g", M, N, K, ta, tb,
                     beta, i, got[i], want[i]);
    }
    free_edge(A);
    free_edge(B);
    free_edge(C);
    free_arrays();
}

/* Less than a tile, one more than whole tiles, sums of more than STRETCH terms, and more rows or
 * columns than one task has (cpu_amx_gemm.c). */
KERNEL_TEST(every_form_agrees_at_the_edge_of_memory)
{
    static const int sizes[][3] = {{1, 1, 1},     {33, 70, 129}, {31, 33, 513}, {64, 32, 1100},
                                   {5, 1040, 40}, {1030, 48, 3}, {16, 16, 32}};
    if (!fm_isa_amx())
        skip();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int form = 0; form < 8; form++)
            try_product(sizes[i][0], sizes[i][1], sizes[i][2], form & 1, form & 2,
                        form & 4 ? 1.0f : 0.0f);
}

KERNEL_TEST(sums_do_not_depend_on_the_division_of_the_product)
{
    enum { M = 1100, N = 600, K = 700 };
    if (!fm_isa_amx())
        skip();
    float *a = normals((size_t)M * K, 1), *b = normals((size_t)K * N, 1);
    const uint16_t *A = as_bf16(a, (size_t)M * K).data, *B = as_bf16(b, (size_t)K * N).data;
    float *all = floats((size_t)M * N), *some = floats((size_t)M * N);
    fm_cpu_amx_gemm(false, false, M, N, K, A, K, B, N, 0, all, N);
    for (int i = 0, rows = 1; i < M; i += rows, rows = M - i < 37 ? M - i : 37)
        for (int j = 0; j < N; j += 120)
            fm_cpu_amx_gemm(false, false, rows, 120, K, A + (size_t)i * K, K, B + j, N, 0,
                            some + (size_t)i * N + j, N);
    assert_memory_equal(all, some, (size_t)M * N * sizeof *all);
}

TEST_MAIN(NULL, NULL)
