/*
 * This room, lib/run: what every long computation has, whatever it computes: its options and
 * limits, a guard over what it writes, threads that work and may be stopped, values that need not
 * fit into memory, a state file to resume from, a report.  It knows no model and no stream.  In
 * reading order: run, comm with wire.h, wire_alone.c, wire_mpi.c and ranks (many
 * processes), guard and replaced (outputs), parallel, store, journal, report, process (child
 * programs).
 *
 * What every tool that computes gets: model, tokens, machine, limits.  The
 * command line fills it (cmd/cli.c), the library reads it.  Options that shape a result
 * are recorded in the manifest's history; paths, threads and memory are not.
 */
#ifndef FM_RUN_H
#define FM_RUN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "formats/text/tokens.h"
#include "kernels/ops/kernels.h"
#include "lib/base/err.h"
#include "lib/run/comm.h"

#define FM_INPUTS_MAX 16       /* files of calibration data in one run */
#define FM_WEIGHT_ONE 1000000u /* a weight of 1 in FILE:WEIGHT */

/* Tokens that quality is measured on, where nothing else is asked for. */
#define FM_EVAL_TOKENS 65536

/* Progress of a long run: `done` of `total` units ("layers", "steps", "bytes") of `stage`. */
struct fm_progress {
    void (*report)(void *self, const char *stage, uint64_t done, uint64_t total, const char *unit);
    /* The stage that is reported next is `work` of the run, in FLOPs or the like, and `after` of it
     * comes behind that stage. */
    void (*phase)(void *self, double work, double after);
    /* One line for the user that is not an error: "fm-rank: warning: 3 experts saw no token". */
    void (*warn)(void *self, const char *text);
    /* One that nothing is wrong with: "fm-pack: --budget 0.4: the nearest member is ...". */
    void (*note)(void *self, const char *text);
    void *self;
};

/*
 * Called once, by the process that writes the result, when that is whole on the disk and has no
 * name yet, to say what it is: the report of the run is filled.  Where it fails, nothing appears
 * under the result's name, and the run can be started again as it was.
 */
struct fm_announce {
    int (*say)(void *self, struct fm_err *err); /* NULL: nothing is said */
    void *self;
};

/* What a run computes on: --model, calibration and held-out data, and how they are read. */
struct fm_inputs {
    const char *model;                      /* --model DIR */
    const char *stream;                     /* stage stream, "-": standard input, NULL: none */
    const char *tokens;                     /* --tokens FILE[:WEIGHT] */
    const char *also_tokens[FM_INPUTS_MAX]; /* further ones, NULL after the last */
    const char *texts[FM_INPUTS_MAX];       /* --text FILE[:WEIGHT], as above, after all tokens */
    const char *text_field;                 /* of JSONL rows; NULL: "text" */
    bool split_blank_lines;                 /* of plain text: a document ends at a blank line */
    const char *tokenizer;                  /* tokenizer.json; NULL: the model's own */
    const char *tokenizer_cmd;              /* a command that encodes instead, or NULL */
    const char *eval_tokens;                /* --eval-tokens FILE, or NULL */
    const char *eval_text;                  /* --eval-text FILE, or NULL */
    enum fm_token_type token_dtype;         /* of files that are raw */
    int seq_len;                            /* 0: min(2048, max positions, columns of a 2-D file) */
    int batch;                              /* sequences per batch; 0: the tool's default */
    uint64_t max_tokens;                    /* 0: all */
    uint64_t max_eval_tokens;               /* 0: FM_EVAL_TOKENS */
    bool shuffle;
    uint64_t seed;
};

/* What a run computes with; nothing here but device and precision shapes a result. */
struct fm_machine {
    const char *device; /* "auto", "ref", "cpu" */
    enum fm_precision precision;
    bool precision_auto; /* instead: bfloat16 where the CPU has it and weights are of 16 bits */
    const struct fm_ops *ops; /* NULL: by device and precision; fm-bench measures through its own */
    double assume_rate;       /* GFLOP/s that --dry-run takes for its forecast; 0: a probe's */
    uint64_t memory;          /* bytes; 0: half of the machine's */
    int threads;              /* 0: all CPUs; the tool has started the pool (lib/base/pool.h) */
    struct fm_comm *comm;     /* the ranks that make this run together; NULL: a single process */
};

/* What a run writes. */
struct fm_outputs {
    const char *path;  /* -o FILE, "-": standard output */
    bool force;        /* replace an existing output */
    bool if_changed;   /* run only where the output is not of the same inputs and options */
    const char *state; /* --state FILE, or NULL */
};

struct fm_run_options {
    struct fm_inputs inputs;
    struct fm_machine machine;
    struct fm_outputs outputs;
    struct fm_progress progress;
    struct fm_announce announce;
    const atomic_int *stop; /* nonzero, set by any thread: save and end with FM_ESAVED */
};

/*
 * run->inputs.model may be ORG/NAME, where nothing on disk has that name: it becomes the directory
 * of that checkpoint in the cache of Hugging Face's programs, which stays valid.  FM_ENOENT.
 */
int fm_run_find_model(struct fm_run_options *run, struct fm_err *err);

/* The table for run->machine.device and precision, for weights that are `stored` so. */
int fm_run_ops(const struct fm_ops **ops, const struct fm_run_options *run, enum fm_dtype stored,
               struct fm_err *err);

/* What products of a table round their operands to, as --precision names it: "f32", "bf16". */
const char *fm_run_precision(const struct fm_ops *ops);

/* There are tokens or a text to measure on, apart from the calibration data. */
bool fm_run_evaluates(const struct fm_run_options *run);

/* The first file of calibration data, for messages; NULL: none. */
const char *fm_run_first_input(const struct fm_run_options *run);

/*
 * "FILE" or "FILE:WEIGHT" as on the command line; *length becomes the length of FILE.  A colon
 * that no number follows belongs to FILE; a weight has at most six decimals and is at most a
 * million.  FM_EUSAGE for another one, and for 0.
 */
int fm_run_parse_input(const char *spec, size_t *length, uint64_t *weight, struct fm_err *err);

/* run->machine.memory, or half of the machine's physical memory; of that a rank has its part. */
uint64_t fm_run_memory(const struct fm_run_options *run);

/* Before hours of work: FM_EUSAGE where the result would go to a terminal.  Files: lib/run/guard.h.
 */
int fm_run_check_stream(const struct fm_run_options *run, struct fm_err *err);

/*
 * *free_bytes: bytes that are free where `path` will be, the file system's.  FM_ECREATE where
 * `bytes` do not fit, naming `what` ("bundle").
 */
int fm_run_space(const char *path, const char *what, uint64_t bytes, uint64_t *free_bytes,
                 struct fm_err *err);

/* Remove every unfinished output: for a second signal (async-signal-safe) and for the end. */
void fm_run_abandon(void);

/* run->announce, where there is one. */
int fm_run_announce(const struct fm_run_options *run, struct fm_err *err);

/* Nothing where the caller wants no progress. */
void fm_run_report(const struct fm_run_options *run, const char *stage, uint64_t done,
                   uint64_t total, const char *unit);
void fm_run_phase(const struct fm_run_options *run, double work, double after);
void fm_run_warn(const struct fm_run_options *run, const char *fmt, ...) FM_PRINTF(2, 3);
void fm_run_note(const struct fm_run_options *run, const char *fmt, ...) FM_PRINTF(2, 3);

#endif
