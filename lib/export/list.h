/*
 * The list of what a bundle or stage stream contains: one row per budget of its family, with the
 * size of that member in every layout.
 */
#ifndef FM_LIST_H
#define FM_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "formats/quant/quant.h"
#include "lib/base/err.h"
#include "lib/export/layouts.h"
#include "lib/export/opened.h"
#include "lib/stage/lorafile.h"

/* A form of export. */
struct fm_list_kind {
    const char *name; /* "native" and so on, "layer-vllm", "load-cap" */
    const struct fm_layout *layout;
    const char *server; /* --for; NULL: the form for all programs */
    bool capped;
};
#define FM_LIST_FORMS_MAX (2 * FM_LAYOUTS_MAX)

/* All forms: every layout, then forms for one runtime, then layouts with a load cap that starts at
 * the member of the row.  Returns their number. */
int fm_list_kinds(struct fm_list_kind kind[FM_LIST_FORMS_MAX]);

struct fm_list_form {
    uint64_t tensors; /* bytes of all tensors except extra ones: the memory for the weights */
    uint64_t files; /* bytes of the whole directory, as counted by --fit; 0 for a stage stream, and
                       if this export is not possible */
    bool as_measured; /* the row's figures are those of this export */
};

/* A uniform export whose experts are rounded to a format of fm_quantisers. */
struct fm_list_format {
    uint64_t tensors; /* bytes of all tensors; 0: not possible for the model */
    uint32_t width;   /* of every expert */
};

struct fm_list_row {
    int index;
    double budget;    /* fraction of routed-expert channels removed */
    uint64_t removed; /* number of routed-expert channels removed */
    char method[32];  /* the method that chose the mask */
    uint32_t width_min, width_max;
    double width_mean;
    uint64_t bytes; /* of all tensors of a ragged or native export except extra ones, as values */
    uint64_t params, params_active;
    bool known;        /* the fields of quality are set */
    bool interpolated; /* interpolated between the nearest rows that were measured */
    double ce, kl, agree;
    double kind[FM_KINDS_MAX]; /* ce of each kind of held-out text, in the order of the list's
                                  `texts` */
    int worst;      /* the kind whose loss increases most from the first row; -1: no kinds, or no
                       figures in one of these rows */
    double lost;    /* increase of that kind's loss, in nats */
    bool recovered; /* measured on the recovered weights */
    struct fm_list_form form[FM_LIST_FORMS_MAX];     /* in the order of the list's `kind` */
    struct fm_list_format format[FM_QUANTISERS_MAX]; /* in the order of fm_quantisers; only for a
                                                        bundle */
};

struct fm_list {
    char stage[16]; /* "rank", "train", "recover" or "pack" */
    char family[32], dtype[16];
    int layers, experts, experts_per_token, hidden, channels, vocabulary;
    int M;                      /* layers that have experts */
    int16_t moe[FM_LAYERS_MAX]; /* (M) their indices */
    uint64_t params;
    struct fm_extra extra;          /* extra tensors of the bundle */
    char storage[FM_STORAGE_NAMES]; /* "fp8": storage of the checkpoint; "": unquantised */
    uint64_t bytes_stored;          /* bytes of all shards of the checkpoint */
    uint64_t bytes_plain;           /* of the same parameters in the bundle's dtype */
    char granularity[16];  /* of fm-train: "expert", "layer", "model"; "" if not recorded */
    double adapter_budget; /* budget at which the adapter was trained, or down projections were
                              solved; -1: no adapter, or served is set */
    struct {
        double budget, weight;
    } served[FM_LORAFILE_SERVED]; /* budgets that solved down projections serve together */
    int serves;
    bool packed; /* it has weights, so the sizes of files are set */
    bool codes;  /* the weights are codes, which some layouts can keep */
    struct fm_list_kind kind[FM_LIST_FORMS_MAX];
    int kinds;
    struct fm_kinds texts; /* kinds of held-out text; empty if there was only one */
    struct fm_list_row *row;
    int rows; /* 0 before fm-train */
};

/* Fill *list from a bundle or stage stream, "-" for standard input; with `forms` also the sizes
 * in every form, which plans every export.  Release it even after a failure. */
int fm_list_read(struct fm_list *list, const char *path, bool forms, struct fm_err *err);
/* As fm_list_read, for o->bundle, which is open; the other fields of *o are filled here if there
 * are members. */
int fm_list_fill(struct fm_list *list, struct fm_opened *o, bool forms, struct fm_err *err);
void fm_list_release(struct fm_list *list);

/* The least share of tokens for which a recommended member and the original have the same most
 * probable token; of members below, long answers often end in repetitions.  From the table of
 * loops in tests/measure/RESULTS.md, of one released model. */
#define FM_LIST_AGREEMENT 0.8

/* The row to recommend: the last whose measured agreement, like that of all measured rows before
 * it, is at least FM_LIST_AGREEMENT; -1 if that is the full model or none. */
int fm_list_recommended(const struct fm_list *list);

/* Add a member to JSON: its index and budget, channels, widths (in an object named `inside`,
 * unless that is NULL), bytes and parameters. */
void fm_list_add_member(cJSON *object, const struct fm_list_row *row, const char *inside);

/* Add the keys of the model from "family" to "params"; with `moe_layers` also the list of its
 * layers with experts. */
void fm_list_model(cJSON *model, const struct fm_list *list, bool moe_layers);

/* Add the list to the JSON of fm-pack --list. */
void fm_list_json(cJSON *tree, const struct fm_list *list);

#endif
