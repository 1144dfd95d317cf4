/*
 * Writes SVG directly.  A few lines over two axes take a page of code, and the same figures always
 * give the same file; a plotting library would be the largest dependency of the suite.
 */
#include "lib/bench/plot.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/run/guard.h"

#define TOOL "fm-bench"
/* The second line of a plot, which identifies it. */
#define MARK "\n<!-- drawn by " TOOL " -->\n"
#define END "</svg>\n"

/* Size of the page, margins of the plot area, and width of a legend at its side, in pixels. */
enum { WIDTH = 760, HEIGHT = 460, LEFT = 70, RIGHT = 20, TOP = 44, BOTTOM = 54 };

/* Lines differ in their dashes, too, so they can be distinguished without colours. */
static const char *const colours[] = {"#1b5e9e", "#d1701a", "#3a8a3d", "#9c2f6b",
                                      "#6b6b6b", "#8a6d00", "#157a7a"};
static const char *const dashes[] = {"none", "7 3", "2 3", "7 3 2 3", "12 3", "4 4"};

static const char *colour_of(int series)
{
    return colours[(size_t)series % (sizeof colours / sizeof *colours)];
}

static const char *dash_of(int series)
{
    return dashes[(size_t)series % (sizeof dashes / sizeof *dashes)];
}

struct axis {
    double low, high, step; /* ticks are the multiples of step between the ends */
};

/* A step of 1, 2 or 5 times a power of ten that gives at most eight intervals. */
static double round_step(double span)
{
    double power = pow(10, floor(log10(span / 8)));
    static const double factor[] = {1, 2, 5, 10};
    for (int i = 0; i < 3; i++)
        if (span / (factor[i] * power) <= 8)
            return factor[i] * power;
    return factor[3] * power;
}

static struct axis make_axis(double low, double high, bool round_ends)
{
    if (!(high > low))
        high = low + 1;
    double step = round_step(high - low);
    if (!round_ends)
        return (struct axis){low, high, step};
    return (struct axis){floor(low / step + 1e-9) * step, ceil(high / step - 1e-9) * step, step};
}

static void find_axes(const struct fm_plot *plot, struct axis *x, struct axis *y)
{
    double low[2] = {INFINITY, INFINITY}, high[2] = {-INFINITY, -INFINITY};
    for (int s = 0; s < plot->count; s++)
        for (int i = 0; i < plot->series[s].count; i++) {
            const double v[2] = {plot->series[s].x[i], plot->series[s].y[i]};
            for (int a = 0; a < 2; a++) {
                low[a] = fmin(low[a], v[a]);
                high[a] = fmax(high[a], v[a]);
            }
        }
    if (plot->y_most > 0)
        high[1] = fmin(high[1], plot->y_most);
    *x = make_axis(isfinite(low[0]) ? low[0] : 0, isfinite(high[0]) ? high[0] : 1, false);
    *y = make_axis(isfinite(low[1]) ? low[1] : 0, isfinite(high[1]) ? high[1] : 1, true);
}

static double at_x(const struct axis *a, double v)
{
    return LEFT + (v - a->low) / (a->high - a->low) * (WIDTH - LEFT - RIGHT);
}

static double at_y(const struct axis *a, double v)
{
    return HEIGHT - BOTTOM - (v - a->low) / (a->high - a->low) * (HEIGHT - TOP - BOTTOM);
}

static void put_text(FILE *out, const char *text)
{
    for (const char *p = text; *p; p++) {
        if (*p == '<')
            fputs("&lt;", out);
        else if (*p == '&')
            fputs("&amp;", out);
        else
            fputc(*p, out);
    }
}

static void put_label(FILE *out, double x, double y, const char *attributes, const char *text)
{
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, attributes);
    put_text(out, text);
    fputs("</text>\n", out);
}

/* Indices of the first and the last tick. */
static int first_tick(const struct axis *a)
{
    return (int)ceil(a->low / a->step - 1e-9);
}

static int last_tick(const struct axis *a)
{
    return (int)floor(a->high / a->step + 1e-9);
}

static void draw_grid(FILE *out, const struct axis *x, const struct axis *y)
{
    char text[32];
    for (int i = first_tick(x); i <= last_tick(x); i++) {
        double v = i * x->step, at = at_x(x, v);
        snprintf(text, sizeof text, "%.6g", v);
        fprintf(out, "<path d=\"M%.1f %dV%d\" stroke=\"#ddd\"/>\n", at, TOP, HEIGHT - BOTTOM);
        put_label(out, at, HEIGHT - BOTTOM + 18, "text-anchor=\"middle\"", text);
    }
    for (int i = first_tick(y); i <= last_tick(y); i++) {
        double v = i * y->step, at = at_y(y, v);
        snprintf(text, sizeof text, "%.6g", v);
        fprintf(out, "<path d=\"M%d %.1fH%d\" stroke=\"#ddd\"/>\n", LEFT, at, WIDTH - RIGHT);
        put_label(out, LEFT - 8, at + 4, "text-anchor=\"end\"", text);
    }
    fprintf(out, "<path d=\"M%d %dV%dH%d\" stroke=\"#333\" fill=\"none\"/>\n", LEFT, TOP,
            HEIGHT - BOTTOM, WIDTH - RIGHT);
}

/* Draw one entry of the legend.  Losses grow with the budget, so the upper left is empty. */
static void draw_name(FILE *out, const struct fm_plot *plot, int index)
{
    double row = TOP + 14 + 18 * index;
    int left = LEFT + 12;
    fprintf(out,
            "<path d=\"M%d %.1fh28\" stroke=\"%s\" stroke-width=\"2\" stroke-dasharray=\"%s\"/>\n",
            left, row - 4, colour_of(index), dash_of(index));
    put_label(out, left + 36, row, "", plot->series[index].name);
}

/* Lines are clipped at the top of the plot area; points above it are left out. */
static void draw_series(FILE *out, const struct fm_plot_series *s, int index, const struct axis *x,
                        const struct axis *y, bool cut)
{
    fprintf(out,
            "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" stroke-dasharray=\"%s\" "
            "%spoints=\"",
            colour_of(index), dash_of(index), cut ? "clip-path=\"url(#field)\" " : "");
    for (int i = 0; i < s->count; i++)
        fprintf(out, "%s%.1f,%.1f", i ? " " : "", at_x(x, s->x[i]), at_y(y, s->y[i]));
    fputs("\"/>\n", out);
    for (int i = 0; i < s->count && s->count <= 24; i++)
        if (!cut || s->y[i] <= y->high)
            fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" fill=\"%s\"/>\n",
                    at_x(x, s->x[i]), at_y(y, s->y[i]), colour_of(index));
}

static void draw(FILE *out, const struct fm_plot *plot)
{
    struct axis x, y;
    find_axes(plot, &x, &y);
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">" MARK
            "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT, WIDTH, HEIGHT);
    draw_grid(out, &x, &y);
    if (plot->y_most > 0)
        fprintf(out,
                "<clipPath id=\"field\"><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>"
                "</clipPath>\n",
                LEFT, TOP, WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    for (int s = 0; s < plot->count; s++)
        draw_series(out, &plot->series[s], s, &x, &y, plot->y_most > 0);
    for (int s = 0; s < plot->count; s++)
        draw_name(out, plot, s);
    put_label(out, WIDTH / 2.0, 24, "text-anchor=\"middle\" font-size=\"15\"", plot->title);
    put_label(out, WIDTH / 2.0, HEIGHT - 14, "text-anchor=\"middle\"", plot->x_label);
    fprintf(out, "<g transform=\"translate(18 %d) rotate(-90)\">\n", HEIGHT / 2);
    put_label(out, 0, 0, "text-anchor=\"middle\"", plot->y_label);
    fputs("</g>\n" END, out);
}

char *fm_plot_svg(const struct fm_plot *plot, struct fm_err *err)
{
    char *text = NULL;
    size_t size = 0;
    assert(plot->count <= FM_PLOT_SERIES_MAX);
    FILE *out = open_memstream(&text, &size);
    if (out)
        draw(out, plot);
    if (!out || fclose(out) != 0) {
        free(text);
        fm_fail(err, FM_ENOMEM, "no memory for the plot");
        return NULL;
    }
    return text;
}

bool fm_plot_is_own(const char *text, size_t size, const char *tool)
{
    const char *line = strchr(text, '\n');
    size_t end = strlen(END);
    return strcmp(tool, TOOL) == 0 && strncmp(text, "<svg ", 5) == 0 && line &&
           strncmp(line, MARK, strlen(MARK)) == 0 && size > end &&
           strcmp(text + size - end, END) == 0;
}

int fm_plot_write(const struct fm_plot *plot, const char *path, bool force, struct fm_err *err)
{
    char *text = fm_plot_svg(plot, err);
    if (!text)
        return err->code;
    int rc = fm_guard_text(path, text, fm_plot_is_own, TOOL, force, err);
    free(text);
    return rc;
}
