/*
 * Materialise one member of the family from a bundle, without the checkpoint.
 *
 *   native   the online layout, ranges of the bundle copied as they are: layers-NNNNN.safetensors
 *            with flat gate_up (2 sum k, H) and down (sum k, H), and rest.safetensors
 *   ragged   a Hugging Face directory with a modelling file of its own: two flat expert tensors
 *            per layer, widths in config.json as fm_widths
 *   padded   stock names and stock config, tails filled with zeros to the full width
 *   uniform  stock names, every expert as wide as the budget allows, up to a multiple of 8
 *            (fm_actions_uniform_export): config.json differs from the
 *            checkpoint's in intermediate_size alone
 *
 * Every directory holds config.json, the carried files, README.md (a model card) and
 * fm-export.json: {"schema": 1, "suite": "fm", "layout", "index", "removed", "budget",
 * "widths": [[k of layer 0 ..] ..], "config": digest of the checkpoint's config.json,
 * "ranking": digest of the bundle's ranking}.  No paths, no dates: same bundle, same bytes.
 */
#ifndef FM_EXPORT_H
#define FM_EXPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/run.h"

enum fm_layout { FM_LAYOUT_NATIVE, FM_LAYOUT_RAGGED, FM_LAYOUT_PADDED, FM_LAYOUT_UNIFORM };
#define FM_LAYOUTS 4

/* "native" and so on; NULL outside the enum.  The other way: -1 for an unknown name. */
const char *fm_layout_name(enum fm_layout layout);
int fm_layout_from_name(const char *name);

/* How the member is chosen: exactly one of budget and fit. */
struct fm_export_options {
    enum fm_layout layout;
    double budget; /* --budget R: the nearest mask, at most one budget step away; < 0: not given */
    uint64_t fit;  /* --fit SIZE: the largest member whose weight files take at most that many
                      bytes in this layout; 0: not given */
};

/* What fm_export would do (--dry-run) or did. */
struct fm_export_report {
    enum fm_layout layout;
    int index;              /* the budget's place in the family */
    double budget;          /* its fraction */
    uint32_t width_uniform; /* layout uniform: the one width */
    uint64_t bytes_weights; /* safetensors files, headers included */
    uint64_t bytes_out;     /* all files */
    uint64_t bytes_memory;  /* buffers at the peak */
    uint64_t bytes_free;    /* on the output's file system; 0 for standard output */
    int files;
    double seconds;
};

/*
 * run->input is the bundle (a file, or "-"), run->output the directory to make ("-": the same
 * files as a tar stream on standard output); force, threads, progress and stop are used too.
 * FM_EUSAGE where no member is near enough or small enough: the sentence lists the neighbours.
 * FM_EFORMAT for a broken bundle; FM_ECREATE where the directory exists.
 */
int fm_export(const struct fm_run_options *run, const struct fm_export_options *options,
              struct fm_export_report *report, struct fm_err *err);

/* Everything but the weights is read and checked, nothing is written. */
int fm_export_plan(const struct fm_run_options *run, const struct fm_export_options *options,
                   struct fm_export_report *report, struct fm_err *err);

#endif
