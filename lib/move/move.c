/*
 * A move is a loop over the axes of the box: groups, rows and items.  It becomes faster in three
 * steps, none of which changes the result:
 *
 *   1. simplify   An axis whose steps are as long as an item on both sides becomes part of the
 *                 item: rows of a matrix, and whole experts that are copied.  Two axes that
 *                 together have equal steps on both sides become one.
 *
 *                     to    | r0 i0 i1 i2 | r1 i0 i1 i2 |   2 rows of 3 items of size 1:
 *                     from  | r0 i0 i1 i2 | r1 i0 i1 i2 |   one item of size 6
 *
 *   2. turn       If neighbours along one axis touch in the source, and neighbours along another
 *                 one touch in the destination, the move is a transposition.  It is done in square
 *                 tiles that fit into the L1 cache, and for items of 2 and 4 bytes in vector
 *                 registers, because packing spends most of its time here.
 *
 *                     from   . y y y y .         to     . x x x .
 *                            . y y y y .   -->          . x x x .
 *                            . y y y y .                . x x x .
 *                            x: a row down              . x x x .     y: a row down
 *
 *   3. copy       Otherwise, item by item along the last axis, with the size as a constant if it is
 *                 that of a number.
 *
 * Invariants:
 *   1. No two items of the destination share a byte (assert_apart), so the order of the loops does
 *      not matter.
 *   2. Simplifying keeps the number of bytes (simplify).
 *   3. The order is a permutation of the groups (invert, assert_permutation): no group is lost.
 *   4. Only axis 0 is permuted; it is joined with another axis only together with its order (join).
 *   5. A tile is inside the box (turn).
 */
#include "lib/move/move.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "lib/base/pool.h"

/* With items of 16 bits, a source tile and a destination tile of 64 x 64 take 8 KiB each and fit
 * into the L1 cache together. */
#define TILE 64

enum { AXES = 3 };

/* Coordinate values 0 .. n - 1 and the distance between them, in bytes. */
struct axis {
    size_t n, to, from;
};

struct walk {
    struct axis axis[AXES]; /* groups, rows, items */
    size_t size;
    const int32_t *order; /* of axis 0, or NULL */
};

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t bytes_of(const struct walk *w)
{
    return w->axis[0].n * w->axis[1].n * w->axis[2].n * w->size;
}

/* ---- checks ---- */

/* Invariant 1: ordered by their steps, each axis steps over everything inside it. */
static void assert_apart(const struct walk *w)
{
    size_t extent = w->size;
    bool done[AXES] = {false};
    for (int k = 0; k < AXES; k++) {
        int least = -1;
        for (int a = 0; a < AXES; a++)
            if (!done[a] && (least < 0 || w->axis[a].to < w->axis[least].to))
                least = a;
        const struct axis *x = &w->axis[least];
        done[least] = true;
        if (x->n < 2)
            continue;
        assert(x->to >= extent);
        extent = (x->n - 1) * x->to + extent;
    }
}

/* Write to `rank`, for each group of the source, its group in the destination. */
static void invert(int32_t *rank, const int32_t *order, size_t n)
{
    memset(rank, -1, n * sizeof *rank);
    for (size_t g = 0; g < n; g++) {
        assert(order[g] >= 0 && (size_t)order[g] < n);
        assert(rank[order[g]] == -1); /* invariant 3 */
        rank[order[g]] = (int32_t)g;
    }
}

static void assert_permutation(const int32_t *order, size_t n)
{
    struct fm_mark mark = fm_scratch_mark();
    invert(fm_scratch(n * sizeof *order), order, n);
    fm_scratch_release(mark);
}

/* ---- 1. simplify ---- */

/* Make axis b, whose steps fill one step of axis a on both sides, part of a. */
static void join(struct walk *w, int a, int b)
{
    struct axis *x = &w->axis[a], *y = &w->axis[b];
    assert(x->to == y->n * y->to && x->from == y->n * y->from);
    if (w->order) {
        assert(a == 0); /* invariant 4 */
        int32_t *order = fm_scratch(x->n * y->n * sizeof *order);
        for (size_t i = 0; i < x->n; i++)
            for (size_t k = 0; k < y->n; k++)
                order[i * y->n + k] = w->order[i] * (int32_t)y->n + (int32_t)k;
        w->order = order;
    }
    *x = (struct axis){x->n * y->n, y->to, y->from};
    *y = (struct axis){.n = 1};
}

/* Make one axis part of the item, or of another axis; false if none can be. */
static bool simplify_once(struct walk *w)
{
    for (int a = w->order ? 1 : 0; a < AXES; a++) {
        struct axis *x = &w->axis[a];
        if (x->n == 1 || x->to != w->size || x->from != w->size)
            continue;
        w->size *= x->n;
        *x = (struct axis){.n = 1};
        return true;
    }
    for (int a = 0; a < AXES; a++)
        for (int b = 0; b < AXES; b++) {
            const struct axis *x = &w->axis[a], *y = &w->axis[b];
            bool fills = x->n > 1 && y->n > 1 && x->to == y->n * y->to &&
                         x->from == y->n * y->from && a != b;
            if (!fills || (w->order && a != 0))
                continue;
            join(w, a, b);
            return true;
        }
    return false;
}

static struct walk simplify(const struct fm_form *to, const struct fm_form *from,
                            const struct fm_box *box, const int32_t *order)
{
    struct walk w = {{{box->groups, to->group, from->group},
                      {box->rows, to->row, from->row},
                      {box->items, to->item, from->item}},
                     box->size,
                     order};
    assert_apart(&w);
    while (simplify_once(&w))
        ;
    assert(bytes_of(&w) == fm_box_bytes(box)); /* invariant 2 */
    assert_apart(&w);
    return w;
}

/* ---- 2. turn ---- */

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
 * Transpose a full tile: its rows are from_row bytes apart, and column j becomes the row at
 * to + at[j].  Tiles are copied through buffers, because the rows of a matrix whose width is a
 * power of two all fall into the same cache set; with constant sizes the compiler makes these
 * copies fast.
 */
#define DEFINE_TILE(name, type, vector, lanes, turn_lanes)                                         \
    static void name(char *to, const size_t *at, const char *from, size_t from_row)                \
    {                                                                                              \
        type tile[TILE][TILE], turned[TILE][TILE];                                                 \
        for (size_t i = 0; i < TILE; i++)                                                          \
            memcpy(tile[i], from + i * from_row, sizeof tile[i]);                                  \
        for (int i = 0; i < TILE; i += lanes) {                                                    \
            for (int j = 0; j < TILE; j += lanes) {                                                \
                vector block[lanes];                                                               \
                for (int n = 0; n < lanes; n++)                                                    \
                    memcpy(&block[n], &tile[i + n][j], sizeof block[n]);                           \
                turn_lanes(block);                                                                 \
                for (int n = 0; n < lanes; n++)                                                    \
                    memcpy(&turned[j + n][i], &block[n], sizeof block[n]);                         \
            }                                                                                      \
        }                                                                                          \
        for (int j = 0; j < TILE; j++)                                                             \
            memcpy(to + at[j], turned[j], sizeof turned[j]);                                       \
    }
DEFINE_TILE(tile2, uint16_t, half8, 8, turn8)
DEFINE_TILE(tile4, uint32_t, word4, 4, turn4)

/* ---- 3. copy ---- */

#define COPY_LINE(bytes)                                                                           \
    for (size_t i = 0; i < n; i++)                                                                 \
    memcpy(to + i * to_step, from + i * from_step, bytes)

/* Copy n items of `size` bytes. */
static void copy_line(char *to, size_t to_step, const char *from, size_t from_step, size_t n,
                      size_t size)
{
    switch (size) {
    case 1:
        COPY_LINE(1);
        break;
    case 2:
        COPY_LINE(2);
        break;
    case 4:
        COPY_LINE(4);
        break;
    case 8:
        COPY_LINE(8);
        break;
    case 16:
        COPY_LINE(16);
        break;
    default:
        COPY_LINE(size);
    }
}

/* The place of step j of axis a in the destination, in bytes. */
static size_t place_of(const struct walk *w, const int32_t *rank, int a, size_t j)
{
    return (a == 0 && rank ? (size_t)rank[j] : j) * w->axis[a].to;
}

/* Transpose: in the source neighbours along y touch, in the destination those along x. */
static void turn(const struct walk *w, int x, int y, const int32_t *rank, char *to,
                 const char *from)
{
    const struct axis *ax = &w->axis[x], *ay = &w->axis[y];
    assert(x != y && ax->to == w->size && ay->from == w->size);
    assert(!rank || y == 0); /* items of the destination are adjacent along x, in any order of y */
    size_t at[TILE];
    for (size_t i = 0; i < ax->n; i += TILE) {
        for (size_t j = 0; j < ay->n; j += TILE) {
            size_t high = smaller(TILE, ax->n - i), wide = smaller(TILE, ay->n - j);
            assert(i + high <= ax->n && j + wide <= ay->n); /* invariant 5 */
            char *corner = to + i * ax->to;
            const char *source = from + i * ax->from + j * ay->from;
            for (size_t k = 0; k < wide; k++)
                at[k] = place_of(w, rank, y, j + k);
            bool whole = high == TILE && wide == TILE;
            if (whole && w->size == 2)
                tile2(corner, at, source, ax->from);
            else if (whole && w->size == 4)
                tile4(corner, at, source, ax->from);
            else
                for (size_t k = 0; k < wide; k++)
                    copy_line(corner + at[k], ax->to, source + k * ay->from, ax->from, high,
                              w->size);
        }
    }
}

/* Find the axes x and y of a transposition; the third axis is *outer. */
static bool find_turn(const struct walk *w, int *x, int *y, int *outer)
{
    *x = *y = -1;
    for (int a = 0; a < AXES; a++) {
        *x = w->axis[a].n > 1 && w->axis[a].to == w->size ? a : *x;
        *y = w->axis[a].n > 1 && w->axis[a].from == w->size ? a : *y;
    }
    if (*x < 0 || *y < 0 || *x == *y || (w->order && *y != 0))
        return false;
    *outer = AXES - *x - *y; /* 0 + 1 + 2 = AXES */
    assert(*outer >= 0 && *outer < AXES && *outer != *x && *outer != *y);
    return true;
}

/* ---- the whole box ---- */

void fm_move(void *to, const struct fm_form *to_form, const void *from,
             const struct fm_form *from_form, const struct fm_box *box, const int32_t *order)
{
    assert(box->size > 0);
    if (fm_box_bytes(box) == 0)
        return;
    struct fm_mark mark = fm_scratch_mark();
    struct walk w = simplify(to_form, from_form, box, order);
    const struct axis *axis = w.axis;
    int x, y, outer;
    if (find_turn(&w, &x, &y, &outer)) {
        int32_t *rank = w.order ? fm_scratch(axis[0].n * sizeof *rank) : NULL;
        if (rank)
            invert(rank, w.order, axis[0].n);
        for (size_t i = 0; i < axis[outer].n; i++)
            turn(&w, x, y, rank, (char *)to + i * axis[outer].to,
                 (const char *)from + i * axis[outer].from);
    } else {
        if (w.order)
            assert_permutation(w.order, axis[0].n);
        for (size_t g = 0; g < axis[0].n; g++) {
            size_t source = (w.order ? (size_t)w.order[g] : g) * axis[0].from;
            for (size_t r = 0; r < axis[1].n; r++)
                copy_line((char *)to + g * axis[0].to + r * axis[1].to, axis[2].to,
                          (const char *)from + source + r * axis[1].from, axis[2].from, axis[2].n,
                          w.size);
        }
    }
    fm_scratch_release(mark);
}

void fm_move_blank(void *to, const struct fm_form *form, const struct fm_box *box, int byte)
{
    assert(box->size > 0);
    if (fm_box_bytes(box) == 0)
        return;
    struct walk w = simplify(form, form, box, NULL);
    const struct axis *axis = w.axis;
    for (size_t g = 0; g < axis[0].n; g++)
        for (size_t r = 0; r < axis[1].n; r++)
            for (size_t i = 0; i < axis[2].n; i++)
                memset((char *)to + g * axis[0].to + r * axis[1].to + i * axis[2].to, byte, w.size);
}
