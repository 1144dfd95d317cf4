/*
 * Compare a backward with finite differences of its forward, for the tests of definitions.
 *
 * The four-point formula is used with step h = 2^-5.  Its error is about h^4 = 1e-6 times a fifth
 * derivative, and rounding of outputs to float adds about 1e-7 / h = 3e-6, both relative to values
 * of order 1.  So the tolerance is 1e-4 of the largest gradient.
 */
#ifndef FM_TESTS_GRADIENTS_H
#define FM_TESTS_GRADIENTS_H

#include "tests/unit/kernels.h"

#define STEP 0x1p-5f
#define TOL_DIFFERENCE 1e-4

/* The function whose gradient is tested. */
struct scalar {
    double (*value)(const struct scalar *s);
    float *x[4];    /* its arguments */
    const float *r; /* weights of the outputs */
    float *y, *aux; /* outputs, more outputs */
    const void *more;
    int n[8];
};

static inline double weighted(const float *y, const float *r, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)y[i] * r[i];
    return sum;
}

static inline double value_at(const struct scalar *s, float *x, float step)
{
    float kept = *x;
    *x = kept + step;
    double value = s->value(s);
    *x = kept;
    return value;
}

static inline void expect_gradient(const struct scalar *s, int arg, const float *dx, size_t n,
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

static inline const struct fm_ops *ref(void)
{
    return fm_ops_ref();
}

#endif
