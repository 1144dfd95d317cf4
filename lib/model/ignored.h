/*
 * Modules that quantization_config lists as not quantised.  The suite recognises codes by their
 * tensors; a server uses the list, and would read listed codes as unquantised weights.
 */
#ifndef FM_IGNORED_H
#define FM_IGNORED_H

#include "lib/base/err.h"
#include "lib/family/family.h"
#include "lib/model/source.h"

/*
 * FM_EFORMAT if a tensor of codes belongs to a module that config.json lists, in `ignore`
 * (compressed-tensors, ModelOpt) or `modules_to_not_convert` (FP8, MXFP4).  Entries that
 * fm_modules_read (lib/base/modules.h) does not support are skipped.  FM_ECONFIG if a list has
 * more than FM_PATTERNS_MAX regular expressions.
 */
int fm_ignored_check(const struct fm_tensors *tensors, struct fm_err *err);

#endif
