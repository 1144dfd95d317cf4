/*
 * Test codes with scales for blocks.  Every code and every scale is compared with the definition of
 * its format (OCP E4M3 and E8M0), computed here from its fields.  Each element of a matrix of
 * random codes, with partial blocks at the far edges, is compared with the product of its code and
 * scale. Conversion and transposition of both tables must give exactly those floats, in any order
 * of rows. Quantisation must give the nearest code.
 */
#include "formats/quant/encode.h"
#include "lib/model/stored.h"
#include "tests/unit/kernels.h"

static double e4m3(int code)
{
    int exponent = code >> 3 & 15, fraction = code & 7;
    double value = exponent ? ldexp(1 + fraction / 8.0, exponent - 7) : ldexp(fraction, -9);
    return code & 0x80 ? -value : value;
}

TEST_AROUND(each_code_is_what_the_format_says, start_test, end_test)
{
    for (int code = 0; code < 256; code++) {
        uint8_t b = (uint8_t)code;
        float x;
        fm_dtype_to_f32(&x, &b, FM_F8_E4M3, 1);
        bool nan = (code & 0x7f) == 0x7f;
        assert_int_equal(isnan(x) != 0, nan);
        assert_true(nan || ((double)x == e4m3(code) && (signbit(x) != 0) == (code >= 128)));
        assert_int_equal(fm_dtype_nonfinite(&b, FM_F8_E4M3, 1), !nan);
        fm_dtype_to_f32(&x, &b, FM_F8_E8M0, 1);
        assert_true(code == 255 ? isnan(x) : (double)x == ldexp(1, code - 127));
    }
    uint8_t many[9000] = {0};
    for (size_t at = 8999; at > 0; at /= 3) {
        many[at] = 0xff;
        assert_int_equal(fm_dtype_nonfinite(many, FM_F8_E4M3, 9000), at);
    }
}

/* A matrix of random codes, all finite, with a scale for each block of r x c codes; blocks are
 * counted anew in each chunk of `chunk` rows, or 0. */
struct matrix {
    int N, K;
    uint8_t *code;
    struct fm_scales scales;
    float *value; /* (N, K) by the definition */
};

static struct matrix random_chunks(int N, int K, int r, int c, int chunk)
{
    int high = chunk ? chunk : N, each = (high + r - 1) / r;
    int down = N / high * each, across = (K + c - 1) / c;
    size_t n = (size_t)N * (size_t)K;
    float *scale = normals((size_t)down * (size_t)across, 1);
    struct matrix m = {.N = N, .K = K, .code = array(n, 1), .value = floats(n)};
    const int32_t *code = below(n, 254);
    for (int i = 0; i < down * across; i++)
        scale[i] = fabsf(scale[i]) * 0.01f + 0x1p-20f;
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < K; j++) {
            size_t at = (size_t)i * (size_t)K + (size_t)j;
            m.code[at] = (uint8_t)(code[at] < 127 ? code[at] : code[at] + 1); /* neither NaN */
            int block = (i / high * each + i % high / r) * across + j / c;
            m.value[at] = (float)e4m3(m.code[at]) * scale[block];
        }
    }
    m.scales = (struct fm_scales){.scale = scale,
                                  .count = (size_t)down * (size_t)across,
                                  .columns = K,
                                  .block_rows = r,
                                  .block_columns = c,
                                  .chunk_rows = chunk};
    return m;
}

static struct matrix random_matrix(int N, int K, int r, int c)
{
    return random_chunks(N, K, r, c, 0);
}

static const int sizes[][5] = {
    {1, 1, 128, 128},   {128, 128, 128, 128}, {129, 127, 128, 128}, {300, 200, 128, 128},
    {5, 700, 128, 128}, {576, 96, 128, 128},  {37, 53, 16, 8},      {40, 40, 1, 128},
    {33, 65, 64, 1},    {60, 37, 16, 8, 20},  {64, 40, 16, 16, 32}, {7, 9, 4, 4, 1},
};
#define SIZES (sizeof sizes / sizeof *sizes)

TEST_AROUND(values_are_codes_times_the_scale_of_their_block, start_test, end_test)
{
    for (size_t s = 0; s < SIZES; s++) {
        const int *z = sizes[s];
        struct matrix m = random_chunks(z[0], z[1], z[2], z[3], z[4]);
        size_t n = (size_t)m.N * (size_t)m.K;
        float *have = floats(n);
        fm_scaled_to_f32(have, m.code, &m.scales, 0, n);
        expect_close(have, m.value, (int)n, 0, "all");
        /* Starting with any element, and with codes that begin inside the matrix. */
        for (size_t first = 0; first < n; first += n / 7 + 1) {
            size_t part = (n - first) / 2 + 1;
            fm_scaled_to_f32(have, m.code, &m.scales, first, part);
            expect_close(have, m.value + first, (int)part, 0, "from an element on");
            struct fm_scales inside = m.scales;
            inside.first = (int64_t)first;
            fm_scaled_to_f32(have, m.code + first, &inside, 0, part);
            expect_close(have, m.value + first, (int)part, 0, "codes from inside");
        }
        m.scales.rounded = true;
        fm_scaled_to_f32(have, m.code, &m.scales, 0, n);
        fm_dtype_round(m.value, FM_BF16, n);
        expect_close(have, m.value, (int)n, 0, "rounded");
        check_guards();
        free_arrays();
    }
}

/* ---- to codes ---- */

static double value_of(enum fm_codes code, int c)
{
    static const double e2m1[] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    if (code == FM_CODE_INT4)
        return c - 8;
    if (code == FM_CODE_E4M3)
        return e4m3(c);
    return c & 8 ? -e2m1[c & 7] : e2m1[c & 7];
}

/* The code of x / scale, by searching all codes: the even one of two equally near. */
static int nearest(enum fm_codes code, float x, float scale)
{
    float q = scale == 0 ? 0 : fmaxf(-1000, fminf(1000, x / scale));
    int best = -1, n = 1 << fm_code_bits(code);
    for (int c = 0; c < n; c++) {
        bool below = code == FM_CODE_E4M3 ? c >> 7 : code == FM_CODE_E2M1 ? c >> 3 : 0;
        bool negative = code == FM_CODE_E4M3 ? signbit(q) != 0 : q < 0;
        if (isnan(value_of(code, c)) || (code == FM_CODE_E4M3 && (c & 0x7f) == 0x7f) ||
            (code != FM_CODE_INT4 && below != negative))
            continue;
        double d = fabs(value_of(code, c) - (double)q);
        double b = best < 0 ? INFINITY : fabs(value_of(code, best) - (double)q);
        if (d < b || (d == b && c % 2 == 0))
            best = c;
    }
    return best;
}

static void expect_codes(enum fm_codes code, const float *x, const float *scale, size_t n,
                         size_t block)
{
    int bits = fm_code_bits(code);
    static uint8_t have[8192];
    assert_true(n * (size_t)bits / 8 <= sizeof have);
    memset(have, 0xa5, sizeof have);
    fm_encode_codes(have, x, scale, n, block, code);
    assert_int_equal(have[n * (size_t)bits / 8], 0xa5);
    for (size_t i = 0; i < n; i++) {
        int c = bits == 8 ? have[i] : have[i / 2] >> (i % 2 * 4) & 15;
        int want = nearest(code, x[i], scale[i / block]);
        if (c != want)
            fail_msg("code %d of %a / %a (element %zu of %zu, blocks of %zu) is %d, not %d", code,
                     (double)x[i], (double)scale[i / block], i, n, block, c, want);
    }
}

/* Every code, the midpoints between two codes, and the floats next to these. */
/* As a block scale of NVFP4 may be: +0 or -0. */
TEST(values_of_a_block_with_a_scale_of_zero_are_zero)
{
    static const float zero[2] = {0.0F, -0.0F};
    const uint8_t codes[16] = {0x21, 0x43, 0x65, 0x87, 0xa9, 0xcb, 0xed, 0x7f,
                               0x21, 0x43, 0x65, 0x87, 0xa9, 0xcb, 0xed, 0x7f};
    const struct fm_scales scales = {.scale = zero,
                                     .count = 2,
                                     .columns = 32,
                                     .block_rows = 1,
                                     .block_columns = 16,
                                     .code = FM_CODE_E2M1};
    float value[32];
    memset(value, 0xff, sizeof value);
    fm_scaled_to_f32(value, codes, &scales, 0, 32);
    for (int i = 0; i < 32; i++)
        assert_true(value[i] == 0);
}

TEST_AROUND(a_code_is_the_nearest, start_test, end_test)
{
    for (int code = FM_CODE_E4M3; code <= FM_CODE_INT4; code++) {
        int n = 1 << fm_code_bits((enum fm_codes)code);
        const float one = 1;
        float x[8];
        for (int c = 0; c < n; c++) {
            for (int d = 0; d < n; d++) {
                float middle =
                    (float)((value_of((enum fm_codes)code, c) + value_of((enum fm_codes)code, d)) /
                            2);
                x[0] = (float)value_of((enum fm_codes)code, c);
                x[1] = middle;
                x[2] = nextafterf(middle, INFINITY);
                x[3] = nextafterf(middle, -INFINITY);
                expect_codes((enum fm_codes)code, x, &one, 4, 4);
            }
        }
        const float ends[] = {0, -0.f, 1e38f, -1e38f, 448.1f, -500, 1e-45f, -1e-45f};
        expect_codes((enum fm_codes)code, ends, &one, 8, 8);
    }
}

TEST_AROUND(blocks_have_their_scales, start_test, end_test)
{
    static const size_t shapes[][2] = {{16, 16},    {2048, 16}, {96, 32},     {2080, 32},
                                       {4096, 128}, {768, 768}, {1026, 1026}, {5120, 2560},
                                       {384, 96},   {2, 2}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        size_t n = shapes[s][0], block = shapes[s][1], blocks = n / block;
        float *x = normals(n, 1), *scale = floats(blocks), *most = floats(blocks);
        fm_encode_most(most, x, n, block);
        for (size_t b = 0; b < blocks; b++) {
            float want = 0;
            for (size_t i = b * block; i < (b + 1) * block; i++)
                want = fabsf(x[i]) > want ? fabsf(x[i]) : want;
            assert_true(most[b] == want);
            scale[b] = b % 5 == 3 ? 0 : want / 6.1f;
        }
        for (int code = FM_CODE_E4M3; code <= FM_CODE_INT4; code++)
            expect_codes((enum fm_codes)code, x, scale, n, block);
        x[n - 1] = s % 2 ? NAN : -INFINITY;
        fm_encode_most(most, x, n, block);
        assert_false(isfinite(most[blocks - 1]));
        check_guards();
        free_arrays();
    }
    const float cut[] = {1, -2, 3};
    float most[2];
    fm_encode_most(most, cut, 3, 2);
    assert_true(most[0] == 2 && most[1] == 3);
}

static void check_table(const struct fm_ops *ops)
{
    for (size_t s = 0; s < SIZES; s++) {
        struct matrix m = random_matrix(sizes[s][0], sizes[s][1], sizes[s][2], sizes[s][3]);
        size_t N = (size_t)m.N, K = (size_t)m.K;
        struct fm_in x = {m.code, FM_F8_E4M3, &m.scales};
        float *have = floats(N * (K + 3)), *want = floats(N * K);
        int32_t *rows = array(N, sizeof *rows), *columns = array(K, sizeof *columns);
        for (size_t i = 0; i < N; i++)
            rows[i] = (int32_t)((i * 7 + 3) % N);
        for (size_t j = 0; j < K; j++)
            columns[j] = (int32_t)(K - 1 - j);
        ops->convert(fm_to_f32(have), (int64_t)(N * K), x, NULL, 1, (int64_t)(N * K));
        expect_close(have, m.value, (int)(N * K), 0, "one long row");
        ops->convert(fm_to_f32(have), (int64_t)K + 3, x, rows, (int)N, (int64_t)K);
        for (size_t i = 0; i < N; i++)
            expect_close(have + i * (K + 3), m.value + (size_t)rows[i] * K, (int)K, 0, "rows");
        ops->transpose(fm_to_f32(have), x, columns, (int)N, (int)K);
        for (size_t j = 0; j < K; j++)
            for (size_t i = 0; i < N; i++)
                want[j * N + i] = m.value[i * K + (size_t)columns[j]];
        expect_close(have, want, (int)(N * K), 0, "columns");
        check_guards();
        free_arrays();
    }
}

TEST_AROUND(tables_convert_and_transpose_codes, start_test, end_test)
{
    const struct fm_ops *cpu = NULL;
    assert_ok(fm_ops_cpu(&cpu, FM_PRECISION_F32, &err));
    check_table(fm_ops_ref());
    check_table(cpu);
}

/* As fm-pack reads a matrix that the model does not use. */
TEST(one_scale_is_of_any_number_of_rows)
{
    const uint64_t rows = (uint64_t)1 << 31;
    const struct fm_tensor scale = {.name = "w.weight_scale_inv", .dtype = FM_F32, .size = 4},
                           codes = {.name = "w.weight",
                                    .dtype = FM_F8_E4M3,
                                    .dims = 2,
                                    .shape = {rows, 1},
                                    .size = rows};
    const struct fm_stored stored = {
        .tensor = &codes, .scale = &scale, .role = FM_STORED_CODES, .scheme = {.storage = &fm_fp8}};
    const float three = 3;
    const uint8_t two = 0x40;
    struct fm_scales scales;
    float wide, value;
    assert_ok(fm_stored_check(&stored, &err));
    assert_ok(fm_stored_widen(&scales, &wide, &stored, &three, 0, 1, 1, &err));
    scales.first = (int64_t)rows - 1;
    fm_scaled_to_f32(&value, &two, &scales, 0, 1);
    assert_true(value == 6);
}

TEST_MAIN(NULL, NULL)
