/*
 * Reference implementation of solving linear equations with a symmetric, positive definite matrix:
 * Cholesky's factorisation, then substitution forward and backward, in double.
 */
#include "kernels/ops/ops.h"

#include <math.h>

/* The diagonal of a, and what is below it, becomes L with a = L L^T. */
static void factor(double *a, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++) {
            double s = a[i * n + j];
            for (size_t k = 0; k < j; k++)
                s -= a[i * n + k] * a[j * n + k];
            a[i * n + j] = i == j ? sqrt(s) : s / a[j * n + j];
        }
}

void ref_solve(double *x, double *a, int rows, int columns)
{
    size_t n = (size_t)rows, m = (size_t)columns;
    factor(a, n);
    for (size_t c = 0; c < m; c++) {
        for (size_t i = 0; i < n; i++) {
            double s = x[i * m + c];
            for (size_t k = 0; k < i; k++)
                s -= a[i * n + k] * x[k * m + c];
            x[i * m + c] = s / a[i * n + i];
        }
        for (size_t i = n; i-- > 0;) {
            double s = x[i * m + c];
            for (size_t k = n; k-- > i + 1;)
                s -= a[k * n + i] * x[k * m + c];
            x[i * m + c] = s / a[i * n + i];
        }
    }
}
