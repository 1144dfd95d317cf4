/*
 * Compare every implementation of channel_scores with the definition, including those for other
 * CPUs, if this one can run them.
 */
#include "tests/unit/kernels.h"

#include "kernels/cpu/cpu_amx.h"
#include "kernels/cpu/cpu_tile.h"
#include "lib/base/isa.h"

#define TOL_SUM 5e-6

/* Rows, channels, H: less than a tile, odd, many columns, many rows. */
static const int shapes[][3] = {{1, 37, 48}, {19, 131, 33}, {6, 150, 1060}, {2500, 9, 130}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

KERNEL_TEST(scores_agree_by_every_tile_and_by_products)
{
    for (int c = 0; c < SHAPES; c++) {
        int n = shapes[c][0], I = shapes[c][1], H = shapes[c][2];
        float *gate_up = normals(2 * (size_t)I * H, 1), *down = normals((size_t)I * H, 1);
        float *dgu = normals((size_t)n * 2 * I, 1e-3), *x = normals((size_t)n * H, 1);
        float *h = normals((size_t)n * I, 1), *dy = normals((size_t)n * H, 1);
        double *want = zeros(I);
        for (int i = 0; i < n * 2 * I; i++)
            dgu[i] *= 1e-18f; /* squares of these gradients would underflow in float */
        memset(h, 0, (size_t)n * I * sizeof *h);
        fm_ops_ref()->channel_scores(want, fm_f32(gate_up), fm_f32(down), fm_f32(dgu), fm_f32(x),
                                     fm_f32(h), fm_f32(dy), n, I, H);
        for (int t = 0; t == 0 || fm_cpu_tile_get(t - 1); t++) {
            double *s = zeros(I);
            fm_cpu_tile_scores(fm_cpu_tile_get(t), s, fm_f32(gate_up), fm_f32(down), fm_f32(dgu),
                               fm_f32(x), fm_f32(h), fm_f32(dy), n, I, H);
            expect_doubles(s, want, (size_t)I, TOL_SUM, "score");
        }
        check_guards();
        free_arrays();
    }
}

/* With AMX tiles, weights of either type, and gradients whose squares underflow in float. */
KERNEL_TEST(scores_agree_by_matrix_registers)
{
    if (!fm_isa_amx())
        skip();
    for (int c = 0; c < 2 * SHAPES; c++) {
        int n = shapes[c / 2][0], I = shapes[c / 2][1], H = shapes[c / 2][2];
        size_t w = 2 * (size_t)I * H, g = (size_t)n * 2 * I, r = (size_t)n * H;
        float *weights = normals(w, 1), *dgu = normals(g, 1e-3), *x = normals(r, 1);
        for (size_t i = 0; i < g; i++)
            dgu[i] *= 1e-18f;
        struct fm_in W = c % 2 ? fm_f32(weights) : as_bf16(weights, w);
        struct fm_in a = as_bf16(dgu, g), b = as_bf16(x, r);
        float *none = floats(r), *h = floats((size_t)n * I), *down = floats((size_t)I * H);
        memset(none, 0, r * sizeof *none);
        memset(h, 0, (size_t)n * I * sizeof *h);
        memset(down, 0, (size_t)I * H * sizeof *down);
        double *want = zeros(I), *s = zeros(I);
        fm_ops_ref()->channel_scores(want, fm_f32(weights), fm_f32(down), fm_f32(dgu), fm_f32(x),
                                     fm_f32(h), fm_f32(none), n, I, H);
        fm_cpu_amx_scores(s, 2, W, a.data, b.data, (const int32_t[]){0, n}, 1, I, H);
        expect_doubles(s, want, (size_t)I, TOL_SUM, "score");
        check_guards();
        free_arrays();
    }
}

/* A batch of n rows, in bfloat16: one of the matrices (per I, H), whose gradient is a^T b. */
struct batch {
    int per, n, I, H;
    const float *W;
    const uint16_t *a, *b;
};

static float wide(const uint16_t *x, size_t i)
{
    float y;
    fm_dtype_to_f32(&y, x + i, FM_BF16, 1);
    return y;
}

/* One element of a^T b as VDPBF16PS computes it: the second row of each pair is added first.  A
 * product of two bfloat16 numbers is exact in float, so that only the additions round. */
static float model_gradient(const struct batch *t, int row, int col)
{
    float sum = 0;
    for (int k = 0; k < t->n; k += 2)
        for (int r = k + 1; r >= k; r--)
            if (r < t->n)
                sum += wide(t->a, (size_t)r * (size_t)(t->per * t->I) + (size_t)row) *
                       wide(t->b, (size_t)r * (size_t)t->H + (size_t)col);
    return sum;
}

/* Sums of 16 columns in float32, with fused multiply-add; the rest in double. */
static double model_score(const struct batch *t, int channel, double sum)
{
    for (int row = channel * t->per; row < (channel + 1) * t->per; row++) {
        float lane[16] = {0};
        for (int col = 0; col < t->H; col++) {
            float d = t->W[(size_t)row * (size_t)t->H + (size_t)col] * 0x1p32f;
            d *= model_gradient(t, row, col);
            lane[col % 16] = fmaf(d, d, lane[col % 16]);
        }
        for (int l = 0; l < 16; l++)
            sum += (double)lane[l];
    }
    return sum;
}

/* With VDPBF16PS: the bytes of the model above, in one call or with a call for every batch, and the
 * scores of the definition.  Batches without rows, with one, an odd number, and too many for a
 * group. */
KERNEL_TEST(scores_agree_bit_for_bit_with_a_model_of_the_bfloat16_instruction)
{
    static const int sizes[][5] = {{0, 1, 0, 0, 0}, {7, 0, 1, 32, 33}, {5, 300, 0, 411, 2}};
    static const int channels[] = {37, 31, 9}, hidden[] = {48, 33, 1060};
    if (!fm_isa_avx512_bf16())
        skip();
    for (int c = 0; c < 6; c++) {
        int I = channels[c / 2], H = hidden[c / 2], n = 0;
        int32_t first[6] = {11};
        for (int p = 0; p < 5; p++)
            first[p + 1] = first[p] + sizes[c / 2][p];
        n = first[5] - first[0];
        size_t g = (size_t)n * (size_t)I, r = (size_t)n * (size_t)H, w = (size_t)I * (size_t)H;
        float *gate_up = normals(2 * w, 1), *down = normals(w, 1);
        float *dgu = normals(2 * g, 1e-3), *x = normals(r, 1), *h = normals(g, 1);
        float *dy = normals(r, 1);
        for (size_t i = 0; i < 2 * g; i++)
            dgu[i] *= 1e-18f;
        for (size_t i = 0; i < r; i++)
            dy[i] *= 1e-18f;
        struct fm_in W13 = as_bf16(gate_up, 2 * w), W2 = as_bf16(down, w);
        struct fm_in a13 = as_bf16(dgu, 2 * g), b13 = as_bf16(x, r), a2 = as_bf16(h, g);
        struct fm_in b2 = as_bf16(dy, r);
        double *s = zeros(I), *each = zeros(I), *model = zeros(I), *want = zeros(I);
        W13 = c % 2 ? W13 : fm_f32(gate_up);
        W2 = c % 2 ? W2 : fm_f32(down);
        fm_cpu_bf16_scores(s, W13, W2, a13.data, b13.data, a2.data, b2.data, first, 5, I, H);
        for (int p = 0; p < 5; p++) {
            size_t at = (size_t)(first[p] - first[0]);
            const uint16_t *A13 = (const uint16_t *)a13.data + 2 * at * (size_t)I;
            const uint16_t *B13 = (const uint16_t *)b13.data + at * (size_t)H;
            const uint16_t *A2 = (const uint16_t *)a2.data + at * (size_t)I;
            const uint16_t *B2 = (const uint16_t *)b2.data + at * (size_t)H;
            struct batch gate = {2, first[p + 1] - first[p], I, H, gate_up, A13, B13};
            struct batch out = {1, first[p + 1] - first[p], I, H, down, A2, B2};
            fm_cpu_bf16_scores(each, W13, W2, A13, B13, A2, B2, first + p, 1, I, H);
            for (int i = 0; i < I; i++)
                model[i] += model_score(&out, i, model_score(&gate, i, 0)) * 0x1p-64;
        }
        fm_ops_ref()->channel_scores_each(want, fm_f32(gate_up), fm_f32(down), fm_f32(dgu),
                                          fm_f32(x), fm_f32(h), fm_f32(dy), first, 5, I, H);
        expect_doubles(s, want, (size_t)I, TOL_SUM, "score");
        assert_memory_equal(s, model, (size_t)I * sizeof *s);
        assert_memory_equal(each, model, (size_t)I * sizeof *s);
        check_guards();
        free_arrays();
    }
}

TEST_MAIN(NULL, NULL)
