/*
 * Template, style and script are files in this directory that the assembler includes (the script is
 * page.js, charts.js and maps.js, concatenated); a word between two '@' in the template is a
 * placeholder.
 *
 * Text from files is used in two places.  In the title it is escaped as HTML.  Everything else is
 * one JSON text in a <script> that is data and is not run, where HTML recognises "</script" and
 * "<!--" even inside strings.  So '<', '>' and '&' are written as \uXXXX, and so is every character
 * that ends a line or controls a terminal.  The script inserts strings as text nodes only.  Even if
 * all of this failed, the page's Content-Security-Policy would allow only the style and the script
 * whose digests it names, and no requests.
 */
#include "lib/page/pagetext.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/printable.h"

__asm__(".pushsection .rodata\n"
        ".globl fm_page_template, fm_page_style, fm_page_script\n"
        "fm_page_template: .incbin \"lib/page/page.html\"\n.byte 0\n"
        "fm_page_style: .incbin \"lib/page/page.css\"\n.byte 0\n"
        "fm_page_script: .incbin \"lib/page/page.js\"\n"
        ".incbin \"lib/page/charts.js\"\n.incbin \"lib/page/maps.js\"\n.byte 0\n"
        ".popsection\n");
extern const char fm_page_template[], fm_page_style[], fm_page_script[];

static void say(struct fm_text *t, const char *text)
{
    fm_text_add(t, text, strlen(text));
}

void fm_pagetext_html(struct fm_text *t, const char *text)
{
    for (const char *p = text; *p; p++) {
        if (*p == '<')
            say(t, "&lt;");
        else if (*p == '>')
            say(t, "&gt;");
        else if (*p == '&')
            say(t, "&amp;");
        else if (*p == '"')
            say(t, "&quot;");
        else if (*p == '\'')
            say(t, "&#39;");
        else
            fm_text_add(t, p, 1);
    }
}

int fm_pagetext_json(struct fm_text *t, const char *json, struct fm_err *err)
{
    char *plain = fm_printable_json(json);
    for (const char *p = plain; p && *p; p++) {
        if (strchr("<>&", *p))
            fm_text_printf(t, "\\u%04x", (unsigned)*p);
        else
            fm_text_add(t, p, 1);
    }
    bool whole = plain && !t->failed;
    free(plain);
    return whole ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for the page");
}

/* The Makefile computes the digests of the files. */
static void say_policy(struct fm_text *t)
{
    say(t, "default-src 'none'; script-src 'sha256-" FM_PAGE_SCRIPT_SHA256
           "'; style-src 'sha256-" FM_PAGE_STYLE_SHA256 "'; base-uri 'none'; form-action 'none'");
}

int fm_pagetext_make(struct fm_text *page, const char *title, const char *data, struct fm_err *err)
{
    int rc = FM_OK;
    const char *p = fm_page_template;
    for (const char *at; !rc && (at = strchr(p, '@')); p = strchr(at + 1, '@') + 1) {
        fm_text_add(page, p, (size_t)(at - p));
        if (strncmp(at, "@TITLE@", 7) == 0)
            fm_pagetext_html(page, title);
        else if (strncmp(at, "@POLICY@", 8) == 0)
            say_policy(page);
        else if (strncmp(at, "@STYLE@", 7) == 0)
            say(page, fm_page_style);
        else if (strncmp(at, "@SCRIPT@", 8) == 0)
            say(page, fm_page_script);
        else
            rc = fm_pagetext_json(page, data, err);
    }
    say(page, p);
    return !rc && page->failed ? fm_fail(err, FM_ENOMEM, "no memory for the page") : rc;
}
