/*
 * Files that a download left in the place of others: pointers of git-lfs, git-xet and git-annex,
 * and pages of a server instead of the file.
 */
#ifndef FM_GENUINE_H
#define FM_GENUINE_H

#include <stdbool.h>

#include "formats/file/file.h"

/*
 * FM_EFORMAT "it is a pointer of git-lfs, ...; run git lfs pull" if the text, or the beginning of a
 * file, is one of these.  `data`: the file should hold JSON or weights, so it is also refused if it
 * is empty, or a page of HTML or XML, which a text may be.
 */
int fm_genuine_text(const char *text, size_t size, bool data, struct fm_err *err);
int fm_genuine_file(const struct fm_file *f, bool data, struct fm_err *err);

#endif
