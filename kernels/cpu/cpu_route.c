/* Routing on blocks of rows: a token needs little arithmetic, so the loop bodies are those of the
 * reference implementation. */
#include "kernels/cpu/cpu.h"
#include "kernels/ops/ops.h"

struct route {
    int32_t *ids_out;
    float *out, *scores;
    const float *in, *weights, *logits;
    const int32_t *ids;
    const struct fm_route_rule *rule;
    int E, K;
    float threshold;
};

static void route_rows(const void *args, int64_t first, int64_t last)
{
    const struct route *a = args;
    ref_route(a->ids_out + first * a->K, a->out + first * a->K, a->in + first * a->E,
              (int)(last - first), a->E, a->K);
}

void cpu_route(int32_t *ids, float *weights, const float *logits, int N, int E, int K)
{
    fm_cpu_rows(N, 64 * (int64_t)E, route_rows,
                &(struct route){.ids_out = ids, .out = weights, .in = logits, .E = E, .K = K});
}

static void route_back_rows(const void *args, int64_t first, int64_t last)
{
    const struct route *a = args;
    int64_t chosen = first * a->K;
    ref_route_back(a->out + first * a->E, a->in + chosen, a->ids + chosen, a->weights + chosen,
                   (int)(last - first), a->E, a->K);
}

void cpu_route_back(float *dlogits, const float *dweights, const int32_t *ids, const float *weights,
                    int N, int E, int K)
{
    fm_cpu_rows(
        N, 16 * (int64_t)E, route_back_rows,
        &(struct route){
            .out = dlogits, .in = dweights, .weights = weights, .ids = ids, .E = E, .K = K});
}

static void route_scored_rows(const void *args, int64_t first, int64_t last)
{
    const struct route *a = args;
    ref_route_scored(a->ids_out + first * a->K, a->out + first * a->K, a->scores + first * a->E,
                     a->in, a->rule, (int)(last - first), a->E, a->K);
}

void cpu_route_scored(int32_t *ids, float *weights, float *s, const float *bias,
                      const struct fm_route_rule *rule, int N, int E, int K)
{
    fm_cpu_rows(
        N, 64 * (int64_t)E, route_scored_rows,
        &(struct route){
            .ids_out = ids, .out = weights, .scores = s, .in = bias, .rule = rule, .E = E, .K = K});
}

static void route_scored_back_rows(const void *args, int64_t first, int64_t last)
{
    const struct route *a = args;
    int64_t chosen = first * a->K;
    ref_route_scored_back(a->out + first * a->E, a->in + chosen, a->ids + chosen,
                          a->logits + first * a->E, a->rule, (int)(last - first), a->E, a->K);
}

void cpu_route_scored_back(float *dlogits, const float *dweights, const int32_t *ids,
                           const float *s, const struct fm_route_rule *rule, int N, int E, int K)
{
    fm_cpu_rows(
        N, 16 * (int64_t)E, route_scored_back_rows,
        &(struct route){
            .out = dlogits, .in = dweights, .ids = ids, .logits = s, .rule = rule, .E = E, .K = K});
}

static void sparsemixer_rows(const void *args, int64_t first, int64_t last)
{
    const struct route *a = args;
    ref_sparsemixer(a->ids_out + 2 * first, a->out + 2 * first, a->in + first * a->E,
                    (int)(last - first), a->E, a->threshold);
}

void cpu_sparsemixer(int32_t *ids, float *weights, const float *logits, int N, int E,
                     float threshold)
{
    fm_cpu_rows(N, 64 * (int64_t)E, sparsemixer_rows,
                &(struct route){
                    .ids_out = ids, .out = weights, .in = logits, .E = E, .threshold = threshold});
}

static void sparsemixer_back_rows(const void *args, int64_t first, int64_t last)
{
    const struct route *a = args;
    ref_sparsemixer_back(a->out + first * a->E, a->in + 2 * first, a->ids + 2 * first,
                         a->weights + 2 * first, a->logits + first * a->E, (int)(last - first),
                         a->E, a->threshold);
}

void cpu_sparsemixer_back(float *dlogits, const float *dweights, const int32_t *ids,
                          const float *weights, const float *logits, int N, int E, float threshold)
{
    fm_cpu_rows(N, 64 * (int64_t)E, sparsemixer_back_rows,
                &(struct route){.out = dlogits,
                                .in = dweights,
                                .ids = ids,
                                .weights = weights,
                                .logits = logits,
                                .E = E,
                                .threshold = threshold});
}

/* A counting sort of N K small numbers: not enough work for several threads. */
void cpu_sort_rows(int32_t *first, int32_t *rows, float *scale, int32_t *where, const int32_t *ids,
                   const float *weights, int N, int E, int K, int P)
{
    ref_sort_rows(first, rows, scale, where, ids, weights, N, E, K, P);
}
