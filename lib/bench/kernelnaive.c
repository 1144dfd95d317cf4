/*
 * The naive online clipping of the paper's appendix ("Naive Python Online Clipped FFN"), with
 * oneDNN's products on all threads: one expert after another, gate and up are sliced and
 * concatenated, multiplied, and the results are added up.  It uses the layout in which models are
 * published, gate rows before up rows and down as (H, I), and copies weights only where the width
 * is less than I.
 */
#include "lib/bench/kernelcase.h"

#include <math.h>
#include <string.h>

#include "kernels/ops/kernels.h"
#include "lib/base/clock.h"
#include "lib/base/dtype.h"
#include "lib/base/pool.h"

enum { COLUMNS = 256 };

/* One expert with n tokens and width k.  Arrays have the layer's type unless they are float. */
struct expert {
    const struct fm_kernelcase *c;
    int e, n, k;
    bool bf16;
    size_t size;               /* bytes of a weight */
    const int *token;          /* n: the rows of this expert */
    const float *weight;       /* n: of the router */
    char *x, *gate_up, *inner; /* (n, H); (2 k, H), gate before up; (n, k) */
    const char *down;          /* (H, I), of which the first k columns are used */
    float *products, *result;  /* (n, 2 k); (tokens, H) */
    bool refused;              /* oneDNN has no such product here */
};

static void gather_row(void *arg, int i)
{
    const struct expert *p = arg;
    size_t bytes = (size_t)p->c->layer.H * p->size;
    memcpy(p->x + (size_t)i * bytes, p->c->hidden + (size_t)p->token[i] * bytes, bytes);
}

/* Row i of the concatenated slices. */
static void copy_row(void *arg, int i)
{
    const struct expert *p = arg;
    size_t bytes = (size_t)p->c->layer.H * p->size;
    size_t row = (size_t)(i < p->k ? i : p->c->I + i - p->k);
    memcpy(p->gate_up + (size_t)i * bytes,
           p->c->plain_gate_up + ((size_t)(2 * p->c->I) * (size_t)p->e + row) * bytes, bytes);
}

static void multiply_gate_up(void *arg, int i)
{
    struct expert *p = arg;
    int H = p->c->layer.H, at = i * COLUMNS, all = 2 * p->k;
    int cols = all - at < COLUMNS ? all - at : COLUMNS;
    struct fm_mark mark = fm_scratch_mark();
    float *out = fm_scratch((size_t)p->n * (size_t)cols * sizeof *out);
    if (!fm_ops_dnnl_product(p->bf16, true, p->n, cols, H, p->x, H,
                             p->gate_up + (size_t)at * (size_t)H * p->size, H, out))
        p->refused = true;
    for (int r = 0; r < p->n; r++)
        memcpy(p->products + (size_t)r * (size_t)all + at, out + (size_t)r * (size_t)cols,
               (size_t)cols * sizeof *out);
    fm_scratch_release(mark);
}

static void activate_row(void *arg, int i)
{
    const struct expert *p = arg;
    float *gate = p->products + (size_t)i * 2 * (size_t)p->k;
    const float *up = gate + p->k;
    for (int j = 0; j < p->k; j++)
        gate[j] = gate[j] / (1 + expf(-gate[j])) * up[j];
    fm_dtype_from_f32(p->inner + (size_t)i * (size_t)p->k * p->size, gate,
                      p->bf16 ? FM_BF16 : FM_F32, (size_t)p->k);
}

/* An expert's tokens are distinct, so that tasks write to different places. */
static void multiply_down(void *arg, int i)
{
    struct expert *p = arg;
    int H = p->c->layer.H, at = i * COLUMNS, cols = H - at < COLUMNS ? H - at : COLUMNS;
    struct fm_mark mark = fm_scratch_mark();
    float *out = fm_scratch((size_t)p->n * (size_t)cols * sizeof *out);
    if (!fm_ops_dnnl_product(p->bf16, true, p->n, cols, p->k, p->inner, p->k,
                             p->down + (size_t)at * (size_t)p->c->I * p->size, p->c->I, out))
        p->refused = true;
    for (int r = 0; r < p->n; r++) {
        float *to = p->result + (size_t)p->token[r] * (size_t)H + at;
        for (int j = 0; j < cols; j++)
            to[j] += p->weight[r] * out[(size_t)r * (size_t)cols + (size_t)j];
    }
    fm_scratch_release(mark);
}

static void run_expert(struct expert *p)
{
    const struct fm_kernelcase *c = p->c;
    size_t plain = (size_t)c->I * (size_t)c->layer.H * p->size;
    char *copy = p->gate_up;
    p->down = c->plain_down + (size_t)p->e * plain;
    fm_pool_for(p->n, gather_row, p);
    if (p->k < c->I)
        fm_pool_for(2 * p->k, copy_row, p);
    else
        p->gate_up = c->plain_gate_up + 2 * (size_t)p->e * plain;
    fm_pool_for((2 * p->k + COLUMNS - 1) / COLUMNS, multiply_gate_up, p);
    fm_pool_for(p->n, activate_row, p);
    fm_pool_for((c->layer.H + COLUMNS - 1) / COLUMNS, multiply_down, p);
    p->gate_up = copy;
}

/* The rows of the expert among the first `tokens` tokens, with the router's weights. */
static int find_rows(int *token, float *weight, const struct fm_kernelcase *c, int tokens, int e)
{
    int n = 0;
    for (int i = 0; i < tokens * c->K; i++)
        if (c->ids[i] == e) {
            token[n] = i / c->K;
            weight[n++] = c->weights[i];
        }
    return n;
}

double fm_kernelcase_naive(struct fm_kernelcase *c, int tokens)
{
    if (!c->plain_gate_up)
        return 0;
    size_t H = (size_t)c->layer.H, N = (size_t)tokens, I = (size_t)c->I, most = 0;
    struct expert p = {.c = c, .bf16 = c->layer.type == FM_CLIP_BF16};
    p.size = p.bf16 ? 2 : 4;
    struct fm_mark mark = fm_scratch_mark();
    int *rows = fm_scratch((size_t)c->layer.E * sizeof *rows);
    fm_kernelcase_rows(c, tokens, rows);
    for (int e = 0; e < c->layer.E; e++)
        most = (size_t)rows[e] > most ? (size_t)rows[e] : most;
    int *token = fm_scratch(most * sizeof *token);
    float *weight = fm_scratch_floats(most);
    p.token = token;
    p.weight = weight;
    p.x = fm_scratch(most * H * p.size);
    p.gate_up = fm_scratch(2 * I * H * p.size);
    p.inner = fm_scratch(most * I * p.size);
    p.products = fm_scratch_floats(2 * most * I);
    p.result = fm_scratch_floats(N * H);
    double begin = fm_clock_now();
    memset(p.result, 0, N * H * sizeof *p.result);
    for (p.e = 0; p.e < c->layer.E; p.e++) {
        p.n = find_rows(token, weight, c, tokens, p.e);
        p.k = c->widths[(int64_t)c->budget * c->layer.E + p.e];
        if (p.n > 0 && p.k > 0)
            run_expert(&p);
    }
    fm_dtype_from_f32(c->out, p.result, p.bf16 ? FM_BF16 : FM_F32, N * H);
    double seconds = fm_clock_now() - begin;
    fm_scratch_release(mark);
    return p.refused ? 0 : seconds;
}
