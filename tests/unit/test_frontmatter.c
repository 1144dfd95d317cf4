/* The parts of a model card's front matter that the card of an export repeats. */
#include "lib/export/frontmatter.h"
#include "tests/unit/test.h"

TEST(values_of_every_form_are_repeated)
{
    static const struct {
        const char *card, *want;
    } c[] = {
        {"---\nlicense: mit\n---\n", "license: mit\n"},
        {"---\r\nlanguage: en\r\nlicense: apache-2.0\r\n---\r\ntext\r\n", "license: apache-2.0\n"},
        {"\xef\xbb\xbf---\nlicense: mit  \t\n---\n", "license: mit\n"},
        {"---\nlicense: \"mit\"\n---\n", "license: mit\n"},
        {"---\nlicense: 'mit'\r\n---\n", "license: mit\n"},
        {"---\nlicense:\n- mit\n- apache-2.0\ntags:\n- moe\n---\n",
         "license:\n- mit\n- apache-2.0\n"},
        {"---\r\nlicense:\r\n  - mit\r\n  - 'apache-2.0'\r\n---\r\n",
         "license:\n- mit\n- apache-2.0\n"},
        {"---\nlicense: [mit, \"apache-2.0\"]\n---\n", "license:\n- mit\n- apache-2.0\n"},
        {"---\nlicense: https://example.org/l.md\n---\n", "license: https://example.org/l.md\n"},
        {"---\nlicense: mit", "license: mit\n"},
        {"---\nlicense:mit\n---\n", "license: mit\n"},
        {"---\nlicense: mit # as upstream\n---\n", "license: mit\n"},
        {"---\r\nlicense: 'mit'\t# as upstream\r\n---\r\n", "license: mit\n"},
        {"---\nlicense: \"mit\" # it's \"free\"\n---\n", "license: mit\n"},
        {"---\nlicense: [mit, 'apache-2.0'] # both\n---\n", "license:\n- mit\n- apache-2.0\n"},
        {"---\nlicense: # both\n# first\n- mit # a\n\n  # second\n- apache-2.0\n---\n",
         "license:\n- mit\n- apache-2.0\n"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        char text[128] = "a: b\n", want[128];
        strcat(strcpy(want, text), c[i].want);
        assert_true(fm_frontmatter_repeat(text, sizeof text, c[i].card, "license"));
        assert_string_equal(text, want);
    }
}

TEST(other_values_are_not_repeated)
{
    static const char *const cards[] = {
        "",
        "---",
        "license: mit\n",
        "---\n---\nlicense: mit\n",
        "---\nmy_license: mit\n---\n",
        "---\nlicense: a b\n---\n",
        "---\nlicense: # mit\n---\n",
        "---\n# license: mit\n---\n",
        "---\nlicense: 'mit # x'\n---\n",
        "---\nlicense:\n---\n",
        "---\nlicense:\n-mit\n---\n",
        "---\nlicense: []\n---\n",
        "---\nlicense: [mit,]\n---\n",
        "---\nlicense: [\n---\n",
        "---\nlicense: \"\n---\n",
        "---\nlicense: >\n  mit\n---\n",
        "---\nlicense: \x1b[2J\n---\n",
        "---\nlicense:\n- mit\n- a: b\n---\n",
        "---\nlicense: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n---\n",
    };
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        char text[64] = "a: b\n";
        if (fm_frontmatter_repeat(text, sizeof text, cards[i], "license"))
            fail_msg("card %zu: %s", i, text);
        assert_string_equal(text, "a: b\n");
    }
}

TEST_MAIN(NULL, NULL)
