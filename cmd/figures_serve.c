/* What fm-bench serve measured, as a table, JSON and a plot. */
#include "cmd/figures.h"
#include "lib/base/units.h"

#include <math.h>

#include "lib/bench/plot.h"
#include "lib/run/report.h"

/* FlexMoE's own: online clipping of the whole Mixtral-8x7B in SGLang on one H200, 64 tokens in and
 * 256 out, input and output tokens counted. */
static const double paper_budget[] = {0, 0.2, 0.4, 0.6}, paper_speedup[] = {1, 1.12, 1.25, 1.47};

/* Tokens of a phase, or of both together, a second. */
static double prefill_rate(const struct fm_servebench *s, int b)
{
    return (double)s->batch * s->prompt / s->row[b].prefill;
}

static double decode_rate(const struct fm_servebench *s, int b)
{
    return (double)s->batch * s->decode / s->row[b].decode;
}

static double whole_rate(const struct fm_servebench *s, int b)
{
    return (double)s->batch * (s->prompt + s->decode) / (s->row[b].prefill + s->row[b].decode);
}

/* Speed-up of both phases where experts alone get faster, by their ideal. */
static double bound(const struct fm_servebench *s, int b)
{
    const struct fm_servebench_row *full = &s->row[0], *r = &s->row[b];
    double prefill = full->prefill_experts, decode = full->decode_experts; /* NaN: no bound */
    double seconds = full->prefill * (1 - prefill + prefill / r->prefill_ideal) +
                     full->decode * (1 - decode + decode / r->decode_ideal);
    return (full->prefill + full->decode) / seconds;
}

static void describe(FILE *out, const struct fm_servebench *s)
{
    char bytes[32], token[32];
    fm_units_bytes(bytes, s->bytes);
    fm_units_bytes(token, s->token_bytes);
    fprintf(out, "H %d, I %d, %d experts, top-%d, %d query and %d key heads of %d, %s%s\n", s->H,
            s->I, s->E, s->K, s->Q, s->G, s->C, s->dtype, s->shared ? ", no shared expert" : "");
    fprintf(out, "%d sequences, %d tokens in, %d out; %s of weights, cache %s a token\n", s->batch,
            s->prompt, s->decode, bytes, token);
    if (s->model_layers)
        fprintf(out, "%d of the model's %d layers: ", s->layers, s->model_layers);
    else
        fprintf(out, "%d layers: ", s->layers);
    fprintf(out, "tokens/s are of these, without embedding's lookup in a real vocabulary, head "
                 "and sampling\n");
}

/* A share or ratio; nothing where it is not known. */
static const char *figure(char text[32], double v)
{
    snprintf(text, 32, "%.2f", v);
    if (isnan(v))
        *text = '\0';
    return text;
}

void fm_figures_serve(FILE *out, const struct fm_servebench *s)
{
    describe(out, s);
    if (s->rows == 0)
        return;
    if (*s->gpu)
        fprintf(out, "%s; libfm_clip: %s\n\n", s->gpu, s->path);
    else
        fprintf(out, "%s, %d threads; libfm_clip: %s\n\n", s->cpu, s->threads, s->path);
    fprintf(out,
            "| removed | prefill tokens/s | speed-up | ideal | experts | decode tokens/s | "
            "speed-up | ideal | experts | all tokens/s | speed-up | bound | frees |\n"
            "| --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |\n");
    for (int b = 0; b < s->rows; b++) {
        const struct fm_servebench_row *r = &s->row[b];
        char freed[32], share[32], most[32];
        fm_units_bytes(freed, r->freed);
        fprintf(out, "| %.3f | %.1f | %.2f | %.2f | %s |", r->budget, prefill_rate(s, b),
                s->row[0].prefill / r->prefill, r->prefill_ideal,
                figure(share, r->prefill_experts));
        fprintf(out, " %.1f | %.2f | %.2f | %s |", decode_rate(s, b), s->row[0].decode / r->decode,
                r->decode_ideal, figure(share, r->decode_experts));
        fprintf(out, " %.1f | %.2f | %s | %s |\n", whole_rate(s, b),
                whole_rate(s, b) / whole_rate(s, 0), figure(most, bound(s, b)), freed);
    }
    fprintf(out,
            "\nbudget changed at every step: %.3f s for %d steps; the same steps with it held: "
            "%.3f s (%+.1f %%)\n",
            s->switched, s->decode, s->held, 100 * (s->switched / s->held - 1));
    fprintf(out, "FlexMoE, whole Mixtral-8x7B online on one H200, 64 in, 256 out: speed-up 1.12, "
                 "1.25, 1.47 at 0.2, 0.4, 0.6\n");
}

static void add_known(cJSON *o, const char *key, double v)
{
    if (!isnan(v))
        fm_report_double(o, key, v);
}

static cJSON *row_json(const struct fm_servebench *s, int b)
{
    const struct fm_servebench_row *r = &s->row[b];
    cJSON *o = cJSON_CreateObject();
    fm_report_double(o, "removed", r->budget);
    fm_report_uint(o, "freed_bytes", r->freed);
    fm_report_double(o, "freed_cache_tokens", (double)r->freed / (double)s->token_bytes);
    if (s->rows == 0)
        return o;
    fm_report_double(o, "prefill_seconds", r->prefill);
    fm_report_double(o, "prefill_tokens_per_second", prefill_rate(s, b));
    fm_report_double(o, "prefill_speedup", s->row[0].prefill / r->prefill);
    fm_report_double(o, "prefill_ideal", r->prefill_ideal);
    add_known(o, "prefill_experts", r->prefill_experts);
    fm_report_double(o, "decode_seconds", r->decode);
    fm_report_double(o, "decode_tokens_per_second", decode_rate(s, b));
    fm_report_double(o, "decode_speedup", s->row[0].decode / r->decode);
    fm_report_double(o, "decode_ideal", r->decode_ideal);
    add_known(o, "decode_experts", r->decode_experts);
    fm_report_double(o, "tokens_per_second", whole_rate(s, b));
    fm_report_double(o, "speedup", whole_rate(s, b) / whole_rate(s, 0));
    add_known(o, "bound", bound(s, b));
    return o;
}

cJSON *fm_figures_serve_json(const struct fm_servebench *s)
{
    cJSON *o = fm_report_begin("fm-bench serve");
    fm_report_uint(o, "hidden", (uint64_t)s->H);
    fm_report_uint(o, "channels", (uint64_t)s->I);
    fm_report_uint(o, "experts", (uint64_t)s->E);
    fm_report_uint(o, "experts_per_token", (uint64_t)s->K);
    fm_report_uint(o, "query_heads", (uint64_t)s->Q);
    fm_report_uint(o, "key_heads", (uint64_t)s->G);
    fm_report_uint(o, "head_width", (uint64_t)s->C);
    cJSON_AddStringToObject(o, "dtype", s->dtype);
    fm_report_uint(o, "layers", (uint64_t)s->layers);
    if (s->model_layers)
        fm_report_uint(o, "model_layers", (uint64_t)s->model_layers);
    fm_report_uint(o, "sequences", (uint64_t)s->batch);
    fm_report_uint(o, "prompt", (uint64_t)s->prompt);
    fm_report_uint(o, "decode", (uint64_t)s->decode);
    fm_report_uint(o, "bytes", s->bytes);
    fm_report_uint(o, "cache_bytes_per_token", s->token_bytes);
    if (s->rows > 0) {
        cJSON_AddStringToObject(o, "cpu", s->cpu);
        fm_report_uint(o, "threads", (uint64_t)s->threads);
        if (*s->gpu)
            cJSON_AddStringToObject(o, "gpu", s->gpu);
        cJSON_AddStringToObject(o, "path", s->path);
        fm_report_double(o, "switched_seconds", s->switched);
        fm_report_double(o, "held_seconds", s->held);
    }
    cJSON *rows = cJSON_AddArrayToObject(o, "rows");
    for (int b = 0; b < s->budgets; b++)
        cJSON_AddItemToArray(rows, row_json(s, b));
    return o;
}

int fm_figures_serve_plot(const struct fm_servebench *s, const char *path, bool force,
                          struct fm_err *err)
{
    enum { MOST = FM_KERNELBENCH_BUDGETS_MAX };
    double x[MOST], prefill[MOST], decode[MOST], whole[MOST], most[MOST];
    struct fm_plot plot = {.title = "Speed-up of a serving loop over its full width",
                           .x_label = "share of all channels removed",
                           .y_label = "speed-up in tokens per second"};
    for (int b = 0; b < s->rows; b++) {
        x[b] = s->row[b].budget;
        prefill[b] = s->row[0].prefill / s->row[b].prefill;
        decode[b] = s->row[0].decode / s->row[b].decode;
        whole[b] = whole_rate(s, b) / whole_rate(s, 0);
        most[b] = bound(s, b);
    }
    plot.series[0] = (struct fm_plot_series){"prefill", x, prefill, s->rows};
    plot.series[1] = (struct fm_plot_series){"decode", x, decode, s->rows};
    plot.series[2] = (struct fm_plot_series){"both", x, whole, s->rows};
    plot.series[3] =
        (struct fm_plot_series){"FlexMoE's, on an H200", paper_budget, paper_speedup, 4};
    plot.series[4] = (struct fm_plot_series){"bound of both", x, most, s->rows};
    plot.count = s->gpu[0] ? 4 : 5; /* the experts' share is not known there, nor the bound */
    return fm_plot_write(&plot, path, force, err);
}
