/*
 * Fits a family into one page.  A page is built completely and its bytes are counted.  If they
 * exceed the limit, it is built again with half as many members, down to two.  The last attempt has
 * all of them again (at most SHOWN_MAX), without the widths and tokens of individual experts.  The
 * choice depends only on the input.
 */
#include "lib/page/page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/file/file.h"
#include "formats/json/json.h"
#include "lib/base/mem.h"
#include "lib/base/printable.h"
#include "lib/page/pagefacts.h"
#include "lib/page/pageresults.h"
#include "lib/page/pagetext.h"

#define SHOWN_MAX 256 /* limit of members on a page: a slider cannot distinguish more */
#define HISTORY_BYTES_MAX ((size_t)150 << 10)

/* Data from which a page is made. */
struct making {
    const char *const *reports; /* ends with NULL */
    const char *path;
    struct fm_pagefacts facts;
    cJSON *figures; /* read once, and used by every attempt */
    int *shown;     /* (n) */
    int n;
    bool experts; /* with widths and tokens of individual experts */
};

/* Choose members evenly, including the first and the last. */
static void choose_shown(struct making *m, int n)
{
    int all = m->facts.list.rows;
    m->n = n < all ? n : all;
    for (int i = 0; i < m->n; i++)
        m->shown[i] = m->n > 1 ? (int)(((int64_t)i * (all - 1) + (m->n - 1) / 2) / (m->n - 1)) : 0;
}

static int fill_data(cJSON *data, struct making *m, struct fm_err *err)
{
    fm_json_add_string(data, "version", FM_VERSION);
    fm_pagefacts_model(data, &m->facts, m->path);
    fm_pagefacts_budgets(data, &m->facts, m->shown, m->n);
    fm_json_add(data, "figures", cJSON_CreateArrayReference(m->figures->child));
    if (m->experts) {
        fm_pagefacts_tokens(data, &m->facts);
        fm_pagefacts_masks(data, &m->facts.opened.budgets, m->shown, m->n);
    }
    return fm_pagefacts_history(data, &m->facts, HISTORY_BYTES_MAX, err);
}

static int attempt(struct making *m, struct fm_page *page, struct fm_err *err)
{
    char title[80];
    struct fm_text text = {0};
    cJSON *data = cJSON_CreateObject();
    int rc = fill_data(data, m, err);
    char *json = !rc && fm_json_is_whole(data) ? cJSON_PrintUnformatted(data) : NULL;
    cJSON_Delete(data);
    if (!rc && !json)
        rc = fm_fail(err, FM_ENOMEM, "no memory for the page");
    snprintf(title, sizeof title, "%s: a family of pruned models", m->facts.list.family);
    fm_printable(title, false);
    if (!rc)
        rc = fm_pagetext_make(&text, title, json, err);
    free(json);
    page->text = text.data;
    page->size = text.size;
    return rc;
}

static int attempts(struct making *m, struct fm_page *page, struct fm_err *err)
{
    choose_shown(m, SHOWN_MAX);
    m->experts = true;
    for (;;) {
        int rc = attempt(m, page, err);
        if (rc || page->size <= FM_PAGE_BYTES_MAX)
            return rc;
        if (!m->experts)
            return fm_fail(err, FM_ECONFIG,
                           "the page would have %zu bytes (limit %d): name fewer files with "
                           "--figures",
                           page->size, FM_PAGE_BYTES_MAX);
        free(page->text);
        page->text = NULL;
        m->experts = m->n > 2;
        choose_shown(m, m->n > 2 ? (m->n + 1) / 2 : SHOWN_MAX);
    }
}

static int read_figures(struct making *m, struct fm_page *page, struct fm_err *err)
{
    int rc = FM_OK;
    m->figures = cJSON_CreateArray();
    for (const char *const *file = m->reports; *file && !rc; file++) {
        rc = fm_pageresults_add(m->figures, *file, &m->facts, err);
        page->figures++;
    }
    if (!rc && !fm_json_is_whole(m->figures))
        rc = fm_fail(err, FM_ENOMEM, "no memory for the figures");
    return rc;
}

int fm_page_make(struct fm_page *page, const char *path, const char *const *figures,
                 struct fm_err *err)
{
    struct making m = {.reports = figures, .path = path};
    *page = (struct fm_page){0};
    int rc = fm_pagefacts_open(&m.facts, path, err);
    if (!rc) {
        m.shown = fm_alloc(SHOWN_MAX, sizeof *m.shown, "the members of a page", err);
        rc = m.shown ? read_figures(&m, page, err) : FM_ENOMEM;
    }
    if (!rc)
        rc = attempts(&m, page, err);
    page->budgets = m.facts.list.rows;
    page->shown = m.n;
    cJSON_Delete(m.figures);
    free(m.shown);
    fm_pagefacts_release(&m.facts);
    return rc;
}

int fm_page_write(const struct fm_page *page, const char *path, bool force, struct fm_err *err)
{
    return fm_output_text(path, page->text, force, err);
}

void fm_page_release(struct fm_page *page)
{
    free(page->text);
    *page = (struct fm_page){0};
}
