/*
 * Few rows: while a server decodes, the cost of a token is reading the weights, so they are used in
 * place, without packing a panel.  Terms are added in the same order as with panels, so the results
 * are bit-identical.
 */
#include "kernels/clip/clip_tile.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include "kernels/clip/clip_avx512.h"

#define INLINE FM_AVX512_INLINE

enum {
    LANES = 16,     /* rows of weights at a time, in the first product */
    AHEAD = 8,      /* prefetch distance in the first product, in lines of a row */
    ROWS_AHEAD = 12 /* prefetch distance in the second product, in rows */
};

INLINE __m512 load_line(const char *src, int64_t bytes)
{
    __mmask64 mask = bytes >= 64 ? ~0ull : (1ull << bytes) - 1;
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi8(mask, src));
}

/* One term of each of 16 lanes as float, from a 32-bit word per lane: the float in it, or the first
 * or second of two 16-bit numbers. */
INLINE __m512 term_of(const int type, __m512 word, bool second)
{
    __m512i v = _mm512_castps_si512(word);
    if (type == FM_CLIP_F32)
        return word;
    if (type == FM_CLIP_F16)
        return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(second ? _mm512_srli_epi32(v, 16) : v));
    return _mm512_castsi512_ps(second ? _mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000))
                                      : _mm512_slli_epi32(v, 16));
}

/* Add a term of each of 16 rows of weights to the sums. */
INLINE void add_term(const int rows, __m512 *sum, const float *const *x, int term, __m512 b)
{
    FM_CLIP_UNROLL(6)
    for (int r = 0; r < rows; r++)
        sum[r] = _mm512_fmadd_ps(_mm512_set1_ps(x[r][term]), b, sum[r]);
}

/* Add one whole line, transposed, of each of 16 rows of weights. */
INLINE void add_line(const int rows, const int type, __m512 *sum, const float *const *x, int term,
                     __m512 line[LANES])
{
    const int each = type == FM_CLIP_F32 ? 1 : 2;
    FM_CLIP_UNROLL(16)
    for (int i = 0; i < LANES; i++) {
        FM_CLIP_UNROLL(2)
        for (int j = 0; j < each; j++)
            add_term(rows, sum, x, term + i * each + j, term_of(type, line[i], j));
    }
}

/* Add the last line, of only `n` terms.  Not unrolled: compilers need half a minute for that. */
INLINE void add_rest(const int rows, const int type, __m512 *sum, const float *const *x, int term,
                     __m512 line[LANES], int n)
{
    const int each = type == FM_CLIP_F32 ? 1 : 2;
#pragma GCC unroll 1
    for (int i = 0; i < n; i++)
        add_term(rows, sum, x, term + i, term_of(type, line[i / each], i % each));
}

/* Compute 16 columns of the first product; where the prefetch distance reaches past the end of a
 * row of weights, prefetch `next` bytes further, for the columns that follow. */
INLINE void few_lanes(const int rows, const int type, float *c, int ldc, const float *const *x,
                      const char *const at[LANES], int64_t next, int terms)
{
    const int size = type == FM_CLIP_F32 ? 4 : 2, line = 64 / size;
    for (int block = 0; block < terms; block += FM_CLIP_DEPTH) {
        int end = terms - block < FM_CLIP_DEPTH ? terms : block + FM_CLIP_DEPTH;
        __m512 sum[FM_CLIP_TILE_ROWS];
        FM_CLIP_UNROLL(6)
        for (int r = 0; r < rows; r++)
            sum[r] = _mm512_setzero_ps();
        for (int k = block; k < end; k += line) {
            __m512 v[LANES];
            int64_t ahead = k + AHEAD * line < terms ? 0 : next;
            ahead += (int64_t)(k + AHEAD * line) * size;
            FM_CLIP_UNROLL(16)
            for (int i = 0; i < LANES; i++) {
                _mm_prefetch(at[i] + ahead, _MM_HINT_T1);
                v[i] = load_line(at[i] + (int64_t)k * size, (int64_t)(end - k) * size);
            }
            fm_clip_transpose(v);
            if (end - k >= line)
                add_line(rows, type, sum, x, k, v);
            else
                add_rest(rows, type, sum, x, k, v, end - k);
        }
        FM_CLIP_UNROLL(6)
        for (int r = 0; r < rows; r++) {
            float *to = c + (size_t)r * ldc;
            _mm512_storeu_ps(to, block ? _mm512_add_ps(_mm512_loadu_ps(to), sum[r]) : sum[r]);
        }
    }
}

INLINE void few_rows_of(const int type, const int rows, float *c, int ldc, const float *const *x,
                        const char *src, int64_t ld, int lanes, int terms)
{
    for (int l = 0; l < lanes; l += LANES) {
        const char *at[LANES]; /* past the end of the lanes, the last one again: these sums are
                                  not used */
        for (int i = 0; i < LANES; i++)
            at[i] = src + (l + i < lanes ? l + i : lanes - 1) * ld;
        few_lanes(rows, type, c + l, ldc, x, at, (LANES - 1) * ld, terms);
    }
}

/* Compute up to 16 * wide columns of the second product. */
INLINE void few_wide(const int rows, const int wide, const int type, float *c, int ldc,
                     const float *const *x, const char *src, int64_t ld, int lanes, int terms)
{
    const int size = type == FM_CLIP_F32 ? 4 : 2;
    for (int block = 0; block < terms; block += FM_CLIP_DEPTH) {
        int end = terms - block < FM_CLIP_DEPTH ? terms : block + FM_CLIP_DEPTH;
        __m512 sum[24];
        FM_CLIP_UNROLL(24)
        for (int i = 0; i < rows * wide; i++)
            sum[i] = _mm512_setzero_ps();
        for (int k = block; k < end; k++) {
            const char *row = src + k * ld;
            FM_CLIP_UNROLL(16)
            for (int i = 0; i < wide; i++) {
                if (16 * i >= lanes)
                    continue; /* columns of other tasks: do not even prefetch them */
                if (16 * i * size % 64 == 0)
                    _mm_prefetch(row + ROWS_AHEAD * ld + (int64_t)16 * i * size, _MM_HINT_T0);
                __m512 b = fm_clip_load(row + (int64_t)16 * i * size, lanes - 16 * i, type);
                FM_CLIP_UNROLL(6)
                for (int r = 0; r < rows; r++)
                    sum[r * wide + i] =
                        _mm512_fmadd_ps(_mm512_set1_ps(x[r][k]), b, sum[r * wide + i]);
            }
        }
        FM_CLIP_UNROLL(6)
        for (int r = 0; r < rows; r++) {
            FM_CLIP_UNROLL(16)
            for (int i = 0; i < wide; i++) {
                if (16 * i >= lanes)
                    continue;
                float *to = c + (size_t)r * ldc + 16 * i;
                __m512 s = sum[r * wide + i];
                _mm512_storeu_ps(to, block ? _mm512_add_ps(_mm512_loadu_ps(to), s) : s);
            }
        }
    }
}

/* Compute as many columns at a time as there are registers for sums, to read long pieces of each
 * row of weights. */
INLINE void few_columns_of(const int type, const int rows, float *c, int ldc, const float *const *x,
                           const char *src, int64_t ld, int lanes, int terms)
{
    const int wide = rows == 1 ? 16 : rows < 4 ? 8 : 4, size = type == FM_CLIP_F32 ? 4 : 2;
    for (int l = 0; l < lanes; l += 16 * wide)
        few_wide(rows, wide, type, c + l, ldc, x, src + (int64_t)l * size, ld, lanes - l, terms);
}

/* fm_clip_few_rows dispatches on the number of rows, this function on the type; each is a constant
 * in its branch. */
INLINE void any_rows(const int rows, int type, float *c, int ldc, const float *const *x,
                     const char *src, int64_t ld, int lanes, int terms)
{
    FM_CLIP_OF_TYPE(few_rows_of, type, rows, c, ldc, x, src, ld, lanes, terms);
}

FM_AVX512 void fm_clip_few_rows(float *c, int ldc, const void *const *x, int rows, const void *src,
                                int64_t ld, int lanes, int terms, int type)
{
    const float *const *rows_of_x = (const float *const *)x;
    FM_CLIP_OF_ROWS(any_rows, rows, type, c, ldc, rows_of_x, src, ld, lanes, terms);
}

INLINE void any_columns(const int rows, int type, float *c, int ldc, const float *const *x,
                        const char *src, int64_t ld, int lanes, int terms)
{
    FM_CLIP_OF_TYPE(few_columns_of, type, rows, c, ldc, x, src, ld, lanes, terms);
}

FM_AVX512 void fm_clip_few_columns(float *c, int ldc, const void *const *x, int rows,
                                   const void *src, int64_t ld, int lanes, int terms, int type)
{
    const float *const *rows_of_x = (const float *const *)x;
    FM_CLIP_OF_ROWS(any_columns, rows, type, c, ldc, rows_of_x, src, ld, lanes, terms);
}
#endif
