/* Sums over groups of experts, and their widths, gathered and spread in place. */
#include "lib/masks/granularity.h"

#include <assert.h>

const char *fm_granularity_name(enum fm_granularity granularity)
{
    static const char *const names[FM_GRANULARITIES] = {"expert", "layer", "model"};
    assert((unsigned)granularity < FM_GRANULARITIES);
    return names[granularity];
}

int fm_granularity_size(enum fm_granularity granularity, int layers, int experts)
{
    switch (granularity) {
    case FM_PER_LAYER:
        return experts;
    case FM_PER_MODEL:
        return layers * experts;
    default:
        return 1;
    }
}

void fm_granularity_sum(double *y, const double *x, size_t n, int size, int A)
{
    assert(size > 0 && n % (size_t)size == 0);
    for (size_t g = 0; g < n / (size_t)size; g++) {
        for (int a = 0; a < A; a++) {
            double sum = 0;
            for (int e = 0; e < size; e++)
                sum += x[(g * (size_t)size + (size_t)e) * (size_t)A + (size_t)a];
            y[g * (size_t)A + (size_t)a] = sum;
        }
    }
}

void fm_granularity_spread(uint32_t *widths, size_t n, int size)
{
    assert(size > 0 && n % (size_t)size == 0);
    for (size_t x = n; x-- > 0;)
        widths[x] = widths[x / (size_t)size];
}

void fm_granularity_gather(uint32_t *widths, size_t n, int size)
{
    assert(size > 0 && n % (size_t)size == 0);
    for (size_t g = 0; g < n / (size_t)size; g++)
        widths[g] = widths[g * (size_t)size];
}
