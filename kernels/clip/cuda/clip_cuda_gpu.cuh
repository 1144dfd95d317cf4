/* Kernels for measurements: filling memory with random numbers, whose products take as much
 * power as those of weights, and reading memory. */
#ifndef FM_CLIP_CUDA_GPU_CUH
#define FM_CLIP_CUDA_GPU_CUH

#include <stdint.h>

static __global__ void fill_bits(uint32_t *to, int64_t n)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        uint64_t x = (uint64_t)i * 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
        /* two bf16 numbers of random sign and fraction with exponents from -3 to 0 */
        to[i] = ((uint32_t)(x >> 32) & 0x81ff81ffu) | 0x3e003e00u;
    }
}

static __global__ void read_all(const uint4 *from, int64_t n, uint32_t *to)
{
    uint32_t sum = 0;
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        uint4 a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];
        sum ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w;
        sum ^= c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    if (sum == 0xdeadbeefu) /* keeps the compiler from removing the loop */
        *to = sum;
}

#endif
