/* The one place that knows the conventions: all else is told which positions count. */
#include "lib/bench/convention.h"

#include "lib/engine/sweep.h"

#define LLAMA_WINDOW 512 /* llama-perplexity's default of -c */

const char *fm_convention_name(enum fm_convention convention)
{
    static const char *const name[FM_CONVENTIONS] = {"papers", "llama.cpp"};
    return convention < FM_CONVENTIONS ? name[convention] : NULL;
}

static int open_windows(struct fm_bench_text *t, const struct fm_run_options *run,
                        const struct fm_config *config, struct fm_err *err)
{
    int rc = fm_inputs_evaluate(&run->inputs)
                 ? fm_calib_open(&t->held, run, config, true, err)
                 : fm_quality_open(&t->train, &t->held, run, config, err);
    if (rc || t->convention == FM_CONVENTION_PAPERS)
        return rc;
    t->detail.from = t->held.T / 2;
    if (t->detail.from >= t->held.T - 1)
        return fm_fail(err, FM_EUSAGE,
                       "--seq-len %d: convention llama.cpp predicts the tokens after the middle "
                       "one, which needs at least 3",
                       t->held.T);
    return fm_corpus_front(&t->detail.fronted, &t->detail.front, run, config->V, err);
}

int fm_bench_text_open(struct fm_bench_text *t, enum fm_convention convention,
                       const struct fm_run_options *run, const struct fm_config *config,
                       struct fm_err *err)
{
    struct fm_run_options own = *run;
    *t = (struct fm_bench_text){.convention = convention};
    if (convention == FM_CONVENTION_LLAMA && !own.inputs.seq_len)
        own.inputs.seq_len = config->T_exact < LLAMA_WINDOW ? config->T_exact : LLAMA_WINDOW;
    int rc = open_windows(t, &own, config, err);
    if (rc)
        fm_bench_text_close(t);
    return rc;
}

void fm_bench_text_close(struct fm_bench_text *t)
{
    fm_calib_close(&t->held);
    fm_calib_close(&t->train);
}

uint64_t fm_bench_text_tokens(const struct fm_bench_text *t)
{
    return (uint64_t)t->held.count * (uint64_t)(t->held.T - 1 - t->detail.from);
}

uint64_t fm_bench_text_values(const struct fm_bench_text *t, int masks)
{
    return fm_quality_detail_bytes(fm_bench_text_tokens(t),
                                   masks < FM_LANES_MAX ? masks : FM_LANES_MAX - 1);
}
