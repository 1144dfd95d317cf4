/*
 * The kernels of the serving loop on a GPU: everything but the projections and the experts.  T is
 * the type of weights and cache; the residual stream is float32.  The position of a row is read
 * from the device's memory, so that a captured graph serves every position.
 */
#ifndef FM_SERVE_CUDA_CUH
#define FM_SERVE_CUDA_CUH

#include "kernels/clip/cuda/clip_cuda.cuh"

#define SERVE_THREADS 256
#define ATTEND_THREADS 128
#define ATTEND_KEYS 64      /* of a tile */
#define ATTEND_GROUP 32     /* query heads of a key head, at most */
#define ATTEND_NUMBERS 4096 /* of a group: heads times their width, at most */
#define ROUTE_EXPERTS 4096

/* S sequences from s0 on, n positions of each from *at on; row r is position *at + r % n of
 * sequence s0 + r / n. */
struct fm_serve_piece {
    int32_t s0, S, n, T; /* T: positions that the cache and the tokens have */
    int32_t H, Q, G, C, E, K;
    float eps;
    const int32_t *at;
};

static __device__ __forceinline__ int32_t position_of(const fm_serve_piece &p, int32_t row)
{
    return *p.at + row % p.n;
}

/* Where a row's position begins among (sequences, T). */
static __device__ __forceinline__ int64_t place_of(const fm_serve_piece &p, int32_t row)
{
    return (int64_t)(p.s0 + row / p.n) * p.T + position_of(p, row);
}

static __device__ __forceinline__ float warp_sum(float v)
{
    for (int step = 16; step > 0; step /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

static __global__ void set_numbers(int32_t *at, int32_t *budget, int32_t position, int32_t b)
{
    *at = position;
    *budget = b;
}

/* Grid: rows. */
static __global__ void embed_rows(const __grid_constant__ fm_serve_piece p, float *x,
                                  const float *table, const int32_t *tokens)
{
    int32_t row = (int32_t)blockIdx.x;
    const float *from = table + (int64_t)tokens[place_of(p, row)] * p.H;
    for (int32_t i = (int32_t)threadIdx.x; i < p.H; i += (int32_t)blockDim.x)
        x[(int64_t)row * p.H + i] = from[i];
}

/* xn = w x rstd.  Grid: rows; SERVE_THREADS. */
template <typename T>
static __global__ void norm_rows(const __grid_constant__ fm_serve_piece p, T *xn, float *rstd,
                                 const float *x, const float *w)
{
    __shared__ float part[SERVE_THREADS / 32];
    int32_t row = (int32_t)blockIdx.x, thread = (int32_t)threadIdx.x;
    const float *from = x + (int64_t)row * p.H;
    float sum = 0;
    for (int32_t i = thread; i < p.H; i += SERVE_THREADS)
        sum += from[i] * from[i];
    sum = warp_sum(sum);
    if (thread % 32 == 0)
        part[thread / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int w0 = 0; w0 < SERVE_THREADS / 32; w0++)
        sum += part[w0];
    float r = 1.0f / sqrtf(sum / (float)p.H + p.eps);
    if (thread == 0)
        rstd[row] = r;
    for (int32_t i = thread; i < p.H; i += SERVE_THREADS)
        xn[(int64_t)row * p.H + i] = from_float<T>(w[i] * (from[i] * r));
}

/* qkv (rows, (Q + 2 G) C): q is turned in place, k goes turned and v as it is into the cache
 * (sequences, T, G, C).  Grid: rows. */
template <typename T>
static __global__ void turn_rows(const __grid_constant__ fm_serve_piece p, float *qkv, T *k, T *v,
                                 const float *cos_table, const float *sin_table)
{
    int32_t row = (int32_t)blockIdx.x, half = p.C / 2, turned = (p.Q + p.G) * half;
    float *q = qkv + (int64_t)row * (p.Q + 2 * p.G) * p.C;
    int64_t angle = (int64_t)position_of(p, row) * half, to = place_of(p, row) * p.G * p.C;
    for (int32_t i = (int32_t)threadIdx.x; i < turned; i += (int32_t)blockDim.x) {
        int32_t head = i / half, j = i % half;
        float *at = q + (int64_t)head * p.C + j;
        float low = at[0], high = at[half];
        float c = cos_table[angle + j], s = sin_table[angle + j];
        float first = low * c - high * s, second = high * c + low * s;
        if (head < p.Q) {
            at[0] = first;
            at[half] = second;
        } else {
            int64_t key = to + (int64_t)(head - p.Q) * p.C + j;
            k[key] = from_float<T>(first);
            k[key + half] = from_float<T>(second);
        }
    }
    for (int32_t i = (int32_t)threadIdx.x; i < p.G * p.C; i += (int32_t)blockDim.x)
        v[to + i] = from_float<T>(q[(int64_t)(p.Q + p.G) * p.C + i]);
}

/* The keys that a block of a split looks at, of `length`. */
static __device__ __forceinline__ int32_t split_begin(int32_t length, int32_t splits, int32_t i)
{
    int32_t each = (length + splits - 1) / splits;
    return i * each < length ? i * each : length;
}

/* What the blocks of attend_rows share. */
struct fm_serve_attention {
    float score[ATTEND_GROUP][ATTEND_KEYS];
    float sum[ATTEND_GROUP], top[ATTEND_GROUP], shrink[ATTEND_GROUP];
    float mixed[ATTEND_NUMBERS]; /* (group, C) */
};

/* Scores of keys [first, first + keys): a warp per key, its lanes along the head. */
template <typename T>
static __device__ __forceinline__ void score_keys(fm_serve_attention *a, const fm_serve_piece &p,
                                                  const float *q, const T *key, int32_t keys)
{
    int32_t group = p.Q / p.G, lane = (int32_t)threadIdx.x % 32;
    float scale = 1.0f / sqrtf((float)p.C);
    for (int32_t t = (int32_t)threadIdx.x / 32; t < keys; t += ATTEND_THREADS / 32) {
        const T *k = key + (int64_t)t * p.G * p.C;
        for (int32_t h = 0; h < group; h++) {
            float sum = 0;
            for (int32_t i = lane; i < p.C; i += 32)
                sum += q[h * p.C + i] * to_float(k[i]);
            sum = warp_sum(sum);
            if (lane == 0)
                a->score[h][t] = scale * sum;
        }
    }
}

/* The tile's scores become weights under the largest score so far: a thread per head. */
static __device__ __forceinline__ void weigh_tile(fm_serve_attention *a, int32_t group,
                                                  int32_t keys)
{
    int32_t h = (int32_t)threadIdx.x;
    if (h >= group)
        return;
    float top = a->top[h], sum = 0;
    for (int32_t t = 0; t < keys; t++)
        top = fmaxf(top, a->score[h][t]);
    for (int32_t t = 0; t < keys; t++) {
        a->score[h][t] = expf(a->score[h][t] - top);
        sum += a->score[h][t];
    }
    a->shrink[h] = expf(a->top[h] - top); /* 0 the first time */
    a->sum[h] = a->sum[h] * a->shrink[h] + sum;
    a->top[h] = top;
}

/*
 * Row r's query heads of one key head over one split of the keys it sees: part (rows, Q, splits,
 * C + 2) receives the mixed values, the largest score and the sum of weights under it.  The row's
 * own key is in the cache already.  Grid: rows, G, splits; ATTEND_THREADS.
 */
template <typename T>
static __global__ void attend_rows(const __grid_constant__ fm_serve_piece p, float *part,
                                   const float *qkv, const T *k, const T *v, int32_t splits)
{
    __shared__ fm_serve_attention a;
    int32_t row = (int32_t)blockIdx.x, g = (int32_t)blockIdx.y, split = (int32_t)blockIdx.z;
    int32_t group = p.Q / p.G, length = position_of(p, row) + 1, thread = (int32_t)threadIdx.x;
    int32_t end = split_begin(length, splits, split + 1);
    const float *q = qkv + ((int64_t)row * (p.Q + 2 * p.G) + g * group) * p.C;
    int64_t head = ((int64_t)(p.s0 + row / p.n) * p.T * p.G + g) * p.C, step = (int64_t)p.G * p.C;
    for (int32_t i = thread; i < group * p.C; i += ATTEND_THREADS)
        a.mixed[i] = 0;
    if (thread < group) {
        a.sum[thread] = 0;
        a.top[thread] = -INFINITY;
    }
    __syncthreads();
    for (int32_t t = split_begin(length, splits, split); t < end; t += ATTEND_KEYS) {
        int32_t keys = end - t < ATTEND_KEYS ? end - t : ATTEND_KEYS;
        score_keys<T>(&a, p, q, k + head + t * step, keys);
        __syncthreads();
        weigh_tile(&a, group, keys);
        __syncthreads();
        for (int32_t i = thread; i < group * p.C; i += ATTEND_THREADS) {
            int32_t h = i / p.C;
            const T *value = v + head + t * step + i % p.C;
            float sum = a.mixed[i] * a.shrink[h];
            for (int32_t j = 0; j < keys; j++)
                sum += a.score[h][j] * to_float(value[j * step]);
            a.mixed[i] = sum;
        }
        __syncthreads();
    }
    for (int32_t i = thread; i < group * (p.C + 2); i += ATTEND_THREADS) {
        int32_t h = i / (p.C + 2), c = i % (p.C + 2);
        int64_t to = (((int64_t)row * p.Q + g * group + h) * splits + split) * (p.C + 2);
        part[to + c] = c < p.C ? a.mixed[h * p.C + c] : c == p.C ? a.top[h] : a.sum[h];
    }
}

/* o (rows, Q, C) from the splits.  Grid: rows, Q. */
template <typename T>
static __global__ void merge_rows(const __grid_constant__ fm_serve_piece p, T *o, const float *part,
                                  int32_t splits)
{
    int64_t head = (int64_t)blockIdx.x * p.Q + blockIdx.y;
    const float *from = part + head * splits * (p.C + 2);
    float top = -INFINITY, sum = 0;
    for (int32_t i = 0; i < splits; i++)
        top = fmaxf(top, from[(int64_t)i * (p.C + 2) + p.C]);
    for (int32_t i = 0; i < splits; i++) {
        const float *s = from + (int64_t)i * (p.C + 2);
        sum += s[p.C + 1] * expf(s[p.C] - top);
    }
    for (int32_t c = (int32_t)threadIdx.x; c < p.C; c += (int32_t)blockDim.x) {
        float mixed = 0;
        for (int32_t i = 0; i < splits; i++) {
            const float *s = from + (int64_t)i * (p.C + 2);
            mixed += s[c] * expf(s[p.C] - top);
        }
        o[head * p.C + c] = from_float<T>(mixed / sum);
    }
}

/* The K largest of the row's logits, ties to the lower index, and their softmax. */
static __device__ __forceinline__ void choose_experts(int32_t *ids, float *weights, float *logit,
                                                      int32_t E, int32_t K)
{
    float sum = 0;
    for (int32_t j = 0; j < K; j++) {
        int32_t best = -1;
        for (int32_t e = 0; e < E; e++) {
            bool taken = false;
            for (int32_t i = 0; i < j; i++)
                taken |= ids[i] == e;
            if (!taken && (best < 0 || logit[e] > logit[best]))
                best = e;
        }
        ids[j] = best;
        weights[j] = expf(logit[best] - logit[ids[0]]);
        sum += weights[j];
    }
    for (int32_t j = 0; j < K; j++)
        weights[j] /= sum;
}

/* Logits of the row as norm_rows left it, unrounded; a warp per expert.  Grid: rows;
 * SERVE_THREADS. */
static __global__ void choose_rows(const __grid_constant__ fm_serve_piece p, int32_t *ids,
                                   float *weights, const float *x, const float *rstd,
                                   const float *w, const float *router)
{
    __shared__ float logit[ROUTE_EXPERTS];
    int32_t row = (int32_t)blockIdx.x, lane = (int32_t)threadIdx.x % 32;
    const float *from = x + (int64_t)row * p.H;
    float r = rstd[row];
    for (int32_t e = (int32_t)threadIdx.x / 32; e < p.E; e += SERVE_THREADS / 32) {
        float sum = 0;
        for (int32_t i = lane; i < p.H; i += 32)
            sum += w[i] * (from[i] * r) * router[(int64_t)e * p.H + i];
        sum = warp_sum(sum);
        if (lane == 0)
            logit[e] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        choose_experts(ids + (int64_t)row * p.K, weights + (int64_t)row * p.K, logit, p.E, p.K);
}

/* x += y, n numbers. */
template <typename T> static __global__ void add_numbers(float *x, const T *y, int64_t n)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x)
        x[i] += to_float(y[i]);
}

/* last (sequences, H): the end of each sequence.  Grid: S. */
static __global__ void take_last(const __grid_constant__ fm_serve_piece p, float *last,
                                 const float *x)
{
    const float *from = x + ((int64_t)(blockIdx.x + 1) * p.n - 1) * p.H;
    for (int32_t i = (int32_t)threadIdx.x; i < p.H; i += (int32_t)blockDim.x)
        last[((int64_t)p.s0 + blockIdx.x) * p.H + i] = from[i];
}

#endif
