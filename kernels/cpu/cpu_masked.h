/* Private to kernels/cpu: the last vector of a row, which may be shorter than 16 elements. */
#ifndef FM_KERNELS_CPU_MASKED_H
#define FM_KERNELS_CPU_MASKED_H

#include <immintrin.h>

#include "kernels/ops/kernels.h"

/* n, at least 0 and at most `most`. */
static inline int fm_cpu_at_most(int n, int most)
{
    return n < 0 ? 0 : n < most ? n : most;
}

/* A mask of the first `count` of 16 elements. */
static inline __mmask16 fm_cpu_mask(int count)
{
    return (__mmask16)((1u << fm_cpu_at_most(count, 16)) - 1);
}

/* F32 or BF16 weights as float32. */
__attribute__((target("avx512f,avx512bw,avx512vl"))) static inline __m512
fm_cpu_load_weights(struct fm_in W, size_t at, __mmask16 mask)
{
    if (W.dtype == FM_F32)
        return _mm512_maskz_loadu_ps(mask, (const float *)W.data + at);
    __m256i w = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)W.data + at);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(w), 16));
}

#endif
