/*
 * Modules that quantization_config lists as not quantised.  Which tensors are codes is known from
 * the tensors; a server goes by the list, and would read codes as numbers.
 */
#ifndef FM_IGNORED_H
#define FM_IGNORED_H

#include "lib/base/err.h"
#include "lib/family/family.h"
#include "lib/model/source.h"

/*
 * FM_EFORMAT where a tensor of codes belongs to a module that config.json lists, in `ignore`
 * (compressed-tensors, ModelOpt) or `modules_to_not_convert` (FP8, MXFP4).  An entry is a module's
 * name, a pattern with `*`, or after "re:" a regular expression that a name begins with; one that
 * POSIX does not know is passed over.
 */
int fm_ignored_check(const struct fm_tensors *tensors, const struct fm_config *config,
                     struct fm_err *err);

#endif
