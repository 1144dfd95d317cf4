/*
 * Rearranges bytes in the same way as lib/model/loading.c rearranges values: fm-pack stores, and an
 * export restores, the checkpoint's own elements, so only the size of an element matters here.
 * Matrices are transposed by tiles in vector registers, because packing spends most of its time
 * there.  Elements of codes can have other sizes; they are few or large, and are copied one by one.
 */
#include "lib/model/interleave.h"

#include <string.h>

#include "lib/base/pool.h"

/* With elements of 16 bits, a source tile and a destination tile of 64 x 64 take 8 KiB each and fit
 * into the L1 cache together. */
#define TILE 64

void fm_interleave_spread(void *to, size_t step, const void *from, const int32_t *order, int n,
                          size_t size)
{
    for (int j = 0; j < n; j++)
        memcpy((char *)to + (size_t)j * step,
               (const char *)from + (size_t)(order ? order[j] : j) * size, size);
}

void fm_interleave_rows(void *gate_up, const void *gate, const void *up, const int32_t *order,
                        int I, int H, int element)
{
    size_t row = (size_t)H * (size_t)element;
    fm_interleave_spread(gate_up, 2 * row, gate, order, I, row);
    fm_interleave_spread((char *)gate_up + row, 2 * row, up, order, I, row);
}

void fm_interleave_undo(void *rows, const void *gate_up, int which, int n, int H, int element)
{
    size_t row = (size_t)H * (size_t)element;
    const char *from = (const char *)gate_up + (size_t)which * row;
    for (int j = 0; j < n; j++)
        memcpy((char *)rows + (size_t)j * row, from + 2 * (size_t)j * row, row);
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

typedef uint16_t half8 __attribute__((vector_size(16)));
typedef uint32_t word4 __attribute__((vector_size(16)));

/* Vectors a and b interleaved, first halves or second halves. */
#define LOW8(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH8(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define LOW4(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define HIGH4(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)

/* Transpose eight rows of eight by interleaving rows i and i + 4 three times. */
static void turn8(half8 row[8])
{
    for (int step = 0; step < 3; step++) {
        half8 next[8];
        for (int i = 0; i < 4; i++) {
            next[2 * i] = LOW8(row[i], row[i + 4]);
            next[2 * i + 1] = HIGH8(row[i], row[i + 4]);
        }
        memcpy(row, next, sizeof next);
    }
}

static void turn4(word4 row[4])
{
    for (int step = 0; step < 2; step++) {
        word4 next[4];
        for (int i = 0; i < 2; i++) {
            next[2 * i] = LOW4(row[i], row[i + 2]);
            next[2 * i + 1] = HIGH4(row[i], row[i + 2]);
        }
        memcpy(row, next, sizeof next);
    }
}

/*
 * Transpose a tile: column j of `from` becomes row place[j] of `to` (place NULL: row j).  Whole
 * tiles are copied through buffers, because the rows of a matrix whose width is a power of two all
 * fall into the same cache set; with constant sizes the compiler makes these copies fast.
 */
#define DEFINE_TRANSPOSE(name, type, vector, lanes, turn)                                          \
    static void name##_tile(type *to, size_t to_row, const int32_t *place, const type *from,       \
                            size_t from_row)                                                       \
    {                                                                                              \
        type tile[TILE][TILE], turned[TILE][TILE];                                                 \
        for (int i = 0; i < TILE; i++)                                                             \
            memcpy(tile[i], from + (size_t)i * from_row, sizeof tile[i]);                          \
        for (int i = 0; i < TILE; i += lanes) {                                                    \
            for (int j = 0; j < TILE; j += lanes) {                                                \
                vector block[lanes];                                                               \
                for (int n = 0; n < lanes; n++)                                                    \
                    memcpy(&block[n], &tile[i + n][j], sizeof block[n]);                           \
                turn(block);                                                                       \
                for (int n = 0; n < lanes; n++)                                                    \
                    memcpy(&turned[j + n][i], &block[n], sizeof block[n]);                         \
            }                                                                                      \
        }                                                                                          \
        for (int j = 0; j < TILE; j++)                                                             \
            memcpy(to + (size_t)(place ? place[j] : j) * to_row, turned[j], sizeof turned[j]);     \
    }                                                                                              \
    static void name(type *to, size_t to_row, const int32_t *place, const type *from,              \
                     size_t from_row, int rows, int columns)                                       \
    {                                                                                              \
        if (rows == TILE && columns == TILE) {                                                     \
            name##_tile(to, to_row, place, from, from_row);                                        \
            return;                                                                                \
        }                                                                                          \
        for (int j = 0; j < columns; j++)                                                          \
            for (int i = 0; i < rows; i++)                                                         \
                to[(size_t)(place ? place[j] : j) * to_row + (size_t)i] =                          \
                    from[(size_t)i * from_row + (size_t)j];                                        \
    }
DEFINE_TRANSPOSE(transpose2, uint16_t, half8, 8, turn8)
DEFINE_TRANSPOSE(transpose4, uint32_t, word4, 4, turn4)

/* Transpose a matrix with elements of any size. */
static void transpose_any(char *to, size_t to_row, const int32_t *place, const char *from,
                          size_t from_row, int rows, int columns, size_t element)
{
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            memcpy(to + ((size_t)(place ? place[j] : j) * to_row + (size_t)i) * element,
                   from + ((size_t)i * from_row + (size_t)j) * element, element);
}

static void transpose(char *to, size_t to_row, const int32_t *place, const char *from,
                      size_t from_row, int rows, int columns, int element)
{
    if (element != 2 && element != 4)
        transpose_any(to, to_row, place, from, from_row, rows, columns, (size_t)element);
    else if (element == 2)
        transpose2((uint16_t *)(void *)to, to_row, place, (const uint16_t *)(const void *)from,
                   from_row, rows, columns);
    else
        transpose4((uint32_t *)(void *)to, to_row, place, (const uint32_t *)(const void *)from,
                   from_row, rows, columns);
}

void fm_interleave_gather(void *ranked, const void *down, const int32_t *order, int I, int H,
                          int element)
{
    struct fm_mark mark = fm_scratch_mark();
    int32_t *rank = fm_scratch((size_t)I * sizeof *rank);
    size_t e = (size_t)element;
    for (int j = 0; j < I; j++)
        rank[order ? order[j] : j] = j;
    for (int i = 0; i < H; i += TILE)
        for (int j = 0; j < I; j += TILE)
            transpose((char *)ranked + (size_t)i * e, (size_t)H, rank + j,
                      (const char *)down + ((size_t)i * (size_t)I + (size_t)j) * e, (size_t)I,
                      smaller(TILE, H - i), smaller(TILE, I - j), element);
    fm_scratch_release(mark);
}

void fm_interleave_scatter(void *down, const void *ranked, int k, int columns, int H, int element,
                           int blank)
{
    size_t e = (size_t)element;
    for (int i = 0; i < H; i += TILE) {
        for (int j = 0; j < k; j += TILE)
            transpose((char *)down + ((size_t)i * (size_t)columns + (size_t)j) * e, (size_t)columns,
                      NULL, (const char *)ranked + ((size_t)j * (size_t)H + (size_t)i) * e,
                      (size_t)H, smaller(TILE, k - j), smaller(TILE, H - i), element);
        for (int h = i; h < smaller(i + TILE, H) && k < columns; h++)
            memset((char *)down + ((size_t)h * (size_t)columns + (size_t)k) * e, blank,
                   (size_t)(columns - k) * e);
    }
}
