/*
 * Output shared by several tools: the estimate of a --dry-run, and a family's held-out loss by
 * budget, as text and as JSON.
 */
#include "cmd/show.h"
#include "lib/base/units.h"

#include <assert.h>
#include <string.h>

#include "lib/learn/forecast.h"
#include "lib/masks/methods.h"
#include "lib/stage/budgets.h"

void fm_show_extra(const struct fm_result *r, const struct fm_extra *x, const char *what)
{
    char layers[FM_EXTRA_TEXT];
    if (x->tensors == 0)
        return;
    fm_extra_print(layers, x);
    unsigned long long tensors = x->tensors;
    if (fm_extra_named(x))
        fm_result_bytes(r, "extra", NULL, x->bytes, "in %llu tensors of other parts%s%s%s: %s",
                        tensors, *layers ? " (" : "", layers, *layers ? ")" : "", what);
    else
        fm_result_bytes(r, "extra", NULL, x->bytes,
                        "in %llu tensors of layer%s %s, for multi-token prediction%s: %s", tensors,
                        fm_extra_layers(x) > 1 ? "s" : "", layers,
                        fm_extra_parts(x) ? ", and of other parts" : "", what);
}

void fm_show_stored(const struct fm_result *r, const char *storage, uint64_t stored,
                    uint64_t written)
{
    if (!storage || !storage[0])
        return;
    fm_json_add_string(r->json, "storage", storage);
    fm_result_bytes(r, "stored", "bytes_stored", stored, "%s", storage);
    fm_result_bytes(r, "plain", "bytes_plain", written, "the same weights, decoded");
}

/* The time on more ranks like this one, as long as more ranks are faster. */
static void describe_ranks(const struct fm_result *r, const struct fm_estimate *p)
{
    static const int ranks[] = {2, 8, 32};
    double before = p->forecast.seconds_most;
    for (int i = 0; p->kinds && i < 3; i++) {
        double now = fm_forecast_ranks(p, ranks[i]);
        if (!(now < before))
            return;
        before = now;
        fm_result_time(r, "ranks", NULL, now, "on %d machines like this one (fm-mpi(7))", ranks[i]);
    }
}

/* The time here, as a range, and the rate that it was computed with. */
static void describe_time(const struct fm_result *r, const struct fm_forecast *f)
{
    char least[32], most[32], slower[32] = "", range[72];
    fm_units_time(least, f->seconds_least);
    fm_units_time(most, f->seconds_most);
    snprintf(range, sizeof range, strcmp(least, most) != 0 ? "%12s to %s" : "%12s", least, most);
    if (f->rate_most > 1.05 * f->rate_least)
        snprintf(slower, sizeof slower, "%.3g to ", f->rate_least * 1e-9);
    fm_result_word(r, "time", NULL, range, "at %s%.3g GFLOP/s in a short probe, %d thread%s",
                   slower, f->rate_most * 1e-9, f->threads, f->threads == 1 ? "" : "s");
    fm_json_add_double(r->json, "rate", f->rate_least);
    fm_json_add_double(r->json, "rate_most", f->rate_most);
    fm_json_add_double(r->json, "seconds", f->seconds_most);
    fm_json_add_double(r->json, "seconds_least", f->seconds_least);
}

/* The time here and on common machines, and what would halve it. */
static void describe_forecast(const struct fm_result *r, const struct fm_estimate *p)
{
    const struct fm_forecast *f = &p->forecast;
    static const int cores[] = {2, 16, 64};
    describe_time(r, f);
    for (int i = 0; f->ranks == 1 && i < 3; i++)
        fm_result_time(r, "machine", NULL, fm_forecast_cores(f, cores[i]), "on %d such cores",
                       cores[i]);
    if (f->ranks == 1)
        describe_ranks(r, p);
    if (!f->halved.options[0])
        return;
    const struct fm_result halved = {r->text, fm_json_add_object(r->json, "halved")};
    fm_json_add_string(halved.json, "options", f->halved.options);
    fm_result_time(&halved, "halved", "seconds", f->halved_seconds, "with %s", f->halved.options);
}

/* The number of leaves (lib/engine/sweep.h) of the kind of sweep with the most FLOPs. */
static int leaves_of(const struct fm_estimate *p)
{
    assert(p->kinds > 0);
    int most = 0;
    for (int i = 1; i < p->kinds; i++)
        most = p->kind[i].flops > p->kind[most].flops ? i : most;
    return p->kind[most].leaves;
}

static void describe_separator(const struct fm_result *r, const struct fm_separator *s)
{
    if (s->id >= 0) {
        fm_result_count(r, "separator", "separator", (uint64_t)s->id, "after each document, %s",
                        s->token);
        fm_json_add_string(r->json, "separator_token", s->token);
        return;
    }
    fm_json_add_null(r->json, "separator");
    fm_result_word(r, "separator", NULL, "none", "%s",
                   s->unknown ? "because no file has an end-of-sequence token"
                              : "after each document");
}

static void describe_read(const struct fm_result *r, const struct fm_estimate *p)
{
    char rate[32], slow[80] = "";
    if (p->forecast.seconds_most >= 1) {
        fm_units_bytes(rate, (uint64_t)((double)p->read / p->forecast.seconds_most));
        snprintf(slow, sizeof slow, "; storage slower than %s/s makes the time longer", rate);
    }
    fm_result_bytes(r, "read", "read", p->read, "weights read%s", slow);
}

static void describe_work(const struct fm_result *r, const struct fm_estimate *p)
{
    fm_result_count(r, "sweeps", "sweeps", p->sweeps, "over the model");
    fm_result_real(r, "flops", "flops", p->flops, 3, "in matrix products, %s", p->precision);
}

/* The cost of a measurement. */
static void describe_cost(const struct fm_result *r, const struct fm_estimate *p)
{
    fm_json_add_bool(r->json, "dry_run", 1);
    fm_result_bytes(r, "memory", "memory", p->memory, "resident, at most");
    fm_result_bytes(r, "spill", "spill", p->spill, "temporary files");
    describe_read(r, p);
    describe_work(r, p);
    describe_forecast(r, p);
}

static void describe_tokens(const struct fm_result *r, const struct fm_estimate *p)
{
    if (p->held) {
        fm_json_add_uint(r->json, "tokens_held", p->held);
        fm_result_count(r, "tokens", "tokens_used", p->used, "of %llu in the files are used",
                        (unsigned long long)p->held);
    }
    fm_result_count(r, "held out", "held_out", (uint64_t)p->evaluated,
                    "sequence%s of %d tokens, to measure quality on", p->evaluated == 1 ? "" : "s",
                    p->evaluated_len);
    fm_json_add_uint(r->json, "held_out_seq_len", (uint64_t)p->evaluated_len);
    if (p->exact) {
        fm_result_count(r, "longest", "longest", (uint64_t)p->longest,
                        "tokens in a sequence at most, %s", p->exact);
        fm_json_add_string(r->json, "longest_why", p->exact);
    }
    if (p->text)
        describe_separator(r, &p->separator);
}

/* Memory, and how little suffices, if that is less than what the run uses; disk space. */
static void describe_space(const struct fm_result *r, const struct fm_estimate *p)
{
    char option[32];
    /* The bundle, and one export at full width: both hold the weights unchanged, or decoded. */
    uint64_t later = 2 * (p->written > p->stored ? p->written : p->stored);
    fm_result_bytes(r, "memory", "memory", p->memory, "resident, at most");
    fm_units_option(option, p->enough);
    if (p->enough)
        fm_json_add_uint(r->json, "memory_enough", p->enough);
    if (p->enough && p->enough < p->memory)
        fm_result_bytes(r, "", NULL, p->enough,
                        "is enough: --memory %s, %.0f %% more operations than with all", option,
                        100 * p->enough_more);
    fm_result_bytes(r, "spill", "spill", p->spill, "temporary files");
    describe_read(r, p);
    fm_show_stored(r, p->storage, p->stored, p->written);
    if (p->codes[0]) {
        fm_json_add_string(r->json, "codes", p->codes);
        fm_result_word(r, "codes", NULL, "", "%s", p->codes);
    }
    fm_result_bytes(r, "output", "output", p->disk, "written");
    if (p->state)
        fm_result_bytes(r, "state", "state", p->state,
                        "state file; twice that while it is replaced");
    fm_result_bytes(r, "later", "later", later,
                    "at most, estimated: fm-pack's bundle and one export of it");
}

static void describe_carried(const struct fm_result *r, const struct fm_estimate *p)
{
    cJSON *carried = p->carried_count ? fm_json_add_array(r->json, "carried") : NULL;
    for (int i = 0; i < p->carried_count; i++) {
        const struct fm_result file = {r->text, fm_json_add_object(carried, NULL)};
        fm_json_add_string(file.json, "name", p->carried[i].name);
        fm_result_bytes(&file, "carried", "bytes", p->carried[i].bytes, "%s", p->carried[i].name);
    }
    cJSON *left = p->left_count ? fm_json_add_array(r->json, "left_out") : NULL;
    for (int i = 0; i < p->left_count; i++) {
        fm_json_add_string(left, NULL, p->left[i]);
        fm_result_word(r, "left out", NULL, "", "%s", p->left[i]);
    }
    if (p->left_more)
        fm_result_word(r, "left out", NULL, "", "and %d more", p->left_more);
}

static void describe_estimate(const struct fm_result *r, const void *self)
{
    const struct fm_estimate *p = self;
    const struct fm_forecast *f = &p->forecast;
    fm_json_add_bool(r->json, "dry_run", 1);
    if (p->method)
        fm_result_word(r, "method", "method", p->method, "makes masks");
    if (p->beyond > 0) {
        fm_result_real(r, "budget", "budget_most", p->reach, -4,
                       "is the largest that these options can reach");
        fm_json_add_double(r->json, "budget_beyond", p->beyond);
    }
    describe_tokens(r, p);
    describe_space(r, p);
    describe_carried(r, p);
    describe_work(r, p);
    fm_json_add_string(r->json, "precision", p->precision);
    fm_json_add_uint(r->json, "tokens", p->tokens);
    if (p->kinds)
        fm_result_count(r, "leaves", "leaves", (uint64_t)leaves_of(p),
                        "in a sweep; at most as many ranks can share it (fm-mpi(7))");
    if (f->ranks > 1) {
        fm_json_add_uint(r->json, "ranks", (uint64_t)f->ranks);
        fm_result_count(r, "ranks", "ranks_working", (uint64_t)f->working,
                        "of %d have work in every sweep%s", f->ranks,
                        f->working < f->ranks ? "; give more --batch, or fewer ranks" : "");
    }
    describe_forecast(r, p);
}

/* Work of each rank, if there are several. */
static void add_ranks(cJSON *json, const struct fm_comm *comm)
{
    const struct fm_tally *all = fm_comm_tallies(comm);
    if (!all)
        return;
    cJSON *list = fm_json_add_array(json, "ranks");
    for (int r = 0; r < fm_comm_size(comm); r++) {
        cJSON *o = fm_json_add_object(list, NULL);
        fm_json_add_uint(o, "rank", (uint64_t)r);
        fm_json_add_string(o, "host", fm_comm_host(comm, r));
        fm_json_add_uint(o, "leaves", all[r].leaves);
        fm_json_add_double(o, "seconds_computing", all[r].computing);
        fm_json_add_double(o, "seconds_waiting", all[r].waiting);
        fm_json_add_double(o, "seconds_reading", all[r].reading);
    }
}

int fm_show(void *self, struct fm_err *err)
{
    const struct fm_shown *s = self;
    struct fm_cli_text text;
    if (fm_cli_text_open(&text, err))
        return err->code;
    const struct fm_result result = {text.out, fm_result_begin(s->kind)};
    s->describe(&result, s->self);
    add_ranks(result.json, s->cli->run.machine.comm);
    if (s->cost)
        describe_cost(&result, s->cost);
    return fm_cli_result(s->cli, &text, result.json, err);
}

int fm_show_begin(struct fm_show_run *s, const struct fm_cli *cli,
                  void (*describe)(const struct fm_result *r, const void *report),
                  const void *report, struct fm_err *err)
{
    *s = (struct fm_show_run){.run = cli->run,
                              .dry = cli->dry_run ? &s->estimate : NULL,
                              .shown = {cli, cli->tool, describe, report, NULL}};
    s->run.announce = (struct fm_announce){fm_show, &s->shown};
    bool writes = !cli->dry_run && fm_comm_rank(cli->run.machine.comm) == 0;
    return writes ? fm_run_check_stream(&s->run.outputs, err) : FM_OK;
}

int fm_show_end(struct fm_show_run *s, int rc, struct fm_err *err)
{
    const struct fm_cli *cli = s->shown.cli;
    struct fm_shown forecast = {cli, cli->tool, describe_estimate, &s->estimate, NULL};
    bool speaks = s->dry && fm_comm_rank(cli->run.machine.comm) == 0;
    return !rc && speaks ? fm_show(&forecast, err) : rc;
}

/* The loss on all held-out text (kind -1), or on one kind. */
static double loss_of(const struct fm_quality *q, int kind)
{
    return kind < 0 ? q->ce : q->kind[kind];
}

static void show_losses(FILE *out, const struct fm_masks *masks, const struct fm_quality *after,
                        const char *made, int kind)
{
    int last = -1;
    char begin[64] = "held out CE ";
    if (kind >= 0)
        snprintf(begin, sizeof begin, "  %s CE ", masks->kinds.name[kind]);
    for (uint64_t tenth = 0; tenth <= 8; tenth += 2) {
        struct fm_decimal at = {tenth, 10};
        int b = fm_masks_nearest(masks, &at);
        if (b <= last || masks->mask[b].quality.positions == 0)
            continue;
        fprintf(out, "%s%.4f", begin, loss_of(&masks->mask[b].quality, kind));
        if (after)
            fprintf(out, " -> %.4f", loss_of(&after[b], kind));
        fprintf(out, " at %.3f", fm_masks_budget(masks, b));
        snprintf(begin, sizeof begin, ", ");
        last = b;
    }
    if (last >= 0)
        fprintf(out, after ? ", without -> with the %s\n" : "\n", made);
}

static cJSON *list_masks(const struct fm_masks *masks, const struct fm_quality *after)
{
    cJSON *list = cJSON_CreateArray();
    for (int b = 0; b < masks->count; b++) {
        const struct fm_mask *mask = &masks->mask[b];
        cJSON *o = fm_json_add_object(list, NULL);
        fm_json_add_uint(o, "index", (uint64_t)b);
        fm_json_add_uint(o, "removed", mask->removed);
        fm_json_add_double(o, "budget", fm_masks_budget(masks, b));
        fm_json_add_string(o, "method", mask->method->name);
        fm_json_add_uint(o, "step", (uint64_t)mask->step);
        fm_json_add(o, "quality", fm_budgets_quality(&mask->quality, &masks->kinds));
        if (after)
            fm_json_add(o, "recovered", fm_budgets_quality(&after[b], &masks->kinds));
    }
    return list;
}

void fm_show_family(const struct fm_result *r, const struct fm_masks *masks,
                    const struct fm_quality *after, const char *made)
{
    for (int kind = -1; kind < masks->kinds.count; kind++)
        show_losses(r->text, masks, after, made, kind);
    fm_json_add(r->json, "budgets", list_masks(masks, after));
}
