/* Options are the tools' defaults, except those that the comparison fixes. */
#include "lib/baseline/methods.h"

#include "lib/learn/rank.h"
#include "lib/learn/recover.h"
#include "lib/learn/train.h"

static struct fm_run_options from_to(const struct fm_run_options *run, const char *from,
                                     const char *to)
{
    struct fm_run_options own = *run;
    own.inputs.eval_tokens[0] = own.inputs.eval_texts[0] = NULL;
    own.inputs.stream = from;
    own.outputs.path = to;
    own.outputs.force = true;
    own.outputs.state = NULL;
    return own;
}

int fm_methods_rank(const struct fm_run_options *run, const char *to, enum fm_criterion criterion,
                    struct fm_spent *spent, struct fm_err *err)
{
    struct fm_run_options own = from_to(run, NULL, to);
    struct fm_rank_options options;
    struct fm_rank_report report = {0};
    fm_rank_defaults(&options);
    options.criterion = criterion;
    fm_spent_begin(spent);
    int rc = fm_rank(&own, &options, &report, err);
    fm_spent_end(spent);
    fm_rank_report_release(&report);
    return rc;
}

int fm_methods_train(const struct fm_run_options *run, const char *from, const char *to,
                     enum fm_method method, const char *until, int steps, struct fm_spent *spent,
                     struct fm_err *err)
{
    struct fm_run_options own = from_to(run, from, to);
    struct fm_train_options options;
    struct fm_train_report report = {0};
    fm_train_defaults(&options);
    options.method = method;
    options.until = until;
    options.steps = steps ? steps : options.steps;
    fm_spent_begin(spent);
    int rc = fm_train(&own, &options, &report, err);
    fm_spent_end(spent);
    fm_train_report_release(&report);
    return rc;
}

int fm_methods_recover(const struct fm_run_options *run, const char *from, const char *to,
                       int steps, struct fm_spent *spent, struct fm_err *err)
{
    struct fm_run_options own = from_to(run, from, to);
    struct fm_recover_options options;
    struct fm_recover_report report = {0};
    fm_recover_defaults(&options, FM_RECOVER_EXPERTS);
    options.steps = steps ? steps : options.steps;
    fm_spent_begin(spent);
    int rc = fm_recover(&own, &options, &report, err);
    fm_spent_end(spent);
    fm_recover_report_release(&report);
    return rc;
}

enum fm_method fm_methods_usual(void)
{
    struct fm_train_options options;
    fm_train_defaults(&options);
    return options.method;
}
