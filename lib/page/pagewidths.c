/*
 * Neighbouring masks of a family differ in few experts, so a mask is written as its difference from
 * the one before; even if all experts change, it takes at most a sign and a letter for each.  128
 * experts in 48 layers at 100 budgets are 614,400 widths: as numbers they would take about three
 * times the limit of a page.
 */
#include "lib/page/pagewidths.h"

#include <assert.h>
#include <stdlib.h>

#include "formats/file/text.h"
#include "formats/json/json.h"

static void add_letter(struct fm_text *t, int action)
{
    static const char signs[] = FM_PAGEWIDTHS_SIGNS;
    int low = action % 52, high = action / 52;
    char c = (char)(low < 26 ? 'A' + low : 'a' + low - 26);
    assert(high < (int)sizeof signs);
    if (high > 0)
        fm_text_add(t, &signs[high - 1], 1);
    fm_text_add(t, &c, 1);
}

/* Append a mask as its difference from `before`; NULL means the full mask. */
static void add_difference(struct fm_text *t, const struct fm_actions *actions,
                           const uint32_t *before, const uint32_t *widths, size_t experts)
{
    int same = 0;
    uint32_t full = actions->width[actions->count - 1];
    for (size_t i = 0; i < experts; i++) {
        if (widths[i] == (before ? before[i] : full)) {
            same++;
            continue;
        }
        if (same)
            fm_text_printf(t, "%d", same);
        same = 0;
        add_letter(t, fm_actions_find(actions, widths[i]));
    }
}

void fm_pagewidths_add(cJSON *data, const struct fm_budgets *budgets, const int *shown, int n)
{
    const struct fm_masks *f = &budgets->masks;
    const struct fm_actions *actions = &budgets->actions;
    cJSON *widths = fm_json_add_array(data, "actions");
    cJSON *masks = fm_json_add_array(data, "masks");
    for (int i = 0; i < actions->count; i++)
        fm_json_add_uint(widths, NULL, actions->width[i]);
    for (int i = 0; i < n; i++) {
        struct fm_text t = {0};
        fm_text_add(&t, "", 0);
        add_difference(&t, actions, i ? fm_masks_widths(f, shown[i - 1]) : NULL,
                       fm_masks_widths(f, shown[i]), (size_t)f->M * (size_t)f->E);
        fm_json_add(masks, NULL, t.failed ? NULL : cJSON_CreateString(t.data ? t.data : ""));
        free(t.data);
    }
}
