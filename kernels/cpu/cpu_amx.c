/*
 * AMX matrix registers: packing of operands, and a block of 32 x 32 sums in four registers.  Each
 * of the four loads of a step serves two multiplications; there are no registers for more sums.
 *
 * The pieces in the layout of the instruction, k being a pair of terms:
 *     left:   piece[c][k] = (row c at 2 k, row c at 2 k + 1)
 *     right:  piece[k][c] = (column c at 2 k, column c at 2 k + 1)
 * Loading 16 rows of an operand gives one of the two layouts; the other is its transpose.
 *
 * The instruction treats denormal operands as 0.
 */
#include "kernels/cpu/cpu_amx.h"

#if defined(__x86_64__)
#include <immintrin.h>

enum { TILE = FM_AMX_TILE, STEP = FM_AMX_STEP, PIECE = FM_AMX_PIECE };

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,amx-tile,amx-bf16")))

/* ---- operands ---- */

enum { AHEAD = 2 * STEP, AHEAD_WIDE = 6 }; /* rows to prefetch ahead: few columns, many columns */

/* A mask of the first `count` of 32 elements. */
static inline __mmask32 mask_of(int count)
{
    return count >= STEP ? ~0u : count <= 0 ? 0 : (1u << count) - 1;
}

/* v[0] and v[1]: pairs (x[c], x[ld + c]) of columns 0 to 15 and 16 to 31, 0 outside `mask`; only
 * the first `n` of the two rows are read. */
TARGET static inline void pair_rows(__m512i v[2], const uint16_t *x, int64_t ld, int n,
                                    __mmask32 mask)
{
    __m512i a = _mm512_maskz_loadu_epi16(n > 0 ? mask : 0, x);
    __m512i b = _mm512_maskz_loadu_epi16(n > 1 ? mask : 0, x + ld);
    __m512i low = _mm512_unpacklo_epi16(a, b), high = _mm512_unpackhi_epi16(a, b);
    v[0] = _mm512_permutex2var_epi64(low, _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0), high);
    v[1] = _mm512_permutex2var_epi64(low, _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4), high);
}

/* Advance to the next row.  This hides from the compiler that rows have the same distance in every
 * piece: otherwise it would keep the address of each row during the loop over pieces, and there are
 * too few registers for that. */
static inline const uint16_t *step_down(const uint16_t *x, int64_t ld)
{
    x += ld;
#if defined(__GNUC__)
    __asm__("" : "+r"(x));
#endif
    return x;
}

/* Copy the terms in `mask` of the first `count` rows of x to the rows of a piece, and prefetch the
 * rows of the next block. */
TARGET static inline void copy_rows(uint16_t *to, const uint16_t *x, int64_t ld, int count,
                                    __mmask32 mask)
{
    for (int c = 0; c < TILE; c++, x = step_down(x, ld)) {
        _mm512_storeu_si512(to + c * STEP, _mm512_maskz_loadu_epi16(c < count ? mask : 0, x));
        _mm_prefetch(x + FM_AMX_BLOCK * ld, _MM_HINT_T1);
    }
}

/* Move pair k of row c to row k, place c: interleave rows in pairs, then fours, eights, and all. */
TARGET static inline void transpose(uint16_t *to, const __m512i x[TILE])
{
    __m512i t[TILE], u[TILE], v[TILE];
    for (int k = 0; k < TILE; k += 2) {
        t[k] = _mm512_unpacklo_epi32(x[k], x[k + 1]);
        t[k + 1] = _mm512_unpackhi_epi32(x[k], x[k + 1]);
    }
    for (int k = 0; k < TILE; k += 4)
        for (int half = 0; half < 2; half++) {
            u[k + 2 * half] = _mm512_unpacklo_epi64(t[k + half], t[k + 2 + half]);
            u[k + 2 * half + 1] = _mm512_unpackhi_epi64(t[k + half], t[k + 2 + half]);
        }
    for (int k = 0; k < 4; k++)
        for (int part = 0; part < TILE; part += 8) {
            v[part + k] = _mm512_shuffle_i32x4(u[part + k], u[part + k + 4], 0x88);
            v[part + k + 4] = _mm512_shuffle_i32x4(u[part + k], u[part + k + 4], 0xdd);
        }
    for (int k = 0; k < 8; k++) {
        _mm512_storeu_si512(to + k * STEP, _mm512_shuffle_i32x4(v[k], v[k + 8], 0x88));
        _mm512_storeu_si512(to + (k + 8) * STEP, _mm512_shuffle_i32x4(v[k], v[k + 8], 0xdd));
    }
}

/* Copy rows, selected as in copy_rows, to the columns of a piece. */
TARGET static inline void turn_rows(uint16_t *to, const uint16_t *x, int64_t ld, int count,
                                    __mmask32 mask)
{
    __m512i v[TILE];
    for (int c = 0; c < TILE; c++, x = step_down(x, ld)) {
        v[c] = _mm512_maskz_loadu_epi16(c < count ? mask : 0, x);
        _mm_prefetch(x + FM_AMX_BLOCK * ld, _MM_HINT_T1);
    }
    transpose(to, v);
}

/* Later rows are prefetched: they are too far apart for the hardware prefetcher. */
TARGET void fm_amx_pack_columns(uint16_t *to, const uint16_t *x, int64_t ld, int count, int n)
{
    const size_t panel = (size_t)fm_amx_steps(n) * PIECE;
    const int64_t ahead = (count > FM_AMX_BLOCK ? AHEAD_WIDE : AHEAD) * ld;
    for (int k = 0; k < fm_amx_steps(n) * STEP; k += 2, x += 2 * ld) {
        uint16_t *at = to + k / STEP * PIECE + k % STEP * TILE;
        for (int c = 0; c < count; c += STEP, at += 2 * panel) {
            __m512i pairs[2];
            pair_rows(pairs, x + c, ld, n - k, mask_of(count - c));
            _mm_prefetch(x + c + ahead, _MM_HINT_T0);
            _mm_prefetch(x + c + ahead + ld, _MM_HINT_T0);
            _mm512_storeu_si512(at, pairs[0]);
            _mm512_storeu_si512(at + panel, pairs[1]);
        }
    }
}

TARGET void fm_amx_turn(uint16_t *piece, size_t count)
{
    for (size_t i = 0; i < count; i++, piece += PIECE) {
        __m512i v[TILE];
        for (int k = 0; k < TILE; k++)
            v[k] = _mm512_loadu_si512(piece + k * STEP);
        transpose(piece, v);
    }
}

TARGET void fm_amx_pack(uint16_t *block, struct fm_amx_operand of, bool right, int count, int n)
{
    const size_t panel = (size_t)fm_amx_steps(n) * PIECE;
    if (!of.along) {
        fm_amx_pack_columns(block, of.x, of.ld, count, n);
        if (!right)
            fm_amx_turn(block, 2 * (size_t)fm_amx_steps(n));
        return;
    }
    const uint16_t *x = of.x, *low = x + TILE * of.ld;
    for (; n > 0; n -= STEP, x += STEP, low += STEP, block += PIECE) {
        if (right) {
            turn_rows(block, x, of.ld, count, mask_of(n));
            turn_rows(block + panel, low, of.ld, count - TILE, mask_of(n));
        } else {
            copy_rows(block, x, of.ld, count, mask_of(n));
            copy_rows(block + panel, low, of.ld, count - TILE, mask_of(n));
        }
    }
}

/* ---- products ---- */

struct tile_config {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
};

TARGET void fm_amx_begin(void)
{
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.bytes[i] = STEP * sizeof(uint16_t);
        c.rows[i] = TILE;
    }
    /* gcc 12 assumes that the instruction reads only eight bytes, and that tile loads do not read
     * memory; this barrier makes all earlier stores visible to both. */
    __asm__ volatile("" : : "r"(&c) : "memory");
    _tile_loadconfig(&c);
}

TARGET void fm_amx_end(void)
{
    _tile_release();
}

TARGET void fm_amx_multiply(float *d, int ld, bool add, const uint16_t *left, const uint16_t *right,
                            int steps)
{
    const size_t panel = (size_t)steps * PIECE;
    const size_t row = STEP * sizeof(uint16_t), wide = (size_t)ld * sizeof(float);
    float *low = d + (size_t)TILE * (size_t)ld;
    __asm__ volatile("" : : : "memory");
    if (add) {
        _tile_loadd(0, d, wide);
        _tile_loadd(1, d + TILE, wide);
        _tile_loadd(2, low, wide);
        _tile_loadd(3, low + TILE, wide);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (size_t t = 0; t < panel; t += PIECE) {
        _tile_loadd(4, left + t, row);
        _tile_loadd(6, right + t, row);
        _tile_loadd(5, left + panel + t, row);
        _tile_loadd(7, right + panel + t, row);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, d, wide);
    _tile_stored(1, d + TILE, wide);
    _tile_stored(2, low, wide);
    _tile_stored(3, low + TILE, wide);
}

#endif
