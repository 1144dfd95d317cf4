/*
 * An export in the making: what lib/export.c and the layouts share.  Nobody else includes
 * this.
 *
 * A layout says which tensors there are, how each is filled from the bundle, and which files
 * they go into (fm_exporter_native, fm_exporter_hf).  The rest, from choosing the mask to
 * writing a directory or a tar stream, does not know layouts.
 */
#ifndef FM_EXPORTER_H
#define FM_EXPORTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/bundle.h"
#include "lib/budgets.h"
#include "lib/crew.h"
#include "lib/export.h"
#include "lib/model.h"
#include "lib/volumes.h"

/* Where a tensor's bytes come from. */
enum fm_fill {
    FM_FILL_COPY, /* a range of the bundle */
    FM_FILL_FLAT, /* the first channels of every expert of a layer, one expert after another */
    FM_FILL_GATE, /* every second row of one expert's gate_up, then zeros: (rows, H) */
    FM_FILL_UP,
    FM_FILL_DOWN /* one expert's down, transposed back: (H, rows), columns behind its width zero */
};

struct fm_export_tensor {
    struct fm_tensor t; /* name is owned; offset is that in its file */
    enum fm_fill fill;
    int l, e;
    enum fm_segment_part part; /* FLAT */
    uint64_t from;             /* COPY: absolute in the bundle */
    size_t file;
};

struct fm_export_file {
    char name[128];
    char *head; /* the whole file, or the header of a weight file; owned */
    uint64_t head_bytes, bytes;
    bool weights;
};

struct fm_exporter {
    const struct fm_run_options *run;
    const struct fm_export_options *options;
    bool head; /* the beginning of a bundle is enough: there are no weights */
    struct fm_bundle bundle;
    char *config_text; /* config.json of the checkpoint */
    size_t config_bytes;
    struct fm_config config;
    struct fm_volumes volumes;
    struct fm_budgets budgets;
    int index;                       /* the budget */
    uint32_t *widths;                /* (L, E): channels of every expert in the files' weights */
    int rows;                        /* PADDED, UNIFORM: channels that the files have room for */
    struct fm_export_tensor *tensor; /* in order of file, then offset, once planned */
    size_t tensors, tensors_capacity;
    struct fm_export_file *file;
    size_t files, files_capacity;
    struct fm_crew crew;
};

/* Set widths and rows for budget `index`, and the tensors and weight files of the layout. */
int fm_exporter_plan(struct fm_exporter *x, int index, struct fm_err *err);
int fm_exporter_native(struct fm_exporter *x, struct fm_err *err);
int fm_exporter_hf(struct fm_exporter *x, struct fm_err *err);

/* Add a tensor; `like` is copied, its name too. */
int fm_exporter_add_tensor(struct fm_exporter *x, const struct fm_export_tensor *like,
                           struct fm_err *err);
/* Add a file; takes head over, in failure too. */
int fm_exporter_add_file(struct fm_exporter *x, const char *name, char *head, uint64_t head_bytes,
                         uint64_t bytes, bool weights, struct fm_err *err);
/* A tensor of that name is in file `file` at `offset`. */
void fm_exporter_place(struct fm_exporter *x, const struct fm_tensor *planned, size_t file);

/* Bytes of all weight files. */
uint64_t fm_exporter_weight_bytes(const struct fm_exporter *x);

/* Bytes [from, from + size) of a tensor into dst.  GATE, UP: whole rows; DOWN: all of it. */
int fm_exporter_fill(const struct fm_exporter *x, const struct fm_export_tensor *t, uint64_t from,
                     uint64_t size, void *dst, struct fm_err *err);
/* Bytes that may be filled at once, at most about `limit`. */
uint64_t fm_exporter_piece(const struct fm_exporter *x, const struct fm_export_tensor *t,
                           uint64_t limit);

/* config.json, fm-export.json, README.md, the carried files, the modelling file. */
int fm_exporter_texts(struct fm_exporter *x, struct fm_err *err);
/* True for names that an export writes itself, whatever the checkpoint carried. */
bool fm_exporter_owns(const char *name);

/* Open the bundle and what does not depend on the mask; release in every case. */
int fm_exporter_open(struct fm_exporter *x, struct fm_err *err);
void fm_exporter_release(struct fm_exporter *x);

#define FM_EXPORT_JSON FM_OUTDIR_MARK
#define FM_EXPORT_CARD "README.md"
#define FM_EXPORT_MODELING "modeling_fm.py"

#endif
