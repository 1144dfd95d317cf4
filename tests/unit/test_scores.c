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

TEST_MAIN(NULL, NULL)
