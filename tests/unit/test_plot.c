/* The chart: a whole document, the same bytes for the same numbers, names escaped, lines inside. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/bench/plot.h"

static const double budget[] = {0, 0.1, 0.4, 0.8}, loss[] = {1.8, 1.81, 1.93, 2.6};

static struct fm_plot example(const char *name, int points)
{
    struct fm_plot plot = {.title = "t", .x_label = "x", .y_label = "y", .count = 1};
    plot.series[0] = (struct fm_plot_series){name, budget, loss, points};
    return plot;
}

static char *draw(const struct fm_plot *plot)
{
    struct fm_err err = {0};
    char *text = fm_plot_svg(plot, &err);
    assert_non_null(text);
    return text;
}

static void the_document_is_whole(void **state)
{
    (void)state;
    struct fm_plot plot = example("family", 4);
    char *text = draw(&plot);
    assert_memory_equal(text, "<svg xmlns", 10);
    assert_string_equal(text + strlen(text) - 7, "</svg>\n");
    assert_non_null(strstr(text, ">family</text>"));
    free(text);
}

static void a_plot_is_known_as_ours(void **state)
{
    (void)state;
    static const char theirs[] = "<svg width=\"1\">\n<path/>\n</svg>\n";
    struct fm_plot plot = example("family", 4);
    char *text = draw(&plot);
    size_t size = strlen(text);
    assert_true(fm_plot_is_own(text, size, "fm-bench"));
    assert_false(fm_plot_is_own(text, size, "fm-rank"));
    text[size - 1] = '\0'; /* cut */
    assert_false(fm_plot_is_own(text, size - 1, "fm-bench"));
    free(text);
    assert_false(fm_plot_is_own(theirs, sizeof theirs - 1, "fm-bench"));
    assert_false(fm_plot_is_own("", 0, "fm-bench"));
}

static void the_same_numbers_give_the_same_bytes(void **state)
{
    (void)state;
    struct fm_plot plot = example("family", 4);
    char *a = draw(&plot), *b = draw(&plot);
    assert_string_equal(a, b);
    free(a);
    free(b);
}

static void names_cannot_break_the_document(void **state)
{
    (void)state;
    struct fm_plot plot = example("<b>&", 4);
    char *text = draw(&plot);
    assert_null(strstr(text, "<b>"));
    assert_non_null(strstr(text, "&lt;b>&amp;"));
    free(text);
}

static void every_point_lies_in_the_field(void **state)
{
    (void)state;
    struct fm_plot plot = example("family", 4);
    char *text = draw(&plot);
    const char *p = strstr(text, "points=\"");
    assert_non_null(p);
    p += 8;
    double before = 70;
    for (int i = 0; i < 4; i++) {
        double x = 0, y = 0;
        int n = 0;
        assert_int_equal(sscanf(p, "%lf,%lf%n", &x, &y, &n), 2);
        assert_true(x >= before && x <= 740);
        before = x;
        assert_true(y >= 44 && y <= 406);
        p += n;
    }
    assert_int_equal(*p, '"');
    free(text);
}

static void one_point_and_none_can_be_drawn(void **state)
{
    (void)state;
    for (int points = 0; points < 2; points++) {
        struct fm_plot plot = example("family", points);
        char *text = draw(&plot);
        assert_null(strstr(text, "nan"));
        assert_null(strstr(text, "inf"));
        free(text);
    }
}

/* A full chart: every series is there, and no two look alike. */
static void as_many_series_as_there_may_be_are_told_apart(void **state)
{
    (void)state;
    struct fm_plot plot = example("", 4);
    char name[FM_PLOT_SERIES_MAX][24], look[FM_PLOT_SERIES_MAX][96];
    for (plot.count = 0; plot.count < FM_PLOT_SERIES_MAX; plot.count++) {
        snprintf(name[plot.count], sizeof name[0], "series %d", plot.count);
        plot.series[plot.count] = (struct fm_plot_series){name[plot.count], budget, loss, 4};
    }
    char *text = draw(&plot), *p = text;
    for (int i = 0; i < FM_PLOT_SERIES_MAX; i++) {
        char legend[32];
        snprintf(legend, sizeof legend, ">series %d</text>", i);
        assert_non_null(strstr(text, legend));
        p = strstr(p + 1, "<polyline");
        assert_non_null(p);
        assert_int_equal(sscanf(p, "<polyline fill=\"none\" %95[^>]", look[i]), 1);
        *strstr(look[i], " points") = '\0';
        for (int j = 0; j < i; j++)
            assert_string_not_equal(look[i], look[j]);
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_document_is_whole),
        cmocka_unit_test(a_plot_is_known_as_ours),
        cmocka_unit_test(the_same_numbers_give_the_same_bytes),
        cmocka_unit_test(names_cannot_break_the_document),
        cmocka_unit_test(every_point_lies_in_the_field),
        cmocka_unit_test(one_point_and_none_can_be_drawn),
        cmocka_unit_test(as_many_series_as_there_may_be_are_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
