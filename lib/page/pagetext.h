/*
 * The page as text: the template with its style and script, and the escaping of untrusted strings.
 */
#ifndef FM_PAGETEXT_H
#define FM_PAGETEXT_H

#include "formats/file/text.h"
#include "lib/base/err.h"

/* The whole page: `title` is any text; `data` is the JSON that the script reads. */
int fm_pagetext_make(struct fm_text *page, const char *title, const char *data, struct fm_err *err);

/* Any text as the content of an HTML element. */
void fm_pagetext_html(struct fm_text *t, const char *text);

/* JSON as the content of a <script> element: its strings contain no character that HTML or
 * JavaScript could take for anything but data.  FM_ENOMEM. */
int fm_pagetext_json(struct fm_text *t, const char *json, struct fm_err *err);

#endif
