/*
 * The kernels of the Hopper path of the clipped FFN (sm_90a): one persistent kernel per product
 * over all experts.
 *
 * A block is a producer warpgroup, one thread of which issues the TMA copies, and two consumer
 * warpgroups.  A stage of the ring holds 64 elements of the sum: up to 128 rows of x or h (16 KB,
 * boxes of 16 rows) and up to 256 columns' worth of weights (32 KB, boxes of 64).  One tensor map
 * over all of gate_up and one over all of down serve every expert and every width: clipping is a
 * bound of a loop.
 *
 *   large form   d (rows, columns): each consumer takes 64 rows x 256 columns
 *   small form   d (columns, rows): each consumer takes 64 columns x up to 64 rows: an instruction
 *                has exactly 64 rows of d, and here 16 or 64 columns
 *
 * The producer takes the next tile, the longest first, from a counter that all blocks share, once
 * it has issued all copies of the previous one, and passes its number to the consumers through
 * shared memory.  (With job.simple, tiles are assigned in advance, round by round.)  The bits of a
 * tile do not depend on the block that computes it.  Weights that only one tile reads, those of the
 * small form, are evicted from the cache first.
 *
 * A box may hold channels past the width: real rows of the tensor, or zeros past its end.  Product
 * 1 stores zeros in their columns; product 2, where they are terms of the sum, first overwrites
 * them with zeros in shared memory.  So no number at or past the width affects a result, even a
 * NaN.
 */
#ifndef FM_CLIP_CUDA_HOPPER_CUH
#define FM_CLIP_CUDA_HOPPER_CUH

#include "kernels/clip/cuda/clip_cuda.cuh"

#define HOPPER_STAGES 4
#define HOPPER_ROWS_BYTES (2 * FM_MAP_BLOCK_BYTES)
#define HOPPER_WEIGHTS_BYTES (4 * FM_MAP_BLOCK_BYTES)
#define HOPPER_STAGE_BYTES (HOPPER_ROWS_BYTES + HOPPER_WEIGHTS_BYTES)
#define HOPPER_BARRIERS_AT (HOPPER_STAGES * HOPPER_STAGE_BYTES)
#define HOPPER_TURNS 2 /* tiles by which the producer may be ahead of the consumers */
#define HOPPER_TURNS_AT (HOPPER_BARRIERS_AT + 2 * HOPPER_STAGES * 8)
#define HOPPER_ITEMS_AT (HOPPER_TURNS_AT + 2 * HOPPER_TURNS * 8)
#define HOPPER_BYTES (HOPPER_ITEMS_AT + HOPPER_TURNS * 4 + FM_MAP_ATOM_BYTES)
#define ROW_BOX 16
#define ROW_BOX_BYTES (ROW_BOX * FM_MAP_ROW_BYTES)
#define HOPPER_CONSUMERS 256
#define HOPPER_THREADS (HOPPER_CONSUMERS + 128)
#define HOPPER_WARPS_OF_CONSUMERS (HOPPER_CONSUMERS / 32)

/* What a tile copies in each step, and its number of steps. */
struct work {
    int32_t boxes, row_boxes; /* of weights, of rows */
    int32_t steps;
};

template <int PRODUCT>
static __device__ __forceinline__ struct work work_of(const fm_cuda_tile &tile,
                                                      const fm_cuda_group &g)
{
    int32_t there = PRODUCT == 1 ? fm_cuda_min(tile.cols, 2 * g.width - tile.col) : tile.cols;
    struct work w;
    w.boxes = there > 0 ? fm_cuda_ceil(there, 64) : 0;
    w.row_boxes = fm_cuda_ceil(tile.rows, ROW_BOX);
    w.steps = w.boxes ? fm_cuda_ceil(tile.to - tile.from, FM_CUDA_STEP) : 0;
    return w;
}

static __device__ __forceinline__ uint32_t full_barrier(uint32_t ring, uint32_t stage)
{
    return ring + HOPPER_BARRIERS_AT + stage * 8;
}

static __device__ __forceinline__ uint32_t empty_barrier(uint32_t ring, uint32_t stage)
{
    return ring + HOPPER_BARRIERS_AT + (HOPPER_STAGES + stage) * 8;
}

/* Barriers of a turn: the number of its item was written; all consumers have read it. */
static __device__ __forceinline__ uint32_t turn_full(uint32_t ring, uint32_t turn)
{
    return ring + HOPPER_TURNS_AT + turn % HOPPER_TURNS * 8;
}

static __device__ __forceinline__ uint32_t turn_empty(uint32_t ring, uint32_t turn)
{
    return turn_full(ring, turn) + HOPPER_TURNS * 8;
}

static __device__ __forceinline__ uint32_t turn_item(uint32_t ring, uint32_t turn)
{
    return ring + HOPPER_ITEMS_AT + turn % HOPPER_TURNS * 4;
}

static __device__ __forceinline__ uint32_t turn_parity(uint32_t turn)
{
    return turn / HOPPER_TURNS & 1;
}

/* The producer's next tile, whose number it passes on; false after the last. */
template <int PRODUCT>
static __device__ bool give_turn(const fm_cuda_job &job, uint32_t ring, uint32_t turn,
                                 struct fm_cuda_tile *tile, struct fm_cuda_group *g)
{
    int32_t ctas = job.shape.ctas, item = (int32_t)blockIdx.x;
    if (job.simple)
        item = fm_cuda_item(item, ctas, (int32_t)turn);
    else if (turn > 0)
        item = ctas + atomicAdd(&job.totals->begun[PRODUCT - 1], 1);
    barrier_wait(turn_empty(ring, turn), turn_parity(turn) ^ 1, "producer's turn", turn, turn);
    shared_store(turn_item(ring, turn), item);
    barrier_arrive(turn_full(ring, turn));
    if (item >= items_of(job, PRODUCT))
        return false;
    take_item(job, PRODUCT, item, tile, g);
    return true;
}

/* A consumer's next tile, whose number the producer passed on. */
template <int PRODUCT>
static __device__ bool take_turn(const fm_cuda_job &job, uint32_t ring, uint32_t turn,
                                 struct fm_cuda_tile *tile, struct fm_cuda_group *g)
{
    barrier_wait(turn_full(ring, turn), turn_parity(turn), "consumer's turn", turn, turn);
    int32_t item = shared_load(turn_item(ring, turn));
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(turn_empty(ring, turn));
    if (item >= items_of(job, PRODUCT))
        return false;
    take_item(job, PRODUCT, item, tile, g);
    return true;
}

/* One thread fills the ring for every tile of this block. */
template <int PRODUCT>
static __device__ void produce(const fm_cuda_job &job, const CUtensorMap *rows,
                               const CUtensorMap *weights, uint32_t ring)
{
    struct fm_cuda_tile tile;
    struct fm_cuda_group g;
    uint32_t it = 0;
    uint64_t once = policy_once();
    for (uint32_t turn = 0; give_turn<PRODUCT>(job, ring, turn, &tile, &g); turn++) {
        if (tile.cols == 0)
            continue;
        bool hinted = !g.large && !job.simple;
        struct work w = work_of<PRODUCT>(tile, g);
        int64_t channel = job.row0[g.expert];
        int32_t row = g.row + tile.row;
        for (int32_t s = 0; s < w.steps; s++, it++) {
            int32_t k = tile.from + s * FM_CUDA_STEP;
            uint32_t stage = fm_map_stage(it, HOPPER_STAGES),
                     at = ring + stage * HOPPER_STAGE_BYTES;
            uint32_t full = full_barrier(ring, stage);
            barrier_wait(empty_barrier(ring, stage), fm_map_parity(it, HOPPER_STAGES) ^ 1,
                         "producer", stage, it);
            barrier_expect(full,
                           (uint32_t)(w.boxes * FM_MAP_BLOCK_BYTES + w.row_boxes * ROW_BOX_BYTES));
            for (int32_t b = 0; b < w.boxes; b++) {
                uint32_t to = at + HOPPER_ROWS_BYTES + (uint32_t)b * FM_MAP_BLOCK_BYTES;
                int32_t along = PRODUCT == 1 ? k : tile.col + b * 64;
                int32_t down = PRODUCT == 1 ? (int32_t)(2 * channel) + tile.col + b * 64
                                            : (int32_t)channel + k;
                if (hinted)
                    copy_box_by(to, weights, along, down, full, once);
                else
                    copy_box(to, weights, along, down, full);
            }
            for (int32_t b = 0; b < w.row_boxes; b++)
                copy_box(at + (uint32_t)b * ROW_BOX_BYTES, rows, k, row + b * ROW_BOX, full);
        }
    }
}

/* Set channels [there, 64) of a stage's weights to zero, in the last step of a width. */
static __device__ __forceinline__ void clear_tail(uint32_t weights, int32_t there, int32_t boxes)
{
    int32_t chunks = (FM_CUDA_STEP - there) * 8;
    for (int32_t i = (int32_t)threadIdx.x; i < chunks * boxes; i += HOPPER_CONSUMERS) {
        uint32_t to = weights + (uint32_t)(i / chunks) * FM_MAP_BLOCK_BYTES +
                      (uint32_t)there * FM_MAP_ROW_BYTES + (uint32_t)(i % chunks) * 16;
        shared_clear16(to);
    }
    fence_async();
    named_barrier(1, HOPPER_CONSUMERS);
}

/* Compute the sum of one tile in d.  This consumer's rows start at rows_at in a stage, its weights
 * at weights_at; they advance by FM_MAP_NEXT_ALONG and w_next bytes every 16 elements.  A consumer
 * without work only releases the stages.  *it: the step of the ring, advanced past the tile. */
template <typename T, int PRODUCT, int N, bool SWAP>
static __device__ __forceinline__ void sum_tile(float (&d)[N / 2], uint32_t ring, uint32_t *it,
                                                const fm_cuda_tile &tile, const struct work &w,
                                                uint32_t consumer)
{
    /* weights of product 2 are stored across the sum; they are A in the small form, B in the
     * large */
    constexpr int across = PRODUCT == 2;
    constexpr uint32_t w_next = across ? FM_MAP_NEXT_ACROSS : FM_MAP_NEXT_ALONG;
    bool active =
        SWAP ? (int32_t)consumer < w.boxes : w.boxes > 0 && (int32_t)consumer * 64 < tile.rows;
    uint32_t rows_at = SWAP ? 0 : consumer * FM_MAP_BLOCK_BYTES;
    uint32_t weights_at = HOPPER_ROWS_BYTES + (SWAP ? consumer * FM_MAP_BLOCK_BYTES : 0);
    bool leader = threadIdx.x % 32 == 0;
    for (int32_t s = 0; s < w.steps; s++, ++*it) {
        uint32_t stage = fm_map_stage(*it, HOPPER_STAGES), at = ring + stage * HOPPER_STAGE_BYTES;
        int32_t there = tile.to - tile.from - s * FM_CUDA_STEP;
        barrier_wait(full_barrier(ring, stage), fm_map_parity(*it, HOPPER_STAGES), "consumer",
                     stage, *it);
        if (PRODUCT == 2 && there < FM_CUDA_STEP)
            clear_tail(at + HOPPER_ROWS_BYTES, there, w.boxes);
        if (active) {
            products_fence(d);
            products_begin();
#pragma unroll
            for (uint32_t k = 0; k < FM_CUDA_STEP / 16; k++) {
                uint64_t x = fm_map_descriptor(at + rows_at + k * FM_MAP_NEXT_ALONG,
                                               FM_MAP_BLOCK_BYTES, FM_MAP_ATOM_BYTES);
                uint64_t v = fm_map_descriptor(at + weights_at + k * w_next, FM_MAP_BLOCK_BYTES,
                                               FM_MAP_ATOM_BYTES);
                if (SWAP)
                    product<T, N, across, 0>::add(d, v, x, s + (int32_t)k);
                else
                    product<T, N, 0, across>::add(d, x, v, s + (int32_t)k);
            }
            products_end();
            products_wait<1>(); /* the previous step has been read */
        }
        if (s > 0 && leader)
            barrier_arrive(empty_barrier(ring, fm_map_stage(*it - 1, HOPPER_STAGES)));
    }
    products_wait<0>();
    products_fence(d);
    if (w.steps > 0 && leader)
        barrier_arrive(empty_barrier(ring, fm_map_stage(*it - 1, HOPPER_STAGES)));
}

/* Large form: h of 64 rows x 128 channels, 16 channels of a row at a time. */
template <typename T>
static __device__ __forceinline__ void store_h_large(const fm_cuda_job &job, const float *d,
                                                     const fm_cuda_tile &tile,
                                                     const fm_cuda_group &g, uint32_t consumer)
{
    uint32_t thread = threadIdx.x % 128, lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t at = 0; at < 16; at++) {
        uint32_t second = at & 1, quad = at / 2;
        int32_t row = (int32_t)(consumer * 64 + fm_map_d_row(thread, 2 * second));
        int32_t channel = tile.col / 2 + (int32_t)quad * 16;
        float v[4];
#pragma unroll
        for (int c = 0; c < 4; c++) {
            uint32_t i = (quad * 4 + c) * 4 + 2 * second;
            bool there = channel + c * 4 + (int32_t)(lane % 4) < g.width;
            v[c] = there ? gated_fast(d[i], d[i + 1]) : 0.0f;
        }
        uint2 four = quad_channels<T>(v, lane);
        if (row < tile.rows && (int32_t)quad * 32 < tile.cols)
            *(uint2 *)((T *)job.h + (int64_t)(g.row + tile.row + row) * job.channels_padded +
                       channel + lane % 4 * 4) = four;
    }
}

static __device__ __forceinline__ void store_y_large(const fm_cuda_job &job, const float *d,
                                                     const fm_cuda_tile &tile,
                                                     const fm_cuda_group &g, uint32_t consumer)
{
    uint32_t thread = threadIdx.x % 128;
    int64_t first = g.y + (int64_t)tile.split * g.rows + tile.row;
#pragma unroll
    for (uint32_t i = 0; i < 128; i += 2) {
        int32_t row = (int32_t)(consumer * 64 + fm_map_d_row(thread, i));
        int32_t column = (int32_t)fm_map_d_column(thread, i);
        if (row < tile.rows && column < tile.cols)
            *(float2 *)(job.y + (first + row) * job.H + tile.col + column) =
                make_float2(d[i], d[i + 1]);
    }
}

/* Small form: d's rows are gate/up rows; the two of a channel are in neighbouring groups of four
 * lanes.  After an exchange each lane has both values of one channel (fm_map_swap_row). */
template <typename T, int N>
static __device__ __forceinline__ void store_h_small(const fm_cuda_job &job, const float *d,
                                                     const fm_cuda_tile &tile,
                                                     const fm_cuda_group &g, uint32_t consumer)
{
    uint32_t thread = threadIdx.x % 128;
    bool odd = fm_map_swap_odd(thread);
    int32_t column = (int32_t)(consumer * 64 + fm_map_swap_row(thread));
    int32_t channel = (tile.col + column) / 2;
#pragma unroll
    for (uint32_t n = 0; n < N / 8; n++)
#pragma unroll
        for (uint32_t j = 0; j < 2; j++) {
            float low = d[n * 4 + j], high = d[n * 4 + 2 + j];
            float got = __shfl_xor_sync(0xffffffffu, odd ? low : high, 4);
            float v = channel < g.width ? gated_fast(odd ? got : low, odd ? high : got) : 0.0f;
            int32_t row = (int32_t)fm_map_d_column(thread, n * 4 + j);
            if (row < tile.rows && column < tile.cols)
                ((T *)job.h)[(int64_t)(g.row + tile.row + row) * job.channels_padded + channel] =
                    from_float<T>(v);
        }
}

template <int N>
static __device__ __forceinline__ void store_y_small(const fm_cuda_job &job, const float *d,
                                                     const fm_cuda_tile &tile,
                                                     const fm_cuda_group &g, uint32_t consumer)
{
    uint32_t thread = threadIdx.x % 128;
    int64_t first = g.y + (int64_t)tile.split * g.rows + tile.row;
#pragma unroll
    for (uint32_t i = 0; i < N / 2; i++) {
        int32_t column = (int32_t)(consumer * 64 + fm_map_d_row(thread, i));
        int32_t row = (int32_t)fm_map_d_column(thread, i);
        if (row < tile.rows && column < tile.cols)
            job.y[(first + row) * job.H + tile.col + column] = d[i];
    }
}

template <typename T, int PRODUCT, int N>
static __device__ __forceinline__ void
small_tile(const fm_cuda_job &job, uint32_t ring, uint32_t *it, const fm_cuda_tile &tile,
           const fm_cuda_group &g, const struct work &w, uint32_t consumer)
{
    float d[N / 2];
    sum_tile<T, PRODUCT, N, true>(d, ring, it, tile, w, consumer);
    if (PRODUCT == 1)
        store_h_small<T, N>(job, d, tile, g, consumer);
    else
        store_y_small<N>(job, d, tile, g, consumer);
}

template <typename T, int PRODUCT>
static __device__ void consume(const fm_cuda_job &job, uint32_t ring)
{
    struct fm_cuda_tile tile;
    struct fm_cuda_group g;
    uint32_t it = 0, consumer = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    for (uint32_t turn = 0; take_turn<PRODUCT>(job, ring, turn, &tile, &g); turn++) {
        if (tile.cols == 0)
            continue;
        struct work w = work_of<PRODUCT>(tile, g);
        if (g.large) {
            float d[128];
            sum_tile<T, PRODUCT, 256, false>(d, ring, &it, tile, w, consumer);
            if (PRODUCT == 1)
                store_h_large<T>(job, d, tile, g, consumer);
            else
                store_y_large(job, d, tile, g, consumer);
        } else if (tile.rows > 16) {
            small_tile<T, PRODUCT, 64>(job, ring, &it, tile, g, w, consumer);
        } else {
            small_tile<T, PRODUCT, 16>(job, ring, &it, tile, g, w, consumer);
        }
    }
}

template <typename T, int PRODUCT>
static __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    hopper_product(const __grid_constant__ fm_cuda_job job,
                   const __grid_constant__ CUtensorMap rows,
                   const __grid_constant__ CUtensorMap weights)
{
    SHARED_MEMORY(memory);
    uint32_t ring =
        (shared_address(memory) + FM_MAP_ATOM_BYTES - 1) & ~(uint32_t)(FM_MAP_ATOM_BYTES - 1);
    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < HOPPER_STAGES; s++) {
            barrier_init(full_barrier(ring, s), 1);
            barrier_init(empty_barrier(ring, s), HOPPER_WARPS_OF_CONSUMERS);
        }
        for (uint32_t turn = 0; turn < HOPPER_TURNS; turn++) {
            barrier_init(turn_full(ring, turn), 1);
            barrier_init(turn_empty(ring, turn), HOPPER_WARPS_OF_CONSUMERS);
        }
        barrier_inits_end();
        prefetch_map(&rows);
        prefetch_map(&weights);
    }
    __syncthreads();
    if (threadIdx.x >= HOPPER_CONSUMERS) {
        registers_give<40>();
        if (threadIdx.x == HOPPER_CONSUMERS)
            produce<PRODUCT>(job, &rows, &weights, ring);
    } else {
        registers_take<232>();
        consume<T, PRODUCT>(job, ring);
    }
}

#endif
