/*
 * Reference implementation of PhiMoE's router.  Two passes choose one expert each, the second among
 * those that the first left. A pass keeps the experts whose logits are close to its largest; the
 * weight of the chosen expert is its share of the softmax over those.  The two weights do not sum
 * to 1.
 */
#include "kernels/ops/ops.h"

#include <math.h>

/* Whether a pass whose largest logit is `top` keeps expert e.  Decided by this quotient in float32,
 * as in transformers; 0/0 is kept. */
static bool is_near(const float *logits, int e, float top, float threshold)
{
    return !((top - logits[e]) / fmaxf(fabsf(logits[e]), top) > threshold);
}

/* The largest logit except that of `gone`; the lower index on ties. */
static int largest_but(const float *logits, int gone, int E)
{
    int best = gone == 0;
    for (int e = best + 1; e < E; e++)
        if (e != gone && logits[e] > logits[best])
            best = e;
    return best;
}

void ref_sparsemixer(int32_t *ids, float *weights, const float *logits, int N, int E,
                     float threshold)
{
    for (int i = 0; i < 2 * N; i++) {
        const float *l = logits + (size_t)(i / 2) * E;
        int gone = i % 2 ? ids[i - 1] : -1, best = largest_but(l, gone, E);
        double sum = 0;
        for (int e = 0; e < E; e++)
            if (e != gone && is_near(l, e, l[best], threshold))
                sum += exp((double)l[e] - l[best]);
        ids[i] = best;
        weights[i] = (float)(1 / sum);
    }
}

/* Each pass is a softmax p over the experts it keeps, w = p of the chosen one: dlogits += w g
 * (chosen - p).  The kept and the chosen experts are constant. */
void ref_sparsemixer_back(float *dlogits, const float *dweights, const int32_t *ids,
                          const float *weights, const float *logits, int N, int E, float threshold)
{
    for (int t = 0; t < N; t++) {
        const float *l = logits + (size_t)t * E;
        for (int e = 0; e < E; e++) {
            double sum = 0;
            for (int i = 2 * t; i < 2 * t + 2; i++) {
                float top = l[ids[i]];
                if ((i % 2 && e == ids[i - 1]) || !is_near(l, e, top, threshold))
                    continue;
                double p = weights[i] * exp((double)l[e] - top);
                sum += (double)weights[i] * dweights[i] * ((e == ids[i]) - p);
            }
            dlogits[(size_t)t * E + e] = (float)sum;
        }
    }
}
