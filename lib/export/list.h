/*
 * What a bundle or stage stream offers: one row per budget of its family, with the size of that
 * member in every layout.
 */
#ifndef FM_LIST_H
#define FM_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "lib/base/err.h"
#include "lib/block/storage.h"
#include "lib/export/export.h"
#include "lib/export/opened.h"
#include "lib/export/runtimes.h"
#include "lib/model/model.h"

/*
 * A form of export: every layout, then forms for one runtime, then layouts with a load cap that
 * starts at the member of the row.
 */
struct fm_list_kind {
    const char *name; /* "native" and so on, "layer-vllm", "load-cap" */
    const struct fm_layout *layout;
    bool capped;
};
#define FM_LIST_FORMS_MAX (2 * FM_LAYOUTS_MAX)

/* All forms; returns their number. */
int fm_list_kinds(struct fm_list_kind kind[FM_LIST_FORMS_MAX]);

struct fm_list_form {
    uint64_t tensors;    /* bytes of all tensors: the memory for the weights */
    uint64_t files;      /* bytes of the whole directory, as counted by --fit; 0 for a stage
                            stream, and if the layout cannot hold so many members */
    uint64_t tp_degrees; /* of tensor parallelism: lib/export/runtimes.h */
    uint32_t divisor;    /* the greatest common divisor of the stored widths of all experts */
};

/* A uniform export whose experts are rounded to a format of fm_quantisers. */
struct fm_list_format {
    uint64_t tensors;    /* as above; 0: not possible for the model */
    uint32_t width;      /* of every expert */
    uint64_t tp_degrees; /* of tensor parallelism: lib/export/runtimes.h */
};

struct fm_list_row {
    int index;
    double budget;    /* fraction of routed-expert channels removed */
    uint64_t removed; /* that many channels */
    char method[32];  /* what chose the mask */
    uint32_t width_min, width_max;
    double width_mean;
    uint64_t bytes; /* weights of a ragged or native export */
    uint64_t params, params_active;
    bool known;        /* the quality fields are set, */
    bool interpolated; /* not as measured, but between the nearest rows that were */
    double ce, kl, agree;
    double kind[FM_KINDS_MAX]; /* ce of each kind of held-out text, as texts of the list */
    int worst;                 /* of them, the one that loses most over the first row, */
    double lost;               /* so much; -1: no kinds, or no figures in one of the rows */
    bool recovered;            /* measured on the recovered weights */
    struct fm_list_form form[FM_LIST_FORMS_MAX];     /* as `kind` of the list */
    struct fm_list_format format[FM_QUANTISERS_MAX]; /* as fm_quantisers; of a bundle */
};

struct fm_list {
    char stage[16]; /* "rank", "train", "recover" or "pack" */
    char family[32], dtype[16];
    int layers, experts, experts_per_token, hidden, channels, vocabulary;
    int M;                      /* layers that have experts */
    int16_t moe[FM_LAYERS_MAX]; /* (M) their numbers */
    uint64_t params;
    struct fm_extra extra;          /* tensors of no decoder layer */
    char storage[FM_STORAGE_NAMES]; /* "fp8": how the checkpoint has its weights; "": as plain
                                       numbers */
    uint64_t bytes_stored;          /* of all its shards */
    uint64_t bytes_plain;           /* of the same parameters in the bundle's dtype */
    char granularity[16];  /* of fm-train: "expert", "layer", "model"; "" where it is not said */
    double adapter_budget; /* where the adapter was trained, -1: there is none */
    bool packed;           /* it has weights: `files` are set */
    bool codes;            /* these are codes: layouts that can keep them do */
    struct fm_list_kind kind[FM_LIST_FORMS_MAX];
    int kinds;
    struct fm_runtimes_cache cache; /* what a server keeps of a sequence, in 16 bits */
    uint64_t context;               /* the longest one, as the model says */
    struct fm_kinds texts;          /* kinds of held-out text; none where it was one */
    struct fm_list_row *row;
    int rows; /* 0 before fm-train */
};

/* path: a bundle or stage stream, "-" for standard input; `forms`: fill those too, which plans
 * every export.  Release in every case. */
int fm_list_read(struct fm_list *list, const char *path, bool forms, struct fm_err *err);
/* The same of o->bundle, which is open and nothing else of *o read: that is done here, where there
 * are members. */
int fm_list_fill(struct fm_list *list, struct fm_opened *o, bool forms, struct fm_err *err);
void fm_list_release(struct fm_list *list);

/*
 * The row beyond which a budget costs more loss than the family does on average: where the measured
 * loss lies deepest below the straight line from the first member to the last.  -1: fewer than
 * three are measured, or none lies below.
 */
int fm_list_knee(const struct fm_list *list);

/* The first row, the largest model, whose tensors of a ragged export fit fm_runtimes_cards[card]
 * beside the cache of `tokens`; -1: none. */
int fm_list_first_on_card(const struct fm_list *list, int card, uint64_t tokens);

/* Do the widths in files of a form go with devices that split experts, or hold them whole, and
 * kernels that want multiples of `quantum` on each? */
bool fm_list_passes(const struct fm_list_kind *kind, const struct fm_list_form *form, int devices,
                    uint32_t quantum);

/* What JSON says of a member: its place and budget, channels, widths (in an object of their own of
 * the name `inside`, where that is not NULL), bytes and parameters. */
void fm_list_add_member(cJSON *object, const struct fm_list_row *row, const char *inside);

/* The list as JSON text with a newline at the end; free() it.  NULL: no memory. */
char *fm_list_json(const struct fm_list *list);

#endif
