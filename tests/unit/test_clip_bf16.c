/*
 * Test the bfloat16 tile with its instruction replaced by a function, so that CPUs without the
 * instruction run the test, too. The two treat denormals differently, but none occur here.
 */
#include "tests/unit/clip.h"

#include "kernels/clip/clip_tile.h"
#include "lib/base/isa.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* sum + a.low * b.low + a.high * b.high for each pair. */
__attribute__((target("avx512f"))) static __m512 add_pairs(__m512 sum, __m512i a, __m512i b)
{
    __m512i high = _mm512_set1_epi32((int)0xffff0000u);
    sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)),
                          _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), sum);
    return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(a, high)),
                           _mm512_castsi512_ps(_mm512_and_si512(b, high)), sum);
}

#define _mm512_dpbf16_ps(sum, a, b) add_pairs(sum, (__m512i)(a), (__m512i)(b))
#define fm_isa_avx512_bf16() (fm_isa() >= FM_ISA_AVX512)
#include "kernels/clip/clip_bf16.c" /* its fm_clip_tile_bf16 replaces the library's */

static uint16_t *bf16_numbers(size_t n)
{
    float *x = normals(n, 1);
    uint16_t *y = array(n, sizeof *y);
    fm_dtype_from_f32(y, x, FM_BF16, n);
    return y;
}

static double value(uint16_t bits)
{
    float f;
    fm_dtype_to_f32(&f, &bits, FM_BF16, 1);
    return f;
}

/* x (rows, terms) times a panel of `lanes` columns, packed either way.  The product is made twice:
 * first c is set, then the product is added to it. */
static void check_tile(const struct fm_clip_tile *tile, int rows, int lanes, int terms,
                       bool columns)
{
    enum { LD = 301, ROW = 260 };
    size_t count = columns ? (size_t)terms : (size_t)lanes;
    uint16_t *w = bf16_numbers((count - 1) * LD + (columns ? (size_t)lanes : (size_t)terms));
    uint16_t *x = bf16_numbers(6 * ROW);
    float c[6 * FM_CLIP_LANES];
    float *panel = aligned_alloc(64, FM_CLIP_DEPTH * FM_CLIP_LANES * sizeof *panel);
    const void *xs[6];
    struct fm_clip_ahead none = {(const char *)w, 0, 0, 31};
    assert_non_null(panel);
    for (int r = 0; r < rows; r++) {
        xs[r] = x + r * ROW;
        x[r * ROW + terms] = 0; /* an odd row is padded */
    }
    (columns ? tile->pack_columns : tile->pack_rows)(panel, w, LD * 2, lanes, terms, FM_CLIP_BF16);
    tile->product(c, FM_CLIP_LANES, xs, rows, panel, terms, true, &none);
    tile->product(c, FM_CLIP_LANES, xs, rows, panel, terms, false, &none);
    for (int r = 0; r < rows; r++)
        for (int l = 0; l < FM_CLIP_LANES; l++) {
            double want = 0, size = 0;
            for (int k = 0; k < terms && l < lanes; k++) {
                double term =
                    value(x[r * ROW + k]) * value(columns ? w[k * LD + l] : w[l * LD + k]);
                want += 2 * term;
                size += 2 * fabs(term);
            }
            if (!(fabs((double)c[r * FM_CLIP_LANES + l] - want) <= 1e-6 * size))
                fail_msg("rows %d, lanes %d, terms %d: (%d, %d) is %g, expected %g", rows, lanes,
                         terms, r, l, (double)c[r * FM_CLIP_LANES + l], want);
        }
    free(panel);
    check_guards();
    free_arrays();
}

KERNEL_TEST(the_bf16_tile_multiplies_what_was_packed)
{
    static const int lanes[] = {1, 15, 31, 33, 63, 64}, terms[] = {1, 2, 31, 32, 33, 255, 256};
    if (!fm_clip_tile_avx512())
        skip();
    const struct fm_clip_tile *tile = fm_clip_tile_bf16();
    assert_true(tile->pair);
    for (int rows = 1; rows <= 6; rows++)
        for (size_t l = 0; l < 6; l++)
            for (size_t k = 0; k < 7; k++) {
                check_tile(tile, rows, lanes[l], terms[k], false);
                check_tile(tile, rows, lanes[l], terms[k], true);
            }
}

/* With odd sizes, rows of pairs end in half a pair. The workspace contains NaN before each call. */
KERNEL_TEST(a_call_by_pairs_agrees_with_the_definition)
{
    static const int sizes[][2] = {{48, 37}, {67, 131}, {33, 400}, {1, 1}};
    if (!fm_clip_tile_avx512())
        skip();
    for (size_t z = 0; z < 4; z++) {
        struct layer s = make_layer(FM_CLIP_BF16, sizes[z][0], sizes[z][1], 5);
        struct call c = make_call(&s, 29, 2);
        struct fm_clip *clip = NULL;
        s.l.path = FM_CLIP_AVX512_BF16;
        assert_int_equal(fm_clip_prepare(&clip, &s.l, NULL), FM_CLIP_OK);
        assert_non_null(strstr(fm_clip_name(clip), "avx512-bf16"));
        for (*s.budget = 0; *s.budget < s.l.B; ++*s.budget) {
            memset(c.c.workspace, 0xff, c.c.workspace_bytes);
            run(clip, &s, &c);
            expect_definition(&s, &c, clip);
        }
        fm_clip_release(clip);
        check_guards();
        free_arrays();
    }
}

TEST_MAIN(NULL, NULL)
#else
int main(void)
{
    return 77;
}
#endif
