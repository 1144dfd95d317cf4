/*
 * measure-engine: the speed of rank, train and recover on a synthetic model, through a table of
 * operations that counts products and their time (meter.h).  The result is a fraction: the
 * floating-point operations of a forward and of each gradient once (lib/learn/estimate.h), divided
 * by the time of the whole run and by the speed that the matrix library reaches with large matrices
 * on this machine.  Fractions of different machines cannot be compared.  The speed of a shared
 * machine changes within minutes, so the library's speed is measured before and after each run.
 *
 *     measure-engine [--shape SHAPE] [--layers N] [--dtype bf16|f32] [--sequences N] [--steps N]
 *                    [--precision f32|bf16] [--memory MB] [--batch N] [--threads N] [--dir DIR]
 *                    [--recover N] [--keep]
 *
 * SHAPE is H,I,E,K,L,V,T (letters of kernels/ops/kernels.h) or the name of a model.  --steps 0
 * only ranks; --recover N also trains an adapter in N steps.  --keep leaves the checkpoint, its
 * tokens and a stage stream, and prints where.
 */
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/pool.h"
#include "lib/base/units.h"
#include "tests/measure/meter.h"
#include "lib/bench/processor.h"
#include "tests/measure/synth.h"
#include "lib/learn/rank.h"
#include "lib/learn/estimate.h"
#include "lib/learn/recover.h"
#include "lib/learn/train.h"
#include "tests/measure/workdir.h"

struct options {
    const char *shape, *dtype, *precision, *dir;  /* dir: for data; NULL: TMPDIR or /var/tmp */
    int layers, sequences, steps, recover, batch; /* layers 0: those of the shape */
    int memory, threads;                          /* MB, 0: half of the free memory; 0: all CPUs */
    bool keep;
};

static atomic_int stop;
static const char *tool;

static void ask_to_stop(int signal)
{
    (void)signal;
    stop = 1;
}

static void refuse(const char *text)
{
    fprintf(stderr, "%s: %s\n", tool, text);
    exit(FM_EUSAGE);
}

/* A whole number from 0 to a million. */
static int number(const char *text)
{
    char *end;
    long v = strtol(text, &end, 10);
    if (end == text || *end || v < 0 || v > 1000000)
        refuse("a number must be from 0 to 1000000");
    return (int)v;
}

/* Parse the command line into *o, which has the defaults.  Prepare *run and start the pool.  A
 * wrong option ends the process with status 2. */
static void start(struct options *o, struct fm_run_options *run, int argc, char **argv)
{
    const struct {
        const char *name, **text;
        int *number;
    } option[] = {{"shape", &o->shape, NULL},         {"dtype", &o->dtype, NULL},
                  {"precision", &o->precision, NULL}, {"dir", &o->dir, NULL},
                  {"layers", NULL, &o->layers},       {"sequences", NULL, &o->sequences},
                  {"steps", NULL, &o->steps},         {"recover", NULL, &o->recover},
                  {"batch", NULL, &o->batch},         {"memory", NULL, &o->memory},
                  {"threads", NULL, &o->threads},     {"keep", NULL, NULL}};
    enum { OPTIONS = sizeof option / sizeof *option };
    struct option longs[OPTIONS + 1] = {{0}};
    int at = 0;
    tool = argv[0];
    for (int i = 0; i < OPTIONS; i++) {
        bool flag = !option[i].text && !option[i].number;
        longs[i] = (struct option){option[i].name, flag ? no_argument : required_argument, NULL, 1};
    }
    for (int c; (c = getopt_long(argc, argv, "", longs, &at)) != -1;) {
        if (c != 1)
            exit(FM_EUSAGE);
        if (option[at].text)
            *option[at].text = optarg;
        else if (option[at].number)
            *option[at].number = number(optarg);
        else
            o->keep = true;
    }
    if (optind < argc)
        refuse("there are no operands");
    *run = (struct fm_run_options){.outputs.path = "-", .stop = &stop};
    run->machine.memory = (uint64_t)o->memory * 1000000;
    run->machine.precision =
        o->precision && strcmp(o->precision, "bf16") == 0 ? FM_PRECISION_BF16 : FM_PRECISION_F32;
    run->machine.threads = o->threads;
    run->inputs.batch = o->batch;
    sigaction(SIGINT, &(struct sigaction){.sa_handler = ask_to_stop}, NULL);
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = ask_to_stop}, NULL);
    struct fm_err err = {0};
    if (fm_pool_start(o->threads, &err))
        refuse(err.text);
}

/* Stop the pool; print the error, if any; return the exit status. */
static int finish(const struct fm_err *err)
{
    fm_pool_stop();
    if (err->code)
        fprintf(stderr, "%s: %s\n", tool, err->text);
    return err->code;
}

struct speed {
    double seconds;       /* wall time of the run */
    double tokens_second; /* calibration tokens */
    double useful;        /* FLOPs without recomputation: a forward, and each gradient once */
    double peak; /* FLOP/s of large products in its precision, the mean of before and after */
    int stages;  /* operations, longest first; seconds summed over threads */
    struct fm_meter_stage stage[FM_METER_STAGES];
    struct fm_meter_rest rest;
};

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

static void settle(struct speed *r, double seconds, double tokens)
{
    r->seconds = seconds;
    r->tokens_second = tokens / seconds;
    r->stages = fm_meter_end(r->stage, &r->rest);
}

static int measure_rank(struct speed *r, struct fm_run_options run, const struct fm_ops *ops,
                        struct fm_err *err)
{
    struct fm_rank_options options;
    struct fm_rank_report report = {0};
    struct fm_estimate estimate = {0};
    fm_rank_defaults(&options);
    run.inputs.eval_tokens[0] = run.inputs.tokens[0].path; /* hold out no sequence */
    int rc = fm_rank(&run, &options, &estimate, NULL, err);
    r->useful = estimate.useful;
    if (rc)
        return rc;
    run.machine.ops = fm_meter_begin(ops);
    double begin = fm_clock_now();
    rc = fm_rank(&run, &options, NULL, &report, err);
    if (!rc)
        settle(r, fm_clock_now() - begin, (double)report.sequences * report.T);
    fm_rank_report_release(&report);
    return rc;
}

/* tokens_second is the rate of the training steps only; the other figures include measuring the
 * masks. */
static int measure_train(struct speed *r, struct fm_run_options run, const struct fm_ops *ops,
                         int steps, struct fm_err *err)
{
    struct fm_train_options options;
    struct fm_train_report report = {0};
    fm_train_defaults(&options);
    options.method = &fm_method_learned;
    options.steps = steps;
    options.budget_step = (struct fm_decimal){1, 10};
    options.until = (struct fm_decimal){1, 10};
    run.machine.ops = fm_meter_begin(ops);
    double begin = fm_clock_now();
    int rc = fm_train(&run, &options, NULL, &report, err);
    if (!rc)
        settle(r, fm_clock_now() - begin, 0);
    struct fm_estimate estimate = {0};
    options.steps = report.steps; /* may be more than were planned */
    if (!rc)
        rc = fm_train(&run, &options, &estimate, NULL, err);
    r->useful = estimate.useful;
    if (!rc && report.seconds_step > 0)
        r->tokens_second = (double)(run.inputs.batch ? run.inputs.batch : 8) * run.inputs.seq_len /
                           report.seconds_step;
    fm_train_report_release(&report);
    return rc;
}

/* tokens_second is the rate of the steps only.  No mask of the stream has figures, so none is
 * measured. */
static int measure_recover(struct speed *r, struct fm_run_options run, const struct fm_ops *ops,
                           int steps, struct fm_err *err)
{
    struct fm_recover_options options;
    struct fm_recover_report report = {0};
    struct fm_estimate estimate = {0};
    fm_recover_defaults(&options, fm_recoveries[0]);
    options.steps = steps;
    int rc = fm_recover(&run, &options, &estimate, NULL, err);
    r->useful = estimate.useful;
    run.machine.ops = fm_meter_begin(ops);
    double begin = fm_clock_now();
    if (!rc)
        rc = fm_recover(&run, &options, NULL, &report, err);
    if (!rc)
        settle(r, fm_clock_now() - begin, 0);
    if (!rc && report.seconds_step > 0)
        r->tokens_second = (double)(run.inputs.batch ? run.inputs.batch : 8) * run.inputs.seq_len /
                           report.seconds_step;
    fm_recover_report_release(&report);
    return rc;
}

/* The three tools one after the other; train and recover unless they have no steps. */
static int measure(struct speed speed[3], const struct place *p, int T,
                   const struct fm_run_options *base, const struct fm_ops *ops,
                   const struct options *o, struct fm_err *err)
{
    struct fm_run_options run = *base;
    run.inputs.model = p->model;
    run.inputs.tokens[0].path = p->tokens;
    run.inputs.seq_len = T;
    run.outputs.path = p->out;
    run.outputs.force = true;
    bool narrow = ops->operand == FM_BF16;
    double before = fm_processor_peak(narrow);
    for (int i = 0, rc; i < 3; i++) {
        int steps = i == 1 ? o->steps : o->recover;
        if (i > 0 && steps == 0)
            continue;
        run.inputs.stream = i > 0 ? p->stage : NULL;
        rc = i == 0   ? measure_rank(&speed[i], run, ops, err)
             : i == 1 ? measure_train(&speed[i], run, ops, steps, err)
                      : measure_recover(&speed[i], run, ops, steps, err);
        if (rc)
            return rc;
        double after = fm_processor_peak(narrow);
        speed[i].peak = (before + after) / 2;
        before = after;
    }
    return FM_OK;
}

static void print_rest(const char *name, double seconds, double all)
{
    printf("  %-16s %10s %10.3f %6.1f%%\n", name, "", seconds, 100 * seconds / all);
}

static void print_speed(const char *name, const struct speed *r)
{
    if (!(r->seconds > 0))
        return;
    double share = r->useful / r->seconds / r->peak, all = r->seconds * fm_pool_threads();
    printf("%s: %.4g tokens/s; %.2f s for %.4g useful GFLOP, %.2f of the peak of %.4g\n", name,
           r->tokens_second, r->seconds, 1e-9 * r->useful, share, 1e-9 * r->peak);
    printf("  %-16s %10s %10s %7s %9s\n", "operation", "calls", "thread s", "share", "GFLOP/s");
    for (int i = 0; i < r->stages; i++) {
        const struct fm_meter_stage *s = &r->stage[i];
        if (s->seconds < 0.002 * all)
            continue;
        printf("  %-16s %10llu %10.3f %6.1f%%", s->name, (unsigned long long)s->calls, s->seconds,
               100 * s->seconds / all);
        if (s->flops > 0)
            printf(" %9.1f", 1e-9 * s->flops / s->seconds * fm_pool_threads());
        putchar('\n');
    }
    print_rest("reading", r->rest.reading, all);
    print_rest("waiting", r->rest.waiting, all);
    print_rest("other", r->rest.other, all);
}

static void print_machine(uint64_t bytes)
{
    char cpu[96], dnnl[64], size[32];
    fm_processor_name(cpu, sizeof cpu);
    fm_ops_dnnl_version(dnnl, sizeof dnnl);
    fm_units_bytes(size, bytes);
    printf("%s, %d threads, oneDNN %s; checkpoint of %s\n", cpu, fm_pool_threads(), dnnl, size);
    printf("peak: GFLOP/s of oneDNN's fastest large product on all threads, measured before and "
           "after\n");
}

static int run_all(const struct options *o, const struct fm_run_options *run, struct fm_err *err)
{
    struct fm_synth s;
    struct place p = {0};
    static struct speed speed[3];
    const struct fm_ops *ops;
    if (fm_synth_parse(&s, o->shape, o->layers, err))
        return err->code;
    s.dtype = strcmp(o->dtype, "f32") == 0 ? FM_F32 : FM_BF16;
    if (fm_machine_ops(&ops, &run->machine, s.dtype, err) || fm_workdir_open(&p.work, o->dir, err))
        return err->code;
    int rc = make_data(&p, &s, o->sequences, run, err);
    if (!rc)
        rc = measure(speed, &p, s.T, run, ops, o, err);
    if (!rc) {
        print_machine(fm_synth_bytes(&s));
        print_speed("rank", &speed[0]);
        print_speed("train", &speed[1]);
        print_speed("recover", &speed[2]);
    }
    if (!rc && o->keep)
        printf("kept in %s\n", p.work.path);
    else
        fm_workdir_close(&p.work);
    return rc;
}

int main(int argc, char **argv)
{
    struct options o = {.shape = "256,896,8,2,4,1024,256",
                        .dtype = "bf16",
                        .precision = "f32",
                        .sequences = 8,
                        .steps = 2};
    struct fm_err err = {0};
    struct fm_run_options run;
    start(&o, &run, argc, argv);
    run_all(&o, &run, &err);
    return finish(&err);
}
