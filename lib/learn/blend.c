/*
 * fm-rank --blend: a ranking from finished rankings of one checkpoint, each with a weight.  Nothing
 * is computed on tokens, so mixtures of texts can be tried in seconds.
 *
 * A criterion's score is a function of a sum over batches (lib/learn/criterion.h).  The blend is
 * that function of the weighted mean of the rankings' sums per batch, so weights in the ratio of
 * the numbers of batches give the ranking of all batches together, except for rounding.  An
 * expert's tokens are weighted in the same way.
 *
 * One ranking is in memory at a time, beside the sums.  Carried files are those of the first
 * stream.  The history entry has the options that all rankings share, the sources of all, and in
 * "blend" for each ranking its weight, its digest, and what its own entry has about options, tokens
 * and result.  It has no held-out sequences of its own, so fm-train and fm-recover warn if they
 * measure on sequences that are split from calibration data.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/base/clock.h"
#include "lib/comm/comm.h"
#include "lib/learn/rank.h"
#include "lib/stage/ranking.h"
#include "lib/stage/stage.h"

#define TOKENS_MAX 9007199254740992.0 /* 2^53: counts above are not exact in a double */

struct part {
    const char *path;
    double weight;
    struct fm_bundle stream;
    int64_t batches, sequences, seq_len;
};

struct blend {
    struct part part[FM_INPUTS_MAX];
    int parts;
    double weights; /* sum of the parts' weights */
    int64_t batches, sequences;
    const struct fm_criterion *criterion;
    struct fm_stage_model model;
    struct fm_ranking ranking;
    double ce;
};

static const cJSON *field(const struct part *p, const char *object, const char *key)
{
    const cJSON *entry = fm_stage_history_of(&p->stream, "fm-rank");
    const cJSON *from = cJSON_GetObjectItemCaseSensitive(entry, object);
    return key ? cJSON_GetObjectItemCaseSensitive(from, key) : from;
}

/* The value as text in `text`, "default" if the history does not record it. */
static void print_value(char text[64], const cJSON *value)
{
    char *json = value ? cJSON_PrintUnformatted(value) : NULL;
    snprintf(text, 64, "%.60s", json ? json : "its default");
    cJSON_free(json);
}

static int check_options(const struct part *first, const struct part *p, struct fm_err *err)
{
    static const struct {
        const char *object, *key;
    } same[] = {{"options", "criterion"}, {"options", "channel_group"}, {"options", "order"},
                {"options", "batch"},     {"tokens", "seq_len"},        {"options", "precision"},
                {"options", "device"},    {"options", "keep_extra"}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        const cJSON *a = field(first, same[i].object, same[i].key);
        const cJSON *b = field(p, same[i].object, same[i].key);
        char one[64], other[64];
        print_value(one, a);
        print_value(other, b);
        if (strcmp(one, other) != 0)
            return fm_fail(err, FM_ECONFIG,
                           "'%s' was ranked with %s %s, but '%s' with %s; rank both with the same "
                           "options",
                           p->path, same[i].key, other, first->path, one);
    }
    return FM_OK;
}

/* Read how much the ranking was made from. */
static int read_amounts(struct part *p, struct fm_err *err)
{
    const cJSON *tokens = field(p, "tokens", NULL), *result = field(p, "result", NULL);
    if (fm_json_get_int(result, "batches", 1, INT32_MAX, &p->batches, err) ||
        fm_json_get_int(tokens, "sequences", 1, INT32_MAX, &p->sequences, err) ||
        fm_json_get_int(tokens, "seq_len", 2, INT32_MAX, &p->seq_len, err))
        return fm_within(err, "%s: history of fm-rank", p->path);
    return FM_OK;
}

static int open_part(struct blend *b, const struct fm_source *from, struct fm_err *err)
{
    struct part *p = &b->part[b->parts];
    p->path = from->path;
    p->weight = (double)from->weight / FM_WEIGHT_ONE;
    if (fm_stage_open(&p->stream, p->path, FM_MEMBER_RANKING, err))
        return err->code;
    b->parts++; /* from here on it has a stream to close */
    if (read_amounts(p, err) || fm_stage_model_same(&p->stream, &b->part[0].stream, err))
        return err->code;
    b->weights += p->weight;
    b->batches += p->batches;
    b->sequences += p->sequences;
    return check_options(&b->part[0], p, err);
}

static int open_parts(struct blend *b, const struct fm_source *from, struct fm_err *err)
{
    for (; from->path; from++)
        if (open_part(b, from, err))
            return err->code;
    if (b->parts < 2)
        return fm_fail(err, FM_EUSAGE, "--blend: give at least two rankings, --blend A --blend B");
    struct fm_stage_model *m = &b->model;
    return fm_criterion_read(&b->criterion, &b->part[0].stream, err) ||
                   fm_stage_model_read(m, &b->part[0].stream, err) ||
                   fm_ranking_init(&b->ranking, m->M,
                                   cJSON_IsTrue(field(&b->part[0], "options", "keep_extra")), m->E,
                                   m->I, err)
               ? err->code
               : FM_OK;
}

/* Add tokens, of which an expert that received any keeps at least one. */
static int add_tokens(int64_t *to, double share, int64_t tokens, const char *path,
                      struct fm_err *err)
{
    double add = share * (double)tokens;
    if (add + (double)*to > TOKENS_MAX)
        return fm_fail(err, FM_EFORMAT, "%s: an expert has %lld tokens, more than can be weighted",
                       path, (long long)tokens);
    *to += tokens > 0 && add < 1 ? 1 : llround(add);
    return FM_OK;
}

/* Add the sums and tokens of a ranking, as if it had its share of all batches. */
static int add_part(struct blend *b, const struct part *p, struct fm_err *err)
{
    struct fm_ranking r, *to = &b->ranking;
    double share = p->weight / b->weights * (double)b->batches / (double)p->batches;
    const cJSON *ce = field(p, "result", "ce");
    if (fm_ranking_open(&r, &p->stream, err))
        return err->code;
    int rc = r.ahead == to->ahead
                 ? FM_OK
                 : fm_fail(err, FM_EFORMAT, "%s: its history of fm-rank is not that of its %s",
                           p->path, FM_MEMBER_RANKING);
    size_t experts = (size_t)(r.M + r.ahead) * (size_t)r.E, channels = experts * (size_t)r.I;
    to->group = r.group;
    for (size_t i = 0; i < channels && !rc; i++) {
        double sum =
            b->criterion->sum ? b->criterion->sum(r.scores[i], (int)p->batches) : r.scores[i];
        to->scores[i] += share * sum;
        if (!isfinite(to->scores[i]))
            rc = fm_fail(err, FM_EFORMAT, "%s: a score of %g is too large to be blended", p->path,
                         r.scores[i]);
    }
    for (size_t i = 0; i < experts && !rc; i++)
        rc = add_tokens(&to->tokens[i], share, r.tokens[i], p->path, err);
    b->ce += cJSON_IsNumber(ce) ? p->weight / b->weights * ce->valuedouble : NAN;
    fm_ranking_release(&r);
    return rc;
}

static int blend_scores(struct blend *b, struct fm_err *err)
{
    struct fm_ranking *r = &b->ranking;
    const char *order = fm_json_string_value(field(&b->part[0], "options", NULL), "order");
    for (int i = 0; i < b->parts; i++)
        if (add_part(b, &b->part[i], err))
            return err->code;
    size_t channels = (size_t)(r->M + r->ahead) * (size_t)r->E * (size_t)r->I;
    for (size_t i = 0; b->criterion->score && i < channels; i++)
        r->scores[i] = b->criterion->score(r->scores[i], (int)b->batches);
    if (!order || strcmp(order, "original") != 0)
        return fm_ranking_sort(r, err);
    fm_ranking_original(r);
    return FM_OK;
}

static void copy_field(cJSON *to, const struct part *p, const char *name)
{
    const cJSON *item = field(p, name, NULL);
    if (item)
        fm_json_add(to, name, cJSON_Duplicate(item, true));
}

static void record_part(cJSON *to, const struct part *p)
{
    char hex[FM_DIGEST_HEX];
    cJSON *o = fm_json_add_object(to, NULL);
    fm_digest_hex(hex, &fm_bundle_find(&p->stream, FM_MEMBER_RANKING)->digest);
    fm_json_add_string(o, "ranking", hex);
    fm_json_add_double(o, "weight", p->weight);
    copy_field(o, p, "options");
    copy_field(o, p, "tokens");
    copy_field(o, p, "held_out");
    copy_field(o, p, "blend");
    copy_field(o, p, "result");
}

/* Add the options that all rankings have with the same value. */
static void record_shared(cJSON *entry, const struct blend *b)
{
    cJSON *to = fm_json_add_object(entry, "options");
    const cJSON *item;
    cJSON_ArrayForEach(item, field(&b->part[0], "options", NULL))
    {
        int same = 1;
        while (same < b->parts &&
               cJSON_Compare(item, field(&b->part[same], "options", item->string), true))
            same++;
        if (same == b->parts)
            fm_json_add(to, item->string, cJSON_Duplicate(item, true));
    }
}

static cJSON *make_manifest(const struct blend *b, const struct fm_rank_report *report,
                            const struct fm_run_options *run)
{
    char dropped[FM_STAGE_DROPPED_BYTES];
    cJSON *manifest = fm_stage_manifest(FM_STAGE_RANK, &b->part[0].stream, NULL, dropped);
    cJSON *entry = fm_stage_history(manifest, "fm-rank");
    if (dropped[0])
        fm_run_warn(run, "%s", dropped);
    record_shared(entry, b);
    cJSON *tokens = fm_json_add_object(entry, "tokens");
    fm_json_add_uint(tokens, "sequences", (uint64_t)report->sequences);
    fm_json_add_uint(tokens, "seq_len", (uint64_t)report->T);
    cJSON *sources = fm_json_add_array(tokens, "sources"), *blend, *result;
    for (int i = 0; i < b->parts; i++) {
        const cJSON *source;
        cJSON_ArrayForEach(source, field(&b->part[i], "tokens", "sources"))
        {
            fm_json_add(sources, NULL, cJSON_Duplicate(source, true));
        }
    }
    blend = fm_json_add_array(entry, "blend");
    for (int i = 0; i < b->parts; i++)
        record_part(blend, &b->part[i]);
    result = fm_json_add_object(entry, "result");
    fm_json_add_uint(result, "batches", (uint64_t)report->batches);
    fm_json_add_double(result, "ce", report->ce);
    fm_json_add_uint(result, "experts_without_tokens", (uint64_t)report->coverage.unreached);
    return manifest;
}

/* The depth of nested objects and arrays. */
static int depth(const cJSON *x)
{
    const cJSON *item;
    int most = 0;
    if (!cJSON_IsObject(x) && !cJSON_IsArray(x))
        return 0;
    cJSON_ArrayForEach(item, x)
    {
        int n = depth(item);
        most = n > most ? n : most;
    }
    return most + 1;
}

static int write_blend(const struct blend *b, const struct fm_run_options *run,
                       const struct fm_rank_report *report, struct fm_err *err)
{
    struct fm_stage_member member = {.name = FM_MEMBER_RANKING};
    void *data;
    cJSON *manifest = make_manifest(b, report, run);
    if (depth(manifest) > FM_JSON_DEPTH_MAX) { /* each blend of a blend is two levels deeper */
        cJSON_Delete(manifest);
        return fm_fail(err, FM_ECONFIG,
                       "--blend: blends of blends are nested too deeply; blend the first rankings");
    }
    if (fm_ranking_pack(&b->ranking, b->model.moe, b->model.L, &data, &member.size, err)) {
        cJSON_Delete(manifest);
        return err->code;
    }
    member.data = data;
    int rc =
        fm_stage_write(run, FM_STAGE_RANK, manifest, &b->part[0].stream, NULL, &member, 1, err);
    free(data);
    return rc;
}

static int fill_report(const struct blend *b, const struct fm_run_options *run,
                       struct fm_rank_report *r, double began, struct fm_err *err)
{
    if (b->batches > INT32_MAX || b->sequences > INT32_MAX || !isfinite(b->ce))
        return fm_fail(
            err, FM_EFORMAT,
            "--blend: the rankings have too many sequences, or one has no loss in its history");
    *r = (struct fm_rank_report){.criterion = b->criterion,
                                 .group = b->ranking.group,
                                 .L = b->model.L,
                                 .M = b->model.M,
                                 .E = b->model.E,
                                 .I = b->model.I,
                                 .T = (int)b->part[0].seq_len,
                                 .sequences = (int)b->sequences,
                                 .batches = (int)b->batches,
                                 .blended = b->parts,
                                 .ce = b->ce,
                                 .seconds = fm_clock_now() - began};
    memcpy(r->moe, b->model.moe, sizeof r->moe);
    return fm_rank_cover(&r->coverage, &b->ranking, b->model.moe, run, err);
}

static int make(const struct fm_run_options *run, const struct fm_source *from,
                struct fm_rank_report *report, struct fm_err *err)
{
    struct blend b = {0};
    double began = fm_clock_now();
    int rc = FM_OK;
    if (open_parts(&b, from, err) || blend_scores(&b, err) ||
        fill_report(&b, run, report, began, err) || write_blend(&b, run, report, err))
        rc = err->code;
    for (int i = 0; i < FM_INPUTS_MAX; i++)
        fm_bundle_close(&b.part[i].stream);
    fm_ranking_release(&b.ranking);
    return rc;
}

int fm_blend(const struct fm_run_options *run, const struct fm_source *from,
             struct fm_rank_report *report, struct fm_err *err)
{
    struct fm_comm *comm = run->machine.comm;
    int rc = fm_comm_rank(comm) == 0 ? make(run, from, report, err) : FM_OK;
    return fm_comm_agree(comm, rc, err);
}
