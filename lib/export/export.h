/*
 * Materialise one member of the family from a bundle, or the whole family, without the checkpoint.
 *
 *   native   the online layout, ranges of the bundle copied as they are: layers-NNNNN.safetensors
 *            with flat gate_up (2 sum k, H) and down (sum k, H), and rest.safetensors
 *   ragged   a Hugging Face directory with a modelling file of its own: two flat expert tensors
 *            per layer, widths in config.json as fm_widths
 *   elastic  the same, at full width, with the widths of every budget: fm_budgets (B), fm_family
 *            (B rows as fm_widths), fm_budget, the one to start with, and in every layer a tensor
 *            experts.budget (1): the index of the member in force, -1 to begin with.  With a load
 *            cap (R, R2): the members of these budgets alone, fm_load_cap [R, R2], and every expert
 *            no wider than its widest in them
 *   layer    as ragged, every expert of a layer as wide as the widest; or, for vLLM's fused
 *            kernels, experts in two tensors of three dimensions, gate_up_proj (E, 2 k, H), gate
 *            rows first, and down_proj (E, H, k), k a multiple of 8 and per layer in config.json
 *            as moe_intermediate_size
 *   uniform  stock names, every expert as wide as the budget allows, up to a multiple of 8
 *            (fm_actions_uniform_export): config.json differs from the
 *            checkpoint's in the width key alone
 *   padded   stock names and stock config, tails filled with zeros to the full width
 *
 * Where a width is rounded up, for the layer, for the whole model or to options.pad_multiple, the
 * channels that come with it are the expert's next ranked ones, never zeros: what is served is a
 * superset of the member.
 *
 * Every directory holds config.json, the carried files, README.md (a model card) and
 * fm-export.json: {"schema": 1, "suite": "fm", "layout", "for" ("any" or "vllm"), "index",
 * "removed", "budget", "load_cap": [R, R2] (where there is one), "pad_multiple", "shard_size" (0 in
 * native), "widths": [[k of layer 0 ..] ..], "config": digest of the checkpoint's config.json,
 * "ranking": digest of the bundle's ranking}.  No paths, no dates: same bundle, same options, same
 * bytes.
 */
#ifndef FM_EXPORT_H
#define FM_EXPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/run/run.h"

enum fm_layout {
    FM_LAYOUT_NATIVE,
    FM_LAYOUT_RAGGED,
    FM_LAYOUT_ELASTIC,
    FM_LAYOUT_LAYER,
    FM_LAYOUT_UNIFORM,
    FM_LAYOUT_PADDED
};
#define FM_LAYOUTS 6

/* "native" and so on; NULL outside the enum.  The other way: -1 for an unknown name. */
const char *fm_layout_name(enum fm_layout layout);
int fm_layout_from_name(const char *name);

/* What says which member; for elastic, which one to start with. */
enum fm_choice {
    FM_BY_BUDGET, /* the nearest mask, at most one budget step away */
    FM_BY_FIT,    /* the largest member whose export, every file of the directory or the whole of
                     the stream, takes at most that many bytes; not for elastic */
    FM_BY_MASK,   /* its place in the family */
    FM_BY_DEFAULT /* elastic: the widest that it holds */
};

/* Tensor bytes of a shard where nothing else is asked for: 4 GiB. */
#define FM_EXPORT_SHARD_BYTES ((uint64_t)4 << 30)

/* Zeroed but for layout and the choice is fine. */
struct fm_export_options {
    enum fm_layout layout;
    bool vllm; /* layer: three-dimensional experts */
    enum fm_choice by;
    double budget;
    uint64_t fit;
    int mask;
    uint64_t shard_bytes; /* of Hugging Face layouts; 0: FM_EXPORT_SHARD_BYTES */
    bool load_cap;        /* elastic: members with budgets from load_low to load_high alone */
    double load_low, load_high;
    uint32_t pad_multiple;  /* widths are rounded up to it, and to that of the training; 0: 1 */
    const char *base_model; /* for the model card: "org/name"; NULL: as the checkpoint says */
};

/* What fm_export would do (--dry-run) or did. */
struct fm_export_report {
    enum fm_layout layout;
    int index;                              /* the budget's place in the family */
    double budget;                          /* its fraction */
    uint32_t width_uniform;                 /* layout uniform: the one width */
    uint64_t channels_layout, bytes_layout; /* kept beyond the mask, because layer and uniform have
                                               one width for many experts */
    uint64_t channels_pad, bytes_pad;       /* the same, because of pad_multiple */
    int members;                            /* elastic: budgets that it holds */
    uint64_t channels_freed, bytes_freed;   /* elastic: of the model, but of no such budget */
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
