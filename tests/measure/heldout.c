/*
 * Held-out loss of stage streams at equal budgets, for tests/measure/masks.sh.  `fm-bench quality`
 * measures every member and three controls of each; this program measures the two members around
 * each budget, and interpolates; past the last member it extrapolates from the last two.
 *
 * usage: heldout MODEL TOKENS LENGTH STREAM...
 *
 * Prints a line for each stream: the losses at budgets 0.1 to 0.8, nan for those that are past the
 * last member by more than half of its distance from the one before.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/learn/quality.h"
#include "lib/learn/task.h"
#include "lib/stage/budgets.h"

#define BUDGETS 8

static double wanted(int i)
{
    return 0.1 * (i + 1);
}

/* Copy the widths of the masks before and after every budget; after[i] becomes the index of the
 * mask after budget i. */
static void choose(uint32_t *widths, int *after, const struct fm_masks *f)
{
    size_t X = (size_t)f->M * (size_t)f->E;
    for (int i = 0; i < BUDGETS; i++) {
        int b = 1;
        while (b < f->count - 1 && fm_masks_budget(f, b) < wanted(i))
            b++;
        after[i] = b;
        memcpy(widths + (size_t)(2 * i) * X, fm_masks_widths(f, b - 1), 2 * X * sizeof *widths);
    }
}

static void print_losses(const struct fm_masks *f, const struct fm_quality *q, const int *after)
{
    for (int i = 0; i < BUDGETS; i++) {
        double from = fm_masks_budget(f, after[i] - 1), to = fm_masks_budget(f, after[i]);
        double share = (wanted(i) - from) / (to - from), ce = q[2 * i].ce;
        if (share > 1.5)
            ce = NAN;
        printf("%s%.6f", i ? " " : "", ce + share * (q[2 * i + 1].ce - q[2 * i].ce));
    }
    printf("\n");
}

static int measure(struct fm_task *task, const struct fm_run_options *run, struct fm_err *err)
{
    struct fm_budgets from = {0};
    struct fm_quality quality[2 * BUDGETS];
    int after[BUDGETS];
    int rc = fm_budgets_open(&from, &task->in, err);
    if (rc)
        return rc;
    const struct fm_masks *f = &from.masks;
    size_t X = (size_t)f->M * (size_t)f->E;
    uint32_t *widths = fm_alloc(2 * BUDGETS * X, sizeof *widths, "widths", err);
    if (widths && f->count > 1) {
        choose(widths, after, f);
        const struct fm_quality_subject subject = {
            .model = task->model, .held = &task->held, .masks = 2 * BUDGETS, .widths = widths};
        rc = fm_quality_measure(quality, &subject, run, err);
        if (!rc)
            print_losses(f, quality, after);
    }
    free(widths);
    fm_budgets_release(&from);
    return widths ? rc : FM_ENOMEM;
}

int main(int argc, char **argv)
{
    struct fm_err err = {0};
    int rc = argc < 5 ? fm_fail(&err, FM_EUSAGE, "usage: heldout MODEL TOKENS LENGTH STREAM...")
                      : fm_pool_start(1, &err);
    for (int i = 4; !rc && i < argc; i++) {
        struct fm_run_options run = {.inputs = {.model = argv[1],
                                                .stream = argv[i],
                                                .tokens = {argv[2]},
                                                .eval_tokens = {argv[2]},
                                                .seq_len = atoi(argv[3])},
                                     .machine = {.threads = 1},
                                     .outputs = {.path = "-"}};
        struct fm_task task = {0};
        rc = fm_task_open(&task, &run, FM_MEMBER_RANKING, false, &err);
        if (!rc)
            rc = measure(&task, &run, &err);
        fm_task_close(&task);
    }
    if (rc)
        fprintf(stderr, "heldout: %s\n", err.text);
    fm_pool_stop();
    return rc ? 1 : 0;
}
