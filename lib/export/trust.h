/*
 * Whose code an export runs: by default only the suite's modeling_fm.py, in every layout.
 * transformers, vLLM, SGLang and ModelScope run the Python files of a directory, those of another
 * repository, and take another model than the directory's, when a JSON file beside the weights says
 * so, some of them without being asked for trust.  So an export leaves out, unless --allow-code is
 * given,
 *
 *   - files that Python runs (*.py, *.pyc, *.pyd, *.so, *.pkl), adapter_config.json and
 * modules.json;
 *   - of config.json and every other JSON file that is no vocabulary, at any depth, the keys of the
 *     list in trust.c; of ModelScope's configuration.json all but "framework" and "task";
 *   - a JSON file that cannot be read as strictly as json.h does.
 *
 * That list is of what loaders are known to do today.  Layouts with modeling_fm.py are loaded with
 * trust, so their config.json has no keys but those that the family knows (fm_families_knows), that
 * the layout sets, and options.keep_config.
 *
 * What was left out, or kept, is noted by name in plan->code.
 */
#ifndef FM_TRUST_H
#define FM_TRUST_H

#include "formats/json/jsonedit.h"
#include "lib/export/plan.h"
#include "lib/run/run.h"

#define FM_CODE_NAMES_BYTES 640

/* Forget the notes of another plan. */
void fm_trust_begin(struct fm_exportplan *p);

/* Plan a carried file: as it is, without some keys, or not at all. */
int fm_trust_carried(struct fm_exportplan *p, const struct fm_member *m, struct fm_err *err);

/* Take those keys out of config.json, which is *text (malloc, NUL behind); `edit`, n of them, are
 * what the layout sets. */
int fm_trust_config(struct fm_exportplan *p, char **text, size_t *size,
                    const struct fm_jsonedit *edit, int n, struct fm_err *err);

/* FM_EUSAGE for options.keep_config that keeps nothing, or what --allow-code is for. */
int fm_trust_check(const struct fm_export_options *options, struct fm_err *err);
int fm_trust_check_keys(const struct fm_exportplan *p, struct fm_err *err);

/* The names of a fate, "a.py, b.py", from item *next on, as many as a sentence holds; *next moves
 * behind them.  False: there are no more. */
bool fm_trust_names(const struct fm_exportplan *p, enum fm_code_fate fate, size_t *next,
                    char text[FM_CODE_NAMES_BYTES]);

/* Say as warnings what of the author's code was left out, or kept. */
void fm_trust_tell(const struct fm_exportplan *p, const struct fm_run_options *run);

#endif
