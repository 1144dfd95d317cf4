/*
 * measure-io: times packing, exporting and verifying of synthetic data, and cp and xxhsum on the
 * same bytes, in the same rounds, so that a disturbance affects all of them.  The best round
 * counts, because a disturbance only makes things slower.
 *
 *     measure-io [--size MB] [--repeat N] [--dir DIR] [--threads N]
 */
#include <math.h>
#include <stdio.h>

#include "lib/base/clock.h"
#include "lib/base/units.h"
#include "tests/measure/synth.h"
#include "lib/export/export.h"
#include "lib/export/list.h"
#include "lib/stage/pack.h"
#include "lib/verify/verify.h"
#include "tests/measure/measure.h"
#include "tests/measure/workdir.h"

struct measured {
    uint64_t checkpoint, bundle, export; /* bytes */
    /* Seconds, the best of all rounds; cp and xxhsum run on the bundle; pack, export and cp end
     * with an fsync. */
    double pack, export_native, verify, verify_export, cp, xxhsum;
};

struct place {
    struct fm_workdir work;
    char model[4096], stage[4096], bundle[4096], copy[4096], export[4096];
};

/* The widest of a few shapes that has at least four layers in `size` bytes. */
static void choose_shape(struct fm_synth *s, uint64_t size)
{
    for (int H = 1024; H >= 64; H /= 2) {
        *s = (struct fm_synth){.H = H,
                               .I = 7 * H / 2,
                               .E = 8,
                               .K = 2,
                               .V = 1024,
                               .T = 128,
                               .Q = H / 64,
                               .G = 1,
                               .C = 64,
                               .dtype = FM_BF16,
                               .L = 1};
        uint64_t one = fm_synth_bytes(s);
        s->L = 2;
        uint64_t layer = fm_synth_bytes(s) - one;
        s->L = size > one ? 1 + (int)((size - one) / layer) : 1;
        if (s->L >= 4)
            return;
    }
}

static void note_best(double *best, double seconds)
{
    *best = *best > 0 ? fmin(*best, seconds) : seconds;
}

static int time_pack(struct measured *r, const struct place *p, struct fm_run_options run,
                     struct fm_err *err)
{
    struct fm_pack_report report = {0};
    run.inputs.model = p->model;
    run.inputs.stream = p->stage;
    run.outputs.path = p->bundle;
    run.outputs.force = false;
    fm_workdir_remove(&p->work, "bundle");
    double begin = fm_clock_now();
    if (fm_pack(&run, &(struct fm_pack_options){0}, &report, err))
        return err->code;
    note_best(&r->pack, fm_clock_now() - begin);
    r->checkpoint = report.bytes_in;
    r->bundle = report.bytes_out;
    return FM_OK;
}

/* The budget of the family nearest to 0.40; a small family has coarse steps. */
static int find_budget(double *budget, const char *bundle, struct fm_err *err)
{
    struct fm_list list;
    int rc = fm_list_read(&list, bundle, false, err);
    *budget = 0;
    for (int i = 0; !rc && i < list.rows; i++)
        if (fabs(list.row[i].budget - 0.4) < fabs(*budget - 0.4))
            *budget = list.row[i].budget;
    fm_list_release(&list);
    return rc;
}

static int time_export(struct measured *r, const struct place *p, struct fm_run_options run,
                       struct fm_err *err)
{
    struct fm_export_report report = {0};
    struct fm_export_options options = {.layout = &fm_layout_native};
    if (find_budget(&options.budget, p->bundle, err))
        return err->code;
    run.inputs.stream = p->bundle;
    run.outputs.path = p->export;
    run.outputs.force = false;
    fm_workdir_remove(&p->work, "export");
    double begin = fm_clock_now();
    if (fm_export(&run, &options, &report, err))
        return err->code;
    note_best(&r->export_native, fm_clock_now() - begin);
    r->export = report.bytes_out;
    return FM_OK;
}

static int time_verify(double *best, const char *target, const char *against,
                       const struct fm_run_options *run, struct fm_err *err)
{
    struct fm_verify_report report = {0};
    const struct fm_verify_options options = {.target = target, .against = against};
    double begin = fm_clock_now();
    if (fm_verify(run, &options, &report, err))
        return err->code;
    note_best(best, fm_clock_now() - begin);
    return FM_OK;
}

static int time_programs(struct measured *r, const struct place *p, struct fm_err *err)
{
    char *cp[] = {"cp", (char *)p->bundle, (char *)p->copy, NULL};
    char *sync[] = {"sync", (char *)p->copy, NULL};
    char *xxhsum[] = {"xxhsum", "-q", "-H2", (char *)p->bundle, NULL};
    double copied = 0, hashed = 0;
    fm_workdir_remove(&p->work, "copy");
    if (fm_workdir_run(cp, &copied, err) || fm_workdir_run(sync, &copied, err) ||
        fm_workdir_run(xxhsum, &hashed, err))
        return err->code;
    note_best(&r->cp, copied);
    note_best(&r->xxhsum, hashed);
    return FM_OK;
}

static int time_round(struct measured *r, const struct place *p, const struct fm_run_options *run,
                      struct fm_err *err)
{
    if (time_pack(r, p, *run, err) || time_programs(r, p, err) || time_export(r, p, *run, err) ||
        time_verify(&r->verify, p->bundle, NULL, run, err))
        return err->code;
    return time_verify(&r->verify_export, p->export, p->bundle, run, err);
}

static int measure(struct measured *result, const struct fm_run_options *run, const char *dir,
                   uint64_t size, int repeat, struct fm_err *err)
{
    struct fm_synth s;
    struct place p = {0};
    choose_shape(&s, size);
    int rc = fm_workdir_open(&p.work, dir, err);
    if (rc)
        return rc;
    fm_workdir_at(&p.work, "model", p.model);
    fm_workdir_at(&p.work, "stage", p.stage);
    fm_workdir_at(&p.work, "bundle", p.bundle);
    fm_workdir_at(&p.work, "copy", p.copy);
    fm_workdir_at(&p.work, "export", p.export);
    rc = fm_synth_model(&s, p.model, run, err);
    if (!rc)
        rc = fm_synth_stage(p.model, p.stage, run->inputs.seed, run->stop, err);
    for (int i = 0; !rc && i < repeat; i++)
        rc = time_round(result, &p, run, err);
    fm_workdir_close(&p.work);
    return rc;
}

/* A line of the table: `beside` is the rate of the program to compare with, or 0. */
static void print_row(const char *name, uint64_t size, double seconds, double beside)
{
    char bytes[32];
    double rate = (double)size / seconds;
    fm_units_bytes(bytes, size);
    printf("%-14s %9s %9.3f %10.3f", name, bytes, seconds, 1e-9 * rate);
    if (beside > 0)
        printf(" %7.2fx", rate / beside);
    putchar('\n');
}

int main(int argc, char **argv)
{
    struct measure_options o = {.size = 256, .repeat = 3};
    struct measured m = {0};
    struct fm_err err = {0};
    struct fm_run_options run;
    measure_begin(&o, &run, "size repeat dir threads", argc, argv);
    if (measure(&m, &run, o.dir, (uint64_t)o.size * 1000000, o.repeat, &err))
        return measure_end(&err);
    double cp = (double)m.bundle / m.cp, xxhsum = (double)m.bundle / m.xxhsum;
    printf("best of %d\n%-14s %9s %9s %10s %8s\n", o.repeat, "", "bytes", "seconds", "GB/s",
           "share");
    print_row("cp + fsync", m.bundle, m.cp, 0);
    print_row("pack", m.bundle, m.pack, cp);
    print_row("export native", m.export, m.export_native, cp);
    print_row("xxhsum", m.bundle, m.xxhsum, 0);
    print_row("verify bundle", m.bundle, m.verify, xxhsum);
    print_row("verify export", m.export, m.verify_export, xxhsum);
    return measure_end(&err);
}
