/*
 * The pointers are text files of a few lines: git-lfs (github.com/git-lfs/git-lfs, docs/spec.md),
 * git-xet ("# xet version 0"), and git-annex (the key's path, if the file is not a link).
 */
#include "formats/file/genuine.h"

#include <string.h>
#include <strings.h>

#define BEGIN_BYTES 64 /* enough to recognise each kind, with some white space before it */

static const struct {
    const char *begin;
    bool page; /* not a pointer: letters of any case, after any white space */
    const char *what, *remedy;
} kinds[] = {
    {"version https://git-lfs.github.com/spec/", false, "a pointer of git-lfs", "run git lfs pull"},
    {"version https://hawser.github.com/spec/", false, "a pointer of git-lfs", "run git lfs pull"},
    {"# xet version ", false, "a pointer of git-xet", "run git xet checkout, or hf download"},
    {"/annex/objects/", false, "a pointer of git-annex", "run git annex get"},
    {"<!doctype", true, "a page of HTML", "download it again"},
    {"<html", true, "a page of HTML", "download it again"},
    {"<?xml", true, "a page of XML", "download it again"},
    {"Entry not found", true, "a server's error message", "download it again"},
    {"Access to model ", true, "a server's error message", "download it again, with access"},
    {"Invalid username", true, "a server's error message", "download it again, with access"}};

int fm_genuine_text(const char *text, size_t size, bool data, struct fm_err *err)
{
    size_t space = 0;
    while (space < size && text[space] && strchr(" \t\r\n", text[space]))
        space++;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t n = strlen(kinds[i].begin);
        bool is = kinds[i].page ? data && size - space >= n &&
                                      strncasecmp(text + space, kinds[i].begin, n) == 0
                                : size >= n && memcmp(text, kinds[i].begin, n) == 0;
        if (is)
            return fm_fail(err, FM_EFORMAT, "it is %s, not the file itself; %s", kinds[i].what,
                           kinds[i].remedy);
    }
    return size > 0 || !data ? FM_OK
                             : fm_fail(err, FM_EFORMAT, "the file is empty; download it again");
}

int fm_genuine_file(const struct fm_file *f, bool data, struct fm_err *err)
{
    char text[BEGIN_BYTES];
    size_t size = f->size < sizeof text ? (size_t)f->size : sizeof text;
    int rc = fm_file_read(f, 0, text, size, err);
    return rc ? rc : fm_genuine_text(text, size, data, err);
}
