/* fm-rank: score every channel of every expert and order the channels by score. */
#include "cmd/cli.h"
#include "cmd/show.h"
#include "cmd/tools.h"
#include "lib/base/names.h"
#include "lib/learn/rank.h"

/* Modes: rank on tokens, or blend rankings. */
enum { SCORE = 1, BLEND = 2 };

/* Print for each layer the experts with the fewest and the most tokens, and an even share. */
static void describe_experts(FILE *out, const struct fm_rank_report *r)
{
    fprintf(out, "layer    fewest tokens  of expert   even share         most  of expert\n");
    for (int m = 0; m < r->M; m++) {
        const int64_t *tokens = r->coverage.tokens + (size_t)m * (size_t)r->E;
        int least = 0, most = 0;
        int64_t sum = 0;
        for (int e = 0; e < r->E; e++) {
            least = tokens[e] < tokens[least] ? e : least;
            most = tokens[e] > tokens[most] ? e : most;
            sum += tokens[e];
        }
        fprintf(out, "%5d  %15lld  %9d  %11lld  %11lld  %9d\n", r->moe[m], (long long)tokens[least],
                least, (long long)(sum / r->E), (long long)tokens[most], most);
    }
}

static void describe_text(FILE *out, const struct fm_rank_report *r)
{
    fprintf(out, "ranked   %d layers of %d experts of %d channels", r->M, r->E, r->I);
    if (r->criterion != fm_criteria[0])
        fprintf(out, " by %s", r->criterion->name);
    if (r->group > 1)
        fprintf(out, " in groups of %d", r->group);
    fputc('\n', out);
    if (r->blended)
        fprintf(out, "blended  %d rankings\n", r->blended);
    fprintf(out, "tokens   %d sequences of %d in %d batches, mean loss %.4f\n", r->sequences, r->T,
            r->batches, r->ce);
    if (r->ahead)
        fprintf(out, "extra    layer %d, for multi-token prediction, mean loss %.4f\n", r->L,
                r->ahead_ce);
    if (r->held_out)
        fprintf(out, "held out %d other sequence%s, on which fm-train and fm-recover measure\n",
                r->held_out, r->held_out == 1 ? "" : "s");
    if (r->resumed)
        fprintf(out, "resumed  after %d batches\n", r->resumed);
    describe_experts(out, r);
}

static void describe(const struct fm_result *out, const void *report)
{
    const struct fm_rank_report *r = report;
    cJSON *o = out->json;
    describe_text(out->text, r);
    if (r->criterion != fm_criteria[0])
        fm_json_add_string(o, "criterion", r->criterion->name);
    if (r->group > 1)
        fm_json_add_uint(o, "channel_group", (uint64_t)r->group);
    fm_json_add_uint(o, "layers", (uint64_t)r->L);
    cJSON *moe = r->M < r->L ? fm_json_add_array(o, "moe_layers") : NULL;
    for (int m = 0; moe && m < r->M; m++)
        fm_json_add_uint(moe, NULL, (uint64_t)r->moe[m]);
    fm_json_add_uint(o, "experts", (uint64_t)r->E);
    fm_json_add_uint(o, "channels", (uint64_t)r->I);
    fm_json_add_uint(o, "seq_len", (uint64_t)r->T);
    fm_json_add_uint(o, "sequences", (uint64_t)r->sequences);
    fm_json_add_uint(o, "batches", (uint64_t)r->batches);
    fm_json_add_uint(o, "dropped", (uint64_t)r->dropped);
    if (r->blended)
        fm_json_add_uint(o, "blended", (uint64_t)r->blended);
    fm_json_add_uint(o, "held_out", (uint64_t)r->held_out);
    fm_json_add_double(o, "ce", r->ce);
    if (r->ahead) {
        cJSON *extra = fm_json_add_object(o, "extra");
        fm_json_add_uint(extra, "layer", (uint64_t)r->L);
        fm_json_add_double(extra, "ce", r->ahead_ce);
        fm_json_add_uint(extra, "unreached", (uint64_t)r->ahead_unreached);
    }
    cJSON *list = fm_json_add_array(o, "unreached");
    for (int i = 0; i < r->coverage.unreached; i++) {
        int at[2] = {r->coverage.unreached_at[2 * i], r->coverage.unreached_at[2 * i + 1]};
        fm_json_add(list, NULL, cJSON_CreateIntArray(at, 2));
    }
    fm_json_add_uint(o, "starved", (uint64_t)r->coverage.starved);
    cJSON *layers = fm_json_add_array(o, "expert_tokens");
    for (int m = 0; m < r->M; m++) {
        cJSON *experts = fm_json_add_array(layers, NULL);
        for (int e = 0; e < r->E; e++)
            fm_json_add_uint(experts, NULL, (uint64_t)r->coverage.tokens[m * r->E + e]);
    }
    fm_json_add_uint(o, "resumed", (uint64_t)r->resumed);
    fm_json_add_double(o, "seconds", r->seconds);
}

/* Rank, or blend `parts` if there are any. */
static int work(const struct fm_cli *cli, const struct fm_rank_options *options,
                const struct fm_source *parts, struct fm_rank_report *report, struct fm_err *err)
{
    struct fm_show_run show;
    if ((parts->path && fm_options_check(cli, BLEND, "with --blend", err)) ||
        fm_show_begin(&show, cli, describe, report, err))
        return err->code;
    int rc = parts->path ? fm_blend(&show.run, parts, report, err)
                         : fm_rank(&show.run, options, show.dry, report, err);
    return fm_show_end(&show, rc, err);
}

int fm_rank_main(int argc, char **argv)
{
    int order = FM_ORDER_SCORE, criterion = 0;
    struct fm_rank_options options;
    struct fm_source parts[FM_INPUTS_MAX + 1] = {{0}};
    fm_rank_defaults(&options);
    const struct fm_cli_scope scope[] = {
        {.name = "dry-run", .modes = SCORE},
        {.name = "threads", .modes = SCORE},
        {.groups = FM_CLI_MODEL | FM_CLI_TOKENS | FM_CLI_EVAL | FM_CLI_MACHINE | FM_CLI_STATE,
         .modes = SCORE},
        {0}};
    const struct fm_cli_option own[] = {
        {"criterion", 0, FM_CLI_CHOICE, &criterion, FM_NAMES_CHOICES(FM_CRITERION_ROWS),
         "how channels are scored; the last two need no gradients (default: taylor)", 0, 0, SCORE},
        {"order", 0, FM_CLI_CHOICE, &order, "score|original",
         "best channel first, or in file order (default: score)", 0, 0, SCORE},
        {"channel-group", 0, FM_CLI_INT, &options.group, "N",
         "rank groups of N neighbouring channels (default: the group of the checkpoint's codes, or "
         "1)",
         1, 1 << 20, SCORE},
        {"keep-extra", 0, FM_CLI_FLAG, &options.keep_extra, NULL,
         "also rank the layer for multi-token prediction, for fm-pack --keep-extra", 0, 0, SCORE},
        {"carry", 0, FM_CLI_LIST, options.carry, "PATTERN",
         "also copy the files of the checkpoint that match", 0, 0, SCORE},
        {"blend", 0, FM_CLI_SOURCES, parts, "FILE[:W]",
         "instead, blend this ranking, weighted, with others; repeat", 0, 0, 0},
    };
    struct fm_cli cli = {
        .tool = "fm-rank",
        .synopsis = "--model DIR --text FILE [options] > stage.fm",
        .about = "Score every channel of every expert of a mixture-of-experts checkpoint.",
        .often = "model tokens text eval-text seq-len max-tokens precision memory output state "
                 "force dry-run json help version",
        .groups = FM_CLI_STAGE,
        .run = {.outputs.path = "-"},
        .scope = scope,
        .instead = "blend",
    };
    fm_cli_begin(&cli, argc, argv, own, FM_CLI_COUNT(own));
    struct fm_rank_report report = {0};
    struct fm_err err = {0};
    options.order = (enum fm_rank_order)order;
    options.criterion = fm_criteria[criterion];
    int rc = work(&cli, &options, parts, &report, &err);
    fm_rank_report_release(&report);
    return fm_cli_end(&cli, rc, &err);
}
