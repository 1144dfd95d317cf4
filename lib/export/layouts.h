/*
 * The layouts: the forms that an export can have.  Each is one descriptor in a file of its own
 * in lib/export/layouts, and one row of the list below; nothing else knows a layout by its name.
 * The descriptor says which widths the files have, which tensors, in which
 * files, what config.json and the model card say, which servers can split it over devices and which
 * options it takes.  What layouts have in common are functions that their descriptors name.
 *
 * A layout has one form for all runtimes, or one more for vLLM's fused kernels, a descriptor too.
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

/* What servers do with experts where a model is split over devices (lib/export/runtimes.h). */
enum fm_split {
    FM_SPLIT_NONE,   /* there is no server for it: the fm tools alone read it */
    FM_SPLIT_HEADS,  /* every device has all experts whole; attention is split */
    FM_SPLIT_EXPERTS /* every device has a part of each expert's channels too */
};

struct fm_layout {
    const char *name;                /* of --layout */
    const char *runtime;             /* of --for: "any", "vllm"; NULL: one form for all */
    const struct fm_layout *vllm;    /* its form for --for vllm; NULL: none */
    const char *listed;              /* of that form: what lists call it */
    const struct fm_layout *dropped; /* its form for --drop-experts; NULL: none */

    /* ---- which widths ---- */

    bool all_members;   /* all members, or those that --load-cap keeps: --budget says which one it
                           starts with, --fit has nothing to choose */
    const char *capped; /* all_members: what lists call it with a load cap; NULL: it takes none */
    bool one_width;     /* of all experts of the model, whatever the mask gives each of them */
    const char *plain;  /* why it cannot have the codes and scales of a quantised checkpoint; NULL:
                           it can.  With `code` only experts do, and the rest is decoded */
    bool drops;         /* experts that the mask leaves no channel are not there: a constant is */
    bool full;          /* files can hold all channels of every expert, zero where removed */
    uint32_t multiple;  /* its kernels need widths that are multiples of it; 1: any */
    /* From the mask's widths to wider ones; NULL: they are the mask's. */
    void (*level)(struct fm_exportplan *p);
    const char *leveled; /* why: "one width per layer" */

    /* ---- which tensors, in which files ---- */

    enum fm_naming names;
    /* Plan the tensors of the experts of the m-th layer of experts. */
    int (*experts)(struct fm_exportplan *p, int m, struct fm_err *err);
    bool extra;   /* --keep-extra: layers for multi-token prediction are read at the width that they
                     have, that of the original */
    bool sharded; /* --shard-size is obeyed; without it the layout gives the size of files */
    /* Put all tensors into files. */
    int (*files)(struct fm_exportplan *p, struct fm_err *err);

    /* ---- what the texts say ---- */

    bool code; /* modeling_fm.py belongs to it, which loading it must trust */
    /* Edit the checkpoint's config.json; NULL: as it is. */
    void (*config)(struct fm_texts_edit *edit, struct fm_exportplan *p);
    const char *about;        /* what it is, for the model card */
    const char *about_capped; /* the same with a load cap */
    /* Options of the servers' commands, with a blank in front. */
    const char *vllm_options, *sglang_options;
    bool sglang_package; /* SGLang runs it with the suite's package alone */
    /* More ways to run it; NULL: none. */
    void (*running)(struct fm_text *t, const struct fm_exportplan *p);

    enum fm_split split;
};

/* The list: a row for each layout, fm_layout_NAME of its file.  Lists show them in this order. */
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

/* All layouts, in the order of lists; the last is NULL. */
extern const struct fm_layout *const fm_layouts[];
#define FM_LAYOUTS_MAX 16

/* The largest of widths (M, E): of a layout with one width, that. */
uint32_t fm_layouts_widest(const struct fm_config *config, const uint32_t *widths);

/* Channels of the shared expert in the files of a layout whose widest expert has k.  Where
 * config.json says it in experts (shared_key of struct fm_model_family) and all of these are k
 * wide, it takes that many whole ones, with zeros behind its own channels; k 0: it stays as it is.
 */
int fm_layouts_shared(const struct fm_layout *layout, const struct fm_config *config, uint32_t k);

/* NULL: there is none of that name. */
const struct fm_layout *fm_layouts_find(const char *name);
/* "native|ragged|...", as options list their choices. */
void fm_layouts_choices(char *text, size_t size);
/* Put the form for vLLM in the place of *layout; FM_EUSAGE where that has one form for all. */
int fm_layouts_vllm(const struct fm_layout **layout, struct fm_err *err);
/* Put the form for --drop-experts in the place of *layout; FM_EUSAGE where it has none. */
int fm_layouts_drop(const struct fm_layout **layout, struct fm_err *err);
/* The name of the first layout that takes a load cap; "native or padded", those that can keep extra
 * tensors: for sentences. */
const char *fm_layouts_capped(void);
void fm_layouts_extra(char *text, size_t size);

#endif
