/*
 * Equations with a symmetric, positive definite matrix, in blocks of BLOCK rows and columns.  Every
 * element gets the same terms in the same order as in the reference implementation, so the bytes
 * are the same, whatever the blocks.
 *
 * Factor: a block of columns is updated with all columns before it, block of rows by block of rows
 * in parallel; its square on the diagonal is factored; then each other block of rows is divided by
 * it.  Substitution: blocks of BLOCK right-hand sides, in parallel.
 */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

#include "kernels/ops/ops.h"

enum { BLOCK = 64, TILE_ROWS = 4, TILE_COLS = 16 };

/* A matrix whose element (i, k) is at[i * row + k * column]. */
struct strided {
    const double *at;
    ptrdiff_t row, column;
};

/* Rows [0, rows) of c (BLOCK, BLOCK) -= a b, for K terms in order; b (K, BLOCK). */
FM_CLONES(void, subtract,
          (double *restrict c, struct strided a, struct strided b, int rows, size_t K),
          (c, a, b, rows, K))
{
    for (int i = 0; i < rows; i += TILE_ROWS) {
        int n = rows - i < TILE_ROWS ? rows - i : TILE_ROWS;
        for (int j = 0; j < BLOCK; j += TILE_COLS) {
            double sum[TILE_ROWS][TILE_COLS] = {{0}};
            for (int r = 0; r < n; r++)
                memcpy(sum[r], c + (i + r) * BLOCK + j, sizeof sum[r]);
            const double *x = a.at + i * a.row, *y = b.at + j;
            for (size_t k = 0; k < K && n == TILE_ROWS; k++, x += a.column, y += b.row)
                for (int r = 0; r < TILE_ROWS; r++)
                    for (int l = 0; l < TILE_COLS; l++)
                        sum[r][l] -= x[r * a.row] * y[l];
            for (size_t k = 0; k < K && n < TILE_ROWS; k++, x += a.column, y += b.row)
                for (int r = 0; r < n; r++)
                    for (int l = 0; l < TILE_COLS; l++)
                        sum[r][l] -= x[r * a.row] * y[l];
            for (int r = 0; r < n; r++)
                memcpy(c + (i + r) * BLOCK + j, sum[r], sizeof sum[r]);
        }
    }
}

/* c (columns, BLOCK): each row of c, in order, gets its terms of the rows before it, and is divided
 * by the diagonal of the triangle l (columns, columns), whose rows are ld apart. */
FM_CLONES(void, divide, (double *restrict c, const double *l, size_t ld, int columns),
          (c, l, ld, columns))
{
    for (int i = 0; i < columns; i++) {
        double *to = c + i * BLOCK;
        for (int k = 0; k < i; k++)
            for (int j = 0; j < BLOCK; j++)
                to[j] -= l[(size_t)i * ld + (size_t)k] * c[k * BLOCK + j];
        for (int j = 0; j < BLOCK; j++)
            to[j] /= l[(size_t)i * ld + (size_t)i];
    }
}

/* The same backward, from the last row, with the transposed triangle. */
FM_CLONES(void, divide_back, (double *restrict c, const double *l, size_t ld, int columns),
          (c, l, ld, columns))
{
    for (int i = columns - 1; i >= 0; i--) {
        double *to = c + i * BLOCK;
        for (int k = columns - 1; k > i; k--)
            for (int j = 0; j < BLOCK; j++)
                to[j] -= l[(size_t)k * ld + (size_t)i] * c[k * BLOCK + j];
        for (int j = 0; j < BLOCK; j++)
            to[j] /= l[(size_t)i * ld + (size_t)i];
    }
}

static int least(size_t a, size_t b)
{
    return (int)(a < b ? a : b);
}

/* A block of columns of the factor. */
struct panel {
    double *a;
    size_t n, first;      /* the first column */
    const double *turned; /* (first, BLOCK): rows of the square, transposed */
};

static void update_rows(void *arg, int i)
{
    const struct panel *p = arg;
    size_t n = p->n, row = p->first + (size_t)i * BLOCK;
    int rows = least(BLOCK, n - row), columns = least(BLOCK, n - p->first);
    double c[BLOCK * BLOCK] = {0};
    for (int r = 0; r < rows; r++)
        memcpy(c + r * BLOCK, p->a + (row + (size_t)r) * n + p->first, (size_t)columns * sizeof *c);
    subtract(c, (struct strided){p->a + row * n, (ptrdiff_t)n, 1},
             (struct strided){p->turned, BLOCK, 1}, rows, p->first);
    for (int r = 0; r < rows; r++)
        memcpy(p->a + (row + (size_t)r) * n + p->first, c + r * BLOCK, (size_t)columns * sizeof *c);
}

static void factor_square(const struct panel *p)
{
    size_t n = p->n;
    double *a = p->a + p->first * n + p->first;
    int columns = least(BLOCK, n - p->first);
    for (size_t i = 0; i < (size_t)columns; i++)
        for (size_t j = 0; j <= i; j++) {
            double s = a[i * n + j];
            for (size_t k = 0; k < j; k++)
                s -= a[i * n + k] * a[j * n + k];
            a[i * n + j] = i == j ? sqrt(s) : s / a[j * n + j];
        }
}

/* Divide a block of rows below the square: transposed, so that its rows are a vector. */
static void divide_rows(void *arg, int i)
{
    const struct panel *p = arg;
    size_t n = p->n, row = p->first + (size_t)(i + 1) * BLOCK;
    int rows = least(BLOCK, n - row), columns = least(BLOCK, n - p->first);
    double c[BLOCK * BLOCK] = {0}, *a = p->a + row * n + p->first;
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < columns; j++)
            c[j * BLOCK + r] = a[(size_t)r * n + (size_t)j];
    divide(c, p->a + p->first * n + p->first, n, columns);
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < columns; j++)
            a[(size_t)r * n + (size_t)j] = c[j * BLOCK + r];
}

static void factor(double *a, size_t n)
{
    struct fm_mark mark = fm_scratch_mark();
    double *turned = fm_scratch(n * BLOCK * sizeof *turned);
    for (size_t first = 0; first < n; first += BLOCK) {
        struct panel p = {a, n, first, turned};
        int columns = least(BLOCK, n - first), blocks = (int)((n - first + BLOCK - 1) / BLOCK);
        memset(turned, 0, first * BLOCK * sizeof *turned);
        for (int c = 0; c < columns; c++)
            for (size_t k = 0; k < first; k++)
                turned[k * BLOCK + (size_t)c] = a[(first + (size_t)c) * n + k];
        fm_pool_for(blocks, update_rows, &p);
        factor_square(&p);
        fm_pool_for(blocks - 1, divide_rows, &p);
    }
    fm_scratch_release(mark);
}

struct sides {
    double *x;
    const double *l;
    size_t n, m;
};

static void substitute(void *arg, int index)
{
    const struct sides *s = arg;
    size_t n = s->n, first = (size_t)index * BLOCK, last = (n - 1) / BLOCK * BLOCK;
    size_t bytes = (size_t)least(BLOCK, s->m - first) * sizeof(double);
    struct fm_mark mark = fm_scratch_mark();
    double *c = fm_scratch(n * BLOCK * sizeof *c);
    memset(c, 0, n * BLOCK * sizeof *c);
    for (size_t i = 0; i < n; i++)
        memcpy(c + i * BLOCK, s->x + i * s->m + first, bytes);
    for (size_t i = 0; i < n; i += BLOCK) {
        int rows = least(BLOCK, n - i);
        subtract(c + i * BLOCK, (struct strided){s->l + i * n, (ptrdiff_t)n, 1},
                 (struct strided){c, BLOCK, 1}, rows, i);
        divide(c + i * BLOCK, s->l + i * n + i, n, rows);
    }
    for (size_t i = last + BLOCK; i > 0; i -= BLOCK) {
        size_t at = i - BLOCK, after = i < n ? n - i : 0;
        const double *l = s->l + (n - 1) * n + at; /* from the last row up */
        subtract(c + at * BLOCK, (struct strided){l, 1, -(ptrdiff_t)n},
                 (struct strided){c + (n - 1) * BLOCK, -BLOCK, 1}, least(BLOCK, n - at), after);
        divide_back(c + at * BLOCK, s->l + at * n + at, n, least(BLOCK, n - at));
    }
    for (size_t i = 0; i < n; i++)
        memcpy(s->x + i * s->m + first, c + i * BLOCK, bytes);
    fm_scratch_release(mark);
}

void cpu_solve(double *x, double *a, int n, int m)
{
    if (n == 0)
        return;
    factor(a, (size_t)n);
    fm_pool_for((m + BLOCK - 1) / BLOCK, substitute, &(struct sides){x, a, (size_t)n, (size_t)m});
}
