/*
 * Output shared by several tools: the estimate of a --dry-run, and a family's held-out loss by
 * budget, as text and as JSON.
 */
#include "cmd/show.h"
#include "lib/base/printable.h"
#include "lib/base/units.h"

#include <inttypes.h>
#include <string.h>

#include "lib/learn/forecast.h"
#include "lib/masks/methods.h"
#include "lib/run/report.h"
#include "lib/stage/budgets.h"

void fm_show_bytes(FILE *out, const char *name, uint64_t bytes, const char *what)
{
    char text[32];
    fm_units_bytes(text, bytes);
    fprintf(out, "%-9s%12s%s%s\n", name, text, *what ? "  " : "", what);
}

void fm_show_extra(FILE *out, const struct fm_extra *x, const char *what)
{
    char bytes[32], layers[FM_EXTRA_TEXT];
    if (x->tensors == 0)
        return;
    fm_units_bytes(bytes, x->bytes);
    fm_extra_print(layers, x);
    fprintf(out, "%-9s%12s  in %llu tensors of ", "extra", bytes, (unsigned long long)x->tensors);
    if (fm_extra_named(x))
        fprintf(out, "other parts%s%s%s: %s\n", *layers ? " (" : "", layers, *layers ? ")" : "",
                what);
    else
        fprintf(out, "layer%s %s, for multi-token prediction: %s\n",
                fm_extra_layers(x) > 1 ? "s" : "", layers, what);
}

void fm_show_stored(FILE *out, const char *storage, uint64_t stored, uint64_t written)
{
    if (!storage || !storage[0])
        return;
    fm_show_bytes(out, "stored", stored, storage);
    fm_show_bytes(out, "plain", written, "the same weights, decoded");
}

void fm_show_stored_json(cJSON *o, const char *storage, uint64_t stored, uint64_t written)
{
    if (!storage || !storage[0])
        return;
    fm_json_add_string(o, "storage", storage);
    fm_json_add_uint(o, "bytes_stored", stored);
    fm_json_add_uint(o, "bytes_plain", written);
}

/* Print the time on more ranks like this one, as long as more ranks are faster. */
static void ranks_text(FILE *out, const struct fm_estimate *p)
{
    static const int ranks[] = {2, 8, 32};
    double before = p->forecast.seconds_most;
    char most[32];
    for (int i = 0; p->kinds && i < 3; i++) {
        double now = fm_forecast_ranks(p, ranks[i]);
        if (!(now < before))
            return;
        before = now;
        fm_units_time(most, now);
        fprintf(out, "%-9s%12s  on %d machines like this one (fm-mpi(7))\n", "ranks", most,
                ranks[i]);
    }
}

/* Print the time here and on common machines, and what would halve it. */
static void forecast_text(FILE *out, const struct fm_estimate *p)
{
    const struct fm_forecast *f = &p->forecast;
    static const int cores[] = {2, 16, 64};
    char least[32], most[32];
    fm_units_time(least, f->seconds_least);
    fm_units_time(most, f->seconds_most);
    bool range = strcmp(least, most) != 0;
    fprintf(out, "%-9s%12s%s%s  at ", "time", range ? least : most, range ? " to " : "",
            range ? most : "");
    if (f->rate_most > 1.05 * f->rate_least)
        fprintf(out, "%.3g to ", f->rate_least * 1e-9);
    fprintf(out, "%.3g GFLOP/s in a short probe, %d thread%s\n", f->rate_most * 1e-9, f->threads,
            f->threads == 1 ? "" : "s");
    for (int i = 0; f->ranks == 1 && i < 3; i++) {
        fm_units_time(most, fm_forecast_cores(f, cores[i]));
        fprintf(out, "%-9s%12s  on %d such cores\n", "machine", most, cores[i]);
    }
    if (f->ranks == 1)
        ranks_text(out, p);
    if (!f->halved.options[0])
        return;
    fm_units_time(most, f->halved_seconds);
    fprintf(out, "%-9s%12s  with %s\n", "halved", most, f->halved.options);
}

/* The number of leaves (lib/engine/sweep.h) of the kind of sweep with the most FLOPs. */
static int leaves_of(const struct fm_estimate *p)
{
    int most = 0;
    for (int i = 1; i < p->kinds; i++)
        most = p->kind[i].flops > p->kind[most].flops ? i : most;
    return p->kind[most].leaves;
}

static void separator_text(FILE *out, const struct fm_separator *s)
{
    if (s->id >= 0)
        fprintf(out, "%-9s%12" PRId32 "  after each document, %s\n", "separator", s->id, s->token);
    else
        fprintf(out, "%-9s%12s  %s\n", "separator", "none",
                s->unknown ? "because no file has an end-of-sequence token"
                           : "after each document");
}

/* The disk space for the bundle and for one export at full width.  Both hold the weights unchanged,
 * or decoded. */
static uint64_t later(const struct fm_estimate *p)
{
    return 2 * (p->written > p->stored ? p->written : p->stored);
}

static void read_text(FILE *out, const struct fm_estimate *p)
{
    char rate[32], what[112] = "weights read";
    if (p->forecast.seconds_most >= 1) {
        fm_units_bytes(rate, (uint64_t)((double)p->read / p->forecast.seconds_most));
        snprintf(what, sizeof what, "weights read; storage slower than %s/s makes the time longer",
                 rate);
    }
    fm_show_bytes(out, "read", p->read, what);
}

void fm_show_cost(FILE *out, const struct fm_estimate *p)
{
    fm_show_bytes(out, "memory", p->memory, "resident, at most");
    fm_show_bytes(out, "spill", p->spill, "temporary files");
    read_text(out, p);
    fprintf(out, "%-9s%12llu  over the model\n", "sweeps", (unsigned long long)p->sweeps);
    fprintf(out, "%-9s%12.3g  in matrix products, %s\n", "flops", p->flops, p->precision);
    forecast_text(out, p);
}

void fm_show_cost_json(cJSON *o, const struct fm_estimate *p)
{
    fm_json_add_bool(o, "dry_run", 1);
    fm_json_add_uint(o, "memory", p->memory);
    fm_json_add_uint(o, "spill", p->spill);
    fm_json_add_uint(o, "read", p->read);
    fm_json_add_uint(o, "sweeps", p->sweeps);
    fm_json_add_double(o, "flops", p->flops);
    fm_json_add_double(o, "rate", p->forecast.rate_least);
    fm_json_add_double(o, "rate_most", p->forecast.rate_most);
    fm_json_add_double(o, "seconds", p->forecast.seconds_most);
    fm_json_add_double(o, "seconds_least", p->forecast.seconds_least);
}

/* How little memory suffices, if it is less than what the run uses. */
static void enough_text(FILE *out, const struct fm_estimate *p)
{
    char option[32], what[96];
    if (p->enough == 0 || p->enough >= p->memory)
        return;
    fm_units_option(option, p->enough);
    snprintf(what, sizeof what, "is enough: --memory %s, %.0f %% more operations than with all",
             option, 100 * p->enough_more);
    fm_show_bytes(out, "", p->enough, what);
}

static void estimate_text(FILE *out, const struct fm_estimate *p)
{
    if (p->method)
        fprintf(out, "%-9s%12s  makes masks\n", "method", p->method);
    if (p->beyond > 0)
        fprintf(out, "%-9s%12.4f  is the largest that these options can reach\n", "budget",
                p->reach);
    if (p->held)
        fprintf(out, "%-9s%12llu  of %llu in the files are used\n", "tokens",
                (unsigned long long)p->used, (unsigned long long)p->held);
    fprintf(out, "%-9s%12d  sequence%s of %d tokens, to measure quality on\n", "held out",
            p->evaluated, p->evaluated == 1 ? "" : "s", p->evaluated_len);
    if (p->exact)
        fprintf(out, "%-9s%12d  tokens in a sequence at most, %s\n", "longest", p->longest,
                p->exact);
    if (p->text)
        separator_text(out, &p->separator);
    fm_show_bytes(out, "memory", p->memory, "resident, at most");
    enough_text(out, p);
    fm_show_bytes(out, "spill", p->spill, "temporary files");
    read_text(out, p);
    fm_show_stored(out, p->storage, p->stored, p->written);
    if (p->codes[0])
        fprintf(out, "%-9s%12s  %s\n", "codes", "", p->codes);
    fm_show_bytes(out, "output", p->disk, "written");
    if (p->state)
        fm_show_bytes(out, "state", p->state, "state file; twice that while it is replaced");
    fm_show_bytes(out, "later", later(p),
                  "at most, estimated: fm-pack's bundle and one export of it");
    for (int i = 0; i < p->carried_count; i++)
        fm_show_bytes(out, "carried", p->carried[i].bytes, p->carried[i].name);
    for (int i = 0; i < p->left_count; i++)
        fprintf(out, "%-9s%12s  %s\n", "left out", "", p->left[i]);
    if (p->left_more)
        fprintf(out, "%-9s%12s  and %d more\n", "left out", "", p->left_more);
    fprintf(out, "%-9s%12llu  over the model\n", "sweeps", (unsigned long long)p->sweeps);
    fprintf(out, "%-9s%12.3g  in matrix products, %s\n", "flops", p->flops, p->precision);
    if (p->kinds)
        fprintf(out, "%-9s%12d  in a sweep; at most as many ranks can share it (fm-mpi(7))\n",
                "leaves", leaves_of(p));
    if (p->forecast.ranks > 1)
        fprintf(out, "%-9s%12d  of %d have work in every sweep%s\n", "ranks", p->forecast.working,
                p->forecast.ranks,
                p->forecast.working < p->forecast.ranks ? "; give more --batch, or fewer ranks"
                                                        : "");
    forecast_text(out, p);
}

static cJSON *estimate_json(const struct fm_cli *cli, const struct fm_estimate *p)
{
    cJSON *o = fm_report_begin(cli->tool);
    fm_json_add_bool(o, "dry_run", 1);
    if (p->method)
        fm_json_add_string(o, "method", p->method);
    if (p->beyond > 0) {
        fm_json_add_double(o, "budget_most", p->reach);
        fm_json_add_double(o, "budget_beyond", p->beyond);
    }
    if (p->exact) {
        fm_json_add_uint(o, "longest", (uint64_t)p->longest);
        fm_json_add_string(o, "longest_why", p->exact);
    }
    fm_json_add_uint(o, "memory", p->memory);
    if (p->enough)
        fm_json_add_uint(o, "memory_enough", p->enough);
    fm_json_add_uint(o, "spill", p->spill);
    fm_json_add_uint(o, "read", p->read);
    fm_show_stored_json(o, p->storage, p->stored, p->written);
    if (p->codes[0])
        fm_json_add_string(o, "codes", p->codes);
    fm_json_add_uint(o, "output", p->disk);
    if (p->state)
        fm_json_add_uint(o, "state", p->state);
    fm_json_add_uint(o, "later", later(p));
    fm_json_add_uint(o, "sweeps", p->sweeps);
    cJSON *carried = p->carried_count ? fm_json_add_array(o, "carried") : NULL;
    for (int i = 0; carried && i < p->carried_count; i++) {
        cJSON *file = fm_json_add_object(carried, NULL);
        fm_json_add_string(file, "name", p->carried[i].name);
        fm_json_add_uint(file, "bytes", p->carried[i].bytes);
    }
    cJSON *left = p->left_count ? fm_json_add_array(o, "left_out") : NULL;
    for (int i = 0; left && i < p->left_count; i++)
        fm_json_add_string(left, NULL, p->left[i]);
    if (p->held) {
        fm_json_add_uint(o, "tokens_held", p->held);
        fm_json_add_uint(o, "tokens_used", p->used);
    }
    fm_json_add_uint(o, "held_out", (uint64_t)p->evaluated);
    fm_json_add_uint(o, "held_out_seq_len", (uint64_t)p->evaluated_len);
    if (p->text && p->separator.id >= 0) {
        fm_json_add_uint(o, "separator", (uint64_t)p->separator.id);
        fm_json_add_string(o, "separator_token", p->separator.token);
    } else if (p->text) {
        fm_json_add_null(o, "separator");
    }
    if (p->kinds)
        fm_json_add_uint(o, "leaves", (uint64_t)leaves_of(p));
    if (p->forecast.ranks > 1) {
        fm_json_add_uint(o, "ranks", (uint64_t)p->forecast.ranks);
        fm_json_add_uint(o, "ranks_working", (uint64_t)p->forecast.working);
    }
    fm_json_add_uint(o, "tokens", p->tokens);
    fm_json_add_double(o, "flops", p->flops);
    fm_json_add_string(o, "precision", p->precision);
    fm_json_add_double(o, "rate", p->forecast.rate_least);
    fm_json_add_double(o, "rate_most", p->forecast.rate_most);
    fm_json_add_double(o, "seconds", p->forecast.seconds_most);
    fm_json_add_double(o, "seconds_least", p->forecast.seconds_least);
    if (p->forecast.halved.options[0]) {
        cJSON *halved = fm_json_add_object(o, "halved");
        fm_json_add_string(halved, "options", p->forecast.halved.options);
        fm_json_add_double(halved, "seconds", p->forecast.halved_seconds);
    }
    return o;
}

/* Print the whole output of a --dry-run. */
static int show_estimate(const struct fm_cli *cli, const struct fm_estimate *estimate,
                         struct fm_err *err)
{
    struct fm_cli_text text;
    if (fm_cli_text_open(&text, err))
        return err->code;
    estimate_text(text.out, estimate);
    return fm_cli_result(cli, &text, estimate_json(cli, estimate), err);
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

struct shown {
    const struct fm_cli *cli;
    const struct fm_show_tool *tool;
};

static int show_report(void *self, struct fm_err *err)
{
    const struct shown *shown = self;
    const struct fm_show_tool *tool = shown->tool;
    struct fm_cli_text text;
    if (fm_cli_text_open(&text, err))
        return err->code;
    tool->text(text.out, tool->report);
    cJSON *json = tool->json(tool->report);
    add_ranks(json, shown->cli->run.machine.comm);
    return fm_cli_result(shown->cli, &text, json, err);
}

int fm_show_tool(const struct fm_cli *cli, const struct fm_show_tool *tool, struct fm_err *err)
{
    struct fm_estimate estimate = {0};
    struct shown shown = {cli, tool};
    struct fm_run_options run = cli->run;
    bool speaks = fm_comm_rank(run.machine.comm) == 0;
    if (cli->dry_run)
        return !tool->run(&run, tool->options, tool->report, &estimate, err) && speaks
                   ? show_estimate(cli, &estimate, err)
                   : err->code;
    run.announce = (struct fm_announce){show_report, &shown};
    return speaks && fm_run_check_stream(&run, err)
               ? err->code
               : tool->run(&run, tool->options, tool->report, NULL, err);
}

/* The loss on all held-out text (kind -1), or on one kind. */
static double loss_of(const struct fm_quality *q, int kind)
{
    return kind < 0 ? q->ce : q->kind[kind];
}

static void show_losses(FILE *out, const struct fm_masks *masks, const struct fm_quality *after,
                        int kind)
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
        fprintf(out, "%s\n", after ? ", without -> with the adapter" : "");
}

void fm_show_losses(FILE *out, const struct fm_masks *masks, const struct fm_quality *after)
{
    for (int kind = -1; kind < masks->kinds.count; kind++)
        show_losses(out, masks, after, kind);
}

cJSON *fm_show_quality(const struct fm_quality *q, const struct fm_kinds *kinds)
{
    if (q->positions == 0)
        return cJSON_CreateNull();
    cJSON *o = cJSON_CreateObject();
    fm_json_add_double(o, "ce", q->ce);
    fm_json_add_double(o, "kl", q->kl);
    fm_json_add_double(o, "agree", q->agree);
    fm_json_add_uint(o, "positions", (uint64_t)q->positions);
    fm_json_add_bool(o, "recovered", q->recovered);
    fm_budgets_add_kinds(o, kinds, q->kind);
    return o;
}

cJSON *fm_show_family(const struct fm_masks *masks, const struct fm_quality *after)
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
        fm_json_add(o, "quality", fm_show_quality(&mask->quality, &masks->kinds));
        if (after)
            fm_json_add(o, "recovered", fm_show_quality(&after[b], &masks->kinds));
    }
    return list;
}
