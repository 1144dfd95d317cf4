/*
 * dW = a^T b in blocks of 32 x 32 values, which four matrix registers sum over all n rows, so that
 * a block goes to memory once, to be squared against W.  oneDNN has nothing like it: its products
 * end in an array as large as the weights, and making and reading that takes longer than the
 * product.
 *
 * Registers are loaded from operands laid out for them: a TILE x STEP piece of a^T or of b is one
 * kilobyte in a row, pairs of n side by side, as the instruction wants them:
 *     b:  piece[p][c] = (b[2 p][c], b[2 p + 1][c])        p < 16 pairs of rows, c < 16 columns
 *     a:  piece[c][p] = (a[2 p][c], a[2 p + 1][c])
 * What lies beyond n, the rows or the columns is zero and adds nothing.
 *
 * As in cpu_scores.c, W is taken 2^32 times as large, so that squares of small gradients do not
 * underflow.  The instruction takes denormal operands for 0.
 */
#include "kernels/cpu/cpu_amx.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/ops/ops.h"
#include "lib/base/pool.h"

enum {
    TILE = 16,           /* rows or columns of a register */
    STEP = 32,           /* rows of a and b that one instruction takes */
    PIECE = TILE * TILE, /* pairs in a register: one kilobyte */
    BLOCK = 2 * TILE,    /* rows and columns of dW at a time */
    TASK_ROWS = 8 * BLOCK,
    CACHE_BYTES = 1 << 20, /* of b that a second-level cache keeps while panels of a go by */
};

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,amx-tile,amx-bf16")))

/* ---- whether ---- */

enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */

static bool available;

/* CPUID leaf 7 EDX: bit 22 AMX-BF16, 24 AMX-TILE; Linux grants the registers on request. */
static void ask(void)
{
    unsigned a, b, c, d;
    available = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1) &&
                syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

bool fm_cpu_amx(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ask);
    return available;
}

/* ---- operands ---- */

struct amx {
    double *s;
    int per;
    struct fm_in W;
    const uint16_t *a, *b;
    int n, rows, I, H; /* rows of W: per I */
    int steps;         /* of STEP rows in n */
    uint32_t *packed;  /* b: piece (j, t) at (j steps + t) PIECE */
};

/* Pairs (x[2 p][c], x[2 p + 1][c]) of the columns in `mask`, x (n, ld) from row 2 p = r on. */
TARGET static inline __m512i load_pairs(const uint16_t *x, int64_t ld, int r, int n, __mmask16 mask)
{
    const uint16_t *row = x + r * ld;
    __m256i low = r < n ? _mm256_maskz_loadu_epi16(mask, row) : _mm256_setzero_si256();
    __m256i high = r + 1 < n ? _mm256_maskz_loadu_epi16(mask, row + ld) : _mm256_setzero_si256();
    return _mm512_or_si512(_mm512_cvtepu16_epi32(low),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
}

/* The first `count` of 16. */
static inline __mmask16 mask_of(int count)
{
    return (__mmask16)(count >= TILE ? 0xffff : count <= 0 ? 0 : (1 << count) - 1);
}

/* TILE columns of b. */
TARGET static void pack_columns(void *arg, int j)
{
    const struct amx *x = arg;
    uint32_t *to = x->packed + (size_t)j * x->steps * PIECE;
    __mmask16 mask = mask_of(x->H - j * TILE);
    for (int r = 0; r < x->steps * STEP; r += 2, to += TILE)
        _mm512_storeu_si512(to, load_pairs(x->b + (size_t)j * TILE, x->H, r, x->n, mask));
}

/* to[c] = column c of the sixteen rows of x: first pairs of rows, then fours, eights, all. */
TARGET static void transpose(uint32_t *to, const __m512i x[TILE])
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
        _mm512_storeu_si512(to + k * TILE, _mm512_shuffle_i32x4(v[k], v[k + 8], 0x88));
        _mm512_storeu_si512(to + (k + 8) * TILE, _mm512_shuffle_i32x4(v[k], v[k + 8], 0xdd));
    }
}

/* TILE columns of a, from `first` on. */
TARGET static void pack_rows(uint32_t *to, const struct amx *x, int first)
{
    __mmask16 mask = mask_of(x->rows - first);
    for (int t = 0; t < x->steps; t++, to += PIECE) {
        __m512i pairs[TILE];
        for (int p = 0; p < TILE; p++)
            pairs[p] = load_pairs(x->a + first, x->rows, t * STEP + 2 * p, x->n, mask);
        transpose(to, pairs);
    }
}

/* ---- products and squares ---- */

struct tile_config {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
};

TARGET static void configure(void)
{
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.bytes[i] = TILE * sizeof(uint32_t);
        c.rows[i] = TILE;
    }
    /* gcc 12 takes the instruction for one that reads eight bytes, and the loads of registers for
     * such that read no memory: what was stored so far must be there for both. */
    __asm__ volatile("" : : "r"(&c) : "memory");
    _tile_loadconfig(&c);
}

/* d (BLOCK, BLOCK) from two panels of a and two columns of pieces of b. */
TARGET static void multiply(float *d, const uint32_t *a, const uint32_t *b, int steps)
{
    const uint32_t *a1 = a + (size_t)steps * PIECE, *b1 = b + (size_t)steps * PIECE;
    const int row = TILE * sizeof(uint32_t), wide = BLOCK * sizeof(float);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (size_t t = 0; t < (size_t)steps * PIECE; t += PIECE) {
        _tile_loadd(4, a + t, row);
        _tile_loadd(6, b + t, row);
        _tile_loadd(5, a1 + t, row);
        _tile_loadd(7, b1 + t, row);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, d, wide);
    _tile_stored(1, d + TILE, wide);
    _tile_stored(2, d + TILE * BLOCK, wide);
    _tile_stored(3, d + TILE * BLOCK + TILE, wide);
}

TARGET static inline __m512 load_weights(struct fm_in W, size_t at, __mmask16 mask)
{
    if (W.dtype == FM_F32)
        return _mm512_maskz_loadu_ps(mask, (const float *)W.data + at);
    __m256i w = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)W.data + at);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(w), 16));
}

/* lane (rows, TILE) += (W d)^2 of `rows` rows of W from `row` on, columns [j, j + BLOCK). */
TARGET static void square(float *lane, const struct amx *x, const float *d, int row, int rows,
                          int j)
{
    const __m512 up = _mm512_set1_ps(0x1p32f);
    for (int i = 0; i < rows; i++, lane += TILE, d += BLOCK) {
        size_t at = (size_t)(row + i) * x->H + j;
        __m512 sum = _mm512_loadu_ps(lane);
        for (int half = 0; half < BLOCK && j + half < x->H; half += TILE) {
            __m512 w = load_weights(x->W, at + half, mask_of(x->H - j - half));
            __m512 v = _mm512_mul_ps(_mm512_mul_ps(w, up), _mm512_loadu_ps(d + half));
            sum = _mm512_fmadd_ps(v, v, sum);
        }
        _mm512_storeu_ps(lane, sum);
    }
}

/* Columns of dW whose part of b the cache keeps: a multiple of BLOCK. */
static int find_columns(const struct amx *x)
{
    int cols = CACHE_BYTES / (x->steps * STEP * (int)sizeof(uint16_t)) / BLOCK * BLOCK;
    return cols > 0 ? cols : BLOCK;
}

/* TASK_ROWS rows of W. */
TARGET static void score_rows(void *arg, int index)
{
    const struct amx *x = arg;
    int first = index * TASK_ROWS, cols = find_columns(x);
    int rows = x->rows - first < TASK_ROWS ? x->rows - first : TASK_ROWS;
    int panels = (rows + BLOCK - 1) / BLOCK * 2;
    size_t panel = (size_t)x->steps * PIECE;
    float lane[TASK_ROWS * TILE] = {0}, d[BLOCK * BLOCK];
    struct fm_mark mark = fm_scratch_mark();
    uint32_t *a = fm_scratch((size_t)panels * panel * sizeof *a);
    for (int p = 0; p < panels; p++)
        pack_rows(a + (size_t)p * panel, x, first + p * TILE);
    configure();
    for (int from = 0; from < x->H; from += cols)
        for (int r = 0; r < rows; r += BLOCK)
            for (int j = from; j < x->H && j < from + cols; j += BLOCK) {
                multiply(d, a + (size_t)(r / TILE) * panel, x->packed + (size_t)(j / TILE) * panel,
                         x->steps);
                square(lane + r * TILE, x, d, first + r, rows - r < BLOCK ? rows - r : BLOCK, j);
            }
    _tile_release();
    for (int r = 0; r < rows; r++) {
        double sum = 0;
        for (int l = 0; l < TILE; l++)
            sum += lane[r * TILE + l];
        x->s[(first + r) / x->per] += sum * 0x1p-64;
    }
    fm_scratch_release(mark);
}

void fm_cpu_amx_scores(double *s, int per, struct fm_in W, const uint16_t *a, const uint16_t *b,
                       int n, int I, int H)
{
    if (n <= 0)
        return;
    struct fm_mark mark = fm_scratch_mark();
    struct amx x = {.s = s, .per = per, .W = W, .a = a, .b = b, .n = n, .I = I, .H = H};
    int columns = (H + BLOCK - 1) / BLOCK * 2;
    x.rows = per * I;
    x.steps = (n + STEP - 1) / STEP;
    x.packed = fm_scratch((size_t)columns * x.steps * PIECE * sizeof *x.packed);
    fm_pool_for(columns, pack_columns, &x);
    fm_pool_for((x.rows + TASK_ROWS - 1) / TASK_ROWS, score_rows, &x);
    fm_scratch_release(mark);
}

#else

bool fm_cpu_amx(void)
{
    return false;
}

void fm_cpu_amx_scores(double *s, int per, struct fm_in W, const uint16_t *a, const uint16_t *b,
                       int n, int I, int H)
{
    (void)s, (void)per, (void)W, (void)a, (void)b, (void)n, (void)I, (void)H;
}
#endif
