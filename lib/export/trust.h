/*
 * Whose code an export runs.  Layouts with our modelling file are loaded with trust_remote_code,
 * and giving that trusts every Python file of the directory and every auto_map.  So what the
 * checkpoint's author put there stays behind, unless --allow-code: Python files,
 * adapter_config.json (by which a loader takes another model), and of every carried *config.json
 * the auto_map, also one that names another repository.  Layouts with stock names need no trust and
 * carry all.
 */
#ifndef FM_TRUST_H
#define FM_TRUST_H

#include "lib/export/exportplan.h"
#include "lib/run/run.h"

/* Before all texts: note what code is kept, which the card lists. */
void fm_trust_begin(struct fm_exportplan *p);

/* Plan a carried file: as it is, without its auto_map, or not at all. */
int fm_trust_carried(struct fm_exportplan *p, const struct fm_member *m, struct fm_err *err);

/* Say as warnings what of the author's code was left behind, or kept. */
void fm_trust_tell(const struct fm_exportplan *p, const struct fm_run_options *run);

/* A name that Python would run: our modelling file, or the author's. */
bool fm_trust_is_code(const char *name);

#endif
