/*
 * The tile map of the clipped expert FFN on a GPU: which tile reads which rows, for which widths.
 * Plain integer functions, compiled for the host (tests, the emulator in tests/) and for the device
 * from this one source.  Nothing here accesses weights or activations.
 *
 * Terms.  A slot is one (token, choice) pair.  A group is a set of slots with the same expert and
 * the same width; without budgets per token there is one group per expert.  Rows are slots sorted
 * by group, in slot order inside a group, so that a group is rows [row, row + rows).  A group is
 * active if it has rows and a width above 0; active groups are in the plan, in the order of
 * fm_cuda_before.
 *
 * Product 1 computes h (rows, channels) from x and gate/up rows; its columns are gate/up rows, two
 * per channel, interleaved.  Product 2 computes y (rows, H) from h and the down rows; its columns
 * are the H columns of y, and its sum runs over channels [0, width), so clipping is only the bound
 * of that loop.
 *
 * Two forms.  `large`: many rows, the whole sum in one tile.  `small` (at most FM_CUDA_SMALL_ROWS
 * rows): a tile has all rows of the group, and a long sum of product 2 is cut into splits, whose
 * partial results are added in split order by the combine.  The form of a group follows from its
 * expert's rows in the whole call, never from a chunk of it, and the splits from its width, so the
 * bits of a row depend only on its input, its width and its form.
 *
 * Invariants (tests/unit/test_clip_cuda_tiles.c): the tiles of a product cover every (row, column,
 * split) exactly once; the channels a tile uses are below the width, and so are resident; tiles of
 * the second product come longest first inside a form.
 */
#ifndef FM_CLIP_CUDA_TILES_H
#define FM_CLIP_CUDA_TILES_H

#include <stdint.h>

#if defined(__CUDACC__)
#define FM_HD static __host__ __device__ __forceinline__
#else
#define FM_HD static inline
#endif

#define FM_CUDA_TILE_ROWS 64 /* the largest tile */
#define FM_CUDA_TILE_COLS 128
#define FM_CUDA_SMALL_ROWS 64       /* experts of at most this many rows take the small form */
#define FM_CUDA_STEP 64             /* elements of the sum that one pipeline stage holds */
#define FM_CUDA_SPLIT_CHANNELS 2048 /* longest split of the small form's second product */

/* A group, as stored in the plan. */
struct fm_cuda_group {
    int32_t expert;
    int32_t width;  /* channels in use, at most the resident ones of the expert */
    int32_t row;    /* first sorted row */
    int32_t rows;   /* rows in this chunk, at least 1 */
    int32_t large;  /* 1: large form */
    int32_t splits; /* partial results of a row in the second product */
    int32_t y;      /* first row of its results: split s, row r is at y + s * rows + r */
    int32_t spare;
};

/* One tile.  Columns are gate/up rows (product 1) or H columns (product 2). */
struct fm_cuda_tile {
    int32_t group;     /* index in the plan */
    int32_t row, rows; /* first row inside the group, rows (>= 1) */
    int32_t col, cols; /* first column, columns */
    int32_t from, to;  /* elements [from, to) of the sum; `from` is a multiple of FM_CUDA_STEP */
    int32_t split;     /* which partial result */
};

FM_HD int32_t fm_cuda_ceil(int32_t a, int32_t b)
{
    return (a + b - 1) / b;
}

FM_HD int32_t fm_cuda_min(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* Channels with their padding: h is written (with zeros) up to here, so that the second product
 * can use whole steps. */
FM_HD int32_t fm_cuda_padded(int32_t channels)
{
    return fm_cuda_ceil(channels, FM_CUDA_STEP) * FM_CUDA_STEP;
}

/* The form of the groups of an expert with this many rows in the whole call. */
FM_HD int32_t fm_cuda_is_large(int32_t rows_of_call)
{
    return rows_of_call > FM_CUDA_SMALL_ROWS;
}

/* Channels of every split of the second product except the last: a multiple of the step, and no
 * split is empty. */
FM_HD int32_t fm_cuda_split_channels(int32_t width, int32_t large)
{
    int32_t parts = large ? 1 : fm_cuda_ceil(width, FM_CUDA_SPLIT_CHANNELS);
    return fm_cuda_padded(fm_cuda_ceil(width, parts > 0 ? parts : 1));
}

/* Splits of a width of at least 1. */
FM_HD int32_t fm_cuda_splits(int32_t width, int32_t large)
{
    return fm_cuda_ceil(width, fm_cuda_split_channels(width, large));
}

/* True if group a (its index ia) precedes group b in the plan: large before small, then wide
 * before narrow, so that the longest sums of the second product come first. */
FM_HD int fm_cuda_before(int32_t large_a, int32_t width_a, int32_t ia, int32_t large_b,
                         int32_t width_b, int32_t ib)
{
    if (large_a != large_b)
        return large_a > large_b;
    if (width_a != width_b)
        return width_a > width_b;
    return ia < ib;
}

/* Columns of a product; those of product 1 include the padding of h. */
FM_HD int32_t fm_cuda_columns(int product, int32_t width, int32_t H)
{
    return product == 1 ? 2 * fm_cuda_padded(width) : H;
}

/* Tiles of a group in a product. */
FM_HD int32_t fm_cuda_tiles(int product, const struct fm_cuda_group *g, int32_t H)
{
    int32_t m = fm_cuda_ceil(g->rows, FM_CUDA_TILE_ROWS);
    int32_t n = fm_cuda_ceil(fm_cuda_columns(product, g->width, H), FM_CUDA_TILE_COLS);
    return m * n * (product == 1 ? 1 : g->splits);
}

/* The tile that block `cta` takes in its round `round`, every second round backwards so that the
 * block with the longest tile of one round has the shortest of the next. */
FM_HD int32_t fm_cuda_item(int32_t cta, int32_t ctas, int32_t round)
{
    return round * ctas + (round & 1 ? ctas - 1 - cta : cta);
}

/* The group of tile t: the last a < groups with begin[a] <= t.  begin[0] is 0. */
FM_HD int32_t fm_cuda_find(const int32_t *begin, int32_t groups, int32_t t)
{
    int32_t low = 0, high = groups;
    while (high - low > 1) {
        int32_t middle = (low + high) / 2;
        if (begin[middle] <= t)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Tile number `t` of group g (index a in the plan), counted from the group's first.  Rows run
 * fastest, so that neighbours share weights; then columns; then splits. */
FM_HD struct fm_cuda_tile fm_cuda_tile_of(int product, const struct fm_cuda_group *g, int32_t a,
                                          int32_t t, int32_t H)
{
    struct fm_cuda_tile tile;
    int32_t m = fm_cuda_ceil(g->rows, FM_CUDA_TILE_ROWS);
    int32_t columns = fm_cuda_columns(product, g->width, H);
    int32_t n = fm_cuda_ceil(columns, FM_CUDA_TILE_COLS);
    tile.group = a;
    tile.row = t % m * FM_CUDA_TILE_ROWS;
    tile.rows = fm_cuda_min(FM_CUDA_TILE_ROWS, g->rows - tile.row);
    tile.col = t / m % n * FM_CUDA_TILE_COLS;
    tile.cols = fm_cuda_min(FM_CUDA_TILE_COLS, columns - tile.col);
    tile.split = t / m / n;
    tile.from = 0;
    tile.to = H;
    if (product == 2) {
        int32_t part = fm_cuda_split_channels(g->width, g->large);
        tile.from = tile.split * part;
        tile.to = fm_cuda_min(tile.from + part, g->width);
    }
    return tile;
}

/* Totals of the plan of one chunk, in device memory. */
struct fm_cuda_plan_totals {
    int32_t groups;   /* active ones */
    int32_t rows;     /* sorted rows, all groups */
    int32_t tiles[2]; /* of product 1 and 2 */
};

/* Tile `t` of a product (1 or 2): begin[] is that product's. */
FM_HD struct fm_cuda_tile fm_cuda_take(int product, const struct fm_cuda_plan_totals *totals,
                                       const struct fm_cuda_group *groups, const int32_t *begin,
                                       int32_t t, int32_t H)
{
    int32_t a = fm_cuda_find(begin, totals->groups, t);
    return fm_cuda_tile_of(product, &groups[a], a, t - begin[a], H);
}

#endif
