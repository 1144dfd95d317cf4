/*
 * The layouts: the forms of an export.  Each is one descriptor in its own file in
 * lib/export/layouts, and one row of the list below; other code reads the descriptor, and names a
 * layout only to choose that one.  The descriptor gives the widths, the tensors, the division into
 * files, the contents of config.json and the model card, how servers split the layout over devices,
 * and its options.  Functions that several descriptors use are in plan.h.
 *
 * A layout has one form for all runtimes, and may have others, each with its own descriptor.
 */
#ifndef FM_LAYOUTS_H
#define FM_LAYOUTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/file/text.h"
#include "lib/base/err.h"
#include "lib/family/family.h"

struct fm_exportplan;
struct fm_texts_edit;

/* What servers do with experts when a model is split over devices. */
enum fm_split {
    FM_SPLIT_NONE,   /* only the fm tools can read it */
    FM_SPLIT_HEADS,  /* every device has whole experts; attention is split */
    FM_SPLIT_EXPERTS /* every device also has a part of each expert's channels */
};

struct fm_layout {
    const char *name;             /* of --layout */
    const char *runtime;          /* --for: "any", "vllm"; NULL: one form for all */
    const struct fm_layout *vllm; /* the form for --for vllm, or NULL */
    const char *listed;           /* in the form for vLLM: its name in lists */

    /* ---- widths ---- */

    bool all_members;   /* it holds all members, or those that --load-cap keeps: --budget selects
                           the default one, and --fit does not apply */
    const char *capped; /* all_members: its name in lists with a load cap; NULL: it does not
                           support one */
    bool one_width;     /* one width for all experts of the model, whatever the mask says */
    const char *plain;  /* the reason why it cannot hold the codes and scales of a quantised
                           checkpoint; NULL: it can, with `code` only those of experts */
    uint32_t multiple;  /* its kernels require widths that are multiples of it; 1: any */
    /* Replace the mask's widths, p->widths.kept; NULL: they are used unchanged. */
    void (*level)(struct fm_exportplan *p);
    /* After these are rounded up: change the widths in the files, p->widths, if they are others. */
    void (*store)(struct fm_exportplan *p);
    const char *leveled;     /* the reason: "one width per layer" */
    const char *granularity; /* of masks for it, when fm-family makes them; NULL: any */

    /* ---- tensors and files ---- */

    enum fm_naming names;
    /* Plan the tensors of the experts of the m-th layer of experts. */
    int (*experts)(struct fm_exportplan *p, int m, struct fm_err *err);
    bool extra;   /* it supports --keep-extra: loaders read layers for multi-token prediction at the
                     original width */
    bool sharded; /* --shard-size applies; otherwise the layout determines the files */
    /* Put all tensors into files. */
    int (*files)(struct fm_exportplan *p, struct fm_err *err);

    /* ---- texts ---- */

    bool code; /* it includes modeling_fm.py, so loading requires trust_remote_code */
    /* Edit the checkpoint's config.json; NULL: leave it unchanged. */
    void (*config)(struct fm_texts_edit *edit, struct fm_exportplan *p);
    const char *about;        /* description for the model card */
    const char *about_capped; /* the same with a load cap */
    /* Options for the servers' commands, with a leading blank. */
    const char *vllm_options, *sglang_options;
    bool sglang_package; /* SGLang needs the suite's package to run it */
    const char *running; /* further ways to run it, for the card; or NULL */

    enum fm_split split;
};

/* The list, in the order of output: a row NAME for each layout, whose file defines fm_layout_NAME.
 */
/* clang-format off */
#define FM_LAYOUT_ROWS(ROW) \
    ROW(native)             \
    ROW(ragged)             \
    ROW(elastic)            \
    ROW(layer)              \
    ROW(uniform)            \
    ROW(padded)
/* clang-format on */

#define FM_LAYOUT_DECLARE(name) extern const struct fm_layout fm_layout_##name;
FM_LAYOUT_ROWS(FM_LAYOUT_DECLARE)

/* The default of --layout, and the layout in which lists give sizes of experts rounded to a format.
 */
#define FM_LAYOUT_DEFAULT (&fm_layout_ragged)
#define FM_LAYOUT_ROUNDED (&fm_layout_uniform)

/* All layouts, in the order of output; the last is NULL. */
extern const struct fm_layout *const fm_layouts[];
#define FM_LAYOUTS_MAX 16

/* Channels of the shared expert in files whose experts all have k.  If config.json gives its width
 * as a number of experts (shared_key of struct fm_model_family), its width becomes a multiple of k,
 * padded with zeros; k 0: it is unchanged. */
int fm_layouts_shared(const struct fm_config *config, uint32_t k);

/* NULL if no layout has that name. */
const struct fm_layout *fm_layouts_find(const char *name);
/* Whether exports in the layout of that name hold all members; false for an unknown name. */
bool fm_layouts_holds_all(const char *name);
/* What masks must have for exports in the layout of that name to have their widths: the granularity
 * (NULL: any), and the multiple of widths (1: any). */
const char *fm_layouts_masks(const char *name, uint32_t *multiple);
/* "native|ragged|...", the choices of an option. */
void fm_layouts_choices(char *text, size_t size);
/* Replace *layout with its form for vLLM; FM_EUSAGE if it has one form for all. */
int fm_layouts_vllm(const struct fm_layout **layout, struct fm_err *err);
/* For messages: the name of the first layout that supports a load cap; "native or padded", the
 * layouts that can keep extra tensors. */
const char *fm_layouts_capped(void);
void fm_layouts_extra(char *text, size_t size);

#endif
