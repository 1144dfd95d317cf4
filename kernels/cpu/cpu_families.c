/* Operations that only some families of models need, on blocks of rows. */
#include "kernels/cpu/cpu.h"
#include "kernels/ops/ops.h"

#include <math.h>

struct rows {
    float *x, *y; /* written */
    const float *a, *b;
    const int32_t *ids;
    int32_t *chosen;
    float limit;
    int E, K, H;
};

FM_CLONES static void add_to_row(float *x, const float *b, int H)
{
    for (int i = 0; i < H; i++)
        x[i] += b[i];
}

static void add_rows(const void *args, int64_t first, int64_t last)
{
    const struct rows *r = args;
    for (int64_t t = first; t < last; t++)
        add_to_row(r->x + t * r->H, r->a, r->H);
}

void cpu_add_rows(float *x, const float *b, int N, int H)
{
    fm_cpu_rows(N, H, add_rows, &(struct rows){.x = x, .a = b, .H = H});
}

static void clamp(const void *args, int64_t first, int64_t last)
{
    const struct rows *r = args;
    ref_clamp(r->x + first, r->limit, last - first);
}

void cpu_clamp(float *x, float limit, int64_t count)
{
    fm_cpu_rows(count, 1, clamp, &(struct rows){.x = x, .limit = limit});
}

static void clamp_back(const void *args, int64_t first, int64_t last)
{
    const struct rows *r = args;
    ref_clamp_back(r->x + first, r->a + first, r->limit, last - first);
}

void cpu_clamp_back(float *dx, const float *x, float limit, int64_t count)
{
    fm_cpu_rows(count, 1, clamp_back, &(struct rows){.x = dx, .a = x, .limit = limit});
}

static void route_raw(const void *args, int64_t first, int64_t last)
{
    const struct rows *r = args;
    ref_route_raw(r->chosen + first * r->K, r->y + first * r->K, r->x + first * r->E,
                  (int)(last - first), r->E, r->K);
}

void cpu_route_raw(int32_t *ids, float *weights, float *p, int N, int E, int K)
{
    fm_cpu_rows(N, 64 * (int64_t)E, route_raw,
                &(struct rows){.chosen = ids, .y = weights, .x = p, .E = E, .K = K});
}

static void route_raw_back(const void *args, int64_t first, int64_t last)
{
    const struct rows *r = args;
    ref_route_raw_back(r->x + first * r->E, r->a + first * r->K, r->ids + first * r->K,
                       r->b + first * r->E, (int)(last - first), r->E, r->K);
}

void cpu_route_raw_back(float *dlogits, const float *dweights, const int32_t *ids, const float *p,
                        int N, int E, int K)
{
    fm_cpu_rows(N, 16 * (int64_t)E, route_raw_back,
                &(struct rows){.x = dlogits, .a = dweights, .ids = ids, .b = p, .E = E, .K = K});
}

FM_CLONES static void scale_row(float *x, float s, int H)
{
    for (int i = 0; i < H; i++)
        x[i] *= s;
}

static void gate_rows(const void *args, int64_t first, int64_t last)
{
    const struct rows *r = args;
    for (int64_t t = first; t < last; t++) {
        r->y[t] = (float)(1 / (1 + exp(-(double)r->a[t])));
        scale_row(r->x + t * r->H, r->y[t], r->H);
    }
}

void cpu_gate_rows(float *h, float *s, const float *u, int N, int I)
{
    fm_cpu_rows(N, I, gate_rows, &(struct rows){.x = h, .y = s, .a = u, .H = I});
}

FM_CLONES static double dot_row(const float *a, const float *b, int n)
{
    return fm_dot(a, b, n);
}

static void gate_rows_back(const void *args, int64_t first, int64_t last)
{
    const struct rows *r = args;
    for (int64_t t = first; t < last; t++) {
        double sum = dot_row(r->a + t * r->H, r->x + t * r->H, r->H);
        scale_row(r->x + t * r->H, r->b[t], r->H);
        r->y[t] = (float)((1.0 - r->b[t]) * sum);
    }
}

void cpu_gate_rows_back(float *dh, float *du, const float *h, const float *s, int N, int I)
{
    fm_cpu_rows(N, 2 * (int64_t)I, gate_rows_back,
                &(struct rows){.x = dh, .y = du, .a = h, .b = s, .H = I});
}
