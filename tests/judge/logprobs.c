/*
 * Write the log-probability that the engine computes for each next token of each sequence to
 * standard output, float32 in native byte order, for tests/judge/judge.py to compare.
 *
 *     logprobs MODEL TOKENS SEQ_LEN
 *
 * MODEL is anything that fm_model_open reads.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/data/calib.h"
#include "lib/engine/sweep.h"
#include "lib/model/model.h"
#include "lib/run/run.h"

/* Run one sequence through a sweep of one lane, forward only. */
static int write_sequence(struct fm_sweep *sweep, const struct fm_calib *calib, int i, int32_t *ids,
                          float *logprob, struct fm_err *err)
{
    const int T = calib->T;
    const struct fm_batch batch = {.ids = ids, .S = 1, .T = T};
    const struct fm_lane lane = {.teacher = -1, .ce = 1};
    const struct fm_sweep_taps taps = {.lane = 0, .logprob = logprob};
    struct fm_measure measure;

    fm_sweep_tap(sweep, &taps);
    int rc = fm_calib_read(calib, i, 1, ids, err);
    if (rc == FM_OK)
        rc = fm_sweep_run(sweep, &batch, 1, &lane, 1, NULL, &measure, NULL, err);
    if (rc != FM_OK)
        return rc;
    if (fwrite(logprob, sizeof *logprob, T - 1, stdout) != (size_t)T - 1)
        return fm_fail(err, FM_EIO, "standard output: cannot write");
    return FM_OK;
}

static int write_all(const struct fm_run_options *run, struct fm_err *err)
{
    const struct fm_ops *ops = NULL;
    struct fm_model *model = NULL;
    struct fm_sweep *sweep = NULL;
    struct fm_calib calib = {0};
    float *logprob = NULL;
    int32_t *ids = NULL;
    const struct fm_sweep_options options = {.memory = fm_machine_memory(&run->machine)};

    int rc = fm_machine_ops(&ops, &run->machine, FM_F32, err);
    if (rc == FM_OK)
        rc = fm_model_open(&model, run->inputs.model, fm_machine_memory(&run->machine), err);
    if (rc == FM_OK)
        rc = fm_calib_open(&calib, run, fm_model_config(model), false, err);
    if (rc == FM_OK)
        rc = fm_sweep_new(&sweep, model, ops, 1, calib.T, calib.T, 1, &options, err);
    if (rc == FM_OK &&
        (!(logprob = malloc(calib.T * sizeof *logprob)) || !(ids = malloc(calib.T * sizeof *ids))))
        rc = fm_fail(err, FM_EIO, "no memory for %d log-probabilities", calib.T);
    for (int i = 0; rc == FM_OK && i < calib.count; i++)
        rc = write_sequence(sweep, &calib, i, ids, logprob, err);
    free(logprob);
    free(ids);
    fm_sweep_free(sweep);
    fm_calib_close(&calib);
    fm_model_close(model);
    return rc;
}

int main(int argc, char **argv)
{
    struct fm_err err = {0};
    if (argc != 4) {
        fprintf(stderr, "usage: logprobs MODEL TOKENS SEQ_LEN\n");
        return FM_EUSAGE;
    }
    const struct fm_run_options run = {
        .inputs = {.model = argv[1], .tokens = {argv[2]}, .seq_len = atoi(argv[3])},
        .machine = {.device = "cpu"}};
    int rc = write_all(&run, &err);
    if (rc == FM_OK && fflush(stdout) != 0)
        rc = fm_fail(&err, FM_EIO, "standard output: cannot write");
    if (rc != FM_OK)
        fprintf(stderr, "logprobs: %s\n", err.text);
    return rc;
}
