/*
 * The tensors of a model in a checkpoint directory, a bundle or an export.  fm_source_resolve
 * determines what each of them is (lib/model/stored.h); after that, nothing depends on their names.
 */
#ifndef FM_SOURCE_H
#define FM_SOURCE_H

#include "formats/bundle/bundle.h"
#include "formats/tensor/hfdir.h"
#include "lib/family/family.h"
#include "lib/model/stored.h"

/* The file that marks a directory as an export and has its widths; lib/export writes it. */
#define FM_EXPORT_JSON "fm-export.json"

/* One safetensors file or member. */
struct fm_source_file {
    const struct fm_file *file;
    const struct fm_safetensors *st;
};

struct fm_tensors {
    enum fm_naming naming;
    const char *path; /* borrowed */
    char *config;     /* text of config.json, NUL-terminated */
    size_t config_bytes;
    cJSON *widths; /* of an export: a list for each decoder layer, empty if it is dense; or NULL */
    struct fm_source_file *file;
    size_t files;
    struct fm_stored *entry; /* all tensors of all files, in their order */
    size_t entries;
    struct fm_source_name *name; /* (entries) sorted by name */
    const struct fm_stored **of; /* those that fm_source_resolve found in the family's table, sorted
                                    by weight, layer and expert */
    size_t ofs;
    /* Which of the following are open depends on the kind of source. */
    struct fm_hfdir dir; /* opened here; empty if the caller passed one */
    struct fm_bundle bundle;
    struct fm_shard *own;
    size_t owns;
};

/*
 * Open what is at `path`: only headers are read.  A bundle is a regular file; an export
 * with a bundle's files is a directory with fm-export.json and rest.safetensors; an export with our
 * modelling file has fm_widths in config.json.  On failure *t is already closed; closing a zeroed
 * struct is fine.
 */
int fm_source_open(struct fm_tensors *t, const char *path, struct fm_err *err);
void fm_source_close(struct fm_tensors *t);

/* FM_EIO if one of the files has changed since it was opened. */
int fm_source_unchanged(const struct fm_tensors *t, struct fm_err *err);

/* Open the model in an open directory in Hugging Face format, which must stay open until close. */
int fm_source_borrow(struct fm_tensors *t, const struct fm_hfdir *dir, struct fm_err *err);

/* Determine what each tensor is, with the config in t->config as parsed; borrows it. */
int fm_source_resolve(struct fm_tensors *t, const struct fm_config *config, struct fm_err *err);

/* Call after fm_source_resolve.  Replace the weights of the decoder layer fm_extra_twin_layer()
 * with those of the layer for multi-token prediction, and the last norm, the head and the embedding
 * with its own, if it has them.  The replaced tensors no longer have a weight. */
void fm_source_draft(struct fm_tensors *t, const struct fm_config *config);

/* The tensor of that name, or NULL; `t` is a struct fm_tensors (fm_stored_find). */
const struct fm_stored *fm_source_find(const void *t, const char *name);

/* The tensor with this role that is, or belongs to, a weight of the family's table, or NULL; e is
 * -1 for a tensor that is not of one expert. */
const struct fm_stored *fm_source_weight(const struct fm_tensors *t, enum fm_stored_role role,
                                         const struct fm_weight *weight, int l, int e);

/* The tensor of the weight itself: its values or its codes. */
const struct fm_stored *fm_source_stored(const struct fm_tensors *t, const struct fm_weight *weight,
                                         int l, int e);

/* Add the bytes of all tensors as stored, and as bundles store them. */
void fm_source_bytes(const struct fm_tensors *t, uint64_t *stored, uint64_t *written);

/*
 * FM_EFORMAT if a tensor of codes belongs to a module that config.json lists, in `ignore`
 * (compressed-tensors, ModelOpt) or `modules_to_not_convert` (FP8, MXFP4).  Entries that
 * fm_modules_read (lib/base/modules.h) does not support are skipped.  FM_ECONFIG if a list has
 * more than FM_PATTERNS_MAX regular expressions.
 */
int fm_source_check(const struct fm_tensors *tensors, struct fm_err *err);

#endif
