/*
 * From expert ids to the plan of a chunk: rows sorted by (expert, width), groups in plan order, and
 * the tile counts of both products; then gather and combine.
 *
 * The slots are divided into parts, one warp each.  Phases, with a barrier of all threads between
 * them:
 *   count   slots -> expert and width of each slot, rows of each expert, and of each in each part
 *   offsets rows of each expert -> first sorted row of each, also in each part
 *   seat    each part's slots to their rows, in slot order
 *   close   one warp per expert: groups by width where tokens have budgets
 *   plan    groups in order, tiles and rows of y before each
 * Orders are fixed by the input: atomics only add or OR integers.
 */
#ifndef FM_CLIP_CUDA_ROUTE_CUH
#define FM_CLIP_CUDA_ROUTE_CUH

#include "kernels/clip/cuda/clip_cuda.cuh"

#define LANES 32
#define ALL_LANES 0xffffffffu

struct fm_cuda_team {
    int32_t thread, threads; /* among those that share a phase */
    int32_t lane;
};

static __device__ __forceinline__ uint32_t fm_cuda_below(int32_t lane)
{
    return (1u << lane) - 1u;
}

/* The sum over this lane and those before it. */
static __device__ __forceinline__ int32_t fm_cuda_running(int32_t value, int32_t lane)
{
    for (int32_t d = 1; d < 32; d *= 2) {
        int32_t other = __shfl_up_sync(ALL_LANES, value, d);
        value += lane >= d ? other : 0;
    }
    return value;
}

static __device__ __forceinline__ int32_t fm_cuda_last(int32_t value)
{
    return __shfl_sync(ALL_LANES, value, 31);
}

static __device__ __forceinline__ int32_t fm_cuda_most(int32_t value)
{
    for (int32_t d = 16; d > 0; d /= 2) {
        int32_t other = __shfl_xor_sync(ALL_LANES, value, d);
        value = other > value ? other : value;
    }
    return value;
}

/* The nearest integer (ties up; indices have none in practice), clamped to [0, B); a fault if it
 * was outside. */
static __device__ __forceinline__ int32_t fm_cuda_index_of(float value, int32_t B, int32_t *faults)
{
    if (!(value >= -0.5f)) {
        atomicOr(faults, FM_CLIP_FAULT_BUDGET);
        return 0;
    }
    if (!(value < (float)B - 0.5f)) {
        atomicOr(faults, FM_CLIP_FAULT_BUDGET);
        return B - 1;
    }
    int32_t b = (int32_t)(value + 0.5f);
    return b < B ? b : B - 1;
}

/* The index of the current row of widths, for a call without budgets per token. */
static __device__ __forceinline__ int32_t fm_cuda_budget(const struct fm_cuda_job *job)
{
    int64_t b;
    switch (job->budget_type) {
    case FM_CLIP_I32:
        b = *(const int32_t *)job->budget;
        break;
    case FM_CLIP_I64:
        b = *(const int64_t *)job->budget;
        break;
    case FM_CLIP_F32:
        return fm_cuda_index_of(*(const float *)job->budget, job->B, job->faults);
    case FM_CLIP_BF16:
        return fm_cuda_index_of(to_float(*(const __nv_bfloat16 *)job->budget), job->B, job->faults);
    default:
        return fm_cuda_index_of(to_float(*(const __half *)job->budget), job->B, job->faults);
    }
    if (b < 0 || b >= job->B) {
        atomicOr(job->faults, FM_CLIP_FAULT_BUDGET);
        b = b < 0 ? 0 : job->B - 1;
    }
    return (int32_t)b;
}

/* Width of expert e at budget b, clamped to [0, cap]. */
static __device__ __forceinline__ int32_t fm_cuda_width(const struct fm_cuda_job *job, int32_t b,
                                                        int32_t e)
{
    int32_t k = job->widths[(int64_t)b * job->E + e], cap = job->cap[e];
    if (k < 0 || k > cap) {
        atomicOr(job->faults, FM_CLIP_FAULT_WIDTH);
        k = k < 0 ? 0 : cap;
    }
    return k;
}

/* Local expert of a slot, or -1. */
static __device__ __forceinline__ int32_t fm_cuda_expert(const struct fm_cuda_job *job,
                                                         int64_t slot)
{
    int64_t id = job->ids_type == FM_CLIP_I64 ? ((const int64_t *)job->ids)[slot]
                                              : ((const int32_t *)job->ids)[slot];
    id -= job->e0;
    return id < 0 || id >= job->E ? -1 : (int32_t)id;
}

/* The expert for which a slot needs a row, or -1, and its width; `all` is the budget of a call
 * without budgets per token, `token` is the slot's token. */
static __device__ __forceinline__ int32_t fm_cuda_slot(const struct fm_cuda_job *job, int64_t slot,
                                                       int64_t token, int32_t all, int32_t *width)
{
    int32_t e = fm_cuda_expert(job, slot), b = all;
    *width = 0;
    if (e >= 0 && job->budgets) {
        b = job->budgets[token];
        if (b < 0 || b >= job->B) {
            atomicOr(job->faults, FM_CLIP_FAULT_BUDGET);
            b = b < 0 ? 0 : job->B - 1;
        }
    }
    if (e >= 0)
        *width = fm_cuda_width(job, b, e);
    return *width > 0 ? e : -1;
}

/* Count the rows of each expert among `slots` slots into counts. */
static __device__ __forceinline__ void fm_cuda_count(const struct fm_cuda_job *job,
                                                     struct fm_cuda_team team, int64_t slots,
                                                     int32_t *counts)
{
    int32_t all = job->budgets ? 0 : fm_cuda_budget(job), width;
    for (int64_t slot = team.thread; slot < slots; slot += team.threads) {
        int32_t e = fm_cuda_slot(job, slot, slot / job->K, all, &width);
        if (e >= 0)
            atomicAdd(&counts[e], 1);
    }
}

/* The slots [first, end) of a part, in multiples of 32 except at the end of the chunk; a part may
 * be empty. */
static __device__ __forceinline__ void fm_cuda_part(const struct fm_cuda_job *job, int32_t part,
                                                    int32_t *first, int32_t *end)
{
    int32_t each = fm_cuda_ceil(fm_cuda_ceil(job->slots, job->parts), 32) * 32;
    *first = fm_cuda_min(part * each, job->slots);
    *end = fm_cuda_min(*first + each, job->slots);
}

/* Count the rows of each expert in a part and add them to job->counts, and store expert and width
 * of each slot for the next phases: one warp. */
static __device__ __forceinline__ void fm_cuda_count_part(const struct fm_cuda_job *job,
                                                          int32_t part, struct fm_cuda_team team)
{
    int32_t all = job->budgets ? 0 : fm_cuda_budget(job), first, end;
    int32_t *rows = job->part_rows + (int64_t)part * job->E;
    fm_cuda_part(job, part, &first, &end);
    for (int32_t e = team.lane; e < job->E; e += LANES)
        rows[e] = 0;
    __syncwarp();
    for (int32_t base = first; base < end; base += LANES) {
        int32_t slot = base + team.lane, e = -1, width = 0;
        if (slot < end) {
            e = fm_cuda_slot(job, slot, slot / job->K, all, &width); /* in 32 bits, so that the
                                                                        division is not a
                                                                        function call */
            job->slot_expert[slot] = e;
            job->slot_width[slot] = width;
        }
        uint32_t mask = __match_any_sync(ALL_LANES, e);
        if (e >= 0 && (mask & fm_cuda_below(team.lane)) == 0) {
            rows[e] += __popc(mask);
            atomicAdd(&job->counts[e], __popc(mask));
        }
        __syncwarp();
    }
}

/* sums[i] = values[0] + .. + values[i-1], i <= n, by one whole warp; returns the total. */
static __device__ __forceinline__ int32_t fm_cuda_sums(int32_t *sums, const int32_t *values,
                                                       int32_t n, struct fm_cuda_team team)
{
    int32_t carry = 0;
    for (int32_t base = 0; base < n; base += LANES) {
        int32_t i = base + team.lane;
        int32_t value = i < n ? values[i] : 0;
        int32_t running = fm_cuda_running(value, team.lane);
        if (i < n)
            sums[i] = carry + running - value;
        carry += fm_cuda_last(running);
    }
    if (team.lane == 0)
        sums[n] = carry;
    return carry;
}

/* Assign sorted rows from `row` on to the lanes with `mine` set, in lane order; returns their
 * number. */
static __device__ __forceinline__ int32_t fm_cuda_seat(const struct fm_cuda_job *job, int mine,
                                                       int32_t slot, int32_t row, int32_t record,
                                                       struct fm_cuda_team team)
{
    uint32_t mask = __ballot_sync(ALL_LANES, mine);
    if (mine) {
        int32_t r = row + __popc(mask & fm_cuda_below(team.lane));
        job->row_slot[r] = slot;
        job->slot_row[slot] = r;
        job->slot_record[slot] = record;
    }
    return __popc(mask);
}

static __device__ __forceinline__ void fm_cuda_record(const struct fm_cuda_job *job, int32_t record,
                                                      int32_t e, int32_t width, int32_t row,
                                                      int32_t rows)
{
    struct fm_cuda_group *g = &job->records[record];
    g->expert = e;
    g->width = width;
    g->row = row;
    g->rows = rows;
    g->large = fm_cuda_is_large(job->counts_call[e]);
    g->splits = fm_cuda_splits(width, g->large);
    g->y = 0;
    g->spare = 0;
}

/* For expert e, turn the number of its rows in each part into the first of these rows. */
static __device__ __forceinline__ void fm_cuda_part_offsets(const struct fm_cuda_job *job,
                                                            int32_t e)
{
    int32_t row = job->offsets[e];
    for (int32_t part = 0; part < job->parts; part++) {
        int32_t *rows = &job->part_rows[(int64_t)part * job->E + e], here = *rows;
        *rows = row;
        row += here;
    }
}

/* Write a part's slots, in slot order, to their rows, or to row_draft if tokens have budgets: one
 * warp. */
static __device__ __forceinline__ void fm_cuda_seat_part(const struct fm_cuda_job *job,
                                                         int32_t part, struct fm_cuda_team team)
{
    int32_t *rows = job->part_rows + (int64_t)part * job->E, first, end;
    fm_cuda_part(job, part, &first, &end);
    for (int32_t base = first; base < end; base += LANES) {
        int32_t slot = base + team.lane, e = slot < end ? job->slot_expert[slot] : -1;
        uint32_t mask = __match_any_sync(ALL_LANES, e), before = mask & fm_cuda_below(team.lane);
        int32_t row = e >= 0 ? rows[e] + __popc(before) : -1;
        __syncwarp();
        if (e >= 0 && before == 0)
            rows[e] += __popc(mask);
        __syncwarp();
        if (e >= 0 && job->budgets) {
            job->row_draft[row] = slot;
        } else if (e >= 0) {
            job->row_slot[row] = slot;
            job->slot_row[slot] = row;
            job->slot_record[slot] = job->offsets[e];
        }
    }
}

/* Group the drafted rows of expert e by width, widest first; returns the number of groups. */
static __device__ __forceinline__ int32_t fm_cuda_regroup(const struct fm_cuda_job *job, int32_t e,
                                                          struct fm_cuda_team team)
{
    int32_t first = job->offsets[e], rows = job->counts[e], done = 0, groups = 0;
    int32_t bound = INT32_MAX;
    while (done < rows) {
        int32_t width = 0, begin = done;
        for (int32_t i = team.lane; i < rows; i += LANES) {
            int32_t k = job->slot_width[job->row_draft[first + i]];
            width = k < bound && k > width ? k : width;
        }
        width = fm_cuda_most(width);
        for (int32_t base = 0; base < rows; base += LANES) {
            int32_t i = base + team.lane;
            int32_t slot = i < rows ? job->row_draft[first + i] : 0;
            int mine = i < rows && job->slot_width[slot] == width;
            done += fm_cuda_seat(job, mine, slot, first + done, first + groups, team);
        }
        if (team.lane == 0)
            fm_cuda_record(job, first + groups, e, width, first + begin, done - begin);
        bound = width;
        groups++;
    }
    return groups;
}

/* Group the rows of expert e, which are in row_draft or in place: one warp. */
static __device__ __forceinline__ void fm_cuda_close(const struct fm_cuda_job *job, int32_t e,
                                                     struct fm_cuda_team team)
{
    int32_t rows = job->counts[e], first = job->offsets[e], groups = rows > 0;
    if (rows > 0 && job->budgets)
        groups = fm_cuda_regroup(job, e, team);
    else if (rows > 0 && team.lane == 0)
        fm_cuda_record(job, first, e, job->slot_width[job->row_slot[first]], first, rows);
    if (team.lane == 0)
        job->group_counts[e] = groups;
}

/* Count the tiles before each group of a product, by one warp; sums go to job->totals. */
static __device__ __forceinline__ void fm_cuda_begins(const struct fm_cuda_job *job, int product,
                                                      int32_t groups, struct fm_cuda_team team)
{
    int32_t *begin = job->begin[product - 1], carry = 0;
    for (int32_t base = 0; base < groups; base += LANES) {
        int32_t a = base + team.lane;
        int32_t tiles = a < groups ? fm_cuda_tiles(product, &job->groups[a], job->H) : 0;
        int32_t running = fm_cuda_running(tiles, team.lane);
        if (a < groups)
            begin[a] = carry + running - tiles;
        carry += fm_cuda_last(running);
    }
    if (team.lane == 0) {
        begin[groups] = carry;
        job->totals->tiles[product - 1] = carry;
    }
}

/* Count the rows of y before each group, by one warp. */
static __device__ __forceinline__ void fm_cuda_y_begins(const struct fm_cuda_job *job,
                                                        int32_t groups, struct fm_cuda_team team)
{
    int32_t carry = 0;
    for (int32_t base = 0; base < groups; base += LANES) {
        int32_t a = base + team.lane;
        int32_t rows = a < groups ? job->groups[a].rows * job->groups[a].splits : 0;
        int32_t running = fm_cuda_running(rows, team.lane);
        if (a < groups) {
            job->groups[a].y = carry + running - rows;
            job->records[job->order[a]].y = carry + running - rows;
        }
        carry += fm_cuda_last(running);
    }
}

/* Put the active groups in order, and count their tiles and rows of y; for all threads of one
 * block, in warps of `LANES` lanes. */
static __device__ __forceinline__ void fm_cuda_plan(const struct fm_cuda_job *job,
                                                    struct fm_cuda_team team)
{
    int32_t warp = team.thread / LANES, warps = team.threads / LANES;
    if (warp == 0)
        fm_cuda_sums(job->group_bases, job->group_counts, job->E, team);
    __syncthreads();
    int32_t groups = job->group_bases[job->E];
    for (int32_t e = team.thread; e < job->E; e += team.threads)
        for (int32_t j = 0; j < job->group_counts[e]; j++)
            job->active[job->group_bases[e] + j] = job->offsets[e] + j;
    __syncthreads();
    for (int32_t a = warp; a < groups; a += warps) {
        struct fm_cuda_group g = job->records[job->active[a]];
        int32_t rank = 0;
        for (int32_t base = 0; base < groups; base += LANES) {
            int32_t b = base + team.lane;
            const struct fm_cuda_group *o = &job->records[job->active[b < groups ? b : a]];
            rank +=
                __popc(__ballot_sync(ALL_LANES, b < groups && fm_cuda_before(o->large, o->width, b,
                                                                             g.large, g.width, a)));
        }
        if (team.lane == 0) {
            job->groups[rank] = g;
            job->order[rank] = job->active[a];
        }
    }
    __syncthreads();
    if (warp == 0)
        fm_cuda_y_begins(job, groups, team);
    if (warp == 1 % warps)
        fm_cuda_begins(job, 1, groups, team);
    if (warp == 2 % warps)
        fm_cuda_begins(job, 2, groups, team);
    if (team.thread == 0) {
        job->totals->groups = groups;
        job->totals->rows = job->offsets[job->E];
    }
}

/* --- kernels */

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
