/*
 * Reference implementation of routers that choose by softmax, and of sorting their choices, after
 * which the rows of each expert are contiguous.
 */
#include "kernels/ops/ops.h"

#include <math.h>
#include <string.h>

#include "lib/base/pool.h"

static bool is_chosen(const int32_t *ids, int n, int e)
{
    for (int i = 0; i < n; i++)
        if (ids[i] == e)
            return true;
    return false;
}

int32_t fm_largest_left(const float *x, const int32_t *ids, int n, int E)
{
    int32_t best = -1;
    for (int32_t e = 0; e < E; e++)
        if (!is_chosen(ids, n, e) && (best < 0 || x[e] > x[best]))
            best = e;
    return best;
}

/*
 * p = softmax(logits); w_i = p_i / sum over the chosen of p.  The sum over all E cancels; it is
 * computed so that a NaN in any logit appears in the weights.
 */
void ref_route(int32_t *ids, float *weights, const float *logits, int N, int E, int K)
{
    for (int t = 0; t < N; t++) {
        const float *l = logits + (size_t)t * E;
        int32_t *id = ids + (size_t)t * K;
        double all = 0, chosen = 0;
        for (int i = 0; i < K; i++)
            id[i] = fm_largest_left(l, id, i, E);
        for (int e = 0; e < E; e++)
            all += exp((double)l[e] - l[id[0]]);
        for (int i = 0; i < K; i++)
            chosen += exp((double)l[id[i]] - l[id[0]]) / all;
        for (int i = 0; i < K; i++)
            weights[(size_t)t * K + i] = (float)(exp((double)l[id[i]] - l[id[0]]) / all / chosen);
    }
}

/* dlogits[ids[i]] = w_i (g_i - sum_j w_j g_j); the gradient of the other logits is 0. */
void ref_route_back(float *dlogits, const float *dweights, const int32_t *ids, const float *weights,
                    int N, int E, int K)
{
    for (int t = 0; t < N; t++) {
        const float *w = weights + (size_t)t * K, *g = dweights + (size_t)t * K;
        float *d = dlogits + (size_t)t * E;
        double mean = 0;
        for (int e = 0; e < E; e++)
            d[e] = 0;
        for (int i = 0; i < K; i++)
            mean += (double)w[i] * g[i];
        for (int i = 0; i < K; i++)
            d[ids[(size_t)t * K + i]] = (float)(w[i] * (g[i] - mean));
    }
}

/* A counting sort: first[b] counts bucket b - 1, then is the start of bucket b. */
void ref_sort_rows(int32_t *first, int32_t *rows, float *scale, int32_t *where, const int32_t *ids,
                   const float *weights, int N, int E, int K, int P)
{
    int each = N / P, buckets = E * P;
    struct fm_mark mark = fm_scratch_mark();
    int32_t *next = fm_scratch((size_t)buckets * sizeof *next);
    memset(first, 0, ((size_t)buckets + 1) * sizeof *first);
    for (int i = 0; i < N * K; i++)
        first[ids[i] * P + i / K / each + 1]++;
    for (int b = 0; b < buckets; b++)
        first[b + 1] += first[b];
    memcpy(next, first, (size_t)buckets * sizeof *next);
    for (int i = 0; i < N * K; i++) {
        int r = next[ids[i] * P + i / K / each]++;
        rows[r] = i / K;
        scale[r] = weights[i];
        where[i] = r;
    }
    fm_scratch_release(mark);
}
