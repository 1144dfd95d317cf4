/*
 * Short runs of fm-train on a ranking of golden/odd-mixtral.
 */
#ifndef FM_TESTS_TRAINING_H
#define FM_TESTS_TRAINING_H

#include "lib/learn/rank.h"
#include "lib/learn/train.h"
#include "tests/unit/runs.h"
#include "tests/unit/test.h"

/* Setup of a group: write ranked.fm to the scratch directory. */
static inline int training_ranked(void **unused)
{
    (void)unused;
    struct runs r;
    struct fm_err err = {0};
    struct fm_rank_options options;
    struct fm_rank_report report = {0};
    fm_rank_defaults(&options);
    runs_init(&r, NULL, "ranked.fm");
    runs_tokens(&r, 40, 11);
    assert_ok(fm_rank(&r.run, &options, NULL, &report, &err));
    fm_rank_report_release(&report);
    return 0;
}

static inline struct fm_decimal training_decimal(const char *text)
{
    struct fm_decimal d;
    struct fm_err err = {0};
    assert_ok(fm_decimal_parse(&d, text, "", &err));
    return d;
}

/* Budgets from 0.1 to 0.5 in steps of 0.1; `in` and `out` are names in the scratch directory. */
static inline void training_init(struct runs *r, struct fm_train_options *o, const char *in,
                                 const char *out, const struct fm_method *method)
{
    fm_train_defaults(o);
    o->method = method;
    o->budget_step = (struct fm_decimal){1, 10};
    o->until = (struct fm_decimal){5, 10};
    o->steps = 30;
    o->lr = 0.2;
    o->prior = 1;
    o->around_sequences = 3;
    o->around_tokens = 0;
    runs_init(r, in, out);
    runs_tokens(r, 40, 11);
    r->run.inputs.batch = 4;
}

/* The caller releases the report. */
static inline void training_must(const struct runs *r, const struct fm_train_options *o,
                                 struct fm_train_report *report)
{
    struct fm_err err = {0};
    assert_ok(fm_train(&r->run, o, NULL, report, &err));
}

/* Stop after that many reports, and check that the state exists and the output does not. */
static inline void training_stop(struct runs *r, const struct fm_train_options *o, int reports)
{
    struct fm_err err = {0};
    struct fm_train_report report = {0};
    r->run.outputs.state = runs_path(r->state, "train.state");
    r->countdown = reports;
    unlink(r->run.outputs.path);
    assert_int_equal(fm_train(&r->run, o, NULL, &report, &err), FM_ESAVED);
    assert_int_equal(access(r->run.outputs.state, F_OK), 0);
    assert_int_equal(access(r->run.outputs.path, F_OK), -1);
    fm_train_report_release(&report);
    r->stop = 0;
}

/* Resume the stopped run, and check that its output `resumed` equals `straight`. */
static inline void training_go_on(const struct runs *r, const struct fm_train_options *o,
                                  const char *resumed, const char *straight)
{
    struct fm_train_report report = {0};
    training_must(r, o, &report);
    assert_true(report.resumed > 0);
    assert_int_equal(access(r->run.outputs.state, F_OK), -1);
    fm_train_report_release(&report);
    assert_true(runs_same(straight, resumed));
}

#endif
