/*
 * The layouts: the forms of an export.  Each is one descriptor in its own file in
 * lib/export/layouts, and one row of the list below; other code reads the descriptor, and names a
 * layout only to choose that one.  The descriptor gives the widths, the tensors, the division into
 * files, the contents of config.json and the model card, how servers split the layout over devices,
 * and its options.  Functions that several descriptors use are in tensors.h, planned.h and
 * texts.h.
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

/* What some layouts do not support, and reasons that several of them give. */
enum fm_layout_option {
    FM_WITH_FIT,      /* --fit */
    FM_WITH_LOAD_CAP, /* --load-cap */
    FM_WITH_SHARDS,   /* --shard-size */
    FM_WITH_CODES,    /* codes and scales of a quantised checkpoint */
    FM_WITH_FORMATS,  /* codes in several formats */
    FM_WITH_ROUNDED,  /* experts rounded to a format */
    FM_WITH_TP,       /* --tp: servers give every device a part of each expert's channels */
    FM_WITH_EXTRA,    /* --keep-extra */
    FM_WITH_PARTS,    /* --keep-extra of a multimodal checkpoint */
    FM_WITH_KEYS,     /* --keep-config */
    FM_WITH_OPTIONS
};
#define FM_WHY_SINGLE "has a single member, and no wider channels to drop"
#define FM_WHY_PLAIN "has no form for rounded experts"
#define FM_WHY_ONE_FORMAT "has one format for all layers"
#define FM_WHY_TEXT "has only the text model, and no other parts"
#define FM_WHY_WHOLE                                                                               \
    "has whole experts on every device, so the width does not depend on their number"
#define FM_WHY_NARROW "narrows experts, but layers for multi-token prediction keep their width"
#define FM_WHY_ALL_KEYS "keeps all keys of config.json except those that load code or another model"

struct fm_layout {
    const char *name;                    /* of --layout */
    const char *runtime;                 /* --for: "any", "vllm"; NULL: one form for all */
    const struct fm_layout *vllm;        /* the form for --for vllm, or NULL */
    const char *listed;                  /* in the form for vLLM: its name in lists */
    const char *cannot[FM_WITH_OPTIONS]; /* after its name: the reason; NULL: it can */
    bool modeling;   /* it includes the suite's modelling file: loading needs trust_remote_code */
    bool tools_only; /* no program except these tools reads it */
    const char *unread; /* these tools cannot read it as a model: what they measure instead, for the
                           card; NULL: they can */

    /* ---- widths ---- */

    bool all_members;   /* it holds all members, or those that --load-cap keeps: --budget selects
                           the default one */
    const char *capped; /* its name in lists with a load cap; NULL: none */
    bool one_width;     /* one width for all experts, whatever the mask says; those of a layer for
                           multi-token prediction get it as well */
    uint32_t multiple;  /* its kernels require widths that are multiples of it; 0: any */
    /* Replace the mask's widths, p->widths.kept; NULL: they are used unchanged. */
    void (*level)(struct fm_exportplan *p);
    /* After these are rounded up: change the widths in the files, p->widths, if they are others. */
    void (*store)(struct fm_exportplan *p);
    const char *leveled;     /* the reason: "one width per layer"; NULL: it is not the layout */
    const char *granularity; /* of masks for it, when fm-family makes them; NULL: any */

    /* ---- tensors and files ---- */

    enum fm_naming names; /* FM_NAMING_STOCK with --keep-extra: those of the whole checkpoint */
    uint32_t numbers;     /* elements that each layer of experts has besides weights, for lists */
    /* Plan the tensors of the experts of the m-th layer of experts. */
    int (*experts)(struct fm_exportplan *p, int m, struct fm_err *err);
    /* Put all tensors into files; NULL: into shards. */
    int (*files)(struct fm_exportplan *p, struct fm_err *err);

    /* ---- texts ---- */

    /* Edit the checkpoint's config.json; NULL: it is unchanged. */
    void (*config)(struct fm_texts_edit *edit, struct fm_exportplan *p);
    const char *about; /* description for the model card */
    /* Title, description and figures of the model card; NULL: those of a single member, with
     * `about`. */
    void (*card)(struct fm_text *t, const struct fm_exportplan *p);
    /* Further options for the servers' commands, with a leading blank; NULL: none. */
    const char *vllm_options, *sglang_options;
    bool sglang_package; /* SGLang needs the suite's package to run it */
    const char *running; /* further ways to run it, for the card; or NULL */
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

/* NULL if no layout has that name. */
const struct fm_layout *fm_layouts_find(const char *name);
/* Replace *layout with its form for vLLM; FM_EUSAGE if it has one form for all. */
int fm_layouts_vllm(const struct fm_layout **layout, struct fm_err *err);

#endif
