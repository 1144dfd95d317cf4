/*
 * Write the gradient that fm-recover --train router uses, for tests/judge/routerjudge.py to compare
 * with autograd.  It is the gradient of CE + KL to the full model, for a model whose experts keep
 * the first half of their channels and whose routers have small differences added.  The output is
 * the differences, then the gradient, float32 in native byte order: for each layer with experts
 * (E, H) and, if the logits have a bias, (E).
 *
 *     routergrad MODEL TOKENS SEQ_LEN
 *
 * The first two sequences of TOKENS are the batch.
 */
#include <stdio.h>
#include <stdlib.h>

#include "lib/learn/recover.h"
#include "lib/learn/tune.h"
#include "lib/masks/methods.h"

/* Differences small enough that most tokens keep their experts. */
static void fill(float *values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        values[i] = (float)(i * 7919 % 101) * 1e-5f - 5e-4f;
}

static int print_layers(const struct fm_tune *t, struct fm_err *err)
{
    size_t n = t->adapter.offset[t->adapter.E];
    void *gradient;
    for (int m = 0; m < t->adapter.M; m++) {
        int rc = fm_store_get(&t->gradients, (size_t)m, 0, n * sizeof(float), &gradient,
                              t->reduction.sum, err);
        if (rc || fwrite(gradient, sizeof(float), n, stdout) != n)
            return rc ? rc : fm_fail(err, FM_EIO, "standard output: cannot write");
    }
    return FM_OK;
}

/* Run one training step on a family of two masks, full and half. */
static int step(struct fm_task *task, struct fm_err *err)
{
    const struct fm_config *c = task->config;
    size_t experts = (size_t)c->M * (size_t)c->E;
    struct fm_recover_options options;
    struct fm_masks masks;
    uint32_t *half = malloc(experts * sizeof *half);
    if (!half)
        return fm_fail(err, FM_ENOMEM, "no memory for widths");
    for (size_t i = 0; i < experts; i++)
        half[i] = (uint32_t)c->I / 2;
    fm_recover_defaults(&options, &fm_recovery_router);
    options.w_task = 1;
    fm_masks_init(&masks, c->M, c->E, c->I);
    struct fm_tune tune = {
        .task = task, .options = &options, .masks = &masks, .mask = 1, .batch = 2};
    int rc = FM_OK;
    if (fm_masks_full(&masks, &fm_method_learned, err) ||
        fm_masks_append(&masks, half, &fm_method_learned, 1, err) || fm_tune_init(&tune, err))
        rc = err->code;
    size_t n = rc ? 0 : tune.adapter.offset[experts];
    fill(tune.adapter.values, n);
    if (!rc && fwrite(tune.adapter.values, sizeof(float), n, stdout) != n)
        rc = fm_fail(err, FM_EIO, "standard output: cannot write");
    if (!rc)
        rc = fm_tune_step(&tune, err);
    if (!rc)
        rc = print_layers(&tune, err);
    fm_tune_release(&tune);
    fm_masks_release(&masks);
    free(half);
    return rc;
}

static int run_all(const struct fm_run_options *run, struct fm_err *err)
{
    struct fm_task task = {.run = run, .memory = 1 << 28, .epoch_number = -1};
    int rc = fm_machine_ops(&task.ops, &run->machine, FM_F32, err);
    if (!rc)
        rc = fm_model_open(&task.model, run->inputs.model, task.memory, err);
    task.config = rc ? NULL : fm_model_config(task.model);
    if (!rc)
        rc = fm_calib_open(&task.calib, run, task.config, false, err);
    task.calib.count = 2; /* one batch, so their order does not matter */
    if (!rc)
        rc = step(&task, err);
    fm_calib_close(&task.calib);
    fm_model_close(task.model);
    free(task.epoch);
    return rc;
}

int main(int argc, char **argv)
{
    struct fm_err err = {0};
    if (argc != 4) {
        fprintf(stderr, "usage: routergrad MODEL TOKENS SEQ_LEN\n");
        return FM_EUSAGE;
    }
    const struct fm_run_options run = {
        .inputs = {.model = argv[1], .tokens = {argv[2]}, .seq_len = atoi(argv[3]), .seed = 1},
        .machine = {.device = "cpu"}};
    int rc = run_all(&run, &err);
    if (!rc && fflush(stdout) != 0)
        rc = fm_fail(&err, FM_EIO, "standard output: cannot write");
    if (rc)
        fprintf(stderr, "routergrad: %s\n", err.text);
    return rc;
}
