/*
 * An export in the making: what the files lib/export*.c and the layouts share.  Nobody else
 * includes this, but lib/verify_export*.c and lib/export/list.c, which plan an export to compare or
 * to count.
 *
 * A layout (lib/export/layouts.h) says which tensors there are, how each is filled from the bundle,
 * and which files they go into.  The rest, from choosing the mask to writing a directory or a tar
 * stream, does not know layouts.
 */
#ifndef FM_EXPORTER_H
#define FM_EXPORTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/bundle/bundle.h"
#include "formats/file/text.h"
#include "lib/export/export.h"
#include "lib/model/family.h"
#include "lib/model/model.h"
#include "lib/run/crew.h"
#include "lib/stage/budgets.h"
#include "lib/stage/volumes.h"

/* Where a tensor's bytes come from. */
enum fm_fill {
    FM_FILL_COPY, /* a range of the bundle */
    FM_FILL_FLAT, /* the first channels of every expert of a layer, one expert after another */
    FM_FILL_GATE, /* every second row of one expert's gate_up, then zeros: (rows, H) */
    FM_FILL_UP,
    FM_FILL_DOWN,       /* one expert's down, transposed back: (H, rows), columns behind its width
                           zero */
    FM_FILL_FUSED_UP,   /* (E, 2 k, H): of every expert the k gate rows, then the k up rows */
    FM_FILL_FUSED_DOWN, /* (E, H, k): of every expert down, transposed back */
    FM_FILL_INDEX       /* one number, -1: the budget to start with is not chosen here */
};

struct fm_export_tensor {
    struct fm_tensor t; /* name is owned; offset is that in its file */
    enum fm_fill fill;
    int l, e;                 /* layer as its place in config.moe; expert */
    enum fm_weight_part part; /* FLAT, and the two FUSED */
    uint64_t from;            /* COPY: absolute in the bundle */
    size_t file;
};

struct fm_export_file {
    char name[128];
    char *head; /* the whole file, or the header of a weight file; owned; NULL: not read yet */
    uint64_t head_bytes, bytes;
    const struct fm_member *member; /* what a carried file is a copy of */
    bool weights;
};

struct fm_exporter {
    const struct fm_run_options *run;
    const struct fm_export_options *options;
    bool head; /* the beginning of a bundle is enough: there are no weights */
    struct fm_bundle bundle;
    char *config_text; /* config.json of the checkpoint */
    size_t config_bytes;
    char license[512], base_model[128]; /* of the model card, "" where unknown */
    struct fm_config config;
    struct fm_volumes volumes;
    struct fm_budgets budgets;
    int first, last;  /* budgets that the export may serve */
    int index;        /* the budget */
    uint32_t *widths; /* (M, E): channels of every expert in the files */
    uint32_t *stored; /* (M, E): channels that files have room for, the last ones zero */
    uint64_t channels_layout, channels_pad; /* in widths and not in the mask: struct
                                               fm_export_report */
    struct fm_export_tensor *tensor;        /* in order of file, then offset, once planned */
    size_t tensors, tensors_capacity;
    struct fm_export_file *file;
    size_t files, files_capacity;
    /* What tensors and the first `weight_files` files were planned for: they stay as long as only
     * the texts change. */
    struct fm_export_options planned;
    uint32_t *planned_stored; /* (M, E) */
    size_t weight_files;
    char *family; /* elastic: fm_family of config.json for planned.pad_multiple; NULL: not yet */
    struct fm_crew crew;
};

/* ---- a plan ---- */

/* Tensors, weight files and texts for budget `index`, in place of those planned before. */
int fm_exporter_plan(struct fm_exporter *x, int index, struct fm_err *err);

/* Add a tensor; `like` is copied, its name too. */
int fm_exporter_add_tensor(struct fm_exporter *x, const struct fm_export_tensor *like,
                           struct fm_err *err);
/* Add a file; takes head over, in failure too. */
int fm_exporter_add_file(struct fm_exporter *x, const char *name, char *head, uint64_t head_bytes,
                         uint64_t bytes, bool weights, struct fm_err *err);
/* A tensor of that name is in file `file` at `offset`. */
void fm_exporter_place(struct fm_exporter *x, const struct fm_tensor *planned, size_t file);

/* Bytes of all weight files; of all files; and of a tar stream of them. */
uint64_t fm_exporter_weight_bytes(const struct fm_exporter *x);
uint64_t fm_exporter_bytes(const struct fm_exporter *x);
uint64_t fm_exporter_stream_bytes(const struct fm_exporter *x);

/* The bytes of file i before its tensors, file[i].head_bytes of them; a carried file is read from
 * the bundle and checked.  Each file by one thread. */
int fm_exporter_head(struct fm_exporter *x, size_t i, const char **head, struct fm_err *err);

/* ---- widths ---- */

/* Set x->widths, stored and the counts of what was rounded up, for x->index. */
void fm_exporter_widths(struct fm_exporter *x);
/* FM_EUSAGE for a pad_multiple that experts of this model cannot have. */
int fm_exporter_check_pad(const struct fm_exporter *x, struct fm_err *err);
/* A width as this export has it: rounded up to pad_multiple, where it stays a multiple of what the
 * training and the layout's kernels ask for. */
uint32_t fm_exporter_round(const struct fm_exporter *x, uint32_t width);
/* Channels of all experts of the model that are not in the files. */
uint64_t fm_exporter_freed(const struct fm_exporter *x);
/* Channels that files have room for: of the l-th layer of experts; of all. */
uint64_t fm_exporter_channels(const struct fm_exporter *x, int l);
uint64_t fm_exporter_channels_all(const struct fm_exporter *x);
/* Do files have room for every channel of the model, whatever the mask says? */
bool fm_exporter_full(const struct fm_exporter *x);

/* ---- bytes ---- */

/* Bytes [from, from + size) of a tensor into dst.  GATE, UP, FUSED_UP: whole rows; FUSED_DOWN:
 * whole experts; DOWN: all of it. */
int fm_exporter_fill(const struct fm_exporter *x, const struct fm_export_tensor *t, uint64_t from,
                     uint64_t size, void *dst, struct fm_err *err);
/* Bytes that may be filled at once, at most about `limit`. */
uint64_t fm_exporter_piece(const struct fm_exporter *x, const struct fm_export_tensor *t,
                           uint64_t limit);
/* The weights of one channel: a row of gate, of up and of down. */
uint64_t fm_exporter_channel_bytes(const struct fm_exporter *x);

/* License and base model, from the checkpoint's own card and config: once, at open. */
int fm_exporter_origin(struct fm_exporter *x, struct fm_err *err);
/* ---- from beginning to end ---- */

/* Open the bundle and what does not depend on the mask; release in every case. */
int fm_exporter_open(struct fm_exporter *x, struct fm_err *err);
/* The same where x->bundle is open already. */
int fm_exporter_take(struct fm_exporter *x, struct fm_err *err);
void fm_exporter_release(struct fm_exporter *x);
/* FM_EUSAGE for options that do not go together. */
int fm_exporter_check(const struct fm_export_options *options, struct fm_err *err);
/* Set first and last: the members inside a load cap, or all. */
int fm_exporter_keep(struct fm_exporter *x, struct fm_err *err);
/* The index that the options choose. */
int fm_exporter_choose(struct fm_exporter *x, int *index, struct fm_err *err);
/* All files, as a new directory or as a tar stream on standard output. */
int fm_exporter_write(struct fm_exporter *x, struct fm_err *err);

/* Bytes of a tensor that one task fills: large enough for a disk and for the system call's cost,
 * small enough for the second cache. */
#define FM_EXPORT_PIECE ((uint64_t)4 << 20)

#define FM_EXPORT_JSON FM_OUTDIR_MARK
#define FM_EXPORT_CARD "README.md"
#define FM_EXPORT_MODELING "modeling_fm.py"

#endif
