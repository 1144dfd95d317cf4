/* Compare the detokeniser with results of lm-eval's wikitext task (0.4.13, Python 3.11). */
#include <unistd.h>

#include "lib/bench/wikitext.h"
#include "tests/unit/test.h"

TEST(pages_are_what_lm_eval_makes_of_them)
{
    static const struct {
        const char *page, *text;
        uint64_t words;
    } cases[] = {
        {"", "", 1},
        {"the dogs ' end", "the dogs' end", 4},
        {"/' 5/ and /' x/", "/'[0-9]/ and /' x/", 5},
        {"1 @,@ 000 @.@ 5 @-@ b", "1,000.5-b", 7},
        {"a , b . c : d ; e ! f ? g", "a, b. c: d; e! f? g", 13},
        {"( x ) and (  ) and ( open", "(x) and () and ( open", 9},
        {"[ a ( b ] c ) { d }", "[a (b] c) {d}", 10},
        {"\" q \" and ' r ' s' t", "\"q\" and 'r' s' t", 9},
        {"= = = = = = = = =", "=========", 9},
        {" 20 \302\260 C \n \n N N 's", " 20\302\260C\n\nN 1's", 7},
        {"\302\240(\342\200\203x\343\200\200)\302\240 y", "\302\240(x)\302\240 y", 5},
        {"a  :  : b", "a : : b", 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t size = strlen(cases[i].page);
        char *text = strdup(cases[i].page);
        assert_non_null(text);
        assert_int_equal(fm_wikitext_words(text, size), cases[i].words);
        assert_int_equal(fm_wikitext_detokenise(&text, &size, &err), 0);
        assert_string_equal(text, cases[i].text);
        assert_int_equal(size, strlen(cases[i].text));
        free(text);
    }
}

/* Searching to the end of the page for every bracket would take minutes. */
TEST(brackets_that_nothing_closes_take_linear_time)
{
    size_t size = (size_t)4 << 20, made = size;
    char *text = malloc(size);
    assert_non_null(text);
    memset(text, '(', size);
    alarm(60);
    assert_int_equal(fm_wikitext_detokenise(&text, &made, &err), 0);
    alarm(0);
    assert_int_equal(made, size);
    for (size_t i = 0; i < size; i++)
        assert_true(text[i] == '(');
    free(text);
}

TEST_MAIN(NULL, NULL)
