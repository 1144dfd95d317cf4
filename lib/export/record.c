/*
 * The owner may edit the card, so only what was written here before is replaced: a section, and
 * model-index in the front matter, each between two marks.  A model-index without marks belongs to
 * the owner; YAML allows only one, so it stays and none is added.
 */
#include "lib/export/record.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/file/file.h"
#include "formats/file/text.h"
#include "formats/json/json.h"
#include "formats/json/jsonedit.h"
#include "formats/sign/oms.h"
#include "lib/export/card.h"
#include "lib/export/filetable.h"
#include "lib/export/plan.h"

#define CARD_BYTES_MAX ((size_t)4 << 20)
#define JSON_BYTES_MAX ((size_t)16 << 20)
#define RUNNING "## Running it\n"

/* ---- pieces of a text ---- */

/* The closing --- of front matter, NULL if the card has no front matter. */
static const char *end_of_front(const char *card)
{
    return strncmp(card, "---\n", 4) == 0 ? fm_card_line(card + 4, "---\n") : NULL;
}

static void add_span(struct fm_text *t, const char *from, const char *to)
{
    fm_text_add(t, from, (size_t)(to - from));
}

/* True if the key exists, plain or quoted. */
static bool has_index(const char *front)
{
    return fm_card_line(front, "model-index:") || fm_card_line(front, "\"model-index\":") ||
           fm_card_line(front, "'model-index':");
}

/* ---- the texts ---- */

static void say_metric(struct fm_text *t, const char *type, double value, const char *name)
{
    fm_text_printf(t, "    - type: %s\n      value: %.6f\n      name: %s\n", type, value, name);
}

static void say_index(struct fm_text *t, const struct fm_record *r)
{
    const struct fm_record_member *m = &r->member[r->start];
    fm_text_printf(t, "%smodel-index:\n- name: fm-%s-%.4f\n  results:\n", fm_card_index.begin,
                   r->layout, m->budget);
    fm_text_printf(t, "  - task:\n      type: text-generation\n    dataset:\n      type: custom\n");
    fm_text_printf(t, "      name: %d held-out sequences of %d tokens, %llu predicted, xxh3 %s\n",
                   r->sequences, r->T, (unsigned long long)r->tokens, r->digest);
    fm_text_printf(t, "    metrics:\n");
    say_metric(t, "cross_entropy", m->quality.ce, "cross-entropy, nats per token");
    say_metric(t, "perplexity", exp(m->quality.ce), "exp of the cross-entropy");
    if (r->compared) {
        say_metric(t, "kl_divergence", m->quality.kl,
                   "divergence from the original model, nats per token");
        say_metric(t, "top1_agreement", m->quality.agree,
                   "share of tokens where the original finds the same one most probable");
    }
    fm_text_printf(t, "%s", fm_card_index.end);
}

/* "6.5740 ± 0.0312" */
static void say_mean(struct fm_text *t, double mean, double half)
{
    fm_text_printf(t, "%.4f", mean);
    if (isfinite(half))
        fm_text_printf(t, " \u00b1 %.4f", half);
}

static void say_name(struct fm_text *t, const struct fm_record *r, int i)
{
    if (r->whole)
        fm_text_printf(t, "| budget %.4f%s |", r->member[i].budget,
                       i == r->start ? ", the initial one" : "");
    else
        fm_text_printf(t, "| this directory |");
}

static void say_row(struct fm_text *t, const struct fm_record *r, int i)
{
    const struct fm_record_member *m = &r->member[i];
    say_name(t, r, i);
    fm_text_printf(t, " ");
    say_mean(t, m->quality.ce, m->spread.ce_half);
    fm_text_printf(t, " | %.4f |", exp(m->quality.ce));
    if (r->compared) {
        fm_text_printf(t, " ");
        say_mean(t, m->quality.kl, m->spread.kl_half);
        fm_text_printf(t, " | %.2f %% | %.2f %% |", 100 * m->quality.agree, 100 * m->spread.top5);
    }
    fm_text_printf(t, "\n");
}

/* The figures per token that are usual on cards of pruned and quantised models. */
static void say_tokens(struct fm_text *t, const struct fm_record *r)
{
    fm_text_printf(t,
                   "\nDivergence of a token, and change in the probability of the true token:\n\n"
                   "| | median | 90 %% | 95 %% | 99 %% | 99.9 %% | largest | mean change | RMS | "
                   "1 %% | 99 %% |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < r->members; i++) {
        const struct fm_spread *s = &r->member[i].spread;
        say_name(t, r, i);
        for (int k = FM_SPREAD_MEDIAN; k < FM_SPREAD_AT; k++)
            if (fm_spread_at[k] != 0.75)
                fm_text_printf(t, " %.4f |", s->kl_at[k]);
        fm_text_printf(t, " %.2f %% | %.2f %% |", 100 * s->change, 100 * s->change_rms);
        for (int k = 0; k < FM_SPREAD_AT; k++)
            if (fm_spread_at[k] == 0.01 || fm_spread_at[k] == 0.99)
                fm_text_printf(t, " %.2f %% |", 100 * s->change_at[k]);
        fm_text_printf(t, "\n");
    }
}

static void say_section(struct fm_text *t, const struct fm_record *r)
{
    fm_text_printf(t, "%s## Measured\n\n", fm_card_figures.begin);
    fm_text_printf(t, "`fm-bench quality` on the files of this directory, %d held-out ",
                   r->sequences);
    fm_text_printf(t, "sequences of %d tokens (xxh3 of\ntheir ids `%s`), %s", r->T, r->digest,
                   r->precision);
    fm_text_printf(
        t, ";\n%llu tokens are predicted; \u00b1 is half of a 95 %% interval over sequences",
        (unsigned long long)r->tokens);
    if (r->compared)
        fm_text_printf(t, ";\nthe divergence from the original is in nats per token");
    fm_text_printf(t, ":\n\n| | cross-entropy | perplexity |%s\n|---|---|---|%s\n",
                   r->compared ? " divergence | same top token | top five |" : "",
                   r->compared ? "---|---|---|" : "");
    if (r->compared) {
        fm_text_printf(t, "| the original | ");
        say_mean(t, r->original.ce, r->original_spread.ce_half);
        fm_text_printf(t, " | %.4f | 0 | 100 %% | 100 %% |\n", exp(r->original.ce));
    }
    for (int i = 0; i < r->members; i++)
        say_row(t, r, i);
    if (r->compared)
        say_tokens(t, r);
    fm_text_printf(t, "%s\n", fm_card_figures.end);
}

/* ---- the files ---- */

/* Write the front matter, which ends at `front`, with these figures in place of recorded ones. */
static void edit_front(struct fm_text *t, const char *card, const char *front,
                       const struct fm_record *r, bool *kept)
{
    const char *at = card, *begin, *end;
    struct fm_text own = {0};
    while ((begin = fm_card_marked(at, &fm_card_index, &end)) && end <= front) {
        add_span(&own, at, begin);
        at = end;
    }
    add_span(&own, at, front);
    t->failed |= own.failed;
    *kept = own.data && has_index(own.data);
    fm_text_add(t, own.data, own.size);
    if (!*kept)
        say_index(t, r);
    free(own.data);
}

/*
 * Write `card` with these figures: in place of the section that was recorded earlier, else before
 * the part on how to run the export. *kept: the owner has a model-index.
 */
static void edit_card(struct fm_text *t, const char *card, const struct fm_record *r, bool *kept)
{
    const char *at = card, *front = end_of_front(card), *end;
    if (front) {
        edit_front(t, card, front, r, kept);
        at = front;
    }
    const char *old = fm_card_marked(at, &fm_card_figures, &end),
               *place = old ? old : fm_card_line(at, RUNNING);
    add_span(t, at, place ? place : at + strlen(at));
    if (!place)
        fm_text_printf(t, "\n");
    say_section(t, r);
    const char *rest = !place ? "" : !old ? place : *end == '\n' ? end + 1 : end;
    while ((old = fm_card_marked(rest, &fm_card_figures, &end))) { /* more than one, such as in a
                                                                      card that was merged */
        add_span(t, rest, old);
        rest = end;
    }
    fm_text_add(t, rest, strlen(rest));
}

/* *was and *written (free()) = the old and the new text of the card, or NULL if there is no card.
 */
static int record_card(const struct fm_run_options *run, const struct fm_record *r, char **was,
                       char **written, struct fm_err *err)
{
    const char *directory = run->inputs.stream;
    struct fm_text t = {0};
    bool kept = false;
    struct fm_err none = {0};
    char *card = NULL, *path = NULL;
    size_t size;
    int rc = fm_file_slurp_in(directory, FM_EXPORT_CARD, CARD_BYTES_MAX, &card, &size, &none);
    if (rc == FM_ENOENT)
        return FM_OK;
    if (rc || strlen(card) != size) {
        free(card);
        return fm_fail(err, rc ? rc : FM_EFORMAT, "%s/%s: %s", directory, FM_EXPORT_CARD,
                       rc ? none.text : "is not text");
    }
    edit_card(&t, card, r, &kept);
    path = fm_file_join(directory, FM_EXPORT_CARD, err);
    rc = path && !t.failed ? fm_output_text(path, t.data, true, err)
                           : fm_fail(err, FM_ENOMEM, "no memory for the card");
    if (!rc && kept)
        fm_run_note(run,
                    "'%s/%s' has a model-index of its owner, which is not changed; the figures are "
                    "in its section Measured",
                    directory, FM_EXPORT_CARD);
    free(path);
    *was = card;
    *written = t.data;
    return rc;
}

/* Put the old card back.  If that fails, too, fm-verify reports the card. */
static void restore_card(const char *directory, const char *was)
{
    struct fm_err unused = {0};
    char *path = fm_file_join(directory, FM_EXPORT_CARD, &unused);
    if (path)
        (void)fm_output_text(path, was, true, &unused);
    free(path);
}

static void say_interval(struct fm_text *t, const char *key, double mean, double half)
{
    if (isfinite(half))
        fm_text_printf(t, ", \"%s\": [%.17g, %.17g]", key, mean - half, mean + half);
}

static void say_percentiles(struct fm_text *t, const char *key, const double at[FM_SPREAD_AT])
{
    char text[FM_JSON_DOUBLE];
    for (int i = 0; i < FM_SPREAD_AT; i++) {
        fm_json_double(text, at[i]);
        fm_text_printf(t, "%s%s%s", i ? ", " : key, text, i + 1 < FM_SPREAD_AT ? "" : "]");
    }
}

/* Add "ce" and, if there is an original, "kl" and "agree". */
static void say_numbers(struct fm_text *t, const struct fm_record *r, int i)
{
    const struct fm_quality *q = &r->member[i].quality;
    const struct fm_spread *s = &r->member[i].spread;
    fm_text_printf(t, "\"ce\": %.17g", q->ce);
    say_interval(t, "ce_interval", q->ce, s->ce_half);
    if (!r->compared)
        return;
    fm_text_printf(t, ", \"kl\": %.17g, \"agree\": %.17g, \"agree_five\": %.17g", q->kl, q->agree,
                   s->top5);
    say_interval(t, "kl_interval", q->kl, s->kl_half);
    say_percentiles(t, ", \"kl_tokens\": [", s->kl_at);
    fm_text_printf(t, ", \"dp_mean\": %.17g, \"dp_rms\": %.17g", s->change, s->change_rms);
    say_percentiles(t, ", \"dp_tokens\": [", s->change_at);
}

static void say_json(struct fm_text *t, const struct fm_record *r)
{
    fm_text_printf(t, "{");
    say_numbers(t, r, r->start);
    fm_text_printf(t, ", \"positions\": %lld, \"sequences\": %d, ",
                   (long long)r->member[r->start].quality.positions, r->sequences);
    fm_text_printf(t, "\"seq_len\": %d, \"digest\": \"%s\", \"precision\": \"%s\"", r->T, r->digest,
                   r->precision);
    if (r->compared) {
        say_percentiles(t, ", \"percentiles\": [", fm_spread_at);
        fm_text_printf(t, ", \"original_ce\": %.17g", r->original.ce);
    }
    for (int i = 0; r->whole && i < r->members; i++) {
        fm_text_printf(t, "%s{\"budget\": %.17g, ", i ? ", " : ", \"members\": [",
                       r->member[i].budget);
        say_numbers(t, r, i);
        fm_text_printf(t, "}%s", i + 1 == r->members ? "]" : "");
    }
    fm_text_printf(t, "}");
}

static int without_measured(char **text, size_t *size, struct fm_err *err)
{
    const struct fm_jsonedit away = {FM_EXPORT_MEASURED, NULL};
    return fm_jsonedit_set(text, size, &away, 1, err);
}

int fm_record_compared(char **text, size_t *size, struct fm_err *err)
{
    const struct fm_jsonedit away[] = {{FM_EXPORT_MEASURED, NULL}, {FM_EXPORT_FILES, NULL}};
    return fm_jsonedit_set(text, size, away, 2, err);
}

/* Update the card's size and digest, if it has an entry in the table and its text was written. */
static int list_card(char **json, size_t *size, const char *card, struct fm_err *err)
{
    struct fm_filetable table = {0};
    cJSON *tree = NULL;
    if (!card)
        return FM_OK;
    int rc = fm_json_tree(&tree, *json, *size, err);
    if (!rc)
        rc = fm_filetable_read(&table, tree, err);
    struct fm_filetable_entry *e = !rc ? fm_filetable_find(&table, FM_EXPORT_CARD) : NULL;
    if (e) {
        e->bytes = strlen(card);
        e->digest = fm_digest_of(card, strlen(card));
        rc = fm_filetable_write(&table, json, size, err);
    }
    fm_filetable_release(&table);
    cJSON_Delete(tree);
    return rc;
}

static int record_json(const char *directory, const char *card, const struct fm_record *r,
                       struct fm_err *err)
{
    struct fm_text t = {0};
    char *json = NULL, *path = NULL;
    size_t size;
    say_json(&t, r);
    int rc = fm_file_slurp_in(directory, FM_EXPORT_JSON, JSON_BYTES_MAX, &json, &size, err);
    const struct fm_jsonedit edit = {FM_EXPORT_MEASURED, t.data};
    if (!rc && t.failed)
        rc = fm_fail(err, FM_ENOMEM, "no memory for the figures");
    if (!rc && list_card(&json, &size, card, err))
        rc = fm_within(err, "%s/%s", directory, FM_EXPORT_JSON);
    if (rc || without_measured(&json, &size, err) || fm_jsonedit_set(&json, &size, &edit, 1, err) ||
        !(path = fm_file_join(directory, FM_EXPORT_JSON, err)) ||
        fm_output_text(path, json, true, err))
        rc = err->code;
    free(path);
    free(json);
    free(t.data);
    return rc;
}

int fm_record_write(const struct fm_run_options *run, const struct fm_record *result,
                    struct fm_err *err)
{
    char *card = NULL, *was = NULL;
    int rc = record_card(run, result, &was, &card, err);
    if (!rc && (rc = record_json(run->inputs.stream, card, result, err)) && was)
        restore_card(run->inputs.stream, was);
    if (!rc && fm_file_is_in(run->inputs.stream, FM_OMS_NAME))
        fm_run_note(run, "the signature no longer matches; sign again: %s/" FM_OMS_NAME,
                    run->inputs.stream);
    free(card);
    free(was);
    return rc;
}
