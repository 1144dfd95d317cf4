/*
 * Counter-based random numbers: Philox4x32-10 from Random123, keyed by (seed, stream), indexed by a
 * 64-bit counter.  There is no generator state, so the draws are the same on every machine, with
 * any number of threads, and in a resumed run.
 */
#ifndef FM_BASE_RNG_H
#define FM_BASE_RNG_H

#include <math.h>
#include <stdint.h>

#include <Random123/philox.h>

/* One stream for each use of random numbers.  The values of these constants are permanent: changing
 * one changes results. */
enum fm_stream {
    FM_STREAM_SHUFFLE = 1,  /* calibration order: counter = position */
    FM_STREAM_EPOCH = 2,    /* training order */
    FM_STREAM_GUMBEL = 3,   /* mask sampling */
    FM_STREAM_LORA = 4,     /* initial weights of the adapter */
    FM_STREAM_SANDWICH = 5, /* random middle masks of cross recovery */
    FM_STREAM_CONTROL = 6,  /* shuffle-layer, shuffle-global */
    FM_STREAM_BENCH = 7,    /* synthetic data, and random choices of experts to remove */
    FM_STREAM_AROUND = 8    /* masks near a given one, to measure the effect of a step */
};

/* Four words for (seed, stream, counter). */
static inline void fm_rng_words(uint32_t out[4], uint64_t seed, uint32_t stream, uint64_t counter)
{
    philox4x32_ctr_t c = {{(uint32_t)counter, (uint32_t)(counter >> 32), stream, 0}};
    philox4x32_key_t k = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
    philox4x32_ctr_t r = philox4x32(c, k);
    for (int i = 0; i < 4; i++)
        out[i] = r.v[i];
}

/* A double in (0, 1), never 0 or 1: the top 52 of 64 bits, plus half a step. */
static inline double fm_rng_unit(uint32_t hi, uint32_t lo)
{
    uint64_t bits = ((uint64_t)hi << 32 | lo) >> 12;
    return ((double)bits + 0.5) * 0x1p-52;
}

static inline double fm_rng_uniform(uint64_t seed, uint32_t stream, uint64_t counter)
{
    uint32_t w[4];
    fm_rng_words(w, seed, stream, counter);
    return fm_rng_unit(w[0], w[1]);
}

/* A standard normal number, by Box-Muller. */
static inline double fm_rng_normal(uint64_t seed, uint32_t stream, uint64_t counter)
{
    uint32_t w[4];
    fm_rng_words(w, seed, stream, counter);
    double u = fm_rng_unit(w[0], w[1]), v = fm_rng_unit(w[2], w[3]);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586476925286766559 * v);
}

/* A number from Gumbel(0, 1). */
static inline double fm_rng_gumbel(uint64_t seed, uint32_t stream, uint64_t counter)
{
    return -log(-log(fm_rng_uniform(seed, stream, counter)));
}

/* An integer in [0, n), n > 0; the bias of the 64-bit product is below 2^-32 for n < 2^32. */
static inline uint64_t fm_rng_below(uint64_t seed, uint32_t stream, uint64_t counter, uint64_t n)
{
    uint32_t w[4];
    fm_rng_words(w, seed, stream, counter);
    uint64_t x = (uint64_t)w[0] << 32 | w[1];
    return (uint64_t)((unsigned __int128)x * n >> 64);
}

/* Fisher-Yates: order[0..n) becomes a permutation of 0..n-1.  `round` separates permutations
 * drawn from one stream (epochs). */
static inline void fm_rng_permutation(uint32_t *order, uint32_t n, uint64_t seed, uint32_t stream,
                                      uint32_t round)
{
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        uint64_t counter = (uint64_t)round << 32 | i;
        uint32_t j = (uint32_t)fm_rng_below(seed, stream, counter, i);
        uint32_t t = order[i - 1];
        order[i - 1] = order[j];
        order[j] = t;
    }
}

#endif
