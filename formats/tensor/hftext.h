/*
 * The text part of a multimodal checkpoint, in the form in which its text class would save it.
 */
#ifndef FM_HFTEXT_H
#define FM_HFTEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "formats/tensor/safetensors.h"
#include "lib/base/err.h"

/* The key of the text class's config.json under which the wrapper's other keys are kept, and, if it
 * is not the usual one, the prefix of the tensors' names. */
#define FM_HFTEXT_WRAPPER "fm_wrapper"

/*
 * *text (NUL-terminated, free()) = config.json of the text class if `config` is that of a wrapper:
 * its text_config has a model_type, or a hidden_size and no model_type, which then is "X_text" for
 * a wrapper "X".  NULL if it is not a wrapper, or if it is malformed, which the parser reports
 * later.  FM_ENOMEM; FM_ECONFIG if quantization_config or tie_word_embeddings is in both with
 * different values (except tie_word_embeddings true outside and false inside: tensors then decide).
 */
int fm_hftext_config(char **text, const char *config, size_t size, struct fm_err *err);

/* If the text class's config.json contains the other keys of a wrapper: the prefix of the names of
 * its tensors, a constant.  Else NULL. */
const char *fm_hftext_wrapped(const char *config, size_t size);

/*
 * The inverse.  *whole (free()) = the wrapper's config.json around that of the text class, which
 * has FM_HFTEXT_WRAPPER.  Its quantization_config is the checkpoint's own, in its place, whose
 * lists have the wrapper's names; that of the text if `rounded`, which means that it was made for
 * the export; and absent if the text no longer has one.  FM_EFORMAT, FM_ENOMEM.  The second
 * function gives the wrapper's name of a tensor of the text class, with a prefix of
 * fm_hftext_wrapped; FM_EFORMAT if that is too long.
 */
int fm_hftext_wrap(char **whole, const char *config, size_t size, bool rounded, struct fm_err *err);
int fm_hftext_name(char whole[FM_ST_NAME_BYTES_MAX + 1], const char *name, const char *prefix,
                   struct fm_err *err);

/*
 * Before fm_hftext_cut, for the names of all tensors: *text (NUL-terminated, free()) = config.json
 * of the text class with the names of modules in quantization_config (entries of any list: ignore,
 * targets, modules_to_not_convert and others; and keys, as in quantized_layers) cut like tensors.
 * Patterns and regular expressions (lib/base/modules.h) match the same modules as before: they are
 * cut in the same way, and replaced by the names of the modules if that is not enough.  If tensors
 * have no prefix, lists are cut all the same, because a prefix there matches nothing.  The list
 * before and the tensors' prefix are kept in FM_HFTEXT_WRAPPER.  NULL if nothing changes.
 * FM_ENOMEM.
 */
int fm_hftext_modules(char **text, const char *config, size_t size, const char *const *tensor,
                      size_t tensors, struct fm_err *err);

/* Rename tensors "model.language_model.layers.0..." or "model.llm.layers.0...", or
 * "language_model.model.layers.0..." and "language_model.lm_head...", to "model.layers.0..." and
 * "lm_head..." and sort all again; tensors of other parts keep their names. */
void fm_hftext_cut(struct fm_safetensors *st);

#endif
