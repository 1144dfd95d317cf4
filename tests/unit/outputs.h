/*
 * For tests that run the same case of operations with several tables: the outputs of the case, with
 * the allowed differences from the definition.
 */
#ifndef FM_TESTS_OUTPUTS_H
#define FM_TESTS_OUTPUTS_H

#include "tests/unit/kernels.h"

enum { OUTPUTS_MAX = 12 };

/* Outputs of a case: arrays of the test, in order. */
struct outputs {
    int count;
    float *f[OUTPUTS_MAX]; /* one of the three is set */
    double *d[OUTPUTS_MAX];
    int32_t *i[OUTPUTS_MAX];
    size_t n[OUTPUTS_MAX];
    double tol[OUTPUTS_MAX];
};

static inline float *give(struct outputs *o, float *f, size_t n, double tol)
{
    o->f[o->count] = f;
    o->n[o->count] = n;
    o->tol[o->count++] = tol;
    return f;
}

static inline double *give_doubles(struct outputs *o, size_t n, double tol)
{
    o->d[o->count] = zeros((int)n);
    o->n[o->count] = n;
    o->tol[o->count++] = tol;
    return o->d[o->count - 1];
}

static inline int32_t *give_ints(struct outputs *o, size_t n)
{
    o->i[o->count] = array(n, sizeof(int32_t));
    o->n[o->count++] = n;
    return o->i[o->count - 1];
}

#endif
