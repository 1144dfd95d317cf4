/* Test what clip.h documents, in its order, on the CPU. */
#include "kernels/clip/clip_tile.h"
#include "tests/unit/clip.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

/* Three budgets over five experts: full, mixed, and one with the widths 0, 1 and full. */
KERNEL_TEST(every_type_on_every_path_agrees_with_the_definition)
{
    static const int sizes[][2] = {{48, 37}, {67, 131}, {300, 40}, {33, 800}, {1, 1}};
    int ran = 0;
    for (size_t z = 0; z < 5; z++)
        for (int type = FM_CLIP_F32; type <= FM_CLIP_BF16; type++)
            for (size_t p = 0; p < 4; p++) {
                struct layer s = make_layer(type, sizes[z][0], sizes[z][1], 5);
                s.l.path = paths[p];
                struct fm_clip *clip = NULL;
                if (fm_clip_prepare(&clip, &s.l, NULL) != FM_CLIP_OK) {
                    free_arrays();
                    continue;
                }
                struct call c = make_call(&s, 29, 2);
                for (*s.budget = 0; *s.budget < s.l.B; ++*s.budget) {
                    run(clip, &s, &c);
                    expect_definition(&s, &c, clip);
                    ran++;
                }
                fm_clip_release(clip);
                check_guards();
                free_arrays();
            }
    assert_true(ran >= 5 * 3 * 3); /* at least the portable path */
}

KERNEL_TEST(avx2_gives_the_bits_of_avx512)
{
    for (int type = FM_CLIP_F32; type <= FM_CLIP_BF16; type++) {
        struct layer s = make_layer(type, 70, 333, 4);
        struct call a = make_call(&s, 17, 3), b = copy_call(&s, &a);
        s.l.path = FM_CLIP_AVX512;
        if (!run_once(&s, &a))
            skip();
        s.l.path = FM_CLIP_AVX2;
        assert_true(run_once(&s, &b));
        expect_same(&s, &a, &b);
        free_arrays();
    }
}

KERNEL_TEST(ids_outside_contribute_nothing)
{
    struct layer s = make_layer(FM_CLIP_F32, 40, 50, 6);
    s.l.e0 = 10;
    struct call a = make_call(&s, 12, 4), b = copy_call(&s, &a);
    int64_t *ids = array(48, sizeof *ids), *only = array(48, sizeof *only);
    static const int64_t outside[] = {-1, 9, 16, ((int64_t)1 << 40) + 12, INT64_MIN, 0};
    for (int i = 0; i < 48; i++) {
        ids[i] = i % 4 == 2 ? 10 + i % 6 : outside[i % 6];
        only[i] = i % 4 == 2 ? ids[i] : -1;
    }
    a.c.ids = ids;
    b.c.ids = only;
    a.c.ids_type = b.c.ids_type = FM_CLIP_I64;
    assert_true(run_once(&s, &a) && run_once(&s, &b));
    expect_same(&s, &a, &b);
    for (int i = 0; i < 48; i++)
        ids[i] = outside[i % 6];
    assert_true(run_once(&s, &a));
    for (int i = 0; i < 12 * 40; i++)
        assert_true(out_at(&s, &a, i) == 0);
    free_arrays();
}

KERNEL_TEST(ids_of_both_sizes_mean_the_same)
{
    struct layer s = make_layer(FM_CLIP_F32, 24, 30, 3);
    struct call a = make_call(&s, 9, 2), b = copy_call(&s, &a);
    int64_t *wide = array(18, sizeof *wide);
    for (int i = 0; i < 18; i++)
        wide[i] = ((const int32_t *)a.c.ids)[i];
    b.c.ids = wide;
    b.c.ids_type = FM_CLIP_I64;
    assert_true(run_once(&s, &a) && run_once(&s, &b));
    expect_same(&s, &a, &b);
    free_arrays();
}

/* With weight 1, a slot computed alone gives the product before it is weighted. */
KERNEL_TEST(slots_are_weighted_and_added_in_order_and_rounded_once)
{
    for (int type = FM_CLIP_F32; type <= FM_CLIP_BF16; type++) {
        enum { N = 7, K = 3, H = 45 };
        struct layer s = make_layer(type, H, 61, 4), wide = widen_layer(&s);
        s.l.path = wide.l.path = FM_CLIP_PORTABLE;
        struct call c = make_call(&s, N, K), w = widen_call(&s, &wide, &c);
        int32_t *ids = (int32_t *)(uintptr_t)c.c.ids;
        ids[0] = ids[1]; /* twice the same expert */
        float sum[N * H] = {0};
        for (int j = 0; j < K; j++) {
            struct call one = slot_alone(&wide, &w, j);
            assert_true(run_once(&wide, &one));
            for (int i = 0; i < N * H; i++) {
                float term = c.c.weights[i / H * K + j] * (float)out_at(&wide, &one, i);
                sum[i] += term;
            }
        }
        assert_true(run_once(&s, &c));
        for (int i = 0; i < N * H; i++)
            assert_true(out_at(&s, &c, i) == rounded(sum[i], type));
        free_arrays();
    }
}

KERNEL_TEST(threads_and_workspace_change_no_bit)
{
    for (size_t p = 0; p < 4; p++) {
        struct layer s = make_layer(FM_CLIP_BF16, 150, 290, 5);
        s.l.path = paths[p];
        s.l.threads = 7;
        struct call a = make_call(&s, 203, 2);
        struct fm_clip *clip = NULL;
        if (fm_clip_prepare(&clip, &s.l, NULL) == FM_CLIP_OK) {
            run(clip, &s, &a);
            for (int threads = 1; threads < 8; threads += 2)
                for (int64_t chunk = 1; chunk < 300; chunk = chunk * 7 + 3) {
                    struct call b = copy_call(&s, &a);
                    b.c.threads = threads;
                    b.c.workspace_bytes = fm_clip_workspace_bytes(&s.l, chunk, 2);
                    run(clip, &s, &b);
                    expect_same(&s, &a, &b);
                }
        }
        fm_clip_release(clip);
        check_guards();
        free_arrays();
    }
}

KERNEL_TEST(a_row_has_the_bits_it_has_alone)
{
    struct layer s = make_layer(FM_CLIP_F16, 90, 270, 3);
    struct call all = make_call(&s, 61, 2);
    assert_true(run_once(&s, &all));
    for (int t = 0; t < 61; t += 6) {
        struct call one = token_alone(&s, &all, t);
        assert_true(run_once(&s, &one));
        for (int i = 0; i < 90; i++)
            assert_true(out_at(&s, &one, i) == out_at(&s, &all, t * 90 + i));
    }
    free_arrays();
}

/* Compute a product of `lanes` columns by the tile's panels, for comparison with its functions for
 * few rows. */
static void by_panels(const struct fm_clip_tile *tile, bool rows_are_columns, float *c, int ldc,
                      const float *const *x, int rows, const char *w, int64_t ld, int lanes,
                      int terms, int type)
{
    int64_t size = (int64_t)bytes_of(type);
    float *panel = workspace(sizeof(float) * FM_CLIP_LANES * FM_CLIP_DEPTH);
    struct fm_clip_ahead ahead = {w, 0, 0, 31};
    for (int l = 0; l < lanes; l += FM_CLIP_LANES)
        for (int k = 0; k < terms; k += FM_CLIP_DEPTH) {
            int cols = lanes - l < FM_CLIP_LANES ? lanes - l : FM_CLIP_LANES;
            int deep = terms - k < FM_CLIP_DEPTH ? terms - k : FM_CLIP_DEPTH;
            const void *from[FM_CLIP_TILE_ROWS];
            for (int r = 0; r < rows; r++)
                from[r] = x[r] + k;
            (rows_are_columns ? tile->pack_rows : tile->pack_columns)(
                panel, rows_are_columns ? w + l * ld + k * size : w + k * ld + l * size, ld, cols,
                deep, type);
            tile->product(c + l, ldc, from, rows, panel, deep, k == 0, &ahead);
        }
}

KERNEL_TEST(few_rows_have_the_bits_of_panels)
{
    static const int shapes[][2] = {{1, 1}, {16, 31}, {17, 33}, {100, 255}, {200, 257}, {256, 600}};
    const struct fm_clip_tile *tile = fm_clip_tile_avx512();
    if (!tile)
        skip();
    for (size_t i = 0; i < 6; i++)
        for (int t = 0; t < 36; t++) {
            const int lanes = shapes[i][0], terms = shapes[i][1], rows = 1 + t % 6, type = t / 12;
            bool first = t / 6 % 2;
            void *w = numbers((size_t)lanes * (size_t)terms, type, 1);
            float *got = array(6 * 256, sizeof *got), *want = array(6 * 256, sizeof *want);
            const float *x[FM_CLIP_TILE_ROWS];
            for (int r = 0; r < rows; r++)
                x[r] = normals((size_t)terms, 1);
            int64_t ld = (int64_t)bytes_of(type) * (first ? terms : lanes);
            (first ? tile->few_rows : tile->few_columns)(got, 256, (const void *const *)x, rows, w,
                                                         ld, lanes, terms, type);
            by_panels(tile, first, want, 256, x, rows, w, ld, lanes, terms, type);
            for (int r = 0; r < rows; r++)
                assert_memory_equal(got + 256 * r, want + 256 * r, (size_t)lanes * sizeof *got);
            check_guards();
            free_arrays();
        }
}

KERNEL_TEST(a_nan_stays_in_its_row)
{
    struct layer s = make_layer(FM_CLIP_F32, 52, 75, 3);
    struct call a = make_call(&s, 31, 2), b = copy_call(&s, &a);
    float *x = array(31 * 52, sizeof *x);
    memcpy(x, a.c.hidden, 31 * 52 * sizeof *x);
    x[13 * 52 + 4] = NAN;
    b.c.hidden = x;
    assert_true(run_once(&s, &a) && run_once(&s, &b));
    for (int i = 0; i < 31 * 52; i++)
        if (i / 52 == 13)
            assert_true(isnan(out_at(&s, &b, i)));
        else
            assert_true(out_at(&s, &a, i) == out_at(&s, &b, i));
    free_arrays();
}

KERNEL_TEST(one_expert_may_get_all_tokens_and_another_none)
{
    for (int e = 0; e < 4; e++) {
        struct layer s = make_layer(FM_CLIP_F32, 43, 97, 4);
        struct call c = make_call(&s, 230, 1);
        for (int i = 0; i < 230; i++)
            ((int32_t *)(uintptr_t)c.c.ids)[i] = e;
        struct fm_clip *clip = NULL;
        assert_int_equal(fm_clip_prepare(&clip, &s.l, NULL), FM_CLIP_OK);
        run(clip, &s, &c);
        expect_definition(&s, &c, clip);
        fm_clip_release(clip);
        free_arrays();
    }
}

KERNEL_TEST(width_zero_gives_zero_and_a_call_may_have_no_tokens)
{
    struct layer s = make_layer(FM_CLIP_BF16, 20, 30, 2);
    struct call c = make_call(&s, 5, 2);
    for (int i = 0; i < s.l.B * s.l.E; i++)
        s.widths[i] = 0;
    assert_true(run_once(&s, &c));
    for (int i = 0; i < 5 * 20; i++)
        assert_true(out_at(&s, &c, i) == 0);
    c.c.N = 0;
    c.c.hidden = c.c.ids = c.c.out = NULL;
    assert_true(run_once(&s, &c));
    free_arrays();
}

/* Give the layer's experts biases, and a limit that many gate and up values exceed; biases of
 * channels without an expert are NaN. */
static void clamp_layer(struct layer *s)
{
    size_t channels = (size_t)s->l.channels, H = (size_t)s->l.H, E = (size_t)s->l.E;
    char *bias = numbers(2 * channels, s->l.type, 1);
    for (size_t c = 0; c < channels; c++)
        for (size_t i = 0; i < 2 && c % (channels / E) >= (size_t)s->l.cap_max; i++)
            write_number(bias + (2 * c + i) * bytes_of(s->l.type), s->l.type, NAN);
    s->l.activation = FM_CLIP_SWIGLU_CLAMPED;
    s->l.alpha = 1.702f;
    s->l.limit = 1.25f;
    s->l.gate_up_bias = bias;
    s->l.down_bias = numbers(E * H, s->l.type, 1);
}

KERNEL_TEST(clamped_experts_with_biases_agree_with_the_definition)
{
    static const int sizes[][2] = {{48, 37}, {67, 331}, {33, 800}, {1, 1}};
    for (size_t z = 0; z < 4; z++)
        for (int type = FM_CLIP_F32; type <= FM_CLIP_BF16; type++)
            for (size_t p = 0; p < 4; p++) {
                struct layer s = make_layer(type, sizes[z][0], sizes[z][1], 5);
                struct fm_clip *clip = NULL;
                clamp_layer(&s);
                s.l.path = paths[p];
                struct call c = make_call(&s, 29, 2);
                ((int32_t *)c.c.ids)[3] = -1;
                for (*s.budget = 0;
                     fm_clip_prepare(&clip, &s.l, NULL) == FM_CLIP_OK && *s.budget < s.l.B;
                     ++*s.budget) {
                    run(clip, &s, &c);
                    expect_definition(&s, &c, clip);
                    fm_clip_release(clip);
                }
                fm_clip_release(*s.budget == s.l.B ? clip : NULL);
                free_arrays();
            }
}

/* Compare one channel with the formula of clip.h; width 0 gives only down's bias. */
KERNEL_TEST(a_clamped_channel_agrees_with_the_formula)
{
    struct layer s = make_layer(FM_CLIP_F32, 1, 1, 1);
    struct call c = make_call(&s, 1, 1);
    const float gate_up[2] = {2, -3}, bias[2] = {0.5f, 1}, down = 0.75f, down_bias = -2, x = 1.5f;
    s.l.gate_up = gate_up, s.l.gate_up_bias = bias, s.l.down = &down, s.l.down_bias = &down_bias;
    s.l.activation = FM_CLIP_SWIGLU_CLAMPED, s.l.alpha = 1.702f, s.l.limit = 3;
    c.c.hidden = &x;
    double weight = c.c.weights[0];
    assert_true(run_once(&s, &c)); /* gate 3.5, up -3.5 */
    double h = (-3 + 1) * 3 / (1 + exp(-1.702 * 3));
    assert_true(fabs(out_at(&s, &c, 0) - weight * (h * 0.75 - 2)) < 1e-5 * fabs(weight));
    s.widths[0] = 0;
    assert_true(run_once(&s, &c));
    assert_true(fabs(out_at(&s, &c, 0) - weight * -2) < 1e-6 * fabs(weight));
    ((int32_t *)c.c.ids)[0] = 1; /* no expert of this layer */
    assert_true(run_once(&s, &c));
    assert_true(out_at(&s, &c, 0) == 0);
    free_arrays();
}

KERNEL_TEST(cuda_refuses_clamped_experts)
{
    struct layer s = make_layer(FM_CLIP_F32, 4, 4, 2);
    struct fm_clip_error error;
    struct fm_clip *clip;
    clamp_layer(&s);
    s.l.device = FM_CLIP_CUDA;
    s.l.threads = 0;
    assert_int_equal(fm_clip_prepare(&clip, &s.l, &error), FM_CLIP_EDEVICE);
    assert_non_null(strstr(error.text, "FM_CLIP_SWIGLU_CLAMPED"));
    free_arrays();
}

/* The copy has only the resident channels of `s`, in memory of exactly that size. */
KERNEL_TEST(freed_tails_give_the_same_bits)
{
    for (int type = FM_CLIP_F32; type <= FM_CLIP_BF16; type++) {
        struct layer s = make_layer(type, 35, 120, 4);
        for (int e = 0; e < 4; e++) /* budget 0 used all channels */
            s.widths[e] = 0;
        struct layer small = free_tails(&s);
        assert_true(small.l.channels < s.l.channels);
        struct call a = make_call(&s, 23, 2), b = copy_call(&s, &a);
        for (*s.budget = 1; *s.budget < s.l.B; ++*s.budget) {
            assert_true(run_once(&s, &a) && run_once(&small, &b));
            expect_same(&s, &a, &b);
        }
        check_guards();
        free_arrays();
    }
}

KERNEL_TEST(two_ranks_add_up_to_the_whole)
{
    enum { H = 44, N = 19, TP = 2, G = 8 };
    struct layer s = make_layer(FM_CLIP_F32, H, 117, 3);
    struct call whole = make_call(&s, N, 2);
    for (*s.budget = 0; *s.budget < s.l.B; ++*s.budget) {
        double sum[N * H] = {0};
        assert_true(run_once(&s, &whole));
        for (int rank = 0; rank < TP; rank++) {
            struct layer part = shard_layer(&s, G, TP, rank);
            struct call c = copy_call(&s, &whole);
            assert_true(run_once(&part, &c));
            for (int i = 0; i < N * H; i++)
                sum[i] += out_at(&part, &c, i);
        }
        for (int i = 0; i < N * H; i++)
            assert_true(fabs(sum[i] - out_at(&s, &whole, i)) <= 2e-5);
    }
    free_arrays();
}

KERNEL_TEST(every_channel_is_dealt_to_one_rank_in_order)
{
    for (int g = 1; g < 9; g++)
        for (int tp = 1; tp < 5; tp++)
            for (int k = 0; k < 70; k++) {
                int seen[70] = {0}, total = 0;
                for (int rank = 0; rank < tp; rank++) {
                    int width = fm_clip_shard_width(k, g, tp, rank);
                    total += width;
                    for (int c = 0; c < width; c++) {
                        int whole = fm_clip_shard_channel(c, g, tp, rank);
                        assert_true(whole < k && whole / g % tp == rank);
                        seen[whole]++;
                    }
                }
                assert_int_equal(total, k);
                for (int c = 0; c < k; c++)
                    assert_int_equal(seen[c], 1);
            }
}

KERNEL_TEST(rows_may_be_strided)
{
    for (int type = FM_CLIP_F32; type <= FM_CLIP_BF16; type++) {
        struct layer s = make_layer(type, 25, 40, 3);
        struct call a = make_call(&s, 13, 2), b = spread_call(&s, &a, 31, 29);
        assert_true(run_once(&s, &a) && run_once(&s, &b));
        for (int i = 0; i < 13 * 25; i++)
            assert_true(out_at(&s, &a, i) == number_at(b.c.out, type, i / 25 * 29 + i % 25));
        check_guards();
        free_arrays();
    }
}

/* --- threads and processes --- */

struct caller {
    struct fm_clip *clip;
    struct layer *s;
    struct call *c;
};

static void *call_often(void *arg)
{
    struct caller *me = arg;
    for (int i = 0; i < 60; i++)
        run(me->clip, me->s, me->c);
    return NULL;
}

KERNEL_TEST(a_layer_serves_several_threads_at_once)
{
    struct layer s = make_layer(FM_CLIP_F32, 64, 128, 4);
    s.l.threads = 3;
    struct call want = make_call(&s, 40, 2), c[3];
    struct caller caller[3];
    pthread_t thread[3];
    struct fm_clip *clip = NULL;
    assert_int_equal(fm_clip_prepare(&clip, &s.l, NULL), FM_CLIP_OK);
    run(clip, &s, &want);
    for (int i = 0; i < 3; i++) {
        c[i] = copy_call(&s, &want);
        caller[i] = (struct caller){clip, &s, &c[i]};
        assert_int_equal(pthread_create(&thread[i], NULL, call_often, &caller[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(thread[i], NULL);
        expect_same(&s, &want, &c[i]);
    }
    fm_clip_release(clip);
    free_arrays();
}

KERNEL_TEST(a_child_of_fork_can_call)
{
    struct layer s = make_layer(FM_CLIP_F32, 64, 128, 4);
    s.l.threads = 3;
    struct call want = make_call(&s, 40, 2), c = copy_call(&s, &want);
    struct fm_clip *clip = NULL;
    assert_int_equal(fm_clip_prepare(&clip, &s.l, NULL), FM_CLIP_OK);
    run(clip, &s, &want);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        if (fm_clip_forward(clip, &c.c, NULL) != FM_CLIP_OK ||
            memcmp(c.c.out, want.c.out, 40 * 64 * sizeof(float)) != 0)
            _exit(1);
        struct fm_clip *again = NULL;
        memset(c.c.out, 0, 40 * 64 * sizeof(float));
        if (fm_clip_prepare(&again, &s.l, NULL) != FM_CLIP_OK ||
            fm_clip_forward(again, &c.c, NULL) != FM_CLIP_OK)
            _exit(2);
        _exit(memcmp(c.c.out, want.c.out, 40 * 64 * sizeof(float)) ? 3 : 0);
    }
    int how = -1;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    fm_clip_release(clip);
    free_arrays();
}

#ifdef COUNT_ALLOCATIONS
KERNEL_TEST(a_call_allocates_nothing)
{
    struct layer s = make_layer(FM_CLIP_BF16, 150, 290, 5);
    s.l.threads = 3;
    struct call c = make_call(&s, 203, 2);
    struct fm_clip *clip = NULL;
    assert_int_equal(fm_clip_prepare(&clip, &s.l, NULL), FM_CLIP_OK);
    unsigned long before = atomic_load(&allocations);
    assert_int_equal(fm_clip_forward(clip, &c.c, NULL), FM_CLIP_OK);
    assert_int_equal(atomic_load(&allocations), before);
    fm_clip_release(clip);
    assert_true(atomic_load(&allocations) > 0); /* they are counted */
    free_arrays();
}
#endif

TEST_MAIN(NULL, NULL)
