/* Compare conversions of experts between a checkpoint's matrices and the bundle's layout with the
 * definition. */
#include "lib/model/interleave.h"
#include "tests/unit/test.h"

/* Whole tiles, a remainder in one direction, in both, and less than a tile. */
static const int sizes[][2] = {{128, 64}, {130, 64}, {64, 67}, {200, 133}, {37, 48}, {1, 1}};
enum { SIZES = sizeof sizes / sizeof *sizes };

struct expert {
    int I, H, element;
    unsigned char *gate, *up, *down;
    int32_t *order;
};

static unsigned char *random_bytes(size_t n)
{
    unsigned char *b = malloc(n);
    for (size_t i = 0; i < n; i++)
        b[i] = (unsigned char)(rand() >> 7);
    return b;
}

static struct expert make(int s, int element)
{
    struct expert x = {.I = sizes[s][0], .H = sizes[s][1], .element = element};
    size_t n = (size_t)x.I * (size_t)x.H * (size_t)element;
    x.gate = random_bytes(n);
    x.up = random_bytes(n);
    x.down = random_bytes(n);
    x.order = malloc((size_t)x.I * sizeof *x.order);
    for (int j = 0; j < x.I; j++)
        x.order[j] = j;
    for (int j = x.I - 1; j > 0; j--) {
        int k = rand() % (j + 1), t = x.order[j];
        x.order[j] = x.order[k];
        x.order[k] = t;
    }
    return x;
}

static void drop(struct expert *x)
{
    free(x->gate);
    free(x->up);
    free(x->down);
    free(x->order);
}

TEST(rows_interleave_in_rank_order_and_come_apart_again)
{
    for (int s = 0; s < SIZES; s++) {
        struct expert x = make(s, 2);
        size_t row = (size_t)x.H * 2;
        unsigned char *both = malloc(2 * (size_t)x.I * row), *apart = malloc((size_t)x.I * row);
        fm_interleave_rows(both, x.gate, x.up, x.order, x.I, x.H, 2);
        for (int j = 0; j < x.I; j++) {
            size_t from = (size_t)x.order[j] * row;
            assert_memory_equal(both + 2 * (size_t)j * row, x.gate + from, row);
            assert_memory_equal(both + (2 * (size_t)j + 1) * row, x.up + from, row);
        }
        fm_interleave_rows(both, x.gate, x.up, NULL, x.I, x.H, 2);
        fm_interleave_undo(apart, both, 1, x.I, x.H, 2);
        assert_memory_equal(apart, x.up, (size_t)x.I * row);
        free(both);
        free(apart);
        drop(&x);
    }
}

TEST(columns_become_rows_in_rank_order_and_columns_again)
{
    for (int element = 2; element <= 4; element += 2) {
        for (int s = 0; s < SIZES; s++) {
            struct expert x = make(s, element);
            size_t e = (size_t)element, H = (size_t)x.H, I = (size_t)x.I;
            size_t columns = I + 9, k = I - I / 3;
            unsigned char *rows = malloc(I * H * e), *back = malloc(columns * H * e), zero[4] = {0};
            fm_interleave_gather(rows, x.down, x.order, x.I, x.H, element);
            for (size_t j = 0; j < I; j++)
                for (size_t h = 0; h < H; h++)
                    assert_memory_equal(rows + (j * H + h) * e,
                                        x.down + (h * I + (size_t)x.order[j]) * e, e);
            fm_interleave_scatter(back, rows, (int)k, (int)columns, x.H, element, 0);
            for (size_t h = 0; h < H; h++)
                for (size_t j = 0; j < columns; j++)
                    assert_memory_equal(back + (h * columns + j) * e,
                                        j < k ? rows + (j * H + h) * e : zero, e);
            fm_interleave_gather(rows, x.down, NULL, x.I, x.H, element);
            fm_interleave_scatter(back, rows, x.I, x.I, x.H, element, 0);
            assert_memory_equal(back, x.down, I * H * e);
            free(rows);
            free(back);
            drop(&x);
        }
    }
}

TEST_MAIN(NULL, NULL)
