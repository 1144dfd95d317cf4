/* Entries of lists of modules: names, patterns with `*`, and regular expressions of Python. */
#include "lib/base/modules.h"
#include "tests/unit/test.h"

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

TEST(a_name_means_its_module_and_what_is_in_it)
{
    assert_true(match(Q_PROJ, Q_PROJ));
    assert_true(match("model.layers.10", Q_PROJ));
    assert_false(match("model.layers.1", Q_PROJ));
    assert_false(match("layers.10", Q_PROJ));
}

TEST(a_star_means_any_text)
{
    assert_true(match("*self_attn*", Q_PROJ));
    assert_true(match("model.layers.*.self_attn", Q_PROJ));
    assert_false(match("*.mlp*", Q_PROJ));
}

TEST(an_expression_is_a_python_regex_that_matches_the_start)
{
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

static void reads(bool good, const char *entry)
{
    struct fm_modules m;
    if (fm_modules_read(&m, entry) != good)
        fail_msg("%.40s", entry);
    fm_modules_release(&m);
}

TEST(an_expression_has_limits)
{
    char entry[40005] = "re:";
    reads(true, "re:((((((((((((((((a))))))))))))))))");
    reads(false, "re:(((((((((((((((((a)))))))))))))))))");
    memset(entry + 3, '(', 20000);
    memset(entry + 20003, ')', 20000);
    reads(false, entry);
    memset(entry + 3, 'x', 253);
    entry[256] = '\0';
    reads(true, entry);
    memcpy(entry + 256, "x", 2);
    reads(false, entry);
    reads(false, "re:((a{1,255}){1,255}){1,255}");
    reads(false, "re:a\\{");
    reads(false, "re:(a*)\\1");
    reads(false, "re:a++");
    reads(false, "re:a*?+");
    reads(true, "re:((((a+)+)+)+)+");
    reads(false, "re:(((((a+)+)+)+)+)+");
    reads(false, "re:a)(b");
    reads(false, "re:a\\");
}

TEST(escapes_are_those_of_python)
{
    assert_true(match("re:model\\.layers\\.[\\d]+\\.", Q_PROJ));
    assert_true(match("re:[\\w.]*$", Q_PROJ));
    assert_false(match("re:[\\d]", "\\5"));
    assert_false(match("re:[^\\d]", "5"));
    assert_true(match("re:[]x]$", "]"));
    assert_false(match("re:a|b", "xb"));
    assert_false(match("re:model.+?q", "model"));
    assert_true(match("re:.*?q_proj", Q_PROJ));
    assert_true(match("re:\\<q", "<q"));
    reads(false, "re:\\A.*");
    reads(false, "re:.*\\Z");
    reads(false, "re:[\\S]");
    reads(false, "re:[[:alpha:]]");
}

TEST_MAIN(NULL, NULL)
