/*
 * Families grow during a run, so the state file's arrays say how long they were, and
 * reading allocates them first.  Widths from the file are checked to be actions: the file is ours,
 * but a disk is not to be trusted with an index into an array.
 */
#include "lib/learn/trainstate.h"

#include <stdlib.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/stage/budgets.h"

#define TOOL "fm-train"

static void add_item(struct fm_journal_item *item, size_t *items, const char *name,
                     enum fm_dtype dtype, uint64_t count, void *data)
{
    item[(*items)++] =
        (struct fm_journal_item){.name = name, .dtype = dtype, .count = count, .data = data};
}

/* The arrays of one family as the state file has them. */
struct packed {
    int64_t *steps;  /* (count) */
    double *quality; /* (count, QUALITIES) */
};

enum { CE, KL, AGREE, POSITIONS, METHOD, QUALITIES };

static int pack_family(struct packed *p, const struct fm_masks *f, struct fm_err *err)
{
    p->steps = fm_alloc((size_t)f->count, sizeof *p->steps, "state", err);
    p->quality = fm_alloc((size_t)f->count, QUALITIES * sizeof *p->quality, "state", err);
    if (!p->steps || !p->quality)
        return FM_ENOMEM;
    for (int b = 0; b < f->count; b++) {
        const struct fm_quality *q = &f->mask[b].quality;
        double *to = p->quality + (size_t)b * QUALITIES;
        p->steps[b] = f->mask[b].step;
        to[CE] = q->ce;
        to[KL] = q->kl;
        to[AGREE] = q->agree;
        to[POSITIONS] = (double)q->positions;
        to[METHOD] = f->mask[b].method;
    }
    return FM_OK;
}

static void unpack_family(struct fm_masks *f, const struct packed *p)
{
    for (int b = 0; b < f->count; b++) {
        const double *q = p->quality + (size_t)b * QUALITIES;
        f->mask[b].step = (int)p->steps[b];
        f->mask[b].method = (enum fm_method)q[METHOD];
        f->mask[b].removed = fm_masks_removed(f, fm_masks_widths(f, b));
        f->mask[b].quality =
            (struct fm_quality){q[CE], q[KL], q[AGREE], (int64_t)q[POSITIONS], false};
    }
}

static const char *const steps[FM_TRAIN_FAMILIES] = {"made.steps", "result.steps"};

static size_t list_state(struct fm_journal_item *item, struct fm_trainer *t,
                         struct packed packed[FM_TRAIN_FAMILIES])
{
    static const char *const widths[] = {"made.widths", "result.widths"};
    static const char *const quality[] = {"made.quality", "result.quality"};
    struct fm_learn *n = &t->learn;
    size_t items = 0;
    uint64_t X = (uint64_t)t->task.config->M * (uint64_t)t->task.config->E;
    uint64_t logits = (uint64_t)n->logits.X * (uint64_t)t->actions.count;
    if (t->learns) {
        add_item(item, &items, "taken", FM_I64, 1, &n->taken);
        add_item(item, &items, "lambda", FM_F64, 1, &n->lambda);
        add_item(item, &items, "alpha", FM_F64, logits, n->logits.alpha);
        add_item(item, &items, "m", FM_F64, logits, n->logits.m);
        add_item(item, &items, "v", FM_F64, logits, n->logits.v);
        add_item(item, &items, "q", FM_F64, X, n->q);
    }
    if (t->worth.X > 0) {
        uint64_t values = 2 * (uint64_t)t->worth.X * (uint64_t)t->actions.count;
        add_item(item, &items, "worth", FM_F64, values, t->worth.value);
        add_item(item, &items, "worth.scale", FM_F64, 2, t->worth.scale);
        add_item(item, &items, "refined", FM_I64, 1, &t->refined);
        if (t->options->refine > 0)
            add_item(item, &items, "idle", FM_I64, 1, &t->idle);
    }
    for (int i = 0; i < FM_TRAIN_FAMILIES; i++) {
        uint64_t count = (uint64_t)t->masks[i].count;
        if (count == 0)
            continue;
        add_item(item, &items, widths[i], FM_U32, count * X, t->masks[i].widths);
        add_item(item, &items, steps[i], FM_I64, count, packed[i].steps);
        add_item(item, &items, quality[i], FM_F64, count * QUALITIES, packed[i].quality);
    }
    return items;
}

int fm_trainstate_steps(const struct fm_trainer *t)
{
    bool walked = t->walks || t->exchanges;
    return walked ? t->masks[FM_TRAIN_MADE].count - 1 : (int)t->learn.taken;
}

int fm_trainstate_save_if_due(struct fm_trainer *t, struct fm_err *err)
{
    bool due = false;
    int rc = fm_task_due(&t->task, &t->clock, &due, err);
    return !rc && due ? fm_trainstate_save(t, err) : rc;
}

int fm_trainstate_save(struct fm_trainer *t, struct fm_err *err)
{
    struct fm_journal_item item[FM_JOURNAL_ITEMS_MAX];
    struct packed packed[FM_TRAIN_FAMILIES] = {{0}};
    double began = fm_clock_now();
    int rc = FM_OK;
    for (int i = 0; !rc && i < FM_TRAIN_FAMILIES; i++)
        rc = t->masks[i].count ? pack_family(&packed[i], &t->masks[i], err) : FM_OK;
    if (!rc)
        rc = fm_journal_save(t->task.run->comm, t->task.run->state, TOOL, &t->params, item,
                             list_state(item, t, packed), err);
    for (int i = 0; i < FM_TRAIN_FAMILIES; i++) {
        free(packed[i].steps);
        free(packed[i].quality);
    }
    fm_journal_saved(&t->clock, began);
    return rc;
}

/* Grow the families to hold what the state file has. */
static int size_families(struct fm_trainer *t, const struct fm_journal *j, struct fm_err *err)
{
    for (int i = 0; i < FM_TRAIN_FAMILIES; i++) {
        struct fm_masks *f = &t->masks[i];
        uint64_t count = fm_journal_count(j, steps[i]);
        /* The result comes last. */
        bool expected = i == FM_TRAIN_RESULT ? count > 0 : f->count > 0;
        if ((count > 0) != expected || count > FM_BUDGETS_MAX)
            return fm_fail(err, FM_EFORMAT, "state file '%s' holds %llu masks", t->task.run->state,
                           (unsigned long long)count);
        if (count == 0)
            continue;
        /* Copies of the full mask make space for the arrays that are read. */
        struct fm_mask full = f->count ? f->mask[0] : (struct fm_mask){0};
        if (fm_masks_reserve(f, (size_t)count, err))
            return err->code;
        for (uint64_t b = (uint64_t)f->count; b < count; b++)
            f->mask[b] = full;
        f->count = (int)count;
    }
    return FM_OK;
}

static int check_widths(const struct fm_trainer *t, struct fm_err *err)
{
    size_t X = (size_t)t->task.config->M * (size_t)t->task.config->E;
    for (int i = 0; i < FM_TRAIN_FAMILIES; i++) {
        for (size_t x = 0; x < X * (size_t)t->masks[i].count; x++) {
            if (fm_actions_find(&t->actions, t->masks[i].widths[x]) < 0)
                return fm_fail(err, FM_EFORMAT,
                               "state file '%s': width %u is not in the action set",
                               t->task.run->state, t->masks[i].widths[x]);
        }
    }
    return FM_OK;
}

static int check_methods(const struct fm_trainer *t, const struct packed *p, int count,
                         struct fm_err *err)
{
    for (int b = 0; b < count; b++) {
        double method = p->quality[(size_t)b * QUALITIES + METHOD];
        if (!(method >= 0 && method < FM_METHODS))
            return fm_fail(err, FM_EFORMAT, "state file '%s': mask %d is of method %g",
                           t->task.run->state, b, method);
    }
    return FM_OK;
}

static int read_state(struct fm_trainer *t, const struct fm_journal *j, struct fm_err *err)
{
    struct fm_journal_item item[FM_JOURNAL_ITEMS_MAX];
    struct packed packed[FM_TRAIN_FAMILIES] = {{0}};
    int rc = size_families(t, j, err);
    for (int i = 0; !rc && i < FM_TRAIN_FAMILIES; i++)
        rc = t->masks[i].count ? pack_family(&packed[i], &t->masks[i], err) : FM_OK;
    if (!rc)
        rc = fm_journal_read(j, item, list_state(item, t, packed), err);
    if (!rc)
        rc = check_widths(t, err);
    for (int i = 0; i < FM_TRAIN_FAMILIES; i++) {
        if (!rc)
            rc = check_methods(t, &packed[i], t->masks[i].count, err);
        if (!rc)
            unpack_family(&t->masks[i], &packed[i]);
        free(packed[i].steps);
        free(packed[i].quality);
    }
    if (rc)
        return rc;
    if (t->learns)
        fm_logits_refresh(&t->learn.logits);
    t->resumed = fm_trainstate_steps(t);
    return FM_OK;
}

int fm_trainstate_resume(struct fm_trainer *t, struct fm_err *err)
{
    struct fm_journal j;
    bool found;
    const struct fm_run_options *run = t->task.run;
    int rc = fm_journal_open(&j, run->comm, run->state, TOOL, &t->params, &found, err);
    if (!rc && found) {
        rc = read_state(t, &j, err);
        fm_journal_close(&j);
    }
    return rc;
}
