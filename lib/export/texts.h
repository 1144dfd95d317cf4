/*
 * Functions for the texts of an export; private to lib/export.
 */
#ifndef FM_TEXTS_H
#define FM_TEXTS_H

#include <cjson/cJSON.h>

#include "formats/file/text.h"
#include "formats/json/jsonedit.h"
#include "lib/export/filetable.h"
#include "lib/export/planned.h"

/* Plan the texts as files: config.json, fm-export.json, README.md, the modelling file, the
 * carried files. */
int fm_texts_plan(struct fm_exportplan *p, struct fm_err *err);
/* The table of all planned files except fm-export.json, without digests. */
int fm_texts_files(struct fm_filetable *t, const struct fm_exportplan *p, struct fm_err *err);

/* ---- config.json ---- */

#define FM_TEXTS_KEYS_MAX 32 /* an elastic export of a family with six lists sets 19 */

/* The keys to set, in order, with their values; and the first error. */
struct fm_texts_edit {
    struct fm_jsonedit key[FM_TEXTS_KEYS_MAX];
    char *value[FM_TEXTS_KEYS_MAX]; /* values that are owned; free() them */
    int keys;
    cJSON *json; /* the checkpoint's config.json */
    int rc;
    struct fm_err *err;
};

/* Set a key, which must stay valid, to a text that was just built; takes ownership of the text. */
void fm_texts_set(struct fm_texts_edit *edit, const char *key, struct fm_text *value);
void fm_texts_setf(struct fm_texts_edit *edit, const char *key, const char *fmt, ...)
    FM_PRINTF(3, 4);
/* With our modelling file: set its architecture and classes, and the widths. */
void fm_texts_ours(struct fm_texts_edit *edit, struct fm_exportplan *p);
/* Under stock names: set the architecture name that servers use and the second key of the width, if
 * the family has one; with allow_code, empty an auto_map to files that are not in the export,
 * because a loader would fail on it. */
void fm_texts_stock(struct fm_texts_edit *edit, struct fm_exportplan *p);

/* ---- values ---- */

/* [[26, 103], [37, 26]], a decoder layer per line, [] for one without experts. */
void fm_texts_widths(struct fm_text *t, const struct fm_exportplan *p, const uint32_t *widths,
                     const char *indent);
/* A number with the fewest digits that read back equal; [0.2, 1] for a load cap. */
void fm_texts_number(struct fm_text *t, double value);
void fm_texts_cap(struct fm_text *t, const struct fm_export_options *o);

#endif
