/*
 * --function: compares what the weights compute.  The full model of a bundle is compared with the
 * checkpoint it was made from, or an export with the bundle under the mask of its budget, on a few
 * sequences of the given text or tokens: the mean loss and every token's log-probability.
 */
#include "lib/verify/verifier.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/tensor/hfdir.h"
#include "lib/base/mem.h"
#include "lib/data/calib.h"
#include "lib/engine/sweep.h"
#include "lib/model/model.h"
#include "lib/stage/lorafile.h"
#include "lib/stage/ranking.h"
#include "lib/stage/stage.h"

#define SEQUENCES 4

/* In float32 a different order of sums (permuted channels, tails of zeros) changes a
 * log-probability by about 1e-6; the neighbouring budget changes it by 1e-2 or more. */
#define LOGPROB_LIMIT 1e-4

struct job {
    struct fm_verifier *v;
    const struct fm_ops *ops;
    struct fm_bundle bundle;
    struct fm_hfdir dir; /* the checkpoint's */
    struct fm_ranking ranking;
    struct fm_adapter adapter;
    struct fm_calib calib;
    int sequences;
    bool plan; /* check the memory and compute nothing */
};

/* Log-probabilities (sequences, T - 1) and the mean loss of one model, computed by one lane. */
static int compute(struct job *j, struct fm_model *model, const struct fm_lane *lane,
                   float *logprob, double *loss, struct fm_err *err)
{
    struct fm_sweep *sweep = NULL;
    struct fm_sweep_options options = {.memory = fm_machine_memory(&j->v->run->machine),
                                       .stop = j->v->run->stop};
    int T = j->calib.T;
    double sum = 0, n = 0;
    int32_t *ids = fm_alloc((size_t)T, sizeof *ids, "tokens", err);
    int rc = ids ? fm_sweep_new(&sweep, model, j->ops, 1, T, T, 1, &options, err) : FM_ENOMEM;
    for (int i = 0; i < j->sequences && !rc; i++) {
        struct fm_batch batch = {ids, 1, T};
        struct fm_sweep_taps taps = {.lane = 0, .logprob = logprob + (size_t)i * (size_t)(T - 1)};
        struct fm_measure measure;
        fm_sweep_tap(sweep, &taps);
        rc = fm_calib_read(&j->calib, i, 1, ids, err);
        if (!rc)
            rc = fm_sweep_run(sweep, &batch, 1, lane, 1, NULL, &measure, NULL, err);
        if (rc)
            break;
        sum += measure.ce;
        n += (double)measure.n;
        fm_run_report(j->v->run, "function", (uint64_t)i + 1, (uint64_t)j->sequences, "sequences");
    }
    fm_sweep_free(sweep);
    free(ids);
    *loss = n > 0 ? sum / n : 0;
    return rc;
}

static void compare(struct job *j, const float *have, const float *want)
{
    struct fm_verify_report *r = j->v->report;
    size_t n = (size_t)j->sequences * (size_t)(j->calib.T - 1), worst = 0;
    r->function = true;
    r->logprob_diff_max = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)have[i] - (double)want[i]);
        /* NaN counts as the largest difference. */
        if (!(d <= r->logprob_diff_max) && !isnan(r->logprob_diff_max)) {
            r->logprob_diff_max = d;
            worst = i;
        }
    }
    r->items += n;
    if (!(r->logprob_diff_max <= LOGPROB_LIMIT))
        fm_verifier_find(j->v, SIZE_MAX, FM_EDIFF, "function",
                         "sequence %zu, token %zu: log-probability %.6f, expected %.6f (limit %g)",
                         worst / (size_t)(j->calib.T - 1), worst % (size_t)(j->calib.T - 1) + 1,
                         have[worst], want[worst], LOGPROB_LIMIT);
}

/* FM_EUSAGE if comparing the models takes too much memory even if no layer stays resident. */
static int check_memory(const struct job *j, struct fm_model *have, struct fm_model *want,
                        const struct fm_adapter *adapter, struct fm_err *err)
{
    const struct fm_run_options *run = j->v->run;
    const struct fm_config *c = fm_model_config(have);
    size_t T = (size_t)j->calib.T, copies = 2 * (size_t)j->sequences + (size_t)c->H;
    uint64_t fixed =
        FM_PROCESS_BYTES + FM_ENGINE_BYTES + fm_sweep_scratch_bytes(c, 1, (int)T, 0, 1);
    fixed += T * copies * sizeof(float);
    fixed += j->ops->operand == FM_BF16 ? FM_COMPILED_BYTES : 0;
    if (adapter && !adapter->router) {
        uint64_t channels = (uint64_t)c->E * (uint64_t)c->I;
        fixed += adapter->offset[adapter->M * adapter->E] * sizeof(float) +
                 channels * fm_expert_channel_params(c->expert, c->H) * sizeof(float);
    }
    fm_model_use(have, j->ops);
    fm_model_use(want, j->ops);
    uint64_t memory = fm_machine_memory(&run->machine), need = UINT64_MAX;
    for (int layers = 1; layers >= 0 && need > memory; layers--) {
        if (layers == 0) {
            fm_model_limit(have, 0);
            fm_model_limit(want, 0);
        }
        need = fixed + fm_model_resident_bytes(have) + fm_model_resident_bytes(want);
    }
    return need > memory ? fm_run_memory(run, need, err) : FM_OK;
}

/* Compare two models, with one lane each. */
static int run_both(struct job *j, struct fm_model *have, const struct fm_lane *have_lane,
                    struct fm_model *want, const struct fm_lane *want_lane, struct fm_err *err)
{
    struct fm_verify_report *r = j->v->report;
    struct fm_run_options run = *j->v->run;
    run.inputs.stream = j->bundle.file.path; /* text is encoded with its tokenizer */
    int rc = fm_calib_open(&j->calib, &run, fm_model_config(have), false, err);
    if (rc)
        return rc;
    j->sequences = run.inputs.max_tokens || j->calib.count < SEQUENCES ? j->calib.count : SEQUENCES;
    rc = check_memory(j, have, want, want_lane->adapter, err);
    if (rc || j->plan)
        return rc;
    size_t n = (size_t)j->sequences * (size_t)(j->calib.T - 1);
    float *a = fm_alloc(n, sizeof *a, "log-probabilities", err);
    float *b = fm_alloc(n, sizeof *b, "log-probabilities", err);
    rc = a && b ? compute(j, have, have_lane, a, &r->loss, err) : err->code;
    if (!rc)
        rc = compute(j, want, want_lane, b, &r->loss_want, err);
    if (!rc)
        compare(j, a, b);
    free(a);
    free(b);
    return rc;
}

static const struct fm_lane plain = {.teacher = -1, .ce = 1};

/*
 * Compare the bundle as it is with the checkpoint.  In float32 and without an adapter the
 * checkpoint keeps its own channel order, so that the permutations are tested too.  An adapter
 * requires ranked channels, and so does bfloat16: another order of sums can change how a value is
 * rounded, which changes log-probabilities by more than the limit.  Weights that the checkpoint
 * stores as codes are rounded as in the bundle, if the bundle has values.
 */
static int check_bundle(struct job *j, struct fm_err *err)
{
    struct fm_model *have = NULL, *want = NULL;
    uint64_t memory = fm_machine_memory(&j->v->run->machine) / 4;
    struct fm_lane lane = plain;
    int rc;
    if ((rc = fm_stage_open(&j->bundle, j->v->options->target, FM_MEMBER_SEGMENTS, err)) ||
        (rc = fm_hfdir_open(&j->dir, j->v->run->inputs.model, err)) ||
        (rc = fm_stage_model_check(&j->bundle, &j->dir, err)) ||
        (rc = fm_model_open(&have, j->v->options->target, memory, err)) ||
        (rc = fm_model_open_dir(&want, &j->dir, memory, err)))
        goto out;
    bool adapter = fm_bundle_find(&j->bundle, FM_MEMBER_ADAPTER) != NULL;
    if (adapter || j->ops->operand == FM_BF16) {
        if ((rc = fm_ranking_open(&j->ranking, &j->bundle, err)))
            goto out;
        fm_model_rank(want, j->ranking.order);
    }
    if (adapter) {
        if ((rc = fm_lorafile_open(&j->adapter, &j->bundle, err)))
            goto out;
        lane.adapter = &j->adapter;
        lane.round = true;
    }
    fm_model_keep_codes(want, fm_model_config(have)->scheme.storage != NULL);
    bool merged = lane.adapter && !lane.adapter->router;
    fm_model_round(want, merged ? FM_MODEL_ROUND_REST : FM_MODEL_ROUND_ALL);
    rc = run_both(j, have, &plain, want, &lane, err);
out:
    fm_model_close(have);
    fm_model_close(want);
    return rc;
}

static int check_export(struct job *j, struct fm_err *err)
{
    struct fm_model *have = NULL, *want = NULL;
    uint64_t memory = fm_machine_memory(&j->v->run->machine) / 4;
    struct fm_lane lane = plain;
    int rc = FM_OK;
    if (fm_stage_open(&j->bundle, j->v->options->against, FM_MEMBER_SEGMENTS, err) ||
        fm_model_open(&have, j->v->options->target, memory, err) ||
        fm_model_open(&want, j->v->options->against, memory, err))
        rc = err->code;
    assert(rc || j->plan || j->v->served);
    lane.widths = j->v->served;
    if (!rc) {
        fm_model_keep_codes(want, fm_model_config(have)->scheme.storage != NULL);
        fm_model_round(want, j->v->rest_decoded ? FM_MODEL_ROUND_REST : FM_MODEL_ROUND_ALL);
    }
    if (!rc)
        rc = run_both(j, have, j->v->all_resident ? &lane : &plain, want, &lane, err);
    fm_model_close(have);
    fm_model_close(want);
    return rc;
}

int fm_verify_function(struct fm_verifier *v, bool plan, struct fm_err *err)
{
    struct job j = {.v = v, .plan = plan};
    bool export = v->options->against != NULL;
    const char *bundle = export ? v->options->against : v->options->target;
    if (strcmp(bundle, "-") == 0)
        return fm_fail(err, FM_EUSAGE, "--function reads the bundle twice: give it as a file");
    int rc = fm_machine_ops(&j.ops, &v->run->machine, FM_F32, err);
    if (!rc)
        rc = export ? check_export(&j, err) : check_bundle(&j, err);
    fm_calib_close(&j.calib);
    fm_adapter_release(&j.adapter);
    fm_ranking_release(&j.ranking);
    fm_bundle_close(&j.bundle);
    fm_hfdir_close(&j.dir);
    return rc;
}
