/* Cuts elementwise work into blocks whose size depends only on the shapes. */
#include "kernels/cpu/cpu.h"
#include "lib/base/pool.h"

/* Elements of a block: enough to outweigh the cost of a task, few enough for a core's cache. */
enum { BLOCK_WORK = 1 << 16 };

struct blocks {
    int64_t n, rows;
    void (*run)(const void *args, int64_t first, int64_t last);
    const void *args;
};

static void run_block(void *arg, int index)
{
    const struct blocks *b = arg;
    int64_t first = index * b->rows, last = first + b->rows;
    b->run(b->args, first, last < b->n ? last : b->n);
}

void fm_cpu_rows(int64_t n, int64_t work,
                 void (*run)(const void *args, int64_t first, int64_t last), const void *args)
{
    struct blocks b = {n, BLOCK_WORK / (work > 0 ? work : 1), run, args};
    if (b.rows < 1)
        b.rows = 1;
    if (n / b.rows >= INT32_MAX) /* the number of tasks is an int */
        b.rows = n / INT32_MAX + 1;
    fm_pool_for((int)((n + b.rows - 1) / b.rows), run_block, &b);
}
