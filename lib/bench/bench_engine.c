/*
 * Speed of rank and train on a synthetic model, through a table of operations that counts products
 * and their time (lib/bench/meter.h).  The result is a fraction: the floating-point operations of a
 * forward and of each gradient once (lib/learn/estimate.h), divided by the time of the whole run
 * and by the speed that the matrix library reaches with large matrices on this machine.  Fractions
 * of different machines cannot be compared.  The speed of a shared machine changes within minutes,
 * so the library's speed is measured before and after each run.
 */
#include "lib/bench/bench.h"

#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/pool.h"
#include "lib/bench/processor.h"
#include "lib/bench/synth.h"
#include "lib/bench/workdir.h"
#include "lib/learn/rank.h"
#include "lib/learn/train.h"

/* Paths of everything in the work directory. */
struct place {
    struct fm_workdir work;
    char model[4096], tokens[4096], stage[4096], out[4096];
};

static int make_data(struct place *p, const struct fm_synth *s, int sequences,
                     const struct fm_run_options *run, struct fm_err *err)
{
    fm_workdir_at(&p->work, "model", p->model);
    fm_workdir_at(&p->work, "tokens.npy", p->tokens);
    fm_workdir_at(&p->work, "stage", p->stage);
    fm_workdir_at(&p->work, "out", p->out);
    if (fm_synth_model(s, p->model, run, err) || fm_synth_tokens(s, sequences, p->tokens, err))
        return err->code;
    return fm_synth_stage(p->model, p->stage, s->seed, run->stop, err);
}

static void settle(struct fm_bench_engine_run *r, double seconds, double tokens)
{
    r->seconds = seconds;
    r->tokens_second = tokens / seconds;
    r->flops = fm_meter_flops();
    r->stages = fm_meter_end(r->stage, &r->rest);
}

static int measure_rank(struct fm_bench_engine_run *r, struct fm_run_options run,
                        const struct fm_ops *ops, struct fm_err *err)
{
    struct fm_rank_options options;
    struct fm_rank_report report = {0};
    struct fm_estimate estimate = {0};
    fm_rank_defaults(&options);
    run.inputs.eval_tokens[0] = run.inputs.tokens; /* hold out no sequence */
    int rc = fm_rank_estimate(&run, &options, &estimate, err);
    r->useful = estimate.useful;
    if (rc)
        return rc;
    run.machine.ops = fm_meter_begin(ops);
    double begin = fm_clock_now();
    rc = fm_rank(&run, &options, &report, err);
    if (!rc)
        settle(r, fm_clock_now() - begin, (double)report.sequences * report.T);
    fm_rank_report_release(&report);
    return rc;
}

/* tokens_second is the rate of the training steps only; the other figures include measuring the
 * masks. */
static int measure_train(struct fm_bench_engine_run *r, struct fm_run_options run,
                         const struct fm_ops *ops, int steps, struct fm_err *err)
{
    struct fm_train_options options;
    struct fm_train_report report = {0};
    fm_train_defaults(&options);
    options.method = FM_METHOD_LEARNED;
    options.steps = steps;
    options.budget_step = "0.10";
    options.until = "0.10";
    run.machine.ops = fm_meter_begin(ops);
    double begin = fm_clock_now();
    int rc = fm_train(&run, &options, &report, err);
    if (!rc)
        settle(r, fm_clock_now() - begin, 0);
    struct fm_estimate estimate = {0};
    options.steps = report.steps; /* may be more than were planned */
    if (!rc)
        rc = fm_train_estimate(&run, &options, &estimate, err);
    r->useful = estimate.useful;
    if (!rc && report.seconds_step > 0)
        r->tokens_second = (double)(run.inputs.batch ? run.inputs.batch : 8) * run.inputs.seq_len /
                           report.seconds_step;
    fm_train_report_release(&report);
    return rc;
}

static int measure(struct fm_bench_engine *result, const struct place *p, int T,
                   const struct fm_run_options *base, const struct fm_ops *ops, int steps,
                   struct fm_err *err)
{
    struct fm_run_options run = *base;
    run.inputs.model = p->model;
    run.inputs.tokens = p->tokens;
    run.inputs.seq_len = T;
    run.outputs.path = p->out;
    run.outputs.force = true;
    bool narrow = ops->operand == FM_BF16;
    double before = fm_processor_peak(narrow);
    int rc = measure_rank(&result->rank, run, ops, err);
    if (rc)
        return rc;
    double after = fm_processor_peak(narrow);
    result->rank.peak = (before + after) / 2;
    if (steps <= 0)
        return FM_OK;
    run.inputs.stream = p->stage;
    rc = measure_train(&result->train, run, ops, steps, err);
    result->train.peak = rc ? 0 : (after + fm_processor_peak(narrow)) / 2;
    return rc;
}

int fm_bench_engine(const struct fm_run_options *run, const struct fm_bench_engine_options *options,
                    struct fm_bench_engine *result, struct fm_err *err)
{
    struct fm_synth s;
    struct place p = {0};
    *result = (struct fm_bench_engine){.threads = fm_pool_threads()};
    if (fm_synth_parse(&s, options->shape, options->layers, err))
        return err->code;
    fm_processor_name(result->cpu, sizeof result->cpu);
    fm_ops_dnnl_version(result->dnnl, sizeof result->dnnl);
    s.dtype = strcmp(options->dtype, "f32") == 0 ? FM_F32 : FM_BF16;
    s.seed = run->inputs.seed;
    result->bytes = fm_synth_bytes(&s);
    const struct fm_ops *ops;
    if (fm_machine_ops(&ops, &run->machine, s.dtype, err))
        return err->code;
    result->precision = fm_machine_precision(ops);
    int rc = fm_workdir_open(&p.work, options->dir, err);
    if (!rc)
        rc = make_data(&p, &s, options->sequences, run, err);
    if (!rc)
        rc = measure(result, &p, s.T, run, ops, options->steps, err);
    if (options->keep)
        memcpy(result->kept, p.work.path, sizeof result->kept);
    else
        fm_workdir_close(&p.work);
    return rc;
}
