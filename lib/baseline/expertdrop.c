/*
 * A visitor of the forward sweep sums REAP's score of each micro-batch in its own slot; slots are
 * added in order, so the number of threads does not change the result.
 */
#include "lib/baseline/expertdrop.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/base/rng.h"
#include "lib/block/pass.h"
#include "lib/block/scored.h"
#include "lib/learn/task.h"

#define GROUP_BATCHES 16 /* sequences computed per pass over the weights */

struct norms {
    const struct fm_task *task;
    double *slot; /* (slots, E) */
    double *sum;  /* (M, E) */
};

static void add_expert(void *self, const struct fm_expert_view *v)
{
    struct norms *s = self;
    const struct fm_ops *ops = s->task->ops;
    const struct fm_config *c = s->task->config;
    struct fm_mark mark = fm_scratch_mark();
    float *squares = fm_scratch_floats((size_t)v->n);
    double sum = 0;
    ops->dot_rows(squares, fm_f32(v->y), fm_f32(v->y), v->n, c->H, c->H);
    for (int r = 0; r < v->n; r++)
        sum += (double)v->weight[r] * sqrt((double)squares[r]);
    s->slot[(size_t)v->slot * (size_t)c->E + (size_t)v->expert] = sum;
    fm_scratch_release(mark);
}

static void add_batch(void *self, int m, int batch, int lane, int slot)
{
    struct norms *s = self;
    size_t E = (size_t)s->task->config->E;
    (void)batch, (void)lane;
    for (size_t e = 0; e < E; e++) {
        s->sum[(size_t)m * E + e] += s->slot[(size_t)slot * E + e];
        s->slot[(size_t)slot * E + e] = 0;
    }
}

/* Add up the norms of sequences [at, at + n), and set counts (M, E) to the tokens of each
 * expert. */
static int run_group(struct norms *s, struct fm_sweep *sweep, int32_t *ids, int at, int n,
                     bool outputs, int64_t *counts, struct fm_err *err)
{
    struct fm_lane lane = {.teacher = -1, .ce = 1};
    struct fm_visitor visitor = {
        .self = s, .forward = true, .expert = add_expert, .commit = add_batch};
    int rc = fm_calib_read(&s->task->calib, at, n, ids, err);
    return rc ? rc
              : fm_task_run(s->task, sweep, ids, n, 1, &lane, 1, outputs ? &visitor : NULL, counts,
                            err);
}

static int score_all(struct norms *s, struct fm_task *task, int64_t *tokens, bool outputs,
                     struct fm_err *err)
{
    size_t X = (size_t)task->config->M * (size_t)task->config->E;
    int group = task->calib.count < GROUP_BATCHES ? task->calib.count : GROUP_BATCHES;
    struct fm_sweep *sweep = NULL;
    int rc = fm_task_sweep(&sweep, task, group, task->calib.T, 1, task->memory, err);
    if (rc)
        return rc;
    int32_t *ids = fm_alloc((size_t)group, (size_t)task->calib.T * sizeof *ids, "tokens", err);
    int64_t *counts = fm_alloc(X, sizeof *counts, "token counts", err);
    s->slot = fm_alloc((size_t)fm_sweep_slots_forward(sweep) * (size_t)task->config->E,
                       sizeof *s->slot, "norms", err);
    rc = ids && counts && s->slot ? FM_OK : FM_ENOMEM;
    for (int at = 0, n; !rc && at < task->calib.count; at += n) {
        n = task->calib.count - at < group ? task->calib.count - at : group;
        fm_run_report(task->run, "experts", (uint64_t)at, (uint64_t)task->calib.count, "sequences");
        task->units = n;
        rc = run_group(s, sweep, ids, at, n, outputs, counts, err);
        for (size_t x = 0; !rc && x < X; x++)
            tokens[x] += counts[x];
    }
    free(ids);
    free(counts);
    free(s->slot);
    fm_sweep_free(sweep);
    return rc;
}

int fm_expertdrop_score(double *score, const struct fm_run_options *run, bool outputs,
                        struct fm_err *err)
{
    struct fm_task task;
    struct norms s = {.task = &task, .sum = score};
    int64_t *tokens = NULL;
    size_t X = 0;
    int rc = fm_task_open_inputs(&task, run, false, err);
    if (!rc) {
        X = (size_t)task.config->M * (size_t)task.config->E;
        tokens = fm_alloc(X, sizeof *tokens, "token counts", err);
        rc = tokens ? FM_OK : FM_ENOMEM;
    }
    for (size_t x = 0; x < X; x++)
        score[x] = 0;
    if (!rc)
        rc = score_all(&s, &task, tokens, outputs, err);
    for (size_t x = 0; !rc && x < X; x++) {
        score[x] = !outputs ? (double)tokens[x] : tokens[x] ? score[x] / (double)tokens[x] : 0;
        if (!isfinite(score[x]))
            rc = fm_fail(err, FM_EFORMAT, "layer %d: the outputs of expert %d are not finite",
                         task.config->moe[x / (size_t)task.config->E],
                         (int)(x % (size_t)task.config->E));
    }
    free(tokens);
    fm_task_close(&task);
    return rc;
}

void fm_expertdrop_draw(double *score, const struct fm_config *c, uint64_t seed, int n)
{
    uint64_t X = (uint64_t)c->M * (uint64_t)c->E;
    for (uint64_t x = 0; x < X; x++)
        score[x] = fm_rng_uniform(seed, FM_STREAM_BENCH, (uint64_t)n * X + x);
}

static struct fm_route_rule groups_of(const struct fm_config *c)
{
    struct fm_route_rule one = {.groups = 1, .topk_group = 1, .group_sum = 1};
    return c->router == &fm_scored ? c->scored->rule : one;
}

/* The groups that are selected for a token must together have K experts, and each must have
 * group_sum experts, whose scores are added to give the group's score. */
int fm_expertdrop_most(const struct fm_config *c, int *step)
{
    const struct fm_route_rule r = groups_of(c);
    int kept = r.groups > 1 ? r.topk_group : 1, least = (c->K + kept - 1) / kept;
    if (r.groups > 1 && least < r.group_sum)
        least = r.group_sum;
    *step = r.groups;
    return r.groups * (c->E / r.groups - least);
}

void fm_expertdrop_close(float *closed, const double *score, const struct fm_config *c, int count)
{
    int groups = groups_of(c).groups, size = c->E / groups;
    assert(count % groups == 0);
    for (int g = 0; g < c->M * groups; g++) {
        const double *s = score + (size_t)g * (size_t)size;
        float *to = closed + (size_t)g * (size_t)size;
        for (int e = 0; e < size; e++)
            to[e] = 0;
        for (int i = 0; i < count / groups; i++) {
            int worst = -1;
            for (int e = 0; e < size; e++)
                if (to[e] == 0 && (worst < 0 || s[e] <= s[worst]))
                    worst = e;
            to[worst] = FM_PASS_CLOSED;
        }
    }
}
