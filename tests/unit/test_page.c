/* The parts of a page: untrusted strings in HTML and in a script, and masks as text. */
#include "lib/masks/methods.h"
#include "lib/page/pagefacts.h"
#include "lib/page/pagetext.h"
#include "tests/unit/test.h"

TEST(strings_are_escaped_for_their_context)
{
    struct fm_text html = {0}, json = {0};
    fm_pagetext_html(&html, "a<b>&\"c'");
    assert_string_equal(html.data, "a&lt;b&gt;&amp;&quot;c&#39;");
    assert_ok(fm_pagetext_json(&json, "[\"</script><!--&\xe2\x80\xa8\xe2\x80\xae\xff\"]", &err));
    assert_string_equal(json.data,
                        "[\"\\u003c/script\\u003e\\u003c!--\\u0026\\u2028\\u202e\\ufffd\"]");
    free(html.data);
    free(json.data);
}

/* Only the title is outside the data; all placeholders of the template are replaced. */
TEST(a_page_is_its_template_filled)
{
    struct fm_text page = {0};
    assert_ok(fm_pagetext_make(&page, "<x>", "{\"a\":\"<y>\"}", &err));
    assert_non_null(strstr(page.data, "<title>&lt;x&gt;</title>"));
    assert_non_null(strstr(page.data, "id=\"data\">{\"a\":\"\\u003cy\\u003e\"}</script>"));
    assert_null(strstr(page.data, "@TITLE@"));
    assert_null(strstr(page.data, "@SCRIPT@"));
    assert_int_equal(strlen(page.data), page.size);
    assert_string_equal(page.data + page.size - 8, "</html>\n");
    free(page.data);
}

/* 2 layers of 3 experts with 200 channels, any width: more than 52 actions. */
TEST(masks_are_differences_from_the_previous_mask)
{
    struct fm_budgets b = {0};
    static const uint32_t widths[3][6] = {
        {200, 200, 200, 200, 200, 200}, {200, 52, 53, 200, 200, 1}, {200, 52, 10, 157, 200, 1}};
    static const char *const want[] = {"", "1z-A2A", "2J.A"};
    static const int shown[] = {0, 1, 2};
    b.actions.count = 200;
    for (uint32_t i = 0; i < 200; i++)
        b.actions.width[i] = i + 1;
    fm_masks_init(&b.masks, 2, 3, 200);
    for (int i = 0; i < 3; i++)
        assert_ok(fm_masks_append(&b.masks, widths[i], &fm_method_saliency, 0, &err));
    cJSON *data = cJSON_CreateObject();
    fm_pagefacts_masks(data, &b, shown, 3);
    const cJSON *masks = cJSON_GetObjectItem(data, "masks");
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(data, "actions")), 200);
    for (int i = 0; i < 3; i++)
        assert_string_equal(cJSON_GetStringValue(cJSON_GetArrayItem(masks, i)), want[i]);
    cJSON_Delete(data);
    fm_masks_release(&b.masks);
}

TEST_MAIN(NULL, NULL)
