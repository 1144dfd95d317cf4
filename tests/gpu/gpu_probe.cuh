/*
 * The instructions of the Hopper path one by one: a box copied by TMA, and a product of one stage
 * for each width and layout of operands that the path uses.
 */
#ifndef TESTS_GPU_PROBE_CUH
#define TESTS_GPU_PROBE_CUH

/* Other devices do not have these instructions: for them the kernels are empty and not launched. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FM_CUDA_EMULATED)
#define PROBES_HERE 1
#else
#define PROBES_HERE 0
#endif

#include "kernels/clip/cuda/clip_cuda_maps.h"
#include "kernels/clip/cuda/clip_cuda_ptx.cuh"

#define PROBE_BLOCKS 5 /* of 64 x 64: one of A, four of B */
#define PROBE_BARRIER_AT (PROBE_BLOCKS * FM_MAP_BLOCK_BYTES)
#define PROBE_BYTES (PROBE_BARRIER_AT + 8 + FM_MAP_ATOM_BYTES)
#define PROBE_THREADS 128

#if PROBES_HERE
static __device__ __forceinline__ uint32_t probe_begin(const uint8_t *memory)
{
    uint32_t ring =
        (shared_address(memory) + FM_MAP_ATOM_BYTES - 1) & ~(uint32_t)(FM_MAP_ATOM_BYTES - 1);
    if (threadIdx.x == 0) {
        barrier_init(ring + PROBE_BARRIER_AT, 1);
        barrier_inits_end();
    }
    __syncthreads();
    return ring;
}
#endif

/* The box of 64 rows from (c0, c1) on, as stored in shared memory (8192 bytes). */
static __global__ void __launch_bounds__(PROBE_THREADS)
    probe_box(const __grid_constant__ CUtensorMap map, uint32_t *out, int32_t c0, int32_t c1)
{
#if PROBES_HERE
    SHARED_MEMORY(memory);
    uint32_t ring = probe_begin(memory), barrier = ring + PROBE_BARRIER_AT;
    if (threadIdx.x == 0) {
        barrier_expect(barrier, FM_MAP_BLOCK_BYTES);
        copy_box(ring, &map, c0, c1, barrier);
    }
    barrier_wait(barrier, 0, "probe", 0, 0);
    for (uint32_t i = threadIdx.x; i < FM_MAP_BLOCK_BYTES / 4; i += PROBE_THREADS)
        out[i] = *(const uint32_t *)(memory + (ring - shared_address(memory)) + i * 4);
#endif
}

/* d (64, N) = A (64, 64) B (64, N).  A_ACROSS, B_ACROSS: the rows of the map are columns of A or
 * rows of B, one for each term of the sums, instead of rows of A or columns of B. */
template <typename T, int N, int A_ACROSS, int B_ACROSS>
static __global__ void __launch_bounds__(PROBE_THREADS)
    probe_product(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                  float *out)
{
#if PROBES_HERE
    SHARED_MEMORY(memory);
    const uint32_t rows = N < 64 ? N : 64, boxes = (N + 63) / 64;
    uint32_t ring = probe_begin(memory), barrier = ring + PROBE_BARRIER_AT;
    if (threadIdx.x == 0) {
        barrier_expect(barrier, FM_MAP_BLOCK_BYTES + boxes * rows * FM_MAP_ROW_BYTES);
        copy_box(ring, &a, 0, 0, barrier);
        for (uint32_t i = 0; i < boxes; i++)
            copy_box(ring + (1 + i) * FM_MAP_BLOCK_BYTES, &b, B_ACROSS ? (int32_t)(64 * i) : 0,
                     B_ACROSS ? 0 : (int32_t)(64 * i), barrier);
    }
    barrier_wait(barrier, 0, "probe", 0, 0);
    float d[N / 2];
    products_begin();
#pragma unroll
    for (uint32_t k = 0; k < FM_CUDA_STEP / 16; k++)
        product<T, N, A_ACROSS, B_ACROSS>::add(
            d,
            fm_map_descriptor(ring + k * (A_ACROSS ? FM_MAP_NEXT_ACROSS : FM_MAP_NEXT_ALONG),
                              FM_MAP_BLOCK_BYTES, FM_MAP_ATOM_BYTES),
            fm_map_descriptor(ring + FM_MAP_BLOCK_BYTES +
                                  k * (B_ACROSS ? FM_MAP_NEXT_ACROSS : FM_MAP_NEXT_ALONG),
                              FM_MAP_BLOCK_BYTES, FM_MAP_ATOM_BYTES),
            (int)k);
    products_end();
    products_wait<0>();
    products_fence(d);
#pragma unroll
    for (uint32_t i = 0; i < N / 2; i++)
        out[fm_map_d_row(threadIdx.x, i) * N + fm_map_d_column(threadIdx.x, i)] = d[i];
#endif
}

#endif
