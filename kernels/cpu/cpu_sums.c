/* The operations of kernels/ops/sums.c, by calls of the reference implementation on blocks. */
#include "kernels/cpu/cpu.h"
#include "kernels/ops/ops.h"

/* On the calling thread: there is little work, and it has to be done in order. */
void cpu_width_sums(double *sum, const double *c, const uint32_t *width, int A, bool squares)
{
    ref_width_sums(sum, c, width, A, squares);
}

struct split {
    struct fm_out a, b;
    struct fm_in x;
    int I, k;
};

static void split_rows(const void *args, int64_t first, int64_t last)
{
    const struct split *s = args;
    size_t k = (size_t)s->k, I = (size_t)s->I, at = (size_t)first;
    ref_split_pairs(fm_element_out(s->a, at * k), fm_element_out(s->b, at * k),
                    fm_element(s->x, at * 2 * I), (int)(last - first), s->I, s->k);
}

void cpu_split_pairs(struct fm_out a, struct fm_out b, struct fm_in x, int n, int I, int k)
{
    fm_cpu_rows(n, 4 * (int64_t)k, split_rows, &(struct split){a, b, x, I, k});
}

struct accumulation {
    struct fm_out total, part;
    double share;
};

static void accumulate_block(const void *args, int64_t first, int64_t last)
{
    const struct accumulation *f = args;
    ref_accumulate(fm_element_out(f->total, (size_t)first), fm_element_out(f->part, (size_t)first),
                   f->share, last - first);
}

void cpu_accumulate(struct fm_out total, struct fm_out part, double share, int64_t count)
{
    fm_cpu_rows(count, 3, accumulate_block, &(struct accumulation){total, part, share});
}
