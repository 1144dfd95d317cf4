/*
 * Helpers for tests of kernels: random arrays, guarded outputs, comparisons.  An array is followed
 * by GUARD bytes of a pattern, and check_guards() detects writes to them.
 */
#ifndef FM_TESTS_KERNELS_H
#define FM_TESTS_KERNELS_H

#include <math.h>

#include "kernels/ops/kernels.h"
#include "lib/base/rng.h"
#include "tests/unit/test.h"

enum { GUARD = 256, ARRAYS_MAX = 512 };

/* Every array of the running test, freed together. */
static struct {
    void *block[ARRAYS_MAX];
    size_t bytes[ARRAYS_MAX];
    int count;
    uint64_t drawn;
} arrays;

static inline void *array(size_t n, size_t size)
{
    assert_true(arrays.count < ARRAYS_MAX);
    unsigned char *p = malloc(n * size + GUARD);
    assert_non_null(p);
    memset(p, 0xAB, n * size + GUARD); /* tiny as float or double, and never an expected value */
    arrays.block[arrays.count] = p;
    arrays.bytes[arrays.count++] = n * size;
    return p;
}

static inline float *floats(size_t n)
{
    return array(n, sizeof(float));
}

/* Normal with standard deviation `scale`, rounded to multiples of 2^-12 so that finite differences
 * take exact steps. */
static inline float *normals(size_t n, double scale)
{
    float *x = floats(n);
    for (size_t i = 0; i < n; i++)
        x[i] =
            (float)(round(scale * fm_rng_normal(1, FM_STREAM_BENCH, arrays.drawn++) * 4096) / 4096);
    return x;
}

static inline float *copied(const float *x, size_t n)
{
    float *y = floats(n);
    memcpy(y, x, n * sizeof *y);
    return y;
}

static inline double *zeros(int n)
{
    double *x = array((size_t)n, sizeof *x);
    memset(x, 0, (size_t)n * sizeof *x);
    return x;
}

/* Round x to bfloat16 in place; returns the same values as bfloat16. */
static inline struct fm_in as_bf16(float *x, size_t n)
{
    uint16_t *y = array(n, sizeof *y);
    fm_dtype_from_f32(y, x, FM_BF16, n);
    fm_dtype_to_f32(x, y, FM_BF16, n);
    return (struct fm_in){y, FM_BF16, NULL};
}

static inline struct fm_out room_bf16(size_t n)
{
    return (struct fm_out){array(n, sizeof(uint16_t)), FM_BF16};
}

static inline int32_t *below(size_t n, int limit)
{
    int32_t *x = array(n, sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = (int32_t)fm_rng_below(2, FM_STREAM_BENCH, arrays.drawn++, (uint64_t)limit);
    return x;
}

static inline void check_guards(void)
{
    for (int a = 0; a < arrays.count; a++)
        for (int i = 0; i < GUARD; i++)
            if (((unsigned char *)arrays.block[a])[arrays.bytes[a] + i] != 0xAB)
                fail_msg("array %d of the test (%zu bytes) was written %d bytes past its end", a,
                         arrays.bytes[a], i);
}

static inline void free_arrays(void)
{
    for (int a = 0; a < arrays.count; a++)
        free(arrays.block[a]);
    memset(&arrays, 0, sizeof arrays);
}

static inline int start_test(void **state)
{
    (void)state;
    free_arrays();
    return 0;
}

static inline int end_test(void **state)
{
    (void)state;
    check_guards();
    free_arrays();
    return 0;
}

#define KERNEL_TEST(name) TEST_AROUND(name, start_test, end_test)

/* |got - want| <= tol * the largest |want|; NaN fails. */
static inline void expect_close(const float *got, const float *want, size_t n, double tol,
                                const char *what)
{
    double largest = 0;
    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, fabs((double)want[i]));
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= tol * largest))
            fail_msg("%s[%zu] is %.9g, expected %.9g within %g", what, i, (double)got[i],
                     (double)want[i], tol * largest);
}

static inline void expect_near(double got, double want, double tol, const char *what)
{
    if (!(fabs(got - want) <= tol))
        fail_msg("%s is %.17g, expected %.17g within %g", what, got, want, tol);
}

/* Each within tol * the largest |want|. */
static inline void expect_doubles(const double *got, const double *want, size_t n, double tol,
                                  const char *what)
{
    double largest = 0;
    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(want[i]));
    for (size_t i = 0; i < n; i++)
        expect_near(got[i], want[i], tol * largest, what);
}

#endif
