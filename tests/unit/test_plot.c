/* A chart is a complete document, with the same bytes for the same numbers, escaped names, and
 * points and ticks in the right places. */
#include <math.h>
#include <unistd.h>

#include "lib/bench/plot.h"
#include "tests/unit/test.h"

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

TEST(the_document_is_whole)
{
    struct fm_plot plot = example("family", 4);
    char *text = draw(&plot);
    assert_memory_equal(text, "<svg xmlns", 10);
    assert_string_equal(text + strlen(text) - 7, "</svg>\n");
    assert_non_null(strstr(text, ">family</text>"));
    free(text);
}

TEST(our_plots_are_recognised)
{
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

/* The written file has these bytes, too; fewer points give other bytes. */
TEST(the_same_numbers_give_the_same_bytes)
{
    struct fm_plot plot = example("family", 4), again = example("family", 4);
    struct fm_plot shorter = example("family", 3);
    char *a = draw(&plot), *b = draw(&again), *c = draw(&shorter), *written = NULL;
    char path[] = "/tmp/fm-test-plot-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && close(fd) == 0 && unlink(path) == 0);
    assert_ok(fm_plot_write(&plot, path, false, &err));
    size_t size = strlen(a);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    written = calloc(size + 2, 1);
    assert_int_equal(fread(written, 1, size + 2, file), size);
    fclose(file);
    unlink(path);
    assert_string_equal(a, b);
    assert_string_equal(a, written);
    assert_string_not_equal(a, c);
    free(a);
    free(b);
    free(c);
    free(written);
}

TEST(names_cannot_break_the_document)
{
    struct fm_plot plot = example("<b>&", 4);
    char *text = draw(&plot);
    assert_null(strstr(text, "<b>"));
    assert_non_null(strstr(text, "&lt;b>&amp;"));
    free(text);
}

/* Budgets 0 to 0.8 and losses 1.8 to 2.6 have round ends, so both axes end where the numbers do:
 * the field is 670 by 362 pixels from (70, 406), upwards. */
TEST(points_are_at_the_right_places)
{
    struct fm_plot plot = example("family", 4);
    char *text = draw(&plot);
    const char *p = strstr(text, "points=\""), *dot = text;
    assert_non_null(p);
    p += strlen("points=\"");
    for (int i = 0; i < 4; i++) {
        double want_x = 70 + budget[i] / 0.8 * 670, want_y = 406 - (loss[i] - 1.8) / 0.8 * 362;
        double x = 0, y = 0;
        int n = 0;
        assert_int_equal(sscanf(p, "%lf,%lf%n", &x, &y, &n), 2);
        assert_true(fabs(x - want_x) < 0.06 && fabs(y - want_y) < 0.06);
        p += n;
        dot = strstr(dot + 1, "<circle");
        assert_non_null(dot);
        assert_int_equal(sscanf(dot, "<circle cx=\"%lf\" cy=\"%lf\"", &x, &y), 2);
        assert_true(fabs(x - want_x) < 0.06 && fabs(y - want_y) < 0.06);
    }
    assert_int_equal(*p, '"');
    free(text);
}

/* The label of a tick is at its number's position on the axis. */
TEST(ticks_are_at_the_right_places)
{
    struct fm_plot plot = example("family", 4);
    char *text = draw(&plot), *p = text;
    int across = 0, upwards = 0;
    while ((p = strstr(p, "<text x=\""))) {
        double x = 0, y = 0, number = 0;
        char anchor[8];
        if (sscanf(p, "<text x=\"%lf\" y=\"%lf\" text-anchor=\"%7[a-z]\">%lf<", &x, &y, anchor,
                   &number) == 4) {
            bool below = strcmp(anchor, "middle") == 0;
            double want = below ? 70 + number / 0.8 * 670 : 406 - (number - 1.8) / 0.8 * 362 + 4;
            assert_true(fabs((below ? x : y) - want) < 0.06);
            *(below ? &across : &upwards) += 1;
        }
        p++;
    }
    assert_int_equal(across, 9); /* 0, 0.1 .. 0.8 */
    assert_int_equal(upwards, 9);
    free(text);
}

TEST(one_point_or_none_can_be_drawn)
{
    for (int points = 0; points < 2; points++) {
        struct fm_plot plot = example("family", points);
        char *text = draw(&plot);
        assert_null(strstr(text, "nan"));
        assert_null(strstr(text, "inf"));
        free(text);
    }
}

/* A full chart: every series is drawn, and no two look alike. */
TEST(the_largest_number_of_series_can_be_told_apart)
{
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

/* The field ends with the numbers, not with the next tick; values above `y_most` are clipped,
 * and have no point above the field. */
TEST(the_field_ends_where_the_family_ends)
{
    static const double x[] = {0, 0.35, 0.82}, family[] = {1, 1.1, 2}, control[] = {1, 3, 9};
    struct fm_plot plot = {.title = "t", .x_label = "x", .y_label = "y", .count = 2, .y_most = 2};
    plot.series[0] = (struct fm_plot_series){"family", x, family, 3};
    plot.series[1] = (struct fm_plot_series){"control", x, control, 3};
    char *text = draw(&plot), *p = text;
    int circles = 0;
    assert_non_null(strstr(text, "points=\"70.0,406.0 356.0,369.8 740.0,44.0\""));
    assert_non_null(strstr(text, "clip-path=\"url(#field)\""));
    assert_non_null(strstr(text, ">0.8</text>"));
    assert_null(strstr(text, ">0.9</text>"));
    for (; (p = strstr(p, "<circle")); p++)
        circles++;
    assert_int_equal(circles, 4);
    free(text);
}

TEST_MAIN(NULL, NULL)
