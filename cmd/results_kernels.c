/* What fm-bench kernels measured, as a table, JSON and a plot. */
#include "cmd/results.h"
#include "lib/base/units.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/bench/plot.h"

/* A figure: x in the JSON, and in the text x / unit with `digits` after the point. */
static void cell(const struct fm_result *r, const char *key, double x, double unit, int digits)
{
    fprintf(r->text, "%.*f | ", digits, x / unit);
    fm_json_add_double(r->json, key, x);
}

static void describe_row(const struct fm_result *r, const struct fm_kernelbench_row *k)
{
    fprintf(r->text, "| %d | %s | ", k->tokens, k->kernel);
    fm_json_add_uint(r->json, "tokens", (uint64_t)k->tokens);
    fm_json_add_string(r->json, "kernel", k->kernel);
    cell(r, "removed", k->budget, 1, 3);
    fm_json_add_uint(r->json, "experts", (uint64_t)k->experts);
    cell(r, "seconds", k->seconds, 1e-3, 2);
    fm_json_add_double(r->json, "bytes", k->bytes);
    fm_json_add_double(r->json, "flops", k->flops);
    cell(r, "bytes_per_second", k->bytes / k->seconds, 1e9, 1);
    cell(r, "flops_per_second", k->flops / k->seconds, 1e9, 1);
    cell(r, "of_roofline", k->roofline / k->seconds, 1, 2);
    cell(r, "speedup", k->speedup, 1, 2);
    cell(r, "ideal", k->ideal, 1, 2);
    if (!isnan(k->error)) {
        fprintf(r->text, "%.1e ", k->error);
        fm_json_add_double(r->json, "error", k->error);
    }
    fputs("|\n", r->text);
}

/* The shape of the layer, and where it is computed. */
static void describe_setting(const struct fm_result *r, const struct fm_kernelbench *b)
{
    FILE *out = r->text;
    cJSON *o = r->json;
    char bytes[32];
    fm_units_bytes(bytes, b->bytes);
    fprintf(out, "H %d, I %d, %d experts, top-%d, %s: %s of weights\n", b->H, b->I, b->E, b->K,
            b->dtype, bytes);
    fm_json_add_uint(o, "hidden", (uint64_t)b->H);
    fm_json_add_uint(o, "channels", (uint64_t)b->I);
    fm_json_add_uint(o, "experts", (uint64_t)b->E);
    fm_json_add_uint(o, "experts_per_token", (uint64_t)b->K);
    fm_json_add_string(o, "dtype", b->dtype);
    fm_json_add_uint(o, "bytes", b->bytes);
    if (b->rows == 0)
        return;
    fprintf(out, "%s, %d threads; libfm_clip: %s; oneDNN %s\n", b->cpu, b->threads, b->path,
            b->dnnl);
    fprintf(out, "read bandwidth %.1f GB/s, oneDNN's product %.1f GFLOP/s\n", 1e-9 * b->bandwidth,
            1e-9 * b->peak);
    fm_json_add_string(o, "cpu", b->cpu);
    fm_json_add_uint(o, "threads", (uint64_t)b->threads);
    fm_json_add_string(o, "path", b->path);
    fm_json_add_string(o, "onednn", b->dnnl);
    fm_json_add_double(o, "read_bytes_per_second", b->bandwidth);
    fm_json_add_double(o, "peak_flops_per_second", b->peak);
    if (!*b->gpu)
        return;
    fprintf(out, "%s: read bandwidth %.1f GB/s, cuBLAS's product %.1f GFLOP/s\n", b->gpu,
            1e-9 * b->gpu_bandwidth, 1e-9 * b->gpu_peak);
    fm_json_add_string(o, "gpu", b->gpu);
    fm_json_add_double(o, "gpu_read_bytes_per_second", b->gpu_bandwidth);
    fm_json_add_double(o, "gpu_peak_flops_per_second", b->gpu_peak);
}

void fm_results_kernels(const struct fm_result *r, const void *self)
{
    const struct fm_kernelbench *b = self;
    describe_setting(r, b);
    if (b->rows == 0)
        return;
    fprintf(r->text,
            "\n| tokens | kernel | removed | ms | GB/s | GFLOP/s | of roofline | speed-up | ideal "
            "| error |\n| --: | :-- | --: | --: | --: | --: | --: | --: | --: | --: |\n");
    cJSON *rows = fm_json_add_array(r->json, "rows");
    for (int i = 0; i < b->rows; i++)
        if (b->row[i].seconds > 0)
            describe_row(&(struct fm_result){r->text, fm_json_add_object(rows, NULL)}, &b->row[i]);
}

enum { NAME_BYTES = 48 };

struct drawing {
    struct fm_plot plot;
    char name[FM_PLOT_SERIES_MAX][NAME_BYTES];
    double *v; /* numbers of all curves */
    size_t used;
};

/* One curve: `count` rows of a kernel at one number of tokens, or their ideal. */
static void add_curve(struct drawing *d, const struct fm_kernelbench_row *row, int count,
                      const char *what)
{
    assert(d->plot.count < FM_PLOT_SERIES_MAX);
    double *x = d->v + d->used, *y = x + count;
    char *name = d->name[d->plot.count];
    bool ideal = strcmp(what, "ideal") == 0;
    snprintf(name, NAME_BYTES, "%s%s%d tokens", what, *what ? ", " : "", row->tokens);
    for (int i = 0; i < count; i++) {
        x[i] = row[i].budget;
        y[i] = ideal ? row[i].ideal : row[i].speedup;
    }
    d->used += 2 * (size_t)count;
    d->plot.series[d->plot.count++] = (struct fm_plot_series){name, x, y, count};
}

/* The number of rows of the same curve, from row i on. */
static int curve_length(const struct fm_kernelbench *b, int i)
{
    int n = 1;
    while (i + n < b->rows && b->row[i + n].kernel == b->row[i].kernel &&
           b->row[i + n].tokens == b->row[i].tokens)
        n++;
    return n;
}

static bool curve_ran(const struct fm_kernelbench_row *row, int count)
{
    for (int i = 0; i < count; i++)
        if (!(row[i].seconds > 0))
            return false;
    return true;
}

/* Add our curves, or that of the naive layer, as long as they fit. */
static void add_curves(struct drawing *d, const struct fm_kernelbench *b, bool naive)
{
    for (int i = 0, n; i < b->rows; i += n) {
        const char *kernel = b->row[i].kernel;
        n = curve_length(b, i);
        if ((strcmp(kernel, "naive") == 0) == naive && strcmp(kernel, "oneDNN") != 0 &&
            curve_ran(&b->row[i], n) && d->plot.count + 1 < FM_PLOT_SERIES_MAX)
            add_curve(d, &b->row[i], n, kernel);
    }
}

int fm_results_kernels_plot(const struct fm_kernelbench *b, const char *path, bool force,
                            struct fm_err *err)
{
    struct drawing d = {.plot = {.title = "Speed-up of a clipped layer over its full width",
                                 .x_label = "share of the layer's channels removed",
                                 .y_label = "speed-up"}};
    d.v = calloc(4 * (size_t)b->rows + 1, sizeof *d.v);
    if (!d.v)
        return fm_fail(err, FM_ENOMEM, "no memory for the plot");
    add_curves(&d, b, false);
    add_curves(&d, b, true);
    if (d.plot.count > 0) { /* the ideal is the same for all kernels: draw that of the last curve */
        int last = b->rows - d.plot.series[0].count;
        add_curve(&d, &b->row[last], d.plot.series[0].count, "ideal");
    }
    int rc = fm_plot_write(&d.plot, path, force, err);
    free(d.v);
    return rc;
}
