/*
 * The kernels of routing, gather and combine.  The phases of the routing are in clip_cuda_route.h;
 * here they are assigned to blocks and warps.
 */
#ifndef FM_CLIP_CUDA_ROUTE_CUH
#define FM_CLIP_CUDA_ROUTE_CUH

#include "kernels/clip/cuda/clip_cuda_route.h"

#define ROUTE_BLOCK 1024

static __device__ struct fm_cuda_team block_team()
{
    return {(int32_t)threadIdx.x, (int32_t)blockDim.x, (int32_t)threadIdx.x % LANES};
}

static __device__ struct fm_cuda_team grid_team()
{
    struct fm_cuda_team team = block_team();
    team.thread += (int32_t)(blockIdx.x * blockDim.x);
    team.threads = (int32_t)(gridDim.x * blockDim.x);
    return team;
}

/* All phases in one block. */
static __global__ void __launch_bounds__(ROUTE_BLOCK)
    route_one(const __grid_constant__ fm_cuda_job job)
{
    struct fm_cuda_team team = block_team();
    int32_t warp = team.thread / 32, warps = ROUTE_BLOCK / 32;
    for (int32_t e = team.thread; e < job.E; e += team.threads)
        job.counts[e] = 0;
    __syncthreads();
    for (int32_t part = warp; part < job.parts; part += warps)
        fm_cuda_count_part(&job, part, team);
    __syncthreads();
    if (warp == 0)
        fm_cuda_sums(job.offsets, job.counts, job.E, team);
    __syncthreads();
    for (int32_t e = team.thread; e < job.E; e += team.threads)
        fm_cuda_part_offsets(&job, e);
    __syncthreads();
    for (int32_t part = warp; part < job.parts; part += warps)
        fm_cuda_seat_part(&job, part, team);
    __syncthreads();
    for (int32_t e = warp; e < job.E; e += warps)
        fm_cuda_close(&job, e, team);
    __syncthreads();
    fm_cuda_plan(&job, team);
}

/* Count the rows of a call that is computed in chunks. */
static __global__ void __launch_bounds__(256)
    route_count(const __grid_constant__ fm_cuda_job job, int64_t slots)
{
    fm_cuda_count(&job, grid_team(), slots, job.counts_call);
}

/* The phases in several blocks: count and seat with a warp per part, offsets in one block, close
 * with a warp per expert. */
static __global__ void __launch_bounds__(256, 2)
    route_count_parts(const __grid_constant__ fm_cuda_job job)
{
    struct fm_cuda_team team = grid_team();
    for (int32_t part = team.thread / 32; part < job.parts; part += team.threads / 32)
        fm_cuda_count_part(&job, part, team);
}

static __global__ void __launch_bounds__(ROUTE_BLOCK)
    route_part_offsets(const __grid_constant__ fm_cuda_job job)
{
    struct fm_cuda_team team = block_team();
    if (team.thread < 32)
        fm_cuda_sums(job.offsets, job.counts, job.E, team);
    __syncthreads();
    for (int32_t e = team.thread; e < job.E; e += team.threads)
        fm_cuda_part_offsets(&job, e);
}

static __global__ void __launch_bounds__(256)
    route_seat_parts(const __grid_constant__ fm_cuda_job job)
{
    struct fm_cuda_team team = grid_team();
    for (int32_t part = team.thread / 32; part < job.parts; part += team.threads / 32)
        fm_cuda_seat_part(&job, part, team);
}

static __global__ void __launch_bounds__(256) route_close(const __grid_constant__ fm_cuda_job job)
{
    struct fm_cuda_team team = grid_team();
    for (int32_t e = team.thread / 32; e < job.E; e += team.threads / 32)
        fm_cuda_close(&job, e, team);
}

static __global__ void __launch_bounds__(ROUTE_BLOCK)
    route_plan(const __grid_constant__ fm_cuda_job job)
{
    fm_cuda_plan(&job, block_team());
}

/* x[r] = hidden[token of r], copied in units of type U. */
template <typename U>
static __global__ void __launch_bounds__(256)
    gather_rows(const __grid_constant__ fm_cuda_job job, int64_t units, int64_t stride)
{
    for (int64_t r = blockIdx.x; r < job.totals->rows; r += gridDim.x) {
        const U *from = (const U *)job.hidden + (int64_t)(job.row_slot[r] / job.K) * stride;
        U *to = (U *)job.x + r * units;
        for (int64_t i = threadIdx.x; i < units; i += blockDim.x)
            to[i] = from[i];
    }
}

template <int V> static __device__ __forceinline__ void load(float v[V], const float *from)
{
    if (V == 4) {
        float4 all = *(const float4 *)from;
        v[0] = all.x, v[1 % V] = all.y, v[2 % V] = all.z, v[3 % V] = all.w;
    } else {
        v[0] = from[0];
    }
}

template <typename T, int V> struct alignas(V * sizeof(T)) vector_of {
    T v[V];
};

/* V columns of a token: slots in slot order, a slot's splits in split order, one rounding. */
template <typename T, int V>
static __device__ void combine_columns(const fm_cuda_job &job, int64_t t, int32_t column)
{
    float sum[V] = {};
    for (int32_t s = 0; s < job.K; s++) {
        int64_t slot = t * job.K + s;
        if (job.slot_expert[slot] < 0)
            continue;
        struct fm_cuda_group g = job.records[job.slot_record[slot]];
        const float *y = job.y + (g.y + (int64_t)job.slot_row[slot] - g.row) * job.H + column;
        float weight = job.weights[slot], z[V], part[V];
        load<V>(z, y);
        for (int32_t p = 1; p < g.splits; p++) {
            load<V>(part, y + (int64_t)p * g.rows * job.H);
#pragma unroll
            for (int v = 0; v < V; v++)
                z[v] = __fadd_rn(z[v], part[v]);
        }
#pragma unroll
        for (int v = 0; v < V; v++)
            sum[v] = __fadd_rn(sum[v], __fmul_rn(weight, z[v]));
    }
    vector_of<T, V> rounded;
#pragma unroll
    for (int v = 0; v < V; v++)
        rounded.v[v] = from_float<T>(sum[v]);
    *(vector_of<T, V> *)((T *)job.out + t * job.out_stride + column) = rounded;
}

/* V is 4 if the rows of y and out are aligned for it, else 1. */
template <typename T, int V>
static __global__ void __launch_bounds__(256, 4)
    combine_rows(const __grid_constant__ fm_cuda_job job)
{
    int32_t column = (int32_t)(blockIdx.y * 256 + threadIdx.x) * V;
    if (column < job.H)
        for (int64_t t = blockIdx.x; t < job.n; t += gridDim.x)
            combine_columns<T, V>(job, t, column);
}

#endif
