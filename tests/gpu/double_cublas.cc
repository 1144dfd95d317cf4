/*
 * The strict fake of cuBLAS: the functions that the project loads, in a separate library with
 * cuBLAS's file name.  Products are sums in float64, rounded once.  Matrices are column-major, as
 * in cuBLAS.
 *
 * Grouped products of 16-bit numbers require matrices, their columns and the arrays of pointers to
 * be aligned to 16 bytes: the only kernels that cuBLAS 13 has for them load 8 numbers at once.
 */
#include "tests/gpu/double.h"

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <string.h>

#include <algorithm>
#include <vector>

struct cublasContext {
    cudaStream_t stream;
};

static size_t bytes_of(cudaDataType type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

static double number(const void *p, cudaDataType type, size_t i)
{
    float f;
    if (type == CUDA_R_32F) {
        memcpy(&f, (const char *)p + 4 * i, 4);
    } else if (type == CUDA_R_16BF) {
        uint32_t bits = 0;
        memcpy((char *)&bits + 2, (const char *)p + 2 * i, 2);
        memcpy(&f, &bits, 4);
    } else {
        _Float16 h;
        memcpy(&h, (const char *)p + 2 * i, 2);
        f = (float)h;
    }
    return f;
}

static void store(void *p, cudaDataType type, size_t i, double v)
{
    float f = (float)v;
    if (type == CUDA_R_32F) {
        memcpy((char *)p + 4 * i, &f, 4);
    } else if (type == CUDA_R_16BF) {
        uint32_t bits;
        memcpy(&bits, &f, 4);
        bits = f != f ? 0x7fff0000u : bits + 0x7fff + (bits >> 16 & 1);
        memcpy((char *)p + 2 * i, (char *)&bits + 2, 2);
    } else {
        _Float16 h = (_Float16)f;
        memcpy((char *)p + 2 * i, &h, 2);
    }
}

struct matrix {
    const void *p;
    cudaDataType type;
    int rows, columns, ld; /* as stored, before a transposition */
};

static size_t extent(const matrix &m)
{
    return m.rows && m.columns
               ? ((size_t)m.ld * (size_t)(m.columns - 1) + (size_t)m.rows) * bytes_of(m.type)
               : 0;
}

static bool lawful(const matrix &m)
{
    return m.rows >= 0 && m.columns >= 0 && m.ld >= std::max(1, m.rows) &&
           (uintptr_t)m.p % bytes_of(m.type) == 0;
}

static void demand(const matrix &m, const char *which)
{
    if (!double_is_device(m.p, extent(m)))
        double_die("cuBLAS: matrix %s of %d x %d, ld %d, leaves its allocation", which, m.rows,
                   m.columns, m.ld);
}

/* c = alpha op(a) b + beta c; b and c are not transposed. */
static void multiply(matrix c, matrix a, bool turned, matrix b, double alpha, double beta)
{
    size_t k = (size_t)b.rows;
    std::vector<double> left(k), right(k);
    demand(a, "A");
    demand(b, "B");
    demand(c, "C");
    if ((double)c.rows * c.columns * (double)k > 1e9)
        return; /* only timed: its result is not read */
    for (size_t j = 0; j < (size_t)c.columns; j++) {
        for (size_t l = 0; l < k; l++)
            right[l] = number(b.p, b.type, l + j * (size_t)b.ld);
        for (size_t i = 0; i < (size_t)c.rows; i++) {
            double sum = 0;
            size_t at = i + j * (size_t)c.ld;
            for (size_t l = 0; l < k; l++)
                sum += right[l] *
                       number(a.p, a.type, turned ? l + i * (size_t)a.ld : i + l * (size_t)a.ld);
            double before = beta != 0 ? beta * number(c.p, c.type, at) : 0;
            store((void *)c.p, c.type, at, alpha * sum + before);
        }
    }
}

static bool captures(cublasHandle_t handle)
{
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(handle->stream, &status);
    return status != cudaStreamCaptureStatusNone;
}

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle)
{
    if (double_word("nocublas") || double_fails("cublasCreate") || double_unsafe())
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = new cublasContext();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa,
                            cublasOperation_t transb, int m, int n, int k, const void *alpha,
                            const void *A, cudaDataType Atype, int lda, const void *B,
                            cudaDataType Btype, int ldb, const void *beta, void *C,
                            cudaDataType Ctype, int ldc, cublasComputeType_t compute,
                            cublasGemmAlgo_t)
{
    bool turned = transa == CUBLAS_OP_T;
    matrix a = {A, Atype, turned ? k : m, turned ? m : k, lda}, b = {B, Btype, k, n, ldb};
    matrix c = {C, Ctype, m, n, ldc};
    double scale = *(const float *)alpha, keep = *(const float *)beta;
    if (double_fails("cublasGemmEx"))
        return CUBLAS_STATUS_EXECUTION_FAILED;
    if (transb != CUBLAS_OP_N || compute != CUBLAS_COMPUTE_32F || Atype != Btype ||
        (Ctype != Atype && Ctype != CUDA_R_32F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!lawful(a) || !lawful(b) || !lawful(c))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (captures(handle)) {
        double_unsafe(); /* cuBLAS would allocate a workspace */
        return CUBLAS_STATUS_INTERNAL_ERROR;
    }
    int code = double_enqueue(handle->stream, "a product of cuBLAS",
                              [=]() { multiply(c, a, turned, b, scale, keep); });
    return code ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmGroupedBatchedEx(cublasHandle_t handle, const cublasOperation_t transa[],
                                          const cublasOperation_t transb[], const int m[],
                                          const int n[], const int k[], const void *alpha,
                                          const void *const A[], cudaDataType Atype,
                                          const int lda[], const void *const B[],
                                          cudaDataType Btype, const int ldb[], const void *beta,
                                          void *const C[], cudaDataType Ctype, const int ldc[],
                                          int groups, const int sizes[], cublasComputeType_t)
{
    if (double_fails("cublasGemmGroupedBatchedEx"))
        return CUBLAS_STATUS_EXECUTION_FAILED;
    if (captures(handle))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (const void *array : {(const void *)A, (const void *)B, (const void *)C})
        if ((uintptr_t)array % 16 || !double_is_device(array, (size_t)groups * sizeof(void *)))
            return CUBLAS_STATUS_INVALID_VALUE;
    for (int g = 0; g < groups; g++) {
        if (lda[g] % 8 || ldb[g] % 8 || ldc[g] % 8 || sizes[g] != 1 || transb[g] != CUBLAS_OP_N)
            return CUBLAS_STATUS_NOT_SUPPORTED;
        bool turned = transa[g] == CUBLAS_OP_T;
        double scale = ((const float *)alpha)[g], keep = ((const float *)beta)[g];
        matrix a = {nullptr, Atype, turned ? k[g] : m[g], turned ? m[g] : k[g], lda[g]};
        matrix b = {nullptr, Btype, k[g], n[g], ldb[g]}, c = {nullptr, Ctype, m[g], n[g], ldc[g]};
        if (!lawful(a) || !lawful(b) || !lawful(c))
            return CUBLAS_STATUS_INVALID_VALUE;
        double_enqueue(handle->stream, "a grouped product of cuBLAS", [=]() mutable {
            a.p = A[g], b.p = B[g], c.p = C[g];
            for (const void *p : {a.p, b.p, c.p})
                if ((uintptr_t)p % 16)
                    double_die("cuBLAS: a grouped product's matrix at %p is not on 16 bytes", p);
            multiply(c, a, turned, b, scale, keep);
        });
    }
    return CUBLAS_STATUS_SUCCESS;
}
}
