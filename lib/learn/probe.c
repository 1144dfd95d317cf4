/* Gradients are summed over one sequence at a time, because the sums are squared per sequence. */
#include "lib/learn/probe.h"

#include <assert.h>
#include <stdlib.h>

#include "lib/base/mem.h"

/* A sweep and its buffers. */
struct sweeping {
    int batches, lanes;
    int32_t *ids;
    struct fm_batch *batch;
    struct fm_measure *measure; /* (batches, lanes) */
    struct fm_sweep *sweep;
};

static void close_sweeping(struct sweeping *s)
{
    fm_sweep_free(s->sweep);
    free(s->ids);
    free(s->batch);
    free(s->measure);
}

static int open_sweeping(struct sweeping *s, const struct fm_probe *p, int masks,
                         struct fm_err *err)
{
    size_t T = (size_t)p->task->calib.T;
    *s = (struct sweeping){.batches = p->count, .lanes = masks + 1};
    assert(s->lanes <= FM_LANES_MAX);
    s->ids = fm_alloc((size_t)p->count * T, sizeof *s->ids, "sequences", err);
    s->batch = fm_alloc((size_t)s->batches, sizeof *s->batch, "batches", err);
    s->measure =
        fm_alloc((size_t)s->batches * (size_t)s->lanes, sizeof *s->measure, "measures", err);
    if (!s->ids || !s->batch || !s->measure)
        return FM_ENOMEM;
    for (int i = 0; i < s->batches; i++)
        s->batch[i] = (struct fm_batch){s->ids + (size_t)i * T, 1, (int)T};
    int rc = fm_task_draw(p->task, s->ids, p->at, p->count, err);
    return rc ? rc
              : fm_task_sweep(&s->sweep, p->task, s->batches, (int)T, s->lanes, p->task->memory,
                              err);
}

/* Fill the lanes: the teacher, and one lane for each mask. */
static void fill_lanes(struct fm_lane *lane, const struct fm_probe *p, const uint32_t *widths,
                       int masks)
{
    size_t X = (size_t)p->task->config->M * (size_t)p->task->config->E;
    lane[0] = (struct fm_lane){.teacher = -1, .ce = 1};
    for (int i = 0; i < masks; i++)
        lane[i + 1] = (struct fm_lane){
            .widths = widths + (size_t)i * X, .backward = true, .teacher = 0, .kl = 1};
}

int fm_probe_gradients(const struct fm_probe *p, const struct fm_actions *actions,
                       const uint32_t *widths, int masks, struct fm_maskgrad *grad,
                       struct fm_err *err)
{
    struct fm_lane lane[FM_LANES_MAX];
    struct sweeping s;
    int rc = open_sweeping(&s, p, masks, err);
    if (!rc)
        rc = fm_maskgrad_init(grad, p->task->ops, actions, p->task->config, masks, s.sweep, true,
                              err);
    if (!rc) {
        fill_lanes(lane, p, widths, masks);
        fm_maskgrad_begin(grad, s.batches);
        struct fm_visitor visitor = fm_maskgrad_visitor(grad);
        rc = fm_sweep_run(s.sweep, s.batch, s.batches, lane, s.lanes, &visitor, s.measure, NULL,
                          err);
    }
    close_sweeping(&s);
    return rc;
}
