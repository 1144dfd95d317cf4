/*
 * Restricts the code that programs run when they load an export, by default to the suite's
 * modeling_fm.py.  If a JSON file next to the weights requests it, transformers, vLLM, SGLang and
 * ModelScope run the Python files of a directory or of another repository, or load a model other
 * than the directory's, in some cases without trust_remote_code.  So an export of any layout leaves
 * out the following, unless --allow-code is given:
 *
 *   - files that Python runs (*.py, *.pyc, *.pyd, *.so, *.pkl), adapter_config.json and
 *     modules.json;
 *   - the keys in the list of trust.c, in config.json and every other JSON file that is not a
 *     vocabulary, at any depth; in ModelScope's configuration.json all keys except "framework" and
 *     "task";
 *   - a JSON file that cannot be read as strictly as json.h requires.
 *
 * The list covers the known behaviour of current loaders.  Layouts with modeling_fm.py are loaded
 * with trust_remote_code, so without --allow-code their config.json has only keys that the family
 * defines (fm_families_knows), keys that the layout sets, and options.keep_config.
 *
 * The names of what was left out or kept are collected in plan->code.
 */
#ifndef FM_TRUST_H
#define FM_TRUST_H

#include "formats/json/jsonedit.h"
#include "lib/export/planned.h"
#include "lib/run/run.h"

#define FM_CODE_NAMES_BYTES 640

/* Begin the notes of a plan with our own code, if the export has it. */
int fm_trust_begin(struct fm_exportplan *p, struct fm_err *err);

/* Plan a carried file: unchanged, without some keys, or left out. */
int fm_trust_carried(struct fm_exportplan *p, const struct fm_member *m, struct fm_err *err);

/* Remove the keys that load code and, for layouts with our modelling file, unknown keys from
 * config.json, *text (malloc, NUL-terminated); `edit` has the n keys that the layout sets. */
int fm_trust_config(struct fm_exportplan *p, char **text, size_t *size,
                    const struct fm_jsonedit *edit, int n, struct fm_err *err);

/* FM_EUSAGE if options.keep_config names keys that have no effect, or that require --allow-code. */
int fm_trust_check(const struct fm_export_options *options, struct fm_err *err);
int fm_trust_check_keys(const struct fm_exportplan *p, struct fm_err *err);

/* The names with one fate, "a.py, b.py", from item *next on, as many as fit into `text`; *next
 * becomes the index of the first one left.  False if there are no more. */
bool fm_trust_names(const struct fm_exportplan *p, enum fm_code_fate fate, size_t *next,
                    char text[FM_CODE_NAMES_BYTES]);

/* Print warnings about the author's code that was left out or kept. */
void fm_trust_tell(const struct fm_exportplan *p, const struct fm_run_options *run);

#endif
