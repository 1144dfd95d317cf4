/*
 * Kernels for both products of the clipped FFN, in bf16 and f16, for sm_80 and newer: cp.async into
 * a swizzled ring of shared memory, ldmatrix, mma.m16n8k16.
 *
 * Persistent blocks share tiles of 64 rows x 128 columns.  No row past a group's rows and no
 * weight past its width or past H is loaded; zeros take their place.
 */
#ifndef FM_CLIP_CUDA_MMA_CUH
#define FM_CLIP_CUDA_MMA_CUH

#include "kernels/clip/cuda/clip_cuda.cuh"

#define MMA_STAGES 3
#define MMA_STAGE_BYTES (FM_MAP_BLOCK_BYTES * 3) /* one block of rows, two of weights */
#define MMA_BYTES (MMA_STAGES * MMA_STAGE_BYTES + FM_MAP_ATOM_BYTES)
#define MMA_THREADS 128

/* What a tile reads: its rows of x or h, and the weights of its expert. */
template <typename T> struct sources {
    const T *rows, *weights;
    int64_t row_stride;
    int32_t rows_there;    /* rows of the tile */
    int32_t weights_there; /* product 1: gate/up rows from tile.col on; product 2: columns of H */
    int32_t from, to;      /* the sum */
};

template <typename T, int PRODUCT>
static __device__ __forceinline__ sources<T>
sources_of(const fm_cuda_job &job, const fm_cuda_tile &tile, const fm_cuda_group &g)
{
    sources<T> s;
    int64_t row = g.row + tile.row, channel = job.row0[g.expert];
    s.rows_there = tile.rows;
    s.from = tile.from;
    s.to = tile.to;
    if (PRODUCT == 1) {
        s.rows = (const T *)job.x + row * job.H;
        s.row_stride = job.H;
        s.weights = (const T *)job.gate_up + (2 * channel + tile.col) * job.H;
        s.weights_there = 2 * g.width - tile.col;
    } else {
        s.rows = (const T *)job.h + row * job.channels_padded;
        s.row_stride = job.channels_padded;
        s.weights = (const T *)job.down + channel * job.H + tile.col;
        s.weights_there = job.H - tile.col;
    }
    return s;
}

/* Start the copies of one step of the sum, elements [k, k + 64): rows to block 0 of the stage,
 * weights to blocks 1 and 2. */
template <typename T, int PRODUCT>
static __device__ __forceinline__ void copy_step(uint32_t stage, const sources<T> &s, int32_t k,
                                                 int64_t H)
{
    uint32_t chunk = threadIdx.x % 8 * 8;
#pragma unroll
    for (int i = 0; i < FM_CUDA_TILE_ROWS * 8 / MMA_THREADS; i++) {
        uint32_t r = threadIdx.x / 8 + i * (MMA_THREADS / 8);
        bool there = (int32_t)r < s.rows_there && k + (int32_t)chunk < s.to;
        copy16(stage + fm_map_byte(r, chunk),
               there ? s.rows + (int64_t)r * s.row_stride + k + chunk : s.rows, there);
    }
#pragma unroll
    for (int i = 0; i < FM_CUDA_TILE_COLS * 8 / MMA_THREADS; i++) {
        uint32_t r = threadIdx.x / 8 + i * (MMA_THREADS / 8);
        const T *from;
        bool there;
        if (PRODUCT == 1) { /* r: a gate/up row; the chunk is along the sum */
            there = (int32_t)r < s.weights_there && k + (int32_t)chunk < s.to;
            from = s.weights + (int64_t)r * H + k + chunk;
        } else { /* r: half (64 columns) and channel; the chunk is columns */
            int32_t column = (int32_t)(r / 64 * 64 + chunk), channel = k + (int32_t)(r % 64);
            there = column < s.weights_there && channel < s.to;
            from = s.weights + (int64_t)channel * H + column;
        }
        copy16(stage + FM_MAP_BLOCK_BYTES + fm_map_byte(r, chunk), there ? from : s.weights, there);
    }
}

/* One step: a warp's 32 rows x 64 columns from the stage. */
template <typename T, int PRODUCT>
static __device__ __forceinline__ void multiply_step(float d[2][8][4], uint32_t stage,
                                                     uint32_t warp_row, uint32_t warp_column)
{
    uint32_t lane = threadIdx.x % 32, weights = stage + FM_MAP_BLOCK_BYTES;
#pragma unroll
    for (uint32_t k = 0; k < FM_CUDA_STEP; k += 16) {
        uint32_t a[2][4], b[4];
#pragma unroll
        for (uint32_t m = 0; m < 2; m++)
            load_matrices(a[m], stage + fm_map_byte(warp_row + m * 16 + fm_map_a_row(lane),
                                                    k + fm_map_a_k(lane)));
#pragma unroll
        for (uint32_t n = 0; n < 4; n++) {
            if (PRODUCT == 1)
                load_matrices(b, weights +
                                     fm_map_byte(warp_column + n * 16 + fm_map_b_along_column(lane),
                                                 k + fm_map_b_along_k(lane)));
            else
                load_matrices_across(b, weights + warp_column / 64 * FM_MAP_BLOCK_BYTES +
                                            fm_map_byte(k + fm_map_b_across_k(lane),
                                                        n * 16 + fm_map_b_across_column(lane)));
#pragma unroll
            for (int m = 0; m < 2; m++) {
                multiply<T>(d[m][2 * n], a[m], b[0], b[1]);
                multiply<T>(d[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* Store h from a warp's accumulators: 16 channels at a time, four neighbours in one store. */
template <typename T>
static __device__ __forceinline__ void store_h(const fm_cuda_job &job, const fm_cuda_tile &tile,
                                               const fm_cuda_group &g, float d[2][8][4],
                                               uint32_t warp_row, uint32_t warp_column)
{
    uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t at = 0; at < 8; at++) {
        uint32_t m = at / 4, second = at / 2 % 2, quad = at % 2;
        int32_t row = (int32_t)(warp_row + m * 16 + fm_map_d_row(lane, 2 * second));
        int32_t channel = (tile.col + (int32_t)(warp_column + quad * 32)) / 2;
        float v[4];
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const float *gu = &d[m][quad * 4 + c][2 * second];
            bool there = channel + c * 4 + (int32_t)(lane % 4) < g.width;
            v[c] = there ? gated_fast(gu[0], gu[1]) : 0.0f;
        }
        uint2 four = quad_channels<T>(v, lane);
        if (row < tile.rows && (int32_t)(warp_column + quad * 32) < tile.cols)
            *(uint2 *)((T *)job.h + (int64_t)(g.row + tile.row + row) * job.channels_padded +
                       channel + lane % 4 * 4) = four;
    }
}

static __device__ __forceinline__ void store_y(const fm_cuda_job &job, const fm_cuda_tile &tile,
                                               const fm_cuda_group &g, float d[2][8][4],
                                               uint32_t warp_row, uint32_t warp_column)
{
    uint32_t lane = threadIdx.x % 32;
    int64_t first = g.y + (int64_t)tile.split * g.rows + tile.row;
#pragma unroll
    for (uint32_t at = 0; at < 32; at++) {
        uint32_t m = at / 16, second = at / 8 % 2, n = at % 8;
        int32_t row = (int32_t)(warp_row + m * 16 + fm_map_d_row(lane, 2 * second));
        int32_t column = (int32_t)(warp_column + fm_map_d_column(lane, n * 4));
        if (row < tile.rows && column < tile.cols)
            *(float2 *)(job.y + (first + row) * job.H + tile.col + column) =
                make_float2(d[m][n][2 * second], d[m][n][2 * second + 1]);
    }
}

template <typename T, int PRODUCT>
static __global__ void __launch_bounds__(MMA_THREADS)
    mma_product(const __grid_constant__ fm_cuda_job job)
{
    SHARED_MEMORY(memory);
    uint32_t ring =
        (shared_address(memory) + FM_MAP_ATOM_BYTES - 1) & ~(uint32_t)(FM_MAP_ATOM_BYTES - 1);
    uint32_t warp = threadIdx.x / 32, warp_row = warp / 2 * 32, warp_column = warp % 2 * 64;
    struct fm_cuda_tile tile;
    struct fm_cuda_group g;
    for (int32_t round = 0; next_tile(job, PRODUCT, round, &tile, &g); round++) {
        sources<T> s = sources_of<T, PRODUCT>(job, tile, g);
        int32_t steps = fm_cuda_ceil(s.to - s.from, FM_CUDA_STEP);
        float d[2][8][4] = {};
#pragma unroll
        for (int i = 0; i < MMA_STAGES - 1; i++) {
            if (i < steps)
                copy_step<T, PRODUCT>(ring + i * MMA_STAGE_BYTES, s, s.from + i * FM_CUDA_STEP,
                                      job.H);
            copies_end();
        }
        for (int32_t i = 0; i < steps; i++) {
            copies_wait<MMA_STAGES - 2>();
            __syncthreads(); /* step i has arrived, and all threads have finished step i - 1 */
            int32_t ahead = i + MMA_STAGES - 1;
            if (ahead < steps)
                copy_step<T, PRODUCT>(ring + ahead % MMA_STAGES * MMA_STAGE_BYTES, s,
                                      s.from + ahead * FM_CUDA_STEP, job.H);
            copies_end();
            multiply_step<T, PRODUCT>(d, ring + i % MMA_STAGES * MMA_STAGE_BYTES, warp_row,
                                      warp_column);
        }
        copies_wait<0>();
        __syncthreads(); /* the next tile's first copies overwrite the ring */
        if (PRODUCT == 1)
            store_h<T>(job, tile, g, d, warp_row, warp_column);
        else
            store_y(job, tile, g, d, warp_row, warp_column);
    }
}

#endif
