/*
 * Materialise one member of the family from a bundle, or the whole family, without the checkpoint.
 *
 * The forms that it can have are the layouts (lib/export/layouts.h), each in a file of its own.
 *
 * Where a width is rounded up, for the layer, for the whole model or to options.pad_multiple, the
 * channels that come with it are the expert's next ranked ones, never zeros: what is served is a
 * superset of the member.
 *
 * Every directory holds config.json, the carried files, README.md (a model card) and
 * fm-export.json: {"schema": 1, "suite": "fm", "layout", "for" ("any" or "vllm"), "index",
 * "removed", "budget", "load_cap": [R, R2] and "allow_code": true (where there are such),
 * "pad_multiple", "shard_size" (0 where the layout is not sharded), "widths": [[k of layer 0 ..]
 * ..], "config": digest of the checkpoint's config.json, "ranking": digest of the bundle's
 * ranking}. No paths, no dates: same bundle, same options, same bytes.
 */
#ifndef FM_EXPORT_H
#define FM_EXPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/export/exportoptions.h"
#include "lib/run/run.h"

/* What fm_export would do (--dry-run) or did. */
struct fm_export_report {
    const struct fm_layout *layout;
    int index;                              /* the budget's place in the family */
    double budget;                          /* its fraction */
    uint32_t width_uniform;                 /* of layouts with one width */
    uint64_t channels_layout, bytes_layout; /* kept beyond the mask, because the layout has one
                                               width for many experts */
    uint64_t channels_pad, bytes_pad;       /* the same, because of pad_multiple */
    int members;                            /* of the family: budgets that it holds */
    uint64_t channels_freed, bytes_freed;   /* of the family: of the model, but of no such budget */
    uint64_t bytes_weights;                 /* safetensors files, headers included */
    uint64_t bytes_out;                     /* all files, or the stream */
    uint64_t bytes_memory;                  /* buffers at the peak */
    uint64_t bytes_free;                    /* on the output's file system; 0: standard output */
    int files;
    double seconds;
};

/*
 * run->input is the bundle (a file, or "-"), run->output the directory to make ("-": the same
 * files as a tar stream on standard output); force, threads, progress and stop are used too.
 * FM_EUSAGE where no member is near enough or small enough (the sentence lists the neighbours), and
 * for options that do not go together.  FM_ECONFIG where the layout cannot hold the family.
 * FM_EFORMAT for a broken bundle; FM_ECREATE where the directory exists.
 */
int fm_export(const struct fm_run_options *run, const struct fm_export_options *options,
              struct fm_export_report *report, struct fm_err *err);

/* Everything but the weights is read and checked, nothing is written. */
int fm_export_plan(const struct fm_run_options *run, const struct fm_export_options *options,
                   struct fm_export_report *report, struct fm_err *err);

#endif
