/* Entries of lists of modules: names, patterns with `*`, and expressions as Python writes them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/block/modules.h"

#define Q_PROJ "model.layers.10.self_attn.q_proj"

static bool match(const char *entry, const char *module)
{
    struct fm_modules m;
    assert_true(fm_modules_read(&m, entry));
    bool matches = fm_modules_match(&m, module);
    fm_modules_release(&m);
    assert_false(fm_modules_match(&m, module));
    return matches;
}

static void a_name_means_its_module_and_what_is_in_it(void **state)
{
    (void)state;
    assert_true(match(Q_PROJ, Q_PROJ));
    assert_true(match("model.layers.10", Q_PROJ));
    assert_false(match("model.layers.1", Q_PROJ));
    assert_false(match("layers.10", Q_PROJ));
}

static void a_star_means_any_text(void **state)
{
    (void)state;
    assert_true(match("*self_attn*", Q_PROJ));
    assert_true(match("model.layers.*.self_attn", Q_PROJ));
    assert_false(match("*.mlp*", Q_PROJ));
}

static void an_expression_is_pythons_and_matches_the_start(void **state)
{
    (void)state;
    struct fm_modules m;
    assert_true(match("re:.*self_attn.*", Q_PROJ));
    assert_true(match("re:model\\.layers\\.\\d+\\.(?:mlp|self_attn)\\.[qk]_proj$", Q_PROJ));
    assert_true(match("re:model", Q_PROJ));
    assert_false(match("re:self_attn", Q_PROJ));
    assert_false(match("re:.*\\.\\d\\.", Q_PROJ));
    assert_false(match("re:.*\\\\d", "model.\\5")); /* a backslash, and the letter d */
    assert_false(fm_modules_read(&m, "re:(?!.*mlp).*"));
    assert_false(fm_modules_read(&m, "re:(q_proj"));
    assert_false(fm_modules_match(&m, Q_PROJ));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_means_its_module_and_what_is_in_it),
        cmocka_unit_test(a_star_means_any_text),
        cmocka_unit_test(an_expression_is_pythons_and_matches_the_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
