/*
 * This room, lib/verify: find and name every fault of a file that the suite wrote, in one run.
 * Members and layouts are described only in the rooms that write them; this room uses those
 * descriptions.  In reading order: this header, verify.c, verifier.c (findings, and the scan of
 * bytes), verify_bundle.c with verify_contents.c, verify_claim.c, verify_export.c with
 * verify_weights.c, verify_table.c, verify_function.c.
 *
 * Check a bundle, a stage stream, or an exported directory.  A directory is checked against the
 * bundle it was made from (for most exports its members up to segments.safetensors are enough, and
 * it may be truncated after them), or, without one, against its own table of files.
 *
 * A finding is one line: the item (member, tensor, budget) and what is wrong.  The check continues
 * to the end, so one run lists everything.
 *
 * With run->inputs.model and without `function`, the weights of the bundle, or of the export's
 * bundle, are also packed again from that checkpoint, and their checksums are compared
 * (lib/stage/pack.h).
 *
 * Result: FM_OK; FM_EDIFF if bytes differ from a checksum; FM_EFORMAT if the checksums match but
 * the content is invalid (an order that is not a permutation, a width that is not an action, a
 * NaN), or the structure is malformed; other codes if the check was not possible.
 */
#ifndef FM_VERIFY_H
#define FM_VERIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/export/exportplan.h"
#include "lib/run/run.h"

#define FM_VERIFY_SKIPS_MAX 12

struct fm_verify_options {
    const char *target;  /* a bundle or stage stream ("-": standard input), or a directory */
    const char *against; /* for a directory: its bundle, or the beginning of it; NULL: check
                            against its own table */
    bool function;       /* also compare what the weights compute, on four sequences or those of
                            run->inputs.max_tokens; needs tokens or a text in run->inputs and, for a
                            bundle, run->inputs.model */
    /* One finding; item is "weights/layers-00003.safetensors", "masks.zst: budget 4", ...
     * Called by one thread at a time, in a fixed order. */
    void (*finding)(void *self, const char *item, const char *what);
    /* One file of a directory without its bundle that is not in its table; may be NULL. */
    void (*not_listed)(void *self, const char *name);
    void *self;
};

struct fm_verify_report {
    const char *kind; /* "bundle", "stage", or the name of the layout */
    int index;        /* for exports: index of the budget, else -1 */
    double budget;    /* for exports: the budget, a fraction */
    uint64_t items;   /* members, tensors, masks, permutations that were checked */
    uint64_t failed;  /* faults, of which an item can have several */
    uint64_t bytes;   /* bytes read and checked; for an intact export, the size of its files, as
                         fm-pack and fm_list_form count it */
    int codes; /* for exports: number of files that Python may run, and of keys by which a program
                  loads code or another model ("config.json: auto_map"), each with its author */
    struct fm_verify_code {
        char name[FM_CODE_NAME_BYTES];
        bool ours;
    } code[FM_CODES_MAX];
    int skips; /* for exports: files of the directory that were not compared */
    const char *skip[FM_VERIFY_SKIPS_MAX];
    bool function;           /* true if the fields below are set */
    double loss, loss_want;  /* mean cross-entropy of the target and of its reference */
    double logprob_diff_max; /* largest difference of a token's log-probability */
    double seconds;
};

/*
 * Verify. run gives threads, memory, progress and, for `function`, model, tokens, seq_len and
 * device.  With `function`, a bundle's full model is compared with run->inputs.model,
 * merged with the bundle's adapter if there is one; and an export is compared with the bundle under
 * the export's mask, for which `against` must be a whole bundle.
 */
int fm_verify(const struct fm_run_options *run, const struct fm_verify_options *options,
              struct fm_verify_report *report, struct fm_err *err);

/* For a dry run, the checks made before anything is read: FM_EUSAGE for options that exclude each
 * other, FM_ENOENT if a required directory does not exist; with `function`, also open the files,
 * and return FM_EUSAGE if the memory limit is too small. */
int fm_verify_plan(const struct fm_run_options *run, const struct fm_verify_options *options,
                   struct fm_err *err);

/* True if the target is a directory and no bundle is given. */
bool fm_verify_is_unpaired(const struct fm_verify_options *options);

/* Count the files and bytes in the table of an exported directory, and fm-export.json, which has
 * the table; reads only that file.  FM_EFORMAT. */
int fm_verify_table_listed(const char *directory, uint64_t *files, uint64_t *bytes,
                           struct fm_err *err);

#endif
