/*
 * Whole runs of rank, train and recover on golden/odd-mixtral, in the scratch directory: options, a
 * count of warnings, a stop after a number of progress reports, and the bytes of the outputs.
 */
#ifndef FM_TESTS_RUNS_H
#define FM_TESTS_RUNS_H

#include "lib/base/rng.h"
#include "lib/run/run.h"
#include "tests/unit/scratch.h"

#define RUNS_MODEL "golden/odd-mixtral"

struct runs {
    struct fm_run_options run;
    atomic_int stop; /* the flag of run.stop */
    int countdown;   /* progress reports until stop is set; < 0: never */
    int warnings;    /* warnings so far */
    char text[512];  /* the last warning */
    char input[512], output[512], state[512], tokens[512];
};

/* A name in the scratch directory that stays valid; scratch() has few buffers. */
static inline const char *runs_path(char *to, const char *name)
{
    snprintf(to, 512, "%s", scratch(name));
    return to;
}

static inline void runs_report(void *self, const char *stage, uint64_t done, uint64_t total,
                               const char *unit)
{
    (void)stage, (void)done, (void)total, (void)unit;
    struct runs *r = self;
    if (r->countdown >= 0 && r->countdown-- == 0)
        r->stop = 1;
}

static inline void runs_warn(void *self, const char *text)
{
    struct runs *r = self;
    r->warnings++;
    snprintf(r->text, sizeof r->text, "%s", text);
}

/* input and output are names in the scratch directory; input may be NULL. */
static inline void runs_init(struct runs *r, const char *input, const char *output)
{
    *r = (struct runs){.countdown = -1};
    r->run =
        (struct fm_run_options){.inputs.model = RUNS_MODEL,
                                .inputs.tokens = {{.path = RUNS_MODEL "/tokens.npy"}},
                                .inputs.seed = 1,
                                .machine.device = "ref",
                                .machine.memory = (uint64_t)64 << 20,
                                .inputs.stream = input ? runs_path(r->input, input) : NULL,
                                .outputs.path = runs_path(r->output, output),
                                .outputs.force = true,
                                .progress = {.report = runs_report, .warn = runs_warn, .self = r},
                                .stop = &r->stop};
}

/* Use other tokens: `count` sequences of `T` random ones, as raw 16-bit words. */
static inline void runs_tokens(struct runs *r, int count, int T)
{
    uint16_t word[4096];
    int n = count * T;
    scratch_check(n <= 4096, "tokens");
    for (int i = 0; i < n; i++)
        word[i] = (uint16_t)fm_rng_below(1, FM_STREAM_BENCH, (uint64_t)i, 97);
    scratch_write("tokens.u16", word, (size_t)n * sizeof *word);
    r->run.inputs.tokens[0].path = runs_path(r->tokens, "tokens.u16");
    r->run.inputs.seq_len = T;
}

/* Use all tokens both for the work and for measuring: nothing is held out. */
static inline void runs_whole(struct runs *r)
{
    r->run.inputs.eval_tokens[0] = r->run.inputs.tokens[0].path;
}

/* Whether two files of the scratch directory have the same bytes. */
static inline bool runs_same(const char *a, const char *b)
{
    return scratch_same(scratch(a), scratch(b));
}

#endif
