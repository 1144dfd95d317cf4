/*
 * This room, lib/export: one member of a family, or the whole family, as a checkpoint directory
 * that other programs load, made from the bundle without the original checkpoint.  It decides which
 * bytes of the bundle an export has, and writes its config.json and model card.  See formats/bundle
 * for the format of a bundle, lib/stage/volumes.h for the places of experts in it, and lib/masks
 * for the widths of a mask.
 *
 * The forms of an export are the layouts, each a file in lib/export/layouts (layouts.h).  If the
 * width of a routed expert is rounded up, the added channels are its next ranked ones, not zeros.
 *
 * An export by a budget, from options to files:
 *
 *   1. cmd/fm-pack.c reads the options and calls fm_export();
 *   2. exportplan.c refuses invalid combinations, by the layout's descriptor;
 *   3. opened.c opens the family: the bundle, config.json, the masks, and the places of weights;
 *   4. exportplan.c begins the plan: the members that a load cap keeps;
 *   5. export.c chooses the member whose budget is nearest;
 *   6. exportplan.c plans its export.  The mask and the layout determine the widths, the widths
 *      determine the tensors of experts (tensors.c), and the layout distributes all tensors over
 *      files; texts.c and card.c write the texts; planned.h has the lists;
 *   7. export.c computes the size of the output and the free space;
 *   8. exportwriter.c makes the directory: pieces of all files in parallel, whose bytes piece.c
 *      makes from ranges of the bundle.
 *
 * The other files, in reading order: exportoptions.h, layouts.h and layouts.c (the layouts are in
 * lib/export/layouts), trust (which files and keys of a checkpoint load code), frontmatter;
 * filetable (sizes and digests of files; what --force may replace).
 *
 * Lists (list.h; kept.h has what members keep of a kind of text) do steps 3, 4 and 6 for every
 * member; fm-verify (lib/verify/verify_export.c) does them for the member that a directory's
 * fm-export.json names.
 *
 * Every directory holds config.json, the carried files, README.md (a model card) and
 * fm-export.json: {"schema": 1, "suite": "fm", "layout", "for" ("any", "vllm" or "sglang"),
 * "index", "removed", "budget", "weights" ("keep", "bf16" or a format; only if the bundle has codes
 * or experts are rounded), "base_model" and "load_cap": [R, R2] (where they were given),
 * "allow_code" and "keep_extra": true and "keep_config": [keys] (where there are any),
 * "pad_multiple", "shard_size" (0 where the layout is not sharded), "widths": [[k of layer 0 ..]
 * ..], "config": digest of the checkpoint's config.json, "ranking": digest of the bundle's ranking,
 * "files": every other file of the directory with its size and digest (filetable.h)}.  It has no
 * paths and no dates, so the same bundle and options always give the same bytes.
 */
#ifndef FM_EXPORT_H
#define FM_EXPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/quant/quant.h"
#include "lib/export/exportoptions.h"
#include "lib/family/extra.h"
#include "lib/model/model.h"
#include "lib/run/run.h"

/* Report of fm_export; with --dry-run, of what it would write. */
struct fm_export_report {
    int index;                              /* index of the budget in the family */
    double budget;                          /* the budget: a fraction */
    uint32_t width_uniform;                 /* of every expert; 0: they differ */
    double width_mean;                      /* mean width of an expert in the mask */
    uint64_t channels_layout, bytes_layout; /* kept beyond the mask, because the layout has one
                                               width for many experts */
    uint64_t channels_pad, bytes_pad;       /* kept beyond the mask, because of pad_multiple or the
                                               format of rounded experts */
    int members;                            /* for layouts that hold the family: number of its
                                               budgets in the export; else 0 */
    uint64_t channels_freed, bytes_freed; /* for layouts that hold the family: channels of the model
                                             that none of its budgets in the export keeps */
    bool removes_nothing;  /* every channel is in the files, although the mask removes some */
    uint64_t bytes_source; /* bytes of the checkpoint's weight files */
    bool larger;           /* the export's weight files are more than 2 % larger */
    double break_even;     /* budget from which weight files are smaller than the checkpoint's; more
                              than 1: there is no such budget */
    uint64_t bytes_weights;         /* safetensors files, headers included */
    uint64_t bytes_out;             /* all files, or the stream */
    uint64_t bytes_memory;          /* the plan, and buffers at the peak */
    uint64_t bytes_free;            /* on the output's file system; 0: standard output */
    char storage[FM_STORAGE_NAMES]; /* storages of a bundle of codes, "fp8"; "": unquantised */
    bool codes;                     /* the export holds these codes, not their values */
    struct fm_extra extra;          /* extra tensors of the bundle */
    int files;
    double seconds;
};

/*
 * Make the export. run->inputs.stream is the bundle (a file, or "-"), run->outputs.path the
 * directory to make ("-": the same files as a tar stream on standard output); force, threads,
 * progress and stop are used too.  FM_EUSAGE if no member is close enough (the error lists the
 * nearest ones) or small enough, and for options that exclude each other.  FM_ECONFIG if the
 * layout or an option does not support this model.  FM_EFORMAT for a broken bundle; FM_ECREATE if
 * the directory exists, unless `force` may replace it (filetable.h).
 */
int fm_export(const struct fm_run_options *run, const struct fm_export_options *options,
              struct fm_export_report *report, struct fm_err *err);

/* Read and check everything except the weights; write nothing.  The bundle may also be a checkpoint
 * that has not been packed yet (fm_opened_foresee). */
int fm_export_plan(const struct fm_run_options *run, const struct fm_export_options *options,
                   struct fm_export_report *report, struct fm_err *err);

/* As fm_export_plan for a directory, and let `model`, opened from the same bundle, be read as that
 * export would be (fm_model_narrow). */
int fm_export_read(struct fm_model *model, const struct fm_run_options *run,
                   const struct fm_export_options *options, struct fm_export_report *report,
                   struct fm_err *err);

#endif
