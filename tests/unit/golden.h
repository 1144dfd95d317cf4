/*
 * Golden numbers for tests: tensors of golden.safetensors or of another file by name, and the
 * largest difference of an array from one, relative to the tensor's largest value.
 */
#ifndef FM_TESTS_GOLDEN_H
#define FM_TESTS_GOLDEN_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/tensor/safetensors.h"

struct golden {
    struct fm_file file;
    struct fm_safetensors st;
};

static inline void golden_die(const struct fm_err *err)
{
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

static inline void golden_open(struct golden *g, const char *path)
{
    struct fm_err err = {0};
    if (fm_file_open(&g->file, path, &err) ||
        fm_safetensors_open(&g->st, &g->file, 0, g->file.size, &err))
        golden_die(&err);
}

static inline void golden_close(struct golden *g)
{
    fm_safetensors_close(&g->st);
    fm_file_close(&g->file);
}

/* The bytes of a tensor in the file; free() them.  *count becomes its number of elements, unless
 * count is NULL. */
static inline void *golden_read(const struct golden *g, const char *name, enum fm_dtype dtype,
                                size_t *count)
{
    struct fm_err err = {0};
    const struct fm_tensor *t = fm_safetensors_find(&g->st, name);
    if (!t || t->dtype != dtype) {
        fprintf(stderr, "%s: no tensor '%s' of that dtype\n", g->file.path, name);
        exit(1);
    }
    void *data = malloc(t->size + 1);
    if (!data || fm_file_read(&g->file, t->offset, data, t->size, &err))
        golden_die(&err);
    if (count)
        *count = (size_t)fm_tensor_count(t);
    return data;
}

/* max |a - b| / max |b|, or max |a| if b is zero; NaN if either has one. */
static inline double golden_error(const float *a, const float *b, size_t n)
{
    double most = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]), v = fabs((double)b[i]);
        most = d > most || isnan(d) ? d : most;
        largest = v > largest ? v : largest;
    }
    return n == 0 ? 0 : largest > 0 ? most / largest : most;
}

/* Print golden_error for the tensor `name`, and check that it is at most `limit`; counts must
 * agree. */
static inline int golden_near(const struct golden *g, const char *name, const float *got, size_t n,
                              double limit)
{
    size_t count = 0;
    float *want = golden_read(g, name, FM_F32, &count);
    double error = count == n ? golden_error(got, want, n) : HUGE_VAL;
    free(want);
    printf("%s: relative error %.2g (limit %.2g)\n", name, error, limit);
    return error <= limit;
}

#endif
